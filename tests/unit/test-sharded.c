/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the strategy `sharded`, with threads and with processes as ranks, with `single` on the whole batch, for all
 * stages and several meshes. test-sharded-costs.c tests memory and bytes. */
#include "../options.h"
#include "sharded_check.h"

enum { MOST_STEPS = 8 };

/* ---- training ---- */

static const struct plan {
    const char *name;
    int steps, rows[MOST_STEPS][MOST_RANKS];
} plans[] = {
    { "equal rows", 3, { { 3, 3, 3, 3 }, { 2, 2, 2, 2 }, { 1, 1, 1, 1 } } },
    { "different rows, ranks without rows", 4, { { 1, 4, 2, 5 }, { 5, 0, 1, 0 }, { 0, 3, 1, 2 }, { 2, 2, 2, 2 } } },
};

/* Optimizers from the net and from the module; the norm of the gradients is that of all ranks. */
static void train_plan(struct rank *rank, net_function make, const struct plan *plan, bool adam, bool from_module)
{
    struct pair p = pair_new(make, "sharded", rank);
    CTRT_AUTO(optimizer) a = NULL, b = NULL;
    CHECK_OK(optimizer_new(&a, from_module ? p.module : p.net, adam));
    CHECK_OK(optimizer_new(&b, p.one, adam));
    for (int i = 0; i < plan->steps; i++) {
        const int from = rows_before(plan->rows[i], rank->number), all = rows_before(plan->rows[i], rank->size);
        double norm = 0, other = 0;
        CHECK_OK(ctrt_optimizer_zero_grad(a, true));
        CHECK_OK(ctrt_optimizer_zero_grad(b, true));
        const double loss = step_rows(p.net, rank, i, from, plan->rows[i][rank->number]);
        if (all == 0)
            continue;
        CHECK_NEAR(loss, step_rows(p.one, rank, i, 0, all), 1e-5);
        same_shards(&p, rank, true);
        CHECK_OK(ctrt_clip_grad_norm_(i % 2 ? &norm : NULL, i == 0 ? p.module : p.net, 0.05));
        CHECK_OK(ctrt_clip_grad_norm_(i % 2 ? &other : NULL, p.one, 0.05));
        CHECK_NEAR(norm, other, 1e-5);
        CHECK_OK(ctrt_optimizer_step(a));
        CHECK_OK(ctrt_optimizer_step(b));
        for (size_t s = 0; adam && s < ctrt_module_parameter_count(p.net); s++) {
            ctrt_tensor *state = NULL;
            if (ctrt_optimizer_state(&state, a, s, "exp_avg") == CTRT_OK)
                CHECK_EQ(ctrt_tensor_numel(state), ctrt_tensor_numel(parameter(p.net, s)));
        }
    }
    same_shards(&p, rank, false);
    same_everywhere(p.net, rank);
    ctrt_optimizer_release(&a);
    ctrt_module_release(&p.net);                /* the module gets its whole parameters back */
    same_parameters(p.module, p.one, 1e-4);
    pair_free(&p);
}

static void train_ranks(struct rank *rank)
{
    for (size_t i = 0; i < COUNT(plans); i++) {
        train_plan(rank, mlp_new, &plans[i], false, false);
        train_plan(rank, mlp_new, &plans[i], true, true);
    }
    train_plan(rank, shared_new, &plans[0], true, false);       /* shared, frozen and unused parameters */
}

static void same_gradients(struct pair *p, struct rank *rank)
{
    same_shards(p, rank, true);
}

static void accumulate(struct rank *rank)
{
    accumulate_rows("sharded", rank, same_gradients);
}

/* Forward passes whose backward pass the program calls, in some cases after zero_grad. */
static void forward_alone(struct rank *rank)
{
    struct pair p = pair_new(mlp_new, "sharded", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, old = NULL, loss = NULL;
    const int rows = 2;
    for (int i = 0; i < 4; i++) {
        CTRT_AUTO(tensor) here = batch_of(rank->device, CTRT_F32, i, rows * rank->number, rows), want = NULL;
        CHECK_OK(ctrt_forward(&y, p.net, here));
        if (i == 2) {
            CHECK_OK(ctrt_module_zero_grad(p.net, true));
            CHECK_OK(ctrt_module_zero_grad(p.one, true));
        }
        CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
        CHECK_OK(ctrt_backward(loss));
        (void)step_rows(p.one, rank, i, 0, rows * rank->size);
        same_shards(&p, rank, true);
        ctrt_no_grad {
            CHECK_OK(ctrt_forward(&y, p.net, x));
            CHECK_OK(ctrt_forward(&want, p.one, x));
            NEAR(y, want, 1e-5);
        }
    }
    CHECK_FAILS(ctrt_forward(&y, p.module, x), CTRT_ERR_STATE, "run it by ctrt_forward or ctrt_parallel_step");
    CHECK_OK(ctrt_forward(&old, p.net, x));
    CHECK_OK(square_loss(&loss, old, NULL, 0, NULL));
    (void)step_rows(p.net, rank, 0, rows * rank->number, rows);
    CHECK_FAILS(ctrt_backward(loss), CTRT_ERR_STATE, "a step or a checkpoint of the net came after it");
    CHECK_OK(ctrt_forward(&old, p.net, x));
    CHECK_OK(square_loss(&loss, old, NULL, 0, NULL));
    pair_free(&p);
    CHECK_FAILS(ctrt_backward(loss), CTRT_ERR_STATE, "has been released");
}

/* ---- modules ---- */

/* y = x * a * b with a f32 and b f64, and an embedding-like parameter without dimensions. */
static ctrt_status mixed_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *a = NULL, *b = NULL, *scale = NULL;
    CTRT_AUTO(tensor) half = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&a, self, "a"));
    CTRT_TRY(ctrt_module_tensor(&b, self, "b"));
    CTRT_TRY(ctrt_module_tensor(&scale, self, "scale"));
    CTRT_TRY(ctrt_mul(y, inputs[0], a));
    CTRT_TRY(ctrt_to_dtype(&half, b, CTRT_F32));
    CTRT_TRY(ctrt_mul(y, *y, half));
    return ctrt_mul(y, *y, scale);
}

static const ctrt_module_class mixed_class = {
    .size = sizeof(ctrt_module_class), .kind = "Mixed", .forward = mixed_forward,
};

static ctrt_status mixed_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL, outer = NULL;
    CTRT_AUTO(tensor) a = ramp(CTRT_SHAPE(FEATURES), 0.2, device), b = ramp(CTRT_SHAPE(FEATURES), 0.1, device),
                      scale = NULL;
    CTRT_TRY(ctrt_to_dtype(&b, b, CTRT_F64));
    CTRT_TRY(ctrt_full(&scale, CTRT_SHAPE(1), ctrt_float(2), CTRT_F32, device));
    CTRT_TRY(ctrt_module_new(&self, &mixed_class));
    CTRT_TRY(ctrt_module_add_parameter(self, "a", a));
    CTRT_TRY(ctrt_module_add_parameter(self, "b", b));
    CTRT_TRY(ctrt_module_add_parameter(self, "scale", scale));
    CTRT_TRY(ctrt_sequential_new(&outer, CTRT_MODULES(ctrt_module_retain(self), CTRT_NEW(tanh))));
    *out = ctrt_module_retain(outer);
    return CTRT_OK;
}

/* A frozen layer in front of and behind one that trains, in one group and in groups of their own. */
static ctrt_status frozen_new(ctrt_module **out, ctrt_device *device)
{
    ctrt_module *child = NULL;
    ctrt_tensor *weight = NULL;
    CTRT_TRY(mlp_new(out, device));
    CTRT_TRY(ctrt_module_child(NULL, &child, *out, 3));
    CTRT_TRY(ctrt_module_parameter(NULL, &weight, child, 0));
    CTRT_TRY(ctrt_tensor_require_grad(weight, false));
    CTRT_TRY(ctrt_module_child(NULL, &child, *out, 0));
    CTRT_TRY(ctrt_module_parameter(NULL, &weight, child, 0));
    return ctrt_tensor_require_grad(weight, false);
}

static void modules(struct rank *rank)
{
    train_plan(rank, mixed_new, &plans[0], true, false);
    train_plan(rank, frozen_new, &plans[1], false, false);
    buffers_of_rank_0("sharded", rank, true);
}

static _Thread_local int again;                 /* the child that runs twice */

static ctrt_status again_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_module *child = NULL;
    ctrt_tensor_assign(y, inputs[0]);
    for (int i = 0; i < 2 * count + 1; i++) {
        CTRT_TRY(ctrt_module_child(NULL, &child, self, (size_t)(i < 2 ? i : again)));
        CTRT_TRY(ctrt_forward(y, child, *y));
    }
    return CTRT_OK;
}

static const ctrt_module_class again_class = {
    .size = sizeof(ctrt_module_class), .kind = "Again", .forward = again_forward,
};

/* Modules that run again, the same on all ranks, then another one on the last rank. Only stage 3 gathers them again. */
static void runs_again(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    CHECK_OK(ctrt_module_new(&module, &again_class));
    CHECK_OK(ctrt_module_add_module(module, "a", CTRT_NEW(linear, FEATURES, FEATURES, true, rank->device)));
    CHECK_OK(ctrt_module_add_module(module, "b", CTRT_NEW(linear, FEATURES, FEATURES, true, rank->device)));
    net = net_of_ranks(module, "sharded", rank);
    for (again = 0; again < 2; again++)
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    again = rank->number == rank->size - 1;
    if (strcmp(getenv("CTRT_SHARDED_STAGE"), "3") == 0 && rank->size > 1)
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE,
                    "a Linear ran several times in this step");
    else
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
}

/* ---- optimizers ---- */

/* Optimizers from before ctrt_parallel_new, with states of the whole parameters, and two that share a net. */
static void optimizers(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank), reference = NULL;
    CTRT_AUTO(optimizer) a = NULL, b = NULL, first = NULL, second = NULL;
    CTRT_AUTO(tensor) loss = NULL;
    parameters_of_rank_0(module, rank->comm);
    CHECK_OK(ctrt_module_copy(&reference, module, rank->device));
    CHECK_OK(optimizer_new(&a, module, true));
    CHECK_OK(optimizer_new(&b, reference, true));
    for (int k = 0; k < 2; k++) {
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 4);
        CHECK_OK(ctrt_forward(&x, k ? reference : module, x));
        CHECK_OK(square_loss(&loss, x, NULL, 0, NULL));
        CHECK_OK(ctrt_backward(loss));
        CHECK_OK(ctrt_optimizer_step(k ? b : a));
        CHECK_OK(ctrt_optimizer_zero_grad(k ? b : a, true));
    }
    struct pair p = { ctrt_module_retain(module), net_of_ranks(module, "sharded", rank), ctrt_module_retain(reference),
                      parallel(reference, "single", &rank->device, 1) };
    (void)step_rows(p.net, rank, 1, 2 * rank->number, 2);
    (void)step_rows(p.one, rank, 1, 0, 2 * rank->size);
    CHECK_OK(ctrt_optimizer_step(a));
    CHECK_OK(ctrt_optimizer_step(b));
    same_shards(&p, rank, false);

    CHECK_OK(ctrt_sgd_new(&first, NULL, SGD(.lr = 0.1)));
    CHECK_OK(ctrt_sgd_new(&second, NULL, SGD(.lr = 0.2, .momentum = 0.5)));
    CTRT_AUTO(optimizer) one = NULL, two = NULL;
    CHECK_OK(ctrt_sgd_new(&one, NULL, SGD(.lr = 0.1)));
    CHECK_OK(ctrt_sgd_new(&two, NULL, SGD(.lr = 0.2, .momentum = 0.5)));
    for (size_t i = 0; i < ctrt_module_parameter_count(p.net); i++) {
        ctrt_tensor *ours = parameter(p.net, i), *theirs = parameter(p.one, i);
        CHECK_OK(ctrt_optimizer_add(i % 2 ? first : second, &ours, 1));
        CHECK_OK(ctrt_optimizer_add(i % 2 ? one : two, &theirs, 1));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ctrt_module_zero_grad(p.net, true));
        CHECK_OK(ctrt_module_zero_grad(p.one, true));
        (void)step_rows(p.net, rank, i, 2 * rank->number, 2);
        (void)step_rows(p.one, rank, i, 0, 2 * rank->size);
        CHECK_OK(ctrt_optimizer_step(first));
        CHECK_OK(ctrt_optimizer_step(second));
        CHECK_OK(ctrt_optimizer_step(one));
        CHECK_OK(ctrt_optimizer_step(two));
    }
    same_shards(&p, rank, false);
    pair_free(&p);

    /* The strategy gets no events of an optimizer without a module, so it cannot cut states from before. */
    CTRT_AUTO(module) late = new_net(mlp_new, rank), late_net = NULL;
    CTRT_AUTO(optimizer) loose = NULL;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 4);
    ctrt_tensor *weight = parameter(late, 0);
    CHECK_OK(ctrt_sgd_new(&loose, NULL, SGD(.lr = 0.1, .momentum = 0.5)));
    CHECK_OK(ctrt_optimizer_add(loose, &weight, 1));
    CHECK_OK(ctrt_forward(&x, late, x));
    CHECK_OK(square_loss(&loss, x, NULL, 0, NULL));
    CHECK_OK(ctrt_backward(loss));
    CHECK_OK(ctrt_optimizer_step(loose));
    late_net = net_of_ranks(late, "sharded", rank);
    if (columns > 1)
        CHECK_FAILS(ctrt_optimizer_step(loose), CTRT_ERR_STATE, "create the optimizer from the module or net");
}

/* ---- failures ---- */

/* The norm of the gradients, also unscaled, of a Sequential of two nets that get gradients one after the other. */
static void clipping(struct rank *rank)
{
    struct pair p = pair_new(mlp_new, "sharded", rank), q = pair_new(mlp_new, "sharded", rank);
    CTRT_AUTO(module) nets = NULL, plain = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) one = NULL;
    double norm = -1, want = -1;
    CHECK_OK(ctrt_sequential_new(&nets, CTRT_MODULES(ctrt_module_retain(p.net), ctrt_module_retain(q.net))));
    CHECK_OK(ctrt_sequential_new(&plain, CTRT_MODULES(ctrt_module_retain(p.one), ctrt_module_retain(q.one))));
    for (int i = 0; i < 3; i++) {
        if (i > 0) {
            (void)step_rows(i == 1 ? q.net : p.net, rank, i, 2 * rank->number, 2);
            (void)step_rows(i == 1 ? q.one : p.one, rank, i, 0, 2 * rank->size);
        }
        CHECK_OK(ctrt_clip_grad_norm_(&norm, nets, 0.05));
        CHECK_OK(ctrt_clip_grad_norm_(&want, plain, 0.05));
        CHECK_NEAR(norm, want, 1e-5);
        CHECK_TRUE((norm > 0) == (i > 0));
        same_shards(&p, rank, true);
        same_shards(&q, rank, true);
    }
    CHECK_OK(ctrt_clip_grad_norm_(&want, nets, 1));
    CHECK_OK(ctrt_sgd_new(&optimizer, nets, NULL));
    CHECK_OK(ctrt_grad_scaler_new(&scaler, SCALER(.init_scale = 4)));
    CHECK_OK(ctrt_ones(&one, CTRT_SCALAR_SHAPE, CTRT_F32, rank->device));
    CHECK_OK(ctrt_grad_scaler_scale(&one, scaler, one));
    CHECK_OK(ctrt_grad_scaler_unscale_(scaler, optimizer));
    CHECK_OK(ctrt_clip_grad_norm_(&norm, nets, 1));
    CHECK_NEAR(4 * norm, want, 1e-6);
    pair_free(&p);
    pair_free(&q);
}

static void failure(struct rank *rank)
{
    const uint64_t nodes = ctrt_autograd_live_nodes();
    struct pair p = pair_new(mlp_new, "sharded", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    (void)step_rows(p.net, rank, 0, 2 * rank->number, 2);
    (void)step_rows(p.one, rank, 0, 0, 2 * rank->size);
    const bool fails = rank->number == rank->size - 1;
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, fails ? "the last rank fails" : NULL),
                fails ? CTRT_ERR_STATE : CTRT_ERR_COMM, "the last rank fails");
    same_shards(&p, rank, true);                /* gradients are as before */
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL), CTRT_ERR_COMM, "the last rank fails");
    pair_free(&p);
    if (rank->kind == PROCESSES)
        CHECK_EQ(ctrt_autograd_live_nodes(), nodes);
}

static void failure_in_backward(struct rank *rank)
{
    if (strcmp(getenv("CTRT_SHARDED_STAGE"), "3") == 0 && columns > 1)      /* else all parameters stay gathered */
        backward_without_memory("sharded", rank);
}

/* ---- creation ---- */

static void creation(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL, wide = NULL;
    char want[64];
    CHECK_OK(ctrt_linear_new(&wide, FEATURES, rank->number == 1 ? 5 : 4, true, rank->device));
    if (rank->size > 1)
        CHECK_FAILS(ctrt_parallel_new_comm(&net, wide, "sharded", rank->comm), CTRT_ERR_STATE,
                    "rank 1: parameter \"weight\", f32 [5, 6], but on rank 0 parameter \"weight\", f32 [4, 6]");
    CHECK_OK(mlp_new(&module, cpu));            /* its shards are copied to the rank's device */
    net = net_of_ranks(module, "sharded", rank);
    CHECK_TRUE(ctrt_tensor_device(parameter(net, 0)) == rank->device);
    snprintf(want, sizeof want, "rank %d of %d by host", rank->number, rank->size);
    CHECK_HAS(ctrt_parallel_describe(net), want);
    CHECK_HAS(ctrt_parallel_describe(net), "groups");
    CHECK_TRUE(ctrt_parallel_comm(net) == rank->comm);
    CTRT_AUTO(module) again = NULL;
    CHECK_FAILS(ctrt_parallel_new_comm(&again, module, "sharded", rank->comm), CTRT_ERR_STATE,
                "divided by another net");
    (void)step_rows(net, rank, 0, 0, 2);
}

/* Environment variables whose values the strategy refuses. */
static const struct bad {
    const char *name, *value;
    ctrt_status status;
    const char *words;
} bad[] = {
    { "CTRT_SHARDED_STAGE", "4", CTRT_ERR_INVALID_ARGUMENT, "CTRT_SHARDED_STAGE=4: expected 1, 2 or 3" },
    { "CTRT_SHARDED_MESH", "2x2", CTRT_ERR_INVALID_ARGUMENT,
      "CTRT_SHARDED_MESH=2x2: expected ROWSxCOLUMNS whose product is the number of ranks, 2" },
    { "CTRT_SHARDED_MESH", "2by1", CTRT_ERR_INVALID_ARGUMENT, "CTRT_SHARDED_MESH=2by1" },
    { "CTRT_ON_FAILURE", "shrink", CTRT_ERR_NOT_SUPPORTED,
      "CTRT_ON_FAILURE=shrink: a lost rank takes its part of the parameters along" },
};

static void bad_params(struct rank *rank)
{
    const struct bad *row = rank->argument;
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = NULL;
    CHECK_FAILS(ctrt_parallel_new_comm(&net, module, "sharded", rank->comm), row->status, row->words);
}

/* ---- canonical mode ---- */

/* With parameters of several thousand elements, whose sum of squares depends on the order of the additions. */
static ctrt_status wide_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 400, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(400), NULL, device),
                                                 CTRT_NEW(linear, 400, 13, true, device)));
}

static void canonical(struct rank *rank)
{
    char ours[65], theirs[65];
    struct pair p = pair_new(wide_new, "sharded", rank);
    CTRT_AUTO(optimizer) a = NULL, b = NULL;
    CHECK_OK(optimizer_new(&a, p.net, true));
    CHECK_OK(optimizer_new(&b, p.one, true));
    for (int i = 0; i < 3; i++) {
        const int rows = 12 / rank->size;
        CHECK_OK(ctrt_optimizer_zero_grad(a, i % 2 == 0));
        CHECK_OK(ctrt_optimizer_zero_grad(b, i % 2 == 0));
        const double loss = step_rows(p.net, rank, i, rows * rank->number, rows);
        CHECK_TRUE(loss == step_rows(p.one, rank, i, 0, 12));
        double norm = 0, want = 0;              /* the norm of the gradients, by which they are multiplied */
        CHECK_OK(ctrt_clip_grad_norm_(&norm, p.net, 0.05));
        CHECK_OK(ctrt_clip_grad_norm_(&want, p.one, 0.05));
        CHECK(norm == want && norm > 0.05, "norm %.17g, expected %.17g", norm, want);
        CHECK_OK(ctrt_optimizer_step(a));
        CHECK_OK(ctrt_optimizer_step(b));
    }
    CHECK_OK(ctrt_module_sha256(ours, p.net));
    CHECK_OK(ctrt_module_sha256(theirs, p.one));
    CHECK_STR(ours, theirs);
    CHECK_OK(ctrt_module_sha256(ours, p.module));       /* also without the net */
    CHECK_STR(ours, theirs);
    pair_free(&p);
}

/* ---- all ---- */

static const struct body bodies[] = {
    { "training", train_ranks, true, "0", NULL },
    { "no_sync", accumulate, false, "0", NULL },
    { "forward alone", forward_alone, false, "0", NULL },
    { "modules", modules, false, "0", NULL },
    { "modules that run again", runs_again, false, "0", NULL },
    { "optimizers", optimizers, false, "0", NULL },
    { "a rank fails", failure, true, "0", NULL },
    { "a rank fails in the backward pass", failure_in_backward, false, "0", NULL },
    { "clipping", clipping, false, "0", NULL },
    { "creation", creation, false, "0", NULL },
    { "canonical mode", canonical, false, "1", NULL },
};

TEST_MAIN
{
    for (size_t c = FIRST_CONFIG; c < COUNT(configs); c += CONFIG_STEP) {
        const struct config *config = &configs[c];
        for (size_t b = 0; b < COUNT(bodies); b++) {
            if ((bodies[b].run == failure || bodies[b].run == failure_in_backward) && config->ranks == 1)
                continue;
            group("%s: stage %s, %d ranks, mesh %s", bodies[b].name, config->stage, config->ranks,
                  *config->mesh != '\0' ? config->mesh : "of one row");
            run_config(config, &bodies[b]);
        }
    }
    static const struct config more[] = { { "3", "", 6, 6 }, { "2", "2x3", 6, 3 }, { "3", "", 12, 12 } };
    EACH(config, more) {
        static const struct body body = { "canonical mode", canonical, false, "1", NULL };
        group("canonical mode: stage %s, %d ranks", config->stage, config->ranks);
        run_config(config, &body);
    }
    group("bad parameters");
    EACH(row, bad)
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1") {
            setenv(row->name, row->value, 1);
            CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            run_quiet(ON_SIM, 2, 20, bad_params, row, -1);
        }
    return done();
}
