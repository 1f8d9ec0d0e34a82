/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/tree.h: the struct of trees. */
#ifndef PARALLEL_TREE_H
#define PARALLEL_TREE_H

#include <stdatomic.h>

#include "base/strbuf.h"
#include "ctrt/parallel.h"

struct ctrt_tree {
    atomic_int refs;
    ctrt_tree_kind kind;
    ctrt_tensor *tensor;                /* CTRT_TREE_TENSOR: owned */
    void *pointer;                      /* CTRT_TREE_POINTER */
    size_t count;                       /* CTRT_TREE_LIST and CTRT_TREE_MAP */
    ctrt_tree **items;                  /* owned references; some may be NULL */
    char **names;                       /* CTRT_TREE_MAP: owned */
    ctrt_tree *next_dying;              /* list of trees that are freed */
};

/* Creates a list or map of the form of `like`; takes over the references to items[like->count] on success. */
ctrt_status tree_like(ctrt_tree **out, const ctrt_tree *like, ctrt_tree **items);

/* Returns the index of the item of a map; the number of items if there is none of the name. */
size_t tree_index(const ctrt_tree *tree, const char *name);

/* Adds "[2]" or ".name", the place of item `index` in `tree`, to `path`. */
void tree_path_add(struct strbuf *path, const ctrt_tree *tree, size_t index);
/* Shortens `path` to `length`. */
void tree_path_cut(struct strbuf *path, size_t length);

#endif
