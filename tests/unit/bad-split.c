/* SPDX-License-Identifier: Apache-2.0 */
/* bad-split.c: bad input to dry runs and to split steps. */
#include <string.h>

#include "bad-input.h"

static void dry_runs(void)
{
    ctrt_dry_run *dryrun = NULL, *second = NULL;
    ctrt_memory_prediction found;
    BAD(INVALID_ARGUMENT, ctrt_dry_run_begin(NULL, p.cpu), ctrt_dry_run_set_limit(NULL, 1));
    FINE(!ctrt_dry_run_fits(NULL));
    BAD(INVALID_ARGUMENT, ctrt_dry_run_end(&found, NULL));
    BAD(ANY, ctrt_dry_run_end(&found, &dryrun));
    FINE((ctrt_dry_run_release(NULL), ctrt_dry_run_release(&dryrun), true),
        ctrt_dry_run_begin(&dryrun, p.cpu) == CTRT_OK && dryrun != NULL);
    BAD(STATE, ctrt_dry_run_begin(&second, p.cpu));
    FINE(second == NULL, ctrt_dry_run_end(NULL, &dryrun) == CTRT_OK && dryrun == NULL);
}

static ctrt_status runs(void *user, int64_t from, int64_t to, double weight)
{
    (void)user, (void)from, (void)to, (void)weight;
    return CTRT_OK;
}

static ctrt_status fails(void *user, int64_t from, int64_t to, double weight)
{
    (void)user, (void)from, (void)to, (void)weight;
    return ctrt_fail(CTRT_ERR_IO, "the reader is gone");
}

static void splits(void)
{
    ctrt_split *split = NULL, *none = NULL;
    ctrt_split_result result;
    NULL_IN2(ctrt_split_new, &split, p.linear, NULL);
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, p.linear, &(ctrt_split_options){ .pieces = -1 }),
        ctrt_split_new(&split, p.linear, &(ctrt_split_options){ .canonical = -4 }));
    FINE(split == NULL, ctrt_split_new(&split, p.linear, NULL) == CTRT_OK && ctrt_split_pieces(split) == 1);
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, NULL, 4, runs, NULL), ctrt_split_step(&result, split, 0, runs, NULL),
        ctrt_split_step(&result, split, 4, NULL, NULL));
    BAD(IO, ctrt_split_step(&result, split, 4, fails, NULL));
    FINE(strstr(ctrt_error_message(), "the reader is gone") != NULL,
        ctrt_split_step(NULL, split, 4, runs, NULL) == CTRT_OK, ctrt_split_pieces(NULL) == 0,
        (ctrt_split_release(NULL), ctrt_split_release(&none), true));
    ctrt_split_release(&split);
}

void bad_split(void)
{
    dry_runs();
    splits();
}
