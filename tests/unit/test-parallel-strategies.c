/* SPDX-License-Identifier: Apache-2.0 */
/* Tests training loops that run by a strategy: data-parallel against single, canonical mode, failures. */
#include "strategy_check.h"

/* ---- data-parallel gives what single gives ---- */

static void test_training(void)
{
    EACH(list, device_lists) {
        compare_training("data-parallel", list, mlp_new, 12, 4, false);
        compare_training("data-parallel", list, mlp_new, 5, 4, true);
        compare_training("data-parallel", list, mlp_new, 1, 4, false);
        compare_training("data-parallel", list, shared_new, 7, 4, true);
    }
}

static void test_names(void)
{
    ctrt_device *devices[2] = { numbered(0), numbered(1) };
    CTRT_AUTO(module) module = original(norm_new, devices[0]), net = parallel(module, "data-parallel", devices, 2);
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; i < (buffers ? ctrt_module_buffer_count : ctrt_module_parameter_count)(module); i++) {
            const char *a, *b;
            ctrt_tensor *x, *y;
            CHECK_OK((buffers ? ctrt_module_buffer : ctrt_module_parameter)(&a, &x, module, i));
            CHECK_OK((buffers ? ctrt_module_buffer : ctrt_module_parameter)(&b, &y, net, i));
            CHECK_STR(b, a);
            CHECK_TRUE(x == y);
        }
    CHECK_EQ(ctrt_module_parameter_count(net), ctrt_module_parameter_count(module));
    CHECK_STR(ctrt_parallel_describe(net), "data-parallel on sim:0, sim:1");
    CHECK_STR(ctrt_parallel_describe(module), "");
    ctrt_module_train(net, false);
    CHECK_TRUE(!ctrt_module_is_training(module));

    CTRT_AUTO(module) again = NULL;
    CHECK_FAILS(ctrt_parallel_new(&again, net, "single", devices, 1), CTRT_ERR_STATE, "data-parallel already");
    CHECK_FAILS(ctrt_parallel_new(&again, module, "data-paralel", devices, 1), CTRT_ERR_NOT_FOUND, "data-parallel");
    CHECK_FAILS(ctrt_parallel_new(&again, module, "single", devices + 1, 1), CTRT_ERR_DEVICE, "\"0.weight\" is on");
    CHECK_FAILS(ctrt_parallel_new(&again, module, "data-parallel", (ctrt_device *[]){ devices[1], devices[0] }, 2),
                CTRT_ERR_DEVICE, "\"0.weight\" is on sim:0");
    CHECK_OK(ctrt_parallel_new(&again, module, NULL, NULL, 0));         /* from the environment */
    CHECK_STR(ctrt_parallel_describe(again), "data-parallel on sim:0, sim:1, sim:2, sim:3");
    CHECK_OK(ctrt_module_to(module, devices[1], CTRT_DTYPE_DEFAULT));
    CTRT_AUTO(module) other = parallel(module, NULL, NULL, 0);
    CHECK_STR(ctrt_parallel_describe(other), "data-parallel on sim:1, sim:0, sim:2, sim:3");
    CTRT_AUTO(tensor) x = rows_of(4, FEATURES, 0), loss = NULL;
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_DEVICE, "is on sim:1");
    CHECK_TRUE(loss == NULL);
}

/* ---- gradients ---- */

static void test_accumulation(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) one = original(shared_new, devices[0]), many = original(shared_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 4);
    (void)step(single, 8, 0);
    (void)step(net, 8, 0);
    ctrt_tensor *before = ctrt_tensor_grad(parameter(many, 0));
    CHECK_NEAR(step(net, 6, 1), step(single, 6, 1), 1e-5);
    CHECK_TRUE(ctrt_tensor_grad(parameter(many, 0)) == before);
    same_grads(many, one, 1e-4);

    for (int round = 0; round < 2; round++) {
        CHECK_OK(ctrt_module_zero_grad(net, true));
        CHECK_OK(ctrt_module_zero_grad(single, true));
        CHECK_OK(ctrt_parallel_no_sync(net, true));
        CHECK_OK(ctrt_parallel_no_sync(single, true));
        for (int turn = 0; turn < 2; turn++)
            CHECK_NEAR(step(net, 8, turn), step(single, 8, turn), 1e-5);
        const sim_counters kept = sim_read(0);
        (void)step(net, 8, 2), (void)step(single, 8, 2);
        CHECK_EQ(sim_read(0).peer_bytes, kept.peer_bytes + 2 * 4);      /* two losses */
        CHECK_OK(ctrt_parallel_no_sync(net, false));
        CHECK_OK(ctrt_parallel_no_sync(single, false));
        CHECK_NEAR(step(net, 2, 3), step(single, 2, 3), 1e-5);          /* two replicas have no rows */
        same_grads(many, one, 1e-4);
        CHECK_NEAR(step(net, 8, 4), step(single, 8, 4), 1e-5);
        same_grads(many, one, 1e-4);
    }
}

static void test_frozen(void)
{
    ctrt_device *devices[2] = { numbered(0), numbered(1) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 2);
    for (int turn = 0; turn < 3; turn++) {
        CHECK_OK(ctrt_tensor_require_grad(parameter(one, 1), turn != 1));
        CHECK_OK(ctrt_tensor_require_grad(parameter(many, 1), turn != 1));
        CHECK_OK(ctrt_module_zero_grad(one, true));
        CHECK_OK(ctrt_module_zero_grad(many, true));
        CHECK_NEAR(step(net, 8, turn), step(single, 8, turn), 1e-5);
        CHECK_TRUE((ctrt_tensor_grad(parameter(many, 1)) != NULL) == (turn != 1));
        same_grads(many, one, 1e-4);
    }
    CHECK_OK(ctrt_sequential_add(one, CTRT_NEW(tanh)));
    CHECK_OK(ctrt_sequential_add(many, CTRT_NEW(tanh)));
    CHECK_NEAR(step(net, 8, 4), step(single, 8, 4), 1e-5);
    same_grads(many, one, 1e-4);
}

static void test_two_optimizers(void)
{
    ctrt_device *devices[3] = { numbered(0), numbered(1), numbered(2) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 3),
                      other_module = original(shared_new, devices[0]),
                      other = parallel(other_module, "data-parallel", devices, 2);
    ctrt_optimizer *a[4] = { NULL };
    for (int i = 0; i < 4; i++)
        CHECK_OK(optimizer_new(&a[i], i == 0 ? one : i == 1 ? single : i == 2 ? many : net, i % 2));
    for (int turn = 0; turn < 3; turn++) {
        CHECK_OK(ctrt_module_zero_grad(one, true));
        CHECK_OK(ctrt_module_zero_grad(many, true));
        CHECK_NEAR(step(net, 9, turn), step(single, 9, turn), 1e-5);
        (void)step(other, 4, turn);
        for (int i = 0; i < 4; i++)
            CHECK_OK(ctrt_optimizer_step(a[i]));
    }
    same_parameters(many, one, 1e-4);
    for (int i = 0; i < 4; i++)
        ctrt_optimizer_release(&a[i]);
}

/* ---- forward alone ---- */

static void test_forward(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    for (int n = 1; n <= MOST; n++) {
        CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
        CTRT_AUTO(module) single = parallel(one, "single", devices, n),
                          net = parallel(many, "data-parallel", devices, n);
        CTRT_AUTO(tensor) x = rows_of(6, FEATURES, n), y = NULL, a = NULL, b = NULL;
        CHECK_OK(ctrt_tensor_require_grad(x, true));
        forward_train(single, x, &y, &a);
        forward_train(net, x, &y, &b);
        NEAR(b, a, 1e-5);
        same_grads(many, one, 1e-4);
        ctrt_no_grad {
            CHECK_OK(ctrt_forward(&a, single, x));
            CHECK_OK(ctrt_forward(&b, net, x));
        }
        NEAR(b, a, 1e-5);
        CHECK_TRUE(!ctrt_tensor_requires_grad(b));
    }
    CTRT_AUTO(module) module = original(norm_new, devices[0]), net = parallel(module, "data-parallel", devices, 4);
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 0), y = NULL, here = NULL;
    CHECK_OK(ctrt_to_device(&here, x, devices[0]));
    ctrt_module_train(net, false);
    uint64_t first = 0;
    for (int turn = 0; turn < 4; turn++) {
        const uint64_t before = sim_read(3).peer_bytes;
        if (turn == 3)                      /* the next pass copies the changed weight */
            CHECK_OK(ctrt_init_constant_(parameter(module, 0), 0.5));
        ctrt_no_grad CHECK_OK(ctrt_forward(&y, net, here));
        const uint64_t bytes = sim_read(3).peer_bytes - before;
        if (turn == 0)
            first = bytes;
        else
            CHECK_EQ(bytes, 2 * FEATURES * 4 + (turn == 3 ? 4 * FEATURES * 4 : 0));      /* its rows */
    }
    CHECK_TRUE(first > 2 * FEATURES * 4);
    CTRT_AUTO(tensor) want = NULL;
    ctrt_no_grad CHECK_OK(ctrt_forward(&want, module, here));
    NEAR(y, want, 1e-6);
}

static void test_buffers(void)
{
    ctrt_device *devices[2] = { numbered(0), numbered(1) };
    CTRT_AUTO(module) module = original(norm_new, devices[0]), want = original(norm_new, devices[0]),
                      net = parallel(module, "data-parallel", devices, 2);
    for (int turn = 0; turn < 3; turn++) {
        CTRT_AUTO(tensor) x = rows_of(8, FEATURES, turn), half = NULL, y = NULL;
        CHECK_OK(ctrt_narrow(&half, x, 0, 0, 4));
        CHECK_OK(ctrt_to_device(&half, half, devices[0]));
        CHECK_OK(ctrt_forward(&y, want, half));
        (void)step(net, 8, turn);
    }
    for (size_t i = 0; i < ctrt_module_buffer_count(module); i++) {
        ctrt_tensor *a, *b;
        CHECK_OK(ctrt_module_buffer(NULL, &a, module, i));
        CHECK_OK(ctrt_module_buffer(NULL, &b, want, i));
        NEAR(a, b, 1e-6);
    }
}

/* ---- failures ---- */

static void test_failures(void)
{
    ctrt_device *devices[3] = { numbered(0), numbered(1), numbered(2) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 3);
    CTRT_AUTO(tensor) x = rows_of(9, FEATURES, 1), short_target = rows_of(8, 3, 1), target = rows_of(9, 3, 1),
                      loss = NULL, scalar = NULL, empty = NULL, wide = rows_of(9, 7, 1);
    (void)step(net, 9, 0), (void)step(single, 9, 0);
    without_memory(net, many, one, 3, 300000);      /* in a forward pass, or where gradients are added up */
    CHECK_NEAR(step(net, 9, 1), step(single, 9, 1), 1e-5);
    same_grads(many, one, 1e-4);

    CHECK_OK(ctrt_scalar_tensor(&scalar, ctrt_float(1), CTRT_F32, cpu));
    CHECK_OK(ctrt_empty(&empty, CTRT_SHAPE(0, FEATURES), CTRT_F32, cpu));
    ctrt_tensor *uneven[] = { x, short_target }, *with_scalar[] = { x, scalar }, *fine[] = { x, target };
    for (int i = 0; i < 2; i++) {
        ctrt_module *here = i ? net : single;
        CHECK_FAILS(ctrt_parallel_step(&loss, here, uneven, 2, square_loss, NULL), CTRT_ERR_SHAPE,
                    "inputs[1] has 8 rows, but inputs[0] has 9");
        CHECK_FAILS(ctrt_parallel_step(&loss, here, with_scalar, 2, square_loss, NULL), CTRT_ERR_SHAPE,
                    "inputs[1] has no dimensions");
        CHECK_FAILS(ctrt_parallel_step(&loss, here, &empty, 1, square_loss, NULL), CTRT_ERR_SHAPE, "no rows");
        CHECK_FAILS(ctrt_parallel_step(&loss, here, &wide, 1, square_loss, NULL), CTRT_ERR_SHAPE, "Linear");
        CHECK_OK(ctrt_parallel_step(&loss, here, fine, 2, square_loss, NULL));
        CHECK_TRUE(ctrt_tensor_device(loss) == devices[0] && !ctrt_tensor_requires_grad(loss));
    }
    same_grads(many, one, 1e-4);
}

static void test_lost(void)
{
    lose_device("data-parallel", mlp_new);
}

static ctrt_status bad_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    const char *kind = user;
    (void)inputs, (void)count;
    if (strcmp(kind, "fails") == 0)
        return ctrt_tensor_device(output) == numbered(1) ? ctrt_fail(CTRT_ERR_STATE, "no loss today")
                                                         : square_loss(loss, output, NULL, 0, NULL);
    if (strcmp(kind, "wide") == 0)
        ctrt_tensor_assign(loss, output);
    if (strcmp(kind, "twice") == 0) {
        CTRT_TRY(square_loss(loss, output, NULL, 0, NULL));
        CTRT_TRY(ctrt_backward_with(*loss, NULL, true, false));
    }
    if (strcmp(kind, "exits") == 0 && ctrt_tensor_device(output) == numbered(1))
        pthread_exit(NULL);
    return strcmp(kind, "exits") == 0 ? square_loss(loss, output, NULL, 0, NULL) : CTRT_OK;
}

static void test_bad_losses(void)
{
    static const struct { const char *kind, *words; ctrt_status status; } cases[] = {
        { "fails", "replica 1 (sim:1): loss: no loss today", CTRT_ERR_STATE },
        { "wide", "the loss has 12 elements", CTRT_ERR_SHAPE },
        { "none", "succeeded without a result", CTRT_ERR_STATE },
        { "twice", "second backward pass", CTRT_ERR_STATE },
#ifndef __SANITIZE_ADDRESS__            /* the thread's tensors are lost, which is a leak */
        { "exits", "replica 1 (sim:1): the function ended its thread", CTRT_ERR_STATE },
#endif
    };
    ctrt_device *devices[2] = { numbered(0), numbered(1) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 2);
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 1), loss = NULL;
    (void)step(net, 8, 0), (void)step(single, 8, 0);
    EACH(c, cases) {
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, bad_loss, (void *)(uintptr_t)c->kind), c->status, c->words);
        same_grads(many, one, 1e-5);
    }
    CHECK_NEAR(step(net, 8, 1), step(single, 8, 1), 1e-5);
    same_grads(many, one, 1e-4);
}

/* ---- canonical mode ---- */

static void test_canonical(void)
{
    static const struct { const char *name; net_function make; int64_t rows; int steps; } cases[] = {
        { "mlp, many steps of 24 rows", mlp_new, 24, FEWER_SANITIZED(100) },
        { "batch norm and dropout, 12 steps of 31 rows", norm_new, 31, 12 },
        { "a shared weight, fewer rows than shards", shared_new, 5, 6 },
    };
    EACH(c, cases) {
        char want[65];
        double want_loss;
        canonical_run(want, &want_loss, "single", 1, c->make, c->rows, c->steps);
        for (int n = SANITIZED ? 3 : 1; n <= MOST; n++) {
            char got[65];
            double loss;
            canonical_run(got, &loss, "data-parallel", n, c->make, c->rows, c->steps);
            CHECK(strcmp(got, want) == 0, "%d devices: parameters %.12s, expected %.12s", n, got, want);
            CHECK(loss == want_loss, "%d devices: loss %.17g, expected %.17g", n, loss, want_loss);
        }
    }
    ctrt_device *devices[MOST];
    CTRT_AUTO(tensor) x = rows_of(31, FEATURES, 0), want = NULL, want_grad = NULL;
    for (int n = 1; n <= MOST; n++) {
        CTRT_AUTO(tensor) y = NULL;
        devices[n - 1] = numbered(n - 1);
        CTRT_AUTO(module) module = original(mlp_new, devices[0]), net = parallel(module, "data-parallel", devices, n);
        CHECK_HAS(ctrt_parallel_describe(net), "canonical, 12 shards");
        ctrt_no_grad CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(ctrt_parallel_no_sync(net, true));
        (void)step(net, 13, 0);
        CHECK_OK(ctrt_parallel_no_sync(net, false));
        (void)step(net, 13, 1);
        ctrt_tensor *grad = ctrt_tensor_grad(parameter(module, 0));
        if (n == 1) {
            ctrt_tensor_assign(&want, y);
            ctrt_tensor_assign(&want_grad, grad);
        } else {
            SAME(y, want);
            SAME(grad, want_grad);
        }
    }
}

/* ---- sum trees ---- */

static void test_sum_trees(void)
{
    enum { LEAVES = 11 };
    ctrt_device *devices[3] = { numbered(0), numbered(1), cpu };
    float want = 0;
    for (int n = 1; n <= 3; n++) {
        ctrt_sum_tree *trees[3] = { NULL };
        ctrt_tensor *out[2] = { NULL, NULL };
        for (int i = 0; i < n; i++)
            CHECK_OK(ctrt_sum_tree_new(&trees[i], LEAVES, 2, devices[i]));
        for (int leaf = LEAVES - 1; leaf >= 0; leaf--) {
            ctrt_tensor *tensors[2] = { full(0.1 * pow(3, leaf), 5, cpu), leaf == 4 ? full(1, 2, cpu) : NULL };
            CHECK_OK(ctrt_sum_tree_add(trees[leaf * n / LEAVES], leaf, tensors));
            CHECK_TRUE(tensors[0] == NULL && tensors[1] == NULL);
        }
        CHECK_FAILS(ctrt_sum_tree_result(out, trees[0]), n == 1 ? CTRT_OK : CTRT_ERR_STATE, n == 1 ? NULL : "leaves");
        for (int i = n - 1; i > 0; i--)
            CHECK_OK(ctrt_sum_tree_merge(trees[i - 1], trees[i]));
        if (n > 1)
            CHECK_OK(ctrt_sum_tree_result(out, trees[0]));
        float got[5];
        CHECK_OK(ctrt_to_host(got, sizeof got, out[0], CTRT_F32));
        want = n == 1 ? got[0] : want;
        CHECK(got[4] == want, "%d devices: %.9g, expected %.9g", n, got[4], want);
        CHECK_NEAR(total(out[1]), 2, 0);
        CHECK_TRUE(ctrt_tensor_device(out[1]) == devices[0] || n == 1);
        tensors_release(out, 2);
        ctrt_tensor *again[2] = { full(1, 5, cpu), NULL };
        CHECK_OK(ctrt_sum_tree_add(trees[0], 3, again));
        again[0] = full(1, 5, cpu);
        CHECK_FAILS(ctrt_sum_tree_add(trees[0], 3, again), CTRT_ERR_STATE, "leaf 3 was added before");
        again[0] = full(1, 5, cpu);
        CHECK_FAILS(ctrt_sum_tree_add(trees[0], LEAVES, again), CTRT_ERR_INVALID_ARGUMENT, "no node 11 at level 0");
        CHECK_TRUE(again[0] == NULL);
        for (int i = 0; i < n; i++)
            ctrt_sum_tree_release(&trees[i]);
    }
}

/* ---- weights, and tables of plugins ---- */

static ctrt_status counted_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
    return square_loss(loss, output, inputs, count, NULL);
}

static void test_weights(void)
{
    atomic_int calls = 0;
    ctrt_device *devices[3] = { numbered(0), numbered(1), numbered(2) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "data-parallel", devices, 3),
                      none = NULL;
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 0), loss = NULL;
    CHECK_HAS(ctrt_parallel_describe(net), "parts 2:1:1");
    (void)step(net, 8, 0);                      /* creates the replicas */
    CHECK_OK(ctrt_module_zero_grad(net, true));
    const uint64_t before = sim_read(2).copy_bytes[CTRT_COPY_TO_DEVICE];
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, counted_loss, &calls));
    CHECK_EQ(calls, 3);
    CHECK_EQ(sim_read(2).copy_bytes[CTRT_COPY_TO_DEVICE] - before, 2 * FEATURES * 4);
    (void)step(single, 8, 0);
    same_grads(many, one, 1e-4);
    CHECK_FAILS(ctrt_parallel_new(&none, many, "data-parallel", devices, 2), CTRT_ERR_INVALID_ARGUMENT,
                "3 numbers for 2 devices");
}

static void test_tables(void)
{
    char *folder = FOLDER_OF("strategy-null-step", "strategy-watcher", "strategy-single", "backend-cpu",
                             "memory-caching");
    group("the table of a strategy is validated, and its event function called");
    IN_CHILD(folder_path(folder, NULL), "CTRT_LOG=error") {
        CTRT_AUTO(module) module = NULL, net = NULL;
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) x = NULL, loss = NULL;
        (void)cpu_device();
        CHECK_OK(mlp_new(&module, cpu));
        CHECK_FAILS(ctrt_parallel_new(&net, module, "null-step", &cpu, 1), CTRT_ERR_NOT_FOUND,
                    "struct ctrt_strategy: required slot step is missing or NULL");
        CHECK_OK(ctrt_parallel_new(&net, module, "watcher", &cpu, 1));
        x = rows_of(2, FEATURES, 0);
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED,
                    "parallel_step: watcher: events:");

        const char *path = folder_join(folder, "none.safetensors");
        CHECK_OK(ctrt_save(net, path));                                 /* another process writes the file */
        CHECK_TRUE(access(path, F_OK) != 0);
        CHECK_OK(optimizer_new(&optimizer, net, false));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_FAILS(ctrt_load(net, path), CTRT_ERR_IO, "watcher: no loading");
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED,
                    "events: 13 0 1 4 5 2");
    }
}

/* ---- gradients on some devices only, and of several dtypes ---- */

static int without;                         /* the device that does not use the parameter "some" */

/* y = x (all + some + half) */
static ctrt_status partial_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    static const char *const names[] = { "all", "some", "half" };
    CTRT_AUTO(tensor) sum = NULL;
    (void)count;
    for (int i = 0; i < 3; i++) {               /* EACH is not for several threads */
        CTRT_AUTO(tensor) part = NULL;
        ctrt_tensor *weight = NULL;
        if (i == 1 && ctrt_device_index(ctrt_tensor_device(inputs[0])) == without)
            continue;
        CTRT_TRY(ctrt_module_tensor(&weight, self, names[i]));
        CTRT_TRY(ctrt_to_dtype(&part, weight, CTRT_F32));
        CTRT_TRY(ctrt_mul(&part, inputs[0], part));
        if (sum != NULL)
            CTRT_TRY(ctrt_add(&sum, sum, part));
        else
            ctrt_tensor_assign(&sum, part);
    }
    ctrt_tensor_assign(y, sum);
    return CTRT_OK;
}

static const ctrt_module_class partial_class = {
    .size = sizeof(ctrt_module_class), .kind = "Partial", .forward = partial_forward,
};

/* 8 rows of ones: each of the 6 elements of a gradient is 8/48, without the rows of one of four devices 6/48. */
static void test_partial(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(tensor) all = ramp(CTRT_SHAPE(FEATURES), 1, devices[0]), some = ramp(CTRT_SHAPE(FEATURES), 2, devices[0]),
                      half = NULL, x = NULL, loss = NULL;
    CHECK_OK(ctrt_to_dtype(&half, all, CTRT_BF16));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(8, FEATURES), CTRT_F32, cpu));
    CHECK_OK(ctrt_module_new(&module, &partial_class));
    CHECK_OK(ctrt_module_add_parameter(module, "all", all));
    CHECK_OK(ctrt_module_add_parameter(module, "some", some));
    CHECK_OK(ctrt_module_add_parameter(module, "half", half));
    net = parallel(module, "data-parallel", devices, MOST);
    for (without = -1; without < MOST; without++) {
        CHECK_OK(ctrt_module_zero_grad(net, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_loss, NULL));
        CHECK_NEAR(total(ctrt_tensor_grad(all)), 1, 1e-5);
        CHECK_NEAR(total(ctrt_tensor_grad(some)), without < 0 ? 1 : 0.75, 1e-5);
        CHECK_NEAR(total(ctrt_tensor_grad(half)), 1, 0.01);
        CHECK_EQ(ctrt_tensor_dtype(ctrt_tensor_grad(half)), CTRT_BF16);
    }
}

static const struct strategy_test tests[] = {
    { "the module that stands in has the parameters and names of the original", test_names,
      { SIMS, "CTRT_DEVICE=sim", "CTRT_STRATEGY=data-parallel" } },
    { "data-parallel gives what single gives", test_training, { SIMS } },
    { "the same with streams that the program orders itself, and a bucket for each parameter", test_training,
      { SIMS, "CTRT_STREAM_ORDER=manual", "CTRT_DATA_PARALLEL_BUCKET=64" } },
    { "a parameter that one replica does not use, and parameters of two dtypes", test_partial, { SIMS } },
    { "the same with a bucket for each parameter", test_partial, { SIMS, "CTRT_DATA_PARALLEL_BUCKET=4" } },
    { "gradients accumulate, also on the replicas with no_sync", test_accumulation, { SIMS } },
    { "parameters are frozen and thawed, and a module gets another layer", test_frozen, { SIMS } },
    { "two optimizers, one made from the original, and a second net", test_two_optimizers, { SIMS } },
    { "forward with the program's own loss, and an evaluation loop, which copies no parameters", test_forward,
      { SIMS } },
    { "changes of buffers in replica 0 persist, those in other replicas do not", test_buffers, { SIMS } },
    { "a replica that fails, and invalid inputs, change no gradient", test_failures, { FOUR } },
    { "replica 0 loses its device", test_lost, { FOUR, "LOST=0" } },
    { "replica 1 loses its device", test_lost, { FOUR, "LOST=1" } },
    { "replica 2 loses its device", test_lost, { FOUR, "LOST=2" } },
    { "loss functions that fail", test_bad_losses, { FOUR } },
    { "parts of the batch in proportion to weights", test_weights, { FOUR, "CTRT_DATA_PARALLEL_WEIGHTS=2,1,1" } },
    { "sum trees add in the same order whatever device has which leaves", test_sum_trees, { FOUR } },
    { "canonical mode: the same bits on 1 to 4 devices", test_canonical, { FOUR, "CTRT_CANONICAL=1" } },
};

TEST_MAIN
{
    test_tables();
    run_strategy_tests(tests, COUNT(tests));
    return done();
}
