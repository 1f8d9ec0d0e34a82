/* SPDX-License-Identifier: Apache-2.0 */
/* Automatic mixed precision (ctrt/amp.h): dtypes of results against PyTorch's (tests/reference/autocast.txt), regions,
 * converted parameters, backward passes, functions of the program, threads and dry runs. Captured steps are in
 * tests/integration/test-capture.c. */
#include "../options.h"
#include "comm_job.h"
#include "ctrt/strategy_plugin.h"
#include "reference/ref.h"

#define FUNCTION(name, ...) static ctrt_status name(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *w) { __VA_ARGS__ }
#define UNARY(op)  FUNCTION(do_##op, (void)w; return ctrt_##op(out, x);)
#define BINARY(op) FUNCTION(do_##op, return ctrt_##op(out, x, w);)
#define UNARY_OF(op, number) FUNCTION(do_##op, (void)w; return ctrt_##op(out, x, number);)
#define REDUCE(op) FUNCTION(do_##op, (void)w; return ctrt_##op(out, x, CTRT_ALL_DIMS, false);)

/* The elementwise ops of ctrt/ops.def; others have a row in `ops`. */
#define UNARY_ROW(op)  { #op, do_##op },
#define BINARY_ROW(op) { #op, do_##op },
#define OWN(op)
#define OWN_ROW(op)
#define GRAPH(op)
#define GRAPH_ROW(op)
#define CTRT_OP(name, form, ...) form(name)
#include "ctrt/ops.def"
#undef CTRT_OP
BINARY(matmul) UNARY_OF(tril, 0) UNARY_OF(triu, 0)
REDUCE(sum_dims) REDUCE(mean_dims) REDUCE(prod_dims) REDUCE(amax) REDUCE(amin) REDUCE(any) REDUCE(all) REDUCE(argmax)
REDUCE(argmin)
FUNCTION(do_clamp, (void)w; return ctrt_clamp(out, x, ctrt_int(0), ctrt_int(1));)
FUNCTION(do_rsub_scalar, (void)w; return ctrt_rsub_scalar(out, x, ctrt_int(1));)
FUNCTION(do_var, (void)w; return ctrt_var(out, x, CTRT_ALL_DIMS, 1, false);)
FUNCTION(do_gelu, (void)w; return ctrt_gelu(out, x, false);)
FUNCTION(do_pow_scalar, (void)w; return ctrt_pow_scalar(out, x, ctrt_int(2));)
FUNCTION(do_rpow_scalar, (void)w; return ctrt_rpow_scalar(out, x, ctrt_int(2));)
FUNCTION(do_rdiv_scalar, (void)w; return ctrt_rdiv_scalar(out, x, ctrt_int(1));)
FUNCTION(do_softmax, (void)w; return ctrt_softmax(out, x, 0);)
FUNCTION(do_log_softmax, (void)w; return ctrt_log_softmax(out, x, 0);)
FUNCTION(do_mse_loss, return ctrt_mse_loss(out, x, w, CTRT_REDUCE_MEAN);)
FUNCTION(do_dropout, (void)w; return ctrt_dropout(out, x, 0.5, true);)
FUNCTION(do_cat, return ctrt_cat(out, (ctrt_tensor *const[]){ x, w }, 2, 0);)
FUNCTION(do_stack, return ctrt_stack(out, (ctrt_tensor *const[]){ x, w }, 2, 0);)
FUNCTION(do_where,
   CTRT_AUTO(tensor) large = NULL;
   CTRT_TRY(ctrt_gt_scalar(&large, x, ctrt_int(1)));
   return ctrt_where(out, large, x, w);)
#define BIASED(op, call)                                                                                            \
    FUNCTION(do_##op,                                                                                               \
       CTRT_AUTO(tensor) bias = NULL;                                                                               \
       CTRT_TRY(ctrt_select(&bias, w, 0, 0));                                                                       \
       return call;)
BIASED(linear, ctrt_linear(out, x, w, bias))
BIASED(layer_norm, ctrt_layer_norm(out, x, CTRT_SHAPE(4), bias, bias, 1e-5))
BIASED(batch_norm, ctrt_batch_norm(out, x, NULL, NULL, bias, bias, false, 0.1, 1e-5))
FUNCTION(do_cross_entropy,
   CTRT_AUTO(tensor) labels = NULL;
   CTRT_TRY(ctrt_arange(&labels, ctrt_int(0), ctrt_int(4), ctrt_int(1), CTRT_I64, ctrt_tensor_device(x)));
   (void)w;
   return ctrt_cross_entropy(out, x, labels, NULL);)
#define INDEX(op, ...)                                                                                              \
    FUNCTION(do_##op,                                                                                               \
       CTRT_AUTO(tensor) index = NULL;                                                                              \
       CTRT_TRY(ctrt_arange(&index, ctrt_int(0), ctrt_int(2), ctrt_int(1), CTRT_I64, ctrt_tensor_device(x)));       \
       (void)w;                                                                                                     \
       __VA_ARGS__)
INDEX(embedding, return ctrt_embedding(out, x, index, -1);)
INDEX(index_select, return ctrt_index_select(out, x, 0, index);)
INDEX(gather, CTRT_TRY(ctrt_unsqueeze(&index, index, 0)); return ctrt_gather(out, x, 0, index);)

#define PLANES(op, call)                                                                                            \
    FUNCTION(do_##op,                                                                                               \
       CTRT_AUTO(tensor) a = NULL, b = NULL;                                                                        \
       CTRT_TRY(ctrt_reshape(&a, x, CTRT_SHAPE(1, 1, 4, 4)));                                                       \
       CTRT_TRY(ctrt_reshape(&b, w, CTRT_SHAPE(1, 1, 4, 4)));                                                       \
       return call;)
PLANES(conv2d, ctrt_conv2d(out, a, b, NULL, NULL))
PLANES(attention, ctrt_scaled_dot_product_attention(out, a, b, b, NULL, NULL))
PLANES(max_pool2d, ctrt_max_pool2d(out, NULL, a, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })))

static const struct {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *w);
} ops[] = {
#define ROW(op) { #op, do_##op }
#define CTRT_OP(name, form, ...) form##_ROW(name)
#include "ctrt/ops.def"
#undef CTRT_OP
    ROW(pow_scalar), ROW(rpow_scalar), ROW(rdiv_scalar), ROW(rsub_scalar), ROW(gelu), ROW(clamp), ROW(where), ROW(cat),
    ROW(stack), ROW(var), ROW(amax), ROW(amin), ROW(any), ROW(all), ROW(argmax), ROW(argmin), ROW(softmax),
    ROW(log_softmax), ROW(cross_entropy), ROW(mse_loss), ROW(layer_norm), ROW(batch_norm), ROW(matmul), ROW(linear),
    ROW(conv2d), ROW(attention), ROW(max_pool2d), ROW(embedding), ROW(index_select), ROW(gather), ROW(tril), ROW(triu),
    ROW(dropout), { "sum", do_sum_dims }, { "mean", do_mean_dims }, { "prod", do_prod_dims },
};

static ctrt_dtype dtype_named(const char *name)
{
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    const char *known;
    for (size_t i = 0; ctrt_dtype_get(&known, &dtype, i) == CTRT_OK; i++)
        if (strcmp(known, name) == 0)
            return dtype;
    FAIL("no dtype %s", name);
}

static ctrt_device *device_named(const char *name)
{
    ctrt_device *device = NULL;
    REQUIRE(ctrt_device_get(&device, name) == CTRT_OK, "%s: %s", name, ctrt_error_message());
    return device;
}

/* A tensor [4, 4] of values between 0.5 and 2.5. */
static ctrt_tensor *values(ctrt_dtype dtype, ctrt_device *device, bool grad)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_rand(&x, CTRT_SHAPE(4, 4), CTRT_F32, device));
    CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_int(2)));
    CHECK_OK(ctrt_add_scalar(&x, x, ctrt_float(0.5)));
    CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    if (grad)
        CHECK_OK(ctrt_tensor_require_grad(x, true));
    return x;
}

static void check_equal(ctrt_tensor *a, ctrt_tensor *b, const char *what)
{
    float x[16] = { 0 }, y[16] = { 1 };
    REQUIRE(a != NULL && b != NULL && ctrt_tensor_numel(a) <= 16, "%s: no tensor", what);
    const size_t bytes = (size_t)ctrt_tensor_numel(a) * sizeof *x;
    CHECK_EQ(ctrt_tensor_dtype(a), ctrt_tensor_dtype(b));
    CHECK_OK(ctrt_to_host(x, bytes, a, CTRT_F32));
    CHECK_OK(ctrt_to_host(y, bytes, b, CTRT_F32));
    CHECK(memcmp(x, y, bytes) == 0, "%s: %g, expected %g", what, x[0], y[0]);
}

/* Returns the dtype of a matrix product of f32 tensors on the device. */
static ctrt_dtype product_dtype(const char *device)
{
    CTRT_AUTO(tensor) x = values(CTRT_F32, device_named(device), false), y = NULL;
    CHECK_OK(ctrt_matmul(&y, x, x));
    return ctrt_tensor_dtype(y);
}

/* ---- threads and strategies ---- */

static ctrt_status thread_product(void *user, int i)
{
    ((ctrt_dtype *)user)[i] = product_dtype(i == 0 ? "sim:0" : "sim:1");
    return CTRT_OK;
}

static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    (void)count, (void)user;
    CHECK_EQ(ctrt_tensor_dtype(output), CTRT_F16);
    return ctrt_cross_entropy(loss, output, inputs[1], NULL);
}

/* Two steps in one region; returns the second loss. `comm`: of strategies with ranks, otherwise NULL. The caller seeds
 * the generators, because ranks are threads and all threads have the same generators. */
static double second_loss(const char *strategy, ctrt_comm *comm, ctrt_device *device)
{
    CTRT_AUTO(module) net = NULL, module = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, labels = NULL, loss = NULL;
    const int64_t rows = comm == NULL ? 4 : 4 / ctrt_comm_size(comm);
    const int64_t first = comm == NULL ? 0 : rows * ctrt_comm_rank(comm);
    double value = -1;
    float data[16];
    for (int i = 0; i < 16; i++)
        data[i] = (float)(i * 7 % 16) / 8 - 1;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, 4, 8, true, device), CTRT_NEW(tanh),
                                                       CTRT_NEW(linear, 8, 4, true, device))));
    CHECK_OK(ctrt_from_data(&x, data, 16, CTRT_SHAPE(4, 4), CTRT_F32, device));
    CHECK_OK(ctrt_narrow(&x, x, 0, first, rows));
    CHECK_OK(ctrt_arange(&labels, ctrt_int(first), ctrt_int(first + rows), ctrt_int(1), CTRT_I64, device));
    if (comm != NULL)
        CHECK_OK(ctrt_parallel_new_comm(&net, module, strategy, comm));
    else
        CHECK_OK(ctrt_parallel_new(&net, module, strategy, (ctrt_device *[]){ device, device_named("sim:1") }, 2));
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.5)));
    CHECK_OK(ctrt_autocast_push("sim", NULL));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, labels }, 2, loss_function, NULL));
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    CHECK_OK(ctrt_autocast_pop());
    CHECK_EQ(ctrt_tensor_dtype(loss), CTRT_F32);
    CHECK_OK(ctrt_item(&value, loss));
    return value;
}

/* Fails in a region that it has begun. */
static ctrt_status region_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                   void *user)
{
    (void)loss, (void)output, (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_autocast_push("sim", NULL));
    return CTRT_ERR_STATE;
}

/* On the second device, sets *user to the number of regions of the thread. */
static ctrt_status count_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                  void *user)
{
    (void)count;
    if (ctrt_tensor_device(output) == device_named("sim:1"))
        while (ctrt_autocast_pop() == CTRT_OK)
            ++*(int *)user;
    return ctrt_cross_entropy(loss, output, inputs[1], NULL);
}

static void check_thread_regions(ctrt_device *const *devices)
{
    CTRT_AUTO(module) net = NULL, layer = CTRT_NEW(linear, 4, 4, true, devices[0]);
    CTRT_AUTO(tensor) x = values(CTRT_F32, devices[0], false), labels = NULL, loss = NULL;
    int regions = 0;
    CHECK_OK(ctrt_arange(&labels, ctrt_int(0), ctrt_int(4), ctrt_int(1), CTRT_I64, devices[0]));
    CHECK_OK(ctrt_parallel_new(&net, layer, "data-parallel", devices, 2));
    CHECK_EQ(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, labels }, 2, region_function, NULL), CTRT_ERR_STATE);
    CHECK_OK(ctrt_autocast_pop());                                  /* that of the calling thread */
    CHECK_OK(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, labels }, 2, count_function, &regions));
    CHECK_EQ(regions, 1);
}

static double single_loss;

static void rank_steps(struct rank *rank)
{
    CHECK_NEAR(second_loss(rank->argument, rank->comm, rank->device), single_loss, 2e-3);
}

/* Runs first, because ranks need a process that has not used the library. */
TEST(threads, "threads of ctrt_parallel_apply and steps of all strategies have the caller's settings")
{
    IN_CHILD("CTRT_SIM=devices=4") {
        ctrt_device *const devices[2] = { device_named("sim:0"), device_named("sim:1") };
        ctrt_dtype found[2] = { CTRT_DTYPE_DEFAULT, CTRT_DTYPE_DEFAULT };
        CHECK_OK(ctrt_autocast_push("sim", &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_BF16)));
        CHECK_OK(ctrt_parallel_apply(thread_product, found, devices, 2));
        CHECK_OK(ctrt_autocast_pop());
        CHECK_EQ(found[0], CTRT_BF16);
        CHECK_EQ(found[1], CTRT_BF16);
        check_thread_regions(devices);
        static const char *const strategies[] = { "single", "data-parallel", "pipeline", "distributed", "sharded" };
        for (size_t s = 0; s < COUNT(strategies); s++) {
            ctrt_manual_seed(3);
            if (s == 0)
                single_loss = second_loss(strategies[s], NULL, devices[0]);
            else if (s < 3)
                CHECK_NEAR(second_loss(strategies[s], NULL, devices[0]), single_loss, 2e-3);
            else
                run_quiet(ON_SIM, 2, 20, rank_steps, strategies[s], -1);
        }
    }
}

/* ---- dtypes ---- */

TEST(dtypes, "dtypes of results, gradients in the parameters' dtypes")
{
    char *bytes = ref_read_bytes("autocast.txt"), *rest = bytes;
    size_t rows = 0, seen = 0;
    bool found[sizeof ops / sizeof *ops] = { false };
    REQUIRE_TRUE(bytes != NULL);
    for (char *line; (line = strsep(&rest, "\n")) != NULL; ) {
        char op[32], place[8], dtype[8], result[8];
        if (line[0] == '#' || sscanf(line, "%31s %7s %7s %7s", op, place, dtype, result) != 4)
            continue;
        rows++;
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
            if (strcmp(ops[i].name, op) != 0)
                continue;
            seen++, found[i] = true;
            ctrt_device *device = device_named(strcmp(place, "cpu") == 0 ? "cpu" : "sim:0");
            const ctrt_dtype given = dtype_named(dtype);
            CTRT_AUTO(tensor) x = values(given, device, true), y = NULL;
            CTRT_AUTO(tensor) w = values(given == CTRT_F64 ? CTRT_F64 : CTRT_F32, device, true);
            CHECK_OK(ctrt_autocast_push(ctrt_device_type(device), NULL));
            CHECK_OK(ops[i].run(&y, x, w));
            CHECK_OK(ctrt_autocast_pop());
            if (y == NULL)
                continue;
            CHECK(ctrt_tensor_dtype(y) == dtype_named(result), "%s: %s", line, ctrt_dtype_name(ctrt_tensor_dtype(y)));
            if (!ctrt_tensor_requires_grad(y))
                continue;
            CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_backward(y));
            CHECK_EQ(ctrt_tensor_dtype(ctrt_tensor_grad(x)), given);
        }
    }
    CHECK_EQ(seen, rows);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        CHECK(found[i], "no reference for %s", ops[i].name);
    /* Every op with a policy is compared. */
    static const struct { const char *name; enum { SAME, LOWER, F32, F32GPU } policy; } policies[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, ...) { #name, autocast },
#include "ctrt/ops.def"
#undef CTRT_OP
    };
    EACH(p, policies) {
        bool compared = p->policy == SAME;
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            compared |= strcmp(ops[i].name, p->name) == 0;
        CHECK(compared, "%s has a policy and is not compared", p->name);
    }
    free(bytes);
}

TEST(regions, "regions nest, per type of device and thread")
{
    CHECK_TRUE(!ctrt_autocast_enabled("cpu"));
    CHECK_EQ(ctrt_autocast_dtype("cpu"), CTRT_BF16);
    CHECK_EQ(ctrt_autocast_dtype("sim"), CTRT_F16);
    CHECK_OK(ctrt_autocast_push("sim", NULL));
    CHECK_EQ(product_dtype("sim:0"), CTRT_F16);
    CHECK_EQ(product_dtype("cpu"), CTRT_F32);
    CHECK_OK(ctrt_autocast_push("cpu", &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_F16)));
    CHECK_EQ(product_dtype("sim:0"), CTRT_F16);
    CHECK_EQ(product_dtype("cpu"), CTRT_F16);
    CHECK_OK(ctrt_autocast_push("sim", &CTRT_WITH(ctrt_autocast_options, .disabled = true)));
    CHECK_EQ(product_dtype("sim:0"), CTRT_F32);
    CHECK_EQ(product_dtype("cpu"), CTRT_F16);
    CHECK_OK(ctrt_autocast_push("sim", &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_BF16)));
    CHECK_EQ(product_dtype("sim:0"), CTRT_BF16);
    CHECK_EQ(ctrt_autocast_dtype("sim"), CTRT_BF16);
    CHECK_OK(ctrt_autocast_push_state(NULL));
    CHECK_EQ(product_dtype("sim:0"), CTRT_F32);
    CHECK_TRUE(!ctrt_autocast_enabled("cpu"));
    for (int i = 0; i < 5; i++)
        CHECK_OK(ctrt_autocast_pop());
    CHECK_EQ(product_dtype("sim:0"), CTRT_F32);
    CHECK_OK(ctrt_autocast_push(NULL, NULL));                       /* the default device is the cpu */
    CHECK_TRUE(ctrt_autocast_enabled("cpu") && ctrt_autocast_enabled(NULL));
    CHECK_OK(ctrt_autocast_pop());
}

/* Runs linear with the parameter and returns how many graph nodes it added. */
static int64_t nodes_of_linear(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight)
{
    const uint64_t before = ctrt_autograd_live_nodes();
    CHECK_OK(ctrt_linear(out, x, weight, NULL));
    return (int64_t)(ctrt_autograd_live_nodes() - before);
}

TEST(cache, "a parameter is converted once, and again when it has changed")
{
    ctrt_device *cpu = device_named("cpu");
    CTRT_AUTO(tensor) x = values(CTRT_F32, cpu, false), weight = values(CTRT_F32, cpu, true);
    ctrt_tensor *y[9] = { NULL };
    CHECK_OK(ctrt_autocast_push("cpu", NULL));
    CHECK_EQ(nodes_of_linear(&y[0], x, weight), 2);                 /* the conversion and the product */
    CHECK_EQ(nodes_of_linear(&y[1], x, weight), 1);
    check_equal(y[1], y[0], "again");
    CHECK_OK(ctrt_autocast_push("cpu", &CTRT_WITH(ctrt_autocast_options, .no_cache = true)));
    CHECK_EQ(nodes_of_linear(&y[2], x, weight), 2);
    CHECK_OK(ctrt_autocast_pop());
    CHECK_EQ(nodes_of_linear(&y[3], x, weight), 1);                 /* an inner region does not clear */
    ctrt_no_grad CHECK_OK(ctrt_mul_scalar_(weight, ctrt_int(2)));
    CHECK_EQ(nodes_of_linear(&y[4], x, weight), 2);
    CHECK_OK(ctrt_mul_scalar(&y[5], y[0], ctrt_int(2)));
    check_equal(y[4], y[5], "after a change");
    ctrt_autocast_clear_cache();
    ctrt_tensor_release(&y[5]);
    CHECK_EQ(nodes_of_linear(&y[5], x, weight), 2);
    ctrt_autocast_clear_cache();
    ctrt_no_grad CHECK_OK(ctrt_linear(&y[6], x, weight, NULL));     /* keeps a copy without history */
    CHECK_EQ(nodes_of_linear(&y[7], x, weight), 2);
    CHECK_OK(ctrt_scope_begin());
    ctrt_autocast_clear_cache();
    CHECK_EQ(nodes_of_linear(&y[8], x, weight), 2);
    ctrt_tensor_release(&y[8]);
    CHECK_OK(ctrt_scope_end());
    CHECK_OK(ctrt_linear(&y[8], x, weight, NULL));                  /* the copy has outlived the scope */
    check_equal(y[8], y[7], "after the scope");
    CHECK_OK(ctrt_autocast_pop());
    for (int i = 0; i < 9; i++)
        ctrt_tensor_release(&y[i]);
    CHECK_EQ(ctrt_autograd_live_nodes(), 0);
}

TEST(replaced, "a parameter with another storage is converted again")
{
    ctrt_device *cpu = device_named("cpu");
    CTRT_AUTO(tensor) x = values(CTRT_F32, cpu, false), weight = values(CTRT_F32, cpu, true), y = NULL, wanted = NULL;
    CHECK_OK(ctrt_autocast_push("cpu", NULL));
    CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    const void *address = ctrt_tensor_data(weight);
    for (int i = 0; i < 20 && (i == 0 || ctrt_tensor_data(weight) != address); i++) {
        CTRT_AUTO(tensor) other = values(CTRT_F32, cpu, false);
        CHECK_OK(ctrt_tensor_set_data(weight, other));
    }
    CHECK(ctrt_tensor_data(weight) == address, "no storage with the address of the first one");
    CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    ctrt_autocast_clear_cache();
    CHECK_OK(ctrt_linear(&wanted, x, weight, NULL));
    check_equal(y, wanted, "another storage");
    CHECK_OK(ctrt_autocast_pop());
}

static void count_free(void *user, void *data)
{
    (void)data;
    ++*(int *)user;
}

TEST(empty, "a parameter without elements is released")
{
    ctrt_device *cpu = device_named("cpu");
    CTRT_AUTO(tensor) x = values(CTRT_F32, cpu, false), weight = NULL, y = NULL;
    int freed = 0;
    CHECK_OK(ctrt_from_blob(&weight, NULL, CTRT_SHAPE(0, 4), CTRT_SHAPE(4, 1), CTRT_F32, count_free, &freed));
    CHECK_OK(ctrt_tensor_require_grad(weight, true));
    CHECK_OK(ctrt_autocast_push("cpu", NULL));
    for (int i = 0; i < 2; i++)
        CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    CHECK_OK(ctrt_autocast_pop());
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&weight);
    CHECK_EQ(freed, 1);
}

static void clear_cache(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)device, (void)bytes, (void)report;
    ++*(int *)user;
    ctrt_autocast_clear_cache();
}

TEST(memory, "a callback for memory that runs out clears the cache")
{
    ctrt_device *sim = device_named("sim:0");
    CTRT_AUTO(tensor) x = values(CTRT_F32, sim, false), weight = values(CTRT_F32, sim, true), large = NULL, y = NULL;
    const uint64_t limit = ctrt_memory_limit(sim);
    int calls = 0;
    CHECK_OK(ctrt_zeros(&large, CTRT_SHAPE(4096, 2048), CTRT_F32, sim));
    CHECK_OK(ctrt_tensor_require_grad(large, true));
    ctrt_memory_set_oom_callback(clear_cache, &calls);
    CHECK_OK(ctrt_autocast_push("sim", NULL));
    CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    CHECK_OK(ctrt_memory_set_limit(sim, ctrt_memory_reserved(sim)));
    CHECK_EQ(ctrt_matmul(&y, large, large), CTRT_ERR_OUT_OF_MEMORY);
    ctrt_memory_set_oom_callback(NULL, NULL);
    CHECK_EQ(calls, 1);
    CHECK_OK(ctrt_memory_set_limit(sim, limit));
    ctrt_tensor_release(&y);
    CHECK_EQ(nodes_of_linear(&y, x, weight), 2);                    /* converts again */
    CHECK_OK(ctrt_autocast_pop());
}

/* loss = cross_entropy(exp(x W) W, labels); returns the gradient of W. */
static void pass(ctrt_tensor **grad, ctrt_tensor *x, ctrt_tensor *weight, bool by_hand, bool inside)
{
    CTRT_AUTO(tensor) labels = NULL, low_x = NULL, low = NULL, h = NULL;
    CHECK_OK(ctrt_arange(&labels, ctrt_int(0), ctrt_int(4), ctrt_int(1), CTRT_I64, ctrt_tensor_device(x)));
    CHECK_OK(ctrt_tensor_set_grad(weight, NULL));
    if (by_hand) {
        CHECK_OK(ctrt_to_dtype(&low_x, x, CTRT_F16));
        CHECK_OK(ctrt_to_dtype(&low, weight, CTRT_F16));
        CHECK_OK(ctrt_matmul(&h, low_x, low));
        CHECK_OK(ctrt_to_dtype(&h, h, CTRT_F32));
        CHECK_OK(ctrt_exp(&h, h));
        CHECK_OK(ctrt_to_dtype(&h, h, CTRT_F16));
        CHECK_OK(ctrt_matmul(&h, h, low));
        CHECK_OK(ctrt_to_dtype(&h, h, CTRT_F32));
        CHECK_OK(ctrt_cross_entropy(&h, h, labels, NULL));
    } else {
        CHECK_OK(ctrt_autocast_push("sim", NULL));
        CHECK_OK(ctrt_matmul(&h, x, weight));
        CHECK_OK(ctrt_exp(&h, h));
        CHECK_OK(ctrt_matmul(&h, h, weight));
        CHECK_OK(ctrt_cross_entropy(&h, h, labels, NULL));
        if (!inside)
            CHECK_OK(ctrt_autocast_pop());
    }
    CHECK_OK(ctrt_backward(h));
    if (inside)
        CHECK_OK(ctrt_autocast_pop());
    ctrt_tensor_assign(grad, ctrt_tensor_grad(weight));
}

TEST(backward, "gradients, with the backward pass outside and inside of the region")
{
    ctrt_device *sim = device_named("sim:0");
    CTRT_AUTO(tensor) x = values(CTRT_F32, sim, false), weight = values(CTRT_F32, sim, true);
    CTRT_AUTO(tensor) wanted = NULL, outside = NULL, inside = NULL;
    pass(&wanted, x, weight, true, false);
    pass(&outside, x, weight, false, false);
    pass(&inside, x, weight, false, true);
    check_equal(outside, wanted, "outside");
    check_equal(inside, wanted, "inside");
}

/* ---- functions of the program ---- */

static ctrt_dtype forward_dtype, backward_dtype;        /* of a product in the function; of its input */
static ctrt_dtype input_dtype;

static ctrt_status product_forward(ctrt_function_context *context, ctrt_tensor **out, int n_out,
                                   ctrt_tensor *const *in, int n_in)
{
    (void)n_out, (void)n_in;
    input_dtype = ctrt_tensor_dtype(in[0]);
    forward_dtype = product_dtype("cpu");
    CTRT_TRY(ctrt_function_save(context, in[0]));
    return ctrt_square(out, in[0]);
}

static ctrt_status product_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                    ctrt_tensor *const *grad_out, int n_out)
{
    ctrt_tensor *x = NULL;
    (void)n_out, (void)n_in;
    backward_dtype = product_dtype("cpu");
    CTRT_TRY(ctrt_function_saved(&x, context, 0));
    CTRT_TRY(ctrt_mul(grad_in, grad_out[0], x));
    return ctrt_mul_scalar(grad_in, *grad_in, ctrt_int(2));
}

TEST(functions, "functions of the program, with and without a dtype of their own")
{
    static const struct {
        ctrt_dtype wanted, given;                       /* of the function; of the input */
        ctrt_dtype input, forward, backward;            /* expected */
    } cases[] = {
        { CTRT_DTYPE_DEFAULT, CTRT_F32, CTRT_F32, CTRT_BF16, CTRT_BF16 },
        { CTRT_F32, CTRT_BF16, CTRT_F32, CTRT_F32, CTRT_F32 },
        { CTRT_F16, CTRT_F32, CTRT_F16, CTRT_F32, CTRT_F32 },
        { CTRT_F32, CTRT_F64, CTRT_F64, CTRT_F32, CTRT_F32 },
    };
    EACH(c, cases) {
        const ctrt_function function = { .size = sizeof function, .name = "product", .forward = product_forward,
                                         .backward = product_backward, .autocast_dtype = c->wanted };
        CTRT_AUTO(tensor) x = values(c->given, device_named("cpu"), true), y = NULL;
        CHECK_OK(ctrt_autocast_push("cpu", NULL));
        CHECK_OK(ctrt_function_apply(&function, NULL, &y, 1, &x, 1));
        CHECK_OK(ctrt_autocast_pop());
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        CHECK_EQ(input_dtype, c->input);
        CHECK_EQ(forward_dtype, c->forward);
        CHECK_EQ(backward_dtype, c->backward);
        CHECK_EQ(ctrt_tensor_dtype(ctrt_tensor_grad(x)), c->given);
    }
}

static ctrt_status region_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                   ctrt_tensor *const *grad_out, int n_out)
{
    (void)context, (void)grad_in, (void)n_in, (void)grad_out, (void)n_out;
    CTRT_TRY(ctrt_autocast_push("cpu", NULL));
    return CTRT_ERR_STATE;
}

TEST(function_errors, "a function that fails in a region of its own; a dtype that is not floating")
{
    ctrt_function function = { .size = sizeof function, .name = "product", .forward = product_forward,
                               .backward = region_backward };
    CTRT_AUTO(tensor) x = values(CTRT_F32, device_named("cpu"), true), y = NULL;
    CHECK_OK(ctrt_autocast_push("cpu", &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_F16)));
    CHECK_OK(ctrt_function_apply(&function, NULL, &y, 1, &x, 1));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_EQ(ctrt_backward(y), CTRT_ERR_STATE);
    CHECK_EQ(product_dtype("cpu"), CTRT_F16);
    CHECK_OK(ctrt_autocast_pop());
    CHECK_EQ(ctrt_autocast_pop(), CTRT_ERR_STATE);
    ctrt_tensor_release(&y);
    function.autocast_dtype = CTRT_I64;
    CHECK_EQ(ctrt_function_apply(&function, NULL, &y, 1, &x, 1), CTRT_ERR_DTYPE);
}

TEST(dry_run, "a dry run keeps no copy")
{
    ctrt_device *sim = device_named("sim:0");
    CTRT_AUTO(tensor) x = values(CTRT_F32, sim, false), weight = values(CTRT_F32, sim, true), y = NULL, wanted = NULL;
    CHECK_OK(ctrt_autocast_push("sim", NULL));
    ctrt_dry_run *run = NULL;
    CHECK_OK(ctrt_dry_run_begin(&run, sim));
    CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    ctrt_tensor_release(&y);
    CHECK_OK(ctrt_dry_run_end(NULL, &run));
    CHECK_OK(ctrt_linear(&y, x, weight, NULL));
    CHECK_OK(ctrt_autocast_pop());
    CHECK_OK(ctrt_to_dtype(&x, x, CTRT_F16));
    ctrt_no_grad CHECK_OK(ctrt_to_dtype(&wanted, weight, CTRT_F16));
    CHECK_OK(ctrt_linear(&wanted, x, wanted, NULL));
    check_equal(y, wanted, "after the dry run");
}

TEST_MAIN
{
    setenv("CTRT_SIM", "devices=2", 1);
    return run_tests();
}
