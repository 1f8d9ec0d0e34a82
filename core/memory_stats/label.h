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
struct memory_tag {
    struct memory_tag *below;
    const char *text;                       /* the whole path; interned */
    bool pushed;                            /* by ctrt_memory_tag_push and freed by pop; else by tag_enter */
};

/* Some device is watched. Modules check it before they compute their path. */
extern atomic_bool tag_wanted;

static inline const char *tag_here(void)
{
    return thread_state.tag != NULL ? thread_state.tag->text : "";
}

/* For higher layers of the library. tag_enter makes base + "/" + path (path alone if base is "") the thread's tag until
 * tag_leave; `tag` is in the caller's stack frame. If memory for the text runs out, the tag does not change. tag_leave
 * also removes tags that the program pushed meanwhile and did not pop. */
void tag_enter(struct memory_tag *tag, const char *base, const char *path);
void tag_leave(struct memory_tag *tag);

/* The same for `name` below the thread's current tag, if any device is watched. Returns whether tag_leave must be
 * called. */
static inline bool tag_enter_watched(struct memory_tag *tag, const char *name)
{
    if (!atomic_load_explicit(&tag_wanted, memory_order_relaxed))
        return false;
    tag_enter(tag, tag_here(), name);
    return true;
}

#endif
