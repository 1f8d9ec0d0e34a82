/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/candidates.c: finds the strategies that `auto` compares, and what they say of themselves. */
#include "parallel/strategy/candidates.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/ops.h"
#include "parallel/comm/comm.h"

#define NAME_BYTES 64

static ctrt_status estimate(ctrt_strategy_estimate *out, const struct component *component, const struct parallel *p,
                            const ctrt_strategy_facts *facts)
{
    const ctrt_strategy *table = component->table;
    *out = (ctrt_strategy_estimate){ .size = sizeof *out };
    return table->estimate(out, &p->config, facts);
}

static int by_preference(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    if (a->estimate.preference != b->estimate.preference)
        return a->estimate.preference < b->estimate.preference ? -1 : 1;
    return strcmp(a->component->name, b->component->name);
}

static void refused_note(struct candidates *candidates, const char *name, const ctrt_strategy_estimate *estimate)
{
    if (estimate->reason[0] != '\0' && candidates->refused[0] == '\0')
        snprintf(candidates->refused, sizeof candidates->refused, ", but %s (%s)", estimate->reason, name);
}

static void candidates_add(struct candidates *candidates, const struct component *found, const struct parallel *p,
                           const ctrt_strategy_facts *facts)
{
    const ctrt_strategy *table = found->table;
    const uint32_t ranks = p->comm != NULL ? CTRT_STRATEGY_RANKS : 0;
    struct candidate candidate = { .component = NULL };
    if (!CTRT_SLOT(table, estimate) || (table->flags & CTRT_STRATEGY_RANKS) != ranks
        || (table->flags & ~(uint32_t)STRATEGY_FLAGS))
        return;
    if (registry_use(&candidate.component, CTRT_COMPONENT_STRATEGY, found->name) != CTRT_OK
        || estimate(&candidate.estimate, candidate.component, p, facts) != CTRT_OK) {
        log_message(CTRT_LOG_DEBUG, "parallel", "auto: %s cannot be used: %s", found->name, ctrt_error_message());
        return;
    }
    if (candidate.estimate.applies && candidates->count < MOST_CANDIDATES)
        candidates->list[candidates->count++] = candidate;
    else
        refused_note(candidates, found->name, &candidate.estimate);
}

static ctrt_status none_applies(void)
{
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "no strategy applies to these devices; `ctrt plugins` lists the "
                     "strategies and why some cannot be used");
}

ctrt_status candidates_find(struct candidates *out, const struct parallel *p, const ctrt_strategy_facts *facts)
{
    const struct component *found[MOST_CANDIDATES];
    size_t count;
    CTRT_TRY(registry_ranked(found, &count, COUNT_OF(found), CTRT_COMPONENT_STRATEGY));
    out->count = 0;
    for (size_t i = 0; i < count; i++)
        candidates_add(out, found[i], p, facts);
    qsort(out->list, (size_t)out->count, sizeof *out->list, by_preference);
    return out->count > 0 ? CTRT_OK : none_applies();
}

void candidates_again(struct candidates *candidates, const struct parallel *p, const ctrt_strategy_facts *facts)
{
    ctrt_strategy_estimate now;
    for (int i = 0; i < candidates->count; i++)
        if (estimate(&now, candidates->list[i].component, p, facts) == CTRT_OK)
            candidates->list[i].estimate = now;
}

/* ---- ranks ---- */

/* Writes the names of rank 0's candidates to names[MOST_CANDIDATES][NAME_BYTES], unused ones empty. */
static ctrt_status names_agree(char (*names)[NAME_BYTES], const struct candidates *candidates, const struct parallel *p)
{
    CTRT_AUTO(tensor) tensor = NULL;
    const int64_t bytes = MOST_CANDIDATES * NAME_BYTES;
    memset(names, 0, (size_t)bytes);
    for (int i = 0; i < candidates->count; i++)
        snprintf(names[i], NAME_BYTES, "%s", candidates->list[i].component->name);
    CTRT_TRY(ctrt_from_data(&tensor, names, bytes, CTRT_SHAPE(bytes), CTRT_U8, p->config.devices[0]));
    CTRT_TRY(ctrt_comm_broadcast(NULL, p->comm, tensor, 0));
    return ctrt_to_host(names, (size_t)bytes, tensor, CTRT_U8);
}

static const struct candidate *find(const struct candidates *candidates, const char *name)
{
    for (int i = 0; i < candidates->count; i++)
        if (strcmp(candidates->list[i].component->name, name) == 0)
            return &candidates->list[i];
    return NULL;
}

/* Keeps the candidates that all ranks have, in the order of `names`. `bytes`: the negative bytes of each. */
static void keep_common(struct candidates *candidates, char (*names)[NAME_BYTES], const double *have,
                        const double *bytes)
{
    struct candidates common = { .count = 0 };
    memcpy(common.refused, candidates->refused, sizeof common.refused);
    for (int i = 0; i < MOST_CANDIDATES; i++)
        if (have[i] != 0) {
            struct candidate *candidate = &common.list[common.count++];
            *candidate = *find(candidates, names[i]);
            candidate->estimate.bytes = (uint64_t)-bytes[i];
        }
    *candidates = common;
}

ctrt_status candidates_agree(struct candidates *candidates, uint64_t *budget, uint64_t *model,
                             const struct parallel *p)
{
    enum { BUDGET, MODEL, HAVE, BYTES = HAVE + MOST_CANDIDATES, NUMBERS = BYTES + MOST_CANDIDATES };
    char names[MOST_CANDIDATES][NAME_BYTES];
    double numbers[NUMBERS] = { [BUDGET] = (double)*budget, [MODEL] = -(double)*model };
    CTRT_AUTO(tensor) least = NULL;
    CTRT_TRY(names_agree(names, candidates, p));
    for (int i = 0; i < MOST_CANDIDATES; i++) {
        const struct candidate *own = find(candidates, names[i]);
        numbers[HAVE + i] = own != NULL;
        numbers[BYTES + i] = own != NULL ? -(double)own->estimate.bytes : 0;
    }
    CTRT_TRY(ctrt_from_data(&least, numbers, NUMBERS, CTRT_SHAPE(NUMBERS), CTRT_F64, p->config.devices[0]));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, p->comm, least, CTRT_COMM_MIN));
    CTRT_TRY(ctrt_to_host(numbers, sizeof numbers, least, CTRT_F64));
    *budget = numbers[BUDGET] < (double)UINT64_MAX ? (uint64_t)numbers[BUDGET] : UINT64_MAX;
    *model = (uint64_t)-numbers[MODEL];
    keep_common(candidates, names, numbers + HAVE, numbers + BYTES);
    return candidates->count > 0 ? CTRT_OK : none_applies();
}
