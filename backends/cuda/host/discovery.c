/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/discovery.c: enumerates and orders the devices, and maps each to its ordinal in the driver. */
#include "discovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

extern char **environ;

/* The devices. After the first successful enumeration only resolve() changes them. */
static struct {
    bool known;
    bool order_unknown;                         /* the count is final, but the driver determines the order */
    bool resolved;                              /* ordinals and properties are from the driver */
    int count;
    struct cuda_gpu at[CUDA_DEVICES];
    bool visible_set;
    char visible[1024];                         /* CUDA_VISIBLE_DEVICES at the time of the enumeration */
} found;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool warned_misspelt, warned_late, with_nvml = true;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    cuda_nvml_before_fork();
}

static void after_fork_in_parent(void)
{
    cuda_nvml_after_fork(false);
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    cuda_nvml_after_fork(true);
    pthread_mutex_init(&lock, NULL);
}

ctrt_status cuda_discovery_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_CUDA_NVML", .type = CTRT_PARAM_ENUM, .fallback = "on",
        .words = "off|on",
        .help = "count and describe GPUs through NVML until one is opened, so that children forked before can use CUDA",
    };
    ctrt_param_value value;
    CTRT_TRY(cuda_host->param(&value, &param));
    with_nvml = value.integer == 1;
    return CTRT_SLOT(cuda_host, at_fork) ? cuda_host->at_fork(before_fork, after_fork_in_parent, after_fork_in_child)
                                         : CTRT_OK;
}

/* ---- the environment ---- */

/* Returns the edit distance (insertions, deletions, substitutions) of two words of less than 32 letters (Wagner and
 * Fischer 1974). */
static int edits(const char *a, const char *b)
{
    int row[33], columns = (int)strlen(b);
    for (int j = 0; j <= columns; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= columns; j++) {
            const int above = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[columns];
}

/* Warns once about misspelt variables such as CUDA_VISIBLE_DEVICE, which have no effect. */
static void warn_misspelt(void)
{
    if (warned_misspelt)
        return;
    warned_misspelt = true;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[32];
        const size_t length = strcspn(*at, "=");
        if (length < 12 || length >= sizeof name)
            continue;
        memcpy(name, *at, length);
        name[length] = '\0';
        const int distance = edits(name, "CUDA_VISIBLE_DEVICES");
        if (distance > 0 && distance <= 3 && strncasecmp(name, "CUDA_", 5) == 0)
            cuda_host->log(CTRT_LOG_WARNING, "backend-cuda",
                           "%s is set but has no effect: the variable is called CUDA_VISIBLE_DEVICES", name);
    }
}

static void note_visible(const char *text)
{
    found.visible_set = text != NULL;
    snprintf(found.visible, sizeof found.visible, "%s", text != NULL ? text : "");
}

/* Returns true, and warns once, if CUDA_VISIBLE_DEVICES has changed since the enumeration. The driver reads the
 * variable only when it is initialised. */
static bool warn_changed(void)
{
    const char *now = getenv("CUDA_VISIBLE_DEVICES");
    const bool changed = (now != NULL) != found.visible_set
                         || (now != NULL && strncmp(now, found.visible, sizeof found.visible - 1) != 0);
    if (changed && !warned_late) {
        warned_late = true;
        cuda_host->log(CTRT_LOG_WARNING, "backend-cuda",
                       "CUDA_VISIBLE_DEVICES has changed to %s after devices were counted by %s, which is too "
                       "late. Set it before the first use of ctrt",
                       now != NULL ? now : "nothing", found.visible_set ? found.visible : "nothing");
    }
    return changed;
}

/* Returns true if the driver numbers devices by PCI bus ID, as nvidia-smi does. By default, the driver numbers them
 * from the fastest device on. */
static bool ordered_by_pci(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    return order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
}

static bool ordered_by_speed(void)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    return order != NULL && strcmp(order, "FASTEST_FIRST") == 0;
}

/* ---- enumeration by NVML ---- */

static bool all_alike(const struct cuda_gpu *gpus, int count)
{
    for (int i = 1; i < count; i++)
        if (strcmp(gpus[i].facts.name, gpus[0].facts.name) != 0
            || gpus[i].facts.total_memory != gpus[0].facts.total_memory)
            return false;
    return true;
}

static void first_line(const char *path, char *text, size_t bytes)
{
    if (cuda_read_file(path, text, bytes))
        text[strcspn(text, "\n")] = '\0';
    else
        text[0] = '\0';
}

/* Adds the NUMA node of a PCI device and the CPUs of that node, from sysfs. */
static void add_place(ctrt_device_info *facts)
{
    char path[128], text[sizeof facts->cpus];
    if (facts->numa_node < 0) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", facts->pci);
        first_line(path, text, sizeof text);
        facts->numa_node = text[0] != '\0' ? atoi(text) : -1;
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", facts->pci);
    first_line(path, text, sizeof text);
    if (text[0] != '\0')
        memcpy(facts->cpus, text, sizeof text);
}

enum answer { ANSWERED, NO_DEVICES, ASK_DRIVER };

/* Fills `found` from NVML if NVML provides the same information as the driver. Otherwise returns ASK_DRIVER. On
 * NO_DEVICES, writes the reason to `why`. `all`, *present: the GPUs in NVML's list. */
static enum answer ask_nvml(struct cuda_gpu *all, int *present, char *why, size_t bytes)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    const enum cuda_list_kind kind = cuda_visible_kind(text);
    int ids[CUDA_DEVICES], result = 0;
    bool twice = false, split = false;
    *present = 0;
    if (!with_nvml || !cuda_nvml_list(all, CUDA_DEVICES, present, &result))
        return ASK_DRIVER;
    bool joining = false;
    for (int i = 0; i < *present; i++) {
        split = split || all[i].mig != 0;
        joining = joining || all[i].joining;
    }
    if (kind == CUDA_LIST_MIG || *present == 0 || joining || cuda_reason_node_missing())
        return ASK_DRIVER;
    const int count = cuda_visible(ids, CUDA_DEVICES, text, all, *present, &twice);
    if (count == 0) {
        cuda_reason_hidden(why, bytes, text, *present, twice);
        return NO_DEVICES;
    }
    if (split) {
        /* The driver chooses the MIG instance that it shows for a GPU, so only the driver can list instances. But if
         * every visible GPU is in MIG mode without an instance, there is no device. */
        for (int i = 0; i < count; i++)
            if (all[ids[i]].mig != 2)
                return ASK_DRIVER;
        cuda_reason_mig(why, bytes, all[ids[0]].facts.name, all[ids[0]].facts.pci);
        return NO_DEVICES;
    }
    const bool by_number = kind == CUDA_LIST_NUMBERS ? !ordered_by_pci() : kind == CUDA_LIST_ALL && ordered_by_speed();
    found.order_unknown = by_number && !all_alike(all, *present);
    found.count = count;
    for (int i = 0; i < count; i++) {
        found.at[i] = all[ids[i]];
        add_place(&found.at[i].facts);
    }
    return ANSWERED;
}

/* ---- enumeration by the driver ---- */

static int attribute(cu_device device, int which, int unknown)
{
    int value = unknown;
    return cuda_driver.device_attribute(&value, which, device) == CU_OK ? value : unknown;
}

/* Writes the UUID in NVIDIA's format: the prefix and groups of 8, 4, 4, 4 and 12 hexadecimal digits. */
static void write_uuid(char text[64], const char *prefix, const cu_uuid *uuid)
{
    int used = snprintf(text, 64, "%s", prefix);
    for (int i = 0; i < 16; i++)
        used += snprintf(text + used, 64 - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                         (unsigned)(unsigned char)uuid->bytes[i]);
}

/* Fills *gpu from the driver. `all`: NVML's list, which supplies CPUs and MIG mode; for a GPU in MIG mode the driver
 * shows one of its instances. */
static void driver_facts(struct cuda_gpu *gpu, int ordinal, cu_device device, const struct cuda_gpu *all, int present)
{
    size_t bytes = 0;
    cu_uuid uuid;
    *gpu = (struct cuda_gpu){
        .ordinal = ordinal,
        .facts = {
            .compute_major = attribute(device, CU_ATTRIBUTE_MAJOR, 0),
            .compute_minor = attribute(device, CU_ATTRIBUTE_MINOR, 0),
            .processors = attribute(device, CU_ATTRIBUTE_PROCESSORS, 0),
            .clock_khz = attribute(device, CU_ATTRIBUTE_CLOCK_KHZ, 0),
            .numa_node = attribute(device, CU_ATTRIBUTE_HOST_NUMA, -1),
            .flags = CTRT_DEVICE_ASYNCHRONOUS,
            .ecc = attribute(device, CU_ATTRIBUTE_ECC, -1),
        },
    };
    ctrt_device_info *facts = &gpu->facts;
    if (cuda_driver.device_memory(&bytes, device) == CU_OK)
        facts->total_memory = bytes;
    if (cuda_driver.device_name(facts->name, sizeof facts->name, device) != CU_OK)
        snprintf(facts->name, sizeof facts->name, "CUDA device %d", ordinal);
    snprintf(facts->pci, sizeof facts->pci, "%04x:%02x:%02x.0", (unsigned)attribute(device, CU_ATTRIBUTE_PCI_DOMAIN, 0),
             (unsigned)attribute(device, CU_ATTRIBUTE_PCI_BUS, 0),
             (unsigned)attribute(device, CU_ATTRIBUTE_PCI_DEVICE, 0));
    for (int i = 0; i < present; i++)
        if (strcmp(all[i].facts.pci, facts->pci) == 0) {
            gpu->mig = all[i].mig;
            memcpy(facts->cpus, all[i].facts.cpus, sizeof facts->cpus);
        }
    if (cuda_driver.device_uuid(&uuid, device) == CU_OK)
        write_uuid(facts->uuid, gpu->mig != 0 ? "MIG-" : "GPU-", &uuid);
    add_place(facts);
}

static int by_pci(const void *a, const void *b)
{
    return strcmp(((const struct cuda_gpu *)a)->facts.pci, ((const struct cuda_gpu *)b)->facts.pci);
}

/* Initialises the driver and lists all its devices, in its order. */
static ctrt_status list_of_driver(struct cuda_gpu *list, int *count, const struct cuda_gpu *all, int present)
{
    int n = 0;
    CTRT_TRY(cuda_driver_open());
    const cu_result result = cuda_driver.device_count(&n);
    if (result != CU_OK || n == 0) {
        char why[512];
        cuda_diagnose(why, sizeof why, result == CU_OK ? CU_NO_DEVICE : result, NULL);
        return cuda_host->fail(CTRT_ERR_NO_DEVICE, "%s", why);
    }
    *count = 0;
    for (int i = 0; i < n && *count < CUDA_DEVICES; i++) {
        cu_device device;
        const cu_result got = cuda_driver.device_get(&device, i);
        if (got != CU_OK)
            return cuda_host->fail(CTRT_ERR_NO_DEVICE,
                                   "the driver reports %d CUDA devices but returns no device %d (error %d)", n, i,
                                   got);
        driver_facts(&list[(*count)++], i, device, all, present);
    }
    return CTRT_OK;
}

/* Fills `found` from the driver: ordered by PCI address, as in nvidia-smi, unless CUDA_VISIBLE_DEVICES is set or
 * CUDA_DEVICE_ORDER=FASTEST_FIRST. In these cases, in the driver's order. */
static ctrt_status ask_driver(const struct cuda_gpu *all, int present)
{
    int count = 0;
    CTRT_TRY(list_of_driver(found.at, &count, all, present));
    if (getenv("CUDA_VISIBLE_DEVICES") == NULL && !ordered_by_speed())
        qsort(found.at, (size_t)count, sizeof found.at[0], by_pci);
    found.count = count;
    found.order_unknown = false;
    found.resolved = true;
    return CTRT_OK;
}

/* ---- enumeration ---- */

/* Enumerates the devices at the first call. Called with the lock held. */
static ctrt_status look(void)
{
    static struct cuda_gpu all[CUDA_DEVICES];
    char why[512];
    int present = 0;
    if (found.known) {
        warn_changed();
        return CTRT_OK;
    }
    ctrt_status status = cuda_driver_tried() ? cuda_driver_open() : cuda_driver_load();
    if (status != CTRT_OK)
        return status;
    warn_misspelt();
    note_visible(getenv("CUDA_VISIBLE_DEVICES"));
    switch (ask_nvml(all, &present, why, sizeof why)) {
    case NO_DEVICES:
        return cuda_host->fail(CTRT_ERR_NO_DEVICE, "%s", why);
    case ASK_DRIVER:
        status = ask_driver(all, present);
        break;
    case ANSWERED:
        break;
    }
    found.known = status == CTRT_OK;
    return status;
}

/* Looks up the driver's ordinals of the devices that NVML listed, by UUID. Initialises the driver. Called with the lock
 * held and found.known set. */
static ctrt_status resolve(void)
{
    static struct cuda_gpu list[CUDA_DEVICES];
    int count = 0, missing = 0;
    const bool changed = warn_changed();
    if (found.resolved)
        return cuda_driver_open();              /* returns CTRT_ERR_FORKED in a forked child */
    CTRT_TRY(list_of_driver(list, &count, found.at, found.count));
    if (found.order_unknown) {
        if (count != found.count && !changed)
            cuda_host->log(CTRT_LOG_WARNING, "backend-cuda", "NVML reports %d visible devices, the driver %d",
                           found.count, count);
        found.count = count < found.count ? count : found.count;
        memcpy(found.at, list, sizeof list[0] * (size_t)found.count);
        found.order_unknown = false;
        found.resolved = true;
        return CTRT_OK;
    }
    for (int i = 0; i < found.count; i++) {
        found.at[i].ordinal = -1;
        for (int k = 0; k < count; k++)
            if (strcmp(found.at[i].facts.uuid, list[k].facts.uuid) == 0)
                found.at[i] = list[k];
        missing += found.at[i].ordinal < 0;
    }
    if (missing > 0)
        cuda_host->log(CTRT_LOG_WARNING, "backend-cuda", "of %d devices that NVML reports, the driver shows %d",
                       found.count, found.count - missing);
    found.resolved = true;
    return CTRT_OK;
}

static ctrt_status check_index(int32_t index)
{
    if (index >= 0 && index < found.count)
        return CTRT_OK;
    const bool one = found.count == 1;
    return cuda_host->fail(CTRT_ERR_NO_DEVICE, "cuda:%d: there %s %d CUDA device%s (cuda:0%s)", (int)index,
                           one ? "is" : "are", found.count, one ? "" : "s", one ? "" : " and up");
}

ctrt_status cuda_count(int32_t *count)
{
    pthread_mutex_lock(&lock);
    ctrt_status status = look();
    if (status == CTRT_OK)
        *count = found.count;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Copies the description of device `index`; resolves the order of the devices if necessary. */
static ctrt_status get(struct cuda_gpu *out, int32_t index)
{
    pthread_mutex_lock(&lock);
    ctrt_status status = look();
    if (status == CTRT_OK)
        status = check_index(index);
    if (status == CTRT_OK && found.order_unknown)
        status = resolve();
    if (status == CTRT_OK)
        status = check_index(index);
    if (status == CTRT_OK)
        *out = found.at[index];
    pthread_mutex_unlock(&lock);
    return status;
}

ctrt_status cuda_describe(int32_t index, ctrt_device_info *info)
{
    struct cuda_gpu gpu;
    CTRT_TRY(get(&gpu, index));
    gpu.facts.size = info->size;
    memcpy(info, &gpu.facts, info->size < sizeof gpu.facts ? info->size : sizeof gpu.facts);
    return CTRT_OK;
}

ctrt_status cuda_usage(int32_t index, ctrt_device_usage *usage)
{
    struct cuda_gpu gpu;
    char name[24];
    CTRT_TRY(get(&gpu, index));
    snprintf(name, sizeof name, "cuda:%d", (int)index);
    return cuda_nvml_usage(&gpu, usage, name);
}

ctrt_status cuda_link(int32_t index, int32_t peer, ctrt_device_link *link)
{
    struct cuda_gpu a, b;
    ctrt_device_link now = { .size = link->size, .direct = -1, .kind = CTRT_LINK_UNKNOWN };
    cu_device from, to;
    int can = 0;
    CTRT_TRY(get(&a, index));
    CTRT_TRY(get(&b, peer));
    cuda_nvml_link(&a, &b, &now);
    /* If the driver is initialised already, its answer takes precedence. */
    if (a.ordinal >= 0 && b.ordinal >= 0 && a.ordinal != b.ordinal && cuda_driver_process == getpid()
        && cuda_driver.device_get(&from, a.ordinal) == CU_OK && cuda_driver.device_get(&to, b.ordinal) == CU_OK
        && cuda_driver.device_can_access_peer(&can, from, to) == CU_OK)
        now.direct = can != 0;
    memcpy(link, &now, link->size < sizeof now ? link->size : sizeof now);
    return CTRT_OK;
}

ctrt_status cuda_ordinal_of(cu_device *ordinal, int32_t index)
{
    int number = -1;
    char uuid[64] = "";
    pthread_mutex_lock(&lock);
    ctrt_status status = look();
    if (status == CTRT_OK)
        status = check_index(index);
    if (status == CTRT_OK)
        status = resolve();
    if (status == CTRT_OK)
        status = check_index(index);
    if (status == CTRT_OK) {
        number = found.at[index].ordinal;
        memcpy(uuid, found.at[index].facts.uuid, sizeof uuid);
    }
    pthread_mutex_unlock(&lock);
    if (status != CTRT_OK)
        return status;
    if (number < 0) {
        const char *now = getenv("CUDA_VISIBLE_DEVICES");
        return cuda_host->fail(CTRT_ERR_NO_DEVICE, "cuda:%d: the driver does not show %s%s%s", (int)index, uuid,
                               now != NULL ? "; CUDA_VISIBLE_DEVICES is now " : "", now != NULL ? now : "");
    }
    const cu_result result = cuda_driver.device_get(ordinal, number);
    return result == CU_OK ? CTRT_OK
                           : cuda_host->fail(CTRT_ERR_NO_DEVICE, "cuda:%d: the driver has no such device (error %d)",
                                             (int)index, result);
}
