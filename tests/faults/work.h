/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: a program that uses most of the library, in parts, for tests with failures, limits and cancellation; and
 * checks of its results, which must be the same in every child process. */
#ifndef CTRT_TESTS_WORK_H
#define CTRT_TESTS_WORK_H

#include <math.h>
#include <sys/stat.h>

#include "child.h"
#include "ctrt/ctrt.h"
#include "memory_checks.h"

/* One part: a function, or training under a strategy. It computes *result, the same in every run, and releases all its
 * objects. It may write files into work_folder. */
struct work_part {
    const char *name;
    ctrt_status (*run)(double *result);
    const char *strategy;               /* if `run` is NULL */
    bool listing;                       /* the result is the length of a list, which failures may shorten */
    bool alone;                         /* no other thread may use the device: a dry run */
};

enum { WORK_PARTS = 12 };
extern const struct work_part work_parts[];
ctrt_status work_run(double *result, int part);
/* Removes the files that the parts have written. */
void work_clean(void);

extern char work_folder[];
/* Memory shared with child processes. */
static struct {
    double expected[WORK_PARTS];
    int part;                           /* the running part; -1: none */
} *work;

/* Returns false if the test cannot run. */
static inline bool work_begin(void)
{
    work = shared_memory(sizeof *work);
    setenv("CTRT_NUM_THREADS", "2", 1);
    return mkdtemp(work_folder) != NULL && chmod(work_folder, 0777) == 0;
}

static inline void work_end(void)
{
    work_clean();
    rmdir(work_folder);
}

/* Runs all parts without failures and saves their results as the expected ones. */
static inline void work_expect(void)
{
    for (int i = 0; i < WORK_PARTS; i++) {
        work->expected[i] = 0;
        CHECK_OK(work_run(&work->expected[i], i));
    }
}

/* Runs all parts. With `strict` every part must succeed with the expected result; otherwise a part may fail with a
 * message, and the results of listings are not compared. `when` is text for failed checks. */
static inline bool work_check(bool strict, const char *when)
{
    bool fine = true;
    for (int i = 0; i < WORK_PARTS; i++) {
        const struct work_part *part = &work_parts[i];
        double got = 0;
        work->part = i;
        ctrt_status status = work_run(&got, i);
        if (getenv("SHIM_TRACE") != NULL)
            fprintf(stderr, "# %s: %s\n", part->name, status ? ctrt_error_message() : "success");
        if (status != CTRT_OK)
            fine &= CHECK(!strict && ctrt_error_message()[0] != '\0', "%s: %s: %s: \"%s\"", when, part->name,
                          ctrt_status_string(status), ctrt_error_message());
        else if (strict || !part->listing)
            fine &= CHECK(fabs(got - work->expected[i]) <= 1e-4 * (1 + fabs(work->expected[i])),
                          "%s: %s: got %.9g, expected %.9g", when, part->name, got, work->expected[i]);
    }
    work->part = -1;
    return fine;
}

/* A log callback that prints only with SHIM_TRACE. */
static inline void work_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level;
    if (getenv("SHIM_TRACE") != NULL)
        fprintf(stderr, "# log: %s: %s\n", component, text);
}

#endif
