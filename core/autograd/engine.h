/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/engine.h: the backward pass over a graph. */
#ifndef CORE_AUTOGRAD_ENGINE_H
#define CORE_AUTOGRAD_ENGINE_H

#include "autograd/node.h"

struct engine_scratch;

/* A gradient that the engine returns (for ctrt_grad) instead of accumulating it into leaves. */
struct engine_capture {
    struct grad_edge at;                /* borrowed */
    ctrt_tensor *grad;                  /* result, owned; NULL if no gradient arrived */
};

struct engine_task {
    struct grad_edge root;              /* borrowed; the starting point of the pass */
    ctrt_tensor *gradient;              /* borrowed; the gradient of the root */
    bool retain_graph, create_graph;
    struct engine_capture *captures;    /* NULL: gradients are accumulated into the leaves */
    int n_captures;
};

/* Runs one backward pass. Several threads may run passes over the same graph. */
ctrt_status engine_run(const struct engine_task *task);
/* Frees the scratch memory of a thread; NULL is allowed. */
void engine_scratch_free(struct engine_scratch *scratch);

/* accumulate.c: runs the leaf's hooks and adds *grad to the leaf's gradient. May take over the reference; in that case
 * sets *grad to NULL. Thread-safe. */
ctrt_status leaf_accumulate(struct grad_leaf *leaf, ctrt_tensor **grad, bool create_graph);
/* Sets *sum to *sum + term and takes over the reference to `term`, also on failure. Adds in place if *sum or `term` has
 * no other reference. */
ctrt_status grad_add(ctrt_tensor **sum, ctrt_tensor *term, bool create_graph);

#endif
