/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the result dtype of each op for each dtype, and the dtypes that it rejects, against PyTorch's
 * (tests/reference/op_dtypes.txt and can_cast.txt).
 *
 * Each op has one TAP line. An op that ctrt does not have is skipped. */
#include <fnmatch.h>

#include "../reference/ref.h"
#include "tensors.h"

/* ---- how each op of the table is called, on tensors of three ones ---- */

typedef ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
typedef ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);

#define WRAP(name, call) static ctrt_status name##_of(ctrt_tensor **out, ctrt_tensor *t) { return call; }
WRAP(gelu, ctrt_gelu(out, t, false))
WRAP(sum, ctrt_sum(out, t, CTRT_ALL_DIMS))
WRAP(prod, ctrt_prod_dims(out, t, CTRT_ALL_DIMS, false))
WRAP(mean, ctrt_mean(out, t, CTRT_ALL_DIMS))
WRAP(var, ctrt_var(out, t, CTRT_ALL_DIMS, 1, false))
WRAP(amax, ctrt_amax(out, t, CTRT_ALL_DIMS, false))
WRAP(amin, ctrt_amin(out, t, CTRT_ALL_DIMS, false))
WRAP(argmax, ctrt_argmax(out, t, CTRT_ALL_DIMS, false))
WRAP(argmin, ctrt_argmin(out, t, CTRT_ALL_DIMS, false))
WRAP(any, ctrt_any(out, t, CTRT_ALL_DIMS, false))
WRAP(all, ctrt_all(out, t, CTRT_ALL_DIMS, false))
WRAP(softmax, ctrt_softmax(out, t, 0))
WRAP(log_softmax, ctrt_log_softmax(out, t, 0))
WRAP(pow_int, ctrt_pow_scalar(out, t, ctrt_int(2)))
WRAP(pow_float, ctrt_pow_scalar(out, t, ctrt_float(0.5)))
WRAP(div_int, ctrt_div_scalar(out, t, ctrt_int(2)))
WRAP(item_mul_float, ctrt_mul_scalar(out, t, ctrt_float(0.5)))
WRAP(clamp_int, ctrt_clamp(out, t, ctrt_int(1), ctrt_int(2)))
WRAP(clamp_float, ctrt_clamp(out, t, ctrt_float(0.5), ctrt_float(1.5)))

static ctrt_status where_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) condition = NULL;
    CTRT_TRY(ctrt_eq(&condition, a, a));
    return ctrt_where(out, condition, a, b);
}

static ctrt_status cat_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    return ctrt_cat(out, (ctrt_tensor *[]){ a, b }, 2, 0);
}

/* A scalar operand of where is passed as a 0-dim tensor. */
static ctrt_status where_scalar(ctrt_tensor **out, ctrt_tensor *t, ctrt_scalar number)
{
    CTRT_AUTO(tensor) other = NULL;
    CTRT_TRY(ctrt_scalar_tensor(&other, number, CTRT_DTYPE_DEFAULT, NULL));
    return where_of(out, t, other);
}
WRAP(where_int, where_scalar(out, t, ctrt_int(1)))
WRAP(where_float, where_scalar(out, t, ctrt_float(1)))

#define ROW_UNARY(name)  { #name, ctrt_##name, NULL },
#define ROW_BINARY(name) { #name, NULL, ctrt_##name },
#define ROW_OWN(name)
#define ROW_GRAPH(name)
#define OF(name)         { #name, name##_of, NULL }

static const struct op { const char *name; unary one; binary two;
} ops[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) ROW_##form(name)
#include "ctrt/ops.def"
#undef CTRT_OP
    { "div_floor", NULL, ctrt_floor_divide },
    { "where", NULL, where_of },
    { "cat", NULL, cat_of },
    { "matmul", NULL, ctrt_matmul },
    OF(gelu), OF(sum), OF(prod), OF(mean), OF(var), OF(amax), OF(amin), OF(argmax), OF(argmin), OF(any), OF(all),
    OF(softmax), OF(log_softmax), OF(clamp_int), OF(clamp_float), OF(pow_int), OF(pow_float), OF(div_int),
    OF(item_mul_float), OF(where_int), OF(where_float),
};

/* Intended differences from PyTorch. `dtypes` is a pattern of the operands' dtypes. */
static const struct { const char *op, *dtypes, *torch, *gives, *reason;
} different[] = {
    { "any", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "all", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "sign", "bool", "bool", "error", "a bool has no sign; the message says to cast" },
    { "square", "bool", "i64", "error", "as all arithmetic of one bool operand; the message says to cast" },
    { "gelu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "silu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "sub", "* bool", "error", "the first", "only a difference of two bools is rejected" },
    { "sub", "bool *", "error", "the second", "only a difference of two bools is rejected" },
};

/* ---- rows of the reference files ---- */

static const struct op *find(const char *name)
{
    for (size_t k = 0; k < COUNT(ops); k++)
        if (!strcmp(ops[k].name, name))
            return &ops[k];
    return NULL;
}

static ctrt_tensor *ones(ctrt_dtype dtype)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(3), dtype, NULL));
    return x;
}

static void one_row(const struct op *op, const char *a_name, const char *b_name, const char *want)
{
    CTRT_AUTO(tensor) a = ones(dtype_from_name(a_name)), b = b_name ? ones(dtype_from_name(b_name)) : NULL, out = NULL;
    char operands[32];
    snprintf(operands, sizeof operands, "%s%s%s", a_name, b_name ? " " : "", b_name ? b_name : "");
    for (size_t k = 0; k < COUNT(different); k++)
        if (!strcmp(different[k].op, op->name) && fnmatch(different[k].dtypes, operands, 0) == 0
            && !strcmp(different[k].torch, want) && strcmp(operands, "bool bool")) {
            const char *gives = different[k].gives;
            want = !strcmp(gives, "the first") ? a_name : !strcmp(gives, "the second") ? b_name : gives;
        }
    ctrt_status status = b_name ? op->two(&out, a, b) : op->one(&out, a);
    const char *got = status ? "error" : ctrt_dtype_name(ctrt_tensor_dtype(out));
    CHECK(!strcmp(got, want), "%s of %s: got %s, expected %s%s%s", op->name, operands, got, want, status ? ": " : "",
          status ? ctrt_error_message() : "");
    if (status)
        CHECK(ctrt_error_message()[0] != '\0' && status != CTRT_ERR_INTERNAL && status != CTRT_ERR_BACKEND,
              "%s of %s: no message, or a wrong status: %s", op->name, operands, ctrt_status_string(status));
}

static int result_types(void)
{
    char *bytes = ref_read_bytes("op_dtypes.txt"), last[32] = "", *rest = bytes;
    const struct op *op = NULL;
    int rows = 0;
    for (char *line; rest && (line = strsep(&rest, "\n")) != NULL;) {
        char name[32], word[3][16];
        int words = *line == '#' ? 0 : sscanf(line, "%31s %15s %15s %15s", name, word[0], word[1], word[2]);
        if (words < 3)
            continue;
        if (strcmp(name, last)) {
            strcpy(last, name);
            group("%s", name);
            op = find(name);
            if (op == NULL)
                skip_group("ctrt has no such op");
        }
        if (op == NULL || !CHECK((words == 4) == (op->two != NULL), "a row of %d words", words))
            continue;
        one_row(op, word[0], words == 4 ? word[1] : NULL, word[words - 2]);
        rows++;
    }
    free(bytes);
    return rows;
}

/* a.add_(b) is allowed if the promoted dtype of a and b can be cast to the dtype of a. */
static void casts_in_place(void)
{
    char *bytes = ref_read_bytes("can_cast.txt"), *rest = bytes;
    bool may[CTRT_DTYPE_COUNT][CTRT_DTYPE_COUNT] = { { false } };
    int rows = 0;
    group("casts in place");
    for (char *line; rest && (line = strsep(&rest, "\n")) != NULL;) {
        char from[16], to[16], answer[8];
        if (*line == '#' || sscanf(line, "%15s %15s %7s", from, to, answer) != 3)
            continue;
        may[dtype_from_name(from)][dtype_from_name(to)] = !strcmp(answer, "yes");
        rows++;
    }
    CHECK_EQ(rows, 100);
    for (int to = 1; to < CTRT_DTYPE_COUNT; to++)
        for (int with = 1; with < CTRT_DTYPE_COUNT; with++) {
            CTRT_AUTO(tensor) a = ones((ctrt_dtype)to), b = ones((ctrt_dtype)with);
            bool allowed = may[ctrt_promote_types((ctrt_dtype)to, (ctrt_dtype)with)][to];
            ctrt_status status = ctrt_add_(a, b);
            CHECK(status == (allowed ? CTRT_OK : CTRT_ERR_DTYPE), "%s += %s: got '%s', allowed: %d",
                  ctrt_dtype_name((ctrt_dtype)to), ctrt_dtype_name((ctrt_dtype)with), ctrt_status_string(status),
                  allowed);
            CHECK_EQ(ctrt_tensor_dtype(a), to);
        }
    free(bytes);
}

TEST_MAIN
{
    int rows = result_types();
    casts_in_place();
    CHECK(rows >= 1500, "only %d rows were checked, expected at least 1500", rows);
    return done();
}
