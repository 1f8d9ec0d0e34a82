/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_smoke.c: compares results of the device with those of the cpu: a few calls of each kind, in seconds, before
 * the suites that take minutes. Random numbers are equal on all devices, so both sides have equal operands. */
#include "gpu.h"

enum { RESULTS = 4 };

struct smoke { ctrt_device *device; ctrt_tensor *y[RESULTS]; };

static ctrt_status inputs(ctrt_tensor **x, int count, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    for (int i = 0; i < count; i++) {
        CTRT_TRY(ctrt_randn(&x[i], shape, dtype, device));
        CTRT_TRY(ctrt_tensor_require_grad(x[i], true));
    }
    return CTRT_OK;
}

static ctrt_status gradient_like(ctrt_tensor **dy, ctrt_tensor *y)
{
    CTRT_TRY(ctrt_empty_like(dy, y, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_normal_(*dy, 0, 1);
}

static ctrt_status product(struct smoke *s, ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    CTRT_TRY(ctrt_randn(&a, CTRT_SHAPE(96, 64), dtype, s->device));
    CTRT_TRY(ctrt_randn(&b, CTRT_SHAPE(64, 80), dtype, s->device));
    return ctrt_matmul(&s->y[0], a, b);
}
static ctrt_status matmul_f32(struct smoke *s) { return product(s, CTRT_F32); }
static ctrt_status matmul_bf16(struct smoke *s) { return product(s, CTRT_BF16); }

static ctrt_status add(struct smoke *s)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    CTRT_TRY(ctrt_randn(&a, CTRT_SHAPE(1000, 3), CTRT_F32, s->device));
    CTRT_TRY(ctrt_randn(&b, CTRT_SHAPE(3), CTRT_F32, s->device));
    return ctrt_add(&s->y[0], a, b);
}

static ctrt_status softmax(struct smoke *s)
{
    CTRT_AUTO(tensor) a = NULL;
    CTRT_TRY(ctrt_randn(&a, CTRT_SHAPE(64, 300), CTRT_F32, s->device));
    return ctrt_softmax(&s->y[0], a, 1);
}

static ctrt_status conv(struct smoke *s)
{
    ctrt_tensor *x[2] = { NULL };
    CTRT_AUTO(tensor) dy = NULL;
    ctrt_status status = inputs(&x[0], 1, CTRT_SHAPE(4, 8, 14, 14), CTRT_F32, s->device);
    if (status == CTRT_OK)
        status = inputs(&x[1], 1, CTRT_SHAPE(16, 8, 3, 3), CTRT_F32, s->device);
    if (status == CTRT_OK)
        status = ctrt_conv2d(&s->y[0], x[0], x[1], NULL, &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 }));
    if (status == CTRT_OK)
        status = gradient_like(&dy, s->y[0]);
    if (status == CTRT_OK)
        status = ctrt_grad(&s->y[1], s->y[0], x, 2, dy, false, false, false);
    ctrt_tensor_release(&x[0]);
    ctrt_tensor_release(&x[1]);
    return status;
}

static ctrt_status attention(struct smoke *s)
{
    ctrt_tensor *x[3] = { NULL };
    CTRT_AUTO(tensor) dy = NULL;
    ctrt_status status = inputs(x, 3, CTRT_SHAPE(2, 4, 70, 64), CTRT_BF16, s->device);
    if (status == CTRT_OK)
        status = ctrt_scaled_dot_product_attention(&s->y[0], x[0], x[1], x[2], NULL, &CTRT_WITH(ctrt_attention_options,
                                                                                                .causal = true));
    if (status == CTRT_OK)
        status = gradient_like(&dy, s->y[0]);
    if (status == CTRT_OK)
        status = ctrt_grad(&s->y[1], s->y[0], x, 3, dy, false, false, false);
    for (int i = 0; i < 3; i++)
        ctrt_tensor_release(&x[i]);
    return status;
}

/* Three steps of AdamW. `captured`: on the GPU the first step runs eagerly, the second is captured and replayed, the
 * third is replayed. */
static ctrt_status training(struct smoke *s, bool captured)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL;
    ctrt_optimizer *optimizer = NULL;
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 0.1;
    ctrt_graph *graph = NULL;
    ctrt_status status = ctrt_randn(&x, CTRT_SHAPE(32, 24), CTRT_F32, s->device);
    if (status == CTRT_OK)
        status = inputs(&w, 1, CTRT_SHAPE(24, 16), CTRT_F32, s->device);
    if (status == CTRT_OK)
        status = ctrt_adamw_new(&optimizer, NULL, &adamw);
    if (status == CTRT_OK)
        status = ctrt_optimizer_add(optimizer, &w, 1);
    for (int i = 0; i < 3 && status == CTRT_OK; i++) {
        const bool record = captured && i == 1 && s->device == gpu;
        if (graph != NULL) {
            status = ctrt_capture_replay(graph);
            continue;
        }
        if (record)
            status = ctrt_capture_begin(s->device);
        if (status == CTRT_OK)
            status = ctrt_optimizer_zero_grad(optimizer, true);
        if (status == CTRT_OK)
            status = ctrt_matmul(&y, x, w);
        if (status == CTRT_OK)
            status = ctrt_square(&y, y);
        if (status == CTRT_OK)
            status = ctrt_mean(&y, y, CTRT_ALL_DIMS);
        if (status == CTRT_OK)
            status = ctrt_backward(y);
        if (status == CTRT_OK)
            status = ctrt_optimizer_step(optimizer);
        if (record) {
            const ctrt_status end = ctrt_capture_end(&graph, s->device);
            status = status != CTRT_OK ? status : end;
            if (status == CTRT_OK)
                status = ctrt_capture_replay(graph);
        }
    }
    if (status == CTRT_OK)
        status = ctrt_detach(&s->y[0], w);
    if (status == CTRT_OK)
        status = ctrt_device_synchronize(s->device);
    ctrt_graph_release(&graph);
    ctrt_optimizer_release(&optimizer);
    return status;
}
static ctrt_status adamw(struct smoke *s) { return training(s, false); }
static ctrt_status capture(struct smoke *s) { return training(s, true); }

/* The largest absolute difference divided by the largest magnitude of the cpu's result (`here`). */
static ctrt_status difference(double *out, ctrt_tensor *here, ctrt_tensor *there)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    double size = 0, most = 0;
    CTRT_TRY(ctrt_detach(&a, here));
    CTRT_TRY(ctrt_detach(&b, there));
    CTRT_TRY(ctrt_to_dtype(&a, a, CTRT_F64));
    CTRT_TRY(ctrt_to_device(&b, b, ctrt_tensor_device(a)));
    CTRT_TRY(ctrt_to_dtype(&b, b, CTRT_F64));
    CTRT_TRY(ctrt_sub(&b, b, a));
    CTRT_TRY(ctrt_abs(&b, b));
    CTRT_TRY(ctrt_abs(&a, a));
    CTRT_TRY(ctrt_amax(&a, a, CTRT_ALL_DIMS, false));
    CTRT_TRY(ctrt_amax(&b, b, CTRT_ALL_DIMS, false));
    CTRT_TRY(ctrt_item(&size, a));
    CTRT_TRY(ctrt_item(&most, b));
    *out = most / (size > 0 ? size : 1);
    return CTRT_OK;
}

void gpu_smoke(void)
{
    /* bf16 has 8 bits of precision, and cancellation loses some of them in a product of operands with random signs. */
    static const struct { const char *name; ctrt_status (*run)(struct smoke *s); double most; } cases[] = {
        { "smoke_add", add, 1e-6 }, { "smoke_matmul_f32", matmul_f32, 1e-5 },
        { "smoke_matmul_bf16", matmul_bf16, 0.01 },
        { "smoke_softmax", softmax, 1e-5 }, { "smoke_conv", conv, 1e-4 }, { "smoke_attention_bf16", attention, 0.02 },
        { "smoke_adamw", adamw, 1e-4 }, { "smoke_capture", capture, 1e-4 },
    };
    ctrt_device *cpu = NULL;
    gpu_check(ctrt_device_get(&cpu, "cpu"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct smoke there = { .device = gpu }, here = { .device = cpu };
        ctrt_manual_seed(7);
        bool good = gpu_wanted(cases[i].name) && gpu_case(cases[i].name, cases[i].run(&there));
        ctrt_manual_seed(7);
        good = good && gpu_case(cases[i].name, cases[i].run(&here));
        double most = 0, one = 0;
        for (int k = 0; k < RESULTS && good && here.y[k] != NULL; k++) {
            good = gpu_case(cases[i].name, difference(&one, here.y[k], there.y[k]));
            most = one > most || one != one ? one : most;
        }
        if (good) {
            const bool close = most <= cases[i].most;
            printf("%s %s: differs from the cpu by %.2g, at most %.2g allowed\n", cases[i].name,
                   close ? "passed" : "FAILED", most, cases[i].most);
            fflush(stdout);
            gpu_failed = gpu_failed || !close;
        }
        for (int k = 0; k < RESULTS; k++) {
            ctrt_tensor_release(&here.y[k]);
            ctrt_tensor_release(&there.y[k]);
        }
    }
}
