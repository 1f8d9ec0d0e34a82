/* SPDX-License-Identifier: Apache-2.0 */
/* Tests simulated devices and their process: host accesses to device memory, fork, failing host allocations, and that
 * closing a device releases its resources. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <sys/mman.h>

#include "sim_host.h"

static float value_of(void *device, const ctrt_view *x)
{
    float got = -1;
    sim_download(device, &got, x->data, sizeof got);
    return got;
}

/* ---- host accesses to device memory ---- */

/* Runs `function` in a child process and stores its stderr in `said`. Returns the exit status, or 256 + the signal that
 * ended the child. */
static int in_child(int (*function)(void), char *said, size_t bytes)
{
    int ends[2];
    ssize_t used = 0, got;
    REQUIRE_EQ(pipe(ends), 0);
    pid_t child = fork();
    REQUIRE_TRUE(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);       /* removes a sanitizer's handler */
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
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static char *touched;                   /* a block of device memory in the child */

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

/* The previously installed SIGSEGV handler still runs, on its alternate stack. */
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

static void the_host_touches(void)
{
    static const struct {
        const char *what;
        int (*function)(void);
        int end;
        const char *words, *more;
    } cases[] = {
        { "a read of a block", reads, 256 + SIGSEGV, "memory of sim:0 at 0x",
          ", the result of neg in encoder.0, byte 24 of a block of 1024 bytes. Copy it to the host first: ctrt_cpu" },
        { "a write to a block", writes, 256 + SIGSEGV, "ctrt: the host ", "byte 24 of a block of 1024" },
        { "a read of freed memory", reads_freed, 256 + SIGSEGV, "memory of sim:0", "which is not allocated" },
        { "a read of a mapped page", reads_reserved, 256 + SIGSEGV, "memory of sim:0",
          "byte 5 of a reservation of 4194304 bytes" },
        { "a read of a named tensor", reads_named, 256 + SIGSEGV, "tensor \"fc.weight\" f32[3,4], byte 24",
          "ctrt_to_host" },
        { "a read with an earlier SIGSEGV handler", reads_with_a_handler, 7, "memory of sim:0",
          "byte 0 of a block of 1024" },
        { "a read of memory of no device", reads_elsewhere, 256 + SIGSEGV, "", "" },
    };
    char said[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int end = in_child(cases[i].function, said, sizeof said);
        REQUIRE(end == cases[i].end, "%s: the child ended with %d, expected %d (256 + signal); its stderr: %s",
                cases[i].what, end, cases[i].end, said);
        REQUIRE(!(strstr(said, cases[i].words) == NULL || strstr(said, cases[i].more) == NULL),
                "%s: no \"%s\" and \"%s\" in: %s", cases[i].what, cases[i].words, cases[i].more, said);
        REQUIRE(!(cases[i].words[0] == '\0' && strstr(said, "ctrt") != NULL),
                "%s: ctrt reported an access that is not its own: %s", cases[i].what, said);
    }
}

/* ---- fork ---- */

static void *parents_device, *parents_queue, *parents_event;
static ctrt_view parents_vector;

#define EXPECT(condition)                                                       \
    do {                                                                        \
        if (!(condition)) {                                                     \
            dprintf(2, "line %d: not %s: %s\n", __LINE__, #condition, host_error); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

static void called(void *argument)
{
    *(bool *)argument = true;
}

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
    EXPECT(strstr(host_error, "sim:0 was opened by process") != NULL);
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
#ifndef __SANITIZE_THREAD__             /* it cannot start threads in the child of a multithreaded program */
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

static void fork_beside_work(void)
{
    float zero = 0;
    char said[4096];
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
        REQUIRE(end == 0, "the child ended with %d (256 + signal): %s", end, said);
    }
    MUST(sim->queue->synchronize(parents_device, parents_queue));
    REQUIRE_EQ(value_of(parents_device, &parents_vector), 9);
    sim->queue->event_destroy(parents_device, parents_event);
    sim->device->close(parents_device);
}

/* ---- failing host allocations, and release at close ---- */

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

static void no_host_memory(void)
{
    int failed = 0;
    setenv("CTRT_SIM", "devices=1,memory=4m", 1);
    MUST(a_bit_of_everything());
    for (long n = 1;; n++) {
        host_allocs_left = n;
        host_error[0] = '\0';
        ctrt_status status = a_bit_of_everything();
        bool reached = host_allocs_left == 0;
        host_allocs_left = 0;
        if (!reached) {
            MUST(status);
            break;
        }
        failed++;
        REQUIRE(!(status != CTRT_ERR_OUT_OF_MEMORY || host_error[0] == '\0'),
                "host allocation %ld failed: status %d: %s", n, (int)status, host_error);
    }
    REQUIRE(!(failed < 8), "only %d host allocations were made, expected at least 8", failed);
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

/* Closing a device releases its threads, files and mappings, even with work still enqueued. */
static void close_gives_back(void)
{
    int threads = 0, files = 0, maps = 0;
    float zero = 0;
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
            /* the device's own queue, two live ones, two that may have ended */
            uint64_t workers = sim_counted(i).threads;
            REQUIRE(!(workers < 3 || workers > 5), "%d worker threads, expected 3 to 5", (int)workers);
        }
        for (int i = 0; i < 3; i++)
            sim->device->close(device[i]);
        if (round == 1)                 /* the C library has made its permanent allocations by then */
            threads = sim_thread_count(), files = open_files(), maps = lines_of("/proc/self/maps");
    }
    REQUIRE_EQ(sim_thread_count(), threads);
    REQUIRE_EQ(open_files(), files);
/* the sanitizers map and unmap memory of their own */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    REQUIRE(!(lines_of("/proc/self/maps") > maps + 2), "%d mappings, %d after the second round",
            lines_of("/proc/self/maps"), maps);
#else
    (void)maps;
#endif
}

TEST_MAIN
{
    sim_reload();
    group("a host access to device memory ends with SIGSEGV and names device, tensor and offset");
    the_host_touches();
    group("fork with work enqueued: the child gets CTRT_ERR_FORKED, the parent's work goes on");
    fork_beside_work();
    group("each failing host allocation gives CTRT_ERR_OUT_OF_MEMORY and a message");
    no_host_memory();
    group("closing a device with work enqueued releases its threads, files and mappings");
    close_gives_back();
    return done();
}
