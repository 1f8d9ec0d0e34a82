/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how the states of modules are copied by ctrt_module_copy, ctrt_replicate and the strategies that copy modules:
 * the class lists the pointers in its state, or the module is refused. */
#include "strategy_check.h"

/* A state with a pointer at an unaligned offset, and an integer that may equal an address. */
struct __attribute__((packed)) packed {
    char first;
    ctrt_tensor *weight;
    uintptr_t number;
};
static ctrt_status packed_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct packed *packed = ctrt_module_state(self);
    (void)count;
    return ctrt_mul(y, inputs[0], packed->weight);
}
static const ctrt_module_class packed_class = {
    .size = sizeof(ctrt_module_class), .kind = "Packed", .state_bytes = sizeof(struct packed),
    .forward = packed_forward, .state_pointers = CTRT_STATE_POINTERS(offsetof(struct packed, weight)),
};
static const ctrt_module_class untold_class = {
    .size = sizeof(ctrt_module_class), .kind = "Untold", .state_bytes = sizeof(struct packed),
    .forward = packed_forward,
};
static const ctrt_module_class older_class = {          /* of a version without `state_pointers` */
    .size = offsetof(ctrt_module_class, state_pointers), .kind = "Older", .state_bytes = sizeof(struct packed),
    .forward = packed_forward, .state_pointers = CTRT_STATE_PLAIN,
};

static ctrt_module *packed_of(const ctrt_module_class *class_of, ctrt_device *device)
{
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(6), 0.1, device);
    ctrt_module *module = NULL;
    CHECK_OK(ctrt_module_new(&module, class_of));
    CHECK_OK(ctrt_module_add_parameter(module, "weight", weight));
    *(struct packed *)ctrt_module_state(module) = (struct packed){ 'a', weight, (uintptr_t)weight };
    return module;
}

static void check_packed(ctrt_module *copy, ctrt_module *original)
{
    const struct packed *to = ctrt_module_state(copy), *from = ctrt_module_state(original);
    CHECK_TRUE(to->weight == parameter(copy, 0) && to->weight != from->weight);
    CHECK_TRUE(to->first == 'a' && to->number == from->number && to->number == (uintptr_t)from->weight);
}

static void test_copies(void)
{
    CTRT_AUTO(module) packed = packed_of(&packed_class, cpu), untold = packed_of(&untold_class, cpu), copy = NULL,
                      older = packed_of(&older_class, cpu), root = NULL;
    ctrt_module *replicas[2] = { NULL, NULL };
    struct packed *state = ctrt_module_state(packed);

    CHECK_OK(ctrt_module_copy(&copy, packed, NULL));
    check_packed(copy, packed);
    CHECK_OK(ctrt_replicate(replicas, packed, (ctrt_device *[]){ cpu, numbered(0) }, 2));
    check_packed(replicas[1], packed);
    for (int i = 0; i < 2; i++)
        ctrt_module_release(&replicas[i]);

    /* A listed pointer is NULL or to a part of the module. */
    ctrt_tensor *weight = state->weight;
    state->weight = NULL;
    CHECK_OK(ctrt_module_copy(&copy, packed, NULL));
    CHECK_TRUE(((struct packed *)ctrt_module_state(copy))->weight == NULL);
    state->weight = parameter(untold, 0);
    CHECK_FAILS(ctrt_module_copy(&copy, packed, NULL), CTRT_ERR_NOT_SUPPORTED,
                "module_copy: the pointer at offset 1 of the state of a module of class Packed is to no parameter");
    state->weight = weight;

    /* A class with a state needs `state_pointers` or `replicate`. */
    CHECK_FAILS(ctrt_module_copy(&copy, untold, NULL), CTRT_ERR_NOT_SUPPORTED,
                "module_copy: the module of class Untold cannot be copied, because the class has a state but neither "
                "`state_pointers` (CTRT_STATE_PLAIN for a state without pointers) nor `replicate`");
    CHECK_FAILS(ctrt_module_copy(&copy, older, NULL), CTRT_ERR_NOT_SUPPORTED, "the module of class Older");
    CHECK_OK(ctrt_sequential_new(&root, CTRT_MODULES(ctrt_module_retain(packed), ctrt_module_retain(untold))));
    CHECK_FAILS(ctrt_replicate(&copy, root, &cpu, 1), CTRT_ERR_NOT_SUPPORTED, "replicate: \"1\" of class Untold");
}

/* ---- strategies ---- */

static void test_data_parallel(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) packed = packed_of(&packed_class, devices[0]), untold = packed_of(&untold_class, devices[0]);
    CTRT_AUTO(module) net = parallel(packed, "data-parallel", devices, 2), refused = NULL;
    CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(4, FEATURES), 0.1, cpu), loss = NULL;
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    refused = parallel(untold, "data-parallel", devices, 2);
    CHECK_FAILS(ctrt_parallel_step(&loss, refused, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED,
                "the module of class Untold cannot be copied, because the class has a state but neither");
}

/* The pipeline copies a module only to measure the first step. Without a copy it divides by the parameters. */
static void test_pipeline(void)
{
    static const ctrt_module_class *const classes[] = { &packed_class, &untold_class };
    ctrt_device *devices[MOST];
    four(devices);
    EACH(class_of, classes) {
        CTRT_AUTO(module) module = NULL;
        CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(packed_of(*class_of, devices[0]), CTRT_NEW(tanh),
                                                           packed_of(*class_of, devices[0]))));
        CTRT_AUTO(module) net = parallel(module, "pipeline", devices, 2);
        CTRT_AUTO(tensor) x = ramp(CTRT_SHAPE(64, FEATURES), 0.1, cpu), loss = NULL;
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
        CHECK_EQ(strstr(ctrt_parallel_describe(net), "MiB") != NULL, *class_of == &packed_class);
    }
}

static const struct strategy_test tests[] = {
    { "only the listed pointers of a state become pointers to copies, at any alignment", test_copies, { SIMS } },
    { "data-parallel refuses a class with a state that lists no pointers", test_data_parallel, { SIMS } },
    { "the pipeline does not measure a module with such a class", test_pipeline, { SIMS } },
};

TEST_MAIN
{
    run_strategy_tests(tests, COUNT(tests));
    return done();
}
