/* SPDX-License-Identifier: Apache-2.0 */
/* bench/overhead.c: the overhead of eager ops on small tensors. Prints "NAME NANOSECONDS" lines;
 * peers/overhead_torch.cpp prints the same names for libtorch, and compare.sh runs both in turns. */
#include <ctrt/ctrt.h>

#include "check.h"
#include "timing.h"

struct operands {
    ctrt_tensor *a, *b, *c, *out;
};

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

static void matmul(void *argument)
{
    struct operands *o = argument;
    check(ctrt_matmul(&o->out, o->a, o->b));
}

static void view(void *argument)
{
    struct operands *o = argument;
    check(ctrt_view_as(&o->out, o->a, CTRT_SHAPE(-1)));
}

static void empty(void *argument)
{
    struct operands *o = argument;
    check(ctrt_new_empty(&o->out, o->a, ctrt_ints_of(ctrt_tensor_shape(o->a), ctrt_tensor_ndim(o->a)),
                         CTRT_DTYPE_DEFAULT, NULL));
}

/* (a*b + c).sum() */
static void forward(void *argument)
{
    struct operands *o = argument;
    check(ctrt_mul(&o->out, o->a, o->b));
    check(ctrt_add(&o->out, o->out, o->c));
    check(ctrt_sum(&o->out, o->out, CTRT_ALL_DIMS));
}

static void forward_backward(void *argument)
{
    struct operands *o = argument;
    forward(o);
    check(ctrt_backward(o->out));
}

static void make(struct operands *o, ctrt_ints shape, bool grad)
{
    ctrt_tensor **tensors[] = { &o->a, &o->b, &o->c };
    o->out = NULL;
    for (int i = 0; i < 3; i++) {
        *tensors[i] = NULL;
        check(ctrt_randn(tensors[i], shape, CTRT_F32, NULL));
        check(ctrt_tensor_require_grad(*tensors[i], grad));
    }
}

static void drop(struct operands *o)
{
    ctrt_tensor_release(&o->a);
    ctrt_tensor_release(&o->b);
    ctrt_tensor_release(&o->c);
    ctrt_tensor_release(&o->out);
}

int main(void)
{
    static const int sizes[] = { 1, 64, 1024 };
    struct operands o;
    char name[64];
    for (int i = 0; i < 3; i++) {
        const int n = sizes[i];
        make(&o, CTRT_SHAPE(n), false);
        snprintf(name, sizeof name, "add_%d", n);
        timing_report(name, add, &o);
        snprintf(name, sizeof name, "add_inplace_%d", n);
        timing_report(name, add_inplace, &o);
        snprintf(name, sizeof name, "relu_%d", n);
        timing_report(name, relu, &o);
        snprintf(name, sizeof name, "empty_%d", n);
        timing_report(name, empty, &o);
        drop(&o);
        make(&o, CTRT_SHAPE(n), true);
        snprintf(name, sizeof name, "add_grad_%d", n);
        timing_report(name, add, &o);
        snprintf(name, sizeof name, "muladdsum_forward_%d", n);
        timing_report(name, forward, &o);
        snprintf(name, sizeof name, "muladdsum_backward_%d", n);
        timing_report(name, forward_backward, &o);
        drop(&o);
    }
    make(&o, CTRT_SHAPE(8, 8), false);
    timing_report("matmul_8x8", matmul, &o);
    timing_report("view_8x8", view, &o);
    drop(&o);
    return 0;
}
