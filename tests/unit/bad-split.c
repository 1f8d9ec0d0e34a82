/* SPDX-License-Identifier: Apache-2.0 */
/* bad-split.c: bad input to memory plans and to split steps. */
#include <string.h>

#include "bad-input.h"

static void plans(void)
{
    ctrt_memory_plan *plan = NULL, *second = NULL;
    ctrt_memory_prediction found;
    BAD(INVALID_ARGUMENT, ctrt_memory_plan_begin(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_memory_plan_set_limit(NULL, 1));
    FINE(!ctrt_memory_plan_fits(NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_plan_end(&found, NULL));
    BAD(ANY, ctrt_memory_plan_end(&found, &plan));
    FINE((ctrt_memory_plan_release(NULL), ctrt_memory_plan_release(&plan), true));
    FINE(ctrt_memory_plan_begin(&plan, p.cpu) == CTRT_OK && plan != NULL);
    BAD(STATE, ctrt_memory_plan_begin(&second, p.cpu));
    FINE(second == NULL);
    FINE(ctrt_memory_plan_end(NULL, &plan) == CTRT_OK && plan == NULL);
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
    BAD(INVALID_ARGUMENT, ctrt_split_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, p.linear, &(ctrt_split_options){ .pieces = -1 }));
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, p.linear, &(ctrt_split_options){ .canonical = -4 }));
    FINE(split == NULL);
    FINE(ctrt_split_new(&split, p.linear, NULL) == CTRT_OK && ctrt_split_pieces(split) == 1);
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, NULL, 4, runs, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, split, 0, runs, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, split, 4, NULL, NULL));
    BAD(IO, ctrt_split_step(&result, split, 4, fails, NULL));
    FINE(strstr(ctrt_error_message(), "the reader is gone") != NULL);
    FINE(ctrt_split_step(NULL, split, 4, runs, NULL) == CTRT_OK);
    FINE(ctrt_split_pieces(NULL) == 0);
    FINE((ctrt_split_release(NULL), ctrt_split_release(&none), true));
    ctrt_split_release(&split);
}

void bad_split(void)
{
    plans();
    splits();
}
