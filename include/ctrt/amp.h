/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/amp.h: automatic mixed precision.
 *
 * Under autocast each op selects the dtype of its computation: matrix products and convolutions run in f16 or bf16,
 * which many devices compute faster; ops that need range or precision (losses, and except on the cpu exp, log, softmax,
 * layer norm and sums) run in f32; all others run in the dtypes of their operands. Parameters and gradients stay f32.
 * doc/mixed-precision.md has the list of ops. The semantics are those of torch.autocast.
 *
 *     CTRT_TRY(ctrt_autocast_push("cuda", NULL));
 *     ctrt_status status = ctrt_forward(&y, module, x);
 *     if (status == CTRT_OK)
 *         status = ctrt_cross_entropy(&loss, y, labels, NULL);
 *     CTRT_TRY(ctrt_autocast_pop());
 *     CTRT_TRY(status);
 *     CTRT_TRY(ctrt_backward(loss));              outside of the region; inside it gives the same result
 *
 * The settings belong to the calling thread and to a type of device. Ops on devices of other types are not affected.
 * ctrt_parallel_apply and the strategies of ctrt/parallel.h pass the settings of the calling thread to their threads.
 * Backward passes run in the dtypes of the forward pass. */
#ifndef CTRT_AMP_H
#define CTRT_AMP_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_autocast_options {
    ctrt_dtype dtype;                   /* CTRT_F16 or CTRT_BF16; 0: bf16 for the cpu, f16 for other devices */
    bool disabled;                      /* ops run as without autocast, in a part of an outer region */
    bool no_cache;                      /* converts a parameter again at each use, which needs less memory */
} ctrt_autocast_options;

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

CTRT_END_DECLS

#endif
