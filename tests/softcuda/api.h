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
    ROW(ERROR_DEVICE_NOT_LICENSED, 102, "the device has no valid licence")                                         \
    ROW(ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                                                \
    ROW(ERROR_INVALID_CONTEXT, 201, "invalid device context")                                                      \
    ROW(ERROR_MAP_FAILED, 205, "mapping failed")                                                                   \
    ROW(ERROR_UNMAP_FAILED, 206, "unmapping failed")                                                               \
    ROW(ERROR_ALREADY_MAPPED, 208, "already mapped")                                                               \
    ROW(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for this device")                              \
    ROW(ERROR_NOT_MAPPED, 211, "not mapped")                                                                       \
    ROW(ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error")                                                   \
    ROW(ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported")                                                    \
    ROW(ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices")              \
    ROW(ERROR_INVALID_PTX, 218, "PTX compilation failed")                                                          \
    ROW(ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error")                                             \
    ROW(ERROR_JIT_COMPILER_NOT_FOUND, 221, "the PTX compiler library is not there")                                \
    ROW(ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX was made by an unsupported toolchain")                        \
    ROW(ERROR_CONTAINED, 226, "an error that was contained")                                                       \
    ROW(ERROR_FILE_NOT_FOUND, 301, "file not found")                                                               \
    ROW(ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object initialization failed")                               \
    ROW(ERROR_OPERATING_SYSTEM, 304, "a call of the operating system failed")                                      \
    ROW(ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                                      \
    ROW(ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                        \
    ROW(ERROR_NOT_FOUND, 500, "named symbol not found")                                                            \
    ROW(ERROR_NOT_READY, 600, "device not ready")                                                                  \
    ROW(ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                    \
    ROW(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                             \
    ROW(ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                                      \
    ROW(ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled")                                  \
    ROW(ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled")                                    \
    ROW(ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "the primary context is active")                                        \
    ROW(ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                   \
    ROW(ERROR_ASSERT, 710, "device-side assert triggered")                                                         \
    ROW(ERROR_TOO_MANY_PEERS, 711, "peer access resources exhausted")                                              \
    ROW(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the memory is already registered")              \
    ROW(ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "the pointer is not registered")                                    \
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
    ROW(ERROR_TIMEOUT, 909, "wait operation timed out")                                                            \
    ROW(ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed")                                \
    ROW(ERROR_EXTERNAL_DEVICE, 911, "an error of another device")                                                  \
    ROW(ERROR_UNKNOWN, 999, "unknown error")

#ifndef SOFTCUDA_FACTS                      /* test-softcuda-facts.c defines it and includes cuda.h */
enum {
#define ROW(name, number, text) CUDA_##name = number,
    RESULTS(ROW)
#undef ROW
};
#endif

enum {                                      /* CUdevice_attribute */
    ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1, ATTRIBUTE_MAX_BLOCK_X = 2, ATTRIBUTE_MAX_BLOCK_Y = 3,
    ATTRIBUTE_MAX_BLOCK_Z = 4, ATTRIBUTE_MAX_GRID_X = 5,
    ATTRIBUTE_MAX_GRID_Y = 6, ATTRIBUTE_MAX_GRID_Z = 7, ATTRIBUTE_SHARED_PER_BLOCK = 8, ATTRIBUTE_CONSTANT_MEMORY = 9,
    ATTRIBUTE_WARP = 10,
    ATTRIBUTE_MAX_PITCH = 11, ATTRIBUTE_REGISTERS_PER_BLOCK = 12, ATTRIBUTE_CLOCK = 13,
    ATTRIBUTE_TEXTURE_ALIGNMENT = 14, ATTRIBUTE_OVERLAP = 15,
    ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_TIMEOUT = 17, ATTRIBUTE_INTEGRATED = 18, ATTRIBUTE_MAP_HOST = 19,
    ATTRIBUTE_COMPUTE_MODE = 20,
    ATTRIBUTE_CONCURRENT_KERNELS = 31, ATTRIBUTE_ECC = 32, ATTRIBUTE_PCI_BUS = 33, ATTRIBUTE_PCI_DEVICE = 34,
    ATTRIBUTE_MEMORY_CLOCK = 36,
    ATTRIBUTE_BUS_WIDTH = 37, ATTRIBUTE_L2 = 38, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    ATTRIBUTE_ASYNC_ENGINES = 40,
    ATTRIBUTE_UNIFIED_ADDRESSING = 41, ATTRIBUTE_PCI_DOMAIN = 50, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_STREAM_PRIORITIES = 78,
    ATTRIBUTE_GLOBAL_L1 = 79, ATTRIBUTE_LOCAL_L1 = 80, ATTRIBUTE_SHARED_PER_MULTIPROCESSOR = 81,
    ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR = 82,
    ATTRIBUTE_MANAGED_MEMORY = 83, ATTRIBUTE_PREEMPTION = 90, ATTRIBUTE_HOST_POINTER_FOR_REGISTERED = 91,
    ATTRIBUTE_COOPERATIVE = 95,
    ATTRIBUTE_SHARED_OPTIN = 97, ATTRIBUTE_HOST_REGISTER = 99, ATTRIBUTE_VMM = 102, ATTRIBUTE_POSIX_HANDLE = 103,
    ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR = 106, ATTRIBUTE_SHARED_RESERVED = 111, ATTRIBUTE_READ_ONLY_REGISTER = 113,
    ATTRIBUTE_POOLS = 115,
    ATTRIBUTE_POOL_HANDLES = 119, ATTRIBUTE_UNIFIED_FUNCTIONS = 129, ATTRIBUTE_NUMA_ID = 131, ATTRIBUTE_HOST_NUMA = 134,
    ATTRIBUTE_END = 148,
};

enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4 };
enum { HOST_ALLOC_PORTABLE = 1, HOST_ALLOC_DEVICEMAP = 2, HOST_ALLOC_WRITECOMBINED = 4 };
enum { HOST_REGISTER_PORTABLE = 1, HOST_REGISTER_DEVICEMAP = 2, HOST_REGISTER_IOMEMORY = 4,
       HOST_REGISTER_READ_ONLY = 8 };
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum { LOCATION_DEVICE = 1 };
enum { ALLOCATION_PINNED = 1 };
enum { HANDLE_NONE = 0, HANDLE_POSIX = 1 };
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READWRITE = 3 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };
enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { NODE_KERNEL = 0, NODE_MEMCPY = 1, NODE_MEMSET = 2, NODE_HOST = 3, NODE_EMPTY = 5, NODE_WAIT = 6, NODE_RECORD = 7,
       NODE_ALLOC = 10, NODE_FREE = 11 };
enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE = 3, POINTER_HOST = 4, POINTER_BUFFER_ID = 7,
       POINTER_MANAGED = 8, POINTER_ORDINAL = 9, POINTER_START = 11, POINTER_SIZE = 12, POINTER_MAPPED = 13 };
enum { FUNCTION_MAX_THREADS = 0, FUNCTION_SHARED = 1, FUNCTION_CONST = 2, FUNCTION_LOCAL = 3, FUNCTION_REGISTERS = 4,
       FUNCTION_PTX = 5,
       FUNCTION_BINARY = 6, FUNCTION_CACHE_MODE = 7, FUNCTION_MAX_DYNAMIC = 8, FUNCTION_CARVEOUT = 9,
       FUNCTION_END = 16 };
enum { P2P_RANK = 1, P2P_ACCESS = 2, P2P_ATOMICS = 3, P2P_ARRAYS = 4 };
enum { POOL_FOLLOW_EVENTS = 1, POOL_OPPORTUNISTIC = 2, POOL_INTERNAL = 3, POOL_THRESHOLD = 4, POOL_RESERVED = 5,
       POOL_RESERVED_HIGH = 6, POOL_USED = 7, POOL_USED_HIGH = 8 };

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

typedef struct {                            /* CUDA_MEMCPY2D */
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    address from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    address to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
} copy_2d;

typedef struct { int id; char pad[4]; union { char bytes[64]; uint64_t word; } value; } launch_attribute;

typedef struct {                            /* CUlaunchConfig */
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void *stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

#endif
