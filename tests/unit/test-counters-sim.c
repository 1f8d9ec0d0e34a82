/* SPDX-License-Identifier: Apache-2.0 */
/* Memory accounting on simulated devices, through the public API. Tests owners, limits with pinned memory, leak reports
 * by label, and that all memory is released. */
#include "ctrt/memory.h"
#include "ctrt/stream.h"
#include "sims.h"

#define MIB ((size_t)1 << 20)

static int64_t stat_of(ctrt_device *device, const char *key)
{
    int64_t value = -1;
    CHECK_OK(ctrt_memory_stat_get(&value, device, key));
    return value;
}

static uint64_t free_on(ctrt_device *device)
{
    uint64_t left = 0, total = 0;
    CHECK_OK(ctrt_device_memory_info(device, &left, &total));
    return left;
}

static ctrt_status take(ctrt_tensor **out, const char *label, size_t bytes, ctrt_device *device)
{
    CTRT_TRY(ctrt_memory_label_push(label));
    ctrt_status status = ctrt_empty(out, CTRT_SHAPE((int64_t)(bytes / 4)), CTRT_F32, device);
    CTRT_TRY(ctrt_memory_label_pop());
    return status;
}

static void test_owners(void)
{
    group("an asynchronous device counts memory by owner (op or label) without a setting");
    IN_CHILD("CTRT_SIM=devices=2,memory=64m") {
        ctrt_device *device = sim_open("sim:1");
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        ctrt_memory_owner *owners = NULL;
        size_t count = 0;
        uint64_t sum = 0, added = 0;
        CHECK_OK(take(&x, "input", 4 * MIB, device));
        CHECK_OK(ctrt_add(&y, x, x));
        CHECK_OK(ctrt_memory_owners(&owners, &count, device));
        for (size_t i = 0; i < count; i++) {
            sum += owners[i].bytes;
            if (strcmp(owners[i].op, "add") == 0)
                added += owners[i].bytes;
        }
        CHECK(sum == ctrt_memory_allocated(device) && added >= 4 * MIB, "owners have %llu bytes, add %llu",
              (unsigned long long)sum, (unsigned long long)added);
        free(owners);
    }
    CHILD_END;
}

#define CHECK_BYTES(got, want)                                                                                  \
    CHECK((uint64_t)(got) == (uint64_t)(want), "%s is %llu, expected %llu", #got, (unsigned long long)(got),    \
          (unsigned long long)(want))

/* Sizes and statistics equal PyTorch's. */
static void test_known_numbers(void)
{
    group("two f32 values take 512 bytes and reserve 2 MiB until the cache is emptied");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
        const uint64_t whole = free_on(device);
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(2), CTRT_F32, device));
        CHECK_BYTES(ctrt_memory_allocated(device), 512);
        CHECK_BYTES(stat_of(device, "requested_bytes.all.current"), 8);
        CHECK_BYTES(ctrt_memory_reserved(device), 2 * MIB);
        CHECK_BYTES(whole - free_on(device), 2 * MIB);
        CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(3 << 18), CTRT_F32, device));        /* 3 MiB of a segment of 20 */
        CHECK_BYTES(ctrt_memory_allocated(device), 512 + 3 * MIB);
        CHECK_BYTES(ctrt_memory_reserved(device), 22 * MIB);
        ctrt_tensor_release(&y);
        CHECK_BYTES(ctrt_memory_allocated(device), 512);
        CHECK_BYTES(ctrt_memory_reserved(device), 22 * MIB);
        CHECK_BYTES(ctrt_memory_max_allocated(device), 512 + 3 * MIB);
        CHECK_OK(ctrt_memory_empty_cache(device));                              /* the small segment has a live block */
        CHECK_BYTES(ctrt_memory_reserved(device), 2 * MIB);
        CHECK_BYTES(whole - free_on(device), 2 * MIB);
        CHECK_BYTES(ctrt_memory_max_reserved(device), 22 * MIB);
        ctrt_memory_reset_peak(device);
        CHECK_BYTES(ctrt_memory_max_reserved(device), 2 * MIB);
        CHECK_BYTES(ctrt_memory_max_allocated(device), 512);
        ctrt_tensor_release(&x);
        CHECK_BYTES(ctrt_memory_allocated(device), 0);
        CHECK_BYTES(ctrt_memory_reserved(device), 2 * MIB);
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_BYTES(free_on(device), whole);
    }
    CHILD_END;
    const char *const policies[] = { "caching", "direct", "arena", "spill+caching" };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "CTRT_MEMORY=%s", policies[i]);
        group("after a reset every peak equals the current value, in total and per pool: %s", policies[i]);
        IN_CHILD("CTRT_SIM=devices=1,memory=64m", setting) {
            ctrt_device *device = sim_open("sim:0");
            CTRT_AUTO(tensor) kept = NULL, small = NULL, large = NULL, more = NULL;
            const char *key;
            char current[64];
            int raised = 0;
            CHECK_OK(ctrt_empty(&kept, CTRT_SHAPE(100), CTRT_F32, device));
            for (int round = 0; round < 2; round++) {           /* the peaks rise again after a reset */
                CHECK_OK(ctrt_empty(&small, CTRT_SHAPE(1000), CTRT_F32, device));
                CHECK_OK(ctrt_empty(&large, CTRT_SHAPE(10 << 20), CTRT_F32, device));
                ctrt_tensor_release(&small);
                ctrt_tensor_release(&large);
                CHECK_OK(ctrt_memory_empty_cache(device));
                CHECK(stat_of(device, "reserved_bytes.large_pool.peak") >= (int64_t)(40 * MIB),
                      "round %d: the peak of reserved bytes is %lld, expected at least 40 MiB", round,
                      (long long)stat_of(device, "reserved_bytes.large_pool.peak"));
                ctrt_memory_reset_peak(device);
                for (size_t k = 0; (key = ctrt_memory_stat_key(k)) != NULL; k++) {
                    const char *dot = strstr(key, ".peak");
                    if (dot == NULL)
                        continue;
                    snprintf(current, sizeof current, "%.*s.current", (int)(dot - key), key);
                    raised += stat_of(device, current) > 0;
                    CHECK(stat_of(device, key) == stat_of(device, current), "round %d: %s is %lld, not %lld", round,
                          key, (long long)stat_of(device, key), (long long)stat_of(device, current));
                }
            }
            CHECK(raised > 0, "no current value is above 0");
        }
        CHILD_END;
    }
    group("the cache is emptied before an out-of-memory error; repeated steps make no device allocations");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(10 << 20), CTRT_F32, device));
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(15 << 20), CTRT_F32, device));
        CHECK_BYTES(ctrt_memory_reserved(device), 60 * MIB);
        CHECK_BYTES(stat_of(device, "num_ooms"), 0);
        ctrt_tensor_release(&x);
        int64_t calls = 0;
        for (int step = 0; step < 50; step++) {
            CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, device));
            CHECK_OK(ctrt_full(&y, CTRT_SHAPE(1 << 20), ctrt_float(1), CTRT_F32, device));
            CHECK_OK(ctrt_add(&y, y, y));
            ctrt_tensor_release(&x);
            ctrt_tensor_release(&y);
            if (step == 1)
                calls = stat_of(device, "num_device_alloc");
        }
        CHECK_BYTES(stat_of(device, "num_device_alloc"), calls);
        CHECK_OK(ctrt_memory_set_fraction(device, 0.5));
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(9 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "32.00 MiB allowed");
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(8 << 20), CTRT_F32, device));
    }
    CHILD_END;
    group("ten large tensors stay reserved after release until the cache is emptied");
    IN_CHILD("CTRT_SIM=devices=1,memory=16g") {
        ctrt_device *device = sim_open("sim:0");
        ctrt_tensor *list[10] = { NULL };
        const uint64_t whole = free_on(device);
        for (int i = 0; i < 10; i++)
            CHECK_OK(ctrt_empty(&list[i], CTRT_SHAPE(10000000, 10), CTRT_F32, device));
        CHECK_BYTES(ctrt_memory_allocated(device), 4005560320);               /* ten blocks of 400556032 bytes */
        CHECK_BYTES(whole - free_on(device), 4005560320);
        for (int i = 0; i < 10; i++)
            ctrt_tensor_release(&list[i]);
        CHECK_BYTES(whole - free_on(device), 4005560320);
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_BYTES(free_on(device), whole);
    }
    CHILD_END;
}

static void test_leak(void)
{
    group("the out-of-memory report names the leaking label first, and the program can continue");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = sim_open("sim:0");
        ctrt_tensor *kept[64] = { NULL }, *batch = NULL;
        char *report = NULL;
        ctrt_status status = CTRT_OK;
        int steps = 0;
        for (; steps < 64 && status == CTRT_OK; steps++) {
            status = take(&batch, "data", 6 * MIB, device);
            if (status == CTRT_OK)
                status = take(&kept[steps], "losses", 3 * MIB, device);
        }
        CHECK(status == CTRT_ERR_OUT_OF_MEMORY && strstr(ctrt_error_message(), "Most is held by losses"),
              "status %d, message: %s", (int)status, ctrt_error_message());
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        const char *first = report != NULL ? strstr(report, "\"owners\": [\n    {\"label\": ") : NULL;
        CHECK(first != NULL && strncmp(strstr(first, "label"), "label\": \"losses\"", 14) == 0,
              "the first owner is not losses: %s", report);
        free(report);
        for (int i = 0; i < 64; i++)
            ctrt_tensor_release(&kept[i]);
        CHECK_OK(take(&kept[0], "after", 30 * MIB, device));
        ctrt_tensor_release(&kept[0]);
        ctrt_tensor_release(&batch);
        CHECK_OK(ctrt_memory_release_all(device));
        uint64_t left, total;
        CHECK_OK(ctrt_device_memory_info(device, &left, &total));
        CHECK(left == total && ctrt_memory_reserved(device) == 0, "%llu bytes were not freed",
              (unsigned long long)(total - left));
    }
    CHILD_END;
}

static void test_ops(void)
{
    group("a report names the op that requested memory and the op that created each block");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) row = NULL, column = NULL, y = NULL, made = NULL;
        char *report = NULL;
        CHECK_OK(ctrt_zeros(&row, CTRT_SHAPE(1, 1 << 13), CTRT_F32, device));
        CHECK_OK(ctrt_zeros(&column, CTRT_SHAPE(1 << 12, 1), CTRT_F32, device));
        CHECK_OK(ctrt_exp(&made, row));
        CHECK_FAILS(ctrt_add(&y, row, column), CTRT_ERR_OUT_OF_MEMORY, "add");
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        CHECK(report != NULL && strstr(report, "\"op\": \"add\",\n  \"advice\"") != NULL,
              "the report does not name the requesting op add: %s", report);
        CHECK(report != NULL && strstr(report, "\"op\": \"exp\"") != NULL,
              "the report does not name the creating op exp: %s", report);
        free(report);
        CHECK_FAILS(ctrt_matmul(&y, column, row), CTRT_ERR_OUT_OF_MEMORY, "matmul");
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        CHECK(report != NULL && strstr(report, "\"op\": \"matmul\",\n  \"advice\"") != NULL,
              "the report does not name the requesting op matmul: %s", report);
        free(report);
        CHECK_FAILS(ctrt_empty(&y, CTRT_SHAPE(1 << 25), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "");
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        CHECK(report != NULL && strstr(report, "\"op\": \"\",\n  \"advice\"") != NULL, "the report names an op: %s",
              report);
        free(report);
    }
    CHILD_END;
}

/* Advice for a full device and for fragmented free memory, under each policy. */
static void test_advice(void)
{
    static const struct { const char *policy, *gaps, *full; } policies[] = {
        { "CTRT_MEMORY=caching", "CTRT_MEMORY=caching:expandable=true makes",
          "move idle blocks to the host (CTRT_MEMORY=spill+caching)" },
        { "CTRT_MEMORY=caching:max_split=1g", "CTRT_MEMORY=caching:expandable=true makes",
          "CTRT_MEMORY=spill+caching" },
        { "CTRT_MEMORY=caching:expandable=true", NULL, "CTRT_MEMORY=spill+caching" },
        { "CTRT_MEMORY=direct", NULL, "CTRT_MEMORY=spill+caching" },
        { "CTRT_MEMORY=spill+caching", NULL, "All operands of an op must be on the device at once" },
    };
    group("the advice in an out-of-memory message fits the policy");
    for (size_t i = 0; i < COUNT(policies); i++) {
        IN_CHILD("CTRT_SIM=devices=1,memory=64m", policies[i].policy) {
            ctrt_device *device = sim_open("sim:0");
            ctrt_tensor *one = NULL, *parts[15] = { NULL };
            CHECK_OK(ctrt_empty(&one, CTRT_SHAPE(14 << 20), CTRT_F32, device));
            CHECK_FAILS(ctrt_empty(&parts[0], CTRT_SHAPE(17 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                        "The block is larger than the device");
            if (strstr(policies[i].policy, "spill") == NULL)
                CHECK_FAILS(ctrt_empty(&parts[0], CTRT_SHAPE(14 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                            policies[i].full);
            ctrt_tensor_release(&one);
            if (strstr(policies[i].policy, "spill") != NULL) {
                CHECK_OK(ctrt_full(&one, CTRT_SHAPE(6 << 20), ctrt_float(1), CTRT_F32, device));
                CHECK_OK(ctrt_full(&parts[0], CTRT_SHAPE(6 << 20), ctrt_float(1), CTRT_F32, device));
                /* 72 MiB together */
                CHECK_FAILS(ctrt_add(&parts[1], one, parts[0]), CTRT_ERR_OUT_OF_MEMORY, policies[i].full);
                ctrt_tensor_release(&one);
            }
            if (policies[i].gaps != NULL) {
                /* 60 MiB in 3 segments of 20; every other block of 4 MiB is freed. */
                for (int k = 0; k < 15; k++)
                    CHECK_OK(ctrt_empty(&parts[k], CTRT_SHAPE(1 << 20), CTRT_F32, device));
                for (int k = 0; k < 15; k += 2)
                    ctrt_tensor_release(&parts[k]);
                CHECK_FAILS(ctrt_empty(&one, CTRT_SHAPE(3 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                            policies[i].gaps);
            }
            for (int k = 0; k < 15; k++)
                ctrt_tensor_release(&parts[k]);
        }
        CHILD_END;
    }
}

static void test_limit(void)
{
    group("a limit covers device memory and pinned memory");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_MEMORY_LIMIT=sim=32m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = NULL, pinned = NULL, more = NULL;
        CHECK_OK(take(&x, "x", 20 * MIB, device));
        CHECK_OK(ctrt_empty_pinned(&pinned, CTRT_SHAPE(2 * (int64_t)MIB), CTRT_F32, device));      /* 8 MiB */
        CHECK_FAILS(ctrt_empty_pinned(&more, CTRT_SHAPE(2 * (int64_t)MIB), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                    "32.00 MiB allowed");
        CHECK_FAILS(take(&more, "more", 10 * MIB, device), CTRT_ERR_OUT_OF_MEMORY, "32.00 MiB allowed");
        char *text = NULL;
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(strstr(text, "ctrt_memory_limit_bytes{device=\"sim:0\",policy=\"caching\"} 33554432\n")
                  && strstr(text, "ctrt_memory_pinned_bytes{device=\"sim:0\",policy=\"caching\"} 8388608\n"),
              "wrong limit or pinned bytes: %s", text);
        free(text);
        ctrt_tensor_release(&pinned);
        CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
        CHECK_OK(take(&more, "more", 10 * MIB, device));
        ctrt_tensor_release(&more);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_memory_release_all(device));
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(strstr(text, "ctrt_memory_pinned_bytes{device=\"sim:0\",policy=\"caching\"} 0\n")
                  && strstr(text, "ctrt_memory_reserved_bytes{device=\"sim:0\",policy=\"caching\"} 0\n"),
              "wrong pinned or reserved bytes: %s", text);
        free(text);
    }
    CHILD_END;
}

static void test_snapshot(void)
{
    group("the snapshot of the caching policy lists its segments, and its sums equal the statistics");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_MEMORY_HISTORY=all") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
        char *text = NULL;
        CHECK_OK(take(&a, "a", 3 * MIB, device));
        CHECK_OK(take(&b, "b", 4 * MIB, device));
        CHECK_OK(take(&c, "c", 4096, device));
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_memory_snapshot(&text, device));
        unsigned long long segments = 0, active = 0, size;
        for (const char *at = text; (at = strstr(at, "\"total_size\": ")) != NULL; at++)
            segments += sscanf(at, "\"total_size\": %llu", &size) == 1 ? size : 0;
        for (const char *at = text; (at = strstr(at, "\"size\": ")) != NULL; at++)
            if (sscanf(at, "\"size\": %llu", &size) == 1 && strncmp(strchr(at + 10, ':'), ": ", 2) == 0
                && strstr(at, "\"state\"") != NULL && strncmp(strstr(at, "\"state\""),
                                                              "\"state\": \"active_allocated\"", 27) == 0
                && strstr(at, "\"state\"") < at + 100)
                active += size;
        CHECK(segments == ctrt_memory_reserved(device), "segments: %llu, reserved: %llu", segments,
              (unsigned long long)ctrt_memory_reserved(device));
        CHECK(active == ctrt_memory_allocated(device), "active: %llu, allocated: %llu", active,
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK(strstr(text, "\"state\": \"inactive\"") != NULL && strstr(text, "\"segment_type\": \"small\"") != NULL,
              "the snapshot has no inactive block or no small segment: %s", text);
        free(text);
    }
    CHILD_END;
}

TEST_MAIN
{
    test_owners();
    test_known_numbers();
    test_leak();
    test_ops();
    test_advice();
    test_limit();
    test_snapshot();
    return done();
}
