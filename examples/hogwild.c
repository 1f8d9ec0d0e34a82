/* SPDX-License-Identifier: Apache-2.0 */
/* Hogwild: several processes train one network at the same time, without locks, on the images of handwritten digits of
 * digits.c. The parameters are in memory that the processes share; each process has gradients of its own, and its
 * optimizer updates the shared parameters.
 *
 *     make hogwild && ./hogwild [--processes N] [--epochs N] [--seed N] [--data FILE]
 *
 * As in PyTorch's example mnist_hogwild. An update may overwrite a part of another one, so two runs differ slightly;
 * the network learns all the same. */
#include <ctrt/ctrt.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIXELS = 64, CLASSES = 10, BATCH = 32, MOST_IMAGES = 10000, MOST_PROCESSES = 64 };

struct data {
    ctrt_tensor *images, *labels;           /* for training */
    ctrt_tensor *test_images, *test_labels;
};

/* Reads lines of 64 pixels and a label. The last fifth is for the test. */
static ctrt_status data_read(struct data *data, const char *path, ctrt_device *cpu)
{
    static float images[MOST_IMAGES][PIXELS];
    static int64_t labels[MOST_IMAGES];
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    int64_t n = 0;
    int column = 0, number;
    char separator;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %s: run this in the folder examples, or say --data FILE", path);
    while (n < MOST_IMAGES && fscanf(file, "%d%c", &number, &separator) == 2
           && separator == (column < PIXELS ? ',' : '\n')) {
        if (column < PIXELS)
            images[n][column++] = (float)number / 16;
        else
            labels[n++] = number, column = 0;
    }
    const bool whole = feof(file) && column == 0 && n > 0;
    fclose(file);
    if (!whole)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s, line %lld: expected 64 pixels and a label", path, (long long)n + 1);
    const int64_t first = n - n / 5;
    CTRT_TRY(ctrt_from_data(&x, images, n * PIXELS, CTRT_SHAPE(n, PIXELS), CTRT_F32, cpu));
    CTRT_TRY(ctrt_from_data(&y, labels, n, CTRT_SHAPE(n), CTRT_I64, cpu));
    CTRT_TRY(ctrt_narrow(&data->images, x, 0, 0, first));
    CTRT_TRY(ctrt_narrow(&data->labels, y, 0, 0, first));
    CTRT_TRY(ctrt_narrow(&data->test_images, x, 0, first, n - first));
    return ctrt_narrow(&data->test_labels, y, 0, first, n - first);
}

/* Runs in a process of its own: trains on all images, in an order of its own. */
static ctrt_status train(ctrt_module *net, const struct data *data, int epochs, uint64_t seed)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) order = NULL, rows = NULL, x = NULL, y = NULL, loss = NULL;
    const int64_t n = ctrt_tensor_size(data->labels, 0);
    ctrt_manual_seed(seed);
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 0.05;
    sgd.momentum = 0.5;
    CTRT_TRY(ctrt_sgd_new(&optimizer, net, &sgd));
    for (int epoch = 0; epoch < epochs; epoch++) {
        CTRT_TRY(ctrt_randperm(&order, n, ctrt_tensor_device(data->labels)));
        for (int64_t row = 0; row + BATCH <= n; row += BATCH) {
            CTRT_TRY(ctrt_narrow(&rows, order, 0, row, BATCH));
            CTRT_TRY(ctrt_index_select(&x, data->images, 0, rows));
            CTRT_TRY(ctrt_index_select(&y, data->labels, 0, rows));
            CTRT_TRY(ctrt_forward(&loss, net, x));
            CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
            CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
            CTRT_TRY(ctrt_backward(loss));
            CTRT_TRY(ctrt_optimizer_step(optimizer));       /* writes the shared parameters */
        }
    }
    return CTRT_OK;
}

static ctrt_status evaluate(double *loss, double *accuracy, ctrt_module *net, const struct data *data)
{
    CTRT_AUTO(tensor) y = NULL, mean = NULL;
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = ctrt_forward(&y, net, data->test_images);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_cross_entropy(&mean, y, data->test_labels, NULL));
    CTRT_TRY(ctrt_item(loss, mean));
    CTRT_TRY(ctrt_argmax(&y, y, CTRT_DIMS(1), false));
    CTRT_TRY(ctrt_eq(&y, y, data->test_labels));
    CTRT_TRY(ctrt_to_dtype(&y, y, CTRT_F64));
    CTRT_TRY(ctrt_mean(&mean, y, CTRT_ALL_DIMS));
    return ctrt_item(accuracy, mean);
}

static ctrt_status run(int processes, int epochs, uint64_t seed, const char *path, struct data *data)
{
    CTRT_AUTO(module) net = NULL;
    ctrt_device *cpu = NULL;
    double loss, accuracy;
    int failed = 0;
    ctrt_manual_seed(seed);
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(data_read(data, path, cpu));
    CTRT_TRY(ctrt_sequential_new(&net, CTRT_MODULES(
        CTRT_NEW(linear, PIXELS, 48, true, cpu), CTRT_NEW(relu), CTRT_NEW(linear, 48, CLASSES, true, cpu))));
    CTRT_TRY(ctrt_module_share(net));
    CTRT_TRY(evaluate(&loss, &accuracy, net, data));
    printf("before: loss %.3f, %.1f %% right\n", loss, 100 * accuracy);
    fflush(stdout);
    for (int i = 0; i < processes; i++) {
        const pid_t child = fork();
        if (child < 0)
            return ctrt_fail(CTRT_ERR_IO, "cannot start process %d of %d", i + 1, processes);
        if (child > 0)
            continue;
        ctrt_status status = train(net, data, epochs, seed + 1 + (uint64_t)i);
        if (status != CTRT_OK)
            fprintf(stderr, "process %d: %s\n", i, ctrt_error_message());
        _exit(status != CTRT_OK);
    }
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (failed > 0)
        return ctrt_fail(CTRT_ERR_STATE, "%d of %d processes failed", failed, processes);
    CTRT_TRY(evaluate(&loss, &accuracy, net, data));
    printf("after %d epochs of %d processes: loss %.3f, %.1f %% right\n", epochs, processes, loss, 100 * accuracy);
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "processes", required_argument, NULL, 'p' }, { "epochs", required_argument, NULL, 'e' },
        { "seed", required_argument, NULL, 's' },      { "data", required_argument, NULL, 'f' },
        { NULL, 0, NULL, 0 },
    };
    static struct data data;
    const char *path = "data/digits.csv";
    int processes = 4, epochs = 4, option;
    bool usage = false;
    uint64_t seed = 1;
    while ((option = getopt_long(argc, argv, "p:e:s:f:", options, NULL)) != -1) {
        switch (option) {
        case 'p': processes = atoi(optarg); break;
        case 'e': epochs = atoi(optarg); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'f': path = optarg; break;
        default: usage = true;
        }
    }
    if (usage || optind != argc || processes < 1 || processes > MOST_PROCESSES || epochs < 1) {
        fprintf(stderr, "usage: %s [--processes N] [--epochs N] [--seed N] [--data FILE]\n", argv[0]);
        return 2;
    }
    ctrt_status status = run(processes, epochs, seed, path, &data);
    if (status)
        fprintf(stderr, "%s: %s: %s\n", argv[0], ctrt_status_string(status), ctrt_error_message());
    ctrt_tensor_release(&data.images);
    ctrt_tensor_release(&data.labels);
    ctrt_tensor_release(&data.test_images);
    ctrt_tensor_release(&data.test_labels);
    return status != CTRT_OK;
}
