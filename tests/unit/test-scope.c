/* SPDX-License-Identifier: Apache-2.0 */
/* Tests tensor scopes: the end of a scope frees every tensor that was not exported and that no other tensor needs. A
 * later use of a freed tensor reports an error. */
#include "calls.h"
#include "sims.h"
#include "dryrun_models.h"

static ctrt_device *device;

static bool has_ended(ctrt_tensor *tensor)
{
    CTRT_AUTO(tensor) copy = NULL;
    return ctrt_clone(&copy, tensor) == CTRT_ERR_STATE && strstr(ctrt_error_message(), "scope that has ended") != NULL;
}

/* The memory and the graph nodes that exist; nothing_left compares them at the end of a test. */
struct existing {
    uint64_t bytes, nodes;
};

static struct existing existing(void)
{
    CHECK_OK(ctrt_device_synchronize(device));
    return (struct existing){ ctrt_memory_allocated(device), ctrt_autograd_live_nodes() };
}

static void nothing_left(struct existing before)
{
    const struct existing now = existing();
    CHECK_EQ(now.bytes, before.bytes);
    CHECK_EQ(now.nodes, before.nodes);
}

/* test_many has nested scopes and exports. */
TEST(test_views, "the base and the history of an exported view stay; an ended tensor keeps its shape")
{
    for (int with_grad = 0; with_grad < 2; with_grad++) {
        ctrt_tensor *w = full(3, 100, device), *gone = NULL, *base = NULL, *view = NULL, *y = NULL;
        CHECK_OK(ctrt_tensor_require_grad(w, with_grad));
        CHECK_OK(ctrt_scope_begin());
        gone = full(2, 1000, device);
        CHECK_OK(ctrt_mul_scalar(&base, w, ctrt_float(2)));
        CHECK_OK(ctrt_slice(&view, base, 0, 0, 10, 1));
        CHECK_OK(ctrt_scope_export(view));
        CHECK_OK(ctrt_scope_end());
        CHECK_TRUE(has_ended(gone) && !has_ended(base) && !has_ended(view) && !has_ended(w));
        CHECK_TRUE(ctrt_tensor_ndim(gone) == 1 && ctrt_tensor_numel(gone) == 1000);
        CHECK_EQ(ctrt_tensor_dtype(gone), CTRT_F32);
        CHECK_OK(ctrt_mul_scalar_(view, ctrt_float(5)));            /* through the view */
        CHECK_OK(ctrt_sum(&y, view, CTRT_ALL_DIMS));
        CHECK_EQ(total(y), 300);
        if (with_grad) {
            CHECK_OK(ctrt_backward(y));
            CHECK_EQ(total(ctrt_tensor_grad(w)), 100);
        }
        ctrt_tensor_release(&y);
        ctrt_tensor_release(&view);
        ctrt_tensor_release(&base);
        ctrt_tensor_release(&gone);
        ctrt_tensor_release(&w);
    }
}

static void check_refused(ctrt_status status, const char *call)
{
    CHECK((status == CTRT_ERR_STATE || status == CTRT_ERR_DEVICE || status == CTRT_ERR_NOT_SUPPORTED)
              && strstr(ctrt_error_message(), "scope that has ended") != NULL, "%s: %s", call, ctrt_error_message());
}

TEST(test_uses, "every use of an ended tensor is an error, except its release")
{
    CTRT_AUTO(tensor) other = full(1, 6, device), ended = NULL, scalar = NULL, index = NULL, out = NULL, view = NULL;
    struct DLManagedTensorVersioned *managed = NULL;
    ctrt_device *cpu = NULL;
    float host[6] = { 0 };
    double value;
    char *text = NULL;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    CHECK_OK(ctrt_scope_begin());
    ended = full(2, 6, device);
    CHECK_OK(ctrt_scalar_tensor(&scalar, ctrt_float(1), CTRT_F32, device));
    CHECK_OK(ctrt_zeros(&index, CTRT_SHAPE(2), CTRT_I64, device));
    CHECK_OK(ctrt_scope_end());
#define REFUSED(call) check_refused((call), #call)
    REFUSED(ctrt_add(&out, ended, other));
    REFUSED(ctrt_add(&out, other, ended));
    REFUSED(ctrt_add_(other, ended));
    REFUSED(ctrt_add_(ended, other));
    REFUSED(ctrt_add(&out, other, scalar));
    REFUSED(ctrt_relu(&out, ended));
    REFUSED(ctrt_relu_(ended));
    REFUSED(ctrt_zero_(ended));
    REFUSED(ctrt_fill_(ended, ctrt_float(1.5)));
    REFUSED(ctrt_uniform_(ended, 0, 1));
    REFUSED(ctrt_copy_(ended, other));
    REFUSED(ctrt_copy_(other, ended));
    REFUSED(ctrt_sum(&out, ended, CTRT_ALL_DIMS));
    REFUSED(ctrt_softmax(&out, ended, 0));
    REFUSED(ctrt_matmul(&out, ended, ended));
    REFUSED(ctrt_cat(&out, (ctrt_tensor *[]){ other, ended }, 2, 0));
    REFUSED(ctrt_index_select(&out, other, 0, index));
    REFUSED(ctrt_to_device(&out, ended, cpu));
    REFUSED(ctrt_to_dtype(&out, ended, CTRT_F64));
    REFUSED(ctrt_item(&value, scalar));
    REFUSED(ctrt_to_host(host, sizeof host, ended, CTRT_F32));
    REFUSED(ctrt_from_host_(ended, host, 6, CTRT_F32));
    REFUSED(ctrt_tensor_format(&text, ended));
    REFUSED(ctrt_zeros_like(&out, ended, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_FAILS(ctrt_to_dlpack(&managed, ended), CTRT_ERR_NOT_SUPPORTED, NULL);
    CHECK_OK(ctrt_scope_begin());
    REFUSED(ctrt_scope_export(ended));
    CHECK_OK(ctrt_scope_end());
    CHECK_OK(ctrt_slice(&view, ended, 0, 1, 3, 1));
    REFUSED(ctrt_clone(&out, view));
    CHECK_TRUE(ctrt_tensor_data(ended) == NULL);
    CHECK_STR(ctrt_device_name(ctrt_tensor_device(ended)), "a scope that has ended");
    CHECK_TRUE(out == NULL && text == NULL);
}

/* y = sum((w x)^2); all intermediate tensors are in `kept`. */
static void graph(ctrt_tensor **y, ctrt_tensor *kept[3], ctrt_tensor *w)
{
    kept[0] = full(2, 100, device);
    CHECK_OK(ctrt_mul(&kept[1], w, kept[0]));
    CHECK_OK(ctrt_square(&kept[2], kept[1]));
    CHECK_OK(ctrt_sum(y, kept[2], CTRT_ALL_DIMS));
}

TEST(test_graphs, "an exported graph works; other graphs end with all saved tensors")
{
    const struct existing before = existing();
    for (int exported = 0; exported < 3; exported++) {
        ctrt_tensor *w = full(3, 100, device), *y = NULL, *kept[3] = { NULL }, *made = NULL;
        CHECK_OK(ctrt_tensor_require_grad(w, true));
        const uint64_t with_w = ctrt_memory_allocated(device);
        CHECK_OK(ctrt_scope_begin());
        graph(&y, kept, w);
        made = full(1, 10, device);                 /* a parameter that is created in the scope */
        CHECK_OK(ctrt_tensor_require_grad(made, true));
        if (exported == 1)
            CHECK_OK(ctrt_scope_export(y));
        if (exported == 2)
            CHECK_OK(ctrt_backward(y));             /* the gradient belongs to w, not to the scope */
        CHECK_OK(ctrt_scope_end());
        CHECK_TRUE(!has_ended(made));
        ctrt_tensor_release(&made);
        if (exported == 1) {
            CHECK_TRUE(!has_ended(y) && has_ended(kept[2]));
            tensors_release(kept, 1);
            CHECK_OK(ctrt_backward(y));
        } else {
            CHECK_TRUE(has_ended(y) && has_ended(kept[0]) && has_ended(kept[1]) && has_ended(kept[2]));
            CHECK_EQ(ctrt_autograd_live_nodes(), before.nodes);
            CHECK_TRUE(ctrt_memory_allocated(device) <= with_w + (exported == 2 ? 512 : 0));
        }
        if (exported > 0)                           /* dy/dw = 2 w x^2 = 24 */
            CHECK_EQ(total(ctrt_tensor_grad(w)), 2400);
        tensors_release(kept, 3);
        ctrt_tensor_release(&y);
        ctrt_tensor_release(&w);
    }
}

/* Changes u = 2w in place, as a whole or through a view, with a result of the op that saved u. The history of u then
 * keeps u alive. */
static void cycle(ctrt_tensor **u, ctrt_tensor **y, ctrt_tensor *w, bool by_view, bool saves_w)
{
    ctrt_tensor *to = NULL, *from = NULL;
    CHECK_OK(ctrt_mul_scalar(u, w, ctrt_float(2)));
    CHECK_OK(ctrt_mul(y, *u, saves_w ? w : *u));
    if (by_view) {
        CHECK_OK(ctrt_slice(&to, *u, 0, 0, 10, 1));
        CHECK_OK(ctrt_slice(&from, *y, 0, 0, 10, 1));
        CHECK_OK(ctrt_add_(to, from));
    } else {
        CHECK_OK(ctrt_add_(*u, *y));
    }
    ctrt_tensor_release(&to);
    ctrt_tensor_release(&from);
}

/* The object that survives the scope: nothing, a result that needs the cycle, or a parameter that was created in the
 * scope (a tensor or a view) and that the cycle saved. */
enum survivor { NOTHING, RESULT, PARAMETER, PARAMETER_VIEW };

static void test_cycle(enum survivor survivor, bool by_view)
{
    ctrt_tensor *outer = full(3, 100, device), *base = NULL, *w = NULL, *u = NULL, *y = NULL, *z = NULL;
    CHECK_OK(ctrt_tensor_require_grad(outer, true));
    const struct existing before = existing();
    CHECK_OK(ctrt_scope_begin());
    if (survivor < PARAMETER) {
        ctrt_tensor_assign(&w, outer);
    } else {
        base = full(3, 100, device);
        if (survivor == PARAMETER)
            ctrt_tensor_assign(&w, base);
        else
            CHECK_OK(ctrt_slice(&w, base, 0, 0, 50, 1));
        CHECK_OK(ctrt_tensor_require_grad(w, true));
    }
    cycle(&u, &y, w, by_view, survivor >= PARAMETER);
    if (survivor == RESULT) {
        CHECK_OK(ctrt_mul(&z, u, w));
        CHECK_OK(ctrt_scope_export(z));
    }
    CHECK_OK(ctrt_scope_end());
    if (survivor == RESULT) {
        CHECK_TRUE(!has_ended(z) && !has_ended(u) && ctrt_autograd_live_nodes() > before.nodes);
        /* The failed backward pass frees the graph. */
        CHECK_FAILS(ctrt_backward_with(z, w, false, false), CTRT_ERR_AUTOGRAD, "changed in place");
    } else {
        CHECK_TRUE(has_ended(u) && has_ended(y));
        CHECK_EQ(ctrt_autograd_live_nodes(), before.nodes);
        if (CHECK_TRUE(!has_ended(w) && (base == NULL || !has_ended(base))))
            CHECK_EQ(total(w), survivor == PARAMETER_VIEW ? 150 : 300);
    }
    ctrt_tensor_release(&u);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_tensor_release(&w);
    ctrt_tensor_release(&base);
    nothing_left(before);
    ctrt_tensor_release(&outer);
}

TEST(test_cycles, "reference cycles of tensors and histories end with the scope")
{
    for (int survivor = NOTHING; survivor <= PARAMETER_VIEW; survivor++)
        for (int by_view = 0; by_view < 2; by_view++)
            test_cycle((enum survivor)survivor, by_view);
}

/* Runs training steps that leak their tensors, each step in a scope. Memory must not grow, and the losses must be
 * those without scopes. */
TEST(test_training, "each training step in its own scope")
{
    static const int which[] = { 4, 11, 13 };
    const struct existing before = existing();
    for (size_t m = 0; m < COUNT(which); m++) {
        struct training run;
        ctrt_tensor *leaked[6] = { NULL };
        uint64_t after_first = 0;
        double losses[6], loss = 0;
        CHECK_OK(training_run(losses, 6, &models[which[m]], device, false));
        ctrt_manual_seed(5);
        CHECK_OK(ctrt_scope_begin());
        CHECK_OK(training_begin(&run, &models[which[m]], device));
        CHECK_OK(/* the model outlives the scope */
           ctrt_scope_export(run.x));
        CHECK_OK(ctrt_scope_export(run.y));
        CHECK_OK(ctrt_scope_end());
        for (int step = 0; step < 6; step++) {
            CHECK_OK(ctrt_scope_begin());
            CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
            CHECK_OK(training_forward(&leaked[step], &run));
            CHECK_OK(ctrt_backward(leaked[step]));
            CHECK_OK(ctrt_optimizer_step(run.optimizer));
            CHECK_OK(ctrt_item(&loss, leaked[step]));
            CHECK_OK(ctrt_scope_end());
            CHECK(loss == losses[step], "%s: loss %.17g, without scopes %.17g", run.model->name, loss, losses[step]);
            CHECK_TRUE(has_ended(leaked[step]));
            if (step == 1)
                after_first = ctrt_memory_allocated(device);
            else if (step > 1)
                CHECK_EQ(ctrt_memory_allocated(device), after_first);
        }
        tensors_release(leaked, 6);
        training_end(&run);
        nothing_left(before);
    }
}

static ctrt_tensor *passed;                         /* passed between the threads */

static void *other_thread(void *argument)
{
    (void)argument;
    ctrt_tensor *mine = full(7, 100, device), *of_scope = NULL;
    CHECK_FAILS(ctrt_scope_export(mine), CTRT_ERR_STATE, "in this thread");
    ctrt_tensor_release(&passed);                   /* releases a tensor of the other thread's scope */
    CHECK_OK(ctrt_scope_begin());
    of_scope = full(8, 100, device);
    (void)of_scope;
    passed = mine;
    return of_scope;                                /* the thread exits with its scope open */
}

TEST(test_threads, "each thread has its own scopes")
{
    pthread_t thread;
    void *left = NULL;
    CHECK_OK(ctrt_scope_begin());
    passed = full(1, 100, device);
    pthread_create(&thread, NULL, other_thread, NULL);
    pthread_join(thread, &left);
    CHECK_OK(ctrt_scope_end());
    ctrt_tensor *of_scope = left;
    CHECK_EQ(total(passed), 700);
    CHECK_EQ(total(of_scope), 800);
    ctrt_tensor_release(&passed);
    ctrt_tensor_release(&of_scope);
}

/* Ends the scope of this depth: depth_of of its tensors becomes `ended`. */
static void end_depth(int *depth_of, int count, int depth, int ended)
{
    CHECK_OK(ctrt_scope_end());
    for (int k = 0; k < count; k++)
        if (depth_of[k] == depth)
            depth_of[k] = ended;
}

TEST(test_many, "random tensors and scopes")
{
    enum { MOST = 2000 };
    static ctrt_tensor *tensors[MOST];
    static int depth_of[MOST]; /* -1: outlives all scopes; MOST: ended; else the depth of its scope */
    unsigned seed = 1;
    int count = 0, depth = 0, ended = 0;
    for (int i = 0; i < 6000; i++) {
        seed = seed * 1103515245 + 12345;
        const unsigned choice = seed >> 16 & 15;
        const int at = count > 0 ? (int)(seed >> 20) % count : 0;
        if (choice < 8 && count < MOST) {
            CHECK_OK(ctrt_empty(&tensors[count], CTRT_SHAPE(1 + (seed >> 8) % 50), CTRT_F32, device));
            depth_of[count++] = depth - 1;
        } else if (choice < 10 && count > 0) {
            ctrt_tensor_release(&tensors[at]);
            tensors[at] = tensors[--count];
            depth_of[at] = depth_of[count];
            tensors[count] = NULL;
        } else if (choice == 10 && depth < 8) {
            CHECK_OK(ctrt_scope_begin());
            depth++;
        } else if (choice < 14 && depth > 0 && count > 0 && depth_of[at] < MOST) {
            CHECK_OK(ctrt_scope_export(tensors[at]));
            depth_of[at] -= depth_of[at] == depth - 1;
        } else if (choice >= 14 && depth > 0) {
            end_depth(depth_of, count, --depth, MOST);
            CHECK_TRUE(count == 0 || has_ended(tensors[at]) == (depth_of[at] == MOST));
        }
    }
    while (depth > 0)
        end_depth(depth_of, count, --depth, MOST);
    for (int k = 0; k < count; k++) {
        CHECK(has_ended(tensors[k]) == (depth_of[k] == MOST), "tensor %d: ended %d", k, has_ended(tensors[k]));
        ended += depth_of[k] == MOST;
        ctrt_tensor_release(&tensors[k]);
    }
    CHECK(ended > 50 && ended < count - 50, "%d of %d ended", ended, count);
}

/* ---- blocks ---- */

enum way { TO_THE_END, BY_TRY, BY_BREAK, BY_CONTINUE, BY_GOTO, WAYS };

/* Leaves all blocks of ctrt/base.h in one way. */
static ctrt_status leave(enum way way, ctrt_stream *stream)
{
    CTRT_AUTO(tensor) x = NULL;
    const char *type = ctrt_device_type(device);
    ctrt_no_grad
        ctrt_autocast(type, &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_BF16, .no_cache = true))
            ctrt_labeled("block")
                ctrt_on_device(device)
                    ctrt_on_stream(stream)
                        ctrt_scope {
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(3), CTRT_F32, device));
        CHECK_EQ(ctrt_grad_enabled(), false);
        CHECK_EQ(ctrt_autocast_enabled(type), true);
        CHECK_STR(ctrt_memory_label(), "block");
        if (way == BY_TRY)
            CTRT_TRY(ctrt_fail(CTRT_ERR_IO, "left"));
        if (way == BY_BREAK)
            break;
        if (way == BY_CONTINUE)
            continue;
        if (way == BY_GOTO)
            goto out;
    }
out:
    CHECK(has_ended(x), "way %d: the scope has not ended", (int)way);
    return CTRT_OK;
}

TEST(blocks, "a block ends wherever it is left")
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(ctrt_stream_default(&stream, device));
    for (enum way way = TO_THE_END; way < WAYS; way++) {
        CHECK_EQ(leave(way, stream), way == BY_TRY ? CTRT_ERR_IO : CTRT_OK);
        CHECK_EQ(ctrt_grad_enabled(), true);
        CHECK_EQ(ctrt_autocast_enabled(ctrt_device_type(device)), false);
        CHECK_EQ(ctrt_scope_end(), CTRT_ERR_STATE);
        CHECK_EQ(ctrt_memory_label_pop(), CTRT_ERR_STATE);
        CHECK_EQ(ctrt_device_pop(), CTRT_ERR_STATE);
        CHECK_EQ(ctrt_stream_pop(), CTRT_ERR_STATE);
    }
}

static ctrt_status begin_bad(int kind)
{
    if (kind == 0)
        ctrt_autocast("no-such-type", NULL) CHECK(false, "a region of an unknown type has begun");
    if (kind == 1)
        ctrt_labeled("") CHECK(false, "an empty label has been pushed");
    return CTRT_OK;
}

TEST(bad_blocks, "a block that cannot begin returns the error from the function and has nothing to end")
{
    CHECK_FAILS(begin_bad(0), CTRT_ERR_NOT_FOUND, "no-such-type");
    CHECK_FAILS(begin_bad(1), CTRT_ERR_INVALID_ARGUMENT, "label");
    CHECK_EQ(ctrt_autocast_pop(), CTRT_ERR_STATE);
    CHECK_EQ(ctrt_memory_label_pop(), CTRT_ERR_STATE);
}

TEST_MAIN
{
    static const char *const names[] = { "cpu", "sim:0" };
    setenv("CTRT_SIM", "devices=1,memory=64m", 1);
    EACH(name, names)
        for (size_t i = 0; i < tap_test_count; i++) {
            group("%s: %s", *name, tap_tests[i].name);
            if (!CHECK_OK(ctrt_device_get(&device, *name)))
                continue;
            const struct existing before = existing();
            tap_tests[i].run();
            nothing_left(before);
        }
    return done();
}
