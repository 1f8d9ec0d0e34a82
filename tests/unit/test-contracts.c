/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of kernels that do not have the form of ctrt/contracts.def are found, and the rows name all members of the
 * attribute structs. */
#include <stddef.h>

#include "ops/contract.h"
#include "tap.h"
#include "tensor/shape.h"

enum { MOST = 8 };

/* One operand, "f32[2,3]"; "-": NULL; "=0": the view of input 0; a "'" at the end: transposed. */
static const ctrt_view *view_of(ctrt_view *view, const char *text, const ctrt_view *const *inputs)
{
    char name[8];
    int used = 0;
    *view = (ctrt_view){ .data = view };
    if (text[0] == '-')
        return NULL;
    if (text[0] == '=')
        return inputs[text[1] - '0'];
    REQUIRE(sscanf(text, "%7[a-z0-9]%n", name, &used) == 1, "%s is no operand", text);
    for (int dtype = 1; ctrt_dtype_name((ctrt_dtype)dtype)[0] != '?'; dtype++)
        if (strcmp(ctrt_dtype_name((ctrt_dtype)dtype), name) == 0)
            view->dtype = (uint8_t)dtype;
    for (const char *at = text + used + 1; *at != ']' && *at != '\0'; at += strspn(at, ","))
        view->shape[view->ndim++] = strtoll(at, (char **)&at, 10);
    shape_strides(view->strides, view->shape, view->ndim);
    if (strchr(text, '\'') != NULL)
        for (int d = 0; d < view->ndim; d++)
            view->strides[d] = view->ndim == 1 ? 2 : view->strides[view->ndim - 1] << d;
    view_refresh(view);
    return view;
}

static const ctrt_conv_attributes conv = { sizeof conv, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 },
                                  still = { sizeof still, { 1, 0 }, { 0, 0 }, { 1, 1 }, 1 },
                                  part = { sizeof part - 8, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 };
static const ctrt_reduce_attributes rows = { sizeof rows, 2 }, beyond = { sizeof beyond, 4 };
static const ctrt_sgd_attributes sgd = { .size = sizeof sgd };
static const ctrt_norm_attributes norm = { .size = sizeof norm };

/* `message`: part of the error; NULL: the call has the form of the contract. */
static const struct call {
    const char *op, *in[MOST], *out[MOST];
    const void *attributes;
    uint32_t flags;
    const char *message;
} calls[] = {
    { "add", { "f32[6]", "f32[6]" }, { "f32[6]" }, NULL, 0, NULL },
    { "add", { "f32[6]", "f32[6]" }, { "f32[5]" }, NULL, 0, "output out result[*]: wrong shape" },
    { "add", { "f32[6]", "f64[6]" }, { "f32[6]" }, NULL, 0, "input b[*]: wrong dtype" },
    { "add", { "f32[6]", "f32[6]'" }, { "f32[6]" }, NULL, CTRT_KERNEL_STRIDED, NULL },
    { "add", { "f32[6]", "f32[6]'" }, { "f32[6]" }, NULL, 0, "input b[*]: wrong layout" },
    { "add", { "f32[6]", "f32[6]" }, { "=0" }, NULL, CTRT_KERNEL_INPLACE, NULL },
    { "add", { "f32[6]", "f32[6]" }, { "=1" }, NULL, 0, "output 0 is input 1" },
    { "add", { "f32[6]" }, { "f32[6]" }, NULL, 0, "1 inputs and 1 outputs" },
    { "add", { "f32[6]", "-" }, { "f32[6]" }, NULL, 0, "input b[*]: the view is missing" },
    { "add", { "f32[6]", "f32[6]" }, { "f32[6]" }, &rows, 0, "the op has none" },
    { "lt", { "i32[6]", "i32[6]" }, { "bool[6]" }, NULL, 0, NULL },
    { "lt", { "i32[6]", "i32[6]" }, { "i32[6]" }, NULL, 0, "output out result[*]: wrong dtype" },
    { "sub", { "bool[6]", "bool[6]" }, { "bool[6]" }, NULL, 0, "not for this key dtype" },
    { "exp", { "i32[6]" }, { "i32[6]" }, NULL, 0, "not for this key dtype" },
    { "where", { "bool[6]", "i8[6]", "i8[6]" }, { "i8[6]" }, NULL, 0, NULL },
    { "where", { "i8[6]", "i8[6]", "i8[6]" }, { "i8[6]" }, NULL, 0, "input condition bool[*]: wrong dtype" },
    { "sum", { "i8[2,3]" }, { "i64[2,1]" }, &rows, 0, NULL },
    { "sum", { "i8[2,3]" }, { "i64[1,3]" }, &rows, 0, "output out result[/]: wrong shape" },
    { "sum", { "i8[2,3]" }, { "i64[2,1]" }, NULL, 0, "expected ctrt_reduce_attributes" },
    { "argmax", { "f32[2,3]" }, { "i64[2,3]" }, &beyond, 0, "output out result[/]: wrong shape" },
    { "matmul", { "f32[1,2,3]", "f32[1,3,4]'" }, { "f32[1,2,4]" }, NULL, CTRT_KERNEL_STRIDED, "wrong layout" },
    { "matmul", { "f32[7,2,3]", "f32[7,3,4]" }, { "f32[7,2,4]" }, NULL, 0, NULL },
    { "matmul", { "f32[7,2,3]", "f32[7,4,3]" }, { "f32[7,2,4]" }, NULL, 0, "input b[B,K,N]: wrong shape" },
    { "linear", { "f32[2,3]", "f32[4,3]", "-" }, { "f32[2,4]" }, NULL, 0, NULL },
    { "linear", { "f32[2,3]", "f32[4,3]", "f32[4,1]" }, { "f32[2,4]" }, NULL, 0, "input bias[N]?: wrong shape" },
    { "linear", { "f32[2,3]", "f32[4,3]", "f32[]" }, { "f32[2,4]" }, NULL, 0, "input bias[N]?: wrong shape" },
    { "conv2d", { "f32[1,2,5,5]", "f32[4,2,3,3]", "-" }, { "f32[1,4,3,3]" }, &conv, 0, NULL },
    { "conv2d", { "f32[1,2,5,5]", "f32[4,2,3,3]", "-" }, { "f32[1,4,3,3]" }, &still, 0, "stride is 0, expected 1 to" },
    { "conv2d", { "f32[1,2,5,5]", "f32[4,2,3,3]", "-" }, { "f32[1,4,3,3]" }, &part, 0, "conv_attributes of" },
    { "cross_entropy", { "f16[2,3]", "i64[2]", "-" }, { "f32[2]", "f32[2,3]" }, NULL, 0, "cross_entropy_attributes" },
    { "softmax", { "f32[2,3,4]" }, { "f32[2,3,4]" }, NULL, 0, NULL },
    { "softmax", { "f32[2,3,4]'" }, { "f32[2,3,4]" }, NULL, CTRT_KERNEL_STRIDED, "wrong layout" },
    { "layer_norm", { "bf16[2,3]", "bf16[3]", "-" }, { "bf16[2,3]", "f32[2]", "f32[2]" }, &norm, 0, NULL },
    { "layer_norm", { "bf16[2,3]", "f32[3]", "-" }, { "bf16[2,3]", "f32[2]", "f32[2]" }, &norm, 0, "weight[N]?" },
    { "layer_norm", { "f64[2,3]", "f64[3]", "-" }, { "f64[2,3]", "f32[2]", "f64[2]" }, &norm, 0, "mean wide[M]" },
    { "batch_norm", { "f16[2,3,4]", "f32[3]", "f16[3]", "-", "-" }, { "f16[2,3,4]", "f32[3]", "f32[3]" }, &norm, 0,
      NULL },
    { "batch_norm", { "f16[2,3,4]", "f64[3]", "-", "-", "-" }, { "f16[2,3,4]", "f32[3]", "f32[3]" }, &norm, 0,
      "input weight key|wide[C]?: wrong dtype" },
    { "batch_norm", { "f32[2,3,4]", "-", "-", "f32[3]", "f32[3]" },
      { "f32[2,3,4]", "f32[3]", "f32[3]", "=3", "=4" }, &norm, 0, NULL },
    { "batch_norm", { "f32[2,3,4]", "-", "-", "f32[3]", "f32[3]" },
      { "f32[2,3,4]", "f32[3]", "f32[3]", "=3", "f32[2]" }, &norm, 0, "output =running_var: not like the input" },
    { "sgd_step", { "f32[2]", "f32[3]", "f32[2]", "f32[3]" }, { "=0", "=1" }, &sgd, CTRT_KERNEL_INPLACE, NULL },
    { "sgd_step", { "f32[2]", "f32[3]", "f32[2]", "f32[4]" }, { "=0", "=1" }, &sgd, CTRT_KERNEL_INPLACE,
      "input g[*]n: wrong shape" },
    { "sgd_step", { "f16[2]", "f16[2]", "f32[2]" }, { "=0", "=2" }, &sgd, CTRT_KERNEL_INPLACE, NULL },
    { "sgd_step", { "f16[2]", "f16[2]", "f16[2]" }, { "=0", "=2" }, &sgd, CTRT_KERNEL_INPLACE, "buf wide[*]n" },
    { "sgd_step", { "f16[2]", "f16[2]", "f32[2]" }, { "=0" }, &sgd, CTRT_KERNEL_INPLACE, "3 inputs and 1 outputs" },
    { "sgd_step", { "f32[2]", "f32[2]", "f32[]", "f64[]" }, { "=0" }, &sgd, CTRT_KERNEL_INPLACE, NULL },
    { "amp_unscale", { "f32[]", "f16[2]", "f16[3]", "f32[]" }, { "=0", "=1", "=2" }, NULL, CTRT_KERNEL_INPLACE, NULL },
};

static ctrt_status check_call(const struct call *c)
{
    ctrt_view views[2 * MOST];
    const ctrt_view *in[MOST], *out[MOST];
    const ctrt_kernel kernel = { .size = sizeof kernel, .op = c->op, .dtypes = ~(uint64_t)0, .flags = c->flags };
    ctrt_call call = { .size = sizeof call, .inputs = in, .outputs = out, .attributes = c->attributes,
                       .kernel = &kernel };
    for (; call.n_inputs < MOST && c->in[call.n_inputs] != NULL; call.n_inputs++)
        in[call.n_inputs] = view_of(&views[call.n_inputs], c->in[call.n_inputs], in);
    for (; call.n_outputs < MOST && c->out[call.n_outputs] != NULL; call.n_outputs++)
        out[call.n_outputs] = view_of(&views[MOST + call.n_outputs], c->out[call.n_outputs], in);
    return contract_check(&call);
}

TEST(form, "calls with another form than the contract are found")
{
    EACH(c, calls) {
        const ctrt_status status = check_call(c);
        if (c->message == NULL)
            CHECK(status == CTRT_OK, "%s: %s", c->op, ctrt_error_message());
        else
            CHECK_FAILS(status, CTRT_ERR_INTERNAL, c->message);
    }
}

/* A kernel for f32 only, called with another key. */
TEST(keys, "the key is a dtype of the kernel")
{
    const ctrt_kernel kernel = { .size = sizeof kernel, .op = "neg", .dtypes = CTRT_DTYPE_BIT(CTRT_F32) };
    ctrt_view views[2];
    const ctrt_view *in = view_of(&views[0], "f64[2]", NULL), *out = view_of(&views[1], "f64[2]", NULL);
    const ctrt_call call = { .size = sizeof call, .inputs = &in, .outputs = &out, .n_inputs = 1, .n_outputs = 1,
                             .kernel = &kernel };
    CHECK_FAILS(contract_check(&call), CTRT_ERR_INTERNAL, "not for this key dtype");
}

static const struct member {
    const char *structure, *name;
    size_t begin, end, size;
} members[] = {
#define CTRT_ATTRIBUTE(s, member, kind, count, least, most, meaning)                                           \
    { #s, #member, offsetof(ctrt_##s##_attributes, member),                                                    \
      offsetof(ctrt_##s##_attributes, member) + sizeof((ctrt_##s##_attributes *)0)->member,                    \
      sizeof(ctrt_##s##_attributes) },
#include "ctrt/contracts.def"
};

TEST(complete, "the rows name every member of the attribute structs, in their order")
{
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        const struct member *m = &members[i];
        const bool first = i == 0 || strcmp(m[-1].structure, m->structure) != 0;
        const bool last = i + 1 == COUNT_OF(members) || strcmp(m[1].structure, m->structure) != 0;
        const size_t before = first ? sizeof(size_t) : m[-1].end;
        CHECK(m->begin >= before && m->begin - before < 8, "a member of ctrt_%s_attributes before %s has no row",
              m->structure, m->name);
        CHECK(!last || m->size - m->end < 8, "a member of ctrt_%s_attributes after %s has no row", m->structure,
              m->name);
    }
}

TESTS_MAIN
