/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_PARALLEL_H
#define CTRT_PARALLEL_H
#include "ctrt/comm.h"
#include "ctrt/nn.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_tree ctrt_tree;
typedef enum ctrt_tree_kind {
    CTRT_TREE_NOTHING, CTRT_TREE_TENSOR, CTRT_TREE_LIST, CTRT_TREE_MAP, CTRT_TREE_POINTER
} ctrt_tree_kind;
CTRT_API ctrt_status ctrt_tree_of_tensor(ctrt_tree **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_tree_of_list(ctrt_tree **out, ctrt_tree *const *items, size_t count);
CTRT_API ctrt_status ctrt_tree_of_map(ctrt_tree **out, const char *const *names, ctrt_tree *const *items, size_t count);
CTRT_API ctrt_status ctrt_tree_of_pointer(ctrt_tree **out, void *pointer);
CTRT_API ctrt_tree *ctrt_tree_retain(ctrt_tree *tree);
CTRT_API void ctrt_tree_release(ctrt_tree **tree);
CTRT_API ctrt_tree_kind ctrt_tree_kind_of(const ctrt_tree *tree);
CTRT_API ctrt_tensor *ctrt_tree_tensor(const ctrt_tree *tree);
CTRT_API void *ctrt_tree_pointer(const ctrt_tree *tree);
CTRT_API size_t ctrt_tree_count(const ctrt_tree *tree);
CTRT_API ctrt_tree *ctrt_tree_item(const ctrt_tree *tree, size_t index);
CTRT_API const char *ctrt_tree_name(const ctrt_tree *tree, size_t index);
CTRT_API ctrt_tree *ctrt_tree_find(const ctrt_tree *tree, const char *name);
typedef enum ctrt_chunk_rule {
    CTRT_CHUNK_CEIL,
    CTRT_CHUNK_BALANCED
} ctrt_chunk_rule;
typedef struct ctrt_scatter_options {
    size_t size;
    ctrt_chunk_rule rule;
    const double *weights;
} ctrt_scatter_options;
#define CTRT_SCATTER_OPTIONS CTRT_SIZED_(ctrt_scatter_options)
CTRT_API ctrt_status ctrt_chunk_sizes(int64_t *sizes, int *count, int64_t size, int n,
                                      const ctrt_scatter_options *options);
CTRT_API ctrt_status ctrt_scatter_tensor(ctrt_tensor **out, int *count, ctrt_tensor *tensor,
                                         ctrt_device *const *devices, int n, int dim,
                                         const ctrt_scatter_options *options);
CTRT_API ctrt_status ctrt_scatter_tree(ctrt_tree **out, int *count, ctrt_tree *tree, ctrt_device *const *devices, int n,
                                       int dim, const ctrt_scatter_options *options);
CTRT_API ctrt_status ctrt_gather_tensor(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, ctrt_device *device,
                                        int dim);
CTRT_API ctrt_status ctrt_gather_tree(ctrt_tree **out, ctrt_tree *const *trees, int count, ctrt_device *device,
                                      int dim);
CTRT_API ctrt_status ctrt_replicate(ctrt_module **replicas, ctrt_module *module, ctrt_device *const *devices, int n);
typedef ctrt_status (*ctrt_parallel_function)(void *user, int index);
CTRT_API ctrt_status ctrt_parallel_apply(ctrt_parallel_function function, void *user, ctrt_device *const *devices,
                                         int n);
CTRT_API ctrt_status ctrt_parallel_forward(ctrt_tensor **outputs, ctrt_module *const *modules,
                                           ctrt_tensor *const *inputs, ctrt_device *const *devices, int n);
CTRT_API ctrt_status ctrt_sync_batch_norm_new(ctrt_module **out, int64_t features,
                                              const ctrt_batch_norm_options *options, ctrt_comm *comm,
                                              ctrt_device *device);
CTRT_API ctrt_status ctrt_convert_sync_batch_norm(ctrt_module *module, ctrt_comm *comm);
typedef struct ctrt_imbalance {
    int slow, fast;
    double ratio;
    const char *what;
    uint64_t reserved[2];
} ctrt_imbalance;
CTRT_API bool ctrt_devices_imbalanced(ctrt_imbalance *out, ctrt_device *const *devices, int n);
CTRT_API ctrt_status ctrt_parallel_new(ctrt_module **out, ctrt_module *module, const char *strategy,
                                       ctrt_device *const *devices, int n);
CTRT_API ctrt_status ctrt_parallel_new_comm(ctrt_module **out, ctrt_module *module, const char *strategy,
                                            ctrt_comm *comm);
CTRT_API ctrt_comm *ctrt_parallel_comm(ctrt_module *net);
CTRT_API int64_t ctrt_parallel_steps(ctrt_module *net);
CTRT_API ctrt_status ctrt_parallel_barrier(ctrt_module *net);
typedef ctrt_status (*ctrt_loss_function)(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs,
                                          int count, void *user);
CTRT_API ctrt_status ctrt_loss_parameter(ctrt_tensor **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_parallel_step(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                                        ctrt_loss_function loss_function, void *user);
CTRT_API ctrt_status ctrt_parallel_step_n(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                                          int module_inputs, ctrt_loss_function loss_function, void *user);
CTRT_API ctrt_status ctrt_parallel_no_sync(ctrt_module *net, bool on);
typedef struct ctrt_gradient_bucket {
    size_t size;
    ctrt_tensor *flat;
    ctrt_tensor *const *gradients;
    int32_t count;
    int32_t index;
    bool last;
    uint32_t layout;
    ctrt_comm *comm;
} ctrt_gradient_bucket;
typedef ctrt_status (*ctrt_comm_hook)(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user);
CTRT_API ctrt_status ctrt_parallel_set_comm_hook(ctrt_module *net, ctrt_comm_hook hook, void *user);
CTRT_API const char *ctrt_parallel_describe(ctrt_module *net);
CTRT_END_DECLS
#endif
