/* SPDX-License-Identifier: Apache-2.0 */
/* Tests layouts on sim-multi:0, a device with several simulated members: distributing tensors, the layouts that ops
 * choose, the number of redistributions, the members' memory, and errors. test-multi-ops.c tests values. */
#include "../options.h"
#include "multi_block.h"
#include "run.h"

/* A tensor of quarters, which on `multi` is sharded in dimension `dim`; -1: it is replicated. */
static ctrt_tensor *sharded(ctrt_ints shape, int n, int dim, ctrt_device *device)
{
    ctrt_tensor *x = quarters(shape, n, device);
    if (device == multi && dim >= 0)
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(dim)));
    return x;
}

/* ---- distributing ---- */

static const struct distribute_case {
    int ndim;
    int64_t shape[4];
    int dim, groups;
} distributions[] = {
    { 1, { 8 }, 0, 1 },       { 1, { 5 }, 0, 1 },          { 1, { 2 }, 0, 1 },       { 1, { 100 }, -1, 1 },
    { 2, { 6, 4 }, 0, 1 },    { 2, { 6, 4 }, 1, 1 },       { 2, { 7, 3 }, 0, 1 },    { 2, { 7, 3 }, -1, 1 },
    { 2, { 12, 5 }, 0, 3 },   { 2, { 5, 12 }, 1, 3 },      { 2, { 9, 2 }, 0, 3 },    { 3, { 2, 6, 4 }, 1, 2 },
    { 3, { 2, 3, 4 }, 0, 1 }, { 4, { 2, 8, 3, 4 }, 1, 1 }, { 2, { 1, 9 }, 1, 1 },    { 2, { 100, 30 }, 0, 1 },
};

static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_I64, CTRT_BOOL };

/* Distributes, reads, changes the layout to another dimension and back, and reads again. */
static void distribute(const struct distribute_case *c, ctrt_dtype dtype)
{
    const ctrt_ints shape = ctrt_ints_of(c->shape, c->ndim);
    const ctrt_layout layout = { .kind = CTRT_LAYOUT_SHARDED, .dim = c->dim, .groups = c->groups };
    CTRT_AUTO(tensor) want = quarters(shape, 1, one), x = quarters(shape, 1, multi);
    CHECK_OK(ctrt_to_dtype(&want, want, dtype));
    CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    CHECK_OK(ctrt_tensor_distribute(x, &layout));
    SAME(x, want);
    for (int dim = 0; dim < c->ndim; dim++) {
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(dim)));
        if (c->shape[dim] > 1)
            CHECK_STR(layout_text(multi_layout(x)), layout_text(*SHARDED(dim)));
        SAME(x, want);
    }
    CHECK_OK(ctrt_tensor_distribute(x, &layout));
    CHECK_STR(layout_text(multi_layout(x)),
              layout_text((ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = (c->dim + c->ndim) % c->ndim,
                                         .groups = c->groups }));
    CHECK_OK(ctrt_tensor_distribute(x, REPLICATED));
    CHECK_STR(layout_text(multi_layout(x)), "replicated");
    SAME(x, want);
}

/* Writes to a tensor whose layout the program has set. The tensor must keep the layout. */
static void write_distributed(void)
{
    CTRT_AUTO(tensor) x = sharded(CTRT_SHAPE(7, 4), 2, 0, multi), want = quarters(CTRT_SHAPE(7, 4), 3, one);
    float values[28], three = 3;
    CHECK_OK(ctrt_to_host(values, sizeof values, want, CTRT_F32));
    CHECK_OK(ctrt_from_host_(x, values, 28, CTRT_F32));
    SAME(x, want);
    CHECK_OK(ctrt_fill_(x, ctrt_float(three)));
    CHECK_OK(ctrt_fill_(want, ctrt_float(three)));
    SAME(x, want);
    CHECK_OK(ctrt_generator_set(one, 9, 0));
    CHECK_OK(ctrt_generator_set(multi, 9, 0));
    CHECK_OK(ctrt_uniform_(x, -1, 1));
    CHECK_OK(ctrt_uniform_(want, -1, 1));
    SAME(x, want);
    CTRT_AUTO(tensor) row = OP(narrow, x, 0, 2, 1), want_row = OP(narrow, want, 0, 2, 1);
    CHECK_OK(ctrt_neg_(row));
    CHECK_OK(ctrt_neg_(want_row));
    SAME(x, want);
    CHECK_STR(layout_text(multi_layout(x)), "sharded 0");
}

/* ---- the layouts that ops choose, and their redistributions ---- */

enum { NONE, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL };

/* Layouts of the inputs: -1 replicated, else the sharded dimension. */
static const struct rule_case {
    const char *name;
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    int a, b;                           /* of tensors [8, 8] */
    const char *result;
    int gathers;                        /* all_gathers that the op needs */
} rules[];

#define RULE(name, call)                                                                        \
    static ctrt_status name(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)                  \
    {                                                                                           \
        (void)b;                                                                                \
        return call;                                                                            \
    }
RULE(rule_add, ctrt_add(out, a, b))
RULE(rule_exp, ctrt_exp(out, a))
RULE(rule_matmul, ctrt_matmul(out, a, b))
RULE(rule_linear, ctrt_linear(out, a, b, NULL))
RULE(rule_softmax, ctrt_softmax(out, a, 1))
RULE(rule_sum, ctrt_sum_dims(out, a, CTRT_DIMS(0), false))
RULE(rule_amax, ctrt_amax(out, a, CTRT_DIMS(0), false))
RULE(rule_layer_norm, ctrt_layer_norm(out, a, CTRT_SHAPE(8), NULL, NULL, 1e-5))
RULE(rule_clone, ctrt_clone(out, a))

static const struct rule_case rules[] = {
    { "add", rule_add, 0, 0, "sharded 0", 0 },
    { "add", rule_add, 1, -1, "sharded 1", 0 },
    { "add", rule_add, -1, 0, "sharded 0", 0 },
    { "add", rule_add, -1, -1, "replicated", 0 },
    { "exp", rule_exp, 1, -1, "sharded 1", 0 },
    { "clone", rule_clone, 0, -1, "sharded 0", 0 },
    { "matmul", rule_matmul, 0, -1, "sharded 0", 0 },
    { "matmul", rule_matmul, -1, 1, "sharded 1", 0 },
    { "matmul", rule_matmul, 1, 0, "partial", 0 },
    { "matmul", rule_matmul, -1, 0, "partial", 0 },
    { "linear, columns", rule_linear, -1, 0, "sharded 1", 0 },
    { "linear, rows", rule_linear, 1, 1, "partial", 0 },
    { "linear, batch", rule_linear, 0, -1, "sharded 0", 0 },
    { "softmax", rule_softmax, 0, -1, "sharded 0", 0 },
    { "softmax over the sharded dimension", rule_softmax, 1, -1, "replicated", 1 },
    { "sum", rule_sum, 1, -1, "sharded 0", 0 },
    { "sum over the sharded dimension", rule_sum, 0, -1, "partial", 0 },
    { "amax", rule_amax, 1, -1, "sharded 0", 0 },
    { "amax over the sharded dimension", rule_amax, 0, -1, "replicated", 1 },
    { "layer_norm", rule_layer_norm, 0, -1, "sharded 0", 0 },
    { "layer_norm over the sharded dimension", rule_layer_norm, 1, -1, "replicated", 1 },
};

static void check_rule(const struct rule_case *c)
{
    CTRT_AUTO(tensor) a = sharded(CTRT_SHAPE(8, 8), 1, c->a, multi), b = sharded(CTRT_SHAPE(8, 8), 2, c->b, multi),
                      y = NULL;
    const ctrt_layout_counts before = multi_counts();
    CHECK_OK(c->run(&y, a, b));
    const ctrt_layout_counts after = multi_counts();
    CHECK(strcmp(layout_text(multi_layout(y)), c->result) == 0, "%s: the result is %s, expected %s", c->name,
          layout_text(multi_layout(y)), c->result);
    CHECK((int)(after.all_gather - before.all_gather) == c->gathers, "%s: %d all_gathers, expected %d", c->name,
          (int)(after.all_gather - before.all_gather), c->gathers);
    CHECK((int)(after.fallbacks - before.fallbacks) == c->gathers, "%s: %d fallbacks, expected %d", c->name,
          (int)(after.fallbacks - before.fallbacks), c->gathers);
    CHECK(after.all_reduce == before.all_reduce, "%s: partial sums were added", c->name);
}

/* A sum of partial tensors stays partial. The first op on it that is not linear makes it replicated, by one
 * all_reduce. */
static void partial_sums(void)
{
    CTRT_AUTO(tensor) a = quarters(CTRT_SHAPE(8, 8), 1, multi), w = sharded(CTRT_SHAPE(8, 8), 2, 0, multi),
                      y = NULL, z = NULL;
    CHECK_OK(ctrt_matmul(&y, a, w));
    CHECK_OK(ctrt_mul_scalar(&z, y, ctrt_float(2)));
    CHECK_OK(ctrt_add_(y, z));
    CHECK_STR(layout_text(multi_layout(y)), "partial");
    CTRT_AUTO(tensor) total = OP(sum, y, CTRT_ALL_DIMS);
    CHECK_STR(layout_text(multi_layout(total)), "partial");
    const uint64_t before = multi_counts().all_reduce;
    CHECK_OK(ctrt_exp(&z, y));
    CHECK_OK(ctrt_tanh(&z, y));
    CHECK_EQ(multi_counts().all_reduce - before, 1);
    CHECK_STR(layout_text(multi_layout(y)), "replicated");
}

/* ---- memory of the members ---- */

static void memory_of_members(void)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *last = NULL;
    CHECK_OK(ctrt_device_get(&last, "sim:3"));
    const uint64_t before = ctrt_memory_allocated(last);
    CHECK_OK(ctrt_zeros(&x, CTRT_SHAPE(1024, 256), CTRT_F32, multi));
    CHECK_EQ(ctrt_memory_allocated(last) - before, 0);          /* a constant needs no memory */
    CHECK_OK(ctrt_tensor_distribute(x, SHARDED(0)));
    CHECK_EQ(ctrt_memory_allocated(last) - before, 1 << 18);
    CHECK_OK(ctrt_tensor_distribute(x, REPLICATED));
    CHECK_EQ(ctrt_memory_allocated(last) - before, 1 << 20);
    ctrt_tensor_release(&x);
    CHECK_EQ(ctrt_memory_allocated(last) - before, 0);
    CHECK_EQ(ctrt_memory_allocated(multi), 0);
}

/* ---- a transformer block ---- */

static void check_counts(const char *what, const ctrt_layout_counts *before, int all_reduces)
{
    const ctrt_layout_counts after = multi_counts();
    const long long others = (long long)(after.all_gather + after.all_to_all + after.reduce_scatter
                                         - before->all_gather - before->all_to_all - before->reduce_scatter);
    CHECK((int)(after.all_reduce - before->all_reduce) == all_reduces, "%s: %d all_reduces, expected %d", what,
          (int)(after.all_reduce - before->all_reduce), all_reduces);
    CHECK(others == 0, "%s: %lld other collectives, expected none", what, others);
}

/* Makes a call and, if `counts` is set, checks its collectives. */
#define COUNTED(call, all_reduces)                                      \
    do {                                                                \
        const ctrt_layout_counts before_ = multi_counts();              \
        CHECK_OK(call);                                                 \
        if (counts)                                                     \
            check_counts(#call, &before_, all_reduces);                 \
    } while (0)

/* Trains a block; with `shard_batch` the input is distributed. */
static void train(ctrt_module *net, ctrt_device *device, bool shard_batch, bool counts)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.05, .momentum = 0.9)));
    for (int step = 0; step < 3; step++) {
        CTRT_AUTO(tensor) x = sharded(CTRT_SHAPE(4, 6, WIDTH), step, shard_batch ? 0 : -1, device), y = NULL,
                          loss = NULL;
        CHECK_OK(ctrt_tensor_require_grad(x, true));
        COUNTED(ctrt_forward(&y, net, x), 2);
        CHECK_OK(ctrt_square(&loss, y));
        CHECK_OK(ctrt_mean(&loss, loss, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        COUNTED(ctrt_backward(loss), 2);
        COUNTED(ctrt_clip_grad_norm_(NULL, net, 0.5), 1);
        COUNTED(ctrt_optimizer_step(optimizer), 0);
    }
}

static void check_parameters(const char *what, ctrt_module *got, ctrt_module *want)
{
    const char *name;
    ctrt_tensor *x, *y;
    for (size_t i = 0; ctrt_module_parameter(&name, &x, got, i) == CTRT_OK; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s: %s", what, name);
        CHECK_OK(ctrt_module_tensor(&y, want, name));
        check_same(text, __LINE__, x, y, 1e-4);
    }
}

static void transformer_block(void)
{
    CTRT_AUTO(module) want = block_on(one), tensor = block_on(multi), data = block_on(multi),
                      both = block_on(multi);
    train(want, one, false, false);
    CHECK_OK(ctrt_module_distribute(tensor, tensor_parallel, COUNT(tensor_parallel)));
    train(tensor, multi, false, true);
    CHECK_STR(layout_text(multi_layout(module_tensor(tensor, "attn.in_proj_weight"))), "sharded 0 of 3 groups");
    CHECK_STR(layout_text(multi_layout(module_tensor(tensor, "mlp.2.weight"))), "sharded 1");
    check_parameters("tensor parallel", tensor, want);
    train(data, multi, true, false);
    CHECK_STR(layout_text(multi_layout(module_tensor(data, "mlp.2.weight"))), "replicated");
    check_parameters("batch sharded", data, want);
    CHECK_OK(ctrt_module_distribute(both, tensor_parallel, COUNT(tensor_parallel)));
    train(both, multi, true, false);
    check_parameters("both", both, want);
}

/* ---- optimizers ---- */

/* Steps of a parameter [6, 8] whose gradient has another layout: each optimizer gives the values of one device, and the
 * parameter keeps its layout. */
enum { SGD, ADAMW, OPTIMIZERS };

static ctrt_status optimizer_new(ctrt_optimizer **out, int kind, ctrt_module *module)
{
    if (kind == SGD)
        return ctrt_sgd_new(out, module, SGD(.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1));
    return ctrt_adamw_new(out, module, ADAMW(.lr = 0.1, .weight_decay = 0.1));
}

/* A gradient that is replicated (0), sharded in dimension 0 or 1 (1, 2), or partial (3). */
static ctrt_tensor *gradient(int layout, int step, ctrt_device *device)
{
    ctrt_tensor *grad = sharded(CTRT_SHAPE(6, 8), step + 2, layout < 3 ? layout - 1 : -1, device);
    if (device != multi || layout != 3)
        return grad;
    CTRT_AUTO(tensor) both = NULL, zeros = OP(zeros_like, grad, CTRT_DTYPE_DEFAULT, NULL);
    CHECK_OK(ctrt_stack(&both, (ctrt_tensor *[]){ grad, zeros }, 2, 0));
    CHECK_OK(ctrt_tensor_distribute(both, SHARDED(0)));
    CHECK_OK(ctrt_sum_dims(&grad, both, CTRT_DIMS(0), false));
    CHECK_STR(layout_text(multi_layout(grad)), "partial");
    return grad;
}

/* A module with the parameter p and, if it is not NULL, q. */
static ctrt_module *module_of(ctrt_tensor *p, ctrt_tensor *q)
{
    static const ctrt_module_class class = { .size = sizeof(ctrt_module_class), .kind = "Parameters",
                                             .state_bytes = sizeof(struct block), .forward = block_forward };
    ctrt_module *module = NULL;
    CHECK_OK(ctrt_module_new(&module, &class));
    CHECK_OK(ctrt_module_add_parameter(module, "p", p));
    if (q != NULL)
        CHECK_OK(ctrt_module_add_parameter(module, "q", q));
    return module;
}

static ctrt_module *trained(int kind, int parameter_layout, int gradient_layout, ctrt_device *device)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) p = sharded(CTRT_SHAPE(6, 8), 1, parameter_layout - 1, device);
    ctrt_module *module = module_of(p, NULL);
    CHECK_OK(optimizer_new(&optimizer, kind, module));
    for (int step = 0; step < 3; step++) {
        CTRT_AUTO(tensor) grad = gradient(gradient_layout, step, device);
        CHECK_OK(ctrt_tensor_set_grad(p, grad));
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    return module;
}

/* Steps of two parameters whose gradients are views of one block. The view of the second parameter needs the block in
 * another layout than the first one, which is sharded. */
static ctrt_module *trained_with_views(int kind, ctrt_device *device)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) p = sharded(CTRT_SHAPE(8, 8), 1, 0, device), q = quarters(CTRT_SHAPE(4, 8), 2, device);
    ctrt_module *module = module_of(p, q);
    CHECK_OK(optimizer_new(&optimizer, kind, module));
    for (int step = 0; step < 3; step++) {
        CTRT_AUTO(tensor) grad = sharded(CTRT_SHAPE(8, 8), step, 0, device), part = NULL;
        CHECK_OK(ctrt_mul_scalar(&grad, grad, ctrt_float(0.5)));
        CHECK_OK(ctrt_narrow(&part, grad, 0, 1, 4));
        CHECK_OK(ctrt_tensor_set_grad(p, grad));
        CHECK_OK(ctrt_tensor_set_grad(q, part));
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    return module;
}

static void optimizers(void)
{
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        CTRT_AUTO(module) want = trained_with_views(kind, one), got = trained_with_views(kind, multi);
        check_parameters("gradients in one block", got, want);
    }
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        CTRT_AUTO(module) want = trained(kind, 0, 0, one);
        for (int parameter = 0; parameter < 3; parameter++)
            for (int grad = 0; grad < 4; grad++) {
                CTRT_AUTO(module) got = trained(kind, parameter, grad, multi);
                char what[64];
                snprintf(what, sizeof what, "optimizer %d, parameter %d, gradient %d", kind, parameter, grad);
                check_parameters(what, got, want);
                CHECK_EQ(multi_layout(module_tensor(got, "p")).kind,
                         parameter > 0 ? CTRT_LAYOUT_SHARDED : CTRT_LAYOUT_REPLICATED);
            }
    }
}

/* ---- errors ---- */

static void bad_input(void)
{
    CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(4, 6), 1, multi), y = quarters(CTRT_SHAPE(4, 6), 1, one), part = NULL,
                      number = OP(sum, x, CTRT_ALL_DIMS);
    CTRT_AUTO(module) net = block_on(multi);
    static const ctrt_layout_pattern wrong[] = { { "mlp.1.weight", { .kind = CTRT_LAYOUT_REPLICATED } } },
                                     unnamed[] = { { NULL, { .kind = CTRT_LAYOUT_REPLICATED } } },
                                     deep[] = { { "ln1.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 4 } } };
    CHECK_FAILS(ctrt_tensor_distribute(x, SHARDED(2)), CTRT_ERR_SHAPE, "dimension 2");
    CHECK_FAILS(ctrt_tensor_distribute(x, SHARDED(-3)), CTRT_ERR_SHAPE, "dimension -3");
    CHECK_FAILS(ctrt_tensor_distribute(number, SHARDED(0)), CTRT_ERR_SHAPE, "without dimensions");
    CHECK_FAILS(ctrt_tensor_distribute(x, &(ctrt_layout){ .kind = 7 }), CTRT_ERR_INVALID_ARGUMENT, "kind of layout 7");
    CHECK_FAILS(ctrt_tensor_distribute(x, &(ctrt_layout){ .kind = CTRT_LAYOUT_PARTIAL }), CTRT_ERR_NOT_SUPPORTED,
                "partial sums");
    CHECK_FAILS(ctrt_tensor_distribute(x, &(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .groups = 3 }),
                CTRT_ERR_INVALID_ARGUMENT, "[4, 6] cannot be divided into 3 equal groups");
    CHECK_FAILS(ctrt_tensor_distribute(x, &(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .groups = -1 }),
                CTRT_ERR_INVALID_ARGUMENT, "-1 equal groups");
    CHECK_FAILS(ctrt_tensor_distribute(y, SHARDED(0)), CTRT_ERR_NOT_SUPPORTED, "sim:0 is one device");
    CHECK_OK(ctrt_tensor_distribute(y, REPLICATED));
    CHECK_OK(ctrt_narrow(&part, x, 0, 1, 2));
    CHECK_FAILS(ctrt_tensor_distribute(part, SHARDED(0)), CTRT_ERR_SHAPE, "part of its storage");
    CHECK_OK(ctrt_transpose(&part, x, 0, 1));
    CHECK_FAILS(ctrt_tensor_distribute(part, SHARDED(0)), CTRT_ERR_SHAPE, "not contiguous");
    ctrt_layout_counts none = CTRT_LAYOUT_COUNTS;
    CHECK_OK(ctrt_layout_count(&none, one));
    CHECK_EQ(none.all_gather + none.all_reduce + none.local, 0);
    CHECK_FAILS(ctrt_module_distribute(net, wrong, 1), CTRT_ERR_NOT_FOUND, "\"mlp.1.weight\"");
    CHECK_FAILS(ctrt_module_distribute(net, unnamed, 1), CTRT_ERR_INVALID_ARGUMENT, "pattern 0 is NULL");
    CHECK_FAILS(ctrt_module_distribute(net, deep, 1), CTRT_ERR_SHAPE, "ln1.weight");
    CHECK_FAILS(ctrt_capture_begin(multi), CTRT_ERR_NOT_SUPPORTED, "sim-multi:0");
}

/* ---- failures of members ---- */

static const struct fault_case { const char *fault; int member; ctrt_status status; } faults[] = {
    { "op:exp@1", 1, CTRT_ERR_BACKEND },
    { "op:exp@1", 3, CTRT_ERR_BACKEND },
    { "alloc:1+", 2, CTRT_ERR_OUT_OF_MEMORY },
    { "lost:1", 2, CTRT_ERR_DEVICE_LOST },
};

/* Ends the faults of a member and resets the device's stream, which has failed. */
static void faults_end(int member)
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(sim->clear(member));
    CHECK_OK(ctrt_stream_default(&stream, multi));
    CHECK_OK(ctrt_stream_reset(stream));
}

static void check_fault(const struct fault_case *c)
{
    char name[32];
    double values[24];
    snprintf(name, sizeof name, "member %d (sim:%d)", c->member, c->member);
    CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(4, 6), 1, multi), y = NULL;
    CHECK_OK(ctrt_device_synchronize(multi));
    CHECK_OK(sim->inject(c->member, c->fault));
    ctrt_status status = ctrt_exp(&y, x);
    if (status == CTRT_OK)
        status = ctrt_device_synchronize(multi);
    CHECK_FAILS(status, c->status, name);
    faults_end(c->member);
    ctrt_tensor_release(&y);
    /* after the reset, ops and collectives of the device work again */
    CHECK_OK(ctrt_tensor_distribute(x, SHARDED(0)));
    CHECK_OK(ctrt_softmax(&y, x, 0));
    CHECK_OK(ctrt_to_host(values, sizeof values, y, CTRT_F64));
}

/* An all_reduce of partial sums fails on a member. Afterwards the sum must be correct, if the addends are unchanged, or
 * lost: a second all_reduce of the memory could add a sum twice. Returns whether the call has failed. */
static bool all_reduce_fails(const char *kind, int n, int *lost)
{
    CTRT_AUTO(tensor) a = quarters(CTRT_SHAPE(4, 8), 1, multi), w = sharded(CTRT_SHAPE(8, 4), 2, 0, multi), x = NULL,
                      y = NULL, want_a = quarters(CTRT_SHAPE(4, 8), 1, one), want = quarters(CTRT_SHAPE(8, 4), 2, one);
    char fault[32];
    double values[16];
    CHECK_OK(ctrt_matmul(&x, a, w));
    CHECK_OK(ctrt_matmul(&want, want_a, want));
    CHECK_STR(layout_text(multi_layout(x)), "partial");
    CHECK_OK(ctrt_device_synchronize(multi));
    snprintf(fault, sizeof fault, "%s:%d+", kind, n);
    CHECK_OK(sim->inject(1, fault));
    const ctrt_status status = ctrt_relu(&y, x), finished = ctrt_device_synchronize(multi);
    faults_end(1);
    if (status != CTRT_OK && ctrt_to_host(values, sizeof values, x, CTRT_F64) != CTRT_OK) {
        ++*lost;
        CHECK_FAILS(ctrt_relu(&y, x), CTRT_ERR_STATE, "was lost when its all_reduce failed");
        CHECK_FAILS(ctrt_tensor_distribute(x, SHARDED(0)), CTRT_ERR_STATE, "was lost");
        CHECK_OK(ctrt_zero_(x));            /* to overwrite it is allowed */
        CHECK_OK(ctrt_add_(x, x));
    } else if (status != CTRT_OK)
        NEAR(x, want, 1e-6);
    return status != CTRT_OK || finished != CTRT_OK;
}

/* Each kind of redistribution, of even and of uneven parts. */
static ctrt_status redistribute_all(void)
{
    CTRT_AUTO(tensor) a = NULL, w = NULL, y = NULL, z = NULL;
    CTRT_TRY(ctrt_zeros(&a, CTRT_SHAPE(8, 10), CTRT_F32, multi));
    CTRT_TRY(ctrt_add_scalar(&a, a, ctrt_float(1)));
    CTRT_TRY(ctrt_ones(&w, CTRT_SHAPE(10, 8), CTRT_F32, multi));
    CTRT_TRY(ctrt_tensor_distribute(w, SHARDED(0)));
    CTRT_TRY(ctrt_matmul(&y, a, w));
    CTRT_TRY(ctrt_clone(&z, y));
    CTRT_TRY(ctrt_tanh(&y, y));
    CTRT_TRY(ctrt_tensor_distribute(z, SHARDED(1)));
    CTRT_TRY(ctrt_softmax(&y, w, 0));
    CTRT_TRY(ctrt_tensor_distribute(z, SHARDED(0)));
    return ctrt_device_synchronize(multi);
}

/* For every n, the n-th allocation of a member and all later ones fail. The error must name the member, and no
 * memory may leak. */
static void member_without_memory(void)
{
    ctrt_device *member = NULL;
    CHECK_OK(ctrt_device_get(&member, "sim:1"));
    const uint64_t before = ctrt_memory_allocated(member);
    ctrt_status status = CTRT_ERR_OUT_OF_MEMORY;
    int n = 0;
    while (status != CTRT_OK && n < 200) {
        char fault[24];
        snprintf(fault, sizeof fault, "alloc:%d+", ++n);
        CHECK_OK(sim->inject(1, fault));
        status = redistribute_all();
        if (status != CTRT_OK) {
            CHECK(status == CTRT_ERR_OUT_OF_MEMORY && strstr(ctrt_error_message(), "member 1 (sim:1)") != NULL,
                  "%s: %s", fault, ctrt_error_message());
            CHECK(ctrt_memory_allocated(multi) == 0, "%s: %llu bytes are not released", fault,
                  (unsigned long long)ctrt_memory_allocated(multi));
        }
        CHECK_OK(sim->clear(1));
    }
    CHECK(n > 10 && n < 200, "%d allocations", n);
    CHECK_OK(redistribute_all());
    CHECK_EQ(ctrt_memory_allocated(member), before);
}

/* ---- threads ---- */

static ctrt_tensor *read_by_all;

/* Reads a sharded tensor in ways that gather it, while other threads do the same. */
static void *reader(void *argument)
{
    double *sum = argument;
    for (int i = 0; i < 20; i++) {
        CTRT_AUTO(tensor) y = NULL;
        if (ctrt_softmax(&y, read_by_all, 0) != CTRT_OK || ctrt_sum(&y, y, CTRT_ALL_DIMS) != CTRT_OK
            || ctrt_item(sum, y) != CTRT_OK)
            *sum = -1;
    }
    return NULL;
}

static void several_threads(void)
{
    pthread_t threads[4];
    double sums[4] = { 0 };
    read_by_all = sharded(CTRT_SHAPE(8, 4), 1, 0, multi);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, reader, &sums[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(sums[i], 4, 1e-5);
    ctrt_tensor_release(&read_by_all);
}

static void results(void)
{
    EACH(c, rules)
        check_rule(c);
    partial_sums();
    memory_of_members();
}

static void on_four_members(const char *what, void (*test)(void))
{
    group("%s", what);
    IN_CHILD(FOUR_SIMS) {
        multi_open();
        test();
        multi_close();
    }
}

TEST_MAIN
{
    static const char *const members[] = { "CTRT_SIM_MULTI=sim:1", "CTRT_SIM_MULTI=sim:3,sim:1",
                                           "CTRT_SIM_MULTI=sim:0,sim:1,sim:2", "CTRT_SIM_MULTI=" };
    for (int n = 2; n <= 4; n++) {
        group("distribute over %d members", n);
        IN_CHILD(FOUR_SIMS, members[n - 1]) {
            multi_open();
            EACH(c, distributions)
                for (size_t d = 0; d < COUNT(dtypes); d++)
                    distribute(c, dtypes[d]);
            write_distributed();
            multi_close();
        }
    }
    on_four_members("layouts of results", results);
    for (int n = 2; n <= 4; n += 2) {
        group("training on %d members", n);
        IN_CHILD(FOUR_SIMS, members[n - 1]) {
            multi_open();
            transformer_block();
            optimizers();
            multi_close();
        }
    }
    on_four_members("bad input", bad_input);
    group("failures of members");
    IN_CHILD(FOUR_SIMS, "CTRT_MEMORY=direct") {
        sim_open("sim:0");
        multi_open();
        EACH(c, faults)
            check_fault(c);
        member_without_memory();
        static const char *const kinds[] = { "alloc", "copy", "event" };
        int lost = 0;
        for (size_t k = 0; k < COUNT(kinds); k++)
            for (int n = 1; all_reduce_fails(kinds[k], n, &lost) && n < 50; n++)
                ;
        CHECK(lost > 0, "no all_reduce failed");
        multi_close();
    }
    on_four_members("several threads", several_threads);
    group("shutdown");
    IN_CHILD(FOUR_SIMS) {
        for (int round = 0; round < 2; round++) {
            multi_open();
            CTRT_AUTO(tensor) x = sharded(CTRT_SHAPE(4, 4), 1, 0, multi), want = quarters(CTRT_SHAPE(4, 4), 1, one);
            CHECK_OK(ctrt_softmax(&x, x, 0));
            CHECK_OK(ctrt_softmax(&want, want, 0));
            NEAR(x, want, 1e-6);
            ctrt_tensor_release(&x);
            ctrt_tensor_release(&want);
            CHECK_OK(ctrt_shutdown());
        }
    }
    return done();
}
