/* SPDX-License-Identifier: Apache-2.0 */
/* device/visible.c: which devices are visible, and in which order.
 *
 * The rules for plain lists are those of NVIDIA's driver for CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, "CUDA
 * Environment Variables"; details as PyTorch's tests of its device count record them). */
#include "device/visible.h"

#include <ctype.h>
#include <limits.h>

#include "base/base.h"

#define LONGEST_ENTRY 128

enum { NOTHING = -1 };

/* Returns the number that `entry` begins with, or NOTHING: "+3" 3, "-0" 0, "2ampere" 2, "-1" and "one" NOTHING. */
static int leading_number(const char *entry)
{
    bool negative = entry[0] == '-';
    if (entry[0] == '+' || entry[0] == '-')
        entry++;
    if (!isdigit((unsigned char)entry[0]))
        return NOTHING;
    long value = 0;
    for (; isdigit((unsigned char)*entry); entry++)
        value = MIN(value * 10 + (*entry - '0'), INT_MAX);
    return negative && value > 0 ? NOTHING : (int)value;
}

/* Returns the only device whose UUID begins with `entry`, or NOTHING if there is none or more than one. */
static int by_uuid(const char *entry, int count, const char *const *uuids)
{
    int found = NOTHING;
    for (int i = 0; i < count && uuids != NULL; i++) {
        if (uuids[i] == NULL || strncmp(uuids[i], entry, strlen(entry)) != 0)
            continue;
        if (found != NOTHING)
            return NOTHING;
        found = i;
    }
    return found;
}

/* A UUID begins with letters and a dash: "GPU-", "MIG-". */
static bool looks_like_uuid(const char *entry)
{
    size_t letters = 0;
    while (isalpha((unsigned char)entry[letters]))
        letters++;
    return letters > 0 && entry[letters] == '-';
}

/* Copies the next entry of *rest without surrounding white space; returns false at the end. An entry that is too long
 * for the buffer cannot be valid and is truncated. */
static bool next_entry(char *entry, const char **rest)
{
    const char *from = *rest;
    if (from == NULL)
        return false;
    size_t length = strcspn(from, ",");
    *rest = from[length] == ',' ? from + length + 1 : NULL;
    while (length > 0 && isspace((unsigned char)from[0]))
        from++, length--;
    while (length > 0 && isspace((unsigned char)from[length - 1]))
        length--;
    length = MIN(length, LONGEST_ENTRY - 1);
    memcpy(entry, from, length);
    entry[length] = '\0';
    return true;
}

static bool contains(const int *ids, int used, int id)
{
    for (int i = 0; i < used; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static int all(int *ids, int max, int count)
{
    int used = 0;
    while (used < count && used < max)
        ids[used] = used, used++;
    return used;
}

/* Returns the number of entries before the first one that is not less than `count`. Called after the whole list was
 * searched for duplicates. */
static int clip(const int *ids, int used, int count)
{
    for (int i = 0; i < used; i++)
        if (count >= 0 && ids[i] >= count)
            return i;
    return used;
}

int visible_parse(int *ids, int max, const char *text, int count, const char *const *uuids)
{
    char entry[LONGEST_ENTRY];
    int used = 0;
    if (text == NULL)
        return all(ids, max, count);
    const char *rest = text;
    bool first = true, uuid_list = false;
    while (next_entry(entry, &rest)) {
        if (first)
            uuid_list = looks_like_uuid(entry);
        first = false;
        int id = !uuid_list               ? leading_number(entry)
                 : looks_like_uuid(entry) ? by_uuid(entry, count, uuids)
                                          : NOTHING;
        if (id == NOTHING)
            break;
        if (contains(ids, used, id))
            return 0;
        if (used < max)
            ids[used++] = id;
    }
    return clip(ids, used, count);
}

/* Parses one entry of a list with types. *id: the index among the devices of `type`, or NOTHING if the entry names no
 * device (which ends the list). *every: the entry is the type alone. *other: the entry is for another type. */
static ctrt_status typed_entry(int *id, bool *other, bool *every, const char *entry, const char *type,
                               int count, const char *const *uuids, const char *text)
{
    *other = *every = false;
    if (looks_like_uuid(entry) && strchr(entry, ':') == NULL && strcmp(entry, type) != 0) {
        *id = by_uuid(entry, count, uuids);
        *other = *id == NOTHING;            /* another type may have that UUID */
        return CTRT_OK;
    }
    size_t length = strcspn(entry, ":");
    *other = length != strlen(type) || strncmp(entry, type, length) != 0;
    if (entry[length] == '\0') {
        *every = !*other;
        if (length > 0 && islower((unsigned char)entry[0]))
            return CTRT_OK;
    } else {
        const char *digits = entry + length + 1;
        size_t digit_count = strspn(digits, "0123456789");
        if (length > 0 && digit_count > 0 && digits[digit_count] == '\0') {
            *id = leading_number(digits);
            return CTRT_OK;
        }
    }
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "CTRT_VISIBLE_DEVICES=%s: \"%s\" is neither TYPE:INDEX nor TYPE nor a UUID", text,
                     entry);
}

static ctrt_status typed_list(int *ids, int max, int *selected, const char *text, const char *type, int count,
                              const char *const *uuids)
{
    char entry[LONGEST_ENTRY];
    int used = 0;
    bool ended = false, twice = false;
    const char *rest = text;
    while (next_entry(entry, &rest)) {
        int id = NOTHING;
        bool other, every;
        if (entry[0] == '\0')
            continue;
        CTRT_TRY(typed_entry(&id, &other, &every, entry, type, count, uuids, text));
        if (other)
            continue;
        if (every) {
            used = all(ids, max, count);
            continue;
        }
        twice = twice || contains(ids, used, id);
        ended = ended || id == NOTHING || id >= count;
        if (!ended && used < max)
            ids[used++] = id;
    }
    *selected = twice ? 0 : used;
    return CTRT_OK;
}

ctrt_status visible_select(int *ids, int max, int *selected, const char *text, const char *type, int count,
                           const char *const *uuids)
{
    /* A list is plain if its first entry is a number or a UUID and no entry has a type. */
    bool typed = text != NULL && strchr(text, ':') != NULL;
    if (text != NULL && !typed) {
        char entry[LONGEST_ENTRY];
        const char *rest = text;
        typed = next_entry(entry, &rest) && islower((unsigned char)entry[0]);
    }
    if (typed)
        return typed_list(ids, max, selected, text, type, count, uuids);
    *selected = visible_parse(ids, max, text, count, uuids);
    return CTRT_OK;
}
