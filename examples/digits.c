/* SPDX-License-Identifier: Apache-2.0 */
/* Handwritten digits: trains a multilayer perceptron (MLP) and a convolutional network (CNN) on four fifths of 1,797
 * images, prints the accuracy on the other images, and verifies that a network loaded from its checkpoint computes
 * the same results.
 *
 *     make digits && ./digits [--model mlp|cnn|both] [--epochs N] [--seed N] [--device NAME] [--data FILE]
 *
 * The exit status is 0 only if all checks succeed. The data is described in data/README.md. */
#include <ctrt/ctrt.h>

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 10, BATCH = 32 };

/* ---- the networks ---- */

static ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, PIXELS, 256, true, device), CTRT_NEW(relu), CTRT_NEW(dropout, 0.2),
        CTRT_NEW(linear, 256, 128, true, device), CTRT_NEW(relu), CTRT_NEW(dropout, 0.2),
        CTRT_NEW(linear, 128, CLASSES, true, device)));
}

static ctrt_status cnn_new(ctrt_module **out, ctrt_device *device)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_pool2d_options halve = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 32, 3, 3, &same, false, device),
        CTRT_NEW(batch_norm2d, 32, NULL, device), CTRT_NEW(relu),
        CTRT_NEW(conv2d, 32, 32, 3, 3, &same, false, device),
        CTRT_NEW(batch_norm2d, 32, NULL, device), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(conv2d, 32, 64, 3, 3, &same, false, device),
        CTRT_NEW(batch_norm2d, 64, NULL, device), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(dropout, 0.5), CTRT_NEW(linear, 64 * 2 * 2, CLASSES, true, device)));
}

static const struct model {
    const char *name, *checkpoint;
    ctrt_status (*make)(ctrt_module **out, ctrt_device *device);
    int epochs;
    double lr, weight_decay, expected;              /* expected: minimum accuracy on held-out images */
} models[] = {
    { "mlp", "digits-mlp.safetensors", mlp_new, 40, 2e-3, 0.01, 0.965 },
    { "cnn", "digits-cnn.safetensors", cnn_new, 15, 3e-3, 0.05, 0.98 },
};

/* ---- the data: images [N, 1, 8, 8] from 0 to 1, labels [N] ---- */

struct set { ctrt_tensor *images, *labels; };

static void set_release(struct set *set)
{
    ctrt_tensor_release(&set->images);
    ctrt_tensor_release(&set->labels);
}
/* Like CTRT_AUTO: released on every path out of the block. */
#define AUTO_SET __attribute__((cleanup(set_release))) struct set

/* Reads lines of 64 pixels and a label. */
static ctrt_status set_read(struct set *set, const char *path, ctrt_device *device)
{
    enum { MOST = 10000 };
    static float images[MOST][PIXELS];
    static int64_t labels[MOST];
    int64_t n = 0;
    int column = 0, number;
    char separator;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %s: run this in the folder examples, or say --data FILE", path);
    while (n < MOST && fscanf(file, "%d%c", &number, &separator) == 2 && separator == (column < PIXELS ? ',' : '\n')) {
        if (column < PIXELS)
            images[n][column++] = number / 16.0f;
        else
            labels[n++] = number, column = 0;
    }
    bool whole = feof(file) && column == 0 && n > 0;
    fclose(file);
    if (!whole)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s, line %lld: expected 64 pixels and a label", path, (long long)n + 1);
    CTRT_TRY(ctrt_from_data(&set->images, images, n * PIXELS, CTRT_SHAPE(n, 1, SIDE, SIDE), CTRT_F32, device));
    return ctrt_from_data(&set->labels, labels, n, CTRT_SHAPE(n), CTRT_I64, device);
}

/* Selects the rows of `set` whose indices are in `rows`. */
static ctrt_status set_pick(struct set *out, const struct set *set, ctrt_tensor *rows)
{
    CTRT_TRY(ctrt_index_select(&out->images, set->images, 0, rows));
    return ctrt_index_select(&out->labels, set->labels, 0, rows);
}

/* Splits at random: four fifths for training, one fifth held out. */
static ctrt_status set_split(struct set *train, struct set *held_out, const struct set *all, ctrt_device *device)
{
    CTRT_AUTO(tensor) order = NULL, part = NULL;
    int64_t n = ctrt_tensor_size(all->labels, 0), first = n - n / 5;
    CTRT_TRY(ctrt_randperm(&order, n, device));
    CTRT_TRY(ctrt_narrow(&part, order, 0, 0, first));
    CTRT_TRY(set_pick(train, all, part));
    CTRT_TRY(ctrt_narrow(&part, order, 0, first, n - first));
    return set_pick(held_out, all, part);
}

/* ---- progress: a bar on a terminal, otherwise a line every two seconds ---- */

struct progress { double start, shown; int64_t steps; };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static ctrt_status progress_show(struct progress *progress, const char *name, int64_t step, ctrt_tensor *loss,
                                 ctrt_device *device)
{
    static const char full[] = "##############################", empty[] = "..............................";
    bool terminal = isatty(STDOUT_FILENO), last = step == progress->steps;
    double time = now(), value;
    if (!last && time - progress->shown < (terminal ? 0.1 : 2))
        return CTRT_OK;
    progress->shown = time;
    CTRT_TRY(ctrt_item(&value, loss));              /* waits for the device, so not called at every step */
    double done = (double)step / (double)progress->steps, seconds = time - progress->start;
    int bar = (int)(done * 30), left = (int)(seconds / done - seconds + 0.5);
    printf("%s%s  [%.*s%.*s] %3.0f %%  loss %.4f  %7.0f images/s  %d:%02d left  %s  %.1f MiB%s",
           terminal ? "\r" : "", name, bar, full, 30 - bar, empty, 100 * done, value,
           (double)(step * BATCH) / seconds, left / 60, left % 60, ctrt_device_name(device),
           (double)ctrt_memory_allocated(device) / 1048576, last || !terminal ? "\n" : "   ");
    fflush(stdout);
    return CTRT_OK;
}

/* ---- training and evaluation ---- */

static ctrt_status train(ctrt_module *net, const struct model *model, const struct set *set, int epochs,
                         ctrt_device *device)
{
    CTRT_AUTO(tensor) order = NULL, rows = NULL, loss = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    AUTO_SET batch = { NULL, NULL };
    int64_t n = ctrt_tensor_size(set->labels, 0), batches = n / BATCH;
    struct progress progress = { .start = now(), .shown = now(), .steps = epochs * batches };

    /* Label smoothing improves the accuracy with so few images. */
    ctrt_cross_entropy_options softened = CTRT_CROSS_ENTROPY_OPTIONS;
    softened.label_smoothing = 0.1;
    ctrt_adamw_options options = CTRT_ADAMW_OPTIONS;
    options.lr = model->lr;
    options.weight_decay = model->weight_decay;
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &options));
    ctrt_module_train(net, true);
    for (int64_t step = 0; step < progress.steps; step++) {
        int64_t at = step % batches * BATCH;
        double turn = 3.14159265358979 * (double)step / (double)progress.steps;
        if (at == 0)
            CTRT_TRY(ctrt_randperm(&order, n, device));
        CTRT_TRY(ctrt_narrow(&rows, order, 0, at, BATCH));
        CTRT_TRY(set_pick(&batch, set, rows));
        CTRT_TRY(ctrt_forward(&loss, net, batch.images));
        CTRT_TRY(ctrt_cross_entropy(&loss, loss, batch.labels, &softened));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_backward(loss));
        CTRT_TRY(ctrt_optimizer_set_lr(optimizer, model->lr * (0.5 + 0.5 * cos(turn))));    /* decreases to 0 */
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        CTRT_TRY(progress_show(&progress, model->name, step + 1, loss, device));
    }
    return CTRT_OK;
}

/* Computes the network's accuracy and its logits. */
static ctrt_status evaluate(double *accuracy, ctrt_tensor **logits, ctrt_module *net, const struct set *set)
{
    CTRT_AUTO(tensor) right = NULL;
    ctrt_status status = CTRT_OK;
    ctrt_module_train(net, false);
    ctrt_no_grad status = ctrt_forward(logits, net, set->images);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_argmax(&right, *logits, CTRT_DIMS(1), false));
    CTRT_TRY(ctrt_eq(&right, right, set->labels));
    CTRT_TRY(ctrt_to_dtype(&right, right, CTRT_F64));
    CTRT_TRY(ctrt_mean(&right, right, CTRT_ALL_DIMS));
    return ctrt_item(accuracy, right);
}

/* Compares two tensors of logits bit by bit. */
static ctrt_status same_bits(bool *same, ctrt_tensor *a, ctrt_tensor *b)
{
    static float x[4096 * CLASSES], y[4096 * CLASSES];
    size_t bytes = (size_t)ctrt_tensor_numel(a) * sizeof(float);
    CTRT_TRY(ctrt_to_host(x, sizeof x, a, CTRT_F32));
    CTRT_TRY(ctrt_to_host(y, sizeof y, b, CTRT_F32));
    *same = memcmp(x, y, bytes) == 0;
    return CTRT_OK;
}

static ctrt_status run(const struct model *model, const struct set *all, int epochs, uint64_t seed, ctrt_device *device)
{
    AUTO_SET set = { NULL, NULL };
    AUTO_SET held_out = { NULL, NULL };
    CTRT_AUTO(module) net = NULL, copy = NULL;
    CTRT_AUTO(tensor) logits = NULL, copy_logits = NULL;
    double accuracy, copy_accuracy;
    bool same;

    ctrt_manual_seed(seed);
    CTRT_TRY(set_split(&set, &held_out, all, device));
    CTRT_TRY(model->make(&net, device));
    CTRT_TRY(train(net, model, &set, epochs ? epochs : model->epochs, device));
    CTRT_TRY(evaluate(&accuracy, &logits, net, &held_out));
    printf("%s  %lld parameters, trained on %lld images, gets %.2f %% of %lld others right\n", model->name,
           (long long)ctrt_module_numel(net), (long long)ctrt_tensor_size(set.labels, 0), 100 * accuracy,
           (long long)ctrt_tensor_size(held_out.labels, 0));

    CTRT_TRY(ctrt_save(net, model->checkpoint));
    CTRT_TRY(model->make(&copy, device));
    CTRT_TRY(ctrt_load(copy, model->checkpoint));
    CTRT_TRY(evaluate(&copy_accuracy, &copy_logits, copy, &held_out));
    CTRT_TRY(same_bits(&same, logits, copy_logits));
    if (!same || accuracy != copy_accuracy)
        return ctrt_fail(CTRT_ERR_INTERNAL, "the network read from %s gives other results", model->checkpoint);
    printf("%s  %s, read into a new network, gives the same results to the bit\n", model->name, model->checkpoint);
    if (epochs == 0 && accuracy < model->expected)
        return ctrt_fail(CTRT_ERR_INTERNAL, "%.2f %% right, but at least %.1f %% were expected", 100 * accuracy,
                         100 * model->expected);
    return CTRT_OK;
}

/* ---- main ---- */

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "model", required_argument, NULL, 'm' }, { "epochs", required_argument, NULL, 'e' },
        { "seed", required_argument, NULL, 's' },  { "device", required_argument, NULL, 'd' },
        { "data", required_argument, NULL, 'f' },  { NULL, 0, NULL, 0 },
    };
    const char *which = "both", *device_name = "auto", *path = "data/digits.csv";
    int epochs = 0, option, matched = 0;            /* epochs 0: each model's default */
    uint64_t seed = 1;
    while ((option = getopt_long(argc, argv, "m:e:s:d:f:", options, NULL)) != -1) {
        switch (option) {
        case 'm': which = optarg; break;
        case 'e': epochs = atoi(optarg); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'd': device_name = optarg; break;
        case 'f': path = optarg; break;
        default: which = "";
        }
    }
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        matched += strcmp(which, models[i].name) == 0 || strcmp(which, "both") == 0;
    if (matched == 0 || optind != argc || epochs < 0) {
        fprintf(stderr, "usage: %s [--model mlp|cnn|both] [--epochs N] [--seed N] [--device NAME] [--data FILE]\n",
                argv[0]);
        return 2;
    }

    AUTO_SET all = { NULL, NULL };
    ctrt_device *device = NULL;
    ctrt_status status = ctrt_device_get(&device, device_name);
    if (!status) status = set_read(&all, path, device);
    for (size_t i = 0; !status && i < sizeof models / sizeof models[0]; i++)
        if (strcmp(which, models[i].name) == 0 || strcmp(which, "both") == 0)
            status = run(&models[i], &all, epochs, seed, device);
    if (status)
        fprintf(stderr, "%s: %s: %s\n", argv[0], ctrt_status_string(status), ctrt_error_message());
    return status != CTRT_OK;
}
