/* SPDX-License-Identifier: Apache-2.0 */
/* Tests faults, errors and reset of simulated devices. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <sys/mman.h>

#include "sim_host.h"

#define FILL(device, queue, address, byte, bytes) MUST(sim->memory->fill(device, queue, address, byte, bytes))

static float value_of(void *device, const ctrt_view *x)
{
    float got = -1;
    sim_download(device, &got, x->data, sizeof got);
    return got;
}

/* ---- allocations ---- */

static void allocations_fail(void)
{
    void *more = NULL, *a, *b;
    void *device = sim_open("devices=1,memory=8m,fault=alloc:2;host:1", 0);
    a = sim_alloc(device, 512);
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2");
    REQUIRE_EQ(more == NULL, 1);
    b = sim_alloc(device, 512);
    MUST_FAIL(sim->memory->host_alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault host:1");
    MUST(sim->memory->host_alloc(device, &more, 512));
    sim->memory->host_free(device, more, 512);
    MUST(control->inject(0, "alloc:2+"));
    sim->memory->free(device, a, 512);
    a = sim_alloc(device, 512);
    for (int i = 0; i < 3; i++)
        MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2+");
    char *range = NULL;
    MUST(sim->memory->reserve(device, (void **)&range, 4 << 20));
    MUST_FAIL(sim->memory->map(device, range, 2 << 20), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2+");
    MUST(control->clear(0));
    MUST(sim->memory->map(device, range, 2 << 20));
    sim_counters c = sim_counted(0);
    REQUIRE_EQ(c.allocs, 3);
    REQUIRE_EQ(c.live_bytes, 1024 + (2 << 20));
    sim->memory->free(device, b, 512);
    sim->memory->free(device, a, 512);
    MUST(control->inject(0, "event:2"));
    void *event;
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->event_record(device, event, NULL));
    MUST_FAIL(sim->queue->event_record(device, event, NULL), CTRT_ERR_OUT_OF_MEMORY, "sim:0: no event can be recorded (fault event:2)");
    MUST(sim->queue->event_record(device, event, NULL));
    sim->queue->event_destroy(device, event);
    sim->device->close(device);
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
    sim->device->close(first);
    sim->device->close(second);
}

/* ---- work that fails ---- */

static void called(void *argument)
{
    *(bool *)argument = true;
}

static void ops_fail(void)
{
    float zero = 0;
    bool idle, done, was_called = false;
    uint64_t sequence = 99;
    void *device = sim_open("devices=1,memory=1m,fault=op:add@2", 0), *bad = NULL, *good = NULL, *event = NULL;
    ctrt_view x = sim_vector(sim_upload(device, &zero, 4), 1), y = sim_vector(sim_upload(device, &zero, 4), 1);
    MUST(sim->queue->create(device, &bad, 0));
    MUST(sim->queue->create(device, &good, 0));
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->error(device, bad, &sequence));
    REQUIRE_EQ(sequence, 0);
    MUST(sim_add(device, bad, 56, &x, 1));
    MUST(sim_add(device, bad, 57, &x, 1));                      /* fails; the error is not reported yet */
    MUST(sim_add(device, bad, 58, &x, 1));
    MUST(sim->queue->host_call(device, bad, called, &was_called));
    MUST(sim->queue->event_record(device, event, bad));
    MUST(sim->queue->wait_event(device, good, event));          /* passes although the queue failed */
    MUST(sim_add(device, good, 1, &y, 5));
    MUST(sim->queue->synchronize(device, good));
    MUST(sim->queue->event_synchronize(device, event));
    MUST(sim->queue->event_query(device, event, &done));
    REQUIRE_EQ(done, true);
    REQUIRE_EQ(value_of(device, &x), 1);                             /* the first op ran, later ones were dropped */
    REQUIRE_EQ(was_called, false);
    MUST_FAIL(sim->queue->synchronize(device, bad), CTRT_ERR_BACKEND, "sim:0, queue 1: add (f32), call 57: failed by fault op:add@2");
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_BACKEND, "call 57");
    MUST_FAIL(sim->queue->query(device, bad, &idle), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(idle, true);
    MUST_FAIL(sim->queue->error(device, bad, &sequence), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(sequence, 57);
    MUST(sim->queue->error(device, good, &sequence));
    REQUIRE_EQ(sequence, 0);
    REQUIRE_EQ(value_of(device, &y), 5);
    void *block = sim_alloc(device, 512);                       /* allocations do not depend on the error */
    sim->memory->free(device, block, 512);
    MUST(sim->queue->reset(device, bad));
    MUST(sim_add(device, bad, 59, &x, 1));
    MUST(sim->queue->synchronize(device, bad));
    REQUIRE_EQ(value_of(device, &x), 2);
    REQUIRE_EQ(sim_counted(0).failures, 1);

    /* Fails the third op, of any kind, counted from now. */
    MUST(control->inject(0, "op:3"));
    MUST(sim_add(device, good, 1, &y, 1));
    MUST(sim_run_op(device, good, 2, "neg", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST(sim_run_op(device, good, 3, "abs", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST_FAIL(sim->queue->synchronize(device, good), CTRT_ERR_BACKEND, "abs (f32), call 3");
    REQUIRE_EQ(value_of(device, &y), -6);
    sim->queue->event_destroy(device, event);
    sim->device->close(device);
}

/* An error of the kernel itself is reported with the kernel's status and message. */
static void kernels_refuse(void)
{
    float table[4] = { 1, 2, 3, 4 };
    int64_t wrong = 9;
    void *device = sim_open("devices=1,memory=1m", 0);
    ctrt_view x = { .data = sim_upload(device, table, sizeof table), .numel = 4, .dtype = CTRT_F32, .ndim = 3,
                    .flags = CTRT_VIEW_CONTIGUOUS, .shape = { 1, 4, 1 }, .strides = { 4, 1, 1 } };
    ctrt_view index = { .data = sim_upload(device, &wrong, 8), .numel = 1, .dtype = CTRT_I64, .ndim = 1,
                        .flags = CTRT_VIEW_CONTIGUOUS, .shape = { 1 }, .strides = { 1 } };
    ctrt_view out = x;
    out.data = sim_alloc(device, 4);
    out.numel = out.shape[1] = 1;
    MUST(sim_run_op(device, NULL, 12, "index_select", CTRT_F32, FAKE_VIEWS(&out), 1, FAKE_VIEWS(&x, &index), 2, NULL));
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_INVALID_ARGUMENT, "index_select (f32), call 12: index_select: index 9 at");
    sim->device->close(device);
}

static void copies_corrupt(void)
{
    enum { N = 1001 };
    char host[N], back[N];
    int wrong = 0;
    void *device = sim_open("devices=1,memory=1m,fault=copy:2", 0);
    memset(host, 5, N);
    void *x = sim_upload(device, host, N);
    sim_download(device, back, x, N);
    for (int i = 0; i < N; i++)
        wrong += back[i] != host[i];
    REQUIRE_EQ(wrong, 1);
    sim_download(device, back, x, N);
    REQUIRE_EQ(memcmp(back, host, N), 0);
    sim->device->close(device);
}

static void a_device_is_lost(void)
{
    float zero = 0;
    uint64_t bytes;
    void *device = sim_open("devices=2,memory=1m", 0), *other = sim_open("devices=2,memory=1m", 1);
    void *event = NULL, *more = NULL, *queue = NULL;
    ctrt_view x = sim_vector(sim_upload(device, &zero, 4), 1), y = sim_vector(sim_upload(other, &zero, 4), 1);
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->create(device, &queue, 0));
    MUST(control->inject(0, "lost:3"));
    MUST(control->set_latency(0, 2000000));
    for (int i = 0; i < 5; i++) {
        ctrt_status status = sim_add(device, NULL, (uint64_t)i + 1, &x, 1);
        REQUIRE(!(status != CTRT_OK && status != CTRT_ERR_DEVICE_LOST), "launch %d gives %d", i, (int)status);
    }
    MUST(sim->queue->event_record(device, event, NULL));
    MUST(sim->queue->wait_event(other, NULL, event));
    MUST(sim_add(other, NULL, 1, &y, 3));
    REQUIRE_EQ(value_of(other, &y), 3);                              /* the other device works */
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_DEVICE_LOST, "sim:0, queue 0: sim:0 is lost (fault lost:3)");
    MUST_FAIL(sim->queue->synchronize(device, queue), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim_add(device, queue, 1, &x, 1), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy(device, NULL, x.data, &zero, 4, CTRT_COPY_TO_DEVICE), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy_peer(other, y.data, device, x.data, 4, NULL), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim->queue->reset(device, NULL), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->device->memory_info(device, &bytes, &bytes), CTRT_ERR_DEVICE_LOST, "lost");
    sim->memory->free(device, x.data, 4);                       /* freeing memory of a lost device works */
    REQUIRE_EQ(sim_counted(0).live_blocks, 0);
    MUST(control->clear(0));
    MUST(sim->queue->reset(device, NULL));
    x.data = sim_upload(device, &zero, 4);
    MUST(sim_add(device, NULL, 1, &x, 2));
    REQUIRE_EQ(value_of(device, &x), 2);
    sim->queue->event_destroy(device, event);
    sim->device->close(device);
    sim->device->close(other);
}

static void a_link_lies(void)
{
    float seven = 7, one = 1;
    void *a = sim_open("devices=2,memory=1m,fault=link:0-1", 0), *b = sim_open("devices=2,memory=1m,fault=link:0-1", 1);
    ctrt_view x = sim_vector(sim_upload(a, &seven, 4), 1), y = sim_vector(sim_upload(b, &one, 4), 1);
    REQUIRE_EQ(sim->memory->can_access_peer(b, a), true);
    MUST(sim->memory->copy_peer(b, y.data, a, x.data, 4, NULL));
    REQUIRE_EQ(value_of(b, &y), 0);
    FILL(b, NULL, y.data, 1, 4);
    MUST(sim->queue->synchronize(b, NULL));
    MUST(sim->memory->copy_peer(a, x.data, b, y.data, 4, NULL));
    uint32_t bits;
    sim_download(a, &bits, x.data, 4);
    REQUIRE_EQ(bits, 0x01010101);
    sim->device->close(a);
    sim->device->close(b);
}

static void *who_was_first;

static void be_first(void *argument)
{
    void *nobody = NULL;
    __atomic_compare_exchange_n(&who_was_first, &nobody, argument, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* With delays the order across queues varies; the order on each queue does not. */
static void work_comes_late(void)
{
    int first[2] = { 0, 0 };
    void *device = sim_open("devices=1,memory=1m,seed=5", 0), *queue[2];
    MUST(sim->queue->create(device, &queue[0], 0));
    MUST(sim->queue->create(device, &queue[1], 0));
    MUST(control->inject(0, "late:2ms"));
    for (int round = 0; round < 40; round++) {
        who_was_first = NULL;
        MUST(sim->queue->host_call(device, queue[0], be_first, &first[0]));
        MUST(sim->queue->host_call(device, queue[1], be_first, &first[1]));
        MUST(sim->queue->synchronize(device, NULL));
        ++*(int *)who_was_first;
    }
    REQUIRE(!(first[0] == 0 || first[1] == 0), "of 40 rounds the first queue won %d, the second %d", first[0],
            first[1]);
    sim->device->close(device);
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
    group("an error of a kernel is reported");
    kernels_refuse();
    group("a copy fault changes one byte");
    copies_corrupt();
    group("a lost device reports an error in every call until a reset");
    a_device_is_lost();
    group("a link fault copies wrong data");
    a_link_lies();
    group("random delays change the order across queues");
    work_comes_late();
    return done();
}
