/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/openmp.h: runs the OpenMP parallel regions of a library with the backend's own threads.
 *
 * libgomp's threads wait actively for up to milliseconds, end the process if a thread cannot be started, do not survive
 * a fork, and would compete with the backend's own. */
#ifndef CTRT_CPU_OPENMP_H
#define CTRT_CPU_OPENMP_H

#include <stdbool.h>

/* Replaces the functions of OpenMP that the library of `object` (from dlopen) calls; `function` is any function of the
 * library. The library must be bound (RTLD_NOW). Calls outside of cpu_openmp_enter and cpu_openmp_leave, by other users
 * of the library, still run with OpenMP's threads. If the library uses functions of OpenMP for which there is no
 * replacement, cpu_openmp_enter limits it to one thread. Not thread-safe; call it once. */
void cpu_openmp_adopt(void *object, const void *function);

/* Call these around each call of the library. */
void cpu_openmp_enter(void);
void cpu_openmp_leave(void);
/* Returns the number of threads that the library uses in between. */
int cpu_openmp_threads(void);

#endif
