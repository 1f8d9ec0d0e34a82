/* SPDX-License-Identifier: Apache-2.0 */
/* bench/startup.c: the time that a new process needs to get its first device.
 *
 * Starts itself repeatedly: as a process that does nothing, and as one that gets a device ("cpu", or the argument) with
 * ctrt_device_get. Prints the medians of the whole process and of that call. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/device.h"

#define RUNS 201

extern char **environ;

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

/* The child process: writes the duration of the call to stdout, as a double. */
static int get_device(const char *name)
{
    ctrt_device *device = NULL;
    double begin = microseconds();
    ctrt_status status = strcmp(name, "-") == 0 ? CTRT_OK : ctrt_device_get(&device, name);
    double took = microseconds() - begin;
    if (status != CTRT_OK) {
        fprintf(stderr, "%s\n", ctrt_error_message());
        return 1;
    }
    return write(STDOUT_FILENO, &took, sizeof took) != sizeof took;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians over RUNS processes; returns false if one failed. */
static bool measure(const char *self, const char *device, double *process, double *call)
{
    double processes[RUNS], calls[RUNS];
    for (int i = 0; i < RUNS; i++) {
        int ends[2], status = 1;
        pid_t child;
        posix_spawn_file_actions_t actions;
        char *arguments[] = { (char *)self, "--child", (char *)device, NULL };
        if (pipe(ends) != 0)
            return false;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        double begin = microseconds();
        bool started = posix_spawn(&child, self, &actions, NULL, arguments, environ) == 0;
        bool well = started && waitpid(child, &status, 0) == child && status == 0;
        processes[i] = microseconds() - begin;
        well = well && read(ends[0], &calls[i], sizeof calls[i]) == sizeof calls[i];
        posix_spawn_file_actions_destroy(&actions);
        close(ends[0]);
        close(ends[1]);
        if (!well)
            return false;
    }
    qsort(processes, RUNS, sizeof *processes, ascending);
    qsort(calls, RUNS, sizeof *calls, ascending);
    *process = processes[RUNS / 2];
    *call = calls[RUNS / 2];
    return true;
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cpu";
    double empty, nothing, process, call;
    char self[4096];
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return get_device(argv[2]);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return 1;
    self[length] = '\0';
    if (!measure(self, "-", &empty, &nothing) || !measure(self, device, &process, &call))
        return 1;
    printf("startup: ctrt_device_get(\"%s\") %.0f us; whole process %.0f us, without the call %.0f us "
           "(medians of %d)\n",
           device, call, process, empty, RUNS);
    return 0;
}
