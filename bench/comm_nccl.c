/* SPDX-License-Identifier: Apache-2.0 */
/* bench/comm_nccl.c: all_reduce of the engine nccl with one rank, and ncclAllReduce called directly.
 *
 *     bench-comm-nccl [DEVICE [ROUNDS]]
 *
 * First it checks the results of collectives with one rank. Then, for each size, it measures the two in turns, ROUNDS
 * times (default 9), and prints medians in microseconds per call: the time until all calls are enqueued ("host"), and
 * the time until they are complete ("all"). Exits with 77 without a GPU or NCCL, and with 1 if NCCL fails.
 *
 * With --model it measures only the engine, also with NCCL in software, which with SOFTCUDA_NCCL=threads=1 creates a
 * thread for each call on a non-blocking communicator, as NCCL does (bench/results/2026-11-nccl-host.md). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>

#include "ctrt/ctrt.h"
#include "timing.h"

typedef struct { char bytes[128]; } unique_id;

static int (*unique)(unique_id *);
static int (*init)(void **, int, unique_id, int);
static int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*destroy)(void *);

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "bench-comm-nccl: %s: %s\n", what, ctrt_error_message());
    exit(1);
}

static ctrt_comm *comm;
static ctrt_stream *stream;
static void *nccl_comm, *native;
static bool model;

static void calls(bool direct, ctrt_tensor *x, int count)
{
    const size_t n = (size_t)ctrt_tensor_numel(x);
    void *data = ctrt_tensor_data(x);
    for (int i = 0; i < count; i++)
        if (direct)
            must(all_reduce(data, data, n, 7, 0, nccl_comm, native) == 0, "ncclAllReduce");
        else
            must(ctrt_comm_all_reduce(NULL, comm, x, CTRT_COMM_SUM) == CTRT_OK, "ctrt_comm_all_reduce");
}

static void measure(size_t bytes, int rounds)
{
    enum { CALLS = 200 };
    double host[2][99], all[2][99];
    CTRT_AUTO(tensor) x = NULL;
    must(ctrt_zeros(&x, CTRT_SHAPE((int64_t)(bytes / 4)), CTRT_F32, ctrt_comm_device(comm)) == CTRT_OK, "ctrt_zeros");
    for (int round = -1; round < rounds; round++)
        for (int direct = 0; direct < 2 - model; direct++) {
            must(ctrt_stream_synchronize(stream) == CTRT_OK, "ctrt_stream_synchronize");
            const double begin = timing_now();
            calls(direct, x, CALLS);
            const double enqueued = timing_now();
            must(ctrt_stream_synchronize(stream) == CTRT_OK, "ctrt_stream_synchronize");
            if (round >= 0) {
                host[direct][round] = (enqueued - begin) / CALLS * 1e6;
                all[direct][round] = (timing_now() - begin) / CALLS * 1e6;
            }
        }
    for (int direct = 0; direct < 2 - model; direct++) {
        qsort(host[direct], (size_t)rounds, sizeof(double), timing_compare);
        qsort(all[direct], (size_t)rounds, sizeof(double), timing_compare);
    }
    if (model)
        printf("%10zu %12.2f %12.2f\n", bytes, host[0][rounds / 2], all[0][rounds / 2]);
    else
        printf("%10zu %12.2f %12.2f %12.2f %12.2f\n", bytes, host[0][rounds / 2], host[1][rounds / 2],
               all[0][rounds / 2], all[1][rounds / 2]);
}

/* With one rank, each collective returns its operand. */
static void check(void)
{
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16, CTRT_I64 };
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        double sum = 0;
        must(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_int(3), dtypes[d], ctrt_comm_device(comm)) == CTRT_OK, "ctrt_full");
        must(ctrt_empty_like(&y, x, CTRT_DTYPE_DEFAULT, NULL) == CTRT_OK, "ctrt_empty_like");
        must(ctrt_comm_all_reduce(NULL, comm, x, CTRT_COMM_SUM) == CTRT_OK, "all_reduce");
        must(ctrt_comm_broadcast(NULL, comm, x, 0) == CTRT_OK, "broadcast");
        must(ctrt_comm_all_gather(NULL, comm, y, x) == CTRT_OK, "all_gather");
        must(ctrt_comm_reduce_scatter(NULL, comm, x, y, CTRT_COMM_SUM) == CTRT_OK, "reduce_scatter");
        must(ctrt_to_dtype(&x, x, CTRT_F64) == CTRT_OK && ctrt_sum(&x, x, CTRT_ALL_DIMS) == CTRT_OK
             && ctrt_item(&sum, x) == CTRT_OK, "the sum");
        if (sum == 3000)
            continue;
        fprintf(stderr, "bench-comm-nccl: FAILED: the sum of 1000 times 3 in %s is %g\n", ctrt_dtype_name(dtypes[d]),
                sum);
        exit(1);
    }
    printf("collectives with one rank passed\n");
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = { 4, 4096, 1 << 20, 25 << 20 };
    model = argc > 1 && strcmp(argv[1], "--model") == 0;
    argc -= model;
    argv += model;
    const int asked = argc > 2 ? atoi(argv[2]) : 9, rounds = asked < 1 ? 9 : asked > 99 ? 99 : asked;
    ctrt_device *device = NULL;
    unique_id id;
    ctrt_status status = ctrt_device_get(&device, argc > 1 ? argv[1] : "cuda:0");
    if (status == CTRT_OK)
        status = ctrt_comm_new_local(&comm, &device, 1, &CTRT_WITH(ctrt_comm_options, .engine = "nccl"));
    if (status == CTRT_ERR_NO_DEVICE || status == CTRT_ERR_NOT_FOUND) {
        printf("bench-comm-nccl: skipped: %s\n", ctrt_error_message());
        return 77;
    }
    must(status == CTRT_OK, "a communicator of one rank");
    check();
    if (model) {
        must(ctrt_stream_default(&stream, device) == CTRT_OK, "a stream");
        printf("     bytes    host ctrt     all ctrt, us per call\n");
        for (size_t i = 0; i < 2; i++)
            measure(sizes[i], rounds);
        return 0;
    }
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);         /* the engine has loaded it */
    must(library != NULL, "libnccl.so.2");
    *(void **)&unique = dlsym(library, "ncclGetUniqueId");
    *(void **)&init = dlsym(library, "ncclCommInitRank");
    *(void **)&all_reduce = dlsym(library, "ncclAllReduce");
    *(void **)&destroy = dlsym(library, "ncclCommDestroy");
    if (init == NULL) {
        printf("bench-comm-nccl: skipped: NCCL in software\n");
        return 77;
    }
    must(ctrt_stream_default(&stream, device) == CTRT_OK && ctrt_stream_native(&native, stream) == CTRT_OK, "a stream");
    must(unique(&id) == 0 && init(&nccl_comm, 1, id, 0) == 0, "ncclCommInitRank");
    printf("     bytes    host ctrt    host NCCL     all ctrt     all NCCL, us per call\n");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        measure(sizes[i], rounds);
    (void)destroy(nccl_comm);
    ctrt_stream_release(&stream);
    ctrt_comm_release(&comm);
    return 0;
}
