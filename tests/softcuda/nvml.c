/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nvml.c: a fake libnvidia-ml.so.1: the devices of softcuda, in the form in which NVML reports GPUs;
 * also linked into test-cuda-discovery, which describes other devices.
 *
 * It reports all devices, independent of CUDA_VISIBLE_DEVICES, and does not initialize the driver. Calls are counted,
 * and failures can be injected as for the driver.
 * SOFTNVML_PROCESSES="0:4242:64000000,..." adds fake processes: device, pid, bytes. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "nvml_hooks.h"

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, ALREADY_INITIALIZED, NOT_FOUND,
       INSUFFICIENT_SIZE };
enum { NAMED = 16, NVLINK = 2 };

typedef struct handle *handle;              /* device number + 1 */
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } pci_info;
typedef struct { unsigned version; unsigned long long total, reserved, unused, used; } memory_info_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } fabric_info;

static atomic_bool initialized;

/* Counts the call, which may be made to fail. */
#define ENTER() TRY(initialized ? softcuda_enter(__func__) : UNINITIALIZED)

/* Declares `facts`, those of the device. */
#define LOOK(facts, device)         \
    struct softcuda_hardware facts; \
    RETURN_IF((device) == NULL || !softcuda_hardware(&(facts), (int)(intptr_t)(device) - 1), INVALID_ARGUMENT)

EXPORT int nvmlInit_v2(void)
{
    TRY(softcuda_enter(__func__));
    initialized = true;
    return OK;
}

static int put_text(char *text, unsigned bytes, const char *what)
{
    RETURN_IF(text == NULL, INVALID_ARGUMENT);
    return (unsigned)snprintf(text, bytes, "%s", what) < bytes ? OK : INSUFFICIENT_SIZE;
}

/* ---- devices ---- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER();
    RETURN_IF(count == NULL, INVALID_ARGUMENT);
    *count = (unsigned)softcuda_hardware_count();
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device)
{
    ENTER();
    LOOK(facts, (handle)(intptr_t)(index + 1));
    RETURN_IF(device == NULL, INVALID_ARGUMENT);
    *device = (handle)(intptr_t)(index + 1);
    return facts.denied ? NO_PERMISSION : OK;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device)
{
    struct softcuda_hardware facts;
    ENTER();
    RETURN_IF(uuid == NULL || device == NULL, INVALID_ARGUMENT);
    for (int i = 0; softcuda_hardware(&facts, i); i++)
        if (strcmp(facts.uuid, uuid) == 0) {
            *device = (handle)(intptr_t)(i + 1);
            return OK;
        }
    return NOT_FOUND;
}

/* Functions whose results follow from the facts about the device: one, two, or one of a type of clock or sensor. */
#define FUNCTION(name, parameters, ...) \
    EXPORT int name parameters          \
    {                                   \
        ENTER();                        \
        LOOK(facts, device);            \
        __VA_ARGS__;                    \
        return OK;                      \
    }
#define FACT(name, type, value) FUNCTION(name, (handle device, type *out), *out = (value))
#define FACTS(name, type, first, second) \
    FUNCTION(name, (handle device, type *out, type *other), *out = (first), *other = (second))
#define FACT_OF(name, value) FUNCTION(name, (handle device, int type, unsigned *out), *out = (value))
enum { CLOCK_MEMORY = 2 };

static unsigned cores_per_multiprocessor(const struct softcuda_hardware *facts)
{
    return facts->major == 7 || (facts->major < 9 && facts->major > 5 && facts->minor == 0) ? 64 : 128;
}

FUNCTION(nvmlDeviceGetName, (handle device, char *text, unsigned bytes), TRY(put_text(text, bytes, facts.name)))
FUNCTION(nvmlDeviceGetUUID, (handle device, char *text, unsigned bytes), TRY(put_text(text, bytes, facts.uuid)))
FUNCTION(nvmlDeviceGetPciInfo_v3, (handle device, pci_info *pci),
         *pci = (pci_info){ .bus = facts.bus, .id = 0xfffe10de };
         snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", facts.bus);
         snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", facts.bus))
FACTS(nvmlDeviceGetCudaComputeCapability, int, facts.major, facts.minor)
FACTS(nvmlDeviceGetEccMode, int, 1, 1)
FACTS(nvmlDeviceGetMigMode, unsigned, facts.mig != MIG_OFF, facts.mig != MIG_OFF)
FUNCTION(nvmlDeviceGetMigDeviceHandleByIndex, (handle device, unsigned index, handle *instance),
         RETURN_IF(facts.mig != MIG_INSTANCE || index != 3, NOT_FOUND); *instance = device)
FUNCTION(nvmlDeviceGetGpuFabricInfo, (handle device, fabric_info *out), *out = (fabric_info){ .state = facts.fabric })
FUNCTION(nvmlDeviceGetNvLinkState, (handle device, unsigned link, int *active),
         RETURN_IF(link >= 12, INVALID_ARGUMENT); *active = facts.nvlink != 0 && link < 4)
FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo_v2, (handle device, unsigned link, pci_info *pci),
         (void)link, *pci = (pci_info){ .bus = facts.nvlink })
FUNCTION(nvmlDeviceGetTopologyCommonAncestor, (handle device, handle peer, int *level), LOOK(other, peer);
         *level = 30)                           /* a host bridge */
FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, (handle device, unsigned *count, process_info *list),
         (void)list, *count = 0)
FACT(nvmlDeviceGetNumGpuCores, unsigned, (unsigned)facts.multiprocessors * cores_per_multiprocessor(&facts))
FACT(nvmlDeviceGetPowerUsage, unsigned, facts.busy ? 400000 : 70000)
FACT(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
FACT(nvmlDeviceGetUtilizationRates, utilization, (facts.busy ? (utilization){ 100, 50 } : (utilization){ 0, 0 }))
FACT_OF(nvmlDeviceGetMaxClockInfo, type == CLOCK_MEMORY ? 3201 : 1980)
FACT_OF(nvmlDeviceGetClockInfo, type == CLOCK_MEMORY ? 3201 : facts.busy ? 1980 : 345)
FACT_OF(nvmlDeviceGetTemperature, type != 0 ? 0 : facts.busy ? 60 : 30)

EXPORT int nvmlDeviceGetCpuAffinity(handle device, unsigned words, unsigned long *set)
{
    ENTER();
    LOOK(facts, device);
    RETURN_IF(words == 0 || set == NULL, INVALID_ARGUMENT);
    memset(set, 0, words * sizeof *set);
    for (unsigned i = 0; i < words && i < COUNT_OF(facts.cpus); i++)
        set[i] = facts.cpus[i];
    return OK;
}

EXPORT int nvmlDeviceGetP2PStatus(handle device, handle peer, int kind, int *status)
{
    ENTER();
    LOOK(facts, device);
    LOOK(other, peer);
    RETURN_IF(status == NULL || kind < 0 || kind > 4, INVALID_ARGUMENT);
    const bool reaches = facts.nvlink == 0 ? kind != NVLINK : facts.nvlink == other.bus;
    *status = device != peer && reaches ? OK : 1;       /* 1: the chipset does not support it */
    return OK;
}

/* ---- load ---- */

/* Lists the fake processes of SOFTNVML_PROCESSES on the device; `list` may be NULL. */
static int others(int number, process_info *list, unsigned long long *bytes)
{
    int count = 0;
    *bytes = 0;
    for (const char *at = getenv("SOFTNVML_PROCESSES"); at != NULL && *at != '\0' && count < NAMED;) {
        int where, used = 0;
        unsigned pid;
        unsigned long long memory;
        if (sscanf(at, "%d:%u:%llu%n", &where, &pid, &memory, &used) < 3)
            break;
        if (where == number) {
            if (list != NULL)
                list[count] = (process_info){ pid, memory, ~0u, ~0u };
            *bytes += memory;
            count++;
        }
        at += used;
        at += *at == ',';
    }
    return count;
}

static unsigned long long used_bytes(const struct softcuda_hardware *facts, handle device)
{
    unsigned long long bytes;
    others((int)(intptr_t)device - 1, NULL, &bytes);
    bytes += facts->used;
    return bytes < facts->memory ? bytes : facts->memory;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle device, memory_info_v2 *memory)
{
    ENTER();
    LOOK(facts, device);
    RETURN_IF(memory == NULL || memory->version != (sizeof *memory | 2u << 24), INVALID_ARGUMENT);
    const unsigned long long used = used_bytes(&facts, device), reserved = 8 << 20;
    *memory = (memory_info_v2){ memory->version, facts.memory + reserved, reserved, facts.memory - used, used };
    return OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, process_info *list)
{
    process_info all[NAMED + 1];
    unsigned long long bytes;
    ENTER();
    LOOK(facts, device);
    RETURN_IF(count == NULL || (*count > 0 && list == NULL), INVALID_ARGUMENT);
    unsigned n = (unsigned)others((int)(intptr_t)device - 1, all, &bytes);
    if (facts.active)
        all[n++] = (process_info){ (unsigned)getpid(), facts.used, ~0u, ~0u };
    const bool fits = n <= *count;
    if (fits && n > 0)
        memcpy(list, all, n * sizeof all[0]);
    *count = n;
    return fits ? OK : INSUFFICIENT_SIZE;
}
