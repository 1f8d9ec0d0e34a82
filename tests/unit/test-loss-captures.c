/* SPDX-License-Identifier: Apache-2.0 */
/* Tests captured steps, and captured groups of steps, whose losses are no means. Needs CTRT_TEST_DEVICES=cuda
 * (tests/integration/cuda-ranks.sh). */
#include "loss_train.h"

enum { ALL_IGNORED = 99 };

static void capture_plan(struct training *t, struct training *one, struct pair *p, struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const bool single = strcmp(plan->strategy, "single") == 0;
    *p = pair_new(mlp_new, "distributed", rank);
    if (single) {
        ctrt_module_release(&p->net);
        ctrt_module_release(&p->module);
        CHECK_OK(ctrt_module_copy(&p->module, p->reference, rank->device));
        p->net = parallel(p->module, "single", &rank->device, 1);
    }
    training_new(t, p->net, rank->device, plan->function, single ? 0 : PART * rank->number,
                 single ? PART * rank->size : PART);
    training_new(one, p->one, rank->device, plan->function, 0, PART * rank->size);
}

/* The number of ignored targets changes between replays; in one replay all are ignored. */
static void captured(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    CTRT_AUTO(graph) graph = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int turn = 0; turn < TURNS; turn++) {
        const int of = turn == 5 ? ALL_IGNORED : turn;
        fill(&t, of);
        fill(&one, of);
        if (turn < 3 || turn == TURNS - 1)
            CHECK_OK(train_step(&t));
        if (turn == 3) {
            CHECK_OK(ctrt_capture_begin(rank->device));
            CHECK_OK(train_step(&t));
            CHECK_OK(ctrt_capture_end(&graph, rank->device));
        }
        if (turn >= 3 && turn < TURNS - 1)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(train_step(&one));
        close_loss(plan->strategy, turn, &t, &one, 1e-5);
    }
    same_parameters(p.net, p.one, 1e-5);
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

/* A graph of a group: `locals` steps without reduction and one with it, of the same rows. */
static ctrt_status group_step(struct training *t, int locals)
{
    TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    TRY(ctrt_parallel_no_sync(t->net, true));
    for (int i = 0; i < locals; i++)
        CTRT_TRY(gradients(t));
    TRY(ctrt_parallel_no_sync(t->net, false));
    TRY(gradients(t));
    return ctrt_optimizer_step(t->optimizer);
}

static void captured_groups(struct rank *rank)
{
    for (int locals = 1; locals <= 2; locals++) {
        CTRT_AUTO(graph) graph = NULL;
        struct training t, one;
        struct pair p;
        capture_plan(&t, &one, &p, rank);
        for (int turn = 0; turn < TURNS; turn++) {
            fill(&t, turn);
            fill(&one, turn);
            if (turn < 3)
                CHECK_OK(group_step(&t, locals));
            if (turn == 3) {
                CHECK_OK(ctrt_capture_begin(rank->device));
                CHECK_OK(group_step(&t, locals));
                CHECK_OK(ctrt_capture_end(&graph, rank->device));
            }
            if (turn >= 3)
                CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(group_step(&one, locals));
            close_loss("groups", turn, &t, &one, 1e-5);
            same_parameters(p.net, p.one, 1e-5);
        }
        training_free(&t);
        training_free(&one);
        pair_free(&p);
    }
}

/* Captures the two steps of a group: one without reduction, and the one that reduces. `steps`: with the optimizer's. */
static void capture_group(ctrt_graph **local, ctrt_graph **reduced, struct training *t, struct rank *rank, bool steps)
{
    CHECK_OK(ctrt_optimizer_zero_grad(t->optimizer, true));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_parallel_no_sync(t->net, true));
    CHECK_OK(gradients(t));
    CHECK_OK(ctrt_parallel_no_sync(t->net, false));
    CHECK_OK(ctrt_capture_end(local, rank->device));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(gradients(t));
    if (steps)
        CHECK_OK(ctrt_optimizer_step(t->optimizer));
    CHECK_OK(ctrt_capture_end(reduced, rank->device));
}

/* The steps of a group have graphs of their own, which are replayed in their order. */
static void captured_apart(struct rank *rank)
{
    CTRT_AUTO(graph) local = NULL, reduced = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(train_step(&t));
        CHECK_OK(train_step(&one));
    }
    capture_group(&local, &reduced, &t, rank, true);
    for (int turn = 0; turn < 4; turn++) {
        CHECK_FAILS(ctrt_capture_replay(reduced), CTRT_ERR_STATE, "has not begun");
        CHECK_OK(ctrt_optimizer_zero_grad(one.optimizer, true));
        for (int last = 0; last < 2; last++) {
            fill(&t, 2 * turn + last);
            fill(&one, 2 * turn + last);
            CHECK_OK(ctrt_parallel_no_sync(one.net, !last));
            CHECK_OK(gradients(&one));
            CHECK_OK(ctrt_capture_replay(last ? reduced : local));
        }
        CHECK_OK(ctrt_optimizer_step(one.optimizer));
        close_loss("graphs of a group", turn, &t, &one, 1e-5);
        same_parameters(p.net, p.one, 1e-5);
    }
    CHECK_OK(ctrt_capture_replay(local));
    CHECK_FAILS(ctrt_capture_replay(local), CTRT_ERR_STATE, "does not add to the gradients");
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

/* Steps that are not captured move gradients, which graphs do not see. */
static void captured_mixed(struct rank *rank)
{
    CTRT_AUTO(graph) local = NULL, reduced = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int i = 0; i < 3; i++)
        CHECK_OK(train_step(&t));
    capture_group(&local, &reduced, &t, rank, false);
    CHECK_OK(ctrt_capture_replay(local));
    CHECK_OK(ctrt_parallel_no_sync(t.net, true));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_parallel_no_sync(t.net, false));
    CHECK_FAILS(ctrt_capture_replay(reduced), CTRT_ERR_STATE, "does not add to the gradients");
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

/* ---- groups in which a graph does not add to the gradients of the other steps ---- */

/* A step without reduction, which is not captured. */
static void local_step(struct training *t)
{
    CHECK_OK(ctrt_parallel_no_sync(t->net, true));
    CHECK_OK(gradients(t));
    CHECK_OK(ctrt_parallel_no_sync(t->net, false));
}

static void release_gradients(struct training *t)
{
    CHECK_OK(ctrt_optimizer_zero_grad(t->optimizer, true));
}

/* The next steps are those of `single` again. */
static void goes_on(struct training *t, struct training *one, struct pair *p)
{
    for (int turn = 0; turn < 2; turn++) {
        fill(t, turn);
        fill(one, turn);
        CHECK_OK(train_step(t));
        CHECK_OK(train_step(one));
        close_loss("after an error", turn, t, one, 1e-5);
        same_parameters(p->net, p->one, 1e-5);
    }
}

static void captured_strange(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const bool mean = plan->function == loss_several;
    CTRT_AUTO(graph) whole = NULL, local = NULL, reduced = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(train_step(&t));
        CHECK_OK(train_step(&one));
    }
    release_gradients(&t);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_capture_end(&whole, rank->device));
    release_gradients(&t);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_parallel_no_sync(t.net, true));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_parallel_no_sync(t.net, false));
    CHECK_OK(ctrt_capture_end(&local, rank->device));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_capture_end(&reduced, rank->device));

    /* A graph that overwrites, after another step. */
    release_gradients(&t);
    fill(&t, ALL_IGNORED);
    local_step(&t);
    CHECK_FAILS(ctrt_capture_replay(whole), CTRT_ERR_STATE, mean ? "in different tensors" : "does not add");
    goes_on(&t, &one, &p);

    /* Another step in place of a captured one. */
    release_gradients(&t);
    fill(&t, ALL_IGNORED);
    local_step(&t);
    CHECK_FAILS(ctrt_capture_replay(reduced), CTRT_ERR_STATE, "in different tensors");
    goes_on(&t, &one, &p);

    /* The gradients of the graph are released. */
    CHECK_OK(ctrt_capture_replay(local));
    release_gradients(&t);
    CHECK_FAILS(gradients(&t), CTRT_ERR_STATE, "in different tensors");
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

/* A captured step without reduction, whose gradients the parameters keep, and another step with it. */
static void captured_first(struct rank *rank)
{
    CTRT_AUTO(graph) local = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(train_step(&t));
        CHECK_OK(train_step(&one));
    }
    release_gradients(&t);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_parallel_no_sync(t.net, true));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_parallel_no_sync(t.net, false));
    CHECK_OK(ctrt_capture_end(&local, rank->device));
    for (int turn = 0; turn < 3; turn++) {
        fill(&t, turn);
        fill(&one, turn);
        release_gradients(&one);
        local_step(&one);
        CHECK_OK(ctrt_capture_replay(local));
        CHECK_OK(gradients(&t));
        CHECK_OK(gradients(&one));
        CHECK_OK(ctrt_optimizer_step(t.optimizer));
        CHECK_OK(ctrt_optimizer_step(one.optimizer));
        same_parameters(p.net, p.one, 1e-5);
    }
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

/* Under `single`. */
static void captured_single(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const bool mean = plan->function == loss_several;
    CTRT_AUTO(graph) fresh = NULL, kept = NULL, group = NULL;
    struct training t, one;
    struct pair p;
    capture_plan(&t, &one, &p, rank);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(train_step(&t));
        CHECK_OK(train_step(&one));
    }
    release_gradients(&t);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(gradients(&t));
    CHECK_OK(ctrt_capture_end(&fresh, rank->device));
    release_gradients(&t);
    fill(&t, ALL_IGNORED);
    local_step(&t);
    CHECK_FAILS(ctrt_capture_replay(fresh), CTRT_ERR_STATE, "does not add to the gradients");
    CHECK_OK(gradients(&t));                                /* ends the group */
    goes_on(&t, &one, &p);
    release_gradients(&t);
    CHECK_OK(ctrt_capture_replay(fresh));
    if (mean) {                                             /* with gradients that stay */
        CHECK_OK(gradients(&t));
        CHECK_OK(ctrt_capture_begin(rank->device));
        CHECK_OK(gradients(&t));
        CHECK_OK(ctrt_capture_end(&kept, rank->device));
        CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, false));
        CHECK_OK(ctrt_optimizer_zero_grad(one.optimizer, true));
        local_step(&t);
        local_step(&one);
        CHECK_OK(ctrt_capture_replay(kept));
        CHECK_OK(gradients(&one));
        CHECK_OK(ctrt_optimizer_step(t.optimizer));
        CHECK_OK(ctrt_optimizer_step(one.optimizer));
        same_parameters(p.net, p.one, 1e-5);
        release_gradients(&t);
        CHECK_OK(ctrt_capture_replay(fresh));               /* `kept` has ended the group */
        release_gradients(&t);
        CHECK_OK(ctrt_capture_begin(rank->device));
        CHECK_OK(group_step(&t, 2));
        CHECK_OK(ctrt_capture_end(&group, rank->device));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(ctrt_capture_replay(group));
            CHECK_OK(group_step(&one, 2));
        }
        same_parameters(p.net, p.one, 1e-5);
    }
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

TEST_MAIN
{
    static const struct plan plans[] = {
        { "single", loss_ignore }, { "distributed", loss_ignore }, { "distributed", loss_masked },
        { "distributed", loss_columns }, { "distributed", loss_several },
    };
    static const struct plan singles[] = { { "single", loss_masked }, { "single", loss_several } };
    static const char *const settings[] = { NULL };
    if (!has_captures())
        return done();
    EACH(plan, plans)
        run_captures(plan->strategy, captured, plan, 1, settings);
    EACH(plan, singles)
        run_captures("single: groups", captured_single, plan, 3, settings);
    EACH(plan, plans)
        if (plan > plans) {
            run_captures("a group of steps", captured_groups, plan, 3, settings);
            run_captures("graphs that do not add to the gradients", captured_strange, plan, 3, settings);
            run_captures("a captured step and one that is not", captured_first, plan, 3, settings);
            if (plan->function == loss_several)             /* a mean */
                continue;
            run_captures("a graph for each step of a group", captured_apart, plan, 3, settings);
            run_captures("a group with a step that is not captured", captured_mixed, plan, 3, settings);
        }
    return done();
}
