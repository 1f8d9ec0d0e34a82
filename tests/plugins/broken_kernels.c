/* SPDX-License-Identifier: Apache-2.0 */
/* broken_kernels.c: kernels for the cpu that the library never runs, or that never return; CTRT_BROKEN: the defect. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctrt/plugin.h"

static const ctrt_host *host;

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

static bool accepts(const ctrt_call *call)
{
    (void)call;
    return !broken("refuses");
}

static ctrt_status relu_f32(const ctrt_call *call)
{
    const float *x = call->inputs[0]->data;
    float *y = call->outputs[0]->data;
    while (broken("hangs"))
        pause();
    if (broken("workspace"))                    /* without the slot */
        *(volatile float *)call->workspace = 0;
    for (int64_t i = 0; i < call->outputs[0]->numel; i++)
        y[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0;
    return CTRT_OK;
}

static ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "relu", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .score = 1000,
      .flags = CTRT_KERNEL_INPLACE, .run = relu_f32, .accepts = accepts },
    { .size = sizeof(ctrt_kernel), .op = "neg", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .score = -1, .run = relu_f32 },
};
static ctrt_kernel_table table = { .size = sizeof table, .kernels = kernels, .count = 1, .stride = sizeof kernels[0] };
static const ctrt_kernels added = { .size = sizeof added, .kernels = &table };
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_KERNELS, .name = "cpu", .table = &added },
};

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    if (broken("init_fails"))
        return host->fail(CTRT_ERR_BACKEND, "no kernels today");
    if (broken("misspelt"))
        kernels[0].op = "relux";
    if (broken("dtype"))
        kernels[0].dtypes = CTRT_DTYPE_BIT(CTRT_BOOL);
    table.count = broken("score") ? 2 : broken("none") ? 0 : 1;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("kernels-cpu-broken", "1", "kernels that never run", components, init)
