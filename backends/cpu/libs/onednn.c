/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/onednn.c: oneDNN: opening the library, and the per-thread primitive cache. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "onednn.h"

#ifdef HAVE_ONEDNN

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "onednn_api.h"
#include "openmp.h"
#include "host/scratch.h"
#include "plugins/common/fork.h"

/* ---- the library ---- */

static struct onednn library;
enum library_state { UNDECIDED, USABLE, UNUSABLE };
static _Atomic enum library_state state;      /* set once, with `opening` locked */
FORK_MUTEX(opening)                           /* the child opens the library again if `state` is undecided */

/* oneDNN ends the process if memory runs out while it initialises, creates a primitive, or executes one for the first
 * time (an uncaught C++ exception; generated code written to a failed mapping). Therefore do each of these only if this
 * much memory can be allocated. */
#define MEMORY_TO_CREATE ((size_t)64 << 20)
/* Memory that must be available before a primitive is executed again, which allocates a few hundred bytes. The value is
 * below malloc's mmap and trim thresholds, so that the check needs no system call. */
#define MEMORY_TO_RUN  ((size_t)32 << 10)

static bool memory_to_run(void)
{
    void *block = malloc(MEMORY_TO_RUN);
    __asm__ volatile("" : "+r"(block));          /* keeps the compiler from removing malloc and free */
    free(block);
    return block != NULL;
}

static bool memory_to_create(void)
{
    void *block = mmap(NULL, MEMORY_TO_CREATE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return false;
    munmap(block, MEMORY_TO_CREATE);
    return memory_to_run();
}

static bool transient(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO || error == EINTR || error == EAGAIN;
}

/* Returns UNDECIDED, with an empty `text`, after a possibly temporary failure; otherwise `text` is a message to log. */
static enum library_state onednn_open_library(char *text, size_t bytes)
{
    if (!memory_to_create())
        return UNDECIDED;
    errno = 0;
    /* RTLD_LOCAL, so that symbols are not mixed with another copy in the process (PyTorch's). Never closed, because the
     * library's threads can outlive the plugin's use of it. */
    void *object = dlopen(CTRT_ONEDNN_SONAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!object && transient(errno))
        return UNDECIDED;
    if (!object) {
        snprintf(text, bytes, "%s", dlerror());
        return UNUSABLE;
    }
    const dnnl_version_t *(*version)(void) = NULL;
    *(void **)&version = dlsym(object, "dnnl_version");
    if (!version || version()->major != CTRT_ONEDNN_MAJOR) {
        snprintf(text, bytes, "%s has version %d, this build supports %d", CTRT_ONEDNN_SONAME,
                 version ? version()->major : 0, CTRT_ONEDNN_MAJOR);
        return UNUSABLE;
    }
    /* Another thread pool would compete with the backend's for the processors. */
    if (version()->cpu_runtime != DNNL_RUNTIME_OMP && version()->cpu_runtime != DNNL_RUNTIME_SEQ) {
        snprintf(text, bytes, "%s has its own thread pool", CTRT_ONEDNN_SONAME);
        return UNUSABLE;
    }
    const char *missing = NULL;
#define F(name)                                                                                                   \
    if (!(*(void **)&library.name = dlsym(object, #name)) && !missing)                                            \
        missing = #name;
    ONEDNN_COMMON(F) ONEDNN_OWN(F)
#undef F
    const dnnl_status_t made = missing ? dnnl_unimplemented : library.dnnl_engine_create(&library.engine, dnnl_cpu, 0);
    if (made == dnnl_out_of_memory)
        return UNDECIDED;
    if (made == dnnl_success)
        cpu_openmp_adopt(object, library.dnnl_engine_create);
    else {
        snprintf(text, bytes, "%s lacks %s", CTRT_ONEDNN_SONAME, missing ? missing : "an engine for this processor");
        return UNUSABLE;
    }
    snprintf(text, bytes, "oneDNN %d.%d.%d is %s", version()->major, version()->minor, version()->patch,
             CTRT_ONEDNN_SONAME);
    return USABLE;
}

/* Logs without holding the lock, because the program's log callback may compute matrix products. */
static void decide(void)
{
    char text[512] = "";
    pthread_mutex_lock(&opening);
    if (state == UNDECIDED)
        state = onednn_open_library(text, sizeof text);
    pthread_mutex_unlock(&opening);
    if (text[0] && state == USABLE)
        cpu_host->log(CTRT_LOG_DEBUG, "backend-cpu", "%s", text);
    else if (text[0])
        cpu_host->log(CTRT_LOG_INFO, "backend-cpu", "products and convolutions without oneDNN: %s", text);
}

const struct onednn *cpu_onednn(void)
{
    if (state == UNDECIDED)
        decide();
    return state == USABLE ? &library : NULL;
}

/* ---- memory descriptors ---- */

dnnl_status_t onednn_strided(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type,
                             const int64_t *strides)
{
    dnnl_dims_t d, s;
    for (int i = 0; i < ndims; i++)
        d[i] = dims[i], s[i] = strides[i];
#if CTRT_ONEDNN_MAJOR == 2
    return library.dnnl_memory_desc_init_by_strides(desc, ndims, d, type, s);
#else
    return library.dnnl_memory_desc_create_with_strides(desc, ndims, d, type, s);
#endif
}

dnnl_status_t onednn_tagged(onednn_desc *desc, int ndims, const int64_t *dims, dnnl_data_type_t type,
                            dnnl_format_tag_t tag)
{
    dnnl_dims_t d;
    for (int i = 0; i < ndims; i++)
        d[i] = dims[i];
#if CTRT_ONEDNN_MAJOR == 2
    return library.dnnl_memory_desc_init_by_tag(desc, ndims, d, type, tag);
#else
    return library.dnnl_memory_desc_create_with_tag(desc, ndims, d, type, tag);
#endif
}

void onednn_drop(onednn_desc *desc, bool made)
{
#if CTRT_ONEDNN_MAJOR == 2
    (void)desc, (void)made;
#else
    if (made)
        library.dnnl_memory_desc_destroy(*desc);
#endif
}

/* ---- primitive cache ----
 *
 * The cache is a hash table of fixed size with open addressing. If all NEIGHBOURS entries are used, the least recently
 * used one is replaced. */

enum { ENTRIES = 256, NEIGHBOURS = 8 };

struct cache {
    dnnl_stream_t stream;
    uint64_t clock;
    struct onednn_entry entries[ENTRIES];
};

static __thread struct cache *mine;
static pthread_key_t at_exit;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool have_key;

static void clear(struct onednn_entry *e)
{
    for (int i = 0; i < e->count; i++) {
        struct onednn_operand *o = &e->operands[i];
        if (o->reorder)
            library.dnnl_primitive_destroy(o->reorder);
        if (o->memory && o->memory != o->user)
            library.dnnl_memory_destroy(o->memory);
        if (o->user)
            library.dnnl_memory_destroy(o->user);
    }
    if (e->scratchpad)
        library.dnnl_memory_destroy(e->scratchpad);
    if (e->primitive)
        library.dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
}

static void drop_cache(void *of_thread)
{
    struct cache *cache = of_thread;
    mine = NULL;
    for (int i = 0; i < ENTRIES; i++)
        if (cache->entries[i].used)
            clear(&cache->entries[i]);
    library.dnnl_stream_destroy(cache->stream);
    cpu_host->free(cache);
}

static void make_key(void)
{
    have_key = pthread_key_create(&at_exit, drop_cache) == 0;
}

static struct cache *cache_of_thread(void)
{
    if (mine)
        return mine;
    pthread_once(&key_once, make_key);
    struct cache *cache = have_key && memory_to_run() ? cpu_host->alloc(sizeof *cache) : NULL;
    if (!cache)
        return NULL;
    memset(cache, 0, sizeof *cache);
    if (library.dnnl_stream_create(&cache->stream, library.engine, dnnl_stream_default_flags) != dnnl_success
        || pthread_setspecific(at_exit, cache) != 0) {
        if (cache->stream)
            library.dnnl_stream_destroy(cache->stream);
        cpu_host->free(cache);
        return NULL;
    }
    return mine = cache;
}

static uint64_t hash(const struct onednn_key *key)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < ONEDNN_KEY; i++) {
        h = (h ^ (uint64_t)key->words[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

struct onednn_entry *onednn_find(const struct onednn_key *key, bool *fresh)
{
    struct cache *cache = cache_of_thread();
    if (!cache)
        return NULL;
    const uint64_t start = hash(key);
    struct onednn_entry *place = NULL;
    for (int i = 0; i < NEIGHBOURS; i++) {
        struct onednn_entry *e = &cache->entries[(start + (uint64_t)i) % ENTRIES];
        if (e->used && memcmp(&e->key, key, sizeof *key) == 0) {
            e->last_use = ++cache->clock;
            *fresh = false;
            return e;
        }
        if (!place || (place->used && (!e->used || e->last_use < place->last_use)))
            place = e;
    }
    if (!memory_to_create())
        return NULL;
    if (place->used)
        clear(place);
    place->key = *key;
    place->used = true;
    place->last_use = ++cache->clock;
    *fresh = true;
    return place;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Describes the copy if `wanted` is a blocked layout that blocked.c supports. */
static struct cpu_blocked blocked_of(const struct onednn_images *images, bool output, onednn_desc_ref wanted)
{
    static const struct { int64_t block; dnnl_format_tag_t tag; } layouts[] = {
        { 16, dnnl_nChw16c }, { 8, dnnl_nChw8c }
    };
    struct cpu_blocked b = { .block = 0 };
    if (!images || !images->dims || images->from == dnnl_f32
        || (images->to != images->from && (images->from != dnnl_bf16 || output)))
        return b;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0] && b.block == 0; i++) {
        onednn_desc desc;
        if (onednn_tagged(&desc, 4, images->dims, images->to, layouts[i].tag) != dnnl_success)
            continue;
        if (library.dnnl_memory_desc_equal(ONEDNN_REF(desc), wanted))
            b = (struct cpu_blocked){ images->dims[0], images->dims[1], images->dims[2] * images->dims[3],
                                      layouts[i].block, images->to != images->from };
        onednn_drop(&desc, true);
    }
    return b;
}

/* Adds one operand: the tensor's memory and, if the layouts differ, a copy and the reorder primitive. */
static bool add_operand(struct onednn_entry *e, int argument, bool output, onednn_desc_ref user,
                        onednn_desc_ref wanted, const struct onednn_images *images)
{
    struct onednn_operand *o = &e->operands[e->count++];
    o->argument = argument;
    o->output = output;
    if (!onednn_succeeded(e, library.dnnl_memory_create(&o->user, user, library.engine, DNNL_MEMORY_NONE)))
        return false;
    o->memory = o->user;
    if (library.dnnl_memory_desc_equal(user, wanted))
        return true;
    o->memory = NULL;
    if (!onednn_succeeded(e, library.dnnl_memory_create(&o->memory, wanted, library.engine, DNNL_MEMORY_NONE)))
        return false;
    o->offset = e->scratch_bytes;
    e->scratch_bytes += aligned(library.dnnl_memory_desc_get_size(wanted));
    o->blocked = blocked_of(images, output, wanted);
    if (o->blocked.block != 0)
        return true;
    dnnl_primitive_desc_t pd = NULL;
    if (!onednn_succeeded(e, library.dnnl_reorder_primitive_desc_create(
                                 &pd, output ? wanted : user, library.engine, output ? user : wanted, library.engine,
                                 NULL)))
        return false;
    const bool made = onednn_succeeded(e, library.dnnl_primitive_create(&o->reorder, pd));
    library.dnnl_primitive_desc_destroy(pd);
    return made;
}

void onednn_fill(struct onednn_entry *e, dnnl_primitive_desc_t pd, int count, const int *arguments,
                 const bool *outputs, const onednn_desc_ref *users, const dnnl_query_t *queries,
                 const int *indices, const struct onednn_images *images)
{
    const char *how = NULL;
    bool good = library.dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &how) == dnnl_success
                /* reference implementations are slower than the built-in product */
                && how && strncmp(how, "ref", 3) != 0;
    onednn_desc_ref pad = library.dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const size_t pad_bytes = pad ? library.dnnl_memory_desc_get_size(pad) : 0;
    if (good && pad_bytes) {
        good = onednn_succeeded(e, library.dnnl_memory_create(&e->scratchpad, pad, library.engine, DNNL_MEMORY_NONE));
        e->scratch_bytes = aligned(pad_bytes);
    }
    for (int i = 0; i < count && good; i++)
        good = add_operand(e, arguments[i], outputs[i], users[i],
                           library.dnnl_primitive_desc_query_md(pd, queries[i], indices[i]),
                           images ? &images[i] : NULL);
    if (good && !onednn_succeeded(e, library.dnnl_primitive_create(&e->primitive, pd)))
        e->primitive = NULL;
    library.dnnl_primitive_desc_destroy(pd);
}

void onednn_settle(struct onednn_entry *e)
{
    if (e->primitive)
        return;
    const struct onednn_key key = e->key;
    const uint64_t last_use = e->last_use;
    const bool declined = !e->no_memory;
    clear(e);
    if (declined)
        e->key = key, e->used = true, e->last_use = last_use;
}

/* Copies the tensor at `address` to `copy`, or back if it is an output. */
static bool move(struct cache *cache, const struct onednn_operand *o, void *address, void *copy)
{
    if (o->blocked.block != 0) {
        if (o->output)
            cpu_blocked_to_images(&o->blocked, address, copy);
        else
            cpu_blocked_from_images(&o->blocked, copy, address);
        return true;
    }
    const dnnl_exec_arg_t arguments[2] = { { DNNL_ARG_FROM, o->output ? o->memory : o->user },
                                           { DNNL_ARG_TO, o->output ? o->user : o->memory } };
    return library.dnnl_primitive_execute(o->reorder, cache->stream, 2, arguments) == dnnl_success;
}

bool onednn_run(struct onednn_entry *e, void *const *addresses)
{
    struct cache *cache = mine;
    char *scratch = NULL;
    if (!(e->has_run ? memory_to_run() : memory_to_create()))
        return false;
    if (e->scratch_bytes && !(scratch = cpu_scratch(SCRATCH_LIBRARY, e->scratch_bytes)))
        return false;
    dnnl_exec_arg_t arguments[ONEDNN_OPERANDS + 1];
    bool good = true;
    cpu_openmp_enter();
    for (int i = 0; i < e->count && good; i++) {
        struct onednn_operand *o = &e->operands[i];
        good = library.dnnl_memory_set_data_handle(o->user, addresses[i]) == dnnl_success;
        if (good && o->memory != o->user) {
            good = library.dnnl_memory_set_data_handle(o->memory, scratch + o->offset) == dnnl_success;
            if (good && !o->output)
                good = move(cache, o, addresses[i], scratch + o->offset);
        }
        arguments[i].arg = o->argument;
        arguments[i].memory = o->memory;
    }
    int count = e->count;
    if (good && e->scratchpad) {
        good = library.dnnl_memory_set_data_handle(e->scratchpad, scratch) == dnnl_success;
        arguments[count].arg = DNNL_ARG_SCRATCHPAD;
        arguments[count++].memory = e->scratchpad;
    }
    good = good && library.dnnl_primitive_execute(e->primitive, cache->stream, count, arguments) == dnnl_success;
    for (int i = 0; i < e->count && good; i++) {
        const struct onednn_operand *o = &e->operands[i];
        if (o->memory != o->user && o->output)
            good = move(cache, o, addresses[i], scratch + o->offset);
    }
    cpu_openmp_leave();
    e->has_run |= good;
    return good;
}

#else

bool cpu_onednn_product(const struct cpu_product *p)
{
    (void)p;
    return false;
}

bool cpu_onednn_conv(const struct cpu_conv *conv)
{
    (void)conv;
    return false;
}

#endif
