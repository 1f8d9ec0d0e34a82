/* SPDX-License-Identifier: Apache-2.0 */
/* bad-input.h: what the families of test-bad-input share.
 *
 *     BAD(SHAPE, ctrt_add(&out, a, b));        has to return CTRT_ERR_SHAPE with a message of its own and leave
 * `out` alone FINE(ctrt_tensor_ndim(NULL) == 0);       has to be true
 *
 * Both note which public function they call, so that the program can say which ones were forgotten. */
#ifndef CTRT_TESTS_BAD_INPUT_H
#define CTRT_TESTS_BAD_INPUT_H

#include "ctrt/ctrt.h"

/* Things to be misused; alive through the whole test. */
struct props {
    ctrt_device *cpu, *other;           /* other: a second device, or NULL */
    ctrt_tensor *x, *wide;              /* f32 [2,3] and [5,7]: they do not broadcast */
    ctrt_tensor *whole, *truth, *number, *none;     /* i64 [2], bool [2,3], f32 [], f32 [0,3] */
    ctrt_tensor *leaf, *image, *filter; /* f32 [2,3] that requires grad, [1,2,4,4], [3,2,3,3] */
    ctrt_tensor *away;                  /* f32 [2,3] on the other device, or NULL */
    ctrt_module *linear;                /* Linear(3, 4) */
    ctrt_optimizer *sgd;
};
extern struct props p;
extern ctrt_tensor *out;                /* NULL before and after each bad call */

void called(const char *expression);
void told_bad(const char *expression, ctrt_status got, int want);
void told_fine(const char *expression, bool fine);

enum { BAD_ANY = 1 };
/* Two steps, so that macros in the expression are words of the function that they stand for. */
#define BAD(want, expression) BAD_CALL(want, expression)
#define BAD_CALL(want, expression)                                                                          \
    (called(#expression), ctrt_fail(CTRT_ERR_INTERNAL, "stale"), told_bad(#expression, expression, BAD_##want))
#define FINE(expression) (called(#expression), told_fine(#expression, expression))

enum {
    BAD_INVALID_ARGUMENT = CTRT_ERR_INVALID_ARGUMENT,
    BAD_SHAPE = CTRT_ERR_SHAPE,
    BAD_DTYPE = CTRT_ERR_DTYPE,
    BAD_DEVICE = CTRT_ERR_DEVICE,
    BAD_NO_DEVICE = CTRT_ERR_NO_DEVICE,
    BAD_NOT_FOUND = CTRT_ERR_NOT_FOUND,
    BAD_OVERFLOW = CTRT_ERR_OVERFLOW,
    BAD_AUTOGRAD = CTRT_ERR_AUTOGRAD,
    BAD_STATE = CTRT_ERR_STATE,
    BAD_IO = CTRT_ERR_IO,
    BAD_FORMAT = CTRT_ERR_FORMAT,
};

void bad_base(void);                    /* base, device, memory */
void bad_tensor(void);
void bad_stream(void);
void bad_split(void);
void bad_ops(void);
void bad_autograd(void);
void bad_nn(void);                      /* nn, optim, checkpoint */

#endif
