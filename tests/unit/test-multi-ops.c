/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the ops of each family on sim-multi:0, for every combination of the layouts of their inputs and for 1 to 4
 * members, against the same ops on one simulated device: results, gradients, and that the inputs keep their values. */
#include "multi_check.h"
#include "run.h"

#define INPUTS 3

/* One op on inputs of f32. `indices`: number of trailing inputs that are i64 indices below `below`. */
static const struct op_case {
    const char *name;
    int count, indices;
    int64_t below;
    struct { int ndim; int64_t shape[4]; } in[INPUTS];
    ctrt_status (*run)(ctrt_tensor **out, ctrt_tensor *const *in);
} cases[];

#define RUN(name) static ctrt_status run_##name(ctrt_tensor **out, ctrt_tensor *const *in)

RUN(add) { return ctrt_add(out, in[0], in[1]); }
RUN(sub) { return ctrt_sub(out, in[0], in[1]); }
RUN(mul) { return ctrt_mul(out, in[0], in[1]); }
RUN(tanh) { return ctrt_tanh(out, in[0]); }
RUN(scale) { return ctrt_mul_scalar(out, in[0], ctrt_float(0.5)); }
RUN(shift) { return ctrt_add_scalar(out, in[0], ctrt_float(2)); }
RUN(gelu) { return ctrt_gelu(out, in[0], false); }
RUN(sum_first) { return ctrt_sum_dims(out, in[0], CTRT_DIMS(0), false); }
RUN(sum_last) { return ctrt_sum_dims(out, in[0], CTRT_DIMS(-1), true); }
RUN(sum_all) { return ctrt_sum(out, in[0], CTRT_ALL_DIMS); }
RUN(mean_first) { return ctrt_mean_dims(out, in[0], CTRT_DIMS(0), false); }
RUN(mean_all) { return ctrt_mean(out, in[0], CTRT_ALL_DIMS); }
RUN(amax) { return ctrt_amax(out, in[0], CTRT_DIMS(1), false); }
RUN(var) { return ctrt_var(out, in[0], CTRT_DIMS(0), 1, false); }
RUN(matmul) { return ctrt_matmul(out, in[0], in[1]); }
RUN(linear) { return ctrt_linear(out, in[0], in[1], in[2]); }
RUN(softmax) { return ctrt_softmax(out, in[0], -1); }
RUN(log_softmax) { return ctrt_log_softmax(out, in[0], 1); }
RUN(layer_norm) { return ctrt_layer_norm(out, in[0], CTRT_SHAPE(6), in[1], in[2], 1e-5); }
RUN(batch_norm) { return ctrt_batch_norm(out, in[0], in[1], in[2], NULL, NULL, true, 0.1, 1e-5); }
RUN(cross_entropy) { return ctrt_cross_entropy(out, in[0], in[1], NULL); }
RUN(index_select) { return ctrt_index_select(out, in[0], 1, in[1]); }
RUN(embedding) { return ctrt_embedding(out, in[0], in[1], -1); }
RUN(gather) { return ctrt_gather(out, in[0], 1, in[1]); }
RUN(conv2d) { return ctrt_conv2d(out, in[0], in[1], in[2], NULL); }
RUN(max_pool2d) { return ctrt_max_pool2d(out, NULL, in[0], &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })); }
RUN(tril) { return ctrt_tril(out, in[0], 0); }

RUN(attention)
{
    return ctrt_scaled_dot_product_attention(out, in[0], in[1], in[2], NULL, &CTRT_WITH(ctrt_attention_options,
                                                                                        .causal = true));
}

RUN(transposed)
{
    CTRT_AUTO(tensor) t = NULL;
    CTRT_TRY(ctrt_transpose(&t, in[0], 0, 1));
    CTRT_TRY(ctrt_contiguous(&t, t, CTRT_CONTIGUOUS_FORMAT));
    return ctrt_mul(out, t, t);
}

RUN(sliced)
{
    CTRT_AUTO(tensor) part = NULL;
    CTRT_TRY(ctrt_slice(&part, in[0], 0, 1, 5, 2));
    return ctrt_exp(out, part);
}

RUN(reshaped)
{
    CTRT_AUTO(tensor) y = NULL;
    CTRT_TRY(ctrt_reshape(&y, in[0], CTRT_SHAPE(4, 12)));
    return ctrt_softmax(out, y, -1);
}

RUN(cat)
{
    return ctrt_cat(out, in, 2, 0);
}

RUN(in_place)
{
    CTRT_AUTO(tensor) y = NULL;
    CTRT_TRY(ctrt_clone(&y, in[0]));
    CTRT_TRY(ctrt_add_(y, in[1]));
    CTRT_TRY(ctrt_mul_scalar_(y, ctrt_float(3)));
    ctrt_tensor_assign(out, y);
    return CTRT_OK;
}

RUN(part_in_place)
{
    CTRT_AUTO(tensor) y = NULL, part = NULL;
    CTRT_TRY(ctrt_clone(&y, in[0]));
    CTRT_TRY(ctrt_narrow(&part, y, 0, 1, 2));
    CTRT_TRY(ctrt_mul_scalar_(part, ctrt_float(3)));
    ctrt_tensor_assign(out, y);
    return CTRT_OK;
}

RUN(half)
{
    CTRT_AUTO(tensor) y = NULL;
    CTRT_TRY(ctrt_to_dtype(&y, in[0], CTRT_BF16));
    CTRT_TRY(ctrt_mean_dims(&y, y, CTRT_DIMS(0), false));
    return ctrt_to_dtype(out, y, CTRT_F32);
}

RUN(dropout)
{
    CTRT_TRY(ctrt_generator_set(ctrt_tensor_device(in[0]), 5, 3));
    return ctrt_dropout(out, in[0], 0.5, true);
}

static const struct op_case cases[] = {
    { "add", 2, 0, 0, { { 2, { 6, 5 } }, { 2, { 6, 5 } } }, run_add },
    { "add a row", 2, 0, 0, { { 2, { 6, 5 } }, { 1, { 5 } } }, run_add },
    { "sub a column", 2, 0, 0, { { 2, { 6, 5 } }, { 2, { 6, 1 } } }, run_sub },
    { "mul", 2, 0, 0, { { 3, { 2, 3, 4 } }, { 2, { 3, 4 } } }, run_mul },
    { "tanh", 1, 0, 0, { { 3, { 4, 3, 5 } } }, run_tanh },
    { "mul by a number", 1, 0, 0, { { 2, { 7, 3 } } }, run_scale },
    { "add a number", 1, 0, 0, { { 2, { 7, 3 } } }, run_shift },
    { "gelu", 1, 0, 0, { { 2, { 8, 4 } } }, run_gelu },
    { "sum of rows", 1, 0, 0, { { 3, { 6, 4, 2 } } }, run_sum_first },
    { "sum of columns", 1, 0, 0, { { 3, { 6, 4, 2 } } }, run_sum_last },
    { "sum", 1, 0, 0, { { 2, { 5, 3 } } }, run_sum_all },
    { "mean of rows", 1, 0, 0, { { 2, { 5, 3 } } }, run_mean_first },
    { "mean", 1, 0, 0, { { 2, { 6, 3 } } }, run_mean_all },
    { "amax", 1, 0, 0, { { 2, { 4, 6 } } }, run_amax },
    { "var", 1, 0, 0, { { 2, { 8, 3 } } }, run_var },
    { "matmul", 2, 0, 0, { { 2, { 6, 8 } }, { 2, { 8, 4 } } }, run_matmul },
    { "batched matmul", 2, 0, 0, { { 3, { 4, 3, 2 } }, { 3, { 4, 2, 5 } } }, run_matmul },
    { "matmul of a batch and a matrix", 2, 0, 0, { { 3, { 4, 3, 8 } }, { 2, { 8, 2 } } }, run_matmul },
    { "linear", 3, 0, 0, { { 2, { 6, 8 } }, { 2, { 4, 8 } }, { 1, { 4 } } }, run_linear },
    { "linear of a batch", 3, 0, 0, { { 3, { 2, 3, 8 } }, { 2, { 12, 8 } }, { 1, { 12 } } }, run_linear },
    { "softmax", 1, 0, 0, { { 3, { 4, 3, 5 } } }, run_softmax },
    { "log_softmax", 1, 0, 0, { { 3, { 4, 3, 5 } } }, run_log_softmax },
    { "layer_norm", 3, 0, 0, { { 3, { 4, 2, 6 } }, { 1, { 6 } }, { 1, { 6 } } }, run_layer_norm },
    { "batch_norm", 3, 0, 0, { { 4, { 3, 4, 2, 2 } }, { 1, { 4 } }, { 1, { 4 } } }, run_batch_norm },
    { "cross_entropy", 2, 1, 5, { { 2, { 8, 5 } }, { 1, { 8 } } }, run_cross_entropy },
    { "index_select", 2, 1, 4, { { 3, { 4, 4, 3 } }, { 1, { 6 } } }, run_index_select },
    { "embedding", 2, 1, 7, { { 2, { 7, 4 } }, { 2, { 4, 3 } } }, run_embedding },
    { "gather", 2, 1, 4, { { 2, { 5, 4 } }, { 2, { 5, 3 } } }, run_gather },
    { "conv2d", 3, 0, 0, { { 4, { 4, 2, 5, 5 } }, { 4, { 4, 2, 3, 3 } }, { 1, { 4 } } }, run_conv2d },
    { "max_pool2d", 1, 0, 0, { { 4, { 4, 3, 4, 4 } } }, run_max_pool2d },
    { "tril", 1, 0, 0, { { 3, { 4, 3, 3 } } }, run_tril },
    { "attention", 3, 0, 0, { { 4, { 2, 4, 3, 4 } }, { 4, { 2, 4, 3, 4 } }, { 4, { 2, 4, 3, 4 } } }, run_attention },
    { "copy of a transpose", 1, 0, 0, { { 3, { 4, 6, 2 } } }, run_transposed },
    { "a slice with a step", 1, 0, 0, { { 2, { 6, 4 } } }, run_sliced },
    { "reshape", 1, 0, 0, { { 3, { 2, 8, 3 } } }, run_reshaped },
    { "cat", 2, 0, 0, { { 2, { 4, 3 } }, { 2, { 3, 3 } } }, run_cat },
    { "in place", 2, 0, 0, { { 2, { 4, 6 } }, { 2, { 4, 6 } } }, run_in_place },
    { "part in place", 1, 0, 0, { { 2, { 4, 6 } } }, run_part_in_place },
    { "casts", 1, 0, 0, { { 2, { 8, 3 } } }, run_half },
    { "dropout", 1, 0, 0, { { 2, { 8, 6 } } }, run_dropout },
};

/* ---- inputs in a layout ---- */

static ctrt_tensor *index_input(const struct op_case *c, int i, ctrt_device *device)
{
    ctrt_tensor *x = NULL;
    int64_t numel = 1, values[64];
    for (int d = 0; d < c->in[i].ndim; d++)
        numel *= c->in[i].shape[d];
    for (int64_t k = 0; k < numel; k++)
        values[k] = (k * 5 + 1) % c->below;
    CHECK_OK(ctrt_from_data(&x, values, numel, ctrt_ints_of(c->in[i].shape, c->in[i].ndim), CTRT_I64, device));
    return x;
}

/* Creates a partial tensor, by a sum over a sharded dimension of four addends. */
static ctrt_tensor *partial_input(ctrt_tensor *values)
{
    ctrt_tensor *sum = NULL;
    CTRT_AUTO(tensor) half = OP(mul_scalar, values, ctrt_float(0.5));
    CTRT_AUTO(tensor) stacked = NULL;
    ctrt_tensor *const addends[4] = { half, values, half, values };
    CTRT_AUTO(tensor) minus = OP(neg, values);
    ctrt_tensor *const all[4] = { addends[0], addends[1], addends[2], minus };
    CHECK_OK(ctrt_stack(&stacked, all, 4, 0));
    CHECK_OK(ctrt_tensor_distribute(stacked, SHARDED(0)));
    CHECK_OK(ctrt_sum_dims(&sum, stacked, CTRT_DIMS(0), false));
    CHECK_EQ(multi_layout(sum).kind, CTRT_LAYOUT_PARTIAL);
    return sum;
}

/* Layout number k of an input: replicated, sharded in each dimension, partial. */
static ctrt_tensor *input(const struct op_case *c, int i, int k, ctrt_device *device, int members)
{
    const ctrt_ints shape = ctrt_ints_of(c->in[i].shape, c->in[i].ndim);
    const bool index = i >= c->count - c->indices;
    ctrt_tensor *x = index ? index_input(c, i, device) : quarters(shape, i + 1, device);
    if (k > 0 && k <= shape.count)
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(k - 1)));
    if (k > shape.count && members > 1) {
        ctrt_tensor *sum = partial_input(x);
        ctrt_tensor_release(&x);
        x = sum;
    }
    if (!index)
        CHECK_OK(ctrt_tensor_require_grad(x, true));
    return x;
}

static int layouts_of(const struct op_case *c, int i)
{
    return i >= c->count ? 1 : i >= c->count - c->indices ? 1 + c->in[i].ndim : 2 + c->in[i].ndim;
}

/* Runs the op and the backward pass of its result times numbers. */
static void run_case(ctrt_tensor **y, ctrt_tensor **in, const struct op_case *c, ctrt_device *device)
{
    CTRT_AUTO(tensor) weights = NULL, loss = NULL;
    if (!CHECK_OK(c->run(y, in)))
        return;
    weights = quarters(ctrt_ints_of(ctrt_tensor_shape(*y), ctrt_tensor_ndim(*y)), 9, device);
    CHECK_OK(ctrt_mul(&loss, *y, weights));
    CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
}

static void compare(const char *what, ctrt_tensor *got, ctrt_tensor *want, double tolerance)
{
    check_same(what, __LINE__, got, want, tolerance);
}

static void check_combination(const struct op_case *c, const int *layouts, int members, ctrt_tensor *want,
                              ctrt_tensor *const *want_in)
{
    ctrt_tensor *in[INPUTS] = { NULL };
    CTRT_AUTO(tensor) y = NULL;
    char what[256];
    size_t used = (size_t)snprintf(what, sizeof what, "%s, %d members:", c->name, members);
    for (int i = 0; i < c->count; i++) {
        in[i] = input(c, i, layouts[i], multi, members);
        used += (size_t)snprintf(what + used, sizeof what - used, " %s", layout_text(multi_layout(in[i])));
    }
    const double tolerance = strcmp(c->name, "casts") == 0 ? 2e-2 : 2e-5;
    run_case(&y, in, c, multi);
    compare(what, y, want, tolerance);
    for (int i = 0; i < c->count; i++) {
        compare(what, in[i], want_in[i], 0);
        if (i < c->count - c->indices)
            compare(what, ctrt_tensor_grad(in[i]), ctrt_tensor_grad(want_in[i]), tolerance);
        ctrt_tensor_release(&in[i]);
    }
}

static void check_case(const struct op_case *c, int members)
{
    ctrt_tensor *want_in[INPUTS] = { NULL };
    CTRT_AUTO(tensor) want = NULL;
    int layouts[INPUTS] = { 0 };
    for (int i = 0; i < c->count; i++)
        want_in[i] = input(c, i, 0, one, 1);
    run_case(&want, want_in, c, one);
    for (layouts[0] = 0; layouts[0] < layouts_of(c, 0); layouts[0]++)
        for (layouts[1] = 0; layouts[1] < layouts_of(c, 1); layouts[1]++)
            for (layouts[2] = 0; layouts[2] < layouts_of(c, 2); layouts[2]++)
                check_combination(c, layouts, members, want, want_in);
    for (int i = 0; i < c->count; i++)
        ctrt_tensor_release(&want_in[i]);
}

/* ---- random views ---- */

static uint64_t random_state;

static int pick(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

/* Applies the same random view to both tensors. */
static void view_both(ctrt_tensor **a, ctrt_tensor **b)
{
    const int ndim = ctrt_tensor_ndim(*a), kind = pick(6), d = pick(ndim), e = pick(ndim);
    const int64_t size = ctrt_tensor_size(*a, d), start = pick((int)size), length = 1 + pick((int)(size - start));
    ctrt_tensor **both[2] = { a, b };
    for (int i = 0; i < 2; i++) {
        ctrt_tensor *x = *both[i];
        ctrt_status status = CTRT_OK;
        switch (kind) {
        case 0: status = ctrt_transpose(both[i], x, d, e); break;
        case 1: status = ctrt_narrow(both[i], x, d, start, length); break;
        case 2: status = ctrt_slice(both[i], x, d, start, size, 1 + length % 3); break;
        case 3: status = ctrt_unsqueeze(both[i], x, d); break;
        case 4: status = ctrt_reshape(both[i], x, CTRT_SHAPE(-1)); break;
        default: status = ndim > 1 && size > 0 ? ctrt_select(both[i], x, d, start) : CTRT_OK; break;
        }
        CHECK_OK(status);
    }
}

/* Runs an op on the views, out of place or in place. */
static void use_both(ctrt_tensor **results, ctrt_tensor *const *views, ctrt_tensor *const *others)
{
    const int kind = pick(7), dim = pick(ctrt_tensor_ndim(views[0]));
    for (int i = 0; i < 2; i++) {
        ctrt_status status = CTRT_OK;
        switch (kind) {
        case 0: status = ctrt_tanh(&results[i], views[i]); break;
        case 1: status = ctrt_add(&results[i], views[i], others[i]); break;
        case 2: status = ctrt_sum_dims(&results[i], views[i], CTRT_DIMS(dim), false); break;
        case 3: status = ctrt_softmax(&results[i], views[i], dim); break;
        case 4: status = ctrt_copy_(views[i], others[i]); break;
        case 5: status = ctrt_mul_scalar_(views[i], ctrt_float(2)); break;
        default: status = ctrt_add_(views[i], others[i]); break;
        }
        CHECK_OK(status);
    }
}

/* Creates a pair of equal tensors; the one on the device with members has a random layout. */
static void random_pair(ctrt_tensor **pair, ctrt_ints shape, int seed)
{
    const int layout = pick(shape.count + 2);
    pair[0] = quarters(shape, seed, one);
    pair[1] = quarters(shape, seed, multi);
    if (layout > 0 && layout <= shape.count)
        CHECK_OK(ctrt_tensor_distribute(pair[1], SHARDED(layout - 1)));
    if (layout == shape.count + 1 && pick(2) == 0 && ctrt_tensor_numel(pair[1]) > 0) {   /* not kept by the program */
        ctrt_tensor *x = pair[1];
        CHECK_OK(ctrt_tensor_distribute(x, SHARDED(0)));
        CHECK_OK(ctrt_mul_scalar(&pair[1], x, ctrt_float(1)));
    }
}

static void random_views(int seed)
{
    random_state = (uint64_t)seed;
    const int64_t sizes[3] = { 1 + pick(9), 1 + pick(9), 1 + pick(6) };
    ctrt_tensor *bases[2], *others[2], *views[2], *results[2] = { NULL };
    char what[48];
    snprintf(what, sizeof what, "random views %d", seed);
    random_pair(bases, ctrt_ints_of(sizes, 1 + pick(3)), seed);
    for (int i = 0; i < 2; i++)
        views[i] = ctrt_tensor_retain(bases[i]);
    for (int count = pick(4); count > 0; count--)
        view_both(&views[0], &views[1]);
    random_pair(others, ctrt_ints_of(ctrt_tensor_shape(views[0]), ctrt_tensor_ndim(views[0])), seed + 1);
    use_both(results, views, others);
    compare(what, bases[1], bases[0], 1e-6);
    compare(what, views[1], views[0], 1e-6);
    compare(what, others[1], others[0], 0);
    if (results[0] != NULL)
        compare(what, results[1], results[0], 1e-6);
    for (int i = 0; i < 2; i++) {
        ctrt_tensor_release(&bases[i]);
        ctrt_tensor_release(&others[i]);
        ctrt_tensor_release(&views[i]);
        ctrt_tensor_release(&results[i]);
    }
}

TEST_MAIN
{
    static const char *const members[] = { "CTRT_SIM_MULTI=sim:1", "CTRT_SIM_MULTI=sim:3,sim:1",
                                           "CTRT_SIM_MULTI=sim:0,sim:1,sim:2", "CTRT_SIM_MULTI=" };
    for (int n = 1; n <= 4; n += SANITIZED ? 2 : 1) {
        group("%d members", n);
        IN_CHILD(FOUR_SIMS, members[n - 1]) {
            multi_open();
            EACH(c, cases)
                check_case(c, n);
            for (int seed = 1; seed <= FEWER_SANITIZED(300); seed++)
                random_views(seed);
            multi_close();
        }
    }
    return done();
}
