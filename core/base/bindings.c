/* SPDX-License-Identifier: Apache-2.0 */
/* base/bindings.c: support for language bindings, which cannot read the C headers: the constants by name, and the
 * inline functions as exported symbols. */

/* The header's inline functions get other names in this file, so that the public names are free for the exported
 * functions below. */
#define ctrt_float      inline_float
#define ctrt_int        inline_int
#define ctrt_bool       inline_bool
#define ctrt_ints_of    inline_ints_of
#define ctrt_modules_of inline_modules_of
#include "ctrt/ctrt.h"
#undef ctrt_float
#undef ctrt_int
#undef ctrt_bool
#undef ctrt_ints_of
#undef ctrt_modules_of

#include "base/base.h"

/* Defines an exported function with the name of an inline function. tests/exports.sh fails if an inline function of a
 * public header has no exported function. */
#define EXPORTED(type, name, parameters, arguments)   \
    CTRT_API type ctrt_##name parameters;             \
    type ctrt_##name parameters                       \
    {                                                 \
        return inline_##name arguments;               \
    }
EXPORTED(ctrt_scalar, float, (double value), (value))
EXPORTED(ctrt_scalar, int, (int64_t value), (value))
EXPORTED(ctrt_scalar, bool, (bool value), (value))
EXPORTED(ctrt_ints, ints_of, (const int64_t *values, int count), (values, count))
EXPORTED(ctrt_module_list, modules_of, (ctrt_module *const *modules, int count), (modules, count))

static const struct { const char *name; int64_t value; } constants[] = {
#define STATUS(name, value, text) { "CTRT_" #name, value },
#include "ctrt/status.def"
#undef STATUS
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) { "CTRT_" #name, value },
#include "ctrt/dtype.def"
#undef DTYPE
#define CONSTANT(name) { #name, name },
#include "base/constants.def"
#undef CONSTANT
};

ctrt_status ctrt_constant_get(const char **name, int64_t *value, size_t index)
{
    if (index >= COUNT_OF(constants))
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "constant_get: there are %zu constants", COUNT_OF(constants));
    if (name != NULL)
        *name = constants[index].name;
    if (value != NULL)
        *value = constants[index].value;
    return CTRT_OK;
}

ctrt_status ctrt_constant_find(int64_t *value, const char *name)
{
    if (value == NULL || name == NULL)
        return fail_null("constant_find", value == NULL ? "value" : "name");
    const char *known[COUNT_OF(constants)];
    for (size_t i = 0; i < COUNT_OF(constants); i++) {
        known[i] = constants[i].name;
        if (strcmp(name, known[i]) == 0) {
            *value = constants[i].value;
            return CTRT_OK;
        }
    }
    const char *nearest = nearest_word(name, known, COUNT_OF(constants));
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "constant_find: no constant \"%.60s\"%s%s%s", name,
                     nearest ? " (did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?)" : "");
}
