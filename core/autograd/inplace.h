/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/inplace.h: histories of views and of tensors that are changed in place. */
#ifndef CORE_AUTOGRAD_INPLACE_H
#define CORE_AUTOGRAD_INPLACE_H

#include "autograd/autograd_meta.h"
#include "autograd/rule.h"

/* The layout of a tensor in its storage, in elements. */
struct geometry {
    int ndim;
    int64_t offset;
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
};
static inline void geometry_of(struct geometry *out, const ctrt_tensor *tensor)
{
    out->ndim = tensor->view.ndim;
    out->offset = tensor_offset(tensor);
    for (int d = 0; d < out->ndim; d++) {
        out->shape[d] = tensor->view.shape[d];
        out->strides[d] = tensor->view.strides[d];
    }
}
/* Returns one more than the largest storage index of an element; the offset if there are no elements. */
int64_t geometry_end(const struct geometry *g);
/* Returns whether no two elements have the same storage index. Conservative: may return false if there is no
 * overlap. */
bool geometry_disjoint(const struct geometry *g);
/* Advances at[ndim], the indices of an element, in row-major order. Returns the storage index of that element, given
 * `place`, that of the last one. */
int64_t geometry_next(const struct geometry *g, int64_t *at, int64_t place);

/* view_history.c: sets the history of `base` after its view `self` was changed in place by the op of `inner`. Edge 0 of
 * `inner` is the view's history before the change. The new node of `base` runs inner's derivative on the view's part of
 * the gradient. Takes over the reference to `inner`, also on failure. */
ctrt_status view_history_rebase(ctrt_tensor *base, ctrt_tensor *self, struct op_node *inner);

#endif
