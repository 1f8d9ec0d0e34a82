/* SPDX-License-Identifier: Apache-2.0 */
/* base/struct_size.c: reads and writes structs of programs that were compiled with other versions of the headers. */
#include "base/base.h"

/* A size that leaves no room for a member, or a large one, was not set by an initializer. */
ctrt_status struct_check(const void *given, const char *who, const char *argument)
{
    size_t size = 0;
    if (given == NULL)
        return CTRT_OK;
    memcpy(&size, given, sizeof size);
    if (size > sizeof size && size <= 1 << 20)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                     "%s: %s is not initialized (its size is %zu); begin with the macro that has "
                     "the name of its type in capitals", who, argument, size);
}

ctrt_status struct_read(void *own, size_t bytes, const void *given, const char *who, const char *argument)
{
    if (given == NULL)
        return CTRT_OK;
    size_t size;
    CTRT_TRY(struct_check(given, who, argument));
    memcpy(&size, given, sizeof size);
    for (size_t i = bytes; i < size; i++)
        if (((const char *)given)[i] != 0)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s: %s, of %zu bytes, has a member that ctrt %s does not know; "
                             "use the version of ctrt with which the program was compiled", who, argument, size,
                             ctrt_version());
    memcpy((char *)own + sizeof size, (const char *)given + sizeof size, MIN(size, bytes) - sizeof size);
    return CTRT_OK;
}

ctrt_status struct_write(void *out, const void *own, size_t bytes, const char *who, const char *argument)
{
    if (out == NULL)
        return fail_null(who, argument);
    size_t size;
    CTRT_TRY(struct_check(out, who, argument));
    memcpy(&size, out, sizeof size);
    memcpy((char *)out + sizeof size, (const char *)own + sizeof size, MIN(size, bytes) - sizeof size);
    if (size > bytes)
        memset((char *)out + bytes, 0, size - bytes);
    return CTRT_OK;
}
