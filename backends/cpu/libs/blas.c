/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/blas.c: matrix products by a CBLAS library (OpenBLAS, BLIS, MKL or the reference), opened at first
 * use.
 *
 * The threads of a multithreaded BLAS would compete with the backend's for the processors. Therefore BLAS is limited to
 * one thread, and this file divides the product among the backend's threads. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "kernels/product.h"

#ifdef HAVE_CBLAS

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

/* The CBLAS ABI: order and transposition are ints with these values; sizes are ints. */
enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void (*dgemm_function)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha,
                               const double *a, int lda, const double *b, int ldb, double beta, double *c,
                               int ldc);

static sgemm_function sgemm;
static dgemm_function dgemm;
static bool tuned;                      /* false for the reference CBLAS, which is slower than the built-in product */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void blas_open_library(void)
{
    void *object = dlopen(CTRT_CBLAS_SONAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!object) {
        cpu_host->log(CTRT_LOG_INFO, "backend-cpu", "products without BLAS: %s", dlerror());
        return;
    }
    *(void **)&sgemm = dlsym(object, "cblas_sgemm");
    *(void **)&dgemm = dlsym(object, "cblas_dgemm");
    if (!sgemm || !dgemm) {
        cpu_host->log(CTRT_LOG_INFO, "backend-cpu", "products without BLAS: %s has no cblas_sgemm",
                      CTRT_CBLAS_SONAME);
        sgemm = NULL;
        return;
    }
    static const char *const setters[] = { "openblas_set_num_threads", "bli_thread_set_num_threads",
                                           "MKL_Set_Num_Threads" };
    for (int i = 0; i < 3 && !tuned; i++) {
        void (*set_threads)(long) = NULL;       /* the parameter is int in OpenBLAS and MKL, dim_t in BLIS; passing 1
                                                 * works for both */
        *(void **)&set_threads = dlsym(object, setters[i]);
        if (set_threads) {
            set_threads(1);
            tuned = true;
        }
    }
}

/* Converts strides to BLAS's form, a transposition and a leading dimension. Returns false if that is not possible. */
static bool lay(int64_t rows, int64_t columns, int64_t row, int64_t column, int *transposed, int *distance)
{
    int64_t d;
    if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
        *transposed = AS_IS;
        d = rows == 1 || row < columns ? columns : row;
    } else if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) {
        *transposed = TRANSPOSED;
        d = columns == 1 || column < rows ? rows : column;
    } else {
        return false;
    }
    *distance = (int)d;
    return d > 0 && d <= INT_MAX && rows <= INT_MAX && columns <= INT_MAX;
}

struct blas_job {
    const struct cpu_product *p;
    int a_how, b_how, a_distance, b_distance;
    int64_t row_step, column_step, down, across;        /* size of a task's part of C; parts per matrix */
};

static void tasks(void *argument, int64_t begin, int64_t end)
{
    const struct blas_job *job = argument;
    const struct cpu_product *p = job->p;
    for (int64_t t = begin; t < end; t++) {
        const int64_t j = t % job->across * job->column_step, i = t / job->across % job->down * job->row_step;
        const int64_t index = t / job->across / job->down;
        const int64_t rows = p->m - i < job->row_step ? p->m - i : job->row_step;
        const int64_t columns = p->n - j < job->column_step ? p->n - j : job->column_step;
        const int64_t at_a = index * p->a_batch + i * p->a_row, at_b = index * p->b_batch + j * p->b_col,
                      at_c = (index * p->m + i) * p->n + j;
        if (p->dtype == CTRT_F32) {
            float *c = (float *)p->c + at_c;
            const float *bias = p->bias ? (const float *)p->bias + j : NULL;
            for (int64_t r = 0; bias && r < rows; r++)
                for (int64_t q = 0; q < columns; q++)
                    c[r * p->n + q] = bias[q];
            sgemm(ROW_MAJOR, job->a_how, job->b_how, (int)rows, (int)columns, (int)p->k, 1,
                  (const float *)p->a + at_a, job->a_distance, (const float *)p->b + at_b, job->b_distance,
                  bias ? 1 : 0, c, (int)p->n);
        } else {
            double *c = (double *)p->c + at_c;
            const double *bias = p->bias ? (const double *)p->bias + j : NULL;
            for (int64_t r = 0; bias && r < rows; r++)
                for (int64_t q = 0; q < columns; q++)
                    c[r * p->n + q] = bias[q];
            dgemm(ROW_MAJOR, job->a_how, job->b_how, (int)rows, (int)columns, (int)p->k, 1,
                  (const double *)p->a + at_a, job->a_distance, (const double *)p->b + at_b, job->b_distance,
                  bias ? 1 : 0, c, (int)p->n);
        }
    }
}

bool cpu_blas_product(const struct cpu_product *p, bool forced)
{
    if ((p->dtype != CTRT_F32 && p->dtype != CTRT_F64) || p->k == 0 || cpu_threads_limited())
        return false;
    pthread_once(&once, blas_open_library);
    struct blas_job job = { .p = p, .row_step = p->m, .column_step = p->n, .down = 1, .across = 1 };
    if (!sgemm || (!tuned && !forced) || !lay(p->m, p->k, p->a_row, p->a_col, &job.a_how, &job.a_distance)
        || !lay(p->k, p->n, p->b_row, p->b_col, &job.b_how, &job.b_distance))
        return false;
    const int64_t work = p->m * p->n * p->k, threads = p->batch * work > 262144 ? cpu_thread_count() : 1;
    if (p->batch < threads && p->n >= p->m) {
        job.column_step = ((p->n + threads - 1) / threads + 15) / 16 * 16;
        job.across = (p->n + job.column_step - 1) / job.column_step;
    } else if (p->batch < threads) {
        job.row_step = ((p->m + threads - 1) / threads + 15) / 16 * 16;
        job.down = (p->m + job.row_step - 1) / job.row_step;
    }
    cpu_parallel_for(p->batch * job.down * job.across, threads > 1 ? 1 : INT64_MAX, tasks, &job);
    return true;
}

#else

bool cpu_blas_product(const struct cpu_product *p, bool forced)
{
    (void)p, (void)forced;
    return false;
}

#endif
