/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the memory policy `spill` when a queue fails and drops its copies: no tensor may lose its value, and no other
 * stream may read memory whose copy was dropped. Also tests its statistics and snapshots. */
#include "calls.h"
#include "spill_check.h"

#define ALL 20                          /* tensors: 16 on the device and 4 on the host */

static void make(int count, ctrt_device *device)
{
    int made;
    OK(make_tensors(&made, count, device), ctrt_device_synchronize(device));
}

/* Makes the current stream fail: the op enqueued here fails when it runs. */
static void break_stream(int victim)
{
    OK(sim->inject(0, "op:1"), ctrt_add_(tensors[victim], tensors[victim]));
}

/* Checks that the default stream has failed, and resets it. */
static void reset(ctrt_device *device)
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_EQ(ctrt_device_synchronize(device), CTRT_ERR_BACKEND);
    OK(sim->clear(0), ctrt_stream_default(&stream, device), ctrt_stream_reset(stream));
}

static void copy_out_dropped(ctrt_device *device)
{
    CTRT_AUTO(tensor) more = NULL;
    make(16, device);
    break_stream(15);
    FAILS(BACKEND, (ctrt_full(&more, CTRT_SHAPE(N), ctrt_float(1), CTRT_F32, device), "cannot be moved from sim:0"));
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
    OK(ctrt_stream_new(&other, device, 0), ctrt_stream_push(other));
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
    return done();
}
