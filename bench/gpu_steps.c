/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_steps.c: training steps of an MLP, a CNN on 28x28, and a transformer (d = 512, 8 layers, T = 512), with
 * AdamW; eager and captured; in f32, in bf16, and in f32 with autocast to f16 and a gradient scaler ("amp"). It also
 * prints the peak of the memory that a step allocates, as "memory_NAME BYTES". */
#include "gpu.h"
#include "transformer.h"

struct sizes { int64_t width, heads, layers, length, vocabulary; };

static struct sizes sizes_of(void)
{
    return gpu_small ? (struct sizes){ 16, 2, 2, 8, 20 } : (struct sizes){ 512, 8, 8, 512, 1000 };
}

/* ---- steps ---- */

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_grad_scaler *scaler;               /* NULL: without autocast */
    ctrt_tensor *x, *y, *loss;
    ctrt_graph *graph;
};

static ctrt_status forward(struct training *t)
{
    CTRT_AUTO(tensor) h = NULL;
    CTRT_TRY(ctrt_forward(&h, t->model, t->x));
    return ctrt_cross_entropy(&t->loss, h, t->y, NULL);
}

static ctrt_status step(struct training *t)
{
    CTRT_AUTO(tensor) scaled = NULL;
    CTRT_TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    if (t->scaler == NULL) {
        CTRT_TRY(forward(t));
        CTRT_TRY(ctrt_backward(t->loss));
        return ctrt_optimizer_step(t->optimizer);
    }
    CTRT_TRY(ctrt_autocast_push(NULL, &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_F16)));
    const ctrt_status status = forward(t);
    CTRT_TRY(ctrt_autocast_pop());
    CTRT_TRY(status);
    CTRT_TRY(ctrt_grad_scaler_scale(&scaled, t->scaler, t->loss));
    CTRT_TRY(ctrt_backward(scaled));
    CTRT_TRY(ctrt_grad_scaler_step(t->scaler, t->optimizer));
    return ctrt_grad_scaler_update(t->scaler, 0);
}

static ctrt_status eager(void *argument)
{
    return step(argument);
}

static ctrt_status replay(void *argument)
{
    return ctrt_capture_replay(((struct training *)argument)->graph);
}

static ctrt_status capture(struct training *t)
{
    CTRT_TRY(ctrt_capture_begin(gpu));
    (void)step(t);                          /* ctrt_capture_end returns its error */
    return ctrt_capture_end(&t->graph, gpu);
}

/* Prints the peak of the memory of one step, without the caches of the memory policy. */
static ctrt_status peak(const char *name, struct training *t)
{
    ctrt_memory_reset_peak(gpu);
    CTRT_TRY(step(t));
    CTRT_TRY(ctrt_device_synchronize(gpu));
    printf("memory_%s %llu\n", name, (unsigned long long)ctrt_memory_max_allocated(gpu));
    return CTRT_OK;
}

static ctrt_status train(const char *name, struct training *t, int64_t outputs, int64_t classes, ctrt_dtype dtype)
{
    double before = 0, after = 0;
    char captured[80];
    CTRT_TRY(ctrt_module_to(t->model, gpu, dtype));
    if (ctrt_tensor_dtype(t->x) != CTRT_I64)
        CTRT_TRY(ctrt_to_dtype(&t->x, t->x, dtype));
    CTRT_TRY(ctrt_randint(&t->y, 0, classes, CTRT_SHAPE(outputs), CTRT_I64, gpu));
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 1e-4;
    CTRT_TRY(ctrt_adamw_new(&t->optimizer, t->model, &adamw));
    CTRT_TRY(step(t));
    CTRT_TRY(ctrt_item(&before, t->loss));
    CTRT_TRY(peak(name, t));
    gpu_measure(name, eager, t, 0);
    CTRT_TRY(ctrt_item(&after, t->loss));
    if (!(after < 1e6))                     /* also true for NaN */
        return ctrt_fail(CTRT_ERR_STATE, "the loss went from %g to %g", before, after);
    if (!(after < before))
        fprintf(stderr, "bench-gpu: note: %s: the loss did not fall: %g, then %g\n", name, before, after);
    snprintf(captured, sizeof captured, "%s_captured", name);
    if (gpu_case(captured, capture(t)))
        gpu_measure(captured, replay, t, 0);
    return CTRT_OK;
}

/* `outputs`: the number of rows of the loss. */
struct problem { int64_t outputs, classes; };

static ctrt_status mlp(struct training *t, struct problem *p, int64_t batch)
{
    const int64_t hidden = gpu_small ? 32 : 1024;
    *p = (struct problem){ batch, 10 };
    CTRT_TRY(ctrt_sequential_new(&t->model, CTRT_MODULES(CTRT_NEW(linear, 784, hidden, true, NULL), CTRT_NEW(relu),
                                                         CTRT_NEW(linear, hidden, hidden, true, NULL), CTRT_NEW(relu),
                                                         CTRT_NEW(linear, hidden, 10, true, NULL))));
    return ctrt_randn(&t->x, CTRT_SHAPE(batch, 784), CTRT_F32, gpu);
}

static ctrt_status cnn(struct training *t, struct problem *p, int64_t batch)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_pool2d_options halve = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    const int64_t wide = gpu_small ? 2 : 32;
    *p = (struct problem){ batch, 10 };
    CTRT_TRY(ctrt_sequential_new(&t->model, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, wide, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(conv2d, wide, 2 * wide, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 98 * wide, 10, true, NULL))));
    return ctrt_randn(&t->x, CTRT_SHAPE(batch, 1, 28, 28), CTRT_F32, gpu);
}

static ctrt_status transformer(struct training *t, struct problem *p, int64_t batch)
{
    const struct sizes s = sizes_of();
    ctrt_module *body = NULL;
    *p = (struct problem){ batch * s.length, s.vocabulary };
    CTRT_TRY(transformer_new(&body, s.width, s.heads, (int)s.layers));
    CTRT_TRY(ctrt_sequential_new(&t->model, CTRT_MODULES(CTRT_NEW(embedding, s.vocabulary, s.width, NULL, NULL), body,
                                                         CTRT_NEW(layer_norm, CTRT_SHAPE(s.width), NULL, NULL),
                                                         CTRT_NEW(linear, s.width, s.vocabulary, true, NULL),
                                                             CTRT_NEW(flatten, 0, 1))));
    return ctrt_randint(&t->x, 0, s.vocabulary, CTRT_SHAPE(batch, s.length), CTRT_I64, gpu);
}

static ctrt_status run(const char *name, ctrt_status (*make)(struct training *t, struct problem *p, int64_t batch),
                       struct training *t,
                       int64_t batch, ctrt_dtype dtype)
{
    struct problem p;
    CTRT_TRY(make(t, &p, batch));
    return train(name, t, p.outputs, p.classes, dtype);
}

void gpu_steps(void)
{
    static const struct {
        const char *name;
        ctrt_status (*make)(struct training *t, struct problem *p, int64_t batch);
        int64_t small, large;
    } models[] = {
        { "mlp", mlp, 32, 4096 }, { "cnn", cnn, 32, 4096 }, { "transformer", transformer, 1, 32 },
    };
    static const struct { const char *name; ctrt_dtype dtype; bool scaled; } kinds[] = {
        { "f32", CTRT_F32, false }, { "bf16", CTRT_BF16, false }, { "amp", CTRT_F32, true },
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            for (int large = 0; large < 2; large++) {
                const int64_t batch = large ? models[m].large : models[m].small;
                struct training t = { 0 };
                char name[64];
                snprintf(name, sizeof name, "step_%s_%s_%s", models[m].name, large ? "large" : "small",
                         kinds[k].name);
                if (!gpu_wanted(name))
                    continue;
                if (!kinds[k].scaled || gpu_case(name, ctrt_grad_scaler_new(&t.scaler, NULL)))
                    gpu_case(name, run(name, models[m].make, &t, gpu_small ? (batch + 511) / 512 : batch,
                                       kinds[k].dtype));
                ctrt_graph_release(&t.graph);
                ctrt_tensor_release(&t.x);
                ctrt_tensor_release(&t.y);
                ctrt_tensor_release(&t.loss);
                ctrt_optimizer_release(&t.optimizer);
                ctrt_grad_scaler_release(&t.scaler);
                ctrt_module_release(&t.model);
                gpu_case("ctrt_memory_empty_cache", ctrt_memory_empty_cache(gpu));
            }
}
