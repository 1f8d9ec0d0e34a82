/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-memory.c: limits and errors of device memory, stream-ordered memory, virtual memory and
 * peer access; injected failures; settings. Each configuration of softcuda runs in its own process. */
#include "fixture.h"

#include "child.h"

#define MIB ((size_t)1 << 20)

static void run_limits(void)
{
    address a = 0, b = 0;
    size_t unused = 0, total = 0;
    uint32_t word = 0;
    group("a device has the configured amount of memory");
    OK(cuda.memory_alloc(&a, 40 * MIB));
    CHECK_EQ(cuda.memory_alloc(&b, 24 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuda.memory_alloc(&b, 24 * MIB));
    OK(cuda.memory_info(&unused, &total));
    CHECK_EQ(unused, 0);
    CHECK_EQ(total, 64 * MIB);
    CHECK_EQ(cuda.memory_free(a + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.memory_free(a));
    CHECK_EQ(cuda.memory_free(a), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.memory_free(b));
    for (int i = 0; i < 3000; i++) {                                /* addresses are reused cyclically */
        OK(cuda.memory_alloc(&a, 3 * MIB + (size_t)i));
        OK(cuda.memory_free(a));
    }
    CHECK_EQ(softcuda_control.live_bytes(0), 0);

    group("new memory is not zero; copies outside a block are refused");
    OK(cuda.memory_alloc(&a, 4));
    OK(cuda.copy_to_host(&word, a, 4, stream));
    CHECK_EQ(word, 0xffffffff);
    CHECK_EQ(cuda.copy_to_host(&word, a + 1, 4, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.memory_free(a));
    CHECK_EQ(cuda.copy_to_host(&word, a, 4, stream), CUDA_ERROR_INVALID_VALUE);
}

/* Allocates from the pool and frees on the stream, and waits for it. */
static void use_pool(cu_pool pool, size_t bytes)
{
    address at = 0;
    OK(cuda.alloc_from_pool(&at, bytes, pool, stream));
    OK(cuda.free_async(at, stream));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(softcuda_control.live_blocks(0), 0);
    CHECK_EQ(cuda.free_async(at, stream), CUDA_ERROR_INVALID_VALUE);
}

static void run_pools(void)
{
    const cu_pool_properties properties = { .type = ALLOCATION_PINNED, .location = { LOCATION_DEVICE, 0 } };
    uint64_t threshold = 32 * MIB;
    cu_pool pool = NULL;
    address at = 0;
    group("a pool keeps freed memory up to its threshold, until it is trimmed or destroyed");
    OK(cuda.pool_create(&pool, &properties));
    use_pool(pool, 30 * MIB);
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
    OK(cuda.pool_set(pool, POOL_THRESHOLD, &threshold));
    use_pool(pool, 30 * MIB);
    CHECK_EQ(softcuda_control.live_bytes(0), 30 * MIB);
    CHECK_EQ(cuda.memory_alloc(&at, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    use_pool(pool, 40 * MIB);
    OK(cuda.pool_trim(pool, 0));
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
    OK(cuda.alloc_from_pool(&at, 30 * MIB, pool, stream));
    OK(cuda.pool_destroy(pool));
    CHECK_EQ(cuda.pool_destroy(pool), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.fill_bytes(at, 1, 30 * MIB, stream));                   /* existing allocations remain valid */
    OK(cuda.free_async(at, stream));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
}

static void run_peers(void)
{
    address here = 0, there = 0;
    uint64_t value = 5;
    group("memory of another device");
    OK(cuda.context_set(contexts[1]));
    OK(cuda.memory_alloc(&there, 64));
    OK(cuda.context_set(contexts[0]));
    OK(cuda.memory_alloc(&here, 64));
    OK(cuda.copy_to_device(here, &value, 8, stream));
    OK(cuda.copy_peer(there, contexts[1], here, contexts[0], 8, stream));
    CHECK_EQ(cuda.copy_peer(there, contexts[0], here, contexts[1], 8, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.context_enable_peer(contexts[1], 0));
    CHECK_EQ(cuda.context_enable_peer(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    const struct number_args args = { (uint64_t *)(uintptr_t)there, 4 };
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(read_number(there), 19);
    reset();                                                        /* this also disables peer access */
    check_fault("add_number", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS,
                "of device 1, whose memory device 0 has no access to");
    OK(cuda.memory_free(there));
}

/* Includes the errors of an allocator with growing segments: access to a page without access rights after one with
 * access, and writes to a read-only page. */
static void run_virtual(void)
{
    const cu_allocation_properties properties = { .type = ALLOCATION_PINNED, .location = { LOCATION_DEVICE, 0 } };
    const cu_access access = { { LOCATION_DEVICE, 0 }, ACCESS_READWRITE },
                             reading = { { LOCATION_DEVICE, 0 }, ACCESS_READ },
                             other = { { LOCATION_DEVICE, 1 }, ACCESS_READWRITE },
                             none = { { LOCATION_DEVICE, 1 }, 0 };
    const size_t page = 2 * MIB;
    address begin = 0;
    unsigned long long pages[2];
    uint64_t value = 3;
    group("virtual memory: mappings");
    OK(cuda.address_reserve(&begin, 4 * page, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuda.allocation_create(&pages[i], page, &properties, 0));
        OK(cuda.map(begin + (size_t)i * page, page, 0, pages[i], 0));
    }
    CHECK_EQ(softcuda_control.live_bytes(0), 2 * page);
    CHECK_EQ(cuda.map(begin, page, 0, pages[0], 0), CUDA_ERROR_INVALID_VALUE);      /* already mapped */
    CHECK_EQ(cuda.map(begin + 4 * page, page, 0, pages[0], 0), CUDA_ERROR_INVALID_VALUE); /* not reserved */
    CHECK_EQ(cuda.address_free(begin, 4 * page), CUDA_ERROR_INVALID_VALUE);         /* still mapped */
    CHECK_EQ(cuda.unmap(begin, page / 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda.set_access(begin, 3 * page, &access, 1), CUDA_ERROR_INVALID_VALUE); /* the third is not mapped */

    group("virtual memory: a page without access rights");
    const struct number_args inside = { (uint64_t *)(uintptr_t)begin, 5 },
                             beyond = { (uint64_t *)(uintptr_t)(begin + page), 5 };
    softcuda_control.print_faults(false);
    CHECK_EQ(cuda.copy_to_device(begin, &value, 8, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.set_access(begin, page, &access, 1));
    OK(cuda.fill_bytes(begin, 0, page, stream));
    OK(launch("add_number", 1, 1, 0, stream, &inside));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(read_number(begin), 5);
    CHECK_EQ(cuda.fill_bytes(begin, 0, page + 8, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda.copy_to_device(begin + page, &value, 8, stream), CUDA_ERROR_INVALID_VALUE);
    check_fault("add_number", 1, &beyond, CUDA_ERROR_ILLEGAL_ADDRESS, "not mapped, or not for this device");
    OK(cuda.set_access(begin + page, page, &other, 1));
    check_fault("add_number", 1, &beyond, CUDA_ERROR_ILLEGAL_ADDRESS, "not mapped, or not for this device");

    group("virtual memory: a read-only page");
    OK(cuda.set_access(begin + page, page, &none, 1));
    OK(cuda.set_access(begin, 2 * page, &access, 1));
    OK(cuda.fill_bytes(begin, 0, 2 * page, stream));                /* across the boundary of two pages */
    OK(cuda.stream_synchronize(stream));
    OK(cuda.set_access(begin + page, page, &reading, 1));
    OK(cuda.copy_to_host(&value, begin + page, 8, stream));
    CHECK_EQ(value, 0);
    CHECK_EQ(cuda.copy_to_device(begin + page, &value, 8, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuda.fill_bytes(begin + page, 0, 8, stream), CUDA_ERROR_INVALID_VALUE);
    float *read_only = (float *)(uintptr_t)(begin + page), *written = (float *)(uintptr_t)begin;
    struct vector_args sum = { written, read_only, read_only, 1 };
    OK(launch("vector_add", 1, 1, 0, stream, &sum));
    OK(cuda.stream_synchronize(stream));
    sum = (struct vector_args){ read_only, written, written, 1 };
    check_fault("vector_add", 1, &sum, CUDA_ERROR_ILLEGAL_ADDRESS, "is read-only for device 0");

    group("virtual memory: an unmapped page");
    OK(cuda.allocation_release(pages[0]));
    CHECK_EQ(softcuda_control.live_bytes(0), 2 * page);             /* remains allocated while it is mapped */
    OK(cuda.unmap(begin, 2 * page));
    CHECK_EQ(softcuda_control.live_bytes(0), page);
    check_fault("add_number", 1, &inside, CUDA_ERROR_ILLEGAL_ADDRESS, "virtual memory that is not mapped");
    OK(cuda.allocation_release(pages[1]));
    OK(cuda.address_free(begin, 4 * page));
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
}

static void run_faults(void)
{
    address at = 0, more[3] = { 0 };
    group("injected failures");
    OK(cuda.memory_alloc(&at, 8));
    softcuda_control.inject("cuMemAlloc", softcuda_control.calls("cuMemAlloc") + 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    OK(cuda.memory_alloc(&more[0], 8));
    CHECK_EQ(cuda.memory_alloc(&more[1], 8), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuda.memory_alloc(&more[1], 8));
    softcuda_control.inject("cuEventQuery", 1, CUDA_ERROR_UNKNOWN, true);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(cuda.event_query(NULL), CUDA_ERROR_UNKNOWN);
    softcuda_control.inject_clear();
    CHECK_EQ(cuda.event_query(NULL), CUDA_ERROR_INVALID_HANDLE);

    group("an error of enqueued work is sticky");
    const struct number_args args = { (uint64_t *)(uintptr_t)at, 4 };
    softcuda_control.inject_kernel("add_number", 1, CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(launch("add_number", 1, 1, 0, stream, &args));
    CHECK_EQ(cuda.stream_synchronize(stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQ(cuda.memory_alloc(&more[2], 8), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQ(cuda.memory_free(at), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQ(cuda.stream_destroy(stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(cuda.context_set(contexts[1]));                              /* other contexts are not affected */
    OK(cuda.memory_alloc(&more[2], 8));
    OK(cuda.memory_free(more[2]));
    reset();
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
    OK(cuda.memory_alloc(&at, 8));
}

static void run_entries(void)
{
    static const struct entry_case { const char *name; int version, found; } cases[] = {
        { "cuMemAlloc", 12000, 0 }, { "cuLibraryLoadData", 11080, 2 }, { "cuNothing", 13000, 1 },
    };
    group("entry points by name and version");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *function = NULL;
        int found = -1;
        OK(cuGetProcAddress_v2(cases[i].name, &function, cases[i].version, 0, &found));
        CHECK(found == cases[i].found && (found == 0) == (function != NULL), "%s: found %d, function %p",
              cases[i].name, found, function);
    }
}

/* ---- settings that are read once ---- */

static const struct visible_case { const char *setting; int n, hardware[8]; } visible[] = {
    { "CUDA_VISIBLE_DEVICES=0, 1, 2, -1, 3", 3, { 0, 1, 2 } },
    { "CUDA_VISIBLE_DEVICES=0, 1, 2, 1", 0, { 0 } },
    { "CUDA_VISIBLE_DEVICES=2, +3, -0, 5", 4, { 2, 3, 0, 5 } },
    { "CUDA_VISIBLE_DEVICES=one,two,3,4", 0, { 0 } },
    { "CUDA_VISIBLE_DEVICES=4,3,two,one", 2, { 4, 3 } },
    { "CUDA_VISIBLE_DEVICES=1gpu2,2ampere", 2, { 1, 2 } },
    { "CUDA_VISIBLE_DEVICES=GPU-70,GPU-5f7c0da0", 2, { 1, 0 } },
    { "CUDA_VISIBLE_DEVICES=GPU-9,GPU-", 1, { 3 } },
    { "CUDA_VISIBLE_DEVICES=0,17,1", 1, { 0 } },
    { "CUDA_VISIBLE_DEVICES=", 0, { 0 } },
    { NULL, 6, { 0, 1, 2, 3, 4, 5 } },
};

/* The last byte of a device's UUID is its hardware number. */
static void run_visible(void)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    group("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; i < sizeof visible / sizeof visible[0]; i++) {
        const struct visible_case *v = &visible[i];
        const char *what = v->setting != NULL ? v->setting : "(unset)";
        IN_CHILD("SOFTCUDA=devices=6,memory=16m", v->setting) {
            int n = 0;
            const result made = cuda.init(0);
            CHECK(made == (v->n == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS), "%s: cuInit returned %d", what, made);
            if (v->n > 0)
                OK(cuda.device_count(&n));
            CHECK(n == v->n, "%s: %d devices, expected %d", what, n, v->n);
            for (int k = 0; k < n && n == v->n; k++) {
                cu_uuid id;
                OK(cuda.device_uuid(&id, k));
                CHECK(id.bytes[15] == v->hardware[k], "%s: device %d is %d, expected %d", what, k, id.bytes[15],
                      v->hardware[k]);
            }
        }
        CHILD_END;
    }
}

static void run_settings(void)
{
    address at = 0;
    cu_context context = NULL;
    int value = 0;
    group("settings");
    IN_CHILD("SOFTCUDA=devices=1; memory=1m, fail=cuMemAlloc@2:2+, version=12040, cc=8.6, sms=7") {
        OK(cuda.init(0));
        OK(cuda.context_retain(&context, 0));
        OK(cuda.context_set(context));
        OK(cuda.driver_version(&value));
        CHECK_EQ(value, 12040);
        OK(cuda.device_attribute(&value, ATTRIBUTE_MAJOR, 0));
        CHECK_EQ(value, 8);
        OK(cuda.device_attribute(&value, ATTRIBUTE_MULTIPROCESSORS, 0));
        CHECK_EQ(value, 7);
        OK(cuda.memory_alloc(&at, 8));
        for (int i = 0; i < 2; i++)
            CHECK_EQ(cuda.memory_alloc(&at, 8), CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=0") {
        CHECK_EQ(cuda.init(0), CUDA_ERROR_NO_DEVICE);
    }
    CHILD_END;
    static const char *const wrong[] = { "SOFTCUDA=colour=blue", "SOFTCUDA=devices=17", "SOFTCUDA=order",
                                         "SOFTCUDA=streams=maybe", "SOFTCUDA=fail=cuMemAlloc@0:2" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        IN_CHILD(wrong[i]) {
            freopen("/dev/null", "w", stderr);
            CHECK(cuda.init(0) == CUDA_ERROR_INVALID_VALUE, "%s was accepted", wrong[i]);
        }
        CHILD_END;
    }
    group("a context cannot be used after a fork");
    IN_CHILD("SOFTCUDA=devices=1") {
        OK(cuda.init(0));
        const pid_t child = fork();
        if (child == 0)
            _exit(cuda.init(0) != CUDA_ERROR_NOT_INITIALIZED);
        child_join(child, __FILE__, __LINE__);
    }
    CHILD_END;
}

/* AddressSanitizer must end a process whose host code accesses device memory. */
static void run_host_access(void)
{
#if defined(__SANITIZE_ADDRESS__)
    group("the host cannot access device memory");
    for (int freed = 0; freed < 2; freed++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            address at = 0;
            setenv("SOFTCUDA", "devices=1", 1);
            if (cuda.init(0) != 0 || cuda.context_retain(&contexts[0], 0) != 0 || cuda.context_set(contexts[0]) != 0
                || cuda.memory_alloc(&at, 8) != 0 || (freed && cuda.memory_free(at) != 0))
                _exit(0);
            freopen("/dev/null", "w", stderr);
            _exit(*(volatile unsigned char *)(uintptr_t)at == 77 ? 2 : 0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 1, "an access to %s memory was not reported",
              freed ? "freed" : "allocated");
    }
#endif
}

TEST_MAIN
{
    run_visible();
    run_settings();
    run_host_access();
    setenv("SOFTCUDA", "devices=2,memory=64m", 1);
    start();
    run_limits();
    run_pools();
    run_virtual();
    run_peers();
    run_faults();
    run_entries();
    return done();
}
