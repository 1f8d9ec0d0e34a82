/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fixture.h: fixture of the tests of softcuda: the driver's functions as the backend declares them,
 * contexts, a stream, a library of kernels, and helpers to launch and check. */
#ifndef SOFTCUDA_FIXTURE_H
#define SOFTCUDA_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../backends/cuda/host/driver_api.h"
#include "api.h"
#include "control.h"
#include "tap.h"
#include "test-kernels.h"

extern struct softcuda_control softcuda_control;

result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static struct cuda_driver cuda;         /* the functions in the versions that the backend uses */

__attribute__((constructor)) static void find_functions(void)
{
    int found;
#define DRIVER(name, symbol, needed, arguments) cuGetProcAddress_v2(symbol, (void **)&cuda.name, 12000, 0, &found);
#include "../../backends/cuda/host/driver.def"
#undef DRIVER
}

#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

static cu_context contexts[4];
static cu_stream stream;
static cu_library library;

static inline void start(void)
{
    int n = 0;
    group("initialization");
    OK(cuda.init(0));
    OK(cuda.device_count(&n));
    for (int i = 0; i < n && i < 4; i++)
        OK(cuda.context_retain(&contexts[i], i));
    OK(cuda.context_set(contexts[0]));
    OK(cuda.stream_create(&stream, STREAM_NON_BLOCKING, 0));
    OK(cuda.library_load(&library, "softcuda:" TEST_KERNELS, NULL, NULL, 0, NULL, NULL, 0));
}

/* Replaces the context of device 0, which may have an error, by a new one. */
static inline void reset(void)
{
    OK(cuda.context_release(0));
    OK(cuda.context_retain(&contexts[0], 0));
    OK(cuda.context_set(contexts[0]));
    OK(cuda.stream_create(&stream, STREAM_NON_BLOCKING, 0));
}

static inline cu_kernel kernel(const char *name)
{
    cu_kernel found = NULL;
    OK(cuda.library_kernel(&found, library, name));
    return found;
}

static inline result launch(const char *name, unsigned grid, unsigned block, unsigned shared, cu_stream on,
                            const void *arguments)
{
    void *list[] = { (void *)(uintptr_t)arguments, NULL };
    return cuda.launch(kernel(name), grid, 1, 1, block, 1, 1, shared, on, list, NULL);
}

/* Returns the 8 bytes at an address of a device. */
static inline uint64_t read_number(address at)
{
    uint64_t value = 0;
    CHECK(softcuda_control.peek(at, &value, 8), "no memory is allocated at %llx", at);
    return value;
}

/* Launches a faulty kernel and checks the resulting error and the reported text. Resets the context afterwards. */
static inline void check_fault(const char *name, unsigned block, const void *arguments, result wanted,
                               const char *words)
{
    const uint64_t before = softcuda_control.faults();
    OK(launch(name, 1, block, 0, stream, arguments));
    const result got = cuda.stream_synchronize(stream);
    CHECK(got == wanted, "%s: error %d, expected %d with \"%s\"", name, got, wanted, words);
    CHECK_EQ(softcuda_control.faults(), before + 1);
    CHECK_HAS(softcuda_control.fault_text(), words);
    CHECK_HAS(softcuda_control.fault_text(), name);
    address refused = 0;
    CHECK_EQ(cuda.memory_alloc(&refused, 16), wanted);
    reset();
}

#endif
