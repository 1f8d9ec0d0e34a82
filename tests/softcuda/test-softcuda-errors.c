/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-errors.c: softcuda detects the errors of faulty kernels, of accesses to memory, of
 * unordered streams and of captures. That it runs correct programs correctly is shown by the tests of the cuda backend
 * and by the conformance suite. */
#include <sys/wait.h>
#include <unistd.h>

#include "../../backends/cuda/host/driver_api.h"
#include "api.h"
#undef TRY
#include "calls.h"
#include "control.h"
#include "tap.h"
#include "test-kernels.h"

#define MIB ((size_t)1 << 20)

extern struct softcuda_control softcuda_control;

result cuCtxSynchronize(void);
result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static struct cuda_driver cuda;         /* the functions in the versions that the backend uses */

__attribute__((constructor)) static void find_functions(void)
{
    int found;
#define DRIVER(name, symbol, needed, arguments) cuGetProcAddress_v2(symbol, (void **)&cuda.name, 12000, 0, &found);
#include "../../backends/cuda/host/driver.def"
#undef DRIVER
}

#define SUCCEEDS(call)       CHECK_EQ(call, CUDA_SUCCESS)
#define REFUSED(error, call) CHECK_EQ(call, CUDA_ERROR_##error)

static cu_context contexts[2];
static cu_stream stream, other;
static cu_event event;
static cu_library library;
static address block;                   /* 64 KiB of device 0 */

/* Replaces the context of device 0, which may have an error, by a new one. */
static void reset(void)
{
    SUCCEEDS(cuda.context_release(0));
    SUCCEEDS(cuda.context_retain(&contexts[0], 0));
    SUCCEEDS(cuda.context_set(contexts[0]));
    SUCCEEDS(cuda.stream_create(&stream, STREAM_NON_BLOCKING, 0));
    SUCCEEDS(cuda.stream_create(&other, STREAM_NON_BLOCKING, 0));
    SUCCEEDS(cuda.event_create(&event, EVENT_DISABLE_TIMING));
    SUCCEEDS(cuda.memory_alloc(&block, 65536));
}

static result launch(const char *name, unsigned grid, unsigned threads, cu_stream on, const void *arguments)
{
    void *list[] = { (void *)(uintptr_t)arguments, NULL };
    cu_kernel found = NULL;
    SUCCEEDS(cuda.library_kernel(&found, library, name));
    return cuda.launch(found, grid, 1, 1, threads, 1, 1, 0, on, list, NULL);
}

/* The 8 bytes at an address of a device. */
static uint64_t number_at(address at)
{
    uint64_t value = 0;
    SUCCEEDS(cuda.copy_to_host(&value, at, 8, stream));
    return value;
}

static float *floats(size_t bytes)
{
    address out = 0;
    SUCCEEDS(cuda.memory_alloc(&out, bytes));
    return (float *)(uintptr_t)out;
}

/* Launches a faulty kernel and checks the resulting error, which stays, and the reported text. */
static void check_fault(const char *name, unsigned threads, const void *arguments, result wanted, const char *words)
{
    const uint64_t before = softcuda_control.faults();
    address refused = 0;
    SUCCEEDS(launch(name, 1, threads, stream, arguments));
    const result got = cuda.stream_synchronize(stream);
    CHECK(got == wanted, "%s: error %d, expected %d with \"%s\"", name, got, wanted, words);
    CHECK_EQ(softcuda_control.faults(), before + 1);
    CHECK_EQ(cuda.memory_alloc(&refused, 16), wanted);
    CHECK_HAS(softcuda_control.fault_text(), words);
    CHECK_HAS(softcuda_control.fault_text(), name);
    reset();
}

/* ---- kernels ---- */

TEST(kernels, "faulty kernels: barriers, warps, accesses outside memory, races; new shared memory is not zero")
{
    enum { WRITTEN, FREED, PAGEABLE, UNALIGNED };           /* what the kernel accesses */
    enum { FAILED = CUDA_ERROR_LAUNCH_FAILED, ILLEGAL = CUDA_ERROR_ILLEGAL_ADDRESS };
    static const struct { const char *name; unsigned threads; int bytes, n, kind; result error; const char *words; }
    cases[] = {
        { "bad_barrier", 64, 4096, 0, WRITTEN, FAILED, "test-kernels.cu:" },
        { "bad_two_barriers", 64, 4096, 0, WRITTEN, FAILED, "diverges" },
        { "bad_mask", 32, 4096, 0, WRITTEN, FAILED, "lane 16 itself is not" },
        { "bad_matrix", 32, 4096, 0, WRITTEN, FAILED, "mma by the lanes ffffffdf of a warp alone" },
        { "bad_overrun", 64, 40, 10, WRITTEN, ILLEGAL, "byte 40 of a block of 40 bytes of device 0" },
        { "bad_index", 64, 256, 0, WRITTEN, ILLEGAL, "is not in the array" },
        { "bad_overrun", 64, 1000, 10, FREED, ILLEGAL, "that was freed" },
        { "bad_host", 1, 16, 0, PAGEABLE, ILLEGAL, "neither device memory nor pinned" },
        { "bad_alignment", 1, 64, 0, UNALIGNED, CUDA_ERROR_MISALIGNED_ADDRESS, "no multiple of 16" },
        { "bad_race", 64, 256, -1, WRITTEN, FAILED, "thread (1,0,0) reads what thread (0,0,0) wrote" },
        { "bad_race", 64, 256, 1, WRITTEN, FAILED, "thread (1,0,0) writes what thread (0,0,0) read" },
    };
    float pageable[4] = { 0 };
    EACH(c, cases) {
        struct vector_args args = { .out = floats((size_t)c->bytes), .a = pageable, .n = c->n };
        if (c->kind == FREED)
            SUCCEEDS(cuda.memory_free((uintptr_t)args.out));
        if (c->kind == UNALIGNED)
            args.a = args.out;
        check_fault(c->name, c->threads, &args, c->error, c->words);
    }
    struct vector_args args = { (float *)(uintptr_t)block, NULL, NULL, 2 };
    SUCCEEDS(launch("bad_zeros", 1, 1, stream, &args));
    SUCCEEDS(cuda.stream_synchronize(stream));
    CHECK_EQ(number_at(block), 0xffffffff);
}

/* ---- memory ---- */

/* Includes the errors of an allocator with growing segments: access to a page without access rights after one with
 * access, and writes to a read-only page. */
TEST(memory, "virtual memory that is not mapped, or without the access rights")
{
    const cu_allocation_properties properties = { .type = ALLOCATION_PINNED, .location = { LOCATION_DEVICE, 0 } };
    const cu_access access = { { LOCATION_DEVICE, 0 }, ACCESS_READWRITE },
                    reading = { { LOCATION_DEVICE, 0 }, ACCESS_READ };
    const size_t page = 2 * MIB;
    address begin = 0, there = 0;
    unsigned long long pages[2];
    uint64_t value = 3;
    SUCCEEDS(cuda.address_reserve(&begin, 4 * page, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(cuda.allocation_create(&pages[i], page, &properties, 0));
        SUCCEEDS(cuda.map(begin + (size_t)i * page, page, 0, pages[i], 0));
    }
    REFUSED(INVALID_VALUE, cuda.map(begin, page, 0, pages[0], 0));
    REFUSED(INVALID_VALUE, cuda.map(begin + 4 * page, page, 0, pages[0], 0));
    REFUSED(INVALID_VALUE, cuda.address_free(begin, 4 * page));
    REFUSED(INVALID_VALUE, cuda.unmap(begin, page / 2));
    REFUSED(INVALID_VALUE, cuda.set_access(begin, 3 * page, &access, 1));
    REFUSED(INVALID_VALUE, cuda.copy_to_device(begin, &value, 8, stream));
    const struct number_args inside = { (uint64_t *)(uintptr_t)begin, 5 },
                             beyond = { (uint64_t *)(uintptr_t)(begin + page), 5 };
    SUCCEEDS(cuda.set_access(begin, page, &access, 1));
    SUCCEEDS(cuda.fill_bytes(begin, 0, page, stream));
    SUCCEEDS(launch("add_number", 1, 1, stream, &inside));
    SUCCEEDS(cuda.stream_synchronize(stream));
    CHECK_EQ(number_at(begin), 5);
    REFUSED(INVALID_VALUE, cuda.fill_bytes(begin, 0, page + 8, stream));
    REFUSED(INVALID_VALUE, cuda.copy_to_device(begin + page, &value, 8, stream));
    check_fault("add_number", 1, &beyond, CUDA_ERROR_ILLEGAL_ADDRESS, "not mapped, or not for this device");
    SUCCEEDS(cuda.set_access(begin + page, page, &reading, 1));
    SUCCEEDS(cuda.copy_to_host(&value, begin + page, 8, stream));
    REFUSED(INVALID_VALUE, cuda.copy_to_device(begin + page, &value, 8, stream));
    REFUSED(INVALID_VALUE, cuda.fill_bytes(begin + page, 0, 8, stream));
    float *read_only = (float *)(uintptr_t)(begin + page), *written = (float *)(uintptr_t)begin;
    const struct vector_args sum = { read_only, written, written, 1 };
    check_fault("vector_add", 1, &sum, CUDA_ERROR_ILLEGAL_ADDRESS, "is read-only for device 0");
    SUCCEEDS(cuda.allocation_release(pages[0]));
    SUCCEEDS(cuda.unmap(begin, 2 * page));
    check_fault("add_number", 1, &inside, CUDA_ERROR_ILLEGAL_ADDRESS, "virtual memory that is not mapped");
    SUCCEEDS(cuda.allocation_release(pages[1]));
    SUCCEEDS(cuda.address_free(begin, 4 * page));

    group("memory of another device; copies outside a block; frees of other addresses");
    SUCCEEDS(cuda.context_set(contexts[1]));
    SUCCEEDS(cuda.memory_alloc(&there, 64));
    SUCCEEDS(cuda.context_set(contexts[0]));
    const struct number_args args = { (uint64_t *)(uintptr_t)there, 4 };
    check_fault("add_number", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS,
                "of device 1, whose memory device 0 has no access to");
    SUCCEEDS(cuda.memory_free(there));
    REFUSED(INVALID_VALUE, cuda.memory_free(there));
    REFUSED(INVALID_VALUE, cuda.memory_free(block + 512));
    REFUSED(INVALID_VALUE, cuda.copy_to_host(&value, block + 65530, 8, stream));
    SUCCEEDS(cuda.copy_to_host(&value, block, 8, stream));
    CHECK_EQ(value, UINT64_MAX);                                    /* new memory is not zero */
}

static void call_driver(void *argument)
{
    address at;
    *(result *)argument = cuda.memory_alloc(&at, 8);
}

TEST(host_memory, "pinned memory is accessed in stream order, pageable memory at the call; host functions call no "
                  "driver")
{
    const struct number_args spin = { (uint64_t *)(uintptr_t)(block + 64), 3000000 };
    uint64_t *pinned, pageable = 7;
    result refused = -1;
    SUCCEEDS(cuda.host_call(stream, call_driver, &refused));
    SUCCEEDS(cuda.stream_synchronize(stream));
    SUCCEEDS(cuda.host_alloc((void **)&pinned, 64, 0));
    CHECK_EQ(refused, CUDA_ERROR_NOT_PERMITTED);
    pinned[0] = 1;
    SUCCEEDS(launch("spin", 1, 1, stream, &spin));
    SUCCEEDS(cuda.copy_to_device(block, pinned, 8, stream));
    SUCCEEDS(cuda.copy_to_device(block + 8, &pageable, 8, stream));
    pinned[0] = 2;
    pageable = 8;
    SUCCEEDS(cuda.stream_synchronize(stream));
    SUCCEEDS(cuda.host_free(pinned));
    CHECK_EQ(number_at(block), 2);
    CHECK_EQ(number_at(block + 8), 7);
}

/* AddressSanitizer must end a process whose host code accesses device memory. */
static void test_host_access(void)
{
#if defined(__SANITIZE_ADDRESS__)
    group("the host cannot access device memory");
    for (int freed = 0; freed < 2; freed++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            address at = 0;
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

/* ---- streams ---- */

static uint64_t reported;               /* faults before the calls that are to be checked */

/* Checks whether faults were reported since the last call. Both sides of a conflict may be reported. Synchronizes, so
 * that later uses are ordered. */
static void expect(const char *what, const char *words)
{
    SUCCEEDS(cuCtxSynchronize());
    const uint64_t got = softcuda_control.faults() - reported;
    CHECK(words != NULL ? got == 1 || got == 2 : got == 0, "%s: %llu faults: %s", what, (unsigned long long)got,
          softcuda_control.fault_text());
    CHECK(words == NULL || strstr(softcuda_control.fault_text(), words) != NULL, "%s: \"%s\" lacks \"%s\"", what,
          softcuda_control.fault_text(), words);
    reported += got;
}

static result fill(cu_stream on, size_t at)
{
    return cuda.fill_bytes(block + at, 1, 4096, on);
}

static result copy(cu_stream on, size_t to, size_t from)
{
    return cuda.copy_on_device(block + to, block + from, 4096, on);
}

static result follow(cu_stream later, cu_stream earlier)
{
    const result recorded = cuda.event_record(event, earlier);
    return recorded != CUDA_SUCCESS ? recorded : cuda.stream_wait(later, event, 0);
}

TEST(order, "exactly the unordered uses of memory are reported, independent of timing")
{
    const struct vector_args half = { (float *)(uintptr_t)(block + 8192), (float *)(uintptr_t)block,
                                      (float *)(uintptr_t)block, 1024 },
                             rest = { (float *)(uintptr_t)(block + 16384), (float *)(uintptr_t)block,
                                      (float *)(uintptr_t)(block + 8192), 1024 };
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    reported = softcuda_control.faults();
    for (int round = 0; round < 5; round++) {
        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(copy(other, 8192, 0));
        expect("read of what was written", "a copy on stream");
        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(follow(other, stream));
        SUCCEEDS(copy(other, 8192, 0));
        expect("an event between", NULL);
        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(cuda.stream_synchronize(stream));
        SUCCEEDS(copy(other, 8192, 0));
        SUCCEEDS(cuda.event_record(event, other));
        SUCCEEDS(cuda.event_synchronize(event));
        SUCCEEDS(fill(stream, 0));
        expect("the host waited", NULL);
        SUCCEEDS(copy(stream, 8192, 0));
        SUCCEEDS(copy(other, 16384, 0));
        SUCCEEDS(follow(stream, other));
        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(fill(other, 4096));
        expect("two readers, then a writer; the memory next to it", NULL);
        SUCCEEDS(copy(stream, 8192, 0));
        SUCCEEDS(fill(other, 0));
        expect("written while it is read", "a fill on stream");

        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(launch("vector_add", 4, 64, stream, &half));
        SUCCEEDS(follow(other, stream));
        SUCCEEDS(launch("vector_add", 4, 64, other, &rest));
        expect("ordered kernels", NULL);
        SUCCEEDS(launch("vector_add", 4, 64, stream, &half));
        SUCCEEDS(launch("vector_add", 4, 64, other, &rest));
        expect("one kernel reads what the other writes", "vector_add on stream");

        SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED));
        SUCCEEDS(fill(stream, 0));
        SUCCEEDS(launch("vector_add", 4, 64, stream, &half));
        SUCCEEDS(cuda.capture_end(stream, &graph));
        SUCCEEDS(cuda.graph_instantiate(&exec, graph, 0));
        SUCCEEDS(cuda.graph_launch(exec, stream));
        SUCCEEDS(cuda.graph_launch(exec, stream));
        SUCCEEDS(follow(other, stream));
        SUCCEEDS(launch("vector_add", 4, 64, other, &rest));
        expect("an ordered graph", NULL);
        SUCCEEDS(cuda.graph_launch(exec, stream));
        SUCCEEDS(fill(other, 8192));
        expect("a graph that is not ordered", "");
        SUCCEEDS(cuda.graph_exec_destroy(exec));
        SUCCEEDS(cuda.graph_destroy(graph));
    }
}

TEST(captures, "calls that invalidate a capture")
{
    const struct number_args args = { (uint64_t *)(uintptr_t)block, 1 };
    cu_graph graph = NULL;
    address refused;
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_THREAD_LOCAL));
    REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuda.memory_alloc(&refused, 16));
    REFUSED(STREAM_CAPTURE_INVALIDATED, launch("add_number", 1, 1, stream, &args));
    REFUSED(STREAM_CAPTURE_INVALIDATED, cuda.capture_end(stream, &graph));
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED));
    SUCCEEDS(cuda.memory_alloc(&refused, 16));
    SUCCEEDS(cuda.memory_free(refused));
    REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuda.stream_synchronize(stream));
    REFUSED(STREAM_CAPTURE_INVALIDATED, cuda.capture_end(stream, &graph));
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED));
    SUCCEEDS(cuda.stream_synchronize(other));
    REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
    REFUSED(STREAM_CAPTURE_INVALIDATED, cuda.capture_end(stream, &graph));
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED));
    SUCCEEDS(cuda.context_set(contexts[1]));
    SUCCEEDS(cuCtxSynchronize());
    SUCCEEDS(cuda.context_set(contexts[0]));
    SUCCEEDS(cuda.capture_end(stream, &graph));
    SUCCEEDS(cuda.graph_destroy(graph));
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED)); /* with work of another stream that is not joined */
    SUCCEEDS(follow(other, stream));
    SUCCEEDS(launch("add_number", 1, 1, other, &args));
    REFUSED(CAPTURED_EVENT, cuda.event_query(event));
    REFUSED(STREAM_CAPTURE_UNMATCHED, cuda.capture_end(other, &graph));
    REFUSED(STREAM_CAPTURE_UNJOINED, cuda.capture_end(stream, &graph));
    CHECK(graph == NULL, "the failed capture returned a graph");
    SUCCEEDS(cuda.event_record(event, other));
    SUCCEEDS(cuda.capture_begin(stream, CAPTURE_RELAXED));       /* uncaptured work */
    REFUSED(STREAM_CAPTURE_ISOLATION, cuda.stream_wait(stream, event, 0));
    REFUSED(STREAM_CAPTURE_INVALIDATED, cuda.capture_end(stream, &graph));
    REFUSED(ILLEGAL_STATE, cuda.capture_end(stream, &graph));
}

TEST_MAIN
{
    int devices = 0;
    setenv("SOFTCUDA", "devices=2,memory=64m,streams=report,quiet=yes", 1);
    test_host_access();
    group("initialization");
    SUCCEEDS(cuda.init(0));
    SUCCEEDS(cuda.device_count(&devices));
    for (int i = 0; i < devices; i++)
        SUCCEEDS(cuda.context_retain(&contexts[i], i));
    SUCCEEDS(cuda.context_set(contexts[0]));
    SUCCEEDS(cuda.library_load(&library, "softcuda:" TEST_KERNELS, NULL, NULL, 0, NULL, NULL, 0));
    reset();
    return run_tests();
}
