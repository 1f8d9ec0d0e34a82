/* SPDX-License-Identifier: Apache-2.0 */
/* A data loader: trains a small network to tell the points inside of a ring from the others. Worker processes create
 * the points and copy them into the memory of the batches, and the loader copies each batch to the device while the
 * network trains on the one before.
 *
 *     make loader && ./loader [WORKERS]
 *
 * The printed losses are the same for every number of workers. */
#include <ctrt/ctrt.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 4096, BATCH = 64, EPOCHS = 5 };

/* ---- the dataset ---- */

static int64_t ring_length(void *state)
{
    (void)state;
    return POINTS;
}

/* Writes a point and its class into the batch. The point is random: another one in each epoch. */
static ctrt_status ring_item(ctrt_sample *sample, void *state)
{
    (void)state;
    float *point = sample->out[0];
    int64_t *class = sample->out[1];
    for (int k = 0; k < 2; k++)
        point[k] = (float)(2 * ctrt_sample_random_uniform(&sample->random) - 1);
    const double radius = hypot(point[0], point[1]);
    *class = radius > 0.4 && radius < 0.9;
    return CTRT_OK;
}

/* Workers call this too: they are forked from a process that does not have the dataset. */
static ctrt_status ring_open(ctrt_dataset **out, const void *arguments, size_t bytes)
{
    static const ctrt_field fields[] = {
        { .name = "point", .dtype = CTRT_F32, .ndim = 1, .shape = { 2 } },
        { .name = "class", .dtype = CTRT_I64 },
    };
    static const ctrt_dataset_functions functions = {
        .size = sizeof functions, .name = "ring", .fields = fields, .field_count = 2, .length = ring_length,
        .item = ring_item
    };
    (void)arguments, (void)bytes;
    return ctrt_dataset_new(out, &functions, NULL);
}

/* ---- training ---- */

static ctrt_status train_epoch(ctrt_module *net, ctrt_optimizer *optimizer, ctrt_loader *loader)
{
    CTRT_AUTO(tensor) loss = NULL;
    ctrt_tensor *fields[2] = { NULL, NULL };
    double sum = 0, value = 0;
    for (;;) {
        bool more;
        CTRT_TRY(ctrt_loader_next(fields, &more, loader));
        if (!more)
            break;
        CTRT_TRY(ctrt_forward(&loss, net, fields[0]));
        CTRT_TRY(ctrt_cross_entropy(&loss, loss, fields[1], NULL));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_backward(loss));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        CTRT_TRY(ctrt_item(&value, loss));
        sum += value;
    }
    printf("mean loss %.6f\n", sum / (double)ctrt_loader_length(loader));
    return CTRT_OK;
}

static ctrt_status run(int workers)
{
    CTRT_AUTO(dataset) dataset = NULL;
    CTRT_AUTO(loader) loader = NULL;
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_device *device = NULL;
    CTRT_TRY(ctrt_fork_server_start());         /* before the first device is opened */
    CTRT_TRY(ctrt_device_get(&device, "auto"));
    ctrt_manual_seed(1);
    CTRT_TRY(ctrt_sequential_new(&net, CTRT_MODULES(
        CTRT_NEW(linear, 2, 64, true, device), CTRT_NEW(relu),
        CTRT_NEW(linear, 64, 64, true, device), CTRT_NEW(relu), CTRT_NEW(linear, 64, 2, true, device))));
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 0.01;
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &adamw));
    CTRT_TRY(ctrt_dataset_open(&dataset, ring_open, NULL, 0));
    ctrt_loader_options options = CTRT_LOADER_OPTIONS;
    options.batch_size = BATCH;
    options.shuffle = true;
    options.workers = workers;
    options.persistent_workers = workers > 0;
    options.device = device;
    CTRT_TRY(ctrt_loader_new(&loader, dataset, &options));
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        CTRT_TRY(train_epoch(net, optimizer, loader));
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    if (run(argc > 1 ? atoi(argv[1]) : 2) == CTRT_OK)
        return 0;
    fprintf(stderr, "loader: %s\n", ctrt_error_message());
    return 1;
}
