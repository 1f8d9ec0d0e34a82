/* SPDX-License-Identifier: Apache-2.0 */
/* bench/timing.h: timing for the programs in this folder: calibrated batches, the median of many samples, one line
 * "NAME NANOSECONDS" per case, which compare.sh reads. Compiles as C11 and as C++17, for ctrt's programs and for the
 * peers. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMING_SAMPLES 31

static inline double timing_now(void)           /* seconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int timing_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs `body` in batches of at least 5 ms and prints the median time of one run.
 *
 * TIMING_CASE=NAME runs only that case. TIMING_CALLS=N calls `body` N times and prints nothing; instructions.sh counts
 * the instructions of such runs. TIMING_SECONDS=S prints the mean time of S seconds instead, for competitors.sh: a
 * median would hide the time in which other programs run. */
static inline void timing_report(const char *name, void (*body)(void *), void *argument)
{
    const char *only = getenv("TIMING_CASE"), *calls = getenv("TIMING_CALLS"),
               *seconds = getenv("TIMING_SECONDS");
    if (only && strcmp(only, name) != 0)
        return;
    if (calls) {
        for (long i = strtol(calls, NULL, 10); i > 0; i--)
            body(argument);
        return;
    }
    if (seconds) {
        const double least = strtod(seconds, NULL);
        double begin = timing_now(), time;
        long done = 0;
        for (; (time = timing_now() - begin) < least; done++) {
            body(argument);
            if (time < least / 8)                       /* a warm-up, which starts the threads of all programs */
                done = -1;
        }
        printf("%s %.2f\n", name, time * 7 / 8 / (double)(done > 0 ? done : 1) * 1e9);
        fflush(stdout);
        return;
    }
    long batch = 1;
    for (;;) {
        const double begin = timing_now();
        for (long i = 0; i < batch; i++)
            body(argument);
        if (timing_now() - begin > 5e-3 || batch > 1L << 30)
            break;
        batch *= 2;
    }
    double samples[TIMING_SAMPLES];
    for (int s = 0; s < TIMING_SAMPLES; s++) {
        const double begin = timing_now();
        for (long i = 0; i < batch; i++)
            body(argument);
        samples[s] = (timing_now() - begin) / (double)batch * 1e9;
    }
    qsort(samples, TIMING_SAMPLES, sizeof samples[0], timing_compare);
    printf("%s %.2f\n", name, samples[TIMING_SAMPLES / 2]);
    fflush(stdout);
}

#endif
