/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/rules.c: the rules of ops. ctrt/contracts.def has the operands of each op, multi.h the notation. */
#include "multi.h"

#include <stdlib.h>

static const struct contracts {
#define CTRT_CONTRACT(op, layout, attributes, operands, text) const char *op;
#include "ctrt/contracts.def"
} contracts = {
#define CTRT_CONTRACT(op, layout, attributes, operands, text) operands,
#include "ctrt/contracts.def"
};

#define ALONG(op, letters, flags) { #op, &contracts.op, letters, flags }
#define BY_DIM(op)                { op, NULL, NULL, MULTI_BY_DIM }
#define LINEAR(op, more)          { op, NULL, NULL, MULTI_BY_DIM | MULTI_LINEAR | (more) }
#define REDUCE(op, more)          { op, NULL, NULL, MULTI_BY_DIM | MULTI_REDUCES | (more) }

/* The ops UNARY and BINARY of ops.def can be divided along any dimension. They have a row below only if more holds. */
#define NAME_UNARY(op)   #op,
#define NAME_BINARY(op)  #op,
#define NAME_OWN(op)
#define NAME_GRAPH(op)
#define CTRT_OP(op, form, ...) NAME_##form(op)
static const char *const elementwise[] = {
#include "ctrt/ops.def"
};
#undef CTRT_OP
static const struct multi_rule elementwise_rule = BY_DIM(""), no_rule = { "", NULL, NULL, 0 };

/* Sorted by name, for bsearch(). */
static const struct multi_rule rules[] = {
    { "adam_step", NULL, NULL, MULTI_BY_DIM | MULTI_STEP },
    LINEAR("add", 0),
    REDUCE("all", 0),
    REDUCE("amax", 0),
    REDUCE("amin", 0),
    REDUCE("any", 0),
    REDUCE("argmax", 0),
    REDUCE("argmin", 0),
    ALONG(attention, "BH", 0),
    ALONG(attention_backward, "BH", 0),
    ALONG(batch_norm, "C", 0),
    ALONG(batch_norm_backward, "C", 0),
    BY_DIM("clamp"),
    ALONG(conv2d, "NO", MULTI_CONV),
    ALONG(conv2d_input_grad, "NO", MULTI_CONV | MULTI_SUMS),
    ALONG(conv2d_weight_grad, "NO", MULTI_CONV | MULTI_SUMS),
    LINEAR("copy", 0),
    ALONG(cross_entropy, "N", 0),
    ALONG(cross_entropy_backward, "N", 0),
    LINEAR("div", MULTI_SCALES | MULTI_DIVIDES),
    { "dropout", NULL, NULL, MULTI_BY_DIM | MULTI_DROPOUT },
    { "fill", NULL, NULL, MULTI_BY_DIM | MULTI_FILL },
    ALONG(gather, "OIM", 0),
    BY_DIM("gelu"),
    BY_DIM("gelu_backward"),
    ALONG(index_add, "OMI", MULTI_SUMS),
    ALONG(index_select, "OIM", 0),
    ALONG(layer_norm, "M", 0),
    ALONG(layer_norm_backward, "M", MULTI_SUMS),
    ALONG(linear, "MKN", MULTI_SUMS | MULTI_BIAS),
    ALONG(log_softmax, "OI", 0),
    ALONG(log_softmax_backward, "OI", 0),
    ALONG(matmul, "BMKN", MULTI_SUMS),
    ALONG(max_pool2d, "NC", 0),
    ALONG(max_pool2d_backward, "NC", 0),
    REDUCE("mean", MULTI_SUMS | MULTI_LINEAR | MULTI_MEAN),
    LINEAR("mul", MULTI_SCALES),
    LINEAR("neg", 0),
    REDUCE("prod", 0),
    BY_DIM("relu_backward"),
    ALONG(scatter_add, "OMI", MULTI_SUMS),
    { "sgd_step", NULL, NULL, MULTI_BY_DIM | MULTI_STEP },
    BY_DIM("sigmoid_backward"),
    BY_DIM("silu_backward"),
    ALONG(softmax, "OI", 0),
    ALONG(softmax_backward, "OI", 0),
    LINEAR("sub", 0),
    REDUCE("sum", MULTI_SUMS | MULTI_LINEAR),
    BY_DIM("tanh_backward"),
    ALONG(tril, "B", 0),
    ALONG(triu, "B", 0),
    BY_DIM("where"),
};

static int compare(const void *name, const void *rule)
{
    return strcmp(name, ((const struct multi_rule *)rule)->op);
}

const struct multi_rule *multi_rule_of(const char *op)
{
    const struct multi_rule *rule = bsearch(op, rules, sizeof rules / sizeof rules[0], sizeof rules[0], compare);
    if (rule != NULL)
        return rule;
    for (size_t i = 0; i < sizeof elementwise / sizeof elementwise[0]; i++)
        if (strcmp(op, elementwise[i]) == 0)
            return &elementwise_rule;
    return &no_rule;
}
