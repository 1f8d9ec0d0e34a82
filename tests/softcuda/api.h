/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/api.h: types and constants of the CUDA driver API (13.0) that softcuda implements.
 *
 * The values and layouts are from NVIDIA's CUDA Driver API reference; the names are ctrt's. No header of the CUDA
 * toolkit is included. */
#ifndef SOFTCUDA_API_H
#define SOFTCUDA_API_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
/* Returns the value from the calling function if the condition is true. */
#define RETURN_IF(condition, value) \
    do {                            \
        if (condition)              \
            return (value);         \
    } while (0)
/* Returns the result or status of a call from the calling function unless it is 0, success. */
#define TRY(call)                    \
    do {                             \
        const int status_ = (call);  \
        RETURN_IF(status_ != 0, status_); \
    } while (0)

typedef int result;                         /* CUresult */
typedef unsigned long long address;         /* CUdeviceptr */
typedef struct { unsigned char bytes[16]; } uuid;

#define RESULTS(ROW)                                                                                               \
    ROW(SUCCESS, 0, "no error")                                                                                    \
    ROW(ERROR_INVALID_VALUE, 1, "invalid argument")                                                                \
    ROW(ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                                   \
    ROW(ERROR_NOT_INITIALIZED, 3, "initialization error")                                                          \
    ROW(ERROR_DEINITIALIZED, 4, "driver shutting down")                                                            \
    ROW(ERROR_STUB_LIBRARY, 34, "the library is a stub")                                                           \
    ROW(ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, "the call requires a newer driver")                                  \
    ROW(ERROR_DEVICE_UNAVAILABLE, 46, "the device is busy or unavailable")                                         \
    ROW(ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                                \
    ROW(ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                                       \
    ROW(ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                                                \
    ROW(ERROR_INVALID_CONTEXT, 201, "invalid device context")                                                      \
    ROW(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for this device")                              \
    ROW(ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error")                                                   \
    ROW(ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error")                                             \
    ROW(ERROR_JIT_COMPILER_NOT_FOUND, 221, "the PTX compiler library is not there")                                \
    ROW(ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX was made by an unsupported toolchain")                        \
    ROW(ERROR_CONTAINED, 226, "an error that was contained")                                                       \
    ROW(ERROR_OPERATING_SYSTEM, 304, "a call of the operating system failed")                                      \
    ROW(ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                                      \
    ROW(ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                        \
    ROW(ERROR_NOT_FOUND, 500, "named symbol not found")                                                            \
    ROW(ERROR_NOT_READY, 600, "device not ready")                                                                  \
    ROW(ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                    \
    ROW(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                             \
    ROW(ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                                      \
    ROW(ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled")                                  \
    ROW(ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                   \
    ROW(ERROR_ASSERT, 710, "device-side assert triggered")                                                         \
    ROW(ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                                                   \
    ROW(ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered")                                  \
    ROW(ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                                                       \
    ROW(ERROR_INVALID_ADDRESS_SPACE, 717, "operation not supported on this address space")                         \
    ROW(ERROR_INVALID_PC, 718, "invalid program counter")                                                          \
    ROW(ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                                    \
    ROW(ERROR_NOT_PERMITTED, 800, "operation not permitted")                                                       \
    ROW(ERROR_NOT_SUPPORTED, 801, "operation not supported")                                                       \
    ROW(ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                                                 \
    ROW(ERROR_SYSTEM_DRIVER_MISMATCH, 803, "display driver and CUDA driver do not match")                          \
    ROW(ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility is not supported on this hardware")      \
    ROW(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                 \
    ROW(ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")          \
    ROW(ERROR_STREAM_CAPTURE_MERGE, 902, "the operation would merge separate capture sequences")                   \
    ROW(ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the stream in which it began")              \
    ROW(ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work")                                  \
    ROW(ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")            \
    ROW(ERROR_STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing stream") \
    ROW(ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream")      \
    ROW(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "capture is ended by a thread that did not begin it")              \
    ROW(ERROR_EXTERNAL_DEVICE, 911, "an error of another device")                                                  \
    ROW(ERROR_UNKNOWN, 999, "unknown error")

enum {
#define ROW(name, number, text) CUDA_##name = number,
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
