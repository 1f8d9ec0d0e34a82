/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that graphs that grow from step to step are reported with the op that makes them grow, and that other graphs
 * are not reported. */
#include <pthread.h>
#include <string.h>

#include "ctrt/ctrt.h"
#include "ctrt/memory.h"
#include "tensors.h"

static char said[2048];
static int times;

static void hear(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level;
    if (strcmp(component, "autograd") != 0)
        return;
    times++;
    snprintf(said, sizeof said, "%s", text);
}

enum way { ADD, FUNCTION, ADD_IN_PLACE, ADD_INDIRECTLY, LIST, ITEM, DETACH, NO_GRAD, GRAD_ONLY, WITHIN_A_STEP, RETAIN };

static ctrt_status adder_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in,
                                 int n_in)
{
    (void)context, (void)n_out, (void)n_in;
    return ctrt_add(out, in[0], in[1]);
}

static ctrt_status adder_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                  ctrt_tensor *const *grad_out,
                                  int n_out)
{
    (void)context, (void)n_out;
    for (int i = 0; i < n_in; i++)
        grad_in[i] = ctrt_tensor_retain(grad_out[0]);
    return CTRT_OK;
}

static const ctrt_function adder = { .size = sizeof adder, .name = "adder", .forward = adder_forward,
                                     .backward = adder_backward };

static ctrt_status add_up(ctrt_tensor **total, double *sum, ctrt_tensor *loss, enum way way)
{
    CTRT_AUTO(tensor) other = NULL;
    double value;
    switch (way) {
    case ADD:
    case GRAD_ONLY:      return ctrt_add(total, *total, loss);
    case FUNCTION:       return ctrt_function_apply(&adder, NULL, total, 1, (ctrt_tensor *[]){ *total, loss }, 2);
    case ADD_IN_PLACE:   return *total ? ctrt_add_(*total, loss) : ctrt_clone(total, loss);
    case ADD_INDIRECTLY:
        CTRT_TRY(ctrt_mul_scalar(&other, *total, ctrt_float(0.9)));
        return ctrt_add(total, other, loss);
    case LIST:           return ctrt_maximum(total, *total, loss);
    case DETACH:
        CTRT_TRY(ctrt_detach(&other, loss));
        return ctrt_add(total, *total, other);
    case NO_GRAD: {
        ctrt_status status = CTRT_OK;
        ctrt_no_grad status = ctrt_add(total, *total, loss);
        return status;
    }
    default:
        CTRT_TRY(ctrt_item(&value, loss));
        *sum += value;
        return CTRT_OK;
    }
}

/* Runs steps of a small model, each with a backward pass. */
static void train(int steps, enum way way)
{
    CTRT_AUTO(tensor) w = NULL, total = NULL, x = NULL;
    double sum = 0;
    CHECK_OK(ctrt_ones(&w, CTRT_SHAPE(3), CTRT_F32, NULL));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(3), CTRT_F32, NULL));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_zeros(&total, CTRT_SHAPE(1), CTRT_F32, NULL));
    if (way == ADD_IN_PLACE)
        ctrt_tensor_release(&total);
    for (int i = 0; i < steps; i++) {
        CTRT_AUTO(tensor) y = NULL, loss = NULL, grad = NULL;
        CHECK_OK(ctrt_mul(&y, w, x));
        for (int k = 0; k < 40 && way == WITHIN_A_STEP; k++)        /* like a recurrent network */
            CHECK_OK(ctrt_add(&y, y, w));
        CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
        if (way == GRAD_ONLY)
            CHECK_OK(ctrt_grad(&grad, loss, &w, 1, NULL, true, false, false));
        else
            CHECK_OK(ctrt_backward_with(loss, NULL, way == RETAIN, false));
        CHECK_OK(ctrt_memory_label_push("epoch"));
        CHECK_OK(add_up(&total, &sum, loss, way));
        CHECK_OK(ctrt_memory_label_pop());
    }
}

/* One step whose graph is built by two threads in turn. One of the threads has run backward passes before. The graph
 * does not grow from step to step. */
struct relay {
    pthread_mutex_t lock;
    pthread_cond_t turns;
    int turn;
    ctrt_tensor *baton;
};

static void carry(struct relay *relay, int who)
{
    pthread_mutex_lock(&relay->lock);
    for (int i = 0; i < 10; i++) {
        while (relay->turn % 2 != who)
            pthread_cond_wait(&relay->turns, &relay->lock);
        CHECK_OK(ctrt_mul_scalar(&relay->baton, relay->baton, ctrt_float(1.1)));
        relay->turn++;
        pthread_cond_signal(&relay->turns);
    }
    pthread_mutex_unlock(&relay->lock);
}

static void *second_runner(void *argument)
{
    train(3, ITEM);
    carry(argument, 1);
    return NULL;
}

static void test_threads(void)
{
    group("a graph that two threads build in turn is not reported");
    const uint64_t before = ctrt_autograd_growth_found();
    struct relay relay = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, NULL };
    pthread_t thread;
    times = 0;
    CHECK_OK(ctrt_autograd_set_growth_limit(8));
    CHECK_OK(ctrt_ones(&relay.baton, CTRT_SHAPE(1), CTRT_F32, NULL));
    CHECK_OK(ctrt_tensor_require_grad(relay.baton, true));
    pthread_create(&thread, NULL, second_runner, &relay);
    carry(&relay, 0);
    pthread_join(thread, NULL);
    CHECK_OK(ctrt_backward(relay.baton));
    CHECK(times == 0 && ctrt_autograd_growth_found() == before, "%s", said);
    ctrt_tensor_release(&relay.baton);
}

TEST_MAIN
{
    static const struct { const char *name; enum way way; const char *op; } cases[] = {
        { "total_loss += loss", ADD, "add" },
        { "a custom function adds the loss", FUNCTION, "adder" },
        { "total_loss += loss, in place", ADD_IN_PLACE, "add" },
        { "total_loss = 0.9 total_loss + loss", ADD_INDIRECTLY, "mul" },
        { "the maximum loss", LIST, "maximum" },
        { "ctrt_item(loss) is added", ITEM, NULL },
        { "a detached loss is added", DETACH, NULL },
        { "the loss is added in no-grad mode", NO_GRAD, NULL },
        { "ctrt_grad does not count as a backward pass", GRAD_ONLY, NULL },
        { "a long chain within a step", WITHIN_A_STEP, NULL },
        { "a retained graph", RETAIN, NULL },
    };
    ctrt_log_set_callback(hear, NULL);
    group("growth is not reported by default");
    train(30, ADD);
    CHECK(times == 0 && ctrt_autograd_growth_found() == 0, "%d warnings", times);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group("%s", cases[i].name);
        uint64_t before = ctrt_autograd_growth_found();
        times = 0;
        CHECK_OK(ctrt_autograd_set_growth_limit(8));
        train(7, cases[i].way);
        CHECK(times == 0 && ctrt_autograd_growth_found() == before, "a warning after 7 steps: %s", said);
        train(30, cases[i].way);
        if (cases[i].op == NULL) {
            CHECK(times == 0 && ctrt_autograd_growth_found() == before, "%s", said);
            continue;
        }
        CHECK(times == 1, "%d warnings", times);
        CHECK(ctrt_autograd_growth_found() >= before + 22, "%llu growing results were found, expected at least 22",
              (unsigned long long)(ctrt_autograd_growth_found() - before));
        char words[64];
        snprintf(words, sizeof words, "a result of %s (epoch) spans 8 backward passes", cases[i].op);
        CHECK(strstr(said, words) != NULL && strstr(said, "ctrt_item(loss)") != NULL, "\"%s\" lacks \"%s\"", said,
              words);
    }
    test_threads();
    CHECK_OK(ctrt_autograd_set_growth_limit(0));
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu nodes remain", (unsigned long long)ctrt_autograd_live_nodes());
    return done();
}
