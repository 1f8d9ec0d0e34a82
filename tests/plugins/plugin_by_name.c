/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/plugin_by_name.c: a shared object that is one of many plugins, valid and defective. The name of its
 * file selects which: tests copy it as backend-fake.so (a correct backend with three devices), backend-small-size.so
 * and so on. play_role lists them. */
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

#include "ctrt/image_plugin.h"
#include "ctrt/plugin.h"
#include "ctrt/strategy_plugin.h"

static const ctrt_host *host;
static char own_name[64];               /* "fake" of backend-fake.so */

/* ---- a correct backend: CTRT_FAKE_DEVICES devices of CTRT_FAKE_MEMORY bytes each ---- */

enum { DEVICES, MEMORY, HOST_READABLE, BROKEN_DEVICE, PARAMS };
#define PARAM(name, type, fallback, help) { sizeof(ctrt_param), name, type, fallback, NULL, help }
static const ctrt_param params[PARAMS] = {
    [DEVICES] = PARAM("CTRT_FAKE_DEVICES", CTRT_PARAM_INT, "3", "how many devices the fake backend has"),
    [MEMORY] = PARAM("CTRT_FAKE_MEMORY", CTRT_PARAM_BYTES, "64m", "memory of each fake device"),
    [HOST_READABLE] = PARAM("CTRT_FAKE_HOST", CTRT_PARAM_BOOL, "0", "the host can read the memory of fake devices"),
    [BROKEN_DEVICE] = PARAM("CTRT_FAKE_BROKEN", CTRT_PARAM_INT, "-1", "index of the fake device that does not open"),
};
static int64_t param_values[PARAMS];

struct device {
    int32_t index;
    _Atomic int64_t used;
};

static ctrt_status count(int32_t *out)
{
    *out = (int32_t)param_values[DEVICES];
    return CTRT_OK;
}

static ctrt_status describe(int32_t index, ctrt_device_info *info)
{
    static const char *const uuids[] = { "GPU-0a11c0de", "GPU-0a22beef", "GPU-1b33cafe", "GPU-1b33cafe-2" };
    snprintf(info->name, sizeof info->name, "fake device %d of %s", index, own_name);
    snprintf(info->uuid, sizeof info->uuid, "%s", uuids[index % 4]);
    snprintf(info->pci, sizeof info->pci, "0000:%02x:00.0", index);
    info->total_memory = (uint64_t)param_values[MEMORY];
    info->compute_major = 9;
    info->processors = 10 + index;
    info->clock_khz = 1000000;
    info->numa_node = -1;
    info->ecc = 1;
    info->flags = param_values[HOST_READABLE] ? CTRT_DEVICE_HOST_MEMORY : 0;
    return CTRT_OK;
}

static ctrt_status open_device(void **out, int32_t index)
{
    if (index == param_values[BROKEN_DEVICE])
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
    *total_bytes = (uint64_t)param_values[MEMORY];
    *free_bytes = *total_bytes - (uint64_t)atomic_load(&((struct device *)device)->used);
    return CTRT_OK;
}

static ctrt_status allocate(void *device, void **address, size_t bytes)
{
    struct device *self = device;
    if (bytes > (size_t)param_values[MEMORY])
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "fake device %d never had %zu bytes", self->index, bytes);
    if (atomic_fetch_add(&self->used, (int64_t)bytes) + (int64_t)bytes > param_values[MEMORY]
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
    .size = sizeof device_table, .count = count, .describe = describe, .open = open_device, .close = close_device,
    .memory_info = memory_info,
};
static ctrt_memory_table memory_table = {
    .size = sizeof memory_table, .alloc = allocate, .free = release, .copy = copy, .fill = fill,
};
static ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "neg", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = run },
    { .size = sizeof(ctrt_kernel), .op = "abs", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = run },
};
static ctrt_kernel_table kernel_table = {
    .size = sizeof kernel_table, .kernels = kernels, .count = 2, .stride = sizeof kernels[0],
};
static ctrt_backend backend = {
    .size = sizeof backend, .device = &device_table, .memory = &memory_table, .kernels = &kernel_table,
    .default_memory = "caching",
};
static ctrt_kernels overlay = { .size = sizeof overlay, .kernels = &kernel_table };

/* Memory policies: that of the role policy-hollow returns success without an address, the others cannot be created. */
static ctrt_status policy_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    (void)source, (void)options;
    if (strcmp(own_name, "policy-hollow") != 0)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "this policy cannot be created");
    *policy = &overlay;
    return CTRT_OK;
}

static void policy_destroy(void *policy)
{
    (void)policy;
}

static ctrt_status policy_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    (void)policy, (void)block, (void)bytes, (void)queue;
    return CTRT_OK;
}

static void policy_free(void *policy, const ctrt_block *block, void *queue)
{
    (void)policy, (void)block, (void)queue;
}

static ctrt_memory_policy policy = {
    .size = sizeof policy, .create = policy_create, .destroy = policy_destroy, .alloc = policy_alloc,
    .free = policy_free,
};

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    for (int i = 0; i < PARAMS; i++) {
        ctrt_param_value value;
        const ctrt_status status = host->param(&value, &params[i]);
        if (status != CTRT_OK)
            return status;
        param_values[i] = value.integer;
    }
    return CTRT_OK;
}

static ctrt_component component = {
    .size = sizeof component, .kind = CTRT_COMPONENT_BACKEND, .name = own_name, .table = &backend,
};
static ctrt_plugin plugin = {
    .size = sizeof plugin, .abi_major = CTRT_PLUGIN_ABI_MAJOR, .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "plugin_by_name", .version = "1", .description = "a plugin for tests",
    .components = &component, .component_count = 1, .component_stride = sizeof component, .init = init,
};

/* ---- roles ---- */

static bool am(const char *role)
{
    return strcmp(own_name, role) == 0;
}

static ctrt_status init_fails(const ctrt_host *given)
{
    return am("init-silent") ? CTRT_ERR_BACKEND : given->fail(CTRT_ERR_BACKEND, "the driver is from another century");
}

/* Initialises, and requires that the lookup before it has found something. */
static ctrt_status init_after_lookup(const ctrt_host *given, bool found, const char *error)
{
    const ctrt_status status = init(given);
    return found ? status : given->fail(CTRT_ERR_STATE, "%s", error);
}

static ctrt_status init_looks_up_itself(const ctrt_host *given)
{
    return init_after_lookup(given, given->backend(own_name) != NULL, "looked up itself and got nothing");
}

/* Two plugins whose init functions look up each other. */
static ctrt_status init_looks_up_other(const ctrt_host *given)
{
    const bool found = given->backend(am("init-ping") ? "init-pong" : "init-ping") != NULL;
    return init_after_lookup(given, found, "the other is not there");
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

/* Looks up init-forks before or after init-forks has forked. */
static ctrt_status init_needs_fork(const ctrt_host *given)
{
    pause_ms(am("needs-fork") ? 20 : 300);
    return init_after_lookup(given, given->backend("init-forks") != NULL, "init-forks is not there");
}

/* The thread can look up another backend, but not the one that is being initialised. */
static void *use_host(void *status)
{
    ctrt_param_value value;
    host->free(host->alloc(16));
    *(ctrt_status *)status = host->param(&value, &params[DEVICES]);
    if (host->backend("fake") == NULL || host->backend(own_name) != NULL)
        *(ctrt_status *)status = CTRT_ERR_STATE;
    return NULL;
}

static void *fork_once(void *status)
{
    int ended = 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid(child, &ended, 0) != child || ended != 0)
        *(ctrt_status *)status = CTRT_ERR_STATE;
    return NULL;
}

/* Initialises and uses the host or forks, in a thread that init waits for. init-forks forks without a thread after
 * 100 ms, while another init function waits for this one, or before it does. */
static ctrt_status init_with_thread(const ctrt_host *given)
{
    ctrt_status status = init(given);
    pthread_t thread;
    if (am("init-forks")) {
        pause_ms(100);
        fork_once(&status);
    } else if (status == CTRT_OK
               && pthread_create(&thread, NULL, am("init-thread") ? use_host : fork_once, &status) == 0) {
        pthread_join(thread, NULL);
    }
    return status == CTRT_OK ? CTRT_OK : given->fail(CTRT_ERR_STATE, "the fork or the thread of init failed");
}

static ctrt_status init_short(const ctrt_host *given)
{
    static int calls;
    return calls++ == 0 ? given->fail(CTRT_ERR_IO, "no descriptor is left") : init(given);
}

static ctrt_status allocate_nothing(void *device, void **address, size_t bytes)
{
    (void)device, (void)bytes;
    *address = NULL;
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
    if (am("probe-silent"))
        return -3;
    snprintf(reason, bytes, "no device node /dev/actor0");
    return 0;
}

static int32_t probe_better(char *reason, size_t bytes)
{
    (void)reason, (void)bytes;
    return 200;
}

static int32_t probe_long(char *reason, size_t bytes)
{
    memset(reason, 'x', bytes);                 /* not terminated */
    return 1;
}

/* Two components of a later minor version, which has an added member. */
static void play_grown(void)
{
    static struct { ctrt_component known; void *added; } grown[2];
    for (int i = 0; i < 2; i++) {
        grown[i].known = component;
        grown[i].known.size = sizeof grown[0];
    }
    grown[1].known.name = "grown-too";
    plugin.abi_minor = 7;
    plugin.components = &grown[0].known;
    plugin.component_count = 2;
    plugin.component_stride = sizeof grown[0];
}

static void play_policy(void)
{
    component.kind = CTRT_COMPONENT_MEMORY;
    component.table = &policy;
}

/* ---- a strategy that records the events which it receives ---- */

static char events[64] = "events:";

static ctrt_status strategy_create(void **out, const ctrt_strategy_config *config)
{
    (void)config;
    *out = events;
    return CTRT_OK;
}

static void strategy_destroy(void *self)
{
    (void)self;
}

static ctrt_status strategy_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)y, (void)inputs, (void)count;
    return host->fail(CTRT_ERR_NOT_SUPPORTED, "no forward");
}

static ctrt_status strategy_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    (void)self, (void)loss, (void)batch;
    return host->fail(CTRT_ERR_NOT_SUPPORTED, "%s", events);
}

static ctrt_status strategy_event(void *self, ctrt_module_event event, void *argument)
{
    (void)self;
    snprintf(events + strlen(events), sizeof events - strlen(events), " %d", (int)event);
    if (event == CTRT_MODULE_SAVE_BEGIN)
        *(bool *)argument = false;
    return event == CTRT_MODULE_LOAD_BEGIN ? host->fail(CTRT_ERR_IO, "no loading") : CTRT_OK;
}

static ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .create = strategy_create, .destroy = strategy_destroy,
    .forward = strategy_forward, .step = strategy_step, .event = strategy_event,
};

static void play_strategy(void)
{
    component.kind = CTRT_COMPONENT_STRATEGY;
    component.table = &strategy;
}

/* ---- a decoder: the byte after "BM" is the width and the grey of all pixels ---- */

static ctrt_status image_describe(ctrt_image_info *info, const void *file, size_t bytes)
{
    if (bytes < 3)
        return host->fail(CTRT_ERR_FORMAT, "no width");
    info->height = 1, info->width = ((const unsigned char *)file)[2];
    return CTRT_OK;
}

static ctrt_status image_decode(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes)
{
    (void)bytes;
    memset(rgb, ((const unsigned char *)file)[2], (size_t)info->width * 3);
    return CTRT_OK;
}

static ctrt_image_codec codec = {
    .size = sizeof(ctrt_image_codec), .describe = image_describe, .decode = image_decode,
};

static void play_image(void)
{
    component.kind = CTRT_COMPONENT_IMAGE;
    component.table = &codec;
}

static void play_overlay(void)
{
    component.kind = CTRT_COMPONENT_KERNELS;
    component.name = "fake";
    component.table = &overlay;
    component.score = 5;
}

/* Runs the statements if the plugin has this role. */
#define ROLE(role, ...) do { if (am(role)) { __VA_ARGS__; } } while (0)
#define INIT(role, function) ROLE(role, plugin.init = function)

static void play_role(void)
{
    /* Wrong structures. ctrt_plugin_v1 handles the role "null". */
    ROLE("small-size", plugin.size = 8);                      ROLE("large-size", plugin.size = (size_t)1 << 40);
    ROLE("cut-size", plugin.size = offsetof(ctrt_plugin, components));
    ROLE("major", plugin.abi_major = 2);                      ROLE("no-name", plugin.name = NULL);
    ROLE("no-components", plugin.component_count = 0);        ROLE("null-components", plugin.components = NULL);
    ROLE("many", plugin.component_count = (size_t)1 << 30);   ROLE("stride", plugin.component_stride = 12);
    ROLE("odd-stride", plugin.component_stride = sizeof(ctrt_component) + 3);
    ROLE("component-size", component.size = 4);               ROLE("kind", component.kind = (ctrt_component_kind)77);
    ROLE("bad-name", component.name = "Bad Name");            ROLE("null-name", component.name = NULL);
    ROLE("no-table", component.table = NULL);                 ROLE("table-size", backend.size = 8);
    ROLE("zero-table", backend.size = 0);                     ROLE("null-device", backend.device = NULL);
    ROLE("null-slot", device_table.open = NULL);
    ROLE("short-slot", device_table.size = offsetof(ctrt_device_table, close));
    ROLE("null-memory", memory_table.alloc = NULL);           ROLE("kernel-run", kernels[1].run = NULL);
    ROLE("kernel-stride", kernel_table.stride = 16);          ROLE("kernel-array", kernel_table.kernels = NULL);
    ROLE("policy-null", play_policy(); policy.free = NULL);   ROLE("null-step", play_strategy(); strategy.step = NULL);
    ROLE("bmp", play_image());                                ROLE("webp", play_image(); codec.decode = NULL);

    /* Functions that fail or do more than expected. */
    INIT("init-fails", init_fails);                           INIT("init-silent", init_fails);
    INIT("init-itself", init_looks_up_itself);                INIT("init-thread", init_with_thread);
    INIT("init-slow", init_slow);                             INIT("init-ping", init_looks_up_other);
    INIT("init-pong", init_looks_up_other);                   INIT("init-short", init_short);
    INIT("init-thief", init_thief);                           INIT("init-forks", init_with_thread);
    INIT("init-thread-forks", init_with_thread);              INIT("needs-fork", init_needs_fork);
    INIT("needs-fork-late", init_needs_fork);
    ROLE("alloc-null", memory_table.alloc = allocate_nothing; backend.default_memory = "direct");
    ROLE("policy-hollow", play_policy());                     ROLE("probe-later", component.probe = probe_later);
    ROLE("late-kernel", component.probe = probe_later; kernels[1].run = NULL);
    ROLE("probe-no", component.probe = probe_no);             ROLE("probe-silent", component.probe = probe_no);
    ROLE("probe-long", component.probe = probe_long);

    /* Valid plugins. */
    ROLE("better", component.probe = probe_better);
    ROLE("unasked", component.score = -1; component.probe = probe_better);
    ROLE("other-name", component.name = "fake");
    ROLE("over", backend.base = "nobody");                    ROLE("grown", play_grown());
    ROLE("policy", play_policy());                            ROLE("fake-extra", play_overlay());
    ROLE("watcher", play_strategy());                         ROLE("blind", device_table.memory_info = NULL);
}

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    Dl_info self;
    (void)host_abi_major, (void)host_abi_minor;
    if (dladdr((void *)(uintptr_t)ctrt_plugin_v1, &self) == 0 || self.dli_fname == NULL)
        return NULL;
    const char *slash = strrchr(self.dli_fname, '/'), *dash = strchr(slash != NULL ? slash : self.dli_fname, '-');
    if (dash == NULL)
        return NULL;
    snprintf(own_name, sizeof own_name, "%.*s", (int)strcspn(dash + 1, "."), dash + 1);
    play_role();
    return strcmp(own_name, "null") == 0 ? NULL : &plugin;
}
