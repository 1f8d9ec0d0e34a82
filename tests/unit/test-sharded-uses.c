/* SPDX-License-Identifier: Apache-2.0 */
/* Strategy `sharded`: parameters that are used outside of the module to which they belong, tied parameters, and several
 * forward passes before one backward pass. The result is that of `single`, or an error that names the parameter. */
#include "sharded_check.h"

/* ---- a net whose parts use each other's parameters ---- */

enum use { NOWHERE, BEFORE, AFTER, VIEW, SIBLING, LOSS };

/* Of the root and of its child b. `used` is the parameter that the module does not own. */
struct user {
    ctrt_module *a, *b;                         /* of the root */
    ctrt_tensor *used;
    enum use use;
};

static _Thread_local ctrt_tensor *in_loss;      /* the parameter that the loss function uses */

/* h = h used^T */
static ctrt_status apply(ctrt_tensor **h, ctrt_tensor *used, bool by_view)
{
    CTRT_AUTO(tensor) transposed = NULL;
    if (!by_view)
        return ctrt_linear(h, *h, used, NULL);
    CTRT_TRY(ctrt_transpose(&transposed, used, 0, 1));
    return ctrt_matmul(h, *h, transposed);
}

/* b: a layer whose weight it uses itself as well, which is in its group. */
static ctrt_status inner_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct user *user = ctrt_module_state(self);
    ctrt_tensor *weight = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, user->a, "weight"));
    CTRT_TRY(ctrt_forward(y, user->a, inputs[0]));
    CTRT_TRY(apply(y, weight, false));
    return user->use == SIBLING ? apply(y, user->used, false) : CTRT_OK;
}

static ctrt_status outer_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct user *user = ctrt_module_state(self);
    (void)count;
    ctrt_tensor_assign(y, inputs[0]);
    if (user->use == BEFORE)
        CTRT_TRY(apply(y, user->used, false));
    CTRT_TRY(ctrt_forward(y, user->a, *y));
    CTRT_TRY(ctrt_forward(y, user->b, *y));
    return user->use == AFTER || user->use == VIEW ? apply(y, user->used, user->use == VIEW) : CTRT_OK;
}

static const size_t user_pointers[] = {
    offsetof(struct user, a), offsetof(struct user, b), offsetof(struct user, used), CTRT_STATE_END,
};
static const ctrt_module_class inner_class = {
    .size = sizeof(ctrt_module_class), .kind = "Inner", .state_bytes = sizeof(struct user), .forward = inner_forward,
    .state_pointers = user_pointers,
};
static const ctrt_module_class outer_class = {
    .size = sizeof(ctrt_module_class), .kind = "Outer", .state_bytes = sizeof(struct user), .forward = outer_forward,
    .state_pointers = user_pointers,
};

static const struct use_case {
    const char *name, *parameter;
    enum use use;
} uses[] = {
    { "the root uses its child's parameter before the child", "a.weight", BEFORE },
    { "the root uses its child's parameter after the child", "a.weight", AFTER },
    { "the root uses a view of its child's parameter", "a.weight", VIEW },
    { "the root uses a parameter of a child's child", "b.linear.weight", AFTER },
    { "a child uses the parameter of its sibling", "a.weight", SIBLING },
    { "the loss function uses a parameter", "a.weight", LOSS },
};

enum tie { UNTIED, TIED, TIED_TWICE };          /* not registered where it is used; there; in the root and in b */

static _Thread_local struct { const struct use_case *use; enum tie tie; bool frozen; } made;    /* by user_new */

static ctrt_status user_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    ctrt_module *inner = NULL;
    CTRT_TRY(ctrt_module_new(&self, &outer_class));
    CTRT_TRY(ctrt_module_new(&inner, &inner_class));
    struct user *outer = ctrt_module_state(self), *b = ctrt_module_state(inner);
    outer->b = inner;
    CTRT_TRY(ctrt_module_add_module(self, "a", outer->a = CTRT_NEW(linear, FEATURES, FEATURES, true, device)));
    CTRT_TRY(ctrt_module_add_module(self, "b", inner));
    CTRT_TRY(ctrt_module_add_module(inner, "linear", b->a = CTRT_NEW(linear, FEATURES, FEATURES, true, device)));
    if (made.use != NULL) {
        CTRT_TRY(ctrt_module_tensor(&outer->used, self, made.use->parameter));
        outer->use = b->use = made.use->use;
        b->used = outer->used;
        if (made.tie == TIED_TWICE || (made.tie == TIED && made.use->use != SIBLING))
            CTRT_TRY(ctrt_module_add_parameter(self, "tied", outer->used));
        if (made.tie == TIED_TWICE || (made.tie == TIED && made.use->use == SIBLING))
            CTRT_TRY(ctrt_module_add_parameter(inner, "tied", outer->used));
        CTRT_TRY(ctrt_tensor_require_grad(outer->used, !made.frozen));
    }
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

static ctrt_status user_loss(ctrt_tensor **loss, ctrt_tensor *y, ctrt_tensor *const *inputs, int count, void *user)
{
    CTRT_AUTO(tensor) result = ctrt_tensor_retain(y);
    (void)inputs, (void)count, (void)user;
    if (in_loss != NULL)
        CTRT_TRY(apply(&result, in_loss, false));
    return square_loss(loss, result, NULL, 0, NULL);
}

static void loss_uses(ctrt_module *module)
{
    const struct user *user = ctrt_module_state(module);
    in_loss = user->use == LOSS ? user->used : NULL;
}

/* ---- tied parameters ---- */

static ctrt_status one_step(double *value, ctrt_module *net, ctrt_module *module, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) loss = NULL;
    loss_uses(module);
    CTRT_TRY(ctrt_parallel_step(&loss, net, &x, 1, user_loss, NULL));
    return ctrt_item(value, loss);
}

/* Steps and evaluations, in training and in evaluation mode, of the net and of `single`. */
static void tied_case(struct rank *rank)
{
    struct pair p = pair_new(user_new, "sharded", rank);
    CTRT_AUTO(optimizer) a = NULL, b = NULL;
    CHECK_OK(optimizer_new(&a, p.net, true));
    CHECK_OK(optimizer_new(&b, p.one, true));
    for (int i = 0; i < 3; i++) {
        const int rows = 2;
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, i, rows * rank->number, rows), y = NULL, want = NULL,
                          all = batch_of(rank->device, CTRT_F32, i, 0, rows * rank->size);
        double loss = NAN, one = NAN;
        CHECK_OK(ctrt_optimizer_zero_grad(a, true));
        CHECK_OK(ctrt_optimizer_zero_grad(b, true));
        CHECK_OK(one_step(&loss, p.net, p.module, x));
        CHECK_OK(one_step(&one, p.one, p.reference, all));
        CHECK_NEAR(loss, one, 1e-5);
        same_shards(&p, rank, true);
        CHECK_OK(ctrt_optimizer_step(a));
        CHECK_OK(ctrt_optimizer_step(b));
        ctrt_module_train(p.net, i != 1);
        ctrt_module_train(p.one, i != 1);
        ctrt_no_grad {
            CHECK_OK(ctrt_forward(&y, p.net, x));
            CHECK_OK(ctrt_forward(&want, p.one, x));
        }
        NEAR(y, want, 1e-5);
    }
    same_shards(&p, rank, false);
    pair_free(&p);
}

static void tied(struct rank *rank)
{
    for (const struct use_case *use = uses; use < uses + COUNT(uses); use++)    /* EACH is not for threads */
        for (enum tie tie = TIED; tie <= TIED_TWICE; tie++)
            for (int frozen = 0; frozen < 2; frozen++) {
                if (use->use == LOSS && frozen)
                    continue;                   /* the root's own tensor without a gradient: as AFTER */
                made.use = use, made.tie = tie, made.frozen = frozen;
                tied_case(rank);
            }
}

/* ---- parameters that are not there ---- */

static const struct wrong_use {
    const char *name;
    enum use use;                               /* 0: all */
    bool grad, step;
} passes[] = {
    { "a step", NOWHERE, true, true },
    { "a forward pass", NOWHERE, true, false },
    { "a forward pass without gradients", NOWHERE, false, false },
};

struct wrong {
    const struct use_case *use;
    const struct wrong_use *pass;
};

/* The error comes from this rank or from another one that was faster. */
static void names(ctrt_status status, const struct wrong *w)
{
    CHECK_TRUE(status == CTRT_ERR_STATE || status == CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), w->use->parameter);
    CHECK_HAS(ctrt_error_message(), w->use->use == LOSS ? "between the forward and the backward pass"
                                    : w->use->use == SIBLING ? "Inner uses the parameter"
                                                             : "Outer uses the parameter");
}

static void wrong(struct rank *rank)
{
    const struct wrong *w = ((const struct body *)rank->argument)->argument;
    made.use = w->use, made.tie = UNTIED, made.frozen = false;
    CTRT_AUTO(module) module = new_net(user_new, rank), net = net_of_ranks(module, "sharded", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, loss = NULL;
    double value;
    ctrt_status status = CTRT_OK;
    loss_uses(module);
    if (w->pass->step) {
        status = one_step(&value, net, module, x);
    } else if (w->pass->grad) {
        status = ctrt_forward(&y, net, x);
        if (status == CTRT_OK)
            status = user_loss(&loss, y, NULL, 0, NULL);
    } else {
        ctrt_no_grad status = ctrt_forward(&y, net, x);
    }
    names(status, w);
}

/* The functions that read or write elements. */
static void ops(struct rank *rank)
{
    made.use = NULL;
    CTRT_AUTO(module) module = new_net(user_new, rank), net = net_of_ranks(module, "sharded", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, z = NULL, view = NULL,
                      same = batch_of(rank->device, CTRT_F32, 0, 0, FEATURES);
    ctrt_tensor *weight = parameter(module, 0), *tensors[2] = { same, weight };
    const struct user *user = ctrt_module_state(module), *b = ctrt_module_state(user->b);
    float values[FEATURES * FEATURES];
    double value;
    const char *const words = "\"a.weight\" of Linear";
    CHECK_FAILS(ctrt_forward(&y, b->a, x), CTRT_ERR_STATE, "run it by ctrt_forward or ctrt_parallel_step");
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_EQ(ctrt_tensor_size(weight, 0), FEATURES);
    CHECK_FAILS(ctrt_forward(&z, b->a, x), CTRT_ERR_STATE, "run it by ctrt_forward or ctrt_parallel_step");
    ctrt_no_grad {
        CHECK_OK(ctrt_select(&view, weight, 0, 0));
        CHECK_OK(ctrt_select(&view, view, 0, 0));
        ctrt_tensor *plain = NULL;
        CHECK_OK(ctrt_detach(&plain, weight));
        CHECK_FAILS(ctrt_add(&z, weight, same), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_mul_scalar(&z, plain, ctrt_float(2)), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_add_(same, weight), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_add_(plain, same), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_zero_(plain), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_exp(&z, weight), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_sum(&z, weight, CTRT_ALL_DIMS), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_mean(&z, weight, CTRT_DIMS(0)), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_matmul(&z, x, weight), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_linear(&z, x, weight, NULL), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_softmax(&z, weight, 1), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_clone(&z, weight), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_to_dtype(&z, weight, CTRT_F16), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_copy_(same, weight), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_copy_(plain, same), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_cat(&z, tensors, 2, 0), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_to_host(values, sizeof values, weight, CTRT_F32), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_item(&value, view), CTRT_ERR_STATE, words);
        CHECK_FAILS(ctrt_mul(&z, same, view), CTRT_ERR_STATE, words);
        const ctrt_status status = ctrt_comm_all_reduce(NULL, rank->comm, plain, CTRT_COMM_SUM);
        CHECK_TRUE(status == CTRT_ERR_STATE || status == CTRT_ERR_COMM);        /* another rank may fail first */
        CHECK_TRUE(ctrt_tensor_data(weight) == NULL);
        ctrt_tensor_release(&plain);
    }
    ctrt_module_release(&net);                  /* the view outlives the net */
    CHECK_FAILS(ctrt_item(&value, view), CTRT_ERR_STATE, "after the release of its net");
    CHECK_OK(ctrt_exp(&z, weight));
}

/* ---- several forward passes before one backward pass ---- */

static ctrt_status add_square(ctrt_tensor **sum, ctrt_module *net, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) y = NULL, loss = NULL;
    CTRT_TRY(ctrt_forward(&y, net, x));
    CTRT_TRY(square_loss(&loss, y, NULL, 0, NULL));
    if (*sum != NULL)
        return ctrt_add(sum, *sum, loss);
    ctrt_tensor_assign(sum, loss);
    return CTRT_OK;
}

/* As discriminators and contrastive losses need it: `count` forward passes, with evaluations and zero_grad between
 * them, then the backward pass of the sum of their losses. */
static void passes_before_backward(struct rank *rank, net_function make, int count)
{
    struct pair p = pair_new(make, "sharded", rank);
    const int rows = 2;
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(tensor) sum = NULL, want = NULL;
        for (int k = 0; k < count; k++) {
            CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, i + k, rows * rank->number, rows),
                              all = batch_of(rank->device, CTRT_F32, i + k, 0, rows * rank->size), y = NULL, z = NULL;
            CHECK_OK(add_square(&sum, p.net, x));
            CHECK_OK(add_square(&want, p.reference, all));
            ctrt_no_grad {
                CHECK_OK(ctrt_forward(&y, p.net, x));
                CHECK_OK(ctrt_forward(&z, p.reference, x));
            }
            NEAR(y, z, 1e-5);
        }
        if (i == 1)                             /* else the gradients are added to those from before */ {
            CHECK_OK(ctrt_module_zero_grad(p.net, false));
            CHECK_OK(ctrt_module_zero_grad(p.one, false));
        }
        CHECK_OK(ctrt_backward(sum));
        CHECK_OK(ctrt_backward(want));
        same_shards(&p, rank, true);
        if (i == 2)
            CHECK_FAILS(ctrt_backward(sum), CTRT_ERR_AUTOGRAD, "");
    }
    pair_free(&p);
}

static void several_passes(struct rank *rank)
{
    made.use = NULL;
    passes_before_backward(rank, mlp_new, 2);
    passes_before_backward(rank, user_new, 3);
    made.use = &uses[1], made.tie = TIED;
    passes_before_backward(rank, user_new, 2);
    made.frozen = true;
    passes_before_backward(rank, user_new, 2);
}

/* ---- all ---- */

static const struct body bodies[] = {
    { "tied parameters", tied, false, "0", NULL },
    { "ops on absent parameters", ops, true, "0", NULL },
    { "several passes", several_passes, true, "0", NULL },
};

TEST_MAIN
{
    for (size_t c = FIRST_CONFIG; c < COUNT(configs); c += CONFIG_STEP) {
        const struct config *config = &configs[c];
        for (size_t b = 0; b < COUNT(bodies); b++) {
            group("%s: stage %s, %d ranks, mesh %s", bodies[b].name, config->stage, config->ranks,
                  *config->mesh != '\0' ? config->mesh : "of one row");
            run_config(config, &bodies[b]);
        }
    }
    static const struct config two[] = { { "1", "", 2, 2 }, { "3", "", 2, 2 }, { "3", "", 1, 1 } };
    EACH(config, two)
        EACH(use, uses)
            EACH(pass, passes) {
                if (use->use == LOSS && !pass->grad)
                    continue;
                group("%s in %s: stage %s, %d ranks", use->name, pass->name, config->stage, config->ranks);
                const struct wrong w = { use, pass };
                const struct body body = { use->name, wrong, false, "0", &w };
                run_config(config, &body);
            }
    return done();
}
