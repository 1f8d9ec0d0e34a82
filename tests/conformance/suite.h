/* SPDX-License-Identifier: Apache-2.0 */
/* suite.h: what the files of the conformance suite share.
 *
 * An op is a row (struct check_op) in the table of its family: how to call it, what it has to give in float64
 * or int64, which dtypes it takes, where its inputs lie, how far it may be off. Adding an op is adding a row;
 * forward.c, inplace.c and gradient.c do the rest for every dtype and layout. What does not fit into rows
 * (views, random numbers, optimizers) are checks of their own (struct check_special). */
#ifndef CONFORMANCE_SUITE_H
#define CONFORMANCE_SUITE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "ctrt/ctrt.h"

enum { MAX_INPUTS = 5, MAX_OUTPUTS = 4 };

/* ---- sets of dtypes ---- */

#define BIT(dtype)  (1u << CTRT_##dtype)
#define FLOATS      (BIT(F32) | BIT(F64) | BIT(F16) | BIT(BF16))
#define INTS        (BIT(I8) | BIT(U8) | BIT(I16) | BIT(I32) | BIT(I64))
#define NUMBERS     (FLOATS | INTS)
#define ALL         (NUMBERS | BIT(BOOL))

/* ---- arrays: values on the host, exact ---- */

struct array {
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t numel;
    double *f;                  /* values of a floating array */
    int64_t *i;                 /* values of an integer or bool array */
    double *size; /* of an expected result: what was added up, by magnitude; NULL: the values' own magnitude */
};

/* Memory until the next scratch_reset; never NULL. */
void *scratch(size_t bytes);
void scratch_reset(void);
void *scratch_mark(void);                       /* what comes after it goes by scratch_release */
void scratch_release(void *mark);

void array_make(struct array *a, ctrt_dtype dtype, int ndim, const int64_t *shape);     /* zeros */
static inline double value_of(const struct array *a, int64_t k) { return a->f ? a->f[k] : (double)a->i[k]; }
void value_set(struct array *a, int64_t k, double value);       /* converts as ctrt does */
double round_to(ctrt_dtype dtype, double value);                /* to the nearest that a floating type has */
int64_t wrap_to(ctrt_dtype dtype, int64_t value); /* modulo the integer type's range; bool: not zero */
bool is_floating(ctrt_dtype dtype);
double epsilon_of(ctrt_dtype dtype);                            /* of f32 for integers */
void array_to(struct array *out, const struct array *in, ctrt_dtype dtype);     /* converts as ctrt does */
int64_t offset_in(const struct array *a, const int64_t *index, int n);  /* broadcasts: the last n of its dims */
void index_of(int64_t *index, int64_t k, int ndim, const int64_t *shape);

ctrt_status array_upload(ctrt_tensor **out, const struct array *a, ctrt_device *device);
ctrt_status array_download(struct array *out, ctrt_tensor *tensor);

/* Repeatable numbers. */
struct dice { uint64_t state; };
uint64_t dice_next(struct dice *dice);
double dice_unit(struct dice *dice);                            /* [0, 1) */

/* ---- rows ---- */

struct shape { int n; int64_t d[5]; };                          /* n -1: this input is absent */
#define S(...) { (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ } }
#define S0     { 0, { 0 } }
#define NONE   { -1, { 0 } }

enum sort { NORMAL, ZERO_SIZE, ZERO_DIM, LARGE, SPECIAL };       /* SPECIAL: NaN, infinities, limits */

/* One set of shapes and attributes; what n and x mean is the op's business. */
struct variant {
    const char *what;
    enum sort sort;
    struct shape in[MAX_INPUTS];
    int64_t n[8];
    double x[4];
};

/* Where an input's values lie. REAL: in [lo, hi], integers too; CONSTANT: the same, and there is no derivative.
 * INDEX: i64 in [0, variant->n[7]). MASK: bool; lo 1: each row begins with true. */
enum domain_kind { REAL, INDEX, MASK, CONSTANT };
struct domain { enum domain_kind kind; double lo, hi; };

enum result_rule { SAME, TO_FLOAT, TO_BOOL, TO_I64, SUM_RULE };

/* How far a result may be off, compare.c. */
enum tolerance { EXACT, MATH, ADDED, PRODUCTS, COMPOSED, TOLERANCES };

enum {                          /* flags */
    GRAD = 1,                   /* has a derivative in its floating inputs */
    GRAD2 = 2,                  /* and a second one that does not vanish or is worth a look */
    TIES = 4,                   /* the derivative jumps, or is steep, where values meet: not with crowded ones */
    NO_BROADCAST = 8,           /* operands do not broadcast */
    NO_SPECIAL = 16,            /* no NaN and infinities here */
    NO_ZERO_DIVISOR = 32,       /* integers: the second operand is not 0 */
    NO_HALF_GRAD = 64,          /* too ill-conditioned for a comparison in half precision */
    CANCELS = 128,              /* elementwise: terms of the operand's size cancel */
    MATRICES = 256              /* matrices are multiplied, which some devices do in a smaller type than f32 */
};

struct check_op {
    const char *name;           /* what --op matches and TAP prints */
    const char *kernel;         /* name in ops.def; NULL: the same */
    unsigned dtypes, flags;
    int inputs, outputs;        /* outputs 0 means 1 */
    enum result_rule result;
    enum tolerance tolerance;
    struct domain in[MAX_INPUTS];
    /* How it is called: one of these. */
    ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
    ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_status (*call)(ctrt_tensor **out, ctrt_tensor *const *in, const struct variant *v);
    /* Other forms: a scalar on the right; in place. */
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);
    ctrt_status (*unary_)(ctrt_tensor *self);
    ctrt_status (*binary_)(ctrt_tensor *self, ctrt_tensor *other);
    ctrt_status (*scalar_)(ctrt_tensor *self, ctrt_scalar other);
    ctrt_status (*call_)(ctrt_tensor *self, ctrt_tensor *const *in,
                         const struct variant *v); /* in: from the second */
    /* What it has to give: for each element, or as a whole (out is not made yet). */
    double (*f1)(double x);
    int64_t (*i1)(int64_t x);
    double (*f2)(double a, double b);
    int64_t (*i2)(int64_t a, int64_t b);
    double (*fv)(double x, const struct variant *v);
    int64_t (*iv)(int64_t x, const struct variant *v);
    void (*reference)(struct array *out, const struct array *in, const struct variant *v,
                      const struct check_op *op);
    const struct variant *variants;     /* NULL: the common ones of elementwise ops */
    int variant_count;
};

#define VARIANTS(table) .variants = table, .variant_count = (int)(sizeof(table) / sizeof((table)[0]))

struct run;

/* A check that is not a row: begins and ends its own checks (check_begin, check_end). */
struct check_special {
    const char *name, *tag;
    void (*run)(struct run *run, const char *name);
};

struct family {
    const char *tag;
    const struct check_op *ops;
    int count;
    const struct check_special *specials;
    int special_count;
};

#define FAMILY_OPS(table)      .ops = table, .count = (int)(sizeof(table) / sizeof((table)[0]))
#define FAMILY_SPECIALS(table) .specials = table, .special_count = (int)(sizeof(table) / sizeof((table)[0]))

/* ---- layouts ---- */

enum layout { CONTIGUOUS, OFFSET, TRANSPOSED, PERMUTED, SLICED, EXPANDED, CHANNELS_LAST, LAYOUTS };
extern const char *const layout_names[LAYOUTS];

/* An input as the op sees it (full) and as it lies on the device (base): tensor is a view of leaf. */
struct placed {
    struct array full, base;
    int64_t *map;                       /* full element k is base element map[k] */
    ctrt_tensor *leaf, *tensor;
};

/* Makes inputs of a variant; false when the layout says nothing for these shapes. `smooth`: values away from
 * one another and from multiples of 1/2, for derivatives. */
bool fill_inputs(struct array *full, const struct check_op *op, const struct variant *v, ctrt_dtype dtype,
                 enum layout layout, bool smooth, struct dice *dice);
bool layout_fits(enum layout layout, const struct check_op *op, const struct variant *v);
ctrt_status place(struct placed *p, const struct array *full, enum layout layout, int input,
                  ctrt_device *device, bool require_grad);
void unplace(struct placed *p, int count);

/* ---- checks ---- */

struct run {
    const struct conformance_options *options;
    FILE *out;
    ctrt_device *device;
    struct conformance_result result;
    int number;
    bool failed, skipped;
    const char *kernel;                 /* of the op that is looked at: did it run on this device? */
    ctrt_dtype matrices;                /* dtype in which the device multiplies matrices of f32 */
    double lowered;                     /* epsilon of that, while an op with MATRICES is looked at; 0: f32 itself */
    uint64_t fallbacks;                 /* of that kernel, when the check began */
    char check[160], reason[256];
    char details[2048];
    const struct family *family;
};

/* Begins "OP DTYPE WHAT"; false when it was not asked for, or is unsupported by list (then it was printed as
 * skipped). */
bool check_begin(struct run *run, const char *op, ctrt_dtype dtype, const char *tags, const char *what, ...)
    CTRT_PRINTF(5, 6);
void check_fail(struct run *run, const char *format, ...) CTRT_PRINTF(2, 3);
void check_skip(struct run *run, const char *format, ...) CTRT_PRINTF(2, 3);
void check_end(struct run *run);
/* A status that should be CTRT_OK: tells what went wrong, or that the device lacks a kernel (skips). True when
 * it is. */
bool check_ok(struct run *run, ctrt_status status, const char *kernel, ctrt_dtype dtype, const char *what);

/* Compares; true when all is as expected within the tolerance. `compute` is the dtype that was computed in. */
bool check_array(struct run *run, const char *what, const struct array *got, const struct array *want,
                 enum tolerance tolerance, ctrt_dtype compute);
/* The same with a bound: relative to the larger of the element and `scale`. */
bool check_near(struct run *run, const char *what, const struct array *got, const struct array *want,
                double relative, double scale);

ctrt_dtype result_dtype(const struct check_op *op, ctrt_dtype dtype);
const struct variant *op_variants(const struct check_op *op, int *count);
ctrt_status op_call(const struct check_op *op, ctrt_tensor **out, ctrt_tensor *const *in,
                    const struct variant *v);
void op_reference(struct array *out, const struct array *in, const struct variant *v, const struct check_op *op);
struct dice op_dice(const struct run *run, const struct check_op *op, ctrt_dtype dtype, int salt);

void check_forward(struct run *run, const struct check_op *op, ctrt_dtype dtype);       /* forward.c */
void check_scalar_form(struct run *run, const struct check_op *op, ctrt_dtype dtype);
void check_inplace(struct run *run, const struct check_op *op, ctrt_dtype dtype);       /* inplace.c */
void check_gradient(struct run *run, const struct check_op *op);                        /* gradient.c */
void check_gradient_dtype(struct run *run, const struct check_op *op, ctrt_dtype dtype);

/* What is known not to work, expected.c. */
enum expectation { EXPECT_PASS, EXPECT_UNSUPPORTED, EXPECT_FAILURE };
enum expectation expected_of(const char *device, const char *check, const char **reason);
bool expected_load(const char *path);

/* ---- helpers of references ---- */

static inline int dim_of(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim); }
static inline bool present(const struct variant *v, int input) { return v->in[input].n >= 0; }

/* The dtype that arithmetic of a floating dtype is done in. */
ctrt_dtype compute_dtype(ctrt_dtype dtype);

extern const struct family unary_family, binary_family, reduce_family, matmul_family, conv_family,
    softmax_family, attention_family, norm_family, index_family, view_family, copy_family, random_family, optim_family;

#endif
