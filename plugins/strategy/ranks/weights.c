/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/weights.c: the weights with which the gradients of the ranks are added up.
 *
 * The loss of a rank is multiplied so that the sum over the ranks is that of all rows:
 *
 *     mean        rows of this rank / rows of all ranks
 *     sum         rows of this rank, because the library gives S / rows
 *     fraction    per_row * rows of this rank / W of all ranks, because the library gives S / (per_row * rows)
 *
 * rows, W and the number of steps are counted since the last reduction. Gradients of steps without reduction are added
 * up in units of the first one, `unit`; n steps count as n means do. The totals over the ranks are one small
 * all_reduce between the forward and the backward pass. The host does not wait for it. A rank whose loss is no mean
 * makes the total of the means NaN, and the reverse: losses of different kinds give no number. */
#include <math.h>

#include "ranks.h"

/* Places of the totals, before WEIGHTS_JOINING. */
enum { MEAN_STEP, MEAN_ALL, FRACTION_STEP, FRACTION_ALL, SUMS };

ctrt_status weights_new(struct weights *w, ctrt_device *device)
{
    w->device = device;
    return ctrt_zeros(&w->sum, CTRT_SCALAR_SHAPE, CTRT_F64, device);
}

static void step_release(struct weights *w)
{
    ctrt_loss_part_release(&w->part);
    ctrt_work_release(&w->work);
    ctrt_tensor_release(&w->totals);
    ctrt_tensor_release(&w->own);
    ctrt_tensor_release(&w->weight);
}

void weights_free(struct weights *w)
{
    step_release(w);
    ctrt_tensor_release(&w->sum);
}

/* ---- the loss of this rank ---- */

bool weights_known(const struct weights *w)
{
    return w->part.parts > 0 || w->begun;
}

int32_t weights_kind(const struct weights *w)
{
    return w->part.parts > 0 ? w->part.kind : w->begun ? w->kind : CTRT_LOSS_MEAN;
}

static ctrt_status kinds_check(const struct weights *w, const ctrt_loss_part *part)
{
    if (!w->begun || w->kind == part->kind)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the losses of the steps since the last reduction (ctrt_parallel_no_sync) are of "
                     "different kinds (means, sums, fractions), which cannot be divided once");
}

ctrt_status weights_part(struct weights *w, const ctrt_loss_part *part, int64_t rows, bool equal_rows, double *factor)
{
    const double terms = part != NULL ? part->per_row * (double)rows : 0;
    step_release(w);
    w->part = (ctrt_loss_part){ .parts = 0 };
    w->number = 0;
    if (rows == 0 || part == NULL)
        return CTRT_OK;
    CTRT_TRY(kinds_check(w, part));
    w->part = *part;
    w->part.weight = ctrt_tensor_retain(part->weight);
    w->part_rows = rows;
    w->number = (double)rows;
    if (part->kind == CTRT_LOSS_MEAN)
        return CTRT_OK;
    w->number = w->begun ? w->unit : equal_rows ? (double)rows : terms;
    *factor *= terms / w->number;
    return CTRT_OK;
}

ctrt_status weights_mean(struct weights *w, int64_t rows)
{
    const ctrt_loss_part mean = { .kind = CTRT_LOSS_MEAN, .parts = 1, .per_row = 1 };
    double factor = 1;
    return weights_part(w, &mean, rows, false, &factor);
}

ctrt_status weights_forward(struct weights *w, ctrt_comm *comm, bool reduces)
{
    if (reduces)
        return weights_reduce(w, comm, 0);
    const struct weights_step step = weights_step(w);
    weights_count(w, &step);
    weights_end(w);
    return CTRT_OK;
}

double weights_rows(const struct weights *w, int64_t rows)
{
    return w->begun && w->kind != CTRT_LOSS_MEAN ? (double)w->first_rows : rows > 0 ? (double)rows : 1;
}

/* ---- totals ---- */

/* Adds the weights of fractions, which are on the device, to the totals. */
static ctrt_status fractions_write(const struct weights *w)
{
    CTRT_AUTO(tensor) step = NULL, all = NULL;
    if (weights_kind(w) != CTRT_LOSS_FRACTION)
        return CTRT_OK;
    CTRT_TRY(ctrt_select(&step, w->totals, 0, FRACTION_STEP));
    CTRT_TRY(ctrt_select(&all, w->totals, 0, FRACTION_ALL));
    CTRT_TRY(ctrt_copy_(all, w->sum));
    if (w->part.weight == NULL)
        return CTRT_OK;
    CTRT_TRY(ctrt_copy_(step, w->part.weight));
    return ctrt_add_(all, w->part.weight);
}

void weights_numbers(const struct weights *w, double numbers[WEIGHTS_TOTALS], int joining)
{
    const int32_t kind = weights_kind(w);
    const bool known = weights_known(w), mean = kind == CTRT_LOSS_MEAN;
    for (int i = 0; i < WEIGHTS_TOTALS; i++)
        numbers[i] = 0;
    numbers[MEAN_STEP] = mean ? w->number : NAN;
    numbers[MEAN_ALL] = mean ? (double)w->rows + w->number : NAN;
    if (known && kind != CTRT_LOSS_FRACTION)
        numbers[FRACTION_STEP] = numbers[FRACTION_ALL] = NAN;
    numbers[SUMS] = kind == CTRT_LOSS_SUM;
    numbers[WEIGHTS_JOINING] = joining;
}

ctrt_status weights_reduce(struct weights *w, ctrt_comm *comm, int joining)
{
    if (w->totals == NULL) {                /* in a capture, the replay fills them */
        double numbers[WEIGHTS_TOTALS];
        weights_numbers(w, numbers, joining);
        CTRT_TRY(ctrt_from_data(&w->totals, numbers, WEIGHTS_TOTALS, CTRT_SHAPE(WEIGHTS_TOTALS), CTRT_F64, w->device));
    }
    CTRT_TRY(fractions_write(w));
    return ctrt_comm_size(comm) > 1 ? ctrt_comm_all_reduce(&w->work, comm, w->totals, CTRT_COMM_SUM) : CTRT_OK;
}

double weights_own(const struct weights *w)
{
    const int32_t kind = weights_kind(w);
    const double unit = w->begun ? w->unit : w->number;
    return kind == CTRT_LOSS_MEAN ? (double)w->rows + w->number
           : kind == CTRT_LOSS_SUM ? unit : unit * (double)(w->steps + 1);
}

ctrt_status weights_find(struct weights *w)
{
    CTRT_AUTO(tensor) total = NULL, own = NULL, zero = NULL;
    const int32_t kind = weights_kind(w);
    if (w->weight != NULL || w->totals == NULL)
        return CTRT_OK;
    if (w->work != NULL)
        CTRT_TRY(ctrt_work_wait(w->work));
    ctrt_work_release(&w->work);
    if (w->own != NULL)
        ctrt_tensor_assign(&own, w->own);
    else
        CTRT_TRY(ctrt_full(&own, CTRT_SCALAR_SHAPE, ctrt_float(weights_own(w)), CTRT_F64, w->device));
    if (kind == CTRT_LOSS_SUM || !weights_known(w)) {
        ctrt_tensor_assign(&w->weight, own);
        return CTRT_OK;
    }
    CTRT_TRY(ctrt_select(&total, w->totals, 0, kind == CTRT_LOSS_MEAN ? MEAN_ALL : FRACTION_ALL));
    CTRT_TRY(ctrt_div(&w->weight, own, total));
    if (kind == CTRT_LOSS_MEAN)
        return CTRT_OK;
    CTRT_TRY(ctrt_eq_scalar(&zero, total, ctrt_float(0)));      /* then no row has a gradient */
    return ctrt_masked_fill(&w->weight, w->weight, zero, ctrt_float(0));
}

ctrt_status weights_apply(struct weights *w, ctrt_tensor *gradients, int size)
{
    CTRT_TRY(weights_find(w));
    if (w->weight != NULL)
        return ctrt_mul_(gradients, w->weight);
    return size > 1 ? ctrt_mul_scalar_(gradients, ctrt_float(1.0 / size)) : CTRT_OK;
}

/* ---- the loss of all ranks ---- */

/* The number by which the sum of the losses is divided. A rank without rows finds the kind in the totals. */
static ctrt_status divisor(ctrt_tensor **out, const struct weights *w)
{
    CTRT_AUTO(tensor) mean = NULL, fraction = NULL, sums = NULL, other = NULL;
    CTRT_TRY(ctrt_select(&mean, w->totals, 0, MEAN_STEP));
    CTRT_TRY(ctrt_select(&fraction, w->totals, 0, FRACTION_STEP));
    CTRT_TRY(ctrt_select(&sums, w->totals, 0, SUMS));
    CTRT_TRY(ctrt_isnan(&other, mean));
    CTRT_TRY(ctrt_where(out, other, fraction, mean));
    CTRT_TRY(ctrt_gt_scalar(&other, sums, ctrt_float(0)));
    CTRT_TRY(ctrt_isnan(&mean, fraction));                      /* else ranks with sums and with fractions met */
    CTRT_TRY(ctrt_logical_and(&other, other, mean));
    return ctrt_masked_fill(out, *out, other, ctrt_float(1));
}

/* *mean: the loss of all rows, from the sum over the ranks of the losses times w->number. */
static ctrt_status mean_of(ctrt_tensor **mean, const struct weights *w, ctrt_tensor *sum, ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) value = NULL, total = NULL;
    const int32_t kind = weights_kind(w);
    if (!weights_known(w) || kind == CTRT_LOSS_SUM)
        CTRT_TRY(divisor(&total, w));
    else
        CTRT_TRY(ctrt_select(&total, w->totals, 0, kind == CTRT_LOSS_MEAN ? MEAN_STEP : FRACTION_STEP));
    CTRT_TRY(ctrt_div(&value, sum, total));
    return ctrt_to_dtype(mean, value, dtype);
}

/* Writes the loss, times its number, to stats[0]. */
static ctrt_status loss_write(ctrt_tensor *stats, const struct weights *w, ctrt_tensor *loss)
{
    CTRT_AUTO(tensor) first = NULL, value = NULL;
    CTRT_TRY(ctrt_select(&first, stats, 0, 0));
    CTRT_TRY(ctrt_to_dtype(&value, loss, CTRT_F64));
    CTRT_TRY(ctrt_mul_scalar(&value, value, ctrt_float(w->number)));
    CTRT_TRY(ctrt_view_as(&value, value, CTRT_SCALAR_SHAPE));
    return ctrt_copy_(first, value);
}

ctrt_status weights_stats(ctrt_tensor **mean, struct weights *w, ctrt_comm *comm, ctrt_tensor *loss, double *numbers,
                          size_t count, ctrt_tensor *recorded, bool read)
{
    const int64_t n = (int64_t)count;
    CTRT_AUTO(tensor) stats = ctrt_tensor_retain(recorded), sum = NULL;
    if (stats == NULL)
        CTRT_TRY(ctrt_from_data(&stats, numbers, n, CTRT_SHAPE(n), CTRT_F64, w->device));
    if (loss != NULL)
        CTRT_TRY(loss_write(stats, w, loss));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, comm, stats, CTRT_COMM_SUM));
    CTRT_TRY(ctrt_select(&sum, stats, 0, 0));
    CTRT_TRY(mean_of(mean, w, sum, loss != NULL ? ctrt_tensor_dtype(loss) : CTRT_F32));
    return read ? ctrt_to_host(numbers, count * sizeof *numbers, stats, CTRT_F64) : CTRT_OK;
}

ctrt_status weights_keeps(ctrt_tensor **keeps, const struct weights *w)
{
    CTRT_AUTO(tensor) mean = NULL;
    CTRT_TRY(ctrt_select(&mean, w->totals, 0, MEAN_ALL));
    CTRT_TRY(ctrt_isnan(&mean, mean));
    return ctrt_to_dtype(keeps, mean, CTRT_F64);
}

ctrt_status weights_local_loss(ctrt_tensor **loss, const struct weights *w)
{
    CTRT_AUTO(tensor) wide = NULL;
    const ctrt_dtype dtype = *loss != NULL ? ctrt_tensor_dtype(*loss) : CTRT_F32;
    if (*loss == NULL)
        return ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(NAN), CTRT_F32, w->device);
    if (w->part.kind == CTRT_LOSS_MEAN)
        return CTRT_OK;
    CTRT_TRY(ctrt_to_dtype(&wide, *loss, CTRT_F64));
    CTRT_TRY(ctrt_mul_scalar(&wide, wide, ctrt_float(w->number)));
    if (w->part.weight != NULL)
        CTRT_TRY(ctrt_div(&wide, wide, w->part.weight));
    return ctrt_to_dtype(loss, wide, dtype);
}

/* ---- ends ---- */

void weights_count(struct weights *w, const struct weights_step *step)
{
    w->steps++;
    if (!step->known)
        return;
    if (!w->begun) {
        w->begun = true;
        w->kind = step->kind;
        w->unit = step->number;
        w->first_rows = step->rows;
    }
    w->rows += step->rows;
}

struct weights_step weights_step(const struct weights *w)
{
    return (struct weights_step){ w->part.parts > 0, w->part.kind, w->part_rows, w->number };
}

ctrt_status weights_add(struct weights *w)
{
    return w->part.weight != NULL ? ctrt_add_(w->sum, w->part.weight) : CTRT_OK;
}

ctrt_status weights_clear(struct weights *w)
{
    return weights_kind(w) == CTRT_LOSS_FRACTION ? ctrt_zero_(w->sum) : CTRT_OK;
}

void weights_reset(struct weights *w)
{
    w->begun = false;
    w->rows = w->steps = w->first_rows = 0;
    w->unit = 0;
    w->kind = CTRT_LOSS_MEAN;
}

void weights_end(struct weights *w)
{
    if (w->work != NULL)
        (void)ctrt_work_wait(w->work);
    step_release(w);
    w->part = (ctrt_loss_part){ .parts = 0 };
    w->part_rows = 0;
    w->number = 0;
}

ctrt_status weights_verify(struct weights *w)
{
    double totals[WEIGHTS_TOTALS] = { 0 };
    const int32_t kind = weights_kind(w);
    if (!weights_known(w) || kind == CTRT_LOSS_SUM)
        return CTRT_OK;
    CTRT_TRY(weights_find(w));
    CTRT_TRY(ctrt_to_host(totals, sizeof totals, w->totals, CTRT_F64));
    if (!isnan(totals[kind == CTRT_LOSS_MEAN ? MEAN_ALL : FRACTION_ALL]))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the loss is %s on this rank, but not on others%s",
                     kind == CTRT_LOSS_MEAN ? "a mean" : "a fraction",
                     kind == CTRT_LOSS_MEAN ? "" : ", or its weight is NaN");
}
