/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu.c: what a GPU does for ctrt: bandwidth of elementwise ops, reductions and rows, products, launches, training steps. Prints "NAME NANOSECONDS"
 * lines; peers/gpu_torch.py prints the same names, and gpu.sh both in turns.
 *
 *     bench-gpu [DEVICE] [small]         small: sizes that a driver in software can do; its times mean nothing */
#include <ctrt/ctrt.h>

#include <string.h>

#include "timing.h"

static ctrt_device *device;
static int64_t scale = 1;                   /* sizes are divided by it */

static void check(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-gpu: %s\n", ctrt_error_message());
    exit(1);
}

/* ---- timing: by events on the device, medians of batches of at least 2 ms ---- */

typedef void body(void *argument);

static double batch_ms(body *f, void *argument, long times, ctrt_event *from, ctrt_event *to)
{
    double ms = 0;
    check(ctrt_event_record(from, NULL));
    for (long i = 0; i < times; i++)
        f(argument);
    check(ctrt_event_record(to, NULL));
    check(ctrt_event_synchronize(to));
    check(ctrt_event_elapsed(&ms, from, to));
    return ms;
}

static void measure(const char *name, body *f, void *argument)
{
    ctrt_event *from = NULL, *to = NULL;
    double samples[11];
    long times = 1;
    check(ctrt_event_new(&from, device, true));
    check(ctrt_event_new(&to, device, true));
    for (int i = 0; i < 3; i++)
        f(argument);
    while (batch_ms(f, argument, times, from, to) < 2 && times < 1 << 16)
        times *= 2;
    for (int s = 0; s < 11; s++)
        samples[s] = batch_ms(f, argument, times, from, to) * 1e6 / (double)times;
    qsort(samples, 11, sizeof samples[0], timing_compare);
    printf("%s %.1f\n", name, samples[5]);
    fflush(stdout);
    ctrt_event_release(&from);
    ctrt_event_release(&to);
}

/* ---- ops on 1 GiB ---- */

struct operands {
    ctrt_tensor *x, *y, *out, *weight, *bias, *target;
};

static void free_operands(struct operands *o)
{
    ctrt_tensor_release(&o->x);
    ctrt_tensor_release(&o->y);
    ctrt_tensor_release(&o->out);
    ctrt_tensor_release(&o->weight);
    ctrt_tensor_release(&o->bias);
    ctrt_tensor_release(&o->target);
    check(ctrt_memory_empty_cache(device));
}

static void do_copy(void *a) { struct operands *o = a; check(ctrt_copy_(o->out, o->x)); }
static void do_add(void *a) { struct operands *o = a; check(ctrt_add(&o->out, o->x, o->y)); }
static void do_relu(void *a) { struct operands *o = a; check(ctrt_relu(&o->out, o->x)); }
static void do_exp(void *a) { struct operands *o = a; check(ctrt_exp(&o->out, o->x)); }
static void do_sum(void *a) { struct operands *o = a; check(ctrt_sum(&o->out, o->x, CTRT_ALL_DIMS)); }
static void do_sum_rows(void *a) { struct operands *o = a; check(ctrt_sum_dims(&o->out, o->x, CTRT_SHAPE(1), false)); }
static void do_sum_columns(void *a) { struct operands *o = a; check(ctrt_sum_dims(&o->out, o->x, CTRT_SHAPE(0), false)); }
static void do_softmax(void *a) { struct operands *o = a; check(ctrt_softmax(&o->out, o->x, 1)); }
static void do_layer_norm(void *a)
{
    struct operands *o = a;
    check(ctrt_layer_norm(&o->out, o->x, CTRT_SHAPE(ctrt_tensor_shape(o->x)[1]), o->weight, o->bias, 1e-5));
}
static void do_transpose(void *a)
{
    struct operands *o = a;
    ctrt_tensor *t = NULL;
    check(ctrt_transpose(&t, o->x, 0, 1));
    check(ctrt_contiguous(&o->out, t, CTRT_CONTIGUOUS_FORMAT));
    ctrt_tensor_release(&t);
}
static void do_matmul(void *a) { struct operands *o = a; check(ctrt_matmul(&o->out, o->x, o->y)); }

static void bandwidth(ctrt_dtype dtype)
{
    static const struct { const char *name; body *f; } cases[] = {
        { "copy", do_copy }, { "add", do_add }, { "relu", do_relu }, { "exp", do_exp }, { "sum", do_sum }, { "sum_rows", do_sum_rows },
        { "sum_columns", do_sum_columns }, { "softmax", do_softmax }, { "layer_norm", do_layer_norm }, { "transpose", do_transpose },
    };
    const int64_t rows = (1 << 30) / 4096 / (int64_t)ctrt_dtype_size(dtype) / scale, columns = 4096;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct operands o = { 0 };
        char name[64];
        check(ctrt_randn(&o.x, CTRT_SHAPE(rows, columns), dtype, device));
        if (cases[i].f == do_add)
            check(ctrt_randn(&o.y, CTRT_SHAPE(rows, columns), dtype, device));
        if (cases[i].f == do_copy)
            check(ctrt_empty(&o.out, CTRT_SHAPE(rows, columns), dtype, device));
        check(ctrt_ones(&o.weight, CTRT_SHAPE(columns), dtype, device));
        check(ctrt_zeros(&o.bias, CTRT_SHAPE(columns), dtype, device));
        snprintf(name, sizeof name, "%s_1g_%s", cases[i].name, ctrt_dtype_name(dtype));
        measure(name, cases[i].f, &o);
        free_operands(&o);
    }
}

static void products(void)
{
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F16, CTRT_BF16 };
    static const int64_t sizes[][3] = { { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 }, { 4096, 4096, 4096 }, { 8192, 8192, 8192 },
                                        { 8192, 16, 8192 }, { 16, 8192, 8192 } };
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct operands o = { 0 };
            const int64_t small = scale > 1 ? 64 : 1, m = (sizes[s][0] + small - 1) / small, n = (sizes[s][1] + small - 1) / small,
                          k = (sizes[s][2] + small - 1) / small;
            char name[64];
            check(ctrt_randn(&o.x, CTRT_SHAPE(m, k), dtypes[t], device));
            check(ctrt_randn(&o.y, CTRT_SHAPE(k, n), dtypes[t], device));
            snprintf(name, sizeof name, "matmul_%lldx%lldx%lld_%s", (long long)sizes[s][0], (long long)sizes[s][1], (long long)sizes[s][2],
                     ctrt_dtype_name(dtypes[t]));
            measure(name, do_matmul, &o);
            free_operands(&o);
        }
}

/* ---- launches: the host's time to put an op on the stream ---- */

static void launches(void)
{
    struct operands o = { 0 };
    double samples[31];
    check(ctrt_randn(&o.x, CTRT_SHAPE(64), CTRT_F32, device));
    check(ctrt_randn(&o.y, CTRT_SHAPE(64), CTRT_F32, device));
    for (int i = 0; i < 200; i++)
        do_add(&o);
    for (int s = 0; s < 31; s++) {
        check(ctrt_device_synchronize(device));
        const double begin = timing_now();
        for (int i = 0; i < 200; i++)           /* fewer than the driver's queue holds */
            do_add(&o);
        samples[s] = (timing_now() - begin) / 200 * 1e9;
    }
    qsort(samples, 31, sizeof samples[0], timing_compare);
    printf("enqueue_add_64 %.1f\n", samples[15]);
    for (int s = 0; s < 31; s++) {
        const double begin = timing_now();
        for (int i = 0; i < 1000; i++) {
            ctrt_tensor *fresh = NULL;
            check(ctrt_empty(&fresh, CTRT_SHAPE(64), CTRT_F32, device));
            ctrt_tensor_release(&fresh);
        }
        samples[s] = (timing_now() - begin) / 1000 * 1e9;
    }
    qsort(samples, 31, sizeof samples[0], timing_compare);
    printf("empty_64 %.1f\n", samples[15]);
    free_operands(&o);
}

/* ---- host to device ---- */

struct transfer { ctrt_tensor *host, *there; };

static void do_transfer(void *a)
{
    struct transfer *t = a;
    bool asynchronous;
    check(ctrt_copy_non_blocking_(t->there, t->host, &asynchronous));
}

static void transfers(void)
{
    struct transfer t = { 0 };
    const int64_t n = (256 << 20) / 4 / scale;
    check(ctrt_empty_pinned(&t.host, CTRT_SHAPE(n), CTRT_F32, device));
    check(ctrt_fill_(t.host, ctrt_float(1)));
    check(ctrt_empty(&t.there, CTRT_SHAPE(n), CTRT_F32, device));
    measure("pinned_to_device_256m", do_transfer, &t);
    ctrt_tensor_release(&t.host);
    ctrt_tensor_release(&t.there);
}

/* ---- training steps ---- */

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y, *loss;
    ctrt_graph *graph;
};

static void step(void *argument)
{
    struct training *t = argument;
    ctrt_tensor *h = NULL;
    check(ctrt_optimizer_zero_grad(t->optimizer, true));
    check(ctrt_forward(&h, t->model, t->x));
    check(ctrt_cross_entropy(&t->loss, h, t->y, NULL));
    check(ctrt_backward(t->loss));
    check(ctrt_optimizer_step(t->optimizer));
    ctrt_tensor_release(&h);
}

static void replay(void *argument)
{
    check(ctrt_capture_replay(((struct training *)argument)->graph));
}

static void training(const char *what, ctrt_module *model, ctrt_tensor *x, int64_t batch)
{
    struct training t = { .model = model, .x = x };
    char name[64];
    check(ctrt_sgd_new(&t.optimizer, t.model, &(ctrt_sgd_options){ .lr = 0.01, .momentum = 0.9 }));
    check(ctrt_randint(&t.y, 0, 10, CTRT_SHAPE(batch), CTRT_I64, device));
    measure(what, step, &t);
    check(ctrt_capture_begin(device));
    step(&t);
    check(ctrt_capture_end(&t.graph, device));
    snprintf(name, sizeof name, "%s_captured", what);
    measure(name, replay, &t);
    ctrt_graph_release(&t.graph);
    ctrt_tensor_release(&t.x);
    ctrt_tensor_release(&t.y);
    ctrt_tensor_release(&t.loss);
    ctrt_optimizer_release(&t.optimizer);
    ctrt_module_release(&t.model);
    check(ctrt_memory_empty_cache(device));
}

static void steps(void)
{
    static const int64_t batches[] = { 32, 4096 };
    for (int i = 0; i < 2; i++) {
        const int64_t batch = scale > 1 ? batches[i] / 16 : batches[i];
        ctrt_module *mlp = NULL, *cnn = NULL;
        ctrt_tensor *x = NULL, *images = NULL;
        char name[64];
        check(ctrt_sequential_new(&mlp, CTRT_MODULES(CTRT_NEW(linear, 784, 1024, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, 1024, 1024, true, NULL),
                                                     CTRT_NEW(relu), CTRT_NEW(linear, 1024, 10, true, NULL))));
        check(ctrt_randn(&x, CTRT_SHAPE(batch, 784), CTRT_F32, device));
        snprintf(name, sizeof name, "step_mlp_%lld", (long long)batches[i]);
        training(name, mlp, x, batch);
        const ctrt_conv2d_options same = { .padding = { 1, 1 } };
        const ctrt_pool2d_options halve = { .kernel = { 2, 2 } };
        check(ctrt_sequential_new(&cnn, CTRT_MODULES(
            CTRT_NEW(conv2d, 1, 32, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
            CTRT_NEW(conv2d, 32, 64, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
            CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 3136, 10, true, NULL))));
        check(ctrt_randn(&images, CTRT_SHAPE(batch, 1, 28, 28), CTRT_F32, device));
        snprintf(name, sizeof name, "step_cnn_%lld", (long long)batches[i]);
        training(name, cnn, images, batch);
    }
}

int main(int argc, char **argv)
{
    const char *name = "cuda:0";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "small") == 0)
            scale = 4096;
        else
            name = argv[i];
    check(ctrt_device_get(&device, name));
    check(ctrt_set_default_device(device));
    ctrt_manual_seed(1);
    launches();
    bandwidth(CTRT_F32);
    bandwidth(CTRT_BF16);
    products();
    transfers();
    steps();
    return 0;
}
