/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th host allocation fail, for every n, in programs that train, write and read files and convert modules,
 * and in steps, predicted steps, steps in micro-batches and steps with replicas of one network.
 *
 * Each failure must give CTRT_ERR_OUT_OF_MEMORY and a message, must not leak storages, graph nodes or host memory, must
 * keep the statistics exact, must leave no partial change, and the next run must succeed. */
#include "../options.h"
#include "autograd_check.h"
#include "base/host_alloc.h"
#include "data_check.h"
#include "dryrun_models.h"
#include "folder.h"
#include "small_net.h"

static ctrt_device *device;
static const char *folder, *images;     /* for saved files; with images, and one more file */
#define NET_PATH       folder_join(folder, "net")
#define OPTIMIZER_PATH folder_join(folder, "optimizer")

MODEL(cnn_small, CTRT_NEW(conv2d, 1, 4, 3, 3, NULL, true, device), CTRT_NEW(batch_norm2d, 4, NULL, device),
      CTRT_NEW(relu), CTRT_NEW(max_pool2d, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })), CTRT_NEW(flatten, 1,
                                                                                                          -1),
      CTRT_NEW(linear, 16, 16, true, device), CTRT_NEW(layer_norm, CTRT_SHAPE(16), NULL, device),
      CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 16, 3, true, device))
MODEL(attention_small, CTRT_NEW(multihead_attention, 8, 2, ATTENTION(.causal = true), device), CTRT_NEW(gelu, false),
      CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 24, 3, true, device))

static const struct model small_models[] = {
    { "cnn", cnn_small_make, { 4, 1, 6, 6 }, 3, false, STEP, MOMENTUM, true },
    { "attention", attention_small_make, { 4, 3, 8 }, 3, false, STEP, ADAMW, true },
};
enum { SMALL_MODELS = sizeof small_models / sizeof small_models[0] };

/* ---- each allocation fails ---- */

struct alive {
    uint64_t bytes, storages, nodes, saved, grad_mode;
};

static struct alive alive(void)
{
    ctrt_memory_stats stats = CTRT_MEMORY_STATS;
    CHECK_OK(ctrt_memory_get_stats(&stats, device));
    const ctrt_stat *blocks = &stats.allocation[CTRT_POOL_ALL];
    return (struct alive){ ctrt_memory_allocated(device), (uint64_t)(blocks->allocated - blocks->freed),
                           ctrt_autograd_live_nodes(), ctrt_autograd_saved_bytes(), ctrt_grad_enabled() };
}

static void check_alive(const struct alive *before, uint64_t n, bool forever)
{
    struct alive now = alive();
    CHECK(memcmp(&now, before, sizeof now) == 0, "allocation %llu failed%s: %lld bytes, %lld storages, %lld graph "
          "nodes, %lld saved bytes are left, grad mode is %d", (unsigned long long)n,
          forever ? " and all later ones" : "", (long long)(now.bytes - before->bytes),
          (long long)(now.storages - before->storages), (long long)(now.nodes - before->nodes),
          (long long)(now.saved - before->saved), (int)now.grad_mode);
}

/* Runs the body, and releases the gradients that it leaves in `run`; NULL: it leaves nothing. */
static ctrt_status run_body(ctrt_status (*body)(struct training *run), struct training *run)
{
    const ctrt_status status = body(run);
    CHECK_OK(run != NULL ? ctrt_optimizer_zero_grad(run->optimizer, true) : CTRT_OK);
    return status;
}

/* The n-th allocation fails; with sanitizers, of those after the 64th every third. All later ones also fail if n is
 * odd, or, with `even`, if n is even. */
static void fail_each(ctrt_status (*body)(struct training *run), struct training *run, bool even)
{
    CHECK_OK(run_body(body, run));
    CHECK_OK(run_body(body, run));       /* create what exists once */
    const struct alive before = alive();
    uint64_t n = 1, failures = 0;
    for (; n < 100000; n += SANITIZED && n > 64 ? 3 : 1) {
        const bool forever = n % 2 != even;
        alloc_fail_at(n, forever);
        const ctrt_status status = body(run);
        if (alloc_fail_at(0, false) < n)
            break;                                      /* the body makes fewer than n allocations */
        failures += status != CTRT_OK;
        /* A few allocations are optional: the text of a message, a list of freed blocks. */
        CHECK(status == CTRT_OK || (status == CTRT_ERR_OUT_OF_MEMORY && ctrt_error_message()[0] != '\0'),
              "allocation %llu failed: '%s' (%s)", (unsigned long long)n, ctrt_status_string(status),
              ctrt_error_message());
        CHECK_OK(run != NULL ? ctrt_optimizer_zero_grad(run->optimizer, true) : CTRT_OK);
        check_alive(&before, n, forever);
        CHECK_OK(run_body(body, run));
    }
    CHECK(n > 20 && failures > n / (SANITIZED ? 12 : 4), "only %llu of %llu allocations failed",
          (unsigned long long)failures, (unsigned long long)n);
}

/* ---- steps of one network ---- */

static ctrt_status plain(struct training *run)
{
    double loss;
    return training_step(&loss, run);
}

/* Runs a step under a dry run, which releases what the step leaves, also on failure. */
static ctrt_status predicted(struct training *run)
{
    CTRT_AUTO(dry_run) dryrun = NULL;
    CTRT_TRY(ctrt_dry_run_begin(&dryrun, run->device));
    return plain(run);
}

static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
{
    struct training *run = user;
    CTRT_AUTO(tensor) loss = NULL;
    TRY(training_forward_rows(&loss, run, from, to));
    TRY(ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
    return ctrt_backward(loss);
}

static ctrt_status in_pieces(struct training *run)
{
    CTRT_AUTO(split) split = NULL;
    CTRT_TRY(ctrt_split_new(&split, run->net, &CTRT_WITH(ctrt_split_options, .pieces = 2, .most_pieces = 4)));
    CTRT_TRY(ctrt_split_step(NULL, split, run->model->input[0], rows, run));
    return ctrt_split_step(NULL, split, run->model->input[0], rows, run);       /* adds to the gradients */
}

/* A step with replicas of the network on its device and on another one. */
static ctrt_device *second;

static ctrt_status step_of(struct training *run, ctrt_module **replicas, ctrt_tensor **parts, ctrt_tensor **outputs)
{
    ctrt_device *const devices[2] = { run->device, second };
    CTRT_AUTO(tensor) y = NULL;
    int count = 0;
    TRY(ctrt_scatter_tensor(parts, &count, run->x, devices, 2, 0, NULL));
    TRY(ctrt_replicate(replicas, run->net, devices, 2));
    TRY(ctrt_parallel_forward(outputs, replicas, parts, devices, 2));
    TRY(ctrt_gather_tensor(&y, outputs, 2, run->device, 0));
    TRY(ctrt_cross_entropy(&y, y, run->y, NULL));
    return ctrt_backward(y);
}

static ctrt_status with_replicas(struct training *run)
{
    ctrt_tensor *tensors[4] = { NULL };
    ctrt_module *replicas[2] = { NULL };
    const ctrt_status status = step_of(run, replicas, tensors, tensors + 2);
    tensors_release(tensors, 4);
    ctrt_module_release(&replicas[0]);
    ctrt_module_release(&replicas[1]);
    return status;
}

static void fail_steps(const char *what, ctrt_status (*step)(struct training *run), const struct model *model)
{
    struct training run;
    double loss;
    group("%s of %s on %s: each allocation fails", what, model->name, ctrt_device_name(device));
    CHECK_OK(training_begin(&run, model, device));
    CHECK_OK(training_step(&loss, &run));
    fail_each(step, &run, false);
    CHECK_OK(training_step(&loss, &run));
    CHECK(isfinite(loss) && loss < 20, "the loss after the failures is %g", loss);
    training_end(&run);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
}

static void test_steps(void)
{
    for (int k = 0; k < SMALL_MODELS; k++) {
        fail_steps("a step", plain, &small_models[k]);
        fail_steps("a predicted step", predicted, &small_models[k]);
        fail_steps("a step in micro-batches", in_pieces, &small_models[k]);
        fail_steps("a step with replicas", with_replicas, &small_models[k]);
    }
}

/* ---- whole programs on the cpu ---- */

static ctrt_status attention_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(embedding, 5, 4, EMBEDDING(.padding_idx = 0), cpu), CTRT_NEW(layer_norm, CTRT_SHAPE(4), NULL, cpu),
        CTRT_NEW(multihead_attention, 4, 2, ATTENTION(.dropout = 0.1, .causal = true), cpu), CTRT_NEW(gelu, true),
            CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 12, 3, true, cpu)));
}

/* Creates a network, trains one step, converts the network to f64 and back, saves and loads it. */
static ctrt_status trains(UNUSED struct training *none)
{
    static const int64_t labels[] = { 0, 2 }, tokens[] = { 1, 0, 4, 2, 2, 3 };
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_AUTO(inf_watch) watch = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    double value;
    TRY(ctrt_from_data(&y, labels, 2, CTRT_SHAPE(2), CTRT_I64, cpu));
    TRY(ctrt_grad_scaler_new(&scaler, NULL));
    TRY(ctrt_from_data(&x, tokens, 6, CTRT_SHAPE(2, 3), CTRT_I64, cpu));
    TRY(attention_new(&net));
    TRY(ctrt_adamw_new(&optimizer, net, NULL));
    TRY(ctrt_inf_watch_new(&watch, net));
    TRY(ctrt_forward(&loss, net, x));
    TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
    TRY(ctrt_grad_scaler_scale(&loss, scaler, loss));
    TRY(ctrt_backward(loss));
    TRY(ctrt_grad_scaler_unscale_(scaler, optimizer));
    TRY(ctrt_clip_grad_norm_(&value, net, 0.01));
    TRY(ctrt_grad_scaler_step(scaler, optimizer));
    TRY(ctrt_grad_scaler_update(scaler, 0));
    ctrt_inf_watch_release(&watch);
    TRY(ctrt_save(net, NET_PATH));
    TRY(ctrt_load(net, NET_PATH));
    TRY(ctrt_optimizer_save(optimizer, OPTIMIZER_PATH));
    TRY(ctrt_optimizer_load(optimizer, OPTIMIZER_PATH));
    TRY(ctrt_module_to(net, NULL, CTRT_F64));
    TRY(ctrt_optimizer_step(optimizer));
    return ctrt_module_zero_grad(net, false);
}

/* The same with a module of the strategy `sharded`, which has one rank, and parts of checkpoints. */
static ctrt_status trains_sharded(UNUSED struct training *none)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    TRY(ctrt_linear_new(&module, 3, 2, true, cpu));
    TRY(ctrt_parallel_new(&net, module, "sharded", &cpu, 1));
    TRY(ctrt_adamw_new(&optimizer, net, NULL));
    TRY(ctrt_grad_scaler_new(&scaler, SCALER(.allow_no_gradients = true)));
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F32, cpu));
    TRY(ctrt_forward(&y, net, x));
    TRY(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    TRY(ctrt_grad_scaler_scale(&y, scaler, y));
    TRY(ctrt_grad_scaler_unscale_(scaler, optimizer));
    TRY(ctrt_grad_scaler_update(scaler, 0));
    TRY(ctrt_backward(y));
    TRY(ctrt_clip_grad_norm_(NULL, net, 0.01));
    TRY(ctrt_grad_scaler_step(scaler, optimizer));
    TRY(ctrt_save(net, NET_PATH));
    TRY(ctrt_load(net, NET_PATH));
    TRY(ctrt_optimizer_save(optimizer, OPTIMIZER_PATH));
    return ctrt_optimizer_load(optimizer, OPTIMIZER_PATH);
}

static ctrt_status sum_loss(ctrt_tensor **loss, ctrt_tensor *output, UNUSED ctrt_tensor *const *inputs,
                            UNUSED int count, UNUSED void *user)
{
    return ctrt_sum(loss, output, CTRT_ALL_DIMS);
}

/* Runs a step by a strategy without ranks. The module gets its parameters after ctrt_parallel_new. */
static ctrt_status step_by(const char *strategy)
{
    CTRT_AUTO(module) module = NULL, net = NULL, linear = NULL;
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    ctrt_tensor *weight = NULL;
    TRY(ctrt_sequential_new(&module, CTRT_NO_MODULES));
    TRY(ctrt_linear_new(&linear, 3, 2, true, device));
    TRY(ctrt_parallel_new(&net, module, strategy, (ctrt_device *[]){ device, second }, 2));
    TRY(ctrt_sequential_add(module, ctrt_module_retain(linear)));
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F32, device));
    TRY(ctrt_parallel_step(&loss, net, &x, 1, sum_loss, NULL));
    TRY(ctrt_module_parameter(NULL, &weight, linear, 0));
    return ctrt_tensor_grad(weight) != NULL ? CTRT_OK : ctrt_fail(CTRT_ERR_INTERNAL, "%s: no gradient", strategy);
}
static ctrt_status step_single(UNUSED struct training *none) { return step_by("single"); }
static ctrt_status step_data_parallel(UNUSED struct training *none) { return step_by("data-parallel"); }

static ctrt_status not_found(ctrt_status status)
{
    return status == CTRT_ERR_NOT_FOUND ? CTRT_OK : status;
}

/* Writes a tensor that is not contiguous and reads it onto the device; looks for names that do not exist. */
static ctrt_status named(UNUSED struct training *none)
{
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(tensor) x = NULL, turned = NULL;
    CTRT_AUTO(tensor_file) file = NULL;
    ctrt_tensor *borrowed = NULL;
    char digest[65];
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F32, device));
    TRY(ctrt_transpose(&turned, x, 0, 1));
    TRY(ctrt_save_tensors(NET_PATH, (const char *[]){ "turned" }, &turned, 1));
    TRY(ctrt_tensor_file_open(&file, NET_PATH));
    TRY(ctrt_tensor_file_read(&x, file, "turned", device));
    TRY(not_found(ctrt_tensor_file_read(&x, file, "x", device)));
    TRY(ctrt_linear_new(&net, 3, 2, true, device));
    TRY(ctrt_module_sha256(digest, net));
    return not_found(ctrt_module_tensor(&borrowed, net, "x"));
}

static ctrt_status double_gradient(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_mul_scalar(grad, *grad, ctrt_float(2));
}

FORWARD(twice_forward)
{
    TRY(ctrt_mul(&out[0], in[0], in[0]));
    TRY(ctrt_function_save(context, in[0]));
    return ctrt_function_save(context, out[0]);
}

BACKWARD(twice_backward)
{
    ctrt_tensor *x, *y;
    TRY(ctrt_function_saved(&x, context, 0));
    TRY(ctrt_function_saved(&y, context, 1));
    TRY(ctrt_mul_scalar(&dx[0], x, ctrt_float(2)));
    return ctrt_mul(&dx[0], dx[0], dy[0]);
}
static const ctrt_function twice = { sizeof twice, "twice", twice_forward, twice_backward, NULL, 0 };

static ctrt_status layers(UNUSED struct training *none)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, b = NULL, h = NULL, u = NULL, y = NULL;
    ctrt_tensor *pieces[3] = { NULL };
    int n;
    TRY(ctrt_ones(&x, CTRT_SHAPE(2, 3), CTRT_F64, NULL));
    TRY(ctrt_ones(&w, CTRT_SHAPE(3, 3), CTRT_F64, NULL));
    TRY(ctrt_ones(&b, CTRT_SHAPE(3), CTRT_F64, NULL));
    TRY(ctrt_tensor_require_grad(w, true));
    TRY(ctrt_tensor_require_grad(b, true));
    TRY(ctrt_linear(&h, x, w, b));
    TRY(ctrt_tanh(&h, h));
    TRY(ctrt_tensor_add_hook(h, double_gradient, NULL, NULL));
    TRY(ctrt_tensor_retain_grad(h));
    TRY(ctrt_layer_norm(&u, h, CTRT_SHAPE(3), b, b, 1e-5));
    TRY(ctrt_softmax(&u, u, 1));
    TRY(ctrt_mul(&u, u, h));
    CTRT_TRY(ctrt_chunk(pieces, &n, u, 3, 1));
    ctrt_status status = ctrt_cat(&y, pieces, 3, 0);
    tensors_release(pieces, 3);
    TRY(status);
    TRY(ctrt_function_apply(&twice, NULL, &y, 1, &y, 1));
    TRY(ctrt_mean(&y, y, CTRT_ALL_DIMS));
    TRY(ctrt_backward_with(y, NULL, true, false));
    return ctrt_backward(y);
}

static ctrt_status in_place(UNUSED struct training *none)
{
    CTRT_AUTO(tensor) x = NULL, base = NULL, a = NULL, b = NULL, y = NULL, d = NULL;
    TRY(ctrt_ones(&x, CTRT_SHAPE(3, 4), CTRT_F64, NULL));
    TRY(ctrt_tensor_require_grad(x, true));
    TRY(ctrt_mul_scalar(&base, x, ctrt_float(2)));
    TRY(ctrt_transpose(&b, base, 0, 1));
    TRY(ctrt_select(&a, base, 0, 1));
    TRY(ctrt_mul_(a, a));
    TRY(ctrt_sigmoid_(a));
    TRY(ctrt_sum(&y, b, CTRT_ALL_DIMS));
    TRY(ctrt_grad(&d, y, &x, 1, NULL, false, true, false));
    TRY(ctrt_sum(&d, d, CTRT_ALL_DIMS));
    return ctrt_backward(d);
}

static void make_folders(void)
{
    static const char *const names[] = { "a", "b", "b/c" };
    folder = folder_new();
    images = folder_new();
    EACH(name, names)
        CHECK_EQ(mkdir(folder_join(images, *name), 0700), 0);
    folder_text(images, "numbers", "1,2\n3,4\n");
    folder_text(images, "a/1.ppm", "P6 2 1 255\nabcdef");
    folder_text(images, "b/c/2.pgm", "P5 3 2 255\nabcdef");
}

static ctrt_status datasets(UNUSED struct training *none)
{
    CTRT_AUTO(dataset) pictures = NULL, table = NULL, text = NULL, saved = NULL;
    CTRT_AUTO(tensor) image = NULL;
    ctrt_tensor *fields[2] = { NULL };
    const char *path = folder_join(images, "numbers");
    const ctrt_image_options options = { .size = sizeof(ctrt_image_options), .height = 2, .width = 2 };
    const ctrt_tokens_options windows = { .size = sizeof(ctrt_tokens_options), .length = 2 };
    TRY(ctrt_image_folder_dataset(&pictures, images, &options));
    TRY(ctrt_csv_dataset(&table, path, &CTRT_WITH(ctrt_csv_options, .label = 1)));
    TRY(ctrt_tokens_dataset(&text, path, &windows));
    TRY(ctrt_read_image(&image, folder_join(images, "a/1.ppm"), 1));
    TRY(ctrt_save_tensors(NET_PATH, (const char *[]){ "x" }, &image, 1));
    TRY(ctrt_safetensors_dataset(&saved, NET_PATH, NULL, 0));
    ctrt_status status = ctrt_dataset_get(fields, pictures, 1, 1, 0);
    tensors_release(fields, 2);
    return status;
}

/* Reads two epochs of a dataset, onto the cpu and onto the device. */
static ctrt_status loads(UNUSED struct training *none)
{
    const struct plain state = { .length = 5, .once = -1 };
    CTRT_AUTO(dataset) dataset = NULL;
    ctrt_tensor *fields[2] = { NULL, NULL };
    ctrt_status status = ctrt_dataset_open(&dataset, plain_open, &state, sizeof state);
    for (int i = 0; i < 2 && status == CTRT_OK; i++) {
        CTRT_AUTO(loader) loader = NULL;
        bool more = true;
        const ctrt_loader_options options = { .size = sizeof(ctrt_loader_options), .batch_size = 2, .shuffle = true,
                                              .device = i == 0 ? NULL : device };
        status = ctrt_loader_new(&loader, dataset, &options);
        while (status == CTRT_OK && more)
            status = ctrt_loader_next(fields, &more, loader);
        tensors_release(fields, 2);
    }
    return status;
}

/* Creates a module with a parameter that is not contiguous and a buffer of bools. */
static ctrt_status mixed_new(ctrt_module **out)
{
    CTRT_AUTO(tensor) turned = NULL, flags = NULL;
    TRY(small_net_new(out));
    TRY(ctrt_randn(&turned, CTRT_SHAPE(5, 3), CTRT_F32, cpu));
    TRY(ctrt_t(&turned, turned));
    TRY(ctrt_randint(&flags, 0, 2, CTRT_SHAPE(7), CTRT_BOOL, cpu));
    TRY(ctrt_module_add_parameter(*out, "turned", turned));
    TRY(ctrt_module_add_buffer(*out, "flags", flags, true));
    return ctrt_module_to(*out, device, CTRT_DTYPE_DEFAULT);
}

static ctrt_status load_new(ctrt_module *net) { return ctrt_load(net, NET_PATH); }
static ctrt_status load_old(ctrt_module *net) { return ctrt_load(net, OPTIMIZER_PATH); }
static ctrt_status to_f64(ctrt_module *net) { return ctrt_module_to(net, NULL, CTRT_F64); }
static ctrt_status to_f32(ctrt_module *net) { return ctrt_module_to(net, NULL, CTRT_F32); }

/* `forever`: all later allocations also fail. A device on which every copy fails is not tested. */
static void all_or_nothing(const char *name, ctrt_status (*change)(ctrt_module *), ctrt_status (*undo)(ctrt_module *),
                           bool forever)
{
    char old[65], new[65], now[65];
    group("a failed %s leaves the module unchanged, on %s", name, ctrt_device_name(device));
    CTRT_AUTO(module) net = NULL, other = NULL;
    if (!CHECK_OK(mixed_new(&net)) || !CHECK_OK(mixed_new(&other)) || !CHECK_OK(ctrt_save(other, NET_PATH))
        || !CHECK_OK(ctrt_save(net, OPTIMIZER_PATH)))
        return;
    CHECK_OK(ctrt_module_sha256(old, net));
    CHECK_OK(change(net));      /* creates the objects that exist once */
    CHECK_OK(ctrt_module_sha256(new, net));
    CHECK(strcmp(old, new) != 0, "the change changes nothing");
    CHECK_OK(undo(net));
    int n;
    for (n = 1; n < 10000; n++) {
        alloc_fail_at((uint64_t)n, forever);
        const ctrt_status status = change(net);
        if (alloc_fail_at(0, false) < (uint64_t)n)
            break;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %d: %s", n, ctrt_error_message());
        CHECK_OK(ctrt_module_sha256(now, net));
        CHECK(strcmp(now, status == CTRT_OK ? new : old) == 0,
              "allocation %d: status %s, but the values are not the %s ones", n, ctrt_status_string(status),
              status == CTRT_OK ? "new" : "old");
        CHECK_OK(undo(net));
    }
    CHECK(n > 3 && n < 10000, "%d allocations failed", n - 1);
}

TEST_MAIN
{
    static const struct { const char *name; ctrt_status (*body)(struct training *none); } programs[] = {
        { "training, files, conversion", trains }, { "layers", layers }, { "changes in place", in_place },
        { "names", named }, { "datasets", datasets }, { "loading data", loads },
    };
    setenv("CTRT_LOG", "error", 1);
    /* One thread, because most of the time of so many small steps would be spent in waking threads. */
    setenv("CTRT_NUM_THREADS", "1", 1);
    setenv("CTRT_SHARDED_CHECKPOINT", "parts", 1);
    if (!cpu_opened())
        return done();
    make_folders();
    device = second = cpu;
    EACH(c, programs) {
        group("%s: each allocation fails", c->name);
        fail_each(c->body, NULL, false);
        fail_each(c->body, NULL, true);
    }
    test_steps();
    all_or_nothing("ctrt_module_to", to_f64, to_f32, true);
    all_or_nothing("ctrt_load", load_new, load_old, true);
    if (ctrt_is_available("sim", NULL)) {
        group("the devices sim:0 and sim:1 open");
        CHECK_OK(ctrt_device_get(&device, "sim:0"));
        CHECK_OK(ctrt_device_get(&second, "sim:1"));
        fail_each(loads, NULL, false);
        fail_each(named, NULL, false);
        fail_each(step_single, NULL, false);
        fail_each(step_single, NULL, true);
        fail_each(step_data_parallel, NULL, false);
        fail_each(step_data_parallel, NULL, true);
        test_steps();
        all_or_nothing("ctrt_load", load_new, load_old, false);
    }
    /* Last, because the world keeps its communicator's memory. */
    device = cpu;
    group("training with a strategy: each allocation fails");
    fail_each(trains_sharded, NULL, false);
    return done();
}
