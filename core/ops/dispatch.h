/* SPDX-License-Identifier: Apache-2.0 */
/* ops/dispatch.h: from an op and operands to the kernel that runs.
 *
 * Each device has a cell per (op, dtype) that remembers the winning row. kernel_call works on views: no autograd, no
 * promotion, no allocation of results; fronts have done that. */
#ifndef CORE_OPS_DISPATCH_H
#define CORE_OPS_DISPATCH_H

#include "device/device.h"
#include "ops/attributes.h"
#include "ops/op.h"
#include "tensor/shape.h"

#define KERNEL_MAX_OPERANDS 10              /* of a call with a fixed number of operands */

struct op_cell {
    ctrt_status (*run)(const ctrt_call *call);      /* the one row, when it alone matches and takes no workspace; else NULL */
    uint32_t flags;                                 /* CTRT_KERNEL_* of that row */
    uint16_t count;                                 /* candidates, best first */
    const ctrt_kernel *const *rows;
};

/* The device's cells, built at first use. CTRT_OK and *out, or why the backend's rows are unusable. */
ctrt_status dispatch_cells(struct op_cell **out, ctrt_device *device);

static inline struct op_cell *dispatch_cell(ctrt_device *device, enum op op, ctrt_dtype key)
{
    struct op_cell *cells = atomic_load_explicit(&device->cells, memory_order_acquire);
    return cells ? &cells[(int)op * CTRT_DTYPE_COUNT + (int)key] : NULL;
}

/* Runs `op` at dtype `key` on `device`. Inputs may be NULL where the op allows. A row that is not STRIDED gets contiguous copies of inputs
 * (outputs are contiguous or, for a copy into a view, written through a contiguous copy). Without a row: the fallback, or CTRT_ERR_NOT_SUPPORTED.
 * `attributes`: the plugin.h struct of the op. */
ctrt_status kernel_call(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                        const ctrt_view *const *outputs, int n_outputs, const void *attributes);

/* Would a row of the device's own take that call? Shapes, strides and dtypes of the views count; there need be no data yet. At most
 * KERNEL_MAX_OPERANDS operands. For ops that the core can also compose of others. */
bool kernel_available(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                      const ctrt_view *const *outputs, int n_outputs, const void *attributes);

/* kernel_call for elementwise ops: all views have one shape; merges dimensions first. */
ctrt_status kernel_call_elementwise(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                                    const ctrt_view *output, const void *attributes);

/* Copies elements between views of one shape, converting dtype, within a device or across. The workhorse of contiguous, to, copy_, cat. */
ctrt_status kernel_copy(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from, ctrt_device *from_device);
/* The same, but where the device copies by itself between its memory and pinned host memory, *asynchronous is set and nobody waits. */
ctrt_status kernel_copy_non_blocking(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from, ctrt_device *from_device,
                                     bool *asynchronous);
/* Every element of the view becomes `value`. */
ctrt_status kernel_fill(const ctrt_view *to, ctrt_device *device, ctrt_scalar value);

/* fallback.c: the op on the CPU, with copies there and back; counted. */
ctrt_status fallback_call(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                          const ctrt_view *const *outputs, int n_outputs, const void *attributes);

#endif
