/* SPDX-License-Identifier: Apache-2.0 */
/* data/training_checkpoint.c: saves and loads the objects of a training run as one file (ctrt/training.h).
 *
 * The place of a loader is in the file twice. The ctrt_loader_state of each rank is for the same number of ranks. The
 * number of samples that all ranks together have got is for another number of ranks; the loader's batch is computed
 * from it. */
#include "ctrt/training.h"

#include <inttypes.h>

#include "base/base.h"
#include "base/thread.h"
#include "data/loader.h"
#include "data/training_generators.h"
#include "device/device.h"
#include "nn/checkpoint/checkpoint.h"
#include "nn/checkpoint/parts.h"
#include "nn/module/module.h"
#include "nn/optim/optim.h"

#define TRAINING_KEY "ctrt.training"    /* of the metadata: the version of the contents */

/* ---- the place of a loader ---- */

struct saved_place {
    int64_t seed, epoch, batch, fingerprint;    /* ctrt_loader_state; the same bits */
    int64_t dataset;                    /* dataset_fingerprint */
    int64_t order, world, block;        /* struct sampler_share */
    int64_t samples;                    /* of the epoch, that all ranks have got; -1: not the first of a common order */
    int64_t ended;                      /* 1: these are all of the epoch */
};

static const struct place_key { const char *name; size_t offset; } place_keys[] = {
    { "seed", offsetof(struct saved_place, seed) },
    { "epoch", offsetof(struct saved_place, epoch) },
    { "batch", offsetof(struct saved_place, batch) },
    { "fingerprint", offsetof(struct saved_place, fingerprint) },
    { "dataset", offsetof(struct saved_place, dataset) },
    { "order", offsetof(struct saved_place, order) },
    { "world", offsetof(struct saved_place, world) },
    { "block", offsetof(struct saved_place, block) },
    { "samples", offsetof(struct saved_place, samples) },
    { "ended", offsetof(struct saved_place, ended) },
};

/* Returns whether the first `samples` samples of each rank are, of all ranks together, the first of the order. */
static bool is_beginning(const struct sampler_share *share, int64_t samples)
{
    return samples % (share->block > 0 ? share->block : share->batch_size) == 0;
}

static struct sampler_share share_of(const ctrt_loader *loader)
{
    static const struct sampler_share none = { ORDER_OTHER, 0, 0, 0 };
    return loader->sampler == NULL || loader->sampler->share.batch_size == 0 ? none : loader->sampler->share;
}

static ctrt_status place_get(struct saved_place *out, ctrt_loader *loader)
{
    ctrt_loader_state state = CTRT_LOADER_STATE;
    CTRT_TRY(ctrt_loader_get_state(&state, loader));
    const struct sampler_share share = share_of(loader);
    *out = (struct saved_place){ .seed = (int64_t)state.seed, .epoch = (int64_t)state.epoch,
                                 .batch = state.batch, .fingerprint = (int64_t)state.fingerprint,
                                 .dataset = (int64_t)dataset_fingerprint(loader->dataset),
                                 .order = share.order, .world = share.world, .block = share.block, .samples = -1 };
    if (share.order == ORDER_OTHER)
        return CTRT_OK;
    out->ended = state.batch > 0 && state.batch == ctrt_sampler_batches(loader->sampler);
    if (out->ended)
        out->samples = ctrt_sampler_length(loader->sampler) * share.world;
    else if (is_beginning(&share, state.batch * share.batch_size))
        out->samples = state.batch * share.batch_size * share.world;
    return CTRT_OK;
}

/* Writes the batch at which a loader of another number of ranks continues. */
static ctrt_status batch_find(int64_t *batch, const struct saved_place *place, const ctrt_loader *loader)
{
    const struct sampler_share share = share_of(loader);
    if ((uint64_t)place->dataset != dataset_fingerprint(loader->dataset))
        return ctrt_fail(CTRT_ERR_STATE, "the file is of a loader with another dataset; this one has \"%s\" with "
                         "%" PRId64 " samples", loader->dataset->functions.name, loader->dataset->length);
    if (place->order == ORDER_OTHER || place->samples < 0 || share.order != (enum sampler_order)place->order)
        return ctrt_fail(CTRT_ERR_STATE, "the file is of a loader with another sampler, number of ranks or batch size, "
                         "and the samplers have no common order in which this one could continue");
    const int64_t batches = ctrt_sampler_batches(loader->sampler), own = place->samples / share.world;
    *batch = place->ended ? batches : own / share.batch_size;
    if (!place->ended && (place->samples % share.world != 0 || own % share.batch_size != 0 || *batch > batches
                          || !is_beginning(&share, own)))
        return ctrt_fail(CTRT_ERR_STATE, "the file is of sample %" PRId64 " of the epoch, where no batch of %" PRId64
                         " ranks with %" PRId64 " samples each begins; continue with a batch size that divides it, or "
                         "from a checkpoint between two epochs", place->samples, share.world, share.batch_size);
    return CTRT_OK;
}

/* Writes the state with which `loader` continues at the place. */
static ctrt_status place_fit(ctrt_loader_state *out, const struct saved_place *place, ctrt_loader *loader)
{
    const uint64_t fingerprint = loader_fingerprint(loader);
    const struct sampler_share share = share_of(loader);
    CTRT_TRY(loader_usable(loader, "training_load"));
    int64_t batch = place->batch;
    if (place->batch < 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "the place of the loader is batch %" PRId64, place->batch);
    if ((uint64_t)place->fingerprint != fingerprint || place->order != (int64_t)share.order
        || place->world != share.world || place->block != share.block)
        CTRT_TRY(batch_find(&batch, place, loader));
    else if (loader->sampler != NULL && batch > ctrt_sampler_batches(loader->sampler))
        return ctrt_fail(CTRT_ERR_FORMAT, "the place of the loader is batch %" PRId64 " of %" PRId64, batch,
                         ctrt_loader_length(loader));
    *out = (ctrt_loader_state){ .size = sizeof *out, .seed = (uint64_t)place->seed, .epoch = (uint64_t)place->epoch,
                                .batch = batch, .fingerprint = fingerprint };
    return CTRT_OK;
}

/* ---- saving ---- */

static ctrt_status state_get(ctrt_training_state *own, const char *who, const ctrt_training_state *given)
{
    if (given == NULL)
        return fail_null(who, "state");
    CTRT_TRY(struct_read(own, sizeof *own, given, who, "state"));
    return own->module == NULL ? fail_null(who, "state.module") : CTRT_OK;
}

static ctrt_status place_collect(struct state_items *list, ctrt_loader *loader)
{
    struct saved_place place;
    CTRT_TRY(place_get(&place, loader));
    for (size_t i = 0; i < COUNT_OF(place_keys); i++)
        CTRT_TRY(state_add_number(list, "loader", place_keys[i].name,
                                  ctrt_int(*(const int64_t *)((const char *)&place + place_keys[i].offset)), CTRT_I64));
    return CTRT_OK;
}

static ctrt_status state_collect(struct state_items *list, const ctrt_training_state *state, ctrt_tensor *generators)
{
    CTRT_TRY(module_collect(list, "module", state->module));
    if (state->optimizer != NULL)
        CTRT_TRY(optimizer_collect(list, "optimizer", state->optimizer));
    if (state->scaler != NULL)
        CTRT_TRY(scaler_collect(list, "scaler", state->scaler));
    if (state->loader != NULL)
        CTRT_TRY(place_collect(list, state->loader));
    CTRT_TRY(state_add(list, GENERATORS_SECTION, GENERATORS_NAME, generators, NULL));
    return state_add_number(list, "training", "step", ctrt_int(state->step), CTRT_I64);
}

/* Between the events of module and optimizer. */
static ctrt_status state_write(const char *path, const ctrt_training_state *state, ctrt_tensor *generators, bool write)
{
    const ctrt_metadata metadata[] = {
        { TRAINING_KEY, "1" },
        { OPTIMIZER_KIND_KEY, state->optimizer != NULL ? state->optimizer->kind->name : "" },
    };
    struct state_items list = { 0 };
    ctrt_status status = state_collect(&list, state, generators);
    if (status == CTRT_OK && write)
        status = safetensors_write(path, list.items, list.count, metadata, state->optimizer != NULL ? 2 : 1);
    state_free(&list);
    return status;
}

/* Fails if the strategy would save the module in parts. */
static ctrt_status whole_check(ctrt_module *module)
{
    ctrt_module_parts parts = { .write = true };
    CTRT_TRY(module_event(module, CTRT_MODULE_SAVE_PARTS, &parts));
    return parts.count == 0 ? CTRT_OK
                            : ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a training run cannot be saved in parts, which are "
                                        "several files; set CTRT_SHARDED_CHECKPOINT=whole, or use ctrt_save and "
                                        "ctrt_optimizer_save");
}

static ctrt_status training_save(const char *path, const ctrt_training_state *state)
{
    ctrt_module *owner = state->optimizer != NULL ? state->optimizer->module : NULL;
    CTRT_AUTO(tensor) generators = NULL;
    bool write = true;
    CTRT_TRY(whole_check(state->module));
    CTRT_TRY(generators_get(&generators, state->module));
    CTRT_TRY(module_event(owner, CTRT_MODULE_OPTIMIZER_SAVE_BEGIN, state->optimizer));
    ctrt_status status = module_event(state->module, CTRT_MODULE_SAVE_BEGIN, &write);
    if (status == CTRT_OK) {
        status = state_write(path, state, generators, write);
        status = module_event_end(status, state->module, CTRT_MODULE_SAVE_END, NULL);
    }
    return module_event_end(status, owner, CTRT_MODULE_OPTIMIZER_SAVE_END, state->optimizer);
}

ctrt_status ctrt_training_save(const char *path, const ctrt_training_state *state)
{
    ctrt_training_state own = CTRT_TRAINING_STATE;
    CANCEL_DISABLED;
    NULL_CHECK("training_save", path);
    CTRT_TRY(state_get(&own, "training_save", state));
    if (own.step < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "training_save: state.step is %" PRId64 "; expected 0 or more",
                         own.step);
    return ctrt_context(training_save(path, &own), "saving %.500s", path);
}

/* ---- loading ---- */

/* What was read, for the objects of the state. */
struct loaded {
    ctrt_tensor_file *file, *sections[4];       /* the sections use strings of the file */
    struct module_load module;
    struct optimizer_load optimizer;
    ctrt_grad_scaler_state scaler;
    ctrt_loader_state loader;
    ctrt_tensor *generators;            /* NULL: they stay as they are */
    int64_t step;
};

static ctrt_status training_number_read(int64_t *out, ctrt_tensor_file *section, const char *name)
{
    CTRT_AUTO(tensor) tensor = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(ctrt_tensor_file_read(&tensor, section, name, cpu));
    if (ctrt_tensor_numel(tensor) != 1 || ctrt_tensor_dtype(tensor) != CTRT_I64)
        return ctrt_fail(CTRT_ERR_FORMAT, "\"%s\" has dtype %s and %" PRId64 " elements, expected one of i64", name,
                         ctrt_dtype_name(ctrt_tensor_dtype(tensor)), ctrt_tensor_numel(tensor));
    return ctrt_item_int(out, tensor);
}

static ctrt_status place_read(ctrt_loader_state *out, ctrt_tensor_file *section, ctrt_loader *loader)
{
    struct saved_place place;
    for (size_t i = 0; i < COUNT_OF(place_keys); i++)
        CTRT_TRY(training_number_read((int64_t *)((char *)&place + place_keys[i].offset), section, place_keys[i].name));
    return place_fit(out, &place, loader);
}

/* Opens a section of the file that must exist. */
static ctrt_status section_open(ctrt_tensor_file **out, struct loaded *l, const char *name)
{
    CTRT_TRY(tensor_file_section(out, l->file, name));
    return ctrt_tensor_file_count(*out) > 0 ? CTRT_OK : ctrt_fail(CTRT_ERR_STATE, "the file has no %s", name);
}

static ctrt_status training_state_read(struct loaded *l, const ctrt_training_state *state, const char *path)
{
    CTRT_TRY(ctrt_tensor_file_open(&l->file, path));
    const char *version = ctrt_tensor_file_metadata(l->file, TRAINING_KEY);
    if (version == NULL || l->file->part_count > 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "the file was not written by ctrt_training_save");
    if (strcmp(version, "1") != 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the file has version %.40s of the format, this library reads 1",
                         version);
    CTRT_TRY(tensor_file_section(&l->sections[0], l->file, "training"));
    CTRT_TRY(training_number_read(&l->step, l->sections[0], "step"));
    if (l->step < 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "the step is %" PRId64 ", expected 0 or more", l->step);
    if (state->loader != NULL) {
        CTRT_TRY(section_open(&l->sections[1], l, "loader"));
        CTRT_TRY(ctrt_context(place_read(&l->loader, l->sections[1], state->loader), "loader"));
    }
    if (state->scaler != NULL && ctrt_grad_scaler_enabled(state->scaler)) {
        CTRT_TRY(section_open(&l->sections[2], l, "scaler"));
        CTRT_TRY(ctrt_context(scaler_state_read(&l->scaler, l->sections[2]), "scaler"));
    }
    if (state->optimizer != NULL) {
        CTRT_TRY(section_open(&l->sections[3], l, "optimizer"));
        CTRT_TRY(ctrt_context(optimizer_load_read(&l->optimizer, state->optimizer, l->sections[3]), "optimizer"));
    }
    CTRT_TRY(generators_read(&l->generators, l->file, state->module));
    CTRT_AUTO(tensor_file) module = NULL;       /* without parameters and buffers there is no section */
    CTRT_TRY(tensor_file_section(&module, l->file, "module"));
    return module_load_read(&l->module, state->module, module);
}

static ctrt_status state_give(const struct loaded *l, ctrt_training_state *state)
{
    CTRT_TRY(module_load_give(&l->module));
    if (state->optimizer != NULL)
        CTRT_TRY(ctrt_context(optimizer_load_give(&l->optimizer), "optimizer, after the module was loaded"));
    if (state->scaler != NULL && ctrt_grad_scaler_enabled(state->scaler))
        CTRT_TRY(ctrt_grad_scaler_set_state(state->scaler, &l->scaler));
    if (state->loader != NULL)
        CTRT_TRY(ctrt_loader_restore(state->loader, &l->loader));
    CTRT_TRY(generators_set(l->generators, state->module));
    state->step = l->step;
    return CTRT_OK;
}

static void loaded_free(struct loaded *l)
{
    module_load_free(&l->module);
    optimizer_load_free(&l->optimizer);
    ctrt_tensor_release(&l->generators);
    for (size_t i = 0; i < COUNT_OF(l->sections); i++)
        ctrt_tensor_file_release(&l->sections[i]);
    ctrt_tensor_file_release(&l->file);
}

static ctrt_status training_load(ctrt_training_state *state, const char *path)
{
    ctrt_module *owner = state->optimizer != NULL ? state->optimizer->module : NULL;
    struct loaded l = { 0 };
    CTRT_TRY(module_event(owner, CTRT_MODULE_OPTIMIZER_LOAD_BEGIN, state->optimizer));
    ctrt_status status = module_event(state->module, CTRT_MODULE_LOAD_BEGIN, NULL);
    if (status == CTRT_OK) {
        status = training_state_read(&l, state, path);
        if (status == CTRT_OK)
            status = state_give(&l, state);
        loaded_free(&l);
        status = module_event_end(status, state->module, CTRT_MODULE_LOAD_END, NULL);
    }
    return module_event_end(status, owner, CTRT_MODULE_OPTIMIZER_LOAD_END, state->optimizer);
}

ctrt_status ctrt_training_load(ctrt_training_state *state, const char *path)
{
    ctrt_training_state own = CTRT_TRAINING_STATE;
    CANCEL_DISABLED;
    NULL_CHECK("training_load", path);
    CTRT_TRY(state_get(&own, "training_load", state));
    CTRT_TRY(ctrt_context(training_load(&own, path), "loading %.500s", path));
    return struct_write(state, &own, sizeof own, "training_load", "state");
}
