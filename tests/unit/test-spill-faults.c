/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the errors of the memory policy `spill`: bad options, blocks that cannot fit, too little pinned memory, failing
 * allocations, work that fails after the call. Each error must give its status, keep the values of all tensors
 * and leak nothing. */
#include "calls.h"
#include "spill_check.h"

#define SIM "CTRT_SIM=devices=1,memory=16m,poison=yes"

TEST(test_options, NULL)
{
    static const struct { const char *text, *words; } cases[] = {
        { "CTRT_MEMORY=spill", "CTRT_MEMORY=spill+caching" },
        { "CTRT_MEMORY=caching+spill", "spill requires another policy" },
        { "CTRT_MEMORY=caching+spill+caching", "write spill+caching" },
        { "CTRT_MEMORY=spill:hots=2g+caching", "did you mean host?" },
        { "CTRT_MEMORY=spill:host=many+caching", "host must be a number of bytes as in 2g, not \"many\"" },
        { "CTRT_MEMORY=spill:prefetch=2+caching", "prefetch must be 1 or 0" },
    };
    EACH(c, cases) {
        group("%s is rejected", c->text);
        IN_CHILD(SIM, c->text) {
            ctrt_device *device = NULL;
            CHECK_FAILS(ctrt_device_get(&device, "sim:0"), CTRT_ERR_INVALID_ARGUMENT, c->words);
        }
    }
}

SIM_TEST(too_large, "blocks that cannot fit fail", SIM, "CTRT_MEMORY=spill+caching")
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
    const uint64_t copies = sim_read(0).copies[CTRT_COPY_TO_HOST];
    CHECK_FAILS(ctrt_empty(&a, CTRT_SHAPE(17 * N), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "larger than sim:0");
    CHECK_EQ(sim_read(0).copies[CTRT_COPY_TO_HOST], copies);
    a = full(1, 6 * N, device);
    b = full(2, 6 * N, device);
    /* The sum needs all three tensors on the device at the same time. */
    CHECK_FAILS(ctrt_add(&c, a, b), CTRT_ERR_OUT_OF_MEMORY, "in use and cannot be moved");
    CHECK_EQ(total(a), 6.0 * N);
    CHECK_EQ(total(b), 12.0 * N);
    CHECK_OK(ctrt_add_(a, b));
    CHECK_EQ(total(a), 18.0 * N);
    ctrt_tensor_release(&a);
    ctrt_tensor_release(&b);
    check_empty(device, 0, "too large");
}

SIM_TEST(addresses, "addresses of tensors that can move are not exposed", SIM, "CTRT_MEMORY=spill+caching")
{
    CTRT_AUTO(tensor) a = full(3, 100, device), view = NULL, copy = NULL;
    struct DLManagedTensorVersioned *exported = NULL;
    CHECK_TRUE(ctrt_tensor_data(a) == NULL);
    CHECK_HAS(ctrt_error_message(), "spill+caching of sim:0 moves tensors");
    CHECK_TRUE(ctrt_to_dlpack(&exported, a) != CTRT_OK);
    /* Strided operands are copied to temporary memory, which no tensor owns. */
    CHECK_OK(ctrt_reshape(&view, a, CTRT_SHAPE(10, 10)));
    CHECK_OK(ctrt_transpose(&view, view, 0, 1));
    CHECK_OK(ctrt_matmul(&copy, view, view));
    CHECK_EQ(total(copy), 9000.0);
    CHECK_EQ(total(view), 300.0);
}

#define PINNED "too little pinned memory gives CTRT_ERR_OUT_OF_MEMORY"

SIM_TEST(little_pinned_memory, PINNED, SIM, "CTRT_MEMORY=spill:host=2304k+caching")
{
    int made = 0;
    CHECK_FAILS(make_tensors(&made, TENSORS, device), CTRT_ERR_OUT_OF_MEMORY, "pinned");
    CHECK(made >= 15 && made < TENSORS, "%d tensors were created, expected 15 to 23", made);
    check_values_kept(made, "little pinned memory");
    release_tensors(0);
    check_empty(device, 0, "little pinned memory");
}
SIM_AGAIN(little_pinned_memory, PINNED, SIM ",pinned=2304k", "CTRT_MEMORY=spill+caching")

/* Allocates more than the device holds while fault n is injected, for increasing n until the fault does not occur. */
static void each_allocation(ctrt_device *device, const char *fault, bool may_fail)
{
    int failures = 0;
    uint64_t calls = 1;
    for (unsigned n = 1; n <= calls && CHECK(n < 200, "%s still occurs", fault); n++) {
        char text[32];
        int made = 0;
        snprintf(text, sizeof text, fault, n);
        CHECK_OK(sim->inject(0, text));
        const sim_counters before = sim_read(0);
        ctrt_status status = make_tensors(&made, TENSORS, device);
        const sim_counters after = sim_read(0);
        CHECK(status == CTRT_OK || (may_fail && status == CTRT_ERR_OUT_OF_MEMORY
                                    && strstr(ctrt_error_message(), "out of memory on sim:0") != NULL),
              "%s: %s", text, ctrt_error_message());
        failures += status != CTRT_OK;
        CHECK_OK(sim->clear(0));
        check_values_kept(made, text);
        CHECK_EQ(ctrt_memory_allocated(device), made * MIB);
        release_tensors(0);
        check_empty(device, 0, text);
        calls = fault[0] == 'h' ? after.host_allocs - before.host_allocs : after.allocs - before.allocs;
        if (status != CTRT_OK)
            calls = n + 1;
    }
    CHECK(!may_fail || failures > 0, "%s: no allocation failed", fault);
}

/* Enqueued work fails after the call has returned: the n-th kernel, or the whole device at its n-th piece of work. */
static void late_failures(ctrt_device *device, const char *fault, ctrt_status wanted)
{
    int failures = 0;
    for (int n = 1; n <= 61; n += 6) {
        CTRT_AUTO(stream) stream = NULL;
        char text[32];
        int made = 0;
        snprintf(text, sizeof text, fault, n);
        CHECK_OK(sim->inject(0, text));
        ctrt_status status = make_tensors(&made, TENSORS, device);
        for (int i = 0; i < made && status == CTRT_OK; i++)
            status = ctrt_add_(tensors[i], tensors[i]);
        ctrt_status late = ctrt_device_synchronize(device);
        CHECK(status == CTRT_OK || status == wanted, "%s: %s", text, ctrt_error_message());
        CHECK(late == CTRT_OK || late == wanted, "%s: %s", text, ctrt_error_message());
        failures += late != CTRT_OK;
        release_tensors(0);
        CHECK_OK(sim->clear(0));
        if (CHECK_OK(ctrt_stream_current(&stream, device)))
            CHECK_OK(ctrt_stream_reset(stream));
        check_empty(device, 0, text);
        /* After the reset the device works again. */
        CHECK_OK(make_tensors(&made, TENSORS, device));
        check_values_kept(made, text);
        release_tensors(0);
        check_empty(device, 0, text);
    }
    CHECK(failures > 5, "%s: %d failures only", fault, failures);
}

SIM_TEST(allocations_fail, "the n-th device or pinned allocation fails, or all from then on: no value is lost, no leak",
         SIM, "CTRT_MEMORY=spill+caching")
{
    each_allocation(device, "alloc:%d", false);
    each_allocation(device, "alloc:%d+", true);
    each_allocation(device, "host:%d", false);
    each_allocation(device, "host:%d+", true);
}

SIM_TEST(work_fails, "work that fails after the call, and a lost device, are reported and leak nothing",
         SIM, "CTRT_MEMORY=spill+caching")
{
    late_failures(device, "op:%d", CTRT_ERR_BACKEND);
    late_failures(device, "lost:%d", CTRT_ERR_DEVICE_LOST);
}

TESTS_MAIN
