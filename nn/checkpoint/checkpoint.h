/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/checkpoint.h: the contents of checkpoints, and loading in two steps: all of a file is read and
 * checked before the first object is changed. */
#ifndef NN_CHECKPOINT_H
#define NN_CHECKPOINT_H

#include "ctrt/amp.h"
#include "nn/checkpoint/tensor_file.h"

/* ---- saving ---- */

/* Tensors for a file, with names and references of their own. */
struct state_items {
    struct safetensors_item *items;
    size_t count, capacity;
};
/* Adds a tensor with the name "NAME.WHAT". */
ctrt_status state_add(struct state_items *list, const char *name, const char *what, ctrt_tensor *tensor,
                      const ctrt_module_place *place);
ctrt_status state_add_number(struct state_items *list, const char *name, const char *what, ctrt_scalar value,
                             ctrt_dtype dtype);
void state_free(struct state_items *list);

/* Add the contents of the files that ctrt_save, ctrt_optimizer_save and ctrt_grad_scaler_save write, with `prefix` and
 * a dot in front of each name. The first two between the events SAVE_BEGIN and SAVE_END, and OPTIMIZER_SAVE_BEGIN and
 * OPTIMIZER_SAVE_END, before which state_free must have released the tensors. */
ctrt_status module_collect(struct state_items *list, const char *prefix, ctrt_module *module);
ctrt_status optimizer_collect(struct state_items *list, const char *prefix, ctrt_optimizer *optimizer);
ctrt_status scaler_collect(struct state_items *list, const char *prefix, ctrt_grad_scaler *scaler);

#define OPTIMIZER_KIND_KEY "optimizer"  /* of the metadata of a file with an optimizer: its kind */

/* ---- loading ---- */

/* The values of a module, read from a file. Zero-initialise it. */
struct module_load {
    struct safetensors_item *items;
    size_t count, capacity;
    ctrt_module_place *places;          /* of the items */
    const struct safetensors_entry **entries;       /* of the items */
    char *staged;                       /* the values */
};
/* Reads the values and checks that they fit. Between LOAD_BEGIN and LOAD_END, as module_load_give. */
ctrt_status module_load_read(struct module_load *load, ctrt_module *module, const ctrt_tensor_file *file);
/* Writes the values into the module's tensors. */
ctrt_status module_load_give(const struct module_load *load);
void module_load_free(struct module_load *load);

/* The state of an optimizer, read from a file. Zero-initialise it. */
struct optimizer_load {
    ctrt_optimizer *optimizer;          /* borrowed */
    struct optim_group *groups;
    struct optim_slot *fresh;
    ctrt_module_place *places;
};
/* Likewise, between OPTIMIZER_LOAD_BEGIN and OPTIMIZER_LOAD_END. */
ctrt_status optimizer_load_read(struct optimizer_load *load, ctrt_optimizer *optimizer, ctrt_tensor_file *file);
ctrt_status optimizer_load_give(const struct optimizer_load *load);
void optimizer_load_free(struct optimizer_load *load);

/* Reads and checks the state of a scaler, for ctrt_grad_scaler_set_state. */
ctrt_status scaler_state_read(ctrt_grad_scaler_state *state, ctrt_tensor_file *file);

#endif
