/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/graph.c: captures and graphs. A graph is the list of the captured work in the order of enqueuing, which
 * respects all dependencies. */
#include "driver.h"

#include <stdlib.h>

enum { GLOBAL_MODE, THREAD_LOCAL, RELAXED };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct graph *captures[64];
static unsigned capture_count;
static unsigned long long last_id;

int captures_enter(void)
{
    return pthread_mutex_lock(&lock);
}

void captures_leave(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&lock);
}

struct work *graph_append(struct graph *g, const struct work *work)
{
    struct work *w = malloc(sizeof *w);
    if (w == NULL)
        abort();
    *w = *work;
    w->next = NULL;
    *g->last = w;
    g->last = &w->next;
    g->count++;
    return w;
}

void graph_release(struct graph *g)
{
    if (atomic_fetch_sub(&g->references, 1) != 1)
        return;
    for (struct work *w = g->first, *next; w != NULL; w = next) {
        next = w->next;
        if (w->kind == LAUNCH)
            free(w->launch.parameters);
        free(w->staging);
        free(w);
    }
    free(g);
}

void graph_run(struct graph *g, void (*run)(struct work *))
{
    for (struct work *w = g->first; w != NULL; w = w->next)
        run(w);
}

/* Whether a capture of a mode that is at most RELAXED - 1 (0), or of any mode (-1), is in progress. */
bool capture_active(int least)
{
    CAPTURES_LOCKED;
    bool active = false;
    for (unsigned k = 0; k < capture_count; k++)
        active |= least < 0 || captures[k]->mode != RELAXED;
    return active;
}

void capture_invalidate_all(void)
{
    CAPTURES_LOCKED;
    for (unsigned k = 0; k < capture_count; k++)
        captures[k]->invalid = true;
}

result capture_begin(struct stream *s, int mode)
{
    if (s == NULL || mode < GLOBAL_MODE || mode > RELAXED)
        return INVALID_VALUE;
    CAPTURES_LOCKED;
    if (s->capture != NULL)
        return CAPTURE_UNSUPPORTED;
    const bool full = capture_count == sizeof captures / sizeof captures[0];
    struct graph *g = full ? NULL : calloc(1, sizeof *g);
    if (g == NULL)
        return OUT_OF_MEMORY;
    atomic_init(&g->references, 1);
    g->mode = mode;
    g->origin = s;
    g->last = &g->first;
    g->id = ++last_id;
    captures[capture_count++] = g;
    s->capture = g;
    return OK;
}

struct graph *capture_find(unsigned long long id)
{
    CAPTURES_LOCKED;
    struct graph *found = NULL;
    for (unsigned k = 0; k < capture_count; k++)
        found = captures[k]->id == id ? captures[k] : found;
    return found;
}

result capture_end(struct stream *s, struct graph **out)
{
    CAPTURES_LOCKED;
    *out = NULL;
    if (s == NULL || s->capture == NULL || s->capture->origin != s)
        return INVALID_VALUE;
    struct graph *g = s->capture;
    for (unsigned k = 0; k < capture_count; k++)
        if (captures[k] == g)
            captures[k--] = captures[--capture_count];
    const bool unjoined = !stream_leave_capture(g);
    if (g->invalid || unjoined) {
        const result r = g->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
        graph_release(g);
        return r;
    }
    *out = g;
    return OK;
}

result capture_state(struct stream *s, int *state)
{
    if (s == NULL)
        return INVALID_HANDLE;
    CAPTURES_LOCKED;
    *state = s->capture == NULL ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}

result capture_info(struct stream *s, int *state, unsigned long long *id, struct graph **graph, const void **nodes,
                    size_t *count)
{
    if (s == NULL)
        return INVALID_HANDLE;
    CAPTURES_LOCKED;
    (void)capture_state(s, state);
    if (id != NULL && s->capture != NULL)
        *id = s->capture->id;
    if (graph != NULL)
        *graph = s->capture;
    if (nodes != NULL)
        *nodes = NULL;
    if (count != NULL)
        *count = 0;
    return OK;
}

/* An executable graph shares the list of the graph. */
result graph_instantiate(struct graph **out, struct graph *g, unsigned long long flags)
{
    (void)flags;
    if (g == NULL)
        return INVALID_VALUE;
    atomic_fetch_add(&g->references, 1);
    *out = g;
    return driver_error();
}

result graph_launch(struct graph *g, struct stream *s)
{
    if (g == NULL || s == NULL)
        return INVALID_VALUE;
    if (s->capture != NULL)
        return CAPTURE_UNSUPPORTED;
    atomic_fetch_add(&g->references, 1);
    const result r = driver_enqueue(s, &(struct work){ .kind = RUN_GRAPH, .graph = g });
    if (r != OK)
        graph_release(g);
    return r;
}

result graph_exec_destroy(struct graph *g)
{
    graph_release(g);
    return OK;
}

result graph_destroy(struct graph *g)
{
    graph_release(g);
    return OK;
}

result graph_nodes(struct graph *g, void **nodes, size_t *count)
{
    if (g == NULL || count == NULL)
        return INVALID_VALUE;
    if (nodes != NULL) {
        size_t k = 0;
        for (struct work *w = g->first; w != NULL && k < *count; w = w->next)
            nodes[k++] = w;
    }
    *count = g->count;
    return OK;
}
