/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: lists of calls. Uses tap.h; GIVES_... use tensors.h and the test's variable `y`.
 *
 *     OK(ctrt_t(&a, a), ctrt_exp(&b, a));                  each call returns CTRT_OK
 *     FAILS(SHAPE, (ctrt_t(&y, x), "[2, 3, 4]"), ...);     each returns CTRT_ERR_SHAPE and a message with this text
 *     EQUALS((a, 1), (b, 2), ...);                         CHECK_EQ of each pair
 *     GIVES(ctrt_exp(&y, x), 1, 1, 1);                     the call returns CTRT_OK, and y has these values
 *     GIVES_SHAPE(ctrt_t(&y, x), 3, 2);                    this shape; or GIVES_STRIDES
 *     RUN_ALL(test_sizes, test_copies);                    calls these functions in this order
 *
 * EACH_ARG(f, a, b, x, y) is f(a, b, x), f(a, b, y); for 1 to 12 arguments after a and b. Arguments are expanded
 * first. */
#ifndef CTRT_TESTS_CALLS_H
#define CTRT_TESTS_CALLS_H

#define EACH1(f, a, b, x)       f(a, b, x)
#define EACH2(f, a, b, x, ...)  f(a, b, x), EACH1(f, a, b, __VA_ARGS__)
#define EACH3(f, a, b, x, ...)  f(a, b, x), EACH2(f, a, b, __VA_ARGS__)
#define EACH4(f, a, b, x, ...)  f(a, b, x), EACH3(f, a, b, __VA_ARGS__)
#define EACH5(f, a, b, x, ...)  f(a, b, x), EACH4(f, a, b, __VA_ARGS__)
#define EACH6(f, a, b, x, ...)  f(a, b, x), EACH5(f, a, b, __VA_ARGS__)
#define EACH7(f, a, b, x, ...)  f(a, b, x), EACH6(f, a, b, __VA_ARGS__)
#define EACH8(f, a, b, x, ...)  f(a, b, x), EACH7(f, a, b, __VA_ARGS__)
#define EACH9(f, a, b, x, ...)  f(a, b, x), EACH8(f, a, b, __VA_ARGS__)
#define EACH10(f, a, b, x, ...) f(a, b, x), EACH9(f, a, b, __VA_ARGS__)
#define EACH11(f, a, b, x, ...) f(a, b, x), EACH10(f, a, b, __VA_ARGS__)
#define EACH12(f, a, b, x, ...) f(a, b, x), EACH11(f, a, b, __VA_ARGS__)
#define EACH_N(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, each, ...) each
#define EACH_ARG(f, a, b, ...)                                                                                   \
    EACH_N(__VA_ARGS__, EACH12, EACH11, EACH10, EACH9, EACH8, EACH7, EACH6, EACH5, EACH4, EACH3, EACH2, EACH1, ) \
    (f, a, b, __VA_ARGS__)

#define OK(...)                  EACH_ARG(OK_ONE, , , __VA_ARGS__)
#define OK_ONE(a, b, call)       CHECK_OK(call)
#define FAILS(status, ...)               EACH_ARG(FAILS_ONE, status, , __VA_ARGS__)
#define FAILS_ONE(status, b, pair)       FAILS_CALL(status, CALLS_PAIR pair)
#define FAILS_CALL(...)                  FAILS_CHECK(__VA_ARGS__)
#define FAILS_CHECK(status, call, words) CHECK_FAILS(call, CTRT_ERR_##status, words)
#define EQUALS(...)              EACH_ARG(EQUALS_ONE, , , __VA_ARGS__)
#define EQUALS_ONE(a, b, pair)   CHECK_EQ pair
#define CALLS_PAIR(...)          __VA_ARGS__
#define GIVES(call, ...)         (tap_ok((call), __FILE__, __LINE__, #call), VALUES_ARE(y, __VA_ARGS__))
#define GIVES_SHAPE(call, ...)   (tap_ok((call), __FILE__, __LINE__, #call), SHAPE_IS(y, __VA_ARGS__))
#define GIVES_STRIDES(call, ...) (tap_ok((call), __FILE__, __LINE__, #call), STRIDES_ARE(y, __VA_ARGS__))

#define RUN_ALL(...)                                                            \
    do {                                                                        \
        void (*const functions_[])(void) = { __VA_ARGS__ };                     \
        for (size_t i_ = 0; i_ < sizeof functions_ / sizeof *functions_; i_++)  \
            functions_[i_]();                                                   \
    } while (0)

#endif
