/* SPDX-License-Identifier: Apache-2.0 */
/* A small residual network on images from disk: worker processes read and change the images, the network computes in
 * bf16 where autocast allows it, and a bar shows the progress.
 *
 *     make resnet && ./resnet --make-data shapes          writes images of four shapes, 2 MB
 *     ./resnet --data shapes                              on the default device
 *     ./resnet --data shapes --device sim                 on a simulated device
 *
 *     ./resnet [--data FOLDER] [--epochs N] [--batch N] [--workers N] [--device NAME] [--seed N] [--f32]
 *
 * FOLDER has the folders train and test, each with a folder of images for each class, as torchvision's ImageFolder:
 * PPM or PGM, and with the plugins image-jpeg and image-png also JPEG and PNG, of any size. The losses do not depend on
 * the number of workers. */
#include <ctrt/ctrt.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SIZE = 16, PADDING = 2, PATH_BYTES = 4096 };

static const float mean[] = { 0.5f, 0.5f, 0.5f }, deviation[] = { 0.25f, 0.25f, 0.25f };

/* ---- a residual block: relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)) ---- */

struct block { ctrt_module *body, *shortcut; };         /* borrowed: the module owns them. shortcut may be NULL */

static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct block *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) h = NULL, x = ctrt_tensor_retain(inputs[0]);      /* released on every path out of the function */
    (void)count;
    CTRT_TRY(ctrt_forward(&h, b->body, x));
    if (b->shortcut != NULL)
        CTRT_TRY(ctrt_forward(&x, b->shortcut, x));
    CTRT_TRY(ctrt_add(&h, h, x));
    return ctrt_relu(y, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct block, body), offsetof(struct block, shortcut)),
};

/* The first convolution has the stride; where the shape changes, the shortcut is a convolution with 1x1 filters. */
static ctrt_status block_new(ctrt_module **out, int64_t in, int64_t channels, int64_t stride, ctrt_device *device)
{
    const ctrt_conv2d_options first = CTRT_WITH(ctrt_conv2d_options, .stride = { stride, stride },
                                        .padding = { 1, 1 });
    const ctrt_conv2d_options second = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_conv2d_options narrow = CTRT_WITH(ctrt_conv2d_options, .stride = { stride, stride });
    CTRT_TRY(ctrt_module_new(out, &block_class));
    struct block *b = ctrt_module_state(*out);
    b->body = CTRT_NEW(sequential, CTRT_MODULES(
        CTRT_NEW(conv2d, in, channels, 3, 3, &first, false, device),
        CTRT_NEW(batch_norm2d, channels, NULL, device), CTRT_NEW(relu),
        CTRT_NEW(conv2d, channels, channels, 3, 3, &second, false, device),
        CTRT_NEW(batch_norm2d, channels, NULL, device)));
    CTRT_TRY(ctrt_module_add_module(*out, "body", b->body));            /* returns the error of a failed CTRT_NEW */
    if (stride == 1 && in == channels)
        return CTRT_OK;
    b->shortcut = CTRT_NEW(sequential, CTRT_MODULES(
        CTRT_NEW(conv2d, in, channels, 1, 1, &narrow, false, device),
        CTRT_NEW(batch_norm2d, channels, NULL, device)));
    return ctrt_module_add_module(*out, "shortcut", b->shortcut);
}

/* ---- the network: images [N, 3, SIZE, SIZE] to logits [N, classes] ---- */

static ctrt_status mean_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return ctrt_mean(y, inputs[0], CTRT_DIMS(2, 3));
}

static const ctrt_module_class mean_class = {
    .size = sizeof(ctrt_module_class), .kind = "GlobalMean", .forward = mean_forward,
};

static ctrt_status mean_new(ctrt_module **out)
{
    return ctrt_module_new(out, &mean_class);
}

static ctrt_status resnet_new(ctrt_module **out, int64_t classes, ctrt_device *device)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 3, 8, 3, 3, &same, false, device),
        CTRT_NEW(batch_norm2d, 8, NULL, device), CTRT_NEW(relu),
        CTRT_MAKE(block_new, 8, 8, 1, device), CTRT_MAKE(block_new, 8, 16, 2, device),
        CTRT_MAKE(block_new, 16, 32, 2, device), CTRT_MAKE(mean_new),
        CTRT_NEW(linear, 32, classes, true, device)));
}

/* ---- the data ---- */

/* A transform for training: another part of the image in each epoch, sometimes mirrored. Runs in the workers. */
static ctrt_status augment(const ctrt_image *out, const ctrt_image *image, ctrt_sample_random *random, void *user)
{
    unsigned char scaled_pixels[3 * SIZE * SIZE], part_pixels[3 * SIZE * SIZE];
    const ctrt_image scaled = ctrt_image_hwc(scaled_pixels, CTRT_U8, SIZE, SIZE, 3);
    const ctrt_image part = ctrt_image_hwc(part_pixels, CTRT_U8, SIZE, SIZE, 3);
    ctrt_image view;
    (void)user;
    CTRT_TRY(ctrt_image_resize(&scaled, image, true));
    CTRT_TRY(ctrt_image_random_crop(&part, &scaled, PADDING, 128, random));
    CTRT_TRY(ctrt_image_random_hflip(&view, &part, 0.5, random));
    return ctrt_image_to_float(out, &view, mean, deviation);
}

struct folder { char path[PATH_BYTES]; bool train; };

/* Workers call this too: they are forked from a process that does not have the dataset. */
static ctrt_status folder_open(ctrt_dataset **out, const void *arguments, size_t bytes)
{
    const struct folder *folder = arguments;
    ctrt_image_options options = CTRT_WITH(ctrt_image_options, .height = SIZE, .width = SIZE,
                                   .transform = folder->train ? augment : NULL);
    memcpy(options.mean, mean, sizeof mean);
    memcpy(options.std, deviation, sizeof deviation);
    (void)bytes;
    return ctrt_image_folder_dataset(out, folder->path, &options);
}

struct settings {
    const char *data, *device;
    int epochs, batch, workers;
    uint64_t seed;
    bool f32;
};

static ctrt_status loader_open(ctrt_loader **out, const struct settings *settings, const char *part,
                               ctrt_device *device)
{
    CTRT_AUTO(dataset) dataset = NULL;
    struct folder folder = { .train = strcmp(part, "train") == 0 };
    if (snprintf(folder.path, sizeof folder.path, "%s/%s", settings->data, part) >= (int)sizeof folder.path)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the name of the folder is too long");
    CTRT_TRY(ctrt_dataset_open(&dataset, folder_open, &folder, sizeof folder));
    ctrt_loader_options options = CTRT_LOADER_OPTIONS;
    options.batch_size = settings->batch;
    options.shuffle = options.drop_last = folder.train;
    options.workers = settings->workers;
    options.persistent_workers = settings->workers > 0 && folder.train;
    options.device = device;
    return ctrt_loader_new(out, dataset, &options);
}

/* ---- training and evaluation ---- */

/* Under autocast: logits and, if `loss` is not NULL, the loss of a batch. */
static ctrt_status compute(ctrt_tensor **logits, ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *batch,
                           const struct settings *settings)
{
    const char *type = ctrt_device_type(ctrt_tensor_device(batch[0]));
    ctrt_autocast(type, &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_BF16, .disabled = settings->f32)) {
        CTRT_TRY(ctrt_forward(logits, net, batch[0]));
        if (loss != NULL)
            CTRT_TRY(ctrt_cross_entropy(loss, *logits, batch[1], NULL));
    }
    return CTRT_OK;
}

static ctrt_status train(ctrt_module *net, ctrt_loader *loader, const struct settings *settings)
{
    const int64_t batches = ctrt_loader_length(loader), steps = settings->epochs * batches;
    const double rate = 3e-3;
    CTRT_AUTO(tensor) logits = NULL, loss = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(progress) bar = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    bool more = true;
    double value;
    if (batches == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "there are fewer images than --batch %d", settings->batch);
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = rate;
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &adamw));
    ctrt_progress_options progress = CTRT_PROGRESS_OPTIONS;
    progress.name = "train";
    progress.unit = "images";
    progress.scale = settings->batch;
    CTRT_TRY(ctrt_progress_new(&bar, steps, &progress));
    ctrt_module_train(net, true);
    for (int64_t step = 0; step < steps; ) {
        CTRT_TRY(ctrt_loader_next(batch, &more, loader));
        if (!more)                                      /* the end of an epoch; the next call begins another one */
            continue;
        CTRT_TRY(compute(&logits, &loss, net, batch, settings));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_backward(loss));
        CTRT_TRY(ctrt_optimizer_set_lr(optimizer, rate * (0.5 + 0.5 * cos(M_PI * (double)step / (double)steps))));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        step++;
        if (ctrt_progress_due(bar) || step == steps) {  /* waits for the device, so not at every step */
            CTRT_TRY(ctrt_item(&value, loss));
            ctrt_progress_note(bar, "epoch %lld of %d, loss %.4f", (long long)((step - 1) / batches + 1),
                               settings->epochs, value);
        }
        ctrt_progress_add(bar, 1);
    }
    ctrt_tensor_release(&batch[0]), ctrt_tensor_release(&batch[1]);
    return CTRT_OK;
}

static ctrt_status evaluate(double *accuracy, ctrt_module *net, ctrt_loader *loader, const struct settings *settings)
{
    CTRT_AUTO(tensor) logits = NULL, right = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    ctrt_status status = CTRT_OK;
    double sum = 0, value = 0;
    bool more = true;
    ctrt_module_train(net, false);
    for (;;) {
        CTRT_TRY(ctrt_loader_next(batch, &more, loader));
        if (!more)
            break;
        ctrt_no_grad status = compute(&logits, NULL, net, batch, settings);
        CTRT_TRY(status);
        CTRT_TRY(ctrt_argmax(&right, logits, CTRT_DIMS(1), false));
        CTRT_TRY(ctrt_eq(&right, right, batch[1]));
        CTRT_TRY(ctrt_sum(&right, right, CTRT_ALL_DIMS));
        CTRT_TRY(ctrt_item(&value, right));
        sum += value;
    }
    *accuracy = sum / (double)ctrt_dataset_length(ctrt_loader_dataset(loader));
    return CTRT_OK;
}

static ctrt_status run(const struct settings *settings)
{
    CTRT_AUTO(loader) training = NULL, test = NULL;
    CTRT_AUTO(module) net = NULL;
    ctrt_device *device = NULL;
    int64_t classes = 0;
    double accuracy = 0;
    CTRT_TRY(ctrt_fork_server_start());                 /* before the first device is opened */
    CTRT_TRY(ctrt_device_get(&device, settings->device));
    ctrt_manual_seed(settings->seed);
    CTRT_TRY(loader_open(&training, settings, "train", device));
    CTRT_TRY(loader_open(&test, settings, "test", device));
    while (ctrt_image_folder_class(ctrt_loader_dataset(training), classes) != NULL)
        classes++;
    CTRT_TRY(resnet_new(&net, classes, device));
    printf("%lld images of %lld classes, %lld parameters, %s on %s, %d workers\n",
           (long long)ctrt_dataset_length(ctrt_loader_dataset(training)), (long long)classes,
           (long long)ctrt_module_numel(net), settings->f32 ? "f32" : "bf16 autocast", ctrt_device_name(device),
           settings->workers);
    fflush(stdout);
    CTRT_TRY(train(net, training, settings));
    CTRT_TRY(evaluate(&accuracy, net, test, settings));
    printf("%.1f %% of %lld other images right\n", 100 * accuracy,
           (long long)ctrt_dataset_length(ctrt_loader_dataset(test)));
    return CTRT_OK;
}

/* ---- images of shapes, for --make-data ---- */

static const char *const shapes[] = { "circle", "cross", "square", "triangle" };
enum { SHAPES = 4, TRAIN_IMAGES = 240, TEST_IMAGES = 60, PICTURE = 24 };

/* Returns whether the point, relative to the middle of a shape of radius 1, is inside of it. */
static bool inside(int shape, double x, double y)
{
    switch (shape) {
    case 0: return x * x + y * y < 1;
    case 1: return fabs(x) < 1 && fabs(y) < 1 && (fabs(x) < 0.35 || fabs(y) < 0.35);
    case 2: return fabs(x) < 0.85 && fabs(y) < 0.85;
    default: return y < 0.85 && y > -0.95 && fabs(x) < (y + 0.95) * 0.55;
    }
}

/* A shape of random size, place, direction and colours, with noise. */
static ctrt_status write_picture(const char *path, int shape, ctrt_sample_random *random)
{
    unsigned char pixels[PICTURE][PICTURE][3];
    const double size = PICTURE * (0.28 + 0.14 * ctrt_sample_random_uniform(random)), free = PICTURE - 2 * size;
    const double left = size + free * ctrt_sample_random_uniform(random);
    const double top = size + free * ctrt_sample_random_uniform(random);
    const double turn = 0.5 * ctrt_sample_random_uniform(random) - 0.25;
    double colors[2][3];                                /* a dark background and a light shape */
    for (int c = 0; c < 3; c++) {
        colors[0][c] = 20 + 90 * ctrt_sample_random_uniform(random);
        colors[1][c] = 140 + 90 * ctrt_sample_random_uniform(random);
    }
    for (int i = 0; i < PICTURE; i++)
        for (int k = 0; k < PICTURE; k++) {
            const double x = (k + 0.5 - left) / size, y = (i + 0.5 - top) / size;
            const bool in = inside(shape, x * cos(turn) - y * sin(turn), x * sin(turn) + y * cos(turn));
            for (int c = 0; c < 3; c++)
                pixels[i][k][c] = (unsigned char)(colors[in][c] + 40 * (ctrt_sample_random_uniform(random) - 0.5));
        }
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    fprintf(file, "P6 %d %d 255\n", PICTURE, PICTURE);
    const bool written = fwrite(pixels, sizeof pixels, 1, file) == 1;
    return fclose(file) == 0 && written ? CTRT_OK : ctrt_fail(CTRT_ERR_IO, "cannot write %s", path);
}

static ctrt_status make_folder(const char *path)
{
    return mkdir(path, 0755) == 0 || errno == EEXIST
               ? CTRT_OK
               : ctrt_fail(CTRT_ERR_IO, "cannot create the folder %s: %s", path, strerror(errno));
}

static ctrt_status make_data(const char *folder)
{
    static const struct { const char *name; int images; } parts[] = {
        { "train", TRAIN_IMAGES }, { "test", TEST_IMAGES }
    };
    char path[PATH_BYTES];
    if (strlen(folder) > PATH_BYTES - 100)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the name of the folder is too long");
    CTRT_TRY(make_folder(folder));
    for (int part = 0; part < 2; part++) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[part].name);
        CTRT_TRY(make_folder(path));
        for (int shape = 0; shape < SHAPES; shape++) {
            snprintf(path, sizeof path, "%s/%s/%s", folder, parts[part].name, shapes[shape]);
            CTRT_TRY(make_folder(path));
            for (int i = 0; i < parts[part].images; i++) {
                ctrt_sample_random random;
                ctrt_sample_random_start(&random, 1, (uint64_t)part, shape * 100000 + i);
                snprintf(path, sizeof path, "%s/%s/%s/%03d.ppm", folder, parts[part].name, shapes[shape], i);
                CTRT_TRY(write_picture(path, shape, &random));
            }
        }
    }
    printf("%s: %d images for training, %d for testing\n", folder, SHAPES * TRAIN_IMAGES, SHAPES * TEST_IMAGES);
    return CTRT_OK;
}

/* ---- main ---- */

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "data", required_argument, NULL, 'f' },    { "epochs", required_argument, NULL, 'e' },
        { "batch", required_argument, NULL, 'b' },   { "workers", required_argument, NULL, 'w' },
        { "device", required_argument, NULL, 'd' },  { "seed", required_argument, NULL, 's' },
        { "make-data", required_argument, NULL, 'm' }, { "f32", no_argument, NULL, '3' }, { NULL, 0, NULL, 0 },
    };
    struct settings settings = {
        .data = "shapes", .device = "auto", .epochs = 4, .batch = 32, .workers = 2, .seed = 1
    };
    const char *make = NULL;
    int option;
    bool usage = false;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'f': settings.data = optarg; break;
        case 'e': settings.epochs = atoi(optarg); break;
        case 'b': settings.batch = atoi(optarg); break;
        case 'w': settings.workers = atoi(optarg); break;
        case 'd': settings.device = optarg; break;
        case 's': settings.seed = strtoull(optarg, NULL, 10); break;
        case 'm': make = optarg; break;
        case '3': settings.f32 = true; break;
        default: usage = true;
        }
    }
    if (usage || optind != argc || settings.epochs < 1 || settings.batch < 1 || settings.workers < 0) {
        fprintf(stderr, "usage: %s --make-data FOLDER\n       %s [--data FOLDER] [--epochs N] [--batch N] "
                "[--workers N] [--device NAME] [--seed N] [--f32]\n", argv[0], argv[0]);
        return 2;
    }
    const ctrt_status status = make != NULL ? make_data(make) : run(&settings);
    if (status != CTRT_OK)
        fprintf(stderr, "%s: %s: %s\n", argv[0], ctrt_status_string(status), ctrt_error_message());
    return status != CTRT_OK;
}
