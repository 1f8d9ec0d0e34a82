/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `template`: a synchronous device with its own memory.
 *
 * It simulates hardware: one device, `template:0`, whose memory the library accesses only through the copy and fill
 * functions below (it comes from aligned_alloc, but the library does not use that). It has kernels for six ops in f32.
 * With CTRT_FALLBACK=cpu all other ops run on the CPU, so training works from the start. Replace the parts one by one:
 * first memory, then the ops that `make check` lists.
 *
 * The contract is ctrt/plugin.h alone. The plugin does not link with libctrt. */
#include <ctrt/plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ctrt_host *host;           /* the library's host table; set by init */

/* ---- the device: count, properties, opening --------------------------------------------------------------------- */

struct device {
    int32_t index;
    _Atomic uint64_t used;              /* bytes; slots are called from any thread */
};

#define TOTAL_MEMORY ((uint64_t)1 << 30)

/* Called before any device is opened, perhaps in a process that forks later, so it must not initialise the hardware. */
static ctrt_status device_count(int32_t *count)
{
    *count = 1;
    return CTRT_OK;
}

static ctrt_status no_device(int32_t index)
{
    return host->fail(CTRT_ERR_NO_DEVICE, "template:%d: there is one device, template:0", index);
}

static ctrt_status device_describe(int32_t index, ctrt_device_info *info)
{
    if (index != 0)
        return no_device(index);
    const ctrt_device_info facts = {
        .size = info->size,
        .name = "memory of the host as a device",
        .total_memory = TOTAL_MEMORY,
        .processors = 1,
        .numa_node = -1,
        .ecc = -1,
        .flags = 0,                     /* memory not accessible by the host; synchronous */
    };
    /* The caller's struct may be shorter or longer than that of the header with which this plugin was compiled. */
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_open(void **out, int32_t index)
{
    if (index != 0)
        return no_device(index);
    struct device *device = host->alloc(sizeof *device);
    if (device == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no memory to open device %d", index);
    *device = (struct device){ .index = index };
    *out = device;
    return CTRT_OK;
}

static void device_close(void *device)
{
    host->free(device);
}

static ctrt_status device_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    *total_bytes = TOTAL_MEMORY;
    *free_bytes = TOTAL_MEMORY - ((struct device *)device)->used;
    return CTRT_OK;
}

static const ctrt_device_table device_table = {
    .size = sizeof(ctrt_device_table),
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .close = device_close,
    .memory_info = device_memory_info,
};

/* ---- memory: raw blocks, copies, fills ------------------------------------------------------------------------- */

static ctrt_status memory_alloc(void *device, void **address, size_t bytes)
{
    struct device *d = device;
    if (bytes > TOTAL_MEMORY - d->used)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d has %llu bytes left, %zu were requested", d->index,
                          (unsigned long long)(TOTAL_MEMORY - d->used), bytes);
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);        /* the ABI requires at least 64-byte alignment */
    if (block == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d: the system has no %zu bytes", d->index, bytes);
    d->used += bytes;
    *address = block;
    return CTRT_OK;
}

static void memory_free(void *device, void *address, size_t bytes)
{
    ((struct device *)device)->used -= bytes;
    free(address);
}

/* `kind` is the direction (CTRT_COPY_TO_DEVICE, _TO_HOST, _ON_DEVICE); here all memory is host memory. */
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
    .size = sizeof(ctrt_memory_table),
    .alloc = memory_alloc,
    .free = memory_free,
    .copy = memory_copy,
    .fill = memory_fill,
};

/* ---- kernels ----------------------------------------------------------------------------------------------------
 *
 * A kernel without CTRT_KERNEL_STRIDED gets contiguous operands: the core copies those that are not. The core has
 * promoted and broadcast the operands and allocated the output. A scalar operand (x + 2) is a view with
 * CTRT_VIEW_HOST_SCALAR: one element in host memory. */

static float operand(const ctrt_view *view, int64_t i)
{
    const float *data = view->data;
    return view->flags & CTRT_VIEW_HOST_SCALAR ? data[0] : data[i];
}

#define ELEMENTWISE(name, expression)                                           \
    static ctrt_status name##_f32(const ctrt_call *call)                        \
    {                                                                           \
        const ctrt_view *x = call->inputs[0], *y = call->inputs[call->n_inputs - 1]; \
        float *out = call->outputs[0]->data;                                    \
        for (int64_t i = 0; i < call->outputs[0]->numel; i++) {                 \
            const float a = operand(x, i), b = operand(y, i);                   \
            (void)b;                                                            \
            out[i] = expression;                                                \
        }                                                                       \
        return CTRT_OK;                                                         \
    }
ELEMENTWISE(add, a + b)
ELEMENTWISE(mul, a * b)
ELEMENTWISE(relu, a > 0 || a != a ? a : 0)              /* NaN stays NaN */
ELEMENTWISE(relu_backward, b > 0 ? a : 0)               /* (dy, y) */

/* Fills the output with one value; the core calls this op to fill and zero tensors. */
static ctrt_status fill_f32(const ctrt_call *call)
{
    const ctrt_range_attributes *attributes = call->attributes;
    const float value = attributes->lo.kind == CTRT_SCALAR_FLOAT ? (float)attributes->lo.f : (float)attributes->lo.i;
    float *out = call->outputs[0]->data;
    for (int64_t i = 0; i < call->outputs[0]->numel; i++)
        out[i] = value;
    return CTRT_OK;
}

/* x[M,K] times the transpose of w[N,K], plus bias[N] or NULL. The kernel supports strides, so transposed operands
 * are not copied. */
static ctrt_status linear_f32(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *w = call->inputs[1], *bias = call->inputs[2], *y = call->outputs[0];
    const float *from = x->data, *weight = w->data;
    float *out = y->data;
    for (int64_t m = 0; m < x->shape[0]; m++)
        for (int64_t n = 0; n < w->shape[0]; n++) {
            float sum = bias ? ((const float *)bias->data)[n * bias->strides[0]] : 0;
            for (int64_t k = 0; k < x->shape[1]; k++)
                sum += from[m * x->strides[0] + k * x->strides[1]] * weight[n * w->strides[0] + k * w->strides[1]];
            out[m * y->strides[0] + n * y->strides[1]] = sum;
        }
    return CTRT_OK;
}

#define ROW(name) .size = sizeof(ctrt_kernel), .op = #name, .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = name##_f32
static const ctrt_kernel kernels[] = {
    { ROW(add), .flags = CTRT_KERNEL_INPLACE },
    { ROW(mul), .flags = CTRT_KERNEL_INPLACE },
    { ROW(relu), .flags = CTRT_KERNEL_INPLACE },
    { ROW(relu_backward) },
    { ROW(fill) },
    { ROW(linear), .flags = CTRT_KERNEL_STRIDED },
};

static const ctrt_kernel_table kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .stride = sizeof kernels[0],
};

/* ---- the plugin's tables ---------------------------------------------------------------------------------------- */

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &device_table,
    .memory = &memory_table,
    .kernels = &kernel_table,           /* no queue table: all work is complete when a slot returns */
};

/* Returns whether the backend can work on this machine. A real backend looks for its driver's library and device nodes,
 * and writes what is missing. */
static int32_t probe(char *reason, size_t reason_bytes)
{
    if (getenv("TEMPLATE_OFF") != NULL) {
        snprintf(reason, reason_bytes, "TEMPLATE_OFF is set");
        return 0;
    }
    snprintf(reason, reason_bytes, "nothing real");
    return 1;
}

/* The score is below the CPU's, so that the backend is used only if a program names it. */
static const ctrt_component components[] = {
    { sizeof(ctrt_component), CTRT_COMPONENT_BACKEND, -100, "template", &backend, probe },
};

static ctrt_status init(const ctrt_host *lent)
{
    host = lent;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("backend-template", "1.0", "a synchronous backend", components, init)
