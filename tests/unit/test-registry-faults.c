/* SPDX-License-Identifier: Apache-2.0 */
/* A temporary failure while a plugin is searched, validated and loaded is an error of that call only, and the next call
 * uses the plugin. Failures come from the functions below, which replace those of the C library, and from resource
 * limits. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libintl.h>
#include <locale.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "calls.h"
#include "child.h"
#include "ctrt/device.h"
#include "folder.h"
#include "memory_checks.h"
#include "registry/registry.h"

enum { OPEN, READ, ALLOCATE };

/* Makes the n-th call of one function fail; n = 0: none. */
static struct { int function, nth, error, injected; } *fault;

static bool fails(int function)
{
    if (fault == NULL || fault->function != function || fault->nth == 0 || --fault->nth > 0)
        return false;
    fault->injected++;
    errno = fault->error;
    return true;
}

#define OPENS(name, folder, ...)                                                            \
    int name(__VA_ARGS__, int flags, ...)                                                   \
    {                                                                                       \
        va_list list;                                                                       \
        va_start(list, flags);                                                              \
        const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;                     \
        va_end(list);                                                                       \
        return fails(OPEN) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);      \
    }
OPENS(open, AT_FDCWD, const char *path)
OPENS(openat, at, int at, const char *path)

/* fault->error 0 makes a short read. */
ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (fails(READ)) {
        if (fault->error != 0)
            return -1;
        bytes = bytes > 1 ? bytes / 2 : bytes;
    }
    return (ssize_t)syscall(SYS_pread64, fd, to, bytes, offset);
}

/* Allocations fail while dlopen runs, because those of the library have tests of their own, and for the plugins
 * of this test only, because libgomp, which others load, ends the process if it gets no memory. */
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ && defined __GLIBC__
extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
static __thread bool loading;

#define ALLOCATES(name, parameters, ...)                                    \
    __attribute__((visibility("default"))) void *name parameters            \
    {                                                                       \
        return loading && fails(ALLOCATE) ? NULL : __libc_##name(__VA_ARGS__); \
    }
ALLOCATES(malloc, (size_t bytes), bytes)
ALLOCATES(calloc, (size_t count, size_t bytes), count, bytes)
ALLOCATES(realloc, (void *memory, size_t bytes), memory, bytes)

void *dlopen(const char *path, int flags)
{
    void *(*real)(const char *path, int flags);
    void *symbol = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&real, &symbol, sizeof real);
    loading = path != NULL && (strstr(path, "/backend-fake") != NULL || strstr(path, "/memory-") != NULL);
    void *handle = real(path, flags);
    loading = false;
    return handle;
}
#endif

static char *folder;

/* The first use of the library, which may fail temporarily if `may_fail`, and then gives the best device. */
static ctrt_status first_use(int number, bool may_fail)
{
    ctrt_device *device = NULL;
    const ctrt_status status = ctrt_device_get(&device, "auto");
    if (status == CTRT_OK)
        CHECK(strcmp(ctrt_device_name(device), "fake:0") == 0, "%d: auto is %s", number, ctrt_device_name(device));
    else
        CHECK(may_fail && (status == CTRT_ERR_IO || status == CTRT_ERR_OUT_OF_MEMORY), "%d: status %d: %s", number,
              (int)status, ctrt_error_message());
    return status;
}

/* Makes each call of `function` fail in turn, each in a new process. `harmless`: the library continues after that
 * error. */
static void inject(int function, int error, bool harmless)
{
    int n = 0;
    do {
        fault->injected = 0;
        n++;
        IN_CHILD(folder_path(folder, NULL), "CTRT_LOG=error") {
            ctrt_device *device = NULL;
            fault->function = function, fault->nth = n, fault->error = error;
            first_use(n, !harmless);
            fault->nth = 0;
            CHECK_OK(ctrt_device_get(&device, "fake:1"));
            CHECK_OK(first_use(n, false));
        }
    } while (fault->injected > 0 && n < 200);
    if (n == 1)
        skip_group("the library does not call this function by this name in this build");
}

/* Repeats with limits `from`, `from` + `step` and so on, until the device opens at the first call. */
static void raise_limit(int resource, rlim_t from, rlim_t step)
{
    int *refused = (int *)(void *)(fault + 1), limits = 0;
    do {
        *refused = 0;
        IN_CHILD(folder_path(folder, NULL), "CTRT_LOG=error") {
            struct rlimit before, limited;
            CHECK_EQ(getrlimit(resource, &before), 0);
            limited = before;
            limited.rlim_cur = from + step * (rlim_t)limits;
            CHECK_EQ(setrlimit(resource, &limited), 0);
            *refused = first_use(limits, true) != CTRT_OK;
            setrlimit(resource, &before);
            CHECK_OK(first_use(limits, false));
        }
    } while (*refused && ++limits < 400);
    CHECK(limits > 0 && limits < 400, "%d limits were too small", limits);
}

/* Creates a message catalogue that translates one message of the dynamic loader, and activates it. */
static void translate_loader(void)
{
    static const char from[] = "failed to map segment from shared object", to[] = "kein Platz";
    enum { START = 28, TEXTS = START + 16 };
    const uint32_t head[] = { 0x950412de, 0, 1, START, START + 8, 0, TEXTS,
                              sizeof from - 1, TEXTS, sizeof to - 1, TEXTS + sizeof from };
    char path[300];
    snprintf(path, sizeof path, "mkdir -p '%s/xx/LC_MESSAGES'", folder);
    CHECK_EQ(system(path), 0);
    snprintf(path, sizeof path, "%s/xx/LC_MESSAGES/libc.mo", folder);
    FILE *file = fopen(path, "wbe");
    CHECK(file != NULL && fwrite(head, sizeof head, 1, file) == 1 && fwrite(from, sizeof from, 1, file) == 1
          && fwrite(to, sizeof to, 1, file) == 1 && fclose(file) == 0, "%s: %s", path, strerror(errno));
    setenv("LANGUAGE", "xx", 1);
    bindtextdomain("libc", folder);
}

/* This program contains the objects of the library and does not export their functions. */
static void other_library(bool loaded)
{
    const struct component *component = NULL;
    IN_CHILD(folder_path(FOLDER_OF("strategy-single"), NULL), "CTRT_LOG=error") {
        CHECK(!loaded || dlopen(built_path("libctrt"), RTLD_NOW) != NULL, "%s", dlerror());
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_STRATEGY, "single"), CTRT_ERR_NOT_FOUND,
                    "not with libctrt.a");
    }
}

TEST_MAIN
{
    static const struct { const char *name; int function, error; bool harmless; } cases[] = {
        { "open: EMFILE", OPEN, EMFILE, false }, { "open: ENFILE", OPEN, ENFILE, false },
        { "open: ENOMEM", OPEN, ENOMEM, false }, { "open: EIO", OPEN, EIO, false },
        { "open: EINTR", OPEN, EINTR, false }, { "pread: EIO", READ, EIO, false },
        { "pread: ENOMEM", READ, ENOMEM, false }, { "pread: EINTR", READ, EINTR, true },
        { "pread: a short read", READ, 0, true }, { "an allocation of dlopen", ALLOCATE, ENOMEM, false },
    };
    fault = shared_memory(4096);
    folder = FOLDER_OF("backend-fake", "memory-direct", "memory-caching");
    EACH(c, cases) {
        group("%s", c->name);
        inject(c->function, c->error, c->harmless);
    }
    group("a limit on file descriptors fails one call only");
    raise_limit(RLIMIT_NOFILE, 3, 1);
    group("a limit on address space fails one call only");
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip_group("sanitizers reserve address space");
#else
    raise_limit(RLIMIT_AS, address_space(), 32768);
    group("a limit on address space with translated messages of the loader fails one call only");
    if (setlocale(LC_ALL, "C.UTF-8") == NULL) {
        skip_group("no locale C.UTF-8");
    } else {
        translate_loader();
        raise_limit(RLIMIT_AS, address_space(), 32768);
    }
#endif
    group("a plugin linked with libctrt.so is refused in a program with the static library");
    other_library(false);
    other_library(true);
    return done();
}
