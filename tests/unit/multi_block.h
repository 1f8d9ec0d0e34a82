/* SPDX-License-Identifier: Apache-2.0 */
/* multi_block.h: a transformer block and the layouts of its parameters for tensor parallelism. */
#ifndef CTRT_TESTS_MULTI_BLOCK_H
#define CTRT_TESTS_MULTI_BLOCK_H

#include "multi_check.h"

struct parts { ctrt_module *ln1, *attn, *ln2, *mlp; };

static inline ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct parts *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = ctrt_tensor_retain(inputs[0]), h = NULL;
    (void)count;
    CTRT_TRY(ctrt_forward(&h, b->ln1, x));
    CTRT_TRY(ctrt_forward(&h, b->attn, h));
    CTRT_TRY(ctrt_add(&x, x, h));
    CTRT_TRY(ctrt_forward(&h, b->ln2, x));
    CTRT_TRY(ctrt_forward(&h, b->mlp, h));
    return ctrt_add(y, x, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct parts), .forward = block_forward,
};

enum { WIDTH = 16, HEADS = 4 };

static inline ctrt_module *block_new(ctrt_device *device)
{
    ctrt_module *block = NULL;
    ctrt_manual_seed(3);
    CHECK_OK(ctrt_module_new(&block, &block_class));
    struct parts *b = ctrt_module_state(block);
    b->ln1 = CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), 0, true, device);
    b->attn = CTRT_NEW(multihead_attention, WIDTH, HEADS, 0, true, true, device);
    b->ln2 = CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), 0, true, device);
    b->mlp = CTRT_NEW(sequential, CTRT_MODULES(CTRT_NEW(linear, WIDTH, 4 * WIDTH, true, device), CTRT_NEW(gelu, true),
                                               CTRT_NEW(linear, 4 * WIDTH, WIDTH, true, device)));
    CHECK_OK(ctrt_module_add_module(block, "ln1", b->ln1));
    CHECK_OK(ctrt_module_add_module(block, "attn", b->attn));
    CHECK_OK(ctrt_module_add_module(block, "ln2", b->ln2));
    CHECK_OK(ctrt_module_add_module(block, "mlp", b->mlp));
    return block;
}

static const ctrt_layout_pattern tensor_parallel[] = {
    { "attn.in_proj_*", { .kind = CTRT_LAYOUT_SHARDED, .dim = 0, .groups = 3 } },
    { "attn.out_proj.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
    { "mlp.0.*", { .kind = CTRT_LAYOUT_SHARDED, .dim = 0 } },
    { "mlp.2.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
};

#endif
