/* SPDX-License-Identifier: Apache-2.0 */
/* multi_block.h: a transformer block and the layouts of its parameters for tensor parallelism. */
#ifndef CTRT_TESTS_MULTI_BLOCK_H
#define CTRT_TESTS_MULTI_BLOCK_H

#include "block_module.h"
#include "multi_check.h"

enum { WIDTH = 16, HEADS = 4 };

static inline ctrt_module *block_on(ctrt_device *device)
{
    ctrt_module *block = NULL;
    ctrt_manual_seed(3);
    CHECK_OK(block_new(&block, WIDTH, HEADS, 4 * WIDTH, true, device));
    return block;
}

static const ctrt_layout_pattern tensor_parallel[] = {
    { "attn.in_proj_*", { .kind = CTRT_LAYOUT_SHARDED, .dim = 0, .groups = 3 } },
    { "attn.out_proj.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
    { "mlp.0.*", { .kind = CTRT_LAYOUT_SHARDED, .dim = 0 } },
    { "mlp.2.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
};

#endif
