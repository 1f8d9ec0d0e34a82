/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient scalers (ctrt/amp.h): scale and tracker against PyTorch's (tests/reference/scaler.txt), skipped steps of
 * each optimizer on synchronous and asynchronous devices, messages, limits, files. */
#include "../options.h"
#include "calls.h"
#include "folder.h"
#include "reference/ref.h"
#include "sims.h"

static ctrt_device *device;

struct scaled {
    ctrt_grad_scaler *scaler;
    ctrt_optimizer *optimizer;
    ctrt_tensor *parameter;
};

static void scaled_free(struct scaled *s)
{
    ctrt_grad_scaler_release(&s->scaler);
    ctrt_optimizer_release(&s->optimizer);
    ctrt_tensor_release(&s->parameter);
}

static ctrt_tensor *tensor_of(const float *values, int64_t count)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_from_data(&x, values, count, CTRT_SHAPE(count), CTRT_F32, device));
    return x;
}

/* Backward of scale * sum(parameter * gradient). */
static void backward(ctrt_grad_scaler *scaler, ctrt_tensor *parameter, const float *gradient)
{
    CTRT_AUTO(tensor) g = tensor_of(gradient, ctrt_tensor_numel(parameter)), loss = NULL;
    CHECK_OK(ctrt_tensor_set_grad(parameter, NULL));
    CHECK_OK(ctrt_mul(&loss, parameter, g));
    CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_grad_scaler_scale(&loss, scaler, loss));
    CHECK_OK(ctrt_backward(loss));
}

static void scaled_step(struct scaled *s, const float *gradient)
{
    backward(s->scaler, s->parameter, gradient);
    CHECK_OK(ctrt_grad_scaler_step(s->scaler, s->optimizer));
    CHECK_OK(ctrt_grad_scaler_update(s->scaler, 0));
}

static struct scaled scaled_new(const ctrt_grad_scaler_options *options, const float *values, int64_t count)
{
    struct scaled s = { NULL };
    CHECK_OK(ctrt_grad_scaler_new(&s.scaler, options));
    s.parameter = tensor_of(values, count);
    return s;
}

static ctrt_status sgd(ctrt_optimizer **out)
{
    return ctrt_sgd_new(out, NULL, SGD(.lr = 0.1, .momentum = 0.9, .dampening = 0.5));
}
static ctrt_status sgd_plain(ctrt_optimizer **out) { return ctrt_sgd_new(out, NULL, SGD(.lr = 0.1)); }
static ctrt_status adam(ctrt_optimizer **out) { return ctrt_adam_new(out, NULL, ADAM(.lr = 0.05)); }
static ctrt_status adamw(ctrt_optimizer **out)
{
    return ctrt_adamw_new(out, NULL, ADAMW(.lr = 0.05, .weight_decay = 0.1, .amsgrad = true));
}
static ctrt_status rmsprop(ctrt_optimizer **out)
{
    return ctrt_rmsprop_new(out, NULL, RMSPROP(.lr = 0.02, .momentum = 0.5));
}
static ctrt_status adagrad(ctrt_optimizer **out)
{
    return ctrt_adagrad_new(out, NULL, ADAGRAD(.lr = 0.1, .lr_decay = 0.05));
}
static ctrt_status nadam(ctrt_optimizer **out)
{
    return ctrt_nadam_new(out, NULL, NADAM(.lr = 0.05));
}

static const struct { const char *name; ctrt_status (*create)(ctrt_optimizer **); } kinds[] = {
    { "sgd", sgd }, { "sgd_plain", sgd_plain }, { "adam", adam }, { "adamw", adamw }, { "rmsprop", rmsprop },
    { "adagrad", adagrad }, { "nadam", nadam },
};

static void optimizer_make(struct scaled *s, ctrt_status (*create)(ctrt_optimizer **))
{
    CHECK_OK(create(&s->optimizer));
    CHECK_OK(ctrt_optimizer_add(s->optimizer, &s->parameter, 1));
}

static ctrt_grad_scaler_state state_of(ctrt_grad_scaler *scaler)
{
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    CHECK_OK(ctrt_grad_scaler_get_state(&state, scaler));
    return state;
}

static void state_is(ctrt_grad_scaler *scaler, double scale, int64_t tracker, const char *what)
{
    const ctrt_grad_scaler_state state = state_of(scaler);
    CHECK(state.scale == scale && state.growth_tracker == tracker, "%s: scale %a, tracker %lld, expected %a, %lld",
          what, state.scale, (long long)state.growth_tracker, scale, (long long)tracker);
}

/* ---- against PyTorch ---- */

static void trace_run(const struct ref_file *ref, int index, int steps)
{
    const struct ref_record *options = ref_find(ref, "trace.%d/options", index),
                            *infs = ref_find(ref, "trace.%d/infs", index),
                            *rows = ref_find(ref, "trace.%d/rows", index);
    const ctrt_grad_scaler_options o = *SCALER(.init_scale = options->f[0], .growth_factor = options->f[1],
                                         .backoff_factor = options->f[2], .growth_interval = (int64_t)options->f[3]);
    struct scaled s = scaled_new(&o, (const float[]){ 1 }, 1);
    double scale = options->f[0], tracker = 0;
    int64_t inf = 0, row = 0;
    optimizer_make(&s, sgd_plain);
    for (int step = 0; step < steps && tap_state.failed == 0; step++) {
        const bool bad = inf < infs->numel && infs->i[inf] == step;
        char what[40];
        scaled_step(&s, (const float[]){ bad ? INFINITY : 0x1p-120f });
        inf += bad;
        tracker++;
        if (row < rows->dims[0] && rows->f[3 * row] == step) {
            scale = rows->f[3 * row + 1];
            tracker = rows->f[3 * row++ + 2];
        }
        snprintf(what, sizeof what, "trace %d, step %d", index, step);
        state_is(s.scaler, scale, (int64_t)tracker, what);
    }
    scaled_free(&s);
}

/* The device of a test, and whether the host takes the decisions. */
static const char *const devices[] = { "cpu", "sim:0" };

TEST(traces, "scale and tracker of PyTorch")
{
    struct ref_file *ref = ref_load("scaler.txt");
    REQUIRE(ref != NULL, "no reference file");
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_device_get(&device, devices[d]));
        for (int i = 0; i < 4; i++)
            trace_run(ref, i, FEWER_SANITIZED(d == 0 ? 5000 : 400));
    }
    ref_free(ref);
}

TEST(optimizers, "parameters of PyTorch with skipped steps")
{
    struct ref_file *ref = ref_load("scaler.txt");
    REQUIRE(ref != NULL, "no reference file");
    const struct ref_record *skipped = ref_find(ref, "skipped"), *gradients = ref_find(ref, "gradients");
    for (int d = 0; d < 2; d++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            CHECK_OK(ctrt_device_get(&device, devices[d]));
            struct scaled s = scaled_new(SCALER(.growth_interval = 3),
                                         (const float[]){ 1, -0.5f, 0.25f }, 3);
            int64_t next = 0, steps = 0, all = 0, row = 0;
            ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
            optimizer_make(&s, kinds[k].create);
            for (int step = 0; step < gradients->dims[0]; step++) {
                float g[3];
                for (int i = 0; i < 3; i++)
                    g[i] = (float)gradients->f[3 * step + i];
                if (next < skipped->numel && skipped->i[next] == step) {
                    g[step % 3] = step % 2 ? NAN : INFINITY;
                    next++;
                }
                scaled_step(&s, g);
            }
            char what[60];
            snprintf(what, sizeof what, "%s on %s", kinds[k].name, devices[d]);
            check_values_within(what, __LINE__, s.parameter, ref_find(ref, "final/%s", kinds[k].name)->f, 3, 2e-6);
            CHECK_OK(ctrt_optimizer_get_state(&steps, states, s.optimizer, 0));
            CHECK_OK(ctrt_grad_scaler_skips(&all, &row, s.scaler));
            CHECK(steps == gradients->dims[0] - skipped->numel, "%s: %lld steps", what, (long long)steps);
            CHECK_EQ(all, skipped->numel);
            CHECK_EQ(row, 0);
            scaled_free(&s);
        }
    ref_free(ref);
}

/* The vectors of the algorithm: three infs, then 2,000 good steps. */
TEST(vectors, "the vectors of the algorithm")
{
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    struct scaled s = scaled_new(NULL, (const float[]){ 1 }, 1);
    optimizer_make(&s, sgd_plain);
    for (int i = 0; i < 2003; i++)
        scaled_step(&s, (const float[]){ i < 3 ? INFINITY : 0 });
    state_is(s.scaler, 16384, 0, "three infs, then 2000 steps");
    scaled_free(&s);
}

/* ---- several optimizers and parameters ---- */

/* One of two optimizers skips; the scale decreases once. A parameter without a gradient in a skipped step keeps its
 * count of steps. */
TEST(parts, "several optimizers; parameters without a gradient")
{
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_device_get(&device, devices[d]));
        struct scaled s = scaled_new(NULL, (const float[]){ 1, 2 }, 2);
        CTRT_AUTO(tensor) other = tensor_of((const float[]){ 3 }, 1), third = tensor_of((const float[]){ 4 }, 1);
        CTRT_AUTO(optimizer) second = NULL;
        ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
        int64_t steps = 0;
        optimizer_make(&s, adam);
        CHECK_OK(ctrt_optimizer_add(s.optimizer, &third, 1));
        CHECK_OK(adam(&second));
        CHECK_OK(ctrt_optimizer_add(second, &other, 1));
        for (int step = 0; step < 4; step++) {
            backward(s.scaler, s.parameter, step == 1 ? (const float[]){ 1, INFINITY } : (const float[]){ 1, -1 });
            backward(s.scaler, other, (const float[]){ 1 });
            CHECK_OK(ctrt_tensor_set_grad(third, NULL));
            if (step != 1)
                backward(s.scaler, third, (const float[]){ 1 });
            CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
            CHECK_OK(ctrt_grad_scaler_step(s.scaler, second));
            CHECK_OK(ctrt_grad_scaler_update(s.scaler, 0));
        }
        state_is(s.scaler, 32768, 2, devices[d]);
        for (size_t i = 0; i < 2; i++) {
            CHECK_OK(ctrt_optimizer_get_state(&steps, states, s.optimizer, i));
            CHECK_EQ(steps, 3);
        }
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, second, 0));
        CHECK_EQ(steps, 4);
        /* Adam's steps are lr times the gradient's sign as long as that is constant. */
        check_values_within("parameter", __LINE__, s.parameter, (const double[]){ 0.85, 2.15 }, 2, 1e-5);
        check_values_within("third", __LINE__, third, (const double[]){ 3.85 }, 1, 1e-5);
        check_values_within("other", __LINE__, other, (const double[]){ 2.8 }, 1, 1e-5);
        scaled_free(&s);
    }
}

/* Parameters on two devices have gradients in different steps. During the fourth step the device of the other parameter
 * is in a dry run. */
TEST(two_devices, "an optimizer of parameters on two devices")
{
    static const struct { bool dry, first, second; float gradient; } steps[] = {
        { false, true, true, 1 }, { false, false, true, INFINITY }, { false, true, false, INFINITY },
        { true, false, true, 1 }, { false, true, true, 1 },
    };
    CHECK_OK(ctrt_device_get(&device, "sim:1"));
    struct scaled s = scaled_new(NULL, (const float[]){ 1 }, 1);
    ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
    ctrt_device *const second = device;
    optimizer_make(&s, adam);
    backward(s.scaler, s.parameter, (const float[]){ 1 });              /* the scale is on sim:1 */
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    CTRT_AUTO(tensor) first = tensor_of((const float[]){ 1 }, 1);
    CHECK_OK(ctrt_optimizer_add(s.optimizer, &first, 1));
    EACH(step, steps) {
        CTRT_AUTO(dry_run) run = NULL;
        CHECK_OK(step->dry ? ctrt_dry_run_begin(&run, device) : CTRT_OK);
        CHECK_OK(ctrt_tensor_set_grad(first, NULL));
        CHECK_OK(ctrt_tensor_set_grad(s.parameter, NULL));
        if (step->first)
            backward(s.scaler, first, &step->gradient);
        device = second;
        if (step->second)
            backward(s.scaler, s.parameter, &step->gradient);
        device = ctrt_tensor_device(first);
        CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
        CHECK_OK(ctrt_grad_scaler_update(s.scaler, 0));
    }
    state_is(s.scaler, 16384, 2, "two of five steps were skipped");
    for (size_t i = 0; i < 2; i++) {
        int64_t count = 0;
        CHECK_OK(ctrt_optimizer_get_state(&count, states, s.optimizer, i));
        CHECK(count == (i == 0 ? 3 : 2), "parameter %zu has %lld steps", i, (long long)count);
    }
    /* Adam's steps are lr times the gradient's sign. */
    check_values_within("sim:1", __LINE__, s.parameter, (const double[]){ 0.85 }, 1, 1e-5);
    check_values_within("sim:0", __LINE__, first, (const double[]){ 0.9 }, 1, 1e-5);
    scaled_free(&s);
}

/* A step without the scaler, and one in a dry run, after a skipped one. */
TEST(without, "a step without the scaler uses the count of the steps that were not skipped")
{
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    struct scaled s = scaled_new(NULL, (const float[]){ 1 }, 1);
    CTRT_AUTO(tensor) gradient = tensor_of((const float[]){ 1 }, 1);
    CTRT_AUTO(dry_run) run = NULL;
    ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
    int64_t count = 0;
    optimizer_make(&s, adam);
    scaled_step(&s, (const float[]){ INFINITY });
    CHECK_OK(ctrt_dry_run_begin(&run, device));
    CHECK_OK(ctrt_optimizer_step(s.optimizer));
    CHECK_OK(ctrt_dry_run_end(NULL, &run));
    CHECK_OK(ctrt_tensor_set_grad(s.parameter, gradient));
    CHECK_OK(ctrt_optimizer_step(s.optimizer));
    check_values_within("parameter", __LINE__, s.parameter, (const double[]){ 0.95 }, 1, 1e-5);
    CHECK_OK(ctrt_optimizer_get_state(&count, states, s.optimizer, 0));
    CHECK_EQ(count, 1);
    scaled_free(&s);
}

/* Gradients of other dtypes, and one that is not contiguous. */
TEST(dtypes, "dtypes and strides of gradients")
{
    static const ctrt_dtype types[] = { CTRT_BF16, CTRT_F32, CTRT_F64 };
    for (int d = 0; d < 2; d++)
        for (size_t t = 0; t < COUNT(types); t++)
            for (int strided = 0; strided < 2; strided++) {
                CHECK_OK(ctrt_device_get(&device, devices[d]));
                struct scaled s = scaled_new(SCALER(.init_scale = 1.5),
                                             (const float[]){ 3, 6, -12, 24, 1, 2 }, 6);
                CTRT_AUTO(tensor) grad = NULL, p = NULL, loss = tensor_of((const float[]){ 1 }, 1);
                CHECK_OK(ctrt_to_dtype(&grad, s.parameter, types[t]));
                CHECK_OK(ctrt_view_as(&grad, grad, CTRT_SHAPE(2, 3)));
                if (strided)
                    CHECK_OK(ctrt_transpose(&grad, grad, 0, 1));
                CHECK_OK(ctrt_detach(&p, grad));
                CHECK_OK(sgd_plain(&s.optimizer));
                CHECK_OK(ctrt_optimizer_add(s.optimizer, &p, 1));
                CHECK_OK(ctrt_grad_scaler_scale(&loss, s.scaler, loss));
                CHECK_OK(ctrt_tensor_set_grad(p, grad));
                CHECK_OK(ctrt_grad_scaler_unscale_(s.scaler, s.optimizer));
                check_values_within("gradient", __LINE__, ctrt_tensor_grad(p), strided
                    ? (const double[]){ 2, 16, 4, 2. / 3, -8, 4. / 3 }
                    : (const double[]){ 2, 4, -8, 16, 2. / 3, 4. / 3 }, 6, types[t] == CTRT_BF16 ? 4e-3 : 1e-6);
                CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
                CHECK_OK(ctrt_grad_scaler_update(s.scaler, 0));
                state_is(s.scaler, 1.5, 1, "no inf");
                scaled_free(&s);
            }
}

/* A step in a dry run changes nothing. */
TEST(dry_runs, "steps in a dry run")
{
    for (size_t c = 0; c < 2 * COUNT(kinds); c++) {
        const size_t k = c / 2;
        struct scaled s[2];
        double want[2];
        int64_t all = 0, row = 0;
        CHECK_OK(ctrt_device_get(&device, devices[c % 2]));
        for (int i = 0; i < 2; i++) {
            s[i] = scaled_new(SCALER(.max_skips = 9), (const float[]){ 1, 2 }, 2);
            optimizer_make(&s[i], kinds[k].create);
            for (int step = 0; step < 8; step++) {
                ctrt_dry_run *run = NULL;
                ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
                if (i == 1 && step % 3 == 0) {
                    CHECK_OK(ctrt_dry_run_begin(&run, device));
                    scaled_step(&s[i], (const float[]){ 1, 1 });
                    CHECK_OK(ctrt_dry_run_end(&found, &run));
                    CHECK_EQ(found.left_blocks, 0);
                }
                if (i == 1 && step == 0) {      /* the scale of the dry run is gone */
                    state_is(s[i].scaler, 65536, 0, "after a dry run");
                    CHECK_OK(ctrt_grad_scaler_skips(&all, &row, s[i].scaler));
                    CHECK_FAILS(ctrt_grad_scaler_update(s[i].scaler, 0), CTRT_ERR_STATE, "does not exist yet");
                }
                scaled_step(&s[i], (const float[]){ 1, step % 4 == 0 ? NAN : 1 });
            }
        }
        CHECK_OK(ctrt_to_host(want, sizeof want, s[0].parameter, CTRT_F64));
        check_values_within(kinds[k].name, __LINE__, s[1].parameter, want, 2, 1e-6);
        state_is(s[1].scaler, 16384, 3, kinds[k].name);
        scaled_free(&s[0]);
        scaled_free(&s[1]);
    }
}

TEST(dry_run_parts, "a dry run with other gradients keeps the counts of skipped steps")
{
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    struct scaled s = scaled_new(NULL, (const float[]){ 1, 2 }, 2);
    CTRT_AUTO(tensor) other = tensor_of((const float[]){ 3 }, 1);
    ctrt_dry_run *run = NULL;
    optimizer_make(&s, adam);
    CHECK_OK(ctrt_optimizer_add(s.optimizer, &other, 1));
    scaled_step(&s, (const float[]){ 1, INFINITY });
    CHECK_OK(ctrt_tensor_set_grad(s.parameter, NULL));
    CHECK_OK(ctrt_dry_run_begin(&run, device));
    backward(s.scaler, other, (const float[]){ 1 });
    CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
    CHECK_OK(ctrt_grad_scaler_update(s.scaler, 0));
    CHECK_OK(ctrt_tensor_set_grad(other, NULL));
    CHECK_OK(ctrt_dry_run_end(NULL, &run));
    scaled_step(&s, (const float[]){ 1, 1 });
    check_values_within("parameter", __LINE__, s.parameter, (const double[]){ 0.95, 1.95 }, 2, 1e-5);
    scaled_free(&s);
}

/* ---- no waiting ---- */

static uint64_t copies_to_host(void)
{
    sim_counters counters = sim_read(0);
    return counters.copies[CTRT_COPY_TO_HOST];
}

/* The host never reads from the device. */
TEST(waits, "the host does not wait")
{
    device = sim_open("sim:0");
    for (size_t k = 0; k < COUNT(kinds); k++) {
        struct scaled s = scaled_new(NULL, (const float[]){ 1, 2 }, 2);
        optimizer_make(&s, kinds[k].create);
        for (int step = 0; step < 3; step++)
            scaled_step(&s, (const float[]){ 1, 1 });
        const uint64_t before = copies_to_host();
        for (int step = 0; step < 10; step++)
            scaled_step(&s, (const float[]){ 1, step % 4 == 1 ? INFINITY : 1 });
        CHECK(copies_to_host() == before, "%s: %llu copies to the host", kinds[k].name,
              (unsigned long long)(copies_to_host() - before));
        scaled_free(&s);
    }
}

/* ---- limits, reports, messages ---- */

TEST(limits, "limits")
{
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_device_get(&device, devices[d]));
        struct scaled s = scaled_new(SCALER(.init_scale = 64, .min_scale = 10, .max_skips = 5),
                                     (const float[]){ 1, 2 }, 2);
        ctrt_status status = CTRT_OK;
        char text[200];
        int step = 0;
        optimizer_make(&s, adam);
        scaled_step(&s, (const float[]){ 1, 1 });
        for (; step < 100 && status == CTRT_OK; step++) {
            backward(s.scaler, s.parameter, (const float[]){ 1, INFINITY });
            CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
            status = ctrt_grad_scaler_update(s.scaler, 0);
            if (status != CTRT_OK)
                CHECK_HAS(ctrt_error_message(), "parameter.0: 1 of 2 elements of the gradient are inf or NaN");
            if (step == 4)
                CHECK_FAILS(ctrt_grad_scaler_check(s.scaler), CTRT_ERR_OVERFLOW, "the last 5 steps were skipped");
        }
        CHECK(status == CTRT_ERR_OVERFLOW, "%s", ctrt_status_string(status));
        CHECK(d == 0 ? step == 5 : step >= 5 && step <= 8, "%s: the error came after %d skips", devices[d], step);
        state_is(s.scaler, 10, 0, "the lower limit");
        CHECK_OK(ctrt_grad_scaler_report(text, sizeof text, s.optimizer));
        CHECK_STR(text, "parameter.0: 1 of 2 elements of the gradient are inf or NaN; so are gradients of 1 of 1 "
                  "parameters");
        scaled_free(&s);
    }
}

TEST(messages, "messages")
{
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    struct scaled s = scaled_new(NULL, (const float[]){ 1 }, 1);
    CTRT_AUTO(tensor) half = NULL;
    CTRT_AUTO(optimizer) empty = NULL, halves = NULL;
    CTRT_AUTO(grad_scaler) other = NULL;
    optimizer_make(&s, sgd_plain);
    CHECK_OK(sgd_plain(&empty));
    CHECK_FAILS(ctrt_grad_scaler_step(s.scaler, s.optimizer), CTRT_ERR_STATE, "the scale does not exist yet");
    CHECK_FAILS(ctrt_grad_scaler_update(s.scaler, 0), CTRT_ERR_STATE, "the scale does not exist yet");
    backward(s.scaler, s.parameter, (const float[]){ 1 });
    CHECK_FAILS(ctrt_grad_scaler_update(s.scaler, 0), CTRT_ERR_STATE, "No inf checks were recorded prior to update.");
    CHECK_OK(ctrt_grad_scaler_unscale_(s.scaler, s.optimizer));
    CHECK_FAILS(ctrt_grad_scaler_unscale_(s.scaler, s.optimizer), CTRT_ERR_STATE,
                "unscale_() has already been called on this optimizer since the last update().");
    CHECK_OK(ctrt_grad_scaler_step(s.scaler, s.optimizer));
    CHECK_FAILS(ctrt_grad_scaler_step(s.scaler, s.optimizer), CTRT_ERR_STATE,
                "step() has already been called since the last update().");
    CHECK_FAILS(ctrt_grad_scaler_unscale_(s.scaler, s.optimizer), CTRT_ERR_STATE,
                "unscale_() is being called after step().");
    CHECK_FAILS(ctrt_grad_scaler_step(s.scaler, empty), CTRT_ERR_STATE,
                "No inf checks were recorded for this optimizer.");
    CHECK_OK(ctrt_to_dtype(&half, s.parameter, CTRT_F16));
    CHECK_OK(ctrt_detach(&half, half));
    CHECK_OK(sgd_plain(&halves));
    CHECK_OK(ctrt_optimizer_add(halves, &half, 1));
    CTRT_AUTO(tensor) half_grad = NULL;
    ctrt_no_grad CHECK_OK(ctrt_clone(&half_grad, half));
    CHECK_OK(ctrt_tensor_set_grad(half, half_grad));
    CHECK_FAILS(ctrt_grad_scaler_step(s.scaler, halves), CTRT_ERR_DTYPE, "Attempting to unscale FP16 gradients.");
    CHECK_FAILS(ctrt_grad_scaler_update(s.scaler, NAN), CTRT_ERR_INVALID_ARGUMENT, "new_scale is nan");
    CHECK_OK(ctrt_grad_scaler_update(s.scaler, 8));
    state_is(s.scaler, 8, 0, "a new scale");

    const struct { const ctrt_grad_scaler_options *options; const char *part; } bad[] = {
        { SCALER(.init_scale = -1), "the scale is -1" }, { SCALER(.init_scale = 1e39), "expected 0 to 3.40282e+38" },
        { SCALER(.init_scale = 1e-60), "init_scale is 1e-60" }, { SCALER(.init_scale = 0), "init_scale is 0" },
        { SCALER(.growth_factor = 1), "The growth factor must be > 1.0." }, { SCALER(.max_skips = -1), "max_skips" },
        { SCALER(.backoff_factor = 1), "The backoff factor must be < 1.0." },
        { SCALER(.min_scale = NAN), "min_scale" }, { SCALER(.growth_interval = -1), "growth_interval" },
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        CHECK_FAILS(ctrt_grad_scaler_new(&other, bad[i].options), CTRT_ERR_INVALID_ARGUMENT, bad[i].part);

    /* Without gradients, by option; disabled. */
    CHECK_OK(ctrt_grad_scaler_new(&other, SCALER(.allow_no_gradients = true)));
    backward(other, s.parameter, (const float[]){ 1 });
    CHECK_OK(ctrt_grad_scaler_step(other, empty));
    CHECK_OK(ctrt_grad_scaler_update(other, 0));
    state_is(other, 65536, 0, "no gradients");
    CHECK_OK(ctrt_grad_scaler_new(&other, SCALER(.disabled = true)));
    backward(other, s.parameter, (const float[]){ 1 });
    check_values_within("unscaled", __LINE__, ctrt_tensor_grad(s.parameter), (const double[]){ 1 }, 1, 0);
    CHECK_OK(ctrt_grad_scaler_unscale_(other, s.optimizer));
    CHECK_OK(ctrt_grad_scaler_step(other, s.optimizer));
    CHECK_OK(ctrt_grad_scaler_update(other, 0));
    CHECK_TRUE(!ctrt_grad_scaler_enabled(other) && ctrt_grad_scaler_enabled(s.scaler));
    CHECK_OK(ctrt_grad_scaler_set_state(other, &CTRT_WITH(ctrt_grad_scaler_state,
                                                          .scale = -1)));     /* not even checked */
    CHECK_OK(ctrt_grad_scaler_load(other, "/nonexistent/file"));
    state_is(other, 0, 0, "disabled");
    scaled_free(&s);
}

/* ---- files ---- */

/* A scaler that continues from a file takes the same decisions, and so does the optimizer. */
TEST(files, "files")
{
    char *folder = folder_new();
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_device_get(&device, devices[d]));
        struct scaled a = scaled_new(SCALER(.growth_interval = 3), (const float[]){ 1, 2 }, 2),
                      b = scaled_new(NULL, (const float[]){ 0, 0 }, 2);
        char scaler[4096], optimizer[4096];
        snprintf(scaler, sizeof scaler, "%s/scaler.safetensors", folder);
        snprintf(optimizer, sizeof optimizer, "%s/optimizer.safetensors", folder);
        optimizer_make(&a, adam);
        optimizer_make(&b, adam);
        for (int step = 0; step < 12; step++) {
            const float g[2] = { 1.0f + (float)step, step % 5 == 3 ? INFINITY : 1 };
            scaled_step(&a, g);
            if (step > 5)
                scaled_step(&b, g);
            if (step == 5) {
                CHECK_OK(ctrt_grad_scaler_save(a.scaler, scaler));
                CHECK_OK(ctrt_optimizer_save(a.optimizer, optimizer));
                CHECK_OK(ctrt_grad_scaler_load(b.scaler, scaler));
                CHECK_OK(ctrt_optimizer_load(b.optimizer, optimizer));
                ctrt_no_grad CHECK_OK(ctrt_copy_(b.parameter, a.parameter));
            }
        }
        ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
        double values[2];
        CHECK_OK(ctrt_grad_scaler_get_state(&state, a.scaler));
        CHECK_EQ(state.growth_interval, 3);
        state_is(b.scaler, state.scale, state.growth_tracker, "from a file");
        CHECK_OK(ctrt_to_host(values, sizeof values, a.parameter, CTRT_F64));
        check_values_within("from a file", __LINE__, b.parameter, values, 2, 0);
        state.scale = 0;                        /* backoff can reach it */
        CHECK_OK(ctrt_grad_scaler_set_state(b.scaler, &state));
        state.backoff_factor = 2;
        CHECK_FAILS(ctrt_grad_scaler_set_state(b.scaler, &state), CTRT_ERR_INVALID_ARGUMENT, "backoff factor");
        state.backoff_factor = 0.5;
        state.growth_tracker = -1;
        CHECK_FAILS(ctrt_grad_scaler_set_state(b.scaler, &state), CTRT_ERR_INVALID_ARGUMENT, "growth_tracker is -1");
        state.growth_tracker = 3;
        CHECK_FAILS(ctrt_grad_scaler_set_state(b.scaler, &state), CTRT_ERR_INVALID_ARGUMENT,
                    "growth_tracker is 3, expected 0 to 2, one less than growth_interval");
        CHECK_FAILS(ctrt_grad_scaler_load(b.scaler, optimizer), CTRT_ERR_NOT_FOUND, "scale");
        CTRT_AUTO(tensor) narrow = tensor_of((const float[]){ 2 }, 1);
        CHECK_OK(ctrt_save_tensors(scaler, (const char *[]){ "scale" }, &narrow, 1));
        CHECK_FAILS(ctrt_grad_scaler_load(b.scaler, scaler), CTRT_ERR_FORMAT,
                    "\"scale\" has dtype f32 and 1 elements, expected one of f64");
        state_is(b.scaler, 0, state_of(a.scaler).growth_tracker, "after the failures");
        scaled_free(&a);
        scaled_free(&b);
    }
    folder_remove(folder);
}

TEST_MAIN
{
    setenv("CTRT_SIM", "devices=2", 1);
    return run_tests();
}
