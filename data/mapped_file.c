/* SPDX-License-Identifier: Apache-2.0 */
/* data/mapped_file.c: maps files into memory. */
#include "data/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"

static ctrt_status mapped_file_map(struct mapped_file *file, const char *path)
{
    struct stat about;
    if (fstat(file->fd, &about) != 0)
        return ctrt_fail(CTRT_ERR_IO, "%s", strerror(errno));
    if (!S_ISREG(about.st_mode))
        return ctrt_fail(CTRT_ERR_IO, "not a regular file");
    file->size = (size_t)about.st_size;
    file->path = host_strdup(path);
    ALLOC_CHECK(file->path, strlen(path) + 1, "the name of a file");
    if (file->size == 0)
        return CTRT_OK;
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED)
        return ctrt_fail(CTRT_ERR_IO, "cannot map %zu bytes: %s", file->size, strerror(errno));
    file->bytes = bytes;
    return CTRT_OK;
}

ctrt_status mapped_file_open(struct mapped_file *out, const char *path)
{
    struct mapped_file file = { .fd = -1 };
    do
        file.fd = fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));    /* does not wait for a pipe */
    while (file.fd < 0 && errno == EINTR);
    if (file.fd < 0)
        return ctrt_fail(CTRT_ERR_IO, "%.500s: cannot open: %s", path, strerror(errno));
    const ctrt_status status = ctrt_context(mapped_file_map(&file, path), "%.500s", path);
    if (status == CTRT_OK) {
        *out = file;
        return CTRT_OK;
    }
    host_free(file.path);
    close(file.fd);
    return status;
}

ctrt_status mapped_file_check(const struct mapped_file *file)
{
    struct stat about;
    if (fstat(file->fd, &about) != 0)
        return ctrt_fail(CTRT_ERR_IO, "%.500s: %s", file->path, strerror(errno));
    if ((uint64_t)about.st_size < file->size)
        return ctrt_fail(CTRT_ERR_IO, "%.500s was truncated after it was opened: it had %zu bytes and has %lld",
                         file->path, file->size, (long long)about.st_size);
    return CTRT_OK;
}

void mapped_file_close(struct mapped_file *file)
{
    if (file->path == NULL)
        return;
    if (file->bytes != NULL)
        munmap((void *)(uintptr_t)file->bytes, file->size);
    close(file->fd);
    host_free(file->path);
    *file = (struct mapped_file){ 0 };
}
