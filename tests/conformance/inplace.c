/* SPDX-License-Identifier: Apache-2.0 */
/* inplace.c: checks ops in place: the values, that memory outside self is unchanged, and that the storage's version
 * changes. */
#include "suite.h"

static int category(ctrt_dtype dtype)
{
    return is_floating(dtype) ? 2 : dtype == CTRT_BOOL ? 0 : 1;
}

/* Checks the content of self's memory after the op: results in the elements of self, the old values elsewhere. A result
 * of a higher dtype category than self cannot be stored in self; then the call must fail and leave self unchanged. */
static void check_self(struct run *run, const struct check_op *op, ctrt_status status, const struct placed *self,
                       const struct array *result, const char *what)
{
    const ctrt_dtype dtype = self->base.dtype;
    if (category(result->dtype) > category(dtype)) {
        if (status != CTRT_ERR_DTYPE)
            check_fail(run, "a floating result into %s: got '%s', expected '%s'", ctrt_dtype_name(dtype),
                       ctrt_status_string(status), ctrt_status_string(CTRT_ERR_DTYPE));
        check_tensor(run, "self after an error", self->leaf, &self->base, EXACT, CTRT_F64);
        return;
    }
    struct array want, cast;
    if (!check_call(run, status, dtype, what))
        return;
    array_to(&want, &self->base, dtype);
    array_to(&cast, result, dtype);
    if (want.f)
        want.size = scratch((size_t)want.numel * sizeof *want.size);
    for (int64_t k = 0; want.f && k < want.numel; k++)
        want.size[k] = fabs(want.f[k]);
    for (int64_t k = 0; k < cast.numel; k++)
        if (want.f) {
            want.f[self->map[k]] = result->f ? result->f[k] : cast.f[k];
            want.size[self->map[k]] = result->size ? result->size[k] : fabs(cast.f[k]);
        } else {
            want.i[self->map[k]] = cast.i[k];
        }
    check_tensor(run, "self's memory", self->leaf, &want, op->tolerance, compute_dtype(dtype));
}

static void check_inplace_variant(struct run *run, const struct check_op *op, const struct variant *v,
                                  ctrt_dtype dtype, enum layout layout)
{
    struct array full[MAX_INPUTS] = { 0 }, want[MAX_OUTPUTS] = { 0 };
    struct session s;
    struct dice dice = op_dice(run, op, dtype, 5000 + (int)layout);
    fill_inputs(full, op, v, dtype, CONTIGUOUS, false, &dice);
    op_reference(want, full, v, op);
    if (want[0].ndim != full[0].ndim || memcmp(want[0].shape, full[0].shape, sizeof want[0].shape) != 0)
        return;                                 /* the other operand is larger than self */
    if (session_begin(run, &s, op, v, full, layout, CONTIGUOUS, false)) {
        ctrt_tensor *self = s.tensors[0];
        const uint32_t version = ctrt_tensor_version(self);
        const ctrt_status status = op->unary_ ? op->unary_(self) : op->binary_ ? op->binary_(self, s.tensors[1])
                                                                               : op->call_(self, s.tensors, v);
        check_self(run, op, status, &s.in[0], &want[0], "the call");
        if (status == CTRT_OK && want[0].numel > 0 && ctrt_tensor_version(self) == version)
            check_fail(run, "the version of the storage did not change");
    }
    session_end(&s);
}

static void check_inplace_scalar(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    static const struct variant shape = { "", NORMAL, .in = { S(2, 3, 5), S0 } };
    struct array full[MAX_INPUTS] = { 0 }, want;
    struct session s;
    struct dice dice = op_dice(run, op, dtype, 5500);
    fill_inputs(full, op, &shape, dtype, CONTIGUOUS, false, &dice);
    value_set(&full[1], 0, 3);
    op_reference(&want, full, &shape, op);
    if (session_begin(run, &s, op, &shape, full, SLICED, CONTIGUOUS, false)) {
        check_self(run, op, op->scalar_(s.tensors[0], ctrt_int(3)), &s.in[0], &want, "with the integer 3");
        want.dtype = CTRT_F32;                  /* a result of a higher category */
        if (!is_floating(dtype) && download(run, &s.in[0].base, s.in[0].leaf))
            check_self(run, op, op->scalar_(s.tensors[0], ctrt_float(2.5)), &s.in[0], &want, "");
    }
    session_end(&s);
}

void check_inplace(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    static const enum layout layouts[] = { CONTIGUOUS, OFFSET, TRANSPOSED, SLICED };
    for (int l = 0; l < COUNT_OF(layouts) && (op->unary_ || op->binary_ || op->call_); l++) {
        if (!check_begin(run, op->name, dtype, "inplace", "in place %s", layout_names[layouts[l]]))
            continue;
        for (int k = 0; k < op->variant_count && !run->skipped; k++) {
            const struct variant *v = &op->variants[k];
            if (v->sort != LARGE && v->sort != SPECIAL && layout_fits(layouts[l], op, v))
                check_inplace_variant(run, op, v, dtype, layouts[l]);
        }
        check_end(run);
    }
    if (op->scalar_ && dtype != CTRT_BOOL && check_begin(run, op->name, dtype, "inplace", "in place with a scalar")) {
        check_inplace_scalar(run, op, dtype);
        check_end(run);
    }
}
