/* SPDX-License-Identifier: Apache-2.0 */
/* memory-old.c: a memory policy for ABI 1.0, which passes each request on to its source and counts. */
#include <ctrt/plugin.h>
#include <string.h>

static const ctrt_host *host;

struct old {
    const ctrt_memory_source *source;
    ctrt_memory_policy_stats stats;
};

static ctrt_status old_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    if (options[0] != '\0')
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "old has no options, found \"%s\"", options);
    struct old *old = host->alloc(sizeof *old);
    if (old == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "old: no memory for the policy");
    *old = (struct old){ .source = source };
    *policy = old;
    return CTRT_OK;
}

static void old_destroy(void *policy)
{
    host->free(policy);
}

/* Without CTRT_MEMORY_FENCES, so the library waits before it calls `free`. One thread uses it in this test. */
static ctrt_status old_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    struct old *old = policy;
    *block = (ctrt_block){ .bytes = (bytes + 63) / 64 * 64 };
    CTRT_TRY(old->source->alloc(old->source->state, &block->address, block->bytes, queue));
    old->stats.reserved_bytes += block->bytes;
    old->stats.source_allocs++;
    return CTRT_OK;
}

static void old_free(void *policy, const ctrt_block *block, void *queue)
{
    struct old *old = policy;
    old->source->free(old->source->state, block->address, block->bytes, queue);
    old->stats.reserved_bytes -= block->bytes;
    old->stats.source_frees++;
}

static void old_stats(void *policy, ctrt_memory_policy_stats *out)
{
    ctrt_memory_policy_stats stats = ((struct old *)policy)->stats;
    stats.size = out->size;
    stats.reserved[CTRT_POOL_ALL].current = (int64_t)stats.reserved_bytes;
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static const ctrt_memory_policy policy = {
    .size = sizeof(ctrt_memory_policy), .create = old_create, .destroy = old_destroy, .alloc = old_alloc,
    .free = old_free, .stats = old_stats,
};

static ctrt_status init(const ctrt_host *the_host)
{
    host = the_host;
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "old", .table = &policy },
};
CTRT_PLUGIN_DEFINE("memory-old", "1.0", "a memory policy for ABI 1.0", components, init)
