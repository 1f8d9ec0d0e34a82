/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/scope.c: tensor scopes: the tensors created in a scope and not exported from it end with the scope.
 *
 * The program's variables still contain handles of ended tensors, and the library cannot find these variables. So an
 * ended tensor stays a valid handle: it moves to a device without memory and kernels, and every use fails with the
 * reason. */
#include "tensor/scope.h"

#include "base/array.h"
#include "base/lock.h"
#include "memory/quota.h"

struct scope {
    struct scope *outer;
    const struct thread_state *owner;       /* the thread that began it; threads that work for it may also use it */
    uint32_t first;                         /* first entry of its list of tensors; 0: none */
};

struct scope_entry {
    ctrt_tensor *tensor;                    /* NULL: the entry is free */
    struct scope *scope;
    uint32_t next, previous;                /* of the scope's list; `next` also links free entries */
    uint32_t held;
};

LOCK_DEFINE(scopes_lock, LOCK_SCOPE);
static struct scope_entry *entries;               /* entry 0 is not used */
static uint32_t entry_count, free_entry;
static size_t entry_capacity;

/* ---- the table; all functions require the lock ---- */

static uint32_t scope_entry_new(void)
{
    if (free_entry != 0) {
        const uint32_t place = free_entry;
        free_entry = entries[place].next;
        return place;
    }
    return ARRAY_GROW(entries, entry_capacity, entry_count + 1) ? ++entry_count : 0;
}

static void link_in(uint32_t place, struct scope *scope)
{
    struct scope_entry *entry = &entries[place];
    entry->scope = scope;
    entry->previous = 0;
    entry->next = scope->first;
    if (entry->next != 0)
        entries[entry->next].previous = place;
    scope->first = place;
}

static void link_out(uint32_t place)
{
    struct scope_entry *entry = &entries[place];
    if (entry->previous != 0)
        entries[entry->previous].next = entry->next;
    else
        entry->scope->first = entry->next;
    if (entry->next != 0)
        entries[entry->next].previous = entry->previous;
}

static void entry_free(uint32_t place)
{
    link_out(place);
    entries[place].tensor->flags &= ~(uint32_t)TENSOR_SCOPED;
    entries[place].tensor = NULL;
    entries[place].next = free_entry;
    free_entry = place;
}

/* ---- tensors ---- */

void scope_note(ctrt_tensor *tensor)
{
    lock_enter(&scopes_lock);
    const uint32_t place = scope_entry_new();
    if (place != 0) {
        entries[place] = (struct scope_entry){ .tensor = tensor };
        link_in(place, thread_state.scope);
        tensor->scope_place = place;
        tensor->flags |= TENSOR_SCOPED;
    }
    lock_leave(&scopes_lock);
}

void scope_forget(ctrt_tensor *tensor)
{
    lock_enter(&scopes_lock);
    if (tensor->flags & TENSOR_SCOPED)
        entry_free(tensor->scope_place);
    lock_leave(&scopes_lock);
}

void scope_count(ctrt_tensor *tensor, int by)
{
    lock_enter(&scopes_lock);
    if (tensor->flags & TENSOR_SCOPED) {
        struct scope_entry *entry = &entries[tensor->scope_place];
        entry->held = by > 0 || entry->held > 0 ? entry->held + (uint32_t)by : 0;
    }
    lock_leave(&scopes_lock);
}

/* ---- the device of ended tensors ---- */

static const ctrt_device_table no_device = { .size = sizeof(size_t) };
static const ctrt_memory_table no_memory = { .size = sizeof(size_t) };
static const ctrt_backend no_backend = { .size = sizeof no_backend, .device = &no_device, .memory = &no_memory };
static _Atomic(struct storage *) nothing;  /* storage on a placeholder device */

/* Creates the placeholder at the first scope; it is never freed. */
static ctrt_status nowhere_make(void)
{
    if (atomic_load_explicit(&nothing, memory_order_acquire) != NULL)
        return CTRT_OK;
    ctrt_device *device = host_calloc(sizeof *device);
    struct storage *storage = host_calloc(sizeof *storage), *none = NULL;
    struct device_memory *memory = aligned_alloc(64, sizeof *memory);
    if (device == NULL || storage == NULL || memory == NULL) {
        host_free(device), host_free(storage), free(memory);
        return out_of_memory(sizeof *device + sizeof *storage + sizeof *memory, "a scope");
    }
    memset(memory, 0, sizeof *memory);
    counters_init(&memory->counters);
    atomic_store(&memory->limit, QUOTA_NONE);
    memory->device = device;
    pool_close(memory);
    device->home = device;
    device->launch = &launch_direct;
    snprintf(memory->policy_name, sizeof memory->policy_name, "none");
    snprintf(device->name, sizeof device->name, "a scope that has ended");
    snprintf(device->type, sizeof device->type, "none");
    device->backend = &no_backend;
    device->memory = memory;
    device->owner = DEVICE_ENDED;
    device->number = UINT32_MAX;
    pthread_mutex_init(&device->generator_lock, NULL);
    atomic_init(&storage->refs, 1);
    storage->device = device;
    if (!atomic_compare_exchange_strong(&nothing, &none, storage)) {    /* another thread was first */
        counters_destroy(&memory->counters);
        host_free(device), host_free(storage), free(memory);
    }
    return CTRT_OK;
}

/* ---- scopes ---- */

static ctrt_status none_open(const char *who)
{
    return ctrt_fail(CTRT_ERR_STATE, "%s without a matching ctrt_scope_begin in this thread", who);
}

/* Removes a tensor without holds from the scope and returns it with a reference; NULL if there is none. Moves tensors
 * with holds to `rest`. */
static ctrt_tensor *scope_take(struct scope *scope, struct scope *rest)
{
    ctrt_tensor *found = NULL;
    lock_enter(&scopes_lock);
    while (found == NULL && scope->first != 0) {
        const uint32_t place = scope->first;
        ctrt_tensor *tensor = entries[place].tensor;
        if (entries[place].held > 0) {
            link_out(place);
            link_in(place, rest);
            continue;
        }
        entry_free(place);
        if (grad_is_parameter(tensor))
            continue;
        tensor_retain(tensor);
        found = tensor;
    }
    lock_leave(&scopes_lock);
    return found;
}

/* Ends those tensors of the scope that are referred to only by each other. All tensors of the scope have holds. */
static bool end_cycles(struct scope *scope)
{
    size_t count = 0, i = 0;
    lock_enter(&scopes_lock);
    for (uint32_t place = scope->first; place != 0; place = entries[place].next)
        count++;
    struct scope_held *held = host_alloc(MAX(count, 1) * sizeof *held);
    for (uint32_t place = scope->first; place != 0 && held != NULL; place = entries[place].next) {
        tensor_retain(entries[place].tensor);
        held[i++] = (struct scope_held){ .tensor = entries[place].tensor, .held = entries[place].held };
    }
    lock_leave(&scopes_lock);
    const size_t unused = grad_find_cycles(held, i);
    while (i-- > 0) {
        if (held[i].unused && unused > 0) {
            scope_forget(held[i].tensor);
            tensor_end(held[i].tensor, atomic_load(&nothing));
        }
        tensor_release(held[i].tensor);
    }
    host_free(held);
    return unused > 0;
}

/* Repeats, because ending a tensor may release the holds of others. */
static void end_all(struct scope *scope)
{
    struct scope rest = { .outer = NULL };
    bool ended = true;
    while (ended && scope->first != 0) {
        ctrt_tensor *tensor;
        ended = false;
        while ((tensor = scope_take(scope, &rest)) != NULL) {
            tensor_end(tensor, atomic_load(&nothing));
            tensor_release(tensor);
            ended = true;
        }
        lock_enter(&scopes_lock);
        for (uint32_t place; (place = rest.first) != 0;) {
            link_out(place);
            link_in(place, scope);
        }
        lock_leave(&scopes_lock);
        if (!ended && scope->first != 0)
            ended = end_cycles(scope);
    }
}

/* The remaining tensors move to the outer scope or, if there is none, leave all scopes. */
static void scope_drop(struct scope *scope)
{
    lock_enter(&scopes_lock);
    for (uint32_t place; (place = scope->first) != 0;) {
        if (scope->outer == NULL) {
            entry_free(place);
            continue;
        }
        link_out(place);
        link_in(place, scope->outer);
    }
    lock_leave(&scopes_lock);
    host_free(scope);
}

static void thread_drop(struct thread_state *state)
{
    while (state->scope != NULL && state->scope->owner == state) {
        struct scope *scope = state->scope;
        state->scope = scope->outer;
        scope_drop(scope);
    }
    state->scope = NULL;
}

__attribute__((constructor)) static void scope_start(void)
{
    thread_on_exit(thread_drop);
}

ctrt_status ctrt_scope_begin(void)
{
    CTRT_TRY(nowhere_make());
    struct scope *scope = host_calloc(sizeof *scope);
    ALLOC_CHECK(scope, sizeof *scope, "a scope");
    thread_register();
    scope->outer = thread_state.scope;
    scope->owner = &thread_state;
    thread_state.scope = scope;
    return CTRT_OK;
}

ctrt_status ctrt_scope_export(ctrt_tensor *tensor)
{
    NULL_CHECK("scope_export", tensor);
    if (thread_state.scope == NULL)
        return none_open("scope_export");
    if (tensor->storage == atomic_load(&nothing))
        return device_fail_forked(tensor->device);
    lock_enter(&scopes_lock);
    if (tensor->flags & TENSOR_SCOPED && entries[tensor->scope_place].scope == thread_state.scope) {
        if (thread_state.scope->outer == NULL) {
            entry_free(tensor->scope_place);
        } else {
            link_out(tensor->scope_place);
            link_in(tensor->scope_place, thread_state.scope->outer);
        }
    }
    lock_leave(&scopes_lock);
    return CTRT_OK;
}

ctrt_status ctrt_scope_end(void)
{
    struct scope *scope = thread_state.scope;
    if (scope == NULL || scope->owner != &thread_state)
        return none_open("scope_end");
    end_all(scope);
    thread_state.scope = scope->outer;
    scope_drop(scope);
    return CTRT_OK;
}
