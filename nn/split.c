/* SPDX-License-Identifier: Apache-2.0 */
/* nn/split.c: a batch in pieces that fit.
 *
 * Gradients that were there before are put aside for the time of a step, so that an attempt that fails is forgotten by dropping what it
 * left in the parameters. Of buffers (batch_norm's running statistics) copies are kept, of the generators of all devices their places. */
#include "ctrt/split.h"

#include "ctrt/autograd.h"
#include "ctrt/memory.h"
#include "device/device.h"
#include "device/stream.h"
#include "nn/module.h"
#include "tensor/tensor.h"

struct ctrt_split {
    ctrt_module *module;
    ctrt_split_options options;
    int64_t pieces;                     /* of the next step */
    int64_t good, wait;                 /* steps since the last change; how many it takes to try fewer pieces */
    bool trying;                        /* the step in progress tries fewer pieces */
};

struct place {                          /* of a device's generator */
    ctrt_device *device;
    uint64_t seed, offset;
    bool holds;                         /* parameters or buffers of the module lie there */
};

/* What an attempt can change. */
struct kept {
    const struct walk *parameters, *buffers;
    ctrt_tensor **grads;                /* one per parameter; NULL: it had none */
    ctrt_tensor **values;               /* one per buffer: a copy */
    struct place *places;               /* of all devices that were open */
    size_t place_count, place_room;
};

/* ---- life ---- */

ctrt_status ctrt_split_new(ctrt_split **out, ctrt_module *module, const ctrt_split_options *options)
{
    if (out == NULL)
        return fail_null("split_new", "out");
    if (module == NULL)
        return fail_null("split_new", "module");
    const ctrt_split_options wanted = options != NULL ? *options : (ctrt_split_options){ 0 };
    CTRT_TRY(module_at_least("split_new", "pieces", wanted.pieces, 0));
    CTRT_TRY(module_at_least("split_new", "most_pieces", wanted.most_pieces, 0));
    CTRT_TRY(module_at_least("split_new", "grow_after", wanted.grow_after, 0));
    CTRT_TRY(module_at_least("split_new", "canonical", wanted.canonical, 0));
    ctrt_split *split = memory_zeroed(sizeof *split);
    if (split == NULL)
        return out_of_memory(sizeof *split, "a split");
    split->module = ctrt_module_retain(module);
    split->options = wanted;
    split->pieces = wanted.canonical > 0 ? wanted.canonical : MAX(wanted.pieces, 1);
    split->wait = wanted.grow_after;
    ctrt_split_release(out);
    *out = split;
    return CTRT_OK;
}

void ctrt_split_release(ctrt_split **split)
{
    if (split == NULL || *split == NULL)
        return;
    ctrt_module_release(&(*split)->module);
    memory_free(*split);
    *split = NULL;
}

int64_t ctrt_split_pieces(const ctrt_split *split)
{
    return split != NULL ? split->pieces : 0;
}

/* ---- what was there before ---- */

struct noting {
    struct kept *kept;
    ctrt_status status;
};

static void note_open(ctrt_device *device, void *argument)
{
    struct noting *noting = argument;
    struct kept *kept = noting->kept;
    if (noting->status == CTRT_OK)
        noting->status = array_reserve((void **)&kept->places, &kept->place_room, kept->place_count, sizeof *kept->places);
    if (noting->status == CTRT_OK)
        kept->places[kept->place_count++] = (struct place){ .device = device };
}

static struct place *place_of(const struct kept *kept, const ctrt_device *device)
{
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].device == device->home)
            return &kept->places[i];
    return NULL;
}

/* An attempt draws from whatever generator it likes: a model on an accelerator may well take numbers from the cpu's. */
static ctrt_status keep_places(struct kept *kept)
{
    struct noting noting = { kept, CTRT_OK };
    device_for_each(note_open, &noting);
    CTRT_TRY(noting.status);
    for (size_t i = 0; i < kept->place_count; i++)
        CTRT_TRY(ctrt_generator_get(kept->places[i].device, &kept->places[i].seed, &kept->places[i].offset));
    const struct walk *walks[] = { kept->parameters, kept->buffers };
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < walks[kind]->count; i++) {
            struct place *place = place_of(kept, ctrt_tensor_device(walks[kind]->entries[i].tensor));
            if (place != NULL)
                place->holds = true;
        }
    return CTRT_OK;
}

/* A device that the attempt was the first to open goes back to its generator's beginning. */
static void place_back(ctrt_device *device, void *argument)
{
    const struct kept *kept = argument;
    const struct place *place = place_of(kept, device);
    pthread_mutex_lock(&device->generator_lock);
    if (place != NULL)
        device->seed = place->seed;
    if (device->seeded)
        device->seed_offset = place != NULL ? place->offset : 0;
    pthread_mutex_unlock(&device->generator_lock);
}

/* Drops the gradients of an attempt and hangs in those from before. */
static void grads_back(const struct kept *kept)
{
    for (size_t i = 0; i < kept->parameters->count; i++)
        (void)ctrt_tensor_set_grad(kept->parameters->entries[i].tensor, kept->grads[i]);
}

static void kept_free(struct kept *kept)
{
    for (size_t i = 0; kept->grads != NULL && i < kept->parameters->count; i++)
        ctrt_tensor_release(&kept->grads[i]);
    for (size_t i = 0; kept->values != NULL && i < kept->buffers->count; i++)
        ctrt_tensor_release(&kept->values[i]);
    memory_free(kept->grads);
    memory_free(kept->values);
    memory_free(kept->places);
}

static ctrt_status keep(struct kept *kept, ctrt_module *module)
{
    CTRT_TRY(module_walk(&kept->parameters, module, WALK_PARAMETERS));
    CTRT_TRY(module_walk(&kept->buffers, module, WALK_BUFFERS));
    const size_t most = MAX(kept->parameters->count, kept->buffers->count) + 1;
    kept->grads = memory_zeroed(most * sizeof *kept->grads);
    kept->values = memory_zeroed(most * sizeof *kept->values);
    if (kept->grads == NULL || kept->values == NULL)
        return out_of_memory(2 * most * sizeof *kept->grads, "a split");
    for (size_t i = 0; i < kept->parameters->count; i++)
        kept->grads[i] = ctrt_tensor_retain(ctrt_tensor_grad(kept->parameters->entries[i].tensor));
    return keep_places(kept);
}

/* Before each attempt: no gradients, and copies of the buffers. Whether anything below the module will write to them is for its parts to
 * know: a root in eval may have parts in training. */
static ctrt_status attempt_begin(struct kept *kept)
{
    for (size_t i = 0; i < kept->parameters->count; i++)
        if (kept->grads[i] != NULL)
            CTRT_TRY(ctrt_tensor_set_grad(kept->parameters->entries[i].tensor, NULL));
    for (size_t i = 0; i < kept->buffers->count; i++)
        if (kept->values[i] == NULL)
            CTRT_TRY(ctrt_clone(&kept->values[i], kept->buffers->entries[i].tensor));
    return CTRT_OK;
}

/* Takes back what can be, and gives the first failure. */
static ctrt_status attempt_forget(struct kept *kept)
{
    ctrt_status status = CTRT_OK;
    grads_back(kept);
    device_for_each(place_back, kept);
    for (size_t i = 0; i < kept->buffers->count && status == CTRT_OK; i++)
        if (kept->values[i] != NULL)
            status = ctrt_copy_(kept->buffers->entries[i].tensor, kept->values[i]);
    /* A stream that failed takes copies and drops them; who waits for it hears of it. */
    for (size_t i = 0; i < kept->place_count && kept->buffers->count > 0 && status == CTRT_OK; i++)
        if (kept->places[i].holds && device_asynchronous(kept->places[i].device))
            status = stream_synchronize(stream_here(kept->places[i].device));
    return status;
}

/* The gradients from before go on as the same tensors, as with ctrt_backward: who holds one sees the sum. First new + old for
 * all, in the new ones: as long as that can fail for want of memory, the old ones are whole. */
static ctrt_status grads_join(const struct kept *kept)
{
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < kept->parameters->count && status == CTRT_OK; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(kept->parameters->entries[i].tensor);
        if (kept->grads[i] != NULL && grad != NULL)
            status = ctrt_add_(grad, kept->grads[i]);
    }
    for (size_t i = 0; i < kept->parameters->count && status == CTRT_OK; i++) {
        ctrt_tensor *parameter = kept->parameters->entries[i].tensor, *old = kept->grads[i], *sum = ctrt_tensor_grad(parameter);
        if (old == NULL || (sum != NULL && (tensor_requires_grad(old) || tensor_requires_grad(sum))))
            continue;                           /* gradients with a history are replaced, as ctrt_backward does it */
        if (sum != NULL && ctrt_copy_(old, sum) != CTRT_OK)
            tensor_set_data(old, sum);          /* the same values, if any, in other memory */
        status = ctrt_tensor_set_grad(parameter, old);
    }
    return status;
}

/* ---- attempts ---- */

static ctrt_status attempt(struct kept *kept, int64_t batch, int64_t pieces, ctrt_split_function function, void *user)
{
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = attempt_begin(kept);
    for (int64_t i = 0; i < pieces && status == CTRT_OK; i++) {
        /* batch * i / pieces without overflow: the first pieces are the larger ones. */
        const int64_t least = batch / pieces, more = batch % pieces;
        const int64_t from = i * least + MIN(i, more), to = from + least + (i < more);
        status = function(user, from, to, (double)(to - from) / (double)batch);
    }
    if (status == CTRT_OK)
        ctrt_no_grad status = grads_join(kept);
    return status;
}

static void tell(const struct kept *kept, int64_t batch, int64_t pieces, int64_t next)
{
    char text[160];
    snprintf(text, sizeof text, "out of memory with %lld rows in %lld piece%s: trying %lld", (long long)batch, (long long)pieces,
             pieces > 1 ? "s" : "", (long long)next);
    log_message(CTRT_LOG_WARNING, "split", "%s", text);
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].holds)
            (void)ctrt_memory_annotate(kept->places[i].device, text);
}

static void empty_caches(const struct kept *kept)
{
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].holds)
            (void)ctrt_memory_empty_cache(kept->places[i].device);
}

/* After a step that went well: fewer pieces next time? */
static void consider_growing(ctrt_split *split, int64_t pieces, int64_t failures)
{
    if (split->trying && failures > 0)
        split->wait = split->wait < INT64_MAX / 2 ? 2 * split->wait : split->wait;
    split->trying = false;
    split->good = failures > 0 ? 0 : split->good + 1;
    if (failures > 0)
        split->pieces = pieces;             /* else pieces may be fewer for want of rows */
    if (split->wait == 0 || split->pieces == 1 || split->options.canonical > 0 || split->good < split->wait)
        return;
    split->pieces = (split->pieces + 1) / 2;
    split->good = 0;
    split->trying = true;
}

/* How many pieces after `pieces` did not fit; 0: it is to be given up. */
static int64_t next_pieces(const ctrt_split *split, int64_t batch, int64_t pieces, int64_t failures)
{
    if (split->options.canonical > 0)
        return failures == 0 ? pieces : 0;      /* what was cached may have been in the way */
    const int64_t most = split->options.most_pieces > 0 ? MIN(split->options.most_pieces, batch) : batch;
    return pieces < most ? (pieces <= most / 2 ? 2 * pieces : most) : 0;
}

static ctrt_status run(ctrt_split *split, struct kept *kept, int64_t batch, ctrt_split_function function, void *user,
                       ctrt_split_result *result)
{
    int64_t pieces = MIN(split->pieces, batch), failures = 0;
    for (;;) {
        ctrt_status status = attempt(kept, batch, pieces, function, user), forgotten;
        if (status == CTRT_OK)
            break;
        char message[1024];
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        ctrt_no_grad forgotten = attempt_forget(kept);
        if (forgotten != CTRT_OK) {             /* what failed first says more: a stream that failed fails this too */
            char why[1024];
            snprintf(why, sizeof why, "%s", ctrt_error_message());
            return ctrt_fail(status, "%s (and the module's buffers could not be taken back: %s)", message, why);
        }
        if (status != CTRT_ERR_OUT_OF_MEMORY)
            return ctrt_fail(status, "%s", message);
        const int64_t next = next_pieces(split, batch, pieces, failures++);
        if (next == 0)
            return ctrt_fail(status, "%lld rows in %lld pieces: %s", (long long)batch, (long long)pieces, message);
        tell(kept, batch, pieces, next);
        empty_caches(kept);
        pieces = next;
    }
    consider_growing(split, pieces, failures);
    if (result != NULL)
        *result = (ctrt_split_result){ .pieces = pieces, .failures = failures };
    return CTRT_OK;
}

ctrt_status ctrt_split_step(ctrt_split_result *result, ctrt_split *split, int64_t batch, ctrt_split_function function, void *user)
{
    struct kept kept = { .grads = NULL };
    if (split == NULL)
        return fail_null("split_step", "split");
    if (function == NULL)
        return fail_null("split_step", "function");
    CTRT_TRY(module_at_least("split_step", "batch", batch, 1));
    ctrt_status status = keep(&kept, split->module);
    if (status == CTRT_OK)
        status = run(split, &kept, batch, function, user, result);
    kept_free(&kept);
    return ctrt_context(status, "split_step");
}
