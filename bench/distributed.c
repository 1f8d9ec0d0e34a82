/* SPDX-License-Identifier: Apache-2.0 */
/* bench/distributed.c: training steps of the strategy `distributed` in several processes, and, as NAME.local, the same
 * steps of each process alone, without communication. peers/distributed_torch.py measures the same in PyTorch.
 *
 *     ctrt run -n 2 --no-prefix ./bench-distributed
 *     bench/compare.sh 9 './ctrt run -n 2 --no-prefix ./bench-distributed' 'PYTHON bench/peers/distributed_torch.py 2'
 *
 * Rank 0 prints the median time of a step in nanoseconds and, as NAME.cpu, the processor time of its process, which
 * depends less on other programs. The rows in NAMES are those of all ranks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctrt/ctrt.h>

#include "timing.h"

enum { SAMPLES = 15, WIDTH = 128, HEADS = 4, BLOCKS = 4, LENGTH = 64, VOCABULARY = 96 };

static ctrt_comm *comm;
static ctrt_device *cpu;

static void must(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench-distributed: %s\n", ctrt_error_message());
    exit(1);
}

/* ---- networks ---- */

static ctrt_status mlp_new(ctrt_module **out)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, 784, 1024, true, cpu), CTRT_NEW(relu), CTRT_NEW(linear, 1024, 1024, true, cpu), CTRT_NEW(relu),
        CTRT_NEW(linear, 1024, 10, true, cpu)));
}

static ctrt_status cnn_new(ctrt_module **out)
{
    const ctrt_conv2d_options same = CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 });
    const ctrt_pool2d_options pool = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 16, 3, 3, &same, false, cpu), CTRT_NEW(batch_norm2d, 16, NULL, cpu), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &pool),
        CTRT_NEW(conv2d, 16, 32, 3, 3, &same, false, cpu), CTRT_NEW(batch_norm2d, 32, NULL, cpu), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &pool),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 32 * 7 * 7, 10, true, cpu)));
}

/* x + children[1](children[0](x)), twice: layer norm and attention, layer norm and MLP. */
static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)count;
    ctrt_tensor_assign(y, inputs[0]);
    for (size_t i = 0; i < 4; i += 2) {
        CTRT_AUTO(tensor) h = NULL;
        ctrt_module *norm, *layer;
        CTRT_TRY(ctrt_module_child(NULL, &norm, self, i));
        CTRT_TRY(ctrt_module_child(NULL, &layer, self, i + 1));
        CTRT_TRY(ctrt_forward(&h, norm, *y));
        CTRT_TRY(ctrt_forward(&h, layer, h));
        CTRT_TRY(ctrt_add(y, *y, h));
    }
    return CTRT_OK;
}

static ctrt_status block_new(ctrt_module **out)
{
    static const ctrt_module_class class = { .size = sizeof class, .kind = "Block", .forward = block_forward };
    ctrt_multihead_attention_options causal = CTRT_MULTIHEAD_ATTENTION_OPTIONS;
    causal.causal = true;
    CTRT_TRY(ctrt_module_new(out, &class));
    CTRT_TRY(ctrt_module_add_module(*out, "ln1", CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, cpu)));
    CTRT_TRY(ctrt_module_add_module(*out, "attn", CTRT_NEW(multihead_attention, WIDTH, HEADS, &causal, cpu)));
    CTRT_TRY(ctrt_module_add_module(*out, "ln2", CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, cpu)));
    return ctrt_module_add_module(*out, "mlp", CTRT_NEW(sequential, CTRT_MODULES(
        CTRT_NEW(linear, WIDTH, 4 * WIDTH, true, cpu), CTRT_NEW(gelu, false),
        CTRT_NEW(linear, 4 * WIDTH, WIDTH, true, cpu))));
}

static ctrt_status transformer_new(ctrt_module **out)
{
    CTRT_TRY(ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(embedding, VOCABULARY, WIDTH, NULL, cpu))));
    for (int i = 0; i < BLOCKS; i++)
        CTRT_TRY(ctrt_sequential_add(*out, CTRT_MAKE(block_new)));
    CTRT_TRY(ctrt_sequential_add(*out, CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, cpu)));
    return ctrt_sequential_add(*out, CTRT_NEW(linear, WIDTH, VOCABULARY, true, cpu));
}

/* ---- cases ---- */

static ctrt_status images(ctrt_tensor **x, ctrt_tensor **y, int64_t rows)
{
    CTRT_TRY(ctrt_randn(x, CTRT_SHAPE(rows, 1, 28, 28), CTRT_F32, cpu));
    return ctrt_randint(y, 0, 10, CTRT_SHAPE(rows), CTRT_I64, cpu);
}

static ctrt_status vectors(ctrt_tensor **x, ctrt_tensor **y, int64_t rows)
{
    CTRT_TRY(images(x, y, rows));
    return ctrt_flatten(x, *x, 1, -1);
}

static ctrt_status tokens(ctrt_tensor **x, ctrt_tensor **y, int64_t rows)
{
    CTRT_TRY(ctrt_randint(x, 0, VOCABULARY, CTRT_SHAPE(rows, LENGTH), CTRT_I64, cpu));
    return ctrt_randint(y, 0, VOCABULARY, CTRT_SHAPE(rows, LENGTH), CTRT_I64, cpu);
}

static const struct bench {
    const char *name;
    ctrt_status (*module)(ctrt_module **out);
    ctrt_status (*batch)(ctrt_tensor **x, ctrt_tensor **y, int64_t rows);
    int rows, steps;                        /* rows of all ranks; steps of a sample */
} cases[] = {
    { "mlp_784_1024_1024_10_b256", mlp_new, vectors, 256, 4 },
    { "mlp_784_1024_1024_10_b32", mlp_new, vectors, 32, 8 },
    { "transformer_4x128_t64_b16", transformer_new, tokens, 16, 4 },
    { "cnn_16_32_b128", cnn_new, images, 128, 2 },
};

/* ---- measuring ---- */

static ctrt_status loss_of(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    CTRT_AUTO(tensor) logits = NULL, labels = NULL;
    (void)count, (void)user;
    CTRT_TRY(ctrt_flatten(&logits, output, 0, -2));
    CTRT_TRY(ctrt_flatten(&labels, inputs[1], 0, -1));
    return ctrt_cross_entropy(loss, logits, labels, NULL);
}

static double processor_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void report(const char *name, bool distributed, const char *what, double *samples)
{
    qsort(samples, SAMPLES, sizeof samples[0], timing_compare);
    if (ctrt_comm_rank(comm) == 0)
        printf("%s%s%s %.0f\n", name, distributed ? "" : ".local", what, samples[SAMPLES / 2]);
    fflush(stdout);
}

static void measure(const struct bench *bench, bool distributed)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *batch[2] = { NULL, NULL };
    double samples[SAMPLES], used[SAMPLES];
    must(bench->module(&module));
    must(distributed ? ctrt_parallel_new_comm(&net, module, "distributed", comm)
                     : ctrt_parallel_new(&net, module, "single", &cpu, 1));
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 1e-4;
    must(ctrt_adamw_new(&optimizer, net, &adamw));
    must(bench->batch(&batch[0], &batch[1], bench->rows / ctrt_comm_size(comm)));
    for (int s = -1; s < SAMPLES; s++) {        /* the first one is not measured */
        must(ctrt_comm_barrier(comm));
        const double begin = timing_now(), before = processor_seconds();
        for (int i = 0; i < bench->steps; i++) {
            CTRT_AUTO(tensor) loss = NULL;
            must(ctrt_optimizer_zero_grad(optimizer, true));
            must(ctrt_parallel_step(&loss, net, batch, 2, loss_of, NULL));
            must(ctrt_optimizer_step(optimizer));
        }
        if (s < 0)
            continue;
        samples[s] = (timing_now() - begin) / bench->steps * 1e9;
        used[s] = (processor_seconds() - before) / bench->steps * 1e9;
    }
    report(bench->name, distributed, "", samples);
    report(bench->name, distributed, ".cpu", used);
    ctrt_tensor_release(&batch[0]);
    ctrt_tensor_release(&batch[1]);
}

int main(int argc, char **argv)
{
    must(ctrt_device_get(&cpu, "cpu"));
    must(ctrt_comm_new(&comm, NULL));
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int distributed = 0; distributed < 2; distributed++)
            if (argc < 2 || strstr(cases[c].name, argv[1]) != NULL)
                measure(&cases[c], distributed);
    ctrt_comm_release(&comm);
    return 0;
}
