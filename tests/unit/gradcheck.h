/* SPDX-License-Identifier: Apache-2.0 */
/* gradcheck.h: compares first and second derivatives of a function with central differences in f64. Uses tap.h.
 *
 * With fixed random weights w of the result, L = sum(w y). First derivatives: dL/dx from backward is compared with
 * differences of L. Second derivatives: with fixed v, M = sum(v dL/dx); the gradient of M by create_graph is
 * compared with differences of M. In those differences dL/dx comes from a backward pass without create_graph, so
 * fused kernels and derivatives composed of ops are compared with each other too. */
#ifndef CTRT_TESTS_GRADCHECK_H
#define CTRT_TESTS_GRADCHECK_H

#include <math.h>

#include "ctrt/ctrt.h"
#include "tap.h"

#define GRADCHECK_INPUTS 4

typedef ctrt_status (*gradcheck_function)(ctrt_tensor **out, ctrt_tensor *const *in, const void *argument);

static inline uint64_t gradcheck_random(void)
{
    static uint64_t state = 88172645463325252u;         /* xorshift64, Marsaglia 2003 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static inline double gradcheck_uniform(double low, double high)
{
    return low + (high - low) * (double)(gradcheck_random() >> 11) * 0x1p-53;
}

static inline double *gradcheck_values(ctrt_tensor *tensor)
{
    return ctrt_tensor_data(tensor);
}

/* Returns a new f64 tensor with values in [low, high). */
static inline ctrt_tensor *gradcheck_tensor(ctrt_ints shape, double low, double high)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_empty(&tensor, shape, CTRT_F64, NULL));
    for (int64_t i = 0; i < ctrt_tensor_numel(tensor); i++)
        gradcheck_values(tensor)[i] = gradcheck_uniform(low, high);
    return tensor;
}

struct gradcheck {
    gradcheck_function function;
    const void *argument;
    ctrt_tensor *in[GRADCHECK_INPUTS];
    int n_in, n_grad;               /* the first n_grad inputs are f64 leaves that require grad */
    ctrt_tensor *w, *v[GRADCHECK_INPUTS];
};

/* Returns sum(a b), computed on the host, for any strides. */
static inline double gradcheck_dot(ctrt_tensor *a, ctrt_tensor *b)
{
    double sum = 0;
    int64_t n = ctrt_tensor_numel(a);
    double *x = malloc((size_t)(n + 1) * sizeof *x), *y = malloc((size_t)(n + 1) * sizeof *y);
    CHECK_OK(ctrt_to_host(x, (size_t)n * sizeof *x, a, CTRT_F64));
    CHECK_OK(ctrt_to_host(y, (size_t)n * sizeof *y, b, CTRT_F64));
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    free(x);
    free(y);
    return sum;
}

static inline double gradcheck_loss(struct gradcheck *g)
{
    ctrt_tensor *y = NULL;
    double loss = NAN;
    bool was = ctrt_set_grad_enabled(false);
    if (CHECK_OK(g->function(&y, g->in, g->argument)))
        loss = gradcheck_dot(y, g->w);
    ctrt_set_grad_enabled(was);
    ctrt_tensor_release(&y);
    return loss;
}

/* Computes dL/dx by backward; `recorded` sets create_graph, so that the result can be differentiated. */
static inline bool gradcheck_gradients(struct gradcheck *g, ctrt_tensor **grads, bool recorded)
{
    ctrt_tensor *y = NULL;
    bool fine = CHECK_OK(g->function(&y, g->in, g->argument))
                && CHECK_OK(ctrt_grad(grads, y, g->in, g->n_grad, g->w, recorded, recorded, true));
    ctrt_tensor_release(&y);
    return fine;
}

static inline double gradcheck_second_loss(struct gradcheck *g)
{
    ctrt_tensor *grads[GRADCHECK_INPUTS] = {NULL};
    double sum = 0;
    if (!gradcheck_gradients(g, grads, false))
        return NAN;
    for (int i = 0; i < g->n_grad; i++) {
        if (grads[i])
            sum += gradcheck_dot(grads[i], g->v[i]);
        ctrt_tensor_release(&grads[i]);
    }
    return sum;
}

static inline void gradcheck_compare(const char *what, struct gradcheck *g, ctrt_tensor *x, int position, ctrt_tensor *grad,
                                     double (*loss)(struct gradcheck *), double tolerance)
{
    const double step = 1e-5;
    int64_t n = ctrt_tensor_numel(x);
    double *given = calloc((size_t)n + 1, sizeof *given);
    if (grad) {
        CHECK(ctrt_tensor_numel(grad) == n && ctrt_tensor_dtype(grad) == CTRT_F64, "%s: the gradient of input %d has %lld elements, expected %lld",
              what, position, (long long)ctrt_tensor_numel(grad), (long long)n);
        CHECK_OK(ctrt_to_host(given, (size_t)n * sizeof *given, grad, CTRT_F64));
    }
    for (int64_t i = 0; i < n; i++) {
        double *at = &gradcheck_values(x)[i], value = *at;
        *at = value + step;
        double up = loss(g);
        *at = value - step;
        double down = loss(g);
        *at = value;
        double wanted = (up - down) / (2 * step);
        if (!CHECK(fabs(given[i] - wanted) <= tolerance * (1 + fabs(wanted)),
                   "%s, input %d, element %lld: gradient %.9g, differences give %.9g", what, position, (long long)i,
                   given[i], wanted))
            break;
    }
    free(given);
}

/* Checks the first derivatives of g->function at g->in, and with `second` also the second derivatives. */
static inline void gradcheck_run(const char *name, struct gradcheck *g, bool second)
{
    char what[200];
    ctrt_tensor *y = NULL, *grads[GRADCHECK_INPUTS] = {NULL};
    for (int i = 0; i < g->n_grad; i++)
        CHECK_OK(ctrt_tensor_require_grad(g->in[i], true));
    bool was = ctrt_set_grad_enabled(false);
    bool fine = CHECK_OK(g->function(&y, g->in, g->argument));
    ctrt_set_grad_enabled(was);
    if (!fine)
        return;
    g->w = gradcheck_tensor(ctrt_ints_of(ctrt_tensor_shape(y), ctrt_tensor_ndim(y)), 0.5, 1.5);
    ctrt_tensor_release(&y);
    if (gradcheck_gradients(g, grads, false))
        for (int i = 0; i < g->n_grad; i++)
            gradcheck_compare(name, g, g->in[i], i, grads[i], gradcheck_loss, 1e-7);
    for (int i = 0; i < g->n_grad; i++) {
        ctrt_tensor_release(&grads[i]);
        g->v[i] = gradcheck_tensor(ctrt_ints_of(ctrt_tensor_shape(g->in[i]), ctrt_tensor_ndim(g->in[i])), 0.5, 1.5);
    }
    CHECK_OK(ctrt_tensor_require_grad(g->w, true));
    if (second && gradcheck_gradients(g, grads, true)) {
        ctrt_tensor *m = NULL, *term = NULL, *to[GRADCHECK_INPUTS + 1] = {NULL}, *from[GRADCHECK_INPUTS + 1];
        for (int i = 0; i < g->n_grad; i++) {
            if (grads[i] == NULL)
                continue;
            CHECK_OK(ctrt_mul(&term, grads[i], g->v[i]));
            CHECK_OK(ctrt_sum(&term, term, CTRT_ALL_DIMS));
            CHECK_OK(m ? ctrt_add(&m, m, term) : (ctrt_tensor_assign(&m, term), CTRT_OK));
        }
        for (int i = 0; i < g->n_grad; i++)
            from[i] = g->in[i];
        from[g->n_grad] = g->w;
        if (m && ctrt_tensor_requires_grad(m) && CHECK_OK(ctrt_grad(to, m, from, g->n_grad + 1, NULL, false, false, true))) {
            snprintf(what, sizeof what, "%s, second derivative", name);
            for (int i = 0; i <= g->n_grad; i++)
                gradcheck_compare(what, g, from[i], i, to[i], gradcheck_second_loss, 1e-6);
        }
        for (int i = 0; i <= g->n_grad; i++)
            ctrt_tensor_release(&to[i]);
        ctrt_tensor_release(&m);
        ctrt_tensor_release(&term);
    }
    for (int i = 0; i < g->n_grad; i++) {
        ctrt_tensor_release(&grads[i]);
        ctrt_tensor_release(&g->v[i]);
    }
    ctrt_tensor_release(&g->w);
}

#endif
