/* SPDX-License-Identifier: Apache-2.0 */
/* memory/tag.h: on whose behalf a thread takes memory.
 *
 * A tag is the whole path, "encoder/attention", kept once per process; a thread holds a stack of them. */
#ifndef CORE_MEMORY_TAG_H
#define CORE_MEMORY_TAG_H

#include <stdatomic.h>

#include "base/thread.h"
#include "ctrt/base.h"

/* A place in a thread's stack. */
struct memory_tag {
    struct memory_tag *below;
    const char *text;                       /* kept; the whole path */
    bool pushed;                            /* by a program, which pops it; else by tag_enter */
};

/* Is any device watched? Modules ask, before they look for their path. */
extern atomic_bool tag_wanted;

static inline const char *tag_here(void)
{
    return thread_state.tag != NULL ? thread_state.tag->text : "";
}

/* For floors above: makes base + "/" + path (or path alone, where base is "") the thread's tag until tag_leave, with
 * `tag` on the caller's stack; leaving also drops what a program pushed meanwhile and did not pop. Without memory for the text the tag stays what it was. */
void tag_enter(struct memory_tag *tag, const char *base, const char *path);
void tag_leave(struct memory_tag *tag);

/* The same below the thread's tag, if any device is watched; returns whether tag_leave is due. */
static inline bool tag_enter_watched(struct memory_tag *tag, const char *name)
{
    if (!atomic_load_explicit(&tag_wanted, memory_order_relaxed))
        return false;
    tag_enter(tag, tag_here(), name);
    return true;
}

#endif
