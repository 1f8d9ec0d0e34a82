/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/inplace.h: views, and ops that overwrite a tensor. */
#ifndef CORE_AUTOGRAD_INPLACE_H
#define CORE_AUTOGRAD_INPLACE_H

#include "autograd/meta.h"
#include "autograd/rule.h"

/* How a tensor lies in its storage. */
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
/* One more than the storage index of the last element; offset when there are none. */
int64_t geometry_end(const struct geometry *g);
/* Do no two elements share a place? Says false when in doubt. */
bool geometry_disjoint(const struct geometry *g);

/* slices.c: `base` was written through its view `self` by `inner`, whose edge 0 is the view's history before. Rewrites base's history: its node
 * runs inner's derivative on the view's part of the gradient. Takes `inner` over. */
ctrt_status slices_rebase(ctrt_tensor *base, ctrt_tensor *self, struct op_node *inner);

#endif
