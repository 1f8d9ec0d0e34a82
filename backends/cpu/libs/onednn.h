/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/onednn.h: matrix products and convolutions by oneDNN, through its C API, version 2.x or 3.x.
 *
 * The library is opened at first use. Each thread caches primitives with their memory objects by a key (op, dtype,
 * shape, strides), so that the next call with the same key only sets addresses and executes. Where the primitive
 * requires a layout that the tensor does not have, the entry also has a reorder primitive, or describes a copy by
 * blocked.c; the copy is in the thread's scratch memory. */
#ifndef CTRT_CPU_ONEDNN_H
#define CTRT_CPU_ONEDNN_H

#include "kernels/conv.h"
#include "kernels/product.h"

/* Compute the result, or return false and leave the output unchanged if the library is not available or has no fast
 * implementation for this shape and dtype. */
bool cpu_onednn_product(const struct cpu_product *p);
bool cpu_onednn_conv(const struct cpu_conv *conv);

#endif
