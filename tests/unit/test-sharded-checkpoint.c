/* SPDX-License-Identifier: Apache-2.0 */
/* Tests checkpoints that the ranks of `sharded` save in parts: they load with other numbers of ranks and under other
 * strategies, failures leave the checkpoint from before intact, and no rank needs memory for the whole module. */
#include <signal.h>
#include <sys/resource.h>

#include "../options.h"
#include "calls.h"
#include "comm_job.h"
#include "folder.h"
#include "strategy_check.h"

enum { ROWS = 24, STEPS = 2 };

static const char *folder;

#define in_folder(name) folder_join(folder, name)

/* ---- training ---- */

/* y = x * scale, where scale has no dimensions. */
static ctrt_status scale_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *scale = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&scale, self, "scale"));
    return ctrt_mul(y, inputs[0], scale);
}

static const ctrt_module_class scale_class = {
    .size = sizeof(ctrt_module_class), .kind = "Scale", .forward = scale_forward,
};

static ctrt_status scale_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) scale = NULL;
    CTRT_TRY(ctrt_module_new(out, &scale_class));
    CTRT_TRY(ctrt_full(&scale, CTRT_SCALAR_SHAPE, ctrt_float(2), CTRT_F32, device));
    return ctrt_module_add_parameter(*out, "scale", scale);
}

/* 5 rows are 2, 2, 1 on three ranks, 2, 2, 1, 0 on four. The statistics of the batch norm are buffers. */
static ctrt_status module_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, FEATURES, 5, true, device), CTRT_NEW(batch_norm1d, 5, NULL, device),
        CTRT_MAKE(scale_new, device), CTRT_NEW(linear, 5, 3, false, device)));
}

struct trainer {
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_device *device;
    int rank, size;
};

/* `rank` NULL: `strategy` has no ranks. NAdam has a state without dimensions. */
static void trainer_new(struct trainer *t, struct rank *rank, const char *strategy)
{
    *t = (struct trainer){ .device = rank != NULL ? rank->device : device_of(ON_SIM, 0),
                           .rank = rank != NULL ? rank->number : 0, .size = rank != NULL ? rank->size : 1 };
    CHECK_OK(ctrt_generator_set(t->device, 3, 0));
    CHECK_OK(module_new(&t->module, t->device));
    CHECK_OK(rank != NULL ? ctrt_parallel_new_comm(&t->net, t->module, strategy,
                                                   rank->comm) : ctrt_parallel_new(&t->net, t->module, strategy,
                                                   &t->device, 1));
    CHECK_OK(ctrt_nadam_new(&t->optimizer, t->net, NADAM(.lr = 0.02)));
}

static void trainer_free(struct trainer *t)
{
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
}

static void train_step(struct trainer *t, int step)
{
    const int first = ROWS * t->rank / t->size, rows = ROWS * (t->rank + 1) / t->size - first;
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    float values[ROWS * FEATURES];
    for (int i = 0; i < rows * FEATURES; i++)
        values[i] = (float)sin(step * 1000 + first * FEATURES + i);
    CHECK_OK(ctrt_from_data(&x, values, rows * FEATURES, CTRT_SHAPE(rows, FEATURES), CTRT_F32, t->device));
    CHECK_OK(ctrt_optimizer_zero_grad(t->optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, t->net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(t->optimizer));
}

static void save(struct trainer *t, const char *module, const char *optimizer)
{
    CHECK_OK(ctrt_save(t->net, in_folder(module)));
    CHECK_OK(ctrt_optimizer_save(t->optimizer, in_folder(optimizer)));
}

/* ---- other ranks and strategies ---- */

static const struct runner {
    const char *name, *strategy, *mesh;
    int ranks;                              /* 0: a strategy without ranks */
} runners[] = {
    { "single", "single", "", 0 }, { "distributed-2", "distributed", "", 2 }, { "sharded-1", "sharded", "", 1 },
    { "sharded-2", "sharded", "", 2 }, { "sharded-4", "sharded", "", 4 }, { "sharded-2x2", "sharded", "2x2", 4 },
};

static void same_files(const char *a, const char *b)
{
    static char bytes[2][1 << 16];
    const size_t size = folder_read(bytes[0], sizeof bytes[0], in_folder(a));
    CHECK(size > 100 && size == folder_read(bytes[1], sizeof bytes[1], in_folder(b))
          && memcmp(bytes[0], bytes[1], size) == 0, "%s has %zu bytes, and other ones than %s", a, size, b);
}

static void write_whole(void)
{
    struct trainer t;
    trainer_new(&t, NULL, "single");
    for (int i = 0; i < STEPS; i++)
        train_step(&t, i);
    save(&t, "whole", "whole-optimizer");
    trainer_free(&t);
}

static void write_parts(struct rank *rank)
{
    struct trainer t;
    trainer_new(&t, rank, "sharded");
    for (int i = 0; i < STEPS; i++)
        train_step(&t, i);
    save(&t, "parts", "parts-optimizer");
    trainer_free(&t);
}

/* Loads the parts and saves whole files, or parts that a single process makes whole. */
static void load_parts(struct rank *rank, const char *strategy)
{
    struct trainer t;
    trainer_new(&t, rank, strategy);
    train_step(&t, 99);
    CHECK_OK(ctrt_load(t.net, in_folder("parts")));
    CHECK_OK(ctrt_optimizer_load(t.optimizer, in_folder("parts-optimizer")));
    save(&t, "again", "again-optimizer");
    trainer_free(&t);
}

static void load_rank(struct rank *rank)
{
    load_parts(rank, ((const struct runner *)rank->argument)->strategy);
}

static void make_whole(void)
{
    struct trainer t;
    trainer_new(&t, NULL, "single");
    CHECK_OK(ctrt_load(t.module, in_folder("again")));
    CHECK_OK(ctrt_optimizer_load(t.optimizer, in_folder("again-optimizer")));
    save(&t, "again", "again-optimizer");
    trainer_free(&t);
}

static void settings(const char *mode, const char *mesh)
{
    setenv("CTRT_SHARDED_CHECKPOINT", mode, 1);
    setenv("CTRT_SHARDED_MESH", mesh, 1);
}

static void load_all(void)
{
    group("saved by three ranks in parts");
    IN_CHILD(NULL)
        write_whole();
    IN_CHILD(NULL) {
        settings("parts", "");
        run_job(ON_SIM, 3, 20, write_parts, NULL, -1);
    }
    CHECK_EQ(folder_files(folder), 2 + 2 + 2 * 4);         /* ".", "..", the whole files, indices with three parts */
    EACH(reader, runners)
        for (int parts = 0; parts < (strcmp(reader->strategy, "sharded") == 0 ? 2 : 1); parts++) {
            group("loaded by %s%s", reader->name, parts ? ", saved again in parts" : "");
            IN_CHILD(NULL) {
                settings(parts ? "parts" : "whole", reader->mesh);
                if (reader->ranks > 0)
                    run_job(ON_SIM, reader->ranks, 20, load_rank, reader, -1);
                else
                    load_parts(NULL, reader->strategy);
            }
            if (parts)
                IN_CHILD(NULL)
                    make_whole();
            same_files("again", "whole");
            same_files("again-optimizer", "whole-optimizer");
        }
}

/* ---- damaged checkpoints ---- */

/* Replaces `from`, which the header of a file of the folder has, by `to`. */
static void header_change(const char *name, const char *from, const char *to)
{
    static char bytes[2][1 << 14];
    const size_t size = folder_read(bytes[0], sizeof bytes[0] - 1, in_folder(name)), old = strlen(from),
                 new = strlen(to);
    char *const at = memmem(bytes[0], size, from, old);
    uint64_t length;
    FILE *file = fopen(in_folder(name), "wb");
    if (!CHECK(at != NULL && file != NULL, "%s has no %s", name, from))
        return;
    memcpy(&length, bytes[0], 8);
    length += new - old;
    memcpy(bytes[1], bytes[0], (size_t)(at - bytes[0]));
    memcpy(bytes[1], &length, 8);
    memcpy(bytes[1] + (at - bytes[0]), to, new);
    memcpy(bytes[1] + (at - bytes[0]) + new, at + old, size - old - (size_t)(at - bytes[0]));
    CHECK_TRUE(fwrite(bytes[1], 1, size + new - old, file) == size + new - old && fclose(file) == 0);
}

static const struct change { const char *part, *from, *to, *words; } changes[] = {
    { "damaged.a.1-of-3", "\"F32\"", "\"I32\"", "is not in all parts with the same dtype and sizes of rows" },
    { "damaged.a.0-of-3", "\"F32\",\"shape\":[2]", "\"F64\",\"shape\":[]", "has no rows" },
    { "damaged.a.1-of-3", "{\"__metadata__\"",
      "{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"__metadata__\"", "tensors, but part 0 has" },
};

static void damage(struct rank *rank)
{
    static const char part[] = "damaged.a.1-of-3", whole[] = "all of which must be of one save";
    CTRT_AUTO(tensor_file) file = NULL;
    struct trainer t;
    trainer_new(&t, rank, "sharded");
    for (int i = 0; i < 3; i++) {               /* the third one has the names of the first */
        CHECK_OK(ctrt_save(t.net, in_folder("damaged")));
        CHECK_OK(ctrt_comm_barrier(rank->comm));
        if (rank->number == 0 && i == 0)
            folder_copy(folder, "old", in_folder(part), -1);
        train_step(&t, i);
    }
    if (rank->number == 0) {
        folder_copy(folder, "kept", in_folder(part), -1);
        CHECK_OK(ctrt_tensor_file_open(&file, in_folder("damaged")));
        CHECK_TRUE(folder_files(folder) == 2 + 4 + 2);     /* the parts of the second save have been removed */
        ctrt_tensor_file_release(&file);
        folder_copy(folder, part, in_folder("old"), -1);
        CHECK_FAILS(ctrt_load(t.net, in_folder("damaged")), CTRT_ERR_FORMAT,
                    "damaged.a.1-of-3 is not part 1 of this save");
        CHECK_HAS(ctrt_error_message(), whole);
        folder_copy(folder, part, in_folder("kept"), 300);
        CHECK_FAILS(ctrt_load(t.net, in_folder("damaged")), CTRT_ERR_FORMAT, part);
        CHECK_HAS(ctrt_error_message(), whole);
        CHECK_TRUE(unlink(in_folder(part)) == 0);
        CHECK_FAILS(ctrt_load(t.net, in_folder("damaged")), CTRT_ERR_IO, part);
        CHECK_HAS(ctrt_error_message(), whole);
        folder_copy(folder, part, in_folder("kept"), -1);
        CHECK_FAILS(ctrt_load(t.net, in_folder(part)), CTRT_ERR_STATE, "without \".a.1-of-3\" at the end of its name");
        CHECK_FAILS(ctrt_optimizer_load(t.optimizer, in_folder(part)), CTRT_ERR_STATE, "part 1 of a checkpoint");
        EACH(change, changes) {
            folder_copy(folder, "whole-part", in_folder(change->part), -1);
            header_change(change->part, change->from, change->to);
            CHECK_FAILS(ctrt_load(t.net, in_folder("damaged")), CTRT_ERR_FORMAT, change->words);
            CHECK_HAS(ctrt_error_message(), whole);
            folder_copy(folder, change->part, in_folder("whole-part"), -1);
        }
        CHECK_OK(ctrt_load(t.net, in_folder("damaged")));
    }
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    trainer_free(&t);
}

/* ---- failing saves ---- */

static const struct failure {
    const char *name;
    int rank;                                   /* that fails */
    ctrt_status status;                         /* on that rank */
    const char *words;                          /* on all ranks */
} failures[] = {
    { "a folder with the name of a part", 1, CTRT_ERR_IO, "failing.b.1-of-3" },
    { "a disk that is full", 2, CTRT_ERR_IO, "File too large" },
    { "another path", 1, CTRT_ERR_INVALID_ARGUMENT, "the process of part 0 saves to another path" },
};

/* The limit of the size of files stands for the size of the disk. */
static void disk(rlim_t bytes)
{
    const struct rlimit limit = { bytes, RLIM_INFINITY };
    signal(SIGXFSZ, SIG_IGN);
    CHECK_TRUE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void failing(struct rank *rank)
{
    const struct failure *failure = rank->argument;
    const bool here = rank->number == failure->rank;
    const long kind = failure - failures;
    char before[65], after[65];
    struct trainer t;
    trainer_new(&t, rank, "sharded");
    CHECK_OK(ctrt_save(t.net, in_folder("failing")));
    CHECK_OK(ctrt_module_sha256(before, t.net));
    train_step(&t, 0);
    if (here && kind == 0)
        CHECK_TRUE(mkdir(in_folder("failing.b.1-of-3"), 0700) == 0);
    if (here && kind == 1)
        disk(100);
    CHECK_FAILS(ctrt_save(t.net, in_folder(here && kind == 2 ? "elsewhere" : "failing")),
                here ? failure->status : CTRT_ERR_STATE, failure->words);
    if (!here)
        CHECK_HAS(ctrt_error_message(), failure->rank == 1 ? "rank 1: " : "rank 2: ");
    disk(RLIM_INFINITY);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (here && kind == 0)
        CHECK_TRUE(rmdir(in_folder("failing.b.1-of-3")) == 0);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_EQ(folder_files(folder), 2 + 4);                  /* nothing of the failed save is left */
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_load(t.net, in_folder("failing")));
    CHECK_OK(ctrt_module_sha256(after, t.net));
    CHECK_STR(after, before);
    train_step(&t, 1);                                      /* the communicator is still usable */
    CHECK_OK(ctrt_module_sha256(before, t.net));
    CHECK_OK(ctrt_save(t.net, in_folder("failing")));
    CHECK_OK(ctrt_load(t.net, in_folder("failing")));
    CHECK_OK(ctrt_module_sha256(after, t.net));
    CHECK_STR(after, before);
    trainer_free(&t);
}

/* The parts have been written, but the index, which is larger, cannot be. */
static void failing_index(struct rank *rank)
{
    const char *path = in_folder("index");
    double after, before;
    ctrt_tensor *state = NULL;
    struct stat about;
    struct trainer t;
    trainer_new(&t, rank, "sharded");
    train_step(&t, 0);
    CHECK_OK(ctrt_optimizer_save(t.optimizer, path));
    CHECK_OK(ctrt_optimizer_state(&state, t.optimizer, 0, "mu_product"));
    CHECK_OK(ctrt_item(&before, state));
    train_step(&t, 1);
    CHECK_TRUE(stat(path, &about) == 0);
    if (rank->number == 0)
        disk((rlim_t)about.st_size - 1);
    CHECK_FAILS(ctrt_optimizer_save(t.optimizer, path), rank->number == 0 ? CTRT_ERR_IO : CTRT_ERR_STATE,
                "File too large");
    disk(RLIM_INFINITY);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_optimizer_load(t.optimizer, path));
    CHECK_OK(ctrt_optimizer_state(&state, t.optimizer, 0, "mu_product"));
    CHECK_OK(ctrt_item(&after, state));
    CHECK_TRUE(after == before);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_optimizer_save(t.optimizer, path));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_EQ(folder_files(folder), 2 + 4);
    trainer_free(&t);
}

/* ---- permissions ---- */

static void permissions(struct rank *rank)
{
    struct trainer t;
    struct stat about;
    trainer_new(&t, rank, "sharded");
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_save(t.net, in_folder("private")));
        if (rank->number == 0 && i == 0)
            CHECK_TRUE(chmod(in_folder("private"), 0600) == 0);
        CHECK_OK(ctrt_comm_barrier(rank->comm));
    }
    CHECK_TRUE(stat(in_folder("private.b.1-of-2"), &about) == 0 && (about.st_mode & 07777) == 0600);
    if (rank->number == 0)
        CHECK_TRUE(symlink(in_folder("private"), in_folder("link")) == 0);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_load(t.net, in_folder("link")));
    CHECK_OK(ctrt_save(t.net, in_folder("link")));
    CHECK_TRUE(stat(in_folder("private.a.1-of-2"), &about) == 0);
    CHECK_FAILS(ctrt_save(t.net, folder), CTRT_ERR_IO, "not a regular file");
    CHECK_FAILS(ctrt_save(t.net, in_folder("private/below")), CTRT_ERR_IO, "Not a directory");
    if (rank->number == 0)
        folder_copy(folder, "text", "/proc/self/comm", -1);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_save(t.net, in_folder("text")));          /* replaces a file of another format */
    CHECK_OK(ctrt_load(t.net, in_folder("text")));
    trainer_free(&t);
}

/* ---- memory ---- */

/* Returns a line of /proc/self/status in bytes. */
static double memory_of(const char *key)
{
    char line[256];
    double kib = NAN;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atof(line + strlen(key) + 1);
    if (file != NULL)
        fclose(file);
    return 1024 * kib;
}

static bool peak_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    return file != NULL && fputs("5", file) >= 0 && fclose(file) == 0;
}

/* Saving needs a copy of one shard, and loading this rank's shards. */
static void memory(struct rank *rank)
{
    enum { WIDTH = 1024, LAYERS = 8 };
    const double layer = 4.0 * WIDTH * WIDTH, slack = 2 << 20;
    CTRT_AUTO(module) module = NULL, net = NULL;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_NO_MODULES));
    CHECK_OK(CTRT_OK);
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(ctrt_sequential_add(module, CTRT_NEW(linear, WIDTH, WIDTH, false, rank->device)));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "sharded", rank->comm));
    for (int load = 0; load < 2; load++) {
        ctrt_memory_empty_cache(rank->device);
        if (!peak_reset()) {
            skip_group("the peak of memory cannot be reset");
            break;
        }
        const double before = memory_of("VmRSS:"), want = load ? LAYERS * layer / rank->size : layer / rank->size;
        CHECK_OK(load ? ctrt_load(net, in_folder("large")) : ctrt_save(net, in_folder("large")));
        const double peak = memory_of("VmHWM:") - before;
        CHECK(peak < want + slack, "%s: %.0f bytes, expected at most %.0f + %.0f", load ? "load" : "save", peak, want,
              slack);
    }
}

TEST_MAIN
{
    const char *const common[] = { "CTRT_SIM=devices=4,memory=256m", "CTRT_NUM_THREADS=1", "CTRT_CANONICAL=1", NULL };
    child_environment(common);
    folder = folder_new();
    load_all();
    setenv("CTRT_SHARDED_CHECKPOINT", "parts", 1);
    folder = folder_new();
    group("damaged checkpoints");
    IN_CHILD(NULL)
        run_quiet(ON_SIM, 3, 20, damage, NULL, -1);
    for (const struct failure *failure = failures; failure < failures + COUNT(failures); failure++) {
        folder = folder_new();
        group("a save that fails on one rank: %s", failure->name);
        IN_CHILD(NULL)
            run_quiet(SIM_PROCESSES, 3, 20, failing, failure, -1);
    }
    folder = folder_new();
    group("the index cannot be written");
    IN_CHILD(NULL)
        run_quiet(SIM_PROCESSES, 3, 20, failing_index, NULL, -1);
    folder = folder_new();
    group("permissions and links");
    IN_CHILD(NULL)
        run_quiet(ON_SIM, 2, 20, permissions, NULL, -1);
    folder = folder_new();
    group("memory");
    if (SANITIZED)
        skip_group("sanitizers need memory of their own");
    else IN_CHILD(NULL)
        run_quiet(SIM_PROCESSES, 4, 20, memory, NULL, -1);
    return done();
}
