/* SPDX-License-Identifier: Apache-2.0 */
/* Tests every optimizer of nn/optim/optimizers.def, with and without the fused step kernels.
 *
 * The device "lean" has the cpu's kernels except sgd_step and adam_step, so that each optimizer computes its step with
 * tensor ops. CTRT_FALLBACK is not set. A new optimizer is tested without a change here, because its options come from
 * its struct optim_kind and its expected values from tests/reference/optim.txt (make_optim.py). */
#include <math.h>
#include <unistd.h>

#include "../options.h"
#include "calls.h"
#include "../reference/ref.h"
#include "base/host_alloc.h"
#include "memory/pool.h"
#include "nn/optim/optim.h"
#include "tensors.h"

static ctrt_device *lean;

/* ---- the device without the fused kernels ---- */

static ctrt_status lean_open(ctrt_device **out)
{
    static ctrt_device device;
    static ctrt_backend backend;
    static ctrt_kernel_table table;
    static _Alignas(16) char kernels[1 << 20];
    const ctrt_kernel_table *all = cpu->backend->kernels;
    table = (ctrt_kernel_table){ .size = sizeof table, .kernels = (ctrt_kernel *)kernels, .stride = all->stride };
    for (size_t i = 0; i < all->count && (table.count + 1) * all->stride <= sizeof kernels; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)all->kernels + i * all->stride);
        if (strcmp(kernel->op, "sgd_step") != 0 && strcmp(kernel->op, "adam_step") != 0)
            memcpy(kernels + table.count++ * all->stride, kernel, all->stride);
    }
    backend = *cpu->backend;
    backend.kernels = &table;
    device.home = &device;
    device.launch = &launch_direct;
    strcpy(device.name, "lean:0");
    strcpy(device.type, "lean");
    device.backend = &backend;
    device.handle = cpu->handle;
    device.flags = cpu->flags;
    device.owner = cpu->owner;
    pthread_mutex_init(&device.generator_lock, NULL);
    CTRT_TRY(device_memory_create(&device));
    *out = &device;
    return CTRT_OK;
}

/* ---- the optimizers ---- */

typedef ctrt_status new_function(ctrt_optimizer **out, ctrt_module *module, const void *options);
typedef ctrt_status add_function(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                 const void *options);

/* Wraps ctrt_ID_new and ctrt_ID_add_group in functions that take the options as const void *. */
#define OPTIMIZER(id)                                                                                               \
    static ctrt_status new_##id(ctrt_optimizer **out, ctrt_module *module, const void *options)                     \
    {                                                                                                               \
        return ctrt_##id##_new(out, module, options);                                                               \
    }                                                                                                               \
    static ctrt_status add_##id(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,               \
                                const void *options)                                                                \
    {                                                                                                               \
        return ctrt_##id##_add_group(optimizer, parameters, count, options);                                        \
    }
#include "nn/optim/optimizers.def"
#undef OPTIMIZER

static const struct entry {
    const char *id;
    const struct optim_kind *kind;
    new_function *make;
    add_function *add_group;
} entries[] = {
#define OPTIMIZER(id) { #id, &optim_##id, new_##id, add_##id },
#include "nn/optim/optimizers.def"
#undef OPTIMIZER
};

static const struct optim_option *option_named(const struct optim_kind *kind, const char *name)
{
    const struct optim_option *option = kind->options;
    while (option->name != NULL && strcmp(option->name, name) != 0)
        option++;
    return option->name != NULL ? option : NULL;
}

/* Returns a valid combination with all flags set and numbers other than the defaults. With it the optimizer allocates
 * all of its state tensors. */
static union optim_options full_options(const struct optim_kind *kind)
{
    union optim_options options = kind->defaults;
    for (const struct optim_option *option = kind->options; option->name != NULL; option++) {
        const double otherwise = optim_option_get(&options, option);
        optim_option_set(&options, option, option->range == OPTIM_FLAG ? 1 : option->range == OPTIM_FINITE ? 0
                         : otherwise > 0 ? otherwise * 0.75 : 0.0625);
    }
    optim_option_set(&options, kind->options, 0.03125);
    return options;
}

/* ---- PyTorch's values ---- */

/* Reads the options of the case `test` from `ref`. PyTorch's betas is beta1 and beta2 in ctrt, its eps is epsilon. */
static void reference_options(union optim_options *options, const struct optim_kind *kind, const struct ref_file *ref,
                              const char *test)
{
    char prefix[80];
    const size_t length = (size_t)snprintf(prefix, sizeof prefix, "%s/attr/", test);
    *options = kind->defaults;
    for (size_t i = 0; i < ref->count; i++) {
        const struct ref_record *record = &ref->records[i];
        if (strncmp(record->name, prefix, length) != 0)
            continue;
        const char *name = record->name + length;
        const bool betas = strcmp(name, "betas") == 0;
        for (int64_t k = 0; k < record->numel; k++) {
            const char *ours = betas ? (k == 0 ? "beta1" : "beta2") : strcmp(name, "eps") == 0 ? "epsilon" : name;
            const struct optim_option *option = option_named(kind, ours);
            const double value = record->i ? (double)record->i[k] : record->f[k];
            if (CHECK(option != NULL, "%s has no option %s", kind->name, ours))
                optim_option_set(options, option, value);
        }
    }
}

/* Compares the parameter after each step with PyTorch's. In f32 a step rounds about ten times, each time by at most
 * 2^-24 of a value whose effect on p is below 0.1 |p|, except for the last addition, so the error of 4 steps is below
 * 1e-6. In f64 the same holds with 2^-53. */
static void reference_case(const struct entry *entry, const struct ref_file *ref, const char *test, ctrt_dtype dtype,
                           ctrt_device *device)
{
    const struct ref_record *p = ref_find(ref, "p"), *grads = ref_find(ref, "grads");
    const struct ref_record *want = ref_find(ref, "%s/%s", test, dtype == CTRT_F64 ? "out64" : "out32");
    const double tolerance = dtype == CTRT_F64 ? 1e-14 : 1e-6;
    union optim_options options;
    CTRT_AUTO(optimizer) optimizer = NULL;
    if (!CHECK(p && grads && want, "%s: the reference is incomplete", test))
        return;
    reference_options(&options, entry->kind, ref, test);
    CTRT_AUTO(tensor) tensor = tensor_with(p->f, ctrt_ints_of(p->dims, p->ndim), dtype, device);
    if (!CHECK_OK(entry->make(&optimizer, NULL, &options)) || !CHECK_OK(ctrt_optimizer_add(optimizer, &tensor, 1)))
        return;
    for (int64_t step = 0; step < grads->dims[0]; step++) {
        double got[8] = { 0 };
        grad_with(tensor, grads->f + step * p->numel);
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_to_host(got, sizeof got, tensor, CTRT_F64));
        for (int64_t i = 0; i < p->numel; i++) {
            const double expected = want->f[step * p->numel + i];
            CHECK(fabs(got[i] - expected) <= tolerance * fmax(1, fabs(expected)),
                  "%s, %s, step %lld, element %lld: %.17g, expected %.17g", test,
                  ctrt_dtype_name(dtype), (long long)step, (long long)i, got[i], expected);
        }
    }
}

static void references(const struct entry *entry, ctrt_device *device)
{
    struct ref_file *ref = ref_load("optim.txt");
    const uint64_t fallbacks = ctrt_fallback_count(NULL);
    char test[40];
    int cases = 0;
    for (;; cases++) {
        snprintf(test, sizeof test, "%s.%d", entry->id, cases);
        if (ref_find(ref, "%s/out64", test) == NULL)
            break;
        reference_case(entry, ref, test, CTRT_F32, device);
        reference_case(entry, ref, test, CTRT_F64, device);
    }
    CHECK(cases >= 3, "optim.txt has %d cases of %s", cases, entry->id);
    CHECK_EQ(ctrt_fallback_count(NULL), fallbacks);
    ref_free(ref);
}

/* ---- half precision ---- */

/* Steps a parameter of one element by more than the rounding error of bf16. The state must be f32 and equal that of an
 * f32 parameter. */
static void half(const struct entry *entry, ctrt_device *device)
{
    static const double start = 1, grad = 1.0 / 4096;           /* 0.001 times its square underflows in f16 */
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_F16, CTRT_BF16 };
    double want = 0, states[OPTIM_STATES] = { 0 };
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) p = tensor_with(&start, CTRT_SHAPE(1), dtypes[d], device);
        double got;
        CHECK_OK(entry->make(&optimizer, NULL, NULL));
        CHECK_OK(ctrt_optimizer_add(optimizer, &p, 1));
        grad_with(p, &grad);
        for (int step = 0; step < 3; step++)
            CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_item(&got, p));
        if (d == 0)
            want = got;
        CHECK(fabs(got - want) <= 3 * 0.00390625, "%s: %g, expected %g", ctrt_dtype_name(dtypes[d]), got, want);
        for (int i = 0; i < OPTIM_STATES && entry->kind->states[i].name; i++) {
            ctrt_tensor *state = NULL;
            if (ctrt_optimizer_state(&state, optimizer, 0, entry->kind->states[i].name) != CTRT_OK)
                continue;
            CHECK(ctrt_tensor_dtype(state) == CTRT_F32, "%s of %s is %s", entry->kind->states[i].name,
                  ctrt_dtype_name(dtypes[d]), ctrt_dtype_name(ctrt_tensor_dtype(state)));
            CHECK_OK(ctrt_item(&got, state));
            if (d == 0)
                states[i] = got;
            CHECK(fabs(got - states[i]) <= 1e-6 * fabs(states[i]), "%s of %s is %g, expected %g",
                  entry->kind->states[i].name, ctrt_dtype_name(dtypes[d]), got, states[i]);
        }
    }
}

/* ---- options ---- */

static char path[] = "/tmp/ctrt-optim-XXXXXX";

/* Saves the optimizer, replaces the 8 bytes of `marker`, which occur once in the file, with `value`, and loads it. */
static ctrt_status load_spoiled(ctrt_optimizer *optimizer, const void *marker, const void *value)
{
    static unsigned char bytes[8192];
    int found = 0;
    CHECK_OK(ctrt_optimizer_save(optimizer, path));
    FILE *file = fopen(path, "r+b");
    REQUIRE(file != NULL, "%s cannot be opened", path);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    for (size_t at = 0; at + 8 <= size; at += 8)
        if (memcmp(bytes + at, marker, 8) == 0)
            found++, memcpy(bytes + at, value, 8);
    CHECK(found == 1, "the marker is %d times in the file", found);
    rewind(file);
    CHECK(fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "the file was not written");
    return ctrt_optimizer_load(optimizer, path);
}

/* The number of steps in a file. */
static void file_steps(ctrt_optimizer *optimizer)
{
    static const struct { int64_t value; const char *words; } steps[] = {
        { INT64_MAX, "step is 9223372036854775807" }, { INT64_MAX - 1, "step" }, { INT64_MIN, "step" },
        { -1, "step is -1" }, { ((int64_t)1 << 53) + 1, "2^53" }, { (int64_t)1 << 53, NULL },
    };
    CTRT_AUTO(tensor) w = tensor_with(DOUBLES(2), CTRT_SHAPE(1), CTRT_F64, cpu);
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    grad_with(w, DOUBLES(1));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    const int64_t taken = optimizer->slots[0].steps = 12345;
    EACH(c, steps)
        CHECK_FAILS(load_spoiled(optimizer, &taken, &c->value), c->words ? CTRT_ERR_FORMAT : CTRT_OK, c->words);
    CHECK_OK(ctrt_optimizer_step(optimizer));       /* step number 2^53 + 1 */
}

static void bad_options(const struct entry *entry)
{
    static const struct { enum optim_range range; double value; const char *words; } cases[] = {
        { OPTIM_AT_LEAST_0, -1, "is -1, expected a finite number of at least 0" },
        { OPTIM_AT_LEAST_0, NAN, "expected a finite number of at least 0" },
        { OPTIM_AT_LEAST_0, INFINITY, "is inf, expected a finite number of at least 0" },
        { OPTIM_BELOW_1, -0.5, "is -0.5, expected at least 0 and less than 1" },
        { OPTIM_BELOW_1, 1, "is 1, expected at least 0 and less than 1" },
        { OPTIM_BELOW_1, NAN, "expected at least 0 and less than 1" },
        { OPTIM_FINITE, NAN, "expected a finite number" },
        { OPTIM_FINITE, -INFINITY, "is -inf, expected a finite number" },
    };
    static const double mark = 0.4242, zero = 0;
    group("%s: defaults, numbers of 0, and options that are rejected in calls and in files", entry->kind->name);
    CTRT_AUTO(optimizer) optimizer = NULL, good = NULL, saved = NULL;
    double value;
    CHECK_OK(entry->make(&good, NULL, NULL));
    for (const struct optim_option *option = entry->kind->options; option->name != NULL; option++) {
        union optim_options options = entry->kind->defaults;
        CHECK_OK(ctrt_optimizer_option(&value, good, 0, option->name));
        CHECK(value == optim_option_get(&options, option), "the default of %s is %g, unlike in its macro",
              option->name, value);
        if (option->range == OPTIM_FLAG)
            continue;
        optim_option_set(&options, option, mark);
        CHECK_OK(entry->make(&saved, NULL, &options));
        EACH(c, cases) {
            if (option->range != c->range)
                continue;
            char words[160];
            snprintf(words, sizeof words, isnan(c->value) ? "%s is" : "%s %s", option->name, c->words);
            optim_option_set(&options, option, c->value);
            CHECK_FAILS(entry->make(&optimizer, NULL, &options), CTRT_ERR_INVALID_ARGUMENT, words);
            CHECK_HAS(ctrt_error_message(), c->words);
            CHECK_FAILS(entry->add_group(good, NULL, 0, &options), CTRT_ERR_INVALID_ARGUMENT, words);
            CHECK_FAILS(load_spoiled(saved, &mark, &c->value), CTRT_ERR_FORMAT, words);
        }
        optim_option_set(&options, option, 0);
        CHECK_OK(entry->make(&optimizer, NULL, &options));
        CHECK_OK(ctrt_optimizer_option(&value, optimizer, 0, option->name));
        CHECK(value == 0, "0 for %s gives %g", option->name, value);
        ctrt_optimizer_release(&optimizer);
        const double least = option->range == OPTIM_FINITE ? -1 : 0;
        CHECK_OK(load_spoiled(saved, &mark, &least));
        CHECK_OK(ctrt_optimizer_option(&value, saved, 0, option->name));
        CHECK(value == least, "%g for %s in a file gives %g", least, option->name, value);
    }
    if (option_named(entry->kind, "nesterov") != NULL) {
        CHECK_OK(ctrt_sgd_new(&saved, NULL, SGD(.momentum = mark, .nesterov = true)));
        CHECK_FAILS(load_spoiled(saved, &mark, &zero), CTRT_ERR_FORMAT, "nesterov");
    }
    /* Structs of programs that were compiled with other headers. */
    struct { union optim_options known; double later[2]; } larger = { entry->kind->defaults, { 0, 0 } };
    size_t *const size = (size_t *)&larger;
    CHECK_OK((*size = sizeof larger, entry->make(&saved, NULL, &larger)));
    CHECK_FAILS((larger.later[1] = 1, entry->make(&optimizer, NULL, &larger)), CTRT_ERR_NOT_SUPPORTED, "does not know");
    CHECK_FAILS((*size = 0, entry->make(&optimizer, NULL, &larger)), CTRT_ERR_INVALID_ARGUMENT,
                "options is not initialized (its size is 0)");
    optim_option_set(&larger.known, entry->kind->options, 0.5);
    memset((char *)&larger + 2 * sizeof(double), 0xff, sizeof larger - 2 * sizeof(double));
    CHECK_OK((*size = 2 * sizeof(double), entry->make(&saved, NULL, &larger)));
    CHECK_OK(ctrt_optimizer_option(&value, saved, 0, "lr"));
    CHECK_EQ(value, 0.5);
    CHECK(optimizer == NULL && ctrt_optimizer_group_count(good) == 1,
          "a failed call made an optimizer or added a group");
    CHECK_FAILS(ctrt_optimizer_option(&value, good, 0, "nonsense"), CTRT_ERR_NOT_FOUND, "nonsense");
    CHECK_FAILS(ctrt_optimizer_option(&value, good, 1, "lr"), CTRT_ERR_NOT_FOUND, "group 1");
    file_steps(good);
    const struct entry *other = entry == entries ? &entries[1] : &entries[0];
    CHECK_FAILS(other->add_group(good, NULL, 0, NULL), CTRT_ERR_STATE, entry->kind->name);
}

/* ---- groups ---- */

enum { SIZE = 3, STEPS = 5 };

static void gradient(ctrt_tensor *p, int step, int which)
{
    double values[SIZE];
    for (int i = 0; i < SIZE; i++)
        values[i] = sin(step * 7 + which * 3 + i);
    grad_with(p, values);
}

/* Steps with gradients for the first `count` parameters. */
static void step_with(ctrt_optimizer *optimizer, ctrt_tensor **p, int count, int step)
{
    for (int i = 0; i < count; i++)
        gradient(p[i], step, i);
    CHECK_OK(ctrt_optimizer_step(optimizer));
}

static ctrt_tensor *parameter(int which, ctrt_device *device)
{
    double values[SIZE];
    for (int i = 0; i < SIZE; i++)
        values[i] = cos(which * 5 + i);
    return tensor_with(values, CTRT_SHAPE(SIZE), CTRT_F32, device);
}

/* An optimizer with two groups, the second of them added after two steps, must equal two optimizers with one group. */
static void groups(const struct entry *entry, ctrt_device *device)
{
    const union optim_options options = full_options(entry->kind);
    CTRT_AUTO(optimizer) both = NULL, one = NULL, two = NULL;
    ctrt_tensor *p[2] = { parameter(0, device), parameter(1, device) },
                *q[2] = { parameter(0, device), parameter(1, device) };
    double lr;
    CHECK_OK(entry->make(&both, NULL, NULL));
    CHECK_OK(entry->make(&one, NULL, NULL));
    CHECK_OK(entry->make(&two, NULL, &options));
    CHECK_OK(ctrt_optimizer_add(both, &p[0], 1));
    CHECK_OK(ctrt_optimizer_add(one, &q[0], 1));
    CHECK_OK(ctrt_optimizer_add(two, &q[1], 1));
    CHECK_FAILS(entry->add_group(both, p, 2, &options), CTRT_ERR_STATE, "already");
    CHECK_FAILS(entry->add_group(both, (ctrt_tensor *[]){ p[1], NULL }, 2, &options), CTRT_ERR_INVALID_ARGUMENT,
                "NULL");
    CHECK_EQ(ctrt_optimizer_group_count(both), 1);              /* a failed call adds no group */
    for (int step = 0; step < STEPS; step++) {
        if (step == 2)
            CHECK_OK(entry->add_group(both, &p[1], 1, &options));
        if (step == 3) {
            CHECK_OK(ctrt_optimizer_set_group_lr(both, 1, 0.25));
            CHECK_OK(ctrt_optimizer_set_lr(two, 0.25));
            CHECK_OK(ctrt_optimizer_option(&lr, both, 1, "lr"));
            CHECK_EQ(lr, 0.25);
            CHECK_TRUE(ctrt_optimizer_lr(both) != 0.25);
        }
        if (step == 4)
            CHECK_TRUE(!ctrt_optimizer_set_lr(both, 0.125) && !ctrt_optimizer_set_lr(one, 0.125)
                       && !ctrt_optimizer_set_lr(two, 0.125));
        step_with(both, p, 2, step);
        step_with(one, q, 1, step);
        if (step >= 2)
            gradient(q[1], step, 1);
        CHECK_OK(ctrt_optimizer_step(two));
        check_same("group 0", __LINE__, p[0], q[0], 0);
        check_same("group 1", __LINE__, p[1], q[1], 0);
    }
    CHECK_FAILS(ctrt_optimizer_set_group_lr(both, 2, 0.1), CTRT_ERR_NOT_FOUND, "group 2");
    CHECK_FAILS(ctrt_optimizer_set_group_lr(both, 1, -1), CTRT_ERR_INVALID_ARGUMENT, "lr is -1");
    CHECK_OK(entry->add_group(both, NULL, 0, NULL));            /* NULL options: those of group 0 */
    CHECK_OK(ctrt_optimizer_option(&lr, both, 2, "lr"));
    CHECK_EQ(lr, 0.125);
    tensors_release(p, 2);
    tensors_release(q, 2);
}

/* Parameters without a gradient in some steps equal parameters with optimizers of their own that step only with one. */
static void late(const struct entry *entry, ctrt_device *device)
{
    enum { N = 4 };
    static const bool given[STEPS][N] = { { 1, 0, 0, 0 }, { 1, 1, 0, 0 }, { 1, 1, 1, 0 }, { 0, 1, 1, 0 },
                                          { 1, 1, 1, 0 } };
    static const ctrt_dtype dtypes[N] = { CTRT_F64, CTRT_F64, CTRT_F32, CTRT_F64 };
    const union optim_options options = full_options(entry->kind);
    const char *state_name = entry->kind->states[0].name;
    ctrt_optimizer *alone[N] = { NULL };
    CTRT_AUTO(optimizer) all = NULL;
    ctrt_tensor *p[N], *q[N], *state = NULL, *own = NULL;
    for (int i = 0; i < N; i++) {
        p[i] = parameter(i, device);
        q[i] = parameter(i, device);
        CHECK_TRUE(!ctrt_to_dtype(&p[i], p[i], dtypes[i]) && !ctrt_to_dtype(&q[i], q[i], dtypes[i]));
        CHECK_OK(entry->make(&alone[i], NULL, &options));
        CHECK_OK(ctrt_optimizer_add(alone[i], &q[i], 1));
    }
    CHECK_OK(entry->make(&all, NULL, &options));
    CHECK_OK(ctrt_optimizer_add(all, p, N));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(ctrt_optimizer_zero_grad(all, true));
        for (int i = 0; i < N; i++) {
            if (!given[step][i])
                continue;
            gradient(p[i], step, i);
            gradient(q[i], step, i);
            CHECK_OK(ctrt_optimizer_step(alone[i]));
        }
        CHECK_OK(ctrt_optimizer_step(all));
        for (int i = 0; i < N; i++)
            check_same("parameter", __LINE__, p[i], q[i], 0);
    }
    CHECK_OK(ctrt_optimizer_state(&state, all, 1, state_name));
    CHECK_OK(ctrt_optimizer_state(&own, alone[1], 0, state_name));
    check_same(state_name, __LINE__, state, own, 0);
    CHECK_FAILS(ctrt_optimizer_state(&state, all, 3, state_name), CTRT_ERR_NOT_FOUND,
                state_name);  /* never had a gradient */
    CHECK_FAILS(ctrt_optimizer_state(&state, all, 4, state_name), CTRT_ERR_NOT_FOUND, "4 parameters");
    CHECK_FAILS(ctrt_optimizer_state(&state, all, 0, "nonsense"), CTRT_ERR_NOT_FOUND, "nonsense");
    CHECK_FAILS(ctrt_optimizer_set_state(all, 0, 1, (ctrt_tensor *[OPTIM_STATES]){ NULL }), CTRT_ERR_STATE,
                "has 0 elements, expected 3; the optimizers must be of the same kind");
    for (int i = 0; i < N; i++)
        ctrt_optimizer_release(&alone[i]);
    tensors_release(p, N);
    tensors_release(q, N);
}

/* ---- files ---- */

/* An optimizer that loads the file of another one gets its options and continues with the same values. */
static void files(const struct entry *entry, ctrt_device *device)
{
    const union optim_options options = full_options(entry->kind);
    union optim_options faster = entry->kind->defaults;
    optim_option_set(&faster, entry->kind->options, 0.5);
    CTRT_AUTO(optimizer) first = NULL, second = NULL, wrong = NULL;
    ctrt_tensor *p[3], *q[3] = { NULL };
    for (int i = 0; i < 3; i++)
        p[i] = parameter(i, device);
    CHECK_OK(entry->make(&first, NULL, &options));
    CHECK_OK(ctrt_optimizer_add(first, p, 1));
    CHECK_OK(entry->add_group(first, &p[1], 1, &faster));
    CHECK_OK(entry->add_group(first, &p[2], 1, &options));
    CHECK_OK(ctrt_optimizer_set_group_lr(first, 2, 0.1 / 3));
    for (int step = 0; step < 3; step++)
        step_with(first, p, 3, step);
    CHECK_OK(ctrt_optimizer_save(first, path));
    for (int i = 0; i < 3; i++)
        ctrt_no_grad CHECK_OK(ctrt_clone(&q[i], p[i]));
    CHECK_OK(entry->make(&second, NULL, NULL));
    CHECK_OK(ctrt_optimizer_add(second, q, 1));
    CHECK_OK(entry->add_group(second, &q[1], 1, NULL));
    CHECK_OK(entry->add_group(second, &q[2], 1, NULL));
    CHECK_OK(ctrt_optimizer_load(second, path));
    for (size_t g = 0; g < 3; g++)
        for (const struct optim_option *option = entry->kind->options; option->name != NULL; option++) {
            double want = NAN, got = NAN;
            CHECK_OK(ctrt_optimizer_option(&want, first, g, option->name));
            CHECK_OK(ctrt_optimizer_option(&got, second, g, option->name));
            CHECK(got == want, "group %zu: %s is %.17g, expected %.17g", g, option->name, got, want);
        }
    for (int step = 3; step < 6; step++) {
        step_with(first, p, 3, step);
        step_with(second, q, 3, step);
        for (int i = 0; i < 3; i++)
            check_same("after loading", __LINE__, q[i], p[i], 0);
    }
    /* An optimizer with another division into groups rejects the file. */
    CHECK_OK(entry->make(&wrong, NULL, NULL));
    CHECK_OK(ctrt_optimizer_add(wrong, q, 2));
    CHECK_OK(entry->add_group(wrong, NULL, 0, NULL));
    CHECK_OK(entry->add_group(wrong, &q[2], 1, NULL));
    CHECK_FAILS(ctrt_optimizer_load(wrong, path), CTRT_ERR_STATE,
                "parameter.1 is in group 1 in the file, and in group 0");
    CHECK_OK(entry->make(&wrong, NULL, NULL));
    CHECK_OK(ctrt_optimizer_add(wrong, q, 3));
    CHECK_FAILS(ctrt_optimizer_load(wrong, path), CTRT_ERR_STATE, "group");
    tensors_release(p, 3);
    tensors_release(q, 3);
}

/* ---- failed allocations ---- */

struct values { double p[SIZE], state[OPTIM_STATES][SIZE]; int64_t steps; };

static struct values values_of(ctrt_optimizer *optimizer, size_t slot, ctrt_tensor *p)
{
    struct values values;
    memset(&values, 0, sizeof values);
    /* creates the state before the first step */
    CHECK_OK(optim_state_ready(optimizer, &optimizer->slots[slot]));
    CHECK_OK(ctrt_to_host(values.p, sizeof values.p, p, CTRT_F64));
    for (int i = 0; i < OPTIM_STATES && optimizer->kind->states[i].name; i++) {
        ctrt_tensor *state = NULL;
        if (ctrt_optimizer_state(&state, optimizer, slot, optimizer->kind->states[i].name) == CTRT_OK)
            CHECK_OK(ctrt_to_host(values.state[i], sizeof values.state[i], state, CTRT_F64));
    }
    values.steps = optimizer->slots[slot].steps;
    return values;
}

/* Runs step `at` of two parameters with the n-th allocation failing (n 0: none). Each parameter must have taken the
 * step with all of its state, or be unchanged. With `before` NULL, only fills `found` with the values before the step
 * (0, 1) and after it (2, 3). Returns whether the step made fewer than n allocations. */
static bool failing_step(const struct entry *entry, ctrt_device *device, ctrt_dtype dtype, int at, uint64_t n,
                         const struct values *before, const struct values *after, struct values *found)
{
    const union optim_options options = full_options(entry->kind);
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *p[2] = { parameter(0, device), parameter(1, device) };
    bool done = false;
    CHECK_OK(entry->make(&optimizer, NULL, &options));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_to_dtype(&p[i], p[i], dtype));
        CHECK_OK(entry->add_group(optimizer, &p[i], 1, NULL));      /* in its own group, hence in its own batch */
    }
    for (int step = 0; step <= at; step++) {
        for (int i = 0; i < 2; i++)
            gradient(p[i], step, i);
        if (step == at && before == NULL)
            for (int i = 0; i < 2; i++)
                found[i] = values_of(optimizer, (size_t)i, p[i]);
        alloc_fail_at(step == at ? n : 0, false);
        ctrt_status status = ctrt_optimizer_step(optimizer);
        const uint64_t counted = alloc_fail_at(0, false);
        if (step < at)
            CHECK_OK(status);
        else if (n > 0 && status == CTRT_OK)
            done = counted < n;
        else if (n > 0)
            CHECK(status == CTRT_ERR_OUT_OF_MEMORY, "allocation %llu: %s", (unsigned long long)n, ctrt_error_message());
    }
    for (int i = 0; i < 2; i++) {
        const struct values now = values_of(optimizer, (size_t)i, p[i]);
        if (before == NULL)
            found[2 + i] = now;
        else
            CHECK(memcmp(&now, &before[i], sizeof now) == 0 || memcmp(&now, &after[i], sizeof now) == 0,
                  "allocation %llu failed: parameter %d is between two steps (%lld steps, %g)",
                  (unsigned long long)n, i, (long long)now.steps, now.p[0]);
        ctrt_tensor_release(&p[i]);
    }
    return done;
}

static void failures(const struct entry *entry, ctrt_device *device)
{
    static const struct { ctrt_dtype dtype; int at; } cases[] = { { CTRT_F32, 0 }, { CTRT_F32, 2 }, { CTRT_BF16, 2 } };
    EACH(c, cases) {
        struct values found[4];
        uint64_t n = 1;
        failing_step(entry, device, c->dtype, c->at, 0, NULL, NULL, found);
        while (n < 1000 && !failing_step(entry, device, c->dtype, c->at, n, found, found + 2, NULL))
            n++;
        CHECK(n < 1000 && (n > 1 || device == cpu), "%llu allocations failed", (unsigned long long)n - 1);
        printf("# %s, %s, step %d: %llu allocations\n", entry->kind->name, ctrt_dtype_name(c->dtype), c->at,
               (unsigned long long)n - 1);
    }
}

TEST_MAIN
{
    static const struct { const char *what; void (*run)(const struct entry *, ctrt_device *); } tests[] = {
        { "parameters equal PyTorch's after each step", references },
        { "f16 and bf16 parameters have the state of an f32 parameter", half },
        { "two groups step as two optimizers", groups },
        { "parameters whose first gradient comes in a later step", late },
        { "a saved optimizer with groups continues after loading", files },
        { "a step whose n-th allocation fails leaves no parameter half updated", failures },
    };
    group("the devices cpu and lean open");
    const int fd = mkstemp(path);
    if (!CHECK(fd >= 0, "no temporary file") || !CHECK_OK(ctrt_device_get(&cpu, "cpu")) || !CHECK_OK(lean_open(&lean)))
        return done();
    close(fd);
    CHECK_TRUE(!ctrt_op_supported(lean, "sgd_step", CTRT_F32) && !ctrt_op_supported(lean, "adam_step", CTRT_F32));
    EACH(c, entries) {
        bad_options(c);
        for (int d = 0; d < 2; d++)
            for (size_t i = 0; i < COUNT(tests); i++) {
                group("%s on %s: %s", c->kind->name, d ? "lean:0" : "cpu", tests[i].what);
                tests[i].run(c, d ? lean : cpu);
            }
    }
    unlink(path);
    return done();
}
