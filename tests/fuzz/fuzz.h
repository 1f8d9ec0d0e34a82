/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: the interface of a fuzz target. Each file fuzz-NAME.c is one target. `make check` runs driver.c with it for a
 * second, from the target's own examples. For libFuzzer, LLVMFuzzerTestOneInput has to call fuzz_one. */
#ifndef CTRT_TESTS_FUZZ_H
#define CTRT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* A target: runs one input and returns 0. A failed PROMISE aborts the process. */
typedef int fuzz_target(const uint8_t *data, size_t size);

/* driver.c. `path`: a file with an input, or NULL. `examples`: initial inputs; `words`: words that mutations insert;
 * both end with NULL. */
int fuzz_run(const char *path, fuzz_target *target, const char *const *examples, const char *const *words);

/* At the end of a target's file, which defines fuzz_one, fuzz_examples and fuzz_words. */
#define FUZZ_MAIN TEST_MAIN { return fuzz_run(argc > 1 ? argv[1] : NULL, fuzz_one, fuzz_examples, fuzz_words); }

/* The same for a target that defines fuzz_text and gets the input as a string. */
#define FUZZ_TEXT_MAIN                                                          \
    static int fuzz_one(const uint8_t *data, size_t size)                       \
    {                                                                           \
        char text[600] = "";                                                    \
        if (size < sizeof text)                                                 \
            fuzz_text(memcpy(text, data, size));                                \
        return 0;                                                               \
    }                                                                           \
    FUZZ_MAIN

/* Aborts unless the code under test keeps this part of its contract. */
#define PROMISE(condition)                                                      \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

#endif
