/* SPDX-License-Identifier: Apache-2.0 */
/* contract_comm_device.c: checks of communication engines that enqueue collectives (CTRT_COMM_ENQUEUES), of `derive`,
 * and of replays. Their ranks have devices: `ctrt check --contract --device cuda nccl`. */
#include "contract_ranks.h"

#include <signal.h>
#include <unistd.h>

#include "ctrt/capture.h"

enum { COUNT = 30000, LATE = 150 };             /* LATE: milliseconds */

/* An all_reduce of COUNT elements in place: rank r has r + 1 + turn. */
static double sum_of(const struct group *group, int turn)
{
    return group->world * (group->world + 1) / 2 + group->world * turn;
}

static void sum_begin(struct buffer *buffer, const struct group *group, int turn)
{
    double *values = contract_alloc(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++)
        values[i] = group->rank + 1 + turn;
    if (buffer->tensor == NULL)
        buffer_new(buffer, group->device, CTRT_F32, COUNT);
    buffer_set(buffer, values);
    free(values);
}

static ctrt_status sum_start(struct group *group, struct buffer *buffer)
{
    contract_step("rank %d of %d: run of an all_reduce", group->rank, group->world);
    return group_start(group, &(struct request){ .collective = CTRT_COLLECTIVE_ALL_REDUCE, .dtype = CTRT_F32,
                                                 .count = COUNT, .root = -1, .send = buffer, .receive = buffer });
}

static void sum_expect(const struct buffer *buffer, const struct group *group, int turn, const char *what)
{
    double *values = contract_alloc(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++)
        values[i] = sum_of(group, turn);
    buffer_expect(buffer, values, 0, what);
    free(values);
}

static void need_enqueues(void)
{
    if (!engine_enqueues())
        contract_skip("it does not enqueue collectives");
}

/* ---- enqueued collectives ---- */

/* Rank 0 calls run when it has returned on the others. The stream is not the default one. */
static void enqueued_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer = { .tensor = NULL };
    ctrt_stream *stream = NULL;
    group_open(&group, rank, "enqueued", NULL, 0, 15);
    group_barrier(&group);
    contract_ok(ctrt_stream_new(&stream, group.device, 0));
    contract_ok(ctrt_stream_push(stream));
    for (int turn = 0; turn < 3; turn++) {
        sum_begin(&buffer, &group, turn);
        contract_ok(ctrt_stream_synchronize(stream));
        if (rank->number == 0) {
            ranks_await(&board->step, (turn + 1) * (rank->count - 1));
            contract_sleep(LATE / 3);
        }
        contract_ok(sum_start(&group, &buffer));
        if (rank->number != 0)
            atomic_fetch_add(&board->step, 1);
        sum_expect(&buffer, &group, turn, "an all_reduce, read on the current stream");
        contract_ok(group_await(&group));
    }
    contract_ok(ctrt_stream_pop());
    buffer_free(&buffer);
    ctrt_stream_release(&stream);
    group_close(&group);
}

static void check_enqueued(void)
{
    need_enqueues();
    ranks_in_processes(RANKS, enqueued_body);
}

/* While the last rank is late, and afterwards. */
static void poll_error_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer = { .tensor = NULL };
    double longest = 0;
    group_open(&group, rank, "error", NULL, 0, 15);
    group_barrier(&group);
    sum_begin(&buffer, &group, 0);
    if (rank->number == rank->count - 1)
        contract_sleep(LATE);
    contract_ok(sum_start(&group, &buffer));
    contract_step("rank %d of %d: poll_error, while a collective is incomplete and afterwards", rank->number,
                  rank->count);
    for (const double end = seconds_now() + 2 * LATE / 1e3; seconds_now() < end; contract_sleep(1)) {
        const double begin = seconds_now();
        contract_ok(contract_engine->poll_error(group.comm));
        longest = seconds_now() - begin > longest ? seconds_now() - begin : longest;
    }
    /* Shorter than the wait of a rank, longer than a processor may be taken. */
    EXPECT(longest < LATE / 1.5e3 || rank->number == rank->count - 1, "a call took %.0f ms", longest * 1e3);
    contract_ok(group_await(&group));
    sum_expect(&buffer, &group, 0, "an all_reduce");
    buffer_free(&buffer);
    group_close(&group);
}

static void check_poll_error(void)
{
    if (!CTRT_SLOT(contract_engine, poll_error))
        contract_skip("it has no poll_error");
    ranks_in_processes(RANKS, poll_error_body);
}

/* ---- replays ---- */

static void capture_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer = { .tensor = NULL };
    ctrt_graph *graph = NULL;
    group_open(&group, rank, "capture", NULL, 0, 15);
    sum_begin(&buffer, &group, 0);
    contract_ok(sum_start(&group, &buffer));
    contract_ok(group_await(&group));
    contract_ok(ctrt_capture_begin(group.device));
    const ctrt_status status = sum_start(&group, &buffer);
    contract_ok(ctrt_capture_end(&graph, group.device));
    contract_ok(status);
    for (int turn = 1; turn < 4; turn++) {
        sum_begin(&buffer, &group, turn);
        contract_step("rank %d of %d: replay %d of an all_reduce", rank->number, rank->count, turn);
        contract_ok(ctrt_capture_replay(graph));
        contract_ok(group_await(&group));
        sum_expect(&buffer, &group, turn, "an all_reduce that was replayed");
    }
    ctrt_graph_release(&graph);
    buffer_free(&buffer);
    group_close(&group);
}

static void check_capture(void)
{
    if (!(contract_engine->flags & CTRT_COMM_CAPTURES))
        contract_skip("it has no CTRT_COMM_CAPTURES");
    ranks_in_processes(RANKS, capture_body);
}

/* ---- derive ---- */

static void need_derive(void)
{
    if (!CTRT_SLOT(contract_engine, derive))
        contract_skip("it has no derive");
}

/* Ranks 2 and 0 are a group, in this order; rank 1 is in none. Then all ranks are one in another order. */
static void split_body(struct rank *rank)
{
    static const int some[] = { 2, 0 }, all[] = { 1, 2, 0 };
    struct group parent, child;
    group_open(&parent, rank, "parent", NULL, 0, 15);
    run_some(&parent, 1, 0);
    if (rank->number == 1) {
        contract_step("rank 1 of 3: derive without a group");
        contract_ok(group_derive_none(&parent));
    } else {
        contract_ok(group_derive(&child, rank, "some", some, 2, &parent, 1));
        run_some(&child, 2, 3000);
    }
    run_some(&parent, 1, 0);
    if (rank->number != 1)
        group_close(&child);
    contract_ok(group_derive(&child, rank, "all", all, 3, &parent, 0));
    run_some(&child, 2, 3000);
    run_some(&parent, 1, 0);
    group_close(&child);
    run_some(&parent, 1, 0);
    group_close(&parent);
}

static void check_split(void)
{
    need_derive();
    ranks_in_processes(3, split_body);
}

/* The last rank ends, and the others go on without it. */
static void shrink_body(struct rank *rank)
{
    static const int left[] = { 0, 1 };
    struct group parent, child;
    ctrt_status status = CTRT_OK;
    groups_elastic = true;
    group_open(&parent, rank, "parent", NULL, 0, 10);
    group_barrier(&parent);
    if (rank->number == rank->count - 1) {
        contract_sleep(30);
        atomic_store(&board->killed[rank->number], true);
        kill(getpid(), SIGKILL);
    }
    while (status == CTRT_OK)
        status = reduce_zeros(&parent, 1000);
    contract_refused(status, CTRT_ERR_COMM);
    group_abort(&parent);
    contract_ok(group_derive(&child, rank, "left", left, 2, &parent, -1));
    run_some(&child, 2, 3000);
    group_close(&child);
    group_close(&parent);
}

static void check_shrink(void)
{
    need_derive();
    if (contract_target.ranks > 0)
        contract_skip("the launcher ends the job when a rank is killed");
    ranks_in_processes(3, shrink_body);
}

const struct contract_check contract_comm_device_checks[] = {
    { "enqueued", check_enqueued, 0,
      "with CTRT_COMM_ENQUEUES run enqueues the collective on the calling thread's current stream, and returns" },
    { "poll_error", check_poll_error, 0,
      "poll_error returns CTRT_OK while collectives are incomplete and have no error; it must not wait" },
    { "capture", check_capture, 0, "with CTRT_COMM_CAPTURES replays of a captured stream run the collective" },
    { "derive.split", check_split, 0,
      "derive creates a group of ranks of `parent`, in any order; some ranks may join none; the parent stays usable" },
    { "derive.shrink", check_shrink, 0, "derive with color -1 creates the group of the ranks that are left" },
    { NULL, NULL, 0, NULL },
};
