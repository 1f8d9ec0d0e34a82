/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/api.h: types and constants of the CUDA driver API (13.0) that softcuda implements.
 *
 * The values and layouts are from NVIDIA's CUDA Driver API reference; the names are ctrt's. No header of the CUDA
 * toolkit is included. */
#ifndef SOFTCUDA_API_H
#define SOFTCUDA_API_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
/* Returns the value from the calling function if the condition is true. */
#define RETURN_IF(condition, value) \
    do {                            \
        if (condition)              \
            return (value);         \
    } while (0)
/* Returns the result or status of a call from the calling function unless it is 0, success. */
#define TRY(call)                         \
    do {                                  \
        const int status_ = (call);       \
        RETURN_IF(status_ != 0, status_); \
    } while (0)

/* Ends the process if the allocation failed, because no test lets the host's memory run out. */
static inline void *allocated(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

typedef int result;                         /* CUresult */
typedef unsigned long long address;         /* CUdeviceptr */
typedef struct { unsigned char bytes[16]; } uuid;

#define RESULTS(ROW)                                                                                                 \
    ROW(SUCCESS, 0) ROW(ERROR_INVALID_VALUE, 1) ROW(ERROR_OUT_OF_MEMORY, 2) ROW(ERROR_NOT_INITIALIZED, 3)            \
    ROW(ERROR_DEINITIALIZED, 4) ROW(ERROR_NO_DEVICE, 100) ROW(ERROR_INVALID_DEVICE, 101)                             \
    ROW(ERROR_INVALID_CONTEXT, 201) ROW(ERROR_NO_BINARY_FOR_GPU, 209) ROW(ERROR_OPERATING_SYSTEM, 304)               \
    ROW(ERROR_INVALID_HANDLE, 400) ROW(ERROR_ILLEGAL_STATE, 401) ROW(ERROR_NOT_FOUND, 500) ROW(ERROR_NOT_READY, 600) \
    ROW(ERROR_ILLEGAL_ADDRESS, 700) ROW(ERROR_LAUNCH_OUT_OF_RESOURCES, 701)                                          \
    ROW(ERROR_PEER_ACCESS_ALREADY_ENABLED, 704) ROW(ERROR_CONTEXT_IS_DESTROYED, 709)                                 \
    ROW(ERROR_MISALIGNED_ADDRESS, 716) ROW(ERROR_LAUNCH_FAILED, 719) ROW(ERROR_NOT_PERMITTED, 800)                   \
    ROW(ERROR_NOT_SUPPORTED, 801) ROW(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                         \
    ROW(ERROR_STREAM_CAPTURE_INVALIDATED, 901) ROW(ERROR_STREAM_CAPTURE_MERGE, 902)                                  \
    ROW(ERROR_STREAM_CAPTURE_UNMATCHED, 903) ROW(ERROR_STREAM_CAPTURE_UNJOINED, 904)                                 \
    ROW(ERROR_STREAM_CAPTURE_ISOLATION, 905) ROW(ERROR_CAPTURED_EVENT, 907)                                          \
    ROW(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908) ROW(ERROR_UNKNOWN, 999)

enum {
#define ROW(name, number) CUDA_##name = number,
    RESULTS(ROW)
#undef ROW
};

enum {                                      /* CUdevice_attribute */
    ATTRIBUTE_CLOCK = 13, ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_ECC = 32, ATTRIBUTE_PCI_BUS = 33,
    ATTRIBUTE_PCI_DEVICE = 34, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39, ATTRIBUTE_PCI_DOMAIN = 50,
    ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76, ATTRIBUTE_SHARED_OPTIN = 97, ATTRIBUTE_VMM = 102,
    ATTRIBUTE_POSIX_HANDLE = 103, ATTRIBUTE_POOLS = 115, ATTRIBUTE_HOST_NUMA = 134,
};

enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_DISABLE_TIMING = 2 };
enum { LOCATION_DEVICE = 1 };
enum { ALLOCATION_PINNED = 1 };
enum { HANDLE_NONE = 0, HANDLE_POSIX = 1 };
enum { ACCESS_READ = 1, ACCESS_READWRITE = 3 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };
enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_WAIT, NODE_RECORD, NODE_ALLOC, NODE_FREE };
enum { FUNCTION_MAX_DYNAMIC = 8 };
enum { POOL_THRESHOLD = 4 };

typedef struct { int type, id; } location;

typedef struct {                            /* CUmemAllocationProp */
    int type, handle_types;
    location where;
    void *win32;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} allocation_properties;

typedef struct { location where; int flags; } access_description;    /* CUmemAccessDesc */

typedef struct {                            /* CUmemPoolProps */
    int type, handle_types;
    location where;
    void *win32;
    size_t max;
    unsigned short usage;
    unsigned char reserved[54];
} pool_properties;

#endif
