/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/options.c: parses SOFTCUDA="devices=2,memory=256m,..." and CUDA_VISIBLE_DEVICES. README.md lists the
 * options. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULTS \
    { .devices = 2, .major = 9, .minor = 0, .version = 13000, .memory = (uint64_t)1 << 30, .pools = true }
struct options options = DEFAULTS;

/* "256m" or "1g" */
static bool size(const char *text, uint64_t *out)
{
    unsigned long long value = 0;
    char unit = '\0';
    RETURN_IF(sscanf(text, "%llu%c", &value, &unit) != 2 || value == 0 || (unit != 'm' && unit != 'g'), false);
    *out = value << (unit == 'm' ? 20 : 30);
    return true;
}

/* Sets *out to the index of the text in a list of words that ends with NULL. */
static bool word(const char *text, const char *const *words, int *out)
{
    for (*out = 0; words[*out] != NULL; ++*out)
        RETURN_IF(strcmp(words[*out], text) == 0, true);
    return false;
}

static bool option(const char *name, const char *value, struct options *o)
{
    static const char *const no_yes[] = { "no", "yes", NULL }, *const frees[] = { "waits", "strict", NULL },
                             *const orders[] = { "forward", "random", NULL },
                             *const streams[] = { "off", "error", "report", NULL };
    const struct { const char *name; const char *const *words; int *out; } choices[] = {
        { "pools", no_yes, &o->pools }, { "quiet", no_yes, &o->quiet }, { "free", frees, &o->strict_free },
        { "order", orders, &o->order }, { "streams", streams, &o->streams },
    };
    for (size_t i = 0; i < COUNT_OF(choices); i++)
        RETURN_IF(strcmp(name, choices[i].name) == 0, word(value, choices[i].words, choices[i].out));
    RETURN_IF(strcmp(name, "devices") == 0, sscanf(value, "%d", &o->devices) == 1 && o->devices <= DEVICES);
    RETURN_IF(strcmp(name, "version") == 0, sscanf(value, "%d", &o->version) == 1);
    RETURN_IF(strcmp(name, "memory") == 0, size(value, &o->memory));
    RETURN_IF(strcmp(name, "cc") == 0, sscanf(value, "%d.%d", &o->major, &o->minor) == 2);
    return strcmp(name, "late") == 0 && sscanf(value, "%uus", &o->late_us) == 1;
}

/* Entries are separated by commas or semicolons. Called by cuInit, and when the library is loaded, because some options
 * are used before cuInit. */
__attribute__((constructor)) bool options_read(void)
{
    const char *text = getenv("SOFTCUDA");
    char *copy = strdup(text != NULL ? text : ""), *rest = copy, *item;
    bool fine = copy != NULL;
    options = (struct options)DEFAULTS;
    while (fine && (item = strsep(&rest, ",;")) != NULL) {
        char *value = strchr(item, '=');
        if (*item == '\0')
            continue;
        if (value != NULL)
            *value++ = '\0';
        fine = value != NULL && option(item, value, &options);
        if (!fine)
            fprintf(stderr, "softcuda: SOFTCUDA=%s: cannot understand '%s'\n", text, item);
    }
    free(copy);
    return fine;
}

/* Returns the hardware device whose UUID begins with the text; -1: none. */
static int by_uuid(const char *text)
{
    for (int i = 0; i < options.devices; i++) {
        char name[48];
        uuid_text(name, i);
        RETURN_IF(strncasecmp(name, text, strlen(text)) == 0, i);
    }
    return -1;
}

/* Entries after a wrong one are ignored, as by the CUDA driver. */
int options_visible(int visible[DEVICES])
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char *copy = text != NULL ? strdup(text) : NULL, *rest = copy, *item;
    int n = 0, which;
    for (; text == NULL && n < options.devices; n++)
        visible[n] = n;
    while (n < DEVICES && (item = strsep(&rest, ",")) != NULL) {
        which = strncmp(item, "GPU-", 4) == 0 ? by_uuid(item) : *item >= '0' && *item <= '9' ? atoi(item) : -1;
        if (which < 0 || which >= options.devices)
            break;
        visible[n++] = which;
    }
    free(copy);
    return n;
}
