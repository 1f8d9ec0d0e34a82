/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/gemm.c: matrix products with the host's BLAS, or with plain loops if there is none.
 *
 * Operands are read from device memory with the usual checks (an invalid address becomes a sticky error), rounded as
 * the compute type requires, multiplied in f32 or f64, and written back rounded. */
#include "gemm.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_half.h"

/* libcuda.so.1 */
extern result softcuda_enter(const char *symbol);
extern result softcuda_enqueue(void *stream, result (*function)(void *), void *argument);
extern result softcuda_read(void *to, address from, size_t bytes);
extern result softcuda_write(address to, const void *from, size_t bytes);

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
    for (size_t i = 0; i < sizeof names / sizeof names[0] && host_sgemm == NULL; i++) {
        void *file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (file != NULL) {
            *(void **)&host_sgemm = dlsym(file, "cblas_sgemm");
            *(void **)&host_dgemm = dlsym(file, "cblas_dgemm");
        }
    }
}

int blas_enter(const char *symbol)
{
    return softcuda_enter(symbol);
}

const char *blas_status_name(int status)
{
    static const struct { int status; const char *name; } names[] = {
        { BLAS_OK, "CUBLAS_STATUS_SUCCESS" }, { BLAS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED" },
        { BLAS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED" },
        { BLAS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE" }, { BLAS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH" },
        { BLAS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR" },
        { BLAS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED" },
        { BLAS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR" }, { BLAS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED" },
        { BLAS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown cuBLAS status";
}

/* ---- elements ---- */

size_t type_bytes(int type)
{
    switch (type) {
    case TYPE_F32: case TYPE_I32: return 4;
    case TYPE_F64: return 8;
    case TYPE_F16: case TYPE_BF16: return 2;
    case TYPE_I8: return 1;
    default: return 0;
    }
}

double number_of(int type, const void *at)
{
    float f;
    double d;
    uint16_t h;
    int32_t i;
    switch (type) {
    case TYPE_F64: return memcpy(&d, at, 8), d;
    case TYPE_F16: return memcpy(&h, at, 2), (double)soft_float_of_half(h);
    case TYPE_BF16: return memcpy(&h, at, 2), (double)soft_float_of_bfloat(h);
    case TYPE_I8: return (double)*(const int8_t *)at;
    case TYPE_I32: return memcpy(&i, at, 4), (double)i;
    default: return memcpy(&f, at, 4), (double)f;
    }
}

static void store(int type, void *at, double x)
{
    const float f = (float)x;
    const uint16_t h = type == TYPE_F16 ? soft_half_of(f) : soft_bfloat_of(f);
    const int32_t i = (int32_t)fmin(fmax(rint(x), -2147483648.0), 2147483647.0);
    switch (type) {
    case TYPE_F64: memcpy(at, &x, 8); break;
    case TYPE_F16: case TYPE_BF16: memcpy(at, &h, 2); break;
    case TYPE_I8: *(int8_t *)at = (int8_t)(i < -128 ? -128 : i > 127 ? 127 : i); break;
    case TYPE_I32: memcpy(at, &i, 4); break;
    default: memcpy(at, &f, 4); break;
    }
}

/* Rounds an operand as the multiplier does. TF32 has 10 bits of fraction. */
static double rounded(double x, int compute)
{
    if (compute == COMPUTE_32F_FAST_TF32 && isfinite(x))
        return (double)soft_float_of_bits((soft_bits_of_float((float)x) + 0x1000u) & 0xffffe000u);
    if (compute == COMPUTE_32F_FAST_16F)
        return (double)soft_float_of_half(soft_half_of((float)x));
    if (compute == COMPUTE_32F_FAST_16BF)
        return (double)soft_float_of_bfloat(soft_bfloat_of((float)x));
    return x;
}

static bool in_double(const struct product *p)
{
    return p->compute == COMPUTE_64F || p->compute == COMPUTE_64F_PEDANTIC || p->compute == COMPUTE_32I;
}

/* ---- matrices ---- */

static int64_t rows_of(const struct matrix *m, bool transposed) { return transposed ? m->columns : m->rows; }
static int64_t columns_of(const struct matrix *m, bool transposed) { return transposed ? m->rows : m->columns; }

/* Reads the matrix as a dense column-major matrix of doubles, transposed if `transposed`. */
static result read_matrix(double *out, const struct matrix *m, address at, bool transposed, int compute)
{
    const size_t width = type_bytes(m->type);
    const int64_t lines = m->by_rows ? m->rows : m->columns, length = m->by_rows ? m->columns : m->rows;
    const int64_t rows = rows_of(m, transposed);
    char *line = malloc((size_t)length * width + 1);
    result made = line == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (int64_t l = 0; l < lines && made == CUDA_SUCCESS; l++) {
        made = softcuda_read(line, at + (size_t)(l * m->step) * width, (size_t)length * width);
        for (int64_t i = 0; i < length && made == CUDA_SUCCESS; i++) {
            const bool along = m->by_rows != transposed;        /* a line becomes a row of the result */
            out[along ? l + i * rows : l * rows + i] = rounded(number_of(m->type, line + (size_t)i * width), compute);
        }
    }
    free(line);
    return made;
}

static result write_matrix(const double *values, const struct matrix *m, address at)
{
    const size_t width = type_bytes(m->type);
    const int64_t lines = m->by_rows ? m->rows : m->columns, length = m->by_rows ? m->columns : m->rows;
    char *line = malloc((size_t)length * width + 1);
    result made = line == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (int64_t l = 0; l < lines && made == CUDA_SUCCESS; l++) {
        for (int64_t i = 0; i < length; i++)
            store(m->type, line + (size_t)i * width, values[m->by_rows ? l + i * m->rows : l * m->rows + i]);
        made = softcuda_write(at + (size_t)(l * m->step) * width, line, (size_t)length * width);
    }
    free(line);
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
    float *room = malloc(sizeof *room * (size_t)(m * k + k * n + m * n));
    if (room == NULL)
        return false;
    float *fa = room, *fb = fa + m * k, *fc = fb + k * n;
    for (int64_t i = 0; i < m * k; i++)
        fa[i] = (float)a[i];
    for (int64_t i = 0; i < k * n; i++)
        fb[i] = (float)b[i];
    host_sgemm(COLUMN_MAJOR, AS_IS, AS_IS, (int)m, (int)n, (int)k, 1.0f, fa, (int)m, fb, (int)k, 0.0f, fc, (int)m);
    for (int64_t i = 0; i < m * n; i++)
        c[i] = (double)fc[i];
    free(room);
    return true;
}

static void multiply(const struct product *p, int64_t m, int64_t n, int64_t k, const double *a, const double *b,
                     double *c)
{
    if (m == 0 || n == 0)
        return;
    if (host_sgemm == NULL || host_dgemm == NULL || k == 0 || (double)m * (double)n * (double)k < LOOPS_BELOW)
        multiply_loops(m, n, k, a, b, c);
    else if (in_double(p))
        host_dgemm(COLUMN_MAJOR, AS_IS, AS_IS, (int)m, (int)n, (int)k, 1.0, a, (int)m, b, (int)k, 0.0, c, (int)m);
    else if (!multiply_floats(m, n, k, a, b, c))
        multiply_loops(m, n, k, a, b, c);
}

/* ---- epilogues ---- */

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double u = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
}

/* Writes or reads one column of the auxiliary data that the forward epilogue saves for the backward epilogue. The data
 * is one bit per element for ReLU, and one number per element for GELU. */
static result aux_column(const struct product *p, int batch, int64_t column, double *values, bool write)
{
    const bool bits = (p->epilogue & (EPILOGUE_RELU | EPILOGUE_DRELU)) != 0;
    const size_t width = bits ? 1 : type_bytes(p->aux_type), m = (size_t)p->d.rows,
                 bytes = bits ? (m + 7) / 8 : m * width;
    const int64_t place = batch * p->aux_batch_step + column * p->aux_step;
    const address at = p->aux_at + (bits ? (size_t)place / 8 : (size_t)place * width);
    unsigned char *line = calloc(1, bytes + 1);
    if (line == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < m && write; i++) {
        if (bits)
            line[i / 8] |= (unsigned char)((values[i] > 0) << (i % 8));
        else
            store(p->aux_type, line + i * width, values[i]);
    }
    const result made = write ? softcuda_write(at, line, bytes) : softcuda_read(line, at, bytes);
    for (size_t i = 0; i < m && !write; i++)
        values[i] = bits ? line[i / 8] >> (i % 8) & 1 : number_of(p->aux_type, line + i * width);
    free(line);
    return made;
}

static result finish_column(const struct product *p, int batch, int64_t column, double *x, const double *bias,
                            double *aux, double *bias_gradient)
{
    const int e = p->epilogue;
    result made = CUDA_SUCCESS;
    for (int64_t i = 0; i < p->d.rows && (e & EPILOGUE_BIAS); i++)
        x[i] += bias[i];
    if ((e & EPILOGUE_AUX) && (e & (EPILOGUE_RELU | EPILOGUE_GELU)))
        made = aux_column(p, batch, column, x, true);
    else if (e & (EPILOGUE_DRELU | EPILOGUE_DGELU))
        made = aux_column(p, batch, column, aux, false);
    for (int64_t i = 0; i < p->d.rows && made == CUDA_SUCCESS; i++) {
        if (e & EPILOGUE_RELU)
            x[i] = x[i] > 0 ? x[i] : x[i] != x[i] ? x[i] : 0;
        else if (e & EPILOGUE_GELU)
            x[i] = gelu(x[i]);
        else if (e & EPILOGUE_DRELU)
            x[i] = aux[i] > 0 ? x[i] : 0;
        else if (e & EPILOGUE_DGELU)
            x[i] *= gelu_slope(aux[i]);
        if (e & EPILOGUE_BGRAD)
            bias_gradient[i] += x[i];
    }
    return made;
}

static result finish(const struct product *p, int batch, double *x)
{
    const size_t m = (size_t)p->d.rows, width = type_bytes(p->bias_type);
    double *bias = calloc(3 * m + 1, sizeof *bias), *aux = bias + m, *gradient = aux + m;
    char *raw = malloc(m * 8 + 1);
    const address bias_at = p->bias_at + (size_t)(batch * p->bias_step) * width;
    result made = bias == NULL || raw == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (made == CUDA_SUCCESS && (p->epilogue & EPILOGUE_BIAS)) {
        made = softcuda_read(raw, bias_at, m * width);
        for (size_t i = 0; i < m && made == CUDA_SUCCESS; i++)
            bias[i] = number_of(p->bias_type, raw + i * width);
    }
    for (int64_t j = 0; j < p->d.columns && made == CUDA_SUCCESS; j++)
        made = finish_column(p, batch, j, &x[(size_t)j * m], bias, aux, gradient);
    if (made == CUDA_SUCCESS && (p->epilogue & EPILOGUE_BGRAD)) {
        for (size_t i = 0; i < m; i++)
            store(p->bias_type, raw + i * width, gradient[i]);
        made = softcuda_write(bias_at, raw, m * width);
    }
    free(bias);
    free(raw);
    return made;
}

/* ---- execution in stream order ---- */

static result run_batch(const struct product *p, int batch, double alpha, double beta, double *room)
{
    const int64_t m = p->d.rows, n = p->d.columns, k = columns_of(&p->a, p->transpose_a);
    double *a = room, *b = a + m * k, *x = b + k * n, *c = x + m * n;
    result made = read_matrix(a, &p->a, p->a_at + (size_t)(batch * p->a.batch_step) * type_bytes(p->a.type),
                              p->transpose_a, p->compute);
    if (made == CUDA_SUCCESS)
        made = read_matrix(b, &p->b, p->b_at + (size_t)(batch * p->b.batch_step) * type_bytes(p->b.type),
                           p->transpose_b, p->compute);
    if (made == CUDA_SUCCESS && beta != 0)
        made = read_matrix(c, &p->c, p->c_at + (size_t)(batch * p->c.batch_step) * type_bytes(p->c.type), false, 0);
    if (made != CUDA_SUCCESS)
        return made;
    multiply(p, m, n, k, a, b, x);
    for (int64_t i = 0; i < m * n; i++)
        x[i] = alpha * x[i] + (beta != 0 ? beta * c[i] : 0);
    if (p->epilogue > 1)
        made = finish(p, batch, x);
    return made != CUDA_SUCCESS
               ? made
               : write_matrix(x, &p->d, p->d_at + (size_t)(batch * p->d.batch_step) * type_bytes(p->d.type));
}

/* Overwrites the workspace, so that tests detect if it overlaps other data. */
static result use_workspace(const struct product *p)
{
    char used[256];
    memset(used, 0xaa, sizeof used);
    result made = CUDA_SUCCESS;
    for (size_t at = 0; at < p->workspace_bytes && made == CUDA_SUCCESS; at += sizeof used) {
        const size_t left = p->workspace_bytes - at;
        made = softcuda_write(p->workspace_at + at, used, left < sizeof used ? left : sizeof used);
    }
    return made;
}

static result run(void *argument)
{
    const struct product *p = argument;
    double alpha = p->alpha, beta = p->beta;
    char raw[8];
    result made = use_workspace(p);
    if (p->late)
        nanosleep(&(struct timespec){ .tv_nsec = 4000000 }, NULL);
    if (p->scale_on_device && made == CUDA_SUCCESS) {
        made = softcuda_read(raw, p->alpha_at, type_bytes(p->scale_type));
        alpha = number_of(p->scale_type, raw);
        if (made == CUDA_SUCCESS)
            made = softcuda_read(raw, p->beta_at, type_bytes(p->scale_type));
        beta = number_of(p->scale_type, raw);
    }
    const size_t m = (size_t)p->d.rows, n = (size_t)p->d.columns, k = (size_t)columns_of(&p->a, p->transpose_a);
    double *room = malloc(sizeof *room * (m * k + k * n + 2 * m * n + 1));
    if (room == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < p->batches && made == CUDA_SUCCESS; i++)
        made = run_batch(p, i, alpha, beta, room);
    free(room);
    return made;
}

static bool fits(const struct matrix *m)
{
    return m->rows >= 0 && m->columns >= 0 && type_bytes(m->type) > 0 && m->step >= (m->by_rows ? m->columns : m->rows)
           && m->step < INT32_MAX;
}

int product_check(const struct product *p)
{
    const int64_t m = rows_of(&p->a, p->transpose_a), k = columns_of(&p->a, p->transpose_a),
                  n = columns_of(&p->b, p->transpose_b);
    if (!fits(&p->a) || !fits(&p->b) || !fits(&p->c) || !fits(&p->d) || p->batches < 0)
        return BLAS_INVALID_VALUE;
    if (rows_of(&p->b, p->transpose_b) != k || p->d.rows != m || p->d.columns != n || p->c.rows != m
        || p->c.columns != n)
        return BLAS_INVALID_VALUE;
    const bool doubles = p->compute == COMPUTE_64F || p->compute == COMPUTE_64F_PEDANTIC;
    if (doubles != (p->a.type == TYPE_F64) || p->a.type != p->b.type || p->c.type != p->d.type)
        return BLAS_NOT_SUPPORTED;
    if (p->a.type == TYPE_I8 && p->d.type != TYPE_I32 && p->d.type != TYPE_F32 && p->d.type != TYPE_I8)
        return BLAS_NOT_SUPPORTED;
    return (p->a.type == TYPE_F64) == (p->d.type == TYPE_F64) ? BLAS_OK : BLAS_NOT_SUPPORTED;
}

int product_put(const struct product *p, void *stream)
{
    struct product *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return BLAS_ALLOC_FAILED;
    *copy = *p;
    return softcuda_enqueue(stream, run, copy) == CUDA_SUCCESS ? BLAS_OK : BLAS_EXECUTION_FAILED;
}
