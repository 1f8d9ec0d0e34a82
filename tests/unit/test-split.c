/* SPDX-License-Identifier: Apache-2.0 */
/* Tests ctrt_split: a step that runs out of memory is retried in pieces, has the gradients of the whole batch, and
 * failed attempts leave no trace. */
#include <math.h>

#include "sims.h"
#include "dryrun_models.h"

#define ROWS 64

/* A training whose data is passed in ranges of rows. */
struct program {
    struct training run;
    int calls, fail_at;                 /* the call that fails; 0: none */
    ctrt_status failure;
    int64_t rows;                       /* rows done in the current attempt */
    double loss, weights;
};

static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
{
    struct program *program = user;
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    double value;
    if (from == 0)
        program->loss = program->weights = 0, program->rows = 0;
    CHECK(from == program->rows && to > from, "rows %lld to %lld after %lld", (long long)from, (long long)to,
          (long long)program->rows);
    if (++program->calls == program->fail_at)
        return program->failure;
    CTRT_TRY(ctrt_slice(&x, program->run.x, 0, from, to, 1));
    CTRT_TRY(ctrt_slice(&y, program->run.y, 0, from, to, 1));
    CTRT_TRY(ctrt_forward(&loss, program->run.net, x));
    CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
    CTRT_TRY(ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
    CTRT_TRY(ctrt_backward(loss));
    CTRT_TRY(ctrt_item(&value, loss));
    program->loss += value;
    program->weights += weight;
    program->rows = to;
    return CTRT_OK;
}

/* Returns a new array with all gradients, one after the other, and its length in *count. */
static float *gradients(size_t *count, ctrt_module *net)
{
    float *all = NULL;
    *count = 0;
    for (size_t i = 0; i < ctrt_module_parameter_count(net); i++) {
        ctrt_tensor *parameter = NULL;
        CHECK_OK(ctrt_module_parameter(NULL, &parameter, net, i));
        const size_t n = (size_t)ctrt_tensor_numel(parameter);
        all = realloc(all, (*count + n) * sizeof *all);
        memset(all + *count, 0, n * sizeof *all);
        if (CHECK(ctrt_tensor_grad(parameter) != NULL, "parameter %zu has no gradient", i))
            CHECK_OK(ctrt_to_host(all + *count, n * sizeof *all, ctrt_tensor_grad(parameter), CTRT_F32));
        *count += n;
    }
    return all;
}

static const struct model net = { "deep mlp without dropout", mlp_make, { ROWS, 20 }, 10, false, STEP, ADAMW, false };

static void begin(struct program *program, const struct model *model, ctrt_device *device)
{
    *program = (struct program){ .fail_at = 0 };
    ctrt_manual_seed(11);
    CHECK_OK(training_begin(&program->run, model, device));
}

/* Returns the gradients of one step with these options; NULL options run a step without ctrt_split. */
static float *step_of(size_t *count, ctrt_device *device, const ctrt_split_options *options, ctrt_split_result *result,
                      double *loss)
{
    struct program program;
    CTRT_AUTO(split) split = NULL;
    begin(&program, &net, device);
    if (options != NULL) {
        CHECK_OK(ctrt_split_new(&split, program.run.net, options));
        CHECK_OK(ctrt_split_step(result, split, ROWS, rows, &program));
    } else {
        CHECK_OK(rows(&program, 0, ROWS, 1));
    }
    CHECK(fabs(program.weights - 1) < 1e-12 && program.rows == ROWS, "weights %g, rows %lld", program.weights,
          (long long)program.rows);
    *loss = program.loss;
    float *all = gradients(count, program.run.net);
    training_end(&program.run);
    ctrt_split_release(&split);
    CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes remain allocated",
          (unsigned long long)ctrt_memory_allocated(device));
    return all;
}

static double difference(const float *a, const float *b, size_t count)
{
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

static void test_gradients(const char *name)
{
    group("%s: any number of pieces gives the gradients of the whole batch", name);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = NULL;
        size_t count, n;
        double loss, piece_loss;
        ctrt_split_result result = { 0 };
        CHECK_OK(ctrt_device_get(&device, name));
        float *whole = step_of(&count, device, NULL, NULL, &loss), *first = NULL;
        for (int64_t pieces = 1; pieces <= ROWS; pieces += pieces < 8 ? 1 : 7) {
            float *sum = step_of(&n, device, &(ctrt_split_options){ .pieces = pieces }, &result, &piece_loss);
            CHECK(result.pieces == pieces && result.failures == 0, "%lld pieces", (long long)result.pieces);
            CHECK(difference(whole, sum, count) < 1e-6 && fabs(loss - piece_loss) < 1e-5,
                  "%lld pieces: gradients differ by %g, losses by %g",
                  (long long)pieces, difference(whole, sum, count), loss - piece_loss);
            CHECK(pieces > 1 || memcmp(whole, sum, count * sizeof *sum) == 0,
                  "gradients of one piece differ from those of the whole batch");
            free(sum);
        }
        /* Canonical sums have the same bits in every run, whatever number of pieces is requested. */
        for (int64_t pieces = 1; pieces <= 8; pieces *= 2) {
            float *sum = step_of(&n, device, &(ctrt_split_options){ .canonical = 8, .pieces = pieces }, &result,
                                 &piece_loss);
            CHECK(result.pieces == 8, "%lld pieces", (long long)result.pieces);
            CHECK(first == NULL || memcmp(first, sum, count * sizeof *sum) == 0,
                  "canonical sums differ when %lld pieces are requested", (long long)pieces);
            free(first);
            first = sum;
        }
        free(first);
        free(whole);
    }
    CHILD_END;
}

/* ---- when memory runs out ---- */

static const struct model large = { "wide", wide_make, { 2000, 300 }, 10, false, STEP, ADAMW, false };

/* Trains for three steps and returns the sum of squares of the parameters. *pieces receives the number of pieces of
 * the last step. */
static double train(ctrt_device *device, const ctrt_split_options *options, int64_t *pieces, int *steps)
{
    struct program program;
    CTRT_AUTO(split) split = NULL;
    double sum = 0;
    begin(&program, &large, device);
    CHECK_OK(ctrt_split_new(&split, program.run.net, options));
    for (*steps = 0; *steps < 3; ++*steps) {
        CHECK_OK(ctrt_optimizer_zero_grad(program.run.optimizer, true));
        CHECK_OK(ctrt_split_step(NULL, split, large.input[0], rows, &program));
        CHECK_OK(ctrt_optimizer_step(program.run.optimizer));
    }
    *pieces = ctrt_split_pieces(split);
    for (size_t i = 0; i < ctrt_module_parameter_count(program.run.net); i++) {
        ctrt_tensor *parameter = NULL;
        CTRT_AUTO(tensor) square = NULL;
        double value = 0;
        CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, i));
        ctrt_no_grad {
            CHECK_OK(ctrt_square(&square, parameter));
            CHECK_OK(ctrt_sum(&square, square, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_item(&value, square));
        }
        sum += value;
    }
    training_end(&program.run);
    ctrt_split_release(&split);
    CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes remain allocated",
          (unsigned long long)ctrt_memory_allocated(device));
    return sum;
}

static char told[400];

static void listen(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level;
    if (strcmp(component, "split") == 0 && told[0] == '\0')
        snprintf(told, sizeof told, "%s", text);
}

static double trained_in(const char *setting, bool canonical, int64_t *pieces)
{
    struct answer { double sum; int64_t pieces; } answer = { 0, 0 };
    int pipes[2];
    CHECK(pipe(pipes) == 0, "pipe failed");
    IN_CHILD(setting) {
        ctrt_device *device = sim_open("sim:0");
        ctrt_split_options options = { .canonical = canonical ? 16 : 0 };
        int steps;
        ctrt_log_set_callback(listen, NULL);
        answer.sum = train(device, &options, &answer.pieces, &steps);
        CHECK((told[0] != '\0') == (!canonical && answer.pieces > 1), "in %lld pieces the log says \"%s\"",
              (long long)answer.pieces, told);
        CHECK(told[0] == '\0' || strstr(told, "2000 rows in 1 piece; retrying with 2") != NULL, "the log says \"%s\"",
              told);
        CHECK(write(pipes[1], &answer, sizeof answer) == sizeof answer, "write to the pipe failed");
    }
    CHILD_END;
    CHECK(read(pipes[0], &answer, sizeof answer) == sizeof answer, "read from the pipe failed");
    close(pipes[0]);
    close(pipes[1]);
    *pieces = answer.pieces;
    return answer.sum;
}

static void test_small_device(void)
{
    int64_t roomy, tight;
    group("a batch that does not fit is trained in pieces");
    double whole = trained_in("CTRT_SIM=devices=1,memory=256m", false, &roomy);
    double split = trained_in("CTRT_SIM=devices=1,memory=56m", false, &tight);
    CHECK(roomy == 1 && tight > 1 && tight <= 16, "%lld and %lld pieces", (long long)roomy, (long long)tight);
    CHECK(fabs(whole - split) < 1e-3 * whole, "trained to %.9g and %.9g", whole, split);
    group("canonical: the same bits on a large and a small device");
    whole = trained_in("CTRT_SIM=devices=1,memory=256m", true, &roomy);
    split = trained_in("CTRT_SIM=devices=1,memory=56m", true, &tight);
    CHECK(roomy == 16 && tight == 16, "%lld and %lld pieces", (long long)roomy, (long long)tight);
    CHECK(whole == split, "trained to %.17g and %.17g", whole, split);
}

/* ---- failures ---- */

static const struct model noted = { "norms", norms_make, { ROWS, 3, 16, 16 }, 10, false, STEP, MOMENTUM, false };

static void test_forgetting(const char *name)
{
    group("%s: a failed attempt does not change gradients, statistics and random numbers", name);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
        ctrt_device *device = NULL;
        struct program program;
        CTRT_AUTO(split) split = NULL;
        ctrt_split_result result;
        ctrt_tensor *variance = NULL;
        uint64_t offset, after;
        size_t count, n;
        float before[6], now[6];
        CHECK_OK(ctrt_device_get(&device, name));
        begin(&program, &noted, device);
        CHECK_OK(rows(&program, 0, ROWS, 1));
        CHECK_OK(ctrt_module_tensor(&variance, program.run.net, "1.running_var"));
        CHECK_OK(ctrt_to_host(before, sizeof before, variance, CTRT_F32));
        float *first = gradients(&count, program.run.net);
        CHECK_OK(ctrt_generator_get(device, NULL, &offset));
        CHECK_OK(ctrt_split_new(&split, program.run.net, &(ctrt_split_options){ .pieces = 4 }));

        program.calls = 0, program.fail_at = 3, program.failure = CTRT_ERR_STATE;
        CHECK(ctrt_split_step(&result, split, ROWS, rows, &program) == CTRT_ERR_STATE, "the third piece does not fail");
        CHECK_OK(ctrt_to_host(now, sizeof now, variance, CTRT_F32));
        float *again = gradients(&n, program.run.net);
        CHECK_OK(ctrt_generator_get(device, NULL, &after));
        CHECK(memcmp(before, now, sizeof now) == 0 && memcmp(first, again, count * sizeof *first) == 0 &&
              offset == after,
              "statistics, gradients or random numbers changed");
        CHECK(ctrt_split_pieces(split) == 4, "%lld pieces after another error", (long long)ctrt_split_pieces(split));
        free(again);

        /* The third piece runs out of memory; the retry has eight pieces and adds to the existing gradients. */
        program.calls = 0, program.failure = CTRT_ERR_OUT_OF_MEMORY;
        CHECK_OK(ctrt_split_step(&result, split, ROWS, rows, &program));
        CHECK(result.pieces == 8 && result.failures == 1 && program.calls == 3 + 8,
              "%lld pieces, %lld failures, %d calls",
              (long long)result.pieces, (long long)result.failures, program.calls);
        again = gradients(&n, program.run.net);
        CHECK(difference(first, again, count) > 1e-4, "the gradients did not change");
        free(again);
        CHECK(ctrt_split_pieces(split) == 8, "%lld pieces for the next step", (long long)ctrt_split_pieces(split));

        ctrt_split_release(&split);
        CHECK_OK(ctrt_split_new(&split, program.run.net, &(ctrt_split_options){ .canonical = 4 }));
        program.calls = 0, program.fail_at = 1;
        CHECK_OK(ctrt_split_step(&result, split, ROWS, rows, &program));
        CHECK(result.pieces == 4 && result.failures == 1, "%lld pieces", (long long)result.pieces);
        program.calls = 0, program.fail_at = 1;
        CHECK_OK(ctrt_split_step(&result, split, 3, rows, &program));       /* fewer rows than pieces */
        CHECK(result.pieces == 3 && result.failures == 1 && ctrt_split_pieces(split) == 4, "%lld pieces, then %lld",
              (long long)result.pieces, (long long)ctrt_split_pieces(split));
        free(first);
        training_end(&program.run);
        ctrt_split_release(&split);
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes remain allocated",
              (unsigned long long)ctrt_memory_allocated(device));
    }
    CHILD_END;
}

/* State that a program changes without its module. */
struct odd {
    struct program *program;
    ctrt_device *cpu;
    bool break_stream;                  /* the first kernel of the second piece fails on the device */
    double reserved;                    /* sum of the cpu's random numbers in the last attempt */
};

static ctrt_status odd_rows(void *user, int64_t from, int64_t to, double weight)
{
    struct odd *odd = user;
    CTRT_AUTO(tensor) noise = NULL;
    double value;
    if (from == 0)
        odd->reserved = 0;
    if (odd->break_stream && from > 0) {
        CHECK(sim->inject(0, "op:1") == CTRT_OK, "the fault was rejected");
        CTRT_TRY(ctrt_relu(&noise, odd->program->run.x));
        (void)ctrt_device_synchronize(ctrt_tensor_device(noise));
        return ctrt_fail(CTRT_ERR_IO, "the program's own trouble");
    }
    CTRT_TRY(ctrt_rand(&noise, CTRT_SHAPE(10), CTRT_F64, odd->cpu));
    CTRT_TRY(ctrt_sum(&noise, noise, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_item(&value, noise));
    odd->reserved += value;
    return rows(odd->program, from, to, weight);
}

/* Returns the sum of the cpu's random numbers in one step of four pieces. Call number `fail_at` runs out of memory. */
static double numbers_drawn(struct odd *odd, int fail_at)
{
    CTRT_AUTO(split) split = NULL;
    CHECK_OK(ctrt_split_new(&split, odd->program->run.net, &(ctrt_split_options){ .canonical = 4 }));
    ctrt_manual_seed(5);
    odd->program->calls = 0, odd->program->fail_at = fail_at, odd->program->failure = CTRT_ERR_OUT_OF_MEMORY;
    CHECK_OK(ctrt_split_step(NULL, split, ROWS, odd_rows, odd));
    ctrt_split_release(&split);
    return odd->reserved;
}

static void test_odd_programs(void)
{
    group("generators of other devices and training modules in an eval root are restored too");
    IN_CHILD("CTRT_SIM=devices=2,memory=64m", "CTRT_LOG=error") {
        struct program program;
        struct odd odd = { .program = &program };
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(split) split = NULL;
        ctrt_module *norm = NULL;
        ctrt_tensor *mean = NULL;
        float before[6], now[6];
        CHECK_OK(ctrt_device_get(&odd.cpu, "cpu"));
        begin(&program, &noted, device);
        const double plain = numbers_drawn(&odd, 0), redone = numbers_drawn(&odd, 3);
        CHECK(plain == redone, "the cpu's random numbers add up to %.17g, in a retry to %.17g", plain, redone);

        ctrt_module_train(program.run.net, false);
        for (size_t i = 0; norm == NULL || strstr(ctrt_module_kind(norm), "Norm") == NULL; i++)
            if (!CHECK_OK(ctrt_module_child(NULL, &norm, program.run.net, i)))
                exit(1);
        ctrt_module_train(norm, true);
        CHECK_OK(ctrt_module_tensor(&mean, program.run.net, "1.running_mean"));
        CHECK_OK(ctrt_to_host(before, sizeof before, mean, CTRT_F32));
        CHECK_OK(ctrt_split_new(&split, program.run.net, &(ctrt_split_options){ .pieces = 4 }));
        program.calls = 0, program.fail_at = 3, program.failure = CTRT_ERR_STATE;
        CHECK(ctrt_split_step(NULL, split, ROWS, odd_rows, &odd) == CTRT_ERR_STATE, "the third piece does not fail");
        CHECK_OK(ctrt_to_host(now, sizeof now, mean, CTRT_F32));
        CHECK(memcmp(before, now, sizeof now) == 0, "statistics changed from %g to %g", before[0], now[0]);
        program.calls = 0, program.fail_at = 0;
        CHECK_OK(ctrt_split_step(NULL, split, ROWS, odd_rows, &odd));
        CHECK_OK(ctrt_to_host(now, sizeof now, mean, CTRT_F32));
        CHECK(memcmp(before, now, sizeof now) != 0, "the training module did not update its statistics");
        training_end(&program.run);
        ctrt_split_release(&split);
    }
    CHILD_END;

    group("the program's failure is reported, not that of the restore");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
        struct program program;
        struct odd odd = { .program = &program, .break_stream = true };
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(split) split = NULL;
        CHECK_OK(ctrt_device_get(&odd.cpu, "cpu"));
        begin(&program, &noted, device);
        CHECK_OK(ctrt_split_new(&split, program.run.net, &(ctrt_split_options){ .pieces = 4 }));
        CHECK_FAILS(ctrt_split_step(NULL, split, ROWS, odd_rows, &odd), CTRT_ERR_IO,
                    "the program's own trouble (and the module's buffers could not be restored: ");
        for (size_t i = 0; i < ctrt_module_parameter_count(program.run.net); i++) {
            ctrt_tensor *parameter = NULL;
            CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, i));
            CHECK(ctrt_tensor_grad(parameter) == NULL, "parameter %zu keeps the gradient of a failed attempt", i);
        }
        CTRT_AUTO(stream) stream = NULL;
        CHECK_OK(ctrt_stream_current(&stream, device));
        CHECK_OK(ctrt_stream_reset(stream));
        ctrt_stream_release(&stream);
        training_end(&program.run);
        ctrt_split_release(&split);
    }
    CHILD_END;
}

/* Existing gradients stay the same tensors and get the sums of steps without ctrt_split. */
static void test_held_gradients(const char *name)
{
    group("%s: a split step adds to the existing gradient tensors", name);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
        ctrt_device *device = NULL;
        CHECK_OK(ctrt_device_get(&device, name));
        float *sums[2];
        size_t count = 0;
        for (int split_it = 0; split_it < 2; split_it++) {
            struct program program;
            CTRT_AUTO(split) split = NULL;
            ctrt_tensor *held[16] = { NULL }, *parameter = NULL;
            begin(&program, &net, device);
            const size_t n = ctrt_module_parameter_count(program.run.net);
            CHECK_OK(rows(&program, 0, ROWS, 1));
            for (size_t i = 0; i < n && i < COUNT(held); i++) {
                CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, i));
                held[i] = ctrt_tensor_retain(ctrt_tensor_grad(parameter));
            }
            CHECK_OK(ctrt_split_new(&split, program.run.net, NULL));
            program.calls = 0, program.failure = CTRT_ERR_OUT_OF_MEMORY;
            if (split_it)
                CHECK_OK(ctrt_split_step(NULL, split, ROWS, rows, &program));
            else
                CHECK_OK(rows(&program, 0, ROWS, 1));
            sums[split_it] = gradients(&count, program.run.net);
            for (size_t i = 0; i < n && i < COUNT(held); i++) {
                CHECK_OK(ctrt_module_parameter(NULL, &parameter, program.run.net, i));
                CHECK(ctrt_tensor_grad(parameter) == held[i], "the gradient of parameter %zu is another tensor", i);
                ctrt_tensor_release(&held[i]);
            }
            training_end(&program.run);
            ctrt_split_release(&split);
        }
        CHECK(memcmp(sums[0], sums[1], count * sizeof *sums[0]) == 0, "sums differ by %g",
              difference(sums[0], sums[1], count));
        free(sums[0]);
        free(sums[1]);
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes remain allocated",
              (unsigned long long)ctrt_memory_allocated(device));
    }
    CHILD_END;
}

static ctrt_status too_large(void *user, int64_t from, int64_t to, double weight)
{
    int64_t *most = user;
    (void)from, (void)weight;
    return to - from > *most ? CTRT_ERR_OUT_OF_MEMORY : CTRT_OK;
}

static void test_numbers(void)
{
    group("the number of pieces grows after failures and shrinks after successes");
    IN_CHILD("CTRT_LOG=error") {
        CTRT_AUTO(module) module = NULL;
        CTRT_AUTO(split) split = NULL;
        ctrt_split_result result;
        int64_t most = 10;
        CHECK_OK(ctrt_relu_new(&module));
        CHECK_OK(ctrt_split_new(&split, module, &(ctrt_split_options){ .grow_after = 2 }));
        CHECK_OK(ctrt_split_step(&result, split, 100, too_large, &most));
        CHECK(result.pieces == 16 && result.failures == 4, "%lld pieces, %lld failures", (long long)result.pieces,
              (long long)result.failures);
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
        CHECK_OK(ctrt_split_new(&split, module, &(ctrt_split_options){ .most_pieces = 3 }));
        CHECK_FAILS(ctrt_split_step(&result, split, 100, too_large, &most), CTRT_ERR_OUT_OF_MEMORY,
                    "100 rows in 3 pieces");
        most = 1;
        CHECK_OK(ctrt_split_step(&result, split, 1, too_large, &most));
        CHECK(result.pieces == 1, "%lld pieces of one row", (long long)result.pieces);
        CHECK_FAILS(ctrt_split_step(NULL, split, 0, too_large, &most), CTRT_ERR_INVALID_ARGUMENT, "batch");
        CHECK_FAILS(ctrt_split_step(NULL, NULL, 1, too_large, &most), CTRT_ERR_INVALID_ARGUMENT, "split");
        CHECK_FAILS(ctrt_split_step(NULL, split, 1, NULL, &most), CTRT_ERR_INVALID_ARGUMENT, "function");
        CHECK_FAILS(ctrt_split_new(&split, module, &(ctrt_split_options){ .pieces = -1 }), CTRT_ERR_INVALID_ARGUMENT,
                    "pieces");
        CHECK_FAILS(ctrt_split_new(&split, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "module");
        CHECK_FAILS(ctrt_split_new(NULL, module, NULL), CTRT_ERR_INVALID_ARGUMENT, "out");
        CHECK(ctrt_split_pieces(NULL) == 0, "a NULL split has pieces");
    }
    CHILD_END;
}

/* Every n-th allocation of the device fails once. */
static void test_every_allocation(void)
{
    group("each allocation of a split step fails once: counters are exact");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error", "CTRT_MEMORY=direct") {
        ctrt_device *device = sim_open("sim:0");
        int failures = 0;
        for (int n = 1; n < 400; n++) {
            struct program program;
            CTRT_AUTO(split) split = NULL;
            ctrt_memory_stats stats;
            char fault[64];
            begin(&program, &net, device);
            CHECK_OK(ctrt_split_new(&split, program.run.net, &(ctrt_split_options){ .pieces = 2 }));
            const uint64_t before = ctrt_memory_allocated(device);
            snprintf(fault, sizeof fault, "alloc:%d;alloc:%d", n, n + 1);      /* the library tries twice */
            CHECK(sim->inject(0, fault) == CTRT_OK, "the fault was rejected");
            ctrt_split_result result = { 0 };
            ctrt_status status = ctrt_split_step(&result, split, ROWS, rows, &program);
            const bool hit = result.failures > 0 || status != CTRT_OK || program.calls > 2;
            CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %d: %s", n, ctrt_error_message());
            CHECK(sim->clear(0) == CTRT_OK, "the faults were not cleared");
            failures += hit;
            if (status == CTRT_OK) {
                size_t count;
                float *all = gradients(&count, program.run.net);
                CHECK_OK(ctrt_optimizer_step(program.run.optimizer));
                free(all);
            } else {
                CHECK(ctrt_memory_allocated(device) == before, "%d: %llu bytes before, %llu after", n,
                      (unsigned long long)before,
                      (unsigned long long)ctrt_memory_allocated(device));
            }
            training_end(&program.run);
            ctrt_split_release(&split);
            CHECK(ctrt_memory_allocated(device) == 0, "%d: %llu bytes remain allocated", n,
                  (unsigned long long)ctrt_memory_allocated(device));
            CHECK_OK(ctrt_memory_get_stats(&stats, device));
            CHECK(stats.allocation[CTRT_POOL_ALL].allocated == stats.allocation[CTRT_POOL_ALL].freed
                      && stats.num_device_alloc == stats.num_device_free,
                  "%d: allocations and frees differ", n);
            if (!hit)
                break;
        }
        CHECK(failures > 20, "only %d allocations failed", failures);
    }
    CHILD_END;
}

TEST_MAIN
{
    test_gradients("cpu");
    test_gradients("sim:0");
    test_small_device();
    test_forgetting("cpu");
    test_forgetting("sim:0");
    test_odd_programs();
    test_held_gradients("cpu");
    test_held_gradients("sim:0");
    test_numbers();
    test_every_allocation();
    return done();
}
