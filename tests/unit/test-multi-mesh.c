/* SPDX-License-Identifier: Apache-2.0 */
/* Tests several logical devices of sim-multi: the list of their members, copies between them, copies of modules, and
 * training with data parallelism over the devices and tensor parallelism within them. */
#include "../options.h"
#include "multi_block.h"
#include "run.h"

static ctrt_device *second;                 /* sim-multi:1 */

static void mesh_open(void)
{
    multi_open();
    CHECK_OK(ctrt_device_get(&second, "sim-multi:1"));
}

static ctrt_layout_counts counts_of(ctrt_device *device)
{
    ctrt_layout_counts counts = CTRT_LAYOUT_COUNTS;
    CHECK_OK(ctrt_layout_count(&counts, device));
    return counts;
}

static int collectives(ctrt_device *device)
{
    const ctrt_layout_counts c = counts_of(device);
    return (int)(c.all_reduce + c.all_gather + c.reduce_scatter + c.all_to_all);
}

/* ---- the list of members ---- */

/* Of a list: the number of devices, and member 1 of device number `device`. */
static const struct list_case { const char *list; int devices, device; const char *member; } lists[] = {
    { "CTRT_SIM_MULTI=", 1, 0, "sim:1" },
    { "CTRT_SIM_MULTI=sim:0,sim:1;sim:2,sim:3", 2, 1, "sim:3" },
    { "CTRT_SIM_MULTI=sim:3,sim:1;sim:0;sim:2", 3, 0, "sim:1" },
    { "CTRT_SIM_MULTI=2x2", 2, 1, "sim:3" },
    { "CTRT_SIM_MULTI=1x3", 1, 0, "sim:1" },
};

static void check_list(const struct list_case *c)
{
    char name[32];
    ctrt_device *device = NULL, *member = NULL;
    snprintf(name, sizeof name, "sim-multi:%d", c->device);
    CHECK_EQ(ctrt_device_count("sim-multi"), c->devices);
    CHECK_OK(ctrt_device_get(&device, name));
    CHECK_OK(ctrt_device_member(&member, device, 1));
    CHECK_STR(ctrt_device_name(member), c->member);
    CHECK_FAILS(ctrt_device_member(&member, device, 4), CTRT_ERR_NOT_FOUND, "has no member 4");
    CHECK_FAILS(ctrt_device_member(&member, device, -1), CTRT_ERR_NOT_FOUND, "has no member -1");
    CHECK_FAILS(ctrt_device_member(NULL, device, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_OK(ctrt_device_member(&one, member, 0));
    CHECK(one == member, "a device without members is not its own");
    CHECK_FAILS(ctrt_device_member(&one, member, 1), CTRT_ERR_NOT_FOUND, "has no member 1");
}

static const struct wrong_case { const char *list, *device; ctrt_status status; const char *words; } wrong[] = {
    { "CTRT_SIM_MULTI=sim:0;sim:1;", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"\" is no device of sim" },
    { "CTRT_SIM_MULTI=;sim:1", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"\" is no device of sim" },
    { "CTRT_SIM_MULTI=sim:0,sim:1;sim:2,sim:1", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "sim:1 occurs twice" },
    { "CTRT_SIM_MULTI=sim:0;sim:9", "sim-multi:1", CTRT_ERR_NO_DEVICE, "no device sim:9" },
    { "CTRT_SIM_MULTI=sim:0;sim:1", "sim-multi:2", CTRT_ERR_NO_DEVICE, "sim-multi:2" },
    { "CTRT_SIM_MULTI=3x2", "sim-multi:0", CTRT_ERR_NO_DEVICE, "3x2 needs 6 devices of sim, but 4 are visible" },
    { "CTRT_SIM_MULTI=0x2", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "at least one of each" },
    { "CTRT_SIM_MULTI=17x1", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "at most 16 devices" },
    { "CTRT_SIM_MULTI=2x", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"2x\" is no device of sim" },
    { "CTRT_SIM_MULTI=cpu", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"cpu\" is no device of sim" },
    { "CTRT_SIM_MULTI=sim", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"sim\" is no device of sim" },
    { "CTRT_SIM_MULTI=sim:0,", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"\" is no device of sim" },
    { "CTRT_SIM_MULTI=sim:0,sim:1x", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "\"sim:1x\" is no device" },
    { "CTRT_SIM_MULTI=sim:1,sim:1", "sim-multi:0", CTRT_ERR_INVALID_ARGUMENT, "sim:1 occurs twice" },
    { "CTRT_SIM_MULTI=sim:0,sim:9", "sim-multi:0", CTRT_ERR_NO_DEVICE, "no device sim:9" },
};

/* ---- copies ---- */

/* Layouts: -1 replicated, 0 and 1 sharded in this dimension, 2 partial, 3 zeros that use no memory. */
static ctrt_tensor *in_layout(int layout, int seed, ctrt_device *device)
{
    ctrt_tensor *x = quarters(CTRT_SHAPE(7, 6), layout == 3 ? 0 : seed, device), *sum = NULL;
    CTRT_AUTO(tensor) stacked = NULL, zeros = OP(zeros_like, x, CTRT_DTYPE_DEFAULT, NULL);
    if (layout == 0 || layout == 1)
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(layout)));
    if (layout < 2)
        return x;
    if (layout == 2) {
        CHECK_OK(ctrt_stack(&stacked, (ctrt_tensor *[]){ x, zeros }, 2, 0));
        CHECK_OK(ctrt_tensor_distribute(stacked, SHARDED(0)));
        CHECK_OK(ctrt_sum_dims(&sum, stacked, CTRT_DIMS(0), false));
    }
    ctrt_tensor_release(&x);
    return layout == 2 ? sum : ctrt_tensor_retain(zeros);
}

/* A copy from a tensor [7, 6] on sim-multi:0 to a tensor on sim-multi:1. `to`: as above, -2 a new tensor. */
static const struct copy_case { int from, to; const char *layout; int collectives; } copies[] = {
    { -1, -2, "replicated", 0 }, { 0, -2, "sharded 0", 0 },  { 1, -2, "sharded 1", 0 },  { 2, -2, "partial", 0 },
    { 3, -2, "replicated", 0 },  { -1, -1, "replicated", 0 }, { 0, -1, "sharded 0", 0 },  { 2, -1, "partial", 0 },
    { 0, 0, "sharded 0", 0 },    { 1, 1, "sharded 1", 0 },   { -1, 0, "sharded 0", 1 },  { 0, 1, "sharded 1", 2 },
    { 2, 0, "sharded 0", 2 },    { 3, 1, "sharded 1", 1 },   { 1, 2, "sharded 1", 0 },   { 1, 3, "sharded 1", 0 },
};

static void check_copy(const struct copy_case *c, bool same_count)
{
    char what[64];
    snprintf(what, sizeof what, "copy from layout %d to layout %d", c->from, c->to);
    CTRT_AUTO(tensor) from = in_layout(c->from, 1, multi), to = NULL, want = NULL;
    CTRT_AUTO(tensor) before = OP(clone, from);
    CHECK_OK(ctrt_cpu(&want, before));
    if (c->to > -2)
        to = in_layout(c->to, 2, second);
    CTRT_AUTO(tensor) warm = OP(to_device, from, second);      /* the first copy tests the link between the devices */
    const int counted = collectives(multi) + collectives(second);
    CHECK_OK(c->to == -2 ? ctrt_to_device(&to, from, second) : ctrt_copy_(to, from));
    const int more = collectives(multi) + collectives(second) - counted;
    ctrt_layout layout;
    CHECK_OK(ctrt_tensor_layout(&layout, to));
    if (same_count) {
        CHECK(strcmp(layout_text(layout), c->layout) == 0, "%s: %s, expected %s", what, layout_text(layout), c->layout);
        CHECK(more == c->collectives, "%s: %d collectives, expected %d", what, more, c->collectives);
    }
    check_same(what, __LINE__, to, want, 0);
    check_same(what, __LINE__, from, want, 0);
}

/* Copies of ranges, of other dtypes and of strided views, also between devices of different types. */
static void other_copies(void)
{
    CTRT_AUTO(tensor) want = quarters(CTRT_SHAPE(6, 4), 1, one);
    for (int dim = -1; dim < 2; dim++)
        for (int to_dim = -1; to_dim < 2; to_dim++) {
            CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(6, 4), 1, multi), y = quarters(CTRT_SHAPE(6, 4), 2, second);
            CTRT_AUTO(tensor) half = NULL, rows = NULL, expected = quarters(CTRT_SHAPE(6, 4), 2, one), part = NULL;
            if (dim >= 0)
                CHECK_OK(ctrt_tensor_distribute(x, SHARDED(dim)));
            if (to_dim >= 0)
                CHECK_OK(ctrt_tensor_distribute(y, SHARDED(to_dim)));
            rows = OP(narrow, x, 0, 1, 3);
            half = OP(narrow, y, 0, 2, 3);
            CHECK_OK(ctrt_copy_(half, rows));
            ctrt_tensor_assign(&part, expected);
            CHECK_OK(ctrt_narrow(&part, part, 0, 2, 3));
            ctrt_tensor_release(&rows);
            rows = OP(narrow, want, 0, 1, 3);
            CHECK_OK(ctrt_copy_(part, rows));
            SAME(y, expected);
            ctrt_tensor_assign(&half, NULL);
            CHECK_OK(ctrt_transpose(&half, y, 0, 1));
            ctrt_tensor_assign(&rows, NULL);
            CHECK_OK(ctrt_transpose(&rows, x, 0, 1));
            CHECK_OK(ctrt_copy_(half, rows));
            SAME(y, want);
            CHECK_OK(ctrt_to(&half, x, second, CTRT_F64, false, CTRT_PRESERVE_FORMAT));
            SAME(half, want);
            CHECK_OK(ctrt_to_device(&half, x, one));
            SAME(half, want);
            CHECK_OK(ctrt_copy_(y, want));
            SAME(y, want);
        }
}

/* Threads copy in both directions at the same time. */
static void *copier(void *argument)
{
    ctrt_device *from = argument, *to = from == multi ? second : multi;
    for (int i = 0; i < 20; i++) {
        CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(8, 6), i, from), y = NULL, want = quarters(CTRT_SHAPE(8, 6), i, one);
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(i % 2)));
        CHECK_OK(ctrt_to_device(&y, x, to));
        CHECK_OK(ctrt_softmax(&y, y, 0));
        CHECK_OK(ctrt_softmax(&want, want, 0));
        NEAR(y, want, 1e-6);
    }
    return NULL;
}

static void both_directions(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, copier, i % 2 ? multi : second), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* ---- modules ---- */

static const char *layout_of(ctrt_module *module, const char *name)
{
    ctrt_layout layout;
    CHECK_OK(ctrt_tensor_layout(&layout, module_tensor(module, name)));
    return layout_text(layout);
}

static void check_layouts(ctrt_module *module)
{
    CHECK_STR(layout_of(module, "attn.in_proj_weight"), "sharded 0 of 3 groups");
    CHECK_STR(layout_of(module, "attn.out_proj.weight"), "sharded 1");
    CHECK_STR(layout_of(module, "mlp.0.bias"), "sharded 0");
    CHECK_STR(layout_of(module, "ln1.weight"), "replicated");
}

static ctrt_module *distributed_block(ctrt_device *device)
{
    ctrt_module *block = block_on(device);
    CHECK_OK(ctrt_module_distribute(block, tensor_parallel, COUNT(tensor_parallel)));
    return block;
}

static void check_parameters(const char *what, ctrt_module *got, ctrt_module *want, double tolerance)
{
    const char *name;
    ctrt_tensor *x, *y;
    for (size_t i = 0; ctrt_module_parameter(&name, &x, got, i) == CTRT_OK; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s: %s", what, name);
        CHECK_OK(ctrt_module_tensor(&y, want, name));
        check_same(text, __LINE__, x, y, tolerance);
    }
}

static void copies_of_modules(void)
{
    CTRT_AUTO(module) want = block_on(one), block = distributed_block(multi), copy = NULL;
    ctrt_module *replicas[2] = { NULL };
    CHECK_OK(ctrt_module_copy(&copy, block, second));
    check_layouts(copy);
    ctrt_no_grad CHECK_OK(ctrt_fill_(module_tensor(copy, "mlp.0.bias"), ctrt_float(0)));
    check_layouts(copy);
    CHECK_OK(ctrt_replicate(replicas, block, (ctrt_device *[]){ multi, second }, 2));
    for (int i = 0; i < 2; i++) {
        check_layouts(replicas[i]);
        check_parameters("replicate", replicas[i], want, 0);
        ctrt_module_release(&replicas[i]);
    }
    CHECK_OK(ctrt_module_to(block, second, CTRT_DTYPE_DEFAULT));
    check_layouts(block);
    check_parameters("module_to", block, want, 0);
    CHECK_OK(ctrt_module_to(block, one, CTRT_DTYPE_DEFAULT));
    check_parameters("module_to one device", block, want, 0);
}

/* ---- data x tensor ---- */

enum { STEPS = 3, ROWS = 4 };

static ctrt_status mean_square(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

static void take_steps(double *losses, ctrt_module *net, ctrt_device *device, int64_t first, int64_t rows)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.05, .momentum = 0.9)));
    for (int step = 0; step < STEPS; step++) {
        CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(ROWS, 6, WIDTH), step, device), loss = NULL;
        CHECK_OK(ctrt_narrow(&x, x, 0, first, rows));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_item(&losses[step], loss));
    }
}

static ctrt_module *trained(double *losses, ctrt_device *device, const char *strategy, ctrt_device *const *devices,
                            int n)
{
    ctrt_module *block = device == one ? block_on(device) : distributed_block(device);
    CTRT_AUTO(module) net = NULL;
    CHECK_OK(ctrt_parallel_new(&net, block, strategy, devices, n));
    take_steps(losses, net, device, 0, ROWS);
    return block;
}

static void check_losses(const char *what, const double *got, const double *want, double tolerance)
{
    for (int i = 0; i < STEPS; i++)
        CHECK(fabs(got[i] - want[i]) <= tolerance, "%s: loss %d is %.9g, expected %.9g", what, i, got[i], want[i]);
}

/* The forward and backward pass of the block need two all_reduces each, on either device. */
static void data_and_tensor(void)
{
    double want_losses[STEPS], losses[STEPS];
    ctrt_device *const devices[] = { multi, second };
    CTRT_AUTO(module) want = trained(want_losses, one, "single", &one, 1);
    const ctrt_layout_counts before[2] = { counts_of(multi), counts_of(second) };
    CTRT_AUTO(module) mesh = trained(losses, multi, "data-parallel", devices, 2);
    check_losses("mesh", losses, want_losses, 1e-5);
    check_parameters("mesh", mesh, want, 1e-4);
    check_layouts(mesh);
    for (int i = 0; i < 2; i++) {
        const ctrt_layout_counts after = counts_of(devices[i]);
        CHECK_EQ(after.all_reduce - before[i].all_reduce, 4 * STEPS);
        CHECK_EQ(after.all_gather - before[i].all_gather, 0);
        CHECK_EQ(after.all_to_all - before[i].all_to_all, 0);
        CHECK_EQ(after.reduce_scatter - before[i].reduce_scatter, 0);
    }
}

/* In canonical mode, two shards on one device give the bits of one shard on each of two. */
static void same_bits(void)
{
    double want_losses[STEPS], losses[STEPS];
    CTRT_AUTO(module) want = trained(want_losses, multi, "single", &multi, 1);
    CTRT_AUTO(module) mesh = trained(losses, multi, "data-parallel", (ctrt_device *[]){ multi, second }, 2);
    check_losses("canonical", losses, want_losses, 0);
    check_parameters("canonical", mesh, want, 0);
}

/* Bytes that member 0 of two has of the module's parameters, or of their gradients. */
static uint64_t bytes_of_member(ctrt_module *module, bool sharded)
{
    uint64_t sum = 0;
    ctrt_tensor *x;
    ctrt_layout layout;
    for (size_t i = 0; ctrt_module_parameter(NULL, &x, module, i) == CTRT_OK; i++) {
        CHECK_OK(ctrt_tensor_layout(&layout, x));
        const uint64_t bytes = 4 * (uint64_t)ctrt_tensor_numel(x);
        sum += layout.kind == CTRT_LAYOUT_SHARDED && sharded ? bytes / 2 : bytes;
    }
    return sum;
}

/* Replica 0 keeps parameters and their sums of gradients, the other one parameters. */
static void memory_of_members(void)
{
    const struct { const char *name; int copies; } members[] = { { "sim:0", 2 }, { "sim:1", 2 }, { "sim:2", 1 },
                                                                 { "sim:3", 1 } };
    uint64_t before[4];
    ctrt_device *device[4];
    for (int m = 0; m < 4; m++) {
        CHECK_OK(ctrt_device_get(&device[m], members[m].name));
        before[m] = ctrt_memory_allocated(device[m]);
    }
    CTRT_AUTO(module) block = distributed_block(multi), net = NULL;
    CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(ROWS, 6, WIDTH), 1, multi), loss = NULL;
    CHECK_OK(ctrt_parallel_new(&net, block, "data-parallel", (ctrt_device *[]){ multi, second }, 2));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL));
    ctrt_tensor_release(&loss);
    ctrt_tensor_release(&x);
    const uint64_t part = bytes_of_member(block, true), whole = bytes_of_member(block, false);
    CHECK(part < whole * 6 / 10, "%llu of %llu bytes on each member", (unsigned long long)part,
          (unsigned long long)whole);
    for (int m = 0; m < 4; m++) {
        const uint64_t bytes = ctrt_memory_allocated(device[m]) - before[m], want = (uint64_t)members[m].copies * part;
        CHECK(bytes >= want && bytes <= want + 64 * 14, "%s has %llu bytes, expected %llu", members[m].name,
              (unsigned long long)bytes, (unsigned long long)want);
    }
}

/* A member runs out of memory: the error names replica and member, gradients are as before, and the next step works. */
static void step_without_memory(void)
{
    CTRT_AUTO(module) block = distributed_block(multi), net = NULL;
    CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(ROWS, 6, WIDTH), 1, multi), loss = NULL, before = NULL, after = NULL;
    ctrt_tensor *weight = module_tensor(block, "mlp.0.weight");
    CHECK_OK(ctrt_parallel_new(&net, block, "data-parallel", (ctrt_device *[]){ multi, second }, 2));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL));
    CHECK_OK(ctrt_clone(&before, ctrt_tensor_grad(weight)));
    for (int n = 1; n < 60; n += 7) {
        char fault[24];
        snprintf(fault, sizeof fault, "alloc:%d+", n);
        CHECK_OK(sim->inject(3, fault));
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL), CTRT_ERR_OUT_OF_MEMORY, "(sim:3)");
        CHECK_OK(sim->clear(3));
        SAME(ctrt_tensor_grad(weight), before);
    }
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_square, NULL));
    CHECK_OK(ctrt_add(&after, before, before));
    SAME(ctrt_tensor_grad(weight), after);
}

/* ---- distributed: each rank has a logical device ---- */

struct rank { ctrt_comm *comm; ctrt_module *block; double losses[STEPS]; };

static void *rank_run(void *argument)
{
    struct rank *rank = argument;
    CTRT_AUTO(module) net = NULL;
    const int index = ctrt_comm_rank(rank->comm);
    CHECK_OK(ctrt_parallel_new_comm(&net, rank->block, "distributed", rank->comm));
    take_steps(rank->losses, net, index == 0 ? multi : second, index * ROWS / 2, ROWS / 2);
    return NULL;
}

static void ranks(void)
{
    double want_losses[STEPS];
    CTRT_AUTO(module) want = trained(want_losses, one, "single", &one, 1);
    ctrt_comm *comms[2] = { NULL };
    struct rank list[2] = { { .block = distributed_block(multi) }, { .block = distributed_block(second) } };
    pthread_t threads[2];
    CHECK_OK(ctrt_comm_new_local(comms, (ctrt_device *[]){ multi, second }, 2, NULL));
    for (int i = 0; i < 2; i++) {
        list[i].comm = comms[i];
        CHECK_EQ(pthread_create(&threads[i], NULL, rank_run, &list[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        check_losses("rank", list[i].losses, want_losses, 1e-5);
        check_parameters("rank", list[i].block, want, 1e-4);
        check_layouts(list[i].block);
        ctrt_module_release(&list[i].block);
        ctrt_comm_release(&comms[i]);
    }
}

static void bad_input(void)
{
    CTRT_AUTO(tensor) x = quarters(CTRT_SHAPE(4, 6), 1, multi), y = quarters(CTRT_SHAPE(6, 4), 1, second),
                      z = quarters(CTRT_SHAPE(4, 6), 1, one);
    CHECK_FAILS(ctrt_tensor_distribute_like(NULL, x), CTRT_ERR_INVALID_ARGUMENT, "tensor is NULL");
    CHECK_FAILS(ctrt_tensor_distribute_like(x, NULL), CTRT_ERR_INVALID_ARGUMENT, "like is NULL");
    CHECK_FAILS(ctrt_tensor_distribute_like(y, x), CTRT_ERR_SHAPE, "[6, 4] and [4, 6] differ");
    CHECK_OK(ctrt_tensor_distribute(x, SHARDED(1)));
    CHECK_OK(ctrt_tensor_distribute_like(z, x));
    CHECK_OK(ctrt_reshape(&y, y, CTRT_SHAPE(4, 6)));
    CHECK_OK(ctrt_tensor_distribute_like(y, x));
    CHECK_STR(layout_text(multi_layout(y)), "sharded 1");
}

TEST_MAIN
{
    static const char *const meshes[] = { "CTRT_SIM_MULTI=2x2", "CTRT_SIM_MULTI=sim:0,sim:1,sim:2;sim:3" };
    group("lists");
    EACH(c, lists)
        IN_CHILD(FOUR_SIMS, c->list) { check_list(c); }
    EACH(c, wrong)
        IN_CHILD(FOUR_SIMS, c->list) {
            CHECK_FAILS(ctrt_device_get(&multi, c->device), c->status, c->words);
        }
    IN_CHILD(FOUR_SIMS) {
        CHECK_FAILS(ctrt_device_get(&multi, "sim-multi:1"), CTRT_ERR_NO_DEVICE, "sim-multi:1");
        CHECK_OK(ctrt_device_get(&multi, "auto"));
        CHECK_STR(ctrt_device_name(multi), "cpu");
    }
    for (size_t i = 0; i < COUNT(meshes); i++) {
        group("copies, %s", meshes[i]);
        IN_CHILD(FOUR_SIMS, meshes[i]) {
            mesh_open();
            EACH(c, copies)
                check_copy(c, i == 0);
            other_copies();
            copies_of_modules();
            both_directions();
            multi_close();
        }
        group("data x tensor, %s", meshes[i]);
        IN_CHILD(FOUR_SIMS, meshes[i]) {
            mesh_open();
            if (i == 0)
                data_and_tensor();
            ranks();
            bad_input();
            multi_close();
        }
    }
    group("data x tensor: bits and memory");
    IN_CHILD(FOUR_SIMS, meshes[0], "CTRT_CANONICAL=2") {
        mesh_open();
        same_bits();
        multi_close();
    }
    IN_CHILD(FOUR_SIMS, meshes[0], "CTRT_MEMORY=direct") {
        mesh_open();
        memory_of_members();
        sim_open("sim:0");
        step_without_memory();
        multi_close();
    }
    return done();
}
