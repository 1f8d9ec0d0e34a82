/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the simulated devices: options, memory, virtual memory pages, invalid addresses, delays, host calls and faults.
 * What the library itself does with them (order of work, copies between devices, pinned memory, lost devices, values)
 * is tested through the public API. */
#include "calls.h"
#include "sim_host.h"

#define MIB ((size_t)1 << 20)

/* ---- options ---- */

static const struct malformed {
    const char *text, *words;
} malformed[] = {
    { "devces=4", "did you mean devices?" },
    { "devces=4", "known: devices, memory, latency" },
    { "devices=four", "devices: expected a number of devices, 0 to 64, not \"four\"" },
    { "devices=65", "0 to 64" },
    { "devices", "has no value" },
    { "memory=lots", "memory: expected a size" },
    { "memory=64m/", "memory: expected a size" },
    { "memory=1", "from 512 bytes" },
    { "latency=-1us", "latency: expected a time" },
    { "latency=20parsecs", "not \"20parsecs\"" },
    { "bandwidth=fast", "bandwidth" },
    { "peers=rings", "peers: expected all, ring, none, or pairs" },
    { "peers=0-5", "pairs of existing devices" },
    { "peers=0-0", "pairs" },
    { "seed=x", "seed: expected a whole number" },
    { "poison=maybe", "yes or no" },
    { "holes=2", "holes: expected yes or no" },
    { "fault=aloc:3", "did you mean alloc?" },
    { "fault=alloc", "alloc: expected the number of an allocation" },
    { "fault=alloc:0", "not \"0\"" },
    { "fault=op:addd@3", "no kernel for an op \"addd\"" },
    { "fault=link:0", "two devices" },
    { "fault=late:soon", "a time" },
    { "fault=99.alloc:1", "not a device number" },
};

static void options(void)
{
    int32_t count;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        setenv("CTRT_SIM", malformed[i].text, 1);
        MUST_FAIL(sim->device->count(&count), CTRT_ERR_INVALID_ARGUMENT, malformed[i].words);
        REQUIRE(strstr(host_error, "CTRT_SIM=") != NULL, "the message does not name the variable: %s", host_error);
    }
    unsetenv("CTRT_SIM");
    MUST(sim->device->count(&count));
    REQUIRE_EQ(count, 2);
    setenv("CTRT_SIM", " devices=3, memory=1m/2m ,latency=5us,bandwidth=8g,peers=0-2,seed=9,jitter=1us,pinned=4k,"
           "fault=alloc:3;1.copy:2+", 1);
    MUST(sim->device->count(&count));
    REQUIRE_EQ(count, 3);
    for (int i = 0; i < 3; i++) {
        ctrt_device_info info = { .size = sizeof info };
        MUST(sim->device->describe(i, &info));
        REQUIRE_EQ(info.total_memory, i == 0 ? MIB : 2 * MIB);
        REQUIRE_EQ(info.flags, CTRT_DEVICE_ASYNCHRONOUS);
        REQUIRE(strncmp(info.uuid, "SIM-", 4) == 0, "the uuid is \"%s\"", info.uuid);
    }
    ctrt_device_info info = { .size = sizeof info };
    MUST_FAIL(sim->device->describe(3, &info), CTRT_ERR_NO_DEVICE, "there are 3 simulated devices");
    setenv("CTRT_SIM_FAULT", "op:never@1", 1);
    MUST_FAIL(sim->device->count(&count), CTRT_ERR_INVALID_ARGUMENT, "CTRT_SIM_FAULT=op:never@1");
    unsetenv("CTRT_SIM_FAULT");
}

/* ---- memory ---- */

static void info_is(void *device, size_t unused, size_t total)
{
    uint64_t free_bytes, total_bytes;
    MUST(sim->device->memory_info(device, &free_bytes, &total_bytes));
    REQUIRE_EQ(free_bytes, unused);
    REQUIRE_EQ(total_bytes, total);
}

static void memory(void *device)
{
    void *block[4], *more = NULL;
    info_is(device, MIB, MIB);
    for (int i = 0; i < 4; i++) {
        block[i] = sim_alloc(device, MIB / 4 - 100);            /* rounded up to 256 KiB */
        REQUIRE_EQ((uintptr_t)block[i] % 512, 0);
        REQUIRE_EQ((char *)block[i] - (char *)block[0], i * (int)(MIB / 4));
    }
    info_is(device, 0, MIB);
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, 1), "sim:0: no 1 bytes: 0 of 1048576 bytes are free");
    sim->memory->free(device, block[0], MIB / 4 - 100);
    sim->memory->free(device, block[2], MIB / 4 - 100);
    info_is(device, MIB / 2, MIB);
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, MIB / 2), "the largest free piece has 262144");
    void *first = sim_alloc(device, 512), *second = sim_alloc(device, MIB / 4);
    REQUIRE_TRUE(first == block[0] && second == block[2]);  /* first fit: the second does not fit after the first */
    sim_counters c = sim_counted(0);
    REQUIRE_EQ(c.allocs, 6);
    REQUIRE_EQ(c.frees, 2);
    REQUIRE_EQ(c.live_blocks, 4);
    REQUIRE_EQ(c.live_bytes, 3 * MIB / 4 + 512);
    REQUIRE_EQ(c.peak_bytes, MIB);
    sim->memory->free(device, (char *)first + 1, 512);
    REQUIRE_EQ(sim_counted(0).bad_frees, 1);
    REQUIRE(strstr(host_logged, "which is not the start of a block") != NULL, "a wrong free is logged as \"%s\"",
            host_logged);
    MUST_FAIL(sim->memory->alloc(device, &more, 0), CTRT_ERR_INVALID_ARGUMENT, "0 bytes");
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, SIZE_MAX), "no 18446744073709551615 bytes");
}

/* Without holes=yes only the number of free bytes counts, as on a GPU: a block or a page never fails because of
 * fragmentation. */
static void no_holes(void *device, bool pages)
{
    void *block[8], *more = NULL;
    char *range = NULL, got = 0;
    MUST(sim->memory->reserve(device, (void **)&range, 4 * MIB));
    for (int i = 0; i < 8; i++)
        block[i] = sim_alloc(device, MIB / 2);
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, 1), "sim:0: no 1 bytes: 0 of 4194304 bytes are free");
    for (int i = 0; i < 8; i += 2)
        sim->memory->free(device, block[i], MIB / 2);
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, 2 * MIB + 1), "2097152 of 4194304 bytes are free");
    if (pages)
        MUST(sim->memory->map(device, range, 2 * MIB));
    else
        more = sim_alloc(device, 2 * MIB);
    char *last = (pages ? range : (char *)more) + 2 * MIB - 1;
    MUST(sim->memory->fill(device, NULL, last, 9, 1));
    sim_download(device, &got, last, 1);
    REQUIRE_EQ(got, 9);
    info_is(device, 0, 4 * MIB);
    MUST_FAIL_OOM(sim->memory->alloc(device, &block[0], 1), "0 of 4194304 bytes are free");
    MUST_FAIL_OOM(sim->memory->map(device, range + 2 * MIB, 2 * MIB), "0 of 4194304 bytes are free");
    if (pages)
        sim->memory->unmap(device, range, 2 * MIB);
    else
        sim->memory->free(device, more, 2 * MIB);
    for (int i = 1; i < 8; i += 2)
        sim->memory->free(device, block[i], MIB / 2);
    info_is(device, 4 * MIB, 4 * MIB);
}

static void blocks_without_holes(void *device) { no_holes(device, false); }
static void pages_without_holes(void *device) { no_holes(device, true); }

/* Freed memory returns to the operating system. New memory is 0 or poisoned and never has the contents of a freed
 * tensor. */
static void fresh_memory(void *device, int want)
{
    const size_t bytes = 4 * MIB, page = 4096;
    unsigned char *host = malloc(bytes);
    sim_alloc(device, 1024);
    void *block = sim_alloc(device, bytes);
    MUST(sim->memory->fill(device, NULL, block, 7, bytes));
    sim_settle(device);
    sim->memory->free(device, block, bytes);
    sim_download(device, host, sim_alloc(device, bytes), bytes);
    /* Only whole pages are returned; the first and last page of the block may be shared with its neighbours. */
    for (size_t i = page; i < bytes - page; i++)
        REQUIRE(host[i] == want, "byte %zu of fresh memory is %d", i, host[i]);
    free(host);
}

static void fresh_zeros(void *device) { fresh_memory(device, 0); }
static void fresh_poison(void *device) { fresh_memory(device, 0xff); }

static void pages(void *device)
{
    const size_t page = 2 * MIB;
    const ctrt_memory_table *m = sim->memory;
    char *range = NULL, back[4096];
    void *block;
    REQUIRE_EQ(m->page_bytes, page);
    MUST_FAIL(m->reserve(device, (void **)&range, page + 1), CTRT_ERR_INVALID_ARGUMENT, "page size");
    MUST(m->reserve(device, (void **)&range, 64 * page));       /* more than the device has */
    info_is(device, 8 * MIB, 8 * MIB);
    block = sim_alloc(device, 4096);                            /* occupies part of the first page */
    MUST(m->map(device, range + 5 * page, 2 * page));
    info_is(device, 8 * MIB - 4096 - 2 * page, 8 * MIB);
    char *across = range + 6 * page - 2048;                     /* across the boundary of two pages */
    MUST(m->fill(device, NULL, across, 42, sizeof back));
    sim_download(device, back, across, sizeof back);
    REQUIRE_TRUE(back[0] == 42 && back[4095] == 42);
    MUST_FAIL(m->map(device, range + 6 * page, page), CTRT_ERR_STATE, "mapped already");
    MUST_FAIL_OOM(m->map(device, range + 8 * page, 2 * page), "no page of 2097152 bytes");
    info_is(device, 8 * MIB - 4096 - 2 * page, 8 * MIB);        /* nothing stayed mapped */
    MUST(m->map(device, range + 8 * page, page));
    m->unmap(device, range + 5 * page, page);
    info_is(device, 8 * MIB - 4096 - 2 * page, 8 * MIB);
    MUST_FAIL_LATER(device, m->fill(device, NULL, across, 42, sizeof back), "not, or no longer, within one allocation");
    m->unmap(device, range, page);                              /* not mapped */
    REQUIRE_EQ(sim_counted(0).bad_frees, 1);
    m->unreserve(device, range, 64 * page);                     /* while pages are still mapped */
    info_is(device, 8 * MIB - 4096, 8 * MIB);
    m->free(device, block, 4096);
    sim_counters c = sim_counted(0);
    REQUIRE_EQ(c.maps, 2);
    REQUIRE_EQ(c.unmaps, 1);
    REQUIRE_EQ(c.reserves, 1);
    REQUIRE_EQ(c.unreserves, 1);
    REQUIRE_EQ(c.live_bytes, 0);
}

/* ---- work ---- */

static ctrt_status neg(void *device, const ctrt_view *y, const ctrt_view *x)
{
    return sim_run_op(device, NULL, 9, "neg", CTRT_F32, FAKE_VIEWS(y), 1, FAKE_VIEWS(x), 1, NULL);
}

/* Invalid addresses are reported when the work runs. */
static void invalid_addresses(void *device)
{
    float host[8] = { 0 }, back[8];
    void *other = NULL;
    MUST(sim->device->open(&other, 1));
    float *a = sim_upload(device, host, sizeof host), *b = sim_alloc(device, sizeof host);
    const ctrt_memory_table *m = sim->memory;
    MUST(m->copy(device, NULL, host, a, 0, CTRT_COPY_ON_DEVICE));           /* nothing to copy */
    MUST_FAIL(m->copy(device, NULL, b, a, 8, 3), CTRT_ERR_INVALID_ARGUMENT, "not a kind of copy");
    MUST_FAIL_LATER(device, m->copy(device, NULL, b + 4, a, 600, CTRT_COPY_ON_DEVICE), "within one allocation");
    MUST_FAIL_LATER(device, m->copy(device, NULL, b, a, 10, CTRT_COPY_TO_HOST),
                    "passed as host memory but is memory of sim:0");
    MUST_FAIL_LATER(device, m->copy(device, NULL, host, back, 10, CTRT_COPY_TO_DEVICE), "is no device memory");
    ctrt_view x = sim_vector(a, 8), of_host = sim_vector(host, 8), elsewhere = sim_vector(sim_alloc(other, 32), 8);
    MUST_FAIL_LATER(device, neg(device, &x, &of_host), "neg (f32), call 9: input 0");
    MUST_FAIL_LATER(device, neg(device, &elsewhere, &x), "output 0");
    REQUIRE_TRUE(strstr(host_error, "is memory of sim:1") != NULL);
    MUST_FAIL(m->copy_peer(device, a, other, elsewhere.data, 4, NULL), CTRT_ERR_NOT_SUPPORTED,
              "sim:0 cannot reach the memory of sim:1");
    ctrt_call call = { .size = sizeof call, .device = device };
    MUST_FAIL(sim_kernel("add", CTRT_F32)->run(&call), CTRT_ERR_INTERNAL, "does not name one");
    m->free(device, a, sizeof host);
    MUST_FAIL_LATER(device, m->copy(device, NULL, host, a, 10, CTRT_COPY_TO_HOST), "no longer");
    sim_close(other);
}

/* A kernel that runs on a queue's worker thread starts no further threads. */
static void one_thread_a_worker(void)
{
    const int64_t n = (int64_t)1 << 21;
    setenv("CTRT_NUM_THREADS", "4", 1);
    sim_reload();
    void *device = sim_open("devices=1,memory=64m", 0);
    const size_t before = folder_files("/proc/self/task");
    ctrt_view x = sim_vector(sim_alloc(device, (size_t)n * 4), n);
    MUST(sim->memory->fill(device, NULL, x.data, 0, (size_t)n * 4));
    for (int i = 0; i < 5; i++)
        MUST(sim_add(device, NULL, 1, &x, 1));
    MUST(sim->queue->synchronize(device, NULL));
    REQUIRE_EQ(folder_files("/proc/self/task") - before, 1);
    REQUIRE_EQ(sim_value(device, &x), 5);
    sim_close(device);
    unsetenv("CTRT_NUM_THREADS");
    sim_reload();
}

/* ---- delays and order ---- */

static void delays(void *device)
{
    double milliseconds;
    void *queue = sim_queue(device);
    void *begin = sim_event(device), *end = sim_event(device);
    ctrt_view x = sim_number(device, 0);
    double start = sim_seconds();
    MUST(sim->queue->event_record(device, begin, queue));
    for (int i = 0; i < 40; i++)                                /* sleeping too long does not shorten later work */
        MUST(sim_add(device, queue, 1, &x, 1));
    MUST(sim->queue->event_record(device, end, queue), sim->queue->synchronize(device, queue));
    double took = sim_seconds() - start;
    MUST(sim->queue->event_elapsed(device, begin, end, &milliseconds));
    REQUIRE(took >= 0.0399 && milliseconds >= 39.9 && milliseconds <= took * 1e3 + 1,
            "40 times 1 ms took %g ms, by the events %g ms", took * 1e3, milliseconds);

    /* Copies 1 MiB at 20 MiB/s. */
    MUST(control->set_latency(0, 0), control->set_bandwidth(0, 20 * MIB));
    char *host = calloc(MIB, 1), *there = sim_alloc(device, MIB);
    start = sim_seconds();
    MUST(sim->memory->copy(device, queue, there, host, MIB, CTRT_COPY_TO_DEVICE));
    MUST(sim->queue->synchronize(device, queue));
    took = sim_seconds() - start;
    REQUIRE(took >= 0.0499, "a copy of 50 ms took %g ms", took * 1e3);
    free(host);
}

/* A wait uses the record at the time of the call, even if the event is then recorded again and destroyed, and the
 * waiting queue is destroyed while it has work. */
static void event_recorded_again(void *device)
{
    void *event = NULL;
    void *first = sim_queue(device), *waiting = sim_queue(device), *idle = sim_queue(device);
    ctrt_view x = sim_number(device, 0);
    MUST(sim->queue->event_create(device, &event, false), sim_add(device, first, 1, &x, 100),
         sim->queue->event_record(device, event, first), sim->queue->wait_event(device, waiting, event),
         sim->queue->event_record(device, event, idle));
    sim->queue->event_destroy(device, event);
    MUST(control->set_latency(0, 0), sim_apply(device, waiting, 1, "mul", &x, 2));
    sim->queue->destroy(device, waiting);
    MUST(sim->queue->synchronize(device, NULL));
    REQUIRE_EQ(sim_value(device, &x), 200);
}

static void set_true(void *flag)
{
    atomic_store((atomic_bool *)flag, true);
}

static void host_calls(void *device)
{
    atomic_bool called = false;
    ctrt_view x = sim_number(device, 0);
    MUST(sim_add(device, NULL, 1, &x, 1), sim->queue->host_call(device, NULL, set_true, &called));
    REQUIRE_EQ(atomic_load(&called), false);                    /* in order: after the op */
    MUST(sim->queue->synchronize(device, NULL));
    REQUIRE_EQ(atomic_load(&called), true);
    REQUIRE_EQ(sim_counted(0).host_calls, 1);
}

/* ---- faults ---- */

static void allocations_fail(void)
{
    setenv("CTRT_SIM_FAULT", "1.alloc:2", 1);
    void *other = sim_open("devices=2,memory=8m", 0), *device = sim_open("devices=2,memory=8m", 1);
    void *more = NULL, *event = sim_event(device);
    char *range = NULL;
    unsetenv("CTRT_SIM_FAULT");
    sim_alloc(other, 512);
    sim_alloc(other, 512);
    sim_alloc(device, 512);
    MUST_FAIL_OOM(sim->memory->alloc(device, &more, 512), "sim:1: no 512 bytes (fault 1.alloc:2)");
    REQUIRE_TRUE(more == NULL);
    sim_alloc(device, 512);
    MUST(control->inject(1, "alloc:2+"));
    sim_alloc(device, 512);
    MUST(sim->memory->reserve(device, (void **)&range, 4 << 20));
    for (int i = 0; i < 3; i++)
        MUST_FAIL_OOM(sim->memory->map(device, range, 2 << 20), "fault alloc:2+");
    MUST(control->clear(1), sim->memory->map(device, range, 2 << 20));
    REQUIRE_EQ(sim_counted(1).allocs, 3);
    REQUIRE_EQ(sim_counted(1).live_bytes, 3 * 512 + (2 << 20));
    MUST(control->inject(1, "event:2"), sim->queue->event_record(device, event, NULL));
    MUST_FAIL_OOM(sim->queue->event_record(device, event, NULL), "sim:1: no event can be recorded (fault event:2)");
    MUST(sim->queue->event_record(device, event, NULL));
    sim_close(device);
    sim_close(other);
    MUST_FAIL(control->inject(0, "alloc:1"), CTRT_ERR_NO_DEVICE, "sim:0 is not open");
}

static void ops_fail(void *device)
{
    atomic_bool called = false;
    bool idle, done;
    uint64_t sequence = 99;
    void *bad = sim_queue(device), *good = sim_queue(device), *event = sim_event(device);
    ctrt_view x = sim_number(device, 0), y = sim_number(device, 0);
    for (uint64_t call = 56; call <= 58; call++)                /* call 57 fails; the error is not reported yet */
        MUST(sim_add(device, bad, call, &x, 1));
    MUST(sim->queue->host_call(device, bad, set_true, &called), sim->queue->event_record(device, event, bad));
    MUST(sim->queue->wait_event(device, good, event));          /* passes although the queue failed */
    MUST(sim_add(device, good, 1, &y, 5), sim->queue->synchronize(device, good),
         sim->queue->event_synchronize(device, event), sim->queue->event_query(device, event, &done));
    REQUIRE_EQ(done, true);
    REQUIRE_EQ(sim_value(device, &x), 1);                       /* the first op ran, later ones were dropped */
    REQUIRE_EQ(atomic_load(&called), false);
    MUST_FAIL(sim->queue->synchronize(device, bad), CTRT_ERR_BACKEND,
              "sim:0, queue 1: add (f32), call 57: failed by fault op:add@2");
    MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_BACKEND, "call 57");
    MUST_FAIL(sim->queue->query(device, bad, &idle), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(idle, true);
    MUST_FAIL(sim->queue->error(device, bad, &sequence), CTRT_ERR_BACKEND, "call 57");
    REQUIRE_EQ(sequence, 57);
    MUST(sim->queue->error(device, good, &sequence));
    REQUIRE_EQ(sequence, 0);
    REQUIRE_EQ(sim_value(device, &y), 5);
    REQUIRE_EQ(sim_counted(0).failures, 1);
}

static void copies_corrupt(void *device)
{
    enum { N = 1001 };
    char host[N] = { 5 }, back[N];
    void *x = sim_upload(device, host, N);
    for (int wanted = 1; wanted >= 0; wanted--) {
        int wrong = 0;
        sim_download(device, back, x, N);
        for (int i = 0; i < N; i++)
            wrong += back[i] != host[i];
        REQUIRE_EQ(wrong, wanted);
    }
}

static void *first_call;

static void be_first(void *argument)
{
    void *none = NULL;
    __atomic_compare_exchange_n(&first_call, &none, argument, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* With delays the order across queues varies; the order on each queue does not. */
static void work_comes_late(void *device)
{
    int first[2] = { 0, 0 };
    void *queue[2] = { sim_queue(device), sim_queue(device) };
    MUST(control->inject(0, "late:2ms"));
    for (int round = 0; round < 40; round++) {
        first_call = NULL;
        for (int i = 0; i < 2; i++)
            MUST(sim->queue->host_call(device, queue[i], be_first, &first[i]));
        MUST(sim->queue->synchronize(device, NULL));
        ++*(int *)first_call;
    }
    REQUIRE(first[0] > 0 && first[1] > 0, "the first queue was first %d times, the second %d", first[0], first[1]);
}

TEST_MAIN
{
    static const struct { const char *what, *options; void (*run)(void *device); } cases[] = {
        { "blocks are allocated first fit and counted", "devices=1,memory=1m,holes=yes", memory },
        { "free bytes suffice for a block, whatever the fragmentation", "devices=1,memory=4m", blocks_without_holes },
        { "free bytes suffice for a page", "devices=1,memory=4m", pages_without_holes },
        { "freed memory does not keep its contents", "devices=1,memory=8m", fresh_zeros },
        { "freed memory is poisoned", "devices=1,memory=8m,poison=yes", fresh_poison },
        { "pages are reserved, mapped and unmapped", "devices=1,memory=8m", pages },
        { "work with invalid addresses fails", "devices=2,memory=4m,peers=none", invalid_addresses },
        { "latency and bandwidth delay the work", "devices=1,memory=4m,latency=1ms", delays },
        { "a wait for an event that is then recorded again and destroyed", "devices=1,memory=1m,latency=20ms",
          event_recorded_again },
        { "host calls run in order on the queue", "devices=1,latency=20ms", host_calls },
        { "a failed op stops its queue", "devices=1,memory=1m,fault=op:add@2", ops_fail },
        { "a copy fault changes one byte", "devices=1,memory=1m,fault=copy:2", copies_corrupt },
        { "random delays change the order across queues", "devices=1,memory=1m,seed=5", work_comes_late },
    };
    sim_reload();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        group("%s", cases[i].what);
        void *device = sim_open(cases[i].options, 0);
        cases[i].run(device);
        sim_close(device);
    }
    group("options are parsed, and an error names the option");
    options();
    group("a kernel on a queue uses one thread");
    one_thread_a_worker();
    group("the selected allocations and events of one device fail");
    allocations_fail();
    return done();
}
