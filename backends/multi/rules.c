/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/rules.c: the table of rules, one row for each op that has a rule. ctrt/plugin.h describes the operands
 * of each op, multi.h the notation. */
#include "multi.h"

#include <stdlib.h>

#define BY_DIM(op)       { op, NULL, NULL, MULTI_BY_DIM }
#define LINEAR(op, more) { op, NULL, NULL, MULTI_BY_DIM | MULTI_LINEAR | (more) }
#define REDUCE(op, more) { op, NULL, NULL, MULTI_BY_DIM | MULTI_REDUCES | (more) }

/* Sorted by name, for bsearch(). */
static const struct multi_rule rules[] = {
    BY_DIM("abs"),
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
    BY_DIM("ceil"),
    BY_DIM("clamp"),
    { "conv2d", "nCHW,oCPQ,o", "noYX", MULTI_CONV },
    { "conv2d_input_grad", "noYX,oCPQ", "nCHW", MULTI_CONV | MULTI_SUMS },
    { "conv2d_weight_grad", "noYX,nCHW", "oCPQ", MULTI_CONV | MULTI_SUMS },
    LINEAR("copy", 0),
    BY_DIM("cos"),
    { "cross_entropy", "mC,m,C", "m,mS", 0 },
    { "cross_entropy_backward", "mC,m,C,mS,m", "mC", 0 },
    LINEAR("div", MULTI_SCALES | MULTI_DIVIDES),
    { "dropout", NULL, NULL, MULTI_BY_DIM | MULTI_DROPOUT },
    BY_DIM("eq"),
    BY_DIM("erf"),
    BY_DIM("exp"),
    BY_DIM("expm1"),
    { "fill", NULL, NULL, MULTI_BY_DIM | MULTI_FILL },
    BY_DIM("floor"),
    BY_DIM("floor_divide"),
    BY_DIM("fmod"),
    { "gather", "oVi,omi", "omi", 0 },
    BY_DIM("ge"),
    BY_DIM("gelu"),
    BY_DIM("gelu_backward"),
    BY_DIM("gt"),
    { "index_add", "omi,m", "oVi", MULTI_SUMS },
    { "index_select", "oVi,m", "omi", 0 },
    BY_DIM("isfinite"),
    BY_DIM("isinf"),
    BY_DIM("isnan"),
    { "layer_norm", "mN,N,N", "mN,m,m", 0 },
    { "layer_norm_backward", "mN,mN,N,m,m", "mN,N,N", MULTI_SUMS },
    BY_DIM("le"),
    { "linear", "mk,nk,n", "mn", MULTI_SUMS | MULTI_BIAS },
    BY_DIM("log"),
    BY_DIM("log1p"),
    { "log_softmax", "oNi", "oNi", 0 },
    { "log_softmax_backward", "oNi,oNi", "oNi", 0 },
    BY_DIM("logical_and"),
    BY_DIM("logical_not"),
    BY_DIM("logical_or"),
    BY_DIM("logical_xor"),
    BY_DIM("lt"),
    { "matmul", "bmk,bkn", "bmn", MULTI_SUMS },
    { "max_pool2d", "ncHW", "ncYX,ncYX", 0 },
    { "max_pool2d_backward", "ncYX,ncYX", "ncHW", 0 },
    BY_DIM("maximum"),
    REDUCE("mean", MULTI_SUMS | MULTI_LINEAR | MULTI_MEAN),
    BY_DIM("minimum"),
    LINEAR("mul", MULTI_SCALES),
    BY_DIM("ne"),
    LINEAR("neg", 0),
    BY_DIM("pow"),
    REDUCE("prod", 0),
    BY_DIM("reciprocal"),
    BY_DIM("relu"),
    BY_DIM("relu_backward"),
    BY_DIM("remainder"),
    BY_DIM("round"),
    BY_DIM("rsqrt"),
    { "scatter_add", "omi,omi", "oVi", MULTI_SUMS },
    { "sgd_step", NULL, NULL, MULTI_BY_DIM | MULTI_STEP },
    BY_DIM("sigmoid"),
    BY_DIM("sigmoid_backward"),
    BY_DIM("sign"),
    BY_DIM("silu"),
    BY_DIM("silu_backward"),
    BY_DIM("sin"),
    { "softmax", "oNi", "oNi", 0 },
    { "softmax_backward", "oNi,oNi", "oNi", 0 },
    BY_DIM("sqrt"),
    BY_DIM("square"),
    LINEAR("sub", 0),
    REDUCE("sum", MULTI_SUMS | MULTI_LINEAR),
    BY_DIM("tan"),
    BY_DIM("tanh"),
    BY_DIM("tanh_backward"),
    { "tril", "bMN", "bMN", 0 },
    { "triu", "bMN", "bMN", 0 },
    BY_DIM("trunc"),
    BY_DIM("where"),
};

static int compare(const void *name, const void *rule)
{
    return strcmp(name, ((const struct multi_rule *)rule)->op);
}

const struct multi_rule *multi_rule_of(const char *op)
{
    static const struct multi_rule none = { "", NULL, NULL, 0 };
    const struct multi_rule *rule = bsearch(op, rules, sizeof rules / sizeof rules[0], sizeof rules[0], compare);
    return rule != NULL ? rule : &none;
}
