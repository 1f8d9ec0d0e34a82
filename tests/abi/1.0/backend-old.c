/* SPDX-License-Identifier: Apache-2.0 */
/* backend-old.c: a synchronous backend for ABI 1.0: device old:0, kernels of add, mul and fill, memory of the host that
 * the library accesses through copy and fill. */
#include <ctrt/plugin.h>
#include <stdlib.h>
#include <string.h>

static const ctrt_host *host;

static ctrt_status device_count(int32_t *count)
{
    *count = 1;
    return CTRT_OK;
}

static ctrt_status device_describe(int32_t index, ctrt_device_info *info)
{
    const ctrt_device_info facts = { .size = info->size, .name = "ABI 1.0", .total_memory = 1 << 30, .numa_node = -1 };
    if (index != 0)
        return host->fail(CTRT_ERR_NO_DEVICE, "old:%d: there is one device, old:0", index);
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_open(void **device, int32_t index)
{
    (void)index;
    *device = host->alloc(1);
    return *device != NULL ? CTRT_OK : host->fail(CTRT_ERR_OUT_OF_MEMORY, "old: no memory");
}

static void device_close(void *device)
{
    host->free(device);
}

static const ctrt_device_table device_table = {
    .size = sizeof(ctrt_device_table), .count = device_count, .describe = device_describe, .open = device_open,
    .close = device_close,
};

static ctrt_status memory_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    *address = bytes <= 1 << 30 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    return *address != NULL ? CTRT_OK : host->fail(CTRT_ERR_OUT_OF_MEMORY, "old: no %zu bytes", bytes);
}

static void memory_free(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
    free(address);
}

static ctrt_status memory_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    (void)device, (void)queue, (void)kind;
    memmove(to, from, bytes);
    return CTRT_OK;
}

static ctrt_status memory_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device, (void)queue;
    memset(address, byte, bytes);
    return CTRT_OK;
}

static const ctrt_memory_table memory_table = {
    .size = sizeof(ctrt_memory_table), .alloc = memory_alloc, .free = memory_free, .copy = memory_copy,
    .fill = memory_fill,
};

static float operand(const ctrt_view *view, int64_t i)
{
    const float *data = view->data;
    return view->flags & CTRT_VIEW_HOST_SCALAR ? data[0] : data[i];
}

#define ELEMENTWISE(name, sign)                                                                          \
    static ctrt_status name##_f32(const ctrt_call *call)                                                 \
    {                                                                                                    \
        float *out = call->outputs[0]->data;                                                             \
        for (int64_t i = 0; i < call->outputs[0]->numel; i++)                                            \
            out[i] = operand(call->inputs[0], i) sign operand(call->inputs[1], i);                       \
        return CTRT_OK;                                                                                  \
    }
ELEMENTWISE(add, +)
ELEMENTWISE(mul, *)

static ctrt_status fill_f32(const ctrt_call *call)
{
    const ctrt_range_attributes *attributes = call->attributes;
    const ctrt_scalar *value = &attributes->lo;
    float *out = call->outputs[0]->data;
    for (int64_t i = 0; i < call->outputs[0]->numel; i++)
        out[i] = value->kind == CTRT_SCALAR_FLOAT ? (float)value->f : (float)value->i;
    return CTRT_OK;
}

#define KERNEL(name) .size = sizeof(ctrt_kernel), .op = #name, .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = name##_f32
static const ctrt_kernel kernels[] = {
    { KERNEL(add), .flags = CTRT_KERNEL_INPLACE },
    { KERNEL(mul), .flags = CTRT_KERNEL_INPLACE },
    { KERNEL(fill) },
};

static const ctrt_kernel_table kernel_table = {
    .size = sizeof(ctrt_kernel_table), .kernels = kernels, .count = sizeof kernels / sizeof kernels[0],
    .stride = sizeof kernels[0],
};

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend), .device = &device_table, .memory = &memory_table, .kernels = &kernel_table,
};

static ctrt_status init(const ctrt_host *the_host)
{
    host = the_host;
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -100, .name = "old", .table = &backend },
};
CTRT_PLUGIN_DEFINE("backend-old", "1.0", "a backend for ABI 1.0", components, init)
