/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c: compiles kernels and launches them.
 *
 * OpenCL compiles from source. A kernel is compiled at its first use for one op, dtype and variant, because compiling
 * all of them would take minutes; pocl keeps the results in a cache on disk (POCL_CACHE_DIR). The source is made of the
 * dtype's macros, args.h, common.cl, the op's macros (such as its expression) and the op's file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

static const struct source {
    const char *name, *text;
} sources[] = {
#include "sources.inc"                          /* made by the Makefile of args.h and cl/ */
};

static const char *source(const char *name)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (strcmp(sources[i].name, name) == 0)
            return sources[i].text;
    return "#error no such source\n";
}

/* ---- dtypes ---- */

static const struct dtype_names {
    int64_t bytes;
    const char *name, *stored, *work, *unsigned_work, *access;
    bool floating;
} dtypes[] = {
    [CTRT_F32] = { 4, "f32", "float", "float", "float", "plain", true },
    [CTRT_F64] = { 8, "f64", "double", "double", "double", "plain", true },
    [CTRT_F16] = { 2, "f16", "ushort", "float", "float", "f16", true },
    [CTRT_BF16] = { 2, "bf16", "ushort", "float", "float", "bf16", true },
    [CTRT_I8] = { 1, "i8", "char", "char", "uchar", "plain", false },
    [CTRT_U8] = { 1, "u8", "uchar", "uchar", "uchar", "plain", false },
    [CTRT_I16] = { 2, "i16", "short", "short", "ushort", "plain", false },
    [CTRT_I32] = { 4, "i32", "int", "int", "uint", "plain", false },
    [CTRT_I64] = { 8, "i64", "long", "long", "ulong", "plain", false },
    [CTRT_BOOL] = { 1, "bool", "uchar", "uchar", "uchar", "plain", false },
};

int64_t dtype_bytes(ctrt_dtype dtype) { return dtypes[dtype].bytes; }
bool dtype_is_float(ctrt_dtype dtype) { return dtypes[dtype].floating; }

i64 double_bits(double value)
{
    i64 bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

i64 scalar_bits(const ctrt_scalar *scalar, ctrt_dtype dtype)
{
    const bool real = scalar->kind == CTRT_SCALAR_FLOAT;
    if (dtypes[dtype].floating)
        return double_bits(real ? scalar->f : (double)scalar->i);
    const i64 value = real ? (i64)scalar->f : scalar->i;
    return dtype == CTRT_BOOL ? value != 0 : value;
}

/* ---- compiling ---- */

struct program {
    cl_program program;
    cl_kernel kernel;
    pthread_mutex_t lock;                       /* while arguments are set: a cl_kernel is not thread-safe */
};

static void program_release(struct program *program)
{
    if (program->kernel != NULL)
        (void)cl.clReleaseKernel(program->kernel);
    if (program->program != NULL)
        (void)cl.clReleaseProgram(program->program);
    pthread_mutex_destroy(&program->lock);
    host->free(program);
}

void programs_free(struct device *device)
{
    for (int k = 0; k < KERNELS_MAX; k++)
        for (int d = 0; d < DTYPES; d++)
            for (int v = 0; v < VARIANTS; v++)
                if (device->programs[k][d][v] != NULL)
                    program_release(device->programs[k][d][v]);
}

/* Reports an error of the compiler, with the beginning of its log. */
static ctrt_status fail_build(struct device *device, const struct kernel *kernel, const char *dtype, cl_program program,
                              cl_int error)
{
    char log[700] = "";
    size_t bytes = 0;
    char *whole = NULL;
    if (cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) == CL_SUCCESS)
        whole = host->alloc(bytes + 1);
    if (whole != NULL) {
        whole[bytes] = '\0';
        if (cl.clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, whole, NULL) == CL_SUCCESS)
            snprintf(log, sizeof log, ": %s", whole);
        host->free(whole);
    }
    return host->fail(CTRT_ERR_BACKEND, "%s: compiling %s.cl for %s in %s failed: %s%s", device->name, kernel->file,
                      kernel->base.op, dtype, driver_error(error), log);
}

static ctrt_status build(struct device *device, const struct kernel *kernel, const struct launch *what,
                         struct program *program)
{
    const struct dtype_names *in = &dtypes[what->dtype], *out = &dtypes[what->out_dtype];
    const char *options = getenv("CTRT_OPENCL_OPTIONS"), *file = what->file != NULL ? what->file : kernel->file,
               *function = what->file != NULL ? what->file : kernel->function;
    char macros[900], all_options[300];
    cl_int error;
    snprintf(macros, sizeof macros,
             "#define T %s\n#define W %s\n#define U %s\n"
             "#define LOAD(p, i) LOAD_%s(p, i)\n#define STORE(p, i, v) STORE_%s(p, i, v)\n"
             "#define OT %s\n#define OSTORE(p, i, v) STORE_%s(p, i, v)\n#define VARIANT %u\n%s%s%s#define IN_%s\n",
             in->stored, in->work, in->unsigned_work, in->access, in->access, out->stored, out->access, what->variant,
             in->floating ? "#define FLOATING\n" : "", out->floating ? "#define OUT_FLOATING\n" : "",
             what->out_dtype == CTRT_BOOL ? "#define OUT_BOOL\n" : "", in->name);
    snprintf(all_options, sizeof all_options, "-cl-std=CL1.2 %s", options != NULL ? options : "");
    const char *texts[] = { macros, kernel->can_fail ? "#define CAN_FAIL\n" : "", source("args"), source("common"),
                            kernel->defines != NULL ? kernel->defines : "", source(file) };
    program->program = cl.clCreateProgramWithSource(device->context, sizeof texts / sizeof texts[0], texts, NULL,
                                                    &error);
    CTRT_TRY(device_check(device, error, "creating a program"));
    error = cl.clBuildProgram(program->program, 1, &device->id, all_options, NULL, NULL);
    if (error != CL_SUCCESS)
        return fail_build(device, kernel, in->name, program->program, error);
    program->kernel = cl.clCreateKernel(program->program, function, &error);
    return device_check(device, error, "the kernel function %s", function);
}

static ctrt_status compile(struct device *device, const struct kernel *kernel, const struct launch *what,
                           _Atomic(struct program *) *slot, struct program **out)
{
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&device->lock);
    struct program *program = atomic_load(slot);
    if (program == NULL) {
        program = host->alloc(sizeof *program);
        if (program == NULL) {
            status = host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a program", device->name);
        } else {
            memset(program, 0, sizeof *program);
            pthread_mutex_init(&program->lock, NULL);
            status = build(device, kernel, what, program);
            if (status == CTRT_OK)
                atomic_store_explicit(slot, program, memory_order_release);
            else
                program_release(program);
        }
    }
    pthread_mutex_unlock(&device->lock);
    *out = program;
    return status;
}

/* ---- launching ---- */

int64_t groups_for(const struct device *device, int64_t n, int64_t grain, int64_t *per_group)
{
    const int64_t most = 4 * (int64_t)device->facts->units, wanted = (n + grain - 1) / grain;
    const int64_t groups = wanted < most ? wanted : most;
    *per_group = groups > 0 ? (n + groups - 1) / groups : 1;
    return groups > 0 ? (n + *per_group - 1) / *per_group : 0;
}

static cl_int enqueue(struct queue *queue, struct program *program, const struct kernel *kernel,
                      const struct launch *what)
{
    const size_t global = (size_t)what->groups, local = 1;
    cl_uint at = 0;
    cl_int error = CL_SUCCESS;
    for (int i = 0; i < what->n_pointers && error == CL_SUCCESS; i++)
        error = cl.clSetKernelArgSVMPointer(program->kernel, at++, what->pointers[i]);
    if (error == CL_SUCCESS)
        error = cl.clSetKernelArg(program->kernel, at++, what->args_bytes, what->args);
    if (error == CL_SUCCESS && kernel->can_fail)
        error = cl.clSetKernelArgSVMPointer(program->kernel, at++, queue->failure);
    if (error == CL_SUCCESS)
        error = cl.clEnqueueNDRangeKernel(queue->commands, program->kernel, 1, NULL, &global, &local, 0, NULL, NULL);
    return error;
}

ctrt_status launch(const ctrt_call *call, const struct launch *what)
{
    struct device *device = call->device;
    struct queue *queue = call->queue;
    const struct kernel *kernel = kernel_of(call);
    _Atomic(struct program *) *slot = &device->programs[kernel->number][what->dtype][what->variant];
    bool drop;
    CTRT_TRY(queue_enter(queue, &drop));
    if (drop || what->groups == 0)
        return CTRT_OK;
    struct program *program = atomic_load_explicit(slot, memory_order_acquire);
    if (__builtin_expect(program == NULL, 0))
        CTRT_TRY(compile(device, kernel, what, slot, &program));
    queue->names[call->sequence % 64] = kernel->base.op;
    pthread_mutex_lock(&program->lock);
    const cl_int error = enqueue(queue, program, kernel, what);
    pthread_mutex_unlock(&program->lock);
    if (kernel->can_fail)
        atomic_store(&queue->may_fail, true);
    return queue_check(queue, error, kernel->base.op);
}
