/* SPDX-License-Identifier: Apache-2.0 */
/* bench/comm.c: all_reduce between threads and between processes of one machine.
 *
 *     bench-comm [RANKS [ROUNDS [LARGEST_MIB]]]           default: 2 7 64
 *
 * For each size the program measures four things, in turns and ROUNDS times. Three are an all_reduce: of RANKS threads,
 * of RANKS processes, and of RANKS processes with tensors of ctrt_comm_empty. In the fourth, RANKS threads multiply an
 * array of this size by a number, in place. The last reads and writes each byte of RANKS arrays once, and so does an
 * all_reduce at least. It prints the medians of the microseconds, the bandwidth of memory in GB/s, and its time divided
 * by that of each all_reduce: 1 is the speed of memory. The last three columns are the same ratios of processor time,
 * which other programs on the machine change less. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctrt/ctrt.h"
#include "timing.h"

enum way { THREADS, PROCESSES, SHARED, MEMORY, WAYS };
enum { RANKS = 64, ROUNDS = 99 };

/* Shared by all processes. The ranks of each way take part in every measurement. */
static struct board {
    char address[64];
    _Atomic int ready;
    _Atomic int order;                      /* number of the measurement that runs, from 1, times WAYS, plus its way;
                                             * -1: end */
    _Atomic int finished;                   /* ranks that have finished it */
    enum way way;
    size_t bytes;
    int calls;
    double seconds, busy;                   /* of all calls, measured by rank 0: time, and its processor time */
    pthread_barrier_t start;
} *board;

static int ranks = 2, rounds = 7;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-comm: %s\n", ctrt_error_message());
    exit(1);
}

struct rank {
    pthread_t thread;
    enum way way;
    int number;
    ctrt_comm *comm;
    ctrt_device *device;
};

static void pause_ms(double ms)
{
    const struct timespec time = { 0, (long)(ms * 1e6) };
    nanosleep(&time, NULL);
}

static void scale(float *x, size_t n)
{
    typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        *(lanes *)(x + i) *= 0.5f;
    for (; i < n; i++)
        x[i] *= 0.5f;
}

static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(struct rank *rank)
{
    const size_t bytes = board->bytes;
    const ctrt_ints shape = CTRT_SHAPE((int64_t)bytes / 4);
    CTRT_AUTO(tensor) x = NULL;
    must(board->way == SHARED ? ctrt_comm_empty(&x, rank->comm, shape, CTRT_F32)
                              : ctrt_empty(&x, shape, CTRT_F32, rank->device));
    must(ctrt_zero_(x));
    double begin = 0, busy = 0;
    for (int i = -1; i < board->calls; i++) {       /* the first one is not measured */
        if (i == 0) {
            pthread_barrier_wait(&board->start);
            begin = timing_now();
            busy = processor_time();
        }
        if (board->way == MEMORY)
            scale(ctrt_tensor_data(x), bytes / 4);
        else
            must(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    }
    busy = processor_time() - busy;
    pthread_barrier_wait(&board->start);
    if (rank->number == 0) {
        board->seconds = timing_now() - begin;
        board->busy = busy;
    }
}

/* Takes part in the measurements of its way. */
static void *serve(void *argument)
{
    struct rank *rank = argument;
    for (int seen = 0;;) {
        const int order = atomic_load(&board->order);
        if (order < 0)
            break;
        if (order == seen) {
            pause_ms(0.2);
            continue;
        }
        seen = order;
        const enum way way = (enum way)(order % WAYS);      /* board->way may be that of the next one already */
        if (way == rank->way || (way == SHARED && rank->way == PROCESSES)) {
            measure(rank);
            atomic_fetch_add(&board->finished, 1);
        }
    }
    ctrt_comm_release(&rank->comm);
    return NULL;
}

static void process(int number)
{
    struct rank rank = { .way = PROCESSES, .number = number };
    ctrt_comm_options options = CTRT_WITH(ctrt_comm_options, .rank = number, .world_size = ranks);
    while (!atomic_load(&board->ready))
        pause_ms(1);
    must(ctrt_device_get(&rank.device, "cpu"));
    must(ctrt_store_open(&options.store, board->address, false, CTRT_DEFAULT_SECONDS));
    options.device = rank.device;
    must(ctrt_comm_new(&rank.comm, &options));
    serve(&rank);
    ctrt_store_release(&options.store);
}

/* Writes the microseconds of one call. */
static void sample(double *time, double *busy, enum way way, size_t bytes)
{
    board->way = way;
    board->bytes = bytes;
    board->calls = bytes <= 65536 ? 300 : bytes <= (4 << 20) ? 30 : 5;
    atomic_store(&board->finished, 0);
    atomic_store(&board->order, (atomic_load(&board->order) / WAYS + 1) * WAYS + (int)way);
    while (atomic_load(&board->finished) < ranks)
        pause_ms(0.2);
    *time = board->seconds / board->calls * 1e6;
    *busy = board->busy / board->calls * 1e6;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, timing_compare);
    return values[count / 2];
}

static void table(size_t largest)
{
    printf("%9s %10s %10s %10s %10s %6s %7s %7s %7s %7s %7s %7s\n", "bytes", "threads us", "process us", "shared us",
           "memory us", "GB/s", "threads", "process", "shared", "threads", "process", "shared");
    for (size_t bytes = 4; bytes <= largest; bytes *= 4) {
        double times[WAYS][ROUNDS], works[WAYS][ROUNDS], typical[WAYS], busy[WAYS];
        for (int round = 0; round < rounds; round++)
            for (int way = 0; way < WAYS; way++)
                sample(&times[way][round], &works[way][round], (enum way)way, bytes);
        for (int way = 0; way < WAYS; way++) {
            typical[way] = median(times[way], rounds);
            busy[way] = median(works[way], rounds);
        }
        const double memory = typical[MEMORY];
        printf("%9zu %10.1f %10.1f %10.1f %10.1f %6.1f", bytes, typical[THREADS], typical[PROCESSES], typical[SHARED],
               memory, 2.0 * (double)bytes * ranks / memory * 1e-3);
        for (int way = THREADS; way < MEMORY; way++)
            printf(" %7.2f", memory / typical[way]);
        for (int way = THREADS; way < MEMORY; way++)
            printf(" %7.2f", busy[MEMORY] / busy[way]);
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static struct rank members[2][RANKS];
    ctrt_device *cpu = NULL, *devices[RANKS];
    ctrt_comm *comms[RANKS] = { NULL };
    ctrt_store *store = NULL;
    pthread_barrierattr_t shared;
    size_t largest = (size_t)64 << 20;
    if (argc > 1)
        ranks = atoi(argv[1]);
    if (argc > 2)
        rounds = atoi(argv[2]);
    if (argc > 3)
        largest = strtoull(argv[3], NULL, 10) << 20;
    if (ranks < 1 || ranks > RANKS || rounds < 1 || rounds > ROUNDS) {
        fprintf(stderr, "usage: bench-comm [RANKS [ROUNDS [LARGEST_MIB]]]\n");
        return 2;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->start, &shared, (unsigned)ranks);
    for (int i = 0; i < ranks; i++)
        if (fork() == 0) {
            process(i);
            exit(0);
        }
    must(ctrt_store_open(&store, "tcp://127.0.0.1:0", true, CTRT_DEFAULT_SECONDS));
    snprintf(board->address, sizeof board->address, "%s", ctrt_store_address(store));
    atomic_store(&board->ready, 1);
    must(ctrt_device_get(&cpu, "cpu"));
    for (int i = 0; i < ranks; i++)
        devices[i] = cpu;
    must(ctrt_comm_new_local(comms, devices, ranks, NULL));
    for (int i = 0; i < ranks; i++) {
        members[0][i] = (struct rank){ .way = THREADS, .number = i, .comm = comms[i], .device = cpu };
        members[1][i] = (struct rank){ .way = MEMORY, .number = i, .device = cpu };
        pthread_create(&members[0][i].thread, NULL, serve, &members[0][i]);
        pthread_create(&members[1][i].thread, NULL, serve, &members[1][i]);
    }
    table(largest);
    atomic_store(&board->order, -1);
    for (int i = 0; i < ranks; i++) {
        pthread_join(members[0][i].thread, NULL);
        pthread_join(members[1][i].thread, NULL);
    }
    while (wait(NULL) > 0)
        ;
    ctrt_store_release(&store);
    return 0;
}
