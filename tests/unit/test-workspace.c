/* SPDX-License-Identifier: Apache-2.0 */
/* Tests workspaces of kernels that can run with less memory, on a simulated device. A failed allocation is reported
 * once, and only when no smaller workspace helps. */
#include "device/device.h"
#include "ops/dispatch.h"
#include "sims.h"

#define MIB ((size_t)1 << 20)

/* ---- a kernel with several workspace sizes ---- */

static const ctrt_kernel *own;              /* the simulated device's kernel of the op */
static ctrt_kernel lavish;                  /* the same kernel with a workspace */
static const size_t *wishes; /* MiB, in decreasing order; the first size that is not smaller ends the list */
static size_t used;                         /* workspace bytes of the last call */

static ctrt_status ask(const ctrt_call *call, size_t *bytes)
{
    const size_t *wish = wishes;
    while (call->workspace_bytes > 0 && *wish * MIB >= call->workspace_bytes && wish[1] < wish[0])
        wish++;
    *bytes = *wish * MIB;
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
static bool overlay_kernel(ctrt_device *device, const char *op)
{
    static ctrt_kernel_table table = { .size = sizeof table, .stride = sizeof lavish, .count = 1, .kernels = &lavish };
    const ctrt_kernel_table *old = device->backend->kernels;
    for (size_t i = 0; i < old->count && own == NULL; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)old->kernels + i * old->stride);
        if (strcmp(kernel->op, op) == 0 && (kernel->dtypes & CTRT_DTYPE_BIT(CTRT_F32)))
            own = kernel;
    }
    if (!CHECK(own != NULL, "no kernel for %s", op))
        return false;
    lavish = (ctrt_kernel){ .size = sizeof lavish, .op = op, .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .score = own->score + 1, .flags = own->flags,
                            .run = run, .workspace = ask };
    device->overlays[0] = &table;
    return true;
}

/* ---- reports ---- */

static struct { int calls; size_t bytes; bool op; } reported;

static void note_report(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)user, (void)device;
    reported.calls++;
    reported.bytes = bytes;
    reported.op = strstr(report, "\"op\": \"exp\"") != NULL;
}

TEST_MAIN
{
    static const struct {
        const char *what;
        size_t wishes[5];
        size_t used, refused;               /* MiB of the workspace; refused: size in the report, 0: no report */
    } cases[] = {
        { "the first size fits", { 8, 8 }, 8, 0 },
        { "the second size fits", { 80, 8, 8 }, 8, 0 },
        { "the third size fits", { 90, 80, 8, 8 }, 8, 0 },
        { "no workspace is needed", { 80, 0, 0 }, 0, 0 },
        { "no smaller size", { 80, 80 }, 0, 80 },
        { "no size fits", { 90, 80, 70, 70 }, 0, 70 },
        { "more than the address space", { (size_t)1 << 43, 8, 8 }, 8, 0 },
    };
    static const char *const policies[] = { "CTRT_MEMORY=direct", "CTRT_MEMORY=caching", "CTRT_MEMORY=spill+caching" };
    group("a workspace that does not fit is reported once, when no smaller one fits");
    for (size_t p = 0; p < COUNT(policies); p++)
        for (size_t i = 0; i < COUNT(cases); i++)
            IN_CHILD("CTRT_SIM=devices=1,memory=64m", policies[p], "CTRT_LOG=error") {
                ctrt_device *device = sim_open("sim:0");
                CTRT_AUTO(tensor) x = NULL, y = NULL;
                int64_t ooms = -1;
                wishes = cases[i].wishes;
                if (overlay_kernel(device, "exp")) {
                    x = full(0, 16, device);
                    ctrt_memory_set_oom_callback(note_report, NULL);
                    const ctrt_status status = ctrt_exp(&y, x);
                    CHECK_OK(ctrt_memory_stat_get(&ooms, device, "num_ooms"));
                    if (cases[i].refused == 0) {
                        CHECK(status == CTRT_OK && used == cases[i].used * MIB && total(y) == 16, "%s, %s: %s, %zu bytes", policies[p],
                              cases[i].what, status == CTRT_OK ? "CTRT_OK" : ctrt_error_message(), used);
                    } else {
                        CHECK(status == CTRT_ERR_OUT_OF_MEMORY && strstr(ctrt_error_message(), "workspace"), "%s, %s: %s", policies[p],
                              cases[i].what, status == CTRT_OK ? "CTRT_OK" : ctrt_error_message());
                        CHECK(reported.bytes == cases[i].refused * MIB && reported.op, "%s, %s: %zu bytes were reported, of %s", policies[p],
                              cases[i].what, reported.bytes, reported.op ? "exp" : "another op");
                    }
                    CHECK(reported.calls == (cases[i].refused > 0) && ooms == reported.calls, "%s, %s: %d reports, %lld counted", policies[p],
                          cases[i].what, reported.calls, (long long)ooms);
                }
            }
            CHILD_END;
    return done();
}
