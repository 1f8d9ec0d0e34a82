/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/walk.c: operations on a module and all its descendants: listing tensors by dotted name, moving to a
 * device or dtype, finding the device, clearing gradients. */
#include "nn/module/module.h"

#include "ctrt/layout.h"

#include "base/intern.h"
#include "base/ptr_map.h"
#include "base/stack.h"
#include "base/strbuf.h"
#include "memory/label.h"
#include "tensor/tensor.h"

/* ---- the walk ---- */

struct module_walker {
    ctrt_module *root;
    enum walk_kind kind;
    struct walk walk;
    struct ptr_map seen;                /* items: pointers to the visited tensors and modules */
    struct strbuf path;                 /* dotted prefix of the current module, "blocks.0." */
};

static void path_cut(struct module_walker *w, size_t length)
{
    w->path.length = length;
    if (w->path.bytes)
        w->path.bytes[length] = '\0';
}

/* *is_new: whether this is the first visit of a tensor or module, which may be shared. */
static ctrt_status visit(bool *is_new, struct module_walker *w, const void *object)
{
    const size_t before = w->seen.count;
    if (ptr_map_add(&w->seen, object, sizeof object) == NULL)
        return out_of_memory(sizeof object, "walking a module");
    *is_new = w->seen.count > before;
    return CTRT_OK;
}

/* Returns the interned copy of the current path, because the public API returns these names. `like`: a likely copy,
 * which is compared first, or NULL. */
static ctrt_status path_intern(const char **out, const struct module_walker *w, const char *like)
{
    *out = like;
    if (!w->path.failed && (like == NULL || strcmp(like, w->path.bytes) != 0))
        *out = intern_string(w->path.bytes);
    return w->path.failed || *out == NULL ? out_of_memory(w->path.length + 1, "a dotted name") : CTRT_OK;
}

static ctrt_status walk_tensor(struct module_walker *w, const struct module_tensor *item)
{
    const struct walk *before = &w->root->walks[w->kind];
    struct walk *walk = &w->walk;
    size_t length = w->path.length;
    bool is_new = false;
    CTRT_TRY(visit(&is_new, w, item->tensor));
    if (!is_new)
        return CTRT_OK;
    CTRT_TRY(ARRAY_RESERVE(walk->entries, walk->capacity, walk->count, "a list of tensors"));
    strbuf_add(&w->path, "%s", item->name);
    struct walk_entry entry = { .tensor = item->tensor, .persistent = item->persistent };
    CTRT_TRY(path_intern(&entry.name, w, walk->count < before->count ? before->entries[walk->count].name : NULL));
    path_cut(w, length);
    walk->entries[walk->count++] = entry;
    return CTRT_OK;
}

static ctrt_status walk_module(struct module_walker *w, const ctrt_module *module)
{
    const struct module_tensors *own = w->kind == WALK_PARAMETERS ? &module->parameters : &module->buffers;
    bool is_new = false;
    CTRT_TRY(stack_check(w->root->class_of->kind));
    CTRT_TRY(visit(&is_new, w, module));
    if (!is_new)
        return CTRT_OK;
    for (size_t i = 0; i < own->count; i++)
        CTRT_TRY(walk_tensor(w, &own->items[i]));
    for (size_t i = 0; i < module->children.count; i++) {
        size_t length = w->path.length;
        if (*module->children.items[i].name != '\0')
            strbuf_add(&w->path, "%s.", module->children.items[i].name);
        CTRT_TRY(walk_module(w, module->children.items[i].module));
        path_cut(w, length);
    }
    return CTRT_OK;
}

ctrt_status module_walk(const struct walk **out, ctrt_module *module, enum walk_kind kind)
{
    struct walk *kept = &module->walks[kind];
    uint64_t structure = atomic_load(&module_structure);
    *out = kept;
    if (likely(kept->structure == structure))
        return CTRT_OK;

    struct module_walker w = { .root = module, .kind = kind };
    ctrt_status status = walk_module(&w, module);
    ptr_map_free(&w.seen);
    strbuf_drop(&w.path);
    if (status) {
        host_free(w.walk.entries);
        return status;
    }
    host_free(kept->entries);
    *kept = w.walk;
    kept->structure = structure;
    return CTRT_OK;
}

ctrt_status module_contains(bool *out, const ctrt_module *module, const ctrt_module *what)
{
    CTRT_TRY(stack_check("module_add_module"));
    *out = module == what;
    for (size_t i = 0; i < module->children.count && !*out; i++)
        CTRT_TRY(module_contains(out, module->children.items[i].module, what));
    return CTRT_OK;
}

/* ---- events ---- */

atomic_int module_event_classes;

/* The modules whose class has `event`, each once. */
struct listeners {
    struct ptr_map seen;
    ctrt_module **modules;
    size_t count, capacity;
};

static ctrt_status listeners_find(struct listeners *l, ctrt_module *module)
{
    const size_t before = l->seen.count;
    CTRT_TRY(stack_check(module->class_of->kind));
    if (ptr_map_add(&l->seen, module, sizeof module) == NULL)
        return out_of_memory(sizeof module, "walking a module");
    if (l->seen.count == before)
        return CTRT_OK;
    if (CTRT_SLOT(module->class_of, event)) {
        CTRT_TRY(ARRAY_RESERVE(l->modules, l->capacity, l->count, "a list of modules"));
        l->modules[l->count++] = module;
    }
    if (unlikely(module->stand_in != NULL))
        CTRT_TRY(listeners_find(l, module->stand_in));
    for (size_t i = 0; i < module->children.count; i++)
        CTRT_TRY(listeners_find(l, module->children.items[i].module));
    return CTRT_OK;
}

void module_set_stand_in(ctrt_module *module, ctrt_module *net, const ctrt_module *was)
{
    if (module->stand_in == was)
        module->stand_in = net;
    for (size_t i = 0; i < module->children.count; i++)
        module_set_stand_in(module->children.items[i].module, net, was);
}

ctrt_status module_listeners(ctrt_module ***out, size_t *count, ctrt_module *module)
{
    struct listeners listeners = { .count = 0 };
    ctrt_status status = CTRT_OK;
    if (module != NULL && atomic_load_explicit(&module_event_classes, memory_order_relaxed) > 0)
        status = listeners_find(&listeners, module);
    ptr_map_free(&listeners.seen);
    *out = listeners.modules;
    *count = listeners.count;
    return status;
}

static ctrt_status listeners_call(const struct listeners *l, ctrt_module_event event, void *argument)
{
    const bool begins = event == CTRT_MODULE_SAVE_BEGIN || event == CTRT_MODULE_LOAD_BEGIN
                        || event == CTRT_MODULE_STEP_BEGIN || event == CTRT_MODULE_OPTIMIZER_SAVE_BEGIN
                        || event == CTRT_MODULE_OPTIMIZER_LOAD_BEGIN;
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < l->count; i++) {
        ctrt_module *module = l->modules[i];
        const ctrt_status here = module->class_of->event(module, event, argument);
        if (here == CTRT_OK)
            continue;
        if (status == CTRT_OK)
            status = ctrt_context(here, "%s", module->class_of->kind);
        while (begins && i-- > 0)           /* the value of each BEGIN is followed by that of its END */
            (void)l->modules[i]->class_of->event(l->modules[i], (ctrt_module_event)(event + 1), argument);
        if (begins)
            break;
    }
    return status;
}

ctrt_status module_event(ctrt_module *module, ctrt_module_event event, void *argument)
{
    if (likely(module == NULL || atomic_load_explicit(&module_event_classes, memory_order_relaxed) == 0))
        return CTRT_OK;
    struct listeners listeners = { .count = 0 };
    ctrt_status status = listeners_find(&listeners, module);
    if (status == CTRT_OK)
        status = listeners_call(&listeners, event, argument);
    ptr_map_free(&listeners.seen);
    host_free(listeners.modules);
    return status;
}

ctrt_status module_event_end(ctrt_status status, ctrt_module *module, ctrt_module_event event, void *argument)
{
    char message[2048];
    if (status == CTRT_OK)
        return module_event(module, event, argument);
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    (void)module_event(module, event, argument);
    return strcmp(message, ctrt_error_message()) == 0 ? status : ctrt_fail(status, "%s", message);
}

/* ---- listing ---- */

static ctrt_status walk_entry(const char *who, const char **name, ctrt_tensor **borrowed, ctrt_module *module,
                              size_t index, enum walk_kind kind)
{
    const struct walk *walk;
    NULL_CHECK(who, module);
    CTRT_TRY(module_walk(&walk, module, kind));
    if (index >= walk->count)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "%s: index %zu, but module %s has %zu", who, index,
                         module->class_of->kind, walk->count);
    if (name)
        *name = walk->entries[index].name;
    if (borrowed)
        *borrowed = walk->entries[index].tensor;
    return CTRT_OK;
}

ctrt_status ctrt_module_parameter(const char **name, ctrt_tensor **borrowed, ctrt_module *module, size_t index)
{
    return walk_entry("module_parameter", name, borrowed, module, index, WALK_PARAMETERS);
}

ctrt_status ctrt_module_buffer(const char **name, ctrt_tensor **borrowed, ctrt_module *module, size_t index)
{
    return walk_entry("module_buffer", name, borrowed, module, index, WALK_BUFFERS);
}

static size_t walk_count(ctrt_module *module, enum walk_kind kind)
{
    const struct walk *walk;
    return module && module_walk(&walk, module, kind) == CTRT_OK ? walk->count : 0;
}

size_t ctrt_module_parameter_count(ctrt_module *module)
{
    return walk_count(module, WALK_PARAMETERS);
}

size_t ctrt_module_buffer_count(ctrt_module *module)
{
    return walk_count(module, WALK_BUFFERS);
}

int64_t ctrt_module_numel(ctrt_module *module)
{
    const struct walk *walk;
    int64_t numel = 0;
    if (module == NULL || module_walk(&walk, module, WALK_PARAMETERS) != CTRT_OK)
        return 0;
    for (size_t i = 0; i < walk->count; i++)
        numel += ctrt_tensor_numel(walk->entries[i].tensor);
    return numel;
}

static ctrt_status tensor_not_found(ctrt_module *module, const char *name)
{
    const struct walk *walks[WALK_KINDS];
    size_t count = 0;
    CTRT_TRY(module_walk(&walks[0], module, WALK_PARAMETERS));
    CTRT_TRY(module_walk(&walks[1], module, WALK_BUFFERS));
    size_t bytes = (walks[0]->count + walks[1]->count) * sizeof(char *);
    HOST_AUTO const char **names = host_alloc(bytes + 1);
    ALLOC_CHECK(names, bytes, "the names of a module");
    for (int kind = 0; kind < WALK_KINDS; kind++)
        for (size_t i = 0; i < walks[kind]->count; i++)
            names[count++] = walks[kind]->entries[i].name;
    const char *nearest = nearest_word(name, names, count);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "module %s has no parameter or buffer \"%s\"%s%s%s",
                     module->class_of->kind, name, nearest ? "; did you mean \"" : "",
                     nearest ? nearest : "", nearest ? "\"?" : "");
}

ctrt_status ctrt_module_tensor(ctrt_tensor **borrowed, ctrt_module *module, const char *name)
{
    NULL_CHECK("module_tensor", borrowed);
    NULL_CHECK("module_tensor", module);
    NULL_CHECK("module_tensor", name);
    for (int kind = 0; kind < WALK_KINDS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, kind));
        for (size_t i = 0; i < walk->count; i++) {
            if (strcmp(walk->entries[i].name, name) == 0) {
                *borrowed = walk->entries[i].tensor;
                return CTRT_OK;
            }
        }
    }
    return tensor_not_found(module, name);
}

ctrt_status ctrt_module_child(const char **name, ctrt_module **borrowed, ctrt_module *module, size_t index)
{
    NULL_CHECK("module_child", module);
    if (index >= module->children.count)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "module_child: index %zu, but module %s has %zu children", index,
                         module->class_of->kind, module->children.count);
    if (name)
        *name = module->children.items[index].name;
    if (borrowed)
        *borrowed = module->children.items[index].module;
    return CTRT_OK;
}

/* ---- moving to a device or dtype ---- */

/* A tensor and the tensor whose data it will take over. */
struct move {
    ctrt_tensor *tensor, *becomes;
};
struct moves {
    struct move *items;
    size_t count, capacity;
};

static ctrt_status moves_add(struct moves *moves, ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) becomes = NULL;
    CTRT_AUTO(tensor) plain = NULL;
    if (!ctrt_dtype_is_floating(ctrt_tensor_dtype(tensor)))
        dtype = CTRT_DTYPE_DEFAULT;                 /* integer and bool tensors keep their dtype */
    if ((device == NULL || device == ctrt_tensor_device(tensor))
        && (dtype == CTRT_DTYPE_DEFAULT || dtype == ctrt_tensor_dtype(tensor)))
        return CTRT_OK;
    CTRT_TRY(ARRAY_RESERVE(moves->items, moves->capacity, moves->count, "a list of tensors"));
    CTRT_TRY(ctrt_detach(&plain, tensor));
    CTRT_TRY(ctrt_to(&becomes, plain, device, dtype, false, CTRT_PRESERVE_FORMAT));
    CTRT_TRY(ctrt_tensor_distribute_like(becomes, plain));
    moves->items[moves->count++] = (struct move){ tensor, ctrt_tensor_retain(becomes) };
    return CTRT_OK;
}

/* Creates all new tensors before the module is changed, so that an error leaves the module unchanged. */
static ctrt_status moves_prepare(struct moves *moves, ctrt_module *module, ctrt_device *device, ctrt_dtype dtype)
{
    for (int kind = 0; kind < WALK_KINDS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, kind));
        for (size_t i = 0; i < walk->count; i++) {
            ctrt_tensor *tensor = walk->entries[i].tensor, *grad = ctrt_tensor_grad(tensor);
            struct memory_label label;
            label_enter(&label, label_here(), walk->entries[i].name);
            ctrt_status status = moves_add(moves, tensor, device, dtype);
            if (status == CTRT_OK && grad != NULL)
                status = moves_add(moves, grad, device, dtype);
            label_leave(&label);
            if (status)
                return ctrt_context(status, "moving \"%s\"", walk->entries[i].name);
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_module_to(ctrt_module *module, ctrt_device *device, ctrt_dtype dtype)
{
    struct moves moves = { 0 };
    NULL_CHECK("module_to", module);
    if (dtype != CTRT_DTYPE_DEFAULT && !ctrt_dtype_is_floating(dtype))
        return ctrt_fail(CTRT_ERR_DTYPE, "module_to: parameters must have a floating type, not %s",
                         ctrt_dtype_name(dtype));
    ctrt_status status = moves_prepare(&moves, module, device, dtype);
    for (size_t i = 0; i < moves.count; i++) {
        if (status == CTRT_OK)
            tensor_set_data(moves.items[i].tensor, moves.items[i].becomes);
        ctrt_tensor_release(&moves.items[i].becomes);
    }
    host_free(moves.items);
    return ctrt_context(status, "module_to");
}

ctrt_status ctrt_module_device(ctrt_device **out, ctrt_module *module)
{
    const struct walk *walk;
    char text[512];
    size_t length = 0, named = 0;
    NULL_CHECK("module_device", out);
    NULL_CHECK("module_device", module);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    if (walk->count == 0)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "module_device: module %s has no parameters", module->class_of->kind);

    ctrt_device *first = ctrt_tensor_device(walk->entries[0].tensor), *last = NULL;
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_device *device = ctrt_tensor_device(walk->entries[i].tensor);
        if (device != last && length < sizeof text) {               /* name the first of adjacent ones on one device */
            named++;
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s on %s", i ? ", " : "",
                                       walk->entries[i].name, ctrt_device_name(device));
        }
        last = device;
    }
    if (named > 1)
        return ctrt_fail(CTRT_ERR_DEVICE,
                         "module_device: parameters of module %s are on different devices: %s%s; move them to one with "
                         "ctrt_module_to", module->class_of->kind, text, length < sizeof text ? "" : "...");
    *out = first;
    return CTRT_OK;
}

ctrt_status ctrt_module_zero_grad(ctrt_module *module, bool set_to_none)
{
    const struct walk *walk;
    NULL_CHECK("module_zero_grad", module);
    CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
    for (size_t i = 0; i < walk->count; i++) {
        ctrt_tensor *grad = ctrt_tensor_grad(walk->entries[i].tensor);
        ctrt_status status = CTRT_OK;
        if (grad != NULL && set_to_none)
            status = ctrt_tensor_set_grad(walk->entries[i].tensor, NULL);
        else if (grad != NULL)
            ctrt_no_grad status = ctrt_zero_(grad);
        CTRT_TRY(ctrt_context(status, "zero_grad of \"%s\"", walk->entries[i].name));
    }
    return CTRT_OK;
}
