/* SPDX-License-Identifier: Apache-2.0 */
/* test-capture DEVICE: graph capture and replay on a device: bitwise equal to eager steps, memory, errors, streams. */
#include <math.h>

#include "../options.h"
#include "calls.h"
#include "sims.h"
#include "dryrun_models.h"

#define STEPS 6

static ctrt_device *device;

/* ---- a training step ---- */

static double dropout;                  /* of the network that is made */

MODEL(net, CTRT_NEW(multihead_attention, 8, 2, ATTENTION(.causal = true), device),
      CTRT_NEW(linear, 8, 16, true, device), CTRT_NEW(layer_norm, CTRT_SHAPE(16), NULL, device), CTRT_NEW(tanh),
    CTRT_NEW(dropout, dropout), CTRT_NEW(linear, 16, 4, true, device))

static void training_new(struct training *t, const struct model *model)
{
    ctrt_manual_seed(7);
    CHECK_OK(training_begin(t, model, device));
}

static void batch(struct training *t, int n)
{
    float x[40];
    int64_t y[5];
    for (int i = 0; i < 40; i++)
        x[i] = (float)((i * 37 + n * 11) % 17) / 8 - 1;
    for (int i = 0; i < 5; i++)
        y[i] = (i + n) % 4;
    CHECK_OK(ctrt_from_host_(t->x, x, 40, CTRT_F32));
    CHECK_OK(ctrt_from_host_(t->y, y, 5, CTRT_I64));
}

static ctrt_status step(struct training *t)
{
    TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    TRY(training_forward(&t->loss, t));
    TRY(ctrt_backward(t->loss));
    return ctrt_optimizer_step(t->optimizer);
}

static void check_equal_state(struct training *a, struct training *b)
{
    char of_a[65], of_b[65];
    CHECK_OK(ctrt_module_sha256(of_a, a->net));
    CHECK_OK(ctrt_module_sha256(of_b, b->net));
    CHECK(strcmp(of_a, of_b) == 0, "parameters differ");
}

/* Prepares step n. The first parameter requires grad only from step 1 on, so that its step count differs from that of
 * the others. The learning rate changes at step 4. */
static void prepare(struct training *t, int n)
{
    ctrt_tensor *first = NULL;
    batch(t, n);
    CHECK_OK(ctrt_optimizer_set_lr(t->optimizer, n < 4 ? 0.1 : 0.02));
    CHECK_OK(ctrt_module_parameter(NULL, &first, t->net, 0));
    CHECK_OK(ctrt_tensor_require_grad(first, n > 0));
}

/* Runs the steps with a capture of step 2, and compares each loss with `want`. */
static void run_captured(struct training *t, const double *want)
{
    CTRT_AUTO(graph) graph = NULL;
    for (int n = 0; n < STEPS; n++) {
        double loss = 0;
        prepare(t, n);
        if (n < 2) {
            CHECK_OK(step(t));
        } else if (n == 2) {
            CHECK_OK(ctrt_capture_begin(device));
            CHECK(ctrt_capture_running(device), "no capture is running");
            CHECK_OK(step(t));
            CHECK_OK(ctrt_capture_end(&graph, device));
            CHECK(!ctrt_capture_running(device) && ctrt_graph_device(graph) != NULL, "the capture is still running");
        }
        if (n >= 2)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_item(&loss, t->loss));
        CHECK(loss == want[n], "step %d: loss %.9g, expected %.9g", n, loss, want[n]);
    }
    CHECK(ctrt_graph_memory(graph) > 0, "the graph has no memory");
}

TEST(test_training, NULL)
{
    static const struct { const char *name; enum optimizer_kind optimizer; double dropout; bool autocast; } kinds[] = {
        { "SGD", MOMENTUM, 0, false }, { "AdamW", ADAMW, 0, false }, { "SGD and dropout", MOMENTUM, 0.3, false },
        { "AdamW and dropout", ADAMW, 0.3, false }, { "AdamW under autocast", ADAMW, 0, true },
        { "AMSGrad", AMSGRAD, 0, false }, { "RMSprop", RMSPROP, 0, false }, { "Adagrad", ADAGRAD, 0, false },
        { "NAdam", NADAM, 0.3, false },
    };
    EACH(kind, kinds) {
        group("replays of a captured training step with %s: parameters and losses equal those of eager steps bitwise",
              kind->name);
        const struct model model = { .make = net_make, .input = { 5, 8 }, .classes = 4, .optimizer = kind->optimizer };
        struct training plain, captured;
        double losses[STEPS];
        uint64_t plain_offset = 0, offset = 0;
        dropout = kind->dropout;
        if (kind->autocast)                 /* one region around all steps */
            CHECK_OK(ctrt_autocast_push(ctrt_device_type(device), NULL));
        training_new(&plain, &model);
        for (int n = 0; n < STEPS; n++) {
            prepare(&plain, n);
            CHECK_OK(step(&plain));
            CHECK_OK(ctrt_item(&losses[n], plain.loss));
        }
        CHECK_OK(ctrt_generator_get(device, NULL, &plain_offset));
        training_new(&captured, &model);
        run_captured(&captured, losses);
        CHECK_OK(ctrt_generator_get(device, NULL, &offset));
        CHECK_EQ(offset, plain_offset);
        /* Eager steps after the release of the graph continue its step count. */
        prepare(&plain, STEPS);
        CHECK_OK(step(&plain));
        CHECK_OK(ctrt_generator_set(device, 7, plain_offset));
        prepare(&captured, STEPS);
        CHECK_OK(step(&captured));
        check_equal_state(&plain, &captured);
        training_end(&plain);
        training_end(&captured);
        if (kind->autocast)
            CHECK_OK(ctrt_autocast_pop());
        dropout = 0;
    }
}

/* ---- memory ---- */

TEST(test_memory, "memory of a captured step is reused within the step, kept by its graph, and freed with the graph")
{
    enum { N = 1 << 18 };                           /* 1 MiB */
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL;
    CTRT_AUTO(graph) graph = NULL;
    const uint64_t before = ctrt_memory_allocated(device);
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_add(&y, x, x));
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_add(&y, y, x));               /* two blocks, used alternately */
    CHECK_OK(ctrt_capture_end(&graph, device));
    const uint64_t kept = ctrt_graph_memory(graph);
    CHECK(kept >= 2u << 20 && kept <= 24u << 20, "21 results of 1 MiB take %llu bytes", (unsigned long long)kept);
    CHECK_EQ(ctrt_memory_allocated(device), before + kept);
    for (int i = 1; i <= 3; i++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_capture_replay(graph));
        CTRT_AUTO(tensor) other = full(-1, N, device);      /* must not overlap the graph's memory */
        CHECK_EQ(element(y, N - 1), 22 * i);
    }
    ctrt_graph_release(&graph);
    CHECK(element(y, 0) == 66, "a result changed with the release of its graph: %g", element(y, 0));
    ctrt_tensor_release(&y);
    CHECK_EQ(ctrt_memory_allocated(device), before);
}

/* The kernel checks indices, even if the result has no elements. */
TEST(test_index, "an index into slices without elements needs no synchronization in a capture, and each replay "
                 "checks it")
{
    CTRT_AUTO(tensor) x = NULL, index = NULL, y = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(ctrt_zeros(&x, CTRT_SHAPE(5, 0), CTRT_F32, device));
    CHECK_OK(ctrt_full(&index, CTRT_SHAPE(2), ctrt_int(4), CTRT_I64, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_index_select(&y, x, 0, index));
    CHECK_OK(ctrt_embedding(&y, x, index, -1));
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(ctrt_fill_(index, ctrt_int(5)));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_INVALID_ARGUMENT, "[0, 5)");
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_OK(ctrt_stream_reset(stream));
}

/* ---- streams ---- */

TEST(test_streams, "streams that use a capture's results join it; replays are ordered with work of other streams on "
                   "the same tensors")
{
    const uint64_t before = ctrt_memory_allocated(device);
    CTRT_AUTO(stream) side = new_stream(device), other = new_stream(device), first = NULL;
    CTRT_AUTO(tensor) x = full(1, 4096, device), y = NULL, z = NULL, copy = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(event) event = NULL;
    CHECK_OK(ctrt_stream_default(&first, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_stream_push(side));
    CHECK_FAILS(ctrt_mul(&z, y, y), CTRT_ERR_STATE, "make the stream join the capture first");
    CHECK_OK(ctrt_event_new(&event, device, false));
    CHECK_OK(ctrt_event_record(event, first));
    CHECK_OK(ctrt_stream_wait_event(side, event));
    CHECK_FAILS(ctrt_event_synchronize(event), CTRT_ERR_STATE, "recorded in a capture");
    CHECK_OK(ctrt_mul(&z, y, y));
    CHECK(ctrt_capture_running(device), "the other stream has not joined");
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_capture_end(&graph, device));
    for (int i = 1; i <= 5; i++) {
        CHECK_OK(ctrt_stream_push(other));
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_stream_push(other));
        CHECK_OK(ctrt_clone(&copy, z));
        CHECK_EQ(element(copy, 4095), 4 * i * i);
        CHECK_OK(ctrt_stream_pop());
    }
    ctrt_graph_release(&graph);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_tensor_release(&copy);
    CHECK_EQ(ctrt_memory_allocated(device), before);
}

TEST(test_readers, "a replay waits for work of other streams on released results")
{
    enum { N = 1 << 16 };
    CTRT_AUTO(stream) reader = new_stream(device);
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, copy = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_stream_push(reader));
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_exp(&copy, y));                               /* keeps the stream busy */
    CHECK_OK(ctrt_clone(&copy, y));
    CHECK_OK(ctrt_stream_pop());
    ctrt_tensor_release(&y);
    CHECK_OK(ctrt_fill_(x, ctrt_float(50)));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_EQ(element(copy, N - 1), 2);
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "shutdown");
}

/* ---- random numbers ---- */

enum { DRAWN = 77 };

static ctrt_status draw(ctrt_tensor *x, ctrt_tensor *y, ctrt_tensor **ints)
{
    TRY(ctrt_uniform_(x, -1, 1));
    TRY(ctrt_normal_(y, 0, 2));
    return ctrt_randint(ints, -5, 1000, CTRT_SHAPE(DRAWN), CTRT_I64, device);
}

static void read_drawn(double out[3][DRAWN], ctrt_tensor *x, ctrt_tensor *y, ctrt_tensor *ints)
{
    CHECK_OK(ctrt_to_host(out[0], sizeof out[0], x, CTRT_F64));
    CHECK_OK(ctrt_to_host(out[1], sizeof out[1], y, CTRT_F64));
    CHECK_OK(ctrt_to_host(out[2], sizeof out[2], ints, CTRT_F64));
}

TEST(test_random, "each replay generates the random numbers that eager calls would, also between eager calls")
{
    enum { REPLAYS = 70 };                          /* more replays than can be pending at once */
    CTRT_AUTO(tensor) x = full(0, DRAWN, device), y = full(0, DRAWN, device), ints = NULL;
    CTRT_AUTO(graph) graph = NULL;
    double got[3][DRAWN], want[3][DRAWN];
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(draw(x, y, &ints));
    CHECK_OK(ctrt_capture_end(&graph, device));
    ctrt_manual_seed(11);
    for (int i = 0; i < REPLAYS; i++)
        CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_uniform_(x, 0, 1));
    CHECK_OK(ctrt_capture_replay(graph));
    read_drawn(got, x, y, ints);
    ctrt_graph_release(&graph);
    ctrt_manual_seed(11);
    for (int i = 0; i < REPLAYS; i++)
        CHECK_OK(draw(x, y, &ints));
    CHECK_OK(ctrt_uniform_(x, 0, 1));
    CHECK_OK(draw(x, y, &ints));
    read_drawn(want, x, y, ints);
    CHECK(memcmp(got, want, sizeof got) == 0, "the numbers differ");
}

/* ---- optimizers ---- */

static const struct model adamw = { .make = net_make, .input = { 5, 8 }, .classes = 4, .optimizer = ADAMW };

TEST(test_optimizer, "an optimizer without state is an error in a capture; a graph keeps a released optimizer alive; "
                     "a capture of two steps")
{
    const uint64_t before = ctrt_memory_allocated(device);
    struct training t, plain;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&t, &adamw);
    training_new(&plain, &adamw);
    batch(&t, 0);
    batch(&plain, 0);
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(step(&t), CTRT_ERR_STATE, "every replay would initialise it again");
    CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "take a step before the capture");
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(step(&t));
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_end(&graph, device));
    ctrt_optimizer_release(&t.optimizer);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ctrt_capture_replay(graph));
    for (int i = 0; i < 5; i++)
        CHECK_OK(step(&plain));
    check_equal_state(&plain, &t);
    training_end(&plain);
    training_end(&t);
    ctrt_graph_release(&graph);
    CHECK_EQ(ctrt_memory_allocated(device), before);
}

TEST(test_counts, "replay fails if step counts of the parameters differ since the capture; the graph uses a loaded "
                  "optimizer state")
{
    const char *model = "test-capture.safetensors", *state = "test-capture-state.safetensors";
    struct training t;
    char once[65], again[65];
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(tensor) gradient = NULL;
    ctrt_tensor *p = NULL;
    training_new(&t, &adamw);
    batch(&t, 0);
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_save(t.net, model));
    CHECK_OK(ctrt_optimizer_save(t.optimizer, state));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_module_sha256(once, t.net));
    CHECK_OK(ctrt_capture_replay(graph));
    /* With parameters and state restored, a replay must repeat the same step. */
    CHECK_OK(ctrt_load(t.net, model));
    CHECK_OK(ctrt_optimizer_load(t.optimizer, state));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_module_sha256(again, t.net));
    CHECK(memcmp(&once, &again, sizeof once) == 0, "the graph did not use the loaded state");
    /* A step of one parameter only. */
    CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
    CHECK_OK(ctrt_module_parameter(NULL, &p, t.net, 0));
    CHECK_OK(ctrt_zeros_like(&gradient, p, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_tensor_set_grad(p, gradient));
    CHECK_OK(ctrt_optimizer_step(t.optimizer));
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "capture it again");
    remove(model);
    remove(state);
    training_end(&t);
}

/* ---- gradient scalers ---- */

struct scaled {
    ctrt_grad_scaler *scaler;
    ctrt_optimizer *optimizer;
    ctrt_tensor *p, *g;                 /* a parameter and its gradient */
};

static struct scaled scaled_new(enum optimizer_kind kind)
{
    struct scaled s = { NULL };
    CHECK_OK(ctrt_grad_scaler_new(&s.scaler, SCALER(.growth_interval = 3)));
    CHECK_OK(training_optimizer(&s.optimizer, NULL, kind));
    CHECK_OK(ctrt_full(&s.p, CTRT_SHAPE(3), ctrt_float(1), CTRT_F32, device));
    CHECK_OK(ctrt_zeros(&s.g, CTRT_SHAPE(3), CTRT_F32, device));
    CHECK_OK(ctrt_optimizer_add(s.optimizer, &s.p, 1));
    return s;
}

static void scaled_free(struct scaled *s)
{
    ctrt_grad_scaler_release(&s->scaler);
    ctrt_optimizer_release(&s->optimizer);
    ctrt_tensor_release(&s->p);
    ctrt_tensor_release(&s->g);
}

static void scaled_input(struct scaled *s, int n)
{
    const float g[3] = { (float)sin(n), n % 3 == 1 ? INFINITY : 1, (float)cos(n) };
    CHECK_OK(ctrt_from_host_(s->g, g, 3, CTRT_F32));
}

static ctrt_status scaled_step(struct scaled *s)
{
    CTRT_AUTO(tensor) loss = NULL;
    TRY(ctrt_optimizer_zero_grad(s->optimizer, false));
    TRY(ctrt_mul(&loss, s->p, s->g));
    TRY(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    TRY(ctrt_grad_scaler_scale(&loss, s->scaler, loss));
    TRY(ctrt_backward(loss));
    TRY(ctrt_grad_scaler_step(s->scaler, s->optimizer));
    return ctrt_grad_scaler_update(s->scaler, 0);
}

TEST(test_scaler, "the device skips replayed steps with inf; scale, parameters and step counts are those of eager "
                  "steps")
{
    static const enum optimizer_kind kinds[] = { MOMENTUM, ADAMW, ADAGRAD, NADAM };
    EACH(kind, kinds) {
        struct scaled a = scaled_new(*kind), b = scaled_new(*kind);
        CTRT_AUTO(graph) graph = NULL;
        ctrt_grad_scaler_state eager = CTRT_GRAD_SCALER_STATE, replayed = CTRT_GRAD_SCALER_STATE;
        ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
        int64_t steps = 0;
        double want[3];
        CHECK_OK(ctrt_capture_begin(device));
        CHECK_FAILS(scaled_step(&b), CTRT_ERR_STATE, "scale a loss before the capture");
        CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "scale a loss before the capture");
        for (int n = 0; n < 12; n++) {
            scaled_input(&a, n);
            scaled_input(&b, n);
            if (n == 2) {
                CHECK_OK(ctrt_capture_begin(device));
                CHECK_OK(scaled_step(&b));
                CHECK_OK(ctrt_capture_end(&graph, device));
            }
            if (n == 8) {
                CHECK_OK(ctrt_optimizer_set_lr(a.optimizer, 0.02));
                CHECK_OK(ctrt_optimizer_set_lr(b.optimizer, 0.02));
            }
            CHECK_OK(scaled_step(&a));
            CHECK_OK(n < 2 ? scaled_step(&b) : ctrt_capture_replay(graph));
        }
        CHECK_OK(ctrt_to_host(want, sizeof want, a.p, CTRT_F64));
        CHECK_OK(ctrt_grad_scaler_get_state(&eager, a.scaler));
        CHECK_OK(ctrt_grad_scaler_get_state(&replayed, b.scaler));
        check_values_within("parameter", __LINE__, b.p, want, 3, *kind == MOMENTUM ? 0 : 1e-6);
        CHECK_EQ(replayed.scale, eager.scale);
        CHECK_EQ(replayed.growth_tracker, eager.growth_tracker);
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, b.optimizer, 0));
        CHECK_EQ(steps, 8);
        /* Since the capture, the scaler's steps have another parameter too; then, steps without the scaler. */
        CHECK_OK(ctrt_optimizer_add(b.optimizer, &a.p, 1));
        CHECK_OK(scaled_step(&b));
        CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "steps of a gradient scaler have updated other");
        CHECK_OK(ctrt_optimizer_step(a.optimizer));
        CHECK_OK(ctrt_capture_begin(device));
        CHECK_OK(ctrt_optimizer_step(a.optimizer));
        CHECK_OK(ctrt_capture_end(&graph, device));
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(scaled_step(&a));
        CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "steps were made with a gradient scaler");
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, a.optimizer, 0));    /* counts the skipped steps */
        CHECK_OK(ctrt_capture_replay(graph));
        scaled_free(&a);
        scaled_free(&b);
    }
}

/* ---- errors and threads ---- */

TEST(test_refused, "no synchronization, dry run or generator change in a capture; autograd detects that a replay "
                   "wrote a saved tensor")
{
    CTRT_AUTO(tensor) w = full(1, 4, device), loss = NULL, at = NULL;
    CTRT_AUTO(graph) graph = NULL;
    ctrt_dry_run *dryrun = NULL;
    double value = 0;
    CHECK_OK(ctrt_select(&at, w, 0, 0));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_capture_begin(device), CTRT_ERR_STATE, "already being captured");
    CHECK_OK(ctrt_mul_scalar_(w, ctrt_float(2)));
    CHECK_FAILS(ctrt_item(&value, at), CTRT_ERR_STATE, "is being captured");
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_STATE, "is being captured");
    CHECK_FAILS(ctrt_dry_run_begin(&dryrun, device), CTRT_ERR_STATE, "a capture is running on");
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "is not being captured");
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_mul(&loss, w, w));
    CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_FAILS(ctrt_backward(loss), CTRT_ERR_AUTOGRAD, "");
    ctrt_tensor_release(&loss);
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "a dry run is running on");
    CHECK_OK(ctrt_dry_run_end(NULL, &dryrun));
    ctrt_graph_release(&graph);
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_generator_set(device, 1, 0), CTRT_ERR_STATE, "before a replay");
    CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "generator");
}

static atomic_bool enough;

/* Uses the default stream continuously, with temporary memory for packing a copy. */
static void *busy(void *x)
{
    CTRT_AUTO(tensor) y = NULL;
    float out[64 * 64];
    while (!atomic_load(&enough))
        if (ctrt_transpose(&y, x, 0, 1) == CTRT_OK)
            (void)ctrt_to_host(out, sizeof out, y, CTRT_F32);       /* fails while a capture is running */
    return NULL;
}

TEST(test_other_thread, "another thread on the same stream can make a capture fail and has no other effect")
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_AUTO(stream) stream = NULL;
    pthread_t thread;
    double got = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(64, 64), CTRT_F32, device));
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_EQ(pthread_create(&thread, NULL, busy, x), 0);
    for (int i = 0; i < 60; i++) {
        CTRT_AUTO(graph) graph = NULL;
        if (ctrt_capture_begin(device) != CTRT_OK)
            continue;
        (void)ctrt_add(&y, x, x);
        (void)ctrt_capture_end(&graph, device);
        ctrt_tensor_release(&y);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    CHECK_OK(ctrt_stream_reset(stream));
    CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&got, y));
    CHECK_EQ(got, 4096);
}

TEST_MAIN
{
    group("the device opens");
    return CHECK(argc == 2, "usage: test-capture DEVICE") && CHECK_OK(ctrt_device_get(&device, argv[1])) ? run_tests()
                                                                                                         : done();
}
