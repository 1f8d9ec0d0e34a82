/* SPDX-License-Identifier: Apache-2.0 */
/* test-capture DEVICE: graph capture and replay on a device: bitwise equal to eager steps, memory, errors, streams. */
#include <pthread.h>

#include "tests/unit/tensors.h"

#define STEPS 6

static ctrt_device *device;

/* ---- a training step ---- */

enum optimizer { SGD, ADAMW, AMSGRAD, RMSPROP, ADAGRAD, NADAM };

struct kind {
    const char *name;
    enum optimizer optimizer;
    double dropout;
};

struct training {
    const struct kind *kind;
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y, *loss;
};

static ctrt_status optimizer_new(struct training *t)
{
    switch (t->kind->optimizer) {
    case SGD:
        return ctrt_sgd_new(&t->optimizer, t->model, &(ctrt_sgd_options){ .lr = 0.1, .momentum = 0.9 });
    case ADAMW:
        return ctrt_adamw_new(&t->optimizer, t->model, &(ctrt_adamw_options){ .lr = 0.1, .weight_decay = 0.01 });
    case AMSGRAD:       /* this and the following have no kernel; their tensor ops are captured */
        return ctrt_adamw_new(&t->optimizer, t->model, &(ctrt_adamw_options){ .lr = 0.1, .weight_decay = 0.01,
                                                                              .amsgrad = true });
    case RMSPROP:
        return ctrt_rmsprop_new(&t->optimizer, t->model, &(ctrt_rmsprop_options){ .lr = 0.1, .momentum = 0.5,
                                                                                  .centered = true });
    case ADAGRAD:
        return ctrt_adagrad_new(&t->optimizer, t->model, &(ctrt_adagrad_options){ .lr = 0.1, .lr_decay = 0.25 });
    case NADAM:
        return ctrt_nadam_new(&t->optimizer, t->model, &(ctrt_nadam_options){ .lr = 0.1, .weight_decay = 0.01,
                                                                              .decoupled_weight_decay = true });
    }
    return CTRT_ERR_INTERNAL;
}

static bool training_new(struct training *t, const struct kind *kind)
{
    *t = (struct training){ .kind = kind };
    ctrt_manual_seed(7);
    return CHECK_OK(ctrt_set_default_device(device))
           && CHECK_OK(ctrt_sequential_new(&t->model, CTRT_MODULES(CTRT_NEW(multihead_attention, 8, 2, 0, true, true,
                                                                            NULL),
                                                                   CTRT_NEW(linear, 8, 16, true, NULL),
                                                                       CTRT_NEW(layer_norm, CTRT_SHAPE(16), 0, true,
                                                                                NULL),
                                                                   CTRT_NEW(tanh), CTRT_NEW(dropout, kind->dropout),
                                                                       CTRT_NEW(linear, 16, 4, true, NULL))))
           && CHECK_OK(optimizer_new(t))
           && CHECK_OK(ctrt_zeros(&t->x, CTRT_SHAPE(5, 8), CTRT_F32, device)) &&
           CHECK_OK(ctrt_zeros(&t->y, CTRT_SHAPE(5), CTRT_I64, device));
}

static void training_free(struct training *t)
{
    ctrt_tensor_release(&t->x);
    ctrt_tensor_release(&t->y);
    ctrt_tensor_release(&t->loss);
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->model);
}

static bool batch(struct training *t, int n)
{
    float x[40];
    int64_t y[5];
    for (int i = 0; i < 40; i++)
        x[i] = (float)((i * 37 + n * 11) % 17) / 8 - 1;
    for (int i = 0; i < 5; i++)
        y[i] = (i + n) % 4;
    return CHECK_OK(ctrt_from_host_(t->x, x, 40, CTRT_F32)) && CHECK_OK(ctrt_from_host_(t->y, y, 5, CTRT_I64));
}

static ctrt_status step(struct training *t)
{
    ctrt_tensor *h = NULL;
    ctrt_status status = ctrt_optimizer_zero_grad(t->optimizer, true);
    if (status == CTRT_OK)
        status = ctrt_forward(&h, t->model, t->x);
    if (status == CTRT_OK)
        status = ctrt_cross_entropy(&t->loss, h, t->y, NULL);
    if (status == CTRT_OK)
        status = ctrt_backward(t->loss);
    if (status == CTRT_OK)
        status = ctrt_optimizer_step(t->optimizer);
    ctrt_tensor_release(&h);
    return status;
}

/* Reads all parameters into `out`; returns the number of elements. */
static size_t read_all(float *out, size_t room, struct training *t)
{
    size_t used = 0;
    for (size_t i = 0; i < ctrt_module_parameter_count(t->model); i++) {
        ctrt_tensor *p = NULL;
        CHECK_OK(ctrt_module_parameter(NULL, &p, t->model, i));
        const size_t n = (size_t)ctrt_tensor_numel(p);
        if (CHECK(used + n <= room, "too many parameters"))
            CHECK_OK(ctrt_to_host(out + used, n * sizeof *out, p, CTRT_F32));
        used += n;
    }
    return used;
}

/* Prepares step n. The first parameter requires grad only from step 1 on, so that its step count differs from that of
 * the others. The learning rate changes at step 4. */
static bool prepare(struct training *t, int n)
{
    ctrt_tensor *first = NULL;
    return batch(t, n) && CHECK_OK(ctrt_optimizer_set_lr(t->optimizer, n < 4 ? 0.1 : 0.02))
           && CHECK_OK(ctrt_module_parameter(NULL, &first, t->model, 0)) &&
           CHECK_OK(ctrt_tensor_require_grad(first, n > 0));
}

/* Runs the steps with a capture of step 2, and compares each loss with `want`. */
static void run_captured(struct training *t, const double *want)
{
    ctrt_graph *graph = NULL;
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
        if (n >= 2 && graph != NULL)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_item(&loss, t->loss));
        CHECK(loss == want[n], "step %d: loss %.9g, expected %.9g", n, loss, want[n]);
    }
    CHECK(graph == NULL || ctrt_graph_memory(graph) > 0, "the graph has no memory");
    ctrt_graph_release(&graph);
}

static void test_training(void)
{
    static const struct kind kinds[] = { { "SGD", SGD, 0 }, { "AdamW", ADAMW, 0 }, { "SGD and dropout", SGD, 0.3 },
                                         { "AdamW and dropout", ADAMW, 0.3 },
                                          { "AMSGrad", AMSGRAD, 0 }, { "RMSprop", RMSPROP, 0 },
                                          { "Adagrad", ADAGRAD, 0 }, { "NAdam", NADAM, 0.3 } };
    for (size_t k = 0; k < COUNT(kinds); k++) {
        group("replays of a captured training step with %s: parameters and losses equal those of eager steps bitwise",
              kinds[k].name);
        struct training plain, captured;
        float want[1024], got[1024];
        double losses[STEPS];
        uint64_t plain_offset = 0, offset = 0;
        if (!training_new(&plain, &kinds[k]))
            return;
        for (int n = 0; n < STEPS; n++) {
            prepare(&plain, n);
            CHECK_OK(step(&plain));
            CHECK_OK(ctrt_item(&losses[n], plain.loss));
        }
        CHECK_OK(ctrt_generator_get(device, NULL, &plain_offset));
        if (!training_new(&captured, &kinds[k]))
            return;
        run_captured(&captured, losses);
        CHECK_OK(ctrt_generator_get(device, NULL, &offset));
        CHECK(offset == plain_offset, "the generator is at %llu, expected %llu", (unsigned long long)offset,
              (unsigned long long)plain_offset);
        /* Eager steps after the release of the graph continue its step count. */
        prepare(&plain, STEPS);
        CHECK_OK(step(&plain));
        CHECK_OK(ctrt_generator_set(device, 7, plain_offset));
        prepare(&captured, STEPS);
        CHECK_OK(step(&captured));
        const size_t n = read_all(want, COUNT(want), &plain), m = read_all(got, COUNT(got), &captured);
        CHECK(n == m && memcmp(want, got, n * sizeof *want) == 0, "parameters differ");
        training_free(&plain);
        training_free(&captured);
    }
}

/* ---- memory ---- */

static void test_memory(void)
{
    group("memory of a captured step is reused within the step, kept by its graph, and freed with the graph");
    ctrt_tensor *x = NULL, *y = NULL, *held = NULL;
    ctrt_graph *graph = NULL;
    const int64_t n = 1 << 18;                      /* 1 MiB */
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(1), CTRT_F32, device));
    const uint64_t before = ctrt_memory_allocated(device);
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_add(&y, x, x));
    for (int i = 0; i < 20; i++)
        CHECK_OK(ctrt_add(&y, y, x));               /* two blocks, used alternately */
    CHECK_OK(ctrt_capture_end(&graph, device));
    const uint64_t kept = ctrt_graph_memory(graph);
    CHECK(kept >= 2u << 20 && kept <= 24u << 20, "21 results of 1 MiB take %llu bytes", (unsigned long long)kept);
    CHECK(ctrt_memory_allocated(device) == before + kept, "%llu bytes are counted for the graph's %llu",
          (unsigned long long)(ctrt_memory_allocated(device) - before), (unsigned long long)kept);
    for (int i = 1; i <= 3; i++) {
        double first = 0;
        ctrt_tensor *at = NULL;
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_capture_replay(graph));
        /* An allocation between replays must not overlap the graph's memory. */
        CHECK_OK(ctrt_full(&held, CTRT_SHAPE(n), ctrt_float(-1), CTRT_F32, device));
        CHECK_OK(ctrt_select(&at, y, 0, n - 1));
        CHECK_OK(ctrt_item(&first, at));
        CHECK(first == 22.0 * i, "%g, expected %g", first, 22.0 * i);
        ctrt_tensor_release(&at);
        ctrt_tensor_release(&held);
    }
    ctrt_graph_release(&graph);
    double last = 0;
    ctrt_tensor *at = NULL;
    CHECK_OK(ctrt_select(&at, y, 0, 0));
    CHECK_OK(ctrt_item(&last, at));
    CHECK(last == 66, "a result changed with the release of its graph: %g", last);
    ctrt_tensor_release(&at);
    ctrt_tensor_release(&y);
    CHECK(ctrt_memory_allocated(device) == before, "%lld bytes are not back",
          (long long)(ctrt_memory_allocated(device) - before));
    ctrt_tensor_release(&x);
}

/* ---- errors ---- */

static void test_refused(void)
{
    group("synchronization in a capture is an error; after the capture it works again");
    ctrt_tensor *x = NULL, *y = NULL, *at = NULL;
    ctrt_graph *graph = NULL;
    double value = 0;
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(64), ctrt_float(3), CTRT_F32, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_capture_begin(device), CTRT_ERR_STATE, "already being captured");
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_select(&at, y, 0, 0));
    CHECK_FAILS(ctrt_item(&value, at), CTRT_ERR_STATE, "is being captured");
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_STATE, "is being captured");
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_capture_replay(graph));
    ctrt_graph_release(&graph);
    CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "is not being captured");
    CHECK_OK(ctrt_uniform_(x, 0, 1));
    CHECK_OK(ctrt_device_synchronize(device));
    ctrt_tensor_release(&at);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
}

/* The kernel checks indices, even if the result has no elements. */
static void test_index(void)
{
    group("an index into slices without elements needs no synchronization in a capture, and each replay checks it");
    ctrt_tensor *x = NULL, *index = NULL, *y = NULL;
    ctrt_graph *graph = NULL;
    ctrt_stream *stream = NULL;
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
    ctrt_stream_release(&stream);
    ctrt_graph_release(&graph);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&index);
    ctrt_tensor_release(&y);
}

/* ---- streams ---- */

static void test_streams(void)
{
    group("streams that use a capture's results join it; replays are ordered with work of other streams on the same "
          "tensors");
    ctrt_stream *side = NULL, *other = NULL;
    ctrt_tensor *x = NULL, *y = NULL, *z = NULL, *copy = NULL;
    ctrt_graph *graph = NULL;
    ctrt_event *event = NULL;
    double got = 0;
    const uint64_t before = ctrt_memory_allocated(device);
    CHECK_OK(ctrt_stream_new(&side, device, 0));
    CHECK_OK(ctrt_stream_new(&other, device, 0));
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(4096), ctrt_float(1), CTRT_F32, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_stream_push(side));
    CHECK_FAILS(ctrt_mul(&z, y, y), CTRT_ERR_STATE, "make the stream join the capture first");
    CHECK_OK(ctrt_event_new(&event, device, false));
    ctrt_stream *begin = NULL;
    CHECK_OK(ctrt_stream_default(&begin, device));
    CHECK_OK(ctrt_event_record(event, begin));
    CHECK_OK(ctrt_stream_wait_event(side, event));
    CHECK_FAILS(ctrt_event_synchronize(event), CTRT_ERR_STATE, "recorded in a capture");
    CHECK_OK(ctrt_mul(&z, y, y));
    ctrt_stream_release(&begin);
    CHECK(ctrt_capture_running(device), "the other stream has not joined");
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_capture_end(&graph, device));
    for (int i = 1; i <= 5 && graph != NULL; i++) {
        ctrt_tensor *at = NULL;
        CHECK_OK(ctrt_stream_push(other));
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_stream_push(other));
        CHECK_OK(ctrt_clone(&copy, z));
        CHECK_OK(ctrt_select(&at, copy, 0, 4095));
        CHECK_OK(ctrt_item(&got, at));
        CHECK_OK(ctrt_stream_pop());
        CHECK(got == 4.0 * i * i, "%g, expected %g", got, 4.0 * i * i);
        ctrt_tensor_release(&at);
    }
    ctrt_graph_release(&graph);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_tensor_release(&copy);
    ctrt_event_release(&event);
    ctrt_stream_release(&side);
    ctrt_stream_release(&other);
    CHECK(ctrt_memory_allocated(device) == before, "%lld bytes are not back",
          (long long)(ctrt_memory_allocated(device) - before));
}

/* A result is released while another stream still reads it, and the next replay writes its memory. */
static void test_readers(void)
{
    group("a replay waits for work of other streams on released results");
    ctrt_stream *reader = NULL;
    ctrt_tensor *x = NULL, *y = NULL, *copy = NULL, *at = NULL;
    ctrt_graph *graph = NULL;
    const int64_t n = 1 << 16;
    double got = 0;
    CHECK_OK(ctrt_stream_new(&reader, device, 0));
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(1), CTRT_F32, device));
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
    CHECK_OK(ctrt_select(&at, copy, 0, n - 1));
    CHECK_OK(ctrt_item(&got, at));
    CHECK(got == 2, "%g, expected 2", got);
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "shutdown");
    ctrt_graph_release(&graph);
    ctrt_tensor_release(&at);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&copy);
    ctrt_stream_release(&reader);
}

/* ---- random numbers ---- */

static void test_random(void)
{
    group("each replay generates the random numbers that eager calls would, also between eager calls");
    enum { N = 77, REPLAYS = 70 };                  /* more replays than can be pending at once */
    ctrt_tensor *x = NULL, *y = NULL, *ints = NULL;
    ctrt_graph *graph = NULL;
    float got[2 * N], want[2 * N];
    int64_t got_ints[N], want_ints[N];
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(N), CTRT_F32, device));
    CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(N), CTRT_F32, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_uniform_(x, -1, 1));
    CHECK_OK(ctrt_normal_(y, 0, 2));
    CHECK_OK(ctrt_randint(&ints, -5, 1000, CTRT_SHAPE(N), CTRT_I64, device));
    CHECK_OK(ctrt_capture_end(&graph, device));
    ctrt_manual_seed(11);
    for (int i = 0; i < REPLAYS; i++)
        CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_uniform_(x, 0, 1));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_to_host(got, sizeof got / 2, x, CTRT_F32));
    CHECK_OK(ctrt_to_host(got + N, sizeof got / 2, y, CTRT_F32));
    CHECK_OK(ctrt_to_host(got_ints, sizeof got_ints, ints, CTRT_I64));
    ctrt_graph_release(&graph);
    ctrt_manual_seed(11);
    for (int i = 0; i <= REPLAYS; i++) {
        if (i == REPLAYS)
            CHECK_OK(ctrt_uniform_(x, 0, 1));
        CHECK_OK(ctrt_uniform_(x, -1, 1));
        CHECK_OK(ctrt_normal_(y, 0, 2));
        CHECK_OK(ctrt_randint(&ints, -5, 1000, CTRT_SHAPE(N), CTRT_I64, device));
    }
    CHECK_OK(ctrt_to_host(want, sizeof want / 2, x, CTRT_F32));
    CHECK_OK(ctrt_to_host(want + N, sizeof want / 2, y, CTRT_F32));
    CHECK_OK(ctrt_to_host(want_ints, sizeof want_ints, ints, CTRT_I64));
    CHECK(memcmp(got, want, sizeof got) == 0 && memcmp(got_ints, want_ints, sizeof got_ints) == 0,
          "the numbers differ");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&ints);
}

/* ---- optimizers ---- */

static void test_optimizer(void)
{
    group("an optimizer without state is an error in a capture; a graph keeps a released optimizer alive; a capture of "
          "two steps");
    const struct kind kind = { "AdamW", ADAMW, 0 };
    struct training t, plain;
    ctrt_graph *graph = NULL;
    float want[1024], got[1024];
    const uint64_t before = ctrt_memory_allocated(device);
    if (!training_new(&t, &kind) || !training_new(&plain, &kind))
        return;
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
    const size_t n = read_all(want, COUNT(want), &plain), m = read_all(got, COUNT(got), &t);
    CHECK(n == m && memcmp(want, got, n * sizeof *want) == 0, "parameters differ");
    training_free(&plain);
    training_free(&t);
    ctrt_graph_release(&graph);
    CHECK(ctrt_memory_allocated(device) == before, "%lld bytes are not back",
          (long long)(ctrt_memory_allocated(device) - before));
}

/* ---- interaction with autograd, dry runs and generators ---- */

static void test_versions(void)
{
    group("autograd detects that a replay wrote a saved tensor; dry runs and captures exclude each other; no generator "
          "is set in a capture");
    ctrt_tensor *w = NULL, *l = NULL;
    ctrt_graph *graph = NULL;
    ctrt_dry_run *dryrun = NULL;
    CHECK_OK(ctrt_ones(&w, CTRT_SHAPE(4), CTRT_F32, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(ctrt_mul_scalar_(w, ctrt_float(2)));
    CHECK_FAILS(ctrt_dry_run_begin(&dryrun, device), CTRT_ERR_STATE, "a capture is running on");
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_mul(&l, w, w));
    CHECK_OK(ctrt_sum(&l, l, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_FAILS(ctrt_backward(l), CTRT_ERR_AUTOGRAD, "");
    ctrt_tensor_release(&l);
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "a dry run is running on");
    CHECK_OK(ctrt_dry_run_end(NULL, &dryrun));
    ctrt_graph_release(&graph);
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_generator_set(device, 1, 0), CTRT_ERR_STATE, "before a replay");
    CHECK_FAILS(ctrt_capture_end(&graph, device), CTRT_ERR_STATE, "generator");
    ctrt_tensor_release(&w);
}

static void test_counts(void)
{
    group("replay fails if step counts of the parameters differ since the capture; the graph uses a loaded optimizer "
          "state");
    const struct kind kind = { "AdamW", ADAMW, 0 };
    const char *file = "test-capture.safetensors";
    struct training t;
    ctrt_graph *graph = NULL;
    ctrt_tensor *gradient = NULL, *p = NULL;
    float before[1024], after[1024];
    if (!training_new(&t, &kind))
        return;
    batch(&t, 0);
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_OK(step(&t));
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_optimizer_save(t.optimizer, file));
    const size_t n = read_all(before, COUNT(before), &t);
    float start[1024];
    memcpy(start, before, sizeof start);
    CHECK_OK(ctrt_capture_replay(graph));
    read_all(before, COUNT(before), &t);
    CHECK_OK(ctrt_capture_replay(graph));
    /* With parameters and state restored, a replay must repeat the same step. */
    CHECK_OK(ctrt_optimizer_load(t.optimizer, file));
    size_t used = 0;
    for (size_t i = 0; i < ctrt_module_parameter_count(t.model); i++) {
        CHECK_OK(ctrt_module_parameter(NULL, &p, t.model, i));
        ctrt_no_grad CHECK_OK(ctrt_from_host_(p, start + used, (size_t)ctrt_tensor_numel(p), CTRT_F32));
        used += (size_t)ctrt_tensor_numel(p);
    }
    CHECK_OK(ctrt_capture_replay(graph));
    read_all(after, COUNT(after), &t);
    CHECK(memcmp(before, after, n * sizeof *before) == 0, "the graph did not use the loaded state");
    /* A step of one parameter only. */
    CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
    CHECK_OK(ctrt_module_parameter(NULL, &p, t.model, 0));
    CHECK_OK(ctrt_zeros_like(&gradient, p, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_tensor_set_grad(p, gradient));
    CHECK_OK(ctrt_optimizer_step(t.optimizer));
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "capture it again");
    remove(file);
    ctrt_tensor_release(&gradient);
    ctrt_graph_release(&graph);
    training_free(&t);
}

/* A thread that uses the default stream continuously, with temporary memory for packing a copy. */
static atomic_bool enough;

static void *busy(void *argument)
{
    ctrt_tensor *x = argument, *y = NULL;
    float out[64 * 64];
    while (!atomic_load(&enough)) {
        if (ctrt_transpose(&y, x, 0, 1) == CTRT_OK)
            (void)ctrt_to_host(out, sizeof out, y, CTRT_F32);       /* fails while a capture is running */
    }
    ctrt_tensor_release(&y);
    return NULL;
}

static void test_other_thread(void)
{
    group("another thread on the same stream can make a capture fail and has no other effect");
    ctrt_tensor *x = NULL, *y = NULL;
    ctrt_graph *graph = NULL;
    ctrt_stream *stream = NULL;
    pthread_t thread;
    double got = 0;
    int made = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(64, 64), CTRT_F32, device));
    CHECK_OK(ctrt_stream_default(&stream, device));
    atomic_store(&enough, false);
    CHECK(pthread_create(&thread, NULL, busy, x) == 0, "no thread");
    for (int i = 0; i < 60; i++) {
        if (ctrt_capture_begin(device) != CTRT_OK)
            continue;
        (void)ctrt_add(&y, x, x);
        made += ctrt_capture_end(&graph, device) == CTRT_OK;
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&y);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    CHECK_OK(ctrt_stream_reset(stream));
    CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&got, y));
    CHECK(got == 4096, "%g after %d graphs, expected 4096", got, made);
    ctrt_stream_release(&stream);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
}

TEST_MAIN
{
    group("the device opens");
    if (CHECK(argc == 2, "usage: test-capture DEVICE") && CHECK_OK(ctrt_device_get(&device, argv[1]))) {
        test_training();
        test_memory();
        test_refused();
        test_index();
        test_streams();
        test_readers();
        test_random();
        test_optimizer();
        test_versions();
        test_counts();
        test_other_thread();
    }
    return done();
}
