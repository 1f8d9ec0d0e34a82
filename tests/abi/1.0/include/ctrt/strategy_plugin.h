/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_STRATEGY_PLUGIN_H
#define CTRT_STRATEGY_PLUGIN_H
#include "ctrt/optim.h"
#include "ctrt/parallel.h"
#include "ctrt/plugin.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_strategy_config {
    size_t size;
    ctrt_module *module;
    ctrt_device *const *devices;
    int32_t count;
    int32_t canonical;
    ctrt_comm *comm;
    void (*set_comm)(void *net, ctrt_comm *comm);
    void *net;
} ctrt_strategy_config;
enum { CTRT_PARTIAL_RANKS = 1, CTRT_PARTIAL_STEPS = 2 };
typedef struct ctrt_strategy_batch {
    size_t size;
    ctrt_tensor *const *inputs;
    int32_t count;
    int16_t module_inputs;
    int16_t partial;
    int64_t rows;
    ctrt_loss_function loss;
    void *user;
} ctrt_strategy_batch;
enum {
    CTRT_STRATEGY_RANKS = 1, CTRT_STRATEGY_ONE_DEVICE = 2, CTRT_STRATEGY_CAPTURE = 4, CTRT_STRATEGY_DIFFERS = 8
};
typedef struct ctrt_strategy_facts {
    size_t size;
    int32_t elastic;
    int32_t reserved;
    uint64_t parameter_bytes, buffer_bytes;
    uint64_t model_bytes;
    int64_t rows;
} ctrt_strategy_facts;
typedef struct ctrt_strategy_estimate {
    size_t size;
    bool applies;
    bool places;
    bool measured;
    int32_t preference;
    uint64_t bytes;
    int64_t rows;
    char reason[128];
} ctrt_strategy_estimate;
typedef struct ctrt_strategy {
    size_t size;
    uint32_t flags;
    uint32_t reserved;
    ctrt_status (*create)(void **strategy, const ctrt_strategy_config *config);
    void (*destroy)(void *strategy);
    ctrt_status (*forward)(void *strategy, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);
    ctrt_status (*step)(void *strategy, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
    ctrt_status (*no_sync)(void *strategy, bool on);
    void (*describe)(void *strategy, char *text, size_t bytes);
    ctrt_status (*event)(void *strategy, ctrt_module_event event, void *argument);
    ctrt_status (*set_comm_hook)(void *strategy, ctrt_comm_hook hook, void *user);
    int64_t (*steps)(void *strategy);
    ctrt_status (*barrier)(void *strategy);
    ctrt_status (*estimate)(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                            const ctrt_strategy_facts *facts);
} ctrt_strategy;
CTRT_API bool ctrt_set_streams_ordered(bool on);
CTRT_API ctrt_status ctrt_module_memory_budget(uint64_t *bytes, ctrt_module *module, ctrt_device *device);
typedef struct ctrt_batch_ranks {
    ctrt_comm *comm;
    double weight;
} ctrt_batch_ranks;
CTRT_API void ctrt_swap_batch_ranks(ctrt_batch_ranks *ranks);
typedef struct ctrt_sync_layers {
    int32_t layers;
    int32_t training;
    int32_t own;
    int32_t reserved;
} ctrt_sync_layers;
CTRT_API ctrt_status ctrt_sync_layers_find(ctrt_sync_layers *out, ctrt_module *module);
CTRT_API void ctrt_sync_layers_abort(ctrt_module *module, const char *reason);
CTRT_API ctrt_status ctrt_tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source);
CTRT_API ctrt_status ctrt_tensor_new_absent(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device,
                                            ctrt_status (*used)(void *user), void *user);
CTRT_API void ctrt_tensor_set_version(ctrt_tensor *tensor, uint32_t version);
CTRT_API ctrt_status ctrt_gradients_take(ctrt_tensor **grads, ctrt_module *module);
CTRT_API ctrt_status ctrt_gradients_restore(ctrt_module *module, ctrt_tensor **grads);
CTRT_API ctrt_status ctrt_gradients_add(ctrt_module *module, ctrt_tensor **before, ctrt_tensor **grads);
CTRT_API void ctrt_tensors_release(ctrt_tensor **tensors, size_t count);
typedef struct ctrt_sum_tree ctrt_sum_tree;
CTRT_API ctrt_status ctrt_sum_tree_new(ctrt_sum_tree **out, int64_t leaves, size_t count, ctrt_device *device);
CTRT_API void ctrt_sum_tree_release(ctrt_sum_tree **tree);
CTRT_API ctrt_status ctrt_sum_tree_add(ctrt_sum_tree *tree, int64_t leaf, ctrt_tensor **tensors);
CTRT_API ctrt_status ctrt_sum_tree_merge(ctrt_sum_tree *tree, ctrt_sum_tree *from);
CTRT_API ctrt_status ctrt_sum_tree_take(ctrt_sum_tree *tree, int *level, int64_t *index, ctrt_tensor **tensors);
CTRT_API ctrt_status ctrt_sum_tree_put(ctrt_sum_tree *tree, int level, int64_t index, ctrt_tensor **tensors);
CTRT_API ctrt_status ctrt_sum_tree_result(ctrt_tensor **out, ctrt_sum_tree *tree);
typedef enum ctrt_loss_kind { CTRT_LOSS_MEAN, CTRT_LOSS_SUM, CTRT_LOSS_FRACTION } ctrt_loss_kind;
typedef struct ctrt_loss_part {
    int32_t kind;
    int32_t parts;
    double per_row;
    ctrt_tensor *weight;
    uint64_t reserved[2];
} ctrt_loss_part;
CTRT_API void ctrt_loss_part_release(ctrt_loss_part *part);
CTRT_API ctrt_status ctrt_loss_part_add(ctrt_loss_part *total, ctrt_loss_part *part);
typedef struct ctrt_part_module {
    ctrt_module *module;
    ctrt_tensor *const *originals;
} ctrt_part_module;
CTRT_API const ctrt_part_module *ctrt_set_part_module(const ctrt_part_module *part);
CTRT_API ctrt_status ctrt_part_loss(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_tensor *output,
                                    ctrt_tensor *const *inputs, const ctrt_strategy_batch *batch, int64_t rows);
typedef ctrt_status (*ctrt_part_ready)(void *user, const ctrt_loss_part *part, double *weight);
CTRT_API ctrt_status ctrt_part_backward(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_module *module,
                                        ctrt_device *device, const ctrt_strategy_batch *batch, int64_t from,
                                        int64_t rows, double weight, ctrt_part_ready ready, void *user);
CTRT_API ctrt_status ctrt_step_finish(ctrt_tensor **loss, ctrt_module *module, ctrt_tensor **before,
                                      ctrt_tensor **grads, ctrt_loss_part *total, const ctrt_strategy_batch *batch);
CTRT_API ctrt_status ctrt_shard_backward(ctrt_tensor **loss, ctrt_module *module, ctrt_device *device,
                                         const ctrt_strategy_batch *batch, int64_t from, int64_t rows, double weight);
CTRT_API ctrt_status ctrt_shard_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device,
                                        ctrt_tensor *const *inputs, int count, int64_t from, int64_t rows);
typedef struct ctrt_shard_range {
    int64_t first, count;
    const int64_t *sizes;
    int64_t total;
    uint64_t seed, offset;
    bool seeded;
    bool random;
    int32_t kind, parts;
    double per_row;
    uint64_t reserved[2];
} ctrt_shard_range;
CTRT_API ctrt_status ctrt_shards_backward(ctrt_sum_tree *sum, ctrt_module *module, ctrt_device *device,
                                          const ctrt_strategy_batch *batch, ctrt_shard_range *range);
CTRT_API ctrt_status ctrt_shards_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device,
                                         ctrt_tensor *const *inputs, int count, ctrt_shard_range *range);
CTRT_END_DECLS
#endif
