/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated devices used by many threads at once: 4 devices, 4 queues each, 8 threads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_host.h"

enum { DEVICES = 4, QUEUES = 4, THREADS = 8, ROUNDS = 60, N = 64 };

static void *device[DEVICES], *queue[DEVICES][QUEUES];

/* State of one thread, with its own vectors on each device. Failures are reported after the thread has ended. */
struct player {
    int number;
    uint64_t random;
    ctrt_view x[DEVICES];
    char trouble[300];
};

static uint64_t next_random(struct player *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    return p->random ^= p->random << 17;
}

#define TRY(call)                                                                                              \
    do {                                                                                                       \
        ctrt_status status_ = (call);                                                                          \
        if (status_) {                                                                                         \
            snprintf(p->trouble, sizeof p->trouble, "thread %d: %s: %.150s", p->number, #call, host_error);    \
            return NULL;                                                                                       \
        }                                                                                                      \
    } while (0)

/* Copies a vector from device to device on queues that all threads share and adds 1 on each device. Events order the
 * steps. Queues, events, blocks and pinned memory are created and destroyed at the same time. */
static void *play(void *argument)
{
    struct player *p = argument;
    float *host = NULL;
    void *event[DEVICES] = { NULL };
    const size_t bytes = N * sizeof(float);
    TRY(sim->memory->host_alloc(device[0], (void **)&host, bytes));
    memset(host, 0, bytes);
    for (int d = 0; d < DEVICES; d++) {
        TRY(sim->memory->alloc(device[d], &p->x[d].data, bytes));
        p->x[d] = sim_vector(p->x[d].data, N);
        TRY(sim->queue->event_create(device[d], &event[d], true));
    }
    int here = (int)(next_random(p) % DEVICES);
    TRY(sim->memory->copy(device[here], queue[here][0], p->x[here].data, host, bytes, CTRT_COPY_TO_DEVICE));
    TRY(sim->queue->event_record(device[here], event[here], queue[here][0]));
    for (int round = 0; round < ROUNDS; round++) {
        int there = (here + 1 + (int)(next_random(p) % (DEVICES - 1))) % DEVICES;
        void *on = queue[there][next_random(p) % QUEUES], *own = NULL, *block = NULL;
        bool short_lived = next_random(p) % 8 == 0;
        if (short_lived) {
            TRY(sim->queue->create(device[there], &own, 0));
            TRY(sim->memory->alloc(device[there], &block, 4096));
            TRY(sim->memory->fill(device[there], own, block, 1, 4096));
            on = own;
        }
        TRY(sim->queue->wait_event(device[there], on, event[here]));
        TRY(sim->memory->copy_peer(device[there], p->x[there].data, device[here], p->x[here].data, bytes, on));
        TRY(sim_add(device[there], on, (uint64_t)round, &p->x[there], 1));
        TRY(sim->queue->event_record(device[there], event[there], on));
        if (short_lived) {
            TRY(sim->queue->synchronize(device[there], own));
            sim->memory->free(device[there], block, 4096);
            sim->queue->destroy(device[there], own);
        }
        here = there;
    }
    TRY(sim->queue->wait_event(device[here], queue[here][1], event[here]));
    TRY(sim->memory->copy(device[here], queue[here][1], host, p->x[here].data, bytes, CTRT_COPY_TO_HOST));
    TRY(sim->queue->event_record(device[here], event[here], queue[here][1]));
    TRY(sim->queue->event_synchronize(device[here], event[here]));
    for (int i = 0; i < N; i++)
        if (host[i] != ROUNDS)
            snprintf(p->trouble, sizeof p->trouble, "thread %d: element %d is %g after %d rounds", p->number, i, host[i], ROUNDS);
    for (int d = 0; d < DEVICES; d++) {
        TRY(sim->queue->synchronize(device[d], NULL));
        sim->queue->event_destroy(device[d], event[d]);
        sim->memory->free(device[d], p->x[d].data, bytes);
    }
    sim->memory->host_free(device[0], host, bytes);
    return NULL;
}

static void play_together(const char *options)
{
    pthread_t thread[THREADS];
    struct player players[THREADS];
    for (int d = 0; d < DEVICES; d++) {
        device[d] = sim_open(options, d);
        for (int q = 0; q < QUEUES; q++)
            MUST(sim->queue->create(device[d], &queue[d][q], 0));
    }
    for (int t = 0; t < THREADS; t++) {
        players[t] = (struct player){ .number = t, .random = 88172645463325252u + 977u * (unsigned)t };
        REQUIRE_EQ(pthread_create(&thread[t], NULL, play, &players[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    for (int t = 0; t < THREADS; t++)
        REQUIRE(players[t].trouble[0] == '\0', "%s", players[t].trouble);
    for (int d = 0; d < DEVICES; d++) {
        sim_counters c = sim_counted(d);
        REQUIRE_EQ(c.live_blocks, 0);
        REQUIRE_EQ(c.allocs, c.frees);
        REQUIRE_EQ(c.host_bytes, 0);
        REQUIRE_EQ(c.failures, 0);
        sim->device->close(device[d]);
    }
}

static void together(void)
{
    play_together("devices=4,memory=1m");
}

static void together_with_delays(void)
{
    play_together("devices=4,memory=1m,jitter=100us,seed=3");
    play_together("devices=4,memory=1m,jitter=100us,latency=10us,bandwidth=1g,seed=4");
}

TEST_MAIN
{
    sim_reload();
    group("threads share devices and queues");
    together();
    group("threads share devices and queues that delay their work");
    together_with_delays();
    return done();
}
