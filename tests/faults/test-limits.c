/* SPDX-License-Identifier: Apache-2.0 */
/* test-limits.c: limits on processes and on address space, with which third-party libraries would end the process.
 *
 * The program of work.c runs with each limit, then again without. There must be no crash and no exit; a call that fails
 * must return a status and set a message; results after the limit is lifted must be correct. */
#include <math.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "work.h"

static char folder[] = "/tmp/ctrt-limits-XXXXXX";

static void expect(double *expected)
{
    for (int i = 0; i < WORK_PARTS; i++)
        CHECK_OK(work_parts[i].run(&expected[i], folder));
}

static void pass(const double *expected, bool strict)
{
    for (int i = 0; i < WORK_PARTS; i++) {
        double got = 0;
        ctrt_status status = work_parts[i].run(&got, folder);
        if (strict || status == CTRT_OK)
            CHECK(status == CTRT_OK && (fabs(got - expected[i]) <= 1e-4 * (1 + fabs(expected[i])) ||
                                        (work_parts[i].listing && !strict)),
                  "%s: %s, got %g, expected %g", work_parts[i].name, status ? ctrt_error_message() : "success", got,
                  expected[i]);
        else
            CHECK(ctrt_error_message()[0] != '\0', "%s: %s without a message", work_parts[i].name,
                  ctrt_status_string(status));
    }
}

static uint64_t address_space(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    if (file == NULL || fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void quiet(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component, (void)text;
}

static void limited_addresses(const double *expected, uint64_t more, bool warm, const char *setting)
{
    IN_CHILD("CTRT_DEVICE=cpu", "CTRT_NUM_THREADS=4", setting) {
        alarm(60);
        struct rlimit limit;
        ctrt_log_set_callback(quiet, NULL);
        if (warm)
            pass(expected, true);
        getrlimit(RLIMIT_AS, &limit);
        const rlim_t before = limit.rlim_cur;
        limit.rlim_cur = address_space() + more;
        setrlimit(RLIMIT_AS, &limit);
        pass(expected, false);
        limit.rlim_cur = before;
        setrlimit(RLIMIT_AS, &limit);
        pass(expected, true);
    }
    CHILD_END;
}

static void limited_processes(const double *expected, rlim_t processes)
{
    work_clean(folder);                 /* the child, as another user, cannot replace these files */
    IN_CHILD("CTRT_DEVICE=cpu", "CTRT_NUM_THREADS=8") {
        alarm(60);
        ctrt_log_set_callback(quiet, NULL);
        const struct rlimit limit = { processes, processes };
        /* The limit does not apply to root. A user id that no other process has starts with a count of 1. */
        if (getuid() != 0 || setresuid(54321, 54321, 54321) == 0) {
            CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit");
            pass(expected, true);
        }
    }
    CHILD_END;
}

TEST_MAIN
{
    double *expected = mmap(NULL, sizeof(double) * WORK_PARTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                            0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return skip_rest("sanitizers need more address space than the limits allow");
#endif
    if (mkdtemp(folder) == NULL || chmod(folder, 0777) != 0)
        return skip_rest("no folder for the test's files");
    group("without limits");
    IN_CHILD("CTRT_DEVICE=cpu") {
        expect(expected);
    }
    CHILD_END;
    group("few processes");
    for (rlim_t processes = 1; processes <= 10; processes++)
        limited_processes(expected, processes);
    static const char *const names[] = { "few addresses, from the start", "few addresses, after a first pass" };
    for (int warm = 0; warm < 2; warm++) {
        group("%s", names[warm]);
        for (uint64_t more = 1; more <= (uint64_t)300 << 20; more = more * 5 / 4 + ((uint64_t)1 << 18))
            limited_addresses(expected, more, warm, NULL);
    }
    static const char *const stacks[] = {
        "OMP_STACKSIZE=64M", "OMP_STACKSIZE= 65536 K ", "OMP_STACKSIZE=100000", "GOMP_STACKSIZE=1g",
    };
    for (size_t i = 0; i < sizeof stacks / sizeof stacks[0]; i++) {
        group("few addresses, %s", stacks[i]);
        limited_addresses(expected, (uint64_t)180 << 20, false, stacks[i]);
    }
    work_clean(folder);
    rmdir(folder);
    return done();
}
