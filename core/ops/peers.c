/* SPDX-License-Identifier: Apache-2.0 */
/* ops/peers.c: direct copies between devices (peer access).
 *
 * On some machines (IOMMU, virtual machines) the driver reports peer access, but copies deliver zeros or nothing. So
 * each direction is tested before it is used. */
#include "ops/peers.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "device/internal.h"
#include "memory/pool.h"
#include "ops/dispatch.h"
#include "ops/launch.h"

#define PATTERN_BYTES 4096

enum { UNKNOWN, WORKS, FAILS };
#define MAX_NUMBER 1024                     /* size of the table; devices with larger numbers are tested each time */

static uint8_t *state_of_link(ctrt_device *to, const ctrt_device *from)
{
    uint8_t *table = atomic_load_explicit(&to->peers, memory_order_acquire), *expected = NULL;
    if (from->number >= MAX_NUMBER)
        return NULL;
    if (table == NULL) {
        table = host_calloc(MAX_NUMBER);
        if (table != NULL && !atomic_compare_exchange_strong(&to->peers, &expected, table)) {
            host_free(table);
            table = expected;
        }
    }
    return table != NULL ? &table[from->number] : NULL;
}

/* Copies a pattern from device to device and reads it back. Sets *right to whether it arrived unchanged. */
static ctrt_status send_pattern(ctrt_tensor *sent, ctrt_tensor *received, bool *right)
{
    uint8_t pattern[PATTERN_BYTES], back[PATTERN_BYTES];
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(1 + i * 167 % 251);
    ctrt_view here = sent->view;
    ctrt_device *cpu, *to = received->device, *from = sent->device;
    CTRT_TRY(device_cpu(&cpu));
    here.owner = NULL;
    here.data = pattern;
    CTRT_TRY(kernel_copy(&sent->view, from, &here, cpu));
    CTRT_TRY(kernel_fill(&received->view, to, ctrt_int(0)));
    if (device_asynchronous(to)) {
        const struct launch_copy copy = { .to = &received->view, .from = &sent->view, .bytes = PATTERN_BYTES,
                                          .from_device = from };
        CTRT_TRY(launch_copy(&copy, to));
    } else {
        CTRT_TRY(to->backend->memory->copy_peer(to->handle, received->view.data, from->handle, sent->view.data,
                                                PATTERN_BYTES, NULL));
    }
    here.data = back;
    CTRT_TRY(kernel_copy(&here, cpu, &received->view, to));
    *right = memcmp(pattern, back, sizeof back) == 0;
    return CTRT_OK;
}

/* Tests one direction. Returns UNKNOWN if the test failed with an error such as a lack of memory; the copy through the
 * host that follows will then report it. */
static uint8_t test_link(ctrt_device *to, ctrt_device *from)
{
    const ctrt_memory_table *memory = to->backend->memory;
    if (to->backend != from->backend || !CTRT_SLOT(memory, copy_peer) || !CTRT_SLOT(memory, can_access_peer)
        || !memory->can_access_peer(to->handle, from->handle))
        return FAILS;
    const int64_t shape[1] = { PATTERN_BYTES };
    ctrt_tensor *sent = NULL, *received = NULL;
    bool right = false;
    ctrt_status status = tensor_new(&sent, shape, 1, CTRT_U8, from);
    if (status == CTRT_OK)
        status = tensor_new(&received, shape, 1, CTRT_U8, to);
    const bool was = thread_state.order_auto;
    thread_state.order_auto = true;
    if (status == CTRT_OK)
        status = send_pattern(sent, received, &right);
    thread_state.order_auto = was;
    tensor_release(sent);
    tensor_release(received);
    if (status != CTRT_OK)
        return UNKNOWN;
    if (!right)
        log_message(CTRT_LOG_WARNING, "core",
                    "%s is reported to access the memory of %s, but a test pattern was corrupted by a direct copy; "
                    "copies between them go through the host",
                    to->name, from->name);
    return right ? WORKS : FAILS;
}

static bool busy(const ctrt_device *device)
{
    return dry_run_on(device) || atomic_load(&device->home->captures) > 0;
}

/* Returns false if direct copies between the open devices were tested and do not work. Tests them if necessary, unless
 * work of one of the devices is being captured or predicted. */
static bool link_works(ctrt_device *to, ctrt_device *from)
{
    const uint8_t *state = state_of_link(to, from);
    if (!busy(to) && !busy(from))
        peers_work(to, from);
    return state == NULL || __atomic_load_n(state, __ATOMIC_ACQUIRE) != FAILS;
}

bool peers_work(ctrt_device *to, ctrt_device *from)
{
    uint8_t *state = state_of_link(to, from);
    uint8_t known = state != NULL ? __atomic_load_n(state, __ATOMIC_ACQUIRE) : UNKNOWN;
    if (known == UNKNOWN) {
        known = test_link(to, from);
        if (state != NULL)
            __atomic_store_n(state, known, __ATOMIC_RELEASE);
    }
    return known == WORKS;
}

ctrt_status ctrt_device_get_link(ctrt_link *out, const char *name, const char *peer)
{
    CANCEL_DISABLED;
    static const char *const kinds[] = {
        [CTRT_LINK_UNKNOWN] = "",           [CTRT_LINK_NVLINK] = "NVLink",      [CTRT_LINK_BOARD] = "same board",
        [CTRT_LINK_SWITCH] = "PCI switch",  [CTRT_LINK_SWITCHES] = "PCI switches", [CTRT_LINK_BRIDGE] = "host bridge",
        [CTRT_LINK_NODE] = "NUMA node",     [CTRT_LINK_SYSTEM] = "system",
    };
    struct device_type *type, *other;
    int index, to;
    ctrt_device_link link = { .size = sizeof link, .direct = -1 };
    NULL_CHECK("device_get_link", out);
    CTRT_TRY(device_locate(&type, &index, name));
    CTRT_TRY(device_locate(&other, &to, peer));
    if (type->backend == other->backend && CTRT_SLOT(type->backend->device, link))
        CTRT_TRY(type->backend->device->link(type->physical[index], type->physical[to], &link));
    device_enter();
    ctrt_device *from_device = type->open[index], *to_device = other->open[to];
    device_leave();
    if (link.direct > 0 && from_device != NULL && to_device != NULL && from_device != to_device
        && device_usable(from_device) && device_usable(to_device) && !link_works(to_device, from_device))
        link.direct = 0;
    ctrt_link own = { .direct = link.direct, .links = link.links };
    snprintf(own.kind, sizeof own.kind, "%s", (unsigned)link.kind < COUNT_OF(kinds) ? kinds[link.kind] : "");
    return struct_write(out, &own, sizeof own, "device_get_link", "out");
}
