/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_check.h: creates small f64 vectors, checks their values, and checks that no graph remains. Uses tap.h. */
#ifndef CTRT_TESTS_AUTOGRAD_CHECK_H
#define CTRT_TESTS_AUTOGRAD_CHECK_H

#include <math.h>

#include "ctrt/ctrt.h"
#include "tap.h"

static inline ctrt_tensor *vector(int n, const double *values, bool grad)
{
    ctrt_tensor *t = NULL;
    CHECK_OK(ctrt_from_data(&t, values, n, CTRT_SHAPE(n), CTRT_F64, NULL));
    if (grad)
        CHECK_OK(ctrt_tensor_require_grad(t, true));
    return t;
}
#define VECTOR(grad, ...) \
    vector((int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__}, grad)

static inline void values_are(const char *what, ctrt_tensor *t, int n, const double *wanted)
{
    if (!CHECK(t != NULL, "%s: the tensor is NULL", what))
        return;
    double got[64];
    if (!CHECK(ctrt_tensor_numel(t) == n, "%s has %lld elements, expected %d", what, (long long)ctrt_tensor_numel(t), n))
        return;
    CHECK_OK(ctrt_to_host(got, sizeof got, t, CTRT_F64));
    for (int i = 0; i < n; i++)
        CHECK(fabs(got[i] - wanted[i]) <= 1e-12 * (1 + fabs(wanted[i])), "%s: element %d is %.17g, expected %.17g", what, i, got[i], wanted[i]);
}
#define VALUES(what, t, ...) values_are(what, t, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static inline void nothing_left(void)
{
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu graph nodes remain", (unsigned long long)ctrt_autograd_live_nodes());
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes remain", (unsigned long long)ctrt_autograd_saved_bytes());
}

static inline void release(int n, ctrt_tensor **const *tensors)
{
    for (int i = 0; i < n; i++)
        ctrt_tensor_release(tensors[i]);
}
#define RELEASE(...) release((int)(sizeof((ctrt_tensor **[]){__VA_ARGS__}) / sizeof(ctrt_tensor **)), (ctrt_tensor **[]){__VA_ARGS__})

#endif
