/* SPDX-License-Identifier: Apache-2.0 */
/* capture_check.h: captured steps of the strategy `distributed`, compared with steps that are not captured. */
#ifndef CTRT_TESTS_CAPTURE_CHECK_H
#define CTRT_TESTS_CAPTURE_CHECK_H

#include "../options.h"
#include "calls.h"
#include "rank_check.h"

enum { ROWS = 4, STEPS = 7, CAPTURED = 3 };      /* CAPTURED: the first captured step */

static inline ctrt_status wide_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 24, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(24), NULL, device),
                                                 CTRT_NEW(linear, 24, 16, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, 16, 3, false, device)));
}

static inline ctrt_status sync_norm_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_TRY(plain_norm_new(out, device));
    return ctrt_convert_sync_batch_norm(*out, NULL);
}

/* ---- a net, and what trains it ---- */

struct training {
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *loss;
};

/* The ranks have different numbers of rows; only rank 0 uses the parameter b of a branch. `like`: a module whose values
 * are copied; NULL: `make` creates a module. */
static inline void training_new(struct training *t, struct rank *rank, net_function make, ctrt_module *like)
{
    const ctrt_adamw_options options = *ADAMW(.lr = 0.02, .weight_decay = 0.01);
    *t = (struct training){ 0 };
    if (!CHECK_OK(like != NULL ? ctrt_module_copy(&t->module, like, rank->device) : make(&t->module, rank->device))
        || !CHECK_OK(ctrt_parallel_new_comm(&t->net, t->module, "distributed", rank->comm)))
        tap_stop();
    if (make == branch_new)
        ((struct branch *)ctrt_module_state(t->module))->uses_b = rank->number == 0;
    CHECK_OK(ctrt_adamw_new(&t->optimizer, t->net, &options));
    CHECK_OK(ctrt_zeros(&t->x, CTRT_SHAPE(ROWS + rank->number % 2, FEATURES), CTRT_F32, rank->device));
}

static inline void training_free(struct training *t)
{
    ctrt_tensor_release(&t->x);
    ctrt_tensor_release(&t->loss);
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
}

static inline void batch(struct training *t, struct rank *rank, int turn)
{
    float values[(ROWS + 1) * FEATURES];
    for (size_t i = 0; i < COUNT(values); i++)
        values[i] = (float)sin(turn * 1000 + rank->number * 100 + (double)i);
    CHECK_OK(ctrt_from_host_(t->x, values, (size_t)ctrt_tensor_numel(t->x), CTRT_F32));
}

/* A step, by ctrt_parallel_step or by the program's own loss. */
static inline ctrt_status gradients(struct training *t, bool forward)
{
    CTRT_AUTO(tensor) y = NULL;
    if (!forward)
        return ctrt_parallel_step(&t->loss, t->net, &t->x, 1, square_loss, NULL);
    TRY(ctrt_forward(&y, t->net, t->x));
    TRY(square_loss(&t->loss, y, NULL, 0, NULL));
    return ctrt_backward(t->loss);
}

static inline ctrt_status train_step(struct training *t, bool forward)
{
    TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    TRY(gradients(t, forward));
    return ctrt_optimizer_step(t->optimizer);
}

static inline void same(struct training *a, struct training *b, int turn)
{
    double of_a = 0, of_b = 0;
    char hash_a[65], hash_b[65];
    CHECK_OK(ctrt_item(&of_a, a->loss));
    CHECK_OK(ctrt_item(&of_b, b->loss));
    CHECK_OK(ctrt_module_sha256(hash_a, a->module));
    CHECK_OK(ctrt_module_sha256(hash_b, b->module));
    CHECK(of_a == of_b, "step %d: loss %.9g, expected %.9g", turn, of_a, of_b);
    CHECK(strcmp(hash_a, hash_b) == 0, "step %d: the parameters differ", turn);
}

/* The network of a job, what the environment sets, and whether the loss is the program's own. */
struct plan {
    const char *name, *setting;
    net_function make;
    bool forward;
};

/* Steps before a capture, replays, and steps after them. `rank->argument`: a plan. */
static inline void captured_steps(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const uint64_t start = ctrt_memory_allocated(rank->device);
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, plan->make, NULL);
    training_new(&b, rank, plan->make, a.module);
    for (int i = 0; i < STEPS; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        if (i < CAPTURED || i == STEPS - 1)
            CHECK_OK(train_step(&a, plan->forward));
        if (i == CAPTURED) {
            CHECK_OK(ctrt_capture_begin(rank->device));
            CHECK_OK(train_step(&a, plan->forward));
            CHECK_OK(ctrt_capture_end(&graph, rank->device));
        }
        if (i >= CAPTURED && i < STEPS - 1)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(train_step(&b, plan->forward));
        same(&a, &b, i);
    }
    if (plan->make != plain_norm_new)               /* its buffers are those of the rank's rows */
        same_everywhere(a.net, rank);
    if (plan->make == branch_new) {
        ctrt_tensor *never = NULL;
        CHECK_OK(ctrt_module_tensor(&never, a.module, "never"));
        CHECK_TRUE(ctrt_tensor_grad(never) == NULL);
    }
    training_free(&a);
    training_free(&b);
    ctrt_graph_release(&graph);
    CHECK_EQ(ctrt_memory_allocated(rank->device), start);
}

#endif
