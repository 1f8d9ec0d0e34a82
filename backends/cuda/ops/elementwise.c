/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/elementwise.c: converts a call to the arguments of an elementwise kernel, and launches it. */
#include "elementwise.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cuda_divider(int64_t d, uint32_t *magic, uint32_t *shift)
{
    *magic = 0;
    *shift = 0;
    if (d <= 0 || d > INT32_MAX)
        return;
    /* floor(2^32 (2^shift - d) / d) + 1, with shift = ceil(log2 d) */
    while (((uint64_t)1 << *shift) < (uint64_t)d)
        ++*shift;
    *magic = (uint32_t)((((((uint64_t)1 << *shift) - (uint64_t)d) << 32) / (uint64_t)d) + 1);
}

ctrt_dtype cuda_bits_of(ctrt_dtype dtype)
{
    static const uint8_t of[9] = { [1] = CTRT_U8, [2] = CTRT_I16, [4] = CTRT_I32, [8] = CTRT_I64 };
    return (ctrt_dtype)of[cuda_dtype_bytes[dtype]];
}

static uint16_t half_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (u >= 0x38800000u)                   /* round to nearest even; a carry beyond 65504 gives infinity */
        return (uint16_t)(sign | (((u + 0xfffu + (u >> 13 & 1u)) >> 13) - (112u << 10)));
    float small;
    memcpy(&small, &u, sizeof small);
    return (uint16_t)(sign | (uint32_t)nearbyintf(small * 0x1p24f));
}

static uint16_t bfloat_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void cuda_number(union elementwise_number *out, ctrt_scalar number, ctrt_dtype dtype)
{
    const bool floating = number.kind == CTRT_SCALAR_FLOAT;
    const double f = floating ? number.f : (double)number.i;
    /* Truncates. NaN and values out of range give INT64_MIN, as the x86 conversion instruction does. */
    const int64_t i = !floating ? number.i : number.f >= -0x1p63 && number.f < 0x1p63 ? (int64_t)number.f : INT64_MIN;
    uint16_t half;
    memset(out, 0, sizeof *out);
    switch (dtype) {
    case CTRT_F32: out->f32 = (float)f; break;
    case CTRT_F64: out->f64 = f; break;
    case CTRT_F16: half = half_of((float)f), memcpy(out, &half, sizeof half); break;
    case CTRT_BF16: half = bfloat_of((float)f), memcpy(out, &half, sizeof half); break;
    case CTRT_BOOL: out->bytes[0] = floating ? number.f != 0 : number.i != 0; break;
    default: memcpy(out, &i, cuda_dtype_bytes[dtype]); break;       /* all platforms of CUDA are little endian */
    }
}

void cuda_elementwise_clear(struct elementwise_args *args)
{
    memset(args, 0, offsetof(struct elementwise_args, shape));
}

/* Builds the kernel's full name only at its first launch. */
static ctrt_status elementwise_launch(const ctrt_call *call, const struct elementwise_kernel *kernel, bool strided,
                                      struct cuda_shape shape, const struct elementwise_args *args)
{
    struct cuda_entry *entry = &kernel->entries[strided];
    char name[96] = "";
    if (__builtin_expect(atomic_load_explicit(&entry->kernel, memory_order_relaxed) == NULL, 0))
        snprintf(name, sizeof name, "%s_%s%s%s%s", kernel->stem, cuda_dtype_names[kernel->key],
                 kernel->word != NULL ? "_" : "", kernel->word != NULL ? kernel->word : "", strided ? "_s" : "");
    return cuda_launch_named(call, kernel->fatbin, entry, name[0] != '\0' ? name : kernel->stem, shape, args);
}

/* ---- strides ---- */

static bool plain(const ctrt_view *view)
{
    return view->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_HOST_SCALAR);
}

/* Returns true if the data is aligned for vectors of any operand; the largest vector has 16 bytes. */
static bool aligned(const ctrt_view *view)
{
    return (view->flags & CTRT_VIEW_HOST_SCALAR) || (uintptr_t)view->data % 16 == 0;
}

/* Maximum element offset and element count of one launch: 31 bits. Tests of the splitting define a smaller value. */
#ifndef ELEMENTWISE_REACH
#define ELEMENTWISE_REACH INT32_MAX
#endif

/* A strided iteration over the operands (output first), before it is split into launches whose offsets have 31 bits. */
struct walk {
    const ctrt_call *call;
    struct elementwise_args *args;
    const struct elementwise_kernel *kernel;
    int ndim;
    uint32_t operands;
    size_t bytes[1 + ELEMENTWISE_INPUTS], largest;
    int64_t shape[ELEMENTWISE_DIMS], strides[1 + ELEMENTWISE_INPUTS][ELEMENTWISE_DIMS];
};

static void *operand_data(const struct walk *w, uint32_t operand)
{
    return operand == 0 ? w->args->out : (void *)(uintptr_t)w->args->in[operand - 1];
}

/* Returns true if the operand can be accessed in vectors of `width` elements along the last dimension. *spread: set to
 * true if the vector repeats one element, because that dimension has stride 0. */
static bool takes_vectors(const struct walk *w, uint32_t operand, int64_t width, bool *spread)
{
    const int last = w->ndim - 1;
    const void *data = operand_data(w, operand);
    *spread = operand > 0 && data != NULL && w->strides[operand][last] == 0;
    if (*spread || data == NULL)
        return true;
    if (w->strides[operand][last] != 1 || (uintptr_t)data % ((size_t)width * w->bytes[operand]) != 0)
        return false;
    for (int d = 0; d < last; d++)
        if (w->strides[operand][d] % width != 0)
            return false;
    return true;
}

/* Returns true if the number of elements and the largest offset of every operand are at most ELEMENTWISE_REACH. */
static bool is_small(const struct walk *w)
{
    int64_t count = 1;
    for (int d = 0; d < w->ndim; d++)
        if (__builtin_mul_overflow(count, w->shape[d], &count) || count > ELEMENTWISE_REACH)
            return false;
    for (uint32_t o = 0; o < w->operands; o++) {
        int64_t reach = 0;
        for (int d = 0; d < w->ndim; d++) {
            int64_t part;
            if (__builtin_mul_overflow(llabs(w->strides[o][d]), w->shape[d] - 1, &part) || part > ELEMENTWISE_REACH)
                return false;
            reach += part;
        }
        if (reach > ELEMENTWISE_REACH)
            return false;
    }
    return true;
}

static ctrt_status launch_small(const struct walk *w)
{
    struct elementwise_args *args = w->args;
    const int64_t width = 16 / (int64_t)w->largest;
    const int last = w->ndim - 1;
    bool wide = w->ndim > 0 && w->shape[last] % width == 0;
    args->spread = 0;
    for (uint32_t o = 0; o < w->operands && wide; o++) {
        bool repeated = false;
        wide = takes_vectors(w, o, width, &repeated);
        args->spread |= (uint32_t)repeated << o;
    }
    args->wide = wide;
    args->ndim = w->ndim;
    args->steps = 1;
    for (int d = 0; d < w->ndim; d++) {
        const int64_t by = wide && d == last ? width : 1;
        args->shape[d] = (int32_t)(w->shape[d] / by);
        args->steps *= args->shape[d];
        /* The stride of a dimension of size 1 may be any number and is never used. */
        for (uint32_t o = 0; o < w->operands; o++)
            args->strides[o][d] = w->shape[d] == 1 ? 0 : (int32_t)(w->strides[o][d] * by);
        cuda_divider(args->shape[d], &args->magic[d], &args->shift[d]);
    }
    const int64_t threads = wide ? args->steps : (args->steps + 3) / 4;
    const struct cuda_shape shape = { .grid = { cuda_blocks(w->call->device, threads, ELEMENTWISE_THREADS) },
                                      .block = ELEMENTWISE_THREADS };
    return elementwise_launch(w->call, w->kernel, true, shape, args);
}

/* Splits an iteration that is too large for 31 bits into halves, recursively: along the longest dimension if there are
 * too many elements, else along the dimension with the largest span of offsets. */
static ctrt_status launch_strided(const struct walk *w)
{
    if (is_small(w))
        return launch_small(w);
    int64_t numel = 1, most = 0;
    for (int d = 0; d < w->ndim; d++)
        numel *= w->shape[d];
    int longest = 0;
    for (int d = 0; d < w->ndim; d++) {
        int64_t span = numel > ELEMENTWISE_REACH ? w->shape[d] : 0;
        for (uint32_t o = 0; o < w->operands && numel <= ELEMENTWISE_REACH; o++) {
            const int64_t stride = w->strides[o][d] < 0 ? -w->strides[o][d] : w->strides[o][d];
            span = stride * (w->shape[d] - 1) > span ? stride * (w->shape[d] - 1) : span;
        }
        if (span > most) {
            most = span;
            longest = d;
        }
    }
    struct elementwise_args args = *w->args;
    struct walk first = *w, second = *w;
    first.shape[longest] = w->shape[longest] / 2;
    second.shape[longest] -= first.shape[longest];
    const ctrt_status status = launch_strided(&first);
    if (status != CTRT_OK)
        return status;
    second.args = &args;
    for (uint32_t o = 0; o < w->operands; o++) {
        const int64_t skipped = first.shape[longest] * w->strides[o][longest] * (int64_t)w->bytes[o];
        if (o == 0)
            args.out = (char *)args.out + skipped;
        else if (args.in[o - 1] != NULL)
            args.in[o - 1] = (const char *)args.in[o - 1] + skipped;
    }
    return launch_strided(&second);
}

static ctrt_status run_strided(struct walk *w)
{
    const ctrt_view *out = w->call->outputs[0];
    bool all_plain = plain(out);
    for (uint32_t o = 1; o < w->operands; o++)
        all_plain = all_plain && plain(w->call->inputs[o - 1]);
    /* Contiguous but unaligned operands: one dimension. */
    w->ndim = all_plain ? 1 : out->ndim;
    for (int d = 0; d < w->ndim; d++) {
        w->shape[d] = all_plain ? out->numel : out->shape[d];
        w->strides[0][d] = all_plain ? 1 : out->strides[d];
        for (uint32_t o = 1; o < w->operands; o++)
            w->strides[o][d] = w->args->in[o - 1] == NULL ? 0 : all_plain ? 1 : w->call->inputs[o - 1]->strides[d];
    }
    return launch_strided(w);
}

/* ---- launching ---- */

ctrt_status cuda_elementwise_kernel(const ctrt_call *call, struct elementwise_args *args,
                                    const struct elementwise_kernel *kernel)
{
    const ctrt_view *out = call->outputs[0];
    const uint32_t count = call->n_inputs < ELEMENTWISE_INPUTS ? call->n_inputs : ELEMENTWISE_INPUTS;
    struct walk w;
    if (out->numel == 0)
        return CTRT_OK;
    bool vectors = plain(out) && aligned(out);
    args->out = out->data;
    args->n = out->numel;
    w.largest = w.bytes[0] = cuda_dtype_bytes[out->dtype];
    for (uint32_t i = 0; i < count; i++) {
        const ctrt_view *in = call->inputs[i];
        const size_t bytes = cuda_dtype_bytes[in->dtype];
        args->in[i] = in->flags & CTRT_VIEW_HOST_SCALAR ? NULL : in->data;
        if (args->in[i] == NULL)
            for (size_t k = 0; k < sizeof args->number[i]; k += bytes)
                memcpy(args->number[i].bytes + k, in->data, bytes);
        vectors = vectors && plain(in) && aligned(in);
        w.largest = bytes > w.largest ? bytes : w.largest;
        w.bytes[1 + i] = bytes;
    }
    if (vectors) {
        const int64_t threads = (out->numel * (int64_t)w.largest + 31) / 32;
        const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, threads, ELEMENTWISE_THREADS) },
                                          .block = ELEMENTWISE_THREADS };
        return elementwise_launch(call, kernel, false, shape, args);
    }
    w.call = call;
    w.args = args;
    w.kernel = kernel;
    w.operands = 1 + count;
    return run_strided(&w);
}

ctrt_status cuda_elementwise(const ctrt_call *call, struct elementwise_args *args, ctrt_dtype key, int index,
                             const char *word)
{
    struct cuda_kernel *kernel = cuda_kernel_of(call);
    const struct elementwise_kernel device_kernel = {
        .fatbin = kernel->fatbin, .entries = &kernel->entries[key][index],
        .stem = kernel->kernel_name != NULL ? kernel->kernel_name : kernel->base.op,
        .key = key, .word = word,
    };
    return cuda_elementwise_kernel(call, args, &device_kernel);
}

ctrt_status cuda_elementwise_run(const ctrt_call *call)
{
    const struct cuda_kernel *kernel = cuda_kernel_of(call);
    struct elementwise_args args;
    ctrt_dtype key = (ctrt_dtype)(call->n_inputs > 0 ? call->inputs[0]->dtype : call->outputs[0]->dtype);
    if ((kernel->code & ELEMENTWISE_BITS) || ((kernel->code & ELEMENTWISE_BYTE) && key == CTRT_BOOL))
        key = cuda_bits_of(key);
    cuda_elementwise_clear(&args);
    if (!(kernel->code & ELEMENTWISE_SWAPPED))
        return cuda_elementwise(call, &args, key, 0, NULL);
    const ctrt_view *const inputs[2] = { call->inputs[1], call->inputs[0] };
    ctrt_call swapped = *call;
    swapped.inputs = inputs;
    return cuda_elementwise(&swapped, &args, key, 0, NULL);
}

ctrt_status cuda_gelu_run(const ctrt_call *call)
{
    const ctrt_gelu_attributes *attributes = call->attributes;
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(call, &args, (ctrt_dtype)call->inputs[0]->dtype, attributes->tanh ? 2 : 0,
                            attributes->tanh ? "tanh" : NULL);
}
