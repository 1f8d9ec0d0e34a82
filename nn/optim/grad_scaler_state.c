/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/grad_scaler_state.c: the state of a gradient scaler, its file, and reports of gradients that are inf or
 * NaN. */
#include "nn/optim/grad_scaler.h"

#include <float.h>
#include <math.h>

#include "base/base.h"
#include "ctrt/checkpoint.h"
#include "device/device.h"
#include "nn/checkpoint/checkpoint.h"
#include "nn/optim/optim.h"

ctrt_status scaler_state_check(const ctrt_grad_scaler_state *state, const char *who, ctrt_status refusal)
{
    if (!(state->scale >= 0 && state->scale <= (double)FLT_MAX))  /* backoff can reach 0 */
        return ctrt_fail(refusal, "%s: the scale is %g, expected 0 to %g, the range of f32", who, state->scale,
                         (double)FLT_MAX);
    if (!(state->growth_factor > 1 && state->growth_factor < INFINITY))
        return ctrt_fail(refusal, "%s: The growth factor must be > 1.0. It is %g", who, state->growth_factor);
    if (!(state->backoff_factor >= 0 && state->backoff_factor < 1))
        return ctrt_fail(refusal, "%s: The backoff factor must be < 1.0. It is %g", who, state->backoff_factor);
    if (state->growth_interval < 1 || state->growth_interval > INT32_MAX)
        return ctrt_fail(refusal, "%s: growth_interval is %lld, expected 1 to 2^31 - 1", who,
                         (long long)state->growth_interval);
    if (state->growth_tracker < 0 || state->growth_tracker >= state->growth_interval)
        return ctrt_fail(refusal, "%s: growth_tracker is %lld, expected 0 to %lld, one less than growth_interval", who,
                         (long long)state->growth_tracker, (long long)state->growth_interval - 1);
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_get_state(ctrt_grad_scaler_state *out, ctrt_grad_scaler *scaler)
{
    static const char who[] = "grad_scaler_get_state";
    NULL_CHECK(who, out);
    NULL_CHECK(who, scaler);
    const ctrt_grad_scaler_options *o = &scaler->options;
    ctrt_grad_scaler_state state = { sizeof state, o->init_scale, o->growth_factor, o->backoff_factor,
                                     o->growth_interval,
                                     scaler->init_tracker };
    if (scaler->scale != NULL) {
        CTRT_TRY(ctrt_item(&state.scale, scaler->scale));
        CTRT_TRY(ctrt_item_int(&state.growth_tracker, scaler->tracker));
    }
    if (o->disabled)
        memset(&state, 0, sizeof state);
    return struct_write(out, &state, sizeof state, who, "out");
}

ctrt_status ctrt_grad_scaler_set_state(ctrt_grad_scaler *scaler, const ctrt_grad_scaler_state *state)
{
    static const char who[] = "grad_scaler_set_state";
    ctrt_status status = CTRT_OK;
    NULL_CHECK(who, scaler);
    NULL_CHECK(who, state);
    if (scaler->options.disabled)
        return CTRT_OK;
    ctrt_grad_scaler_state own = CTRT_GRAD_SCALER_STATE;
    CTRT_TRY(struct_read(&own, sizeof own, state, who, "state"));
    state = &own;
    CTRT_TRY(scaler_state_check(state, who, CTRT_ERR_INVALID_ARGUMENT));
    if (scaler->scale != NULL)
        ctrt_no_grad {
            status = ctrt_fill_(scaler->scale, ctrt_float(state->scale));
            if (status == CTRT_OK)
                status = ctrt_fill_(scaler->tracker, ctrt_int(state->growth_tracker));
        }
    CTRT_TRY(ctrt_context(status, who));
    scaler->options.init_scale = state->scale;
    scaler->options.growth_factor = state->growth_factor;
    scaler->options.backoff_factor = state->backoff_factor;
    scaler->options.growth_interval = state->growth_interval;
    scaler->init_tracker = state->growth_tracker;
    return CTRT_OK;
}

/* ---- the file ---- */

/* The names of the tensors, and where the values are in ctrt_grad_scaler_state. */
static const struct state_key { const char *name; size_t offset; ctrt_dtype dtype; } keys[] = {
    { "scale", offsetof(ctrt_grad_scaler_state, scale), CTRT_F64 },
    { "growth_factor", offsetof(ctrt_grad_scaler_state, growth_factor), CTRT_F64 },
    { "backoff_factor", offsetof(ctrt_grad_scaler_state, backoff_factor), CTRT_F64 },
    { "growth_interval", offsetof(ctrt_grad_scaler_state, growth_interval), CTRT_I64 },
    { "_growth_tracker", offsetof(ctrt_grad_scaler_state, growth_tracker), CTRT_I64 },
};

static ctrt_status key_tensor(ctrt_tensor **out, const struct state_key *key, const ctrt_grad_scaler_state *state,
                              ctrt_device *cpu)
{
    const char *value = (const char *)state + key->offset;
    return ctrt_scalar_tensor(out, key->dtype == CTRT_I64 ? ctrt_int(*(const int64_t *)value)
                                                          : ctrt_float(*(const double *)value), key->dtype, cpu);
}

ctrt_status scaler_collect(struct state_items *list, const char *prefix, ctrt_grad_scaler *scaler)
{
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    ctrt_device *cpu = NULL;
    CTRT_TRY(ctrt_grad_scaler_get_state(&state, scaler));
    CTRT_TRY(device_cpu(&cpu));
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        CTRT_AUTO(tensor) tensor = NULL;
        CTRT_TRY(key_tensor(&tensor, &keys[i], &state, cpu));
        CTRT_TRY(state_add(list, prefix, keys[i].name, tensor, NULL));
    }
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_save(ctrt_grad_scaler *scaler, const char *path)
{
    const char *names[COUNT_OF(keys)];
    ctrt_tensor *tensors[COUNT_OF(keys)] = { NULL };
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    ctrt_device *cpu = NULL;
    NULL_CHECK("grad_scaler_save", path);
    CTRT_TRY(ctrt_context(ctrt_grad_scaler_get_state(&state, scaler), "grad_scaler_save"));
    CTRT_TRY(device_cpu(&cpu));
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < COUNT_OF(keys) && status == CTRT_OK; i++) {
        names[i] = keys[i].name;
        status = key_tensor(&tensors[i], &keys[i], &state, cpu);
    }
    if (status == CTRT_OK)
        status = ctrt_save_tensors(path, names, tensors, COUNT_OF(keys));
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        ctrt_tensor_release(&tensors[i]);
    return status;
}

ctrt_status scaler_state_read(ctrt_grad_scaler_state *state, ctrt_tensor_file *file)
{
    ctrt_device *cpu = NULL;
    *state = (ctrt_grad_scaler_state)CTRT_GRAD_SCALER_STATE;
    CTRT_TRY(device_cpu(&cpu));
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        CTRT_AUTO(tensor) tensor = NULL;
        char *value = (char *)state + keys[i].offset;
        CTRT_TRY(ctrt_tensor_file_read(&tensor, file, keys[i].name, cpu));
        if (ctrt_tensor_numel(tensor) != 1 || ctrt_tensor_dtype(tensor) != keys[i].dtype)
            return ctrt_fail(CTRT_ERR_FORMAT, "\"%s\" has dtype %s and %lld elements, expected one of %s", keys[i].name,
                             ctrt_dtype_name(ctrt_tensor_dtype(tensor)), (long long)ctrt_tensor_numel(tensor),
                             ctrt_dtype_name(keys[i].dtype));
        CTRT_TRY(keys[i].dtype == CTRT_I64 ? ctrt_item_int((int64_t *)value, tensor)
                                           : ctrt_item((double *)value, tensor));
    }
    return scaler_state_check(state, "the file", CTRT_ERR_FORMAT);
}

static ctrt_status state_read(ctrt_grad_scaler_state *state, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    return scaler_state_read(state, file);
}

ctrt_status ctrt_grad_scaler_load(ctrt_grad_scaler *scaler, const char *path)
{
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    NULL_CHECK("grad_scaler_load", scaler);
    NULL_CHECK("grad_scaler_load", path);
    if (scaler->options.disabled)
        return CTRT_OK;
    CTRT_TRY(ctrt_context(state_read(&state, path), "loading %.500s", path));
    return ctrt_grad_scaler_set_state(scaler, &state);
}

/* ---- skipped steps ---- */

ctrt_status ctrt_grad_scaler_skips(int64_t *all, int64_t *in_a_row, ctrt_grad_scaler *scaler)
{
    static const char who[] = "grad_scaler_skips";
    if (all == NULL || in_a_row == NULL)
        return fail_null(who, all == NULL ? "all" : "in_a_row");
    NULL_CHECK(who, scaler);
    int64_t counts[2] = { 0, 0 };
    for (int i = 0; i < 2 && scaler->scale != NULL; i++) {
        CTRT_AUTO(tensor) one = NULL;
        CTRT_TRY(ctrt_select(&one, scaler->skips, 0, i));
        CTRT_TRY(ctrt_item_int(&counts[i], one));
    }
    *in_a_row = counts[0];
    *all = counts[1];
    return CTRT_OK;
}

ctrt_status ctrt_grad_scaler_check(ctrt_grad_scaler *scaler)
{
    int64_t all = 0, in_a_row = 0;
    NULL_CHECK("grad_scaler_check", scaler);
    CTRT_TRY(ctrt_grad_scaler_skips(&all, &in_a_row, scaler));
    return scaler_skips_check(scaler, in_a_row, "grad_scaler_check");
}

/* Writes the number of elements of a gradient that are inf or NaN. */
static ctrt_status bad_count(double *out, ctrt_tensor *grad)
{
    CTRT_AUTO(tensor) count = NULL;
    CTRT_TRY(ctrt_isfinite(&count, grad));
    CTRT_TRY(ctrt_logical_not(&count, count));
    CTRT_TRY(ctrt_sum(&count, count, CTRT_ALL_DIMS));
    return ctrt_item(out, count);
}

ctrt_status ctrt_grad_scaler_report(char *text, size_t bytes, ctrt_optimizer *optimizer)
{
    static const char who[] = "grad_scaler_report";
    if (text == NULL || bytes == 0)
        return fail_null(who, "text");
    NULL_CHECK(who, optimizer);
    const struct optim_slot *first = NULL;
    double first_bad = 0;
    size_t bad_grads = 0;
    for (size_t i = optimizer->count; i-- > 0;) {
        ctrt_tensor *grad = ctrt_tensor_grad(optimizer->slots[i].parameter);
        ctrt_status status = CTRT_OK;
        double bad = 0;
        if (grad != NULL)
            ctrt_no_grad status = bad_count(&bad, grad);
        CTRT_TRY(ctrt_context(status, who));
        if (bad > 0 && first == NULL) {
            first = &optimizer->slots[i];
            first_bad = bad;
        }
        bad_grads += bad > 0;
    }
    text[0] = '\0';
    if (first != NULL)
        snprintf(text, bytes, "%s: %.0f of %lld elements of the gradient are inf or NaN; so are gradients of %zu of "
                 "%zu parameters", first->name, first_bad,
                 (long long)ctrt_tensor_numel(ctrt_tensor_grad(first->parameter)), bad_grads, optimizer->count);
    return CTRT_OK;
}
