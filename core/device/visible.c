/* SPDX-License-Identifier: Apache-2.0 */
/* device/visible.c: which devices the user wants to be seen, and in which order.
 *
 * The rules for plain lists are those of NVIDIA's driver for CUDA_VISIBLE_DEVICES (CUDA C++ Programming
 * Guide, "CUDA Environment Variables"; details as PyTorch's tests of its device count record them). */
#include "device/visible.h"

#include <ctype.h>
#include <limits.h>

#include "base/base.h"

#define LONGEST_ENTRY 128

enum { NOTHING = -1 };

/* The number that `entry` begins with, or NOTHING: "+3" 3, "-0" 0, "2ampere" 2, "-1" and "one" NOTHING. */
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

/* The one device whose UUID begins with `entry`, or NOTHING. */
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

/* Copies the next entry of *rest, without blanks around it; false at the end. A longer one than fits cannot
 * be right and is cut. */
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

/* What is beyond the devices there are ends the list, but only after duplicates were looked for in all of it.
 */
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

/* One entry of a list with types: the index it means among `type`'s devices; NOTHING when it names no device
 * (and ends the list); `other` when it is another type's. */
static ctrt_status typed_entry(int *id, bool *other, bool *every, const char *entry, const char *type,
                               int count, const char *const *uuids, const char *text)
{
    *other = *every = false;
    if (looks_like_uuid(entry) && strchr(entry, ':') == NULL && strcmp(entry, type) != 0) {
        *id = by_uuid(entry, count, uuids);
        *other = *id == NOTHING;            /* it may be another type's */
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
    /* A list is plain when its first entry is a number or a UUID and no entry has a type. */
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
