/* SPDX-License-Identifier: Apache-2.0 */
/* ops/amp.h: the ops of the gradient scaler (nn/optim/grad_scaler.c), in place. Nothing is recorded by autograd. The
 * caller is in a ctrt_no_grad region. A device without a kernel computes them with elementwise ops. */
#ifndef CORE_OPS_AMP_H
#define CORE_OPS_AMP_H

#include "ctrt/plugin.h"
#include "tensor/tensor.h"

/* Multiplies the gradients by 1 / scale. Sets `found`, an f32 tensor of one element, to 1 if an element is inf or NaN;
 * otherwise `found` keeps its value. All tensors are on one device; the gradients are contiguous and have one floating
 * dtype. `views` is scratch for 2 * count + 3 pointers. */
ctrt_status op_amp_unscale(ctrt_tensor *found, ctrt_tensor *const *grads, size_t count, ctrt_tensor *scale,
                           const ctrt_view **views);

/* Computes the next scale; see amp_update in ctrt/plugin.h. All tensors are on one device. */
ctrt_status op_amp_update(ctrt_tensor *scale, ctrt_tensor *tracker, ctrt_tensor *skips, ctrt_tensor *found,
                          const ctrt_amp_attributes *attributes);

#endif
