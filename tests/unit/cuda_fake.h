/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_fake.h: fake libcuda and NVML libraries for the device discovery of backends/cuda. The discovery files are
 * compiled with dlopen and related functions renamed to the functions in this file. `fake_machine` sets the GPUs, the
 * missing symbols and the failing calls. */
#ifndef CTRT_TESTS_CUDA_FAKE_H
#define CTRT_TESTS_CUDA_FAKE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/host/discovery.h"
#include "backends/cuda/libs/nvml_api.h"

#define FAKE_GPUS 8

struct fake_gpu {
    const char *name;
    unsigned char uuid[16];
    unsigned bus;
    uint64_t memory;
    int major, minor, processors, mhz;
    int mig;                                /* 0: disabled, 1: enabled with an instance, 2: enabled without instances */
    int fabric;                             /* state of the NVLink fabric */
};

static struct {
    const char *no_cuda;                    /* dlopen's error message; NULL: libcuda exists */
    const char *no_entry;                   /* name of a symbol missing in the driver */
    int version, init;                      /* driver version; result of cuInit */
    int count, gpus[FAKE_GPUS];             /* indices into `all`, in the driver's order */
    bool nvml;
    int nvml_init, nvml_denied;             /* result of nvmlInit; index without permission, -1: none */
    int present;
    struct fake_gpu all[FAKE_GPUS];         /* in NVML's order */
    unsigned processes;                     /* compute pids from 1000; the last and the next one use graphics */
    int inits, nvml_inits;                  /* number of calls */
} fake_machine;

/* ---- libcuda ---- */

static cu_result fake_init(unsigned flags)
{
    (void)flags;
    fake_machine.inits++;
    return fake_machine.init;
}

static cu_result fake_version(int *version)
{
    *version = fake_machine.version;
    return CU_OK;
}

static cu_result fake_count(int *count)
{
    *count = fake_machine.count;
    return CU_OK;
}

static cu_result fake_get(cu_device *device, int ordinal)
{
    *device = ordinal;
    return ordinal < fake_machine.count ? CU_OK : CU_INVALID_DEVICE;
}

static const struct fake_gpu *fake_gpu(int ordinal)
{
    return &fake_machine.all[fake_machine.gpus[ordinal]];
}

static cu_result fake_name(char *name, int bytes, cu_device device)
{
    snprintf(name, (size_t)bytes, "%s", fake_gpu(device)->name);
    return CU_OK;
}

static cu_result fake_uuid(cu_uuid *uuid, cu_device device)
{
    memcpy(uuid->bytes, fake_gpu(device)->uuid, 16);
    return CU_OK;
}

static cu_result fake_memory(size_t *bytes, cu_device device)
{
    *bytes = fake_gpu(device)->memory;
    return CU_OK;
}

static cu_result fake_attribute(int *value, int which, cu_device device)
{
    const struct fake_gpu *gpu = fake_gpu(device);
    switch (which) {
    case CU_ATTRIBUTE_MAJOR: *value = gpu->major; break;
    case CU_ATTRIBUTE_MINOR: *value = gpu->minor; break;
    case CU_ATTRIBUTE_PROCESSORS: *value = gpu->processors; break;
    case CU_ATTRIBUTE_CLOCK_KHZ: *value = gpu->mhz * 1000; break;
    case CU_ATTRIBUTE_PCI_BUS: *value = (int)gpu->bus; break;
    case CU_ATTRIBUTE_PCI_DOMAIN: case CU_ATTRIBUTE_PCI_DEVICE: *value = 0; break;
    case CU_ATTRIBUTE_ECC: *value = 1; break;
    default: return CU_INVALID_VALUE;
    }
    return CU_OK;
}

static cu_result fake_peer(int *can, cu_device device, cu_device peer)
{
    *can = device != peer;
    return CU_OK;
}

static cu_result fake_other(void)
{
    return CU_NOT_SUPPORTED;
}

static cu_result fake_find(const char *symbol, void **address, int version, uint64_t flags, int *found)
{
    static const struct { const char *symbol; void *function; } known[] = {
        { "cuInit", (void *)fake_init }, { "cuDeviceGetCount", (void *)fake_count },
        { "cuDeviceGet", (void *)fake_get },
        { "cuDeviceGetName", (void *)fake_name }, { "cuDeviceGetUuid", (void *)fake_uuid },
        { "cuDeviceTotalMem", (void *)fake_memory },
        { "cuDeviceGetAttribute", (void *)fake_attribute }, { "cuDeviceCanAccessPeer", (void *)fake_peer },
    };
    (void)version, (void)flags;
    *address = (void *)fake_other;
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].symbol, symbol) == 0)
            *address = known[i].function;
    if (fake_machine.no_entry != NULL && strcmp(symbol, fake_machine.no_entry) == 0)
        *address = NULL;
    *found = *address == NULL;
    return CU_OK;
}

/* ---- NVML ---- */

static nvml_result fake_nvml_init(void)
{
    fake_machine.nvml_inits++;
    return fake_machine.nvml_init;
}

static nvml_result fake_nvml_count(unsigned *count)
{
    *count = (unsigned)fake_machine.present;
    return NVML_OK;
}

static nvml_result fake_nvml_index(unsigned index, nvml_device *device)
{
    if (fake_machine.nvml_denied == (int)index)
        return NVML_NO_PERMISSION;
    *device = (nvml_device)&fake_machine.all[index];
    return NVML_OK;
}

static const struct fake_gpu *fake_of(nvml_device device)
{
    return (const struct fake_gpu *)device;
}

/* Functions that write one value of a device, or two. */
#define NVML_GET(name, type, value)                                                 \
    static nvml_result fake_nvml_##name(nvml_device device, type *out)              \
    {                                                                               \
        const struct fake_gpu *gpu = fake_of(device);                               \
        *out = (value);                                                             \
        return gpu != NULL ? NVML_OK : NVML_NOT_FOUND;                              \
    }
#define NVML_GET2(name, type, first_value, second_value)                            \
    static nvml_result fake_nvml_##name(nvml_device device, type *first, type *second) \
    {                                                                               \
        const struct fake_gpu *gpu = fake_of(device);                               \
        *first = (first_value);                                                     \
        *second = (second_value);                                                   \
        return gpu != NULL ? NVML_OK : NVML_NOT_FOUND;                              \
    }
NVML_GET(pci, nvml_pci, ((nvml_pci){ .bus = gpu->bus }))
NVML_GET(cores, unsigned, (unsigned)gpu->processors * (gpu->major == 8 && gpu->minor == 0 ? 64 : 128))
NVML_GET(utilization, nvml_utilization, ((nvml_utilization){ gpu->bus, 7 }))
NVML_GET2(capability, int, gpu->major, gpu->minor)
NVML_GET2(ecc, int, 1, 1)
NVML_GET2(mig, unsigned, gpu->mig > 0, gpu->mig > 0)

static nvml_result fake_nvml_name(nvml_device device, char *text, unsigned bytes)
{
    snprintf(text, bytes, "%s", fake_of(device)->name);
    return NVML_OK;
}

static nvml_result fake_nvml_uuid(nvml_device device, char *text, unsigned bytes)
{
    const unsigned char *b = fake_of(device)->uuid;
    snprintf(text, bytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7],
             b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return NVML_OK;
}

static nvml_result fake_nvml_by_uuid(const char *uuid, nvml_device *device)
{
    for (int i = 0; i < fake_machine.present; i++) {
        char text[64];
        fake_nvml_uuid((nvml_device)&fake_machine.all[i], text, sizeof text);
        if (strcmp(text, uuid) == 0) {
            *device = (nvml_device)&fake_machine.all[i];
            return NVML_OK;
        }
    }
    return NVML_NOT_FOUND;
}

static nvml_result fake_nvml_memory(nvml_device device, nvml_memory *memory)
{
    const uint64_t total = fake_of(device)->memory;
    if (memory->version != NVML_MEMORY_V2)
        return NVML_INVALID_ARGUMENT;
    *memory = (nvml_memory){ memory->version, total + 1000, 1000, total / 4, total - total / 4 };
    return NVML_OK;
}

static nvml_result fake_nvml_clock(nvml_device device, int type, unsigned *mhz)
{
    *mhz = (unsigned)fake_of(device)->mhz;
    return type == NVML_CLOCK_SM ? NVML_OK : NVML_INVALID_ARGUMENT;
}

static nvml_result fake_nvml_instance(nvml_device device, unsigned index, nvml_device *instance)
{
    if (fake_of(device)->mig != 1 || index != 3)
        return NVML_NOT_FOUND;
    *instance = device;
    return NVML_OK;
}

static nvml_result fake_nvml_fabric(nvml_device device, nvml_fabric *fabric)
{
    fabric->state = (unsigned char)fake_of(device)->fabric;
    return NVML_OK;
}

static nvml_result fake_nvml_cpus(nvml_device device, unsigned words, unsigned long *set)
{
    memset(set, 0, words * sizeof *set);
    set[0] = fake_of(device)->bus % 2 ? 0x10f : ~0ul;
    set[1] = fake_of(device)->bus % 2 ? 0 : 1;
    return NVML_OK;
}

static nvml_result fake_nvml_processes(nvml_device device, unsigned *count, nvml_process *list)
{
    (void)device;
    const unsigned capacity = *count, n = fake_machine.processes;
    *count = n;
    if (capacity < n)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        list[i] = (nvml_process){ .pid = 1000 + i, .memory = i == 1 ? NVML_NOT_AVAILABLE : 4096 };
    return NVML_OK;
}

static nvml_result fake_nvml_graphics(nvml_device device, unsigned *count, nvml_process *list)
{
    (void)device;
    *count = 2;
    list[0] = (nvml_process){ .pid = 999 + fake_machine.processes, .memory = 1 };
    list[1] = (nvml_process){ .pid = 1000 + fake_machine.processes, .memory = 8192 };
    return NVML_OK;
}

static nvml_result fake_nvml_p2p(nvml_device device, nvml_device peer, int kind, int *status)
{
    const bool adjacent = fake_of(device)->bus + fake_of(peer)->bus == 3;
    *status = adjacent && (kind == NVML_P2P_READ || kind == NVML_P2P_NVLINK) ? 0 : 1;
    return NVML_OK;
}

static nvml_result fake_nvml_ancestor(nvml_device device, nvml_device peer, int *level)
{
    (void)device, (void)peer;
    *level = 50;
    return NVML_OK;
}

static nvml_result fake_nvml_link(nvml_device device, unsigned link, int *active)
{
    (void)device;
    *active = link < 4;
    return link < 12 ? NVML_OK : NVML_INVALID_ARGUMENT;
}

static nvml_result fake_nvml_link_peer(nvml_device device, unsigned link, nvml_pci *pci)
{
    (void)link;
    *pci = (nvml_pci){ .bus = 3 - fake_of(device)->bus };
    return NVML_OK;
}

/* ---- the loader ---- */

void *fake_dlopen(const char *name, int flags);
void *fake_dlsym(void *library, const char *symbol);
char *fake_dlerror(void);
int fake_dlclose(void *library);
int fake_dlinfo(void *library, int request, void *out);

static char cuda_library, nvml_library;

void *fake_dlopen(const char *name, int flags)
{
    (void)flags;
    if (strcmp(name, "libcuda.so.1") == 0)
        return fake_machine.no_cuda == NULL ? &cuda_library : NULL;
    return strcmp(name, "libnvidia-ml.so.1") == 0 && fake_machine.nvml ? &nvml_library : NULL;
}

void *fake_dlsym(void *library, const char *symbol)
{
    static const struct { const char *symbol; void *function; } nvml[] = {
        { "nvmlInit_v2", (void *)fake_nvml_init }, { "nvmlDeviceGetCount_v2", (void *)fake_nvml_count },
        { "nvmlDeviceGetHandleByIndex_v2", (void *)fake_nvml_index },
        { "nvmlDeviceGetHandleByUUID", (void *)fake_nvml_by_uuid }, { "nvmlDeviceGetName", (void *)fake_nvml_name },
        { "nvmlDeviceGetUUID", (void *)fake_nvml_uuid }, { "nvmlDeviceGetPciInfo_v3", (void *)fake_nvml_pci },
        { "nvmlDeviceGetMemoryInfo_v2", (void *)fake_nvml_memory },
        { "nvmlDeviceGetCudaComputeCapability", (void *)fake_nvml_capability },
        { "nvmlDeviceGetNumGpuCores", (void *)fake_nvml_cores },
        { "nvmlDeviceGetMaxClockInfo", (void *)fake_nvml_clock },
        { "nvmlDeviceGetEccMode", (void *)fake_nvml_ecc }, { "nvmlDeviceGetMigMode", (void *)fake_nvml_mig },
        { "nvmlDeviceGetMigDeviceHandleByIndex", (void *)fake_nvml_instance },
        { "nvmlDeviceGetCpuAffinity", (void *)fake_nvml_cpus },
        { "nvmlDeviceGetGpuFabricInfo", (void *)fake_nvml_fabric },
        { "nvmlDeviceGetUtilizationRates", (void *)fake_nvml_utilization },
        { "nvmlDeviceGetComputeRunningProcesses_v3", (void *)fake_nvml_processes },
        { "nvmlDeviceGetGraphicsRunningProcesses_v3", (void *)fake_nvml_graphics },
        { "nvmlDeviceGetP2PStatus", (void *)fake_nvml_p2p },
        { "nvmlDeviceGetTopologyCommonAncestor", (void *)fake_nvml_ancestor },
        { "nvmlDeviceGetNvLinkState", (void *)fake_nvml_link },
        { "nvmlDeviceGetNvLinkRemotePciInfo_v2", (void *)fake_nvml_link_peer },
    };
    if (library == &cuda_library)
        return strcmp(symbol, "cuGetProcAddress_v2") == 0    ? (void *)fake_find
               : strcmp(symbol, "cuDriverGetVersion") == 0 ? (void *)fake_version
                                                           : NULL;
    for (size_t i = 0; i < COUNT_OF(nvml); i++)
        if (strcmp(nvml[i].symbol, symbol) == 0)
            return nvml[i].function;
    return NULL;
}

char *fake_dlerror(void)
{
    return (char *)fake_machine.no_cuda;
}

int fake_dlclose(void *library)
{
    (void)library;
    return 0;
}

int fake_dlinfo(void *library, int request, void *out)
{
    (void)library, (void)request, (void)out;
    return -1;
}

/* Sets up two equal GPUs without faults. */
static void fake_machine_reset(void)
{
    memset(&fake_machine, 0, sizeof fake_machine);
    fake_machine.version = 12040;
    fake_machine.nvml = true;
    fake_machine.nvml_denied = -1;
    fake_machine.processes = 2;
    fake_machine.present = fake_machine.count = 2;
    for (int i = 0; i < FAKE_GPUS; i++) {
        fake_machine.gpus[i] = i;
        fake_machine.all[i] = (struct fake_gpu){ "NVIDIA H200", { (unsigned char)(0xa0 + i), 1, 2, 3 },
                                                 1 + (unsigned)i, (uint64_t)140 << 30, 9, 0, 132, 1980, 0, 3 };
        fake_machine.all[i].uuid[15] = (unsigned char)i;
    }
}

#endif
