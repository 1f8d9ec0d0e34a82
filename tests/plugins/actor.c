/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/actor.c: a shared object that acts as many plugins, valid and defective. The name of its file selects
 * which.
 *
 * Tests copy it as backend-fake.so (a correct backend with three devices), backend-small-size.so, backend-null-slot.so
 * and so on; the table at the end lists the roles. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/plugin.h"

static const ctrt_host *host;
static char own_name[64];               /* "fake" of backend-fake.so */

/* ---- a correct backend: CTRT_FAKE_DEVICES devices of CTRT_FAKE_MEMORY bytes each ---- */

static const ctrt_param devices_param = {
    sizeof devices_param,
    "CTRT_FAKE_DEVICES",
    CTRT_PARAM_INT,
    "3",
    NULL,
    "how many devices the fake backend has",
};
static const ctrt_param memory_param = {
    sizeof memory_param, "CTRT_FAKE_MEMORY", CTRT_PARAM_BYTES, "64m", NULL, "memory of each fake device",
};
static const ctrt_param flags_param = {
    sizeof flags_param,
    "CTRT_FAKE_HOST",
    CTRT_PARAM_BOOL,
    "0",
    NULL,
    "the host can read the memory of fake devices",
};
static const ctrt_param broken_param = {
    sizeof broken_param,
    "CTRT_FAKE_BROKEN",
    CTRT_PARAM_INT,
    "-1",
    NULL,
    "index of the fake device that does not open",
};

static int64_t device_count, device_memory, broken_device;
static bool host_readable;

struct device {
    int32_t index;
    _Atomic int64_t used;
};

static ctrt_status count(int32_t *out)
{
    *out = (int32_t)device_count;
    return CTRT_OK;
}

static ctrt_status describe(int32_t index, ctrt_device_info *info)
{
    static const char *const uuids[] = { "GPU-0a11c0de", "GPU-0a22beef", "GPU-1b33cafe", "GPU-1b33cafe-2" };
    snprintf(info->name, sizeof info->name, "fake device %d of %s", index, own_name);
    snprintf(info->uuid, sizeof info->uuid, "%s", uuids[index % 4]);
    snprintf(info->pci, sizeof info->pci, "0000:%02x:00.0", index);
    info->total_memory = (uint64_t)device_memory;
    info->compute_major = 9, info->compute_minor = 0;
    info->processors = 10 + index;
    info->clock_khz = 1000000;
    info->numa_node = -1;
    info->ecc = 1;
    info->flags = host_readable ? CTRT_DEVICE_HOST_MEMORY : 0;
    return CTRT_OK;
}

static ctrt_status open_device(void **out, int32_t index)
{
    if (index == broken_device)
        return host->fail(CTRT_ERR_BACKEND, "fake device %d is lost", index);
    struct device *device = host->alloc(sizeof *device);
    if (device == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a fake device");
    device->index = index;
    atomic_init(&device->used, 0);
    *out = device;
    return CTRT_OK;
}

static void close_device(void *device)
{
    host->free(device);
}

static ctrt_status memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    *total_bytes = (uint64_t)device_memory;
    *free_bytes = (uint64_t)(device_memory - atomic_load(&((struct device *)device)->used));
    return CTRT_OK;
}

static ctrt_status allocate(void *device, void **address, size_t bytes)
{
    struct device *self = device;
    if (bytes > (size_t)device_memory)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "fake device %d never had %zu bytes", self->index, bytes);
    if (atomic_fetch_add(&self->used, (int64_t)bytes) + (int64_t)bytes > device_memory
        || (*address = aligned_alloc(64, (bytes + 63) / 64 * 64)) == NULL) {
        atomic_fetch_sub(&self->used, (int64_t)bytes);
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "fake device %d has no %zu bytes left", self->index, bytes);
    }
    return CTRT_OK;
}

static void release(void *device, void *address, size_t bytes)
{
    atomic_fetch_sub(&((struct device *)device)->used, (int64_t)bytes);
    free(address);
}

static ctrt_status copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    (void)device, (void)queue, (void)kind;
    memcpy(to, from, bytes);
    return CTRT_OK;
}

static ctrt_status fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device, (void)queue;
    memset(address, byte, bytes);
    return CTRT_OK;
}

static ctrt_status run(const ctrt_call *call)
{
    (void)call;
    return CTRT_OK;
}

static ctrt_device_table device_table = {
    .size = sizeof device_table,
    .count = count,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .memory_info = memory_info,
};
static ctrt_memory_table memory_table = {
    .size = sizeof memory_table, .alloc = allocate, .free = release, .copy = copy, .fill = fill,
};
static ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "neg", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = run },
    { .size = sizeof(ctrt_kernel), .op = "abs", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = run },
};
static ctrt_kernel_table kernel_table
    = { .size = sizeof kernel_table, .kernels = kernels, .count = 2, .stride = sizeof kernels[0] };
static ctrt_backend backend = {
    .size = sizeof backend,
    .device = &device_table,
    .memory = &memory_table,
    .kernels = &kernel_table,
    .default_memory = "caching",
};
static ctrt_kernels overlay = { .size = sizeof overlay, .kernels = &kernel_table };

/* A memory policy that only fails, for the roles with defective policies. */
static ctrt_status policy_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    (void)policy, (void)source, (void)options;
    return host->fail(CTRT_ERR_NOT_SUPPORTED, "this policy cannot be created");
}

static void policy_destroy(void *policy)
{
    (void)policy;
}

static ctrt_status policy_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    (void)policy, (void)block, (void)bytes, (void)queue;
    return CTRT_ERR_NOT_SUPPORTED;
}

static void policy_free(void *policy, const ctrt_block *block, void *queue)
{
    (void)policy, (void)block, (void)queue;
}

static ctrt_memory_policy policy = {
    .size = sizeof policy,
    .create = policy_create,
    .destroy = policy_destroy,
    .alloc = policy_alloc,
    .free = policy_free,
};

static ctrt_status init(const ctrt_host *given)
{
    ctrt_param_value value;
    host = given;
    ctrt_status status = host->param(&value, &devices_param);
    device_count = value.integer;
    if (!status)
        status = host->param(&value, &memory_param);
    device_memory = value.integer;
    if (!status)
        status = host->param(&value, &flags_param);
    host_readable = value.integer;
    if (!status)
        status = host->param(&value, &broken_param);
    broken_device = value.integer;
    return status;
}

static ctrt_component components[2] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .name = own_name, .table = &backend },
};
static ctrt_plugin plugin = {
    .size = sizeof plugin,
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "actor",
    .version = "1",
    .description = "a plugin for tests",
    .components = components,
    .component_count = 1,
    .component_stride = sizeof components[0],
    .init = init,
};

/* ---- roles ---- */

static ctrt_status init_fails(const ctrt_host *given)
{
    return given->fail(CTRT_ERR_BACKEND, "the driver is from another century");
}

static ctrt_status init_fails_silently(const ctrt_host *given)
{
    (void)given;
    return CTRT_ERR_BACKEND;
}

static ctrt_status init_looks_up_itself(const ctrt_host *given)
{
    if (given->backend(own_name) != NULL)
        return CTRT_OK;
    return given->fail(CTRT_ERR_STATE, "looked up itself and got nothing");
}

static void *use_host(void *status)
{
    ctrt_param_value value;
    void *memory = host->alloc(16);
    host->free(memory);
    *(ctrt_status *)status = host->param(&value, &devices_param);
    if (host->backend("fake") == NULL || host->backend(own_name) != NULL)
        *(ctrt_status *)status = CTRT_ERR_STATE;
    return NULL;
}

/* A thread that init starts uses the host: it can look up another backend, but not the one that is being
 * initialised. */
static ctrt_status init_in_thread(const ctrt_host *given)
{
    ctrt_status status = init(given);
    pthread_t thread;
    if (status == CTRT_OK && pthread_create(&thread, NULL, use_host, &status) == 0)
        pthread_join(thread, NULL);
    return status == CTRT_OK ? CTRT_OK : given->fail(CTRT_ERR_STATE, "the thread of init failed");
}

/* Two plugins whose init functions look up each other. */
static ctrt_status init_looks_up_other(const ctrt_host *given)
{
    const bool found = given->backend(strcmp(own_name, "init-ping") == 0 ? "init-pong" : "init-ping") != NULL;
    const ctrt_status status = init(given);
    return found ? status : given->fail(CTRT_ERR_STATE, "the other is not there");
}

static ctrt_status init_short(const ctrt_host *given)
{
    static int calls;
    return calls++ == 0 ? given->fail(CTRT_ERR_IO, "no descriptor is left") : init(given);
}

static ctrt_status count_fails(int32_t *out)
{
    (void)out;
    return host->fail(CTRT_ERR_BACKEND, "cannot count");
}

static ctrt_status allocate_nothing(void *device, void **address, size_t bytes)
{
    (void)device, (void)bytes;
    *address = NULL;
    return CTRT_OK;
}

static ctrt_status hollow_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    (void)source, (void)options;
    *policy = &overlay;
    return CTRT_OK;
}

static ctrt_status hollow_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    (void)policy, (void)block, (void)bytes, (void)queue;
    return CTRT_OK;
}

/* Declares a parameter that another plugin declares with another type. */
static ctrt_status init_thief(const ctrt_host *given)
{
    static const ctrt_param stolen = {
        sizeof stolen, "CTRT_FAKE_DEVICES", CTRT_PARAM_ENUM, "few", "few|many", "what the fake backend has",
    };
    ctrt_param_value value;
    const ctrt_status status = given->param(&value, &stolen);
    if (status == CTRT_OK && (value.integer != 0 || strcmp(value.text, "few") != 0))
        return given->fail(CTRT_ERR_STATE, "few is \"%s\"", value.text);
    return status == CTRT_OK ? init(given) : status;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static ctrt_status init_slow(const ctrt_host *given)
{
    pause_ms(2);
    return init(given);
}

/* Forks after 100 ms, while another init function waits for this one, or before it does. */
static ctrt_status init_forks(const ctrt_host *given)
{
    int status = 0;
    pause_ms(100);
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return given->fail(CTRT_ERR_STATE, "the fork failed");
    return init(given);
}

static void *fork_once(void *status)
{
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, status, 0);
    return NULL;
}

/* A thread that init starts forks, and init waits for the thread. */
static ctrt_status init_thread_forks(const ctrt_host *given)
{
    int status = 1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, fork_once, &status) == 0)
        pthread_join(thread, NULL);
    return status == 0 ? init(given) : given->fail(CTRT_ERR_STATE, "the fork failed");
}

/* Looks up init-forks before or after init-forks has forked. */
static ctrt_status init_needs_fork(const ctrt_host *given)
{
    pause_ms(strcmp(own_name, "needs-fork") == 0 ? 20 : 300);
    const bool found = given->backend("init-forks") != NULL;
    const ctrt_status status = init(given);
    return found ? status : given->fail(CTRT_ERR_STATE, "init-forks is not there");
}

static int32_t probe_later(char *reason, size_t bytes)
{
    static int calls;
    if (calls++ > 0)
        return 1;
    snprintf(reason, bytes, "no descriptor is left to look");
    return CTRT_PROBE_AGAIN;
}

static int32_t probe_no(char *reason, size_t bytes)
{
    snprintf(reason, bytes, "no device node /dev/actor0");
    return 0;
}

static int32_t probe_no_words(char *reason, size_t bytes)
{
    (void)reason, (void)bytes;
    return -3;
}

static int32_t probe_better(char *reason, size_t bytes)
{
    snprintf(reason, bytes, "%s", "");
    return 200;
}

static int32_t probe_long(char *reason, size_t bytes)
{
    memset(reason, 'x', bytes);                 /* not terminated */
    return 1;
}

/* A component of a later minor version, with an added member. */
static struct { ctrt_component known; void *added; } grown[2];

static void play_grown(void)
{
    for (int i = 0; i < 2; i++) {
        grown[i].known = components[0];
        grown[i].known.size = sizeof grown[0];
    }
    grown[1].known.name = "grown-too";
    plugin.abi_minor = 7;
    plugin.components = &grown[0].known;
    plugin.component_count = 2;
    plugin.component_stride = sizeof grown[0];
}

static void play_null(void)             { }     /* ctrt_plugin_v1 handles this role */
static void play_small_size(void)       { plugin.size = 8; }
static void play_large_size(void)       { plugin.size = (size_t)1 << 40; }
static void play_cut_size(void)         { plugin.size = offsetof(ctrt_plugin, components); }
static void play_major(void)            { plugin.abi_major = 2; }
static void play_no_name(void)          { plugin.name = NULL; }
static void play_no_components(void)    { plugin.component_count = 0; }
static void play_null_components(void)  { plugin.components = NULL; }
static void play_many(void)             { plugin.component_count = (size_t)1 << 30; }
static void play_stride(void)           { plugin.component_stride = 12; }
static void play_odd_stride(void)       { plugin.component_stride = sizeof(ctrt_component) + 3; }
static void play_component_size(void)   { components[0].size = 4; }
static void play_kind(void)             { components[0].kind = (ctrt_component_kind)77; }
static void play_bad_name(void)         { components[0].name = "Bad Name"; }
static void play_null_name(void)        { components[0].name = NULL; }
static void play_no_table(void)         { components[0].table = NULL; }
static void play_table_size(void)       { backend.size = 8; }
static void play_zero_table(void)       { backend.size = 0; }
static void play_null_device(void)      { backend.device = NULL; }
static void play_null_slot(void)        { device_table.open = NULL; }
static void play_short_slot(void)       { device_table.size = offsetof(ctrt_device_table, close); }
static void play_null_memory(void)      { memory_table.alloc = NULL; }
static void play_kernel_run(void)       { kernels[1].run = NULL; }
static void play_kernel_stride(void)    { kernel_table.stride = 16; }
static void play_kernel_array(void)      { kernel_table.kernels = NULL; }
static void play_init_fails(void)       { plugin.init = init_fails; }
static void play_init_silent(void)      { plugin.init = init_fails_silently; }
static void play_init_itself(void)      { plugin.init = init_looks_up_itself; }
static void play_init_thread(void)      { plugin.init = init_in_thread; }
static void play_init_slow(void)        { plugin.init = init_slow; }
static void play_init_other(void)       { plugin.init = init_looks_up_other; }
static void play_init_short(void)       { plugin.init = init_short; }
static void play_init_thief(void)       { plugin.init = init_thief; }
static void play_alloc_null(void)       { memory_table.alloc = allocate_nothing; backend.default_memory = "direct"; }
static void play_probe_later(void)      { components[0].probe = probe_later; }
static void play_late_kernel(void)      { play_probe_later(); play_kernel_run(); }
static void play_init_forks(void)       { plugin.init = init_forks; }
static void play_thread_forks(void)     { plugin.init = init_thread_forks; }
static void play_needs_fork(void)       { plugin.init = init_needs_fork; }
static void play_over(void)             { backend.base = "nobody"; }
static void play_probe_no(void)         { components[0].probe = probe_no; }
static void play_probe_silent(void)     { components[0].probe = probe_no_words; }
static void play_probe_long(void)       { components[0].probe = probe_long; }
static void play_better(void)           { components[0].probe = probe_better; }
static void play_unasked(void)          { components[0].score = -1; components[0].probe = probe_better; }
static void play_other_name(void)       { components[0].name = "fake"; components[0].score = 50; }
static void play_count_fails(void)      { device_table.count = count_fails; }

static void play_policy(void)
{
    components[0].kind = CTRT_COMPONENT_MEMORY;
    components[0].table = &policy;
}

static void play_policy_hollow(void)
{
    play_policy();
    policy.create = hollow_create;
    policy.alloc = hollow_alloc;
}

static void play_policy_null(void)
{
    play_policy();
    policy.free = NULL;
}

static void play_overlay(void)
{
    components[0].kind = CTRT_COMPONENT_KERNELS;
    components[0].name = "fake";
    components[0].table = &overlay;
    components[0].score = 5;
}

static const struct role {
    const char *name;
    void (*play)(void);
} roles[] = {
    { "null", play_null },
    { "small-size", play_small_size },
    { "large-size", play_large_size },
    { "cut-size", play_cut_size },
    { "major", play_major },
    { "no-name", play_no_name },
    { "no-components", play_no_components },
    { "null-components", play_null_components },
    { "many", play_many },
    { "stride", play_stride },
    { "odd-stride", play_odd_stride },
    { "component-size", play_component_size },
    { "kind", play_kind },
    { "bad-name", play_bad_name },
    { "null-name", play_null_name },
    { "no-table", play_no_table },
    { "table-size", play_table_size },
    { "zero-table", play_zero_table },
    { "null-device", play_null_device },
    { "null-slot", play_null_slot },
    { "short-slot", play_short_slot },
    { "null-memory", play_null_memory },
    { "kernel-run", play_kernel_run },
    { "kernel-stride", play_kernel_stride },
    { "kernel-array", play_kernel_array },
    { "init-fails", play_init_fails },
    { "init-silent", play_init_silent },
    { "init-itself", play_init_itself },
    { "init-thread", play_init_thread },
    { "init-slow", play_init_slow },
    { "init-ping", play_init_other },
    { "init-thief", play_init_thief },
    { "alloc-null", play_alloc_null },
    { "probe-later", play_probe_later },
    { "late-kernel", play_late_kernel },
    { "init-forks", play_init_forks },
    { "init-thread-forks", play_thread_forks },
    { "needs-fork", play_needs_fork },
    { "needs-fork-late", play_needs_fork },
    { "over", play_over },
    { "policy-hollow", play_policy_hollow },
    { "init-pong", play_init_other },
    { "init-short", play_init_short },
    { "probe-no", play_probe_no },
    { "probe-silent", play_probe_silent },
    { "probe-long", play_probe_long },
    { "better", play_better },
    { "unasked", play_unasked },
    { "other-name", play_other_name },
    { "count-fails", play_count_fails },
    { "grown", play_grown },
    { "policy", play_policy },
    { "policy-null", play_policy_null },
    { "fake-extra", play_overlay },
};

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    Dl_info self;
    (void)host_abi_major, (void)host_abi_minor;
    if (dladdr((void *)(uintptr_t)ctrt_plugin_v1, &self) == 0 || self.dli_fname == NULL)
        return NULL;
    const char *slash = strrchr(self.dli_fname, '/'),
               *dash = strchr(slash != NULL ? slash : self.dli_fname, '-');
    if (dash == NULL)
        return NULL;
    snprintf(own_name, sizeof own_name, "%s", dash + 1);
    own_name[strcspn(own_name, ".")] = '\0';
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(roles[i].name, own_name) == 0)
            roles[i].play();
    return strcmp(own_name, "null") == 0 ? NULL : &plugin;
}
