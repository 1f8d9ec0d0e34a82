/* SPDX-License-Identifier: Apache-2.0 */
/* shim.c: interposed functions of the C library; see shim.h. If SHIM_TRACE is set in the environment, each injected
 * failure writes a backtrace to stderr. */
#undef _FORTIFY_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* Internal names of glibc's functions; dlsym cannot be used to find them, because it allocates. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic int armed;
static _Atomic long counted;
static long fail_at;
static bool fail_forever, trace;
static __thread bool inside __attribute__((tls_model("initial-exec")));

static int (*real_thread)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static void *(*real_dlopen)(const char *, int);
static FILE *(*real_fopen)(const char *, const char *);
static char *(*real_fgets)(char *, int, FILE *);

__attribute__((constructor)) static void start(void)
{
    *(void **)&real_thread = dlsym(RTLD_NEXT, "pthread_create");
    *(void **)&real_dlopen = dlsym(RTLD_NEXT, "dlopen");
    *(void **)&real_fopen = dlsym(RTLD_NEXT, "fopen");
    *(void **)&real_fgets = dlsym(RTLD_NEXT, "fgets");
    trace = getenv("SHIM_TRACE") != NULL;
    void *frame[1];
    backtrace(frame, 1);                /* the first call loads libgcc_s, which must not happen inside an allocation */
}

EXPORT void shim_arm(enum fault_kind kind, long n, bool forever)
{
    fail_at = n;
    fail_forever = forever;
    atomic_store(&counted, 0);
    atomic_store(&armed, kind);
}

EXPORT long shim_disarm(void)
{
    atomic_store(&armed, FAULT_NONE);
    return atomic_load(&counted);
}

static bool third_party(const void *caller)
{
    static const char *const names[] = { "libdnnl", "libgomp", "libomp", "blas", "libmkl", "libstdc++", "libgcc_s",
                                         "libfaults", "libgfortran", "ld-linux", "/ld.so" };
    const char *file = NULL;
#if __GLIBC_PREREQ(2, 35)
    struct dl_find_object found;
    if (_dl_find_object((void *)(size_t)caller, &found) == 0)
        file = found.dlfo_link_map->l_name;
#else
    Dl_info info;
    if (dladdr(caller, &info) != 0)
        file = info.dli_fname;
#endif
    for (size_t i = 0; file != NULL && i < sizeof names / sizeof names[0]; i++)
        if (strstr(file, names[i]) != NULL)
            return true;
    return false;
}

static bool fails(enum fault_kind kind, const void *caller)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed) != (int)kind || inside || third_party(caller))
        return false;
    const long n = atomic_fetch_add(&counted, 1) + 1;
    if (n != fail_at && !(fail_forever && n > fail_at && fail_at > 0))
        return false;
    if (trace) {
        void *frames[40];
        inside = true;
        backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
        inside = false;
    }
    return true;
}

/* Defines a function that fails, or returns the last argument. */
#define SHIM(type, name, parameters, kind, error, failure, ...)                 \
    EXPORT type name parameters                                                 \
    {                                                                           \
        if (fails(kind, __builtin_return_address(0))) {                         \
            errno = error;                                                      \
            return failure;                                                     \
        }                                                                       \
        return __VA_ARGS__;                                                     \
    }

SHIM(void *, malloc, (size_t bytes), FAULT_ALLOC, ENOMEM, NULL, __libc_malloc(bytes))
SHIM(void *, calloc, (size_t count, size_t bytes), FAULT_ALLOC, ENOMEM, NULL, __libc_calloc(count, bytes))
SHIM(void *, realloc, (void *old, size_t bytes), FAULT_ALLOC, ENOMEM, NULL, __libc_realloc(old, bytes))
SHIM(void *, aligned_alloc, (size_t alignment, size_t bytes), FAULT_ALLOC, ENOMEM, NULL,
     __libc_memalign(alignment, bytes))

static int memalign_into(void **out, size_t alignment, size_t bytes)
{
    void *memory = __libc_memalign(alignment, bytes);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

SHIM(int, posix_memalign, (void **out, size_t alignment, size_t bytes), FAULT_ALLOC, errno, ENOMEM,
     memalign_into(out, alignment, bytes))

SHIM(void *, mmap, (void *address, size_t bytes, int protection, int flags, int fd, off_t offset), FAULT_MMAP, ENOMEM,
     MAP_FAILED, (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset))
SHIM(void *, mmap64, (void *address, size_t bytes, int protection, int flags, int fd, off64_t offset), FAULT_MMAP,
     ENOMEM, MAP_FAILED, (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset))

#define OPEN(name, folder, ...)                                                 \
    EXPORT int name(__VA_ARGS__, int flags, ...)                                \
    {                                                                           \
        if (fails(FAULT_OPEN, __builtin_return_address(0))) {                   \
            errno = EMFILE;                                                     \
            return -1;                                                          \
        }                                                                       \
        va_list list;                                                           \
        va_start(list, flags);                                                  \
        const int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0; \
        va_end(list);                                                           \
        return (int)syscall(SYS_openat, folder, path, flags, mode);             \
    }
OPEN(open, AT_FDCWD, const char *path)
OPEN(open64, AT_FDCWD, const char *path)
OPEN(openat, at, int at, const char *path)
OPEN(openat64, at, int at, const char *path)

SHIM(FILE *, fopen, (const char *path, const char *mode), FAULT_OPEN, EMFILE, NULL, real_fopen(path, mode))
SHIM(FILE *, fopen64, (const char *path, const char *mode), FAULT_OPEN, EMFILE, NULL, real_fopen(path, mode))
SHIM(char *, fgets, (char *text, int bytes, FILE *file), FAULT_READ, EIO, NULL, real_fgets(text, bytes, file))
SHIM(ssize_t, read, (int fd, void *buffer, size_t bytes), FAULT_READ, EIO, -1, syscall(SYS_read, fd, buffer, bytes))
SHIM(ssize_t, pread, (int fd, void *buffer, size_t bytes, off_t offset), FAULT_READ, EIO, -1,
     syscall(SYS_pread64, fd, buffer, bytes, offset))
SHIM(ssize_t, pread64, (int fd, void *buffer, size_t bytes, off64_t offset), FAULT_READ, EIO, -1,
     syscall(SYS_pread64, fd, buffer, bytes, offset))
SHIM(ssize_t, write, (int fd, const void *buffer, size_t bytes), FAULT_WRITE, ENOSPC, -1,
     syscall(SYS_write, fd, buffer, bytes))
SHIM(int, rename, (const char *from, const char *to), FAULT_RENAME, EACCES, -1,
     (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0))
SHIM(int, renameat, (int from_at, const char *from, int to_at, const char *to), FAULT_RENAME, EACCES, -1,
     (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0))

/* Makes dlopen fail with a limit on descriptors. Failed allocations inside the loader can leave glibc 2.36 in an
 * inconsistent state. */
EXPORT void *dlopen(const char *path, int flags)
{
    if (!fails(FAULT_DLOPEN, __builtin_return_address(0)))
        return real_dlopen(path, flags);
    struct rlimit limit, none;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    void *handle = real_dlopen(path, flags);
    setrlimit(RLIMIT_NOFILE, &limit);
    return handle;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    const void *caller = __builtin_return_address(0);
    if (fails(FAULT_THREAD, caller))
        return EAGAIN;
    /* Allocations for a thread that a third-party library starts count as that library's. */
    const bool before = inside;
    inside = before || third_party(caller);
    const int error = real_thread(thread, attributes, run, argument);
    inside = before;
    return error;
}
