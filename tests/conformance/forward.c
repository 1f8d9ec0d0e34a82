/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c: compares the results of ops with their references, for all dtypes and layouts. */
#include <stdio.h>

#include "suite.h"

ctrt_dtype result_dtype(const struct check_op *op, ctrt_dtype dtype)
{
    switch (op->result) {
    case TO_FLOAT: return is_floating(dtype) ? dtype : CTRT_F32;
    case TO_BOOL:  return CTRT_BOOL;
    case TO_I64:   return CTRT_I64;
    case SUM_RULE: return is_floating(dtype) ? dtype : CTRT_I64;
    default:       return dtype;
    }
}

ctrt_status op_call(const struct check_op *op, ctrt_tensor **out, ctrt_tensor *const *in, const struct variant *v)
{
    if (op->unary)
        return op->unary(out, in[0]);
    if (op->binary)
        return op->binary(out, in[0], in[1]);
    return op->call(out, in, v);
}

void broadcast_shape(int64_t *shape, int *ndim, const struct array *in, int count)
{
    *ndim = 0;
    for (int i = 0; i < count; i++)
        *ndim = in[i].ndim > *ndim ? in[i].ndim : *ndim;
    for (int d = 0; d < *ndim; d++) {
        shape[d] = 1;
        for (int i = 0; i < count; i++) {
            int own = d - (*ndim - in[i].ndim);
            if (own >= 0 && in[i].shape[own] != 1)
                shape[d] = in[i].shape[own];
        }
    }
}

static void elementwise(struct array *out, const struct array *in, const struct variant *v,
                        const struct check_op *op)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    int ndim;
    broadcast_shape(shape, &ndim, in, op->inputs);
    array_make(out, result_dtype(op, in[0].dtype), ndim, shape);
    if (op->flags & CANCELS)
        out->size = scratch((size_t)out->numel * sizeof *out->size);
    const bool broadcasts = in[0].numel != out->numel || (op->inputs > 1 && in[1].numel != out->numel);
    bool integers = in[0].i != NULL && (op->i1 || op->i2 || op->iv);
    for (int64_t k = 0; k < out->numel; k++) {
        int64_t a = k, b = k;
        if (broadcasts) {
            index_of(index, k, ndim, shape);
            a = offset_in(&in[0], index, ndim);
            b = op->inputs > 1 ? offset_in(&in[1], index, ndim) : 0;
        }
        if (integers) {
            int64_t x = in[0].i[a], y = op->inputs > 1 ? in[1].i[b] : 0;
            int64_t value = op->i1 ? op->i1(x) : op->i2 ? op->i2(x, y) : op->iv(x, v);
            if (out->i)
                out->i[k] = wrap_to(out->dtype, value);
            else
                out->f[k] = round_to(out->dtype, (double)value);
        } else {
            double x = value_of(&in[0], a), y = op->inputs > 1 ? value_of(&in[1], b) : 0;
            if (in[0].i && out->f) {            /* integers are converted to the result's type first */
                x = round_to(out->dtype, x);
                y = round_to(out->dtype, y);
            }
            double value = op->f1 ? op->f1(x) : op->f2 ? op->f2(x, y) : op->fv(x, v);
            if (out->size)
                out->size[k] = fabs(x);
            if (out->f)
                out->f[k] = value;              /* check_array rounds it */
            else
                out->i[k] = wrap_to(out->dtype, (int64_t)value);
        }
    }
}

void op_reference(struct array *out, const struct array *in, const struct variant *v, const struct check_op *op)
{
    if (op->reference)
        op->reference(out, in, v, op);
    else
        elementwise(out, in, v, op);
}

struct dice op_dice(const struct run *run, const struct check_op *op, ctrt_dtype dtype, int salt)
{
    struct dice dice = { run->options->seed * 0x9e3779b97f4a7c15u + (uint64_t)dtype * 131 + (uint64_t)salt };
    for (const char *c = op->name; *c; c++)
        dice.state = dice.state * 1099511628211u + (unsigned char)*c;
    dice_next(&dice);
    return dice;
}

/* ---- one call ---- */

static bool same_bits(const struct array *a, const struct array *b)
{
    for (int64_t k = 0; k < a->numel; k++)
        if (a->f ? memcmp(&a->f[k], &b->f[k], sizeof a->f[k]) != 0 && !(isnan(a->f[k]) && isnan(b->f[k]))
                 : a->i[k] != b->i[k])
            return false;
    return a->numel == b->numel;
}

/* Repeats the call, with an output variable that holds the first operand. The result must be bitwise equal, and the
 * operands unchanged. */
static void check_conduct(struct run *run, const struct check_op *op, const struct variant *v,
                          struct session *s, const struct array *got)
{
    ctrt_tensor *out[MAX_OUTPUTS] = { NULL };
    struct array now;
    ctrt_tensor_assign(&out[0], s->tensors[0]);
    if (check_ok(run, op_call(op, out, s->tensors, v), "the same call into the operand's variable")
        && download(run, &now, out[0])) {
        if (!same_bits(&now, got))
            check_fail(run, "the same call twice gives different results");
        for (int i = 0; i < op->inputs; i++)
            if (present(v, i) && download(run, &now, s->in[i].leaf) && !same_bits(&now, &s->in[i].base))
                check_fail(run, "operand %d was changed", i);
    }
    for (int o = 0; o < MAX_OUTPUTS; o++)
        ctrt_tensor_release(&out[o]);
}

static void check_variant(struct run *run, const struct check_op *op, const struct variant *v, ctrt_dtype dtype,
                          enum layout layout, int salt)
{
    struct array full[MAX_INPUTS] = { 0 }, want[MAX_OUTPUTS] = { 0 }, got, first;
    struct session s;
    struct dice dice = op_dice(run, op, dtype, salt);
    if (!fill_inputs(full, op, v, dtype, layout, false, &dice))
        return;
    if (session_begin(run, &s, op, v, full, layout, layout, false)
        && check_call(run, op_call(op, s.out, s.tensors, v), dtype, "the call")) {
        bool fine = true;
        op_reference(want, full, v, op);
        for (int o = 0; o < op->outputs; o++) {
            char what[] = "result 0";
            what[op->outputs > 1 ? 7 : 6] = (char)(op->outputs > 1 ? '0' + o : '\0');
            fine &= download(run, &got, s.out[o])
                    && check_array(run, what, &got, &want[o], op->tolerance, compute_dtype(dtype));
            if (o == 0)
                first = got;
        }
        if (fine && (layout == CONTIGUOUS || layout == SLICED))
            check_conduct(run, op, v, &s, &first);
    }
    session_end(&s);
}

/* ---- all calls of a row ---- */

static int64_t largest_input(const struct variant *v)
{
    int64_t most = 0;
    for (int i = 0; i < MAX_INPUTS; i++) {
        int64_t n = v->in[i].n < 0 ? 0 : 1;
        for (int d = 0; d < v->in[i].n; d++)
            n *= v->in[i].d[d];
        most = n > most ? n : most;
    }
    return most;
}

static bool takes_part(const struct check_op *op, const struct variant *v, enum sort sort, ctrt_dtype dtype,
                       enum layout layout)
{
    if (v->sort != sort || !layout_fits(layout, op, v))
        return false;
    if (sort == SPECIAL && (op->flags & NO_SPECIAL))
        return false;
    return sort != LARGE || dtype == CTRT_F32 || largest_input(v) <= 20000; /* the largest only in f32, to save time */
}

static void check_sort(struct run *run, const struct check_op *op, ctrt_dtype dtype, enum sort sort,
                       enum layout layout, const char *what)
{
    bool any = false;
    for (int k = 0; k < op->variant_count; k++)
        any |= takes_part(op, &op->variants[k], sort, dtype, layout);
    if (!any || !check_begin(run, op->name, dtype, "forward", "%s", what))
        return;
    for (int k = 0; k < op->variant_count && !run->skipped; k++)
        if (takes_part(op, &op->variants[k], sort, dtype, layout))
            check_variant(run, op, &op->variants[k], dtype, layout, (int)layout * 1000 + (int)sort * 100 + k);
    check_end(run);
}

void check_forward(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        check_sort(run, op, dtype, NORMAL, (enum layout)layout, layout_names[layout]);
    check_sort(run, op, dtype, ZERO_SIZE, CONTIGUOUS, "zero-size");
    check_sort(run, op, dtype, ZERO_DIM, CONTIGUOUS, "0-dim");
    check_sort(run, op, dtype, LARGE, CONTIGUOUS, "large");
    if (op->flags & MATRICES)                           /* whose kernels pack tiles of their operands */
        check_sort(run, op, dtype, LARGE, TRANSPOSED, "large, transposed");
    check_sort(run, op, dtype, SPECIAL, CONTIGUOUS, is_floating(dtype) ? "NaN and infinities" : "limits");
}

/* ---- a scalar on the right ---- */

static ctrt_dtype with_scalar(ctrt_dtype dtype, ctrt_scalar_kind kind)
{
    if (kind == CTRT_SCALAR_FLOAT)
        return is_floating(dtype) ? dtype : CTRT_F32;
    if (kind == CTRT_SCALAR_INT)
        return dtype == CTRT_BOOL ? CTRT_I64 : dtype;
    return dtype;
}

static void check_one_scalar(struct run *run, const struct check_op *op, ctrt_dtype dtype, ctrt_scalar scalar,
                             const char *what)
{
    static const struct variant shape = { "", NORMAL, .in = { S(2, 3, 5), S0 } };
    const ctrt_dtype compute = with_scalar(dtype, scalar.kind);
    struct array full[MAX_INPUTS] = { 0 }, wide[2], want;
    struct session s;
    struct dice dice = op_dice(run, op, dtype, 77 + (int)scalar.kind);
    fill_inputs(full, op, &shape, dtype, CONTIGUOUS, false, &dice);
    array_to(&wide[0], &full[0], compute);
    array_make(&wide[1], compute, 0, NULL);
    value_set(&wide[1], 0, scalar.kind == CTRT_SCALAR_FLOAT ? scalar.f : (double)scalar.i);
    if (session_begin(run, &s, op, &shape, full, TRANSPOSED, CONTIGUOUS, false)
        && check_call(run, op->scalar(&s.out[0], s.tensors[0], scalar), compute, what)) {
        op_reference(&want, wide, &shape, op);
        check_tensor(run, what, s.out[0], &want, op->tolerance, compute_dtype(compute));
    }
    session_end(&s);
}

void check_scalar_form(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    if (op->scalar == NULL || !check_begin(run, op->name, dtype, "forward scalar", "with a scalar"))
        return;
    check_one_scalar(run, op, dtype, ctrt_int(3), "with the integer 3");
    check_one_scalar(run, op, dtype, ctrt_float(2.5), "with the float 2.5");
    if (dtype != CTRT_BOOL)
        check_one_scalar(run, op, dtype, ctrt_bool(true), "with true");
    check_end(run);
}
