/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/block.h: what libcuda.so.1 (the driver and the runner of blocks) and libraries of kernels know of one another.
 *
 * A library of kernels is made of .cu files and watch.c. It links with libcuda.so.1, whose functions below the kernels call. */
#ifndef SOFTCUDA_BLOCK_H
#define SOFTCUDA_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOFTCUDA_EXPORT __attribute__((visibility("default")))
#define SOFTCUDA_BLOCK_THREADS 1024

/* A kernel, in its library under the name softcuda_kernel_NAME. */
struct softcuda_kernel {
    const char *name;
    void (*thread)(const void *arguments);      /* runs one thread */
    uint32_t argument_bytes;
    uint32_t max_threads;                       /* a block; __launch_bounds__ */
};

struct softcuda_index { unsigned x, y, z; };

/* A library of kernels: watch.c, under the name softcuda_library. */
struct softcuda_library {
    uint32_t bytes, here_bytes;                 /* of this struct; of struct softcuda_here */
    uint32_t watched;                           /* accesses of kernels are checked */
    const char *begin, *end;                    /* the library's own data and constants */
    void (*shared)(char **begin, char **end);   /* the __shared__ variables of the calling thread */
};

/* Who touched a word (or a byte) of shared memory last, and when. */
struct softcuda_race {
    uint32_t written, read;                     /* epochs */
    uint32_t written_warp, read_warp;           /* epochs of the warps of those threads */
    uint16_t writer, reader;
    uint8_t many_lanes, many_warps;             /* others than `reader` read too, in its warp; in other warps */
};

/* Where a kernel's thread stands; one a stream's thread. */
struct softcuda_here {
    struct softcuda_index thread, block, block_dim, grid_dim;
    unsigned linear;                            /* number of the thread in its block */
    unsigned device;
    char *dynamic;                              /* dynamic shared memory */
    const char *own;                            /* where the device's addresses begin */
    const char *stack, *stack_end;              /* of the thread */
    const char *arguments, *arguments_end;
    char *shared, *shared_end;                  /* static shared memory */
    char *dynamic_end;
    const char *image, *image_end;              /* the library */
    const char *host, *host_end;                /* what was used last of pinned memory, of other devices', or of virtual memory */
    struct softcuda_runner *runner;
    struct softcuda_race *races;                /* what was touched since the last barrier, by word of shared memory */
    uint32_t epoch;                             /* barriers so far */
    uint32_t *warp_epoch;                       /* warp operations so far, by warp */
    uint64_t stamp;                             /* of the operation that runs on this thread; order.c */
    unsigned disorder;                          /* it found so far */
};

/* Device memory. Byte i of `shadow` says how many of the 8 bytes at base + 8 i can be used. */
struct softcuda_space {
    char *base;
    size_t bytes, device_bytes;                 /* all; of a device */
    unsigned char *shadow;
    uint64_t (*order)[3];                       /* by 512 bytes: stamps of who wrote and who read; NULL: not kept */
};

extern SOFTCUDA_EXPORT __thread struct softcuda_here softcuda_here __attribute__((tls_model("initial-exec")));
extern SOFTCUDA_EXPORT struct softcuda_space softcuda_space;

enum softcuda_shuffle { SOFTCUDA_INDEX, SOFTCUDA_UP, SOFTCUDA_DOWN, SOFTCUDA_XOR };
enum softcuda_vote {
    SOFTCUDA_SYNC = 4, SOFTCUDA_BALLOT, SOFTCUDA_ADD, SOFTCUDA_MIN, SOFTCUDA_MAX, SOFTCUDA_MIN_SIGNED, SOFTCUDA_MAX_SIGNED, SOFTCUDA_AND, SOFTCUDA_OR,
    SOFTCUDA_EXCLUSIVE, SOFTCUDA_MATCH, SOFTCUDA_LDMATRIX, SOFTCUDA_MMA, SOFTCUDA_WARP_KINDS
};

/* What a lane brings to a matrix operation, and takes from it; the operation's value is its address. */
struct softcuda_ldmatrix {
    uint16_t row[8];                            /* that its address points to */
    uint32_t out[4];
};
struct softcuda_mma {
    uint32_t a[4], b[2];
    float c[4];                                 /* what is added to; then the sum */
};
enum softcuda_barrier { SOFTCUDA_BARRIER, SOFTCUDA_BARRIER_OR, SOFTCUDA_BARRIER_AND, SOFTCUDA_BARRIER_COUNT };

/* Waits for all living threads of the block. Gives how many had a `predicate` that is not 0. */
SOFTCUDA_EXPORT unsigned softcuda_barrier(int kind, int predicate, const char *file, int line);
/* Waits for the living lanes in `mask`. */
SOFTCUDA_EXPORT uint64_t softcuda_warp(int kind, unsigned mask, uint64_t value, unsigned argument, unsigned width, const char *file, int line);

/* What a kernel did that a GPU would not stand; does not return: the block ends there. */
enum softcuda_fault { SOFTCUDA_ILLEGAL = 700, SOFTCUDA_MISALIGNED = 716, SOFTCUDA_FAILED = 719, SOFTCUDA_ASSERTED = 710 };
SOFTCUDA_EXPORT void softcuda_fault(int code, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* An access that the fast checks of watch.c did not let pass: allowed after all, or a fault. */
SOFTCUDA_EXPORT void softcuda_touch(const void *address, size_t bytes, int write);
/* The first touch of a piece of device memory by an operation. */
SOFTCUDA_EXPORT void softcuda_order(const void *address, int write);
/* Two threads touch shared memory without a barrier between: told, and counted. */
SOFTCUDA_EXPORT void softcuda_race(const void *address, unsigned other, int write, int other_wrote);

#ifdef __cplusplus
}
#endif

#endif
