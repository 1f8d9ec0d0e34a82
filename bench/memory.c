/* SPDX-License-Identifier: Apache-2.0 */
/* bench/memory.c: the cost of allocating and freeing a cached block: through tensors, through the policy alone, and for
 * comparison through malloc of the C library and of mimalloc, if mimalloc can be opened. Prints "NAME NANOSECONDS"
 * lines. peers/overhead_torch.cpp prints empty_N for libtorch.
 *
 * CTRT_PLUGIN_PATH: the folder of memory-caching.so. MIMALLOC: path of libmimalloc.so.2. Times are cpu times of the
 * thread (CLOCK_THREAD_CPUTIME_ID), which other programs on the machine disturb less; for 8 threads, their mean. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ctrt/ctrt.h>
#include <ctrt/plugin.h>

#include "check.h"

#define SAMPLES 41
#define BATCH   20000
#define THREADS 8

static double cpu_now(void)                     /* nanoseconds */
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the policy alone, on posix_memalign ---- */

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

static ctrt_status source_alloc(void *state, void **address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    return posix_memalign(address, 4096, bytes) == 0 ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

static void source_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)state, (void)bytes, (void)queue;
    free(address);
}

static const ctrt_memory_source source = { .size = sizeof source, .alloc = source_alloc, .free = source_free,
                                           .device_name = "bench",
                                           .device_flags = CTRT_DEVICE_HOST_MEMORY };

static const ctrt_memory_policy *policy_open(void **state)
{
    const char *folder = getenv("CTRT_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/memory-caching.so", folder != NULL ? folder : ".");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ctrt_plugin_entry entry = NULL;
    if (object != NULL)
        *(void **)&entry = dlsym(object, "ctrt_plugin_v1");
    if (entry == NULL) {
        fprintf(stderr, "memory: %s\n", dlerror());
        return NULL;
    }
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    check(plugin->init(&host));
    const ctrt_memory_policy *policy = plugin->components[0].table;
    check(policy->create(state, &source, ""));
    return policy;
}

/* ---- the measured loops ---- */

struct subject {
    const char *name;
    /* Allocates and frees `bytes`, `count` times. */
    void (*pairs)(const struct subject *self, size_t bytes, long count);
    /* Keeps 32 blocks live; each of `count` steps frees one and allocates one of 1 to 16 times `bytes`. */
    void (*window)(const struct subject *self, size_t bytes, long count);
    const ctrt_memory_policy *policy;
    void *state;
    void *(*take)(size_t bytes);
    void (*give)(void *pointer);
};

#define LIVE 32

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void policy_pairs(const struct subject *self, size_t bytes, long count)
{
    ctrt_block block;
    for (long i = 0; i < count; i++) {
        check(self->policy->alloc(self->state, &block, bytes, NULL));
        self->policy->free(self->state, &block, NULL);
    }
}

static void policy_window(const struct subject *self, size_t bytes, long count)
{
    ctrt_block live[LIVE] = { { 0 } };
    uint32_t seed = 1;
    for (long i = 0; i < count; i++) {
        ctrt_block *at = &live[next_random(&seed) % LIVE];
        if (at->address != NULL)
            self->policy->free(self->state, at, NULL);
        check(self->policy->alloc(self->state, at, bytes * (1 + next_random(&seed) % 16), NULL));
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].address != NULL)
            self->policy->free(self->state, &live[i], NULL);
}

static void malloc_pairs(const struct subject *self, size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        void *volatile pointer = self->take(bytes);
        self->give(pointer);
    }
}

static void malloc_window(const struct subject *self, size_t bytes, long count)
{
    void *live[LIVE] = { 0 };
    uint32_t seed = 1;
    for (long i = 0; i < count; i++) {
        void **at = &live[next_random(&seed) % LIVE];
        self->give(*at);
        *at = self->take(bytes * (1 + next_random(&seed) % 16));
    }
    for (int i = 0; i < LIVE; i++)
        self->give(live[i]);
}

static void tensor_pairs(const struct subject *self, size_t bytes, long count)
{
    ctrt_tensor *tensor = NULL;
    (void)self;
    for (long i = 0; i < count; i++) {
        check(ctrt_empty(&tensor, CTRT_SHAPE((int64_t)bytes), CTRT_U8, NULL));
        ctrt_tensor_release(&tensor);
    }
}

static void tensor_window(const struct subject *self, size_t bytes, long count)
{
    ctrt_tensor *live[LIVE] = { 0 };
    uint32_t seed = 1;
    (void)self;
    for (long i = 0; i < count; i++) {
        ctrt_tensor **at = &live[next_random(&seed) % LIVE];
        ctrt_tensor_release(at);
        check(ctrt_empty(at, CTRT_SHAPE((int64_t)(bytes * (1 + next_random(&seed) % 16))), CTRT_U8, NULL));
    }
    for (int i = 0; i < LIVE; i++)
        ctrt_tensor_release(&live[i]);
}

/* ---- measuring ---- */

struct job {
    const struct subject *subject;
    bool window;
    size_t bytes;
    double nanoseconds;
};

static void *measure(void *argument)
{
    struct job *job = argument;
    void (*body)(const struct subject *, size_t, long) = job->window ? job->subject->window : job->subject->pairs;
    double samples[SAMPLES];
    body(job->subject, job->bytes, BATCH);
    for (int i = 0; i < SAMPLES; i++) {
        const double begin = cpu_now();
        body(job->subject, job->bytes, BATCH);
        samples[i] = (cpu_now() - begin) / BATCH;
    }
    qsort(samples, SAMPLES, sizeof samples[0], compare);
    job->nanoseconds = samples[SAMPLES / 2];
    return NULL;
}

static void report(const struct subject *subject, bool window, size_t bytes, int threads)
{
    struct job jobs[THREADS];
    pthread_t workers[THREADS];
    double sum = 0;
    for (int i = 0; i < threads; i++)
        jobs[i] = (struct job){ subject, window, bytes, 0 };
    if (threads == 1) {
        measure(&jobs[0]);
    } else {
        for (int i = 0; i < threads; i++)
            pthread_create(&workers[i], NULL, measure, &jobs[i]);
        for (int i = 0; i < threads; i++)
            pthread_join(workers[i], NULL);
    }
    for (int i = 0; i < threads; i++)
        sum += jobs[i].nanoseconds;
    printf("%s_%s_%zu_threads_%d %.2f\n", subject->name, window ? "window" : "pair", bytes, threads, sum / threads);
    fflush(stdout);
}

int main(void)
{
    static const size_t sizes[] = { 64, 4096, 262144, 4 << 20 };
    struct subject subjects[4] = {
        { .name = "policy", .pairs = policy_pairs, .window = policy_window },
        { .name = "tensor", .pairs = tensor_pairs, .window = tensor_window },
        { .name = "malloc", .pairs = malloc_pairs, .window = malloc_window, .take = malloc, .give = free },
        { .name = "mimalloc", .pairs = malloc_pairs, .window = malloc_window },
    };
    int count = 3;
    subjects[0].policy = policy_open(&subjects[0].state);
    const char *path = getenv("MIMALLOC");
    void *mimalloc = dlopen(path != NULL ? path : "libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
    if (mimalloc != NULL) {
        *(void **)&subjects[3].take = dlsym(mimalloc, "mi_malloc");
        *(void **)&subjects[3].give = dlsym(mimalloc, "mi_free");
        count += subjects[3].take != NULL && subjects[3].give != NULL;
    } else {
        fprintf(stderr, "memory: mimalloc is not measured (%s)\n", dlerror());
    }
    for (int s = subjects[0].policy != NULL ? 0 : 1; s < count; s++)
        for (int threads = 1; threads <= THREADS; threads += THREADS - 1) {
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                report(&subjects[s], false, sizes[i], threads);
            report(&subjects[s], true, 512, threads);
        }
    if (subjects[0].policy != NULL)
        subjects[0].policy->destroy(subjects[0].state);
    return 0;
}
