/* SPDX-License-Identifier: Apache-2.0 */
/* contract_comm.c: checks of communication engines (ctrt/comm_plugin.h): the results of every collective, with each
 * dtype, reduction, place, size and root; messages; several groups; ranks that are threads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_ranks.h"

#include <pthread.h>

/* ---- values that every dtype represents exactly ---- */

static double moved(ctrt_dtype dtype, int rank, int part, int64_t i)
{
    const int64_t n = (rank * 31 + part * 17 + i * 7) % 101;
    return dtype == CTRT_BOOL ? (double)(n % 2) : (double)n;
}

static double operand(ctrt_dtype dtype, int rank, int64_t i)
{
    return dtype == CTRT_BOOL ? (double)(i * (rank + 2) % 5 < 2) : (double)(1 + ((rank + 1) * (i % 5) + i / 5) % 3);
}

static double combine(ctrt_dtype dtype, ctrt_comm_op op, double a, double b)
{
    const double results[] = {
        [CTRT_COMM_SUM] = a + b, [CTRT_COMM_PRODUCT] = a * b, [CTRT_COMM_MIN] = a < b ? a : b,
        [CTRT_COMM_MAX] = a > b ? a : b, [CTRT_COMM_AVERAGE] = a + b,
    };
    return dtype == CTRT_BOOL ? (double)(results[op] > 0) : results[op];
}

static double reduced(ctrt_dtype dtype, ctrt_comm_op op, int world, int64_t i)
{
    double all = operand(dtype, 0, i);
    for (int rank = 1; rank < world; rank++)
        all = combine(dtype, op, all, operand(dtype, rank, i));
    return op == CTRT_COMM_AVERAGE ? all / world : all;
}

/* ---- collectives ---- */

enum who { NOBODY, ROOT, EVERYBODY };
static const struct form {
    const char *name;
    enum who sends, receives;
    bool send_parts, receive_parts, rooted;
} forms[CTRT_COLLECTIVE_COUNT] = {
    [CTRT_COLLECTIVE_BROADCAST] = { "broadcast", NOBODY, EVERYBODY, false, false, true },
    [CTRT_COLLECTIVE_ALL_REDUCE] = { "all_reduce", EVERYBODY, EVERYBODY, false, false, false },
    [CTRT_COLLECTIVE_REDUCE] = { "reduce", EVERYBODY, ROOT, false, false, true },
    [CTRT_COLLECTIVE_ALL_GATHER] = { "all_gather", EVERYBODY, EVERYBODY, false, true, false },
    [CTRT_COLLECTIVE_GATHER] = { "gather", EVERYBODY, ROOT, false, true, true },
    [CTRT_COLLECTIVE_SCATTER] = { "scatter", ROOT, EVERYBODY, true, false, true },
    [CTRT_COLLECTIVE_REDUCE_SCATTER] = { "reduce_scatter", EVERYBODY, EVERYBODY, true, false, false },
    [CTRT_COLLECTIVE_ALL_TO_ALL] = { "all_to_all", EVERYBODY, EVERYBODY, true, true, false },
};

static const char *const op_names[] = { "sum", "product", "min", "max", "average" };

static bool takes_part(enum who who, const struct group *group, int root)
{
    return who == EVERYBODY || (who == ROOT && group->rank == root);
}

/* The elements that this rank has before the call, and those that it has to receive. */
static void fill_values(double *given, double *expected, const struct group *group, const struct request *r)
{
    const struct form *form = &forms[r->collective];
    const int world = group->world, rank = group->rank;
    const bool reduces = collective_reduces(r->collective);
    for (int part = 0; part < world; part++) {
        for (int64_t i = 0; i < r->count; i++) {
            const int64_t at = part * r->count + i;
            double *to = &expected[at];
            given[at] = reduces ? operand(r->dtype, rank, at) : moved(r->dtype, rank, part, i);
            if (reduces)
                *to = reduced(r->dtype, r->op, world, form->send_parts ? rank * r->count + i : i);
            else if (r->collective == CTRT_COLLECTIVE_BROADCAST)
                *to = moved(r->dtype, r->root, 0, i);
            else if (r->collective == CTRT_COLLECTIVE_SCATTER)
                *to = moved(r->dtype, r->root, rank, i);
            else
                *to = moved(r->dtype, part, form->send_parts ? rank : 0, i);
        }
    }
}

/* Whether the engine may refuse the reduction. */
static bool optional_reduction(const struct request *r)
{
    return r->dtype != CTRT_F32 && r->dtype != CTRT_F64 && r->dtype != CTRT_I32 && r->dtype != CTRT_I64;
}

/* Runs the collective with known values and checks the result of this rank. */
static void run_collective(struct group *group, struct request r, bool in_place)
{
    const struct form *form = &forms[r.collective];
    const size_t most = (size_t)(group->world * r.count) * sizeof(double);
    double *given = contract_alloc(most), *expected = contract_alloc(most);
    struct buffer send, receive;
    const double tolerance = r.op == CTRT_COMM_AVERAGE && collective_reduces(r.collective) ? 1.0 / 128 : 0;
    const bool sends = takes_part(form->sends, group, r.root), receives = takes_part(form->receives, group, r.root);
    char what[128];
    fill_values(given, expected, group, &r);
    snprintf(what, sizeof what, "%s%s%s of %lld elements%s", form->name, collective_reduces(r.collective) ? ", " : "",
             collective_reduces(r.collective) ? op_names[r.op] : "", (long long)r.count, in_place ? ", in place" : "");
    buffer_new(&send, group->device, r.dtype, r.count * (form->send_parts ? group->world : 1));
    buffer_new(&receive, group->device, r.dtype, r.count * (form->receive_parts ? group->world : 1));
    buffer_set(&send, given);
    if (r.collective == CTRT_COLLECTIVE_BROADCAST)
        buffer_set(&receive, given);
    r.send = sends ? &send : NULL;
    r.receive = !receives ? NULL : in_place ? &send : &receive;
    contract_step("rank %d of %d: %s, %s, root %d", group->rank, group->world, what, ctrt_dtype_name(r.dtype), r.root);
    ctrt_status status = group_run(group, &r);
    if (collective_reduces(r.collective) && optional_reduction(&r) && status != CTRT_OK) {
        contract_refused(status, CTRT_ERR_NOT_SUPPORTED);
    } else {
        contract_ok(status);
        if (receives)
            buffer_expect(r.receive, expected, tolerance, what);
        if (sends && !(in_place && receives))
            buffer_expect(&send, given, 0, "the data that was sent");
        if (!receives)
            buffer_expect_bytes(&receive, 0x5a, "not a result");
    }
    /* The caller may overwrite what it has sent. */
    buffer_fill(&send, 0x77);
    buffer_free(&send), buffer_free(&receive);
    free(given), free(expected);
}

static ctrt_collective checked;                 /* the collective of the check */

static bool has_place(ctrt_collective collective)
{
    return collective == CTRT_COLLECTIVE_ALL_REDUCE || collective == CTRT_COLLECTIVE_REDUCE;
}

static void collective_body(struct rank *rank)
{
    static const int64_t counts[] = { 17, 0, 1, 3001, 70001 };      /* the last ones for some dtypes and reductions */
    const int ops = collective_reduces(checked) ? CTRT_COMM_AVERAGE + 1 : 1;
    const bool rooted = forms[checked].rooted;
    struct group group;
    int n = 0;
    group_open(&group, rank, "collective", NULL, 0, 15);
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BOOL; dtype++)
        for (int op = 0; op < ops && (op != CTRT_COMM_AVERAGE || ctrt_dtype_is_floating(dtype)); op++)
            for (int c = 0; c < (op > 0 ? 1 : dtype == CTRT_F32 || dtype == CTRT_U8 ? 5 : 4); c++)
                for (int place = 0; place < (has_place(checked) ? 2 : 1); place++)
                    run_collective(&group, (struct request){
                        .collective = checked, .op = (ctrt_comm_op)op, .dtype = dtype, .count = counts[c],
                        .root = rooted ? n++ % group.world : -1 }, place);
    run_collective(&group, (struct request){ .collective = checked, .dtype = CTRT_F32, .count = 300007,
                   .root = rooted ? 1 : -1 }, has_place(checked));
    group_close(&group);
}

static void check_collective(void)
{
    ranks_in_processes(RANKS, collective_body);
}

void run_some(struct group *group, int rounds, int64_t large)
{
    for (int n = 0; n < rounds; n++)
        for (int c = CTRT_COLLECTIVE_BROADCAST; c <= CTRT_COLLECTIVE_ALL_TO_ALL; c++)
            run_collective(group, (struct request){ .collective = (ctrt_collective)c, .dtype = CTRT_F32,
                           .count = n % 2 == 0 ? 5 + n : large, .root = forms[c].rooted ? n % group->world : -1 },
                           false);
}

static void check_barrier_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "barrier", NULL, 0, 15);
    for (int n = 1; n < 9; n++) {
        const bool empty = n % 2 == 0;
        if (rank->number == n % rank->count)
            contract_sleep(20);
        atomic_store(&board->counts[rank->number], n);
        contract_step("rank %d of %d: %s", rank->number, rank->count, empty ? "CTRT_COLLECTIVE_EMPTY" : "barrier");
        contract_ok(group_run(&group, &(struct request){
            .collective = empty ? CTRT_COLLECTIVE_EMPTY : CTRT_COLLECTIVE_BARRIER, .root = -1 }));
        for (int i = 0; i < rank->count; i++)
            EXPECT(board->counts[i] >= n, "returned before rank %d had called it", i);
    }
    group_close(&group);
}

static void check_barrier(void)
{
    ranks_in_processes(RANKS, check_barrier_body);
}

/* ---- messages ---- */

/* Message number n from one rank to another; sizes and values depend on the three numbers. */
static void run_message(struct group *group, int from, int to, int n)
{
    static const int64_t counts[] = { 3, 0, 1, 70001, 1000 };
    const ctrt_dtype dtype = n % 2 == 0 ? CTRT_F32 : CTRT_I16;
    const int64_t count = counts[n % 5];
    double *values = contract_alloc((size_t)count * sizeof *values);
    struct buffer buffer;
    for (int64_t i = 0; i < count; i++)
        values[i] = moved(dtype, from, to + n, i);
    buffer_new(&buffer, group->device, dtype, count);
    contract_step("rank %d of %d: message %d of %lld elements from rank %d to rank %d", group->rank, group->world,
                  n + 1, (long long)count, from, to);
    if (group->rank == from)
        buffer_set(&buffer, values);
    contract_ok(group_run(group, &(struct request){
        .collective = group->rank == from ? CTRT_COLLECTIVE_SEND : CTRT_COLLECTIVE_RECV, .dtype = dtype,
        .count = count, .root = group->rank == from ? to : from, .send = group->rank == from ? &buffer : NULL,
        .receive = group->rank == from ? NULL : &buffer }));
    /* In a message, `root` is the rank that sends on both sides. */
    buffer_expect(&buffer, values, 0, "a message");
    buffer_free(&buffer);
    free(values);
}

static void message_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "message", NULL, 0, 15);
    for (int from = 0; from < rank->count; from++)
        for (int to = 0; to < rank->count; to++)
            for (int n = 0; from != to && n < 10; n++)
                if (rank->number == from || rank->number == to)
                    run_message(&group, from, to, n);
    group_barrier(&group);
    group_close(&group);
}

static void check_message(void)
{
    ranks_in_processes(RANKS, message_body);
}

static struct group shared_group;               /* of the threads of a rank */

static atomic_int collectives_done, received_all;

/* Receives wait for messages that are sent only after a collective; then a collective waits for messages. */
static void concurrent_thread(int number)
{
    ctrt_stream *stream = NULL;
    if (engine_enqueues()) {                    /* a stream runs its collectives and messages one after the other */
        contract_ok(ctrt_stream_new(&stream, shared_group.device, 0));
        contract_ok(ctrt_stream_set_current(stream));
    }
    const int rank = shared_group.rank, world = shared_group.world;
    if (number == 0) {
        contract_sleep(10);
        run_some(&shared_group, 2, 9000);
        atomic_store(&collectives_done, 1);
        if (rank == world - 1)
            ranks_await(&received_all, 1);
        run_some(&shared_group, 2, 9000);
        return;
    }
    if (number == 1)
        ranks_await(&collectives_done, 1);
    for (int n = 0; n < 20; n++)
        run_message(&shared_group, number == 1 ? rank : (rank + world - 1) % world,
                    number == 1 ? (rank + 1) % world : rank, n);
    if (number == 2)
        atomic_store(&received_all, 1);
}

static void concurrent_body(struct rank *rank)
{
    group_open(&shared_group, rank, "concurrent", NULL, 0, 15);
    atomic_store(&collectives_done, 0), atomic_store(&received_all, 0);
    contract_in_threads(concurrent_thread, 3);
    group_close(&shared_group);
}

static void check_concurrent(void)
{
    ranks_in_processes(RANKS, concurrent_body);
}

/* ---- order ---- */

/* Ranks that are late in turn. Memory that was sent is overwritten, and results are read, at once. */
static void order_body(struct rank *rank)
{
    struct group group;
    uint32_t state = 1;
    group_open(&group, rank, "order", NULL, 0, 15);
    for (int n = 0; n < 120; n++) {
        state = state * 1664525u + 1013904223u;
        const ctrt_collective c = (ctrt_collective)(CTRT_COLLECTIVE_BROADCAST + (state >> 8) % 8);
        if ((state >> 16) % 8 == (uint32_t)rank->number)
            contract_sleep(2);
        run_collective(&group, (struct request){ .collective = c, .dtype = CTRT_I32, .count = (state >> 20) % 3000,
                       .root = forms[c].rooted ? (int)(state >> 12) % group.world : -1 }, false);
    }
    group_close(&group);
}

static void check_order(void)
{
    ranks_in_processes(RANKS, order_body);
}

/* ---- groups ---- */

static struct group pair_of_groups[2];

static void group_thread(int number)
{
    run_some(&pair_of_groups[number], 4, 3000);
}

static void groups_body(struct rank *rank)
{
    static const int members[4][4] = { { 0, 1, 2, 3 }, { 0, 2 }, { 1, 3 }, { 3, 1, 0 } };
    static const int counts[4] = { 4, 2, 2, 3 };
    struct group groups[4];
    char name[32];
    bool in[4] = { false };
    for (int g = 0; g < 4; g++) {
        for (int i = 0; i < counts[g]; i++)
            in[g] |= members[g][i] == rank->number;
        snprintf(name, sizeof name, "group%d", g);
        if (in[g])
            group_open(&groups[g], rank, name, members[g], counts[g], 15);
    }
    for (int n = 0; n < 8; n++)
        for (int g = 0; g < 4; g++)
            if (in[(g + n) % 4])
                run_some(&groups[(g + n) % 4], 1, 0);
    for (int g = 0; g < 4; g++)
        if (in[g])
            group_close(&groups[g]);
    if (engine_enqueues())                      /* the library calls run in one order on all ranks */
        return;
    for (int g = 0; g < 2; g++) {
        snprintf(name, sizeof name, "same%d", g);
        group_open(&pair_of_groups[g], rank, name, NULL, 0, 15);
    }
    contract_in_threads(group_thread, 2);
    for (int g = 0; g < 2; g++)
        group_close(&pair_of_groups[g]);
}

static void check_groups(void)
{
    ranks_in_processes(4, groups_body);
}

static void some_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "some", NULL, 0, 15);
    run_some(&group, 4, group.world == RANKS ? 40000 : 9000);
    group_close(&group);
}

static bool connects(int world, int processes)
{
    return !CTRT_SLOT(contract_engine, connects) || contract_engine->connects(world, 1, processes);
}

static void check_sizes(void)
{
    const int sizes[] = { 1, 2, engine_enqueues() ? 4 : 5 };
    for (int i = 0; i < 3; i++)
        if (connects(sizes[i], sizes[i]) && (contract_target.ranks == 0 || sizes[i] <= contract_target.ranks))
            ranks_in_processes(sizes[i], some_body);
}

static void check_threads(void)
{
    if (!connects(RANKS, 1))
        contract_skip("connects refuses ranks of one process");
    ranks_in_threads(RANKS, some_body);
    ranks_in_threads(RANKS, message_body);
}

/* ---- memory of the engine ---- */

/* An all_reduce of memory that alloc returned. */
static void reduce_at(struct group *group, void *address, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(double);
    double *given = contract_alloc(bytes), *expected = contract_alloc(bytes);
    struct buffer buffer;
    for (int64_t i = 0; i < count; i++) {
        given[i] = operand(CTRT_F32, group->rank, i);
        expected[i] = reduced(CTRT_F32, CTRT_COMM_SUM, group->world, i);
    }
    buffer_at(&buffer, group->device, address, CTRT_F32, count);
    buffer_set(&buffer, given);
    contract_step("rank %d of %d: all_reduce of %lld elements in memory of alloc", group->rank, group->world,
                  (long long)count);
    contract_ok(group_run(group, &(struct request){ .collective = CTRT_COLLECTIVE_ALL_REDUCE, .dtype = CTRT_F32,
                                                    .count = count, .root = -1, .send = &buffer, .receive = &buffer }));
    buffer_expect(&buffer, expected, 0, "all_reduce in memory of alloc");
    buffer_free(&buffer);
    free(given), free(expected);
}

static struct group *freeing;
static void *to_free;

static void free_thread(int number)
{
    (void)number;
    contract_engine->free(freeing->comm, to_free);
}

static void alloc_body(struct rank *rank)
{
    static const size_t sizes[] = { 4, 4096, 300000, 3 << 20 };
    struct group group;
    struct buffer memory[4];
    void *address[4] = { NULL };
    group_open(&group, rank, "alloc", NULL, 0, 15);
    for (int n = 0; n < 3; n++) {
        for (int i = 0; i < 4; i++) {
            contract_ok(group_run(&group, &(struct request){ .collective = CTRT_COLLECTIVE_EMPTY, .root = -1 }));
            contract_step("rank %d of %d: alloc of %zu bytes", rank->number, rank->count, sizes[i]);
            contract_ok(group_alloc(&group, &address[i], sizes[i]));
            if (address[i] == NULL)
                continue;
            buffer_at(&memory[i], group.device, address[i], CTRT_U8, (int64_t)sizes[i]);
            if (!(contract_engine->flags & CTRT_COMM_DEVICE_MEMORY))
                buffer_expect_bytes(&memory[i], 0, "new memory");
        }
        for (int i = 0; i < 4; i++)
            if (address[i] != NULL)
                buffer_fill(&memory[i], 0x33 + i);
        group_barrier(&group);
        for (int i = 0; i < 4; i++)
            if (address[i] != NULL)
                buffer_expect_bytes(&memory[i], 0x33 + i, "memory of alloc that no other rank writes");
        group_barrier(&group);
        /* Each rank frees in another order, before or after it uses the memory, and in another thread. The last rank
         * frees when the others have done so. */
        if (rank->number == rank->count - 1)
            ranks_await(&board->step, (n + 1) * (rank->count - 1));
        for (int k = 0; k < 4; k++) {
            const int i = (k + rank->number) % 4;
            freeing = &group, to_free = address[i];
            if (address[i] == NULL)
                continue;
            if (k == 3)
                buffer_expect_bytes(&memory[i], 0x33 + i, "memory of alloc that was not freed");
            buffer_free(&memory[i]);
            contract_step("rank %d of %d: free of %zu bytes", rank->number, rank->count, sizes[i]);
            contract_in_threads(free_thread, 1);
        }
        if (rank->number < rank->count - 1)
            atomic_fetch_add(&board->step, 1);
    }
    contract_ok(group_alloc(&group, &address[0], 400000));
    if (address[0] != NULL) {
        reduce_at(&group, address[0], 1000);
        reduce_at(&group, address[0], 100000);
        contract_engine->free(group.comm, address[0]);
    }
    group_close(&group);
}

static void alloc_full_body(struct rank *rank)
{
    struct group group;
    void *address = NULL;
    group_open(&group, rank, "full", NULL, 0, 15);
    contract_step("rank %d of %d: alloc of SIZE_MAX / 2 bytes", rank->number, rank->count);
    ctrt_status status = group_alloc(&group, &address, SIZE_MAX / 2);
    if (status == CTRT_OK)
        EXPECT(address == NULL, "returned an address");
    else
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    group_barrier(&group);
    run_some(&group, 1, 0);
    group_close(&group);
}

static void need_alloc(void)
{
    if (!CTRT_SLOT(contract_engine, alloc))
        contract_skip("it has no alloc");
}

static void check_alloc(void)
{
    need_alloc();
    ranks_in_processes(RANKS, alloc_body);
}

static void check_alloc_full(void)
{
    need_alloc();
    ranks_in_processes(RANKS, alloc_full_body);
}

/* ---- the table ---- */

static void check_tables(void)
{
    const ctrt_comm_engine *e = contract_engine;
    const uint32_t known = CTRT_COMM_ENQUEUES | CTRT_COMM_CAPTURES | CTRT_COMM_DEVICE_MEMORY;
    EXPECT(CTRT_SLOT(e, create) && CTRT_SLOT(e, destroy) && CTRT_SLOT(e, run),
           "required slots are create, destroy and run");
    EXPECT(CTRT_SLOT(e, alloc) == CTRT_SLOT(e, free), "of alloc and free, one is missing");
    EXPECT((e->flags & ~known) == 0, "it has unknown flags: 0x%x", e->flags & ~known);
    EXPECT(!(e->flags & CTRT_COMM_CAPTURES) || (e->flags & CTRT_COMM_ENQUEUES),
           "CTRT_COMM_CAPTURES requires CTRT_COMM_ENQUEUES");
    EXPECT(!(e->flags & CTRT_COMM_ENQUEUES) || CTRT_SLOT(e, abort), "CTRT_COMM_ENQUEUES requires abort");
    EXPECT(!CTRT_SLOT(e, poll_error) || (e->flags & CTRT_COMM_ENQUEUES), "poll_error requires CTRT_COMM_ENQUEUES");
}

static void reaches_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer;
    group_open(&group, rank, "reaches", NULL, 0, 15);
    buffer_new(&buffer, group.device, CTRT_F32, 1000);
    const ctrt_comm_call call = {
        .size = sizeof call, .peer = -1, .bytes = 4000, .send_tensor = buffer.tensor, .receive_tensor = buffer.tensor,
        .signature = { .sequence = 1, .count = 1000, .collective = CTRT_COLLECTIVE_ALL_REDUCE, .dtype = CTRT_F32,
                       .root = -1 },
    };
    contract_step("reaches_device for tensors without addresses");
    (void)contract_engine->reaches_device(group.comm, &call);
    buffer_free(&buffer);
    run_some(&group, 1, 0);
    group_close(&group);
}

static void check_reaches_device(void)
{
    if (!CTRT_SLOT(contract_engine, reaches_device))
        contract_skip("it has no reaches_device");
    ranks_in_processes(RANKS, reaches_body);
}

enum { NO_RANKS = CTRT_COLLECTIVE_COUNT };      /* the check runs no ranks */

static void comm_prepare(const void *table, unsigned needs)
{
    contract_engine = table;
    checked = (ctrt_collective)needs;
    if (needs == NO_RANKS)
        return;
    EXPECT(CTRT_SLOT(contract_engine, create) && CTRT_SLOT(contract_engine, destroy) && CTRT_SLOT(contract_engine, run),
           "required slots are create, destroy and run");
    if (engine_enqueues() && strcmp(contract_target.rank_device, "cpu") == 0)
        contract_skip("it enqueues collectives on devices: ctrt check --contract --device cuda %s",
                      contract_target.file);
    if (CTRT_SLOT(contract_engine, bootstrap) && contract_target.ranks == 0)
        contract_skip("%s", contract_launcher());
}

#define RESULT "the result is that of ctrt/comm.h, for all sizes and dtypes; only `receive` is written"

static const struct contract_check checks[] = {
    CONTRACT_COMMON(NO_RANKS),
    { "tables", check_tables, NO_RANKS, "required slots are create, destroy and run; alloc and free are both there" },
    { "broadcast", check_collective, CTRT_COLLECTIVE_BROADCAST, RESULT },
    { "all_reduce", check_collective, CTRT_COLLECTIVE_ALL_REDUCE, RESULT },
    { "reduce", check_collective, CTRT_COLLECTIVE_REDUCE, RESULT },
    { "all_gather", check_collective, CTRT_COLLECTIVE_ALL_GATHER, RESULT },
    { "gather", check_collective, CTRT_COLLECTIVE_GATHER, RESULT },
    { "scatter", check_collective, CTRT_COLLECTIVE_SCATTER, RESULT },
    { "reduce_scatter", check_collective, CTRT_COLLECTIVE_REDUCE_SCATTER, RESULT },
    { "all_to_all", check_collective, CTRT_COLLECTIVE_ALL_TO_ALL, RESULT },
    { "barrier", check_barrier, 0, "a barrier returns when all ranks have called it" },
    { "message", check_message, 0, "messages between two ranks arrive in order and unchanged" },
    { "concurrent", check_concurrent, 0,
      "sends, receives and collectives run at the same time and do not wait for each other" },
    { "order", check_order, 0,
      "when run returns, `receive` is complete and `send` may be overwritten, whichever rank is late" },
    { "groups", check_groups, 0, "groups of different names are independent; members have the order of their ranks" },
    { "sizes", check_sizes, 0, "a group has any number of ranks for which `connects` returns true, also 1" },
    { "threads", check_threads, 0, "ranks are threads of one process if `connects` accepts that" },
    { "reaches_device", check_reaches_device, 0,
      "the addresses of the call are NULL if the memory policy moves tensors" },
    { "alloc", check_alloc, 0,
      "alloc returns zeroed memory of this rank; free is called in any order, in any thread, and does not wait" },
    { "alloc.full", check_alloc_full, 0,
      "if one rank has no memory, alloc fails on all with CTRT_ERR_OUT_OF_MEMORY, and the group is usable" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_comm = {
    CTRT_COMPONENT_COMM, "comm", { checks, contract_comm_device_checks, contract_comm_failure_checks }, comm_prepare,
};
