/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/space.c: the memory of a device: a memfd file that is mapped twice.
 *
 * The file is larger than the device's memory, as a GPU has more addresses than memory: a block may be at any offset,
 * and only the bytes in use are counted, so fragmentation does not make allocations fail. The unused parts are holes of
 * the file and use no memory. With the option `holes`, the file is only as large as the memory.
 *
 * The host's mapping permits no access, so that the host faults immediately if it reads data that it has not copied.
 * The workers' mapping of the file is at a constant distance from it. After the memory's own addresses, both mappings
 * have space for reservations. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SYSTEM_PAGE ((uint64_t)4096)
/* Address space for reservations, as a multiple of the memory; the file has a quarter of that. Both are only addresses.
 * First fit wastes at most a factor that is the logarithm of the ratio of block sizes (Robson 1977), in practice less
 * than two. */
#define ROOM        64

static uint64_t rounded(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static char *addresses(uint64_t bytes)
{
    char *range = mmap(NULL, bytes + SIM_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return NULL;
    char *begin = (char *)rounded((uintptr_t)range, SIM_PAGE), *end = begin + bytes;
    if (begin > range)
        munmap(range, (size_t)(begin - range));
    munmap(end, (size_t)(range + bytes + SIM_PAGE - end));
    return begin;
}

ctrt_status sim_space_open(struct sim_device *device)
{
    uint64_t memory = rounded(device->memory, SIM_PAGE), times = ROOM, places = memory;
    char *worker = NULL;
    for (; device->guard == NULL && times > 0; times /= 2) {        /* fewer addresses if they are limited */
        places = device->holes || times < 8 ? memory : memory * (times / 4);
        device->span = places + memory * times;
        device->guard = addresses(device->span);
        worker = device->guard != NULL ? addresses(device->span) : NULL;
        if (device->guard != NULL && worker == NULL)
            munmap(device->guard, device->span), device->guard = NULL;
    }
    if (device->guard == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY,
                              "%s: no addresses for %llu bytes of simulated memory (ulimit -v?)", device->name,
                              (unsigned long long)device->memory);
    device->delta = worker - device->guard;
    device->fd = CTRT_PLUGIN_DESCRIPTOR(sim_host, memfd_create(device->name, MFD_CLOEXEC));
    if (device->fd < 0 || ftruncate(device->fd, (off_t)places) != 0
        || mmap(worker, places, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, device->fd, 0) == MAP_FAILED
        || !sim_blocks_init(&device->physical, 0, device->holes ? device->memory : places, device->memory, SIM_ALIGN)
        || !sim_blocks_init(&device->reserved, places, device->span, device->span - places, SIM_PAGE)) {
        int why = errno;
        sim_space_close(device);
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %llu bytes of simulated memory: %s", device->name,
                              (unsigned long long)device->memory, strerror(why));
    }
    return CTRT_OK;
}

void sim_space_close(struct sim_device *device)
{
    sim_blocks_free(&device->physical);
    sim_blocks_free(&device->reserved);
    if (device->guard != NULL) {
        munmap(device->guard + device->delta, device->span);
        munmap(device->guard, device->span);
    }
    if (device->fd >= 0)
        close(device->fd);
    device->guard = NULL;
    device->fd = -1;
}

void sim_space_give_back(struct sim_device *device, uint64_t start, uint64_t bytes)
{
    uint64_t begin, end, first = start / SYSTEM_PAGE * SYSTEM_PAGE, last = rounded(start + bytes, SYSTEM_PAGE);
    sim_blocks_gap(&device->physical, start, &begin, &end);
    begin = rounded(begin, SYSTEM_PAGE);
    end = end == device->physical.end ? rounded(end, SYSTEM_PAGE) : end / SYSTEM_PAGE * SYSTEM_PAGE;
    begin = begin > first ? begin : first;
    end = end < last ? end : last;
    if (begin < end)
        (void)fallocate(device->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)(end - begin));
}

const char *sim_space_free(const struct sim_device *device, char text[160])
{
    int n = snprintf(text, 160, "%llu of %llu bytes are free",
                     (unsigned long long)(device->memory - device->physical.used),
                     (unsigned long long)device->memory);
    if (device->holes)
        snprintf(text + n, 160 - (size_t)n, ", the largest free piece has %llu",
                 (unsigned long long)sim_blocks_largest_gap(&device->physical));
    return text;
}

/* Returns whether every page of [place, place+bytes), in the range for reservations, is mapped. */
static bool all_mapped(const struct sim_device *device, uint64_t place, uint64_t bytes)
{
    const struct sim_reservation *r = sim_reservation_at(device, place);
    if (r == NULL || place + bytes > r->start + r->bytes)
        return false;
    for (uint64_t page = (place - r->start) / SIM_PAGE; page * SIM_PAGE < place - r->start + bytes; page++)
        if (r->pages[page] < 0)
            return false;
    return true;
}

void *sim_reach(struct sim_device *device, const void *address, uint64_t bytes, char *why, size_t why_bytes)
{
    uint64_t place = (uint64_t)((const char *)address - device->guard);
    if ((const char *)address < device->guard || place >= device->span) {
        const struct sim_device *other = sim_owner(address);
        snprintf(why, why_bytes, "%p is %s%s", address, other ? "memory of " : "no device memory",
                 other ? other->name : "");
        return NULL;
    }
    pthread_mutex_lock(&device->lock);
    bool good = bytes <= device->span - place;
    if (good && place >= device->reserved.begin) {
        good = all_mapped(device, place, bytes);
    } else if (good) {
        const struct sim_block *block = sim_blocks_find(&device->physical, place);
        good = block != NULL && place + bytes <= block->start + block->bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (!good) {
        snprintf(why, why_bytes, "%llu bytes at %p are not, or no longer, within one allocation",
                 (unsigned long long)bytes, address);
        return NULL;
    }
    return (char *)device->guard + device->delta + place;
}
