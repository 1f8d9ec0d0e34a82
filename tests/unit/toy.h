/* SPDX-License-Identifier: Apache-2.0 */
/* A fake device for tests of how the core treats memory that the host cannot access, and missing kernels.
 *
 * A device address is a host address plus TOY_MOVED, so that a host access faults. */
#ifndef CTRT_TESTS_TOY_H
#define CTRT_TESTS_TOY_H

#include "base/host_alloc.h"
#include "memory/pool.h"
#include "ops/dispatch.h"

#define TOY_MOVED ((uintptr_t)1 << 45)

enum toy_kind {
    TOY_BARE,               /* no kernels, only the memory table */
    TOY_DENSE,              /* a copy kernel for contiguous operands only */
    TOY_FULL                /* copy and fill kernels for any strides */
};

static size_t toy_bytes_to_host;

static inline void *toy_real(const void *address)
{
    return (void *)((uintptr_t)address - TOY_MOVED);
}

static ctrt_status toy_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    if (alloc_fault_due())
        return out_of_memory(bytes, "the toy device");
    void *real = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *address = real ? (void *)((uintptr_t)real + TOY_MOVED) : NULL;
    return real ? CTRT_OK : out_of_memory(bytes, "the toy device");
}

static void toy_free(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
    free(toy_real(address));
}

static ctrt_status toy_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    (void)device, (void)queue;
    if (kind == CTRT_COPY_TO_HOST)
        toy_bytes_to_host += bytes;
    memcpy(kind == CTRT_COPY_TO_HOST ? to : toy_real(to), kind == CTRT_COPY_TO_DEVICE ? from : toy_real(from), bytes);
    return CTRT_OK;
}

static ctrt_status toy_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device, (void)queue;
    memset(toy_real(address), byte, bytes);
    return CTRT_OK;
}

static inline char *toy_element(const ctrt_view *view, int64_t i)
{
    int64_t offset = 0;
    for (int d = view->ndim - 1; d >= 0; d--) {
        offset += i % view->shape[d] * view->strides[d];
        i /= view->shape[d];
    }
    const char *data = view->flags & CTRT_VIEW_HOST_SCALAR ? view->data : toy_real(view->data);
    return (char *)(uintptr_t)data + offset * (int64_t)dtype_bytes(view->dtype);
}

static ctrt_status toy_run_copy(const ctrt_call *call)
{
    const ctrt_view *from = call->inputs[0], *to = call->outputs[0];
    for (int64_t i = 0; i < to->numel; i++)
        dtype_store(toy_element(to, i), to->dtype, dtype_load(toy_element(from, i), from->dtype));
    return CTRT_OK;
}

/* Fails if the core passes strided operands, which a kernel without CTRT_KERNEL_STRIDED must not get. */
static ctrt_status toy_run_dense_copy(const ctrt_call *call)
{
    if (!(call->inputs[0]->flags & call->outputs[0]->flags & CTRT_VIEW_CONTIGUOUS))
        return ctrt_fail(CTRT_ERR_INTERNAL, "a dense copy kernel got strided operands");
    return toy_run_copy(call);
}

static ctrt_status toy_run_fill(const ctrt_call *call)
{
    const ctrt_view *to = call->outputs[0];
    const ctrt_range_attributes *range = call->attributes;
    for (int64_t i = 0; i < to->numel; i++)
        dtype_store(toy_element(to, i), to->dtype, range->lo);
    return CTRT_OK;
}

#define TOY_ALL_DTYPES ((1u << CTRT_DTYPE_COUNT) - 2)
#define TOY_KERNEL(name, its_flags, function)                                                              \
    { .size = sizeof(ctrt_kernel), .op = name, .dtypes = TOY_ALL_DTYPES, .flags = its_flags,          \
      .run = function }
#define TOY_TABLE(list, n)                                                                                 \
    { .size = sizeof(ctrt_kernel_table), .kernels = list, .count = n, .stride = sizeof(ctrt_kernel) }
#define TOY_BACKEND(kind) { .size = sizeof(ctrt_backend), .memory = &toy_memory, .kernels = &toy_kernels[kind] }

static const ctrt_kernel toy_full_kernels[] = {
    TOY_KERNEL("copy", CTRT_KERNEL_STRIDED, toy_run_copy),
    TOY_KERNEL("fill", CTRT_KERNEL_STRIDED, toy_run_fill),
};
static const ctrt_kernel toy_dense_kernels[] = { TOY_KERNEL("copy", 0, toy_run_dense_copy) };
static const ctrt_kernel_table toy_kernels[] = {
    [TOY_BARE] = TOY_TABLE(NULL, 0),
    [TOY_DENSE] = TOY_TABLE(toy_dense_kernels, 1),
    [TOY_FULL] = TOY_TABLE(toy_full_kernels, 2),
};
static const ctrt_memory_table toy_memory = {
    .size = sizeof toy_memory, .alloc = toy_alloc, .free = toy_free, .copy = toy_copy, .fill = toy_fill
};
static const ctrt_backend toy_backends[] = { TOY_BACKEND(TOY_BARE), TOY_BACKEND(TOY_DENSE), TOY_BACKEND(TOY_FULL) };

static ctrt_status toy_open(ctrt_device **out, enum toy_kind kind)
{
    static ctrt_device devices[8];              /* never closed, as real devices */
    static int opened;
    if (opened == 8)
        return ctrt_fail(CTRT_ERR_STATE, "8 toy devices are open");
    ctrt_device *device = &devices[opened];
    device->home = device;
    device->launch = &launch_direct;
    device->ordinal = opened++;
    snprintf(device->name, sizeof device->name, "toy:%d", device->ordinal);
    snprintf(device->type, sizeof device->type, "toy");
    device->backend = &toy_backends[kind];
    device->owner = device_process;
    pthread_mutex_init(&device->generator_lock, NULL);
    CTRT_TRY(device_memory_create(device));
    *out = device;
    return CTRT_OK;
}

#endif
