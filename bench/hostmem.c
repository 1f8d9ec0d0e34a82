/* SPDX-License-Identifier: Apache-2.0 */
/* bench/hostmem.c: the cost of a large tensor on the cpu, with fresh memory and with memory from the cache.
 *
 * The backend chooses the page size when it starts, so each case runs in its own child process. The cases run in turns,
 * ROUNDS times. The program prints the median of all samples of a case, in nanoseconds: NAME is wall-clock time,
 * NAME_cpu the process's cpu time (which other load on the machine disturbs less), NAME_free the time to free the
 * tensor. The libc_ cases allocate the same bytes from the C library.
 *
 *     bench-hostmem [ROUNDS [MIB]] */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/ctrt.h"

#define SAMPLES 5               /* per round */
#define MOST    1000

static size_t bytes = (size_t)64 << 20;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-hostmem: %s\n", ctrt_error_message());
    exit(1);
}

static ctrt_device *cpu(void)
{
    static ctrt_device *device;
    if (device == NULL)
        must(ctrt_device_get(&device, "cpu"));
    return device;
}

/* One sample, in seconds: wall-clock and cpu time from the request to the last byte written, and the wall-clock time of
 * the free. */
struct sample {
    double made, worked, freed;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void start(struct sample *sample)
{
    sample->worked = -seconds(CLOCK_PROCESS_CPUTIME_ID);
    sample->made = -seconds(CLOCK_MONOTONIC);
}

static void made(struct sample *sample)
{
    const double now = seconds(CLOCK_MONOTONIC);
    sample->made += now;
    sample->worked += seconds(CLOCK_PROCESS_CPUTIME_ID);
    sample->freed = -seconds(CLOCK_MONOTONIC);
}

static void freed(struct sample *sample)
{
    sample->freed += seconds(CLOCK_MONOTONIC);
}

static void tensor(bool fresh, bool fill, struct sample *sample)
{
    ctrt_tensor *x = NULL;
    const ctrt_ints shape = CTRT_SHAPE((int64_t)bytes / 4);
    if (fresh)
        must(ctrt_memory_empty_cache(cpu()));
    start(sample);
    must(fill ? ctrt_full(&x, shape, ctrt_float(1), CTRT_F32, cpu()) : ctrt_empty(&x, shape, CTRT_F32, cpu()));
    made(sample);
    ctrt_tensor_release(&x);
    freed(sample);
}

static void fresh_fill(struct sample *sample) { tensor(true, true, sample); }
static void cached_fill(struct sample *sample) { tensor(false, true, sample); }
static void fresh_empty(struct sample *sample) { tensor(true, false, sample); }
static void cached_empty(struct sample *sample) { tensor(false, false, sample); }

static void plain(char *block, struct sample *sample)
{
    if (block == NULL)
        exit(1);
    memset(block, 1, bytes);
    __asm__ volatile("" : : "r"(block) : "memory");         /* keeps the compiler from removing the unread memset */
    made(sample);
    free(block);
    freed(sample);
}

static void libc_malloc(struct sample *sample)
{
    start(sample);
    plain(malloc(bytes), sample);
}

static void libc_advised(struct sample *sample)
{
    void *block = NULL;
    start(sample);
    if (posix_memalign(&block, (size_t)2 << 20, bytes) == 0)
        (void)madvise(block, bytes, MADV_HUGEPAGE);
    plain(block, sample);
}

static const struct kind {
    const char *name, *pages;
    void (*sample)(struct sample *sample);
} kinds[] = {
    { "fresh_fill_never", "never", fresh_fill },     { "fresh_fill_auto", "auto", fresh_fill },
    { "fresh_fill_always", "always", fresh_fill },   { "cached_fill_never", "never", cached_fill },
    { "cached_fill_auto", "auto", cached_fill },     { "fresh_empty_auto", "auto", fresh_empty },
    { "fresh_empty_always", "always", fresh_empty }, { "cached_empty_auto", "auto", cached_empty },
    { "libc_malloc", "auto", libc_malloc },          { "libc_advised", "auto", libc_advised },
};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

/* Runs a child with the settings of `kind`, which sends its samples through a pipe. Returns how many arrived. */
static int take_samples(const struct kind *kind, struct sample *samples)
{
    int ends[2];
    struct sample one;
    if (pipe(ends) != 0)
        return 0;
    const pid_t child = fork();
    if (child == 0) {
        setenv("CTRT_HUGE_PAGES", kind->pages, 1);
        kind->sample(&one);             /* opens the device, starts threads, fills the cache */
        for (int i = 0; i < SAMPLES; i++) {
            kind->sample(&one);
            if (write(ends[1], &one, sizeof one) != (ssize_t)sizeof one)
                _exit(1);
        }
        _exit(0);
    }
    close(ends[1]);
    int count = 0, status = 0;
    while (count < SAMPLES && read(ends[0], &one, sizeof one) == (ssize_t)sizeof one)
        samples[count++] = one;
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? count : 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, in nanoseconds, of the member at `offset` of each sample. */
static double median(const struct sample *samples, int count, size_t offset)
{
    double values[MOST];
    for (int i = 0; i < count; i++)
        memcpy(&values[i], (const char *)&samples[i] + offset, sizeof values[i]);
    qsort(values, (size_t)count, sizeof values[0], ascending);
    return values[count / 2] * 1e9;
}

int main(int argc, char **argv)
{
    static struct sample samples[KINDS][MOST];
    int counts[KINDS] = { 0 };
    int rounds = argc > 1 ? atoi(argv[1]) : 7;
    if (argc > 2)
        bytes = (size_t)atoi(argv[2]) << 20;
    if (rounds < 1 || rounds > MOST / SAMPLES || bytes == 0) {
        fprintf(stderr, "usage: bench-hostmem [ROUNDS [MIB]]\n");
        return 2;
    }
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < KINDS; k++) {
            const int got = take_samples(&kinds[k], &samples[k][counts[k]]);
            if (got == 0) {
                fprintf(stderr, "bench-hostmem: %s failed\n", kinds[k].name);
                return 1;
            }
            counts[k] += got;
        }
    for (int k = 0; k < KINDS; k++)
        printf("%s %.0f\n%s_cpu %.0f\n%s_free %.0f\n", kinds[k].name,
               median(samples[k], counts[k], offsetof(struct sample, made)),
               kinds[k].name, median(samples[k], counts[k], offsetof(struct sample, worked)), kinds[k].name,
               median(samples[k], counts[k], offsetof(struct sample, freed)));
    return 0;
}
