/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the spill policy with several threads that have their own streams. Their tensors need twice the memory of
 * the devices; all threads read some tensors, and others are copied between devices. */
#include "calls.h"
#include "spill_check.h"

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
        TRY(ctrt_to_device(&x, w->own[a], there), ctrt_to_device(&w->own[b], x, here));
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
    TRY(ctrt_stream_new(&stream, here, 0), ctrt_stream_set_current(stream));
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

TESTS_MAIN
