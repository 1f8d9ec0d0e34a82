/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/steady-loop.c STEPS: trains for STEPS steps; steady.sh counts the system calls. */
#include <ctrt/ctrt.h>

#include <stdio.h>
#include <stdlib.h>

static ctrt_status step(ctrt_module *model, ctrt_optimizer *optimizer, ctrt_tensor *x, ctrt_tensor *y)
{
    CTRT_AUTO(tensor) h = NULL;
    CTRT_TRY(ctrt_forward(&h, model, x));
    CTRT_TRY(ctrt_cross_entropy(&h, h, y, NULL));
    CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
    CTRT_TRY(ctrt_backward(h));
    return ctrt_optimizer_step(optimizer);
}

static ctrt_status train(long steps)
{
    CTRT_AUTO(module) model = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL;
    CTRT_AUTO(tensor) y = NULL;
    CTRT_TRY(ctrt_sequential_new(&model, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 8, 3, 3, NULL, true, NULL), CTRT_NEW(relu), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 8 * 26 * 26, 300, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, 300, 10, true, NULL))));
    CTRT_TRY(ctrt_adamw_new(&optimizer, model, NULL));
    CTRT_TRY(ctrt_randn(&x, CTRT_SHAPE(64, 1, 28, 28), CTRT_F32, NULL));
    CTRT_TRY(ctrt_randint(&y, 0, 10, CTRT_SHAPE(64), CTRT_I64, NULL));
    for (long i = 0; i < steps; i++)
        CTRT_TRY(step(model, optimizer, x, y));
    return CTRT_OK;
}

int main(int count, char **arguments)
{
    ctrt_status status = train(count > 1 ? strtol(arguments[1], NULL, 10) : 1);
    if (status != CTRT_OK)
        fprintf(stderr, "steady: %s\n", ctrt_error_message());
    return status != CTRT_OK;
}
