/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_LAYOUT_H
#define CTRT_LAYOUT_H
#include "ctrt/nn.h"
CTRT_BEGIN_DECLS
CTRT_API ctrt_status ctrt_tensor_layout(ctrt_layout *layout, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_tensor_distribute(ctrt_tensor *tensor, const ctrt_layout *layout);
CTRT_API ctrt_status ctrt_tensor_distribute_like(ctrt_tensor *tensor, ctrt_tensor *like);
CTRT_API ctrt_status ctrt_device_member(ctrt_device **out, ctrt_device *device, int index);
#define CTRT_LAYOUT_COUNTS CTRT_SIZED_(ctrt_layout_counts)
CTRT_API ctrt_status ctrt_layout_count(ctrt_layout_counts *counts, ctrt_device *device);
typedef struct ctrt_layout_pattern {
    const char *pattern;
    ctrt_layout layout;
} ctrt_layout_pattern;
CTRT_API ctrt_status ctrt_module_distribute(ctrt_module *module, const ctrt_layout_pattern *patterns, int count);
CTRT_END_DECLS
#endif
