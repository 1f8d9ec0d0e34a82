/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c: checks derivatives. Gradients in f64 are compared with central differences of the reference, second
 * derivatives with central differences of the first, and gradients in other floating types with f64.
 *
 * The differentiated function is L = sum(w * op(x)) with fixed random w. Central differences with step h have a
 * truncation error of h^2/6 L''' and a rounding error of about 1e-16 L / h. With h = 1e-5 and values of order one both
 * are below 1e-9, far below the required 1e-6. */
#include "suite.h"

static const double step = 1e-5, wanted = 1e-6;

struct derivation {
    struct run *run;
    const struct check_op *op;
    const struct variant *v;
    struct array full[MAX_INPUTS];
    struct array weight;                            /* w, of the result's shape */
};

static bool derives(const struct check_op *op, const struct variant *v, int input)
{
    return input < op->inputs && present(v, input) && op->in[input].kind == REAL;
}

static double dot(const struct array *a, const struct array *b)
{
    double sum = 0;
    for (int64_t k = 0; k < a->numel; k++)
        sum += a->f[k] * b->f[k];
    return sum;
}

static double loss_of(struct derivation *d)
{
    void *mark = scratch_mark();
    struct array out[MAX_OUTPUTS];
    memset(out, 0, sizeof out);
    op_reference(out, d->full, d->v, d->op);
    double loss = dot(&out[0], &d->weight);
    scratch_release(mark);
    return loss;
}

/* Computes dL/d(full[input]) by central differences. */
static void differences(struct derivation *d, int input, struct array *out)
{
    array_make(out, CTRT_F64, d->full[input].ndim, d->full[input].shape);
    for (int64_t k = 0; k < out->numel; k++) {
        double *x = &d->full[input].f[k], was = *x;
        *x = was + step;
        double above = loss_of(d), up = *x;
        *x = was - step;
        double below = loss_of(d);
        out->f[k] = (above - below) / (up - *x);
        *x = was;
    }
}

/* Reduces a gradient from `full` to `base`: sums the elements that share memory in a broadcast layout. */
static void fold(struct array *base, const struct array *full, const struct placed *placed)
{
    array_make(base, full->dtype, placed->base.ndim, placed->base.shape);
    for (int64_t k = 0; k < full->numel; k++)
        base->f[placed->map[k]] += full->f[k];
}

/* The tensors of one call of the op and of its backward pass. */
struct session {
    struct placed in[MAX_INPUTS];
    ctrt_tensor *tensors[MAX_INPUTS], *leaves[MAX_INPUTS], *out[MAX_OUTPUTS], *weight, *grads[MAX_INPUTS];
    int count;                                      /* number of leaves */
    int which[MAX_INPUTS];                          /* the input of each leaf */
};

static void session_end(struct session *s)
{
    for (int k = 0; k < MAX_OUTPUTS; k++)
        ctrt_tensor_release(&s->out[k]);
    for (int k = 0; k < MAX_INPUTS; k++)
        ctrt_tensor_release(&s->grads[k]);
    ctrt_tensor_release(&s->weight);
    unplace(s->in, MAX_INPUTS);
}

static ctrt_status session_begin(struct session *s, struct derivation *d, enum layout layout)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < d->op->inputs; i++) {
        if (!present(d->v, i))
            continue;
        bool leaf = derives(d->op, d->v, i);
        CTRT_TRY(place(&s->in[i], &d->full[i], layout, i, d->run->device, leaf));
        s->tensors[i] = s->in[i].tensor;
        if (leaf) {
            s->which[s->count] = i;
            s->leaves[s->count++] = s->in[i].leaf;
        }
    }
    return op_call(d->op, s->out, s->tensors, d->v);
}

static ctrt_status session_weight(struct session *s, struct derivation *d, struct dice *dice, ctrt_dtype dtype)
{
    if (!d->weight.f) {
        array_make(&d->weight, dtype, ctrt_tensor_ndim(s->out[0]), ctrt_tensor_shape(s->out[0]));
        for (int64_t k = 0; k < d->weight.numel; k++)
            d->weight.f[k] = round_to(dtype, 2 * dice_unit(dice) - 1);
    }
    return array_upload(&s->weight, &d->weight, d->run->device);
}

static bool started(struct run *run, struct session *s, struct derivation *d, enum layout layout,
                    ctrt_dtype dtype)
{
    return check_ok(run, session_begin(s, d, layout), d->op->kernel ? d->op->kernel : d->op->name, dtype,
                    d->v->what[0] ? d->v->what : "forward");
}

static void first_derivative(struct run *run, const struct check_op *op, const struct variant *v,
                             enum layout layout, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct session s;
    struct dice dice = op_dice(run, op, CTRT_F64, 9000 + salt);
    if (!fill_inputs(d.full, op, v, CTRT_F64, layout, true, &dice))
        return;
    if (!started(run, &s, &d, layout, CTRT_F64)
        || !check_ok(run, session_weight(&s, &d, &dice, CTRT_F64), NULL, 0, "placing w")
        || !check_ok(run, ctrt_grad(s.grads, s.out[0], s.leaves, s.count, s.weight, false, false, false), NULL,
                     0, "backward"))
        goto done;
    for (int k = 0; k < s.count; k++) {
        struct array got, full, want;
        char what[96];
        int input = s.which[k];
        if (!check_ok(run, array_download(&got, s.grads[k]), NULL, 0, "reading a gradient"))
            goto done;
        differences(&d, input, &full);
        fold(&want, &full, &s.in[input]);
        snprintf(what, sizeof what, "%s%sgradient of input %d", v->what, v->what[0] ? ": " : "", input);
        check_near(run, what, &got, &want, wanted, fmax(most_of(&want), 1e-3));
    }
done:
    session_end(&s);
}

/* ---- second derivatives ---- */

/* Computes S = sum over inputs of sum(g_i * v_i) with g_i = dL/dx_i, as a differentiable tensor. */
static ctrt_status second_loss(ctrt_tensor **out, struct session *s, ctrt_tensor *const *cotangents)
{
    CTRT_AUTO(tensor) term = NULL;
    CTRT_TRY(ctrt_grad(s->grads, s->out[0], s->leaves, s->count, s->weight, true, true, false));
    for (int k = 0; k < s->count; k++) {
        CTRT_TRY(ctrt_mul(&term, s->grads[k], cotangents[k]));
        CTRT_TRY(ctrt_sum(&term, term, CTRT_ALL_DIMS));
        if (k == 0)
            ctrt_tensor_assign(out, term);
        else
            CTRT_TRY(ctrt_add(out, *out, term));
    }
    return CTRT_OK;
}

/* Computes the value of S from first derivatives, without create_graph. */
static bool second_value(struct run *run, struct derivation *d, const struct array *cotangents, double *value)
{
    void *mark = scratch_mark();
    struct session s;
    bool fine = started(run, &s, d, CONTIGUOUS, CTRT_F64)
                && check_ok(run, session_weight(&s, d, NULL, CTRT_F64), NULL, 0, "placing w")
                && check_ok(run, ctrt_grad(s.grads, s.out[0], s.leaves, s.count, s.weight, false, false, false),
                            NULL, 0, "backward");
    *value = 0;
    for (int k = 0; fine && k < s.count; k++) {
        struct array g;
        fine = check_ok(run, array_download(&g, s.grads[k]), NULL, 0, "reading a gradient");
        if (fine)
            *value += dot(&g, &cotangents[k]);
    }
    session_end(&s);
    scratch_release(mark);
    return fine;
}

static bool second_differences(struct run *run, struct derivation *d, struct array *x,
                               const struct array *cotangents, struct array *out)
{
    array_make(out, CTRT_F64, x->ndim, x->shape);
    for (int64_t k = 0; k < out->numel; k++) {
        double was = x->f[k], above, below;
        x->f[k] = was + step;
        double up = x->f[k];
        bool fine = second_value(run, d, cotangents, &above);
        x->f[k] = was - step;
        double down = x->f[k];
        fine = fine && second_value(run, d, cotangents, &below);
        x->f[k] = was;
        if (!fine)
            return false;
        out->f[k] = (above - below) / (up - down);
    }
    return true;
}

static void second_derivative(struct run *run, const struct check_op *op, const struct variant *v, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct session s;
    struct array values[MAX_INPUTS];
    ctrt_tensor *cotangents[MAX_INPUTS] = { NULL }, *of[MAX_INPUTS + 1], *second[MAX_INPUTS + 1] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    struct dice dice = op_dice(run, op, CTRT_F64, 9500 + salt);
    fill_inputs(d.full, op, v, CTRT_F64, CONTIGUOUS, true, &dice);
    if (!started(run, &s, &d, CONTIGUOUS, CTRT_F64)
        || !check_ok(run, session_weight(&s, &d, &dice, CTRT_F64), NULL, 0, "placing w"))
        goto done;
    for (int k = 0; k < s.count; k++) {
        array_make(&values[k], CTRT_F64, s.in[s.which[k]].full.ndim, s.in[s.which[k]].full.shape);
        for (int64_t e = 0; e < values[k].numel; e++)
            values[k].f[e] = 2 * dice_unit(&dice) - 1;
        if (!check_ok(run, array_upload(&cotangents[k], &values[k], run->device), NULL, 0, "placing v"))
            goto done;
        of[k] = s.leaves[k];
    }
    /* S is linear in w, so its derivative checks how gradients depend on the incoming gradient */
    of[s.count] = s.weight;
    if (!check_ok(run, ctrt_tensor_require_grad(s.weight, true), NULL, 0, "requiring grad")
        || !check_ok(run, second_loss(&loss, &s, cotangents), NULL, 0, "backward with create_graph")
        || !check_ok(run, ctrt_grad(second, loss, of, s.count + 1, NULL, false, false, true), NULL, 0,
                     "the second backward"))
        goto done;
    for (int k = 0; k <= s.count; k++) {
        struct array got, want, *x = k < s.count ? &d.full[s.which[k]] : &d.weight;
        if (!second_differences(run, &d, x, values, &want))
            goto done;
        if (second[k] == NULL)                      /* no gradient means zero */
            array_make(&got, CTRT_F64, want.ndim, want.shape);
        else if (!check_ok(run, array_download(&got, second[k]), NULL, 0, "reading a second derivative"))
            goto done;
        char what[96];
        snprintf(what, sizeof what, "%s%ssecond derivative by %s %d", v->what, v->what[0] ? ": " : "",
                 k < s.count ? "input" : "w", k < s.count ? s.which[k] : 0);
        check_near(run, what, &got, &want, wanted, fmax(most_of(&want), 1e-2));
    }
done:
    for (int k = 0; k <= MAX_INPUTS; k++)
        ctrt_tensor_release(&second[k]);
    for (int k = 0; k < MAX_INPUTS; k++)
        ctrt_tensor_release(&cotangents[k]);
    session_end(&s);
}

void check_gradient(struct run *run, const struct check_op *op)
{
    int count;
    const struct variant *variants = op_variants(op, &count);
    for (int layout = 0; layout < LAYOUTS; layout++) {
        bool any = false;
        if ((layout == EXPANDED && (op->flags & TIES)) || layout == OFFSET)
            continue;
        for (int k = 0; k < count; k++)
            any |= variants[k].sort == NORMAL && layout_fits((enum layout)layout, op, &variants[k]);
        if (!any || !check_begin(run, op->name, 0, "gradient f64", "gradient %s", layout_names[layout]))
            continue;
        for (int k = 0; k < count && !run->skipped; k++)
            if ((variants[k].sort == NORMAL
                 || (layout == CONTIGUOUS && variants[k].sort != LARGE && variants[k].sort != SPECIAL))
                && layout_fits((enum layout)layout, op, &variants[k]))
                first_derivative(run, op, &variants[k], (enum layout)layout, layout * 100 + k);
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

/* The tolerance of gradients in f32, f16 and bf16, relative to the largest element of the gradient, or to 1/4 if all
 * are smaller, because terms are of order one and may cancel. Ops compute in f32 and round their results; a backward
 * function calls up to a dozen ops. */
static double gradient_tolerance(ctrt_dtype dtype)
{
    return (dtype == CTRT_F32 ? 128 : 12) * epsilon_of(dtype);
}

static bool gradients_in(struct run *run, struct derivation *d, ctrt_dtype dtype, struct array *grads, int *count)
{
    struct derivation in = { .run = run, .op = d->op, .v = d->v };
    struct session s;
    for (int i = 0; i < d->op->inputs; i++)
        if (present(d->v, i)) {
            if (d->full[i].f)
                array_to(&in.full[i], &d->full[i], dtype);
            else
                in.full[i] = d->full[i];
        }
    array_to(&in.weight, &d->weight, dtype);
    bool fine = started(run, &s, &in, CONTIGUOUS, dtype);
    if (fine && ctrt_tensor_dtype(s.out[0]) != dtype)       /* losses of half precision are f32 */
        array_to(&in.weight, &d->weight, ctrt_tensor_dtype(s.out[0]));
    fine = fine && check_ok(run, session_weight(&s, &in, NULL, dtype), NULL, 0, "placing w")
           && check_ok(run, ctrt_grad(s.grads, s.out[0], s.leaves, s.count, s.weight, false, false, false),
                       NULL, 0, "backward");
    for (int k = 0; fine && k < s.count; k++)
        fine = check_ok(run, array_download(&grads[k], s.grads[k]), NULL, 0, "reading a gradient");
    *count = s.count;
    session_end(&s);
    return fine;
}

static void check_gradient_variant(struct run *run, const struct check_op *op, const struct variant *v,
                                   ctrt_dtype dtype, int salt)
{
    struct derivation d = { .run = run, .op = op, .v = v };
    struct dice dice = op_dice(run, op, dtype, 9700 + salt);
    struct array narrow[MAX_INPUTS], wide[MAX_INPUTS], want[MAX_OUTPUTS];
    int count;
    if (!fill_inputs(d.full, op, v, dtype, CONTIGUOUS, true, &dice))
        return;
    for (int i = 0; i < op->inputs; i++)
        for (int64_t k = 0; present(v, i) && d.full[i].f && k < d.full[i].numel; k++)
            d.full[i].f[k] = round_to(dtype, d.full[i].f[k]);
    memset(want, 0, sizeof want);
    op_reference(want, d.full, v, op);
    array_make(&d.weight, dtype, want[0].ndim, want[0].shape);
    for (int64_t k = 0; k < d.weight.numel; k++)
        d.weight.f[k] = round_to(dtype, 2 * dice_unit(&dice) - 1);
    if (!gradients_in(run, &d, dtype, narrow, &count) || !gradients_in(run, &d, CTRT_F64, wide, &count))
        return;
    for (int k = 0; k < count; k++) {
        struct array expected;
        char what[96];
        snprintf(what, sizeof what, "%s%sgradient %d", v->what, v->what[0] ? ": " : "", k);
        expected = wide[k];
        expected.dtype = dtype;
        const double lowered = dtype == CTRT_F32 ? 12 * run->lowered : 0;
        check_near(run, what, &narrow[k], &expected, gradient_tolerance(dtype) + lowered,
                   fmax(most_of(&expected), 0.25));
    }
}

void check_gradient_dtype(struct run *run, const struct check_op *op, ctrt_dtype dtype)
{
    int count;
    const struct variant *variants = op_variants(op, &count);
    if ((dtype != CTRT_F32 && (op->flags & NO_HALF_GRAD)) || !(op->dtypes & BIT(F64))
        || !check_begin(run, op->name, dtype, "gradient", "gradient"))
        return;
    for (int k = 0; k < count && !run->skipped; k++)
        if (variants[k].sort == NORMAL
            || (variants[k].sort == LARGE && dtype == CTRT_F32 && variants[k].in[0].n == 1
                && !(op->flags & TIES)))
            check_gradient_variant(run, op, &variants[k], dtype, k);
    check_end(run);
}
