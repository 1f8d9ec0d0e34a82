/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the kernels of backend-cpu.so without the library.
 *
 * The plugin is opened as the library opens it and gets the host table of plugin_host.h. fake_new creates tensors of
 * any layout. fake_run selects the kernel by op and dtype as the core does (score, accepts) and allocates its
 * workspace. */
#ifndef CTRT_TESTS_FAKE_HOST_H
#define CTRT_TESTS_FAKE_HOST_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugin_host.h"

#define FAKE __attribute__((unused)) static

/* ---- the plugin ---- */

static const ctrt_backend *fake_backend;

/* Opens the plugin (once) and initialises it with CTRT_CPU_ISA=`isa`. With `isa` NULL the environment is unchanged. */
FAKE void fake_load(const char *isa)
{
    static const ctrt_plugin *plugin;
    if (!plugin)
        plugin = host_open("backend-cpu");
    if (isa)
        setenv("CTRT_CPU_ISA", isa, 1);
    ctrt_status status = plugin->init(&host_table);
    fake_backend = plugin->components[0].table;
    if (!status && CTRT_SLOT(fake_backend->kernels, prepare))
        status = fake_backend->kernels->prepare(NULL);
    REQUIRE(status == CTRT_OK, "init: %s", host_error);
}

/* Returns the kernel that the core would select, or NULL. */
FAKE const ctrt_kernel *fake_kernel(const ctrt_kernel_table *table, const char *op, ctrt_dtype key,
                                    const ctrt_call *call)
{
    const ctrt_kernel *best = NULL;
    for (size_t i = 0; i < table->count; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)table->kernels + i * table->stride);
        if (strcmp(kernel->op, op) == 0 && kernel->dtypes & CTRT_DTYPE_BIT(key)
            && (!best || kernel->score > best->score) && (!call || !kernel->accepts || kernel->accepts(call)))
            best = kernel;
    }
    return best;
}

/* ---- tensors ---- */

static const size_t fake_sizes[CTRT_DTYPE_COUNT] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [CTRT_##name] = bytes,
#include "ctrt/dtype.def"
#undef DTYPE
};
static const char *const fake_names[CTRT_DTYPE_COUNT] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [CTRT_##name] = text,
#include "ctrt/dtype.def"
#undef DTYPE
};

enum fake_layout {
    FAKE_CONTIGUOUS,
    FAKE_TRANSPOSED,        /* the last two dimensions are swapped in memory */
    FAKE_SLICED,            /* every second element of the last dimension, with gaps between rows */
    FAKE_REVERSED,          /* negative strides */
    FAKE_BROADCAST,         /* stride 0 in the first dimension; for inputs only */
    FAKE_SCALAR,            /* one element, stride 0 everywhere, host scalar; for inputs only */
    FAKE_LAYOUTS
};
static const char *const fake_layout_names[] = {
    "contiguous", "transposed", "sliced", "reversed", "broadcast", "scalar",
};

/* A view and its allocation, which fake_new fills with 0xa5 so that fake_margins_kept can detect stray writes. */
typedef struct fake_tensor {
    ctrt_view view;
    unsigned char *memory;
    size_t bytes;
} fake_tensor;

FAKE fake_tensor fake_new(ctrt_dtype dtype, enum fake_layout layout, int ndim, const int64_t *shape)
{
    fake_tensor t;
    int64_t strides[CTRT_MAX_DIMS], next = 1, origin = 0, elements = 1;
    memset(&t, 0, sizeof t);
    t.view.dtype = (uint8_t)dtype;
    t.view.ndim = (uint8_t)ndim;
    t.view.numel = 1;
    int order[CTRT_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        order[d] = d;
        t.view.shape[d] = shape[d];
        t.view.numel *= shape[d];
    }
    if (layout == FAKE_TRANSPOSED && ndim > 1)
        order[ndim - 1] = ndim - 2, order[ndim - 2] = ndim - 1;
    for (int k = ndim - 1; k >= 0; k--) {
        int d = order[k];
        strides[d] = layout == FAKE_SLICED && k == ndim - 1 ? 2 : next;
        next = (layout == FAKE_SLICED && k == ndim - 1 ? 2 * shape[d] + 3 : next * shape[d]);
    }
    elements = next > 0 ? next : 1;
    for (int d = 0; d < ndim; d++) {
        if (layout == FAKE_REVERSED && shape[d] > 0) {
            origin += (shape[d] - 1) * strides[d];
            strides[d] = -strides[d];
        }
        if (layout == FAKE_SCALAR || (layout == FAKE_BROADCAST && d == 0))
            strides[d] = 0;
        t.view.strides[d] = strides[d];
    }
    bool contiguous = true;
    int64_t want = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        contiguous &= shape[d] == 1 || t.view.strides[d] == want;
        want *= shape[d];
    }
    if (contiguous || t.view.numel == 0)
        t.view.flags |= CTRT_VIEW_CONTIGUOUS;
    if (layout == FAKE_SCALAR)
        t.view.flags = CTRT_VIEW_HOST_SCALAR | (t.view.numel == 1 ? CTRT_VIEW_CONTIGUOUS : 0);
    size_t margin = 64;
    t.bytes = (size_t)elements * fake_sizes[dtype] + 2 * margin;
    t.memory = NULL;
    if (posix_memalign((void **)&t.memory, 64, t.bytes) != 0)
        abort();
    memset(t.memory, 0xa5, t.bytes);
    t.view.data = t.memory + margin + (size_t)origin * fake_sizes[dtype];
    return t;
}

FAKE void fake_free(fake_tensor *t)
{
    free(t->memory);
    t->memory = NULL;
}

/* Returns the address of element `index`, counted in row-major order. */
FAKE void *fake_at(const ctrt_view *v, int64_t index)
{
    int64_t offset = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        offset += index % v->shape[d] * v->strides[d];
        index /= v->shape[d];
    }
    return (char *)v->data + offset * (int64_t)fake_sizes[v->dtype];
}

/* Conversion of the 16-bit formats with `fraction` bits of fraction (f16: 10, bf16: 7) by double arithmetic,
 * independently of the backend's implementation. */
FAKE double fake_half_value(uint16_t h, int fraction)
{
    const int bias = (1 << (14 - fraction)) - 1, exponent = (h & 0x7fff) >> fraction, bits = h & ((1 << fraction) - 1);
    double v = exponent == 2 * bias + 1 ? (bits ? NAN : INFINITY)
               : exponent ? ldexp((1 << fraction) + bits, exponent - bias - fraction)
                          : ldexp(bits, 1 - bias - fraction);
    return h & 0x8000 ? -v : v;
}

FAKE uint16_t fake_half_bits(double x, int fraction)
{
    const int bias = (1 << (14 - fraction)) - 1, infinity = (2 * bias + 1) << fraction, sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs((float)x);
    int exponent;
    if (isnan(x))
        return (uint16_t)(infinity | 1 << (fraction - 1));
    if (isinf(magnitude) || magnitude == 0)
        return (uint16_t)(sign | (magnitude == 0 ? 0 : infinity));
    frexp(magnitude, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    /* The implicit bit of a normal number, and a carry of the rounding, add 1 to the exponent. */
    const int bits = ((exponent + bias - 1) << fraction) + (int)nearbyint(ldexp(magnitude, fraction - exponent));
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

#define fake_f16_value(h)  fake_half_value((h), 10)
#define fake_bf16_value(h) fake_half_value((h), 7)
#define fake_f16_bits(x)   fake_half_bits((x), 10)
#define fake_bf16_bits(x)  fake_half_bits((x), 7)

FAKE double fake_get(const ctrt_view *v, int64_t index)
{
    const void *p = fake_at(v, index);
    switch (v->dtype) {
    case CTRT_F32: return *(const float *)p;
    case CTRT_F64: return *(const double *)p;
    case CTRT_F16: return fake_f16_value(*(const uint16_t *)p);
    case CTRT_BF16: return fake_bf16_value(*(const uint16_t *)p);
    case CTRT_I8: return *(const int8_t *)p;
    case CTRT_U8: case CTRT_BOOL: return *(const uint8_t *)p;
    case CTRT_I16: return *(const int16_t *)p;
    case CTRT_I32: return *(const int32_t *)p;
    default: return (double)*(const int64_t *)p;
    }
}

FAKE void fake_put(const ctrt_view *v, int64_t index, double x)
{
    void *p = fake_at(v, index);
    switch (v->dtype) {
    case CTRT_F32: *(float *)p = (float)x; break;
    case CTRT_F64: *(double *)p = x; break;
    case CTRT_F16: *(uint16_t *)p = fake_f16_bits(x); break;
    case CTRT_BF16: *(uint16_t *)p = fake_bf16_bits(x); break;
    case CTRT_I8: *(int8_t *)p = (int8_t)x; break;
    case CTRT_U8: *(uint8_t *)p = (uint8_t)x; break;
    case CTRT_BOOL: *(uint8_t *)p = x != 0; break;
    case CTRT_I16: *(int16_t *)p = (int16_t)x; break;
    case CTRT_I32: *(int32_t *)p = (int32_t)x; break;
    default: *(int64_t *)p = (int64_t)x; break;
    }
}

/* Returns whether all bytes of t->memory outside the view's elements equal those of `before`, an earlier copy. */
FAKE bool fake_margins_kept(const fake_tensor *t, const unsigned char *before)
{
    unsigned char *mine = calloc(t->bytes, 1);
    bool kept = true;
    for (int64_t i = 0; i < t->view.numel; i++)
        memset(mine + ((unsigned char *)fake_at(&t->view, i) - t->memory), 1, fake_sizes[t->view.dtype]);
    for (size_t i = 0; i < t->bytes; i++)
        kept &= mine[i] || t->memory[i] == before[i];
    free(mine);
    return kept;
}

/* Generator for test data (xorshift64, Marsaglia 2003). The sequence is the same on every run. */
static uint64_t fake_random_state = 88172645463325252u;
FAKE uint64_t fake_random(void)
{
    fake_random_state ^= fake_random_state << 13;
    fake_random_state ^= fake_random_state >> 7;
    fake_random_state ^= fake_random_state << 17;
    return fake_random_state;
}
/* Returns a number in [lo, hi). */
FAKE double fake_uniform(double lo, double hi)
{
    return lo + (hi - lo) * (double)(fake_random() >> 11) * 0x1p-53;
}

/* ---- running ---- */

#define FAKE_NO_KERNEL ((ctrt_status)-1000)

FAKE ctrt_status fake_run(const char *op, ctrt_dtype key, const ctrt_view *const *outputs, int n_outputs,
                          const ctrt_view *const *inputs, int n_inputs, const void *attributes)
{
    ctrt_call call = { .size = sizeof call, .inputs = inputs, .outputs = outputs, .n_inputs = (uint32_t)n_inputs,
                       .n_outputs = (uint32_t)n_outputs, .attributes = attributes };
    const ctrt_kernel *kernel = fake_kernel(fake_backend->kernels, op, key, &call);
    if (!kernel) {
        host_fail(FAKE_NO_KERNEL, "no kernel for %s of %s", op, fake_names[key]);
        return FAKE_NO_KERNEL;
    }
    ctrt_status status = kernel->workspace ? kernel->workspace(&call, &call.workspace_bytes) : CTRT_OK;
    if (!status && call.workspace_bytes && posix_memalign(&call.workspace, 64, call.workspace_bytes) != 0)
        abort();
    if (!status)
        status = kernel->run(&call);
    free(call.workspace);
    return status;
}

FAKE void fake_must(ctrt_status status, const char *what)
{
    REQUIRE(!(status), "%s: status %d: %s", what, (int)status, host_error);
}

#define FAKE_VIEWS(...) ((const ctrt_view *const[]){ __VA_ARGS__ })

#endif
