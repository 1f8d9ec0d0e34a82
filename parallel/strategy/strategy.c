/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/strategy.c: the module that stands in for another one and runs it by a strategy. */
#include "base/base.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/launcher.h"
#include "graph/capture.h"
#include "memory/pool.h"
#include "nn/module/module.h"
#include "parallel/replicas/devices.h"
#include "parallel/strategy/strategy.h"

#define MOST_DEVICES      4096
#define MOST_INPUTS       64
#define DEFAULT_SHARDS    12            /* a multiple of 1, 2, 3, 4, 6 and 12 devices */
#define MOST_SHARDS       65536

static const ctrt_param strategy_param = {
    sizeof strategy_param, "CTRT_STRATEGY", CTRT_PARAM_STRING, "single", NULL,
    "strategy of ctrt_parallel_new if the program names none: single, data-parallel, distributed, sharded, pipeline, "
    "auto, ...",
};
CORE_PARAM(strategy_param);
static const ctrt_param canonical_param = {
    sizeof canonical_param, "CTRT_CANONICAL", CTRT_PARAM_INT, "0", NULL,
    "results that do not depend on the number of devices: the batch is cut into so many shards (1: 12; 0: off)",
};
CORE_PARAM(canonical_param);

/* ---- captures and dry runs ---- */

/* The number of devices in the list that the strategy uses. */
static int devices_used(const struct parallel *state)
{
    return state->table->flags & CTRT_STRATEGY_ONE_DEVICE ? 1 : state->config.count;
}

static ctrt_status refuse_sync_canonical(const struct parallel *state)
{
    ctrt_sync_layers found = { .training = 0 };
    if (state->config.canonical > 0)
        CTRT_TRY(ctrt_sync_layers_find(&found, state->config.module));
    if (found.training == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "SyncBatchNorm needs all rows at the same time, but canonical mode "
                     "computes shards one by one; use BatchNorm, or unset CTRT_CANONICAL");
}

/* Refuses passes that a capture would record in part, and those of which only some devices are in a dry run. */
static ctrt_status modes_check(const struct parallel *state)
{
    ctrt_device *dry = NULL, *real = NULL;
    CTRT_TRY(refuse_sync_canonical(state));
    for (int i = 0; i < devices_used(state); i++) {
        ctrt_device *device = state->devices[i];
        *(dry_run_on(device) ? &dry : &real) = device;
        if (likely(capture_here(device) == NULL))
            continue;
        if (state->config.canonical > 0)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "canonical mode (CTRT_CANONICAL) cannot be captured, but a "
                             "capture is running on %s; end it (ctrt_capture_end), or turn canonical mode off",
                             device->name);
        if (!(state->table->flags & (CTRT_STRATEGY_ONE_DEVICE | CTRT_STRATEGY_CAPTURE)))
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "this strategy cannot be captured, but a capture is running on "
                             "%s; end it (ctrt_capture_end), or use the strategy single, or distributed with one rank "
                             "per device", device->name);
    }
    if (likely(dry == NULL))
        return CTRT_OK;
    if (state->comm != NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a dry run is active on %s, but collectives have no dry run; predict "
                         "the step of one rank with the strategy single", dry->name);
    if (real != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "a dry run is active on %s, but not on %s; a dry run of this strategy needs "
                         "ctrt_dry_run_begin on each of its devices", dry->name, real->name);
    return CTRT_OK;
}

/* Lists the module's tensors before the strategy counts them, because ctrt_module_parameter_count and
 * ctrt_module_buffer_count return 0 if the list cannot be allocated. A strategy with ranks does this itself, because a
 * rank that fails has to report it to the others. */
static ctrt_status tensors_list(const struct parallel *state)
{
    const struct walk *walk;
    if (state->comm != NULL)
        return CTRT_OK;
    CTRT_TRY(module_walk(&walk, state->config.module, WALK_PARAMETERS));
    return module_walk(&walk, state->config.module, WALK_BUFFERS);
}

static void release_net(void *net)
{
    ctrt_module *module = net;
    ctrt_module_release(&module);
}

/* In a capture, the graph gets a reference to the net, because replays may call functions of the strategy, or find a
 * group of steps. */
static ctrt_status captured_keep(struct parallel *state, ctrt_module *net, bool step)
{
    static const struct graph_call call = { .release = release_net };
    struct capture *capture = capture_here(state->devices[0]);
    if (likely(capture == NULL))
        return CTRT_OK;
    if (!(state->table->flags & CTRT_STRATEGY_CAPTURE))
        return step ? loss_group_capture(capture, &state->group, net, state->config.module) : CTRT_OK;
    return capture_call(capture, &call, ctrt_module_retain(net));
}

bool strategy_dry(const struct parallel *p)
{
    bool dry = false;
    for (int i = 0; i < devices_used(p); i++)
        dry = dry || dry_run_on(p->devices[i]);
    return dry;
}

/* ---- the class ---- */

static ctrt_status parallel_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CANCEL_DISABLED;                        /* a strategy may wait for its threads, which use the arguments */
    STREAMS_ORDERED;
    struct parallel *state = ctrt_module_state(self);
    if (count < 1 || inputs[0] == NULL)
        return fail_null("forward", "x");
    CTRT_TRY(ctrt_context(modes_check(state), "%s", state->name));
    CTRT_TRY(tensors_list(state));
    CTRT_TRY(captured_keep(state, self, false));
    return ctrt_context(state->table->forward(state->strategy, y, inputs, count), "%s", state->name);
}

static void parallel_destroy(ctrt_module *self)
{
    struct parallel *state = ctrt_module_state(self);
    struct error_text *error = error_set_aside();       /* a program releases the net before it reads the message */
    if (state->config.module != NULL && self->children.count > 0)
        module_set_stand_in(state->config.module, NULL, self);
    if (state->table != NULL)
        state->table->destroy(state->strategy);
    ctrt_comm_release(&state->comm);
    error_put_back(error);
    host_free(state->choice);
    loss_group_clear(&state->group);
    host_free(state->devices);
    host_free(state->description);
}

static ctrt_status parallel_event(ctrt_module *self, ctrt_module_event event, void *argument)
{
    STREAMS_ORDERED;
    struct parallel *state = ctrt_module_state(self);
    if (state->table == NULL || !CTRT_SLOT(state->table, event))
        return CTRT_OK;
    return ctrt_context(state->table->event(state->strategy, event, argument), "%s", state->name);
}

/* For strategies without and with `event`. Without, an optimizer step need not look for modules that have one. */
static const ctrt_module_class classes[2] = {
    { .size = sizeof(ctrt_module_class), .kind = "Parallel", .state_bytes = sizeof(struct parallel),
      .forward = parallel_forward, .destroy = parallel_destroy },
    { .size = sizeof(ctrt_module_class), .kind = "Parallel", .state_bytes = sizeof(struct parallel),
      .forward = parallel_forward, .destroy = parallel_destroy, .event = parallel_event },
};

static struct parallel *state_of(ctrt_module *net)
{
    const bool ours = net != NULL && (net->class_of == &classes[0] || net->class_of == &classes[1]);
    return ours ? ctrt_module_state(net) : NULL;
}

const struct parallel *parallel_of(const ctrt_module *module)
{
    const struct parallel *own = state_of((ctrt_module *)module);
    return own != NULL ? own : state_of(module->stand_in);
}

static ctrt_status net_state(struct parallel **out, const char *who, ctrt_module *net)
{
    NULL_CHECK(who, net);
    *out = state_of(net);
    return *out != NULL ? CTRT_OK
                        : ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a module of class %s, expected one from "
                                    "ctrt_parallel_new", who, ctrt_module_kind(net));
}

bool ctrt_set_streams_ordered(bool on)
{
    const bool before = thread_state.order_auto;
    thread_state.order_auto = on;
    return before;
}

/* ---- creation ---- */

static ctrt_status devices_alloc(struct parallel *state, int n)
{
    if (n > MOST_DEVICES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "parallel_new: %d devices, expected at most %d", n, MOST_DEVICES);
    state->devices = host_calloc((size_t)n * sizeof *state->devices);
    ALLOC_CHECK(state->devices, (size_t)n * sizeof *state->devices, "a list of devices");
    return CTRT_OK;
}

/* All devices of the default device's type, beginning with the module's. */
static ctrt_status devices_all(struct parallel *state, ctrt_module *module)
{
    ctrt_device *standard = NULL, *first = NULL;
    char name[48];
    CTRT_TRY(ctrt_default_device(&standard));
    const char *type = ctrt_device_type(standard);
    const int n = ctrt_device_index(standard) < 0 ? 1 : ctrt_device_count(type);
    CTRT_TRY(devices_alloc(state, n > 1 ? n : 1));
    if (ctrt_module_device(&first, module) != CTRT_OK || strcmp(ctrt_device_type(first), type) != 0)
        first = standard;
    state->devices[0] = first;
    state->config.count = 1;
    for (int i = 0; i < n && n > 1; i++) {
        if (i == ctrt_device_index(first))
            continue;
        ctrt_device_spec spec = { .index = i };
        snprintf(spec.type, sizeof spec.type, "%s", type);
        CTRT_TRY(ctrt_device_format(name, sizeof name, &spec));
        CTRT_TRY(ctrt_device_get(&state->devices[state->config.count], name));
        state->config.count++;
    }
    return CTRT_OK;
}

static ctrt_status devices_choose(struct parallel *state, ctrt_module *module, ctrt_device *const *devices, int n)
{
    if (devices == NULL && n == 0)
        return devices_all(state, module);
    CTRT_TRY(devices_check("parallel_new", devices, n));
    CTRT_TRY(devices_alloc(state, n));
    memcpy(state->devices, devices, (size_t)n * sizeof *devices);
    state->config.count = n;
    return CTRT_OK;
}

ctrt_status strategy_canonical(int32_t *shards)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &canonical_param, "core"));
    if (value.integer < 0 || value.integer > MOST_SHARDS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_CANONICAL=%s: expected 0 (off), 1 (%d shards) or a number of "
                         "shards up to %d", value.text, DEFAULT_SHARDS, MOST_SHARDS);
    *shards = value.integer == 1 ? DEFAULT_SHARDS : (int32_t)value.integer;
    return CTRT_OK;
}

static ctrt_status refuse_nested(ctrt_module *module)
{
    struct parallel *state = state_of(module);
    return state == NULL ? CTRT_OK
                         : ctrt_fail(CTRT_ERR_STATE, "parallel_new: the module is run by the strategy %s already",
                                     state->name);
}

/* Joins the communicator of a strategy with ranks, or uses `comm`. Its device must be the only one in the list. */
static ctrt_status ranks_join(struct parallel *state, ctrt_device *const *devices, int n, ctrt_comm *comm)
{
    if (devices != NULL || n != 0)
        CTRT_TRY(devices_check("parallel_new", devices, n));
    if (n > 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "parallel_new: %d devices, but each rank of %s has one", n,
                         state->name);
    const ctrt_comm_options options = { .size = sizeof options, .device = n == 1 ? devices[0] : NULL };
    if (comm != NULL)
        state->comm = ctrt_comm_retain(comm);
    else
        CTRT_TRY(ctrt_comm_new(&state->comm, &options));
    CTRT_TRY(devices_alloc(state, 1));
    state->devices[0] = ctrt_comm_device(state->comm);
    state->config.count = 1;
    state->config.comm = state->comm;
    return CTRT_OK;
}

/* The arguments of ctrt_parallel_new and ctrt_parallel_new_comm. */
struct strategy_wanted {
    ctrt_device *const *devices;
    int n;
    ctrt_comm *comm;
    uint32_t flags;                         /* of the strategy; `auto`: those that the one it chooses will have */
};

static ctrt_status devices_find(struct parallel *state, ctrt_module *module, const struct strategy_wanted *wanted)
{
    if (wanted->flags & ~(uint32_t)STRATEGY_FLAGS)
        return ctrt_fail(CTRT_ERR_PLUGIN, "parallel_new: strategy %s has unknown flags %#x", state->name,
                         (unsigned)wanted->flags);
    if (wanted->flags & CTRT_STRATEGY_RANKS)
        return ranks_join(state, wanted->devices, wanted->n, wanted->comm);
    if (wanted->comm != NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "parallel_new: strategy %s does not use a communicator", state->name);
    return devices_choose(state, module, wanted->devices, wanted->n);
}

ctrt_status strategy_use(struct parallel *p, const struct component *component)
{
    const ctrt_strategy *table = component->table;
    void *strategy = NULL;
    CTRT_TRY(ctrt_context(table->create(&strategy, &p->config), "%s", component->name));
    if (p->table != NULL)
        p->table->destroy(p->strategy);
    p->table = table;
    p->name = component->name;
    p->strategy = strategy;
    return CTRT_OK;
}

static void set_comm(void *net, ctrt_comm *comm)
{
    struct parallel *state = net;
    ctrt_comm *old = state->comm;
    state->comm = ctrt_comm_retain(comm);
    state->config.comm = comm;
    ctrt_comm_release(&old);
}

/* `component`: NULL for `auto`. */
static ctrt_status strategy_instantiate(ctrt_module *net, ctrt_module *module, const struct component *component,
                                        const struct strategy_wanted *wanted)
{
    struct parallel *state = ctrt_module_state(net);
    state->name = component != NULL ? component->name : "auto";
    state->config.size = sizeof state->config;
    state->config.module = module;
    CTRT_TRY(strategy_canonical(&state->config.canonical));
    CTRT_TRY(devices_find(state, module, wanted));
    state->config.devices = state->devices;
    state->config.set_comm = set_comm;
    state->config.net = state;
    CTRT_TRY(tensors_list(state));
    CTRT_TRY(component == NULL ? ctrt_context(auto_begin(state), "auto") : strategy_use(state, component));
    CTRT_TRY(module_add_transparent(net, ctrt_module_retain(module)));
    if (net->class_of == &classes[1])
        module_set_stand_in(module, net, NULL);
    return CTRT_OK;
}

/* Warns if this process is one of several ranks, which the strategy does not connect. */
static void warn_alone(const char *strategy, bool by_default)
{
    struct rank_environment ranks = { .size = 1 };
    if (launcher_read(&ranks) == CTRT_OK && ranks.size > 1)
        log_message(CTRT_LOG_WARNING, "parallel", "rank %d of %d: the strategy is %s%s, which does not connect ranks, "
                    "so every rank trains alone and writes the same files; set CTRT_STRATEGY=distributed, or =single "
                    "if this is intended", ranks.rank, ranks.size, strategy, by_default ? " by default" : "");
}

static ctrt_status parallel_new(ctrt_module **out, ctrt_module *module, const char *strategy,
                                struct strategy_wanted wanted)
{
    CANCEL_DISABLED;
    CTRT_AUTO(module) net = NULL;
    const struct component *component = NULL;
    ctrt_param_value value = { .is_set = true };
    NULL_CHECK("parallel_new", out);
    if (module == NULL)
        return module_missing("parallel_new", "module");
    CTRT_TRY(refuse_nested(module));
    if (strategy == NULL) {
        CTRT_TRY(param_read(&value, &strategy_param, "core"));
        if (value.text == NULL || value.text[0] == '\0')
            value = (ctrt_param_value){ .text = strategy_param.fallback };
        strategy = value.text;
    }
    const bool automatic = strcmp(strategy, "auto") == 0;
    if (automatic) {
        CTRT_TRY(ctrt_context(auto_flags(&wanted.flags, wanted.comm), "parallel_new: auto"));
    } else {
        CTRT_TRY(ctrt_context(registry_use(&component, CTRT_COMPONENT_STRATEGY, strategy), "parallel_new"));
        wanted.flags = ((const ctrt_strategy *)component->table)->flags;
        const bool meant = value.is_set && (wanted.flags & CTRT_STRATEGY_ONE_DEVICE);
        if (!(wanted.flags & CTRT_STRATEGY_RANKS) && !meant)
            warn_alone(strategy, !value.is_set);
    }
    const bool listens = automatic || CTRT_SLOT((const ctrt_strategy *)component->table, event);
    CTRT_TRY(ctrt_module_new(&net, &classes[listens]));
    net->training = ctrt_module_is_training(module);
    CTRT_TRY(ctrt_context(strategy_instantiate(net, module, component, &wanted), "parallel_new"));
    module_give(out, &net);
    return CTRT_OK;
}

ctrt_status ctrt_parallel_new(ctrt_module **out, ctrt_module *module, const char *strategy,
                              ctrt_device *const *devices, int n)
{
    return parallel_new(out, module, strategy, (struct strategy_wanted){ .devices = devices, .n = n });
}

ctrt_status ctrt_parallel_new_comm(ctrt_module **out, ctrt_module *module, const char *strategy, ctrt_comm *comm)
{
    NULL_CHECK("parallel_new_comm", comm);
    return parallel_new(out, module, strategy, (struct strategy_wanted){ .comm = comm });
}

ctrt_comm *ctrt_parallel_comm(ctrt_module *net)
{
    const struct parallel *state = state_of(net);
    return state != NULL ? state->comm : NULL;
}

int64_t ctrt_parallel_steps(ctrt_module *net)
{
    struct parallel *state = state_of(net);
    if (state == NULL)
        return 0;
    return CTRT_SLOT(state->table, steps) ? state->table->steps(state->strategy) : state->steps;
}

ctrt_status ctrt_parallel_barrier(ctrt_module *net)
{
    CANCEL_DISABLED;
    STREAMS_ORDERED;
    struct parallel *state;
    CTRT_TRY(net_state(&state, "parallel_barrier", net));
    if (!CTRT_SLOT(state->table, barrier))
        return CTRT_OK;
    return ctrt_context(state->table->barrier(state->strategy), "parallel_barrier: %s", state->name);
}

/* ---- steps ---- */

static ctrt_status strategy_rows_of(int64_t *rows, ctrt_tensor *const *inputs, int count, bool may_be_empty)
{
    for (int i = 0; i < count; i++) {
        if (inputs[i] == NULL)
            continue;
        if (ctrt_tensor_ndim(inputs[i]) == 0)
            return ctrt_fail(CTRT_ERR_SHAPE, "inputs[%d] has no dimensions, expected rows in dimension 0", i);
        const int64_t here = ctrt_tensor_size(inputs[i], 0);
        if (i > 0 && here != *rows)
            return ctrt_fail(CTRT_ERR_SHAPE, "inputs[%d] has %lld rows, but inputs[0] has %lld", i, (long long)here,
                             (long long)*rows);
        *rows = here;
    }
    return *rows > 0 || may_be_empty ? CTRT_OK : ctrt_fail(CTRT_ERR_SHAPE, "the batch has no rows");
}

ctrt_status strategy_step(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    loss_group_enter(&p->group);
    const ctrt_status status = p->table->step(p->strategy, loss, batch);
    loss_group_enter(NULL);
    return ctrt_context(status, "%s", p->name);
}

ctrt_status ctrt_parallel_step(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                               ctrt_loss_function loss_function, void *user)
{
    return ctrt_parallel_step_n(loss, net, inputs, count, 1, loss_function, user);
}

ctrt_status ctrt_parallel_step_n(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                                 int module_inputs, ctrt_loss_function loss_function, void *user)
{
    CANCEL_DISABLED;
    STREAMS_ORDERED;
    CTRT_AUTO(tensor) result = NULL;
    struct parallel *state;
    NULL_CHECK("parallel_step", loss);
    CTRT_TRY(net_state(&state, "parallel_step", net));
    if (inputs == NULL || count < 1 || inputs[0] == NULL)
        return fail_null("parallel_step", inputs == NULL || count < 1 ? "inputs" : "inputs[0]");
    if (count > MOST_INPUTS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "parallel_step: %d inputs, expected at most %d", count,
                         MOST_INPUTS);
    if (module_inputs < 1 || module_inputs > count)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "parallel_step: %d of %d inputs for the module, expected 1 to %d",
                         module_inputs, count, count);
    NULL_CHECK("parallel_step", loss_function);
    ctrt_strategy_batch batch = {
        .size = sizeof batch, .inputs = inputs, .count = count, .loss = loss_function, .user = user,
        .module_inputs = (int16_t)module_inputs,
        .partial = (int16_t)((state->comm != NULL && ctrt_comm_size(state->comm) > 1 ? CTRT_PARTIAL_RANKS : 0)
                             | (state->group.no_sync || state->group.steps > 0 ? CTRT_PARTIAL_STEPS : 0)),
    };
    CTRT_TRY(ctrt_context(strategy_rows_of(&batch.rows, inputs, count, state->comm != NULL), "parallel_step"));
    CTRT_TRY(ctrt_context(modes_check(state), "parallel_step: %s", state->name));
    CTRT_TRY(ctrt_context(tensors_list(state), "parallel_step"));
    CTRT_TRY(ctrt_context(captured_keep(state, net, true), "parallel_step"));
    CTRT_TRY(ctrt_context(state->choice != NULL ? auto_step(state, &result, &batch)
                                                : strategy_step(state, &result, &batch), "parallel_step"));
    if (result == NULL)
        return ctrt_fail(CTRT_ERR_PLUGIN, "parallel_step: %s: the step succeeded without a loss", state->name);
    ctrt_tensor_assign(loss, result);
    state->steps += !state->group.no_sync;
    return CTRT_OK;
}

ctrt_status ctrt_parallel_no_sync(ctrt_module *net, bool on)
{
    struct parallel *state;
    CTRT_TRY(net_state(&state, "parallel_no_sync", net));
    if (CTRT_SLOT(state->table, no_sync))
        CTRT_TRY(ctrt_context(state->table->no_sync(state->strategy, on), "parallel_no_sync: %s", state->name));
    state->group.no_sync = on;
    return CTRT_OK;
}

ctrt_status ctrt_parallel_set_comm_hook(ctrt_module *net, ctrt_comm_hook hook, void *user)
{
    struct parallel *state;
    CTRT_TRY(net_state(&state, "parallel_set_comm_hook", net));
    if (!CTRT_SLOT(state->table, set_comm_hook))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "parallel_set_comm_hook: strategy %s has no communication hooks",
                         state->name);
    return ctrt_context(state->table->set_comm_hook(state->strategy, hook, user), "parallel_set_comm_hook: %s",
                        state->name);
}

void strategy_describe(const struct parallel *p, char *text)
{
    char more[DESCRIPTION_BYTES / 2] = "", canonical[48] = "";
    const bool automatic = p->choice != NULL;
    if (CTRT_SLOT(p->table, describe))
        p->table->describe(p->strategy, more, sizeof more);
    if (p->config.canonical > 0)
        snprintf(canonical, sizeof canonical, "; canonical, %d shards", (int)p->config.canonical);
    snprintf(text, DESCRIPTION_BYTES, "%s%s%s%s%s%s%s", automatic ? "auto: " : "", p->name, *more != '\0' ? " " : "",
             more, canonical, automatic ? "; " : "", automatic ? auto_reason(p->choice) : "");
}

const char *ctrt_parallel_describe(ctrt_module *net)
{
    struct parallel *state = state_of(net);
    if (state == NULL)
        return "";
    if (state->description == NULL)
        state->description = host_alloc(DESCRIPTION_BYTES);
    if (state->description == NULL)
        return state->name;
    strategy_describe(state, state->description);
    return state->description;
}
