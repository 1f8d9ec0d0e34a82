/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_direct.c: the baseline for ctrt: products and copies by direct calls of cuBLAS and of the driver.
 *
 * Names, constants and signatures are those of NVIDIA's driver API and cuBLAS references. The libraries are opened with
 * dlopen, as ctrt does. */
#include "gpu.h"

#include <dlfcn.h>
#include <string.h>

typedef unsigned long long address;
enum { NON_BLOCKING = 1, PORTABLE = 1 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_TF32 = 77, ALGORITHM_DEFAULT = -1,
       WHOLE_REDUCTIONS = 16 };

#define DRIVER(X)                                                                                                   \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                       \
    X(cuCtxSetCurrent, (void *context))                                                                             \
    X(cuMemAlloc_v2, (address *out, size_t bytes))                                                                  \
    X(cuMemFree_v2, (address begin))                                                                                \
    X(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))                                                   \
    X(cuMemFreeHost, (void *begin))                                                                                 \
    X(cuMemcpyHtoDAsync_v2, (address to, const void *from, size_t bytes, void *stream))                             \
    X(cuStreamCreate, (void **out, unsigned flags))                                                                 \
    X(cuStreamSynchronize, (void *stream))                                                                          \
    X(cuEventCreate, (void **out, unsigned flags))                                                                  \
    X(cuEventRecord, (void *event, void *stream))                                                                   \
    X(cuEventSynchronize, (void *event))                                                                            \
    X(cuEventElapsedTime, (float *ms, void *from, void *to))
#define BLAS(X)                                                                                                     \
    X(cublasCreate_v2, (void **out))                                                                                \
    X(cublasSetStream_v2, (void *handle, void *stream))                                                             \
    X(cublasSetMathMode, (void *handle, int mode))                                                                  \
    X(cublasGemmEx, (void *handle, int ta, int tb, int m, int n, int k, const void *alpha,                          \
                     const void *a, int a_type, int a_step, const void *b, int b_type, int b_step,                  \
                     const void *beta, void *c, int c_type, int c_step, int compute, int algorithm))

static struct {
#define X(name, arguments) int (*name) arguments;
    DRIVER(X)
    BLAS(X)
#undef X
    void *stream, *from, *to, *handle;
    /* 0: not opened yet; 1: only the driver; 2: the driver and cuBLAS; -1: neither */
    int state;
} d;

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "bench-gpu: %s returned %d\n", what, result);
    exit(1);
}
#define MUST(call) must(call, #call)

static bool find(void *library, const char *name, void *out)
{
    void *found = library != NULL ? dlsym(library, name) : NULL;
    memcpy(out, &found, sizeof found);
    return found != NULL;
}

/* Uses the primary context, as ctrt does, so both run under the same conditions. */
static int ready(void)
{
    void *context = NULL, *blas = NULL;
    if (d.state != 0)
        return d.state;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const char *missing = driver == NULL ? "library" : NULL;
#define X(name, arguments) missing = missing == NULL && !find(driver, #name, &d.name) ? #name : missing;
    DRIVER(X)
#undef X
    if (missing != NULL) {
        fprintf(stderr, "bench-gpu: libcuda.so.1: no %s; direct calls are not measured\n", missing);
        return d.state = -1;
    }
    MUST(d.cuDevicePrimaryCtxRetain(&context, 0));
    MUST(d.cuCtxSetCurrent(context));
    MUST(d.cuStreamCreate(&d.stream, NON_BLOCKING));
    MUST(d.cuEventCreate(&d.from, 0));
    MUST(d.cuEventCreate(&d.to, 0));
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12" };
    for (int i = 0; i < 2 && blas == NULL; i++)
        blas = dlopen(names[i], RTLD_NOW);
    bool all = blas != NULL;
#define X(name, arguments) all = all && find(blas, #name, &d.name);
    BLAS(X)
#undef X
    if (!all || d.cublasCreate_v2(&d.handle) != 0) {
        fprintf(stderr, "bench-gpu: cuBLAS could not be opened; its products are not measured\n");
        return d.state = 1;
    }
    MUST(d.cublasSetStream_v2(d.handle, d.stream));
    /* partial sums are added in f32, as in ctrt */
    MUST(d.cublasSetMathMode(d.handle, WHOLE_REDUCTIONS));
    return d.state = 2;
}

static ctrt_status batch(double *out, void (*body)(void *argument), void *argument, long times)
{
    float ms = 0;
    MUST(d.cuEventRecord(d.from, d.stream));
    for (long i = 0; i < times; i++)
        body(argument);
    MUST(d.cuEventRecord(d.to, d.stream));
    MUST(d.cuEventSynchronize(d.to));
    MUST(d.cuEventElapsedTime(&ms, d.from, d.to));
    *out = ms;
    return CTRT_OK;
}

/* ---- copies ---- */

struct copy { void *host; address there; size_t bytes; };

static void do_copy(void *argument)
{
    const struct copy *c = argument;
    MUST(d.cuMemcpyHtoDAsync_v2(c->there, c->host, c->bytes, d.stream));
}

static ctrt_status batch_copy(double *ms, void *argument, long times)
{
    return batch(ms, do_copy, argument, times);
}

void gpu_direct_copy(const char *name, size_t bytes)
{
    struct copy c = { .bytes = bytes };
    if (ready() < 1)
        return;
    MUST(d.cuMemHostAlloc(&c.host, bytes, PORTABLE));
    memset(c.host, 1, bytes);
    MUST(d.cuMemAlloc_v2(&c.there, bytes));
    gpu_report(name, batch_copy, &c, (double)bytes);
    MUST(d.cuMemFree_v2(c.there));
    MUST(d.cuMemFreeHost(c.host));
}

/* ---- products ---- */

struct product { address a, b, c; int m, n, k, type, compute; };

/* Row-major c = a b is column-major c' = b' a'. */
static void do_product(void *argument)
{
    const struct product *p = argument;
    const float one = 1, zero = 0;
    MUST(d.cublasGemmEx(d.handle, 0, 0, p->n, p->m, p->k, &one, (const void *)(uintptr_t)p->b, p->type, p->n,
                        (const void *)(uintptr_t)p->a, p->type, p->k,
                        &zero, (void *)(uintptr_t)p->c, p->type, p->n, p->compute, ALGORITHM_DEFAULT));
}

static ctrt_status batch_product(double *ms, void *argument, long times)
{
    return batch(ms, do_product, argument, times);
}

/* Multiplies the same operands as ctrt, because the clock rate of a GPU depends on the values that it multiplies. */
void gpu_direct_product(int64_t m, int64_t n, int64_t k, const char *dtype, const char *name, const void *a,
                        const void *b)
{
    if (ready() < 2)
        return;
    const size_t width = strstr(dtype, "32") != NULL ? 4 : 2;
    struct product p = { .m = (int)m, .n = (int)n, .k = (int)k,
                         .type = strcmp(dtype, "f16") == 0 ? R_16F : strcmp(dtype, "bf16") == 0 ? R_16BF : R_32F,
                         .compute = strcmp(dtype, "tf32") == 0 ? COMPUTE_TF32 : COMPUTE_32F };
    p.a = (address)(uintptr_t)a;
    p.b = (address)(uintptr_t)b;
    MUST(d.cuMemAlloc_v2(&p.c, (size_t)(m * n) * width));
    gpu_report(name, batch_product, &p, 0);
    MUST(d.cuStreamSynchronize(d.stream));
    MUST(d.cuMemFree_v2(p.c));
}
