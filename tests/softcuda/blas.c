/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/blas.c: a fake libcublasLt.so.13; also built as libcublasLt.so.12, which reports the version numbers
 * of CUDA 12, and as libcublas.so.13, of which it has the functions that bench/gpu_direct.c uses.
 *
 * Products are computed by plain loops. Matrices are described by attributes. An algorithm is a number that does not
 * affect the result but may require a workspace. An algorithm is valid only for the operand alignments of the query
 * that returned it; operands with other alignments are rejected.
 *
 * SOFTCUDA_BLAS="late=N" makes algorithm N slow, "version=N" sets the version, "bias=no" makes the epilogue with a bias
 * unsupported, "create=no" makes cublasLtCreate fail. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "library.h"

enum {                                      /* cublasStatus_t */
    BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_EXECUTION_FAILED = 13,
    BLAS_INTERNAL_ERROR = 14, BLAS_NOT_SUPPORTED = 15
};
enum { TYPE_BF16 = 14 };                    /* cudaDataType */
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };        /* cublasComputeType_t */
enum { EPILOGUE_NONE = 1, EPILOGUE_BIAS = 4 };

struct matrix {                             /* column major */
    int type;
    int64_t rows, columns, step, batch_step;        /* of the matrix as stored; in elements */
};

/* D = alpha A B + beta C, plus `bias` in each column with EPILOGUE_BIAS */
struct product {
    struct matrix a, b, c, d;
    bool transpose_a, transpose_b;
    int compute, scale_type, batches;
    double alpha, beta;
    address a_at, b_at, c_at, d_at;
    int epilogue;
    address bias_at;
    address workspace_at;
    size_t workspace_bytes;                 /* number of bytes that the algorithm uses */
    bool late;                              /* takes some milliseconds longer */
};

/* ---- matrices, with the usual checks of addresses (an error is sticky), rounded as the compute type requires ---- */

static int64_t rows_of(const struct matrix *m, bool transposed) { return transposed ? m->columns : m->rows; }
static int64_t columns_of(const struct matrix *m, bool transposed) { return transposed ? m->rows : m->columns; }

static address column_at(const struct matrix *m, address at, int batch, int64_t column)
{
    return at + (size_t)(batch * m->batch_step + column * m->step) * element_bytes(m->type);
}

/* Reads the matrix of a batch as a dense column-major matrix of doubles, transposed if `transposed`. */
static result read_matrix(double *out, const struct matrix *m, address at, int batch, bool transposed, bool tf32)
{
    double *column = allocated(malloc(sizeof *column * (size_t)(m->rows + 1)));
    result made = CUDA_SUCCESS;
    for (int64_t j = 0; j < m->columns && made == CUDA_SUCCESS; j++) {
        made = library_read(column, column_at(m, at, batch, j), m->type, (size_t)m->rows, tf32);
        for (int64_t i = 0; i < m->rows && made == CUDA_SUCCESS; i++)
            out[transposed ? i * m->columns + j : j * m->rows + i] = column[i];
    }
    free(column);
    return made;
}

static void multiply(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    memset(c, 0, sizeof *c * (size_t)(m * n));
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t i = 0; i < m; i++)
                c[j * m + i] += a[l * m + i] * b[j * k + l];
}

/* ---- execution in stream order ---- */

/* `work` has space for A, B, the product, C and a bias. */
static result run_batch(const struct product *p, int batch, double *work)
{
    const int64_t m = p->d.rows, n = p->d.columns, k = columns_of(&p->a, p->transpose_a);
    const bool tf32 = p->compute == COMPUTE_32F_FAST_TF32;
    double *a = work, *b = a + m * k, *x = b + k * n, *c = x + m * n, *bias = c + m * n;
    TRY(read_matrix(a, &p->a, p->a_at, batch, p->transpose_a, tf32));
    TRY(read_matrix(b, &p->b, p->b_at, batch, p->transpose_b, tf32));
    if (p->beta != 0)
        TRY(read_matrix(c, &p->c, p->c_at, batch, false, false));
    if (p->epilogue == EPILOGUE_BIAS)
        TRY(library_read(bias, p->bias_at, p->d.type, (size_t)m, false));
    multiply(m, n, k, a, b, x);
    for (int64_t i = 0; i < m * n; i++) {
        x[i] = p->alpha * x[i] + (p->beta != 0 ? p->beta * c[i] : 0);
        x[i] += p->epilogue == EPILOGUE_BIAS ? bias[i % m] : 0;
    }
    for (int64_t j = 0; j < n; j++)
        TRY(library_write(&x[j * m], column_at(&p->d, p->d_at, batch, j), p->d.type, (size_t)m));
    return CUDA_SUCCESS;
}

static result run(void *argument)
{
    const struct product *p = argument;
    const size_t m = (size_t)p->d.rows, n = (size_t)p->d.columns, k = (size_t)columns_of(&p->a, p->transpose_a);
    result made = library_workspace(p->workspace_at, p->workspace_bytes, p->late);
    double *work = allocated(malloc(sizeof *work * (m * k + k * n + 2 * m * n + m + 1)));
    for (int i = 0; i < p->batches && made == CUDA_SUCCESS; i++)
        made = run_batch(p, i, work);
    free(work);
    return made;
}

static bool fits(const struct matrix *m)
{
    return m->rows >= 0 && m->columns >= 0 && m->step >= m->rows && m->step < INT32_MAX;
}

static bool is_type(int type)
{
    return type == TYPE_F32 || type == TYPE_F64 || type == TYPE_F16 || type == TYPE_BF16;
}

/* Checks that shapes, types and strides are consistent. Returns a cublasStatus_t. */
static int product_check(const struct product *p)
{
    const int64_t m = rows_of(&p->a, p->transpose_a), k = columns_of(&p->a, p->transpose_a),
                  n = columns_of(&p->b, p->transpose_b);
    RETURN_IF(!fits(&p->a) || !fits(&p->b) || !fits(&p->c) || !fits(&p->d) || p->batches < 0, BLAS_INVALID_VALUE);
    RETURN_IF(rows_of(&p->b, p->transpose_b) != k || p->d.rows != m || p->d.columns != n || p->c.rows != m
              || p->c.columns != n, BLAS_INVALID_VALUE);
    const bool doubles = p->compute == COMPUTE_64F;
    RETURN_IF(!is_type(p->a.type) || !is_type(p->d.type) || p->a.type != p->b.type || p->c.type != p->d.type
              || doubles != (p->a.type == TYPE_F64) || doubles != (p->d.type == TYPE_F64)
              || doubles != (p->scale_type == TYPE_F64)
              || (!doubles && p->compute != COMPUTE_32F && p->compute != COMPUTE_32F_FAST_TF32), BLAS_NOT_SUPPORTED);
    return BLAS_OK;
}

/* Enqueues a copy of the product on the stream. Returns a cublasStatus_t. */
static int product_put(const struct product *p, void *stream)
{
    return softcuda_enqueue(stream, run, NULL, p, sizeof *p) == CUDA_SUCCESS ? BLAS_OK : BLAS_EXECUTION_FAILED;
}

/* ---- cuBLASLt ---- */

enum { PRODUCT_TRANSPOSE_A = 3, PRODUCT_TRANSPOSE_B = 4, PRODUCT_EPILOGUE = 7, PRODUCT_BIAS = 8 };
enum { LAYOUT_BATCHES = 5, LAYOUT_BATCH_STEP = 6 };
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTIONS = 3, PREFER_ALIGN_A = 5, PREFER_ALIGN_D = 8 };
enum { ALGORITHMS = 3, MAGIC = 0x50f7 };

struct handle { int magic; void *stream; };
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

static const size_t workspaces[ALGORITHMS] = { 0, (size_t)128 << 10, (size_t)2 << 20 };

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
    return status == BLAS_OK ? "CUBLAS_STATUS_SUCCESS" : "an error of softcuda's cuBLAS";
}

static int create(struct handle **out)
{
    *out = allocated(malloc(sizeof **out));
    **out = (struct handle){ MAGIC, NULL };
    return BLAS_OK;
}

EXPORT int cublasLtCreate(struct handle **out)
{
    ENTER(cublasLtCreate);
    RETURN_IF(option("create") == 0, BLAS_NOT_INITIALIZED);
    return create(out);
}

#define REQUIRE_HANDLE(handle) RETURN_IF((handle) == NULL || (handle)->magic != MAGIC, BLAS_NOT_INITIALIZED)

EXPORT int cublasLtDestroy(struct handle *handle)
{
    ENTER(cublasLtDestroy);
    REQUIRE_HANDLE(handle);
    handle->magic = 0;
    free(handle);
    return BLAS_OK;
}

/* ---- objects with attributes ---- */

struct attribute { int which; size_t place, width; };

static int set(void *object, const struct attribute *attributes, int which, const void *from, size_t bytes)
{
    const struct attribute *a = attributes;
    while (a->width != 0 && a->which != which)
        a++;
    RETURN_IF(a->width == 0, BLAS_NOT_SUPPORTED);
    RETURN_IF(from == NULL || bytes < a->width, BLAS_INVALID_VALUE);
    memcpy((char *)object + a->place, from, a->width);
    return BLAS_OK;
}

/* The functions that create, destroy and change objects of a type. `...`: its attributes. */
#define OBJECT(kind, type, parameters, initial, ...)                                       \
    EXPORT int kind##Create parameters                                                     \
    {                                                                                      \
        ENTER(kind##Create);                                                               \
        *out = allocated(malloc(sizeof **out));                                            \
        **out = initial;                                                                   \
        return BLAS_OK;                                                                    \
    }                                                                                      \
    EXPORT int kind##Destroy(type *object)                                                 \
    {                                                                                      \
        ENTER(kind##Destroy);                                                              \
        free(object);                                                                      \
        return BLAS_OK;                                                                    \
    }                                                                                      \
    EXPORT int kind##SetAttribute(type *object, int which, const void *from, size_t bytes) \
    {                                                                                      \
        static const struct attribute attributes[] = { __VA_ARGS__, { 0, 0, 0 } };         \
        ENTER(kind##SetAttribute);                                                         \
        return set(object, attributes, which, from, bytes);                                \
    }
#define ATTRIBUTE(which, type, member) { which, offsetof(type, member), sizeof(((type *)NULL)->member) }

OBJECT(cublasLtMatmulDesc, struct operation, (struct operation **out, int compute, int scale),
       ((struct operation){ .compute = compute, .scale = scale, .epilogue = EPILOGUE_NONE }),
       ATTRIBUTE(PRODUCT_TRANSPOSE_A, struct operation, transpose_a),
       ATTRIBUTE(PRODUCT_TRANSPOSE_B, struct operation, transpose_b),
       ATTRIBUTE(PRODUCT_EPILOGUE, struct operation, epilogue), ATTRIBUTE(PRODUCT_BIAS, struct operation, bias))
OBJECT(cublasLtMatrixLayout, struct layout,
       (struct layout **out, int type, uint64_t rows, uint64_t columns, int64_t step),
       ((struct layout){ { type, (int64_t)rows, (int64_t)columns, step, 0 }, 1 }),
       ATTRIBUTE(LAYOUT_BATCHES, struct layout, batches),
       ATTRIBUTE(LAYOUT_BATCH_STEP, struct layout, matrix.batch_step))
OBJECT(cublasLtMatmulPreference, struct preference, (struct preference **out),
       ((struct preference){ .alignments = { 256, 256, 256, 256 } }),
       ATTRIBUTE(PREFER_WORKSPACE, struct preference, workspace),
       ATTRIBUTE(PREFER_REDUCTIONS, struct preference, reductions),
       ATTRIBUTE(PREFER_ALIGN_A, struct preference, alignments[0]),
       ATTRIBUTE(PREFER_ALIGN_A + 1, struct preference, alignments[1]),
       ATTRIBUTE(PREFER_ALIGN_A + 2, struct preference, alignments[2]),
       ATTRIBUTE(PREFER_ALIGN_D, struct preference, alignments[3]))

/* ---- products ---- */

static int describe(struct product *p, const struct operation *o, const struct layout *a, const struct layout *b,
                    const struct layout *c, const struct layout *d)
{
    RETURN_IF(a->batches != d->batches || b->batches != d->batches || c->batches != d->batches, BLAS_INVALID_VALUE);
    *p = (struct product){
        .a = a->matrix, .b = b->matrix, .c = c->matrix, .d = d->matrix, .transpose_a = o->transpose_a != 0,
        .transpose_b = o->transpose_b != 0, .compute = o->compute, .scale_type = o->scale, .batches = d->batches,
        .epilogue = o->epilogue, .bias_at = o->bias,
    };
    RETURN_IF(p->epilogue != EPILOGUE_NONE && (p->epilogue != EPILOGUE_BIAS || option("bias") == 0),
              BLAS_NOT_SUPPORTED);
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
    REQUIRE_HANDLE(handle);
    *found = 0;
    TRY(describe(&p, o, a, b, c, d));
    /* Operands are aligned at least to their element size. */
    const struct matrix *const operands[4] = { &p.a, &p.b, &p.c, &p.d };
    for (int i = 0; i < 4; i++)
        RETURN_IF(preference->alignments[i] < element_bytes(operands[i]->type), BLAS_NOT_SUPPORTED);
    for (int i = ALGORITHMS; i-- > 0;)              /* first the algorithm with the largest workspace, as the best */
        if (*found < limit && workspaces[i] <= preference->workspace)
            choices[(*found)++] = (choice){ .chosen = { { MAGIC + (uint64_t)i, alignments_of(preference) } },
                                            .workspace = workspaces[i], .state = BLAS_OK, .waves = 1.0f };
    return BLAS_OK;
}

EXPORT int cublasLtMatmulAlgoCheck(struct handle *handle, struct operation *o, struct layout *a, struct layout *b,
                                   struct layout *c, struct layout *d, const algorithm *chosen, choice *out)
{
    ENTER(cublasLtMatmulAlgoCheck);
    struct product p;
    const int n = number_of_algorithm(chosen);
    REQUIRE_HANDLE(handle);
    RETURN_IF(chosen == NULL || out == NULL || n < 0, BLAS_INVALID_VALUE);
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
    REQUIRE_HANDLE(handle);
    TRY(describe(&p, o, a, b, c, d));
    RETURN_IF(n < 0 || workspaces[n] > workspace_bytes || (workspaces[n] > 0 && workspace == NULL) || alpha == NULL
              || beta == NULL, BLAS_INVALID_VALUE);
    RETURN_IF(((uintptr_t)workspace & 15) != 0 || (p.epilogue == EPILOGUE_BIAS && p.bias_at == 0), BLAS_INVALID_VALUE);
    RETURN_IF(!is_aligned(chosen, 0, a_at) || !is_aligned(chosen, 1, b_at) || !is_aligned(chosen, 2, c_at)
              || !is_aligned(chosen, 3, d_at), BLAS_INVALID_VALUE);
    p.late = option("late") == n;
    p.workspace_at = (uintptr_t)workspace;
    p.workspace_bytes = workspaces[n];
    p.a_at = (uintptr_t)a_at, p.b_at = (uintptr_t)b_at, p.c_at = (uintptr_t)c_at, p.d_at = (uintptr_t)d_at;
    p.alpha = element_load(p.scale_type, alpha);
    p.beta = element_load(p.scale_type, beta);
    return product_put(&p, stream);
}

/* ---- cuBLAS ---- */

EXPORT int cublasCreate_v2(struct handle **out)
{
    ENTER(cublasCreate_v2);
    return create(out);
}

EXPORT int cublasSetStream_v2(struct handle *handle, void *stream)
{
    ENTER(cublasSetStream_v2);
    handle->stream = stream;
    return BLAS_OK;
}

EXPORT int cublasSetMathMode(struct handle *handle, int mode)
{
    ENTER(cublasSetMathMode);
    (void)mode;
    REQUIRE_HANDLE(handle);
    return BLAS_OK;
}

EXPORT int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha, const void *a,
                        int type_a, int lda, const void *b, int type_b, int ldb, const float *beta, void *c,
                        int type_c, int ldc, int compute, int algorithm)
{
    ENTER(cublasGemmEx);
    (void)algorithm;
    const struct matrix result = { type_c, m, n, ldc, 0 };
    const struct product p = {
        .a = { type_a, ta ? k : m, ta ? m : k, lda, 0 }, .b = { type_b, tb ? n : k, tb ? k : n, ldb, 0 },
        .c = result, .d = result, .transpose_a = ta != 0, .transpose_b = tb != 0, .compute = compute,
        .scale_type = TYPE_F32, .batches = 1, .alpha = (double)*alpha, .beta = (double)*beta,
        .a_at = (uintptr_t)a, .b_at = (uintptr_t)b, .c_at = (uintptr_t)c, .d_at = (uintptr_t)c,
        .epilogue = EPILOGUE_NONE,
    };
    TRY(product_check(&p));
    return product_put(&p, handle->stream);
}
