/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/data.h: datasets, samplers and the data loader.
 *
 * A dataset is a table of functions: length and item, or, for a stream of samples, next. A sampler computes the order
 * of an epoch. A loader reads the samples in that order, in this thread or in worker processes or threads, and returns
 * batches as tensors:
 *
 *     ctrt_loader_options options = CTRT_LOADER_OPTIONS;
 *     options.batch_size = 64, options.shuffle = true, options.workers = 2, options.device = device;
 *     CTRT_TRY(ctrt_loader_new(&loader, dataset, &options));
 *     for (int epoch = 0; epoch < 10; epoch++)
 *         for (;;) {
 *             CTRT_TRY(ctrt_loader_next(fields, &more, loader));      fields: the dataset's tensors, here x and y
 *             if (!more)
 *                 break;                                              the end of the epoch, not an error
 *             CTRT_TRY(train(fields[0], fields[1]));
 *         }
 *
 * The order of the samples is a function of (seed, epoch), and each sample has a random stream of its own, a function
 * of (seed, epoch, index). The batches therefore do not depend on the number of workers. doc/data.md describes the
 * loader in detail, and how its options compare with those of PyTorch's DataLoader.
 *
 * Datasets and samplers are constant after their creation, reference-counted and thread-safe. A loader is used by one
 * thread at a time. Output handles follow the assignment rule of ctrt/base.h. */
#ifndef CTRT_DATA_H
#define CTRT_DATA_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

#define CTRT_MAX_FIELDS 16

/* ---- datasets ---------------------------------------------------------------------------------------------------- */

/* One part of a sample, for example an image f32 (3, 224, 224) or a label i64 (). A batch is one tensor for each field,
 * with the samples along a new dimension 0, so `ndim` is less than CTRT_MAX_DIMS. */
typedef struct ctrt_field {
    const char *name;                   /* not NULL */
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];       /* for a dimension in `varying`: its largest size */
    uint32_t varying;                   /* bit d: the size of dimension d differs between samples */
    uint32_t reserved;                  /* 0 */
} ctrt_field;

/* The random numbers of one sample: Philox4x32-10 with the key `seed` and the counter (block, epoch, index). Use a copy
 * or the member of ctrt_sample; the functions advance it. Members are private. */
typedef struct ctrt_sample_random {
    uint64_t seed, index;
    uint32_t epoch, block;              /* block: number of the next block of four words */
    uint32_t words[4];                  /* the current block */
    uint32_t left;                      /* words of it that are not used yet */
    uint32_t reserved;
} ctrt_sample_random;

/* Starts the random stream of sample `index` in an epoch: the one that the loader passes to the dataset. */
CTRT_API void ctrt_sample_random_start(ctrt_sample_random *random, uint64_t seed, uint64_t epoch, int64_t index);
/* Returns the next word. If `random` is NULL, this function and those below use words of 0. */
CTRT_API uint32_t ctrt_sample_random_u32(ctrt_sample_random *random);
/* Returns (first word << 32 | second word). */
CTRT_API uint64_t ctrt_sample_random_u64(ctrt_sample_random *random);
/* Returns a number in [0, 1): one word, of which the upper 24 bits are used, times 2^-24. Exact as f32. */
CTRT_API double ctrt_sample_random_uniform(ctrt_sample_random *random);
/* Returns a number of the standard normal distribution. Uses two words (Box-Muller transform, in double precision). */
CTRT_API double ctrt_sample_random_normal(ctrt_sample_random *random);
/* Returns an integer in [0, n), each with the same probability; 0 for n < 2. Uses two words, rarely more. */
CTRT_API uint64_t ctrt_sample_random_below(ctrt_sample_random *random, uint64_t n);

/* A sample that a dataset's function writes. The loader has set all members. */
typedef struct ctrt_sample {
    size_t size;                        /* sizeof(ctrt_sample) of the library */
    int64_t index;                      /* of the sample in the dataset; streams: its position in the epoch, from 0 */
    /* out[f]: memory for field f, row-major, often part of the batch in shared memory. Aligned to the element. It is
     * not initialized, so write all of the elements. */
    void *const *out;
    /* shape[f]: for fields with varying dimensions, set the sizes of this sample, at most those of the field; the
     * elements are row-major in this shape. The library has set the field's shape. Do not write it for other fields. */
    int64_t (*shape)[CTRT_MAX_DIMS];
    ctrt_sample_random random;
    uint64_t epoch;
    int worker, workers;                /* number of this worker, from 0, and of all; 0, 0 without workers */
} ctrt_sample;

/* Copies a sample's data to memory of a batch, like memcpy: `to` and `from` may have any alignment and do not overlap.
 * From 256 KiB on, the writes bypass the processor's caches, which are too small for a batch of such samples; that is
 * up to twice as fast. Any thread may call it. */
CTRT_API void ctrt_sample_copy(void *to, const void *from, size_t bytes);

/* The functions of a dataset. Copied by ctrt_dataset_new, with its fields and strings. A dataset has `length` and
 * `item` or, as a stream, `next`.
 *
 * The functions run in worker processes, where devices other than the cpu must not be used, or in several threads at
 * once (CTRT_WORKERS_THREADS), so `item` must be thread-safe if the program wants to use threads. A state that was
 * created before the workers is shared or copied by fork(): a file's offset is shared, so read files with pread or
 * mmap. Errors: return a status after ctrt_fail(...); its message is passed on to the caller of ctrt_loader_next. */
typedef struct ctrt_dataset_functions {
    size_t size;                        /* sizeof(ctrt_dataset_functions) */
    const char *name;                   /* for messages; NULL: "dataset" */
    const ctrt_field *fields;
    int field_count;                    /* 1 to CTRT_MAX_FIELDS */
    /* Returns the number of samples. Called once, by ctrt_dataset_new. */
    int64_t (*length)(void *state);
    /* Writes sample->index. */
    ctrt_status (*item)(ctrt_sample *sample, void *state);
    /* Streams: writes the next sample, or sets *end to true, which is false before the call. A call that fails also
     * counts as a sample: the next call writes the following one. The samples must be a function of the epoch and of
     * sample->random. A stream is used by one thread at a time: CTRT_WORKERS_THREADS is not possible. In a loader with
     * n workers, each has the whole stream and skips the samples of the others. */
    ctrt_status (*next)(bool *end, ctrt_sample *sample, void *state);
    /* Streams, optional: begins an epoch at its first sample. Without it a stream has one epoch. */
    ctrt_status (*start)(uint64_t epoch, void *state);
    /* Streams, optional: skips `count` samples, or all up to the end if there are fewer. Without it the loader reads
     * the samples and drops them. */
    ctrt_status (*skip)(int64_t count, void *state);
    /* Optional: releases the state with the last reference to the dataset. Does not run in worker processes. */
    void (*free)(void *state);
} ctrt_dataset_functions;

typedef struct ctrt_dataset ctrt_dataset;

/* Creates a dataset from functions and a state, of which it becomes the owner if the call succeeds.
 * CTRT_ERR_INVALID_ARGUMENT for functions that are missing or exclude each other, and for fields without name or size;
 * CTRT_ERR_DTYPE, CTRT_ERR_SHAPE for other wrong fields. */
CTRT_API ctrt_status ctrt_dataset_new(ctrt_dataset **out, const ctrt_dataset_functions *functions, void *state);

/* Opens a dataset: for example a folder of files, whose path is in the arguments. Must depend on nothing else, because
 * it runs again in other processes. *out is NULL before the call. */
typedef ctrt_status (*ctrt_dataset_opener)(ctrt_dataset **out, const void *arguments, size_t bytes);
/* Calls open(out, arguments, bytes), with a copy of the arguments that is aligned for every type, and remembers both in
 * the dataset, so that the process that ctrt_fork_server_start started can open it too. The function, like `collate`
 * and `worker_init` of the loader's options, must be in the program or in a library that it has loaded before then. */
CTRT_API ctrt_status ctrt_dataset_open(ctrt_dataset **out, ctrt_dataset_opener open, const void *arguments,
                                       size_t bytes);

/* Adds a reference and returns `dataset`; NULL is returned unchanged. */
CTRT_API ctrt_dataset *ctrt_dataset_retain(ctrt_dataset *dataset);
/* Releases the reference in *dataset and sets *dataset to NULL. */
CTRT_API void ctrt_dataset_release(ctrt_dataset **dataset);

/* Properties; 0 or NULL for NULL. The length of a stream is -1. The fields are valid as long as the dataset. */
CTRT_API const char *ctrt_dataset_name(const ctrt_dataset *dataset);
CTRT_API int64_t ctrt_dataset_length(const ctrt_dataset *dataset);
CTRT_API int ctrt_dataset_field_count(const ctrt_dataset *dataset);
CTRT_API const ctrt_field *ctrt_dataset_field(const ctrt_dataset *dataset, int index);
/* Returns the bytes of a sample's field: the product of its largest sizes times the element's size. */
CTRT_API size_t ctrt_field_bytes(const ctrt_field *field);

/* Calls the dataset's item function, for datasets that are made from others (a subset, a transform): sample->index and
 * sample->out belong to `dataset`, which is not a stream. CTRT_ERR_INVALID_ARGUMENT if the index is out of range. */
CTRT_API ctrt_status ctrt_dataset_read(ctrt_sample *sample, ctrt_dataset *dataset);
/* The same for a stream: its next sample. */
CTRT_API ctrt_status ctrt_dataset_read_next(bool *end, ctrt_sample *sample, ctrt_dataset *dataset);
/* Calls a stream's start function, if it has one. */
CTRT_API ctrt_status ctrt_dataset_start(ctrt_dataset *dataset, uint64_t epoch);

/* Reads one sample into new tensors of the cpu, as dataset[index] in Python. fields[f] for each field; the random
 * stream is that of (seed, epoch, index). */
CTRT_API ctrt_status ctrt_dataset_get(ctrt_tensor **fields, ctrt_dataset *dataset, int64_t index, uint64_t seed,
                                      uint64_t epoch);

/* ---- samplers: the order of an epoch ----------------------------------------------------------------------------- */

typedef struct ctrt_sampler ctrt_sampler;

/* The functions of a sampler. A batch sampler, which also forms the batches, has the members from `batch_count` on. */
typedef struct ctrt_sampler_functions {
    size_t size;                        /* sizeof(ctrt_sampler_functions) */
    const char *name;                   /* for messages; NULL: "sampler" */
    /* Returns the number of indices of an epoch. */
    int64_t (*length)(void *state);
    /* Writes the indices of the epoch. A function of the seed, the epoch and the state only. */
    ctrt_status (*order)(int64_t *indices, uint64_t seed, uint64_t epoch, void *state);
    /* Batch samplers: the number of batches of an epoch and the largest size of one. */
    int64_t (*batch_count)(void *state);
    int64_t (*largest_batch)(void *state);
    /* Batch samplers: writes the sizes of the batches, whose sum is the length. Called after `order`. */
    ctrt_status (*batches)(int64_t *sizes, uint64_t seed, uint64_t epoch, void *state);
    void (*free)(void *state);          /* optional: releases the state with the last reference to the sampler */
    /* Optional, for samplers that form no batches: as `order`, for a loader or batch sampler that makes batches of
     * `batch_size` of the indices. */
    ctrt_status (*order_of_batches)(int64_t *indices, int64_t batch_size, uint64_t seed, uint64_t epoch, void *state);
} ctrt_sampler_functions;

/* Creates a sampler of the program, the owner of `state` if the call succeeds. */
CTRT_API ctrt_status ctrt_sampler_new(ctrt_sampler **out, const ctrt_sampler_functions *functions, void *state);
/* 0, 1, ..., length-1. */
CTRT_API ctrt_status ctrt_sampler_sequential(ctrt_sampler **out, int64_t length);
/* A random permutation of 0 to length-1, another one in each epoch, or with `replacement` independent random indices.
 * `count`: indices of an epoch; 0: `length`. More than `length` without replacement: several permutations. */
CTRT_API ctrt_status ctrt_sampler_random(ctrt_sampler **out, int64_t length, bool replacement, int64_t count);
/* `count` indices, i with a probability in proportion to weights[i] (copied; finite, not negative, not all 0). Without
 * replacement, each index at most once: CTRT_ERR_INVALID_ARGUMENT if fewer than `count` weights are positive. */
CTRT_API ctrt_status ctrt_sampler_weighted(ctrt_sampler **out, const double *weights, int64_t length, int64_t count,
                                           bool replacement);
/* The part of rank `rank` of `world` ranks: of 0 to length-1, or with `shuffle` of a permutation that all ranks with
 * the same seed share, the indices rank, rank+world, ... All ranks have the same number: the list is extended with
 * indices from its beginning, or with drop_last its end is left out (torch.utils.data.DistributedSampler). In canonical
 * mode (CTRT_CANONICAL) it is ctrt_sampler_distributed_blocks with a block of 0. */
CTRT_API ctrt_status ctrt_sampler_distributed(ctrt_sampler **out, int64_t length, int rank, int world, bool shuffle,
                                              bool drop_last);
/* The same, but a rank gets blocks of `block` successive indices: rank 0 the first block, rank 1 the second, ... 1: as
 * ctrt_sampler_distributed. 0: the batch size of the loader or batch sampler that uses the sampler. Then the batches of
 * all ranks, one after the other, are the batch of one process with `world` times the batch size. Without batches, each
 * rank gets one block. If the number of a rank's indices is no multiple, all last blocks are equally smaller. */
CTRT_API ctrt_status ctrt_sampler_distributed_blocks(ctrt_sampler **out, int64_t length, int rank, int world,
                                                     bool shuffle, bool drop_last, int64_t block);
/* A batch sampler that takes `batch_size` indices of `sampler` for each batch. `drop_last`: leaves out the last batch
 * if it is smaller. The sampler is retained. */
CTRT_API ctrt_status ctrt_sampler_batch(ctrt_sampler **out, ctrt_sampler *sampler, int64_t batch_size, bool drop_last);

CTRT_API ctrt_sampler *ctrt_sampler_retain(ctrt_sampler *sampler);
CTRT_API void ctrt_sampler_release(ctrt_sampler **sampler);
/* Return the number of indices and of batches of an epoch. The latter is 0 for a sampler that forms no batches. */
CTRT_API int64_t ctrt_sampler_length(const ctrt_sampler *sampler);
CTRT_API int64_t ctrt_sampler_batches(const ctrt_sampler *sampler);
/* Writes the ctrt_sampler_length(sampler) indices of an epoch and, if `sizes` is not NULL, the sizes of its batches. */
CTRT_API ctrt_status ctrt_sampler_order(int64_t *indices, int64_t *sizes, ctrt_sampler *sampler, uint64_t seed,
                                        uint64_t epoch);

/* ---- the loader -------------------------------------------------------------------------------------------------- */

/* How workers are started. Processes need a dataset that does not use devices.
 *
 * FORK: by fork() of the calling process, so the state of the dataset and the options' pointers are inherited.
 * SERVER: by the process that ctrt_fork_server_start started, which has neither threads nor devices. The dataset is
 * opened in each worker by its opener (ctrt_dataset_open), whose arguments may have 64 KiB.
 * THREADS: threads of this process.
 * AUTO: SERVER if the server runs, the dataset has an opener and the options point to no data, otherwise FORK. */
typedef enum ctrt_worker_kind {
    CTRT_WORKERS_AUTO, CTRT_WORKERS_FORK, CTRT_WORKERS_SERVER, CTRT_WORKERS_THREADS
} ctrt_worker_kind;

/* A batch whose samples have been read, for a collate function. It runs in the worker. */
typedef struct ctrt_collation {
    size_t size;                        /* sizeof(ctrt_collation) of the library */
    int field_count;
    const ctrt_field *fields;
    int64_t count;                      /* samples of the batch */
    const int64_t *indices;             /* their indices */
    /* data[f]: memory of `capacity[f]` bytes. Sample i is at data[f] + i * ctrt_field_bytes(&fields[f]), in the shape
     * shapes[i * field_count + f]. The function writes the elements of the batch, row-major from data[f] on. */
    void *const *data;
    const size_t *capacity;
    const int64_t (*shapes)[CTRT_MAX_DIMS];
    /* The shape of the batch's tensors, set by the function; initially `count` and the shape of the field. */
    int ndim[CTRT_MAX_FIELDS];
    int64_t shape[CTRT_MAX_FIELDS][CTRT_MAX_DIMS];
    double pad_value;                   /* the option */
} ctrt_collation;

typedef ctrt_status (*ctrt_collate_function)(ctrt_collation *batch, void *user);

/* The default: samples of one size are left where they are; those of a varying size are padded with pad_value to the
 * longest of the batch in each dimension. */
CTRT_API ctrt_status ctrt_collate_pad(ctrt_collation *batch, void *user);

/* Batches of one sample without the dimension of the batch (PyTorch's batch_size=None). */
#define CTRT_NO_BATCH -1

/* The options of torch.utils.data.DataLoader under the same names, and others. All 0: the defaults. Copied; samplers
 * are retained. */
typedef struct ctrt_loader_options {
    size_t size;
    int64_t batch_size;                 /* 0: 1; CTRT_NO_BATCH */
    bool shuffle;                       /* a random permutation in each epoch */
    bool drop_last;                     /* leaves out the last batch if it is smaller */
    bool pin_memory;                    /* batches in pinned memory, which a device copies faster */
    bool persistent_workers;            /* keeps the workers between epochs, and reads the next epoch ahead */
    bool any_order;                     /* returns the batch that is ready first (PyTorch: in_order=False) */
    bool quiet_workers;                 /* workers' stderr appears only in error messages, not on this one's stderr */
    int workers;                        /* 0: samples are read by ctrt_loader_next itself */
    ctrt_worker_kind worker_kind;
    int prefetch_factor;                /* batches that each worker reads ahead; 0: 2 */
    int restarts;                       /* how many workers that died are replaced, which repeat their batch */
    ctrt_sampler *sampler;              /* NULL: sequential, or random with shuffle */
    ctrt_sampler *batch_sampler;        /* instead of sampler and batch_size */
    double timeout;                     /* seconds that ctrt_loader_next waits for a worker; 0: forever */
    uint64_t seed;                      /* 0: the seed of ctrt_manual_seed */
    ctrt_device *device;                /* copies batches to this device, one ahead, on a stream of its own; NULL: no */
    uint64_t memory_budget;             /* bytes of the batches' memory; 0: the free memory of the cpu device */
    double pad_value;                   /* for samples of varying size */
    ctrt_collate_function collate;      /* NULL: ctrt_collate_pad */
    void *collate_user;
    /* Runs in each worker before its first sample. */
    ctrt_status (*worker_init)(int worker, void *user);
    void *worker_init_user;
} ctrt_loader_options;
#define CTRT_LOADER_OPTIONS CTRT_SIZED_(ctrt_loader_options)

typedef struct ctrt_loader ctrt_loader;

/* Creates a loader over `dataset`, which is retained. Starts no worker before the first ctrt_loader_next.
 *
 * Errors: CTRT_ERR_INVALID_ARGUMENT for negative numbers and, as DataLoader, for options that exclude each other. These
 * are sampler or batch_sampler with shuffle; batch_sampler with batch_size, sampler or drop_last; CTRT_NO_BATCH with
 * drop_last; a sampler or shuffle with a stream. Without workers, they are also timeout, prefetch_factor,
 * persistent_workers, any_order, restarts and a worker_kind. CTRT_ERR_OUT_OF_MEMORY if the batches exceed memory_budget
 * (the message has the numbers) or the memory that processes share is exhausted. CTRT_ERR_NOT_SUPPORTED for a stream
 * with CTRT_WORKERS_THREADS. CTRT_ERR_STATE for CTRT_WORKERS_SERVER without a server or with a dataset that has no
 * opener. The server's workers cannot have collate_user and worker_init_user, and threads cannot be replaced
 * (restarts). */
CTRT_API ctrt_status ctrt_loader_new(ctrt_loader **out, ctrt_dataset *dataset, const ctrt_loader_options *options);

/* Writes the next batch: fields[f] for each field of the dataset, tensors of the device (or the cpu), and true to
 * *more. At the end of the epoch, releases the fields, sets them to NULL and *more to false; the call after that begins
 * the next epoch.
 *
 * The tensors are views of the loader's memory. It is used again when the last reference to a batch is released. A
 * program may keep any number of batches, also after the loader is closed: when memory for further batches gets scarce,
 * they are copied. In the child of a fork they have no protection from later batches (ctrt/share.h).
 *
 * Errors: those of the dataset, with the worker, the batch and the sample in the message; the batch is left out and
 * the next call continues. CTRT_ERR_OUT_OF_MEMORY for a tensor of the batch; the next call tries again. CTRT_ERR_IO if
 * a worker died or exceeded the timeout: the message names the worker, its signal or exit status, the batch, the
 * sample and the last lines that it wrote to stderr. After the death of a worker all further calls fail in the same
 * way until ctrt_loader_restore or ctrt_loader_set_epoch starts new workers; after a timeout a call continues to wait.
 * CTRT_ERR_FORKED in a process that forked from the one that created the loader. */
CTRT_API ctrt_status ctrt_loader_next(ctrt_tensor **fields, bool *more, ctrt_loader *loader);

/* Leaves the current epoch and makes `epoch` the next one. */
CTRT_API ctrt_status ctrt_loader_set_epoch(ctrt_loader *loader, uint64_t epoch);

/* The place of a loader: plain data that can be written to a file. */
typedef struct ctrt_loader_state {
    size_t size;
    uint64_t seed, epoch;
    int64_t batch;                      /* batches of the epoch that ctrt_loader_next has returned or left out */
    uint64_t fingerprint;               /* of the dataset's length and fields, the sampler and the batch size */
} ctrt_loader_state;
#define CTRT_LOADER_STATE CTRT_SIZED_(ctrt_loader_state)

/* Writes the place after the last batch that ctrt_loader_next returned. CTRT_ERR_NOT_SUPPORTED with any_order, in the
 * middle of an epoch. */
CTRT_API ctrt_status ctrt_loader_get_state(ctrt_loader_state *out, ctrt_loader *loader);
/* Continues at the place: the next batches are those that the other loader would have returned, with any number of
 * workers. CTRT_ERR_INVALID_ARGUMENT if the loader's dataset, sampler or batch size are others. */
CTRT_API ctrt_status ctrt_loader_restore(ctrt_loader *loader, const ctrt_loader_state *state);

/* Returns the batches of an epoch; -1 for a stream, 0 for NULL. */
CTRT_API int64_t ctrt_loader_length(const ctrt_loader *loader);
CTRT_API ctrt_dataset *ctrt_loader_dataset(const ctrt_loader *loader);      /* borrowed */
/* Returns the bytes of the memory for batches that the loader holds; 0 for NULL. */
CTRT_API uint64_t ctrt_loader_memory(const ctrt_loader *loader);
/* Returns the process of worker `index`, or 0 if it does not run or is a thread. */
CTRT_API int64_t ctrt_loader_worker_pid(const ctrt_loader *loader, int index);

/* Ends the workers, releases the loader in *loader and sets *loader to NULL. Processes that do not end within half a
 * second are killed; of threads the call waits for the current sample. Batches that the program holds stay valid. NULL
 * is allowed. */
CTRT_API void ctrt_loader_release(ctrt_loader **loader);

/* Starts the process from which workers are forked (CTRT_WORKERS_SERVER). Call it first in main, before the program
 * has threads or devices: workers then have no copies of either, and start in a time that does not depend on the memory
 * of the program. No effect if the server runs already. It ends with the program. CTRT_ERR_STATE if the program has
 * several threads. */
CTRT_API ctrt_status ctrt_fork_server_start(void);

CTRT_END_DECLS

#endif
