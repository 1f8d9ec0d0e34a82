/* SPDX-License-Identifier: Apache-2.0 */
/* nn/walk.c: operations on a module and all its descendants: listing tensors by dotted name, moving to a device or
 * dtype, finding the device, clearing gradients. */
#include "nn/module.h"

#include "base/stack.h"
#include "memory/tag.h"
#include "tensor/tensor.h"

/* ---- pointer set: a shared module or tensor is visited once ---- */

struct pointer_set {
    const void **slots;
    size_t count, capacity;             /* capacity is a power of 2 and at least twice count */
};

static size_t pointer_place(const struct pointer_set *set, const void *pointer)
{
    size_t i = (size_t)(((uintptr_t)pointer >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20);
    while (set->slots[i & (set->capacity - 1)] && set->slots[i & (set->capacity - 1)] != pointer)
        i++;
    return i & (set->capacity - 1);
}

static ctrt_status set_grow(struct pointer_set *set)
{
    struct pointer_set larger = { .count = set->count, .capacity = set->capacity ? set->capacity * 2 : 64 };
    larger.slots = host_calloc(larger.capacity * sizeof *larger.slots);
    if (larger.slots == NULL)
        return out_of_memory(larger.capacity * sizeof *larger.slots, "walking a module");
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i])
            larger.slots[pointer_place(&larger, set->slots[i])] = set->slots[i];
    host_free(set->slots);
    *set = larger;
    return CTRT_OK;
}

/* Adds a pointer. *is_new: whether it was not in the set before. */
static ctrt_status set_add(struct pointer_set *set, const void *pointer, bool *is_new)
{
    if (set->count * 2 >= set->capacity)
        CTRT_TRY(set_grow(set));
    size_t place = pointer_place(set, pointer);
    *is_new = set->slots[place] == NULL;
    set->slots[place] = pointer;
    set->count += *is_new;
    return CTRT_OK;
}

/* ---- the walk ---- */

struct walker {
    ctrt_module *root;
    enum walk_kind kind;
    struct walk walk;
    struct pointer_set seen;
    char *path;                         /* dotted prefix of the current module, "blocks.0." */
    size_t length, capacity;
};

static ctrt_status path_append(struct walker *w, const char *name, const char *end)
{
    size_t extra = strlen(name) + strlen(end), wanted = w->length + extra + 1;
    if (wanted > w->capacity) {
        char *path = host_realloc(w->path, wanted * 2);
        if (path == NULL)
            return out_of_memory(wanted * 2, "a dotted name");
        w->path = path;
        w->capacity = wanted * 2;
    }
    sprintf(w->path + w->length, "%s%s", name, end);
    w->length += extra;
    return CTRT_OK;
}

static void path_cut(struct walker *w, size_t length)
{
    w->length = length;
    if (w->path)
        w->path[length] = '\0';
}

/* The FNV-1a hash. */
static size_t name_hash(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (size_t)(hash ^ hash >> 32);
}

/* Returns the hash chain of a name. The table has at least as many chains as names. */
static struct module_name **name_chain(const ctrt_module *root, const char *text)
{
    return &root->names[name_hash(text) & (root->name_chains - 1)];
}

static ctrt_status names_grow(ctrt_module *root)
{
    const size_t before = root->name_chains, chains = before ? before * 2 : 16;
    struct module_name **old = root->names, **larger = host_calloc(chains * sizeof *larger);
    if (larger == NULL)
        return out_of_memory(chains * sizeof *larger, "a module's names");
    root->names = larger;
    root->name_chains = chains;
    for (size_t i = 0; i < before; i++)
        for (struct module_name *name = old[i], *next; name; name = next) {
            struct module_name **chain = name_chain(root, name->text);
            next = name->next;
            name->next = *chain;
            *chain = name;
        }
    host_free(old);
    return CTRT_OK;
}

/* Returns the root's interned copy of the current path, so that the pointer of a name never changes. `like`: a likely
 * interned copy, which is compared first, or NULL. */
static ctrt_status path_intern(const char **out, struct walker *w, const char *like)
{
    if (like && strcmp(like, w->path) == 0) {
        *out = like;
        return CTRT_OK;
    }
    if (w->root->name_count == w->root->name_chains)
        CTRT_TRY(names_grow(w->root));
    struct module_name **chain = name_chain(w->root, w->path);
    for (struct module_name *n = *chain; n; n = n->next) {
        if (strcmp(n->text, w->path) == 0) {
            *out = n->text;
            return CTRT_OK;
        }
    }
    struct module_name *name = host_alloc(sizeof *name + w->length + 1);
    if (name == NULL)
        return out_of_memory(sizeof *name + w->length + 1, "a dotted name");
    memcpy(name->text, w->path, w->length + 1);
    name->next = *chain;
    *chain = name;
    w->root->name_count++;
    *out = name->text;
    return CTRT_OK;
}

static ctrt_status walk_tensor(struct walker *w, const struct module_tensor *item)
{
    const struct walk *before = &w->root->walks[w->kind];
    struct walk *walk = &w->walk;
    size_t length = w->length;
    bool is_new;
    CTRT_TRY(set_add(&w->seen, item->tensor, &is_new));
    if (!is_new)
        return CTRT_OK;
    CTRT_TRY(array_reserve((void **)&walk->entries, &walk->capacity, walk->count, sizeof *walk->entries));
    CTRT_TRY(path_append(w, item->name, ""));
    struct walk_entry entry = { .tensor = item->tensor, .persistent = item->persistent };
    CTRT_TRY(path_intern(&entry.name, w, walk->count < before->count ? before->entries[walk->count].name : NULL));
    path_cut(w, length);
    walk->entries[walk->count++] = entry;
    return CTRT_OK;
}

static ctrt_status walk_module(struct walker *w, const ctrt_module *module)
{
    const struct module_tensors *own = w->kind == WALK_PARAMETERS ? &module->parameters : &module->buffers;
    bool is_new;
    CTRT_TRY(stack_check(w->root->class_of->kind));
    CTRT_TRY(set_add(&w->seen, module, &is_new));
    if (!is_new)
        return CTRT_OK;
    for (size_t i = 0; i < own->count; i++)
        CTRT_TRY(walk_tensor(w, &own->items[i]));
    for (size_t i = 0; i < module->children.count; i++) {
        size_t length = w->length;
        CTRT_TRY(path_append(w, module->children.items[i].name, "."));
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

    struct walker w = { .root = module, .kind = kind };
    ctrt_status status = walk_module(&w, module);
    host_free(w.seen.slots);
    host_free(w.path);
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

/* ---- listing ---- */

static ctrt_status walk_entry(const char *who, const char **name, ctrt_tensor **borrowed, ctrt_module *module,
                              size_t index, enum walk_kind kind)
{
    const struct walk *walk;
    if (module == NULL)
        return fail_null(who, "module");
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
    const char **names = host_alloc(bytes + 1);
    if (names == NULL)
        return out_of_memory(bytes, "the names of a module");
    for (int kind = 0; kind < WALK_KINDS; kind++)
        for (size_t i = 0; i < walks[kind]->count; i++)
            names[count++] = walks[kind]->entries[i].name;
    const char *nearest = nearest_word(name, names, count);
    ctrt_status status = ctrt_fail(CTRT_ERR_NOT_FOUND, "module %s has no parameter or buffer \"%s\"%s%s%s",
                                   module->class_of->kind, name, nearest ? "; did you mean \"" : "",
                                   nearest ? nearest : "", nearest ? "\"?" : "");
    host_free(names);
    return status;
}

ctrt_status ctrt_module_tensor(ctrt_tensor **borrowed, ctrt_module *module, const char *name)
{
    if (borrowed == NULL)
        return fail_null("module_tensor", "borrowed");
    if (module == NULL)
        return fail_null("module_tensor", "module");
    if (name == NULL)
        return fail_null("module_tensor", "name");
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
    if (module == NULL)
        return fail_null("module_child", "module");
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
    CTRT_TRY(array_reserve((void **)&moves->items, &moves->capacity, moves->count, sizeof *moves->items));
    CTRT_TRY(ctrt_detach(&plain, tensor));
    CTRT_TRY(ctrt_to(&becomes, plain, device, dtype, false, CTRT_PRESERVE_FORMAT));
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
            struct memory_tag tag;
            tag_enter(&tag, tag_here(), walk->entries[i].name);
            ctrt_status status = moves_add(moves, tensor, device, dtype);
            if (status == CTRT_OK && grad != NULL)
                status = moves_add(moves, grad, device, dtype);
            tag_leave(&tag);
            if (status)
                return ctrt_context(status, "moving \"%s\"", walk->entries[i].name);
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_module_to(ctrt_module *module, ctrt_device *device, ctrt_dtype dtype)
{
    struct moves moves = { 0 };
    if (module == NULL)
        return fail_null("module_to", "module");
    if (dtype != CTRT_DTYPE_DEFAULT && !ctrt_dtype_is_floating(dtype))
        return ctrt_fail(CTRT_ERR_DTYPE, "module_to: parameters can only have floating types, not %s",
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
    if (out == NULL)
        return fail_null("module_device", "out");
    if (module == NULL)
        return fail_null("module_device", "module");
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
                         "module_device: parameters of module %s are on different devices: %s%s; bring them together "
                         "with ctrt_module_to", module->class_of->kind, text, length < sizeof text ? "" : "...");
    *out = first;
    return CTRT_OK;
}

ctrt_status ctrt_module_zero_grad(ctrt_module *module, bool set_to_none)
{
    const struct walk *walk;
    if (module == NULL)
        return fail_null("module_zero_grad", "module");
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
