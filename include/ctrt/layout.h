/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/layout.h: how the tensors of a device with several members are distributed.
 *
 * Some devices are several devices that work as one: sim-multi:0 and nccl-multi:0. The values of a tensor there do not
 * depend on its layout; the layout decides how much memory and communication it needs. New tensors are replicated,
 * unless an op computes them from tensors in other layouts. Ops choose the layouts of their results and redistribute
 * operands where they must (doc/parallel.md). On other devices every tensor is replicated on the one member. */
#ifndef CTRT_LAYOUT_H
#define CTRT_LAYOUT_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

/* Writes the layout of the tensor. A view of a sharded tensor in which no dimension is the sharded one is shown as
 * replicated, although ops have to gather it. */
CTRT_API ctrt_status ctrt_tensor_layout(ctrt_layout *layout, ctrt_tensor *tensor);

/* Changes the layout of the whole storage of `tensor`, and keeps the values. The tensor must be contiguous and use its
 * whole storage (CTRT_ERR_SHAPE). layout->dim may be negative, counted from the end. A sharded dimension is cut as
 * ctrt_chunk does: parts of ceil(size / members), the last ones smaller or empty. A tensor can be made replicated or
 * sharded; CTRT_LAYOUT_PARTIAL is CTRT_ERR_NOT_SUPPORTED, because only ops create sums. On a device without members,
 * replicated has no effect and sharded is CTRT_ERR_NOT_SUPPORTED.
 *
 * A layout that was set in this way is kept: an op that needs the tensor in another layout uses a temporary copy. */
CTRT_API ctrt_status ctrt_tensor_distribute(ctrt_tensor *tensor, const ctrt_layout *layout);

/* Writes the redistributions of the device so far; all 0 for a device without members. Set counts->size. */
CTRT_API ctrt_status ctrt_layout_count(ctrt_layout_counts *counts, ctrt_device *device);

/* A layout for the parameters whose dotted names match `pattern`, in which `*` stands for any characters (fnmatch). */
typedef struct ctrt_layout_pattern {
    const char *pattern;                /* "*.mlp.0.weight" */
    ctrt_layout layout;
} ctrt_layout_pattern;

/* Distributes the parameters of `module` that match a pattern, the first one that matches; other parameters keep their
 * layout. So tensor parallelism is a table:
 *
 *     static const ctrt_layout_pattern patterns[] = {
 *         { "*.mlp.0.*",      { .kind = CTRT_LAYOUT_SHARDED, .dim = 0 } },      // outputs of the first layer
 *         { "*.mlp.2.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },      // inputs of the second layer
 *     };
 *
 * CTRT_ERR_NOT_FOUND if a pattern matches no parameter, before anything is changed. Errors of ctrt_tensor_distribute
 * name the parameter. */
CTRT_API ctrt_status ctrt_module_distribute(ctrt_module *module, const ctrt_layout_pattern *patterns, int count);

CTRT_END_DECLS

#endif
