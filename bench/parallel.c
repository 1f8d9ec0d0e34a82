/* SPDX-License-Identifier: Apache-2.0 */
/* bench/parallel.c: times of training steps under the strategies on simulated devices, compared with the times that the
 * strategies' schedules need at least.
 *
 *     bench-parallel [LATENCY_US [STEPS [STRATEGY]]]      default: 1000 3, all strategies; `tensor` for tensor and mesh
 *
 * On `sim` an op takes the latency L, whatever its size, and a copy of b bytes between devices takes
 * c(b) = L + b / bandwidth. Links do not share bandwidth, and copies overlap with ops. So a program whose devices never
 * wait for each other takes as long on n devices, with n times the rows, as on one: the efficiency is the time on one
 * device divided by the time on n. T1, the time of a step on one device, is measured with `single`. The others take at
 * least:
 *
 *   data-parallel   T1 + c(w) + L + ceil(log2 n) (c(last) + L)
 *                   The first weight, of w bytes, has to reach the other devices before they start. The other
 *                   parameters and the rows of the batch arrive at the same time, or during the forward pass. The last
 *                   bucket of gradients can be added up only at the end: one kernel copies its last gradient, and each
 *                   level of the tree needs a copy and an addition.
 *   distributed     T1 + max(2 L + A(last), 6 L + A(stats)), where an all_reduce of b bytes by the engine `host` takes
 *                   A(b) = 3 n L - L + 2 (n - 1) (b / n) / bandwidth on asynchronous devices.
 *                   Two kernels copy the last gradient to its bucket and multiply the bucket by the rank's weight. The
 *                   statistics are the loss and the number of ranks that use each parameter; six ops and copies put the
 *                   loss in and take the mean out.
 *   sharded         T1 + G(p) + max(0, G(p) - 5 L) + max(L + R(p), 6 L + A(stats)), with the layers of `blocks` below,
 *                   whose parameters have p bytes. By the engine `host` on asynchronous devices, an all_gather of b
 *                   bytes takes G(b) = n L + (n - 1) (b / n) / bandwidth, and a reduce_scatter R(b) = 2 n L + (n - 1)
 *                   (b / n) / bandwidth.
 *                   The first block has to be gathered before the forward pass, and the last one again before the
 *                   backward pass; that runs beside the 5 ops of the loss. All other gathers run beside the passes of
 *                   the neighbours, and reductions beside the backward passes, except the first block's. Its gradient
 *                   is multiplied by the rank's weight. The statistics are those of `distributed`. If n does not
 *                   divide the rows of a parameter, its gradient is copied to memory with padding: L for each block.
 *   pipeline        (M + S - 1) t + 2 (S - 1) c + u
 *                   M micro-batches, S stages, t the time of the slowest stage for one micro-batch, c the time of one
 *                   copy between stages, u the time of the optimizer. t is measured with the last stage's layers on one
 *                   device: forward, loss, backward, gradients and losses added up. One device takes M times what all
 *                   layers need, plus u; with n devices a step should take 1/n of that.
 *
 *   tensor          T1 + (2 P - 1) A(x), with P pairs of linear layers without bias, each followed by tanh. The
 *                   outputs of the first layer of a pair and the inputs of the second one are divided over the n
 *                   members of one device of sim-multi. Each pair needs one all_reduce of its output, and, except the
 *                   first one, one of the gradient of its input, of x bytes each. The members run as many ops as one
 *                   device runs.
 *   mesh            Tt + 2 c(w / 2) + L
 *                   data-parallel over two devices of sim-multi with two members each; Tt is the formula of `tensor`
 *                   for two members. The members' parts of the first weight have to reach the other device before it
 *                   starts. At the end the last gradient needs a copy and an addition; a sharded gradient is not copied
 *                   to a bucket. The other copies and additions run beside the passes.
 *
 * The program prints the median time of STEPS steps, the formula's time, their quotient, and the efficiency. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <math.h>
#include <pthread.h>

#include "ctrt/ctrt.h"
#include "timing.h"

enum { WIDTH = 32, ROWS = 8, LAYERS = 96, MOST = 4, MICRO = 128, STAGE_LAYERS = 8, MOST_STEPS = 99 };
enum { BLOCKS = 24, BLOCK_OPS = 16 };               /* blocks: their number, and ops of one in the forward pass */
enum { PAIRS = 25 };                                /* of linear layers that are divided over members */

static double latency = 1e-3;
static const double bandwidth = 256 << 20;
static int steps = 3;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-parallel: %s\n", ctrt_error_message());
    exit(1);
}

static double copy_time(double bytes)
{
    return latency + bytes / bandwidth;
}

/* ---- a network and its steps ---- */

struct training {
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x;
    ctrt_device *devices[MOST];
    int n;
};

static ctrt_status mean_square(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    CTRT_AUTO(tensor) square = NULL;
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(&square, output));
    return ctrt_mean(loss, square, CTRT_ALL_DIMS);
}

static void devices_find(ctrt_device **devices, const char *type, int first, int n)
{
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s:%d", type, first + i);
        must(ctrt_device_get(&devices[i], name));
    }
}

/* A linear layer without bias, and tanh many times: the passes of one block take longer than to gather the next. */
static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_module *linear = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_child(NULL, &linear, self, 0));
    CTRT_TRY(ctrt_forward(y, linear, inputs[0]));
    for (int i = 1; i < BLOCK_OPS; i++)
        CTRT_TRY(ctrt_tanh(y, *y));
    return CTRT_OK;
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .forward = block_forward,
};

static ctrt_status block_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_TRY(ctrt_module_new(out, &block_class));
    return ctrt_module_add_module(*out, "linear", CTRT_NEW(linear, WIDTH, WIDTH, false, device));
}

/* The outputs of the first layer of each pair, and the inputs of the second one. */
static void pairs_distribute(ctrt_module *module)
{
    ctrt_tensor *weight;
    for (int i = 0; ctrt_module_parameter(NULL, &weight, module, (size_t)i) == CTRT_OK; i++)
        must(ctrt_tensor_distribute(weight, &(ctrt_layout){ .kind = CTRT_LAYOUT_SHARDED, .dim = i % 2 }));
}

/* `layers`: BLOCKS of blocks, 2 * PAIRS linear layers without bias and tanh, or another number of linear layers with
 * bias and tanh. `comm`: NULL, or that of a rank, whose device is devices[0]. */
static void training_begin(struct training *t, const char *strategy, int layers, int64_t rows, ctrt_comm *comm)
{
    must(ctrt_sequential_new(&t->module, CTRT_NO_MODULES));
    for (int i = 0; i < layers && layers != BLOCKS; i++) {
        must(ctrt_sequential_add(t->module,
                                 CTRT_NEW(linear, WIDTH, WIDTH, layers != 2 * PAIRS, t->devices[0])));
        must(ctrt_sequential_add(t->module, CTRT_NEW(tanh)));
    }
    for (int i = 0; i < layers && layers == BLOCKS; i++)
        must(ctrt_sequential_add(t->module, CTRT_MAKE(block_new, t->devices[0])));
    if (strncmp(ctrt_device_name(t->devices[0]), "sim-multi", 9) == 0)
        pairs_distribute(t->module);
    must(ctrt_randn(&t->x, CTRT_SHAPE(rows, WIDTH), CTRT_F32, t->devices[0]));
    must(comm != NULL ? ctrt_parallel_new_comm(&t->net, t->module, strategy, comm)
                      : ctrt_parallel_new(&t->net, t->module, strategy, t->devices, t->n));
    ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
    sgd.lr = 1e-3;
    must(ctrt_sgd_new(&t->optimizer, t->net, &sgd));
}

static void training_end(struct training *t)
{
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
    ctrt_tensor_release(&t->x);
}

static void step(struct training *t)
{
    CTRT_AUTO(tensor) loss = NULL;
    must(ctrt_optimizer_zero_grad(t->optimizer, true));
    must(ctrt_parallel_step(&loss, t->net, &t->x, 1, mean_square, NULL));
    must(ctrt_optimizer_step(t->optimizer));
}

static void training_wait(const struct training *t)
{
    for (int i = 0; i < t->n; i++)
        must(ctrt_device_synchronize(t->devices[i]));
}

/* Returns the median time of a step. `meet`: NULL, or the ranks begin each step together. */
static double steps_time(struct training *t, pthread_barrier_t *meet)
{
    double times[MOST_STEPS];
    for (int i = -2; i < steps; i++) {              /* the first two create replicas, buckets and blocks of memory */
        training_wait(t);
        if (meet != NULL)
            pthread_barrier_wait(meet);
        const double begin = timing_now();
        step(t);
        training_wait(t);
        if (i >= 0)
            times[i] = timing_now() - begin;
    }
    qsort(times, (size_t)steps, sizeof *times, timing_compare);
    return times[steps / 2];
}

/* ---- one process ---- */

static double measure_on(const char *type, int first, const char *strategy, int n, int layers, int64_t rows)
{
    struct training t = { .n = n };
    devices_find(t.devices, type, first, n);
    training_begin(&t, strategy, layers, rows, NULL);
    const double time = steps_time(&t, NULL);
    training_end(&t);
    return time;
}

static double measure(const char *strategy, int n, int layers, int64_t rows)
{
    return measure_on("sim", 0, strategy, n, layers, rows);
}

static void print(const char *strategy, int n, double time, double formula, double one)
{
    printf("%-14s %7d %10.1f %10.1f %10.3f %11.1f %%\n", strategy, n, 1e3 * time, 1e3 * formula, time / formula,
           100 * one / time);
    fflush(stdout);
}

static int levels(int n)
{
    int count = 0;
    while (1 << count < n)
        count++;
    return count;
}

static const double weight_bytes = 4.0 * WIDTH * WIDTH, bias_bytes = 4.0 * WIDTH;
static const int bucket_layers = 4;                 /* CTRT_DATA_PARALLEL_BUCKET, CTRT_DISTRIBUTED_BUCKET */

static void data_parallel(double one)
{
    const double last = bucket_layers * (weight_bytes + bias_bytes);
    for (int n = 2; n <= MOST; n++)
        print("data-parallel", n, measure("data-parallel", n, LAYERS, ROWS * n),
              one + copy_time(weight_bytes) + latency
                  + levels(n) * (copy_time(last) + latency), one);
}

/* ---- ranks in threads ---- */

struct rank {
    const char *strategy;
    struct training training;
    ctrt_comm *comm;
    pthread_barrier_t *meet;
    double time;
};

static void *rank_run(void *argument)
{
    struct rank *rank = argument;
    const int layers = strcmp(rank->strategy, "sharded") == 0 ? BLOCKS : LAYERS;
    training_begin(&rank->training, rank->strategy, layers, ROWS, rank->comm);
    rank->time = steps_time(&rank->training, rank->meet);
    pthread_barrier_wait(rank->meet);
    training_end(&rank->training);
    ctrt_comm_release(&rank->comm);
    return NULL;
}

static double all_reduce_time(double bytes, int n)
{
    return (3 * n - 1) * latency + 2.0 * (n - 1) * bytes / n / bandwidth;
}

/* The time of a step of the slowest of n ranks. */
static double measure_ranks(const char *strategy, int n)
{
    struct rank ranks[MOST];
    ctrt_comm *comms[MOST] = { NULL };
    ctrt_device *devices[MOST];
    pthread_t threads[MOST];
    pthread_barrier_t meet;
    double slowest = 0;
    devices_find(devices, "sim", 0, n);
    pthread_barrier_init(&meet, NULL, (unsigned)n);
    must(ctrt_comm_new_local(comms, devices, n, NULL));
    for (int i = 0; i < n; i++) {
        ranks[i] = (struct rank){
            .strategy = strategy, .comm = comms[i], .meet = &meet,
            .training = { .n = 1, .devices = { devices[i] } },
        };
        pthread_create(&threads[i], NULL, rank_run, &ranks[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        slowest = ranks[i].time > slowest ? ranks[i].time : slowest;
    }
    pthread_barrier_destroy(&meet);
    return slowest;
}

static void distributed(double one)
{
    const double last = bucket_layers * (weight_bytes + bias_bytes), stats = 8.0 * (2 * LAYERS + 1);
    for (int n = 2; n <= MOST; n++)
        print("distributed", n, measure_ranks("distributed", n),
              one + fmax(2 * latency + all_reduce_time(last, n), 6 * latency + all_reduce_time(stats, n)), one);
}

/* ZeRO stage 3 */
static void sharded(void)
{
    const double one = measure("single", 1, BLOCKS, ROWS), stats = 8.0 * (BLOCKS + 1);
    for (int n = 2; n <= MOST; n++) {
        const double bytes = (n - 1) * weight_bytes / n / bandwidth;
        const double gather = n * latency + bytes, reduce = 2 * n * latency + bytes;
        print("sharded", n, measure_ranks("sharded", n),
              one + (WIDTH % n != 0 ? BLOCKS * latency : 0) + gather + fmax(0, gather - 5 * latency)
                  + fmax(latency + reduce, 6 * latency + all_reduce_time(stats, n)), one);
    }
}

/* ---- devices with members ---- */

static void tensor_and_mesh(void)
{
    const double one = measure("single", 1, 2 * PAIRS, ROWS), bytes = 4.0 * ROWS * WIDTH;
    for (int n = 2; n <= MOST; n += 2) {
        const double time = measure_on("sim-multi", n == 2 ? 0 : 2, "single", 1, 2 * PAIRS, ROWS);
        const double formula = one + (2 * PAIRS - 1) * all_reduce_time(bytes, n);
        print("tensor", n, time, formula, one);
        if (n == 2)
            print("mesh", 4, measure_on("sim-multi", 0, "data-parallel", 2, 2 * PAIRS, 2 * ROWS),
                  formula + 2 * copy_time(weight_bytes / 2) + latency, one);
    }
}

/* ---- pipeline ---- */

/* Time of a micro-batch on one device, in a loop that accumulates gradients and losses. `upstream`: the layers have to
 * compute the gradient of their input, which the stage before needs. */
static double micro_time(int layers, bool upstream)
{
    enum { COUNT = 8 };
    struct training t = { .n = 1 };
    CTRT_AUTO(tensor) total = NULL;
    double times[MOST_STEPS];
    devices_find(t.devices, "sim", 0, 1);
    training_begin(&t, "single", layers, ROWS, NULL);
    must(ctrt_tensor_require_grad(t.x, upstream));
    must(ctrt_zeros(&total, CTRT_SCALAR_SHAPE, CTRT_F32, t.devices[0]));
    for (int i = -1; i < steps; i++) {
        training_wait(&t);
        const double begin = timing_now();
        for (int m = 0; m < COUNT; m++) {
            CTRT_AUTO(tensor) output = NULL, loss = NULL;
            must(ctrt_forward(&output, t.module, t.x));
            must(mean_square(&loss, output, NULL, 0, NULL));
            must(ctrt_backward(loss));
            must(ctrt_tensor_set_grad(t.x, NULL));
            ctrt_no_grad must(ctrt_mul_scalar(&loss, loss, ctrt_float(1.0 / MICRO)));
            ctrt_no_grad must(ctrt_add_(total, loss));
        }
        training_wait(&t);
        if (i >= 0)
            times[i] = (timing_now() - begin) / COUNT;
    }
    training_end(&t);
    qsort(times, (size_t)steps, sizeof *times, timing_compare);
    return times[steps / 2];
}

/* The last stage, which computes the loss, has one layer less than the others. */
static void pipeline(void)
{
    const double update = latency, stage = micro_time(STAGE_LAYERS - 1, true), copy = copy_time(4.0 * ROWS * WIDTH);
    for (int n = 2; n <= MOST; n++) {
        const int layers = STAGE_LAYERS * n - 1;
        print("pipeline", n, measure("pipeline", n, layers, ROWS * MICRO),
              (MICRO + n - 1) * stage + 2 * (n - 1) * copy + update,
              (MICRO * micro_time(layers, false) + update) / n);
    }
}

int main(int argc, char **argv)
{
    char text[96];
    const char *only = argc > 3 ? argv[3] : "";
    if (argc > 1)
        latency = 1e-6 * atof(argv[1]);
    if (argc > 2)
        steps = atoi(argv[2]);
    if (latency <= 0 || steps < 1 || steps > MOST_STEPS) {
        fprintf(stderr, "usage: bench-parallel [LATENCY_US [STEPS [STRATEGY]]]\n");
        return 2;
    }
    snprintf(text, sizeof text, "devices=8,latency=%.0fns,bandwidth=%.0f", 1e9 * latency, bandwidth);
    setenv("CTRT_SIM", text, 1);
    setenv("CTRT_SIM_MULTI", "sim:0,sim:1;sim:2,sim:3;sim:4,sim:5,sim:6,sim:7", 1);
    snprintf(text, sizeof text, "%.0f", bucket_layers * (weight_bytes + bias_bytes));
    setenv("CTRT_DATA_PARALLEL_BUCKET", text, 1);
    setenv("CTRT_DISTRIBUTED_BUCKET", text, 1);
    snprintf(text, sizeof text, "%d", MICRO);
    setenv("CTRT_PIPELINE_MICRO", text, 1);
    printf("%-14s %7s %10s %10s %10s %13s\n", "strategy", "devices", "ms", "formula", "quotient", "efficiency");
    const bool alone = strcmp(only, "pipeline") == 0 || strcmp(only, "sharded") == 0
                       || strcmp(only, "tensor") == 0;          /* with other networks */
    const double one = alone ? 0 : measure("single", 1, LAYERS, ROWS);
    if (*only == '\0' || strcmp(only, "single") == 0)
        print("single", 1, one, one, one);
    if (*only == '\0' || strcmp(only, "data-parallel") == 0)
        data_parallel(one);
    if (*only == '\0' || strcmp(only, "distributed") == 0)
        distributed(one);
    if (*only == '\0' || strcmp(only, "sharded") == 0)
        sharded();
    if (*only == '\0' || strcmp(only, "pipeline") == 0)
        pipeline();
    if (*only == '\0' || strcmp(only, "tensor") == 0)
        tensor_and_mesh();
    return 0;
}
