/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_steps.c: training steps of an MLP, a CNN on 28x28, and a transformer (d = 512, 8 layers, T = 512), with AdamW; op by op, and captured. */
#include "gpu.h"

/* ---- the transformer ---- */

struct sizes { int64_t width, heads, layers, length, vocabulary; };

static struct sizes sizes_of(void)
{
    return gpu_small ? (struct sizes){ 16, 2, 2, 8, 20 } : (struct sizes){ 512, 8, 8, 512, 1000 };
}

struct block { ctrt_module *ln1, *attention, *ln2, *mlp; };

static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct block *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = ctrt_tensor_retain(inputs[0]), h = NULL;
    (void)count;
    CTRT_TRY(ctrt_forward(&h, b->ln1, x));
    CTRT_TRY(ctrt_forward(&h, b->attention, h));
    CTRT_TRY(ctrt_add(&x, x, h));
    CTRT_TRY(ctrt_forward(&h, b->ln2, x));
    CTRT_TRY(ctrt_forward(&h, b->mlp, h));
    return ctrt_add(y, x, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
};

static ctrt_status block_new(ctrt_module **out, const struct sizes *s)
{
    CTRT_TRY(ctrt_module_new(out, &block_class));
    struct block *b = ctrt_module_state(*out);
    b->ln1 = CTRT_NEW(layer_norm, CTRT_SHAPE(s->width), 0, true, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "ln1", b->ln1));
    b->attention = CTRT_NEW(multihead_attention, s->width, s->heads, 0, true, true, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "attention", b->attention));
    b->ln2 = CTRT_NEW(layer_norm, CTRT_SHAPE(s->width), 0, true, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "ln2", b->ln2));
    b->mlp = CTRT_NEW(sequential, CTRT_MODULES(CTRT_NEW(linear, s->width, 4 * s->width, true, NULL), CTRT_NEW(gelu, true),
                                               CTRT_NEW(linear, 4 * s->width, s->width, true, NULL)));
    return ctrt_module_add_module(*out, "mlp", b->mlp);
}

static ctrt_status body_new(ctrt_module **out, const struct sizes *s)
{
    ctrt_module *blocks[8] = { NULL };
    for (int64_t i = 0; i < s->layers; i++) {
        const ctrt_status status = block_new(&blocks[i], s);
        if (status != CTRT_OK) {
            for (int64_t k = 0; k <= i; k++)
                ctrt_module_release(&blocks[k]);
            return status;
        }
    }
    return ctrt_sequential_new(out, ctrt_modules_of(blocks, (int)s->layers));
}

/* ---- steps ---- */

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y, *loss;
    ctrt_graph *graph;
};

static ctrt_status step(struct training *t)
{
    CTRT_AUTO(tensor) h = NULL;
    CTRT_TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    CTRT_TRY(ctrt_forward(&h, t->model, t->x));
    CTRT_TRY(ctrt_cross_entropy(&t->loss, h, t->y, NULL));
    CTRT_TRY(ctrt_backward(t->loss));
    return ctrt_optimizer_step(t->optimizer);
}

static void eager(void *argument)
{
    gpu_check(step(argument));
}

static void replay(void *argument)
{
    gpu_check(ctrt_capture_replay(((struct training *)argument)->graph));
}

static bool capture(struct training *t)
{
    gpu_check(ctrt_capture_begin(gpu));
    (void)step(t);                          /* what is refused comes out at the end */
    return ctrt_capture_end(&t->graph, gpu) == CTRT_OK;
}

static double loss_of(const struct training *t)
{
    double value = 0;
    gpu_check(ctrt_item(&value, t->loss));
    return value;
}

/* `outputs`: how many rows the loss has. The model and the input become this function's. */
static void train(const char *name, ctrt_module *model, ctrt_tensor *x, int64_t outputs, int64_t classes, ctrt_dtype dtype)
{
    struct training t = { .model = model, .x = x };
    char captured[80];
    gpu_check(ctrt_module_to(t.model, gpu, dtype));
    if (ctrt_tensor_dtype(t.x) != CTRT_I64)
        gpu_check(ctrt_to_dtype(&t.x, t.x, dtype));
    gpu_check(ctrt_randint(&t.y, 0, classes, CTRT_SHAPE(outputs), CTRT_I64, gpu));
    gpu_check(ctrt_adamw_new(&t.optimizer, t.model, &(ctrt_adamw_options){ .lr = 1e-4, .weight_decay = 0.01 }));
    gpu_check(step(&t));
    const double before = loss_of(&t);
    gpu_measure(name, eager, &t, 0);
    const double after = loss_of(&t);
    if (!(after < 1e6)) {                   /* NaN too */
        fprintf(stderr, "bench-gpu: %s: the loss went from %g to %g\n", name, before, after);
        exit(1);
    }
    if (!(after < before))
        fprintf(stderr, "bench-gpu: note: %s: the loss did not fall: %g, then %g\n", name, before, after);
    snprintf(captured, sizeof captured, "%s_captured", name);
    if (!capture(&t)) {
        fprintf(stderr, "bench-gpu: note: %s has SGD: %s\n", captured, ctrt_error_message());
        ctrt_optimizer_release(&t.optimizer);
        gpu_check(ctrt_sgd_new(&t.optimizer, t.model, &(ctrt_sgd_options){ .lr = 1e-3, .momentum = 0.9 }));
        gpu_check(step(&t));
        gpu_check(step(&t));
        if (!capture(&t))
            gpu_check(ctrt_fail(CTRT_ERR_STATE, "%s: %s", captured, ctrt_error_message()));
    }
    gpu_measure(captured, replay, &t, 0);
    ctrt_graph_release(&t.graph);
    ctrt_tensor_release(&t.x);
    ctrt_tensor_release(&t.y);
    ctrt_tensor_release(&t.loss);
    ctrt_optimizer_release(&t.optimizer);
    ctrt_module_release(&t.model);
    gpu_check(ctrt_memory_empty_cache(gpu));
}

static void mlp(const char *name, int64_t batch, ctrt_dtype dtype)
{
    ctrt_module *model = NULL;
    ctrt_tensor *x = NULL;
    const int64_t hidden = gpu_small ? 32 : 1024;
    gpu_check(ctrt_sequential_new(&model, CTRT_MODULES(CTRT_NEW(linear, 784, hidden, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, hidden, hidden, true, NULL),
                                                       CTRT_NEW(relu), CTRT_NEW(linear, hidden, 10, true, NULL))));
    gpu_check(ctrt_randn(&x, CTRT_SHAPE(batch, 784), CTRT_F32, gpu));
    train(name, model, x, batch, 10, dtype);
}

static void cnn(const char *name, int64_t batch, ctrt_dtype dtype)
{
    const ctrt_conv2d_options same = { .padding = { 1, 1 } };
    const ctrt_pool2d_options halve = { .kernel = { 2, 2 } };
    const int64_t wide = gpu_small ? 2 : 32;
    ctrt_module *model = NULL;
    ctrt_tensor *x = NULL;
    gpu_check(ctrt_sequential_new(&model, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, wide, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(conv2d, wide, 2 * wide, 3, 3, &same, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 98 * wide, 10, true, NULL))));
    gpu_check(ctrt_randn(&x, CTRT_SHAPE(batch, 1, 28, 28), CTRT_F32, gpu));
    train(name, model, x, batch, 10, dtype);
}

static void transformer(const char *name, int64_t batch, ctrt_dtype dtype)
{
    const struct sizes s = sizes_of();
    ctrt_module *model = NULL, *body = NULL;
    ctrt_tensor *x = NULL;
    gpu_check(body_new(&body, &s));
    gpu_check(ctrt_sequential_new(&model, CTRT_MODULES(CTRT_NEW(embedding, s.vocabulary, s.width, -1, NULL), body,
                                                       CTRT_NEW(layer_norm, CTRT_SHAPE(s.width), 0, true, NULL),
                                                       CTRT_NEW(linear, s.width, s.vocabulary, true, NULL), CTRT_NEW(flatten, 0, 1))));
    gpu_check(ctrt_randint(&x, 0, s.vocabulary, CTRT_SHAPE(batch, s.length), CTRT_I64, gpu));
    train(name, model, x, batch * s.length, s.vocabulary, dtype);
}

void gpu_steps(void)
{
    static const struct { const char *name; void (*run)(const char *name, int64_t batch, ctrt_dtype dtype); int64_t small, large; } models[] = {
        { "mlp", mlp, 32, 4096 }, { "cnn", cnn, 32, 4096 }, { "transformer", transformer, 1, 32 },
    };
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16 };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++)
            for (int large = 0; large < 2; large++) {
                const int64_t batch = large ? models[m].large : models[m].small;
                char name[64];
                snprintf(name, sizeof name, "step_%s_%s_%s", models[m].name, large ? "large" : "small", ctrt_dtype_name(dtypes[t]));
                models[m].run(name, gpu_small ? (batch + 63) / 64 : batch, dtypes[t]);
            }
}
