/* SPDX-License-Identifier: Apache-2.0 */
/* registry/validate.c: validates the tables of a plugin: first sizes, then versions, then required slots. */
#include "base/base.h"
#include "base/dtype.h"
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

/* The slots that components must have, in the order of the checks. `table`: offset in the component's table of the
 * pointer to the table that has the slot; 0: the component's table has it. */
#define OWN(kind, type, slot) { CTRT_COMPONENT_##kind, 0, offsetof(type, slot), "struct " #type, #slot }
#define OF(member, type, slot) \
    { CTRT_COMPONENT_BACKEND, offsetof(ctrt_backend, member), offsetof(type, slot), "struct " #type, #slot }
static const struct required_slot {
    ctrt_component_kind kind;
    size_t table, offset;
    const char *type, *slot;
} required_slots[] = {
    OWN(BACKEND, ctrt_backend, device),
    OWN(BACKEND, ctrt_backend, memory),
    OF(device, ctrt_device_table, count),
    OF(device, ctrt_device_table, describe),
    OF(device, ctrt_device_table, open),
    OF(device, ctrt_device_table, close),
    OF(memory, ctrt_memory_table, alloc),
    OF(memory, ctrt_memory_table, free),
    OF(memory, ctrt_memory_table, copy),
    OF(memory, ctrt_memory_table, fill),
    OWN(MEMORY, ctrt_memory_policy, create),
    OWN(MEMORY, ctrt_memory_policy, destroy),
    OWN(MEMORY, ctrt_memory_policy, alloc),
    OWN(MEMORY, ctrt_memory_policy, free),
    OWN(COMM, ctrt_comm_engine, create),
    OWN(COMM, ctrt_comm_engine, destroy),
    OWN(COMM, ctrt_comm_engine, run),
    OWN(STRATEGY, ctrt_strategy, create),
    OWN(STRATEGY, ctrt_strategy, destroy),
    OWN(STRATEGY, ctrt_strategy, forward),
    OWN(STRATEGY, ctrt_strategy, step),
    OWN(IMAGE, ctrt_image_codec, describe),
    OWN(IMAGE, ctrt_image_codec, decode),
    OWN(KERNELS, ctrt_kernels, kernels),
};

/* CTRT_SLOT for a slot at `offset`. */
static bool slot_present(const char *table, size_t offset)
{
    void *slot;
    if (*(const size_t *)(const void *)table < offset + sizeof slot)
        return false;
    memcpy(&slot, table + offset, sizeof slot);
    return slot != NULL;
}

bool validate_table(ctrt_component_kind kind, const void *table, char *reason, size_t bytes)
{
    size_t size = *(const size_t *)table;
    if (size < sizeof(size_t) || size > LARGEST)
        REFUSE("wrong size: its table has %zu bytes", size);
    if (kind == CTRT_COMPONENT_BACKEND && CTRT_SLOT((const ctrt_backend *)table, base)) {
        if (!registry_name_valid(((const ctrt_backend *)table)->base))
            REFUSE("struct ctrt_backend: base is not a backend name");
        return true;
    }
    for (size_t k = 0; k < COUNT_OF(required_slots); k++) {
        const struct required_slot *required = &required_slots[k];
        const char *at = table;
        if (required->kind != kind)
            continue;
        if (required->table > 0)
            memcpy(&at, at + required->table, sizeof at);
        if (!slot_present(at, required->offset))
            REFUSE("%s: required slot %s is missing or NULL", required->type, required->slot);
    }
    return true;
}

/* Bits of `dtypes` that are no dtype of this library. */
#define UNKNOWN_DTYPES (~((CTRT_DTYPE_BIT(DTYPE_COUNT) - 1) & ~(uint64_t)1))

bool validate_kernels(const ctrt_kernel_table *table, bool newer, char *reason, size_t bytes)
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
        if (!newer && (kernel->dtypes & UNKNOWN_DTYPES) != 0)
            REFUSE("kernel %zu (%s): dtypes is 0x%llx, whose bit %d is no dtype: it is a set of CTRT_DTYPE_BIT(...)", i,
                   kernel->op, (unsigned long long)kernel->dtypes, __builtin_ctzll(kernel->dtypes & UNKNOWN_DTYPES));
    }
    return true;
}
