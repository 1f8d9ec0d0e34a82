/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_backend.c: a correct backend of asynchronous devices in host memory, which CTRT_BROKEN=DEFECT
 * breaks, to test that `ctrt check --contract` finds the defect. tests/integration/contract.sh lists the defects with
 * the check that has to find each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broken_backend.h"
#include "ctrt/probe_plugin.h"

enum { DEVICES = 2, PAGE = 1 << 16, FROM_FILE = 1 << 20 };
#define MEMORY ((size_t)64 << 20)

const ctrt_host *broken_host;
pthread_mutex_t broken_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the device ---- */

static pid_t counted;

static ctrt_status device_count(int32_t *count)
{
    counted = counted == 0 ? getpid() : counted;
    if (broken("count_silent"))
        return CTRT_ERR_IO;
    *count = broken("count_negative") ? -1 : DEVICES;
    return CTRT_OK;
}

static ctrt_status bad_index(int32_t index)
{
    return broken_host->fail(CTRT_ERR_NO_DEVICE, "broken:%d: there are %d devices", (int)index, DEVICES);
}

static ctrt_status device_describe(int32_t index, ctrt_device_info *info)
{
    ctrt_device_info facts = { .size = info->size, .name = "a device with defects", .total_memory = MEMORY,
                               .flags = broken_synchronous() ? 0 : CTRT_DEVICE_ASYNCHRONOUS, .numa_node = -1,
                               .ecc = -1, .processors = broken("processors_negative") ? -4 : 0 };
    if (broken("host_memory"))          /* not a defect */
        facts.flags |= CTRT_DEVICE_HOST_MEMORY;
    if (broken("undeclared"))
        facts.flags = 0;
    if (broken("total_negative"))
        facts.total_memory = (uint64_t)-1;
    if ((index < 0 || index >= DEVICES) && !broken("any_index"))
        return bad_index(index);
    memcpy(info, &facts, info->size < sizeof facts && !broken("describe_overflow") ? info->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_usage(int32_t index, ctrt_device_usage *usage)
{
    (void)index;
    ctrt_device_usage facts = { .size = usage->size, .total_memory = MEMORY, .busy = -1, .memory_busy = -1 };
    memcpy(usage, &facts, usage->size < sizeof facts && !broken("usage_overflow") ? usage->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_open(void **out, int32_t index)
{
    if (index < 0 || index >= DEVICES)
        return bad_index(index);
    if (broken("open_null"))
        return CTRT_OK;
    if (broken("open_silent") || broken("open_positive"))
        return broken("open_silent") ? CTRT_ERR_IO : (ctrt_status)5;
    if (broken("count_opens") && counted != getpid())
        return broken_host->fail(CTRT_ERR_FORKED, "the driver was initialised before the fork");
    struct device *device = broken_host->alloc(sizeof *device);
    if (device == NULL && !broken("alloc_unchecked"))
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for the device");
    *device = (struct device){ .process = getpid(), .index = index, .fd = -1 };
    if (broken("descriptor"))
        device->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (broken_synchronous() && broken_queue_table.create(device, &device->standard, 0) != CTRT_OK) {
        broken_host->free(device);
        return CTRT_ERR_OUT_OF_MEMORY;
    }
    *out = device;
    return CTRT_OK;
}

ctrt_status broken_usable(const struct device *device)
{
    if (device->process != getpid() && !broken("fork_unchecked"))
        return broken_host->fail(CTRT_ERR_FORKED, "broken:%d was opened before the fork", (int)device->index);
    return CTRT_OK;
}

static ctrt_status memory_info(void *handle, uint64_t *unused, uint64_t *total)
{
    const struct device *device = handle;
    *unused = MEMORY - device->used + (broken("free_above_total") ? MEMORY : 0);
    *total = broken("free_negative") ? (uint64_t)-1 : MEMORY;
    return broken_usable(device);
}

/* ---- memory ---- */

static char *map_file(struct device *device, size_t bytes, int fd)
{
    struct block *block = broken_host->alloc(sizeof *block);
    char *address = block != NULL && fd >= 0
        ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, broken("import_copies") ? MAP_PRIVATE : MAP_SHARED, fd,
               0) : MAP_FAILED;
    if (address == MAP_FAILED) {
        broken_host->free(block);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    *block = (struct block){ .next = device->files, .address = address, .bytes = bytes, .fd = fd };
    device->files = block;
    return address;
}

static ctrt_status memory_alloc(void *handle, void **address, size_t bytes)
{
    struct device *device = handle;
    static char *racing, shared[64];
    if (broken("fork_locked")) {                /* takes the lock although the device may be that of the parent */
        pthread_mutex_lock(&broken_lock);
        usleep(500);
        pthread_mutex_unlock(&broken_lock);
    }
    ctrt_status status = broken_usable(device);
    if (status != CTRT_OK || broken("alloc_null"))
        return status;
    char *found = NULL;
    const size_t offset = broken("misaligned") ? 32 : 0;
    pthread_mutex_lock(&broken_lock);
    if (bytes <= MEMORY - device->used || (broken("no_limit") && bytes <= 2 * MEMORY)) {
        if (bytes >= FROM_FILE) {
            const int fd = broken_host->descriptor(memfd_create("broken", MFD_CLOEXEC));
            found = ftruncate(fd, (off_t)bytes) == 0 ? map_file(device, bytes, fd) : NULL;
        } else if (broken("overlap") && bytes < 64) {
            found = (char *)(((uintptr_t)shared + 63) & ~(uintptr_t)63);
        } else {
            found = aligned_alloc(64, (bytes + 127) / 64 * 64);
        }
    }
    device->used += found != NULL ? bytes : 0;
    pthread_mutex_unlock(&broken_lock);
    if (broken("unlocked") && bytes == 1000 && found != NULL) {
        racing = found;
        usleep(2000);
        found = racing;
    }
    if (found == NULL)
        return broken("full_silent") ? CTRT_ERR_OUT_OF_MEMORY
                                     : broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no %zu bytes", bytes);
    *address = found + (bytes < FROM_FILE ? offset : 0);
    return CTRT_OK;
}

static void memory_free(void *handle, void *address, size_t bytes)
{
    struct device *device = handle;
    if (device->process != getpid())
        return;
    pthread_mutex_lock(&broken_lock);
    device->used -= broken("free_uncounted") ? 0 : bytes;
    struct block **at = &device->files;
    while (*at != NULL && (*at)->address != address)
        at = &(*at)->next;
    struct block *block = *at;
    if (block != NULL && !broken("leak")) {
        *at = block->next;
        munmap(block->address, block->bytes);
        close(block->fd);
        broken_host->free(block);
    } else if (block == NULL && !broken("misaligned") && !broken("overlap") && !broken("unlocked")) {
        free(address);
    }
    pthread_mutex_unlock(&broken_lock);
}

static ctrt_status host_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    char *found = bytes < SIZE_MAX / 4 ? aligned_alloc(64, (bytes + 127) / 64 * 64) : NULL;
    if (found == NULL)
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no %zu bytes of host memory", bytes);
    *address = found + (broken("pinned_misaligned") ? 8 : 0);
    return CTRT_OK;
}

static void host_free(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
    free((char *)address - (broken("pinned_misaligned") ? 8 : 0));
}

static bool can_access_peer(void *device, void *peer)
{
    return device != peer;
}

static ctrt_status export_memory(void *handle, void *address, size_t bytes, int *fd)
{
    struct device *device = handle;
    (void)bytes;
    for (struct block *block = device->files; block != NULL; block = block->next)
        if (block->address == address)
            *fd = broken_host->descriptor(fcntl(block->fd, F_DUPFD_CLOEXEC, 3));
    return CTRT_OK;
}

static ctrt_status import_memory(void *device, void **address, size_t bytes, int fd)
{
    *address = map_file(device, bytes, broken("import_closes") ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3));
    ((struct device *)device)->used += bytes;
    if (broken("import_closes"))
        close(fd);
    return *address != NULL ? CTRT_OK : broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no address");
}

static ctrt_status reserve(void *device, void **address, size_t bytes)
{
    (void)device;
    *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address != MAP_FAILED ? CTRT_OK : broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no addresses");
}

static void unreserve(void *device, void *address, size_t bytes)
{
    (void)device;
    munmap(address, bytes);
}

static ctrt_status map(void *device, void *address, size_t bytes)
{
    (void)device;
    mprotect(address, bytes, PROT_READ | PROT_WRITE);
    return CTRT_OK;
}

static void unmap(void *device, void *address, size_t bytes)
{
    (void)device;
    (void)!mmap(address, bytes + (broken("unmap_more") ? PAGE : 0), PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* ---- copies, stream-ordered allocation ---- */

static ctrt_status memory_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    static __thread struct work late;
    struct work work = { .kind = COPY, .to = to, .from = from, .bytes = bytes };
    if (broken("copy_late") && late.bytes > 0) {
        const struct work before = late;
        late.bytes = 0;
        (void)broken_enqueue(device, queue, &before);
    }
    if (broken("copy_late") && kind == CTRT_COPY_TO_DEVICE) {
        late = work;
        return CTRT_OK;
    }
    return broken_enqueue(device, queue, &work);
}

static ctrt_status memory_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    return broken_enqueue(device, queue, &(struct work){ .kind = FILL, .to = address, .byte = byte, .bytes = bytes });
}

static ctrt_status copy_peer(void *device, void *to, void *peer, const void *from, size_t bytes, void *queue)
{
    (void)peer;
    return broken("peer_nothing") ? CTRT_OK
                                  : broken_enqueue(device, queue, &(struct work){ .kind = COPY, .to = to, .from = from,
                                                                   .bytes = bytes });
}

struct freed {
    struct device *device;
    void *address;
    size_t bytes;
};

static void free_now(void *argument)
{
    struct freed *freed = argument;
    memory_free(freed->device, freed->address, freed->bytes);
    broken_host->free(freed);
}

/* Stream-ordered allocation exists with CTRT_BROKEN=ordered and its defects. */
static bool ordered(void *device)
{
    const char *text = getenv("CTRT_BROKEN");
    (void)device;
    return text != NULL && strncmp(text, "ordered", 7) == 0;
}

static ctrt_status alloc_on(void *device, void **address, size_t bytes, void *queue)
{
    (void)queue;
    return memory_alloc(device, address, bytes);
}

static void free_on(void *device, void *address, size_t bytes, void *queue)
{
    struct freed *freed = broken_host->alloc(sizeof *freed);
    *freed = (struct freed){ device, address, bytes };
    if (broken("ordered_early"))
        free_now(freed);
    else if (!broken("ordered_leak"))
        (void)broken_enqueue(device, queue, &(struct work){ .kind = CALL, .function = free_now, .to = (char *)freed });
}

static void memory_trim(void *device)
{
    (void)device;
}

static ctrt_status host_register(void *device, void *address, size_t bytes)
{
    (void)device, (void)address, (void)bytes;
    return CTRT_OK;
}

static void host_unregister(void *device, void *address, size_t bytes)
{
    (void)device;
    if (broken("unregister_unmaps"))
        mprotect(address, bytes, PROT_NONE);
}

static void device_close(void *handle)
{
    struct device *device = handle;
    if (device->process != getpid())
        return;
    while (device->queues != NULL)
        broken_queue_table.destroy(device, device->queues);
    if (!broken("close_leak"))
        broken_host->free(device);
}

/* ---- kernels and tables ---- */

static ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "add", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .flags = CTRT_KERNEL_INPLACE,
      .run = broken_run },
    { .size = sizeof(ctrt_kernel), .op = "index_select", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = broken_run },
};
static const ctrt_kernel_table kernel_table = { sizeof kernel_table, kernels, 2, sizeof kernels[0], NULL, NULL, NULL };
static const ctrt_device_table device_table = {
    .size = sizeof device_table, .count = device_count, .describe = device_describe, .open = device_open,
    .close = device_close, .memory_info = memory_info, .usage = device_usage,
};
static const ctrt_memory_table memory_table = {
    .size = sizeof memory_table, .alloc = memory_alloc, .free = memory_free, .copy = memory_copy, .fill = memory_fill,
    .host_alloc = host_alloc, .host_free = host_free, .can_access_peer = can_access_peer, .copy_peer = copy_peer,
    .export_memory = export_memory, .import_memory = import_memory, .page_bytes = PAGE, .reserve = reserve,
    .unreserve = unreserve, .map = map, .unmap = unmap, .ordered = ordered, .alloc_on = alloc_on, .free_on = free_on,
    .trim = memory_trim, .host_register = host_register, .host_unregister = host_unregister,
};
static ctrt_backend backend = {
    .size = sizeof backend, .device = &device_table, .memory = &memory_table, .queue = &broken_queue_table,
    .kernels = &kernel_table, .capture = &broken_capture_table,
};

/* A probe that does not return. */
static int32_t probe_ends(char *reason, size_t bytes)
{
    (void)reason, (void)bytes;
    if (broken("probe_abort"))
        abort();
    if (broken("probe_exit"))
        exit(3);
    if (broken("probe_hangs") || broken("child_hangs"))
        pause();
    *(volatile int *)NULL = 1;
    return 1;
}

static int32_t probe_works(char *reason, size_t bytes)
{
    snprintf(reason, bytes, "asked in a child process");
    return 7;
}

static void *probe_thread(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static int32_t probe(char *reason, size_t bytes)
{
    if (broken("probe_crashes") || broken("probe_abort") || broken("probe_exit") || broken("probe_hangs"))
        return probe_ends(reason, bytes);
    if (broken("child_crashes") || broken("child_hangs"))       /* not defects: the helper for vendors' functions */
        return ctrt_probe_in_child(probe_ends, reason, bytes, 300);
    if (broken("child_works"))
        return ctrt_probe_in_child(probe_works, reason, bytes, 20000);
    if (broken("probe_descriptor"))
        (void)!dup(1);
    if (broken("probe_thread"))
        pthread_create(&(pthread_t){ 0 }, NULL, probe_thread, NULL);
    snprintf(reason, broken("probe_overflow") ? 12 : bytes, "%s",
             broken("probe_lines") ? "it is\nin software" : "it is in software");
    return 1;
}

static ctrt_component components[] = {
    { sizeof(ctrt_component), CTRT_COMPONENT_BACKEND, -100, "broken", &backend, probe },
};

/* The name is read before init. */
__attribute__((constructor)) static void choose_name(void)
{
    if (broken("name_other"))
        components[0].name = "other";
}

static bool accepts_reading(const ctrt_call *call)
{
    return *(const volatile float *)call->inputs[0]->data < 1e30f;
}

/* A temporary shortage. */
static ctrt_status init_memory(const ctrt_host *given)
{
    static bool failed;
    void *memory = given->alloc(100);
    if (memory == NULL && broken("init_unchecked"))
        *(volatile char *)memory = 0;
    if (memory == NULL) {
        failed = true;
        return given->fail(broken("init_status") ? CTRT_ERR_BACKEND : CTRT_ERR_OUT_OF_MEMORY, "no memory");
    }
    given->free(memory);
    return failed && broken("init_once") ? given->fail(CTRT_ERR_STATE, "init was called before") : CTRT_OK;
}

static ctrt_status init(const ctrt_host *given)
{
    CTRT_TRY(init_memory(given));
    broken_host = given;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && broken("accepts_reads"); i++)
        kernels[i].accepts = accepts_reading;
    if (broken("init_crashes"))
        abort();
    if (broken("kernel_misspelt"))
        kernels[0].op = "adds";
    if (broken("kernel_dtypes"))
        kernels[0].dtypes |= CTRT_DTYPE_BIT(60);
    components[0].name = broken("name_upper") ? "Broken" : components[0].name;
    static ctrt_queue_table without_queues = { .size = sizeof without_queues };
    without_queues.synchronize = broken_queue_table.synchronize, without_queues.reset = broken_queue_table.reset;
    if (broken_synchronous())
        backend.queue = &without_queues;
    if (broken("plain") || broken("plain_latest"))      /* no defect: without optional slots */
        broken_queue_table.host_call = NULL, broken_queue_table.query = NULL, broken_queue_table.error = NULL,
        broken_queue_table.reset = NULL, broken_queue_table.event_elapsed = NULL, backend.capture = NULL;
    if (broken("capture_incomplete"))
        broken_capture_table.destroy = NULL;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("backend-broken", "1.0", "a backend with defects", components, init)
