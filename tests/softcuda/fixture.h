/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fixture.h: fixture of the tests of softcuda: prototypes of the entry points, with which they link,
 * contexts, a stream, a library of kernels, and helpers to launch and check. */
#ifndef SOFTCUDA_FIXTURE_H
#define SOFTCUDA_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "control.h"
#include "tap.h"
#include "test-kernels.h"

extern struct softcuda_control softcuda_control;

result cuInit(unsigned flags);
result cuDriverGetVersion(int *version);
result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
result cuDeviceGetCount(int *count);
result cuDeviceGetUuid(uuid *id, int device);
result cuDeviceGetAttribute(int *value, int which, int device);
result cuDevicePrimaryCtxRetain(void **context, int device);
result cuDevicePrimaryCtxRelease_v2(int device);
result cuCtxSetCurrent(void *context);
result cuCtxSynchronize(void);
result cuCtxEnablePeerAccess(void *peer, unsigned flags);
result cuMemGetInfo_v2(size_t *unused, size_t *total);
result cuMemAlloc_v2(address *out, size_t bytes);
result cuMemFree_v2(address begin);
result cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
result cuMemFreeHost(void *begin);
result cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream);
result cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream);
result cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream);
result cuMemcpyPeerAsync(address to, void *to_context, address from, void *from_context, size_t bytes, void *stream);
result cuMemsetD8Async(address to, unsigned char value, size_t count, void *stream);
result cuMemAddressReserve(address *out, size_t bytes, size_t alignment, address hint, unsigned long long flags);
result cuMemAddressFree(address begin, size_t bytes);
result cuMemCreate(unsigned long long *out, size_t bytes, const allocation_properties *properties,
                   unsigned long long flags);
result cuMemRelease(unsigned long long allocation);
result cuMemMap(address begin, size_t bytes, size_t offset, unsigned long long allocation, unsigned long long flags);
result cuMemUnmap(address begin, size_t bytes);
result cuMemSetAccess(address begin, size_t bytes, const access_description *list, size_t n);
result cuMemAllocFromPoolAsync(address *out, size_t bytes, void *pool, void *stream);
result cuMemFreeAsync(address begin, void *stream);
result cuMemPoolCreate(void **out, const pool_properties *properties);
result cuMemPoolDestroy(void *pool);
result cuMemPoolSetAttribute(void *pool, int which, void *value);
result cuMemPoolTrimTo(void *pool, size_t bytes);
result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
result cuStreamDestroy_v2(void *stream);
result cuStreamSynchronize(void *stream);
result cuStreamQuery(void *stream);
result cuStreamWaitEvent(void *stream, void *event, unsigned flags);
result cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
result cuEventCreate(void **event, unsigned flags);
result cuEventDestroy_v2(void *event);
result cuEventRecord(void *event, void *stream);
result cuEventQuery(void *event);
result cuEventSynchronize(void *event);
result cuEventElapsedTime(float *ms, void *from, void *to);
result cuLibraryLoadData(void **out, const void *image, void *jit, void **jit_values, unsigned n_jit, void *choices,
                         void **values, unsigned n);
result cuLibraryGetKernel(void **kernel, void *library, const char *name);
result cuKernelSetAttribute(int which, int value, void *kernel, int device);
result cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                      void **extra);
result cuStreamBeginCapture_v2(void *stream, int mode);
result cuStreamEndCapture(void *stream, void **graph);
result cuStreamIsCapturing(void *stream, int *status);
result cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags);
result cuGraphLaunch(void *graph, void *stream);
result cuGraphExecDestroy(void *graph);
result cuGraphDestroy(void *graph);

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

static void *contexts[4], *stream, *library;

static inline void start(void)
{
    int n = 0;
    group("initialization");
    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    for (int i = 0; i < n && i < 4; i++)
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, 0));
    OK(cuLibraryLoadData(&library, "softcuda:" TEST_KERNELS, NULL, NULL, 0, NULL, NULL, 0));
}

/* Replaces the context of device 0, which may have an error, by a new one. */
static inline void reset(void)
{
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, 0));
}

static inline void *kernel(const char *name)
{
    void *found = NULL;
    OK(cuLibraryGetKernel(&found, library, name));
    return found;
}

static inline result launch(const char *name, unsigned grid, unsigned block, unsigned shared, void *on,
                            const void *arguments)
{
    void *list[] = { (void *)(uintptr_t)arguments, NULL };
    return cuLaunchKernel(kernel(name), grid, 1, 1, block, 1, 1, shared, on, list, NULL);
}

/* Returns the 8 bytes at an address of a device. */
static inline uint64_t read_number(address at)
{
    uint64_t value = 0;
    CHECK(softcuda_control.peek(at, &value, 8), "no memory is allocated at %llx", at);
    return value;
}

/* Launches a faulty kernel and checks the resulting error and the reported text. Resets the context afterwards. */
static inline void check_fault(const char *name, unsigned block, const void *arguments, result wanted,
                               const char *words)
{
    const uint64_t before = softcuda_control.faults();
    OK(launch(name, 1, block, 0, stream, arguments));
    const result got = cuStreamSynchronize(stream);
    CHECK(got == wanted, "%s: error %d, expected %d with \"%s\"", name, got, wanted, words);
    CHECK_EQ(softcuda_control.faults(), before + 1);
    CHECK_HAS(softcuda_control.fault_text(), words);
    CHECK_HAS(softcuda_control.fault_text(), name);
    address refused = 0;
    CHECK_EQ(cuMemAlloc_v2(&refused, 16), wanted);
    reset();
}

#endif
