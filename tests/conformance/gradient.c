/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c: checks derivatives. Gradients in f64 are compared with central differences of the reference (for large
 * variants in one random direction), second derivatives with central differences of the first in random directions, and
 * gradients in other floating types with f64.
 *
 * The differentiated function is L = sum(w * op(x)) with fixed random w. Central differences with step h have a
 * truncation error of h^2/6 L''' and a rounding error of about 1e-16 L / h. With h = 1e-5 and values of order one both
 * are below 1e-9, far below the required 1e-6. */
#include "suite.h"

static const double step = 1e-5, wanted = 1e-6;

/* One call of the op, whose inputs and incoming gradient are changed by finite differences. */
struct derivation {
    struct run *run;
    const struct check_op *op;
    const struct variant *v;
    struct array full[MAX_INPUTS];
    struct array weight;                            /* w, of the result's shape */
};

static double dot(const struct array *a, const struct array *b)
{
    double sum = 0;
    for (int64_t k = 0; k < a->numel; k++)
        sum += a->f[k] * b->f[k];
    return sum;
}

static void fill_random(struct array *a, struct dice *dice)
{
    for (int64_t k = 0; k < a->numel; k++)
        a->f[k] = round_to(a->dtype, 2 * dice_unit(dice) - 1);
}

/* L of the reference. */
static double loss_of(const struct derivation *d)
{
    struct array out[MAX_OUTPUTS] = { 0 };
    op_reference(out, d->full, d->v, d->op);
    return dot(&out[0], &d->weight);
}

/* Computes dL/dx of the reference by central differences. */
static void differences(struct derivation *d, struct array *x, struct array *out)
{
    array_make(out, CTRT_F64, x->ndim, x->shape);
    for (int64_t k = 0; k < out->numel; k++) {
        const double was = x->f[k], up = was + step, down = was - step;
        void *mark = scratch_mark();
        x->f[k] = up;
        const double above = loss_of(d);
        x->f[k] = down;
        out->f[k] = (above - loss_of(d)) / (up - down);
        x->f[k] = was;
        scratch_release(mark);
    }
}

/* ---- a call and its backward pass ---- */

struct pass {
    struct session s;
    ctrt_tensor *leaves[MAX_INPUTS + 1], *weight, *grads[MAX_INPUTS];
    int count;                                      /* number of leaves */
    int which[MAX_INPUTS];                          /* the input of each leaf */
};

static void pass_end(struct pass *p)
{
    for (int k = 0; k < MAX_INPUTS; k++)
        ctrt_tensor_release(&p->grads[k]);
    ctrt_tensor_release(&p->weight);
    session_end(&p->s);
}

/* Calls the op. Makes w if `d` has none. The caller calls pass_end, also after a failure. */
static bool pass_begin(struct pass *p, struct derivation *d, enum layout layout, ctrt_dtype dtype, struct dice *dice)
{
    struct session *s = &p->s;
    struct array weight;
    memset(p, 0, sizeof *p);
    if (!session_begin(d->run, s, d->op, d->v, d->full, layout, layout, true)
        || !check_call(d->run, op_call(d->op, s->out, s->tensors, d->v), dtype, "forward"))
        return false;
    for (int i = 0; i < d->op->inputs; i++)
        if (s->tensors[i] != NULL && d->op->in[i].kind == REAL) {
            p->which[p->count] = i;
            p->leaves[p->count++] = s->in[i].leaf;
        }
    /* Losses of half precision are f32. */
    const ctrt_dtype result = ctrt_tensor_dtype(s->out[0]);
    if (!d->weight.f) {
        array_make(&d->weight, result, ctrt_tensor_ndim(s->out[0]), ctrt_tensor_shape(s->out[0]));
        fill_random(&d->weight, dice);
    }
    array_to(&weight, &d->weight, result);
    return upload(d->run, &p->weight, &weight, false)
           && (layout != CHANNELS_LAST || weight.ndim != 4
               || check_ok(d->run, ctrt_contiguous(&p->weight, p->weight, CTRT_CHANNELS_LAST), "w in channels-last"));
}

static bool pass_backward(struct pass *p, struct derivation *d, struct array *grads)
{
    bool fine = check_ok(d->run, ctrt_grad(p->grads, p->s.out[0], p->leaves, p->count, p->weight, false, false, false),
                         "backward");
    for (int k = 0; fine && k < p->count; k++)
        fine = download(d->run, &grads[k], p->grads[k]);
    return fine;
}

/* ---- derivatives in random directions ---- */

/* Computes the value of S (second_loss) from first derivatives, without create_graph. */
static bool second_value(struct derivation *d, const struct array *cotangents, double *value)
{
    struct pass p;
    struct array grads[MAX_INPUTS];
    const bool fine = pass_begin(&p, d, CONTIGUOUS, CTRT_F64, NULL) && pass_backward(&p, d, grads);
    *value = 0;
    for (int k = 0; fine && k < p.count; k++)
        *value += dot(&grads[k], &cotangents[k]);
    pass_end(&p);
    return fine;
}

/* Central differences of S for each element would call the device hundreds of times per variant. Instead, each input is
 * moved in a few random directions u, in which the difference is the dot product of u and the gradient. An error in any
 * element changes that product. */
enum { DIRECTIONS = 3 };

/* Compares the derivatives of S by x in random directions with the dot products of the directions and `gradient`, which
 * is zero if gradient->f is NULL. Without cotangents, those of L in one direction, because its reference is slow. */
static bool check_directions(struct derivation *d, const char *what, struct array *x, const struct array *gradient,
                             const struct array *cotangents, struct dice *dice)
{
    struct array was, direction, got, want;
    const int64_t count = cotangents == NULL ? 1 : DIRECTIONS;
    bool fine = true;
    array_make(&was, CTRT_F64, x->ndim, x->shape);
    array_make(&direction, CTRT_F64, x->ndim, x->shape);
    array_make(&got, CTRT_F64, 1, &count);
    array_make(&want, CTRT_F64, 1, &count);
    memcpy(was.f, x->f, (size_t)x->numel * sizeof *x->f);
    for (int i = 0; fine && i < count; i++) {
        double value[2];
        void *mark = scratch_mark();
        fill_random(&direction, dice);
        for (int side = 0; fine && side < 2; side++) {
            for (int64_t k = 0; k < x->numel; k++)
                x->f[k] = was.f[k] + (side ? step : -step) * direction.f[k];
            if (cotangents == NULL)
                value[side] = loss_of(d);
            else
                fine = second_value(d, cotangents, &value[side]);
        }
        memcpy(x->f, was.f, (size_t)x->numel * sizeof *x->f);
        scratch_release(mark);
        got.f[i] = gradient->f != NULL ? dot(gradient, &direction) : 0;
        want.f[i] = fine ? (value[1] - value[0]) / (2 * step) : 0;
    }
    return fine && check_near(d->run, what, &got, &want, wanted, fmax(most_of(&want), 1e-2));
}

static void first_derivative(struct run *run, const struct check_op *op, const struct variant *v,
                             enum layout layout, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct pass p;
    struct array got[MAX_INPUTS], full, want;
    struct dice dice = op_dice(run, op, CTRT_F64, 9000 + salt);
    if (!fill_inputs(d.full, op, v, CTRT_F64, layout, true, &dice))
        return;
    const bool fine = pass_begin(&p, &d, layout, CTRT_F64, &dice) && pass_backward(&p, &d, got);
    for (int k = 0; fine && k < p.count; k++) {
        char what[32];
        const struct placed *in = &p.s.in[p.which[k]];
        snprintf(what, sizeof what, "gradient of input %d", p.which[k]);
        if (v->sort == LARGE) {
            check_directions(&d, what, &d.full[p.which[k]], &got[k], NULL, &dice);
            continue;
        }
        differences(&d, &d.full[p.which[k]], &full);
        /* In a broadcast layout several elements share memory, whose gradient is their sum. */
        array_make(&want, CTRT_F64, in->base.ndim, in->base.shape);
        for (int64_t e = 0; e < full.numel; e++)
            want.f[in->map[e]] += full.f[e];
        check_near(run, what, &got[k], &want, wanted, fmax(most_of(&want), 1e-3));
    }
    pass_end(&p);
}

/* ---- second derivatives ---- */

/* Computes S = sum over inputs of sum(g_i * v_i) with g_i = dL/dx_i, as a differentiable tensor. */
static ctrt_status second_loss(ctrt_tensor **out, struct pass *p, ctrt_tensor *const *cotangents)
{
    CTRT_AUTO(tensor) term = NULL;
    CTRT_TRY(ctrt_grad(p->grads, p->s.out[0], p->leaves, p->count, p->weight, true, true, false));
    for (int k = 0; k < p->count; k++) {
        CTRT_TRY(ctrt_mul(&term, p->grads[k], cotangents[k]));
        CTRT_TRY(ctrt_sum(&term, term, CTRT_ALL_DIMS));
        if (k == 0)
            ctrt_tensor_assign(out, term);
        else
            CTRT_TRY(ctrt_add(out, *out, term));
    }
    return CTRT_OK;
}

static void second_derivative(struct run *run, const struct check_op *op, const struct variant *v, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct pass p;
    struct array values[MAX_INPUTS];
    ctrt_tensor *cotangents[MAX_INPUTS] = { NULL }, *second[MAX_INPUTS + 1] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    struct dice dice = op_dice(run, op, CTRT_F64, 9500 + salt);
    fill_inputs(d.full, op, v, CTRT_F64, CONTIGUOUS, true, &dice);
    bool fine = pass_begin(&p, &d, CONTIGUOUS, CTRT_F64, &dice);
    for (int k = 0; fine && k < p.count; k++) {
        const struct array *x = &d.full[p.which[k]];
        array_make(&values[k], CTRT_F64, x->ndim, x->shape);
        fill_random(&values[k], &dice);
        fine = upload(run, &cotangents[k], &values[k], false);
    }
    /* S is linear in w, so its derivative checks how gradients depend on the incoming gradient */
    p.leaves[p.count] = p.weight;
    fine = fine && check_ok(run, ctrt_tensor_require_grad(p.weight, true), "requiring grad")
           && check_ok(run, second_loss(&loss, &p, cotangents), "backward with create_graph")
           && check_ok(run, ctrt_grad(second, loss, p.leaves, p.count + 1, NULL, false, false, true),
                       "the second backward");
    for (int k = 0; fine && k <= p.count; k++) {
        const bool input = k < p.count;
        struct array gradient = { .f = NULL };
        char what[48];
        snprintf(what, sizeof what, "second derivative by %s %d", input ? "input" : "w", input ? p.which[k] : 0);
        fine = (second[k] == NULL || download(run, &gradient, second[k]))
               && check_directions(&d, what, input ? &d.full[p.which[k]] : &d.weight, &gradient, values, &dice);
    }
    for (int k = 0; k <= p.count; k++)
        ctrt_tensor_release(&second[k]);
    for (int k = 0; k < p.count; k++)
        ctrt_tensor_release(&cotangents[k]);
    pass_end(&p);
}

void check_gradient(struct run *run, const struct check_op *op)
{
    const struct variant *variants = op->variants;
    const int count = op->variant_count;
    for (int l = 0; l < LAYOUTS; l++) {
        const enum layout layout = (enum layout)l;
        bool any = false;
        if ((layout == EXPANDED && (op->flags & TIES)) || layout == OFFSET)
            continue;
        for (int k = 0; k < count; k++)
            any |= variants[k].sort == NORMAL && layout_fits(layout, op, &variants[k]);
        if (!any || !check_begin(run, op->name, 0, "gradient f64", "gradient %s", layout_names[l]))
            continue;
        for (int k = 0; k < count && !run->skipped; k++)
            if ((variants[k].sort == NORMAL
                 || (layout == CONTIGUOUS && variants[k].sort != SPECIAL
                     && (variants[k].sort != LARGE || (op->flags & LARGE_GRAD))))
                && layout_fits(layout, op, &variants[k]))
                first_derivative(run, op, &variants[k], layout, l * 100 + k);
        check_end(run);
    }
    if ((op->flags & GRAD2) && check_begin(run, op->name, 0, "gradient gradient2 f64", "second derivative")) {
        for (int k = 0; k < count && !run->skipped; k++)
            if (variants[k].sort == NORMAL)
                second_derivative(run, op, &variants[k], k);
        check_end(run);
    }
}

/* ---- other floating types ---- */

/* Computes the gradients of `d` with floating inputs rounded to `dtype`. Returns their number, or 0 after a failure. */
static int gradients_in(struct derivation *d, ctrt_dtype dtype, struct dice *dice, struct array *grads)
{
    struct pass p;
    for (int i = 0; i < d->op->inputs; i++)
        if (present(d->v, i) && d->full[i].f)
            array_to(&d->full[i], &d->full[i], dtype);
    const bool fine = pass_begin(&p, d, CONTIGUOUS, dtype, dice) && pass_backward(&p, d, grads);
    pass_end(&p);
    return fine ? p.count : 0;
}

/* The tolerance is relative to the largest element of the gradient, or, except in large variants, to 1/4 if all are
 * smaller, because terms are of order one and may cancel. Ops compute in f32 and round their results; a backward
 * function calls up to a dozen ops. */
static void check_gradient_variant(struct run *run, const struct check_op *op, const struct variant *v,
                                   ctrt_dtype dtype, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct dice dice = op_dice(run, op, dtype, 9700 + salt);
    struct array narrow[MAX_INPUTS], wide[MAX_INPUTS];
    const double tolerance = dtype == CTRT_F32 ? 128 * epsilon_of(dtype) + 12 * run->lowered : 12 * epsilon_of(dtype);
    if (!fill_inputs(d.full, op, v, dtype, CONTIGUOUS, true, &dice)
        || gradients_in(&d, dtype, &dice, narrow) == 0)
        return;
    const int count = gradients_in(&d, CTRT_F64, NULL, wide);
    for (int k = 0; k < count; k++) {
        char what[32];
        snprintf(what, sizeof what, "gradient %d", k);
        wide[k].dtype = dtype;
        check_near(run, what, &narrow[k], &wide[k], tolerance, fmax(most_of(&wide[k]), v->sort == LARGE ? 0 : 0.25));
    }
}

void check_gradient_dtype(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    if ((dtype != CTRT_F32 && (op->flags & NO_HALF_GRAD))
        || !check_begin(run, op->name, dtype, "gradient", "gradient"))
        return;
    for (int k = 0; k < op->variant_count && !run->skipped; k++) {
        const struct variant *v = &op->variants[k];
        if (v->sort == NORMAL
            || (v->sort == LARGE && dtype == CTRT_F32 && v->in[0].n == 1 && !(op->flags & TIES))
            || (v->sort == LARGE && (op->flags & LARGE_GRAD)))
            check_gradient_variant(run, op, v, dtype, k);
    }
    check_end(run);
}
