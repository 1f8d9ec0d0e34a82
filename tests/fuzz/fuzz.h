/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: the interface of a fuzz target. Each file fuzz-NAME.c is one target. It works with libFuzzer unchanged:
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

/* Runs one input; returns 0. A failed PROMISE aborts the process. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Initial inputs, and words that mutations insert; both end with NULL. */
extern const char *const fuzz_examples[];
extern const char *const fuzz_words[];

/* Aborts unless the code under test keeps this part of its contract. */
#define PROMISE(condition)                                                      \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

/* Copies the input into `text` as a string; returns false if it does not fit. */
static inline int fuzz_text(char *text, size_t bytes, const uint8_t *data, size_t size)
{
    if (size >= bytes)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    return 1;
}

#endif
