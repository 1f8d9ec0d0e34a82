/* SPDX-License-Identifier: Apache-2.0 */
/* ops-reference.h: what the families of test-ops-reference share: a case of tests/reference/ops_*.txt while it
 * runs. */
#ifndef CTRT_TESTS_OPS_REFERENCE_H
#define CTRT_TESTS_OPS_REFERENCE_H

#include "../reference/ref.h"
#include "ctrt/ctrt.h"

enum { CASE_INPUTS = 8, CASE_RESULTS = 4 };

struct ref_case {
    const struct ref_file *file;
    char name[96];                      /* "add.special" */
    char op[48];                        /* "add" */
    bool wide;                          /* floating inputs in f64 */
    int inputs;
    char input_names[CASE_INPUTS][16];
    ctrt_tensor *in[CASE_INPUTS];
    /* What the op gave: the first is the result, others are named; by the assignment rule. */
    ctrt_tensor *out[CASE_RESULTS];
    const char *out_names[CASE_RESULTS];
    /* Who gets the gradient instead of an input: parameters of a module. */
    ctrt_tensor *leaf[CASE_INPUTS];
};

/* The input called `name`; NULL when the case has none. */
ctrt_tensor *input(const struct ref_case *c, const char *name);
/* An attribute's record, or NULL. */
const struct ref_record *attr(const struct ref_case *c, const char *name);
/* Its first number, or `fallback`. */
double number(const struct ref_case *c, const char *name, double fallback);
bool is_word(const struct ref_case *c, const char *name, const char *word);
/* Its integers as a list; absent: CTRT_ALL_DIMS. */
ctrt_ints integers(const struct ref_case *c, const char *name);

/* A row: how an op of the files is called, or why it is not. */
struct ref_op {
    const char *op;
    ctrt_status (*call)(struct ref_case *c);
    const char *missing;                /* why it is skipped */
    double tolerance;                   /* of f32; 0: the usual 2e-6 */
};

extern const struct ref_op ref_basic_ops[], ref_nn_ops[];        /* end with a row of NULL */

#endif
