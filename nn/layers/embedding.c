/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/embedding.c: Embedding, a lookup table of vectors. */
#include "nn/layers/layers.h"

struct embedding {
    ctrt_tensor *weight;
    int64_t padding_idx;
};

static ctrt_status embedding_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct embedding *embedding = ctrt_module_state(self);
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_embedding(y, embedding->weight, inputs[0], embedding->padding_idx);
}

static const ctrt_module_class embedding_class = {
    .size = sizeof(ctrt_module_class), .kind = "Embedding", .state_bytes = sizeof(struct embedding),
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct embedding, weight)),
    .forward = embedding_forward,
};

static ctrt_status zero_row(ctrt_tensor *weight, int64_t row)
{
    CTRT_AUTO(tensor) view = NULL;
    CTRT_TRY(ctrt_select(&view, weight, 0, row));
    return ctrt_zero_(view);
}

ctrt_status ctrt_embedding_new(ctrt_module **out, int64_t count, int64_t dim, const ctrt_embedding_options *options,
                               ctrt_device *device)
{
    ctrt_embedding_options o = CTRT_EMBEDDING_OPTIONS;
    CTRT_AUTO(module) self = NULL;
    ctrt_status status = CTRT_OK;
    NULL_CHECK("embedding_new", out);
    CTRT_TRY(struct_read(&o, sizeof o, options, "embedding_new", "options"));
    CTRT_TRY(module_at_least("embedding_new", "count", count, 1));
    CTRT_TRY(module_at_least("embedding_new", "dim", dim, 0));
    CTRT_TRY(module_at_least("embedding_new", "padding_idx", o.padding_idx, -1));
    if (o.padding_idx >= count)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "embedding_new: padding_idx %lld is not below the %lld rows",
                         (long long)o.padding_idx, (long long)count);
    CTRT_TRY(ctrt_module_new(&self, &embedding_class));
    struct embedding *embedding = ctrt_module_state(self);
    embedding->padding_idx = o.padding_idx;
    CTRT_TRY(module_new_parameter(&embedding->weight, self, "weight", CTRT_SHAPE(count, dim), device));
    CTRT_TRY(ctrt_init_normal_(embedding->weight, 0, 1));
    if (o.padding_idx >= 0)
        ctrt_no_grad status = zero_row(embedding->weight, o.padding_idx);
    CTRT_TRY(status);
    module_give(out, &self);
    return CTRT_OK;
}
