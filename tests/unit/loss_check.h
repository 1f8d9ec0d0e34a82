/* SPDX-License-Identifier: Apache-2.0 */
/* loss_check.h: loss functions of every kind, and batches for them, for tests of strategies. */
#ifndef CTRT_TESTS_LOSS_CHECK_H
#define CTRT_TESTS_LOSS_CHECK_H

#include "rank_check.h"

enum { CLASSES = 3, IGNORED = 1, LOSS_ROWS = 12 };

/* What inputs[1] and following of a step are: labels [rows], a mask [rows, 1]. */
enum { LABELS = 1, MASK, LOSS_INPUTS };

/* The sum and the number of unmasked elements. */
static inline ctrt_status masked_parts(ctrt_tensor **sum, ctrt_tensor **number, ctrt_tensor *output, ctrt_tensor *mask)
{
    ctrt_status status;
    CTRT_TRY(ctrt_square(sum, output));
    CTRT_TRY(ctrt_mul(sum, *sum, mask));
    CTRT_TRY(ctrt_sum(sum, *sum, CTRT_ALL_DIMS));
    ctrt_no_grad status = ctrt_sum(number, mask, CTRT_ALL_DIMS);
    return status;
}

static inline ctrt_status mean_of(ctrt_tensor **loss, ctrt_tensor *output)
{
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

static inline ctrt_status class_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *labels, bool weighted,
                                     int64_t ignore, double smoothing, ctrt_reduction reduction)
{
    CTRT_AUTO(tensor) weight = NULL;
    const float values[CLASSES] = { 0.25F, 1, 2.5F };
    if (weighted)
        CTRT_TRY(ctrt_from_data(&weight, values, CLASSES, CTRT_SHAPE(CLASSES), CTRT_F32, ctrt_tensor_device(output)));
    ctrt_cross_entropy_options options = CTRT_CROSS_ENTROPY_OPTIONS;
    options.weight = weight;
    options.label_smoothing = smoothing;
    options.reduction = reduction;
    if (ignore >= 0)
        options.ignore_index = ignore;
    return ctrt_cross_entropy(loss, output, labels, &options);
}

#define LOSS(name) \
    static inline ctrt_status name(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, \
                                   void *user)
#define UNUSED (void)inputs, (void)count, (void)user

LOSS(loss_mean) { UNUSED; return mean_of(loss, output); }
LOSS(loss_classes) { UNUSED; return class_loss(loss, output, inputs[LABELS], false, -1, 0, CTRT_REDUCE_MEAN); }
LOSS(loss_ignore) { UNUSED; return class_loss(loss, output, inputs[LABELS], false, IGNORED, 0, CTRT_REDUCE_MEAN); }
LOSS(loss_weights) { UNUSED; return class_loss(loss, output, inputs[LABELS], true, -1, 0, CTRT_REDUCE_MEAN); }
LOSS(loss_smooth) { UNUSED; return class_loss(loss, output, inputs[LABELS], true, IGNORED, 0.2, CTRT_REDUCE_MEAN); }
LOSS(loss_class_sum) { UNUSED; return class_loss(loss, output, inputs[LABELS], false, IGNORED, 0, CTRT_REDUCE_SUM); }

LOSS(loss_sum)
{
    UNUSED;
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_sum(loss, *loss, CTRT_ALL_DIMS);
}

LOSS(loss_masked)
{
    CTRT_AUTO(tensor) sum = NULL, number = NULL;
    UNUSED;
    CTRT_TRY(masked_parts(&sum, &number, output, inputs[MASK]));
    return ctrt_loss_fraction(loss, sum, number);
}

/* Linear ops on a fraction, and two fractions with one weight. */
LOSS(loss_linear)
{
    CTRT_AUTO(tensor) sum = NULL, number = NULL, other = NULL;
    UNUSED;
    CTRT_TRY(masked_parts(&sum, &number, output, inputs[MASK]));
    CTRT_TRY(ctrt_loss_fraction(loss, sum, number));
    CTRT_TRY(ctrt_mul(&sum, output, inputs[MASK]));
    CTRT_TRY(ctrt_sum(&sum, sum, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_loss_fraction(&other, sum, number));
    CTRT_TRY(ctrt_neg(&other, other));
    CTRT_TRY(ctrt_mul_scalar(&other, other, ctrt_float(0.5)));
    CTRT_TRY(ctrt_sub(loss, *loss, other));
    CTRT_TRY(ctrt_mul_scalar_(*loss, ctrt_float(3)));
    CTRT_TRY(ctrt_view_as(loss, *loss, CTRT_SHAPE(1)));
    return ctrt_div_scalar(loss, *loss, ctrt_float(2));
}

/* The mean over columns of sums over rows, divided by a number: a sum. */
LOSS(loss_columns)
{
    UNUSED;
    CTRT_TRY(ctrt_square(loss, output));
    CTRT_TRY(ctrt_sum_dims(loss, *loss, CTRT_DIMS(0), false));
    CTRT_TRY(ctrt_mean(loss, *loss, CTRT_ALL_DIMS));
    return ctrt_div_scalar(loss, *loss, ctrt_float(7));
}

/* A mean, two cross entropies that ignore nothing, and a term that does not depend on the rows: a number, or the
 * squares of a parameter. */
LOSS(loss_several)
{
    CTRT_AUTO(tensor) other = NULL;
    (void)count;
    CTRT_TRY(loss_classes(loss, output, inputs, count, NULL));
    CTRT_TRY(mean_of(&other, output));
    CTRT_TRY(ctrt_add(loss, *loss, other));
    CTRT_TRY(loss_classes(&other, output, inputs, count, NULL));
    CTRT_TRY(ctrt_add(loss, *loss, other));
    if (user == NULL)
        return ctrt_add_scalar(loss, *loss, ctrt_float(0.25));
    CTRT_TRY(ctrt_square(&other, user));
    CTRT_TRY(ctrt_sum(&other, other, CTRT_ALL_DIMS));
    return ctrt_add(loss, *loss, other);
}

static const struct loss_kind {
    const char *name;
    ctrt_loss_function function;
} loss_kinds[] = {
    { "mean", loss_mean }, { "cross entropy", loss_classes }, { "ignore_index", loss_ignore },
    { "class weights", loss_weights }, { "class weights, ignore_index, smoothing", loss_smooth }, { "sum", loss_sum },
    { "cross entropy, sum", loss_class_sum }, { "masked", loss_masked }, { "terms of a fraction", loss_linear },
    { "sums over rows", loss_columns }, { "several terms", loss_several },
};

/* Loops over the kinds. Under a sanitizer, which makes a test several times slower, run number `n` takes every fourth
 * kind, so that runs with other numbers take the others. */
enum { LOSS_STEP = SANITIZED ? 4 : 1 };
#define EACH_LOSS(kind, n)                                                                       \
    for (const struct loss_kind *kind = &loss_kinds[(n) % LOSS_STEP];                            \
         (tap_state.row = kind < &loss_kinds[COUNT(loss_kinds)] ? (int)(kind - loss_kinds) + 1 : 0) > 0; \
         kind += LOSS_STEP)

/* ---- losses of parts that no strategy can combine ---- */

LOSS(loss_root)
{
    CTRT_TRY(loss_mean(loss, output, inputs, count, user));
    return ctrt_sqrt(loss, *loss);
}
LOSS(loss_most) { UNUSED; return ctrt_amax(loss, output, CTRT_ALL_DIMS, false); }
LOSS(loss_divided)
{
    CTRT_AUTO(tensor) sum = NULL, number = NULL;
    UNUSED;
    CTRT_TRY(masked_parts(&sum, &number, output, inputs[MASK]));
    return ctrt_div(loss, sum, number);
}
LOSS(loss_unlike)
{
    CTRT_AUTO(tensor) other = NULL;
    CTRT_TRY(loss_ignore(loss, output, inputs, count, user));
    CTRT_TRY(mean_of(&other, output));
    return ctrt_add(loss, *loss, other);
}
LOSS(loss_centred)
{
    CTRT_AUTO(tensor) centre = NULL;
    UNUSED;
    CTRT_TRY(ctrt_mean_dims(&centre, output, CTRT_DIMS(0), true));
    CTRT_TRY(ctrt_sub(&centre, output, centre));
    return mean_of(loss, centre);
}

static const struct refused_loss {
    ctrt_loss_function function;
    const char *message;
} refused_losses[] = {
    { loss_root, "\"sqrt\"" }, { loss_most, "\"amax\"" }, { loss_divided, "\"div\"" },
    { loss_unlike, "divided by different numbers (a fraction or cross entropy, a mean)" }, { loss_centred, "\"sub\"" },
};

/* ---- a module of two inputs ---- */

/* y = x w mask, with a mask per row, or without. */
static inline ctrt_status padded_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *weight = NULL;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "weight"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], weight));
    return count > 1 ? ctrt_mul(y, *y, inputs[1]) : CTRT_OK;
}

static const ctrt_module_class padded_class = {
    .size = sizeof(ctrt_module_class), .kind = "Padded", .forward = padded_forward,
};

static inline ctrt_status padded_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(FEATURES, CLASSES), 0.05, device);
    CTRT_TRY(ctrt_module_new(out, &padded_class));
    return ctrt_module_add_parameter(*out, "weight", weight);
}

/* ---- batches ---- */

/* Rows from..from+rows-1 of a batch: features, labels, mask. Rows 3 to 5 are ignored; with turn 99 all are. */
static inline void loss_batch(ctrt_tensor *inputs[LOSS_INPUTS], ctrt_device *device, int turn, int from, int rows)
{
    int64_t labels[MOST_ROWS];
    float mask[MOST_ROWS];
    REQUIRE_TRUE(rows <= MOST_ROWS);
    for (int i = 0; i < rows; i++) {
        const int row = from + i;
        const bool ignored = turn == 99 || (row >= 3 && row < 6) || (row + turn) % 7 == 0;
        labels[i] = ignored ? IGNORED : row % 2 == 0 ? 0 : 2;
        mask[i] = ignored ? 0 : 1;
    }
    inputs[0] = batch_of(device, CTRT_F32, turn, from, rows);
    CHECK_OK(ctrt_from_data(&inputs[LABELS], labels, rows, CTRT_SHAPE(rows), CTRT_I64, device));
    CHECK_OK(ctrt_from_data(&inputs[MASK], mask, rows, CTRT_SHAPE(rows, 1), CTRT_F32, device));
}

/* A step without an optimizer; returns the loss. */
static inline double loss_step(ctrt_module *net, ctrt_device *device, ctrt_loss_function function, void *user, int turn,
                               int from, int rows)
{
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    double value = INFINITY;
    loss_batch(inputs, device, turn, from, rows);
    if (CHECK_OK(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, function, user)))
        CHECK_OK(ctrt_item(&value, loss));
    tensors_release(inputs, LOSS_INPUTS);
    return value;
}

/* A step in which the module gets the mask of its rows. */
static inline double padded_step(ctrt_module *net, ctrt_device *device, int from, int rows)
{
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    double value = INFINITY;
    loss_batch(inputs, device, 1, from, rows);
    if (CHECK_OK(ctrt_parallel_step_n(&loss, net, (ctrt_tensor *[]){ inputs[0], inputs[MASK] }, 2, 2, loss_mean, NULL)))
        CHECK_OK(ctrt_item(&value, loss));
    tensors_release(inputs, LOSS_INPUTS);
    return value;
}

static inline void same_loss(const char *where, double got, double want)
{
    CHECK(isnan(want) ? isnan(got) : fabs(got - want) <= 2e-6 * fmax(1, fabs(want)), "%s: loss %.9g, expected %.9g",
          where, got, want);
}

/* The gradients of the rank's shards; of other strategies the whole gradients. */
static inline void same_sharded(struct pair *p, struct rank *rank, double tolerance)
{
    for (size_t i = 0; i < ctrt_module_parameter_count(p->one); i++) {
        ctrt_tensor *mine = ctrt_tensor_grad(parameter(p->net, i)), *want = ctrt_tensor_grad(parameter(p->one, i));
        CTRT_AUTO(tensor) rows = NULL;
        if (mine == NULL || want == NULL) {
            CHECK_TRUE(!mine == !want);
            continue;
        }
        const int64_t all = ctrt_tensor_size(want, 0), own = ctrt_tensor_size(mine, 0);
        const int64_t chunk = (all + rank->size - 1) / rank->size, from = chunk * rank->number;
        if (own > 0)
            CHECK_OK(ctrt_narrow(&rows, want, 0, own == all ? 0 : from, own));
        if (own > 0)
            NEAR(mine, rows, tolerance);
    }
}

static inline void loss_refused(ctrt_module *net, ctrt_device *device, const struct refused_loss *refused, int from,
                                int rows)
{
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    loss_batch(inputs, device, 1, from, rows);
    CHECK_FAILS(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, refused->function, NULL), CTRT_ERR_NOT_SUPPORTED,
                refused->message);
    tensors_release(inputs, LOSS_INPUTS);
}

#endif
