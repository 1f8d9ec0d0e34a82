/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/file.c: stores in a file that several processes share.
 *
 * The file is a log: the 16 bytes of `magic`, then messages STORE_SET and STORE_DELETE. Each process has a map and
 * executes the part of the log that it has not read before each request. Changes are appended. A process that waits for
 * a key reads the length of the file every few milliseconds, because inotify does not report changes by other hosts.
 *
 * Locks are those of open file descriptions (F_OFD_SETLK) on bytes of the file, because flock() locks whole files, and
 * several locks are needed. ACCESS is held during a request. The process that serves holds ALIVE as long as it has the
 * store open. Therefore the others notice when it ends, and that a file is left over from an earlier run. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/hash.h"
#include "base/host_alloc.h"
#include "parallel/store/store.h"
#include "parallel/store/map.h"

enum lock_byte { ALIVE, ACCESS, RESERVED };          /* RESERVED + i: number i */

static const char magic[16] = "ctrt store 1\n";

struct file_store {
    ctrt_store base;
    pthread_mutex_t lock;               /* guards everything below, and orders the threads of this process */
    int fd;
    off_t end;                          /* position in the file up to which the map is */
    struct store_map map;
    atomic_uint interruptions;
    _Atomic uint64_t interrupted;       /* hash of the key for whose waits the last interruption is */
    unsigned char *buffer;              /* for reading and writing messages */
    size_t capacity;
    const char *path;                   /* a part of the address */
};

static ctrt_status fail_file(const struct file_store *store, const char *what)
{
    return ctrt_fail(CTRT_ERR_COMM, "%s: %s: %s", store->path, what, strerror(errno));
}

/* Sets, tests or removes a lock without waiting. Returns whether that succeeded, for F_OFD_GETLK whether it is free. */
static bool lock_byte(const struct file_store *store, int command, short type, int byte)
{
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1 };
    return fcntl(store->fd, command, &lock) == 0 && (command != F_OFD_GETLK || lock.l_type == F_UNLCK);
}

static ctrt_status lock_file(struct file_store *store, int64_t deadline)
{
    int64_t pause = 20000;
    while (!lock_byte(store, F_OFD_SETLK, F_WRLCK, ACCESS)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return fail_file(store, "the file system does not lock it");
        if (!store_sleep(&pause, 2000000, deadline))
            return ctrt_fail(CTRT_ERR_COMM, "%s: another process keeps it locked", store->path);
    }
    return CTRT_OK;
}

static void unlock_file(const struct file_store *store)
{
    lock_byte(store, F_OFD_SETLK, F_UNLCK, ACCESS);
}

static ctrt_status file_store_reserve(struct file_store *store, size_t bytes)
{
    if (bytes <= store->capacity)
        return CTRT_OK;
    const size_t capacity = MAX(bytes, 2 * store->capacity);
    unsigned char *buffer = host_realloc(store->buffer, capacity);
    if (buffer == NULL)
        return out_of_memory(capacity, "a file store's buffer");
    store->buffer = buffer;
    store->capacity = capacity;
    return CTRT_OK;
}

/* Reads or writes data[bytes] at the offset. */
static ctrt_status file_transfer(const struct file_store *store, void *data, size_t bytes, off_t offset, bool writes)
{
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        const off_t place = offset + (off_t)done;
        const ssize_t n = writes ? pwrite(store->fd, at, bytes - done, place)
                                 : pread(store->fd, at, bytes - done, place);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return fail_file(store, writes ? "write" : "read");
        }
        done += (size_t)n;
    }
    return CTRT_OK;
}

/* Reads to the buffer. */
static ctrt_status file_store_read_at(struct file_store *store, size_t bytes, off_t offset)
{
    CTRT_TRY(file_store_reserve(store, bytes));
    return file_transfer(store, store->buffer, bytes, offset, false);
}

static ctrt_status fail_damaged(const struct file_store *store)
{
    return ctrt_fail(CTRT_ERR_COMM, "%s: damaged at byte %lld", store->path, (long long)store->end);
}

static ctrt_status file_size(off_t *size, const struct file_store *store)
{
    struct stat status;
    if (fstat(store->fd, &status) != 0)
        return fail_file(store, "fstat");
    *size = status.st_size;
    return CTRT_OK;
}

/* Executes one message of the log, at store->end of a file of `size` bytes. *cut: the file ends within the message. */
static ctrt_status replay_one(bool *cut, struct file_store *store, off_t size)
{
    const off_t left = size - store->end;
    struct store_message message;
    struct store_value *value = NULL;
    size_t bytes = 0;
    bool changed;
    *cut = (size_t)left < sizeof(struct store_header);
    if (*cut)
        return CTRT_OK;
    CTRT_TRY(file_store_read_at(store, sizeof(struct store_header), store->end));
    enum store_parsed parsed = store_message_parse(&message, &bytes, store->buffer, sizeof(struct store_header));
    *cut = parsed == STORE_INCOMPLETE && (off_t)bytes > left;
    if (parsed == STORE_MALFORMED || *cut)
        return *cut ? CTRT_OK : fail_damaged(store);
    CTRT_TRY(file_store_read_at(store, bytes, store->end));
    parsed = store_message_parse(&message, &bytes, store->buffer, bytes);
    if (parsed != STORE_PARSED || (message.op != STORE_SET && message.op != STORE_DELETE))
        return fail_damaged(store);
    const enum store_result result = store_map_execute(&value, &changed, &store->map, &message);
    store_value_release(value);
    if (result == STORE_NO_MEMORY || result == STORE_FULL)
        return out_of_memory(bytes, store->path);
    store->end += (off_t)bytes;
    return CTRT_OK;
}

/* Executes the part of the log that has been added. Needs ACCESS. A message that is cut off at the end of the file is
 * from a process that ended while it wrote, and is removed. */
static ctrt_status file_store_replay(struct file_store *store)
{
    off_t size;
    bool cut = false;
    CTRT_TRY(file_size(&size, store));
    if (size < store->end)
        return fail_damaged(store);
    while (store->end < size && !cut)
        CTRT_TRY(replay_one(&cut, store, size));
    return cut && ftruncate(store->fd, store->end) != 0 ? fail_file(store, "truncate") : CTRT_OK;
}

/* Appends the change that a request has made: the key's new value, or its removal if `value` is NULL. */
static ctrt_status file_store_append(struct file_store *store, const struct store_message *request,
                                     const struct store_value *value)
{
    const struct store_message message = {
        .op = value != NULL ? STORE_SET : STORE_DELETE, .key = request->key, .key_bytes = request->key_bytes,
        .value = value != NULL ? value->data : NULL, .value_bytes = value != NULL ? value->bytes : 0,
    };
    const size_t bytes = store_message_write(NULL, &message);
    ctrt_status status = file_store_reserve(store, bytes);
    if (status == CTRT_OK) {
        store_message_write(store->buffer, &message);
        status = file_transfer(store, store->buffer, bytes, store->end, true);
    }
    if (status == CTRT_OK)
        store->end += (off_t)bytes;
    else if (ftruncate(store->fd, store->end) != 0)
        status = fail_file(store, "truncate after a failed write");
    return status;
}

/* Executes a request with ACCESS held. If the file cannot be written, the map has a change that the file lacks;
 * therefore it is rebuilt from the file by the next request. */
static ctrt_status file_store_execute(enum store_result *result, struct store_value **value, struct file_store *store,
                                      const struct store_message *message)
{
    bool changed = false;
    CTRT_TRY(file_store_replay(store));
    *result = store_map_execute(value, &changed, &store->map, message);
    if (!changed)
        return CTRT_OK;
    const ctrt_status status = file_store_append(store, message, *value);
    if (status != CTRT_OK) {
        store_value_release(*value);
        *value = NULL;
        store_map_clear(&store->map);
        store->end = sizeof magic;
    }
    return status;
}

/* Fails if the process that serves has ended. */
static ctrt_status check_alive(const struct file_store *store)
{
    if (store->base.serves || !lock_byte(store, F_OFD_GETLK, F_WRLCK, ALIVE))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_COMM, "%s: the process that created the store has ended or released it", store->path);
}

static uint64_t key_hash(const char *key, size_t bytes)
{
    return hash_bytes(HASH_START, key, bytes);
}

static void file_interrupt(ctrt_store *base, const char *key)
{
    struct file_store *store = (struct file_store *)base;
    atomic_store(&store->interrupted, key_hash(key, strlen(key)));
    atomic_fetch_add(&store->interruptions, 1);
}

static ctrt_status file_request(enum store_result *result, struct store_value **value, ctrt_store *base,
                                const struct store_message *message, int64_t deadline, int64_t patience)
{
    struct file_store *store = (struct file_store *)base;
    int64_t pause = 100000;
    const unsigned interruptions = atomic_load(&store->interruptions);
    for (off_t seen = -1;;) {
        off_t size = 0;
        pthread_mutex_lock(&store->lock);
        ctrt_status status = check_alive(store);
        if (status == CTRT_OK)
            status = file_size(&size, store);
        if (status == CTRT_OK && size != seen) {
            status = lock_file(store, MAX(deadline, store_now() + patience));
            if (status == CTRT_OK) {
                status = file_store_execute(result, value, store, message);
                seen = store->end;
                unlock_file(store);
            }
        }
        pthread_mutex_unlock(&store->lock);
        if (status != CTRT_OK || message->op != STORE_GET || *result != STORE_UNSET
            || (atomic_load(&store->interruptions) != interruptions
                && atomic_load(&store->interrupted) == key_hash(message->key, message->key_bytes))
            || !store_sleep(&pause, 5000000, deadline))
            return status;
    }
}

/* ---- open and close ---- */

/* Opens the file. Refuses symbolic links and files of other users, who could have put them there (in /tmp). */
static ctrt_status file_store_open_file(struct file_store *store)
{
    struct stat status;
    const int create = store->base.serves ? O_CREAT : 0;
    store->fd = fd_above_stdio(open(store->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | create, 0600));
    if (store->fd < 0)
        return fail_file(store, "open");
    if (fstat(store->fd, &status) != 0)
        return fail_file(store, "fstat");
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return ctrt_fail(CTRT_ERR_COMM, "%s: not a regular file of this user", store->path);
    return CTRT_OK;
}

static ctrt_status fail_left_over(const struct file_store *store)
{
    return ctrt_fail(CTRT_ERR_COMM,
                     "%s: the file is not empty, and no process serves it; it is left over from an earlier run or is "
                     "not a store. Remove it", store->path);
}

static ctrt_status serve_file(struct file_store *store, int64_t deadline)
{
    off_t size = 0;
    CTRT_TRY(file_store_open_file(store));
    CTRT_TRY(lock_file(store, deadline));
    ctrt_status status = file_size(&size, store);
    if (status == CTRT_OK && !lock_byte(store, F_OFD_SETLK, F_WRLCK, ALIVE))
        status = ctrt_fail(CTRT_ERR_STATE, "%s: another process serves this store", store->path);
    else if (status == CTRT_OK && size > 0)
        status = fail_left_over(store);
    else if (status == CTRT_OK)
        status = file_transfer(store, (void *)magic, sizeof magic, 0, true);
    unlock_file(store);
    return status;
}

/* Sets *ready to whether the file exists and the process that serves has prepared it. */
static ctrt_status try_join(bool *ready, struct file_store *store)
{
    off_t size = 0;
    *ready = false;
    if (store->fd < 0 && access(store->path, F_OK) != 0 && errno == ENOENT)
        return CTRT_OK;
    if (store->fd < 0)
        CTRT_TRY(file_store_open_file(store));
    CTRT_TRY(file_size(&size, store));
    if (size == 0 || !lock_byte(store, F_OFD_SETLK, F_WRLCK, ACCESS))
        return CTRT_OK;
    *ready = true;
    ctrt_status status = size >= (off_t)sizeof magic ? file_store_read_at(store, sizeof magic, 0) : CTRT_OK;
    if (status == CTRT_OK && lock_byte(store, F_OFD_GETLK, F_WRLCK, ALIVE))
        status = fail_left_over(store);
    else if (status == CTRT_OK
             && (size < (off_t)sizeof magic || memcmp(store->buffer, magic, sizeof magic) != 0))
        status = ctrt_fail(CTRT_ERR_COMM, "%s: not the file of a store", store->path);
    unlock_file(store);
    return status;
}

static ctrt_status join_file(struct file_store *store, int64_t deadline)
{
    int64_t pause = 1000000;
    for (bool ready = false;;) {
        CTRT_TRY(try_join(&ready, store));
        if (ready)
            return CTRT_OK;
        if (!store_sleep(&pause, 20000000, deadline))
            return ctrt_fail(CTRT_ERR_COMM, "%s: no process has created the store (with `serve`) before the time limit",
                             store->path);
    }
}

static void file_close(ctrt_store *base)
{
    struct file_store *store = (struct file_store *)base;
    store_map_clear(&store->map);
    host_free(store->buffer);
    pthread_mutex_destroy(&store->lock);
    if (store->fd >= 0)
        close(store->fd);
}

static ctrt_status file_open(ctrt_store *base, const char *rest, int64_t deadline)
{
    struct file_store *store = (struct file_store *)base;
    store->path = rest;
    store->fd = -1;
    store->end = sizeof magic;
    pthread_mutex_init(&store->lock, NULL);
    store_map_init(&store->map);
    const ctrt_status status = base->serves ? serve_file(store, deadline) : join_file(store, deadline);
    if (status != CTRT_OK)
        file_close(base);
    return status;
}

/* The process that serves removes the file, so that the next run can use the same path. */
static void file_leave(ctrt_store *base)
{
    struct file_store *store = (struct file_store *)base;
    struct stat mine, there;
    if (base->serves && fstat(store->fd, &mine) == 0 && stat(store->path, &there) == 0 && mine.st_dev == there.st_dev
        && mine.st_ino == there.st_ino)
        unlink(store->path);
    file_close(base);
}

static bool file_reserve(ctrt_store *base, int number)
{
    return lock_byte((struct file_store *)base, F_OFD_SETLK, F_WRLCK, RESERVED + number);
}

/* The locks belong to the open file description, which the child has inherited. */
static void file_at_fork(ctrt_store *base, enum store_fork when)
{
    if (when == STORE_IN_CHILD)
        close(((struct file_store *)base)->fd);
}

const struct store_kind store_file_kind = {
    .scheme = "file", .bytes = sizeof(struct file_store), .open = file_open, .request = file_request,
    .close = file_leave, .at_fork = file_at_fork, .interrupt = file_interrupt, .reserve = file_reserve,
};
