/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/driver_api.h: the part of the CUDA driver API that this backend uses, declared here so that it
 * builds without the CUDA toolkit.
 *
 * Values and layouts are those of NVIDIA's CUDA Driver API reference (version 12.0); tests/softcuda compares them with
 * cuda.h where that is installed. */
#ifndef CUDA_DRIVER_API_H
#define CUDA_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_address;          /* CUdeviceptr */
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_library *cu_library;
typedef struct cu_kernel *cu_kernel;            /* CUkernel; cuLaunchKernel accepts it */
typedef struct cu_graph *cu_graph;
typedef struct cu_graph_exec *cu_graph_exec;
typedef struct cu_pool *cu_pool;
typedef unsigned long long cu_allocation;       /* CUmemGenericAllocationHandle */
typedef struct { char bytes[16]; } cu_uuid;

enum {                                          /* cu_result */
    CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NOT_INITIALIZED = 3, CU_DEINITIALIZED = 4,
    CU_STUB_LIBRARY = 34, CU_CALL_REQUIRES_NEWER_DRIVER = 36, CU_DEVICE_UNAVAILABLE = 46, CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101, CU_INVALID_IMAGE = 200, CU_INVALID_CONTEXT = 201, CU_NO_BINARY_FOR_GPU = 209,
    CU_ECC_UNCORRECTABLE = 214, CU_PEER_ACCESS_UNSUPPORTED = 217, CU_NVLINK_UNCORRECTABLE = 220,
    CU_JIT_COMPILER_NOT_FOUND = 221, CU_UNSUPPORTED_PTX_VERSION = 222, CU_CONTAINED = 226, CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500, CU_NOT_READY = 600, CU_ILLEGAL_ADDRESS = 700, CU_LAUNCH_OUT_OF_RESOURCES = 701,
    CU_LAUNCH_TIMEOUT = 702, CU_PEER_ACCESS_ALREADY_ENABLED = 704, CU_CONTEXT_IS_DESTROYED = 709, CU_ASSERT = 710,
    CU_HARDWARE_STACK_ERROR = 714, CU_ILLEGAL_INSTRUCTION = 715, CU_MISALIGNED_ADDRESS = 716,
    CU_INVALID_ADDRESS_SPACE = 717, CU_INVALID_PC = 718, CU_LAUNCH_FAILED = 719, CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801, CU_SYSTEM_NOT_READY = 802, CU_SYSTEM_DRIVER_MISMATCH = 803,
    CU_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, CU_STREAM_CAPTURE_UNSUPPORTED = 900, CU_STREAM_CAPTURE_INVALIDATED = 901,
    CU_STREAM_CAPTURE_ISOLATION = 905, CU_STREAM_CAPTURE_IMPLICIT = 906, CU_CAPTURED_EVENT = 907,
    CU_EXTERNAL_DEVICE = 911, CU_UNKNOWN = 999,
};

enum {                                          /* CUdevice_attribute */
    CU_ATTRIBUTE_CLOCK_KHZ = 13, CU_ATTRIBUTE_PROCESSORS = 16, CU_ATTRIBUTE_INTEGRATED = 18,
    CU_ATTRIBUTE_COMPUTE_MODE = 20, CU_ATTRIBUTE_ECC = 32, CU_ATTRIBUTE_PCI_BUS = 33, CU_ATTRIBUTE_PCI_DEVICE = 34,
    CU_ATTRIBUTE_L2_BYTES = 38, CU_ATTRIBUTE_PROCESSOR_THREADS = 39, CU_ATTRIBUTE_PCI_DOMAIN = 50,
    CU_ATTRIBUTE_MAJOR = 75, CU_ATTRIBUTE_MINOR = 76, CU_ATTRIBUTE_SHARED_OPTIN = 97, CU_ATTRIBUTE_VMM = 102,
    CU_ATTRIBUTE_POSIX_HANDLES = 103, CU_ATTRIBUTE_POOLS = 115, CU_ATTRIBUTE_HOST_NUMA = 134,
};

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_MAPPED = 2 };
enum { CU_LOCATION_DEVICE = 1 };
enum { CU_ALLOCATION_PINNED = 1 };
enum { CU_HANDLE_NONE = 0, CU_HANDLE_POSIX = 1 };
enum { CU_ACCESS_READ_WRITE = 3 };
enum { CU_GRANULARITY_MINIMUM = 0, CU_GRANULARITY_RECOMMENDED = 1 };
enum { CU_FUNCTION_MAX_DYNAMIC_SHARED = 8 };
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_POOL_RELEASE_THRESHOLD = 4 };         /* CUmemPool_attribute; uint64_t */

typedef struct { int type, id; } cu_location;

typedef struct {                                /* CUmemAllocationProp */
    int type, handle_types;
    cu_location location;
    void *win32_metadata;
    struct { unsigned char compression, gpu_direct_rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} cu_allocation_properties;

typedef struct {                                /* CUmemPoolProps */
    int type, handle_types;
    cu_location location;
    void *win32_attributes;
    unsigned char reserved[64];                 /* later versions define members here; 0: their defaults */
} cu_pool_properties;

typedef struct {                                /* CUmemAccessDesc */
    cu_location location;
    int flags;
} cu_access;

/* The entry points, listed in driver.def. */
struct cuda_driver {
#define DRIVER(name, symbol, needed, arguments) cu_result (*name) arguments;
#include "driver.def"
#undef DRIVER
};

#endif
