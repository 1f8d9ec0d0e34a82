/* SPDX-License-Identifier: Apache-2.0 */
/* comm_job.h: runs a function in every rank of a group: threads on the cpu, threads on simulated devices, or processes.
 *
 * Use it in a child process with CTRT_SIM=devices=4 that has not used the library before. */
#ifndef CTRT_TESTS_COMM_JOB_H
#define CTRT_TESTS_COMM_JOB_H

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "child.h"
#include "ctrt/ctrt.h"
#include "tensors.h"

enum kind { ON_CPU, ON_SIM, PROCESSES, KINDS, MIXED = KINDS, SIM_PROCESSES, ALL_KINDS,
            NCCL_THREADS = ALL_KINDS, NCCL_PROCESSES };     /* on cuda, with the engine nccl: nccl_job.h */
static const char *const kind_names[] = {
    "threads", "threads on sim", "processes", "threads on cpu and sim", "processes on sim",
    "threads with nccl", "processes with nccl",
};

static inline ctrt_device *device_of(enum kind kind, int rank)
{
    const char *types = getenv("CTRT_TEST_DEVICES");        /* for example cuda, instead of sim */
    ctrt_device *device = NULL;
    char name[16] = "cpu";
    if (kind == ON_SIM || kind == SIM_PROCESSES || (kind == MIXED && rank > 0))
        snprintf(name, sizeof name, "%s:%d", types != NULL ? types : "sim", rank % 4);
    if (kind >= NCCL_THREADS)
        snprintf(name, sizeof name, "cuda:%d", rank);
    REQUIRE(ctrt_device_get(&device, name) == CTRT_OK, "%s", ctrt_error_message());
    return device;
}

/* Memory that the processes of a job share. */
struct board {
    char address[64];                       /* of the store */
    atomic_bool ready, close;
    atomic_int step;                        /* for tests that need an order */
    atomic_int pids[16];
    atomic_int server;                      /* process that serves the store */
    atomic_int arrived;                     /* processes that have opened the store: they join at the same time */
};

struct rank {
    ctrt_comm *comm;
    ctrt_device *device;
    ctrt_store *store;                      /* of processes */
    int number, size;
    enum kind kind;
    struct board *board;
    void (*body)(struct rank *rank);
    const void *argument;
    pthread_t thread;
};

/* For ctrt_log_set_callback. */
static inline void no_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component, (void)text;
}

static inline void sleep_seconds(double seconds)
{
    const struct timespec time = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&time, NULL);
}

/* Waits up to 20 seconds. */
static inline void await(atomic_int *number, int value)
{
    const double end = clock_seconds() + 20;
    while (atomic_load(number) < value && clock_seconds() < end)
        sleep_seconds(0.001);
}

static inline struct board *board_new(void)
{
    void *memory = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "no shared memory");
    return memory;
}

static inline void *rank_thread(void *argument)
{
    struct rank *rank = argument;
    rank->body(rank);
    ctrt_comm_release(&rank->comm);
    return NULL;
}

static inline void run_threads(struct rank *ranks, int size, double timeout)
{
    ctrt_device *devices[16] = { NULL };
    ctrt_comm *comms[16] = { NULL };
    for (int i = 0; i < size; i++)
        devices[i] = device_of(ranks[i].kind, i);
    const ctrt_comm_options options = { .size = sizeof(ctrt_comm_options),
                                        .engine = ranks[0].kind >= NCCL_THREADS ? "nccl" : getenv("CTRT_COMM"),
                                        .timeout = timeout };
    if (!CHECK_OK(ctrt_comm_new_local(comms, devices, size, &options)))
        return;
    for (int i = 0; i < size; i++) {
        ranks[i].comm = comms[i];
        ranks[i].device = devices[i];
        REQUIRE(pthread_create(&ranks[i].thread, NULL, rank_thread, &ranks[i]) == 0, "no thread");
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
}

static inline void process_of(struct rank *rank, double timeout)
{
    ctrt_comm_options options = { .size = sizeof(ctrt_comm_options),
                                  .engine = rank->kind >= NCCL_THREADS ? "nccl" : NULL, .rank = rank->number,
                                  .world_size = rank->size, .timeout = timeout };
    atomic_store(&rank->board->pids[rank->number], getpid());
    while (!atomic_load(&rank->board->ready))
        sleep_seconds(0.001);
    rank->device = device_of(rank->kind, rank->number);
    if (CHECK_OK(ctrt_store_open(&options.store, rank->board->address, false, 10))) {
        options.device = rank->device;
        rank->store = options.store;
        atomic_fetch_add(&rank->board->arrived, 1);
        await(&rank->board->arrived, rank->size);
        if (CHECK_OK(ctrt_comm_new(&rank->comm, &options)))
            rank->body(rank);
        ctrt_comm_release(&rank->comm);
        ctrt_store_release(&options.store);
    }
}

/* `ended`: the rank whose process does not end by itself, which the other ranks' end makes the parent kill; or -1. */
static inline void run_processes(struct rank *ranks, int size, double timeout, int ended)
{
    static const char *const no_settings[] = { NULL };
    pid_t children[16];
    struct board *board = ranks[0].board;
    const pid_t server = child_start(no_settings);
    if (server == 0) {
        ctrt_store *store = NULL;
        if (CHECK_OK(ctrt_store_open(&store, "tcp://127.0.0.1:0", true, CTRT_DEFAULT_SECONDS)))
            snprintf(board->address, sizeof board->address, "%s", ctrt_store_address(store));
        atomic_store(&board->server, getpid());
        atomic_store(&board->ready, true);
        while (!atomic_load(&board->close))
            sleep_seconds(0.002);
        ctrt_store_release(&store);
        child_end(exit);
    }
    for (int i = 0; i < size; i++) {
        children[i] = child_start(no_settings);
        if (children[i] == 0) {
            process_of(&ranks[i], timeout);
            child_end(exit);
        }
    }
    for (int i = 0; i < size; i++)
        if (i != ended)
            child_join(children[i], __FILE__, __LINE__);
    if (ended >= 0) {
        kill(children[ended], SIGKILL);
        waitpid(children[ended], NULL, 0);
    }
    atomic_store(&board->close, true);
    child_join(server, __FILE__, __LINE__);
}

/* Runs body(rank) in `size` ranks. Its argument is rank->argument. */
static inline void run_job(enum kind kind, int size, double timeout, void (*body)(struct rank *rank),
                           const void *argument, int ended)
{
    struct rank ranks[16];
    struct board *board = board_new();
    for (int i = 0; i < size; i++)
        ranks[i] = (struct rank){ .number = i, .size = size, .kind = kind, .board = board, .body = body,
                                  .argument = argument };
    if (kind == PROCESSES || kind == SIM_PROCESSES || kind == NCCL_PROCESSES)
        run_processes(ranks, size, timeout, ended);
    else
        run_threads(ranks, size, timeout);
    munmap(board, sizeof *board);
}

/* run_job without messages of the log. */
static inline void run_quiet(enum kind kind, int size, double timeout, void (*body)(struct rank *rank),
                             const void *argument, int ended)
{
    ctrt_log_set_callback(no_log, NULL);
    run_job(kind, size, timeout, body, argument, ended);
}

/* All ranks of a job of processes call this: the last rank is killed after the others have arrived. */
static inline void lose_last_rank(struct rank *rank)
{
    const int last = rank->size - 1;
    if (rank->number == last)
        for (;;)
            pause();
    atomic_fetch_add(&rank->board->step, 1);
    if (rank->number == 0) {
        await(&rank->board->step, last);
        kill(rank->board->pids[last], SIGKILL);
    }
}

/* Runs a body on devices with captures (CTRT_TEST_DEVICES=cuda): in 1 and 3 threads, and in two processes.
 * `least`: of threads. */
static inline void run_captures(const char *title, void (*body)(struct rank *rank), const void *argument, int least,
                                const char *const *settings)
{
    for (int processes = 0; processes < 2; processes++) {
        group("%s (%s)", title, processes ? "processes" : "threads");
        for (int size = processes ? 2 : least; size <= (processes ? 2 : 3); size += 2)
            CHILD_LOOP(child_, settings, exit)
                run_quiet(processes ? SIM_PROCESSES : ON_SIM, size, 60, body, argument, -1);
    }
}

/* Whether the devices under test have captures; if not, prints a skipped group. */
static inline bool has_captures(void)
{
    const char *types = getenv("CTRT_TEST_DEVICES");
    const bool has = types != NULL && strcmp(types, "cuda") == 0;
    if (!has) {
        group("captures of ranks");
        skip_group("sim has no captures; tests/integration/cuda-ranks.sh runs this");
    }
    return has;
}

/* All ranks have the same bits. */
static inline void same_everywhere(ctrt_module *net, struct rank *rank)
{
    union { char text[72]; int64_t words[9]; } hash = { .words = { 0 } };
    CTRT_AUTO(tensor) mine = NULL;
    int64_t theirs[8];
    CHECK_OK(ctrt_module_sha256(hash.text, net));
    CHECK_OK(ctrt_from_data(&mine, hash.words, 8, CTRT_SHAPE(8), CTRT_I64, rank->device));
    CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, mine, 0));
    CHECK_OK(ctrt_to_host(theirs, sizeof theirs, mine, CTRT_I64));
    CHECK(memcmp(theirs, hash.words, 64) == 0, "rank %d of %d has other parameters", rank->number, rank->size);
}

/* ThreadSanitizer does not see races between processes, and starts them slowly. */
#ifdef __SANITIZE_THREAD__
enum { TESTED_KINDS = PROCESSES };
#else
enum { TESTED_KINDS = KINDS };
#endif

#endif
