/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small network on the default device (CTRT_DEVICE) with the strategy CTRT_STRATEGY, and prints the loss, a
 * hash of the parameters, and which ops ran on the CPU because the device's backend has no kernel for them. Exit status
 * 0 if the loss has decreased. check.sh runs it. */
#include <ctrt/ctrt.h>
#include <stdio.h>

enum { ROWS = 64, INPUTS = 16, CLASSES = 4, STEPS = 50 };

static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    (void)count, (void)user;
    return ctrt_cross_entropy(loss, output, inputs[1], NULL);
}

/* The task: which quarter of the numbers contains the largest one. On several ranks each trains on its part of the
 * rows. */
static ctrt_status batch_new(ctrt_tensor *batch[2], ctrt_module *net, ctrt_device *device, ctrt_device *cpu)
{
    ctrt_comm *comm = ctrt_parallel_comm(net);
    const int64_t rows = ROWS / (comm != NULL ? ctrt_comm_size(comm) : 1);
    const int64_t first = rows * (comm != NULL ? ctrt_comm_rank(comm) : 0);
    CTRT_TRY(ctrt_randn(&batch[0], CTRT_SHAPE(ROWS, INPUTS), CTRT_F32, cpu));
    CTRT_TRY(ctrt_narrow(&batch[0], batch[0], 0, first, rows));
    CTRT_TRY(ctrt_argmax(&batch[1], batch[0], CTRT_DIMS(1), false));
    CTRT_TRY(ctrt_floor_divide_scalar(&batch[1], batch[1], ctrt_int(INPUTS / CLASSES)));
    CTRT_TRY(ctrt_to_device(&batch[0], batch[0], device));
    return ctrt_to_device(&batch[1], batch[1], device);
}

static ctrt_status train(ctrt_tensor *batch[2], double *first, double *last)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) loss = NULL;
    ctrt_device *device = NULL, *cpu = NULL;
    char hash[65];
    CTRT_TRY(ctrt_default_device(&device));
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, INPUTS, 32, true, cpu), CTRT_NEW(relu),
                                                       CTRT_NEW(linear, 32, CLASSES, true, cpu))));
    CTRT_TRY(ctrt_module_to(module, device, CTRT_DTYPE_DEFAULT));
    CTRT_TRY(ctrt_parallel_new(&net, module, NULL, NULL, 0));
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 0.1;
    sgd.momentum = 0.9;
    CTRT_TRY(ctrt_sgd_new(&optimizer, net, &sgd));
    CTRT_TRY(batch_new(batch, net, device, cpu));
    for (int step = 0; step < STEPS; step++) {
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_parallel_step(&loss, net, batch, 2, loss_function, NULL));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        CTRT_TRY(ctrt_item(step == 0 ? first : last, loss));
    }
    CTRT_TRY(ctrt_parallel_barrier(net));
    CTRT_TRY(ctrt_module_sha256(hash, net));
    printf("%s: loss %.4f -> %.4f\nparameters %.16s\n", ctrt_parallel_describe(net), *first, *last, hash);
    return CTRT_OK;
}

int main(void)
{
    ctrt_tensor *batch[2] = { NULL };
    double first = 0, last = 0;
    ctrt_manual_seed(1);
    ctrt_status status = train(batch, &first, &last);
    if (status != CTRT_OK)
        fprintf(stderr, "%s\n", ctrt_error_message());
    const char *op;
    for (size_t i = 0; ctrt_op_name(&op, i) == CTRT_OK; i++)
        if (ctrt_fallback_count(op) > 0)
            printf("  %-24s ran on the cpu %llu times\n", op, (unsigned long long)ctrt_fallback_count(op));
    ctrt_tensor_release(&batch[0]);
    ctrt_tensor_release(&batch[1]);
    return status != CTRT_OK || !(last < first / 2);
}
