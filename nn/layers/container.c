/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/container.c: Sequential, which calls its child modules in order. */
#include "nn/layers/layers.h"

static ctrt_status sequential_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_TRY(module_one_input(self, inputs, count));
    CTRT_AUTO(tensor) h = ctrt_tensor_retain(inputs[0]);
    for (size_t i = 0; i < self->children.count; i++) {
        ctrt_status status = ctrt_forward(&h, self->children.items[i].module, h);
        if (status)
            return module_context(status, self->children.items[i].name);
    }
    ctrt_tensor_assign(y, h);
    return CTRT_OK;
}

static const ctrt_module_class sequential_class = {
    .size = sizeof(ctrt_module_class), .kind = "Sequential", .forward = sequential_forward,
};

ctrt_status ctrt_sequential_add(ctrt_module *sequential, ctrt_module *module)
{
    char name[24];
    if (module == NULL)
        return module_missing("sequential_add", "module");
    if (sequential == NULL || sequential->class_of != &sequential_class) {
        ctrt_module_release(&module);
        return sequential == NULL ? fail_null("sequential_add", "sequential")
            : ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sequential_add: the module is a %s, not a Sequential",
                        ctrt_module_kind(sequential));
    }
    snprintf(name, sizeof name, "%zu", sequential->children.count);
    return ctrt_module_add_module(sequential, name, module);
}

ctrt_status ctrt_sequential_new(ctrt_module **out, ctrt_module_list list)
{
    CTRT_AUTO(module) self = NULL;
    ctrt_status status = CTRT_OK;
    if (list.modules == NULL && list.count > 0)
        return fail_null("sequential_new", "modules");
    if (out == NULL)
        status = fail_null("sequential_new", "out");
    if (status == CTRT_OK)
        status = ctrt_module_new(&self, &sequential_class);
    for (int i = 0; i < list.count; i++) {
        ctrt_module *module = list.modules[i];
        if (status == CTRT_OK)
            status = ctrt_sequential_add(self, module);
        else
            ctrt_module_release(&module);           /* the function owns all modules of the list, also on failure */
    }
    if (status == CTRT_OK)
        module_give(out, &self);
    return status;
}
