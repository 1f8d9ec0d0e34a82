/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/options.c: parses SOFTCUDA="devices=2,memory=256m,..." and CUDA_VISIBLE_DEVICES. README.md lists the
 * options. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct options standard = {
    .devices = 2, .multiprocessors = 4, .major = 9, .minor = 0, .version = 13000, .memory = (uint64_t)1 << 30,
    .peers = PEERS_ALL, .poison = true, .vmm = true, .pools = true, .driver = "580.65.06",
};
struct options options = {
    .devices = 2, .multiprocessors = 4, .major = 9, .minor = 0, .version = 13000, .memory = (uint64_t)1 << 30,
    .peers = PEERS_ALL, .poison = true, .vmm = true, .pools = true, .driver = "580.65.06",
};

static bool number(const char *text, long least, long most, int *out)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < least || value > most)
        return false;
    *out = (int)value;
    return true;
}

static bool size(const char *text, uint64_t *out)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    const char *const units = "kmgt", *unit = *end != '\0' ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (end == text || (unit == NULL && *end != '\0') || (unit != NULL && end[1] != '\0'))
        return false;
    for (const char *u = units; unit != NULL && u <= unit; u++)
        value *= 1024;
    *out = value;
    return value > 0;
}

static bool boolean(const char *text, bool *out)
{
    *out = strcmp(text, "yes") == 0;
    return *out || strcmp(text, "no") == 0;
}

static bool word(const char *text, const char *const *words, int *out)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

/* "NAME@N:ERROR"; a trailing "+" also selects all later calls. */
static bool fault(char *text)
{
    char *at = strrchr(text, '@'), *colon = at != NULL ? strchr(at, ':') : NULL;
    int error, call;
    if (colon == NULL)
        return false;
    *at = *colon = '\0';
    char *plus = colon + 1 + strlen(colon + 1);
    const bool on = plus > colon + 1 && plus[-1] == '+';
    if (on)
        plus[-1] = '\0';
    return number(at + 1, 1, INT_MAX, &call) && fault_error_number(colon + 1, &error)
           && fault_add(text, call, error, on);
}

/* "illegal@KERNEL:N": the Nth launch of KERNEL ("*": any) fails with that error. */
static bool kernel_fault(char *text)
{
    static const struct { const char *word; int error; } kinds[] = {
        { "illegal", CUDA_ERROR_ILLEGAL_ADDRESS }, { "misaligned", CUDA_ERROR_MISALIGNED_ADDRESS },
        { "assert", CUDA_ERROR_ASSERT },
        { "failed", CUDA_ERROR_LAUNCH_FAILED }, { "timeout", CUDA_ERROR_LAUNCH_TIMEOUT },
        { "ecc", CUDA_ERROR_ECC_UNCORRECTABLE }, { "lost", CUDA_ERROR_UNKNOWN },
    };
    char *at = strchr(text, '@'), *colon = at != NULL ? strrchr(at, ':') : NULL;
    int n;
    if (colon == NULL)
        return false;
    *at = *colon = '\0';
    int error = 0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].word, text) == 0)
            error = kinds[i].error;
    if ((error == 0 && !fault_error_number(text, &error)) || !number(colon + 1, 1, INT_MAX, &n))
        return false;
    fault_add_kernel(strcmp(at + 1, "*") == 0 ? NULL : at + 1, n - 1, error);
    return true;
}

static bool option(char *name, char *value, struct options *o)
{
    static const char *const peer_words[] = { "all", "ring", "none", NULL },
                             *const orders[] = { "forward", "reverse", "random", NULL },
                      *const races[] = { "error", "tell", "off", NULL },
                      *const streams[] = { "off", "error", "tell", NULL };
    int n = 0;
    if (strcmp(name, "devices") == 0)
        return number(value, 0, DEVICES, &o->devices);
    if (strcmp(name, "memory") == 0)
        return size(value, &o->memory);
    if (strcmp(name, "sms") == 0)
        return number(value, 1, 1024, &o->multiprocessors);
    if (strcmp(name, "cc") == 0)
        return sscanf(value, "%d.%d", &o->major, &o->minor) == 2;
    if (strcmp(name, "version") == 0)
        return number(value, 1000, 99990, &o->version);
    if (strcmp(name, "driver") == 0)
        return snprintf(o->driver, sizeof o->driver, "%s", value) < (int)sizeof o->driver;
    if (strcmp(name, "peers") == 0 && word(value, peer_words, &n)) {
        o->peers = (enum peers)n;
        return true;
    }
    if (strcmp(name, "link") == 0) {
        int *pair = o->lying[o->n_lying];
        return o->n_lying < (int)COUNT_OF(o->lying) && sscanf(value, "%d-%d", &pair[0], &pair[1]) == 2
               && ++o->n_lying > 0;
    }
    if (strcmp(name, "late") == 0)
        return sscanf(value, "%uus", &o->late_us) == 1;
    if (strcmp(name, "poison") == 0)
        return boolean(value, &o->poison);
    if (strcmp(name, "vmm") == 0)
        return boolean(value, &o->vmm);
    if (strcmp(name, "pools") == 0)
        return boolean(value, &o->pools);
    if (strcmp(name, "quiet") == 0)
        return boolean(value, &o->quiet);
    if (strcmp(name, "free") == 0) {
        o->strict_free = strcmp(value, "strict") == 0;
        return o->strict_free || strcmp(value, "waits") == 0;
    }
    if (strcmp(name, "order") == 0 && word(value, orders, &n)) {
        o->order = (enum runner_order)n;
        return true;
    }
    if (strcmp(name, "races") == 0 && word(value, races, &n)) {
        o->races = n;
        return true;
    }
    if (strcmp(name, "streams") == 0 && word(value, streams, &n)) {
        o->streams = n;
        return true;
    }
    if (strcmp(name, "kernels") == 0)
        return snprintf(o->kernels, sizeof o->kernels, "%s", value) < (int)sizeof o->kernels;
    if (strcmp(name, "fail") == 0)
        return fault(value);
    if (strcmp(name, "async") == 0)
        return kernel_fault(value);
    return false;
}

/* Entries are separated by commas or semicolons and may be surrounded by blanks. */
bool options_read(const char *text, char *error, size_t error_bytes)
{
    options = standard;
    fault_clear_options();
    char *copy = strdup(text != NULL ? text : ""), *rest = copy, *item;
    bool fine = copy != NULL;
    while (fine && (item = strsep(&rest, ",;")) != NULL) {
        item += strspn(item, " \t");
        for (size_t n = strlen(item); n > 0 && isspace((unsigned char)item[n - 1]); n--)
            item[n - 1] = '\0';
        if (*item == '\0')
            continue;
        char told[128];
        snprintf(told, sizeof told, "%s", item);
        char *value = strchr(item, '=');
        if (value != NULL)
            *value++ = '\0';
        fine = value != NULL && option(item, value, &options);
        if (!fine)
            snprintf(error, error_bytes, "cannot understand '%s'", told);
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
        char name[48] = "GPU-";
        uuid id;
        uuid_of(&id, i);
        for (int k = 0, at = 4; k < 16; k++) {
            at += sprintf(&name[at], "%02x", id.bytes[k]);
            if (k == 3 || k == 5 || k == 7 || k == 9)
                name[at++] = '-', name[at] = '\0';
        }
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
