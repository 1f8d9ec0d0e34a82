/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/replicate.c: copies of a module on several devices, whose gradients are added up in the module. */
#include "autograd/engine.h"
#include "base/base.h"
#include "ctrt/strategy_plugin.h"
#include "memory/label.h"
#include "nn/module/module.h"
#include "ops/op_common.h"
#include "parallel/replicas/devices.h"

/* ---- the differentiable broadcast: inputs t become the results i * n_in + t on devices[i] ---- */

struct broadcast {                          /* user data of the function */
    int n;
    ctrt_device *devices[];
};

/* Writes copies of tensors[count] on devices[n] to out, those for device 0 as aliases. */
static ctrt_status copies_make(ctrt_tensor **out, ctrt_tensor *const *tensors, size_t count,
                               ctrt_device *const *devices, int n)
{
    for (size_t t = 0; t < count; t++)
        CTRT_TRY(ctrt_detach(&out[t], tensors[t]));
    return coalesced_copy(out + count, tensors, count, devices + 1, n - 1);
}

static ctrt_status broadcast_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out,
                                     ctrt_tensor *const *in, int n_in)
{
    const struct broadcast *broadcast = ctrt_function_user(context);
    (void)n_out;
    return copies_make(out, in, (size_t)n_in, broadcast->devices, broadcast->n);
}

/* Adds up the gradients of the replicas on the first device, in the order of the devices. */
static ctrt_status broadcast_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                      ctrt_tensor *const *grad_out, int n_out)
{
    const struct broadcast *broadcast = ctrt_function_user(context);
    ctrt_status status = CTRT_OK;
    (void)n_out;
    HOST_AUTO ctrt_tensor **moved = host_calloc((size_t)n_in * sizeof *moved);
    ALLOC_CHECK(moved, (size_t)n_in * sizeof *moved, "adding up the gradients of replicas");
    for (int i = 0; i < broadcast->n && status == CTRT_OK; i++) {
        for (int t = 0; t < n_in; t++)
            ctrt_tensor_assign(&moved[t], grad_out[(size_t)i * (size_t)n_in + (size_t)t]);
        status = ctrt_context(coalesced_move(moved, (size_t)n_in, broadcast->devices[0]),
                              "the gradients of replica %d (%s)", i, ctrt_device_name(broadcast->devices[i]));
        for (int t = 0; t < n_in && status == CTRT_OK; t++) {
            ctrt_tensor *term = moved[t];
            moved[t] = NULL;
            if (grad_in[t] == NULL)
                grad_in[t] = term;
            else if (term != NULL)
                status = grad_add(&grad_in[t], term, ctrt_grad_enabled());
        }
    }
    ctrt_tensors_release(moved, (size_t)n_in);
    return status;
}

static void broadcast_destroy(ctrt_function_context *context)
{
    host_free(ctrt_function_user(context));
}

static const ctrt_function broadcast_function = {
    .size = sizeof(ctrt_function), .name = "broadcast", .forward = broadcast_forward, .backward = broadcast_backward,
    .destroy = broadcast_destroy,
};

/* Like copies_make, recorded. */
static ctrt_status copies_record(ctrt_tensor **out, ctrt_tensor *const *tensors, size_t count,
                                 ctrt_device *const *devices, int n)
{
    const size_t bytes = sizeof(struct broadcast) + (size_t)n * sizeof *devices;
    if (count > (size_t)(INT32_MAX / n))
        return ctrt_fail(CTRT_ERR_OVERFLOW, "%zu parameters on %d devices", count, n);
    struct broadcast *broadcast = host_calloc(bytes);
    ALLOC_CHECK(broadcast, bytes, "replicas");
    broadcast->n = n;
    memcpy(broadcast->devices, devices, (size_t)n * sizeof *devices);
    return ctrt_function_apply(&broadcast_function, broadcast, out, (int)count * n, tensors, (int)count);
}

/* ---- replicas ---- */

/* The tensors of the module, and their copies. Tensors with history come first. */
struct replication {
    const struct walk *walks[WALK_KINDS];
    ctrt_device *const *devices;
    int n;
    size_t count, recorded;                 /* number of tensors; the first `recorded` have history in the replicas */
    ctrt_tensor **tensors;                  /* borrowed */
    size_t *positions[WALK_KINDS];          /* index in `tensors` of each entry of the walks */
    /* Owned. Tensor t of replica i is copies[i * recorded + t] or, if it has no history,
     * copies[n * recorded + i * (count - recorded) + t - recorded]. */
    ctrt_tensor **copies;
    int replica;                            /* for which `choose` is called */
};

static ctrt_status replicate_check_places(const struct replication *r)
{
    for (int kind = 0; kind < WALK_KINDS; kind++)
        for (size_t i = 0; i < r->walks[kind]->count; i++) {
            const struct walk_entry *entry = &r->walks[kind]->entries[i];
            if (entry->tensor->device != r->devices[0])
                return ctrt_fail(CTRT_ERR_DEVICE,
                                 "the module must have its parameters and buffers on %s (devices[0]), but \"%s\" is on "
                                 "%s; move it with ctrt_module_to", ctrt_device_name(r->devices[0]), entry->name,
                                 ctrt_device_name(entry->tensor->device));
        }
    return CTRT_OK;
}

static ctrt_status replication_begin(struct replication *r, ctrt_module *module)
{
    for (int kind = 0; kind < WALK_KINDS; kind++)
        CTRT_TRY(module_walk(&r->walks[kind], module, (enum walk_kind)kind));
    CTRT_TRY(replicate_check_places(r));
    r->count = r->walks[0]->count + r->walks[1]->count;
    r->tensors = host_calloc((r->count + 1) * sizeof *r->tensors);
    ALLOC_CHECK(r->tensors, (r->count + 1) * sizeof *r->tensors, "replicas");
    r->copies = host_calloc((r->count + 1) * (size_t)r->n * sizeof *r->copies);
    ALLOC_CHECK(r->copies, (r->count + 1) * (size_t)r->n * sizeof *r->copies, "replicas");
    r->positions[0] = host_calloc((r->count + 1) * sizeof(size_t));
    ALLOC_CHECK(r->positions[0], (r->count + 1) * sizeof(size_t), "replicas");
    r->positions[1] = r->positions[0] + r->walks[0]->count;
    size_t place = 0;
    for (int with_history = 1; with_history >= 0; with_history--) {
        for (int kind = 0; kind < WALK_KINDS; kind++)
            for (size_t i = 0; i < r->walks[kind]->count; i++) {
                ctrt_tensor *tensor = r->walks[kind]->entries[i].tensor;
                const bool recorded = kind == WALK_PARAMETERS && op_needs_grad(&tensor, 1);
                if (recorded != (with_history == 1))
                    continue;
                r->tensors[place] = tensor;
                r->positions[kind][i] = place++;
            }
        if (with_history == 1)
            r->recorded = place;
    }
    return CTRT_OK;
}

static void replication_end(struct replication *r)
{
    ctrt_tensors_release(r->copies, r->count * (size_t)r->n);
    host_free(r->copies);
    host_free(r->tensors);
    host_free(r->positions[0]);
}

static ctrt_status copies_fill(const struct replication *r)
{
    if (r->recorded > 0)
        CTRT_TRY(copies_record(r->copies, r->tensors, r->recorded, r->devices, r->n));
    CTRT_TRY(copies_make(r->copies + (size_t)r->n * r->recorded, r->tensors + r->recorded, r->count - r->recorded,
                         r->devices, r->n));
    for (int i = 1; i < r->n; i++)
        CTRT_TRY(streams_join(r->devices[0], r->devices[i]));
    return CTRT_OK;
}

static ctrt_status replicate_choose(ctrt_tensor **out, void *user, const struct walk_entry *original, size_t index,
                                    enum walk_kind kind)
{
    const struct replication *r = user;
    const size_t t = r->positions[kind][index], i = (size_t)r->replica, rest = r->count - r->recorded;
    (void)original;
    *out = ctrt_tensor_retain(t < r->recorded ? r->copies[i * r->recorded + t]
                              : r->copies[(size_t)r->n * r->recorded + i * rest + t - r->recorded]);
    return CTRT_OK;
}

static ctrt_status replicas_make(ctrt_module **replicas, struct replication *r, ctrt_module *module)
{
    HOST_AUTO ctrt_module **fresh = host_calloc((size_t)r->n * sizeof *fresh);
    ALLOC_CHECK(fresh, (size_t)r->n * sizeof *fresh, "replicas");
    ctrt_status status = CTRT_OK;
    for (r->replica = 0; r->replica < r->n && status == CTRT_OK; r->replica++)
        status = module_copy_with(&fresh[r->replica], "replicate", module, replicate_choose, r);
    for (int i = 0; i < r->n; i++) {
        if (status == CTRT_OK)
            module_give(&replicas[i], &fresh[i]);
        ctrt_module_release(&fresh[i]);
    }
    return status;
}

ctrt_status ctrt_replicate(ctrt_module **replicas, ctrt_module *module, ctrt_device *const *devices, int n)
{
    STREAMS_ORDERED;
    NULL_CHECKS("replicate", replicas, module);
    CTRT_TRY(devices_check("replicate", devices, n));
    struct replication r = { .devices = devices, .n = n };
    struct memory_label label;
    label_enter(&label, label_here(), "replicate");
    ctrt_status status = replication_begin(&r, module);
    if (status == CTRT_OK)
        status = copies_fill(&r);
    label_leave(&label);
    status = ctrt_context(status, "replicate");
    if (status == CTRT_OK)
        status = replicas_make(replicas, &r, module);
    replication_end(&r);
    return status;
}
