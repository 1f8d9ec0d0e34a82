/* SPDX-License-Identifier: Apache-2.0 */
/* base/param.h: parameters, which are environment variables that the program can override.
 *
 * Each parameter is declared as a static ctrt_param in the file that uses it. `ctrt info --params` lists all declared
 * parameters. A value is read with secure_getenv at its first use and does not change after that. A value that the
 * program sets before the first use has priority over the environment. */
#ifndef CORE_BASE_PARAM_H
#define CORE_BASE_PARAM_H

#include "ctrt/base.h"
#include "ctrt/plugin.h"

/* Declares a parameter (a repeated declaration has no effect) and reads its value. `owner`: "core" or the plugin's
 * name; the string must never be freed.
 *
 * If the name was declared before with another type, default or list of words, logs a warning with both owners once and
 * reads the value according to `param`. Listings and ctrt_param_set use the first declaration.
 *
 * Errors: CTRT_ERR_INVALID_ARGUMENT for a malformed value; the message contains the variable, the value and the
 * expected format. CTRT_ERR_OUT_OF_MEMORY. Thread-safe. */
ctrt_status param_read(ctrt_param_value *out, const ctrt_param *param, const char *owner);

/* Declares a parameter without reading it, so that listings include it. Parameters of the core are declared while the
 * library is loaded (CORE_PARAM). */
void param_declare(const ctrt_param *param, const char *owner);

/* Declares a parameter of the core whose value is secret: listings show "set" instead, and messages do not
 * contain the value. */
void param_declare_secret(const ctrt_param *param);

/* CORE_PARAM(variable): defines a constructor that declares the static ctrt_param `variable` of the core. */
#define CORE_PARAM(variable)                                                    \
    __attribute__((constructor)) static void variable##_declare(void)           \
    {                                                                           \
        param_declare(&variable, "core");                                       \
    }                                                                           \
    extern int param_needs_a_semicolon
#define CORE_SECRET_PARAM(variable)                                             \
    __attribute__((constructor)) static void variable##_declare(void)           \
    {                                                                           \
        param_declare_secret(&variable);                                        \
    }                                                                           \
    extern int param_needs_a_semicolon

/* Initialises all plugins, so that they declare their parameters. Called before a listing and by ctrt_param_set for a
 * name that is not declared. Set by the registry. */
extern void (*param_declare_all)(void);

/* Logs a warning, once per variable, for unknown environment variables whose names are similar to a known one. */
void param_check_environment(void);

/* If the environment has changed since the last call, calls param_check_environment and logs a warning, once per
 * variable, for variables that were changed after their value had been read.
 *
 * Costs a few nanoseconds per environment variable if nothing has changed. Reads the environment like getenv, so no
 * other thread may change the environment during the call. Therefore only the functions that count and open devices
 * call it, not those that look up open devices. */
void param_check_late(void);

/* Called by ctrt_param_set, without locks, before it sets `name`. A module that can revert its use of the value calls
 * param_reopen from here, so that the value can be set again. NULL: not used. */
extern void (*param_before_set)(const char *name);
void param_reopen(const char *name);

/* Parses the text of a value according to its declaration. *integer: the number, the truth value, the size in bytes or
 * the index of the enum word; 0 for strings. CTRT_ERR_INVALID_ARGUMENT if the text is malformed. Not static because
 * tests call it. */
ctrt_status param_parse(int64_t *integer, const ctrt_param *param, const char *text);

/* For tests: resets all values that were read or set; declarations remain. */
void param_forget_values(void);

#endif
