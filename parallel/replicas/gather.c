/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/gather.c: concatenates tensors, and the tensors of trees, of several devices on one device. */
#include "base/base.h"
#include "base/stack.h"
#include "ctrt/strategy_plugin.h"
#include "ops/op_common.h"
#include "parallel/replicas/devices.h"
#include "parallel/replicas/tree.h"
#include "tensor/shape.h"

/* ---- tensors ---- */

/* Where the tensors come from, for messages: tensor i is named LIST[i]PLACE, "outputs[1].boxes". */
struct gather_origin {
    const char *list, *place;
};

static ctrt_status check_shapes(const struct gather_origin *origin, ctrt_tensor *const *tensors, int count, int dim)
{
    const ctrt_view *first = &tensors[0]->view;
    for (int i = 1; i < count; i++) {
        const ctrt_view *view = &tensors[i]->view;
        bool fits = view->ndim == first->ndim;
        for (int d = 0; d < first->ndim && fits; d++)
            fits = d == dim || view->shape[d] == first->shape[d];
        if (fits)
            continue;
        char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
        return ctrt_fail(CTRT_ERR_SHAPE,
                         "%s[%d]%s on %s has shape %s, but %s[0]%s has shape %s; they may differ in dimension %d only",
                         origin->list, i, origin->place, tensors[i]->device->name,
                         shape_text(a, view->shape, view->ndim), origin->list, origin->place,
                         shape_text(b, first->shape, first->ndim), dim);
    }
    return CTRT_OK;
}

static void warn_scalars(void)
{
    static atomic_bool warned;
    if (!atomic_exchange(&warned, true))
        log_message(CTRT_LOG_WARNING, "parallel",
                    "gather of 0-dim tensors, for example losses: the result is a vector with one element per replica, "
                    "and its mean gives each replica the same weight even if its part of the batch is smaller");
}

/* Gathers 0-dim tensors to a vector. */
static ctrt_status gather_scalars(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, ctrt_device *device)
{
    const int64_t one = 1;
    ctrt_status status = CTRT_OK;
    HOST_AUTO ctrt_tensor **vectors = host_calloc((size_t)count * sizeof *vectors);
    ALLOC_CHECK(vectors, (size_t)count * sizeof *vectors, "gather");
    warn_scalars();
    for (int i = 0; i < count && status == CTRT_OK; i++)
        status = ctrt_reshape(&vectors[i], tensors[i], ctrt_ints_of(&one, 1));
    if (status == CTRT_OK)
        status = op_cat_to(out, vectors, count, 0, device);
    ctrt_tensors_release(vectors, (size_t)count);
    return status;
}

static ctrt_status gather_tensors(ctrt_tensor **out, const struct gather_origin *origin, ctrt_tensor *const *tensors,
                                  int count, ctrt_device *device, int dim)
{
    CTRT_TRY(shape_dim(&dim, "gather", dim, tensors[0]->view.ndim));
    CTRT_TRY(check_shapes(origin, tensors, count, dim));
    CTRT_AUTO(tensor) result = NULL;
    CTRT_TRY(tensors[0]->view.ndim == 0 ? gather_scalars(&result, tensors, count, device)
                                        : op_cat_to(&result, tensors, count, dim, device));
    for (int i = 0; i < count; i++)
        CTRT_TRY(streams_join(tensors[i]->device, device));
    ctrt_tensor_assign(out, result);
    return CTRT_OK;
}

static ctrt_status gather_check(const char *who, const void *out, const void *list, const char *name, int count,
                                ctrt_device **device)
{
    NULL_CHECK(who, out);
    if (list == NULL)
        return fail_null(who, name);
    if (count < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: count is %d, expected at least 1", who, count);
    return *device == NULL ? device_cpu(device) : CTRT_OK;
}

ctrt_status ctrt_gather_tensor(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, ctrt_device *device, int dim)
{
    STREAMS_ORDERED;
    CTRT_TRY(gather_check("gather_tensor", out, tensors, "tensors", count, &device));
    for (int i = 0; i < count; i++)
        if (tensors[i] == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "gather_tensor: tensors[%d] is NULL", i);
    return ctrt_context(gather_tensors(out, &(struct gather_origin){ "tensors", "" }, tensors, count, device, dim),
                        "gather_tensor");
}

/* ---- trees ---- */

struct gathering {
    int count, dim;
    ctrt_device *device;
    struct strbuf path;                     /* the place in the trees, "[0].boxes" */
};

static const char *const kind_names[] = {
    [CTRT_TREE_NOTHING] = "nothing", [CTRT_TREE_TENSOR] = "a tensor", [CTRT_TREE_LIST] = "a list",
    [CTRT_TREE_MAP] = "a map", [CTRT_TREE_POINTER] = "a pointer",
};

static const char *place_of(const struct gathering *g)
{
    return g->path.bytes != NULL ? g->path.bytes : "";
}

/* Checks that the trees have the form of the first one at this place. */
static ctrt_status check_forms(const struct gathering *g, ctrt_tree *const *trees)
{
    const ctrt_tree *first = trees[0];
    const ctrt_tree_kind kind = ctrt_tree_kind_of(first);
    for (int i = 1; i < g->count; i++) {
        if (ctrt_tree_kind_of(trees[i]) != kind)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "outputs[%d]%s is %s, but outputs[0]%s is %s", i, place_of(g),
                             kind_names[ctrt_tree_kind_of(trees[i])], place_of(g), kind_names[kind]);
        if (ctrt_tree_count(trees[i]) != ctrt_tree_count(first))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "outputs[%d]%s has %zu items, but outputs[0]%s has %zu", i,
                             place_of(g), ctrt_tree_count(trees[i]), place_of(g), ctrt_tree_count(first));
    }
    return CTRT_OK;
}

static ctrt_status gather_leaves(ctrt_tree **out, const struct gathering *g, ctrt_tree *const *trees)
{
    CTRT_AUTO(tensor) result = NULL;
    const struct gather_origin origin = { "outputs", place_of(g) };
    HOST_AUTO ctrt_tensor **tensors = host_calloc((size_t)g->count * sizeof *tensors);
    ALLOC_CHECK(tensors, (size_t)g->count * sizeof *tensors, "gather_tree");
    for (int i = 0; i < g->count; i++)
        tensors[i] = trees[i]->tensor;
    CTRT_TRY(gather_tensors(&result, &origin, tensors, g->count, g->device, g->dim));
    return ctrt_tree_of_tensor(out, result);
}

static ctrt_status gather_pointers(ctrt_tree **out, const struct gathering *g, ctrt_tree *const *trees)
{
    static atomic_bool warned;
    for (int i = 1; i < g->count; i++)
        if (trees[i]->pointer != trees[0]->pointer && !atomic_exchange(&warned, true)) {
            log_message(CTRT_LOG_WARNING, "parallel",
                        "gather_tree: the pointers outputs[0]%s and outputs[%d]%s differ; the result has the first",
                        place_of(g), i, place_of(g));
            break;
        }
    *out = ctrt_tree_retain(trees[0]);
    return CTRT_OK;
}

static ctrt_status gather_tree(ctrt_tree **out, struct gathering *g, ctrt_tree *const *trees);

/* Gathers the items of lists or maps. `column`: scratch memory for g->count trees. */
static ctrt_status gather_items(ctrt_tree **items, struct gathering *g, ctrt_tree *const *trees, ctrt_tree **column)
{
    const ctrt_tree *first = trees[0];
    for (size_t k = 0; k < first->count; k++) {
        const size_t length = g->path.length;
        for (int i = 0; i < g->count; i++) {
            size_t at = k;
            if (first->names != NULL && strcmp(first->names[k], trees[i]->names[k]) != 0)
                at = tree_index(trees[i], first->names[k]);     /* the maps have another order */
            if (at < first->count)
                column[i] = trees[i]->items[at];
            else
                return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "outputs[%d]%s has no \"%s\", but outputs[0]%s has one", i,
                                 place_of(g), first->names[k], place_of(g));
        }
        tree_path_add(&g->path, first, k);
        CTRT_TRY(gather_tree(&items[k], g, column));
        tree_path_cut(&g->path, length);
    }
    return CTRT_OK;
}

/* *out is NULL on entry. */
static ctrt_status gather_tree(ctrt_tree **out, struct gathering *g, ctrt_tree *const *trees)
{
    ctrt_tree *first = trees[0];
    CTRT_TRY(stack_check("gather_tree"));
    CTRT_TRY(check_forms(g, trees));
    switch (ctrt_tree_kind_of(first)) {
    case CTRT_TREE_TENSOR:  return gather_leaves(out, g, trees);
    case CTRT_TREE_POINTER: return gather_pointers(out, g, trees);
    case CTRT_TREE_LIST:
    case CTRT_TREE_MAP:     break;
    default:                return CTRT_OK;
    }
    const size_t cells = first->count + (size_t)g->count;
    HOST_AUTO ctrt_tree **items = host_calloc(cells * sizeof *items);
    ALLOC_CHECK(items, cells * sizeof *items, "gather_tree");
    ctrt_status status = gather_items(items, g, trees, items + first->count);
    if (status == CTRT_OK)
        status = tree_like(out, first, items);
    for (size_t k = 0; k < first->count && status != CTRT_OK; k++)
        ctrt_tree_release(&items[k]);
    return status;
}

ctrt_status ctrt_gather_tree(ctrt_tree **out, ctrt_tree *const *trees, int count, ctrt_device *device, int dim)
{
    STREAMS_ORDERED;
    ctrt_tree *result = NULL;
    CTRT_TRY(gather_check("gather_tree", out, trees, "trees", count, &device));
    struct gathering g = { .count = count, .dim = dim, .device = device };
    ctrt_status status = gather_tree(&result, &g, trees);
    strbuf_drop(&g.path);
    if (status != CTRT_OK)
        return ctrt_context(status, "gather_tree");
    ctrt_tree_release(out);
    *out = result;
    return CTRT_OK;
}
