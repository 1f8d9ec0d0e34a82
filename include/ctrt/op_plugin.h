/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/op_plugin.h: runs ops in the form of ctrt/contracts.def, for backends that are composed of other devices.
 *
 * A kernel of such a backend gets views of its own device, and calls the op on tensors of other devices. Dispatch runs
 * the call, so scores, strides, workspaces, the fallback and the order of streams work as in the op functions of
 * ctrt/ops.h. Autograd does not record the call. The functions are thread-safe; a ctrt_operand must not be used by two
 * calls at the same time, because the library writes to it. */
#ifndef CTRT_OP_PLUGIN_H
#define CTRT_OP_PLUGIN_H

#include "ctrt/plugin.h"
#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

/* An operand. The caller sets dtype, ndim, shape and strides of `view`; the library overwrites its other members. */
typedef struct ctrt_operand {
    ctrt_tensor *tensor;                /* its storage has the elements; borrowed; NULL: a number, or no elements */
    int64_t offset;                     /* bytes from element 0 of `tensor` to element 0 of the view */
    const void *number;                 /* NULL, or a number in host memory, of the dtype of `view` */
    ctrt_view view;
} ctrt_operand;

/* A call of an op. Optional operands that are absent are NULL. If an output is the same ctrt_operand as an input, the
 * op computes it in place. */
typedef struct ctrt_op_call {
    size_t size;                        /* sizeof(ctrt_op_call) */
    const char *op;                     /* name in ctrt/ops.def */
    ctrt_dtype key;                     /* the op's key dtype */
    ctrt_device *device;
    ctrt_operand *const *inputs, *const *outputs;
    int n_inputs, n_outputs;
    const void *attributes;             /* of the op, as in ctrt/plugin.h; NULL if it has none */
    int number;                         /* 0, or 1 + the index of `op` in ctrt_op_name, which saves the search for it */
} ctrt_op_call;

/* Runs the op. On an asynchronous device the op is enqueued on the calling thread's current stream. The operands must
 * have the shapes of the op's contract (ctrt/contracts.def); these are checked with CTRT_CHECK_CALLS=1 only.
 *
 * Errors: CTRT_ERR_INVALID_ARGUMENT if `size` is too small. CTRT_ERR_NOT_FOUND for an unknown op. CTRT_ERR_DTYPE for an
 * unknown dtype. CTRT_ERR_DEVICE if a tensor is on another device than `device`. CTRT_ERR_SHAPE if a view exceeds the
 * storage of its tensor. Errors of the kernel. */
CTRT_API ctrt_status ctrt_op_run(const ctrt_op_call *call);

/* Returns whether the device has a kernel of its own for the call, without running it. The tensors may be NULL. Returns
 * false for a wrong call and sets the thread's error message. */
CTRT_API bool ctrt_op_accepts(const ctrt_op_call *call);

/* Creates an uninitialised tensor [count], for memory of a plugin. It belongs to no scope (ctrt_scope_begin).
 *
 * On success *out owns one reference. The previous value of *out is overwritten and not released. Errors:
 * CTRT_ERR_SHAPE for a negative count, CTRT_ERR_DTYPE, CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_op_buffer(ctrt_tensor **out, int64_t count, ctrt_dtype dtype, ctrt_device *device);

CTRT_END_DECLS

#endif
