/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/calls.h: prototypes of softcuda's entry points, for the tests of softcuda, which link with it. */
#ifndef SOFTCUDA_CALLS_H
#define SOFTCUDA_CALLS_H

#include "api.h"
#include "control.h"

extern struct softcuda_control softcuda_control;

result cuInit(unsigned flags);
result cuDriverGetVersion(int *version);
result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
result cuGetErrorName(result error, const char **text);
result cuDeviceGetCount(int *count);
result cuDeviceGet(int *device, int ordinal);
result cuDeviceGetUuid_v2(uuid *id, int device);
result cuDeviceGetAttribute(int *value, int which, int device);
result cuDeviceTotalMem_v2(size_t *bytes, int device);
result cuDeviceCanAccessPeer(int *can, int device, int peer);
result cuDevicePrimaryCtxRetain(void **context, int device);
result cuDevicePrimaryCtxRelease_v2(int device);
result cuDevicePrimaryCtxReset_v2(int device);
result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
result cuCtxSetCurrent(void *context);
result cuCtxSynchronize(void);
result cuCtxEnablePeerAccess(void *peer, unsigned flags);
result cuMemGetInfo_v2(size_t *unused, size_t *total);
result cuMemAlloc_v2(address *out, size_t bytes);
result cuMemFree_v2(address begin);
result cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
result cuMemFreeHost(void *begin);
result cuMemHostRegister_v2(void *begin, size_t bytes, unsigned flags);
result cuMemHostUnregister(void *begin);
result cuPointerGetAttribute(void *data, int which, address where);
result cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream);
result cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream);
result cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream);
result cuMemcpyPeerAsync(address to, void *to_context, address from, void *from_context, size_t bytes, void *stream);
result cuMemcpy2DAsync_v2(const copy_2d *copy, void *stream);
result cuMemcpyHtoD_v2(address to, const void *from, size_t bytes);
result cuMemcpyDtoH_v2(void *to, address from, size_t bytes);
result cuMemsetD8Async(address to, unsigned char value, size_t count, void *stream);
result cuMemsetD32Async(address to, unsigned value, size_t count, void *stream);
result cuMemAddressReserve(address *out, size_t bytes, size_t alignment, address wish, unsigned long long flags);
result cuMemAddressFree(address begin, size_t bytes);
result cuMemCreate(unsigned long long *out, size_t bytes, const allocation_properties *properties,
                   unsigned long long flags);
result cuMemRelease(unsigned long long allocation);
result cuMemMap(address begin, size_t bytes, size_t offset, unsigned long long allocation, unsigned long long flags);
result cuMemUnmap(address begin, size_t bytes);
result cuMemSetAccess(address begin, size_t bytes, const access_description *list, size_t n);
result cuMemGetAllocationGranularity(size_t *bytes, const allocation_properties *properties, int option);
result cuMemExportToShareableHandle(void *out, unsigned long long allocation, int type, unsigned long long flags);
result cuMemImportFromShareableHandle(unsigned long long *out, void *handle, int type);
result cuMemAllocAsync(address *out, size_t bytes, void *stream);
result cuMemAllocFromPoolAsync(address *out, size_t bytes, void *pool, void *stream);
result cuMemFreeAsync(address begin, void *stream);
result cuMemPoolCreate(void **out, const pool_properties *properties);
result cuMemPoolDestroy(void *pool);
result cuMemPoolSetAttribute(void *pool, int which, void *value);
result cuMemPoolGetAttribute(void *pool, int which, void *value);
result cuMemPoolTrimTo(void *pool, size_t bytes);
result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
result cuStreamDestroy_v2(void *stream);
result cuStreamSynchronize(void *stream);
result cuStreamQuery(void *stream);
result cuStreamWaitEvent(void *stream, void *event, unsigned flags);
result cuStreamAddCallback(void *stream, void (*callback)(void *, result, void *), void *argument, unsigned flags);
result cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
result cuEventCreate(void **event, unsigned flags);
result cuEventDestroy_v2(void *event);
result cuEventRecord(void *event, void *stream);
result cuEventQuery(void *event);
result cuEventSynchronize(void *event);
result cuEventElapsedTime_v2(float *ms, void *from, void *to);
result cuLibraryLoadData(void **out, const void *image, void *jit, void **jit_values, unsigned n_jit, void *choices,
                         void **values, unsigned n);
result cuLibraryUnload(void *library);
result cuLibraryGetKernel(void **kernel, void *library, const char *name);
result cuKernelSetAttribute(int which, int value, void *kernel, int device);
result cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z,
                      unsigned shared, void *stream, void **arguments, void **extra);
result cuStreamBeginCapture_v2(void *stream, int mode);
result cuStreamEndCapture(void *stream, void **graph);
result cuStreamIsCapturing(void *stream, int *status);
result cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags);
result cuGraphLaunch(void *graph, void *stream);
result cuGraphExecDestroy(void *graph);
result cuGraphDestroy(void *graph);
result cuGraphGetNodes(void *graph, void **nodes, size_t *n);

#endif
