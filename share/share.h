/* SPDX-License-Identifier: Apache-2.0 */
/* share/share.h: functions that the files of share/ call. */
#ifndef SHARE_SHARE_H
#define SHARE_SHARE_H

#include "memory/shared.h"
#include "tensor/tensor.h"

/* Whether processes can share the tensor's memory, and ctrt_tensor_share_; `who` begins the messages. */
bool tensor_shared(const ctrt_tensor *tensor);
ctrt_status tensor_share(const char *who, ctrt_tensor *tensor);

#endif
