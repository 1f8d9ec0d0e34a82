/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/peers.c: copies between devices.
 *
 * On some machines the driver reports peer access between two devices, but copies transfer zeros or garbage (for
 * example because of an IOMMU). Therefore the first copy between two devices is preceded by a test copy of a pattern,
 * which is read back. If the test fails, copies go through host memory, and a warning is logged once. */
#include "cuda.h"
#include "plugins/common/fork.h"

#include <stdio.h>
#include <string.h>

#define TRIAL_BYTES 65536u

FORK_MUTEX(lock)

bool cuda_can_access_peer(void *handle, void *peer)
{
    const struct cuda_device *device = handle, *other = peer;
    int can = 0;
    if (cuda_forked(device) || device == other)
        return device == other;
    return cuda_driver.device_can_access_peer(&can, device->ordinal, other->ordinal) == CU_OK && can != 0;
}

/* Copies a pattern and returns true if it arrives unchanged. Waits for the copy. Called with the lock held and the
 * context of `to` current. */
static bool trial_passes(struct cuda_device *to, struct cuda_device *from)
{
    uint32_t *pattern = NULL;
    cu_address there = 0, here = 0;
    bool right = false;
    if (cuda_driver.host_alloc((void **)&pattern, 2 * TRIAL_BYTES, CU_HOST_PORTABLE) != CU_OK)
        return false;
    uint32_t *back = pattern + TRIAL_BYTES / 4;
    for (uint32_t i = 0; i < TRIAL_BYTES / 4; i++)
        pattern[i] = i * 2654435761u + (uint32_t)from->index + 1;
    memset(back, 0, TRIAL_BYTES);
    const cu_stream stream = to->standard->stream;
    if (cuda_driver.context_set(from->context) == CU_OK && cuda_driver.memory_alloc(&there, TRIAL_BYTES) == CU_OK
        && cuda_driver.copy_to_device(there, pattern, TRIAL_BYTES, from->standard->stream) == CU_OK
        && cuda_driver.stream_synchronize(from->standard->stream) == CU_OK
        && cuda_driver.context_set(to->context) == CU_OK && cuda_driver.memory_alloc(&here, TRIAL_BYTES) == CU_OK
        && cuda_driver.fill_bytes(here, 0, TRIAL_BYTES, stream) == CU_OK
        && cuda_driver.copy_peer(here, to->context, there, from->context, TRIAL_BYTES, stream) == CU_OK
        && cuda_driver.copy_to_host(back, here, TRIAL_BYTES, stream) == CU_OK
        && cuda_driver.stream_synchronize(stream) == CU_OK)
        right = memcmp(pattern, back, TRIAL_BYTES) == 0;
    if (there != 0 && cuda_driver.context_set(from->context) == CU_OK)
        (void)cuda_driver.memory_free(there);
    (void)cuda_driver.context_set(to->context);
    if (here != 0)
        (void)cuda_driver.memory_free(here);
    (void)cuda_driver.host_free(pattern);
    return right;
}

/* Without peer access, the driver copies through host memory. Memory of pages.c is accessible only to its own device,
 * so the driver always copies it through host memory. */
static void enable(struct cuda_device *device, struct cuda_device *peer)
{
    if (cuda_driver.context_set(device->context) == CU_OK && cuda_can_access_peer(device, peer))
        (void)cuda_driver.context_enable_peer(peer->context, 0);    /* may have been enabled already */
}

/* Returns true if cuMemcpyPeerAsync from `from` to `to` works; runs the test at the first call. */
static bool direct(struct cuda_device *to, struct cuda_device *from)
{
    const uint64_t bit = (uint64_t)1 << from->index;
    if (atomic_load_explicit(&to->peers_checked, memory_order_acquire) & bit)
        return atomic_load_explicit(&to->peers_direct, memory_order_relaxed) & bit;
    pthread_mutex_lock(&lock);
    if (!(atomic_load(&to->peers_checked) & bit)) {
        enable(from, to);
        enable(to, from);
        if (trial_passes(to, from))
            atomic_fetch_or(&to->peers_direct, bit);
        else
            cuda_host->log(
                CTRT_LOG_WARNING, "cuda",
                "copies from %s to %s are wrong or lost although the driver offers them; they go through "
                "the host's memory",
                from->name, to->name);
        atomic_fetch_or_explicit(&to->peers_checked, bit, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return atomic_load(&to->peers_direct) & bit;
}

/* Copies in pieces through pinned host memory, and blocks the host. `stream` belongs to `to` and has already been made
 * to wait for the work that produces the source. */
static ctrt_status staged(struct cuda_device *to, cu_address target, struct cuda_device *from, cu_address source,
                          size_t bytes, cu_stream stream)
{
    const size_t piece = bytes < (4u << 20) ? bytes : 4u << 20;
    void *middle = NULL;
    ctrt_status status = cuda_check(to, cuda_driver.stream_synchronize(stream),
                                    "waiting before a copy through the host");
    if (status == CTRT_OK)
        status = cuda_check(to, cuda_driver.host_alloc(&middle, piece, CU_HOST_PORTABLE),
                            "%zu bytes of pinned memory for a copy", piece);
    for (size_t at = 0; at < bytes && status == CTRT_OK; at += piece) {
        const size_t n = bytes - at < piece ? bytes - at : piece;
        status = cuda_enter(from);
        if (status == CTRT_OK)
            status = cuda_check(from, cuda_driver.copy_to_host(middle, source + at, n, from->standard->stream),
                                "a copy to the host");
        if (status == CTRT_OK)
            status = cuda_check(from, cuda_driver.stream_synchronize(from->standard->stream), "a copy to the host");
        ctrt_status back = cuda_enter(to);
        status = status != CTRT_OK ? status : back;
        if (status == CTRT_OK)
            status = cuda_check(to, cuda_driver.copy_to_device(target + at, middle, n, stream), "a copy from the host");
        if (status == CTRT_OK)
            status = cuda_check(to, cuda_driver.stream_synchronize(stream), "a copy from the host");
    }
    if (middle != NULL)
        (void)cuda_driver.host_free(middle);
    return status;
}

ctrt_status cuda_copy_peer(void *to_handle, void *target, void *from_handle, const void *source, size_t bytes,
                           void *object)
{
    struct cuda_device *to = to_handle, *from = from_handle;
    struct cuda_queue *queue = cuda_queue_of(to, object);
    ctrt_status status = cuda_enter(to);
    if (status != CTRT_OK || bytes == 0 || cuda_queue_failed(queue))
        return status;
    const cu_address there = (cu_address)(uintptr_t)source, here = (cu_address)(uintptr_t)target;
    if (to == from)
        return cuda_check(to, cuda_driver.copy_on_device(here, there, bytes, queue->stream), "a copy of %zu bytes",
                          bytes);
    const bool known = atomic_load_explicit(&to->peers_checked, memory_order_acquire) & (uint64_t)1 << from->index;
    if (__builtin_expect(!known || !direct(to, from), 0) && cuda_queue_captured(queue))
        return cuda_host->fail(
            CTRT_ERR_STATE, "a copy from %s to %s %s, which cannot be captured: %s", from->name, to->name,
            known ? "goes through the host's memory" : "is the first over that link, which must be tested first",
            known ? "remove it from the captured step" : "make a copy before the capture");
    if (!direct(to, from))
        return staged(to, here, from, there, bytes, queue->stream);
    return cuda_check(to, cuda_driver.copy_peer(here, to->context, there, from->context, bytes, queue->stream),
                      "a copy of %zu bytes from %s", bytes, from->name);
}
