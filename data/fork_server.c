/* SPDX-License-Identifier: Apache-2.0 */
/* data/fork_server.c: the process from which workers are forked.
 *
 * The server is forked before the program has threads or devices, and has one thread that waits for requests on a
 * socket. A request carries the address of the function that opens the dataset, which is the same in both processes,
 * its arguments, and two descriptors: the memory of the batches and the stderr of the worker. The dataset is opened in
 * the worker, so the server itself never changes. When a worker ends, the server stores its status in the loader's
 * memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE                     /* dladdr, MSG_CMSG_CLOEXEC */
#endif
#include "data/fork_server.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "data/worker.h"

#define MOST_ARGUMENTS 65536

struct fork_server_request {
    ctrt_dataset_opener open;
    int id;
    size_t bytes;
    _Alignas(max_align_t) char arguments[MOST_ARGUMENTS];
};

struct fork_server_reply {
    int pid, error;                     /* error: an errno; -1: the function is not in the server */
};

LOCK_DEFINE_MUTEX(server_lock);
static int server_pid, server_owner;    /* 0: none */
static int server_socket = -1;

/* ---- the server ---- */

struct child {
    int pid, id;
    struct ring *ring;
};

static struct child *children;
static size_t child_count, child_capacity;

/* Opens the dataset and works. Errors become lines on stderr, which the loader reports. */
static _Noreturn void be_worker(const struct fork_server_request *request, struct ring *ring, int error, int parent)
{
    const struct ring_header *header = ring->header;
    ctrt_dataset *dataset = NULL;
    for (size_t i = 0; i < child_count; i++)        /* of other workers */
        ring_release(children[i].ring);
    dup2(error, STDERR_FILENO);
    /* Several workers with the threads of all processors each would only disturb each other. */
    setenv("CTRT_NUM_THREADS", "1", 0);
    ctrt_status status = ctrt_dataset_open(&dataset, request->open, request->arguments, request->bytes);
    for (int f = 0; status == CTRT_OK && f < CTRT_MAX_FIELDS; f++)
        if (header->capacity[f] != (size_t)header->largest_batch * dataset->bytes[f])
            status = ctrt_fail(CTRT_ERR_STATE, "the dataset has other fields than in the program");
    if (status != CTRT_OK) {
        fprintf(stderr, "ctrt: worker %d cannot open its dataset: %s\n", request->id, ctrt_error_message());
        _exit(1);
    }
    worker_process(ring->header, dataset, request->id, error, parent, true);
}

/* Whether the function is in the program or in a library that the server has loaded too. */
static bool has_function(uintptr_t function)
{
    Dl_info info;
    return function == 0 || dladdr((void *)function, &info) != 0;
}

static struct fork_server_reply start_child(const struct fork_server_request *request, int ring_fd, int error,
                                            int control, int signals)
{
    struct ring *ring = NULL;
    const int parent = getpid();
    if (!ARRAY_GROW(children, child_capacity, child_count) || ring_map(&ring, ring_fd) != CTRT_OK)
        return (struct fork_server_reply){ .error = ENOMEM };
    if (!has_function((uintptr_t)request->open) || !has_function((uintptr_t)ring->header->collate)
        || !has_function((uintptr_t)ring->header->worker_init)) {
        ring_release(ring);
        return (struct fork_server_reply){ .error = -1 };
    }
    const int pid = fork();
    if (pid == 0) {
        close(control);
        close(signals);
        be_worker(request, ring, error, parent);
    }
    if (pid < 0) {
        const int failed = errno;
        ring_release(ring);
        return (struct fork_server_reply){ .error = failed };
    }
    children[child_count++] = (struct child){ .pid = pid, .id = request->id, .ring = ring };
    return (struct fork_server_reply){ .pid = pid };
}

static void fork_server_reap(void)
{
    for (size_t i = 0; i < child_count;) {
        int status = 0;
        struct child child = children[i];
        if (waitpid(child.pid, &status, WNOHANG) == 0) {
            i++;
            continue;
        }
        atomic_store(&ring_worker(child.ring->header, child.id)->exit, (int64_t)status + 1);
        ring_wake(&child.ring->header->completed);
        ring_release(child.ring);
        children[i] = children[--child_count];
    }
}

/* Receives a request and its two descriptors; false when the program has ended. */
static bool fork_server_receive(struct fork_server_request *request, int fds[2], int control)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(2 * sizeof(int))]; } buffer;
    struct iovec part = { request, sizeof *request };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = buffer.bytes,
                              .msg_controllen = sizeof buffer.bytes };
    ssize_t got;
    do
        got = recvmsg(control, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (got <= 0 || header == NULL || header->cmsg_len != CMSG_LEN(2 * sizeof(int)))
        return false;
    memcpy(fds, CMSG_DATA(header), 2 * sizeof(int));
    return fds_above_stdio(0, fds) == 0;
}

static _Noreturn void fork_server_serve(int control)
{
    static struct fork_server_request request;
    sigset_t child;
    prctl(PR_SET_NAME, "ctrt-fork-serve");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child, NULL);
    const int signals = fd_above_stdio(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    for (;;) {
        struct pollfd wait[2] = { { .fd = control, .events = POLLIN }, { .fd = signals, .events = POLLIN } };
        struct signalfd_siginfo signal_info;
        poll(wait, 2, -1);
        if (read(signals, &signal_info, sizeof signal_info) > 0)
            fork_server_reap();
        if (wait[0].revents == 0)
            continue;
        int fds[2];
        if (!fork_server_receive(&request, fds, control))
            _exit(0);
        const struct fork_server_reply reply = start_child(&request, fds[0], fds[1], control, signals);
        close(fds[0]);
        close(fds[1]);
        if (send(control, &reply, sizeof reply, MSG_NOSIGNAL) < 0)
            _exit(0);
    }
}

/* ---- the program ---- */

static bool alive(void)
{
    if (server_pid != 0 && server_owner == getpid() && waitpid(server_pid, NULL, WNOHANG) != 0) {
        close(server_socket);
        server_pid = 0;
    }
    return server_pid != 0 && server_owner == getpid();
}

bool fork_server_alive(void)
{
    pthread_mutex_lock(&server_lock);
    const bool is = alive();
    pthread_mutex_unlock(&server_lock);
    return is;
}

static int thread_count(void)
{
    int count = 0;
    DIR *folder = opendir_above_stdio("/proc/self/task");
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count;
}

static ctrt_status start_server(void)
{
    int sockets[2];
    const int threads = thread_count();
    if (threads > 1)
        return ctrt_fail(CTRT_ERR_STATE, "fork_server_start: the program has %d threads; call it first in main, before "
                         "a device is opened", threads);
    if (fds_above_stdio(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), sockets) != 0)
        return ctrt_fail(CTRT_ERR_IO, "fork_server_start: cannot create a socket: %s", strerror(errno));
    const int pid = fork();
    if (pid == 0) {
        close(sockets[0]);
        fork_server_serve(sockets[1]);
    }
    const int error = errno;
    close(sockets[1]);
    if (pid < 0) {
        close(sockets[0]);
        return ctrt_fail(CTRT_ERR_IO, "fork_server_start: cannot fork: %s", strerror(error));
    }
    server_pid = pid;
    server_owner = getpid();
    server_socket = sockets[0];
    return CTRT_OK;
}

ctrt_status ctrt_fork_server_start(void)
{
    CANCEL_DISABLED;
    pthread_mutex_lock(&server_lock);
    ctrt_status status = alive() ? CTRT_OK : start_server();
    pthread_mutex_unlock(&server_lock);
    return status;
}

static bool fork_server_exchange(struct fork_server_reply *reply, const struct fork_server_request *request,
                                 const int fds[2])
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(2 * sizeof(int))]; } buffer = { 0 };
    struct iovec part = { (void *)request, offsetof(struct fork_server_request, arguments) + request->bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = buffer.bytes,
                              .msg_controllen = sizeof buffer.bytes };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(header), fds, 2 * sizeof(int));
    ssize_t got;
    do
        got = sendmsg(server_socket, &message, MSG_NOSIGNAL);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return false;
    do
        got = recv(server_socket, reply, sizeof *reply, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *reply;
}

ctrt_status fork_server_start_worker(int *pid, int ring, int error, const ctrt_dataset *dataset, int id)
{
    struct fork_server_reply reply = { 0 };
    if (dataset->argument_bytes > MOST_ARGUMENTS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader: the arguments of \"%s\" have %zu bytes; the fork server "
                         "takes at most %d", dataset->functions.name, dataset->argument_bytes, MOST_ARGUMENTS);
    HOST_AUTO struct fork_server_request *request = host_calloc(sizeof *request);
    ALLOC_CHECK(request, sizeof *request, "a request to the fork server");
    request->open = dataset->open;
    request->id = id;
    request->bytes = dataset->argument_bytes;
    if (request->bytes > 0)
        memcpy(request->arguments, dataset->arguments, request->bytes);
    pthread_mutex_lock(&server_lock);
    const bool done = alive() && fork_server_exchange(&reply, request, (const int[]){ ring, error });
    pthread_mutex_unlock(&server_lock);
    if (!done)
        return ctrt_fail(CTRT_ERR_IO, "loader: the fork server has ended");
    if (reply.error == -1)
        return ctrt_fail(CTRT_ERR_STATE, "loader: the fork server does not have a function of the program (the opener "
                         "of \"%s\", collate or worker_init), because its library was loaded later; load it before "
                         "ctrt_fork_server_start", dataset->functions.name);
    if (reply.error != 0)
        return ctrt_fail(CTRT_ERR_IO, "loader: the fork server cannot start worker %d: %s", id, strerror(reply.error));
    *pid = reply.pid;
    return CTRT_OK;
}
