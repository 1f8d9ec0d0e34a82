/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for f32. `run` enqueues a command with a copy of all that it needs, because what ctrt_call points to is valid
 * only until run returns; the queue's thread then calls the kernel's function. Without CTRT_KERNEL_STRIDED the operands
 * are contiguous. The library has promoted and broadcast them, and has allocated the output.
 *
 * `ctrt ops NAME` prints what the kernel of an op gets and computes. */
#include <stdio.h>
#include <string.h>

#include "backend.h"

enum { INPUTS = 3 };

/* A call, as the queue's thread gets it. */
struct work {
    ctrt_status (*compute)(const struct work *work, char *why, size_t why_bytes);
    ctrt_view out, inputs[INPUTS];      /* `data` points to the contents of buffers, or to a number of `numbers` */
    bool has[INPUTS];                   /* optional inputs may be absent */
    double numbers[INPUTS];             /* of inputs that are a CTRT_VIEW_HOST_SCALAR */
    float value;                        /* of fill */
};

/* A kernel with its function: the rows of the table are longer than ctrt_kernel, which the table's stride says. */
struct kernel {
    ctrt_kernel kernel;
    ctrt_status (*compute)(const struct work *work, char *why, size_t why_bytes);
};

static ctrt_status work_run(void *arguments, char *why, size_t why_bytes)
{
    struct work *work = arguments;
    for (int i = 0; i < INPUTS; i++)
        if (work->inputs[i].flags & CTRT_VIEW_HOST_SCALAR)
            work->inputs[i].data = &work->numbers[i];
    return work->compute(work, why, why_bytes);
}

static ctrt_status view_find(ctrt_view *copy, struct device *device, const ctrt_view *view, const char *op)
{
    static const unsigned char sizes[] = { [CTRT_F32] = 4, [CTRT_I64] = 8 };    /* the dtypes of the kernels below */
    char *contents;
    *copy = *view;
    CTRT_TRY(contents_of(&contents, device, view->data, (size_t)view->numel * sizes[view->dtype], op));
    copy->data = contents;
    return CTRT_OK;
}

static float number_of(const ctrt_scalar *scalar)
{
    return scalar->kind == CTRT_SCALAR_FLOAT ? (float)scalar->f : (float)scalar->i;
}

static ctrt_status kernel_run(const ctrt_call *call)
{
    struct device *device = call->device;
    const struct kernel *kernel = (const struct kernel *)call->kernel;
    const ctrt_range_attributes *range = call->attributes;
    struct work work = { .compute = kernel->compute };
    CTRT_TRY(device_usable(device));
    CTRT_TRY(view_find(&work.out, device, call->outputs[0], kernel->kernel.op));
    for (uint32_t i = 0; i < call->n_inputs; i++) {
        const ctrt_view *input = call->inputs[i];
        work.has[i] = input != NULL;
        if (input != NULL && (input->flags & CTRT_VIEW_HOST_SCALAR)) {
            work.inputs[i] = *input;
            memcpy(&work.numbers[i], input->data, sizeof(float));
        } else if (input != NULL) {
            CTRT_TRY(view_find(&work.inputs[i], device, input, kernel->kernel.op));
        }
    }
    if (strcmp(kernel->kernel.op, "fill") == 0)
        work.value = number_of(&range->lo);
    struct command *command = command_new(work_run, sizeof work);
    if (command == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    memcpy(command->arguments, &work, sizeof work);
    command->sequence = call->sequence;
    return command_put(device, call->queue, command);
}

/* ---- what the queue's thread computes ---- */

static float element(const ctrt_view *view, int64_t i)
{
    const float *data = view->data;
    return view->flags & CTRT_VIEW_HOST_SCALAR ? data[0] : data[i];
}

#define ELEMENTWISE(name, count, expression)                                                     \
    static ctrt_status name(const struct work *work, char *why, size_t why_bytes)                \
    {                                                                                            \
        float *out = work->out.data;                                                             \
        (void)why, (void)why_bytes;                                                              \
        for (int64_t i = 0; i < work->out.numel; i++) {                                          \
            const float a = element(&work->inputs[0], i), b = element(&work->inputs[count - 1], i); \
            (void)b;                                                                             \
            out[i] = expression;                                                                 \
        }                                                                                        \
        return CTRT_OK;                                                                          \
    }
ELEMENTWISE(add, 2, a + b)
ELEMENTWISE(mul, 2, a * b)
ELEMENTWISE(relu, 1, a > 0 || a != a ? a : 0)           /* NaN stays NaN */
ELEMENTWISE(relu_backward, 2, b > 0 ? a : 0)            /* (dy, y) */

static ctrt_status fill(const struct work *work, char *why, size_t why_bytes)
{
    float *out = work->out.data;
    (void)why, (void)why_bytes;
    for (int64_t i = 0; i < work->out.numel; i++)
        out[i] = work->value;
    return CTRT_OK;
}

/* x[M,K] times the transpose of w[N,K], plus bias[N] or nothing. */
static ctrt_status linear(const struct work *work, char *why, size_t why_bytes)
{
    const float *x = work->inputs[0].data, *w = work->inputs[1].data;
    const int64_t rows = work->out.shape[0], columns = work->out.shape[1], depth = work->inputs[0].shape[1];
    float *out = work->out.data;
    (void)why, (void)why_bytes;
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < columns; n++) {
            float sum = work->has[2] ? element(&work->inputs[2], n) : 0;
            for (int64_t k = 0; k < depth; k++)
                sum += x[m * depth + k] * w[n * depth + k];
            out[m * columns + n] = sum;
        }
    return CTRT_OK;
}

/* x[O,V,I], index[M]: out[O,M,I]. A wrong index is found when the work runs: it is a failure of the queue. */
static ctrt_status index_select(const struct work *work, char *why, size_t why_bytes)
{
    const float *x = work->inputs[0].data;
    const int64_t *index = work->inputs[1].data, *from = work->inputs[0].shape, chosen = work->out.shape[1];
    float *out = work->out.data;
    for (int64_t m = 0; m < chosen; m++)
        if (index[m] < 0 || index[m] >= from[1]) {
            snprintf(why, why_bytes, "index_select: the index %lld is not below %lld", (long long)index[m],
                     (long long)from[1]);
            return CTRT_ERR_INVALID_ARGUMENT;
        }
    for (int64_t o = 0; o < from[0]; o++)
        for (int64_t m = 0; m < chosen; m++)
            memcpy(&out[(o * chosen + m) * from[2]], &x[(o * from[1] + index[m]) * from[2]],
                   (size_t)from[2] * sizeof(float));
    return CTRT_OK;
}

#define ROW(name, how)                                                                            \
    { { .size = sizeof(ctrt_kernel), .op = #name, .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .flags = (how), \
        .run = kernel_run }, name }
static const struct kernel kernels[] = {
    ROW(add, CTRT_KERNEL_INPLACE),  ROW(mul, CTRT_KERNEL_INPLACE), ROW(relu, CTRT_KERNEL_INPLACE),
    ROW(relu_backward, 0),          ROW(fill, 0),                  ROW(linear, 0),
    ROW(index_select, 0),
};

const ctrt_kernel_table kernel_table = {
    .size = sizeof(ctrt_kernel_table),
    .kernels = &kernels[0].kernel,
    .count = sizeof kernels / sizeof kernels[0],
    .stride = sizeof kernels[0],
};
