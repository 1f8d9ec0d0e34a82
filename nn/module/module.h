/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/module.h: the struct of modules, and functions shared by the standard modules. */
#ifndef NN_MODULE_H
#define NN_MODULE_H

#include <stdatomic.h>

#include "base/array.h"
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

/* A cached list of all parameters or buffers of a module and its descendants. */
struct walk_entry {
    const char *name;                   /* dotted name, interned */
    ctrt_tensor *tensor;                /* borrowed */
    bool persistent;
};
struct walk {
    struct walk_entry *entries;
    size_t count, capacity;
    uint64_t structure;                 /* value of module_structure for which the list is valid; 0: never built */
};
enum walk_kind { WALK_PARAMETERS, WALK_BUFFERS, WALK_KINDS };

struct ctrt_module {
    atomic_int refs;
    bool training;
    const ctrt_module_class *class_of;
    ctrt_status (*forward)(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count);  /* never NULL */
    struct module_tensors parameters, buffers;
    struct module_children children;
    struct walk walks[WALK_KINDS];
    struct module_hook *hooks;          /* forward_hooks.c; NULL: none */
    ctrt_module *stand_in;              /* borrowed: receives events of this module too (module_set_stand_in) */
    ctrt_module *next_dying;            /* list of modules that module_destroy will free */
    _Alignas(16) unsigned char state[];
};

/* Incremented when a tensor or child is registered in any module. Never 0. */
extern _Atomic uint64_t module_structure;

/* Lists the tensors of `module` and its descendants. Uses the module's cached list if the structure has not changed.
 * *out belongs to the module. */
ctrt_status module_walk(const struct walk **out, ctrt_module *module, enum walk_kind kind);
/* *out: whether `what` is `module` or one of its descendants. CTRT_ERR_STATE if modules are nested too deep for the
 * stack. */
ctrt_status module_contains(bool *out, const ctrt_module *module, const ctrt_module *what);

/* module/copy.c: writes the tensor of a copied module that replaces `original`, number `index` of the module's walk of
 * `kind`; *out (NULL on entry) owns one reference. */
typedef ctrt_status (*module_copy_choice)(ctrt_tensor **out, void *user, const struct walk_entry *original,
                                          size_t index, enum walk_kind kind);
/* Copies a module and its descendants as ctrt_module_copy, with the tensors that `choose` writes. They may have history
 * and share memory with the originals. `who`: the function that error messages name. */
ctrt_status module_copy_with(ctrt_module **out, const char *who, ctrt_module *module, module_copy_choice choose,
                             void *user);

/* forward_hooks.c: call the hooks of a module that has some. */
ctrt_status forward_hooks_before(ctrt_module *module);
ctrt_status forward_hooks_after(ctrt_module *module, ctrt_tensor *output);
void forward_hooks_free(ctrt_module *module);

/* Calls `event` of the classes of `module` and its descendants. For a BEGIN that fails, the modules before have
 * received the END. An END reaches all modules; the first error is returned. Costs nothing if no module has such a
 * class. */
ctrt_status module_event(ctrt_module *module, ctrt_module_event event, void *argument);
/* Calls `event` with an END. Returns `status`, with its message, or, if that is CTRT_OK, the error of the call. */
ctrt_status module_event_end(ctrt_status status, ctrt_module *module, ctrt_module_event event, void *argument);
/* Lets `net`, which contains `module`, receive the events of `module` and its descendants also if they are used without
 * `net`. `was` NULL: for the modules without a stand-in; `net` NULL: removes the stand-in `was`. */
void module_set_stand_in(ctrt_module *module, ctrt_module *net, const ctrt_module *was);
/* Lists the modules that receive events of `module`, each once. The caller frees *out with host_free(). */
ctrt_status module_listeners(ctrt_module ***out, size_t *count, ctrt_module *module);
/* The number of modules whose class has `event`. */
extern atomic_int module_event_classes;

/* Adds a child for which `module` stands in: names of tensors do not contain its name, which is "". Takes ownership of
 * the reference, also on failure. */
ctrt_status module_add_transparent(ctrt_module *module, ctrt_module *child);

/* Moves *fresh to *out: releases the old *out and sets *fresh to NULL. */
void module_give(ctrt_module **out, ctrt_module **fresh);
/* Returns the error for a NULL module argument: the error of the module's constructor inside CTRT_NEW if there was one,
 * else CTRT_ERR_INVALID_ARGUMENT. */
ctrt_status module_missing(const char *who, const char *argument);

/* For constructors: adds a new uninitialised parameter of the default dtype to `module`. *borrowed: the parameter,
 * which the module owns. */
ctrt_status module_new_parameter(ctrt_tensor **borrowed, ctrt_module *module, const char *name, ctrt_ints shape,
                                 ctrt_device *device);
/* Adds `name` in front of the message of a failed forward. Has no effect on messages of 2048 bytes or more, so that
 * deep nesting does not truncate the cause. */
ctrt_status module_context(ctrt_status status, const char *name);
/* For forward functions of modules with one input: checks the number of inputs and that the input is not NULL. */
ctrt_status module_one_input(const ctrt_module *module, ctrt_tensor *const *inputs, int count);
/* Returns CTRT_ERR_INVALID_ARGUMENT if value < least: "linear_new: in_features is -3, expected at least 0". */
ctrt_status module_at_least(const char *who, const char *what, int64_t value, int64_t least);

#endif
