/* SPDX-License-Identifier: Apache-2.0 */
/* bad-data.c: invalid arguments of the functions in data.h. test-data.c has wrong fields and options. */
#include "bad-input.h"
#include "data_check.h"

static void randoms(void)
{
    ctrt_sample_random random;
    FINE((ctrt_sample_copy(NULL, NULL, 0), true));
    ctrt_sample_random_start(&random, 1, UINT64_MAX, INT64_MIN);
    FINE((ctrt_sample_random_start(NULL, 1, 1, 1), true));
    FINE(ctrt_sample_random_u32(NULL) == 0);
    FINE(ctrt_sample_random_u64(NULL) == 0);
    FINE(ctrt_sample_random_uniform(NULL) == 0);
    FINE(ctrt_sample_random_normal(NULL) != 0);
    FINE(ctrt_sample_random_below(NULL, 1) == 0);
    FINE(ctrt_sample_random_below(&random, 0) == 0);
}

static void datasets(void)
{
    ctrt_dataset *dataset = NULL, *none = NULL;
    struct plain plain = { .length = 4, .once = -1 };
    ctrt_sample sample = { .size = sizeof sample, .index = -1 };
    bool end = false;
    NULL_IN2(ctrt_dataset_new, &dataset, &plain_functions, NULL);
    NULL_IN3(ctrt_dataset_open, &dataset, plain_open, &plain, 4);
    BAD(INVALID_ARGUMENT, ctrt_dataset_open(&dataset, plain_open, &plain, 4));
    FINE(dataset == NULL);
    FINE(ctrt_dataset_open(&dataset, plain_open, &plain, sizeof plain) == CTRT_OK);
    NULL_IN2(ctrt_dataset_read, &sample, dataset);
    BAD(INVALID_ARGUMENT, ctrt_dataset_read(&sample, dataset));
    NULL_IN3(ctrt_dataset_read_next, &end, &sample, dataset);
    BAD(NOT_SUPPORTED, ctrt_dataset_read_next(&end, &sample, dataset));
    BAD(INVALID_ARGUMENT, ctrt_dataset_start(NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_dataset_get(NULL, dataset, 0, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_dataset_get(&out, NULL, 0, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_dataset_get(&out, dataset, -1, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_collate_pad(NULL, NULL));
    FINE(ctrt_dataset_retain(NULL) == NULL);
    FINE(ctrt_dataset_name(NULL) == NULL);
    FINE(ctrt_dataset_length(NULL) == 0);
    FINE(ctrt_dataset_field_count(NULL) == 0);
    FINE(ctrt_dataset_field(NULL, 0) == NULL);
    FINE(ctrt_dataset_field(dataset, -1) == NULL);
    FINE(ctrt_field_bytes(NULL) == 0);
    FINE((ctrt_dataset_release(NULL), ctrt_dataset_release(&none), true));
    ctrt_dataset_release(&dataset);
}

static void samplers(void)
{
    const ctrt_sampler_functions empty = { .size = sizeof empty };
    const double weight = 1;
    int64_t index = 0;
    ctrt_sampler *sampler = NULL, *none = NULL;
    NULL_IN2(ctrt_sampler_new, &sampler, &empty, NULL);
    BAD(INVALID_ARGUMENT, ctrt_sampler_new(&sampler, &empty, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sampler_sequential(NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_sampler_sequential(&sampler, -1));
    BAD(INVALID_ARGUMENT, ctrt_sampler_random(NULL, 1, false, 0));
    BAD(INVALID_ARGUMENT, ctrt_sampler_random(&sampler, 0, false, 1));
    BAD(INVALID_ARGUMENT, ctrt_sampler_random(&sampler, 1, false, -1));
    BAD(INVALID_ARGUMENT, ctrt_sampler_distributed(NULL, 1, 0, 1, false, false));
    BAD(INVALID_ARGUMENT, ctrt_sampler_distributed(&sampler, -1, 0, 1, false, false));
    BAD(INVALID_ARGUMENT, ctrt_sampler_distributed(&sampler, 1, 0, 0, false, false));
    BAD(INVALID_ARGUMENT, ctrt_sampler_distributed_blocks(NULL, 1, 0, 1, false, false, 0));
    BAD(INVALID_ARGUMENT, ctrt_sampler_distributed_blocks(&sampler, 1, 0, 1, false, false, -1));
    NULL_IN2(ctrt_sampler_weighted, &sampler, &weight, 1, 1, true);
    BAD(INVALID_ARGUMENT, ctrt_sampler_weighted(&sampler, &weight, 0, 1, true));
    BAD(INVALID_ARGUMENT, ctrt_sampler_weighted(&sampler, &weight, 1, 0, true));
    BAD(INVALID_ARGUMENT, ctrt_sampler_order(&index, NULL, NULL, 0, 0));
    FINE(sampler == NULL);
    FINE(ctrt_sampler_sequential(&sampler, 1) == CTRT_OK);
    NULL_IN2(ctrt_sampler_batch, &none, sampler, 1, false);
    BAD(INVALID_ARGUMENT, ctrt_sampler_order(NULL, NULL, sampler, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_sampler_batch(&none, sampler, -1, false));
    FINE(ctrt_sampler_retain(NULL) == NULL);
    FINE(ctrt_sampler_length(NULL) == 0);
    FINE(ctrt_sampler_batches(NULL) == 0);
    FINE((ctrt_sampler_release(NULL), ctrt_sampler_release(&none), true));
    ctrt_sampler_release(&sampler);
}

static void *wait_for_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void loaders(void)
{
    ctrt_dataset *dataset = plain_dataset((struct plain){ .length = 4, .once = -1 });
    ctrt_loader *loader = NULL, *none = NULL;
    ctrt_loader_state state = CTRT_LOADER_STATE;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    bool more = false;
    NULL_IN2(ctrt_loader_new, &loader, dataset, NULL);
    FINE(loader == NULL);
    FINE(ctrt_loader_new(&loader, dataset, NULL) == CTRT_OK);
    FINE(ctrt_loader_dataset(loader) == dataset);
    NULL_IN3(ctrt_loader_next, &out, &more, loader);
    NULL_IN2(ctrt_loader_get_state, &state, loader);
    NULL_IN2(ctrt_loader_restore, loader, &state);
    BAD(INVALID_ARGUMENT, ctrt_loader_set_epoch(NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_loader_restore(loader, &state));
    FINE(ctrt_loader_length(NULL) == 0);
    FINE(ctrt_loader_dataset(NULL) == NULL);
    FINE(ctrt_loader_memory(NULL) == 0);
    FINE(ctrt_loader_worker_pid(NULL, 0) == 0);
    FINE(ctrt_loader_worker_pid(loader, 0) == 0);
    FINE((ctrt_loader_release(NULL), ctrt_loader_release(&none), true));
    pthread_mutex_lock(&lock);
    REQUIRE(pthread_create(&thread, NULL, wait_for_lock, &lock) == 0, "no thread");
    BAD(STATE, ctrt_fork_server_start());
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    ctrt_loader_release(&loader);
    ctrt_dataset_release(&dataset);
}

static void runs(void)
{
    static const char *const nowhere = "/nonexistent/folder/file.safetensors";
    ctrt_training_state run = { .size = sizeof run, .module = p.linear, .optimizer = p.sgd }, bad = run;
    NULL_IN2(ctrt_training_save, nowhere, &run);
    NULL_IN2(ctrt_training_load, &run, nowhere);
    BAD(IO, ctrt_training_save(nowhere, &run));
    BAD(IO, ctrt_training_load(&run, nowhere));
    bad.size = 8;
    BAD(INVALID_ARGUMENT, ctrt_training_save(nowhere, &bad));
    BAD(INVALID_ARGUMENT, ctrt_training_load(&bad, nowhere));
    bad = (ctrt_training_state){ .size = sizeof run, .optimizer = p.sgd };
    BAD(INVALID_ARGUMENT, ctrt_training_save(nowhere, &bad));
    BAD(INVALID_ARGUMENT, ctrt_training_load(&bad, nowhere));
    run.step = -1;
    BAD(INVALID_ARGUMENT, ctrt_training_save(nowhere, &run));
}

void bad_loading(void)
{
    RUN_ALL(randoms, datasets, samplers, loaders, runs);
}
