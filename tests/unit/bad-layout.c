/* SPDX-License-Identifier: Apache-2.0 */
/* bad-layout.c: bad input to the functions of ctrt/layout.h and ctrt/op_plugin.h. Cases that need a device with several
 * members are in test-multi-layouts.c and test-multi-mesh.c. */
#include "bad-input.h"
#include "ctrt/op_plugin.h"

static void layouts(void)
{
    ctrt_layout layout;
    const ctrt_layout whole = { .kind = CTRT_LAYOUT_REPLICATED }, rows = { .kind = CTRT_LAYOUT_SHARDED };
    const ctrt_layout_pattern pattern = { "weight", whole }, absent = { "nothing", whole };
    ctrt_layout_counts counts = CTRT_LAYOUT_COUNTS, empty = { 0 };
    NULL_IN2(ctrt_tensor_layout, &layout, p.x);
    ctrt_device *member = NULL;
    NULL_IN2(ctrt_tensor_distribute, p.x, &whole);
    NULL_IN2(ctrt_tensor_distribute_like, p.x, p.x);
    BAD(INVALID_ARGUMENT, ctrt_device_member(NULL, p.cpu, 0));
    BAD(NOT_FOUND, ctrt_device_member(&member, p.cpu, 1));
    BAD(NOT_FOUND, ctrt_device_member(&member, p.cpu, -1));
    FINE(ctrt_device_member(&member, p.cpu, 0) == CTRT_OK);
    FINE(member == p.cpu);
    FINE(ctrt_tensor_distribute_like(p.x, p.x) == CTRT_OK);
    BAD(NOT_SUPPORTED, ctrt_tensor_distribute(p.x, &rows));
    BAD(INVALID_ARGUMENT, ctrt_tensor_distribute(p.x, &(ctrt_layout){ .kind = (ctrt_layout_kind)9 }));
    BAD(INVALID_ARGUMENT, ctrt_layout_count(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_layout_count(&empty, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_module_distribute(NULL, &pattern, 1));
    BAD(INVALID_ARGUMENT, ctrt_module_distribute(p.linear, NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_module_distribute(p.linear, &pattern, -1));
    BAD(NOT_FOUND, ctrt_module_distribute(p.linear, &absent, 1));
    FINE(ctrt_tensor_distribute(p.x, &whole) == CTRT_OK);
    FINE(ctrt_tensor_layout(&layout, p.x) == CTRT_OK);
    FINE(layout.kind == CTRT_LAYOUT_REPLICATED);
    FINE(ctrt_layout_count(&counts, p.cpu) == CTRT_OK);
    FINE(counts.all_reduce == 0);
    FINE(ctrt_module_distribute(p.linear, &pattern, 1) == CTRT_OK);
    FINE(ctrt_module_distribute(p.linear, NULL, 0) == CTRT_OK);
}

/* neg of p.x into a second tensor, with one member of the call changed. */
static ctrt_operand operand(ctrt_tensor *tensor)
{
    ctrt_operand o = { .tensor = tensor };
    o.view.dtype = (uint8_t)ctrt_tensor_dtype(tensor);
    o.view.ndim = (uint8_t)ctrt_tensor_ndim(tensor);
    for (int d = 0; d < o.view.ndim; d++) {
        o.view.shape[d] = ctrt_tensor_shape(tensor)[d];
        o.view.strides[d] = ctrt_tensor_strides(tensor)[d];
    }
    return o;
}

static void ops(void)
{
    ctrt_tensor *y = NULL, *buffer = NULL;
    FINE(ctrt_empty_like(&y, p.x, CTRT_DTYPE_DEFAULT, NULL) == CTRT_OK);
    ctrt_operand in = operand(p.x), result = operand(y), far = in, wide = in, deep = in, odd = in, absent = in;
    ctrt_operand *inputs[1] = { &in }, *outputs[1] = { &result };
    const ctrt_op_call good = { .size = sizeof good, .op = "neg", .key = CTRT_F32, .device = p.cpu, .inputs = inputs,
                                .n_inputs = 1, .outputs = outputs, .n_outputs = 1 };
    ctrt_op_call unknown = good, graph = good, key = good, nowhere = good, negative = good, none = good, small = good;
    unknown.op = "nosuch", graph.op = "view", key.key = (ctrt_dtype)99, nowhere.device = NULL, negative.n_inputs = -1;
    none.inputs = NULL, small.size = offsetof(ctrt_op_call, attributes);
    BAD(INVALID_ARGUMENT, ctrt_op_run(NULL));
    BAD(INVALID_ARGUMENT, ctrt_op_run(&nowhere));
    BAD(INVALID_ARGUMENT, ctrt_op_run(&negative));
    BAD(INVALID_ARGUMENT, ctrt_op_run(&none));
    BAD(INVALID_ARGUMENT, ctrt_op_run(&small));
    BAD(NOT_FOUND, ctrt_op_run(&unknown));
    BAD(NOT_FOUND, ctrt_op_run(&graph));
    BAD(DTYPE, ctrt_op_run(&key));
    far.offset = 4, wide.view.shape[0] = 3, deep.view.ndim = 9, odd.view.dtype = 77, absent.tensor = NULL;
    BAD(SHAPE, (inputs[0] = &far, ctrt_op_run(&good)));
    BAD(SHAPE, (inputs[0] = &wide, ctrt_op_run(&good)));
    BAD(SHAPE, (inputs[0] = &deep, ctrt_op_run(&good)));
    BAD(DTYPE, (inputs[0] = &odd, ctrt_op_run(&good)));
    BAD(INVALID_ARGUMENT, (inputs[0] = &absent, ctrt_op_run(&good)));
    FINE(ctrt_op_accepts(&good));
    FINE(!ctrt_op_accepts(NULL));
    FINE(!ctrt_op_accepts(&unknown));
    FINE(!ctrt_op_accepts(&key));
    inputs[0] = &in;
    FINE(ctrt_op_run(&good) == CTRT_OK);
    FINE(ctrt_op_accepts(&good));
    BAD(INVALID_ARGUMENT, ctrt_op_buffer(NULL, 3, CTRT_F32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_op_buffer(&buffer, 3, CTRT_F32, NULL));
    BAD(SHAPE, ctrt_op_buffer(&buffer, -1, CTRT_F32, p.cpu));
    BAD(DTYPE, ctrt_op_buffer(&buffer, 3, (ctrt_dtype)99, p.cpu));
    FINE(buffer == NULL);
    FINE(ctrt_op_buffer(&buffer, 3, CTRT_F32, p.cpu) == CTRT_OK && ctrt_tensor_numel(buffer) == 3);
    ctrt_tensor_release(&buffer);
    ctrt_tensor_release(&y);
}

void bad_layout(void)
{
    RUN_ALL(layouts, ops);
}
