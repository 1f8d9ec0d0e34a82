/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/split.c: runs a batch in several micro-batches (pieces) if the whole batch does not fit into memory.
 *
 * A failed attempt must have no effect. For this purpose a step saves the state that an attempt can change: the
 * gradients (detached from the parameters during the step), copies of the buffers (batch_norm's running statistics) and
 * the positions of the random number generators of all devices. */
#include "ctrt/split.h"

#include "ctrt/autograd.h"
#include "ctrt/memory.h"
#include "device/device.h"
#include "nn/module/module.h"
#include "stream/stream.h"
#include "tensor/tensor.h"

struct ctrt_split {
    ctrt_module *module;
    ctrt_split_options options;
    int64_t pieces;                     /* number of pieces of the next step */
    int64_t good, wait;                 /* successful steps since the last change; steps until fewer pieces are tried */
    bool trying;                        /* the next step is a trial with fewer pieces */
};

struct split_place {                          /* position of a device's random number generator */
    ctrt_device *device;
    uint64_t seed, offset;
    bool holds;                         /* the device has parameters or buffers of the module */
};

/* The saved state. */
struct split_kept {
    const struct walk *parameters, *buffers;
    ctrt_tensor **grads;                /* one per parameter; NULL: the parameter had no gradient */
    ctrt_tensor **values;               /* one copy per buffer */
    struct split_place *places;               /* one per device that was open */
    size_t place_count, place_capacity;
};

/* ---- creation, destruction, accessors ---- */

ctrt_status ctrt_split_new(ctrt_split **out, ctrt_module *module, const ctrt_split_options *options)
{
    NULL_CHECK("split_new", out);
    NULL_CHECK("split_new", module);
    ctrt_split_options wanted = CTRT_SPLIT_OPTIONS;
    CTRT_TRY(struct_read(&wanted, sizeof wanted, options, "split_new", "options"));
    CTRT_TRY(module_at_least("split_new", "pieces", wanted.pieces, 0));
    CTRT_TRY(module_at_least("split_new", "most_pieces", wanted.most_pieces, 0));
    CTRT_TRY(module_at_least("split_new", "grow_after", wanted.grow_after, 0));
    CTRT_TRY(module_at_least("split_new", "canonical", wanted.canonical, 0));
    ctrt_split *split = host_calloc(sizeof *split);
    ALLOC_CHECK(split, sizeof *split, "a split");
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
    host_free(*split);
    *split = NULL;
}

int64_t ctrt_split_pieces(const ctrt_split *split)
{
    return split != NULL ? split->pieces : 0;
}

/* ---- saving and restoring state ---- */

struct noting {
    struct split_kept *kept;
    ctrt_status status;
};

static void note_open(ctrt_device *device, void *argument)
{
    struct noting *noting = argument;
    struct split_kept *kept = noting->kept;
    if (noting->status == CTRT_OK)
        noting->status = ARRAY_RESERVE(kept->places, kept->place_capacity, kept->place_count, "a list of devices");
    if (noting->status == CTRT_OK)
        kept->places[kept->place_count++] = (struct split_place){ .device = device };
}

static struct split_place *place_of(const struct split_kept *kept, const ctrt_device *device)
{
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].device == device->home)
            return &kept->places[i];
    return NULL;
}

/* Saves the generator positions of all open devices, because a model on an accelerator may also use the generator of
 * another device, for example the cpu. */
static ctrt_status keep_places(struct split_kept *kept)
{
    struct noting noting = { kept, CTRT_OK };
    device_for_each(note_open, &noting);
    CTRT_TRY(noting.status);
    for (size_t i = 0; i < kept->place_count; i++)
        CTRT_TRY(ctrt_generator_get(kept->places[i].device, &kept->places[i].seed, &kept->places[i].offset));
    const struct walk *walks[] = { kept->parameters, kept->buffers };
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < walks[kind]->count; i++) {
            struct split_place *place = place_of(kept, ctrt_tensor_device(walks[kind]->entries[i].tensor));
            if (place != NULL)
                place->holds = true;
        }
    return CTRT_OK;
}

/* Restores the generator position of a device. A device that was opened during the step gets the offset 0. */
static void place_back(ctrt_device *device, void *argument)
{
    const struct split_kept *kept = argument;
    const struct split_place *place = place_of(kept, device);
    pthread_mutex_lock(&device->generator_lock);
    if (place != NULL)
        device->seed = place->seed;
    if (device->seeded)
        device->seed_offset = place != NULL ? place->offset : 0;
    pthread_mutex_unlock(&device->generator_lock);
}

/* Replaces the gradients of an attempt by the saved ones. */
static void grads_back(const struct split_kept *kept)
{
    for (size_t i = 0; i < kept->parameters->count; i++)
        (void)ctrt_tensor_set_grad(kept->parameters->entries[i].tensor, kept->grads[i]);
}

static void kept_free(struct split_kept *kept)
{
    for (size_t i = 0; kept->grads != NULL && i < kept->parameters->count; i++)
        ctrt_tensor_release(&kept->grads[i]);
    for (size_t i = 0; kept->values != NULL && i < kept->buffers->count; i++)
        ctrt_tensor_release(&kept->values[i]);
    host_free(kept->grads);
    host_free(kept->values);
    host_free(kept->places);
}

/* Saves gradients and generator positions, before the first attempt. The caller calls kept_free, also on error. */
static ctrt_status split_keep(struct split_kept *kept, ctrt_module *module)
{
    CTRT_TRY(module_walk(&kept->parameters, module, WALK_PARAMETERS));
    CTRT_TRY(module_walk(&kept->buffers, module, WALK_BUFFERS));
    const size_t most = MAX(kept->parameters->count, kept->buffers->count) + 1;
    kept->grads = host_calloc(most * sizeof *kept->grads);
    kept->values = host_calloc(most * sizeof *kept->values);
    if (kept->grads == NULL || kept->values == NULL)
        return out_of_memory(2 * most * sizeof *kept->grads, "a split");
    for (size_t i = 0; i < kept->parameters->count; i++)
        kept->grads[i] = ctrt_tensor_retain(ctrt_tensor_grad(kept->parameters->entries[i].tensor));
    return keep_places(kept);
}

/* Prepares an attempt: clears the gradients and copies the buffers. The buffers are copied even if the module is in
 * evaluation mode, because a descendant may be in training mode and write to its buffers. */
static ctrt_status attempt_begin(struct split_kept *kept)
{
    for (size_t i = 0; i < kept->parameters->count; i++)
        if (kept->grads[i] != NULL)
            CTRT_TRY(ctrt_tensor_set_grad(kept->parameters->entries[i].tensor, NULL));
    for (size_t i = 0; i < kept->buffers->count; i++)
        if (kept->values[i] == NULL)
            CTRT_TRY(ctrt_clone(&kept->values[i], kept->buffers->entries[i].tensor));
    return CTRT_OK;
}

/* Restores the saved state after a failed attempt. Returns the first error of restoring the buffers. */
static ctrt_status attempt_forget(struct split_kept *kept)
{
    ctrt_status status = CTRT_OK;
    grads_back(kept);
    device_for_each(place_back, kept);
    for (size_t i = 0; i < kept->buffers->count && status == CTRT_OK; i++)
        if (kept->values[i] != NULL)
            status = ctrt_copy_(kept->buffers->entries[i].tensor, kept->values[i]);
    /* A stream that has failed accepts copies without executing them. Only the synchronization reports that error. */
    for (size_t i = 0; i < kept->place_count && kept->buffers->count > 0 && status == CTRT_OK; i++)
        if (kept->places[i].holds && device_asynchronous(kept->places[i].device))
            status = stream_synchronize(stream_here(kept->places[i].device));
    return status;
}

/* Adds the saved gradients to the gradients of the successful attempt. As with ctrt_backward, the saved tensors remain
 * the parameters' gradients, so that the program sees the sum in tensors to which it holds references.
 *
 * The first loop computes all sums in the new tensors, because an allocation may fail; until then the saved tensors are
 * unchanged. */
static ctrt_status grads_join(const struct split_kept *kept)
{
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < kept->parameters->count && status == CTRT_OK; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(kept->parameters->entries[i].tensor);
        if (kept->grads[i] != NULL && grad != NULL)
            status = ctrt_add_(grad, kept->grads[i]);
    }
    for (size_t i = 0; i < kept->parameters->count && status == CTRT_OK; i++) {
        ctrt_tensor *parameter = kept->parameters->entries[i].tensor, *old = kept->grads[i],
                    *sum = ctrt_tensor_grad(parameter);
        if (old == NULL || (sum != NULL && (tensor_requires_grad(old) || tensor_requires_grad(sum))))
            continue;                           /* gradients that require grad are replaced, as in ctrt_backward */
        if (sum != NULL && ctrt_copy_(old, sum) != CTRT_OK)
            tensor_set_data(old, sum);          /* cannot fail: `old` uses the memory of `sum` */
        status = ctrt_tensor_set_grad(parameter, old);
    }
    return status;
}

/* ---- attempts ---- */

static ctrt_status attempt(struct split_kept *kept, int64_t batch, int64_t pieces, ctrt_split_function function,
                           void *user)
{
    ctrt_status status = CTRT_OK;
    ctrt_no_grad status = attempt_begin(kept);
    for (int64_t i = 0; i < pieces && status == CTRT_OK; i++) {
        /* The first batch % pieces pieces have one row more than the others. */
        const int64_t least = batch / pieces, more = batch % pieces;
        const int64_t from = i * least + MIN(i, more), to = from + least + (i < more);
        status = function(user, from, to, (double)(to - from) / (double)batch);
    }
    if (status == CTRT_OK)
        ctrt_no_grad status = grads_join(kept);
    return status;
}

static void split_warn(const struct split_kept *kept, int64_t batch, int64_t pieces, int64_t next)
{
    char text[160];
    snprintf(text, sizeof text, "out of memory with %lld rows in %lld piece%s; retrying with %lld", (long long)batch,
             (long long)pieces, pieces > 1 ? "s" : "", (long long)next);
    log_message(CTRT_LOG_WARNING, "split", "%s", text);
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].holds)
            (void)ctrt_memory_annotate(kept->places[i].device, text);
}

static void empty_caches(const struct split_kept *kept)
{
    for (size_t i = 0; i < kept->place_count; i++)
        if (kept->places[i].holds)
            (void)ctrt_memory_empty_cache(kept->places[i].device);
}

/* After a successful step: sets the number of pieces of the next step, which is halved after `wait` successful steps. A
 * trial with fewer pieces that fails doubles `wait`. */
static void consider_growing(ctrt_split *split, int64_t pieces, int64_t failures)
{
    if (split->trying && failures > 0)
        split->wait = split->wait < INT64_MAX / 2 ? 2 * split->wait : split->wait;
    split->trying = false;
    split->good = failures > 0 ? 0 : split->good + 1;
    if (failures > 0 && split->options.canonical == 0)
        split->pieces = pieces;             /* not without failures: `pieces` may be limited by the number of rows */
    if (split->wait == 0 || split->pieces == 1 || split->options.canonical > 0 || split->good < split->wait)
        return;
    split->pieces = (split->pieces + 1) / 2;
    split->good = 0;
    split->trying = true;
}

/* Returns the number of pieces for the next attempt after `pieces` did not fit, or 0 to give up. */
static int64_t next_pieces(const ctrt_split *split, int64_t batch, int64_t pieces, int64_t failures)
{
    if (split->options.canonical > 0)
        return failures == 0 ? pieces : 0;      /* one more attempt, because empty_caches has freed memory */
    const int64_t most = split->options.most_pieces > 0 ? MIN(split->options.most_pieces, batch) : batch;
    return pieces < most ? (pieces <= most / 2 ? 2 * pieces : most) : 0;
}

static ctrt_status split_run(ctrt_split *split, struct split_kept *kept, int64_t batch, ctrt_split_function function,
                             void *user, ctrt_split_result *result)
{
    int64_t pieces = MIN(split->pieces, batch), failures = 0;
    for (;;) {
        ctrt_status status = attempt(kept, batch, pieces, function, user), forgotten;
        if (status == CTRT_OK)
            break;
        char message[1024];
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        ctrt_no_grad forgotten = attempt_forget(kept);
        if (forgotten != CTRT_OK) {             /* the first error is the cause: a failed stream also fails this call */
            char why[1024];
            snprintf(why, sizeof why, "%s", ctrt_error_message());
            return ctrt_fail(status, "%s (and the module's buffers could not be restored: %s)", message, why);
        }
        if (status != CTRT_ERR_OUT_OF_MEMORY)
            return ctrt_fail(status, "%s", message);
        const int64_t next = next_pieces(split, batch, pieces, failures++);
        if (next == 0)
            return ctrt_fail(status, "%lld rows in %lld pieces: %s", (long long)batch, (long long)pieces, message);
        split_warn(kept, batch, pieces, next);
        empty_caches(kept);
        pieces = next;
    }
    consider_growing(split, pieces, failures);
    const ctrt_split_result own = { .pieces = pieces, .failures = failures };
    return result != NULL ? struct_write(result, &own, sizeof own, "split_step", "result") : CTRT_OK;
}

ctrt_status ctrt_split_step(ctrt_split_result *result, ctrt_split *split, int64_t batch, ctrt_split_function function,
                            void *user)
{
    struct split_kept kept = { .grads = NULL };
    NULL_CHECK("split_step", split);
    NULL_CHECK("split_step", function);
    CTRT_TRY(module_at_least("split_step", "batch", batch, 1));
    CTRT_TRY(struct_check(result, "split_step", "result"));
    ctrt_status status = split_keep(&kept, split->module);
    if (status == CTRT_OK)
        status = split_run(split, &kept, batch, function, user, result);
    kept_free(&kept);
    return ctrt_context(status, "split_step");
}
