/* SPDX-License-Identifier: Apache-2.0 */
/* bench/layouts.c: the host's cost of ops on the default device, which may be a logical device with several members
 * (ctrt/layout.h) or one of its members. Prints "NAME NANOSECONDS" lines. layouts.sh counts instructions instead. */
#include <ctrt/ctrt.h>
#include <ctrt/layout.h>

#include "check.h"
#include "timing.h"

struct operands {
    ctrt_tensor *a, *b, *out;
    ctrt_optimizer *optimizer;
};

static void empty(void *argument)
{
    struct operands *o = argument;
    check(ctrt_empty(&o->out, CTRT_SHAPE(4, 8), CTRT_F32, NULL));
}

static void add(void *argument)
{
    struct operands *o = argument;
    check(ctrt_add(&o->out, o->a, o->b));
}

static void add_inplace(void *argument)
{
    struct operands *o = argument;
    check(ctrt_add_(o->a, o->b));
}

static void relu(void *argument)
{
    struct operands *o = argument;
    check(ctrt_relu(&o->out, o->a));
}

static void linear(void *argument)
{
    struct operands *o = argument;
    check(ctrt_linear(&o->out, o->a, o->b, NULL));
}

static void step(void *argument)
{
    struct operands *o = argument;
    check(ctrt_optimizer_step(o->optimizer));
}

/* Shards dimension `dim` of the tensor; -1: no dimension. A device without members ignores it. */
static void shard(ctrt_tensor *x, int dim)
{
    if (dim < 0 || x == NULL)
        return;
    const ctrt_status status = ctrt_tensor_distribute(x, &(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = dim });
    check(status == CTRT_ERR_NOT_SUPPORTED ? CTRT_OK : status);
}

/* Returns whether the environment selects the case, as timing_report does. Setting up the others takes long under
 * callgrind. */
static int selected(const char *name)
{
    const char *only = getenv("TIMING_CASE");
    return only == NULL || strcmp(only, name) == 0;
}

/* Reports ops on two tensors [4, 8] in these layouts. The device has no pending work before and afterwards, and a
 * small one, so that the calling thread does not wait for it. */
static void report(const char *name, void (*body)(void *), int a, int b)
{
    struct operands o = { NULL };
    if (!selected(name))
        return;
    check(ctrt_ones(&o.a, CTRT_SHAPE(4, 8), CTRT_F32, NULL));
    check(ctrt_ones(&o.b, CTRT_SHAPE(4, 8), CTRT_F32, NULL));
    shard(o.a, a);
    shard(o.b, b);
    check(ctrt_device_synchronize(NULL));
    timing_report(name, body, &o);
    check(ctrt_device_synchronize(NULL));
    ctrt_tensor_release(&o.a);
    ctrt_tensor_release(&o.b);
    ctrt_tensor_release(&o.out);
}

/* Reports a step of SGD with momentum for `layers` linear layers, each with a weight and a bias. */
static void report_step(const char *name, int layers, int weight)
{
    struct operands o = { NULL };
    ctrt_module *net = NULL;
    const char *parameter;
    if (!selected(name))
        return;
    ctrt_tensor *x = NULL, *y = NULL;
    check(ctrt_sequential_new(&net, CTRT_NO_MODULES));
    for (int i = 0; i < layers; i++)
        check(ctrt_sequential_add(net, CTRT_NEW(linear, 8, 8, true, NULL)));
    for (size_t i = 0; ctrt_module_parameter(&parameter, &x, net, i) == CTRT_OK; i++)
        shard(ctrt_tensor_ndim(x) == 2 ? x : NULL, weight);
    x = NULL;
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 1e-6;
    sgd.momentum = 0.9;
    check(ctrt_sgd_new(&o.optimizer, net, &sgd));
    check(ctrt_ones(&x, CTRT_SHAPE(4, 8), CTRT_F32, NULL));
    check(ctrt_forward(&y, net, x));
    check(ctrt_mean(&y, y, CTRT_ALL_DIMS));
    check(ctrt_backward(y));
    check(ctrt_optimizer_step(o.optimizer));
    check(ctrt_device_synchronize(NULL));
    timing_report(name, step, &o);
    check(ctrt_device_synchronize(NULL));
    ctrt_optimizer_release(&o.optimizer);
    ctrt_module_release(&net);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
}

int main(void)
{
    report("empty", empty, -1, -1);
    report("add", add, -1, -1);
    report("add_inplace", add_inplace, -1, -1);
    report("relu_sharded", relu, 0, -1);
    report("add_sharded", add, 0, 0);
    report("linear_replicated", linear, -1, -1);
    report("linear_columns", linear, -1, 0);
    report("linear_rows", linear, 1, 1);
    report_step("sgd_step_2", 1, 0);
    report_step("sgd_step_16", 8, 0);
    check(ctrt_shutdown());
    return 0;
}
