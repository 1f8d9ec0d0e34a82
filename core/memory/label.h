/* SPDX-License-Identifier: Apache-2.0 */
/* memory/label.h: labels, which attribute a thread's allocations to a part of the program.
 *
 * A label is a whole path, such as "encoder/attention", interned once per process. Each thread has a stack of them. */
#ifndef CORE_MEMORY_LABEL_H
#define CORE_MEMORY_LABEL_H

#include <stdatomic.h>

#include "base/thread.h"
#include "ctrt/base.h"

/* An entry of a thread's stack. */
struct memory_label {
    struct memory_label *below;
    const char *text;                       /* the whole path; interned */
    bool pushed;                            /* by ctrt_memory_label_push and freed by pop; else by label_enter */
};

/* Some device is watched. Modules check it before they compute their path. */
extern atomic_bool label_wanted;

static inline const char *label_here(void)
{
    return thread_state.label != NULL ? thread_state.label->text : "";
}

/* For higher layers of the library. label_enter makes base + "/" + path (path alone if base is "") the thread's label
 * until label_leave; `label` is in the caller's stack frame. If memory for the text runs out, the text stays the same.
 * label_leave also removes labels that the program pushed after label_enter and did not pop. */
void label_enter(struct memory_label *label, const char *base, const char *path);
void label_leave(struct memory_label *label);

/* Calls label_enter for `name` below the thread's current label if any device is watched. Returns whether label_leave
 * must be called. */
static inline bool label_enter_watched(struct memory_label *label, const char *name)
{
    if (!atomic_load_explicit(&label_wanted, memory_order_relaxed))
        return false;
    label_enter(label, label_here(), name);
    return true;
}

#endif
