/* SPDX-License-Identifier: Apache-2.0 */
/* ops-reference-basic.c: the functions that run the reference cases of ops_elementwise, ops_cast, ops_reduce and
 * ops_matmul. */
#include "ops-reference.h"

/* ---- elementwise ---- */

#define UNARY(name)  static ctrt_status name##_case(struct ref_case *c) { return ctrt_##name(&c->out[0], input(c, "x")); }
#define BINARY(name) static ctrt_status name##_case(struct ref_case *c) { return ctrt_##name(&c->out[0], input(c, "a"), input(c, "b")); }
/* The right operand is attr/scalar if the case has one. */
#define BINARY_SCALAR(name)                                                                                             \
    static ctrt_status name##_case(struct ref_case *c)                                                                         \
    {                                                                                                                   \
        if (attr(c, "scalar"))                                                                                          \
            return ctrt_##name##_scalar(&c->out[0], input(c, "x"), ctrt_float(number(c, "scalar", 0)));                 \
        return ctrt_##name(&c->out[0], input(c, "a"), input(c, "b"));                                                   \
    }
UNARY(sign)
UNARY(abs) UNARY(neg) UNARY(relu) UNARY(isnan) UNARY(isinf) UNARY(isfinite) UNARY(logical_not) UNARY(round)
    UNARY(floor) UNARY(ceil) UNARY(trunc) UNARY(exp) UNARY(expm1) UNARY(log) UNARY(log1p) UNARY(sqrt)
        UNARY(rsqrt) UNARY(reciprocal) UNARY(sin) UNARY(cos) UNARY(tanh) UNARY(sigmoid) UNARY(erf) UNARY(square)
            BINARY(maximum) BINARY(minimum) BINARY(eq) BINARY(ne) BINARY(lt) BINARY(le) BINARY(gt) BINARY(ge)
                BINARY(logical_and) BINARY(logical_or) BINARY(logical_xor) BINARY(floor_divide)
                    BINARY(remainder) BINARY(fmod) BINARY(matmul) BINARY_SCALAR(add) BINARY_SCALAR(sub)
                        BINARY_SCALAR(mul) BINARY_SCALAR(div)

                            static ctrt_status clamp_case(struct ref_case *c)
{
    ctrt_scalar lo = ctrt_float(number(c, "min", 0)), hi = ctrt_float(number(c, "max", 0));
    if (!attr(c, "max"))
        return ctrt_clamp_min(&c->out[0], input(c, "x"), lo);
    if (!attr(c, "min"))
        return ctrt_clamp_max(&c->out[0], input(c, "x"), hi);
    return ctrt_clamp(&c->out[0], input(c, "x"), lo, hi);
}

static ctrt_status where_case(struct ref_case *c)
{
    return ctrt_where(&c->out[0], input(c, "c"), input(c, "a"), input(c, "b"));
}

static ctrt_scalar scalar_of(const struct ref_record *record)
{
    return record->i ? ctrt_int(record->i[0]) : ctrt_float(record->f[0]);
}

static ctrt_status power_case(struct ref_case *c)
{
    if (attr(c, "exponent"))
        return ctrt_pow_scalar(&c->out[0], input(c, "x"), scalar_of(attr(c, "exponent")));
    if (attr(c, "base"))
        return ctrt_rpow_scalar(&c->out[0], input(c, "x"), scalar_of(attr(c, "base")));
    return ctrt_pow(&c->out[0], input(c, "a"), input(c, "b"));
}

/* Casts to the dtype that follows the '_' in the case's name, as in "cast.f32_i64_large". */
static ctrt_status cast_case(struct ref_case *c)
{
    char word[16];
    ctrt_dtype dtype;
    const char *at = strchr(c->name, '_') + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "_"), at);
    CTRT_TRY(ctrt_dtype_parse(&dtype, word));
    return ctrt_to_dtype(&c->out[0], input(c, "x"), dtype);
}

/* ---- reductions ---- */

#define REDUCE(name, function)                                                                                          \
    static ctrt_status name##_case(struct ref_case *c)                                                                         \
    {                                                                                                                   \
        return function(&c->out[0], input(c, "x"), integers(c, "dim"), number(c, "keepdim", 0) != 0);                   \
    }
REDUCE(sum, ctrt_sum_dims)
REDUCE(mean, ctrt_mean_dims) REDUCE(amax, ctrt_amax) REDUCE(amin, ctrt_amin) REDUCE(any, ctrt_any)
    REDUCE(all, ctrt_all) REDUCE(argmax, ctrt_argmax) REDUCE(argmin, ctrt_argmin) REDUCE(prod, ctrt_prod_dims)

        static ctrt_status variance_case(struct ref_case *c)
{
    return ctrt_var(&c->out[0], input(c, "x"), integers(c, "dim"), (int)number(c, "correction", 1),
                    number(c, "keepdim", 0) != 0);
}

/* Over all dimensions PyTorch's max is ctrt_amax, whose ties share the gradient equally. */
static ctrt_status max_case(struct ref_case *c)
{
    if (!attr(c, "dim"))
        return ctrt_amax(&c->out[0], input(c, "x"), CTRT_ALL_DIMS, false);
    c->out_names[1] = "indices";
    return ctrt_max(&c->out[0], &c->out[1], input(c, "x"), (int)number(c, "dim", 0), false);
}

static ctrt_status min_case(struct ref_case *c)
{
    c->out_names[1] = "indices";
    return ctrt_min(&c->out[0], &c->out[1], input(c, "x"), (int)number(c, "dim", 0), false);
}

static ctrt_status softmax_case(struct ref_case *c)
{
    return ctrt_softmax(&c->out[0], input(c, "x"), (int)number(c, "dim", 0));
}
static ctrt_status log_softmax_case(struct ref_case *c)
{
    return ctrt_log_softmax(&c->out[0], input(c, "x"), (int)number(c, "dim", 0));
}

/* ---- matrices, joins, creation, indexing ---- */

static ctrt_status linear_case(struct ref_case *c)
{
    return ctrt_linear(&c->out[0], input(c, "x"), input(c, "weight"), input(c, "bias"));
}
static ctrt_status cat_case(struct ref_case *c)
{
    return ctrt_cat(&c->out[0], c->in, c->inputs, (int)number(c, "dim", 0));
}

static ctrt_status arange_case(struct ref_case *c)
{
    const struct ref_record *args = attr(c, "args");
    ctrt_scalar value[3] = { ctrt_int(0), ctrt_int(0), ctrt_int(1) };
    for (int k = 0; k < args->numel; k++) {
        int to = args->numel == 1 ? 1 : k;
        value[to] = args->i ? ctrt_int(args->i[k]) : ctrt_float(args->f[k]);
    }
    return ctrt_arange(&c->out[0], value[0], value[1], value[2], CTRT_DTYPE_DEFAULT, NULL);
}

/* As in PyTorch, the value determines the dtype. */
static ctrt_status full_case(struct ref_case *c)
{
    const struct ref_record *value = attr(c, "value");
    ctrt_scalar scalar = !strcmp(value->dtype, "bool") ? ctrt_bool(value->i[0] != 0) : scalar_of(value);
    CTRT_TRY(ctrt_scalar_tensor(&c->out[0], scalar, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_full(&c->out[0], CTRT_SHAPE(2), scalar, ctrt_tensor_dtype(c->out[0]), NULL);
}

static ctrt_status index_select_case(struct ref_case *c)
{
    return ctrt_index_select(&c->out[0], input(c, "x"), (int)number(c, "dim", 0), input(c, "index"));
}

static ctrt_status gather_case(struct ref_case *c)
{
    return ctrt_gather(&c->out[0], input(c, "x"), (int)number(c, "dim", 0), input(c, "index"));
}

#define ROW(name) { #name, name##_case, NULL, 0 }
#define LACKS(name) { name, NULL, "ctrt has no " name, 0 }

const struct ref_op ref_basic_ops[] = {
    ROW(sign),
    ROW(abs),
    ROW(neg),
    ROW(isnan),
    ROW(isinf),
    ROW(isfinite),
    ROW(logical_not),
    ROW(round),
    ROW(floor),
    ROW(ceil),
    ROW(trunc),
    ROW(exp),
    ROW(expm1),
    ROW(log),
    ROW(log1p),
    ROW(sqrt),
    ROW(rsqrt),
    ROW(reciprocal),
    ROW(sin),
    ROW(cos),
    ROW(tanh),
    ROW(sigmoid),
    ROW(erf),
    ROW(square),
    ROW(relu),
    ROW(maximum),
    ROW(minimum),
    ROW(eq),
    ROW(ne),
    ROW(lt),
    ROW(le),
    ROW(gt),
    ROW(ge),
    ROW(logical_and),
    ROW(logical_or),
    ROW(logical_xor),
    ROW(remainder),
    ROW(fmod),
    ROW(add),
    ROW(sub),
    ROW(mul),
    ROW(div),
    ROW(clamp),
    ROW(where),
    ROW(cast),
    { "div_floor", floor_divide_case, NULL, 0 },
    { "pow", power_case, NULL, 0 },
    ROW(sum),
    ROW(mean),
    ROW(amax),
    ROW(amin),
    ROW(any),
    ROW(all),
    ROW(argmax),
    ROW(argmin),
    ROW(prod),
    ROW(max),
    ROW(min),
    { "var", variance_case, NULL, 0 },
    ROW(softmax),
    ROW(log_softmax),
    ROW(matmul),
    ROW(linear),
    ROW(cat),
    ROW(arange),
    ROW(full),
    ROW(index_select),
    ROW(gather),
    LACKS("fmax"),
    LACKS("fmin"),
    LACKS("log2"),
    LACKS("atan2"),
    LACKS("cumsum"),
    LACKS("std"),
    LACKS("norm"),
    LACKS("logsumexp"),
    LACKS("linspace"),
    { "div_trunc", NULL, "ctrt has no division that truncates", 0 },
    { NULL, NULL, NULL, 0 },
};
