/* SPDX-License-Identifier: Apache-2.0 */
/* ops/contract.c: checks that calls of kernels have the form that ctrt/contracts.def describes.
 *
 * The text of a contract is interpreted for each call: one pass counts the operands, a second one reads an operand of
 * the text and compares the views of the call with it. Only runs with CTRT_CHECK_CALLS=1 do this. */
#include "ops/contract.h"

#include <math.h>
#include <stddef.h>

#include "base/param.h"
#include "ctrt/ops.h"
#include "ops/dispatch.h"

static const ctrt_param check_param = {
    sizeof check_param, "CTRT_CHECK_CALLS", CTRT_PARAM_BOOL, "0", NULL,
    "checks each call of a kernel against the op's contract, ctrt-kernels(7)"
};
CORE_PARAM(check_param);

ctrt_status contract_wanted(bool *out)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &check_param, "core"));
    *out = value.integer != 0;
    return CTRT_OK;
}

/* ---- the tables ---- */

enum layout {
#define CTRT_LAYOUT(name, text) name,
#include "ctrt/contracts.def"
};

struct contract {
    const char *operands;
    enum layout layout;
    const char *attributes;
};

#define CTRT_CONTRACT(op, layout, attributes, operands, text) \
    static const struct contract contract_##op = { operands, layout, #attributes };
#include "ctrt/contracts.def"

/* An op of the form OWN without a row in contracts.def does not compile. */
static const struct contract *const contracts[OP_COUNT] = {
#define CONTRACT_UNARY(op)  &contract_UNARY
#define CONTRACT_BINARY(op) &contract_BINARY
#define CONTRACT_OWN(op)    &contract_##op
#define CONTRACT_GRAPH(op)  NULL
#define CTRT_OP(op, form, ...) CONTRACT_##form(op),
#include "ctrt/ops.def"
#undef CTRT_OP
};

/* The C types of members; the initializers below do not compile if a member has another one. */
typedef uint32_t kind_U32;
typedef uint64_t kind_U64;
typedef int64_t kind_I64;
typedef double kind_F64;
typedef bool kind_BOOL;
typedef ctrt_scalar kind_SCALAR;
typedef const void *kind_POINTER;
enum kind { KIND_U32, KIND_U64, KIND_I64, KIND_F64, KIND_BOOL, KIND_SCALAR, KIND_POINTER };

static const struct attribute {
    const char *structure, *member;
    size_t size, offset;                    /* of the struct; of the member */
    enum kind kind;
    int count;
    double least, most;
} attributes[] = {
#define ANY NAN
#define CTRT_ATTRIBUTE(name, member, kind, count, least, most, meaning)                             \
    { #name, #member, sizeof(ctrt_##name##_attributes), offsetof(ctrt_##name##_attributes, member), \
      KIND_##kind, count                                                                            \
      + 0 * sizeof(char[sizeof((ctrt_##name##_attributes *)0)->member == (count) * sizeof(kind_##kind) ? 1 : -1]), \
      least, most },
#include "ctrt/contracts.def"
#undef ANY
};

/* ---- attributes ---- */

static double attribute_value(const struct attribute *a, const char *at)
{
    switch (a->kind) {
    case KIND_U32:  return *(const uint32_t *)at;
    case KIND_U64:  return (double)*(const uint64_t *)at;
    case KIND_I64:  return (double)*(const int64_t *)at;
    case KIND_F64:  return *(const double *)at;
    default:        return NAN;
    }
}

static ctrt_status check_attributes(const char *op, const char *structure, const void *given)
{
    static const size_t bytes[] = { sizeof(uint32_t), sizeof(uint64_t), sizeof(int64_t), sizeof(double) };
    bool none = true;
    for (size_t k = 0; k < COUNT_OF(attributes); k++) {
        const struct attribute *a = &attributes[k];
        if (strcmp(a->structure, structure) != 0)
            continue;
        none = false;
        if (given == NULL || *(const size_t *)given < a->size)
            return ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: expected ctrt_%s_attributes of %zu bytes, got %zu",
                             op, structure, a->size, given ? *(const size_t *)given : 0);
        for (int i = 0; i < a->count && (!isnan(a->least) || !isnan(a->most)); i++) {
            const double value = attribute_value(a, (const char *)given + a->offset + (size_t)i * bytes[a->kind]);
            if (value < a->least || value > a->most)
                return ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: attributes.%s is %g, expected %g to %g", op,
                                 a->member, value, a->least, a->most);
        }
    }
    if (none && given != NULL)
        return ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: the call has attributes, but the op has none", op);
    return CTRT_OK;
}

/* ---- operands ---- */

/* A piece of the text. */
struct word {
    const char *text;
    int length;
};

static bool word_is(struct word a, const char *b)
{
    return strlen(b) == (size_t)a.length && strncmp(a.text, b, (size_t)a.length) == 0;
}

static bool word_equal(struct word a, struct word b)
{
    return a.length == b.length && strncmp(a.text, b.text, (size_t)a.length) == 0;
}

/* One operand of the text: "name dtype[shape]n?". */
struct contract_entry {
    struct word all, name, dtype, shape;
    bool same, list, nullable, output;
    int group;                              /* 1, ...: number of the parentheses; 0: none */
};

/* Position in the text. */
struct reader {
    const char *at;
    bool output;
    int group, groups;
};

static struct word read_word(const char **at, const char *end)
{
    const struct word word = { *at, (int)strcspn(*at, end) };
    *at += word.length;
    return word;
}

/* Reads the next operand; returns false at the end. */
static bool read_one(struct contract_entry *e, struct reader *r)
{
    for (; *r->at != '\0' && strchr(" ,()->", *r->at); r->at++) {
        r->output |= *r->at == '>';
        if (*r->at == '(')
            r->group = ++r->groups;
        if (*r->at == ')')
            r->group = 0;
    }
    if (*r->at == '\0')
        return false;
    *e = (struct contract_entry){ .output = r->output, .group = r->group };
    const char *begin = r->at;
    e->same = *r->at == '=';
    r->at += e->same;
    e->name = read_word(&r->at, " [,)");
    if (*r->at == ' ' && !e->same) {
        r->at++;
        e->dtype = read_word(&r->at, "[");
    }
    if (*r->at == '[') {
        r->at++;
        e->shape = read_word(&r->at, "]");
        r->at++;
    }
    e->list = *r->at == 'n';
    r->at += e->list;
    e->nullable = *r->at == '?';
    r->at += e->nullable;
    e->all = (struct word){ begin, (int)(r->at - begin) };
    return true;
}

/* The same; an output "=x" is a list or absent if the input x is. */
static bool read_entry(struct contract_entry *e, struct reader *r, const char *operands)
{
    struct contract_entry input;
    if (!read_one(e, r))
        return false;
    for (struct reader inputs = { .at = operands }; e->same && read_one(&input, &inputs) && !input.output;)
        if (word_equal(input.name, e->name)) {
            e->list = input.list;
            e->group = e->group > 0 ? e->group : input.group;
        }
    return true;
}

enum { MOST_ENTRIES = 16, MOST_SIZES = 16 };

/* The state of one comparison. */
struct match {
    const ctrt_call *call;
    const struct contract *contract;
    enum op op;
    ctrt_dtype key;                         /* 0 until the operand that determines it has been read */
    unsigned present;                       /* bit g: the operands in parentheses g are in the call */
    int64_t tensors;                        /* of each list */
    const ctrt_view *const *shared;         /* the first operand with [*], or the first of a list */
    struct { struct word name; int64_t size; } sizes[MOST_SIZES];
    int size_count;
    struct { struct word name; const ctrt_view *const *views; } inputs[MOST_ENTRIES];
    int input_count;
};

static bool skipped(const struct match *m, const struct contract_entry *e)
{
    return e->group > 0 && !(m->present >> e->group & 1);
}

/* Returns whether the numbers of operands are possible with these parentheses, and sets m->tensors. */
static bool counts_fit(struct match *m)
{
    int64_t single[2] = { 0, 0 }, lists[2] = { 0, 0 };
    struct reader r = { .at = m->contract->operands };
    for (struct contract_entry e; read_entry(&e, &r, m->contract->operands);)
        if (!skipped(m, &e))
            (e.list ? lists : single)[e.output]++;
    const int64_t in = m->call->n_inputs, out = m->call->n_outputs;
    m->tensors = lists[0] > 0 ? (in - single[0]) / lists[0] : 1;
    return in == single[0] + lists[0] * m->tensors && out == single[1] + lists[1] * m->tensors && m->tensors > 0;
}

static bool dtype_fits(const struct match *m, struct word dtype, ctrt_dtype given)
{
    const char *at = dtype.text;
    while (at < dtype.text + dtype.length) {
        struct word word = read_word(&at, "|[");
        at += *at == '|';
        if (word_is(word, "any") || word_is(word, ctrt_dtype_name(given))
            || (word_is(word, "key") && given == m->key)
            || (word_is(word, "result") && given == op_result_dtype(op_table[m->op].promotion, m->key))
            || (word_is(word, "wide") && given == (m->key == CTRT_F64 ? CTRT_F64 : CTRT_F32)))
            return true;
    }
    return false;
}

/* Returns whether the op and the kernel are defined for the key. */
static bool key_fits(const struct match *m)
{
    const bool floating = op_table[m->op].dtypes == DTYPES_FLOATS || op_table[m->op].promotion == PROMOTION_TO_FLOAT;
    return (m->call->kernel->dtypes & CTRT_DTYPE_BIT(m->key)) && (!floating || dtype_floating(m->key))
           && !(op_table[m->op].dtypes == DTYPES_NUMBERS && m->key == CTRT_BOOL);
}

static bool size_fits(struct match *m, struct word name, int64_t size)
{
    if (name.text[0] >= '0' && name.text[0] <= '9')
        return size == atoll(name.text);
    for (int k = 0; k < m->size_count; k++)
        if (word_equal(m->sizes[k].name, name))
            return m->sizes[k].size == size;
    if (m->size_count < MOST_SIZES) {
        m->sizes[m->size_count].name = name;
        m->sizes[m->size_count++].size = size;
    }
    return true;
}

/* `index`: of the view in its list. */
static bool shape_fits(struct match *m, struct word shape, const ctrt_view *view, int64_t index)
{
    if (word_is(shape, "*"))
        return shape_equal(view->shape, view->ndim, m->shared[index]->shape, m->shared[index]->ndim);
    if (word_is(shape, "/")) {
        const ctrt_view *x = m->shared[0];
        const uint32_t dims = ((const ctrt_reduce_attributes *)m->call->attributes)->dims;
        bool fits = view->ndim == x->ndim;
        for (int d = 0; d < x->ndim && fits; d++)
            fits = view->shape[d] == (dims >> d & 1 ? 1 : x->shape[d]);
        return fits && dims >> x->ndim == 0;
    }
    const char *at = shape.text;
    int ndim = 0;
    for (bool more = shape.length > 0; more; ndim++) {
        struct word name = read_word(&at, ",]");
        more = *at++ == ',';
        if (ndim >= view->ndim || !size_fits(m, name, view->shape[ndim]))
            return false;
    }
    return ndim == view->ndim;
}

static bool contract_layout_fits(const struct match *m, const struct contract_entry *e, const ctrt_view *view)
{
    const uint32_t flags = m->call->kernel->flags;
    if (view->flags & CTRT_VIEW_CONTIGUOUS)
        return true;
    const int last = view->ndim - 1;
    switch (m->contract->layout) {
    case STRIDED:  return flags & CTRT_KERNEL_STRIDED;
    case IMAGES:   return (flags & CTRT_KERNEL_STRIDED)
                          || ((flags & CTRT_KERNEL_CHANNELS_LAST) && (view->flags & CTRT_VIEW_CHANNELS_LAST));
    case MATRICES: return (flags & CTRT_KERNEL_STRIDED) && !e->output
                          && (view->strides[last] == 1 || view->strides[last - 1] == 1);
    case VECTORS:  return (flags & CTRT_KERNEL_STRIDED) && view->strides[last] == 1;
    default:       return false;
    }
}

static ctrt_status contract_refuse(const struct match *m, const struct contract_entry *e, const ctrt_view *view,
                                   const char *what)
{
    char shape[SHAPE_TEXT_BYTES], strides[SHAPE_TEXT_BYTES];
    return ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: %s %.*s: %s: %s%s, strides %s; the contract is %s",
                     op_table[m->op].name, e->output ? "output" : "input", e->all.length, e->all.text, what,
                     view ? ctrt_dtype_name(view->dtype) : "NULL",
                     view ? shape_text(shape, view->shape, view->ndim) : "",
                     view ? shape_text(strides, view->strides, view->ndim) : "none", m->contract->operands);
}

static ctrt_status contract_check_view(struct match *m, const struct contract_entry *e, const ctrt_view *const *views,
                                       int64_t index)
{
    const ctrt_view *view = views[index];
    if (view == NULL)
        return e->nullable ? CTRT_OK : contract_refuse(m, e, view, "the view is missing");
    if (e->dtype.length == 0 && m->key == 0) {
        m->key = (ctrt_dtype)view->dtype;
        if (!key_fits(m))
            return contract_refuse(m, e, view, "the kernel is not for this key dtype");
    }
    if (e->dtype.length > 0 ? !dtype_fits(m, e->dtype, (ctrt_dtype)view->dtype) : view->dtype != (uint8_t)m->key)
        return contract_refuse(m, e, view, "wrong dtype");
    if ((view->flags & CTRT_VIEW_HOST_SCALAR) && m->contract->layout == STRIDED && !e->output)
        return CTRT_OK;
    if (word_is(e->shape, "*") && m->shared == NULL)
        m->shared = views;
    if (!shape_fits(m, e->shape, view, index))
        return contract_refuse(m, e, view, "wrong shape");
    if (!contract_layout_fits(m, e, view))
        return contract_refuse(m, e, view, "wrong layout");
    return CTRT_OK;
}

/* Checks an output that is the same tensor as the input `was`. It is another view if dispatch has replaced it. */
static ctrt_status check_same(const struct match *m, const struct contract_entry *e, const ctrt_view *view,
                              const ctrt_view *was)
{
    if (view == was || (view != NULL && was != NULL && view->dtype == was->dtype
                        && shape_equal(view->shape, view->ndim, was->shape, was->ndim)))
        return CTRT_OK;
    return contract_refuse(m, e, view, "not like the input");
}

static ctrt_status check_entry(struct match *m, const struct contract_entry *e, int *next)
{
    const ctrt_view *const *views = (e->output ? m->call->outputs : m->call->inputs) + *next;
    const ctrt_view *const *was = NULL;
    const int64_t count = e->list ? m->tensors : 1;
    for (int k = 0; k < m->input_count && e->same; k++)
        if (word_equal(m->inputs[k].name, e->name))
            was = m->inputs[k].views;
    if (e->same && was == NULL)
        return contract_refuse(m, e, NULL, "no such input");
    for (int64_t i = 0; i < count; i++)
        CTRT_TRY(e->same ? check_same(m, e, views[i], was[i]) : contract_check_view(m, e, views, i));
    if (!e->output && m->input_count < MOST_ENTRIES) {
        m->inputs[m->input_count].name = e->name;
        m->inputs[m->input_count++].views = views;
    }
    *next += (int)count;
    return CTRT_OK;
}

static ctrt_status contract_check_operands(struct match *m)
{
    struct reader r = { .at = m->contract->operands };
    int next[2] = { 0, 0 };
    for (struct contract_entry e; read_entry(&e, &r, m->contract->operands);)
        if (!skipped(m, &e))
            CTRT_TRY(check_entry(m, &e, &next[e.output]));
    for (uint32_t i = 0; i < m->call->n_inputs && m->call->n_outputs > 0; i++)
        if (m->call->inputs[i] != NULL && m->call->inputs[i] == m->call->outputs[0]
            && !(m->call->kernel->flags & CTRT_KERNEL_INPLACE))
            return ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: output 0 is input %u, but the kernel does not have "
                             "CTRT_KERNEL_INPLACE", op_table[m->op].name, i);
    return CTRT_OK;
}

void contract_log(const ctrt_kernel *kernel, ctrt_dtype key, const char *what)
{
    log_message(CTRT_LOG_DEBUG, "kernels", "%s %s: kernel %p of score %d %s", kernel->op, ctrt_dtype_name(key),
                (const void *)kernel, (int)kernel->score, what);
}

ctrt_status contract_check(const ctrt_call *call)
{
    const int op = op_by_name(call->kernel->op);
    const struct contract *contract = contracts[op];
    CTRT_TRY(check_attributes(call->kernel->op, contract->attributes, call->attributes));
    bool possible = false;
    ctrt_status status = CTRT_OK;
    for (unsigned present = 0; present < 8; present += 2) {         /* at most two parentheses */
        struct match m = { .call = call, .contract = contract, .op = (enum op)op, .present = present };
        if (!counts_fit(&m))
            continue;
        possible = true;
        status = contract_check_operands(&m);
        if (status == CTRT_OK) {
            contract_log(call->kernel, m.key, "runs");
            return CTRT_OK;
        }
    }
    return possible ? status
                    : ctrt_fail(CTRT_ERR_INTERNAL, "contract of %s: %u inputs and %u outputs; the contract is %s",
                                call->kernel->op, call->n_inputs, call->n_outputs, contract->operands);
}
