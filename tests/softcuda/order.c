/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/order.c: detects missing happens-before relations between streams, with vector clocks (Lamport 1978;
 * Mattern 1989; as race detectors for threads do).
 *
 * Each stream counts its operations. Its clock stores, for each other stream, the number of the last operation after
 * which it is ordered, either through events or through host waits that preceded the enqueueing. All host threads share
 * one clock, so the detector may consider unordered operations as ordered, but never the reverse. For each unit of 512
 * bytes of memory, the last operation that wrote it and the last two that read it are recorded. If an operation
 * accesses memory that an unordered operation wrote, or writes memory that an unordered operation read, this is
 * reported as an error, even if the result was correct in this run. Atomic operations of kernels are not checked. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 128, NAMES = 256, PIECE = 512 };

struct piece { uint64_t written, read, read_before; };              /* stamps: slot + 1, then the count; 0: none */

struct clock { uint32_t at[SLOTS]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clock host;
static bool used[SLOTS];
static uint32_t reached[SLOTS];                                     /* last count of streams that were destroyed */
static uint64_t ids[SLOTS];
static _Atomic(const char *) names[SLOTS][NAMES];
static struct piece *pieces;
static size_t n_pieces;
static __thread const struct clock *mine __attribute__((tls_model("initial-exec")));

bool order_open(void)
{
    RETURN_IF(options.streams == STREAMS_OFF, true);
    n_pieces = softcuda_space.bytes / PIECE;
    void *range = mmap(NULL, n_pieces * sizeof *pieces, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RETURN_IF(range == MAP_FAILED, false);
    madvise(range, n_pieces * sizeof *pieces, MADV_DONTDUMP);
    pieces = range;
    softcuda_space.order = range;
    return true;
}

static void join(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < SLOTS; i++)
        if (from->at[i] > to->at[i])
            to->at[i] = from->at[i];
}

static struct clock *copy_of(const struct clock *from)
{
    struct clock *copy = allocated(malloc(sizeof *copy));
    *copy = *from;
    return copy;
}

/* ---- streams ---- */

void order_stream(struct stream *stream)
{
    stream->slot = -1;
    if (pieces == NULL)
        return;
    stream->clock = allocated(calloc(2, sizeof *stream->clock));
    LOCKED(&lock);
    for (int i = 0; i < SLOTS && stream->slot < 0; i++)
        if (!used[i]) {
            used[i] = true;
            ids[i] = stream->id;
            stream->slot = i;
            stream->clock->at[i] = reached[i];
        }
}

void order_stream_over(struct stream *stream)
{
    if (stream->slot >= 0) {
        LOCKED(&lock);
        used[stream->slot] = false;
        reached[stream->slot] = stream->clock->at[stream->slot];
    }
    free(stream->clock);
}

void order_put(struct op *op)
{
    if (pieces == NULL)
        return;
    LOCKED(&lock);
    op->before = copy_of(&host);
}

void order_begin(struct stream *stream, struct op *op)
{
    mine = NULL;
    softcuda_here.stamp = 0;
    if (stream->slot < 0)
        return;
    if (op->before != NULL)
        join(stream->clock, op->before);
    const uint32_t count = ++stream->clock->at[stream->slot];
    softcuda_here.stamp = (uint64_t)(stream->slot + 1) << 32 | count;
    mine = stream->clock;
    order_name(op->node == NODE_MEMCPY   ? "a copy"
               : op->node == NODE_MEMSET ? "a fill"
               : op->node == NODE_KERNEL ? "a library"
                                         : "something");
}

void order_end(struct stream *stream)
{
    if (stream->slot >= 0)
        stream->clock[1] = stream->clock[0];
}

void order_name(const char *name)
{
    const uint64_t stamp = softcuda_here.stamp;
    if (stamp != 0)
        names[(stamp >> 32) - 1][(uint32_t)stamp % NAMES] = name;
}

/* ---- events and host waits ---- */

void order_reach(struct timepoint *t, const struct stream *stream)
{
    if (stream->slot >= 0)
        t->clock = copy_of(stream->clock);
}

void order_stream_waited(struct stream *stream, const struct timepoint *t)
{
    if (stream->slot >= 0 && t->clock != NULL)
        join(stream->clock, t->clock);
}

static void host_joins(const struct clock *clock)
{
    LOCKED(&lock);
    join(&host, clock);
}

void order_host_waited(const struct timepoint *t)
{
    if (t->clock != NULL)
        host_joins(t->clock);
}

void order_host_idle(const struct stream *stream)
{
    if (stream->slot >= 0)
        host_joins(&stream->clock[1]);
}

void order_host_called(const struct stream *stream)
{
    if (stream->slot >= 0)
        host_joins(stream->clock);
}

/* ---- memory ---- */

static bool is_ordered(uint64_t stamp)
{
    return stamp == 0 || mine->at[(stamp >> 32) - 1] >= (uint32_t)stamp;
}

static void report(const struct piece *piece, uint64_t other, bool write, bool other_wrote)
{
    char text[700], where[300];
    const address at = (uintptr_t)softcuda_space.base + (address)(piece - pieces) * PIECE;
    const uint64_t stamp = softcuda_here.stamp;
    const char *name = names[(stamp >> 32) - 1][(uint32_t)stamp % NAMES],
                *other_name = names[(other >> 32) - 1][(uint32_t)other % NAMES];
    memory_describe(at, where, sizeof where);
    snprintf(text, sizeof text,
             "%s on stream %llu %s at %#llx (%s) what %s on stream %llu %s, and nothing orders the two", name,
             (unsigned long long)ids[(stamp >> 32) - 1], write ? "writes" : "reads", at, where, other_name,
             (unsigned long long)ids[(other >> 32) - 1], other_wrote ? "wrote" : "read");
    fault_report(text);
    softcuda_here.disorder++;
}

static void touch_piece(struct piece *piece, bool write)
{
    const uint64_t stamp = softcuda_here.stamp, written = __atomic_load_n(&piece->written, __ATOMIC_RELAXED),
                   read = __atomic_load_n(&piece->read, __ATOMIC_RELAXED),
                   before = __atomic_load_n(&piece->read_before, __ATOMIC_RELAXED);
    if (softcuda_here.disorder == 0) {                              /* report at most one per operation */
        if (!is_ordered(written))
            report(piece, written, write, true);
        else if (write && !is_ordered(read))
            report(piece, read, true, false);
        else if (write && !is_ordered(before))
            report(piece, before, true, false);
    }
    if (write) {
        __atomic_store_n(&piece->written, stamp, __ATOMIC_RELAXED);
        __atomic_store_n(&piece->read, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&piece->read_before, 0, __ATOMIC_RELAXED);
    } else if (read != stamp) {
        if (!is_ordered(read))
            __atomic_store_n(&piece->read_before, read, __ATOMIC_RELAXED);
        __atomic_store_n(&piece->read, stamp, __ATOMIC_RELAXED);
    }
}

void order_touch(address begin, size_t bytes, bool write)
{
    if (pieces == NULL || mine == NULL || softcuda_here.stamp == 0 || bytes == 0 || !space_is(begin))
        return;
    const size_t place = (size_t)(begin - (uintptr_t)softcuda_space.base);
    for (size_t i = place / PIECE; i <= (place + bytes - 1) / PIECE && i < n_pieces; i++)
        touch_piece(&pieces[i], write);
}

/* Called by watch.c at a kernel's first access to each unit. */
EXPORT void softcuda_order(const void *at, int write)
{
    order_touch((uintptr_t)at, 1, write != 0);
}

void order_forget(address begin, size_t bytes)
{
    if (pieces != NULL && bytes > 0) {
        const size_t place = (size_t)(begin - (uintptr_t)softcuda_space.base);
        memset(&pieces[place / PIECE], 0, ((place + bytes - 1) / PIECE - place / PIECE + 1) * sizeof *pieces);
    }
}
