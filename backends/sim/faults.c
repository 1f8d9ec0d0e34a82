/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/faults.c: parses injected faults and decides which operations fail.
 *
 *     faults = fault { ";" fault }
 *     fault  = [ DEVICE "." ] kind
 *     kind   = "alloc:" N ["+"] | "host:" N ["+"] | "op:" [NAME "@"] N ["+"] | "copy:" N ["+"] | "lost:" N
 *            | "link:" A "-" B | "late:" TIME | "event:" N ["+"] */
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kind {
    const char *name;
    enum sim_fault_kind kind;
    const char *takes;
} kinds[] = {
    { "alloc", SIM_FAULT_ALLOC, "the number of an allocation, such as 3, or 3+ for it and all later ones" },
    { "host", SIM_FAULT_HOST, "the number of an allocation of pinned memory, such as 3, or 3+ for it and all later "
                              "ones" },
    { "op", SIM_FAULT_OP, "the number of a launch, such as 57, add@57 or add@1+" },
    { "copy", SIM_FAULT_COPY, "the number of a copy, such as 2 or 2+" },
    { "lost", SIM_FAULT_LOST, "the number of a work item, such as 100" },
    { "link", SIM_FAULT_LINK, "two devices, such as 0-1" },
    { "late", SIM_FAULT_LATE, "a time, such as 200us" },
    { "event", SIM_FAULT_EVENT, "the number of an event that is recorded, such as 3 or 3+" },
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static bool read_number(struct sim_fault *fault, char *value)
{
    size_t length = strlen(value);
    fault->onward = length > 0 && value[length - 1] == '+';
    if (fault->onward)
        value[length - 1] = '\0';
    return sim_parse_count(&fault->nth, value) && fault->nth > 0;
}

static bool read_op(struct sim_fault *fault, char *value)
{
    char *at = strchr(value, '@');
    if (at != NULL) {
        *at = '\0';
        if (value[0] == '\0' || strlen(value) >= sizeof fault->op)
            return false;
        snprintf(fault->op, sizeof fault->op, "%s", value);
        value = at + 1;
    }
    return read_number(fault, value);
}

static bool read_link(struct sim_fault *fault, char *value)
{
    uint64_t from, to;
    char *dash = strchr(value, '-');
    if (dash == NULL)
        return false;
    *dash = '\0';
    if (!sim_parse_count(&from, value) || !sim_parse_count(&to, dash + 1) || from >= SIM_DEVICES || to >= SIM_DEVICES)
        return false;
    fault->from = (int)from, fault->to = (int)to;
    return true;
}

static bool read_value(struct sim_fault *fault, char *value)
{
    if (fault->kind == SIM_FAULT_OP)
        return read_op(fault, value);
    if (fault->kind == SIM_FAULT_LINK)
        return read_link(fault, value);
    if (fault->kind == SIM_FAULT_LATE)
        return sim_parse_time(&fault->late, value);
    return read_number(fault, value);
}

/* Returns whether a kernel has this op. Accepts every op if the kernels are not loaded yet. */
static bool op_known(const char *op)
{
    for (size_t i = 0; i < sim_kernel_count(); i++)
        if (strcmp(sim_kernel_op(i), op) == 0)
            return true;
    return sim_kernel_count() == 0;
}

static ctrt_status fault_unknown(const char *name, const char *text, const char *word)
{
    const char *words[KINDS + 1] = { NULL };
    char known[160];
    for (size_t i = 0; i < KINDS; i++)
        words[i] = kinds[i].name;
    return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: there is no fault \"%s\"; known: %s", name, text, word,
                          sim_known_words(known, sizeof known, word, words));
}

static ctrt_status read_fault(struct sim_fault *fault, const char *name, const char *text, char *entry)
{
    *fault = (struct sim_fault){ .device = -1 };
    snprintf(fault->text, sizeof fault->text, "%s", entry);
    char *value = strchr(entry, ':'), *dot = strchr(entry, '.');
    if (dot != NULL && isdigit((unsigned char)entry[0]) && (value == NULL || dot < value)) {
        uint64_t device;
        *dot = '\0';
        if (!sim_parse_count(&device, entry) || device >= SIM_DEVICES)
            return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: \"%s\" is not a device number; write 1.alloc:3",
                                  name, text, entry);
        fault->device = (int)device;
        entry = dot + 1;
    }
    if (value != NULL)
        *value++ = '\0';
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].name, entry) != 0)
            continue;
        fault->kind = kinds[i].kind;
        char kept[64];
        snprintf(kept, sizeof kept, "%s", value != NULL ? value : "");
        if (value == NULL || !read_value(fault, value))
            return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: %s: expected %s, not \"%s\"", name, text, entry,
                                  kinds[i].takes, kept);
        if (fault->op[0] != '\0' && !op_known(fault->op))
            return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: the cpu has no kernel for an op \"%s\"", name,
                                  text, fault->op);
        return CTRT_OK;
    }
    return fault_unknown(name, text, entry);
}

ctrt_status sim_faults_parse(struct sim_faults *faults, const char *name, const char *text)
{
    char copy[1024];
    struct sim_faults more = *faults;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: faults longer than %zu characters", name,
                              sizeof copy - 1);
    for (char *rest = copy, *entry; (entry = strsep(&rest, ";")) != NULL;) {
        entry += strspn(entry, " \t");
        entry[strcspn(entry, " \t")] = '\0';
        if (*entry == '\0')
            continue;
        if (more.count == SIM_FAULTS)
            return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: more than %d faults", name, text, SIM_FAULTS);
        CTRT_TRY(read_fault(&more.at[more.count], name, text, entry));
        more.count++;
    }
    *faults = more;
    return CTRT_OK;
}

bool sim_fault_hits(struct sim_device *device, enum sim_fault_kind kind, const char *op, char text[64])
{
    bool hits = false;
    for (int i = 0; i < device->faults.count; i++) {
        struct sim_fault *fault = &device->faults.at[i];
        if (fault->kind != kind || (fault->device >= 0 && fault->device != device->index)
            || (fault->op[0] != '\0' && strcmp(fault->op, op) != 0))
            continue;
        fault->seen++;
        if (!hits && (fault->onward ? fault->seen >= fault->nth : fault->seen == fault->nth)) {
            memcpy(text, fault->text, sizeof fault->text);
            hits = true;
        }
    }
    return hits;
}

bool sim_fault_link(struct sim_device *device, int from, int to)
{
    for (int i = 0; i < device->faults.count; i++) {
        const struct sim_fault *fault = &device->faults.at[i];
        if (fault->kind == SIM_FAULT_LINK && fault->from == from && fault->to == to)
            return true;
    }
    return false;
}

void sim_fault_late(struct sim_device *device)
{
    int64_t late = 0;
    for (int i = 0; i < device->faults.count; i++) {
        const struct sim_fault *fault = &device->faults.at[i];
        if (fault->kind == SIM_FAULT_LATE && (fault->device < 0 || fault->device == device->index)
            && fault->late > late)
            late = fault->late;
    }
    atomic_store(&device->late, late);
}
