/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-facts.c: compares the constants and layouts that this project declares with NVIDIA's
 * headers. If a CUDA toolkit is installed, they are compared at compile time; otherwise the test is skipped. */
#include <stdio.h>

#include "facts-libraries.h"
#include "run.h"

#if defined(__has_include)
#if __has_include(<cuda.h>)
#define HAVE_CUDA_H 1
#endif
#endif

#ifndef HAVE_CUDA_H

static int facts_cuda(void)
{
    printf("ok 1 - numbers and layouts of the backend and the double # SKIP there is no cuda.h to compare with\n");
    return 0;
}

#else

#include <cuda.h>

#define SOFTCUDA_FACTS
#include "api.h"

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " has not the size of " #theirs)
#define SAME_PLACE(ours, member, theirs, their_member) \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, their_member), #ours "." #member \
                   " is not at " #theirs "." #their_member)

SAME(ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(ATTRIBUTE_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME(ATTRIBUTE_WARP, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME(ATTRIBUTE_CLOCK, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(ATTRIBUTE_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME(ATTRIBUTE_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(ATTRIBUTE_ECC, CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
SAME(ATTRIBUTE_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(ATTRIBUTE_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(ATTRIBUTE_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(ATTRIBUTE_MEMORY_CLOCK, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(ATTRIBUTE_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(ATTRIBUTE_L2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME(ATTRIBUTE_ASYNC_ENGINES, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME(ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(ATTRIBUTE_STREAM_PRIORITIES, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
SAME(ATTRIBUTE_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(ATTRIBUTE_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME(ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(ATTRIBUTE_POSIX_HANDLE, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(ATTRIBUTE_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
SAME(ATTRIBUTE_POOL_HANDLES, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
SAME(STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(HOST_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(MEMORY_UNIFIED, CU_MEMORYTYPE_UNIFIED);
SAME(LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(HANDLE_POSIX, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CAPTURE_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(POINTER_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(POINTER_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(FUNCTION_MAX_DYNAMIC, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(FUNCTION_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(P2P_ARRAYS, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED);
SAME(POOL_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME(POOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);

SAME_SIZE(allocation_properties, CUmemAllocationProp);
SAME_PLACE(allocation_properties, where, CUmemAllocationProp, location);
SAME_PLACE(allocation_properties, flags, CUmemAllocationProp, allocFlags);
SAME_SIZE(access_description, CUmemAccessDesc);
SAME_PLACE(access_description, flags, CUmemAccessDesc, flags);
SAME_SIZE(pool_properties, CUmemPoolProps);
SAME_PLACE(pool_properties, max, CUmemPoolProps, maxSize);
SAME_SIZE(copy_2d, CUDA_MEMCPY2D);
SAME_PLACE(copy_2d, from_device, CUDA_MEMCPY2D, srcDevice);
SAME_PLACE(copy_2d, to_type, CUDA_MEMCPY2D, dstMemoryType);
SAME_PLACE(copy_2d, to_pitch, CUDA_MEMCPY2D, dstPitch);
SAME_PLACE(copy_2d, width, CUDA_MEMCPY2D, WidthInBytes);
SAME_SIZE(launch_config, CUlaunchConfig);
SAME_PLACE(launch_config, stream, CUlaunchConfig, hStream);
SAME_SIZE(launch_attribute, CUlaunchAttribute);
SAME_SIZE(uuid, CUuuid);

#define RESULT_ROW(name, number, text) SAME(number, CUDA_##name);
RESULTS(RESULT_ROW)

/* cuda.h and the backend's declarations cannot be included in one file, so the same list of pairs is compiled in two
 * files. */
static const long long theirs[] = {
#define FACT(backends, headers) (long long)(headers),
#include "facts.def"
#undef FACT
};
static const char *const names[] = {
#define FACT(backends, headers) #backends " and " #headers,
#include "facts.def"
#undef FACT
};
extern const long long softcuda_facts[];

static int facts_cuda(void)
{
    int bad = 0;
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++)
        if (softcuda_facts[i] != theirs[i]) {
            printf("# %s differ: %lld and %lld\n", names[i], softcuda_facts[i], theirs[i]);
            bad++;
        }
    printf("%s 1 - %zu numbers and layouts of the backend, and the double's, are those of cuda.h %d\n",
           bad ? "not ok" : "ok", sizeof theirs / sizeof theirs[0], CUDA_VERSION);
    return bad;
}

#endif

TEST_MAIN
{
    printf("1..3\n");
    const int bad = facts_cuda(), library = facts_cublaslt(2), dnn = facts_cudnn(3);
    return bad + library + dnn != 0;
}
