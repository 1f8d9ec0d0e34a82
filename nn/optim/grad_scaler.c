/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/grad_scaler.c: dynamic scaling of the loss (Micikevicius et al. 2018), with the algorithm and the messages
 * of torch.amp.GradScaler.
 *
 * The scale, the count of steps and the results of the checks are tensors on devices. optim/skip.c describes how an
 * asynchronous device skips a step. Where all devices of an optimizer are synchronous, the host reads the result and
 * does not call the step. */
#include "nn/optim/grad_scaler.h"

#include <math.h>

#include "base/array.h"
#include "dryrun/cleanup.h"
#include "graph/capture.h"
#include "nn/checkpoint/parts.h"
#include "nn/optim/optim.h"
#include "ops/amp.h"
#include "tensor/scope.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

/* ---- creation ---- */

ctrt_status ctrt_grad_scaler_new(ctrt_grad_scaler **out, const ctrt_grad_scaler_options *options)
{
    static const char who[] = "grad_scaler_new";
    NULL_CHECK(who, out);
    ctrt_grad_scaler_options o = CTRT_GRAD_SCALER_OPTIONS;
    CTRT_TRY(struct_read(&o, sizeof o, options, who, "options"));
    CTRT_TRY(scaler_state_check(&(ctrt_grad_scaler_state){ sizeof(ctrt_grad_scaler_state), o.init_scale,
                                                           o.growth_factor, o.backoff_factor,
                                                           o.growth_interval, 0 }, who, CTRT_ERR_INVALID_ARGUMENT));
    if ((float)o.init_scale == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: init_scale is %g, expected above 0 in f32", who, o.init_scale);
    if (!(o.min_scale >= 0 && o.min_scale < INFINITY) || o.max_skips < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: min_scale is %g and max_skips %lld, expected finite numbers "
                         "of at least 0", who, o.min_scale, (long long)o.max_skips);
    ctrt_grad_scaler *fresh = host_calloc(sizeof *fresh);
    ALLOC_CHECK(fresh, sizeof *fresh, "a gradient scaler");
    fresh->options = o;
    pthread_mutex_init(&fresh->lock, NULL);
    ctrt_grad_scaler_release(out);
    *out = fresh;
    return CTRT_OK;
}

static void optimizers_forget(ctrt_grad_scaler *scaler)
{
    while (scaler->count > 0)
        ctrt_optimizer_release(&scaler->optimizers[--scaler->count].optimizer);
}

void ctrt_grad_scaler_release(ctrt_grad_scaler **scaler)
{
    if (scaler == NULL || *scaler == NULL)
        return;
    ctrt_grad_scaler *gone = *scaler;
    *scaler = NULL;
    dryrun_cleanup_remove(gone->cleanup);
    optimizers_forget(gone);
    ctrt_tensor_release(&gone->scale);
    ctrt_tensor_release(&gone->tracker);
    ctrt_tensor_release(&gone->skips);
    ctrt_tensor_release(&gone->copy);
    ctrt_event_release(&gone->copied);
    pthread_mutex_destroy(&gone->lock);
    host_free(gone->optimizers);
    host_free(gone);
}

bool ctrt_grad_scaler_enabled(const ctrt_grad_scaler *scaler)
{
    return scaler != NULL && !scaler->options.disabled;
}

/* ---- the loss ---- */

static void scaler_cleanup(void *object)
{
    ctrt_grad_scaler *scaler = object;
    dryrun_drop(&scaler->scale);
    dryrun_drop(&scaler->tracker);
    dryrun_drop(&scaler->skips);
}

/* Creates the scale on `device` if there is none. */
static ctrt_status scale_ready(ctrt_grad_scaler *scaler, ctrt_device *device)
{
    CTRT_AUTO(tensor) scale = NULL, tracker = NULL, skips = NULL;
    if (likely(scaler->scale != NULL))
        return CTRT_OK;
    CTRT_TRY(capture_refuse(device, "the scale does not exist yet, so every replay would initialise it again; scale a "
                                    "loss before the capture"));
    if (dry_run_on(device))
        CTRT_TRY(dryrun_cleanup_add(&scaler->cleanup, scaler_cleanup, scaler));
    CTRT_TRY(ctrt_full(&scale, CTRT_SCALAR_SHAPE, ctrt_float(scaler->options.init_scale), CTRT_F32, device));
    CTRT_TRY(ctrt_full(&tracker, CTRT_SCALAR_SHAPE, ctrt_int(scaler->init_tracker), CTRT_I32, device));
    CTRT_TRY(ctrt_zeros(&skips, CTRT_SHAPE(2), CTRT_I32, device));
    ctrt_tensor_assign(&scaler->scale, scale);
    ctrt_tensor_assign(&scaler->tracker, tracker);
    ctrt_tensor_assign(&scaler->skips, skips);
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_scale(ctrt_tensor **out, ctrt_grad_scaler *scaler, ctrt_tensor *loss)
{
    static const char who[] = "grad_scaler_scale";
    CTRT_AUTO(tensor) scale = NULL;
    ctrt_status status;
    NULL_CHECK(who, out);
    NULL_CHECK(who, scaler);
    NULL_CHECK(who, loss);
    if (scaler->options.disabled) {
        ctrt_tensor_assign(out, loss);
        return CTRT_OK;
    }
    struct scope *scope = scope_pause();                    /* the scale must outlive the program's scope */
    pthread_mutex_lock(&scaler->lock);
    ctrt_no_grad status = scale_ready(scaler, loss->device);
    pthread_mutex_unlock(&scaler->lock);
    scope_resume(scope);
    CTRT_TRY(ctrt_context(status, who));
    CTRT_TRY(ctrt_to_device(&scale, scaler->scale, loss->device));
    /* The backward pass reads the scale. ctrt_grad_scaler_update changes it in place, so the graph needs a copy if the
     * program uses the graph again later. */
    if (scale == scaler->scale)
        ctrt_no_grad status = ctrt_clone(&scale, scale);
    CTRT_TRY(ctrt_context(status, who));
    scale->flags |= TENSOR_LOSS_FACTOR;
    return ctrt_context(ctrt_mul(out, loss, scale), who);
}

/* ---- the check of the gradients ---- */

/* Returns the entry of the optimizer, which is added if there is none. */
static ctrt_status grad_scaler_entry_of(struct scaled_optimizer **out, ctrt_grad_scaler *scaler,
                                        ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < scaler->count; i++)
        if (scaler->optimizers[i].optimizer == optimizer) {
            *out = &scaler->optimizers[i];
            return CTRT_OK;
        }
    CTRT_TRY(ARRAY_RESERVE(scaler->optimizers, scaler->capacity, scaler->count, "a gradient scaler"));
    atomic_fetch_add(&optimizer->refs, 1);
    *out = &scaler->optimizers[scaler->count++];
    **out = (struct scaled_optimizer){ .optimizer = optimizer };
    return CTRT_OK;
}

/* Sets the result of the place to 0 before its first gradient. */
static ctrt_status place_clear(struct optim_place **out, ctrt_optimizer *optimizer, ctrt_device *device)
{
    CTRT_TRY(optim_place_find(out, optimizer, device));
    if (!(*out)->used)
        CTRT_TRY(ctrt_zero_((*out)->found));
    (*out)->used = true;
    return CTRT_OK;
}

/* Refuses f16 gradients, of which a part would underflow. */
static ctrt_status dtypes_check(const ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        const ctrt_tensor *grad = ctrt_tensor_grad(optimizer->slots[i].parameter);
        if (grad != NULL && tensor_dtype(grad) == CTRT_F16)
            return ctrt_fail(CTRT_ERR_DTYPE, "Attempting to unscale FP16 gradients. The gradient of %s is f16; keep "
                             "the parameters in f32 and run the forward pass under autocast", optimizer->slots[i].name);
    }
    return CTRT_OK;
}

/* Unscales a gradient that is not contiguous. */
static ctrt_status strided_unscale(struct optim_place *place, ctrt_tensor *grad, ctrt_tensor *scale,
                                   const ctrt_view **views)
{
    CTRT_AUTO(tensor) whole = NULL;
    CTRT_TRY(ctrt_contiguous(&whole, grad, CTRT_CONTIGUOUS_FORMAT));
    CTRT_TRY(op_amp_unscale(place->found, &whole, 1, scale, views));
    return ctrt_copy_(grad, whole);
}

/* Unscales the gradient of slot `begin` and all later ones of the same device and dtype in one call. done[i]: whether
 * slot i is done. `grads` and `views` are scratch. */
static ctrt_status group_unscale(ctrt_optimizer *optimizer, size_t begin, bool *done, ctrt_tensor **grads,
                                 ctrt_tensor *scale)
{
    ctrt_tensor *first = ctrt_tensor_grad(optimizer->slots[begin].parameter);
    CTRT_AUTO(tensor) here = NULL;
    struct optim_place *place;
    size_t n = 0;
    CTRT_TRY(place_clear(&place, optimizer, first->device));
    CTRT_TRY(ctrt_to_device(&here, scale, first->device));
    for (size_t i = begin; i < optimizer->count; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(optimizer->slots[i].parameter);
        if (done[i] || grad == NULL || grad->device != first->device || tensor_dtype(grad) != tensor_dtype(first))
            continue;
        done[i] = true;
        if (grad->view.flags & CTRT_VIEW_CONTIGUOUS)
            grads[n++] = grad;
        else
            CTRT_TRY(strided_unscale(place, grad, here, optimizer->views));
    }
    return n > 0 ? op_amp_unscale(place->found, grads, n, here, optimizer->views) : CTRT_OK;
}

/* Unscales all gradients. *any: whether there are any. */
static ctrt_status gradients_unscale(bool *any, ctrt_optimizer *optimizer, ctrt_tensor *scale)
{
    const size_t bytes = (optimizer->count + 1) * (sizeof(ctrt_tensor *) + sizeof(bool));
    HOST_AUTO ctrt_tensor **grads = host_calloc(bytes);
    ALLOC_CHECK(grads, bytes, "a list of gradients");
    bool *done = (bool *)(grads + optimizer->count + 1);
    for (size_t i = 0; i < optimizer->count; i++)
        if (!done[i] && ctrt_tensor_grad(optimizer->slots[i].parameter) != NULL) {
            *any = true;
            CTRT_TRY(group_unscale(optimizer, i, done, grads, scale));
        }
    return CTRT_OK;
}

/* Sets *out to whether other processes have other parts of a parameter. */
static ctrt_status is_divided(bool *out, ctrt_optimizer *optimizer)
{
    const size_t bytes = (optimizer->count + 1) * sizeof(ctrt_module_place);
    HOST_AUTO ctrt_module_place *places = host_calloc(bytes);
    ALLOC_CHECK(places, bytes, "a list of parameters");
    for (size_t i = 0; i < optimizer->count; i++)
        places[i].tensor = optimizer->slots[i].parameter;
    *out = false;
    CTRT_TRY(places_find(optimizer->module, places, optimizer->count));
    for (size_t i = 0; i < optimizer->count; i++)
        *out = *out || shape_numel(places[i].shape, places[i].ndim) != ctrt_tensor_numel(places[i].tensor);
    return CTRT_OK;
}

/* Makes the result the same on all devices of the optimizer, and on all ranks that have parts of the parameters. *any:
 * whether there are gradients; becomes true if other ranks may have them. */
static ctrt_status places_agree(bool *any, ctrt_optimizer *optimizer)
{
    CTRT_AUTO(tensor) greatest = NULL;
    struct optim_place *first = NULL;
    HOST_AUTO ctrt_module **listeners = NULL;
    ctrt_device *device = NULL;
    size_t listener_count = 0;
    CTRT_TRY(module_listeners(&listeners, &listener_count, optimizer->module));
    /* The ranks of a divided module all take part, also one without gradients. */
    if (listener_count > 0 && ctrt_module_device(&device, listeners[0]) != CTRT_OK)
        device = NULL;
    if (device != NULL)
        CTRT_TRY(place_clear(&first, optimizer, device));
    for (size_t i = 0; i < optimizer->place_count && first == NULL; i++)
        if (optimizer->places[i].used)
            first = &optimizer->places[i];
    if (first == NULL)
        return CTRT_OK;
    for (size_t i = 0; i < optimizer->place_count; i++) {
        struct optim_place *place = &optimizer->places[i];
        if (place == first || !place->used)
            continue;
        CTRT_TRY(ctrt_to_device(&greatest, place->found, first->device));
        CTRT_TRY(ctrt_maximum(&greatest, greatest, first->found));
        CTRT_TRY(ctrt_copy_(first->found, greatest));
    }
    CTRT_TRY(module_event(optimizer->module, CTRT_MODULE_FOUND_INF, first->found));
    for (size_t i = 0; i < optimizer->place_count; i++)
        if (optimizer->places[i].used && &optimizer->places[i] != first)
            CTRT_TRY(ctrt_copy_(optimizer->places[i].found, first->found));
    return *any ? CTRT_OK : is_divided(any, optimizer);
}

static ctrt_status unscale(ctrt_grad_scaler *scaler, struct scaled_optimizer *entry)
{
    ctrt_optimizer *optimizer = entry->optimizer;
    CTRT_TRY(dtypes_check(optimizer));
    for (size_t i = 0; i < optimizer->place_count; i++)
        optimizer->places[i].used = false;
    CTRT_TRY(gradients_unscale(&entry->checked, optimizer, scaler->scale));
    CTRT_TRY(places_agree(&entry->checked, optimizer));
    entry->stage = SCALER_UNSCALED;
    return CTRT_OK;
}

static ctrt_status entry_unscale(ctrt_grad_scaler *scaler, struct scaled_optimizer *entry)
{
    struct scope *scope = scope_pause();                    /* results must outlive the program's scope */
    ctrt_status status;
    ctrt_no_grad status = unscale(scaler, entry);
    scope_resume(scope);
    return status;
}

/* Checks the arguments of a call that is not allowed before the first loss is scaled. */
static ctrt_status arguments_check(const ctrt_grad_scaler *scaler, const ctrt_optimizer *optimizer, const char *who)
{
    NULL_CHECK(who, scaler);
    NULL_CHECK(who, optimizer);
    if (!scaler->options.disabled && scaler->scale == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "%s: Attempted %s but the scale does not exist yet; scale a loss with "
                         "ctrt_grad_scaler_scale first", who, who + strlen("grad_scaler_"));
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_unscale_(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer)
{
    static const char who[] = "grad_scaler_unscale_";
    struct scaled_optimizer *entry;
    CTRT_TRY(arguments_check(scaler, optimizer, who));
    if (scaler->options.disabled)
        return CTRT_OK;
    CTRT_TRY(grad_scaler_entry_of(&entry, scaler, optimizer));
    if (entry->stage == SCALER_UNSCALED)
        return ctrt_fail(CTRT_ERR_STATE, "%s: unscale_() has already been called on this optimizer since the last "
                         "update().", who);
    if (entry->stage == SCALER_STEPPED)
        return ctrt_fail(CTRT_ERR_STATE, "%s: unscale_() is being called after step().", who);
    return ctrt_context(entry_unscale(scaler, entry), who);
}

/* ---- the step ---- */

/* Determines how the step is made. Reads the result if that needs no wait. */
static ctrt_status guard_choose(enum optim_guard *out, const ctrt_optimizer *optimizer)
{
    bool asynchronous = false, found = false;
    for (size_t i = 0; i < optimizer->place_count; i++)
        if (optimizer->places[i].used)
            asynchronous = asynchronous || device_asynchronous(optimizer->places[i].device);
    for (size_t i = 0; i < optimizer->place_count && !asynchronous; i++) {
        double value = 0;
        if (optimizer->places[i].used)
            CTRT_TRY(ctrt_item(&value, optimizer->places[i].found));
        found = found || value != 0;
    }
    *out = asynchronous ? OPTIM_GUARDED : found ? OPTIM_SKIPPED : OPTIM_PLAIN;
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_step(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer)
{
    static const char who[] = "grad_scaler_step";
    struct scaled_optimizer *entry;
    enum optim_guard guard = OPTIM_PLAIN;
    CTRT_TRY(arguments_check(scaler, optimizer, who));
    if (scaler->options.disabled)
        return optim_step(optimizer, OPTIM_PLAIN);
    CTRT_TRY(grad_scaler_entry_of(&entry, scaler, optimizer));
    if (entry->stage == SCALER_STEPPED)
        return ctrt_fail(CTRT_ERR_STATE, "%s: step() has already been called since the last update().", who);
    if (entry->stage == SCALER_READY)
        CTRT_TRY(ctrt_context(entry_unscale(scaler, entry), who));
    if (!entry->checked && !scaler->options.allow_no_gradients)
        return ctrt_fail(CTRT_ERR_STATE, "%s: No inf checks were recorded for this optimizer. None of its %zu "
                         "parameters has a gradient; run a backward pass, or set the option allow_no_gradients", who,
                         optimizer->count);
    CTRT_TRY(ctrt_context(guard_choose(&guard, optimizer), who));
    CTRT_TRY(ctrt_context(optim_step(optimizer, guard), who));
    entry->stage = SCALER_STEPPED;
    return CTRT_OK;
}

/* ---- the next scale ---- */

/* Sets *sum to the sum of the results of all optimizers, on the device of the scale; NULL: there are none. */
static ctrt_status found_sum(ctrt_tensor **sum, const ctrt_grad_scaler *scaler)
{
    CTRT_AUTO(tensor) one = NULL;
    for (size_t o = 0; o < scaler->count; o++) {
        const ctrt_optimizer *optimizer = scaler->optimizers[o].optimizer;
        for (size_t i = 0; i < optimizer->place_count && scaler->optimizers[o].checked; i++) {
            if (!optimizer->places[i].used)
                continue;
            CTRT_TRY(ctrt_to_device(&one, optimizer->places[i].found, scaler->scale->device));
            if (*sum == NULL)
                ctrt_tensor_assign(sum, one);
            else
                CTRT_TRY(ctrt_add(sum, *sum, one));
            break;                              /* all places of an optimizer have the same result */
        }
    }
    return CTRT_OK;
}

ctrt_status scaler_skips_check(const ctrt_grad_scaler *scaler, int64_t in_a_row, const char *who)
{
    char text[400] = "";
    if (scaler->options.max_skips == 0 || in_a_row < scaler->options.max_skips)
        return CTRT_OK;
    for (size_t i = 0; i < scaler->count && text[0] == '\0'; i++)
        (void)ctrt_grad_scaler_report(text, sizeof text, scaler->optimizers[i].optimizer);
    return ctrt_fail(CTRT_ERR_OVERFLOW, "%s: the last %lld steps were skipped, because gradients were inf or NaN at "
                     "every scale%s%s; lower the learning rate, clip the gradients, or find the module that overflows "
                     "with ctrt_inf_watch_new", who, (long long)in_a_row, text[0] != '\0' ? ". " : "", text);
}

/* Reads the count of skipped steps if it has arrived, or requests it. Does not wait. Does nothing in a dry run, which
 * skips no steps. */
static ctrt_status skips_poll(ctrt_grad_scaler *scaler, const char *who)
{
    ctrt_device *device = scaler->skips->device;
    ctrt_tensor *counts = scaler->skips;
    bool done = true;
    if (scaler->options.max_skips == 0 || capture_here(device) != NULL || dry_run_on(device))
        return CTRT_OK;
    if (device_asynchronous(device)) {
        counts = scaler->copy;
        done = false;
        if (scaler->copying)
            CTRT_TRY(ctrt_event_query(scaler->copied, &done));
    }
    CTRT_AUTO(tensor) first = NULL;
    double value = 0;
    if (done) {
        CTRT_TRY(ctrt_select(&first, counts, 0, 0));
        CTRT_TRY(ctrt_item(&value, first));
        scaler->copying = false;
    }
    if (device_asynchronous(device) && !scaler->copying) {
        CTRT_AUTO(stream) stream = NULL;
        if (scaler->copy == NULL)
            CTRT_TRY(ctrt_empty_pinned(&scaler->copy, CTRT_SHAPE(2), CTRT_I32, device));
        if (scaler->copied == NULL)
            CTRT_TRY(ctrt_event_new(&scaler->copied, device, false));
        CTRT_TRY(ctrt_copy_non_blocking_(scaler->copy, scaler->skips, NULL));
        CTRT_TRY(ctrt_stream_current(&stream, device));
        CTRT_TRY(ctrt_event_record(scaler->copied, stream));
        scaler->copying = true;
    }
    return scaler_skips_check(scaler, (int64_t)value, who);
}

static ctrt_status grad_scaler_set_scale(ctrt_grad_scaler *scaler, double new_scale, const char *who)
{
    CTRT_AUTO(tensor) found = NULL;
    if (new_scale != 0)
        return ctrt_fill_(scaler->scale, ctrt_float(new_scale));
    CTRT_TRY(found_sum(&found, scaler));
    if (found == NULL) {
        if (scaler->options.allow_no_gradients && scaler->count > 0)
            return CTRT_OK;
        return ctrt_fail(CTRT_ERR_STATE, "No inf checks were recorded prior to update. Call ctrt_grad_scaler_step or "
                         "ctrt_grad_scaler_unscale_ first");
    }
    const ctrt_amp_attributes attributes = {
        .size = sizeof attributes, .growth_factor = scaler->options.growth_factor,
        .backoff_factor = scaler->options.backoff_factor, .min_scale = scaler->options.min_scale,
        .growth_interval = scaler->options.growth_interval,
    };
    CTRT_TRY(op_amp_update(scaler->scale, scaler->tracker, scaler->skips, found, &attributes));
    return skips_poll(scaler, who);
}

ctrt_status ctrt_grad_scaler_update(ctrt_grad_scaler *scaler, double new_scale)
{
    static const char who[] = "grad_scaler_update";
    ctrt_status status;
    NULL_CHECK(who, scaler);
    if (scaler->options.disabled)
        return CTRT_OK;
    if (!(new_scale >= 0 && new_scale < INFINITY))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: new_scale is %g, expected a finite number of at least 0", who,
                         new_scale);
    if (scaler->scale == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "%s: Attempted update but the scale does not exist yet; scale a loss with "
                         "ctrt_grad_scaler_scale first", who);
    struct scope *scope = scope_pause();
    ctrt_no_grad status = grad_scaler_set_scale(scaler, new_scale, who);
    scope_resume(scope);
    optimizers_forget(scaler);
    return status == CTRT_ERR_OVERFLOW ? status : ctrt_context(status, who);
}
