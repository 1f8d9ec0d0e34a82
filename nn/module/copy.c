/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/copy.c: copies of modules and their descendants, with new tensors or with tensors that the caller
 * chooses. */
#include "ctrt/layout.h"

#include "base/array.h"
#include "base/ptr_map.h"
#include "base/stack.h"
#include "base/strbuf.h"
#include "memory/label.h"
#include "nn/module/module.h"
#include "tensor/scope.h"

struct twin {                           /* item of the table from originals to copies */
    const void *original;               /* a tensor or a module */
    void *copy;                         /* borrowed */
};

struct pair {
    ctrt_module *original, *copy;       /* borrowed */
};

struct copier {
    const char *who;
    struct ptr_map twins;
    ctrt_tensor **tensors;              /* the copies of tensors; the copier owns one reference to each */
    size_t tensor_count, tensor_capacity;
    struct pair *pairs;                 /* all modules, each once */
    size_t pair_count, pair_capacity;
    struct strbuf path;                 /* dotted prefix of the current module, "blocks.0." */
};

static ctrt_status twin_add(struct copier *c, const void *original, void *copy)
{
    struct twin *twin = ptr_map_add(&c->twins, original, sizeof *twin);
    ALLOC_CHECK(twin, sizeof *twin, "copying a module");
    twin->copy = copy;
    return CTRT_OK;
}

static void *twin_of(const struct copier *c, const void *original)
{
    const struct twin *twin = ptr_map_find(&c->twins, original, sizeof *twin);
    return twin != NULL ? twin->copy : NULL;
}

/* ---- tensors ---- */

static ctrt_status tensors_choose(struct copier *c, ctrt_module *module, enum walk_kind kind, module_copy_choice choose,
                                  void *user)
{
    const struct walk *walk;
    CTRT_TRY(module_walk(&walk, module, kind));
    for (size_t i = 0; i < walk->count; i++) {
        const struct walk_entry *entry = &walk->entries[i];
        if (twin_of(c, entry->tensor) != NULL)          /* a parameter may also be a buffer */
            continue;
        CTRT_TRY(ARRAY_RESERVE(c->tensors, c->tensor_capacity, c->tensor_count, "a list of tensors"));
        ctrt_tensor *fresh = NULL;
        ctrt_status status = choose(&fresh, user, entry, i, kind);
        c->tensors[c->tensor_count++] = fresh;          /* released by the caller, also after a failure */
        CTRT_TRY(ctrt_context(status, "\"%s\"", entry->name));
        CTRT_TRY(twin_add(c, entry->tensor, fresh));
    }
    return CTRT_OK;
}

static ctrt_status module_copy_tensors_copy(const struct copier *c, struct module_tensors *to,
                                            const struct module_tensors *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct module_tensor *item = &from->items[i];
        CTRT_TRY(ARRAY_RESERVE(to->items, to->capacity, to->count, "a list of tensors"));
        char *name = host_strdup(item->name);
        ALLOC_CHECK(name, strlen(item->name) + 1, "a name");
        ctrt_tensor *copy = twin_of(c, item->tensor);
        scope_keep(copy);
        to->items[to->count++] = (struct module_tensor){ name, ctrt_tensor_retain(copy), item->persistent };
    }
    return CTRT_OK;
}

/* ---- modules ---- */

static void path_cut(struct copier *c, size_t length)
{
    c->path.length = length;
    if (c->path.bytes != NULL)
        c->path.bytes[length] = '\0';
}

/* Fails for a module whose state may own something that a copy of its bytes would also own, or may have pointers that
 * the class does not list. */
static ctrt_status check_class(const struct copier *c, const ctrt_module *module)
{
    const ctrt_module_class *class_of = module->class_of;
    const char *reason;
    if (CTRT_SLOT(class_of, replicate))
        return CTRT_OK;
    if (CTRT_SLOT(class_of, destroy))
        reason = "`destroy` but no `replicate`";
    else if (class_of->state_bytes > 0 && !CTRT_SLOT(class_of, state_pointers))
        reason = "a state but neither `state_pointers` (CTRT_STATE_PLAIN for a state without pointers) nor `replicate`";
    else
        return CTRT_OK;
    const size_t length = c->path.length > 0 ? c->path.length - 1 : 0;          /* without the last dot */
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s: %s%.*s%s of class %s cannot be copied, because the class has %s",
                     c->who, length > 0 ? "\"" : "the module", (int)length, length > 0 ? c->path.bytes : "",
                     length > 0 ? "\"" : "", class_of->kind, reason);
}

/* *out: a reference to the copy of `module`, which is made at the first visit. */
static ctrt_status copy_module(ctrt_module **out, struct copier *c, ctrt_module *module)
{
    CTRT_AUTO(module) copy = NULL;
    CTRT_TRY(stack_check(c->who));
    ctrt_module *made = twin_of(c, module);
    if (made != NULL) {
        *out = ctrt_module_retain(made);
        return CTRT_OK;
    }
    CTRT_TRY(check_class(c, module));
    CTRT_TRY(ARRAY_RESERVE(c->pairs, c->pair_capacity, c->pair_count, "a list of modules"));
    CTRT_TRY(ctrt_module_new(&copy, module->class_of));
    copy->training = module->training;
    CTRT_TRY(twin_add(c, module, copy));
    c->pairs[c->pair_count++] = (struct pair){ module, copy };
    CTRT_TRY(module_copy_tensors_copy(c, &copy->parameters, &module->parameters));
    CTRT_TRY(module_copy_tensors_copy(c, &copy->buffers, &module->buffers));
    struct module_children *children = &copy->children;
    for (size_t i = 0; i < module->children.count; i++) {
        const struct module_child *item = &module->children.items[i];
        const size_t length = c->path.length;
        CTRT_TRY(ARRAY_RESERVE(children->items, children->capacity, children->count, "a list of modules"));
        struct module_child child = { .module = NULL };
        strbuf_add(&c->path, "%s.", item->name);
        CTRT_TRY(copy_module(&child.module, c, item->module));
        path_cut(c, length);
        child.name = host_strdup(item->name);
        if (child.name == NULL) {
            ctrt_module_release(&child.module);
            return out_of_memory(strlen(item->name) + 1, "a name");
        }
        children->items[children->count++] = child;
    }
    *out = ctrt_module_retain(copy);
    return CTRT_OK;
}

/* Copies the bytes of the state, with the pointers that the class lists replaced by pointers to their copies. The
 * pointers may be unaligned. */
static ctrt_status copy_state(const struct copier *c, ctrt_module *copy, const ctrt_module *original)
{
    const ctrt_module_class *class_of = original->class_of;
    if (class_of->state_bytes == 0)
        return CTRT_OK;
    memcpy(copy->state, original->state, class_of->state_bytes);
    for (const size_t *at = class_of->state_pointers; *at != CTRT_STATE_END; at++) {
        const void *pointer;
        memcpy(&pointer, copy->state + *at, sizeof pointer);
        if (pointer == NULL)
            continue;
        void *twin = twin_of(c, pointer);
        if (twin == NULL)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the pointer at offset %zu of the state of a module of class %s "
                             "is to no parameter, buffer or module of what is copied; such a class needs `replicate`",
                             *at, class_of->kind);
        memcpy(copy->state + *at, &twin, sizeof twin);
    }
    return CTRT_OK;
}

static ctrt_status module_states_copy(const struct copier *c)
{
    for (size_t i = 0; i < c->pair_count; i++) {
        ctrt_module *original = c->pairs[i].original, *copy = c->pairs[i].copy;
        if (CTRT_SLOT(original->class_of, replicate))
            CTRT_TRY(ctrt_context(original->class_of->replicate(copy, original), "replicate of %s",
                                  original->class_of->kind));
        else
            CTRT_TRY(copy_state(c, copy, original));
    }
    return CTRT_OK;
}

ctrt_status module_copy_with(ctrt_module **out, const char *who, ctrt_module *module, module_copy_choice choose,
                             void *user)
{
    CTRT_AUTO(module) copy = NULL;
    struct copier c = { .who = who };
    ctrt_status status = CTRT_OK;
    for (int kind = 0; kind < WALK_KINDS && status == CTRT_OK; kind++)
        status = ctrt_context(tensors_choose(&c, module, (enum walk_kind)kind, choose, user), "%s", who);
    if (status == CTRT_OK)
        status = copy_module(&copy, &c, module);
    if (status == CTRT_OK)
        status = ctrt_context(module_states_copy(&c), "%s", who);
    for (size_t i = 0; i < c.tensor_count; i++)
        ctrt_tensor_release(&c.tensors[i]);
    host_free(c.tensors);
    host_free(c.pairs);
    ptr_map_free(&c.twins);
    strbuf_drop(&c.path);
    if (status == CTRT_OK)
        module_give(out, &copy);
    return status;
}

/* ---- the public copy ---- */

static ctrt_status copy_tensor(ctrt_tensor **out, void *user, const struct walk_entry *original, size_t index,
                               enum walk_kind kind)
{
    CTRT_AUTO(tensor) plain = NULL;
    ctrt_device *device = user;
    struct memory_label label;
    (void)index;
    CTRT_TRY(ctrt_detach(&plain, original->tensor));
    label_enter(&label, label_here(), original->name);
    ctrt_status status = ctrt_to(out, plain, device, CTRT_DTYPE_DEFAULT, true, CTRT_PRESERVE_FORMAT);
    if (status == CTRT_OK)
        status = ctrt_tensor_distribute_like(*out, plain);
    label_leave(&label);
    CTRT_TRY(status);
    const bool requires = kind == WALK_PARAMETERS && ctrt_tensor_requires_grad(original->tensor);
    return requires ? ctrt_tensor_require_grad(*out, true) : CTRT_OK;
}

ctrt_status ctrt_module_copy(ctrt_module **out, ctrt_module *module, ctrt_device *device)
{
    NULL_CHECK("module_copy", out);
    NULL_CHECK("module_copy", module);
    return module_copy_with(out, "module_copy", module, copy_tensor, device);
}
