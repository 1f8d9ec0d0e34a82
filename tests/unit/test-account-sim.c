/* SPDX-License-Identifier: Apache-2.0 */
/* Accounting on simulated devices, through the public API: owners without asking, limits with pinned memory, a leak that is
 * found by its tag, everything given back. */
#include "ctrt/memory.h"
#include "ctrt/stream.h"
#include "sims.h"

#define MIB ((size_t)1 << 20)

static ctrt_status take(ctrt_tensor **out, const char *tag, size_t bytes, ctrt_device *device)
{
    CTRT_TRY(ctrt_memory_tag_push(tag));
    ctrt_status status = ctrt_empty(out, CTRT_SHAPE((int64_t)(bytes / 4)), CTRT_F32, device);
    CTRT_TRY(ctrt_memory_tag_pop());
    return status;
}

static void test_owners(void)
{
    group("an asynchronous device is watched from the start; ops and tags own its memory");
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

static void test_leak(void)
{
    group("a leak ends in a report that names it first, and the program goes on");
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
        CHECK(status == CTRT_ERR_OUT_OF_MEMORY && strstr(ctrt_error_message(), "Most is held by losses"), "%d: %s", (int)status,
              ctrt_error_message());
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        const char *first = report != NULL ? strstr(report, "\"owners\": [\n    {\"tag\": ") : NULL;
        CHECK(first != NULL && strncmp(strstr(first, "tag"), "tag\": \"losses\"", 14) == 0, "%s", report);
        free(report);
        for (int i = 0; i < 64; i++)
            ctrt_tensor_release(&kept[i]);
        CHECK_OK(take(&kept[0], "after", 30 * MIB, device));
        ctrt_tensor_release(&kept[0]);
        ctrt_tensor_release(&batch);
        CHECK_OK(ctrt_shutdown());
        uint64_t left, total;
        CHECK_OK(ctrt_device_memory_info(device, &left, &total));
        CHECK(left == total && ctrt_memory_reserved(device) == 0, "%llu bytes are not back", (unsigned long long)(total - left));
    }
    CHILD_END;
}

static void test_limit(void)
{
    group("a limit covers device memory and what is pinned");
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
                  && strstr(text, "ctrt_memory_pinned_bytes{device=\"sim:0\",policy=\"caching\"} 8388608\n"), "%s", text);
        free(text);
        ctrt_tensor_release(&pinned);
        CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
        CHECK_OK(take(&more, "more", 10 * MIB, device));
        ctrt_tensor_release(&more);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_memory_release_all(device));
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(strstr(text, "ctrt_memory_pinned_bytes{device=\"sim:0\",policy=\"caching\"} 0\n")
                  && strstr(text, "ctrt_memory_reserved_bytes{device=\"sim:0\",policy=\"caching\"} 0\n"), "%s", text);
        free(text);
    }
    CHILD_END;
}

static void test_snapshot(void)
{
    group("the snapshot of the caching policy has its segments, and its sums agree");
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
                && strstr(at, "\"state\"") != NULL && strncmp(strstr(at, "\"state\""), "\"state\": \"active_allocated\"", 27) == 0
                && strstr(at, "\"state\"") < at + 100)
                active += size;
        CHECK(segments == ctrt_memory_reserved(device), "segments: %llu, reserved: %llu", segments,
              (unsigned long long)ctrt_memory_reserved(device));
        CHECK(active == ctrt_memory_allocated(device), "active: %llu, allocated: %llu", active,
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK(strstr(text, "\"state\": \"inactive\"") != NULL && strstr(text, "\"segment_type\": \"small\"") != NULL, "%s", text);
        free(text);
    }
    CHILD_END;
}

int main(void)
{
    test_owners();
    test_leak();
    test_limit();
    test_snapshot();
    return done();
}
