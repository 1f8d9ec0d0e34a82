/* SPDX-License-Identifier: Apache-2.0 */
/* opencl.h: what the files of this backend share: the driver, devices, queues, and how kernels are launched.
 *
 * Memory is shared virtual memory (SVM) of OpenCL 2.0: an allocation has an address that kernels take as an argument,
 * also with an offset, as the plugin ABI requires. The host does not access that memory, so coarse-grained SVM is
 * enough. A device without SVM or without f64 is not used. */
#ifndef OPENCL_H
#define OPENCL_H

#define CL_TARGET_OPENCL_VERSION 200
#include <CL/cl.h>
#include <ctrt/plugin.h>
#include <pthread.h>
#include <stdatomic.h>

#include "args.h"

extern const ctrt_host *host;                   /* the library's host table; set by init */

/* ---- driver.c: libOpenCL, loaded at run time ---- */

struct driver {
#define CL(name) __typeof__(name) *name;
#include "driver.def"
#undef CL
};
extern struct driver cl;

/* Loads libOpenCL; returns NULL, or why it cannot be used. */
const char *driver_load(void);
const char *driver_error(cl_int error);         /* "CL_OUT_OF_RESOURCES" */
int32_t driver_probe(char *reason, size_t reason_bytes);

/* ---- discovery.c: the devices of all platforms, found in a child process ---- */

enum { DEVICES_MAX = 8 };

struct device_facts {
    int platform, ordinal;                      /* indices in clGetPlatformIDs and clGetDeviceIDs */
    char name[128], version[128];
    uint64_t memory, largest;                   /* bytes: of the device, of one allocation */
    int32_t units, clock_mhz;
    bool is_cpu;
};

struct discovery {
    int count;
    struct device_facts at[DEVICES_MAX];
    char reason[256];                           /* why there is no device, if there is none */
};
extern struct discovery found;
void discover(void);                            /* called by init, once */

/* ---- device.c ---- */

enum { DTYPES = 16, KERNELS_MAX = 192, VARIANTS = 16 };

struct program;
struct device {
    int32_t index;
    char name[16];                              /* "opencl:0" */
    const struct device_facts *facts;
    cl_device_id id;
    cl_context context;
    unsigned generation;                        /* `process_generation` when the device was opened */
    atomic_bool lost;
    _Atomic uint64_t used;                      /* bytes that are allocated */
    pthread_mutex_t lock;                       /* of the lists, and while programs are compiled */
    struct queue *queues;
    struct pinned *pinned;
    int next_queue;
    /* the compiled kernels, by number of the kernel in the table, dtypes and variant */
    _Atomic(struct program *) programs[KERNELS_MAX][DTYPES][VARIANTS];
};

extern const ctrt_device_table device_table;
extern _Atomic unsigned process_generation;     /* counts forks, in the child */

/* CTRT_OK, or why the device cannot be used: this process was forked after it was opened, or it is lost. */
ctrt_status device_usable(struct device *device);
bool device_forked(const struct device *device);

/* Returns CTRT_OK, or reports the error of an OpenCL call: "opencl:0: WHAT: CL_OUT_OF_RESOURCES". */
ctrt_status device_check(struct device *device, cl_int error, const char *what, ...) CTRT_PRINTF(3, 4);

/* ---- memory.c, queue.c ---- */

extern const ctrt_memory_table memory_table;
extern const ctrt_queue_table queue_table;

/* An in-order command queue. `failure` is in SVM: a kernel that finds an index out of range writes it. */
struct queue {
    struct device *device;
    struct queue *next;
    int number;
    cl_command_queue commands;
    struct failure *failure;
    atomic_bool may_fail;                       /* a kernel that can fail was enqueued since `failure` was read */
    atomic_bool dropping;                       /* failed: later work is dropped, until reset */
    _Atomic uint64_t enqueued, done;            /* commands: enqueued; of those, known to be done */
    pthread_mutex_t lock;                       /* of the members below */
    cl_event marker;                            /* for query: complete when the first `marked` commands are done */
    uint64_t marked;
    ctrt_status failed;
    uint64_t failed_at;
    char text[256];
    const char *names[64];                      /* of the last ops, by sequence % 64 */
};

/* Called before anything is enqueued: *drop is whether the queue has failed, so that the work is dropped. */
ctrt_status queue_enter(struct queue *queue, bool *drop);

/* The error of an OpenCL call that enqueues work on the queue. */
ctrt_status queue_check(struct queue *queue, cl_int error, const char *what);

/* ---- launch.c: kernels are compiled at their first use ---- */

/* A row of the plugin's kernel table: what the library reads, and what this backend needs behind it. */
struct kernel {
    ctrt_kernel base;
    const char *file;                           /* cl/FILE.cl */
    const char *function;                       /* name of the kernel function there */
    const char *defines;                        /* text before the source, such as the expression of the op */
    bool can_fail;                              /* writes the queue's struct failure */
    int number;                                 /* set by kernels_init */
};

enum { POINTERS_MAX = 48 };

/* One launch of the kernel function with `groups` work-groups of one work-item each. The arguments of the function are
 * the pointers, `args` by value, and the queue's struct failure if the kernel can fail. */
struct launch {
    ctrt_dtype dtype, out_dtype;                /* T and OT of the source */
    unsigned variant;                           /* VARIANT in the source, less than VARIANTS: another version of the
                                                 * function, or out_dtype if that is not implied by op and dtype */
    const char *file;                           /* NULL, or file and function of another kernel that the op launches, */
                                                /* with a variant of its own */
    int n_pointers;
    const void *pointers[POINTERS_MAX];         /* NULL is allowed */
    const void *args;
    size_t args_bytes;
    int64_t groups;
};
ctrt_status launch(const ctrt_call *call, const struct launch *launch);
void programs_free(struct device *device);

/* The number of groups of at least `grain` items each for n items; *per_group: items per group. */
int64_t groups_for(const struct device *device, int64_t n, int64_t grain, int64_t *per_group);

/* ---- kernels.c: the table ---- */

#define BIT(dtype) CTRT_DTYPE_BIT(CTRT_##dtype)
#define FLOATS   (BIT(F32) | BIT(F64) | BIT(F16) | BIT(BF16))
#define INTEGERS (BIT(I8) | BIT(U8) | BIT(I16) | BIT(I32) | BIT(I64))
#define NUMBERS  (FLOATS | INTEGERS)
#define ALL      (NUMBERS | BIT(BOOL))

extern ctrt_kernel_table kernel_table;

/* Copies the rows of all tables into one, which the library reads. Called by init. */
ctrt_status kernels_init(void);

/* The library may have copied the row, with all bytes up to the table's stride. */
static inline const struct kernel *kernel_of(const ctrt_call *call)
{
    return (const struct kernel *)(const void *)call->kernel;
}

/* A table of one file. */
struct kernels {
    const struct kernel *rows;
    size_t count;
};
#define KERNELS(name, rows) const struct kernels name##_kernels = { rows, sizeof(rows) / sizeof((rows)[0]) }

int64_t dtype_bytes(ctrt_dtype dtype);
bool dtype_is_float(ctrt_dtype dtype);
i64 scalar_bits(const ctrt_scalar *scalar, ctrt_dtype dtype);   /* a double's bits for floating types, else i64 */
i64 double_bits(double value);

#endif
