/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/base.h: errors, log, parameters, version.
 *
 * Every function that can fail returns a ctrt_status and writes results through pointers that come first. An
 * out-parameter that receives a handle is a variable that owns one reference: NULL or a live handle. On success the call
 * releases what it held and stores the new one; on failure it is untouched. */
#ifndef CTRT_BASE_H
#define CTRT_BASE_H

#include "ctrt/types.h"

CTRT_BEGIN_DECLS

/* Text of a status code ("out of memory"); never NULL. Static. Thread-safe. */
CTRT_API const char *ctrt_status_string(ctrt_status status);

/* What the last failing call of this thread has to say: what went wrong, where, with which shapes, dtypes and devices,
 * and what to do. Valid until this thread's next failing call. "" when nothing failed yet. Thread-local. */
CTRT_API const char *ctrt_error_message(void);

/* Sets this thread's message from a format and returns `status`; for functions written in the library's manner
 * by programs (modules, user-defined functions). `status` must not be CTRT_OK. */
CTRT_API ctrt_status ctrt_fail(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);

/* Puts "format: " before this thread's message, unless it begins so already, when `status` is an error; returns `status`. */
CTRT_API ctrt_status ctrt_context(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);

/* Returns the error of `expr` upward. */
#define CTRT_TRY(expr)                                          \
    do {                                                        \
        ctrt_status ctrt_try_status_ = (expr);                  \
        if (ctrt_try_status_ != CTRT_OK)                        \
            return ctrt_try_status_;                            \
    } while (0)

/* Declares variables that let go of what they own at the end of their block, also when CTRT_TRY leaves it:
 * CTRT_AUTO(tensor) x = NULL, y = NULL; declares two ctrt_tensor *. Works for every type with a ctrt_TYPE_release. For GCC and Clang. */
#define CTRT_AUTO(type) __attribute__((cleanup(ctrt_##type##_release))) __typeof__(ctrt_##type *)

/* ---- options ----
 *
 * Option structs are valid when all of their bytes are 0. Where a comment gives a default for 0 ("0: 1e-3"), of a
 * struct's member or of an argument, 0 means that default, and CTRT_ZERO means the number 0. For values that a program
 * computes, ctrt_exact(x) is x, or CTRT_ZERO where x is 0. CTRT_ZERO counts as 0 in the other floating-point options
 * too, so that ctrt_exact can be used for any of them. Integer options need nothing like it: those in which 0 is a
 * default have no other use for 0, or a flag beside them (ignore_index).
 *
 *     ctrt_adamw_options options = { .lr = ctrt_exact(rate(0)), .beta1 = CTRT_ZERO };     (others: their defaults)
 *
 * CTRT_ZERO is the smallest positive normal double: unlike a negative zero it stays what it is under -ffast-math and in
 * text. */
#define CTRT_ZERO 2.2250738585072014e-308
CTRT_API double ctrt_exact(double value);

/* Receives log lines (without newline). `component` names the part of ctrt or the plugin that speaks. */
typedef void (*ctrt_log_callback)(void *user, ctrt_log_level level, const char *component, const char *text);

/* Replaces the log callback; NULL restores the default, which writes lines to stderr. Lines above the level of CTRT_LOG
 * (default: warning) are not passed on. Thread-safe; the callback may be called from any thread, also from inside a call of the library
 * that holds locks: it should do its work with what it gets and not call the library. */
CTRT_API void ctrt_log_set_callback(ctrt_log_callback callback, void *user);

/* Sets the most verbose level that is passed on; overrides CTRT_LOG. */
CTRT_API void ctrt_log_set_level(ctrt_log_level level);

/* Sets parameter `name` (its environment variable's name) for this process; the API wins over the environment.
 * Errors: CTRT_ERR_NOT_FOUND (the message names the nearest known one), CTRT_ERR_INVALID_ARGUMENT for a
 * malformed value, CTRT_ERR_STATE when the value was used already and can no longer change. CTRT_VISIBLE_DEVICES can be set until the
 * first device except the cpu is opened; devices that were only counted are counted again. Thread-safe. */
CTRT_API ctrt_status ctrt_param_set(const char *name, const char *value);

/* One known parameter, for listings. Strings live until the process ends. */
typedef struct ctrt_param_info {
    const char *name, *value, *origin;      /* origin: "default", "environment" or "program"; value may be NULL */
    const char *owner, *help, *type;        /* owner: "core" or the plugin that declared it */
} ctrt_param_info;

/* Writes the `index`-th known parameter to *info; CTRT_ERR_NOT_FOUND past the last one. Thread-safe. */
CTRT_API ctrt_status ctrt_param_get_info(ctrt_param_info *info, size_t index);

/* ---- for bindings to other languages; see doc/bindings.md ---- */

/* The `index`-th status code as a name ("CTRT_ERR_SHAPE") and a value; CTRT_ERR_NOT_FOUND past the last. Either pointer may be NULL.
 * Names are static. Thread-safe. ctrt_dtype_get (ctrt/tensor.h) does the same for data types. */
CTRT_API ctrt_status ctrt_status_get(const char **name, ctrt_status *value, size_t index);
/* The same for every integer constant of ctrt/ctrt.h: status codes, data types, all other enumerators, and CTRT_MAX_DIMS. */
CTRT_API ctrt_status ctrt_constant_get(const char **name, int64_t *value, size_t index);
/* The value of the constant `name` ("CTRT_CHANNELS_LAST"). CTRT_ERR_NOT_FOUND with the nearest name. Thread-safe. */
CTRT_API ctrt_status ctrt_constant_find(int64_t *value, const char *name);

/* The library's version, "0.1.0". */
CTRT_API const char *ctrt_version(void);

CTRT_END_DECLS

#endif
