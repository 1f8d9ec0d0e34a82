/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the cuda backend: which kernels are used under which settings, strides of the results, memory use
 * (measured and predicted) and injected failures. The conformance suite checks the values. */
#include "soft_begin.h"

/* Creates a tensor of values in (-1, 1) on the GPU, the same values each time. */
static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype)
{
    ctrt_tensor *x = NULL;
    ctrt_manual_seed(7);
    CHECK_OK(ctrt_empty(&x, shape, CTRT_F32, cpu));
    CHECK_OK(ctrt_uniform_(x, -1, 1));
    CHECK_OK(ctrt_to(&x, x, gpu, dtype, true, 0));
    return x;
}

static uint64_t launches(const char *format, const char *dtype)
{
    static const char *const widths[] = { "32", "64", "128" };
    uint64_t sum = 0;
    EACH(width, widths) {
        char name[64];
        snprintf(name, sizeof name, format, dtype, *width);
        sum += soft->launches(name);
    }
    return sum;
}

enum { FORWARD = 1, BACKWARD = 2, FUSED = 3, MASK = 4, DROPOUT = 8, CREATE_GRAPH = 16 };

/* A call and its gradient. Bits 0 and 1 of `flags`: whether forward and backward launch the fused kernels. */
static const struct choice {
    const char *soft, *settings[2];
    ctrt_dtype dtype;
    int64_t width, values;
    int flags;
} choices[] = {
    { "devices=1", { 0 }, CTRT_F32, 8, 8, FUSED },
    { "devices=1", { 0 }, CTRT_F64, 8, 40, FUSED },
    { "devices=1", { 0 }, CTRT_F16, 64, 8, FUSED },
    { "devices=1", { 0 }, CTRT_BF16, 128, 8, FUSED },
    { "devices=1", { 0 }, CTRT_F16, 8, 129, 0 },                /* rows that are too wide */
    { "devices=1", { 0 }, CTRT_F32, 8, 8, MASK },
    { "devices=1", { 0 }, CTRT_F32, 8, 8, DROPOUT },
    { "devices=1", { 0 }, CTRT_F32, 8, 8, CREATE_GRAPH | FORWARD },
    { "devices=1", { "CTRT_CUDA_ATTENTION=composite" }, CTRT_F32, 8, 8, 0 },
    { "devices=1", { "CTRT_CUDA_ATTENTION=composite" }, CTRT_F16, 8, 8, 0 },
    { "devices=1", { "CTRT_CUDA_TF32=matmul" }, CTRT_F32, 8, 8, 0 },
    { "devices=1", { "CTRT_CUDA_TF32=matmul" }, CTRT_F64, 8, 8, FUSED },
    { "devices=1", { "CTRT_CUDA_TF32=matmul" }, CTRT_F16, 8, 8, FUSED },
    { "devices=1", { "CTRT_CUDA_TF32=matmul", "CTRT_CUDA_ATTENTION=builtin" }, CTRT_F32, 8, 8, FUSED },
    { "devices=1,cc=7.5", { 0 }, CTRT_F16, 8, 8, FUSED },
    { "devices=1,cc=7.5", { 0 }, CTRT_BF16, 8, 8, 0 },
};

static void check_choice(const struct choice *c)
{
    const char *name = ctrt_dtype_name(c->dtype);
    const bool create_graph = c->flags & CREATE_GRAPH;
    CTRT_AUTO(tensor) q = numbers(CTRT_SHAPE(1, 2, 5, c->width), c->dtype),
        k = numbers(CTRT_SHAPE(1, 2, 7, c->width), c->dtype);
    CTRT_AUTO(tensor) v = numbers(CTRT_SHAPE(1, 2, 7, c->values), c->dtype), mask = NULL, y = NULL, dy = NULL,
        dq = NULL;
    if (c->flags & MASK)
        CHECK_OK(ctrt_ones(&mask, CTRT_SHAPE(5, 7), CTRT_BOOL, gpu));
    CHECK_OK(ctrt_tensor_require_grad(q, true));
    const ctrt_attention_options options = CTRT_WITH(ctrt_attention_options, .dropout_p = c->flags & DROPOUT ? 0.5 : 0);
    if (!CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, k, v, mask, &options)))
        return;
    CHECK_OK(ctrt_ones(&dy, CTRT_SHAPE(1, 2, 5, c->values), c->dtype, gpu));
    CHECK_OK(ctrt_grad(&dq, y, &q, 1, dy, create_graph, create_graph, false));
    CHECK_OK(ctrt_device_synchronize(gpu));
    CHECK_EQ(launches("attention_%s_%s", name), (c->flags & FORWARD) != 0);
    CHECK_EQ(launches("attention_backward_%s_k%s", name), (c->flags & BACKWARD) != 0);
    CHECK_EQ(launches("attention_backward_%s_q%s", name), (c->flags & BACKWARD) != 0);
}

TEST(choice, NULL)
{
    EACH(c, choices) {
        char settings[64];
        snprintf(settings, sizeof settings, "SOFTCUDA=%s", c->soft);
        group("kernels for %s, %d and %d columns%s%s%s, with %s %s", ctrt_dtype_name(c->dtype), (int)c->width,
              (int)c->values, c->flags & MASK ? ", a mask" : "", c->flags & DROPOUT ? ", dropout" : "",
              c->flags & CREATE_GRAPH ? ", create_graph" : "", c->soft, c->settings[0] != NULL ? c->settings[0] : "");
        IN_CUDA_CHILD(settings, c->settings[0], c->settings[1]) {
            check_choice(c);
        }
    }
    group("fused kernels are used instead of composite attention when the scores need half the device's memory");
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=4m", "CTRT_CUDA_TF32=matmul") {        /* 2 x 512 x 512 x 4 bytes */
        CTRT_AUTO(tensor) q = numbers(CTRT_SHAPE(2, 512, 2), CTRT_F32), y = NULL;
        CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, &CTRT_WITH(ctrt_attention_options,
            .causal = true)));
        CHECK_OK(ctrt_device_synchronize(gpu));
        CHECK_EQ(soft->launches("attention_f32_32"), 1);
    }
}

TEST(heads, "transposed heads as input give a transposed output")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1") {
        CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 9, 3, 16), CTRT_F32), q = NULL, y = NULL, joined = NULL, dx = NULL,
            dy = NULL;
        CHECK_OK(ctrt_tensor_require_grad(x, true));
        CHECK_OK(ctrt_transpose(&q, x, 1, 2));
        const uint64_t copies = soft->launches("copy_f32") + soft->launches("copy_f32_s");
        CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, &CTRT_WITH(ctrt_attention_options,
            .causal = true)));
        CHECK_OK(ctrt_transpose(&joined, y, 1, 2));
        SHAPE_IS(joined, 2, 9, 3, 16);
        CHECK_TRUE(ctrt_tensor_is_contiguous(joined, CTRT_CONTIGUOUS_FORMAT));
        CHECK_OK(ctrt_device_synchronize(gpu));
        CHECK_EQ(soft->launches("copy_f32") + soft->launches("copy_f32_s"), copies);
        CHECK_OK(ctrt_ones(&dy, CTRT_SHAPE(2, 3, 9, 16), CTRT_F32, gpu));
        CHECK_OK(ctrt_grad(&dx, y, &x, 1, dy, false, false, false));
        CHECK_TRUE(ctrt_tensor_is_contiguous(dx, CTRT_CONTIGUOUS_FORMAT));
    }
}

TEST(hidden, "rows that a mask hides entirely are 0 and have gradients of 0")
{
    static const double visible[2 * 3] = { 1, 1 };
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16 };
    IN_CUDA_CHILD("SOFTCUDA=devices=1") {
        CTRT_AUTO(tensor) mask = tensor_with(visible, CTRT_SHAPE(2, 1, 3), CTRT_BOOL, gpu);
        EACH(dtype, dtypes) {
            CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 3, 8), *dtype), dy = numbers(CTRT_SHAPE(2, 3, 8), *dtype),
                y = NULL, dx = NULL;
            double found[2][48];
            CHECK_OK(ctrt_tensor_require_grad(x, true));
            CHECK_OK(ctrt_scaled_dot_product_attention(&y, x, x, x, mask,
                                                       &CTRT_WITH(ctrt_attention_options, .causal = true)));
            CHECK_OK(ctrt_grad(&dx, y, &x, 1, dy, false, false, false));
            CHECK_OK(ctrt_to_host(found[0], sizeof found[0], y, CTRT_F64));
            CHECK_OK(ctrt_to_host(found[1], sizeof found[1], dx, CTRT_F64));
            for (int k = 0; k < 48; k++)
                CHECK(k < 24 ? isfinite(found[0][k]) && isfinite(found[1][k]) : found[0][k] == 0 && found[1][k] == 0,
                      "%s: element %d is %g, its gradient %g", ctrt_dtype_name(*dtype), k, found[0][k], found[1][k]);
        }
    }
}

/* Runs forward and backward. The L x S scores would need 256 KiB. */
static ctrt_status train(ctrt_tensor *x)
{
    CTRT_AUTO(tensor) y = NULL, dy = NULL, dx = NULL;
    CTRT_TRY(ctrt_scaled_dot_product_attention(&y, x, x, x, NULL, &CTRT_WITH(ctrt_attention_options, .causal = true)));
    CTRT_TRY(ctrt_ones(&dy, CTRT_SHAPE(256, 4), CTRT_F32, gpu));
    return ctrt_grad(&dx, y, &x, 1, dy, false, false, false);
}

static void check_memory(const char *device)
{
    group("attention does not store the scores, and a dry run predicts its peak, on %s", device);
    IN_CHILD("SOFTCUDA=devices=1") {
        if (soft_open(device)) {
            ctrt_dry_run *run = NULL;
            ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
            ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
            ctrt_memory_scope *scope = NULL;
            CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(256, 4), CTRT_F32);
            CHECK_OK(ctrt_tensor_require_grad(x, true));
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK_OK(ctrt_dry_run_begin(&run, gpu));
            CHECK_OK(train(x));
            CHECK_OK(ctrt_dry_run_end(&found, &run));
            const uint64_t before = ctrt_memory_allocated(gpu);
            CHECK_OK(ctrt_memory_scope_begin(&scope, gpu));
            CHECK_OK(train(x));
            CHECK_OK(ctrt_memory_scope_end(&peaks, &scope));
            CHECK_TRUE(peaks.allocated_bytes - before < 64 << 10);
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK_EQ(soft->launches("attention_f32_32") + soft->launches("attention_f16_32"), 1);
            CHECK_EQ(found.peak_allocated, peaks.allocated_bytes);
        }
    }
}

static ctrt_status small_step(double *value)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, dy = NULL, dx = NULL;
    TRY(ctrt_ones(&x, CTRT_SHAPE(1, 2, 3, 4), CTRT_F32, gpu));
    TRY(ctrt_tensor_require_grad(x, true));
    TRY(ctrt_scaled_dot_product_attention(&y, x, x, x, NULL, NULL));
    TRY(ctrt_ones(&dy, CTRT_SHAPE(1, 2, 3, 4), CTRT_F32, gpu));
    TRY(ctrt_grad(&dx, y, &x, 1, dy, false, false, false));
    TRY(ctrt_sum(&dx, dx, CTRT_ALL_DIMS));
    return ctrt_item(value, dx);
}

TEST(memory, NULL)
{
    check_memory("cuda:0");
    check_memory("cuda-fp16:0");
}

TEST(failures, "failed allocations and launches set an error message, and the next step is correct")
{
    /* `on`: also all later calls fail, because allocations are tried twice. */
    static const struct { const char *function; int error; bool on; } cases[] = { { "cuMemAlloc", 2, true },
                                                                                  { "cuLaunchKernel", 701, false } };
    IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_MEMORY=direct", "CTRT_LOG=error") {
        double value = 0;
        CHECK_OK(small_step(&value));
        EACH(c, cases) {
            int failed = 0, passed = 0, n = 0;
            /* a failure may be without effect, so not until the first success */
            for (; passed < 5 && n < 60; n++) {
                soft->inject(c->function, soft->calls(c->function) + 1 + n, c->error, c->on);
                const ctrt_status status = small_step(&value);
                soft->inject_clear();
                *(status == CTRT_OK ? &passed : &failed) += 1;
                CHECK(status == CTRT_OK || ctrt_error_message()[0] != '\0', "%s, call %d: no message", c->function, n);
                CHECK_OK(small_step(&value));
                /* all elements of x are equal, so y = x, dv = dy and dq = dk = 0 */
                CHECK_NEAR(value, 24, 1e-3);
            }
            CHECK(failed > 3 && n < 60, "%s: %d of %d steps failed", c->function, failed, n);
        }
        CHECK_EQ(ctrt_memory_allocated(gpu), 0);
    }
}

TEST_MAIN
{
    soft_begin(argv);
    return run_tests();
}
