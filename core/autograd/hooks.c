/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/hooks.c: gradient hooks, and retained gradients of tensors that are not leaves. */
#include "autograd/hooks.h"

#include "autograd/rule.h"
#include "base/array.h"
#include "base/lock.h"
#include "ops/op_common.h"

/* Guards the lists of hooks and of retained tensors, of nodes and of tensors. The lists are rare and short, so one lock
 * is enough for all. Code of the program never runs while the lock is held. */
LOCK_DEFINE(hooks_lock, LOCK_HOOKS);
static _Atomic uint64_t last_id;

static void hook_release(struct grad_hook *hook)
{
    if (atomic_fetch_sub_explicit(&hook->refs, 1, memory_order_acq_rel) == 1)
        host_free(hook);
}

void hooks_free(struct grad_hook *list)
{
    while (list) {
        struct grad_hook *next = list->next;
        hook_release(list);
        list = next;
    }
}

void node_extras_free(struct node_extras *extras)
{
    while (extras->hooks) {
        struct hook_link *link = extras->hooks;
        extras->hooks = link->next;
        hook_release(link->hook);
        host_free(link);
    }
    while (extras->retained) {      /* normally empty, because a retained tensor owns the node */
        struct retained *retained = extras->retained;
        extras->retained = retained->next;
        host_free(retained);
    }
    host_free(extras);
}

/* Returns the node's extras, allocating them if there are none. The caller holds the lock. */
static ctrt_status extras_of(struct node_extras **out, struct grad_node *node)
{
    *out = atomic_load_explicit(&node->extras, memory_order_acquire);
    if (*out)
        return CTRT_OK;
    *out = host_calloc(sizeof **out);
    ALLOC_CHECK(*out, sizeof **out, "hooks");
    atomic_store_explicit(&node->extras, *out, memory_order_release);
    return CTRT_OK;
}

/* ---- retained gradients ---- */

static void retained_strike(struct grad_node *node, const ctrt_tensor *tensor)
{
    struct node_extras *extras = atomic_load_explicit(&node->extras, memory_order_acquire);
    for (struct retained **at = extras ? &extras->retained : NULL; at && *at; at = &(*at)->next)
        if ((*at)->tensor == tensor) {
            struct retained *gone = *at;
            *at = gone->next;
            host_free(gone);
            return;
        }
}

static ctrt_status retained_add(struct grad_node *node, ctrt_tensor *tensor, uint32_t output)
{
    struct node_extras *extras;
    CTRT_TRY(extras_of(&extras, node));
    struct retained *retained = host_alloc(sizeof *retained);
    ALLOC_CHECK(retained, sizeof *retained, "a retained gradient");
    *retained = (struct retained){ tensor, output, extras->retained };
    extras->retained = retained;
    return CTRT_OK;
}

ctrt_status retained_move(ctrt_tensor *tensor, struct grad_node *node, uint32_t output)
{
    lock_enter(&hooks_lock);
    ctrt_status status = node ? retained_add(node, tensor, output) : CTRT_OK;
    if (status == CTRT_OK && tensor->grad->node)
        retained_strike(tensor->grad->node, tensor);
    lock_leave(&hooks_lock);
    return status;
}

/* Adds `grad` to the gradients of the tensors that retain the gradient of `output`.
 *
 * A tensor in the list stays valid while the lock is held, because a tensor that is freed removes itself from the list
 * first. Ops run without the lock, so a tensor that already has a gradient is searched in the list again after the sum
 * is computed. */
static ctrt_status retained_accumulate(struct node_extras *extras, uint32_t output, ctrt_tensor *grad)
{
    struct { ctrt_tensor *tensor, *old; } *sums = NULL;
    size_t count = 0, capacity = 0;
    ctrt_status status = CTRT_OK;
    lock_enter(&hooks_lock);
    for (struct retained *retained = extras->retained; retained && status == CTRT_OK; retained = retained->next) {
        struct autograd_meta *meta = retained->tensor->grad;
        if (retained->output != output)
            continue;
        if (meta->grad == NULL) {
            meta->grad = ctrt_tensor_retain(grad);
        } else if ((status = ARRAY_RESERVE(sums, capacity, count, "retained gradients")) == CTRT_OK) {
            sums[count].tensor = retained->tensor;
            sums[count++].old = ctrt_tensor_retain(meta->grad);
        }
    }
    lock_leave(&hooks_lock);
    for (size_t i = 0; i < count; i++) {
        ctrt_tensor *sum = NULL;
        if (status == CTRT_OK)
            status = ctrt_add(&sum, sums[i].old, grad);
        lock_enter(&hooks_lock);
        for (struct retained *retained = extras->retained; retained && sum; retained = retained->next)
            if (retained->tensor == sums[i].tensor && retained->tensor->grad->grad == sums[i].old) {
                retained->tensor->grad->grad = sum;
                sum = sums[i].old;          /* release the reference that the tensor owned */
                break;
            }
        lock_leave(&hooks_lock);
        if (sum)
            tensor_release(sum);
        tensor_release(sums[i].old);
    }
    host_free(sums);
    return status;
}

ctrt_status ctrt_tensor_retain_grad(ctrt_tensor *tensor)
{
    NULL_CHECK("tensor_retain_grad", tensor);
    CTRT_TRY(grad_refresh(tensor));
    if (!tensor_requires_grad(tensor))
        return fail_from(CTRT_ERR_AUTOGRAD, "tensor_retain_grad", "the tensor does not require grad");
    struct autograd_meta *meta = tensor->grad;
    if (meta->node == NULL)
        return CTRT_OK;                 /* a leaf always keeps its gradient */
    lock_enter(&hooks_lock);
    ctrt_status status = meta->retain_grad ? CTRT_OK : retained_add(meta->node, tensor, meta->output);
    meta->retain_grad = status == CTRT_OK;
    lock_leave(&hooks_lock);
    return status;
}

/* ---- hooks ---- */

/* A copy of a list of hooks, with a reference to each, for iteration: a hook may add and remove hooks. */
struct hooks_running {
    struct grad_hook **hooks;
    int count;
};

static ctrt_status running_capacity(struct hooks_running *running, int n)
{
    *running = (struct hooks_running){ NULL, 0 };
    if (n == 0)
        return CTRT_OK;
    running->hooks = host_alloc((size_t)n * sizeof *running->hooks);
    return running->hooks ? CTRT_OK : out_of_memory((size_t)n * sizeof *running->hooks, "running hooks");
}

static void running_add(struct hooks_running *running, struct grad_hook *hook)
{
    atomic_fetch_add_explicit(&hook->refs, 1, memory_order_relaxed);
    running->hooks[running->count++] = hook;
}

static void running_free(struct hooks_running *running)
{
    for (int i = 0; i < running->count; i++)
        hook_release(running->hooks[i]);
    host_free(running->hooks);
}

static ctrt_status of_node(struct hooks_running *running, const struct hook_link *links, uint32_t output)
{
    int n = 0;
    for (const struct hook_link *link = links; link; link = link->next)
        n += link->output == output;
    CTRT_TRY(running_capacity(running, n));
    for (const struct hook_link *link = links; link; link = link->next)
        if (link->output == output)
            running_add(running, link->hook);
    return CTRT_OK;
}

static ctrt_status of_leaf(struct hooks_running *running, const struct autograd_meta *meta)
{
    int n = 0;
    lock_enter(&hooks_lock);
    for (struct grad_hook *hook = meta->hooks; hook; hook = hook->next)
        n++;
    ctrt_status status = running_capacity(running, n);
    for (struct grad_hook *hook = meta->hooks; hook && status == CTRT_OK; hook = hook->next)
        running_add(running, hook);
    lock_leave(&hooks_lock);
    return status;
}

static ctrt_status check_replaced(const ctrt_tensor *grad, const struct grad_want *want)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (grad_matches(grad, want))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_SHAPE,
                     "a hook on a gradient replaced it with a tensor %s of %s on %s; it must be %s of %s on %s",
                     shape_text(a, grad->view.shape, grad->view.ndim), ctrt_dtype_name(tensor_dtype(grad)),
                     grad->device->name, shape_text(b, want->shape, want->ndim), ctrt_dtype_name(want->dtype),
                     want->device->name);
}

/* Calls the gradient hooks in `running` on *grad, and checks the result against `want`. */
static ctrt_status hooks_show(const struct hooks_running *running, ctrt_tensor **grad, const struct grad_want *want)
{
    for (int i = 0; i < running->count && *grad; i++) {
        struct grad_hook *hook = running->hooks[i];
        if (hook->on_grad && !atomic_load(&hook->removed))
            CTRT_TRY(ctrt_context(hook->on_grad(hook->user, grad), "a hook on a gradient"));
    }
    return *grad ? check_replaced(*grad, want) : CTRT_OK;
}

ctrt_status node_hooks_run(struct grad_node *node, uint32_t output, ctrt_tensor **grad)
{
    struct node_extras *extras = atomic_load_explicit(&node->extras, memory_order_acquire);
    if (extras == NULL || *grad == NULL)
        return CTRT_OK;
    const struct grad_shape *shape = &node->shapes[output];
    const struct grad_want want = { shape->shape, shape->ndim, (ctrt_dtype)shape->dtype, shape->device };
    struct hooks_running running;
    lock_enter(&hooks_lock);
    ctrt_status status = of_node(&running, extras->hooks, output);
    lock_leave(&hooks_lock);
    if (status == CTRT_OK)
        status = hooks_show(&running, grad, &want);
    running_free(&running);
    if (status != CTRT_OK || *grad == NULL)
        return status;
    return retained_accumulate(extras, output, *grad);
}

ctrt_status leaf_hooks_run(struct autograd_meta *meta, ctrt_tensor **grad)
{
    const ctrt_tensor *leaf = meta->leaf.tensor;
    const struct grad_want want = { leaf->view.shape, leaf->view.ndim, tensor_dtype(leaf), leaf->device };
    struct hooks_running running;
    ctrt_status status = of_leaf(&running, meta);
    if (status == CTRT_OK)
        status = hooks_show(&running, grad, &want);
    running_free(&running);
    return status;
}

ctrt_status leaf_accumulated_hooks_run(struct autograd_meta *meta, ctrt_tensor *leaf)
{
    struct hooks_running running;
    ctrt_status status = of_leaf(&running, meta);
    for (int i = 0; i < running.count && status == CTRT_OK; i++) {
        struct grad_hook *hook = running.hooks[i];
        if (hook->on_accumulated && !atomic_load(&hook->removed))
            status = ctrt_context(hook->on_accumulated(hook->user, leaf), "a hook after accumulation");
    }
    running_free(&running);
    return status;
}

static ctrt_status link_to_node(struct grad_hook *hook, struct grad_node *node, uint32_t output)
{
    struct hook_link *link = host_alloc(sizeof *link);
    ALLOC_CHECK(link, sizeof *link, "a hook");
    *link = (struct hook_link){ hook, output, NULL };
    lock_enter(&hooks_lock);
    struct node_extras *extras;
    ctrt_status status = extras_of(&extras, node);
    if (status == CTRT_OK) {
        struct hook_link **end = &extras->hooks;
        while (*end)
            end = &(*end)->next;
        *end = link;
        atomic_fetch_add_explicit(&hook->refs, 1, memory_order_relaxed);
    }
    lock_leave(&hooks_lock);
    if (status != CTRT_OK)
        host_free(link);
    return status;
}

static ctrt_status hooks_insert(ctrt_tensor *tensor, ctrt_grad_hook on_grad, ctrt_accumulate_hook on_accumulated,
                                void *user, uint64_t *id)
{
    struct grad_hook *hook = host_calloc(sizeof *hook);
    ALLOC_CHECK(hook, sizeof *hook, "a hook");
    atomic_init(&hook->refs, 1);
    hook->on_grad = on_grad;
    hook->on_accumulated = on_accumulated;
    hook->user = user;
    hook->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    struct autograd_meta *meta = tensor->grad;
    ctrt_status status = meta->node ? link_to_node(hook, meta->node, meta->output) : CTRT_OK;
    if (status != CTRT_OK) {
        host_free(hook);
        return status;
    }
    if (id)
        *id = hook->id;                 /* before another thread can remove the hook */
    lock_enter(&hooks_lock);
    struct grad_hook **end = &meta->hooks;
    while (*end)
        end = &(*end)->next;
    __atomic_store_n(end, hook, __ATOMIC_RELEASE);
    lock_leave(&hooks_lock);
    return CTRT_OK;
}

ctrt_status ctrt_tensor_add_hook(ctrt_tensor *tensor, ctrt_grad_hook hook, void *user, uint64_t *id)
{
    NULL_CHECK("tensor_add_hook", tensor);
    NULL_CHECK("tensor_add_hook", hook);
    CTRT_TRY(grad_refresh(tensor));
    if (!tensor_requires_grad(tensor))
        return fail_from(CTRT_ERR_AUTOGRAD, "tensor_add_hook",
                         "the tensor does not require grad, so it gets no gradient");
    return hooks_insert(tensor, hook, NULL, user, id);
}

ctrt_status ctrt_tensor_add_accumulate_hook(ctrt_tensor *leaf, ctrt_accumulate_hook hook, void *user, uint64_t *id)
{
    NULL_CHECK("tensor_add_accumulate_hook", leaf);
    NULL_CHECK("tensor_add_accumulate_hook", hook);
    CTRT_TRY(grad_refresh(leaf));
    if (!tensor_requires_grad(leaf) || leaf->grad->node)
        return fail_from(CTRT_ERR_AUTOGRAD, "tensor_add_accumulate_hook",
                         "gradients accumulate only in leaves that require grad; this "
                         "tensor %s",
                         tensor_requires_grad(leaf) ? "is the result of an op" : "does not require grad");
    return hooks_insert(leaf, NULL, hook, user, id);
}

/* Nodes keep a reference to the hook: the tensor's node, or its earlier one if the tensor was changed in place after
 * the hook was added. The flag `removed` makes them skip it. */
ctrt_status ctrt_tensor_remove_hook(ctrt_tensor *tensor, uint64_t id)
{
    NULL_CHECK("tensor_remove_hook", tensor);
    lock_enter(&hooks_lock);
    struct grad_hook **at = tensor->grad ? &tensor->grad->hooks : NULL, *hook = NULL;
    while (at && *at && (*at)->id != id)
        at = &(*at)->next;
    if (at && *at) {
        hook = *at;
        atomic_store(&hook->removed, true);
        __atomic_store_n(at, hook->next, __ATOMIC_RELEASE);
        hook_release(hook);
    }
    lock_leave(&hooks_lock);
    return hook ? CTRT_OK : fail_from(CTRT_ERR_NOT_FOUND, "tensor_remove_hook", "the tensor has no hook %llu",
                                      (unsigned long long)id);
}
