/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_check.h: creates small f64 vectors, checks their values, and checks that no graph remains. */
#ifndef CTRT_TESTS_AUTOGRAD_CHECK_H
#define CTRT_TESTS_AUTOGRAD_CHECK_H

#include <math.h>

#include "calls.h"
#include "tensors.h"

static inline ctrt_tensor *vector(int64_t n, const double *values, bool grad)
{
    ctrt_tensor *t = tensor_with(values, CTRT_SHAPE(n), CTRT_F64, NULL);
    CHECK_OK(ctrt_tensor_require_grad(t, grad));
    return t;
}
#define LEAF(...)   vector((int64_t)COUNT(DOUBLES(__VA_ARGS__)), DOUBLES(__VA_ARGS__), true)
#define VECTOR(...) vector((int64_t)COUNT(DOUBLES(__VA_ARGS__)), DOUBLES(__VA_ARGS__), false)

/* Like VALUES_ARE, but for values that exp rounds. */
#define VALUES_NEAR(x, ...) VALUES_WITHIN(1e-12, x, __VA_ARGS__)

static inline ctrt_status backward_of_sum(ctrt_tensor *t)
{
    CTRT_AUTO(tensor) s = NULL;
    CTRT_TRY(ctrt_sum(&s, t, CTRT_ALL_DIMS));
    return ctrt_backward(s);
}

/* Functions of a ctrt_function. */
#define UNUSED __attribute__((unused))
#define FORWARD(name)                                                                                       \
    static ctrt_status name(UNUSED ctrt_function_context *context, UNUSED ctrt_tensor **out, UNUSED int n_out, \
                            UNUSED ctrt_tensor *const *in, UNUSED int n_in)
#define BACKWARD(name)                                                                                      \
    static ctrt_status name(UNUSED ctrt_function_context *context, UNUSED ctrt_tensor **dx, UNUSED int n_in,   \
                            UNUSED ctrt_tensor *const *dy, UNUSED int n_out)

static inline void nothing_left(void)
{
    CHECK_EQ(ctrt_autograd_live_nodes(), 0);
    CHECK_EQ(ctrt_autograd_saved_bytes(), 0);
}

/* The TEST_MAIN of a file with TESTs that must leave no graph. */
#define AUTOGRAD_TESTS_MAIN TEST_MAIN { return cpu_opened() ? run_tests_and(nothing_left) : done(); }

#endif
