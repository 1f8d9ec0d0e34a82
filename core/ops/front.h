/* SPDX-License-Identifier: Apache-2.0 */
/* ops/front.h: what the fronts of all families share: checking operands, finishing results, telling autograd.
 *
 * A front checks its operands, brings them into the canonical form of plugin.h, makes the results, calls the kernel and ends with
 * front_finish. */
#ifndef CORE_OPS_FRONT_H
#define CORE_OPS_FRONT_H

#include "ctrt/ops.h"
#include "ops/dispatch.h"

/* CTRT_ERR_INVALID_ARGUMENT "softmax: x is NULL" */
#define FRONT_CHECK(who, argument)                  \
    do {                                            \
        if (unlikely((argument) == NULL))           \
            return fail_null(who, #argument);       \
    } while (0)

/* All operands (NULL ones are skipped) on one device, 0-dim CPU tensors aside: *out is that device. CTRT_ERR_DEVICE names op, both operands'
 * positions and both devices. */
ctrt_status front_device(ctrt_device **out, const char *who, ctrt_tensor *const *operands, int count);
/* CTRT_ERR_DTYPE "who: argument has dtype i32, expected a floating type". */
ctrt_status front_floating(const char *who, const char *argument, const ctrt_tensor *tensor);

/* The context `who` for an error of an op that `who`, a function over other ops, has called: the name of that op is replaced. "mean: x has dtype
 * i32" becomes "mse_loss: x has dtype i32". */
ctrt_status front_context(ctrt_status status, const char *who);

/* Checks the two values of a window's parameter, `least` <= value <= INT32_MAX. CTRT_ERR_INVALID_ARGUMENT "conv2d:
 * stride is 4294967296, expected 0 to 2147483647". */
ctrt_status front_window(const char *who, const char *argument, const int64_t values[2], int64_t least);

/* Floating operands of several dtypes on a device whose default is one of its own (cuda-fp16): products are then made in that. */
static inline bool front_mixed(ctrt_tensor *const *tensors, int count)
{
    if (likely(tensors[0]->device->float_default == 0))
        return false;
    bool mixed = false, floating = true;
    for (int i = 0; i < count; i++) {
        floating = floating && (tensors[i] == NULL || dtype_floating(tensor_dtype(tensors[i])));
        mixed = mixed || (tensors[i] != NULL && tensor_dtype(tensors[i]) != tensor_dtype(tensors[0]));
    }
    return mixed && floating;
}
/* casts[i] = tensors[i] in the device's default dtype, a reference of the caller's (NULL stays); recorded. On an error there are none. */
ctrt_status front_unmix(ctrt_tensor **casts, ctrt_tensor *const *tensors, int count);

/* True when the thread records and one of the tensors (NULL ones are skipped) requires grad. */
bool front_needs_grad(ctrt_tensor *const *tensors, int count);

/* Stops (true) or resumes recording in this thread; returns what was, for composites whose parts have no derivative. */
static inline bool front_pause_grad(bool pause)
{
    bool was = thread_state.grad_disabled;
    thread_state.grad_disabled = pause;
    return was;
}

/* Until the end of the block the thread is in this op: memory that it takes, or cannot have, is put down to it. */
#define FRONT_OP(op) __attribute__((cleanup(front_op_leave), unused)) const char *front_op_before = front_op_enter(op)

static inline const char *front_op_enter(enum op op)
{
    const char *before = thread_state.op;
    thread_state.op = op_table[op].name;
    return before;
}

static inline void front_op_leave(const char **before)
{
    thread_state.op = *before;
}

/* x as `dtype` on `device`, contiguous when asked, else a copy has the layout of x: *out is a new reference (perhaps
 * of x itself); not differentiable: for operands on their way into a kernel. */
ctrt_status front_operand(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device, bool contiguous);

/* A dense copy of x in `format`: *out is a new reference, not recorded. */
ctrt_status front_copy(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device, ctrt_memory_format format);
/* The format that results like x get: channels-last when x is that and not contiguous as well (sizes of 1 can make both true). */
ctrt_memory_format front_format(const ctrt_tensor *x);

/* The end of a front. On an error releases results[0..n) and prefixes the message with the op's name. Else records the op when needed (results[0]
 * carries the history; further results are saved values without gradient unless `differentiable` > 1) and moves results[0] into *out. Further
 * results stay the caller's to release. */
ctrt_status front_finish(ctrt_status status, ctrt_tensor **out, enum op op, ctrt_tensor **results, int n_results,
                         ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);

/* record.h, below: autograd/record.c defines them; the ops floor calls upward through these five only. */

/* Makes results[0] the output of a graph node with edges to the inputs (NULL ones allowed). */
ctrt_status autograd_record(enum op op, ctrt_tensor **results, int n_results, ctrt_tensor *const *inputs, int n_inputs,
                            const union op_attributes *attributes);
/* In place: called before self is written. Checks (leaf that requires grad, expanded self), saves what the rule needs (a clone of self if the
 * rule wants input 0). *token goes to autograd_inplace_end after the write, with the kernel's status. inputs[0] is self. */
struct inplace_token { void *node; };
ctrt_status autograd_inplace_begin(struct inplace_token *token, enum op op, ctrt_tensor *self, ctrt_tensor *const *inputs, int n_inputs,
                                   const union op_attributes *attributes);
/* Bumps the version; rebases self's history on the new node. */
ctrt_status autograd_inplace_end(struct inplace_token *token, ctrt_tensor *self, ctrt_status status);
/* A view result: remembers base for in-place writes through views; records the view op. Called for every view op, also without grad. */
ctrt_status autograd_view(enum op op, ctrt_tensor *result, ctrt_tensor *base, const union op_attributes *attributes);
/* A view that an op returns together with others: autograd does not record changes of it in place. */
void autograd_view_of_several(ctrt_tensor *view);

#endif
