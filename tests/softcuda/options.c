/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/options.c: parses SOFTCUDA="devices=2,memory=256m,..." and CUDA_VISIBLE_DEVICES. README.md lists the
 * options. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULTS                                                                                                 \
    { .devices = 2, .multiprocessors = 4, .major = 9, .minor = 0, .version = 13000, .memory = (uint64_t)1 << 30, \
      .pools = true }
struct options options = DEFAULTS;

static bool number(const char *text, long least, long most, int *out)
{
    char *end;
    const long value = strtol(text, &end, 10);
    RETURN_IF(end == text || *end != '\0' || value < least || value > most, false);
    *out = (int)value;
    return true;
}

static bool size(const char *text, uint64_t *out)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    const char *const units = "kmgt", *unit = *end != '\0' ? strchr(units, tolower((unsigned char)*end)) : NULL;
    RETURN_IF(end == text || (unit == NULL && *end != '\0') || (unit != NULL && end[1] != '\0'), false);
    for (const char *u = units; unit != NULL && u <= unit; u++)
        value *= 1024;
    *out = value;
    return value > 0;
}

/* Sets *out to the index of the text in a list of words that ends with NULL. */
static bool word(const char *text, const char *const *words, int *out)
{
    for (*out = 0; words[*out] != NULL; ++*out)
        RETURN_IF(strcmp(words[*out], text) == 0, true);
    return false;
}

/* "NAME@N:ERROR"; a trailing "+" also selects all later calls. */
static bool fault(const char *text)
{
    char name[64], plus = '\0';
    int call, error;
    return sscanf(text, "%63[^@]@%d:%d%c", name, &call, &error, &plus) >= 3 && call >= 1 && error > 0
           && (plus == '\0' || plus == '+') && fault_add(name, call, error, plus == '+', false);
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
    const struct { const char *name; int least, most, *out; } numbers[] = {
        { "devices", 0, DEVICES, &o->devices }, { "sms", 1, 1024, &o->multiprocessors },
        { "version", 1000, 99990, &o->version },
    };
    for (size_t i = 0; i < COUNT_OF(choices); i++)
        RETURN_IF(strcmp(name, choices[i].name) == 0, word(value, choices[i].words, choices[i].out));
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        RETURN_IF(strcmp(name, numbers[i].name) == 0, number(value, numbers[i].least, numbers[i].most, numbers[i].out));
    RETURN_IF(strcmp(name, "memory") == 0, size(value, &o->memory));
    RETURN_IF(strcmp(name, "cc") == 0, sscanf(value, "%d.%d", &o->major, &o->minor) == 2);
    RETURN_IF(strcmp(name, "late") == 0, sscanf(value, "%uus", &o->late_us) == 1);
    return strcmp(name, "fail") == 0 && fault(value);
}

/* Entries are separated by commas or semicolons and may be surrounded by blanks. */
bool options_read(const char *text, char *error, size_t error_bytes)
{
    options = (struct options)DEFAULTS;
    fault_clear(false);
    char *copy = strdup(text != NULL ? text : ""), *rest = copy, *item;
    bool fine = copy != NULL;
    while (fine && (item = strsep(&rest, ",;")) != NULL) {
        item += strspn(item, " \t");
        for (size_t n = strlen(item); n > 0 && isspace((unsigned char)item[n - 1]); n--)
            item[n - 1] = '\0';
        if (*item == '\0')
            continue;
        char *value = strchr(item, '=');
        if (value != NULL)
            *value++ = '\0';
        fine = value != NULL && option(item, value, &options);
        if (!fine)
            snprintf(error, error_bytes, "cannot understand '%s=%s'", item, value != NULL ? value : "");
    }
    free(copy);
    return fine;
}

/* ---- CUDA_VISIBLE_DEVICES ---- */

/* Parses a number as the CUDA driver does: blanks, a sign, digits; characters after the digits are ignored. -1: no
 * number. */
static long ordinal(const char *text)
{
    char *end;
    const long value = strtol(text, &end, 10);
    return end == text ? -1 : value;
}

static int by_uuid(const char *text, int hardware)
{
    int found = -1;
    for (int i = 0; i < hardware; i++) {
        char name[48];
        uuid_text(name, i);
        if (strncasecmp(name, text, strlen(text)) == 0) {
            if (found >= 0)
                return -1;                      /* ambiguous prefix */
            found = i;
        }
    }
    return found;
}

int options_visible(const char *text, int hardware, int *visible)
{
    int n = 0;
    if (text == NULL) {
        for (; n < hardware; n++)
            visible[n] = n;
        return n;
    }
    char *copy = strdup(text), *rest = copy, *item;
    while (copy != NULL && (item = strsep(&rest, ",")) != NULL) {
        item += strspn(item, " \t");
        item[strcspn(item, " \t")] = '\0';
        /* Device instances (MIG-...) do not exist here. */
        const long which = strncmp(item, "GPU-", 4) == 0 ? by_uuid(item, hardware) : ordinal(item);
        if (which < 0 || which >= hardware)
            break;                              /* later entries are ignored */
        for (int i = 0; i < n; i++)
            if (visible[i] == which) {
                free(copy);
                return 0;                       /* a device that is listed twice hides all devices */
            }
        visible[n++] = (int)which;
    }
    free(copy);
    return n;
}
