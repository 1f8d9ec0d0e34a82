/* SPDX-License-Identifier: Apache-2.0 */
/* bench/gpu_ops.c: single ops as models use them, forward (NAME) and forward with backward (NAME_train).
 * peers/gpu_torch.py has the same table. */
#include "gpu.h"

#include <string.h>

enum { OPERANDS = 3, RANK = 4 };

struct op;

struct op_case {
    const char *name;
    ctrt_status (*forward)(struct op *o);
    int64_t shapes[OPERANDS][RANK];         /* of the floating operands, which get gradients; 0 ends a shape */
    int64_t index[2], below;                /* shape of the integer operand; its values are in [0, below) */
};

struct op {
    const struct op_case *c;
    ctrt_tensor *x[OPERANDS], *index, *y, *dy, *dx[OPERANDS];
    int count;
};

/* With `small`, each size is divided by 512 but is at least 2. Equal sizes stay equal. */
static int64_t scaled(int64_t size)
{
    return !gpu_small || size <= 2 ? size : size / 512 > 2 ? size / 512 : 2;
}

static ctrt_ints shape_of(int64_t out[RANK], const int64_t *sizes, int most)
{
    int rank = 0;
    for (; rank < most && sizes[rank] != 0; rank++)
        out[rank] = scaled(sizes[rank]);
    return ctrt_ints_of(out, rank);
}

static ctrt_status op_make(struct op *o, const struct op_case *c, ctrt_dtype dtype, ctrt_memory_format format)
{
    int64_t shape[RANK];
    *o = (struct op){ .c = c };
    for (; o->count < OPERANDS && c->shapes[o->count][0] != 0; o->count++) {
        CTRT_TRY(ctrt_randn(&o->x[o->count], shape_of(shape, c->shapes[o->count], RANK), dtype, gpu));
        CTRT_TRY(ctrt_contiguous(&o->x[o->count], o->x[o->count], format));
        CTRT_TRY(ctrt_tensor_require_grad(o->x[o->count], true));
    }
    if (c->below != 0)
        CTRT_TRY(ctrt_randint(&o->index, 0, scaled(c->below), shape_of(shape, c->index, 2), CTRT_I64, gpu));
    return CTRT_OK;
}

static void op_free(struct op *o)
{
    for (int i = 0; i < OPERANDS; i++) {
        ctrt_tensor_release(&o->x[i]);
        ctrt_tensor_release(&o->dx[i]);
    }
    ctrt_tensor_release(&o->index);
    ctrt_tensor_release(&o->y);
    ctrt_tensor_release(&o->dy);
    gpu_case("ctrt_memory_empty_cache", ctrt_memory_empty_cache(gpu));
}

static ctrt_status forward(void *argument)
{
    struct op *o = argument;
    const bool was = ctrt_set_grad_enabled(false);
    const ctrt_status status = o->c->forward(o);
    ctrt_set_grad_enabled(was);
    return status;
}

static ctrt_status forward_backward(void *argument)
{
    struct op *o = argument;
    CTRT_TRY(o->c->forward(o));
    if (o->dy == NULL)
        CTRT_TRY(ctrt_ones_like(&o->dy, o->y, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_grad(o->dx, o->y, o->x, o->count, o->dy, false, false, false);
}

static void measure(const struct op_case *cases, size_t count, ctrt_memory_format format)
{
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16 };
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; k++) {
            struct op o = { 0 };
            char name[96], train[104];
            snprintf(name, sizeof name, "%s%s_%s", cases[i].name, format == CTRT_CHANNELS_LAST ? "_nhwc" : "",
                     ctrt_dtype_name(dtypes[k]));
            snprintf(train, sizeof train, "%s_train", name);
            if (!gpu_wanted(name) && !gpu_wanted(train))
                continue;
            if (gpu_case(name, op_make(&o, &cases[i], dtypes[k], format))) {
                gpu_measure(name, forward, &o, 0);
                gpu_measure(train, forward_backward, &o, 0);
            }
            op_free(&o);
        }
}
#define MEASURE(cases, format) measure(cases, sizeof cases / sizeof cases[0], format)

/* ---- attention: [batch, heads, rows, columns] ---- */

static ctrt_status causal(struct op *o)
{
    return ctrt_scaled_dot_product_attention(&o->y, o->x[0], o->x[1], o->x[2], NULL, &CTRT_WITH(ctrt_attention_options,
                                                                                                .causal = true));
}
static ctrt_status full(struct op *o)
{
    return ctrt_scaled_dot_product_attention(&o->y, o->x[0], o->x[1], o->x[2], NULL, NULL);
}

void gpu_attention(void)
{
    static const struct op_case cases[] = {
        { "attention_causal_32x8x512x64", causal, { { 32, 8, 512, 64 }, { 32, 8, 512, 64 }, { 32, 8, 512, 64 } }, { 0 },
          0 },
        { "attention_causal_4x16x4096x128", causal, { { 4, 16, 4096, 128 }, { 4, 16, 4096, 128 },
                                                      { 4, 16, 4096, 128 } }, { 0 }, 0 },
        { "attention_full_16x12x1024x64", full, { { 16, 12, 1024, 64 }, { 16, 12, 1024, 64 }, { 16, 12, 1024, 64 } },
          { 0 }, 0 },
        /* one row, as when a model generates one token after the other */
        { "attention_row_32x16x4096x128", full, { { 32, 16, 1, 128 }, { 32, 16, 4096, 128 }, { 32, 16, 4096, 128 } },
          { 0 }, 0 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
}

/* ---- convolution: layers of a ResNet-50 ---- */

static ctrt_status conv(struct op *o)
{
    const int64_t *kernel = &ctrt_tensor_shape(o->x[1])[2];
    const ctrt_conv2d_options options = CTRT_WITH(ctrt_conv2d_options, .padding = { kernel[0] / 2,
                                                                                            kernel[1] / 2 });
    return ctrt_conv2d(&o->y, o->x[0], o->x[1], NULL, &options);
}
static ctrt_status conv_halving(struct op *o)
{
    const ctrt_conv2d_options options = CTRT_WITH(ctrt_conv2d_options, .stride = { 2, 2 }, .padding = { 3,
                                                                                                                3 });
    return ctrt_conv2d(&o->y, o->x[0], o->x[1], NULL, &options);
}

void gpu_convolution(void)
{
    static const struct op_case cases[] = {
        { "conv_7x7_stride2_3to64_224", conv_halving, { { 64, 3, 224, 224 }, { 64, 3, 7, 7 } }, { 0 }, 0 },
        { "conv_3x3_64to64_56", conv, { { 64, 64, 56, 56 }, { 64, 64, 3, 3 } }, { 0 }, 0 },
        { "conv_1x1_64to256_56", conv, { { 64, 64, 56, 56 }, { 256, 64, 1, 1 } }, { 0 }, 0 },
        { "conv_3x3_256to256_14", conv, { { 64, 256, 14, 14 }, { 256, 256, 3, 3 } }, { 0 }, 0 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
    MEASURE(cases, CTRT_CHANNELS_LAST);
}

/* ---- index: indices repeat, so the backward passes accumulate rows ---- */

static ctrt_status embedding(struct op *o) { return ctrt_embedding(&o->y, o->x[0], o->index, -1); }
static ctrt_status rows(struct op *o) { return ctrt_index_select(&o->y, o->x[0], 0, o->index); }
static ctrt_status gather(struct op *o) { return ctrt_gather(&o->y, o->x[0], 0, o->index); }

void gpu_index(void)
{
    static const struct op_case cases[] = {
        { "embedding_50304x512_of_16384", embedding, { { 50304, 512 } }, { 16384 }, 50304 },
        { "index_select_65536x256_of_65536", rows, { { 65536, 256 } }, { 65536 }, 65536 },
        { "gather_65536x256", gather, { { 65536, 256 } }, { 65536, 256 }, 65536 },
        { "gather_16777216", gather, { { 16777216 } }, { 1048576 }, 16777216 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
}

/* ---- softmax, norms, cross entropy ---- */

static ctrt_status softmax(struct op *o) { return ctrt_softmax(&o->y, o->x[0], -1); }
static ctrt_status log_softmax(struct op *o) { return ctrt_log_softmax(&o->y, o->x[0], -1); }

void gpu_softmax(void)
{
    static const struct op_case cases[] = {
        { "softmax_65536x1024", softmax, { { 65536, 1024 } }, { 0 }, 0 },
        { "softmax_4096x50304", softmax, { { 4096, 50304 } }, { 0 }, 0 },
        { "log_softmax_65536x1024", log_softmax, { { 65536, 1024 } }, { 0 }, 0 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
}

static ctrt_status layer_norm(struct op *o)
{
    return ctrt_layer_norm(&o->y, o->x[0], CTRT_SHAPE(ctrt_tensor_shape(o->x[0])[1]), o->x[1], o->x[2], 1e-5);
}
static ctrt_status batch_norm(struct op *o)
{
    return ctrt_batch_norm(&o->y, o->x[0], o->x[1], o->x[2], NULL, NULL, true, 0.1, 1e-5);
}

void gpu_norms(void)
{
    static const struct op_case cases[] = {
        { "layer_norm_65536x1024", layer_norm, { { 65536, 1024 }, { 1024 }, { 1024 } }, { 0 }, 0 },
        { "layer_norm_8192x8192", layer_norm, { { 8192, 8192 }, { 8192 }, { 8192 } }, { 0 }, 0 },
        { "batch_norm_64x256x56x56", batch_norm, { { 64, 256, 56, 56 }, { 256 }, { 256 } }, { 0 }, 0 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
}

static ctrt_status cross_entropy(struct op *o) { return ctrt_cross_entropy(&o->y, o->x[0], o->index, NULL); }

void gpu_cross_entropy(void)
{
    static const struct op_case cases[] = {
        { "cross_entropy_16384x50304", cross_entropy, { { 16384, 50304 } }, { 16384 }, 50304 },
        { "cross_entropy_65536x1000", cross_entropy, { { 65536, 1000 } }, { 65536 }, 1000 },
    };
    MEASURE(cases, CTRT_CONTIGUOUS_FORMAT);
}

/* ---- optimizers: one step of 64 tensors of 2^20 elements ---- */

enum { TENSORS = 64 };

static ctrt_status optimizer_step(void *argument)
{
    return ctrt_optimizer_step(argument);
}

static ctrt_status optimizer_make(ctrt_optimizer **out, const char *kind, ctrt_dtype dtype)
{
    const int64_t side = gpu_small ? 16 : 1024;
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    adamw.lr = sgd.lr = 1e-4;
    sgd.momentum = 0.9;
    CTRT_TRY(strcmp(kind, "adamw") == 0 ? ctrt_adamw_new(out, NULL, &adamw) : ctrt_sgd_new(out, NULL, &sgd));
    for (int i = 0; i < TENSORS; i++) {
        CTRT_AUTO(tensor) p = NULL, g = NULL;
        CTRT_TRY(ctrt_randn(&p, CTRT_SHAPE(side, side), dtype, gpu));
        CTRT_TRY(ctrt_randn(&g, CTRT_SHAPE(side, side), dtype, gpu));
        CTRT_TRY(ctrt_tensor_require_grad(p, true));
        CTRT_TRY(ctrt_tensor_set_grad(p, g));
        CTRT_TRY(ctrt_optimizer_add(*out, &p, 1));
    }
    return CTRT_OK;
}

void gpu_optimizers(void)
{
    /* Bytes moved per element in a step. States are f32; AdamW reads 4 values and writes 3, SGD with momentum reads 3
     * and writes 2. */
    static const struct { const char *kind; ctrt_dtype dtype; double bytes; } cases[] = {
        { "adamw", CTRT_F32, 28 }, { "sgd", CTRT_F32, 20 }, { "adamw", CTRT_BF16, 22 }, { "sgd", CTRT_BF16, 14 },
    };
    const double numbers = TENSORS * (gpu_small ? 256.0 : 1048576.0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ctrt_optimizer *optimizer = NULL;
        char name[64];
        snprintf(name, sizeof name, "optimizer_%s_64m_%s", cases[i].kind, ctrt_dtype_name(cases[i].dtype));
        if (gpu_wanted(name) && gpu_case(name, optimizer_make(&optimizer, cases[i].kind, cases[i].dtype)))
            gpu_measure(name, optimizer_step, optimizer, cases[i].bytes * numbers);
        ctrt_optimizer_release(&optimizer);
        gpu_case("ctrt_memory_empty_cache", ctrt_memory_empty_cache(gpu));
    }
}
