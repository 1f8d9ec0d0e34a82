/* SPDX-License-Identifier: Apache-2.0 */
/* contract_strategy.c: checks of strategies (ctrt/strategy_plugin.h), by the public functions of parallel strategies,
 * against the strategy `single` on the same rows. */
#include "contract_training.h"

#include <malloc.h>
#include <math.h>
#include <unistd.h>

enum { ALONE = 100 };                           /* `needs` of checks that run no net */
static int checked_loss;                        /* the loss of the check */

/* ---- training ---- */

static void train(const struct setup *setup, make_module make, int rows, int loss)
{
    struct pair pair;
    pair_new(&pair, setup, make);
    for (int turn = 0; turn < 4; turn++) {
        if (!pair_step(&pair, rows, turn, loss))
            contract_skip("it has no losses like %s: %s", contract_losses[loss].name, ctrt_error_message());
        pair_expect_gradients(&pair, "after a step");
        pair_optimize(&pair);
    }
    pair_expect_parameters(&pair, "after 4 steps");
    pair_free(&pair);
}

static void equal_body(const struct setup *setup)
{
    train(setup, mlp_new, 12, checked_loss);
}

static void uneven_body(const struct setup *setup)
{
    train(setup, mlp_new, 13, checked_loss);
    train(setup, mlp_new, 7, checked_loss);
}

static void few_body(const struct setup *setup)
{
    train(setup, mlp_new, 2, LOSS_MEAN);
    train(setup, mlp_new, 1, LOSS_MEAN);
}

static void shared_body(const struct setup *setup)
{
    train(setup, shared_new, 9, LOSS_MEAN);
}

static void check_equal(void)
{
    in_setups(equal_body, true);
}

/* With a number of rows that the parts do not divide, because only then the divisors of the parts differ. */
static void check_loss(void)
{
    in_setups(uneven_body, true);
}

static void check_few(void)
{
    in_setups(few_body, true);
}

static void check_shared(void)
{
    in_setups(shared_body, true);
}

/* ---- accumulation ---- */

static void accumulate_body(const struct setup *setup)
{
    struct pair pair;
    pair_new(&pair, setup, mlp_new);
    for (int turn = 0; turn < 6; turn++)
        (void)pair_step(&pair, turn % 2 == 0 ? 12 : 7, turn, LOSS_MEAN);
    pair_expect_gradients(&pair, "after 6 steps without zero_grad");
    pair_optimize(&pair);
    pair_expect_parameters(&pair, "after 6 steps without zero_grad");
    pair_free(&pair);
}

/* Ranks have equally many rows, because they do not exchange their numbers in steps with no_sync. */
static void no_sync_body(const struct setup *setup)
{
    static const int losses[] = { LOSS_MEAN, LOSS_SUM, LOSS_WEIGHTS };
    for (int l = 0; l < 3; l++) {
        struct pair pair;
        bool supported = true;
        pair_new(&pair, setup, mlp_new);
        for (int turn = 0; turn < 6 && supported; turn++) {
            pair.no_sync = turn % 3 != 2;
            contract_step("ctrt_parallel_no_sync");
            contract_ok(ctrt_parallel_no_sync(pair.net, pair.no_sync));
            contract_ok(ctrt_parallel_no_sync(pair.single, pair.no_sync));
            supported = pair_step(&pair, turn % 2 == 0 ? 12 : 6, turn, losses[l]);
            if (supported && turn % 3 == 2) {
                pair_expect_gradients(&pair, "after two steps with no_sync and one without");
                pair_optimize(&pair);
            }
        }
        if (supported)
            pair_expect_parameters(&pair, "after steps with no_sync");
        pair_free(&pair);
        if (!supported && setup->comm != NULL)  /* the communicator has ended */
            return;
    }
}

static void check_accumulate(void)
{
    in_setups(accumulate_body, true);
}

static void check_no_sync(void)
{
    in_setups(no_sync_body, true);
}

/* ---- forward ---- */

static void forward_body(const struct setup *setup)
{
    struct pair pair;
    ctrt_tensor *inputs[INPUTS];
    CTRT_AUTO(tensor) got = NULL, expected = NULL, loss = NULL;
    pair_new(&pair, setup, mlp_new);
    batch_new(inputs, setup, false, 8, 1);
    contract_step("ctrt_forward");
    contract_ok(ctrt_forward(&got, pair.net, inputs[0]));
    contract_ok(ctrt_forward(&expected, pair.single, inputs[0]));
    expect_near(got, expected, "the output");
    EXPECT(ctrt_tensor_device(got) == setup->devices[0], "the output is on %s",
           ctrt_device_name(ctrt_tensor_device(got)));
    contract_step("ctrt_backward of the output's mean");
    contract_ok(ctrt_mean(&loss, got, CTRT_ALL_DIMS));
    contract_ok(ctrt_backward(loss));
    contract_ok(ctrt_mean(&loss, expected, CTRT_ALL_DIMS));
    contract_ok(ctrt_backward(loss));
    if (setup->comm == NULL || setup->rank->count == 1)
        pair_expect_gradients(&pair, "after ctrt_forward and ctrt_backward");
    batch_free(inputs);
    pair_free(&pair);
}

/* Evaluation after training, without gradients; then training goes on. */
static void evaluate_body(const struct setup *setup)
{
    struct pair pair;
    ctrt_tensor *inputs[INPUTS];
    CTRT_AUTO(tensor) got = NULL, expected = NULL;
    pair_new(&pair, setup, norm_new);
    batch_new(inputs, setup, false, 9, 2);
    ctrt_module_train(pair.net, false), ctrt_module_train(pair.single, false);
    contract_step("ctrt_forward in evaluation mode");
    for (int n = 0; n < 2; n++) {
        ctrt_no_grad contract_ok(ctrt_forward(&got, pair.net, inputs[0]));
        ctrt_no_grad contract_ok(ctrt_forward(&expected, pair.single, inputs[0]));
        expect_near(got, expected, "the output in evaluation mode");
    }
    EXPECT(!ctrt_module_is_training(pair.module), "the module is in training mode again");
    (void)pair_step(&pair, 9, 3, LOSS_MEAN);
    pair_expect_gradients(&pair, "after a step in evaluation mode");
    batch_free(inputs);
    pair_free(&pair);
}

static void check_forward(void)
{
    in_setups(forward_body, true);
}

static void check_evaluate(void)
{
    in_setups(evaluate_body, true);
}

/* ---- failures ---- */

static ctrt_status failing_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    const int *rows = user;
    CTRT_TRY(contract_losses[LOSS_MEAN].function(loss, output, inputs, count, NULL));
    return ctrt_tensor_size(output, 0) == *rows || *rows < 0 ? ctrt_fail(CTRT_ERR_STATE, "the loss of the check fails")
                                                             : CTRT_OK;
}

/* `rows` of the failing part: with 7 rows for three parts, CEIL and BALANCED give the last part 1 or 2. */
static void failure_body(const struct setup *setup)
{
    struct pair pair;
    pair_new(&pair, setup, mlp_new);
    const bool several = setup->count > 1 || setup->comm == NULL;
    (void)pair_step(&pair, 7, 0, LOSS_MEAN);
    for (int n = 0; n < (several ? 3 : 1); n++) {
        CTRT_AUTO(tensor) loss = NULL;
        int rows = n == 0 ? -1 : n;
        ctrt_status status = net_step(&pair, &loss, 7, 1, failing_loss, &rows);
        if (n > 0 && status == CTRT_OK)         /* no part has so many rows: then this was a step */
            break;
        contract_refused(status, CTRT_ERR_STATE);
        EXPECT(strstr(contract_failure.text, "the loss of the check fails") != NULL,
               "the message is not that of the loss function: %s", contract_failure.text);
        EXPECT(loss == NULL, "*loss was written");
        pair_expect_gradients(&pair, "after a step that failed");
        (void)pair_step(&pair, 7, n + 2, LOSS_MEAN);
        pair_expect_gradients(&pair, "after the step after one that failed");
    }
    pair_free(&pair);
}

static void ranks_fail_body(const struct setup *setup)
{
    struct pair pair;
    CTRT_AUTO(tensor) loss = NULL;
    int rows = -1;
    pair_new(&pair, setup, mlp_new);
    (void)net_step(&pair, &loss, 7, 0, contract_losses[LOSS_MEAN].function, NULL);
    const bool fails = setup->rank->number == 1;
    const double begin = seconds_now();
    ctrt_status status = CTRT_OK;
    /* Ranks that do not wait for others in every step notice it later. */
    for (int n = 1; n < 20 && status == CTRT_OK; n++) {
        status = net_step(&pair, &loss, 9, n, fails ? failing_loss : contract_losses[LOSS_MEAN].function, &rows);
        if (status == CTRT_OK)
            status = ctrt_optimizer_step(pair.optimizer);
    }
    contract_refused(status, CTRT_OK);
    EXPECT(fails || strstr(contract_failure.text, "the loss of the check fails") != NULL
               || status == CTRT_ERR_COMM, "returned not the failure of rank 1, but: %s", contract_failure.text);
    EXPECT(seconds_now() - begin < 5, "the step failed after %.1f s only", seconds_now() - begin);
    atomic_fetch_add(&board->step, 1);          /* rank 1 does not leave before the others have failed */
    ranks_await(&board->step, setup->rank->count);
    pair_free(&pair);
}

static void check_failure(void)
{
    if (contract_table->flags & CTRT_STRATEGY_RANKS)
        in_setups(ranks_fail_body, false);
    else
        in_setups(failure_body, true);
}

/* ---- files ---- */

static void checkpoint_body(const struct setup *setup)
{
    struct pair pair, second;
    char path[256];
    pair_new(&pair, setup, mlp_new);
    for (int turn = 0; turn < 2; turn++) {
        (void)pair_step(&pair, 12, turn, LOSS_MEAN);
        pair_optimize(&pair);
    }
    pair_expect_parameters(&pair, "after ctrt_save");
    (void)pair_step(&pair, 12, 2, LOSS_MEAN);
    pair_expect_gradients(&pair, "after ctrt_save and a step");
    /* A file that `single` has written, loaded under the strategy. */
    contract_path(path, 1);
    contract_step("ctrt_save under single");
    contract_ok(ctrt_save(pair.single, path));
    pair_new(&second, setup, mlp_new);
    (void)pair_step(&second, 12, 9, LOSS_MEAN);
    pair_optimize(&second);
    contract_step("ctrt_load into the net");
    contract_ok(ctrt_load(second.net, path));
    contract_ok(ctrt_load(second.single, path));
    unlink(path);
    pair_expect_parameters(&second, "after ctrt_load");
    (void)pair_step(&second, 12, 4, LOSS_MEAN);
    pair_expect_gradients(&second, "after ctrt_load and a step");
    pair_free(&second);
    pair_free(&pair);
}

static void check_checkpoint(void)
{
    in_setups(checkpoint_body, true);
}

/* ---- canonical mode ---- */

static void canonical_body(const struct setup *setup)
{
    struct pair pair;
    char got[65], expected[65];
    setenv("CTRT_CANONICAL", "6", 1);
    pair_new(&pair, setup, mlp_new);
    for (int turn = 0; turn < 3; turn++) {
        (void)pair_step(&pair, 13, turn, LOSS_MEAN);
        pair_optimize(&pair);
    }
    contract_step("ctrt_module_sha256 in canonical mode");
    contract_ok(ctrt_module_sha256(got, pair.net));
    contract_ok(ctrt_module_sha256(expected, pair.single));
    EXPECT(strcmp(got, expected) == 0, "the parameters have other bits than with single");
    pair_free(&pair);
}

static void check_canonical(void)
{
    in_setups(canonical_body, true);
}

/* ---- properties, what is left behind ---- */

static void describe_body(const struct setup *setup)
{
    struct pair pair;
    pair_new(&pair, setup, mlp_new);
    contract_step("ctrt_parallel_describe");
    const char *text = ctrt_parallel_describe(pair.net), *name = contract_target.component->name;
    EXPECT(strncmp(text, name, strlen(name)) == 0, "it does not begin with the strategy's name: %s", text);
    EXPECT(strchr(text, '\n') == NULL, "it has several lines: %s", text);
    for (int turn = 0; turn < 3; turn++) {
        CTRT_AUTO(tensor) loss = NULL;
        contract_ok(net_step(&pair, &loss, 12, turn, contract_losses[LOSS_MEAN].function, NULL));
        EXPECT(ctrt_parallel_steps(pair.net) == turn + 1, "ctrt_parallel_steps is %lld after %d steps",
               (long long)ctrt_parallel_steps(pair.net), turn + 1);
    }
    contract_step("ctrt_parallel_barrier");
    contract_ok(ctrt_parallel_barrier(pair.net));
    pair_free(&pair);
}

static void check_describe(void)
{
    in_setups(describe_body, false);
}

static void destroy_body(const struct setup *setup)
{
    size_t space = 0;
    int files = 0;
    for (int n = 0; n < 14; n++) {
        struct pair pair;
        pair_new(&pair, setup, mlp_new);
        (void)pair_step(&pair, 12, 0, LOSS_MEAN);
        pair_optimize(&pair);
        contract_step("the end of the net");
        ctrt_optimizer_release(&pair.optimizer);
        ctrt_module_release(&pair.net);
        CTRT_AUTO(tensor) got = NULL, expected = NULL;
        ctrt_tensor *inputs[INPUTS];
        batch_new(inputs, setup, true, 8, 1);
        contract_step("ctrt_module_to and ctrt_forward of the module after the end of the net");
        contract_ok(ctrt_module_to(pair.module, setup->devices[0], CTRT_F32));
        contract_ok(ctrt_forward(&got, pair.module, inputs[0]));
        contract_ok(ctrt_forward(&expected, pair.copy, inputs[0]));
        expect_near(got, expected, "the output of the module after the end of the net");
        batch_free(inputs);
        pair_free(&pair);
        if (n == 3)
            space = contract_space(), files = contract_files();
    }
    contract_step("ten nets were created and freed");
    EXPECT(contract_files() <= files, "%d descriptors were not closed", contract_files() - files);
    EXPECT(contract_space() < space + ((size_t)24 << 20), "%zu MiB of address space were not returned",
           (contract_space() - space) >> 20);
}

static void check_destroy(void)
{
    in_setups(destroy_body, true);
}

static void estimate_body(const struct setup *setup)
{
    CTRT_AUTO(module) module = NULL;
    struct pair pair;
    char before[65], after[65];
    pair_new(&pair, setup, mlp_new);            /* so that the library has initialised the plugin */
    pair_free(&pair);
    contract_ok(mlp_new(&module, setup->devices[0]));
    const ctrt_strategy_config config = { .size = sizeof config, .module = module, .devices = setup->devices,
                                          .count = setup->count, .comm = setup->comm };
    const ctrt_strategy_facts facts = { .size = sizeof facts, .parameter_bytes = 4000, .model_bytes = 16000,
                                        .rows = 12 };
    ctrt_strategy_estimate estimate = { .size = sizeof estimate };
    contract_ok(ctrt_module_sha256(before, module));
    contract_step("estimate");
    contract_ok(contract_table->estimate(&estimate, &config, &facts));
    EXPECT(!estimate.applies || estimate.preference >= 1, "preference %d; it has to be at least 1",
           (int)estimate.preference);
    EXPECT(estimate.rows >= 0 && estimate.rows <= 12, "%lld of 12 rows", (long long)estimate.rows);
    EXPECT(memchr(estimate.reason, '\0', sizeof estimate.reason) != NULL, "the reason does not end");
    contract_ok(ctrt_module_sha256(after, module));
    EXPECT(strcmp(before, after) == 0, "it has changed the module");
}

static void check_estimate(void)
{
    if (!CTRT_SLOT(contract_table, estimate))
        contract_skip("it has no estimate");
    in_setups(estimate_body, false);
}

/* ---- the table ---- */

static void check_tables(void)
{
    const uint32_t known = CTRT_STRATEGY_RANKS | CTRT_STRATEGY_ONE_DEVICE | CTRT_STRATEGY_CAPTURE
                           | CTRT_STRATEGY_DIFFERS;
    const ctrt_strategy *t = contract_table;
    EXPECT(CTRT_SLOT(t, create) && CTRT_SLOT(t, destroy) && CTRT_SLOT(t, forward) && CTRT_SLOT(t, step),
           "required slots are create, destroy, forward and step");
    EXPECT((t->flags & ~known) == 0, "it has unknown flags: 0x%x", t->flags & ~known);
    EXPECT(!(t->flags & CTRT_STRATEGY_RANKS) || !(t->flags & CTRT_STRATEGY_ONE_DEVICE),
           "CTRT_STRATEGY_RANKS and CTRT_STRATEGY_ONE_DEVICE exclude each other");
}

/* Failures of the checks are in their results. */
static void no_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component, (void)text;
}

/* The library finds the strategy by its name, in the folder of the file. */
static void strategy_prepare(const void *table, unsigned needs)
{
    const char *folders = getenv("CTRT_PLUGIN_PATH"), *file = contract_target.file;
    char path[8192];
    contract_table = table;
    checked_loss = (int)needs;
    snprintf(path, sizeof path, "%.*s%s%s", (int)(strrchr(file, '/') - file), file, folders != NULL ? ":" : "",
             folders != NULL ? folders : "");
    setenv("CTRT_PLUGIN_PATH", path, 1);
    ctrt_log_set_callback(no_log, NULL);
    mallopt(M_ARENA_MAX, 1);                    /* each thread may get 64 MiB of address space otherwise */
}

#define EQUAL "losses, gradients and parameters are those of `single`, up to rounding"

static const struct contract_check checks[] = {
    CONTRACT_COMMON(ALONE),
    { "tables", check_tables, ALONE,
      "required slots are create, destroy, forward and step; unknown flags are refused" },
    { "train", check_equal, LOSS_MEAN, EQUAL },
    { "train.uneven", check_loss, LOSS_MEAN, EQUAL ", for every number of rows" },
    { "train.few", check_few, 0, EQUAL ", also if there are fewer rows than devices or ranks" },
    { "loss.sum", check_loss, LOSS_SUM, EQUAL ", for losses that are sums" },
    { "loss.weights", check_loss, LOSS_WEIGHTS, EQUAL ", for losses whose divisor depends on the data" },
    { "loss.ignore", check_loss, LOSS_IGNORE, EQUAL ", for losses that ignore rows" },
    { "loss.masked", check_loss, LOSS_MASKED, EQUAL ", for ctrt_loss_fraction" },
    { "loss.parameter", check_loss, LOSS_PARAMETER, EQUAL ", for losses that use a parameter (ctrt_loss_parameter)" },
    { "parameters", check_shared, 0,
      "a parameter that is not used or frozen gets no gradient; one that occurs twice gets one" },
    { "accumulate", check_accumulate, 0, "step adds to the gradients from before" },
    { "accumulate.no_sync", check_no_sync, 0, "the first step after no_sync adds up all steps since it was turned on" },
    { "forward", check_forward, 0, "forward is the forward pass of the module, recorded in grad mode" },
    { "forward.evaluate", check_evaluate, 0, "the strategy keeps the training mode of the module" },
    { "failure", check_failure, 0,
      "after a failed step the gradients are those from before; without ranks, steps can go on; with ranks all fail" },
    { "checkpoint", check_checkpoint, 0, "files are those of the module, whatever strategy has written them" },
    { "canonical", check_canonical, 0,
      "in canonical mode the bits are those of `single`, or create fails with CTRT_ERR_NOT_SUPPORTED" },
    { "describe", check_describe, 0, "describe writes one line; steps is the number of steps" },
    { "destroy", check_destroy, 0, "destroy frees the instance; the module continues without it" },
    { "estimate", check_estimate, 0, "estimate does not change the module; preference is 1 and above" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_strategy = {
    CTRT_COMPONENT_STRATEGY, "strategy", { checks, contract_strategy_hook_checks }, strategy_prepare,
};
