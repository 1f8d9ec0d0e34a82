/* SPDX-License-Identifier: Apache-2.0 */
/* registry/validate.c: validates the tables of a plugin: first sizes, then versions, then required slots. */
#include "base/base.h"
#include "ctrt/comm_plugin.h"
#include "ctrt/image_plugin.h"
#include "ctrt/strategy_plugin.h"
#include "registry/internal.h"

/* Bytes from the beginning of a table to the end of `member`. With the last member of ABI 1.0: the minimum size. */
#define SIZE_TO(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))
#define LARGEST 65536           /* bytes; a larger `size` member is not plausible */

#define REFUSE(...)                                                             \
    do {                                                                        \
        snprintf(reason, bytes, __VA_ARGS__);                                   \
        return false;                                                           \
    } while (0)

#define REQUIRE(table, slot, name)                                              \
    do {                                                                        \
        if (!CTRT_SLOT(table, slot))                                            \
            REFUSE("%s: required slot %s is missing or NULL", name, #slot);     \
    } while (0)

bool registry_name_valid(const char *name)
{
    size_t length = name != NULL ? strnlen(name, 32) : 0;
    if (length == 0 || length > 31 || name[0] < 'a' || name[0] > 'z')
        return false;
    for (size_t i = 1; i < length; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') || name[i] == '-'))
            return false;
    return name[length - 1] != '-';
}

bool validate_plugin(const ctrt_plugin *plugin, char *reason, size_t bytes)
{
    if (plugin == NULL)
        REFUSE("ctrt_plugin_v1 returned NULL for ABI %u.%u", CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    if (plugin->size < SIZE_TO(ctrt_plugin, abi_minor) || plugin->size > LARGEST)
        REFUSE("wrong size: struct ctrt_plugin has %zu bytes, expected at least %zu", plugin->size,
               SIZE_TO(ctrt_plugin, init));
    if (plugin->abi_major != CTRT_PLUGIN_ABI_MAJOR)
        REFUSE("built for plugin ABI %u.%u, this library supports %u.%u", plugin->abi_major, plugin->abi_minor,
               CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    if (plugin->size < SIZE_TO(ctrt_plugin, init))
        REFUSE("wrong size: struct ctrt_plugin has %zu bytes, expected at least %zu", plugin->size,
               SIZE_TO(ctrt_plugin, init));
    if (plugin->name == NULL || plugin->name[0] == '\0')
        REFUSE("the plugin has no name");
    if (plugin->components == NULL || plugin->component_count == 0)
        REFUSE("the plugin has no components");
    if (plugin->component_count > MAX_COMPONENTS)
        REFUSE("it has %zu components, more than the maximum of %d", plugin->component_count,
               MAX_COMPONENTS);
    if (plugin->component_stride < SIZE_TO(ctrt_component, probe) || plugin->component_stride > LARGEST
        || plugin->component_stride % _Alignof(ctrt_component) != 0)
        REFUSE("wrong stride: components are %zu bytes apart, expected a multiple of %zu, at least %zu",
               plugin->component_stride, _Alignof(ctrt_component), SIZE_TO(ctrt_component, probe));
    return true;
}

bool validate_component(const ctrt_component *component, size_t stride, char *reason, size_t bytes)
{
    if (component->size < SIZE_TO(ctrt_component, probe) || component->size > stride)
        REFUSE("wrong size: struct ctrt_component has %zu bytes, expected %zu to %zu", component->size,
               SIZE_TO(ctrt_component, probe), stride);
    if (kind_word(component->kind)[0] == '\0')
        REFUSE("kind %d is unknown to this version of the library", (int)component->kind);
    if (!registry_name_valid(component->name))
        REFUSE(
            "its name is not a lower-case letter followed by lower-case letters, digits and '-', at most 31");
    if (component->kind == CTRT_COMPONENT_BACKEND && strcmp(component->name, "auto") == 0)
        REFUSE("a backend cannot be called auto");
    if (component->table == NULL)
        REFUSE("it has no table");
    return true;
}

static bool validate_backend(const ctrt_backend *backend, char *reason, size_t bytes)
{
    if (CTRT_SLOT(backend, base)) {
        if (!registry_name_valid(backend->base))
            REFUSE("struct ctrt_backend: base is not a backend name");
        return true;
    }
    REQUIRE(backend, device, "struct ctrt_backend");
    REQUIRE(backend, memory, "struct ctrt_backend");
    REQUIRE(backend->device, count, "struct ctrt_device_table");
    REQUIRE(backend->device, describe, "struct ctrt_device_table");
    REQUIRE(backend->device, open, "struct ctrt_device_table");
    REQUIRE(backend->device, close, "struct ctrt_device_table");
    REQUIRE(backend->memory, alloc, "struct ctrt_memory_table");
    REQUIRE(backend->memory, free, "struct ctrt_memory_table");
    REQUIRE(backend->memory, copy, "struct ctrt_memory_table");
    REQUIRE(backend->memory, fill, "struct ctrt_memory_table");
    return true;
}

static bool validate_memory(const ctrt_memory_policy *policy, char *reason, size_t bytes)
{
    REQUIRE(policy, create, "struct ctrt_memory_policy");
    REQUIRE(policy, destroy, "struct ctrt_memory_policy");
    REQUIRE(policy, alloc, "struct ctrt_memory_policy");
    REQUIRE(policy, free, "struct ctrt_memory_policy");
    return true;
}

static bool validate_comm(const ctrt_comm_engine *engine, char *reason, size_t bytes)
{
    REQUIRE(engine, create, "struct ctrt_comm_engine");
    REQUIRE(engine, destroy, "struct ctrt_comm_engine");
    REQUIRE(engine, run, "struct ctrt_comm_engine");
    return true;
}

static bool validate_strategy(const ctrt_strategy *strategy, char *reason, size_t bytes)
{
    REQUIRE(strategy, create, "struct ctrt_strategy");
    REQUIRE(strategy, destroy, "struct ctrt_strategy");
    REQUIRE(strategy, forward, "struct ctrt_strategy");
    REQUIRE(strategy, step, "struct ctrt_strategy");
    return true;
}

static bool validate_image(const ctrt_image_codec *codec, char *reason, size_t bytes)
{
    REQUIRE(codec, describe, "struct ctrt_image_codec");
    REQUIRE(codec, decode, "struct ctrt_image_codec");
    return true;
}

bool validate_table(ctrt_component_kind kind, const void *table, char *reason, size_t bytes)
{
    size_t size = *(const size_t *)table;
    if (size < sizeof(size_t) || size > LARGEST)
        REFUSE("wrong size: its table has %zu bytes", size);
    if (kind == CTRT_COMPONENT_BACKEND)
        return validate_backend(table, reason, bytes);
    if (kind == CTRT_COMPONENT_MEMORY)
        return validate_memory(table, reason, bytes);
    if (kind == CTRT_COMPONENT_COMM)
        return validate_comm(table, reason, bytes);
    if (kind == CTRT_COMPONENT_STRATEGY)
        return validate_strategy(table, reason, bytes);
    if (kind == CTRT_COMPONENT_IMAGE)
        return validate_image(table, reason, bytes);
    if (kind == CTRT_COMPONENT_KERNELS)
        REQUIRE((const ctrt_kernels *)table, kernels, "struct ctrt_kernels");
    return true;
}

bool validate_kernels(const ctrt_kernel_table *table, char *reason, size_t bytes)
{
    if (table == NULL)
        return true;
    if (table->size < SIZE_TO(ctrt_kernel_table, stride) || table->size > LARGEST)
        REFUSE("wrong size: struct ctrt_kernel_table has %zu bytes, expected at least %zu", table->size,
               SIZE_TO(ctrt_kernel_table, stride));
    if (table->count == 0)
        return true;
    if (table->kernels == NULL)
        REFUSE("struct ctrt_kernel_table: count is %zu, but kernels is NULL", table->count);
    if (table->stride < SIZE_TO(ctrt_kernel, workspace) || table->stride > LARGEST
        || table->stride % _Alignof(ctrt_kernel) != 0)
        REFUSE("wrong stride: kernels are %zu bytes apart, expected at least %zu", table->stride,
               SIZE_TO(ctrt_kernel, workspace));
    for (size_t i = 0; i < table->count; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)table->kernels + i * table->stride);
        if (kernel->size < SIZE_TO(ctrt_kernel, workspace) || kernel->size > table->stride)
            REFUSE("wrong size: kernel %zu has %zu bytes, expected %zu to %zu", i, kernel->size,
                   SIZE_TO(ctrt_kernel, workspace), table->stride);
        if (kernel->op == NULL)
            REFUSE("kernel %zu has no op", i);
        if (kernel->run == NULL)
            REFUSE("kernel %zu (%s): required slot run is NULL", i, kernel->op);
    }
    return true;
}
