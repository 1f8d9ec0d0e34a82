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
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

enum { PRODUCT_COMPUTE = 0, PRODUCT_SCALE = 1, PRODUCT_POINTER_MODE = 2, PRODUCT_TRANSPOSE_A = 3,
       PRODUCT_TRANSPOSE_B = 4, PRODUCT_EPILOGUE = 7,
       PRODUCT_BIAS = 8, PRODUCT_BIAS_STEP = 10, PRODUCT_AUX = 11, PRODUCT_AUX_STEP = 12, PRODUCT_AUX_BATCH_STEP = 13,
       PRODUCT_PROCESSORS = 15,
       PRODUCT_FAST_SUM = 25, PRODUCT_BIAS_TYPE = 26, PRODUCT_AUX_TYPE = 22, PRODUCT_ATTRIBUTES = 40 };
enum { LAYOUT_TYPE = 0, LAYOUT_ORDER = 1, LAYOUT_ROWS = 2, LAYOUT_COLUMNS = 3, LAYOUT_STEP = 4, LAYOUT_BATCHES = 5,
       LAYOUT_BATCH_STEP = 6, LAYOUT_ATTRIBUTES = 9 };
enum { PREFER_WORKSPACE = 1, PREFER_ALIGN_A = 5, PREFER_ALIGN_D = 8, PREFER_ATTRIBUTES = 13 };
enum { ALGORITHMS = 3, MAGIC = 0x50f7 };

struct handle { int magic; };
struct operation { int64_t values[PRODUCT_ATTRIBUTES]; };
struct layout { int64_t values[LAYOUT_ATTRIBUTES]; };
struct preference { int64_t values[PREFER_ATTRIBUTES]; };

typedef struct { uint64_t data[8]; } algorithm;
typedef struct {
    algorithm chosen;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} choice;

static const size_t workspaces[ALGORITHMS] = { 0, (size_t)1 << 20, (size_t)8 << 20 };

/* Returns the number of an entry NAME=NUMBER of SOFTCUDA_BLAS, 0 for "no"; -1: there is no such entry. */
static long option(const char *name)
{
    const char *text = getenv("SOFTCUDA_BLAS");
    const size_t bytes = strlen(name);
    for (; text != NULL && *text != '\0'; text = strchr(text, ','), text = text != NULL ? text + 1 : NULL)
        if (strncmp(text, name, bytes) == 0 && text[bytes] == '=')
            return strncmp(text + bytes + 1, "no", 2) == 0 ? 0 : strtol(text + bytes + 1, NULL, 10);
    return -1;
}

/* ---- objects with attributes ---- */

/* Returns the width of an attribute, 4 or 8 bytes; 0: unknown attribute. */
static int width_of(const unsigned char *widths, size_t n, int which)
{
    return which >= 0 && (size_t)which < n ? widths[which] : 0;
}

static int set_value(int64_t *values, int width, int which, const void *from, size_t bytes)
{
    int32_t word;
    if (width == 0)
        return BLAS_NOT_SUPPORTED;
    if (from == NULL || bytes < (size_t)width)
        return BLAS_INVALID_VALUE;
    if (width == 8) {
        memcpy(&values[which], from, 8);
    } else {
        memcpy(&word, from, 4);
        values[which] = word;
    }
    return BLAS_OK;
}

static int get_value(const int64_t *values, int width, int which, void *to, size_t bytes, size_t *written)
{
    const int32_t word = width != 0 ? (int32_t)values[which] : 0;
    if (width == 0)
        return BLAS_NOT_SUPPORTED;
    if (written != NULL)
        *written = (size_t)width;
    if (to == NULL || bytes < (size_t)width)
        return bytes == 0 && written != NULL ? BLAS_OK : BLAS_INVALID_VALUE;
    memcpy(to, width == 8 ? (const void *)&values[which] : &word, (size_t)width);
    return BLAS_OK;
}

static const unsigned char product_widths[PRODUCT_ATTRIBUTES] = {
    [PRODUCT_COMPUTE] = 4, [PRODUCT_SCALE] = 4, [PRODUCT_POINTER_MODE] = 4, [PRODUCT_TRANSPOSE_A] = 4,
    [PRODUCT_TRANSPOSE_B] = 4, [PRODUCT_EPILOGUE] = 4,
    [PRODUCT_BIAS] = 8, [PRODUCT_BIAS_STEP] = 8, [PRODUCT_AUX] = 8, [PRODUCT_AUX_STEP] = 8,
    [PRODUCT_AUX_BATCH_STEP] = 8, [PRODUCT_PROCESSORS] = 4, [PRODUCT_BIAS_TYPE] = 4, [PRODUCT_AUX_TYPE] = 4,
};
static const unsigned char layout_widths[LAYOUT_ATTRIBUTES] = {
    [LAYOUT_TYPE] = 4, [LAYOUT_ORDER] = 4, [LAYOUT_ROWS] = 8, [LAYOUT_COLUMNS] = 8, [LAYOUT_STEP] = 8,
    [LAYOUT_BATCHES] = 4, [LAYOUT_BATCH_STEP] = 8,
};
static const unsigned char prefer_widths[PREFER_ATTRIBUTES] = {
    [0] = 4, [PREFER_WORKSPACE] = 8, [3] = 4, [5] = 4, [6] = 4, [7] = 4, [8] = 4, [9] = 4, [12] = 8,
};

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
EXPORT size_t cublasLtGetCudartVersion(void) { return is_12() ? 12080 : 13000; }
EXPORT const char *cublasLtGetStatusName(int status) { return blas_status_name(status); }
EXPORT const char *cublasLtGetStatusString(int status) { return blas_status_name(status); }

EXPORT int cublasLtCreate(struct handle **out)
{
    BLAS_CALL(cublasLtCreate);
    if (out == NULL)
        return BLAS_INVALID_VALUE;
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
    BLAS_CALL(cublasLtDestroy);
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    handle->magic = 0;
    free(handle);
    return BLAS_OK;
}

EXPORT int cublasLtMatmulDescCreate(struct operation **out, int compute, int scale)
{
    BLAS_CALL(cublasLtMatmulDescCreate);
    struct operation *o = out != NULL ? calloc(1, sizeof *o) : NULL;
    if (o == NULL)
        return out == NULL ? BLAS_INVALID_VALUE : BLAS_ALLOC_FAILED;
    o->values[PRODUCT_COMPUTE] = compute;
    o->values[PRODUCT_SCALE] = scale;
    o->values[PRODUCT_EPILOGUE] = 1;
    o->values[PRODUCT_BIAS_TYPE] = o->values[PRODUCT_AUX_TYPE] = -1;
    *out = o;
    return BLAS_OK;
}

EXPORT int cublasLtMatmulDescDestroy(struct operation *o)
{
    BLAS_CALL(cublasLtMatmulDescDestroy);
    free(o);
    return BLAS_OK;
}

EXPORT int cublasLtMatmulDescSetAttribute(struct operation *o, int which, const void *from, size_t bytes)
{
    BLAS_CALL(cublasLtMatmulDescSetAttribute);
    return o == NULL ? BLAS_INVALID_VALUE
                     : set_value(o->values, width_of(product_widths, PRODUCT_ATTRIBUTES, which), which, from, bytes);
}

EXPORT int cublasLtMatmulDescGetAttribute(struct operation *o, int which, void *to, size_t bytes, size_t *written)
{
    BLAS_CALL(cublasLtMatmulDescGetAttribute);
    return o == NULL ? BLAS_INVALID_VALUE
                     : get_value(o->values, width_of(product_widths, PRODUCT_ATTRIBUTES, which), which, to, bytes,
                                 written);
}

EXPORT int cublasLtMatrixLayoutCreate(struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    BLAS_CALL(cublasLtMatrixLayoutCreate);
    struct layout *l = out != NULL ? calloc(1, sizeof *l) : NULL;
    if (l == NULL)
        return out == NULL ? BLAS_INVALID_VALUE : BLAS_ALLOC_FAILED;
    l->values[LAYOUT_TYPE] = type;
    l->values[LAYOUT_ROWS] = (int64_t)rows;
    l->values[LAYOUT_COLUMNS] = (int64_t)columns;
    l->values[LAYOUT_STEP] = step;
    l->values[LAYOUT_BATCHES] = 1;
    *out = l;
    return BLAS_OK;
}

EXPORT int cublasLtMatrixLayoutDestroy(struct layout *l)
{
    BLAS_CALL(cublasLtMatrixLayoutDestroy);
    free(l);
    return BLAS_OK;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *l, int which, const void *from, size_t bytes)
{
    BLAS_CALL(cublasLtMatrixLayoutSetAttribute);
    return l == NULL ? BLAS_INVALID_VALUE
                     : set_value(l->values, width_of(layout_widths, LAYOUT_ATTRIBUTES, which), which, from, bytes);
}

EXPORT int cublasLtMatrixLayoutGetAttribute(struct layout *l, int which, void *to, size_t bytes, size_t *written)
{
    BLAS_CALL(cublasLtMatrixLayoutGetAttribute);
    return l == NULL ? BLAS_INVALID_VALUE
                     : get_value(l->values, width_of(layout_widths, LAYOUT_ATTRIBUTES, which), which, to, bytes,
                                 written);
}

EXPORT int cublasLtMatmulPreferenceCreate(struct preference **out)
{
    BLAS_CALL(cublasLtMatmulPreferenceCreate);
    if (out == NULL)
        return BLAS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    for (int i = PREFER_ALIGN_A; i <= PREFER_ALIGN_D && *out != NULL; i++)
        (*out)->values[i] = 256;
    return *out == NULL ? BLAS_ALLOC_FAILED : BLAS_OK;
}

EXPORT int cublasLtMatmulPreferenceDestroy(struct preference *p)
{
    BLAS_CALL(cublasLtMatmulPreferenceDestroy);
    free(p);
    return BLAS_OK;
}

EXPORT int cublasLtMatmulPreferenceSetAttribute(struct preference *p, int which, const void *from, size_t bytes)
{
    BLAS_CALL(cublasLtMatmulPreferenceSetAttribute);
    return p == NULL ? BLAS_INVALID_VALUE
                     : set_value(p->values, width_of(prefer_widths, PREFER_ATTRIBUTES, which), which, from, bytes);
}

/* ---- products ---- */

static struct matrix matrix_of(const struct layout *l)
{
    return (struct matrix){ .type = (int)l->values[LAYOUT_TYPE], .by_rows = l->values[LAYOUT_ORDER] == 1,
                            .rows = l->values[LAYOUT_ROWS],
                            .columns = l->values[LAYOUT_COLUMNS], .step = l->values[LAYOUT_STEP],
                            .batch_step = l->values[LAYOUT_BATCH_STEP] };
}

static int describe(struct product *p, const struct operation *o, const struct layout *a, const struct layout *b,
                    const struct layout *c, const struct layout *d)
{
    if (o == NULL || a == NULL || b == NULL || c == NULL || d == NULL)
        return BLAS_INVALID_VALUE;
    const int64_t *v = o->values, batches = d->values[LAYOUT_BATCHES];
    if (a->values[LAYOUT_BATCHES] != batches || b->values[LAYOUT_BATCHES] != batches
        || c->values[LAYOUT_BATCHES] != batches)
        return BLAS_INVALID_VALUE;
    if ((a->values[LAYOUT_ORDER] | b->values[LAYOUT_ORDER] | c->values[LAYOUT_ORDER] | d->values[LAYOUT_ORDER]) > 1
        || v[PRODUCT_POINTER_MODE] > 1)
        return BLAS_NOT_SUPPORTED;
    *p = (struct product){
        .a = matrix_of(a), .b = matrix_of(b), .c = matrix_of(c), .d = matrix_of(d),
        .transpose_a = v[PRODUCT_TRANSPOSE_A] != 0,
        .transpose_b = v[PRODUCT_TRANSPOSE_B] != 0, .compute = (int)v[PRODUCT_COMPUTE],
        .scale_type = (int)v[PRODUCT_SCALE], .batches = (int)batches,
        .scale_on_device = v[PRODUCT_POINTER_MODE] == 1, .epilogue = (int)v[PRODUCT_EPILOGUE],
        .bias_at = (address)v[PRODUCT_BIAS],
        .bias_step = v[PRODUCT_BIAS_STEP], .aux_at = (address)v[PRODUCT_AUX], .aux_step = v[PRODUCT_AUX_STEP],
        .aux_batch_step = v[PRODUCT_AUX_BATCH_STEP],
    };
    p->bias_type = v[PRODUCT_BIAS_TYPE] >= 0 ? (int)v[PRODUCT_BIAS_TYPE] : p->d.type;
    p->aux_type = v[PRODUCT_AUX_TYPE] >= 0 ? (int)v[PRODUCT_AUX_TYPE] : p->d.type;
    if ((p->epilogue & EPILOGUE_BIAS) && option("bias") == 0)
        return BLAS_NOT_SUPPORTED;
    if (p->epilogue > 255 || (p->epilogue & 1 && p->epilogue != 1) || type_bytes(p->scale_type) == 0)
        return BLAS_NOT_SUPPORTED;
    return product_check(p);
}

/* The alignments of A, B, C and D in bytes, one byte each; stored in data[1] of an algorithm. */
static uint64_t alignments_of(const struct preference *preference)
{
    uint64_t all = 0;
    for (int i = PREFER_ALIGN_A; i <= PREFER_ALIGN_D; i++)
        all |= (uint64_t)(preference->values[i] < 128 ? preference->values[i] : 128) << 8 * (i - PREFER_ALIGN_A);
    return all;
}

static bool lies_well(const algorithm *chosen, int which, const void *at)
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
                                          struct preference *preference, int wanted, choice *choices, int *found)
{
    BLAS_CALL(cublasLtMatmulAlgoGetHeuristic);
    struct product p;
    if (handle == NULL || handle->magic != MAGIC)
        return BLAS_NOT_INITIALIZED;
    if (preference == NULL || choices == NULL || found == NULL || wanted <= 0)
        return BLAS_INVALID_VALUE;
    *found = 0;
    const int status = describe(&p, o, a, b, c, d);
    if (status != BLAS_OK)
        return status;
    /* Operands are aligned at least to their element size. */
    const struct matrix *const operands[4] = { &p.a, &p.b, &p.c, &p.d };
    for (int i = 0; i < 4; i++)
        if ((size_t)preference->values[PREFER_ALIGN_A + i] < type_bytes(operands[i]->type))
            return BLAS_NOT_SUPPORTED;
    for (int i = ALGORITHMS; i-- > 0;) {            /* the algorithm with the largest workspace is reported as the
                                                     * best */
        if (*found == wanted || workspaces[i] > (size_t)preference->values[PREFER_WORKSPACE])
            continue;
        choices[(*found)++] = (choice){ .chosen = { { MAGIC + (uint64_t)i, alignments_of(preference) } },
                                        .workspace = workspaces[i], .state = BLAS_OK, .waves = 1.0f };
    }
    return BLAS_OK;
}

EXPORT int cublasLtMatmulAlgoCheck(struct handle *handle, struct operation *o, struct layout *a, struct layout *b,
                                   struct layout *c, struct layout *d, const algorithm *chosen, choice *out)
{
    BLAS_CALL(cublasLtMatmulAlgoCheck);
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
    BLAS_CALL(cublasLtMatmul);
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
    if (((uintptr_t)workspace & 15) != 0
        || ((p.epilogue & (EPILOGUE_BIAS | EPILOGUE_BGRAD)) && p.bias_at == 0 && p.epilogue > 1)
        || ((p.epilogue & EPILOGUE_AUX) && p.aux_at == 0))
        return BLAS_INVALID_VALUE;
    if (!lies_well(chosen, 0, a_at) || !lies_well(chosen, 1, b_at) || !lies_well(chosen, 2, c_at)
        || !lies_well(chosen, 3, d_at))
        return BLAS_INVALID_VALUE;
    p.late = option("late") == n;
    p.workspace_at = (uintptr_t)workspace;
    p.workspace_bytes = workspaces[n];
    p.a_at = (uintptr_t)a_at, p.b_at = (uintptr_t)b_at, p.c_at = (uintptr_t)c_at, p.d_at = (uintptr_t)d_at;
    p.alpha_at = (uintptr_t)alpha, p.beta_at = (uintptr_t)beta;
    if (!p.scale_on_device) {
        p.alpha = number_of(p.scale_type, alpha);
        p.beta = number_of(p.scale_type, beta);
    }
    return product_put(&p, stream);
}
