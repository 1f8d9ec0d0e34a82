/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c: runs a fuzz target without libFuzzer: first the file named as argument, then the target's examples, then
 * mutations of them for CTRT_FUZZ_SECONDS (1). The sequence is the same in every run. If the process crashes, it prints
 * its last input. */
#include <signal.h>
#include <unistd.h>

#include "child.h"
#include "fuzz.h"

#define LONGEST 512

static uint8_t input[LONGEST];
static size_t length;

static void print_input(int signal_number)
{
    static const char digits[] = "0123456789abcdef";
    char line[2 * LONGEST + 32] = "# the input was ";
    size_t used = strlen(line);
    for (size_t i = 0; i < length; i++) {
        line[used++] = digits[input[i] >> 4];
        line[used++] = digits[input[i] & 15];
    }
    line[used++] = '\n';
    if (write(STDOUT_FILENO, line, used) < 0)
        _exit(99);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static uint32_t below(uint32_t limit)
{
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % limit;
}

static const char *any_of(const char *const *list)
{
    uint32_t count = 0;
    while (list[count] != NULL)
        count++;
    return list[below(count)];
}

/* Replaces `removed` bytes at `at` by `inserted` bytes of `text`, if the result is not too long. */
static void splice(size_t at, size_t removed, const char *text, size_t inserted)
{
    if (at + removed > length || length - removed + inserted > LONGEST)
        return;
    memmove(input + at + inserted, input + at + removed, length - at - removed);
    memcpy(input + at, text, inserted);
    length += inserted - removed;
}

static void mutate(const char *const *words)
{
    static const char odd[] = "\0\1\x7f\x80\xff ,:-+=09az\n";
    const size_t at = below((uint32_t)length + 1);
    const char *byte = &odd[below(sizeof odd - 1)], *word = any_of(words);
    const uint32_t kind = below(6);
    if (kind == 1 && at < length)
        input[at] ^= (uint8_t)(1u << below(8));
    else if (kind == 0 || kind == 3)
        splice(at, kind == 0, byte, 1);
    else if (kind == 2)
        splice(at, 1 + below(4), "", 0);
    else if (kind > 3)
        splice(at, 0, word, strlen(word));
}

static void set_input(const char *text)
{
    length = 0;
    splice(0, 0, text, strlen(text));
}

int fuzz_run(const char *path, fuzz_target *target, const char *const *examples, const char *const *words)
{
    const char *limit = getenv("CTRT_FUZZ_SECONDS");
    const double end = clock_seconds() + (limit != NULL ? atof(limit) : 1.0);
    long runs = 0;
    signal(SIGABRT, print_input);
    signal(SIGSEGV, print_input);
    signal(SIGFPE, print_input);
    if (path != NULL) {
        FILE *file = fopen(path, "rb");
        PROMISE(file != NULL);
        length = fread(input, 1, LONGEST, file);
        fclose(file);
        target(input, length);
    }
    for (; examples[runs] != NULL; runs++) {
        set_input(examples[runs]);
        target(input, length);
    }
    for (; clock_seconds() < end; runs++) {
        set_input(any_of(examples));
        for (uint32_t k = 1 + below(6); k > 0; k--)
            mutate(words);
        target(input, length);
    }
    printf("1..1\nok 1 - %ld inputs\n", runs);
    return 0;
}
