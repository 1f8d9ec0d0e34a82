/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/nvml_api.h: the part of NVML (libnvidia-ml.so.1) that this backend uses, declared here so that it
 * builds without the CUDA toolkit.
 *
 * Values and layouts are those of NVIDIA's NVML API reference (driver 525). */
#ifndef CUDA_NVML_API_H
#define CUDA_NVML_API_H

#include <stdint.h>

typedef int nvml_result;
typedef struct nvml_device *nvml_device;

enum {                                          /* nvmlReturn_t */
    NVML_OK = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9, NVML_LIBRARY_NOT_FOUND = 12,
    NVML_GPU_IS_LOST = 15, NVML_LIB_RM_VERSION_MISMATCH = 18, NVML_UNKNOWN = 999,
};
enum { NVML_CLOCK_SM = 1 };
enum { NVML_TEMPERATURE_GPU = 0 };
enum { NVML_P2P_READ = 0, NVML_P2P_NVLINK = 2 };
enum { NVML_LINKS = 18 };                       /* NVML_NVLINK_MAX_LINKS */

#define NVML_NOT_AVAILABLE UINT64_MAX           /* NVML_VALUE_NOT_AVAILABLE: process memory unknown */
#define NVML_MEMORY_V2     (sizeof(nvml_memory) | 2u << 24)

typedef struct {                                /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem;
    char text[32];
} nvml_pci;

typedef struct {                                /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, unused, used;
} nvml_memory;

typedef struct { unsigned gpu, memory; } nvml_utilization;

enum { NVML_FABRIC_NOT_STARTED = 1, NVML_FABRIC_IN_PROGRESS = 2 };

typedef struct {                                /* nvmlGpuFabricInfo_t: GPUs connected by NVSwitch */
    char cluster[16];
    nvml_result status;
    unsigned clique;
    unsigned char state;
} nvml_fabric;

typedef struct {                                /* nvmlProcessInfo_t of the _v3 calls */
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} nvml_process;

/* NVML(our name, symbol, 1 = required | 0 = optional, arguments) */
#define NVML_ENTRIES                                                                                                \
    NVML(init, "nvmlInit_v2", 1, (void))                                                                            \
    NVML(count, "nvmlDeviceGetCount_v2", 1, (unsigned *count))                                                      \
    NVML(by_index, "nvmlDeviceGetHandleByIndex_v2", 1, (unsigned index, nvml_device *device))                       \
    NVML(by_uuid, "nvmlDeviceGetHandleByUUID", 1, (const char *uuid, nvml_device *device))                          \
    NVML(name, "nvmlDeviceGetName", 1, (nvml_device device, char *text, unsigned bytes))                            \
    NVML(uuid, "nvmlDeviceGetUUID", 1, (nvml_device device, char *text, unsigned bytes))                            \
    NVML(pci, "nvmlDeviceGetPciInfo_v3", 1, (nvml_device device, nvml_pci *pci))                                    \
    NVML(memory, "nvmlDeviceGetMemoryInfo_v2", 1, (nvml_device device, nvml_memory *memory))                        \
    NVML(capability, "nvmlDeviceGetCudaComputeCapability", 1, (nvml_device device, int *major, int *minor))         \
    NVML(cores, "nvmlDeviceGetNumGpuCores", 0, (nvml_device device, unsigned *count))                               \
    NVML(clock, "nvmlDeviceGetClockInfo", 0, (nvml_device device, int type, unsigned *mhz))                         \
    NVML(clock_limit, "nvmlDeviceGetMaxClockInfo", 0, (nvml_device device, int type, unsigned *mhz))                \
    NVML(ecc, "nvmlDeviceGetEccMode", 0, (nvml_device device, int *now, int *after_reboot))                         \
    NVML(mig, "nvmlDeviceGetMigMode", 0, (nvml_device device, unsigned *now, unsigned *after_reset))                \
    NVML(mig_instance, "nvmlDeviceGetMigDeviceHandleByIndex", 0,                                                    \
         (nvml_device device, unsigned index, nvml_device *instance))                                               \
    NVML(fabric, "nvmlDeviceGetGpuFabricInfo", 0, (nvml_device device, nvml_fabric *fabric))                        \
    NVML(utilization, "nvmlDeviceGetUtilizationRates", 0, (nvml_device device, nvml_utilization *percent))          \
    NVML(temperature, "nvmlDeviceGetTemperature", 0, (nvml_device device, int sensor, unsigned *celsius))           \
    NVML(power, "nvmlDeviceGetPowerUsage", 0, (nvml_device device, unsigned *milliwatts))                           \
    NVML(power_limit, "nvmlDeviceGetEnforcedPowerLimit", 0, (nvml_device device, unsigned *milliwatts))             \
    NVML(compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3", 0,                                           \
         (nvml_device device, unsigned *count, nvml_process *list))                                                 \
    NVML(graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v3", 0,                                         \
         (nvml_device device, unsigned *count, nvml_process *list))                                                 \
    NVML(cpus, "nvmlDeviceGetCpuAffinity", 0, (nvml_device device, unsigned words, unsigned long *set))             \
    NVML(p2p, "nvmlDeviceGetP2PStatus", 0, (nvml_device device, nvml_device peer, int kind, int *status))           \
    NVML(ancestor, "nvmlDeviceGetTopologyCommonAncestor", 0, (nvml_device device, nvml_device peer, int *level))    \
    NVML(link_state, "nvmlDeviceGetNvLinkState", 0, (nvml_device device, unsigned link, int *active))               \
    NVML(link_peer, "nvmlDeviceGetNvLinkRemotePciInfo_v2", 0, (nvml_device device, unsigned link, nvml_pci *pci))

struct nvml_library {
#define NVML(name, symbol, needed, arguments) nvml_result (*name) arguments;
    NVML_ENTRIES
#undef NVML
};

#endif
