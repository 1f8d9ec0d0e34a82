/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_DATA_H
#define CTRT_DATA_H
#include "ctrt/tensor.h"
CTRT_BEGIN_DECLS
#define CTRT_MAX_FIELDS 16
typedef struct ctrt_field {
    const char *name;
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    uint32_t varying;
    uint32_t reserved;
} ctrt_field;
typedef struct ctrt_sample_random {
    uint64_t seed, index;
    uint32_t epoch, block;
    uint32_t words[4];
    uint32_t left;
    uint32_t reserved;
} ctrt_sample_random;
CTRT_API void ctrt_sample_random_start(ctrt_sample_random *random, uint64_t seed, uint64_t epoch, int64_t index);
CTRT_API uint32_t ctrt_sample_random_u32(ctrt_sample_random *random);
CTRT_API uint64_t ctrt_sample_random_u64(ctrt_sample_random *random);
CTRT_API double ctrt_sample_random_uniform(ctrt_sample_random *random);
CTRT_API double ctrt_sample_random_normal(ctrt_sample_random *random);
CTRT_API uint64_t ctrt_sample_random_below(ctrt_sample_random *random, uint64_t n);
typedef struct ctrt_sample {
    size_t size;
    int64_t index;
    void *const *out;
    int64_t (*shape)[CTRT_MAX_DIMS];
    ctrt_sample_random random;
    uint64_t epoch;
    int worker, workers;
} ctrt_sample;
CTRT_API void ctrt_sample_copy(void *to, const void *from, size_t bytes);
typedef struct ctrt_dataset_functions {
    size_t size;
    const char *name;
    const ctrt_field *fields;
    int field_count;
    int64_t (*length)(void *state);
    ctrt_status (*item)(ctrt_sample *sample, void *state);
    ctrt_status (*next)(bool *end, ctrt_sample *sample, void *state);
    ctrt_status (*start)(uint64_t epoch, void *state);
    ctrt_status (*skip)(int64_t count, void *state);
    void (*free)(void *state);
} ctrt_dataset_functions;
typedef struct ctrt_dataset ctrt_dataset;
CTRT_API ctrt_status ctrt_dataset_new(ctrt_dataset **out, const ctrt_dataset_functions *functions, void *state);
typedef ctrt_status (*ctrt_dataset_opener)(ctrt_dataset **out, const void *arguments, size_t bytes);
CTRT_API ctrt_status ctrt_dataset_open(ctrt_dataset **out, ctrt_dataset_opener open, const void *arguments,
                                       size_t bytes);
CTRT_API ctrt_dataset *ctrt_dataset_retain(ctrt_dataset *dataset);
CTRT_API void ctrt_dataset_release(ctrt_dataset **dataset);
CTRT_API const char *ctrt_dataset_name(const ctrt_dataset *dataset);
CTRT_API int64_t ctrt_dataset_length(const ctrt_dataset *dataset);
CTRT_API int ctrt_dataset_field_count(const ctrt_dataset *dataset);
CTRT_API const ctrt_field *ctrt_dataset_field(const ctrt_dataset *dataset, int index);
CTRT_API size_t ctrt_field_bytes(const ctrt_field *field);
CTRT_API ctrt_status ctrt_dataset_read(ctrt_sample *sample, ctrt_dataset *dataset);
CTRT_API ctrt_status ctrt_dataset_read_next(bool *end, ctrt_sample *sample, ctrt_dataset *dataset);
CTRT_API ctrt_status ctrt_dataset_start(ctrt_dataset *dataset, uint64_t epoch);
CTRT_API ctrt_status ctrt_dataset_get(ctrt_tensor **fields, ctrt_dataset *dataset, int64_t index, uint64_t seed,
                                      uint64_t epoch);
typedef struct ctrt_sampler ctrt_sampler;
typedef struct ctrt_sampler_functions {
    size_t size;
    const char *name;
    int64_t (*length)(void *state);
    ctrt_status (*order)(int64_t *indices, uint64_t seed, uint64_t epoch, void *state);
    int64_t (*batch_count)(void *state);
    int64_t (*largest_batch)(void *state);
    ctrt_status (*batches)(int64_t *sizes, uint64_t seed, uint64_t epoch, void *state);
    void (*free)(void *state);
    ctrt_status (*order_of_batches)(int64_t *indices, int64_t batch_size, uint64_t seed, uint64_t epoch, void *state);
} ctrt_sampler_functions;
CTRT_API ctrt_status ctrt_sampler_new(ctrt_sampler **out, const ctrt_sampler_functions *functions, void *state);
CTRT_API ctrt_status ctrt_sampler_sequential(ctrt_sampler **out, int64_t length);
CTRT_API ctrt_status ctrt_sampler_random(ctrt_sampler **out, int64_t length, bool replacement, int64_t count);
CTRT_API ctrt_status ctrt_sampler_weighted(ctrt_sampler **out, const double *weights, int64_t length, int64_t count,
                                           bool replacement);
CTRT_API ctrt_status ctrt_sampler_distributed(ctrt_sampler **out, int64_t length, int rank, int world, bool shuffle,
                                              bool drop_last);
CTRT_API ctrt_status ctrt_sampler_distributed_blocks(ctrt_sampler **out, int64_t length, int rank, int world,
                                                     bool shuffle, bool drop_last, int64_t block);
CTRT_API ctrt_status ctrt_sampler_batch(ctrt_sampler **out, ctrt_sampler *sampler, int64_t batch_size, bool drop_last);
CTRT_API ctrt_sampler *ctrt_sampler_retain(ctrt_sampler *sampler);
CTRT_API void ctrt_sampler_release(ctrt_sampler **sampler);
CTRT_API int64_t ctrt_sampler_length(const ctrt_sampler *sampler);
CTRT_API int64_t ctrt_sampler_batches(const ctrt_sampler *sampler);
CTRT_API ctrt_status ctrt_sampler_order(int64_t *indices, int64_t *sizes, ctrt_sampler *sampler, uint64_t seed,
                                        uint64_t epoch);
typedef enum ctrt_worker_kind {
    CTRT_WORKERS_AUTO, CTRT_WORKERS_FORK, CTRT_WORKERS_SERVER, CTRT_WORKERS_THREADS
} ctrt_worker_kind;
typedef struct ctrt_collation {
    size_t size;
    int field_count;
    const ctrt_field *fields;
    int64_t count;
    const int64_t *indices;
    void *const *data;
    const size_t *capacity;
    const int64_t (*shapes)[CTRT_MAX_DIMS];
    int ndim[CTRT_MAX_FIELDS];
    int64_t shape[CTRT_MAX_FIELDS][CTRT_MAX_DIMS];
    double pad_value;
} ctrt_collation;
typedef ctrt_status (*ctrt_collate_function)(ctrt_collation *batch, void *user);
CTRT_API ctrt_status ctrt_collate_pad(ctrt_collation *batch, void *user);
#define CTRT_NO_BATCH -1
typedef struct ctrt_loader_options {
    size_t size;
    int64_t batch_size;
    bool shuffle;
    bool drop_last;
    bool pin_memory;
    bool persistent_workers;
    bool any_order;
    bool quiet_workers;
    int workers;
    ctrt_worker_kind worker_kind;
    int prefetch_factor;
    int restarts;
    ctrt_sampler *sampler;
    ctrt_sampler *batch_sampler;
    double timeout;
    uint64_t seed;
    ctrt_device *device;
    uint64_t memory_budget;
    double pad_value;
    ctrt_collate_function collate;
    void *collate_user;
    ctrt_status (*worker_init)(int worker, void *user);
    void *worker_init_user;
} ctrt_loader_options;
#define CTRT_LOADER_OPTIONS CTRT_SIZED_(ctrt_loader_options)
typedef struct ctrt_loader ctrt_loader;
CTRT_API ctrt_status ctrt_loader_new(ctrt_loader **out, ctrt_dataset *dataset, const ctrt_loader_options *options);
CTRT_API ctrt_status ctrt_loader_next(ctrt_tensor **fields, bool *more, ctrt_loader *loader);
CTRT_API ctrt_status ctrt_loader_set_epoch(ctrt_loader *loader, uint64_t epoch);
typedef struct ctrt_loader_state {
    size_t size;
    uint64_t seed, epoch;
    int64_t batch;
    uint64_t fingerprint;
} ctrt_loader_state;
#define CTRT_LOADER_STATE CTRT_SIZED_(ctrt_loader_state)
CTRT_API ctrt_status ctrt_loader_get_state(ctrt_loader_state *out, ctrt_loader *loader);
CTRT_API ctrt_status ctrt_loader_restore(ctrt_loader *loader, const ctrt_loader_state *state);
CTRT_API int64_t ctrt_loader_length(const ctrt_loader *loader);
CTRT_API ctrt_dataset *ctrt_loader_dataset(const ctrt_loader *loader);
CTRT_API uint64_t ctrt_loader_memory(const ctrt_loader *loader);
CTRT_API int64_t ctrt_loader_worker_pid(const ctrt_loader *loader, int index);
CTRT_API void ctrt_loader_release(ctrt_loader **loader);
CTRT_API ctrt_status ctrt_fork_server_start(void);
CTRT_END_DECLS
#endif
