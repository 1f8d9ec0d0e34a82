/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the cuda backend: which kernels are used under which settings, strides of the results, memory use
 * (measured and predicted), deterministic results and injected failures. The conformance suite checks the values. */
#include <math.h>

#include "soft_begin.h"

#include "child.h"
#include "tensors.h"

static const struct softcuda_control *soft;
static ctrt_device *gpu;

/* Opens both devices. Called first in a child process. */
static bool open_device(const char *name)
{
    return CHECK_OK(ctrt_device_get(&gpu, name)) && CHECK_OK(ctrt_device_get(&cpu, "cpu"))
           && CHECK((soft = soft_control()) != NULL, "this is not the software driver");
}

static bool open_devices(void)
{
    return open_device("cuda:0");
}

/* Creates a tensor of values in (-1, 1) on the GPU, the same values each time. */
static ctrt_tensor *numbers(ctrt_ints shape, ctrt_dtype dtype)
{
    ctrt_tensor *x = NULL;
    ctrt_manual_seed(7);
    CHECK_OK(ctrt_rand(&x, shape, CTRT_F32, cpu));
    CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_float(2)));
    CHECK_OK(ctrt_sub_scalar(&x, x, ctrt_float(1)));
    CHECK_OK(ctrt_to(&x, x, gpu, dtype, true, 0));
    return x;
}

/* ---- which kernels are used ---- */

static const char *const widths[] = { "32", "64", "128" };

static uint64_t launches(const char *format, const char *dtype)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < COUNT(widths); i++) {
        char name[64];
        snprintf(name, sizeof name, format, dtype, widths[i]);
        sum += soft->launches(name);
    }
    return sum;
}

enum { MASK = 1, DROPOUT = 2, MIXED = 4, TWICE = 8, FORWARD = 16 };

/* Runs one call and its gradient. Checks whether forward and backward launch the fused kernels for `dtype`. */
static void one_call(const char *what, ctrt_dtype dtype, int64_t width, int64_t values, int flags, bool forward, bool backward)
{
    const char *name = ctrt_dtype_name(dtype);
    const uint64_t before = launches("attention_%s_%s", name), before_keys = launches("attention_backward_%s_k%s", name),
                   before_queries = launches("attention_backward_%s_q%s", name);
    CTRT_AUTO(tensor) q = numbers(CTRT_SHAPE(1, 2, 5, width), dtype), k = numbers(CTRT_SHAPE(1, 2, 7, width), dtype);
    CTRT_AUTO(tensor) v = numbers(CTRT_SHAPE(1, 2, 7, values), dtype), mask = NULL, y = NULL, dy = NULL, dq = NULL;
    if (flags & MASK)
        CHECK_OK(ctrt_ones(&mask, CTRT_SHAPE(5, 7), CTRT_BOOL, gpu));
    CHECK_OK(ctrt_tensor_require_grad(q, true));
    if (!CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, k, v, mask, flags & DROPOUT ? 0.5 : 0, false, 0)))
        return;
    CHECK_OK(ctrt_ones(&dy, CTRT_SHAPE(1, 2, 5, values), dtype, gpu));
    CHECK_OK(ctrt_grad(&dq, y, &q, 1, dy, (flags & TWICE) != 0, (flags & TWICE) != 0, false));
    CHECK_OK(ctrt_device_synchronize(gpu));
    CHECK((launches("attention_%s_%s", name) - before == 1) == forward, "%s: forward used other kernels than expected",
          what);
    CHECK((launches("attention_backward_%s_k%s", name) - before_keys == 1) == backward
              && (launches("attention_backward_%s_q%s", name) - before_queries == 1) == backward,
          "%s: backward used other kernels than expected", what);
}

static void who_computes(void)
{
    group("fused kernels run where they support the call");
    IN_CHILD("SOFTCUDA=devices=1") {
        if (open_devices()) {
            one_call("f32", CTRT_F32, 8, 8, 0, true, true);
            one_call("f64", CTRT_F64, 8, 40, 0, true, true);
            one_call("f16", CTRT_F16, 64, 8, 0, true, true);
            one_call("bf16", CTRT_BF16, 128, 8, 0, true, true);
            one_call("rows of 129 values", CTRT_F16, 8, 129, 0, false, false);
            one_call("a mask", CTRT_F32, 8, 8, MASK, false, false);
            one_call("dropout", CTRT_F32, 8, 8, DROPOUT, false, false);
            one_call("a gradient with create_graph", CTRT_F32, 8, 8, TWICE, true, false);
        }
    }
    CHILD_END;
    group("settings select fused or composite attention");
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_CUDA_ATTENTION=composite") {
        if (open_devices()) {
            one_call("composite, f32", CTRT_F32, 8, 8, 0, false, false);
            one_call("composite, f16", CTRT_F16, 8, 8, 0, false, false);
        }
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_CUDA_TF32=matmul") {
        if (open_devices()) {
            one_call("tf32, f32", CTRT_F32, 8, 8, 0, false, false);
            one_call("tf32, f64", CTRT_F64, 8, 8, 0, true, true);
            one_call("tf32, f16", CTRT_F16, 8, 8, 0, true, true);
        }
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_CUDA_TF32=matmul", "CTRT_CUDA_ATTENTION=builtin") {
        if (open_devices())
            one_call("builtin, tf32", CTRT_F32, 8, 8, 0, true, true);
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=1,memory=4m", "CTRT_CUDA_TF32=matmul") {        /* scores of 2 x 512 x 512 x 4 bytes */
        if (open_devices()) {
            CTRT_AUTO(tensor) q = numbers(CTRT_SHAPE(2, 512, 2), CTRT_F32), y = NULL;
            CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, 0, true, 0));
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK(soft->launches("attention_f32_32") == 1,
                  "no fused kernel ran, although the scores need half the device's memory");
        }
    }
    CHILD_END;
    group("GPUs of compute capability 7.5 use fused kernels for f16 only");
    IN_CHILD("SOFTCUDA=devices=1,cc=7.5") {
        if (open_devices()) {
            one_call("f16 at 7.5", CTRT_F16, 8, 8, 0, true, true);
            one_call("bf16 at 7.5", CTRT_BF16, 8, 8, 0, false, false);
        }
    }
    CHILD_END;
}

/* ---- strides of results ---- */

static void heads(void)
{
    group("transposed heads as input give a transposed output");
    IN_CHILD("SOFTCUDA=devices=1") {
        if (open_devices()) {
            CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 9, 3, 16), CTRT_F32), q = NULL, y = NULL, joined = NULL, dx = NULL, dy = NULL;
            CHECK_OK(ctrt_tensor_require_grad(x, true));
            CHECK_OK(ctrt_transpose(&q, x, 1, 2));
            const uint64_t copies = soft->launches("copy_f32") + soft->launches("copy_f32_s");
            CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, 0, true, 0));
            CHECK_OK(ctrt_transpose(&joined, y, 1, 2));
            SHAPE_IS(joined, 2, 9, 3, 16);
            CHECK(ctrt_tensor_is_contiguous(joined, CTRT_CONTIGUOUS_FORMAT), "joining the heads needs a copy");
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK(soft->launches("copy_f32") + soft->launches("copy_f32_s") == copies, "operands were copied");
            CHECK_OK(ctrt_ones(&dy, CTRT_SHAPE(2, 3, 9, 16), CTRT_F32, gpu));
            CHECK_OK(ctrt_grad(&dx, y, &x, 1, dy, false, false, false));
            CHECK(ctrt_tensor_is_contiguous(dx, CTRT_CONTIGUOUS_FORMAT),
                  "the gradient of the tensor that was split into heads is not contiguous");
        }
    }
    CHILD_END;
}

/* ---- memory ---- */

/* Runs forward and backward. The L x S scores would need 256 KiB. */
static ctrt_status train(ctrt_tensor *x)
{
    CTRT_AUTO(tensor) y = NULL, dy = NULL, dx = NULL;
    CTRT_TRY(ctrt_scaled_dot_product_attention(&y, x, x, x, NULL, 0, true, 0));
    CTRT_TRY(ctrt_ones(&dy, CTRT_SHAPE(256, 4), CTRT_F32, gpu));
    return ctrt_grad(&dx, y, &x, 1, dy, false, false, false);
}

static void memory(const char *device)
{
    group("attention does not store the scores, and a dry run predicts its peak, on %s", device);
    IN_CHILD("SOFTCUDA=devices=1") {
        if (open_device(device)) {
            ctrt_dry_run *run = NULL;
            ctrt_memory_prediction found;
            ctrt_memory_peaks peaks;
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
            CHECK(peaks.allocated_bytes - before < 64 << 10, "a peak of %lld bytes above the initial %lld",
                  (long long)(peaks.allocated_bytes - before), (long long)before);
            CHECK_OK(ctrt_device_synchronize(gpu));
            CHECK(soft->launches("attention_f32_32") + soft->launches("attention_f16_32") == 1,
                  "the fused kernel did not run exactly once");
            CHECK(found.peak_allocated == peaks.allocated_bytes, "%lld bytes predicted, %lld measured",
                  (long long)found.peak_allocated, (long long)peaks.allocated_bytes);
        }
    }
    CHILD_END;
}

/* ---- determinism ---- */

static void same_bits(void)
{
    group("results do not depend on the order of threads and blocks");
    IN_CHILD("SOFTCUDA=devices=1,order=random") {
        if (open_devices()) {
            for (int half = 0; half < 2; half++) {
                float first[2][130 * 24], again[2][130 * 24];
                for (int time = 0; time < 2; time++) {
                    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(130, 24), half ? CTRT_F16 : CTRT_F32), y = NULL, dx = NULL;
                    CHECK_OK(ctrt_tensor_require_grad(x, true));
                    CHECK_OK(ctrt_scaled_dot_product_attention(&y, x, x, x, NULL, 0, false, 0));
                    CHECK_OK(ctrt_grad(&dx, y, &x, 1, x, false, false, false));
                    CHECK_OK(ctrt_to_host(time ? again[0] : first[0], sizeof first[0], y, CTRT_F32));
                    CHECK_OK(ctrt_to_host(time ? again[1] : first[1], sizeof first[1], dx, CTRT_F32));
                }
                CHECK(memcmp(first, again, sizeof first) == 0, "%s: the second run has other bits",
                      half ? "f16" : "f32");
            }
        }
    }
    CHILD_END;
}

/* ---- failures ---- */

static ctrt_status small_step(double *value)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, dy = NULL, dx = NULL;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(1, 2, 3, 4), CTRT_F32, gpu));
    CTRT_TRY(ctrt_tensor_require_grad(x, true));
    CTRT_TRY(ctrt_scaled_dot_product_attention(&y, x, x, x, NULL, 0, false, 0));
    CTRT_TRY(ctrt_ones(&dy, CTRT_SHAPE(1, 2, 3, 4), CTRT_F32, gpu));
    CTRT_TRY(ctrt_grad(&dx, y, &x, 1, dy, false, false, false));
    CTRT_TRY(ctrt_sum(&dx, dx, CTRT_ALL_DIMS));
    return ctrt_item(value, dx);
}

/* Makes call n of the driver function fail, for each n. `on`: also all later calls, because allocations are tried
 * twice. */
static void fail_each(const char *function, int error, bool on)
{
    int failed = 0;
    for (int n = 1; n < 60; n++) {
        double value = 0;
        CHECK(soft->inject(function, soft->calls(function) + n, error, on), "cannot inject into %s", function);
        const ctrt_status status = small_step(&value);
        soft->inject_clear();
        failed += status != CTRT_OK;
        if (status != CTRT_OK)
            CHECK(ctrt_error_message()[0] != '\0', "%s, call %d: no message", function, n);
        /* All elements of x are equal, so y = x, dv = dy and dq = dk = 0. */
        CHECK_OK(small_step(&value));
        CHECK(fabs(value - 24) < 1e-3, "after %s, call %d: %g, expected 24", function, n, value);
    }
    CHECK(failed > 3 && failed < 59, "%s: %d of 59 steps failed", function, failed);
    CHECK(ctrt_memory_allocated(gpu) == 0, "%lld bytes were not freed", (long long)ctrt_memory_allocated(gpu));
}

static void failures(void)
{
    group("failed allocations and launches set an error message, and the next step is correct");
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_MEMORY=direct", "CTRT_LOG=error") {
        if (open_devices()) {
            double value = 0;
            CHECK_OK(small_step(&value));
            fail_each("cuMemAlloc", 2, true);
            fail_each("cuLaunchKernel", 701, false);
        }
    }
    CHILD_END;
}

TEST_MAIN
{
    soft_begin(argv);
    who_computes();
    heads();
    memory("cuda:0");
    memory("cuda-fp16:0");
    same_bits();
    failures();
    return done();
}
