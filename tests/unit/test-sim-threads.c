/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated devices used by many threads at once: 4 devices, 4 queues each, 8 threads. */
#include "sim_host.h"

enum { DEVICES = 4, QUEUES = 4, THREADS = 8, ROUNDS = 60, N = 64 };

static void *device[DEVICES], *queue[DEVICES][QUEUES];

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Copies a vector from device to device on queues that all threads share and adds 1 on each device. Events order the
 * steps. Queues, events, blocks and pinned memory are created and destroyed at the same time. */
static void *pass_around(void *seed)
{
    uint64_t random = *(uint64_t *)seed;
    float *host = NULL;
    void *event[DEVICES];
    ctrt_view x[DEVICES];
    const size_t bytes = N * sizeof(float);
    MUST(sim->memory->host_alloc(device[0], (void **)&host, bytes));
    memset(host, 0, bytes);
    for (int d = 0; d < DEVICES; d++) {
        x[d] = sim_vector(sim_alloc(device[d], bytes), N);
        MUST(sim->queue->event_create(device[d], &event[d], true));
    }
    int here = (int)(next_random(&random) % DEVICES);
    MUST(sim->memory->copy(device[here], queue[here][0], x[here].data, host, bytes, CTRT_COPY_TO_DEVICE));
    MUST(sim->queue->event_record(device[here], event[here], queue[here][0]));
    for (int round = 0; round < ROUNDS; round++) {
        int there = (here + 1 + (int)(next_random(&random) % (DEVICES - 1))) % DEVICES;
        void *on = queue[there][next_random(&random) % QUEUES], *own = NULL, *block = NULL;
        bool short_lived = next_random(&random) % 8 == 0;
        if (short_lived) {
            on = own = sim_queue(device[there]);
            block = sim_alloc(device[there], 4096);
            MUST(sim->memory->fill(device[there], own, block, 1, 4096));
        }
        MUST(sim->queue->wait_event(device[there], on, event[here]));
        MUST(sim->memory->copy_peer(device[there], x[there].data, device[here], x[here].data, bytes, on));
        MUST(sim_add(device[there], on, (uint64_t)round, &x[there], 1));
        MUST(sim->queue->event_record(device[there], event[there], on));
        if (short_lived) {
            MUST(sim->queue->synchronize(device[there], own));
            sim->memory->free(device[there], block, 4096);
            sim->queue->destroy(device[there], own);
        }
        here = there;
    }
    MUST(sim->queue->wait_event(device[here], queue[here][1], event[here]));
    MUST(sim->memory->copy(device[here], queue[here][1], host, x[here].data, bytes, CTRT_COPY_TO_HOST));
    MUST(sim->queue->event_record(device[here], event[here], queue[here][1]));
    MUST(sim->queue->event_synchronize(device[here], event[here]));
    for (int i = 0; i < N; i++)
        CHECK(host[i] == ROUNDS, "element %d is %g after %d rounds", i, host[i], ROUNDS);
    for (int d = 0; d < DEVICES; d++) {
        MUST(sim->queue->synchronize(device[d], NULL));
        sim->queue->event_destroy(device[d], event[d]);
        sim->memory->free(device[d], x[d].data, bytes);
    }
    sim->memory->host_free(device[0], host, bytes);
    return NULL;
}

static void test_threads(const char *options)
{
    pthread_t thread[THREADS];
    uint64_t seeds[THREADS];
    group("threads share devices and queues: %s", options);
    for (int d = 0; d < DEVICES; d++) {
        device[d] = sim_open(options, d);
        for (int q = 0; q < QUEUES; q++)
            queue[d][q] = sim_queue(device[d]);
    }
    for (int t = 0; t < THREADS; t++) {
        seeds[t] = 88172645463325252u + 977u * (unsigned)t;
        REQUIRE_EQ(pthread_create(&thread[t], NULL, pass_around, &seeds[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    for (int d = 0; d < DEVICES; d++) {
        sim_counters c = sim_counted(d);
        REQUIRE_EQ(c.live_blocks, 0);
        REQUIRE_EQ(c.allocs, c.frees);
        REQUIRE_EQ(c.host_bytes, 0);
        REQUIRE_EQ(c.failures, 0);
        sim_close(device[d]);
    }
}

TEST_MAIN
{
    sim_reload();
    test_threads("devices=4,memory=1m");
    test_threads("devices=4,memory=1m,jitter=100us,seed=3");
    test_threads("devices=4,memory=1m,jitter=100us,latency=10us,bandwidth=1g,seed=4");
    return done();
}
