/* SPDX-License-Identifier: Apache-2.0 */
/* test-limits.c: limits on processes and on address space, with which third-party libraries would end the process.
 *
 * The program of work.c runs with each limit, then again without. There must be no crash and no exit; a call that fails
 * must return a status and set a message; results after the limit is lifted must be correct. */
#include <sys/resource.h>

#include "work.h"

static void limited_addresses(uint64_t more, bool warm, const char *setting)
{
    IN_CHILD("CTRT_DEVICE=cpu", "CTRT_NUM_THREADS=4", setting) {
        struct rlimit limit;
        ctrt_log_set_callback(work_log, NULL);
        if (warm)
            work_check(true, "before the limit");
        getrlimit(RLIMIT_AS, &limit);
        setrlimit(RLIMIT_AS, &(struct rlimit){ address_space() + more, limit.rlim_max });
        work_check(false, "with the limit");
        setrlimit(RLIMIT_AS, &limit);
        work_check(true, "after the limit");
    }
}

static void limited_processes(rlim_t processes)
{
    work_clean();            /* the child, as another user, cannot replace these files */
    IN_CHILD("CTRT_DEVICE=cpu", "CTRT_NUM_THREADS=8") {
        ctrt_log_set_callback(work_log, NULL);
        const struct rlimit limit = { processes, processes };
        /* The limit does not apply to root. A user id that no other process has starts with a count of 1. */
        if (getuid() != 0 || setresuid(54321, 54321, 54321) == 0) {
            CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
            work_check(true, "with the limit");
        }
    }
}

TEST_MAIN
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return skip_rest("sanitizers need more address space than the limits allow");
#endif
    static const char *const stacks[] = {
        "OMP_STACKSIZE=64M", "OMP_STACKSIZE= 65536 K ", "OMP_STACKSIZE=100000", "GOMP_STACKSIZE=1g",
    };
    if (!work_begin())
        return skip_rest("no folder for the test's files");
    group("without limits");
    IN_CHILD("CTRT_DEVICE=cpu") {
        work_expect();
    }
    group("few processes");
    for (rlim_t processes = 1; processes <= 10; processes++)
        limited_processes(processes);
    for (int warm = 0; warm < 2; warm++) {
        group("few addresses, %s", warm ? "after a first pass" : "from the start");
        for (uint64_t more = 1; more <= (uint64_t)300 << 20; more = more * 4 / 3 + ((uint64_t)1 << 18))
            limited_addresses(more, warm, NULL);
    }
    for (size_t i = 0; i < sizeof stacks / sizeof stacks[0]; i++) {
        group("few addresses, %s", stacks[i]);
        limited_addresses((uint64_t)180 << 20, false, stacks[i]);
    }
    work_end();
    return done();
}
