/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/common.c: see common.h. */
#include "common.h"

/* ---- parameters of the environment ---- */

const ctrt_host *strategy_host;

ctrt_status strategy_register(const ctrt_host *host, const ctrt_param *const *params)
{
    ctrt_param_value value;
    for (strategy_host = host; *params != NULL; params++)
        CTRT_TRY(host->param(&value, *params));
    return CTRT_OK;
}

ctrt_status strategy_integer(int64_t *out, const ctrt_param *param, int64_t least, int64_t most, const char *expected)
{
    ctrt_param_value value;
    CTRT_TRY(strategy_host->param(&value, param));
    if (value.integer < least || value.integer > most)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: expected %s", param->name, value.text, expected);
    *out = value.integer;
    return CTRT_OK;
}

/* ---- the tensors of a module ---- */

ctrt_status strategy_tensors_count(size_t *parameters, size_t *count, ctrt_module *module)
{
    ctrt_status status = ctrt_module_parameter(NULL, NULL, module, 0);
    if (status == CTRT_OK || status == CTRT_ERR_NOT_FOUND)
        status = ctrt_module_buffer(NULL, NULL, module, 0);
    if (status != CTRT_OK && status != CTRT_ERR_NOT_FOUND)
        return status;
    *parameters = ctrt_module_parameter_count(module);
    *count = *parameters + ctrt_module_buffer_count(module);
    return CTRT_OK;
}

ctrt_status strategy_tensors_list(ctrt_tensor ***tensors, size_t *parameters, size_t *count, ctrt_module *module)
{
    size_t n;
    CTRT_TRY(strategy_tensors_count(parameters, &n, module));
    CTRT_TRY(ALLOCATE(*tensors, n + 1));
    for (*count = 0; *count < n; ++*count) {
        ctrt_tensor *tensor;
        CTRT_TRY(strategy_tensor_at(NULL, &tensor, module, *parameters, *count));
        (*tensors)[*count] = ctrt_tensor_retain(tensor);
    }
    return CTRT_OK;
}

bool strategy_tensors_same(ctrt_tensor *const *tensors, size_t parameters, size_t count, ctrt_module *module)
{
    bool same = tensors != NULL && ctrt_module_parameter_count(module) == parameters
                && ctrt_module_buffer_count(module) == count - parameters;
    for (size_t i = 0; i < count && same; i++) {
        ctrt_tensor *tensor;
        same = strategy_tensor_at(NULL, &tensor, module, parameters, i) == CTRT_OK && tensor == tensors[i];
    }
    return same;
}

ctrt_status strategy_part(ctrt_tensor **out, ctrt_tensor *flat, int64_t from, const ctrt_tensor *like)
{
    CTRT_TRY(ctrt_narrow(out, flat, 0, from, ctrt_tensor_numel(like)));
    return ctrt_view_as(out, *out, strategy_shape(like));
}

/* ---- canonical mode ---- */

ctrt_status strategy_cut(int64_t *sizes, int *count, int64_t rows, int parts, const double *weights)
{
    const ctrt_scatter_options balanced = { .size = sizeof balanced, .rule = CTRT_CHUNK_BALANCED, .weights = weights };
    return ctrt_chunk_sizes(sizes, count, rows, parts, &balanced);
}

ctrt_status strategy_shards(ctrt_shard_range *range, int64_t *sizes, int64_t rows, int32_t canonical, bool seeded,
                            ctrt_device *device)
{
    int count = 0;
    *range = (ctrt_shard_range){ .sizes = sizes, .seeded = seeded };
    CTRT_TRY(strategy_cut(sizes, &count, rows, canonical, NULL));
    range->count = range->total = count;
    return ctrt_generator_get(device, &range->seed, &range->offset);
}

ctrt_status strategy_shards_end(ctrt_status status, ctrt_device *device, const ctrt_shard_range *range)
{
    if (status != CTRT_OK || !range->random)
        return status;
    return ctrt_generator_set(device, range->seed, range->offset + (((uint64_t)range->total + 1) << 32));
}

ctrt_status strategy_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device, ctrt_tensor *const *inputs,
                             int count, int32_t canonical, bool seeded)
{
    ctrt_shard_range range;
    SCRATCH int64_t *sizes = NULL;
    if (canonical == 0 || ctrt_tensor_ndim(inputs[0]) == 0 || ctrt_tensor_size(inputs[0], 0) == 0)
        return ctrt_shard_forward(y, module, device, inputs, count, 0, -1);
    CTRT_TRY(ALLOCATE(sizes, (size_t)canonical));
    CTRT_TRY(strategy_shards(&range, sizes, ctrt_tensor_size(inputs[0], 0), canonical, seeded, device));
    return strategy_shards_end(ctrt_shards_forward(y, module, device, inputs, count, &range), device, &range);
}
