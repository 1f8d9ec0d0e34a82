/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c: compares the results of ops with their references, for all dtypes and layouts. */
#include <stdio.h>

#include "suite.h"

/* ---- the members of a row, with their defaults ---- */

/* The variants of elementwise ops: odd sizes, so that vector loops have a tail, and operands that broadcast. */
static const struct variant one_operand[] = {
    { "", NORMAL, .in = { S(2, 3, 5) } },
    { "", NORMAL, .in = { S(7, 9) } },
    { "", ZERO_SIZE, .in = { S(0) } },
    { "", ZERO_SIZE, .in = { S(3, 0, 2) } },
    { "", ZERO_DIM, .in = { S0 } },
    { "", LARGE, .in = { S(5003) } },
    { "", LARGE, .in = { S(257, 263) } },
    { "", SPECIAL, .in = { S(13) } },
};
static const struct variant two_operands[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5) } },
    { "rows", NORMAL, .in = { S(4, 1, 5), S(3, 1) } },
    { "row", NORMAL, .in = { S(6, 5), S(5) } },
    { "scalar left", NORMAL, .in = { S0, S(2, 3) } },
    { "scalar right", NORMAL, .in = { S(2, 3), S(1, 1) } },
    { "", ZERO_SIZE, .in = { S(0), S(0) } },
    { "broadcast", ZERO_SIZE, .in = { S(3, 0, 2), S(1, 2) } },
    { "", ZERO_DIM, .in = { S0, S0 } },
    { "", LARGE, .in = { S(5003), S(5003) } },
    { "row", LARGE, .in = { S(257, 263), S(263) } },
    { "", SPECIAL, .in = { S(169), S(169) } },
};

static const struct variant same_shape[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5) } },
    { "", ZERO_SIZE, .in = { S(0), S(0) } },
    { "", ZERO_DIM, .in = { S0, S0 } },
    { "", LARGE, .in = { S(5003), S(5003) } },
    { "", SPECIAL, .in = { S(169), S(169) } },
};

const struct variant *op_variants(const struct check_op *op, int *count)
{
#define USE(table) (*count = (int)(sizeof(table) / sizeof((table)[0])), table)
    if (op->variants) {
        *count = op->variant_count;
        return op->variants;
    }
    if (op->inputs == 1)
        return USE(one_operand);
    return op->flags & NO_BROADCAST ? USE(same_shape) : USE(two_operands);
#undef USE
}

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
    bool integers = in[0].i != NULL && (op->i1 || op->i2 || op->iv);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, ndim, shape);
        int64_t a = offset_in(&in[0], index, ndim), b = op->inputs > 1 ? offset_in(&in[1], index, ndim) : 0;
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

static const char *describe(char *text, size_t bytes, const struct variant *v, int output, int outputs)
{
    char number[24] = "";
    if (outputs > 1)
        snprintf(number, sizeof number, " %d", output);
    snprintf(text, bytes, "%s%sresult%s", v->what, v->what[0] ? ": " : "", number);
    return text;
}

static bool compare_results(struct run *run, const struct check_op *op, const struct variant *v,
                            ctrt_dtype dtype, const struct array *got, const struct array *full)
{
    int outputs = op->outputs ? op->outputs : 1;
    struct array want[MAX_OUTPUTS];
    bool fine = true;
    char what[96];
    memset(want, 0, sizeof want);
    op_reference(want, full, v, op);
    for (int o = 0; o < outputs; o++)
        fine &= check_array(run, describe(what, sizeof what, v, o, outputs), &got[o], &want[o], op->tolerance,
                            compute_dtype(dtype));
    return fine;
}

/* Repeats the call, with an output variable that holds the first operand. The result must be bitwise equal, and the
 * operands unchanged. */
static void check_conduct(struct run *run, const struct check_op *op, const struct variant *v,
                          struct placed *in, ctrt_tensor *const *tensors, const struct array *got)
{
    ctrt_tensor *out[MAX_OUTPUTS] = { NULL };
    struct array again;
    ctrt_tensor_assign(&out[0], tensors[0]);
    if (!check_ok(run, op_call(op, out, tensors, v), NULL, 0, "the same call into the operand's variable"))
        goto done;
    if (!check_ok(run, array_download(&again, out[0]), NULL, 0, "reading the result"))
        goto done;
    if (!same_bits(&again, got))
        check_fail(run, "%s: the same call twice gives different results", v->what);
    for (int i = 0; i < op->inputs; i++) {
        struct array now;
        if (!present(v, i) || !check_ok(run, array_download(&now, in[i].leaf), NULL, 0, "reading an operand"))
            continue;
        if (!same_bits(&now, &in[i].base))
            check_fail(run, "%s: operand %d was changed", v->what, i);
    }
done:
    for (int o = 0; o < MAX_OUTPUTS; o++)
        ctrt_tensor_release(&out[o]);
}

static void check_variant(struct run *run, const struct check_op *op, const struct variant *v, ctrt_dtype dtype,
                          enum layout layout, int salt)
{
    struct array full[MAX_INPUTS], got[MAX_OUTPUTS];
    struct placed in[MAX_INPUTS];
    ctrt_tensor *tensors[MAX_INPUTS] = { NULL }, *out[MAX_OUTPUTS] = { NULL };
    struct dice dice = op_dice(run, op, dtype, salt);
    int outputs = op->outputs ? op->outputs : 1;
    memset(full, 0, sizeof full);
    memset(got, 0, sizeof got);
    memset(in, 0, sizeof in);
    if (!fill_inputs(full, op, v, dtype, layout, false, &dice))
        return;
    for (int i = 0; i < op->inputs; i++) {
        if (present(v, i)
            && !check_ok(run, place(&in[i], &full[i], layout, i, run->device, false), NULL, 0,
                         "placing an operand"))
            goto done;
        tensors[i] = in[i].tensor;
    }
    if (!check_ok(run, op_call(op, out, tensors, v), op->kernel ? op->kernel : op->name, dtype,
                  v->what[0] ? v->what : "the call"))
        goto done;
    for (int o = 0; o < outputs; o++)
        if (!check_ok(run, array_download(&got[o], out[o]), NULL, 0, "reading the result"))
            goto done;
    if (compare_results(run, op, v, dtype, got, full) && (layout == CONTIGUOUS || layout == SLICED))
        check_conduct(run, op, v, in, tensors, &got[0]);
done:
    for (int o = 0; o < MAX_OUTPUTS; o++)
        ctrt_tensor_release(&out[o]);
    unplace(in, op->inputs);
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
    int count;
    const struct variant *variants = op_variants(op, &count);
    bool any = false;
    for (int k = 0; k < count; k++)
        any |= takes_part(op, &variants[k], sort, dtype, layout);
    if (!any || !check_begin(run, op->name, dtype, "forward", "%s", what))
        return;
    for (int k = 0; k < count && !run->skipped; k++)
        if (takes_part(op, &variants[k], sort, dtype, layout))
            check_variant(run, op, &variants[k], dtype, layout, (int)layout * 1000 + (int)sort * 100 + k);
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
    struct array full[MAX_INPUTS], wide[2], got, want;
    struct placed in;
    CTRT_AUTO(tensor) out = NULL;
    struct dice dice = op_dice(run, op, dtype, 77 + (int)scalar.kind);
    memset(full, 0, sizeof full);
    memset(&in, 0, sizeof in);
    fill_inputs(full, op, &shape, dtype, CONTIGUOUS, false, &dice);
    ctrt_dtype compute = with_scalar(dtype, scalar.kind);
    array_to(&wide[0], &full[0], compute);
    array_make(&wide[1], compute, 0, NULL);
    if (scalar.kind == CTRT_SCALAR_FLOAT)
        value_set(&wide[1], 0, scalar.f);
    else if (wide[1].i)
        wide[1].i[0] = wrap_to(compute, scalar.i);
    else
        wide[1].f[0] = (double)scalar.i;
    if (check_ok(run, place(&in, &full[0], TRANSPOSED, 0, run->device, false), NULL, 0, "placing an operand")
        && check_ok(run, op->scalar(&out, in.tensor, scalar), op->kernel ? op->kernel : op->name, compute, what)
        && check_ok(run, array_download(&got, out), NULL, 0, "reading the result")) {
        op_reference(&want, wide, &shape, op);
        check_array(run, what, &got, &want, op->tolerance, compute_dtype(compute));
    }
    unplace(&in, 1);
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
