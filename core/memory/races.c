/* SPDX-License-Identifier: Apache-2.0 */
/* memory/races.c: the race detector. */
#include "memory/races.h"

#include "base/array.h"
#include "base/dtype.h"
#include "ctrt/stream.h"

#define RACES_LOGGED 50                     /* further races are only counted */
#define RACES_AT_ONCE 8                     /* other streams that one use is reported to race with */
#define ACCESSES_MAX 4096                   /* per storage; older ones are dropped */

static _Atomic uint64_t races;

uint64_t ctrt_race_count(void)
{
    return atomic_load(&races);
}

/* ---- bytes of a view ---- */

/* Byte offsets in the storage: blocks of `block` bytes at `lo` + i1 * stride[0] + i2 * stride[1] + ..., 0 <= i1 <
 * count[0], all within [lo, hi). */
struct footprint {
    int64_t lo, hi, block;
    int32_t dims;
    struct { int64_t stride, count; } dim[CTRT_MAX_DIMS];       /* sorted by stride; counts are above 1 */
};

static void footprint_add(struct footprint *at, int64_t stride, int64_t count)
{
    int32_t i = at->dims++;
    for (; i > 0 && at->dim[i - 1].stride > stride; i--)
        at->dim[i] = at->dim[i - 1];
    at->dim[i].stride = stride;
    at->dim[i].count = count;
}

/* Merges dimensions that together form one contiguous range or one sequence of equal steps. */
static void footprint_merge(struct footprint *at)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < at->dims; i++) {
        const int64_t stride = at->dim[i].stride, count = at->dim[i].count;
        if (kept == 0 && stride == at->block)
            at->block *= count;
        else if (kept > 0 && stride == at->dim[kept - 1].stride * at->dim[kept - 1].count)
            at->dim[kept - 1].count *= count;
        else
            at->dim[kept++] = at->dim[i];
    }
    at->dims = kept;
}

/* Returns false if the view has no elements. */
static bool footprint_of(struct footprint *at, const ctrt_view *view, const struct storage *storage)
{
    const int64_t item = (int64_t)dtype_bytes(view->dtype);
    if (view->numel == 0 && view->ndim == 0) {
        *at = (struct footprint){ .hi = INT64_MAX, .block = INT64_MAX };
        return true;
    }
    if (view->numel == 0)
        return false;
    const int64_t offset = (int64_t)((intptr_t)view->data - (intptr_t)storage->block.address);
    *at = (struct footprint){ .lo = offset, .hi = offset + item, .block = item };
    for (int d = 0; d < view->ndim; d++) {
        const int64_t stride = view->strides[d] * item, reach = (view->shape[d] - 1) * stride;
        if (reach == 0)
            continue;
        *(reach < 0 ? &at->lo : &at->hi) += reach;
        footprint_add(at, stride < 0 ? -stride : stride, view->shape[d]);
    }
    footprint_merge(at);
    return true;
}

/* Returns an upper bound of the bytes that the footprint covers from its first byte, modulo `period`. */
static int64_t extent_modulo(const struct footprint *at, int64_t period)
{
    int64_t extent = at->block;
    for (int32_t i = 0; i < at->dims; i++)
        if (at->dim[i].stride % period != 0)
            extent += (at->dim[i].count - 1) * at->dim[i].stride;
    return extent;
}

/* Returns whether the two footprints have no byte in common modulo `period`, and therefore none at all. */
static bool disjoint_modulo(const struct footprint *a, const struct footprint *b, int64_t period)
{
    const int64_t a_extent = extent_modulo(a, period), b_extent = extent_modulo(b, period);
    const int64_t distance = ((b->lo - a->lo) % period + period) % period;
    return distance >= a_extent && b_extent <= period - distance;
}

/* Returns true if the two footprints are known to have no byte in common. Detects this for columns, for tiles and for
 * every k-th element of one tensor; returns false if it is unknown. */
static bool disjoint(const struct footprint *a, const struct footprint *b)
{
    if (a->hi <= b->lo || b->hi <= a->lo)
        return true;
    for (int32_t i = 0; i < a->dims; i++)
        if (disjoint_modulo(a, b, a->dim[i].stride))
            return true;
    for (int32_t i = 0; i < b->dims; i++)
        if (disjoint_modulo(a, b, b->dim[i].stride))
            return true;
    return false;
}

static bool contains(const struct footprint *outer, const struct footprint *inner)
{
    if (outer->dims == 0)
        return outer->lo <= inner->lo && outer->hi >= inner->hi;
    return outer->lo == inner->lo && outer->block == inner->block && outer->dims == inner->dims
           && memcmp(outer->dim, inner->dim, (size_t)inner->dims * sizeof inner->dim[0]) == 0;
}

/* ---- the history of a storage ---- */

/* ACCESS_AVAILABLE: work of the memory's previous owner; the first write must be ordered after it. */
enum access_kind { ACCESS_AVAILABLE, ACCESS_READ, ACCESS_WRITE };

struct races_access {
    timepoint point;
    const struct capture *capture;          /* that recorded the work; only compared, never dereferenced */
    enum access_kind kind;
    struct footprint at;
};

struct accesses {
    size_t count, capacity;
    struct races_access *list;                    /* oldest first */
};

/* Guards all histories. Streams' locks are taken while it is held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Drops the access if memory runs out. */
static void append(struct accesses *own, const struct races_access *access)
{
    if (own->count == ACCESSES_MAX)
        memmove(own->list, own->list + 1, --own->count * sizeof *own->list);
    if (ARRAY_GROW(own->list, own->capacity, own->count))
        own->list[own->count++] = *access;
}

void races_begin(struct storage *storage, timepoint available_after)
{
    pthread_mutex_lock(&lock);
    struct accesses *own = atomic_load(&storage->uses.accesses);
    if (own == NULL) {
        own = host_calloc(sizeof *own);
        atomic_store(&storage->uses.accesses, own);
    }
    if (own != NULL && available_after != 0) {
        const struct races_access access = {
            .point = available_after, .kind = ACCESS_AVAILABLE, .at = { .hi = INT64_MAX, .block = INT64_MAX },
        };
        append(own, &access);
    }
    pthread_mutex_unlock(&lock);
}

void races_end(struct storage *storage)
{
    struct accesses *own = atomic_load_explicit(&storage->uses.accesses, memory_order_relaxed);
    if (likely(own == NULL))
        return;
    host_free(own->list);
    host_free(own);
    atomic_store_explicit(&storage->uses.accesses, NULL, memory_order_relaxed);
}

/* ---- reports ---- */

struct race {
    timepoint point;
    enum access_kind kind;
};

static void races_report(const struct race *race, const ctrt_view *view, bool writes, timepoint point)
{
    static const char *const verbs[] = { "may still use", "reads", "writes" };
    char shape[128], here[768], there[768];
    int used = snprintf(shape, sizeof shape, "[");
    if (atomic_fetch_add(&races, 1) >= RACES_LOGGED)
        return;
    for (int d = 0; d < view->ndim && used < (int)sizeof shape - 24; d++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", d > 0 ? ", " : "",
                         (long long)view->shape[d]);
    stream_work_text(here, sizeof here, point);
    stream_work_text(there, sizeof there, race->point);
    log_message(CTRT_LOG_WARNING, "stream",
                "race: %s %s a tensor of shape %s] that %s %s (its work number %llu), and nothing orders the two; "
                "order them with ctrt_stream_wait or an event",
                here, writes ? "writes" : "reads", shape, there, verbs[race->kind],
                (unsigned long long)timepoint_sequence(race->point));
}

static bool covers(ctrt_stream *stream, timepoint point)
{
    pthread_mutex_lock(&stream->lock);
    const bool known = stream_covers(stream, point);
    pthread_mutex_unlock(&stream->lock);
    return known;
}

/* Returns whether no later work can race with the access. */
static bool over(const struct races_access *access)
{
    if (timepoint_done(access->point))
        return true;
    /* After the end of a capture its work runs in replays, whose accesses are recorded separately. */
    return access->capture != NULL
           && atomic_load(&stream_at(timepoint_slot(access->point))->capture) != access->capture;
}

/* Returns whether all later work that races with `before` also races with `now`, given that `now` is ordered after
 * `before`. */
static bool replaced(const struct races_access *before, const struct races_access *now)
{
    if (before->capture != now->capture || !contains(&now->at, &before->at))
        return false;
    return now->kind == ACCESS_WRITE
           || (before->kind == ACCESS_READ && timepoint_slot(before->point) == timepoint_slot(now->point));
}

/* Returns whether `now`, which was just enqueued on `stream`, is ordered after `before`. */
static bool follows(ctrt_stream *stream, const struct races_access *before, const struct races_access *now)
{
    if (timepoint_slot(before->point) == timepoint_slot(now->point))
        return before->point <= now->point;
    return thread_state.order_auto || covers(stream, before->point);
}

/* Returns whether `now` is ordered before `noted`. Threads record their work in any order, so later work may be in the
 * history already. */
static bool precedes(const struct races_access *now, const struct races_access *noted)
{
    return covers(stream_at(timepoint_slot(noted->point)), now->point);
}

static bool conflict(const struct races_access *a, const struct races_access *b)
{
    return (a->kind == ACCESS_WRITE || b->kind == ACCESS_WRITE) && a->capture == b->capture
           && !disjoint(&a->at, &b->at);
}

/* Adds a race. For each other stream only the latest access is kept. */
static void add_race(struct race *found, int *count, const struct races_access *before)
{
    int i = 0;
    while (i < *count && timepoint_slot(found[i].point) != timepoint_slot(before->point))
        i++;
    if (i == RACES_AT_ONCE)
        return;
    found[i] = (struct race){ before->point, before->kind };
    *count = MAX(*count, i + 1);
}

void races_note(ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point)
{
    struct storage *storage = view->owner;
    struct race found[RACES_AT_ONCE];
    struct races_access now = { .point = point, .kind = writes ? ACCESS_WRITE : ACCESS_READ };
    int count = 0;
    if (!footprint_of(&now.at, view, storage))
        return;
    now.capture = atomic_load(&stream->capture);
    pthread_mutex_lock(&lock);
    struct accesses *own = atomic_load(&storage->uses.accesses);
    size_t kept = 0;
    for (size_t i = 0; own != NULL && i < own->count; i++) {
        struct races_access *before = &own->list[i];
        if (over(before))
            continue;
        const bool after = follows(stream, before, &now);
        if (!after && conflict(before, &now) && !precedes(&now, before))
            add_race(found, &count, before);
        if (!after || !replaced(before, &now))
            own->list[kept++] = *before;
    }
    if (own != NULL) {
        own->count = kept;
        append(own, &now);
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        races_report(&found[i], view, writes, point);
}
