/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/team.h: the threads of parallel work.
 *
 * Each thread that calls parallel work has a team: itself and workers that it starts at first use and that end with it.
 * A region is one piece of parallel work, a number of tasks. Task 0 runs in the calling thread and task i in worker i,
 * unless that worker does not get a processor before another thread of the team has finished its own task. */
#ifndef CTRT_CPU_TEAM_H
#define CTRT_CPU_TEAM_H

#include <stdbool.h>

typedef void (*cpu_task)(void *argument, int index, int count);

/* Registers the handlers for thread exit and fork. `crowded`: the threads share their processors with each other or
 * have a quota, so that waiting threads always sleep soon. Returns false if there is no memory. May be called again. */
bool cpu_team_init(bool crowded);

/* Starts workers until the calling thread's team has `wanted` threads, itself included. Returns its number of threads,
 * which is smaller if a thread cannot be started, and larger if it was larger before. Do not call inside a region. */
int cpu_team_grow(int wanted);
/* Ends the calling thread's workers; cpu_team_grow starts new ones. Does nothing inside a region. */
void cpu_team_end(void);
/* Returns the number of threads of the calling thread's team, itself included; at least 1. */
int cpu_team_size(void);
/* Returns how many threads the calling thread's team can have: cpu_team_size() if the last attempt to start workers
 * failed, otherwise INT_MAX. */
int cpu_team_limit(void);

/* Runs task(argument, i, count) once for each i of [0, count) and returns when all have ended. `count` must not exceed
 * cpu_team_size(). `concurrent`: tasks may wait for each other. Do not call inside a region. */
void cpu_team_run(int count, cpu_task task, void *argument, bool concurrent);

/* The innermost region in which the calling thread runs a task: its number of tasks, 0 outside of regions, and the
 * index of the task. */
int cpu_team_tasks(void);
int cpu_team_index(void);
/* Runs task(argument, 0, 1) as a region of one task, also inside a region. */
void cpu_team_run_nested(cpu_task task, void *argument);
/* Inside a region of concurrent tasks: returns when all of them have called it. */
void cpu_team_barrier(void);

#endif
