/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical mode with a data loader: ranks whose batches come from ctrt_sampler_distributed train to the same bits as
 * one process with the loader's shuffle and the whole batch. */
#include "rank_check.h"

enum { SAMPLES = 60, BATCH = 24, EPOCHS = 2 };      /* the second of the last batches has 12 rows */

static ctrt_status item(ctrt_sample *sample, void *state)
{
    (void)state;
    for (int k = 0; k < FEATURES; k++)
        ((float *)sample->out[0])[k] = (float)(sin((double)sample->index * FEATURES + k)
                                               + 0.1 * ctrt_sample_random_uniform(&sample->random));
    return CTRT_OK;
}

static int64_t samples(void *state)
{
    (void)state;
    return SAMPLES;
}

static void loader_new(ctrt_loader **out, const struct rank *rank)
{
    static const ctrt_field fields[] = { { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { FEATURES } } };
    static const ctrt_dataset_functions functions = { .size = sizeof functions, .fields = fields, .field_count = 1,
                                                      .length = samples, .item = item };
    CTRT_AUTO(dataset) dataset = NULL;
    CTRT_AUTO(sampler) sampler = NULL;
    ctrt_loader_options options = { .size = sizeof(ctrt_loader_options), .batch_size = BATCH, .seed = 11,
                                    .shuffle = rank == NULL };
    if (rank != NULL) {
        CHECK_OK(ctrt_sampler_distributed(&sampler, SAMPLES, rank->number, rank->size, true, false));
        options.sampler = sampler;
        options.batch_size = BATCH / rank->size;
    }
    CHECK_OK(ctrt_dataset_new(&dataset, &functions, NULL));
    CHECK_OK(ctrt_loader_new(out, dataset, &options));
}

/* `rank`: NULL for one process. */
static void train_epochs(char hash[65], ctrt_module *net, const struct rank *rank, ctrt_device *device)
{
    CTRT_AUTO(loader) loader = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(optimizer_new(&optimizer, net, true));
    loader_new(&loader, rank);
    for (int steps = 0; steps < EPOCHS * 3;) {
        CTRT_AUTO(tensor) x = NULL, loss = NULL;
        bool more = false;
        CHECK_OK(ctrt_loader_next(&x, &more, loader));
        if (!more)
            continue;
        CHECK_OK(ctrt_to_device(&x, x, device));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        if (!CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL)))
            return;
        CHECK_OK(ctrt_clip_grad_norm_(NULL, net, 0.05));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        steps++;
    }
    CHECK_OK(ctrt_module_sha256(hash, net));
}

static void same_bits(struct rank *rank)
{
    char got[65] = "", want[65] = "";
    struct pair p = pair_new(mlp_new, rank->argument, rank);
    train_epochs(want, p.one, NULL, rank->device);
    train_epochs(got, p.net, rank, rank->device);
    CHECK_STR(got, want);
    pair_free(&p);
}

TEST_MAIN
{
    static const char *const strategies[] = { "distributed", "sharded" };
    static const int sizes[] = { 1, 2, 3, 4, 6, 12 };
    EACH(strategy, strategies)
        EACH(size, sizes) {
            group("%s, %d ranks", *strategy, *size);
            IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1", "CTRT_CANONICAL=1") {
                CHECK_OK(ctrt_device_get(&cpu, "cpu"));
                run_quiet(ON_SIM, *size, 20, same_bits, *strategy, -1);
            }
        }
    return done();
}
