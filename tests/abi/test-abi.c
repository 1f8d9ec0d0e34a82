/* SPDX-License-Identifier: Apache-2.0 */
/* tests/abi/test-abi.c: the binary border stands still: sizes and offsets of plugin.h's structs and the numbers of enums are those that were released.
 * A failure here means that old plugins would misread new hosts, or the reverse. */
#include <stddef.h>

#include "ctrt/plugin.h"
#include "tap.h"

static const struct pin {
    const char *what;
    size_t is, released;
} pins[] = {
#define SIZE(type, bytes)          { "sizeof(" #type ")", sizeof(type), bytes },
#define FIELD(type, field, offset) { #type "." #field, offsetof(type, field), offset },
#include "plugin-1.0.def"
#undef SIZE
#undef FIELD
};

static const struct number {
    const char *what;
    long is, released;
} numbers[] = {
#define N(constant, value) { #constant, (long)(constant), value }
    N(CTRT_PLUGIN_ABI_MAJOR, 1), N(CTRT_MAX_DIMS, 8),
    N(CTRT_VIEW_CONTIGUOUS, 1), N(CTRT_VIEW_CHANNELS_LAST, 2), N(CTRT_VIEW_HOST_SCALAR, 4),
    N(CTRT_KERNEL_STRIDED, 1), N(CTRT_KERNEL_INPLACE, 2), N(CTRT_KERNEL_CHANNELS_LAST, 4),
    N(CTRT_DEVICE_HOST_MEMORY, 1), N(CTRT_DEVICE_ASYNCHRONOUS, 2),
    N(CTRT_COPY_TO_DEVICE, 0), N(CTRT_COPY_TO_HOST, 1), N(CTRT_COPY_ON_DEVICE, 2),
    N(CTRT_COMPONENT_BACKEND, 1), N(CTRT_COMPONENT_KERNELS, 2), N(CTRT_COMPONENT_MEMORY, 3), N(CTRT_COMPONENT_COMM, 4),
    N(CTRT_COMPONENT_STRATEGY, 5), N(CTRT_COMPONENT_HOOK, 6),
    N(CTRT_F32, 1), N(CTRT_F64, 2), N(CTRT_F16, 3), N(CTRT_BF16, 4), N(CTRT_I8, 5), N(CTRT_U8, 6), N(CTRT_I16, 7), N(CTRT_I32, 8),
    N(CTRT_I64, 9), N(CTRT_BOOL, 10),
    N(CTRT_SCALAR_BOOL, 0), N(CTRT_SCALAR_INT, 1), N(CTRT_SCALAR_FLOAT, 2),
    N(CTRT_OK, 0), N(CTRT_ERR_INVALID_ARGUMENT, -1), N(CTRT_ERR_OUT_OF_MEMORY, -2), N(CTRT_ERR_SHAPE, -3), N(CTRT_ERR_DTYPE, -4),
    N(CTRT_ERR_DEVICE, -5), N(CTRT_ERR_NO_DEVICE, -6), N(CTRT_ERR_NOT_FOUND, -7), N(CTRT_ERR_NOT_SUPPORTED, -8),
    N(CTRT_ERR_PLUGIN, -9), N(CTRT_ERR_IO, -10), N(CTRT_ERR_FORMAT, -11), N(CTRT_ERR_OVERFLOW, -12), N(CTRT_ERR_AUTOGRAD, -13),
    N(CTRT_ERR_STATE, -14), N(CTRT_ERR_FORKED, -15), N(CTRT_ERR_BACKEND, -16), N(CTRT_ERR_INTERNAL, -17),
    N(CTRT_LOG_ERROR, 0), N(CTRT_LOG_WARNING, 1), N(CTRT_LOG_INFO, 2), N(CTRT_LOG_DEBUG, 3),
    N(CTRT_PARAM_STRING, 0), N(CTRT_PARAM_INT, 1), N(CTRT_PARAM_BOOL, 2), N(CTRT_PARAM_BYTES, 3), N(CTRT_PARAM_ENUM, 4),
};

int main(void)
{
    group("structs of the plugin border lie as released");
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++)
        CHECK(pins[i].is == pins[i].released, "%s is %zu, released as %zu", pins[i].what, pins[i].is, pins[i].released);

    group("numbers of the plugin border are as released");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        CHECK(numbers[i].is == numbers[i].released, "%s is %ld, released as %ld", numbers[i].what, numbers[i].is, numbers[i].released);

    group("a slot exists when the table is large enough and the slot is filled");
    ctrt_device_table table = { .size = offsetof(ctrt_device_table, memory_info) };
    table.memory_info = (ctrt_status(*)(void *, uint64_t *, uint64_t *))(void *)&table;
    CHECK(!CTRT_SLOT(&table, memory_info), "a slot beyond the size counts");
    table.size = sizeof table;
    CHECK(CTRT_SLOT(&table, memory_info), "a filled slot does not count");
    table.memory_info = NULL;
    CHECK(!CTRT_SLOT(&table, memory_info), "an empty slot counts");
    const ctrt_device_table *none = NULL;
    CHECK(!CTRT_SLOT(none, memory_info), "a slot of no table counts");
    return done();
}
