/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/server.c: the server of a tcp store: one thread that waits in poll() and never for one client.
 *
 * The following limits prevent a client from blocking others or exhausting the memory:
 *
 *   MOST_CLIENTS     connections
 *   MOST_PENDING     connections that have not authenticated yet, each for PENDING_TIME and with 80 bytes of input; a
 *                    further one closes the oldest
 *   INPUT_BYTES      of incomplete messages; above it, the connection whose message has waited longest is closed
 *   MOST_REPLIES     replies that a client has not read; above it, no more requests of this client are read
 *   MOST_WAITS       waits for keys in all, CLIENT_WAITS of one client
 *   STORE_MAP_BYTES  of values, which the map and the replies share */
#define _GNU_SOURCE
#include "parallel/store/server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/descriptor.h"
#include "parallel/store/store.h"
#include "parallel/store/clients.h"

#define MOST_CLIENTS 8192
#define MOST_PENDING 512
#define PENDING_TIME INT64_C(10000000000)       /* ns */
#define INPUT_BYTES  ((size_t)256 << 20)
#define SMALL_INPUT  ((size_t)4096)             /* input buffers of up to this size are always allowed */

/* ---- input ---- */

static void authenticate(struct store_server *server, struct client *client, const struct store_answer *answer)
{
    struct store_verdict verdict;
    bool garbage;
    client->accepted = store_answer_check(&verdict, &garbage, answer, &client->hello, server->secret);
    client->closing = !client->accepted;
    server->pending -= client->accepted;
    if (garbage)
        client->dead = true;
    else
        client_send_bytes(client, &verdict, sizeof verdict, NULL);
}

static size_t large(size_t capacity)
{
    return capacity > SMALL_INPUT ? capacity : 0;
}

static void resize_input(struct store_server *server, struct client *client, size_t capacity)
{
    unsigned char *input = NULL;
    if (capacity > 0 && (input = host_realloc(client->input, capacity)) == NULL) {
        client->dead = true;
        return;
    }
    if (capacity == 0)
        host_free(client->input);
    server->input_bytes += large(capacity);
    server->input_bytes -= large(client->capacity);
    client->input = input;
    client->capacity = capacity;
}

/* Makes room for the rest of a message of `bytes` bytes. Reserves at most twice what has arrived, so that a client
 * cannot make the server reserve memory without sending data. If the memory for incomplete messages is used up, ends
 * the client that has a large one and has not made progress for the longest time. */
static void reserve_input(struct store_server *server, struct client *client, size_t bytes)
{
    const size_t capacity = MIN(bytes, MAX(2 * client->used, SMALL_INPUT));
    if (capacity <= client->capacity)
        return;
    while (!client->dead && server->input_bytes + large(capacity) > INPUT_BYTES) {
        struct client *oldest = client;
        for (size_t i = 0; i < server->client_count; i++) {
            struct client *other = server->clients[i];
            if (large(other->capacity) > 0 && other->since < oldest->since)
                oldest = other;
        }
        oldest->dead = true;
        oldest->used = 0;
        resize_input(server, oldest, 0);
    }
    if (!client->dead)
        resize_input(server, client, capacity);
}

/* Executes the complete messages that have arrived, as long as the client reads the replies. */
static void serve_input(struct store_server *server, struct client *client)
{
    size_t done = 0, size = 0;
    while (!client->dead && !client->closing && client->reply_count < MOST_REPLIES) {
        struct store_message message;
        const unsigned char *from = client->input + done;
        const size_t left = client->used - done;
        if (!client->accepted) {
            size = sizeof(struct store_answer);
            if (left < size)
                break;
            struct store_answer answer;
            memcpy(&answer, from, size);
            authenticate(server, client, &answer);
        } else {
            const enum store_parsed parsed = store_message_parse(&message, &size, from, left);
            if (parsed != STORE_PARSED) {
                client->dead |= parsed == STORE_MALFORMED;
                break;
            }
            client_request(server, client, &message);
        }
        done += size;
        size = 0;
    }
    if (client->dead)
        return;
    client->used -= done;
    if (done > 0 && client->used > 0)
        memmove(client->input, client->input + done, client->used);
    if (client->used == 0 && client->capacity > SMALL_INPUT)
        resize_input(server, client, 0);
    else if (client->used == client->capacity)
        reserve_input(server, client, MAX(size, client->used + sizeof(struct store_header)));
}

static void read_input(struct store_server *server, struct client *client)
{
    if (client->capacity == 0)
        resize_input(server, client, SMALL_INPUT);
    /* A client that has not authenticated can only send its answer. */
    const size_t room = client->dead       ? 0
                        : client->accepted ? client->capacity - client->used
                                           : sizeof(struct store_answer) - client->used;
    if (room == 0)
        return;
    const ssize_t n = recv(client->fd, client->input + client->used, room, 0);
    if (n <= 0) {
        client->dead |= n == 0 || (errno != EAGAIN && errno != EINTR);
        return;
    }
    client->used += (size_t)n;
    if (client->accepted)
        client->since = store_now();
    serve_input(server, client);
}

/* ---- connections ---- */

/* Returns the client that has tried to authenticate for the longest time, or NULL. */
static struct client *oldest_pending(const struct store_server *server)
{
    struct client *oldest = NULL;
    for (size_t i = 0; i < server->client_count; i++) {
        struct client *client = server->clients[i];
        if (!client->accepted && !client->dead && (oldest == NULL || client->since < oldest->since))
            oldest = client;
    }
    return oldest;
}

static void client_add(struct store_server *server, int fd)
{
    struct client *client = ARRAY_GROW(server->clients, server->client_capacity, server->client_count)
                                ? host_calloc(sizeof *client) : NULL;
    if (client == NULL || !store_hello_write(&client->hello, server->secret)) {
        host_free(client);
        close(fd);
        return;
    }
    store_socket_options(fd);
    client->fd = fd;
    client->since = store_now();
    client->last_reply = &client->replies;
    server->clients[server->client_count++] = client;
    server->pending++;
    client_send_bytes(client, &client->hello, sizeof client->hello, NULL);
}

static void accept_clients(struct store_server *server)
{
    for (int i = 0; i < 64; i++) {
        const int fd = fd_above_stdio(accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        const bool full = fd >= 0 ? server->client_count >= MOST_CLIENTS || server->pending >= MOST_PENDING
                                  : errno != EAGAIN;
        server->exhausted = fd < 0 && full;
        struct client *oldest = full ? oldest_pending(server) : NULL;
        if (oldest != NULL)
            oldest->dead = true;
        if (fd < 0)
            return;
        if (full && oldest == NULL)
            close(fd);
        else
            client_add(server, fd);
    }
}

static void client_free(struct store_server *server, struct client *client)
{
    shutdown(client->fd, SHUT_RDWR);            /* a child that was forked just now may have a copy */
    close(client->fd);
    client_clear(server, client);
    resize_input(server, client, 0);
    server->pending -= !client->accepted;
    host_free(client);
}

static void free_dead(struct store_server *server)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = server->client_count; i-- > 0;) {
            struct client *client = server->clients[i];
            if (!client->dead)
                continue;
            server->clients[i] = server->clients[--server->client_count];
            again |= client->disconnect_values != NULL;
            client_disconnect(server, client);
            client_free(server, client);
        }
    }
}

/* ---- the thread ---- */

static void serve_client(struct store_server *server, struct client *client, short events)
{
    if (events & POLLOUT)
        client_send(client);
    if (events & POLLIN)
        read_input(server, client);
    else if (events & (POLLERR | POLLHUP | POLLNVAL))
        client->dead = true;
    else if (events & POLLOUT)
        serve_input(server, client);        /* messages that had to wait until replies were sent */
}

/* Fills server->polls. Returns their number; without memory for all, some clients have to wait. */
static size_t fill_polls(struct store_server *server)
{
    size_t count = 2;
    server->polls[0] = (struct pollfd) { .fd = server->wake, .events = POLLIN };
    server->polls[1] = (struct pollfd) { .fd = server->exhausted ? -1 : server->listener, .events = POLLIN };
    for (; count < server->client_count + 2 && ARRAY_GROW(server->polls, server->poll_capacity, count); count++) {
        const struct client *client = server->clients[count - 2];
        const bool reads = !client->closing && client->reply_count < MOST_REPLIES;
        server->polls[count] = (struct pollfd) {
            .fd = client->fd,
            .events = (short)((reads ? POLLIN : 0) | (client->replies != NULL ? POLLOUT : 0)),
        };
    }
    return count;
}

static void serve_round(struct store_server *server)
{
    const size_t count = fill_polls(server);
    const int timeout = server->exhausted ? 100 : server->pending > 0 ? 1000 : -1;
    pthread_mutex_unlock(&server->lock);
    const int ready = poll(server->polls, (nfds_t)count, timeout);
    pthread_mutex_lock(&server->lock);
    const int64_t now = store_now();
    server->exhausted = false;
    for (size_t i = 0; i + 2 < count; i++) {
        struct client *client = server->clients[i];
        if (ready > 0 && server->polls[i + 2].revents != 0 && !client->dead)
            serve_client(server, client, server->polls[i + 2].revents);
        client->dead |= !client->accepted && now - client->since > PENDING_TIME;
    }
    if (ready > 0 && server->polls[1].revents != 0)
        accept_clients(server);
    free_dead(server);
}

static void *store_server_serve(void *argument)
{
    struct store_server *server = argument;
    pthread_mutex_lock(&server->lock);
    while (!server->stop)
        serve_round(server);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* ---- start and stop ---- */

void store_socket_options(int fd)
{
    static const struct { int level, name, value; } options[] = {
        { IPPROTO_TCP, TCP_NODELAY, 1 }, { SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, 10 },
        { IPPROTO_TCP, TCP_KEEPINTVL, 5 }, { IPPROTO_TCP, TCP_KEEPCNT, 4 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 30000 },
    };
    for (size_t i = 0; i < COUNT_OF(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

/* Opens a listening socket on one of the host's addresses. */
static ctrt_status listen_on(struct store_server *server, const char *host, int *port)
{
    struct addrinfo *list = NULL;
    const int one = 1, error = store_resolve(&list, host, *port, true);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_COMM, "the host %s cannot be resolved: %s", host, gai_strerror(error));
    int failure = 0;
    for (struct addrinfo *at = list; at != NULL && server->listener < 0; at = at->ai_next) {
        const int fd = fd_above_stdio(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        struct sockaddr_storage name;
        socklen_t length = sizeof name;
        /* SO_REUSEADDR: connections of an earlier server that are still being closed do not occupy the port. */
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0
            && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1024) == 0
            && getsockname(fd, (struct sockaddr *)&name, &length) == 0) {
            server->listener = fd;
            *port = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                                      : ((struct sockaddr_in *)&name)->sin_port);
            continue;
        }
        failure = errno;
        if (fd >= 0)
            close(fd);
        /* Clients try the addresses in this order, so they would reach the other server first. */
        if (failure == EADDRINUSE)
            break;
    }
    freeaddrinfo(list);
    if (server->listener >= 0)
        return CTRT_OK;
    return ctrt_fail(failure == EADDRINUSE ? CTRT_ERR_STATE : CTRT_ERR_COMM, "cannot listen on port %d of %s: %s",
                     *port, host, strerror(failure));
}

static void server_free(struct store_server *server)
{
    while (server->client_count > 0)
        client_free(server, server->clients[--server->client_count]);
    store_map_clear(&server->map);
    host_free(server->clients);
    host_free(server->polls);
    if (server->listener >= 0)
        close(server->listener);
    if (server->wake >= 0)
        close(server->wake);
    pthread_mutex_destroy(&server->lock);
    host_free(server);
}

ctrt_status store_server_start(struct store_server **out, const char *host, int *port, const char *secret)
{
    struct store_server *server = host_calloc(sizeof *server);
    ALLOC_CHECK(server, sizeof *server, "a store's server");
    server->listener = -1;
    server->secret = secret;
    pthread_mutex_init(&server->lock, NULL);
    store_map_init(&server->map);
    server->wake = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    ctrt_status status = server->wake >= 0 ? CTRT_OK : ctrt_fail(CTRT_ERR_COMM, "eventfd: %s", strerror(errno));
    if (status == CTRT_OK)
        status = ARRAY_RESERVE(server->polls, server->poll_capacity, 2, "a store's server");
    if (status == CTRT_OK)
        status = listen_on(server, host, port);
    const int error = status == CTRT_OK ? thread_start(&server->thread, store_server_serve, server) : 0;
    if (error != 0)
        status = ctrt_fail(CTRT_ERR_COMM, "cannot start the server's thread: %s", strerror(error));
    if (status != CTRT_OK) {
        server_free(server);
        return status;
    }
    *out = server;
    return CTRT_OK;
}

void store_server_stop(struct store_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->stop = true;
    pthread_mutex_unlock(&server->lock);
    (void)eventfd_write(server->wake, 1);
    pthread_join(server->thread, NULL);
    server_free(server);
}

void store_server_fork(struct store_server *server, enum store_fork when)
{
    if (when == STORE_BEFORE_FORK) {
        pthread_mutex_lock(&server->lock);
        return;
    }
    for (size_t i = 0; i < server->client_count && when == STORE_IN_CHILD; i++)
        close(server->clients[i]->fd);
    if (when == STORE_IN_CHILD) {
        close(server->listener);
        close(server->wake);
    }
    pthread_mutex_unlock(&server->lock);
}
