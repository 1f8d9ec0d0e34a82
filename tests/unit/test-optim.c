/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: values of PyTorch, late gradients, mixed dtypes, strides, saved files, gradient clipping and invalid
 * arguments. */
#include <math.h>
#include <unistd.h>

#include <ctrt/ctrt.h>

#include "../reference/ref.h"
#include "tap.h"

static ctrt_device *cpu;

static ctrt_tensor *parameter(const double *values, ctrt_ints shape, ctrt_dtype dtype)
{
    ctrt_tensor *tensor = NULL;
    int64_t numel = 1;
    for (int i = 0; i < shape.count; i++)
        numel *= shape.values[i];
    CHECK_OK(ctrt_from_data(&tensor, values, numel, shape, CTRT_F64, cpu));
    CHECK_OK(ctrt_to_dtype(&tensor, tensor, dtype));
    return tensor;
}

static void set_grad(ctrt_tensor *tensor, const double *values)
{
    CTRT_AUTO(tensor) grad = parameter(values, ctrt_ints_of(ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor)), ctrt_tensor_dtype(tensor));
    CHECK_OK(ctrt_tensor_set_grad(tensor, grad));
}

static void values_of(double *values, size_t count, ctrt_tensor *tensor)
{
    CHECK_OK(ctrt_to_host(values, count * sizeof *values, tensor, CTRT_F64));
}

/* ---- values of PyTorch ---- */

static double number(const struct ref_file *ref, const char *test, const char *name, double fallback)
{
    const struct ref_record *record = ref_find(ref, "%s/attr/%s", test, name);
    return record ? (record->i ? (double)record->i[0] : record->f[0]) : fallback;
}

static ctrt_status reference_optimizer(ctrt_optimizer **out, const struct ref_file *ref, const char *test)
{
    if (strncmp(test, "sgd.", 4) == 0)
        return ctrt_sgd_new(out, NULL, &(ctrt_sgd_options){
            .lr = number(ref, test, "lr", 1e-3), .momentum = number(ref, test, "momentum", 0),
            .dampening = number(ref, test, "dampening", 0), .weight_decay = number(ref, test, "weight_decay", 0),
            .nesterov = number(ref, test, "nesterov", 0) != 0, .maximize = number(ref, test, "maximize", 0) != 0 });
    const struct ref_record *betas = ref_find(ref, "%s/attr/betas", test);
    const bool decoupled = strncmp(test, "adamw.", 6) == 0;
    const ctrt_adamw_options adamw = {
        .lr = number(ref, test, "lr", 1e-3), .beta1 = betas ? betas->f[0] : 0.9, .beta2 = betas ? betas->f[1] : 0.999,
        .epsilon = number(ref, test, "eps", 1e-8), .weight_decay = number(ref, test, "weight_decay", decoupled ? 1e-2 : 0),
        .maximize = number(ref, test, "maximize", 0) != 0, .amsgrad = number(ref, test, "amsgrad", 0) != 0,
    };
    const ctrt_adam_options adam = { .lr = adamw.lr, .beta1 = adamw.beta1, .beta2 = adamw.beta2, .epsilon = adamw.epsilon,
                                     .weight_decay = adamw.weight_decay, .maximize = adamw.maximize, .amsgrad = adamw.amsgrad };
    return decoupled ? ctrt_adamw_new(out, NULL, &adamw) : ctrt_adam_new(out, NULL, &adam);
}

/* Compares p after each step, in f32 and f64. */
static void reference_case(const struct ref_file *ref, const char *test)
{
    const struct ref_record *p = ref_find(ref, "%s/in/p", test), *grads = ref_find(ref, "%s/in/grads", test), *want = ref_find(ref, "%s/out64", test);
    group("%s", test);
    if (!CHECK(p && grads && want && grads->ndim == p->ndim + 1, "the reference is incomplete"))
        return;
    for (int wide = 0; wide < 2; wide++) {
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) tensor = parameter(p->f, ctrt_ints_of(p->dims, p->ndim), wide ? CTRT_F64 : CTRT_F32);
        double got[64];
        CHECK_OK(reference_optimizer(&optimizer, ref, test));
        CHECK_OK(ctrt_optimizer_add(optimizer, &tensor, 1));
        for (int64_t step = 0; step < grads->dims[0]; step++) {
            set_grad(tensor, grads->f + step * p->numel);
            CHECK_OK(ctrt_optimizer_step(optimizer));
            values_of(got, (size_t)p->numel, tensor);
            for (int64_t i = 0; i < p->numel; i++) {
                double expected = want->f[step * p->numel + i];
                CHECK(fabs(got[i] - expected) <= (wide ? 1e-8 : 2e-6) * fmax(1, fabs(expected)), "%s, step %lld, element %lld: %.10g, expected %.10g",
                      wide ? "f64" : "f32", (long long)step, (long long)i, got[i], expected);
            }
        }
    }
}

static void references(void)
{
    struct ref_file *ref = ref_load("ops_optimizer.txt");
    int cases = 0;
    for (size_t i = 0; ref && i < ref->count; i++) {
        char test[80];
        const char *end = strstr(ref->records[i].name, "/in/p");
        if (end == NULL || end[5] != '\0')
            continue;
        snprintf(test, sizeof test, "%.*s", (int)(end - ref->records[i].name), ref->records[i].name);
        reference_case(ref, test);
        cases++;
    }
    group("the reference file has cases of all optimizers");
    CHECK(cases >= 14, "only %d cases of SGD, Adam and AdamW in the reference", cases);
    ref_free(ref);
}

/* ---- parameters whose gradients are missing in some steps ---- */

struct own { double p, m, v; int steps; };

static void own_adamw(struct own *s, double g, double lr, double decay)
{
    s->steps++;
    s->p *= 1 - lr * decay;
    s->m = 0.9 * s->m + 0.1 * g;
    s->v = 0.999 * s->v + 0.001 * g * g;
    s->p -= lr * (s->m / (1 - pow(0.9, s->steps))) / (sqrt(s->v / (1 - pow(0.999, s->steps))) + 1e-8);
}

static void own_sgd(struct own *s, double g, double lr, double dampening)
{
    s->m = s->steps++ == 0 ? g : 0.9 * s->m + (1 - dampening) * g;
    s->p -= lr * s->m;
}

static void late(bool adamw)
{
    enum { N = 4, STEPS = 6 };
    /* Whether parameter i has a gradient in a step. */
    static const bool given[STEPS][N] = { { 1, 0, 0, 0 }, { 1, 1, 0, 0 }, { 1, 1, 1, 0 }, { 0, 1, 1, 0 }, { 1, 1, 1, 0 }, { 1, 1, 1, 0 } };
    static const ctrt_dtype dtypes[N] = { CTRT_F64, CTRT_F64, CTRT_F32, CTRT_F64 };
    group("parameters whose first gradient comes in a later step, %s", adamw ? "AdamW" : "SGD with dampening");
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *p[N], *state = NULL;
    struct own own[N];
    for (int i = 0; i < N; i++) {
        own[i] = (struct own){ .p = 1 + i };
        p[i] = parameter(&own[i].p, CTRT_SHAPE(1), dtypes[i]);
    }
    if (adamw)
        CHECK_OK(ctrt_adamw_new(&optimizer, NULL, &(ctrt_adamw_options){ .lr = 0.1, .weight_decay = 0.2 }));
    else
        CHECK_OK(ctrt_sgd_new(&optimizer, NULL, &(ctrt_sgd_options){ .lr = 0.1, .momentum = 0.9, .dampening = 0.3 }));
    CHECK_OK(ctrt_optimizer_add(optimizer, p, N));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        for (int i = 0; i < N; i++) {
            double g = sin(step * N + i);
            if (given[step][i]) {
                set_grad(p[i], &g);
                if (adamw)
                    own_adamw(&own[i], g, 0.1, 0.2);
                else
                    own_sgd(&own[i], g, 0.1, 0.3);
            }
            if (i == N - 1)
                CHECK_OK(ctrt_optimizer_step(optimizer));
        }
        for (int i = 0; i < N; i++) {
            double got;
            CHECK_OK(ctrt_item(&got, p[i]));
            CHECK(fabs(got - own[i].p) < (dtypes[i] == CTRT_F32 ? 1e-6 : 1e-12), "step %d, parameter %d: %.15g, expected %.15g", step, i, got,
                  own[i].p);
        }
    }
    const char *name = adamw ? "exp_avg" : "momentum_buffer";
    double m;
    CHECK_OK(ctrt_optimizer_state(&state, optimizer, 1, name));
    CHECK_OK(ctrt_item(&m, state));
    CHECK(fabs(m - own[1].m) < 1e-12, "%s is %.15g, expected %.15g", name, m, own[1].m);
    CHECK_FAILS(ctrt_optimizer_state(&state, optimizer, 3, name), CTRT_ERR_NOT_FOUND, name);      /* never had a gradient */
    CHECK_FAILS(ctrt_optimizer_state(&state, optimizer, 4, name), CTRT_ERR_NOT_FOUND, "4 parameters");
    CHECK_FAILS(ctrt_optimizer_state(&state, optimizer, 0, "nonsense"), CTRT_ERR_NOT_FOUND, "nonsense");
    for (int i = 0; i < N; i++)
        ctrt_tensor_release(&p[i]);
}

/* ---- state of half-precision parameters ---- */

static void half(bool adamw)
{
    group("the state of f16 and bf16 parameters is f32, %s", adamw ? "AdamW" : "SGD");
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16, CTRT_F32, CTRT_F64 };
    const char *const name = adamw ? "exp_avg_sq" : "momentum_buffer";
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        CTRT_AUTO(optimizer) optimizer = NULL;
        struct own own = { .p = 1 };
        ctrt_tensor *p = parameter(&own.p, CTRT_SHAPE(1), dtypes[d]), *state = NULL;
        const double g = 1.0 / 4096;            /* its square is 0 in f16 */
        double got;
        if (adamw)
            CHECK_OK(ctrt_adamw_new(&optimizer, NULL, &(ctrt_adamw_options){ .lr = 0.125 }));
        else
            CHECK_OK(ctrt_sgd_new(&optimizer, NULL, &(ctrt_sgd_options){ .lr = 256, .momentum = 0.9 }));
        CHECK_OK(ctrt_optimizer_add(optimizer, &p, 1));
        for (int step = 0; step < 3; step++) {
            set_grad(p, &g);
            CHECK_OK(ctrt_optimizer_step(optimizer));
            if (adamw)
                own_adamw(&own, g, 0.125, 0);
            else
                own_sgd(&own, g, 256, 0);
        }
        CHECK_OK(ctrt_item(&got, p));
        CHECK(fabs(got - own.p) < 0.02, "%s: %g, expected %g", ctrt_dtype_name(dtypes[d]), got, own.p);
        CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, name));
        CHECK(ctrt_tensor_dtype(state) == (d < 2 ? CTRT_F32 : dtypes[d]), "%s of %s is %s", name, ctrt_dtype_name(dtypes[d]),
              ctrt_dtype_name(ctrt_tensor_dtype(state)));
        CHECK_OK(ctrt_item(&got, state));
        const double want = adamw ? own.v : own.m;
        CHECK(fabs(got - want) < 1e-5 * want, "%s of %s: %g, expected %g", name, ctrt_dtype_name(dtypes[d]), got, want);
        ctrt_tensor_release(&p);
    }
    /* The conversion of a module to f16 keeps the values of the optimizer state. */
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *w = NULL, *state = NULL;
    double before, after;
    CHECK_OK(ctrt_linear_new(&net, 1, 1, false, cpu));
    CHECK_OK(ctrt_module_tensor(&w, net, "weight"));
    CHECK_OK(adamw ? ctrt_adamw_new(&optimizer, net, NULL) : ctrt_sgd_new(&optimizer, net, &(ctrt_sgd_options){ .momentum = 0.5 }));
    set_grad(w, (const double[]){ 1.0 / 4096 });
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, name));
    CHECK_OK(ctrt_item(&before, state));
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F16));
    set_grad(w, (const double[]){ 0 });
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, name));
    CHECK_OK(ctrt_item(&after, state));
    CHECK(before > 0 && fabs(after - (adamw ? 0.999 : 0.5) * before) < 1e-5 * before, "the state's value %g became %g",
          before, after);
}

/* ---- layouts, versions, references ---- */

static void strides(void)
{
    group("steps with gradients and parameters that are not contiguous");
    static const double values[] = { 1, 2, 3, 4, 5, 6 }, grads[] = { 1, -1, 2, -2, 3, -3 };
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) base = parameter(values, CTRT_SHAPE(2, 3), CTRT_F64), turned = NULL, plain = parameter(values, CTRT_SHAPE(3, 2), CTRT_F64);
    CTRT_AUTO(tensor) turned_grad = parameter(grads, CTRT_SHAPE(2, 3), CTRT_F64);
    double got[6];
    CHECK_OK(ctrt_t(&turned, base));                                /* a [3, 2] parameter with strides {1, 3} */
    CHECK_OK(ctrt_t(&turned_grad, turned_grad));
    CHECK(!ctrt_tensor_is_contiguous(turned, CTRT_CONTIGUOUS_FORMAT), "the transposed parameter is contiguous");
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, &(ctrt_sgd_options){ .lr = 0.5, .momentum = 0.5 }));
    ctrt_tensor *both[] = { turned, plain };
    CHECK_OK(ctrt_optimizer_add(optimizer, both, 2));
    CHECK_OK(ctrt_tensor_set_grad(turned, turned_grad));
    CHECK_OK(ctrt_tensor_set_grad(plain, turned_grad));
    CHECK(!ctrt_tensor_is_contiguous(ctrt_tensor_grad(plain), CTRT_CONTIGUOUS_FORMAT),
          "the transposed gradient is contiguous");
    uint32_t before = ctrt_tensor_version(plain), turned_before = ctrt_tensor_version(turned);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK(ctrt_tensor_version(plain) == before + 2 && ctrt_tensor_version(turned) > turned_before,
          "2 steps changed the version to %u, from %u", ctrt_tensor_version(plain), before);
    /* momentum buffers g, then 0.5 g + g; so p - 0.5 (g + 1.5 g) */
    values_of(got, 6, turned);
    for (int i = 0; i < 6; i++) {
        int at = i % 2 * 3 + i / 2;
        CHECK(fabs(got[i] - (values[at] - 1.25 * grads[at])) < 1e-12, "transposed parameter, element %d: %g", i, got[i]);
    }
    values_of(got, 6, base);
    CHECK(fabs(got[1] - (values[1] - 1.25 * grads[1])) < 1e-12, "element 1 of the view's base after the steps: %g",
          got[1]);
    values_of(got, 6, plain);
    for (int i = 0; i < 6; i++)
        CHECK(fabs(got[i] - (values[i] - 1.25 * grads[i % 2 * 3 + i / 2])) < 1e-12, "transposed gradient, element %d: %g", i, got[i]);
}

static void versions(void)
{
    group("backward detects a step after forward");
    static const double two = 2, one = 1;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = parameter(&two, CTRT_SHAPE(1), CTRT_F32), y = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, NULL));
    CHECK(ctrt_optimizer_lr(optimizer) == 1e-3, "lr is %g without options, expected 0.001",
          ctrt_optimizer_lr(optimizer));
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    CHECK(ctrt_tensor_requires_grad(w), "a parameter added to an optimizer does not require grad");
    CHECK_OK(ctrt_mul(&y, w, w));
    set_grad(w, &one);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, NULL);
    ctrt_tensor *handle = w;
    CHECK(ctrt_tensor_is_leaf(handle) && ctrt_tensor_requires_grad(handle),
          "after a step the parameter is not a leaf that requires grad");
}

static void rates(void)
{
    group("set_lr changes the learning rate; zero_grad fills with zeros or drops gradients");
    static const double two = 2, one = 1;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = parameter(&two, CTRT_SHAPE(1), CTRT_F64);
    double value;
    CHECK_OK(ctrt_adamw_new(&optimizer, NULL, NULL));
    CHECK_OK(ctrt_optimizer_step(optimizer));       /* without parameters */
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    CHECK_OK(ctrt_optimizer_step(optimizer));       /* without gradients */
    CHECK_OK(ctrt_optimizer_set_lr(optimizer, 0));
    set_grad(w, &one);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_item(&value, w));
    CHECK(value == 2, "with learning rate 0 the value became %g", value);
    CHECK_OK(ctrt_optimizer_set_lr(optimizer, 0.25));
    CHECK(ctrt_optimizer_lr(optimizer) == 0.25, "lr is %g, expected 0.25", ctrt_optimizer_lr(optimizer));
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, false));
    CHECK_OK(ctrt_item(&value, ctrt_tensor_grad(w)));
    CHECK(value == 0, "zero_grad: the gradient is %g, expected 0", value);
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK(ctrt_tensor_grad(w) == NULL, "zero_grad did not drop the gradient");
    CHECK_FAILS(ctrt_optimizer_set_lr(optimizer, -1), CTRT_ERR_INVALID_ARGUMENT, "lr is -1");
    CHECK_FAILS(ctrt_optimizer_set_lr(optimizer, NAN), CTRT_ERR_INVALID_ARGUMENT, "lr");
    CHECK_FAILS(ctrt_optimizer_set_lr(NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "optimizer");
    CHECK(ctrt_optimizer_lr(NULL) == 0, "the learning rate of NULL is not 0");
}

static void bad(void)
{
    group("invalid arguments are errors");
    static const double two = 2;
    static const struct { ctrt_sgd_options options; const char *words; } sgd[] = {
        { { .lr = -1 }, "lr is -1" }, { { .momentum = -0.5 }, "momentum is -0.5" }, { { .weight_decay = NAN }, "weight_decay" },
        { { .nesterov = true }, "nesterov" }, { { .nesterov = true, .momentum = 0.9, .dampening = 0.1 }, "nesterov" },
    };
    static const struct { ctrt_adamw_options options; const char *words; } adamw[] = {
        { { .lr = -1 }, "lr is -1" }, { { .beta1 = 1 }, "beta1 is 1" }, { { .beta2 = -0.1 }, "beta2" }, { { .epsilon = -1 }, "epsilon" },
        { { .weight_decay = -1 }, "weight_decay" }, { { .lr = NAN }, "lr" },
    };
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = parameter(&two, CTRT_SHAPE(1), CTRT_F32), integers = NULL, result = NULL;
    for (size_t i = 0; i < sizeof sgd / sizeof sgd[0]; i++)
        CHECK_FAILS(ctrt_sgd_new(&optimizer, NULL, &sgd[i].options), CTRT_ERR_INVALID_ARGUMENT, sgd[i].words);
    for (size_t i = 0; i < sizeof adamw / sizeof adamw[0]; i++)
        CHECK_FAILS(ctrt_adamw_new(&optimizer, NULL, &adamw[i].options), CTRT_ERR_INVALID_ARGUMENT, adamw[i].words);
    CHECK(optimizer == NULL, "a failed constructor set its output");
    CHECK_FAILS(ctrt_sgd_new(NULL, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_adamw_new(NULL, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, NULL));
    CHECK_OK(ctrt_zeros(&integers, CTRT_SHAPE(1), CTRT_I32, cpu));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_mul(&result, w, w));
    CHECK_FAILS(ctrt_optimizer_add(optimizer, &integers, 1), CTRT_ERR_DTYPE, "i32");
    CHECK_FAILS(ctrt_optimizer_add(optimizer, &result, 1), CTRT_ERR_AUTOGRAD, "leaves");
    ctrt_tensor *list[] = { w, NULL };
    CHECK_FAILS(ctrt_optimizer_add(optimizer, list, 2), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(ctrt_optimizer_add(optimizer, list, 1));              /* the failed call did not add w */
    CHECK_FAILS(ctrt_optimizer_add(optimizer, list, 1), CTRT_ERR_STATE, "already");
    CHECK_FAILS(ctrt_optimizer_add(optimizer, NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "parameters");
    CHECK_FAILS(ctrt_optimizer_add(optimizer, list, -1), CTRT_ERR_INVALID_ARGUMENT, "count is -1");
    CHECK_FAILS(ctrt_optimizer_add(NULL, list, 1), CTRT_ERR_INVALID_ARGUMENT, "optimizer");
    CHECK_FAILS(ctrt_optimizer_step(NULL), CTRT_ERR_INVALID_ARGUMENT, "optimizer");
    CHECK_FAILS(ctrt_optimizer_zero_grad(NULL, true), CTRT_ERR_INVALID_ARGUMENT, "optimizer");
    CHECK_FAILS(ctrt_clip_grad_norm_(NULL, NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "module");
    ctrt_optimizer_release(&optimizer);
    ctrt_optimizer_release(&optimizer);
    ctrt_optimizer_release(NULL);
}

/* ---- an explicit zero ---- */

/* Makes one step from 2 with gradient 0.5. Returns the new value. */
static double stepped(ctrt_optimizer *optimizer)
{
    static const double two = 2, half = 0.5;
    CTRT_AUTO(tensor) w = parameter(&two, CTRT_SHAPE(1), CTRT_F64);
    double value = NAN;
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    set_grad(w, &half);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_item(&value, w));
    return value;
}

static void zeros(void)
{
    group("an option of 0 is the default, and CTRT_ZERO is 0");
    /* Expected values computed with PyTorch. */
    static const struct { ctrt_adamw_options options; double lr, want; } adamw[] = {
        { { .lr = 0 }, 1e-3, 1.99900000002 },
        { { .lr = CTRT_ZERO }, 0, 2 },
        { { .lr = 0.1, .beta1 = CTRT_ZERO, .epsilon = CTRT_ZERO }, 0.1, 1.9 },
        { { .lr = 0.1, .beta2 = CTRT_ZERO, .epsilon = 0.5, .weight_decay = CTRT_ZERO }, 0.1, 1.95 },
    };
    static const struct { ctrt_sgd_options options; double want; bool buffer; } sgd[] = {
        { { .lr = 0 }, 1.9995, false },
        { { .lr = CTRT_ZERO }, 2, false },
        { { .lr = 1, .momentum = CTRT_ZERO }, 1.5, false },
        { { .lr = 1, .momentum = 0.5, .dampening = CTRT_ZERO, .weight_decay = CTRT_ZERO, .nesterov = true },
          1.25, true },
    };
    for (size_t i = 0; i < sizeof adamw / sizeof adamw[0]; i++) {
        CTRT_AUTO(optimizer) optimizer = NULL;
        CHECK_OK(ctrt_adamw_new(&optimizer, NULL, &adamw[i].options));
        CHECK(ctrt_optimizer_lr(optimizer) == adamw[i].lr, "AdamW %zu: lr %g", i, ctrt_optimizer_lr(optimizer));
        const double got = stepped(optimizer);
        CHECK(fabs(got - adamw[i].want) < 1e-13, "AdamW %zu: %.15g, expected %.15g", i, got, adamw[i].want);
    }
    for (size_t i = 0; i < sizeof sgd / sizeof sgd[0]; i++) {
        CTRT_AUTO(optimizer) optimizer = NULL;
        ctrt_tensor *buffer = NULL;
        CHECK_OK(ctrt_sgd_new(&optimizer, NULL, &sgd[i].options));
        const double got = stepped(optimizer);
        CHECK(fabs(got - sgd[i].want) < 1e-15, "SGD %zu: %.15g, expected %.15g", i, got, sgd[i].want);
        CHECK((ctrt_optimizer_state(&buffer, optimizer, 0, "momentum_buffer") == CTRT_OK) == sgd[i].buffer,
              "SGD %zu: wrong presence of momentum_buffer", i);
    }
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, NULL));
    CHECK_OK(ctrt_optimizer_set_lr(optimizer, CTRT_ZERO));
    CHECK(ctrt_optimizer_lr(optimizer) == 0, "lr is %g, expected 0", ctrt_optimizer_lr(optimizer));
    CHECK_FAILS(ctrt_sgd_new(&optimizer, NULL, &(ctrt_sgd_options){ .momentum = CTRT_ZERO, .nesterov = true }),
                CTRT_ERR_INVALID_ARGUMENT, "nesterov");
    CHECK(ctrt_exact(0) == CTRT_ZERO && ctrt_exact(-0.0) == CTRT_ZERO && ctrt_exact(-2) == -2 && isnan(ctrt_exact(NAN)),
          "ctrt_exact");
}

/* ---- files ---- */

/* Saves the optimizer and replaces the 8 bytes of `marker`, which occur once in the file, with `value`. */
static void save_spoiled(const char *path, ctrt_optimizer *optimizer, const void *marker, const void *value)
{
    static unsigned char bytes[4096];
    int found = 0;
    CHECK_OK(ctrt_optimizer_save(optimizer, path));
    FILE *file = fopen(path, "r+b");
    const size_t size = file != NULL ? fread(bytes, 1, sizeof bytes, file) : 0;
    for (size_t at = 0; at + 8 <= size; at += 8)
        if (memcmp(bytes + at, marker, 8) == 0) {
            memcpy(bytes + at, value, 8);
            found++;
        }
    CHECK(found == 1, "the marker is %d times in the file", found);
    if (file != NULL) {
        rewind(file);
        CHECK(fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "the file was not written");
    }
}

static void files(void)
{
    group("values that a constructor rejects are also rejected in a file");
    static const double mark = 0.4242, two = 2, one = 1;
    static const struct { ctrt_adamw_options options; double value; const char *words; } adamw[] = {
        { { .beta1 = mark }, 5, "beta1 is 5" },
        { { .beta1 = mark }, 1, "beta1 is 1" },
        { { .beta2 = mark }, 2, "beta2 is 2" },
        { { .beta2 = mark }, NAN, "beta2" },
        { { .epsilon = mark }, -1, "epsilon is -1" },
        { { .epsilon = mark }, INFINITY, "epsilon is inf" },
        { { .lr = mark }, -1, "lr is -1" },
        { { .weight_decay = mark }, NAN, "weight_decay" },
        { { .epsilon = mark }, 0, NULL },
        { { .lr = mark }, 0, NULL },
        { { .beta1 = mark }, 0, NULL },
    };
    static const struct { ctrt_sgd_options options; double value; const char *words; } sgd[] = {
        { { .momentum = mark }, -1, "momentum is -1" }, { { .momentum = 0.5, .dampening = mark }, NAN, "dampening" },
        { { .momentum = mark, .nesterov = true }, 0, "nesterov" }, { { .momentum = 0.5, .dampening = mark }, -1, NULL },
    };
    static const struct { int64_t value; const char *words; } steps[] = {
        { INT64_MAX, "step is 9223372036854775807" },
        { INT64_MAX - 1, "step" },
        { INT64_MIN, "step" },
        { -1, "step is -1" },
        { ((int64_t)1 << 53) + 1, "2^53" },
        { (int64_t)1 << 53, NULL },
    };
    char path[] = "/tmp/ctrt-optim-XXXXXX";
    const int fd = mkstemp(path);
    if (!CHECK(fd >= 0, "no temporary file"))
        return;
    close(fd);
    CTRT_AUTO(optimizer) optimizer = NULL;
    for (size_t i = 0; i < sizeof adamw / sizeof adamw[0]; i++) {
        CHECK_OK(ctrt_adamw_new(&optimizer, NULL, &adamw[i].options));
        save_spoiled(path, optimizer, &mark, &adamw[i].value);
        if (adamw[i].words != NULL)
            CHECK_FAILS(ctrt_optimizer_load(optimizer, path), CTRT_ERR_FORMAT, adamw[i].words);
        else
            CHECK_OK(ctrt_optimizer_load(optimizer, path));
    }
    for (size_t i = 0; i < sizeof sgd / sizeof sgd[0]; i++) {
        CHECK_OK(ctrt_sgd_new(&optimizer, NULL, &sgd[i].options));
        save_spoiled(path, optimizer, &mark, &sgd[i].value);
        if (sgd[i].words != NULL)
            CHECK_FAILS(ctrt_optimizer_load(optimizer, path), CTRT_ERR_FORMAT, sgd[i].words);
        else
            CHECK_OK(ctrt_optimizer_load(optimizer, path));
    }
    const int64_t taken = 12345;
    CTRT_AUTO(tensor) w = parameter(&two, CTRT_SHAPE(1), CTRT_F64);
    CHECK_OK(ctrt_adamw_new(&optimizer, NULL, NULL));
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    set_grad(w, &one);
    for (int64_t i = 0; i < taken; i++)
        CHECK_OK(ctrt_optimizer_step(optimizer));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        save_spoiled(path, optimizer, &taken, &steps[i].value);
        if (steps[i].words != NULL)
            CHECK_FAILS(ctrt_optimizer_load(optimizer, path), CTRT_ERR_FORMAT, steps[i].words);
        else
            CHECK_OK(ctrt_optimizer_load(optimizer, path));
    }
    CHECK_OK(ctrt_optimizer_step(optimizer));       /* step number 2^53 + 1 */
    unlink(path);
}

/* ---- clipping ---- */

static void clipping(void)
{
    group("clip_grad_norm_ scales gradients above max_norm and returns the norm");
    static const double zeros[6] = { 0 };
    static const struct { double max_norm, factor; } cases[] = {
        { 100, 1 }, { 13, 13 / 13.000001 }, { 6.5, 6.5 / 13.000001 }, { 0, 0 },
    };
    CTRT_AUTO(module) net = NULL;
    ctrt_tensor *w = NULL, *b = NULL;
    CHECK_OK(ctrt_linear_new(&net, 2, 1, true, cpu));
    CHECK_OK(ctrt_module_tensor(&w, net, "weight"));
    CHECK_OK(ctrt_module_tensor(&b, net, "bias"));
    double norm = -1, got[2];
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 1));
    CHECK(norm == 0, "the norm without gradients is %g", norm);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int asked = 0; asked < 2; asked++) {
            set_grad(w, (const double[]){ 3, -4 });
            set_grad(b, (const double[]){ 12 });
            CHECK_OK(ctrt_clip_grad_norm_(asked ? &norm : NULL, net, cases[i].max_norm));
            CHECK(!asked || fabs(norm - 13) < 1e-5, "max_norm %g: the norm is %g, expected 13", cases[i].max_norm, norm);
            values_of(got, 2, ctrt_tensor_grad(w));
            CHECK(fabs(got[0] - 3 * cases[i].factor) < 1e-5 && fabs(got[1] + 4 * cases[i].factor) < 1e-5, "max_norm %g: %g %g", cases[i].max_norm,
                  got[0], got[1]);
            values_of(got, 1, ctrt_tensor_grad(b));
            CHECK(fabs(got[0] - 12 * cases[i].factor) < 1e-5, "max_norm %g: %g", cases[i].max_norm, got[0]);
        }
    }
    CHECK_FAILS(ctrt_clip_grad_norm_(&norm, net, -1), CTRT_ERR_INVALID_ARGUMENT, "max_norm is -1");
    CHECK_FAILS(ctrt_clip_grad_norm_(&norm, net, NAN), CTRT_ERR_INVALID_ARGUMENT, "max_norm");
    /* 300^2 overflows f16. */
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F16));
    set_grad(w, (const double[]){ 300, 400 });
    set_grad(b, zeros);
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 50));
    CHECK(fabs(norm - 500) < 1e-3, "f16: the norm is %g, expected 500", norm);
    values_of(got, 2, ctrt_tensor_grad(w));
    CHECK(fabs(got[0] - 30) < 0.1 && fabs(got[1] - 40) < 0.1,
          "f16: the clipped gradients are %g and %g, expected 30 and 40", got[0], got[1]);
}

TEST_MAIN
{
    group("the cpu opens");
    if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")))
        return done();
    references();
    late(false);
    late(true);
    half(false);
    half(true);
    strides();
    versions();
    rates();
    bad();
    zeros();
    files();
    clipping();
    return done();
}
