/* SPDX-License-Identifier: Apache-2.0 */
/* Random schedules of collectives and messages, blocking or in the background, in groups of a split, on simulated
 * devices with random latencies. Every result is compared with plain loops.
 *
 *     run-public test-comm-random [COUNT [FIRST]]      default: 50 1
 *
 * runs COUNT schedules, from number FIRST, which is the seed: a failed check names it. */
#include "comm_job.h"
#include "comm_values.h"
#include "sims.h"

enum { CALLS = 6, SIZES = 3, GROUPS = 2, SCHEDULES = 50 };

struct range {
    int first, count;
};

/* xorshift64*, by S. Vigna (https://doi.org/10.1145/2845077). */
static uint32_t draw(uint64_t *state, uint32_t limit)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717u) >> 32) % limit;
}

/* Draws the same numbers for all groups; root and receiver depend on the group's size. */
static struct collective draw_collective(uint64_t *state, int size)
{
    static const int most[] = { 1, 4, 70, 3000 };
    struct collective c = { .kind = (ctrt_collective)draw(state, CTRT_COLLECTIVE_SEND + 1) };
    c.dtype = (ctrt_dtype)(1 + draw(state, DTYPE_END - 1));
    c.op = (ctrt_comm_op)draw(state, CTRT_COMM_AVERAGE + 1);
    c.count = draw(state, (uint32_t)most[draw(state, COUNT(most))] + 1);
    const uint32_t root = draw(state, 12), to = draw(state, 12);
    c.root = (int)root % size;
    c.to = size > 1 ? (c.root + 1 + (int)to % (size - 1)) % size : 0;
    if (c.op == CTRT_COMM_AVERAGE && !ctrt_dtype_is_floating(c.dtype))
        c.op = CTRT_COMM_SUM;
    if (size == 1 && c.kind == CTRT_COLLECTIVE_SEND)
        c.kind = CTRT_COLLECTIVE_ALL_REDUCE;
    return c;
}

static void schedule(struct rank *rank, int seed)
{
    uint64_t state = (uint64_t)seed * 0x9e3779b97f4a7c15u;
    struct collective calls[CALLS];
    ctrt_comm *comms[CALLS], *part = NULL;
    char what[CALLS][64];
    int64_t latency = 0;
    int color = 0, key = 0;
    for (int r = 0; r < rank->size; r++) {
        const int64_t ns = 1000 * (int64_t)draw(&state, 100) * (draw(&state, 3) == 0);
        const int drawn_color = (int)draw(&state, GROUPS), drawn_key = (int)draw(&state, 4);
        if (r == rank->number)
            latency = ns, color = drawn_color, key = drawn_key;
    }
    CHECK_OK(sim->set_latency(rank->number, latency));
    const bool splits = draw(&state, 4) == 0;
    if (splits && !CHECK_OK(ctrt_comm_split(&part, rank->comm, color, key)))
        return;
    const int count = 1 + (int)draw(&state, CALLS);
    for (int i = 0; i < count; i++) {
        comms[i] = splits && draw(&state, 2) ? part : rank->comm;
        calls[i] = draw_collective(&state, ctrt_comm_size(comms[i]));
        const bool background = draw(&state, 2);
        snprintf(what[i], sizeof what[i], "seed %d, %d ranks, call %d%s: ", seed, rank->size, i,
                 background ? " with work" : "");
        const ctrt_status status = collective_start(&calls[i], comms[i], background);
        CHECK(status == CTRT_OK, "%srank %d: %s", what[i], rank->number, ctrt_error_message());
    }
    /* In a different order on each rank. */
    for (int i = 0; i < count; i++) {
        const int at = (i + rank->number) % count;
        collective_finish(&calls[at], comms[at], what[at]);
    }
    ctrt_comm_release(&part);
}

/* The schedules whose seeds are `size` modulo SIZES. */
static void schedules(struct rank *rank)
{
    const struct range *range = rank->argument;
    for (int i = 0; i < range->count; i++)
        if ((range->first + i) % SIZES == rank->size % SIZES)
            schedule(rank, range->first + i);
}

TEST_MAIN
{
    const struct range range = { argc > 2 ? atoi(argv[2]) : 1, argc > 1 ? atoi(argv[1]) : SCHEDULES };
    for (int size = 2; size < 2 + SIZES; size++) {
        group("schedules %d to %d: those for %d ranks", range.first, range.first + range.count - 1, size);
        IN_CHILD("CTRT_SIM=devices=4,jitter=50us", "CTRT_NUM_THREADS=1") {
            for (int i = 0; i < size; i++) {
                char name[16];
                snprintf(name, sizeof name, "sim:%d", i);
                (void)sim_open(name);
            }
            run_job(ON_SIM, size, 60, schedules, &range, -1);
        }
    }
    return done();
}
