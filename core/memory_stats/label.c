/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/label.c: the thread's stack of memory tags. */
#include "memory_stats/label.h"

#include "base/base.h"
#include "base/intern.h"
#include "base/host_alloc.h"
#include "ctrt/memory.h"

atomic_bool label_wanted;

static const char *joined(const char *base, const char *path)
{
    char few[256];
    size_t first = strlen(base), second = strlen(path), bytes = first + second + 2;
    if (first == 0)
        return intern_string(path);
    char *text = bytes <= sizeof few ? few : host_alloc(bytes);
    if (text == NULL)
        return NULL;
    memcpy(text, base, first);
    text[first] = '/';
    memcpy(text + first + 1, path, second + 1);
    const char *kept = intern_string(text);
    if (text != few)
        host_free(text);
    return kept;
}

void label_enter(struct memory_label *tag, const char *base, const char *path)
{
    const char *text = joined(base, path);
    tag->text = text != NULL ? text : label_here();
    tag->below = thread_state.tag;
    tag->pushed = false;
    thread_state.tag = tag;
}

/* Removes all entries above `end`, and frees those that were pushed. */
static void drop_above(struct thread_state *state, const struct memory_label *end)
{
    while (state->tag != NULL && state->tag != end) {
        struct memory_label *tag = state->tag;
        state->tag = tag->below;
        if (tag->pushed)
            host_free(tag);
    }
}

void label_leave(struct memory_label *tag)
{
    drop_above(&thread_state, tag);
    thread_state.tag = tag->below;
}

ctrt_status ctrt_memory_tag_push(const char *text)
{
    if (text == NULL)
        return fail_null("memory_tag_push", "tag");
    if (*text == '\0')
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_tag_push: the tag is empty");
    struct memory_label *tag = host_alloc(sizeof *tag);
    if (tag != NULL)
        tag->text = joined(label_here(), text);
    if (tag == NULL || tag->text == NULL) {
        host_free(tag);
        return out_of_memory(sizeof *tag + strlen(text), "a tag");
    }
    thread_register();
    tag->below = thread_state.tag;
    tag->pushed = true;
    thread_state.tag = tag;
    return CTRT_OK;
}

ctrt_status ctrt_memory_tag_pop(void)
{
    struct memory_label *tag = thread_state.tag;
    if (tag == NULL || !tag->pushed)
        return ctrt_fail(CTRT_ERR_STATE, "memory_tag_pop without a matching ctrt_memory_tag_push");
    thread_state.tag = tag->below;
    host_free(tag);
    return CTRT_OK;
}

const char *ctrt_memory_tag(void)
{
    return label_here();
}

/* Called when the thread exits: frees the tags that it did not pop. */
static void drop_all(struct thread_state *state)
{
    drop_above(state, NULL);
}

__attribute__((constructor)) static void tag_start(void)
{
    thread_on_exit(drop_all);
}
