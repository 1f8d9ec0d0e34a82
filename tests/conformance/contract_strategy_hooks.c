/* SPDX-License-Identifier: Apache-2.0 */
/* contract_strategy_hooks.c: checks of strategies: modules with several inputs, communication hooks, ranks that end. */
#include "contract_training.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

/* ---- modules with several inputs ---- */

/* y = linear(x) times the second input, which may be NULL. */
static ctrt_status masked_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_module *linear = NULL;
    CTRT_TRY(ctrt_module_child(NULL, &linear, self, 0));
    CTRT_TRY(ctrt_forward(y, linear, inputs[0]));
    return count > 1 && inputs[1] != NULL ? ctrt_mul(y, *y, inputs[1]) : CTRT_OK;
}

static const ctrt_module_class masked_class = {
    .size = sizeof(ctrt_module_class), .kind = "Masked", .forward = masked_forward,
};

static ctrt_status masked_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    ctrt_module *linear = NULL;
    CTRT_TRY(ctrt_module_new(&self, &masked_class));
    CTRT_TRY(ctrt_linear_new(&linear, FEATURES, CLASSES, true, device));
    CTRT_TRY(ctrt_module_add_module(self, "linear", linear));
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

/* The mean of the squares; fails unless the function gets all inputs, with their rows. */
static ctrt_status inputs_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    const bool *masked = user;
    if (count != 3 || (inputs[1] != NULL) != *masked || inputs[2] == NULL
        || ctrt_tensor_size(inputs[2], 0) != ctrt_tensor_size(output, 0))
        return ctrt_fail(CTRT_ERR_INTERNAL, "the loss function gets %d inputs, or other ones than the step", count);
    CTRT_TRY(ctrt_square(loss, output));
    return ctrt_mean(loss, *loss, CTRT_ALL_DIMS);
}

static void forward_both(struct pair *pair, bool masked)
{
    CTRT_AUTO(tensor) got = NULL, expected = NULL;
    ctrt_tensor *inputs[INPUTS];
    batch_new(inputs, pair->setup, false, 13, 7);
    ctrt_tensor *const both[] = { inputs[0], masked ? inputs[MASK] : NULL };
    contract_step("ctrt_forward_n with two inputs%s", masked ? "" : ", the second NULL");
    ctrt_no_grad contract_ok(ctrt_forward_n(&got, pair->net, both, 2));
    ctrt_no_grad contract_ok(ctrt_forward_n(&expected, pair->single, both, 2));
    expect_near(got, expected, "the output for two inputs");
    batch_free(inputs);
}

static void inputs_body(const struct setup *setup)
{
    struct pair pair;
    pair_new(&pair, setup, masked_new);
    for (int turn = 0; turn < 4; turn++) {
        bool masked = turn != 2;
        for (int side = 0; side < 2; side++) {
            CTRT_AUTO(tensor) loss = NULL;
            ctrt_tensor *inputs[INPUTS];
            batch_new(inputs, setup, side == 1, 13, turn);
            contract_step("ctrt_parallel_step_n with two inputs of the module%s", masked ? "" : ", the second NULL");
            const ctrt_status status = ctrt_parallel_step_n(
                &loss, side == 0 ? pair.net : pair.single,
                (ctrt_tensor *[]){ inputs[0], masked ? inputs[MASK] : NULL, inputs[LABELS] }, 3, 2, inputs_loss,
                &masked);
            if (side == 0 && turn == 0 && status == CTRT_ERR_NOT_SUPPORTED)
                contract_skip("%s", ctrt_error_message());
            contract_ok(status);
            batch_free(inputs);
        }
        forward_both(&pair, masked);
        pair_expect_gradients(&pair, "after a step with two inputs of the module");
        pair_optimize(&pair);
    }
    pair_expect_parameters(&pair, "after steps with two inputs of the module");
    pair_free(&pair);
}

static void check_inputs(void)
{
    in_setups(inputs_body, true);
}

/* ---- hooks ---- */

struct hook { int calls, stages, last; bool fails; };

/* In its second stage it does nothing, as a hook does that divides what it has compressed. */
static ctrt_status sum_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    struct hook *hook = user;
    EXPECT(bucket->flat != NULL && bucket->count > 0 && bucket->comm != NULL && ctrt_tensor_ndim(bucket->flat) == 1,
           "a bucket without gradients or communicator");
    hook->last += bucket->last && stage == 0;
    if (stage > 0) {
        hook->stages++;
        return CTRT_OK;
    }
    hook->calls++;
    if (hook->fails)
        return ctrt_fail(CTRT_ERR_STATE, "the hook of the check fails");
    return ctrt_comm_all_reduce(work, bucket->comm, bucket->flat, CTRT_COMM_SUM);
}

static void hook_body(const struct setup *setup)
{
    struct pair pair;
    struct hook hook = { .calls = 0 };
    CTRT_AUTO(tensor) loss = NULL;
    pair_new(&pair, setup, mlp_new);
    contract_step("ctrt_parallel_set_comm_hook");
    const ctrt_status status = ctrt_parallel_set_comm_hook(pair.net, sum_hook, &hook);
    if (status == CTRT_ERR_NOT_SUPPORTED)
        contract_skip("%s", ctrt_error_message());
    contract_ok(status);
    for (int turn = 0; turn < 4; turn++) {
        if (turn == 3)
            contract_ok(ctrt_parallel_set_comm_hook(pair.net, NULL, NULL));
        const int calls = hook.calls;
        (void)pair_step(&pair, 13, turn, LOSS_MEAN);
        pair_expect_gradients(&pair, turn < 3 ? "after a step with a hook" : "after a step without the hook");
        pair_optimize(&pair);
        EXPECT((hook.calls > calls) == (turn < 3), "the hook was%s called", turn < 3 ? " not" : "");
    }
    EXPECT(hook.stages == hook.calls, "%d second stages for %d works that a hook has written", hook.stages, hook.calls);
    EXPECT(hook.last == 3, "in 3 steps %d buckets were the last", hook.last);
    contract_ok(ctrt_parallel_set_comm_hook(pair.net, sum_hook, &hook));
    hook.fails = setup->rank->number == 1;
    contract_step("a step whose hook fails on rank 1");
    contract_refused(net_step(&pair, &loss, 13, 5, contract_losses[LOSS_MEAN].function, NULL), CTRT_OK);
    EXPECT(!hook.fails || strstr(contract_failure.text, "the hook of the check fails") != NULL,
           "the message is not that of the hook: %s", contract_failure.text);
    atomic_fetch_add(&board->step, 1);          /* no rank leaves before the others have failed */
    ranks_await(&board->step, setup->rank->count);
    pair_free(&pair);
}

static void check_hook(void)
{
    if (!CTRT_SLOT(contract_table, set_comm_hook) || !(contract_table->flags & CTRT_STRATEGY_RANKS))
        contract_skip("it has no set_comm_hook");
    if (contract_table->flags & CTRT_STRATEGY_DIFFERS)
        contract_skip("it has CTRT_STRATEGY_DIFFERS, and one rank calls no hooks");
    in_setups(hook_body, true);
}

/* ---- ranks that end ---- */

static void dead_body(const struct setup *setup)
{
    struct pair pair;
    CTRT_AUTO(tensor) loss = NULL;
    const int last = setup->rank->count - 1;
    ctrt_status status = CTRT_OK;
    pair_new(&pair, setup, mlp_new);
    contract_ok(net_step(&pair, &loss, 12, 0, contract_losses[LOSS_MEAN].function, NULL));
    contract_ok(ctrt_optimizer_step(pair.optimizer));
    if (setup->rank->number == last) {
        ranks_await(&board->step, last);
        atomic_store(&board->killed[last], true);
        kill(getpid(), SIGKILL);
    }
    atomic_fetch_add(&board->step, 1);
    const double begin = seconds_now();
    /* Ranks that do not wait for others in every step notice it later. */
    for (int n = 1; n < 20 && status == CTRT_OK; n++) {
        status = net_step(&pair, &loss, 12, n, contract_losses[LOSS_MEAN].function, NULL);
        if (status == CTRT_OK)
            status = ctrt_optimizer_step(pair.optimizer);
    }
    contract_refused(status, CTRT_ERR_COMM);
    EXPECT(seconds_now() - begin < 6, "the step failed %.1f s after a rank had ended", seconds_now() - begin);
    EXPECT(strstr(contract_failure.text, "rank 2") != NULL, "the message does not name rank 2, which has ended: %s",
           contract_failure.text);
    pair_free(&pair);
}

static void check_dead(void)
{
    if (!(contract_table->flags & CTRT_STRATEGY_RANKS))
        contract_skip("it has no CTRT_STRATEGY_RANKS");
    in_setups(dead_body, false);
}

const struct contract_check contract_strategy_hook_checks[] = {
    { "inputs", check_inputs, 0,
      "the first batch->module_inputs inputs go to the module, all to the loss function; inputs[1] and following may "
      "be NULL, also in forward" },
    { "hook", check_hook, 0,
      "set_comm_hook: the hook adds up the gradients in place of the strategy, in stages; its error ends the step on "
      "all ranks" },
    { "dead", check_dead, 0, "when a rank has ended, the steps of the others fail" },
    { NULL, NULL, 0, NULL },
};
