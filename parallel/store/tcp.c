/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/tcp.c: the client of a tcp store.
 *
 * The threads of the process share one connection. A request is a struct call in a list. One of the threads that wait,
 * the driver, sends the frames of all calls in order and receives all replies; the others wait for a condition
 * variable. When the driver's own call is done, another waiting thread becomes the driver. A thread that adds a call
 * while another one drives sends it. If the socket takes only a part, it wakes the driver's poll() with an eventfd. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "parallel/store/store.h"
#include "parallel/store/auth.h"
#include "parallel/store/server.h"

#define ATTEMPT_TIME INT64_C(5000000000)        /* ns that one address gets to answer */
/* A server that has not answered requests for SILENT_TIME gets SILENT_PATIENCE for each further one, so that the waits
 * of several requests do not add up. In ns. */
#define SILENT_TIME     INT64_C(2000000000)
#define SILENT_PATIENCE INT64_C(300000000)
#define SMALL_INPUT  ((size_t)4096)             /* size of the input buffer between large values */

struct call {
    struct call *next;
    uint32_t id;
    bool done;
    bool abandoned;                     /* no thread waits for it; the driver frees it when it is sent */
    enum store_result result;
    struct store_value *value;
    pthread_cond_t changed;             /* done, the connection failed, or a driver is needed */
    size_t bytes, sent;
    unsigned char frame[];
};

struct tcp_store {
    ctrt_store base;
    struct store_server *server;        /* NULL: another process serves */
    int fd, wake;
    pthread_mutex_t lock;               /* guards the members below */
    bool driven;                        /* a thread is the driver */
    uint32_t last_id;
    struct call *calls;                 /* in order of sending */
    unsigned char *input;
    size_t used, capacity;
    int64_t unanswered;                 /* when the first request began that was not answered in time; 0: there is none
                                         * since the last reply */
    char failure[160];                  /* why the connection has ended; empty: it works */
};

/* ---- calls ---- */

static struct call *call_new(const struct store_message *message, uint32_t id)
{
    struct store_message copy = *message;
    const size_t bytes = store_message_write(NULL, message);
    struct call *call = host_alloc(sizeof *call + bytes);
    if (call == NULL)
        return NULL;
    memset(call, 0, sizeof *call);
    copy.id = call->id = id;
    call->bytes = bytes;
    store_message_write(call->frame, &copy);
    store_cond_init(&call->changed);
    return call;
}

static void call_free(struct call *call)
{
    pthread_cond_destroy(&call->changed);
    store_value_release(call->value);
    host_free(call);
}

static void call_append(struct tcp_store *store, struct call *call)
{
    struct call **end = &store->calls;
    while (*end != NULL)
        end = &(*end)->next;
    *end = call;
}

static void call_remove(struct tcp_store *store, struct call *call)
{
    struct call **place = &store->calls;
    while (*place != call)
        place = &(*place)->next;
    *place = call->next;
    call_free(call);
}

static bool all_sent(const struct tcp_store *store)
{
    const struct call *call = store->calls;
    while (call != NULL && call->sent == call->bytes)
        call = call->next;
    return call == NULL;
}

/* Ends the connection for all calls. */
static void fail_connection(struct tcp_store *store, const char *why, int error)
{
    if (store->failure[0] != '\0')
        return;
    snprintf(store->failure, sizeof store->failure, "%s%s%s", why, error != 0 ? ": " : "",
             error != 0 ? strerror(error) : "");
    if (error == 0 || error == ECONNRESET || error == EPIPE)
        atomic_store(&store->base.ended, true);
    for (struct call *call = store->calls; call != NULL; call = call->next)
        pthread_cond_signal(&call->changed);
}

/* ---- the driver ---- */

static void send_calls(struct tcp_store *store)
{
    struct call *call = store->calls, *next;
    for (; call != NULL && store->failure[0] == '\0'; call = next) {
        next = call->next;
        while (call->sent < call->bytes) {
            const ssize_t n = send(store->fd, call->frame + call->sent, call->bytes - call->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0 && errno != EAGAIN)
                fail_connection(store, "the connection to the server has ended", errno);
            if (n < 0)
                return;
            call->sent += (size_t)n;
        }
        if (call->abandoned)
            call_remove(store, call);
    }
}

static void finish_call(struct tcp_store *store, const struct store_message *reply)
{
    struct call *call = store->calls;
    store->unanswered = 0;
    while (call != NULL && (call->id != reply->id || call->abandoned || call->done || call->sent < call->bytes))
        call = call->next;
    if (call == NULL)
        return;                         /* the caller has stopped waiting */
    call->result = reply->flags;
    if (reply->flags == STORE_OK || reply->value_bytes > 0) {
        call->value = store_value_new(reply->value, reply->value_bytes, NULL);
        if (call->value == NULL)
            call->result = STORE_NO_MEMORY;
    }
    call->done = true;
    pthread_cond_signal(&call->changed);
}

/* Handles the complete replies in the input buffer, and makes room for the rest of an incomplete one. */
static void tcp_store_finish_calls(struct tcp_store *store)
{
    size_t done = 0, size = 0;
    for (;;) {
        struct store_message reply;
        const enum store_parsed parsed = store_message_parse(&reply, &size, store->input + done, store->used - done);
        if (parsed == STORE_INCOMPLETE)
            break;
        if (parsed == STORE_MALFORMED || reply.op != STORE_REPLY) {
            fail_connection(store, "malformed reply of the server", EBADMSG);
            return;
        }
        finish_call(store, &reply);
        done += size;
    }
    store->used -= done;
    memmove(store->input, store->input + done, store->used);
    const size_t capacity = MAX(size, SMALL_INPUT);
    if (capacity == store->capacity || (capacity < store->capacity && store->used > 0))
        return;
    unsigned char *input = host_realloc(store->input, capacity);
    if (input == NULL) {
        fail_connection(store, "no memory for a reply", ENOMEM);
        return;
    }
    store->input = input;
    store->capacity = capacity;
}

static void receive_replies(struct tcp_store *store)
{
    while (store->failure[0] == '\0') {
        const ssize_t n = recv(store->fd, store->input + store->used, store->capacity - store->used, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            fail_connection(store, "the connection to the server has ended", n < 0 ? errno : 0);
            return;
        }
        store->used += (size_t)n;
        tcp_store_finish_calls(store);
    }
}

/* Sends, waits for the socket until the deadline, and receives. */
static void drive(struct tcp_store *store, int64_t deadline)
{
    eventfd_t ignored;
    send_calls(store);
    struct pollfd polls[2] = {
        { .fd = store->fd, .events = (short)(POLLIN | (all_sent(store) ? 0 : POLLOUT)) },
        { .fd = store->wake, .events = POLLIN },
    };
    if (store->failure[0] != '\0')
        return;
    store->driven = true;
    pthread_mutex_unlock(&store->lock);
    const int ready = poll(polls, 2, store_poll_timeout(deadline));
    pthread_mutex_lock(&store->lock);
    store->driven = false;
    if (ready > 0 && polls[1].revents != 0)
        (void)eventfd_read(store->wake, &ignored);
    if (ready > 0 && polls[0].revents != 0)
        receive_replies(store);
}

/* Makes another waiting thread the driver. */
static void pass_on(struct tcp_store *store)
{
    for (struct call *call = store->calls; call != NULL; call = call->next)
        if (!call->done && !call->abandoned) {
            pthread_cond_signal(&call->changed);
            return;
        }
}

/* Sends what the socket takes. The driver must wait until it takes the rest. */
static void send_or_wake(struct tcp_store *store)
{
    send_calls(store);
    if (store->driven && !all_sent(store))
        (void)eventfd_write(store->wake, 1);
}

/* Makes the server answer a STORE_GET with STORE_UNSET, unless it has sent the value before. */
static ctrt_status cancel(struct tcp_store *store, uint32_t id)
{
    const struct store_message message = { .op = STORE_CANCEL };
    struct call *call = call_new(&message, id);
    if (call == NULL)
        return out_of_memory(sizeof *call, "a request to a store");
    call->abandoned = true;
    call_append(store, call);
    send_or_wake(store);
    return CTRT_OK;
}

static ctrt_status wait_for(struct tcp_store *store, struct call *call, enum store_op op, int64_t deadline,
                            int64_t patience)
{
    const int64_t begin = store_now();
    bool cancelled = false;
    if (store->unanswered != 0 && begin - store->unanswered >= SILENT_TIME) {
        patience = MIN(patience, SILENT_PATIENCE);
        if (op != STORE_GET)
            deadline = MIN(deadline, begin + SILENT_PATIENCE);
    }
    send_or_wake(store);
    for (bool late = false; !call->done && store->failure[0] == '\0'; late = store_now() >= deadline) {
        const struct timespec limit = store_timespec(deadline);
        if (late && (op != STORE_GET || cancelled)) {
            if (store->unanswered == 0)
                store->unanswered = begin;
            return ctrt_fail(CTRT_ERR_COMM, "the server of %s does not answer", store->base.address);
        }
        if (late) {
            CTRT_TRY(cancel(store, call->id));
            cancelled = true;
            deadline = store_now() + patience;
        } else if (store->driven) {
            pthread_cond_timedwait(&call->changed, &store->lock, &limit);
        } else {
            drive(store, deadline);
        }
    }
    return call->done ? CTRT_OK : ctrt_fail(CTRT_ERR_COMM, "%s: %s", store->base.address, store->failure);
}

static ctrt_status tcp_request(enum store_result *result, struct store_value **value, ctrt_store *base,
                               const struct store_message *message, int64_t deadline, int64_t patience)
{
    struct tcp_store *store = (struct tcp_store *)base;
    pthread_mutex_lock(&store->lock);
    struct call *call = call_new(message, ++store->last_id);
    if (call == NULL) {
        pthread_mutex_unlock(&store->lock);
        return out_of_memory(store_message_write(NULL, message), "a request to a store");
    }
    call_append(store, call);
    const ctrt_status status = wait_for(store, call, message->op, deadline, patience);
    *result = call->result;
    *value = call->value;
    call->value = NULL;
    /* If a part of the request has been sent, the rest must follow, so the call stays in the list. */
    call->abandoned = true;
    if (call->sent == 0 || call->sent == call->bytes)
        call_remove(store, call);
    if (!store->driven)
        pass_on(store);
    pthread_mutex_unlock(&store->lock);
    return status;
}

static void tcp_interrupt(ctrt_store *base, const char *key)
{
    struct tcp_store *store = (struct tcp_store *)base;
    const size_t length = strlen(key);
    pthread_mutex_lock(&store->lock);
    for (const struct call *call = store->calls; call != NULL && store->failure[0] == '\0'; call = call->next) {
        struct store_header header;
        memcpy(&header, call->frame, sizeof header);
        if (header.op == STORE_GET && !call->done && !call->abandoned && header.key_bytes == length
            && memcmp(call->frame + sizeof header, key, length) == 0)
            (void)cancel(store, call->id);
    }
    pthread_mutex_unlock(&store->lock);
}

/* ---- connect ---- */

/* Waits until the socket is ready. Sets errno. */
static bool tcp_store_wait_socket(int fd, short events, int64_t deadline)
{
    struct pollfd entry = { .fd = fd, .events = events };
    int ready;
    do
        ready = poll(&entry, 1, store_poll_timeout(deadline));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        errno = ETIMEDOUT;
    return ready > 0;
}

/* Sends or receives exactly `bytes` bytes. Sets errno. */
static bool transfer(int fd, void *data, size_t bytes, bool sends, int64_t deadline)
{
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        const ssize_t n = sends ? send(fd, at, bytes - done, MSG_NOSIGNAL) : recv(fd, at, bytes - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            errno = ECONNRESET;
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)
            || (n < 0 && errno == EAGAIN && !tcp_store_wait_socket(fd, sends ? POLLOUT : POLLIN, deadline)))
            return false;
    }
    return true;
}

/* Whether the socket is connected to itself. Linux does that if nothing listens on a port that it then chooses for this
 * end of the connection as well. The server could not listen on the port as long as the socket exists. */
static bool is_own_peer(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    memset(&own, 0, sizeof own);
    memset(&peer, 0, sizeof peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_length) == 0
           && getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0 && memcmp(&own, &peer, sizeof own) == 0;
}

/* Returns a connected socket or -1, with errno. */
static int connect_to(const struct addrinfo *address, int64_t deadline)
{
    int error = 0;
    socklen_t length = sizeof error;
    const int fd = fd_above_stdio(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return -1;
    store_socket_options(fd);
    error = connect(fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
        const bool known = tcp_store_wait_socket(fd, POLLOUT, deadline)
                           && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0;
        error = known ? error : errno;
    }
    if (error == 0 && is_own_peer(fd))
        error = ECONNREFUSED;
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* Authenticates. *again: the connection broke, another attempt may succeed. */
static ctrt_status greet(bool *again, int fd, const char *secret, int64_t deadline)
{
    struct store_hello hello;
    struct store_answer answer;
    struct store_verdict verdict;
    *again = !transfer(fd, &hello, sizeof hello, false, deadline);
    if (*again)
        return ctrt_fail(CTRT_ERR_COMM, "the server does not answer: %s", strerror(errno));
    CTRT_TRY(store_hello_check(&answer, &hello, secret));
    *again = !transfer(fd, &answer, sizeof answer, true, deadline)
             || !transfer(fd, &verdict, sizeof verdict, false, deadline);
    if (*again)
        return ctrt_fail(CTRT_ERR_COMM, "the server has closed the connection: %s", strerror(errno));
    return store_verdict_check(&verdict, &answer, &hello, secret);
}

/* Tries each address of the host once. */
static ctrt_status try_connect(int *out, bool *again, const char *host, int port, const char *secret, int64_t deadline)
{
    struct addrinfo *list = NULL;
    ctrt_status status = CTRT_ERR_COMM;
    const int error = store_resolve(&list, host, port, false);
    *again = true;
    if (error != 0)
        return ctrt_fail(CTRT_ERR_COMM, "the host %s cannot be resolved: %s", host, gai_strerror(error));
    for (struct addrinfo *at = list; at != NULL && *again && status != CTRT_OK; at = at->ai_next) {
        const int64_t limit = MIN(deadline, store_now() + ATTEMPT_TIME);
        const int fd = connect_to(at, limit);
        if (fd < 0) {
            status = ctrt_fail(CTRT_ERR_COMM, "cannot connect: %s", strerror(errno));
            continue;
        }
        status = greet(again, fd, secret, limit);
        if (status == CTRT_OK)
            *out = fd;
        else
            close(fd);
    }
    freeaddrinfo(list);
    return status;
}

static ctrt_status connect_until(int *out, const char *host, int port, const char *secret, int64_t deadline)
{
    int64_t pause = 5000000;
    for (bool again;;) {
        const ctrt_status status = try_connect(out, &again, host, port, secret, deadline);
        if (status == CTRT_OK || !again)
            return status;
        if (!store_sleep(&pause, 250000000, deadline))
            return ctrt_context(status, "no connection before the time limit");
    }
}

/* ---- open and close ---- */

static void tcp_free(struct tcp_store *store)
{
    while (store->calls != NULL)
        call_remove(store, store->calls);
    if (store->fd >= 0) {
        shutdown(store->fd, SHUT_RDWR);         /* a child that was forked just now may have a copy */
        close(store->fd);
    }
    if (store->wake >= 0)
        close(store->wake);
    if (store->server != NULL)
        store_server_stop(store->server);
    host_free(store->input);
    pthread_mutex_destroy(&store->lock);
}

/* Opens the store whose address has been parsed. */
static ctrt_status tcp_start(struct tcp_store *store, const char *host, int port, int64_t deadline)
{
    const char *secret = NULL;
    CTRT_TRY(store_secret(&secret));
    if (store->base.serves) {
        CTRT_TRY(store_server_start(&store->server, host, &port, secret));
        sprintf(strrchr(store->base.address, ':') + 1, "%d", port);
    } else if (port == 0) {
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "port 0 is only for the process that serves");
    }
    store->input = host_calloc(SMALL_INPUT);
    ALLOC_CHECK(store->input, SMALL_INPUT, "a store");
    store->capacity = SMALL_INPUT;
    store->wake = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (store->wake < 0)
        return ctrt_fail(CTRT_ERR_COMM, "eventfd: %s", strerror(errno));
    return connect_until(&store->fd, host, port, secret, deadline);
}

static ctrt_status tcp_open(ctrt_store *base, const char *rest, int64_t deadline)
{
    struct tcp_store *store = (struct tcp_store *)base;
    char host[256];
    int port;
    CTRT_TRY(store_parse_host(host, &port, rest));
    store->fd = store->wake = -1;
    pthread_mutex_init(&store->lock, NULL);
    const ctrt_status status = tcp_start(store, host, port, deadline);
    if (status != CTRT_OK)
        tcp_free(store);
    return status;
}

static void tcp_close(ctrt_store *base)
{
    struct tcp_store *store = (struct tcp_store *)base;
    const struct store_message leave = { .op = STORE_LEAVE };
    struct store_value *value = NULL;
    enum store_result result;
    if (store->failure[0] == '\0')
        (void)tcp_request(&result, &value, base, &leave, store_deadline(1), 0);
    store_value_release(value);
    tcp_free(store);
}

static void tcp_at_fork(ctrt_store *base, enum store_fork when)
{
    struct tcp_store *store = (struct tcp_store *)base;
    if (when == STORE_IN_CHILD) {
        close(store->fd);
        close(store->wake);
    }
    if (store->server != NULL)
        store_server_fork(store->server, when);
}

const struct store_kind store_tcp_kind = {
    .scheme = "tcp", .bytes = sizeof(struct tcp_store), .open = tcp_open, .request = tcp_request, .close = tcp_close,
    .at_fork = tcp_at_fork, .interrupt = tcp_interrupt, .detects_disconnect = true,
};
