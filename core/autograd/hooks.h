/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/hooks.h: hooks and retained gradients.
 *
 * A hook of a tensor that an op created is run from the tensor's node, which may outlive the tensor. A hook of a leaf
 * is run from the leaf. Adding and removing a hook and retaining a gradient write the tensor, which two threads must
 * not do at the same time (ctrt/tensor.h); backward passes of other threads may run meanwhile. */
#ifndef CORE_AUTOGRAD_HOOKS_H
#define CORE_AUTOGRAD_HOOKS_H

#include "autograd/autograd_meta.h"
#include "ctrt/autograd.h"

struct grad_hook {                      /* shared by the tensor's list and the node's */
    atomic_int refs;
    atomic_bool removed;
    uint64_t id;
    ctrt_grad_hook on_grad;             /* one of on_grad and on_accumulated is set, the other is NULL */
    ctrt_accumulate_hook on_accumulated;
    void *user;
    struct grad_hook *next;             /* in the tensor's list, oldest first */
};

struct hook_link {
    struct grad_hook *hook;
    uint32_t output;
    struct hook_link *next;             /* oldest first */
};

struct retained {                       /* a tensor with retain_grad (borrowed); removed when the tensor is freed */
    ctrt_tensor *tensor;
    uint32_t output;
    struct retained *next;
};

struct node_extras {
    struct hook_link *hooks;
    struct retained *retained;
};

/* Runs the hooks on *grad, the gradient of the node's result `output`, and adds the result to the gradients of the
 * tensors that retain theirs. A gradient by which a hook replaces *grad must have the same shape, dtype and device. */
ctrt_status node_hooks_run(struct grad_node *node, uint32_t output, ctrt_tensor **grad);
void node_extras_free(struct node_extras *extras);

/* Runs a leaf's gradient hooks on *grad before accumulation. A replacement must have the leaf's shape, dtype and
 * device. */
ctrt_status leaf_hooks_run(struct autograd_meta *meta, ctrt_tensor **grad);
/* Runs a leaf's accumulate hooks. */
ctrt_status leaf_accumulated_hooks_run(struct autograd_meta *meta, ctrt_tensor *leaf);
/* Returns whether a tensor has hooks. Needs no lock. */
static inline bool hooks_any(const struct autograd_meta *meta)
{
    return __atomic_load_n(&meta->hooks, __ATOMIC_ACQUIRE) != NULL;
}
/* Releases the hooks in the list of a tensor that is being freed. */
void hooks_free(struct grad_hook *list);

/* Registers a tensor with retain_grad at the node of its new history, and removes it from that of the old one. `node`
 * is NULL if the tensor is being freed. */
ctrt_status retained_move(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);

#endif
