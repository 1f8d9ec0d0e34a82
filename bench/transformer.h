/* SPDX-License-Identifier: Apache-2.0 */
/* bench/transformer.h: a transformer of pre-norm blocks, on the default device, for the programs that measure training
 * steps: x + attention(ln1(x)), then x + mlp(ln2(x)); causal attention, gelu, a hidden layer of 4 * width. */
#ifndef BENCH_TRANSFORMER_H
#define BENCH_TRANSFORMER_H

#include <ctrt/ctrt.h>

#define TRANSFORMER_MAX_LAYERS 8

struct block { ctrt_module *ln1, *attention, *ln2, *mlp; };

static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct block *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = ctrt_tensor_retain(inputs[0]), h = NULL;
    (void)count;
    CTRT_TRY(ctrt_forward(&h, b->ln1, x));
    CTRT_TRY(ctrt_forward(&h, b->attention, h));
    CTRT_TRY(ctrt_add(&x, x, h));
    CTRT_TRY(ctrt_forward(&h, b->ln2, x));
    CTRT_TRY(ctrt_forward(&h, b->mlp, h));
    return ctrt_add(y, x, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct block, ln1), offsetof(struct block, attention),
                                          offsetof(struct block, ln2), offsetof(struct block, mlp)),
};

static ctrt_status block_new(ctrt_module **out, int64_t width, int64_t heads)
{
    ctrt_multihead_attention_options causal = CTRT_MULTIHEAD_ATTENTION_OPTIONS;
    causal.causal = true;
    CTRT_TRY(ctrt_module_new(out, &block_class));
    struct block *b = ctrt_module_state(*out);
    b->ln1 = CTRT_NEW(layer_norm, CTRT_SHAPE(width), NULL, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "ln1", b->ln1));
    b->attention = CTRT_NEW(multihead_attention, width, heads, &causal, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "attention", b->attention));
    b->ln2 = CTRT_NEW(layer_norm, CTRT_SHAPE(width), NULL, NULL);
    CTRT_TRY(ctrt_module_add_module(*out, "ln2", b->ln2));
    b->mlp = CTRT_NEW(sequential, CTRT_MODULES(CTRT_NEW(linear, width, 4 * width, true, NULL), CTRT_NEW(gelu, true),
                                               CTRT_NEW(linear, 4 * width, width, true, NULL)));
    return ctrt_module_add_module(*out, "mlp", b->mlp);
}

static ctrt_status transformer_new(ctrt_module **out, int64_t width, int64_t heads, int layers)
{
    ctrt_module *blocks[TRANSFORMER_MAX_LAYERS] = { NULL };
    for (int i = 0; i < layers; i++) {
        const ctrt_status status = block_new(&blocks[i], width, heads);
        if (status != CTRT_OK) {
            for (int k = 0; k <= i; k++)
                ctrt_module_release(&blocks[k]);
            return status;
        }
    }
    return ctrt_sequential_new(out, ctrt_modules_of(blocks, layers));
}

#endif
