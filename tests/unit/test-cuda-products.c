/* SPDX-License-Identifier: Apache-2.0 */
/* Compares matrix products and convolutions of the cuda backend with the cpu backend, computed by the built-in
 * kernels and by cuBLASLt and cuDNN (software versions in tests/softcuda). Operands are small integers, so every sum
 * is exact and results must be equal bit for bit. Also tests what the choice of an algorithm depends on: timing, the
 * tuning file, workspace limits, determinism, and missing or failing libraries. */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "soft_begin.h"
#include "tensors.h"

static const struct softcuda_control *soft;
static ctrt_device *gpu;
static uint64_t state = 1;

/* Must run in a child process, before any other call of the library. */
static bool open_device(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    soft = driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
    return CHECK(soft != NULL, "no driver in software: %s", dlerror()) && CHECK_OK(ctrt_device_get(&gpu, name))
           && CHECK_OK(ctrt_device_get(&cpu, "cpu"));
}

static bool open_devices(void)
{
    return open_device("cuda:0");
}

static int64_t draw(int64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)below);
}

/* Returns integers in [-most, most]. They are exact in every dtype, and so are sums of a few hundred of their
 * products in every dtype except bf16. */
static ctrt_tensor *integers(ctrt_ints shape, ctrt_dtype dtype, int most)
{
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    double *values = malloc((size_t)numel * sizeof *values);
    for (int64_t i = 0; i < numel; i++)
        values[i] = dtype == CTRT_U8 ? (double)draw(most + 1) : (double)(draw(2 * most + 1) - most);
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
    CHECK_OK(ctrt_from_host_(x, values, numel, CTRT_F64));
    free(values);
    return x;
}

static bool same(ctrt_tensor *a, ctrt_tensor *b, const char *what)
{
    const int64_t n = ctrt_tensor_numel(a);
    if (!CHECK(n == ctrt_tensor_numel(b), "%s: %lld elements, expected %lld", what, (long long)ctrt_tensor_numel(b), (long long)n))
        return false;
    double *x = malloc((size_t)(2 * n + 1) * sizeof *x), *y = x + n;
    bool equal = CHECK_OK(ctrt_to_host(x, (size_t)n * sizeof *x, a, CTRT_F64)) && CHECK_OK(ctrt_to_host(y, (size_t)n * sizeof *y, b, CTRT_F64));
    for (int64_t i = 0; i < n && equal; i++)
        equal = CHECK(x[i] == y[i], "%s: element %lld of %lld is %g, expected %g", what, (long long)i, (long long)n, y[i], x[i]);
    free(x);
    return equal;
}

static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16, CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32, CTRT_I64 };

static int most_of(ctrt_dtype dtype)
{
    return dtype == CTRT_BF16 ? 1 : dtype == CTRT_F16 ? 2 : 4;
}

/* ---- products ---- */

/* Creates a [batch, rows, columns] operand on both devices: contiguous, transposed, or a slice of a wider tensor. */
static void operand(ctrt_tensor **near, ctrt_tensor **far, int64_t batch, int64_t rows, int64_t columns, ctrt_dtype dtype)
{
    const int64_t way = draw(4), wide = way == 2 ? columns + 3 : way == 3 ? columns + 8 : columns;
    CTRT_AUTO(tensor) base = way == 1 ? integers(CTRT_SHAPE(batch, columns, rows), dtype, most_of(dtype))
                                      : integers(CTRT_SHAPE(batch, rows, wide), dtype, most_of(dtype));
    CTRT_AUTO(tensor) base_far = NULL;
    CHECK_OK(ctrt_to_device(&base_far, base, gpu));
    ctrt_tensor *bases[2] = { base, base_far }, **outs[2] = { near, far };
    for (int i = 0; i < 2; i++) {
        if (way == 1)
            CHECK_OK(ctrt_transpose(outs[i], bases[i], 1, 2));
        else
            CHECK_OK(ctrt_narrow(outs[i], bases[i], 2, way == 2 ? 1 : 0, columns));
        if (batch == 1)
            CHECK_OK(ctrt_reshape(outs[i], *outs[i], CTRT_SHAPE(rows, columns)));
    }
}

static void product(int64_t batch, int64_t m, int64_t n, int64_t k, ctrt_dtype dtype)
{
    char what[128];
    CTRT_AUTO(tensor) a = NULL, a_far = NULL, b = NULL, b_far = NULL, y = NULL, y_far = NULL;
    operand(&a, &a_far, batch, m, k, dtype);
    operand(&b, &b_far, draw(2) ? batch : 1, k, n, dtype);
    snprintf(what, sizeof what, "matmul %s [%lld, %lld, %lld] by [%lld, %lld]", ctrt_dtype_name(dtype), (long long)batch, (long long)m, (long long)k,
             (long long)k, (long long)n);
    if (CHECK_OK(ctrt_matmul(&y, a, b)) && CHECK_OK(ctrt_matmul(&y_far, a_far, b_far)))
        same(y, y_far, what);
    if (batch != 1 || dtype == CTRT_I8 || dtype == CTRT_U8 || dtype == CTRT_I16 || dtype == CTRT_I32 || dtype == CTRT_I64)
        return;
    CTRT_AUTO(tensor) bias = integers(CTRT_SHAPE(n), dtype, most_of(dtype)), bias_far = NULL, w = NULL, w_far = NULL;
    CHECK_OK(ctrt_to_device(&bias_far, bias, gpu));
    CHECK_OK(ctrt_reshape(&w, b, CTRT_SHAPE(k, n)));
    CHECK_OK(ctrt_reshape(&w_far, b_far, CTRT_SHAPE(k, n)));
    CHECK_OK(ctrt_transpose(&w, w, 0, 1));
    CHECK_OK(ctrt_transpose(&w_far, w_far, 0, 1));
    memcpy(what, "linear", 6);
    if (CHECK_OK(ctrt_linear(&y, a, w, bias)) && CHECK_OK(ctrt_linear(&y_far, a_far, w_far, bias_far)))
        same(y, y_far, what);
}

static void products(int count)
{
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        for (int i = 0; i < count; i++) {
            const int64_t most = i % 4 == 3 ? 140 : 40;
            product(draw(3) == 0 ? 2 + draw(3) : 1, 1 + draw(most), 1 + draw(most), 1 + draw(90), dtypes[d]);
        }
        product(1, 1, 1, 1, dtypes[d]);
        product(1, 1, 130, 65, dtypes[d]);
        product(1, 130, 1, 64, dtypes[d]);
        product(1, 64, 64, 8, dtypes[d]);
        product(1, 65, 129, 9, dtypes[d]);
    }
    product(1, 260, 300, 20, CTRT_F32);         /* more tiles of the large kernel than the device has multiprocessors */
    product(1, 300, 260, 12, CTRT_I8);
}

/* On cuda-fp16, products of integers that f16 cannot represent must be equal bit for bit: f16 operands give f32
 * results. */
static void wide_products(void)
{
    static const struct { int64_t batch, m, n, k; } shapes[] = { { 1, 3, 4, 5 }, { 1, 70, 65, 40 }, { 3, 20, 31, 17 }, { 1, 1, 1, 1 }, { 1, 300, 260, 9 }, { 1, 4, 6, 0 } };
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (int odd = 0; odd < 2; odd++) {
            const int64_t batch = shapes[s].batch, m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
            CTRT_AUTO(tensor) a = integers(CTRT_SHAPE(batch, m, k), CTRT_F32, 500), b = integers(CTRT_SHAPE(n, k), CTRT_F32, 500);
            CTRT_AUTO(tensor) bias = integers(CTRT_SHAPE(n + odd), CTRT_F32, 70000);
            CTRT_AUTO(tensor) a_far = NULL, b_far = NULL, bias_far = NULL, y = NULL, y_far = NULL;
            CHECK_OK(ctrt_to_device(&a_far, a, gpu));
            CHECK_OK(ctrt_to_device(&b_far, b, gpu));
            CHECK_OK(ctrt_to_device(&bias_far, bias, gpu));
            CHECK_OK(ctrt_narrow(&bias, bias, 0, odd, n));
            CHECK_OK(ctrt_narrow(&bias_far, bias_far, 0, odd, n));
            if (CHECK_OK(ctrt_linear(&y, a, b, bias)) && CHECK_OK(ctrt_linear(&y_far, a_far, b_far, bias_far)))
                same(y, y_far, "linear");
            CHECK_OK(ctrt_transpose(&b, b, 0, 1));
            CHECK_OK(ctrt_transpose(&b_far, b_far, 0, 1));
            if (CHECK_OK(ctrt_matmul(&y, a, b)) && CHECK_OK(ctrt_matmul(&y_far, a_far, b_far)))
                same(y, y_far, "matmul");
        }
}

/* ---- convolutions ---- */

struct shape {
    int64_t n, c, h, w, o, kh, kw;
    ctrt_conv2d_options options;
};

static void convolution(const struct shape *s, ctrt_dtype dtype, bool last)
{
    char what[160];
    const int64_t groups = s->options.groups > 0 ? s->options.groups : 1;
    const ctrt_memory_format format = last ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT;
    CTRT_AUTO(tensor) x = integers(CTRT_SHAPE(s->n, s->c, s->h, s->w), dtype, most_of(dtype));
    CTRT_AUTO(tensor) w = integers(CTRT_SHAPE(s->o, s->c / groups, s->kh, s->kw), dtype, most_of(dtype));
    CTRT_AUTO(tensor) bias = draw(3) ? integers(CTRT_SHAPE(s->o), dtype, most_of(dtype)) : NULL;
    CTRT_AUTO(tensor) y = NULL, y_far = NULL, x_far = NULL, w_far = NULL, bias_far = NULL, dy = NULL, dy_far = NULL;
    CHECK_OK(ctrt_contiguous(&x, x, format));
    CHECK_OK(ctrt_to_device(&x_far, x, gpu));
    CHECK_OK(ctrt_to_device(&w_far, w, gpu));
    if (bias != NULL)
        CHECK_OK(ctrt_to_device(&bias_far, bias, gpu));
    ctrt_tensor *const near[2] = { x, w }, *const far[2] = { x_far, w_far };
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_tensor_require_grad(near[i], true));
        CHECK_OK(ctrt_tensor_require_grad(far[i], true));
    }
    snprintf(what, sizeof what, "conv2d %s%s [%lld, %lld, %lld, %lld] by [%lld, %lld, %lld] stride %lld padding %lld dilation %lld groups %lld",
             ctrt_dtype_name(dtype), last ? " channels-last" : "", (long long)s->n, (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->o,
             (long long)s->kh, (long long)s->kw, (long long)s->options.stride[0], (long long)s->options.padding[0], (long long)s->options.dilation[0],
             (long long)groups);
    if (!CHECK_OK(ctrt_conv2d(&y, x, w, bias, &s->options)) || !CHECK_OK(ctrt_conv2d(&y_far, x_far, w_far, bias_far, &s->options)) || !same(y, y_far, what))
        return;
    const int64_t *sides = ctrt_tensor_shape(y);
    dy = integers(CTRT_SHAPE(sides[0], sides[1], sides[2], sides[3]), dtype, 1);
    CHECK_OK(ctrt_contiguous(&dy, dy, format));
    CHECK_OK(ctrt_to_device(&dy_far, dy, gpu));
    ctrt_tensor *grads[2] = { NULL, NULL }, *grads_far[2] = { NULL, NULL };
    if (CHECK_OK(ctrt_grad(grads, y, near, 2, dy, false, false, false)) && CHECK_OK(ctrt_grad(grads_far, y_far, far, 2, dy_far, false, false, false))) {
        memcpy(what, "its dx", 6);
        same(grads[0], grads_far[0], what);
        memcpy(what, "its dw", 6);
        same(grads[1], grads_far[1], what);
    }
    for (int i = 0; i < 2; i++) {
        ctrt_tensor_release(&grads[i]);
        ctrt_tensor_release(&grads_far[i]);
    }
}

static void convolutions(int count)
{
    static const struct shape fixed[] = {
        { 1, 1, 1, 1, 1, 1, 1, { .groups = 1 } },
        { 2, 70, 5, 6, 66, 1, 1, { .groups = 1 } },                     /* more channels than one tile has */
        { 1, 3, 24, 25, 5, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } }, /* splits the weight gradient into parts */
        { 8, 2, 16, 17, 3, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } },
        { 2, 6, 7, 8, 6, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 6 } }, /* depthwise */
        { 2, 6, 9, 8, 12, 3, 2, { { 2, 1 }, { 1, 1 }, { 1, 2 }, 6 } },
        { 1, 8, 9, 9, 8, 3, 3, { { 2, 2 }, { 1, 1 }, { 1, 1 }, 2 } },
        { 1, 4, 12, 13, 4, 3, 3, { { 3, 2 }, { 2, 3 }, { 2, 3 }, 1 } }, /* padding larger than the windows reach */
        { 1, 2, 4, 4, 70, 2, 2, { { 2, 2 }, { 0, 0 }, { 1, 1 }, 1 } },
        { 3, 8, 6, 5, 9, 3, 2, { { 1, 1 }, { 1, 0 }, { 1, 1 }, 1 } },
        { 2, 10, 8, 9, 8, 3, 3, { { 2, 3 }, { 1, 2 }, { 2, 1 }, 1 } },
    };
    for (size_t d = 0; d < 4; d++)
        for (int last = 0; last < 2; last++) {
            for (size_t i = 0; i < COUNT(fixed); i++)
                convolution(&fixed[i], dtypes[d], last);
            for (int i = 0; i < count; i++) {
                const int64_t groups = draw(3) ? 1 : 1 + draw(4);
                struct shape s = { 1 + draw(3), groups * (1 + draw(5)), 3 + draw(10), 3 + draw(10), groups * (1 + draw(6)), 1 + draw(3), 1 + draw(3),
                                   { { 1 + draw(3), 1 + draw(3) }, { draw(3), draw(3) }, { 1 + draw(2), 1 + draw(2) }, groups } };
                if (s.options.dilation[0] * (s.kh - 1) < s.h && s.options.dilation[1] * (s.kw - 1) < s.w)
                    convolution(&s, dtypes[d], last);
            }
        }
}

/* ---- choice of algorithm ---- */

static char tuning[64];

/* Returns the number of lines in the tuning file that contain `with`, or -1 if the file does not exist. */
static int lines(const char *with)
{
    char line[1024];
    int count = 0;
    FILE *file = fopen(tuning, "r");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, with) != NULL;
    fclose(file);
    return count;
}

static void one_product(void)
{
    CTRT_AUTO(tensor) a = integers(CTRT_SHAPE(20, 30), CTRT_F32, 4), b = integers(CTRT_SHAPE(30, 40), CTRT_F32, 4), y = NULL;
    CTRT_AUTO(tensor) a_far = NULL, b_far = NULL, y_far = NULL;
    CHECK_OK(ctrt_to_device(&a_far, a, gpu));
    CHECK_OK(ctrt_to_device(&b_far, b, gpu));
    if (CHECK_OK(ctrt_matmul(&y, a, b)) && CHECK_OK(ctrt_matmul(&y_far, a_far, b_far)))
        same(y, y_far, "a product");
}

static void one_convolution(void)
{
    const struct shape s = { 2, 4, 9, 9, 5, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } };
    convolution(&s, CTRT_F32, false);
}

/* Has enough channels for the im2col path with cuBLASLt products. */
static void wide_convolution(void)
{
    const struct shape s = { 2, 9, 9, 8, 10, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } };
    convolution(&s, CTRT_F32, false);
}

static int64_t calls(const char *name)
{
    return soft->calls(name) > 0 ? soft->calls(name) : 0;
}

static void test_timing(void)
{
    group("algorithms are timed once and the fastest is stored");
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=late=2", "SOFTCUDA_DNN=late=1") {
        if (open_devices()) {
            one_product();
            CHECK(calls("cublasLtMatmul") > 6, "%lld calls of cublasLtMatmul for the first product",
                  (long long)calls("cublasLtMatmul"));
            const int64_t first = calls("cublasLtMatmul");
            one_product();
            CHECK(calls("cublasLtMatmul") == first + 1, "%lld calls of cublasLtMatmul for the second product",
                  (long long)(calls("cublasLtMatmul") - first));
            one_convolution();
            const int64_t once = calls("cudnnConvolutionBackwardFilter");
            CHECK(once > 4, "%lld calls for the first convolution", (long long)once);
            one_convolution();
            CHECK(calls("cudnnConvolutionBackwardFilter") == once + 1, "the second convolution was timed again");
            CHECK(lines("\t") >= 4, "%d choices in the file", lines("\t"));
            CHECK(lines("\t50f7 ") + lines("\t50f8 ") == 1,
                  "the file stores the slow product algorithm"); /* algorithms 0 and 1 of 3 */
            CHECK(lines("conv2d f32 x2,4,9,9") == 1 && lines("g1\t1 ") == 0,
                  "the file stores a slow convolution algorithm");
        }
    }
    CHILD_END;

    group("choices in the tuning file are used without timing");
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=late=2", "SOFTCUDA_DNN=late=1") {
        if (open_devices()) {
            one_product();
            one_convolution();
            CHECK(calls("cublasLtMatmul") == 1, "%lld calls of cublasLtMatmul", (long long)calls("cublasLtMatmul"));
            CHECK(calls("cudnnConvolutionBackwardFilter") == 1, "%lld calls", (long long)calls("cudnnConvolutionBackwardFilter"));
        }
    }
    CHILD_END;

    group("choices for another library version are ignored, and their lines stay in the file");
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=version=130105") {
        const int before = lines("130002");
        struct stat about = { 0 };
        CHECK(chmod(tuning, 0600) == 0, "chmod: %s", strerror(errno));
        if (open_devices()) {
            one_product();
            CHECK(calls("cublasLtMatmul") > 6, "%lld calls of cublasLtMatmul", (long long)calls("cublasLtMatmul"));
            CHECK(before == 1 && lines("130002") == before && lines("130105") == 1, "%d lines, then %d and %d", before, lines("130002"), lines("130105"));
            stat(tuning, &about);
            CHECK((about.st_mode & 0777) == 0600, "mode %o after it was replaced", about.st_mode & 0777);
        }
    }
    CHILD_END;

    group("existing files and links with the names of the temporary file are not overwritten");
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=version=130106") {
        char names[2][96], said[16] = "";
        for (int i = 0; i < 2; i++)
            snprintf(names[i], sizeof names[i], "%s.tmp-%ld-%d", tuning, (long)getpid(), i);
        FILE *file = fopen(names[0], "w");
        CHECK(file != NULL && fputs("precious", file) >= 0 && fclose(file) == 0 && symlink(names[0], names[1]) == 0, "%s: %s", names[0], strerror(errno));
        if (open_devices())
            one_product();
        file = fopen(names[0], "r");
        CHECK(file != NULL && fgets(said, sizeof said, file) != NULL && strcmp(said, "precious") == 0, "the file was overwritten: %s", said);
        if (file != NULL)
            fclose(file);
        CHECK(lines("130106") == 1, "the choice was not stored");
        unlink(names[0]);
        unlink(names[1]);
    }
    CHILD_END;

    group("a file that is not a tuning file is not overwritten");
    FILE *file = fopen(tuning, "w");
    fputs("precious\n", file);
    fclose(file);
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes") {
        if (open_devices())
            one_product();
        CHECK(lines("precious") == 1 && lines("\t") == 0, "the file was overwritten");
    }
    CHILD_END;
    unlink(tuning);

    group("deterministic mode times no algorithm");
    IN_CHILD("CTRT_CUDA_BENCHMARK=yes", "CTRT_CUDA_DETERMINISTIC=yes") {
        if (open_devices()) {
            one_product();
            one_convolution();
            CHECK(calls("cublasLtMatmul") == 1
                      && calls("cudnnConvolutionForward") + calls("cudnnConvolutionBiasActivationForward") <= 2,
                  "algorithms were timed");
            CHECK(lines("\t") == -1, "a file was written");
        }
    }
    CHILD_END;
}

/* Returns whether a weight gradient is the same in 6 runs. The values are random, so the sums depend on their order. */
static bool gradient_repeats(void)
{
    static float values[2][5 * 4 * 9];
    CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, dy = NULL;
    bool repeats = true;
    ctrt_manual_seed(3);
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(2, 4, 9, 9), CTRT_F32, gpu));
    CHECK_OK(ctrt_randn(&w, CTRT_SHAPE(5, 4, 3, 3), CTRT_F32, gpu));
    CHECK_OK(ctrt_randn(&dy, CTRT_SHAPE(2, 5, 7, 7), CTRT_F32, gpu));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    for (int i = 0; i < 6; i++) {
        CTRT_AUTO(tensor) dw = NULL;
        CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
        CHECK_OK(ctrt_grad(&dw, y, &w, 1, dy, false, false, false));
        CHECK_OK(ctrt_to_host(values[i > 0], sizeof values[0], dw, CTRT_F32));
        repeats = repeats && (i == 0 || memcmp(values[0], values[1], sizeof values[0]) == 0);
    }
    return repeats;
}

static void test_choices(void)
{
    group("sums have a fixed order unless CTRT_CUDA_DETERMINISTIC=no");
    IN_CHILD("CTRT_CUDA_DETERMINISTIC=auto") {
        CHECK(open_devices() && gradient_repeats(), "gradients differ");
    }
    CHILD_END;
    IN_CHILD("CTRT_CUDA_DETERMINISTIC=no") {
        CHECK(open_devices() && !gradient_repeats(), "the fastest algorithm was not chosen");
    }
    CHILD_END;

    group("workspaces do not exceed CTRT_CUDA_WORKSPACE");
    IN_CHILD("CTRT_CUDA_WORKSPACE=0") {
        if (open_devices()) {
            products(1);
            one_convolution();
            CHECK(calls("cublasLtMatmul") > 10 && calls("cudnnConvolutionForward") == 1,
                  "the libraries were not called");
        }
    }
    CHILD_END;

    group("f32 products use full precision unless CTRT_CUDA_TF32=yes");
    for (int tf32 = 0; tf32 < 2; tf32++) {
        IN_CHILD(tf32 ? "CTRT_CUDA_TF32=yes" : "CTRT_CUDA_TF32=no") {
            if (open_devices()) {
                const double fine = 1.0 + 1.0 / 4096;           /* 12 bits of fraction */
                double got = 0;
                CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
                CHECK_OK(ctrt_full(&a, CTRT_SHAPE(4, 4), ctrt_float(fine), CTRT_F32, gpu));
                CHECK_OK(ctrt_eye(&b, 4, 4, CTRT_F32, gpu));
                CHECK_OK(ctrt_matmul(&y, a, b));
                CHECK_OK(ctrt_narrow(&y, y, 0, 0, 1));
                CHECK_OK(ctrt_narrow(&y, y, 1, 0, 1));
                CHECK_OK(ctrt_item(&got, y));
                CHECK(got == (tf32 ? 1.0 : fine), "element 0 is %.9g", got);
            }
        }
        CHILD_END;
    }
}

static void test_failures(void)
{
    group("without the libraries, or without their fused bias");
    IN_CHILD("SOFTCUDA_BLAS=create=no", "SOFTCUDA_DNN=create=no") {
        if (open_devices()) {
            one_product();
            one_convolution();
            CHECK(soft->launches("matmul_f32_small") > 0 && soft->launches("conv2d_f32_dense") > 0,
                  "the built-in kernels were not launched");
        }
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA_BLAS=bias=no", "SOFTCUDA_DNN=bias=no") {
        if (open_devices()) {
            product(1, 20, 40, 30, CTRT_F32);
            product(1, 20, 7, 30, CTRT_F64);
            CHECK(soft->launches("bias_f32_v") > 0 && soft->launches("bias_f64") > 0,
                  "no bias kernel was launched for products");
            for (int i = 0; i < 6; i++)
                one_convolution();
            CHECK(soft->launches("bias_f32") > 0, "no bias kernel was launched for convolutions");
            const uint64_t product_biases = soft->launches("bias_f32_v");
            const struct shape even = { 2, 4, 8, 8, 8, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } };
            for (int i = 0; i < 6; i++) {
                convolution(&even, CTRT_F32, false);
                convolution(&even, CTRT_F16, true);
            }
            CHECK(soft->launches("bias_f32_v") > product_biases && soft->launches("bias_f16_v") > 0,
                  "no vectorized bias kernel was launched");
            CHECK(calls("cublasLtMatmul") >= 3 && soft->launches("matmul_f32_small") == 0,
                  "the library was not called");
        }
    }
    CHILD_END;

    group("work that a library refuses at run time is done by the built-in kernels");
    IN_CHILD("CTRT_LOG=error") {
        if (open_devices()) {
            CHECK(soft->inject("cublasLtMatmul", 1, 15, false) && soft->inject("cudnnConvolutionBackwardFilter", 1, 3000, true)
                  && soft->inject("cudnnConvolutionForward", 1, 3000, true) && soft->inject("cudnnConvolutionBackwardData", 1, 3000, true)
                  && soft->inject("cudnnConvolutionBiasActivationForward", 1, 3000, true), "cannot inject");
            one_product();
            one_convolution();
            CHECK(soft->launches("matmul_f32_small") == 1 && soft->launches("conv2d_weight_grad_f32_dense") == 1,
                  "the built-in kernels were not launched");
        }
    }
    CHILD_END;

    group("a convolution that cuDNN refuses is computed by matrix products, and cuDNN is not called again");
    IN_CHILD("CTRT_LOG=error") {
        static const char *const passes[] = { "cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward", "cudnnConvolutionBackwardFilter",
                                              "cudnnConvolutionBackwardData" };
        if (open_devices()) {
            int64_t tried = 0, products = 0;
            for (size_t i = 0; i < COUNT(passes); i++)
                CHECK(soft->inject(passes[i], 1, 3000, true), "cannot inject");
            for (int time = 0; time < 3; time++) {
                int64_t now = 0;
                wide_convolution();
                for (size_t i = 0; i < COUNT(passes); i++)
                    now += calls(passes[i]);
                CHECK(calls("cublasLtMatmul") >= products + 3, "only %lld products in round %d",
                      (long long)(calls("cublasLtMatmul") - products), time + 1);
                CHECK(time == 0 ? now > 0 : now == tried, "cuDNN was called %lld more times", (long long)(now - tried));
                tried = now;
                products = calls("cublasLtMatmul");
            }
            CHECK(soft->launches("conv2d_f32_dense") == 0 && soft->launches("conv2d_weight_grad_f32_dense") == 0
                      && soft->launches("conv2d_input_grad_f32_dense") == 0,
                  "the built-in convolution kernels were launched");
        }
    }
    CHILD_END;

    group("a product that gets a smaller workspace once does not change the choice for later products");
    IN_CHILD("CTRT_LOG=error", "CTRT_MEMORY=direct") {
        if (open_devices()) {
            /* The first convolution has the 1 MiB workspace that cuDNN requested; later ones have what products
             * need: 8 MiB and the patches. */
            CHECK(soft->inject("cudnnConvolutionForward", 1, 3000, true) && soft->inject("cudnnConvolutionBiasActivationForward", 1, 3000, true),
                  "cannot inject");
            int64_t peaks[2];
            for (int time = 0; time < 2; time++) {
                CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL;
                CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(2, 9, 9, 8), CTRT_F32, gpu));
                CHECK_OK(ctrt_ones(&w, CTRT_SHAPE(10, 9, 3, 3), CTRT_F32, gpu));
                ctrt_memory_reset_peak(gpu);
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
                CHECK_OK(ctrt_device_synchronize(gpu));
                CHECK(calls("cublasLtMatmul") == time + 1, "%lld products", (long long)calls("cublasLtMatmul"));
                peaks[time] = (int64_t)ctrt_memory_max_allocated(gpu);
            }
            CHECK(peaks[0] < 2 << 20 && peaks[1] > 8 << 20, "%lld, then %lld bytes", (long long)peaks[0], (long long)peaks[1]);
        }
    }
    CHILD_END;

    group("when cuDNN reports out of memory in any call, it is skipped for that convolution only");
    {
        static const char *const places[] = { "cudnnConvolutionBackwardFilter", "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                                              "cudnnCreateTensorDescriptor" };
        for (size_t i = 0; i < COUNT(places); i++) {
            IN_CHILD("CTRT_LOG=error") {
                if (open_devices()) {
                    /* Both gradient algorithms fail; the workspace is allocated before the work is enqueued. */
                    for (int n = 0; n < 2; n++)
                        CHECK(soft->inject(places[i], n + 1, n == 0 ? 4003 : 4004, false), "cannot inject");
                    wide_convolution();
                    const int64_t products = calls("cublasLtMatmul"), before = calls("cudnnConvolutionBackwardFilter");
                    CHECK(products > 0, "%s: no matrix product was used", places[i]);
                    wide_convolution();
                    CHECK(calls("cublasLtMatmul") == products && calls("cudnnConvolutionBackwardFilter") == before + 1,
                          "%s: cuDNN was not called again", places[i]);
                }
            }
            CHILD_END;
        }
    }

    group("an error message names the failed operation");
    IN_CHILD("CTRT_LOG=error") {
        if (open_devices()) {
            CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
            CHECK(soft->inject("cublasLtMatmul", 1, 14, false) && soft->inject("cudnnConvolutionForward", 1, 5000, false), "cannot inject");
            CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(3, 4), CTRT_F32, gpu));
            CHECK_OK(ctrt_ones(&b, CTRT_SHAPE(4, 5), CTRT_F32, gpu));
            CHECK_FAILS(ctrt_matmul(&y, a, b), CTRT_ERR_BACKEND, "[3, 4] by [4, 5]");
            CHECK_OK(ctrt_matmul(&y, a, b));
            CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(1, 2, 4, 4), CTRT_F32, gpu));
            CHECK_OK(ctrt_ones(&b, CTRT_SHAPE(2, 2, 3, 3), CTRT_F32, gpu));
            CHECK_FAILS(ctrt_conv2d(&y, a, b, NULL, NULL), CTRT_ERR_BACKEND, "conv2d");
            CHECK_OK(ctrt_conv2d(&y, a, b, NULL, NULL));
        }
    }
    CHILD_END;
}

TEST_MAIN
{
    unsetenv("CTRT_TEST_GPU");          /* use only the software driver */
    soft_begin(argv);
    /* The software driver checks every memory access of a kernel, so sizes are small and rounds few. */
    group("products by the built-in kernels");
    IN_CHILD("CTRT_CUDA_GEMM=builtin") {
        if (open_devices())
            products(6);
    }
    CHILD_END;
    group("products by cuBLASLt");
    IN_CHILD("CTRT_CUDA_GEMM=cublaslt", "CTRT_CUDA_WORKSPACE=2m") {
        if (open_devices()) {
            products(10);
            CHECK(calls("cublasLtMatmul") > 50, "%lld calls of cublasLtMatmul", (long long)calls("cublasLtMatmul"));
        }
    }
    CHILD_END;
    group("products of f32 matrices on cuda-fp16 have f32 results");
    for (int way = 0; way < 4; way++) {
        IN_CHILD(way & 1 ? "CTRT_CUDA_GEMM=builtin" : "CTRT_CUDA_GEMM=cublaslt", way & 2 ? "SOFTCUDA_BLAS=bias=no" : "SOFTCUDA_BLAS=") {
            if (open_device("cuda-fp16:0")) {
                wide_products();
                CHECK(way & 1 ? soft->launches("matmul_f16_small_f32") > 0 && soft->launches("matmul_f16_large_f32") > 0 : calls("cublasLtMatmul") > 10,
                      "the expected implementation was not used");
            }
        }
        CHILD_END;
    }
    group("convolutions by the built-in kernels");
    IN_CHILD("CTRT_CUDA_CONV=builtin") {
        if (open_devices()) {
            convolutions(2);
            CHECK(soft->launches("conv2d_parts_f32") > 0 && soft->launches("conv2d_weight_grad_f32_few_last") > 0,
                  "not every kernel was launched");
        }
    }
    CHILD_END;
    group("convolutions by cuBLASLt products");
    IN_CHILD("CTRT_CUDA_CONV=cublaslt", "CTRT_CUDA_WORKSPACE=2m") {
        if (open_devices()) {
            convolutions(2);
            CHECK(soft->launches("conv2d_patches_f32") > 0 && soft->launches("conv2d_turn_f16") > 0
                      && calls("cublasLtMatmul") > 20,
                  "cuBLASLt products were not used");
        }
    }
    CHILD_END;
    group("convolutions by cuBLASLt products, one image at a time");
    IN_CHILD("CTRT_CUDA_CONV=cublaslt", "CTRT_CUDA_WORKSPACE=9k") {
        if (open_devices()) {
            convolutions(0);
            CHECK(soft->launches("conv2d_patches_f16") > 0 && soft->launches("conv2d_weight_grad_f32_dense") > 0,
                  "the patch kernel or the dense kernel was not launched");
        }
    }
    CHILD_END;
    group("convolutions by cuDNN");
    IN_CHILD("CTRT_CUDA_CONV=cudnn") {
        if (open_devices()) {
            convolutions(4);
            CHECK(calls("cudnnConvolutionBackwardData") > 50 && soft->launches("conv2d_f32_dense") == 0,
                  "cuDNN was not used");
        }
    }
    CHILD_END;

    snprintf(tuning, sizeof tuning, "/tmp/ctrt-tuning-%ld", (long)getpid());
    setenv("CTRT_CUDA_TUNING", tuning, 1);
    test_timing();
    unsetenv("CTRT_CUDA_TUNING");
    unlink(tuning);
    test_choices();
    test_failures();
    return done();
}
