/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/layout.h: how the tensors of a device with several members are distributed.
 *
 * Each device of sim-multi and nccl-multi consists of several devices, its members. The values of a tensor on such a
 * device do not depend on its layout; the layout determines how much memory and communication the tensor needs. New
 * tensors are replicated, unless an op computes them from tensors in other layouts. Ops choose the layouts of their
 * results and redistribute operands where necessary (doc/layouts.md). A copy to another device of the same type that
 * has as many members has the layout of the original. On other devices every tensor is replicated.
 *
 * The functions are thread-safe for different tensors. Two calls that use one tensor must not run at the same time if
 * one of them distributes it. A required argument that is NULL gives CTRT_ERR_INVALID_ARGUMENT. */
#ifndef CTRT_LAYOUT_H
#define CTRT_LAYOUT_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

/* Writes the layout of the tensor to *layout. If a sharded tensor has a view in which no dimension is the sharded one,
 * the layout of the view is reported as replicated, although ops have to gather it. */
CTRT_API ctrt_status ctrt_tensor_layout(ctrt_layout *layout, ctrt_tensor *tensor);

/* Changes the layout of the whole storage of `tensor`; the values stay the same. A negative layout->dim counts from
 * the end. A sharded dimension is cut as by ctrt_chunk, into parts of ceil(size / members), of which the last ones
 * may be smaller or empty. On a device without members, CTRT_LAYOUT_REPLICATED has no effect.
 *
 * Ops do not change the layout of a tensor that this function has sharded. An op that needs the tensor in another
 * layout uses a temporary copy.
 *
 * Errors: CTRT_ERR_SHAPE if the tensor is not contiguous or does not use its whole storage. CTRT_ERR_NOT_SUPPORTED for
 * CTRT_LAYOUT_PARTIAL, because only ops create partial sums, and for CTRT_LAYOUT_SHARDED on a device without members.
 * CTRT_ERR_INVALID_ARGUMENT for an unknown kind or if layout->groups does not divide the dimension. Errors of a
 * member, such as CTRT_ERR_OUT_OF_MEMORY, name it; the layout is as before then. If that was a partial sum, its values
 * may be lost; CTRT_ERR_STATE if they are lost already. */
CTRT_API ctrt_status ctrt_tensor_distribute(ctrt_tensor *tensor, const ctrt_layout *layout);

/* Distributes `tensor` as `like`, of the same shape, is sharded: for copies, gradients and states of a parameter, also
 * on other devices. Has no effect if `like` is not sharded, if the device of `tensor` has no members, or if `tensor` is
 * not contiguous. Before the first write to `tensor`, no communication is needed.
 *
 * Errors: CTRT_ERR_SHAPE if the shapes differ; those of ctrt_tensor_distribute. */
CTRT_API ctrt_status ctrt_tensor_distribute_like(ctrt_tensor *tensor, ctrt_tensor *like);

/* Writes member number `index` of `device` (NULL: the default device). A device without members has one, itself. Work
 * of `device` runs on the calling thread's current streams of the members, so that ctrt_stream_push of a stream of each
 * member moves such work to these streams.
 *
 * Errors: CTRT_ERR_NOT_FOUND if the device has not more than `index` members. */
CTRT_API ctrt_status ctrt_device_member(ctrt_device **out, ctrt_device *device, int index);

/* Writes the number of redistributions since the device was opened; all are 0 for a device without members.
 * `device`: NULL is the default device. */
#define CTRT_LAYOUT_COUNTS CTRT_SIZED_(ctrt_layout_counts)
CTRT_API ctrt_status ctrt_layout_count(ctrt_layout_counts *counts, ctrt_device *device);

/* A layout for the parameters whose dotted names match `pattern`, a pattern of fnmatch(): `*` matches any
 * characters. */
typedef struct ctrt_layout_pattern {
    const char *pattern;                /* "*.mlp.0.weight" */
    ctrt_layout layout;
} ctrt_layout_pattern;

/* Gives each parameter of `module` the layout of the first pattern that matches its name. Parameters that match no
 * pattern keep their layout. With this function a table describes tensor parallelism:
 *
 *     static const ctrt_layout_pattern patterns[] = {
 *         { "*.mlp.0.*",      { .kind = CTRT_LAYOUT_SHARDED, .dim = 0 } },      // outputs of the first layer
 *         { "*.mlp.2.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },      // inputs of the second layer
 *     };
 *
 * Errors: CTRT_ERR_NOT_FOUND if a pattern matches no parameter; no layout has changed then. Errors of
 * ctrt_tensor_distribute, whose message also names the parameter; the parameters before it have their new layout. */
CTRT_API ctrt_status ctrt_module_distribute(ctrt_module *module, const ctrt_layout_pattern *patterns, int count);

CTRT_END_DECLS

#endif
