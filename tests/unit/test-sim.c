/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the simulated devices: memory, virtual memory pages, invalid addresses, delays, host calls, faults,
 * host accesses to device memory, and what closing releases. Calls the backend's function tables where the
 * library makes no such call. What the library does with the devices (order of work, copies between devices, pinned
 * memory, lost devices, values) is tested in test-stream*.c and others. */
#include <signal.h>
#include <sys/mman.h>

#include "base/host_alloc.h"
#include "calls.h"
#include "device/device.h"
#include "log_kept.h"
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

/* Copies from the device after all work that is enqueued. */
static void download(void *to, const void *from, size_t bytes)
{
    CHECK_OK(queues->synchronize(handle, NULL));
    CHECK_OK(memory->copy(handle, NULL, to, from, bytes, CTRT_COPY_TO_HOST));
    CHECK_OK(queues->synchronize(handle, NULL));
}

TEST(options, "options are parsed; the reason for missing devices names the variable and the option")
{
    ctrt_device *device = NULL;
    static const struct { const char *setting, *words; } bad[] = {
        { "CTRT_SIM=devces=4", "did you mean devices?" }, { "CTRT_SIM=devces=4", "known: devices, memory, latency" },
        { "CTRT_SIM=devices=four", "devices: expected a number of devices, 0 to 64, not \"four\"" },
        { "CTRT_SIM=devices=65", "0 to 64" }, { "CTRT_SIM=devices", "has no value" },
        { "CTRT_SIM=memory=lots", "memory: expected a size" }, { "CTRT_SIM=memory=64m/", "memory: expected a size" },
        { "CTRT_SIM=memory=1", "from 512 bytes" }, { "CTRT_SIM=latency=-1us", "latency: expected a time" },
        { "CTRT_SIM=latency=20parsecs", "not \"20parsecs\"" }, { "CTRT_SIM=bandwidth=fast", "bandwidth" },
        { "CTRT_SIM=peers=rings", "peers: expected all, ring, none, or pairs" },
        { "CTRT_SIM=peers=0-5", "pairs of existing devices" }, { "CTRT_SIM=peers=0-0", "pairs" },
        { "CTRT_SIM=seed=x", "seed: expected a whole number" }, { "CTRT_SIM=poison=maybe", "yes or no" },
        { "CTRT_SIM=holes=2", "holes: expected yes or no" }, { "CTRT_SIM=fault=aloc:3", "did you mean alloc?" },
        { "CTRT_SIM=fault=alloc", "alloc: expected the number of an allocation" },
        { "CTRT_SIM=fault=alloc:0", "not \"0\"" }, { "CTRT_SIM=fault=op:addd@3", "no kernel for an op \"addd\"" },
        { "CTRT_SIM=fault=link:0", "two devices" }, { "CTRT_SIM=fault=late:soon", "a time" },
        { "CTRT_SIM=fault=99.alloc:1", "not a device number" }, { "CTRT_SIM_FAULT=op:never@1", "op:never@1" },
        { "CTRT_SIM=devices=0", "no visible device" }, { "CTRT_BACKENDS=-cpu", "the backend cpu cannot be used" },
        { "CTRT_VISIBLE_DEVICES=cpu", "2 of 2 hidden by CTRT_VISIBLE_DEVICES=cpu" },
    };
    EACH(c, bad)
        IN_CHILD(c->setting, "CTRT_LOG=error") {
            const char *why = NULL;
            CHECK_TRUE(!ctrt_is_available("sim", &why));
            CHECK_HAS(why, c->words);
            CHECK_EQ(ctrt_device_count("sim"), 0);
            CHECK_TRUE(ctrt_device_get(&device, "sim:0") != CTRT_OK);
            CHECK_HAS(ctrt_error_message(), c->words);
            if (strncmp(c->setting, "CTRT_SIM", 8) == 0 && strstr(c->setting, "devices=0") == NULL)
                CHECK_HAS(ctrt_error_message(), strncmp(c->setting, "CTRT_SIM=", 9) ? "CTRT_SIM_FAULT=" : "CTRT_SIM=");
        }
    IN_CHILD(NULL)
        CHECK_EQ(ctrt_device_count("sim"), 2);
    IN_CHILD("CTRT_SIM= devices=3, memory=1m/2m ,latency=5us,bandwidth=8g,peers=0-2,seed=9,jitter=1us,pinned=4k,"
             "fault=alloc:3;1.copy:2+") {
        CHECK_EQ(ctrt_device_count("sim"), 3);
        for (int i = 0; i < 3; i++) {
            char name[16];
            ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
            snprintf(name, sizeof name, "sim:%d", i);
            CHECK_OK(ctrt_device_get_properties(&properties, name));
            CHECK_EQ(properties.total_memory, i == 0 ? MIB : 2 * MIB);
            CHECK_EQ(properties.asynchronous, true);
            CHECK_EQ(properties.host_memory, false);
            CHECK_EQ(strncmp(properties.uuid, "SIM-", 4), 0);
        }
    }
}

/* ---- memory ---- */

SIM_TEST(blocks, "blocks are allocated first fit and counted", "CTRT_SIM=devices=1,memory=1m,holes=yes")
{
    char *block[4], *first, *second;
    void *more = NULL;
    for (int i = 0; i < 4; i++) {
        block[i] = alloc(MIB / 4 - 100);                        /* rounded up to 256 KiB */
        CHECK_EQ((uintptr_t)block[i] % 512, 0);
        CHECK_EQ(block[i] - block[0], i * (int)(MIB / 4));
    }
    CHECK_EQ(taken_on(device), MIB);
    CHECK_FAILS(memory->alloc(handle, &more, 1), CTRT_ERR_OUT_OF_MEMORY,
                "sim:0: no 1 bytes: 0 of 1048576 bytes are free");
    memory->free(handle, block[0], MIB / 4 - 100);
    memory->free(handle, block[2], MIB / 4 - 100);
    CHECK_EQ(taken_on(device), MIB / 2);
    CHECK_FAILS(memory->alloc(handle, &more, MIB / 2), CTRT_ERR_OUT_OF_MEMORY, "the largest free piece has 262144");
    first = alloc(512);
    second = alloc(MIB / 4);
    CHECK_TRUE(first == block[0] && second == block[2]);        /* first fit: the second does not fit after the first */
    const sim_counters c = sim_read(0);
    CHECK_EQ(c.allocs, 6);
    CHECK_EQ(c.frees, 2);
    CHECK_EQ(c.live_blocks, 4);
    CHECK_EQ(c.live_bytes, 3 * MIB / 4 + 512);
    CHECK_EQ(c.peak_bytes, MIB);
    log_keep(CTRT_LOG_INFO);
    memory->free(handle, first + 1, 512);
    CHECK_EQ(sim_read(0).bad_frees, 1);
    CHECK_HAS(logged, "which is not the start of a block");
    CHECK_FAILS(memory->alloc(handle, &more, 0), CTRT_ERR_INVALID_ARGUMENT, "0 bytes");
    CHECK_FAILS(memory->alloc(handle, &more, SIZE_MAX), CTRT_ERR_OUT_OF_MEMORY, "no 18446744073709551615 bytes");
}

/* Without holes=yes only the number of free bytes counts, as on a GPU: a block or a page never fails because of
 * fragmentation. */
SIM_TEST(without_holes, "free bytes suffice for a block or a page, whatever the fragmentation",
         "CTRT_SIM=devices=1,memory=4m")
{
    for (int pages = 0; pages < 2; pages++) {
        void *block[8], *more = NULL;
        char *range = NULL, got = 0;
        CHECK_OK(memory->reserve(handle, (void **)&range, 4 * MIB));
        for (int i = 0; i < 8; i++)
            block[i] = alloc(MIB / 2);
        for (int i = 0; i < 8; i += 2)
            memory->free(handle, block[i], MIB / 2);
        CHECK_FAILS(memory->alloc(handle, &more, 2 * MIB + 1), CTRT_ERR_OUT_OF_MEMORY,
                    "2097152 of 4194304 bytes are free");
        if (pages)
            CHECK_OK(memory->map(handle, range, 2 * MIB));
        else
            more = alloc(2 * MIB);
        char *last = (pages ? range : (char *)more) + 2 * MIB - 1;
        CHECK_OK(memory->fill(handle, NULL, last, 9, 1));
        download(&got, last, 1);
        CHECK_EQ(got, 9);
        CHECK_EQ(taken_on(device), 4 * MIB);
        CHECK_FAILS(memory->alloc(handle, &block[0], 1), CTRT_ERR_OUT_OF_MEMORY, "0 of 4194304 bytes are free");
        CHECK_FAILS(memory->map(handle, range + 2 * MIB, 2 * MIB), CTRT_ERR_OUT_OF_MEMORY,
                    "0 of 4194304 bytes are free");
        if (pages)
            memory->unmap(handle, range, 2 * MIB);
        else
            memory->free(handle, more, 2 * MIB);
        for (int i = 1; i < 8; i += 2)
            memory->free(handle, block[i], MIB / 2);
        CHECK_EQ(taken_on(device), 0);
        memory->unreserve(handle, range, 4 * MIB);
    }
}

/* Freed memory returns to the operating system. New memory is 0 or poisoned and never has the contents of a freed
 * tensor. */
SIM_TEST(fresh_memory, "freed memory does not keep its contents", "CTRT_SIM=devices=1,memory=8m")
{
    static unsigned char host[4 * MIB];
    const int want = strstr(getenv("CTRT_SIM"), "poison") != NULL ? 0xff : 0;
    const size_t page = 4096;
    int wrong = 0;
    alloc(1024);
    void *block = alloc(sizeof host);
    CHECK_OK(memory->fill(handle, NULL, block, 7, sizeof host));
    CHECK_OK(queues->synchronize(handle, NULL));
    memory->free(handle, block, sizeof host);
    download(host, alloc(sizeof host), sizeof host);
    /* Only whole pages are returned; the first and last page of the block may be shared with its neighbours. */
    for (size_t i = page; i < sizeof host - page; i++)
        wrong += host[i] != want;
    CHECK(wrong == 0, "%d bytes of fresh memory are not %d", wrong, want);
}
SIM_AGAIN(fresh_memory, "freed memory is poisoned", "CTRT_SIM=devices=1,memory=8m,poison=yes")

/* Enqueues `call`, whose work must fail with a message that contains `words`. */
#define FAILS_LATER(call, words)                                                        \
    do {                                                                                \
        CHECK_OK(call);                                                                 \
        CHECK_FAILS(queues->synchronize(handle, NULL), CTRT_ERR_BACKEND, words);        \
        CHECK_OK(queues->reset(handle, NULL));                                          \
    } while (0)

SIM_TEST(pages, "pages are reserved, mapped and unmapped", "CTRT_SIM=devices=1,memory=8m")
{
    const size_t page = 2 * MIB;
    char *range = NULL, back[4096];
    CHECK_EQ(memory->page_bytes, page);
    CHECK_FAILS(memory->reserve(handle, (void **)&range, page + 1), CTRT_ERR_INVALID_ARGUMENT, "page size");
    CHECK_OK(memory->reserve(handle, (void **)&range, 64 * page));      /* more than the device has */
    CHECK_EQ(taken_on(device), 0);
    void *block = alloc(4096);                                  /* occupies part of the first page */
    CHECK_OK(memory->map(handle, range + 5 * page, 2 * page));
    char *across = range + 6 * page - 2048;                     /* across the boundary of two pages */
    CHECK_OK(memory->fill(handle, NULL, across, 42, sizeof back));
    download(back, across, sizeof back);
    CHECK_EQ(back[0], 42);
    CHECK_EQ(back[4095], 42);
    CHECK_FAILS(memory->map(handle, range + 6 * page, page), CTRT_ERR_STATE, "mapped already");
    CHECK_FAILS(memory->map(handle, range + 8 * page, 2 * page), CTRT_ERR_OUT_OF_MEMORY, "no page of 2097152 bytes");
    CHECK_EQ(taken_on(device), 4096 + 2 * page);                /* nothing stayed mapped */
    CHECK_OK(memory->map(handle, range + 8 * page, page));
    memory->unmap(handle, range + 5 * page, page);
    CHECK_EQ(taken_on(device), 4096 + 2 * page);
    FAILS_LATER(memory->fill(handle, NULL, across, 42, sizeof back), "not, or no longer, within one allocation");
    memory->unmap(handle, range, page);                         /* not mapped */
    memory->unreserve(handle, range, 64 * page);                /* while pages are still mapped */
    CHECK_EQ(taken_on(device), 4096);
    memory->free(handle, block, 4096);
    const sim_counters c = sim_read(0);
    CHECK_EQ(c.bad_frees, 1);
    CHECK_EQ(c.maps, 2);
    CHECK_EQ(c.unmaps, 1);
    CHECK_EQ(c.reserves, 1);
    CHECK_EQ(c.unreserves, 1);
    CHECK_EQ(c.live_bytes, 0);
}

/* ---- work ---- */

SIM_TEST(invalid_addresses, "work with invalid addresses fails",
         "CTRT_SIM=devices=2,memory=4m,peers=none", "CTRT_MEMORY=direct")
{
    static float host[8], back[8];
    ctrt_device *other = sim_open("sim:1");
    CTRT_AUTO(tensor) x = full(1, 8, device), elsewhere = full(1, 8, other), y = NULL;
    float *a = alloc(sizeof host), *b = alloc(sizeof host);
    void *const own = x->view.data;
    CHECK_OK(memory->copy(handle, NULL, host, a, 0, CTRT_COPY_ON_DEVICE));          /* nothing to copy */
    CHECK_FAILS(memory->copy(handle, NULL, b, a, 8, 3), CTRT_ERR_INVALID_ARGUMENT, "not a kind of copy");
    FAILS_LATER(memory->copy(handle, NULL, b + 4, a, 600, CTRT_COPY_ON_DEVICE), "within one allocation");
    FAILS_LATER(memory->copy(handle, NULL, b, a, 10, CTRT_COPY_TO_HOST),
                "passed as host memory but is memory of sim:0");
    FAILS_LATER(memory->copy(handle, NULL, host, back, 10, CTRT_COPY_TO_DEVICE), "is no device memory");
    x->view.data = host;
    FAILS_LATER(ctrt_neg(&y, x), "neg (f32), call ");
    CHECK_HAS(ctrt_error_message(), ": input 0");
    x->view.data = elsewhere->view.data;
    FAILS_LATER(ctrt_fill_(x, ctrt_float(3)), "output 0");
    CHECK_HAS(ctrt_error_message(), "is memory of sim:1");
    x->view.data = own;
    CHECK_FAILS(memory->copy_peer(handle, a, other->handle, elsewhere->view.data, 4, NULL), CTRT_ERR_NOT_SUPPORTED,
                "sim:0 cannot reach the memory of sim:1");
    const ctrt_call call = { .size = sizeof call, .device = handle };
    CHECK_FAILS(backend->kernels->kernels->run(&call), CTRT_ERR_INTERNAL, "does not name one");
    memory->free(handle, a, sizeof host);
    FAILS_LATER(memory->copy(handle, NULL, host, a, 10, CTRT_COPY_TO_HOST), "no longer");
}

SIM_TEST(one_thread_per_queue, "a kernel on a queue uses one thread", "CTRT_SIM=devices=1", "CTRT_NUM_THREADS=4",
         "CTRT_WAIT_WARNING=0")             /* no thread that watches waits */
{
    const size_t before = folder_files("/proc/self/task");
    CTRT_AUTO(tensor) x = full(0, 1 << 21, device);
    for (int i = 0; i < 5; i++)
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
    CHECK_OK(ctrt_device_synchronize(device));
#ifdef __SANITIZE_THREAD__              /* it starts a thread of its own with the first one */
    const int started = 2;
#else
    const int started = 1;
#endif
    CHECK_EQ(folder_files("/proc/self/task") - before, started);
    CHECK_EQ(sim_read(0).threads, 1);
    CHECK_EQ(total(x), 5 << 21);
}

SIM_TEST(bandwidth, "bandwidth delays copies", "CTRT_SIM=devices=1")
{
    CTRT_AUTO(tensor) host = full(0, MIB / 4, cpu_device()), there = NULL;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(sim->set_bandwidth(0, 20 * MIB));
    const double start = clock_seconds();
    CHECK_OK(ctrt_to_device(&there, host, device));
    CHECK_OK(ctrt_device_synchronize(device));
    const double took = clock_seconds() - start;
    CHECK(took >= 0.0499, "a copy of 1 MiB with 20 MiB per second took %g ms", took * 1e3);
}

static void wait_for(void *flag)
{
    while (!atomic_load((atomic_bool *)flag))
        sched_yield();
}

/* A wait uses the record at the time of the call, even if the event is then recorded again and destroyed, and the
 * waiting queue is destroyed while it has work. */
SIM_TEST(event_recorded_again, "a wait for an event that is then recorded again and destroyed", "CTRT_SIM=devices=1")
{
    unsigned char *block = alloc(1), value = 0;
    void *first = NULL, *waiting = NULL, *idle = NULL, *event = NULL;
    atomic_bool go = false;
    CHECK_OK(queues->create(handle, &first, 0));
    CHECK_OK(queues->create(handle, &waiting, 0));
    CHECK_OK(queues->create(handle, &idle, 0));
    CHECK_OK(queues->event_create(handle, &event, false));
    CHECK_OK(queues->host_call(handle, first, wait_for, &go));
    CHECK_OK(memory->fill(handle, first, block, 1, 1));
    CHECK_OK(queues->event_record(handle, event, first));
    CHECK_OK(queues->wait_event(handle, waiting, event));
    CHECK_OK(queues->event_record(handle, event, idle));
    CHECK_OK(queues->synchronize(handle, idle));
    queues->event_destroy(handle, event);
    CHECK_OK(memory->fill(handle, waiting, block, 2, 1));
    queues->destroy(handle, waiting);
    nanosleep(&(struct timespec){ 0, 20000000 }, NULL);         /* a fill that did not wait runs now */
    atomic_store(&go, true);
    download(&value, block, 1);
    CHECK_EQ(value, 2);
}

/* ---- host calls and faults ---- */

static void set_true(void *flag)
{
    atomic_store((atomic_bool *)flag, true);
}

SIM_TEST(host_calls, "host calls run in order on the queue", "CTRT_SIM=devices=1,latency=20ms")
{
    void *queue = NULL, *block = alloc(4);
    atomic_bool called = false;
    uint64_t sequence = 99;
    bool idle = false;
    CHECK_OK(queues->create(handle, &queue, 0));
    CHECK_OK(memory->fill(handle, queue, block, 0, 4));
    CHECK_OK(queues->host_call(handle, queue, set_true, &called));
    CHECK_EQ(atomic_load(&called), false);                      /* in order: after the fill */
    CHECK_OK(queues->synchronize(handle, queue));
    CHECK_EQ(atomic_load(&called), true);
    CHECK_EQ(sim_read(0).host_calls, 1);
    /* A failed queue drops its later work, including the call. */
    atomic_store(&called, false);
    memory->free(handle, block, 4);
    CHECK_OK(memory->fill(handle, queue, block, 0, 4));
    CHECK_OK(queues->host_call(handle, queue, set_true, &called));
    CHECK_FAILS(queues->synchronize(handle, queue), CTRT_ERR_BACKEND, "fill of 4 bytes");
    CHECK_FAILS(queues->synchronize(handle, NULL), CTRT_ERR_BACKEND, "sim:0, queue 2: ");
    CHECK_FAILS(queues->query(handle, queue, &idle), CTRT_ERR_BACKEND, "fill");
    CHECK_FAILS(queues->error(handle, queue, &sequence), CTRT_ERR_BACKEND, "fill");
    CHECK_EQ(idle, true);
    CHECK_EQ(sequence, 0);
    CHECK_EQ(atomic_load(&called), false);
    CHECK_EQ(sim_read(0).failures, 1);
    queues->destroy(handle, queue);
}

static void *enqueue_many(void *count)
{
    static atomic_bool called;
    for (int i = 0; i < 3000; i++)
        if (queues->host_call(handle, NULL, set_true, &called) == CTRT_OK)
            atomic_fetch_add((atomic_int *)count, 1);
    return NULL;
}

SIM_TEST(full_queue, "enqueueing waits while a queue holds 1024 pieces of work", "CTRT_SIM=devices=1")
{
    atomic_bool go = false;
    atomic_int enqueued = 0;
    pthread_t thread;
    CHECK_OK(queues->host_call(handle, NULL, wait_for, &go));
    pthread_create(&thread, NULL, enqueue_many, &enqueued);
    for (int i = 0; i < 5000 && atomic_load(&enqueued) < 1023; i++)
        usleep(1000);
    usleep(20000);
    CHECK_EQ(atomic_load(&enqueued), 1023);
    atomic_store(&go, true);
    pthread_join(thread, NULL);
    CHECK_EQ(atomic_load(&enqueued), 3000);
    CHECK_OK(queues->synchronize(handle, NULL));
}

SIM_TEST(allocations_fail, "the selected allocations and events of one device fail",
         "CTRT_SIM=devices=2,memory=8m,peers=none", "CTRT_SIM_FAULT=1.alloc:2")
{
    ctrt_device_info info = { .size = sizeof info };
    void *more = NULL, *event = NULL;
    char *range = NULL;
    for (int i = 0; i < 2; i++)
        alloc(512);
    handle = sim_open("sim:1")->handle;
    alloc(512);
    CHECK_FAILS(memory->alloc(handle, &more, 512), CTRT_ERR_OUT_OF_MEMORY, "sim:1: no 512 bytes (fault 1.alloc:2)");
    CHECK_TRUE(more == NULL);
    alloc(512);
    CHECK_OK(sim->inject(1, "alloc:2+"));
    alloc(512);
    CHECK_OK(memory->reserve(handle, (void **)&range, 4 * MIB));
    for (int i = 0; i < 3; i++)
        CHECK_FAILS(memory->map(handle, range, 2 * MIB), CTRT_ERR_OUT_OF_MEMORY, "fault alloc:2+");
    CHECK_OK(sim->clear(1));
    CHECK_OK(memory->map(handle, range, 2 * MIB));
    CHECK_EQ(sim_read(1).allocs, 3);
    CHECK_EQ(sim_read(1).live_bytes, 3 * 512 + 2 * MIB);
    CHECK_OK(sim->inject(1, "event:2"));
    CHECK_OK(queues->event_create(handle, &event, false));
    CHECK_OK(queues->event_record(handle, event, NULL));
    CHECK_FAILS(queues->event_record(handle, event, NULL), CTRT_ERR_OUT_OF_MEMORY,
                "sim:1: no event can be recorded (fault event:2)");
    CHECK_OK(queues->event_record(handle, event, NULL));
    queues->event_destroy(handle, event);
    CHECK_FAILS(sim->inject(2, "alloc:1"), CTRT_ERR_NO_DEVICE, "sim:2 is not open");
    CHECK_FAILS(backend->device->describe(2, &info), CTRT_ERR_NO_DEVICE, "there are 2 simulated devices");
}

SIM_TEST(copies_corrupt, "a copy fault changes one byte", "CTRT_SIM=devices=1,fault=copy:2")
{
    enum { N = 1001 };
    char host[N] = { 5 }, back[N], *block = alloc(N);
    CHECK_OK(memory->copy(handle, NULL, block, host, N, CTRT_COPY_TO_DEVICE));
    for (int wanted = 1; wanted >= 0; wanted--) {
        int wrong = 0;
        download(back, block, N);
        for (int i = 0; i < N; i++)
            wrong += back[i] != host[i];
        CHECK_EQ(wrong, wanted);
    }
}

static void *first_call;

static void be_first(void *argument)
{
    void *none = NULL;
    __atomic_compare_exchange_n(&first_call, &none, argument, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* With delays the order across queues varies; the order on each queue does not. */
SIM_TEST(work_comes_late, "random delays change the order across queues", "CTRT_SIM=devices=1,seed=5,fault=late:2ms")
{
    int first[2] = { 0, 0 };
    void *queue[2] = { NULL, NULL };
    CHECK_OK(queues->create(handle, &queue[0], 0));
    CHECK_OK(queues->create(handle, &queue[1], 0));
    for (int round = 0; round < 40; round++) {
        first_call = NULL;
        for (int i = 0; i < 2; i++)
            CHECK_OK(queues->host_call(handle, queue[i], be_first, &first[i]));
        CHECK_OK(queues->synchronize(handle, NULL));
        ++*(int *)first_call;
    }
    CHECK(first[0] > 0 && first[1] > 0, "the first queue was first %d times, the second %d", first[0], first[1]);
}

/* ---- host accesses to device memory ---- */

static void exit_with_seven(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    _exit(7);
}

/* Installs a SIGSEGV handler on an alternate stack before the simulated device installs its own. */
static void install_handler(void)
{
    static char bytes[1 << 16];
    const struct sigaction action = { .sa_sigaction = exit_with_seven, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigaltstack(&(stack_t){ .ss_sp = bytes, .ss_size = sizeof bytes }, NULL);
    sigaction(SIGSEGV, &action, NULL);
}

enum access { READ, WRITE, READ_FREED, READ_PAGE, READ_TENSOR, READ_HANDLED, READ_ELSEWHERE };

/* Accesses byte 24 of a block of sim:0, or of a page or tensor. */
static int access_memory(enum access access)
{
    signal(SIGSEGV, SIG_DFL);           /* removes a sanitizer's handler */
    if (access == READ_HANDLED)
        install_handler();
    ctrt_device *device = sim_open("sim:0");
    use(device);
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    char *address = alloc(1000);
    if (access == READ_FREED)
        memory->free(handle, address, 1000);
    if (access == READ_PAGE) {
        CHECK_OK(memory->reserve(handle, (void **)&address, 4 * MIB));
        CHECK_OK(memory->map(handle, address, 2 * MIB));
    }
    if (access == READ_TENSOR) {
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4, 4), CTRT_F32, device));
        CHECK_OK(ctrt_memory_label_push("encoder.layer1"));
        CHECK_OK(ctrt_matmul(&y, x, x));
        address = ctrt_tensor_data(y);
    }
    if (access == READ_ELSEWHERE)
        address = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (access == WRITE)
        *(volatile char *)(address + 24) = 1;
    return *(volatile char *)(address + 24);
}

TEST(test_host_accesses, "a host access to device memory ends with SIGSEGV and names device, tensor and offset")
{
    static const struct {
        enum access access;
        int end;                        /* exit status, or 256 + the signal */
        const char *words, *more;
    } cases[] = {
        { READ, 256 + SIGSEGV, "memory of sim:0 at 0x",
          ", byte 24 of a block of 1024 bytes. Copy it to the host first: ctrt_cpu, ctrt_to_host" },
        { WRITE, 256 + SIGSEGV, "ctrt: the host ", "byte 24 of a block of 1024" },
        { READ_FREED, 256 + SIGSEGV, "memory of sim:0", "which is not allocated" },
        { READ_PAGE, 256 + SIGSEGV, "memory of sim:0",
          "byte 24 of a reservation of 4194304 bytes" },
        { READ_TENSOR, 256 + SIGSEGV, "matmul", "encoder.layer1" },
        { READ_HANDLED, 7, "memory of sim:0", "byte 24 of a block of 1024" },
        { READ_ELSEWHERE, 256 + SIGSEGV, "", "" },
    };
    EACH(c, cases) {
        char output[4096];
        int status = 0;
        FILE *file = tmpfile();
        REQUIRE_TRUE(file != NULL);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            alarm(120);
            setenv("CTRT_SIM", "devices=1,memory=8m", 1);
            dup2(fileno(file), STDERR_FILENO);
            _exit(access_memory(c->access));
        }
        REQUIRE_EQ(waitpid(child, &status, 0), child);
        rewind(file);
        output[fread(output, 1, sizeof output - 1, file)] = '\0';
        fclose(file);
        CHECK_EQ(WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status), c->end);
        CHECK_HAS(output, c->words);
        CHECK_HAS(output, c->more);
        CHECK(c->words[0] != '\0' || strstr(output, "ctrt") == NULL, "reported as an access to a device: %s", output);
    }
}

/* ---- failing host allocations, and release at close ---- */

static ctrt_status open_and_use(void)
{
    ctrt_device *opened = NULL;
    CTRT_AUTO(stream) stream = NULL;
    CTRT_AUTO(event) event = NULL;
    CTRT_AUTO(tensor) x = NULL, pinned = NULL;
    TRY(ctrt_device_get(&opened, "sim:1"));
    TRY(ctrt_stream_new(&stream, opened, 0));
    TRY(ctrt_event_new(&event, opened, false));
    TRY(ctrt_empty_pinned(&pinned, CTRT_SHAPE(4), CTRT_F32, opened));
    TRY(ctrt_ones(&x, CTRT_SHAPE(4), CTRT_F32, opened));
    TRY(ctrt_add_scalar_(x, ctrt_float(1)));
    TRY(ctrt_event_record(event, NULL));
    TRY(ctrt_stream_wait_event(stream, event));
    TRY(ctrt_copy_(pinned, x));
    return ctrt_device_synchronize(opened);
}

SIM_TEST(no_host_memory, "each failing host allocation gives CTRT_ERR_OUT_OF_MEMORY and a message",
         "CTRT_SIM=devices=2", "CTRT_MEMORY=caching:expandable=true", "CTRT_LOG=error")
{
    uint64_t n = 1, failures = 0;
    CHECK_OK(open_and_use());
    CHECK_OK(ctrt_shutdown());
    for (;; n++) {
        alloc_fail_at(n, false);
        const ctrt_status status = open_and_use();
        const uint64_t made = alloc_fail_at(0, false);
        CHECK_OK(open_and_use());       /* also a device that failed to open */
        CHECK_OK(ctrt_shutdown());
        if (made < n)
            break;
        failures += status != CTRT_OK;
        CHECK(status == CTRT_OK || (status == CTRT_ERR_OUT_OF_MEMORY && ctrt_error_message()[0] != '\0'),
              "host allocation %d fails: %s: %s", (int)n, ctrt_status_string(status), ctrt_error_message());
    }
    CHECK(failures > 8, "only %d of %d allocations failed", (int)failures, (int)n);
}
SIM_AGAIN(no_host_memory, "the same with two policies",
          "CTRT_SIM=devices=2", "CTRT_MEMORY=spill+caching", "CTRT_LOG=error")

SIM_TEST(close_with_work, "closing a device with work enqueued releases its threads, files and mappings",
         "CTRT_SIM=devices=2,latency=1ms")
{
    size_t threads = 0, files = 0, mappings = 0;
    for (int round = 0; round < 12; round++) {
        void *range = NULL;
        CHECK_OK(backend->device->open(&handle, 1));
        CHECK_OK(memory->reserve(handle, &range, 4 * MIB));
        for (int i = 0; i < 4; i++) {
            void *queue = NULL, *block = alloc(4);
            CHECK_OK(queues->create(handle, &queue, 0));
            for (int k = 0; k < 5; k++)
                CHECK_OK(memory->fill(handle, queue, block, k, 4));
            if (i % 2)
                queues->destroy(handle, queue);
        }
        const int workers = (int)sim_read(1).threads;           /* two live queues, two that may have ended */
        CHECK(workers >= 2 && workers <= 5, "%d worker threads, expected 2 to 5", workers);
        backend->device->close(handle);
        if (round == 1) {               /* the C library has made its permanent allocations by then */
            threads = folder_files("/proc/self/task");
            files = folder_files("/proc/self/fd");
            mappings = (size_t)folder_lines("/proc/self/maps", "");
        }
    }
    CHECK_EQ(folder_files("/proc/self/task"), threads);
    CHECK_EQ(folder_files("/proc/self/fd"), files);
    const size_t now = (size_t)folder_lines("/proc/self/maps", "");     /* sanitizers map memory of their own */
    CHECK(SANITIZED || now <= mappings + 5, "%zu mappings, %zu after the second round", now, mappings);
}

TEST_MAIN
{
    sim_opened = use;
    return run_tests();
}
