/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/bed.h: fixture of the tests of softcuda: contexts, a stream, a library of kernels, and helpers to
 * launch and check. */
#ifndef SOFTCUDA_BED_H
#define SOFTCUDA_BED_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"
#include "calls.h"
#include "test-kernels.h"

#define GIVES(call, wanted) gives((call), (wanted), __FILE__, __LINE__, #call)
#define OK(call) GIVES(call, CUDA_SUCCESS)

static inline void gives(result got, result wanted, const char *file, int line, const char *call)
{
    tap_check(got == wanted, file, line, "%s gave %d, expected %d", call, got, wanted);
}

static void *contexts[4], *stream, *library;

#ifndef TEST_KERNELS
#define TEST_KERNELS "./test-kernels.so"
#endif

static inline void open_bed(void)
{
    int n = 0;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    for (int i = 0; i < n && i < 4; i++)
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, 0));
    OK(cuLibraryLoadData(&library, "softcuda:" TEST_KERNELS, NULL, NULL, 0, NULL, NULL, 0));
}

static inline void *kernel(const char *name)
{
    void *found = NULL;
    GIVES(cuLibraryGetKernel(&found, library, name), 0);
    return found;
}

static inline result launch(const char *name, unsigned grid, unsigned block, unsigned shared, void *on,
                            const void *arguments)
{
    void *list[] = { (void *)(uintptr_t)arguments, NULL };
    return cuLaunchKernel(kernel(name), grid, 1, 1, block, 1, 1, shared, on, list, NULL);
}

/* Launches a faulty kernel and checks the resulting error and the reported text. Resets the context afterwards. */
static inline void goes_wrong(const char *name, unsigned block, const void *arguments, result wanted, const char *words)
{
    const uint64_t before = softcuda_control.faults();
    GIVES(launch(name, 1, block, 0, stream, arguments), 0);
    GIVES(cuStreamSynchronize(stream), wanted);
    CHECK(softcuda_control.faults() == before + 1, "%s: %llu faults were reported", name,
          (unsigned long long)(softcuda_control.faults() - before));
    CHECK(strstr(softcuda_control.fault_text(), words) != NULL && strstr(softcuda_control.fault_text(), name) != NULL,
          "%s: reported \"%s\", which lacks \"%s\"", name, softcuda_control.fault_text(), words);
    address refused = 0;
    GIVES(cuMemAlloc_v2(&refused, 16), wanted);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, 0));
}

#endif
