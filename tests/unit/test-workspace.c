/* SPDX-License-Identifier: Apache-2.0 */
/* Tests workspaces of kernels that can run with less memory, on a simulated device. A failed allocation is reported
 * once, and only when no smaller workspace helps. */
#include "device/device.h"
#include "ops/dispatch.h"
#include "memory_checks.h"
#include "sims.h"

/* ---- a kernel with several workspace sizes ---- */

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
static bool overlay_kernel(ctrt_device *device, const char *op)
{
    static ctrt_kernel_table table = { .size = sizeof table, .stride = sizeof overlay, .count = 1,
                                       .kernels = &overlay };
    const ctrt_kernel_table *old = device->backend->kernels;
    for (size_t i = 0; i < old->count && own == NULL; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)old->kernels + i * old->stride);
        if (strcmp(kernel->op, op) == 0 && (kernel->dtypes & CTRT_DTYPE_BIT(CTRT_F32)))
            own = kernel;
    }
    if (!CHECK(own != NULL, "no kernel for %s", op))
        return false;
    overlay = (ctrt_kernel){ .size = sizeof overlay, .op = op, .dtypes = CTRT_DTYPE_BIT(CTRT_F32),
                             .score = own->score + 1, .flags = own->flags, .run = run, .workspace = request };
    device->overlays[0] = &table;
    return true;
}

TEST_MAIN
{
    static const struct {
        const char *what;
        size_t sizes[5];
        size_t used, refused;               /* MiB of the workspace; refused: size in the report, 0: no report */
    } cases[] = {
        { "the first size fits", { 8, 8 }, 8, 0 }, { "the second size fits", { 80, 8, 8 }, 8, 0 },
        { "the third size fits", { 90, 80, 8, 8 }, 8, 0 }, { "no workspace is needed", { 80, 0, 0 }, 0, 0 },
        { "no smaller size", { 80, 80 }, 0, 80 }, { "no size fits", { 90, 80, 70, 70 }, 0, 70 },
        { "more than the address space", { (size_t)1 << 43, 8, 8 }, 8, 0 },
    };
    static const char *const policies[] = { "CTRT_MEMORY=direct", "CTRT_MEMORY=caching", "CTRT_MEMORY=spill+caching" };
    group("a workspace that does not fit is reported once, when no smaller one fits");
    for (size_t p = 0; p < COUNT(policies); p++)
        for (size_t i = 0; i < COUNT(cases); i++)
            IN_CHILD("CTRT_SIM=devices=1,memory=64m", policies[p], "CTRT_LOG=error") {
                ctrt_device *device = sim_open("sim:0");
                sizes = cases[i].sizes;
                if (!overlay_kernel(device, "exp"))
                    exit(1);
                CTRT_AUTO(tensor) x = full(0, 16, device), y = NULL;
                ctrt_memory_set_oom_callback(note_oom, NULL);
                if (cases[i].refused == 0) {
                    CHECK_OK(ctrt_exp(&y, x));
                    CHECK(used == cases[i].used * MIB, "%s: %zu bytes are used", cases[i].what, used);
                    CHECK_EQ(total(y), 16);
                } else {
                    CHECK_FAILS(ctrt_exp(&y, x), CTRT_ERR_OUT_OF_MEMORY, "workspace");
                    CHECK_EQ(oom_noted.bytes, cases[i].refused * MIB);
                    CHECK_HAS(oom_noted.report, "\"op\": \"exp\"");
                }
                CHECK_EQ(oom_noted.calls, cases[i].refused > 0);
                CHECK_STAT(device, "num_ooms", oom_noted.calls);
                if (tap_state.failed > 0)
                    printf("# in the case: %s, %s\n", policies[p], cases[i].what);
            }
    return done();
}
