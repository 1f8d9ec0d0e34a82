/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/tree.c: trees of tensors. */
#include "parallel/replicas/tree.h"

#include <string.h>

#include "base/base.h"
#include "base/host_alloc.h"

/* ---- creation and destruction ---- */

static ctrt_status tree_new(ctrt_tree **out, ctrt_tree_kind kind)
{
    ctrt_tree *tree = host_calloc(sizeof *tree);
    ALLOC_CHECK(tree, sizeof *tree, "a tree");
    atomic_init(&tree->refs, 1);
    tree->kind = kind;
    *out = tree;
    return CTRT_OK;
}

static void tree_give(ctrt_tree **out, ctrt_tree *fresh)
{
    ctrt_tree *old = *out;
    *out = fresh;
    ctrt_tree_release(&old);
}

ctrt_tree *ctrt_tree_retain(ctrt_tree *tree)
{
    if (tree != NULL)
        atomic_fetch_add_explicit(&tree->refs, 1, memory_order_relaxed);
    return tree;
}

/* Drops one reference. Adds a tree without references to the list `dying`, which replaces recursion, so that deep trees
 * do not overflow the stack. */
static void drop(ctrt_tree *tree, ctrt_tree **dying)
{
    if (tree == NULL || atomic_fetch_sub_explicit(&tree->refs, 1, memory_order_acq_rel) != 1)
        return;
    tree->next_dying = *dying;
    *dying = tree;
}

void ctrt_tree_release(ctrt_tree **tree)
{
    ctrt_tree *dying = NULL, *gone;
    if (tree == NULL)
        return;
    drop(*tree, &dying);
    *tree = NULL;
    while ((gone = dying) != NULL) {
        dying = gone->next_dying;
        for (size_t i = 0; i < gone->count; i++) {
            if (gone->items != NULL)
                drop(gone->items[i], &dying);
            if (gone->names != NULL)
                host_free(gone->names[i]);
        }
        ctrt_tensor_release(&gone->tensor);
        host_free(gone->items);
        host_free(gone->names);
        host_free(gone);
    }
}

ctrt_status ctrt_tree_of_tensor(ctrt_tree **out, ctrt_tensor *tensor)
{
    ctrt_tree *tree = NULL;
    NULL_CHECKS("tree_of_tensor", out, tensor);
    CTRT_TRY(tree_new(&tree, CTRT_TREE_TENSOR));
    tree->tensor = ctrt_tensor_retain(tensor);
    tree_give(out, tree);
    return CTRT_OK;
}

ctrt_status ctrt_tree_of_pointer(ctrt_tree **out, void *pointer)
{
    ctrt_tree *tree = NULL;
    NULL_CHECK("tree_of_pointer", out);
    CTRT_TRY(tree_new(&tree, CTRT_TREE_POINTER));
    tree->pointer = pointer;
    tree_give(out, tree);
    return CTRT_OK;
}

/* Creates a list or, with `names`, a map without items. */
static ctrt_status container_new(ctrt_tree **out, const char *const *names, size_t count)
{
    ctrt_tree *tree = NULL;
    if (count > SIZE_MAX / sizeof *tree->items - 1)
        return ctrt_fail(CTRT_ERR_OVERFLOW, "a tree of %zu items", count);
    CTRT_TRY(tree_new(&tree, names != NULL ? CTRT_TREE_MAP : CTRT_TREE_LIST));
    tree->items = host_calloc((count + 1) * sizeof *tree->items);
    tree->names = names != NULL ? host_calloc((count + 1) * sizeof *tree->names) : NULL;
    bool complete = tree->items != NULL && (names == NULL || tree->names != NULL);
    tree->count = complete ? count : 0;
    for (size_t i = 0; i < count && names != NULL && complete; i++)
        complete = (tree->names[i] = host_strdup(names[i])) != NULL;
    if (!complete) {
        ctrt_tree_release(&tree);
        return out_of_memory(count * sizeof *tree->items, "a tree");
    }
    *out = tree;
    return CTRT_OK;
}

/* Replaces *out by a list or, with `names`, a map of the items. */
static ctrt_status container_fill(ctrt_tree **out, const char *const *names, ctrt_tree *const *items, size_t count)
{
    ctrt_tree *tree = NULL;
    CTRT_TRY(container_new(&tree, names, count));
    for (size_t i = 0; i < count; i++)
        tree->items[i] = ctrt_tree_retain(items[i]);
    tree_give(out, tree);
    return CTRT_OK;
}

ctrt_status ctrt_tree_of_list(ctrt_tree **out, ctrt_tree *const *items, size_t count)
{
    NULL_CHECK("tree_of_list", out);
    if (count > 0)
        NULL_CHECK("tree_of_list", items);
    return container_fill(out, NULL, items, count);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ctrt_status names_check(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (names[i] == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "tree_of_map: names[%zu] is NULL", i);
    if (count < 2)
        return CTRT_OK;
    if (count > SIZE_MAX / sizeof *names)
        return ctrt_fail(CTRT_ERR_OVERFLOW, "a tree of %zu items", count);
    HOST_AUTO const char **sorted = host_calloc(count * sizeof *sorted);
    ALLOC_CHECK(sorted, count * sizeof *sorted, "a tree");
    memcpy(sorted, names, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "tree_of_map: two items are named \"%s\"", sorted[i]);
    return CTRT_OK;
}

ctrt_status ctrt_tree_of_map(ctrt_tree **out, const char *const *names, ctrt_tree *const *items, size_t count)
{
    static const char *const none[1];
    NULL_CHECK("tree_of_map", out);
    if (count > 0)
        NULL_CHECKS("tree_of_map", names, items);
    CTRT_TRY(names_check(names, count));
    return container_fill(out, count > 0 ? names : none, items, count);
}

ctrt_status tree_like(ctrt_tree **out, const ctrt_tree *like, ctrt_tree **items)
{
    ctrt_tree *tree = NULL;
    CTRT_TRY(container_new(&tree, (const char *const *)like->names, like->count));
    memcpy(tree->items, items, like->count * sizeof *items);
    tree_give(out, tree);
    return CTRT_OK;
}

/* ---- accessors ---- */

ctrt_tree_kind ctrt_tree_kind_of(const ctrt_tree *tree)
{
    return tree != NULL ? tree->kind : CTRT_TREE_NOTHING;
}

ctrt_tensor *ctrt_tree_tensor(const ctrt_tree *tree)
{
    return tree != NULL ? tree->tensor : NULL;
}

void *ctrt_tree_pointer(const ctrt_tree *tree)
{
    return tree != NULL ? tree->pointer : NULL;
}

size_t ctrt_tree_count(const ctrt_tree *tree)
{
    return tree != NULL ? tree->count : 0;
}

ctrt_tree *ctrt_tree_item(const ctrt_tree *tree, size_t index)
{
    return index < ctrt_tree_count(tree) ? tree->items[index] : NULL;
}

const char *ctrt_tree_name(const ctrt_tree *tree, size_t index)
{
    return index < ctrt_tree_count(tree) && tree->names != NULL ? tree->names[index] : NULL;
}

size_t tree_index(const ctrt_tree *tree, const char *name)
{
    size_t i = 0;
    while (i < tree->count && strcmp(tree->names[i], name) != 0)
        i++;
    return i;
}

ctrt_tree *ctrt_tree_find(const ctrt_tree *tree, const char *name)
{
    const bool searches = name != NULL && tree != NULL && tree->names != NULL;
    return searches ? ctrt_tree_item(tree, tree_index(tree, name)) : NULL;
}

/* ---- places in messages ---- */

void tree_path_add(struct strbuf *path, const ctrt_tree *tree, size_t index)
{
    if (tree->names != NULL)
        strbuf_add(path, ".%s", tree->names[index]);
    else
        strbuf_add(path, "[%zu]", index);
}

void tree_path_cut(struct strbuf *path, size_t length)
{
    path->length = length;
    if (path->bytes != NULL)
        path->bytes[length] = '\0';
}
