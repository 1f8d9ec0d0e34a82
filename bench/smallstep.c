/* SPDX-License-Identifier: Apache-2.0 */
/* bench/smallstep.c: a training step of many small ops, whose time is mostly the library's overhead: an MLP 8-16-16-4
 * on 4 rows with tanh and layer norm, SGD. Runs on the device of CTRT_DEVICE; each step ends with a device synchronize.
 * bookkeeping.sh runs it on builds without memory accounting, stream ordering or block owners. */
#include <ctrt/ctrt.h>

#include "check.h"
#include "timing.h"

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y;
    ctrt_device *device;
};

static void step(void *argument)
{
    struct training *t = argument;
    ctrt_tensor *h = NULL, *square = NULL;
    check(ctrt_forward(&h, t->model, t->x));
    check(ctrt_mul(&square, h, h));
    check(ctrt_add(&h, h, square));
    check(ctrt_cross_entropy(&h, h, t->y, NULL));
    check(ctrt_optimizer_zero_grad(t->optimizer, true));
    check(ctrt_backward(h));
    check(ctrt_optimizer_step(t->optimizer));
    check(ctrt_device_synchronize(t->device));
    ctrt_tensor_release(&h);
    ctrt_tensor_release(&square);
}

int main(void)
{
    struct training t = { 0 };
    check(ctrt_device_auto(&t.device));
    check(ctrt_sequential_new(&t.model, CTRT_MODULES(
        CTRT_NEW(linear, 8, 16, true, NULL), CTRT_NEW(layer_norm, CTRT_SHAPE(16), NULL, NULL), CTRT_NEW(tanh),
        CTRT_NEW(linear, 16, 16, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, 16, 4, true, NULL))));
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 0.01;
    check(ctrt_sgd_new(&t.optimizer, t.model, &sgd));
    check(ctrt_randn(&t.x, CTRT_SHAPE(4, 8), CTRT_F32, NULL));
    check(ctrt_randint(&t.y, 0, 4, CTRT_SHAPE(4), CTRT_I64, NULL));
    timing_report(ctrt_device_name(t.device), step, &t);
    ctrt_tensor_release(&t.x);
    ctrt_tensor_release(&t.y);
    ctrt_optimizer_release(&t.optimizer);
    ctrt_module_release(&t.model);
    return 0;
}
