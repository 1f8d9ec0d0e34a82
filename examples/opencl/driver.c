/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c: loads libOpenCL at run time, so that the plugin can say why there is no device instead of not loading. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

struct driver cl;

static void *library(void)
{
    const char *path = getenv("CTRT_OPENCL_LIBRARY");
    return dlopen(path != NULL ? path : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
}

const char *driver_load(void)
{
    static char reason[200];
    void *handle = library();
    if (handle == NULL) {
        snprintf(reason, sizeof reason, "%s", dlerror());
        return reason;
    }
#define CL(name)                                                                                                      \
    *(void **)&cl.name = dlsym(handle, #name);                                                                        \
    if (cl.name == NULL) {                                                                                            \
        snprintf(reason, sizeof reason, "libOpenCL has no %s: OpenCL 2.0 is needed", #name);                          \
        return reason;                                                                                                \
    }
#include "driver.def"
#undef CL
    return NULL;
}

const char *driver_error(cl_int error)
{
    static const struct { cl_int code; const char *name; } errors[] = {
#define ERROR(name) { name, #name }
        ERROR(CL_DEVICE_NOT_FOUND), ERROR(CL_DEVICE_NOT_AVAILABLE), ERROR(CL_COMPILER_NOT_AVAILABLE),
        ERROR(CL_MEM_OBJECT_ALLOCATION_FAILURE), ERROR(CL_OUT_OF_RESOURCES), ERROR(CL_OUT_OF_HOST_MEMORY),
        ERROR(CL_BUILD_PROGRAM_FAILURE), ERROR(CL_INVALID_VALUE), ERROR(CL_INVALID_DEVICE), ERROR(CL_INVALID_CONTEXT),
        ERROR(CL_INVALID_COMMAND_QUEUE), ERROR(CL_INVALID_PROGRAM_EXECUTABLE), ERROR(CL_INVALID_KERNEL_NAME),
        ERROR(CL_INVALID_KERNEL_ARGS), ERROR(CL_INVALID_ARG_INDEX), ERROR(CL_INVALID_ARG_VALUE),
        ERROR(CL_INVALID_ARG_SIZE), ERROR(CL_INVALID_WORK_GROUP_SIZE), ERROR(CL_INVALID_EVENT),
        ERROR(CL_INVALID_OPERATION), ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
#undef ERROR
    };
    static _Thread_local char number[24];
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error)
            return errors[i].name;
    snprintf(number, sizeof number, "OpenCL error %d", error);
    return number;
}

/* Whether the folder in which the ICD loader looks for platforms has an entry. */
static bool has_platform(const char *folder)
{
    bool any = false;
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return false;
    for (const struct dirent *entry; !any && (entry = readdir(directory)) != NULL;)
        any = strstr(entry->d_name, ".icd") != NULL;
    closedir(directory);
    return any;
}

/* Runs before init, in programs that may never use the backend. Loading a platform costs tenths of a second and starts
 * threads, so this only looks whether one is installed; init counts its devices, in a child. */
int32_t driver_probe(char *reason, size_t reason_bytes)
{
    const char *vendors = getenv("OCL_ICD_VENDORS");
    const char *folder = vendors != NULL ? vendors : "/etc/OpenCL/vendors";
    void *handle = library();
    if (handle == NULL) {
        snprintf(reason, reason_bytes, "%s", dlerror());
        return 0;
    }
    dlclose(handle);
    if (getenv("OCL_ICD_FILENAMES") == NULL && strstr(folder, ".icd") == NULL && !has_platform(folder)) {
        snprintf(reason, reason_bytes, "no OpenCL platform is installed: %s has no file *.icd", folder);
        return 0;
    }
    snprintf(reason, reason_bytes, "an OpenCL platform is installed");
    return 1;
}
