/* SPDX-License-Identifier: Apache-2.0 */
/* bench/data.c: the data loader. bench/peers/data_torch.py measures the same with PyTorch's DataLoader.
 *
 *     ./bench-data [BATCHES]
 *
 * Prints, per case, medians of 5 runs: "wall", and "cpu", the processor time of all processes together.
 *
 * large: batches of 64 x 3 x 224 x 224 f32 (38.5 MB) whose samples are copies of one image; ms per batch.
 * small: batches of 1,000 samples of 16 bytes; us per sample over the dataset's own code, which "own" shows.
 * start: from creating a loader with 4 workers to its first batch of one small sample; ms. */
#include <ctrt/ctrt.h>

#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "timing.h"

enum { RUNS = 5, PIXELS = 3 * 224 * 224, SMALL = 1000 };

static float image[PIXELS];
static int batches = 40;

static int64_t length(void *state)
{
    return *(int64_t *)state;
}

static ctrt_status large_item(ctrt_sample *sample, void *state)
{
    (void)state;
    ctrt_sample_copy(sample->out[0], image, sizeof image);
    return CTRT_OK;
}

static ctrt_status small_item(ctrt_sample *sample, void *state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        ((float *)sample->out[0])[k] = (float)sample->index;
    *(int32_t *)sample->out[1] = (int32_t)sample->index;
    return CTRT_OK;
}

static const ctrt_field large_fields[] = { { .name = "x", .dtype = CTRT_F32, .ndim = 3, .shape = { 3, 224, 224 } } };
static const ctrt_field small_fields[] = { { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { 3 } },
                                           { .name = "y", .dtype = CTRT_I32 } };

static ctrt_status open_dataset(ctrt_dataset **out, const void *arguments, size_t bytes)
{
    static int64_t count;
    (void)bytes;
    memcpy(&count, arguments, sizeof count);
    const bool large = count < 0;
    count = large ? -count : count;
    const ctrt_dataset_functions functions = {
        .size = sizeof functions, .fields = large ? large_fields : small_fields, .field_count = large ? 1 : 2,
        .length = length, .item = large ? large_item : small_item
    };
    return ctrt_dataset_new(out, &functions, &count);
}

struct cost {
    double wall, cpu;                   /* seconds */
};

static double cpu_seconds(void)
{
    struct rusage self, children;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return (double)(self.ru_utime.tv_sec + self.ru_stime.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec)
           + 1e-6 * (double)(self.ru_utime.tv_usec + self.ru_stime.tv_usec + children.ru_utime.tv_usec
                             + children.ru_stime.tv_usec);
}

/* Reads all batches of a loader; the wall time begins at the batch `skipped`, when all memory has been touched. */
static struct cost read_all(ctrt_dataset *dataset, const ctrt_loader_options *options, int skipped)
{
    ctrt_loader *loader = NULL;
    ctrt_tensor *fields[2] = { NULL, NULL };
    struct cost cost = { .cpu = cpu_seconds() };
    volatile float seen;
    bool more = true;
    check(ctrt_loader_new(&loader, dataset, options));
    const int64_t count = ctrt_loader_length(loader);
    double begin = timing_now();
    for (int i = 0;; i++) {
        check(ctrt_loader_next(fields, &more, loader));
        if (!more)
            break;
        seen = *(float *)ctrt_tensor_data(fields[0]);
        (void)seen;
        if (i + 1 == skipped)
            begin = timing_now();
    }
    cost.wall = (timing_now() - begin) / (double)(count - skipped);
    ctrt_loader_release(&loader);
    cost.cpu = (cpu_seconds() - cost.cpu) / (double)count;
    return cost;
}

static struct cost median(struct cost *costs)
{
    double wall[RUNS], cpu[RUNS];
    for (int r = 0; r < RUNS; r++) {
        wall[r] = costs[r].wall;
        cpu[r] = costs[r].cpu;
    }
    qsort(wall, RUNS, sizeof *wall, timing_compare);
    qsort(cpu, RUNS, sizeof *cpu, timing_compare);
    return (struct cost){ wall[RUNS / 2], cpu[RUNS / 2] };
}

static void throughput(const char *name, ctrt_dataset *dataset, ctrt_loader_options options, int skipped, double scale,
                       double own)
{
    struct cost costs[RUNS];
    for (int r = 0; r < RUNS; r++)
        costs[r] = read_all(dataset, &options, skipped);
    const struct cost m = median(costs);
    printf("%s wall %.3f cpu %.3f\n", name, m.wall * scale, m.cpu * scale - own);
    fflush(stdout);
}

static double own_cost(void)
{
    static float x[SMALL][3];
    static int32_t y[SMALL];
    enum { REPEATS = 2000 };
    const double begin = cpu_seconds();
    for (int i = 0; i < REPEATS * SMALL; i++) {
        void *out[2] = { x[i % SMALL], &y[i % SMALL] };
        ctrt_sample sample = { .index = i, .out = out };
        (void)small_item(&sample, NULL);
    }
    return (cpu_seconds() - begin) / (REPEATS * SMALL) * 1e6;
}

static void start(const char *name, ctrt_dataset *dataset, ctrt_worker_kind kind)
{
    enum { STARTS = 21 };
    double times[STARTS];
    for (int i = 0; i < STARTS; i++) {
        ctrt_loader *loader = NULL;
        ctrt_tensor *fields[2] = { NULL, NULL };
        bool more = true;
        const double begin = timing_now();
        check(ctrt_loader_new(&loader, dataset, &CTRT_WITH(ctrt_loader_options, .workers = 4, .worker_kind = kind)));
        check(ctrt_loader_next(fields, &more, loader));
        times[i] = (timing_now() - begin) * 1e3;
        ctrt_tensor_release(&fields[0]);
        ctrt_tensor_release(&fields[1]);
        ctrt_loader_release(&loader);
    }
    qsort(times, STARTS, sizeof *times, timing_compare);
    printf("%s wall %.3f\n", name, times[STARTS / 2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    check(ctrt_fork_server_start());
    ctrt_log_set_level(CTRT_LOG_ERROR);
    if (argc > 1)
        batches = atoi(argv[1]);
    ctrt_dataset *large = NULL, *small = NULL;
    ctrt_device *cpu = NULL;
    int64_t count = -64 * (int64_t)batches;
    for (int i = 0; i < PIXELS; i++)
        image[i] = (float)i;
    check(ctrt_device_get(&cpu, "cpu"));
    for (int workers = 0; workers <= 2; workers++)
        for (int threads = 0; threads <= (workers > 0); threads++) {
            char name[64];
            ctrt_loader_options options = CTRT_WITH(ctrt_loader_options, .batch_size = 64, .workers = workers);
            if (workers > 0)
                options.worker_kind = threads ? CTRT_WORKERS_THREADS : CTRT_WORKERS_FORK;
            count = -64 * (int64_t)batches;
            check(ctrt_dataset_open(&large, open_dataset, &count, sizeof count));
            snprintf(name, sizeof name, "large_%d_%s", workers, threads ? "threads" : "workers");
            throughput(name, large, options, 6 * (batches > 12), 1e3, 0);
            count = (int64_t)SMALL * 10 * batches;
            check(ctrt_dataset_open(&small, open_dataset, &count, sizeof count));
            options.batch_size = SMALL;
            snprintf(name, sizeof name, "small_%d_%s", workers, threads ? "threads" : "workers");
            throughput(name, small, options, 6, 1e6 / SMALL, own_cost());
        }
    printf("small_own cpu %.4f\n", own_cost());
    start("start_4_fork", small, CTRT_WORKERS_FORK);
    start("start_4_server", small, CTRT_WORKERS_SERVER);
    start("start_4_threads", small, CTRT_WORKERS_THREADS);
    ctrt_dataset_release(&large);
    ctrt_dataset_release(&small);
    return 0;
}
