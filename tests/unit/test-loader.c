/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the batches of the loader: the same for every number and kind of workers, also after a restart in the middle of
 * an epoch; on a device; kept by the program. */
#include "data_check.h"
#include "log_kept.h"
#include "sims.h"

static ctrt_dataset *plain, *stream;

enum { LENGTH = 53, BATCHES = 14, BATCH = 4 };

#define OPTIONS(...) { .size = sizeof(ctrt_loader_options), .batch_size = BATCH, .seed = 5, __VA_ARGS__ }

/* ---- the number of workers ---- */

static const struct {
    const char *name;
    ctrt_loader_options options;
} loaders[] = {
    { "no workers", OPTIONS(.workers = 0) },
    { "1 process", OPTIONS(.workers = 1) },
    { "2 processes", OPTIONS(.workers = 2, .prefetch_factor = 3) },
    { "7 processes that persist", OPTIONS(.workers = 7, .persistent_workers = true) },
    { "2 threads", OPTIONS(.workers = 2, .worker_kind = CTRT_WORKERS_THREADS) },
    { "7 threads that persist",
      OPTIONS(.workers = 7, .worker_kind = CTRT_WORKERS_THREADS, .persistent_workers = true) },
    { "3 forked processes", OPTIONS(.workers = 3, .worker_kind = CTRT_WORKERS_FORK) },
    { "2 processes of the server", OPTIONS(.workers = 2, .worker_kind = CTRT_WORKERS_SERVER, .timeout = 60) },
};

/* The batches of two epochs, in this order of samples. */
static void same_batches(ctrt_dataset *dataset, bool shuffle, bool drop_last)
{
    uint64_t first[2] = { 0 };
    EACH(c, loaders) {
        if (dataset == stream && c->options.worker_kind == CTRT_WORKERS_THREADS)
            continue;
        ctrt_loader_options options = c->options;
        options.shuffle = shuffle;
        options.drop_last = drop_last;
        CTRT_AUTO(loader) loader = new_loader(dataset, options);
        for (int epoch = 0; epoch < 2; epoch++) {
            int count = 0;
            const uint64_t hash = hash_batches(&count, loader, INT32_MAX);
            CHECK(count == BATCHES - drop_last, "%s: %d batches", c->name, count);
            if (c == loaders)
                first[epoch] = hash;
            CHECK(hash == first[epoch], "%s, epoch %d: other batches than without workers", c->name, epoch);
        }
    }
    CHECK_TRUE(first[0] != first[1]);           /* the random numbers differ, and with shuffle the order */
}

TEST(workers, "the batches are the same for 0, 1, 2, 3 and 7 workers of each kind")
{
    same_batches(plain, false, false);
    same_batches(plain, true, false);
    same_batches(plain, true, true);
}

TEST(streams, "the batches of a stream are the same for every number of workers")
{
    same_batches(stream, false, false);
    same_batches(stream, false, true);
    CHECK_EQ(ctrt_dataset_length(stream), -1);
}

TEST(any_order, "any order: the same samples, each once")
{
    CTRT_AUTO(loader) loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 3, .any_order = true));
    ctrt_tensor *fields[2] = { NULL, NULL };
    ctrt_loader_state state = CTRT_LOADER_STATE;
    uint64_t seen = 0;
    bool more = true;
    CHECK_OK(ctrt_loader_get_state(&state, loader));
    while (CHECK_OK(ctrt_loader_next(fields, &more, loader)) && more) {
        CHECK_FAILS(ctrt_loader_get_state(&state, loader), CTRT_ERR_NOT_SUPPORTED, "any_order");
        for (int64_t i = 0; i < ctrt_tensor_numel(fields[1]); i++)
            seen ^= UINT64_C(1) << ((int64_t *)ctrt_tensor_data(fields[1]))[i];
    }
    CHECK_EQ(seen, (UINT64_C(1) << LENGTH) - 1);
    CHECK_TRUE(fields[0] == NULL && fields[1] == NULL);
}

TEST(no_batch, "samples without the dimension of the batch")
{
    CTRT_AUTO(loader) loader = new_loader(plain, CTRT_WITH(ctrt_loader_options, .batch_size = CTRT_NO_BATCH,
                                                           .workers = 2));
    ctrt_tensor *fields[2] = { NULL, NULL };
    bool more = true;
    CHECK_EQ(ctrt_loader_length(loader), LENGTH);
    for (int i = 0; CHECK_OK(ctrt_loader_next(fields, &more, loader)) && more; i++) {
        check_shape("x", __LINE__, fields[0], CTRT_SHAPE(3));
        check_shape("y", __LINE__, fields[1], CTRT_SCALAR_SHAPE);
        CHECK_EQ(*(int64_t *)ctrt_tensor_data(fields[1]), i);
    }
}

/* ---- resume ---- */

static const struct {
    int batches, workers;               /* read before; workers of the loader that continues */
} resumes[] = { { 0, 2 }, { 1, 0 }, { 5, 3 }, { 5, 0 }, { BATCHES - 1, 2 }, { BATCHES, 1 } };

static void resume(ctrt_dataset *dataset, bool shuffle)
{
    EACH(c, resumes) {
        CTRT_AUTO(loader) a = new_loader(dataset, (ctrt_loader_options)OPTIONS(.workers = 2, .shuffle = shuffle));
        CTRT_AUTO(loader) b = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .batch_size = BATCH,
                                                            .workers = c->workers,
                                                                         .shuffle = shuffle, .seed = 99));
        ctrt_loader_state state = CTRT_LOADER_STATE;
        uint64_t rest[2];
        CHECK_OK(ctrt_loader_set_epoch(a, 3));
        hash_batches(NULL, a, c->batches);
        CHECK_OK(ctrt_loader_get_state(&state, a));
        CHECK_EQ(state.epoch * 100 + (uint64_t)state.batch, 300 + (uint64_t)c->batches);
        for (int i = 0; i < 2; i++)
            rest[i] = hash_batches(NULL, a, INT32_MAX);
        CHECK_OK(ctrt_loader_restore(b, &state));
        for (int i = 0; i < 2; i++)
            CHECK_EQ(hash_batches(NULL, b, INT32_MAX), rest[i]);
        CHECK_OK(ctrt_loader_restore(a, &state));
        CHECK_EQ(hash_batches(NULL, a, 3) == 0, 0);             /* leaves in the middle, with batches read ahead */
        CHECK_OK(ctrt_loader_restore(a, &state));
        CHECK_EQ(hash_batches(NULL, a, INT32_MAX), rest[0]);
    }
}

TEST(resuming, "a loader continues in the middle of an epoch, with another number of workers")
{
    resume(plain, true);
    resume(stream, false);
    CTRT_AUTO(loader) loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 0));
    ctrt_loader_state state = CTRT_LOADER_STATE;
    CHECK_OK(ctrt_loader_get_state(&state, loader));
    state.fingerprint++;
    CHECK_FAILS(ctrt_loader_restore(loader, &state), CTRT_ERR_INVALID_ARGUMENT, "another dataset, sampler or batch");
    state.fingerprint--, state.batch = BATCHES + 1;
    CHECK_FAILS(ctrt_loader_restore(loader, &state), CTRT_ERR_INVALID_ARGUMENT, "batch 15 of 14");
    state.size = 8;
    CHECK_FAILS(ctrt_loader_restore(loader, &state), CTRT_ERR_INVALID_ARGUMENT, "its size is 8");
}

TEST(epochs, "set_epoch repeats an epoch; the order is a function of (seed, epoch)")
{
    CTRT_AUTO(loader) loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 2, .shuffle = true,
                                                                              .persistent_workers = true));
    uint64_t hashes[2];
    for (int epoch = 0; epoch < 2; epoch++)
        hashes[epoch] = hash_batches(NULL, loader, INT32_MAX);
    for (int epoch = 1; epoch >= 0; epoch--) {
        CHECK_OK(ctrt_loader_set_epoch(loader, (uint64_t)epoch));
        CHECK_EQ(hash_batches(NULL, loader, INT32_MAX), hashes[epoch]);
    }
}

/* ---- memory ---- */

TEST(kept, "a program may keep all batches, also after the loader is closed")
{
    EACH(c, loaders) {
        CTRT_AUTO(loader) loader = new_loader(plain, c->options);
        ctrt_tensor *kept[BATCHES][2] = { { NULL } };
        uint64_t hash = HASH_START;
        bool more = false;
        for (int b = 0; b < BATCHES; b++)
            CHECK(ctrt_loader_next(kept[b], &more, loader) == CTRT_OK && more, "%s, batch %d: %s", c->name, b,
                  ctrt_error_message());
        ctrt_loader_release(&loader);
        for (int b = 0; b < BATCHES; b++) {
            hash = hash_batch(hash, kept[b]);
            ctrt_tensor_release(&kept[b][0]);
            ctrt_tensor_release(&kept[b][1]);
        }
        loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 0));
        CHECK_EQ(hash, hash_batches(NULL, loader, INT32_MAX));
    }
}

/* ---- devices ---- */

TEST(devices, "batches on a device: the same, copied ahead on another stream, also in a scope that ends")
{
    CTRT_AUTO(loader) host = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 0));
    const uint64_t hash = hash_batches(NULL, host, INT32_MAX);
    ctrt_device *device = sim_open("sim:0");
    for (int workers = 0; workers < 3; workers++) {
        CTRT_AUTO(loader) loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = workers,
                                                                                  .device = device));
        ctrt_tensor *fields[2] = { NULL, NULL };
        uint64_t on_device = HASH_START;
        bool more = true;
        for (int batch = 0; more; batch++) {
            if (batch % 2 == 0)
                CHECK_OK(ctrt_scope_begin());
            CHECK_OK(ctrt_loader_next(fields, &more, loader));
            if (more) {
                CHECK_TRUE(ctrt_tensor_device(fields[0]) == device);
                on_device = hash_batch(on_device, fields);
            }
            if (batch % 2 == 0)
                CHECK_OK(ctrt_scope_end());
            ctrt_loader_state state = CTRT_LOADER_STATE;
            CHECK_OK(ctrt_loader_get_state(&state, loader));
            CHECK_EQ(state.batch, more ? batch + 1 : 0);        /* the batch that is copied ahead does not count */
        }
        CHECK_EQ(on_device, hash);
        ctrt_loader_release(&loader);
        log_keep(CTRT_LOG_WARNING);
        loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = workers, .pin_memory = true));
        CHECK_OK(ctrt_loader_next(fields, &more, loader));
        CHECK_TRUE(ctrt_tensor_is_pinned(fields[0]) || strstr(logged, "there is no accelerator") != NULL);
        ctrt_tensor_release(&fields[0]);
        ctrt_tensor_release(&fields[1]);
    }
}

TEST(pinned, "the memory of the batches is pinned where it is, and used again only after its copy; else copied")
{
    static const struct { const char *fault; int workers; ctrt_worker_kind kind; } cases[] = {
        { NULL, 0, CTRT_WORKERS_AUTO }, { NULL, 2, CTRT_WORKERS_FORK }, { NULL, 2, CTRT_WORKERS_SERVER },
        { NULL, 2, CTRT_WORKERS_THREADS }, { "host:1", 2, CTRT_WORKERS_FORK },
    };
    CTRT_AUTO(loader) host = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = 0));
    const uint64_t hash = hash_batches(NULL, host, INT32_MAX);
    ctrt_device *device = sim_open("sim:0");
    const sim_counters before = sim_read(0);
    EACH(c, cases) {
        if (c->fault != NULL)
            CHECK_OK(sim->inject(0, c->fault));
        CTRT_AUTO(loader) loader = new_loader(plain, (ctrt_loader_options)OPTIONS(.workers = c->workers,
                                                      .worker_kind = c->kind, .device = device));
        const uint64_t bytes = sim_read(0).host_bytes - before.host_bytes;
        CHECK_EQ(bytes, c->fault != NULL ? 0 : ctrt_loader_memory(loader));
        CHECK_OK(sim->set_latency(0, 2000000));     /* copies last longer than reading a batch */
        CHECK_EQ(hash_batches(NULL, loader, INT32_MAX), hash);
        CHECK_OK(sim->set_latency(0, 0));
        if (c->fault == NULL)
            CHECK_EQ(sim_read(0).host_bytes - before.host_bytes, bytes);        /* nothing was copied to other memory */
        ctrt_loader_release(&loader);
        CHECK_OK(sim->clear(0));
        if (c->fault == NULL)
            CHECK_EQ(sim_read(0).host_bytes, before.host_bytes);
    }
}

TEST_MAIN
{
    /* First, because the server is forked from a process without threads. */
    REQUIRE(ctrt_fork_server_start() == CTRT_OK, "%s", ctrt_error_message());
    plain = plain_dataset((struct plain){ .length = LENGTH, .once = -1 });
    stream = plain_dataset((struct plain){ .length = LENGTH, .once = -1, .position = -1 });
    const int failed = run_tests();
    ctrt_dataset_release(&plain);
    ctrt_dataset_release(&stream);
    return failed;
}
