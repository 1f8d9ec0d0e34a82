/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the costs of the strategy `sharded` on simulated devices with the formulas of doc/sharded.md: bytes on the
 * links and peaks of memory. Tests when `auto` chooses it because of its memory. */
#include <math.h>

#include "../options.h"
#include "comm_job.h"
#include "strategy_check.h"

enum { WIDTH = 1152, LAYERS = 8, ROWS = 4 };

static const struct mesh {
    const char *stage, *text;
    int ranks, columns;
} meshes[] = {
    { "3", "", 2, 2 }, { "3", "", 3, 3 }, { "3", "", 4, 4 }, { "3", "2x2", 4, 2 }, { "3", "4x1", 4, 1 },
    { "2", "", 4, 4 }, { "2", "2x2", 4, 2 }, { "1", "", 4, 4 },
};

/* A net on this rank, and its optimizer without states. */
struct trained {
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x;
};

static void trained_new(struct trained *t, struct rank *rank, int width)
{
    CHECK_OK(layers_new(&t->module, LAYERS, width, false, rank->device));
    CHECK_OK(ctrt_parallel_new_comm(&t->net, t->module, "sharded", rank->comm));
    CHECK_OK(ctrt_sgd_new(&t->optimizer, t->net, SGD(.lr = 1e-4)));
    CHECK_OK(ctrt_randn(&t->x, CTRT_SHAPE(ROWS, width), CTRT_F32, rank->device));
}

static void trained_step(struct trained *t)
{
    CTRT_AUTO(tensor) loss = NULL;
    CHECK_OK(ctrt_optimizer_zero_grad(t->optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, t->net, &t->x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(t->optimizer));
}

static void trained_free(struct trained *t)
{
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
    ctrt_tensor_release(&t->x);
}

/* ---- bytes on the links ---- */

/* Elements of rank r's share of an all_reduce of n. */
static int64_t share(int64_t n, int size, int r)
{
    const int64_t each = (n + size - 1) / size, begin = each * r < n ? each * r : n;
    return begin + each < n ? each : n - begin;
}

/* Bytes that an all_reduce copies to rank r: its share from all others, and the shares of the others. */
static uint64_t all_reduce_bytes(int64_t n, int size, int r, uint64_t element)
{
    const int64_t own = share(n, size, r);
    return (uint64_t)(own * (size - 1) + n - own) * element;
}

/* With P bytes of parameters and C columns, a step has two all_gathers (one, if parameters stay gathered between the
 * passes) and one reduce_scatter of P within the row, (C - 1) / C P each. It has an all_reduce of P / C over the
 * column. All ranks also reduce weights, loss, use and the hash of modules that ran again. */
static uint64_t step_bytes(const struct mesh *mesh, int rank, int width)
{
    const int64_t elements = (int64_t)LAYERS * width * width, shard = elements / mesh->columns;
    const int rows = mesh->ranks / mesh->columns;
    const uint64_t passes = *mesh->stage == '3' ? 3 : 2;
    uint64_t bytes = passes * (uint64_t)(shard * (mesh->columns - 1)) * 4;
    for (int layer = 0; layer < LAYERS && rows > 1; layer++)
        bytes += all_reduce_bytes(shard / LAYERS, rows, rank / mesh->columns, 4);
    return bytes + all_reduce_bytes(6, mesh->ranks, rank, 8) + all_reduce_bytes(LAYERS + 3, mesh->ranks, rank, 8);
}

static void links(struct rank *rank)
{
    enum { NARROW = 24, STEPS = 2 };
    const struct mesh *mesh = rank->argument;
    struct trained t = { .module = NULL };
    trained_new(&t, rank, NARROW);
    for (int i = 0; i < 2; i++)
        trained_step(&t);
    CHECK_OK(ctrt_device_synchronize(rank->device));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    const uint64_t before = sim_read(rank->number).peer_bytes;
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    for (int i = 0; i < STEPS; i++)
        trained_step(&t);
    CHECK_OK(ctrt_device_synchronize(rank->device));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    const uint64_t got = (sim_read(rank->number).peer_bytes - before) / STEPS,
                   want = step_bytes(mesh, rank->number, NARROW);
    CHECK(got == want, "stage %s, mesh %s, rank %d: %llu bytes, expected %llu", mesh->stage, mesh->text, rank->number,
          (unsigned long long)got, (unsigned long long)want);
    trained_free(&t);
}

/* ---- peaks ---- */

/* L layers of p bytes over C columns. Shards are L p / C, and so are gradients at the end of the backward pass.
 *
 * Stage 3: the peak is in the backward pass of the second layer. It consists of the parameter of this layer, the
 * parameter of the first layer (being gathered), the gradient of this layer, the gradient of the third layer (being
 * reduced), and the shards of the parameters and of L - 2 gradients. Stages 1 and 2: the peak is at the beginning
 * of the backward pass, with all gathered parameters and one gradient. Later, parameters are freed as whole
 * gradients (stage 1) or their shards (stage 2) are allocated. */
static double peak_formula(const struct mesh *mesh)
{
    const double p = 4.0 * WIDTH * WIDTH, shard = p / mesh->columns;
    return LAYERS * shard + (*mesh->stage == '3' ? 4 * p + (LAYERS - 2) * shard : (LAYERS + 1) * p);
}

/* The smallest peak of several steps after the first one, because a thread of the communicator that runs late releases
 * the memory of its collective late. */
static void peaks(struct rank *rank)
{
    const struct mesh *mesh = rank->argument;
    const double want = peak_formula(mesh);
    double got = INFINITY;
    struct trained t = { .module = NULL };
    trained_new(&t, rank, WIDTH);
    for (int i = 0; i < 6; i++) {
        CHECK_OK(ctrt_device_synchronize(rank->device));
        CHECK_OK(ctrt_comm_barrier(rank->comm));
        ctrt_memory_reset_peak(rank->device);
        trained_step(&t);
        CHECK_OK(ctrt_device_synchronize(rank->device));
        const double peak = (double)ctrt_memory_max_allocated(rank->device);
        got = i > 0 && peak < got ? peak : got;
    }
    CHECK(got < 1.05 * want && got > 0.95 * want, "stage %s, mesh %s, rank %d of %d: peak of %.0f bytes, expected %.0f",
          mesh->stage, mesh->text, rank->number, rank->size, got, want);
    trained_free(&t);
}

static void run_mesh(const struct mesh *mesh, const char *sims, void (*body)(struct rank *rank))
{
    IN_CHILD(sims, "CTRT_NUM_THREADS=1") {
        setenv("CTRT_SHARDED_STAGE", mesh->stage, 1);
        setenv("CTRT_SHARDED_MESH", mesh->text, 1);
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        (void)sim_open("sim:0");
        run_quiet(ON_SIM, mesh->ranks, 60, body, mesh, -1);
    }
}

/* ---- the strategy auto ---- */

/* 8 layers of 16 KiB: with gradients and two states 512 KiB. A rank of two has 320 KiB under `sharded`, which includes
 * four layers. */
static const struct chosen {
    const char *sim, *canonical;
    uint64_t limit;                             /* of the last rank's memory; 0: none */
    bool fits;
    const char *words;
} chosen[] = {
    { "CTRT_SIM=devices=4,memory=64m", "0", 0, true, "auto: distributed on" },
    { "CTRT_SIM=devices=4,memory=400k", "0", 0, true, "of 400.00 KiB available, which is too little for one rank" },
    { "CTRT_SIM=devices=4,memory=64m", "0", 400 << 10, true, "auto: sharded stage 3 on" },
    { "CTRT_SIM=devices=4,memory=64m", "0", 340 << 10, false, "auto: distributed on" },
    { "CTRT_SIM=devices=4,memory=64m", "1", 400 << 10, false, "auto: distributed on" },
};

static void choose(struct rank *rank)
{
    enum { WIDTH = 64, LAYERS = 8 };
    const struct chosen *c = rank->argument;
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    if (c->limit > 0 && rank->number == rank->size - 1)
        CHECK_OK(ctrt_memory_set_limit(rank->device, c->limit));
    CHECK_OK(ctrt_sequential_new(&module, CTRT_NO_MODULES));
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(ctrt_sequential_add(module, CTRT_NEW(linear, WIDTH, WIDTH, false, cpu)));
    if (!CHECK_OK(ctrt_parallel_new_comm(&net, module, "auto", rank->comm)))
        return;
    CHECK_HAS(ctrt_parallel_describe(net), c->words);
    CHECK_HAS(ctrt_parallel_describe(net), "; 2 ranks, model 512.00 KiB of ");
    if (!c->fits)
        return;
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(2, WIDTH), CTRT_F32, rank->device));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
}

TEST_MAIN
{
    group("bytes on the links");
    EACH(mesh, meshes)
        run_mesh(mesh, "CTRT_SIM=devices=4", links);
    group("peaks of memory");
    if (SANITIZED) {
        skip_group("large parameters need a minute with sanitizers, and run no other code than small ones");
        return done();
    }
    EACH(mesh, meshes)
        if (mesh->columns > 1)
            run_mesh(mesh, "CTRT_SIM=devices=4", peaks);
    group("auto");
    EACH(row, chosen)
        IN_CHILD(row->sim, "CTRT_NUM_THREADS=1") {
            setenv("CTRT_CANONICAL", row->canonical, 1);
            CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            run_quiet(ON_SIM, 2, 20, choose, row, -1);
        }
    return done();
}
