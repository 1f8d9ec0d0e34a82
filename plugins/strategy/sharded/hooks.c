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
        for (size_t k = 0; k < other->slot_count; k++)
            if (r->tensors[i] == other->slots[k].tensor)
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

/* ---- backward ---- */

/* Nodes run in the reverse order of their recording. So when the gradient of a group's output is computed, groups whose
 * modules began to run later have completed their backward pass. */
static ctrt_status later_groups_end(struct sharded *s, const struct group *group)
{
    for (size_t g = 1; g < s->group_count; g++) {
        struct group *other = &s->groups[g];
        if (!other->open || other == group || other->first_call <= group->last_call)
            continue;
        if (s->mode == STEP)
            CTRT_TRY(reduce_complete(s, other));
        if (s->mode == STEP || other->waiting == 0)
            group_forget(s, other);
    }
    return CTRT_OK;
}

static ctrt_status backward_begins(struct sharded *s, struct group *group)
{
    if (s->all_open || group->open)
        return CTRT_OK;
    CTRT_TRY(later_groups_end(s, group));
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
    if ((numbers >> 16 & 0xffffff) != (s->pass & 0xffffff) || (s->mode != STEP && s->mode != FORWARD))
        return ctrt_fail(CTRT_ERR_STATE, "sharded: another pass has begun after the forward pass of this backward "
                         "pass; run the backward pass before the next forward pass");
    const bool was = ctrt_set_streams_ordered(true);
    const ctrt_status status = backward_begins(s, &s->groups[numbers & 0xffff]);
    ctrt_set_streams_ordered(was);
    return ctrt_context(status, "sharded");
}

/* ---- forward ---- */

static struct group *group_of(struct sharded *s, const ctrt_module *module)
{
    for (size_t g = 0; g < s->group_count; g++)
        if (s->groups[g].module == module)
            return &s->groups[g];
    return NULL;
}

static ctrt_status before_forward(void *user, ctrt_module *module)
{
    struct sharded *s = user;
    struct group *group = group_of(s, module);
    if (s->mode == IDLE || group == NULL || (s->forward_ended && !s->all_open))
        return ctrt_fail(CTRT_ERR_STATE, "the parameters of this module are distributed by the strategy sharded; run "
                         "it by ctrt_forward or ctrt_parallel_step with the net of ctrt_parallel_new");
    if (s->all_open)
        return CTRT_OK;
    if (group->first_call == 0 && !s->ordered && s->seen_count < s->group_count)
        s->seen[s->seen_count++] = (size_t)(group - s->groups);
    if (group->first_call == 0)
        group->first_call = ++s->calls;
    return sequence_open(s, group, false);
}

static ctrt_status forward_ends(struct sharded *s)
{
    s->forward_ended = true;
    CTRT_TRY(sequence_end(s, false));
    return s->mode == STEP ? sequence_turn(s) : CTRT_OK;
}

static ctrt_status after_forward(void *user, ctrt_module *module, ctrt_tensor *output)
{
    struct sharded *s = user;
    struct group *group = group_of(s, module);
    if (s->all_open || group == NULL)
        return CTRT_OK;
    group->last_call = ++s->calls;
    group->ended = true;
    if (s->mode != EVALUATE && ctrt_grad_enabled() && ctrt_tensor_requires_grad(output))
        CTRT_TRY(ctrt_tensor_add_hook(output, on_output_gradient, numbers_pack(s, (size_t)(group - s->groups)), NULL));
    if (group->keep && s->mode != EVALUATE)
        group_close(s, group);
    else
        group_forget(s, group);
    return module == s->r.module ? forward_ends(s) : CTRT_OK;
}

static const ctrt_forward_hooks forward_hooks = {
    .size = sizeof(ctrt_forward_hooks), .before = before_forward, .after = after_forward,
};

ctrt_status hooks_add(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++) {
        struct group *group = &s->groups[g];
        CTRT_TRY(ctrt_module_add_forward_hooks(group->module, &forward_hooks, s, &group->hooks));
        group->hooked = true;
    }
    return CTRT_OK;
}

void hooks_remove(struct sharded *s)
{
    for (size_t g = 0; s->groups != NULL && g < s->group_count; g++)
        if (s->groups[g].hooked)
            (void)ctrt_module_remove_forward_hooks(s->groups[g].module, s->groups[g].hooks);
}
