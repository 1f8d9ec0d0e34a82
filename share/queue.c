/* SPDX-License-Identifier: Apache-2.0 */
/* share/queue.c: queues of messages between processes.
 *
 * A queue is a pair of connected sockets of type SOCK_SEQPACKET: messages stay whole, any number of processes can send
 * and receive, and the kernel removes descriptors of messages that are never received. Messages are numbered, and three
 * numbers in shared memory limit how many there are: the last one that a sender has reserved, sent and received. No
 * lock is held at any time, so a process that is killed blocks no other. If it is killed between the socket and a
 * number, that number is too low or a reserved message is missing. The next message that is sent and received corrects
 * both; if the socket is empty, the next sender does (share_queue_slot_take). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "device/device.h"
#include "share/message.h"

#define STATE_MAGIC  0x7174727374617432ull
#define STATE_BYTES  4096
#define SLICE        0.05                   /* seconds; how long a sender waits before it checks the counters */
#define SOCKET_BYTES (8 << 20)              /* of messages; the system may allow fewer */

/* In shared memory. */
struct queue_state {
    uint64_t magic;
    uint32_t capacity;
    _Atomic uint32_t reserved, sent, received;  /* modulo 2^32 */
};

enum { PUT, GET, STATE };                   /* indices of descriptors */

/* A message that did not fit into the caller's room. */
struct share_queue_kept {
    struct share_queue_kept *next;
    pid_t process;
    struct message message;
};

struct ctrt_queue {
    int ends[2];                            /* sockets; -1: closed */
    struct shared_segment *segment;         /* of the state */
    struct queue_state *state;
    _Atomic(struct share_queue_kept *) kept;
};

/* ---- creation ---- */

static ctrt_status queue_create(ctrt_queue **out, const int ends[2], struct shared_segment *segment)
{
    ctrt_queue *queue = host_calloc(sizeof *queue);
    ALLOC_CHECK(queue, sizeof *queue, "a queue");
    queue->ends[PUT] = ends[PUT];
    queue->ends[GET] = ends[GET];
    queue->segment = segment;
    queue->state = (struct queue_state *)segment->address;
    ctrt_queue_release(out);
    *out = queue;
    return CTRT_OK;
}

ctrt_status ctrt_queue_new(ctrt_queue **out, int capacity)
{
    struct shared_segment *segment = NULL;
    const int bytes = SOCKET_BYTES;
    int ends[2];
    NULL_CHECK("queue_new", out);
    if (capacity < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "queue_new: a capacity of %d messages, expected at least 1",
                         capacity);
    CTRT_TRY(ctrt_context(shared_segment_new(&segment, STATE_BYTES), "queue_new"));
    struct queue_state *state = (struct queue_state *)segment->address;
    state->magic = STATE_MAGIC;
    state->capacity = (uint32_t)capacity;
    ctrt_status status = CTRT_OK;
    if (fds_above_stdio(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), ends) != 0)
        status = ctrt_fail(CTRT_ERR_IO, "queue_new: cannot create a socket: %s", strerror(errno));
    if (status == CTRT_OK) {
        /* Without the right to exceed it, the system's limit applies. */
        if (setsockopt(ends[PUT], SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
            (void)setsockopt(ends[PUT], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        status = queue_create(out, ends, segment);
        if (status != CTRT_OK) {
            close(ends[PUT]);
            close(ends[GET]);
        }
    }
    if (status != CTRT_OK)
        shared_segment_release(segment);
    return status;
}

ctrt_status ctrt_queue_from_descriptors(ctrt_queue **out, const int descriptors[3])
{
    struct shared_segment *segment = NULL;
    if (out == NULL || descriptors == NULL)
        return fail_null("queue_from_descriptors", out == NULL ? "out" : "descriptors");
    for (int i = PUT; i <= GET; i++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (descriptors[i] != -1 && (getsockopt(descriptors[i], SOL_SOCKET, SO_TYPE, &type, &size) != 0
                                     || type != SOCK_SEQPACKET))
            return ctrt_fail(CTRT_ERR_FORMAT, "queue_from_descriptors: %d is not a socket of a queue", descriptors[i]);
    }
    /* A failed call must not close the descriptor of the program. */
    const int copy = fcntl(descriptors[STATE], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (copy < 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "queue_from_descriptors: %d: %s", descriptors[STATE], strerror(errno));
    CTRT_TRY(ctrt_context(shared_segment_open(&segment, copy), "queue_from_descriptors"));
    const struct queue_state *state = (struct queue_state *)segment->address;
    ctrt_status status = CTRT_OK;
    if (segment->bytes != STATE_BYTES || state->magic != STATE_MAGIC)
        status = ctrt_fail(CTRT_ERR_FORMAT, "queue_from_descriptors: %d is not the state of a queue",
                           descriptors[STATE]);
    if (status == CTRT_OK)
        status = queue_create(out, descriptors, segment);
    if (status != CTRT_OK) {
        shared_segment_release(segment);
        return status;
    }
    close(descriptors[STATE]);
    for (int i = PUT; i <= GET; i++)
        if (descriptors[i] != -1)
            (void)fcntl(descriptors[i], F_SETFD, FD_CLOEXEC);
    return CTRT_OK;
}

ctrt_status ctrt_queue_descriptors(int descriptors[3], const ctrt_queue *queue)
{
    if (descriptors == NULL || queue == NULL)
        return fail_null("queue_descriptors", queue == NULL ? "queue" : "descriptors");
    descriptors[PUT] = queue->ends[PUT];
    descriptors[GET] = queue->ends[GET];
    descriptors[STATE] = queue->segment->fd;
    return CTRT_OK;
}

static ctrt_status close_end(ctrt_queue *queue, int end, const char *who)
{
    NULL_CHECK(who, queue);
    if (queue->ends[end] >= 0)
        close(queue->ends[end]);
    queue->ends[end] = -1;
    return CTRT_OK;
}

ctrt_status ctrt_queue_close_put(ctrt_queue *queue)
{
    return close_end(queue, PUT, "queue_close_put");
}

ctrt_status ctrt_queue_close_get(ctrt_queue *queue)
{
    return close_end(queue, GET, "queue_close_get");
}

void ctrt_queue_release(ctrt_queue **queue)
{
    if (queue == NULL || *queue == NULL)
        return;
    ctrt_queue *self = *queue;
    *queue = NULL;
    for (struct share_queue_kept *kept = self->kept, *next; kept != NULL; kept = next) {
        next = kept->next;
        message_close(&kept->message);
        host_free(kept);
    }
    close_end(self, PUT, NULL);
    close_end(self, GET, NULL);
    shared_segment_release(self->segment);
    host_free(self);
}

/* ---- waiting ---- */

struct limit {
    double seconds;
    int64_t end;                            /* INT64_MAX: none */
};

static struct limit limit_new(double seconds)
{
    const bool none = !(seconds >= 0 && seconds < 1e9);
    return (struct limit){ seconds, none ? INT64_MAX : clock_after(seconds) };
}

/* The time until the limit, at most `most`, in seconds. */
static double time_left(const struct limit *limit, double most)
{
    return limit->end == INT64_MAX ? most : MIN(MAX((double)(limit->end - clock_after(0)) * 1e-9, 0), most);
}

/* Waits for an event of a socket, at most `most` seconds. */
static void wait_socket(int socket, short events, const struct limit *limit, double most)
{
    struct pollfd wanted = { .fd = socket, .events = events };
    (void)poll(&wanted, 1, (int)(time_left(limit, most) * 1e3 + 0.999));
}

static bool closed(int socket)
{
    struct pollfd wanted = { .fd = socket };
    return poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLHUP | POLLERR));
}

static ctrt_status fail_closed_put(void)
{
    return ctrt_fail(CTRT_ERR_STATE, "queue_put: no process can get messages any more");
}

/* Sets a counter to the number of a message, unless a later message has done so. */
static void advance(_Atomic uint32_t *counter, uint32_t number)
{
    uint32_t last = atomic_load(counter);
    while ((int32_t)(number - last) > 0 && !atomic_compare_exchange_weak(counter, &last, number))
        ;
}

static bool socket_empty(int socket)
{
    int bytes = 0;
    return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes == 0;
}

/* Reserves a message, once fewer than `capacity` are in the queue. *number: its number. */
static ctrt_status share_queue_slot_take(uint32_t *number, ctrt_queue *queue, const struct limit *limit)
{
    struct queue_state *state = queue->state;
    bool waited = false;
    for (;;) {
        uint32_t received = atomic_load(&state->received), reserved = atomic_load(&state->reserved);
        /* All messages that were reserved are sent, or their senders had a whole slice for it and count as killed.
         * If the socket is empty as well, all are received, also by a process that was killed before it counted one. */
        if (received != reserved && (waited || atomic_load(&state->sent) == reserved)
            && socket_empty(queue->ends[PUT]) && atomic_compare_exchange_strong(&state->received, &received, reserved))
            received = reserved;
        if ((int32_t)(reserved - received) < (int32_t)state->capacity) {
            *number = reserved + 1;
            if (atomic_compare_exchange_weak(&state->reserved, &reserved, reserved + 1))
                return CTRT_OK;
            continue;
        }
        if (closed(queue->ends[PUT]))
            return fail_closed_put();
        const double wait = time_left(limit, SLICE);
        if (wait <= 0)
            return ctrt_fail(CTRT_ERR_COMM, "queue_put: the queue of %u messages is full for %g seconds",
                             state->capacity, limit->seconds);
        const struct timespec slice = { .tv_nsec = (long)(wait * 1e9) };
        waited = syscall(SYS_futex, &state->received, FUTEX_WAIT, received, &slice, NULL, 0) != 0 && errno == ETIMEDOUT;
    }
}

/* ---- messages ---- */

static ctrt_status send_message(ctrt_queue *queue, struct message *message, double seconds)
{
    const struct limit limit = limit_new(seconds);
    CTRT_TRY(share_queue_slot_take(&message->head.number, queue, &limit));
    for (;;) {
        const int error = message_send(queue->ends[PUT], message);
        if (error == 0) {
            advance(&queue->state->sent, message->head.number);
            return CTRT_OK;
        }
        /* ETOOMANYREFS: too many descriptors are in sockets. */
        const bool full = error == EAGAIN || error == ENOBUFS || error == ETOOMANYREFS;
        if ((full || error == EINTR) && time_left(&limit, SLICE) > 0) {
            if (full)                       /* POLLOUT comes only when the buffer is almost empty, so poll briefly */
                wait_socket(queue->ends[PUT], error == EAGAIN ? POLLOUT : 0, &limit, SLICE / 5);
            continue;
        }
        atomic_fetch_sub(&queue->state->reserved, 1);
        if (full || error == EINTR)
            return ctrt_fail(CTRT_ERR_COMM, "queue_put: the system's buffer for messages is full for %g seconds: %s",
                             seconds, strerror(error));
        return error == EPIPE || error == ECONNRESET ? fail_closed_put()
                                                     : ctrt_fail(CTRT_ERR_IO, "queue_put: %s", strerror(error));
    }
}

ctrt_status ctrt_queue_put(ctrt_queue *queue, ctrt_tensor *const *tensors, int count, const void *bytes, size_t size,
                           double seconds)
{
    CANCEL_DISABLED;
    struct message message;
    if (queue == NULL || (count > 0 && tensors == NULL) || (size > 0 && bytes == NULL))
        return fail_null("queue_put", queue == NULL ? "queue" : count > 0 && tensors == NULL ? "tensors" : "bytes");
    if (count < 0 || count > CTRT_QUEUE_MAX_TENSORS || size > CTRT_QUEUE_MAX_BYTES)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "queue_put: %d tensors and %zu bytes, expected at most %d and %d",
                         count, size, CTRT_QUEUE_MAX_TENSORS, CTRT_QUEUE_MAX_BYTES);
    if (queue->ends[PUT] < 0)
        return ctrt_fail(CTRT_ERR_STATE, "queue_put: this process has called ctrt_queue_close_put");
    CTRT_TRY(message_fill(&message, tensors, count, bytes, size));
    ctrt_status status = send_message(queue, &message, seconds);
    message_close(&message);
    return status;
}

/* Counts a message that was received, and wakes senders. */
static void slot_return(ctrt_queue *queue, uint32_t number)
{
    advance(&queue->state->received, number);
    syscall(SYS_futex, &queue->state->received, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void keep(ctrt_queue *queue, struct share_queue_kept *kept)
{
    kept->next = atomic_load(&queue->kept);
    while (!atomic_compare_exchange_weak(&queue->kept, &kept->next, kept))
        ;
}

/* Takes a message that did not fit into the room of an earlier call. Returns false if there is none. */
static bool take_kept(struct message *message, ctrt_queue *queue)
{
    struct share_queue_kept *first = atomic_load(&queue->kept) != NULL ? atomic_exchange(&queue->kept, NULL) : NULL;
    while (first != NULL && first->process != device_process) {     /* before the fork; the parent gets it */
        struct share_queue_kept *next = first->next;
        message_close(&first->message);
        host_free(first);
        first = next;
    }
    if (first == NULL)
        return false;
    for (struct share_queue_kept *other = first->next, *next; other != NULL; other = next) {
        next = other->next;
        keep(queue, other);
    }
    *message = first->message;
    host_free(first);
    return true;
}

static ctrt_status share_queue_receive(struct message *message, ctrt_queue *queue, double seconds)
{
    const struct limit limit = limit_new(seconds);
    if (take_kept(message, queue))
        return CTRT_OK;
    if (queue->ends[GET] < 0)
        return ctrt_fail(CTRT_ERR_STATE, "queue_get: this process has called ctrt_queue_close_get");
    for (;;) {
        int error;
        ctrt_status status = message_receive(message, &error, queue->ends[GET]);
        if (error == 0) {
            if (status != CTRT_ERR_FORMAT)
                slot_return(queue, message->head.number);
            return status;
        }
        if (error == EPIPE || error == ECONNRESET)
            return ctrt_fail(CTRT_ERR_STATE, "queue_get: the queue is empty, and no process can put messages any more");
        if (error != EAGAIN && error != EINTR)
            return ctrt_fail(CTRT_ERR_IO, "queue_get: %s", strerror(error));
        if (time_left(&limit, 1) <= 0)
            return ctrt_fail(CTRT_ERR_COMM, "queue_get: no message arrived within %g seconds", seconds);
        wait_socket(queue->ends[GET], POLLIN, &limit, 3600);
    }
}

/* The room does not suffice, so the next call gets the message. */
static ctrt_status share_queue_refuse(ctrt_queue *queue, struct message *message, int tensors, size_t bytes)
{
    struct share_queue_kept *kept = host_alloc(sizeof *kept);
    if (kept == NULL) {
        message_close(message);
        return out_of_memory(sizeof *kept, "a message");
    }
    kept->process = device_process;
    kept->message = *message;
    keep(queue, kept);
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "queue_get: the message has %u tensors and %u bytes, and there is room "
                     "for %d and %zu", message->head.count, message->head.size, tensors, bytes);
}

ctrt_status ctrt_queue_get(ctrt_tensor **tensors, int *count, void *bytes, size_t *size, ctrt_queue *queue,
                           double seconds)
{
    CANCEL_DISABLED;
    struct message message;
    ctrt_tensor *fresh[CTRT_QUEUE_MAX_TENSORS];
    const int room = count != NULL ? *count : 0;
    const size_t byte_room = size != NULL ? *size : 0;
    if (queue == NULL || (room > 0 && tensors == NULL) || (byte_room > 0 && bytes == NULL))
        return fail_null("queue_get", queue == NULL ? "queue" : room > 0 && tensors == NULL ? "tensors" : "bytes");
    CTRT_TRY(share_queue_receive(&message, queue, seconds));
    const int sent = (int)message.head.count;
    if (count != NULL)
        *count = sent;
    if (size != NULL)
        *size = message.head.size;
    if (sent > room || message.head.size > byte_room)
        return share_queue_refuse(queue, &message, room, byte_room);
    CTRT_TRY(message_open(fresh, &message));
    if (message.head.size > 0)
        memcpy(bytes, message.bytes, message.head.size);
    for (int i = 0; i < sent; i++)
        tensor_move(&tensors[i], fresh[i]);
    return CTRT_OK;
}
