/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/training.h: saves and loads the state of a training run as one file.
 *
 *     ctrt_training_state run = CTRT_WITH(ctrt_training_state, .module = net, .optimizer = sgd, .loader = loader);
 *     ctrt_training_save("run.safetensors", &run);
 *     ...
 *     ctrt_training_load(&run, "run.safetensors");         in a new process, whose objects are in `run`
 *
 * The file is written as all checkpoints (ctrt/checkpoint.h): complete under a temporary name and then renamed, so that
 * all of its contents are of one save. It is a safetensors file with the names of ctrt_save, ctrt_optimizer_save and
 * ctrt_grad_scaler_save behind "module.", "optimizer." and "scaler.", and i64 numbers "training.step" and "loader.seed"
 * and so on. "generator.states" is an i64 tensor [ranks, generators, 2]: the seed and the offset (ctrt_generator_get)
 * of the generator of the cpu and of those of the devices of the training, for each rank. These devices are those of
 * the strategy, in the order of its list, or, without a strategy, those of the module's parameters and buffers. */
#ifndef CTRT_TRAINING_H
#define CTRT_TRAINING_H

#include "ctrt/amp.h"
#include "ctrt/data.h"
#include "ctrt/optim.h"

CTRT_BEGIN_DECLS

/* The objects of a training run; borrowed. All but the module may be NULL. */
typedef struct ctrt_training_state {
    size_t size;
    ctrt_module *module;                /* the net of ctrt_parallel_new or its module; for `data-parallel` only the
                                         * net has the generators of all devices */
    ctrt_optimizer *optimizer;
    ctrt_grad_scaler *scaler;
    ctrt_loader *loader;
    int64_t step;                       /* a number of the program, 0 or more */
} ctrt_training_state;
#define CTRT_TRAINING_STATE CTRT_SIZED_(ctrt_training_state)

/* Writes the objects to `path`. A failed or interrupted save leaves the old file intact. Under a strategy with ranks
 * every rank calls it between the same two steps, because the ranks exchange the states of their generators; each
 * writes the same bytes, so the path may be the same or one of its own.
 *
 * Gradients are not in the file. Errors: those of ctrt_save, ctrt_loader_get_state and, with ranks,
 * ctrt_comm_all_gather; CTRT_ERR_INVALID_ARGUMENT for a negative step; CTRT_ERR_NOT_SUPPORTED with
 * CTRT_SHARDED_CHECKPOINT=parts, which writes several files. Not for objects that another thread uses. */
CTRT_API ctrt_status ctrt_training_save(const char *path, const ctrt_training_state *state);

/* Reads the file into the objects of *state, and writes state->step. What is in the file for a member that is NULL is
 * left out. Every rank calls it.
 *
 * All is read and checked before anything is changed: a file that does not match (CTRT_ERR_STATE: other parameters,
 * another kind of optimizer, no scaler, another dataset, ...) or is damaged (CTRT_ERR_FORMAT, CTRT_ERR_IO) leaves all
 * objects and *state as they are. An error of a device while values are copied to it can leave the module or the
 * optimizer partly loaded, as in ctrt_load.
 *
 * The number of ranks may be another one than that of the save. The loader continues at the place that it had under two
 * conditions. Its sampler is sequential, random without replacement, or distributed, and the samples that all ranks had
 * got are a number of whole batches of the new ranks. Then the ranks together get the samples that follow, in the same
 * order. If they are no such number, or with another sampler and another number of batches, the result is
 * CTRT_ERR_STATE.
 *
 * With the number of ranks of the save, each rank's generators get their states from the file, so dropout continues
 * with the random numbers that would have followed. Generators of more devices than the file has stay as they are. With
 * another number of ranks, and from a file without generators, which earlier versions wrote, all generators stay as
 * they are. */
CTRT_API ctrt_status ctrt_training_load(ctrt_training_state *state, const char *path);

CTRT_END_DECLS

#endif
