/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/direct.c: the memory policy that keeps nothing: every block comes from the source and goes
 * back to it at once. */
#include "ctrt/plugin.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

#include <stdatomic.h>

#define GRANULE 64              /* blocks are multiples of a cache line */

static const ctrt_host *host;

struct direct {
    const ctrt_memory_source *source;
    _Atomic uint64_t reserved, allocs, frees;
};

static ctrt_status direct_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    if (options != NULL && options[0] != '\0')
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "direct takes no options, but got \"%s\"", options);
    struct direct *self = host->alloc(sizeof *self);
    if (self == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "direct: no memory for %zu bytes of its own", sizeof *self);
    self->source = source;
    atomic_init(&self->reserved, 0);
    atomic_init(&self->allocs, 0);
    atomic_init(&self->frees, 0);
    *policy = self;
    return CTRT_OK;
}

static void direct_destroy(void *policy)
{
    host->free(policy);
}

static ctrt_status direct_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    struct direct *self = policy;
    size_t rounded = (bytes + GRANULE - 1) & ~(size_t)(GRANULE - 1);
    if (rounded < bytes)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "direct: %zu bytes are too many", bytes);
    block->bytes = rounded;
    block->cookie = NULL;
    ctrt_status status = self->source->alloc(self->source->state, &block->address, rounded, queue);
    if (status)
        return status;
    atomic_fetch_add_explicit(&self->reserved, rounded, memory_order_relaxed);
    atomic_fetch_add_explicit(&self->allocs, 1, memory_order_relaxed);
    return CTRT_OK;
}

static void direct_free(void *policy, const ctrt_block *block, void *queue)
{
    struct direct *self = policy;
    self->source->free(self->source->state, block->address, block->bytes, queue);
    atomic_fetch_sub_explicit(&self->reserved, block->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&self->frees, 1, memory_order_relaxed);
}

static void direct_stats(void *policy, ctrt_memory_stats *stats)
{
    struct direct *self = policy;
    stats->reserved_bytes = atomic_load_explicit(&self->reserved, memory_order_relaxed);
    stats->cached_bytes = 0;
    stats->source_allocs = atomic_load_explicit(&self->allocs, memory_order_relaxed);
    stats->source_frees = atomic_load_explicit(&self->frees, memory_order_relaxed);
}

static const ctrt_memory_policy policy = {
    .size = sizeof(ctrt_memory_policy),
    .create = direct_create,
    .destroy = direct_destroy,
    .alloc = direct_alloc,
    .free = direct_free,
    .stats = direct_stats,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "direct", .table = &policy },
};

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    return CTRT_OK;
}

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "memory-direct",
    .version = PACKAGE_VERSION,
    .description = "memory policy: every block from the backend",
    .components = components,
    .component_count = 1,
    .component_stride = sizeof components[0],
    .init = init,
};

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    (void)host_abi_major, (void)host_abi_minor;
    return &plugin;
}
