/* SPDX-License-Identifier: Apache-2.0 */
/* contract_training.c: nets, batches and comparisons for the checks of strategies. */
#include "contract_training.h"

#include <math.h>
#include <unistd.h>

const ctrt_strategy *contract_table;

/* ---- setups ---- */

static void (*setup_body)(const struct setup *setup);

static void rank_setup(struct rank *rank)
{
    struct setup setup = { .devices = { rank->device }, .count = 1, .rank = rank };
    const ctrt_comm_options options = { .size = sizeof options, .device = rank->device, .store = rank->store,
                                        .rank = rank->number, .world_size = rank->count, .timeout = 10 };
    contract_step("rank %d of %d joins the group of the check", rank->number, rank->count);
    contract_ok(ctrt_comm_new(&setup.comm, &options));
    setup_body(&setup);
    ctrt_comm_release(&setup.comm);
}

static void device_setup(const char *type, int count)
{
    struct setup setup = { .count = count };
    char name[32];
    contract_step("opening %d devices of the type %s", count, type);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, strcmp(type, "cpu") == 0 ? "%s" : "%s:%d", type, i);
        contract_ok(ctrt_device_get(&setup.devices[i], name));
    }
    setup_body(&setup);
}

void in_setups(void (*body)(const struct setup *setup), bool compares)
{
    const bool one = compares && (contract_table->flags & CTRT_STRATEGY_DIFFERS);
    setup_body = body;
    if (contract_table->flags & CTRT_STRATEGY_RANKS) {
        ranks_in_processes(one ? 1 : RANKS, rank_setup);
    } else if (one || (contract_table->flags & CTRT_STRATEGY_ONE_DEVICE)) {
        device_setup("cpu", 1);
    } else {
        device_setup("cpu", PARTS);
        if (ctrt_device_count("sim") >= 2)
            device_setup("sim", 2);
    }
}

/* ---- modules ---- */

ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(8), NULL, device),
                                                 CTRT_NEW(linear, 8, CLASSES, false, device)));
}

ctrt_status norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 4, true, device),
                                                 CTRT_NEW(batch_norm1d, 4, NULL, device), CTRT_NEW(dropout, 0.25),
                                                 CTRT_NEW(linear, 4, CLASSES, true, device)));
}

/* y = tanh(x w) w^T frozen; w is a parameter of two children. */
static ctrt_status shared_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_AUTO(tensor) transposed = NULL;
    ctrt_tensor *weight = NULL, *again = NULL, *frozen = NULL;
    ctrt_module *second = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "first.weight"));
    CTRT_TRY(ctrt_module_child(NULL, &second, self, 1));
    CTRT_TRY(ctrt_module_tensor(&again, second, "weight"));
    CTRT_TRY(ctrt_module_tensor(&frozen, self, "frozen"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], weight));
    CTRT_TRY(ctrt_tanh(y, *y));
    CTRT_TRY(ctrt_transpose(&transposed, again, 0, 1));
    CTRT_TRY(ctrt_matmul(y, *y, transposed));
    return ctrt_mul(y, *y, frozen);
}

static ctrt_status part_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    ctrt_tensor_assign(y, inputs[0]);
    return CTRT_OK;
}

static const ctrt_module_class shared_class = {
    .size = sizeof(ctrt_module_class), .kind = "Shared", .forward = shared_forward,
};
static const ctrt_module_class part_class = {
    .size = sizeof(ctrt_module_class), .kind = "Part", .forward = part_forward,
};

ctrt_status shared_new(ctrt_module **out, ctrt_device *device)
{
    static const char *const children[2] = { "first", "second" }, *const others[2] = { "unused", "frozen" };
    CTRT_AUTO(module) self = NULL;
    CTRT_AUTO(tensor) weight = NULL;
    CTRT_TRY(ctrt_full(&weight, CTRT_SHAPE(FEATURES, CLASSES), ctrt_float(0.3), CTRT_F32, device));
    CTRT_TRY(ctrt_module_new(&self, &shared_class));
    for (int i = 0; i < 2; i++) {
        ctrt_module *part = NULL;
        CTRT_TRY(ctrt_module_new(&part, &part_class));
        CTRT_TRY(ctrt_module_add_parameter(part, "weight", weight));
        CTRT_TRY(ctrt_module_add_module(self, children[i], part));
    }
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(tensor) other = NULL;
        CTRT_TRY(ctrt_full(&other, CTRT_SHAPE(FEATURES), ctrt_float(0.5), CTRT_F32, device));
        CTRT_TRY(ctrt_module_add_parameter(self, others[i], other));
        if (i == 1)
            CTRT_TRY(ctrt_tensor_require_grad(other, false));
    }
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

static ctrt_optimizer *optimizer_new(ctrt_module *net)
{
    ctrt_optimizer *optimizer = NULL;
    ctrt_sgd_options options = CTRT_SGD_OPTIONS;
    options.lr = 0.05;
    options.momentum = 0.9;
    contract_ok(ctrt_sgd_new(&optimizer, net, &options));
    return optimizer;
}

void pair_new(struct pair *pair, const struct setup *setup, make_module make)
{
    const char *name = contract_target.component->name;
    CTRT_AUTO(module) original = NULL;
    ctrt_device *cpu = NULL;
    *pair = (struct pair){ .setup = setup };
    contract_step("creating the module");
    contract_ok(ctrt_device_get(&cpu, "cpu"));
    contract_ok(ctrt_generator_set(cpu, 7, 0));
    contract_ok(make(&original, cpu));
    contract_ok(ctrt_module_copy(&pair->module, original, setup->devices[0]));
    contract_ok(ctrt_module_copy(&pair->copy, original, setup->devices[0]));
    contract_ok(ctrt_parallel_new(&pair->single, pair->copy, "single", setup->devices, 1));
    contract_step("ctrt_parallel_new with the strategy %s", name);
    ctrt_status status = setup->comm != NULL ? ctrt_parallel_new_comm(&pair->net, pair->module, name, setup->comm)
                                             : ctrt_parallel_new(&pair->net, pair->module, name, setup->devices,
                                                                 setup->count);
    if (status == CTRT_ERR_NOT_SUPPORTED)
        contract_skip("%s", ctrt_error_message());
    contract_ok(status);
    pair->optimizer = optimizer_new(pair->net);
    pair->single_optimizer = optimizer_new(pair->single);
}

void pair_free(struct pair *pair)
{
    contract_step("the end of the net");
    ctrt_optimizer_release(&pair->optimizer), ctrt_optimizer_release(&pair->single_optimizer);
    ctrt_module_release(&pair->net), ctrt_module_release(&pair->single);
    ctrt_module_release(&pair->module), ctrt_module_release(&pair->copy);
}

/* ---- losses ---- */

#define LOSS(name)                                                                                              \
    static ctrt_status name(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)

LOSS(loss_mean)
{
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

LOSS(loss_sum)
{
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_sum(loss, *loss, CTRT_ALL_DIMS);
}

LOSS(loss_weights)
{
    CTRT_AUTO(tensor) weight = NULL;
    ctrt_cross_entropy_options options = CTRT_CROSS_ENTROPY_OPTIONS;
    (void)count, (void)user;
    CTRT_TRY(ctrt_from_data(&weight, (float[]){ 0.25f, 1, 2.5f }, CLASSES, CTRT_SHAPE(CLASSES), CTRT_F32,
                            ctrt_tensor_device(output)));
    options.weight = weight;
    return ctrt_cross_entropy(loss, output, inputs[LABELS], &options);
}

LOSS(loss_ignore)
{
    ctrt_cross_entropy_options options = CTRT_CROSS_ENTROPY_OPTIONS;
    (void)count, (void)user;
    options.ignore_index = 1;
    return ctrt_cross_entropy(loss, output, inputs[LABELS], &options);
}

LOSS(loss_masked)
{
    CTRT_AUTO(tensor) sum = NULL, number = NULL;
    (void)count, (void)user;
    CTRT_TRY(ctrt_square(&sum, output));
    CTRT_TRY(ctrt_mul(&sum, sum, inputs[MASK]));
    CTRT_TRY(ctrt_sum(&sum, sum, CTRT_ALL_DIMS));
    ctrt_no_grad CTRT_TRY(ctrt_sum(&number, inputs[MASK], CTRT_ALL_DIMS));
    return ctrt_loss_fraction(loss, sum, number);
}

/* A mean and the squares of a parameter of the module, `user`. */
LOSS(loss_parameter)
{
    CTRT_AUTO(tensor) penalty = NULL;
    CTRT_TRY(loss_mean(loss, output, inputs, count, NULL));
    CTRT_TRY(ctrt_loss_parameter(&penalty, user));
    CTRT_TRY(ctrt_square(&penalty, penalty));
    CTRT_TRY(ctrt_sum(&penalty, penalty, CTRT_ALL_DIMS));
    return ctrt_add(loss, *loss, penalty);
}

const struct loss_kind contract_losses[] = {
    [LOSS_MEAN] = { "a mean", loss_mean },
    [LOSS_SUM] = { "a sum", loss_sum },
    [LOSS_WEIGHTS] = { "a cross entropy with class weights", loss_weights },
    [LOSS_IGNORE] = { "a cross entropy with ignore_index", loss_ignore },
    [LOSS_MASKED] = { "a masked mean", loss_masked },
    [LOSS_PARAMETER] = { "a mean and a penalty", loss_parameter },
};

/* ---- batches ---- */

void batch_new(ctrt_tensor *inputs[INPUTS], const struct setup *setup, bool whole, int rows, int turn)
{
    float x[ROWS_MOST * FEATURES], mask[ROWS_MOST];
    int64_t labels[ROWS_MOST], sizes[RANKS_MOST];
    int from = 0, mine = rows, pieces;
    if (setup->comm != NULL && !whole) {
        const ctrt_scatter_options balanced = { .size = sizeof balanced, .rule = CTRT_CHUNK_BALANCED };
        contract_ok(ctrt_chunk_sizes(sizes, &pieces, rows, setup->rank->count, &balanced));
        for (int i = 0; i < setup->rank->number; i++)
            from += (int)sizes[i];
        mine = (int)sizes[setup->rank->number];
    }
    for (int i = 0; i < mine; i++) {
        const int row = from + i;
        for (int k = 0; k < FEATURES; k++)
            x[i * FEATURES + k] = (float)sin(turn * 1000 + row * FEATURES + k);
        labels[i] = (row + turn) % 4 % CLASSES;
        mask[i] = row % 3 != 1;
    }
    ctrt_device *device = setup->devices[0];
    for (int i = 0; i < INPUTS; i++)
        inputs[i] = NULL;
    contract_ok(ctrt_from_data(&inputs[0], x, mine * FEATURES, CTRT_SHAPE(mine, FEATURES), CTRT_F32, device));
    contract_ok(ctrt_from_data(&inputs[LABELS], labels, mine, CTRT_SHAPE(mine), CTRT_I64, device));
    contract_ok(ctrt_from_data(&inputs[MASK], mask, mine, CTRT_SHAPE(mine, 1), CTRT_F32, device));
}

void batch_free(ctrt_tensor *inputs[INPUTS])
{
    for (int i = 0; i < INPUTS; i++)
        ctrt_tensor_release(&inputs[i]);
}

/* ---- steps ---- */

ctrt_status net_step(struct pair *pair, ctrt_tensor **out, int rows, int turn, ctrt_loss_function loss, void *user)
{
    ctrt_tensor *inputs[INPUTS];
    batch_new(inputs, pair->setup, false, rows, turn);
    contract_step("ctrt_parallel_step %d, %d rows in all", turn, rows);
    ctrt_status status = ctrt_parallel_step(out, pair->net, inputs, INPUTS, loss, user);
    batch_free(inputs);
    return status;
}

static ctrt_tensor *first_parameter(ctrt_module *module)
{
    ctrt_tensor *tensor = NULL;
    contract_ok(ctrt_module_parameter(NULL, &tensor, module, 0));
    return tensor;
}

/* Whether this rank, or another one, which has ended the group, has refused losses of that kind. */
static bool refuses(const struct pair *pair, ctrt_status status, int loss)
{
    const bool refused = status == CTRT_ERR_NOT_SUPPORTED || (status == CTRT_ERR_STATE && loss == LOSS_PARAMETER);
    if (refused && pair->setup->comm != NULL)
        atomic_store(&board->step, 1);
    for (int n = 0; n < 500 && status == CTRT_ERR_COMM && !atomic_load(&board->step); n++)
        contract_sleep(2);
    return refused || (status == CTRT_ERR_COMM && atomic_load(&board->step));
}

bool pair_step(struct pair *pair, int rows, int turn, int loss)
{
    CTRT_AUTO(tensor) got = NULL, expected = NULL;
    ctrt_tensor *inputs[INPUTS];
    const struct loss_kind *kind = &contract_losses[loss];
    double value = NAN, wanted = NAN;
    ctrt_status status = net_step(pair, &got, rows, turn, kind->function, first_parameter(pair->module));
    if (loss != LOSS_MEAN && refuses(pair, status, loss))
        return false;
    contract_ok(status);
    batch_new(inputs, pair->setup, true, rows, turn);
    contract_ok(ctrt_item(&value, got));
    contract_ok(ctrt_parallel_step(&expected, pair->single, inputs, INPUTS, kind->function,
                                   first_parameter(pair->copy)));
    contract_ok(ctrt_item(&wanted, expected));
    batch_free(inputs);
    EXPECT(pair->no_sync || fabs(value - wanted) <= 1e-5 * fmax(1, fabs(wanted)),
           "the loss, %s, of step %d of %d rows is %.7g; with single %.7g", kind->name, turn, rows, value, wanted);
    return true;
}

void pair_optimize(struct pair *pair)
{
    contract_step("ctrt_optimizer_step");
    contract_ok(ctrt_optimizer_step(pair->optimizer));
    contract_ok(ctrt_optimizer_step(pair->single_optimizer));
    contract_ok(ctrt_optimizer_zero_grad(pair->optimizer, true));
    contract_ok(ctrt_optimizer_zero_grad(pair->single_optimizer, true));
}

/* ---- comparison ---- */

void expect_near(ctrt_tensor *got, ctrt_tensor *expected, const char *what)
{
    const int64_t count = ctrt_tensor_numel(expected);
    const size_t bytes = (size_t)count * sizeof(double);
    double *a = contract_alloc(bytes), *b = contract_alloc(bytes), largest = 0;
    EXPECT(ctrt_tensor_numel(got) == count, "%s: %lld elements, expected %lld", what, (long long)ctrt_tensor_numel(got),
           (long long)count);
    contract_ok(ctrt_to_host(a, bytes, got, CTRT_F64));
    contract_ok(ctrt_to_host(b, bytes, expected, CTRT_F64));
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(b[i]));
    for (int64_t i = 0; i < count; i++)
        EXPECT(fabs(a[i] - b[i]) <= 1e-6 + 1e-4 * largest, "%s: element %lld is %.7g; with single %.7g", what,
               (long long)i, a[i], b[i]);
    free(a), free(b);
}

void pair_expect_gradients(struct pair *pair, const char *when)
{
    double norm = 0, wanted = 0;
    for (size_t i = 0; i < ctrt_module_parameter_count(pair->copy); i++) {
        ctrt_tensor *mine = NULL, *reference = NULL;
        const char *name = NULL;
        char what[160];
        contract_ok(ctrt_module_parameter(NULL, &mine, pair->module, i));
        contract_ok(ctrt_module_parameter(&name, &reference, pair->copy, i));
        ctrt_tensor *got = ctrt_tensor_grad(mine), *expected = ctrt_tensor_grad(reference);
        EXPECT(!got == !expected, "%s: parameter \"%s\" has %s gradient; with single it has %s", when, name,
               got != NULL ? "a" : "no", expected != NULL ? "one" : "none");
        snprintf(what, sizeof what, "%s: the gradient of \"%s\"", when, name);
        if (got != NULL && ctrt_tensor_numel(mine) == ctrt_tensor_numel(reference))
            expect_near(got, expected, what);
    }
    contract_step("ctrt_clip_grad_norm_");
    contract_ok(ctrt_clip_grad_norm_(&norm, pair->net, 1e9));
    contract_ok(ctrt_clip_grad_norm_(&wanted, pair->single, 1e9));
    EXPECT(fabs(norm - wanted) <= 1e-4 * wanted + 1e-7, "%s: the norm of all gradients is %.7g; with single %.7g", when,
           norm, wanted);
}

void pair_save(struct pair *pair, char path[256], int number)
{
    contract_path(path, number);
    contract_step("ctrt_save of the net");
    contract_ok(ctrt_save(pair->net, path));
}

/* As a file would have them, because the strategy may have divided the parameters. If this rank writes no file, the
 * rank that does compares. */
void pair_expect_parameters(struct pair *pair, const char *when)
{
    CTRT_AUTO(module) loaded = NULL;
    ctrt_tensor *got = NULL, *expected = NULL;
    const char *name = NULL;
    char path[256], what[160];
    pair_save(pair, path, 0);
    if (access(path, F_OK) != 0)
        return;
    contract_ok(ctrt_module_copy(&loaded, pair->copy, NULL));
    contract_ok(ctrt_load(loaded, path));
    unlink(path);
    for (size_t i = 0; ctrt_module_parameter(&name, &expected, pair->copy, i) == CTRT_OK; i++) {
        contract_ok(ctrt_module_parameter(NULL, &got, loaded, i));
        snprintf(what, sizeof what, "%s: parameter \"%s\"", when, name);
        expect_near(got, expected, what);
    }
}
