/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how the library follows the rows through a loss function: results whose rows stay apart have the value of
 * `single`; those that combine rows of the part are refused. */
#include "loss_check.h"

static ctrt_status flat(ctrt_tensor **out, ctrt_tensor *x)
{
    return ctrt_reshape(out, x, CTRT_SHAPE(ctrt_tensor_numel(x)));
}

/* ---- losses that the parts give right ---- */

/* Views before and after the reduction. */
LOSS(of_views)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_transpose(&v, output, 0, 1));
    CTRT_TRY(flat(&v, v));
    CTRT_TRY(mean_of(&v, v));
    CTRT_TRY(ctrt_view_as(&v, v, CTRT_SHAPE(1, 1)));
    return ctrt_select(loss, v, 0, 0);
}

LOSS(of_column)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_select(&v, output, 1, 0));
    return mean_of(loss, v);
}

/* The loss in place, and added to itself. */
LOSS(in_place)
{
    UNUSED;
    CTRT_TRY(mean_of(loss, output));
    CTRT_TRY(ctrt_mul_scalar_(*loss, ctrt_float(2)));
    CTRT_TRY(ctrt_add_(*loss, *loss));
    return ctrt_add(loss, *loss, *loss);
}

LOSS(on_the_cpu)
{
    UNUSED;
    CTRT_TRY(mean_of(loss, output));
    return ctrt_to_device(loss, *loss, cpu);
}

LOSS(of_rows_twice)
{
    CTRT_AUTO(tensor) both = NULL;
    UNUSED;
    CTRT_TRY(ctrt_cat(&both, (ctrt_tensor *[]){ output, output }, 2, 0));
    return mean_of(loss, both);
}

/* A product of the rows with a matrix, on either side, and of each row with itself. */
LOSS(of_products)
{
    CTRT_AUTO(tensor) matrix = NULL, left = NULL, row = NULL, column = NULL;
    const int64_t rows = ctrt_tensor_size(output, 0);
    UNUSED;
    matrix = ramp(CTRT_SHAPE(CLASSES, CLASSES), 0.1, ctrt_tensor_device(output));
    CTRT_TRY(ctrt_matmul(loss, output, matrix));
    CTRT_TRY(ctrt_transpose(&left, *loss, 0, 1));
    CTRT_TRY(ctrt_matmul(&left, matrix, left));
    CTRT_TRY(ctrt_transpose(&left, left, 0, 1));
    CTRT_TRY(ctrt_view_as(&row, output, CTRT_SHAPE(rows, 1, CLASSES)));
    CTRT_TRY(ctrt_view_as(&column, output, CTRT_SHAPE(rows, CLASSES, 1)));
    CTRT_TRY(ctrt_matmul(&row, row, column));               /* [rows, 1, 1] */
    CTRT_TRY(ctrt_view_as(&row, row, CTRT_SHAPE(rows, 1)));
    CTRT_TRY(ctrt_mul(loss, left, row));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

/* NaN in the rows that are masked. */
LOSS(with_nan)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_log(&v, inputs[MASK]));
    CTRT_TRY(ctrt_mul_scalar(&v, v, ctrt_float(0)));
    CTRT_TRY(ctrt_add(&v, output, v));
    return mean_of(loss, v);
}

static const struct loss_kind right[] = {
    { "views", of_views }, { "a column", of_column }, { "in place", in_place }, { "on the cpu", on_the_cpu },
    { "rows twice", of_rows_twice }, { "products", of_products }, { "NaN in a part", with_nan },
};

/* ---- losses that are another function of the rows than a sum over the parts ---- */

/* Similarities of each row and each other one, as contrastive losses compute them. */
LOSS(similarities)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_transpose(&v, output, 0, 1));
    CTRT_TRY(ctrt_matmul(&v, output, v));
    return mean_of(loss, v);
}

LOSS(differences)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    const int64_t rows = ctrt_tensor_size(output, 0);
    UNUSED;
    CTRT_TRY(ctrt_view_as(&a, output, CTRT_SHAPE(rows, 1, CLASSES)));
    CTRT_TRY(ctrt_view_as(&b, output, CTRT_SHAPE(1, rows, CLASSES)));
    CTRT_TRY(ctrt_sub(&a, a, b));
    return mean_of(loss, a);
}

LOSS(covariances)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_transpose(&v, output, 0, 1));
    CTRT_TRY(ctrt_matmul(&v, v, output));
    return mean_of(loss, v);
}

/* The sum over the rows with weights, squared. */
LOSS(weighted_row)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_transpose(&v, inputs[MASK], 0, 1));
    CTRT_TRY(ctrt_matmul(&v, v, output));
    return mean_of(loss, v);
}

/* Two more rows in each part. */
LOSS(more_rows)
{
    CTRT_AUTO(tensor) v = NULL;
    UNUSED;
    CTRT_TRY(ctrt_ones(&v, CTRT_SHAPE(2, CLASSES), CTRT_F32, ctrt_tensor_device(output)));
    CTRT_TRY(ctrt_cat(&v, (ctrt_tensor *[]){ output, v }, 2, 0));
    return mean_of(loss, v);
}

static const struct refused_loss wrong[] = {
    { similarities, "\"matmul\"" }, { differences, "\"sub\"" }, { covariances, "\"matmul\"" },
    { weighted_row, "\"matmul\"" }, { more_rows, "\"cat\"" },
};

/* ---- strategies ---- */

static const char *strategy;

static void compare(void)
{
    EACH(kind, right) {
        struct pair p = pair_on_devices(mlp_new, strategy, 3);
        const double want = loss_step(p.one, cpu, kind->function, NULL, 1, 0, 8);
        same_loss(kind->name, loss_step(p.net, cpu, kind->function, NULL, 1, 0, 8), want);
        if (!isnan(want))
            same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
        pair_free(&p);
    }
    EACH(refused, wrong) {
        struct pair p = pair_on_devices(mlp_new, strategy, 2);
        loss_refused(p.net, cpu, refused, 0, 8);
        (void)loss_step(p.one, cpu, refused->function, NULL, 1, 0, 8);
        pair_free(&p);
    }
}

LOSS(integer)
{
    UNUSED;
    CTRT_TRY(loss_sum(loss, output, inputs, count, user));
    return ctrt_to_dtype(loss, *loss, CTRT_I64);
}

static void no_number(void)
{
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    struct pair p = pair_on_devices(mlp_new, strategy, 2);
    loss_batch(inputs, cpu, 1, 0, 8);
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, inputs, LOSS_INPUTS, integer, NULL), CTRT_ERR_DTYPE,
                "the loss has dtype i64");
    CHECK_FAILS(ctrt_parallel_step(&loss, p.one, inputs, LOSS_INPUTS, integer, NULL), CTRT_ERR_DTYPE,
                "the loss has dtype i64");
    CHECK_TRUE(loss == NULL);
    tensors_release(inputs, LOSS_INPUTS);
    pair_free(&p);
}

/* ---- sums divided by the size of the part ---- */

static atomic_int divided_warnings;
static void count_divided(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    if (level == CTRT_LOG_WARNING && strcmp(component, "parallel") == 0 && strstr(text, "a sum divided by") != NULL)
        atomic_fetch_add(&divided_warnings, 1);
}

LOSS(by_number)
{
    UNUSED;
    CTRT_TRY(loss_sum(loss, output, inputs, count, user));
    return ctrt_div_scalar(loss, *loss, ctrt_float(100));
}
LOSS(by_rows)
{
    UNUSED;
    CTRT_TRY(loss_sum(loss, output, inputs, count, user));
    return ctrt_div_scalar(loss, *loss, ctrt_int(ctrt_tensor_size(output, 0)));
}

static void divided(void)
{
    struct pair p = pair_on_devices(mlp_new, strategy, 2);
    ctrt_log_set_callback(count_divided, NULL);
    (void)loss_step(p.one, cpu, by_rows, NULL, 1, 0, 8);    /* the whole batch */
    (void)loss_step(p.net, cpu, by_number, NULL, 1, 0, 8);
    EACH(kind, loss_kinds)
        (void)loss_step(p.net, cpu, kind->function, NULL, 1, 0, 8);
    CHECK_EQ(atomic_load(&divided_warnings), 0);
    (void)loss_step(p.net, cpu, by_rows, NULL, 1, 0, 8);
    CHECK_EQ(atomic_load(&divided_warnings), 1);                    /* once */
    ctrt_log_set_callback(NULL, NULL);
    pair_free(&p);
}

static void data_parallel(void)
{
    strategy = "data-parallel";
    compare();
    no_number();
    divided();
}

static void pipeline(void)
{
    strategy = "pipeline";
    compare();
    no_number();
    divided();
}

static const struct strategy_test tests[] = {
    { "data-parallel", data_parallel, { FOUR } },
    { "pipeline of two micro-batches", pipeline, { FOUR, "CTRT_PIPELINE_MICRO=2" } },
};

TEST_MAIN
{
    run_strategy_tests(tests, COUNT(tests));
    return done();
}
