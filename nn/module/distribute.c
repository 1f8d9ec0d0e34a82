/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/distribute.c: gives the parameters of a module layouts by patterns of their names
 * (ctrt_module_distribute). */
#include <fnmatch.h>

#include "ctrt/layout.h"
#include "nn/module/module.h"

static const char who[] = "module_distribute";

/* Returns the first pattern that matches `name`; NULL: none. */
static const ctrt_layout_pattern *match(const ctrt_layout_pattern *patterns, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (fnmatch(patterns[i].pattern, name, 0) == 0)
            return &patterns[i];
    return NULL;
}

static ctrt_status check_pattern(const ctrt_layout_pattern *pattern, ctrt_module *module)
{
    const char *name;
    for (size_t i = 0; ctrt_module_parameter(&name, NULL, module, i) == CTRT_OK; i++)
        if (fnmatch(pattern->pattern, name, 0) == 0)
            return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "%s: no parameter of %s matches \"%s\"", who, ctrt_module_kind(module),
                     pattern->pattern);
}

ctrt_status ctrt_module_distribute(ctrt_module *module, const ctrt_layout_pattern *patterns, int count)
{
    if (module == NULL || (patterns == NULL && count > 0))
        return fail_null(who, module == NULL ? "module" : "patterns");
    if (count < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %d patterns", who, count);
    for (int i = 0; i < count; i++) {
        if (patterns[i].pattern == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: pattern %d is NULL", who, i);
        CTRT_TRY(check_pattern(&patterns[i], module));
    }
    const char *name;
    ctrt_tensor *parameter = NULL;
    for (size_t i = 0; ctrt_module_parameter(&name, &parameter, module, i) == CTRT_OK; i++) {
        const ctrt_layout_pattern *found = match(patterns, count, name);
        if (found != NULL)
            CTRT_TRY(ctrt_context(ctrt_tensor_distribute(parameter, &found->layout), "%s: %s", who, name));
    }
    return CTRT_OK;
}
