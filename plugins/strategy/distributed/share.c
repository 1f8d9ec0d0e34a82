/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/share.c: copies the state of the rank that has completed the most steps to all ranks.
 *
 * A rank that is behind receives into temporary tensors, and changes its own tensors only after the whole state has
 * arrived. So if a rank is lost during the transfer, every remaining rank still has a complete state, and a new
 * transfer can begin. */
#include "distributed.h"

/* The state of an optimizer: for each parameter the number of steps and the tensors. */
struct optimizer_image {
    size_t count;
    int64_t *steps;                         /* [count] */
    ctrt_tensor **states;                   /* [count * CTRT_OPTIMIZER_STATES]; owned, NULL: none */
};

/* Numbers that the ranks exchange to choose the source, and the header that the source sends. */
enum { STEPS, OPTIMIZER_STEPS, NUMBERS };
enum { LOSS, LOSS_DTYPE, HEAD_STEPS, OPTIMIZERS, COUNTS, HEADER = COUNTS + MOST_OPTIMIZERS };
/* Numbers of each parameter of an optimizer: its steps; then for each state dtype + 1 (0: no tensor) and elements. */
enum { SLOT_NUMBERS = 1 + 2 * CTRT_OPTIMIZER_STATES };

/* ---- images ---- */

void image_free(struct optimizer_image **image)
{
    if (*image == NULL)
        return;
    ctrt_tensors_release((*image)->states, (*image)->count * CTRT_OPTIMIZER_STATES);
    free((*image)->steps);
    free((*image)->states);
    free(*image);
    *image = NULL;
}

static ctrt_status image_new(struct optimizer_image **out, size_t count)
{
    struct optimizer_image *image;
    CTRT_TRY(ALLOCATE(image, 1));
    *out = image;
    image->count = count;
    CTRT_TRY(ALLOCATE(image->steps, count));
    return ALLOCATE(image->states, count * CTRT_OPTIMIZER_STATES);
}

ctrt_status image_apply(struct optimizer_image *image, ctrt_optimizer *optimizer)
{
    if (ctrt_optimizer_parameter_count(optimizer) != image->count)
        return ctrt_fail(CTRT_ERR_STATE, "the optimizer has %zu parameters, but that of the other ranks has %zu",
                         ctrt_optimizer_parameter_count(optimizer), image->count);
    for (size_t i = 0; i < image->count; i++)
        CTRT_TRY(ctrt_optimizer_set_state(optimizer, i, image->steps[i], &image->states[i * CTRT_OPTIMIZER_STATES]));
    return CTRT_OK;
}

/* Retains the states of this rank's optimizer in the image, and writes the numbers that describe them. */
static ctrt_status image_take(struct optimizer_image *image, int64_t *numbers, ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < image->count; i++) {
        ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
        int64_t *number = &numbers[i * SLOT_NUMBERS];
        CTRT_TRY(ctrt_optimizer_get_state(&image->steps[i], states, optimizer, i));
        number[0] = image->steps[i];
        for (int k = 0; k < CTRT_OPTIMIZER_STATES; k++) {
            image->states[i * CTRT_OPTIMIZER_STATES + (size_t)k] = ctrt_tensor_retain(states[k]);
            number[1 + 2 * k] = states[k] != NULL ? (int64_t)ctrt_tensor_dtype(states[k]) + 1 : 0;
            number[2 + 2 * k] = states[k] != NULL ? ctrt_tensor_numel(states[k]) : 0;
        }
    }
    return CTRT_OK;
}

/* Allocates the states that the numbers describe. */
static ctrt_status image_allocate(struct optimizer_image *image, const int64_t *numbers, ctrt_device *device)
{
    for (size_t i = 0; i < image->count; i++) {
        const int64_t *number = &numbers[i * SLOT_NUMBERS];
        image->steps[i] = number[0];
        for (int k = 0; k < CTRT_OPTIMIZER_STATES; k++)
            if (number[1 + 2 * k] > 0)
                CTRT_TRY(ctrt_empty(&image->states[i * CTRT_OPTIMIZER_STATES + (size_t)k],
                                    CTRT_SHAPE(number[2 + 2 * k]), (ctrt_dtype)(number[1 + 2 * k] - 1), device));
    }
    return CTRT_OK;
}

/* ---- a transfer ---- */

struct transfer {
    int source;                             /* the rank whose state is copied */
    bool behind;                            /* this rank has completed fewer steps than the source */
    bool any_behind, gradients;             /* some rank has completed fewer steps than the source; gradients are part
                                             * of the state, see plan */
    int64_t steps;                          /* of the source */
    int64_t header[HEADER];
    ctrt_tensor **tensors, **grads;         /* what a rank that is behind has received; owned */
    struct optimizer_image *images[MOST_OPTIMIZERS];
};

static void transfer_free(struct transfer *t, const struct distributed *d)
{
    ctrt_tensors_release(t->tensors, d->r.count);
    ctrt_tensors_release(t->grads, d->r.parameters);
    for (int i = 0; i < MOST_OPTIMIZERS; i++)
        image_free(&t->images[i]);
    free(t->tensors);
    free(t->grads);
}

/* Chooses the source. A rank with steps -1 has joined. If a rank is one step behind and the source has made no
 * optimizer step since, the gradients are part of the state. Otherwise the source's optimizer has already used them. */
static ctrt_status plan(struct transfer *t, struct distributed *d)
{
    int64_t own[NUMBERS] = { d->steps, d->survive.optimizer_steps };
    SCRATCH int64_t *all = NULL;
    CTRT_TRY(ALLOCATE(all, (size_t)d->r.size * NUMBERS));
    CTRT_TRY(gather_numbers(&d->r, all, own, NUMBERS));
    for (int rank = 1; rank < d->r.size; rank++)
        if (all[rank * NUMBERS + STEPS] > all[t->source * NUMBERS + STEPS])
            t->source = rank;
    t->steps = all[t->source * NUMBERS + STEPS];
    const int64_t optimizer_steps = all[t->source * NUMBERS + OPTIMIZER_STEPS];
    for (int rank = 0; rank < d->r.size; rank++) {
        const int64_t steps = all[rank * NUMBERS + STEPS];
        t->any_behind = t->any_behind || steps < t->steps;
        t->gradients = t->gradients
                       || (steps >= 0 && steps < t->steps && all[rank * NUMBERS + OPTIMIZER_STEPS] == optimizer_steps);
        if (t->steps < 0 || (steps >= 0 && steps < t->steps - 1))
            return ctrt_fail(CTRT_ERR_STATE, "rank %d has completed %lld steps and rank %d %lld; the ranks cannot go "
                             "on", rank, (long long)steps, t->source, (long long)t->steps);
    }
    t->behind = d->steps < t->steps;
    return CTRT_OK;
}

/* Broadcasts the parameters and buffers. */
static ctrt_status send_tensors(struct transfer *t, struct distributed *d)
{
    if (d->r.rank == t->source)
        return exchange(&d->r, EXCHANGE_BROADCAST, d->r.tensors, d->r.count, t->source);
    CTRT_TRY(ALLOCATE(t->tensors, d->r.count + 1));
    for (size_t i = 0; i < d->r.count; i++)
        CTRT_TRY(ctrt_empty(&t->tensors[i], strategy_shape(d->r.tensors[i]), ctrt_tensor_dtype(d->r.tensors[i]),
                            d->r.device));
    return exchange(&d->r, EXCHANGE_BROADCAST, t->tensors, d->r.count, t->source);
}

static ctrt_status send_header(struct transfer *t, struct distributed *d)
{
    const struct survive *s = &d->survive;
    memcpy(&t->header[LOSS], &s->loss, sizeof s->loss);
    t->header[LOSS_DTYPE] = (int64_t)s->loss_dtype;
    t->header[HEAD_STEPS] = s->optimizer_steps;
    for (int i = 0; i < MOST_OPTIMIZERS && s->optimizers[i] != NULL; i++) {
        t->header[OPTIMIZERS] = i + 1;
        t->header[COUNTS + i] = (int64_t)ctrt_optimizer_parameter_count(s->optimizers[i]);
    }
    CTRT_TRY(exchange_numbers(&d->r, EXCHANGE_BROADCAST, t->header, HEADER, t->source));
    bool valid = t->header[OPTIMIZERS] >= 0 && t->header[OPTIMIZERS] <= MOST_OPTIMIZERS;
    for (int i = 0; i < MOST_OPTIMIZERS; i++)
        valid = valid && t->header[COUNTS + i] >= 0 && t->header[COUNTS + i] < (int64_t)1 << 40;
    return valid ? CTRT_OK : ctrt_fail(CTRT_ERR_STATE, "rank %d has sent a wrong state", t->source);
}

static ctrt_status send_optimizer(struct transfer *t, struct distributed *d, int i)
{
    const size_t count = (size_t)t->header[COUNTS + i];
    SCRATCH int64_t *numbers = NULL;
    CTRT_TRY(ALLOCATE(numbers, count * SLOT_NUMBERS + 1));
    CTRT_TRY(image_new(&t->images[i], count));
    if (d->r.rank == t->source)
        CTRT_TRY(image_take(t->images[i], numbers, d->survive.optimizers[i]));
    CTRT_TRY(exchange_numbers(&d->r, EXCHANGE_BROADCAST, numbers, count * SLOT_NUMBERS + 1, t->source));
    if (d->r.rank != t->source)
        CTRT_TRY(image_allocate(t->images[i], numbers, d->r.device));
    return exchange(&d->r, EXCHANGE_BROADCAST, t->images[i]->states, count * CTRT_OPTIMIZER_STATES, t->source);
}

/* Broadcasts the gradients, after one number per parameter that is 1 if the parameter has a gradient, else 0. */
static ctrt_status send_gradients(struct transfer *t, struct distributed *d)
{
    SCRATCH int64_t *flags = NULL;
    CTRT_TRY(ALLOCATE(t->grads, d->r.parameters));
    CTRT_TRY(ALLOCATE(flags, d->r.parameters + 1));
    for (size_t i = 0; i < d->r.parameters; i++)
        flags[i] = ctrt_tensor_grad(d->r.tensors[i]) != NULL;
    CTRT_TRY(exchange_numbers(&d->r, EXCHANGE_BROADCAST, flags, d->r.parameters + 1, t->source));
    for (size_t i = 0; i < d->r.parameters; i++)
        if (flags[i] != 0 && d->r.rank == t->source)
            t->grads[i] = ctrt_tensor_retain(ctrt_tensor_grad(d->r.tensors[i]));
        else if (flags[i] != 0)
            CTRT_TRY(ctrt_empty(&t->grads[i], strategy_shape(d->r.tensors[i]), ctrt_tensor_dtype(d->r.tensors[i]),
                                d->r.device));
    return exchange(&d->r, EXCHANGE_BROADCAST, t->grads, d->r.parameters, t->source);
}

/* On ranks that are not behind, the parameters are equal to those of the source; only their buffers may differ. */
static ctrt_status tensors_copy(const struct transfer *t, struct distributed *d)
{
    for (size_t i = 0; i < d->r.count; i++)
        CTRT_TRY(ctrt_copy_(d->r.tensors[i], t->tensors[i]));
    return CTRT_OK;
}

/* Replaces the state of this rank by the received one. */
static ctrt_status adopt(struct transfer *t, struct distributed *d)
{
    struct survive *s = &d->survive;
    const bool joined = d->steps < 0;
    CTRT_TRY(tensors_copy(t, d));
    for (int i = 0; i < (int)t->header[OPTIMIZERS]; i++) {
        if (s->optimizers[i] != NULL)
            CTRT_TRY(image_apply(t->images[i], s->optimizers[i]));
        image_free(&s->pending[i]);
        if (s->optimizers[i] == NULL) {
            s->pending[i] = t->images[i];
            t->images[i] = NULL;
        }
    }
    const bool own_gradients = t->gradients && t->grads != NULL && s->optimizer_steps == t->header[HEAD_STEPS];
    CTRT_TRY(ctrt_gradients_take(d->r.grads, d->r.module));
    ctrt_tensors_release(d->r.grads, d->r.parameters);
    if (own_gradients && !joined)
        CTRT_TRY(ctrt_gradients_restore(d->r.module, t->grads));
    memcpy(&s->loss, &t->header[LOSS], sizeof s->loss);
    s->loss_dtype = (ctrt_dtype)t->header[LOSS_DTYPE];
    /* A rank that is one step behind still makes the optimizer steps after it, without gradients. */
    if (joined)
        s->optimizer_steps = t->header[HEAD_STEPS];
    s->skipped = !joined;
    d->steps = t->steps;
    return CTRT_OK;
}

static ctrt_status send_all(struct transfer *t, struct distributed *d)
{
    CTRT_TRY(plan(t, d));
    CTRT_TRY(send_tensors(t, d));
    if (!t->any_behind)
        return CTRT_OK;
    CTRT_TRY(send_header(t, d));
    for (int i = 0; i < (int)t->header[OPTIMIZERS]; i++)
        CTRT_TRY(send_optimizer(t, d, i));
    return t->gradients ? send_gradients(t, d) : CTRT_OK;
}

/* Engines that only enqueue collectives find failures later, so wait before any state changes. */
static ctrt_status run(struct transfer *t, struct distributed *d)
{
    CTRT_TRY(send_all(t, d));
    CTRT_TRY(ctrt_device_synchronize(d->r.device));
    CTRT_TRY(ctrt_comm_error(d->r.comm));
    if (d->r.rank == t->source)
        return CTRT_OK;
    return t->behind ? adopt(t, d) : tensors_copy(t, d);
}

ctrt_status share_state(struct distributed *d)
{
    struct transfer t = { .source = 0 };
    ctrt_status status;
    ctrt_no_grad status = run(&t, d);
    transfer_free(&t, d);
    return status;
}
