/* SPDX-License-Identifier: Apache-2.0 */
/* data/gzip.c: decompresses files with zlib, of whose functions for files (zlib.h: gzdopen, gzread, gzclose_r) only the
 * declarations are needed. libctrt depends only on the C library, so zlib is looked up at run time. */
#define _GNU_SOURCE                     /* F_DUPFD_CLOEXEC */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "data/parsers.h"

static struct {
    void *(*open)(int fd, const char *mode);
    int (*read)(void *file, void *buffer, unsigned bytes);
    int (*close)(void *file);
    bool found;
} zlib;

static void find_zlib(void)
{
    void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return;
    *(void **)&zlib.open = dlsym(library, "gzdopen");
    *(void **)&zlib.read = dlsym(library, "gzread");
    *(void **)&zlib.close = dlsym(library, "gzclose_r");
    zlib.found = zlib.open != NULL && zlib.read != NULL && zlib.close != NULL;
}

static ctrt_status read_all(char **out, size_t *bytes, void *file)
{
    const unsigned most = 1 << 20;
    size_t capacity = 0;
    for (;;) {
        if (capacity - *bytes < most) {
            capacity = capacity * 2 + 2 * (size_t)most;
            char *grown = host_realloc(*out, capacity);
            ALLOC_CHECK(grown, capacity, "a decompressed file");
            *out = grown;
        }
        const int got = zlib.read(file, *out + *bytes, most);
        if (got < 0)
            return ctrt_fail(CTRT_ERR_FORMAT, "the compressed data is malformed after %zu bytes of text (zlib)",
                             *bytes);
        if (got == 0)
            return CTRT_OK;
        *bytes += (size_t)got;
    }
}

ctrt_status gzip_read(void **out, size_t *bytes, int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char *text = NULL;
    pthread_once(&once, find_zlib);
    if (!zlib.found)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "the file is compressed by gzip, and zlib (libz.so.1) is not installed; "
                         "install it, or decompress the file with gunzip");
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);      /* zlib closes it */
    if (own < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot read: %s", strerror(errno));
    void *file = zlib.open(own, "rb");
    if (file == NULL) {
        close(own);
        return out_of_memory(1 << 16, "zlib");
    }
    *bytes = 0;
    ctrt_status status = read_all(&text, bytes, file);
    const int closed = zlib.close(file);                    /* reports a file that is truncated */
    if (status == CTRT_OK && closed != 0)
        status = ctrt_fail(CTRT_ERR_FORMAT, "truncated: the compressed data has no end");
    if (status == CTRT_OK)
        *out = text;
    else
        host_free(text);
    return status;
}
