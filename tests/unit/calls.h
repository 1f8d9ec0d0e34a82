/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: checks of calls, for tests. Uses tap.h; GIVES_... use tensors.h and the test's variable `y`.
 *
 *     GIVES(ctrt_exp(&y, x), 1, 1, 1);                     the call returns CTRT_OK, and y has these values
 *     GIVES_SHAPE(ctrt_t(&y, x), 3, 2);                    this shape; or GIVES_STRIDES
 *     TRY(ctrt_t(&a, a));                                  returns the call's status unless it is CTRT_OK
 *     RUN_ALL(test_sizes, test_copies);                    calls these functions in this order */
#ifndef CTRT_TESTS_CALLS_H
#define CTRT_TESTS_CALLS_H

#define GIVES(call, ...)         (tap_ok((call), __FILE__, __LINE__, #call), VALUES_ARE(y, __VA_ARGS__))
#define GIVES_SHAPE(call, ...)   (tap_ok((call), __FILE__, __LINE__, #call), SHAPE_IS(y, __VA_ARGS__))
#define GIVES_STRIDES(call, ...) (tap_ok((call), __FILE__, __LINE__, #call), STRIDES_ARE(y, __VA_ARGS__))

#define TRY(call)                                   \
    do {                                            \
        ctrt_status status_ = (call);               \
        if (status_ != CTRT_OK)                     \
            return status_;                         \
    } while (0)

#define RUN_ALL(...)                                                            \
    do {                                                                        \
        void (*const functions_[])(void) = { __VA_ARGS__ };                     \
        for (size_t i_ = 0; i_ < sizeof functions_ / sizeof *functions_; i_++)  \
            functions_[i_]();                                                   \
    } while (0)

#endif
