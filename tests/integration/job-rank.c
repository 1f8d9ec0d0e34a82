/* SPDX-License-Identifier: Apache-2.0 */
/* job-rank.c MODE [ARGUMENT...]: one rank of the jobs that jobs.sh starts. Prints "rank R: RESULT" or
 * "rank R: error: MESSAGE", with exit status 1.
 *
 *   sum VALUE COUNT MILLISECONDS [LINGER]
 *                  COUNT all_reduces of VALUE, with pauses. RESULT is the last sum. Returns from main without releasing
 *                  the communicator, LINGER * R milliseconds later, or, if LINGER is negative, -LINGER * (N - R)
 *   release COUNT  joins and releases COUNT communicators. RESULT is the median time of a release in milliseconds
 *   processors     RESULT is the number of processors that the cpu backend uses
 *   parallel       creates the module of a strategy that the environment names. RESULT is 0
 *   halt KEY       the same, but rank 1 stops as soon as KEY is set in the store
 *   listen PORT    listens on a port of 127.0.0.1 and never answers */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/ctrt.h"

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ctrt_status release(double *out, int count)
{
    double times[100];
    count = count > 100 ? 100 : count;
    for (int i = 0; i < count; i++) {
        ctrt_comm *comm = NULL;
        CTRT_TRY(ctrt_comm_new(&comm, NULL));
        CTRT_TRY(ctrt_comm_barrier(comm));
        const double begin = milliseconds();
        ctrt_comm_release(&comm);
        times[i] = milliseconds() - begin;
    }
    qsort(times, (size_t)count, sizeof *times, compare);
    *out = times[count / 2];
    return CTRT_OK;
}

static ctrt_status sum(int *rank, double *out, char **argv)
{
    static ctrt_comm *comm;             /* not released */
    CTRT_TRY(ctrt_comm_new(&comm, NULL));
    *rank = ctrt_comm_rank(comm);
    for (int i = 0; i < atoi(argv[1]); i++) {
        CTRT_AUTO(tensor) x = NULL;
        CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(1), ctrt_float(atof(argv[0])), CTRT_F32, ctrt_comm_device(comm)));
        CTRT_TRY(ctrt_comm_all_reduce(NULL, comm, x, CTRT_COMM_SUM));
        CTRT_TRY(ctrt_item(out, x));
        if (i == 0)
            fprintf(stderr, "rank %d has joined\n", *rank);
        usleep((useconds_t)(1000 * atoi(argv[2])));
    }
    const int linger = argv[3] != NULL ? atoi(argv[3]) : 0;
    usleep((useconds_t)(1000 * (linger < 0 ? -linger * (ctrt_comm_size(comm) - *rank) : linger * *rank)));
    return CTRT_OK;
}

static ctrt_status parallel(void)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_TRY(ctrt_linear_new(&module, 2, 2, true, NULL));
    return ctrt_parallel_new(&net, module, NULL, NULL, 0);
}

/* Stops the process when the key is set. */
static void *halt_at(void *key)
{
    CTRT_AUTO(store) store = NULL;
    const char *address = getenv("CTRT_STORE");
    if (ctrt_store_open(&store, address != NULL ? address : "", false, 30) == CTRT_OK
        && ctrt_store_get(store, key, NULL, NULL, 30) == CTRT_OK)
        kill(getpid(), SIGSTOP);
    else
        fprintf(stderr, "%s\n", ctrt_error_message());
    return NULL;
}

static ctrt_status halt(int rank, char *key)
{
    pthread_t thread;
    if (rank == 1 && pthread_create(&thread, NULL, halt_at, key) != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no thread");
    if (rank == 1)
        pthread_detach(thread);
    return parallel();
}

static ctrt_status processors(double *out)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CTRT_TRY(ctrt_device_get_properties(&properties, "cpu"));
    *out = properties.processors;
    return CTRT_OK;
}

/* The result of a mode with `count` arguments. */
static ctrt_status result_of(int *rank, double *out, const char *mode, char **arguments, int count)
{
    if (strcmp(mode, "sum") == 0 && count >= 3)
        return sum(rank, out, arguments);
    if (strcmp(mode, "release") == 0 && count == 1)
        return release(out, atoi(arguments[0]));
    if (strcmp(mode, "processors") == 0)
        return processors(out);
    if (strcmp(mode, "parallel") == 0)
        return parallel();
    if (strcmp(mode, "halt") == 0 && count == 1)
        return halt(*rank, arguments[0]);
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "no mode \"%s\" with %d arguments", mode, count);
}

static int listen_only(int port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port),
    };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 10) != 0)
        return 1;
    fprintf(stderr, "listens\n");
    return pause();
}

int main(int argc, char **argv)
{
    int rank = -1;
    double result = 0;
    if (argc == 3 && strcmp(argv[1], "listen") == 0)
        return listen_only(atoi(argv[2]));
    (void)ctrt_comm_environment(&rank, NULL, NULL, NULL);
    if (result_of(&rank, &result, argc > 1 ? argv[1] : "", argv + 2, argc - 2) != CTRT_OK) {
        printf("rank %d: error: %s\n", rank, ctrt_error_message());
        return 1;
    }
    printf("rank %d: %g\n", rank, result);
    return 0;
}
