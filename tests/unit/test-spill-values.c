/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the memory policy `spill` when a queue fails and drops its copies: no tensor may lose its value, and no other
 * stream may read memory whose copy was dropped. Also tests its statistics and snapshots. */
#include "sims.h"

#define MIB     (1 << 20)
#define N       (4 * MIB / 4)
#define TENSORS 20                            /* of 4 MiB each, on a device of 64 MiB */

static ctrt_tensor *tensors[TENSORS];

/* Creates `count` tensors. Every element of tensor i is i + 1. */
static void make(int count, ctrt_device *device)
{
    for (int i = 0; i < count; i++)
        CHECK_OK(ctrt_full(&tensors[i], CTRT_SHAPE(N), ctrt_float(i + 1), CTRT_F32, device));
    CHECK_OK(ctrt_device_synchronize(device));
}

static void check_value(ctrt_tensor *x, double want, const char *what)
{
    static float values[N];
    int wrong = 0;
    if (!CHECK_OK(ctrt_to_host(values, sizeof values, x, CTRT_F32)))
        return;
    for (int i = 0; i < N; i++)
        wrong += values[i] != (float)want;
    CHECK(wrong == 0, "%s: %d elements are not %g, the first is %g", what, wrong, want, values[0]);
}

static void check_all(int from, int to, const char *what)
{
    for (int i = from; i < to; i++)
        if (tensors[i] != NULL)
            check_value(tensors[i], i + 1, what);
}

static void reset(ctrt_device *device)
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(sim->clear(0));
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_OK(ctrt_stream_reset(stream));
}

/* Makes the current stream fail: the op enqueued here fails when it runs. */
static void break_stream(int victim)
{
    CHECK_OK(sim->inject(0, "op:1"));
    CHECK_OK(ctrt_add_(tensors[victim], tensors[victim]));
}

static void end(ctrt_device *device)
{
    for (int i = 0; i < TENSORS; i++)
        ctrt_tensor_release(&tensors[i]);
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(ctrt_memory_release_all(device));
    const sim_counters now = sim_read(0);
    CHECK(ctrt_memory_allocated(device) == 0 && now.live_bytes == 0, "%llu bytes are left",
          (unsigned long long)now.live_bytes);
    CHECK(now.host_allocs == now.host_frees && now.bad_frees == 0, "%llu pinned blocks are left, %llu bad frees",
          (unsigned long long)(now.host_allocs - now.host_frees), (unsigned long long)now.bad_frees);
}

static void out(ctrt_device *device)
{
    CTRT_AUTO(tensor) more = NULL;
    make(16, device);
    break_stream(15);
    CHECK_FAILS(ctrt_full(&more, CTRT_SHAPE(N), ctrt_float(1), CTRT_F32, device), CTRT_ERR_BACKEND,
                "cannot be moved from sim:0");
    CHECK(ctrt_device_synchronize(device) == CTRT_ERR_BACKEND, "the stream has not failed");
    reset(device);
    check_all(0, 15, "spilling to the host failed");
    CHECK_OK(ctrt_full(&more, CTRT_SHAPE(N), ctrt_float(1), CTRT_F32, device));
    check_all(0, 15, "spilled after the reset");
    ctrt_tensor_release(&more);
    end(device);
}

/* Uses tensor 0, which is on the host, on a failed stream: its copy back to the device, which has room, is dropped. */
static void bring_in_vain(ctrt_device *device, ctrt_tensor **read)
{
    make(TENSORS, device);
    for (int i = 17; i < TENSORS; i++)
        ctrt_tensor_release(&tensors[i]);
    CHECK_OK(ctrt_device_synchronize(device));
    const uint64_t copies = sim_read(0).copies[CTRT_COPY_TO_HOST];
    break_stream(16);
    if (read == NULL)
        CHECK_OK(ctrt_add_(tensors[0], tensors[0]));
    else
        CHECK_OK(ctrt_neg(read, tensors[0]));
    CHECK(sim_read(0).copies[CTRT_COPY_TO_HOST] == copies,
          "a tensor was copied to the host although the device had room");
}

static void back(ctrt_device *device)
{
    bring_in_vain(device, NULL);
    CHECK(ctrt_device_synchronize(device) == CTRT_ERR_BACKEND, "the stream has not failed");
    reset(device);
    check_all(0, 16, "the copy back was dropped");
    end(device);
}

/* After the dropped copy, other allocations spill the block again before its value was used. */
static void back_and_out(ctrt_device *device)
{
    ctrt_tensor *more[12] = { NULL };
    bring_in_vain(device, NULL);
    CHECK(ctrt_device_synchronize(device) == CTRT_ERR_BACKEND, "the stream has not failed");
    reset(device);
    for (int i = 1; i < 16; i++)
        CHECK_OK(ctrt_mul_scalar_(tensors[i], ctrt_float(1)));
    for (int i = 0; i < 12; i++)
        CHECK_OK(ctrt_full(&more[i], CTRT_SHAPE(N), ctrt_float(-1), CTRT_F32, device));
    check_all(0, 16, "spilled again after a dropped copy");
    for (int i = 0; i < 12; i++)
        ctrt_tensor_release(&more[i]);
    end(device);
}

static void beside(ctrt_device *device)
{
    CTRT_AUTO(stream) other = NULL;
    CTRT_AUTO(tensor) read = NULL, y = NULL;
    ctrt_tensor *own[2] = { NULL };
    CHECK_OK(ctrt_stream_new(&other, device, 0));
    CHECK_OK(ctrt_stream_push(other));
    for (int i = 0; i < 2; i++)
        CHECK_OK(ctrt_full(&own[i], CTRT_SHAPE(N), ctrt_float(50 + i), CTRT_F32, device));
    CHECK_OK(ctrt_stream_pop());
    bring_in_vain(device, &read);
    CHECK_OK(ctrt_stream_push(other));
    /* Blocks of the failed stream cannot be spilled to make room for the result, but those of `other` can. */
    CHECK_OK(ctrt_neg(&y, tensors[0]));
    check_value(y, -1, "read on a stream that has not failed");
    CHECK_OK(ctrt_stream_pop());
    CHECK(ctrt_device_synchronize(device) == CTRT_ERR_BACKEND, "the stream has not failed");
    reset(device);
    check_all(0, 16, "after the reset");
    for (int i = 0; i < 2; i++) {
        check_value(own[i], 50 + i, "tensor of the other stream");
        ctrt_tensor_release(&own[i]);
    }
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&read);
    end(device);
}

/* Tensors are copied back and modified before the stream fails. The modifications must remain. */
static void good_work(ctrt_device *device)
{
    make(TENSORS, device);
    for (int i = 0; i < 16; i++)
        CHECK_OK(ctrt_mul_scalar_(tensors[i], ctrt_float(2)));
    CHECK_OK(ctrt_add_(tensors[0], tensors[0]));
    break_stream(16);
    CHECK(ctrt_device_synchronize(device) == CTRT_ERR_BACKEND, "the stream has not failed");
    reset(device);
    for (int i = 0; i < 16; i++)
        check_value(tensors[i], (i + 1) * (i == 0 ? 4 : 2), "modified before the failure");
    end(device);
}

/* Four tensors do not fit and are spilled, one is copied back in exchange for another one, then all are released. */
static void figures(ctrt_device *device)
{
    int64_t blocks[4], bytes[4];
    static const char *const parts[] = { "current", "peak", "allocated", "freed" };
    /* the peak is 5 because one tensor is spilled before the other one is back */
    static const int64_t want[3][4] = { { 4, 4, 4, 0 }, { 4, 5, 5, 1 }, { 0, 5, 5, 5 } };
    for (int at = 0; at < 3; at++) {
        if (at == 0)
            make(TENSORS, device);
        else if (at == 1)
            CHECK_OK(ctrt_mul_scalar_(tensors[0], ctrt_float(1)));
        else
            for (int i = 0; i < TENSORS; i++)
                ctrt_tensor_release(&tensors[i]);
        for (int i = 0; i < 4; i++) {
            char key[64];
            snprintf(key, sizeof key, "spilled.%s", parts[i]);
            CHECK_OK(ctrt_memory_stat_get(&blocks[i], device, key));
            snprintf(key, sizeof key, "spilled_bytes.%s", parts[i]);
            CHECK_OK(ctrt_memory_stat_get(&bytes[i], device, key));
            CHECK(blocks[i] == want[at][i] && bytes[i] == want[at][i] * 4 * MIB,
                  "step %d: %s is %lld blocks, %lld bytes; expected %lld blocks", at,
                  parts[i], (long long)blocks[i], (long long)bytes[i], (long long)want[at][i]);
        }
    }
    char *text = NULL;
    CHECK_OK(ctrt_memory_summary(&text, device, true));
    CHECK(text != NULL && strstr(text, "Memory on the host") != NULL,
          "the summary has no line \"Memory on the host\": %s", text);
    free(text);
    end(device);
}

static int occurrences(const char *text, const char *end, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL && at < end; at++)
        count++;
    return count;
}

/* The snapshot's segments and blocks come from the lower policy, the labels of their owners from spill. */
static void owners(ctrt_device *device)
{
    char *text = NULL;
    CHECK_OK(ctrt_memory_label_push("mine"));
    make(TENSORS, device);
    CHECK_OK(ctrt_memory_label_pop());
    CHECK_OK(ctrt_memory_snapshot(&text, device));
    const char *from = text != NULL ? strstr(text, "\"segments\"") : NULL,
        *to = text != NULL ? strstr(text, "\"device_traces\"") : NULL;
    if (CHECK(from != NULL && to != NULL, "no segments")) {
        const int active = occurrences(from, to, "\"active_allocated\""),
            known = occurrences(from, to, "\"label\": \"mine\"");
        CHECK(active >= 14 && active <= 16 && known == active, "%d blocks on the device, %d of them with their label",
              active, known);
    }
    free(text);
    end(device);
}

TEST_MAIN
{
    static const struct { const char *what; void (*run)(ctrt_device *device); } cases[] = {
        { "the copy to the host is dropped", out },
        { "the copy back is dropped", back },
        { "the copy back is dropped, and the block leaves again", back_and_out },
        { "the copy back is dropped, and another stream reads the tensor", beside },
        { "the stream fails after all copies", good_work },
        { "a snapshot has the labels of the blocks' owners", owners },
        { "statistics of spilled blocks", figures },
    };
    static const char *const sims[] = { "CTRT_SIM=devices=1,memory=64m,poison=yes",
                                        "CTRT_SIM=devices=1,memory=64m,poison=yes,latency=1ms" };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int s = 0; s < 2; s++) {
            group("%s (%s)", cases[i].what, sims[s]);
            IN_CHILD(sims[s], "CTRT_MEMORY=spill:prefetch=0+caching") {
                cases[i].run(sim_open("sim:0"));
            }
            CHILD_END;
        }
    return done();
}
