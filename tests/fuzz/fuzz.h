/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: what a fuzz target offers. Each file fuzz-NAME.c is one target, usable with libFuzzer as it is:
 *
 *     clang -g -fsanitize=fuzzer,address -Iinclude -Icore -I. tests/fuzz/fuzz-visible.c core/...
 *
 * and with driver.c, which `make check` runs for a second from the target's own examples. */
#ifndef CTRT_TESTS_FUZZ_H
#define CTRT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One input; returns 0. A broken promise ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Examples to start from, and words worth inserting; both end with NULL. */
extern const char *const fuzz_examples[];
extern const char *const fuzz_words[];

/* A promise of the code under test. */
#define PROMISE(condition)                                                      \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

/* The input as a string in `text`; false when it is longer than fits. */
static inline int fuzz_text(char *text, size_t bytes, const uint8_t *data, size_t size)
{
    if (size >= bytes)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    return 1;
}

#endif
