/* SPDX-License-Identifier: Apache-2.0 */
/* suite.h: shared by the files of the conformance suite.
 *
 * An op is a row (struct check_op) in the table of its family: how to call it, its reference in float64 or int64, the
 * domains of its inputs and its tolerance. op_complete adds what ctrt/ops.def has: its dtypes, the dtype of the result,
 * whether it is differentiable, and the functions of a plain elementwise op. To add an op, add a row; forward.c,
 * inplace.c and gradient.c then check it for every dtype and layout. Checks that do not fit into rows (views, random
 * numbers, optimizers) are functions (struct check_special). */
#ifndef CONFORMANCE_SUITE_H
#define CONFORMANCE_SUITE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "ctrt/ctrt.h"
#include "junit.h"

enum { MAX_INPUTS = 5, MAX_OUTPUTS = 4 };

/* ---- sets of dtypes ---- */

#define BIT(dtype)  (1u << CTRT_##dtype)
#define HALVES      (BIT(F16) | BIT(BF16))
#define FLOATS      (BIT(F32) | BIT(F64) | HALVES)
#define NUMBERS     (FLOATS | BIT(I8) | BIT(U8) | BIT(I16) | BIT(I32) | BIT(I64))
#define ALL         (NUMBERS | BIT(BOOL))

/* ---- arrays: values on the host, exact ---- */

struct array {
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t numel;
    double *f;                  /* values of a floating array */
    int64_t *i;                 /* values of an integer or bool array */
    /* of a reference: sums of the added magnitudes (compare.c); NULL: those of the values */
    double *size;
};

/* Zeroed memory that is valid until the next scratch_reset; never NULL. */
void *scratch(size_t bytes);
void scratch_reset(void);
/* scratch_release frees the memory that was allocated after scratch_mark returned `mark`. */
void *scratch_mark(void);
void scratch_release(void *mark);

void array_make(struct array *a, ctrt_dtype dtype, int ndim, const int64_t *shape);     /* zeros */
/* The same with sizes, for a sum of terms: add_term adds one to element k. */
void array_make_sum(struct array *a, ctrt_dtype dtype, int ndim, const int64_t *shape);
static inline void add_term(struct array *a, int64_t k, double term) { a->f[k] += term, a->size[k] += fabs(term); }
static inline double value_of(const struct array *a, int64_t k) { return a->f ? a->f[k] : (double)a->i[k]; }
void value_set(struct array *a, int64_t k, double value);       /* converts as ctrt does */
double most_of(const struct array *a);                          /* the largest magnitude of a floating array */
double round_to(ctrt_dtype dtype, double value);                /* to the nearest value of a floating dtype */
int64_t wrap_to(ctrt_dtype dtype, int64_t value); /* modulo the integer type's range; bool: value != 0 */
bool is_floating(ctrt_dtype dtype);
double epsilon_of(ctrt_dtype dtype);                            /* of f32 for integers */
void array_to(struct array *out, const struct array *in, ctrt_dtype dtype);     /* converts as ctrt does */
/* Copies element `from` of b to element `to` of a. Both have the same dtype. */
void element_copy(struct array *a, int64_t to, const struct array *b, int64_t from);
/* The offset in `a` of an element of a broadcast result, whose `n` dims have the indices `index`. */
int64_t offset_in(const struct array *a, const int64_t *index, int n);
/* The shape to which `count` arrays broadcast. */
void broadcast_shape(int64_t *shape, int *ndim, const struct array *in, int count);
/* Writes the indices of element k of a contiguous array. */
void index_of(int64_t *index, int64_t k, int ndim, const int64_t *shape);

ctrt_status array_upload(ctrt_tensor **out, const struct array *a, ctrt_device *device);
ctrt_status array_download(struct array *out, ctrt_tensor *tensor);

/* Reproducible random numbers. */
struct dice { uint64_t state; };
uint64_t dice_next(struct dice *dice);
double dice_unit(struct dice *dice);                            /* [0, 1) */

/* ---- rows ---- */

struct shape { int n; int64_t d[5]; };                          /* n -1: this input is absent */
#define S(...) { (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ } }
#define S0     { 0, { 0 } }
#define NONE   { -1, { 0 } }

enum sort { NORMAL, ZERO_SIZE, ZERO_DIM, LARGE, SPECIAL };       /* SPECIAL: NaN, infinities, limits */

/* One set of shapes and attributes; each op defines the meaning of n and x. */
struct variant {
    const char *what;
    enum sort sort;
    struct shape in[MAX_INPUTS];
    int64_t n[8];
    double x[4];
};

/* The domain of an input's values. REAL: in [lo, hi], also for integers; CONSTANT: like REAL, without a derivative.
 * INDEX: i64 in [0, variant->n[7]). MASK: bool; with lo > 0 each row begins with true, with lo < 0 every second row is
 * false. BIAS: CONSTANT, or -inf where MASK with lo < 0 is false. */
enum domain_kind { REAL, INDEX, MASK, BIAS, CONSTANT };
struct domain { enum domain_kind kind; double lo, hi; };

enum result_rule { SAME, TO_FLOAT, TO_BOOL, TO_I64, SUM_RULE };

/* Tolerances of results; compare.c explains them. */
enum tolerance { EXACT, MATH, ADDED, PRODUCTS, COMPOSED, TOLERANCES };

enum {                          /* flags */
    GRAD = 1,                   /* has a derivative in its floating inputs */
    GRAD2 = 2,                  /* also check the second derivative */
    LARGE_GRAD = 8,             /* also check the gradients of LARGE variants, which fill several tiles */
    TIES = 4,                   /* the derivative is discontinuous or steep at equal values, so values must differ */
    NO_SPECIAL = 16,            /* not checked with NaN and infinities */
    NO_ZERO_DIVISOR = 32,       /* for integers the second operand must not be 0 */
    NO_HALF_GRAD = 64,          /* too ill-conditioned for a comparison in half precision */
    CANCELS = 128,              /* elementwise, with cancellation of terms of the operand's magnitude */
    FLAT = 512,                 /* the second derivative is 0 and not checked */
    MATRICES = 256              /* multiplies matrices, which some devices do in a smaller type than f32 */
};

struct check_op {
    const char *name;           /* matched by --op and printed in TAP */
    const char *kernel;         /* name in ctrt/ops.def; NULL: `name`, and op_complete sets what the list says */
    unsigned dtypes, flags;
    int inputs, outputs;        /* inputs 0: as many as are in `in`; outputs 0: 1 */
    enum result_rule result;
    enum tolerance tolerance;
    struct domain in[MAX_INPUTS];
    /* The call; exactly one of these. */
    ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
    ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_status (*call)(ctrt_tensor **out, ctrt_tensor *const *in, const struct variant *v);
    /* Other forms: with a scalar on the right, and in place. */
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);
    ctrt_status (*unary_)(ctrt_tensor *self);
    ctrt_status (*binary_)(ctrt_tensor *self, ctrt_tensor *other);
    ctrt_status (*scalar_)(ctrt_tensor *self, ctrt_scalar other);
    ctrt_status (*call_)(ctrt_tensor *self, ctrt_tensor *const *in, const struct variant *v);   /* in[0] is self */
    /* The reference: a function of one element, or of the whole (it also makes `out`). */
    double (*f1)(double x);
    int64_t (*i1)(int64_t x);
    double (*f2)(double a, double b);
    int64_t (*i2)(int64_t a, int64_t b);
    double (*fv)(double x, const struct variant *v);
    int64_t (*iv)(int64_t x, const struct variant *v);
    void (*reference)(struct array *out, const struct array *in, const struct variant *v,
                      const struct check_op *op);
    const struct variant *variants;     /* NULL: the defaults for elementwise ops */
    int variant_count;
};

/* Rows of ops of the forms UNARY and BINARY: the domain of each input and the float64 reference. */
#define ROW(op, domain, f, ...)     { .name = #op, .in = { domain }, .f1 = f, ##__VA_ARGS__ }
#define ROW2(op, first, second, f, ...) { .name = #op, .in = { first, second }, .f2 = f, ##__VA_ARGS__ }

#define COUNT_OF(table) ((int)(sizeof(table) / sizeof((table)[0])))
#define VARIANTS(table) .variants = table, .variant_count = COUNT_OF(table)
/* The functions of a row and its variants. */
#define USES(own, shared, table) .call = own##_call, .reference = shared##_reference, VARIANTS(table)

struct run;

/* A check that is not a row of an op: one for each of `dtypes`, or one without a dtype if that is 0. */
struct check_special {
    const char *name, *tags, *what;
    unsigned dtypes;
    void (*run)(struct run *run);       /* with dtype and data in `run` */
    const void *data;
    const char *kernel;                 /* NULL: `name` */
    unsigned flags;                     /* MATRICES */
};

struct family {
    const char *tag;
    const struct check_op *ops;
    int count;
    const struct check_special *specials;
    int special_count;
};

/* The heads of NAME_reference and NAME_call, which need not use every parameter; CALLS defines a call of one
 * expression. */
#define UNUSED __attribute__((unused))
#define REFERENCE(name)                                                                                     \
    static void name##_reference(struct array *out, const struct array *in, UNUSED const struct variant *v, \
                                 UNUSED const struct check_op *op)
#define CALL(name) \
    static ctrt_status name##_call(ctrt_tensor **out, UNUSED ctrt_tensor *const *in, UNUSED const struct variant *v)
#define CALLS(name, ...)      \
    CALL(name)                \
    {                         \
        return __VA_ARGS__;   \
    }

#define FAMILY_OPS(table)      .ops = table, .count = COUNT_OF(table)
#define FAMILY_SPECIALS(table) .specials = table, .special_count = COUNT_OF(table)

/* ---- layouts ---- */

enum layout { CONTIGUOUS, OFFSET, TRANSPOSED, PERMUTED, SLICED, EXPANDED, CHANNELS_LAST, LAYOUTS };
extern const char *const layout_names[LAYOUTS];

/* An input in device memory. `tensor` is a view of `leaf`, whose values are `base`. */
struct placed {
    struct array base;
    int64_t *map;                       /* element k of the input is element map[k] of base */
    ctrt_tensor *leaf, *tensor;
};

/* Makes the inputs of a variant; returns false if the layout does not apply to these shapes. `smooth`: values that are
 * not close to one another or to multiples of 1/2, for derivatives. */
bool fill_inputs(struct array *full, const struct check_op *op, const struct variant *v, ctrt_dtype dtype,
                 enum layout layout, bool smooth, struct dice *dice);
bool layout_fits(enum layout layout, const struct check_op *op, const struct variant *v);
ctrt_status place(struct placed *p, const struct array *full, enum layout layout, int input,
                  ctrt_device *device, bool require_grad);
void unplace(struct placed *p);

/* The tensors of one call of an op. */
struct session {
    struct placed in[MAX_INPUTS];
    ctrt_tensor *tensors[MAX_INPUTS], *out[MAX_OUTPUTS];
};
/* Places the inputs of a variant in device memory: input 0 in layout `first`, the others in layout `others`. `grad`:
 * those of the domain REAL require grad. The caller calls session_end, also after a failure. */
bool session_begin(struct run *run, struct session *s, const struct check_op *op, const struct variant *v,
                   const struct array *full, enum layout first, enum layout others, bool grad);
void session_end(struct session *s);

/* ---- checks ---- */

struct run {
    const struct conformance_options *options;
    FILE *out;
    ctrt_device *device;
    struct conformance_result result;
    int begun;                          /* checks that have begun, if there is a guard_progress */
    int number, kernels;                /* checks; those for whose op and dtype the device has a kernel */
    bool failed, skipped;
    const char *variant;                /* name of the variant that is being checked; prefix of messages */
    const char *kernel;                 /* kernel of the checked op */
    ctrt_dtype dtype;                   /* of the check, or 0 */
    const void *data;                   /* of the check_special */
    ctrt_dtype matrices;                /* dtype in which the device multiplies f32 matrices */
    double lowered;                     /* epsilon of `matrices` if it is not f32 and the op has MATRICES, else 0 */
    uint64_t fallbacks;                 /* fallback count of `kernel` when the check began */
    char check[160], reason[256];
    char details[2048];
    const struct family *family;
    struct junit junit;
};

/* Begins the check "OP DTYPE WHAT". Returns false if the options exclude it, or if the list of known failures has it as
 * unsupported (then it is printed as skipped). `tags` NULL: --tags and --skip-tags do not exclude it. */
bool check_begin(struct run *run, const char *op, ctrt_dtype dtype, const char *tags, const char *what, ...)
    CTRT_PRINTF(5, 6);
void check_fail(struct run *run, const char *format, ...) CTRT_PRINTF(2, 3);
void check_skip(struct run *run, const char *format, ...) CTRT_PRINTF(2, 3);
void check_end(struct run *run);
/* Returns whether `status` is CTRT_OK. If not, skips the check if the device lacks a kernel, else fails it with ctrt's
 * message. check_call is for the checked op itself, called with `dtype`. */
bool check_ok(struct run *run, ctrt_status status, const char *what);
bool check_call(struct run *run, ctrt_status status, ctrt_dtype dtype, const char *what);
/* Copies to and from the device, with check_ok. `grad`: the tensor requires grad. */
bool upload(struct run *run, ctrt_tensor **out, const struct array *a, bool grad);
bool download(struct run *run, struct array *out, ctrt_tensor *tensor);

/* Compares `got` with `want` and fails the check on a difference; returns whether they agree within the tolerance.
 * `compute` is the dtype of the computation. */
bool check_array(struct run *run, const char *what, const struct array *got, const struct array *want,
                 enum tolerance tolerance, ctrt_dtype compute);
/* Like check_array, with a bound relative to the larger of the element and `scale`. */
bool check_near(struct run *run, const char *what, const struct array *got, const struct array *want,
                double relative, double scale);
/* The same for a tensor. */
bool check_tensor(struct run *run, const char *what, ctrt_tensor *got, const struct array *want,
                  enum tolerance tolerance, ctrt_dtype compute);
bool check_tensor_near(struct run *run, const char *what, ctrt_tensor *got, const struct array *want,
                       double relative, double scale);

ctrt_dtype result_dtype(const struct check_op *op, ctrt_dtype dtype);
ctrt_status op_call(const struct check_op *op, ctrt_tensor **out, ctrt_tensor *const *in,
                    const struct variant *v);
void op_reference(struct array *out, const struct array *in, const struct variant *v, const struct check_op *op);
struct dice op_dice(const struct run *run, const struct check_op *op, ctrt_dtype dtype, int salt);

/* list.c: sets the members that the row leaves out, and what ctrt/ops.def determines: dtypes (if 0), the result and
 * GRAD. For the forms UNARY and BINARY also how the op is called, GRAD2 (unless FLAT) and, for UNARY with TO_FLOAT, the
 * tolerance MATH. */
void op_complete(struct check_op *op);
/* Returns whether ctrt/ops.def has an op `name` for which devices have kernels. */
bool op_has_kernels(const char *name);

void check_forward(struct run *run, const struct check_op *op, ctrt_dtype dtype);       /* forward.c */
void check_scalar_form(struct run *run, const struct check_op *op, ctrt_dtype dtype);
void check_inplace(struct run *run, const struct check_op *op, ctrt_dtype dtype);       /* inplace.c */
void check_gradient(struct run *run, const struct check_op *op);                        /* gradient.c */
void check_gradient_dtype(struct run *run, const struct check_op *op, ctrt_dtype dtype);

/* Whether --op selects the op. */
bool op_wanted(const struct run *run, const char *name);

/* watch.c: watch_start starts a thread, which calls check_ends_badly if a check exceeds its time limit, or if a signal
 * ends it. Returns false after a message. `number`: of the signal; 0: the time limit, after which the function does not
 * return. */
bool watch_start(struct run *run);
void watch_begin(const struct run *run);
void watch_end(void);
void check_ends_badly(struct run *run, int number, const void *address);

/* Which kernels run, kernels.c. kernels_watch starts to read the log; false after a message. check_kernels is the check
 * that each kernel of the plugin `options->file` has run, if it adds kernels to a backend. kernels_last writes the last
 * call of a kernel: "relu f32, score 10". */
bool kernels_watch(const struct run *run);
void check_kernels(struct run *run);
void kernels_last(char text[128]);

/* Known failures, expected.c. */
enum expectation { EXPECT_PASS, EXPECT_UNSUPPORTED, EXPECT_FAILURE };
enum expectation expected_of(const char *check, const char **reason);
bool expected_load(const char *path);

/* ---- helpers for references ---- */

static inline int dim_of(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim); }
static inline bool present(const struct variant *v, int input) { return v->in[input].n >= 0; }

/* The dtype in which ctrt computes for `dtype`. */
ctrt_dtype compute_dtype(ctrt_dtype dtype);

extern const struct family unary_family, binary_family, reduce_family, matmul_family, conv_family,
    softmax_family, attention_family, norm_family, index_family, view_family, copy_family, random_family, optim_family;

#endif
