/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy `template`: local SGD. Every rank (a process with one device) trains the whole module on its own rows,
 * with gradients and optimizer of its own. Every TEMPLATE_STEPS optimizer steps the parameters become their mean over
 * all ranks (Stich 2018, "Local SGD converges fast and communicates little"). With N steps between two means the ranks
 * exchange 1/N of the bytes that `distributed` exchanges, and are different models in between.
 *
 *     CTRT_STRATEGY=template TEMPLATE_STEPS=8 ctrt run -n 4 ./program
 *
 * A strategy is a plugin with a table of functions, ctrt_strategy, whose contract is ctrt/strategy_plugin.h. It may
 * call everything in ctrt.h. The library creates one instance for each ctrt_parallel_new, checks the arguments of the
 * program, puts the strategy's name before error messages, and never makes two calls for one instance at the same
 * time. */
#include <ctrt/ctrt.h>
#include <ctrt/strategy_plugin.h>

#include <stdio.h>
#include <stdlib.h>

static const ctrt_host *host;               /* the library's functions for plugins; set by init */

/* A parameter of the strategy: an environment variable that `ctrt info --params` lists with this text. */
static const ctrt_param steps_param = {
    .size = sizeof(ctrt_param), .name = "TEMPLATE_STEPS", .type = CTRT_PARAM_INT, .fallback = "8",
    .help = "template: optimizer steps between two means of the parameters of all ranks",
};

static const ctrt_param auto_param = {
    .size = sizeof(ctrt_param), .name = "TEMPLATE_AUTO", .type = CTRT_PARAM_BOOL, .fallback = "0",
    .help = "template: the strategy `auto` may choose it",
};

struct local_sgd {
    ctrt_module *module;                    /* borrowed, as everything in the configuration */
    ctrt_device *device;
    ctrt_comm *comm;
    int64_t every, steps, averaged;         /* the parameter; optimizer steps so far; means so far */
    size_t parameters;
    ctrt_tensor **before, **grads;          /* gradients from before a step, and of the step; room for all parameters */
};

/* ---- communication ---- */

/* Parameters, then buffers: the running statistics of batch norm. Returns NULL past the last one. */
static ctrt_tensor *tensor_at(const struct local_sgd *a, size_t i)
{
    ctrt_tensor *tensor = NULL;
    (void)(i < a->parameters ? ctrt_module_parameter(NULL, &tensor, a->module, i)
                             : ctrt_module_buffer(NULL, &tensor, a->module, i - a->parameters));
    return tensor;
}

/* All ranks begin with the values of rank 0. Collectives change tensors in place, which autograd permits for parameters
 * only without grad mode. The argument NULL: the call returns when the collective is done. */
static ctrt_status begin_equal(const struct local_sgd *a)
{
    ctrt_tensor *tensor;
    for (size_t i = 0; (tensor = tensor_at(a, i)) != NULL; i++)
        CTRT_TRY(ctrt_comm_broadcast(NULL, a->comm, tensor, 0));
    return CTRT_OK;
}

/* The tensors stay the same, so the optimizer and the program need not know. Integers, such as the number of batches
 * that batch norm has seen, have no mean. */
static ctrt_status average(struct local_sgd *a)
{
    ctrt_tensor *tensor;
    for (size_t i = 0; (tensor = tensor_at(a, i)) != NULL; i++)
        if (ctrt_dtype_is_floating(ctrt_tensor_dtype(tensor)))
            CTRT_TRY(ctrt_comm_all_reduce(NULL, a->comm, tensor, CTRT_COMM_AVERAGE));
    a->averaged++;
    host->log(CTRT_LOG_INFO, "template", "mean of %zu parameters after step %lld", a->parameters,
              (long long)a->steps);
    return CTRT_OK;
}

/* ---- the functions of the table ---- */

static void local_destroy(void *self)
{
    struct local_sgd *a = self;
    free(a->before);
    free(a->grads);
    free(a);
}

/* `config` has the module, this rank's device and the communicator, because the strategy has the flag
 * CTRT_STRATEGY_RANKS. All ranks call this function. On a failure nothing may remain. */
static ctrt_status local_create(void **out, const ctrt_strategy_config *config)
{
    ctrt_param_value steps;
    CTRT_TRY(host->param(&steps, &steps_param));
    if (steps.integer < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "TEMPLATE_STEPS=%s: expected a positive number", steps.text);
    if (config->canonical > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_CANONICAL: the result depends on the number of ranks");
    struct local_sgd *a = calloc(1, sizeof *a);
    if (a == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory");
    a->module = config->module;
    a->device = config->devices[0];
    a->comm = config->comm;
    a->every = steps.integer;
    a->parameters = ctrt_module_parameter_count(a->module);
    a->before = calloc(a->parameters + 1, sizeof *a->before);
    a->grads = calloc(a->parameters + 1, sizeof *a->grads);
    ctrt_status status = CTRT_OK;
    if (a->before == NULL || a->grads == NULL)
        status = ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory");
    if (status == CTRT_OK)
        ctrt_no_grad status = begin_equal(a);
    if (status == CTRT_OK)
        *out = a;
    else
        local_destroy(a);
    return status;
}

/* ctrt_forward: the module as it is. */
static ctrt_status local_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    const struct local_sgd *a = self;
    return ctrt_forward_n(y, a->module, inputs, count);
}

/* ctrt_parallel_step: forward, loss and backward of this rank's rows; *loss is that of these. A rank may have no rows.
 * If the step fails, the gradients must be those from before, so they are put aside first. ctrt_step_finish adds to
 * them. The loss may be of any kind, because no other rank contributes to what it is divided by. A strategy that adds
 * up gradients of several parts leaves `partial` as it is, and adds the parts up too (ctrt_loss_part_add).
 *
 * A rank whose step fails ends the communicator, because the other ranks would wait for it at the next mean. */
static ctrt_status local_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct local_sgd *a = self;
    if (batch->rows == 0)
        return ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(0), CTRT_F32, a->device);
    if (ctrt_module_parameter_count(a->module) != a->parameters)
        return ctrt_fail(CTRT_ERR_STATE, "the module's parameters are not those of ctrt_parallel_new; call it again");
    CTRT_TRY(ctrt_gradients_take(a->before, a->module));
    ctrt_strategy_batch own = *batch;
    ctrt_loss_part part = { .parts = 0 };
    own.partial = (int16_t)(own.partial & ~CTRT_PARTIAL_RANKS);
    ctrt_status status = ctrt_part_backward(loss, &part, a->module, a->device, &own, 0, own.rows, 1, NULL, NULL);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(a->grads, a->module);
    if (status == CTRT_OK)
        return ctrt_step_finish(loss, a->module, a->before, a->grads, &part, &own);
    ctrt_loss_part_release(&part);
    (void)ctrt_gradients_restore(a->module, a->before);
    ctrt_comm_abort(a->comm, ctrt_error_message());
    return status;
}

/* Called before and after optimizer steps, saving and loading. After a load all ranks have the same file. */
static ctrt_status local_event(void *self, ctrt_module_event event, void *argument)
{
    struct local_sgd *a = self;
    (void)argument;
    if (event != CTRT_MODULE_STEP_END)
        return CTRT_OK;
    ctrt_status status = CTRT_OK;
    if (++a->steps % a->every == 0)
        ctrt_no_grad status = average(a);
    return status;
}

/* The text after the name in ctrt_parallel_describe. */
static void local_describe(void *self, char *text, size_t bytes)
{
    const struct local_sgd *a = self;
    snprintf(text, bytes, "on %s, rank %d of %d; a mean every %lld steps, %lld so far", ctrt_device_name(a->device),
             ctrt_comm_rank(a->comm), ctrt_comm_size(a->comm), (long long)a->every, (long long)a->averaged);
}

/* What `auto` compares. Optional: without it, `auto` does not choose the strategy. This one gives other results than
 * `distributed`, so it applies only if the user permits it; then it is preferred, because it communicates less. Each
 * device has the whole model and computes all of its rows. */
static ctrt_status local_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                                      const ctrt_strategy_facts *facts)
{
    ctrt_param_value permitted;
    CTRT_TRY(host->param(&permitted, &auto_param));
    estimate->applies = permitted.integer != 0 && config->canonical == 0;
    estimate->preference = 50;
    estimate->bytes = facts->model_bytes;
    estimate->rows = facts->rows;
    return CTRT_OK;
}

/* ---- the plugin ---- */

/* Without `no_sync`, because gradients are not exchanged. DIFFERS, because losses and gradients are those of the rank's
 * own rows. */
static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_RANKS | CTRT_STRATEGY_DIFFERS,
    .create = local_create, .destroy = local_destroy, .forward = local_forward, .step = local_step,
    .describe = local_describe, .event = local_event, .estimate = local_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "template", .table = &strategy },
};

/* Called once, before the first use. Parameters that are read here are listed by `ctrt info --params`. */
static ctrt_status init(const ctrt_host *the_host)
{
    ctrt_param_value value;
    host = the_host;
    CTRT_TRY(host->param(&value, &auto_param));
    return host->param(&value, &steps_param);
}

CTRT_PLUGIN_DEFINE("strategy-template", "1.0", "ranks train alone and average their parameters", components, init)
