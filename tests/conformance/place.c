/* SPDX-License-Identifier: Apache-2.0 */
/* place.c: the values of an op's inputs, and their layouts in device memory.
 *
 * The elements between those of a sliced input are NaN (floating) or a large number, so that reads of wrong elements
 * are detected. */
#include "suite.h"

const char *const layout_names[LAYOUTS] = {
    [CONTIGUOUS] = "contiguous", [OFFSET] = "unaligned", [TRANSPOSED] = "transposed", [PERMUTED] = "permuted",
    [SLICED] = "sliced", [EXPANDED] = "broadcast", [CHANNELS_LAST] = "channels-last",
};

/* The dim that a broadcast input repeats: the first dim larger than 1, for every other input the last one; -1 if there
 * is none. */
static int expanded_dim(int ndim, const int64_t *shape, int input)
{
    for (int k = 0; k < ndim; k++) {
        int d = input % 2 ? ndim - 1 - k : k;
        if (shape[d] > 1)
            return d;
    }
    return -1;
}

/* The layout of an input of this shape: `layout`, or CONTIGUOUS if `layout` does not apply to the shape. */
static enum layout layout_of(int n, const int64_t *shape, enum layout layout, int input)
{
    if ((layout == TRANSPOSED && n < 2) || (layout == PERMUTED && n < 3) || (layout == SLICED && n < 1)
        || (layout == CHANNELS_LAST && n != 4) || (layout == EXPANDED && expanded_dim(n, shape, input) < 0))
        return CONTIGUOUS;
    return layout;
}

bool layout_fits(enum layout layout, const struct check_op *op, const struct variant *v)
{
    for (int i = 0; i < op->inputs; i++)
        if (layout_of(v->in[i].n, v->in[i].d, layout, i) == layout)
            return true;
    return false;
}

/* ---- values ---- */

static const double special_floats[] = { NAN, INFINITY, -INFINITY, 0,    -0.0, 1,   -1,
                                         2.5, -2.5,     0.5,       -0.5, 100,  -100 };
static const int64_t special_ints[] = { 0, 1, -1, 2, -2, 7, -7, 100, 3, INT64_MAX, INT64_MIN, 5, 63 };
enum { SPECIALS = 13 };         /* number of values in each table; SPECIAL variants have 13 or 13 * 13 elements */

static void fill_special(struct array *a, int input, int inputs, bool no_zero)
{
    for (int64_t k = 0; k < a->numel; k++) {
        int64_t which = inputs == 1 ? k % SPECIALS : input == 0 ? k / SPECIALS % SPECIALS : k % SPECIALS;
        if (a->f) {
            a->f[k] = special_floats[which];
            continue;
        }
        int64_t value = special_ints[which];
        if (value == INT64_MAX || value == INT64_MIN) {         /* stand for the limits of the dtype */
            const int shift = 64 - (int)ctrt_dtype_size(a->dtype) * 8;
            value = a->dtype == CTRT_U8 ? (value > 0 ? 255 : 128) : value >> shift;
        }
        a->i[k] = wrap_to(a->dtype, value);
        if (no_zero && input == 1 && a->i[k] == 0)
            a->i[k] = 3;
    }
}

static void shuffle(int64_t *order, int64_t n, struct dice *dice)
{
    for (int64_t k = 0; k < n; k++)
        order[k] = k;
    for (int64_t k = n - 1; k > 0; k--) {
        int64_t other = (int64_t)(dice_next(dice) % (uint64_t)(k + 1)), was = order[k];
        order[k] = order[other];
        order[other] = was;
    }
}

/* Fills `a` with one value from each of numel equal parts of the domain, in random order, not close to multiples of
 * 1/2. */
static void fill_smooth(struct array *a, const struct domain *domain, int input, struct dice *dice)
{
    int64_t *order = scratch((size_t)a->numel * sizeof *order);
    shuffle(order, a->numel, dice);
    static const double places[MAX_INPUTS] = { 0.5, 0.22, 0.78, 0.36, 0.64 };
    for (int64_t k = 0; k < a->numel; k++) {
        double x = domain->lo + (domain->hi - domain->lo) * ((double)order[k] + places[input]) / (double)a->numel;
        double kink = rint(2 * x) / 2;
        if (fabs(x - kink) < 0.003)
            x = kink + (x < kink ? -0.003 : 0.003);
        a->f[k] = x;
    }
}

static void fill_real(struct array *a, const struct domain *domain, bool no_zero, struct dice *dice)
{
    double low = a->dtype == CTRT_U8 && domain->lo < 0 ? 0 : ceil(domain->lo);
    for (int64_t k = 0; k < a->numel; k++) {
        double u = dice_unit(dice);
        if (a->f) {
            a->f[k] = round_to(a->dtype, domain->lo + (domain->hi - domain->lo) * u);
        } else if (a->dtype == CTRT_BOOL) {
            a->i[k] = u < 0.5;
        } else {
            a->i[k] = (int64_t)(low + floor((floor(domain->hi) - low + 1) * u));
            if (no_zero && a->i[k] == 0)
                a->i[k] = 1;
        }
    }
}

static ctrt_dtype input_dtype(const struct domain *domain, ctrt_dtype dtype)
{
    switch (domain->kind) {
    case INDEX: return CTRT_I64;
    case MASK:  return CTRT_BOOL;
    default:    return dtype;
    }
}

static void fill_one(struct array *a, const struct check_op *op, const struct variant *v, int input,
                     bool smooth, struct dice *dice)
{
    const struct domain *domain = &op->in[input];
    bool no_zero = (op->flags & NO_ZERO_DIVISOR) && input == 1;
    const int64_t columns = a->ndim > 0 ? a->shape[a->ndim - 1] : 1;
    if (domain->kind == INDEX)
        for (int64_t k = 0; k < a->numel; k++)
            a->i[k] = (int64_t)(dice_next(dice) % (uint64_t)v->n[7]);
    else if (domain->kind == MASK)
        for (int64_t k = 0; k < a->numel; k++)
            a->i[k] = domain->lo < 0 && k / columns % 2 == 0
                          ? 0 : (int64_t)(dice_next(dice) >> 33 & 1) | (domain->lo > 0 && k % columns == 0);
    else if (domain->kind == BIAS)
        for (int64_t k = 0; k < a->numel; k++)
            a->f[k] = k / columns % 2 == 0 || dice_next(dice) >> 33 & 1
                          ? -INFINITY : round_to(a->dtype, domain->lo + (domain->hi - domain->lo) * dice_unit(dice));
    else if (v->sort == SPECIAL)
        fill_special(a, input, op->inputs, no_zero);
    else if (smooth && a->f)
        fill_smooth(a, domain, input, dice);
    else
        fill_real(a, domain, no_zero, dice);
}

bool fill_inputs(struct array *full, const struct check_op *op, const struct variant *v, ctrt_dtype dtype,
                 enum layout layout, bool smooth, struct dice *dice)
{
    if (!layout_fits(layout, op, v))
        return false;
    for (int i = 0; i < op->inputs; i++) {
        const struct shape *shape = &v->in[i];
        if (shape->n < 0)
            continue;
        array_make(&full[i], input_dtype(&op->in[i], dtype), shape->n, shape->d);
        int d = layout == EXPANDED ? expanded_dim(shape->n, shape->d, i) : -1;
        if (d < 0) {
            fill_one(&full[i], op, v, i, smooth, dice);
            continue;
        }
        struct array one;
        int64_t thin[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
        memcpy(thin, shape->d, sizeof shape->d);
        thin[d] = 1;
        array_make(&one, full[i].dtype, shape->n, thin);
        fill_one(&one, op, v, i, smooth, dice);
        for (int64_t k = 0; k < full[i].numel; k++) {
            index_of(index, k, shape->n, shape->d);
            element_copy(&full[i], k, &one, offset_in(&one, index, shape->n));
        }
    }
    return true;
}

/* ---- layouts ---- */

/* Dim d of the full array is dim order[d] of the memory. */
static void dim_order(int64_t *order, enum layout layout, int n)
{
    static const int64_t channels_last[4] = { 0, 3, 1, 2 };
    for (int d = 0; d < n; d++)
        order[d] = layout == PERMUTED ? n - 1 - d : layout == CHANNELS_LAST ? channels_last[d] : d;
    if (layout == TRANSPOSED) {
        order[n - 1] = n - 2;
        order[n - 2] = n - 1;
    }
}

/* Writes the shape of the memory that contains `full` in this layout, and returns its number of dims. */
static int base_shape(int64_t *shape, const struct array *full, enum layout layout, int input)
{
    int64_t order[CTRT_MAX_DIMS];
    int n = full->ndim;
    if (layout == OFFSET) {
        shape[0] = full->numel + 1;
        return 1;
    }
    dim_order(order, layout, n);
    for (int d = 0; d < n; d++)
        shape[order[d]] = full->shape[d];
    if (layout == EXPANDED)
        shape[expanded_dim(n, full->shape, input)] = 1;
    if (layout == SLICED) {
        shape[n - 1] = 2 * full->shape[n - 1] + 1;
        if (n > 1)
            shape[0] = full->shape[0] + 2;
    }
    return n;
}

static int64_t base_offset(const struct array *base, const struct array *full, enum layout layout, int64_t k)
{
    int n = full->ndim;
    int64_t at[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS], order[CTRT_MAX_DIMS];
    if (layout == OFFSET)
        return k + 1;
    index_of(at, k, n, full->shape);
    dim_order(order, layout, n);
    for (int d = 0; d < n; d++)
        index[order[d]] = at[d];
    if (layout == SLICED) {
        index[n - 1] = 2 * at[n - 1] + 1;
        if (n > 1)
            index[0] = at[0] + 1;
    }
    return offset_in(base, index, base->ndim);
}

static ctrt_status make_view(ctrt_tensor **out, ctrt_tensor *leaf, const struct array *full, enum layout layout)
{
    int n = full->ndim;
    int64_t order[CTRT_MAX_DIMS];
    switch (layout) {
    case OFFSET:
        CTRT_TRY(ctrt_narrow(out, leaf, 0, 1, full->numel));
        return ctrt_view_as(out, *out, ctrt_ints_of(full->shape, n));
    case SLICED:
        CTRT_TRY(ctrt_slice(out, leaf, n - 1, 1, 2 * full->shape[n - 1] + 1, 2));
        return n > 1 ? ctrt_narrow(out, *out, 0, 1, full->shape[0]) : CTRT_OK;
    case EXPANDED:
        return ctrt_expand(out, leaf, ctrt_ints_of(full->shape, n));
    case TRANSPOSED:
    case PERMUTED:
    case CHANNELS_LAST:
        dim_order(order, layout, n);
        return ctrt_permute(out, leaf, ctrt_ints_of(order, n));
    default:
        ctrt_tensor_assign(out, leaf);
        return CTRT_OK;
    }
}

ctrt_status place(struct placed *p, const struct array *full, enum layout layout, int input,
                  ctrt_device *device, bool require_grad)
{
    int64_t shape[CTRT_MAX_DIMS];
    layout = layout_of(full->ndim, full->shape, layout, input);
    array_make(&p->base, full->dtype, base_shape(shape, full, layout, input), shape);
    for (int64_t k = 0; k < p->base.numel; k++)
        if (p->base.f)
            p->base.f[k] = NAN;
        else
            p->base.i[k] = wrap_to(full->dtype, 0x5b5b5b5b5b5b5b5b);
    p->map = scratch((size_t)full->numel * sizeof *p->map);
    for (int64_t k = 0; k < full->numel; k++) {
        p->map[k] = base_offset(&p->base, full, layout, k);
        element_copy(&p->base, p->map[k], full, k);
    }
    CTRT_TRY(array_upload(&p->leaf, &p->base, device));
    if (require_grad)
        CTRT_TRY(ctrt_tensor_require_grad(p->leaf, true));
    return make_view(&p->tensor, p->leaf, full, layout);
}

void unplace(struct placed *p)
{
    ctrt_tensor_release(&p->tensor);
    ctrt_tensor_release(&p->leaf);
}

bool session_begin(struct run *run, struct session *s, const struct check_op *op, const struct variant *v,
                   const struct array *full, enum layout first, enum layout others, bool grad)
{
    memset(s, 0, sizeof *s);
    run->variant = v->what;
    for (int i = 0; i < op->inputs; i++) {
        if (present(v, i)
            && !check_ok(run, place(&s->in[i], &full[i], i ? others : first, i, run->device,
                                    grad && op->in[i].kind == REAL), "placing an operand"))
            return false;
        s->tensors[i] = s->in[i].tensor;
    }
    return true;
}

void session_end(struct session *s)
{
    for (int o = 0; o < MAX_OUTPUTS; o++)
        ctrt_tensor_release(&s->out[o]);
    for (int i = 0; i < MAX_INPUTS; i++)
        unplace(&s->in[i]);
}
