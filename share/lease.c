/* SPDX-License-Identifier: Apache-2.0 */
/* share/lease.c: keeps the block of a device's storage allocated while other processes use it. */
#include "share/lease.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/descriptor.h"
#include "base/lock.h"

/* What a receiver sends to the owner. */
struct notice {
    int32_t process, change;                /* change: 1 opened, -1 closed */
};
struct user {
    int32_t process, uses;
};

struct lease {
    struct lease *next;
    int own_end, other_end;                 /* of the socket; -1: closed */
    struct device_memory *memory;
    ctrt_block block;
    size_t bytes;
    ctrt_stream *stream;                    /* the block's */
    bool released;                          /* the storage is gone; the block waits for the receivers */
    struct user *users;                     /* receivers that have opened the memory */
    size_t user_count, user_capacity;
};

struct lease_use {
    struct lease_use *next;
    int fd;                                 /* -1: closed after a fork */
};

LOCK_DEFINE(leases_lock, LOCK_LEASES);
static struct lease *leases;                /* of this process as owner; guarded by the lock, like the next one */
static struct lease_use *uses;              /* as receiver */

/* ---- fork: the child must not keep the leases of its parent, and cannot use the devices ---- */

static void after_fork_in_child(void)
{
    for (struct lease *lease = leases; lease != NULL; lease = lease->next) {
        close(lease->own_end);
        close(lease->other_end);
        lease->own_end = lease->other_end = -1;
    }
    for (struct lease_use *use = uses; use != NULL; use = use->next) {
        close(use->fd);
        use->fd = -1;
    }
}

__attribute__((constructor)) static void lease_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

/* ---- the owner ---- */

/* Whether the process has ended completely. An ID that belongs to another process by now delays the answer. */
static bool process_gone(int32_t process)
{
    const int fd = fd_above_stdio((int)syscall(SYS_pidfd_open, process, 0));
    if (fd < 0)                             /* without pidfds (before Linux 5.3), also wait for the parent's wait() */
        return errno == ESRCH || (kill(process, 0) != 0 && errno == ESRCH);
    struct pollfd ended = { .fd = fd, .events = POLLIN };
    const bool gone = poll(&ended, 1, 0) == 1;
    close(fd);
    return gone;
}

static void lease_note(struct lease *lease, const struct notice *notice)
{
    struct user *user = lease->users, *end = user + lease->user_count;
    while (user < end && user->process != notice->process)
        user++;
    if (user == end) {
        if (!ARRAY_GROW(lease->users, lease->user_capacity, lease->user_count))
            return;                         /* then the closed socket alone decides */
        user = &lease->users[lease->user_count++];
        *user = (struct user){ notice->process, 0 };
    }
    user->uses += notice->change;
    if (user->uses == 0)
        *user = lease->users[--lease->user_count];
}

/* Reads the notices. Returns whether no other process can use the memory any more. */
static bool unused(struct lease *lease)
{
    struct notice notices[64];
    ssize_t bytes;
    while ((bytes = recv(lease->own_end, notices, sizeof notices, MSG_DONTWAIT)) > 0)
        for (size_t i = 0; i < (size_t)bytes / sizeof notices[0]; i++)
            lease_note(lease, &notices[i]);
    if (bytes != 0)                         /* EAGAIN: the other end is open somewhere */
        return false;
    for (size_t i = lease->user_count; i > 0; i--)
        if (process_gone(lease->users[i - 1].process))
            lease->users[i - 1] = lease->users[--lease->user_count];
    return lease->user_count == 0;
}

static void lease_free(struct lease *lease)
{
    if (lease->own_end >= 0)
        close(lease->own_end);
    host_free(lease->users);
    host_free(lease);
}

/* Frees the blocks that no process uses any more. */
static void lease_collect(void)
{
    struct lease *done = NULL;
    lock_enter(&leases_lock);
    for (struct lease **at = &leases, *lease; (lease = *at) != NULL;)
        if (lease->released && lease->own_end >= 0 && unused(lease)) {
            *at = lease->next;
            lease->next = done;
            done = lease;
        } else {
            at = &lease->next;
        }
    lock_leave(&leases_lock);
    for (struct lease *next; done != NULL; done = next) {
        next = done->next;
        pool_free(done->memory, &done->block, done->bytes, done->stream != NULL ? done->stream->queue : NULL);
        lease_free(done);
    }
}

/* `release` of a storage with a lease. The storage's work on the device is done (storage_destroy). */
static void lease_release(struct storage *storage)
{
    struct lease *lease = storage->user[0];
    lock_enter(&leases_lock);
    const bool forked = lease->own_end < 0; /* in the child of a fork: the block belongs to the parent */
    lease->released = true;                 /* from now on, another thread may free a lease that is not `forked` */
    if (lease->other_end >= 0)
        close(lease->other_end);
    lease->other_end = -1;
    lock_leave(&leases_lock);
    if (forked)
        pool_forget(lease->memory, &lease->block, lease->bytes, lease->stream != NULL ? lease->stream->queue : NULL);
    else
        lease_collect();
}

bool lease_owned(const struct storage *storage)
{
    return storage->release == lease_release;
}

/* A layer of the device's memory that checks the leases when cached memory is to be returned. */
static void layer_trim(struct memory_layer *layer, bool again)
{
    struct memory_layer *below = layer->below;
    lease_collect();
    while (below->ops.trim == NULL)
        below = below->below;
    below->ops.trim(below, again);
}

static void layer_destroy_ops(struct memory_layer *layer)
{
    host_free(layer);
}

static ctrt_status layer_push(struct device_memory *memory)
{
    struct memory_layer *layer = atomic_load(&memory->top);
    while (layer != NULL && layer->ops.trim != layer_trim)
        layer = layer->below;
    if (layer != NULL)
        return CTRT_OK;
    layer = host_calloc(sizeof *layer);
    ALLOC_CHECK(layer, sizeof *layer, "the leases of a device");
    layer->ops = (struct memory_ops){ .trim = layer_trim, .destroy = layer_destroy_ops };
    memory_push(memory, layer);
    return CTRT_OK;
}

/* Two threads may share one storage at the same time; the first one's lease counts. */
static ctrt_status lease_new(struct storage *storage)
{
    int ends[2];
    struct lease *lease = host_calloc(sizeof *lease);
    ALLOC_CHECK(lease, sizeof *lease, "a lease");
    if (fds_above_stdio(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), ends) != 0) {
        host_free(lease);
        return ctrt_fail(CTRT_ERR_IO, "cannot create a socket: %s", strerror(errno));
    }
    *lease = (struct lease){ .own_end = ends[0], .other_end = ends[1], .memory = storage->device->memory,
                             .block = storage->block, .bytes = storage->bytes, .stream = storage->stream };
    lock_enter(&leases_lock);
    ctrt_status status = layer_push(lease->memory);
    const bool used = status == CTRT_OK && !lease_owned(storage);
    if (used) {
        lease->next = leases;
        leases = lease;
        storage->release = lease_release;
        storage->user[0] = lease;
        storage->user[1] = NULL;
    }
    lock_leave(&leases_lock);
    if (!used) {
        close(ends[1]);
        lease_free(lease);
    }
    return status;
}

ctrt_status lease_get(int *fd, struct storage *storage)
{
    lease_collect();
    lock_enter(&leases_lock);
    const bool owned = lease_owned(storage);
    lock_leave(&leases_lock);
    if (!owned)
        CTRT_TRY(lease_new(storage));
    lock_enter(&leases_lock);
    struct lease *lease = storage->user[0];
    (void)unused(lease);                    /* reads the notices, so that the buffer does not become full */
    *fd = lease->other_end;
    lock_leave(&leases_lock);
    return CTRT_OK;
}

/* ---- the receiver ---- */

/* Has no effect if the owner has ended. A full buffer loses the notice; then the closed socket alone decides. */
static void notify(int fd, int32_t change)
{
    const struct notice notice = { (int32_t)getpid(), change };
    (void)!send(fd, &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ctrt_status lease_open(struct lease_use **out, int fd)
{
    struct lease_use *use = host_alloc(sizeof *use);
    if (use == NULL) {
        close(fd);
        return out_of_memory(sizeof *use, "a lease");
    }
    use->fd = fd;
    lock_enter(&leases_lock);
    use->next = uses;
    uses = use;
    lock_leave(&leases_lock);
    notify(fd, 1);
    *out = use;
    return CTRT_OK;
}

void lease_close(struct lease_use *use)
{
    lock_enter(&leases_lock);
    for (struct lease_use **at = &uses; *at != NULL; at = &(*at)->next)
        if (*at == use) {
            *at = use->next;
            break;
        }
    lock_leave(&leases_lock);
    if (use->fd >= 0) {
        notify(use->fd, -1);
        close(use->fd);
    }
    host_free(use);
}
