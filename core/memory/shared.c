/* SPDX-License-Identifier: Apache-2.0 */
/* memory/shared.c: host memory that processes share. */
#define _GNU_SOURCE                         /* memfd_create, seals */
#include "memory/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/lock.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

LOCK_DEFINE(segments_lock, LOCK_SEGMENTS);
static struct shared_segment *segments;     /* guarded by segments_lock */

static ctrt_status fail_errno(const char *what, size_t bytes, int error)
{
    struct rlimit files = { 0 };
    getrlimit(RLIMIT_NOFILE, &files);
    if (error == EMFILE)
        return ctrt_fail(CTRT_ERR_IO, "%s %zu bytes of memory that processes share: the process may have %llu open "
                         "files (ulimit -n), and each shared storage needs one. Raise the limit, or share whole "
                         "modules with ctrt_module_share, which needs one for the module", what, bytes,
                         (unsigned long long)files.rlim_cur);
    return ctrt_fail(error == ENOMEM || error == ENOSPC || error == EFBIG ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_IO,
                     "%s %zu bytes of memory that processes share: %s", what, bytes, strerror(error));
}

int shared_file_allocate(int fd, size_t bytes)
{
    struct rlimit size;
    sigset_t all, before;
    if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY && bytes > size.rlim_cur)
        return EFBIG;                       /* instead of the signal SIGXFSZ */
    /* A signal would end the call and free the pages. With a timer's signals, a repeated call might never succeed. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Maps the file and adds its segment to the list. Takes ownership of `fd`. The caller holds the lock. */
static ctrt_status segment_add(struct shared_segment **out, int fd, size_t bytes, uint64_t inode)
{
    struct shared_segment *segment = host_alloc(sizeof *segment);
    void *address = MAP_FAILED;
    if (segment != NULL)
        address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        ctrt_status status = segment == NULL ? out_of_memory(sizeof *segment, "a segment")
                                             : fail_errno("cannot map", bytes, errno);
        host_free(segment);
        close(fd);
        return status;
    }
    *segment = (struct shared_segment){ .refs = 1, .fd = fd, .address = address, .bytes = bytes, .inode = inode,
                                        .next = segments };
    segments = segment;
    *out = segment;
    return CTRT_OK;
}

ctrt_status shared_segment_new(struct shared_segment **out, size_t bytes)
{
    struct stat file;
    const int fd = fd_above_stdio(memfd_create("ctrt-share", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return fail_errno("cannot create", bytes, errno);
    int error = bytes > PTRDIFF_MAX ? EFBIG : shared_file_allocate(fd, bytes);
    if (error == 0 && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        error = errno;
    if (error == 0 && fstat(fd, &file) != 0)
        error = errno;
    if (error != 0) {
        close(fd);
        return fail_errno("cannot allocate", bytes, error);
    }
    lock_enter(&segments_lock);
    ctrt_status status = segment_add(out, fd, bytes, (uint64_t)file.st_ino);
    lock_leave(&segments_lock);
    return status;
}

ctrt_status shared_segment_open(struct shared_segment **out, int fd)
{
    struct stat file;
    /* A file whose size can change could raise SIGBUS. Only memfd files have seals. */
    if (fstat(fd, &file) != 0 || file.st_size <= 0 || (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS) {
        close(fd);
        return ctrt_fail(CTRT_ERR_FORMAT, "the descriptor is not a memfd of a fixed size");
    }
    struct shared_segment *found;
    ctrt_status status = CTRT_OK;
    lock_enter(&segments_lock);
    for (found = segments; found != NULL && found->inode != (uint64_t)file.st_ino; found = found->next)
        ;
    if (found != NULL) {
        found->refs++;
        close(fd);
        *out = found;
    } else {
        status = segment_add(out, fd, (size_t)file.st_size, (uint64_t)file.st_ino);
    }
    lock_leave(&segments_lock);
    return status;
}

void shared_segment_retain(struct shared_segment *segment)
{
    lock_enter(&segments_lock);
    segment->refs++;
    lock_leave(&segments_lock);
}

void shared_segment_release(struct shared_segment *segment)
{
    lock_enter(&segments_lock);
    const bool last = --segment->refs == 0;
    for (struct shared_segment **at = &segments; last && *at != NULL; at = &(*at)->next)
        if (*at == segment) {
            *at = segment->next;
            break;
        }
    lock_leave(&segments_lock);
    if (!last)
        return;
    munmap(segment->address, segment->bytes);
    close(segment->fd);
    host_free(segment);
}

void shared_storage_free(struct storage *storage)
{
    shared_segment_release(storage->user[0]);
}

void shared_storage_move(struct storage *storage, struct shared_segment *segment, size_t place)
{
    struct storage old = *storage;
    memcpy(segment->address + place, old.block.address, old.bytes);
    shared_segment_retain(segment);
    storage->block = (ctrt_block){ .address = segment->address + place, .bytes = old.bytes };
    storage->release = shared_storage_free;
    storage->user[0] = segment;
    storage->user[1] = NULL;
    storage_destroy(&old);
}
