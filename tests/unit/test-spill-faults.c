/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the errors of the memory policy `spill`: bad options, blocks that cannot fit, too little pinned memory, failing
 * allocations, work that fails after the call. Each error must give its status, keep the values of all tensors and leak
 * nothing. */
#include "sims.h"

#define MIB   (1 << 20)
#define TENSORS 24                            /* of 4 MiB each, on a device of 64 MiB */
#define N     (4 * MIB / 4)

/* Creates TENSORS tensors; every element of tensor i is i. *made is the number created, also on failure. */
static ctrt_status fill_up(ctrt_tensor *tensors[TENSORS], int *made, ctrt_device *device)
{
    for (*made = 0; *made < TENSORS; ++*made)
        CTRT_TRY(ctrt_full(&tensors[*made], CTRT_SHAPE(N), ctrt_float(*made), CTRT_F32, device));
    return CTRT_OK;
}

static void check_all(ctrt_tensor *const tensors[TENSORS], int made, const char *what)
{
    static float values[N];
    for (int i = 0; i < made; i++) {
        if (!CHECK_OK(ctrt_to_host(values, sizeof values, tensors[i], CTRT_F32)))
            return;
        int wrong = 0;
        for (int k = 0; k < N; k++)
            wrong += values[k] != (float)i;
        CHECK(wrong == 0, "%s: %d elements of tensor %d are wrong, the first is %g", what, wrong, i, values[0]);
    }
}

/* Checks that neither device memory nor pinned memory is still allocated. */
static void check_empty(ctrt_device *device, int index, const char *what)
{
    ctrt_device_synchronize(device);
    CHECK(ctrt_memory_allocated(device) == 0, "%s: %llu bytes are left", what,
          (unsigned long long)ctrt_memory_allocated(device));
    ctrt_memory_release_all(device);
    const sim_counters now = sim_read(index);
    CHECK(now.live_bytes == 0, "%s: %llu bytes of the device are left", what, (unsigned long long)now.live_bytes);
    CHECK(now.host_allocs == now.host_frees, "%s: %llu pinned blocks are left", what,
          (unsigned long long)(now.host_allocs - now.host_frees));
    CHECK(now.bad_frees == 0, "%s: %llu bad frees", what, (unsigned long long)now.bad_frees);
}

static void release(ctrt_tensor *tensors[TENSORS])
{
    for (int i = 0; i < TENSORS; i++)
        ctrt_tensor_release(&tensors[i]);
}

static void options(void)
{
    static const struct { const char *text, *words; } cases[] = {
        { "CTRT_MEMORY=spill", "CTRT_MEMORY=spill+caching" },
        { "CTRT_MEMORY=caching+spill", "spill requires another policy" },
        { "CTRT_MEMORY=caching+spill+caching", "write spill+caching" },
        { "CTRT_MEMORY=spill:hots=2g+caching", "did you mean host?" },
        { "CTRT_MEMORY=spill:host=many+caching", "host must be a number of bytes as in 2g, not \"many\"" },
        { "CTRT_MEMORY=spill:prefetch=2+caching", "prefetch must be 1 or 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group("%s is rejected", cases[i].text);
        IN_CHILD("CTRT_SIM=devices=1,memory=64m", cases[i].text) {
            ctrt_device *device = NULL;
            CHECK_FAILS(ctrt_device_get(&device, "sim:0"), CTRT_ERR_INVALID_ARGUMENT, cases[i].words);
        }
        CHILD_END;
    }
}

static void too_large(ctrt_device *device)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
    const uint64_t copies = sim_read(0).copies[CTRT_COPY_TO_HOST];
    CHECK_FAILS(ctrt_empty(&a, CTRT_SHAPE(65 * MIB / 4), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY,
                "larger than sim:0");
    CHECK(sim_read(0).copies[CTRT_COPY_TO_HOST] == copies, "a block larger than the device made other blocks spill");
    if (!CHECK_OK(ctrt_full(&a, CTRT_SHAPE(24 * MIB / 4), ctrt_float(1), CTRT_F32, device))
        || !CHECK_OK(ctrt_full(&b, CTRT_SHAPE(24 * MIB / 4), ctrt_float(2), CTRT_F32, device)))
        return;
    /* The sum needs all three tensors on the device at the same time. */
    CHECK_FAILS(ctrt_add(&c, a, b), CTRT_ERR_OUT_OF_MEMORY, "in use and cannot be moved");
    CHECK(total(a) == 24 * MIB / 4 && total(b) == 24 * MIB / 2, "the operands have changed");
    CHECK_OK(ctrt_add_(a, b));
    CHECK(total(a) == 3.0 * 24 * MIB / 4, "the sum in place is wrong");
}

static void addresses(ctrt_device *device)
{
    CTRT_AUTO(tensor) a = full(3, 100, device), view = NULL, copy = NULL;
    struct DLManagedTensorVersioned *exported = NULL;
    CHECK(ctrt_tensor_data(a) == NULL && strstr(ctrt_error_message(), "spill+caching of sim:0 moves tensors") != NULL,
          "%s",
          ctrt_error_message());
    CHECK(ctrt_to_dlpack(&exported, a) != CTRT_OK, "ctrt_to_dlpack exported a tensor that spill can move");
    /* Strided operands are copied to temporary memory, which no tensor owns. */
    CHECK_OK(ctrt_reshape(&view, a, CTRT_SHAPE(10, 10)));
    CHECK_OK(ctrt_transpose(&view, view, 0, 1));
    CHECK_OK(ctrt_contiguous(&copy, view, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_matmul(&copy, view, view));
    CHECK(total(copy) == 9000, "the product's sum is %g", total(copy));
    CHECK(total(view) == 300, "the sum of a transposed view is %g", total(view));
}

/* Allocates more than the device holds while fault n is injected, for increasing n until the fault does not occur. */
static void every(ctrt_device *device, const char *fault, bool may_fail)
{
    int failures = 0;
    for (int n = 1; n <= 200; n++) {
        ctrt_tensor *tensors[TENSORS] = { NULL };
        char text[32];
        int made = 0;
        snprintf(text, sizeof text, fault, n);
        CHECK_OK(sim->inject(0, text));
        const sim_counters before = sim_read(0);
        ctrt_status status = fill_up(tensors, &made, device);
        const sim_counters after = sim_read(0);
        const char *words = status != CTRT_OK ? ctrt_error_message() : "";
        CHECK(status == CTRT_OK || (may_fail && status == CTRT_ERR_OUT_OF_MEMORY &&
                                    strstr(words, "out of memory on sim:0") != NULL), "%s: %s",
              text, words);
        failures += status != CTRT_OK;
        CHECK_OK(sim->clear(0));
        check_all(tensors, made, text);
        CHECK(ctrt_memory_allocated(device) == (uint64_t)made * 4 * MIB, "%s: %llu bytes are allocated", text,
              (unsigned long long)ctrt_memory_allocated(device));
        release(tensors);
        check_empty(device, 0, text);
        const uint64_t calls = strncmp(fault, "host", 4) == 0 ? after.host_allocs - before.host_allocs
            : after.allocs - before.allocs;
        if (status == CTRT_OK && calls < (uint64_t)n)
            break;
        CHECK(n < 200, "%s still occurs at n = 200", fault);
    }
    CHECK(!may_fail || failures > 0, "%s: no allocation failed", fault);
}

static void small_host(ctrt_device *device)
{
    ctrt_tensor *tensors[TENSORS] = { NULL };
    int made = 0;
    CHECK_FAILS(fill_up(tensors, &made, device), CTRT_ERR_OUT_OF_MEMORY, "pinned");
    CHECK(made >= 15 && made < TENSORS, "%d tensors were created, expected 15 to 23", made);
    check_all(tensors, made, "little pinned memory");
    release(tensors);
    check_empty(device, 0, "little pinned memory");
}

/* Enqueued work fails after the call has returned: the n-th kernel, or the whole device at its n-th piece of work. */
static void late(ctrt_device *device, const char *fault, ctrt_status wanted)
{
    int failures = 0;
    for (int n = 1; n <= 61; n += 3) {
        ctrt_tensor *tensors[TENSORS] = { NULL };
        CTRT_AUTO(stream) stream = NULL;
        char text[32];
        int made = 0;
        snprintf(text, sizeof text, fault, n);
        CHECK_OK(sim->inject(0, text));
        ctrt_status status = fill_up(tensors, &made, device);
        for (int i = 0; i < made && status == CTRT_OK; i++)
            status = ctrt_add_(tensors[i], tensors[i]);
        ctrt_status told = ctrt_device_synchronize(device);
        CHECK(status == CTRT_OK || status == wanted, "%s: %s", text, ctrt_error_message());
        CHECK(told == CTRT_OK || told == wanted, "%s: %s", text, ctrt_error_message());
        failures += told != CTRT_OK;
        release(tensors);
        CHECK(ctrt_memory_allocated(device) == 0, "%s: %llu bytes are left", text,
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK_OK(sim->clear(0));
        if (CHECK_OK(ctrt_stream_current(&stream, device)))
            CHECK_OK(ctrt_stream_reset(stream));
        check_empty(device, 0, text);
        /* After the reset the device works again. */
        CHECK_OK(fill_up(tensors, &made, device));
        check_all(tensors, made, text);
        release(tensors);
        check_empty(device, 0, text);
    }
    CHECK(failures > 10, "%s: %d failures only", fault, failures);
}

/* A forked child cannot free the parent's device memory; releasing tensors only updates the child's statistics. */
static void forked(const char *policy)
{
    group("%s: releasing tensors in a forked child updates only its statistics", policy);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", policy) {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = full(1, N, device);
        CTRT_AUTO(tensor) y = full(2, N, device);
        CHECK_OK(ctrt_device_synchronize(device));
        const uint64_t reserved = ctrt_memory_reserved(device);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            tap_state.failed = 0;
            alarm(20);
            ctrt_tensor_release(&x);
            CHECK(ctrt_memory_allocated(device) == 4 * MIB, "%llu bytes are allocated",
                  (unsigned long long)ctrt_memory_allocated(device));
            ctrt_tensor_release(&y);
            CHECK(ctrt_memory_allocated(device) == 0 && ctrt_memory_reserved(device) == reserved,
                  "%llu bytes are allocated, %llu reserved of "
                  "%llu", (unsigned long long)ctrt_memory_allocated(device),
                  (unsigned long long)ctrt_memory_reserved(device),
                  (unsigned long long)reserved);
            fflush(stdout);
            _exit(tap_state.failed > 0);
        }
        child_join(child, __FILE__, __LINE__);
        CHECK(ctrt_memory_allocated(device) == 8 * MIB, "the child changed the parent's statistics");
    }
    CHILD_END;
}

TEST_MAIN
{
    options();
    forked("CTRT_MEMORY=direct");
    forked("CTRT_MEMORY=caching");
    forked("CTRT_MEMORY=spill+direct");

    group("blocks that cannot fit fail, and addresses of tensors that can move are not exposed");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,poison=yes", "CTRT_MEMORY=spill+caching") {
        ctrt_device *device = sim_open("sim:0");
        addresses(device);
        too_large(device);
        check_empty(device, 0, "too large");
    }
    CHILD_END;

    group("too little pinned memory by the option `host` or on the device gives CTRT_ERR_OUT_OF_MEMORY");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,poison=yes", "CTRT_MEMORY=spill:host=9m+caching") {
        small_host(sim_open("sim:0"));
    }
    CHILD_END;
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,poison=yes,pinned=9m", "CTRT_MEMORY=spill+caching") {
        small_host(sim_open("sim:0"));
    }
    CHILD_END;

    group("the n-th device or pinned allocation fails, once or from then on, without loss of values or leaks");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,poison=yes", "CTRT_MEMORY=spill+caching") {
        ctrt_device *device = sim_open("sim:0");
        every(device, "alloc:%d", false);
        every(device, "alloc:%d+", true);
        every(device, "host:%d", false);
        every(device, "host:%d+", true);
    }
    CHILD_END;

    group("work that fails after the call, and a lost device, are reported and leak nothing");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,poison=yes", "CTRT_MEMORY=spill+caching") {
        ctrt_device *device = sim_open("sim:0");
        late(device, "op:%d", CTRT_ERR_BACKEND);
        late(device, "lost:%d", CTRT_ERR_DEVICE_LOST);
    }
    CHILD_END;
    return done();
}
