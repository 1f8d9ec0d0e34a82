/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/onednn.h: oneDNN through its C API, 2.x or 3.x, opened when first wanted.
 *
 * A primitive is kept with memory objects of its own, per thread and by a key (op, dtype, shape, strides), so
 * that the next call of that shape only sets addresses and runs. Where the primitive wants a layout that the
 * tensor does not have, the entry has a reorder and room in the thread's scratch. */
#ifndef CTRT_CPU_ONEDNN_H
#define CTRT_CPU_ONEDNN_H

#include "conv.h"
#include "product.h"

/* Compute, or return false and leave the result untouched: the library is absent, or has nothing good for this
 * shape and dtype. */
bool cpu_onednn_product(const struct cpu_product *p);
bool cpu_onednn_conv(const struct cpu_conv *conv);

#endif
