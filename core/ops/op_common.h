/* SPDX-License-Identifier: Apache-2.0 */
/* ops/op_common.h: functions shared by the op functions of all families.
 *
 * An op function (ctrt_add) is common to all backends: it checks the operands, brings them into the canonical form of
 * contracts.def, allocates the results, calls the kernel and ends with op_finish, which records the op for autograd. */
#ifndef CORE_OPS_OP_COMMON_H
#define CORE_OPS_OP_COMMON_H

#include "ctrt/autograd.h"
#include "ops/dispatch.h"

/* Checks that all operands are on the same device, which *out becomes. Ignores NULL, and 0-dim CPU tensors if there are
 * other operands. The message of CTRT_ERR_DEVICE names the op, the positions of both operands and both devices. */
ctrt_status op_common_device(ctrt_device **out, const char *who, ctrt_tensor *const *operands, int count);
/* Checks for a floating dtype. CTRT_ERR_DTYPE "who: argument has dtype i32, expected a floating type". */
ctrt_status op_require_floating(const char *who, const char *argument, const ctrt_tensor *tensor);

/* Checks the two values of a window parameter such as the stride: `least` <= value <= INT32_MAX.
 * CTRT_ERR_INVALID_ARGUMENT "conv2d: stride is 4294967296, expected 0 to 2147483647". */
ctrt_status op_check_window(const char *who, const char *argument, const int64_t values[2], int64_t least);

/* Returns whether the thread is in grad mode and one of the tensors (NULL is ignored) requires grad. */
bool op_needs_grad(ctrt_tensor *const *tensors, int count);

/* Turns recording in this thread off (true) or on. Returns the previous value; pass it to the second call. For composed
 * functions that record themselves as one op. */
static inline bool op_pause_recording(bool pause)
{
    bool was = thread_state.grad_disabled;
    thread_state.grad_disabled = pause;
    return was;
}

/* Sets the thread's current op until the end of the enclosing block. Allocations, and messages about failed ones, are
 * attributed to that op. */
#define OP_SCOPE(op) __attribute__((cleanup(op_scope_leave), unused)) const char *op_scope_before = op_scope_enter(op)

static inline const char *op_scope_enter(enum op op)
{
    const char *before = thread_state.op;
    thread_state.op = op_table[op].name;
    return before;
}

static inline void op_scope_leave(const char **before)
{
    thread_state.op = *before;
}

/* TRY_FROM with the thread's current op. */
#define OP_TRY(expr) TRY_FROM(thread_state.op, expr)

/* Returns x converted to `dtype` on `device`, for use as a kernel operand: x itself if it already fits, else a copy,
 * which is contiguous with `contiguous` and has the layout of x without. The caller owns the reference *out. Not
 * recorded. */
ctrt_status op_operand(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device, bool contiguous);

/* Makes a dense copy of x in `format`. Not recorded. */
ctrt_status op_dense_copy(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device,
                          ctrt_memory_format format);
/* Returns the format of results that have the layout of x: channels-last if x is channels-last and not contiguous as
 * well (with sizes of 1 it can be both), else contiguous. */
ctrt_memory_format op_result_format(const ctrt_tensor *x);

/* cat.c: like ctrt_cat, but the tensors may be on several devices; each is copied once, into its part of the result on
 * `device`. The engine copies the gradients to the tensors' devices. `device` NULL: as ctrt_cat. */
ctrt_status op_cat_to(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim, ctrt_device *device);

/* Finishes an op function. On an error releases results[0..n_results), sets them to NULL and prefixes the message with
 * the op's name. Otherwise records the op if an input needs a gradient, and moves results[0] into *out, so that
 * results[0] is NULL. Only results[0] gets a history; the derivative rule may save further results, but they have no
 * gradient. The caller releases the further results. */
ctrt_status op_finish(ctrt_status status, ctrt_tensor **out, enum op op, ctrt_tensor **results, int n_results,
                      ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);

/* Releases the result of autograd_history (upcalls.h). */
void autograd_history_release(void *history);

#endif
