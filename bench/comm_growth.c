/* SPDX-License-Identifier: Apache-2.0 */
/* bench/comm_growth.c: how groups of the engine `host` grow: 1, 2, 4, ... ranks, all of them threads of one process.
 *
 *     bench-comm-growth [MOST_RANKS]                  default: 1024
 *
 * For each number of ranks a child process creates the group twice:
 *
 *   local   with ctrt_comm_new_local: needs no store
 *   store   with ctrt_comm_new, as processes do: each rank has a connection of its own to a tcp store
 *
 * and makes all_reduces of 8 bytes. Prints one line per group, which bench/comm_growth.py draws: seconds until all
 * ranks have joined; messages and bytes that the store's connections have carried until then, in both directions;
 * resident memory per rank; microseconds of an all_reduce. Messages and bytes are data segments and payload of TCP,
 * from TCP_INFO. Several replies may share a segment, and a large one needs several. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctrt/ctrt.h"
#include "timing.h"

enum { RANKS = 4096, CALLS = 20 };

static struct rank {
    pthread_t thread;
    int number;
    ctrt_comm *comm;
} ranks[RANKS];

static int size;
static bool uses_store;
static ctrt_device *cpu;
static char address[64];
static pthread_barrier_t barrier;
static double joined, reduced;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-comm-growth: %s\n", ctrt_error_message());
    _exit(1);
}

/* ---- what is measured ---- */

static double resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Adds up what the TCP connections of this process, of which it has both ends, have received. */
static void store_traffic(uint64_t *messages, uint64_t *bytes)
{
    *messages = *bytes = 0;
    for (int fd = 0; fd < 4 * RANKS; fd++) {
        struct tcp_info info = { 0 };
        socklen_t length = sizeof info;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) {
            *messages += info.tcpi_data_segs_in;
            *bytes += info.tcpi_bytes_received;
        }
    }
}

/* ---- ranks ---- */

static void *serve(void *argument)
{
    struct rank *rank = argument;
    CTRT_AUTO(store) store = NULL;
    CTRT_AUTO(tensor) x = NULL;
    if (uses_store) {
        must(ctrt_store_open(&store, address, false, CTRT_DEFAULT_SECONDS));
        const ctrt_comm_options options = CTRT_WITH(ctrt_comm_options, .engine = "host", .device = cpu,
                                            .store = store, .rank = rank->number,
                                            .world_size = size);
        must(ctrt_comm_new(&rank->comm, &options));
    }
    must(ctrt_ones(&x, CTRT_SHAPE(2), CTRT_F32, cpu));
    must(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_MAX));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);         /* the main thread measures between the two */
    const double begin = timing_now();
    for (int i = 0; i < CALLS; i++)
        must(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_MAX));
    pthread_barrier_wait(&barrier);
    if (rank->number == 0)
        reduced = (timing_now() - begin) / CALLS;
    ctrt_comm_release(&rank->comm);
    return NULL;
}

static void measure(void)
{
    static ctrt_device *devices[RANKS];
    static ctrt_comm *comms[RANKS];
    CTRT_AUTO(store) store = NULL;
    pthread_attr_t small;
    uint64_t messages, bytes;
    must(ctrt_device_get(&cpu, "cpu"));
    if (uses_store) {
        must(ctrt_store_open(&store, "tcp://127.0.0.1:0", true, CTRT_DEFAULT_SECONDS));
        snprintf(address, sizeof address, "%s", ctrt_store_address(store));
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)size + 1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, (size_t)256 << 10);
    const double before = resident_bytes(), begin = timing_now();
    for (int i = 0; i < size; i++)
        devices[i] = cpu;
    if (!uses_store)
        must(ctrt_comm_new_local(comms, devices, size, NULL));
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank){ .number = i, .comm = comms[i] };
        if (pthread_create(&ranks[i].thread, &small, serve, &ranks[i]) != 0)
            must(CTRT_ERR_OUT_OF_MEMORY);
    }
    pthread_barrier_wait(&barrier);
    joined = timing_now() - begin;
    const double memory = (resident_bytes() - before) / size;
    store_traffic(&messages, &bytes);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    printf("%-6s %5d %8.3f %8llu %11llu %9.0f %10.1f\n", uses_store ? "store" : "local", size, joined,
           (unsigned long long)messages, (unsigned long long)bytes, memory, reduced * 1e6);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const int most = argc > 1 ? atoi(argv[1]) : 1024;
    struct rlimit files;
    if (most < 1 || most > RANKS) {
        fprintf(stderr, "usage: bench-comm-growth [MOST_RANKS]\n");
        return 2;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    printf("# group ranks   join s messages       bytes    B/rank  reduce us\n");
    fflush(stdout);
    for (int way = 0; way < 2; way++)
        for (size = 1; size <= most; size *= 2) {
            const pid_t child = fork();
            int status = 1;
            if (child == 0) {
                uses_store = way == 1;
                measure();
                _exit(0);
            }
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
                return 1;
        }
    return 0;
}
