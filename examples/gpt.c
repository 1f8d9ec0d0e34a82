/* SPDX-License-Identifier: Apache-2.0 */
/* A character-level transformer: trains on any text file, then generates some text.
 *
 *     make gpt && ./gpt [--tensor-parallel] [FILE [STEPS [LETTERS]]]
 *                                        default: the GNU General Public License, 600 steps, 600 letters
 *
 * With --tensor-parallel each member of a device with several members has a part of every block's weights:
 *
 *     CTRT_DEVICE=sim-multi:0 CTRT_SIM=devices=4 ./gpt --tensor-parallel
 *
 * CTRT_STRATEGY divides each batch over several such devices, here two with two members each:
 *
 *     CTRT_DEVICE=sim-multi CTRT_SIM=devices=4 CTRT_SIM_MULTI=2x2 CTRT_STRATEGY=data-parallel ./gpt --tensor-parallel
 *
 * The device is that of CTRT_DEVICE ("cpu", "cuda:1"), else the best one present; the code does not depend on it. */
#include <ctrt/ctrt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 128, HEADS = 4, LAYERS = 3, CONTEXT = 64, BATCH = 16 };

/* ---- a transformer block: x + attention(norm(x)), then x + mlp(norm(x)) ---- */

struct block { ctrt_module *ln1, *attn, *ln2, *mlp; };      /* borrowed: the module owns its children */

static ctrt_status block_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct block *b = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = ctrt_tensor_retain(inputs[0]), h = NULL;      /* released on every path out of the function */
    (void)count;
    CTRT_TRY(ctrt_forward(&h, b->ln1, x));
    CTRT_TRY(ctrt_forward(&h, b->attn, h));
    CTRT_TRY(ctrt_add(&x, x, h));
    CTRT_TRY(ctrt_forward(&h, b->ln2, x));
    CTRT_TRY(ctrt_forward(&h, b->mlp, h));
    return ctrt_add(y, x, h);
}

static const ctrt_module_class block_class = {
    .size = sizeof(ctrt_module_class), .kind = "Block", .state_bytes = sizeof(struct block), .forward = block_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct block, ln1), offsetof(struct block, attn),
                                          offsetof(struct block, ln2), offsetof(struct block, mlp)),
};

static ctrt_status block_new(ctrt_module **out, ctrt_device *device)
{
    ctrt_multihead_attention_options causal = CTRT_MULTIHEAD_ATTENTION_OPTIONS;
    causal.causal = true;
    CTRT_TRY(ctrt_module_new(out, &block_class));
    struct block *b = ctrt_module_state(*out);
    b->ln1 = CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, device);
    CTRT_TRY(ctrt_module_add_module(*out, "ln1", b->ln1));              /* returns the error of a failed CTRT_NEW */
    b->attn = CTRT_NEW(multihead_attention, WIDTH, HEADS, &causal, device);
    CTRT_TRY(ctrt_module_add_module(*out, "attn", b->attn));
    b->ln2 = CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, device);
    CTRT_TRY(ctrt_module_add_module(*out, "ln2", b->ln2));
    b->mlp = CTRT_NEW(sequential, CTRT_MODULES(CTRT_NEW(linear, WIDTH, 4 * WIDTH, true, device), CTRT_NEW(gelu, true),
                                               CTRT_NEW(linear, 4 * WIDTH, WIDTH, true, device)));
    return ctrt_module_add_module(*out, "mlp", b->mlp);
}

/* ---- the network: tokens [N, T] to logits [N, T, vocabulary] ---- */

struct gpt { ctrt_module *tokens, *body; ctrt_tensor *positions; };

static ctrt_status gpt_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct gpt *g = ctrt_module_state(self);
    CTRT_AUTO(tensor) x = NULL, p = NULL;
    (void)count;
    CTRT_TRY(ctrt_forward(&x, g->tokens, inputs[0]));
    CTRT_TRY(ctrt_narrow(&p, g->positions, 0, 0, ctrt_tensor_size(x, 1)));
    CTRT_TRY(ctrt_add(&x, x, p));                                       /* [N, T, WIDTH] + [T, WIDTH] */
    return ctrt_forward(y, g->body, x);
}

static const ctrt_module_class gpt_class = {
    .size = sizeof(ctrt_module_class), .kind = "GPT", .state_bytes = sizeof(struct gpt), .forward = gpt_forward,
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct gpt, tokens), offsetof(struct gpt, body),
                                          offsetof(struct gpt, positions)),
};

static ctrt_status gpt_new(ctrt_module **out, int vocabulary, ctrt_device *device)
{
    CTRT_AUTO(tensor) positions = NULL;
    CTRT_TRY(ctrt_module_new(out, &gpt_class));
    struct gpt *g = ctrt_module_state(*out);
    g->tokens = CTRT_NEW(embedding, vocabulary, WIDTH, NULL, device);
    CTRT_TRY(ctrt_module_add_module(*out, "tokens", g->tokens));
    CTRT_TRY(ctrt_randn(&positions, CTRT_SHAPE(CONTEXT, WIDTH), CTRT_DTYPE_DEFAULT, device));
    CTRT_TRY(ctrt_module_add_parameter(*out, "positions", g->positions = positions));
    g->body = CTRT_NEW(sequential, CTRT_NO_MODULES);
    CTRT_TRY(ctrt_module_add_module(*out, "body", g->body));
    for (int i = 0; i < LAYERS; i++)
        CTRT_TRY(ctrt_sequential_add(g->body, CTRT_MAKE(block_new, device)));
    CTRT_TRY(ctrt_sequential_add(g->body, CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, device)));
    return ctrt_sequential_add(g->body, CTRT_NEW(linear, WIDTH, vocabulary, true, device));
}

/* ---- the text: bytes, and tokens numbered by first appearance ---- */

static struct { int64_t *tokens; long length; int vocabulary, token_of[256]; char byte_of[256]; } text;

static ctrt_status text_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %s", path);
    for (int c, capacity = 0; (c = getc(file)) != EOF; text.length++) {
        if (text.length == capacity)
            text.tokens = realloc(text.tokens, (size_t)(capacity = capacity * 2 + 4096) * sizeof *text.tokens);
        if (text.token_of[c] == 0)                                      /* 0: not seen yet; else token + 1 */
            text.byte_of[text.vocabulary] = (char)c, text.token_of[c] = ++text.vocabulary;
        text.tokens[text.length] = text.token_of[c] - 1;
    }
    fclose(file);
    return text.length > CONTEXT ? CTRT_OK : ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s is too short", path);
}

/* Random pieces of the text, and the same pieces shifted by one character: x, y [BATCH, CONTEXT]. */
static ctrt_status text_batch(ctrt_tensor **x, ctrt_tensor **y, ctrt_device *device)
{
    int64_t pieces[BATCH][CONTEXT + 1];
    CTRT_AUTO(tensor) both = NULL;
    for (int i = 0; i < BATCH; i++) {
        long start = lrand48() % (text.length - CONTEXT);
        for (int t = 0; t <= CONTEXT; t++)
            pieces[i][t] = text.tokens[start + t];
    }
    CTRT_TRY(ctrt_from_data(&both, pieces, BATCH * (CONTEXT + 1), CTRT_SHAPE(BATCH, CONTEXT + 1), CTRT_I64, device));
    CTRT_TRY(ctrt_narrow(x, both, 1, 0, CONTEXT));
    return ctrt_narrow(y, both, 1, 1, CONTEXT);
}

/* ---- training and text generation ---- */

/* The mean over the tokens of logits [N, T, vocabulary]; inputs[1] are the tokens that follow, [N, T]. */
static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *logits, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    (void)count, (void)user;
    CTRT_TRY(ctrt_flatten(&x, logits, 0, 1));
    CTRT_TRY(ctrt_flatten(&y, inputs[1], 0, 1));
    return ctrt_cross_entropy(loss, x, y, NULL);
}

static ctrt_status train(ctrt_module *net, int steps, ctrt_device *device)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    struct timespec start, now;
    double value;
    if (ctrt_parallel_comm(net) != NULL)                                /* each rank trains with pieces of its own */
        srand48(ctrt_comm_rank(ctrt_parallel_comm(net)) + 1);
    ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
    adamw.lr = 1e-3;
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &adamw));
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int step = 1; step <= steps; step++) {
        CTRT_TRY(text_batch(&x, &y, device));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, y }, 2, loss_function, NULL));
        CTRT_TRY(ctrt_clip_grad_norm_(NULL, net, 1.0));
        CTRT_TRY(ctrt_optimizer_step(optimizer));
        if (step % 50 != 1 && step != steps)
            continue;
        CTRT_TRY(ctrt_item(&value, loss));
        clock_gettime(CLOCK_MONOTONIC, &now);
        double seconds = (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) * 1e-9;
        printf("step %4d of %d   loss %.4f   %6.0f tokens/s\n", step, steps, value, step * BATCH * CONTEXT / seconds);
        fflush(stdout);
    }
    return CTRT_OK;
}

/* Runs the network on the last CONTEXT tokens, samples the next token from the resulting probabilities, and repeats. */
static ctrt_status write_sample(ctrt_module *net, int letters, ctrt_device *device)
{
    CTRT_AUTO(tensor) x = NULL;
    int64_t window[CONTEXT] = { text.token_of['\n'] ? text.token_of['\n'] - 1 : 0 };
    float probability[256];
    for (int n = 0, seen = 1; n < letters; n++) {
        int next = 0;
        CTRT_TRY(ctrt_from_data(&x, window, seen, CTRT_SHAPE(1, seen), CTRT_I64, device));
        CTRT_TRY(ctrt_forward(&x, net, x));
        CTRT_TRY(ctrt_select(&x, x, 1, -1));                            /* logits of the last position */
        CTRT_TRY(ctrt_softmax(&x, x, -1));
        CTRT_TRY(ctrt_to_host(probability, sizeof probability, x, CTRT_F32));
        for (double r = drand48(); next < text.vocabulary - 1 && (r -= probability[next]) > 0; next++)
            ;
        putchar(text.byte_of[next]);
        if (seen == CONTEXT)
            memmove(window, window + 1, (size_t)--seen * sizeof window[0]);
        window[seen++] = next;
    }
    putchar('\n');
    return CTRT_OK;
}

/* The heads of attention and the hidden units of the perceptrons are divided: a block needs one sum over the members
 * after attention and one after its perceptron. The rows of in_proj are those of q, then k, then v: three groups. */
static const ctrt_layout_pattern tensor_parallel[] = {
    { "body.*.attn.in_proj_*",       { .kind = CTRT_LAYOUT_SHARDED, .dim = 0, .groups = 3 } },
    { "body.*.attn.out_proj.weight", { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
    { "body.*.mlp.0.*",              { .kind = CTRT_LAYOUT_SHARDED, .dim = 0 } },
    { "body.*.mlp.2.weight",         { .kind = CTRT_LAYOUT_SHARDED, .dim = 1 } },
};

static ctrt_status print_redistributions(ctrt_device *device)
{
    ctrt_layout_counts counts = CTRT_LAYOUT_COUNTS;
    CTRT_TRY(ctrt_layout_count(&counts, device));
    printf("redistributions: %llu all_reduce, %llu all_gather, %llu reduce_scatter, %llu all_to_all\n",
           (unsigned long long)counts.all_reduce, (unsigned long long)counts.all_gather,
           (unsigned long long)counts.reduce_scatter, (unsigned long long)counts.all_to_all);
    return CTRT_OK;
}

static ctrt_status run(const char *path, int steps, int letters, bool divide)
{
    ctrt_device *device = NULL;
    ctrt_status status = CTRT_OK;
    CTRT_AUTO(module) gpt = NULL, net = NULL;
    CTRT_TRY(text_read(path));
    CTRT_TRY(ctrt_device_get(&device, "auto"));
    ctrt_manual_seed(1);
    CTRT_TRY(gpt_new(&gpt, text.vocabulary, device));
    if (divide)
        CTRT_TRY(ctrt_module_distribute(gpt, tensor_parallel, sizeof tensor_parallel / sizeof tensor_parallel[0]));
    CTRT_TRY(ctrt_parallel_new(&net, gpt, NULL, NULL, 0));              /* CTRT_STRATEGY; default: as gpt */
    printf("%s: %ld characters, %d different; %lld parameters on %s\n", path, text.length, text.vocabulary,
           (long long)ctrt_module_numel(net), ctrt_device_name(device));
    CTRT_TRY(train(net, steps, device));
    if (divide)
        CTRT_TRY(print_redistributions(device));
    ctrt_module_train(net, false);
    ctrt_no_grad
        status = write_sample(net, letters, device);
    return status;
}

int main(int argc, char **argv)
{
    const bool divide = argc > 1 && strcmp(argv[1], "--tensor-parallel") == 0;
    const char *const program = argv[0];
    argc -= divide, argv += divide;
    ctrt_status status = run(argc > 1 ? argv[1] : "/usr/share/common-licenses/GPL-3", argc > 2 ? atoi(argv[2]) : 600,
                             argc > 3 ? atoi(argv[3]) : 600, divide);
    if (status != CTRT_OK)
        fprintf(stderr, "%s: %s: %s\n", program, ctrt_status_string(status), ctrt_error_message());
    free(text.tokens);
    return status != CTRT_OK;
}
