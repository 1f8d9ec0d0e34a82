/* SPDX-License-Identifier: Apache-2.0 */
/* tests/abi/surface.c: a shared object that exports an object of every struct of ctrt/plugin.h, for abidiff. */
#include "ctrt/plugin.h"

#define SHOW(type) __attribute__((visibility("default"))) type show_##type

SHOW(ctrt_plugin);
SHOW(ctrt_component);
SHOW(ctrt_backend);
SHOW(ctrt_kernels);
SHOW(ctrt_memory_policy);
SHOW(ctrt_memory_policy_stats);
SHOW(ctrt_memory_source);
SHOW(ctrt_block);
SHOW(ctrt_host);
SHOW(ctrt_device_info);
SHOW(ctrt_device_usage);
SHOW(ctrt_device_link);
SHOW(ctrt_call);
SHOW(ctrt_view);
SHOW(ctrt_reduce_attributes);
SHOW(ctrt_range_attributes);
SHOW(ctrt_gelu_attributes);
SHOW(ctrt_conv_attributes);
SHOW(ctrt_pool_attributes);
SHOW(ctrt_norm_attributes);
SHOW(ctrt_cross_entropy_attributes);
SHOW(ctrt_attention_attributes);
SHOW(ctrt_index_attributes);
SHOW(ctrt_random_attributes);
SHOW(ctrt_sgd_attributes);
SHOW(ctrt_adam_attributes);
SHOW(ctrt_amp_attributes);
