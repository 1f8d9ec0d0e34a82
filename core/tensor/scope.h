/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/scope.h: tensors that end with the scope that they were made in.
 *
 * A tensor of a scope has TENSOR_SCOPED and a place in a table, from which it goes when it dies, is exported or ends. What the library
 * itself keeps by handle (saved values, bases of views) is held: such a tensor does not end before it is let go of. */
#ifndef CORE_TENSOR_SCOPE_H
#define CORE_TENSOR_SCOPE_H

#include "tensor/tensor.h"

struct scope;

/* The tensor, just made, belongs to the thread's scope from now on. Without memory for that it stays outside. */
void scope_note(ctrt_tensor *tensor);
/* It belongs to none any more: it dies, or something keeps it for good. */
void scope_forget(ctrt_tensor *tensor);
void scope_count(ctrt_tensor *tensor, int by);

/* While a reference of the library's own lives. */
static inline void scope_hold(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_count(tensor, 1);
}
static inline void scope_let_go(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_count(tensor, -1);
}
/* Something keeps it for good: a module, another library. */
static inline void scope_keep(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_forget(tensor);
}

/* What the thread makes meanwhile belongs to no scope; returns what to resume with. */
static inline struct scope *scope_pause(void)
{
    struct scope *was = thread_state.scope;
    thread_state.scope = NULL;
    return was;
}
static inline void scope_resume(struct scope *was)
{
    thread_state.scope = was;
}

/* tensor.c: the tensor's history goes, and its storage becomes `storage`, of another device; the handle stays. */
void tensor_end(ctrt_tensor *tensor, struct storage *storage);
/* A tensor of an ending scope that the library still holds. */
struct scope_held {
    ctrt_tensor *tensor;
    uint32_t held;                          /* by how many references */
    bool unused;                            /* result: no parameter, and only these tensors and histories refer to it */
};
/* autograd/cycle.c: finds the tensors that only keep each other alive, through saved values and histories; returns how
 * many. 0 when there is no memory for the search. */
size_t grad_find_cycles(struct scope_held *tensors, size_t count);
/* autograd/meta.c: is it a leaf that requires grad? Those are parameters, and end with no scope. */
bool grad_is_parameter(const ctrt_tensor *tensor);

#endif
