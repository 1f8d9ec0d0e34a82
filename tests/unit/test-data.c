/* SPDX-License-Identifier: Apache-2.0 */
/* Tests datasets, the random numbers of samples, samplers, collate functions and the options of the loader. */
#include <math.h>

#include "data_check.h"

/* ---- random numbers ---- */

/* The known answers of philox4x32-10 in Random123. */
static const struct philox_case {
    uint32_t counter[4];
    uint64_t seed;
    uint32_t words[4];
} philox_cases[] = {
    { { 0, 0, 0, 0 }, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { ~0u, ~0u, ~0u, ~0u }, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, 0x299f31d0a4093822,
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
};

TEST(random_numbers, "random numbers are Philox4x32-10 of (seed, epoch, index)")
{
    EACH(c, philox_cases) {
        ctrt_sample_random random;
        const uint64_t index = (uint64_t)c->counter[3] << 32 | c->counter[2];
        ctrt_sample_random_start(&random, c->seed, c->counter[1], (int64_t)index);
        random.block = c->counter[0];
        for (int i = 0; i < 4; i++)
            CHECK_EQ(ctrt_sample_random_u32(&random), c->words[i]);
    }
    ctrt_sample_random random;
    double sum = 0, squares = 0, counts[3] = { 0 };
    ctrt_sample_random_start(&random, 7, 1, 2);
    CHECK_EQ(ctrt_sample_random_below(&random, 1), 0);
    enum { N = FEWER_SANITIZED(20000) };
    for (int i = 0; i < N; i++) {
        const double x = ctrt_sample_random_normal(&random), u = ctrt_sample_random_uniform(&random);
        sum += x;
        squares += x * x;
        counts[ctrt_sample_random_below(&random, 3)]++;
        CHECK_TRUE(u >= 0 && u < 1);
    }
    CHECK_NEAR(sum / N, 0, 5 / sqrt(N));
    CHECK_NEAR(squares / N, 1, 5 * sqrt(2.0 / N));
    for (int i = 0; i < 3; i++)
        CHECK_NEAR(counts[i] / N, 1.0 / 3, 3 / sqrt(N));
    ctrt_sample_random_start(&random, 0, 0, 0);
    /* sqrt(-2 ln((0x6627e8 + 1) 2^-24)) cos(2 pi 0xe169c5 2^-24) */
    CHECK_NEAR(ctrt_sample_random_normal(&random), 0.99113748, 1e-7);
}

/* ---- datasets ---- */

#define FIELD(...) &(const ctrt_field){ __VA_ARGS__ }

static const struct field_case {
    const ctrt_field *field;
    ctrt_status status;
    const char *words;
} field_cases[] = {
    { FIELD(.name = "x", .dtype = CTRT_F32, .ndim = 7, .shape = { 1, 1, 1, 1, 1, 1, 1 }), CTRT_OK, NULL },
    { FIELD(.name = NULL, .dtype = CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "field 0 has no name" },
    { FIELD(.name = "x", .dtype = CTRT_DTYPE_DEFAULT), CTRT_ERR_DTYPE, "\"x\"" },
    { FIELD(.name = "x", .dtype = CTRT_F32, .ndim = 8), CTRT_ERR_SHAPE, "8 dimensions" },
    { FIELD(.name = "x", .dtype = CTRT_F32, .ndim = 1), CTRT_ERR_SHAPE, "dimension 0 is 0" },
    { FIELD(.name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { 3 }, .varying = 2), CTRT_ERR_SHAPE, "varying" },
    { FIELD(.name = "x", .dtype = CTRT_F32, .ndim = 2, .shape = { INT64_MAX, 2 }), CTRT_ERR_OVERFLOW, "2^63" },
};

TEST(sample_copy, "ctrt_sample_copy copies all bytes and no others, at several alignments")
{
    enum { LARGE = 256 << 10, AROUND = 128 };
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, LARGE - 1, LARGE, LARGE + 1, LARGE + 64, 3 * LARGE - 17 };
    static unsigned char from[3 * LARGE + 2 * AROUND], to[sizeof from], want[sizeof from];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    EACH(size, sizes)
        for (size_t at = 0; at < 2 * AROUND; at += 37) {
            const size_t begin = at % AROUND, source = at / 3 % AROUND;
            memset(to, 1, sizeof to);
            memset(want, 1, sizeof want);
            memcpy(want + begin, from + source, *size);
            ctrt_sample_copy(to + begin, from + source, *size);
            CHECK(memcmp(to, want, sizeof to) == 0, "%zu bytes from %zu to %zu", *size, source, begin);
        }
}

TEST(dataset_functions, "datasets: the fields and functions are checked")
{
    struct plain state = { .length = 5, .once = -1 };
    CTRT_AUTO(dataset) dataset = NULL;
    EACH(c, field_cases) {
        ctrt_dataset_functions f = plain_functions;
        f.fields = c->field, f.field_count = 1, f.free = NULL;
        ctrt_status status = ctrt_dataset_new(&dataset, &f, &state);
        if (c->status == CTRT_OK)
            CHECK_OK(status);
        else
            CHECK_FAILS(status, c->status, c->words);
    }
    ctrt_dataset_functions f = plain_functions;
    f.free = NULL, f.item = NULL;
    CHECK_FAILS(ctrt_dataset_new(&dataset, &f, &state), CTRT_ERR_INVALID_ARGUMENT, "length and item, or next");
    f.next = plain_next;
    CHECK_FAILS(ctrt_dataset_new(&dataset, &f, &state), CTRT_ERR_INVALID_ARGUMENT, "neither item nor length");
    f = plain_functions, f.size = 3;
    CHECK_FAILS(ctrt_dataset_new(&dataset, &f, &state), CTRT_ERR_INVALID_ARGUMENT, "size is 3");
    f = plain_functions, f.field_count = 17;
    CHECK_FAILS(ctrt_dataset_new(&dataset, &f, &state), CTRT_ERR_INVALID_ARGUMENT, "17 fields");
    CHECK_FAILS(ctrt_dataset_new(NULL, &f, &state), CTRT_ERR_INVALID_ARGUMENT, "out");
}

TEST(dataset_get, "datasets: one sample as tensors")
{
    CTRT_AUTO(dataset) dataset = plain_dataset((struct plain){ .length = 5, .once = -1 });
    ctrt_tensor *fields[2] = { NULL, NULL };
    double value = 0;
    ctrt_sample_random random;
    CHECK_EQ(ctrt_dataset_length(dataset), 5);
    CHECK_STR(ctrt_dataset_field(dataset, 1)->name, "y");
    CHECK_TRUE(ctrt_dataset_field(dataset, 2) == NULL);
    CHECK_OK(ctrt_dataset_get(fields, dataset, 4, 11, 3));
    check_shape("x", __LINE__, fields[0], CTRT_SHAPE(3));
    check_shape("y", __LINE__, fields[1], CTRT_SCALAR_SHAPE);
    CHECK_OK(ctrt_item(&value, fields[1]));
    CHECK_EQ(value, 4.0);
    ctrt_sample_random_start(&random, 11, 3, 4);
    CHECK_NEAR(((float *)ctrt_tensor_data(fields[0]))[0], 4 + ctrt_sample_random_uniform(&random), 1e-6);
    CHECK_FAILS(ctrt_dataset_get(fields, dataset, 5, 0, 0), CTRT_ERR_INVALID_ARGUMENT, "index 5 is not one of the 5");
    ctrt_tensor_release(&fields[0]);
    ctrt_tensor_release(&fields[1]);
}

/* ---- samplers ---- */

enum { MOST = 16 };

static bool is_permutation(const int64_t *indices, int64_t n)
{
    uint32_t seen = 0;
    for (int64_t i = 0; i < n; i++)
        seen |= indices[i] >= 0 && indices[i] < n ? 1u << indices[i] : 0;
    return seen == (1u << n) - 1;
}

TEST(sampler_random, "samplers: permutations are a function of (seed, epoch)")
{
    CTRT_AUTO(sampler) sampler = NULL, again = NULL;
    static const int64_t golden[2][10] = {
        { 6, 9, 1, 0, 7, 8, 2, 5, 4, 3 }, { 0, 7, 9, 1, 5, 2, 8, 3, 4, 6 }
    };
    int64_t a[MOST], b[MOST];
    CHECK_OK(ctrt_sampler_random(&sampler, 10, false, 0));
    CHECK_OK(ctrt_sampler_random(&again, 10, false, 16));
    for (int epoch = 0; epoch < 2; epoch++) {
        CHECK_OK(ctrt_sampler_order(a, NULL, sampler, 42, (uint64_t)epoch));
        CHECK_TRUE(is_permutation(a, 10));
        CHECK(memcmp(a, golden[epoch], sizeof golden[0]) == 0, "epoch %d: %s", epoch, list_text(a, 10));
        CHECK_OK(ctrt_sampler_order(b, NULL, again, 42, (uint64_t)epoch));
        CHECK_TRUE(memcmp(a, b, sizeof golden[0]) == 0);       /* of the two permutations, the first is the same */
    }
    CHECK_OK(ctrt_sampler_order(b, NULL, sampler, 43, 1));
    CHECK_TRUE(memcmp(a, b, sizeof golden[0]) != 0);
    CHECK_OK(ctrt_sampler_random(&sampler, 3, true, MOST));
    CHECK_OK(ctrt_sampler_order(a, NULL, sampler, 1, 0));
    for (int i = 0; i < MOST; i++)
        CHECK_TRUE(a[i] >= 0 && a[i] < 3);
    CHECK_FAILS(ctrt_sampler_random(&sampler, -1, false, 0), CTRT_ERR_INVALID_ARGUMENT, "length of -1");
}

TEST(sampler_weighted, "samplers: weights")
{
    static const double weights[4] = { 0, 1, 3, 0 };
    enum { N = FEWER_SANITIZED(8000) };
    static int64_t drawn[N];
    CTRT_AUTO(sampler) sampler = NULL;
    int counts[4] = { 0 };
    CHECK_OK(ctrt_sampler_weighted(&sampler, weights, 4, N, true));
    CHECK_OK(ctrt_sampler_order(drawn, NULL, sampler, 5, 0));
    for (int i = 0; i < N; i++)
        counts[drawn[i]]++;
    CHECK_EQ(counts[0] + counts[3], 0);
    CHECK_NEAR(counts[2] / (double)N, 0.75, 3 / sqrt(N));
    CHECK_OK(ctrt_sampler_weighted(&sampler, weights, 4, 2, false));
    int firsts = 0;
    for (int epoch = 0; epoch < N / 8; epoch++) {
        CHECK_OK(ctrt_sampler_order(drawn, NULL, sampler, 5, (uint64_t)epoch));
        CHECK_EQ(drawn[0] + drawn[1], 3);
        firsts += drawn[0] == 2;
    }
    CHECK_NEAR(firsts / (N / 8.0), 0.75, 3 / sqrt(N / 8));
    CHECK_FAILS(ctrt_sampler_weighted(&sampler, weights, 4, 3, false), CTRT_ERR_INVALID_ARGUMENT, "only 2 weights");
    CHECK_FAILS(ctrt_sampler_weighted(&sampler, weights, 1, 1, true), CTRT_ERR_INVALID_ARGUMENT, "the sum 0");
    CHECK_FAILS(ctrt_sampler_weighted(&sampler, &(double){ NAN }, 1, 1, true), CTRT_ERR_INVALID_ARGUMENT, "is nan");
}

/* DistributedSampler(range(length), world, rank, shuffle=False, drop_last): the indices of the ranks, by digits. */
static const struct distributed_case {
    int64_t length;
    int world;
    bool drop_last;
    const char *ranks[8];
} distributed_cases[] = {
    { 10, 4, false, { "048", "159", "260", "371" } },
    { 10, 4, true,  { "04", "15", "26", "37" } },
    { 3,  4, false, { "0", "1", "2", "0" } },
    { 3,  8, false, { "0", "1", "2", "0", "1", "2", "0", "1" } },
    { 3,  4, true,  { "", "", "", "" } },
    { 8,  4, false, { "04", "15", "26", "37" } },
    { 0,  2, false, { "", "" } },
};

TEST(sampler_distributed, "samplers: parts of ranks, as torch.utils.data.DistributedSampler")
{
    CTRT_AUTO(sampler) sampler = NULL;
    EACH(c, distributed_cases) {
        uint32_t seen = 0;
        for (int rank = 0; rank < c->world; rank++) {
            int64_t indices[MOST];
            char text[MOST] = "";
            CHECK_OK(ctrt_sampler_distributed(&sampler, c->length, rank, c->world, false, c->drop_last));
            CHECK_OK(ctrt_sampler_order(indices, NULL, sampler, 9, 1));
            for (int i = 0; i < ctrt_sampler_length(sampler); i++)
                text[i] = (char)('0' + indices[i]);
            CHECK_STR(text, c->ranks[rank]);
            CHECK_OK(ctrt_sampler_distributed(&sampler, c->length, rank, c->world, true, c->drop_last));
            CHECK_OK(ctrt_sampler_order(indices, NULL, sampler, 9, 1));
            CHECK_EQ(ctrt_sampler_length(sampler), strlen(c->ranks[rank]));
            for (int i = 0; i < ctrt_sampler_length(sampler); i++)
                seen |= 1u << indices[i];
        }
        if (!c->drop_last)
            CHECK_EQ(seen, (1u << c->length) - 1);      /* with shuffle too, the ranks have all samples together */
    }
    CHECK_FAILS(ctrt_sampler_distributed(&sampler, 4, 2, 2, false, false), CTRT_ERR_INVALID_ARGUMENT, "rank 2 of 2");
}

/* The indices of the ranks in batches of `batch` (0: without batches). */
static const struct block_case {
    int64_t length, block, batch;
    int world;
    bool drop_last;
    const char *ranks[4];
} block_cases[] = {
    { 8, 2, 0, 2, false, { "0145", "2367" } },
    { 8, 0, 0, 2, false, { "0123", "4567" } },
    { 8, 0, 2, 2, false, { "0145", "2367" } },
    { 8, 1, 2, 2, false, { "0246", "1357" } },
    { 9, 0, 2, 3, false, { "016", "237", "458" } },        /* the last batches have one sample */
    { 7, 0, 2, 2, false, { "0145", "2360" } },             /* extended from the beginning */
    { 7, 0, 2, 2, true,  { "014", "235" } },
    { 2, 0, 4, 4, false, { "0", "1", "0", "1" } },
};

static void check_blocks(const struct block_case *c, int rank)
{
    CTRT_AUTO(sampler) sampler = NULL;
    int64_t indices[MOST];
    char text[MOST] = "";
    CHECK_OK(ctrt_sampler_distributed_blocks(&sampler, c->length, rank, c->world, false, c->drop_last, c->block));
    if (c->batch > 0)
        CHECK_OK(ctrt_sampler_batch(&sampler, sampler, c->batch, false));
    CHECK_OK(ctrt_sampler_order(indices, NULL, sampler, 9, 1));
    for (int i = 0; i < ctrt_sampler_length(sampler); i++)
        text[i] = (char)('0' + indices[i]);
    CHECK_STR(text, c->ranks[rank]);
}

/* test-canonical-data.c tests that this is the default in canonical mode. */
TEST(sampler_blocks, "samplers: contiguous parts of ranks")
{
    CTRT_AUTO(sampler) sampler = NULL;
    EACH(c, block_cases)
        for (int rank = 0; rank < c->world; rank++)
            check_blocks(c, rank);
    CHECK_FAILS(ctrt_sampler_distributed_blocks(&sampler, 4, 0, 2, false, false, -1), CTRT_ERR_INVALID_ARGUMENT,
                "a block of -1");
}

TEST(sampler_batch, "samplers: batches")
{
    CTRT_AUTO(sampler) sequence = NULL, batches = NULL;
    int64_t indices[MOST], sizes[MOST];
    CHECK_OK(ctrt_sampler_sequential(&sequence, 10));
    CHECK_OK(ctrt_sampler_batch(&batches, sequence, 4, false));
    CHECK_EQ(ctrt_sampler_batches(batches), 3);
    CHECK_OK(ctrt_sampler_order(indices, sizes, batches, 0, 0));
    CHECK_EQ(sizes[0] * 100 + sizes[1] * 10 + sizes[2], 442);
    CHECK_OK(ctrt_sampler_batch(&batches, sequence, 4, true));
    CHECK_EQ(ctrt_sampler_batches(batches), 2);
    CHECK_EQ(ctrt_sampler_length(batches), 8);
    CHECK_OK(ctrt_sampler_order(indices, sizes, batches, 0, 0));
    CHECK_EQ(indices[7], 7);
    CHECK_FAILS(ctrt_sampler_batch(&batches, batches, 4, true), CTRT_ERR_INVALID_ARGUMENT, "forms batches already");
    CHECK_FAILS(ctrt_sampler_batch(&batches, sequence, 0, true), CTRT_ERR_INVALID_ARGUMENT, "batch_size is 0");
}

/* ---- collate ---- */

static int64_t ragged_length(void *state)
{
    (void)state;
    return 3;
}

/* Sample i has the shape (i + 1, 2, 3 - i), with the values 1, 2, 3, ... */
static ctrt_status ragged_item(ctrt_sample *sample, void *state)
{
    int64_t *shape = sample->shape[0];
    shape[0] = sample->index + 1;
    shape[2] = 3 - sample->index;
    for (int64_t i = 0; i < shape[0] * 2 * shape[2]; i++)
        ((float *)sample->out[0])[i] = (float)(i + 1);
    if (state != NULL)
        shape[1] = 1;
    return CTRT_OK;
}

static ctrt_status sum_collate(ctrt_collation *batch, void *user)
{
    float sum = 0;
    for (int64_t i = 0; i < batch->count; i++)
        sum += *(float *)((char *)batch->data[0] + (size_t)i * ctrt_field_bytes(batch->fields));
    *(float *)batch->data[0] = sum + *(float *)user;
    batch->ndim[0] = 0;
    return CTRT_OK;
}

static ctrt_status large_collate(ctrt_collation *batch, void *user)
{
    (void)user;
    batch->shape[0][0] = 1000;
    return CTRT_OK;
}

TEST(collate, "collate: samples of varying size are padded; other functions")
{
    static const float padded[3][3][2][3] = {
        { { { 1, 2, 3 }, { 4, 5, 6 } }, { { 9, 9, 9 }, { 9, 9, 9 } }, { { 9, 9, 9 }, { 9, 9, 9 } } },
        { { { 1, 2, 9 }, { 3, 4, 9 } }, { { 5, 6, 9 }, { 7, 8, 9 } }, { { 9, 9, 9 }, { 9, 9, 9 } } },
        { { { 1, 9, 9 }, { 2, 9, 9 } }, { { 3, 9, 9 }, { 4, 9, 9 } }, { { 5, 9, 9 }, { 6, 9, 9 } } },
    };
    ctrt_dataset_functions f = {
        .size = sizeof f, .field_count = 1, .length = ragged_length, .item = ragged_item,
        .fields = FIELD(.name = "r", .dtype = CTRT_F32, .ndim = 3, .shape = { 8, 2, 5 }, .varying = 5)
    };
    CTRT_AUTO(dataset) dataset = NULL;
    CTRT_AUTO(loader) loader = NULL;
    CTRT_AUTO(tensor) batch = NULL;
    bool more = false;
    float number = 100;
    CHECK_OK(ctrt_dataset_new(&dataset, &f, NULL));
    loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .batch_size = 3, .pad_value = 9));
    CHECK_OK(ctrt_loader_next(&batch, &more, loader));
    check_shape("padded", __LINE__, batch, CTRT_SHAPE(3, 3, 2, 3));
    CHECK_TRUE(memcmp(ctrt_tensor_data(batch), padded, sizeof padded) == 0);
    ctrt_loader_release(&loader);
    loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .batch_size = 3, .workers = 1, .collate = sum_collate,
                                                        .collate_user = &number));
    CHECK_OK(ctrt_loader_next(&batch, &more, loader));
    check_shape("sum", __LINE__, batch, CTRT_SCALAR_SHAPE);
    CHECK_EQ(*(float *)ctrt_tensor_data(batch), 103.0f);
    ctrt_loader_release(&loader);
    loader = new_loader(dataset, CTRT_WITH(ctrt_loader_options, .batch_size = 3, .collate = large_collate));
    CHECK_FAILS(ctrt_loader_next(&batch, &more, loader), CTRT_ERR_SHAPE, "exceeds the field's");
    CHECK_OK(ctrt_dataset_new(&dataset, &f, &number));
    ctrt_loader_release(&loader);
    loader = new_loader(dataset, (ctrt_loader_options)CTRT_LOADER_OPTIONS);
    CHECK_FAILS(ctrt_loader_next(&batch, &more, loader), CTRT_ERR_SHAPE, "dimension 1 is 1; expected 2");
}

/* ---- options ---- */

static ctrt_sampler *sequence, *batches;

#define SIZED .size = sizeof(ctrt_loader_options)

static const struct option_case {
    bool sampler, batch_sampler, stream;
    ctrt_loader_options options;
    ctrt_status status;
    const char *words;
} option_cases[] = {
#define CONFLICT(words, sampler, batch_sampler, stream, ...) \
    { sampler, batch_sampler, stream, { SIZED, __VA_ARGS__ }, CTRT_ERR_INVALID_ARGUMENT, words }
    CONFLICT("sampler and shuffle exclude", true, false, false, .shuffle = true),
    CONFLICT("batch_sampler and shuffle exclude", false, true, false, .shuffle = true),
    CONFLICT("batch_sampler and sampler exclude", true, true, false, .batch_size = 0),
    CONFLICT("batch_sampler and batch_size exclude", false, true, false, .batch_size = 2),
    CONFLICT("batch_sampler and drop_last exclude", false, true, false, .drop_last = true),
    CONFLICT("CTRT_NO_BATCH and drop_last exclude", false, false, false, .batch_size = CTRT_NO_BATCH,
             .drop_last = true),
    CONFLICT("a stream and sampler exclude", true, false, true, .batch_size = 0),
    CONFLICT("a stream and batch_sampler exclude", false, true, true, .batch_size = 0),
    CONFLICT("a stream and shuffle exclude", false, false, true, .shuffle = true),
    CONFLICT("workers is -1", false, false, false, .workers = -1),
    CONFLICT("timeout is -1", false, false, false, .timeout = -1, .workers = 1),
    CONFLICT("timeout is nan", false, false, false, .timeout = NAN, .workers = 1),
    CONFLICT("batch_size is -2", false, false, false, .batch_size = -2),
    CONFLICT("prefetch_factor is -1", false, false, false, .prefetch_factor = -1, .workers = 1),
    CONFLICT("restarts is -1", false, false, false, .restarts = -1, .workers = 1),
    CONFLICT("prefetch_factor without workers", false, false, false, .prefetch_factor = 2),
    CONFLICT("persistent_workers without workers", false, false, false, .persistent_workers = true),
    CONFLICT("timeout without workers", false, false, false, .timeout = 1),
    CONFLICT("any_order without workers", false, false, false, .any_order = true),
    CONFLICT("restarts without workers", false, false, false, .restarts = 1),
    CONFLICT("worker_kind without workers", false, false, false, .worker_kind = CTRT_WORKERS_THREADS),
    { .options = { SIZED, .worker_kind = CTRT_WORKERS_SERVER, .workers = 1 }, .status = CTRT_ERR_STATE,
      .words = "fork server does not run" },
    { .stream = true, .options = { SIZED, .worker_kind = CTRT_WORKERS_THREADS, .workers = 1 },
      .status = CTRT_ERR_NOT_SUPPORTED, .words = "one thread at a time" },
    { .options = { SIZED, .memory_budget = 1 << 12, .batch_size = 4 }, .status = CTRT_ERR_OUT_OF_MEMORY,
      .words = "3 batches of 4.00 KiB need 20.00 KiB of memory: the budget (memory_budget) is 4.00 KiB" },
};

TEST(options, "loader: options that exclude each other")
{
    CTRT_AUTO(loader) loader = NULL;
    CTRT_AUTO(dataset) plain = plain_dataset((struct plain){ .length = 9, .once = -1 });
    CTRT_AUTO(dataset) stream = plain_dataset((struct plain){ .length = 9, .once = -1, .position = -1 });
    CHECK_OK(ctrt_sampler_sequential(&sequence, 9));
    CHECK_OK(ctrt_sampler_batch(&batches, sequence, 2, false));
    EACH(c, option_cases) {
        ctrt_loader_options options = c->options;
        options.sampler = c->sampler ? sequence : NULL;
        options.batch_sampler = c->batch_sampler ? batches : NULL;
        CHECK_FAILS(ctrt_loader_new(&loader, c->stream ? stream : plain, &options), c->status, c->words);
    }
    CHECK_FAILS(ctrt_loader_new(&loader, plain, &CTRT_WITH(ctrt_loader_options, .batch_sampler = sequence)),
                CTRT_ERR_INVALID_ARGUMENT, "forms no batches");
    CHECK_FAILS(ctrt_loader_new(&loader, plain, &CTRT_WITH(ctrt_loader_options, .sampler = batches)),
                CTRT_ERR_INVALID_ARGUMENT, "pass it as batch_sampler");
    CHECK_FAILS(ctrt_loader_new(&loader, NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "dataset");
    CHECK_TRUE(loader == NULL);
    ctrt_sampler_release(&sequence);
    ctrt_sampler_release(&batches);
}

TEST_MAIN
{
    return run_tests();
}
