/* SPDX-License-Identifier: Apache-2.0 */
/* shim.h: a library for LD_PRELOAD that makes the n-th call of a kind fail.
 *
 * The program finds the two functions with dlsym. Calls made by third-party libraries (oneDNN, BLAS, OpenMP, the C++
 * runtime, the dynamic loader) are neither counted nor failed, because several of them end the process on a failed
 * call; doc/faults.md lists them. */
#ifndef CTRT_TESTS_SHIM_H
#define CTRT_TESTS_SHIM_H

#include <stdbool.h>

enum fault_kind {
    FAULT_NONE, FAULT_ALLOC, FAULT_MMAP, FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_RENAME, FAULT_THREAD, FAULT_DLOPEN,
    FAULT_KINDS
};

/* Starts counting calls of this kind. The n-th call fails, and with `forever` all later ones also fail; n = 0 only
 * counts. */
void shim_arm(enum fault_kind kind, long n, bool forever);
/* Stops counting and injecting failures. Returns the number of counted calls. */
long shim_disarm(void);

#endif
