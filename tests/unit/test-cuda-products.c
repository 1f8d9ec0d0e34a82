/* SPDX-License-Identifier: Apache-2.0 */
/* Compares matrix products and convolutions of the cuda backend with the cpu backend, computed by the built-in
 * kernels and by cuBLASLt and cuDNN (software versions in tests/softcuda). Operands are small integers, so every sum
 * is exact and results must be equal bit for bit. Also tests what the choice of an algorithm depends on: timing, the
 * tuning file, workspace limits, determinism, and missing or failing libraries; and when the libraries are opened.
 *
 * `run-public test-cuda-products DEVICE` only compares, on a device of any driver. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "cuda_compare.h"
#include "folder.h"

/* ---- products ---- */

static const enum layout layouts[] = { PLAIN, TRANSPOSED, UNEVEN, SLICED };
enum { LAYOUT_COUNT = 4 };

struct product { int64_t batch, m, n, k; };

/* n: m, n, k, the layouts, and the batch sizes of the operands. With a third input linear, else matmul. */
static ctrt_status multiply(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    CTRT_TRY(view_of(&a, in[0], (enum layout)n[3], n[5], (struct size){ n[0], n[2] }));
    CTRT_TRY(view_of(&b, in[1], (enum layout)n[4], n[6], (struct size){ n[2], n[1] }));
    if (in[2] == NULL)
        return ctrt_matmul(out, a, b);
    CTRT_TRY(ctrt_transpose(&b, b, 0, 1));
    return ctrt_linear(out, a, b, in[2]);
}

/* Computes matmul and, for floating matrices, linear. */
static void product(struct product p, enum layout left, enum layout right, ctrt_dtype dtype, bool wide)
{
    const int64_t batch = p.m % 2 ? p.batch : 1;
    const bool half = ctrt_dtype_is_floating(dtype) && ctrt_dtype_size(dtype) == 2;
    const enum values kind = wide ? WIDE : half ? SIGNS : WHOLE;
    for (int linear = 0; linear <= (p.batch == 1 && ctrt_dtype_is_floating(dtype)); linear++) {
        CTRT_AUTO(tensor) bias = linear ? numbers(CTRT_SHAPE(p.n), dtype, kind) : NULL;
        char what[100];
        snprintf(what, sizeof what, "%s of [%d, %d, %d] by [%d, %d], %s and %s", linear ? "linear" : "matmul",
                 (int)p.batch, (int)p.m, (int)p.k, (int)p.k, (int)p.n, layout_names[left], layout_names[right]);
        if (linear && wide)
            CHECK_OK(ctrt_mul_scalar(&bias, bias, ctrt_int(140)));      /* to 70000, more than the largest f16 */
        compare((struct trial){ what, { base_of(left, p.batch, (struct size){ p.m, p.k }, dtype, kind),
                                        base_of(right, batch, (struct size){ p.k, p.n }, dtype, kind),
                                        ctrt_tensor_retain(bias) },
                                .call = multiply, .n = { p.m, p.n, p.k, left, right, p.batch, batch },
                                .tolerance = EQUAL }, false);
    }
}

/* Computes all shapes in the first `count` dtypes, each shape with other layouts in each dtype. */
static void products(size_t count)
{
    static const struct product shapes[] = {
        { 1, 1, 1, 1 }, { 1, 1, 130, 65 }, { 1, 130, 1, 64 }, { 1, 64, 64, 8 }, { 1, 65, 129, 9 }, { 3, 20, 31, 17 },
        { 2, 67, 33, 90 }, { 1, 30, 16, 24 },
    };
    for (size_t d = 0; d < count; d++)
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t i = 0; i < 2; i++)
                product(shapes[s], layouts[(s + d + i) % LAYOUT_COUNT], layouts[(s + 2 * d + 2 * i) % LAYOUT_COUNT],
                        all_dtypes[d], false);
    /* More tiles of the large kernel than the device has multiprocessors. */
    product((struct product){ 1, 260, 300, 20 }, PLAIN, PLAIN, CTRT_F32, false);
    product((struct product){ 1, 300, 260, 12 }, PLAIN, TRANSPOSED, CTRT_I8, false);
    product((struct product){ 1, 260, 260, 9 }, TRANSPOSED, PLAIN, CTRT_F16, false);
}

/* On cuda-fp16, products of integers that f16 cannot represent must be equal bit for bit: f16 operands give f32
 * results. */
static void wide_products(void)
{
    static const struct product shapes[] = { { 1, 3, 4, 5 }, { 1, 70, 65, 40 }, { 3, 20, 31, 17 }, { 1, 1, 1, 1 },
                                             { 1, 300, 260, 9 }, { 1, 4, 6, 0 } };
    for (size_t s = 0; s < COUNT(shapes); s++)
        product(shapes[s], layouts[s % LAYOUT_COUNT], TRANSPOSED, CTRT_F32, true);
}

/* Also in a region for another type of device. */
static void mixed_product(void)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
    CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(4, 4), CTRT_F16, gpu));
    CHECK_OK(ctrt_ones(&b, CTRT_SHAPE(4, 4), CTRT_F32, gpu));
    CHECK_OK(ctrt_autocast_push("cpu", NULL));
    CHECK_OK(ctrt_matmul(&y, a, b));
    CHECK_OK(ctrt_autocast_pop());
    CHECK_EQ(ctrt_tensor_dtype(y), CTRT_F16);
}

/* ---- convolutions ---- */

#define SIZE sizeof(ctrt_conv2d_options)

static const struct shape {
    int64_t n, c, h, w, o, kh, kw;
    ctrt_conv2d_options options;
} shapes[] = {
    { 2, 4, 9, 9, 5, 3, 3, { .size = SIZE, .padding = { 1, 1 } } },
    { 2, 9, 9, 8, 10, 3, 3, { .size = SIZE, .padding = { 1, 1 } } },      /* im2col path with products */
    { 2, 4, 8, 8, 8, 3, 3, { .size = SIZE, .padding = { 1, 1 } } },
    { 1, 1, 1, 1, 1, 1, 1, { .size = SIZE, .groups = 1 } },
    { 2, 70, 5, 6, 66, 1, 1, { .size = SIZE, .groups = 1 } },                     /* more channels than one tile has */
    { 1, 3, 24, 25, 5, 3, 3, { SIZE, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } }, /* splits the weight gradient into parts */
    { 8, 2, 16, 17, 3, 3, 3, { SIZE, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } },
    { 2, 6, 7, 8, 6, 3, 3, { SIZE, { 1, 1 }, { 1, 1 }, { 1, 1 }, 6 } },   /* depthwise */
    { 2, 6, 9, 8, 12, 3, 2, { SIZE, { 2, 1 }, { 1, 1 }, { 1, 2 }, 6 } },
    { 1, 8, 9, 9, 8, 3, 3, { SIZE, { 2, 2 }, { 1, 1 }, { 1, 1 }, 2 } },
    { 1, 4, 12, 13, 4, 3, 3, { SIZE, { 3, 2 }, { 2, 3 }, { 2, 3 }, 1 } }, /* padding larger than the windows reach */
    { 1, 2, 4, 4, 70, 2, 2, { SIZE, { 2, 2 }, { 0, 0 }, { 1, 1 }, 1 } },
    { 3, 8, 6, 5, 9, 3, 2, { SIZE, { 1, 1 }, { 1, 0 }, { 1, 1 }, 1 } },
    { 2, 10, 8, 9, 8, 3, 3, { SIZE, { 2, 3 }, { 1, 2 }, { 2, 1 }, 1 } },
};
enum { ONE, MANY_CHANNELS, EVEN, FIRST };                   /* indices; FIRST: of those of convolutions() */

/* n: index of the shape, memory format */
static ctrt_status convolve(ctrt_tensor **out, ctrt_tensor *const *in, const int64_t *n)
{
    CTRT_AUTO(tensor) x = NULL;
    CTRT_TRY(ctrt_contiguous(&x, in[0], (ctrt_memory_format)n[1]));
    return ctrt_conv2d(out, x, in[1], in[2], &shapes[n[0]].options);
}

static void convolution(int shape, ctrt_dtype dtype, bool last)
{
    const struct shape *s = &shapes[shape];
    const int64_t groups = s->options.groups > 0 ? s->options.groups : 1;
    const enum values kind = ctrt_dtype_size(dtype) == 2 ? SIGNS : WHOLE;
    char what[100];
    snprintf(what, sizeof what, "%sconv2d %d of [%d, %d, %d, %d]", last ? "channels-last " : "", shape, (int)s->n,
             (int)s->c, (int)s->h, (int)s->w);
    compare((struct trial){ what, { numbers(CTRT_SHAPE(s->n, s->c, s->h, s->w), dtype, kind),
                                    numbers(CTRT_SHAPE(s->o, s->c / groups, s->kh, s->kw), dtype, kind),
                                    s->n == 3 ? NULL : numbers(CTRT_SHAPE(s->o), dtype, kind) },
                            { true, true }, convolve, { shape, last ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT },
                            EQUAL, SIGNS }, false);
}

/* In f32 and f16, or in all floating dtypes. */
static void convolutions(bool all)
{
    for (int d = 0; d < FLOATING; d += all ? 1 : 2)
        for (int i = FIRST; i < (int)COUNT(shapes); i++)
            for (int last = 0; last < 2; last++)
                if (d == 0 || (d + i) % 2 == last)              /* f32 in both formats, other dtypes in one */
                    convolution(i, all_dtypes[d], last);
}

/* ---- choice of algorithm ---- */

static const char *folder;              /* of the tuning file */

/* Returns the number of lines in the tuning file that contain `with`, or -1 if the file does not exist. */
static int lines(const char *with)
{
    return folder_lines(folder_join(folder, "tuning"), with);
}

/* A matmul and, because it is of a batch, no linear. */
static void one_product(void)
{
    product((struct product){ 2, 20, 40, 30 }, PLAIN, PLAIN, CTRT_F32, false);
}

#define DNN_FILTER "cudnnConvolutionBackwardFilter"

TEST(timing, "algorithms are timed once and the fastest is stored")
{
    folder = folder_new();
    setenv("CTRT_CUDA_TUNING", folder_join(folder, "tuning"), 1);
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=late=2", "SOFTCUDA_DNN=late=1") {
        one_product();
        const int64_t product_calls = calls("cublasLtMatmul");
        CHECK(product_calls > 6, "%lld calls for the first product", (long long)product_calls);
        one_product();
        CHECK_EQ(calls("cublasLtMatmul"), product_calls + 1);
        convolution(ONE, CTRT_F32, false);
        const int64_t filter_calls = calls(DNN_FILTER);
        CHECK(filter_calls > 4, "%lld calls for the first convolution", (long long)filter_calls);
        convolution(ONE, CTRT_F32, false);
        CHECK_EQ(calls(DNN_FILTER), filter_calls + 1);
        CHECK_TRUE(lines("\t") >= 4);
        CHECK_EQ(lines("\t50f7 ") + lines("\t50f8 "), 1);      /* algorithms 0 and 1 of 3 */
        CHECK_EQ(lines("conv2d f32 x2,4,9,9"), 1);
        CHECK_EQ(lines("g1\t1 "), 0);
    }

    group("choices in the tuning file are used without timing");
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=late=2", "SOFTCUDA_DNN=late=1") {
        one_product();
        convolution(ONE, CTRT_F32, false);
        CHECK_EQ(calls("cublasLtMatmul"), 1);
        CHECK_EQ(calls(DNN_FILTER), 1);
    }

    group("choices for another library version are ignored, and their lines and the file's mode stay");
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=version=130105") {
        struct stat about = { 0 };
        CHECK_EQ(lines("130002"), 1);
        CHECK(chmod(folder_join(folder, "tuning"), 0600) == 0, "chmod: %s", strerror(errno));
        one_product();
        CHECK_TRUE(calls("cublasLtMatmul") > 6);
        CHECK_EQ(lines("130002"), 1);
        CHECK_EQ(lines("130105"), 1);
        stat(folder_join(folder, "tuning"), &about);
        CHECK_EQ(about.st_mode & 0777, 0600);
    }

    group("existing files and links with the names of the temporary file are not overwritten");
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes", "SOFTCUDA_BLAS=version=130106") {
        char names[2][64];
        for (int i = 0; i < 2; i++)
            snprintf(names[i], sizeof names[i], "tuning.tmp-%ld-%d", (long)getpid(), i);
        folder_text(folder, names[0], "precious");
        CHECK(symlink(names[0], folder_join(folder, names[1])) == 0, "%s: %s", names[1], strerror(errno));
        one_product();
        CHECK_EQ(folder_lines(folder_join(folder, names[0]), "precious"), 1);
        CHECK_EQ(folder_lines(folder_join(folder, names[0]), ""), 1);
        CHECK_EQ(lines("130106"), 1);
    }

    group("a file that is not a tuning file is not overwritten");
    folder_text(folder, "tuning", "precious\n");
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes") {
        one_product();
        CHECK_EQ(lines("precious"), 1);
        CHECK_EQ(lines("\t"), 0);
    }
    unlink(folder_join(folder, "tuning"));

    group("deterministic mode times no algorithm");
    IN_CUDA_CHILD("CTRT_CUDA_BENCHMARK=yes", "CTRT_CUDA_DETERMINISTIC=yes") {
        one_product();
        convolution(ONE, CTRT_F32, false);
        CHECK_EQ(calls("cublasLtMatmul"), 1);
        CHECK_TRUE(calls("cudnnConvolutionForward") + calls("cudnnConvolutionBiasActivationForward") <= 2);
        CHECK_EQ(lines("\t"), -1);
    }
    unsetenv("CTRT_CUDA_TUNING");
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

TEST(choices, "sums have a fixed order unless CTRT_CUDA_DETERMINISTIC=no")
{
    for (int fixed = 0; fixed < 2; fixed++)
        IN_CUDA_CHILD(fixed ? "CTRT_CUDA_DETERMINISTIC=auto" : "CTRT_CUDA_DETERMINISTIC=no")
            CHECK_EQ(gradient_repeats(), fixed);

    group("products by cuBLASLt; workspaces do not exceed CTRT_CUDA_WORKSPACE");
    IN_CUDA_CHILD("CTRT_CUDA_WORKSPACE=0") {
        products(FLOATING);
        convolution(ONE, CTRT_F32, false);
        CHECK_TRUE(calls("cublasLtMatmul") > 50);
        CHECK_EQ(calls("cudnnConvolutionForward"), 1);
    }

    group("f32 products use full precision unless CTRT_CUDA_TF32=yes");
    for (int tf32 = 0; tf32 < 2; tf32++)
        IN_CUDA_CHILD(tf32 ? "CTRT_CUDA_TF32=yes" : "CTRT_CUDA_TF32=no") {
            const double fine = 1.0 + 1.0 / 4096;           /* 12 bits of fraction */
            float got[16];
            CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
            CHECK_OK(ctrt_full(&a, CTRT_SHAPE(4, 4), ctrt_float(fine), CTRT_F32, gpu));
            CHECK_OK(ctrt_eye(&b, 4, 4, CTRT_F32, gpu));
            CHECK_OK(ctrt_matmul(&y, a, b));
            CHECK_OK(ctrt_to_host(got, sizeof got, y, CTRT_F32));
            CHECK_EQ(got[0], tf32 ? 1.0 : fine);
        }
}

/* ---- missing and failing libraries ---- */

static const char *const passes[] = { "cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward", DNN_FILTER,
                                      "cudnnConvolutionBackwardData" };

/* Makes cuDNN refuse all convolutions. */
static void refuse_convolutions(void)
{
    EACH(pass, passes)
        soft->inject(*pass, 1, 3000, true);
}

static void launched(const char *kernel, bool expected)
{
    CHECK((soft->launches(kernel) > 0) == expected, "%s ran %llu times", kernel,
          (unsigned long long)soft->launches(kernel));
}

TEST(failures, "without the libraries, or without their fused bias")
{
    IN_CUDA_CHILD("SOFTCUDA_BLAS=create=no", "SOFTCUDA_DNN=create=no") {
        one_product();
        convolution(ONE, CTRT_F32, false);
        launched("matmul_f32_small", true);
        launched("conv2d_f32_dense", true);
    }
    IN_CUDA_CHILD("SOFTCUDA_BLAS=bias=no", "SOFTCUDA_DNN=bias=no") {
        product((struct product){ 1, 20, 40, 30 }, PLAIN, PLAIN, CTRT_F32, false);
        product((struct product){ 1, 20, 7, 30 }, PLAIN, PLAIN, CTRT_F64, false);
        product((struct product){ 1, 20, 40, 30 }, PLAIN, PLAIN, CTRT_BF16, false);
        launched("bias_f32_v", true);
        launched("bias_f64", true);
        convolution(ONE, CTRT_F32, false);
        launched("bias_f32", true);
        const uint64_t product_biases = soft->launches("bias_f32_v");
        convolution(EVEN, CTRT_F32, false);
        convolution(EVEN, CTRT_F16, true);
        CHECK_TRUE(soft->launches("bias_f32_v") > product_biases);
        launched("bias_f16_v", true);
        CHECK_TRUE(calls("cublasLtMatmul") >= 3);
        launched("matmul_f32_small", false);
    }

    group("work that a library refuses at run time is done by the built-in kernels");
    IN_CUDA_CHILD("CTRT_LOG=error") {
        soft->inject("cublasLtMatmul", 1, 15, false);
        refuse_convolutions();
        one_product();
        convolution(ONE, CTRT_F32, false);
        CHECK_EQ(soft->launches("matmul_f32_small"), 1);
        CHECK_EQ(soft->launches("conv2d_weight_grad_f32_dense"), 1);
    }

    group("a convolution that cuDNN refuses is computed by matrix products, and cuDNN is not called again");
    IN_CUDA_CHILD("CTRT_LOG=error") {
        int64_t tried = 0;
        refuse_convolutions();
        for (int time = 0; time < 3; time++) {
            const int64_t before = calls("cublasLtMatmul");
            int64_t now = 0;
            convolution(MANY_CHANNELS, CTRT_F32, false);
            EACH(pass, passes)
                now += calls(*pass);
            CHECK_TRUE(calls("cublasLtMatmul") >= before + 3);
            CHECK(time == 0 ? now > 0 : now == tried, "cuDNN was called %lld more times", (long long)(now - tried));
            tried = now;
        }
        CHECK_EQ(soft->launches("conv2d_f32_dense"), 0);
        CHECK_EQ(soft->launches("conv2d_weight_grad_f32_dense"), 0);
        CHECK_EQ(soft->launches("conv2d_input_grad_f32_dense"), 0);
    }

    group("a product that gets a smaller workspace once does not change the choice for later products");
    IN_CUDA_CHILD("CTRT_LOG=error", "CTRT_MEMORY=direct") {
        int64_t peaks[2];
        refuse_convolutions();
        for (int time = 0; time < 2; time++) {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL;
            CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(2, 9, 9, 8), CTRT_F32, gpu));
            CHECK_OK(ctrt_ones(&w, CTRT_SHAPE(10, 9, 3, 3), CTRT_F32, gpu));
            ctrt_memory_reset_peak(gpu);
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK_EQ(calls("cublasLtMatmul"), time + 1);
            peaks[time] = (int64_t)ctrt_memory_max_allocated(gpu);
        }
        /* First the 1 MiB that cuDNN requested; then what products need: 2 MiB and the patches. */
        CHECK_TRUE(peaks[0] < 2 << 20 && peaks[1] > 2 << 20);
    }

    group("when cuDNN reports out of memory in any call, it is skipped for that convolution only");
    static const char *const places[] = { DNN_FILTER, "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                                          "cudnnCreateTensorDescriptor" };
    EACH(place, places)
        IN_CUDA_CHILD("CTRT_LOG=error") {
            /* Both gradient algorithms fail; the workspace is allocated before the work is enqueued. */
            soft->inject(*place, 1, 4003, false);
            soft->inject(*place, 2, 4004, false);
            convolution(MANY_CHANNELS, CTRT_F32, false);
            const int64_t product_calls = calls("cublasLtMatmul"), before = calls(DNN_FILTER);
            CHECK_TRUE(product_calls > 0);
            convolution(MANY_CHANNELS, CTRT_F32, false);
            CHECK_EQ(calls("cublasLtMatmul"), product_calls);
            CHECK_EQ(calls(DNN_FILTER), before + 1);
        }

    group("an error message names the failed operation");
    IN_CUDA_CHILD("CTRT_LOG=error") {
        CTRT_AUTO(tensor) a = NULL, b = NULL, y = NULL;
        soft->inject("cublasLtMatmul", 1, 14, false);
        soft->inject("cudnnConvolutionForward", 1, 5000, false);
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

TEST(implementations, "products by the built-in kernels")
{
    IN_CUDA_CHILD("CTRT_CUDA_GEMM=builtin") {
        products(COUNT(all_dtypes) - 1);
        CHECK_EQ(calls("cublasLtMatmul"), 0);
    }
    group("products of f32 matrices on cuda-fp16 have f32 results");
    for (int builtin = 0; builtin < 2; builtin++)
        for (int bias = 0; bias < 2; bias++)
            IN_CHILD(builtin ? "CTRT_CUDA_GEMM=builtin" : "CTRT_CUDA_GEMM=cublaslt",
                     bias ? "SOFTCUDA_BLAS=" : "SOFTCUDA_BLAS=bias=no") {
                if (!soft_open("cuda-fp16:0"))
                    continue;
                wide_products();
                mixed_product();
                if (builtin) {
                    launched("matmul_f16_small_f32", true);
                    launched("matmul_f16_large_f32", true);
                }
                CHECK_EQ(calls("cublasLtMatmul") > 5, !builtin);
            }

    group("CTRT_CUDA_FP16=bf16 multiplies in bf16, another word is an error");
    for (int known = 0; known < 2; known++)
        IN_CHILD(known ? "CTRT_CUDA_FP16=bf16" : "CTRT_CUDA_FP16=bf17", "CTRT_CUDA_GEMM=builtin") {
            CTRT_AUTO(tensor) a = NULL, y = NULL;
            ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
            if (!known) {
                CHECK_FAILS(ctrt_device_get(&gpu, "cuda-fp16:0"), CTRT_ERR_NO_DEVICE, "CTRT_CUDA_FP16=bf17");
                continue;
            }
            if (!soft_open("cuda-fp16:0"))
                continue;
            CHECK_OK(ctrt_device_get_properties(&properties, "cuda-fp16:0"));
            CHECK_EQ(properties.matrix_dtype, CTRT_BF16);
            CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
            CHECK_OK(ctrt_matmul(&y, a, a));
            CHECK_EQ(total(y), 512);
            launched("matmul_bf16_small_f32", true);
        }

    static const struct { const char *name, *settings[2], *kernels[2]; int64_t products; } convolving[] = {
        { "the built-in kernels", { "CTRT_CUDA_CONV=builtin" },
          { "conv2d_parts_f32", "conv2d_weight_grad_f32_few_last" }, 0 },
        { "cuBLASLt products", { "CTRT_CUDA_CONV=cublaslt", "CTRT_CUDA_WORKSPACE=2m" },
          { "conv2d_patches_f32", "conv2d_turn_f16" }, 20 },
        { "cuBLASLt products, one image at a time", { "CTRT_CUDA_CONV=cublaslt", "CTRT_CUDA_WORKSPACE=9k" },
          { "conv2d_patches_f16", "conv2d_weight_grad_f32_dense" }, 1 },
    };
    EACH(c, convolving) {
        group("convolutions by %s", c->name);
        IN_CUDA_CHILD(c->settings[0], c->settings[1]) {
            convolutions(c < convolving + 2);
            launched(c->kernels[0], true);
            launched(c->kernels[1], true);
            CHECK_TRUE(calls("cublasLtMatmul") >= c->products);
            CHECK_EQ(calls("cudnnConvolutionForward"), 0);
        }
    }
}

/* ---- when libraries are opened, and their workspaces ---- */

/* Creates the operands ones[1,4,6,6] and ones[4,4,3,3] of a convolution whose result is 36 everywhere. */
static void operands(ctrt_tensor **x, ctrt_tensor **w)
{
    CHECK_OK(ctrt_ones(x, CTRT_SHAPE(1, 4, 6, 6), CTRT_F32, gpu));
    CHECK_OK(ctrt_ones(w, CTRT_SHAPE(4, 4, 3, 3), CTRT_F32, gpu));
}

#define CONVOLVED (36.0 * 4 * 4 * 4)
#define CREATE    "cudnnCreate"
#define FORWARD   "cudnnConvolutionForward"

TEST(captures, "a capture without convolutions does not open cuDNN")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1") {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        CTRT_AUTO(graph) graph = NULL;
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
        CHECK_OK(ctrt_capture_begin(gpu));
        CHECK_OK(ctrt_matmul(&y, x, x));
        CHECK_OK(ctrt_capture_end(&graph, gpu));
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_EQ(total(y), 512);
        CHECK_EQ(calls(CREATE), 0);
    }

    group("no convolution opens cuDNN during a capture, whether it is captured or not; later ones do");
    for (int opened = 0; opened < 2; opened++)
        IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, z = NULL;
            CTRT_AUTO(graph) graph = NULL;
            CTRT_AUTO(stream) other = NULL;
            operands(&x, &w);
            if (opened)
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_OK(ctrt_stream_new(&other, gpu, 0));
            CHECK_OK(ctrt_capture_begin(gpu));
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_OK(ctrt_stream_push(other));
            CHECK_OK(ctrt_conv2d(&z, x, w, NULL, NULL));
            CHECK_OK(ctrt_stream_synchronize(other));
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_capture_end(&graph, gpu));
            CHECK_EQ(calls(CREATE), opened);
            CHECK_EQ(calls(FORWARD), 3 * opened);
            CHECK_EQ(total(z), CONVOLVED);
            for (int i = 1; i < 3; i++) {
                CHECK_OK(ctrt_fill_(w, ctrt_float(i)));
                CHECK_OK(ctrt_capture_replay(graph));
                CHECK_EQ(total(y), i * CONVOLVED);
            }
            ctrt_graph_release(&graph);
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_EQ(total(y), 2 * CONVOLVED);
            CHECK_EQ(calls(CREATE), 1);
            CHECK_EQ(calls(FORWARD), 1 + 3 * opened);
        }
}

static void count_report(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)device, (void)bytes, (void)report;
    ++*(int *)user;
}

#define DEVICE_OF(memory) "SOFTCUDA=devices=1,memory=" #memory
#define ASKS(mib)         "SOFTCUDA_DNN=workspace=" #mib

TEST(workspace, "convolution workspaces: at most 1 GiB, an eighth of the device, or CTRT_CUDA_WORKSPACE; with less "
                "free memory, an algorithm that needs less")
{
    /* MiB that cuDNN requests and that other tensors hold, and the workspace it gets. */
    static const struct { const char *what, *soft, *dnn, *set; int64_t held, workspace; bool capture; } cases[] = {
        { "less than an eighth of the device", DEVICE_OF(1g), ASKS(100), NULL, 0, 100, false },
        { "more than an eighth of the device", DEVICE_OF(512m), ASKS(100), NULL, 0, 0, false },
        { "more than 1 GiB", DEVICE_OF(16g), ASKS(1100), NULL, 0, 0, false },
        { "64 MiB allowed", DEVICE_OF(1g), ASKS(100), "CTRT_CUDA_WORKSPACE=64m", 0, 0, false },
        { "200 MiB allowed", DEVICE_OF(512m), ASKS(100), "CTRT_CUDA_WORKSPACE=200m", 0, 100, false },
        { "60 MiB free", DEVICE_OF(1g), ASKS(100), NULL, 964, 0, false },
        { "84 MiB free in a capture", DEVICE_OF(1g), ASKS(100), "CTRT_MEMORY=caching", 940, -1, true },
    };
    EACH(c, cases)
        IN_CUDA_CHILD(c->soft, c->dnn, "CTRT_MEMORY=direct", c->set) {
            CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, held = NULL;
            CTRT_AUTO(graph) graph = NULL;
            int reports = 0;
            operands(&x, &w);
            if (c->capture)
                CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));        /* opens cuDNN */
            if (c->held > 0)
                CHECK_OK(ctrt_empty(&held, CTRT_SHAPE(c->held * MIB), CTRT_F32, gpu));
            ctrt_memory_reset_peak(gpu);
            const uint64_t before = ctrt_memory_allocated(gpu);
            ctrt_memory_set_oom_callback(count_report, &reports);
            if (c->capture)
                CHECK_OK(ctrt_capture_begin(gpu));
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            if (c->capture) {
                CHECK_OK(ctrt_capture_end(&graph, gpu));
                CHECK_OK(ctrt_capture_replay(graph));
            }
            const int64_t used = (int64_t)(ctrt_memory_max_allocated(gpu) - before) >> 20;
            CHECK(c->capture || used == c->workspace, "%s: %lld MiB, expected %lld", c->what, (long long)used,
                  (long long)c->workspace);
            CHECK_EQ(calls(FORWARD), 1 + c->capture);
            CHECK_EQ(total(y), CONVOLVED);
            CHECK_EQ(reports, 0);
        }
}

TEST(transient, "libraries that could not be opened for lack of file descriptors are used once descriptors are "
                "available")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_LOG=error") {
        CTRT_AUTO(tensor) x = NULL, w = NULL, a = NULL, y = NULL;
        struct rlimit limit;
        CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
        operands(&x, &w);
        CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(8, 8), CTRT_F32, gpu));
        CHECK_EQ(total(a), 64);                             /* opens the cpu's plugin before the limit is set */
        for (int given = 0; given < 2; given++) {
            CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ given ? limit.rlim_cur : 0, limit.rlim_max }), 0);
            CHECK_OK(ctrt_matmul(&y, a, a));
            CHECK_EQ(total(y), 512);
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
            CHECK_EQ(total(y), CONVOLVED);
            CHECK_EQ(calls("cublasLtMatmul"), given);
            CHECK_EQ(calls(FORWARD), given);
        }
    }
}

/* Compares all products and convolutions of a device. Needs no software driver. */
static int compare_all(const char *device)
{
    group("%s opens", device);
    if (!soft_open(device))
        return done();
    group("products and convolutions of %s", device);
    if (strncmp(device, "cuda-fp16", 9) == 0) {
        /* bf16 cannot represent the wide numbers. */
        if (getenv("CTRT_CUDA_FP16") != NULL)
            products(1);
        else
            wide_products();
        mixed_product();
    } else {
        products(COUNT(all_dtypes) - 1);
        convolutions(true);
    }
    return done();
}

TEST_MAIN
{
    if (argc > 1)
        return compare_all(argv[1]);
    unsetenv("CTRT_TEST_GPU");          /* use only the software driver */
    soft_begin(argv);
    return run_tests();
}
