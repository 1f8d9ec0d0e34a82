/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the memory policy `spill` on simulated devices. After a queue failed and dropped its copies, no tensor may lose
 * its value, and no other stream may read memory whose copy was dropped. Also tests statistics, snapshots, training
 * that needs more memory than the device has, and several threads. */
#include <math.h>

#include "calls.h"
#include "spill_check.h"
#include "dryrun_models.h"

#define ALL 20                          /* tensors: 16 on the device and 4 on the host */

static void make(int count, ctrt_device *device)
{
    int made;
    CHECK_OK(make_tensors(&made, count, device));
    CHECK_OK(ctrt_device_synchronize(device));
}

/* Makes the current stream fail: the op enqueued here fails when it runs. */
static void break_stream(int victim)
{
    CHECK_OK(sim->inject(0, "op:1"));
    CHECK_OK(ctrt_add_(tensors[victim], tensors[victim]));
}

/* Checks that the default stream has failed, and resets it. */
static void reset(ctrt_device *device)
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_EQ(ctrt_device_synchronize(device), CTRT_ERR_BACKEND);
    CHECK_OK(sim->clear(0));
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_OK(ctrt_stream_reset(stream));
}

static void copy_out_dropped(ctrt_device *device)
{
    CTRT_AUTO(tensor) more = NULL;
    make(16, device);
    break_stream(15);
    CHECK_FAILS(ctrt_full(&more, CTRT_SHAPE(N), ctrt_float(1), CTRT_F32, device), CTRT_ERR_BACKEND,
                "cannot be moved from sim:0");
    reset(device);
    check_values_kept(15, "spilling to the host failed");
    CHECK_OK(ctrt_full(&more, CTRT_SHAPE(N), ctrt_float(1), CTRT_F32, device));
    check_values_kept(15, "spilled after the reset");
}

/* Uses tensor 0, which is on the host, on a failed stream. The device has memory, but the copy back is dropped. */
static void drop_copy_back(ctrt_device *device, ctrt_tensor **read)
{
    make(ALL, device);
    release_tensors(17);
    CHECK_OK(ctrt_device_synchronize(device));
    const uint64_t copies = sim_read(0).copies[CTRT_COPY_TO_HOST];
    break_stream(16);
    if (read == NULL)
        CHECK_OK(ctrt_add_(tensors[0], tensors[0]));
    else
        CHECK_OK(ctrt_neg(read, tensors[0]));
    CHECK_EQ(sim_read(0).copies[CTRT_COPY_TO_HOST], copies);    /* nothing was spilled for it */
}

static void copy_back_dropped(ctrt_device *device)
{
    drop_copy_back(device, NULL);
    reset(device);
    check_values_kept(16, "the copy back was dropped");
}

/* After the dropped copy, other allocations spill the block again before its value was used. */
static void copy_back_dropped_and_spilled(ctrt_device *device)
{
    ctrt_tensor *more[12] = { NULL };
    drop_copy_back(device, NULL);
    reset(device);
    for (int i = 1; i < 16; i++)
        CHECK_OK(ctrt_mul_scalar_(tensors[i], ctrt_float(1)));
    for (int i = 0; i < 12; i++)
        more[i] = full(-1, N, device);
    check_values_kept(16, "spilled again after a dropped copy");
    for (int i = 0; i < 12; i++)
        ctrt_tensor_release(&more[i]);
}

static void read_by_another_stream(ctrt_device *device)
{
    CTRT_AUTO(stream) other = NULL;
    CTRT_AUTO(tensor) read = NULL, y = NULL, a = NULL, b = NULL;
    CHECK_OK(ctrt_stream_new(&other, device, 0));
    CHECK_OK(ctrt_stream_push(other));
    a = full(50, N, device);
    b = full(51, N, device);
    CHECK_OK(ctrt_stream_pop());
    drop_copy_back(device, &read);
    CHECK_OK(ctrt_stream_push(other));
    /* Blocks of the failed stream cannot be spilled to free memory for the result, but those of `other` can. */
    CHECK_OK(ctrt_neg(&y, tensors[0]));
    check_value(y, -1, "read on a stream that has not failed");
    CHECK_OK(ctrt_stream_pop());
    reset(device);
    check_values_kept(16, "after the reset");
    check_value(a, 50, "tensor of the other stream");
    check_value(b, 51, "tensor of the other stream");
}

/* Tensors are copied back and modified before the stream fails. The modifications must remain. */
static void fails_after_copies(ctrt_device *device)
{
    make(ALL, device);
    for (int i = 0; i < 16; i++)
        CHECK_OK(ctrt_mul_scalar_(tensors[i], ctrt_float(2)));
    CHECK_OK(ctrt_add_(tensors[0], tensors[0]));
    break_stream(16);
    reset(device);
    for (int i = 0; i < 16; i++)
        check_value(tensors[i], (i + 1) * (i == 0 ? 4 : 2), "modified before the failure");
}

/* Four tensors do not fit and are spilled, one is copied back in exchange for another one, then all are released. */
static void statistics(ctrt_device *device)
{
    const int64_t mib = MIB;
    make(ALL, device);
    CHECK_STATS(device, { "spilled.current", 4 }, { "spilled.peak", 4 }, { "spilled.allocated", 4 },
                { "spilled.freed", 0 }, { "spilled_bytes.current", 4 * mib }, { "spilled_bytes.peak", 4 * mib },
                { "spilled_bytes.allocated", 4 * mib }, { "spilled_bytes.freed", 0 });
    CHECK_OK(ctrt_mul_scalar_(tensors[0], ctrt_float(1)));
    /* the peak is 5 because one tensor is spilled before the other one is back */
    CHECK_STATS(device, { "spilled.current", 4 }, { "spilled.peak", 5 }, { "spilled.allocated", 5 },
                { "spilled.freed", 1 }, { "spilled_bytes.current", 4 * mib }, { "spilled_bytes.peak", 5 * mib },
                { "spilled_bytes.allocated", 5 * mib }, { "spilled_bytes.freed", mib });
    release_tensors(0);
    CHECK_STATS(device, { "spilled.current", 0 }, { "spilled.peak", 5 }, { "spilled.freed", 5 },
                { "spilled_bytes.current", 0 }, { "spilled_bytes.freed", 5 * mib });
    char *text = NULL;
    CHECK_OK(ctrt_memory_summary(&text, device, true));
    CHECK_HAS(text, "Memory on the host");
    free(text);
}

/* The snapshot's segments and blocks come from the lower policy, the labels of their owners from spill. */
static void snapshot_labels(ctrt_device *device)
{
    CHECK_OK(ctrt_memory_label_push("mine"));
    make(ALL, device);
    CHECK_OK(ctrt_memory_label_pop());
    const char *text = snapshot_of(device);
    const char *from = strstr(text, "\"segments\""), *to = strstr(text, "\"device_traces\"");
    if (CHECK(from != NULL && to != NULL, "no segments")) {
        const int active = count_of(from, "\"active_allocated\"") - count_of(to, "\"active_allocated\"");
        CHECK(active >= 14 && active <= 16, "%d blocks on the device", active);
        CHECK_EQ(count_of(from, "\"label\": \"mine\"") - count_of(to, "\"label\": \"mine\""), active);
    }
}

/* ---- training ---- */

/* PART: MiB of an activation, which are ROWS * WIDTH floats. */
enum { STEPS = SANITIZED ? 2 : 4, PART = SANITIZED ? 1 : 4, WIDTH = 16, ROWS = PART * (1 << 20) / (WIDTH * 4) };
#define TOWER_MEMORY "CTRT_SIM=devices=2,poison=yes,jitter=20us,memory=256m/"

#define PAIR  CTRT_NEW(linear, WIDTH, WIDTH, true, device), CTRT_NEW(gelu, false)
#define PAIRS PAIR, PAIR, PAIR, PAIR, PAIR, PAIR
/* 24 saved activations. */
MODEL(tower, PAIRS, PAIRS, CTRT_NEW(linear, WIDTH, 10, true, device))

/* Returns the number of bytes that were copied to the host. */
static uint64_t train_on(double losses[STEPS], int index, enum optimizer_kind optimizer, bool streams)
{
    const struct model model = { "tower", tower_make, { ROWS, WIDTH }, 10, false, STEP, optimizer, false };
    ctrt_device *device = sim_open(index == 0 ? "sim:0" : "sim:1");
    const uint64_t before = sim_read(index).copy_bytes[CTRT_COPY_TO_HOST];
    CHECK_OK(training_run(losses, STEPS, &model, device, streams));
    const uint64_t copied = sim_read(index).copy_bytes[CTRT_COPY_TO_HOST] - before;
    CHECK_EQ(sim_read(index).failures, 0);
    check_empty(device, index, "after the training");
    return copied;
}

static void test_training(const char *policy, enum optimizer_kind optimizer, bool streams)
{
    if (SANITIZED && !streams)          /* slow; the case with most threads is enough */
        return;
    group("%d MiB are trained on a device of %d MiB: %s, %s, %s", 24 * PART, 16 * PART, policy,
          optimizer == ADAMW ? "adamw" : "sgd", streams ? "three streams" : "one stream");
    IN_CHILD(SANITIZED ? TOWER_MEMORY "16m" : TOWER_MEMORY "64m", policy) {
        double want[STEPS], got[STEPS];
        CHECK_EQ(train_on(want, 0, optimizer, streams), STEPS * sizeof(float));         /* the losses */
        CHECK_TRUE(sim_read(0).peak_bytes >= 24 * PART * MIB);
        CHECK(isfinite(want[0]) && want[STEPS - 1] < want[0], "the loss went from %g to %g", want[0], want[STEPS - 1]);
        const uint64_t copied = train_on(got, 1, optimizer, streams);
        CHECK(copied >= 8 * PART * MIB * STEPS, "%llu bytes were copied to the host, expected at least %d MiB per step",
              (unsigned long long)copied, 8 * PART);
        for (int step = 0; step < STEPS; step++)
            CHECK_EQ(got[step], want[step]);
    }
}

/* ---- several threads ---- */

/* The threads have their own streams. Their tensors need twice the memory of the devices; all threads read some
 * tensors, and others are copied between devices. */
#define THREADS 4
#define OWN     24                          /* tensors per thread */
#define SHARED  8
#define HALF    (N / 2)                     /* elements: half a MiB */
#define ROUNDS  (SANITIZED ? 30 : 80)

static ctrt_device *devices[2];
static ctrt_tensor *shared[SHARED];         /* every element of tensor i is 100 + i */

struct worker {
    uint64_t random;
    ctrt_tensor *own[OWN];
    double value[OWN];                      /* value of every element */
    float got[HALF];
};

static int pick(struct worker *w, int n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((w->random >> 33) % (uint64_t)n);
}

/* Checks that every element is `value`. */
static ctrt_status verify(struct worker *w, ctrt_tensor *x, double value, const char *what)
{
    CTRT_TRY(ctrt_to_host(w->got, sizeof w->got, x, CTRT_F32));
    for (int i = 0; i < HALF; i++)
        if (w->got[i] != (float)value)
            return ctrt_fail(CTRT_ERR_STATE, "%s: element %d is %g, not %g", what, i, w->got[i], value);
    return CTRT_OK;
}

static ctrt_status one_round(struct worker *w, ctrt_device *here, ctrt_device *there)
{
    const int a = pick(w, OWN), b = pick(w, OWN), c = pick(w, OWN), s = pick(w, SHARED);
    CTRT_AUTO(tensor) x = NULL;
    switch (pick(w, 6)) {
    case 0:
        CTRT_TRY(ctrt_add(&w->own[c], w->own[a], w->own[b]));
        w->value[c] = w->value[a] + w->value[b];
        break;
    case 1:
        CTRT_TRY(ctrt_add_(w->own[a], shared[s]));
        w->value[a] += 100 + s;
        break;
    case 2:
        CTRT_TRY(ctrt_full(&w->own[a], CTRT_SHAPE(HALF), ctrt_float(b), CTRT_F32, here));
        w->value[a] = b;
        break;
    case 3:
        TRY(ctrt_to_device(&x, w->own[a], there));
        TRY(ctrt_to_device(&w->own[b], x, here));
        w->value[b] = w->value[a];
        break;
    case 4:
        CTRT_TRY(verify(w, shared[s], 100 + s, "a shared tensor"));
        break;
    default:
        CTRT_TRY(verify(w, w->own[a], w->value[a], "a tensor of its own"));
    }
    if (w->value[c] > 1e6) {                /* keeps float sums exact */
        CTRT_TRY(ctrt_full(&w->own[c], CTRT_SHAPE(HALF), ctrt_float(1), CTRT_F32, here));
        w->value[c] = 1;
    }
    return CTRT_OK;
}

static ctrt_status work(struct worker *w)
{
    ctrt_device *here = devices[0], *there = devices[1];
    CTRT_AUTO(stream) stream = NULL;
    TRY(ctrt_stream_new(&stream, here, 0));
    TRY(ctrt_stream_set_current(stream));
    for (int i = 0; i < OWN; i++) {
        CTRT_TRY(ctrt_full(&w->own[i], CTRT_SHAPE(HALF), ctrt_float(i), CTRT_F32, here));
        w->value[i] = i;
    }
    for (int round = 0; round < ROUNDS; round++)
        CTRT_TRY(one_round(w, here, there));
    for (int i = 0; i < OWN; i++)
        CTRT_TRY(verify(w, w->own[i], w->value[i], "in the end"));
    return CTRT_OK;
}

static void *start(void *argument)
{
    struct worker *w = argument;
    CHECK_OK(work(w));
    for (int i = 0; i < OWN; i++)
        ctrt_tensor_release(&w->own[i]);
    return NULL;
}

#define WHO "four threads use twice the memory of two devices"

SIM_TEST(run, WHO, "CTRT_SIM=devices=2,memory=24m/6m,poison=yes", "CTRT_MEMORY=spill+caching")
{
    static struct worker workers[THREADS];
    devices[0] = device;
    devices[1] = sim_open("sim:1");
    for (int i = 0; i < SHARED; i++)
        shared[i] = full(100 + i, HALF, devices[0]);
    for (int t = 0; t < THREADS; t++)
        workers[t].random = 77 + (uint64_t)t;
    in_threads(THREADS, start, workers, sizeof *workers);
    for (int i = 0; i < SHARED; i++) {
        CHECK_EQ(total(shared[i]), (double)HALF * (100 + i));
        ctrt_tensor_release(&shared[i]);
    }
    CHECK_TRUE(sim_read(0).copy_bytes[CTRT_COPY_TO_HOST] > 0);
    for (int d = 0; d < 2; d++) {
        CHECK_EQ(sim_read(d).failures, 0);
        check_empty(devices[d], d, "at the end");
    }
}
SIM_AGAIN(run, WHO, "CTRT_SIM=devices=2,memory=24m/6m,poison=yes,jitter=100us,seed=3",
          "CTRT_MEMORY=spill:prefetch=0+caching")
SIM_AGAIN(run, WHO, "CTRT_SIM=devices=2,memory=24m/6m,poison=yes,peers=none", "CTRT_MEMORY=spill:host=40m+direct")

TEST_MAIN
{
    static const struct { const char *what; void (*run)(ctrt_device *device); } cases[] = {
        { "the copy to the host is dropped", copy_out_dropped },
        { "the copy back is dropped", copy_back_dropped },
        { "the copy back is dropped, and the block is spilled again", copy_back_dropped_and_spilled },
        { "the copy back is dropped, and another stream reads the tensor", read_by_another_stream },
        { "the stream fails after all copies", fails_after_copies },
        { "a snapshot has the labels of the blocks' owners", snapshot_labels },
        { "statistics of spilled blocks", statistics },
    };
    static const char *const sims[] = { "CTRT_SIM=devices=1,memory=16m,poison=yes",
                                        "CTRT_SIM=devices=1,memory=16m,poison=yes,latency=1ms" };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int s = 0; s < 2; s++) {
            group("%s (%s)", cases[i].what, sims[s]);
            IN_CHILD(sims[s], "CTRT_MEMORY=spill:prefetch=0+caching") {
                ctrt_device *device = sim_open("sim:0");
                cases[i].run(device);
                release_tensors(0);
                check_empty(device, 0, cases[i].what);
            }
        }
    test_training("CTRT_MEMORY=spill+caching", MOMENTUM, false);
    test_training("CTRT_MEMORY=spill+caching", ADAMW, true);
    test_training("CTRT_MEMORY=spill:prefetch=0+caching", MOMENTUM, false);
    return run_tests();
}
