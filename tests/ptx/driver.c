/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/driver.c: initialisation, devices, contexts, and the table of entry points. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

#define VERSION 13000
#define EXPORT __attribute__((visibility("default")))

static bool initialised;
static _Thread_local void *current;

struct options ptx_options = { .threads = 2, .devices = 1, .memory = (size_t)2 << 30 };

/* PTX=name=value,...; a name without a value is set. */
void ptx_options_read(void)
{
    const char *p = getenv("PTX");
    while (p != NULL && *p != '\0') {
        const size_t n = strcspn(p, ",");
        const size_t name = strcspn(p, "=,");
        const char *value = p + name + (p[name] == '=');
        const long number = strtol(value, NULL, 10);
#define IS(text) (name == sizeof text - 1 && memcmp(p, text, name) == 0)
        if (IS("reverse"))
            ptx_options.reverse = true;
        else if (IS("single"))
            ptx_options.single = true;
        else if (IS("races"))
            ptx_options.races = true;
        else if (IS("threads") && number > 0)
            ptx_options.threads = (int)number;
        else if (IS("ulp") && number >= 0)
            ptx_options.ulp = (int)number;
        else if (IS("devices") && number > 0)
            ptx_options.devices = (int)number;
        else if (IS("memory") && number > 0)
            ptx_options.memory = (size_t)number << 20;
        else if (IS("counts"))
            ptx_options.counts = strndup(value, n - (size_t)(value - p));
        else if (IS("without"))
            ptx_options.without = strndup(value, n - (size_t)(value - p));
        else if (IS("blocks"))
            ptx_options.blocks = strndup(value, n - (size_t)(value - p));
        else
            fprintf(stderr, "ptx: unknown entry of PTX: %.*s (see tests/ptx/README.md)\n", (int)n, p);
#undef IS
        p += n + (p[n] == ',');
    }
}

long ptx_option_for(const char *value, const char *kernel)
{
    const size_t n = strlen(kernel);
    return value != NULL && strncmp(value, kernel, n) == 0 && value[n] == ':' ? strtol(value + n + 1, NULL, 10) : 0;
}

/* Appends to the file one line per kernel that was launched. */
void ptx_counts_write(void)
{
    static const char *const names[] = {
#define CLASS(name) #name,
        CLASSES(CLASS)
#undef CLASS
    };
    FILE *file = ptx_options.counts == NULL ? NULL : fopen(ptx_options.counts, "a");
    if (file == NULL)
        return;
    for (struct module *m = driver_modules; m != NULL; m = m->next)
        for (struct function *f = m->functions; f != NULL; f = f->next) {
            unsigned long long all = 0;
            if (!f->is_kernel || atomic_load(&f->launches) == 0)
                continue;
            for (unsigned k = 0; k < CLASS_COUNT; k++)
                all += atomic_load(&f->counts[k]);
            fprintf(file, "%s launches=%llu warp=%llu thread=%llu", f->name, atomic_load(&f->launches), all,
                    atomic_load(&f->lanes));
            for (unsigned k = 0; k < CLASS_COUNT; k++)
                if (atomic_load(&f->counts[k]) > 0)
                    fprintf(file, " %s=%llu", names[k], atomic_load(&f->counts[k]));
            fputc('\n', file);
        }
    fclose(file);
}

__attribute__((destructor)) static void at_exit(void)
{
    ptx_counts_write();
}

/* ---- entry points ---- */

static result init(unsigned flags)
{
    if (!initialised)
        ptx_options_read();
    initialised = true;
    return flags == 0 ? OK : INVALID_VALUE;
}

EXPORT result cuDriverGetVersion(int *version);
EXPORT result cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return OK;
}

static const struct { result code; const char *name, *text; } errors[] = {
    { 0, "CUDA_SUCCESS", "no error" }, { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" }, { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
      "no kernel image is available for execution on the device" },
    { 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" }, { 600, "CUDA_ERROR_NOT_READY", "device not ready" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch" },
    { 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated" },
    { 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" },
    { 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture" },
};

static result error_words(result code, const char **out, bool name)
{
    for (size_t k = 0; k < sizeof errors / sizeof errors[0]; k++)
        if (errors[k].code == code) {
            *out = name ? errors[k].name : errors[k].text;
            return OK;
        }
    *out = name ? "CUDA_ERROR" : "an error that tests/ptx has no text for";
    return OK;
}

static result error_name(result code, const char **out) { return error_words(code, out, true); }
static result error_string(result code, const char **out) { return error_words(code, out, false); }

static result device_count(int *count)
{
    *count = ptx_options.devices;
    return initialised ? OK : NOT_INITIALIZED;
}

static bool is_device(int device)
{
    return device >= 0 && device < ptx_options.devices;
}

static result device_get(int *device, int ordinal)
{
    *device = ordinal;
    return is_device(ordinal) ? OK : INVALID_DEVICE;
}

static result device_name(char *name, int bytes, int device)
{
    snprintf(name, (size_t)bytes, "interpreter of PTX");
    return is_device(device) ? OK : INVALID_DEVICE;
}

static result device_uuid(char *uuid, int device)
{
    memset(uuid, 0, 16);
    memcpy(uuid, "ptx", 3);
    uuid[15] = (char)device;
    return is_device(device) ? OK : INVALID_DEVICE;
}

static result device_memory(size_t *bytes, int device)
{
    *bytes = ptx_options.memory;
    return is_device(device) ? OK : INVALID_DEVICE;
}

static result device_attribute(int *value, int attribute, int device)
{
    /* CUdevice_attribute: threads of a block, clock, multiprocessors, L2, threads of a multiprocessor, capability 9.0,
     * shared memory of a block, virtual memory, pools. */
    static const int values[][2] = { { 1, 1024 }, { 13, 1000000 }, { 16, 4 }, { 38, 1 << 20 }, { 39, 2048 }, { 75, 9 },
                                     { 76, 0 }, { 97, 227 << 10 }, { 102, 1 }, { 115, 1 }, { 33, 1 }, { 34, 0 },
                                     { 50, 0 } };
    *value = 0;
    for (size_t k = 0; k < sizeof values / sizeof values[0]; k++)
        if (values[k][0] == attribute)
            *value = values[k][1];
    return is_device(device) ? OK : INVALID_DEVICE;
}

static result can_access_peer(int *can, int device, int peer)
{
    *can = device != peer;
    return is_device(device) && is_device(peer) ? OK : INVALID_DEVICE;
}

/* All devices have the memory and the thread of the host, so that a context is only a name. */
static char contexts[64];

static result context_retain(void **context, int device)
{
    if (!is_device(device) || device >= (int)sizeof contexts)
        return INVALID_DEVICE;
    *context = &contexts[device];
    return driver_error();
}

static result context_release(int device)
{
    return is_device(device) ? OK : INVALID_DEVICE;
}

static result context_set(void *context)
{
    current = context;
    return OK;
}

static result context_get(void **context)
{
    *context = current;
    return OK;
}

static result context_enable_peer(void *peer, unsigned flags)
{
    return peer != current && flags == 0 ? OK : INVALID_VALUE;
}

static result context_priorities(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return OK;
}

static const struct entry { const char *name; void (*function)(void); } entries[] = {
#define ENTRY(name, function) { #name, (void (*)(void))function },
    ENTRY(cuInit, init) ENTRY(cuDriverGetVersion, cuDriverGetVersion) ENTRY(cuGetErrorName, error_name)
    ENTRY(cuGetErrorString, error_string) ENTRY(cuDeviceGetCount, device_count) ENTRY(cuDeviceGet, device_get)
    ENTRY(cuDeviceGetName, device_name) ENTRY(cuDeviceGetUuid, device_uuid) ENTRY(cuDeviceTotalMem, device_memory)
    ENTRY(cuDeviceGetAttribute, device_attribute) ENTRY(cuDeviceCanAccessPeer, can_access_peer)
    ENTRY(cuDevicePrimaryCtxRetain, context_retain) ENTRY(cuDevicePrimaryCtxRelease, context_release)
    ENTRY(cuCtxSetCurrent, context_set) ENTRY(cuCtxGetCurrent, context_get)
    ENTRY(cuCtxSynchronize, context_synchronize) ENTRY(cuCtxEnablePeerAccess, context_enable_peer)
    ENTRY(cuCtxGetStreamPriorityRange, context_priorities) ENTRY(cuMemGetInfo, memory_info)
    ENTRY(cuMemAlloc, memory_alloc) ENTRY(cuMemFree, memory_free) ENTRY(cuMemHostAlloc, host_alloc)
    ENTRY(cuMemFreeHost, host_free) ENTRY(cuMemHostRegister, host_register)
    ENTRY(cuMemHostUnregister, host_unregister) ENTRY(cuMemHostGetDevicePointer, host_device_address)
    ENTRY(cuMemcpyHtoDAsync, copy_to_device) ENTRY(cuMemcpyDtoHAsync, copy_to_host)
    ENTRY(cuMemcpyDtoDAsync, copy_on_device) ENTRY(cuMemcpyPeerAsync, copy_peer) ENTRY(cuMemsetD8Async, fill_bytes)
    ENTRY(cuMemAddressReserve, address_reserve) ENTRY(cuMemAddressFree, address_free)
    ENTRY(cuMemCreate, allocation_create) ENTRY(cuMemRelease, allocation_release)
    ENTRY(cuMemGetAllocationGranularity, allocation_granularity)
    ENTRY(cuMemExportToShareableHandle, allocation_export) ENTRY(cuMemImportFromShareableHandle, allocation_import)
    ENTRY(cuMemMap, map) ENTRY(cuMemUnmap, unmap) ENTRY(cuMemSetAccess, set_access)
    ENTRY(cuMemPoolCreate, pool_create) ENTRY(cuMemPoolDestroy, pool_destroy)
    ENTRY(cuMemPoolSetAttribute, pool_set) ENTRY(cuMemPoolTrimTo, pool_trim)
    ENTRY(cuMemAllocFromPoolAsync, alloc_from_pool) ENTRY(cuMemFreeAsync, free_async)
    ENTRY(cuStreamCreateWithPriority, stream_create) ENTRY(cuStreamDestroy, stream_destroy)
    ENTRY(cuStreamSynchronize, stream_synchronize) ENTRY(cuStreamQuery, stream_query)
    ENTRY(cuStreamWaitEvent, stream_wait) ENTRY(cuLaunchHostFunc, launch_host) ENTRY(cuEventCreate, event_create)
    ENTRY(cuEventDestroy, event_destroy) ENTRY(cuEventRecord, event_record) ENTRY(cuEventQuery, event_query)
    ENTRY(cuEventSynchronize, event_synchronize) ENTRY(cuEventElapsedTime, event_elapsed)
    ENTRY(cuLibraryLoadData, library_load) ENTRY(cuLibraryGetKernel, library_kernel)
    ENTRY(cuKernelSetAttribute, kernel_set) ENTRY(cuLaunchKernel, launch_kernel)
    ENTRY(cuStreamBeginCapture, capture_begin) ENTRY(cuStreamEndCapture, capture_end)
    ENTRY(cuStreamIsCapturing, capture_state) ENTRY(cuStreamGetCaptureInfo, capture_info)
    ENTRY(cuGraphInstantiateWithFlags, graph_instantiate) ENTRY(cuGraphLaunch, graph_launch)
    ENTRY(cuGraphExecDestroy, graph_exec_destroy) ENTRY(cuGraphDestroy, graph_destroy)
    ENTRY(cuGraphGetNodes, graph_nodes)
};

EXPORT result cuGetProcAddress_v2(const char *symbol, void (**function)(void), int version, uint64_t flags, int *found);
EXPORT result cuGetProcAddress_v2(const char *symbol, void (**function)(void), int version, uint64_t flags, int *found)
{
    (void)version, (void)flags;
    *function = NULL;
    for (size_t k = 0; k < sizeof entries / sizeof entries[0]; k++)
        if (strcmp(entries[k].name, symbol) == 0)
            *function = entries[k].function;
    if (found != NULL)
        *found = *function != NULL ? 0 : 1;
    return *function != NULL ? OK : NOT_FOUND;
}
