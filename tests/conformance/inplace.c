/* SPDX-License-Identifier: Apache-2.0 */
/* inplace.c: checks ops in place: the values, that memory outside self is unchanged, and that the storage's version
 * changes. */
#include "suite.h"

static int category(ctrt_dtype dtype)
{
    return is_floating(dtype) ? 2 : dtype == CTRT_BOOL ? 0 : 1;
}

/* The expected content of self's memory after the op: results in the elements of self, the old values elsewhere. */
static void expected_base(struct array *base, const struct placed *self, const struct array *result)
{
    struct array cast;
    array_to(&cast, result, self->base.dtype);
    *base = self->base;
    base->f = NULL;
    base->i = NULL;
    array_to(base, &self->base, self->base.dtype);
    if (base->f) {
        base->size = scratch((size_t)base->numel * sizeof *base->size);
        for (int64_t k = 0; k < base->numel; k++)
            base->size[k] = fabs(base->f[k]);
    }
    for (int64_t k = 0; k < cast.numel; k++)
        if (base->f) {
            base->f[self->map[k]] = result->f ? result->f[k] : cast.f[k];
            base->size[self->map[k]] = result->size ? result->size[k] : fabs(cast.f[k]);
        } else {
            base->i[self->map[k]] = cast.i[k];
        }
}

static void compare_self(struct run *run, const struct check_op *op, const struct variant *v,
                         const struct placed *self, const struct array *result, ctrt_dtype compute)
{
    struct array got, want;
    if (!check_ok(run, array_download(&got, self->leaf), NULL, 0, "reading self"))
        return;
    expected_base(&want, self, result);
    check_array(run, v->what[0] ? v->what : "self's memory", &got, &want, op->tolerance, compute_dtype(compute));
}

/* A result of a higher dtype category than self cannot be stored in self. The call must fail and leave self
 * unchanged. */
static void expect_refusal(struct run *run, ctrt_status status, const struct placed *self)
{
    struct array got;
    if (status != CTRT_ERR_DTYPE)
        check_fail(run, "a floating result into %s: got '%s', expected '%s'", ctrt_dtype_name(self->base.dtype),
                   ctrt_status_string(status), ctrt_status_string(CTRT_ERR_DTYPE));
    if (!check_ok(run, array_download(&got, self->leaf), NULL, 0, "reading self"))
        return;
    check_array(run, "self after an error", &got, &self->base, EXACT, CTRT_F64);
}

static void check_inplace_variant(struct run *run, const struct check_op *op, const struct variant *v,
                                  ctrt_dtype dtype, enum layout layout)
{
    struct array full[MAX_INPUTS], want[MAX_OUTPUTS];
    struct placed in[MAX_INPUTS];
    ctrt_tensor *tensors[MAX_INPUTS] = { NULL };
    struct dice dice = op_dice(run, op, dtype, 5000 + (int)layout);
    memset(full, 0, sizeof full);
    memset(want, 0, sizeof want);
    memset(in, 0, sizeof in);
    fill_inputs(full, op, v, dtype, CONTIGUOUS, false, &dice);
    for (int i = 0; i < op->inputs; i++) {
        if (present(v, i)
            && !check_ok(run, place(&in[i], &full[i], i == 0 ? layout : CONTIGUOUS, i, run->device, false),
                         NULL, 0, "placing"))
            goto done;
        tensors[i] = in[i].tensor;
    }
    uint32_t version = ctrt_tensor_version(tensors[0]);
    ctrt_status status = op->unary_ ? op->unary_(tensors[0]) : op->binary_ ? op->binary_(tensors[0], tensors[1])
                                    : op->call_(tensors[0], tensors, v);
    op_reference(want, full, v, op);
    if (category(want[0].dtype) > category(dtype)) {
        expect_refusal(run, status, &in[0]);
    } else if (check_ok(run, status, op->kernel ? op->kernel : op->name, dtype,
                        v->what[0] ? v->what : "the call")) {
        compare_self(run, op, v, &in[0], &want[0], dtype);
        if (want[0].numel > 0 && ctrt_tensor_version(tensors[0]) == version)
            check_fail(run, "the version of the storage did not change");
    }
done:
    unplace(in, op->inputs);
}

/* Returns whether the result has self's shape. */
static bool keeps_shape(const struct check_op *op, const struct variant *v)
{
    for (int i = 1; i < op->inputs; i++) {
        if (v->in[i].n > v->in[0].n)
            return false;
        for (int d = 0; d < v->in[i].n; d++) {
            int64_t own = v->in[0].d[v->in[0].n - v->in[i].n + d];
            if (v->in[i].d[d] != own && v->in[i].d[d] != 1)
                return false;
        }
    }
    return true;
}

static void check_inplace_scalar(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    static const struct variant shape = { "", NORMAL, .in = { S(2, 3, 5), S0 } };
    struct array full[MAX_INPUTS], want;
    struct placed self;
    struct dice dice = op_dice(run, op, dtype, 5500);
    if (dtype == CTRT_BOOL || !check_begin(run, op->name, dtype, "inplace", "in place with a scalar"))
        return;
    memset(full, 0, sizeof full);
    memset(&self, 0, sizeof self);
    fill_inputs(full, op, &shape, dtype, CONTIGUOUS, false, &dice);
    value_set(&full[1], 0, 3);
    op_reference(&want, full, &shape, op);
    if (check_ok(run, place(&self, &full[0], SLICED, 0, run->device, false), NULL, 0, "placing")) {
        ctrt_status status = op->scalar_(self.tensor, ctrt_int(3));
        if (category(want.dtype) > category(dtype))
            expect_refusal(run, status, &self);
        else if (check_ok(run, status, op->kernel ? op->kernel : op->name, dtype, "with the integer 3"))
            compare_self(run, op, &shape, &self, &want, dtype);
        if (!is_floating(dtype) && array_download(&self.base, self.leaf) == CTRT_OK)
            expect_refusal(run, op->scalar_(self.tensor, ctrt_float(2.5)), &self);
    }
    unplace(&self, 1);
    check_end(run);
}

void check_inplace(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    static const enum layout layouts[] = { CONTIGUOUS, OFFSET, TRANSPOSED, SLICED };
    int count;
    const struct variant *variants = op_variants(op, &count);
    if (op->unary_ || op->binary_ || op->call_)
        for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
            if (!check_begin(run, op->name, dtype, "inplace", "in place %s", layout_names[layouts[l]]))
                continue;
            for (int k = 0; k < count && !run->skipped; k++)
                if (variants[k].sort != LARGE && variants[k].sort != SPECIAL && keeps_shape(op, &variants[k])
                    && layout_fits(layouts[l], op, &variants[k]))
                    check_inplace_variant(run, op, &variants[k], dtype, layouts[l]);
            check_end(run);
        }
    if (op->scalar_)
        check_inplace_scalar(run, op, dtype);
}
