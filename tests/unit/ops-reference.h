/* SPDX-License-Identifier: Apache-2.0 */
/* ops-reference.h: the running case of tests/reference/ops_*.txt, shared by the files of test-ops-reference. */
#ifndef CTRT_TESTS_OPS_REFERENCE_H
#define CTRT_TESTS_OPS_REFERENCE_H

#include "../reference/ref.h"
#include "tensors.h"

enum { CASE_INPUTS = 8, CASE_RESULTS = 4 };

struct ref_case {
    const struct ref_file *file;
    char name[96];                      /* "add.special" */
    bool wide;                          /* floating inputs in f64 */
    int inputs;
    char input_names[CASE_INPUTS][16];
    ctrt_tensor *in[CASE_INPUTS];
    /* Outputs of the op, set by the assignment rule. The first is the result; the others are named. */
    ctrt_tensor *out[CASE_RESULTS];
    const char *out_names[CASE_RESULTS];
    /* Module parameters whose gradient is compared instead of the input's. */
    ctrt_tensor *leaf[CASE_INPUTS];
};

/* Returns the input called `name`, or NULL when the case has no such input. */
ctrt_tensor *input(const struct ref_case *c, const char *name);
/* Returns the record of an attribute, or NULL. */
const struct ref_record *attr(const struct ref_case *c, const char *name);
/* Returns the first number of an attribute, or `fallback` when the attribute is absent. */
double number(const struct ref_case *c, const char *name, double fallback);

/* How the test calls an op of the reference files: one of the functions. */
struct ref_op {
    const char *op;
    ctrt_status (*call)(struct ref_case *c);
    ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
    ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
    ctrt_status (*scalar)(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar number);    /* if the case has attr/scalar */
    ctrt_status (*reduce)(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
    double tolerance;                   /* for f32; 0: the default 2e-6 */
};

/* Returns NULL if ctrt does not have the op. */
const struct ref_op *ref_op_find(const char *case_name);
ctrt_status ref_op_call(const struct ref_op *op, struct ref_case *c);

#endif
