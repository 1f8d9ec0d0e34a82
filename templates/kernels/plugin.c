/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are added to the backend `cpu`: here one, relu for f32, in place of the backend's own.
 *
 * For each call, the library chooses among the kernels of the backend and of all plugins those whose dtypes contain the
 * call's, and which accept it; of these, it takes the one with the highest score. A kernel that is only better for some
 * calls says so in `accepts`, and leaves the others to the next one.
 *
 * The contract is ctrt/plugin.h; `ctrt ops NAME` prints what the kernel of an op gets and computes. The plugin does not
 * link with libctrt. For another backend than cpu, rename the file to kernels-BACKEND-template.so and the component to
 * BACKEND; `data` of the views are then addresses of that device, and the work goes to call->queue. */
#include <ctrt/plugin.h>

static const ctrt_host *host;           /* the library's functions for plugins; set by init */

/* Smaller calls than this keep the backend's kernel. */
enum { LEAST = 16 };

/* Must not read the data. */
static bool relu_accepts(const ctrt_call *call)
{
    return call->inputs[0]->numel >= LEAST;
}

/* Without CTRT_KERNEL_STRIDED the views are contiguous. The library has allocated the output. With CTRT_KERNEL_INPLACE
 * it may be the input. Threads are the kernel's own affair; this one has none. */
static ctrt_status relu_f32(const ctrt_call *call)
{
    const float *x = call->inputs[0]->data;
    float *y = call->outputs[0]->data;
    for (int64_t i = 0; i < call->outputs[0]->numel; i++)
        y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;             /* NaN stays NaN */
    host->log(CTRT_LOG_DEBUG, "template", "relu of %lld elements", (long long)call->outputs[0]->numel);
    return CTRT_OK;
}

static const ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "relu", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .score = 10,
      .flags = CTRT_KERNEL_INPLACE, .run = relu_f32, .accepts = relu_accepts },
};

/* ---- the plugin ---- */

static const ctrt_kernel_table table = {
    .size = sizeof(ctrt_kernel_table),
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .stride = sizeof kernels[0],
};
static const ctrt_kernels added = { .size = sizeof(ctrt_kernels), .kernels = &table };

/* The component has the name of the backend, the file has both names. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_KERNELS, .name = "cpu", .table = &added },
};

static ctrt_status init(const ctrt_host *lent)
{
    host = lent;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("kernels-cpu-template", "1.0", "kernels for the backend cpu", components, init)
