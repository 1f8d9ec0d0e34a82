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

int main()
{
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
