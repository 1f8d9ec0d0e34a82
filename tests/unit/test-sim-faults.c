/* SPDX-License-Identifier: Apache-2.0 */
/* Tests faults, errors and reset of simulated devices. */
#include "sim_host.h"

static void allocations_fail(void)
{
    void *device = sim_open("devices=1,memory=8m,fault=alloc:2", 0), *more = NULL, *event = sim_event(device);
    char *range = NULL;
    sim_alloc(device, 512);
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2");
    REQUIRE_TRUE(more == NULL);
    sim_alloc(device, 512);
    MUST(control->inject(0, "alloc:2+"));
    sim_alloc(device, 512);
    for (int i = 0; i < 3; i++)
        MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2+");
    MUST(sim->memory->reserve(device, (void **)&range, 4 << 20));
    MUST_FAIL(sim->memory->map(device, range, 2 << 20), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2+");
    MUST(control->clear(0));
    MUST(sim->memory->map(device, range, 2 << 20));
    REQUIRE_EQ(sim_counted(0).allocs, 3);
    REQUIRE_EQ(sim_counted(0).live_bytes, 3 * 512 + (2 << 20));
    MUST(control->inject(0, "event:2"));
    MUST(sim->queue->event_record(device, event, NULL));
    MUST_FAIL(sim->queue->event_record(device, event, NULL), CTRT_ERR_OUT_OF_MEMORY, "sim:0: no event can be recorded (fault event:2)");
    MUST(sim->queue->event_record(device, event, NULL));
    sim_close(device);
    MUST_FAIL(control->inject(0, "alloc:1"), CTRT_ERR_NO_DEVICE, "sim:0 is not open");
}

static void faults_of_one_device(void)
{
    void *more = NULL;
    setenv("CTRT_SIM_FAULT", "1.alloc:1", 1);
    void *first = sim_open("devices=2,memory=1m", 0), *second = sim_open("devices=2,memory=1m", 1);
    unsetenv("CTRT_SIM_FAULT");
    sim_alloc(first, 512);
    MUST_FAIL(sim->memory->alloc(second, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "sim:1: no 512 bytes (fault 1.alloc:1)");
    MUST_FAIL(control->inject(1, "ops:1"), CTRT_ERR_INVALID_ARGUMENT, "did you mean op?");
    sim_close(first);
    sim_close(second);
}

static void set_true(void *flag)
{
    *(bool *)flag = true;
}

static void ops_fail(void)
{
    bool idle, done, was_called = false;
    uint64_t sequence = 99, none = 99;
    void *device = sim_open("devices=1,memory=1m,fault=op:add@2", 0);
    void *bad = sim_queue(device), *good = sim_queue(device), *event = sim_event(device);
    ctrt_view x = sim_number(device, 0), y = sim_number(device, 0);
    MUST(sim_add(device, bad, 56, &x, 1));
    MUST(sim_add(device, bad, 57, &x, 1));                      /* fails; the error is not reported yet */
    MUST(sim_add(device, bad, 58, &x, 1));
    MUST(sim->queue->host_call(device, bad, set_true, &was_called));
    MUST(sim->queue->event_record(device, event, bad));
    MUST(sim->queue->wait_event(device, good, event));          /* passes although the queue failed */
    MUST(sim_add(device, good, 1, &y, 5));
    MUST(sim->queue->synchronize(device, good));
    MUST(sim->queue->event_synchronize(device, event));
    MUST(sim->queue->event_query(device, event, &done));
    REQUIRE_EQ(done, true);
    REQUIRE_EQ(sim_value(device, &x), 1);                       /* the first op ran, later ones were dropped */
    REQUIRE_EQ(was_called, false);
    MUST_FAIL(sim->queue->synchronize(device, bad), CTRT_ERR_BACKEND, "sim:0, queue 1: add (f32), call 57: failed by fault op:add@2");
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_BACKEND, "call 57");
    MUST_FAIL(sim->queue->query(device, bad, &idle), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(idle, true);
    MUST_FAIL(sim->queue->error(device, bad, &sequence), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(sequence, 57);
    MUST(sim->queue->error(device, good, &none));
    REQUIRE_EQ(none, 0);
    REQUIRE_EQ(sim_value(device, &y), 5);
    MUST(sim->queue->reset(device, bad));
    REQUIRE_EQ(sim_counted(0).failures, 1);

    /* Fails the third op, of any kind, counted from now. */
    MUST(control->inject(0, "op:3"));
    MUST(sim_add(device, good, 1, &y, 1));
    MUST(sim_run_op(device, good, 2, "neg", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST(sim_run_op(device, good, 3, "abs", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST_FAIL(sim->queue->synchronize(device, good), CTRT_ERR_BACKEND, "abs (f32), call 3");
    REQUIRE_EQ(sim_value(device, &y), -6);
    sim_close(device);
}

static void copies_corrupt(void)
{
    enum { N = 1001 };
    char host[N], back[N];
    void *device = sim_open("devices=1,memory=1m,fault=copy:2", 0);
    memset(host, 5, N);
    void *x = sim_upload(device, host, N);
    for (int wanted = 1; wanted >= 0; wanted--) {
        int wrong = 0;
        sim_download(device, back, x, N);
        for (int i = 0; i < N; i++)
            wrong += back[i] != host[i];
        REQUIRE_EQ(wrong, wanted);
    }
    sim_close(device);
}

static void a_device_is_lost(void)
{
    uint64_t bytes;
    void *device = sim_open("devices=2,memory=1m", 0), *other = sim_open("devices=2,memory=1m", 1);
    void *event = sim_event(device), *queue = sim_queue(device), *more = NULL;
    ctrt_view x = sim_number(device, 0), y = sim_number(other, 0);
    MUST(control->inject(0, "lost:3"));
    MUST(control->set_latency(0, 2000000));
    for (int i = 0; i < 5; i++) {
        ctrt_status status = sim_add(device, NULL, (uint64_t)i + 1, &x, 1);
        REQUIRE(status == CTRT_OK || status == CTRT_ERR_DEVICE_LOST, "launch %d gives %d", i, (int)status);
    }
    MUST(sim->queue->event_record(device, event, NULL));
    MUST(sim->queue->wait_event(other, NULL, event));
    MUST(sim_add(other, NULL, 1, &y, 3));
    REQUIRE_EQ(sim_value(other, &y), 3);                        /* the other device works */
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_DEVICE_LOST, "sim:0, queue 0: sim:0 is lost (fault lost:3)");
    MUST_FAIL(sim->queue->synchronize(device, queue), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim_add(device, queue, 1, &x, 1), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy(device, NULL, x.data, &bytes, 4, CTRT_COPY_TO_DEVICE), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy_peer(other, y.data, device, x.data, 4, NULL), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim->queue->reset(device, NULL), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->device->memory_info(device, &bytes, &bytes), CTRT_ERR_DEVICE_LOST, "lost");
    sim->memory->free(device, x.data, 4);                       /* freeing memory of a lost device works */
    REQUIRE_EQ(sim_counted(0).live_blocks, 0);
    MUST(control->clear(0));
    MUST(sim->queue->reset(device, NULL));
    x = sim_number(device, 0);
    MUST(sim_add(device, NULL, 1, &x, 2));
    REQUIRE_EQ(sim_value(device, &x), 2);
    sim_close(device);
    sim_close(other);
}

static void *first_call;

static void be_first(void *argument)
{
    void *none = NULL;
    __atomic_compare_exchange_n(&first_call, &none, argument, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* With delays the order across queues varies; the order on each queue does not. */
static void work_comes_late(void)
{
    int first[2] = { 0, 0 };
    void *device = sim_open("devices=1,memory=1m,seed=5", 0), *queue[2] = { sim_queue(device), sim_queue(device) };
    MUST(control->inject(0, "late:2ms"));
    for (int round = 0; round < 40; round++) {
        first_call = NULL;
        for (int i = 0; i < 2; i++)
            MUST(sim->queue->host_call(device, queue[i], be_first, &first[i]));
        MUST(sim->queue->synchronize(device, NULL));
        ++*(int *)first_call;
    }
    REQUIRE(first[0] > 0 && first[1] > 0, "the first queue was first %d times, the second %d", first[0], first[1]);
    sim_close(device);
}

TEST_MAIN
{
    sim_reload();
    group("the selected allocations and events fail");
    allocations_fail();
    group("a fault can apply to one device");
    faults_of_one_device();
    group("a failed op stops its queue until a reset");
    ops_fail();
    group("a copy fault changes one byte");
    copies_corrupt();
    group("a lost device reports an error in every call until a reset");
    a_device_is_lost();
    group("random delays change the order across queues");
    work_comes_late();
    return done();
}
