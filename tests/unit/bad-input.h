/* SPDX-License-Identifier: Apache-2.0 */
/* bad-input.h: macros and test objects shared by the files of test-bad-input.
 *
 *     BAD(SHAPE, ctrt_add(&out, a, b));            checks that the call returns CTRT_ERR_SHAPE, sets its own message
 *                                                  and leaves `out` unchanged
 *     FINE(ctrt_tensor_ndim(NULL) == 0);           checks that the expression is true
 *
 * The macros record the public function that is called, so that the program can list the functions without a test. */
#ifndef CTRT_TESTS_BAD_INPUT_H
#define CTRT_TESTS_BAD_INPUT_H

#include "calls.h"
#include "ctrt/ctrt.h"

/* Valid objects for calls with bad input. They exist during the whole test. */
struct objects {
    ctrt_device *cpu, *other;           /* other: a second device, or NULL */
    ctrt_tensor *x, *wide;              /* f32 [2,3] and [5,7]: they do not broadcast */
    ctrt_tensor *whole, *truth, *number, *none;     /* i64 [2], bool [2,3], f32 [], f32 [0,3] */
    ctrt_tensor *leaf, *image, *filter; /* f32 [2,3] that requires grad, [1,2,4,4], [3,2,3,3] */
    ctrt_tensor *away;                  /* f32 [2,3] on the other device, or NULL */
    ctrt_module *linear;                /* Linear(3, 4) */
    ctrt_optimizer *sgd;
};
extern struct objects p;
extern ctrt_tensor *out;                /* p.number during each bad call, NULL before and after it */

void count_call(const char *expression);
void begin_bad(const char *expression);
void check_bad(const char *expression, ctrt_status got, int want);
void check_fine(const char *expression, bool fine);

enum { CTRT_ERR_ANY = 1 };             /* any status but CTRT_OK */
/* Arguments are expanded before BAD_RUN, so that `call` has the name of the function that a macro in it calls. */
#define BAD(want, call)     BAD_RUN(want, call)
#define BAD_RUN(want, call) (begin_bad(#call), check_bad(#call, call, (int)CTRT_ERR_##want))
#define FINE(expression)    (count_call(#expression), check_fine(#expression, expression))

/* Calls f with one of its first two or three arguments NULL. NULLS1, NULLS2, NULLS3: the first of them is &out. */
#define NULL_IN2(f, a, b, ...) \
    BAD(INVALID_ARGUMENT, f(NULL, b, ##__VA_ARGS__)), BAD(INVALID_ARGUMENT, f(a, NULL, ##__VA_ARGS__))
#define NULL_IN3(f, a, b, c, ...) \
    NULL_IN2(f, a, b, c, ##__VA_ARGS__), BAD(INVALID_ARGUMENT, f(a, b, NULL, ##__VA_ARGS__))
#define NULLS1(f, a, ...)             NULL_IN2(f, &out, a, ##__VA_ARGS__)
#define NULLS2(f, a, b, ...)          NULL_IN3(f, &out, a, b, ##__VA_ARGS__)
#define NULLS3(f, a, b, c, ...) \
    NULLS2(f, a, b, c, ##__VA_ARGS__), BAD(INVALID_ARGUMENT, f(&out, a, b, NULL, ##__VA_ARGS__))
/* Calls an op in place, f(self, ...), with NULL and with a leaf that requires grad. */
#define IN_PLACE(f, ...)                                                                    \
    BAD(INVALID_ARGUMENT, f(NULL, ##__VA_ARGS__)), BAD(AUTOGRAD, f(p.leaf, ##__VA_ARGS__))

void bad_base(void);                    /* base, device, memory */
void bad_tensor(void);
void bad_stream(void);
void bad_share(void);
void bad_layout(void);
void bad_parallel(void);
void bad_strategy(void);
void bad_comm(void);
void bad_loading(void);                 /* data */
void bad_ops(void);
void bad_autograd(void);
void bad_nn(void);                      /* nn, optim, checkpoint */
void bad_datasets(void);
void bad_transforms(void);

#endif
