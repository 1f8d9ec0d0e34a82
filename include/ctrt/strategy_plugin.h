/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/strategy_plugin.h: the interface of parallel strategies, plugins of kind `strategy`, and functions that several
 * strategies need.
 *
 * A strategy runs a module on one device, on several, or on this rank of several. The library provides the module that
 * stands in for the original (ctrt_parallel_new) and calls the strategy for its forward pass, for steps, and before and
 * after checkpoints and optimizer steps. The table of a component of kind CTRT_COMPONENT_STRATEGY is a ctrt_strategy. A
 * strategy calls the public functions of ctrt.h and therefore links libctrt. */
#ifndef CTRT_STRATEGY_PLUGIN_H
#define CTRT_STRATEGY_PLUGIN_H

#include "ctrt/optim.h"
#include "ctrt/parallel.h"
#include "ctrt/plugin.h"

CTRT_BEGIN_DECLS

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* The module and the devices of a strategy. The pointers are valid until destroy. */
typedef struct ctrt_strategy_config {
    size_t size;
    ctrt_module *module;                /* the original; outlives the strategy, which must not retain it */
    ctrt_device *const *devices;        /* at least one */
    int32_t count;                      /* number of devices */
    int32_t canonical;                  /* number of shards in canonical mode; 0: off */
    ctrt_comm *comm;                    /* of strategies with CTRT_STRATEGY_RANKS, borrowed; else NULL */
    /* For strategies with CTRT_STRATEGY_RANKS, after a loss of ranks (ctrt_comm_shrink): replaces the communicator of
     * the net (ctrt_parallel_comm) by `comm`, which has the same device, and releases the old one. The library retains
     * `comm`; `net` is the member below. */
    void (*set_comm)(void *net, ctrt_comm *comm);
    void *net;
} ctrt_strategy_config;

/* RANKS: other ranks have rows of the same batch. STEPS: the step belongs to a group (ctrt_parallel_no_sync). */
enum { CTRT_PARTIAL_RANKS = 1, CTRT_PARTIAL_STEPS = 2 };
/* The arguments of ctrt_parallel_step, checked: no pointer is NULL except inputs[1] and following. */
typedef struct ctrt_strategy_batch {
    size_t size;
    ctrt_tensor *const *inputs;
    int32_t count;                      /* number of inputs, at least 1 */
    int16_t module_inputs;              /* of these, the first so many go to the module */
    int16_t partial;                    /* set of CTRT_PARTIAL_...: who else contributes to the number by which the loss
                                         * is divided. A strategy whose ranks train alone sets it to 0 in its copy */
    int64_t rows;                       /* size of dimension 0 of each input that is not NULL; at least 1, or 0 for
                                         * strategies with CTRT_STRATEGY_RANKS */
    ctrt_loss_function loss;
    void *user;                         /* last argument of `loss` */
} ctrt_strategy_batch;

/* Flags of a strategy.
 *
 * RANKS: it runs on this rank's device, with the ranks of a communicator. The library joins the communicator and passes
 * it in the configuration, whose only device is the communicator's. ONE_DEVICE: it uses devices[0] only, in the calling
 * thread, so that its passes can be captured (ctrt_capture_begin). CAPTURE: the strategy's passes can be captured
 * although it uses a communicator. Collectives are part of the graph, and the strategy records the host's work of each
 * replay with ctrt_capture_call. In a capture, the library refuses the passes of other strategies, and in canonical
 * mode those of all. In a dry run on some of the devices, it refuses the passes of strategies that use others too, and
 * those of strategies with RANKS. DIFFERS: with several devices or ranks, losses, gradients and parameters are by
 * design not those of `single`, as in local SGD; with one they are. `ctrt check --contract` then compares with one
 * only. */
enum {
    CTRT_STRATEGY_RANKS = 1, CTRT_STRATEGY_ONE_DEVICE = 2, CTRT_STRATEGY_CAPTURE = 4, CTRT_STRATEGY_DIFFERS = 8
};

/* The information that `auto` passes to `estimate`, in addition to the configuration. */
typedef struct ctrt_strategy_facts {
    size_t size;
    int32_t elastic;                    /* 1: ranks that are lost are replaced or left out (CTRT_ON_FAILURE=shrink) */
    int32_t reserved;
    uint64_t parameter_bytes, buffer_bytes;     /* of the module */
    uint64_t model_bytes;               /* parameters, their gradients, states of an optimizer, and buffers */
    int64_t rows;                       /* of the batch; 0: not known yet */
} ctrt_strategy_facts;

/* What a strategy says of itself to `auto`. It is filled with zeros except for `size`. */
typedef struct ctrt_strategy_estimate {
    size_t size;
    bool applies;                       /* the strategy can run this configuration */
    bool places;                        /* create accepts the module on any device. Otherwise `auto` moves it to
                                         * devices[0] before */
    bool measured;                      /* steps may take less time than with the strategy that is preferred most, so
                                         * `auto` measures both. Not with CTRT_STRATEGY_RANKS */
    int32_t preference;                 /* 1 and above: `auto` tries strategies in this order. Simple ones are first:
                                         * 100 single and distributed, 200 data-parallel and sharded, 300 pipeline */
    uint64_t bytes;                     /* of memory that the model takes on one device; 0: unknown */
    int64_t rows;                       /* of facts->rows, those that one device computes at a time; 0: unknown */
    char reason[128];                   /* if it does not apply: why, for a warning about too little memory; or "" */
} ctrt_strategy_estimate;

/* One instance per ctrt_parallel_new. Calls for one instance are never concurrent. Error messages need no prefix: the
 * library adds the strategy's name.
 *
 * Unless the strategy has CTRT_STRATEGY_DIFFERS, losses, gradients and parameters are those of `single` for the same
 * rows, up to rounding, however the batch is cut: also if it has fewer rows than there are devices or ranks. A
 * parameter that no row uses, or that requires no grad, gets no gradient, and a parameter that occurs twice gets one.
 * In canonical mode they have the bits of `single`, or create fails with CTRT_ERR_NOT_SUPPORTED. With this error a
 * strategy may refuse losses of several parts that are no means, modules, and canonical mode, and nothing else. */
typedef struct ctrt_strategy {
    size_t size;                        /* required slots: create, destroy, forward, step */
    uint32_t flags;                     /* CTRT_STRATEGY_...; unknown ones are refused */
    uint32_t reserved;
    ctrt_status (*create)(void **strategy, const ctrt_strategy_config *config);
    /* Frees the instance and what it has allocated. The module has its whole parameters and can be used without it. */
    void (*destroy)(void *strategy);
    /* The forward pass of the module, recorded in grad mode. *y is NULL on entry and owns the result afterwards. Some
     * inputs may be NULL, as for ctrt_forward_n. */
    ctrt_status (*forward)(void *strategy, ctrt_tensor **y, ctrt_tensor *const *inputs, int count);
    /* Forward, loss and backward, as ctrt_parallel_step. *loss is NULL on entry. Adds to the gradients from before. If
     * the step fails, the gradients of the module are those from before, and without ranks the next step can succeed.
     * With ranks, a step that fails on one rank fails on all: the strategy ends the communicator (ctrt_comm_abort). */
    ctrt_status (*step)(void *strategy, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
    /* Optional: ctrt_parallel_no_sync. Without it the strategy has nothing to synchronise. */
    ctrt_status (*no_sync)(void *strategy, bool on);
    /* Optional: the text after the name in ctrt_parallel_describe, on one line: "on sim:0, sim:1". Writes at most
     * text[bytes], with a NUL byte. */
    void (*describe)(void *strategy, char *text, size_t bytes);
    /* Optional: called before and after the module is saved or loaded and an optimizer makes a step. For example, a
     * strategy that has a part of each parameter assembles the parameters before they are saved. `argument` and what a
     * failure means: see ctrt_module_event. */
    ctrt_status (*event)(void *strategy, ctrt_module_event event, void *argument);
    /* Optional: ctrt_parallel_set_comm_hook. `hook` may be NULL. */
    ctrt_status (*set_comm_hook)(void *strategy, ctrt_comm_hook hook, void *user);
    /* Optional: ctrt_parallel_steps. Without it, the library counts the steps that succeed. */
    int64_t (*steps)(void *strategy);
    /* Optional: ctrt_parallel_barrier. Without it, the strategy has nothing to wait for. */
    ctrt_status (*barrier)(void *strategy);
    /* Optional: what `auto` needs to compare this strategy with others, before an instance exists. Without it, or if it
     * fails, `auto` never chooses the strategy. Neither collective nor expensive; must not change the module. Ranks may
     * differ: the strategy then applies if it does on all, and the largest number of bytes counts. */
    ctrt_status (*estimate)(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                            const ctrt_strategy_facts *facts);
} ctrt_strategy;

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* Sets whether the calling thread orders streams automatically also with CTRT_STREAM_ORDER=manual, and returns the
 * setting from before. The library calls a strategy's functions with it on, because the program cannot put its waits
 * between the copies that a strategy makes; the strategy's own threads turn it on. */
CTRT_API bool ctrt_set_streams_ordered(bool on);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Writes the number of bytes of `device` that `module` can use: the free and cached bytes, within the limit of the
 * process (ctrt_memory_limit), and those that its parameters, their gradients and its buffers use there now.
 * CTRT_ERR_NOT_SUPPORTED if the backend does not report the device's memory and there is no limit. */
CTRT_API ctrt_status ctrt_module_memory_budget(uint64_t *bytes, ctrt_module *module, ctrt_device *device);
/* ---- batch norm over the rows of all ranks --------------------------------------------------------------------------
 *
 * A SyncBatchNorm in training mode exchanges statistics with the ranks that compute the other parts of the batch. The
 * strategy sets these ranks in the thread that runs the forward pass; the backward pass of a layer uses the same ranks
 * in whatever thread it runs. */
typedef struct ctrt_batch_ranks {
    ctrt_comm *comm;                    /* of this rank; NULL: none, the layers are ordinary batch norms */
    double weight;                      /* with which the strategy multiplies the gradients of this rank after the
                                         * backward pass, up to a factor that all ranks share; not 0 */
} ctrt_batch_ranks;
/* Exchanges *ranks and the ranks of the calling thread, so that a second call restores those from before. The
 * communicator is borrowed until then; graphs retain it. NULL has no effect. */
CTRT_API void ctrt_swap_batch_ranks(ctrt_batch_ranks *ranks);

/* Numbers of SyncBatchNorm layers. */
typedef struct ctrt_sync_layers {
    int32_t layers;                     /* in the module and below it */
    int32_t training;                   /* of these: in training mode */
    int32_t own;                        /* of these: with a communicator of the program */
    int32_t reserved;
} ctrt_sync_layers;
CTRT_API ctrt_status ctrt_sync_layers_find(ctrt_sync_layers *out, ctrt_module *module);
/* Aborts the communicators of the program in SyncBatchNorm layers of `module` (ctrt_comm_abort), on which other ranks
 * may wait for this one. Changes neither the calling thread's error nor its message. */
CTRT_API void ctrt_sync_layers_abort(ctrt_module *module, const char *reason);

/* ---- parts of parameters ------------------------------------------------------------------------------------------
 *
 * A strategy can replace the elements of a parameter, for example by a part of them. The handle stays the same, so that
 * modules and optimizers use its present elements. */

/* Makes `tensor` use the elements, shape, strides and device of `source`, whose dtype must be the same
 * (CTRT_ERR_DTYPE). History, hooks and requires_grad of `tensor` stay. `tensor` must not be the result of an op
 * (CTRT_ERR_AUTOGRAD), and its gradient, if any, must fit the source (CTRT_ERR_STATE). Graphs that have saved
 * `tensor` compute their gradients with the new elements if its shape and version are then those from before. */
CTRT_API ctrt_status ctrt_tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source);
/* Creates a tensor without elements and memory, for a parameter whose elements the strategy has freed. Ops, copies and
 * collectives that would access an element, also of a view of it, call used(user) and fail with the status that it
 * returns, which names the parameter. ctrt_tensor_data returns NULL. ctrt_tensor_set_data with such a source keeps the
 * gradient of `tensor`, whatever its shape, and a later call replaces the source by elements that fit the gradient.
 *
 * On success *out owns one reference. `used` may be called as long as the tensor or a view of it exists, in any thread
 * that uses it. Errors: those of ctrt_empty, CTRT_ERR_INVALID_ARGUMENT for NULL. */
CTRT_API ctrt_status ctrt_tensor_new_absent(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device,
                                            ctrt_status (*used)(void *user), void *user);
/* Sets the version of the tensor's storage (ctrt_tensor_version). Two tensors of the same elements that take turns in a
 * parameter have the same version. */
CTRT_API void ctrt_tensor_set_version(ctrt_tensor *tensor, uint32_t version);

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Moves the gradients of all parameters of `module` to grads[ctrt_module_parameter_count(module)], whose elements are
 * overwritten: NULL for a parameter without gradient. The caller owns the references. */
CTRT_API ctrt_status ctrt_gradients_take(ctrt_tensor **grads, ctrt_module *module);
/* Makes grads[] the gradients of the parameters (NULL: none) and sets the elements to NULL. Cannot fail for what
 * ctrt_gradients_take wrote for this module. */
CTRT_API ctrt_status ctrt_gradients_restore(ctrt_module *module, ctrt_tensor **grads);
/* Adds grads[] to the gradients `before` that ctrt_gradients_take took from the module, makes the sums the gradients of
 * the parameters, and sets the elements of both lists to NULL. As with ctrt_backward, the tensors in `before` remain
 * the gradients; where there is none, the tensor of `grads` becomes the gradient. On failure, the gradients are those
 * in `before`, unchanged. */
CTRT_API ctrt_status ctrt_gradients_add(ctrt_module *module, ctrt_tensor **before, ctrt_tensor **grads);
/* Releases `count` tensors and sets the elements to NULL. Elements and the list may be NULL. */
CTRT_API void ctrt_tensors_release(ctrt_tensor **tensors, size_t count);

/* ---- sums in a fixed order ---------------------------------------------------------------------------------------
 *
 * A sum tree adds lists of tensors, one list per leaf, in an order that depends on the number of leaves only. Level 0
 * are the leaves. Node j of level l + 1 is the sum of the nodes 2j and 2j + 1 of level l. A node without a sibling
 * moves up unchanged. A tensor that is NULL is zero. Each device adds the leaves that it computed in a tree of its own;
 * ctrt_sum_tree_merge combines the trees. So the bits of the sums do not depend on the number of devices, if the
 * devices compute the same bits. Not recorded by autograd. A tree must not be used by two threads at the same time. */
typedef struct ctrt_sum_tree ctrt_sum_tree;

/* Creates a sum of lists of `count` tensors, in a tree of `leaves` leaves, on `device`. On success *out owns it. */
CTRT_API ctrt_status ctrt_sum_tree_new(ctrt_sum_tree **out, int64_t leaves, size_t count, ctrt_device *device);
/* Frees *tree with its tensors and sets it to NULL. */
CTRT_API void ctrt_sum_tree_release(ctrt_sum_tree **tree);
/* Adds the tensors of leaf number `leaf`, takes ownership of them also on failure, and sets the elements to NULL. The
 * tensors may be changed in place and must not share memory with others. CTRT_ERR_STATE for a leaf that was added
 * before. */
CTRT_API ctrt_status ctrt_sum_tree_add(ctrt_sum_tree *tree, int64_t leaf, ctrt_tensor **tensors);
/* Moves the sums of `from`, a tree with as many leaves and tensors, to `tree` and its device. Contiguous tensors of one
 * dtype are copied in groups. */
CTRT_API ctrt_status ctrt_sum_tree_merge(ctrt_sum_tree *tree, ctrt_sum_tree *from);
/* Move a sum between trees of different processes. ctrt_sum_tree_take moves one of the sums that the tree has, node
 * `index` of `level`, to tensors[count], whose elements are overwritten; *level is -1 if the tree has none.
 * ctrt_sum_tree_put adds such a sum to a tree with as many leaves; ownership and errors are those of
 * ctrt_sum_tree_add. */
CTRT_API ctrt_status ctrt_sum_tree_take(ctrt_sum_tree *tree, int *level, int64_t *index, ctrt_tensor **tensors);
CTRT_API ctrt_status ctrt_sum_tree_put(ctrt_sum_tree *tree, int level, int64_t index, ctrt_tensor **tensors);
/* Moves the sums of all leaves to out[count], whose elements are overwritten. Each has memory of its own.
 * CTRT_ERR_STATE if leaves are missing. */
CTRT_API ctrt_status ctrt_sum_tree_result(ctrt_tensor **out, ctrt_sum_tree *tree);

/* ---- losses ------------------------------------------------------------------------------------------------------
 *
 * The loss function returns the loss of the rows that it gets. How the losses of several parts combine depends on their
 * kind, which the library finds in the graph of the loss:
 *
 *     mean        of all rows: the means of the parts, each times its fraction of the rows
 *     sum         of all rows: the sum of the sums
 *     fraction    S / W (ctrt_loss_fraction, ctrt_cross_entropy): the sum of the S, divided by the sum of the W
 *
 * A strategy treats every loss as a mean: it multiplies the loss or the gradients of each part by the part's fraction
 * of the rows, and adds up. So that this works, the library gives the loss of a part as S / (per_row * rows of the
 * part), and W beside it. At the end, ctrt_step_finish multiplies the gradients and the loss by
 * per_row * (all rows) / W, once. For means it multiplies nothing. Any other loss of several parts fails with
 * CTRT_ERR_NOT_SUPPORTED. */
typedef enum ctrt_loss_kind { CTRT_LOSS_MEAN, CTRT_LOSS_SUM, CTRT_LOSS_FRACTION } ctrt_loss_kind;

/* The data of one part, or of several, that the library needs. Initialise it with zeros. */
typedef struct ctrt_loss_part {
    int32_t kind;                       /* ctrt_loss_kind */
    int32_t parts;                      /* number of parts; 0: none */
    double per_row;                     /* number of terms of S per row; 1 for sums */
    ctrt_tensor *weight;                /* W of a fraction, f64 without dimensions, else NULL; owned */
    uint64_t reserved[2];               /* 0 */
} ctrt_loss_part;
CTRT_API void ctrt_loss_part_release(ctrt_loss_part *part);
/* Adds *part to *total; *part is empty afterwards. CTRT_ERR_STATE if the loss function has returned losses of different
 * kinds. */
CTRT_API ctrt_status ctrt_loss_part_add(ctrt_loss_part *total, ctrt_loss_part *part);

/* The module that computes parts of the batch in the calling thread, for loss functions that use its parameters
 * (ctrt_loss_parameter). A strategy that runs copies of the original sets it, so that the gradients of the loss flow to
 * the copy; one that has parameters on several devices sets it to get better error messages. */
typedef struct ctrt_part_module {
    ctrt_module *module;                /* the original or a copy; no other thread uses it meanwhile */
    ctrt_tensor *const *originals;      /* parameters, then buffers of the original, in their order in `module` */
} ctrt_part_module;
/* Sets the module of the calling thread, NULL for none, and returns the one from before. `part` is borrowed until it is
 * set back. */
CTRT_API const ctrt_part_module *ctrt_set_part_module(const ctrt_part_module *part);

/* Calls the loss function of `batch` for `rows` of its rows, and writes how the result enters the loss of the batch to
 * *part. With all rows of a batch that is not `partial` the result is the loss itself, of whatever kind.
 * CTRT_ERR_SHAPE if it has more than one element, CTRT_ERR_NOT_SUPPORTED if it is no mean, sum or fraction. */
CTRT_API ctrt_status ctrt_part_loss(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_tensor *output,
                                    ctrt_tensor *const *inputs, const ctrt_strategy_batch *batch, int64_t rows);
/* Called between the loss and its backward pass. May change *weight. */
typedef ctrt_status (*ctrt_part_ready)(void *user, const ctrt_loss_part *part, double *weight);
/* Runs the rows from..from+rows-1 of the inputs forward and backward: *loss is the loss of ctrt_part_loss multiplied by
 * `weight`, detached. Inputs on other devices are copied to `device`; no gradient flows to them. The gradients are
 * added to those of the module's parameters. `ready` may be NULL; `user` is its first argument. */
CTRT_API ctrt_status ctrt_part_backward(ctrt_tensor **loss, ctrt_loss_part *part, ctrt_module *module,
                                        ctrt_device *device, const ctrt_strategy_batch *batch, int64_t from,
                                        int64_t rows, double weight, ctrt_part_ready ready, void *user);
/* Ends a step. `grads` and *loss are sums over the parts, each with the weight (rows of the part) / batch->rows;
 * `total` the sum of the parts, which becomes empty. Divides, and adds the gradients to `before` as ctrt_gradients_add
 * does. In a group of steps (ctrt_parallel_no_sync) the gradients of sums and fractions are kept by the library until
 * the last step of the group; then they are divided once. On failure the gradients are those in `before`. */
CTRT_API ctrt_status ctrt_step_finish(ctrt_tensor **loss, ctrt_module *module, ctrt_tensor **before,
                                      ctrt_tensor **grads, ctrt_loss_part *total, const ctrt_strategy_batch *batch);

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* As ctrt_part_backward, for strategies that know means only: CTRT_ERR_NOT_SUPPORTED for another loss, unless the rows
 * are the whole batch. */
CTRT_API ctrt_status ctrt_shard_backward(ctrt_tensor **loss, ctrt_module *module, ctrt_device *device,
                                         const ctrt_strategy_batch *batch, int64_t from, int64_t rows, double weight);

/* Runs the rows from..from+rows-1 of the inputs forward; `rows` -1: the inputs as they are. Inputs on other devices are
 * copied to `device`, with history. */
CTRT_API ctrt_status ctrt_shard_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device,
                                        ctrt_tensor *const *inputs, int count, int64_t from, int64_t rows);

/* The shards that one replica computes in canonical mode. */
typedef struct ctrt_shard_range {
    int64_t first, count;               /* numbers of the shards */
    const int64_t *sizes;               /* rows of each shard of the whole batch, as ctrt_chunk_sizes with
                                         * CTRT_CHUNK_BALANCED writes them */
    int64_t total;                      /* number of shards that have rows */
    uint64_t seed, offset;              /* state of the first device's random generator before the step */
    bool seeded;                        /* shard i begins with that state, advanced by (i + 1) * 2^32, and afterwards
                                         * the device's generator has the state from before; for devices that occur once
                                         * in the list of devices */
    bool random;                        /* written: whether a shard has used random numbers. If so, the strategy sets
                                         * the first device's generator to offset + (total + 1) * 2^32 */
    int32_t kind, parts;                /* written: as in ctrt_loss_part, of the shards of the range */
    double per_row;
    uint64_t reserved[2];               /* 0 */
} ctrt_shard_range;

/* Runs each shard of the range forward and backward by itself and adds its gradients, followed by its loss multiplied
 * by its fraction of all rows, as leaf to `sum`, a tree of range->total leaves and parameter_count + 2 tensors. The
 * last tensor is the weight of a fraction; in a tree without it, losses that are no means are CTRT_ERR_NOT_SUPPORTED.
 * The inputs of `batch` begin with the first row of the range, batch->rows is that of the whole batch. The module has
 * no gradients before and afterwards.
 *
 * Every shard begins with the values that the buffers had before the call. Afterwards the buffers have the values that
 * the first shard of the range left. */
CTRT_API ctrt_status ctrt_shards_backward(ctrt_sum_tree *sum, ctrt_module *module, ctrt_device *device,
                                          const ctrt_strategy_batch *batch, ctrt_shard_range *range);
/* Runs each shard of the range forward by itself, under the same rules, and concatenates the results. */
CTRT_API ctrt_status ctrt_shards_forward(ctrt_tensor **y, ctrt_module *module, ctrt_device *device,
                                         ctrt_tensor *const *inputs, int count, ctrt_shard_range *range);

CTRT_END_DECLS

#endif
