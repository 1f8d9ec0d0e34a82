/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/graph_growth.c: detects graphs that grow from training step to training step. */
#include "autograd/graph_growth.h"

#include "base/param.h"
#include "ctrt/autograd.h"
#include "memory/label.h"

static const ctrt_param graph_growth_param = {
    sizeof graph_growth_param, "CTRT_GRAPH_GROWTH", CTRT_PARAM_INT, "0", NULL,
    "warn of a graph that spans this many backward passes, as total_loss += loss creates it; 0: off",
};
CORE_PARAM(graph_growth_param);

_Atomic uint32_t graph_growth_limit = GROWTH_UNREAD;
static _Atomic uint64_t found;
static atomic_bool warned;

static uint32_t read_limit(void)
{
    ctrt_param_value value;
    uint32_t limit = 0;
    if (param_read(&value, &graph_growth_param, "core") != CTRT_OK)
        log_message(CTRT_LOG_WARNING, "autograd", "%s", ctrt_error_message());
    else if (value.integer < 0 || value.integer == 1 || value.integer >= INT32_MAX)
        log_message(CTRT_LOG_WARNING, "autograd", "CTRT_GRAPH_GROWTH=%s: expected a number of passes, at least 2, or 0",
                    value.text);
    else
        limit = (uint32_t)value.integer;
    uint32_t unread = GROWTH_UNREAD;            /* another thread may have set the limit meanwhile */
    atomic_compare_exchange_strong(&graph_growth_limit, &unread, limit);
    return atomic_load(&graph_growth_limit);
}

static __attribute__((noinline)) void warn(const struct grad_node *node, uint32_t reach)
{
    atomic_fetch_add_explicit(&found, 1, memory_order_relaxed);
    if (atomic_exchange(&warned, true))
        return;
    const char *label = label_here();
    log_message(CTRT_LOG_WARNING, "autograd",
                "the graph of a result of %s%s%s%s spans %u backward passes and keeps all of them in memory (%llu live "
                "nodes). The program probably sums tensors with their history, as total_loss += loss does. Sum "
                "ctrt_item(loss), or call ctrt_detach first",
                node->class->name(node), *label != '\0' ? " (" : "", label, *label != '\0' ? ")" : "", reach,
                (unsigned long long)ctrt_autograd_live_nodes());
}

/* Returns the calling thread's `passes`, after assigning a number to the thread if it has none. Numbers repeat after
 * about 4000 threads. Two threads with the same number can at worst cause a wrong warning. */
static uint32_t passes_here(void)
{
    static _Atomic uint32_t threads;
    const uint32_t most = UINT32_MAX / (GROWTH_COUNT + 1);
    uint32_t *passes = &autograd_here()->passes;
    if (*passes <= GROWTH_COUNT)
        *passes |= (1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % most) * (GROWTH_COUNT + 1);
    return *passes;
}

/* Returns whether two nodes, given by their `passes`, were recorded by one thread with a backward pass in between. */
static bool pass_between(uint32_t a, uint32_t b)
{
    return a != b && ((a ^ b) & ~GROWTH_COUNT) == 0;
}

void graph_growth_check(struct grad_node *node)
{
    uint32_t limit = atomic_load_explicit(&graph_growth_limit, memory_order_relaxed), reach = 0;
    if (unlikely(limit == GROWTH_UNREAD))
        limit = read_limit();
    if (limit == 0)
        return;
    node->passes = passes_here();
    for (uint32_t i = 0; i < node->n_in; i++) {
        if (node->edges[i].to == NULL || edge_is_leaf(&node->edges[i]))
            continue;
        const struct grad_node *to = edge_node(&node->edges[i]);
        reach = MAX(reach, to->reach + pass_between(to->passes, node->passes));
    }
    node->reach = reach;
    if (unlikely(reach >= limit))
        warn(node, reach);
}

ctrt_status ctrt_autograd_set_growth_limit(int passes)
{
    if (passes < 0 || passes == 1)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "autograd_set_growth_limit",
                         "%d passes, expected 2 or more, or 0 for off", passes);
    atomic_store(&graph_growth_limit, (uint32_t)passes);
    atomic_store(&warned, false);
    return CTRT_OK;
}

uint64_t ctrt_autograd_growth_found(void)
{
    return atomic_load(&found);
}
