/* SPDX-License-Identifier: Apache-2.0 */
/* memory/label.c: the thread's stack of labels. */
#include "memory/label.h"

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

void label_enter(struct memory_label *label, const char *base, const char *path)
{
    const char *text = joined(base, path);
    label->text = text != NULL ? text : label_here();
    label->below = thread_state.label;
    label->pushed = false;
    thread_state.label = label;
}

/* Removes all entries above `end`, and frees those that were pushed. */
static void drop_above(struct thread_state *state, const struct memory_label *end)
{
    while (state->label != NULL && state->label != end) {
        struct memory_label *label = state->label;
        state->label = label->below;
        if (label->pushed)
            host_free(label);
    }
}

void label_leave(struct memory_label *label)
{
    drop_above(&thread_state, label);
    thread_state.label = label->below;
}

ctrt_status ctrt_memory_label_push(const char *text)
{
    if (text == NULL)
        return fail_null("memory_label_push", "label");
    if (*text == '\0')
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_label_push: the label is empty");
    struct memory_label *label = host_alloc(sizeof *label);
    if (label != NULL)
        label->text = joined(label_here(), text);
    if (label == NULL || label->text == NULL) {
        host_free(label);
        return out_of_memory(sizeof *label + strlen(text), "a label");
    }
    thread_register();
    label->below = thread_state.label;
    label->pushed = true;
    thread_state.label = label;
    return CTRT_OK;
}

ctrt_status ctrt_memory_label_pop(void)
{
    struct memory_label *label = thread_state.label;
    if (label == NULL || !label->pushed)
        return ctrt_fail(CTRT_ERR_STATE, "memory_label_pop without a matching ctrt_memory_label_push");
    thread_state.label = label->below;
    host_free(label);
    return CTRT_OK;
}

const char *ctrt_memory_label(void)
{
    return label_here();
}

/* Called when the thread exits: frees the labels that it did not pop. */
static void drop_all(struct thread_state *state)
{
    drop_above(state, NULL);
}

__attribute__((constructor)) static void label_start(void)
{
    thread_on_exit(drop_all);
}
