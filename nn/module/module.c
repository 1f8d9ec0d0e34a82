/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/module.c: modules: creation and destruction, registration of tensors and child modules, forward. */
#include "nn/module/module.h"

#include "base/intern.h"
#include "base/stack.h"
#include "memory/block_table.h"
#include "memory/label.h"
#include "tensor/scope.h"

_Atomic uint64_t module_structure = 1;

/* The status of a constructor that failed inside CTRT_NEW, for the function that then gets NULL as a module. */
static __thread ctrt_status made_status;

/* ---- creation, references, destruction ---- */

/* Forward pass of a module that only contains others. */
static ctrt_status forward_of_container(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)y, (void)inputs, (void)count;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "forward: the class %s has no forward function; call those of the modules "
                     "in it", self->class_of->kind);
}

static ctrt_status check_pointers(const ctrt_module_class *class_of)
{
    const size_t bytes = class_of->state_bytes;
    if (!CTRT_SLOT(class_of, state_pointers))
        return CTRT_OK;
    for (const size_t *at = class_of->state_pointers; *at != CTRT_STATE_END; at++)
        if (bytes < sizeof(void *) || *at > bytes - sizeof(void *))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "module_new: state_pointers of %s has offset %zu, where no "
                             "pointer fits into state_bytes %zu", class_of->kind, *at, bytes);
    return CTRT_OK;
}

ctrt_status ctrt_module_new(ctrt_module **out, const ctrt_module_class *class_of)
{
    NULL_CHECK("module_new", out);
    NULL_CHECK("module_new", class_of);
    if (class_of->size < offsetof(ctrt_module_class, kind) + sizeof class_of->kind)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "module_new: class_of->size is %zu; it must be sizeof(ctrt_module_class)", class_of->size);
    if (class_of->kind == NULL)
        return fail_null("module_new", "class_of->kind");
    if (class_of->state_bytes > PTRDIFF_MAX - sizeof(ctrt_module))
        return ctrt_fail(CTRT_ERR_OVERFLOW, "module_new: state_bytes %zu of %s is too large", class_of->state_bytes,
                         class_of->kind);
    CTRT_TRY(check_pointers(class_of));

    size_t bytes = sizeof(ctrt_module) + class_of->state_bytes;
    ctrt_module *module = host_calloc(bytes);
    ALLOC_CHECK(module, bytes, "a module");
    atomic_init(&module->refs, 1);
    module->training = true;
    module->class_of = class_of;
    module->forward = CTRT_SLOT(class_of, forward) ? class_of->forward : forward_of_container;
    if (CTRT_SLOT(class_of, event))
        atomic_fetch_add(&module_event_classes, 1);
    module_give(out, &module);
    return CTRT_OK;
}

ctrt_module *ctrt_module_retain(ctrt_module *module)
{
    if (module != NULL)
        atomic_fetch_add_explicit(&module->refs, 1, memory_order_relaxed);
    return module;
}

static void tensors_free(struct module_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        ctrt_tensor_release(&tensors->items[i].tensor);
        host_free(tensors->items[i].name);
    }
    host_free(tensors->items);
}

/* Frees the module and releases its children. A child without other references is not freed recursively;
 * module_destroy adds it to its list. */
static void module_free(ctrt_module *module)
{
    if (CTRT_SLOT(module->class_of, destroy))
        module->class_of->destroy(module);
    if (CTRT_SLOT(module->class_of, event))
        atomic_fetch_sub(&module_event_classes, 1);
    for (size_t i = 0; i < module->children.count; i++) {
        ctrt_module_release(&module->children.items[i].module);
        host_free(module->children.items[i].name);
    }
    host_free(module->children.items);
    forward_hooks_free(module);
    tensors_free(&module->parameters);
    tensors_free(&module->buffers);
    for (int kind = 0; kind < WALK_KINDS; kind++)
        host_free(module->walks[kind].entries);
    host_free(module);
}

/* Frees a module without references. A list replaces recursion, so that deeply nested modules do not overflow the
 * stack. */
static void module_destroy(ctrt_module *module)
{
    static __thread ctrt_module *dying;
    static __thread bool draining;
    module->next_dying = dying;
    dying = module;
    if (draining)
        return;
    draining = true;
    while ((module = dying) != NULL) {
        dying = module->next_dying;
        module_free(module);
    }
    draining = false;
}

void ctrt_module_release(ctrt_module **module)
{
    if (module == NULL || *module == NULL)
        return;
    ctrt_module *gone = *module;
    *module = NULL;
    if (atomic_fetch_sub_explicit(&gone->refs, 1, memory_order_acq_rel) == 1)
        module_destroy(gone);
}

void module_give(ctrt_module **out, ctrt_module **fresh)
{
    ctrt_module *old = *out;
    *out = *fresh;
    *fresh = NULL;
    ctrt_module_release(&old);
}

ctrt_module *ctrt_module_made(ctrt_status status, ctrt_module *module)
{
    if (status == CTRT_OK)
        return module;
    made_status = status;
    ctrt_module_release(&module);
    return NULL;
}

ctrt_status module_missing(const char *who, const char *argument)
{
    ctrt_status status = made_status;
    made_status = CTRT_OK;
    return status ? ctrt_context(status, "%s", who) : fail_null(who, argument);
}

/* ---- registration ---- */

static bool tensors_have(const struct module_tensors *tensors, const char *name)
{
    for (size_t i = 0; i < tensors->count; i++)
        if (strcmp(tensors->items[i].name, name) == 0)
            return true;
    return false;
}

static bool children_have(const struct module_children *children, const char *name)
{
    for (size_t i = 0; i < children->count; i++)
        if (strcmp(children->items[i].name, name) == 0)
            return true;
    return false;
}

/* Checks a name: it must not be empty, contain a dot (the separator of nested names) or exist in the module already. */
static ctrt_status module_name_check(const ctrt_module *module, const char *who, const char *name)
{
    const char *kind = module->class_of->kind;
    NULL_CHECK(who, name);
    if (*name == '\0' || strchr(name, '.'))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "%s: the name \"%s\" in module %s is empty or has a dot, which separates the names of nested "
                         "modules", who, name, kind);
    if (tensors_have(&module->parameters, name) || tensors_have(&module->buffers, name)
        || children_have(&module->children, name))
        return ctrt_fail(CTRT_ERR_STATE, "%s: module %s already has something named \"%s\"", who, kind, name);
    return CTRT_OK;
}

static ctrt_status tensors_add(struct module_tensors *tensors, const char *name, ctrt_tensor *tensor, bool persistent)
{
    CTRT_TRY(ARRAY_RESERVE(tensors->items, tensors->capacity, tensors->count, "a list of tensors"));
    char *copy = host_strdup(name);
    ALLOC_CHECK(copy, strlen(name) + 1, "a name");
    scope_keep(tensor);
    tensors->items[tensors->count++] = (struct module_tensor){ copy, ctrt_tensor_retain(tensor), persistent };
    atomic_fetch_add(&module_structure, 1);
    return CTRT_OK;
}

ctrt_status ctrt_module_add_parameter(ctrt_module *module, const char *name, ctrt_tensor *tensor)
{
    NULL_CHECK("module_add_parameter", module);
    CTRT_TRY(module_name_check(module, "module_add_parameter", name));
    NULL_CHECK("module_add_parameter", tensor);
    if (!ctrt_tensor_is_leaf(tensor))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "module_add_parameter: \"%s\" is the result of %s, but a parameter must be a leaf; detach it, "
                         "or make it inside ctrt_no_grad", name,
                         ctrt_tensor_grad_fn(tensor) ? ctrt_tensor_grad_fn(tensor) : "an op");
    if (ctrt_dtype_is_floating(ctrt_tensor_dtype(tensor)))
        CTRT_TRY(ctrt_tensor_require_grad(tensor, true));
    return tensors_add(&module->parameters, name, tensor, true);
}

ctrt_status ctrt_module_add_buffer(ctrt_module *module, const char *name, ctrt_tensor *tensor, bool persistent)
{
    NULL_CHECK("module_add_buffer", module);
    CTRT_TRY(module_name_check(module, "module_add_buffer", name));
    NULL_CHECK("module_add_buffer", tensor);
    return tensors_add(&module->buffers, name, tensor, persistent);
}

static ctrt_status children_add(ctrt_module *module, const char *name, ctrt_module *child)
{
    struct module_children *children = &module->children;
    bool contains = false;
    CTRT_TRY(module_contains(&contains, child, module));
    if (contains)
        return ctrt_fail(CTRT_ERR_STATE,
                         "module_add_module: \"%s\" (%s) contains the module to which it would be added", name,
                         child->class_of->kind);
    CTRT_TRY(ARRAY_RESERVE(children->items, children->capacity, children->count, "a list of modules"));
    char *copy = host_strdup(name);
    ALLOC_CHECK(copy, strlen(name) + 1, "a name");
    children->items[children->count++] = (struct module_child){ copy, child };
    atomic_fetch_add(&module_structure, 1);
    return CTRT_OK;
}

/* Gives the memory of the child's tensors their paths as labels: "1.0.weight" when a child "1" is added. */
static void label_tensors(ctrt_module *child, const char *name)
{
    const struct walk *walk;
    const char *base = label_here(), *slash = base[0] != '\0' ? "/" : "";
    for (int kind = 0; kind < WALK_KINDS; kind++)
        for (size_t i = 0; module_walk(&walk, child, kind) == CTRT_OK && i < walk->count; i++) {
            const struct storage *storage = walk->entries[i].tensor->storage;
            const char *label = intern_format("%s%s%s.%s", base, slash, name, walk->entries[i].name);
            if (label != NULL)
                block_table_label(storage->device->memory, storage->block.address, label);
        }
}

ctrt_status ctrt_module_add_module(ctrt_module *module, const char *name, ctrt_module *child)
{
    if (child == NULL)
        return module_missing("module_add_module", "child");
    ctrt_status status = module ? module_name_check(module, "module_add_module", name)
                                : fail_null("module_add_module", "module");
    if (status == CTRT_OK)
        status = children_add(module, name, child);
    if (status)
        ctrt_module_release(&child);
    else if (unlikely(atomic_load_explicit(&label_wanted, memory_order_relaxed)))
        label_tensors(child, name);
    return status;
}

ctrt_status module_add_transparent(ctrt_module *module, ctrt_module *child)
{
    ctrt_status status = children_add(module, "", child);
    if (status)
        ctrt_module_release(&child);
    return status;
}

ctrt_status module_new_parameter(ctrt_tensor **borrowed, ctrt_module *module, const char *name, ctrt_ints shape,
                                 ctrt_device *device)
{
    CTRT_AUTO(tensor) tensor = NULL;
    struct memory_label kind, own;
    label_enter(&kind, label_here(), module->class_of->kind);
    label_enter(&own, kind.text, name);
    ctrt_status status = ctrt_empty(&tensor, shape, CTRT_DTYPE_DEFAULT, device);
    label_leave(&own);
    label_leave(&kind);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_module_add_parameter(module, name, tensor));
    *borrowed = tensor;
    return CTRT_OK;
}

/* ---- forward ---- */

/* The stack of modules whose forward runs in this thread. Maintained only while memory is watched, for its labels. */
struct module_running {
    struct module_running *outer;
    const ctrt_module *module;
    const char *base;                       /* the thread's label when the outermost module was called */
    char path[200];                         /* path from the outermost module, "encoder.layer1"; "": outermost */
};
static __thread struct module_running *running;

/* Writes the path from `module` to its descendant `what` into `path` (`capacity` bytes). Returns false if `what` is not
 * a descendant of `module`. */
static bool path_to(char *path, size_t capacity, const ctrt_module *module, const ctrt_module *what)
{
    for (size_t i = 0; i < module->children.count && capacity > 1; i++) {
        const struct module_child *child = &module->children.items[i];
        int length = snprintf(path, capacity, "%s", child->name);
        if (child->module == what)
            return true;
        if (length < 0 || (size_t)length + 1 >= capacity)
            continue;
        if (length > 0)
            path[length++] = '.';
        if (path_to(path + length, capacity - (size_t)length, child->module, what))
            return true;
    }
    if (capacity > 0)
        *path = '\0';
    return false;
}

/* Fills in `self` for `module`: its path from the outermost running module, or a new path if `module` is not a
 * descendant of the innermost running module. */
static void module_place(struct module_running *self, const ctrt_module *module)
{
    self->outer = running;
    self->module = module;
    self->base = label_here();
    self->path[0] = '\0';
    if (running == NULL)
        return;
    size_t length = (size_t)snprintf(self->path, sizeof self->path, "%s%s", running->path, *running->path ? "." : "");
    length = length < sizeof self->path ? length : sizeof self->path - 1;
    if (path_to(self->path + length, sizeof self->path - length, running->module, module))
        self->base = running->base;
    else
        self->path[0] = '\0';
}

static ctrt_status module_forward(ctrt_tensor **result, ctrt_module *module, ctrt_tensor *const *inputs, int count)
{
    if (likely(!atomic_load_explicit(&label_wanted, memory_order_relaxed)))
        return module->forward(result, module, inputs, count);
    struct module_running self;
    struct memory_label label;
    module_place(&self, module);
    running = &self;
    label_enter(&label, self.base, *self.path ? self.path : module->class_of->kind);
    ctrt_status status = module->forward(result, module, inputs, count);
    label_leave(&label);
    running = self.outer;
    return status;
}

ctrt_status module_context(ctrt_status status, const char *name)
{
    return strlen(ctrt_error_message()) < 2048 ? ctrt_context(status, "%s", name) : status;
}

/* Calls forward. The result is stored in a local variable first, because *y may own an input that the module still
 * reads, and because *y must not change if the module fails. */
static ctrt_status module_run(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *const *inputs, int count)
{
    CTRT_AUTO(tensor) result = NULL;
    CTRT_TRY(stack_check("forward"));
    ctrt_status status = likely(module->hooks == NULL) ? CTRT_OK : forward_hooks_before(module);
    if (likely(status == CTRT_OK))
        status = module_forward(&result, module, inputs, count);
    if (unlikely(module->hooks != NULL) && status == CTRT_OK && result != NULL)
        status = forward_hooks_after(module, result);
    if (status)
        return module_context(status, module->class_of->kind);
    if (result == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "%s: forward succeeded without a result", module->class_of->kind);
    ctrt_tensor *old = *y;
    *y = result;
    result = old;
    return CTRT_OK;
}

ctrt_status ctrt_forward(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *x)
{
    NULL_CHECK("forward", y);
    NULL_CHECK("forward", module);
    NULL_CHECK("forward", x);
    return module_run(y, module, &x, 1);
}

ctrt_status ctrt_forward_n(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *const *inputs, int count)
{
    NULL_CHECK("forward_n", y);
    NULL_CHECK("forward_n", module);
    if (inputs == NULL && count > 0)
        return fail_null("forward_n", "inputs");
    CTRT_TRY(module_at_least("forward_n", "count", count, 0));
    return module_run(y, module, inputs, count);
}

ctrt_status module_one_input(const ctrt_module *module, ctrt_tensor *const *inputs, int count)
{
    if (count != 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s expects one input, got %d", module->class_of->kind, count);
    return inputs[0] ? CTRT_OK : fail_null("forward", "x");
}

ctrt_status module_at_least(const char *who, const char *what, int64_t value, int64_t least)
{
    if (value >= least)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s is %lld, expected at least %lld", who, what, (long long)value,
                     (long long)least);
}

/* ---- accessors ---- */

void *ctrt_module_state(ctrt_module *module)
{
    return module ? module->state : NULL;
}

const char *ctrt_module_kind(const ctrt_module *module)
{
    return module ? module->class_of->kind : "(null)";
}

bool ctrt_module_is_training(const ctrt_module *module)
{
    return module && module->training;
}

void ctrt_module_train(ctrt_module *module, bool training)
{
    if (module == NULL)
        return;
    if (stack_check("module_train") != CTRT_OK) {
        log_message(CTRT_LOG_ERROR, "nn", "%s", ctrt_error_message());
        return;
    }
    module->training = training;
    if (CTRT_SLOT(module->class_of, train))
        module->class_of->train(module, training);
    for (size_t i = 0; i < module->children.count; i++)
        ctrt_module_train(module->children.items[i].module, training);
}
