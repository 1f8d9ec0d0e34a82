/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-memory.c: device memory, peer access, virtual memory, stream-ordered memory, injected
 * failures, and CUDA_VISIBLE_DEVICES. Each configuration of softcuda runs in its own process. */
#include <sys/wait.h>

#include "bed.h"

#define MIB ((size_t)1 << 20)

static void run_limits(void)
{
    address a = 0, b = 0;
    size_t unused = 0, total = 0;
    group("a device has the configured amount of memory");
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == 64 * MIB, "%zu bytes", total);
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    GIVES(cuMemAlloc_v2(&b, 24 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&b, 24 * MIB));
    OK(cuMemGetInfo_v2(&unused, &total));
    CHECK(unused == 0 && total == 64 * MIB, "%zu of %zu bytes are free", unused, total);
    GIVES(cuMemFree_v2(a + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(a));
    GIVES(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(b));
    for (int i = 0; i < 3000; i++) {                                /* addresses are reused cyclically */
        OK(cuMemAlloc_v2(&a, 3 * MIB + (size_t)i));
        OK(cuMemFree_v2(a));
    }
    CHECK(softcuda_control.live_bytes(0) == 0, "%llu bytes are still allocated",
          (unsigned long long)softcuda_control.live_bytes(0));

    group("new memory is not zero");
    uint32_t word = 0;
    OK(cuMemAlloc_v2(&a, 4));
    OK(cuMemcpyDtoH_v2(&word, a, 4));
    CHECK(word == 0xffffffff, "%08x", word);
    GIVES(cuMemcpyDtoH_v2(&word, a + 1, 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(a));
    GIVES(cuMemcpyDtoH_v2(&word, a, 4), CUDA_ERROR_INVALID_VALUE);
}

static void run_pools(void)
{
    address list[8];
    group("stream-ordered memory");
    for (int i = 0; i < 50; i++) {
        /* more than half, so the previous block must have been freed */
        OK(cuMemAllocAsync(&list[0], 40 * MIB, stream));
        OK(cuMemsetD8Async(list[0], (unsigned char)i, 40 * MIB, stream));
        OK(cuMemFreeAsync(list[0], stream));
    }
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.live_blocks(0) == 0, "%llu blocks are still allocated",
          (unsigned long long)softcuda_control.live_blocks(0));
    GIVES(cuMemFreeAsync(list[0], stream), CUDA_ERROR_INVALID_VALUE);

    group("a pool keeps freed memory up to its threshold, until it is trimmed or destroyed");
    const pool_properties properties = { .type = ALLOCATION_PINNED, .where = { LOCATION_DEVICE, 0 } };
    void *pool = NULL;
    uint64_t threshold = 32 * MIB, value = 0;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&list[0], 30 * MIB, pool, stream));
    OK(cuMemFreeAsync(list[0], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolGetAttribute(pool, POOL_RESERVED, &value));
    CHECK(value == 0, "the pool keeps %llu bytes at threshold 0", (unsigned long long)value);
    OK(cuMemPoolSetAttribute(pool, POOL_THRESHOLD, &threshold));
    OK(cuMemAllocFromPoolAsync(&list[0], 30 * MIB, pool, stream));
    OK(cuMemFreeAsync(list[0], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolGetAttribute(pool, POOL_RESERVED, &value));
    CHECK(value == 30 * MIB, "the pool keeps %llu bytes", (unsigned long long)value);
    GIVES(cuMemAlloc_v2(&list[1], 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocFromPoolAsync(&list[1], 40 * MIB, pool, stream));
    OK(cuMemFreeAsync(list[1], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemAlloc_v2(&list[1], 40 * MIB));
    OK(cuMemFree_v2(list[1]));
    OK(cuMemAllocFromPoolAsync(&list[0], 30 * MIB, pool, stream));
    OK(cuMemPoolDestroy(pool));
    GIVES(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8Async(list[0], 1, 30 * MIB, stream));              /* existing allocations remain valid */
    OK(cuMemFreeAsync(list[0], stream));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.live_bytes(0) == 0, "%llu bytes are still allocated",
          (unsigned long long)softcuda_control.live_bytes(0));
}

static void run_peers(void)
{
    address here = 0, there = 0;
    uint64_t value = 5;
    int can = -1;
    group("memory of another device");
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemAlloc_v2(&there, 64));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuMemAlloc_v2(&here, 64));
    OK(cuMemcpyHtoD_v2(here, &value, 8));
    OK(cuMemcpyPeerAsync(there, contexts[1], here, contexts[0], 8, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.peek(there, &value, 8) && value == 5, "the copy is %llu", (unsigned long long)value);
    GIVES(cuMemcpyPeerAsync(there, contexts[0], here, contexts[1], 8, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1, "device 0 can access 1: %d", can);
    struct number_args args = { (uint64_t *)(uintptr_t)there, 4, 0 };
    softcuda_control.tell(false);
    OK(cuCtxEnablePeerAccess(contexts[1], 0));
    GIVES(cuCtxEnablePeerAccess(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.peek(there, &value, 8) && value == 19, "the kernel wrote %llu, expected 19",
          (unsigned long long)value);
    OK(cuDevicePrimaryCtxReset_v2(0));                              /* this also disables peer access */
    OK(cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, 0));
    goes_wrong("add_number", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS,
               "of device 1, whose memory device 0 has no access to");
    OK(cuMemFree_v2(there));

    group("links: copies between 0 and 2 write zeros; 0 and 2 are not peers in a ring of four");
    OK(cuDeviceCanAccessPeer(&can, 0, 2));
    CHECK(can == 0, "device 0 can access 2: %d", can);
    GIVES(cuCtxEnablePeerAccess(contexts[2], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    OK(cuCtxSetCurrent(contexts[2]));
    OK(cuMemAlloc_v2(&there, 8));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuMemAlloc_v2(&here, 8));
    OK(cuMemcpyHtoD_v2(here, &value, 8));
    OK(cuMemcpyPeerAsync(there, contexts[2], here, contexts[0], 8, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.peek(there, &value, 8) && value == 0, "the copy is %llu", (unsigned long long)value);
    OK(cuMemFree_v2(here));
    OK(cuMemFree_v2(there));
}

static void run_virtual(void)
{
    const allocation_properties wish = { .type = ALLOCATION_PINNED, .handle_types = HANDLE_POSIX,
                                         .where = { LOCATION_DEVICE, 0 } };
    const access_description access = { { LOCATION_DEVICE, 0 }, ACCESS_READWRITE },
                             other = { { LOCATION_DEVICE, 1 }, ACCESS_READWRITE };
    size_t page = 0;
    address begin = 0;
    unsigned long long pages[3], imported = 0;
    group("virtual memory");
    OK(cuMemGetAllocationGranularity(&page, &wish, 0));
    CHECK(page == 2 * MIB, "pages of %zu bytes", page);
    OK(cuMemAddressReserve(&begin, 8 * page, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemCreate(&pages[i], page, &wish, 0));
        OK(cuMemMap(begin + (size_t)i * page, page, 0, pages[i], 0));
    }
    GIVES(cuMemMap(begin, page, 0, pages[0], 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemMap(begin + 8 * page, page, 0, pages[0], 0), CUDA_ERROR_INVALID_VALUE);
    uint64_t value = 3;
    GIVES(cuMemcpyHtoD_v2(begin, &value, 8), CUDA_ERROR_INVALID_VALUE);             /* no access yet */
    OK(cuMemSetAccess(begin, 3 * page, &access, 1));
    CHECK(softcuda_control.live_bytes(0) == 3 * page, "%llu bytes are allocated",
          (unsigned long long)softcuda_control.live_bytes(0));
    OK(cuMemsetD8Async(begin, 0, 3 * page, stream));                                /* across page boundaries */
    OK(cuMemcpyHtoD_v2(begin + 2 * page - 4, &value, 8));
    struct number_args args = { (uint64_t *)(uintptr_t)(begin + page), 5, 0 };
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.peek(begin + page, &value, 8) && value == 5, "the kernel wrote %llu",
          (unsigned long long)value);

    group("virtual memory mapped at two addresses, and imported from a file descriptor");
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, pages[1], HANDLE_POSIX, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, HANDLE_POSIX));
    close(fd);
    OK(cuMemMap(begin + 5 * page, page, 0, imported, 0));
    OK(cuMemSetAccess(begin + 5 * page, page, &access, 1));
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(cuStreamSynchronize(stream));
    CHECK(softcuda_control.peek(begin + 5 * page, &value, 8) && value == 20, "the other address has %llu, expected 20",
          (unsigned long long)value);

    group("virtual memory that is unmapped, or of another device");
    softcuda_control.tell(false);
    GIVES(cuMemAddressFree(begin, 8 * page), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemUnmap(begin, page / 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(begin + 5 * page, page));
    OK(cuMemRelease(imported));
    /* remains allocated while it is mapped */
    OK(cuMemRelease(pages[1]));
    CHECK(softcuda_control.live_bytes(0) == 3 * page, "%llu bytes are allocated",
          (unsigned long long)softcuda_control.live_bytes(0));
    OK(cuMemUnmap(begin, 3 * page));
    goes_wrong("add_number", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "virtual memory that is not mapped");
    OK(cuMemMap(begin + page, page, 0, pages[0], 0));
    OK(cuMemSetAccess(begin + page, page, &other, 1));
    goes_wrong("add_number", 1, &args, CUDA_ERROR_ILLEGAL_ADDRESS, "not for this device");
    OK(cuMemUnmap(begin + page, page));
    OK(cuMemRelease(pages[0]));
    OK(cuMemRelease(pages[2]));
    OK(cuMemAddressFree(begin, 8 * page));
    CHECK(softcuda_control.live_bytes(0) == 0, "%llu bytes are still allocated",
          (unsigned long long)softcuda_control.live_bytes(0));
    softcuda_control.tell(true);
}

/* Errors that an allocator with growing segments can make: access to a page without access rights after one with
 * access, and writes to a read-only page. */
static void run_protection(void)
{
    const allocation_properties wish = { .type = ALLOCATION_PINNED, .where = { LOCATION_DEVICE, 0 } };
    const access_description access = { { LOCATION_DEVICE, 0 }, ACCESS_READWRITE },
                             reading = { { LOCATION_DEVICE, 0 }, ACCESS_READ };
    const size_t page = 2 * MIB;
    address begin = 0;
    unsigned long long pages[2];
    uint64_t value = 3;
    group("a page without access rights, or read-only");
    softcuda_control.tell(false);
    OK(cuMemAddressReserve(&begin, 4 * page, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMemCreate(&pages[i], page, &wish, 0));
        OK(cuMemMap(begin + (size_t)i * page, page, 0, pages[i], 0));
    }
    OK(cuMemSetAccess(begin, page, &access, 1));
    GIVES(cuMemSetAccess(begin, 3 * page, &access, 1), CUDA_ERROR_INVALID_VALUE);   /* the third page is not mapped */
    struct number_args inside = { (uint64_t *)(uintptr_t)begin, 5, 0 },
                       beyond = { (uint64_t *)(uintptr_t)(begin + page), 5, 0 };
    OK(cuMemsetD8Async(begin, 0, page, stream));
    OK(launch("add_number", 1, 1, 0, stream, &inside));
    OK(cuStreamSynchronize(stream));
    GIVES(cuMemsetD8Async(begin, 0, page + 8, stream), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyHtoD_v2(begin + page, &value, 8), CUDA_ERROR_INVALID_VALUE);
    goes_wrong("add_number", 1, &beyond, CUDA_ERROR_ILLEGAL_ADDRESS, "not mapped, or not for this device");
    OK(cuMemSetAccess(begin, 2 * page, &access, 1));
    OK(cuMemsetD8Async(begin, 0, 2 * page, stream));
    OK(launch("add_number", 1, 1, 0, stream, &beyond));
    OK(cuStreamSynchronize(stream));
    OK(cuMemSetAccess(begin + page, page, &reading, 1));
    OK(cuMemcpyDtoH_v2(&value, begin + page, 8));
    CHECK(value == 5, "the value is %llu", (unsigned long long)value);
    GIVES(cuMemcpyHtoD_v2(begin + page, &value, 8), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD8Async(begin + page, 0, 8, stream), CUDA_ERROR_INVALID_VALUE);
    float *read_only = (float *)(uintptr_t)(begin + page), *written = (float *)(uintptr_t)begin;
    struct vector_args sum = { written, read_only, read_only, 1 };
    OK(launch("vector_add", 1, 1, 0, stream, &sum));
    OK(cuStreamSynchronize(stream));
    sum = (struct vector_args){ read_only, written, written, 1 };
    goes_wrong("vector_add", 1, &sum, CUDA_ERROR_ILLEGAL_ADDRESS, "is to read only");
    OK(cuMemUnmap(begin, 2 * page));
    goes_wrong("add_number", 1, &inside, CUDA_ERROR_ILLEGAL_ADDRESS, "not mapped, or not for this device");
    for (int i = 0; i < 2; i++)
        OK(cuMemRelease(pages[i]));
    OK(cuMemAddressFree(begin, 4 * page));
    softcuda_control.tell(true);
}

static void run_faults(void)
{
    address at = 0;
    int notes = 0;
    group("injected failures");
    /* fail=cuMemAlloc@... would count from the start of the process */
    OK(cuMemAlloc_v2(&at, 8));
    softcuda_control.inject("cuMemAlloc", softcuda_control.calls("cuMemAlloc") + 2, CUDA_ERROR_OUT_OF_MEMORY, false);
    address more[3] = { 0 };
    OK(cuMemAlloc_v2(&more[0], 8));
    GIVES(cuMemAlloc_v2(&more[1], 8), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&more[1], 8));
    softcuda_control.inject("cuEventQuery", 1, CUDA_ERROR_UNKNOWN, true);
    for (int i = 0; i < 3; i++)
        GIVES(cuEventQuery(NULL), CUDA_ERROR_UNKNOWN);
    softcuda_control.inject_clear();
    GIVES(cuEventQuery(NULL), CUDA_ERROR_INVALID_HANDLE);

    group("an error of enqueued work is sticky");
    const struct number_args args = { (uint64_t *)(uintptr_t)at, 4, 0 };
    softcuda_control.inject_kernel("add_number", 1, CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(launch("add_number", 1, 1, 0, stream, &args));
    OK(launch("add_number", 1, 1, 0, stream, &args));
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    GIVES(cuMemAlloc_v2(&more[2], 8), CUDA_ERROR_ECC_UNCORRECTABLE);
    GIVES(cuMemFree_v2(at), CUDA_ERROR_ECC_UNCORRECTABLE);
    GIVES(cuStreamDestroy_v2(stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(cuCtxSetCurrent(contexts[1]));                               /* other contexts are not affected */
    OK(cuMemAlloc_v2(&more[2], 8));
    OK(cuMemFree_v2(more[2]));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(softcuda_control.live_bytes(0) == 0, "%llu bytes are allocated after a reset",
          (unsigned long long)softcuda_control.live_bytes(0));
    OK(cuMemAlloc_v2(&at, 8));
    OK(cuMemFree_v2(at));
    (void)notes;
}

static int run_all(void)
{
    group("initialization");
    open_bed();
    run_limits();
    run_pools();
    run_virtual();
    run_protection();
    run_peers();
    run_faults();
    group("entry points by name and version");
    void *function = NULL;
    int found = -1;
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
    CHECK(function == (void *)(uintptr_t)cuMemAlloc_v2 && found == 0, "cuMemAlloc is not cuMemAlloc_v2");
    OK(cuGetProcAddress_v2("cuEventElapsedTime", &function, 13000, 0, &found));
    CHECK(function == (void *)(uintptr_t)cuEventElapsedTime_v2, "cuEventElapsedTime of 13.0 is not its second version");
    OK(cuGetProcAddress_v2("cuLibraryLoadData", &function, 11080, 0, &found));
    CHECK(function == NULL && found == 2, "cuLibraryLoadData in 11.8: found %d", found);
    OK(cuGetProcAddress_v2("cuNothing", &function, 13000, 0, &found));
    CHECK(function == NULL && found == 1, "cuNothing: found %d", found);
    GIVES(cuGetProcAddress_v2("cuNothing", &function, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    return done();
}

/* ---- options that are read once ---- */

static const struct visible { const char *text; int n, hardware[8]; } visible[] = {
    { "0, 1, 2, -1, 3", 3, { 0, 1, 2 } },
    { "0, 1, 2, 1", 0, { 0 } },
    { "2, +3, -0, 5", 4, { 2, 3, 0, 5 } },
    { "one,two,3,4", 0, { 0 } },
    { "4,3,two,one", 2, { 4, 3 } },
    { "1gpu2,2ampere", 2, { 1, 2 } },
    { "GPU-70,GPU-5f7c0da0", 2, { 1, 0 } },
    { "GPU-9,GPU-", 1, { 3 } },
    { "0,17,1", 1, { 0 } },
    { "", 0, { 0 } },
    { NULL, 6, { 0, 1, 2, 3, 4, 5 } },
};

/* The last byte of a device's UUID is its hardware number. Returns 0 if the result is as expected. */
static int check_visible(const struct visible *v)
{
    int n = 0;
    setenv("SOFTCUDA", "devices=6,memory=16m", 1);
    if (v->text != NULL)
        setenv("CUDA_VISIBLE_DEVICES", v->text, 1);
    const result made = cuInit(0);
    if (v->n == 0)
        return made != CUDA_ERROR_NO_DEVICE;
    if (made != CUDA_SUCCESS || cuDeviceGetCount(&n) != CUDA_SUCCESS || n != v->n)
        return 2;
    for (int i = 0; i < n; i++) {
        uuid id;
        if (cuDeviceGetUuid_v2(&id, i) != CUDA_SUCCESS || id.bytes[15] != v->hardware[i])
            return 3 + i;
    }
    return 0;
}

static int check_settings(int which)
{
    address at = 0;
    void *context = NULL;
    int value = 0;
    setenv("SOFTCUDA",
           which == 0 ? "devices=1; memory=1m, fail=cuMemAlloc@2:OUT_OF_MEMORY+, version=12040, cc=8.6, sms=7"
                      : which == 1 ? "devices=0" : "colour=blue,quiet=yes", 1);
    const result made = cuInit(0);
    if (which == 1)
        return made != CUDA_ERROR_NO_DEVICE;
    if (which == 2)
        return made == CUDA_SUCCESS;
    int bad = made != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0;
    bad |= cuDriverGetVersion(&value) != 0 || value != 12040;
    bad |= cuDeviceGetAttribute(&value, ATTRIBUTE_MAJOR, 0) != 0 || value != 8;
    bad |= cuDeviceGetAttribute(&value, ATTRIBUTE_MULTIPROCESSORS, 0) != 0 || value != 7;
    bad |= cuMemAlloc_v2(&at, 8) != 0;
    bad |= cuMemAlloc_v2(&at, 8) != CUDA_ERROR_OUT_OF_MEMORY || cuMemAlloc_v2(&at, 8) != CUDA_ERROR_OUT_OF_MEMORY;
    return bad;
}

/* A context cannot be used after fork. */
static int check_fork(int unused)
{
    (void)unused;
    setenv("SOFTCUDA", "devices=1", 1);
    if (cuInit(0) != CUDA_SUCCESS)
        return 1;
    const pid_t child = fork();
    if (child == 0)
        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

#if defined(__SANITIZE_ADDRESS__)
/* Accesses device memory from the host, which AddressSanitizer must report by ending the process. Returns 0 if it did
 * not. */
static int check_touch(const void *which)
{
    address at = 0;
    void *context = NULL;
    setenv("SOFTCUDA", "devices=1", 1);
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0
        || cuMemAlloc_v2(&at, 8) != 0)
        return 0;
    if (*(const int *)which == 1)
        cuMemFree_v2(at);
    freopen("/dev/null", "w", stderr);
    return *(volatile unsigned char *)(uintptr_t)at == 77 ? 2 : 0;
}
#endif

static int in_child(int (*check)(const void *), const void *argument)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        _exit(check(argument));
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int child_visible(const void *argument) { return check_visible(argument); }
static int child_settings(const void *argument) { return check_settings(*(const int *)argument); }
static int child_fork(const void *argument) { return check_fork(*(const int *)argument); }

TEST_MAIN
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    group("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; i < sizeof visible / sizeof visible[0]; i++) {
        const int bad = in_child(child_visible, &visible[i]);
        CHECK(bad == 0, "\"%s\": %d", visible[i].text != NULL ? visible[i].text : "(unset)", bad);
    }
    group("options");
    for (int i = 0; i < 3; i++)
        CHECK(in_child(child_settings, &i) == 0, "option %d", i);
    CHECK(in_child(child_fork, &(int){ 0 }) == 0, "cuInit after a fork");
#if defined(__SANITIZE_ADDRESS__)
    group("the host cannot access device memory");
    for (int i = 0; i < 2; i++)
        CHECK(in_child(check_touch, &i) % 2 == 1, "the access was not reported");      /* 1, or 255 for a signal */
#endif
    setenv("SOFTCUDA", "devices=4,memory=64m,peers=ring,link=0-2", 1);
    return run_all();
}
