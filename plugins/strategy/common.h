/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/common.h: common code of all strategies: host memory, parameters of the environment, the tensors of
 * a module, canonical mode on one device. common.c is compiled into each plugin. */
#ifndef STRATEGY_COMMON_H
#define STRATEGY_COMMON_H

#include <stdlib.h>
#include <string.h>

#include "ctrt/ctrt.h"
#include "ctrt/strategy_plugin.h"

/* ---- host memory for the structures of strategies, which free() frees ---- */

/* CTRT_ERR_OUT_OF_MEMORY if `memory` is NULL. `bytes`: its size, for the message. */
static inline ctrt_status strategy_allocated(const void *memory, size_t bytes)
{
    return memory != NULL ? CTRT_OK : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory: %zu bytes for a list of "
                                                "the strategy", bytes);
}

/* Sets `pointer` to `count` elements that are zero, and to NULL on failure. A list without elements is not NULL. The
 * value is a ctrt_status. */
#define ALLOCATE(pointer, count)                                                            \
    strategy_allocated((pointer) = calloc((count) + ((count) == 0), sizeof *(pointer)),     \
                       (size_t)(count) * sizeof *(pointer))

static inline void strategy_scratch_free(void *variable)
{
    void *memory;
    memcpy(&memory, variable, sizeof memory);
    free(memory);
}
/* Declares a list that is freed at the end of its block, also when CTRT_TRY returns from it: SCRATCH int *x = NULL; */
#define SCRATCH __attribute__((cleanup(strategy_scratch_free)))

/* The end of `create`: writes the strategy to *out or, after a failure, destroys it. Returns `status`. */
static inline ctrt_status strategy_created(void **out, void *strategy, ctrt_status status,
                                           void (*destroy)(void *strategy))
{
    if (status == CTRT_OK)
        *out = strategy;
    else
        destroy(strategy);
    return status;
}

/* ---- parameters of the environment ---- */

extern const ctrt_host *strategy_host;
/* Sets strategy_host and registers the parameters, up to NULL. */
ctrt_status strategy_register(const ctrt_host *host, const ctrt_param *const *params);
/* Reads an integer. CTRT_ERR_INVALID_ARGUMENT outside of least..most; `expected` describes the range in the message. */
ctrt_status strategy_integer(int64_t *out, const ctrt_param *param, int64_t least, int64_t most, const char *expected);

/* ---- the tensors of a module: its parameters, then its buffers ---- */

/* Writes the i-th tensor and its name, both borrowed. `parameters`: number of parameters of the module. */
static inline ctrt_status strategy_tensor_at(const char **name, ctrt_tensor **tensor, ctrt_module *module,
                                             size_t parameters, size_t i)
{
    return i < parameters ? ctrt_module_parameter(name, tensor, module, i)
                          : ctrt_module_buffer(name, tensor, module, i - parameters);
}

/* Writes the number of parameters and of all tensors. The functions that count tensors return 0 if that fails; this one
 * returns the error. */
ctrt_status strategy_tensors_count(size_t *parameters, size_t *count, ctrt_module *module);
/* Writes a list that owns references to the tensors, also if it fails, and the lengths. */
ctrt_status strategy_tensors_list(ctrt_tensor ***tensors, size_t *parameters, size_t *count, ctrt_module *module);
/* Returns whether the tensors of the module are those of the list, which may be NULL. */
bool strategy_tensors_same(ctrt_tensor *const *tensors, size_t parameters, size_t count, ctrt_module *module);

static inline uint64_t strategy_tensor_bytes(const ctrt_tensor *tensor)
{
    return (uint64_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(ctrt_tensor_dtype(tensor));
}

static inline ctrt_ints strategy_shape(const ctrt_tensor *tensor)
{
    return ctrt_ints_of(ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor));
}

/* *out: a view of the part of a flat tensor that begins with element `from`, in the shape of `like`. */
ctrt_status strategy_part(ctrt_tensor **out, ctrt_tensor *flat, int64_t from, const ctrt_tensor *like);

/* ---- canonical mode ---- */

/* Cuts rows into balanced parts, as ctrt_chunk_sizes; `weights` may be NULL. */
ctrt_status strategy_cut(int64_t *sizes, int *count, int64_t rows, int parts, const double *weights);
/* All shards of a batch. sizes[canonical] receives their rows. */
ctrt_status strategy_shards(ctrt_shard_range *range, int64_t *sizes, int64_t rows, int32_t canonical, bool seeded,
                            ctrt_device *device);
/* If the shards have used random numbers, makes the generator continue after those of all shards. Returns `status` if
 * it is an error. */
ctrt_status strategy_shards_end(ctrt_status status, ctrt_device *device, const ctrt_shard_range *range);
/* Runs a forward pass of the inputs, in canonical mode (`canonical` is not 0) shard by shard. */
ctrt_status strategy_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device, ctrt_tensor *const *inputs,
                             int count, int32_t canonical, bool seeded);

#endif
