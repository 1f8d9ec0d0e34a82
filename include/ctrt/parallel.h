/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/parallel.h: parallel strategies, and several devices in one process: scatter, replicate, apply in parallel,
 * gather.
 *
 * With a strategy (ctrt_parallel_new) a training loop runs on one device or on many without a change. The functions
 * from which the strategies are made are those of torch.nn.parallel, and differentiable. Together they are data
 * parallelism by hand:
 *
 *     CTRT_TRY(ctrt_scatter_tensor(parts, &count, x, devices, n, 0, NULL));
 *     CTRT_TRY(ctrt_replicate(replicas, net, devices, count));
 *     CTRT_TRY(ctrt_parallel_forward(outputs, replicas, parts, devices, count));
 *     CTRT_TRY(ctrt_gather_tensor(&y, outputs, count, devices[0], 0));
 *
 * Copies between devices are ordered with other work on the tensors, also with CTRT_STREAM_ORDER=manual and =check.
 *
 * Devices may be of different types and may repeat; lists have at least one device and none is NULL, else
 * CTRT_ERR_INVALID_ARGUMENT. Handles in output arrays follow the assignment rule of ctrt/base.h; if a function fails,
 * it has changed none of them. All functions are thread-safe; a module or tensor must not be used by two threads at the
 * same time. */
#ifndef CTRT_PARALLEL_H
#define CTRT_PARALLEL_H

#include "ctrt/comm.h"
#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

/* ---- trees: nested lists and maps of tensors ----------------------------------------------------------------------
 *
 * A tree is a tensor, a list of trees, a map from names to trees, a pointer of the program, or nothing: what a model
 * with structured inputs and outputs receives and returns ("pytree" in Python). Trees are reference-counted and do not
 * change after their creation. A tree does not protect its tensors from the end of their scope (ctrt_scope_end). */
typedef struct ctrt_tree ctrt_tree;

typedef enum ctrt_tree_kind {
    CTRT_TREE_NOTHING, CTRT_TREE_TENSOR, CTRT_TREE_LIST, CTRT_TREE_MAP, CTRT_TREE_POINTER
} ctrt_tree_kind;

/* Create a tree: of a tensor (which is retained), of `count` items (retained; NULL stands for nothing), of items with
 * names (copied; unique, else CTRT_ERR_INVALID_ARGUMENT), or of a pointer, which the library only passes on. On success
 * *out owns one reference. */
CTRT_API ctrt_status ctrt_tree_of_tensor(ctrt_tree **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_tree_of_list(ctrt_tree **out, ctrt_tree *const *items, size_t count);
CTRT_API ctrt_status ctrt_tree_of_map(ctrt_tree **out, const char *const *names, ctrt_tree *const *items, size_t count);
CTRT_API ctrt_status ctrt_tree_of_pointer(ctrt_tree **out, void *pointer);
/* Adds a reference and returns `tree`; NULL is returned unchanged. */
CTRT_API ctrt_tree *ctrt_tree_retain(ctrt_tree *tree);
/* Releases the reference in *tree and sets *tree to NULL. */
CTRT_API void ctrt_tree_release(ctrt_tree **tree);
/* Properties. Returned pointers are borrowed. The functions return NULL or 0 for trees of another kind and past the
 * last item. NULL is a tree of kind CTRT_TREE_NOTHING. */
CTRT_API ctrt_tree_kind ctrt_tree_kind_of(const ctrt_tree *tree);
CTRT_API ctrt_tensor *ctrt_tree_tensor(const ctrt_tree *tree);
CTRT_API void *ctrt_tree_pointer(const ctrt_tree *tree);
CTRT_API size_t ctrt_tree_count(const ctrt_tree *tree);
CTRT_API ctrt_tree *ctrt_tree_item(const ctrt_tree *tree, size_t index);
CTRT_API const char *ctrt_tree_name(const ctrt_tree *tree, size_t index);
CTRT_API ctrt_tree *ctrt_tree_find(const ctrt_tree *tree, const char *name);

/* ---- scatter and gather ------------------------------------------------------------------------------------------ */

/* How a dimension of `size` elements is cut into at most `n` pieces. */
typedef enum ctrt_chunk_rule {
    CTRT_CHUNK_CEIL,                    /* PyTorch's chunk: pieces of ceil(size / n), the last one smaller; there may be
                                         * fewer than n: 5 for 4 is 2, 2, 1 */
    CTRT_CHUNK_BALANCED                 /* sizes differ by at most 1: 5 for 4 is 2, 1, 1, 1 */
} ctrt_chunk_rule;

typedef struct ctrt_scatter_options {
    size_t size;
    ctrt_chunk_rule rule;
    const double *weights;              /* NULL, or n positive numbers: pieces are proportional to them (largest
                                         * remainders), so that a slower device gets less; `rule` is ignored */
} ctrt_scatter_options;
#define CTRT_SCATTER_OPTIONS CTRT_SIZED_(ctrt_scatter_options)

/* Writes the sizes of the pieces to sizes[n] and their number to *count. No piece is empty, so with size < n there are
 * `size` pieces, and with weights a device whose share rounds to 0 gets 1 from the largest piece; size 0 is one empty
 * piece. sizes[i] is 0 from *count on. `options` NULL: PyTorch's rule.
 *
 * CTRT_ERR_INVALID_ARGUMENT for a negative size, n < 1, an unknown rule, and weights that are not positive and
 * finite. */
CTRT_API ctrt_status ctrt_chunk_sizes(int64_t *sizes, int *count, int64_t size, int n,
                                      const ctrt_scatter_options *options);

/* Cuts a tensor along `dim` into pieces and copies piece i to devices[i]. If the tensor is on devices[i], piece i is a
 * view, which must not be changed in place while the tensor's gradient is recorded. Copies from pinned memory do not
 * wait for the device. Writes the pieces to out[n] and their number to *count, which may be less than n (the others
 * become NULL).
 *
 * Differentiable: the gradients of the pieces are copied back and concatenated. CTRT_ERR_SHAPE for a 0-dim tensor
 * and for a dimension out of range. */
CTRT_API ctrt_status ctrt_scatter_tensor(ctrt_tensor **out, int *count, ctrt_tensor *tensor,
                                         ctrt_device *const *devices, int n, int dim,
                                         const ctrt_scatter_options *options);
/* Scatters every tensor of a tree; lists and maps keep their form, pointers go to all devices. All tensors must give
 * the same number of pieces: CTRT_ERR_SHAPE, naming one that does not ("input[1].mask"). A tree without tensors goes
 * to all n devices. NULL is a tree of nothing, and so are pieces of it. */
CTRT_API ctrt_status ctrt_scatter_tree(ctrt_tree **out, int *count, ctrt_tree *tree, ctrt_device *const *devices, int n,
                                       int dim, const ctrt_scatter_options *options);

/* Copies `count` tensors to `device` (NULL: the cpu) and concatenates them along `dim`. 0-dim tensors become a
 * vector of `count` elements, with one warning per process in the log. Differentiable: each tensor gets its part of
 * the gradient, on its own device. CTRT_ERR_SHAPE, naming the tensor, if sizes other than that of `dim` differ. */
CTRT_API ctrt_status ctrt_gather_tensor(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, ctrt_device *device,
                                        int dim);
/* Gathers trees of one form, tensor by tensor. If pointers differ, the first is taken, with one warning. Nothing stays
 * nothing. CTRT_ERR_INVALID_ARGUMENT, naming the place ("outputs[1].boxes"), if the forms differ. */
CTRT_API ctrt_status ctrt_gather_tree(ctrt_tree **out, ctrt_tree *const *trees, int count, ctrt_device *device,
                                      int dim);

/* ---- replicas ---------------------------------------------------------------------------------------------------- */

/* Creates replicas of `module` on devices[n] for one forward pass and writes them to replicas[n].
 *
 * Parameters that require grad are copied by one differentiable function: those of the replicas are its results, not
 * leaves, and the backward pass adds the gradients of all replicas to the module's parameters, in the order of the
 * devices. A parameter that gets no gradient in any replica keeps its grad unchanged. Frozen parameters and buffers are
 * copied without history, and without grad mode all are. Replica 0 shares the module's memory; so changes of buffers
 * (for example the running statistics of batch norm) and of parameters in other replicas are lost. Tied parameters stay
 * tied, and the training mode of each module is kept. The module must not be changed before the backward pass.
 *
 * Contiguous tensors are copied in groups of up to 10 MiB of one dtype, so that a device gets few copies.
 *
 * CTRT_ERR_DEVICE, naming the tensor, if one is not on devices[0]; CTRT_ERR_NOT_SUPPORTED as ctrt_module_copy. */
CTRT_API ctrt_status ctrt_replicate(ctrt_module **replicas, ctrt_module *module, ctrt_device *const *devices, int n);

/* Runs function(user, i) for i in 0..n-1 concurrently, each in a thread of its own, and returns when all have returned.
 * With n = 1, the function runs in the calling thread; so do, at the end, functions for which no thread can be created.
 *
 * The function runs with devices[i] as current device of its type, with the calling thread's current stream of that
 * device, grad mode and labels (ctrt_memory_label). Its new tensors belong to the calling thread's scope
 * (ctrt_scope_begin) as if that thread had created them; the function may begin scopes of its own, but cannot end that
 * scope.
 *
 * All functions run, also if one fails. The error of the lowest i that failed is returned; its message begins with
 * "replica i (DEVICE): ". */
typedef ctrt_status (*ctrt_parallel_function)(void *user, int index);
CTRT_API ctrt_status ctrt_parallel_apply(ctrt_parallel_function function, void *user, ctrt_device *const *devices,
                                         int n);
/* outputs[i] = modules[i](inputs[i]), in parallel. The modules must not share modules. */
CTRT_API ctrt_status ctrt_parallel_forward(ctrt_tensor **outputs, ctrt_module *const *modules,
                                           ctrt_tensor *const *inputs, ctrt_device *const *devices, int n);

/* ---- batch norm over the rows of all ranks --------------------------------------------------------------------------
 *
 * SyncBatchNorm (torch.nn.SyncBatchNorm) of [N, C, ...]. In training mode, mean and variance are those of the rows of
 * all ranks, each row with the same weight, also if ranks have different numbers of rows or none. running_var gets the
 * unbiased variance of all rows. In evaluation mode it is batch norm. Parameters, buffers, their names and `epsilon`,
 * `momentum`, `affine` are those of ctrt_batch_norm1d_new.
 *
 * The ranks are those of `comm`, which is retained. NULL: the ranks of `distributed`, or the devices of
 * `data-parallel`, during a step or forward pass of the strategy. Without such ranks, so also under other strategies,
 * it is an ordinary batch norm of the rows that it gets. With `comm`, each rank must call forward and backward passes
 * equally often, and another module must not use `comm` at the same time; data-parallel does not accept it.
 *
 * A forward pass is one all_gather, a backward pass one all_reduce. f16 and bf16 are computed in f32. Gradients of
 * weight and bias are sums over this rank's rows. There is no second derivative, and no canonical mode, because that
 * computes parts of a batch one by one: CTRT_ERR_NOT_SUPPORTED. A rank that fails must end the communicator
 * (ctrt_comm_abort), as the strategies do, because the others wait for it. */
CTRT_API ctrt_status ctrt_sync_batch_norm_new(ctrt_module **out, int64_t features,
                                              const ctrt_batch_norm_options *options, ctrt_comm *comm,
                                              ctrt_device *device);
/* Makes each BatchNorm1d and BatchNorm2d in `module` and below it a SyncBatchNorm, as convert_sync_batchnorm of
 * PyTorch, but in place: handles of modules and tensors stay valid. Layers that are SyncBatchNorm already get the
 * communicator `comm` as well. Call it before ctrt_parallel_new. On failure (modules nested too deep) nothing has
 * changed. */
CTRT_API ctrt_status ctrt_convert_sync_batch_norm(ctrt_module *module, ctrt_comm *comm);

/* ---- balance ----------------------------------------------------------------------------------------------------- */

/* Two devices of which one would hold up the other. */
typedef struct ctrt_imbalance {
    int slow, fast;                     /* indices in `devices` */
    double ratio;                       /* below 0.75 */
    const char *what;                   /* "memory" or "processors"; static */
    uint64_t reserved[2];               /* 0 */
} ctrt_imbalance;
/* Compares the total memory of the devices of each type and, if that is balanced, their numbers of processors. Returns
 * whether the smallest is below 0.75 of the largest. Then *out (may be NULL) names the two, and a warning is logged.
 * Values that the backend does not report are not compared. */
CTRT_API bool ctrt_devices_imbalanced(ctrt_imbalance *out, ctrt_device *const *devices, int n);

/* ---- strategies --------------------------------------------------------------------------------------------------
 *
 * A strategy determines how a module runs on devices. `single` uses one device. `data-parallel` uses several, with a
 * part of the batch on each, and `pipeline` several, with some of the layers on each. `distributed` and `sharded` use
 * those of the ranks of a communicator. `auto` chooses one of them. Strategies are plugins, chosen by name, in the
 * program or by the environment (doc/parallel.md):
 *
 *     CTRT_TRY(ctrt_parallel_new(&net, module, NULL, NULL, 0));
 *     CTRT_TRY(ctrt_adamw_new(&optimizer, net, NULL));
 *     for (...) {
 *         CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
 *         CTRT_TRY(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, labels }, 2, loss_function, NULL));
 *         CTRT_TRY(ctrt_optimizer_step(optimizer));
 *     } */

/* Creates a module that stands in for `module` and runs it by a strategy. Its parameters, buffers, and their names in
 * checkpoints are those of `module`, which it retains. ctrt_forward runs the strategy's forward pass.
 *
 * `strategy` NULL: the parameter CTRT_STRATEGY, or `single`, with a warning if a launcher has started several ranks.
 * `devices` NULL: all visible devices of the type of the default device (CTRT_DEVICE), the module's device first. With
 * CTRT_CANONICAL=V the batch is cut into V shards (1: 12) that are computed one by one and added in a fixed order, so
 * that the result does not depend on the number of devices.
 *
 * `auto` is `distributed` if a launcher has started several ranks, or `sharded` if the module fits only so; `single`
 * for one device; `pipeline` for a Sequential that does not fit on the first device. Otherwise it runs as `single`
 * until ctrt_parallel_step has predicted the memory of the first batch and measured some steps of `single` and
 * `data-parallel`. The prediction is a dry run, in which the loss function is called once more and no other thread may
 * use the first device. It moves the module to the devices of its choice. ctrt_parallel_describe returns what was
 * chosen and why; one line with level info is logged.
 *
 * Errors: CTRT_ERR_NOT_FOUND for an unknown strategy, with the known ones; CTRT_ERR_DEVICE, naming the tensor, if the
 * strategy requires it on another device; CTRT_ERR_STATE for a module that this function created. */
CTRT_API ctrt_status ctrt_parallel_new(ctrt_module **out, ctrt_module *module, const char *strategy,
                                       ctrt_device *const *devices, int n);

/* The same for a strategy that runs on the ranks of a communicator, which ctrt_parallel_new joins by ctrt_comm_new with
 * the variables of the environment: `comm` is the one to use, which is retained. For ranks that are threads, for groups
 * of some of the ranks. Collective. CTRT_ERR_NOT_SUPPORTED for strategies without ranks. */
CTRT_API ctrt_status ctrt_parallel_new_comm(ctrt_module **out, ctrt_module *module, const char *strategy,
                                            ctrt_comm *comm);
/* Returns the communicator on which the strategy runs, borrowed; NULL for strategies without ranks, and for a module
 * that ctrt_parallel_new did not create. The program may use it between steps. With CTRT_ON_FAILURE=shrink a step may
 * replace it by one of other ranks: then it is valid until the next step, and rank and size are read for each step. */
CTRT_API ctrt_comm *ctrt_parallel_comm(ctrt_module *net);
/* Returns the number of steps (ctrt_parallel_step without no_sync) that are complete; 0 for a module that
 * ctrt_parallel_new did not create. It is the same on all ranks; on a rank that has joined (CTRT_JOIN) it begins with
 * the number of those before. */
CTRT_API int64_t ctrt_parallel_steps(ctrt_module *net);
/* Waits until all ranks have called it. With CTRT_ON_FAILURE=shrink it goes on with the ranks that are left, as
 * ctrt_parallel_step: call it after the last step, so that a rank that has not completed this step gets the result of
 * those that have. Without ranks it has no effect. */
CTRT_API ctrt_status ctrt_parallel_barrier(ctrt_module *net);

/* Computes the loss from the output of the module for inputs[0], and from all inputs, whose rows correspond to those of
 * the output. `inputs` are on the output's device; those that were NULL in ctrt_parallel_step are NULL. It is called
 * for parts of the batch, in several threads at the same time. *loss is NULL on entry.
 *
 * The loss of the batch is put together from those of the parts. So the result is a mean or a sum over the rows, or a
 * fraction whose divisor depends on the data (ctrt_cross_entropy, ctrt_loss_fraction), times numbers. If a step has
 * more than one part, other losses are CTRT_ERR_NOT_SUPPORTED, and the message names the op
 * (doc/losses.md). */
typedef ctrt_status (*ctrt_loss_function)(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs,
                                          int count, void *user);
/* For loss functions that use a parameter or a buffer of the module: a penalty, class weights, or an embedding that is
 * also the last layer. Sets *out to the tensor that this part of the batch uses in place of `tensor`. Under
 * `data-parallel` this is the tensor of the replica, else `tensor` itself, or a copy on the output's device. The copy
 * has history, so that under `pipeline` the gradient flows back to the stage of the parameter. A tensor that does not
 * belong to the module of ctrt_parallel_new is copied as well. *out is NULL or a tensor, by the assignment rule of
 * ctrt/base.h. Outside of a loss function *out is `tensor`.
 *
 * `sharded` gathers only parameters that the module itself has; others have no elements here, and an op that uses them
 * fails with CTRT_ERR_STATE. Errors: CTRT_ERR_INVALID_ARGUMENT for NULL, those of ctrt_to_device. Thread-safe. */
CTRT_API ctrt_status ctrt_loss_parameter(ctrt_tensor **out, ctrt_tensor *tensor);
/* Runs forward, loss and backward for a batch: inputs[count], at most 64, all with the same number of rows (size of
 * dimension 0), of which the first goes to the module. Each device computes the loss of its rows, so none gathers the
 * outputs of all. The gradients of the loss of all rows are added to those of the parameters, as by ctrt_backward; none
 * flow to the inputs. *loss is that loss, detached, on the first device.
 *
 * If the step fails on one device, it fails, with an error that names the device, and the gradients are those from
 * before. `net` was created by ctrt_parallel_new, else CTRT_ERR_INVALID_ARGUMENT. CTRT_ERR_SHAPE for inputs without
 * rows, or of different numbers. In a capture: CTRT_ERR_NOT_SUPPORTED in canonical mode and for strategies that use
 * several devices, and CTRT_ERR_STATE if `distributed` has made less than two steps. In a dry run: CTRT_ERR_STATE
 * unless all devices of the strategy are in one, and CTRT_ERR_NOT_SUPPORTED for strategies with a communicator.
 *
 * With `distributed` the inputs are this rank's part of the batch, which may have 0 rows, and the loss is that of the
 * rows of all ranks. If the step fails on one rank, it fails on all, and the communicator cannot be used any more. A
 * call that is refused because of its arguments does not inform the others: they wait until this rank calls again or
 * ends, or until the time limit. */
CTRT_API ctrt_status ctrt_parallel_step(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                                        ctrt_loss_function loss_function, void *user);
/* The same for a module of several inputs, for example tokens and a padding mask: inputs[0..module_inputs-1] go to the
 * module, as by ctrt_forward_n, and all of them to the loss function. All have the rows of the batch; what is the same
 * for all rows belongs in the module (a buffer). CTRT_ERR_NOT_SUPPORTED under `pipeline` for more than one, because a
 * Sequential has one input. */
CTRT_API ctrt_status ctrt_parallel_step_n(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *inputs, int count,
                                          int module_inputs, ctrt_loss_function loss_function, void *user);
/* With `on`, the next steps keep their gradients where they were computed, and the first step after it was turned off
 * adds them all up: gradient accumulation with one reduction. The parameters' gradients are incomplete in between. In
 * canonical mode, and for strategies without reductions, each step is complete if its loss is a mean. Sums and
 * fractions of the steps up to that one are divided once, by every strategy (doc/losses.md). */
CTRT_API ctrt_status ctrt_parallel_no_sync(ctrt_module *net, bool on);
/* A bucket: the gradients that `distributed` reduces together. The pointers are valid during the call of the hook; the
 * tensors are the same in all stages. */
typedef struct ctrt_gradient_bucket {
    size_t size;
    ctrt_tensor *flat;                  /* 1-d, contiguous, not recorded: this rank's gradients, multiplied by its
                                         * weight, so that the gradient of the whole batch is the sum over the ranks */
    ctrt_tensor *const *gradients;      /* the parts of `flat`, in the shapes of the parameters */
    int32_t count;                      /* of gradients */
    int32_t index;                      /* of the bucket, from 0 */
    bool last;                          /* no bucket follows in this pass */
    uint32_t layout;                    /* changes if gradients are assigned to buckets again, which happens once, after
                                         * the first reduction; state of the hook per bucket is void then */
    ctrt_comm *comm;
} ctrt_gradient_bucket;
/* Replaces bucket->flat by the sum over the ranks. With stage 0 it is called when the gradients of the bucket are
 * complete, during the backward pass, bucket after bucket. If it writes *work (NULL on entry; the library releases it),
 * it is called again with the next stage when that work has ended. These calls are after the backward pass, again for
 * all buckets in their order. When it returns without work, the bucket is finished. All ranks must get the same bits in
 * `flat`. An error ends the step on all ranks. `comm` must not be used for anything else, and all ranks must call the
 * same collectives. */
typedef ctrt_status (*ctrt_comm_hook)(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user);
/* Makes `distributed` reduce gradients by `hook`, as register_comm_hook of PyTorch's DistributedDataParallel; NULL: by
 * an all_reduce. Replaces the hook that the parameter CTRT_DISTRIBUTED_HOOK has chosen. To be called on all ranks,
 * between steps (CTRT_ERR_STATE during a backward pass). `user` is passed to the hook. With one rank hooks are not
 * called. CTRT_ERR_NOT_SUPPORTED for other strategies, and in canonical mode. */
CTRT_API ctrt_status ctrt_parallel_set_comm_hook(ctrt_module *net, ctrt_comm_hook hook, void *user);
/* Returns one line that describes the strategy: "data-parallel on sim:0, sim:1; ...". "" for a module that
 * ctrt_parallel_new did not create. Valid until the next call for `net`, or its end. */
CTRT_API const char *ctrt_parallel_describe(ctrt_module *net);

CTRT_END_DECLS

#endif
