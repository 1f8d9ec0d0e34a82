/* SPDX-License-Identifier: Apache-2.0 */
/* guard.h: `ctrt check --guard`: runs the suite in child processes with CTRT_CHECK_GUARD, once with memory that is not
 * mapped after the operands of each kernel, once before them. A crash is a failed check; the suite goes on after it. */
#ifndef CTRT_CONFORMANCE_GUARD_H
#define CTRT_CONFORMANCE_GUARD_H

#include "conformance.h"

/* How far the suite has come, in memory that the parent and the child that runs it share. */
struct guard_progress {
    struct conformance_result result;
    int number, kernels;     /* checks that have ended; those with a kernel of the device */
    int begun;                          /* checks that have begun in this pass, also those that a crash ended */
    int skip;                           /* checks that the child passes over: begun before it started */
    bool ended;                         /* the child has run all checks */
    bool expired;                       /* the check has not ended within the time limit */
    char check[256], call[2048];        /* the check that runs; the last call of a kernel */
    uint64_t address;                   /* of the access that crashed; 0: unknown */
};

/* What a kernel has used that crashed at an address below 4096. */
#define GUARD_NULL "a NULL pointer; call->workspace is one if the kernel has no slot `workspace`"

/* Returns as conformance_run. 77 after a message if the device cannot be guarded. */
int guard_conformance(const struct conformance_options *options);

#endif
