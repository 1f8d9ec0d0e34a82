/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/op_plugin.h: runs ops in the canonical form of ctrt/plugin.h, for backends that are composed of other devices.
 *
 * A kernel of such a backend gets views of its own device, and calls the op on tensors of other devices. The call goes
 * through dispatch, so kernels of any score and layout, workspaces, the fallback and the order of streams work as for
 * the op functions of ctrt/ops.h. It records no gradients. */
#ifndef CTRT_OP_PLUGIN_H
#define CTRT_OP_PLUGIN_H

#include "ctrt/plugin.h"
#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

/* An operand. The caller sets dtype, ndim, shape and strides of `view`; the library overwrites its other members. */
typedef struct ctrt_operand {
    ctrt_tensor *tensor;                /* its storage has the elements; NULL for numbers and views without elements */
    int64_t offset;                     /* bytes from element 0 of `tensor` to element 0 of the view */
    const void *number;                 /* of a number: its element in host memory */
    ctrt_view view;
} ctrt_operand;

/* A call of an op. Optional operands are NULL. An output that is the same ctrt_operand as an input is computed in
 * place. */
typedef struct ctrt_op_call {
    size_t size;
    const char *op;                     /* name in the table of ops of ctrt/plugin.h */
    ctrt_dtype key;                     /* the op's key dtype */
    ctrt_device *device;
    ctrt_operand *const *inputs, *const *outputs;
    int n_inputs, n_outputs;
    const void *attributes;
} ctrt_op_call;

/* Runs the op; on an asynchronous device it is enqueued on the calling thread's current stream. The operands must have
 * the shapes that the table of ops describes, which is not checked; their dtypes, devices and ranges of memory are
 * (CTRT_ERR_DTYPE, CTRT_ERR_DEVICE, CTRT_ERR_SHAPE). CTRT_ERR_NOT_FOUND for an unknown op. */
CTRT_API ctrt_status ctrt_op_run(const ctrt_op_call *call);

/* Returns whether the device has a kernel of its own for the call. The tensors may be NULL. */
CTRT_API bool ctrt_op_accepts(const ctrt_op_call *call);

/* Creates an uninitialised tensor [count] that belongs to no scope (ctrt_scope_begin), for memory of a plugin. On
 * success *out, which is overwritten, owns one reference. */
CTRT_API ctrt_status ctrt_op_buffer(ctrt_tensor **out, int64_t count, ctrt_dtype dtype, ctrt_device *device);

CTRT_END_DECLS

#endif
