/* SPDX-License-Identifier: Apache-2.0 */
/* First and second derivatives in special cases of the rules (0, limits, NaN, overflow, empty tensors), compared with
 * the values of PyTorch 2.15. */
#include "autograd_check.h"

struct edge {
    const char *name;
    ctrt_status (*function)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_dtype a_dtype, b_dtype;
    int n;                              /* number of elements of a and, if present, of b */
    const double *a, *b;
    const double *da, *db;              /* gradients of the result's sum; NULL: none (also for integer operands) */
    const double *dda, *ddb, *ddw;      /* gradients of sum(da) + sum(db) for a, b and dy */
};

#define F(name, ...)                                                                                \
    static ctrt_status name(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b) { (void)b; return __VA_ARGS__; }
F(relu, ctrt_relu(out, a)) F(clamp, ctrt_clamp(out, a, ctrt_float(0), ctrt_float(1)))
F(clamp_min, ctrt_clamp_min(out, a, ctrt_int(0))) F(clamp_max, ctrt_clamp_max(out, a, ctrt_float(1)))
F(clamp_nan, ctrt_clamp(out, a, ctrt_float(NAN), ctrt_float(1))) F(gelu, ctrt_gelu(out, a, false))
F(gelu_tanh, ctrt_gelu(out, a, true)) F(remainder_, ctrt_remainder(out, a, b)) F(fmod_, ctrt_fmod(out, a, b))
F(pow_, ctrt_pow(out, a, b)) F(pow_1e10, ctrt_pow_scalar(out, a, ctrt_float(1e10)))
F(pow_2050, ctrt_pow_scalar(out, a, ctrt_int(2050))) F(over_1e10, ctrt_rdiv_scalar(out, a, ctrt_float(1e10)))
F(zero_to_the, ctrt_rpow_scalar(out, a, ctrt_float(0))) F(prod, ctrt_prod_dims(out, a, CTRT_ALL_DIMS, false))
F(prod_dim, ctrt_prod_dims(out, a, CTRT_DIMS(0), true))
F(amax_0dim, (ctrt_select(out, a, 0, 0), ctrt_amax(out, *out, CTRT_ALL_DIMS, false)))
F(amin_0dim, (ctrt_select(out, a, 0, 0), ctrt_amin(out, *out, CTRT_ALL_DIMS, false)))
F(mean, ctrt_mean(out, a, CTRT_ALL_DIMS)) F(var, ctrt_var(out, a, CTRT_ALL_DIMS, 1, false))
F(var_0, ctrt_var(out, a, CTRT_ALL_DIMS, 0, false)) F(var_dim, ctrt_var(out, a, CTRT_DIMS(0), 1, false))
F(var_dim_0, ctrt_var(out, a, CTRT_DIMS(0), 0, false)) F(var_dim_4, ctrt_var(out, a, CTRT_DIMS(0), 4, false))
F(var_3, ctrt_var(out, a, CTRT_ALL_DIMS, 3, false)) F(var_4, ctrt_var(out, a, CTRT_ALL_DIMS, 4, true))
F(var_dim_3, ctrt_var(out, a, CTRT_DIMS(0), 3, true))
F(var_rows, (ctrt_reshape(out, a, CTRT_SHAPE(3, 0)), ctrt_var(out, *out, CTRT_DIMS(1), 1, false)))
F(var_0dim_2, (ctrt_select(out, a, 0, 0), ctrt_var(out, *out, CTRT_DIMS(0), 2, false)))
F(mse, ctrt_mse_loss(out, a, b, CTRT_REDUCE_MEAN))

static ctrt_status pow_0dim(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) first = NULL;
    CTRT_TRY(ctrt_select(&first, a, 0, 0));
    return ctrt_pow(out, first, b);
}

/* cross_entropy of rows with two classes. All targets are ignored. */
static ctrt_status ignored(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) rows = NULL, target = NULL;
    ctrt_cross_entropy_options smooth = CTRT_CROSS_ENTROPY_OPTIONS;
    smooth.label_smoothing = 0.1;
    (void)b;
    CTRT_TRY(ctrt_reshape(&rows, a, CTRT_SHAPE(-1, 2)));
    CTRT_TRY(ctrt_full(&target, CTRT_SHAPE(ctrt_tensor_size(rows, 0)), ctrt_int(-100), CTRT_I64, NULL));
    return ctrt_cross_entropy(out, rows, target, &smooth);
}

#define L(...)     DOUBLES(__VA_ARGS__)
#define INF        INFINITY
#define TWO(name, function, a_dtype, b_dtype, n, a, b, da, db, dda, ddb, ddw) \
    { name, function, CTRT_##a_dtype, CTRT_##b_dtype, n, a, b, da, db, dda, ddb, ddw }
#define ONE(name, function, dtype, n, a, da, dda, ddw) \
    TWO(name, function, dtype, DTYPE_DEFAULT, n, a, NULL, da, NULL, dda, NULL, ddw)
#define ZEROS L(0, 0, 0, 0, 0, 0, 0, 0)
#define GELU_AT    L(INF, -INF, NAN, 0, 100, -100)
#define GELU_SLOPE L(NAN, NAN, NAN, 0.5, 1, 0)
#define GELU_CURVE L(NAN, NAN, NAN, 0.797884560802865356, 0, 0)
#define E11     1.10000002384185791015625               /* 1.1 rounded to f32; its logarithm */
#define LOG_E11 0.0953102014787409

static const struct edge edges[] = {
    ONE("relu", relu, F32, 6, L(NAN, -1, 0, 1, INF, -INF), L(1, 0, 0, 1, 1, 0), ZEROS, L(1, 0, 0, 1, 1, 0)),
    ONE("relu in bf16", relu, BF16, 4, L(NAN, -1, 0, 1), L(1, 0, 0, 1), ZEROS, L(1, 0, 0, 1)),
    ONE("clamp", clamp, F64, 6, L(-1, 0, 0.5, 1, 2, NAN), L(0, 0, 1, 0, 0, 0), ZEROS, L(0, 0, 1, 0, 0, 0)),
    ONE("gelu, f32", gelu, F32, 6, GELU_AT, GELU_SLOPE, GELU_CURVE, GELU_SLOPE),
    ONE("gelu, f64", gelu, F64, 6, GELU_AT, GELU_SLOPE, GELU_CURVE, GELU_SLOPE),
    ONE("gelu by tanh, f32", gelu_tanh, F32, 6, GELU_AT, GELU_SLOPE, GELU_CURVE, GELU_SLOPE),
    ONE("gelu by tanh, f64", gelu_tanh, F64, 6, GELU_AT, GELU_SLOPE, GELU_CURVE, GELU_SLOPE),
    ONE("clamp from below", clamp_min, F64, 5, L(-1, 0, 0.5, INF, NAN), L(0, 0, 1, 1, 0), ZEROS, L(0, 0, 1, 1, 0)),
    ONE("clamp from above", clamp_max, F64, 5, L(-INF, 0.5, 1, 2, NAN), L(1, 1, 0, 0, 0), ZEROS, L(1, 1, 0, 0, 0)),
    ONE("clamp by NaN", clamp_nan, F64, 3, L(-1, 1, 2), ZEROS, ZEROS, ZEROS),
    TWO("remainder", remainder_, F64, F64, 7, L(5, -5, 1, -1, 5, 0, INF), L(3, 3, 0.1, INF, 0, 0, 3),
      L(1, 1, 1, 1, 1, 1, 1), L(-1, 2, -9, 1, -INF, NAN, NAN), ZEROS, ZEROS, L(0, 3, -8, 2, -INF, NAN, NAN)),
    TWO("remainder of integers", remainder_, I64, F32, 3, L(1, -5, 7), L(0.1, 3, -2), NULL, L(-9, 2, 4), NULL, ZEROS,
      L(-9, 2, 4)),
    TWO("fmod", fmod_, F64, F64, 6, L(5, -5, 1, 5, 0, INF), L(3, 3, 0.1, 0, 0, 3), L(1, 1, 1, 1, 1, 1),
      L(-1, 1, -10, -INF, NAN, -INF), ZEROS, ZEROS, L(0, 2, -9, -INF, NAN, -INF)),
    TWO("pow at 0", pow_, F64, F64, 6, L(0, 0, 0, 0, 0, 2), L(0, 1, 2, 0.5, -1, 0), L(0, 1, 0, INF, -INF, 0),
      L(0, 0, 0, 0, -INF, M_LN2), L(NAN, NAN, NAN, NAN, INF, 0.5), L(NAN, NAN, NAN, NAN, INF, M_LN2 * M_LN2),
      L(NAN, 1, 0, INF, -INF, M_LN2)),
    ONE("pow by an even number, one less than which f32 lacks", pow_1e10, F32, 3, L(-1, 1, 0), L(-1e10, 1e10, 0),
      L(9999999999e10, 9999999999e10, 0), L(-1e10, 1e10, 0)),
    ONE("pow by an even number, one less than which f16 lacks", pow_2050, F16, 3, L(-1, 1, 0), L(-2050, 2050, 0),
      NULL, L(-2050, 2050, 0)),
    ONE("a number beyond f16 by f16", over_1e10, F16, 2, L(65504, -65504), L(-2.330078125, -2.330078125), NULL,
      L(-2.330078125, -2.330078125)),
    ONE("powers of 0", zero_to_the, F64, 4, L(0, 1, -2, NAN), L(0, 0, -INF, NAN), L(NAN, NAN, INF, NAN),
      L(0, 0, -INF, NAN)),
    TWO("pow of integers by f64", pow_, I64, F64, 2, L(2, 3), L(1.5, 0.3), NULL,
      L(1.9605162869370945, 1.5274986285401153), NULL, L(1.3589263367322997, 1.678128764237855),
      L(1.9605162869370945, 1.5274986285401153)),
    TWO("pow of a 0-dim f32 by f64", pow_0dim, F32, F64, 1, L(E11), L(2), L(2.2), L(E11 * E11 * LOG_E11),
      L(2 + 2 * E11 * LOG_E11 + E11), L(E11 + 2 * E11 * LOG_E11 + E11 * E11 * LOG_E11 * LOG_E11),
      L(2 * E11 + E11 * E11 * LOG_E11)),
    ONE("prod of two zeros and an overflow", prod, F32, 4, L(0, 0, 1e30, 1e30), ZEROS, L(INF, INF, 0, 0), ZEROS),
    ONE("prod of a zero and an overflow", prod_dim, F32, 3, L(0, 1e30, 1e30), L(INF, 0, 0), NULL, NULL),
    ONE("prod that overflows", prod, F32, 3, L(1e30, 1e30, 1e-30), L(1, 1, INF), NULL, NULL),
    ONE("prod of a zero and infinity", prod, F64, 3, L(INF, 0, 2), L(0, INF, NAN), NULL, NULL),
    ONE("prod of a zero and NaN", prod_dim, F64, 3, L(NAN, 0, 2), L(0, NAN, NAN), NULL, NULL),
    ONE("prod of an infinity", prod, F32, 3, L(-INF, 0.5, -3), L(-1.5, INF, -INF), NULL, NULL),
    ONE("prod of two infinities", prod, F64, 3, L(-INF, INF, -3), L(-INF, INF, -INF), NULL, NULL),
    ONE("prod of NaN", prod_dim, F64, 3, L(NAN, 4, 2), L(8, NAN, NAN), NULL, NULL),
    ONE("prod of infinities, zeros and NaN", prod, F64, 4, L(0, INF, NAN, 0), L(NAN, NAN, NAN, NAN), NULL, NULL),
    ONE("amax of a 0-dim number", amax_0dim, F32, 1, L(3), L(1), L(0), L(1)),
    ONE("amax of a 0-dim NaN", amax_0dim, F32, 1, L(NAN), L(NAN), NULL, L(NAN)),
    ONE("amin of a 0-dim NaN", amin_0dim, F32, 1, L(NAN), L(NAN), NULL, L(NAN)),
    ONE("mean of nothing", mean, F64, 0, L(0), L(0), NULL, L(0)),
    ONE("var of nothing", var, F64, 0, L(0), L(0), NULL, L(0)),
    ONE("var of nothing, correction 0", var_0, F64, 0, L(0), L(0), NULL, L(0)),
    ONE("var of nothing over a dimension", var_dim, F64, 0, L(0), L(0), NULL, L(0)),
    ONE("var of nothing over a dimension, correction 0", var_dim_0, F64, 0, L(0), L(0), NULL, L(NAN)),
    ONE("var of rows of nothing", var_rows, F64, 0, L(0), L(0), NULL, ZEROS),
    ONE("var over a dimension, correction above its size", var_dim_4, F64, 3, L(1, 2, 6), L(4, 2, -6), ZEROS, L(0)),
    ONE("var over a dimension, correction its size", var_dim_3, F64, 3, L(1, 2, 6), L(-INF, -INF, INF),
      L(NAN, NAN, NAN), L(NAN)),
    ONE("var over a dimension, an infinite element", var_dim_0, F64, 3, L(1, 2, INF), L(-INF, -INF, NAN), NULL, NULL),
    ONE("var, correction the number of elements", var_3, F32, 3, L(1, 3, 5), L(INF, NAN, INF), ZEROS, L(NAN)),
    ONE("var, correction above the number of elements", var_4, F16, 3, L(-1, -2, -6), L(INF, INF, INF), ZEROS, L(INF)),
    ONE("var of equal elements, correction above their number", var_3, F64, 2, L(2, 2), L(NAN, NAN), ZEROS, L(NAN)),
    ONE("var of 0-dim, correction above 1", var_0dim_2, F64, 1, L(2), L(NAN), ZEROS, L(NAN)),
    TWO("mse of nothing", mse, F64, F64, 0, L(0), L(0), L(0), L(0), L(0), L(0), L(0)),
    ONE("cross entropy of ignored targets", ignored, F64, 4, L(1, 2, 3, 5), ZEROS, ZEROS, NULL),
};

static void compare(const char *what, ctrt_tensor *t, const double *wanted)
{
    if (wanted == NULL || t == NULL)
        CHECK(wanted == NULL || wanted[0] == 0, "%s: no gradient", what);
    else
        check_values_within(what, __LINE__, t, wanted, ctrt_tensor_numel(t),
                            ctrt_tensor_dtype(t) == CTRT_F64 ? 1e-12 : 1e-6);
}

static ctrt_tensor *operand(const double *values, int n, ctrt_dtype dtype)
{
    if (values == NULL)
        return NULL;
    ctrt_tensor *t = tensor_with(values, CTRT_SHAPE(n), dtype, NULL);
    CHECK_OK(ctrt_tensor_require_grad(t, ctrt_dtype_is_floating(dtype)));
    return t;
}

static void run(const struct edge *e)
{
    CTRT_AUTO(tensor) a = operand(e->a, e->n, e->a_dtype), b = operand(e->b, e->n, e->b_dtype);
    CTRT_AUTO(tensor) y = NULL, w = NULL, sum = NULL, term = NULL;
    ctrt_tensor *leaves[3], *grads[2] = { NULL }, *second[3] = { NULL };
    const double *first[2], *wanted[3];
    int n = 0;
    if (ctrt_tensor_requires_grad(a))
        leaves[n] = a, first[n] = e->da, wanted[n++] = e->dda;
    if (b != NULL)
        leaves[n] = b, first[n] = e->db, wanted[n++] = e->ddb;
    CHECK_OK(e->function(&y, a, b));
    CHECK_OK(ctrt_ones_like(&w, y, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    for (int create = 0; create < 2; create++) {
        CHECK_OK(ctrt_grad(grads, y, leaves, n, w, true, create != 0, true));
        for (int i = 0; i < n; i++)
            compare(create ? "first derivative, recorded" : "first derivative", grads[i], first[i]);
    }
    CHECK_OK(ctrt_zeros(&sum, CTRT_SCALAR_SHAPE, CTRT_F64, NULL));
    for (int i = 0; i < n; i++) {
        if (grads[i] == NULL || !ctrt_tensor_requires_grad(grads[i]))
            continue;
        CHECK_OK(ctrt_sum(&term, grads[i], CTRT_ALL_DIMS));
        CHECK_OK(ctrt_add(&sum, sum, term));
    }
    leaves[n] = w, wanted[n] = e->ddw;
    if (ctrt_tensor_requires_grad(sum) && CHECK_OK(ctrt_grad(second, sum, leaves, n + 1, NULL, false, false, true)))
        for (int i = 0; i <= n; i++)
            compare("second derivative", second[i], wanted[i]);
    tensors_release(second, 3);
    tensors_release(grads, 2);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    EACH(c, edges) {
        group("%s", c->name);
        run(c);
        nothing_left();
    }
    return done();
}
