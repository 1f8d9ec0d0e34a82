// SPDX-License-Identifier: Apache-2.0
// Lists of sizes and modules, networks as expressions, and references that are released at the end of a block, in C++.
// Prints what is wrong.
#include <cstdio>

#include <ctrt/ctrt.h>

static ctrt_status train(double *loss, ctrt_device *cpu)
{
    CTRT_AUTO(module) net = nullptr;
    CTRT_AUTO(tensor) x = nullptr, y = nullptr;
    CTRT_AUTO_ARRAY(tensor, halves, 2);
    const size_t columns = 3;
    CTRT_TRY(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 3, 4, true, cpu), CTRT_NEW(relu),
                                                    CTRT_NEW(linear, 4, 1, true, cpu))));
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(2, columns), ctrt_float(1), CTRT_F32, cpu));
    CTRT_TRY(ctrt_forward(&y, net, x));
    CTRT_TRY(ctrt_narrow(&halves[0], y, 0, 0, 1));
    CTRT_TRY(ctrt_narrow(&halves[1], y, 0, 1, 1));
    CTRT_TRY(ctrt_sub(&y, halves[0], halves[1]));
    CTRT_TRY(ctrt_sum(&y, y, CTRT_DIMS(0, 1)));
    CTRT_TRY(ctrt_backward(y));
    return ctrt_item(loss, y);
}

// Each block ends when it is left, by CTRT_TRY or by an exception.
static ctrt_status leave_blocks(bool by_exception)
{
    ctrt_no_grad ctrt_autocast("cpu", nullptr) ctrt_scope ctrt_labeled("block") ctrt_on_device(nullptr) {
        if (ctrt_grad_enabled() || !ctrt_autocast_enabled("cpu"))
            std::puts("a block has not begun");
        if (by_exception)
            throw 1;
        CTRT_TRY(ctrt_fail(CTRT_ERR_STATE, "left"));
    }
    return CTRT_OK;
}

static void check_blocks()
{
    for (int by_exception = 0; by_exception < 2; by_exception++) {
        try {
            if (leave_blocks(by_exception != 0) != CTRT_ERR_STATE)
                std::puts("CTRT_TRY has not returned");
        } catch (int) {
        }
        if (!ctrt_grad_enabled() || ctrt_autocast_enabled("cpu") || ctrt_scope_end() != CTRT_ERR_STATE
            || ctrt_memory_label_pop() != CTRT_ERR_STATE || ctrt_device_pop() != CTRT_ERR_STATE)
            std::puts("a block has not ended");
    }
}

int main()
{
    check_blocks();
    double loss = 1;
    ctrt_device *cpu = nullptr;
    if (ctrt_device_get(&cpu, "cpu") || train(&loss, cpu))
        std::puts(ctrt_error_message());
    else if (loss != 0)
        std::printf("rows that are equal differ by %g\n", loss);
    ctrt_module *none = nullptr;
    if (ctrt_sequential_new(&none, CTRT_MODULES(CTRT_NEW(linear, -1, 4, true, cpu))) != CTRT_ERR_INVALID_ARGUMENT)
        std::printf("the constructor's error is lost: %s\n", ctrt_error_message());
    return 0;
}
