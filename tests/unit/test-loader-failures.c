/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the loader reports when samples fail, workers die or stall, and memory or descriptors are exhausted. */
#include <dirent.h>
#include <errno.h>
#include <math.h>

#include "data_check.h"
#include "log_kept.h"

enum { LENGTH = 40, BATCH = 4 };

static uint64_t right;                  /* the hash of all batches without a failure */

/* A file by which a bad sample remembers that it was read, in whichever process. */
static int new_mark(void)
{
    char path[] = "/tmp/ctrt-mark-XXXXXX";
    const int file = mkstemp(path);
    REQUIRE(file >= 0, "%s", path);
    unlink(path);
    return file;
}

#define OPTIONS(...) CTRT_WITH(ctrt_loader_options, .batch_size = BATCH, .seed = 3, .quiet_workers = true, __VA_ARGS__)

static const struct death {
    enum plain_bad how;
    ctrt_worker_kind kind;
    const char *words[4];
} deaths[] = {
#define PLACE " while it read sample 22 (batch 5 of epoch 0)"
    { PLAIN_KILL,  CTRT_WORKERS_FORK,   { "was killed by signal 9 (Killed)", PLACE } },
    { PLAIN_ABORT, CTRT_WORKERS_FORK,   { "was killed by signal 6 (Aborted)" PLACE, "one line\nbefore sample 22" } },
    { PLAIN_EXIT,  CTRT_WORKERS_FORK,   { "exited with status 3" PLACE, "one line\nbefore sample 22" } },
    { PLAIN_KILL,  CTRT_WORKERS_SERVER, { "was killed by signal 9 (Killed)", PLACE } },
    { PLAIN_EXIT,  CTRT_WORKERS_SERVER, { "exited with status 3" PLACE, "one line\nbefore sample 22" } },
    { PLAIN_STALL, CTRT_WORKERS_FORK,   { "did not finish within the timeout of 0.2 s" PLACE, "before sample 22" } },
    { PLAIN_STALL, CTRT_WORKERS_SERVER, { "did not finish within the timeout of 0.2 s" PLACE, "before sample 22" } },
};

TEST(death, "death and stall of a worker: named with its process, its signal, sample, batch and stderr, in a second")
{
    EACH(c, deaths) {
        CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .bad = 22, .how = c->how,
                                                                   .once = -1 });
        CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = 2, .worker_kind = c->kind,
                                                               .timeout = c->how == PLAIN_STALL ? 0.2 : 60));
        ctrt_tensor *fields[2] = { NULL, NULL };
        char worker[64];
        bool more = true;
        int count = 0;
        while (count < 5 && CHECK_OK(ctrt_loader_next(fields, &more, loader)) && more)
            count++;
        CHECK_EQ(count, 5);
        snprintf(worker, sizeof worker, "worker 1 (process %d)", (int)ctrt_loader_worker_pid(loader, 1));
        const double start = clock_seconds();
        for (int again = 0; again < 2; again++) {
            CHECK_FAILS(ctrt_loader_next(fields, &more, loader), CTRT_ERR_IO, worker);
            for (int w = 0; w < 4 && c->words[w] != NULL; w++)
                CHECK_HAS(ctrt_error_message(), c->words[w]);
        }
        CHECK_TRUE(clock_seconds() - start < 1);
        CHECK_EQ(*(int64_t *)ctrt_tensor_data(fields[1]), 16);  /* a failure leaves the fields unchanged */
        CHECK_OK(ctrt_loader_set_epoch(loader, 1));             /* new workers */
        CHECK_OK(ctrt_loader_next(fields, &more, loader));
        CHECK_EQ(*(int64_t *)ctrt_tensor_data(fields[1]), 0);
        ctrt_tensor_release(&fields[0]);
        ctrt_tensor_release(&fields[1]);
    }
}

TEST(restart, "restarts: a worker that died is replaced, and the batches are the same")
{
    EACH(c, deaths) {
        if (c->how == PLAIN_STALL)
            continue;
        const int mark = new_mark();
        CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .bad = 22, .how = c->how,
                                                                   .once = mark });
        /* The server was started before `mark` was opened, so its workers cannot use the file. */
        CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = 2, .worker_kind = CTRT_WORKERS_FORK,
                                                               .restarts = 1));
        log_keep(CTRT_LOG_WARNING);
        CHECK_EQ(hash_batches(NULL, loader, INT32_MAX), right);
        CHECK_HAS(logged, "it is replaced (1 of 1 restarts)");
        CHECK_EQ(hash_batches(NULL, loader, INT32_MAX) == right, false);       /* the next epoch has other numbers */
        close(mark);
    }
}

TEST(killed, "kill -9 from outside, of every worker kind, while batches are read ahead")
{
    static const ctrt_worker_kind kinds[] = { CTRT_WORKERS_FORK, CTRT_WORKERS_SERVER };
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .once = -1 });
    EACH(kind, kinds) {
        CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = 2, .worker_kind = *kind, .restarts = 20));
        ctrt_tensor *fields[2] = { NULL, NULL };
        uint64_t hash = HASH_START;
        bool more = true;
        for (int i = 0; CHECK_OK(ctrt_loader_next(fields, &more, loader)) && more; i++) {
            hash = hash_batch(hash, fields);
            kill((pid_t)ctrt_loader_worker_pid(loader, i % 2), SIGKILL);
        }
        CHECK_EQ(hash, right);
    }
}

TEST(item_fails, "a sample that fails: the batch is left out, and the next call continues")
{
    static const struct { int workers; ctrt_worker_kind kind; const char *words; } cases[] = {
        { 0, CTRT_WORKERS_AUTO, "\"plain\", batch 5 of epoch 0, sample 22: this sample is bad" },
        { 2, CTRT_WORKERS_FORK, "\"plain\", batch 5 of epoch 0, sample 22, in worker 1: this sample is bad" },
        { 2, CTRT_WORKERS_SERVER, "\"plain\", batch 5 of epoch 0, sample 22, in worker 1: this sample is bad" },
    };
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .bad = 22, .how = PLAIN_FAIL,
                                                               .once = -1 });
    EACH(c, cases) {
        CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = c->workers, .worker_kind = c->kind));
        ctrt_tensor *fields[2] = { NULL, NULL };
        ctrt_loader_state state = CTRT_LOADER_STATE;
        bool more = true;
        hash_batches(NULL, loader, 5);
        CHECK_FAILS(ctrt_loader_next(fields, &more, loader), CTRT_ERR_FORMAT, c->words);
        CHECK_OK(ctrt_loader_get_state(&state, loader));
        CHECK_EQ(state.batch, 6);
        CHECK_OK(ctrt_loader_next(fields, &more, loader));
        CHECK_EQ(*(int64_t *)ctrt_tensor_data(fields[1]), 24);
        ctrt_tensor_release(&fields[0]);
        ctrt_tensor_release(&fields[1]);
    }
}

TEST(silent_item, "a sample that fails without a message: the status is named, and no older message")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = 4, .how = PLAIN_SILENT, .once = -1 });
    ctrt_tensor *fields[2] = { NULL, NULL };
    bool more = true;
    for (int workers = 0; workers < 2; workers++) {
        CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = workers));
        (void)ctrt_fail(CTRT_ERR_STATE, "an older message");
        CHECK_FAILS(ctrt_loader_next(fields, &more, loader), CTRT_ERR_IO, ctrt_status_string(CTRT_ERR_IO));
        CHECK(strstr(ctrt_error_message(), "older") == NULL, "%s", ctrt_error_message());
    }
}

TEST(flood, "a worker that writes 17 MB to stderr finishes its batch")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = 4, .bad = 1, .how = PLAIN_FLOOD, .once = -1 });
    CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = 1));
    int batches = 0;
    const double start = clock_seconds();
    hash_batches(&batches, loader, 100);
    CHECK_EQ(batches, 1);
    printf("# %.3f s\n", clock_seconds() - start);
}

static ctrt_status bad_init(int worker, void *user)
{
    (void)user;
    return worker == 1 ? ctrt_fail(CTRT_ERR_STATE, "no license") : CTRT_OK;
}

TEST(starting, "workers that cannot begin; a loader in a forked process")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .once = -1 });
    CTRT_AUTO(loader) loader = NULL;
    ctrt_tensor *fields[2] = { NULL, NULL };
    bool more = true;
    for (ctrt_worker_kind kind = CTRT_WORKERS_THREADS; kind >= CTRT_WORKERS_FORK; kind--) {
        ctrt_loader_release(&loader);
        loader = new_loader(dataset, OPTIONS(.workers = 2, .worker_kind = kind, .worker_init = bad_init));
        CHECK_OK(ctrt_loader_next(fields, &more, loader));
        CHECK_FAILS(ctrt_loader_next(fields, &more, loader), CTRT_ERR_STATE, "in worker 1: worker_init: no license");
    }
    const pid_t child = fork();
    if (child == 0) {
        const bool fails = ctrt_loader_next(fields, &more, loader) == CTRT_ERR_FORKED;
        ctrt_tensor_release(&fields[0]);
        ctrt_loader_release(&loader);           /* does not end its parent's workers */
        _exit(!fails);
    }
    child_join(child, __FILE__, __LINE__);
    CHECK_OK(ctrt_loader_next(fields, &more, loader));
    ctrt_tensor_release(&fields[0]);
    ctrt_tensor_release(&fields[1]);
}

/* Whether the process has ended; it may not have been waited for. */
static bool is_gone(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    const bool known = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *state = strrchr(line, ')');
    return known && state != NULL && (state[2] == 'Z' || state[2] == 'X');
}

static void *start_loader(void *loader)
{
    ctrt_tensor *fields[2] = { NULL, NULL };
    bool more;
    return ctrt_loader_next(fields, &more, loader) == CTRT_OK ? loader : NULL;
}

TEST(orphans, "kill -9 of the program ends its workers, also those that another thread started")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .once = -1 });
    for (int thread = 0; thread < 2; thread++) {
        int64_t pids[2] = { 0 };
        int ends[2];
        REQUIRE(pipe(ends) == 0, "no pipe");
        const pid_t program = fork();
        if (program == 0) {
            ctrt_loader *loader = new_loader(dataset, OPTIONS(.workers = 2, .worker_kind = CTRT_WORKERS_FORK));
            pthread_t other;
            if (thread && pthread_create(&other, NULL, start_loader, loader) == 0)
                pthread_join(other, NULL);
            else if (!thread)
                start_loader(loader);
            for (int i = 0; i < 2; i++)
                pids[i] = ctrt_loader_worker_pid(loader, i);
            _exit(write(ends[1], pids, sizeof pids) == (ssize_t)sizeof pids && pause() == 0);
        }
        close(ends[1]);
        CHECK_EQ(read(ends[0], pids, sizeof pids), sizeof pids);
        CHECK_TRUE(pids[0] > 0 && pids[1] > 0 && !is_gone((pid_t)pids[0]) && !is_gone((pid_t)pids[1]));
        kill(program, SIGKILL);
        waitpid(program, NULL, 0);
        const double start = clock_seconds();
        while (clock_seconds() - start < 20 && !(is_gone((pid_t)pids[0]) && is_gone((pid_t)pids[1])))
            usleep(10000);
        CHECK_TRUE(is_gone((pid_t)pids[0]) && is_gone((pid_t)pids[1]));
        close(ends[0]);
    }
}

/* ---- memory and descriptors ---- */

static bool no_space;

/* Replaces the C library's function, for libctrt too. */
CTRT_API int posix_fallocate(int file, off_t offset, off_t bytes)
{
    return no_space ? ENOSPC : fallocate(file, 0, offset, bytes) == 0 ? 0 : errno;
}

TEST(shared_memory, "memory that processes share: a status with the numbers when it is exhausted, not a signal")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = 100000, .once = -1 });
    CTRT_AUTO(loader) loader = NULL;
    const ctrt_loader_options options = { .size = sizeof(ctrt_loader_options), .batch_size = 10000, .workers = 2 };
    ctrt_loader_options small = options;
    struct rlimit before, limit;
    small.memory_budget = 1 << 20;
    CHECK_FAILS(ctrt_loader_new(&loader, dataset, &small), CTRT_ERR_OUT_OF_MEMORY,
                "6 batches of 196.00 KiB need 1.62 MiB of memory: the budget (memory_budget) is 1.00 MiB");
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_FAILS(ctrt_loader_new(&loader, dataset, &options), CTRT_ERR_OUT_OF_MEMORY,
                "need 1.62 MiB of memory: the limit of the size of files (ulimit -f) is 1.00 MiB");
    setrlimit(RLIMIT_FSIZE, &before);
    no_space = true;
    CHECK_FAILS(ctrt_loader_new(&loader, dataset, &options), CTRT_ERR_OUT_OF_MEMORY,
                "need 1.62 MiB of memory: the memory that processes share is exhausted: No space left on device");
    no_space = false;
    CHECK_OK(ctrt_loader_new(&loader, dataset, &options));
    CHECK_EQ(ctrt_loader_memory(loader) >> 10, 1660);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count;
}

TEST(descriptors, "descriptors: constant over 10,000 batches and 64 loaders, within a limit of 64")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = 20000, .once = -1 });
    enum { BATCHES = FEWER_SANITIZED(10000), LOADERS = FEWER_SANITIZED(64) };
    struct rlimit before, limit;
    ctrt_tensor *fields[2] = { NULL, NULL };
    bool more = true;
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    const int closed = open_descriptors();
    CTRT_AUTO(loader) loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .batch_size = 2, .workers = 7));
    CHECK_OK(ctrt_loader_next(fields, &more, loader));
    const int open = open_descriptors();
    CHECK_EQ(open, closed + 8);         /* one for each worker, and the memory that the server gets */
    for (int i = 1; i < BATCHES && more; i++)
        if (ctrt_loader_next(fields, &more, loader) != CTRT_OK || !more)
            CHECK(false, "batch %d: %s", i, ctrt_error_message());
    CHECK_EQ(open_descriptors(), open);
    ctrt_loader_release(&loader);
    CHECK_EQ(open_descriptors(), closed);
    for (int i = 0; i < LOADERS; i++) {
        const ctrt_worker_kind kind = i % 2 ? CTRT_WORKERS_FORK : CTRT_WORKERS_SERVER;
        loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .workers = 2, .worker_kind = kind));
        CHECK_OK(ctrt_loader_next(fields, &more, loader));
        ctrt_loader_release(&loader);
    }
    CHECK_EQ(open_descriptors(), closed);
    limit.rlim_cur = (rlim_t)closed + 3;
    setrlimit(RLIMIT_NOFILE, &limit);
    loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .workers = 7, .worker_kind = CTRT_WORKERS_FORK));
    CHECK_FAILS(ctrt_loader_next(fields, &more, loader), CTRT_ERR_IO, "of 7: Too many open files; the limit");
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK_OK(ctrt_loader_next(fields, &more, loader));
    ctrt_tensor_release(&fields[0]);
    ctrt_tensor_release(&fields[1]);
}

TEST_MAIN
{
    REQUIRE(ctrt_fork_server_start() == CTRT_OK, "%s", ctrt_error_message());
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = LENGTH, .once = -1 });
    CTRT_AUTO(loader) loader = new_loader(dataset, OPTIONS(.workers = 0));
    group("without workers");
    right = hash_batches(NULL, loader, INT32_MAX);
    return run_tests();
}
