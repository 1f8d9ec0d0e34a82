/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: the main function of test programs (run.h).
 *
 *     PROGRAM NAME [ARGUMENT...]       runs that test
 *     PROGRAM --has NAME               exits with 0 if the program has that test
 *     PROGRAM                          lists the tests
 *
 * A program with one test passes all arguments to the test. The test name may also be argv[0], because tests execute
 * /proc/self/exe under another name. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static struct test_entry *entries;

/* malloc returns NULL on failure also under AddressSanitizer, because tests check failed allocations of any size. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

void test_register(struct test_entry *entry)
{
    entry->next = entries;
    entries = entry;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static struct test_entry *find(const char *name)
{
    const size_t length = strlen(name);
    for (struct test_entry *entry = entries; entry != NULL; entry = entry->next) {
        const char *file = base_name(entry->file);
        if (strncmp(file, name, length) == 0 && strcmp(file + length, ".c") == 0)
            return entry;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--has") == 0)
        _exit(find(argv[2]) == NULL);
    struct test_entry *entry = argc > 1 ? find(argv[1]) : NULL;
    if (entry != NULL)
        return entry->run(argc - 1, argv + 1);
    entry = entries != NULL && entries->next == NULL ? entries : find(base_name(argv[0]));
    if (entry != NULL)
        return entry->run(argc, argv);
    if (argc > 1)
        fprintf(stderr, "%s has no test %s; it has:\n", argv[0], argv[1]);
    for (entry = entries; entry != NULL; entry = entry->next) {
        const char *file = base_name(entry->file);
        fprintf(stderr, "%.*s\n", (int)(strlen(file) - 2), file);
    }
    return 2;
}
