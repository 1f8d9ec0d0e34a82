/* SPDX-License-Identifier: Apache-2.0 */
/* ops/dispatch.h: selection and execution of the kernel for an op and its operands.
 *
 * Each device has a table with one dispatch entry per op and dtype, which lists the candidate kernels. kernel_call
 * works on views. Op functions are responsible for promotion, allocation of results and autograd. */
#ifndef CORE_OPS_DISPATCH_H
#define CORE_OPS_DISPATCH_H

#include "base/slot.h"
#include "device/device.h"
#include "ops/attributes.h"
#include "ops/op.h"
#include "tensor/shape.h"

#define KERNEL_MAX_OPERANDS 10              /* greatest number of operands of a call with a fixed number of operands */

struct dispatch_entry {
    /* The best kernel, if it can be called directly: on a synchronous device, without `accepts` and `workspace`. Else
     * NULL. */
    ctrt_status (*run)(const ctrt_call *call);
    uint32_t flags;                                 /* CTRT_KERNEL_* of the best kernel */
    uint16_t count;                                 /* number of candidates */
    const ctrt_kernel *const *kernels;              /* candidates, highest score first */
};

/* A call of an op on operands in the canonical form of ctrt/contracts.def. Inputs may be NULL where it says so. */
struct op_call {
    enum op op;
    ctrt_dtype key;                         /* the key dtype, which selects the dispatch entry */
    ctrt_device *device;
    const ctrt_view *const *inputs;
    int n_inputs;
    const ctrt_view *const *outputs;
    int n_outputs;
    const void *attributes;                 /* the op's struct in plugin.h, or NULL */
};
/* The initializers of `inputs` and `n_inputs`, or `outputs` and `n_outputs`, in the order of the members. */
#define OP_VIEWS(...)                                 \
    (const ctrt_view *const[]){ __VA_ARGS__ },        \
    (int)(sizeof((const ctrt_view *const[]){ __VA_ARGS__ }) / sizeof(ctrt_view *))

/* Returns the dtype of the result of an op, given its promotion and the dtype in which it computes. */
static inline ctrt_dtype op_result_dtype(int promotion, ctrt_dtype compute)
{
    switch (promotion) {
    case PROMOTION_COMPARE:
    case PROMOTION_TO_BOOL: return CTRT_BOOL;
    case PROMOTION_TO_I64:  return CTRT_I64;
    case PROMOTION_SUM:     return dtype_floating(compute) ? compute : CTRT_I64;
    default:                return compute;
    }
}

/* Returns the id of the op `name`, or -1. */
int op_by_name(const char *name);

/* Returns the device's dispatch table, which is built at first use. Errors: those of the backend's prepare, and
 * CTRT_ERR_OUT_OF_MEMORY. Thread-safe. */
ctrt_status dispatch_table(struct dispatch_entry **out, ctrt_device *device);

/* Returns the dispatch entry of an op and dtype; NULL if the table has not been built yet. */
static inline struct dispatch_entry *dispatch_find(ctrt_device *device, enum op op, ctrt_dtype key)
{
    struct dispatch_entry *entries = atomic_load_explicit(&device->dispatch, memory_order_acquire);
    return entries ? &entries[(int)op * DTYPE_COUNT + (int)key] : NULL;
}

/* Calls the entry's `run`, which must not be NULL, on operands that are contiguous and not pinned; outputs[0] is an
 * input only if the kernel has CTRT_KERNEL_INPLACE. For the fast paths of op functions. */
static inline __attribute__((always_inline)) ctrt_status
dispatch_run(const struct dispatch_entry *entry, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
             const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    const ctrt_call call = { .size = sizeof call, .device = device->handle, .inputs = inputs, .outputs = outputs,
                             .n_inputs = (uint32_t)n_inputs, .n_outputs = (uint32_t)n_outputs,
                             .attributes = attributes, .kernel = entry->kernels[0] };
    return SLOT_CALL(device->type, "run of a kernel", entry->run(&call));
}

/* Runs the best kernel that accepts the call. A kernel without CTRT_KERNEL_STRIDED gets contiguous copies of operands
 * that are not contiguous; outputs are copied back afterwards. If no kernel accepts the call, runs the fallback or
 * returns CTRT_ERR_NOT_SUPPORTED. */
ctrt_status kernel_call(const struct op_call *call);

/* Returns whether the device has a kernel of its own that accepts the call. Only shapes, strides and dtypes of the
 * views are used, so they need no data. At most KERNEL_MAX_OPERANDS operands. For ops that the core can also compose
 * from others. */
bool kernel_available(const struct op_call *call);

/* kernel_call for elementwise ops, which have one output and whose views all have the same shape. Merges dimensions
 * first. */
ctrt_status kernel_call_elementwise(const struct op_call *call);

/* Sets the elements of a view in host memory to zeros, unless the memory belongs to a dry run: replaces a copy to the
 * host during a dry run of the device. */
void host_zeros(const ctrt_view *to);
/* Copies elements between views of the same shape, within a device or between devices, and converts the dtype. */
ctrt_status kernel_copy(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from, ctrt_device *from_device);
/* Like kernel_copy, but does not wait if the device can copy asynchronously between its memory and pinned host memory.
 * Sets *asynchronous to whether that is the case. */
ctrt_status kernel_copy_non_blocking(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from,
                                     ctrt_device *from_device, bool *asynchronous);
/* Sets every element of the view to `value`. */
ctrt_status kernel_fill(const ctrt_view *to, ctrt_device *device, ctrt_scalar value);

/* fallback.c: runs the op on the CPU, with copies of the operands, and counts the call. CTRT_ERR_NOT_SUPPORTED without
 * CTRT_FALLBACK=cpu. */
ctrt_status fallback_call(const struct op_call *call);

#endif
