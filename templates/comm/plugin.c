/* SPDX-License-Identifier: Apache-2.0 */
/* The communication engine `template`: the ranks of a group exchange their data through the group's key-value store.
 * That is slow, and works wherever the ranks reach the store, between processes, threads and machines.
 *
 *     CTRT_COMM=template ctrt run -n 2 ./program
 *
 * The contract is ctrt/comm_plugin.h. The library finds the ranks, copies data of devices to host memory, numbers the
 * collectives, and calls run() for one collective after the other, and for one send and one receive at the same time.
 * An engine may call everything in ctrt.h.
 *
 * A collective: each rank writes its signature and its data to keys, reads the signatures of all ranks, and then the
 * data that it needs. Keys are removed one collective later: when all ranks have begun that, all have read the data of
 * the one before. The keys of the last collective stay until the store ends. */
#include <ctrt/comm_plugin.h>
#include <ctrt/ctrt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values of the store have at most 16 MiB. */
enum { PIECE = 8 << 20, KEY = 256 };

struct comm {
    const ctrt_comm_config *config;
    /* what this rank has written for the last collective */
    uint64_t sequence;
    int parts;
    size_t bytes;
    ctrt_comm_signature *signatures[3];     /* [world] each: of a collective, a send and a receive */
};

/* What a collective does with data, which is divided into parts of call->bytes. */
enum ranks { NONE, ROOT, ALL, OTHERS };     /* OTHERS: all but the root */
static const struct plan {
    enum ranks write, read;                 /* ranks that write data; ranks that read it */
    enum ranks from;                        /* whose data they read */
    bool for_each;                          /* what is written has a part for each rank */
    bool reduce;                            /* the parts that are read are reduced; else they are received in order */
} plans[CTRT_COLLECTIVE_COUNT] = {
    [CTRT_COLLECTIVE_BROADCAST] = { ROOT, OTHERS, ROOT, false, false },
    [CTRT_COLLECTIVE_ALL_REDUCE] = { ALL, ALL, ALL, false, true },
    [CTRT_COLLECTIVE_REDUCE] = { ALL, ROOT, ALL, false, true },
    [CTRT_COLLECTIVE_ALL_GATHER] = { ALL, ALL, ALL, false, false },
    [CTRT_COLLECTIVE_GATHER] = { ALL, ROOT, ALL, false, false },
    [CTRT_COLLECTIVE_SCATTER] = { ROOT, ALL, ROOT, true, false },
    [CTRT_COLLECTIVE_REDUCE_SCATTER] = { ALL, ALL, ALL, true, true },
    [CTRT_COLLECTIVE_ALL_TO_ALL] = { ALL, ALL, ALL, true, false },
    [CTRT_COLLECTIVE_SEND] = { ROOT, OTHERS, ROOT, false, false },      /* the root of a message is the sender */
};

static bool is_among(enum ranks ranks, int rank, int root)
{
    return ranks == ALL || (ranks == ROOT && rank == root) || (ranks == OTHERS && rank != root);
}

/* ---- the store ---- */

/* Waits for a key, and asks the library meanwhile whether to go on waiting. */
static ctrt_status key_get(struct comm *c, void *state, const char *key, void **value, size_t *bytes)
{
    for (;;) {
        ctrt_status status = ctrt_store_get(c->config->store, key, value, bytes, 0.01);
        if (status != CTRT_ERR_NOT_FOUND)
            return status;
        CTRT_TRY(c->config->poll(state));
    }
}

/* The key of a signature, and of a piece of the data that `rank` has written for `part`. `stream`: of collectives, or
 * of messages from one rank to another. */
static void key_signature(char key[KEY], const struct comm *c, const char *stream, uint64_t sequence, int rank)
{
    snprintf(key, KEY, "%s/%s/%llu/%d", c->config->name, stream, (unsigned long long)sequence, rank);
}

static void key_data(char key[KEY], const struct comm *c, const char *stream, uint64_t sequence, int rank, int part,
                     size_t offset)
{
    snprintf(key, KEY, "%s/%s/%llu/%d/%d/%zu", c->config->name, stream, (unsigned long long)sequence, rank, part,
             offset / PIECE);
}

static ctrt_status part_write(struct comm *c, const char *stream, uint64_t sequence, int part, const char *data,
                              size_t bytes)
{
    char key[KEY];
    for (size_t at = 0; at < bytes; at += PIECE) {
        key_data(key, c, stream, sequence, c->config->rank, part, at);
        CTRT_TRY(ctrt_store_set(c->config->store, key, data + at, bytes - at < PIECE ? bytes - at : PIECE));
    }
    return CTRT_OK;
}

static ctrt_status part_read(struct comm *c, void *state, const char *stream, uint64_t sequence, char *data, int rank,
                             int part, size_t bytes)
{
    char key[KEY];
    for (size_t at = 0; at < bytes; at += PIECE) {
        void *value = NULL;
        size_t size = 0;
        key_data(key, c, stream, sequence, rank, part, at);
        CTRT_TRY(key_get(c, state, key, &value, &size));
        if (size == (bytes - at < PIECE ? bytes - at : PIECE))
            memcpy(data + at, value, size);
        else
            (void)ctrt_fail(CTRT_ERR_COMM, "rank %d has written %zu bytes to %s", rank, size, key), at = bytes;
        free(value);
        if (at >= bytes)
            return CTRT_ERR_COMM;
    }
    return CTRT_OK;
}

static void parts_delete(struct comm *c, const char *stream, uint64_t sequence, int rank, int parts, size_t bytes)
{
    char key[KEY];
    for (int part = 0; part < parts; part++)
        for (size_t at = 0; at < bytes; at += PIECE) {
            key_data(key, c, stream, sequence, rank, part, at);
            (void)ctrt_store_delete(c->config->store, key, NULL);
        }
}

/* Removes this rank's signature after a failure, so that a rank that comes late cannot complete the collective without
 * this one. Returns `status`, with its message. */
static ctrt_status signature_withdraw(struct comm *c, const char *stream, uint64_t sequence, ctrt_status status)
{
    char key[KEY], why[1024];
    snprintf(why, sizeof why, "%s", ctrt_error_message());
    key_signature(key, c, stream, sequence, c->config->rank);
    (void)ctrt_store_delete(c->config->store, key, NULL);
    return ctrt_fail(status, "%s", why);
}

/* Writes this rank's signature, and reads those of the ranks from `first` to `last`. Fails if one differs. */
static ctrt_status signatures_compare(struct comm *c, const ctrt_comm_call *call, ctrt_comm_signature *all,
                                      const char *stream, int first, int last)
{
    const ctrt_comm_signature *own = &call->signature;
    char key[KEY];
    bool equal = true;
    memset(all, 0, (size_t)c->config->world * sizeof *all);
    all[c->config->rank] = *own;
    key_signature(key, c, stream, own->sequence, c->config->rank);
    CTRT_TRY(ctrt_store_set(c->config->store, key, own, sizeof *own));
    for (int r = first; r <= last; r++) {
        void *value = NULL;
        size_t bytes = 0;
        if (r == c->config->rank)
            continue;
        key_signature(key, c, stream, own->sequence, r);
        ctrt_status status = key_get(c, call->state, key, &value, &bytes);
        if (status != CTRT_OK)
            return signature_withdraw(c, stream, own->sequence, status);
        if (bytes == sizeof *all)
            memcpy(&all[r], value, sizeof *all);
        free(value);
        equal = equal && memcmp(&all[r], own, sizeof *own) == 0;
    }
    return equal ? CTRT_OK : c->config->mismatch(call->state, all);
}

/* ---- reductions, by ops on tensors ---- */

typedef ctrt_status (*combination)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
static const combination combinations[] = {
    [CTRT_COMM_SUM] = ctrt_add, [CTRT_COMM_PRODUCT] = ctrt_mul, [CTRT_COMM_MIN] = ctrt_minimum,
    [CTRT_COMM_MAX] = ctrt_maximum, [CTRT_COMM_AVERAGE] = ctrt_add,
};

/* The combination of bool is a logical or, or and. */
static combination combination_of(const ctrt_comm_signature *s)
{
    static const ctrt_comm_op of_bool[] = { [CTRT_COMM_SUM] = CTRT_COMM_MAX, [CTRT_COMM_PRODUCT] = CTRT_COMM_MIN,
                                            [CTRT_COMM_MIN] = CTRT_COMM_MIN, [CTRT_COMM_MAX] = CTRT_COMM_MAX };
    return combinations[s->dtype == CTRT_BOOL ? of_bool[s->op] : s->op];
}

/* Reads a part of every rank, combines them in the order of ranks (f16 and bf16 in f32), and writes the result to
 * `receive`. */
static ctrt_status reduce(struct comm *c, const ctrt_comm_call *call, const char *stream, int part, const char *own)
{
    const ctrt_comm_signature *s = &call->signature;
    const ctrt_dtype dtype = (ctrt_dtype)s->dtype, wide = dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
    CTRT_AUTO(tensor) sum = NULL, next = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    for (int r = 0; r < c->config->world; r++) {
        CTRT_TRY(ctrt_empty(&next, CTRT_SHAPE((int64_t)s->count), dtype, cpu));
        if (r == c->config->rank)
            memcpy(ctrt_tensor_data(next), own, call->bytes);
        else
            CTRT_TRY(part_read(c, call->state, stream, s->sequence, ctrt_tensor_data(next), r, part, call->bytes));
        CTRT_TRY(ctrt_to_dtype(&next, next, wide));
        CTRT_TRY(r == 0 ? ctrt_clone(&sum, next) : combination_of(s)(&sum, sum, next));
    }
    if (s->op == CTRT_COMM_AVERAGE)
        CTRT_TRY(ctrt_div_scalar(&sum, sum, ctrt_float(c->config->world)));
    CTRT_TRY(ctrt_to_dtype(&sum, sum, dtype));
    memcpy(call->receive, ctrt_tensor_data(sum), call->bytes);
    return CTRT_OK;
}

/* ---- the functions of the table ---- */

/* Reads what the plan says into `receive`. */
static ctrt_status receive(struct comm *c, const ctrt_comm_call *call, const struct plan *plan, const char *stream,
                           const char *own)
{
    const int me = c->config->rank, root = call->signature.root, part = plan->for_each ? me : 0;
    char *to = call->receive;
    if (plan->reduce)
        return reduce(c, call, stream, part, own + (size_t)part * call->bytes);
    for (int r = 0; r < c->config->world; r++) {
        if (!is_among(plan->from, r, root))
            continue;
        if (r == me)
            memmove(to, own + (size_t)part * call->bytes, call->bytes);
        else
            CTRT_TRY(part_read(c, call->state, stream, call->signature.sequence, to, r, part, call->bytes));
        to += call->bytes;
    }
    return CTRT_OK;
}

/* A message: both ranks write and compare signatures; each removes what it has read. */
static ctrt_status message(struct comm *c, const ctrt_comm_call *call, const struct plan *plan)
{
    const uint64_t sequence = call->signature.sequence;
    const int sender = call->signature.root, me = c->config->rank;
    char stream[40], key[KEY];
    snprintf(stream, sizeof stream, "%d-%d", sender, sender == me ? call->peer : me);
    if (sender == me)
        CTRT_TRY(part_write(c, stream, sequence, 0, call->send, call->bytes));
    CTRT_TRY(signatures_compare(c, call, c->signatures[sender == me ? 1 : 2], stream, call->peer, call->peer));
    key_signature(key, c, stream, sequence, call->peer);
    (void)ctrt_store_delete(c->config->store, key, NULL);
    if (sender == me)
        return CTRT_OK;
    CTRT_TRY(receive(c, call, plan, stream, NULL));
    parts_delete(c, stream, sequence, sender, 1, call->bytes);
    return CTRT_OK;
}

static ctrt_status comm_run(void *comm, const ctrt_comm_call *call)
{
    struct comm *c = comm;
    const ctrt_comm_signature *s = &call->signature;
    const struct plan *plan = &plans[s->collective];
    const int me = c->config->rank, last = c->config->world - 1;
    const char *own = s->collective == CTRT_COLLECTIVE_BROADCAST ? call->receive : call->send;
    char key[KEY];
    if (call->peer >= 0)
        return message(c, call, plan);
    int parts = !is_among(plan->write, me, s->root) ? 0 : plan->for_each ? c->config->world : 1;
    size_t bytes = call->bytes;
    for (int part = 0; part < parts; part++)
        CTRT_TRY(part_write(c, "all", s->sequence, part, own + (size_t)part * bytes, bytes));
    CTRT_TRY(signatures_compare(c, call, c->signatures[0], "all", 0, last));
    if (c->sequence > 0) {
        key_signature(key, c, "all", c->sequence, me);
        (void)ctrt_store_delete(c->config->store, key, NULL);
        parts_delete(c, "all", c->sequence, me, c->parts, c->bytes);
    }
    c->sequence = s->sequence;
    c->parts = parts;
    c->bytes = bytes;
    return call->bytes > 0 && is_among(plan->read, me, s->root) ? receive(c, call, plan, "all", own) : CTRT_OK;
}

static void comm_destroy(void *comm)
{
    struct comm *c = comm;
    for (int i = 0; i < 3; i++)
        free(c->signatures[i]);
    free(c);
}

/* Returns when all ranks have joined. */
static ctrt_status comm_create(void **out, const ctrt_comm_config *config)
{
    char key[KEY];
    struct comm *c = calloc(1, sizeof *c);
    bool fine = c != NULL;
    for (int i = 0; i < 3 && fine; i++)
        fine = (c->signatures[i] = calloc((size_t)config->world, sizeof *c->signatures[i])) != NULL;
    ctrt_status status = CTRT_OK;
    if (!fine)
        status = ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no host memory for %d ranks", config->world);
    if (fine) {
        c->config = config;
        key_signature(key, c, "join", 0, config->rank);
        status = ctrt_store_set(config->store, key, "", 0);
    }
    for (int r = 0; r < config->world && status == CTRT_OK; r++) {
        key_signature(key, c, "join", 0, r);
        status = key_get(c, config->state, key, NULL, NULL);
    }
    if (status == CTRT_OK)
        *out = c;
    else if (c != NULL)
        comm_destroy(c);
    return status;
}

/* ---- the plugin ---- */

static const ctrt_comm_engine engine = {
    .size = sizeof(ctrt_comm_engine), .create = comm_create, .destroy = comm_destroy, .run = comm_run,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "template", .table = &engine },
};

CTRT_PLUGIN_DEFINE("comm-template", "1.0", "collectives through the key-value store", components, NULL)
