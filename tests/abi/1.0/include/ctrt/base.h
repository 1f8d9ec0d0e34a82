/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_BASE_H
#define CTRT_BASE_H
#include "ctrt/types.h"
CTRT_BEGIN_DECLS
CTRT_API const char *ctrt_status_string(ctrt_status status);
CTRT_API const char *ctrt_error_message(void);
CTRT_API ctrt_status ctrt_fail(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);
CTRT_API ctrt_status ctrt_context(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);
#define CTRT_AUTO(type) __attribute__((cleanup(ctrt_##type##_release))) __typeof__(ctrt_##type *)
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
struct ctrt_block_ { bool was, once; };
#define CTRT_BLOCK_BY_(name, leave, begin) \
    for (struct ctrt_block_ name __attribute__((cleanup(leave))) = { begin, true }; name.once; name.once = false)
#define CTRT_BLOCK_AT_(line, leave, begin) CTRT_BLOCK_BY_(leave##line, leave, begin)
#define CTRT_BLOCK_IN_(line, leave, begin) CTRT_BLOCK_AT_(line, leave, begin)
#define CTRT_BLOCK_(leave, begin)          CTRT_BLOCK_IN_(__LINE__, leave, begin)
#define CTRT_BLOCK_TRY_(leave, call)       CTRT_BLOCK_(leave, __extension__({ CTRT_TRY(call); false; }))
#define CTRT_BLOCK_LEAVE_(leave, call) \
    static inline void leave(struct ctrt_block_ *block) { (void)block; (void)(call); }
#ifdef __cplusplus
#define CTRT_SIZED_(type) ([] { type value_ = {}; value_.size = sizeof(type); return value_; }())
#else
#define CTRT_SIZED_(type)    { .size = sizeof(type) }
#define CTRT_WITH(type, ...) ((type){ .size = sizeof(type), __VA_ARGS__ })
#endif
typedef void (*ctrt_log_callback)(void *user, ctrt_log_level level, const char *component, const char *text);
CTRT_API void ctrt_log_set_callback(ctrt_log_callback callback, void *user);
CTRT_API void ctrt_log_set_level(ctrt_log_level level);
CTRT_API ctrt_status ctrt_param_set(const char *name, const char *value);
typedef struct ctrt_param_info {
    size_t size;
    const char *name, *value, *origin;
    const char *owner, *help, *type;
} ctrt_param_info;
#define CTRT_PARAM_INFO CTRT_SIZED_(ctrt_param_info)
CTRT_API ctrt_status ctrt_param_get_info(ctrt_param_info *info, size_t index);
CTRT_API ctrt_status ctrt_status_get(const char **name, ctrt_status *value, size_t index);
CTRT_API ctrt_status ctrt_constant_get(const char **name, int64_t *value, size_t index);
CTRT_API ctrt_status ctrt_constant_find(int64_t *value, const char *name);
CTRT_API const char *ctrt_version(void);
CTRT_END_DECLS
#endif
