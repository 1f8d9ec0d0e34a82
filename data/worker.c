/* SPDX-License-Identifier: Apache-2.0 */
/* data/worker.c: reads samples. Runs in worker processes, in threads and in the loader's own thread. */
#include "data/worker.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/base.h"
#include "base/host_alloc.h"

/* How often an idle worker checks whether its parent lives. */
#define IDLE_NS 500000000

ctrt_status worker_begin(struct worker *worker, struct ring_header *header, ctrt_dataset *dataset, int id)
{
    *worker = (struct worker){ .header = header, .dataset = dataset, .id = id };
    const int fields = dataset->functions.field_count;
    const size_t bytes = (size_t)header->largest_batch * (size_t)fields * sizeof *worker->shapes;
    worker->shapes = host_alloc(bytes);
    ALLOC_CHECK(worker->shapes, bytes, "the shapes of a batch's samples");
    for (int64_t i = 0; i < header->largest_batch; i++)
        memcpy(worker->shapes[i * fields], dataset->shapes, (size_t)fields * sizeof *worker->shapes);
    return CTRT_OK;
}

void worker_end(struct worker *worker)
{
    host_free(worker->shapes);
    worker->shapes = NULL;
}

/* Whether the batch is not needed any more. */
static bool cancelled(const struct worker *worker, const struct ring_slot *slot)
{
    struct ring_header *header = worker->header;
    return atomic_load_explicit(&header->cancelled, memory_order_relaxed) > slot->ticket
           || atomic_load_explicit(&header->stop, memory_order_relaxed);
}

/* Sets the members of sample `i` of the batch that depend on it. */
static void place_sample(ctrt_sample *sample, void **out, const struct worker *worker, const ctrt_sample *like,
                         char *const *data, int64_t i, int64_t index)
{
    const ctrt_dataset *dataset = worker->dataset;
    const int fields = dataset->functions.field_count;
    for (int f = 0; f < fields; f++)
        out[f] = data[f] + (size_t)i * dataset->bytes[f];
    *sample = *like;
    sample->index = index;
    sample->shape = worker->shapes + i * fields;
    if (dataset->varying)
        memcpy(sample->shape, dataset->shapes, (size_t)fields * sizeof *sample->shape);
    ctrt_sample_random_start(&sample->random, worker->header->seed, like->epoch, index);
    atomic_store_explicit(&ring_worker(worker->header, worker->id)->sample, index, memory_order_relaxed);
}

/* Reads the stream's next sample. One that fails counts too. */
static ctrt_status read_next(struct worker *worker, ctrt_sample *sample)
{
    ctrt_status status = ctrt_dataset_read_next(&worker->stream_ended, sample, worker->dataset);
    worker->stream_position += !worker->stream_ended;
    return status;
}

/* Moves the stream to the first sample of the batch. */
static ctrt_status worker_seek(struct worker *worker, struct ring_slot *slot, const ctrt_sample *like, void **out,
                               char *const *data)
{
    ctrt_dataset *dataset = worker->dataset;
    if (!worker->stream_started || worker->stream_epoch != slot->epoch || worker->stream_position > slot->first) {
        if (worker->stream_started && dataset->functions.start == NULL)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the stream \"%s\" has no start function, so it has one epoch",
                             dataset->functions.name);
        worker->stream_started = false;
        CTRT_TRY(ctrt_dataset_start(dataset, slot->epoch));
        worker->stream_started = true;
        worker->stream_ended = false;
        worker->stream_epoch = slot->epoch;
        worker->stream_position = 0;
    }
    const int64_t count = slot->first - worker->stream_position;
    if (count > 0 && dataset->functions.skip != NULL && !worker->stream_ended) {
        CTRT_TRY(dataset->functions.skip(count, dataset->state));
        worker->stream_position = slot->first;
    }
    while (worker->stream_position < slot->first && !worker->stream_ended && !cancelled(worker, slot)) {
        ctrt_sample sample;
        place_sample(&sample, out, worker, like, data, 0, worker->stream_position);
        CTRT_TRY(read_next(worker, &sample));
    }
    return CTRT_OK;
}

/* Reads the samples of the batch. *failed: the sample at which it failed. */
static ctrt_status read_samples(struct worker *worker, struct ring_slot *slot, char *const *data, int64_t *failed)
{
    ctrt_dataset *dataset = worker->dataset;
    const bool stream = dataset_is_stream(dataset);
    void *out[CTRT_MAX_FIELDS];
    const ctrt_sample like = { .size = sizeof like, .out = out, .epoch = slot->epoch, .worker = worker->id,
                               .workers = worker->header->workers };
    ctrt_sample sample;
    if (stream)
        CTRT_TRY(worker_seek(worker, slot, &like, out, data));
    for (int64_t i = 0; i < slot->count; i++) {
        slot->cancelled = cancelled(worker, slot);
        if (slot->cancelled)
            return CTRT_OK;
        if (stream)
            slot->indices[i] = slot->first + i;
        *failed = slot->indices[i];
        place_sample(&sample, out, worker, &like, data, i, slot->indices[i]);
        if (stream) {
            if (!worker->stream_ended)
                CTRT_TRY(read_next(worker, &sample));
            if (worker->stream_ended) {
                slot->ended = true;
                slot->count = i;
                break;
            }
        } else {
            CTRT_TRY(ctrt_dataset_read(&sample, dataset));
        }
        if (dataset->varying)
            CTRT_TRY(dataset_check_shapes(dataset, sample.shape));
    }
    *failed = -1;
    return CTRT_OK;
}

static ctrt_status check_collated(const struct ring_header *header, const ctrt_collation *batch)
{
    for (int f = 0; f < batch->field_count; f++) {
        const ctrt_field *field = &batch->fields[f];
        int64_t bytes = (int64_t)ctrt_dtype_size(field->dtype);
        bool right = batch->ndim[f] >= 0 && batch->ndim[f] <= CTRT_MAX_DIMS;
        for (int d = 0; right && d < batch->ndim[f]; d++)
            right = batch->shape[f][d] >= 0 && !__builtin_mul_overflow(bytes, batch->shape[f][d], &bytes);
        if (!right || (uint64_t)bytes > header->capacity[f])
            return ctrt_fail(CTRT_ERR_SHAPE, "collate: the shape that it set for field \"%s\" (%d dimensions) is wrong "
                             "or exceeds the field's %zu bytes in a batch", field->name, batch->ndim[f],
                             header->capacity[f]);
    }
    return CTRT_OK;
}

static ctrt_status collate(struct worker *worker, struct ring_slot *slot, char *const *data)
{
    const struct ring_header *header = worker->header;
    const ctrt_dataset *dataset = worker->dataset;
    ctrt_collation batch = {
        .size = sizeof batch, .field_count = dataset->functions.field_count, .fields = dataset->functions.fields,
        .count = slot->count, .indices = slot->indices, .data = (void *const *)data, .capacity = header->capacity,
        .shapes = (const int64_t (*)[CTRT_MAX_DIMS])worker->shapes, .pad_value = header->pad_value
    };
    for (int f = 0; f < batch.field_count; f++) {
        batch.ndim[f] = batch.fields[f].ndim + 1;
        batch.shape[f][0] = slot->count;
        memcpy(&batch.shape[f][1], batch.fields[f].shape, (size_t)batch.fields[f].ndim * sizeof(int64_t));
    }
    CTRT_TRY(header->collate != NULL ? header->collate(&batch, header->collate_user) : ctrt_collate_pad(&batch, NULL));
    CTRT_TRY(check_collated(header, &batch));
    memcpy(slot->ndim, batch.ndim, sizeof slot->ndim);
    memcpy(slot->shape, batch.shape, sizeof slot->shape);
    return CTRT_OK;
}

void worker_fill(struct worker *worker, struct ring_slot *slot)
{
    struct ring_header *header = worker->header;
    const int number = (int)(((char *)slot - (char *)ring_slot(header, 0)) / (ptrdiff_t)header->slot_stride);
    char *data[CTRT_MAX_FIELDS];
    int64_t failed = -1;
    for (int f = 0; f < worker->dataset->functions.field_count; f++)
        data[f] = ring_data(header, number, f);
    slot->ended = slot->cancelled = false;
    slot->status = worker->init_status;
    struct error_text *before = error_set_aside();      /* a status without a message must not get an older one */
    if (slot->status == CTRT_OK) {
        slot->status = read_samples(worker, slot, data, &failed);
        if (slot->status == CTRT_OK && slot->count > 0 && !slot->cancelled)
            slot->status = collate(worker, slot, data);
        if (slot->status != CTRT_OK)
            snprintf(slot->message, sizeof slot->message, "%s", ctrt_error_message()[0] != '\0'
                                                                    ? ctrt_error_message()
                                                                    : ctrt_status_string(slot->status));
    } else {
        memcpy(slot->message, worker->init_message, sizeof slot->message);
    }
    error_put_back(before);
    slot->failed = failed;
    atomic_store_explicit(&ring_worker(header, worker->id)->sample, -1, memory_order_relaxed);
    atomic_store_explicit(&slot->state, SLOT_DONE, memory_order_release);
}

/* Waits for a task; false if there will be none. */
static bool wait_for_task(struct worker *worker, struct ring_worker *me, uint32_t taken)
{
    struct ring_header *header = worker->header;
    while (atomic_load(&me->posted) == taken && !atomic_load(&header->stop)) {
        if (worker->process && getppid() != worker->parent)
            return false;
        atomic_store(&me->sleeping, 1);
        if (atomic_load(&me->posted) == taken && !atomic_load(&header->stop))
            ring_wait(&me->posted, taken, IDLE_NS);
        atomic_store(&me->sleeping, 0);
    }
    return !atomic_load(&header->stop) && (!worker->process || getppid() == worker->parent);
}

static void worker_run_init(struct worker *worker)
{
    const struct ring_header *header = worker->header;
    if (header->worker_init == NULL)
        return;
    worker->init_status = ctrt_context(header->worker_init(worker->id, header->worker_init_user), "worker_init");
    if (worker->init_status != CTRT_OK)
        snprintf(worker->init_message, sizeof worker->init_message, "%s", ctrt_error_message());
}

void worker_run(struct worker *worker)
{
    struct ring_header *header = worker->header;
    struct ring_worker *me = ring_worker(header, worker->id);
    worker_run_init(worker);
    for (;;) {
        const uint32_t taken = atomic_load(&me->taken);
        if (!wait_for_task(worker, me, taken))
            return;
        const struct ring_task task = *ring_task(header, worker->id, taken);
        struct ring_slot *slot = ring_slot(header, (int)task.slot);
        /* After the death of a worker its successor may find a task that is done already. */
        if (slot->ticket == task.ticket && atomic_load(&slot->state) == SLOT_POSTED) {
            worker_fill(worker, slot);
        }
        atomic_store(&me->taken, taken + 1);
        atomic_fetch_add(&header->completed, 1);
        if (atomic_load(&header->waiting))
            ring_wake(&header->completed);
    }
}

/* Signals that a worker process handles as a new program does, and not with the handlers of the program. */
static void reset_signals(void)
{
    static const int signals[] = { SIGTERM, SIGCHLD, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGQUIT };
    sigset_t none;
    for (size_t i = 0; i < COUNT_OF(signals); i++)
        signal(signals[i], SIG_DFL);
    signal(SIGINT, SIG_IGN);            /* Ctrl-C reaches the whole process group; the program ends its workers */
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

_Noreturn void worker_process(struct ring_header *header, ctrt_dataset *dataset, int id, int error, int parent,
                              bool main_thread)
{
    char name[16];
    snprintf(name, sizeof name, "ctrt-worker-%d", id);
    prctl(PR_SET_NAME, name);
    /* The signal is sent when the thread that forked ends, so only a main thread may request it. */
    if (main_thread)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
    if (error >= 0 && error != STDERR_FILENO) {
        dup2(error, STDERR_FILENO);
        close(error);
    }
    __fpurge(stdout);                   /* what the program has not written yet, it writes itself */
    struct worker worker;
    ctrt_status status = getppid() == parent ? worker_begin(&worker, header, dataset, id) : CTRT_ERR_STATE;
    if (status == CTRT_OK) {
        worker.process = true;
        worker.parent = parent;
        worker_run(&worker);
        fflush(stdout);
    } else {
        fprintf(stderr, "ctrt: worker %d cannot begin: %s\n", id, ctrt_error_message());
    }
    _exit(status == CTRT_OK ? 0 : 1);
}
