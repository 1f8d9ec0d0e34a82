/* SPDX-License-Identifier: Apache-2.0 */
/* Fork with simulated devices: what the child can call, and that neither process waits for work of the other. */
#include "calls.h"
#include "device/device.h"
#include "memory_checks.h"
#include "sims.h"
#include "tensor/tensor.h"

static const ctrt_backend *backend;
static const ctrt_memory_table *memory;
static const ctrt_queue_table *queues;
static void *handle;                    /* of sim:0 */

static void use(ctrt_device *device)
{
    backend = device->backend;
    memory = backend->memory;
    queues = backend->queue;
    handle = device->handle;
}

static void *alloc(size_t bytes)
{
    void *address = NULL;
    CHECK_OK(memory->alloc(handle, &address, bytes));
    return address;
}

static void set_true(void *flag)
{
    atomic_store((atomic_bool *)flag, true);
}

/* Calls every function in a child process with the parent's device, queue, event and address. */
static void every_slot(void *queue, void *event, void *x)
{
    static float one = 1;
    void *out = NULL;
    bool yes;
    double ms;
    uint64_t n;
    CHECK_FAILS(backend->device->memory_info(handle, &n, &n), CTRT_ERR_FORKED, "sim:0 was opened by process");
    CHECK_FAILS(memory->alloc(handle, &out, 512), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(memory->fill(handle, queue, x, 0, 4), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(memory->copy(handle, queue, x, &one, 1, CTRT_COPY_TO_DEVICE), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(memory->host_alloc(handle, &out, 512), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(memory->reserve(handle, &out, 2 * MIB), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(memory->map(handle, x, 2 * MIB), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->create(handle, &out, 0), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->synchronize(handle, queue), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->synchronize(handle, NULL), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->query(handle, queue, &yes), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->host_call(handle, queue, set_true, &yes), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->event_create(handle, &out, false), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->event_record(handle, event, queue), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->wait_event(handle, queue, event), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->event_query(handle, event, &yes), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->event_synchronize(handle, event), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->event_elapsed(handle, event, event, &ms), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->error(handle, queue, &n), CTRT_ERR_FORKED, NULL);
    CHECK_FAILS(queues->reset(handle, queue), CTRT_ERR_FORKED, NULL);
    memory->free(handle, x, 4);
    queues->event_destroy(handle, event);
    queues->destroy(handle, queue);
    backend->device->close(handle);
#ifndef __SANITIZE_THREAD__             /* it cannot start threads in the child of a multithreaded program */
    CHECK_OK(backend->device->open(&handle, 0));
    CHECK_OK(memory->fill(handle, NULL, alloc(4), 0, 4));
    CHECK_OK(queues->synchronize(handle, NULL));
    backend->device->close(handle);
#endif
}

static void fork_beside_work(ctrt_device *device)
{
    CTRT_AUTO(tensor) x = full(0, 1, device);
    void *queue = NULL, *event = NULL;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(queues->create(handle, &queue, 0));
    CHECK_OK(queues->event_create(handle, &event, true));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        CHECK_OK(queues->event_record(handle, event, queue));
        IN_FORK
            every_slot(queue, event, x->view.data);
    }
    CHECK_EQ(total(x), 9);
    queues->event_destroy(handle, event);
    queues->destroy(handle, queue);
}

TEST(fork_beside_queue, "fork with work enqueued: the child gets CTRT_ERR_FORKED, the parent's work goes on")
{
    if (!forks_beside_threads())
        return;
    IN_CHILD("CTRT_SIM=devices=1,latency=20ms") {
        ctrt_device *device = sim_open("sim:0");
        use(device);
        fork_beside_work(device);
    }
}

static atomic_bool told, let_go;

static void wait_to_be_let_go(void *argument)
{
    (void)argument;
    told = true;
    while (!let_go)
        usleep(1000);
}

/* In the child, no work runs for which exit() would have to wait. */
SIM_TEST(exit_beside_work, "a child that calls exit() does not wait for work that runs in the parent",
         "CTRT_SIM=devices=1")
{
    void *queue = NULL;
    CTRT_AUTO(tensor) x = full(0, 1, device);           /* a kernel, whose first run registers the handler for exit */
    CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(queues->create(handle, &queue, 0));
    CHECK_OK(queues->host_call(handle, queue, wait_to_be_let_go, NULL));
    while (!told)
        usleep(1000);
    const double before = clock_seconds();
    CHILD_LOOP(child, ((const char *const[]){ NULL }), exit)
        continue;
    CHECK(clock_seconds() - before < 3, "exit took %.1f s", clock_seconds() - before);
    let_go = true;
    CHECK_OK(queues->synchronize(handle, queue));
    queues->destroy(handle, queue);
}

TEST_MAIN
{
    sim_opened = use;
    return run_tests();
}
