/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy_auto.c: the strategy `auto`: chooses another one by the launcher, the devices, the memory that a
 * step needs, and the time that it takes.
 *
 * The times are measured, not estimated: on some machines two devices are slower than one because of the links between
 * them, on others because of the processors that serve them, and no backend reports both. */
#include "parallel/strategy.h"


#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "device/launcher.h"
#include "graph/capture.h"
#include "nn/module.h"
#include "parallel/comm.h"

#define WARM_UP          1              /* steps of a strategy that are not measured: they create copies and buffers */
#define MEASURED         3              /* steps of which the fastest counts */
#define LEAST_GAIN       1.05           /* data-parallel uses all devices, so it must be faster by this factor */
#define MOST_FILLED      0.9            /* fraction of the memory, because free memory may be in small blocks */
#define OPTIMIZER_STATES 2              /* tensors per parameter that an optimizer is assumed to keep, as Adam's do */

struct choice {
    bool settled;
    bool predicted;                     /* the memory of a step; it fits */
    bool trial;                         /* the strategy is data-parallel, which is measured */
    bool pending;                       /* its replicas have gradients of steps with no_sync */
    int steps;                          /* of the present strategy */
    double rate[2];                     /* rows per second of the fastest step of single and of data-parallel */
    uint64_t model, budget;             /* bytes; budget: UINT64_MAX if unknown */
    char facts[192], reason[512];
};

const char *auto_reason(const struct choice *choice)
{
    return choice->reason;
}

void auto_free(struct choice *choice)
{
    host_free(choice);
}

/* ---- memory ---- */

static uint64_t tensor_bytes(const ctrt_tensor *tensor)
{
    return (uint64_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

/* Parameters, gradients, states of an optimizer, and buffers. */
static ctrt_status model_bytes(uint64_t *bytes, ctrt_module *module)
{
    const struct walk *walk;
    *bytes = 0;
    for (int buffers = 0; buffers < 2; buffers++) {
        CTRT_TRY(module_walk(&walk, module, buffers ? WALK_BUFFERS : WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++) {
            const ctrt_tensor *tensor = walk->entries[i].tensor;
            *bytes += (ctrt_tensor_requires_grad(tensor) ? 2 + OPTIMIZER_STATES : 1) * tensor_bytes(tensor);
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_module_memory_budget(uint64_t *bytes, ctrt_module *module, ctrt_device *device)
{
    const struct walk *walk;
    uint64_t left = UINT64_MAX, total, own = 0;
    if (bytes == NULL)
        return fail_null("module_memory_budget", "bytes");
    if (module == NULL || device == NULL)
        return fail_null("module_memory_budget", module == NULL ? "module" : "device");
    for (int buffers = 0; buffers < 2; buffers++) {
        CTRT_TRY(module_walk(&walk, module, buffers ? WALK_BUFFERS : WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++) {
            ctrt_tensor *tensor = walk->entries[i].tensor, *grad = ctrt_tensor_grad(tensor);
            if (ctrt_tensor_device(tensor) == device)
                own += tensor_bytes(tensor) + (grad != NULL ? tensor_bytes(grad) : 0);
        }
    }
    const uint64_t allocated = ctrt_memory_allocated(device), reserved = ctrt_memory_reserved(device),
                   limit = ctrt_memory_limit(device);
    const ctrt_status status = ctrt_device_memory_info(device, &left, &total);
    if (status != CTRT_OK && limit == UINT64_MAX)
        return ctrt_context(status, "module_memory_budget");
    if (status == CTRT_OK)
        left += reserved > allocated ? reserved - allocated : 0;
    if (limit != UINT64_MAX)
        left = MIN(left, limit > allocated ? limit - allocated : 0);
    *bytes = left + own;
    return CTRT_OK;
}

/* Returns whether the model and `bytes` more fit on the first device. */
static bool room_for(const struct choice *choice, uint64_t bytes)
{
    return (double)choice->model + (double)bytes <= MOST_FILLED * (double)choice->budget;
}

/* Predicts forward and backward of the first `rows` rows on the first device: the bytes that they need in addition to
 * the model, and whether the memory policy finds room for them now. */
static ctrt_status batch_predict(uint64_t *bytes, bool *fits, const struct parallel *p,
                                 const ctrt_strategy_batch *batch, int64_t rows)
{
    CTRT_AUTO(tensor) loss = NULL;
    CTRT_AUTO(dry_run) run = NULL;
    ctrt_memory_prediction found = { .size = sizeof(ctrt_memory_prediction), .fits = true };
    ctrt_loss_part part = { .parts = 0 };
    const struct walk *walk;
    ctrt_module *module = p->config.module;
    uint64_t own = 0;
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    const size_t count = walk->count;
    ctrt_tensor **before = host_calloc((2 * count + 1) * sizeof *before), **grads = before + count;
    if (before == NULL)
        return out_of_memory((2 * count + 1) * sizeof *before, "lists of gradients");
    ctrt_status status = ctrt_gradients_take(before, module);
    if (status == CTRT_OK) {
        status = ctrt_dry_run_begin(&run, p->config.devices[0]);
        if (status == CTRT_OK)
            status = ctrt_part_backward(&loss, &part, module, p->config.devices[0], batch, 0, rows, 1, NULL,
                                        NULL);
        ctrt_tensor_release(&loss);
        ctrt_loss_part_release(&part);
        if (ctrt_gradients_take(grads, module) == CTRT_OK) {
            for (size_t i = 0; i < count; i++)
                own += grads[i] != NULL ? tensor_bytes(grads[i]) : 0;
            ctrt_tensors_release(grads, count);
        }
        if (status == CTRT_OK)
            status = ctrt_dry_run_end(&found, &run);
        (void)ctrt_gradients_restore(module, before);
    }
    host_free(before);
    CTRT_TRY(status);
    const uint64_t more = found.peak_allocated - found.allocated_before;
    *bytes = more > own ? more - own : 0;
    *fits = found.fits && room_for(p->choice, *bytes);
    return CTRT_OK;
}

/* ---- deciding ---- */

static ctrt_status use(struct parallel *p, const char *name)
{
    const struct component *component;
    CTRT_TRY(registry_use(&component, CTRT_COMPONENT_STRATEGY, name));
    return strategy_use(p, component);
}

/* Writes "4 devices, model 1.20 MiB of 32.00 MiB available". */
static void facts_write(struct choice *choice, const char *where)
{
    char model[32], budget[32];
    if (choice->budget == UINT64_MAX)
        snprintf(choice->facts, sizeof choice->facts, "%s, model %s, available memory unknown", where,
                 format_bytes(model, choice->model));
    else
        snprintf(choice->facts, sizeof choice->facts, "%s, model %s of %s available", where,
                 format_bytes(model, choice->model), format_bytes(budget, choice->budget));
}

/* Ends the choice: the strategy in use remains. `why`: the reason, added to choice->facts; NULL: the facts suffice. */
static void settle(struct parallel *p, ctrt_log_level level, const char *why)
{
    char text[DESCRIPTION_BYTES];
    struct choice *choice = p->choice;
    choice->settled = true;
    choice->trial = false;
    snprintf(choice->reason, sizeof choice->reason, "%s%s%s", choice->facts, why != NULL ? ", " : "",
             why != NULL ? why : "");
    strategy_describe(p, text);
    log_message(level, "parallel", "%s", text);
}

static bool divisible(const struct parallel *p)
{
    return p->config.count > 1 && strcmp(ctrt_module_kind(p->config.module), "Sequential") == 0;
}

ctrt_status auto_begin_with(const char **name, const ctrt_comm *comm)
{
    struct rank_environment ranks = { .size = 1 };
    if (comm == NULL)
        CTRT_TRY(launcher_read(&ranks));
    *name = comm != NULL || ranks.size > 1 ? "distributed" : "single";
    return CTRT_OK;
}

/* ---- ranks ---- */

/* Finds the groups that `sharded` gathers one by one, the children of the module and of the Sequentials below it: the
 * bytes of the parameters of the largest one and of all. */
static ctrt_status groups_measure(uint64_t *largest, uint64_t *all, ctrt_module *module)
{
    ctrt_module *child = NULL;
    for (size_t i = 0; ctrt_module_child(NULL, &child, module, i) == CTRT_OK; i++) {
        const struct walk *walk;
        uint64_t bytes = 0;
        if (strcmp(ctrt_module_kind(child), "Sequential") == 0) {
            CTRT_TRY(groups_measure(largest, all, child));
            continue;
        }
        CTRT_TRY(module_walk(&walk, child, WALK_PARAMETERS));
        for (size_t k = 0; k < walk->count; k++)
            bytes += tensor_bytes(walk->entries[k].tensor);
        *largest = MAX(*largest, bytes);
        *all += bytes;
    }
    return CTRT_OK;
}

/* Writes the bytes of a rank under `sharded` in stage 3: its part of the model, and in the backward pass four times the
 * parameters of a group (doc/parallel.md), and the other parameters, which stay gathered, with their gradients. */
static ctrt_status sharded_bytes(uint64_t *bytes, const struct parallel *p)
{
    const uint64_t size = (uint64_t)ctrt_comm_size(p->comm);
    uint64_t largest = 0, grouped = 0, all[2] = { 0 };          /* parameters, buffers */
    CTRT_TRY(groups_measure(&largest, &grouped, p->config.module));
    for (int buffers = 0; buffers < 2; buffers++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, p->config.module, buffers ? WALK_BUFFERS : WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++)
            all[buffers] += tensor_bytes(walk->entries[i].tensor);
    }
    *bytes = all[1] + (p->choice->model - all[1] + size - 1) / size + 4 * largest;
    *bytes += all[0] > grouped ? 2 * (all[0] - grouped) : 0;
    return CTRT_OK;
}

/* Decides whether the ranks use `sharded`: if the model does not fit on the smallest device, but its parts do. All
 * ranks decide by the same numbers, which are written to p->choice. Collective. */
static ctrt_status sharded_decide(bool *sharded, struct parallel *p, const struct component **component)
{
    enum { BUDGET, MODEL, PARTS, FOUND, NUMBERS };
    struct choice *choice = p->choice;
    bool elastic, joins;
    uint64_t parts = 0;
    double numbers[NUMBERS];
    CTRT_AUTO(tensor) least = NULL;
    CTRT_TRY(comm_read_modes(&elastic, &joins));
    *sharded = false;
    if (elastic || p->config.canonical > 0 || ctrt_comm_size(p->comm) == 1)
        return CTRT_OK;                     /* `sharded` cannot replace lost ranks, and gathers all in canonical mode */
    CTRT_TRY(sharded_bytes(&parts, p));
    numbers[BUDGET] = (double)choice->budget;
    numbers[MODEL] = -(double)choice->model;
    numbers[PARTS] = -(double)parts;
    numbers[FOUND] = registry_use(component, CTRT_COMPONENT_STRATEGY, "sharded") == CTRT_OK;
    CTRT_TRY(ctrt_from_data(&least, numbers, NUMBERS, CTRT_SHAPE(NUMBERS), CTRT_F64, p->config.devices[0]));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, p->comm, least, CTRT_COMM_MIN));
    CTRT_TRY(ctrt_to_host(numbers, sizeof numbers, least, CTRT_F64));
    choice->budget = numbers[BUDGET] < (double)UINT64_MAX ? (uint64_t)numbers[BUDGET] : UINT64_MAX;
    choice->model = (uint64_t)-numbers[MODEL];
    *sharded = numbers[FOUND] != 0 && !room_for(choice, 0) && -numbers[PARTS] <= MOST_FILLED * numbers[BUDGET];
    return CTRT_OK;
}

static ctrt_status ranks_begin(struct parallel *p, const struct component *component)
{
    const struct component *other = NULL;
    char where[64];
    bool sharded = false;
    const int size = ctrt_comm_size(p->comm);
    const ctrt_status status = sharded_decide(&sharded, p, &other);
    if (status != CTRT_OK) {                /* the other ranks wait for this one */
        ctrt_comm_abort(p->comm, ctrt_error_message());
        return status;
    }
    snprintf(where, sizeof where, "%d rank%s", size, size > 1 ? "s" : "");
    facts_write(p->choice, where);
    if (!sharded)                           /* `sharded` accepts a module on the cpu and copies only its shards */
        CTRT_TRY(ctrt_module_to(p->config.module, p->config.devices[0], CTRT_DTYPE_DEFAULT));
    CTRT_TRY(strategy_use(p, sharded ? other : component));
    if (sharded)
        settle(p, CTRT_LOG_INFO, "which is too little for one rank");
    else if (room_for(p->choice, 0))
        settle(p, CTRT_LOG_INFO, NULL);
    else
        settle(p, CTRT_LOG_WARNING, "which is too little");
    return CTRT_OK;
}

ctrt_status auto_begin(struct parallel *p, const struct component *component)
{
    ctrt_device *device = p->config.devices[0];
    ctrt_module *module = p->config.module;
    char where[64];
    struct choice *choice = p->choice = host_calloc(sizeof *choice);
    if (choice == NULL)
        return out_of_memory(sizeof *choice, "the choice of a strategy");
    CTRT_TRY(model_bytes(&choice->model, module));
    if (ctrt_module_memory_budget(&choice->budget, module, device) != CTRT_OK)
        choice->budget = UINT64_MAX;
    if (p->comm != NULL)
        return ranks_begin(p, component);
    const bool fits = room_for(choice, 0);
    snprintf(where, sizeof where, "%d device%s", (int)p->config.count, p->config.count > 1 ? "s" : "");
    facts_write(choice, where);
    snprintf(choice->reason, sizeof choice->reason, "%s, not decided before some steps were measured", choice->facts);
    if (!fits && divisible(p)) {
        CTRT_TRY(use(p, "pipeline"));
        settle(p, CTRT_LOG_INFO, "which is too little for one device");
        return CTRT_OK;
    }
    CTRT_TRY(ctrt_module_to(module, device, CTRT_DTYPE_DEFAULT));
    CTRT_TRY(strategy_use(p, component));
    if (!fits)
        settle(p, CTRT_LOG_WARNING, p->config.count == 1
                   ? "which is too little" : "which is too little, but only a Sequential can be divided (pipeline)");
    else if (p->config.count == 1)
        settle(p, CTRT_LOG_INFO, NULL);
    return CTRT_OK;
}

/* Chooses by the memory that the batch needs. If that is unknown, the batch counts as one that fits. */
static ctrt_status decide_by_memory(struct parallel *p, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    const int64_t shards = MAX(p->config.canonical, 1), whole = (batch->rows + shards - 1) / shards,
                  part = p->config.canonical > 0 ? whole : (batch->rows + p->config.count - 1) / p->config.count;
    uint64_t bytes, part_bytes;
    bool fits, part_fits = false;
    char text[2][32], why[192];
    if (batch_predict(&bytes, &fits, p, batch, whole) != CTRT_OK) {
        log_message(CTRT_LOG_DEBUG, "parallel", "auto: the memory of a step is unknown: %s", ctrt_error_message());
        return CTRT_OK;                     /* the step may also fail; then the next step predicts again */
    }
    const size_t used = strlen(choice->facts);
    snprintf(choice->facts + used, sizeof choice->facts - used, ", activations %s", format_bytes(text[0], bytes));
    choice->predicted = fits;
    if (fits)
        return CTRT_OK;
    choice->facts[used] = '\0';             /* `why` has it, or the next step adds it if no strategy can be created */
    part_bytes = bytes;
    if (part < whole)
        (void)batch_predict(&part_bytes, &part_fits, p, batch, part);
    if (part_fits)
        snprintf(why, sizeof why, "activations of %lld rows %s, of %lld rows %s", (long long)whole,
                 format_bytes(text[0], bytes), (long long)part, format_bytes(text[1], part_bytes));
    else
        snprintf(why, sizeof why, "activations of %lld rows %s%s", (long long)part,
                 format_bytes(text[0], part_bytes),
                 divisible(p) ? "" : ", which is too much, but only a Sequential can be divided (pipeline)");
    CTRT_TRY(use(p, !part_fits && divisible(p) ? "pipeline" : "data-parallel"));
    settle(p, part_fits || divisible(p) ? CTRT_LOG_INFO : CTRT_LOG_WARNING, why);
    return CTRT_OK;
}

/* ---- measuring ---- */

static ctrt_status devices_wait(const struct parallel *p)
{
    for (int i = 0; i < p->config.count; i++)
        CTRT_TRY(ctrt_device_synchronize(p->config.devices[i]));
    return CTRT_OK;
}

/* Decides by the times, after the measured steps of data-parallel. `rows`: of the last step, for the text. */
static void decide_by_time(struct parallel *p, int64_t rows)
{
    struct choice *choice = p->choice;
    char why[160];
    const bool faster = choice->rate[1] >= LEAST_GAIN * choice->rate[0];
    if (!faster && use(p, "single") != CTRT_OK)
        return;                             /* the next step tries again */
    snprintf(why, sizeof why, "a step of %lld rows takes %.3g ms, with %s %.3g ms", (long long)rows,
             1e3 * (double)rows / choice->rate[faster], faster ? "single" : "data-parallel",
             1e3 * (double)rows / choice->rate[!faster]);
    settle(p, CTRT_LOG_INFO, why);
}

static void trial_begin(struct parallel *p)
{
    char why[256];
    if (use(p, "data-parallel") == CTRT_OK) {
        p->choice->trial = true;
        p->choice->steps = 0;
        return;
    }
    snprintf(why, sizeof why, "because %s", ctrt_error_message());
    settle(p, CTRT_LOG_INFO, why);
}

/* After a step of data-parallel has failed: makes it with `single`. If that succeeds, data-parallel is not usable. */
static ctrt_status trial_end(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    char why[256];
    snprintf(why, sizeof why, "because of %s", ctrt_error_message());
    ctrt_tensor_release(loss);
    CTRT_TRY(use(p, "single"));
    p->choice->trial = false;
    p->choice->steps = 0;
    CTRT_TRY(strategy_step(p, loss, batch));
    settle(p, CTRT_LOG_INFO, why);
    return CTRT_OK;
}

static ctrt_status step_measured(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    double *rate = &choice->rate[choice->trial];
    CTRT_TRY(devices_wait(p));
    const double start = seconds_now();
    const ctrt_status status = strategy_step(p, loss, batch);
    if (status != CTRT_OK && choice->trial && !choice->pending)
        return trial_end(p, loss, batch);
    CTRT_TRY(status);
    choice->pending = false;
    CTRT_TRY(devices_wait(p));              /* after a failure here, the gradients have the step's already */
    if (++choice->steps > WARM_UP)
        *rate = MAX(*rate, (double)batch->rows / MAX(seconds_now() - start, 1e-9));
    if (choice->steps < WARM_UP + MEASURED)
        return CTRT_OK;
    if (choice->trial)
        decide_by_time(p, batch->rows);
    else
        trial_begin(p);
    return CTRT_OK;
}

ctrt_status auto_step(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    if (choice->settled)
        return strategy_step(p, loss, batch);
    if (p->group.no_sync || strategy_dry(p) || capture_here(p->config.devices[0]) != NULL) {
        CTRT_TRY(strategy_step(p, loss, batch));
        choice->pending = choice->pending || (choice->trial && p->group.no_sync);
        return CTRT_OK;
    }
    if (!choice->predicted && !choice->pending)         /* another strategy would not have the pending gradients */
        CTRT_TRY(ctrt_context(decide_by_memory(p, batch), "auto"));
    return choice->settled ? strategy_step(p, loss, batch) : step_measured(p, loss, batch);
}
