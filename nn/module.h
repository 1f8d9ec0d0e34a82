/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module.h: the module's struct, and what the standard modules share. */
#ifndef NN_MODULE_H
#define NN_MODULE_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/memory.h"
#include "ctrt/nn.h"
#include "ctrt/plugin.h"

struct module_tensor {
    char *name;
    ctrt_tensor *tensor;
    bool persistent;
};
struct module_tensors {
    struct module_tensor *items;
    size_t count, capacity;
};
struct module_child {
    char *name;
    ctrt_module *module;
};
struct module_children {
    struct module_child *items;
    size_t count, capacity;
};

/* All parameters or buffers below a module, as found at some state of the modules' structure. */
struct walk_entry {
    const char *name;                   /* interned in the module that was asked */
    ctrt_tensor *tensor;                /* borrowed */
    bool persistent;
};
struct walk {
    struct walk_entry *entries;
    size_t count, capacity;
    uint64_t structure;                 /* module_structure when made; 0: never */
};
enum walk_kind { WALK_PARAMETERS, WALK_BUFFERS, WALK_KINDS };

/* Dotted names that were given out; they live as long as the module. Chains of a hash table. */
struct module_name {
    struct module_name *next;
    char text[];
};

struct ctrt_module {
    atomic_int refs;
    bool training;
    const ctrt_module_class *class_of;
    struct module_tensors parameters, buffers;
    struct module_children children;
    struct walk walks[WALK_KINDS];
    struct module_name **names;         /* name_chains of them, a power of 2 or 0 */
    size_t name_chains, name_count;
    ctrt_module *next_dying;            /* in the list of modules without references, not freed yet */
    _Alignas(16) unsigned char state[];
};

/* Changes whenever something is registered in any module; never 0. */
extern _Atomic uint64_t module_structure;

/* Everything below `module`, from its cache when the structure has not changed. *out belongs to the module. */
ctrt_status module_walk(const struct walk **out, ctrt_module *module, enum walk_kind kind);
/* *out: is `what` the module itself or somewhere below it? CTRT_ERR_STATE for modules nested too deep for the stack. */
ctrt_status module_contains(bool *out, const ctrt_module *module, const ctrt_module *what);

/* *out = *fresh by the assignment rule; *fresh becomes NULL. */
void module_give(ctrt_module **out, ctrt_module **fresh);
/* What to return for a NULL where a module was to be handed over: the failure of its constructor, if there was
 * one. */
ctrt_status module_missing(const char *who, const char *argument);

/* For constructors: a new parameter of the default floating type, uninitialised; *borrowed belongs to the
 * module. */
ctrt_status module_new_parameter(ctrt_tensor **borrowed, ctrt_module *module, const char *name, ctrt_ints shape,
                                 ctrt_device *device);
/* Puts `name` before the message of a failed forward. Left out when the message is long, so that deep nesting does not cut off the cause. */
ctrt_status module_context(ctrt_status status, const char *name);
/* For forward functions of modules with one input. */
ctrt_status module_one_input(const ctrt_module *module, ctrt_tensor *const *inputs, int count);
/* CTRT_ERR_INVALID_ARGUMENT "linear_new: in_features is -3, expected at least 0" */
ctrt_status module_at_least(const char *who, const char *what, int64_t value, int64_t least);

/* Makes room for one more item at the end of a growing array; *items may move. */
ctrt_status array_reserve(void **items, size_t *capacity, size_t count, size_t item_bytes);

#endif
