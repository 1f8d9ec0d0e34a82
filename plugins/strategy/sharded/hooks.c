/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/hooks.c: opens and closes groups around the forward and backward passes of their modules.
 *
 * The backward pass of a module begins with the gradient of its output, so a hook of the output opens the group. Such
 * a hook lives as long as the graph, which may outlive the strategy. Its `user` is therefore not a pointer but the
 * numbers of the instance, of the pass and of the group. */
#include <pthread.h>

#include "sharded.h"

enum { MOST_INSTANCES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sharded *instances[MOST_INSTANCES];
static uint32_t last_serial;

static bool shares_parameters(const struct ranks *r, const struct sharded *other)
{
    for (size_t i = 0; i < r->parameters; i++)
        for (size_t k = 0; k < other->r.leaf_count; k++)
            if (r->tensors[i] == other->slots[k].leaf.tensor)
                return true;
    return false;
}

ctrt_status instance_check(const struct sharded *s)
{
    bool shared = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_INSTANCES && !shared; i++)
        shared = instances[i] != NULL && shares_parameters(&s->r, instances[i]);
    pthread_mutex_unlock(&lock);
    return shared ? ctrt_fail(CTRT_ERR_STATE, "the module is divided by another net; release that net first") : CTRT_OK;
}

static struct sharded *with_serial(uint32_t serial)
{
    for (int i = 0; i < MOST_INSTANCES; i++)
        if (instances[i] != NULL && instances[i]->serial == serial)
            return instances[i];
    return NULL;
}

/* Returns a serial number of 24 bits that no instance has. */
static uint32_t next_serial(void)
{
    do
        last_serial = (last_serial + 1) & 0xffffff;
    while (with_serial(last_serial) != NULL);
    return last_serial;
}

ctrt_status instance_add(struct sharded *s)
{
    bool added = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_INSTANCES && !added; i++)
        if (instances[i] == NULL) {
            s->serial = next_serial();
            instances[i] = s;
            added = true;
        }
    pthread_mutex_unlock(&lock);
    return added ? CTRT_OK
                 : ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "more than %d nets of this strategy in one process",
                             MOST_INSTANCES);
}

void instance_remove(const struct sharded *s)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_INSTANCES; i++)
        if (instances[i] == s)
            instances[i] = NULL;
    pthread_mutex_unlock(&lock);
}

static struct sharded *instance_find(uint32_t serial)
{
    pthread_mutex_lock(&lock);
    struct sharded *found = with_serial(serial);
    pthread_mutex_unlock(&lock);
    return found;
}

static void *numbers_pack(const struct sharded *s, size_t group)
{
    return (void *)(uintptr_t)((uint64_t)s->serial << 40 | (uint64_t)(s->pass & 0xffffff) << 16 | group);
}

/* ---- use of a parameter that is not gathered ---- */

/* `argument`: the serial number of the instance, and the index of the slot. */
static ctrt_status on_use_absent(void *argument)
{
    const uint64_t numbers = (uintptr_t)argument;
    const struct sharded *s = instance_find((uint32_t)(numbers >> 40));
    if (s == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "a parameter that the strategy sharded has freed is used after the release of "
                         "its net");
    const struct sharded_slot *slot = &s->slots[numbers & 0xffffffffff];
    const char *owner = ctrt_module_kind(s->groups[slot->group].module);
    const char *name = ranks_name(&s->r, slot->leaf.parameter);
    const bool running = s->running != NULL && s->r.pass == PASS_FORWARD;
    const char *user = running ? ctrt_module_kind(s->running->module) : NULL;
    if (user != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "%s uses the parameter \"%s\" of %s, which the strategy sharded gathers only "
                         "while %s runs; before ctrt_parallel_new, register it in %s as well "
                         "(ctrt_module_add_parameter), then it stays gathered", user, name, owner, owner, user);
    return ctrt_fail(CTRT_ERR_STATE, "the parameter \"%s\" of %s is used between the forward and the backward pass, "
                     "when the strategy sharded does not gather it; use it within the forward function of the module "
                     "that is passed to ctrt_parallel_new", name, owner);
}

ctrt_status slot_absent_new(struct sharded_slot *slot)
{
    const struct sharded *s = sharded_of(slot);
    const uint64_t numbers = (uint64_t)s->serial << 40 | (uint64_t)(slot - s->slots);
    return ctrt_tensor_new_absent(&slot->absent, ctrt_ints_of(slot->shape, slot->ndim),
                                  ctrt_tensor_dtype(slot->leaf.tensor), s->r.device, on_use_absent,
                                  (void *)(uintptr_t)numbers);
}

/* ---- backward ---- */

/* Nodes run in the reverse order of their recording. So when the gradient of a group's output in `pass` is computed,
 * the nodes of later passes have run, and groups of the last pass whose modules began to run later have completed their
 * backward pass. */
static ctrt_status later_groups_end(struct sharded *s, const struct sharded_group *group, uint32_t pass)
{
    for (size_t g = 1; g < s->group_count; g++) {
        struct sharded_group *other = &s->groups[g];
        const bool other_pass = other->pass != pass;
        if (other->gather != GATHER_OPEN || other == group
            || (!other_pass && (pass != s->pass || other->first_call <= group->last_call)))
            continue;
        if (s->r.kind == STEP)
            CTRT_TRY(sharded_reduce_complete(s, other));
        if (s->r.kind == STEP || other_pass || other->waiting == 0)
            group_forget(s, other);
    }
    return CTRT_OK;
}

static ctrt_status backward_begins(struct sharded *s, struct sharded_group *group, uint32_t pass)
{
    if (group->gather == GATHER_OPEN && group->pass == pass)
        return CTRT_OK;
    CTRT_TRY(later_groups_end(s, group, pass));
    group->pass = pass;
    return sequence_open(s, group, true);
}

static ctrt_status on_output_gradient(void *user, ctrt_tensor **grad)
{
    const uint64_t numbers = (uintptr_t)user;
    struct sharded *s = instance_find((uint32_t)(numbers >> 40));
    (void)grad;
    if (s == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "sharded: the net of this backward pass has been released, so its parameters "
                         "cannot be gathered");
    const uint32_t before = (s->pass - (uint32_t)(numbers >> 16)) & 0xffffff;
    if (before > s->joined || (s->r.pass != PASS_TURN && s->r.pass != PASS_BACKWARD))
        return ctrt_fail(CTRT_ERR_STATE, "sharded: the forward pass of this backward pass has ended, because a "
                         "backward pass, a step or a checkpoint of the net came after it; add up the losses of several "
                         "forward passes, or run the backward pass of each before the next one");
    const bool was = ctrt_set_streams_ordered(true);
    /* After an error, no later call of the strategy would end the pass, in which the other ranks wait. */
    const ctrt_status status = ranks_fail_all(&s->r, backward_begins(s, &s->groups[numbers & 0xffff],
                                                                     s->pass - before));
    ctrt_set_streams_ordered(was);
    return ctrt_context(status, "sharded");
}

/* ---- forward ---- */

static struct sharded_group *group_of(struct sharded *s, const ctrt_module *module)
{
    for (size_t g = 0; g < s->group_count; g++)
        if (s->groups[g].module == module)
            return &s->groups[g];
    return NULL;
}

/* Also of modules below that of a group. */
static ctrt_status before_forward(void *user, ctrt_module *module)
{
    struct sharded *s = user;
    struct sharded_group *group = group_of(s, module);
    if (s->r.pass == PASS_IDLE || (s->r.pass != PASS_FORWARD && s->r.canonical == 0))
        return ctrt_fail(CTRT_ERR_STATE, "the parameters of this module are distributed by the strategy sharded; run "
                         "it by ctrt_forward or ctrt_parallel_step with the net of ctrt_parallel_new");
    if (s->r.canonical > 0 || group == NULL)
        return CTRT_OK;
    group->outer = s->running;
    group->pass = s->pass;
    s->running = group;
    if (group->first_call == 0 && s->order_state != ORDER_AGREED && s->recorded_count < s->group_count)
        s->recorded[s->recorded_count++] = (size_t)(group - s->groups);
    if (group->first_call == 0)
        group->first_call = ++s->calls;
    return sequence_open(s, group, false);
}

static ctrt_status forward_ends(struct sharded *s)
{
    STATE_SET(MACHINE_PASS, s->r.pass, PASS_TURN);
    CTRT_TRY(sequence_end(s, false));
    return s->r.kind == STEP ? sequence_turn(s) : CTRT_OK;
}

static ctrt_status after_forward(void *user, ctrt_module *module, ctrt_tensor *output)
{
    struct sharded *s = user;
    struct sharded_group *group = group_of(s, module);
    if (s->r.canonical > 0 || group == NULL)
        return CTRT_OK;
    group->last_call = ++s->calls;
    s->running = group->outer;
    if (s->r.kind != EVALUATION && ctrt_grad_enabled() && ctrt_tensor_requires_grad(output))
        CTRT_TRY(ctrt_tensor_add_hook(output, on_output_gradient, numbers_pack(s, (size_t)(group - s->groups)), NULL));
    if (module != s->r.module || s->r.kind != STEP) {         /* a loss function may use the parameters of group 0 */
        if (group->keep && s->r.kind != EVALUATION)
            group_close(s, group);
        else
            group_forget(s, group);
    }
    return module == s->r.module ? forward_ends(s) : CTRT_OK;
}

static const ctrt_forward_hooks forward_hooks = {
    .size = sizeof(ctrt_forward_hooks), .before = before_forward, .after = after_forward,
};

static const ctrt_forward_hooks inner_hooks = { .size = sizeof(ctrt_forward_hooks), .before = before_forward };

static bool has_hooks(struct sharded *s, const ctrt_module *module)
{
    bool found = group_of(s, module) != NULL;
    for (size_t i = 0; i < s->inner_count && !found; i++)
        found = s->inner[i].module == module;
    return found;
}

/* Adds hooks to the modules below `module` that have parameters and no hooks yet. */
static ctrt_status inner_add(struct sharded *s, ctrt_module *module)
{
    ctrt_module *child = NULL;
    for (size_t i = 0; ctrt_module_child(NULL, &child, module, i) == CTRT_OK; i++) {
        if (ctrt_module_parameter_count(child) == 0)
            continue;
        if (!has_hooks(s, child)) {
            const size_t bytes = (s->inner_count + 1) * sizeof *s->inner;
            struct sharded_inner *grown = realloc(s->inner, bytes), *inner = grown + s->inner_count;
            CTRT_TRY(strategy_allocated(grown, bytes));
            s->inner = grown;
            CTRT_TRY(ctrt_module_add_forward_hooks(child, &inner_hooks, s, &inner->hooks));
            inner->module = ctrt_module_retain(child);
            s->inner_count++;
        }
        CTRT_TRY(inner_add(s, child));
    }
    return CTRT_OK;
}

ctrt_status sharded_hooks_add(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++)
        CTRT_TRY(ctrt_module_add_forward_hooks(s->groups[g].module, &forward_hooks, s, &s->groups[g].hooks));
    return inner_add(s, s->r.module);
}

void sharded_hooks_remove(struct sharded *s)
{
    while (s->inner_count > 0) {
        struct sharded_inner *inner = &s->inner[--s->inner_count];
        (void)ctrt_module_remove_forward_hooks(inner->module, inner->hooks);
        ctrt_module_release(&inner->module);
    }
    free(s->inner);
    s->inner = NULL;
    for (size_t g = 0; g < s->group_count; g++)
        if (s->groups[g].hooks != 0)
            (void)ctrt_module_remove_forward_hooks(s->groups[g].module, s->groups[g].hooks);
}
