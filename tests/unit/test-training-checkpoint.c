/* SPDX-License-Identifier: Apache-2.0 */
/* Tests checkpoints of whole training runs. A run continues from one file in the middle of an epoch, with another
 * strategy and another number of ranks, to the bit as if it had not been interrupted, with dropout too. Files that do
 * not fit change nothing. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "../options.h"
#include "calls.h"
#include "rank_check.h"

/* Five batches of all ranks are an epoch, so the save is in the middle of the second. */
enum { ROWS = 24, SAMPLES = 120, SAVED = 7, STEPS = 13 };

static const struct runner {
    const char *name, *strategy;
    int ranks;
    enum kind kind;                         /* of the ranks; KINDS: a program without ranks */
    bool writes;
    int devices;                            /* of a program without ranks */
} runners[] = {
    { "single",        "single",      1, KINDS,         true,  1 },
    { "distributed-2", "distributed", 2, ON_SIM,        true,  0 },
    { "sharded-2",     "sharded",     2, ON_SIM,        true,  0 },
    { "distributed-1", "distributed", 1, ON_SIM,        false, 0 },
    { "distributed-4", "distributed", 4, SIM_PROCESSES, false, 0 },
    { "sharded-4",     "sharded",     4, ON_SIM,        false, 0 },
}, random_runners[] = {
    { "single",        "single",        1, KINDS,         true, 1 },
    { "data-parallel", "data-parallel", 1, KINDS,         true, 2 },
    { "pipeline",      "pipeline",      1, KINDS,         true, 2 },
    { "distributed-2", "distributed",   2, SIM_PROCESSES, true, 0 },
    { "sharded-2",     "sharded",       2, ON_SIM,        true, 0 },
};

static struct uninterrupted {
    double losses[STEPS];
    char hashes[STEPS][65];                 /* of the module after each step */
} *expected;

static bool canonical, random_module;
static const char *folder;

/* ---- training ---- */

static int64_t sample_count(void *state)
{
    return *(const int64_t *)state;
}

static ctrt_status sample_item(ctrt_sample *sample, void *state)
{
    float values[FEATURES];
    (void)state;
    for (int i = 0; i < FEATURES; i++)
        values[i] = (float)sin((double)sample->index * FEATURES + i);
    memcpy(sample->out[0], values, sizeof values);
    return CTRT_OK;
}

static ctrt_dataset *samples_new(int64_t count)
{
    static const ctrt_field field = { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { FEATURES } };
    static const ctrt_dataset_functions functions = {
        .size = sizeof functions, .name = "sines", .fields = &field, .field_count = 1, .length = sample_count,
        .item = sample_item, .free = free
    };
    ctrt_dataset *dataset = NULL;
    int64_t *state = malloc(sizeof *state);
    *state = count;
    REQUIRE(ctrt_dataset_new(&dataset, &functions, state) == CTRT_OK, "%s", ctrt_error_message());
    return dataset;
}

/* A loader of one of `size` ranks, with a batch of `batch` samples. */
static ctrt_loader *batches_new(int64_t count, int rank, int size, int64_t batch, bool shuffle, uint64_t seed)
{
    ctrt_dataset *dataset = samples_new(count);
    ctrt_sampler *sampler = NULL;
    ctrt_loader *loader = NULL;
    if (size > 1)
        CHECK_OK(ctrt_sampler_distributed(&sampler, count, rank, size, shuffle, false));
    CHECK_OK(ctrt_loader_new(&loader, dataset, &CTRT_WITH(ctrt_loader_options, .batch_size = batch, .sampler = sampler,
                                                          .shuffle = shuffle && size == 1, .seed = seed)));
    ctrt_sampler_release(&sampler);
    ctrt_dataset_release(&dataset);
    return loader;
}

/* In canonical mode with statistics of batches. Random numbers are in a module of their own, because their sequence
 * depends on the strategy and on the number of ranks. */
static ctrt_status module_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_MAKE(shared_new, device),
        random_module ? CTRT_NEW(dropout, 0.5)
                      : canonical ? CTRT_NEW(batch_norm1d, FEATURES, NULL, device) : CTRT_NEW(tanh),
        CTRT_MAKE(shared_new, device)));
}

struct trainer {
    const struct runner *runner;
    ctrt_module *module;
    ctrt_training_state run;                /* owns the objects */
    ctrt_device *device;
    int rank;
};

static bool trainer_new(struct trainer *t, const struct runner *runner, struct rank *rank, uint64_t seed)
{
    *t = (struct trainer){ .runner = runner, .run = { .size = sizeof t->run }, .rank = rank != NULL ? rank->number : 0,
                           .device = rank != NULL ? rank->device : device_of(ON_SIM, 0) };
    t->run.loader = batches_new(SAMPLES, t->rank, runner->ranks, ROWS / runner->ranks, true, seed);
    return CHECK_OK(module_new(&t->module, t->device))
           && CHECK_OK(rank != NULL
                           ? ctrt_parallel_new_comm(&t->run.module, t->module, runner->strategy, rank->comm)
                           : ctrt_parallel_new(&t->run.module, t->module, runner->strategy,
                                               (ctrt_device *[]){ t->device, device_of(ON_SIM, 1) }, runner->devices))
           && CHECK_OK(ctrt_adamw_new(&t->run.optimizer, t->run.module,
                                      ADAMW(.lr = 0.02, .weight_decay = 0.1)))
           && CHECK_OK(ctrt_grad_scaler_new(&t->run.scaler, NULL));
}

static void trainer_free(struct trainer *t)
{
    ctrt_loader_release(&t->run.loader);
    ctrt_grad_scaler_release(&t->run.scaler);
    ctrt_optimizer_release(&t->run.optimizer);
    ctrt_module_release(&t->run.module);
    ctrt_module_release(&t->module);
}

static double train_step(struct trainer *t)
{
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    double value = NAN;
    bool more = false;
    CHECK_OK(ctrt_loader_next(&x, &more, t->run.loader));
    if (!more)
        CHECK_OK(ctrt_loader_next(&x, &more, t->run.loader));
    CHECK_OK(ctrt_to_device(&x, x, t->device));
    CHECK_OK(ctrt_optimizer_zero_grad(t->run.optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, t->run.module, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(t->run.optimizer));
    if (loss != NULL)
        CHECK_OK(ctrt_item(&value, loss));
    t->run.step++;
    return value;
}

/* Trains up to step `to` and compares with the uninterrupted run: bits in canonical mode. */
static void continue_to(struct trainer *t, const char *loaded, int to)
{
    char hash[65] = "";
    while (t->run.step < to) {
        const int step = (int)t->run.step;
        const double loss = train_step(t);
        CHECK(fabs(loss - expected->losses[step]) <= (canonical ? 0 : 1e-5),
              "%s, loaded from %s: the loss of step %d is %.9g, expected %.9g", t->runner->name, loaded, step, loss,
              expected->losses[step]);
        CHECK_OK(ctrt_module_sha256(hash, t->module));
        CHECK(!canonical || strcmp(hash, expected->hashes[step]) == 0,
              "%s, loaded from %s: step %d gives other parameters", t->runner->name, loaded, step);
    }
}

static const char *path_of(char path[512], const char *runner, int rank)
{
    snprintf(path, 512, "%s/%s.%d", folder, runner, rank);
    return path;
}

/* Rank r writes a file of its own, and all ranks write file number -1. */
static void write_rank(struct rank *rank)
{
    char path[512];
    struct trainer t;
    const struct runner *runner = rank->argument;
    const ctrt_grad_scaler_state scale = { sizeof scale, 1024, 4, 0.25, 100, 3 };
    if (trainer_new(&t, runner, rank->comm != NULL ? rank : NULL, 5)) {
        continue_to(&t, "nothing", SAVED);
        CHECK_OK(ctrt_grad_scaler_set_state(t.run.scaler, &scale));
        CHECK_OK(ctrt_training_save(path_of(path, runner->name, t.rank), &t.run));
        CHECK_OK(ctrt_training_save(path_of(path, runner->name, -1), &t.run));
        continue_to(&t, "nothing", STEPS);  /* saving changes nothing */
    }
    trainer_free(&t);
}

static void read_rank(struct rank *rank)
{
    char path[512];
    const struct runner *runner = rank->argument;
    ctrt_grad_scaler_state scale = CTRT_GRAD_SCALER_STATE;
    EACH(writer, runners) {
        struct trainer t;
        if (!writer->writes)
            continue;
        if (trainer_new(&t, runner, rank->comm != NULL ? rank : NULL, 99)) {
            (void)train_step(&t);           /* what is loaded replaces all state */
            CHECK_OK(ctrt_training_load(&t.run, path_of(path, writer->name, -1)));
            CHECK_EQ(t.run.step, SAVED);
            CHECK_OK(ctrt_grad_scaler_get_state(&scale, t.run.scaler));
            CHECK_TRUE(scale.scale == 1024 && scale.growth_factor == 4 && scale.growth_tracker == 3);
            continue_to(&t, writer->name, STEPS);
        }
        trainer_free(&t);
    }
}

static void run(const struct runner *runner, void (*function)(struct rank *))
{
    struct rank alone = { .argument = runner };
    if (runner->kind != KINDS)
        run_job(runner->kind, runner->ranks, 20, function, runner, -1);
    else
        function(&alone);
}

/* All ranks have written the same bytes. */
static void files_compare(const struct runner *runner)
{
    static char bytes[2][1 << 16];
    char path[512];
    const size_t size = folder_read(bytes[0], sizeof bytes[0], path_of(path, runner->name, -1));
    for (int rank = 0; rank < runner->ranks; rank++)
        CHECK(size > 100 && size == folder_read(bytes[1], sizeof bytes[1], path_of(path, runner->name, rank))
              && memcmp(bytes[0], bytes[1], size) == 0, "%s: the file of rank %d differs", runner->name, rank);
}

static void make_expected(void)
{
    struct trainer t;
    if (trainer_new(&t, &runners[0], NULL, 5))
        for (int step = 0; step < STEPS; step++) {
            expected->losses[step] = train_step(&t);
            CHECK_OK(ctrt_module_sha256(expected->hashes[step], t.module));
        }
    trainer_free(&t);
}

/* ---- files that do not fit, and failed writes ---- */

/* The objects and the step of a run, as the bytes of a file. */
static size_t bytes_of(char *bytes, size_t most, const ctrt_training_state *state)
{
    char path[512];
    CHECK_OK(ctrt_training_save(path_of(path, "state", 0), state));
    return folder_read(bytes, most, path);
}

static void unchanged(ctrt_training_state *state, const char *path, ctrt_status status, const char *words)
{
    static char before[1 << 16], after[1 << 16];
    const size_t size = bytes_of(before, sizeof before, state);
    CHECK_FAILS(ctrt_training_load(state, path), status, words);
    CHECK(size == bytes_of(after, sizeof after, state) && memcmp(before, after, size) == 0,
          "a failed load (%s) changed the run", words);
}

static void failed_write(struct trainer *t, const char *path)
{
    static char before[1 << 16], after[1 << 16];
    struct rlimit old, small;
    const size_t size = folder_read(before, sizeof before, path), files = folder_files(folder);
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    small = old;
    small.rlim_cur = 1000;
    CHECK(size > 2000 && setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit: %s", strerror(errno));
    const ctrt_status status = ctrt_training_save(path, &t->run);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_FAILS(status, CTRT_ERR_IO, "cannot write");
    CHECK_EQ(folder_files(folder), files);
    CHECK(size == folder_read(after, sizeof after, path) && memcmp(before, after, size) == 0,
          "a failed save changed the old file");
}

/* Where a loader of a file at sample 48 of epoch 1 continues. */
static void places(const ctrt_training_state *saved, const char *path)
{
    static const struct {
        int64_t count; int ranks; int64_t batch; bool shuffle;
        const char *words;                  /* of the error; NULL: it continues */
    } cases[] = {
        { SAMPLES, 1, 24, true, NULL }, { SAMPLES, 4, 6, true, NULL }, { SAMPLES, 2, 4, true, NULL },
        { SAMPLES, 4, 12, true, NULL }, { SAMPLES, 3, 8, true, NULL },
        { SAMPLES, 4, 24, true, "no batch of 4 ranks with 24 samples each begins" },
        { SAMPLES, 1, 36, true, "sample 48 of the epoch" },
        { SAMPLES, 5, 1, true, "no batch of 5 ranks" },
        { SAMPLES, 1, 24, false, "another sampler" }, { SAMPLES, 2, 12, false, "another sampler" },
        { SAMPLES + 24, 1, 24, true, "another dataset" },
    };
    EACH(c, cases) {
        ctrt_training_state state = *saved;
        ctrt_loader_state place = CTRT_LOADER_STATE;
        state.loader = batches_new(c->count, 0, c->ranks, c->batch, c->shuffle, 3);
        if (c->words != NULL) {
            unchanged(&state, path, CTRT_ERR_STATE, c->words);
        } else {
            CHECK_OK(ctrt_training_load(&state, path));
            CHECK_OK(ctrt_loader_get_state(&place, state.loader));
            CHECK(place.epoch == 1 && place.seed == 5 && place.batch * c->batch * c->ranks == 48,
                  "%d ranks with %d samples: batch %d of epoch %d", c->ranks, (int)c->batch, (int)place.batch,
                  (int)place.epoch);
        }
        ctrt_loader_release(&state.loader);
    }
}

static void misfits(void)
{
    struct trainer t;
    char path[512], less[512], module[512];
    CTRT_AUTO(module) small = NULL;
    CTRT_AUTO(optimizer) sgd = NULL;
    path_of(path, "misfits", 0), path_of(less, "misfits", 1), path_of(module, "misfits", 2);
    if (!trainer_new(&t, &runners[0], NULL, 5)) {
        trainer_free(&t);
        return;
    }
    continue_to(&t, "nothing", SAVED);
    CHECK_OK(ctrt_training_save(path, &t.run));
    (void)train_step(&t);
    failed_write(&t, path);

    ctrt_training_state other = t.run;
    CHECK_OK(ctrt_linear_new(&small, FEATURES, 3, true, t.device));
    CHECK_OK(ctrt_sgd_new(&sgd, t.run.module, NULL));
    other.module = small;
    unchanged(&other, path, CTRT_ERR_STATE, "does not match the module");
    other = t.run;
    other.optimizer = sgd;
    unchanged(&other, path, CTRT_ERR_STATE, "the file has the state of AdamW, the optimizer is SGD");

    other = (ctrt_training_state){ .size = sizeof other, .module = t.run.module, .step = 4 };
    CHECK_OK(ctrt_training_save(less, &other));
    CHECK_OK(ctrt_save(t.run.module, module));
    unchanged(&t.run, less, CTRT_ERR_STATE, "the file has no loader");
    unchanged(&t.run, module, CTRT_ERR_FORMAT, "not written by ctrt_training_save");
    CHECK_OK(ctrt_training_load(&other, path));             /* the rest of the file is left out */
    CHECK_EQ(other.step, SAVED);

    static char bytes[1 << 16];
    const size_t size = folder_read(bytes, sizeof bytes, path);
    FILE *file = fopen(less, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, size - 1, file) == size - 1 && fclose(file) == 0, "cannot write %s", less);
    unchanged(&t.run, less, CTRT_ERR_FORMAT, less);
    places(&t.run, path);
    trainer_free(&t);
}

/* Parts are several files. */
static void refuse_parts(struct rank *rank)
{
    char path[512];
    struct trainer t;
    if (trainer_new(&t, rank->argument, rank, 5))
        CHECK_FAILS(ctrt_training_save(path_of(path, "parts", 0), &t.run), CTRT_ERR_NOT_SUPPORTED,
                    "CTRT_SHARDED_CHECKPOINT=whole");
    trainer_free(&t);
}

/* ---- random numbers ---- */

/* The generators of the cpu, which all ranks that are threads share, and of the two devices or of the rank's device. */
static void generators_set(const struct trainer *t, uint64_t seed)
{
    CHECK_OK(ctrt_generator_set(device_of(ON_CPU, 0), seed, 5));
    for (int i = 0; i < t->runner->devices; i++)
        CHECK_OK(ctrt_generator_set(device_of(ON_SIM, i), seed + (uint64_t)i, 3));
    if (t->runner->devices == 0)
        CHECK_OK(ctrt_generator_set(t->device, seed + 10 * (uint64_t)t->rank, 3));
}

static void check_generator(const char *name, ctrt_device *device, uint64_t seed)
{
    uint64_t now = 0, offset = 0;
    CHECK_OK(ctrt_generator_get(device, &now, &offset));
    CHECK(now == seed, "%s: the seed of %s is %d, expected %d", name, ctrt_device_name(device), (int)now, (int)seed);
}

/* Trains without and with an interruption. Every rank begins with another seed; in canonical mode, a step sets that of
 * rank 0. With ranks, the net's module stands for the net in the save. */
static void interrupt(struct rank *rank)
{
    double losses[STEPS];
    char path[512], want[65], got[65];
    const struct runner *runner = rank->argument;
    struct rank *own = rank->comm != NULL ? rank : NULL;
    struct trainer t, again;
    path_of(path, runner->name, -2);
    if (trainer_new(&t, runner, own, 5)) {
        generators_set(&t, 40);
        while (t.run.step < STEPS) {
            ctrt_training_state inner = t.run;
            inner.module = own != NULL ? t.module : t.run.module;
            if (t.run.step == SAVED)
                CHECK_OK(ctrt_training_save(path, &inner));
            const int step = (int)t.run.step;
            losses[step] = train_step(&t);
        }
        CHECK_OK(ctrt_module_sha256(want, t.module));
    }
    trainer_free(&t);
    if (trainer_new(&again, runner, own, 99)) {
        generators_set(&again, 70);
        (void)train_step(&again);
        CHECK_OK(ctrt_training_load(&again.run, path));
        check_generator(runner->name, device_of(ON_CPU, 0), 40);
        check_generator(runner->name, again.device, 40 + (canonical ? 0 : 10 * (uint64_t)again.rank));
        while (again.run.step < STEPS) {
            const int step = (int)again.run.step;
            const double loss = train_step(&again);
            CHECK(loss == losses[step], "%s: the loss of step %d is %.9g, expected %.9g", runner->name, step, loss,
                  losses[step]);
        }
        CHECK_OK(ctrt_module_sha256(got, again.module));
        CHECK_STR(got, want);
    }
    trainer_free(&again);
}

/* Writes the file `from` to `to` with one word replaced by another of the same length. */
static void file_edit(const char *to, const char *from, const char *word, const char *by)
{
    static char bytes[1 << 16];
    const size_t size = folder_read(bytes, sizeof bytes, from);
    char *at = memmem(bytes, size, word, strlen(word));
    REQUIRE(at != NULL, "%s has no %s", from, word);
    memcpy(at, by, strlen(by));
    FILE *file = fopen(to, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "cannot write %s", to);
}

/* Files without generators, of another number of ranks, of more devices, and with a wrong shape. */
static void other_generators(void)
{
    char single[512], pair[512], ranks[512], edited[512];
    struct trainer t;
    ctrt_device *const cpu = device_of(ON_CPU, 0);
    path_of(single, "single", -2), path_of(pair, "data-parallel", -2), path_of(ranks, "distributed-2", -2);
    path_of(edited, "edited", 0);
    if (trainer_new(&t, &random_runners[0], NULL, 5)) {
        generators_set(&t, 70);
        file_edit(edited, single, "\"generator.states\"", "\"xenerator.states\"");
        CHECK_OK(ctrt_training_load(&t.run, edited));
        check_generator("no generators", cpu, 70), check_generator("no generators", t.device, 70);
        t.run.step = 0;
        CHECK_OK(ctrt_training_load(&t.run, ranks));
        CHECK_EQ(t.run.step, SAVED);
        check_generator("two ranks", cpu, 70), check_generator("two ranks", t.device, 70);
        file_edit(edited, single, "[1,2,2]", "[1,4,1]");
        unchanged(&t.run, edited, CTRT_ERR_FORMAT, "no i64 tensor [ranks, generators, 2]");
        CHECK_OK(ctrt_training_load(&t.run, pair));
        check_generator("two devices", cpu, 40), check_generator("two devices", t.device, 40);
    }
    trainer_free(&t);
}

/* ---- the program ---- */

TEST_MAIN
{
    expected = mmap(NULL, sizeof *expected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(expected != MAP_FAILED, "no shared memory");
    for (int mode = 0; mode < 2; mode++) {
        const char *const settings[] = { "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1",
                                         mode ? "CTRT_CANONICAL=1" : "CTRT_CANONICAL=0", NULL };
        canonical = mode;
        folder = folder_new();
        child_environment(settings);
        group("%s: training", canonical ? "canonical" : "plain");
        IN_CHILD(NULL)
            make_expected();
        CHECK(expected->losses[STEPS - 1] > 0 && expected->losses[STEPS - 1] < expected->losses[0],
              "the loss is %g at first, %g at last", expected->losses[0], expected->losses[STEPS - 1]);
        EACH(writer, runners) {
            if (!writer->writes)
                continue;
            group("%s: written by %s", canonical ? "canonical" : "plain", writer->name);
            IN_CHILD(NULL)
                run(writer, write_rank);
            files_compare(writer);
        }
        EACH(reader, runners) {
            group("%s: loaded by %s", canonical ? "canonical" : "plain", reader->name);
            IN_CHILD(NULL)
                run(reader, read_rank);
        }
        group("%s: files that do not fit change nothing", canonical ? "canonical" : "plain");
        IN_CHILD(NULL)
            misfits();
        random_module = true;
        EACH(runner, random_runners) {
            group("%s: dropout with %s", canonical ? "canonical" : "plain", runner->name);
            IN_CHILD(NULL)
                run(runner, interrupt);
        }
        group("%s: files without generators or with other ones", canonical ? "canonical" : "plain");
        IN_CHILD(NULL)
            other_generators();
        random_module = false;
    }
    const char *const parts[] = { "CTRT_SIM=devices=4,memory=32m", "CTRT_SHARDED_CHECKPOINT=parts", NULL };
    child_environment(parts);
    group("parts are refused");
    IN_CHILD(NULL)
        run(&runners[2], refuse_parts);
    return done();
}
