/* SPDX-License-Identifier: Apache-2.0 */
/* soft_begin.h: restarts a test of the cuda backend with the software driver (tests/softcuda), unless CTRT_TEST_GPU
 * selects a real driver. */
#ifndef CTRT_TESTS_SOFT_BEGIN_H
#define CTRT_TESTS_SOFT_BEGIN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "softcuda/control.h"

/* The loader reads LD_LIBRARY_PATH only at process start, so the process executes itself again. */
static inline void soft_begin(char **argv)
{
    char libraries[8192], plugins[4096];
    const char *builddir = getenv("builddir"), *before = getenv("LD_LIBRARY_PATH"), *folder = getenv("CTRT_SOFTCUDA_FOLDER");
    if (getenv("CTRT_SOFTCUDA_TEST") != NULL || getenv("CTRT_TEST_GPU") != NULL)
        return;
    builddir = builddir != NULL ? builddir : ".";
    snprintf(libraries, sizeof libraries, folder != NULL ? "%s%s%s" : "%s/tests/softcuda%s%s", folder != NULL ? folder : builddir,
             before != NULL ? ":" : "", before != NULL ? before : "");
    snprintf(plugins, sizeof plugins, "%s/softcuda-plugins", builddir);
    setenv("LD_LIBRARY_PATH", libraries, 1);
    if (folder == NULL)
        setenv("CTRT_PLUGIN_PATH", plugins, 1);
    setenv("CTRT_SOFTCUDA_TEST", "yes", 1);
    execv("/proc/self/exe", argv);
    perror("exec");
    exit(99);
}

/* Returns the control table of the software driver, or NULL with a real driver. Call it after the first device was
 * opened. */
static inline const struct softcuda_control *soft_control(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
}

#endif
