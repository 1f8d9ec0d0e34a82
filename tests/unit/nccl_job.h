/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_job.h: jobs of the tests of the engine nccl, with the software driver and NCCL in software (tests/softcuda). */
#ifndef CTRT_TESTS_NCCL_JOB_H
#define CTRT_TESTS_NCCL_JOB_H

#include "comm_bodies.h"
#include "soft_begin.h"

#define DEVICES "SOFTCUDA=devices=4,memory=512m,streams=error"

static void (*checked_body)(struct rank *rank);

/* In a job of processes, each process has its own driver, so each one checks it. */
static inline void checked(struct rank *rank)
{
    checked_body(rank);
    if (rank->kind == NCCL_PROCESSES)
        no_faults();
}

static inline void job_with(enum kind kind, int size, double timeout, void (*body)(struct rank *rank),
                            const void *argument)
{
    checked_body = body;
    run_job(kind, size, timeout, checked, argument, -1);
    no_faults();
}

static inline void job(enum kind kind, int size, double timeout, void (*body)(struct rank *rank))
{
    job_with(kind, size, timeout, body, NULL);
}

/* ---- training ---- */

enum { ROWS = 12, COLUMNS = 3, STEPS = 6 };

static inline ctrt_status loss_of(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                  void *user)
{
    CTRT_AUTO(tensor) square = NULL;
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(&square, output));
    return ctrt_mean(loss, square, CTRT_ALL_DIMS);
}

#endif
