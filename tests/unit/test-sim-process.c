/* SPDX-License-Identifier: Apache-2.0 */
/* Tests simulated devices and their process: host accesses to device memory, fork, failing host allocations, and that
 * closing a device releases its resources. */
#include <signal.h>
#include <sys/mman.h>

#include "calls.h"
#include "child.h"
#include "sim_host.h"

/* Runs function(argument) in a child process and stores its stderr in `output`. Returns the exit status, or 256 + the
 * signal that ended the child. */
static int in_child(int (*function)(int), int argument, char *output, size_t bytes)
{
    int status = 0;
    FILE *file = tmpfile();
    REQUIRE_TRUE(file != NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);       /* removes a sanitizer's handler */
        alarm(60);
        dup2(fileno(file), STDERR_FILENO);
        _exit(function(argument));
    }
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    rewind(file);
    output[fread(output, 1, bytes - 1, file)] = '\0';
    fclose(file);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- host accesses to device memory ---- */

static bool name_tensor(char *text, size_t bytes, const void *address)
{
    (void)address;
    strncpy(text, "tensor \"fc.weight\" f32[3,4]", bytes);
    return true;
}

static void exit_with_seven(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    _exit(7);
}

/* Installs a SIGSEGV handler on an alternate stack before the simulated device installs its own. */
static void install_handler(void)
{
    struct sigaction action = { .sa_sigaction = exit_with_seven, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
}

enum access { READ, WRITE, READ_FREED, READ_PAGE, READ_NAMED, READ_HANDLED, READ_ELSEWHERE };

/* Accesses byte 24 of a block. */
static int access_memory(int access)
{
    if (access == READ_HANDLED)
        install_handler();
    void *device = sim_open("devices=1,memory=4m", 0);
    sim_alloc(device, 100);
    char *address = sim_alloc(device, 1000);
    if (access == READ_FREED)
        sim->memory->free(device, address, 1000);
    if (access == READ_PAGE) {
        MUST(sim->memory->reserve(device, (void **)&address, 4 << 20), sim->memory->map(device, address, 2 << 20));
    }
    if (access == READ_NAMED)
        control->set_namer(name_tensor);
    if (access == READ_ELSEWHERE)
        address = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (access == WRITE)
        *(volatile char *)(address + 24) = 1;
    return *(volatile char *)(address + 24);
}

static void host_accesses(void)
{
    static const struct {
        const char *what;
        enum access access;
        int end;
        const char *words, *more;
    } cases[] = {
        { "a read of a block", READ, 256 + SIGSEGV, "memory of sim:0 at 0x",
          ", the result of neg in encoder.0, byte 24 of a block of 1024 bytes. Copy it to the host first: ctrt_cpu" },
        { "a write to a block", WRITE, 256 + SIGSEGV, "ctrt: the host ", "byte 24 of a block of 1024" },
        { "a read of freed memory", READ_FREED, 256 + SIGSEGV, "memory of sim:0", "which is not allocated" },
        { "a read of a mapped page", READ_PAGE, 256 + SIGSEGV, "memory of sim:0",
          "byte 24 of a reservation of 4194304 bytes" },
        { "a read of a named tensor", READ_NAMED, 256 + SIGSEGV, "tensor \"fc.weight\" f32[3,4], byte 24",
          "ctrt_to_host" },
        { "a read with an earlier SIGSEGV handler", READ_HANDLED, 7, "memory of sim:0", "byte 24 of a block of 1024" },
        { "a read of memory of no device", READ_ELSEWHERE, 256 + SIGSEGV, "", "" },
    };
    char output[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int end = in_child(access_memory, (int)cases[i].access, output, sizeof output);
        REQUIRE(end == cases[i].end, "%s: the child ended with %d, expected %d (256 + signal); its stderr: %s",
                cases[i].what, end, cases[i].end, output);
        REQUIRE(strstr(output, cases[i].words) != NULL && strstr(output, cases[i].more) != NULL,
                "%s: no \"%s\" and \"%s\" in: %s", cases[i].what, cases[i].words, cases[i].more, output);
        REQUIRE(cases[i].words[0] != '\0' || strstr(output, "ctrt") == NULL,
                "%s: ctrt reported an access that is not its own: %s", cases[i].what, output);
    }
}

/* ---- fork ---- */

#define FORKED(...)            EACH_ARG(FORKED_ONE, , , __VA_ARGS__)
#define FORKED_ONE(a, b, call) CHECK_EQ(call, CTRT_ERR_FORKED)

static void no_call(void *argument)
{
    (void)argument;
}

/* Calls every function in a child process with the parent's device, queue, event and vector. */
static void every_slot(void *d, void *q, void *e, ctrt_view *vector)
{
    void *x = vector->data, *out = NULL;
    static float one;                       /* copies that are not waited for after a failure still read it */
    bool yes;
    double ms;
    uint64_t n;
    int32_t count = 0;
    ctrt_device_info info = { .size = sizeof info };
    alarm(60);
    one = 1;
    MUST(sim->device->count(&count), sim->device->describe(0, &info));
    CHECK_TRUE(count == 1 && info.total_memory == 1 << 20);
    FORKED(sim->device->memory_info(d, &n, &n));
    CHECK_HAS(host_error, "sim:0 was opened by process");
    FORKED(sim->memory->alloc(d, &out, 512), sim->memory->copy(d, q, x, &one, 1, CTRT_COPY_TO_DEVICE),
           sim->memory->fill(d, q, x, 0, 4), sim->memory->host_alloc(d, &out, 512),
           sim->memory->reserve(d, &out, 2 << 20), sim->memory->map(d, x, 2 << 20), sim->queue->create(d, &out, 0),
           sim->queue->synchronize(d, q), sim->queue->synchronize(d, NULL), sim->queue->query(d, q, &yes),
           sim->queue->host_call(d, q, no_call, NULL), sim->queue->event_create(d, &out, false));
    FORKED(sim->queue->event_record(d, e, q), sim->queue->wait_event(d, q, e), sim->queue->event_query(d, e, &yes),
           sim->queue->event_synchronize(d, e), sim->queue->event_elapsed(d, e, e, &ms), sim->queue->error(d, q, &n),
           sim->queue->reset(d, q), sim_add(d, q, 1, vector, 1));
    sim->memory->free(d, x, 4);
    sim->queue->event_destroy(d, e);
    sim->queue->destroy(d, q);
    sim->device->close(d);
#ifndef __SANITIZE_THREAD__             /* it cannot start threads in the child of a multithreaded program */
    d = sim_open("devices=1,memory=1m", 0);
    const ctrt_view mine = sim_number(d, 1);
    MUST(sim_add(d, NULL, 1, &mine, 1));
    CHECK_EQ(sim_value(d, &mine), 2);
    sim->device->close(d);
#endif
}

static void fork_beside_work(void)
{
    void *device = sim_open("devices=1,memory=1m", 0), *queue = sim_queue(device), *event = sim_event(device);
    ctrt_view vector = sim_number(device, 0);
    MUST(control->set_latency(0, 20000000));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            MUST(sim_add(device, queue, 1, &vector, 1));
        MUST(sim->queue->event_record(device, event, queue));
        IN_FORK
            every_slot(device, queue, event, &vector);
    }
    MUST(sim->queue->synchronize(device, queue));
    REQUIRE_EQ(sim_value(device, &vector), 9);
    sim_close(device);
}

/* ---- failing host allocations, and release at close ---- */

static ctrt_status use_device(void *device, void **event)
{
    void *queue = NULL, *block = NULL, *pinned = NULL, *range = NULL;
    static float one;                       /* copies that are not waited for after a failure still read it */
    one = 1;
    TRY(sim->queue->create(device, &queue, 0), sim->queue->event_create(device, event, false),
        sim->memory->alloc(device, &block, 4), sim->memory->host_alloc(device, &pinned, 100));
    sim->memory->host_free(device, pinned, 100);
    CTRT_TRY(sim->memory->reserve(device, &range, 2 << 20));
    sim->memory->unreserve(device, range, 2 << 20);
    ctrt_view x = sim_vector(block, 1);
    TRY(sim->memory->copy(device, queue, block, &one, 4, CTRT_COPY_TO_DEVICE), sim_add(device, queue, 1, &x, 1),
        sim->queue->event_record(device, *event, queue), sim->queue->wait_event(device, NULL, *event),
        sim->memory->copy(device, NULL, &one, block, 4, CTRT_COPY_TO_HOST), sim->queue->synchronize(device, NULL));
    return one == 2 ? CTRT_OK : CTRT_ERR_INTERNAL;
}

static ctrt_status open_and_use(void)
{
    void *device = NULL, *event = NULL;
    CTRT_TRY(sim->device->open(&device, 0));
    const ctrt_status used = use_device(device, &event), done = sim->queue->synchronize(device, NULL);
    sim->queue->event_destroy(device, event);
    sim_close(device);
    return used != CTRT_OK ? used : done;
}

static void no_host_memory(void)
{
    setenv("CTRT_SIM", "devices=1,memory=4m", 1);
    MUST(open_and_use());
    long n = 0;
    for (bool reached = true; reached;) {
        host_allocs_left = ++n;
        host_error[0] = '\0';
        ctrt_status status = open_and_use();
        reached = host_allocs_left == 0;
        host_allocs_left = 0;
        REQUIRE(reached ? status == CTRT_ERR_OUT_OF_MEMORY && host_error[0] != '\0' : status == CTRT_OK,
                "host allocation %ld fails: status %d: %s", n, (int)status, host_error);
    }
    REQUIRE(n > 8, "only %ld host allocations were made", n - 1);
}

static int mapping_count(void)
{
    int count = 0, c;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && (c = getc(file)) != EOF)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

/* Closing a device releases its threads, files and mappings, even with work still enqueued. */
static void close_with_work(void)
{
    size_t threads = 0, files = 0;
    int mappings = 0;
    for (int round = 0; round < 12; round++) {
        void *device = sim_open("devices=1,memory=2m,latency=1ms", 0), *range = NULL;
        MUST(sim->memory->reserve(device, &range, 4 << 20));
        for (int i = 0; i < 4; i++) {
            ctrt_view x = sim_number(device, 0);
            void *queue = sim_queue(device);
            for (int k = 0; k < 5; k++)
                MUST(sim_add(device, queue, 1, &x, 1));
            if (i % 2)
                sim->queue->destroy(device, queue);
        }
        /* the device's own queue, two live ones, two that may have ended */
        const int workers = (int)sim_counted(0).threads;
        REQUIRE(workers >= 3 && workers <= 5, "%d worker threads, expected 3 to 5", workers);
        sim_close(device);
        if (round == 1) {               /* the C library has made its permanent allocations by then */
            threads = folder_files("/proc/self/task");
            files = folder_files("/proc/self/fd");
            mappings = mapping_count();
        }
    }
    REQUIRE_EQ(folder_files("/proc/self/task"), threads);
    REQUIRE_EQ(folder_files("/proc/self/fd"), files);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)     /* they map and unmap memory of their own */
    REQUIRE(mapping_count() <= mappings + 5, "%d mappings, %d after the second round", mapping_count(), mappings);
#else
    (void)mappings;
#endif
}

TEST_MAIN
{
    sim_reload();
    group("a host access to device memory ends with SIGSEGV and names device, tensor and offset");
    host_accesses();
    group("fork with work enqueued: the child gets CTRT_ERR_FORKED, the parent's work goes on");
    fork_beside_work();
    group("each failing host allocation gives CTRT_ERR_OUT_OF_MEMORY and a message");
    no_host_memory();
    group("closing a device with work enqueued releases its threads, files and mappings");
    close_with_work();
    return done();
}
