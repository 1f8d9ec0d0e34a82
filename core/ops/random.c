/* SPDX-License-Identifier: Apache-2.0 */
/* ops/random.c: random number generators and random ops.
 *
 * A generator consists of a seed and an offset, the number of Philox blocks used so far. Kernels get both, so the
 * numbers do not depend on the number of threads or on the backend. In a graph capture a kernel gets its offset
 * relative to the start of the step. Each replay reserves the blocks of the whole step, so the numbers equal those of a
 * step that is not captured. */
#include <math.h>
#include <sys/random.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/thread.h"
#include "graph/capture.h"
#include "ops/op_common.h"
#include "ops/inplace.h"

LOCK_DEFINE(seed_lock, LOCK_SEED);
static uint64_t process_seed;           /* initial seed of the generators of devices that have not been used yet */
static bool process_seeded;

/* Initializes a lock again in the child of a fork, because a thread that does not exist there may have held it. The
 * seed and offset that it guards are usable in any state. */
static void init_generator_lock(ctrt_device *device, void *argument)
{
    (void)argument;
    pthread_mutex_init(&device->generator_lock, NULL);
}

static void after_fork_in_child(void)
{
    device_for_each(init_generator_lock, NULL);
}

__attribute__((constructor)) static void random_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

/* Returns the process's seed. Without ctrt_manual_seed it is a random number, as in PyTorch. */
static uint64_t initial_seed(void)
{
    lock_enter(&seed_lock);
    if (!process_seeded) {
        if (getrandom(&process_seed, sizeof process_seed, 0) != (ssize_t)sizeof process_seed)
            process_seed = 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)&process_seed;
        process_seed >>= 11;            /* 53 bits, which a double represents exactly, for logs and files */
        process_seeded = true;
    }
    uint64_t seed = process_seed;
    lock_leave(&seed_lock);
    return seed;
}

/* Initializes the device's generator if it has not been used yet. The caller holds generator_lock. */
static void generator_ready(ctrt_device *device)
{
    if (device->seeded)
        return;
    device->seed = initial_seed();
    device->seed_offset = 0;
    device->seeded = true;
}

static void reseed(ctrt_device *device, void *seed)
{
    pthread_mutex_lock(&device->generator_lock);
    device->seed = *(const uint64_t *)seed;
    device->seed_offset = 0;
    device->seeded = true;
    pthread_mutex_unlock(&device->generator_lock);
}

void ctrt_manual_seed(uint64_t seed)
{
    lock_enter(&seed_lock);
    process_seed = seed;
    process_seeded = true;
    lock_leave(&seed_lock);
    device_for_each(reseed, &seed);
}

ctrt_status ctrt_generator_get(ctrt_device *device, uint64_t *seed, uint64_t *offset)
{
    CTRT_TRY(device_or_default(&device, device));
    device = device_home(device);
    pthread_mutex_lock(&device->generator_lock);
    generator_ready(device);
    if (seed != NULL)
        *seed = device->seed;
    if (offset != NULL)
        *offset = device->seed_offset;
    pthread_mutex_unlock(&device->generator_lock);
    return CTRT_OK;
}

ctrt_status ctrt_generator_set(ctrt_device *device, uint64_t seed, uint64_t offset)
{
    CTRT_TRY(device_or_default(&device, device));
    device = device_home(device);
    CTRT_TRY(capture_refuse(device,
                            "a graph uses the generator's state at each replay, so the generator cannot be set in a "
                            "capture; set it before a replay"));
    pthread_mutex_lock(&device->generator_lock);
    device->seed = seed;
    device->seed_offset = offset;
    device->seeded = true;
    pthread_mutex_unlock(&device->generator_lock);
    return CTRT_OK;
}

/* Reserves `blocks` blocks of the device's generator. Returns the seed and the offset of the first. */
static void reserve_blocks(uint64_t *seed, uint64_t *offset, ctrt_device *device, uint64_t blocks)
{
    pthread_mutex_lock(&device->generator_lock);
    generator_ready(device);
    *seed = device->seed;
    *offset = device->seed_offset;
    device->seed_offset += blocks;
    pthread_mutex_unlock(&device->generator_lock);
}

/* The random numbers of the ops of one capture. Two threads that draw first at the same time may each add one; each has
 * its own range of the generator's blocks, so no number is drawn twice. */
struct captured_draws {
    ctrt_device *device;
    _Atomic uint64_t blocks;                /* atomic, because streams of other threads may have joined the capture */
};

static ctrt_status draw_again(void *state, void *params)
{
    const struct captured_draws *draws = state;
    uint64_t *place = params;
    reserve_blocks(&place[0], &place[1], draws->device, draws->blocks);
    return CTRT_OK;
}

static void draw_undo(void *state)
{
    const struct captured_draws *draws = state;
    const uint64_t blocks = draws->blocks;
    pthread_mutex_lock(&draws->device->generator_lock);
    /* Another thread may have set the seed meanwhile, so the offset may be smaller. */
    draws->device->seed_offset -= MIN(blocks, draws->device->seed_offset);
    pthread_mutex_unlock(&draws->device->generator_lock);
}

static const struct graph_param_source draws_source = { .fill = draw_again, .undo = draw_undo, .release = host_free };

static ctrt_status draw_captured(ctrt_random_attributes *attributes, ctrt_device *device, uint64_t blocks,
                                 struct capture *capture)
{
    const void *where = NULL;
    struct captured_draws *draws = capture_params_of(&where, capture, &draws_source);
    if (draws == NULL) {
        draws = host_alloc(sizeof *draws);
        ALLOC_CHECK(draws, sizeof *draws, "random numbers of a capture");
        draws->device = device;
        atomic_init(&draws->blocks, 0);
        CTRT_TRY(capture_params(&where, capture, 2 * sizeof(uint64_t), &draws_source, draws));
    }
    attributes->seed = 0;
    attributes->offset = atomic_fetch_add(&draws->blocks, blocks);
    attributes->place = where;
    return CTRT_OK;
}

static ctrt_status random_draw(ctrt_random_attributes *attributes, ctrt_device *device, uint64_t blocks)
{
    device = device_home(device);
    struct capture *capture = capture_here(device);
    if (unlikely(capture != NULL))
        return draw_captured(attributes, device, blocks, capture);
    reserve_blocks(&attributes->seed, &attributes->offset, device, blocks);
    return CTRT_OK;
}

/* Returns the number of blocks that a kernel uses. A block yields four f32 numbers, or two f64 or i64 numbers (see
 * plugin.h). */
static uint64_t blocks_for(enum op op, int64_t numel, ctrt_dtype dtype)
{
    const uint64_t per_block = op == OP_randint || (dtype == CTRT_F64 && (op == OP_uniform || op == OP_normal)) ? 2 : 4;
    return ((uint64_t)numel + per_block - 1) / per_block;
}

/* Runs a random op on `y`, which is a new tensor or is changed in place. */
static ctrt_status fill_random(enum op op, ctrt_tensor *y, ctrt_random_attributes *attributes)
{
    if (y->view.numel == 0)
        return CTRT_OK;
    attributes->size = sizeof *attributes;
    CTRT_TRY(random_draw(attributes, y->device, blocks_for(op, y->view.numel, tensor_dtype(y))));
    return kernel_call(&(struct op_call){ op, tensor_dtype(y), y->device, NULL, 0, OP_VIEWS(&y->view), attributes });
}

static ctrt_status new_random(ctrt_tensor **out, const char *who, enum op op, ctrt_ints shape, ctrt_dtype dtype,
                              ctrt_device *device, ctrt_random_attributes *attributes)
{
    OP_SCOPE(op);
    NULL_CHECK(who, out);
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(dtype_resolve_on(&dtype, who, dtype, device));
    if ((op == OP_uniform || op == OP_normal) && !dtype_floating(dtype))
        return fail_from(CTRT_ERR_DTYPE, who, "dtype %s, expected a floating type", ctrt_dtype_name(dtype));
    CTRT_TRY(shape_check(who, shape, dtype));
    ctrt_tensor *y = NULL;
    CTRT_TRY(tensor_new(&y, shape.values, shape.count, dtype, device));
    return op_finish(fill_random(op, y, attributes), out, op, &y, 1, NULL, 0, NULL);
}

ctrt_status ctrt_rand(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_random_attributes attributes = { .a = 0, .b = 1 };
    return new_random(out, "rand", OP_uniform, shape, dtype, device, &attributes);
}

ctrt_status ctrt_randn(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_random_attributes attributes = { .a = 0, .b = 1 };
    return new_random(out, "randn", OP_normal, shape, dtype, device, &attributes);
}

/* Returns `value`, rounded to the floating `dtype`. long double represents every int64_t and every value of the dtype
 * exactly. */
static long double rounded(ctrt_dtype dtype, ctrt_scalar value)
{
    unsigned char element[DTYPE_MAX_BYTES];
    dtype_store(element, dtype, value);
    return (long double)dtype_load(element, dtype).f;
}

/* Narrows [low, high) until every number in it stays in the original range after rounding to the floating `dtype`, as
 * in PyTorch. */
static ctrt_status randint_range(int64_t *low, int64_t *high, ctrt_dtype dtype)
{
    int64_t first = *low, last = *high - 1;
    for (int64_t step = 1; first <= last && rounded(dtype, ctrt_int(last)) >= (long double)*high; step *= 2)
        last = (uint64_t)last - (uint64_t)first < (uint64_t)step ? first - 1 : last - step;
    for (int64_t step = 1; first <= last && rounded(dtype, ctrt_int(first)) < (long double)*low; step *= 2)
        first = (uint64_t)last - (uint64_t)first < (uint64_t)step ? last + 1 : first + step;
    if (first > last)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "randint", "%s has no value from %lld up to, not including, %lld",
                         ctrt_dtype_name(dtype), (long long)*low, (long long)*high);
    *low = first;
    *high = last + 1;
    return CTRT_OK;
}

ctrt_status ctrt_randint(ctrt_tensor **out, int64_t low, int64_t high, ctrt_ints shape, ctrt_dtype dtype,
                         ctrt_device *device)
{
    if (low >= high)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "randint", "low %lld must be below high %lld", (long long)low,
                         (long long)high);
    if ((uint64_t)high - (uint64_t)low > INT64_MAX)
        return fail_from(CTRT_ERR_OVERFLOW, "randint", "the range %lld to %lld is too wide", (long long)low,
                         (long long)high);
    CTRT_TRY(dtype_resolve(&dtype, "randint", dtype == CTRT_DTYPE_DEFAULT ? CTRT_I64 : dtype));
    CTRT_TRY(dtype_check_scalar("randint", dtype, ctrt_int(low)));
    CTRT_TRY(dtype_check_scalar("randint", dtype, ctrt_int(high - 1)));
    if (dtype == CTRT_U8 && low < 0)            /* dtype_check_scalar allows it, because scalars wrap around */
        return fail_from(CTRT_ERR_OVERFLOW, "randint", "low is %lld, which u8 cannot represent", (long long)low);
    if (dtype_floating(dtype))
        CTRT_TRY(randint_range(&low, &high, dtype));
    ctrt_random_attributes attributes = { .lo = low, .hi = high };
    return new_random(out, "randint", OP_randint, shape, dtype, device, &attributes);
}

static ctrt_status check_probability(const char *who, double p)
{
    if (p >= 0 && p <= 1)
        return CTRT_OK;
    return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "p is %g, which is not a probability", p);
}

ctrt_status ctrt_bernoulli(ctrt_tensor **out, ctrt_ints shape, double p, ctrt_dtype dtype, ctrt_device *device)
{
    CTRT_TRY(check_probability("bernoulli", p));
    ctrt_random_attributes attributes = { .a = p };
    return new_random(out, "bernoulli", OP_bernoulli, shape, dtype, device, &attributes);
}

/* Fisher-Yates shuffle on the host with random 64-bit numbers, so that the order is the same on every device. */
ctrt_status ctrt_randperm(ctrt_tensor **out, int64_t n, ctrt_device *device)
{
    NULL_CHECK("randperm", out);
    if (n < 0)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "randperm", "n is %lld, expected at least 0",
                         (long long)n);
    CTRT_TRY(device_or_default(&device, device));
    ctrt_device *cpu;
    CTRT_TRY(device_cpu(&cpu));
    TENSOR_AUTO keys = NULL, order = NULL;
    ctrt_random_attributes attributes = { .size = sizeof attributes, .lo = 0, .hi = INT64_MAX };
    CTRT_TRY(shape_check("randperm", CTRT_SHAPE(n), CTRT_I64));
    TRY_FROM("randperm", tensor_new(&keys, &n, 1, CTRT_I64, cpu));
    TRY_FROM("randperm", tensor_new(&order, &n, 1, CTRT_I64, cpu));
    if (n > 0) {
        TRY_FROM("randperm", random_draw(&attributes, device, blocks_for(OP_randint, n, CTRT_I64)));
        TRY_FROM("randperm", kernel_call(&(struct op_call){ OP_randint, CTRT_I64, cpu, NULL, 0, OP_VIEWS(&keys->view),
                                                            &attributes }));
    }
    const int64_t *key = keys->view.data;
    int64_t *value = order->view.data;
    for (int64_t i = 0; i < n; i++)
        value[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = key[i] % (i + 1), swap = value[i];
        value[i] = value[j];
        value[j] = swap;
    }
    return context_from(ctrt_to_device(out, order, device), "randperm");
}

static ctrt_status random_inplace(const char *who, enum op op, ctrt_tensor *self, double a, double b)
{
    NULL_CHECK(who, self);
    CTRT_TRY(op_require_floating(who, "self", self));
    CTRT_TRY(inplace_check(who, self));
    ctrt_random_attributes attributes = { .a = a, .b = b };
    struct inplace_token token;
    TRY_FROM(who, autograd_inplace_begin(&token, OP_fill, self, &self, 1, NULL));
    return context_from(autograd_inplace_end(&token, self, fill_random(op, self, &attributes)), who);
}

ctrt_status ctrt_uniform_(ctrt_tensor *self, double low, double high)
{
    if (!(low <= high))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "uniform_", "low %g is above high %g", low, high);
    NULL_CHECK("uniform_", self);
    const ctrt_dtype dtype = tensor_dtype(self);
    if (dtype_floating(dtype)) {
        CTRT_TRY(dtype_check_scalar("uniform_", dtype, ctrt_float(low)));
        CTRT_TRY(dtype_check_scalar("uniform_", dtype, ctrt_float(high)));
        if (!isfinite(rounded(dtype, ctrt_float(high - low))))
            return fail_from(CTRT_ERR_OVERFLOW, "uniform_", "the range from %g to %g is too large for %s", low, high,
                             ctrt_dtype_name(dtype));
    }
    return random_inplace("uniform_", OP_uniform, self, low, high);
}

ctrt_status ctrt_normal_(ctrt_tensor *self, double mean, double std)
{
    if (!(std >= 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "normal_",
                         "the standard deviation is %g, expected at least 0", std);
    return random_inplace("normal_", OP_normal, self, mean, std);
}

/* ---- dropout ---- */

ctrt_status ctrt_dropout(ctrt_tensor **out, ctrt_tensor *x, double p, bool training)
{
    OP_SCOPE(OP_dropout);
    NULL_CHECK("dropout", out);
    NULL_CHECK("dropout", x);
    CTRT_TRY(op_require_floating("dropout", "x", x));
    CTRT_TRY(check_probability("dropout", p));
    if (!training || p == 0) {
        ctrt_tensor_assign(out, x);
        return CTRT_OK;
    }
    if (p == 1)
        return ctrt_mul_scalar(out, x, ctrt_float(0));
    TENSOR_AUTO source = NULL;
    CTRT_AUTO_ARRAY(tensor, results, 2);
    OP_TRY(op_operand(&source, x, tensor_dtype(x), x->device, true));
    OP_TRY(tensor_new(&results[0], x->view.shape, x->view.ndim, tensor_dtype(x), x->device));
    OP_TRY(tensor_new(&results[1], x->view.shape, x->view.ndim, CTRT_BOOL, x->device));
    if (x->view.numel > 0) {
        ctrt_random_attributes attributes = { .size = sizeof attributes, .a = p };
        OP_TRY(random_draw(&attributes, x->device, blocks_for(OP_dropout, x->view.numel, CTRT_F32)));
        OP_TRY(kernel_call(&(struct op_call){ OP_dropout, tensor_dtype(x), x->device, OP_VIEWS(&source->view),
                                              OP_VIEWS(&results[0]->view, &results[1]->view), &attributes }));
    }
    const union op_attributes graph = { .dropout = { p } };
    return op_finish(CTRT_OK, out, OP_dropout, results, 2, &x, 1, &graph);
}
