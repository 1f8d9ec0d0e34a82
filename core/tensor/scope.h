/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/scope.h: scopes, which end the tensors that were created in them.
 *
 * A tensor of a scope has TENSOR_SCOPED and an entry in a table. The entry is removed when the tensor is destroyed,
 * exported or ended. Tensors that the library itself refers to by handle (saved values, bases of views) are held: such
 * a tensor does not end before the last hold is released. */
#ifndef CORE_TENSOR_SCOPE_H
#define CORE_TENSOR_SCOPE_H

#include "tensor/tensor.h"

struct scope;

/* Adds a new tensor to the thread's scope. If memory for the entry runs out, the tensor stays outside of all scopes. */
void scope_note(ctrt_tensor *tensor);
/* Removes the tensor from its scope because it is being destroyed or is kept permanently. scope_count adds `by` to the
 * tensor's number of holds. */
void scope_forget(ctrt_tensor *tensor);
void scope_count(ctrt_tensor *tensor, int by);

/* Bracket the lifetime of a reference that the library itself has to the tensor. */
static inline void scope_hold(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_count(tensor, 1);
}
static inline void scope_release_tensor(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_count(tensor, -1);
}
/* Removes the tensor from its scope because a module or another library keeps it permanently. */
static inline void scope_keep(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_forget(tensor);
}

/* Between scope_pause and scope_resume, new tensors of the thread belong to no scope. Returns the scope to pass to
 * scope_resume. */
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

/* tensor.c: frees the tensor's autograd history and replaces its storage by `storage`, which belongs to another device.
 * The handle stays valid. */
void tensor_end(ctrt_tensor *tensor, struct storage *storage);
/* A tensor of an ending scope that the library still holds; grad_find_cycles (upcalls.h) sets `unused`. */
struct scope_held {
    ctrt_tensor *tensor;
    uint32_t held;                          /* number of holds */
    bool unused;                            /* result: the tensor is not a parameter, and only the tensors of this list
                                             * and their histories refer to it */
};

#endif
