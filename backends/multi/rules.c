/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/rules.c: the rules of ops. ctrt/plugin.h describes the operands of each op, multi.h the notation. */
#include "multi.h"

#include <stdlib.h>

#define BY_DIM(op)       { op, NULL, NULL, MULTI_BY_DIM }
#define LINEAR(op, more) { op, NULL, NULL, MULTI_BY_DIM | MULTI_LINEAR | (more) }
#define REDUCE(op, more) { op, NULL, NULL, MULTI_BY_DIM | MULTI_REDUCES | (more) }

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
    { "attention", "bhLE,bhSE,bhSV", "bhLV,bhL", 0 },
    { "attention_backward", "bhLV,bhLE,bhSE,bhSV,bhLV,bhL", "bhLE,bhSE,bhSV", 0 },
    { "batch_norm", "McS,c,c,c,c", "McS,c,c,c,c", 0 },
    { "batch_norm_backward", "McS,McS,c,c,c", "McS,c,c", 0 },
    BY_DIM("clamp"),
    { "conv2d", "nCHW,oCPQ,o", "noYX", MULTI_CONV },
    { "conv2d_input_grad", "noYX,oCPQ", "nCHW", MULTI_CONV | MULTI_SUMS },
    { "conv2d_weight_grad", "noYX,nCHW", "oCPQ", MULTI_CONV | MULTI_SUMS },
    LINEAR("copy", 0),
    { "cross_entropy", "mC,m,C", "m,mS", 0 },
    { "cross_entropy_backward", "mC,m,C,mS,m", "mC", 0 },
    LINEAR("div", MULTI_SCALES | MULTI_DIVIDES),
    { "dropout", NULL, NULL, MULTI_BY_DIM | MULTI_DROPOUT },
    { "fill", NULL, NULL, MULTI_BY_DIM | MULTI_FILL },
    { "gather", "oVi,omi", "omi", 0 },
    BY_DIM("gelu"),
    BY_DIM("gelu_backward"),
    { "index_add", "omi,m", "oVi", MULTI_SUMS },
    { "index_select", "oVi,m", "omi", 0 },
    { "layer_norm", "mN,N,N", "mN,m,m", 0 },
    { "layer_norm_backward", "mN,mN,N,m,m", "mN,N,N", MULTI_SUMS },
    { "linear", "mk,nk,n", "mn", MULTI_SUMS | MULTI_BIAS },
    { "log_softmax", "oNi", "oNi", 0 },
    { "log_softmax_backward", "oNi,oNi", "oNi", 0 },
    { "matmul", "bmk,bkn", "bmn", MULTI_SUMS },
    { "max_pool2d", "ncHW", "ncYX,ncYX", 0 },
    { "max_pool2d_backward", "ncYX,ncYX", "ncHW", 0 },
    REDUCE("mean", MULTI_SUMS | MULTI_LINEAR | MULTI_MEAN),
    LINEAR("mul", MULTI_SCALES),
    LINEAR("neg", 0),
    REDUCE("prod", 0),
    BY_DIM("relu_backward"),
    { "scatter_add", "omi,omi", "oVi", MULTI_SUMS },
    { "sgd_step", NULL, NULL, MULTI_BY_DIM | MULTI_STEP },
    BY_DIM("sigmoid_backward"),
    BY_DIM("silu_backward"),
    { "softmax", "oNi", "oNi", 0 },
    { "softmax_backward", "oNi,oNi", "oNi", 0 },
    LINEAR("sub", 0),
    REDUCE("sum", MULTI_SUMS | MULTI_LINEAR),
    BY_DIM("tanh_backward"),
    { "tril", "bMN", "bMN", 0 },
    { "triu", "bMN", "bMN", 0 },
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
