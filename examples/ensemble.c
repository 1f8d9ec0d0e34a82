/* SPDX-License-Identifier: Apache-2.0 */
/* An ensemble: trains several networks at the same time, one per device, on the images of handwritten digits of
 * digits.c, and classifies other images by the mean of the networks' probabilities.
 *
 *     make ensemble && ./ensemble [--models N] [--epochs N] [--seed N] [--device TYPE] [--data FILE]
 *
 * It uses all visible devices of the type of CTRT_DEVICE or --device ("cuda", "sim", "cpu"), one network per device;
 * with --models N, network i is on device i modulo their number. Simulated devices show that the devices work at the
 * same time: CTRT_SIM=devices=4 ./ensemble --device sim. The result does not depend on the number of devices. */
#include <ctrt/ctrt.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 64, CLASSES = 10, BATCH = 32, MOST_MODELS = 64, MOST_IMAGES = 10000 };

/* One network and what it needs, on its device. */
struct member {
    ctrt_device *device;
    ctrt_module *net;
    ctrt_tensor *images, *labels;           /* for training, in an order of its own */
    ctrt_tensor *test_images;
    ctrt_tensor *probabilities;             /* result: [1, test images, classes] */
};

struct ensemble {
    int count, epochs;
    struct member members[MOST_MODELS];
    ctrt_tensor *images, *labels;           /* all, on the cpu: [n, 64] from 0 to 1, and [n] */
    ctrt_tensor *test_labels;
};

static void ensemble_release(struct ensemble *all)
{
    for (int i = 0; i < MOST_MODELS; i++) {
        struct member *m = &all->members[i];
        ctrt_module_release(&m->net);
        ctrt_tensor_release(&m->images);
        ctrt_tensor_release(&m->labels);
        ctrt_tensor_release(&m->test_images);
        ctrt_tensor_release(&m->probabilities);
    }
    ctrt_tensor_release(&all->images);
    ctrt_tensor_release(&all->labels);
    ctrt_tensor_release(&all->test_labels);
}

/* Reads lines of 64 pixels and a label. */
static ctrt_status data_read(struct ensemble *all, const char *path, ctrt_device *cpu)
{
    static float images[MOST_IMAGES][PIXELS];
    static int64_t labels[MOST_IMAGES];
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
    bool whole = feof(file) && column == 0 && n > 0;
    fclose(file);
    if (!whole)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s, line %lld: expected 64 pixels and a label", path, (long long)n + 1);
    CTRT_TRY(ctrt_from_data(&all->images, images, n * PIXELS, CTRT_SHAPE(n, PIXELS), CTRT_F32, cpu));
    return ctrt_from_data(&all->labels, labels, n, CTRT_SHAPE(n), CTRT_I64, cpu);
}

static ctrt_status pick(ctrt_tensor **out, ctrt_tensor *all, ctrt_tensor *rows, ctrt_device *device)
{
    CTRT_AUTO(tensor) picked = NULL;
    CTRT_TRY(ctrt_index_select(&picked, all, 0, rows));
    return ctrt_to_device(out, picked, device);
}

/* Everything random is made here, one member after the other, so that the result does not depend on timing. */
static ctrt_status member_make(struct member *m, const struct ensemble *all, ctrt_tensor *train, ctrt_tensor *test,
                               ctrt_device *cpu)
{
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(tensor) order = NULL;
    CTRT_TRY(ctrt_sequential_new(&net, CTRT_MODULES(
        CTRT_NEW(linear, PIXELS, 48, true, cpu), CTRT_NEW(relu), CTRT_NEW(linear, 48, CLASSES, true, cpu))));
    CTRT_TRY(ctrt_module_copy(&m->net, net, m->device));
    CTRT_TRY(ctrt_randperm(&order, ctrt_tensor_numel(train), cpu));
    CTRT_TRY(ctrt_index_select(&order, train, 0, order));
    CTRT_TRY(pick(&m->images, all->images, order, m->device));
    CTRT_TRY(pick(&m->labels, all->labels, order, m->device));
    return pick(&m->test_images, all->images, test, m->device);
}

/* Four fifths of the images are for training. */
static ctrt_status ensemble_make(struct ensemble *all, ctrt_device *cpu)
{
    CTRT_AUTO(tensor) order = NULL, train = NULL, test = NULL;
    int64_t n = ctrt_tensor_size(all->labels, 0), first = n - n / 5;
    CTRT_TRY(ctrt_randperm(&order, n, cpu));
    CTRT_TRY(ctrt_narrow(&train, order, 0, 0, first));
    CTRT_TRY(ctrt_narrow(&test, order, 0, first, n - first));
    CTRT_TRY(ctrt_index_select(&all->test_labels, all->labels, 0, test));
    for (int i = 0; i < all->count; i++)
        CTRT_TRY(member_make(&all->members[i], all, train, test, cpu));
    return CTRT_OK;
}

/* Trains member `index` and applies it to the test images. Runs in a thread of its own. */
static ctrt_status member_run(void *user, int index)
{
    struct ensemble *all = user;
    struct member *m = &all->members[index];
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    int64_t batches = ctrt_tensor_size(m->labels, 0) / BATCH;
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 4e-3;
    CTRT_TRY(ctrt_adamw_new(&optimizer, m->net, &adamw));
    for (int64_t step = 0; step < all->epochs * batches; step++) {
        CTRT_TRY(ctrt_narrow(&x, m->images, 0, step % batches * BATCH, BATCH));
        CTRT_TRY(ctrt_narrow(&y, m->labels, 0, step % batches * BATCH, BATCH));
        CTRT_TRY(ctrt_forward(&loss, m->net, x));
        CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_backward(loss));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
    }
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = ctrt_forward(&y, m->net, m->test_images);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_detach(&y, y));
    CTRT_TRY(ctrt_softmax(&y, y, 1));
    return ctrt_unsqueeze(&m->probabilities, y, 0);
}

/* Computes the part of the test images for which the mean of `probabilities` [models, images, classes] is right. */
static ctrt_status accuracy_of(double *accuracy, ctrt_tensor *probabilities, const struct ensemble *all)
{
    CTRT_AUTO(tensor) right = NULL;
    CTRT_TRY(ctrt_mean_dims(&right, probabilities, CTRT_DIMS(0), false));
    CTRT_TRY(ctrt_argmax(&right, right, CTRT_DIMS(1), false));
    CTRT_TRY(ctrt_eq(&right, right, all->test_labels));
    CTRT_TRY(ctrt_to_dtype(&right, right, CTRT_F64));
    CTRT_TRY(ctrt_mean(&right, right, CTRT_ALL_DIMS));
    return ctrt_item(accuracy, right);
}

static ctrt_status report(const struct ensemble *all, ctrt_device *cpu)
{
    CTRT_AUTO(tensor) together = NULL, one = NULL;
    ctrt_tensor *parts[MOST_MODELS];
    double accuracy, mean = 0;
    for (int i = 0; i < all->count; i++)
        parts[i] = all->members[i].probabilities;
    CTRT_TRY(ctrt_gather_tensor(&together, parts, all->count, cpu, 0));
    for (int i = 0; i < all->count; i++) {
        CTRT_TRY(ctrt_narrow(&one, together, 0, i, 1));
        CTRT_TRY(accuracy_of(&accuracy, one, all));
        printf("model %d on %s gets %.2f %% right\n", i, ctrt_device_name(all->members[i].device), 100 * accuracy);
        mean += accuracy / all->count;
    }
    CTRT_TRY(accuracy_of(&accuracy, together, all));
    printf("the ensemble of %d gets %.2f %% of %lld images right; its models alone, on average, %.2f %%\n", all->count,
           100 * accuracy, (long long)ctrt_tensor_size(all->test_labels, 0), 100 * mean);
    return CTRT_OK;
}

static ctrt_status run(struct ensemble *all, int models, uint64_t seed, const char *device_name, const char *path)
{
    ctrt_device *cpu = NULL, *device = NULL, *devices[MOST_MODELS];
    char name[64];
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_device_get(&device, device_name));
    const char *type = ctrt_device_type(device);
    int available = ctrt_device_count(type);
    all->count = models > 0 ? models : available > 1 ? available : 3;
    all->count = all->count < MOST_MODELS ? all->count : MOST_MODELS;
    for (int i = 0; i < all->count; i++) {
        snprintf(name, sizeof name, device == cpu ? "%s" : "%s:%d", type, i % available);
        CTRT_TRY(ctrt_device_get(&devices[i], name));
        all->members[i].device = devices[i];
    }
    ctrt_devices_imbalanced(NULL, devices, all->count);         /* logs a warning if one will hold up the others */
    ctrt_manual_seed(seed);
    CTRT_TRY(data_read(all, path, cpu));
    CTRT_TRY(ensemble_make(all, cpu));
    CTRT_TRY(ctrt_parallel_apply(member_run, all, devices, all->count));
    return report(all, cpu);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "models", required_argument, NULL, 'm' }, { "epochs", required_argument, NULL, 'e' },
        { "seed", required_argument, NULL, 's' },   { "device", required_argument, NULL, 'd' },
        { "data", required_argument, NULL, 'f' },   { NULL, 0, NULL, 0 },
    };
    static struct ensemble all = { .epochs = 8 };
    const char *device = "auto", *path = "data/digits.csv";
    int models = 0, option;
    bool usage = false;
    uint64_t seed = 1;
    while ((option = getopt_long(argc, argv, "m:e:s:d:f:", options, NULL)) != -1) {
        switch (option) {
        case 'm': models = atoi(optarg); break;
        case 'e': all.epochs = atoi(optarg); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'd': device = optarg; break;
        case 'f': path = optarg; break;
        default: usage = true;
        }
    }
    if (usage || optind != argc || models < 0 || models > MOST_MODELS || all.epochs < 1) {
        fprintf(stderr, "usage: %s [--models N] [--epochs N] [--seed N] [--device TYPE] [--data FILE]\n", argv[0]);
        return 2;
    }
    ctrt_status status = run(&all, models, seed, device, path);
    if (status)
        fprintf(stderr, "%s: %s: %s\n", argv[0], ctrt_status_string(status), ctrt_error_message());
    ensemble_release(&all);
    return status != CTRT_OK;
}
