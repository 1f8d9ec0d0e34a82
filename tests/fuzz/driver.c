/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c: runs a fuzz target without libFuzzer: first the files named as arguments, then the target's examples, then
 * mutations of them for CTRT_FUZZ_SECONDS (1). The sequence is the same in every run. If the process crashes, it prints
 * its last input. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define LONGEST 512

static uint8_t input[LONGEST];
static size_t length;
static fuzz_target *target;
static const char *const *words;

static void tell(int signal_number)
{
    static const char digits[] = "0123456789abcdef";
    char line[2 * LONGEST + 32];
    size_t used = 0;
    memcpy(line, "# the input was ", 16);
    used = 16;
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

static uint32_t state = 12345;

static uint32_t dice(uint32_t sides)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % sides;
}

static void try_it(void)
{
    PROMISE(target(input, length) == 0);
}

static size_t count_of(const char *const *list)
{
    size_t count = 0;
    while (list[count] != NULL)
        count++;
    return count;
}

/* Inserts `bytes` bytes at `at`, or removes them if negative. */
static void shift(size_t at, long bytes)
{
    if (bytes > 0 && length + (size_t)bytes <= LONGEST) {
        memmove(input + at + bytes, input + at, length - at);
        length += (size_t)bytes;
    } else if (bytes < 0 && at + (size_t)-bytes <= length) {
        memmove(input + at, input + at - bytes, length - at - (size_t)-bytes);
        length -= (size_t)-bytes;
    }
}

static void mutate(void)
{
    static const uint8_t odd[] = { 0,   1,   0x7f, 0x80, 0xff, ' ', ',', ':',
                                   '-', '+', '=',  '0',  '9',  'a', 'z', '\n' };
    size_t at = length > 0 ? dice((uint32_t)length + 1) : 0;
    size_t word_count = count_of(words);
    switch (dice(6)) {
    case 0:
        if (at < length)
            input[at] = odd[dice(sizeof odd)];
        break;
    case 1:
        if (at < length)
            input[at] ^= (uint8_t)(1u << dice(8));
        break;
    case 2:
        shift(at, -(long)(1 + dice(4)));
        break;
    case 3: {
        size_t before = length;
        shift(at, 1);
        if (length > before)
            input[at] = odd[dice(sizeof odd)];
        break;
    }
    default: {
        const char *word = word_count > 0 ? words[dice((uint32_t)word_count)] : "";
        size_t before = length;
        shift(at, (long)strlen(word));
        if (length > before)
            memcpy(input + at, word, strlen(word));
    }
    }
}

static void load(const char *text)
{
    length = strlen(text) < LONGEST ? strlen(text) : LONGEST;
    memcpy(input, text, length);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int fuzz_run(int argc, char **argv, fuzz_target *one, const char *const *examples, const char *const *inserted)
{
    target = one, words = inserted;
    const char *limit = getenv("CTRT_FUZZ_SECONDS");
    double end = seconds() + (limit != NULL ? atof(limit) : 1.0);
    size_t example_count = count_of(examples);
    long runs = 0;
    signal(SIGABRT, tell);
    signal(SIGSEGV, tell);
    signal(SIGFPE, tell);
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        length = fread(input, 1, LONGEST, file);
        fclose(file);
        try_it();
    }
    for (size_t i = 0; i < example_count; i++, runs++) {
        load(examples[i]);
        try_it();
    }
    while (seconds() < end)
        for (int i = 0; i < 50; i++, runs++) {
            load(examples[dice((uint32_t)example_count)]);
            for (uint32_t k = 1 + dice(6); k > 0; k--)
                mutate();
            try_it();
        }
    printf("1..1\nok 1 - %ld inputs\n", runs);
    return 0;
}
