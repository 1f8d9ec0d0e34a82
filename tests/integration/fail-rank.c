/* SPDX-License-Identifier: Apache-2.0 */
/* fail-rank.c FAULT RANK: one rank of the jobs that failures.sh starts. It trains a small network under the strategy
 * `distributed`. In step 5, RANK has the fault:
 *
 *   none            no fault: training goes on until the process is killed
 *   kill, stop      the process ends by SIGKILL, or stops
 *   MICROSECONDS    the process ends by SIGKILL after that time, wherever it is then
 *   late            it sleeps for longer than CTRT_COMM_TIMEOUT
 *   exit, return    it ends without releasing anything: by exit() during an asynchronous collective, or by return
 *   leave           it releases the module, so that it leaves the group, and lives on
 *   op, dtype, count, root
 *                   it calls a different collective than the others
 *   alarm, state, members
 *                   it replaces a key of the group in the store by garbage, and is then killed
 *
 * After an error a rank prints "rank R: T s after its last step, D s late: MESSAGE" and exits with 1; under mpirun half
 * a second later, because mpirun then ends the other ranks, which have to report first. D is the sum of the delays of a
 * thread that sleeps 10 ms at a time since the last step, so the time that the machine needed for other processes. */
#include <ctrt/ctrt.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "../options.h"

enum { FEATURES = 16, ROWS = 4, FAULT_STEP = 5 };

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* How much longer all sleeps of the thread were than 10 ms, in ns. */
static _Atomic int64_t late;

static void *measure(void *unused)
{
    const double nap = 0.01;
    for (;;) {
        const double begin = seconds();
        nanosleep(&(struct timespec){ .tv_nsec = (long)(nap * 1e9) }, NULL);
        late += (int64_t)((seconds() - begin - nap) * 1e9);
    }
    return unused;
}

static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    (void)count, (void)user;
    return ctrt_mse_loss(loss, output, inputs[1], CTRT_REDUCE_MEAN);
}

/* Sets a key to garbage, with a connection of its own. */
static ctrt_status corrupt(const char *key)
{
    CTRT_AUTO(store) store = NULL;
    const char *address = getenv("CTRT_STORE");
    CTRT_TRY(ctrt_store_open(&store, address ? address : "", false, 10));
    return ctrt_store_set(store, key, "\xff garbage %s%n", 14);
}

/* An asynchronous collective, during which the rank with the fault calls exit(). */
static ctrt_status exit_amid(ctrt_comm *comm, bool mine)
{
    ctrt_tensor *x = NULL;
    ctrt_work *work = NULL;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(1 << 20), CTRT_F32, ctrt_comm_device(comm)));
    CTRT_TRY(ctrt_comm_barrier(comm));
    CTRT_TRY(ctrt_comm_all_reduce(&work, comm, x, CTRT_COMM_SUM));
    if (mine)
        exit(0);
    return ctrt_work_wait(work);
}

/* A collective of all ranks, which has another argument on the rank with the fault. */
static ctrt_status differ(ctrt_comm *comm, const char *argument, bool mine)
{
    CTRT_AUTO(tensor) x = NULL;
    const bool count = mine && strcmp(argument, "count") == 0, dtype = mine && strcmp(argument, "dtype") == 0;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(count ? 8 : 7), dtype ? CTRT_I32 : CTRT_F32, ctrt_comm_device(comm)));
    if (strcmp(argument, "root") == 0)
        return ctrt_comm_broadcast(NULL, comm, x, mine);
    return ctrt_comm_all_reduce(NULL, comm, x, mine && strcmp(argument, "op") == 0 ? CTRT_COMM_MAX : CTRT_COMM_SUM);
}

/* The fault of this rank. `leave` releases *net and *optimizer. *ends: the process returns from main. */
static ctrt_status fail(bool *ends, ctrt_module **net, ctrt_optimizer **optimizer, const char *fault)
{
    char key[64];
    ctrt_comm *comm = ctrt_parallel_comm(*net);
    const double timeout = atof(getenv("CTRT_COMM_TIMEOUT"));
    *ends = strcmp(fault, "return") == 0 || strcmp(fault, "leave") == 0;
    if (strcmp(fault, "kill") == 0 || strcmp(fault, "stop") == 0)
        raise(strcmp(fault, "kill") == 0 ? SIGKILL : SIGSTOP);
    if (strcmp(fault, "late") == 0)
        usleep((useconds_t)((timeout + 3) * 1e6));
    if (strcmp(fault, "leave") == 0) {
        ctrt_optimizer_release(optimizer);
        ctrt_module_release(net);
        usleep((useconds_t)((timeout + 3) * 1e6));
    }
    if (strcmp(fault, "alarm") == 0 || strcmp(fault, "members") == 0 || strcmp(fault, "state") == 0) {
        if (strcmp(fault, "state") == 0)
            snprintf(key, sizeof key, "world/0/state/%d", ctrt_comm_rank(comm));
        else
            snprintf(key, sizeof key, "world/0/%s", fault);
        CTRT_TRY(corrupt(key));
        raise(SIGKILL);
    }
    return CTRT_OK;
}

static ctrt_status train(bool *ends, double *since, int64_t *late_before, const char *fault, int rank_of_fault)
{
    ctrt_module *module = NULL, *net = NULL;
    ctrt_optimizer *optimizer = NULL;
    ctrt_device *cpu = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL }, *loss = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_linear_new(&module, FEATURES, FEATURES, true, cpu));
    CTRT_TRY(ctrt_parallel_new(&net, module, "distributed", NULL, 0));
    CTRT_TRY(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.01)));
    CTRT_TRY(ctrt_randn(&batch[0], CTRT_SHAPE(ROWS, FEATURES), CTRT_F32, cpu));
    CTRT_TRY(ctrt_randn(&batch[1], CTRT_SHAPE(ROWS, FEATURES), CTRT_F32, cpu));
    const bool mine = ctrt_comm_rank(ctrt_parallel_comm(net)) == rank_of_fault;
    const bool differs = strstr("op dtype count root", fault) != NULL;
    for (int step = 0;; step++) {
        *since = seconds();
        *late_before = late;
        if (step == FAULT_STEP) {
            printf("training\n");
            fflush(stdout);
        }
        if (step == FAULT_STEP && mine)
            CTRT_TRY(fail(ends, &net, &optimizer, fault));
        if (*ends)
            return CTRT_OK;
        if (step == FAULT_STEP && strcmp(fault, "exit") == 0)
            CTRT_TRY(exit_amid(ctrt_parallel_comm(net), mine));
        if (step == FAULT_STEP && differs)
            CTRT_TRY(differ(ctrt_parallel_comm(net), fault, mine));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_parallel_step(&loss, net, batch, 2, loss_function, NULL));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        usleep(1000);
    }
}

static void on_alarm(int signal)
{
    (void)signal;
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    bool ends = false;
    double since = seconds();
    int64_t late_before = 0;
    int rank = -1;
    pthread_t thread;
    if (argc != 3)
        return 2;
    (void)ctrt_comm_environment(&rank, NULL, NULL, NULL);
    const struct itimerval time = { .it_value.tv_usec = atoi(argv[1]) };
    signal(SIGALRM, on_alarm);
    if (rank == atoi(argv[2]))
        setitimer(ITIMER_REAL, &time, NULL);
    if (pthread_create(&thread, NULL, measure, NULL) != 0)
        return 2;
    if (train(&ends, &since, &late_before, argv[1], atoi(argv[2])) == CTRT_OK)
        return 0;
    printf("rank %d: %.2f s after its last step, %.2f s late: %s\n", rank, seconds() - since,
           1e-9 * (double)(late - late_before), ctrt_error_message());
    fflush(stdout);
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL)
        usleep(500000);
    return 1;
}
