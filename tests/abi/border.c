/* SPDX-License-Identifier: Apache-2.0 */
/* tests/abi/border.c: a shared object from which every struct of the plugin border can be reached, for abidiff. */
#include "ctrt/plugin.h"

#define REACH(type) CTRT_API const type *border_##type(const type *x); \
    const type *border_##type(const type *x) { return x; }
REACH(ctrt_plugin)
REACH(ctrt_component)
REACH(ctrt_backend)
REACH(ctrt_kernels)
REACH(ctrt_memory_policy)
REACH(ctrt_memory_source)
REACH(ctrt_host)
REACH(ctrt_call)
REACH(ctrt_view)
REACH(ctrt_param)
REACH(ctrt_reduce_attributes)
REACH(ctrt_range_attributes)
REACH(ctrt_gelu_attributes)
REACH(ctrt_conv_attributes)
REACH(ctrt_pool_attributes)
REACH(ctrt_norm_attributes)
REACH(ctrt_cross_entropy_attributes)
REACH(ctrt_index_attributes)
REACH(ctrt_random_attributes)
REACH(ctrt_sgd_attributes)
REACH(ctrt_adam_attributes)
