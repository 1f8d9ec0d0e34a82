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
    FAILS(FORKED, (backend->device->memory_info(handle, &n, &n), "sim:0 was opened by process"),
          (memory->alloc(handle, &out, 512), NULL), (memory->fill(handle, queue, x, 0, 4), NULL),
          (memory->copy(handle, queue, x, &one, 1, CTRT_COPY_TO_DEVICE), NULL),
          (memory->host_alloc(handle, &out, 512), NULL), (memory->reserve(handle, &out, 2 * MIB), NULL),
          (memory->map(handle, x, 2 * MIB), NULL), (queues->create(handle, &out, 0), NULL),
          (queues->synchronize(handle, queue), NULL), (queues->synchronize(handle, NULL), NULL));
    FAILS(FORKED, (queues->query(handle, queue, &yes), NULL), (queues->host_call(handle, queue, set_true, &yes), NULL),
          (queues->event_create(handle, &out, false), NULL), (queues->event_record(handle, event, queue), NULL),
          (queues->wait_event(handle, queue, event), NULL), (queues->event_query(handle, event, &yes), NULL),
          (queues->event_synchronize(handle, event), NULL), (queues->event_elapsed(handle, event, event, &ms), NULL),
          (queues->error(handle, queue, &n), NULL), (queues->reset(handle, queue), NULL));
    memory->free(handle, x, 4);
    queues->event_destroy(handle, event);
    queues->destroy(handle, queue);
    backend->device->close(handle);
#ifndef __SANITIZE_THREAD__             /* it cannot start threads in the child of a multithreaded program */
    OK(backend->device->open(&handle, 0), memory->fill(handle, NULL, alloc(4), 0, 4),
       queues->synchronize(handle, NULL));
    backend->device->close(handle);
#endif
}

SIM_TEST(fork_beside_work, "fork with work enqueued: the child gets CTRT_ERR_FORKED, the parent's work goes on",
         "CTRT_SIM=devices=1,latency=20ms")
{
    CTRT_AUTO(tensor) x = full(0, 1, device);
    void *queue = NULL, *event = NULL;
    OK(ctrt_device_synchronize(device), queues->create(handle, &queue, 0), queues->event_create(handle, &event, true));
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
    OK(ctrt_add_scalar_(x, ctrt_float(1)), ctrt_device_synchronize(device), queues->create(handle, &queue, 0),
       queues->host_call(handle, queue, wait_to_be_let_go, NULL));
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
