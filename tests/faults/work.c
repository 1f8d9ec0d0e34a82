/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: devices, ops, training, files, reports and streams on the default device; see work.h. */
#include "calls.h"
#include "work.h"

char work_folder[] = "/tmp/ctrt-work-XXXXXX";

enum file { MODULE, OPTIMIZER, SNAPSHOT };
static const char *const files[] = { "module.safetensors", "optimizer.safetensors", "snapshot" };

static const char *in_folder(char path[512], enum file file)
{
    snprintf(path, 512, "%s/%s", work_folder, files[file]);
    return path;
}

static ctrt_status add_sum(double *result, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) sum = NULL;
    double value = 0;
    TRY(ctrt_to_dtype(&sum, x, CTRT_F32));
    TRY(ctrt_sum(&sum, sum, CTRT_ALL_DIMS));
    TRY(ctrt_item(&value, sum));
    *result += value;
    return CTRT_OK;
}

static ctrt_status devices(double *result)
{
    ctrt_device *device = NULL;
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    uint64_t unused = 0, total = 0;
    TRY(ctrt_device_get(&device, NULL));
    TRY(ctrt_device_get_properties(&properties, ctrt_device_name(device)));
    TRY(ctrt_device_memory_info(device, &unused, &total));
    *result = properties.asynchronous + 2 * (total > 0);
    return CTRT_OK;
}

static ctrt_status plugins(double *result)
{
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    size_t index = 0;
    ctrt_status status;
    while ((status = ctrt_plugin_list(&info, index)) == CTRT_OK)
        index++;
    *result = (double)index;
    return status == CTRT_ERR_NOT_FOUND ? CTRT_OK : status;
}

static ctrt_status tensors(double *result)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
    char *text = NULL;
    TRY(ctrt_arange(&x, ctrt_float(0), ctrt_float(600), ctrt_float(1), CTRT_F32, NULL));
    TRY(ctrt_reshape(&x, x, CTRT_SHAPE(20, 30)));
    TRY(ctrt_transpose(&y, x, 0, 1));
    TRY(ctrt_slice(&y, y, 0, 3, 20, 2));
    TRY(ctrt_contiguous(&z, y, CTRT_CONTIGUOUS_FORMAT));
    TRY(ctrt_cat(&z, (ctrt_tensor *[]){ z, y }, 2, 0));
    TRY(ctrt_to_dtype(&z, z, CTRT_F64));
    TRY(ctrt_tensor_format(&text, z));
    *result += (double)strlen(text);
    free(text);
    TRY(ctrt_randint(&x, 0, 10, CTRT_SHAPE(5), CTRT_I64, NULL));
    TRY(ctrt_index_select(&y, z, 0, x));
    return ctrt_tensor_numel(y) == 100 ? add_sum(result, z) : ctrt_fail(CTRT_ERR_STATE, "a wrong shape");
}

static ctrt_status ops(double *result)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    TRY(ctrt_full(&x, CTRT_SHAPE(300, 300), ctrt_float(0.5), CTRT_F32, NULL));
    TRY(ctrt_exp(&y, x));
    TRY(ctrt_mul(&y, y, x));
    TRY(ctrt_add_scalar_(y, ctrt_float(1)));
    TRY(ctrt_softmax(&y, y, 1));
    TRY(add_sum(result, y));
    TRY(ctrt_var(&y, x, CTRT_SHAPE(0), 1, false));
    return add_sum(result, y);
}

/* Sizes for which the cpu backend uses oneDNN or BLAS. */
static ctrt_status products(double *result)
{
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_BF16 };
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        TRY(ctrt_ones(&x, CTRT_SHAPE(160, 160), dtypes[i], NULL));
        TRY(ctrt_matmul(&y, x, x));
        TRY(add_sum(result, y));
    }
    CTRT_AUTO(tensor) image = NULL, weight = NULL;
    TRY(ctrt_ones(&image, CTRT_SHAPE(2, 8, 16, 16), CTRT_F32, NULL));
    TRY(ctrt_ones(&weight, CTRT_SHAPE(16, 8, 3, 3), CTRT_F32, NULL));
    TRY(ctrt_conv2d(&image, image, weight, NULL, NULL));
    return add_sum(result, image);
}

/* The convolution has no bias, because the batch norm makes its gradient 0: Adam would make a whole step of a rounding
 * error, whose sign depends on the library that computes the convolution. */
static ctrt_status network(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 4, 3, 3, NULL, false, NULL), CTRT_NEW(batch_norm2d, 4, NULL, NULL), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 36, 8, true, NULL), CTRT_NEW(layer_norm, CTRT_SHAPE(8), NULL, NULL),
            CTRT_NEW(dropout, 0.25),
        CTRT_NEW(linear, 8, 3, true, NULL)));
}

static ctrt_status step(double *result, ctrt_module *module, ctrt_optimizer *optimizer)
{
    CTRT_AUTO(tensor) x = NULL, target = NULL;
    double loss = 0;
    TRY(ctrt_randn(&x, CTRT_SHAPE(4, 1, 8, 8), CTRT_F32, NULL));
    TRY(ctrt_from_data(&target, (int64_t[]){ 0, 1, 2, 1 }, 4, CTRT_SHAPE(4), CTRT_I64, NULL));
    TRY(ctrt_forward(&x, module, x));
    TRY(ctrt_cross_entropy(&x, x, target, NULL));
    TRY(ctrt_item(&loss, x));
    TRY(ctrt_optimizer_zero_grad(optimizer, true));
    TRY(ctrt_backward(x));
    TRY(ctrt_clip_grad_norm_(NULL, module, 1));
    *result += loss;
    return ctrt_optimizer_step(optimizer);
}

static ctrt_status parameters_sum(double *result, ctrt_module *module)
{
    const char *name;
    ctrt_tensor *parameter;
    for (size_t i = 0; i < ctrt_module_parameter_count(module); i++) {
        TRY(ctrt_module_parameter(&name, &parameter, module, i));
        TRY(add_sum(result, parameter));
    }
    return CTRT_OK;
}

static ctrt_status training(double *result)
{
    CTRT_AUTO(module) module = NULL, copy = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    char path[512], state[512];
    in_folder(path, MODULE);
    in_folder(state, OPTIMIZER);
    ctrt_manual_seed(1);
    TRY(network(&module));
    TRY(ctrt_adamw_new(&optimizer, module, NULL));
    for (int i = 0; i < 2; i++)
        CTRT_TRY(step(result, module, optimizer));
    TRY(ctrt_save(module, path));
    TRY(ctrt_optimizer_save(optimizer, state));
    TRY(network(&copy));
    TRY(ctrt_load(copy, path));
    TRY(ctrt_optimizer_load(optimizer, state));
    return parameters_sum(result, copy);
}

static ctrt_status mean_square(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

/* Two replicas in threads, or two stages, on one device. Without random numbers, which replicas would draw in any
 * order. The first step of pipeline and auto makes a dry run. */
static ctrt_status strategy_train(double *result, const char *strategy)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    ctrt_device *devices[2] = { NULL, NULL };
    CTRT_TRY(ctrt_default_device(&devices[0]));
    devices[1] = devices[0];
    ctrt_manual_seed(1);
    CTRT_TRY(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, 4, 5, true, NULL), CTRT_NEW(tanh),
                                                       CTRT_NEW(linear, 5, 2, true, NULL))));
    TRY(ctrt_parallel_new(&net, module, strategy, devices, 2));
    TRY(ctrt_adamw_new(&optimizer, net, NULL));
    TRY(ctrt_randn(&x, CTRT_SHAPE(7, 4), CTRT_F32, NULL));
    for (int i = 0; i < 2; i++) {
        TRY(ctrt_optimizer_zero_grad(optimizer, true));
        TRY(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL));
        TRY(add_sum(result, loss));
        TRY(ctrt_optimizer_step(optimizer));
    }
    return parameters_sum(result, module);
}

static ctrt_status reports(double *result)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *device = NULL;
    char *text = NULL, path[512];
    in_folder(path, SNAPSHOT);
    TRY(ctrt_device_get(&device, NULL));
    TRY(ctrt_ones(&x, CTRT_SHAPE(1000), CTRT_F32, NULL));
    TRY(ctrt_memory_summary(&text, device, false));
    free(text);
    CTRT_TRY(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
    free(text);
    CTRT_TRY(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_FRAMES, 100));
    ctrt_status status = ctrt_clone(&x, x);
    if (status == CTRT_OK)
        status = ctrt_memory_snapshot_write(path, device);
    *result = 1;
    return ctrt_memory_set_watch(CTRT_MEMORY_WATCH_NONE, 0) == CTRT_OK ? status : CTRT_ERR_STATE;
}

static ctrt_status on_streams(double *result, ctrt_device *device, ctrt_stream *stream)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_AUTO(event) event = NULL;
    TRY(ctrt_ones(&x, CTRT_SHAPE(1000), CTRT_F32, device));
    TRY(ctrt_stream_push(stream));
    ctrt_status status = ctrt_add(&y, x, x);
    TRY(ctrt_stream_pop());
    TRY(status);
    TRY(ctrt_event_new(&event, device, false));
    TRY(ctrt_event_record(event, stream));
    TRY(ctrt_event_synchronize(event));
    TRY(ctrt_stream_synchronize(stream));
    return add_sum(result, y);
}

static ctrt_status streams(double *result)
{
    ctrt_device *device = NULL;
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CTRT_AUTO(stream) stream = NULL;
    TRY(ctrt_device_get(&device, NULL));
    TRY(ctrt_device_get_properties(&properties, ctrt_device_name(device)));
    if (!properties.asynchronous)
        return CTRT_OK;
    TRY(ctrt_stream_new(&stream, device, 0));
    TRY(on_streams(result, device, stream));
    return ctrt_device_synchronize(device);
}

ctrt_status work_run(double *result, int part)
{
    const struct work_part *p = &work_parts[part];
    return p->strategy != NULL ? strategy_train(result, p->strategy) : p->run(result);
}

void work_clean(void)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        unlink(in_folder((char[512]){ 0 }, (enum file)i));
}

const struct work_part work_parts[] = {
    { .name = "devices", .run = devices },
    { .name = "tensors", .run = tensors },
    { .name = "ops", .run = ops },
    { .name = "products", .run = products },
    { .name = "training", .run = training },
    { .name = "streams", .run = streams },
    { .name = "reports", .run = reports },
    { .name = "plugins", .run = plugins, .listing = true },
    { .name = "the strategy data-parallel", .strategy = "data-parallel" },
    { .name = "the strategy pipeline", .strategy = "pipeline", .alone = true },
    { .name = "the strategy auto", .strategy = "auto", .alone = true },
    { .name = "devices again", .run = devices },
};
_Static_assert(sizeof work_parts / sizeof work_parts[0] == WORK_PARTS, "WORK_PARTS");
