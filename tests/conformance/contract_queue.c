/* SPDX-License-Identifier: Apache-2.0 */
/* contract_queue.c: checks of backends with queues: order, events, failures, captures.
 *
 * Work is delayed by a gate: a call of the host that waits until the check opens the gate. So work behind the
 * gate cannot be done, and no check depends on measured times. A backend without host_call gets copies instead, which
 * take about 200 ms, less if the machine was loaded while their number was measured. So whether they are done is read
 * from memory that the queue fills after them. While a gate is closed, the checks neither allocate nor copy from or to
 * the host, because such a call may wait for the queue; this read may, too, and finds then that they are done. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define dev contract_dev

enum { BLOCK = 1 << 20 };

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static bool gate_is_open, gate_reached;
static unsigned char *slow_done;        /* 1 when the copies are done */
static void *slow_reader;               /* a queue that is not delayed */
static char *slow_blocks;               /* two blocks, and the number of copies between them that take 200 ms */
static size_t slow_bytes;
static int slow_copies;

static void copy_slowly(void *queue, int copies)
{
    for (int i = 0; i < copies; i++)
        dev_copy(queue, slow_blocks + (i % 2 ? slow_bytes : 0), slow_blocks + (i % 2 ? 0 : slow_bytes), slow_bytes,
                 CTRT_COPY_ON_DEVICE);
}

static void slow_measure(void *queue)
{
    slow_done = dev_alloc(64), slow_reader = dev_queue();
    const uint64_t most = (uint64_t)1 << 31, eighth = dev.info.total_memory / 8;
    slow_bytes = (size_t)(eighth > 0 && eighth < most ? eighth : most);
    slow_blocks = dev_alloc(2 * slow_bytes);
    dev_fill(queue, slow_blocks, 0, 2 * slow_bytes);
    copy_slowly(queue, 2);
    dev_wait(queue);
    const double begin = seconds_now();
    copy_slowly(queue, 8);
    dev_wait(queue);
    const double took = (seconds_now() - begin) / 8;
    slow_copies = took > 0.0004 ? (int)(0.2 / took) + 1 : 500;
}

static void gate_wait(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&gate_lock);
    gate_reached = true;
    pthread_cond_broadcast(&gate_changed);
    while (!gate_is_open)
        pthread_cond_wait(&gate_changed, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
}

/* Delays later work on the queue until gate_open. The work before must not be delayed itself. */
static void gate_close(void *queue)
{
    gate_is_open = gate_reached = false;
    if (CTRT_SLOT(dev.queue, host_call)) {
        CALL(dev.queue->host_call(dev.handle, queue, gate_wait, NULL),
             "host_call, which must not wait for the function");
        pthread_mutex_lock(&gate_lock);
        while (!gate_reached)
            pthread_cond_wait(&gate_changed, &gate_lock);
        pthread_mutex_unlock(&gate_lock);
    } else if (slow_blocks == NULL) {
        slow_measure(queue);
    }
    if (slow_blocks == NULL)
        return;
    dev_fill(slow_reader, slow_done, 0, 64);
    dev_wait(slow_reader);
    copy_slowly(queue, slow_copies);
    dev_fill(queue, slow_done, 1, 64);
}

static void gate_open(void)
{
    pthread_mutex_lock(&gate_lock);
    gate_is_open = true;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_lock);
}

/* Whether work behind the gate cannot be done. */
static bool gate_shut(void)
{
    unsigned char done[64] = { 1 };
    if (slow_blocks == NULL)
        return !gate_is_open;
    /* Without contract_step, because the call before is reported. */
    contract_ok(dev.memory->copy(dev.handle, slow_reader, done, slow_done, sizeof done, CTRT_COPY_TO_HOST));
    contract_ok(dev.queue->synchronize(dev.handle, slow_reader));
    return done[0] == 0;
}

/* Whether the gate has been opened; true if there is only slow work. */
static bool gate_passed(void)
{
    return slow_blocks != NULL || gate_is_open;
}

static void *open_later(void *unused)
{
    contract_sleep(40);
    gate_open();
    return unused;
}

/* Opens the gate in 40 ms, so that the caller can wait for work behind it. */
static void gate_open_later(void)
{
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, open_later, NULL) == 0, "no thread can be started");
    pthread_detach(thread);
}

static void *event_new(bool timing)
{
    void *event = NULL;
    CALL(dev.queue->event_create(dev.handle, &event, timing), "event_create");
    EXPECT(event != NULL, "returned CTRT_OK and no event");
    return event;
}

static void queue_record(void *event, void *queue)
{
    CALL(dev.queue->event_record(dev.handle, event, queue), "event_record");
}

static void queue_wait(void *queue, void *event)
{
    CALL(dev.queue->wait_event(dev.handle, queue, event), "wait_event");
}

static bool event_done(void *event)
{
    bool done = false;
    CALL(dev.queue->event_query(dev.handle, event, &done), "event_query");
    return done;
}

static void event_wait(void *event)
{
    CALL(dev.queue->event_synchronize(dev.handle, event), "event_synchronize");
}

/* A block filled with `byte`. */
static char *filled_block(int byte)
{
    char *block = dev_alloc(BLOCK);
    dev_fill(dev.stream, block, byte, BLOCK);
    dev_wait(dev.stream);
    return block;
}

/* ---- queues ---- */

static void check_queue_create(void)
{
    void *queues[8], *block = filled_block(0);
    size_t before = 0;
    long blocks = 0;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 8; i++) {
            CALL(dev.queue->create(dev.handle, &queues[i], (i - 4) * 50), "create of a queue of priority %d",
                 (i - 4) * 50);
            dev_fill(queues[i], block, i, BLOCK);
        }
        for (int i = 0; i < 8; i++) {
            for (int k = 0; k < i; k++)
                EXPECT(queues[i] != queues[k], "two queues have one handle");
            dev_wait(queues[i]);
            contract_step("destroy of a queue");
            dev.queue->destroy(dev.handle, queues[i]);
        }
        if (round == 9) {
            before = contract_space();
            blocks = contract_host_blocks();
        }
    }
    /* Backends may free a queue some time later. 400 threads have stacks of 3200 MiB. */
    EXPECT(contract_host_blocks() < blocks + 100, "%ld blocks of host->alloc were not freed after 400 queues",
           contract_host_blocks() - blocks);
    EXPECT(contract_space() < before + ((size_t)1 << 30), "the process grew by %zu MiB while queues were created and "
           "destroyed", (contract_space() - before) >> 20);
}

static void check_queue_order(void)
{
    enum { PARTS = 100, PART = BLOCK / 128 };
    char *a = filled_block(0), *b = filled_block(0);
    gate_close(dev.stream);
    for (int i = 0; i < PARTS; i++) {
        dev_fill(dev.stream, a, i, PART);
        dev_copy(dev.stream, b + i * PART, a, PART, CTRT_COPY_ON_DEVICE);
    }
    gate_open();
    dev_wait(dev.stream);
    for (int i = 0; i < PARTS; i++)
        dev_expect_bytes(b + i * PART, PART, i, "a copy of memory that was filled before and after the copy");
}

static void check_synchronize(void)
{
    char *a = filled_block(0);
    for (int i = 0; i < 2; i++) {
        gate_close(dev.stream);
        dev_fill(dev.stream, a, 5 + i, BLOCK);
        gate_open_later();
        dev_wait(i == 0 ? dev.stream : NULL);
        EXPECT(gate_passed(), "%s returned before the work on the queue was done",
               i == 0 ? "synchronize of a queue" : "synchronize of all queues (NULL)");
        gate_open();
        dev_expect_bytes(a, BLOCK, 5 + i, "filled memory");
    }
}

static void check_query(void)
{
    char *a = filled_block(0);
    bool idle = false;
    if (!CTRT_SLOT(dev.queue, query))
        contract_skip("it has no query");
    CALL(dev.queue->query(dev.handle, dev.stream, &idle), "query of an idle queue");
    EXPECT(idle, "wrote false");
    gate_close(dev.stream);
    dev_fill(dev.stream, a, 5, BLOCK);
    CALL(dev.queue->query(dev.handle, dev.stream, &idle), "query of a queue with work");
    EXPECT(!idle || !gate_shut(), "wrote true, although the queue has work that is not done");
    gate_open();
    dev_wait(dev.stream);
    CALL(dev.queue->query(dev.handle, dev.stream, &idle), "query after synchronize");
    EXPECT(idle, "wrote false");
}

static void check_concurrent(void)
{
    char *a = filled_block(0);
    void *other = dev_queue();
    gate_close(dev.stream);
    dev_fill(other, a, 5, BLOCK);
    contract_step("synchronize of a queue, while another queue's work is delayed");
    contract_ok(dev.queue->synchronize(dev.handle, other));
    gate_open();
    dev_expect_bytes(a, BLOCK, 5, "memory filled on the other queue");
}

static void check_destroy(void)
{
    char *a = filled_block(0);
    void *queue = dev_queue(), *event = event_new(false);
    gate_close(queue);
    dev_fill(queue, a, 5, BLOCK);
    queue_record(event, queue);
    gate_open_later();
    contract_step("destroy of a queue with work");
    dev.queue->destroy(dev.handle, queue);
    event_wait(event);
    dev_expect_bytes(a, BLOCK, 5, "memory filled by work of a queue that was destroyed before the work ran");
}

static atomic_int calls;
static int call_order[100];

static void note_call(void *argument)
{
    call_order[atomic_fetch_add(&calls, 1) % 100] = (int)(intptr_t)argument;
}

static void check_host_call(void)
{
    char *a = filled_block(0);
    if (!CTRT_SLOT(dev.queue, host_call))
        contract_skip("it has no host_call");
    gate_close(dev.stream);
    for (intptr_t i = 0; i < 100; i++) {
        dev_fill(dev.stream, a, (int)i, BLOCK);
        CALL(dev.queue->host_call(dev.handle, dev.stream, note_call, (void *)i), "host_call");
    }
    contract_sleep(10);
    EXPECT(calls == 0, "a function was called before the work that was enqueued before it was done");
    gate_open();
    dev_wait(dev.stream);
    EXPECT(calls == 100, "%d of 100 functions were called before synchronize returned", (int)calls);
    for (int i = 0; i < 100; i++)
        EXPECT(call_order[i] == i, "call %d was the %d. in the order of enqueueing", i, call_order[i]);
}

static void check_kernel_async(void)
{
    struct dev_call kernel_call;
    dev_call_new(&kernel_call, 5000, 3);
    if (CTRT_SLOT(kernel_call.kernel, workspace))
        contract_skip("the kernel has a workspace");
    for (int form = PLAIN; form <= SCALAR; form += SCALAR) {
        gate_close(dev.stream);
        dev_call_run(&kernel_call, dev.stream, form);
        contract_sleep(5);
        gate_open();
        dev_call_check(&kernel_call, dev.stream);
    }
}

/* ---- events ---- */

static void check_event_unrecorded(void)
{
    void *event = event_new(false);
    EXPECT(event_done(event), "an event that was never recorded is not done");
    event_wait(event);
    queue_wait(dev.stream, event);
    dev_wait(dev.stream);
    dev.queue->event_destroy(dev.handle, event);
}

static void check_event_query(void)
{
    char *a = filled_block(0);
    void *event = event_new(false);
    for (int i = 1; i < 3; i++) {
        gate_close(dev.stream);
        dev_fill(dev.stream, a, i, BLOCK);
        queue_record(event, dev.stream);
        contract_sleep(5);
        EXPECT(!event_done(event) || !gate_shut(), "an event is done before the work that was enqueued before it");
        gate_open();
        for (int wait = 0; wait < 1000 && !event_done(event); wait++)
            contract_sleep(1);
        EXPECT(event_done(event), "an event is not done 1 s after the work before it");
        dev_expect_bytes(a, BLOCK, i, "memory filled before the event");
    }
}

static void check_event_synchronize(void)
{
    char *a = filled_block(0);
    void *event = event_new(false);
    gate_close(dev.stream);
    dev_fill(dev.stream, a, 5, BLOCK);
    queue_record(event, dev.stream);
    gate_open_later();
    event_wait(event);
    EXPECT(gate_passed(), "returned before the work that was enqueued before the event was done");
    EXPECT(event_done(event), "after event_synchronize, the event is not done");
    dev_expect_bytes(a, BLOCK, 5, "filled memory");
}

/* A queue waits for an event of a delayed queue. Then the event is recorded again on an idle queue, or destroyed. */
static void check_waits(bool again)
{
    char *a = filled_block(1), *b = filled_block(2);
    void *other = dev_queue(), *third = dev_queue(), *event = event_new(false), *last = event_new(false);
    gate_close(dev.stream);
    dev_fill(dev.stream, a, 7, BLOCK);
    queue_record(event, dev.stream);
    queue_wait(other, event);
    if (again)
        queue_record(event, third);
    else
        dev.queue->event_destroy(dev.handle, event);
    dev_copy(other, b, a, BLOCK, CTRT_COPY_ON_DEVICE);
    queue_record(last, other);
    contract_sleep(15);
    EXPECT(!event_done(last) || !gate_shut(),
           "work after wait_event was done before the work that the event stands for");
    gate_open();
    event_wait(last);
    dev_expect_bytes(b, BLOCK, 7, "a copy after wait_event");
}

static void check_event_wait(void)
{
    check_waits(false);
}

static void check_event_again(void)
{
    check_waits(true);
}

static void check_event_elapsed(void)
{
    char *a = filled_block(0);
    void *from = event_new(true), *to = event_new(true);
    double milliseconds = -1;
    if (!CTRT_SLOT(dev.queue, event_elapsed))
        contract_skip("it has no event_elapsed");
    queue_record(from, dev.stream);
    gate_close(dev.stream);
    dev_fill(dev.stream, a, 5, BLOCK);
    queue_record(to, dev.stream);
    gate_open_later();
    event_wait(to);
    CALL(dev.queue->event_elapsed(dev.handle, from, to, &milliseconds), "event_elapsed");
    EXPECT(milliseconds > 20 && milliseconds < 60000, "wrote %g ms for work of at least 40 ms", milliseconds);
}

static void check_event_many(void)
{
    void *event = event_new(false), *others[64];
    long before = 0;
    for (int i = 0; i < 3000; i++) {
        others[i % 64] = event_new(false);
        queue_record(event, dev.stream);
        queue_record(others[i % 64], dev.stream);
        queue_wait(dev.stream, event);
        dev.queue->event_destroy(dev.handle, others[i % 64]);
        if (i % 100 == 99)
            dev_wait(dev.stream);
        if (i == 999)
            before = contract_host_blocks();
    }
    EXPECT(contract_host_blocks() < before + 100, "%ld blocks of host->alloc were not freed after 2000 events",
           contract_host_blocks() - before);
}

/* ---- stream-ordered allocation ---- */

static char *alloc_on(size_t bytes, void *queue)
{
    void *address = NULL;
    CALL(dev.memory->alloc_on(dev.handle, &address, bytes, queue), "alloc_on of %zu bytes", bytes);
    EXPECT(address != NULL && (uintptr_t)address % 64 == 0, "returned %p", address);
    return address;
}

static void free_on(char *address, size_t bytes, void *queue)
{
    contract_step("free_on");
    dev.memory->free_on(dev.handle, address, bytes, queue);
}

static void check_ordered(void)
{
    if (!CTRT_SLOT(dev.memory, ordered) || !dev.memory->ordered(dev.handle))
        contract_skip("the device has no stream-ordered allocation");
    const size_t quarter = (size_t)(dev.info.total_memory / 4);
    char *b = filled_block(0);
    void *other = dev_queue();
    for (int i = 0; i < 12; i++) {
        char *a = alloc_on(quarter, dev.stream);
        dev_fill(dev.stream, a, i, BLOCK);
        dev_expect_bytes(a, BLOCK, i, "memory of alloc_on");
        free_on(a, quarter, dev.stream);
    }
    for (int i = 1; i < 20; i++) {
        char *a = alloc_on(BLOCK, dev.stream);
        gate_close(dev.stream);
        dev_fill(dev.stream, a, i, BLOCK);
        dev_copy(dev.stream, b, a, BLOCK, CTRT_COPY_ON_DEVICE);
        free_on(a, BLOCK, dev.stream);
        char *c = alloc_on(BLOCK, other);               /* other memory, or the same after that work */
        dev_fill(other, c, 0x77, BLOCK);
        contract_sleep(2);
        gate_open();
        dev_wait(other);
        dev_expect_bytes(b, BLOCK, i, "a copy of memory that was freed after the copy was enqueued");
        dev_expect_bytes(c, BLOCK, 0x77, "memory of alloc_on, after another free_on");
        free_on(c, BLOCK, other);
    }
    contract_step("trim");
    dev.memory->trim(dev.handle);
    dev_free(dev_alloc(quarter), quarter);
}

/* ---- failures ---- */

/* Runs a kernel whose index is out of range. Returns the status of run. */
static ctrt_status run_badly(const ctrt_kernel *kernel, void *queue, uint64_t sequence)
{
    const int64_t indices[2] = { 0, 99 };
    void *x = dev_alloc(64), *index = dev_alloc(64), *out = dev_alloc(64);
    dev_fill(queue, x, 0, 64);
    dev_upload(index, indices, sizeof indices);
    ctrt_view views[3] = {
        { .data = x, .numel = 4, .dtype = CTRT_F32, .ndim = 3, .flags = 1, .shape = { 1, 4, 1 }, .strides = { 4, 1,
                                                                                                              1 } },
        { .data = index, .numel = 2, .dtype = CTRT_I64, .ndim = 1, .flags = 1, .shape = { 2 }, .strides = { 1 } },
        { .data = out, .numel = 2, .dtype = CTRT_F32, .ndim = 3, .flags = 1, .shape = { 1, 2, 1 }, .strides = { 2, 1,
                                                                                                                1 } },
    };
    const ctrt_view *const inputs[] = { &views[0], &views[1] }, *const outputs[] = { &views[2] };
    const ctrt_call bad = { .size = sizeof bad, .device = dev.handle, .queue = queue, .inputs = inputs, .n_inputs = 2,
                            .outputs = outputs, .n_outputs = 1, .kernel = kernel, .sequence = sequence };
    if (CTRT_SLOT(dev.table->kernels, prepare))
        CALL(dev.table->kernels->prepare(dev.handle), "prepare of the kernels");
    contract_step("run of index_select with an index out of range");
    return kernel->run(&bad);
}

static void check_queue_failure(void)
{
    const ctrt_kernel *kernel = dev_kernel("index_select");
    void *queue = dev_queue(), *other = dev_queue(), *event = event_new(false);
    char *a = filled_block(1);
    uint64_t sequence = 0;
    if (kernel == NULL)
        contract_skip("it has no kernel of index_select for f32, which can fail");
    ctrt_status status = run_badly(kernel, queue, 41);
    if (status != CTRT_OK)
        contract_skip("index_select fails at once");
    CALL(dev.queue->event_record(dev.handle, event, queue), "event_record after work that fails");
    CALL(dev.queue->wait_event(dev.handle, other, event), "wait_event for an event of a failed queue");
    REFUSES(dev.queue->synchronize(dev.handle, queue), CTRT_OK, "synchronize of a queue whose kernel failed");
    EXPECT(strstr(contract_failure.text, "index_select") != NULL, "the message does not name the op: %s",
           contract_failure.text);
    contract_step("event_synchronize after a failure");
    (void)dev.queue->event_synchronize(dev.handle, event);
    (void)dev.memory->fill(dev.handle, queue, a, 2, BLOCK);
    (void)dev.queue->synchronize(dev.handle, queue);
    dev_expect_bytes(a, BLOCK, 1,
                     "memory filled by work that was enqueued after the failure was reported, which must be dropped");
    dev_fill(other, a, 3, BLOCK);
    CALL(dev.queue->synchronize(dev.handle, other), "synchronize of another queue than the failed one");
    dev_expect_bytes(a, BLOCK, 3, "memory filled on another queue than the failed one");
    if (CTRT_SLOT(dev.queue, error)) {
        REFUSES(dev.queue->error(dev.handle, queue, &sequence), CTRT_OK, "error of a failed queue");
        EXPECT(sequence == 41, "wrote the sequence %llu of the call 41", (unsigned long long)sequence);
    }
    if (!CTRT_SLOT(dev.queue, reset))
        return;
    CALL(dev.queue->reset(dev.handle, queue), "reset");
    dev_fill(queue, a, 4, BLOCK);
    CALL(dev.queue->synchronize(dev.handle, queue), "synchronize after reset");
    dev_expect_bytes(a, BLOCK, 4, "memory filled after reset");
}

/* ---- captures ---- */

static const ctrt_capture_table *capture;

static void *capture_graph(void *queue)
{
    void *graph = NULL;
    CALL(capture->end(dev.handle, queue, &graph), "end of a capture");
    EXPECT(graph != NULL, "returned CTRT_OK and no graph");
    dev_wait(queue);
    return graph;
}

static void check_capture(void)
{
    char *a = filled_block(1), *b = filled_block(2), *c = filled_block(3), *seen = filled_block(0);
    void *other = dev_queue(), *third = dev_queue(), *fork = event_new(false), *join = event_new(false);
    void *none = NULL;
    if (!CTRT_SLOT(dev.table, capture))
        contract_skip("it has no captures");
    capture = dev.table->capture;
    REFUSES(capture->end(dev.handle, third, &none), CTRT_OK, "end of a capture that was not begun");
    for (int round = 0; round < 3; round++) {
        CALL(capture->begin(dev.handle, dev.stream), "begin of a capture");
        dev_fill(dev.stream, a, 7 + round, BLOCK);
        queue_record(fork, dev.stream);
        queue_wait(other, fork);
        dev_copy(other, c, a, BLOCK, CTRT_COPY_ON_DEVICE);
        queue_record(join, other);
        queue_wait(dev.stream, join);
        dev_copy(dev.stream, b, c, BLOCK, CTRT_COPY_ON_DEVICE);
        CALL(dev.queue->synchronize(dev.handle, NULL), "synchronize of all queues that are not captured");
        void *graph = capture_graph(dev.stream);
        dev_expect_bytes(b, BLOCK, 2, "memory that captured work would fill, before a replay");
        for (int i = 0; i < 2; i++) {
            dev_fill(dev.stream, a, 1, BLOCK);
            dev_fill(dev.stream, b, 2, BLOCK);
            dev_wait(dev.stream);
            void *queue = i == 0 ? dev.stream : third;
            gate_close(queue);
            CALL(capture->replay(dev.handle, graph, queue), "replay");
            dev_fill(queue, a, 9, BLOCK);
            if (i > 0)
                dev_copy(dev.stream, seen, b, BLOCK, CTRT_COPY_ON_DEVICE);
            if (i > 0 && gate_shut())
                dev_wait(dev.stream);
            gate_open();
            dev_wait(queue);
            if (i > 0)
                dev_expect_bytes(seen, BLOCK, 2, "memory before a replay on another queue, whose work is delayed");
            dev_expect_bytes(b, BLOCK, 7 + round, "memory after a replay");
            dev_expect_bytes(a, BLOCK, 9, "memory filled after a replay");
        }
        contract_step("destroy of a graph");
        capture->destroy(dev.handle, graph);
        dev_fill(dev.stream, b, 2, BLOCK);
        dev_wait(dev.stream);
        dev_expect_bytes(b, BLOCK, 2, "memory filled after a capture has ended");
    }
}

static void check_capture_kernel(void)
{
    struct dev_call kernel_call;
    if (!CTRT_SLOT(dev.table, capture))
        contract_skip("it has no captures");
    capture = dev.table->capture;
    dev_call_new(&kernel_call, 5000, 3);
    const size_t bytes = (size_t)kernel_call.n * sizeof(float);
    CALL(capture->begin(dev.handle, dev.stream), "begin of a capture");
    dev_call_run(&kernel_call, dev.stream, SCALAR);
    void *graph = capture_graph(dev.stream);
    dev_expect_bytes(kernel_call.out, bytes, 0x5a, "the output of a captured kernel, before a replay");
    for (int i = 0; i < 20; i++)
        CALL(capture->replay(dev.handle, graph, dev.stream), "replay");
    dev_call_check(&kernel_call, dev.stream);
}

#define Q (NEEDS_OPEN | NEEDS_QUEUES)
const struct contract_check contract_queue_checks[] = {
    { "queue.create", check_queue_create, Q, "queues of any priority can be created and destroyed" },
    { "queue.order", check_queue_order, Q, "the work of one queue runs in the order in which it was enqueued" },
    { "queue.synchronize", check_synchronize, Q,
      "synchronize waits for all work that is on the queue; NULL: all queues" },
    { "queue.query", check_query, Q, "query writes whether all work of the queue is done" },
    { "queue.concurrent", check_concurrent, Q, "queues run concurrently" },
    { "queue.destroy", check_destroy, Q, "work that is on a queue when it is destroyed still runs" },
    { "queue.host_call", check_host_call, Q, "host_call returns at once; the functions are called in order" },
    { "kernel.async", check_kernel_async, Q, "what a call points to is valid only until run returns" },
    { "event.unrecorded", check_event_unrecorded, Q, "an event that was never recorded is done" },
    { "event.query", check_event_query, Q, "an event is done when the work that was on the queue is done" },
    { "event.synchronize", check_event_synchronize, Q, "event_synchronize waits for that work" },
    { "event.wait", check_event_wait, Q,
      "wait_event orders later work of the queue; the event may be destroyed at once" },
    { "event.again", check_event_again, Q, "recording an event again does not change earlier waits" },
    { "event.elapsed", check_event_elapsed, Q, "event_elapsed writes milliseconds" },
    { "event.many", check_event_many, Q, "events are freed" },
    { "memory.ordered", check_ordered, Q, "memory of free_on is freed when the work before is done; alloc_on uses it" },
    { "queue.failure", check_queue_failure, Q,
      "a failure that was reported drops later work of its queue, until reset; events are reached" },
    { "capture", check_capture, Q, "captured work runs at each replay, and not before, in order with other queues" },
    { "capture.kernel", check_capture_kernel, Q, "a kernel's call is captured with the values at its capture" },
    { NULL, NULL, 0, NULL },
};
