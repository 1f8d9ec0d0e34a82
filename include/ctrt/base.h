/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/base.h: errors, log, parameters, version.
 *
 * Every function that can fail returns a ctrt_status and writes its results through pointers, most of them its first
 * parameters. An out-parameter that receives a handle points to a variable that owns one reference: NULL or a valid
 * handle. On success the call releases the old handle and stores the new one. On failure it leaves the variable
 * unchanged. The other headers call this the assignment rule. */
#ifndef CTRT_BASE_H
#define CTRT_BASE_H

#include "ctrt/types.h"

CTRT_BEGIN_DECLS

/* Returns the text of a status code ("out of memory"); never NULL. The string is static. Thread-safe. */
CTRT_API const char *ctrt_status_string(ctrt_status status);

/* Returns the error message of the calling thread's last failed call: what failed, where, with which shapes, dtypes
 * and devices, and how to correct it. "" if no call has failed yet. Valid until the thread's next failing call.
 * Thread-local. */
CTRT_API const char *ctrt_error_message(void);

/* Sets the calling thread's error message from a printf format and returns `status`, which must not be CTRT_OK. For
 * functions of programs that follow the library's conventions (modules, user-defined functions). Thread-safe. */
CTRT_API ctrt_status ctrt_fail(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);

/* If `status` is an error, puts the formatted text and ": " before the calling thread's error message, unless the
 * message begins with them already. Returns `status`. Thread-safe. */
CTRT_API ctrt_status ctrt_context(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);

/* Declares variables whose references are released at the end of their block, also when CTRT_TRY returns from it.
 * CTRT_AUTO(tensor) x = NULL, y = NULL; declares two ctrt_tensor *. Works for every type with a ctrt_TYPE_release.
 * Requires GCC or Clang. */
#define CTRT_AUTO(type) __attribute__((cleanup(ctrt_##type##_release))) __typeof__(ctrt_##type *)
/* CTRT_AUTO_ARRAY(tensor, layers, 3); declares an array of 3 references that are NULL, and releases its elements at the
 * end of the block, the last one first. `count` is a constant expression. For the types tensor, module and stream. */
#define CTRT_AUTO_ARRAY(type, name, count)                                                                        \
    __typeof__(ctrt_##type *) name[count] = { NULL };                                                             \
    __attribute__((cleanup(ctrt_##type##_array_release_), unused)) struct ctrt_##type##_array_ name##_array_      \
        = { name, count }
#define CTRT_ARRAY_RELEASE_(type)                                                                                 \
    struct ctrt_##type##_array_ { ctrt_##type **items; size_t count; };                                           \
    static inline void ctrt_##type##_array_release_(struct ctrt_##type##_array_ *array)                           \
    {                                                                                                             \
        while (array->count > 0)                                                                                  \
            ctrt_##type##_release(&array->items[--array->count]);                                                 \
    }

/* The blocks of the library: ctrt_no_grad { ... } and ctrt_scope { ... }; with arguments, ctrt_autocast(type, options),
 * ctrt_on_device(device), ctrt_on_stream(stream) and ctrt_labeled(label). Each has its effect for the statement or
 * block that follows. The effect ends wherever control leaves that block: at its end, by continue, break, return, goto,
 * CTRT_TRY or, in C++, an exception. If a block with arguments or a scope cannot begin, the enclosing function returns
 * the status, as by CTRT_TRY. Blocks nest. Requires GCC or Clang. */
struct ctrt_block_ { bool was, once; };
#define CTRT_BLOCK_BY_(name, leave, begin) \
    for (struct ctrt_block_ name __attribute__((cleanup(leave))) = { begin, true }; name.once; name.once = false)
#define CTRT_BLOCK_AT_(line, leave, begin) CTRT_BLOCK_BY_(leave##line, leave, begin)    /* own names when nested */
#define CTRT_BLOCK_IN_(line, leave, begin) CTRT_BLOCK_AT_(line, leave, begin)
#define CTRT_BLOCK_(leave, begin)          CTRT_BLOCK_IN_(__LINE__, leave, begin)
#define CTRT_BLOCK_TRY_(leave, call)       CTRT_BLOCK_(leave, __extension__({ CTRT_TRY(call); false; }))
#define CTRT_BLOCK_LEAVE_(leave, call) \
    static inline void leave(struct ctrt_block_ *block) { (void)block; (void)(call); }

/* ---- structs that can grow ----
 *
 * Later versions append members to structs of options, states and statistics. Therefore these structs begin with their
 * size in the program's header, `size`, and the library reads and writes no more than that. A macro that has the type's
 * name in capitals initializes such a struct with its size and all defaults:
 *
 *     ctrt_sgd_options options = CTRT_SGD_OPTIONS;
 *     options.momentum = 0.9;
 *
 * Members that the program's header lacks have their defaults. A member that this library lacks has to be 0, else the
 * call returns CTRT_ERR_NOT_SUPPORTED. A struct whose size was not set is CTRT_ERR_INVALID_ARGUMENT. In these structs 0
 * means 0, unless 0 is not a possible value. Elements of arrays do not grow; they end in reserved members.
 *
 * CTRT_SIZED_ initializes a struct whose defaults are all 0. In C, CTRT_WITH(type, ...) is such a struct in an
 * expression: &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 }). In types with other defaults the size has the name
 * `initialized`, so that CTRT_WITH does not compile with them. */
#ifdef __cplusplus
#define CTRT_SIZED_(type) ([] { type value_ = {}; value_.size = sizeof(type); return value_; }())
#else
#define CTRT_SIZED_(type)    { .size = sizeof(type) }
#define CTRT_WITH(type, ...) ((type){ .size = sizeof(type), __VA_ARGS__ })
#endif

/* Receives one log line, without a newline. `component` names the part of ctrt or the plugin that logs it. Both
 * strings are valid during the call only. */
typedef void (*ctrt_log_callback)(void *user, ctrt_log_level level, const char *component, const char *text);

/* Replaces the log callback; NULL restores the default, which writes lines to stderr. Lines more verbose than the
 * level set by CTRT_LOG (default: warning) or ctrt_log_set_level are not passed on. Thread-safe. The callback may
 * run in any thread, also while the library holds locks, so it must not call the library. */
CTRT_API void ctrt_log_set_callback(ctrt_log_callback callback, void *user);

/* Sets the most verbose level that is passed on; overrides CTRT_LOG. Values outside the enum are clamped.
 * Thread-safe. */
CTRT_API void ctrt_log_set_level(ctrt_log_level level);

/* Sets parameter `name` (the name of its environment variable) for this process; this value takes precedence over
 * the environment.
 *
 * Errors: CTRT_ERR_NOT_FOUND for an unknown name (the message contains the nearest known one),
 * CTRT_ERR_INVALID_ARGUMENT for a malformed value, CTRT_ERR_STATE if the value has been used already and can no
 * longer change. CTRT_VISIBLE_DEVICES can be set until the first device other than the cpu is opened; devices that
 * were only counted are counted again. Thread-safe. */
CTRT_API ctrt_status ctrt_param_set(const char *name, const char *value);

/* One known parameter, for listings. The strings are valid until the process ends. */
typedef struct ctrt_param_info {
    size_t size;
    const char *name, *value, *origin;      /* "default", "environment" or "program"; value may be NULL */
    const char *owner, *help, *type;        /* "core" or the plugin that declared it */
} ctrt_param_info;
#define CTRT_PARAM_INFO CTRT_SIZED_(ctrt_param_info)

/* Writes the `index`-th known parameter to *info. CTRT_ERR_NOT_FOUND past the last one. Thread-safe. */
CTRT_API ctrt_status ctrt_param_get_info(ctrt_param_info *info, size_t index);

/* ---- for bindings to other languages; see doc/bindings.md ---- */

/* Writes the `index`-th status code's name ("CTRT_ERR_SHAPE") and value. Either pointer may be NULL. The names are
 * static. CTRT_ERR_NOT_FOUND past the last one. Thread-safe. ctrt_dtype_get (ctrt/tensor.h) does the same for data
 * types. */
CTRT_API ctrt_status ctrt_status_get(const char **name, ctrt_status *value, size_t index);
/* Like ctrt_status_get, for every integer constant of ctrt/ctrt.h: status codes, data types, all other enumerators, and
 * CTRT_MAX_DIMS. */
CTRT_API ctrt_status ctrt_constant_get(const char **name, int64_t *value, size_t index);
/* Writes the value of the constant `name` ("CTRT_CHANNELS_LAST"). CTRT_ERR_NOT_FOUND, with the nearest name in the
 * message, if there is none of that name. Thread-safe. */
CTRT_API ctrt_status ctrt_constant_find(int64_t *value, const char *name);

/* Returns the library's version, "0.1.0". The string is static. */
CTRT_API const char *ctrt_version(void);

CTRT_END_DECLS

#endif
