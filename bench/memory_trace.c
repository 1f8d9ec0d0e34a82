/* SPDX-License-Identifier: Apache-2.0 */
/* bench/memory_trace.c: memory that training steps reserve under the caching policy, compared with PyTorch's algorithm
 * on the same requests.
 *
 * Each model trains for some steps on the default device, without a cache, while the memory history records every
 * block. The recorded events are then replayed on fake memory: through the policy with several options, and through a
 * plain version of PyTorch's algorithm (tests/unit/caching_reference.h). Prints a line for each: peak of allocated
 * bytes, peak of reserved bytes, and the share of reserved bytes that was not allocated (fragmentation).
 * CTRT_PLUGIN_PATH: the folder of memory-caching.so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#include <ctrt/ctrt.h>
#include <ctrt/plugin.h>

#include "../tests/unit/caching_reference.h"
#include "check.h"

#define MIB ((double)(1 << 20))

/* ---- recording ---- */

struct event {
    uint64_t address;
    size_t bytes;
    bool alloc;
};

struct trace {
    struct event *events;
    size_t count;
};

/* The number that follows the first `"key": ` at or after `at`; 0 if there is none. */
static uint64_t number_of(const char *at, const char *key)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\": ", key);
    const char *found = strstr(at, pattern);
    return found != NULL ? strtoull(found + strlen(pattern), NULL, 10) : 0;
}

/* Reads the allocations and frees of blocks, in order. */
static void read_trace(struct trace *trace, const char *snapshot)
{
    const char *at = strstr(snapshot, "\"device_traces\"");
    if (at == NULL || number_of(snapshot, "events_lost") != 0) {
        fprintf(stderr, "memory_trace: the snapshot's history is incomplete\n");
        exit(1);
    }
    while ((at = strstr(at, "\"action\": \"")) != NULL) {
        at += strlen("\"action\": \"");
        bool alloc = strncmp(at, "alloc\"", 6) == 0;
        if (!alloc && strncmp(at, "free_completed\"", 15) != 0)
            continue;
        if (trace->count % 4096 == 0)
            trace->events = realloc(trace->events, (trace->count + 4096) * sizeof *trace->events);
        trace->events[trace->count++] = (struct event){ number_of(at, "addr"), number_of(at, "size"), alloc };
    }
}

struct recipe {
    const char *name;
    ctrt_module *(*make)(void);
    int64_t shape[4];
    int64_t classes, tokens;                    /* tokens above 0: inputs are token numbers below `tokens` */
};

static void step(const struct recipe *recipe, ctrt_module *model, ctrt_optimizer *optimizer, int64_t batch)
{
    ctrt_tensor *x = NULL, *y = NULL, *h = NULL;
    int ndim = 0;
    int64_t shape[4];
    for (; ndim < 4 && recipe->shape[ndim] > 0; ndim++)
        shape[ndim] = ndim == 0 ? batch : recipe->shape[ndim];
    if (recipe->tokens > 0)
        check(ctrt_randint(&x, 0, recipe->tokens, ctrt_ints_of(shape, ndim), CTRT_I64, NULL));
    else
        check(ctrt_randn(&x, ctrt_ints_of(shape, ndim), CTRT_F32, NULL));
    check(ctrt_randint(&y, 0, recipe->classes, CTRT_SHAPE(batch), CTRT_I64, NULL));
    check(ctrt_forward(&h, model, x));
    check(ctrt_cross_entropy(&h, h, y, NULL));
    check(ctrt_optimizer_zero_grad(optimizer, true));
    check(ctrt_backward(h));
    check(ctrt_optimizer_step(optimizer));
    ctrt_tensor_release(&h);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
}

/* Batches have two sizes, because steps of one size are easy for every cache. */
static void record(struct trace *trace, const struct recipe *recipe)
{
    char *snapshot = NULL;
    *trace = (struct trace){ 0 };
    check(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, 1 << 20));
    ctrt_module *model = recipe->make();
    ctrt_optimizer *optimizer = NULL;
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 1e-3;
    check(ctrt_adamw_new(&optimizer, model, &adamw));
    for (int i = 0; i < 6; i++)
        step(recipe, model, optimizer, i % 3 == 1 ? recipe->shape[0] * 5 / 8 : recipe->shape[0]);
    check(ctrt_memory_snapshot(&snapshot, NULL));
    read_trace(trace, snapshot);
    free(snapshot);
    ctrt_optimizer_release(&optimizer);
    ctrt_module_release(&model);
    check(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_NONE, 0));
}

/* ---- replaying ---- */

struct paper {                                  /* fake device memory: unique addresses, never accessed */
    uintptr_t next;
    uint64_t used, peak;
};

static void paper_count(struct paper *paper, int64_t bytes)
{
    paper->used += (uint64_t)bytes;
    if (paper->used > paper->peak)
        paper->peak = paper->used;
}

static ctrt_status paper_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct paper *paper = state;
    (void)queue;
    *address = (void *)paper->next;
    paper->next += (bytes + 0x1fffff) & ~(size_t)0x1fffff;
    paper_count(paper, (int64_t)bytes);
    return CTRT_OK;
}

static void paper_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)address, (void)queue;
    paper_count(state, -(int64_t)bytes);
}

static ctrt_status paper_reserve(void *state, void **address, size_t bytes)
{
    struct paper *paper = state;
    *address = (void *)paper->next;
    paper->next += bytes;
    return CTRT_OK;
}

static void paper_unreserve(void *state, void *address, size_t bytes)
{
    (void)state, (void)address, (void)bytes;
}

static ctrt_status paper_map(void *state, void *address, size_t bytes)
{
    (void)address;
    paper_count(state, (int64_t)bytes);
    return CTRT_OK;
}

static void paper_unmap(void *state, void *address, size_t bytes)
{
    (void)address;
    paper_count(state, -(int64_t)bytes);
}

static ctrt_memory_source paper_source(struct paper *paper)
{
    *paper = (struct paper){ .next = (uintptr_t)1 << 40 };
    return (ctrt_memory_source){ .size = sizeof(ctrt_memory_source), .state = paper, .alloc = paper_alloc,
                                 .free = paper_free,
                                 .device_name = "paper", .total_bytes = (uint64_t)64 << 30, .page_bytes = 2 << 20,
                                 .reserve = paper_reserve, .unreserve = paper_unreserve, .map = paper_map,
                                 .unmap = paper_unmap };
}

static CTRT_PRINTF(2, 3) ctrt_status host_fail(ctrt_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    return status;
}

static CTRT_PRINTF(3, 4) void host_log(ctrt_log_level level, const char *component, const char *format, ...)
{
    (void)level, (void)component, (void)format;
}

static const ctrt_host host = { .size = sizeof(ctrt_host), .abi_major = CTRT_PLUGIN_ABI_MAJOR, .fail = host_fail,
                                .log = host_log,
                                .alloc = malloc, .free = free };

static const ctrt_memory_policy *policy_open(void)
{
    const char *folder = getenv("CTRT_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/memory-caching.so", folder != NULL ? folder : ".");
    /* A second copy of the plugin, because the library may have loaded it with another host table. */
    void *object = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
    ctrt_plugin_entry entry = NULL;
    if (object != NULL)
        *(void **)&entry = dlsym(object, "ctrt_plugin_v1");
    if (entry == NULL) {
        fprintf(stderr, "memory_trace: %s\n", dlerror());
        exit(1);
    }
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    check(plugin->init(&host));
    return plugin->components[0].table;
}

struct held {                                   /* a live block; hash table keyed by the recorded address */
    uint64_t address;
    ctrt_block block;
    struct ref_block *twin;
};

static struct held *find(struct held *held, size_t room, uint64_t address)
{
    size_t i = (size_t)(address * 0x9e3779b97f4a7c15u >> 30) & (room - 1);
    while (held[i].address != 0 && held[i].address != address)
        i = (i + 1) & (room - 1);
    return &held[i];
}

static void print(const char *model, const char *how, uint64_t allocated, uint64_t reserved)
{
    printf("%-28s %-34s %12.2f %12.2f %8.1f %%\n", model, how, (double)allocated / MIB, (double)reserved / MIB,
           100 - 100 * (double)allocated / (double)reserved);
}

/* options NULL: PyTorch's algorithm. Frees of blocks allocated before the recording are ignored. */
static void replay(const struct trace *trace, const char *model, const char *how, const ctrt_memory_policy *policy,
                   const char *options)
{
    size_t room = 1 << 20;
    struct held *held = calloc(room, sizeof *held);
    struct paper paper;
    ctrt_memory_source source = paper_source(&paper);
    struct ref ref;
    void *state = NULL;
    uint64_t allocated = 0, peak = 0;
    ref_init(&ref, &source);
    if (options != NULL)
        check(policy->create(&state, &source, options));
    for (size_t i = 0; i < trace->count; i++) {
        const struct event *event = &trace->events[i];
        struct held *at = find(held, room, event->address);
        at->address = event->address;
        if (event->alloc && options != NULL) {
            check(policy->alloc(state, &at->block, event->bytes, NULL));
            allocated += at->block.bytes;
        } else if (event->alloc) {
            at->twin = ref_alloc(&ref, event->bytes, NULL);
            allocated += at->twin->bytes;
        } else if (at->block.address != NULL) {
            allocated -= at->block.bytes;
            policy->free(state, &at->block, NULL);
            at->block.address = NULL;
        } else if (at->twin != NULL) {
            allocated -= at->twin->bytes;
            ref_free(&ref, at->twin);
            at->twin = NULL;
        }
        if (allocated > peak)
            peak = allocated;
    }
    print(model, how, peak, paper.peak);
    for (size_t i = 0; i < room; i++)
        if (held[i].block.address != NULL)
            policy->free(state, &held[i].block, NULL);
        else if (held[i].twin != NULL)
            ref_free(&ref, held[i].twin);
    if (options != NULL)
        policy->destroy(state);
    else
        ref_trim(&ref);
    free(held);
}

/* ---- the models ---- */

#define MODEL(name, ...)                                        \
    static ctrt_module *name(void)                              \
    {                                                           \
        ctrt_multihead_attention_options causal = CTRT_MULTIHEAD_ATTENTION_OPTIONS; \
        ctrt_module *model = NULL;                              \
        causal.dropout = 0.1, causal.causal = true;             \
        check(ctrt_sequential_new(&model, CTRT_MODULES(__VA_ARGS__))); \
        return model;                                           \
    }

#define SAME &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 })
#define HALF &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })
#define BLOCK CTRT_NEW(layer_norm, CTRT_SHAPE(128), NULL, NULL),                                     \
              CTRT_NEW(multihead_attention, 128, 4, &causal, NULL),                             \
              CTRT_NEW(linear, 128, 512, true, NULL), CTRT_NEW(gelu, true), CTRT_NEW(linear, 512, 128, true, NULL)

MODEL(mlp, CTRT_NEW(linear, 784, 1024, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, 1024, 1024, true, NULL),
      CTRT_NEW(relu),
      CTRT_NEW(linear, 1024, 10, true, NULL))
MODEL(cnn, CTRT_NEW(conv2d, 3, 32, 3, 3, SAME, false, NULL), CTRT_NEW(batch_norm2d, 32, NULL, NULL),
      CTRT_NEW(relu),
      CTRT_NEW(max_pool2d, HALF), CTRT_NEW(conv2d, 32, 64, 3, 3, SAME, true, NULL), CTRT_NEW(relu),
          CTRT_NEW(max_pool2d, HALF),
      CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 64 * 64, 10, true, NULL))
MODEL(transformer, CTRT_NEW(embedding, 1000, 128, NULL, NULL), BLOCK, BLOCK,
      CTRT_NEW(layer_norm, CTRT_SHAPE(128), NULL, NULL),
      CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 64 * 128, 10, true, NULL))

int main(void)
{
    static const struct recipe recipes[] = {
        { "mlp 784-1024-1024-10, 256", mlp, { 256, 784 }, 10, 0 },
        { "cnn 32-64, 32x32, 256", cnn, { 256, 3, 32, 32 }, 10, 0 },
        { "transformer 2x128, 64, 64", transformer, { 64, 64 }, 10, 1000 },
    };
    static const struct { const char *how, *options; } settings[] = {
        { "PyTorch's algorithm", NULL },
        { "caching", "" },
        { "caching:expandable=true", "expandable=true" },
        { "caching:roundup=8", "roundup=8" },
    };
    const ctrt_memory_policy *policy = policy_open();
    setenv("CTRT_MEMORY", "direct", 1);         /* records the requested sizes, rounded up by less than 64 bytes */
    printf("%-28s %-34s %12s %12s %10s\n", "six steps", "", "alloc., MiB", "reserved", "unused");
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        struct trace trace;
        record(&trace, &recipes[i]);
        for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++)
            replay(&trace, recipes[i].name, settings[k].how, policy, settings[k].options);
        printf("%-28s %zu events\n", recipes[i].name, trace.count);
        free(trace.events);
    }
    return 0;
}
