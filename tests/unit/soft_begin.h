/* SPDX-License-Identifier: Apache-2.0 */
/* soft_begin.h: runs a test of the cuda backend with the software driver (tests/softcuda), unless CTRT_TEST_GPU selects
 * a real driver.
 *
 *     soft_begin(argv);                    restarts the program with the software driver
 *     IN_CUDA_CHILD("CTRT_CUDA_GEMM=builtin") {            a child process that has opened cuda:0 and the cpu
 *         CHECK(soft->launches("matmul_f32_small") == 0, "...");
 *     } */
#ifndef CTRT_TESTS_SOFT_BEGIN_H
#define CTRT_TESTS_SOFT_BEGIN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "calls.h"
#include "child.h"
#include "softcuda/control.h"
#include "tensors.h"

#define MIB ((int64_t)1 << 18)                  /* floats */

static ctrt_device *gpu;
static const struct softcuda_control *soft;     /* set by soft_load and soft_open; NULL with a real driver */

/* The loader reads LD_LIBRARY_PATH only at process start, so the process executes itself again. */
static inline void soft_begin(char **argv)
{
    char libraries[8192], plugins[4096];
    const char *builddir = getenv("builddir"), *before = getenv("LD_LIBRARY_PATH");
    if (getenv("CTRT_SOFTCUDA_TEST") != NULL || getenv("CTRT_TEST_GPU") != NULL)
        return;
    builddir = builddir != NULL ? builddir : ".";
    snprintf(libraries, sizeof libraries, "%s/tests/softcuda%s%s", builddir, before != NULL ? ":" : "",
             before != NULL ? before : "");
    snprintf(plugins, sizeof plugins, "%s/softcuda-plugins", builddir);
    setenv("LD_LIBRARY_PATH", libraries, 1);
    setenv("CTRT_PLUGIN_PATH", plugins, 1);
    setenv("CTRT_SOFTCUDA_TEST", "yes", 1);
    execv("/proc/self/exe", argv);
    perror("exec");
    exit(99);
}

/* Loads the software driver, so that its calls are counted and can fail before the backend is used. */
static inline bool soft_load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    soft = driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
    return CHECK(soft != NULL, "no software driver: %s", dlerror());
}

/* Opens a device of the backend and the cpu. */
static inline bool soft_open(const char *name)
{
    if (!CHECK_OK(ctrt_device_get(&gpu, name)) || !CHECK_OK(ctrt_device_get(&cpu, "cpu")))
        return false;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    soft = driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
    return true;
}

/* The number of calls of a function of the driver or of a library; 0 if its library is not loaded. */
static inline int64_t calls(const char *name)
{
    return soft->calls(name) > 0 ? soft->calls(name) : 0;
}

/* Checks that the software driver and NCCL have reported no wrong kernel, copy or NCCL call. */
static inline void no_faults(void)
{
    if (soft_load())
        CHECK(soft->faults() == 0, "%s", soft->fault_text());
}

/* Closes the devices, which must leave no memory and no pool of device 0. */
static inline void close_clean(const char *what)
{
    CHECK_OK(ctrt_shutdown());
    CHECK(soft->live_bytes(0) == 0 && soft->live_handles("pool") == 0, "%s: %llu bytes and %llu pools were not freed",
          what, (unsigned long long)soft->live_bytes(0), (unsigned long long)soft->live_handles("pool"));
}

#define IN_CUDA_CHILD(...) \
    IN_CHILD(__VA_ARGS__) if (soft_open("cuda:0") && CHECK(soft != NULL, "not the software driver"))
/* The same, but without opened devices. */
#define IN_SOFT_CHILD(...) IN_CHILD(__VA_ARGS__) if (soft_load())

#endif
