/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/replaced.h: detects that tensors got another storage. */
#ifndef CORE_TENSOR_REPLACED_H
#define CORE_TENSOR_REPLACED_H

#include <stdatomic.h>
#include <stdint.h>

/* tensor.c: number of storages that tensor_set_data has replaced in this process. If it is unchanged, all tensors have
 * the same storages as before. The address and the version of a tensor do not prove that, because a new storage can
 * have the address of a freed one, and versions begin at 0. */
extern _Atomic uint64_t tensor_replaced;

#endif
