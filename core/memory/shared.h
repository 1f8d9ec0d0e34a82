/* SPDX-License-Identifier: Apache-2.0 */
/* memory/shared.h: host memory that processes share.
 *
 * A segment is a file without a name (memfd) that is mapped into this process. Another process gets a descriptor of the
 * file, from which it makes a segment of its own with the same pages. The kernel frees the pages with the last
 * descriptor and mapping, also if processes are killed. The size of a segment's file is sealed, so no process can
 * truncate it, and its pages are allocated when it is created, so that writing to it never raises SIGBUS.
 *
 * A process has at most one segment for each file. In the child of a fork, the segments of the parent exist too. */
#ifndef CORE_MEMORY_SHARED_H
#define CORE_MEMORY_SHARED_H

#include "memory/storage.h"

#define SHARED_ALIGN ((size_t)64)           /* alignment of storages in a segment */

struct shared_segment {
    int refs;                               /* guarded by a lock of shared.c */
    int fd;
    char *address;
    size_t bytes;
    uint64_t inode;                         /* identifies the file */
    struct shared_segment *next;
};

/* Allocates `bytes` of a new file, so that writing to them never raises SIGBUS. Returns 0 or an errno: ENOSPC or ENOMEM
 * if the memory does not suffice, EFBIG beyond the limit RLIMIT_FSIZE. Blocks the thread's signals meanwhile. */
int shared_file_allocate(int fd, size_t bytes);
/* Creates a segment of `bytes` > 0 zero bytes. CTRT_ERR_OUT_OF_MEMORY with the sizes if the memory does not suffice,
 * CTRT_ERR_IO if the process has too many open files. Thread-safe, like the functions below. */
ctrt_status shared_segment_new(struct shared_segment **out, size_t bytes);
/* Writes a reference to the segment of the file `fd`, which it maps if this process has none. Takes ownership of `fd`,
 * also on failure. CTRT_ERR_FORMAT if `fd` is not the file of a segment. */
ctrt_status shared_segment_open(struct shared_segment **out, int fd);
void shared_segment_retain(struct shared_segment *segment);
void shared_segment_release(struct shared_segment *segment);

/* Copies the bytes of a storage to `place` in a segment, frees its old memory, and makes `place` its address. The
 * storage owns a reference to the segment. The caller updates the views of the storage's tensors, which no other thread
 * may use meanwhile. */
void shared_storage_move(struct storage *storage, struct shared_segment *segment, size_t place);
/* Frees a storage in a segment: the `release` of its struct, whose user[0] is the segment. */
void shared_storage_free(struct storage *storage);

/* The segment in which the storage is, NULL if it is not in shared memory. */
static inline struct shared_segment *shared_storage_segment(const struct storage *storage)
{
    return storage->release == shared_storage_free ? storage->user[0] : NULL;
}

#endif
