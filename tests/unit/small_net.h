/* SPDX-License-Identifier: Apache-2.0 */
/* small_net.h: a small network with parameters and buffers, for tests that save, load or move modules. */
#ifndef CTRT_TESTS_SMALL_NET_H
#define CTRT_TESTS_SMALL_NET_H

#include <math.h>

#include "../options.h"
#include "calls.h"
#include "tensors.h"

static inline ctrt_status small_net_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, 3, 4, true, cpu), CTRT_NEW(batch_norm1d, 4, NULL, cpu), CTRT_NEW(relu),
        CTRT_NEW(linear, 4, 2, false, cpu)));
}

static inline ctrt_status small_net_optimizer(ctrt_optimizer **out, ctrt_module *net, bool adamw)
{
    if (adamw)
        return ctrt_adamw_new(out, net, ADAMW(.lr = 0.1, .weight_decay = 0.1));
    return ctrt_sgd_new(out, net, SGD(.lr = 0.1, .momentum = 0.9, .dampening = 0.5));
}

/* Makes training step number `turn` with an input that depends on it, in the dtype of the network. */
static inline ctrt_status small_net_step(ctrt_module *net, ctrt_optimizer *optimizer, ctrt_device *device, int turn)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_tensor *weight = NULL;
    float values[6];
    for (int i = 0; i < 6; i++)
        values[i] = (float)sin(turn * 6 + i);
    TRY(ctrt_from_data(&x, values, 6, CTRT_SHAPE(2, 3), CTRT_F32, device));
    TRY(ctrt_module_tensor(&weight, net, "0.weight"));
    TRY(ctrt_to_dtype(&x, x, ctrt_tensor_dtype(weight)));
    TRY(ctrt_forward(&x, net, x));
    TRY(ctrt_square(&x, x));
    TRY(ctrt_sum(&x, x, CTRT_ALL_DIMS));
    TRY(ctrt_optimizer_zero_grad(optimizer, turn % 2 == 0));
    TRY(ctrt_backward(x));
    TRY(ctrt_clip_grad_norm_(NULL, net, 0.5));
    return ctrt_optimizer_step(optimizer);
}

/* Returns whether parameters and buffers of a and b have the same bits, on any device. */
static inline bool same_modules(ctrt_module *a, ctrt_module *b)
{
    const char *name;
    ctrt_tensor *x, *y;
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; (buffers ? ctrt_module_buffer : ctrt_module_parameter)(&name, &x, a, i) == CTRT_OK; i++) {
            double v[64] = { 0 }, w[64] = { 0 };
            if (!CHECK_OK(ctrt_module_tensor(&y, b, name)) || !CHECK_OK(ctrt_to_host(v, sizeof v, x, CTRT_F64))
                || !CHECK_OK(ctrt_to_host(w, sizeof w, y, CTRT_F64)) || memcmp(v, w, sizeof v) != 0)
                return false;
        }
    return true;
}

#endif
