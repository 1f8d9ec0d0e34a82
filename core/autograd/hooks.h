/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/hooks.h: hooks and retained gradients. A hook of a tensor that an op made belongs to the node, which outlives the tensor; a
 * leaf's to the leaf. */
#ifndef CORE_AUTOGRAD_HOOKS_H
#define CORE_AUTOGRAD_HOOKS_H

#include "autograd/meta.h"
#include "ctrt/autograd.h"

struct grad_hook {                      /* shared by the tensor's list and the node's */
    atomic_int refs;
    atomic_bool removed;
    uint64_t id;
    ctrt_grad_hook on_grad;             /* or */
    ctrt_accumulate_hook on_accumulated;
    void *user;
    struct grad_hook *next;             /* in the tensor's list, oldest first */
};

struct hook_link {
    struct grad_hook *hook;
    uint32_t output;
    struct hook_link *next;             /* oldest first */
};

struct retained {                       /* a tensor that wants its gradient kept; struck out when it dies */
    ctrt_tensor *tensor;
    uint32_t output;
    struct retained *next;
};

struct node_extras {
    struct hook_link *hooks;
    struct retained *retained;
};

/* Runs the hooks on *grad, the gradient of the node's result `output`, and adds it to the gradients of tensors that retain theirs. What hooks put in its place
 * has to look like it. */
ctrt_status node_hooks_run(struct grad_node *node, uint32_t output, ctrt_tensor **grad);
void node_extras_free(struct node_extras *extras);

ctrt_status leaf_hooks_run(struct grad_meta *meta, ctrt_tensor **grad);
ctrt_status leaf_accumulated_hooks_run(struct grad_meta *meta, ctrt_tensor *leaf);
void hooks_free(struct grad_hook *list);

/* A retained tensor gets another history, or (node NULL) dies. */
ctrt_status retained_move(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);

#endif
