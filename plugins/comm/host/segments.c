/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/segments.c: memory of tensors that all ranks of a group map, so that collectives need no copies.
 *
 * Rank 0 creates a file without a name for the memory of all ranks, the others open it, as for the arena. The ranks
 * agree whether all of them have mapped it. Afterwards each rank frees its part at any time. It unmaps the segment only
 * when all ranks have freed theirs, so the addresses of tensors in a collective can be resolved on all ranks. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host.h"

static char *part_of(const struct host_segment *segment, int rank)
{
    return (char *)segment->header + segment->first + (size_t)rank * segment->bytes;
}

/* ---- mapping ---- */

/* Fails if the machine has not enough memory for the parts of all ranks: the kernel would grant it, and end a process
 * when they are written. */
static ctrt_status memory_check(const struct host_segment *segment, const struct host_comm *comm)
{
    uint64_t left, total;
    if (ctrt_device_memory_info(comm->config->device, &left, &total) != CTRT_OK || segment->mapped <= left)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "%zu bytes for each of %d ranks, but %llu bytes are free", segment->bytes,
                     comm->world, (unsigned long long)left);
}

static ctrt_status segment_map(struct host_segment *segment, struct host_comm *comm, int *fd)
{
    struct host_header *header = comm->header;
    void *memory = NULL;
    if (segment == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a shared segment");
    if (comm->rank == 0) {
        CTRT_TRY(memory_check(segment, comm));
        CTRT_TRY(host_map_new(&memory, fd, segment->mapped));
        header->segment_pid = getpid();
        header->segment_fd = *fd;
    } else {
        CTRT_TRY(host_map(&memory, segment->mapped, header->segment_pid, header->segment_fd));
    }
    segment->header = memory;
    return CTRT_OK;
}

/* Maps the segment on all ranks or, if that fails on one, on none. `segment` NULL: fails on this rank. */
static ctrt_status segment_share(struct host_segment *segment, struct host_comm *comm)
{
    /* Rank 0 resets the word of the next segment while others may still read that of this one. */
    atomic_int *failed = &comm->header->segment_failed[comm->segment_count & 1];
    ctrt_status status = CTRT_OK;
    int fd = -1;
    if (comm->rank == 0) {
        status = segment_map(segment, comm, &fd);
        atomic_store(failed, status == CTRT_OK ? 0 : 1);
    }
    ctrt_status barrier = host_barrier(comm, comm->config->state);
    if (barrier == CTRT_OK && comm->rank > 0 && atomic_load(failed) != 1) {
        status = segment_map(segment, comm, NULL);
        if (status != CTRT_OK)
            atomic_store(failed, comm->rank + 1);
    }
    if (barrier == CTRT_OK)
        barrier = host_barrier(comm, comm->config->state);
    if (fd >= 0)
        close(fd);
    const int rank = barrier == CTRT_OK ? atomic_load(failed) - 1 : -1;
    if (barrier == CTRT_OK && rank < 0)
        return CTRT_OK;
    if (segment != NULL && segment->header != NULL)
        munmap(segment->header, segment->mapped);
    if (barrier != CTRT_OK)
        return barrier;
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "%s",
                     status != CTRT_OK ? ctrt_error_message() : "another rank could not map shared memory");
}

/* With pages of 4 KiB an all_reduce of 64 MiB takes twice as long. Most systems do not use huge pages for shared memory
 * by themselves; MADV_COLLAPSE (Linux 6.1) makes them of regions that have a page already. Its failure changes
 * nothing. */
static void use_huge_pages(char *memory, size_t bytes)
{
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
    for (size_t at = 0; at < bytes; at += HOST_HUGE)
        *(volatile char *)(memory + at) = 0;
    (void)madvise(memory, bytes, MADV_COLLAPSE);
}

ctrt_status host_alloc(void *state, void **address, size_t bytes)
{
    struct host_comm *comm = state;
    const size_t unit = bytes < HOST_HUGE ? HOST_PAGE : HOST_HUGE, each = (bytes + unit - 1) / unit * unit;
    const size_t world = (size_t)comm->world;
    *address = NULL;
    if (comm->mode != HOST_PROCESSES)
        return CTRT_OK;
    if (each < bytes || each > SIZE_MAX / 4 / world)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "%zu bytes of shared memory", bytes);
    struct host_segment *segment = calloc(1, sizeof *segment);
    comm->segment_count++;
    if (segment != NULL)
        *segment = (struct host_segment){ .number = comm->segment_count, .first = unit, .bytes = each,
                                          .mapped = unit + each * world };
    ctrt_status status = segment_share(segment, comm);
    if (status != CTRT_OK) {
        free(segment);
        return status;
    }
    *address = part_of(segment, comm->rank);
    if (unit == HOST_HUGE)
        use_huge_pages(*address, each);
    pthread_mutex_lock(&comm->segments_lock);
    segment->next = comm->segments;
    comm->segments = segment;
    pthread_mutex_unlock(&comm->segments_lock);
    return CTRT_OK;
}

void host_free(void *state, void *address)
{
    struct host_comm *comm = state;
    pthread_mutex_lock(&comm->segments_lock);
    for (struct host_segment **at = &comm->segments; *at != NULL;) {
        struct host_segment *segment = *at;
        if (part_of(segment, comm->rank) == address) {
            (void)madvise(address, segment->bytes, MADV_REMOVE);
            atomic_fetch_add(&segment->header->freed, 1);
        }
        if (atomic_load(&segment->header->freed) == comm->world) {
            *at = segment->next;
            munmap(segment->header, segment->mapped);
            free(segment);
        } else {
            at = &segment->next;
        }
    }
    pthread_mutex_unlock(&comm->segments_lock);
}

void host_segments_end(struct host_comm *comm)
{
    while (comm->segments != NULL) {
        struct host_segment *segment = comm->segments;
        comm->segments = segment->next;
        munmap(segment->header, segment->mapped);
        free(segment);
    }
    pthread_mutex_destroy(&comm->segments_lock);
}

/* ---- addresses ---- */

struct host_place host_place_of(struct host_comm *comm, const void *address, size_t bytes)
{
    struct host_place place = { .address = address };
    const char *begin = address;
    pthread_mutex_lock(&comm->segments_lock);
    for (const struct host_segment *segment = comm->segments; segment != NULL; segment = segment->next) {
        const char *part = part_of(segment, comm->rank);
        if (begin >= part && begin < part + segment->bytes && bytes <= (size_t)(part + segment->bytes - begin)) {
            place.segment = segment->number;
            place.offset = (uint64_t)(begin - part);
        }
    }
    pthread_mutex_unlock(&comm->segments_lock);
    return place;
}

static bool host_segments_resolve(const char **out, const struct host_comm *comm, int rank,
                                  const struct host_place *place)
{
    const struct host_segment *segment = comm->segments;
    *out = place->address;
    if (comm->mode == HOST_DIRECT || place->address == NULL)
        return true;
    while (segment != NULL && segment->number != place->segment)
        segment = segment->next;
    if (segment == NULL)
        return false;
    *out = part_of(segment, rank) + place->offset;
    return true;
}

bool host_resolve(struct host_comm *comm, bool results)
{
    bool all = true;
    pthread_mutex_lock(&comm->segments_lock);
    for (int rank = 0; rank < comm->world && all; rank++)
        all = host_segments_resolve(&comm->from[rank], comm, rank, &host_entry(comm, rank)->give)
              && (!results || host_segments_resolve(&comm->to[rank], comm, rank, &host_entry(comm, rank)->receive));
    pthread_mutex_unlock(&comm->segments_lock);
    return all;
}
