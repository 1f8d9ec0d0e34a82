/* SPDX-License-Identifier: Apache-2.0 */
/* base/param.h: declared parameters: environment variables that the API can override.
 *
 * Each is declared as a static ctrt_param where it is used; declaring makes `ctrt info --params` list it.
 * Values are read through secure_getenv when first asked for and then stay, unless the program sets them
 * before. */
#ifndef CORE_BASE_PARAM_H
#define CORE_BASE_PARAM_H

#include "ctrt/base.h"
#include "ctrt/plugin.h"

/* Declares (once; again is harmless) and reads. `owner`: "core" or the plugin's name, static. When the name was
 * declared before with another type, words or default, a warning names both owners, once, and the value is read by
 * `param`; listings and ctrt_param_set keep to the first declaration. Errors name the variable, the value and what
 * would be right. Thread-safe. */
ctrt_status param_read(ctrt_param_value *out, const ctrt_param *param, const char *owner);

/* Declares alone, so that listings show the parameter unread. The core's are declared while the library is
 * loaded: CORE_PARAM. */
void param_declare(const ctrt_param *param, const char *owner);

/* CORE_PARAM(variable): declares a static ctrt_param of the core at load. */
#define CORE_PARAM(variable)                                                    \
    __attribute__((constructor)) static void variable##_declare(void)           \
    {                                                                           \
        param_declare(&variable, "core");                                       \
    }                                                                           \
    extern int param_needs_a_semicolon

/* Called when a name is asked for that nobody has declared, and before listings: gives plugins the chance to
 * declare theirs. Set by the registry. */
extern void (*param_declare_all)(void);

/* Warns of environment variables that look like a known one misspelt, each once. */
void param_check_environment(void);

/* When the environment has changed since the last call: the same, and warns of variables that were read before they changed, each once.
 * Costs a few nanoseconds a variable of the environment when nothing has changed. Reads the environment, as getenv
 * does: another thread must not change it meanwhile. So it is called where devices are counted and opened, not where
 * open ones are looked up. */
void param_check_late(void);

/* Called by ctrt_param_set before it sets `name`, without locks: a module whose use of the value can be undone makes it settable
 * again by param_reopen. NULL: no module does. */
extern void (*param_before_set)(const char *name);
void param_reopen(const char *name);

/* The rules for a value's text; the message names `param`. Exposed for tests. */
ctrt_status param_parse(int64_t *integer, const ctrt_param *param, const char *text);

/* For tests: forgets all values read or set (declarations stay). */
void param_forget_values(void);

#endif
