/* SPDX-License-Identifier: Apache-2.0 */
/* memory/policy.c: parser of CTRT_MEMORY, and policies as layers of a stack. */
#include "memory/policy.h"

#include "base/base.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/slot.h"
#include "registry/registry.h"

/* ---- grammar ---- */

static ctrt_status fail_spec(const char *text, const char *why)
{
    return ctrt_fail(
        CTRT_ERR_INVALID_ARGUMENT,
        "CTRT_MEMORY=%.200s: %s. Expected NAME, NAME:OPTION=VALUE,... or several joined by '+', as in "
        "caching:max_split=64m",
        text, why);
}

/* Length of the option up to the next comma outside of brackets. */
static size_t option_length(const char *options)
{
    size_t length = 0;
    for (int depth = 0; options[length] != '\0' && (options[length] != ',' || depth > 0); length++)
        depth += (options[length] == '[') - (options[length] == ']');
    return length;
}

/* Checks only that options have the form KEY=VALUE,KEY=VALUE; the policy checks keys and values. */
static bool options_plausible(const char *options)
{
    const char *at = options;
    for (;;) {
        size_t length = option_length(at);
        size_t key = strcspn(at, "=");
        if (key == 0 || key + 1 >= length)
            return false;
        if (at[length] == '\0')
            return true;
        at += length + 1;
    }
}

static ctrt_status parse_layer(struct policy_spec *spec, const char *from, size_t length, const char *text)
{
    const char *colon = memchr(from, ':', length);
    size_t name = colon != NULL ? (size_t)(colon - from) : length;
    size_t rest = colon != NULL ? length - name - 1 : 0;
    if (name == 0)
        return fail_spec(text, "the name of a policy is missing");
    if (name >= sizeof spec->name || rest >= sizeof spec->options)
        return fail_spec(text, "a name or its options are too long");
    memset(spec, 0, sizeof *spec);
    memcpy(spec->name, from, name);
    if (!registry_name_valid(spec->name))
        return fail_spec(text, "a name consists of lower-case letters, digits and '-'");
    if (colon == NULL)
        return CTRT_OK;
    memcpy(spec->options, colon + 1, rest);
    if (!options_plausible(spec->options))
        return fail_spec(text, "the text after ':' is not OPTION=VALUE,OPTION=VALUE");
    return CTRT_OK;
}

ctrt_status policy_parse(struct policy_spec specs[MEMORY_MAX_POLICIES], int *count, const char *text)
{
    *count = 0;
    for (const char *at = text;;) {
        size_t length = strcspn(at, "+");
        if (*count == MEMORY_MAX_POLICIES)
            return fail_spec(text, "more than 4 policies are joined");
        CTRT_TRY(parse_layer(&specs[*count], at, length, text));
        ++*count;
        if (at[length] == '\0')
            return CTRT_OK;
        at += length + 1;
    }
}

/* ---- a policy as the memory source of the policy above ---- */

/* Guards the block tables of all layers. One lock is enough because a layer uses its table only when a segment is
 * allocated or freed. fork() takes it (base/lock.h), so in the child it is free and the tables are consistent. */
LOCK_DEFINE(tables_lock, LOCK_LAYERS);

/* Adds a block to the layer's table. */
static ctrt_status layer_remember(struct policy_layer *layer, const ctrt_block *block)
{
    lock_enter(&tables_lock);
    ctrt_block *item = ptr_map_add(&layer->blocks, block->address, sizeof *item);
    if (item != NULL)
        *item = *block;
    lock_leave(&tables_lock);
    return item != NULL ? CTRT_OK : out_of_memory(sizeof *item, "a table of blocks");
}

ctrt_status policy_check_address(ctrt_status status, const void *address, const char *policy, size_t bytes)
{
    if (status == CTRT_OK && address == NULL && bytes > 0)
        return ctrt_fail(CTRT_ERR_PLUGIN, "memory policy %s: alloc returned success without an address for %zu bytes",
                         policy, bytes);
    return status;
}

static ctrt_status policy_draw(struct policy_layer *layer,
                               ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue),
                               void **address, size_t bytes, void *queue)
{
    ctrt_block block = { 0 };
    const uint32_t failures = thread_state.failures;
    ctrt_status status = alloc(layer->state, &block, bytes, queue);
    if (unlikely(status != CTRT_OK))
        return slot_failed(status, failures, "memory policy", layer->name, "alloc");
    CTRT_TRY(policy_check_address(status, block.address, layer->name, bytes));
    if (block.fence != NULL) {
        /* If the queue cannot wait for the fence, the host waits. After that the block is usable; the queue reports its
         * own error at its next use. */
        if (layer->below->fence_wait(layer->below->state, block.fence, queue) != CTRT_OK)
            (void)layer->below->fence_wait(layer->below->state, block.fence, NULL);
        layer->below->fence_free(layer->below->state, block.fence);
        block.fence = NULL;
    }
    if (block.address != NULL && (status = layer_remember(layer, &block)) != CTRT_OK) {
        layer->policy->free(layer->state, &block, queue);
        return status;
    }
    *address = block.address;
    return CTRT_OK;
}

static ctrt_status layer_source_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct policy_layer *layer = state;
    return policy_draw(layer, layer->policy->alloc, address, bytes, queue);
}

static ctrt_status layer_source_alloc_spare(void *state, void **address, size_t bytes, void *queue)
{
    struct policy_layer *layer = state;
    const ctrt_memory_policy *policy = layer->policy;
    return policy_draw(layer, CTRT_SLOT(policy, alloc_spare) ? policy->alloc_spare : policy->alloc, address, bytes,
                       queue);
}

static void layer_source_free(void *state, void *address, size_t bytes, void *queue)
{
    struct policy_layer *layer = state;
    ctrt_block block;
    (void)bytes;
    if (address == NULL)                    /* of a request of 0 bytes */
        return;
    lock_enter(&tables_lock);
    ctrt_block *item = ptr_map_find(&layer->blocks, address, sizeof *item);
    if (item != NULL) {
        block = *item;
        ptr_map_remove(&layer->blocks, item, sizeof *item);
    }
    lock_leave(&tables_lock);
    if (item != NULL)
        layer->policy->free(layer->state, &block, queue);
    else
        log_message(CTRT_LOG_ERROR, "memory", "a memory policy frees %p, which it did not allocate", address);
}

/* ---- source functions that are forwarded to the lowest source ---- */

static const ctrt_memory_source *below(void *state)
{
    return ((struct policy_layer *)state)->below;
}

static ctrt_status pass_fence_new(void *state, void **fence, void *queue)
{
    return below(state)->fence_new(below(state)->state, fence, queue);
}

static ctrt_status pass_fence_wait(void *state, void *fence, void *queue)
{
    return below(state)->fence_wait(below(state)->state, fence, queue);
}

static bool pass_fence_done(void *state, void *fence)
{
    return below(state)->fence_done(below(state)->state, fence);
}

static ctrt_status pass_fence_status(void *state, void *fence, bool *done)
{
    return below(state)->fence_status(below(state)->state, fence, done);
}

static void *pass_fence_join(void *state, void *a, void *b)
{
    return below(state)->fence_join(below(state)->state, a, b);
}

static void pass_fence_free(void *state, void *fence)
{
    below(state)->fence_free(below(state)->state, fence);
}

static ctrt_status pass_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    return below(state)->copy(below(state)->state, to, from, bytes, kind, queue);
}

static ctrt_status pass_host_alloc(void *state, void **address, size_t bytes)
{
    return below(state)->host_alloc(below(state)->state, address, bytes);
}

static void pass_host_free(void *state, void *address, size_t bytes)
{
    below(state)->host_free(below(state)->state, address, bytes);
}

static void source_of_layer(struct policy_layer *layer, const ctrt_memory_source *source)
{
    layer->below = source;
    layer->source = (ctrt_memory_source){
        .size = sizeof layer->source, .state = layer, .alloc = layer_source_alloc, .free = layer_source_free,
        .device_name = source->device_name, .device_flags = source->device_flags, .total_bytes = source->total_bytes,
        .fence_new = pass_fence_new, .fence_wait = pass_fence_wait, .fence_done = pass_fence_done,
        .fence_join = pass_fence_join, .fence_free = pass_fence_free, .copy = pass_copy,
        .host_alloc = pass_host_alloc, .host_free = pass_host_free,
        .fence_status = pass_fence_status, .alloc_spare = layer_source_alloc_spare,
    };
}

ctrt_status layer_create(struct policy_layer **out, const struct policy_spec *spec,
                         const ctrt_memory_source *source)
{
    const struct component *component;
    CTRT_TRY(registry_use(&component, CTRT_COMPONENT_MEMORY, spec->name));
    struct policy_layer *layer = host_calloc(sizeof *layer);
    ALLOC_CHECK(layer, sizeof *layer, "a memory policy");
    layer->policy = component->table;
    layer->name = component->name;
    source_of_layer(layer, source);
    const uint32_t failures = thread_state.failures;
    ctrt_status status = layer->policy->create(&layer->state, source, spec->options);
    if (status != CTRT_OK) {
        status = slot_failed(status, failures, "memory policy", spec->name, "create");
        host_free(layer);
        return ctrt_context(status, "memory policy %s", spec->name);
    }
    *out = layer;
    return CTRT_OK;
}

bool layer_copies(const struct policy_layer *layer)
{
    return CTRT_SLOT(layer->policy, clone);
}

/* Copies the table of allocated blocks from `from` to `layer`. */
static ctrt_status copy_blocks(struct policy_layer *layer, struct policy_layer *from)
{
    ctrt_status status = CTRT_OK;
    lock_enter(&tables_lock);
    for (const ctrt_block *item = NULL;
         status == CTRT_OK && (item = ptr_map_next(&from->blocks, item, sizeof *item)) != NULL;)
        status = layer_remember(layer, item);
    lock_leave(&tables_lock);
    return status;
}

ctrt_status layer_copy(struct policy_layer **out, struct policy_layer *from, const ctrt_memory_source *source)
{
    struct policy_layer *layer = host_calloc(sizeof *layer);
    ALLOC_CHECK(layer, sizeof *layer, "a memory policy");
    layer->policy = from->policy;
    layer->name = from->name;
    source_of_layer(layer, source);
    ctrt_status status = layer->policy->clone(from->state, &layer->state, source);
    if (status != CTRT_OK) {
        host_free(layer);
        return ctrt_context(status, "a copy of a memory policy");
    }
    status = copy_blocks(layer, from);
    if (status != CTRT_OK) {
        layer_destroy(layer);
        return status;
    }
    *out = layer;
    return CTRT_OK;
}

void layer_destroy(struct policy_layer *layer)
{
    if (layer == NULL)
        return;
    layer->policy->destroy(layer->state);
    ptr_map_free(&layer->blocks);
    host_free(layer);
}
