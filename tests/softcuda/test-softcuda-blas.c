/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-blas.c: compares products of the fake cuBLASLt with sums in double. */
#include <math.h>

#include "bed.h"
#include "device_half.h"
#include "gemm.h"

typedef struct { uint64_t data[8]; } algorithm;
typedef struct { algorithm chosen; size_t workspace; int state; float waves; int reserved[4]; } choice;

int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatmulDescCreate(void **o, int compute, int scale);
int cublasLtMatmulDescDestroy(void *o);
int cublasLtMatmulDescSetAttribute(void *o, int which, const void *from, size_t bytes);
int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t columns, int64_t step);
int cublasLtMatrixLayoutDestroy(void *l);
int cublasLtMatrixLayoutSetAttribute(void *l, int which, const void *from, size_t bytes);
int cublasLtMatmulPreferenceCreate(void **p);
int cublasLtMatmulPreferenceDestroy(void *p);
int cublasLtMatmulPreferenceSetAttribute(void *p, int which, const void *from, size_t bytes);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *o, void *a, void *b, void *c, void *d, void *p, int wanted,
                                   choice *choices, int *found);
int cublasLtMatmul(void *handle, void *o, const void *alpha, address a, void *la, address b, void *lb, const void *beta,
                   address c, void *lc, address d,
                   void *ld, const algorithm *chosen, address workspace, size_t bytes, void *stream);

enum { MOST = 6000 };

struct problem {
    int type, compute, m, n, k, batches;
    bool ta, tb, rows;
    int pad, epilogue;
    double alpha, beta, tolerance;
};

static double values[4][MOST];              /* a, b, c, bias: as rounded for the device */

static address upload(int which, int type, size_t n)
{
    char *raw = malloc(n * 8);
    const size_t width = type_bytes(type);
    for (size_t i = 0; i < n; i++) {
        const double x = sin((double)(i * 7 + (size_t)which * 13)) * 2;
        const float f = (float)x;
        const uint16_t h = type == TYPE_F16 ? soft_half_of(f) : soft_bfloat_of(f);
        memcpy(raw + i * width, type == TYPE_F64 ? (const void *)&x : type == TYPE_F32 ? (const void *)&f : &h, width);
        values[which][i] = number_of(type, raw + i * width);
    }
    address at = 0;
    OK(cuMemAlloc_v2(&at, n * width));
    OK(cuMemcpyHtoD_v2(at, raw, n * width));
    free(raw);
    return at;
}

/* Index of element (i, j) of a matrix with `step` elements between lines. */
static size_t place(bool rows, int64_t step, int i, int j)
{
    return rows ? (size_t)(i * step + j) : (size_t)(j * step + i);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static void check(void *handle, const struct problem *p)
{
    const int a_rows = p->ta ? p->k : p->m, a_columns = p->ta ? p->m : p->k, b_rows = p->tb ? p->n : p->k,
              b_columns = p->tb ? p->k : p->n;
    const int64_t sa = (p->rows ? a_columns : a_rows) + p->pad, sb = (p->rows ? b_columns : b_rows) + p->pad,
                  sc = (p->rows ? p->n : p->m) + p->pad;
    const int64_t na = sa * (p->rows ? a_rows : a_columns), nb = sb * (p->rows ? b_rows : b_columns),
                  nc = sc * (p->rows ? p->m : p->n);
    const address a = upload(0, p->type, (size_t)(na * p->batches)), b = upload(1, p->type, (size_t)(nb * p->batches)),
                  c = upload(2, p->type, (size_t)(nc * p->batches)), bias = upload(3, p->type, (size_t)p->m);
    void *o = NULL, *l[3] = { NULL }, *preference = NULL;
    const int scale = p->type == TYPE_F64 ? TYPE_F64 : TYPE_F32, ta = p->ta, tb = p->tb, order = p->rows,
              batches = p->batches;
    const float alpha_f = (float)p->alpha, beta_f = (float)p->beta;
    OK(cublasLtMatmulDescCreate(&o, p->compute, scale));
    OK(cublasLtMatmulDescSetAttribute(o, 3, &ta, 4));
    OK(cublasLtMatmulDescSetAttribute(o, 4, &tb, 4));
    OK(cublasLtMatmulDescSetAttribute(o, 7, &p->epilogue, 4));
    OK(cublasLtMatmulDescSetAttribute(o, 8, &bias, 8));
    OK(cublasLtMatrixLayoutCreate(&l[0], p->type, (uint64_t)a_rows, (uint64_t)a_columns, sa));
    OK(cublasLtMatrixLayoutCreate(&l[1], p->type, (uint64_t)b_rows, (uint64_t)b_columns, sb));
    OK(cublasLtMatrixLayoutCreate(&l[2], p->type, (uint64_t)p->m, (uint64_t)p->n, sc));
    const int64_t steps[] = { na, nb, nc };
    for (int i = 0; i < 3; i++) {
        OK(cublasLtMatrixLayoutSetAttribute(l[i], 1, &order, 4));
        OK(cublasLtMatrixLayoutSetAttribute(l[i], 5, &batches, 4));
        OK(cublasLtMatrixLayoutSetAttribute(l[i], 6, &steps[i], 8));
    }
    choice choices[8];
    int found = 0;
    const size_t room = 1 << 20;
    address workspace = 0;
    OK(cuMemAlloc_v2(&workspace, room));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &room, 8));
    OK(cublasLtMatmulAlgoGetHeuristic(handle, o, l[0], l[1], l[2], l[2], preference, 8, choices, &found));
    CHECK(found == 2, "%d algorithms for a workspace of 1 MiB", found);
    const void *alpha = scale == TYPE_F64 ? (const void *)&p->alpha : &alpha_f,
                *beta = scale == TYPE_F64 ? (const void *)&p->beta : &beta_f;
    OK(cublasLtMatmul(handle, o, alpha, a, l[0], b, l[1], beta, c, l[2], c, l[2], &choices[0].chosen, workspace, room,
                      stream));
    GIVES(cublasLtMatmul(handle, o, alpha, a, l[0], b, l[1], beta, c, l[2], c, l[2], &choices[0].chosen, 0, 0, stream),
          BLAS_INVALID_VALUE);
    char *raw = malloc((size_t)(nc * p->batches) * 8);
    const size_t width = type_bytes(p->type);
    OK(cuMemcpyDtoHAsync_v2(raw, c, (size_t)(nc * p->batches) * width, stream));
    double worst = 0;
    for (int64_t q = 0; q < p->batches; q++)
        for (int i = 0; i < p->m; i++)
            for (int j = 0; j < p->n; j++) {
                double x = 0;
                for (int k = 0; k < p->k; k++)
                    x += values[0][(size_t)(q * na) + (p->ta ? place(p->rows, sa, k, i) : place(p->rows, sa, i, k))]
                         * values[1][(size_t)(q * nb) + (p->tb ? place(p->rows, sb, j, k) : place(p->rows, sb, k, j))];
                const size_t at = (size_t)(q * nc) + place(p->rows, sc, i, j);
                x = p->alpha * x + p->beta * values[2][at];
                if (p->epilogue & EPILOGUE_BIAS)
                    x += values[3][i];
                if (p->epilogue & EPILOGUE_RELU)
                    x = x > 0 ? x : 0;
                if (p->epilogue & EPILOGUE_GELU)
                    x = gelu(x);
                const double off = fabs(number_of(p->type, raw + at * width) - x) / (1 + fabs(x));
                worst = off > worst ? off : worst;
            }
    CHECK(worst <= p->tolerance, "%dx%dx%d, type %d, compute %d, epilogue %d: error %g, at most %g", p->m, p->n, p->k,
          p->type, p->compute, p->epilogue, worst, p->tolerance);
    if (p->compute == COMPUTE_32F_FAST_TF32)
        CHECK(worst > 1e-6, "the error of TF32 is only %g", worst);
    free(raw);
    cublasLtMatmulDescDestroy(o);
    for (int i = 0; i < 3; i++)
        cublasLtMatrixLayoutDestroy(l[i]);
    cublasLtMatmulPreferenceDestroy(preference);
    cuMemFree_v2(a), cuMemFree_v2(b), cuMemFree_v2(c), cuMemFree_v2(bias), cuMemFree_v2(workspace);
}

static const struct problem problems[] = {
    { TYPE_F32, COMPUTE_32F, 5, 7, 3, 1, false, false, false, 0, 1, 1, 0, 1e-6 },
    { TYPE_F32, COMPUTE_32F, 40, 30, 50, 1, true, false, false, 3, 1, 1.5, 0.5, 1e-5 },
    { TYPE_F32, COMPUTE_32F, 9, 33, 17, 3, false, true, false, 0, 4, 1, 0, 1e-5 },
    { TYPE_F32, COMPUTE_32F, 9, 33, 17, 3, true, true, true, 2, 1, 2, 0, 1e-5 },
    { TYPE_F32, COMPUTE_32F, 31, 8, 64, 1, true, false, false, 0, 6, 1, 0, 1e-5 },
    { TYPE_F32, COMPUTE_32F, 31, 8, 64, 1, true, false, false, 0, 36, 1, 0, 1e-5 },
    { TYPE_F32, COMPUTE_32F_FAST_TF32, 32, 32, 32, 1, false, false, false, 0, 1, 1, 0, 2e-2 },
    { TYPE_F64, COMPUTE_64F, 32, 40, 24, 2, false, true, false, 1, 4, -1, 2, 1e-13 },
    { TYPE_F16, COMPUTE_32F, 32, 40, 24, 2, true, false, false, 0, 1, 1, 0, 1e-3 },
    { TYPE_BF16, COMPUTE_32F, 16, 8, 100, 1, false, false, false, 0, 4, 1, 1, 8e-3 },
};

TEST_MAIN
{
    void *handle = NULL;
    group("initialization");
    open_bed();
    OK(cublasLtCreate(&handle));
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        group("product %zu", i);
        check(handle, &problems[i]);
    }
    group("failures");
    softcuda_control.tell(false);
    CHECK(softcuda_control.calls("cublasLtMatmul") == 2 * (int64_t)(sizeof problems / sizeof problems[0]), "%lld calls",
          (long long)softcuda_control.calls("cublasLtMatmul"));
    softcuda_control.inject("cublasLtDestroy", 1, BLAS_INTERNAL_ERROR, false);
    GIVES(cublasLtDestroy(handle), BLAS_INTERNAL_ERROR);
    OK(cublasLtDestroy(handle));
    return done();
}
