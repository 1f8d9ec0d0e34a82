/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/wait.c: waiting for other ranks. */
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host.h"
#include "plugins/common/clock.h"

/* A sleeping thread wakes after SLICE_NS to call poll. Above SLICE_RANKS ranks it sleeps longer, because otherwise the
 * threads of a large group would occupy the processors with polls. */
#define SLICE_NS    10000000
#define SLICE_RANKS 64
#define MOST_SLICES 50
#define FEW_RANKS   4
#define LOOKS       64                      /* reads of a word between two reads of the clock: about 3 us */

void host_word_set(struct host_word *word, uint32_t value)
{
    atomic_store(&word->value, value);
    if (atomic_load(&word->sleepers) != 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void word_sleep(struct host_word *word, uint32_t old, int world)
{
    const int slices = world <= SLICE_RANKS ? 1 : world / SLICE_RANKS < MOST_SLICES ? world / SLICE_RANKS : MOST_SLICES;
    const struct timespec slice = { .tv_nsec = (long)slices * SLICE_NS };
    atomic_fetch_add(&word->sleepers, 1);
    if (atomic_load(&word->value) == old)
        syscall(SYS_futex, &word->value, FUTEX_WAIT, old, &slice, NULL, 0);
    atomic_fetch_sub(&word->sleepers, 1);
}

/* While the group is created, the library does not yet report that a rank could not join, so the ranks check this. */
ctrt_status host_poll_joining(struct host_comm *comm)
{
    char key[320];
    void *value = NULL;
    size_t bytes = 0;
    if (!comm->joining || clock_now(CLOCK_MONOTONIC) < comm->next_look)
        return CTRT_OK;
    comm->next_look = clock_now(CLOCK_MONOTONIC) + 250000000;
    snprintf(key, sizeof key, "%s/host-failed", comm->config->name);
    if (ctrt_store_get(comm->config->store, key, &value, &bytes, 0.001) != CTRT_OK)
        return CTRT_OK;
    ctrt_status status = ctrt_fail(CTRT_ERR_COMM, "%s", (const char *)value);
    free(value);
    return status;
}

ctrt_status host_wait(struct host_comm *comm, void *state, struct host_word *word, uint32_t old)
{
    const int64_t end = comm->spin > 0 ? clock_now(CLOCK_MONOTONIC) + comm->spin : 0;
    for (int i = 1; comm->spin > 0 && (i % LOOKS != 0 || clock_now(CLOCK_MONOTONIC) < end); i++) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
            return CTRT_OK;
        host_relax();
    }
    for (;;) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
            return CTRT_OK;
        word_sleep(word, old, comm->world);
        if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
            return CTRT_OK;
        ctrt_status status = comm->config->poll(state);
        if (status == CTRT_OK)
            status = host_poll_joining(comm);
        if (status != CTRT_OK && atomic_load_explicit(&word->value, memory_order_acquire) == old)
            return host_dead(comm, status);
    }
}

/* Each rank writes a word of its own and reads those of the others: with few ranks this takes less time than a common
 * counter, which passes from processor to processor. */
static ctrt_status barrier_of_few(struct host_comm *comm, void *state)
{
    struct host_rank *const ranks = comm->header->ranks;
    const uint32_t before = atomic_load_explicit(&ranks[comm->rank].arrivals.value, memory_order_relaxed);
    host_word_set(&ranks[comm->rank].arrivals, before + 1);
    for (int rank = 0; rank < comm->world; rank++)      /* a rank that has left this barrier may be at the next one */
        if (atomic_load_explicit(&ranks[rank].arrivals.value, memory_order_acquire) == before)
            CTRT_TRY(host_wait(comm, state, &ranks[rank].arrivals, before));
    return CTRT_OK;
}

static ctrt_status host_wait_barrier(struct host_comm *comm, void *state)
{
    if (comm->world <= FEW_RANKS && comm->spin > 0)
        return barrier_of_few(comm, state);
    struct host_header *header = comm->header;
    const uint32_t generation = atomic_load_explicit(&header->generation.value, memory_order_relaxed);
    if (atomic_fetch_add(&header->arrived, 1) + 1 == (uint32_t)comm->world) {
        atomic_store_explicit(&header->arrived, 0, memory_order_relaxed);
        host_word_set(&header->generation, generation + 1);
    } else {
        CTRT_TRY(host_wait(comm, state, &header->generation, generation));
    }
    return CTRT_OK;
}

/* A rank marks the group as dead up to half a second before it raises the alarm. */
#define ALARM_NS 1000000000

/* Waits until the library knows of the failure of the other rank, because an alarm of this rank would not have its
 * cause. */
ctrt_status host_check_alive(struct host_comm *comm, void *state)
{
    if (!atomic_load(&comm->header->dead))
        return CTRT_OK;
    ctrt_status status = CTRT_OK;
    const int64_t end = clock_now(CLOCK_MONOTONIC) + ALARM_NS;
    for (; status == CTRT_OK && clock_now(CLOCK_MONOTONIC) < end; usleep(1000))
        status = comm->config->poll(state);
    return host_dead(comm, status != CTRT_OK ? status : ctrt_fail(CTRT_ERR_COMM, "another rank has failed"));
}

ctrt_status host_barrier(struct host_comm *comm, void *state)
{
    CTRT_TRY(host_wait_barrier(comm, state));
    /* A rank that joins late may find that the others have failed already: its first call reports that. */
    return comm->joining ? CTRT_OK : host_check_alive(comm, state);
}

const struct host_entry *host_entry(const struct host_comm *comm, int rank)
{
    return &comm->header->ranks[rank].entries[comm->collectives & 1];
}

ctrt_status host_mismatch(const ctrt_comm_config *config, void *state, const void *const *entries)
{
    ctrt_comm_signature *signatures = malloc((size_t)config->world * sizeof *signatures);
    if (signatures == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the ranks called different collectives");
    for (int rank = 0; rank < config->world; rank++)
        memcpy(&signatures[rank], entries[rank], sizeof *signatures);
    ctrt_status status = config->mismatch(state, signatures);
    free(signatures);
    return status;
}

static ctrt_status report_mismatch(struct host_comm *comm, void *state)
{
    const void *entries[comm->world];
    for (int rank = 0; rank < comm->world; rank++)
        entries[rank] = host_entry(comm, rank);
    return host_dead(comm, host_mismatch(comm->config, state, entries));
}

void host_enter(struct host_comm *comm, const struct host_entry *entry)
{
    comm->collectives++;
    comm->header->ranks[comm->rank].entries[comm->collectives & 1] = *entry;
}

ctrt_status host_arrive(struct host_comm *comm, const ctrt_comm_call *call)
{
    CTRT_TRY(host_wait_barrier(comm, call->state));
    const ctrt_comm_signature *const first = &host_entry(comm, 0)->signature;
    for (int rank = 1; rank < comm->world; rank++)
        if (memcmp(&host_entry(comm, rank)->signature, first, sizeof *first) != 0)
            return report_mismatch(comm, call->state);
    /* All ranks have called this collective. If its data is in the arena, it completes, also if another rank has failed
     * since. Last, because a rank that has seen a mismatch marks the group as dead. */
    return host_small(comm, call) && comm->mode != HOST_DEVICES ? CTRT_OK : host_check_alive(comm, call->state);
}

ctrt_status host_use_begin(struct host_comm *comm, void *state)
{
    atomic_fetch_add(&comm->arena->users, 1);
    if (!atomic_load(&comm->header->dead))
        return CTRT_OK;
    host_use_end(comm);
    return host_check_alive(comm, state);
}

void host_use_end(struct host_comm *comm)
{
    atomic_fetch_sub(&comm->arena->users, 1);
}

ctrt_status host_dead(struct host_comm *comm, ctrt_status status)
{
    atomic_store(&comm->header->dead, true);
    while (atomic_load(&comm->arena->users) > 0)
        usleep(50);
    if (comm->pulls && !host_await_writers(comm))
        atomic_store(&comm->written, true);
    return status;
}
