/* SPDX-License-Identifier: Apache-2.0 */
/* A small TAP test library: checks in groups. Each group prints one TAP line and its first 20 failed checks.
 *
 *     group("slice");
 *     CHECK(n == 3, "slice %s gives %d elements, expected 3", text, n);
 *     CHECK_OK(ctrt_slice(&y, x, 0, 1, 4, 1));
 *     CHECK_FAILS(ctrt_slice(&y, x, 9, 1, 4, 1), CTRT_ERR_SHAPE, "dimension 9");
 *     CHECK_EQ(n, 3);                  "file.c:9: n is 4, expected 3"; for all numbers, but not pointers
 *     CHECK_STR(name, "cpu");          for strings; CHECK_HAS(text, "part") for a part of one
 *     CHECK_NEAR(loss, 0.5, 1e-6);     for floating point: |loss - 0.5| <= 1e-6
 *     CHECK_TRUE(a < b);               "file.c:9: false: a < b"
 *     EACH(c, cases) CHECK_EQ(half(c->in), c->out);    for the rows of a table; failed checks print the row, from 1
 *     REQUIRE(file != NULL, "%s cannot be opened", path);         a failure ends the program
 *     return done();
 *
 * Instead of calling functions, a file may define TEST(slices, "slices of lists") { ... }: run_tests() runs the TESTs
 * of the file in their order, each in a group of that name (NULL: the function opens groups), and returns done().
 * TESTS_MAIN is the TEST_MAIN of a file that has only TESTs.
 *
 * A group ends where the next one begins. A group without any check fails. To skip a group, call group(...) and then
 * skip_group(reason). skip_rest(reason) reports the rest of the program as one skipped group, prints the plan and
 * returns the exit status. */
#ifndef CTRT_TESTS_TAP_H
#define CTRT_TESTS_TAP_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/base.h"
#include "run.h"

enum {
    DTYPE_END = 1                       /* one more than the largest dtype */
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) + 1
#include "ctrt/dtype.def"
#undef DTYPE
};

/* Sanitizers make programs 3 to 15 times slower. What they find does not depend on many repetitions, so loops over
 * random cases run fewer of them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif
#define FEWER_SANITIZED(n) (SANITIZED ? ((n) + 7) / 8 : (n))
/* For loops over cases that run the same code with other numbers: with sanitizers, only each n-th row of the table. */
#define LEFT_OUT(row, table, n) (SANITIZED && ((row) - (table)) % (n) != 0)

static struct {
    char name[160];
    bool open;
    int groups, failed_groups;
    _Atomic int row;                            /* of the EACH that runs, from 1; failed checks print it */
    const char *skipped;                /* reason why the open group is skipped, or NULL */
    atomic_long checks, failed;         /* atomic because threads of a test may also check */
} tap_state;

static inline void tap_close(void)
{
    if (!tap_state.open)
        return;
    /* A group without a check fails, because it tested nothing. */
    bool fine = tap_state.failed == 0 && (tap_state.checks > 0 || tap_state.skipped != NULL);
    if (fine && tap_state.skipped != NULL)
        printf("ok %d - %s # SKIP %s\n", ++tap_state.groups, tap_state.name, tap_state.skipped);
    else
        printf("%s %d - %s (%ld checks%s)\n", fine ? "ok" : "not ok", ++tap_state.groups, tap_state.name,
               tap_state.checks, tap_state.failed ? ", some failed" : "");
    fflush(stdout);
    tap_state.failed_groups += !fine;
    tap_state.open = false;
}

__attribute__((format(printf, 1, 2)))
static inline void group(const char *format, ...)
{
    tap_close();
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tap_state.name, sizeof tap_state.name, format, arguments);
    va_end(arguments);
    tap_state.open = true;
    tap_state.checks = tap_state.failed = tap_state.row = 0;
    tap_state.skipped = NULL;
}

static inline void skip_group(const char *reason)
{
    tap_state.skipped = reason;
}

__attribute__((format(printf, 4, 5)))
static inline bool tap_check(bool fine, const char *file, int line, const char *format, ...)
{
    tap_state.checks++;
    if (fine)
        return true;
    if (++tap_state.failed <= 20) {
        char text[4096];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        for (char *c = text; (c = strchr(c, '\n')); )
            *c = '~';
        char row[24] = "";
        if (tap_state.row > 0)
            snprintf(row, sizeof row, "row %d: ", tap_state.row);
        printf("# %s:%d: %s%s\n", file, line, row, text);
    }
    return false;
}

/* Returns how many times `text` contains `part`. */
static inline int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

#define CHECK(condition, ...) tap_check((condition), __FILE__, __LINE__, __VA_ARGS__)

static inline bool tap_eq(long long got, long long want, const char *file, int line, const char *expression)
{
    return tap_check(got == want, file, line, "%s is %lld, expected %lld", expression, got, want);
}

static inline bool tap_str(const char *got, const char *want, const char *file, int line, const char *expression)
{
    return tap_check(got != NULL && strcmp(got, want) == 0, file, line, "%s is \"%s\", expected \"%s\"", expression,
                     got != NULL ? got : "(NULL)", want);
}

static inline bool tap_has(const char *got, const char *part, const char *file, int line, const char *expression)
{
    return tap_check(got != NULL && strstr(got, part) != NULL, file, line, "%s lacks \"%s\": %s", expression, part,
                     got != NULL ? got : "(NULL)");
}

static inline bool tap_near(double got, double want, double tolerance, const char *file, int line,
                            const char *expression)
{
    const double off = got > want ? got - want : want - got;
    return tap_check(off <= tolerance || got == want, file, line, "%s is %.17g, expected %.17g", expression, got, want);
}

#define TAP_SAME(got, want)               tap_near((double)(got), (double)(want), 0, __FILE__, __LINE__, #got)
#define CHECK_EQ(got, want)                                                                                   \
    _Generic((got) + (want), float: TAP_SAME(got, want), double: TAP_SAME(got, want),                         \
             default: tap_eq((long long)(got), (long long)(want), __FILE__, __LINE__, #got))
#define CHECK_STR(got, want)              tap_str((got), (want), __FILE__, __LINE__, #got)
#define CHECK_HAS(got, part)              tap_has((got), (part), __FILE__, __LINE__, #got)
#define CHECK_NEAR(got, want, tolerance)  tap_near((got), (want), (tolerance), __FILE__, __LINE__, #got)
#define CHECK_TRUE(condition)             CHECK(condition, "false: %s", #condition)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define EACH(c, table)                                                                               \
    for (__typeof__(&(table)[0]) c = (table);                                                        \
         (tap_state.row = c < (table) + sizeof(table) / sizeof *c ? (int)(c - (table)) + 1 : 0) > 0; c++)

static inline bool tap_ok(ctrt_status status, const char *file, int line, const char *expression)
{
    return tap_check(status == CTRT_OK, file, line, "%s: %s: %s", expression, ctrt_status_string(status),
                     ctrt_error_message());
}

#define CHECK_OK(expression) tap_ok((expression), __FILE__, __LINE__, #expression)

/* Checks that the call returned `wanted` and that the error message contains `words` (NULL: any message). */
static inline bool tap_fails(ctrt_status status, ctrt_status wanted, const char *words, const char *file, int line,
                             const char *expression)
{
    if (!tap_check(status == wanted, file, line, "%s: gave \"%s\", expected \"%s\"; message: %s", expression,
                   ctrt_status_string(status), ctrt_status_string(wanted), ctrt_error_message()))
        return false;
    return tap_check(words == NULL || strstr(ctrt_error_message(), words) != NULL, file, line,
                     "%s: the message lacks \"%s\": %s", expression, words ? words : "", ctrt_error_message());
}

#define CHECK_FAILS(expression, status, words) \
    tap_fails((expression), (status), (words), __FILE__, __LINE__, #expression)

static inline int done(void)
{
    tap_close();
    printf("1..%d\n", tap_state.groups);
    return tap_state.failed_groups > 0 || tap_state.groups == 0;
}

static struct { void (*run)(void); const char *name; } tap_tests[64];
static size_t tap_test_count;

#define TEST(function, title)                                                       \
    static void function(void);                                                     \
    __attribute__((constructor)) static void function##_register(void)              \
    {                                                                               \
        if (tap_test_count == sizeof tap_tests / sizeof tap_tests[0])               \
            abort();                                                                \
        tap_tests[tap_test_count].name = title;                                     \
        tap_tests[tap_test_count++].run = function;                                 \
    }                                                                               \
    static void function(void)

/* Calls `after` at the end of each test. */
static inline int run_tests_and(void (*after)(void))
{
    for (size_t i = 0; i < tap_test_count; i++) {
        if (tap_tests[i].name != NULL)
            group("%s", tap_tests[i].name);
        tap_tests[i].run();
        if (after != NULL)
            after();
    }
    return done();
}

static inline int run_tests(void)
{
    return run_tests_and(NULL);
}

#define TESTS_MAIN TEST_MAIN { return run_tests(); }

/* FAIL and REQUIRE are for conditions that the rest of the test depends on: a failure ends the program. */
__attribute__((noreturn, unused))
static void tap_stop(void)
{
    done();
    printf("Bail out! stopped at the first failure\n");
    fflush(stdout);
    _Exit(1);
}

#define FAIL(...) (tap_check(false, __FILE__, __LINE__, __VA_ARGS__), tap_stop())
#define REQUIRE(condition, ...) ((condition) ? (void)tap_state.checks++ : FAIL(__VA_ARGS__))
#define REQUIRE_TRUE(condition)  REQUIRE(condition, "false: %s", #condition)
#define REQUIRE_EQ(got, want)    (CHECK_EQ(got, want) ? (void)0 : tap_stop())

__attribute__((unused))
static int skip_rest(const char *reason)
{
    tap_close();
    printf("ok %d - the rest # SKIP %s\n", ++tap_state.groups, reason);
    return done();
}

#endif
