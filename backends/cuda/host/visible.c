/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/visible.c: computes without the driver which devices the driver will show for a value of
 * CUDA_VISIBLE_DEVICES.
 *
 * The rules are NVIDIA's (CUDA C++ Programming Guide, "CUDA Environment Variables"); details follow PyTorch's tests of
 * its device count. Entries are read from left to right. The first entry that does not name a device ends the list. A
 * device that is named twice makes the whole list empty. The first entry determines whether the list has numbers or
 * UUIDs. */
#include "discovery.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#define NONE (-1)

struct entry {
    char text[128];                             /* without surrounding blanks; truncated if longer than any name */
};

/* Reads the next entry of the list. Returns false at the end of the list. */
static bool next(struct entry *entry, const char **rest)
{
    const char *from = *rest;
    if (from == NULL)
        return false;
    const char *comma = strchr(from, ',');
    const char *to = comma != NULL ? comma : from + strlen(from);
    *rest = comma != NULL ? comma + 1 : NULL;
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    const size_t length = (size_t)(to - from) < sizeof entry->text ? (size_t)(to - from) : sizeof entry->text - 1;
    memcpy(entry->text, from, length);
    entry->text[length] = '\0';
    return true;
}

/* Returns true if the text begins with letters and a dash: "GPU-8932f937", "MIG-4a". */
static bool is_uuid(const char *text)
{
    const char *letters = text;
    while (isalpha((unsigned char)*text))
        text++;
    return text > letters && *text == '-';
}

/* Parses the number at the beginning of the text, like strtol but without leading blanks. Returns NONE for negative
 * numbers. */
static int number(const char *text)
{
    const bool minus = text[0] == '-';
    long value = 0;
    if (minus || text[0] == '+')
        text++;
    if (!isdigit((unsigned char)text[0]))
        return NONE;
    for (; isdigit((unsigned char)*text); text++)
        value = value > INT_MAX / 10 ? INT_MAX : value * 10 + (*text - '0');
    if (value > INT_MAX)
        value = INT_MAX;
    return minus && value > 0 ? NONE : (int)value;
}

/* Returns the position of the only GPU whose UUID begins with `prefix`; NONE if there is none or more than one. */
static int with_uuid(const char *prefix, const struct cuda_gpu *gpus, int count)
{
    int found = NONE;
    for (int i = 0; i < count; i++) {
        if (strncmp(gpus[i].facts.uuid, prefix, strlen(prefix)) != 0)
            continue;
        if (found != NONE)
            return NONE;
        found = i;
    }
    return found;
}

enum cuda_list_kind cuda_visible_kind(const char *text)
{
    struct entry first;
    const char *rest = text;
    if (text == NULL)
        return CUDA_LIST_ALL;
    for (const char *at = text; (at = strstr(at, "MIG-")) != NULL; at++)
        if (at == text || at[-1] == ',' || isspace((unsigned char)at[-1]))
            return CUDA_LIST_MIG;
    return next(&first, &rest) && is_uuid(first.text) ? CUDA_LIST_UUIDS : CUDA_LIST_NUMBERS;
}

int cuda_visible(int *ids, int max, const char *text, const struct cuda_gpu *gpus, int count, bool *twice)
{
    const bool uuids = cuda_visible_kind(text) == CUDA_LIST_UUIDS;
    const char *rest = text;
    struct entry entry;
    int used = 0, clipped = 0;
    *twice = false;
    if (text == NULL) {
        while (used < count && used < max)
            ids[used] = used, used++;
        return used;
    }
    while (next(&entry, &rest)) {
        const int id = !uuids ? number(entry.text) : is_uuid(entry.text) ? with_uuid(entry.text, gpus, count) : NONE;
        if (id == NONE)
            break;
        for (int i = 0; i < used; i++)
            *twice = *twice || ids[i] == id;
        if (*twice)
            return 0;
        if (used < max)
            ids[used++] = id;
    }
    /* A number beyond the last device also ends the list, but the whole list has been searched for duplicates
     * before. */
    while (clipped < used && ids[clipped] < count)
        clipped++;
    return clipped;
}
