/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/amp.h: automatic mixed precision: autocast, and scaling of the loss.
 *
 * Under autocast each op selects the dtype of its computation. Matrix products and convolutions run in f16 or bf16,
 * which many devices compute faster. Ops that need range or precision run in f32: losses and, except on the cpu, exp,
 * log, softmax, layer norm and sums. All others run in the dtypes of their operands. Parameters and gradients stay f32.
 * doc/mixed-precision.md has the list of ops. The semantics are those of torch.autocast.
 *
 *     ctrt_autocast("cuda", NULL) {
 *         CTRT_TRY(ctrt_forward(&y, module, x));
 *         CTRT_TRY(ctrt_cross_entropy(&loss, y, labels, NULL));
 *     }
 *     CTRT_TRY(ctrt_backward(loss));              outside of the region; inside it gives the same result
 *
 * The settings belong to the calling thread and to a type of device. Ops on devices of other types are not affected.
 * ctrt_parallel_apply and the strategies of ctrt/parallel.h pass the settings of the calling thread to their threads.
 * Backward passes run in the dtypes of the forward pass. */
#ifndef CTRT_AMP_H
#define CTRT_AMP_H

#include "ctrt/optim.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_autocast_options {
    size_t size;
    ctrt_dtype dtype;                   /* CTRT_F16 or CTRT_BF16; 0: bf16 for the cpu, f16 for other devices */
    bool disabled;                      /* ops run as without autocast, in a part of an outer region */
    bool no_cache;                      /* converts a parameter again at each use, which needs less memory */
} ctrt_autocast_options;
#define CTRT_AUTOCAST_OPTIONS CTRT_SIZED_(ctrt_autocast_options)

/* Begin and end a region in which ops of the calling thread on devices of the type `device_type` ("cuda"; NULL: the
 * type of the default device) select their dtypes. Regions nest: an inner region replaces the settings of its type
 * until its end. `options` NULL: the defaults.
 *
 * A parameter (a leaf of f32 that requires grad and is no view) is converted once; the result is used again until the
 * outermost region of the thread ends or the parameter changes. It is not kept while the device's current stream is
 * captured or a dry run runs on the device.
 *
 * Errors: CTRT_ERR_NOT_FOUND for an unknown type of device, CTRT_ERR_DTYPE for another dtype, CTRT_ERR_STATE for a pop
 * without a matching push. */
CTRT_API ctrt_status ctrt_autocast_push(const char *device_type, const ctrt_autocast_options *options);
CTRT_API ctrt_status ctrt_autocast_pop(void);
/* Runs the following statement or block in such a region and ends the region wherever the block is left:
 * ctrt_autocast(device_type, options) { ... }. If the push fails, the enclosing function returns its status
 * (ctrt/base.h). */
CTRT_BLOCK_LEAVE_(ctrt_autocast_leave_, ctrt_autocast_pop())
#define ctrt_autocast(...) CTRT_BLOCK_TRY_(ctrt_autocast_leave_, ctrt_autocast_push(__VA_ARGS__))

/* Return whether ops of the calling thread on devices of the type select their dtypes, and the dtype of matrix
 * products: the one of the innermost region, or the default. NULL: the type of the default device. */
CTRT_API bool ctrt_autocast_enabled(const char *device_type);
CTRT_API ctrt_dtype ctrt_autocast_dtype(const char *device_type);
/* Releases the converted parameters that the calling thread's regions keep. */
CTRT_API void ctrt_autocast_clear_cache(void);

/* The settings of a thread, for strategies that run ops in threads of their own. ctrt_autocast_state returns those of
 * the calling thread, valid until the end of the innermost region; NULL outside of all regions.
 * ctrt_autocast_push_state begins a region with these settings in the calling thread; NULL: a region without autocast.
 * End it with ctrt_autocast_pop. */
typedef struct ctrt_autocast_settings ctrt_autocast_settings;
CTRT_API const ctrt_autocast_settings *ctrt_autocast_state(void);
CTRT_API ctrt_status ctrt_autocast_push_state(const ctrt_autocast_settings *settings);

/* ---- scaling of the loss ------------------------------------------------------------------------------------------
 *
 * Gradients of f16 below 3e-8 become 0. A gradient scaler multiplies the loss by a large scale, divides the gradients
 * by it before the optimizer's step, and skips the step if a gradient is inf or NaN. The scale is multiplied by
 * backoff_factor after each skipped step, and by growth_factor after growth_interval steps that were not skipped. The
 * algorithm is that of torch.amp.GradScaler.
 *
 *     CTRT_TRY(ctrt_grad_scaler_scale(&scaled, scaler, loss));
 *     CTRT_TRY(ctrt_backward(scaled));
 *     CTRT_TRY(ctrt_grad_scaler_unscale_(scaler, optimizer));         only to read or clip the gradients
 *     CTRT_TRY(ctrt_grad_scaler_step(scaler, optimizer));             of each optimizer
 *     CTRT_TRY(ctrt_grad_scaler_update(scaler, 0));
 *
 * The scale and all decisions are on the device, and the host does not wait for it; the exceptions are named below. The
 * loop can be captured (ctrt/capture.h) after one step outside of a capture; for SGD with momentum and dampening, after
 * two steps of which the first was not skipped. A scaler must not be used by two threads at the same time, except that
 * several threads may call ctrt_grad_scaler_scale: the loss function of ctrt_parallel_step calls it. */
typedef struct ctrt_grad_scaler ctrt_grad_scaler;

typedef struct ctrt_grad_scaler_options {
    size_t initialized;                 /* the size; CTRT_GRAD_SCALER_OPTIONS sets it */
    double init_scale;                  /* 65536 */
    double growth_factor;               /* 2; above 1 */
    double backoff_factor;              /* 0.5; below 1 */
    int64_t growth_interval;            /* 2000 */
    bool disabled;                      /* scale returns the loss, step makes the step, other functions do nothing */
    /* Not in PyTorch: */
    bool allow_no_gradients;            /* a step of an optimizer without any gradient is no error and does nothing */
    double min_scale;                   /* 0; the scale is not decreased below this */
    int64_t max_skips;                  /* ctrt_grad_scaler_update fails after so many skips in a row; 0: never */
} ctrt_grad_scaler_options;
#define CTRT_GRAD_SCALER_OPTIONS \
    { sizeof(ctrt_grad_scaler_options), 65536, 2, 0.5, 2000, false, false, 0, 0 }

/* Creates a scaler. `options` NULL: the defaults. The scale is created on the device of the first scaled loss. On
 * success *out owns one reference. CTRT_ERR_INVALID_ARGUMENT for a value out of its range. */
CTRT_API ctrt_status ctrt_grad_scaler_new(ctrt_grad_scaler **out, const ctrt_grad_scaler_options *options);
/* Releases *scaler and sets it to NULL. */
CTRT_API void ctrt_grad_scaler_release(ctrt_grad_scaler **scaler);
/* Returns whether the scaler is not disabled; false for NULL. */
CTRT_API bool ctrt_grad_scaler_enabled(const ctrt_grad_scaler *scaler);

/* Writes loss * scale, recorded by autograd. A loss of f16 or bf16 with one element and no dimension becomes f32. */
CTRT_API ctrt_status ctrt_grad_scaler_scale(ctrt_tensor **out, ctrt_grad_scaler *scaler, ctrt_tensor *loss);
/* Divides the gradients of the optimizer's parameters by the scale, in place. ctrt_grad_scaler_step does it if it has
 * not been done since the last update.
 *
 * Errors: CTRT_ERR_STATE before the first ctrt_grad_scaler_scale, and if it was called or the step made since the last
 * update. CTRT_ERR_DTYPE if a gradient is f16, because the quotient could underflow: keep the parameters in f32. */
CTRT_API ctrt_status ctrt_grad_scaler_unscale_(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer);
/* Makes the optimizer's step (ctrt_optimizer_step) unless a gradient is inf or NaN, on any device of the optimizer and,
 * if its module is a net of ctrt_parallel_new, on any rank. Skipped steps do not count as steps of the optimizer. On
 * the cpu and on other devices that are not asynchronous, a skipped step costs nothing.
 *
 * On asynchronous devices the device skips the step. The host waits only if other parameters have a gradient than in
 * the last step, and for SGD with momentum and dampening until its first step was not skipped. The state of the
 * optimizer and a step without a scaler wait too, once.
 *
 * Errors: CTRT_ERR_STATE if the step was made since the last update, or if there are no gradients and
 * `allow_no_gradients` is not set; the errors of ctrt_grad_scaler_unscale_ and ctrt_optimizer_step. */
CTRT_API ctrt_status ctrt_grad_scaler_step(ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer);
/* Computes the next scale from all steps since the last update. `new_scale` other than 0 becomes the scale instead; the
 * count of steps toward growth_interval stays, and a skipped step is not counted (max_skips, ctrt_grad_scaler_skips).
 *
 * Errors: CTRT_ERR_STATE before the first ctrt_grad_scaler_scale and, if `new_scale` is 0, without a step or unscale
 * since the last update. CTRT_ERR_INVALID_ARGUMENT if `new_scale` is negative, inf or NaN. CTRT_ERR_OVERFLOW if
 * `new_scale` is beyond the range of f32, and after max_skips skips in a row, with ctrt_grad_scaler_report in the
 * message. On an asynchronous device the count arrives without waiting, so the error of max_skips may come a few steps
 * later; captured steps do not report it, ctrt_grad_scaler_check does. */
CTRT_API ctrt_status ctrt_grad_scaler_update(ctrt_grad_scaler *scaler, double new_scale);

/* Waits for the device and returns the error of ctrt_grad_scaler_update for max_skips. */
CTRT_API ctrt_status ctrt_grad_scaler_check(ctrt_grad_scaler *scaler);
/* Writes a line about the parameters whose gradient is inf or NaN. It names the one that comes first in the backward
 * pass (the last of the optimizer's parameters), and their number: "3.weight: 2 of 8 elements of the gradient are inf
 * or NaN; so are gradients of 4 of 6 parameters". "" if all are finite. The gradients are those that the parameters
 * have now, so call it after ctrt_grad_scaler_step or ctrt_grad_scaler_unscale_ and before they are zeroed. Waits for
 * the device. At most `bytes` are written, with the final 0. */
CTRT_API ctrt_status ctrt_grad_scaler_report(char *text, size_t bytes, ctrt_optimizer *optimizer);

/* The keys of PyTorch's GradScaler.state_dict. */
typedef struct ctrt_grad_scaler_state {
    size_t size;
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
} ctrt_grad_scaler_state;
#define CTRT_GRAD_SCALER_STATE CTRT_SIZED_(ctrt_grad_scaler_state)
/* Read and replace the state. ctrt_grad_scaler_get_state waits for the device. Captured steps use the scale and the
 * tracker of ctrt_grad_scaler_set_state; factors and interval are those of the capture. A disabled scaler has zeros and
 * accepts any state. CTRT_ERR_INVALID_ARGUMENT for a value out of its range. */
CTRT_API ctrt_status ctrt_grad_scaler_get_state(ctrt_grad_scaler_state *out, ctrt_grad_scaler *scaler);
CTRT_API ctrt_status ctrt_grad_scaler_set_state(ctrt_grad_scaler *scaler, const ctrt_grad_scaler_state *state);
/* Write the state to a safetensors file and read it. The file has 0-dim tensors with the names of PyTorch's keys:
 * scale, growth_factor and backoff_factor (f64), growth_interval and _growth_tracker (i64). Errors: those of ctrt_save
 * and ctrt_load (ctrt/checkpoint.h). */
CTRT_API ctrt_status ctrt_grad_scaler_save(ctrt_grad_scaler *scaler, const char *path);
CTRT_API ctrt_status ctrt_grad_scaler_load(ctrt_grad_scaler *scaler, const char *path);
/* Writes the number of steps that were skipped, all and those in a row up to now. Waits for the device. */
CTRT_API ctrt_status ctrt_grad_scaler_skips(int64_t *all, int64_t *in_a_row, ctrt_grad_scaler *scaler);

/* ---- where inf and NaN come from ---------------------------------------------------------------------------------
 *
 * An inf watch checks the output of each module in `module` and below it, and in the backward pass the gradient of the
 * output. It names the first module with inf or NaN, in the order of the computation. The checks run on the device
 * and take about two passes over each output, so use it to look for an error. Copies of the module (data-parallel) are
 * not watched. Each forward pass of `module` discards the results of the previous one.
 *
 * ctrt_inf_watch_new adds the hooks to the modules, which it retains; on success *out owns the watch.
 * ctrt_inf_watch_release removes them and sets *watch to NULL; do not call it between a forward pass and its backward
 * pass. One module must not run in several threads at the same time while it is watched. */
typedef struct ctrt_inf_watch ctrt_inf_watch;
CTRT_API ctrt_status ctrt_inf_watch_new(ctrt_inf_watch **out, ctrt_module *module);
CTRT_API void ctrt_inf_watch_release(ctrt_inf_watch **watch);
/* Writes a line, at most `bytes` with the final 0: "the output of encoder.3 (Linear) is inf or NaN", or "in the
 * backward pass, the gradient of the output of encoder.3 (Linear) is inf or NaN"; "" if all is finite. Waits for the
 * device. */
CTRT_API ctrt_status ctrt_inf_watch_report(char *text, size_t bytes, ctrt_inf_watch *watch);

CTRT_END_DECLS

#endif
