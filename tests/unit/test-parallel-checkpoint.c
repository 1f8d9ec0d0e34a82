/* SPDX-License-Identifier: Apache-2.0 */
/* Tests checkpoints of modules and optimizers that are written under one strategy and loaded under another: training
 * continues as if it had not been interrupted. */
#include "../options.h"
#include "calls.h"
#include "rank_check.h"

enum { ROWS = 24, SAVED = 3, STEPS = 6 };

static const struct runner {
    const char *name, *strategy;
    int devices;
    enum kind kind;                         /* of the ranks; KINDS: a strategy without ranks */
} runners[] = {
    { "single",      "single",        1, KINDS },
    { "data-2",      "data-parallel", 2, KINDS },
    { "data-3",      "data-parallel", 3, KINDS },
    { "threads-2",   "distributed",   2, ON_SIM },
    { "processes-3", "distributed",   3, SIM_PROCESSES },
    { "pipeline-2",  "pipeline",      2, KINDS },
    { "sharded-2",   "sharded",       2, ON_SIM },
    { "sharded-3",   "sharded",       3, SIM_PROCESSES },
};

/* The results of an uninterrupted run under `single`; shared by all processes. */
static struct uninterrupted {
    double losses[STEPS];
    char hashes[STEPS][65];                 /* of the module after each step */
} *expected;

static bool canonical;
static const char *folder;

/* ---- training ---- */

/* Shared weights, and parameters without gradient. A batch norm has buffers, but only in canonical mode its statistics
 * do not depend on the strategy. Without random numbers, because threads share the generator of the cpu. */
static ctrt_status module_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_MAKE(shared_new, device),
        canonical ? CTRT_NEW(batch_norm1d, FEATURES, NULL, device) : CTRT_NEW(tanh),
        CTRT_MAKE(shared_new, device)));
}

struct trainer {
    const struct runner *runner;
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_device *device;
    int rank, size;
};

static bool trainer_new(struct trainer *t, const struct runner *runner, struct rank *rank)
{
    ctrt_device *devices[4] = { rank != NULL ? rank->device : NULL };
    *t = (struct trainer){ .runner = runner, .rank = rank != NULL ? rank->number : 0,
                           .size = rank != NULL ? rank->size : 1 };
    for (int i = 0; rank == NULL && i < runner->devices; i++)
        devices[i] = device_of(ON_SIM, i);
    t->device = devices[0];
    return CHECK_OK(module_new(&t->module, t->device))
           && CHECK_OK(rank != NULL ? ctrt_parallel_new_comm(&t->net, t->module, runner->strategy, rank->comm)
                                    : ctrt_parallel_new(&t->net, t->module, runner->strategy, devices, runner->devices))
           && CHECK_OK(ctrt_adamw_new(&t->optimizer, t->net, ADAMW(.lr = 0.02, .weight_decay = 0.1)));
}

static void trainer_free(struct trainer *t)
{
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
}

static double train_step(struct trainer *t, int step)
{
    const int first = ROWS * t->rank / t->size, rows = ROWS * (t->rank + 1) / t->size - first;
    CTRT_AUTO(tensor) x = batch_of(t->device, CTRT_F32, step, first, rows), loss = NULL;
    double value = NAN;
    CHECK_OK(ctrt_optimizer_zero_grad(t->optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, t->net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(t->optimizer));
    if (loss != NULL)
        CHECK_OK(ctrt_item(&value, loss));
    return value;
}

/* Trains from step `from` to `to` and compares with the uninterrupted run: bits in canonical mode. */
static void continue_from(struct trainer *t, const char *loaded, int from, int to)
{
    char hash[65] = "";
    for (int step = from; step < to; step++) {
        const double loss = train_step(t, step);
        CHECK(fabs(loss - expected->losses[step]) <= (canonical ? 0 : 1e-5),
              "%s, loaded from %s: the loss of step %d is %.9g, expected %.9g", t->runner->name, loaded, step, loss,
              expected->losses[step]);
        CHECK_OK(ctrt_module_sha256(hash, t->module));
        CHECK(!canonical || strcmp(hash, expected->hashes[step]) == 0,
              "%s, loaded from %s: step %d gives other parameters", t->runner->name, loaded, step);
    }
}

/* ---- checkpoints ---- */

/* The files that rank `rank` of a runner writes; -1: those that all its ranks write. */
static void paths(char module[512], char optimizer[512], const char *runner, int rank)
{
    char who[16] = "all";
    if (rank >= 0)
        snprintf(who, sizeof who, "%d", rank);
    snprintf(module, 512, "%s/%s.%s.module", folder, runner, who);
    snprintf(optimizer, 512, "%s/%s.%s.optimizer", folder, runner, who);
}

static void save(struct trainer *t, int rank)
{
    char module[512], optimizer[512];
    paths(module, optimizer, t->runner->name, rank);
    CHECK_OK(ctrt_save(t->net, module));
    CHECK_OK(ctrt_optimizer_save(t->optimizer, optimizer));
}

static void write_files(const struct runner *runner, struct rank *rank)
{
    struct trainer t;
    if (trainer_new(&t, runner, rank)) {
        continue_from(&t, "nothing", 0, SAVED);
        save(&t, t.rank);
        save(&t, -1);                       /* all ranks at the same time */
        /* A save concerns this rank only, except under `sharded`, where all ranks save. */
        if (t.rank == t.size - 1 || strcmp(runner->strategy, "sharded") == 0)
            CHECK_FAILS(ctrt_save(t.net, "/nonexistent/module"), CTRT_ERR_IO, "/nonexistent/module");
        (void)train_step(&t, 99);
    }
    trainer_free(&t);
}

/* Continues from the files of each runner: rank r from those of a rank, then from those that all ranks wrote. */
static void read_files(const struct runner *runner, struct rank *rank)
{
    char module[512], optimizer[512];
    for (size_t w = 0; w < COUNT(runners); w++)
        for (int all = 0; all < 2; all++) {
            struct trainer t;
            const int writers = runners[w].kind != KINDS ? runners[w].devices : 1;
            if (trainer_new(&t, runner, rank)) {
                (void)train_step(&t, 99);   /* what is loaded replaces all state */
                paths(module, optimizer, runners[w].name, all ? -1 : t.rank % writers);
                CHECK_OK(ctrt_load(t.net, module));
                CHECK_OK(ctrt_optimizer_load(t.optimizer, optimizer));
                continue_from(&t, runners[w].name, SAVED, STEPS);
            }
            trainer_free(&t);
        }
}

static void write_rank(struct rank *rank)
{
    write_files(rank->argument, rank);
}

static void read_rank(struct rank *rank)
{
    read_files(rank->argument, rank);
}

static void run(const struct runner *runner, bool reads)
{
    if (runner->kind != KINDS)
        run_job(runner->kind, runner->devices, 20, reads ? read_rank : write_rank, runner, -1);
    else
        (reads ? read_files : write_files)(runner, NULL);
}

/* All ranks have written the same bytes. */
static void files_compare(const struct runner *runner)
{
    static char bytes[2][1 << 16];
    char module[2][512], optimizer[2][512];
    paths(module[0], optimizer[0], runner->name, -1);
    for (int rank = 0; rank < (runner->kind != KINDS ? runner->devices : 1); rank++) {
        paths(module[1], optimizer[1], runner->name, rank);
        const size_t size = folder_read(bytes[0], sizeof bytes[0], module[0]);
        CHECK(size > 100 && size == folder_read(bytes[1], sizeof bytes[1], module[1])
              && memcmp(bytes[0], bytes[1], size) == 0, "%s: the files of rank %d differ", runner->name, rank);
    }
}

/* ---- the program ---- */

static void make_expected(void)
{
    struct trainer t;
    if (trainer_new(&t, &runners[0], NULL))
        for (int step = 0; step < STEPS; step++) {
            expected->losses[step] = train_step(&t, step);
            CHECK_OK(ctrt_module_sha256(expected->hashes[step], t.module));
        }
    trainer_free(&t);
}

TEST_MAIN
{
    expected = mmap(NULL, sizeof *expected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(expected != MAP_FAILED, "no shared memory");
    for (int mode = 0; mode < 2; mode++) {
        const char *const settings[] = { "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1",
                                         mode ? "CTRT_CANONICAL=1" : "CTRT_CANONICAL=0", NULL };
        size_t files = 2;                   /* "." and ".." */
        canonical = mode;
        folder = folder_new();
        child_environment(settings);
        group("%s: training", canonical ? "canonical" : "plain");
        IN_CHILD(NULL)
            make_expected();
        CHECK(expected->losses[STEPS - 1] > 0 && expected->losses[STEPS - 1] < expected->losses[0],
              "the loss is %g at first, %g at last", expected->losses[0], expected->losses[STEPS - 1]);
        EACH(writer, runners) {
            group("%s: written by %s", canonical ? "canonical" : "plain", writer->name);
            IN_CHILD(NULL)
                run(writer, false);
            files_compare(writer);
            files += 2 * (size_t)(1 + (writer->kind != KINDS ? writer->devices : 1));
            CHECK_EQ(folder_files(folder), files);
        }
        EACH(reader, runners) {
            if (SANITIZED && (reader - runners) % 2 == canonical)
                continue;                   /* with sanitizers each in one of the modes */
            group("%s: loaded by %s", canonical ? "canonical" : "plain", reader->name);
            IN_CHILD(NULL)
                run(reader, true);
        }
    }
    return done();
}
