/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated devices: what goes wrong by request or by mistake: faults, errors and reset, the host in device memory, fork,
 * no memory on the host, and that closing gives everything back. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

static void allocations_fail(void **state)
{
    void *more = NULL, *a, *b;
    (void)state;
    void *device = sim_open("devices=1,memory=8m,fault=alloc:2;host:1", 0);
    a = sim_alloc(device, 512);
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2");
    EQUAL(more == NULL, 1);
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
    EQUAL(c.allocs, 3);
    EQUAL(c.live_bytes, 1024 + (2 << 20));
    sim->memory->free(device, b, 512);
    sim->memory->free(device, a, 512);
    sim->device->close(device);
    MUST_FAIL(control->inject(0, "alloc:1"), CTRT_ERR_NO_DEVICE, "sim:0 is not open");
}

static void faults_of_one_device(void **state)
{
    void *more = NULL;
    (void)state;
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

static void ops_fail(void **state)
{
    float zero = 0;
    bool idle, done, was_called = false;
    uint64_t sequence = 99;
    (void)state;
    void *device = sim_open("devices=1,memory=1m,fault=op:add@2", 0), *bad = NULL, *good = NULL, *event = NULL;
    ctrt_view x = sim_vector(sim_upload(device, &zero, 4), 1), y = sim_vector(sim_upload(device, &zero, 4), 1);
    MUST(sim->queue->create(device, &bad, 0));
    MUST(sim->queue->create(device, &good, 0));
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->error(device, bad, &sequence));
    EQUAL(sequence, 0);
    MUST(sim_add(device, bad, 56, &x, 1));
    MUST(sim_add(device, bad, 57, &x, 1));                      /* fails, which nobody hears yet */
    MUST(sim_add(device, bad, 58, &x, 1));
    MUST(sim->queue->host_call(device, bad, called, &was_called));
    MUST(sim->queue->event_record(device, event, bad));
    MUST(sim->queue->wait_event(device, good, event));          /* comes through all the same */
    MUST(sim_add(device, good, 1, &y, 5));
    MUST(sim->queue->synchronize(device, good));
    MUST(sim->queue->event_synchronize(device, event));
    MUST(sim->queue->event_query(device, event, &done));
    EQUAL(done, true);
    EQUAL(value_of(device, &x), 1);                             /* the first ran, what followed was dropped */
    EQUAL(was_called, false);
    MUST_FAIL(sim->queue->synchronize(device, bad), CTRT_ERR_BACKEND, "sim:0, queue 1: add (f32), call 57: failed by fault op:add@2");
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_BACKEND, "call 57");
    MUST_FAIL(sim->queue->query(device, bad, &idle), CTRT_ERR_BACKEND, "call 57");
    EQUAL(idle, true);
    MUST_FAIL(sim->queue->error(device, bad, &sequence), CTRT_ERR_BACKEND, "call 57");
    EQUAL(sequence, 57);
    MUST(sim->queue->error(device, good, &sequence));
    EQUAL(sequence, 0);
    EQUAL(value_of(device, &y), 5);
    void *block = sim_alloc(device, 512);                       /* allocations have nothing to do with it */
    sim->memory->free(device, block, 512);
    MUST(sim->queue->reset(device, bad));
    MUST(sim_add(device, bad, 59, &x, 1));
    MUST(sim->queue->synchronize(device, bad));
    EQUAL(value_of(device, &x), 2);
    EQUAL(sim_counted(0).failures, 1);

    /* Any op, whichever comes third; counted from now. */
    MUST(control->inject(0, "op:3"));
    MUST(sim_add(device, good, 1, &y, 1));
    MUST(sim_run_op(device, good, 2, "neg", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST(sim_run_op(device, good, 3, "abs", CTRT_F32, FAKE_VIEWS(&y), 1, FAKE_VIEWS(&y), 1, NULL));
    MUST_FAIL(sim->queue->synchronize(device, good), CTRT_ERR_BACKEND, "abs (f32), call 3");
    EQUAL(value_of(device, &y), -6);
    sim->queue->event_destroy(device, event);
    sim->device->close(device);
}

/* What the kernel itself refuses comes out with the kernel's status and words. */
static void kernels_refuse(void **state)
{
    float table[4] = { 1, 2, 3, 4 };
    int64_t wrong = 9;
    (void)state;
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

static void copies_corrupt(void **state)
{
    enum { N = 1001 };
    char host[N], back[N];
    int wrong = 0;
    (void)state;
    void *device = sim_open("devices=1,memory=1m,fault=copy:2", 0);
    memset(host, 5, N);
    void *x = sim_upload(device, host, N);
    sim_download(device, back, x, N);
    for (int i = 0; i < N; i++)
        wrong += back[i] != host[i];
    EQUAL(wrong, 1);
    sim_download(device, back, x, N);
    EQUAL(memcmp(back, host, N), 0);
    sim->device->close(device);
}

static void a_device_is_lost(void **state)
{
    float zero = 0;
    uint64_t bytes;
    (void)state;
    void *device = sim_open("devices=2,memory=1m", 0), *other = sim_open("devices=2,memory=1m", 1);
    void *event = NULL, *more = NULL, *queue = NULL;
    ctrt_view x = sim_vector(sim_upload(device, &zero, 4), 1), y = sim_vector(sim_upload(other, &zero, 4), 1);
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->create(device, &queue, 0));
    MUST(control->inject(0, "lost:3"));
    MUST(control->set_latency(0, 2000000));
    for (int i = 0; i < 5; i++) {
        ctrt_status status = sim_add(device, NULL, (uint64_t)i + 1, &x, 1);
        if (status != CTRT_OK && status != CTRT_ERR_DEVICE_LOST)
            fail_msg("launch %d gives %d", i, (int)status);
    }
    MUST(sim->queue->event_record(device, event, NULL));
    MUST(sim->queue->wait_event(other, NULL, event));
    MUST(sim_add(other, NULL, 1, &y, 3));
    EQUAL(value_of(other, &y), 3);                              /* nobody hangs, the other device works */
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_DEVICE_LOST, "sim:0, queue 0: sim:0 is lost (fault lost:3)");
    MUST_FAIL(sim->queue->synchronize(device, queue), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim_add(device, queue, 1, &x, 1), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->alloc(device, &more, 512), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy(device, NULL, x.data, &zero, 4, CTRT_COPY_TO_DEVICE), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->memory->copy_peer(other, y.data, device, x.data, 4, NULL), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    MUST_FAIL(sim->queue->reset(device, NULL), CTRT_ERR_DEVICE_LOST, "lost");
    MUST_FAIL(sim->device->memory_info(device, &bytes, &bytes), CTRT_ERR_DEVICE_LOST, "lost");
    sim->memory->free(device, x.data, 4);                       /* giving back works, as everywhere */
    EQUAL(sim_counted(0).live_blocks, 0);
    MUST(control->clear(0));
    MUST(sim->queue->reset(device, NULL));
    x.data = sim_upload(device, &zero, 4);
    MUST(sim_add(device, NULL, 1, &x, 2));
    EQUAL(value_of(device, &x), 2);
    sim->queue->event_destroy(device, event);
    sim->device->close(device);
    sim->device->close(other);
}

static void a_link_lies(void **state)
{
    float seven = 7, one = 1;
    (void)state;
    void *a = sim_open("devices=2,memory=1m,fault=link:0-1", 0), *b = sim_open("devices=2,memory=1m,fault=link:0-1", 1);
    ctrt_view x = sim_vector(sim_upload(a, &seven, 4), 1), y = sim_vector(sim_upload(b, &one, 4), 1);
    EQUAL(sim->memory->can_access_peer(b, a), true);
    MUST(sim->memory->copy_peer(b, y.data, a, x.data, 4, NULL));
    EQUAL(value_of(b, &y), 0);
    FILL(b, NULL, y.data, 1, 4);
    MUST(sim->queue->synchronize(b, NULL));
    MUST(sim->memory->copy_peer(a, x.data, b, y.data, 4, NULL));
    uint32_t bits;
    sim_download(a, &bits, x.data, 4);
    EQUAL(bits, 0x01010101);
    sim->device->close(a);
    sim->device->close(b);
}

static void *who_was_first;

static void be_first(void *argument)
{
    void *nobody = NULL;
    __atomic_compare_exchange_n(&who_was_first, &nobody, argument, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* With delays the order across queues changes from time to time; the order on each does not. */
static void work_comes_late(void **state)
{
    int first[2] = { 0, 0 };
    (void)state;
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
    if (first[0] == 0 || first[1] == 0)
        fail_msg("of 40 rounds the first queue won %d, the second %d", first[0], first[1]);
    sim->device->close(device);
}

/* ---- the host in device memory ---- */

/* Runs `function` in a child. Its exit status, or 256 + the signal that ended it; `said` receives its stderr. */
static int in_child(int (*function)(void), char *said, size_t bytes)
{
    int ends[2];
    ssize_t used = 0, got;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);       /* cmocka's would jump back into the test */
        alarm(60);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        _exit(function());
    }
    close(ends[1]);
    while ((got = read(ends[0], said + used, bytes - 1 - (size_t)used)) > 0)
        used += got;
    said[used] = '\0';
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static char *touched;                   /* where the child's device memory lies */

static void *child_device(void)
{
    void *device = sim_open("devices=1,memory=4m", 0), *block = NULL;
    sim->memory->alloc(device, &block, 100);
    sim->memory->alloc(device, &block, 1000);
    touched = block;
    return device;
}

static int reads(void)
{
    child_device();
    return *(volatile char *)(touched + 24);
}

static int writes(void)
{
    child_device();
    *(volatile char *)(touched + 24) = 1;
    return 0;
}

static int reads_freed(void)
{
    void *device = child_device();
    sim->memory->free(device, touched, 1000);
    return *(volatile char *)touched;
}

static int reads_reserved(void)
{
    void *device = child_device();
    sim->memory->reserve(device, (void **)&touched, 4 << 20);
    sim->memory->map(device, touched, 2 << 20);
    return *(volatile char *)(touched + 5);
}

static bool name_it(char *text, size_t bytes, const void *address)
{
    (void)address;
    strncpy(text, "tensor \"fc.weight\" f32[3,4]", bytes);
    return true;
}

static int reads_named(void)
{
    child_device();
    control->set_namer(name_it);
    return *(volatile char *)(touched + 24);
}

static void leave_with_seven(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    _exit(7);
}

/* Who handled the signal before still does, on the stack of its own that it asked for. */
static int reads_with_a_handler(void)
{
    struct sigaction action = { .sa_sigaction = leave_with_seven, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
    child_device();
    return *(volatile char *)touched;
}

static int reads_elsewhere(void)
{
    child_device();
    char *nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *(volatile char *)nothing;
}

static void the_host_touches(void **state)
{
    static const struct {
        const char *what;
        int (*function)(void);
        int end;
        const char *words, *more;
    } cases[] = {
        { "a read", reads, 256 + SIGSEGV, "memory of sim:0 at 0x",
          ", the result of neg in encoder.0, byte 24 of a block of 1024 bytes. Copy it to the host first: ctrt_cpu" },
        { "a write", writes, 256 + SIGSEGV, "ctrt: the host ", "byte 24 of a block of 1024" },
        { "freed memory", reads_freed, 256 + SIGSEGV, "memory of sim:0", "which is not allocated" },
        { "a page", reads_reserved, 256 + SIGSEGV, "memory of sim:0", "byte 5 of a reservation of 4194304 bytes" },
        { "a tensor with a name", reads_named, 256 + SIGSEGV, "tensor \"fc.weight\" f32[3,4], byte 24", "ctrt_to_host" },
        { "an earlier handler", reads_with_a_handler, 7, "memory of sim:0", "byte 0 of a block of 1024" },
        { "other memory", reads_elsewhere, 256 + SIGSEGV, "", "" },
    };
    char said[4096];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int end = in_child(cases[i].function, said, sizeof said);
        if (end != cases[i].end)
            fail_msg("%s: the child ended with %d, expected %d (256 + signal); it said: %s", cases[i].what, end, cases[i].end, said);
        if (strstr(said, cases[i].words) == NULL || strstr(said, cases[i].more) == NULL)
            fail_msg("%s: no \"%s\" and \"%s\" in: %s", cases[i].what, cases[i].words, cases[i].more, said);
        if (cases[i].words[0] == '\0' && strstr(said, "ctrt") != NULL)
            fail_msg("%s: says: %s", cases[i].what, said);
    }
}

/* ---- fork ---- */

static void *parents_device, *parents_queue, *parents_event;
static ctrt_view parents_vector;

#define EXPECT(condition)                                                       \
    do {                                                                        \
        if (!(condition)) {                                                     \
            dprintf(2, "line %d: not %s: %s\n", __LINE__, #condition, fake_error); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

static int every_slot_in_a_child(void)
{
    void *d = parents_device, *q = parents_queue, *out = NULL;
    char byte = 0;
    bool yes;
    double ms;
    uint64_t n;
    int32_t count = 0;
    ctrt_device_info info = { .size = sizeof info };
    EXPECT(sim->device->count(&count) == CTRT_OK && count == 1);
    EXPECT(sim->device->describe(0, &info) == CTRT_OK && info.total_memory == 1 << 20);
    EXPECT(sim->device->memory_info(d, &n, &n) == CTRT_ERR_FORKED);
    EXPECT(strstr(fake_error, "sim:0 was opened by process") != NULL);
    EXPECT(sim->memory->alloc(d, &out, 512) == CTRT_ERR_FORKED);
    EXPECT(sim->memory->copy(d, q, parents_vector.data, &byte, 1, CTRT_COPY_TO_DEVICE) == CTRT_ERR_FORKED);
    EXPECT(sim->memory->fill(d, q, parents_vector.data, 0, 4) == CTRT_ERR_FORKED);
    EXPECT(sim->memory->host_alloc(d, &out, 512) == CTRT_ERR_FORKED);
    EXPECT(sim->memory->reserve(d, &out, 2 << 20) == CTRT_ERR_FORKED);
    EXPECT(sim->memory->map(d, parents_vector.data, 2 << 20) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->create(d, &out, 0) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->synchronize(d, q) == CTRT_ERR_FORKED && sim->queue->synchronize(d, NULL) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->query(d, q, &yes) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->host_call(d, q, called, &yes) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->event_create(d, &out, false) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->event_record(d, parents_event, q) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->wait_event(d, q, parents_event) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->event_query(d, parents_event, &yes) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->event_synchronize(d, parents_event) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->event_elapsed(d, parents_event, parents_event, &ms) == CTRT_ERR_FORKED);
    EXPECT(sim->queue->error(d, q, &n) == CTRT_ERR_FORKED && sim->queue->reset(d, q) == CTRT_ERR_FORKED);
    EXPECT(sim_add(d, q, 1, &parents_vector, 1) == CTRT_ERR_FORKED);
    sim->memory->free(d, parents_vector.data, 4);
    sim->queue->event_destroy(d, parents_event);
    sim->queue->destroy(d, q);
    sim->device->close(d);
#ifndef __SANITIZE_THREAD__             /* which cannot start threads in the child of a program with threads */
    float one = 1;
    EXPECT(sim->device->open(&out, 0) == CTRT_OK);
    ctrt_view x = { 0 };
    EXPECT(sim->memory->alloc(out, &x.data, 4) == CTRT_OK);
    x = sim_vector(x.data, 1);
    EXPECT(sim->memory->copy(out, NULL, x.data, &one, 4, CTRT_COPY_TO_DEVICE) == CTRT_OK && sim_add(out, NULL, 1, &x, 1) == CTRT_OK);
    EXPECT(sim->memory->copy(out, NULL, &one, x.data, 4, CTRT_COPY_TO_HOST) == CTRT_OK && sim->queue->synchronize(out, NULL) == CTRT_OK);
    EXPECT(one == 2);
    sim->device->close(out);
#endif
    return 0;
}

static void fork_beside_work(void **state)
{
    float zero = 0;
    char said[4096];
    (void)state;
    parents_device = sim_open("devices=1,memory=1m,latency=20ms", 0);
    MUST(control->set_latency(0, 0));
    parents_vector = sim_vector(sim_upload(parents_device, &zero, 4), 1);
    MUST(control->set_latency(0, 20000000));
    MUST(sim->queue->create(parents_device, &parents_queue, 0));
    MUST(sim->queue->event_create(parents_device, &parents_event, true));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            MUST(sim_add(parents_device, parents_queue, 1, &parents_vector, 1));
        MUST(sim->queue->event_record(parents_device, parents_event, parents_queue));
        int end = in_child(every_slot_in_a_child, said, sizeof said);
        if (end != 0)
            fail_msg("the child ended with %d (256 + signal): %s", end, said);
    }
    MUST(sim->queue->synchronize(parents_device, parents_queue));
    EQUAL(value_of(parents_device, &parents_vector), 9);
    sim->queue->event_destroy(parents_device, parents_event);
    sim->device->close(parents_device);
}

/* ---- the host's memory ---- */

static ctrt_status a_bit_of_everything(void)
{
    void *device = NULL, *queue = NULL, *event = NULL, *block = NULL, *pinned = NULL, *range = NULL;
    float one = 1;
    ctrt_status status = sim->device->open(&device, 0);
    if (status)
        return status;
    status = sim->queue->create(device, &queue, 0);
    if (!status)
        status = sim->queue->event_create(device, &event, false);
    if (!status)
        status = sim->memory->alloc(device, &block, 4);
    if (!status)
        status = sim->memory->host_alloc(device, &pinned, 100);
    if (!status)
        status = sim->memory->reserve(device, &range, 2 << 20);
    ctrt_view x = sim_vector(block, 1);
    if (!status)
        status = sim->memory->copy(device, queue, block, &one, 4, CTRT_COPY_TO_DEVICE);
    if (!status)
        status = sim_add(device, queue, 1, &x, 1);
    if (!status)
        status = sim->queue->event_record(device, event, queue);
    if (!status)
        status = sim->queue->wait_event(device, NULL, event);
    if (!status)
        status = sim->memory->copy(device, NULL, &one, block, 4, CTRT_COPY_TO_HOST);
    ctrt_status done = sim->queue->synchronize(device, NULL);
    if (!status && !done && one != 2)
        status = CTRT_ERR_INTERNAL;
    if (range)
        sim->memory->unreserve(device, range, 2 << 20);
    sim->memory->host_free(device, pinned, 100);
    sim->memory->free(device, block, 4);
    sim->queue->event_destroy(device, event);
    sim->queue->destroy(device, queue);
    sim->device->close(device);
    return status ? status : done;
}

static void no_host_memory(void **state)
{
    int failed = 0;
    (void)state;
    setenv("CTRT_SIM", "devices=1,memory=4m", 1);
    MUST(a_bit_of_everything());
    for (long n = 1;; n++) {
        fake_allocs_left = n;
        fake_error[0] = '\0';
        ctrt_status status = a_bit_of_everything();
        bool reached = fake_allocs_left == 0;
        fake_allocs_left = 0;
        if (!reached) {
            MUST(status);
            break;
        }
        failed++;
        if (status != CTRT_ERR_OUT_OF_MEMORY || fake_error[0] == '\0')
            fail_msg("without host allocation %ld: status %d: %s", n, (int)status, fake_error);
    }
    if (failed < 8)
        fail_msg("only %d allocations of the host", failed);
}

static int lines_of(const char *path)
{
    int count = 0, c;
    FILE *file = fopen(path, "r");
    while (file && (c = getc(file)) != EOF)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

static int open_files(void)
{
    int count = 0;
    DIR *files = opendir("/proc/self/fd");
    while (files && readdir(files))
        count++;
    if (files)
        closedir(files);
    return count;
}

/* Closing gives back threads, files and addresses, also with work still on queues. */
static void close_gives_back(void **state)
{
    int threads = 0, files = 0, maps = 0;
    float zero = 0;
    (void)state;
    for (int round = 0; round < 6; round++) {
        void *device[3];
        for (int i = 0; i < 3; i++) {
            device[i] = sim_open("devices=3,memory=2m,latency=1ms", i);
            char *range = NULL;
            MUST(sim->memory->reserve(device[i], (void **)&range, 4 << 20));
            for (int k = 0; k < 4; k++) {
                void *queue = NULL;
                ctrt_view x = sim_vector(sim_upload(device[i], &zero, 4), 1);
                MUST(sim->queue->create(device[i], &queue, 0));
                for (int j = 0; j < 5; j++)
                    MUST(sim_add(device[i], queue, 1, &x, 1));
                if (k % 2)
                    sim->queue->destroy(device[i], queue);
            }
            uint64_t workers = sim_counted(i).threads;  /* the device's own queue, two live ones, and two that may have ended */
            if (workers < 3 || workers > 5)
                fail_msg("%d workers", (int)workers);
        }
        for (int i = 0; i < 3; i++)
            sim->device->close(device[i]);
        if (round == 1)                 /* by then the C library has what it keeps */
            threads = sim_thread_count(), files = open_files(), maps = lines_of("/proc/self/maps");
    }
    EQUAL(sim_thread_count(), threads);
    EQUAL(open_files(), files);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)     /* whose own maps come and go */
    if (lines_of("/proc/self/maps") > maps + 2)
        fail_msg("%d mappings, %d after the second round", lines_of("/proc/self/maps"), maps);
#else
    (void)maps;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_touches),     /* first: its children want to open the first device of the process */
        cmocka_unit_test(allocations_fail), cmocka_unit_test(faults_of_one_device), cmocka_unit_test(ops_fail),
        cmocka_unit_test(kernels_refuse), cmocka_unit_test(copies_corrupt), cmocka_unit_test(a_device_is_lost),
        cmocka_unit_test(a_link_lies), cmocka_unit_test(work_comes_late), cmocka_unit_test(fork_beside_work),
        cmocka_unit_test(no_host_memory), cmocka_unit_test(close_gives_back),
    };
    return cmocka_run_group_tests(tests, sim_load, NULL);
}
