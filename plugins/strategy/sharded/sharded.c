/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/sharded/sharded.c: the table of the strategy: creation, forward passes, steps. */
#include "config.h"
#include "sharded.h"

#include <stdio.h>

static const ctrt_param stage_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_SHARDED_STAGE", .type = CTRT_PARAM_INT, .fallback = "3",
    .help = "sharded: what is split over the ranks: 1: states of optimizers; 2: also gradients; 3: also parameters",
};
static const ctrt_param mesh_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_SHARDED_MESH", .type = CTRT_PARAM_STRING, .fallback = "",
    .help = "sharded: ROWSxCOLUMNS: splits over the ranks of a row, the same in each row (default: one row)",
};
static const ctrt_param checkpoint_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_SHARDED_CHECKPOINT", .type = CTRT_PARAM_ENUM, .fallback = "whole",
    .words = "whole|parts",
    .help = "sharded: how ctrt_save and ctrt_optimizer_save write: `whole`: one file with whole tensors; `parts`: a "
            "file per rank with its shards",
};

/* ---- passes ---- */

void pass_close(struct sharded *s)
{
    groups_forget(s);
    sharded_reduce_cancel(s);
    ranks_pass_end(&s->r);
}

ctrt_status pass_check(struct sharded *s)
{
    CTRT_TRY(gradients_check(&s->r));
    pass_close(s);
    return CTRT_OK;
}

static void sharded_give_up(struct ranks *r, ctrt_status status, const char *message)
{
    struct sharded *s = (struct sharded *)r;
    (void)status;
    ranks_abort(r, (ctrt_comm *const[]){ s->gathers, s->reduces, s->columns }, 3, message);
    pass_close(s);
}

/* Fails if the program has moved, converted, frozen or unfrozen parameters since the creation, where all ranks agreed
 * on the shards. */
static ctrt_status module_check(struct sharded *s)
{
    if (s->r.pass == PASS_FORWARD)
        return ctrt_fail(CTRT_ERR_STATE, "a forward pass of the net runs; a module of the net cannot run the net");
    CTRT_TRY(ranks_check(&s->r));
    for (size_t i = 0; i < s->r.leaf_count; i++) {
        const struct sharded_slot *slot = &s->slots[i];
        ctrt_tensor *data = slot->state == SLOT_ABSENT ? slot->absent
                            : slot->state == SLOT_WHOLE ? slot->full : slot->shard;
        const bool divided = ctrt_tensor_shares_storage(slot->leaf.tensor, data);
        if (divided && ctrt_tensor_requires_grad(slot->leaf.tensor) == slot->leaf.trains)
            continue;
        return ctrt_fail(CTRT_ERR_STATE, "\"%s\" %s after ctrt_parallel_new; call it again",
                         ranks_name(&s->r, slot->leaf.parameter),
                         divided ? "began or ceased to require grad" : "was moved or converted");
    }
    return CTRT_OK;
}

/* Begins a pass. All ranks call it. `joins`: the pass continues one of the kind PROGRAM, so that one backward pass can
 * run through both. */
static ctrt_status pass_begin(struct sharded *s, enum pass_kind kind, bool joins)
{
    s->pass++;
    s->joined = joins ? s->joined + 1 : 0;
    s->calls = 0;
    s->running = NULL;
    CTRT_TRY(sequence_begin(s, kind == STEP || kind == PROGRAM));
    if (!joins && kind != EVALUATION)
        CTRT_TRY(ranks_buffers(&s->r));
    if (!joins)
        sharded_reduce_begin(s);
    if (!joins || kind == PROGRAM)
        s->r.local = s->r.no_sync && kind != UNHOOKED;
    if (joins)
        STATE_SET(MACHINE_PASS, s->r.pass, PASS_FORWARD);
    else
        ranks_pass_begin(&s->r, kind);
    s->r.kind = kind;
    slots_absent(s);
    return CTRT_OK;
}

/* Opens all groups, in canonical mode, which runs the module once per shard of the batch. */
static ctrt_status open_all(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++) {
        CTRT_TRY(group_gather(s, &s->groups[g]));
        CTRT_TRY(group_open(s, &s->groups[g]));
    }
    return CTRT_OK;
}

static ctrt_status forward_run(struct sharded *s, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    if (s->r.canonical > 0)
        CTRT_TRY(open_all(s));
    return ranks_forward(&s->r, y, inputs, count);
}

static ctrt_status sharded_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct sharded *s = self;
    const bool joins = s->r.kind == PROGRAM && s->r.pass == PASS_TURN && s->r.canonical == 0;
    CTRT_TRY(ranks_fail_all(&s->r, module_check(s)));
    if (!joins)
        CTRT_TRY(ranks_fail_all(&s->r, pass_check(s)));
    CTRT_TRY(ranks_fail_all(&s->r, pass_begin(s, ctrt_grad_enabled() ? PROGRAM : EVALUATION, joins)));
    if (s->r.kind == PROGRAM && !joins && s->r.canonical == 0) {
        ctrt_status weighted = weights_mean(&s->r.weights, ranks_rows(inputs));
        if (weighted == CTRT_OK)
            ctrt_no_grad weighted = weights_forward(&s->r.weights, s->r.comm, !s->r.local);
        CTRT_TRY(ranks_fail_all(&s->r, weighted));
    }
    CTRT_TRY(ranks_fail_all(&s->r, forward_run(s, y, inputs, count)));
    if (s->r.canonical > 0)
        STATE_SET(MACHINE_PASS, s->r.pass, PASS_TURN);
    if (joins)
        s->r.kind = PROGRAM;
    else if (s->r.kind == EVALUATION)
        pass_close(s);
    return CTRT_OK;
}

/* ---- steps ---- */

/* In the first step, waits for the weights of all ranks. */
static ctrt_status sharded_loss_known(struct ranks *r)
{
    struct sharded *s = (struct sharded *)r;
    if (s->r.local)
        return CTRT_OK;
    CTRT_TRY(weights_reduce(&s->r.weights, s->r.comm, 0));
    if (!s->verified)
        CTRT_TRY(weights_verify(&s->r.weights));
    s->verified = true;
    return CTRT_OK;
}

static ctrt_status step_hooked(struct sharded *s, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_AUTO(tensor) own = NULL;
    CTRT_TRY(ranks_backward(&s->r, &own, batch));
    CTRT_TRY(sequence_end(s, false));
    CTRT_TRY(sequence_end(s, true));
    if (s->r.local) {
        CTRT_TRY(ranks_buffers(&s->r));
        CTRT_TRY(sharded_reduce_local(s, &own));
        ctrt_tensor_assign(loss, own);
        return CTRT_OK;
    }
    ctrt_no_grad CTRT_TRY(sharded_reduce_finish(s, loss, own));
    return CTRT_OK;
}

/* canonical_step gives every rank the gradients of the whole batch, with the same bits. Each rank keeps its own
 * rows. */
static ctrt_status step_canonical(struct sharded *s, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    ctrt_status status = open_all(s);
    if (status == CTRT_OK)
        status = canonical_step(&s->r, loss, batch);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(s->r.grads, s->r.module);
    groups_forget(s);
    if (status == CTRT_OK)
        ctrt_no_grad status = sharded_reduce_cut(s);
    ctrt_tensors_release(s->r.grads, s->r.parameters + 2);
    return status;
}

static ctrt_status step_run(struct sharded *s, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_TRY(module_check(s));
    CTRT_TRY(pass_check(s));
    CTRT_TRY(pass_begin(s, s->r.canonical > 0 ? UNHOOKED : STEP, false));
    CTRT_TRY(s->r.kind == UNHOOKED ? step_canonical(s, loss, batch) : step_hooked(s, loss, batch));
    pass_close(s);
    return CTRT_OK;
}

static ctrt_status sharded_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct sharded *s = self;
    return ranks_fail_all(&s->r, step_run(s, loss, batch));
}

/* ---- creation ---- */

/* Gives the module its whole parameters, because it continues without the strategy. Collective. */
static ctrt_status parameters_return(struct sharded *s)
{
    for (size_t g = 0; g < s->group_count; g++) {
        CTRT_TRY(group_gather(s, &s->groups[g]));
        for (size_t i = s->groups[g].first; i < s->groups[g].first + s->groups[g].count; i++)
            CTRT_TRY(slot_set(&s->slots[i], SLOT_UNDIVIDED, s->slots[i].full));
        group_forget(s, &s->groups[g]);
    }
    return CTRT_OK;
}

static void sharded_destroy(void *self)
{
    struct sharded *s = self;
    const bool divided = slots_divided(s);
    instance_remove(s);
    pass_close(s);
    checkpoint_end(s);
    sharded_hooks_remove(s);
    gradients_free(&s->r);
    const bool connected = divided && ctrt_comm_error(s->r.comm) == CTRT_OK;
    if (divided && (!connected || parameters_return(s) != CTRT_OK))
        strategy_host->log(CTRT_LOG_WARNING, "parallel", "sharded: the module keeps its shards: %s",
                           ctrt_error_message());
    groups_free(s);
    ctrt_comm_release(&s->gathers);
    ctrt_comm_release(&s->reduces);
    ctrt_comm_release(&s->columns);
    ranks_free(&s->r);
    free(s);
}

/* Reads the mesh: ROWSxCOLUMNS, or an empty string for one row. */
static ctrt_status mesh_read(struct sharded *s)
{
    ctrt_param_value value;
    int end = 0;
    CTRT_TRY(strategy_host->param(&value, &mesh_param));
    s->mesh_rows = 1;
    s->mesh_columns = s->r.size;
    if (value.text == NULL || *value.text == '\0')
        return CTRT_OK;
    if (sscanf(value.text, "%dx%d%n", &s->mesh_rows, &s->mesh_columns, &end) != 2 || value.text[end] != '\0'
        || s->mesh_rows < 1 || s->mesh_columns < 1 || (int64_t)s->mesh_rows * s->mesh_columns != s->r.size)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_SHARDED_MESH=%s: expected ROWSxCOLUMNS whose product is the "
                         "number of ranks, %d", value.text, s->r.size);
    return CTRT_OK;
}

static ctrt_status params_read(struct sharded *s)
{
    ctrt_param_value checkpoint, failure;
    int64_t stage;
    CTRT_TRY(strategy_host->param(&failure, &ranks_failure_param));
    if (failure.integer != 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: a lost rank takes its part of the parameters "
                         "along, so the other ranks cannot go on; unset it, save checkpoints and start again from the "
                         "last one, with any number of ranks, or use the strategy distributed");
    CTRT_TRY(strategy_integer(&stage, &stage_param, 1, 3, "1, 2 or 3"));
    CTRT_TRY(strategy_host->param(&checkpoint, &checkpoint_param));
    s->save_parts = checkpoint.integer != 0;
    s->stage = (int)stage;
    CTRT_TRY(mesh_read(s));
    s->column = s->r.rank % s->mesh_columns;
    return CTRT_OK;
}

static ctrt_status comms_split(struct sharded *s)
{
    const int row = s->r.rank / s->mesh_columns;
    CTRT_TRY(ctrt_comm_split(&s->gathers, s->r.comm, row, s->r.rank));
    CTRT_TRY(ctrt_comm_split(&s->reduces, s->r.comm, row, s->r.rank));
    return s->mesh_rows > 1 ? ctrt_comm_split(&s->columns, s->r.comm, s->column, s->r.rank) : CTRT_OK;
}

/* The part of the creation that does not communicate. The parameters are replaced later, after all ranks have
 * succeeded in this part. */
static ctrt_status prepare(struct sharded *s)
{
    CTRT_TRY(groups_make(s));
    CTRT_TRY(instance_add(s));
    ctrt_no_grad CTRT_TRY(shards_make(s));
    CTRT_TRY(gradients_new(&s->r));
    return sharded_hooks_add(s);
}

static ctrt_status setup(struct sharded *s)
{
    char options[160] = "";
    ctrt_status status = params_read(s);
    if (status == CTRT_OK)
        status = ranks_find(&s->r);
    if (status == CTRT_OK)
        status = instance_check(s);
    if (status == CTRT_OK && s->r.parameters == 0)
        status = ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the module has no parameters, so there is nothing to split");
    snprintf(options, sizeof options, "CTRT_SHARDED_STAGE=%d\nCTRT_SHARDED_MESH=%dx%d\nCTRT_SHARDED_CHECKPOINT=%s\n",
             s->stage, s->mesh_rows, s->mesh_columns, s->save_parts ? "parts" : "whole");
    CTRT_TRY(ranks_join(&s->r, status, options));
    CTRT_TRY(comms_split(s));
    CTRT_TRY(exchange(&s->r, EXCHANGE_BROADCAST, s->r.tensors, s->r.count, 0));
    CTRT_TRY(verify_ready(&s->r, prepare(s)));
    ctrt_no_grad shards_show(s);
    return CTRT_OK;
}

static const struct ranks_calls calls = {
    .name = "sharded", .gradient = sharded_gradient, .loss_known = sharded_loss_known, .give_up = sharded_give_up,
};

static ctrt_status sharded_create(void **out, const ctrt_strategy_config *config)
{
    struct sharded *s;
    CTRT_TRY(ALLOCATE(s, 1));
    ranks_init(&s->r, &calls, config);
    s->r.from_cpu = s->r.broadcast_buffers = true;
    ctrt_status status = setup(s);
    if (status == CTRT_ERR_COMM)            /* other ranks may have succeeded */
        status = ranks_fail_all(&s->r, status);
    return strategy_created(out, s, status, sharded_destroy);
}

static void sharded_describe(void *self, char *text, size_t bytes)
{
    const struct sharded *s = self;
    double shards = 0, whole = 0;
    for (size_t i = 0; i < s->r.leaf_count; i++) {
        const struct sharded_slot *slot = &s->slots[i];
        const double row = (double)slot->row * (double)ctrt_dtype_size(ctrt_tensor_dtype(slot->leaf.tensor));
        shards += (double)slot->own * row;
        whole += (double)slot->rows * row;
    }
    snprintf(text, bytes, "stage %d on %s, rank %d of %d by %s; mesh %dx%d, %zu groups, %.2f of %.2f MiB of parameters",
             s->stage, ctrt_device_name(s->r.device), s->r.rank, s->r.size, ctrt_comm_engine_name(s->r.comm),
             s->mesh_rows, s->mesh_columns, s->group_count, shards / (1 << 20), whole / (1 << 20));
}

/* ---- auto ---- */

/* Adds up the parameters of the groups that are gathered one by one, the children of the module and of the Sequentials
 * below it: the bytes of the largest group and of all. */
static ctrt_status groups_measure(uint64_t *largest, uint64_t *all, ctrt_module *module)
{
    ctrt_module *child = NULL;
    for (size_t i = 0; ctrt_module_child(NULL, &child, module, i) == CTRT_OK; i++) {
        uint64_t bytes = 0;
        if (strcmp(ctrt_module_kind(child), "Sequential") == 0) {
            CTRT_TRY(groups_measure(largest, all, child));
            continue;
        }
        for (size_t k = 0; k < ctrt_module_parameter_count(child); k++) {
            ctrt_tensor *tensor = NULL;
            CTRT_TRY(ctrt_module_parameter(NULL, &tensor, child, k));
            bytes += strategy_tensor_bytes(tensor);
        }
        *largest = bytes > *largest ? bytes : *largest;
        *all += bytes;
    }
    return CTRT_OK;
}

/* The bytes of a rank in stage 3: its part of the model, and in the backward pass four times the parameters of a group
 * (doc/sharded.md), and the other parameters, which stay gathered, with their gradients. */
static ctrt_status sharded_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                                    const ctrt_strategy_facts *facts)
{
    const uint64_t size = (uint64_t)ctrt_comm_size(config->comm);
    uint64_t largest = 0, grouped = 0;
    estimate->applies = !facts->elastic && config->canonical == 0 && size > 1;
    estimate->places = true;
    estimate->preference = 200;
    estimate->rows = facts->rows;
    if (!estimate->applies) {               /* in canonical mode all parameters stay gathered */
        if (size > 1)
            snprintf(estimate->reason, sizeof estimate->reason, "%s",
                     facts->elastic ? "lost ranks, which have parts of the model, cannot be replaced"
                                    : "canonical mode needs the whole model on each rank");
        return CTRT_OK;
    }
    CTRT_TRY(groups_measure(&largest, &grouped, config->module));
    estimate->bytes = facts->buffer_bytes + (facts->model_bytes - facts->buffer_bytes + size - 1) / size + 4 * largest;
    if (facts->parameter_bytes > grouped)
        estimate->bytes += 2 * (facts->parameter_bytes - grouped);
    return CTRT_OK;
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_RANKS,
    .create = sharded_create, .destroy = sharded_destroy,
    .forward = sharded_forward, .step = sharded_step, .no_sync = ranks_no_sync, .describe = sharded_describe,
    .event = checkpoint_event, .estimate = sharded_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "sharded", .table = &strategy },
};

static ctrt_status init(const ctrt_host *host)
{
    static const ctrt_param *const params[] = {
        &ranks_failure_param, &stage_param, &checkpoint_param, &mesh_param, NULL,
    };
    return strategy_register(host, params);
}

CTRT_PLUGIN_DEFINE("strategy-sharded", PACKAGE_VERSION,
                   "parameters, gradients and states of optimizers split over ranks", components, init)
