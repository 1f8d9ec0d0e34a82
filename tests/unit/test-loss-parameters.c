/* SPDX-License-Identifier: Apache-2.0 */
/* Tests loss functions that use a parameter of the module: the value and the gradients are those of `single` under
 * every strategy, or the error names the parameter and the remedy. */
#include "loss_check.h"

/* Linear layers of 6 to 3 and 3 to 3 features: the weight of the first one, [3, 6], is also a last layer. */
static ctrt_status tied_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, CLASSES, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(CLASSES), NULL, device),
                                                 CTRT_NEW(linear, CLASSES, CLASSES, false, device)));
}

/* ---- losses, whose `user` is the parameter ---- */

static ctrt_status square_sum(ctrt_tensor **sum, ctrt_tensor *x)
{
    CTRT_TRY(ctrt_square(sum, x));
    return ctrt_sum(sum, *sum, CTRT_ALL_DIMS);
}

static bool plain;              /* the functions use the parameter itself; constant while ranks run */
static ctrt_status use(ctrt_tensor **out, ctrt_tensor *tensor)
{
    if (!plain)
        return ctrt_loss_parameter(out, tensor);
    ctrt_tensor_assign(out, tensor);
    return CTRT_OK;
}

/* A mean and the weight decay of the parameter. */
LOSS(loss_decay)
{
    CTRT_AUTO(tensor) weight = NULL, penalty = NULL;
    (void)inputs, (void)count;
    CTRT_TRY(use(&weight, user));
    CTRT_TRY(square_sum(&penalty, weight));
    CTRT_TRY(ctrt_mul_scalar(&penalty, penalty, ctrt_float(0.1)));
    CTRT_TRY(mean_of(loss, output));
    return ctrt_add(loss, *loss, penalty);
}

static ctrt_status head(ctrt_tensor **out, ctrt_tensor *output, ctrt_tensor *parameter)
{
    CTRT_AUTO(tensor) weight = NULL;
    CTRT_TRY(use(&weight, parameter));
    return ctrt_matmul(out, output, weight);
}

LOSS(loss_head)
{
    UNUSED;
    CTRT_TRY(head(loss, output, user));
    return mean_of(loss, *loss);
}

LOSS(loss_head_sum)
{
    UNUSED;
    CTRT_TRY(head(loss, output, user));
    return square_sum(loss, *loss);
}

/* A fraction, to which the weight decay is added before the division. */
LOSS(loss_head_masked)
{
    CTRT_AUTO(tensor) sum = NULL, number = NULL, weight = NULL;
    UNUSED;
    CTRT_TRY(head(&sum, output, user));
    CTRT_TRY(masked_parts(&sum, &number, sum, inputs[MASK]));
    CTRT_TRY(use(&weight, user));
    CTRT_TRY(square_sum(&weight, weight));
    CTRT_TRY(ctrt_mul(&weight, weight, number));
    CTRT_TRY(ctrt_add(&sum, sum, weight));
    return ctrt_loss_fraction(loss, sum, number);
}

/* Class weights: a buffer of the module, or a tensor of the program. */
LOSS(loss_class_weights)
{
    CTRT_AUTO(tensor) weight = NULL;
    (void)count;
    CTRT_TRY(use(&weight, user));
    ctrt_cross_entropy_options options = CTRT_CROSS_ENTROPY_OPTIONS;
    options.weight = weight;
    return ctrt_cross_entropy(loss, output, inputs[LABELS], &options);
}

static const struct loss_kind kinds[] = {
    { "weight decay", loss_decay }, { "tied head", loss_head }, { "tied head, sum", loss_head_sum },
    { "tied head and weight decay, fraction", loss_head_masked },
};

/* ---- devices in one process ---- */

static const char *strategy;

static void devices(void)
{
    static const int row_counts[] = { 8, 7, 2 };
    for (int n = 1; n <= MOST; n++)
        EACH(kind, kinds) {
            struct pair p = pair_on_devices(tied_new, strategy, n);
            EACH(rows, row_counts) {
                char where[128];
                snprintf(where, sizeof where, "%s, %s, %d devices, %d rows", strategy, kind->name, n, *rows);
                const double want = loss_step(p.one, cpu, kind->function, parameter(p.one, 0), 1, 0, *rows);
                same_loss(where, loss_step(p.net, cpu, kind->function, parameter(p.net, 0), 1, 0, *rows), want);
                same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
            }
            pair_free(&p);
        }
}

/* The loss function uses the parameter itself. */
static void refused(int rows)
{
    EACH(kind, kinds) {
        struct pair p = pair_on_devices(tied_new, strategy, 2);
        ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
        CTRT_AUTO(tensor) value = NULL, weight = ctrt_tensor_retain(parameter(p.net, 0));
        plain = true;
        loss_batch(inputs, cpu, 1, 0, rows);
        CHECK_FAILS(ctrt_parallel_step(&value, p.net, inputs, LOSS_INPUTS, kind->function, weight), CTRT_ERR_DEVICE,
                    "such as \"0.weight\" of the module (Sequential), which is on ");
        CHECK_HAS(ctrt_error_message(), "ctrt_loss_parameter");
        plain = false;
        for (size_t i = 0; i < ctrt_module_parameter_count(p.net); i++)
            CHECK(ctrt_tensor_grad(parameter(p.net, i)) == NULL, "%s: parameter %zu has a gradient", kind->name, i);
        (void)loss_step(p.net, cpu, kind->function, weight, 1, 0, 8);
        const double want = loss_step(p.one, cpu, kind->function, parameter(p.one, 0), 1, 0, 8);
        same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
        tensors_release(inputs, LOSS_INPUTS);
        pair_free(&p);
    }
}

/* A leaf of the program gets no gradient, also none of a dry run. One row is one part, whose gradient is whole. */
static void foreign(int rows)
{
    ctrt_device *devices[MOST];
    four(devices);
    for (int last = 0; last < 2; last++) {
        struct pair p = pair_on_devices(tied_new, strategy, 2);
        ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
        CTRT_AUTO(tensor) loss = NULL, leaf = ramp(CTRT_SHAPE(CLASSES, FEATURES), 0.1, devices[last]);
        CHECK_OK(ctrt_tensor_require_grad(leaf, true));
        loss_batch(inputs, cpu, 1, 0, rows);
        const ctrt_status status = ctrt_parallel_step(&loss, p.net, inputs, LOSS_INPUTS, loss_decay, leaf);
        if (rows == 1) {
            CTRT_AUTO(tensor) want = ramp(CTRT_SHAPE(CLASSES, FEATURES), 0.02, devices[last]);
            CHECK_OK(status);
            NEAR(ctrt_tensor_grad(leaf), want, 1e-6);
        } else {
            CHECK_FAILS(status, CTRT_ERR_NOT_SUPPORTED,
                        "a tensor of shape [3, 6] that requires grad and is no parameter of the module");
            CHECK_TRUE(ctrt_tensor_grad(leaf) == NULL);
        }
        tensors_release(inputs, LOSS_INPUTS);
        pair_free(&p);
    }
}

static void with_scale(ctrt_module *net)
{
    CTRT_AUTO(tensor) scale = NULL;
    CHECK_OK(ctrt_full(&scale, CTRT_SHAPE(CLASSES, FEATURES), ctrt_float(0.5), CTRT_F32,
                       ctrt_tensor_device(parameter(net, 0))));
    CHECK_OK(ctrt_module_add_parameter(net, "scale", scale));
}

/* A parameter of the Sequential itself. */
static struct pair scaled_pair(int n)
{
    ctrt_device *devices[MOST];
    struct pair p;
    four(devices);
    p.module = original(tied_new, devices[0]);
    p.reference = original(tied_new, devices[0]);
    with_scale(p.module);
    with_scale(p.reference);
    p.net = parallel(p.module, strategy, devices, n);
    p.one = parallel(p.reference, "single", devices, 1);
    return p;
}

static void of_the_root(void)
{
    EACH(kind, kinds) {
        struct pair p = scaled_pair(3);
        ctrt_tensor *mine, *other;
        CHECK_OK(ctrt_module_tensor(&mine, p.module, "scale"));
        CHECK_OK(ctrt_module_tensor(&other, p.reference, "scale"));
        const double want = loss_step(p.one, cpu, kind->function, other, 1, 0, 8);
        same_loss(kind->name, loss_step(p.net, cpu, kind->function, mine, 1, 0, 8), want);
        same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
        pair_free(&p);
    }
}

/* Buffers and tensors of the program that are on the first device. */
static void class_weights(void)
{
    static const float values[CLASSES] = { 0.5F, 2, 3 };
    for (int own = 0; own < 2; own++) {
        ctrt_device *devices[MOST];
        ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
        CTRT_AUTO(tensor) weight = NULL, loss = NULL;
        four(devices);
        CTRT_AUTO(module) module = original(tied_new, devices[0]), reference = original(tied_new, devices[0]);
        CHECK_OK(ctrt_from_data(&weight, values, CLASSES, CTRT_SHAPE(CLASSES), CTRT_F32, devices[0]));
        if (own)
            CHECK_OK(ctrt_module_add_buffer(module, "weights", weight, true));
        CTRT_AUTO(module) net = parallel(module, strategy, devices, 3),
                          one = parallel(reference, "single", devices, 1);
        const double want = loss_step(one, cpu, loss_class_weights, weight, 1, 0, 8);
        same_loss("class weights", loss_step(net, cpu, loss_class_weights, weight, 1, 0, 8), want);
        same_grads(net, one, 1e-5);
        plain = true;
        loss_batch(inputs, cpu, 1, 0, 8);
        CHECK_FAILS(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, loss_class_weights, weight), CTRT_ERR_DEVICE,
                    "uses a tensor that is not among its inputs");
        plain = false;
        tensors_release(inputs, LOSS_INPUTS);
    }
}

static void canonical_root(void)
{
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL }, *scale = NULL;
    CTRT_AUTO(tensor) loss = NULL;
    strategy = "pipeline";
    struct pair p = scaled_pair(3);
    CHECK_OK(ctrt_module_tensor(&scale, p.module, "scale"));
    loss_batch(inputs, cpu, 1, 0, 8);
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, inputs, LOSS_INPUTS, loss_decay, scale), CTRT_ERR_NOT_SUPPORTED,
                "\"scale\", which no child of the Sequential has");
    CHECK_TRUE(ctrt_tensor_grad(scale) == NULL);
    tensors_release(inputs, LOSS_INPUTS);
    pair_free(&p);
}

/* Replicas on one device: the use of the original's parameters is no error of the ops. */
static void one_device_twice(void)
{
    EACH(kind, kinds) {
        ctrt_device *twice[] = { numbered(1), numbered(1) };
        CTRT_AUTO(module) module = original(tied_new, twice[0]), net = parallel(module, "data-parallel", twice, 2);
        ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
        CTRT_AUTO(tensor) loss = NULL;
        plain = true;
        loss_batch(inputs, cpu, 1, 0, 8);
        CHECK_FAILS(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, kind->function, parameter(net, 0)),
                    CTRT_ERR_NOT_SUPPORTED, "the parameter \"0.weight\" of the module");
        CHECK_TRUE(ctrt_tensor_grad(parameter(net, 0)) == NULL);
        plain = false;
        tensors_release(inputs, LOSS_INPUTS);
    }
}

static void data_parallel(void)
{
    strategy = "data-parallel";
    devices();
    refused(8);
    foreign(8);
    class_weights();
    of_the_root();
    one_device_twice();
}

static void pipeline(void)
{
    strategy = "pipeline";
    devices();
    for (int rows = 1; rows <= 8; rows += 7) {
        refused(rows);
        foreign(rows);
    }
    class_weights();
    of_the_root();
}

/* The strategy changes while it is measured. */
static void automatic(void)
{
    EACH(kind, kinds) {
        strategy = "auto";
        struct pair p = pair_on_devices(tied_new, strategy, MOST);
        for (int i = 0; i < 12; i++) {
            CHECK_OK(ctrt_module_zero_grad(p.net, true));
            CHECK_OK(ctrt_module_zero_grad(p.one, true));
            const double want = loss_step(p.one, cpu, kind->function, parameter(p.one, 0), i, 0, 8);
            same_loss(kind->name, loss_step(p.net, cpu, kind->function, parameter(p.net, 0), i, 0, 8), want);
            same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
        }
        pair_free(&p);
    }
}

static void canonical(void)
{
    static const char *const strategies[] = { "single", "data-parallel", "pipeline" };
    EACH(kind, kinds) {
        char want[65] = "", got[65] = "";
        EACH(name, strategies)
            for (int n = 1; n <= MOST; n++) {
                strategy = *name;
                struct pair p = pair_on_devices(tied_new, strategy, n);
                CTRT_AUTO(optimizer) optimizer = NULL;
                CHECK_OK(optimizer_new(&optimizer, p.net, true));
                for (int i = 0; i < 3; i++) {
                    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
                    (void)loss_step(p.net, cpu, kind->function, parameter(p.net, 0), i, 0, LOSS_ROWS);
                    CHECK_OK(ctrt_optimizer_step(optimizer));
                }
                CHECK_OK(ctrt_module_sha256(*want == '\0' ? want : got, p.net));
                if (*got != '\0')
                    CHECK(strcmp(got, want) == 0, "%s, %s on %d: other bits", kind->name, strategy, n);
                pair_free(&p);
            }
    }
    canonical_root();
}

/* ---- ranks ---- */

/* y = x w^T, whose weight belongs to the module of the net: `sharded` keeps it gathered. */
static ctrt_status root_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_AUTO(tensor) transposed = NULL;
    ctrt_tensor *weight = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "weight"));
    CTRT_TRY(ctrt_transpose(&transposed, weight, 0, 1));
    return ctrt_matmul(y, inputs[0], transposed);
}

static const ctrt_module_class root_class = {
    .size = sizeof(ctrt_module_class), .kind = "Root", .forward = root_forward,
};

static ctrt_status root_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(CLASSES, FEATURES), 0.05, device);
    CTRT_TRY(ctrt_module_new(out, &root_class));
    return ctrt_module_add_parameter(*out, "weight", weight);
}

static void ranks(struct rank *rank)
{
    const char *name = rank->argument;
    const bool sharded = strcmp(name, "sharded") == 0;
    EACH(kind, kinds) {
        struct pair p = pair_new(sharded ? root_new : tied_new, name, rank);
        char where[128];
        snprintf(where, sizeof where, "%s, %s, rank %d of %d", name, kind->name, rank->number, rank->size);
        const double want = loss_step(p.one, rank->device, kind->function, parameter(p.one, 0), 1, 0, 3 * rank->size);
        same_loss(where, loss_step(p.net, rank->device, kind->function, parameter(p.net, 0), 1, 3 * rank->number, 3),
                  want);
        same_sharded(&p, rank, 1e-5 * fmax(1, fabs(want)));
        pair_free(&p);
    }
}

static void sharded_refused(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(tied_new, rank), net = net_of_ranks(module, "sharded", rank);
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    loss_batch(inputs, rank->device, 1, 2 * rank->number, 2);
    CHECK_TRUE(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, loss_decay, parameter(net, 0)) != CTRT_OK);
    CHECK_HAS(ctrt_error_message(), "\"0.weight\" of Linear");
    CHECK_HAS(ctrt_error_message(), "use it within the forward function");
    tensors_release(inputs, LOSS_INPUTS);
}

static const struct strategy_test tests[] = {
    { "data-parallel", data_parallel, { FOUR } },
    { "data-parallel, small buckets", data_parallel, { FOUR, "CTRT_DATA_PARALLEL_BUCKET=64" } },
    { "pipeline", pipeline, { FOUR } },
    { "pipeline by gpipe, two micro-batches", pipeline,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=gpipe", "CTRT_PIPELINE_MICRO=2" } },
    { "auto", automatic, { FOUR } },
    { "canonical mode: the same bits on 1 to 4 devices", canonical, { FOUR, "CTRT_CANONICAL=1" } },
};

TEST_MAIN
{
    run_strategy_tests(tests, COUNT(tests));
    for (int size = 1; size <= 3; size++) {
        group("%d ranks", size);
        for (int i = 0; i < 2; i++) {
            plain = i == 0;
            IN_CHILD(FOUR)
                run_quiet(ON_SIM, size, 30, ranks, "distributed", -1);
            IN_CHILD(FOUR)
                run_quiet(ON_SIM, size, 30, ranks, "sharded", -1);
        }
    }
    IN_CHILD(FOUR)
        run_quiet(ON_SIM, 2, 30, sharded_refused, NULL, -1);
    return done();
}
