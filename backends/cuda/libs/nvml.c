/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/nvml.c: NVML, the driver's management library, on which nvidia-smi is based; loaded at run time.
 *
 * NVML is not part of CUDA: it creates no context, and a process that used it may fork children that use CUDA. nvmlInit
 * can take a second per GPU if no process keeps the GPUs initialised (as nvidia-persistenced does). The initialisation
 * of the driver after nvmlShutdown can take as long. Therefore a process initialises NVML once and never shuts it down.
 * A forked child initialises NVML for itself and never shuts down its parent's session. */
#include "host/discovery.h"
#include "nvml_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool sought;
static void *library;                           /* NULL: not loaded, or a required symbol is missing */
static struct nvml_library nvml;
static pid_t session;                           /* the process that initialised NVML; 0: none */

void cuda_nvml_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void cuda_nvml_after_fork(bool in_child)
{
    if (in_child)
        pthread_mutex_init(&lock, NULL);
    else
        pthread_mutex_unlock(&lock);
}

static const struct nvml_entry {
    const char *symbol;
    bool needed;
    size_t place;
} entries[] = {
#define NVML(name, symbol, needed, arguments) { symbol, needed, offsetof(struct nvml_library, name) },
    NVML_ENTRIES
#undef NVML
};

static void seek(void)
{
    sought = true;
    void *found = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; found != NULL && i < COUNT_OF(entries); i++) {
        void *address = dlsym(found, entries[i].symbol);
        if (address == NULL && entries[i].needed)
            return;                             /* driver older than 525; the library stays loaded for other users */
        *(void **)((char *)&nvml + entries[i].place) = address;
    }
    library = found;
}

/* Loads and initialises NVML, if this process has not done so yet. A parent's initialisation does not count. Returns -1
 * if the library is not available. Called with the lock held. */
static nvml_result enter(void)
{
    if (!sought)
        seek();
    if (library == NULL)
        return -1;
    if (session == getpid())
        return NVML_OK;
    const nvml_result result = nvml.init();
    if (result == NVML_OK)
        session = getpid();
    return result;
}

/* ---- facts ---- */

/* Returns the CUDA cores per multiprocessor of a compute capability (CUDA C++ Programming Guide, "Compute
 * Capabilities"); 0: unknown. */
static int cores_of(int major, int minor)
{
    switch (major) {
    case 5: case 12:
        return 128;
    case 6:
        return minor == 0 ? 64 : 128;
    case 7:
        return 64;
    case 8:
        return minor == 0 ? 64 : 128;
    case 9: case 10: case 11:
        return 128;
    default:
        return 0;
    }
}

/* Writes a bit set as a list of ranges: "0-3,8". */
static void write_cpus(char *text, size_t bytes, const unsigned long *set, unsigned words)
{
    const unsigned bits = 8 * sizeof set[0], count = words * bits;
    size_t used = 0;
    text[0] = '\0';
    for (unsigned from = 0; from < count; from++) {
        unsigned to = from;
        while (to < count && set[to / bits] >> to % bits & 1)
            to++;
        if (to == from)
            continue;
        char piece[32];
        const int length = to - from > 1 ? snprintf(piece, sizeof piece, "%s%u-%u", used > 0 ? "," : "", from, to - 1)
                                         : snprintf(piece, sizeof piece, "%s%u", used > 0 ? "," : "", from);
        if (used + (size_t)length + 4 >= bytes) {
            snprintf(text + used, bytes - used, "...");
            return;
        }
        memcpy(text + used, piece, (size_t)length + 1);
        used += (size_t)length;
        from = to;
    }
}

static unsigned mig_of(nvml_device device)
{
    unsigned now = 0, later = 0;
    nvml_device instance;
    if (nvml.mig == NULL || nvml.mig(device, &now, &later) != NVML_OK || now == 0)
        return 0;
    if (nvml.mig_instance == NULL)
        return 1;
    for (unsigned i = 0; i < 8; i++)            /* instance indices may have gaps */
        if (nvml.mig_instance(device, i, &instance) == NVML_OK)
            return 1;
    return 2;
}

static bool joining(nvml_device device)
{
    nvml_fabric fabric = { .state = 0 };
    return nvml.fabric != NULL && nvml.fabric(device, &fabric) == NVML_OK
           && (fabric.state == NVML_FABRIC_NOT_STARTED || fabric.state == NVML_FABRIC_IN_PROGRESS);
}

static void facts_of(struct cuda_gpu *gpu, nvml_device device)
{
    nvml_pci pci = { .domain = 0 };
    nvml_memory memory = { .version = NVML_MEMORY_V2 };
    unsigned value = 0;
    int major = 0, minor = 0, now = 0, later = 0;
    unsigned long cpus[128] = { 0 };
    *gpu = (struct cuda_gpu){ .ordinal = -1, .mig = mig_of(device), .joining = joining(device) };
    ctrt_device_info *facts = &gpu->facts;
    facts->numa_node = facts->ecc = -1;
    facts->flags = CTRT_DEVICE_ASYNCHRONOUS;
    if (nvml.name(device, facts->name, sizeof facts->name) != NVML_OK)
        facts->name[0] = '\0';
    if (nvml.uuid(device, facts->uuid, sizeof facts->uuid) != NVML_OK)
        facts->uuid[0] = '\0';
    if (nvml.pci(device, &pci) == NVML_OK)
        snprintf(facts->pci, sizeof facts->pci, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    /* cuDeviceTotalMem does not include memory reserved by the driver. */
    if (nvml.memory(device, &memory) == NVML_OK)
        facts->total_memory = memory.total - (memory.reserved < memory.total ? memory.reserved : 0);
    if (nvml.capability(device, &major, &minor) == NVML_OK)
        facts->compute_major = major, facts->compute_minor = minor;
    if (nvml.cores != NULL && nvml.cores(device, &value) == NVML_OK && cores_of(major, minor) > 0)
        facts->processors = (int32_t)value / cores_of(major, minor);
    if (nvml.clock_limit != NULL && nvml.clock_limit(device, NVML_CLOCK_SM, &value) == NVML_OK)
        facts->clock_khz = (int32_t)value * 1000;
    if (nvml.ecc != NULL && nvml.ecc(device, &now, &later) == NVML_OK)
        facts->ecc = now != 0;
    if (nvml.cpus != NULL && nvml.cpus(device, COUNT_OF(cpus), cpus) == NVML_OK)
        write_cpus(facts->cpus, sizeof facts->cpus, cpus, COUNT_OF(cpus));
}

bool cuda_nvml_list(struct cuda_gpu *gpus, int max, int *count, int *result)
{
    unsigned present = 0;
    pthread_mutex_lock(&lock);
    *result = enter();
    if (*result == NVML_OK)
        *result = nvml.count(&present);
    *count = 0;
    for (unsigned i = 0; *result == NVML_OK && i < present && *count < max; i++) {
        nvml_device device;
        const nvml_result got = nvml.by_index(i, &device);
        if (got == NVML_NO_PERMISSION)
            continue;                           /* the GPU's device node is not accessible, as in a container */
        if (got != NVML_OK)
            *result = got;                      /* for example a lost GPU; the caller then asks the driver */
        else
            facts_of(&gpus[(*count)++], device);
    }
    pthread_mutex_unlock(&lock);
    return *result == NVML_OK;
}

/* ---- usage ---- */

/* Returns the processes that `ask` reports, in an array that the caller frees, or NULL if NVML does not report them or
 * there is no memory. */
static nvml_process *list_processes(unsigned *count, nvml_result (*ask)(nvml_device, unsigned *, nvml_process *),
                                    nvml_device device)
{
    /* More than one attempt, because the number of processes may grow between two calls. */
    for (unsigned capacity = 64; ask != NULL && capacity <= 1 << 16; capacity *= 4) {
        nvml_process *list = cuda_host->alloc(capacity * sizeof *list);
        *count = capacity;
        const nvml_result result = list != NULL ? ask(device, count, list) : NVML_UNKNOWN;
        if (result == NVML_OK)
            return list;
        cuda_host->free(list);
        if (result != NVML_INSUFFICIENT_SIZE)
            return NULL;
    }
    return NULL;
}

/* Adds the processes that are not in the list yet: a process can use a GPU for both compute and graphics. */
static void add_processes(ctrt_device_usage *usage, nvml_result (*ask)(nvml_device, unsigned *, nvml_process *),
                          nvml_device device)
{
    unsigned count = 0;
    nvml_process *list = list_processes(&count, ask, device);
    if (list == NULL)
        return;
    if (usage->process_count < 0)
        usage->process_count = 0;
    const int before = usage->process_count < usage->process_room ? usage->process_count : usage->process_room;
    for (unsigned i = 0; i < count; i++) {
        bool known = false;
        for (int k = 0; k < before; k++)
            known = known || usage->processes[k].pid == (int64_t)list[i].pid;
        if (known)
            continue;
        if (usage->process_count < usage->process_room)
            usage->processes[usage->process_count] = (ctrt_device_process){
                list[i].pid, list[i].memory == NVML_NOT_AVAILABLE ? UINT64_MAX : list[i].memory };
        usage->process_count++;
    }
    cuda_host->free(list);
}

static void usage_of(ctrt_device_usage *usage, nvml_device device)
{
    nvml_utilization percent;
    nvml_memory memory = { .version = NVML_MEMORY_V2 };
    unsigned value = 0;
    if (nvml.memory(device, &memory) == NVML_OK) {
        usage->used_memory = memory.used;
        usage->free_memory = memory.unused;
        usage->total_memory = memory.used + memory.unused;
    }
    if (nvml.utilization != NULL && nvml.utilization(device, &percent) == NVML_OK)
        usage->busy = (int32_t)percent.gpu, usage->memory_busy = (int32_t)percent.memory;
    if (nvml.temperature != NULL && nvml.temperature(device, NVML_TEMPERATURE_GPU, &value) == NVML_OK)
        usage->temperature = (int32_t)value;
    if (nvml.power != NULL && nvml.power(device, &value) == NVML_OK)
        usage->power = (int32_t)value;
    if (nvml.power_limit != NULL && nvml.power_limit(device, &value) == NVML_OK)
        usage->power_limit = (int32_t)value;
    if (nvml.clock != NULL && nvml.clock(device, NVML_CLOCK_SM, &value) == NVML_OK)
        usage->clock_khz = (int32_t)value * 1000;
    add_processes(usage, nvml.compute_processes, device);
    add_processes(usage, nvml.graphics_processes, device);
}

ctrt_status cuda_nvml_usage(const struct cuda_gpu *gpu, ctrt_device_usage *usage, const char *name)
{
    ctrt_device_usage now = { .size = usage->size, .busy = -1, .memory_busy = -1, .temperature = -1, .power = -1,
                              .power_limit = -1, .clock_khz = -1, .process_count = -1,
                              .process_room = usage->process_room, .processes = usage->processes };
    nvml_device device;
    pthread_mutex_lock(&lock);
    nvml_result result = enter();
    if (result == NVML_OK)
        result = nvml.by_uuid(gpu->facts.uuid, &device);
    if (result == NVML_OK)
        usage_of(&now, device);
    pthread_mutex_unlock(&lock);
    if (result == -1)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED,
                               "%s: its load is known to NVML only, and libnvidia-ml.so.1 cannot be loaded", name);
    if (result == NVML_GPU_IS_LOST)
        return cuda_host->fail(CTRT_ERR_DEVICE_LOST, "%s: NVML reports that the GPU is lost (see dmesg for \"Xid\")",
                               name);
    if (result != NVML_OK)
        return cuda_host->fail(CTRT_ERR_BACKEND, "%s: NVML does not report its load (error %d)", name, result);
    memcpy(usage, &now, usage->size < sizeof now ? usage->size : sizeof now);
    return CTRT_OK;
}

/* ---- links ---- */

static int links_between(nvml_device device, const char *pci)
{
    int links = 0;
    if (nvml.link_state == NULL || nvml.link_peer == NULL)
        return 0;
    for (unsigned i = 0; i < NVML_LINKS; i++) {
        int active = 0;
        nvml_pci peer = { .domain = 0 };
        char text[32];
        if (nvml.link_state(device, i, &active) != NVML_OK || !active || nvml.link_peer(device, i, &peer) != NVML_OK)
            continue;
        snprintf(text, sizeof text, "%04x:%02x:%02x.0", peer.domain, peer.bus, peer.device);
        links += strcmp(text, pci) == 0;
    }
    return links;
}

static int kind_of(int level)
{
    static const struct { int level, kind; } levels[] = {       /* nvmlGpuTopologyLevel_t */
        { 0, CTRT_LINK_BOARD }, { 10, CTRT_LINK_SWITCH }, { 20, CTRT_LINK_SWITCHES }, { 30, CTRT_LINK_BRIDGE },
        { 40, CTRT_LINK_NODE }, { 50, CTRT_LINK_SYSTEM },
    };
    for (size_t i = 0; i < COUNT_OF(levels); i++)
        if (levels[i].level == level)
            return levels[i].kind;
    return CTRT_LINK_UNKNOWN;
}

void cuda_nvml_link(const struct cuda_gpu *gpu, const struct cuda_gpu *peer, ctrt_device_link *link)
{
    nvml_device a, b;
    int value = 0;
    pthread_mutex_lock(&lock);
    if (enter() == NVML_OK && nvml.by_uuid(gpu->facts.uuid, &a) == NVML_OK
        && nvml.by_uuid(peer->facts.uuid, &b) == NVML_OK) {
        if (nvml.p2p != NULL && nvml.p2p(a, b, NVML_P2P_READ, &value) == NVML_OK)
            link->direct = value == 0;
        if (nvml.ancestor != NULL && nvml.ancestor(a, b, &value) == NVML_OK)
            link->kind = kind_of(value);
        link->links = links_between(a, peer->facts.pci);
        if (link->links > 0 || (nvml.p2p != NULL && nvml.p2p(a, b, NVML_P2P_NVLINK, &value) == NVML_OK && value == 0))
            link->kind = CTRT_LINK_NVLINK;
    }
    pthread_mutex_unlock(&lock);
}
