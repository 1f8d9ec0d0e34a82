/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that graphs that grow from step to step are reported with the op that makes them grow, and that other graphs
 * are not reported. */
#include "autograd_check.h"
#include "child.h"
#include "log_kept.h"

/* How the loss of a step is added to the total. */
enum sum {
    ADD, FUNCTION, ADD_IN_PLACE, ADD_INDIRECTLY, MAXIMUM, ITEM, DETACH, NO_GRAD, GRAD_ONLY, WITHIN_A_STEP, RETAIN
};

FORWARD(adder_forward)
{
    return ctrt_add(out, in[0], in[1]);
}

BACKWARD(adder_backward)
{
    for (int i = 0; i < n_in; i++)
        dx[i] = ctrt_tensor_retain(dy[0]);
    return CTRT_OK;
}

static const ctrt_function adder = { .size = sizeof adder, .name = "adder", .forward = adder_forward,
                                     .backward = adder_backward };

static ctrt_status add_up(ctrt_tensor **total, ctrt_tensor *loss, enum sum sum)
{
    CTRT_AUTO(tensor) other = NULL;
    ctrt_status status = CTRT_OK;
    double value;
    switch (sum) {
    case ADD:
    case GRAD_ONLY:      return ctrt_add(total, *total, loss);
    case FUNCTION:       return ctrt_function_apply(&adder, NULL, total, 1, (ctrt_tensor *[]){ *total, loss }, 2);
    case ADD_IN_PLACE:   return *total ? ctrt_add_(*total, loss) : ctrt_clone(total, loss);
    case MAXIMUM:        return ctrt_maximum(total, *total, loss);
    case ADD_INDIRECTLY:
        CTRT_TRY(ctrt_mul_scalar(&other, *total, ctrt_float(0.9)));
        return ctrt_add(total, other, loss);
    case DETACH:
        CTRT_TRY(ctrt_detach(&other, loss));
        return ctrt_add(total, *total, other);
    case NO_GRAD:
        ctrt_no_grad status = ctrt_add(total, *total, loss);
        return status;
    default:             return ctrt_item(&value, loss);
    }
}

/* Runs steps of a small model, each with a backward pass. */
static void train(int steps, enum sum sum)
{
    CTRT_AUTO(tensor) w = LEAF(1, 1, 1), x = VECTOR(1, 1, 1), total = sum == ADD_IN_PLACE ? NULL : VECTOR(0);
    for (int i = 0; i < steps; i++) {
        CTRT_AUTO(tensor) loss = NULL, grad = NULL, y = OP(mul, w, x);
        for (int k = 0; k < 40 && sum == WITHIN_A_STEP; k++)        /* like a recurrent network */
            CHECK_OK(ctrt_add(&y, y, w));
        CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
        if (sum == GRAD_ONLY)
            CHECK_OK(ctrt_grad(&grad, loss, &w, 1, NULL, true, false, false));
        else
            CHECK_OK(ctrt_backward_with(loss, NULL, sum == RETAIN, false));
        CHECK_OK(ctrt_memory_label_push("epoch"));
        CHECK_OK(add_up(&total, loss, sum));
        CHECK_OK(ctrt_memory_label_pop());
    }
}

/* Adds to a graph, in a new thread that has run three backward passes. */
static void *add_to_graph(void *graph)
{
    train(3, ITEM);
    CHECK_OK(ctrt_mul_scalar(graph, *(ctrt_tensor **)graph, ctrt_float(1.1)));
    return NULL;
}

/* One step whose graph is built by this thread and others in turn. The graph does not grow from step to step. */
static void test_threads(void)
{
    const uint64_t before = ctrt_autograd_growth_found();
    CTRT_AUTO(tensor) result = LEAF(1);
    log_keep(CTRT_LOG_WARNING);
    CHECK_OK(ctrt_autograd_set_growth_limit(8));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(ctrt_mul_scalar(&result, result, ctrt_float(1.1)));
        in_threads(1, add_to_graph, &result, 0);
    }
    CHECK_OK(ctrt_backward(result));
    CHECK_STR(logged, "");
    CHECK_EQ(ctrt_autograd_growth_found(), before);
}

TEST_MAIN
{
    static const struct { const char *name; enum sum sum; const char *op; } cases[] = {
        { "total_loss += loss", ADD, "add" }, { "a custom function adds the loss", FUNCTION, "adder" },
        { "total_loss += loss, in place", ADD_IN_PLACE, "add" },
        { "total_loss = 0.9 total_loss + loss", ADD_INDIRECTLY, "mul" }, { "the maximum loss", MAXIMUM, "maximum" },
        { "ctrt_item(loss) is added", ITEM, NULL }, { "a detached loss is added", DETACH, NULL },
        { "the loss is added in no-grad mode", NO_GRAD, NULL },
        { "ctrt_grad does not count as a backward pass", GRAD_ONLY, NULL },
        { "a long chain within a step", WITHIN_A_STEP, NULL }, { "a retained graph", RETAIN, NULL },
    };
    log_keep(CTRT_LOG_WARNING);
    group("growth is not reported by default");
    train(30, ADD);
    CHECK_STR(logged, "");
    CHECK_EQ(ctrt_autograd_growth_found(), 0);
    EACH(c, cases) {
        group("%s", c->name);
        const uint64_t before = ctrt_autograd_growth_found();
        log_keep(CTRT_LOG_WARNING);
        CHECK_OK(ctrt_autograd_set_growth_limit(8));
        train(7, c->sum);
        CHECK_STR(logged, "");
        CHECK_EQ(ctrt_autograd_growth_found(), before);
        train(30, c->sum);
        if (c->op == NULL) {
            CHECK_STR(logged, "");
            CHECK_EQ(ctrt_autograd_growth_found(), before);
            continue;
        }
        CHECK_EQ(strcspn(logged, "\n") + 1, strlen(logged));           /* one warning */
        CHECK_TRUE(ctrt_autograd_growth_found() >= before + 22);
        char words[64];
        snprintf(words, sizeof words, "a result of %s (epoch) spans 8 backward passes", c->op);
        CHECK_HAS(logged, words);
        CHECK_HAS(logged, "ctrt_item(loss)");
    }
    group("a graph that threads build in turn is not reported");
    test_threads();
    CHECK_OK(ctrt_autograd_set_growth_limit(0));
    nothing_left();
    return done();
}
