/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_discovery.h: for the device discovery of backends/cuda: a fake libcuda, the devices of softcuda's NVML, a host
 * table, recorded trees of /proc, /sys and /dev, and a child process for each case, because a process keeps the result
 * of its first discovery. The discovery files are compiled with dlopen and related functions renamed to the functions
 * in this file.
 * `fake_machine` sets the GPUs, the missing symbols and the failing calls. */
#ifndef CTRT_TESTS_CUDA_DISCOVERY_H
#define CTRT_TESTS_CUDA_DISCOVERY_H

#include <sys/mman.h>
#include <sys/prctl.h>

#include "backends/cuda/host/discovery.h"
#include "backends/cuda/libs/nvml_api.h"
#include "child.h"
#include "file_tree.h"
#include "log_kept.h"
#include "registry/internal.h"
#include "softcuda/nvml_hooks.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"         /* of the fake functions */

const ctrt_host *cuda_host = &registry_host;

#define FAKE_GPUS 8

struct fake_gpu {
    const char *name;
    unsigned char uuid[16];
    unsigned bus;
    uint64_t memory;
    int major, minor, processors, mhz;
    int mig;                                /* MIG_* */
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

/* A function of the driver that returns success. */
#define CU(name, parameters, ...) static cu_result fake_cu_##name parameters { __VA_ARGS__; return CU_OK; }

/* ---- libcuda ---- */

static const struct fake_gpu *fake_gpu(int ordinal)
{
    return &fake_machine.all[fake_machine.gpus[ordinal]];
}

CU(init, (unsigned flags), fake_machine.inits++; return fake_machine.init)
CU(version, (int *version), *version = fake_machine.version)
CU(count, (int *count), *count = fake_machine.count)
CU(get, (cu_device *device, int ordinal), *device = ordinal;
   if (ordinal >= fake_machine.count) return CU_INVALID_DEVICE)
CU(name, (char *name, int bytes, cu_device device), snprintf(name, (size_t)bytes, "%s", fake_gpu(device)->name))
CU(uuid, (cu_uuid *uuid, cu_device device), memcpy(uuid->bytes, fake_gpu(device)->uuid, 16))
CU(memory, (size_t *bytes, cu_device device), *bytes = fake_gpu(device)->memory)
CU(peer, (int *can, cu_device device, cu_device peer), *can = device != peer)
CU(other, (void), return CU_NOT_SUPPORTED)

static cu_result fake_cu_attribute(int *value, int which, cu_device device)
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

static cu_result fake_find(const char *symbol, void **address, int version, uint64_t flags, int *found)
{
#define SYMBOL(symbol, name) { "cu" symbol, (void *)fake_cu_##name }
    static const struct { const char *symbol; void *function; } known[] = {
        SYMBOL("Init", init), SYMBOL("DeviceGetCount", count), SYMBOL("DeviceGet", get), SYMBOL("DeviceGetName", name),
        SYMBOL("DeviceGetUuid", uuid), SYMBOL("DeviceTotalMem", memory), SYMBOL("DeviceGetAttribute", attribute),
        SYMBOL("DeviceCanAccessPeer", peer),
    };
#undef SYMBOL
    *address = (void *)fake_cu_other;
    EACH(k, known)
        if (strcmp(k->symbol, symbol) == 0)
            *address = k->function;
    if (fake_machine.no_entry != NULL && strcmp(symbol, fake_machine.no_entry) == 0)
        *address = NULL;
    *found = *address == NULL;
    return CU_OK;
}

/* ---- NVML: that of softcuda, with these devices and processes ---- */

int softcuda_enter(const char *symbol)
{
    if (strcmp(symbol, "nvmlInit_v2") != 0)
        return NVML_OK;
    fake_machine.nvml_inits++;
    return fake_machine.nvml_init;
}

int softcuda_hardware_count(void)
{
    return fake_machine.present;
}

bool softcuda_hardware(struct softcuda_hardware *out, int number)
{
    if (number < 0 || number >= fake_machine.present)
        return false;
    const struct fake_gpu *gpu = &fake_machine.all[number];
    *out = (struct softcuda_hardware){
        .name = gpu->name, .major = gpu->major, .minor = gpu->minor, .multiprocessors = gpu->processors,
        .bus = gpu->bus, .memory = gpu->memory, .used = gpu->memory - gpu->memory / 4, .busy = true,
        .denied = fake_machine.nvml_denied == number, .mig = gpu->mig, .fabric = (unsigned char)gpu->fabric,
        .nvlink = gpu->bus < 3 ? 3 - gpu->bus : 0, .cpus = { gpu->bus % 2 ? 0x10f : ~0ul, gpu->bus % 2 ? 0 : 1 },
    };
    const unsigned char *b = gpu->uuid;
    snprintf(out->uuid, sizeof out->uuid, "GPU-%02x%02x%02x%02x-0000-0000-0000-0000000000%02x", b[0], b[1], b[2], b[3],
             b[15]);
    return true;
}

static nvml_result fake_nv_processes(nvml_device device, unsigned *count, nvml_process *list)
{
    const unsigned capacity = *count, n = fake_machine.processes;
    *count = n;
    if (capacity < n)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        list[i] = (nvml_process){ .pid = 1000 + i, .memory = i == 1 ? NVML_NOT_AVAILABLE : 4096 };
    return NVML_OK;
}

static nvml_result fake_nv_graphics(nvml_device device, unsigned *count, nvml_process *list)
{
    *count = 2;
    list[0] = (nvml_process){ .pid = 999 + fake_machine.processes, .memory = 1 };
    list[1] = (nvml_process){ .pid = 1000 + fake_machine.processes, .memory = 8192 };
    return NVML_OK;
}

/* ---- the loader ---- */

/* Finds the functions of nvml.c, which is linked into this program. */
extern void *real_dlsym(void *library, const char *symbol) __asm__("dlsym");

static char cuda_library, nvml_library;

void *fake_dlopen(const char *name, int flags)
{
    if (strcmp(name, "libcuda.so.1") == 0)
        return fake_machine.no_cuda == NULL ? &cuda_library : NULL;
    return strcmp(name, "libnvidia-ml.so.1") == 0 && fake_machine.nvml ? &nvml_library : NULL;
}

void *fake_dlsym(void *library, const char *symbol)
{
    if (library == &nvml_library)
        return strcmp(symbol, "nvmlDeviceGetComputeRunningProcesses_v3") == 0    ? (void *)fake_nv_processes
               : strcmp(symbol, "nvmlDeviceGetGraphicsRunningProcesses_v3") == 0 ? (void *)fake_nv_graphics
               : strcmp(symbol, "nvmlDeviceGetTemperature") == 0                 ? NULL
                                                                                 : real_dlsym(NULL, symbol);
    return strcmp(symbol, "cuGetProcAddress_v2") == 0  ? (void *)fake_find
           : strcmp(symbol, "cuDriverGetVersion") == 0 ? (void *)fake_cu_version
                                                       : NULL;
}

char *fake_dlerror(void) { return (char *)fake_machine.no_cuda; }
int fake_dlclose(void *library) { return 0; }
int fake_dlinfo(void *library, int request, void *out) { return -1; }

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

/* ---- recorded file trees ---- */

#define CARD(address, driver)                                                               \
    { "/sys/bus/pci/devices/" address "/vendor", "0x10de\n", 0 },                           \
    { "/sys/bus/pci/devices/" address "/class", "0x030200\n", 0 },                          \
    { "/sys/bus/pci/devices/" address "/driver", "-> ../../../bus/pci/drivers/" driver, 0 }
#define OTHERS                                                                              \
    { "/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n", 0 },                          \
    { "/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n", 0 },                         \
    { "/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n", 0 },                          \
    { "/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n", 0 }
#define MODULE                                                                              \
    { "/proc/driver/nvidia/version",                                                        \
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n" \
      "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", 0 }
#define OPEN_MODULE                                                                         \
    { "/proc/driver/nvidia/version",                                                        \
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", 0 }
#define GPU(address, minor)                                                                 \
    { "/proc/driver/nvidia/gpus/" address "/information",                                   \
      "Model: \t\t NVIDIA H200\nIRQ:   \t\t 120\nDevice Minor: \t " minor "\n", 0 }
#define NODE(name) { "/dev/nvidia" name, "", 0 }
#define NODES      NODE("ctl"), NODE("-uvm")
#define GPU_65     GPU("0000:65:00.0", "0")
#define END        { NULL, NULL, 0 }
#define TREE(name, ...) static const struct file name[] = { __VA_ARGS__, END };

TREE(bare, OTHERS)
TREE(no_bus, { "/proc", NULL, 0 })
TREE(nouveau, OTHERS, CARD("0000:65:00.0", "nouveau"), CARD("0000:66:00.0", "vfio-pci"))
TREE(guest, CARD("0000:65:00.0", "vfio-pci"))
TREE(no_driver, { "/sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de\n", 0 },
     { "/sys/bus/pci/devices/0000:65:00.0/class", "0x030000\n", 0 })
TREE(module_only, MODULE, GPU_65, CARD("0000:65:00.0", "nvidia"), NODES, NODE("0"))
TREE(open_module, OPEN_MODULE, GPU_65)
TREE(container, MODULE, { "/.dockerenv", "", 0 })
TREE(pod, MODULE, { "/proc/self/cgroup", "0::/kubepods/burstable/pod1\n", 0 })
TREE(wsl, { "/dev/dxg", "", 0 }, { "/sys/bus/pci/devices", NULL, 0 })
TREE(no_control, MODULE, GPU_65, NODE("0"))
TREE(no_uvm, MODULE, GPU_65, NODE("ctl"), NODE("0"))
TREE(no_node, MODULE, GPU("0000:65:00.0", "3"), NODES, NODE("0"))
TREE(one_of_two, MODULE, GPU_65, GPU("0000:66:00.0", "1"), NODES, NODE("1"))
TREE(denied, MODULE, GPU_65, { "/dev/nvidiactl", "", 0060 }, { "/dev/nvidia-uvm", "", 0060 },
     { "/dev/nvidia0", "", 0060 })
TREE(denied_gpu, MODULE, GPU_65, NODES, { "/dev/nvidia0", "", 0100 })
TREE(odd_control, MODULE, GPU_65, { "/dev/nvidiactl", NULL, 0 }, NODE("-uvm"))
TREE(odd_uvm, MODULE, GPU_65, NODE("ctl"), { "/dev/nvidia-uvm", "-> nvidia-uvm", 0 })
TREE(odd_gpu, MODULE, GPU("0000:65:00.0", "1"), NODES, { "/dev/nvidia1", "-> nvidia1", 0 })
TREE(odd_gpu_of_two, MODULE, GPU_65, GPU("0000:66:00.0", "1"), NODES, { "/dev/nvidia1", NULL, 0 })
TREE(no_gpu, MODULE, { "/proc/driver/nvidia/gpus", NULL, 0 }, NODES, NODE("0"))

/* ---- one child process per case ---- */

#define SETTINGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

#define IN_DISCOVERY(...) IN_CHILD(__VA_ARGS__) if (CHECK_OK(cuda_discovery_init()))

/* The results of a child process. */
struct found {
    ctrt_status status;
    int count, inits, nvml_inits;
    char message[512], logged[512];
    char uuids[8][64];
    ctrt_device_info first;
};
static struct found *shared;                    /* memory that the child shares */

/* Counts the devices in a child process with these environment variables, and describes up to 8 of them if `describe`
 * is set. With `unprivileged` a child of root changes to user 65534 first. */
static struct found discover(const char *const *settings, bool unprivileged, bool describe)
{
    memset(shared, 0, sizeof *shared);
    IN_CHILD(NULL) {
        int32_t count = -1;
        if (settings != NULL)
            child_environment(settings);
        if (unprivileged && geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0))
            _exit(98);
        shared->status = cuda_discovery_init();
        if (shared->status == CTRT_OK)
            shared->status = cuda_count(&count);
        shared->count = count;
        for (int i = 0; describe && i < count && i < 8 && shared->status == CTRT_OK; i++) {
            ctrt_device_info info = { .size = sizeof info };
            shared->status = cuda_describe(i, &info);
            memcpy(shared->uuids[i], info.uuid, sizeof shared->uuids[i]);
            if (i == 0)
                shared->first = info;
        }
        shared->inits = fake_machine.inits;
        shared->nvml_inits = fake_machine.nvml_inits;
        snprintf(shared->message, sizeof shared->message, "%.500s", ctrt_error_message());
        snprintf(shared->logged, sizeof shared->logged, "%.500s", logged);
        /* LeakSanitizer needs the rights of the user that started the test. */
        if (unprivileged && getuid() == 0 && (seteuid(0) != 0 || setegid(0) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0))
            _exit(97);
    }
    return *shared;
}

static inline void discovery_begin(void)
{
    static const char *const variables[] = { "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
                                             "NVIDIA_DRIVER_CAPABILITIES", "KUBERNETES_SERVICE_HOST",
                                             "CTRT_CUDA_NVML" };
    EACH(name, variables)
        unsetenv(*name);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_TRUE(shared != MAP_FAILED);
    cuda_root = tree = folder_new();
    log_keep(CTRT_LOG_INFO);
}

#endif
