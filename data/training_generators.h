/* SPDX-License-Identifier: Apache-2.0 */
/* data/training_generators.h: the states of random generators in the file of a training run.
 *
 * They are one i64 tensor [ranks, generators, 2] of seeds and offsets. Generator 0 is that of the cpu, the others are
 * those of the devices of the training, in the order of the strategy's list or of the module's tensors. */
#ifndef DATA_TRAINING_GENERATORS_H
#define DATA_TRAINING_GENERATORS_H

#include "nn/checkpoint/tensor_file.h"

#define GENERATORS_SECTION "generator"  /* in front of the name */
#define GENERATORS_NAME    "states"

/* Sets *out to the states of all ranks, on the cpu. Collective under a strategy with ranks. */
ctrt_status generators_get(ctrt_tensor **out, ctrt_module *module);
/* Reads the states from the file and checks them. *out stays as it is if the file has none, or those of another number
 * of ranks. */
ctrt_status generators_read(ctrt_tensor **out, const ctrt_tensor_file *file, ctrt_module *module);
/* Sets the generators of this rank to the states; NULL: no effect. If the states are those of more or fewer devices,
 * the generators of the others stay as they are. */
ctrt_status generators_set(ctrt_tensor *states, ctrt_module *module);

#endif
