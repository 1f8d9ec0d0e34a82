/* SPDX-License-Identifier: Apache-2.0 */
/* Handwritten digits on one device or many: trains a small network on four fifths of the images of digits.c. The
 * environment alone decides where and how; the program is the same:
 *
 *     make multi && ./multi [--epochs N] [--batch N] [--data FILE]
 *     CTRT_DEVICE=cuda CTRT_STRATEGY=data-parallel ./multi            all GPUs of the machine
 *     CTRT_DEVICE=sim CTRT_SIM=devices=4 CTRT_STRATEGY=data-parallel CTRT_CANONICAL=1 ./multi
 *     CTRT_DEVICE=cpu CTRT_STRATEGY=distributed ctrt run -n 4 ./multi            four processes
 *     CTRT_DEVICE=cpu CTRT_STRATEGY=distributed ctrt run -n 4 --restart 2 ./multi    that may be lost
 *     CTRT_DEVICE=cuda CTRT_STRATEGY=auto CTRT_LOG=info ./multi       what fits and is fastest
 *
 * With CTRT_CANONICAL=1 the last line, the SHA-256 of the trained parameters, is the same on 1, 2, 3 and 4 devices and
 * in 1, 2, 3 and 4 processes. */
#include <ctrt/ctrt.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIXELS = 64, CLASSES = 10, MOST_IMAGES = 10000 };

/* Images [n, 64] from 0 to 1 and labels [n] on the cpu, in a random order; the first `train` are for training. */
struct data {
    ctrt_tensor *images, *labels;
    int64_t n, train;
};

/* ---- the data ---- */

/* Reads lines of 64 pixels and a label. */
static ctrt_status data_read(struct data *data, const char *path, ctrt_device *cpu)
{
    static float images[MOST_IMAGES][PIXELS];
    static int64_t labels[MOST_IMAGES];
    CTRT_AUTO(tensor) order = NULL;
    int64_t n = 0;
    int column = 0, number;
    char separator;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %s: run this in the folder examples, or say --data FILE", path);
    while (n < MOST_IMAGES && fscanf(file, "%d%c", &number, &separator) == 2) {
        if (column < PIXELS)
            images[n][column++] = (float)number / 16;
        else
            labels[n++] = number, column = 0;
    }
    fclose(file);
    if (column != 0 || n < 100)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s: expected lines of 64 pixels and a label", path);
    data->n = n;
    data->train = n - n / 5;
    CTRT_TRY(ctrt_from_data(&data->images, images, n * PIXELS, CTRT_SHAPE(n, PIXELS), CTRT_F32, cpu));
    CTRT_TRY(ctrt_from_data(&data->labels, labels, n, CTRT_SHAPE(n), CTRT_I64, cpu));
    CTRT_TRY(ctrt_randperm(&order, n, cpu));
    CTRT_TRY(ctrt_index_select(&data->images, data->images, 0, order));
    return ctrt_index_select(&data->labels, data->labels, 0, order);
}

/* Selects the images and labels from..from+rows-1 in the order `order` (NULL: their own). */
static ctrt_status batch_pick(ctrt_tensor **batch, const struct data *data, ctrt_tensor *order, int64_t from,
                              int64_t rows)
{
    CTRT_AUTO(tensor) indices = NULL;
    if (order == NULL) {
        CTRT_TRY(ctrt_narrow(&batch[0], data->images, 0, from, rows));
        return ctrt_narrow(&batch[1], data->labels, 0, from, rows);
    }
    CTRT_TRY(ctrt_narrow(&indices, order, 0, from, rows));
    CTRT_TRY(ctrt_index_select(&batch[0], data->images, 0, indices));
    return ctrt_index_select(&batch[1], data->labels, 0, indices);
}

/* ---- training ---- */

static ctrt_status network_new(ctrt_module **out, ctrt_device *cpu)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, PIXELS, 96, true, cpu), CTRT_NEW(relu), CTRT_NEW(linear, 96, 48, true, cpu), CTRT_NEW(relu),
        CTRT_NEW(linear, 48, CLASSES, true, cpu)));
}

/* Called on each device, with its part of the batch: inputs[1] are the labels. */
static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    (void)count, (void)user;
    return ctrt_cross_entropy(loss, output, inputs[1], NULL);
}

/* This process and the number of processes: a strategy without a communicator has one. */
static int rank_of(ctrt_module *net)
{
    ctrt_comm *comm = ctrt_parallel_comm(net);
    return comm != NULL ? ctrt_comm_rank(comm) : 0;
}

static int ranks_of(ctrt_module *net)
{
    ctrt_comm *comm = ctrt_parallel_comm(net);
    return comm != NULL ? ctrt_comm_size(comm) : 1;
}

/* Trains with the batches from `begin` on. With CTRT_ON_FAILURE=shrink, rank and number of ranks may change in each
 * step. */
static ctrt_status epoch_train(double *mean, ctrt_module *net, ctrt_optimizer *optimizer, const struct data *data,
                               ctrt_tensor *order, int64_t rows, int64_t begin)
{
    ctrt_tensor *batch[2] = { NULL, NULL };
    CTRT_AUTO(tensor) loss = NULL, sum = NULL;
    ctrt_status status = CTRT_OK;
    const int64_t batches = data->train / rows;
    ctrt_module_train(net, true);
    for (int64_t i = begin; i < batches && !status; i++) {
        const int64_t first = rows * rank_of(net) / ranks_of(net),
                      end = rows * (rank_of(net) + 1) / ranks_of(net);     /* this process's rows of the batch */
        status = batch_pick(batch, data, order, i * rows + first, end - first);
        if (!status) status = ctrt_optimizer_zero_grad(optimizer, true);
        if (!status) status = ctrt_parallel_step(&loss, net, batch, 2, loss_function, NULL);
        if (!status) status = ctrt_optimizer_step(optimizer);
        if (!status) status = i == begin ? ctrt_clone(&sum, loss) : ctrt_add_(sum, loss);
    }
    ctrt_tensor_release(&batch[0]);
    ctrt_tensor_release(&batch[1]);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_item(mean, sum));
    *mean /= (double)(batches - begin);
    return CTRT_OK;
}

/* Computes the fraction of the other images that the network classifies correctly. */
static ctrt_status evaluate(double *accuracy, ctrt_module *net, const struct data *data)
{
    CTRT_AUTO(tensor) images = NULL, labels = NULL, right = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    ctrt_status status = batch_pick(batch, data, NULL, data->train, data->n - data->train);
    images = batch[0], labels = batch[1];
    CTRT_TRY(status);
    ctrt_module_train(net, false);
    ctrt_no_grad status = ctrt_forward(&right, net, images);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_argmax(&right, right, CTRT_DIMS(1), false));
    CTRT_TRY(ctrt_cpu(&right, right));
    CTRT_TRY(ctrt_eq(&right, right, labels));
    CTRT_TRY(ctrt_to_dtype(&right, right, CTRT_F64));
    CTRT_TRY(ctrt_mean(&right, right, CTRT_ALL_DIMS));
    return ctrt_item(accuracy, right);
}

static ctrt_status run(const struct data *data, int epochs, int64_t rows, ctrt_device *cpu)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) order = NULL;
    ctrt_device *device = NULL;
    ctrt_adamw_options options = CTRT_ADAMW_OPTIONS;
    options.lr = 2e-3;
    char hash[65];
    CTRT_TRY(ctrt_default_device(&device));
    CTRT_TRY(network_new(&module, cpu));
    CTRT_TRY(ctrt_module_to(module, device, CTRT_DTYPE_DEFAULT));
    CTRT_TRY(ctrt_parallel_new(&net, module, NULL, NULL, 0));
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &options));
    if (rank_of(net) == 0)
        printf("%s\n", ctrt_parallel_describe(net));
    for (int epoch = 1; epoch <= epochs; epoch++) {
        double loss, accuracy;
        /* A process that has joined others begins with their next batch. */
        const int64_t batches = data->train / rows, begin = ctrt_parallel_steps(net) - (epoch - 1) * batches;
        CTRT_TRY(ctrt_randperm(&order, data->train, cpu));
        if (begin >= batches)
            continue;
        CTRT_TRY(epoch_train(&loss, net, optimizer, data, order, rows, begin));
        CTRT_TRY(evaluate(&accuracy, net, data));
        if (rank_of(net) == 0)
            printf("epoch %d loss %.6f accuracy %.4f\n", epoch, loss, accuracy);
    }
    CTRT_TRY(ctrt_parallel_barrier(net));
    CTRT_TRY(ctrt_module_sha256(hash, net));
    printf("parameters sha256 %s\n", hash);
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "epochs", required_argument, NULL, 'e' }, { "batch", required_argument, NULL, 'b' },
        { "data", required_argument, NULL, 'f' }, { NULL, 0, NULL, 0 },
    };
    const char *path = "data/digits.csv";
    int epochs = 12, option;
    int64_t rows = 48;
    while ((option = getopt_long(argc, argv, "e:b:f:", options, NULL)) != -1) {
        switch (option) {
        case 'e': epochs = atoi(optarg); break;
        case 'b': rows = atoll(optarg); break;
        case 'f': path = optarg; break;
        default: epochs = -1;
        }
    }
    if (optind != argc || epochs < 0 || rows < 1 || rows > 64) {
        fprintf(stderr, "usage: %s [--epochs N] [--batch 1-64] [--data FILE]\n", argv[0]);
        return 2;
    }
    struct data data = { NULL, NULL, 0, 0 };
    ctrt_device *cpu = NULL;
    ctrt_manual_seed(1);
    ctrt_status status = ctrt_device_get(&cpu, "cpu");
    if (!status) status = data_read(&data, path, cpu);
    if (!status) status = run(&data, epochs, rows, cpu);
    if (status)
        fprintf(stderr, "%s: %s: %s\n", argv[0], ctrt_status_string(status), ctrt_error_message());
    ctrt_tensor_release(&data.images);
    ctrt_tensor_release(&data.labels);
    return status != CTRT_OK;
}
