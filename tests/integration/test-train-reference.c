/* SPDX-License-Identifier: Apache-2.0 */
/* Ten training steps of three networks with SGD and AdamW, compared with PyTorch: losses, final parameters, first
 * logits.
 *
 *     test-train-reference [DEVICE [NETWORK]]     default: CTRT_DEVICE, else the best device present; all networks
 *
 * A distance is the largest difference divided by the largest magnitude of a tensor. tests/reference/README.md explains
 * the tolerance. */
#include <math.h>

#include <ctrt/ctrt.h>

#include "../options.h"
#include "../reference/ref.h"
#include "../unit/block_module.h"
#include "../unit/tap.h"

enum { STEPS = 10, BATCHES = 2 };
#define TOLERANCE 1e-5

/* ---- the transformer of the reference, with user-defined modules ---- */

enum { VOCABULARY = 23, LENGTH = 12, WIDTH = 12, HEADS = 2, HIDDEN = 32, LAYERS = 2 };

struct transformer { ctrt_module *tok, *pos, *blocks, *ln, *head; };

static ctrt_status transformer_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct transformer *t = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = NULL, p = NULL;
    (void)count;
    CTRT_TRY(ctrt_arange(&p, ctrt_int(0), ctrt_int(ctrt_tensor_size(inputs[0], 1)), ctrt_int(1), CTRT_I64,
                         ctrt_tensor_device(inputs[0])));
    TRY(ctrt_forward(&p, t->pos, p));
    TRY(ctrt_forward(&x, t->tok, inputs[0]));
    TRY(ctrt_add(&x, x, p));
    TRY(ctrt_forward(&x, t->blocks, x));
    TRY(ctrt_forward(&x, t->ln, x));
    return ctrt_forward(y, t->head, x);
}

static const ctrt_module_class transformer_class = {
    .size = sizeof(ctrt_module_class), .kind = "Transformer", .state_bytes = sizeof(struct transformer),
    .forward = transformer_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct transformer, tok), offsetof(struct transformer, pos),
                                          offsetof(struct transformer, blocks), offsetof(struct transformer, ln),
                                          offsetof(struct transformer, head)),
};

static ctrt_status transformer_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_TRY(ctrt_module_new(out, &transformer_class));
    struct transformer *t = ctrt_module_state(*out);
    CTRT_TRY(ctrt_module_add_module(*out, "tok", t->tok = CTRT_NEW(embedding, VOCABULARY, WIDTH, NULL, device)));
    CTRT_TRY(ctrt_module_add_module(*out, "pos", t->pos = CTRT_NEW(embedding, LENGTH, WIDTH, NULL, device)));
    CTRT_TRY(ctrt_module_add_module(*out, "blocks", t->blocks = CTRT_NEW(sequential, CTRT_NO_MODULES)));
    for (int i = 0; i < LAYERS; i++)
        CTRT_TRY(ctrt_sequential_add(t->blocks, CTRT_MAKE(block_new, WIDTH, HEADS, HIDDEN, false, device)));
    CTRT_TRY(ctrt_module_add_module(*out, "ln", t->ln = CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, device)));
    return ctrt_module_add_module(*out, "head", t->head = CTRT_NEW(linear, WIDTH, VOCABULARY, true, device));
}

/* ---- MLP and CNN ---- */

static ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, 16, 32, true, device), CTRT_NEW(relu), CTRT_NEW(linear, 32, 32, true, device), CTRT_NEW(relu),
        CTRT_NEW(linear, 32, 10, true, device)));
}

static ctrt_status cnn_new(ctrt_module **out, ctrt_device *device)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_conv2d_options halving = CTRT_WITH(ctrt_conv2d_options, .stride = { 2, 2 }, .padding = { 1, 1 });
    const ctrt_pool2d_options pool = { .size = sizeof(ctrt_pool2d_options), .kernel = { 2, 2 } };
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 8, 3, 3, &same, false, device), CTRT_NEW(batch_norm2d, 8, NULL, device),
            CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &pool), CTRT_NEW(conv2d, 8, 16, 3, 3, &halving, true, device), CTRT_NEW(relu),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 64, 10, true, device)));
}

/* ---- one run ---- */

static double hyper(const struct ref_file *ref, const char *name)
{
    const struct ref_record *record = ref_find(ref, "hyper/%s", name);
    CHECK(record != NULL, "the reference has no hyper/%s", name);
    return record ? record->f[0] : 0;
}

/* The largest difference divided by the largest magnitude. */
static double distance(ctrt_tensor *tensor, const struct ref_record *record)
{
    double worst = 0, largest = 1e-30;
    if (ctrt_tensor_numel(tensor) != record->numel)
        return INFINITY;
    size_t bytes = (size_t)record->numel * sizeof(double);
    double *values = malloc(bytes + 1);
    CHECK_OK(ctrt_to_host(values, bytes, tensor, CTRT_F64));
    for (int64_t i = 0; i < record->numel; i++) {
        double difference = fabs(values[i] - record->f[i]);
        worst = difference > worst || isnan(difference) ? difference : worst;
        largest = fmax(largest, fabs(record->f[i]));
    }
    free(values);
    return worst / largest;
}

static bool near(double distance)
{
    return distance <= TOLERANCE;                   /* false for NaN */
}

/* Sets parameters and buffers to the initial values of the reference, and checks that both have the same number. */
static void fill(ctrt_module *net, const struct ref_file *ref, ctrt_device *device)
{
    size_t here = ctrt_module_parameter_count(net) + ctrt_module_buffer_count(net), there = 0;
    for (size_t i = 0; i < ref->count; i++) {
        ctrt_tensor *tensor = NULL;
        CTRT_AUTO(tensor) value = NULL;
        if (strncmp(ref->records[i].name, "init/", 5) != 0)
            continue;
        there++;
        if (CHECK_OK(ctrt_module_tensor(&tensor, net, ref->records[i].name + 5))
            && CHECK_OK(ref_tensor(&value, &ref->records[i], CTRT_DTYPE_DEFAULT, device)))
            ctrt_no_grad CHECK_OK(ctrt_copy_(tensor, value));
    }
    CHECK(here == there && here > 0, "the network has %zu parameters and buffers, the reference %zu", here, there);
}

static ctrt_status optimizer_new(ctrt_optimizer **out, ctrt_module *net, const struct ref_file *ref, const char *kind)
{
    if (strcmp(kind, "sgd") == 0)
        return ctrt_sgd_new(out, net, SGD(.lr = hyper(ref, "lr"), .momentum = hyper(ref, "momentum"),
                                          .weight_decay = hyper(ref, "weight_decay")));
    return ctrt_adamw_new(out, net, ADAMW(.lr = hyper(ref, "lr"), .beta1 = hyper(ref, "beta1"),
                                          .beta2 = hyper(ref, "beta2"), .epsilon = hyper(ref, "eps"),
                                          .weight_decay = hyper(ref, "weight_decay")));
}

static void check_gradient_norms(ctrt_module *net, const struct ref_file *ref, int step)
{
    const char *name;
    ctrt_tensor *parameter;
    for (size_t i = 0; ctrt_module_parameter(&name, &parameter, net, i) == CTRT_OK; i++) {
        CTRT_AUTO(tensor) norm = NULL;
        double value;
        const struct ref_record *want = ref_find(ref, "gradnorm64/%s", name);
        if (!CHECK(want && ctrt_tensor_grad(parameter), "step %d: %s has no gradient, in ctrt or in the reference",
                   step, name))
            continue;
        CHECK_OK(ctrt_to_dtype(&norm, ctrt_tensor_grad(parameter), CTRT_F64));
        CHECK_OK(ctrt_square(&norm, norm));
        CHECK_OK(ctrt_sum(&norm, norm, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_item(&value, norm));
        /* The norms of the network's gradients are near 1; a tiny gradient consists of rounding errors, so it has an
         * absolute bound. */
        CHECK(fabs(sqrt(value) - want->f[step]) <= 2e-5 * fmax(want->f[step], 1e-2),
              "step %d: gradient of %s has norm %.9g, expected %.9g", step,
              name, sqrt(value), want->f[step]);
    }
}

static ctrt_status train(ctrt_module *net, ctrt_optimizer *optimizer, const struct ref_file *ref, ctrt_tensor *xs,
                         ctrt_tensor *ys)
{
    const struct ref_record *losses = ref_find(ref, "loss"), *first = ref_find(ref, "logits");
    CTRT_AUTO(tensor) x = NULL, y = NULL, logits = NULL, loss = NULL;
    if (!CHECK(losses && losses->numel == STEPS && first, "the reference lacks losses or logits"))
        return CTRT_OK;
    for (int step = 0; step < STEPS; step++) {
        double value;
        TRY(ctrt_select(&x, xs, 0, step % BATCHES));
        TRY(ctrt_select(&y, ys, 0, step % BATCHES));
        TRY(ctrt_forward(&logits, net, x));
        if (step == 0)
            CHECK(near(distance(logits, first)), "the first logits are off by %.2e", distance(logits, first));
        TRY(ctrt_flatten(&logits, logits, 0, -2));
        TRY(ctrt_flatten(&y, y, 0, -1));
        TRY(ctrt_cross_entropy(&loss, logits, y, NULL));
        TRY(ctrt_optimizer_zero_grad(optimizer, step % 2 == 0));
        TRY(ctrt_backward(loss));
        check_gradient_norms(net, ref, step);
        TRY(ctrt_optimizer_step(optimizer));
        TRY(ctrt_item(&value, loss));
        CHECK(near(fabs(value - losses->f[step]) / fabs(losses->f[step])), "step %d: loss %.9g, expected %.9g", step,
              value, losses->f[step]);
    }
    return CTRT_OK;
}

static void check_final(ctrt_module *net, const struct ref_file *ref)
{
    double worst = 0;
    const char *where = "?";
    for (size_t i = 0; i < ref->count; i++) {
        ctrt_tensor *tensor = NULL;
        if (strncmp(ref->records[i].name, "final/", 6) != 0 ||
            !CHECK_OK(ctrt_module_tensor(&tensor, net, ref->records[i].name + 6)))
            continue;
        double far = distance(tensor, &ref->records[i]);
        CHECK(near(far), "%s is off by %.2e", ref->records[i].name, far);
        CHECK(strcmp(ctrt_dtype_name(ctrt_tensor_dtype(tensor)), ref->records[i].dtype) == 0,
              "%s has dtype %s, expected %s",
              ref->records[i].name, ctrt_dtype_name(ctrt_tensor_dtype(tensor)), ref->records[i].dtype);
        if (far > worst)
            worst = far, where = ref->records[i].name;
    }
    printf("# largest distance: %s, %.1e\n", where, worst);
}

static void run(const char *model, ctrt_status (*make)(ctrt_module **out, ctrt_device *device), const char *kind,
                ctrt_device *device)
{
    char file[80];
    group("%s, %s, ten steps on %s", model, kind, ctrt_device_name(device));
    snprintf(file, sizeof file, "train_%s_%s.txt", model, kind);
    struct ref_file *ref = ref_load(file);
    if (!CHECK(ref && ref_find(ref, "input/x") && ref_find(ref, "input/y"), "cannot use %s", file))
        return;
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CHECK_OK(ref_tensor(&x, ref_find(ref, "input/x"), CTRT_DTYPE_DEFAULT, device));
    CHECK_OK(ref_tensor(&y, ref_find(ref, "input/y"), CTRT_DTYPE_DEFAULT, device));
    if (CHECK_OK(make(&net, device))) {
        fill(net, ref, device);
        if (CHECK_OK(optimizer_new(&optimizer, net, ref, kind)) && CHECK_OK(train(net, optimizer, ref, x, y)))
            check_final(net, ref);
    }
    ref_free(ref);
}

static const struct {
    const char *name;
    ctrt_status (*make)(ctrt_module **out, ctrt_device *device);
} networks[] = { { "mlp", mlp_new }, { "cnn", cnn_new }, { "transformer", transformer_new } };

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the device");
    if (!CHECK_OK(ctrt_device_get(&device, argc > 1 ? argv[1] : NULL)))
        return done();
    for (int i = 0; i < 2; i++) {
        const char *kind = i == 0 ? "sgd" : "adamw";
        EACH(n, networks)
            if (argc < 3 || strcmp(argv[2], n->name) == 0)
                run(n->name, n->make, kind, device);
    }
    return done();
}
