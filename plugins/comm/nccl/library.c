/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/library.c: opens libnccl.so.2, and makes messages of NCCL's errors. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

static const char file_name[] = "libnccl.so.2";

const ctrt_host *nccl_host;
struct nccl_library nccl;
int nccl_version;

static const ctrt_param library_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_NCCL_LIBRARY", .type = CTRT_PARAM_STRING,
    .help = "file of the NCCL library, 2.18 or later; by default libnccl.so.2 in the folders of CTRT_CUDA_LIBRARIES or "
            "where the loader finds it",
};
static const ctrt_param folders_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_CUDA_LIBRARIES", .type = CTRT_PARAM_STRING,
    .help = "folders, separated by ':', in which NVIDIA's libraries are searched first",
};
static const ctrt_param check_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_NCCL_CHECK", .type = CTRT_PARAM_ENUM, .fallback = "no",
    .words = "no|yes",
    .help = "whether the engine nccl compares the calls of the ranks before each collective; slow, for debugging",
};

static const ctrt_param register_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_NCCL_REGISTER", .type = CTRT_PARAM_ENUM, .fallback = "no",
    .words = "no|yes",
    .help = "whether tensors of ctrt_comm_empty have memory that is registered with NCCL; then all ranks must use such "
            "tensors in the same collectives",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_open;

ctrt_status nccl_read_params(bool *check, bool *registers)
{
    ctrt_param_value value;
    CTRT_TRY(nccl_host->param(&value, &check_param));
    *check = value.integer != 0;
    CTRT_TRY(nccl_host->param(&value, &register_param));
    *registers = value.integer != 0;
    return CTRT_OK;
}

/* ---- search ---- */

struct reasons {
    char text[768];                         /* why no library was opened: one message per attempt */
};

static CTRT_PRINTF(2, 3) void add_reason(struct reasons *reasons, const char *format, ...)
{
    const size_t used = strlen(reasons->text);
    va_list arguments;
    if (used + 3 >= sizeof reasons->text)
        return;
    if (used > 0)
        memcpy(reasons->text + used, "; ", 3);
    va_start(arguments, format);
    vsnprintf(reasons->text + strlen(reasons->text), sizeof reasons->text - strlen(reasons->text), format, arguments);
    va_end(arguments);
}

static void *open_file(const char *path, struct reasons *reasons)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        add_reason(reasons, "%s", dlerror());
    return library;
}

/* Opens the library in `folder` or in the subfolders that pip packages use (nvidia/nccl/lib). */
static void *open_below(const char *folder, struct reasons *reasons)
{
    static const char *const below[] = { "", "lib/", "*/lib/", "nvidia/*/lib/" };
    char pattern[4096];
    void *library = NULL;
    bool any = false;
    for (int i = 0; i < 4 && library == NULL; i++) {
        glob_t found;
        if (snprintf(pattern, sizeof pattern, "%s/%s%s", folder, below[i], file_name) >= (int)sizeof pattern
            || glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc && library == NULL; k++) {
            any = true;
            library = open_file(found.gl_pathv[k], reasons);
        }
        globfree(&found);
    }
    if (!any)
        add_reason(reasons, "no %s in %s", file_name, folder);
    return library;
}

static void *open_in_folders(const char *folders, struct reasons *reasons)
{
    char folder[2048];
    void *library = NULL;
    for (const char *at = folders; at != NULL && library == NULL; at = strchr(at, ':'), at = at ? at + 1 : NULL) {
        const size_t length = strcspn(at, ":");
        if (length == 0 || length >= sizeof folder)
            continue;
        snprintf(folder, sizeof folder, "%.*s", (int)length, at);
        if (folder[0] == '/')
            library = open_below(folder, reasons);
        else
            add_reason(reasons, "CTRT_CUDA_LIBRARIES has %s, which is not an absolute path", folder);
    }
    return library;
}

/* `named`, `folders`: values of CTRT_NCCL_LIBRARY and CTRT_CUDA_LIBRARIES, which may be NULL. A library that the
 * process has already loaded is preferred, because two NCCLs in one process would compete for the devices. */
static void *search(const char *named, const char *folders, struct reasons *reasons)
{
    if (named != NULL && named[0] != '\0')
        return open_file(named, reasons);
    void *library = dlopen(file_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == NULL)
        library = open_in_folders(folders, reasons);
    return library != NULL ? library : open_file(file_name, reasons);
}

/* ---- opening ---- */

static const char *path_of(void *library)
{
    struct link_map *map = NULL;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != NULL && map->l_name[0] != '\0' ? map->l_name
                                                                                                        : file_name;
}

static ctrt_status find_functions(void *library)
{
    static const struct { const char *symbol; size_t place; int since; } functions[] = {
#define NCCL(member, name, result, parameters) { "nccl" #name, offsetof(struct nccl_library, member), NCCL_OLDEST },
        NCCL_FUNCTIONS(NCCL)
#undef NCCL
#define NCCL(member, name, result, parameters, since) { "nccl" #name, offsetof(struct nccl_library, member), since },
        NCCL_OPTIONAL_FUNCTIONS(NCCL)
#undef NCCL
    };
    const char *missing = NULL;
    int (*version)(int *) = NULL;
    void *address = dlsym(library, "ncclGetVersion");
    memcpy(&version, &address, sizeof address);
    nccl_version = 0;
    if (version != NULL)
        (void)version(&nccl_version);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        address = nccl_version >= functions[i].since ? dlsym(library, functions[i].symbol) : NULL;
        memcpy((char *)&nccl + functions[i].place, &address, sizeof address);
        if (address == NULL && functions[i].since == NCCL_OLDEST && missing == NULL)
            missing = functions[i].symbol;
    }
    /* Up to 2.8 the version number has one digit less. */
    const int unit = nccl_version < 10000 ? 1000 : 10000;
    if (nccl_version < NCCL_OLDEST)
        return nccl_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s is NCCL %d.%d.%d; the engine nccl needs 2.18 or later: "
                               "pip install -U nvidia-nccl-cu12 (or -cu13), and set CTRT_NCCL_LIBRARY to its file",
                               path_of(library), nccl_version / unit, nccl_version % unit / 100, nccl_version % 100);
    return missing == NULL ? CTRT_OK
                           : nccl_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s has no function %s; set CTRT_NCCL_LIBRARY to "
                                             "the file of another NCCL, 2.18 or later", path_of(library), missing);
}

/* The caller holds the lock. */
static ctrt_status nccl_open_library(void)
{
    struct reasons reasons = { "" };
    ctrt_param_value named, folders;
    CTRT_TRY(nccl_host->param(&named, &library_param));
    CTRT_TRY(nccl_host->param(&folders, &folders_param));
    void *library = search(named.text, folders.text, &reasons);
    if (library == NULL)
        return nccl_host->fail(CTRT_ERR_NOT_FOUND, "%s cannot be opened: %s; install NCCL (pip install "
                               "nvidia-nccl-cu12 or -cu13), and set CTRT_NCCL_LIBRARY to its file or "
                               "CTRT_CUDA_LIBRARIES to its folder", file_name, reasons.text);
    const ctrt_status status = find_functions(library);
    if (status != CTRT_OK) {
        dlclose(library);
        return status;
    }
    nccl_host->log(CTRT_LOG_INFO, "nccl", "NCCL %d.%d.%d: %s", nccl_version / 10000, nccl_version % 10000 / 100,
                   nccl_version % 100, path_of(library));
    is_open = true;
    return CTRT_OK;
}

ctrt_status nccl_open(void)
{
    pthread_mutex_lock(&lock);
    const ctrt_status status = is_open ? CTRT_OK : nccl_open_library();
    pthread_mutex_unlock(&lock);
    return status;
}

/* Opens the library, because this is the only way to find out whether the loader finds it, and leaves it open, because
 * opening is slow. Does not open it on machines without an NVIDIA driver, because it has hundreds of megabytes and its
 * constructors crash the process when memory is short. */
int32_t nccl_probe(char *reason, size_t bytes)
{
    struct reasons reasons = { "" };
    reason[0] = '\0';
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == NULL) {
        snprintf(reason, bytes, "no NVIDIA driver: %s", dlerror());
        return 0;
    }
    void *library = search(secure_getenv("CTRT_NCCL_LIBRARY"), secure_getenv("CTRT_CUDA_LIBRARIES"), &reasons);
    if (library == NULL)
        snprintf(reason, bytes, "%s", reasons.text);
    return library != NULL;
}

/* ---- errors ---- */

ctrt_status nccl_failed(const char *what, nccl_result result)
{
    const char *last = nccl.last_error(NULL), *hint = "NCCL_DEBUG=INFO logs more";
    if (result == NCCL_INVALID_USAGE)
        hint = "each rank needs a device of its own; NCCL_DEBUG=INFO logs more";
    else if (result == NCCL_REMOTE_ERROR)
        hint = "another rank or the network has failed; NCCL_DEBUG=INFO logs more";
    return nccl_host->fail(result == NCCL_INVALID_ARGUMENT || result == NCCL_INVALID_USAGE ? CTRT_ERR_INVALID_ARGUMENT
                                                                                           : CTRT_ERR_COMM,
                           "nccl%s: %s (%d)%s%s; NCCL %d.%d.%d; %s", what, nccl.error_string(result), result,
                           last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "", nccl_version / 10000,
                           nccl_version % 10000 / 100, nccl_version % 100, hint);
}
