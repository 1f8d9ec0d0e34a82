/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies of modules and training with replicas on several devices. */
#include "../options.h"
#include "strategy_check.h"

/* ---- modules of the program ---- */

/* y = x w w^T + bias: two children own the same weight. `unused` gets no gradient. */
struct tied {
    int64_t calls;
    ctrt_tensor *weight, *bias;
    ctrt_module *decoder;
};

static ctrt_status tied_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct tied *tied = ctrt_module_state(self);
    CTRT_AUTO(tensor) transposed = NULL;
    ctrt_tensor *again = NULL;
    (void)count;
    tied->calls++;
    CTRT_TRY(ctrt_module_tensor(&again, tied->decoder, "weight"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], tied->weight));
    CTRT_TRY(ctrt_transpose(&transposed, again, 0, 1));
    CTRT_TRY(ctrt_matmul(y, *y, transposed));
    return ctrt_add(y, *y, tied->bias);
}

static const ctrt_module_class tied_class = {
    .size = sizeof(ctrt_module_class), .kind = "Tied", .state_bytes = sizeof(struct tied), .forward = tied_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct tied, weight), offsetof(struct tied, bias),
                                          offsetof(struct tied, decoder)),
};

static ctrt_status tied_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(6, 4), 0.01, device), bias = ramp(CTRT_SHAPE(6), 0.1, device),
                      unused = ramp(CTRT_SHAPE(3), 1, device), frozen = ramp(CTRT_SHAPE(2), 1, device);
    CTRT_TRY(ctrt_module_new(&self, &tied_class));
    struct tied *tied = ctrt_module_state(self);
    for (int i = 0; i < 2; i++) {
        ctrt_module *part = NULL;
        CTRT_TRY(ctrt_module_new(&part, &part_class));
        CTRT_TRY(ctrt_module_add_parameter(part, "weight", weight));
        CTRT_TRY(ctrt_module_add_module(self, i ? "decoder" : "encoder", part));
        tied->decoder = part;
    }
    CTRT_TRY(ctrt_module_add_parameter(self, "bias", bias));
    CTRT_TRY(ctrt_module_add_parameter(self, "unused", unused));
    CTRT_TRY(ctrt_module_add_parameter(self, "frozen", frozen));
    CTRT_TRY(ctrt_tensor_require_grad(frozen, false));
    tied->weight = weight, tied->bias = bias;
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

/* ---- copies ---- */

static struct owned { char *text; } *last_freed;

static void owner_destroy(ctrt_module *self)
{
    last_freed = ctrt_module_state(self);
    free(last_freed->text);
}

static ctrt_status owner_replicate(ctrt_module *copy, ctrt_module *original)
{
    struct owned *to = ctrt_module_state(copy), *from = ctrt_module_state(original);
    if (from->text == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "no text");
    to->text = strdup(from->text);
    return CTRT_OK;
}

static const ctrt_module_class owner_class = {
    .size = sizeof(ctrt_module_class), .kind = "Owner", .state_bytes = sizeof(struct owned), .forward = part_forward,
    .destroy = owner_destroy, .replicate = owner_replicate,
};
static const ctrt_module_class greedy_class = {
    .size = sizeof(ctrt_module_class), .kind = "Greedy", .state_bytes = sizeof(struct owned),
    .forward = part_forward, .destroy = owner_destroy,
};

#define EITHER(buffers) ((buffers) ? ctrt_module_buffer : ctrt_module_parameter)

/* Checks that all tensors of the modules are equal but other tensors, in other memory, on `device`. */
static void check_copy(ctrt_module *copy, ctrt_module *original, ctrt_device *device)
{
    const char *name, *copied;
    ctrt_tensor *x, *y;
    CHECK_EQ(ctrt_module_parameter_count(copy), ctrt_module_parameter_count(original));
    CHECK_EQ(ctrt_module_buffer_count(copy), ctrt_module_buffer_count(original));
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; EITHER(buffers)(&name, &x, original, i) == CTRT_OK; i++) {
            CHECK_OK(EITHER(buffers)(&copied, &y, copy, i));
            CHECK_STR(copied, name);
            SAME(y, x);
            CHECK_TRUE(x != y && ctrt_tensor_data(x) != ctrt_tensor_data(y) && ctrt_tensor_device(y) == device);
            CHECK_TRUE(ctrt_tensor_is_leaf(y) && ctrt_tensor_requires_grad(x) == ctrt_tensor_requires_grad(y));
            CHECK_TRUE(ctrt_tensor_grad(y) == NULL && ctrt_tensor_dtype(x) == ctrt_tensor_dtype(y));
        }
}

static void test_copies(void)
{
    CTRT_AUTO(module) net = NULL, copy = NULL, tied = NULL;
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(5, 6), 0.1, cpu), y = NULL, z = NULL;
    ctrt_device *const device = numbered(0);

    group("a copy has the same values, modes and structure, in its own memory");
    CHECK_OK(plain_norm_new(&net, cpu));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    ctrt_module *child = NULL;
    CHECK_OK(ctrt_module_child(NULL, &child, net, 1));
    ctrt_module_train(child, false);
    CHECK_OK(ctrt_module_copy(&copy, net, NULL));
    check_copy(copy, net, cpu);
    CHECK_OK(ctrt_module_child(NULL, &child, copy, 1));
    CHECK_TRUE(ctrt_module_is_training(copy) && !ctrt_module_is_training(child));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_forward(&z, copy, x));
    SAME(z, y);
    CHECK_OK(ctrt_module_copy(&copy, net, device));
    check_copy(copy, net, device);

    group("state that points to tensors and modules points to their copies; what is used twice is copied once");
    CHECK_OK(tied_new(&tied, cpu));
    CHECK_OK(ctrt_forward(&y, tied, x));
    CHECK_OK(ctrt_module_copy(&copy, tied, device));
    check_copy(copy, tied, device);
    const struct tied *state = ctrt_module_state(copy);
    ctrt_tensor *encoder = NULL, *decoder = NULL;
    CHECK_OK(ctrt_module_child(NULL, &child, copy, 0));
    CHECK_OK(ctrt_module_tensor(&encoder, child, "weight"));
    CHECK_OK(ctrt_module_child(NULL, &child, copy, 1));
    CHECK_OK(ctrt_module_tensor(&decoder, child, "weight"));
    CHECK_TRUE(state->decoder == child && state->weight == encoder && encoder == decoder && state->calls == 1);
    CTRT_AUTO(module) twice = NULL;
    ctrt_module *second = NULL;
    CHECK_OK(ctrt_sequential_new(&twice, CTRT_MODULES(ctrt_module_retain(tied), ctrt_module_retain(tied))));
    CHECK_OK(ctrt_module_copy(&copy, twice, device));
    CHECK_OK(ctrt_module_child(NULL, &child, copy, 0));
    CHECK_OK(ctrt_module_child(NULL, &second, copy, 1));
    CHECK_TRUE(child == second && child != tied);

    group("a class with `destroy` needs `replicate`");
    CTRT_AUTO(module) root = NULL, owner = NULL;
    ctrt_module *greedy = NULL;
    CHECK_OK(ctrt_module_new(&owner, &owner_class));
    CHECK_FAILS(ctrt_module_copy(&copy, owner, NULL), CTRT_ERR_STATE, "module_copy: replicate of Owner: no text");
    ((struct owned *)ctrt_module_state(owner))->text = strdup("words");
    CHECK_OK(ctrt_module_copy(&copy, owner, NULL));
    CHECK_STR(((struct owned *)ctrt_module_state(copy))->text, "words");
    CHECK_OK(ctrt_module_new(&greedy, &greedy_class));
    CHECK_OK(ctrt_sequential_new(&root, CTRT_MODULES(ctrt_module_retain(net), greedy)));
    CHECK_FAILS(ctrt_module_copy(&copy, root, NULL), CTRT_ERR_NOT_SUPPORTED, "module_copy: \"1\" of class Greedy");
    CHECK_FAILS(ctrt_module_copy(&copy, greedy, NULL), CTRT_ERR_NOT_SUPPORTED, "the module of class Greedy");
    CHECK_FAILS(ctrt_replicate(&copy, root, &cpu, 1), CTRT_ERR_NOT_SUPPORTED, "replicate: \"1\" of class Greedy");
}

/* ---- training ---- */

/* Forward and backward of a batch cut for the devices. */
static ctrt_status parallel_step(ctrt_module *net, ctrt_tensor *x, ctrt_device *const *devices, int n)
{
    ctrt_tensor *parts[MOST] = { NULL }, *outputs[MOST] = { NULL };
    ctrt_module *replicas[MOST] = { NULL };
    CTRT_AUTO(tensor) y = NULL;
    int count = 0;
    ctrt_status status = ctrt_scatter_tensor(parts, &count, x, devices, n, 0, NULL);
    if (status == CTRT_OK)
        status = ctrt_replicate(replicas, net, devices, count);
    if (status == CTRT_OK)
        status = ctrt_parallel_forward(outputs, replicas, parts, devices, count);
    if (status == CTRT_OK)
        status = ctrt_gather_tensor(&y, outputs, count, devices[0], 0);
    tensors_release(parts, MOST);
    tensors_release(outputs, MOST);
    for (int i = 0; i < MOST; i++)
        ctrt_module_release(&replicas[i]);
    CTRT_TRY(status);
    CTRT_TRY(square_loss(&y, y, NULL, 0, NULL));
    return ctrt_backward(y);
}

static ctrt_status single_step(ctrt_module *net, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) y = NULL;
    CTRT_TRY(ctrt_forward(&y, net, x));
    CTRT_TRY(square_loss(&y, y, NULL, 0, NULL));
    return ctrt_backward(y);
}

static void check_gradients(ctrt_module *got, ctrt_module *want)
{
    const char *name;
    ctrt_tensor *x, *y;
    for (size_t i = 0; ctrt_module_parameter(&name, &x, want, i) == CTRT_OK; i++) {
        CHECK_OK(ctrt_module_tensor(&y, got, name));
        if (ctrt_tensor_grad(x) == NULL) {
            CHECK(ctrt_tensor_grad(y) == NULL, "%s has a gradient", name);
            continue;
        }
        check_same(name, __LINE__, ctrt_tensor_grad(y), ctrt_tensor_grad(x), 1e-5);
        CHECK_TRUE(ctrt_tensor_grad(y) != NULL && ctrt_tensor_device(ctrt_tensor_grad(y)) == ctrt_tensor_device(y));
    }
}

static void test_training(void)
{
    static const struct { const char *name; ctrt_status (*make)(ctrt_module **out, ctrt_device *device); } nets[] = {
        { "mlp", mlp_new }, { "tied", tied_new },
    };
    for (size_t k = 0; k < COUNT(nets); k++)
        for (size_t l = 0; l < COUNT(device_lists); l++) {
            ctrt_device *devices[MOST];
            const int n = device_lists[l].n;
            group("%s: three steps have the gradients of one device, devices: %s", nets[k].name, device_lists[l].name);
            if (!list_devices(devices, &device_lists[l])) {
                skip_group("too few devices");
                continue;
            }
            const uint64_t nodes = ctrt_autograd_live_nodes();
            {
                CTRT_AUTO(module) one = NULL, many = NULL;
                CTRT_AUTO(optimizer) one_sgd = NULL, many_sgd = NULL;
                CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(5, 6), 0.03, cpu);
                const ctrt_sgd_options options = *SGD(.lr = 0.1, .momentum = 0.9);
                CHECK_OK(nets[k].make(&one, cpu));
                CHECK_OK(ctrt_module_copy(&many, one, devices[0]));
                CHECK_OK(ctrt_sgd_new(&one_sgd, one, &options));
                CHECK_OK(ctrt_sgd_new(&many_sgd, many, &options));
                for (int step = 0; step < 3; step++) {
                    CHECK_OK(single_step(one, x));
                    CHECK_OK(parallel_step(many, x, devices, n));
                    check_gradients(many, one);
                    CHECK_OK(ctrt_optimizer_step(one_sgd));
                    CHECK_OK(ctrt_optimizer_step(many_sgd));
                    if (step == 1)                      /* the third step accumulates */
                        continue;
                    CHECK_OK(ctrt_optimizer_zero_grad(one_sgd, true));
                    CHECK_OK(ctrt_optimizer_zero_grad(many_sgd, true));
                }
            }
            CHECK_EQ(ctrt_autograd_live_nodes(), nodes);
            for (int i = 0; i < n; i++) {
                CHECK_OK(ctrt_device_synchronize(devices[i]));
                CHECK_EQ(ctrt_memory_allocated(devices[i]), 0);
            }
        }
}

static void test_replicas(void)
{
    ctrt_device *const devices[] = { numbered(0), numbered(1), numbered(1) };
    ctrt_module *replicas[3] = { NULL };
    CTRT_AUTO(module) net = NULL, tied = NULL, single = NULL;
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(6, 6), 0.1, devices[0]), y = NULL;
    ctrt_tensor *parts[3] = { NULL }, *outputs[3] = { NULL }, *a = NULL, *b = NULL;
    int count = 0;

    group("replica 0 shares the module's memory; parameters have history, frozen ones and buffers have none");
    CHECK_OK(tied_new(&tied, devices[0]));
    CHECK_OK(ctrt_replicate(replicas, tied, devices, 3));
    for (int i = 0; i < 3; i++) {
        const char *name;
        for (size_t p = 0; ctrt_module_parameter(&name, &a, tied, p) == CTRT_OK; p++) {
            CHECK_OK(ctrt_module_tensor(&b, replicas[i], name));
            SAME(b, a);
            CHECK_TRUE(a != b && (ctrt_tensor_data(a) == ctrt_tensor_data(b)) == (i == 0));
            CHECK_TRUE(ctrt_tensor_requires_grad(b) == (strcmp(name, "frozen") != 0));
            CHECK_TRUE(ctrt_tensor_is_leaf(b) == !ctrt_tensor_requires_grad(b));
            CHECK_TRUE(ctrt_tensor_device(b) == devices[i]);
        }
        CHECK_EQ(ctrt_module_parameter_count(replicas[i]), 4);
    }
    ctrt_no_grad CHECK_OK(ctrt_replicate(replicas, tied, devices, 3));
    CHECK_OK(ctrt_module_tensor(&b, replicas[1], "bias"));
    CHECK_TRUE(!ctrt_tensor_requires_grad(b));

    group("a tensor changed in place in a replica does not invalidate others that were copied with it");
    CHECK_OK(ctrt_replicate(replicas, tied, devices, 2));
    CHECK_OK(ctrt_scatter_tensor(parts, &count, x, devices, 2, 0, NULL));
    CHECK_OK(ctrt_forward(&y, replicas[1], parts[1]));
    CHECK_OK(ctrt_module_tensor(&b, replicas[1], "unused"));
    ctrt_no_grad CHECK_OK(ctrt_mul_scalar_(b, ctrt_float(2)));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    CHECK_OK(ctrt_module_tensor(&a, tied, "bias"));
    VALUES_ARE(ctrt_tensor_grad(a), 3, 3, 3, 3, 3, 3);
    CHECK_OK(ctrt_module_tensor(&a, tied, "unused"));
    CHECK_TRUE(ctrt_tensor_grad(a) == NULL);
    VALUES_ARE(a, 1, 2, 3);

    group("only the buffers of replica 0 are kept");
    CHECK_OK(plain_norm_new(&net, devices[0]));
    CHECK_OK(ctrt_module_copy(&single, net, NULL));
    CHECK_OK(ctrt_replicate(replicas, net, devices, 3));
    CHECK_OK(ctrt_scatter_tensor(parts, &count, x, devices, 3, 0, NULL));
    CHECK_OK(ctrt_parallel_forward(outputs, replicas, parts, devices, 3));
    CHECK_OK(ctrt_forward(&y, single, parts[0]));
    for (size_t i = 0; ctrt_module_buffer(NULL, &a, net, i) == CTRT_OK; i++) {
        CHECK_OK(ctrt_module_buffer(NULL, &b, single, i));
        NEAR(a, b, 1e-6);
    }
    CHECK_OK(ctrt_module_tensor(&a, replicas[2], "1.running_mean"));
    CHECK_OK(ctrt_module_tensor(&b, replicas[1], "1.running_mean"));
    double mean[2][4];
    CHECK_OK(ctrt_to_host(mean[0], sizeof mean[0], a, CTRT_F64));
    CHECK_OK(ctrt_to_host(mean[1], sizeof mean[1], b, CTRT_F64));
    CHECK_TRUE(memcmp(mean[0], mean[1], sizeof mean[0]) != 0);

    group("replicas made in a scope outlive it");
    CHECK_OK(ctrt_scope_begin());
    CHECK_OK(ctrt_replicate(replicas, net, devices, 3));
    CHECK_OK(ctrt_scope_end());
    CHECK_OK(ctrt_parallel_forward(outputs, replicas, parts, devices, 3));
    CHECK_OK(ctrt_module_tensor(&a, net, "0.weight"));
    CHECK_OK(ctrt_module_tensor(&b, replicas[1], "0.weight"));
    SAME(b, a);

    group("errors of replicas name the tensor and the device");
    CTRT_AUTO(tensor) kept = ctrt_tensor_retain(outputs[0]), small = ramp(CTRT_SHAPE(2, 5), 1, devices[1]);
    ctrt_tensor *const bad[] = { parts[0], small, small };
    char words[80];
    snprintf(words, sizeof words, "replica 1 (%s): ", ctrt_device_name(devices[1]));
    CHECK_FAILS(ctrt_parallel_forward(outputs, replicas, bad, devices, 3), CTRT_ERR_SHAPE, words);
    CHECK_TRUE(outputs[0] == kept);
    ctrt_module *first = replicas[0];
    CHECK_FAILS(ctrt_replicate(replicas, net, devices + 1, 2), CTRT_ERR_DEVICE, "\"0.weight\"");
    CHECK_FAILS(ctrt_replicate(replicas, net, devices, 0), CTRT_ERR_INVALID_ARGUMENT, "n is 0");
    CHECK_OK(ctrt_device_synchronize(devices[0]));
    CHECK_OK(ctrt_module_to(net, devices[1], CTRT_DTYPE_DEFAULT));
    CHECK_OK(ctrt_module_tensor(&a, net, "1.num_batches_tracked"));
    CTRT_AUTO(module) mixed = NULL;
    CHECK_OK(ctrt_module_new(&mixed, &part_class));
    CHECK_OK(ctrt_module_add_buffer(mixed, "here", x, true));
    CHECK_OK(ctrt_module_add_buffer(mixed, "there", a, false));
    CHECK_FAILS(ctrt_replicate(replicas, mixed, devices, 2), CTRT_ERR_DEVICE, "\"there\"");
    CHECK_TRUE(replicas[0] == first);
    for (int i = 0; i < 3; i++)
        ctrt_module_release(&replicas[i]);
    tensors_release(parts, 3);
    tensors_release(outputs, 3);
}

/* Parameters reach another device in groups: one per dtype, and one for each 10 MiB. */
static void test_groups(void)
{
    ctrt_device *const devices[] = { numbered(0), numbered(1) };
    ctrt_module *replicas[2] = { NULL };
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(4, 6), 0.1, cpu);
    group("tensors are copied in groups");
    if (strcmp(tested_type(), "sim") != 0) {
        skip_group("needs the counters of simulated devices");
        return;
    }
    sim_open("sim:1");
    CHECK_OK(mlp_new(&net, devices[0]));
    for (int buffers = 0; buffers < 3; buffers++) {     /* 6 MiB each, so that two do not fit into one group */
        CTRT_AUTO(tensor) large = NULL;
        CHECK_OK(ctrt_ones(&large, CTRT_SHAPE(6 << 18), CTRT_F32, devices[0]));
        CHECK_OK(ctrt_module_add_buffer(net, buffers == 0 ? "a" : buffers == 1 ? "b" : "c", large, true));
    }
    const sim_counters before = sim_read(1);
    CHECK_OK(ctrt_replicate(replicas, net, devices, 2));
    const sim_counters after = sim_read(1);
    CHECK_EQ(after.peer_copies - before.peer_copies, 1 + 3);    /* 5 parameters together */
    const sim_counters root = sim_read(0);
    CHECK_OK(ctrt_module_zero_grad(net, true));
    CTRT_AUTO(tensor) y = NULL;
    CHECK_OK(ctrt_to_device(&x, x, devices[1]));
    CHECK_OK(ctrt_forward(&y, replicas[1], x));
    CHECK_OK(square_loss(&y, y, NULL, 0, NULL));
    CHECK_OK(ctrt_backward(y));
    CHECK_EQ(sim_read(0).peer_copies - root.peer_copies, 1);    /* their gradients */
    for (int i = 0; i < 2; i++)
        ctrt_module_release(&replicas[i]);
}

/* The gradients 1e8, -1e8 and 1 add up to 1 in this order only. */
static void test_order_of_sums(void)
{
    static const double factors[] = { 1e8, -1e8, 1 };
    group("gradients are added in the order of the devices");
    for (size_t l = 0; l < COUNT(device_lists); l++) {
        ctrt_device *devices[MOST];
        ctrt_module *replicas[3] = { NULL };
        ctrt_tensor *terms[3] = { NULL }, *weight = NULL;
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(tensor) sum = NULL;
        if (device_lists[l].n != 3 || !list_devices(devices, &device_lists[l]))
            continue;
        CHECK_OK(tied_new(&net, devices[0]));
        CHECK_OK(ctrt_replicate(replicas, net, devices, 3));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ctrt_module_tensor(&weight, replicas[i], "unused"));
            CHECK_OK(ctrt_mul_scalar(&terms[i], weight, ctrt_float(factors[i])));
            ctrt_module_release(&replicas[i]);
        }
        CHECK_OK(ctrt_gather_tensor(&sum, terms, 3, NULL, 0));
        CHECK_OK(ctrt_sum(&sum, sum, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(sum));
        CHECK_OK(ctrt_module_tensor(&weight, net, "unused"));
        VALUES_ARE(ctrt_tensor_grad(weight), 1, 1, 1);
        tensors_release(terms, 3);
    }
}

static void test_second_derivatives(void)
{
    group("second derivatives pass through replicas");
    for (size_t l = 0; l < COUNT(device_lists); l++) {
        ctrt_device *devices[MOST];
        ctrt_module *replicas[2] = { NULL };
        ctrt_tensor *cubes[2] = { NULL }, *weight = NULL, *copied = NULL;
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(tensor) sum = NULL, first = NULL;
        if (device_lists[l].n != 2 || !list_devices(devices, &device_lists[l]))
            continue;
        CHECK_OK(tied_new(&net, devices[0]));
        CHECK_OK(ctrt_module_tensor(&weight, net, "unused"));
        CHECK_OK(ctrt_replicate(replicas, net, devices, 2));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(ctrt_module_tensor(&copied, replicas[i], "unused"));
            CHECK_OK(ctrt_square(&cubes[i], copied));
            CHECK_OK(ctrt_mul(&cubes[i], cubes[i], copied));
            ctrt_module_release(&replicas[i]);
        }
        CHECK_OK(ctrt_gather_tensor(&sum, cubes, 2, devices[0], 0));
        CHECK_OK(ctrt_sum(&sum, sum, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_grad(&first, sum, &weight, 1, NULL, false, true, false));
        VALUES_ARE(first, 6, 24, 54);
        CHECK_OK(ctrt_sum(&sum, first, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(sum));
        VALUES_ARE(ctrt_tensor_grad(weight), 12, 24, 36);
        tensors_release(cubes, 2);
    }
}

/* Keeps `stream` busy for 20 ms. */
static void delay(ctrt_stream *stream, ctrt_tensor *scratch)
{
    ON_STREAM(stream, ctrt_fill_(scratch, ctrt_float(1.5)));
    for (int i = 0; i < 4; i++)
        ON_STREAM(stream, ctrt_neg_(scratch));
}

/* Tensors of one group are ordered and freed separately, although they share memory. */
static void test_streams(void)
{
    ctrt_device *const devices[] = { numbered(0), numbered(1) };
    ctrt_module *replicas[2] = { NULL };
    CTRT_AUTO(module) net = NULL;
    group("replicas are used on other streams than their copies, and released while they are in use");
    if (strcmp(tested_type(), "sim") != 0) {
        skip_group("needs simulated devices");
        return;
    }
    sim_open("sim:1");
    CTRT_AUTO(stream) stream = new_stream(devices[1]), first = default_stream(devices[1]);
    CTRT_AUTO(tensor) busy = full(0, 8, devices[1]), copy = NULL, next = NULL;
    ctrt_tensor *weight = NULL, *original = NULL;
    CHECK_OK(mlp_new(&net, devices[0]));
    CHECK_OK(ctrt_module_tensor(&original, net, "3.weight"));
    CHECK_OK(sim->set_latency(1, 4000000));
    ctrt_no_grad {
        delay(first, busy);
        CHECK_OK(ctrt_replicate(replicas, net, devices, 2));             /* copies after the delay */
        CHECK_OK(ctrt_module_tensor(&weight, replicas[1], "3.weight"));
        ON_STREAM(stream, ctrt_clone(&copy, weight));
        CHECK_OK(ctrt_stream_synchronize(stream));
        SAME(copy, original);
        CHECK_OK(ctrt_device_synchronize(devices[1]));
        CTRT_AUTO(tensor) other = full(0, 8, devices[1]);
        delay(stream, other);
        ON_STREAM(stream, ctrt_clone(&copy, weight));
        for (int i = 0; i < 2; i++)
            ctrt_module_release(&replicas[i]);
        for (int i = 0; i < 8; i++) {                   /* takes the memory, unless it is still in use */
            CHECK_OK(ctrt_full(&next, CTRT_SHAPE(320), ctrt_float(7), CTRT_F32, devices[1]));
            ctrt_tensor_release(&next);
        }
        CHECK_OK(ctrt_device_synchronize(devices[1]));
        SAME(copy, original);
    }
    CHECK_OK(sim->set_latency(1, 0));
}

/* The copies between devices are ordered although the program orders streams itself. */
static void test_manual_order(void)
{
    group("with manual ordering of streams, no work of replicas races");
    IN_CHILD(SIMS, "CTRT_STREAM_ORDER=check") {
        ctrt_device *const devices[] = { numbered(0), numbered(1), numbered(2) };
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(optimizer) sgd = NULL;
        CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(8, 6), 0.03, devices[0]);
        CTRT_AUTO(stream) stream = new_stream(devices[1]);
        CHECK_OK(plain_norm_new(&net, devices[0]));
        CHECK_OK(ctrt_sgd_new(&sgd, net, SGD(.lr = 0.1)));
        CHECK_OK(ctrt_stream_push(stream));
        for (int step = 0; step < 3; step++) {
            CHECK_OK(ctrt_optimizer_zero_grad(sgd, true));
            CHECK_OK(parallel_step(net, x, devices, 3));
            CHECK_OK(ctrt_optimizer_step(sgd));
            CHECK_OK(ctrt_mul_scalar_(x, ctrt_float(0.5)));
        }
        CHECK_OK(ctrt_stream_pop());
        CHECK_EQ(ctrt_race_count(), 0);
    }
}

TEST_MAIN
{
    test_manual_order();                /* in a child process, so before the first use of the library */
    child_environment((const char *const[]){ SIMS, NULL });
    if (!cpu_opened())
        return done();
    test_copies();
    test_training();
    test_replicas();
    test_groups();
    test_order_of_sums();
    test_second_derivatives();
    test_streams();
    return done();
}
