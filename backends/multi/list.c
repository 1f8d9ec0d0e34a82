/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/list.c: reads which devices are the members of each logical device (CTRT_SIM_MULTI,
 * CTRT_NCCL_MULTI). */
#include "multi.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns whether the text has the form "sim:3". */
static bool names_device(const char *text)
{
    const size_t base = strlen(multi_kind.base);
    return strncmp(text, multi_kind.base, base) == 0 && text[base] == ':' && text[base + 1] != '\0'
           && text[base + 1 + strspn(text + base + 1, "0123456789")] == '\0';
}

static ctrt_status add_member(struct multi_list *list, const char *name, size_t length)
{
    const char *const param = multi_kind.members->name;
    struct multi_members *last = &list->devices[list->count - 1];
    if (last->count == MULTI_MEMBERS)
        return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s:%d has more than %d members", param, multi_kind.name,
                                list->count - 1, MULTI_MEMBERS);
    char *added = last->names[last->count];
    snprintf(added, sizeof last->names[0], "%.*s", (int)(length < 63 ? length : 63), name);
    if (!names_device(added))
        return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: \"%s\" is no device of %s, such as %s:0", param, added,
                                multi_kind.base, multi_kind.base);
    for (int d = 0; d < list->count; d++)
        for (int m = 0; m < list->devices[d].count; m++)
            if (strcmp(list->devices[d].names[m], added) == 0)
                return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s occurs twice; a device can be a member of "
                                        "one device only", param, added);
    last->count++;
    return CTRT_OK;
}

static ctrt_status add_device(struct multi_list *list)
{
    if (list->count == MULTI_DEVICES)
        return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: more than %d devices", multi_kind.members->name,
                                MULTI_DEVICES);
    list->devices[list->count++].count = 0;
    return CTRT_OK;
}

/* Gives each of `devices` devices `members` of the visible ones, in their order. */
static void cut_visible(struct multi_list *list, int devices, int members)
{
    list->count = devices;
    for (int d = 0; d < devices; d++) {
        list->devices[d].count = members;
        for (int m = 0; m < members; m++)
            snprintf(list->devices[d].names[m], sizeof list->devices[d].names[m], "%s:%d", multi_kind.base,
                     d * members + m);
    }
}

/* Reads "2x3". Returns false if the text has another form. */
static bool read_mesh(long *devices, long *members, const char *text)
{
    char *end;
    *devices = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 'x' || end[1] < '0' || end[1] > '9')
        return false;
    *members = strtol(end + 1, &end, 10);
    return *end == '\0';
}

ctrt_status multi_list_read(struct multi_list *list)
{
    const int visible = ctrt_device_count(multi_kind.base);
    ctrt_param_value value;
    long devices, members;
    list->count = 0;
    CTRT_TRY(multi_host->param(&value, multi_kind.members));
    if (value.text == NULL || value.text[0] == '\0') {
        cut_visible(list, 1, visible < MULTI_MEMBERS ? visible : MULTI_MEMBERS);
        return CTRT_OK;
    }
    if (read_mesh(&devices, &members, value.text)) {
        if (devices < 1 || devices > MULTI_DEVICES || members < 1 || members > MULTI_MEMBERS)
            return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: at most %d devices of at most %d members, and "
                                    "at least one of each", multi_kind.members->name, value.text, MULTI_DEVICES,
                                    MULTI_MEMBERS);
        if (devices * members > visible)
            return multi_host->fail(CTRT_ERR_NO_DEVICE, "%s=%s needs %ld devices of %s, but %d are visible",
                                    multi_kind.members->name, value.text, devices * members, multi_kind.base, visible);
        cut_visible(list, (int)devices, (int)members);
        return CTRT_OK;
    }
    CTRT_TRY(add_device(list));
    for (const char *rest = value.text;;) {
        const size_t length = strcspn(rest, ",;");
        CTRT_TRY(add_member(list, rest, length));
        if (rest[length] == '\0')
            return CTRT_OK;
        if (rest[length] == ';')
            CTRT_TRY(add_device(list));
        rest += length + 1;
    }
}
