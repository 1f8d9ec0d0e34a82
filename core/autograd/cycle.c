/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/cycle.c: finds the tensors of an ending scope that are referenced only by reference cycles.
 *
 * A node owns the tensors that it saved, and a tensor owns the node of its history. Changing a tensor in place by a
 * result of an op that saved the tensor creates a cycle.
 *
 * The algorithm is trial deletion (Bacon and Rajan 2001). It counts, for each tensor and node reachable from the
 * scope's tensors, the references that come from this set. An object with more references than that is used from
 * outside, so the object and everything reachable from it is kept. Parameters outlive the scope, so they and everything
 * reachable from them are also kept. */
#include "autograd/autograd_meta.h"
#include "base/array.h"
#include "base/ptr_map.h"
#include "tensor/scope.h"

struct vertex {
    void *object;                       /* a tensor of the scope, or a node */
    bool is_tensor, in_use;
    uint32_t references;                /* node: all references to it; tensor: the references that the library holds */
    uint32_t inside;                    /* number of references that come from this set */
};

struct cycle_place {                          /* item of the table from objects to vertices */
    const void *object;
    uint32_t index;
};

struct cycle_search {
    struct vertex *vertices;
    uint32_t count;
    size_t capacity;
    struct ptr_map places;
    bool failed;
    bool marking;                       /* second pass: marks everything reachable from a vertex in use */
    uint32_t *work, n_work;
};

static struct vertex *vertex_add(struct cycle_search *s, void *object, bool is_tensor, uint32_t references)
{
    struct cycle_place *place = ptr_map_add(&s->places, object, sizeof *place);
    if (place == NULL || !ARRAY_GROW(s->vertices, s->capacity, s->count)) {
        s->failed = true;
        return NULL;
    }
    place->index = s->count;
    s->vertices[s->count] = (struct vertex){ .object = object, .is_tensor = is_tensor, .references = references };
    return &s->vertices[s->count++];
}

static struct vertex *vertex_find(const struct cycle_search *s, const void *object)
{
    const struct cycle_place *place = ptr_map_find(&s->places, object, sizeof *place);
    return place != NULL ? &s->vertices[place->index] : NULL;
}

/* Visits one reference from a vertex to `object`. Tensors outside the scope are not vertices and are ignored. */
static void cycle_reach(void *user, void *object, bool is_tensor)
{
    struct cycle_search *s = user;
    struct vertex *to = s->failed ? NULL : vertex_find(s, object);
    if (s->marking) {
        if (to != NULL && !to->in_use) {
            to->in_use = true;
            s->work[s->n_work++] = (uint32_t)(to - s->vertices);
        }
        return;
    }
    if (to == NULL && !is_tensor && !s->failed)
        to = vertex_add(s, object, false, (uint32_t)atomic_load(&((struct grad_node *)object)->refs));
    if (to != NULL)
        to->inside++;
}

static void reach_from(struct cycle_search *s, uint32_t index)
{
    const struct vertex from = s->vertices[index];
    if (from.is_tensor) {
        const struct autograd_meta *meta = ((ctrt_tensor *)from.object)->grad;
        if (meta != NULL && meta->node != NULL)
            cycle_reach(s, meta->node, false);
        if (meta != NULL && meta->base != NULL)
            cycle_reach(s, meta->base, true);
        return;
    }
    struct grad_node *node = from.object;
    for (uint32_t i = 0; i < node->n_in; i++)
        if (node->edges[i].to != NULL && !edge_is_leaf(&node->edges[i]))
            cycle_reach(s, edge_node(&node->edges[i]), false);
    if (node->class->visit != NULL)
        node->class->visit(node, cycle_reach, s);
}

static void mark_used(struct cycle_search *s)
{
    s->work = host_alloc(MAX(s->count, 1) * sizeof *s->work);
    if (s->work == NULL) {
        s->failed = true;
        return;
    }
    s->marking = true;
    for (uint32_t i = 0; i < s->count; i++) {
        struct vertex *vertex = &s->vertices[i];
        if (vertex->references > vertex->inside || (vertex->is_tensor && grad_is_parameter(vertex->object))) {
            vertex->in_use = true;
            s->work[s->n_work++] = i;
        }
    }
    while (s->n_work > 0)
        reach_from(s, s->work[--s->n_work]);
}

size_t grad_find_cycles(struct scope_held *tensors, size_t count)
{
    struct cycle_search s = { .count = 0 };
    size_t dead = 0;
    for (size_t i = 0; i < count && !s.failed; i++)
        vertex_add(&s, tensors[i].tensor, true, tensors[i].held);
    for (uint32_t i = 0; i < s.count && !s.failed; i++)
        reach_from(&s, i);
    if (!s.failed)
        mark_used(&s);
    for (size_t i = 0; i < count && !s.failed; i++)     /* the first vertices are `tensors`, in the same order */
        dead += tensors[i].unused = !s.vertices[i].in_use;
    host_free(s.vertices);
    ptr_map_free(&s.places);
    host_free(s.work);
    return dead;
}
