/* SPDX-License-Identifier: Apache-2.0 */
/* program.c: a program for ABI 1.0, which uses structs of all sorts and the plugins of this folder. Prints TAP.
 *
 *     CTRT_MEMORY=old program FOLDER     FOLDER: for its files */
#include <ctrt/ctrt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;
static ctrt_device *cpu;

/* Fails the enclosing function with the condition's text. */
#define NEED(condition)                                                                                  \
    do {                                                                                                 \
        if (!(condition))                                                                                \
            return ctrt_fail(CTRT_ERR_INTERNAL, "line %d: not true: %s", __LINE__, #condition);          \
    } while (0)

static ctrt_status expect(ctrt_tensor *tensor, const float *values, int64_t count)
{
    float got[64];
    NEED(ctrt_tensor_numel(tensor) == count && count <= 64);
    CTRT_TRY(ctrt_to_host(got, sizeof got[0] * (size_t)count, tensor, CTRT_F32));
    for (int64_t i = 0; i < count; i++)
        if (fabsf(got[i] - values[i]) > 1e-5f)
            return ctrt_fail(CTRT_ERR_INTERNAL, "element %d is %g, expected %g", (int)i, got[i], values[i]);
    return CTRT_OK;
}

static ctrt_status facts(void)
{
    int64_t value = 0;
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    ctrt_param_info param = CTRT_PARAM_INFO;
    ctrt_plugin_info plugin = CTRT_PLUGIN_INFO;
    ctrt_usage usage = CTRT_USAGE;
    int plugins = 0;
    CTRT_TRY(ctrt_constant_find(&value, "CTRT_CHANNELS_LAST"));
    NEED(value == CTRT_CHANNELS_LAST);
    CTRT_TRY(ctrt_device_get_properties(&properties, "old:0"));
    NEED(strcmp(properties.name, "ABI 1.0") == 0 && properties.total_memory == 1 << 30);
    CTRT_TRY(ctrt_device_get_usage(&usage, "cpu"));
    CTRT_TRY(ctrt_param_get_info(&param, 0));
    for (size_t i = 0; ctrt_plugin_list(&plugin, i) == CTRT_OK; i++)
        plugins += strstr(plugin.plugin, "-old") != NULL;
    NEED(plugins == 4);
    return CTRT_OK;
}

/* Ops of the old backend and, for want of a kernel, of the cpu; memory of the old policy. */
static ctrt_status old_device(void)
{
    ctrt_device *device = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    ctrt_memory_stats stats = CTRT_MEMORY_STATS;
    ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
    ctrt_memory_scope *scope = NULL;
    CTRT_TRY(ctrt_device_get(&device, "old:0"));
    NEED(strcmp(ctrt_memory_policy_name(device), "old") == 0);
    CTRT_TRY(ctrt_memory_scope_begin(&scope, device));
    CTRT_TRY(ctrt_from_data(&x, (const float[]){ 1, 2, 3, 4 }, 4, CTRT_SHAPE(2, 2), CTRT_F32, device));
    CTRT_TRY(ctrt_add_scalar(&y, x, ctrt_int(1)));
    CTRT_TRY(ctrt_mul(&y, y, x));
    CTRT_TRY(expect(y, (const float[]){ 2, 6, 12, 20 }, 4));
    NEED(ctrt_op_supported(device, "mul", CTRT_F32) && !ctrt_op_supported(device, "exp", CTRT_F32));
    CTRT_TRY(ctrt_sum(&y, y, CTRT_DIMS(0)));
    CTRT_TRY(expect(y, (const float[]){ 14, 26 }, 2));
    NEED(ctrt_fallback_count("sum") == 1);
    CTRT_TRY(ctrt_memory_get_stats(&stats, device));
    NEED(stats.reserved_bytes[CTRT_POOL_ALL].current > 0);
    CTRT_TRY(ctrt_memory_scope_end(&peaks, &scope));
    NEED(peaks.allocations >= 3 && peaks.allocated_bytes > 0);
    return CTRT_OK;
}

/* ---- what programs define: a function, a class of modules, hooks ---- */

static ctrt_status cube_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in,
                                int n_in)
{
    (void)n_out, (void)n_in;
    CTRT_TRY(ctrt_function_save(context, in[0]));
    CTRT_TRY(ctrt_mul(&out[0], in[0], in[0]));
    return ctrt_mul(&out[0], out[0], in[0]);
}

static ctrt_status cube_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                 ctrt_tensor *const *grad_out, int n_out)
{
    ctrt_tensor *x = NULL;
    (void)n_out, (void)n_in;
    CTRT_TRY(ctrt_function_saved(&x, context, 0));
    CTRT_TRY(ctrt_mul(&grad_in[0], x, x));
    CTRT_TRY(ctrt_mul_scalar(&grad_in[0], grad_in[0], ctrt_float(3)));
    return ctrt_mul(&grad_in[0], grad_in[0], grad_out[0]);
}

static const ctrt_function cube = {
    .size = sizeof(ctrt_function), .name = "cube", .forward = cube_forward, .backward = cube_backward,
};

static ctrt_status cube_module_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return ctrt_function_apply(&cube, NULL, y, 1, inputs, 1);
}

static const ctrt_module_class cube_class = {
    .size = sizeof(ctrt_module_class), .kind = "Cube", .forward = cube_module_forward,
};

static ctrt_status cube_new(ctrt_module **out)
{
    return ctrt_module_new(out, &cube_class);
}

static ctrt_status count_call(void *user, ctrt_module *module, ctrt_tensor *output)
{
    (void)module, (void)output;
    ++*(int *)user;
    return CTRT_OK;
}

static ctrt_status own_classes(void)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_AUTO(module) module = NULL, copy = NULL;
    const ctrt_forward_hooks hooks = { .size = sizeof hooks, .after = count_call };
    int calls = 0;
    CTRT_TRY(cube_new(&module));
    CTRT_TRY(ctrt_module_add_forward_hooks(module, &hooks, &calls, NULL));
    CTRT_TRY(ctrt_from_data(&x, (const float[]){ 1, 2, -3 }, 3, CTRT_SHAPE(3), CTRT_F32, cpu));
    CTRT_TRY(ctrt_tensor_require_grad(x, true));
    CTRT_TRY(ctrt_forward(&y, module, x));
    CTRT_TRY(expect(y, (const float[]){ 1, 8, -27 }, 3));
    CTRT_TRY(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_backward(y));
    CTRT_TRY(expect(ctrt_tensor_grad(x), (const float[]){ 3, 12, 27 }, 3));
    CTRT_TRY(ctrt_module_copy(&copy, module, NULL));
    NEED(calls == 1 && strcmp(ctrt_module_kind(copy), "Cube") == 0);
    return CTRT_OK;
}

/* ---- a dataset, a loader, training with every optimizer, checkpoints ---- */

static const ctrt_field fields[] = {
    { .name = "x", .dtype = CTRT_F32, .ndim = 3, .shape = { 1, 4, 4 } },
    { .name = "label", .dtype = CTRT_I64 },
};

static int64_t rows_length(void *state)
{
    (void)state;
    return 24;
}

static ctrt_status rows_item(ctrt_sample *sample, void *state)
{
    float *x = sample->out[0];
    int64_t label = sample->index % 3;
    (void)state;
    for (int i = 0; i < 16; i++)
        x[i] = (float)(ctrt_sample_random_uniform(&sample->random) * 0.1 + (i / 4 == label));
    memcpy(sample->out[1], &label, sizeof label);
    return CTRT_OK;
}

static const ctrt_dataset_functions rows = {
    .size = sizeof(ctrt_dataset_functions), .name = "rows", .fields = fields, .field_count = 2, .length = rows_length,
    .item = rows_item,
};

static ctrt_status net_new(ctrt_module **out)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_pool2d_options halve = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    ctrt_batch_norm_options norm = CTRT_BATCH_NORM_OPTIONS;
    norm.momentum = 0.2;
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 4, 3, 3, &same, true, cpu), CTRT_NEW(batch_norm2d, 4, &norm, cpu), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &halve), CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 16, 3, true, cpu)));
}

/* One epoch; writes the mean loss. */
static ctrt_status epoch(double *mean, ctrt_module *net, ctrt_optimizer *optimizer, ctrt_grad_scaler *scaler,
                         ctrt_loader *loader)
{
    ctrt_cross_entropy_options options = CTRT_CROSS_ENTROPY_OPTIONS;
    int batches = 0;
    options.label_smoothing = 0.01;
    *mean = 0;
    for (bool more = true; more;)
        ctrt_scope {
            CTRT_AUTO_ARRAY(tensor, batch, 2);
            CTRT_AUTO(tensor) y = NULL, loss = NULL;
            double value = 0;
            CTRT_TRY(ctrt_loader_next(batch, &more, loader));
            if (!more)
                continue;
            CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
            ctrt_autocast("cpu", &CTRT_WITH(ctrt_autocast_options, .disabled = scaler == NULL))
                CTRT_TRY(ctrt_forward(&y, net, batch[0]));
            CTRT_TRY(ctrt_cross_entropy(&loss, y, batch[1], &options));
            CTRT_TRY(ctrt_item(&value, loss));
            *mean = (*mean * batches + value) / (batches + 1);
            batches++;
            if (scaler != NULL)
                CTRT_TRY(ctrt_grad_scaler_scale(&loss, scaler, loss));
            CTRT_TRY(ctrt_backward(loss));
            CTRT_TRY(scaler != NULL ? ctrt_grad_scaler_step(scaler, optimizer) : ctrt_optimizer_step(optimizer));
            if (scaler != NULL)
                CTRT_TRY(ctrt_grad_scaler_update(scaler, 0));
        }
    NEED(batches == 3);
    return CTRT_OK;
}

/* Calls a constructor with options that differ from the defaults in `lr`. */
#define WITH_LR(out, kind, KIND, net)                                                                    \
    __extension__({                                                                                      \
        ctrt_##kind##_options options_ = CTRT_##KIND##_OPTIONS;                                          \
        options_.lr = 0.01;                                                                              \
        ctrt_##kind##_new(out, net, &options_);                                                          \
    })

static ctrt_status optimizer_new(ctrt_optimizer **out, ctrt_module *net, int kind)
{
    switch (kind) {
    case 0:  return WITH_LR(out, sgd, SGD, net);
    case 1:  return WITH_LR(out, adam, ADAM, net);
    case 2:  return WITH_LR(out, rmsprop, RMSPROP, net);
    case 3:  return WITH_LR(out, adagrad, ADAGRAD, net);
    case 4:  return WITH_LR(out, nadam, NADAM, net);
    default: return WITH_LR(out, adamw, ADAMW, net);
    }
}

static ctrt_status training(void)
{
    CTRT_AUTO(dataset) dataset = NULL;
    CTRT_AUTO(loader) loader = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    ctrt_loader_options options = CTRT_LOADER_OPTIONS;
    ctrt_grad_scaler_options scale = CTRT_GRAD_SCALER_OPTIONS;
    char path[512];
    options.batch_size = 8;
    options.shuffle = true;
    options.workers = 2;
    options.worker_kind = CTRT_WORKERS_THREADS;
    scale.init_scale = 8;
    snprintf(path, sizeof path, "%s/state.safetensors", folder);
    CTRT_TRY(ctrt_dataset_new(&dataset, &rows, NULL));
    CTRT_TRY(ctrt_loader_new(&loader, dataset, &options));
    CTRT_TRY(ctrt_grad_scaler_new(&scaler, &scale));
    for (int kind = 0; kind < 6; kind++) {
        CTRT_AUTO(module) net = NULL, loaded = NULL;
        CTRT_AUTO(optimizer) optimizer = NULL, other = NULL;
        double first = 0, last = 0;
        char before[65], after[65];
        ctrt_manual_seed(1);
        CTRT_TRY(net_new(&net));
        CTRT_TRY(optimizer_new(&optimizer, net, kind));
        CTRT_TRY(epoch(&first, net, optimizer, kind == 5 ? scaler : NULL, loader));
        for (int i = 0; i < 5; i++)
            CTRT_TRY(epoch(&last, net, optimizer, kind == 5 ? scaler : NULL, loader));
        if (last >= first)
            return ctrt_fail(CTRT_ERR_INTERNAL, "optimizer %d: the loss rises from %g to %g", kind, first, last);
        const ctrt_training_state state
            = CTRT_WITH(ctrt_training_state, .module = net, .optimizer = optimizer, .loader = loader, .step = 18);
        CTRT_TRY(ctrt_training_save(path, &state));
        CTRT_TRY(net_new(&loaded));
        CTRT_TRY(optimizer_new(&other, loaded, kind));
        ctrt_training_state read = CTRT_WITH(ctrt_training_state, .module = loaded, .optimizer = other);
        CTRT_TRY(ctrt_training_load(&read, path));
        CTRT_TRY(ctrt_module_sha256(before, net));
        CTRT_TRY(ctrt_module_sha256(after, loaded));
        NEED(strcmp(before, after) == 0 && read.step == 18);
    }
    return CTRT_OK;
}

/* A file of 2 x 1 pixels, which image-bmp.so decodes. */
static ctrt_status image(void)
{
    unsigned char file[62] = { 'B', 'M', 62, [10] = 54, [14] = 40, [18] = 2, [22] = 1, [26] = 1, [28] = 24,
                               [54] = 3, 2, 1, 30, 20, 10 };
    CTRT_AUTO(tensor) pixels = NULL;
    const ctrt_image_options options = CTRT_WITH(ctrt_image_options, .channels = 1);
    char path[512];
    snprintf(path, sizeof path, "%s/image.bmp", folder);
    FILE *out = fopen(path, "wb");
    NEED(out != NULL && fwrite(file, 1, sizeof file, out) == sizeof file && fclose(out) == 0);
    CTRT_TRY(ctrt_read_image(&pixels, path, 3));
    CTRT_TRY(expect(pixels, (const float[]){ 1, 10, 2, 20, 3, 30 }, 6));
    CTRT_TRY(ctrt_read_image_with(&pixels, path, &options));
    NEED(ctrt_tensor_numel(pixels) == 2 && ctrt_tensor_dtype(pixels) == CTRT_U8);
    return CTRT_OK;
}

/* ---- two ranks, which are threads, with the old engine; their module under the old strategy ---- */

static ctrt_status squares(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    (void)count, (void)user;
    return ctrt_mse_loss(loss, output, inputs[1], CTRT_REDUCE_MEAN);
}

static ctrt_comm *comms[2];
static char hashes[2][65];

static ctrt_status rank_run(void *user, int rank)
{
    CTRT_AUTO(module) linear = NULL, net = NULL;
    CTRT_AUTO(tensor) x = NULL, target = NULL, loss = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    (void)user;
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(4, 3), ctrt_float(rank + 1), CTRT_F32, cpu));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, comms[rank], x, CTRT_COMM_SUM));
    CTRT_TRY(expect(x, (const float[]){ 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3 }, 12));
    CTRT_TRY(ctrt_full(&target, CTRT_SHAPE(4, 2), ctrt_float(rank), CTRT_F32, cpu));
    CTRT_TRY(ctrt_linear_new(&linear, 3, 2, true, cpu));
    CTRT_TRY(ctrt_parallel_new_comm(&net, linear, "old", comms[rank]));
    CTRT_TRY(WITH_LR(&optimizer, sgd, SGD, net));
    for (int step = 0; step < 3; step++) {
        ctrt_tensor *inputs[] = { x, target };
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_parallel_step(&loss, net, inputs, 2, squares, NULL));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
    }
    NEED(strstr(ctrt_parallel_describe(net), "of 2, 3 steps") != NULL);
    return ctrt_module_sha256(hashes[rank], net);
}

static ctrt_status ranks(void)
{
    ctrt_device *devices[] = { cpu, cpu };
    ctrt_comm_options options = CTRT_COMM_OPTIONS;
    options.engine = "old";
    CTRT_TRY(ctrt_comm_new_local(comms, devices, 2, &options));
    NEED(strcmp(ctrt_comm_engine_name(comms[0]), "old") == 0 && ctrt_comm_size(comms[1]) == 2);
    CTRT_TRY(ctrt_parallel_apply(rank_run, NULL, devices, 2));
    for (int rank = 0; rank < 2; rank++)
        ctrt_comm_release(&comms[rank]);
    NEED(strcmp(hashes[0], hashes[1]) == 0);
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *what;
        ctrt_status (*run)(void);
    } tests[] = {
        { "devices, parameters and plugins are listed", facts },
        { "the backend and the memory policy", old_device },
        { "a function, a class of modules, hooks", own_classes },
        { "a dataset, a loader, optimizers, autocast, checkpoints", training },
        { "the image decoder", image },
        { "the communication engine and the strategy", ranks },
    };
    enum { TESTS = sizeof tests / sizeof tests[0] };
    int failed = 0;
    folder = argc > 1 ? argv[1] : ".";
    if (ctrt_device_get(&cpu, "cpu") != CTRT_OK) {
        printf("Bail out! %s\n", ctrt_error_message());
        return 1;
    }
    for (int i = 0; i < TESTS; i++) {
        const bool passed = tests[i].run() == CTRT_OK;
        printf("%sok %d - %s\n%s%s%s", passed ? "" : "not ", i + 1, tests[i].what, passed ? "" : "#   ",
               passed ? "" : ctrt_error_message(), passed ? "" : "\n");
        failed += !passed;
    }
    printf("1..%d\n", TESTS);
    return failed > 0;
}
