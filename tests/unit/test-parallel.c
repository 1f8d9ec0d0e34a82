/* SPDX-License-Identifier: Apache-2.0 */
/* Tests scatter, gather, trees, functions in parallel threads and the comparison of devices. test-replicate tests
 * modules on several devices. */
#include "parallel_check.h"

/* ---- the sizes of pieces ---- */

static void test_chunks(void)
{
    static const double three_one[] = { 3, 1 }, one_one_two[] = { 1, 1, 2 }, unequal[] = { 100, 1, 1 },
                        huge[] = { 1e308, 1e308 };
    static const struct chunk_case {
        int64_t size;
        int n;
        ctrt_chunk_rule rule;
        const double *weights;
        int count;
        int64_t want[8];
    } cases[] = {
        /* test-parallel-reference compares smaller sizes with PyTorch's. */
        { INT64_MAX, 2, CTRT_CHUNK_CEIL, NULL, 2, { INT64_MAX / 2 + 1, INT64_MAX / 2 } },
        { 5, 4, CTRT_CHUNK_BALANCED, NULL, 4, { 2, 1, 1, 1 } },
        { 10, 4, CTRT_CHUNK_BALANCED, NULL, 4, { 3, 3, 2, 2 } },
        { 2, 4, CTRT_CHUNK_BALANCED, NULL, 2, { 1, 1 } },
        { 0, 4, CTRT_CHUNK_BALANCED, NULL, 1, { 0 } },
        { 10, 2, CTRT_CHUNK_CEIL, three_one, 2, { 8, 2 } },             /* 7.5 and 2.5: the first gets the rest */
        { 10, 3, CTRT_CHUNK_CEIL, one_one_two, 3, { 3, 2, 5 } },
        { 10, 3, CTRT_CHUNK_BALANCED, unequal, 3, { 8, 1, 1 } },        /* no piece is empty */
        { 3, 3, CTRT_CHUNK_CEIL, unequal, 3, { 1, 1, 1 } },
        { 2, 3, CTRT_CHUNK_CEIL, unequal, 2, { 1, 1 } },
        { 10, 2, CTRT_CHUNK_CEIL, huge, 2, { 5, 5 } },
    };
    group("the sizes of pieces");
    for (size_t c = 0; c < COUNT(cases); c++) {
        const struct chunk_case *k = &cases[c];
        const ctrt_scatter_options options = { .size = sizeof(ctrt_scatter_options), .rule = k->rule,
                                               .weights = k->weights };
        int64_t sizes[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
        int count = -1;
        CHECK_OK(ctrt_chunk_sizes(sizes, &count, k->size, k->n, &options));
        CHECK(count == k->count, "%lld into %d: %d pieces, expected %d", (long long)k->size, k->n, count, k->count);
        for (int i = 0; i < k->n; i++)
            CHECK(sizes[i] == k->want[i], "%lld into %d: piece %d has %lld, expected %lld", (long long)k->size, k->n, i,
                  (long long)sizes[i], (long long)k->want[i]);
    }
    for (int bad = 0; bad < 5; bad++) {
        static const double weights[5] = { 0, -1, NAN, INFINITY, -0.0 };
        const double pair[2] = { 1, weights[bad] };
        int64_t sizes[2] = { 7, 7 };
        int count = 7;
        CHECK_FAILS(ctrt_chunk_sizes(sizes, &count, 9, 2, &CTRT_WITH(ctrt_scatter_options, .weights = pair)),
                    CTRT_ERR_INVALID_ARGUMENT, "weights[1]");
        CHECK_TRUE(sizes[0] == 7 && count == 7);
    }
}

/* ---- tensors ---- */

/* Scatters a tensor on `home` to the devices, gathers the pieces on the first device, and compares values and gradients
 * with those of the tensor itself. */
static void check_round_trip(ctrt_device *const *devices, int n, ctrt_device *home, int dim,
                             const ctrt_scatter_options *options)
{
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(5, 7), 0.5, home), w = ramp(CTRT_SHAPE(5, 7), 0.25, devices[0]), y = NULL;
    ctrt_tensor *pieces[MOST] = { NULL };
    int64_t sizes[MOST], start = 0;
    int count = 0, expected = 0;
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_chunk_sizes(sizes, &expected, ctrt_tensor_size(x, dim), n, options));
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, x, devices, n, dim, options));
    CHECK_EQ(count, expected);
    for (int i = 0; i < n; i++) {
        CTRT_AUTO(tensor) rows = NULL;
        CHECK_TRUE((pieces[i] != NULL) == (i < count));
        if (pieces[i] == NULL)
            continue;
        CHECK_OK(ctrt_narrow(&rows, x, dim, start, sizes[i]));
        SAME(pieces[i], rows);
        CHECK_TRUE(ctrt_tensor_device(pieces[i]) == devices[i] && ctrt_tensor_requires_grad(pieces[i]));
        start += sizes[i];
    }
    CHECK_OK(ctrt_gather_tensor(&y, pieces, count, devices[0], dim));
    CHECK_TRUE(ctrt_tensor_device(y) == devices[0]);
    SAME(y, x);
    CHECK_OK(ctrt_mul(&y, y, w));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    SAME(ctrt_tensor_grad(x), w);
    CHECK_TRUE(ctrt_tensor_grad(x) != NULL && ctrt_tensor_device(ctrt_tensor_grad(x)) == home);
    tensors_release(pieces, MOST);
}

static void test_round_trips(void)
{
    static const double weights[] = { 1, 2, 3, 4 };
    static const ctrt_scatter_options rules[] = {
        { .size = sizeof rules[0] }, { .size = sizeof rules[0], .rule = CTRT_CHUNK_BALANCED },
        { .size = sizeof rules[0], .weights = weights },
    };
    for (size_t l = 0; l < COUNT(device_lists); l++) {
        ctrt_device *devices[MOST];
        group("scatter and gather, devices: %s", device_lists[l].name);
        if (!list_devices(devices, &device_lists[l])) {
            skip_group("too few devices");
            continue;
        }
        for (size_t r = 0; r < COUNT(rules); r++)
            for (int dim = -2; dim < 2; dim++) {
                check_round_trip(devices, device_lists[l].n, cpu, dim, &rules[r]);
                check_round_trip(devices, device_lists[l].n, devices[0], dim, &rules[r]);
            }
    }
}

static void test_tensors(void)
{
    ctrt_device *const devices[] = { numbered(0), numbered(1), numbered(0) };
    ctrt_tensor *pieces[3] = { NULL }, *kept[3];
    int count = 0;

    group("a piece without gradient has the gradient zero; second derivatives");
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(5, 2), 1, devices[0]), y = NULL, first = NULL, want = NULL;
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, x, devices, 3, 0, NULL));
    CHECK_OK(ctrt_mul(&y, pieces[1], pieces[1]));
    CHECK_OK(ctrt_mul(&y, y, pieces[1]));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad(&first, y, &x, 1, NULL, false, true, false));
    VALUES_ARE(first, 0, 0, 0, 0, 75, 108, 147, 192, 0, 0);
    CHECK_OK(ctrt_sum(&y, first, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES_ARE(ctrt_tensor_grad(x), 0, 0, 0, 0, 30, 36, 42, 48, 0, 0);

    group("integers, empty tensors, and pieces in pinned memory");
    CTRT_AUTO(tensor) labels = NULL, none = NULL, pinned = NULL;
    CHECK_OK(ctrt_from_data(&labels, (const int64_t[]){ 4, 5, 6 }, 3, CTRT_SHAPE(3), CTRT_I64, cpu));
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, labels, devices, 3, 0, NULL));
    VALUES_ARE(pieces[2], 6);
    CHECK_OK(ctrt_gather_tensor(&y, pieces, 3, NULL, 0));
    SAME(y, labels);
    CHECK_TRUE(ctrt_tensor_device(y) == cpu && ctrt_tensor_dtype(y) == CTRT_I64);
    CHECK_OK(ctrt_zeros(&none, CTRT_SHAPE(0, 3), CTRT_F32, cpu));
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, none, devices, 3, 0, NULL));
    CHECK_TRUE(count == 1 && pieces[1] == NULL && pieces[2] == NULL);
    SHAPE_IS(pieces[0], 0, 3);
    CHECK_OK(ctrt_gather_tensor(&y, pieces, 1, cpu, 0));
    SHAPE_IS(y, 0, 3);
    CHECK_OK(ctrt_full(&pinned, CTRT_SHAPE(6, 2), ctrt_float(3), CTRT_F32, cpu));
    CHECK_OK(ctrt_pin_memory(&pinned, pinned, devices[0]));
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, pinned, devices, 3, 0, NULL));
    CHECK_OK(ctrt_fill_(pinned, ctrt_float(4)));                 /* after the copies, which still run */
    CHECK_OK(ctrt_gather_tensor(&y, pieces, 3, cpu, 0));
    CHECK_EQ(total(y), 36);

    group("0-dim tensors become a vector, with one warning");
    ctrt_tensor *losses[3] = { NULL };
    warnings = 0;
    ctrt_log_set_callback(count_warnings, NULL);
    CHECK_OK(ctrt_scatter_tensor(pieces, &count, x, devices, 3, 0, NULL));
    for (int i = 0; i < 3; i++)
        CHECK_OK(ctrt_sum(&losses[i], pieces[i], CTRT_ALL_DIMS));
    for (int again = 0; again < 2; again++)
        CHECK_OK(ctrt_gather_tensor(&y, losses, 3, devices[1], again - 1));
    ctrt_log_set_callback(NULL, NULL);
    CHECK_EQ(warnings, 1);
    VALUES_ARE(y, 10, 26, 19);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_square(&y, y));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES_ARE(ctrt_tensor_grad(x), 20, 20, 20, 20, 52, 52, 52, 52, 38, 38);
    tensors_release(losses, 3);

    group("errors of scatter and gather, which change no output");
    memcpy(kept, pieces, sizeof kept);
    count = 17;
    CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_scatter_tensor(pieces, &count, y, devices, 3, 0, NULL), CTRT_ERR_SHAPE, "0-dim");
    CHECK_FAILS(ctrt_scatter_tensor(pieces, &count, x, devices, 3, 2, NULL), CTRT_ERR_SHAPE, "dimension 2");
    CHECK_FAILS(ctrt_scatter_tensor(pieces, &count, x, devices, 0, 0, NULL), CTRT_ERR_INVALID_ARGUMENT, "n is 0");
    CHECK_TRUE(count == 17 && memcmp(kept, pieces, sizeof kept) == 0);
    CHECK_OK(ctrt_narrow(&y, x, 1, 0, 1));
    ctrt_tensor *const unequal[] = { x, x, y };
    CHECK_FAILS(ctrt_gather_tensor(&first, unequal, 3, NULL, 0), CTRT_ERR_SHAPE, "tensors[2]");
    CHECK_OK(ctrt_gather_tensor(&want, unequal, 3, NULL, 1));
    SHAPE_IS(want, 5, 5);
    tensors_release(pieces, 3);
}

/* ---- trees ---- */

static ctrt_tree *leaf(ctrt_tensor *tensor)
{
    ctrt_tree *tree = NULL;
    CHECK_OK(ctrt_tree_of_tensor(&tree, tensor));
    return tree;
}

/* Creates a list or, with names, a map; takes over the references to the items. */
static ctrt_tree *node(const char *const *names, ctrt_tree **items, size_t count)
{
    ctrt_tree *tree = NULL;
    if (names != NULL)
        CHECK_OK(ctrt_tree_of_map(&tree, names, items, count));
    else
        CHECK_OK(ctrt_tree_of_list(&tree, items, count));
    for (size_t i = 0; i < count; i++)
        ctrt_tree_release(&items[i]);
    return tree;
}
#define LIST(...)       node(NULL, (ctrt_tree *[]){ __VA_ARGS__ }, COUNT(((ctrt_tree *[]){ __VA_ARGS__ })))
#define MAP(a, x, b, y) node((const char *const[]){ a, b }, (ctrt_tree *[]){ x, y }, 2)

/* In a thread with a small stack, because ThreadSanitizer has a limit of 65,536 nested calls. */
static void *use_deep(void *unused)
{
    CTRT_AUTO(tensor) few = ramp(CTRT_SHAPE(2, 2), 1, cpu);
    ctrt_tree *deep = leaf(few), *pieces[1] = { NULL };
    int count = 0;
    for (int i = 0; i < 30000; i++)
        deep = LIST(deep);
    CHECK_FAILS(ctrt_scatter_tree(pieces, &count, deep, &cpu, 1, 0, NULL), CTRT_ERR_STATE, "stack");
    CHECK_FAILS(ctrt_gather_tree(pieces, &deep, 1, NULL, 0), CTRT_ERR_STATE, "stack");
    ctrt_tree_release(&deep);
    return unused;
}

static void test_depth(void)
{
    group("a tree of 30000 levels is released, and is an error otherwise");
    on_stack(512 << 10, use_deep);
}

static void test_trees(void)
{
    static int program;
    ctrt_device *const devices[] = { numbered(0), cpu, numbered(1) };
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(5, 2), 1, cpu), mask = ramp(CTRT_SHAPE(6), 1, devices[0]);
    ctrt_tree *pieces[3] = { NULL }, *pointer = NULL, *back = NULL, *other = NULL;
    int count = 0;

    group("a tree is scattered and gathered tensor by tensor");
    CHECK_OK(ctrt_tree_of_pointer(&pointer, &program));
    ctrt_tree *tree = MAP("x", leaf(x), "more", LIST(leaf(mask), ctrt_tree_retain(pointer), NULL, LIST(leaf(x))));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_scatter_tree(pieces, &count, tree, devices, 3, 0, NULL));
    REQUIRE_EQ(count, 3);
    for (int i = 0; i < 3; i++) {
        ctrt_tree *more = ctrt_tree_find(pieces[i], "more");
        CHECK_TRUE(ctrt_tree_kind_of(pieces[i]) == CTRT_TREE_MAP && ctrt_tree_count(pieces[i]) == 2);
        CHECK_STR(ctrt_tree_name(pieces[i], 0), "x");
        CHECK_TRUE(ctrt_tree_kind_of(more) == CTRT_TREE_LIST && ctrt_tree_count(more) == 4);
        CHECK_TRUE(ctrt_tree_pointer(ctrt_tree_item(more, 1)) == &program);
        CHECK_EQ(ctrt_tree_kind_of(ctrt_tree_item(more, 2)), CTRT_TREE_NOTHING);
        CHECK_TRUE(ctrt_tensor_device(ctrt_tree_tensor(ctrt_tree_item(more, 0))) == devices[i]);
    }
    VALUES_ARE(ctrt_tree_tensor(ctrt_tree_item(pieces[2], 0)), 9, 10);
    VALUES_ARE(ctrt_tree_tensor(ctrt_tree_item(ctrt_tree_find(pieces[1], "more"), 0)), 3, 4);
    CHECK_OK(ctrt_gather_tree(&back, pieces, 3, devices[2], 0));
    SAME(ctrt_tree_tensor(ctrt_tree_find(back, "x")), x);
    SAME(ctrt_tree_tensor(ctrt_tree_item(ctrt_tree_find(back, "more"), 0)), mask);
    CHECK_TRUE(ctrt_tree_pointer(ctrt_tree_item(ctrt_tree_find(back, "more"), 1)) == &program);
    CTRT_AUTO(tensor) sum = NULL;
    CHECK_OK(ctrt_sum(&sum, ctrt_tree_tensor(ctrt_tree_find(back, "x")), CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(sum));
    CHECK_EQ(total(ctrt_tensor_grad(x)), 10);

    group("trees without tensors go to all devices; nothing stays nothing; accessors of other kinds");
    CHECK_OK(ctrt_scatter_tree(pieces, &count, pointer, devices, 3, 0, NULL));
    CHECK_TRUE(count == 3 && ctrt_tree_pointer(pieces[2]) == &program);
    CHECK_OK(ctrt_scatter_tree(pieces, &count, NULL, devices, 3, 0, NULL));
    CHECK_TRUE(count == 3 && pieces[0] == NULL && pieces[2] == NULL);
    CHECK_OK(ctrt_gather_tree(&back, pieces, 3, NULL, 0));
    CHECK_TRUE(back == NULL && ctrt_tree_tensor(pointer) == NULL && ctrt_tree_item(pointer, 0) == NULL
               && ctrt_tree_pointer(tree) == NULL);
    CHECK_TRUE(ctrt_tree_item(tree, 2) == NULL && ctrt_tree_name(tree, 2) == NULL && ctrt_tree_find(tree, "y") == NULL);
    back = node((const char *const[]){ "" }, (ctrt_tree *[]){ NULL }, 0);
    CHECK_TRUE(ctrt_tree_kind_of(back) == CTRT_TREE_MAP && ctrt_tree_count(back) == 0);
    CHECK_FAILS(ctrt_tree_of_map(&back, (const char *const[]){ "b", "a", "b" }, (ctrt_tree *[]){ NULL, NULL, NULL }, 3),
                CTRT_ERR_INVALID_ARGUMENT, "\"b\"");

    group("errors name the place in the tree");
    CTRT_AUTO(tensor) few = ramp(CTRT_SHAPE(2, 2), 1, cpu), wide = ramp(CTRT_SHAPE(2, 3), 1, cpu);
    ctrt_tree *bad = LIST(leaf(x), MAP("a", NULL, "mask", leaf(few)));
    CHECK_FAILS(ctrt_scatter_tree(pieces, &count, bad, devices, 3, 0, NULL), CTRT_ERR_SHAPE, "input[1].mask");
    CHECK_TRUE(pieces[0] == NULL);
    static const char *const places[] = { "outputs[1][0] ", "outputs[1][1].a is a tensor", "outputs[1][1] is a map",
                                          "outputs[1] has 2 items", "outputs[1][1] has no \"a\"" };
    ctrt_tree *pairs[][2] = {
        { LIST(leaf(few), NULL), LIST(leaf(wide), NULL) },
        { LIST(NULL, MAP("a", NULL, "b", NULL)), LIST(NULL, MAP("b", NULL, "a", leaf(x))) },
        { LIST(NULL, LIST(NULL)), LIST(NULL, MAP("b", NULL, "a", NULL)) },
        { LIST(NULL), LIST(NULL, NULL) },
        { LIST(NULL, MAP("a", NULL, "b", NULL)), LIST(NULL, MAP("b", NULL, "c", NULL)) },
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        CHECK_FAILS(ctrt_gather_tree(&back, pairs[i], 2, NULL, 0),
                    i == 0 ? CTRT_ERR_SHAPE : CTRT_ERR_INVALID_ARGUMENT, places[i]);
        ctrt_tree_release(&pairs[i][0]);
        ctrt_tree_release(&pairs[i][1]);
    }
    pairs[0][0] = MAP("a", leaf(few), "b", NULL), pairs[0][1] = MAP("b", NULL, "a", leaf(few));
    CHECK_OK(ctrt_gather_tree(&back, pairs[0], 2, NULL, 0));     /* another order of names */
    SHAPE_IS(ctrt_tree_tensor(ctrt_tree_find(back, "a")), 4, 2);
    ctrt_tree_release(&pairs[0][0]);
    ctrt_tree_release(&pairs[0][1]);

    group("pointers that differ: the first is taken, with one warning");
    CHECK_OK(ctrt_tree_of_pointer(&other, &count));
    ctrt_log_set_callback(count_warnings, NULL);
    warnings = 0;
    for (int again = 0; again < 2; again++)
        CHECK_OK(ctrt_gather_tree(&back, (ctrt_tree *[]){ pointer, other }, 2, NULL, 0));
    ctrt_log_set_callback(NULL, NULL);
    CHECK_TRUE(warnings == 1 && ctrt_tree_pointer(back) == &program);

    ctrt_tree *const all[] = { bad, tree, back, other, pointer };
    for (size_t i = 0; i < COUNT(all); i++)
        ctrt_tree_release(&(ctrt_tree *){ all[i] });
}

/* ---- functions in parallel threads ---- */

struct program {
    ctrt_device *devices[MOST];
    pthread_barrier_t barrier;
    pthread_t threads[MOST];
    ctrt_stream *stream;
    ctrt_tensor *made[MOST];
    atomic_int calls;
    bool ends_thread;
};

static ctrt_status meet(void *user, int i)
{
    struct program *p = user;
    CTRT_AUTO(stream) stream = NULL;
    ctrt_device *current = NULL;
    pthread_barrier_wait(&p->barrier);          /* returns only if all functions run at the same time */
    p->threads[i] = pthread_self();
    CHECK_TRUE(!ctrt_grad_enabled());
    CHECK_STR(ctrt_memory_label(), "epoch 1/step");
    CHECK_OK(ctrt_device_get_current(&current, ctrt_device_type(p->devices[i])));
    CHECK_TRUE(current == p->devices[i]);
    CHECK_OK(ctrt_stream_current(&stream, p->devices[i]));
    CHECK_TRUE((stream == p->stream) == (i == 1));
    ctrt_set_grad_enabled(true);                /* of this thread only */
    CHECK_OK(ctrt_memory_label_push("own"));
    return CTRT_OK;
}

static ctrt_status fail_some(void *user, int i)
{
    struct program *p = user;
    p->calls++;
    p->threads[i] = pthread_self();
    if (p->ends_thread && i == 2)
        pthread_exit(NULL);
    return i % 2 ? ctrt_fail(CTRT_ERR_OVERFLOW, "number %d", i) : CTRT_OK;
}

static ctrt_status make_one(void *user, int i)
{
    struct program *p = user;
    CTRT_AUTO(tensor) own = NULL;
    CHECK_FAILS(ctrt_scope_end(), CTRT_ERR_STATE, "scope_begin");
    CHECK_OK(ctrt_scope_begin());
    CHECK_OK(ctrt_ones(&own, CTRT_SHAPE(3), CTRT_F32, p->devices[i]));
    CHECK_OK(ctrt_scope_end());
    CHECK_FAILS(ctrt_clone(&own, own), CTRT_ERR_STATE, "scope that has ended");
    CHECK_OK(ctrt_ones(&p->made[i], CTRT_SHAPE(3), CTRT_F32, p->devices[i]));
    return i == 0 ? ctrt_scope_export(p->made[i]) : i == 1 ? ctrt_scope_begin() : CTRT_OK;  /* 1: not ended */
}

static void test_apply(void)
{
    struct program p = { .devices = { numbered(0), numbered(1), cpu, numbered(0) } };
    pthread_barrier_init(&p.barrier, NULL, MOST);
    p.stream = new_stream(p.devices[1]);

    group("functions run at the same time, with devices, streams, grad mode and labels of the caller");
    CHECK_OK(ctrt_memory_label_push("epoch 1"));
    CHECK_OK(ctrt_memory_label_push("step"));
    CHECK_OK(ctrt_stream_push(p.stream));
    ctrt_no_grad CHECK_OK(ctrt_parallel_apply(meet, &p, p.devices, MOST));
    CHECK_OK(ctrt_stream_pop());
    CHECK_STR(ctrt_memory_label(), "epoch 1/step");
    CHECK_OK(ctrt_memory_label_pop());
    CHECK_OK(ctrt_memory_label_pop());
    CHECK_TRUE(ctrt_grad_enabled());
    for (int i = 0; i < MOST; i++)
        CHECK_TRUE(!pthread_equal(p.threads[i], pthread_self()));

    group("all functions run; the first error is returned, with its index and device");
    char words[64];
    snprintf(words, sizeof words, "replica 1 (%s): number 1", ctrt_device_name(p.devices[1]));
    CHECK_FAILS(ctrt_parallel_apply(fail_some, &p, p.devices, MOST), CTRT_ERR_OVERFLOW, words);
    CHECK_EQ(p.calls, MOST);
    p.ends_thread = true;
    CHECK_FAILS(ctrt_parallel_apply(fail_some, &p, p.devices + 1, 3), CTRT_ERR_OVERFLOW, "replica 1 (cpu): number 1");
    p.devices[1] = p.devices[3];
    CHECK_OK(ctrt_parallel_apply(fail_some, &p, p.devices, 1));
    CHECK_TRUE(pthread_equal(p.threads[0], pthread_self()));        /* one function needs no thread */

    group("new tensors belong to the caller's scope, which the functions cannot end");
    CHECK_OK(ctrt_scope_begin());
    CHECK_OK(ctrt_parallel_apply(make_one, &p, p.devices, MOST));
    for (int i = 0; i < MOST; i++)
        CHECK_EQ(total(p.made[i]), 3);
    CHECK_OK(ctrt_scope_end());
    CHECK_EQ(total(p.made[0]), 3);
    for (int i = 1; i < MOST; i++) {
        CTRT_AUTO(tensor) copy = NULL;
        CHECK_FAILS(ctrt_clone(&copy, p.made[i]), CTRT_ERR_STATE, "scope that has ended");
    }
    CHECK_FAILS(ctrt_scope_end(), CTRT_ERR_STATE, "scope_begin");
    tensors_release(p.made, MOST);

    group("without threads, the functions run in the calling thread");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    REQUIRE_EQ(pthread_attr_setstacksize(&attributes, (size_t)1 << 46), 0);
    REQUIRE_EQ(pthread_setattr_default_np(&attributes), 0);         /* more than the address space */
    p.ends_thread = false;
    p.calls = 0;
    CHECK_FAILS(ctrt_parallel_apply(fail_some, &p, p.devices, MOST), CTRT_ERR_OVERFLOW, "replica 1 (");
    CHECK_EQ(p.calls, MOST);
    for (int i = 0; i < MOST; i++)
        CHECK_TRUE(pthread_equal(p.threads[i], pthread_self()));
    ctrt_stream_release(&p.stream);
}

/* ---- balance ---- */

static void test_balance(void)
{
    static const struct balance_case {
        const char *options;
        int n, devices[MOST];
        bool found;
        int slow, fast;
        double ratio;
    } cases[] = {
        { "CTRT_SIM=devices=2,memory=64m/256m", 2, { 0, 1 }, true, 0, 1, 0.25 },
        { "CTRT_SIM=devices=3,memory=256m/200m/128m", 3, { 1, 2, 0 }, true, 1, 2, 0.5 },
        { "CTRT_SIM=devices=2,memory=96m/128m", 2, { 0, 1 }, false, 0, 0, 0 },      /* 0.75 is enough */
        { "CTRT_SIM=devices=2,memory=64m/256m", 2, { 1, -1 }, false, 0, 0, 0 },     /* types are not compared */
        { "CTRT_SIM=devices=2,memory=64m/256m", 1, { 1 }, false, 0, 0, 0 },
    };
    group("devices with less memory than others are found");
    if (strcmp(tested_type(), "sim") != 0) {
        skip_group("needs simulated devices");
        return;
    }
    for (size_t c = 0; c < COUNT(cases); c++)
        IN_CHILD(cases[c].options) {
            const struct balance_case *k = &cases[c];
            ctrt_device *devices[MOST];
            ctrt_imbalance found = { .slow = -1 };
            for (int i = 0; i < k->n; i++)
                devices[i] = numbered(k->devices[i]);
            ctrt_log_set_callback(count_warnings, NULL);
            CHECK_EQ(ctrt_devices_imbalanced(&found, devices, k->n), k->found);
            CHECK_EQ(ctrt_devices_imbalanced(NULL, devices, k->n), k->found);
            CHECK_EQ(warnings, k->found ? 2 : 0);
            if (!k->found) {
                CHECK_EQ(found.slow, -1);
                continue;
            }
            CHECK_EQ(found.slow, k->slow);
            CHECK_EQ(found.fast, k->fast);
            CHECK_EQ(found.ratio, k->ratio);
            CHECK_STR(found.what, "memory");
        }
}

TEST_MAIN
{
    test_balance();                     /* in child processes, so before the first use of the library */
    child_environment((const char *const[]){ SIMS, NULL });
    if (!cpu_opened())
        return done();
    test_chunks();
    test_round_trips();
    test_tensors();
    test_trees();
    test_depth();
    test_apply();
    return done();
}
