/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/engine.h: runs a graph backward. */
#ifndef CORE_AUTOGRAD_ENGINE_H
#define CORE_AUTOGRAD_ENGINE_H

#include "autograd/node.h"

struct engine_scratch;

/* A gradient that is wanted for itself (ctrt_grad) instead of in leaves. */
struct engine_capture {
    struct grad_edge at;                /* borrowed */
    ctrt_tensor *grad;                  /* result, owned; NULL when nothing came */
};

struct engine_task {
    struct grad_edge root;              /* borrowed; where `gradient` enters */
    ctrt_tensor *gradient;              /* borrowed */
    bool retain_graph, create_graph;
    struct engine_capture *captures;    /* NULL: gradients go to the leaves */
    int n_captures;
};

ctrt_status engine_run(const struct engine_task *task);
void engine_scratch_free(struct engine_scratch *scratch);

/* accumulate.c: adds *grad to the leaf's gradient, after its hooks; may take *grad over. */
ctrt_status leaf_accumulate(struct grad_leaf *leaf, ctrt_tensor **grad, bool create_graph);
/* *sum += term (takes `term` over), in place when nobody else can see *sum. */
ctrt_status grad_add(ctrt_tensor **sum, ctrt_tensor *term, bool create_graph);

#endif
