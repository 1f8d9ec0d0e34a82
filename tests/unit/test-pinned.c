/* SPDX-License-Identifier: Apache-2.0 */
/* Tests pinned host memory: size classes, reuse, statistics, trimming, limits. */
#include "core/memory/pinned_cache.h"
#include "core/stream/stream.h"

#include "calls.h"
#include "memory_checks.h"
#include "sims.h"

TEST(test_classes, "size classes waste at most 12.5 %")
{
    static const struct { size_t bytes, granted; } golden[] = {
        { 1, 64 }, { 64, 64 }, { 65, 128 }, { 512, 512 }, { 513, 576 }, { 1000, 1024 }, { 1024, 1024 }, { 1025, 1152 },
        { 4096, 4096 }, { 4097, 4608 }, { 1 << 20, 1 << 20 }, { (1 << 20) + 1, (1 << 20) + (1 << 17) },
    };
    EACH(c, golden)
        CHECK_EQ(pinned_round(c->bytes), c->granted);
    double worst = 0;
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes += 1 + bytes / 97) {
        const size_t granted = pinned_round(bytes);
        CHECK(granted >= bytes && pinned_round(granted) == granted, "%zu bytes get %zu", bytes, granted);
        if (bytes > 512 && (double)(granted - bytes) / (double)granted > worst)
            worst = (double)(granted - bytes) / (double)granted;
    }
    CHECK(worst <= 0.125, "%.2f %% of a block are not used", 100 * worst);
}

/* Work of a stream that lasts until the test ends it, however slow the machine is. */
static void last(void *ended)
{
    while (!atomic_load((atomic_bool *)ended))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

SIM_TEST(reuse, "a block is reused, but not while a device copies from it; unused blocks are freed",
         "CTRT_SIM=devices=1")
{
    atomic_bool ended = false;
    CTRT_AUTO(tensor) a = NULL, b = NULL, there = NULL;
    bool left = false;
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1000), CTRT_F32, device));
    void *place = ctrt_tensor_data(a);
    ctrt_tensor_release(&a);
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1010), CTRT_F32, device));        /* same size class */
    CHECK_TRUE(ctrt_tensor_data(a) == place);
    CHECK_OK(ctrt_fill_(a, ctrt_float(2)));
    CHECK_OK(device->backend->queue->host_call(device->handle, stream_here(device)->queue, last, &ended));
    CHECK_OK(ctrt_to_non_blocking(&there, a, device, &left));
    CHECK_TRUE(left);                               /* the copy is asynchronous */
    ctrt_tensor_release(&a);
    CHECK_OK(ctrt_empty_pinned(&b, CTRT_SHAPE(1010), CTRT_F32, device));
    CHECK(ctrt_tensor_data(b) != place, "the block was reused while the device reads it");
    CHECK_STATS(device, { "host.active_requests.current", 1 }, { "host.active_requests.peak", 1 },
                { "host.active_requests.allocated", 3 }, { "host.active_requests.freed", 2 },
                { "host.active_bytes.current", 4096 }, { "host.active_bytes.peak", 4096 },
                { "host.active_bytes.allocated", 3 * 4096 }, { "host.active_bytes.freed", 2 * 4096 },
                { "host.allocations.current", 2 }, { "host.allocated_bytes.current", 8192 },
                { "host.allocated_bytes.peak", 8192 }, { "host.allocated_bytes.freed", 0 },
                { "host.num_host_alloc", 2 }, { "host.num_host_free", 0 }, { "host.host_alloc_time.count", 2 },
                { "host.host_free_time.count", 0 }, { "host.host_free_time.max", 0 });
    static const char *const times[] = { "min", "avg", "max", "total" };
    for (size_t i = 0, last = 0; i < COUNT(times); i++) {
        char key[64];
        snprintf(key, sizeof key, "host.host_alloc_time.%s", times[i]);
        const size_t time = (size_t)stat_of(device, key);
        CHECK(time >= last, "%s is %zu, the one before %zu", key, time, last);
        last = time;
    }
    atomic_store(&ended, true);
    CHECK_EQ(total(there), 2020);
    ctrt_tensor_release(&b);
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1010), CTRT_F32, device));
    CHECK_STAT(device, "host.num_host_alloc", 2);
    ctrt_tensor_release(&a);
    pinned_trim(device);
    CHECK_STATS(device, { "host.allocations.current", 0 }, { "host.allocated_bytes.current", 0 },
                { "host.num_host_free", 2 }, { "host.allocations.freed", 2 },
                { "host.allocated_bytes.peak", 8192 });
    ctrt_memory_reset_peak(device);
    CHECK_STAT(device, "host.allocated_bytes.peak", 0);
    CHECK_EQ(sim_read(0).host_bytes, 0);
}

/* ---- limits shared with device memory ---- */

static void metrics_have(const char *name, uint64_t bytes)
{
    char line[128];
    snprintf(line, sizeof line, "ctrt_memory_%s_bytes{device=\"sim:0\",policy=\"caching\"} %llu\n", name,
             (unsigned long long)bytes);
    CHECK_HAS(metrics_as(CTRT_METRICS_PROMETHEUS), line);
}

SIM_TEST(limit, "a limit covers pinned and device memory, which free each other's unused blocks",
         "CTRT_SIM=devices=1,memory=64m", "CTRT_MEMORY_LIMIT=sim=32m")
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, more = NULL;
    /* These 20 MiB stay cached after the release. */
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(5 << 20), CTRT_F32, device));
    ctrt_tensor_release(&a);
    CHECK_EQ(pinned_held(device), 20 * MIB);
    CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(5 << 20), CTRT_F32, device));
    CHECK_EQ(pinned_held(device), 0);
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(2 << 20), CTRT_F32, device));         /* 28 of 32 MiB are in use */
    metrics_have("limit", 32 * MIB);
    metrics_have("pinned", 8 * MIB);
    metrics_have("reserved", 20 * MIB);
    CHECK_FAILS(ctrt_empty_pinned(&more, CTRT_SHAPE(2 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                "32.00 MiB allowed");
    CHECK_FAILS(ctrt_empty(&more, CTRT_SHAPE(2 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "32.00 MiB allowed");
    ctrt_tensor_release(&a);
    ctrt_tensor_release(&b);
    CHECK_EQ(ctrt_memory_reserved(device), 20 * MIB);
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(5 << 20), CTRT_F32, device));
    CHECK_EQ(ctrt_memory_reserved(device), 0);
    ctrt_tensor_release(&a);
    /* Without a limit the two kinds do not free each other's blocks. */
    CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
    CHECK_FAILS(ctrt_empty(&b, CTRT_SHAPE(80 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, NULL);
    CHECK_EQ(pinned_held(device), 20 * MIB);
}

SIM_TEST(out_of_memory, "out of pinned memory is reported like out of device memory", "CTRT_SIM=devices=1,pinned=1m")
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    ctrt_memory_set_oom_callback(note_oom, NULL);
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(200 * 1024), CTRT_F32, device));
    CHECK_FAILS(ctrt_empty_pinned(&b, CTRT_SHAPE(100 * 1024), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                "out of memory on sim:0: 416.00 KiB of pinned host memory requested");
    CHECK_HAS(ctrt_error_message(), "Release pinned tensors");
    CHECK_HAS(ctrt_error_message(), "832.00 KiB of the host pinned");
    CHECK_EQ(oom_noted.calls, 1);
    CHECK_EQ(oom_noted.bytes, 416 * KIB);
    CHECK_HAS(oom_noted.report, "\"kind\": \"pinned\"");
    CHECK_HAS(oom_noted.report, "\"pinned\": 851968");
    CHECK_STR(last_oom_of(device), oom_noted.report);
    CHECK_STAT(device, "num_ooms", 1);
    CHECK_OK(ctrt_memory_set_limit(device, 1 << 20));
    CHECK_FAILS(ctrt_empty_pinned(&b, CTRT_SHAPE(100 * 1024), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                "The device has enough free memory: raise the limit of 1.00 MiB");
    CHECK_HAS(oom_noted.report, "\"refused_by_limit\": true");
    CHECK_STAT(device, "num_oom_rejections", 1);
    /* Unused blocks are freed, and the allocation is tried again. */
    ctrt_tensor_release(&a);
    CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
    CHECK_OK(ctrt_empty_pinned(&b, CTRT_SHAPE(100 * 1024), CTRT_F32, device));
    CHECK_OK(sim->inject(0, "host:1"));
    CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(5000), CTRT_F32, device));
    ctrt_tensor_release(&a);
    CHECK_OK(sim->inject(0, "host:1+"));
    CHECK_FAILS(ctrt_empty_pinned(&a, CTRT_SHAPE(9000), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "pinned");
}

TESTS_MAIN
