/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/blas_lt.c: a fake libcublasLt.so.13; also built as libcublasLt.so.12, which reports the version
 * numbers of CUDA 12. Matrices are described by attributes. An algorithm is a number that does not affect the result
 * but may require a workspace. An algorithm is valid only for the operand alignments of the query that returned it;
 * operands with other alignments are rejected.
 *
 * SOFTCUDA_BLAS="late=N" makes algorithm N slow, "version=N" sets the version, "bias=no" makes the epilogue with a bias
 * unsupported, "create=no" makes cublasLtCreate fail. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>

#include "gemm.h"

enum { PRODUCT_TRANSPOSE_A = 3, PRODUCT_TRANSPOSE_B = 4, PRODUCT_EPILOGUE = 7, PRODUCT_BIAS = 8 };
enum { LAYOUT_BATCHES = 5, LAYOUT_BATCH_STEP = 6 };
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTIONS = 3, PREFER_ALIGN_A = 5, PREFER_ALIGN_D = 8 };
enum { ALGORITHMS = 3, MAGIC = 0x50f7 };

struct handle { int magic; };
struct operation {
    int32_t compute, scale, transpose_a, transpose_b, epilogue;
    address bias;
};
struct layout {
    struct matrix matrix;
    int32_t batches;
};
struct preference {
    uint64_t workspace;
    uint32_t reductions, alignments[4];         /* of A, B, C and D */
};

typedef struct { uint64_t data[8]; } algorithm;
typedef struct {
    algorithm chosen;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} choice;

static const size_t workspaces[ALGORITHMS] = { 0, (size_t)1 << 20, (size_t)8 << 20 };

static long option(const char *name)
{
    return library_option("SOFTCUDA_BLAS", name);
}

/* Returns true if this library is version 12, which is determined by its file name. */
static bool is_12(void)
{
    Dl_info info;
    const char *name = dladdr((void *)(uintptr_t)is_12, &info) != 0 ? strrchr(info.dli_fname, '.') : NULL;
    return name != NULL && strcmp(name, ".12") == 0;
}

EXPORT size_t cublasLtGetVersion(void)
{
    return option("version") > 0 ? (size_t)option("version") : is_12() ? 120805 : 130002;
}

EXPORT const char *cublasLtGetStatusName(int status)
{
    static const struct { int status; const char *name; } names[] = {
        { BLAS_OK, "CUBLAS_STATUS_SUCCESS" }, { BLAS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED" },
        { BLAS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED" }, { BLAS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE" },
        { BLAS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED" },
        { BLAS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR" }, { BLAS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown cuBLAS status";
}

EXPORT int cublasLtCreate(struct handle **out)
{
    ENTER(cublasLtCreate);
    if (option("create") == 0)
        return BLAS_NOT_INITIALIZED;
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return BLAS_ALLOC_FAILED;
    (*out)->magic = MAGIC;
    return BLAS_OK;
}

EXPORT int cublasLtDestroy(struct handle *handle)
{
    ENTER(cublasLtDestroy);
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    handle->magic = 0;
    free(handle);
    return BLAS_OK;
}

/* ---- objects with attributes ---- */

static int set(void *attribute, size_t width, const void *from, size_t bytes)
{
    if (attribute == NULL || from == NULL || bytes < width)
        return BLAS_INVALID_VALUE;
    memcpy(attribute, from, width);
    return BLAS_OK;
}

#define DESTROY(name, type)          \
    EXPORT int name(type *object)    \
    {                                \
        ENTER(name);                 \
        free(object);                \
        return BLAS_OK;              \
    }
DESTROY(cublasLtMatmulDescDestroy, struct operation)
DESTROY(cublasLtMatrixLayoutDestroy, struct layout)
DESTROY(cublasLtMatmulPreferenceDestroy, struct preference)

EXPORT int cublasLtMatmulDescCreate(struct operation **out, int compute, int scale)
{
    ENTER(cublasLtMatmulDescCreate);
    struct operation *o = calloc(1, sizeof *o);
    if (o == NULL)
        return BLAS_ALLOC_FAILED;
    *o = (struct operation){ .compute = compute, .scale = scale, .epilogue = EPILOGUE_NONE };
    *out = o;
    return BLAS_OK;
}

EXPORT int cublasLtMatmulDescSetAttribute(struct operation *o, int which, const void *from, size_t bytes)
{
    ENTER(cublasLtMatmulDescSetAttribute);
    switch (which) {
    case PRODUCT_TRANSPOSE_A: return set(&o->transpose_a, 4, from, bytes);
    case PRODUCT_TRANSPOSE_B: return set(&o->transpose_b, 4, from, bytes);
    case PRODUCT_EPILOGUE: return set(&o->epilogue, 4, from, bytes);
    case PRODUCT_BIAS: return set(&o->bias, 8, from, bytes);
    default: return BLAS_NOT_SUPPORTED;
    }
}

EXPORT int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    ENTER(cublasLtMatrixLayoutCreate);
    struct layout *l = calloc(1, sizeof *l);
    if (l == NULL)
        return BLAS_ALLOC_FAILED;
    *l = (struct layout){ { type, (int64_t)rows, (int64_t)columns, step, 0 }, 1 };
    *out = l;
    return BLAS_OK;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *l, int which, const void *from, size_t bytes)
{
    ENTER(cublasLtMatrixLayoutSetAttribute);
    switch (which) {
    case LAYOUT_BATCHES: return set(&l->batches, 4, from, bytes);
    case LAYOUT_BATCH_STEP: return set(&l->matrix.batch_step, 8, from, bytes);
    default: return BLAS_NOT_SUPPORTED;
    }
}

EXPORT int cublasLtMatmulPreferenceCreate(struct preference **out)
{
    ENTER(cublasLtMatmulPreferenceCreate);
    struct preference *p = calloc(1, sizeof *p);
    if (p == NULL)
        return BLAS_ALLOC_FAILED;
    *p = (struct preference){ .alignments = { 256, 256, 256, 256 } };
    *out = p;
    return BLAS_OK;
}

EXPORT int cublasLtMatmulPreferenceSetAttribute(struct preference *p, int which, const void *from, size_t bytes)
{
    ENTER(cublasLtMatmulPreferenceSetAttribute);
    if (which == PREFER_WORKSPACE)
        return set(&p->workspace, 8, from, bytes);
    if (which == PREFER_REDUCTIONS)
        return set(&p->reductions, 4, from, bytes);
    if (which >= PREFER_ALIGN_A && which <= PREFER_ALIGN_D)
        return set(&p->alignments[which - PREFER_ALIGN_A], 4, from, bytes);
    return BLAS_NOT_SUPPORTED;
}

/* ---- products ---- */

static int describe(struct product *p, const struct operation *o, const struct layout *a, const struct layout *b,
                    const struct layout *c, const struct layout *d)
{
    if (a->batches != d->batches || b->batches != d->batches || c->batches != d->batches)
        return BLAS_INVALID_VALUE;
    *p = (struct product){
        .a = a->matrix, .b = b->matrix, .c = c->matrix, .d = d->matrix, .transpose_a = o->transpose_a != 0,
        .transpose_b = o->transpose_b != 0, .compute = o->compute, .scale_type = o->scale, .batches = d->batches,
        .epilogue = o->epilogue, .bias_at = o->bias,
    };
    if (p->epilogue != EPILOGUE_NONE && (p->epilogue != EPILOGUE_BIAS || option("bias") == 0))
        return BLAS_NOT_SUPPORTED;
    return product_check(p);
}

/* The alignments of A, B, C and D in bytes, one byte each; stored in data[1] of an algorithm. */
static uint64_t alignments_of(const struct preference *preference)
{
    uint64_t all = 0;
    for (int i = 0; i < 4; i++)
        all |= (uint64_t)(preference->alignments[i] < 128 ? preference->alignments[i] : 128) << 8 * i;
    return all;
}

static bool is_aligned(const algorithm *chosen, int which, const void *at)
{
    const uint64_t alignment = chosen->data[1] >> (8 * which) & 255;
    return alignment != 0 && (uintptr_t)at % alignment == 0;
}

static int number_of_algorithm(const algorithm *chosen)
{
    const uint64_t n = chosen == NULL ? 0 : chosen->data[0] - MAGIC;
    return n < ALGORITHMS ? (int)n : -1;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(struct handle *handle, struct operation *o, struct layout *a,
                                          struct layout *b, struct layout *c, struct layout *d,
                                          struct preference *preference, int limit, choice *choices, int *found)
{
    ENTER(cublasLtMatmulAlgoGetHeuristic);
    struct product p;
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    *found = 0;
    const int status = describe(&p, o, a, b, c, d);
    if (status != BLAS_OK)
        return status;
    /* Operands are aligned at least to their element size. */
    const struct matrix *const operands[4] = { &p.a, &p.b, &p.c, &p.d };
    for (int i = 0; i < 4; i++)
        if (preference->alignments[i] < element_bytes(operands[i]->type))
            return BLAS_NOT_SUPPORTED;
    for (int i = ALGORITHMS; i-- > 0;) {            /* the algorithm with the largest workspace is reported as the
                                                     * best */
        if (*found == limit || workspaces[i] > preference->workspace)
            continue;
        choices[(*found)++] = (choice){ .chosen = { { MAGIC + (uint64_t)i, alignments_of(preference) } },
                                        .workspace = workspaces[i], .state = BLAS_OK, .waves = 1.0f };
    }
    return BLAS_OK;
}

EXPORT int cublasLtMatmulAlgoCheck(struct handle *handle, struct operation *o, struct layout *a, struct layout *b,
                                   struct layout *c, struct layout *d, const algorithm *chosen, choice *out)
{
    ENTER(cublasLtMatmulAlgoCheck);
    struct product p;
    const int n = number_of_algorithm(chosen);
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    if (chosen == NULL || out == NULL || n < 0)
        return BLAS_INVALID_VALUE;
    const int status = describe(&p, o, a, b, c, d);
    *out = (choice){ .chosen = *chosen, .workspace = workspaces[n], .state = status, .waves = 1.0f };
    return status;
}

EXPORT int cublasLtMatmul(struct handle *handle, struct operation *o, const void *alpha, const void *a_at,
                          struct layout *a, const void *b_at, struct layout *b,
                          const void *beta, const void *c_at, struct layout *c, void *d_at, struct layout *d,
                          const algorithm *chosen, void *workspace, size_t workspace_bytes, void *stream)
{
    ENTER(cublasLtMatmul);
    struct product p;
    const int n = number_of_algorithm(chosen);
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    const int status = describe(&p, o, a, b, c, d);
    if (status != BLAS_OK)
        return status;
    if (n < 0 || workspaces[n] > workspace_bytes || (workspaces[n] > 0 && workspace == NULL) || alpha == NULL
        || beta == NULL)
        return BLAS_INVALID_VALUE;
    if (((uintptr_t)workspace & 15) != 0 || (p.epilogue == EPILOGUE_BIAS && p.bias_at == 0))
        return BLAS_INVALID_VALUE;
    if (!is_aligned(chosen, 0, a_at) || !is_aligned(chosen, 1, b_at) || !is_aligned(chosen, 2, c_at)
        || !is_aligned(chosen, 3, d_at))
        return BLAS_INVALID_VALUE;
    p.late = option("late") == n;
    p.workspace_at = (uintptr_t)workspace;
    p.workspace_bytes = workspaces[n];
    p.a_at = (uintptr_t)a_at, p.b_at = (uintptr_t)b_at, p.c_at = (uintptr_t)c_at, p.d_at = (uintptr_t)d_at;
    p.alpha = element_load(p.scale_type, alpha);
    p.beta = element_load(p.scale_type, beta);
    return product_put(&p, stream);
}
