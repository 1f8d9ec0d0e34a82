/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the result dtype of each op for each dtype, and the dtypes that it rejects, against PyTorch's
 * (tests/reference/op_dtypes.txt and can_cast.txt).
 *
 * Each op has one TAP line. An op that ctrt does not have is skipped. */
#include <fnmatch.h>

#include "../reference/ref.h"
#include "run.h"
#include "ctrt/ctrt.h"

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

static ctrt_status clamp_int_of(ctrt_tensor **out, ctrt_tensor *t)
{
    return ctrt_clamp(out, t, ctrt_int(1), ctrt_int(2));
}

static ctrt_status clamp_float_of(ctrt_tensor **out, ctrt_tensor *t)
{
    return ctrt_clamp(out, t, ctrt_float(0.5), ctrt_float(1.5));
}

static ctrt_status where_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) condition = NULL;
    CTRT_TRY(ctrt_eq(&condition, a, a));
    return ctrt_where(out, condition, a, b);
}

static ctrt_status cat_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    ctrt_tensor *both[2] = { a, b };
    return ctrt_cat(out, both, 2, 0);
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
#define CTRT_OP(name, form, promotion, dtypes, numbers, in_place, gradient, text) ROW_##form(name)
#include "ctrt/ops.def"
#undef CTRT_OP
    { "div_floor", NULL, ctrt_floor_divide },
    { "where", NULL, where_of },
    { "cat", NULL, cat_of },
    { "matmul", NULL, ctrt_matmul },
    OF(gelu),
    OF(sum),
    OF(prod),
    OF(mean),
    OF(var),
    OF(amax),
    OF(amin),
    OF(argmax),
    OF(argmin),
    OF(any),
    OF(all),
    OF(softmax),
    OF(log_softmax),
    OF(clamp_int),
    OF(clamp_float),
    OF(pow_int),
    OF(pow_float),
    OF(div_int),
    OF(item_mul_float),
    OF(where_int),
    OF(where_float),
};

/* Intended differences from PyTorch, printed once for each op. `dtypes` is a pattern of the operands' dtypes. */
static const struct { const char *op, *dtypes, *torch, *gives, *reason;
} different[] = {
    { "any", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "all", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "sign", "bool", "bool", "error", "a bool has no sign; the message says to cast" },
    { "square", "bool", "i64", "error", "as all arithmetic of one bool operand; the message says to cast" },
    { "gelu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "silu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "sub", "* bool", "error", "the first",
      "only a difference of two bools is rejected" },
    { "sub", "bool *", "error", "the second", "only a difference of two bools is rejected" },
};

/* ---- rows of the reference files ---- */

static const struct op *find(const char *name)
{
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        if (!strcmp(ops[k].name, name))
            return &ops[k];
    return NULL;
}

static char details[4096];
static int number, failures, checked;
static unsigned told;                   /* bit set: rows of `different` that this op used */

__attribute__((format(printf, 1, 2)))
static void fail(const char *format, ...)
{
    size_t used = strlen(details);
    if (used + 300 > sizeof details)
        return;
    va_list list;
    va_start(list, format);
    used += (size_t)snprintf(details + used, 5, "#   ");
    vsnprintf(details + used, 250, format, list);
    va_end(list);
    strcat(details, "\n");
}

static void end_op(const char *name, bool known)
{
    if (*name == '\0')
        return;
    bool bad = details[0] != '\0';
    printf("%s %d - %s%s\n%s", bad ? "not ok" : "ok", ++number, name,
           known ? "" : " # SKIP ctrt has no such op", details);
    for (size_t k = 0; k < sizeof different / sizeof different[0]; k++)
        if (told >> k & 1)
            printf("#   %s of %s: PyTorch gives %s, ctrt %s: %s\n", name, different[k].dtypes,
                   different[k].torch, different[k].gives, different[k].reason);
    told = 0;
    failures += bad;
    details[0] = '\0';
}

static ctrt_status ones(ctrt_tensor **out, const char *dtype_name)
{
    ctrt_dtype dtype;
    CTRT_TRY(ctrt_dtype_parse(&dtype, dtype_name));
    return ctrt_ones(out, CTRT_SHAPE(3), dtype, NULL);
}

static void one_row(const struct op *op, const char *a_name, const char *b_name, const char *want)
{
    ctrt_tensor *a = NULL, *b = NULL, *out = NULL;
    char operands[32];
    snprintf(operands, sizeof operands, "%s%s%s", a_name, b_name ? " " : "", b_name ? b_name : "");
    for (size_t k = 0; k < sizeof different / sizeof different[0]; k++)
        if (!strcmp(different[k].op, op->name) && fnmatch(different[k].dtypes, operands, 0) == 0
            && !strcmp(different[k].torch, want) && strcmp(operands, "bool bool")) {
            const char *gives = different[k].gives;
            want = !strcmp(gives, "the first") ? a_name : !strcmp(gives, "the second") ? b_name : gives;
            told |= 1u << k;
        }
    if (ones(&a, a_name) || (b_name && ones(&b, b_name)))
        fail("making operands: %s", ctrt_error_message());
    ctrt_status status = b_name ? op->two(&out, a, b) : op->one(&out, a);
    const char *got = status ? "error" : ctrt_dtype_name(ctrt_tensor_dtype(out));
    if (strcmp(got, want))
        fail("%s of %s: got %s, expected %s%s%s", op->name, operands, got, want, status ? ": " : "",
             status ? ctrt_error_message() : "");
    if (status && (ctrt_error_message()[0] == '\0' || status == CTRT_ERR_INTERNAL || status == CTRT_ERR_BACKEND))
        fail("%s of %s: the error has no message or a wrong status: '%s', %s", op->name, operands, ctrt_error_message(),
             ctrt_status_string(status));
    checked++;
    ctrt_tensor_release(&a);
    ctrt_tensor_release(&b);
    ctrt_tensor_release(&out);
}

static void result_types(void)
{
    char *bytes = ref_read_bytes("op_dtypes.txt"), last[32] = "", *rest = bytes;
    const struct op *op = NULL;
    for (char *line; rest && (line = strsep(&rest, "\n")) != NULL;) {
        char name[32], word[3][16];
        int words = *line == '#' ? 0 : sscanf(line, "%31s %15s %15s %15s", name, word[0], word[1], word[2]);
        if (words < 3)
            continue;
        if (strcmp(name, last)) {
            end_op(last, op != NULL);
            strcpy(last, name);
            op = find(name);
        }
        if (op && (words == 4) != (op->two != NULL))
            fail("a row of %d words", words);
        else if (op)
            one_row(op, word[0], words == 4 ? word[1] : NULL, word[words - 2]);
    }
    end_op(last, op != NULL);
    free(bytes);
}

/* a.add_(b) is allowed if the promoted dtype of a and b can be cast to the dtype of a. */
static void casts_in_place(void)
{
    char *bytes = ref_read_bytes("can_cast.txt"), *rest = bytes;
    bool may[CTRT_DTYPE_COUNT][CTRT_DTYPE_COUNT];
    int rows = 0;
    memset(may, 0, sizeof may);
    for (char *line; rest && (line = strsep(&rest, "\n")) != NULL;) {
        char from[16], to[16], answer[8];
        ctrt_dtype a, b;
        if (*line == '#' || sscanf(line, "%15s %15s %7s", from, to, answer) != 3 || ctrt_dtype_parse(&a, from)
            || ctrt_dtype_parse(&b, to))
            continue;
        may[a][b] = !strcmp(answer, "yes");
        rows++;
    }
    if (rows != 100)
        fail("can_cast.txt has %d rows, expected 100", rows);
    for (int to = 1; to < CTRT_DTYPE_COUNT; to++)
        for (int with = 1; with < CTRT_DTYPE_COUNT; with++) {
            ctrt_tensor *a = NULL, *b = NULL;
            bool allowed = may[ctrt_promote_types((ctrt_dtype)to, (ctrt_dtype)with)][to];
            if (ctrt_ones(&a, CTRT_SHAPE(3), (ctrt_dtype)to, NULL)
                || ctrt_ones(&b, CTRT_SHAPE(3), (ctrt_dtype)with, NULL))
                fail("making operands: %s", ctrt_error_message());
            ctrt_status status = ctrt_add_(a, b);
            if (status != (allowed ? CTRT_OK : CTRT_ERR_DTYPE) || ctrt_tensor_dtype(a) != (ctrt_dtype)to)
                fail("%s += %s: got '%s', expected '%s'", ctrt_dtype_name((ctrt_dtype)to),
                     ctrt_dtype_name((ctrt_dtype)with), ctrt_status_string(status),
                     ctrt_status_string(allowed ? CTRT_OK : CTRT_ERR_DTYPE));
            ctrt_tensor_release(&a);
            ctrt_tensor_release(&b);
        }
    free(bytes);
    end_op("casts in place", true);
}

TEST_MAIN
{
    result_types();
    casts_in_place();
    if (checked < 1500)
        fail("only %d rows were checked, expected at least 1500", checked);
    end_op("rows", true);
    printf("1..%d\n", number);
    return failures != 0;
}
