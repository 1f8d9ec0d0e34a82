/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small network on the template's device and prints which ops its backend lacks.
 *
 *   CTRT_PLUGIN_PATH=$PWD CTRT_FALLBACK=cpu ./try                 exit status 0 if the loss decreased */
#include <ctrt/ctrt.h>
#include <stdio.h>

static ctrt_status train(ctrt_module **model, ctrt_optimizer **optimizer, ctrt_tensor *tensors[4], double *first,
                         double *last)
{
    ctrt_tensor **x = &tensors[0], **y = &tensors[1], **h = &tensors[2];
    ctrt_device *device = NULL;
    CTRT_TRY(ctrt_device_get(&device, "template:0"));
    CTRT_TRY(ctrt_sequential_new(model, CTRT_MODULES(CTRT_NEW(linear, 16, 32, true, device), CTRT_NEW(relu),
                                                     CTRT_NEW(linear, 32, 4, true, device))));
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 0.1;
    sgd.momentum = 0.9;
    CTRT_TRY(ctrt_sgd_new(optimizer, *model, &sgd));
    CTRT_TRY(ctrt_randn(x, CTRT_SHAPE(64, 16), CTRT_F32, device));
    CTRT_TRY(ctrt_argmax(y, *x, CTRT_DIMS(1), false));          /* task: the quarter that contains the largest number */
    CTRT_TRY(ctrt_floor_divide_scalar(y, *y, ctrt_int(4)));
    for (int step = 0; step < 50; step++) {
        CTRT_TRY(ctrt_forward(h, *model, *x));
        CTRT_TRY(ctrt_cross_entropy(h, *h, *y, NULL));
        CTRT_TRY(ctrt_optimizer_zero_grad(*optimizer, true));
        CTRT_TRY(ctrt_backward(*h));
        CTRT_TRY(ctrt_optimizer_step(*optimizer));
        CTRT_TRY(ctrt_item(step == 0 ? first : last, *h));
    }
    return CTRT_OK;
}

int main(void)
{
    ctrt_module *model = NULL;
    ctrt_optimizer *optimizer = NULL;
    ctrt_tensor *tensors[4] = { NULL };
    double first = 0, last = 0;
    ctrt_manual_seed(1);
    ctrt_status status = train(&model, &optimizer, tensors, &first, &last);
    if (status != CTRT_OK)
        fprintf(stderr, "%s\n", ctrt_error_message());
    else
        printf("loss %.4f -> %.4f\n", first, last);

    const char *op;
    for (size_t i = 0; ctrt_op_name(&op, i) == CTRT_OK; i++)
        if (ctrt_fallback_count(op) > 0)
            printf("  %-24s ran on the cpu %llu times\n", op, (unsigned long long)ctrt_fallback_count(op));
    for (int i = 0; i < 4; i++)
        ctrt_tensor_release(&tensors[i]);
    ctrt_optimizer_release(&optimizer);
    ctrt_module_release(&model);
    return status != CTRT_OK || !(last < first / 2);
}
