/* SPDX-License-Identifier: Apache-2.0 */
/* Tests ctrt_split: a step that runs out of memory is retried in pieces, has the gradients of the whole batch, and
 * failed attempts leave no trace. */
#include <math.h>

#include "calls.h"
#include "log_kept.h"
#include "sims.h"
#include "dryrun_models.h"
#include "memory_checks.h"

#define ROWS 64

/* A training whose data is passed in ranges of rows. */
struct program {
    struct training run;
    ctrt_split *split;
    int calls, fail_at;                 /* the call that fails; 0: none */
    ctrt_status failure;
    int64_t rows;                       /* rows done in the current attempt */
    double loss, weights;
};

static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
{
    struct program *program = user;
    CTRT_AUTO(tensor) loss = NULL;
    double value;
    if (from == 0)
        program->loss = program->weights = 0, program->rows = 0;
    CHECK(from == program->rows && to > from, "rows %lld to %lld after %lld", (long long)from, (long long)to,
          (long long)program->rows);
    if (++program->calls == program->fail_at)
        return program->failure;
    TRY(training_forward_rows(&loss, &program->run, from, to));
    TRY(ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
    TRY(ctrt_backward(loss));
    TRY(ctrt_item(&value, loss));
    program->loss += value;
    program->weights += weight;
    program->rows = to;
    return CTRT_OK;
}

struct gradients {
    size_t count;
    float values[4096];
};

/* Reads all gradients, one after the other. */
static void gradients(struct gradients *all, ctrt_module *net)
{
    all->count = 0;
    for (size_t i = 0; i < ctrt_module_parameter_count(net); i++) {
        ctrt_tensor *parameter = NULL;
        CHECK_OK(ctrt_module_parameter(NULL, &parameter, net, i));
        const size_t n = (size_t)ctrt_tensor_numel(parameter);
        REQUIRE_TRUE(all->count + n <= 4096);
        if (CHECK(ctrt_tensor_grad(parameter) != NULL, "parameter %zu has no gradient", i))
            CHECK_OK(ctrt_to_host(all->values + all->count, n * sizeof(float), ctrt_tensor_grad(parameter), CTRT_F32));
        all->count += n;
    }
}

static const struct model net = { "deep mlp without dropout", mlp_make, { ROWS, 20 }, 10, false, STEP, ADAMW, false };

static void begin(struct program *program, const struct model *model, ctrt_device *device)
{
    *program = (struct program){ .fail_at = 0 };
    ctrt_manual_seed(11);
    CHECK_OK(training_begin(&program->run, model, device));
}

/* Ends the program and checks that it leaves no memory. */
static void end(struct program *program)
{
    ctrt_split_release(&program->split);
    training_end(&program->run);
    CHECK_EQ(ctrt_memory_allocated(program->run.device), 0);
}

/* Makes call number `at` of the next step fail; 0: none. */
static void fail_call(struct program *program, int at, ctrt_status failure)
{
    program->calls = 0;
    program->fail_at = at;
    program->failure = failure;
}

static void new_split(struct program *program, const ctrt_split_options *options)
{
    ctrt_split_release(&program->split);
    CHECK_OK(ctrt_split_new(&program->split, program->run.net, options));
}

/* Runs one step with these options on new networks; NULL options: without ctrt_split. With `held`, the network has
 * gradients before, which must stay the same tensors. */
static ctrt_split_result step_of(struct gradients *all, ctrt_device *device, const ctrt_split_options *options,
                                 bool held, double *loss)
{
    struct program program;
    ctrt_split_result result = CTRT_SPLIT_RESULT;
    CTRT_AUTO(tensor) before = NULL;
    ctrt_tensor *parameter = NULL;
    begin(&program, &net, device);
    CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, 0));
    if (held) {
        CHECK_OK(rows(&program, 0, ROWS, 1));
        before = ctrt_tensor_retain(ctrt_tensor_grad(parameter));
    }
    program.weights = 0;
    if (options != NULL) {
        new_split(&program, options);
        CHECK_OK(ctrt_split_step(&result, program.split, ROWS, rows, &program));
    } else {
        CHECK_OK(rows(&program, 0, ROWS, 1));
    }
    CHECK_NEAR(program.weights, 1, 1e-12);
    CHECK_EQ(program.rows, ROWS);
    CHECK_TRUE(!held || ctrt_tensor_grad(parameter) == before);
    *loss = program.loss;
    gradients(all, program.run.net);
    ctrt_tensor_release(&before);
    end(&program);
    return result;
}

static double difference(const struct gradients *a, const struct gradients *b)
{
    double most = a->count == b->count ? 0 : INFINITY;
    for (size_t i = 0; i < a->count && most < INFINITY; i++)
        most = fmax(most, fabs((double)a->values[i] - b->values[i]));
    return most;
}

BOTH_TEST(gradients_of_pieces, "any number of pieces gives the gradients of the whole batch",
          "CTRT_SIM=devices=1,memory=64m")
{
    double loss, piece_loss;
    static struct gradients whole, sum, first;
    step_of(&whole, device, NULL, false, &loss);
    for (int64_t pieces = 1; pieces <= ROWS; pieces += pieces < 8 ? 1 : 7) {
        ctrt_split_result result = step_of(&sum, device, &CTRT_WITH(ctrt_split_options, .pieces = pieces), false,
                                           &piece_loss);
        CHECK_EQ(result.pieces, pieces);
        CHECK_EQ(result.failures, 0);
        CHECK(difference(&whole, &sum) <= (pieces == 1 ? 0 : 1e-6) && fabs(loss - piece_loss) < 1e-5,
              "%lld pieces: gradients differ by %g, losses by %g", (long long)pieces, difference(&whole, &sum),
              loss - piece_loss);
    }
    /* Canonical sums have the same bits in every run, whatever number of pieces is requested. */
    for (int64_t pieces = 1; pieces <= 8; pieces *= 2) {
        ctrt_split_result result = step_of(pieces == 1 ? &first : &sum, device,
                                           &CTRT_WITH(ctrt_split_options, .canonical = 8, .pieces = pieces), false,
                                           &piece_loss);
        CHECK_EQ(result.pieces, 8);
        CHECK(pieces == 1 || difference(&first, &sum) == 0, "canonical sums differ when %lld pieces are requested",
              (long long)pieces);
    }
    /* Existing gradients get the sums of steps without ctrt_split. */
    step_of(&whole, device, NULL, true, &loss);
    step_of(&sum, device, &CTRT_WITH(ctrt_split_options, .pieces = 1), true, &loss);
    CHECK_EQ(difference(&whole, &sum), 0);
}

/* ---- when memory runs out ---- */

static const struct model large = { "wide", wide_make, { 2000, 300 }, 10, false, STEP, ADAMW, false };

struct outcome {
    double loss;                        /* of the last step */
    int64_t pieces;
};

/* Trains for three steps. */
static struct outcome train(ctrt_device *device, const ctrt_split_options *options)
{
    struct program program;
    begin(&program, &large, device);
    new_split(&program, options);
    for (int step = 0; step < 3; step++) {
        CHECK_OK(ctrt_optimizer_zero_grad(program.run.optimizer, true));
        CHECK_OK(ctrt_split_step(NULL, program.split, large.input[0], rows, &program));
        CHECK_OK(ctrt_optimizer_step(program.run.optimizer));
    }
    const struct outcome outcome = { program.loss, ctrt_split_pieces(program.split) };
    end(&program);
    return outcome;
}

SIM_TEST(small_device,
         "a batch that does not fit is trained in pieces; canonical sums have the same bits on both devices",
         "CTRT_SIM=devices=2,memory=256m/56m")
{
    ctrt_device *tight = sim_open("sim:1");
    const ctrt_split_options any = CTRT_SPLIT_OPTIONS, canonical = CTRT_WITH(ctrt_split_options, .canonical = 16);
    log_keep(CTRT_LOG_WARNING);
    struct outcome whole = train(device, &any);
    CHECK_STR(logged, "");
    struct outcome split = train(tight, &any);
    CHECK_HAS(logged, "2000 rows in 1 piece; retrying with 2");
    CHECK_EQ(whole.pieces, 1);
    CHECK(split.pieces > 1 && split.pieces <= 16, "%lld pieces", (long long)split.pieces);
    CHECK_NEAR(split.loss, whole.loss, 1e-3 * whole.loss);
    logged[0] = '\0';
    CHECK_OK(ctrt_memory_empty_cache(tight));
    whole = train(device, &canonical);
    split = train(tight, &canonical);
    CHECK_STR(logged, "");
    CHECK_EQ(whole.pieces, 16);
    CHECK_EQ(split.pieces, 16);
    CHECK_EQ(split.loss, whole.loss);
}

/* ---- failures ---- */

static const struct model norms = { "norms", norms_make, { ROWS, 3, 16, 16 }, 10, false, STEP, MOMENTUM, false };

/* State that a program changes without its module. */
struct outside {
    struct program *program;
    ctrt_device *cpu, *late;            /* `late` is opened in a step */
    bool break_stream;                  /* the first kernel of the second piece fails on the device */
    double random;                      /* sum of the cpu's random numbers in the last attempt */
};

static ctrt_status outside_rows(void *user, int64_t from, int64_t to, double weight)
{
    struct outside *outside = user;
    CTRT_AUTO(tensor) noise = NULL, more = NULL;
    double value;
    if (from == 0)
        outside->random = 0;
    if (outside->break_stream && from > 0) {
        CHECK_OK(sim->inject(0, "op:1"));
        CTRT_TRY(ctrt_relu(&noise, outside->program->run.x));
        (void)ctrt_device_synchronize(ctrt_tensor_device(noise));
        return ctrt_fail(CTRT_ERR_IO, "the program's own failure");
    }
    TRY(ctrt_device_get(&outside->late, "sim:1"));
    TRY(ctrt_rand(&more, CTRT_SHAPE(2), CTRT_F64, outside->late));
    TRY(ctrt_rand(&noise, CTRT_SHAPE(10), CTRT_F64, outside->cpu));
    TRY(ctrt_sum(&noise, noise, CTRT_ALL_DIMS));
    TRY(ctrt_item(&value, noise));
    outside->random += value;
    return rows(outside->program, from, to, weight);
}

/* Returns the sum of the cpu's random numbers in one step of four pieces. Call number `fail_at` runs out of memory. */
static double random_sum(struct outside *outside, int fail_at)
{
    new_split(outside->program, &CTRT_WITH(ctrt_split_options, .canonical = 4));
    ctrt_manual_seed(5);
    fail_call(outside->program, fail_at, CTRT_ERR_OUT_OF_MEMORY);
    CHECK_OK(ctrt_split_step(NULL, outside->program->split, ROWS, outside_rows, outside));
    return outside->random;
}

BOTH_TEST(restores, "a failed attempt does not change gradients, statistics and random numbers",
          "CTRT_SIM=devices=2,memory=64m", "CTRT_LOG=error")
{
    struct program program;
    struct outside outside = { .program = &program };
    ctrt_split_result result = CTRT_SPLIT_RESULT;
    ctrt_tensor *variance = NULL;
    ctrt_module *norm = NULL;
    uint64_t offset, after;
    static struct gradients first, again;
    float before[6], now[6];
    CHECK_OK(ctrt_device_get(&outside.cpu, "cpu"));
    begin(&program, &norms, device);
    CHECK_OK(rows(&program, 0, ROWS, 1));
    CHECK_OK(ctrt_module_tensor(&variance, program.run.net, "1.running_var"));
    CHECK_OK(ctrt_to_host(before, sizeof before, variance, CTRT_F32));
    gradients(&first, program.run.net);
    CHECK_OK(ctrt_generator_get(device, NULL, &offset));
    new_split(&program, &CTRT_WITH(ctrt_split_options, .pieces = 4));

    CHECK_OK(ctrt_module_child(NULL, &norm, program.run.net, 1));
    for (int norm_only = 0; norm_only < 2; norm_only++) {       /* then only the norm is in training mode */
        ctrt_module_train(program.run.net, !norm_only);
        ctrt_module_train(norm, true);
        fail_call(&program, 3, CTRT_ERR_STATE);
        CHECK_EQ(ctrt_split_step(&result, program.split, ROWS, outside_rows, &outside), CTRT_ERR_STATE);
        CHECK_OK(ctrt_to_host(now, sizeof now, variance, CTRT_F32));
        gradients(&again, program.run.net);
        CHECK_OK(ctrt_generator_get(device, NULL, &after));
        CHECK(memcmp(before, now, sizeof now) == 0, "statistics changed from %g to %g", before[0], now[0]);
        CHECK_EQ(difference(&first, &again), 0);
        CHECK_EQ(after, offset);
        CHECK_EQ(ctrt_split_pieces(program.split), 4);
        CHECK_OK(ctrt_generator_get(outside.late, NULL, &after));
        CHECK_EQ(after, 0);                                     /* also if the failed step has opened the device */
    }

    /* The third piece runs out of memory; the retry has eight pieces and adds to the existing gradients. */
    fail_call(&program, 3, CTRT_ERR_OUT_OF_MEMORY);
    CHECK_OK(ctrt_split_step(&result, program.split, ROWS, rows, &program));
    CHECK_EQ(result.pieces, 8);
    CHECK_EQ(result.failures, 1);
    CHECK_EQ(program.calls, 3 + 8);
    gradients(&again, program.run.net);
    CHECK_TRUE(difference(&first, &again) > 1e-4);
    CHECK_OK(ctrt_to_host(now, sizeof now, variance, CTRT_F32));
    CHECK(memcmp(before, now, sizeof now) != 0, "the norm did not update its statistics");
    CHECK_EQ(ctrt_split_pieces(program.split), 8);

    new_split(&program, &CTRT_WITH(ctrt_split_options, .canonical = 4));
    /* 3 rows are fewer than pieces. */
    static const struct { int64_t rows, pieces; } canonical[] = { { ROWS, 4 }, { 3, 3 } };
    for (size_t i = 0; i < COUNT(canonical); i++) {
        fail_call(&program, 1, CTRT_ERR_OUT_OF_MEMORY);
        CHECK_OK(ctrt_split_step(&result, program.split, canonical[i].rows, rows, &program));
        CHECK_EQ(result.pieces, canonical[i].pieces);
        CHECK_EQ(result.failures, 1);
    }
    CHECK_EQ(ctrt_split_pieces(program.split), 4);
    const double plain = random_sum(&outside, 0);
    CHECK_EQ(random_sum(&outside, 3), plain);
    end(&program);
}

SIM_TEST(failed_restore, "the program's failure is reported, not that of the restore", "CTRT_SIM=devices=2,memory=64m",
         "CTRT_LOG=error")
{
    struct program program;
    struct outside outside = { .program = &program, .break_stream = true };
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(ctrt_device_get(&outside.cpu, "cpu"));
    begin(&program, &norms, device);
    new_split(&program, &CTRT_WITH(ctrt_split_options, .pieces = 4));
    CHECK_FAILS(ctrt_split_step(NULL, program.split, ROWS, outside_rows, &outside), CTRT_ERR_IO,
                "the program's own failure (and the module's buffers could not be restored: ");
    for (size_t i = 0; i < ctrt_module_parameter_count(program.run.net); i++) {
        ctrt_tensor *parameter = NULL;
        CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, i));
        CHECK(ctrt_tensor_grad(parameter) == NULL, "parameter %zu keeps the gradient of a failed attempt", i);
    }
    CHECK_OK(ctrt_stream_current(&stream, device));
    CHECK_OK(ctrt_stream_reset(stream));
    end(&program);
}

static ctrt_status too_large(void *user, int64_t from, int64_t to, double weight)
{
    const int64_t *most = user;
    (void)weight;
    return to - from > *most ? CTRT_ERR_OUT_OF_MEMORY : CTRT_OK;
}

CHILD_TEST(numbers, "the number of pieces grows after failures and shrinks after successes", "CTRT_LOG=error")
{
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(split) split = NULL;
    ctrt_split_result result = CTRT_SPLIT_RESULT;
    int64_t most = 10;
    CHECK_OK(ctrt_relu_new(&module));
    CHECK_OK(ctrt_split_new(&split, module, &CTRT_WITH(ctrt_split_options, .grow_after = 2)));
    CHECK_OK(ctrt_split_step(&result, split, 100, too_large, &most));
    CHECK_EQ(result.pieces, 16);
    CHECK_EQ(result.failures, 4);
    /* More memory: after two good steps the number of pieces halves, until 4; then 2 pieces fail. */
    most = 30;
    const int64_t want[] = { 16, 16, 8, 8, 4, 4, 4, 4, 4, 4, 4 };
    for (size_t i = 0; i < COUNT(want); i++) {
        CHECK_OK(ctrt_split_step(&result, split, 100, too_large, &most));
        CHECK(result.pieces == want[i], "step %zu: %lld pieces, expected %lld", i, (long long)result.pieces,
              (long long)want[i]);
    }
    most = 0;
    CHECK_FAILS(ctrt_split_step(&result, split, 100, too_large, &most), CTRT_ERR_OUT_OF_MEMORY,
                "100 rows in 100 pieces");
    CHECK_OK(ctrt_split_new(&split, module, &CTRT_WITH(ctrt_split_options, .most_pieces = 3)));
    CHECK_FAILS(ctrt_split_step(&result, split, 100, too_large, &most), CTRT_ERR_OUT_OF_MEMORY, "100 rows in 3 pieces");
    most = 1;
    CHECK_OK(ctrt_split_step(&result, split, 1, too_large, &most));
    CHECK_EQ(result.pieces, 1);
}

TESTS_MAIN
