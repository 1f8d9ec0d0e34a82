/* SPDX-License-Identifier: Apache-2.0 */
/* Memory accounting on simulated devices: sizes, peaks, ops in reports, advice, the snapshot of the caching policy, and
 * workspaces that do not fit. */
#include "calls.h"
#include "device/device.h"
#include "memory_checks.h"
#include "ops/dispatch.h"
#include "sims.h"

static void empty_fails(int64_t elements, ctrt_device *device, const char *words)
{
    CTRT_AUTO(tensor) x = NULL;
    CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(elements), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, words);
}

#define RESET "after a reset every peak equals the current value, in total and per pool"
SIM_TEST(peaks, RESET, "CTRT_MEMORY=caching", "CTRT_SIM=devices=1,memory=64m")
{
    CTRT_AUTO(tensor) kept = NULL, small = NULL, large = NULL;
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
        CHECK_TRUE(stat_of(device, "reserved_bytes.large_pool.peak") >= (int64_t)(40 * MIB));
        ctrt_memory_reset_peak(device);
        for (size_t k = 0; (key = ctrt_memory_stat_key(k)) != NULL; k++) {
            const char *dot = strstr(key, ".peak");
            if (dot == NULL)
                continue;
            snprintf(current, sizeof current, "%.*s.current", (int)(dot - key), key);
            raised += stat_of(device, current) > 0;
            CHECK_STAT(device, key, stat_of(device, current));
        }
    }
    CHECK(raised > 0, "no current value is above 0");
}
SIM_AGAIN(peaks, RESET, "CTRT_MEMORY=direct", "CTRT_SIM=devices=1,memory=64m")
SIM_AGAIN(peaks, RESET, "CTRT_MEMORY=arena", "CTRT_SIM=devices=1,memory=64m")
SIM_AGAIN(peaks, RESET, "CTRT_MEMORY=spill+caching", "CTRT_SIM=devices=1,memory=64m")

SIM_TEST(ops, "without a setting, owners and reports name the op that requested memory and those that created blocks",
         "CTRT_SIM=devices=1,memory=64m")
{
    CTRT_AUTO(tensor) row = NULL, column = NULL, y = NULL, made = NULL;
    ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    uint64_t sum = 0, of_exp = 0;
    CHECK_OK(ctrt_zeros(&row, CTRT_SHAPE(1, 1 << 13), CTRT_F32, device));
    CHECK_OK(ctrt_zeros(&column, CTRT_SHAPE(1 << 12, 1), CTRT_F32, device));
    CHECK_OK(ctrt_exp(&made, row));
    CHECK_OK(ctrt_memory_owners(&owners, &count, device));
    for (size_t i = 0; i < count; i++) {
        sum += owners[i].bytes;
        of_exp += strcmp(owners[i].op, "exp") == 0 ? owners[i].bytes : 0;
    }
    free(owners);
    CHECK_EQ(sum, ctrt_memory_allocated(device));
    CHECK_EQ(of_exp, 32 * KIB);
    CHECK_FAILS(ctrt_add(&y, row, column), CTRT_ERR_OUT_OF_MEMORY, "add");
    CHECK_HAS(last_oom_of(device), "\"op\": \"add\",\n  \"advice\"");
    CHECK_HAS(last_oom_of(device), "\"op\": \"exp\"");
    CHECK_FAILS(ctrt_matmul(&y, column, row), CTRT_ERR_OUT_OF_MEMORY, "matmul");
    CHECK_HAS(last_oom_of(device), "\"op\": \"matmul\",\n  \"advice\"");
    empty_fails(1 << 25, device, "");
    CHECK_HAS(last_oom_of(device), "\"op\": \"\",\n  \"advice\"");
}

/* Advice for a full device and for fragmented free memory, under each policy. */
TEST(advice, "the advice in an out-of-memory message fits the policy")
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
    EACH(c, policies) {
        IN_CHILD("CTRT_SIM=devices=1,memory=64m", c->policy) {
            ctrt_device *device = sim_open("sim:0");
            const bool spills = strstr(c->policy, "spill") != NULL;
            ctrt_tensor *one = NULL, *parts[15] = { NULL };
            CHECK_OK(ctrt_empty(&one, CTRT_SHAPE(14 << 20), CTRT_F32, device));
            empty_fails(17 << 20, device, "The block is larger than the device");
            if (!spills)
                empty_fails(14 << 20, device, c->full);
            ctrt_tensor_release(&one);
            if (spills) {
                one = full(1, 6 << 20, device);
                parts[0] = full(1, 6 << 20, device);                /* 72 MiB together with the result */
                CHECK_FAILS(ctrt_add(&parts[1], one, parts[0]), CTRT_ERR_OUT_OF_MEMORY, c->full);
                ctrt_tensor_release(&one);
            }
            if (c->gaps != NULL) {
                /* 60 MiB in 3 segments of 20; every other block of 4 MiB is freed. */
                for (int k = 0; k < 15; k++)
                    CHECK_OK(ctrt_empty(&parts[k], CTRT_SHAPE(1 << 20), CTRT_F32, device));
                for (int k = 0; k < 15; k += 2)
                    ctrt_tensor_release(&parts[k]);
                empty_fails(3 << 20, device, c->gaps);
                /* 12 MiB in a segment of 56, and 8 MiB of the device are in no segment. */
                tensors_release(parts, 15);
                CHECK_OK(ctrt_memory_empty_cache(device));
                CHECK_OK(ctrt_empty(&one, CTRT_SHAPE(14 << 20), CTRT_F32, device));
                ctrt_tensor_release(&one);
                CHECK_OK(ctrt_empty(&one, CTRT_SHAPE(3 << 20), CTRT_F32, device));
                empty_fails(12 << 20, device, c->gaps);
                empty_fails(13 << 20, device, c->gaps);
                empty_fails(14 << 20, device, c->full);
                ctrt_tensor_release(&one);
            }
            tensors_release(parts, 15);
        }
    }
}

SIM_TEST(snapshot, "the snapshot of the caching policy lists its segments, and its sums equal the statistics",
         "CTRT_SIM=devices=1,memory=64m", "CTRT_MEMORY_HISTORY=all")
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
    CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(3 << 18), CTRT_F32, device));
    CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(4 << 18), CTRT_F32, device));
    CHECK_OK(ctrt_empty(&c, CTRT_SHAPE(1024), CTRT_F32, device));
    ctrt_tensor_release(&a);
    const char *text = snapshot_of(device);
    unsigned long long segments = 0, active = 0, size;
    for (const char *at = text; (at = strstr(at, "\"total_size\": ")) != NULL; at++)
        segments += sscanf(at, "\"total_size\": %llu", &size) == 1 ? size : 0;
    char state[32];
    for (const char *at = text; (at = strstr(at, "\"size\": ")) != NULL; at++)
        if (sscanf(at, "\"size\": %llu, \"requested_size\": %*u, \"state\": \"%31[a-z_]", &size, state) == 2
            && strcmp(state, "active_allocated") == 0) active += size;
    CHECK_EQ(segments, ctrt_memory_reserved(device));
    CHECK_EQ(active, ctrt_memory_allocated(device));
    CHECK_HAS(text, "\"state\": \"inactive\"");
    CHECK_HAS(text, "\"segment_type\": \"small\"");
}

/* ---- workspaces of kernels that can run with less memory ---- */

static const ctrt_kernel *own;              /* the simulated device's kernel of the op */
static ctrt_kernel overlay;                 /* the same kernel with a workspace */
static const size_t *sizes;                 /* MiB, decreasing; the first one that is not smaller ends the list */
static size_t used;                         /* workspace bytes of the last call */

static ctrt_status request(const ctrt_call *call, size_t *bytes)
{
    const size_t *size = sizes;
    while (call->workspace_bytes > 0 && *size * MIB >= call->workspace_bytes && size[1] < size[0])
        size++;
    *bytes = *size * MIB;
    return CTRT_OK;
}

static ctrt_status run(const ctrt_call *call)
{
    ctrt_call same = *call;
    same.kernel = own;
    used = call->workspace_bytes;
    return own->run(&same);
}

/* Must be called before the device's first op. */
static void overlay_exp(ctrt_device *device)
{
    static ctrt_kernel_table table = { .size = sizeof table, .stride = sizeof overlay, .count = 1,
                                       .kernels = &overlay };
    const ctrt_kernel_table *old = device->backend->kernels;
    for (size_t i = 0; i < old->count && own == NULL; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)old->kernels + i * old->stride);
        if (strcmp(kernel->op, "exp") == 0 && (kernel->dtypes & CTRT_DTYPE_BIT(CTRT_F32)))
            own = kernel;
    }
    REQUIRE(own != NULL, "no kernel for exp");
    overlay = (ctrt_kernel){ .size = sizeof overlay, .op = "exp", .dtypes = CTRT_DTYPE_BIT(CTRT_F32),
                             .score = own->score + 1, .flags = own->flags, .run = run, .workspace = request };
    device->overlays[0] = &table;
}

TEST(workspaces, NULL)
{
    static const struct {
        size_t sizes[5];
        size_t used, refused;               /* MiB of the workspace; refused: size in the report, 0: no report */
    } cases[] = {
        { { 8, 8 }, 8, 0 }, { { 80, 8, 8 }, 8, 0 }, { { 90, 80, 8, 8 }, 8, 0 }, { { 80, 0, 0 }, 0, 0 },
        { { 80, 80 }, 0, 80 }, { { 90, 80, 70, 70 }, 0, 70 },           /* no size fits */
        { { (size_t)1 << 43, 8, 8 }, 8, 0 },                            /* more than the address space */
    };
    static const char *const policies[] = { "CTRT_MEMORY=direct", "CTRT_MEMORY=caching", "CTRT_MEMORY=spill+caching" };
    for (size_t p = 0; p < COUNT(policies); p++) {
        group("a workspace that does not fit is reported once, when no smaller one fits (%s)", policies[p]);
        EACH(c, cases)
            IN_CHILD("CTRT_SIM=devices=1,memory=64m", policies[p], "CTRT_LOG=error") {
                ctrt_device *device = sim_open("sim:0");
                sizes = c->sizes;
                overlay_exp(device);
                CTRT_AUTO(tensor) x = full(0, 16, device), y = NULL;
                ctrt_memory_set_oom_callback(note_oom, NULL);
                if (c->refused == 0) {
                    CHECK_OK(ctrt_exp(&y, x));
                    CHECK_EQ(used, c->used * MIB);
                    CHECK_EQ(total(y), 16);
                } else {
                    CHECK_FAILS(ctrt_exp(&y, x), CTRT_ERR_OUT_OF_MEMORY, "workspace");
                    CHECK_EQ(oom_noted.bytes, c->refused * MIB);
                    CHECK_HAS(oom_noted.report, "\"op\": \"exp\"");
                }
                CHECK_EQ(oom_noted.calls, c->refused > 0);
                CHECK_STAT(device, "num_ooms", oom_noted.calls);
            }
    }
}

TESTS_MAIN
