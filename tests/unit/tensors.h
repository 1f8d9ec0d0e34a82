/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: creates small tensors and checks the shape, strides and values of results. Uses tap.h. */
#ifndef CTRT_TESTS_TENSORS_H
#define CTRT_TESTS_TENSORS_H

#include <math.h>
#include <pthread.h>

#include "ctrt/ctrt.h"
#include "tap.h"


static inline const char *list_text(const int64_t *values, int count)
{
    static _Thread_local char buffers[4][256];
    static _Thread_local int next;
    char *text = buffers[next++ % 4];
    size_t used = 1;
    strcpy(text, "[");
    for (int i = 0; i < count && used < 200; i++)
        used += (size_t)snprintf(text + used, 256 - used, i ? ", %lld" : "%lld", (long long)values[i]);
    strcpy(text + used, "]");
    return text;
}

static inline bool lists_equal(const int64_t *a, int a_count, ctrt_ints b)
{
    bool equal = a_count == b.count;
    for (int i = 0; i < a_count && equal; i++)
        equal = a[i] == b.values[i];
    return equal;
}

static inline bool check_shape(const char *what, int line, ctrt_tensor *x, ctrt_ints shape)
{
    return tap_check(lists_equal(ctrt_tensor_shape(x), ctrt_tensor_ndim(x), shape), __BASE_FILE__, line,
                     "%s: shape %s, expected %s", what,
                     list_text(ctrt_tensor_shape(x), ctrt_tensor_ndim(x)), list_text(shape.values, shape.count));
}

static inline void check_strides(const char *what, int line, ctrt_tensor *x, ctrt_ints strides)
{
    tap_check(lists_equal(ctrt_tensor_strides(x), ctrt_tensor_ndim(x), strides), __BASE_FILE__, line,
              "%s: strides %s, expected %s", what,
              list_text(ctrt_tensor_strides(x), ctrt_tensor_ndim(x)), list_text(strides.values, strides.count));
}

/* Checks all elements of x, in row-major order, as doubles. A difference of `tolerance` times the value is allowed. */
static inline void check_values_within(const char *what, int line, ctrt_tensor *x, const double *wanted, int64_t count,
                                       double tolerance)
{
    double got[512];
    if (!tap_check(ctrt_tensor_numel(x) == count && count <= 512, __BASE_FILE__, line,
                   "%s: %lld elements, expected %lld", what, (long long)ctrt_tensor_numel(x), (long long)count))
        return;
    if (!tap_ok(ctrt_to_host(got, sizeof got, x, CTRT_F64), __BASE_FILE__, line, what))
        return;
    for (int64_t i = 0; i < count; i++) {
        const double off = got[i] > wanted[i] ? got[i] - wanted[i] : wanted[i] - got[i];
        const double size = wanted[i] < 0 ? -wanted[i] : wanted[i];
        const bool both_nan = got[i] != got[i] && wanted[i] != wanted[i];
        if (!(got[i] == wanted[i] || off < tolerance * size || both_nan)) {
            tap_check(false, __BASE_FILE__, line, "%s: element %lld is %.17g, expected %.17g", what, (long long)i,
                      got[i], wanted[i]);
            return;
        }
    }
    tap_check(true, __BASE_FILE__, line, "%s", what);
}

static inline void check_values(const char *what, int line, ctrt_tensor *x, const double *wanted, int64_t count)
{
    check_values_within(what, line, x, wanted, count, 0);
}

/* Checks that two tensors have the same shape and, up to `tolerance` times 1 + |value|, values. */
static inline void check_same(const char *what, int line, ctrt_tensor *got, ctrt_tensor *want, double tolerance)
{
    if (!tap_check(got != NULL && want != NULL, __BASE_FILE__, line, "%s: %p, expected %p", what, (void *)got,
                   (void *)want))
        return;
    const int64_t numel = ctrt_tensor_numel(want);
    const size_t bytes = (size_t)numel * sizeof(double);
    double *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    check_shape(what, line, got, ctrt_ints_of(ctrt_tensor_shape(want), ctrt_tensor_ndim(want)));
    if (ctrt_tensor_numel(got) == numel && tap_ok(ctrt_to_host(a, bytes, got, CTRT_F64), __BASE_FILE__, line, what)
        && tap_ok(ctrt_to_host(b, bytes, want, CTRT_F64), __BASE_FILE__, line, what)) {
        int64_t i = 0;
        while (i < numel && (a[i] == b[i] || fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i]))))
            i++;
        tap_check(i == numel, __BASE_FILE__, line, "%s: element %lld is %.9g, expected %.9g", what, (long long)i,
                  i < numel ? a[i] : 0, i < numel ? b[i] : 0);
    }
    free(a);
    free(b);
}

/* Returns a parameter or buffer, which the module owns. */
static inline ctrt_tensor *module_tensor(ctrt_module *module, const char *name)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_module_tensor(&tensor, module, name));
    return tensor;
}

#define SAME(got, want)             check_same(#got, __LINE__, (got), (want), 0)
#define NEAR(got, want, tolerance)  check_same(#got, __LINE__, (got), (want), (tolerance))
#define SHAPE_IS(x, ...)     check_shape(#x, __LINE__, (x), CTRT_SHAPE(__VA_ARGS__))
#define STRIDES_ARE(x, ...)  check_strides(#x, __LINE__, (x), CTRT_SHAPE(__VA_ARGS__))
#define DOUBLES(...)         ((const double[]){ __VA_ARGS__ })
#define VALUES_ARE(x, ...)   VALUES_WITHIN(0, x, __VA_ARGS__)
#define VALUES_WITHIN(tolerance, x, ...) \
    check_values_within(#x, __LINE__, (x), DOUBLES(__VA_ARGS__), (int64_t)COUNT(DOUBLES(__VA_ARGS__)), tolerance)

static ctrt_device *cpu;

/* The result of an op or of another function that creates a tensor: OP(mul, a, b). The caller releases the tensor. */
#define OP(name, ...)                                           \
    __extension__({                                             \
        ctrt_tensor *result_ = NULL;                            \
        CHECK_OK(ctrt_##name(&result_, __VA_ARGS__));           \
        result_;                                                \
    })

static inline ctrt_dtype dtype_from_name(const char *name)
{
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    CHECK_OK(ctrt_dtype_parse(&dtype, name));
    return dtype;
}

/* Creates a tensor from f64 values, which are converted to the dtype. */
static inline ctrt_tensor *tensor_with(const double *values, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    if (CHECK_OK(ctrt_from_data(&x, values, numel, shape, CTRT_F64, device)))
        CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    return x;
}

/* Sets the gradient of x to the values. */
static inline void grad_with(ctrt_tensor *x, const double *values)
{
    CTRT_AUTO(tensor) grad = tensor_with(values, ctrt_ints_of(ctrt_tensor_shape(x), ctrt_tensor_ndim(x)),
                                         ctrt_tensor_dtype(x), ctrt_tensor_device(x));
    CHECK_OK(ctrt_tensor_set_grad(x, grad));
}

/* Creates a tensor of the shape with the values 0, 1, 2, ... */
static inline ctrt_tensor *counting_of(ctrt_ints shape, ctrt_dtype dtype)
{
    double values[512];
    for (int i = 0; i < 512; i++)
        values[i] = i;
    return tensor_with(values, shape, dtype, cpu);
}

static inline void tensors_release(ctrt_tensor **tensors, int count)
{
    for (int i = 0; i < count; i++)
        ctrt_tensor_release(&tensors[i]);
}

/* Returns x[index]. */
static inline double element(ctrt_tensor *x, int64_t index)
{
    ctrt_tensor *at = NULL;
    double value = -1;
    if (CHECK_OK(ctrt_select(&at, x, 0, index)))
        CHECK_OK(ctrt_item(&value, at));
    ctrt_tensor_release(&at);
    return value;
}

/* Returns the sum of all elements, computed on the host. May be called by any thread. */
static inline double total(ctrt_tensor *x)
{
    CTRT_AUTO(tensor) here = NULL, sum = NULL;
    ctrt_device *host = NULL;
    double value = -1;
    if (CHECK_OK(ctrt_device_get(&host, "cpu")) && CHECK_OK(ctrt_to_device(&here, x, host))
        && CHECK_OK(ctrt_sum(&sum, here, CTRT_ALL_DIMS)))
        CHECK_OK(ctrt_item(&value, sum));
    return value;
}

/* Runs `body` in a thread whose stack has that many bytes. */
static inline void on_stack(size_t bytes, void *(*body)(void *))
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    REQUIRE_EQ(pthread_create(&thread, &attributes, body, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

#define COUNTING(...) counting_of(CTRT_SHAPE(__VA_ARGS__), CTRT_F32)

/* Opens the CPU device. Returns false on failure, which is reported in a separate group. */
static inline bool cpu_opened(void)
{
    group("the cpu opens");
    return CHECK_OK(ctrt_device_get(&cpu, "cpu"));
}

/* The TEST_MAIN of a file whose TESTs use `cpu`. */
#define CPU_TESTS_MAIN TEST_MAIN { return cpu_opened() ? run_tests() : done(); }

#endif
