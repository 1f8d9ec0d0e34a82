/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/optim_body.h: a body (body.h) that optim.c includes once per type. */

/* Stochastic gradient descent with momentum (Sutskever et al. 2013), as in PyTorch. b and old_b are
 * NULL without momentum. */
static void NAME(sgd)(const struct sgd *s, T *p, const T *old_p, const T *g, T *b, const T *old_b, int64_t n)
{
    const T lr = (T)s->lr, decay = (T)s->weight_decay, momentum = (T)s->momentum, sign = (T)s->sign;
    const T gain = (T)(1 - s->dampening);
    if (!b) {
        for (int64_t i = 0; i < n; i++)
            p[i] = old_p[i] - lr * (sign * g[i] + decay * old_p[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const T d = sign * g[i] + decay * old_p[i];
        const T velocity = s->first ? d : momentum * old_b[i] + gain * d;
        b[i] = velocity;
        p[i] = old_p[i] - lr * (s->nesterov ? d + momentum * velocity : velocity);
    }
}

/* Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019). */
static void NAME(adam)(const struct adam *a, T *p, T *m, T *v, const T *old_p, const T *g, const T *old_m,
                       const T *old_v, int64_t n)
{
    const V sign = OP(set)((T)a->sign), coupled = OP(set)((T)a->coupled), decay = OP(set)((T)a->decay);
    const V beta1 = OP(set)((T)a->beta1), beta2 = OP(set)((T)a->beta2);
    const V gain1 = OP(set)((T)a->one_minus_beta1), gain2 = OP(set)((T)a->one_minus_beta2);
    const V epsilon = OP(set)((T)a->epsilon), size = OP(set)((T)a->step_size),
            correction = OP(set)((T)a->root_correction);
    for (int64_t i = 0; i < n; i += LANES) {
        const int left = n - i < LANES ? (int)(n - i) : LANES;
        const bool whole = left == LANES;
        const V param = whole ? OP(load)(old_p + i) : OP(load_n)(old_p + i, left);
        V gradient = sign * (whole ? OP(load)(g + i) : OP(load_n)(g + i, left));
        gradient = OP(fma)(coupled, param, gradient);
        V mean = whole ? OP(load)(old_m + i) : OP(load_n)(old_m + i, left);
        V square = whole ? OP(load)(old_v + i) : OP(load_n)(old_v + i, left);
        mean = OP(fma)(beta1, mean, gain1 * gradient);
        square = OP(fma)(beta2, square, gain2 * gradient * gradient);
        const V stepped = param * decay - size * mean / (OP(sqrt)(square) * correction + epsilon);
        if (whole) {
            OP(store)(p + i, stepped);
            OP(store)(m + i, mean);
            OP(store)(v + i, square);
        } else {
            OP(store_n)(p + i, stepped, left);
            OP(store_n)(m + i, mean, left);
            OP(store_n)(v + i, square, left);
        }
    }
}

/* Returns element `at` of operand k of the current tensor. Inputs: parameter, gradient, states; outputs: parameter,
 * states. */
static T *NAME(input)(const struct optim_job *j, int k, int64_t at)
{
    return (T *)j->in[k * j->tensors]->data + at;
}

static T *NAME(output)(const struct optim_job *j, int k, int64_t at)
{
    return (T *)j->out[k * j->tensors]->data + at;
}

static void NAME(sgd_range)(void *argument, int64_t begin, int64_t end)
{
    const struct optim_job *j = argument;
    const bool buffer = j->sgd.has_buffer;
    NAME(sgd)(&j->sgd, NAME(output)(j, 0, begin), NAME(input)(j, 0, begin), NAME(input)(j, 1, begin),
              buffer ? NAME(output)(j, 1, begin) : NULL, buffer ? NAME(input)(j, 2, begin) : NULL, end - begin);
}

static void NAME(adam_range)(void *argument, int64_t begin, int64_t end)
{
    const struct optim_job *j = argument;
    NAME(adam)(&j->adam, NAME(output)(j, 0, begin), NAME(output)(j, 1, begin), NAME(output)(j, 2, begin),
               NAME(input)(j, 0, begin), NAME(input)(j, 1, begin), NAME(input)(j, 2, begin), NAME(input)(j, 3, begin),
               end - begin);
}

#include "body_end.h"
