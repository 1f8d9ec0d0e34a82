/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu.c: measures one GPU. Prints "NAME NANOSECONDS [BYTES]" lines, and for steps "memory_NAME BYTES" lines;
 * peers/gpu_torch.py prints the same names for PyTorch, and gpu.sh runs both. The lines cublas_* and driver_* measure
 * direct calls of those libraries, for comparison; PyTorch has no overlap_* lines.
 *
 *     bench-gpu [DEVICE] [SECTION...] [only=PATTERN] [small] [trace=FILE]
 *
 * SECTION: smoke, launches, products, tf32, attention, convolution, index, softmax, norms, cross-entropy, optimizers,
 * bandwidth, transfers, overlap, steps; the default is all but smoke and tf32. tf32 needs a separate process because
 * CTRT_CUDA_TF32 is read once. only: cases whose name matches the shell pattern. small: sizes for a software driver;
 * the times mean nothing. trace: the file into which overlap writes when each copy and product ran. A case that fails
 * is reported on stderr, the other cases are still measured, and the exit status is 1. */
#include "gpu.h"

#include <fnmatch.h>
#include <string.h>

ctrt_device *gpu;
bool gpu_small, gpu_failed;
static const char *only;

void gpu_check(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-gpu: %s\n", ctrt_error_message());
    exit(1);
}

bool gpu_case(const char *name, ctrt_status status)
{
    if (status == CTRT_OK)
        return true;
    fprintf(stderr, "bench-gpu: %s failed: %s\n", name, ctrt_error_message());
    gpu_failed = true;
    return false;
}

bool gpu_wanted(const char *name)
{
    return only == NULL || fnmatch(only, name, 0) == 0;
}

/* ---- timing with device events ---- */

enum { SAMPLES = 11 };

static ctrt_status sample(double *median, gpu_batch *batch, void *argument)
{
    double samples[SAMPLES], ms = 0;
    long times = 1;
    CTRT_TRY(batch(&ms, argument, 3));
    for (;;) {
        CTRT_TRY(batch(&ms, argument, times));
        if (ms >= (gpu_small ? 0.01 : 2) || times >= 1 << 16)
            break;
        times *= 2;
    }
    const int count = gpu_small ? 1 : SAMPLES;
    for (int s = 0; s < count; s++) {
        CTRT_TRY(batch(&ms, argument, times));
        samples[s] = ms * 1e6 / (double)times;
    }
    qsort(samples, (size_t)count, sizeof samples[0], timing_compare);
    *median = samples[count / 2];
    return CTRT_OK;
}

void gpu_report(const char *name, gpu_batch *batch, void *argument, double bytes)
{
    double median = 0;
    if (!gpu_wanted(name) || !gpu_case(name, sample(&median, batch, argument)))
        return;
    if (bytes > 0)
        printf("%s %.1f %.0f\n", name, median, bytes);
    else
        printf("%s %.1f\n", name, median);
    fflush(stdout);
}

struct measured { gpu_body *body; void *argument; ctrt_event *from, *to; };

static ctrt_status batch_here(double *ms, void *argument, long times)
{
    struct measured *m = argument;
    CTRT_TRY(ctrt_event_record(m->from, NULL));
    for (long i = 0; i < times; i++)
        CTRT_TRY(m->body(m->argument));
    CTRT_TRY(ctrt_event_record(m->to, NULL));
    CTRT_TRY(ctrt_event_synchronize(m->to));
    return ctrt_event_elapsed(ms, m->from, m->to);
}

void gpu_measure(const char *name, gpu_body *body, void *argument, double bytes)
{
    struct measured m = { .body = body, .argument = argument };
    if (gpu_case(name, ctrt_event_new(&m.from, gpu, true)) && gpu_case(name, ctrt_event_new(&m.to, gpu, true)))
        gpu_report(name, batch_here, &m, bytes);
    ctrt_event_release(&m.from);
    ctrt_event_release(&m.to);
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
    gpu_check(ctrt_memory_empty_cache(gpu));
}

static ctrt_status do_copy(void *a) { struct operands *o = a; return ctrt_copy_(o->out, o->x); }
static ctrt_status do_add(void *a) { struct operands *o = a; return ctrt_add(&o->out, o->x, o->y); }
static ctrt_status do_relu(void *a) { struct operands *o = a; return ctrt_relu(&o->out, o->x); }
static ctrt_status do_exp(void *a) { struct operands *o = a; return ctrt_exp(&o->out, o->x); }
static ctrt_status do_sum(void *a) { struct operands *o = a; return ctrt_sum(&o->out, o->x, CTRT_ALL_DIMS); }
static ctrt_status do_sum_rows(void *a)
{
    struct operands *o = a;
    return ctrt_sum_dims(&o->out, o->x, CTRT_SHAPE(1), false);
}
static ctrt_status do_sum_columns(void *a)
{
    struct operands *o = a;
    return ctrt_sum_dims(&o->out, o->x, CTRT_SHAPE(0), false);
}
static ctrt_status do_softmax(void *a) { struct operands *o = a; return ctrt_softmax(&o->out, o->x, 1); }
static ctrt_status do_layer_norm(void *a)
{
    struct operands *o = a;
    return ctrt_layer_norm(&o->out, o->x, CTRT_SHAPE(ctrt_tensor_shape(o->x)[1]), o->weight, o->bias, 1e-5);
}
static ctrt_status do_transpose(void *a)
{
    struct operands *o = a;
    CTRT_AUTO(tensor) t = NULL;
    CTRT_TRY(ctrt_transpose(&t, o->x, 0, 1));
    return ctrt_contiguous(&o->out, t, CTRT_CONTIGUOUS_FORMAT);
}
static ctrt_status do_matmul(void *a) { struct operands *o = a; return ctrt_matmul(&o->out, o->x, o->y); }

static ctrt_status do_gelu(void *a) { struct operands *o = a; return ctrt_gelu(&o->out, o->x, false); }
static ctrt_status do_amax(void *a) { struct operands *o = a; return ctrt_amax(&o->out, o->x, CTRT_SHAPE(1), false); }
static ctrt_status do_slice(void *a)               /* half of each row */
{
    struct operands *o = a;
    CTRT_AUTO(tensor) t = NULL;
    CTRT_TRY(ctrt_narrow(&t, o->x, 1, 8, ctrt_tensor_shape(o->x)[1] / 2));
    return ctrt_contiguous(&o->out, t, CTRT_CONTIGUOUS_FORMAT);
}

static ctrt_status make_operands(struct operands *o, gpu_body *f, int64_t rows, int64_t columns, ctrt_dtype dtype)
{
    CTRT_TRY(ctrt_randn(&o->x, CTRT_SHAPE(rows, columns), dtype, gpu));
    if (f == do_add)
        CTRT_TRY(ctrt_randn(&o->y, CTRT_SHAPE(rows, columns), dtype, gpu));
    if (f == do_copy)
        CTRT_TRY(ctrt_empty(&o->out, CTRT_SHAPE(rows, columns), dtype, gpu));
    CTRT_TRY(ctrt_ones(&o->weight, CTRT_SHAPE(columns), dtype, gpu));
    return ctrt_zeros(&o->bias, CTRT_SHAPE(columns), dtype, gpu);
}

/* `moved`: bytes read and written, in multiples of the operand's bytes. */
static void bandwidth(ctrt_dtype dtype)
{
    static const struct { const char *name; gpu_body *f; double moved; } cases[] = {
        { "copy", do_copy, 2 }, { "add", do_add, 3 }, { "relu", do_relu, 2 }, { "exp", do_exp, 2 },
        { "gelu", do_gelu, 2 }, { "sum", do_sum, 1 },
        { "sum_rows", do_sum_rows, 1 }, { "sum_columns", do_sum_columns, 1 }, { "amax_rows", do_amax, 1 },
        { "softmax", do_softmax, 2 },
        { "layer_norm", do_layer_norm, 2 }, { "transpose", do_transpose, 2 }, { "slice", do_slice, 1 },
    };
    const int64_t columns = gpu_small ? 256 : 4096;
    const int64_t rows = gpu_small ? 16 : (1 << 30) / columns / (int64_t)ctrt_dtype_size(dtype);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct operands o = { 0 };
        char name[64];
        snprintf(name, sizeof name, "%s_1g_%s", cases[i].name, ctrt_dtype_name(dtype));
        if (gpu_wanted(name) && gpu_case(name, make_operands(&o, cases[i].f, rows, columns, dtype)))
            gpu_measure(name, cases[i].f, &o, cases[i].moved * (double)(rows * columns) *
                        (double)ctrt_dtype_size(dtype));
        free_operands(&o);
    }
}

/* Measures each product with ctrt, then the same product with a direct call of cuBLAS. */
static void products(ctrt_dtype dtype, const char *dtype_name)
{
    static const int64_t sizes[][3] = { { 512, 512, 512 }, { 1024, 1024, 1024 }, { 2048, 2048, 2048 },
                                        { 4096, 4096, 4096 }, { 8192, 8192, 8192 },
                                        { 8192, 16, 8192 }, { 16, 8192, 8192 } };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct operands o = { 0 };
        const int64_t part = gpu_small ? 64 : 1;
        const int64_t m = (sizes[s][0] + part - 1) / part, n = (sizes[s][1] + part - 1) / part,
                      k = (sizes[s][2] + part - 1) / part;
        char name[64], direct[72];
        snprintf(name, sizeof name, "matmul_%lldx%lldx%lld_%s", (long long)sizes[s][0], (long long)sizes[s][1],
                 (long long)sizes[s][2], dtype_name);
        snprintf(direct, sizeof direct, "cublas_%s", name);
        if (gpu_wanted(name) && gpu_case(name, ctrt_randn(&o.x, CTRT_SHAPE(m, k), dtype, gpu)) &&
            gpu_case(name, ctrt_randn(&o.y, CTRT_SHAPE(k, n), dtype, gpu))) {
            gpu_measure(name, do_matmul, &o, 0);
            if (gpu_case(name, ctrt_device_synchronize(gpu)))
                gpu_direct_product(m, n, k, dtype_name, direct, ctrt_tensor_data(o.x), ctrt_tensor_data(o.y));
        }
        free_operands(&o);
    }
}

/* ---- launches: host time to enqueue an op ---- */

static void launches(void)
{
    struct operands o = { 0 };
    double samples[31];
    gpu_check(ctrt_randn(&o.x, CTRT_SHAPE(64), CTRT_F32, gpu));
    gpu_check(ctrt_randn(&o.y, CTRT_SHAPE(64), CTRT_F32, gpu));
    for (int i = 0; i < 200; i++)
        gpu_check(do_add(&o));
    for (int s = 0; s < 31; s++) {
        gpu_check(ctrt_device_synchronize(gpu));
        const double begin = timing_now();
        for (int i = 0; i < 200; i++)           /* fewer than the driver's queue holds */
            gpu_check(do_add(&o));
        samples[s] = (timing_now() - begin) / 200 * 1e9;
    }
    qsort(samples, 31, sizeof samples[0], timing_compare);
    printf("enqueue_add_64 %.1f\n", samples[15]);
    for (int s = 0; s < 31; s++) {
        const double begin = timing_now();
        for (int i = 0; i < 1000; i++) {
            ctrt_tensor *fresh = NULL;
            gpu_check(ctrt_empty(&fresh, CTRT_SHAPE(64), CTRT_F32, gpu));
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

static ctrt_status do_transfer(void *a)
{
    struct transfer *t = a;
    bool asynchronous;
    return ctrt_copy_non_blocking_(t->there, t->host, &asynchronous);
}

static void transfers(void)
{
    struct transfer t = { 0 };
    const int64_t n = (gpu_small ? 65536 : 256 << 20) / 4;
    gpu_check(ctrt_empty_pinned(&t.host, CTRT_SHAPE(n), CTRT_F32, gpu));
    gpu_check(ctrt_fill_(t.host, ctrt_float(1)));
    gpu_check(ctrt_empty(&t.there, CTRT_SHAPE(n), CTRT_F32, gpu));
    gpu_measure("pinned_to_device_256m", do_transfer, &t, (double)n * 4);
    gpu_check(ctrt_device_synchronize(gpu));
    gpu_direct_copy("driver_pinned_to_device_256m", (size_t)n * 4);
    ctrt_tensor_release(&t.host);
    ctrt_tensor_release(&t.there);
}

/* ---- sections ---- */

static const char *trace;

static void all_bandwidth(void) { bandwidth(CTRT_F32); bandwidth(CTRT_BF16); }
static void all_products(void) { products(CTRT_F32, "f32"); products(CTRT_F16, "f16"); products(CTRT_BF16, "bf16"); }
static void products_tf32(void) { products(CTRT_F32, "tf32"); }
static void overlap(void) { gpu_overlap(trace); }

static const struct { const char *name; void (*run)(void); bool by_default; } sections[] = {
    { "smoke", gpu_smoke, false }, { "launches", launches, true }, { "products", all_products, true },
    { "tf32", products_tf32, false },
    { "attention", gpu_attention, true }, { "convolution", gpu_convolution, true }, { "index", gpu_index, true },
    { "softmax", gpu_softmax, true },
    { "norms", gpu_norms, true }, { "cross-entropy", gpu_cross_entropy, true }, { "optimizers", gpu_optimizers, true },
    { "bandwidth", all_bandwidth, true }, { "transfers", transfers, true }, { "overlap", overlap, true },
    { "steps", gpu_steps, true },
};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

int main(int argc, char **argv)
{
    const char *name = "cuda:0";
    bool wanted[SECTIONS] = { false }, any = false, tf32 = false;
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (int s = 0; s < SECTIONS; s++)
            if (strcmp(argv[i], sections[s].name) == 0)
                known = any = wanted[s] = true;
        tf32 = tf32 || strcmp(argv[i], "tf32") == 0;
        if (strcmp(argv[i], "small") == 0)
            known = gpu_small = true;
        if (strncmp(argv[i], "trace=", 6) == 0)
            known = (trace = argv[i] + 6) != NULL;
        if (strncmp(argv[i], "only=", 5) == 0)
            known = (only = argv[i] + 5) != NULL;
        if (!known)
            name = argv[i];
    }
    if (tf32)
        setenv("CTRT_CUDA_TF32", "yes", 1);
    gpu_check(ctrt_device_get(&gpu, name));
    gpu_check(ctrt_set_default_device(gpu));
    ctrt_manual_seed(1);
    for (int s = 0; s < SECTIONS; s++)
        if (any ? wanted[s] : sections[s].by_default)
            sections[s].run();
    return gpu_failed;
}
