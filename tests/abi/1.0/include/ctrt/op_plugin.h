/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_OP_PLUGIN_H
#define CTRT_OP_PLUGIN_H
#include "ctrt/plugin.h"
#include "ctrt/tensor.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_operand {
    ctrt_tensor *tensor;
    int64_t offset;
    const void *number;
    ctrt_view view;
} ctrt_operand;
typedef struct ctrt_op_call {
    size_t size;
    const char *op;
    ctrt_dtype key;
    ctrt_device *device;
    ctrt_operand *const *inputs, *const *outputs;
    int n_inputs, n_outputs;
    const void *attributes;
    int number;
} ctrt_op_call;
CTRT_API ctrt_status ctrt_op_run(const ctrt_op_call *call);
CTRT_API bool ctrt_op_accepts(const ctrt_op_call *call);
CTRT_API ctrt_status ctrt_op_buffer(ctrt_tensor **out, int64_t count, ctrt_dtype dtype, ctrt_device *device);
CTRT_END_DECLS
#endif
