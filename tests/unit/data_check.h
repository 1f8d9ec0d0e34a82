/* SPDX-License-Identifier: Apache-2.0 */
/* data_check.h: datasets for tests of the loader, and hashes of their batches. Uses tap.h. */
#ifndef CTRT_TESTS_DATA_CHECK_H
#define CTRT_TESTS_DATA_CHECK_H

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "child.h"
#include "core/base/hash.h"
#include "ctrt/ctrt.h"
#include "tensors.h"

/* A dataset whose sample i is x = i + 10 k + a random number, f32 (3), and y = i, i64 (). As a stream it has the same
 * samples. What sample `bad` does is in `how`. */
enum plain_bad { PLAIN_GOOD, PLAIN_FAIL, PLAIN_KILL, PLAIN_ABORT, PLAIN_EXIT, PLAIN_STALL,
                 PLAIN_SILENT, PLAIN_FLOOD };

struct plain {
    int64_t length, bad;
    enum plain_bad how;
    int once;                           /* a file whose first byte tells that the bad sample was read; -1: none */
    int64_t position;                   /* of a stream */
};

/* Writes 17 MB to stderr. */
static inline ctrt_status plain_flood(void)
{
    char line[1000];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 17000; i++)
        for (ssize_t n = 0, done = 0; done < (ssize_t)sizeof line && n >= 0; done += n)
            n = write(STDERR_FILENO, line, sizeof line - (size_t)done);
    return CTRT_OK;
}

static inline ctrt_status plain_misbehave(const struct plain *plain)
{
    if (plain->how == PLAIN_SILENT)
        return CTRT_ERR_IO;
    if (plain->how == PLAIN_FLOOD)
        return plain_flood();
    fprintf(stderr, "one line\nbefore sample %d\n", (int)plain->bad);
    if (plain->how == PLAIN_KILL)
        kill(getpid(), SIGKILL);
    if (plain->how == PLAIN_ABORT)
        abort();
    if (plain->how == PLAIN_EXIT)
        exit(3);
    if (plain->how == PLAIN_STALL)
        pause();
    return ctrt_fail(CTRT_ERR_FORMAT, "this sample is bad");
}

static inline ctrt_status plain_item(ctrt_sample *sample, void *state)
{
    struct plain *plain = state;
    char seen = 0;
    if (plain->how != PLAIN_GOOD && sample->index == plain->bad
        && (plain->once < 0 || (pread(plain->once, &seen, 1, 0) == 0 && pwrite(plain->once, "x", 1, 0) == 1)))
        CTRT_TRY(plain_misbehave(plain));
    for (int k = 0; k < 3; k++)
        ((float *)sample->out[0])[k] = (float)((double)sample->index + 10 * k
                                               + ctrt_sample_random_uniform(&sample->random));
    *(int64_t *)sample->out[1] = sample->index;
    return CTRT_OK;
}

static inline int64_t plain_length(void *state)
{
    return ((struct plain *)state)->length;
}

static inline ctrt_status plain_next(bool *end, ctrt_sample *sample, void *state)
{
    struct plain *plain = state;
    if ((*end = plain->position == plain->length))
        return CTRT_OK;
    CHECK_EQ(sample->index, plain->position);
    plain->position++;
    return plain_item(sample, state);
}

static inline ctrt_status plain_start(uint64_t epoch, void *state)
{
    (void)epoch;
    ((struct plain *)state)->position = 0;
    return CTRT_OK;
}

static inline ctrt_status plain_skip(int64_t count, void *state)
{
    struct plain *plain = state;
    plain->position = plain->position + count < plain->length ? plain->position + count : plain->length;
    return CTRT_OK;
}

static const ctrt_field plain_fields[] = {
    { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { 3 } }, { .name = "y", .dtype = CTRT_I64 }
};

static const ctrt_dataset_functions plain_functions = {
    .size = sizeof plain_functions, .name = "plain", .fields = plain_fields, .field_count = 2, .length = plain_length,
    .item = plain_item, .free = free
};
static const ctrt_dataset_functions stream_functions = {
    .size = sizeof stream_functions, .name = "stream", .fields = plain_fields, .field_count = 2, .next = plain_next,
    .start = plain_start, .skip = plain_skip, .free = free
};

static inline ctrt_status plain_open(ctrt_dataset **out, const void *arguments, size_t bytes)
{
    if (bytes != sizeof(struct plain))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "plain_open: %zu bytes", bytes);
    struct plain *state = malloc(sizeof *state);
    memcpy(state, arguments, bytes);
    ctrt_status status = ctrt_dataset_new(out, state->position < 0 ? &stream_functions : &plain_functions, state);
    if (status != CTRT_OK)
        free(state);
    return status;
}

/* Creates the dataset in a way that the fork server can repeat. */
static inline ctrt_dataset *plain_dataset(struct plain plain)
{
    ctrt_dataset *dataset = NULL;
    REQUIRE(ctrt_dataset_open(&dataset, plain_open, &plain, sizeof plain) == CTRT_OK, "%s", ctrt_error_message());
    return dataset;
}

static inline ctrt_loader *new_loader(ctrt_dataset *dataset, ctrt_loader_options options)
{
    ctrt_loader *loader = NULL;
    REQUIRE(ctrt_loader_new(&loader, dataset, &options) == CTRT_OK, "%s", ctrt_error_message());
    return loader;
}

static inline uint64_t hash_batch(uint64_t hash, ctrt_tensor *const *fields)
{
    for (int f = 0; f < 2; f++) {
        char bytes[8192];
        const size_t size = (size_t)ctrt_tensor_numel(fields[f]) * ctrt_dtype_size(ctrt_tensor_dtype(fields[f]));
        CHECK_OK(ctrt_to_host(bytes, sizeof bytes, fields[f], ctrt_tensor_dtype(fields[f])));
        hash = hash_bytes(hash, ctrt_tensor_shape(fields[f]), (size_t)ctrt_tensor_ndim(fields[f]) * sizeof(int64_t));
        hash = hash_bytes(hash, bytes, size);
    }
    return hash;
}

/* Reads up to `most` batches, or to the end of the epoch. *count (may be NULL): how many. */
static inline uint64_t hash_batches(int *count, ctrt_loader *loader, int most)
{
    ctrt_tensor *fields[2] = { NULL, NULL };
    uint64_t hash = HASH_START;
    bool more = true;
    int n = 0;
    while (n < most && CHECK_OK(ctrt_loader_next(fields, &more, loader)) && more) {
        hash = hash_batch(hash, fields);
        n++;
    }
    ctrt_tensor_release(&fields[0]);
    ctrt_tensor_release(&fields[1]);
    if (count != NULL)
        *count = n;
    return hash;
}

#endif
