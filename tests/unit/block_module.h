/* SPDX-License-Identifier: Apache-2.0 */
/* block_module.h: a transformer block as a module of the program: causal attention and two linear layers, each behind
 * a layer norm and with a residual connection. */
#ifndef CTRT_TESTS_BLOCK_MODULE_H
#define CTRT_TESTS_BLOCK_MODULE_H

#include "../options.h"
#include "calls.h"
#include "ctrt/ctrt.h"

struct block { ctrt_module *ln1, *attn, *ln2, *mlp; };

static inline ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct block *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = ctrt_tensor_retain(inputs[0]), h = NULL;
    (void)count;
    TRY(ctrt_forward(&h, b->ln1, x));
    TRY(ctrt_forward(&h, b->attn, h));
    TRY(ctrt_add(&x, x, h));
    TRY(ctrt_forward(&h, b->ln2, x));
    TRY(ctrt_forward(&h, b->mlp, h));
    return ctrt_add(y, x, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct block, ln1), offsetof(struct block, attn),
                                          offsetof(struct block, ln2), offsetof(struct block, mlp)),
};

/* `hidden`: features between the linear layers. `gelu_tanh`: the form of GELU. */
static inline ctrt_status block_new(ctrt_module **out, int64_t width, int64_t heads, int64_t hidden, bool gelu_tanh,
                                    ctrt_device *device)
{
    CTRT_TRY(ctrt_module_new(out, &block_class));
    struct block *b = ctrt_module_state(*out);
    CTRT_TRY(ctrt_module_add_module(*out, "ln1", b->ln1 = CTRT_NEW(layer_norm, CTRT_SHAPE(width), NULL, device)));
    CTRT_TRY(ctrt_module_add_module(*out, "attn", b->attn = CTRT_NEW(multihead_attention, width, heads,
                                                                     ATTENTION(.causal = true), device)));
    CTRT_TRY(ctrt_module_add_module(*out, "ln2", b->ln2 = CTRT_NEW(layer_norm, CTRT_SHAPE(width), NULL, device)));
    return ctrt_module_add_module(*out, "mlp", b->mlp = CTRT_NEW(sequential, CTRT_MODULES(
        CTRT_NEW(linear, width, hidden, true, device), CTRT_NEW(gelu, gelu_tanh),
            CTRT_NEW(linear, hidden, width, true, device))));
}

#endif
