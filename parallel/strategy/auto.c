/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/auto.c: the strategy `auto`: chooses another one by the launcher, the devices, the memory that a
 * step needs, and the time that it takes.
 *
 * The times are measured, not estimated: on some machines two devices are slower than one because of the links between
 * them, on others because of the processors that serve them, and no backend reports both. */
#include "parallel/strategy/candidates.h"

#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "device/launcher.h"
#include "graph/capture.h"
#include "nn/module/module.h"
#include "parallel/comm/comm.h"

#define WARM_UP          1              /* steps of a strategy that are not measured: they create copies and buffers */
#define MEASURED         3              /* steps of which the fastest counts */
#define LEAST_GAIN       1.05           /* another strategy uses more devices, so it must be faster by this factor */
#define MOST_FILLED      0.9            /* fraction of the memory, because free memory may be in small blocks */
#define OPTIMIZER_STATES 2              /* tensors per parameter that an optimizer is assumed to keep, as Adam's do */

struct choice {
    bool settled;
    bool predicted;                     /* the memory of a step; it fits */
    bool pending;                       /* the candidate's replicas have gradients of steps with no_sync */
    int steps;                          /* of the present candidate */
    int present;                        /* index of the candidate in use; above 0: it is tried */
    struct candidates candidates;
    ctrt_strategy_facts facts_known;
    uint64_t budget;                    /* bytes; UINT64_MAX: unknown */
    char failure[256];                  /* of the last candidate that could not be tried; "": none */
    char facts[192], reason[640];
};

const char *auto_reason(const struct choice *choice)
{
    return choice->reason;
}

/* ---- memory ---- */

static uint64_t tensor_bytes(const ctrt_tensor *tensor)
{
    return (uint64_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

static ctrt_status facts_measure(ctrt_strategy_facts *facts, ctrt_module *module)
{
    const struct walk *walk;
    *facts = (ctrt_strategy_facts){ .size = sizeof *facts };
    for (int buffers = 0; buffers < 2; buffers++) {
        CTRT_TRY(module_walk(&walk, module, buffers ? WALK_BUFFERS : WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++) {
            const ctrt_tensor *tensor = walk->entries[i].tensor;
            const uint64_t bytes = tensor_bytes(tensor);
            *(buffers ? &facts->buffer_bytes : &facts->parameter_bytes) += bytes;
            facts->model_bytes += (ctrt_tensor_requires_grad(tensor) ? 2 + OPTIMIZER_STATES : 1) * bytes;
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_module_memory_budget(uint64_t *bytes, ctrt_module *module, ctrt_device *device)
{
    const struct walk *walk;
    uint64_t left = UINT64_MAX, total, own = 0;
    NULL_CHECKS("module_memory_budget", bytes, module, device);
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

/* Returns whether a candidate's part of the model and `bytes` more fit on one device, also if it is unknown. */
static bool room_for(const struct choice *choice, const struct candidate *candidate, uint64_t bytes)
{
    return candidate->estimate.bytes == 0
           || (double)candidate->estimate.bytes + (double)bytes <= MOST_FILLED * (double)choice->budget;
}

/* Predicts forward and backward of the rows that a device computes under `candidate`, on the first device: the bytes
 * that they need in addition to the model, and whether the memory policy finds room for them now. */
static ctrt_status batch_predict(uint64_t *bytes, bool *fits, const struct parallel *p,
                                 const ctrt_strategy_batch *batch, const struct candidate *candidate)
{
    const int64_t rows = MIN(candidate->estimate.rows, batch->rows);
    CTRT_AUTO(tensor) loss = NULL;
    CTRT_AUTO(dry_run) run = NULL;
    ctrt_memory_prediction found = { .size = sizeof(ctrt_memory_prediction), .fits = true };
    ctrt_loss_part part = { .parts = 0 };
    const struct walk *walk;
    ctrt_module *module = p->config.module;
    HOST_AUTO ctrt_tensor **before = NULL;
    uint64_t own = 0;
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    const size_t count = walk->count;
    before = host_calloc((2 * count + 1) * sizeof *before);
    ALLOC_CHECK(before, (2 * count + 1) * sizeof *before, "lists of gradients");
    ctrt_tensor **grads = before + count;
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
    CTRT_TRY(status);
    const uint64_t more = found.peak_allocated - found.allocated_before;
    *bytes = more > own ? more - own : 0;
    *fits = found.fits && room_for(p->choice, candidate, *bytes);
    return CTRT_OK;
}

/* ---- deciding ---- */

static ctrt_status use(struct parallel *p, int index)
{
    CTRT_TRY(strategy_use(p, p->choice->candidates.list[index].component));
    p->choice->present = index;
    p->choice->steps = 0;
    return CTRT_OK;
}

/* Writes "4 devices, model 1.20 MiB of 32.00 MiB available". */
static void facts_write(struct choice *choice, const char *where)
{
    char model[32], budget[32];
    if (choice->budget == UINT64_MAX)
        snprintf(choice->facts, sizeof choice->facts, "%s, model %s, available memory unknown", where,
                 format_bytes(model, choice->facts_known.model_bytes));
    else
        snprintf(choice->facts, sizeof choice->facts, "%s, model %s of %s available", where,
                 format_bytes(model, choice->facts_known.model_bytes), format_bytes(budget, choice->budget));
}

/* Ends the choice: the strategy in use remains. `why`: the reason, added to choice->facts; NULL: the facts suffice. */
static void auto_settle(struct parallel *p, ctrt_log_level level, const char *why)
{
    char text[DESCRIPTION_BYTES];
    struct choice *choice = p->choice;
    choice->settled = true;
    snprintf(choice->reason, sizeof choice->reason, "%s%s%s", choice->facts, why != NULL ? ", " : "",
             why != NULL ? why : "");
    strategy_describe(p, text);
    log_message(level, "parallel", "%s", text);
}

ctrt_status auto_flags(uint32_t *flags, const ctrt_comm *comm)
{
    struct rank_environment ranks = { .size = 1 };
    if (comm == NULL)
        CTRT_TRY(launcher_read(&ranks));
    *flags = comm != NULL || ranks.size > 1 ? CTRT_STRATEGY_RANKS : 0;
    return CTRT_OK;
}

/* Finds the candidates. All ranks of a communicator decide by the same candidates and numbers. In an elastic group,
 * which ranks join at any time, they do so without comparing numbers, and use the first candidate. */
static ctrt_status candidates_prepare(struct parallel *p)
{
    struct choice *choice = p->choice;
    bool elastic = false, joins = false;
    if (p->comm != NULL)
        CTRT_TRY(comm_read_modes(&elastic, &joins));
    choice->facts_known.elastic = elastic;
    CTRT_TRY(candidates_find(&choice->candidates, p, &choice->facts_known));
    if (elastic)
        choice->candidates.count = 1;
    else if (p->comm != NULL && ctrt_comm_size(p->comm) > 1)
        CTRT_TRY(candidates_agree(&choice->candidates, &choice->budget, &choice->facts_known.model_bytes, p));
    return CTRT_OK;
}

/* Returns the first candidate whose part of the model fits, or the first one if none does. */
static int first_fitting(const struct choice *choice)
{
    for (int i = 0; i < choice->candidates.count; i++)
        if (room_for(choice, &choice->candidates.list[i], 0))
            return i;
    return 0;
}

/* Creates the first strategy. The choice is settled if there is no other one, or the others would need the ranks to
 * measure their steps together. */
static ctrt_status auto_create_first(struct parallel *p)
{
    char where[64], why[256];
    struct choice *choice = p->choice;
    const bool ranks = p->comm != NULL;
    const int count = ranks ? ctrt_comm_size(p->comm) : (int)p->config.count, best = first_fitting(choice);
    const char *place = ranks ? "rank" : "device";
    const struct candidate *candidate = &choice->candidates.list[best];
    snprintf(where, sizeof where, "%d %s%s", count, place, count > 1 ? "s" : "");
    facts_write(choice, where);
    snprintf(choice->reason, sizeof choice->reason, "%s, not decided before some steps were measured", choice->facts);
    if (!candidate->estimate.places)
        CTRT_TRY(ctrt_module_to(p->config.module, p->config.devices[0], CTRT_DTYPE_DEFAULT));
    CTRT_TRY(use(p, best));
    if (best > 0) {
        snprintf(why, sizeof why, "which is too little for one %s", place);
        auto_settle(p, CTRT_LOG_INFO, why);
    } else if (!room_for(choice, candidate, 0)) {
        snprintf(why, sizeof why, "which is too little%s", choice->candidates.refused);
        auto_settle(p, CTRT_LOG_WARNING, why);
    } else if (ranks || choice->candidates.count == 1) {
        auto_settle(p, CTRT_LOG_INFO, NULL);
    }
    return CTRT_OK;
}

ctrt_status auto_begin(struct parallel *p)
{
    p->choice = host_calloc(sizeof *p->choice);
    ALLOC_CHECK(p->choice, sizeof *p->choice, "the choice of a strategy");
    struct choice *choice = p->choice;
    CTRT_TRY(facts_measure(&choice->facts_known, p->config.module));
    if (ctrt_module_memory_budget(&choice->budget, p->config.module, p->config.devices[0]) != CTRT_OK)
        choice->budget = UINT64_MAX;
    const ctrt_status status = candidates_prepare(p);
    if (status != CTRT_OK) {
        if (p->comm != NULL)                /* the other ranks wait for this one */
            ctrt_comm_abort(p->comm, ctrt_error_message());
        return status;
    }
    return auto_create_first(p);
}

/* What the candidates need for a batch. */
struct needs {
    int best;                               /* the first candidate but the one in front whose rows fit */
    bool fits;                              /* false: none; `best` is the next one */
    int64_t rows;                           /* of the last prediction, and the bytes of its activations */
    uint64_t bytes;
};

/* Compares the other candidates after the first one was found not to fit, which has predicted needs->rows. */
static void compare_others(struct needs *needs, const struct parallel *p, const ctrt_strategy_batch *batch)
{
    const struct candidates *candidates = &p->choice->candidates;
    needs->best = 1;
    for (int i = 1; i < candidates->count && !needs->fits; i++) {
        const struct candidate *candidate = &candidates->list[i];
        needs->fits = candidate->estimate.rows == 0;
        if (!needs->fits && candidate->estimate.rows < needs->rows) {
            needs->rows = candidate->estimate.rows;
            if (batch_predict(&needs->bytes, &needs->fits, p, batch, candidate) != CTRT_OK)
                needs->fits = false;
        }
        needs->best = needs->fits ? i : needs->best;
    }
}

/* Chooses by the memory that the batch needs. If that is unknown, the batch counts as one that fits. */
static ctrt_status decide_by_memory(struct parallel *p, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    const struct candidate *first = &choice->candidates.list[0];
    struct needs needs = { .fits = false };
    uint64_t bytes;
    bool fits;
    char text[2][32], why[384];
    choice->facts_known.rows = batch->rows;
    candidates_again(&choice->candidates, p, &choice->facts_known);
    if (batch_predict(&bytes, &fits, p, batch, first) != CTRT_OK) {
        log_message(CTRT_LOG_DEBUG, "parallel", "auto: the memory of a step is unknown: %s", ctrt_error_message());
        return CTRT_OK;                     /* the step may also fail; then the next step predicts again */
    }
    const size_t used = strlen(choice->facts);
    snprintf(choice->facts + used, sizeof choice->facts - used, ", activations %s", format_bytes(text[0], bytes));
    choice->predicted = fits;
    if (fits)
        return CTRT_OK;
    choice->facts[used] = '\0';             /* `why` has it, or the next step adds it if no strategy can be created */
    needs.rows = first->estimate.rows;
    needs.bytes = bytes;
    compare_others(&needs, p, batch);
    const bool known = needs.fits && choice->candidates.list[needs.best].estimate.rows > 0;
    if (known)
        snprintf(why, sizeof why, "activations of %lld rows %s, of %lld rows %s", (long long)first->estimate.rows,
                 format_bytes(text[0], bytes), (long long)needs.rows, format_bytes(text[1], needs.bytes));
    else
        snprintf(why, sizeof why, "activations of %lld rows %s%s%s", (long long)needs.rows,
                 format_bytes(text[0], needs.bytes), needs.fits ? "" : ", which is too much",
                 needs.fits ? "" : choice->candidates.refused);
    CTRT_TRY(use(p, needs.best));
    auto_settle(p, needs.fits ? CTRT_LOG_INFO : CTRT_LOG_WARNING, why);
    return CTRT_OK;
}

/* ---- measuring ---- */

static ctrt_status devices_wait(const struct parallel *p)
{
    for (int i = 0; i < p->config.count; i++)
        CTRT_TRY(ctrt_device_synchronize(p->config.devices[i]));
    return CTRT_OK;
}

/* Writes "with single 3.1 ms" for each measured candidate but `best`. */
static void times_write(char *text, size_t bytes, const struct candidates *candidates, int best, int64_t rows)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < candidates->count && used < bytes; i++)
        if (i != best && candidates->list[i].rate > 0)
            used += (size_t)snprintf(text + used, bytes - used, ", with %s %.3g ms",
                                     candidates->list[i].component->name,
                                     1e3 * (double)rows / candidates->list[i].rate);
}

/* Decides by the times, after the measured steps of all candidates. `rows`: of the last step, for the text. */
static void decide_by_time(struct parallel *p, int64_t rows)
{
    struct choice *choice = p->choice;
    const struct candidate *list = choice->candidates.list;
    char why[384], others[256];
    int best = 0;
    for (int i = 1; i < choice->candidates.count; i++)
        if (list[i].rate >= LEAST_GAIN * list[0].rate && list[i].rate > list[best].rate && !list[i].failed)
            best = i;
    if (best != choice->present && use(p, best) != CTRT_OK)
        return;                             /* the next step tries again */
    times_write(others, sizeof others, &choice->candidates, best, rows);
    snprintf(why, sizeof why, "a step of %lld rows takes %.3g ms%s", (long long)rows,
             1e3 * (double)rows / list[best].rate, others);
    auto_settle(p, CTRT_LOG_INFO, why);
}

/* Begins to measure the next candidate, or decides if there is none. */
static void trial_next(struct parallel *p, int64_t rows)
{
    struct choice *choice = p->choice;
    bool measured = false;
    for (int i = 1; i < choice->candidates.count; i++) {
        struct candidate *candidate = &choice->candidates.list[i];
        measured = measured || candidate->rate > 0;
        if (!candidate->estimate.measured || candidate->failed || candidate->rate > 0)
            continue;
        if (use(p, i) == CTRT_OK)
            return;
        candidate->failed = true;
        snprintf(choice->failure, sizeof choice->failure, "because %s", ctrt_error_message());
    }
    if (measured)
        decide_by_time(p, rows);
    else
        auto_settle(p, CTRT_LOG_INFO, choice->failure[0] != '\0' ? choice->failure : NULL);
}

/* After a step of a candidate that is tried has failed: makes it with the first one. If that succeeds, the candidate is
 * not usable. */
static ctrt_status trial_end(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    struct candidate *candidate = &choice->candidates.list[choice->present];
    char why[sizeof choice->failure];
    snprintf(why, sizeof why, "because of %s", ctrt_error_message());
    ctrt_tensor_release(loss);
    CTRT_TRY(use(p, 0));
    candidate->rate = 0;
    CTRT_TRY(strategy_step(p, loss, batch));
    memcpy(choice->failure, why, sizeof why);
    candidate->failed = true;
    trial_next(p, batch->rows);
    return CTRT_OK;
}

static ctrt_status step_measured(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    double *rate = &choice->candidates.list[choice->present].rate;
    CTRT_TRY(devices_wait(p));
    const double start = seconds_now();
    const ctrt_status status = strategy_step(p, loss, batch);
    if (status != CTRT_OK && choice->present > 0 && !choice->pending)
        return trial_end(p, loss, batch);
    CTRT_TRY(status);
    choice->pending = false;
    CTRT_TRY(devices_wait(p));              /* after a failure here, the gradients have the step's already */
    if (++choice->steps > WARM_UP)
        *rate = MAX(*rate, (double)batch->rows / MAX(seconds_now() - start, 1e-9));
    if (choice->steps >= WARM_UP + MEASURED)
        trial_next(p, batch->rows);
    return CTRT_OK;
}

ctrt_status auto_step(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct choice *choice = p->choice;
    if (choice->settled)
        return strategy_step(p, loss, batch);
    if (p->group.no_sync || strategy_dry(p) || capture_here(p->config.devices[0]) != NULL) {
        CTRT_TRY(strategy_step(p, loss, batch));
        choice->pending = choice->pending || (choice->present > 0 && p->group.no_sync);
        return CTRT_OK;
    }
    if (!choice->predicted && !choice->pending)         /* another strategy would not have the pending gradients */
        CTRT_TRY(ctrt_context(decide_by_memory(p, batch), "auto"));
    return choice->settled ? strategy_step(p, loss, batch) : step_measured(p, loss, batch);
}
