/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/arena.c: the memory that all ranks of a group map.
 *
 * Rank 0 creates a file without a name (memfd) and publishes its process, descriptor and inode in the store. The others
 * open /proc/PID/fd/N and compare the inode, because the number of the process may have been reused. The descriptors
 * are closed when all ranks have joined; the kernel frees the memory with the last mapping, also after SIGKILL. Pages
 * that no rank writes need no memory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

/* The value of key "host-arena". */
struct arena_name {
    uint64_t token[2];
    int64_t pid, fd;
    uint64_t inode, bytes;
};

static pthread_mutex_t arenas_lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_arena *arenas;           /* of this process */
static const ctrt_host *library;

/* ---- fork: the child can use no group of its parent, but it can create new ones ---- */

static void after_fork_in_child(void)
{
    pthread_mutex_init(&arenas_lock, NULL);
    arenas = NULL;
}

void host_arena_init(const ctrt_host *host)
{
    static bool done;
    library = host;
    if (!done && CTRT_SLOT(host, at_fork))
        done = host->at_fork(NULL, NULL, after_fork_in_child) == CTRT_OK;
}

/* ---- layout ---- */

static size_t header_bytes(int world)
{
    return host_round_up(sizeof(struct host_header) + (size_t)world * sizeof(struct host_rank));
}

static size_t arena_bytes(int world)
{
    return header_bytes(world) + (size_t)world * (2 * (HOST_PIECE + HOST_MESSAGE) + HOST_WINDOW) + 2 * HOST_PIECE;
}

static char *body(const struct host_comm *comm)
{
    return (char *)comm->header + header_bytes(comm->world);
}

char *host_slot(const struct host_comm *comm, int rank, uint32_t piece)
{
    return body(comm) + (2 * (size_t)rank + (piece & 1)) * HOST_PIECE;
}

char *host_result(const struct host_comm *comm, uint32_t piece)
{
    return body(comm) + (2 * (size_t)comm->world + (piece & 1)) * HOST_PIECE;
}

char *host_message(const struct host_comm *comm, int rank, uint32_t piece)
{
    return body(comm) + 2 * (size_t)(comm->world + 1) * HOST_PIECE + (2 * (size_t)rank + (piece & 1)) * HOST_MESSAGE;
}

char *host_window(const struct host_comm *comm, int rank)
{
    return host_message(comm, comm->world, 0) + (size_t)rank * HOST_WINDOW;
}

/* ---- files ---- */

/* Returns MAP_FAILED if it fails. The address is a multiple of HOST_HUGE, so that the kernel can use huge pages. */
static void *map_shared(int fd, size_t bytes)
{
    char *range = mmap(NULL, bytes + HOST_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return MAP_FAILED;
    const size_t before = (HOST_HUGE - (uintptr_t)range % HOST_HUGE) % HOST_HUGE, end = host_round_up(before + bytes);
    void *memory = mmap(range + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (memory == MAP_FAILED) {
        munmap(range, bytes + HOST_HUGE);
        return MAP_FAILED;
    }
    if (before > 0)
        munmap(range, before);
    if (end < bytes + HOST_HUGE)
        munmap(range + end, bytes + HOST_HUGE - end);
    return memory;
}

ctrt_status host_map_new(void **out, int *fd, size_t bytes)
{
    *fd = CTRT_PLUGIN_DESCRIPTOR(library, memfd_create("ctrt-comm", MFD_CLOEXEC));
    void *memory = MAP_FAILED;
    if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0)
        memory = map_shared(*fd, bytes);
    if (memory != MAP_FAILED) {
        *out = memory;
        return CTRT_OK;
    }
    const int error = errno;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return ctrt_fail(error == EMFILE || error == ENFILE ? CTRT_ERR_IO : CTRT_ERR_OUT_OF_MEMORY,
                     "cannot create %zu bytes of memory that processes share: %s", bytes, strerror(error));
}

static ctrt_status map_file(void **out, size_t bytes, const char *path, uint64_t inode)
{
    struct stat file;
    ctrt_status status = CTRT_OK;
    const int fd = CTRT_PLUGIN_DESCRIPTOR(library, open(path, O_RDWR | O_CLOEXEC));
    if (fd < 0)
        return ctrt_fail(CTRT_ERR_COMM, "cannot open the memory of rank 0, %s: %s; the ranks must be processes of one "
                         "user that see each other in /proc", path, strerror(errno));
    void *memory = MAP_FAILED;
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != bytes || (inode != 0 && (uint64_t)file.st_ino != inode))
        status = ctrt_fail(CTRT_ERR_COMM, "%s is not the memory of rank 0, whose process has probably ended", path);
    else if ((memory = map_shared(fd, bytes)) == MAP_FAILED)
        status = ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "cannot map %zu bytes of rank 0: %s", bytes, strerror(errno));
    else
        *out = memory;
    close(fd);
    return status;
}

static void file_path(char path[64], int64_t pid, int64_t fd)
{
    snprintf(path, 64, "/proc/%" PRId64 "/fd/%" PRId64, pid, fd);
}

ctrt_status host_map(void **out, size_t bytes, int64_t pid, int64_t fd)
{
    char path[64];
    file_path(path, pid, fd);
    return map_file(out, bytes, path, 0);
}

/* ---- opening ---- */

static ctrt_status arena_add(struct host_comm *comm, const struct arena_name *name, void *memory)
{
    struct host_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) {
        munmap(memory, name->bytes);
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group");
    }
    memcpy(arena->token, name->token, sizeof arena->token);
    arena->refs = 1;
    arena->header = memory;
    arena->bytes = name->bytes;
    arena->world = comm->world;
    arena->next = arenas;
    arenas = arena;
    comm->arena = arena;
    return CTRT_OK;
}

static ctrt_status host_arena_create(struct host_comm *comm, const char *key)
{
    struct arena_name name = { .pid = getpid(), .bytes = arena_bytes(comm->world) };
    struct stat file;
    void *memory = NULL;
    CTRT_TRY(host_map_new(&memory, &comm->fd, name.bytes));
    if (getrandom(name.token, sizeof name.token, 0) != sizeof name.token || fstat(comm->fd, &file) != 0) {
        munmap(memory, name.bytes);
        return ctrt_fail(CTRT_ERR_IO, "cannot identify shared memory: %s", strerror(errno));
    }
    name.fd = comm->fd;
    name.inode = (uint64_t)file.st_ino;
    pthread_mutex_lock(&arenas_lock);
    ctrt_status status = arena_add(comm, &name, memory);
    pthread_mutex_unlock(&arenas_lock);
    if (status == CTRT_OK && comm->world > 1)
        status = ctrt_store_set(comm->config->store, key, &name, sizeof name);
    return status;
}

/* Waits for rank 0's key. In short steps, between which it polls. */
static ctrt_status get_name(struct arena_name *name, struct host_comm *comm, const char *key)
{
    for (;;) {
        void *value = NULL;
        size_t bytes = 0;
        ctrt_status status = ctrt_store_get(comm->config->store, key, &value, &bytes, 0.02);
        if (status == CTRT_OK && bytes == sizeof *name)
            memcpy(name, value, sizeof *name);
        else if (status == CTRT_OK)
            status = ctrt_fail(CTRT_ERR_COMM, "the key %s of the store has a wrong value", key);
        free(value);
        if ((status != CTRT_ERR_COMM && status != CTRT_ERR_NOT_FOUND) || value != NULL)
            return status;
        CTRT_TRY(comm->config->poll(comm->config->state));
        CTRT_TRY(host_poll_joining(comm));
    }
}

static ctrt_status host_arena_join(struct host_comm *comm, const struct arena_name *name)
{
    char path[64];
    void *memory = NULL;
    for (struct host_arena *arena = arenas; arena != NULL; arena = arena->next)
        if (memcmp(arena->token, name->token, sizeof arena->token) == 0) {
            arena->refs++;
            comm->arena = arena;
            return CTRT_OK;
        }
    file_path(path, name->pid, name->fd);
    CTRT_TRY(map_file(&memory, name->bytes, path, name->inode));
    return arena_add(comm, name, memory);
}

ctrt_status host_arena_open(struct host_comm *comm)
{
    struct arena_name name;
    char key[320];
    snprintf(key, sizeof key, "%s/host-arena", comm->config->name);
    if (comm->rank == 0) {
        CTRT_TRY(host_arena_create(comm, key));
    } else {
        CTRT_TRY(get_name(&name, comm, key));
        if (name.bytes != arena_bytes(comm->world))
            return ctrt_fail(CTRT_ERR_COMM, "rank 0 has another version of the engine, or another number of ranks");
        pthread_mutex_lock(&arenas_lock);
        ctrt_status status = host_arena_join(comm, &name);
        pthread_mutex_unlock(&arenas_lock);
        CTRT_TRY(status);
    }
    comm->header = comm->arena->header;
    return CTRT_OK;
}

void host_arena_close(struct host_comm *comm)
{
    struct host_arena *arena = comm->arena;
    if (comm->fd >= 0)
        close(comm->fd);
    comm->fd = -1;
    if (arena == NULL)
        return;
    pthread_mutex_lock(&arenas_lock);
    const bool last = --arena->refs == 0;
    for (struct host_arena **at = &arenas; last && *at != NULL; at = &(*at)->next)
        if (*at == arena) {
            *at = arena->next;
            break;
        }
    pthread_mutex_unlock(&arenas_lock);
    if (!last)
        return;
    host_devices_end(arena->header, arena->world);
    munmap(arena->header, arena->bytes);
    free(arena);
}
