/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/gemm.c: matrix products with the host's BLAS, or with plain loops if there is none.
 *
 * Operands are read from device memory with the usual checks (an invalid address becomes a sticky error), rounded as
 * the compute type requires, multiplied in f32 or f64, and written back rounded. */
#include "gemm.h"

#include <dlfcn.h>

enum { COLUMN_MAJOR = 102, AS_IS = 111, LOOPS_BELOW = 20000 };
typedef void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);
typedef void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                      const double *b, int ldb, double beta, double *c, int ldc);

static sgemm host_sgemm;
static dgemm host_dgemm;

/* Opens the BLAS at load time and not at first use: a failed dlopen allocates memory for its thread, and if a stream's
 * thread still exists when the process ends, a leak checker would report this memory. */
__attribute__((constructor)) static void find_blas(void)
{
    static const char *const names[] = { "libopenblas.so.0", "libblas.so.3" };
    for (size_t i = 0; i < COUNT_OF(names) && host_sgemm == NULL; i++) {
        void *file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (file != NULL) {
            *(void **)&host_sgemm = dlsym(file, "cblas_sgemm");
            *(void **)&host_dgemm = dlsym(file, "cblas_dgemm");
        }
    }
}

/* ---- matrices ---- */

static int64_t rows_of(const struct matrix *m, bool transposed) { return transposed ? m->columns : m->rows; }
static int64_t columns_of(const struct matrix *m, bool transposed) { return transposed ? m->rows : m->columns; }

static address column_at(const struct matrix *m, address at, int batch, int64_t column)
{
    return at + (size_t)(batch * m->batch_step + column * m->step) * element_bytes(m->type);
}

/* Reads the matrix of a batch as a dense column-major matrix of doubles, transposed if `transposed`. */
static result read_matrix(double *out, const struct matrix *m, address at, int batch, bool transposed, bool tf32)
{
    double *column = malloc(sizeof *column * (size_t)(m->rows + 1));
    result made = column == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (int64_t j = 0; j < m->columns && made == CUDA_SUCCESS; j++) {
        made = library_read(column, column_at(m, at, batch, j), m->type, (size_t)m->rows, tf32);
        for (int64_t i = 0; i < m->rows && made == CUDA_SUCCESS; i++)
            out[transposed ? i * m->columns + j : j * m->rows + i] = column[i];
    }
    free(column);
    return made;
}

static void multiply_loops(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    memset(c, 0, sizeof *c * (size_t)(m * n));
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t i = 0; i < m; i++)
                c[j * m + i] += a[l * m + i] * b[j * k + l];
}

static bool multiply_floats(int64_t m, int64_t n, int64_t k, const double *a, const double *b, double *c)
{
    float *floats = malloc(sizeof *floats * (size_t)(m * k + k * n + m * n));
    RETURN_IF(floats == NULL, false);
    float *fa = floats, *fb = fa + m * k, *fc = fb + k * n;
    for (int64_t i = 0; i < m * k; i++)
        fa[i] = (float)a[i];
    for (int64_t i = 0; i < k * n; i++)
        fb[i] = (float)b[i];
    host_sgemm(COLUMN_MAJOR, AS_IS, AS_IS, (int)m, (int)n, (int)k, 1.0f, fa, (int)m, fb, (int)k, 0.0f, fc, (int)m);
    for (int64_t i = 0; i < m * n; i++)
        c[i] = (double)fc[i];
    free(floats);
    return true;
}

static void multiply(const struct product *p, int64_t m, int64_t n, int64_t k, const double *a, const double *b,
                     double *c)
{
    if (m == 0 || n == 0)
        return;
    if (host_sgemm == NULL || host_dgemm == NULL || k == 0 || (double)m * (double)n * (double)k < LOOPS_BELOW)
        multiply_loops(m, n, k, a, b, c);
    else if (p->compute == COMPUTE_64F)
        host_dgemm(COLUMN_MAJOR, AS_IS, AS_IS, (int)m, (int)n, (int)k, 1.0, a, (int)m, b, (int)k, 0.0, c, (int)m);
    else if (!multiply_floats(m, n, k, a, b, c))
        multiply_loops(m, n, k, a, b, c);
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
    multiply(p, m, n, k, a, b, x);
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
    double *work = malloc(sizeof *work * (m * k + k * n + 2 * m * n + m + 1));
    RETURN_IF(work == NULL, CUDA_ERROR_OUT_OF_MEMORY);
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

int product_check(const struct product *p)
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

int product_put(const struct product *p, void *stream)
{
    return softcuda_enqueue(stream, run, p, sizeof *p) == CUDA_SUCCESS ? BLAS_OK : BLAS_EXECUTION_FAILED;
}
