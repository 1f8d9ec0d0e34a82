/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/attention.c: MultiheadAttention (Vaswani et al. 2017), batch first.
 *
 * The three input projections are one matrix in_proj_weight [3 embed, embed]: the rows for q, then k, then v. */
#include "nn/layers/layers.h"

struct attention {
    ctrt_tensor *in_weight, *in_bias;
    ctrt_module *out_proj;
    int64_t embed, heads;
    double dropout;
    bool causal;
};

/* Reshapes [..., T, embed] to [..., heads, T, embed / heads]. */
static ctrt_status heads_split(ctrt_tensor **out, ctrt_tensor *x, const struct attention *a)
{
    int64_t shape[CTRT_MAX_DIMS];
    int ndim = ctrt_tensor_ndim(x);
    memcpy(shape, ctrt_tensor_shape(x), (size_t)ndim * sizeof *shape);
    shape[ndim - 1] = a->heads;
    shape[ndim] = a->embed / a->heads;
    CTRT_TRY(ctrt_reshape(out, x, ctrt_ints_of(shape, ndim + 1)));
    return ctrt_transpose(out, *out, -3, -2);
}

/* The inverse of heads_split. */
static ctrt_status heads_join(ctrt_tensor **out, ctrt_tensor *x)
{
    CTRT_TRY(ctrt_transpose(out, x, -3, -2));
    return ctrt_flatten(out, *out, -2, -1);
}

/* Projects x[i] with the rows [i embed, (i + 1) embed) of in_proj_weight and splits the result qkv[i] into heads. */
static ctrt_status project_each(ctrt_tensor **qkv, ctrt_tensor *const *x, const struct attention *a)
{
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(tensor) weight = NULL, bias = NULL;
        CTRT_TRY(ctrt_narrow(&weight, a->in_weight, 0, i * a->embed, a->embed));
        if (a->in_bias)
            CTRT_TRY(ctrt_narrow(&bias, a->in_bias, 0, i * a->embed, a->embed));
        CTRT_TRY(ctrt_linear(&qkv[i], x[i], weight, bias));
        CTRT_TRY(heads_split(&qkv[i], qkv[i], a));
    }
    return CTRT_OK;
}

/* Like project_each, for self-attention (q, k and v are projections of x), with one matrix product. */
static ctrt_status project_self(ctrt_tensor **qkv, ctrt_tensor *x, const struct attention *a)
{
    CTRT_AUTO(tensor) all = NULL;
    CTRT_TRY(ctrt_linear(&all, x, a->in_weight, a->in_bias));
    for (int i = 0; i < 3; i++) {
        CTRT_TRY(ctrt_narrow(&qkv[i], all, -1, i * a->embed, a->embed));
        CTRT_TRY(heads_split(&qkv[i], qkv[i], a));
    }
    return CTRT_OK;
}

static ctrt_status attention_check(const struct attention *a, ctrt_tensor *const *inputs, int count)
{
    static const char *const names[] = { "q", "k", "v" };
    if (count != 1 && count != 3 && count != 4)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "inputs are {x}, {q, k, v} or {q, k, v, mask}, got %d", count);
    for (int i = 0; i < 3 && i < count; i++) {
        const char *name = count == 1 ? "x" : names[i];
        int ndim = ctrt_tensor_ndim(inputs[i]);
        if (inputs[i] == NULL)
            return fail_null("forward", name);
        if (ndim < 2 || ndim >= CTRT_MAX_DIMS || ctrt_tensor_size(inputs[i], -1) != a->embed)
            return ctrt_fail(CTRT_ERR_SHAPE,
                             "%s has %d dimensions, the last of size %lld; expected [..., T, %lld] of at most %d",
                             name, ndim, (long long)ctrt_tensor_size(inputs[i], -1), (long long)a->embed,
                             CTRT_MAX_DIMS - 1);
    }
    return CTRT_OK;
}

static ctrt_status attention_run(ctrt_tensor **y, ctrt_module *self, ctrt_tensor **qkv, ctrt_tensor *const *inputs,
                                 int count)
{
    struct attention *a = ctrt_module_state(self);
    CTRT_TRY(attention_check(a, inputs, count));
    CTRT_TRY(count == 1 ? project_self(qkv, inputs[0], a) : project_each(qkv, inputs, a));
    const ctrt_attention_options options =
        CTRT_WITH(ctrt_attention_options, .dropout_p = self->training ? a->dropout : 0, .causal = a->causal);
    CTRT_TRY(ctrt_scaled_dot_product_attention(y, qkv[0], qkv[1], qkv[2], count == 4 ? inputs[3] : NULL, &options));
    CTRT_TRY(heads_join(y, *y));
    return ctrt_forward(y, a->out_proj, *y);
}

static ctrt_status attention_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *qkv[3] = { NULL };
    ctrt_status status = attention_run(y, self, qkv, inputs, count);
    for (int i = 0; i < 3; i++)
        ctrt_tensor_release(&qkv[i]);
    return status;
}

static const ctrt_module_class attention_class = {
    .size = sizeof(ctrt_module_class), .kind = "MultiheadAttention", .state_bytes = sizeof(struct attention),
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct attention, in_weight), offsetof(struct attention, in_bias),
                                          offsetof(struct attention, out_proj)),
    .forward = attention_forward,
};

ctrt_status ctrt_multihead_attention_new(ctrt_module **out, int64_t embed, int64_t heads,
                                         const ctrt_multihead_attention_options *options, ctrt_device *device)
{
    ctrt_multihead_attention_options o = CTRT_MULTIHEAD_ATTENTION_OPTIONS;
    static const char who[] = "multihead_attention_new";
    CTRT_AUTO(module) self = NULL;
    CTRT_AUTO(module) out_proj = NULL;
    ctrt_tensor *out_bias;
    NULL_CHECK(who, out);
    CTRT_TRY(struct_read(&o, sizeof o, options, who, "options"));
    CTRT_TRY(module_at_least(who, "embed", embed, 1));
    CTRT_TRY(module_at_least(who, "heads", heads, 1));
    if (embed % heads)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: embed %lld is not a multiple of %lld heads", who,
                         (long long)embed, (long long)heads);
    if (embed > INT64_MAX / 3)
        return ctrt_fail(CTRT_ERR_OVERFLOW, "%s: embed %lld is too large", who, (long long)embed);
    if (!(o.dropout >= 0 && o.dropout <= 1))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: dropout is %g, expected a probability", who, o.dropout);

    CTRT_TRY(ctrt_module_new(&self, &attention_class));
    struct attention *a = ctrt_module_state(self);
    a->embed = embed;
    a->heads = heads;
    a->dropout = o.dropout;
    a->causal = o.causal;
    CTRT_TRY(module_new_parameter(&a->in_weight, self, "in_proj_weight", CTRT_SHAPE(3 * embed, embed), device));
    CTRT_TRY(ctrt_init_xavier_uniform_(a->in_weight, 1));
    if (o.bias) {
        CTRT_TRY(module_new_parameter(&a->in_bias, self, "in_proj_bias", CTRT_SHAPE(3 * embed), device));
        CTRT_TRY(ctrt_init_constant_(a->in_bias, 0));
    }
    CTRT_TRY(ctrt_linear_new(&out_proj, embed, embed, o.bias, device));
    if (o.bias) {
        CTRT_TRY(ctrt_module_tensor(&out_bias, out_proj, "bias"));
        CTRT_TRY(ctrt_init_constant_(out_bias, 0));
    }
    a->out_proj = out_proj;
    CTRT_TRY(ctrt_module_add_module(self, "out_proj", ctrt_module_retain(out_proj)));
    module_give(out, &self);
    return CTRT_OK;
}
