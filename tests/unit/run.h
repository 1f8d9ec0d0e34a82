/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: the entry point of a test file. Several test files are linked into one program, which runs one of them by
 * its name:
 *
 *     TEST_MAIN
 *     {
 *         test_slice();
 *         return done();
 *     }
 *
 * `./run-public test-view ARGUMENT...` runs test-view.c with argc and argv as main() would get them. A test file has
 * at most one TEST_MAIN. */
#ifndef CTRT_TESTS_RUN_H
#define CTRT_TESTS_RUN_H

struct test_entry {
    const char *file;                           /* __FILE__; the test's name is its base name without ".c" */
    int (*run)(int argc, char **argv);
    struct test_entry *next;
};

void test_register(struct test_entry *entry);

#define TEST_MAIN                                                                                           \
    static int test_main(int argc, char **argv);                                                            \
    __attribute__((constructor)) static void test_constructor(void)                                         \
    {                                                                                                       \
        static struct test_entry entry = { __FILE__, test_main, NULL };                                     \
        test_register(&entry);                                                                              \
    }                                                                                                       \
    static int test_main(__attribute__((unused)) int argc, __attribute__((unused)) char **argv)

#endif
