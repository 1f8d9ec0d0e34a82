/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/block.h: the interface between libcuda.so.1 (driver and block runner) and libraries of kernels.
 *
 * A library of kernels consists of .cu files and watch.c. It links with libcuda.so.1, which exports the functions below
 * that kernels call. */
#ifndef SOFTCUDA_BLOCK_H
#define SOFTCUDA_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOFTCUDA_EXPORT __attribute__((visibility("default")))
#define SOFTCUDA_BLOCK_THREADS 1024
#define SOFTCUDA_PART 1024              /* bytes of static shared memory whose use is recorded together */

/* A kernel. Its library exports it as softcuda_kernel_NAME. */
struct softcuda_kernel {
    const char *name;
    void (*thread)(const void *arguments);      /* runs one thread */
    uint32_t argument_bytes;
    uint32_t max_threads;                       /* per block; __launch_bounds__ */
};

struct softcuda_index { unsigned x, y, z; };

/* A library of kernels. watch.c exports it as softcuda_library. */
struct softcuda_library {
    const char *begin, *end;                    /* the library's data and constants */
    void (*shared)(char **begin, char **end);   /* range of the calling thread's __shared__ variables */
};

/* The last accesses to a word (or byte) of shared memory. */
struct softcuda_race {
    uint32_t written, read;                     /* epochs */
    uint32_t written_warp, read_warp;           /* warp epochs of those threads */
    uint16_t writer, reader;
    uint8_t many_lanes, many_warps;             /* other threads than `reader` read too: in its warp; in other warps */
};

/* State of the running kernel thread; one per host thread. */
struct softcuda_here {
    struct softcuda_index thread, block, block_dim, grid_dim;
    unsigned linear;                            /* number of the thread in its block */
    unsigned device;
    char *dynamic;                              /* dynamic shared memory */
    const char *own;                            /* start of the device's addresses */
    const char *stack, *stack_end;              /* of the kernel thread */
    const char *arguments, *arguments_end;
    char *shared, *shared_end;                  /* static shared memory, of all kernels of the library */
    unsigned char *written;                     /* per SOFTCUDA_PART of it: whether a kernel wrote it */
    char *dynamic_end;
    const char *image, *image_end;              /* the library */
    const char *host, *host_end;                /* the last range used that is not in the device: pinned memory, memory
    of another device, or virtual memory */
    struct softcuda_runner *runner;
    struct softcuda_race *races;                /* accesses since the last barrier, by byte of shared memory; watch.c */
    size_t words;                               /* of shared memory that `races` has records of */
    uint32_t epoch;                             /* number of barriers so far */
    uint32_t *warp_epoch;                       /* number of warp operations so far, by warp */
    uint64_t stamp;                             /* of the operation that runs on this host thread; order.c */
    unsigned disorder;                          /* order violations of that operation so far */
};

/* Device memory. Byte i of `shadow` is the number of accessible bytes among the 8 at base + 8 i. */
struct softcuda_space {
    char *base;
    size_t bytes, device_bytes;                 /* of all devices; of one device */
    unsigned char *shadow;
    uint64_t (*order)[3];                       /* per 512 bytes: stamps of the last writer and readers; NULL: not
                                                 * recorded */
};

extern SOFTCUDA_EXPORT __thread struct softcuda_here softcuda_here __attribute__((tls_model("initial-exec")));
extern SOFTCUDA_EXPORT struct softcuda_space softcuda_space;

enum softcuda_warp_kind {
    SOFTCUDA_UP, SOFTCUDA_XOR, SOFTCUDA_SYNC, SOFTCUDA_BALLOT, SOFTCUDA_MATCH, SOFTCUDA_LDMATRIX, SOFTCUDA_MMA,
    SOFTCUDA_WARP_KINDS
};

/* Operands and result of one lane in a matrix operation. The lane passes the struct's address as its value. */
struct softcuda_ldmatrix {
    uint16_t row[8];                            /* the 16 bytes at the lane's address */
    uint32_t out[4];
};
struct softcuda_mma {
    uint32_t a[4], b[2];
    float c[4];                                 /* the addend; then the sum */
};
/* Waits for all running threads of the block. */
SOFTCUDA_EXPORT void softcuda_barrier(const char *file, int line);
/* Waits for the running lanes in `mask`. */
SOFTCUDA_EXPORT uint64_t softcuda_warp(int kind, unsigned mask, uint64_t value, unsigned argument, const char *file,
                                       int line);

/* Reports an error of the kernel that a GPU would also report. Does not return, because the block ends. */
enum softcuda_fault { SOFTCUDA_ILLEGAL = 700, SOFTCUDA_MISALIGNED = 716, SOFTCUDA_FAILED = 719 };
SOFTCUDA_EXPORT void softcuda_fault(int code, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* Checks an access that the fast checks of watch.c did not accept. Returns if the access is allowed, otherwise reports
 * a fault. */
SOFTCUDA_EXPORT void softcuda_touch(const void *address, size_t bytes, int write);
/* Checks the first access of an operation to a unit of device memory against the order of streams. */
SOFTCUDA_EXPORT void softcuda_order(const void *address, int write);
/* Reports and counts a race: two threads access shared memory without a barrier in between. */
SOFTCUDA_EXPORT void softcuda_race(const void *address, unsigned other, int write, int other_wrote);

#ifdef __cplusplus
}
#endif

#endif
