/* SPDX-License-Identifier: Apache-2.0 */
/* Compares training under every strategy, the buckets of gradients and the cutting of batches with PyTorch's
 * (tests/reference/make_parallel.py). */
#include "../options.h"
#include "../reference/ref.h"
#include "rank_check.h"
#include "plugins/strategy/distributed/buckets.c"

enum { PIXELS = 64, HIDDEN = 16, NARROW = 12, CLASSES = 10, STEPS = 6, IMAGES = 440 };
#define TOLERANCE 1e-5

static struct ref_file *ref;
static float images[IMAGES][PIXELS];
static int64_t labels[IMAGES];

/* The cases of make_parallel.py. `gate`: ranks that use the parameter "gate" in even steps. */
static const struct training {
    const char *name, *net;
    bool adamw;
    int rows, micro;
    bool alone;                             /* forward passes and backward passes of the program, without steps */
    enum { NOBODY, ALL, LAST } gate;
} trainings[] = {
    { "mlp-sgd",        "mlp",   false, 24, 1, false, NOBODY },
    { "mlp-uneven",     "mlp",   true,  22, 1, false, NOBODY },
    { "mlp-alone",      "mlp",   false, 22, 1, true,  NOBODY },
    { "mlp-accumulate", "mlp",   true,  24, 3, false, NOBODY },
    { "norm-sgd",       "norm",  false, 24, 1, false, NOBODY },
    { "norm-uneven",    "norm",  true,  22, 1, false, NOBODY },
    { "block-all",      "block", false, 24, 1, false, ALL },
    { "block-adamw",    "block", true,  22, 1, false, ALL },
    { "block-last",     "block", false, 24, 1, false, LAST },
};

/* ---- networks ---- */

/* y = x + tanh(x w) w^T * frozen, times `gate` if *uses_gate. Two children share the weight. */
struct block {
    const bool *uses_gate;                  /* replicas have the same pointer */
};

static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct block *block = ctrt_module_state(self);
    CTRT_AUTO(tensor) h = NULL;
    ctrt_tensor *gate;
    CTRT_TRY(shared_forward(&h, self, inputs, count));
    CTRT_TRY(ctrt_module_tensor(&gate, self, "gate"));
    if (*block->uses_gate)
        CTRT_TRY(ctrt_mul(&h, h, gate));
    return ctrt_add(y, inputs[0], h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
    .state_pointers = CTRT_STATE_PLAIN,
};
static ctrt_status block_new(ctrt_module **out, const bool *uses_gate, ctrt_device *device)
{
    static const struct { const char *name; int64_t size; } vectors[] = { { "unused", 3 }, { "frozen", HIDDEN },
                                                                          { "gate", HIDDEN } };
    CTRT_AUTO(tensor) weight = NULL;
    CTRT_TRY(ctrt_module_new(out, &block_class));
    ((struct block *)ctrt_module_state(*out))->uses_gate = uses_gate;
    CTRT_TRY(ctrt_empty(&weight, CTRT_SHAPE(HIDDEN, NARROW), CTRT_F32, device));
    for (int i = 0; i < 2; i++) {
        ctrt_module *part = NULL;
        CTRT_TRY(ctrt_module_new(&part, &part_class));
        CTRT_TRY(ctrt_module_add_parameter(part, "weight", weight));
        CTRT_TRY(ctrt_module_add_module(*out, i == 0 ? "encoder" : "decoder", part));
    }
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(tensor) vector = NULL;
        CTRT_TRY(ctrt_empty(&vector, CTRT_SHAPE(vectors[i].size), CTRT_F32, device));
        CTRT_TRY(ctrt_module_add_parameter(*out, vectors[i].name, vector));
        CTRT_TRY(ctrt_tensor_require_grad(vector, i != 1));
    }
    return CTRT_OK;
}

static ctrt_status network_new(ctrt_module **out, const char *kind, const bool *uses_gate, ctrt_device *device)
{
    const bool norm = strcmp(kind, "norm") == 0;
    CTRT_TRY(ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, PIXELS, HIDDEN, !norm, device))));
    if (norm)
        CTRT_TRY(ctrt_sequential_add(*out, CTRT_NEW(batch_norm1d, HIDDEN, NULL, device)));
    CTRT_TRY(ctrt_sequential_add(*out, CTRT_NEW(tanh)));
    if (strcmp(kind, "block") == 0)
        CTRT_TRY(ctrt_sequential_add(*out, CTRT_MAKE(block_new, uses_gate, device)));
    return ctrt_sequential_add(*out, CTRT_NEW(linear, HIDDEN, CLASSES, true, device));
}

/* ---- values ---- */

/* The tensor number k, in the order of the reference; NULL after the last one. */
static ctrt_tensor *named(const char **name, ctrt_module *net, const char *kind, int k)
{
    static _Thread_local char word[64];
    const struct ref_record *names = ref_find(ref, "%s/names", kind);
    ctrt_tensor *tensor = NULL;
    REQUIRE(names != NULL, "no names of %s", kind);
    const char *at = names->text;
    for (int i = 0; i < k && at != NULL; i++)
        at = (at = strchr(at, ' ')) != NULL ? at + 1 : NULL;
    if (at == NULL)
        return NULL;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
    REQUIRE(ctrt_module_tensor(&tensor, net, word) == CTRT_OK, "%s", ctrt_error_message());
    *name = word;
    return tensor;
}

static void values_set(ctrt_module *net, const char *kind)
{
    static _Thread_local float values[PIXELS * HIDDEN];
    const char *name;
    ctrt_tensor *tensor;
    for (int k = 0; (tensor = named(&name, net, kind, k)) != NULL; k++) {
        CTRT_AUTO(tensor) from = NULL;
        const int64_t numel = ctrt_tensor_numel(tensor);
        if ((size_t)k >= ctrt_module_parameter_count(net))
            break;                                      /* the others are buffers, which have their values */
        for (int64_t i = 0; i < numel; i++) {
            uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)k * 40503u;
            h = (h ^ (h >> 15)) * 739982445u;
            values[i] = (float)(((double)(h >> 20) / 4096 - 0.5) / 2);
        }
        CHECK_OK(ctrt_from_data(&from, values, numel, ctrt_ints_of(ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor)),
                                CTRT_F32, ctrt_tensor_device(tensor)));
        ctrt_no_grad CHECK_OK(ctrt_copy_(tensor, from));
    }
}

static void compare(const char *what, const struct training *t, int size, const char *name, double got, double want)
{
    CHECK(fabs(got - want) <= TOLERANCE * (1 + fabs(want)), "%s, %d ranks: %s of %s is %.9g, expected %.9g", t->name,
          size, what, name, got, want);
}

static void sums_compare(ctrt_module *net, const struct training *t, int size, bool buffers)
{
    const struct ref_record *sums = ref_find(ref, "%s/%d/sums", t->name, size);
    const char *name;
    ctrt_tensor *tensor;
    for (int k = 0; (tensor = named(&name, net, t->net, k)) != NULL; k++) {
        double values[PIXELS * HIDDEN], ramp = 0, squares = 0;
        if ((size_t)k >= ctrt_module_parameter_count(net) && !buffers)
            break;
        CHECK_OK(ctrt_to_host(values, sizeof values, tensor, CTRT_F64));
        for (int64_t i = 0; i < ctrt_tensor_numel(tensor); i++) {
            ramp += values[i] * (double)(i % 7 + 1);
            squares += values[i] * values[i];
        }
        if (!CHECK(sums != NULL && sums->numel > 2 * k + 1, "%s lacks sums of %s", t->name, name))
            return;
        compare("the sum", t, size, name, ramp, sums->f[2 * k]);
        compare("the sum of squares", t, size, name, squares, sums->f[2 * k + 1]);
    }
}

/* ---- training ---- */

static void images_of(ctrt_tensor *batch[2], int from, int rows, ctrt_device *device)
{
    CHECK_OK(ctrt_from_data(&batch[0], images[from], rows * PIXELS, CTRT_SHAPE(rows, PIXELS), CTRT_F32, device));
    CHECK_OK(ctrt_from_data(&batch[1], &labels[from], rows, CTRT_SHAPE(rows), CTRT_I64, device));
}

static ctrt_status loss_of(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    (void)count, (void)user;
    return ctrt_cross_entropy(loss, output, inputs[1], NULL);
}

/* The program's own backward pass after a forward pass weights the ranks by their rows, as a step does. `share`: of the
 * rows of all ranks that this rank has. */
static ctrt_status pass_alone(ctrt_tensor **loss, ctrt_module *net, ctrt_tensor *const *batch, double share)
{
    ctrt_comm *comm = ctrt_parallel_comm(net);
    CTRT_TRY(ctrt_forward(loss, net, batch[0]));
    CTRT_TRY(ctrt_cross_entropy(loss, *loss, batch[1], NULL));
    CTRT_TRY(ctrt_backward(*loss));
    CTRT_TRY(ctrt_detach(loss, *loss));
    CTRT_TRY(ctrt_mul_scalar(loss, *loss, ctrt_float(share)));
    return comm != NULL ? ctrt_comm_all_reduce(NULL, comm, *loss, CTRT_COMM_SUM) : CTRT_OK;
}

static ctrt_status reference_optimizer(ctrt_optimizer **out, ctrt_module *net, bool adamw)
{
    return adamw ? ctrt_adamw_new(out, net, ADAMW(.lr = 0.005, .weight_decay = 0.01))
                 : ctrt_sgd_new(out, net, SGD(.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01));
}

/* The parts of a batch have the sizes of rank r of n: rows / n, one more for the first rows % n. */
static int first_row(int rows, int rank, int size)
{
    return rank * (rows / size) + (rank < rows % size ? rank : rows % size);
}

/* Trains `net` and compares it with PyTorch's run in `parts` processes. */
static void train_as(ctrt_module *net, const struct training *t, bool *uses_gate, ctrt_device *device, int parts)
{
    const struct ref_record *losses = ref_find(ref, "%s/%d/loss", t->name, parts);
    ctrt_comm *comm = ctrt_parallel_comm(net);
    const int rank = comm != NULL ? ctrt_comm_rank(comm) : 0, size = comm != NULL ? ctrt_comm_size(comm) : 1;
    const int first = first_row(t->rows, rank, size), rows = first_row(t->rows, rank + 1, size) - first;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    if (!CHECK(losses != NULL && losses->numel == STEPS, "no losses of %s", t->name)
        || !CHECK_OK(reference_optimizer(&optimizer, net, t->adamw)))
        return;
    for (int step = 0; step < STEPS; step++) {
        CTRT_AUTO(tensor) loss = NULL;
        double value = NAN;
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        *uses_gate = step % 2 == 0 && (t->gate == ALL || (t->gate == LAST && rank == size - 1));
        for (int m = 0; m < t->micro; m++) {
            images_of(batch, (step * t->micro + m) * t->rows + first, rows, device);
            CHECK_OK(ctrt_parallel_no_sync(net, m < t->micro - 1));
            CHECK_OK(t->alone ? pass_alone(&loss, net, batch, (double)rows / t->rows)
                              : ctrt_parallel_step(&loss, net, batch, 2, loss_of, NULL));
        }
        CHECK_OK(ctrt_optimizer_step(optimizer));
        if (CHECK_OK(ctrt_item(&value, loss)))
            compare("the loss", t, parts, "a step", value, losses->f[step]);
    }
    tensors_release(batch, 2);
}

/* Whether the strategy's result is that of PyTorch in `parts` processes. Without ranks all rows have the same weight,
 * and no part of a batch has a rank. */
static bool agrees(const struct training *t, bool ranks, int parts)
{
    return ranks || parts == 1 || (!t->alone && t->gate != LAST);
}

/* `comm`: of this rank, NULL: that of the environment or none. `parts`: parts of a batch that are computed alone. */
static void train_all(const char *strategy, ctrt_comm *comm, ctrt_device *const *devices, int count, int parts,
                      bool buffers)
{
    for (const struct training *t = trainings; t < trainings + COUNT(trainings); t++) {
        CTRT_AUTO(module) module = NULL, net = NULL;
        bool uses_gate = false;
        const bool sharded = strategy != NULL && strcmp(strategy, "sharded") == 0;
        if (!agrees(t, strategy == NULL || sharded || strcmp(strategy, "distributed") == 0, parts)
            || !CHECK_OK(network_new(&module, t->net, &uses_gate, devices[0])))
            continue;
        values_set(module, t->net);
        if (!CHECK_OK(comm != NULL ? ctrt_parallel_new_comm(&net, module, strategy, comm)
                                   : ctrt_parallel_new(&net, module, strategy, devices, count)))
            return;
        train_as(net, t, &uses_gate, devices[0], parts);
        comm = comm != NULL ? comm : ctrt_parallel_comm(net);
        if (sharded)
            ctrt_module_release(&net);              /* the module gets its whole parameters back */
        sums_compare(module, t, parts, buffers && (comm == NULL || ctrt_comm_rank(comm) == 0));
        comm = strategy != NULL ? comm : NULL;
    }
}

static void rank_body(struct rank *rank)
{
    train_all(rank->argument, rank->comm, &rank->device, 1, rank->size, true);
}

/* ---- buckets and pieces ---- */

static void bucket_compare(const char *name)
{
    const struct ref_record *bytes = ref_find(ref, "%s/bytes", name), *dtypes = ref_find(ref, "%s/dtypes", name),
                            *limits = ref_find(ref, "%s/limits", name), *order = ref_find(ref, "%s/order", name),
                            *want = ref_find(ref, "%s/items", name), *sizes = ref_find(ref, "%s/sizes", name);
    struct bucket_item items[32];
    size_t in[32], got[32], ends[32], end = 0;
    const size_t n = (size_t)bytes->numel;
    const char *word = dtypes->text;
    REQUIRE_TRUE(n <= COUNT(items));
    for (size_t i = 0; i < n; i++, word += strcspn(word, " "), word += *word == ' ') {
        char text[8];
        ctrt_dtype dtype = CTRT_F32;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(word, " "), word);
        CHECK_OK(ctrt_dtype_parse(&dtype, text));
        items[i] = (struct bucket_item){ .bytes = (uint64_t)bytes->i[i], .dtype = (int)dtype };
        in[i] = order != NULL ? (size_t)order->i[i] : 0;
    }
    if (!CHECK(buckets_assign(got, ends, items, n, order != NULL ? in : NULL, (uint64_t)limits->i[0],
                              (uint64_t)limits->i[1]) == sizes->numel, "%s: the number of buckets is not %lld", name,
               (long long)sizes->numel))
        return;
    for (int64_t b = 0; b < sizes->numel; b++) {
        end += (size_t)sizes->i[b];
        CHECK(ends[b] == end, "%s: bucket %lld ends with item %zu, expected %zu", name, (long long)b, ends[b], end);
    }
    for (size_t i = 0; i < n; i++)
        CHECK(got[i] == (size_t)want->i[i], "%s: item %zu is %zu, expected %zu", name, i, got[i], (size_t)want->i[i]);
}

static void test_buckets(void)
{
    int count = 0;
    for (size_t r = 0; r < ref->count; r++) {
        char name[64];
        const char *name_of = ref->records[r].name, *end = strstr(name_of, "/bytes");
        if (end == NULL)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - name_of), name_of);
        bucket_compare(name);
        count++;
    }
    CHECK(count > 30, "the reference has %d lists of buckets", count);
}

/* Returns the number of elements of the next all_reduce of gradients in a report, and moves *at past it; -1: none. */
static long long next_reduction(const char **at)
{
    long long count = -1;
    while ((*at = strstr(*at, "\"all_reduce\"")) != NULL) {
        const char *dtype = strstr(*at, "\"dtype\""), *number = strstr(*at, "\"count\"");
        *at = number != NULL ? number : *at + 1;
        if (dtype != NULL && number != NULL && strncmp(dtype, "\"dtype\": \"f32\"", 14) == 0
            && sscanf(number, "\"count\": %lld", &count) == 1)
            return count;
    }
    return -1;
}

/* The next reductions in a report are those of the buckets of the reference. */
static void launches_compare(const char **at, const char *name)
{
    const struct ref_record *bytes = ref_find(ref, "%s/bytes", name), *items = ref_find(ref, "%s/items", name),
                            *sizes = ref_find(ref, "%s/sizes", name);
    for (int64_t b = 0, item = 0; b < sizes->numel && *at != NULL; b++) {
        long long want = 0;
        for (int64_t k = 0; k < sizes->i[b]; k++)
            want += bytes->i[items->i[item++]] / 4;
        const long long got = next_reduction(at);
        CHECK(got == want, "%s: reduction %lld is of %lld elements, expected %lld", name, (long long)b, got, want);
    }
}

static void launch_body(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    char *json = NULL;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(
        CTRT_NEW(linear, 512, 512, false, rank->device), CTRT_NEW(linear, 512, 1024, false, rank->device),
        CTRT_NEW(linear, 1024, 1024, false, rank->device), CTRT_NEW(linear, 1024, CLASSES, false, rank->device))));
    if (!CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm)))
        return;
    CHECK_OK(ctrt_zeros(&batch[0], CTRT_SHAPE(1, 512), CTRT_F32, rank->device));
    CHECK_OK(ctrt_zeros(&batch[1], CTRT_SHAPE(1), CTRT_I64, rank->device));
    for (int step = 0; step < 3; step++) {
        CTRT_AUTO(tensor) loss = NULL;
        CHECK_OK(ctrt_parallel_step(&loss, net, batch, 2, loss_of, NULL));
    }
    tensors_release(batch, 2);
    if (!CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        return;
    const char *at = strstr(json, "\"record\"");
    REQUIRE_TRUE(at != NULL);
    launches_compare(&at, "chain/26214400");
    launches_compare(&at, "chain/rebuilt");
    launches_compare(&at, "chain/rebuilt");
    free(json);
}

static void test_pieces(void)
{
    for (int n = 1; n <= 8; n++) {
        const struct ref_record *pieces = ref_find(ref, "chunk/%d", n);
        if (!CHECK(pieces != NULL && pieces->numel == 65 * n, "no pieces for %d devices", n))
            return;
        for (int size = 0; size <= 64; size++) {
            int64_t got[8];
            int count = 0, most = 0;
            CHECK_OK(ctrt_chunk_sizes(got, &count, size, n, NULL));
            for (int i = 0; i < n; i++) {
                most += pieces->i[size * n + i] > 0;
                CHECK(got[i] == pieces->i[size * n + i], "%d rows for %d devices: piece %d has %lld, expected %lld",
                      size, n, i, (long long)got[i], (long long)pieces->i[size * n + i]);
            }
            CHECK_EQ(count, size > 0 ? most : 1);       /* torch.chunk makes n empty pieces of 0 rows */
        }
    }
}

/* ---- the program ---- */

static void digits_read(void)
{
    char path[4096];
    int number, column = 0, n = 0;
    snprintf(path, sizeof path, "%s/examples/data/digits.csv", getenv("srcdir") != NULL ? getenv("srcdir") : ".");
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, "%s cannot be opened", path);
    while (n < IMAGES && fscanf(file, "%d%*c", &number) == 1) {
        if (column < PIXELS)
            images[n][column++] = (float)number / 16;
        else
            labels[n++] = number, column = 0;
    }
    fclose(file);
    REQUIRE_EQ(n, IMAGES);
}

static ctrt_device *device_named(const char *format, int number)
{
    char name[16];
    ctrt_device *device = NULL;
    snprintf(name, sizeof name, format, number);
    REQUIRE(ctrt_device_get(&device, name) == CTRT_OK, "%s", ctrt_error_message());
    return device;
}

/* A rank that `ctrt run` has started; CTRT_STRATEGY selects the strategy. */
static int rank_main(void)
{
    ctrt_device *device = device_named("cpu", 0);
    group("rank %s", getenv("RANK"));
    train_all(NULL, NULL, &device, 1, atoi(getenv("WORLD_SIZE")), true);
    return done();
}

static void test_processes(void)
{
    char command[4096];
    REQUIRE_TRUE(getenv("builddir") != NULL);
    snprintf(command, sizeof command, "CTRT_STRATEGY=distributed CTRT_NUM_THREADS=1 '%s/ctrt' run -n 3 "
             "'%s/run-public' test-parallel-reference rank >&2", getenv("builddir"), getenv("builddir"));
    CHECK_EQ(system(command), 0);
}

#define SETTINGS "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1"

TEST_MAIN
{
    digits_read();
    ref = ref_load("parallel_train.txt");
    REQUIRE(ref != NULL, "no reference");
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return rank_main();
    group("single");
    IN_CHILD(SETTINGS) {
        ctrt_device *device = device_named("cpu", 0);
        train_all("single", NULL, &device, 1, 1, true);
    }
    for (int n = 1; n <= MOST_RANKS; n++) {
        char micro[40];
        group("data-parallel, %d devices", n);
        IN_CHILD(SETTINGS) {
            ctrt_device *devices[MOST_RANKS];
            for (int i = 0; i < n; i++)
                devices[i] = device_named("sim:%d", i);
            train_all("data-parallel", NULL, devices, n, n, true);
        }
        group("pipeline, %d micro-batches", n);
        snprintf(micro, sizeof micro, "CTRT_PIPELINE_MICRO=%d", n);
        IN_CHILD(SETTINGS, micro) {
            /* A batch norm updates its buffers once per micro-batch, so they are others than with ranks. */
            ctrt_device *devices[2] = { device_named("sim:%d", 0), device_named("sim:%d", 1) };
            train_all("pipeline", NULL, devices, 2, n, n == 1);
        }
        group("distributed, %d threads", n);
        IN_CHILD(SETTINGS)
            run_job(ON_CPU, n, 20, rank_body, "distributed", -1);
        group("sharded, %d threads", n);
        IN_CHILD(SETTINGS)
            run_job(ON_CPU, n, 20, rank_body, "sharded", -1);
    }
    group("distributed, processes of ctrt run");
    test_processes();
    ref_free(ref);

    ref = ref_load("parallel_buckets.txt");
    REQUIRE(ref != NULL, "no reference");
    group("buckets");
    test_buckets();
    group("order of reductions");
    IN_CHILD("CTRT_NUM_THREADS=1")
        run_job(ON_CPU, 2, 20, launch_body, NULL, -1);
    group("pieces of a batch");
    test_pieces();
    ref_free(ref);
    return done();
}
