/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/label.h: memory tags: labels that attribute a thread's allocations to a part of the program.
 *
 * A tag is the whole path, such as "encoder/attention", interned once per process. Each thread has a stack of tags. */
#ifndef CORE_MEMORY_STATS_LABEL_H
#define CORE_MEMORY_STATS_LABEL_H

#include <stdatomic.h>

#include "base/thread.h"
#include "ctrt/base.h"

/* An entry of a thread's stack. */
struct memory_label {
    struct memory_label *below;
    const char *text;                       /* the whole path; interned */
    bool pushed;                            /* by ctrt_memory_tag_push and freed by pop; else by label_enter */
};

/* Some device is watched. Modules check it before they compute their path. */
extern atomic_bool label_wanted;

static inline const char *label_here(void)
{
    return thread_state.tag != NULL ? thread_state.tag->text : "";
}

/* For higher layers of the library. label_enter makes base + "/" + path (path alone if base is "") the thread's tag
 * until label_leave; `tag` is in the caller's stack frame. If memory for the text runs out, the tag does not change.
 * label_leave also removes tags that the program pushed after label_enter and did not pop. */
void label_enter(struct memory_label *tag, const char *base, const char *path);
void label_leave(struct memory_label *tag);

/* Calls label_enter for `name` below the thread's current tag if any device is watched. Returns whether label_leave
 * must be called. */
static inline bool label_enter_watched(struct memory_label *tag, const char *name)
{
    if (!atomic_load_explicit(&label_wanted, memory_order_relaxed))
        return false;
    label_enter(tag, label_here(), name);
    return true;
}

#endif
