/* SPDX-License-Identifier: Apache-2.0 */
/* Tests modules: registration, names, traversal, forward and moves to another dtype. Layers are tested in
 * test-nn-layers.c. */
#include "../options.h"
#include "calls.h"
#include "small_net.h"

struct probe { ctrt_tensor *w; int trained; bool silent; ctrt_status failure; };
static int probes_destroyed;

static ctrt_status probe_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct probe *p = ctrt_module_state(self);
    CHECK(*y == NULL, "*y is not NULL at the start of forward");
    if (p->failure)
        return ctrt_fail(p->failure, "the probe fails");
    if (p->silent)
        return CTRT_OK;
    CTRT_TRY(ctrt_add_scalar(y, inputs[0], ctrt_float(1)));
    for (int i = 1; i < count; i++)
        CTRT_TRY(ctrt_add(y, *y, inputs[i]));
    return ctrt_mul(y, *y, inputs[0]);              /* reads the input after the result was first written */
}

static void probe_destroy(ctrt_module *self)
{
    (void)self;
    probes_destroyed++;
}

static void probe_train(ctrt_module *self, bool training)
{
    ((struct probe *)ctrt_module_state(self))->trained = training ? 1 : -1;
}

static const ctrt_module_class probe_class = {
    .size = sizeof(ctrt_module_class), .kind = "Probe", .state_bytes = sizeof(struct probe), .forward = probe_forward,
    .destroy = probe_destroy, .train = probe_train,
};

static ctrt_module *probe(void)
{
    ctrt_module *module = NULL;
    CHECK_OK(ctrt_module_new(&module, &probe_class));
    return module;
}

static ctrt_tensor *ones(int64_t n) { return OP(ones, CTRT_SHAPE(n), CTRT_F32, cpu); }

TEST(classes, "module classes are validated, and the last release destroys a module")
{
    ctrt_module *module = NULL;
    ctrt_module_class bad = probe_class;
    bad.kind = NULL;
    CHECK_FAILS(ctrt_module_new(&module, &bad), CTRT_ERR_INVALID_ARGUMENT, "kind is NULL");
    bad = probe_class, bad.size = 8;
    CHECK_FAILS(ctrt_module_new(&module, &bad), CTRT_ERR_INVALID_ARGUMENT, "size is 8; it must be sizeof");
    bad = probe_class, bad.state_bytes = SIZE_MAX;
    CHECK_FAILS(ctrt_module_new(&module, &bad), CTRT_ERR_OVERFLOW, "state_bytes");
    bad = probe_class, bad.state_pointers = (const size_t[]){ 0, sizeof(struct probe) - 7, CTRT_STATE_END };
    CHECK_FAILS(ctrt_module_new(&module, &bad), CTRT_ERR_INVALID_ARGUMENT, "state_pointers of Probe has offset 17");
    bad = probe_class, bad.state_bytes = 4, bad.state_pointers = (const size_t[]){ 0, CTRT_STATE_END };
    CHECK_FAILS(ctrt_module_new(&module, &bad), CTRT_ERR_INVALID_ARGUMENT, "fits into state_bytes 4");
    CHECK(module == NULL, "a failed constructor set its variable");

    /* A class of an older version, without `destroy`. */
    bad = probe_class, bad.size = offsetof(ctrt_module_class, destroy);
    CHECK_OK(ctrt_module_new(&module, &bad));
    ctrt_module_train(module, false);
    CHECK_EQ(((struct probe *)ctrt_module_state(module))->trained, 0);     /* a slot beyond the size is not called */
    probes_destroyed = 0;
    CHECK_OK(ctrt_module_new(&module, &probe_class));       /* releases the previous module */
    CHECK_EQ(probes_destroyed, 0);
    ctrt_module *second = ctrt_module_retain(module);
    ctrt_module_release(&module);
    CHECK(module == NULL && probes_destroyed == 0, "the module was destroyed although a reference remains");
    CHECK_STR(ctrt_module_kind(second), "Probe");
    ctrt_module_release(&second);
    CHECK_EQ(probes_destroyed, 1);
    ctrt_module_release(&second);
}

TEST(container, "a module without forward function contains modules, but has no forward pass of its own")
{
    static const ctrt_module_class pair_class = { .size = sizeof pair_class, .kind = "Pair" };
    CTRT_AUTO(module) pair = NULL;
    CTRT_AUTO_ARRAY(tensor, one, 2);
    one[0] = ones(3);
    CHECK_OK(ctrt_module_new(&pair, &pair_class));
    CHECK_OK(ctrt_module_add_module(pair, "first", CTRT_NEW(linear, 3, 2, true, cpu)));
    CHECK_EQ(ctrt_module_parameter_count(pair), 2);
    CHECK_FAILS(ctrt_forward(&one[1], pair, one[0]), CTRT_ERR_NOT_SUPPORTED, "Pair has no forward function");
}

TEST(names, "invalid and duplicate names are rejected")
{
    static const char *const refused[] = { "", ".", "a.b", "weight.", ".weight" };
    CTRT_AUTO(module) module = probe();
    CTRT_AUTO(tensor) w = ones(2), result = NULL;
    EACH(c, refused) {
        CHECK_FAILS(ctrt_module_add_parameter(module, *c, w), CTRT_ERR_INVALID_ARGUMENT, "dot");
        CHECK_FAILS(ctrt_module_add_buffer(module, *c, w, true), CTRT_ERR_INVALID_ARGUMENT, "dot");
        CHECK_FAILS(ctrt_module_add_module(module, *c, probe()), CTRT_ERR_INVALID_ARGUMENT, "dot");
    }
    probes_destroyed = 0;
    CHECK_FAILS(ctrt_module_add_module(NULL, "m", probe()), CTRT_ERR_INVALID_ARGUMENT, "module");
    CHECK_EQ(probes_destroyed, 1);                      /* the rejected child is released */

    CHECK(!ctrt_tensor_requires_grad(w), "the tensor requires grad before it is a parameter");
    CHECK_OK(ctrt_module_add_parameter(module, "w", w));
    CHECK(ctrt_tensor_requires_grad(w), "a parameter does not require grad");
    CHECK_FAILS(ctrt_module_add_parameter(module, "w", w), CTRT_ERR_STATE, "\"w\"");
    CHECK_FAILS(ctrt_module_add_buffer(module, "w", w, true), CTRT_ERR_STATE, "\"w\"");
    CHECK_FAILS(ctrt_module_add_module(module, "w", probe()), CTRT_ERR_STATE, "\"w\"");
    CHECK_OK(ctrt_module_add_module(module, "m", probe()));
    CHECK_FAILS(ctrt_module_add_module(module, "m", probe()), CTRT_ERR_STATE, "\"m\"");
    CHECK_FAILS(ctrt_module_add_parameter(module, "m", w), CTRT_ERR_STATE, "\"m\"");
    CHECK_OK(ctrt_add(&result, w, w));
    CHECK_FAILS(ctrt_module_add_parameter(module, "r", result), CTRT_ERR_AUTOGRAD, "leaf");
    CHECK_OK(ctrt_zeros(&result, CTRT_SHAPE(1), CTRT_I64, cpu));
    CHECK_OK(ctrt_module_add_parameter(module, "count", result));
    CHECK(!ctrt_tensor_requires_grad(result), "an integer parameter requires grad");
}

TEST(twice, "a copy of a module keeps that a parameter is also a buffer")
{
    CTRT_AUTO(module) module = NULL, copy = NULL;
    ctrt_tensor *w = NULL, *a = NULL, *b = NULL;
    CHECK_OK(ctrt_linear_new(&module, 2, 1, false, cpu));
    CHECK_OK(ctrt_module_tensor(&w, module, "weight"));
    CHECK_OK(ctrt_module_add_buffer(module, "same", w, true));
    CHECK_OK(ctrt_module_copy(&copy, module, cpu));
    CHECK_OK(ctrt_module_tensor(&a, copy, "weight"));
    CHECK_OK(ctrt_module_tensor(&b, copy, "same"));
    CHECK_TRUE(a == b && a != w && ctrt_module_parameter_count(copy) == 1 && ctrt_module_buffer_count(copy) == 1);
    check_same("copy", __LINE__, a, w, 0);
}

TEST(cycles, "a module cannot contain itself")
{
    ctrt_module *a = probe(), *b = probe(), *c = probe();
    CHECK_FAILS(ctrt_module_add_module(a, "self", ctrt_module_retain(a)), CTRT_ERR_STATE, "contains");
    CHECK_OK(ctrt_module_add_module(a, "b", ctrt_module_retain(b)));
    CHECK_OK(ctrt_module_add_module(b, "c", ctrt_module_retain(c)));
    CHECK_FAILS(ctrt_module_add_module(c, "a", ctrt_module_retain(a)), CTRT_ERR_STATE, "contains");
    CHECK_OK(ctrt_module_add_module(a, "c", ctrt_module_retain(c)));       /* shared, but not a cycle */
    probes_destroyed = 0;
    ctrt_module_release(&b);
    ctrt_module_release(&c);
    CHECK_EQ(probes_destroyed, 0);
    ctrt_module_release(&a);
    CHECK_EQ(probes_destroyed, 3);
}

TEST(walking, "parameters are listed by name, each once")
{
    static const char *const want[] = { "w", "left.w", "left.inner.w" };
    CTRT_AUTO(module) root = probe();
    ctrt_module *left = probe(), *inner = probe(), *right = probe(), *child;
    ctrt_tensor *t[4], *tensor;
    const char *name, *kept[4];
    for (int i = 0; i < 4; i++)
        t[i] = ones(i + 1);
    CHECK_EQ(ctrt_module_parameter_count(root), 0);
    CHECK_OK(ctrt_module_add_module(inner, "shared", ctrt_module_retain(right)));       /* deeper, but found first */
    CHECK_OK(ctrt_module_add_module(left, "inner", inner));
    CHECK_OK(ctrt_module_add_module(root, "left", left));
    CHECK_OK(ctrt_module_add_parameter(root, "w", t[0]));
    CHECK_OK(ctrt_module_add_parameter(left, "w", t[1]));
    CHECK_OK(ctrt_module_add_parameter(left, "tied", t[0]));                               /* counts once */
    CHECK_OK(ctrt_module_add_parameter(inner, "w", t[2]));
    CHECK_EQ(ctrt_module_parameter_count(root), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ctrt_module_parameter(&kept[i], &tensor, root, (size_t)i));
        CHECK(strcmp(kept[i], want[i]) == 0 && tensor == t[i], "parameter %d is %s", i, kept[i]);
    }
    CHECK_FAILS(ctrt_module_parameter(&name, &tensor, root, 3), CTRT_ERR_NOT_FOUND, "has 3");
    CHECK_OK(ctrt_module_add_parameter(right, "w", t[3]));
    CHECK_OK(ctrt_module_add_module(root, "right", right));
    CHECK_OK(ctrt_module_parameter(&kept[3], NULL, root, 3));
    CHECK_STR(kept[3], "left.inner.shared.w");          /* its first name */
    for (size_t i = 0; i < 3; i++)
        CHECK(ctrt_module_parameter(&name, NULL, root, i) == CTRT_OK && name == kept[i], "name %zu is now %s", i, name);
    CHECK_EQ(ctrt_module_numel(root), 1 + 2 + 3 + 4);

    CHECK_TRUE(ctrt_module_tensor(&tensor, root, "left.inner.w") == CTRT_OK && tensor == t[2]);
    CHECK_FAILS(ctrt_module_tensor(&tensor, root, "left.iner.w"), CTRT_ERR_NOT_FOUND, "did you mean \"left.inner.w\"");
    CHECK_FAILS(ctrt_module_tensor(&tensor, root, ""), CTRT_ERR_NOT_FOUND, NULL);

    CHECK_OK(ctrt_module_child(&name, &child, root, 1));
    CHECK(strcmp(name, "right") == 0 && child == right, "child 1 is %s", name);
    CHECK_FAILS(ctrt_module_child(&name, &child, root, 2), CTRT_ERR_NOT_FOUND, "2 children");

    CHECK(ctrt_module_is_training(inner), "a new module is not in training mode");
    ctrt_module_train(root, false);
    CHECK(!ctrt_module_is_training(inner) && ((struct probe *)ctrt_module_state(inner))->trained == -1,
          "eval mode did not reach the leaf modules");
    tensors_release(t, 4);
}

TEST(running, "forward with one and two inputs, and its failures")
{
    CTRT_AUTO(module) module = probe();
    CTRT_AUTO(tensor) y = NULL, x = OP(full, CTRT_SHAPE(1), ctrt_float(3), CTRT_F32, cpu);
    struct probe *state = ctrt_module_state(module);
    ctrt_tensor *inputs[2];
    CHECK_OK(ctrt_forward(&x, module, x));                         /* x = (x + 1) x */
    VALUES_ARE(x, 12);
    inputs[0] = inputs[1] = x;
    CHECK_OK(ctrt_forward_n(&y, module, inputs, 2));
    VALUES_ARE(y, 25 * 12);

    ctrt_tensor *before = y;
    state->failure = CTRT_ERR_NOT_SUPPORTED;
    CHECK_FAILS(ctrt_forward(&y, module, x), CTRT_ERR_NOT_SUPPORTED, "Probe: the probe fails");
    state->failure = CTRT_OK, state->silent = true;
    CHECK_FAILS(ctrt_forward(&y, module, x), CTRT_ERR_STATE, "without a result");
    CHECK(y == before, "a failed call changed y");
}

static ctrt_status failing_new(ctrt_module **out)
{
    CTRT_TRY(ctrt_module_new(out, &probe_class));
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the constructor fails");
}

static ctrt_status counted_new(ctrt_module **out, int *made)
{
    ++*made;
    return ctrt_module_new(out, &probe_class);
}

TEST(expressions, "nested constructor expressions release all modules after a failure")
{
    CTRT_AUTO(module) net = NULL, other = probe();
    int made = 0;
    probes_destroyed = 0;
    CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(
        CTRT_MAKE(counted_new, &made), CTRT_NEW(sequential, CTRT_MODULES(CTRT_MAKE(counted_new, &made),
                                                                         CTRT_NEW(relu))),
        CTRT_NEW(sequential, CTRT_NO_MODULES))));
    CHECK_EQ(made, 2);
    const char *name;
    ctrt_module *child;
    CHECK_OK(ctrt_module_child(&name, &child, net, 1));
    CHECK_STR(name, "1");
    CHECK_STR(ctrt_module_kind(child), "Sequential");
    ctrt_module_release(&net);
    CHECK_EQ(probes_destroyed, 2);

    /* A failure in a nested constructor returns its status and message, and all modules are released. */
    probes_destroyed = 0;
    CHECK_FAILS(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_MAKE(counted_new, &made), CTRT_MAKE(failing_new),
                                                       CTRT_MAKE(counted_new, &made))),
                CTRT_ERR_OUT_OF_MEMORY, "the constructor fails");
    CHECK(net == NULL && probes_destroyed == 3, "%d of 3 modules were destroyed", probes_destroyed);
    CHECK_FAILS(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(relu),
                                                       CTRT_NEW(sequential, CTRT_MODULES(CTRT_MAKE(failing_new))))),
                CTRT_ERR_OUT_OF_MEMORY, "the constructor fails");
    CHECK_FAILS(ctrt_module_add_module(other, "child", CTRT_MAKE(failing_new)), CTRT_ERR_OUT_OF_MEMORY,
                "constructor fails");
    CHECK_FAILS(ctrt_module_add_module(other, "child", CTRT_NEW(linear, -1, 3, true, cpu)), CTRT_ERR_INVALID_ARGUMENT,
                "in_features is -1");
    CHECK_FAILS(ctrt_sequential_new(&net, CTRT_MODULES(NULL)), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    probes_destroyed = 0;
    CHECK_FAILS(ctrt_sequential_new(NULL, CTRT_MODULES(CTRT_MAKE(counted_new, &made))), CTRT_ERR_INVALID_ARGUMENT,
                "out");
    CHECK_EQ(probes_destroyed, 1);

    probes_destroyed = 0;
    CHECK_FAILS(ctrt_sequential_add(NULL, probe()), CTRT_ERR_INVALID_ARGUMENT, "sequential");
    CHECK_FAILS(ctrt_sequential_add(other, probe()), CTRT_ERR_INVALID_ARGUMENT, "is a Probe");
    CHECK_EQ(probes_destroyed, 2);
    CHECK_OK(ctrt_sequential_new(&net, CTRT_NO_MODULES));
    CHECK_FAILS(ctrt_sequential_add(net, ctrt_module_retain(net)), CTRT_ERR_STATE, "contains");
    CTRT_AUTO(tensor) x = ones(3), y = OP(forward, net, x);
    CHECK(y == x, "an empty Sequential did not return its input");
    CHECK_OK(ctrt_sequential_add(net, CTRT_NEW(softmax, 5)));
    CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_SHAPE, "Sequential: 0: Softmax: ");
}

TEST(moving, "ctrt_module_to converts parameters, gradients and optimizer state in place")
{
    CTRT_AUTO(module) net = NULL, bare = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *weight, *mean, *batches, *now, *state;
    ctrt_device *device = NULL;
    double before[12], after[12];
    if (!CHECK_OK(small_net_new(&net)))
        return;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.5, .momentum = 0.9)));
    CHECK_OK(ctrt_module_tensor(&weight, net, "0.weight"));
    CHECK_OK(ctrt_module_tensor(&mean, net, "1.running_mean"));
    CHECK_OK(ctrt_module_tensor(&batches, net, "1.num_batches_tracked"));
    CHECK_OK(ctrt_module_device(&device, net));
    CHECK_STR(ctrt_device_name(device), "cpu");
    for (int turn = 0; turn < 3; turn++) {
        const ctrt_dtype dtype = turn == 1 ? CTRT_F64 : CTRT_F32;
        CHECK_OK(ctrt_module_to(net, NULL, dtype));
        CHECK_OK(ctrt_module_tensor(&now, net, "0.weight"));
        CHECK(now == weight, "turn %d: another tensor", turn);
        CHECK_EQ(ctrt_tensor_dtype(weight), dtype);
        CHECK_EQ(ctrt_tensor_dtype(mean), dtype);
        CHECK_EQ(ctrt_tensor_dtype(batches), CTRT_I64);
        CHECK_TRUE(ctrt_tensor_requires_grad(weight) && ctrt_tensor_is_leaf(weight));
        ctrt_tensor *grad = ctrt_tensor_grad(weight);
        CHECK(turn == 0 ? grad == NULL : grad && ctrt_tensor_dtype(grad) == dtype,
              "turn %d: the gradient was not converted", turn);
        CHECK_OK(ctrt_to_host(before, sizeof before, weight, CTRT_F64));
        if (!CHECK_OK(small_net_step(net, optimizer, cpu, turn)))
            return;
        CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, "momentum_buffer"));
        CHECK_EQ(ctrt_tensor_dtype(state), dtype);
        CHECK_OK(ctrt_to_host(after, sizeof after, weight, CTRT_F64));
        CHECK(memcmp(before, after, sizeof before) != 0, "turn %d: the optimizer step did not change the weight", turn);
    }
    CHECK_FAILS(ctrt_module_to(net, NULL, CTRT_I64), CTRT_ERR_DTYPE, "i64");
    CHECK_OK(ctrt_module_to(net, cpu, CTRT_DTYPE_DEFAULT));
    CHECK_OK(ctrt_relu_new(&bare));
    CHECK_FAILS(ctrt_module_device(&device, bare), CTRT_ERR_NOT_FOUND, "no parameters");
}

TEST(zeroing, "zero_grad fills or drops gradients")
{
    CTRT_AUTO(module) module = probe();
    CTRT_AUTO(tensor) w = ones(3), loss = NULL;
    CHECK_OK(ctrt_module_add_parameter(module, "w", w));
    CHECK_OK(ctrt_module_zero_grad(module, false));
    CHECK(ctrt_tensor_grad(w) == NULL, "zero_grad created a gradient");
    CHECK_OK(ctrt_sum(&loss, w, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    ctrt_tensor *grad = ctrt_tensor_grad(w);
    CHECK_OK(ctrt_module_zero_grad(module, false));
    CHECK(grad && ctrt_tensor_grad(w) == grad, "the gradient was not filled in place");
    VALUES_ARE(grad, 0, 0, 0);
    CHECK_OK(ctrt_module_zero_grad(module, true));
    CHECK(ctrt_tensor_grad(w) == NULL, "the gradient was not dropped");
}

/* Returns `depth` nested Sequential modules, the innermost empty. */
static ctrt_module *nest(int depth)
{
    ctrt_module *outer = NULL, *last = NULL;
    CHECK_OK(ctrt_sequential_new(&outer, CTRT_NO_MODULES));
    last = outer;
    for (int i = 1; i < depth; i++) {
        CHECK_OK(ctrt_sequential_add(last, CTRT_NEW(sequential, CTRT_NO_MODULES)));
        CHECK_OK(ctrt_module_child(NULL, &last, last, 0));
    }
    return outer;
}

static void *nested_on_a_small_stack(void *unused)
{
    CTRT_AUTO(module) deep = nest(20000), fine = nest(50), parent = nest(1);
    CTRT_AUTO(tensor) x = ones(1), y = NULL;
    CHECK_FAILS(ctrt_forward(&y, deep, x), CTRT_ERR_STATE, "nested too deep");
    CHECK_FAILS(ctrt_module_to(deep, cpu, CTRT_F64), CTRT_ERR_STATE, "nested too deep");
    CHECK_FAILS(ctrt_module_add_module(parent, "deep", ctrt_module_retain(deep)), CTRT_ERR_STATE, "nested too deep");
    ctrt_module_train(deep, false);
    CHECK_OK(ctrt_forward(&y, fine, x));
    return unused;
}

TEST(deep, "modules nested 20000 deep, on a stack of 512 KiB")
{
    on_stack(512 << 10, nested_on_a_small_stack);
}

/* ---- forward hooks ---- */

struct hooked {
    char calls[64];
    ctrt_status fails;                              /* before the pass */
};

static ctrt_status hooked_before(void *user, ctrt_module *module)
{
    struct hooked *h = user;
    strcat(h->calls, ctrt_module_kind(module)[0] == 'L' ? "<l" : "<s");
    return h->fails != CTRT_OK ? ctrt_fail(h->fails, "the hook fails") : CTRT_OK;
}

static ctrt_status hooked_after(void *user, ctrt_module *module, ctrt_tensor *output)
{
    struct hooked *h = user;
    strcat(h->calls, ctrt_module_kind(module)[0] == 'L' ? "l>" : "s>");
    return CHECK_TRUE(ctrt_tensor_size(output, 1) == 2) ? CTRT_OK : CTRT_ERR_SHAPE;
}

TEST(forward_hooks, "forward hooks")
{
    static const ctrt_forward_hooks both = { sizeof both, hooked_before, hooked_after };
    static const ctrt_forward_hooks last = { .size = sizeof last, .after = hooked_after };
    CTRT_AUTO(module) net = NULL, copy = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    struct hooked h = { .fails = CTRT_OK };
    ctrt_module *linear = NULL;
    uint64_t first, second;
    CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 3, 2, true, NULL), CTRT_NEW(tanh))));
    CHECK_OK(ctrt_module_child(NULL, &linear, net, 0));
    CHECK_OK(ctrt_zeros(&x, CTRT_SHAPE(1, 3), CTRT_F32, NULL));
    CHECK_OK(ctrt_module_add_forward_hooks(net, &both, &h, &first));
    CHECK_OK(ctrt_module_add_forward_hooks(net, &last, &h, &second));
    CHECK_OK(ctrt_module_add_forward_hooks(linear, &both, &h, NULL));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_STR(h.calls, "<s<ll>s>s>");
    h = (struct hooked){ .fails = CTRT_OK };
    CHECK_OK(ctrt_module_copy(&copy, net, NULL));   /* has no hooks */
    CHECK_OK(ctrt_forward(&y, copy, x));
    CHECK_STR(h.calls, "");
    CHECK_OK(ctrt_module_remove_forward_hooks(net, first));
    CHECK_FAILS(ctrt_module_remove_forward_hooks(net, first), CTRT_ERR_NOT_FOUND, "has no hooks");
    h.fails = CTRT_ERR_STATE;
    ctrt_tensor *before = y;
    CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_STATE, "the hook fails");
    CHECK_STR(h.calls, "<l");                       /* neither the module nor the functions after it have run */
    CHECK_TRUE(y == before);
}

CPU_TESTS_MAIN
