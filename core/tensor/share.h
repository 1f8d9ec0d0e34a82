/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/share.h: moves tensors into memory that processes share. */
#ifndef CORE_TENSOR_SHARE_H
#define CORE_TENSOR_SHARE_H

#include "memory/shared.h"
#include "tensor/tensor.h"

/* Whether the tensor's storage can be moved into a segment. CTRT_ERR_NOT_SUPPORTED, with a reason and a remedy: the
 * tensor is not on the cpu, or is pinned; CTRT_ERR_STATE: another library, or a part of ctrt, has the address. `who`
 * begins the message. */
ctrt_status tensor_share_check(const char *who, ctrt_tensor *tensor);
/* Moves the storage of a tensor that tensor_share_check accepted to `place` in a segment. All tensors of the storage,
 * on all threads and in autograd graphs, have the new address afterwards. No other thread may use them meanwhile. */
void tensor_share_move(ctrt_tensor *tensor, struct shared_segment *segment, size_t place);

#endif
