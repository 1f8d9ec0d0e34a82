/* SPDX-License-Identifier: Apache-2.0 */
/* contract_kernel.c: checks of backends: kernels, threads, processes, failing allocations of host memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

#include <sys/mman.h>

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#define dev contract_dev

/* ---- kernels ---- */

static float add(float x, float y) { return x + y; }
static float mul(float x, float y) { return x * y; }
static float sub(float x, float y) { return x - y; }
static float neg(float x, float y) { return (void)y, -x; }
static float relu(float x, float y) { return (void)y, x > 0 ? x : 0; }
static const struct { const char *op; float (*reference)(float, float); uint32_t inputs; } ops[] = {
    { "add", add, 2 }, { "mul", mul, 2 }, { "sub", sub, 2 }, { "neg", neg, 1 }, { "relu", relu, 1 },
};
enum { OPS = sizeof ops / sizeof ops[0] };

const ctrt_kernel *dev_kernel(const char *op)
{
    const ctrt_kernel_table *kernels = CTRT_SLOT(dev.table, kernels) ? dev.table->kernels : NULL;
    for (size_t i = 0; kernels != NULL && i < kernels->count; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)kernels->kernels + i * kernels->stride);
        if (strcmp(kernel->op, op) == 0 && (kernel->dtypes & CTRT_DTYPE_BIT(CTRT_F32)))
            return kernel;
    }
    return NULL;
}

static void kernels_prepare(void)
{
    static bool done;
    if (!done && CTRT_SLOT(dev.table->kernels, prepare))
        CALL(dev.table->kernels->prepare(dev.handle), "prepare of the kernels");
    done = true;
}

void dev_call_new(struct dev_call *call, int64_t n, unsigned seed)
{
    const size_t bytes = (size_t)n * sizeof(float);
    *call = (struct dev_call){ .n = n };
    for (int i = 0; i < OPS && call->kernel == NULL; i++) {
        call->kernel = dev_kernel(ops[i].op);
        call->reference = ops[i].reference;
    }
    if (call->kernel == NULL)
        contract_skip("it has no kernel of add, mul, sub, neg or relu for f32");
    kernels_prepare();
    call->host = contract_alloc(3 * bytes);
    for (int64_t i = 0; i < 2 * n; i++)
        call->host[i] = (float)((i * 7 + seed) % 1000) - 500;
    call->x = dev_alloc(bytes), call->y = dev_alloc(bytes), call->out = dev_alloc(bytes + 64);
    dev_upload(call->x, call->host, bytes);
    dev_upload(call->y, call->host + n, bytes);
    dev_fill(dev.stream, call->out, 0x5a, bytes + 64);
    dev_wait(dev.stream);
}

/* accepts and workspace must not read the data, which is here at an address that cannot be read. */
static void call_unread(ctrt_call *call, ctrt_view views[3])
{
    static void *nowhere;
    void *data[3];
    size_t bytes = 0;
    if (nowhere == NULL)
        nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3; i++)
        data[i] = views[i].data, views[i].data = nowhere;
    contract_step("accepts of %s", call->kernel->op);
    if (CTRT_SLOT(call->kernel, accepts))
        (void)call->kernel->accepts(call);
    if (CTRT_SLOT(call->kernel, workspace))
        CALL(call->kernel->workspace(call, &bytes), "workspace of %s", call->kernel->op);
    for (int i = 0; i < 3; i++)
        views[i].data = data[i];
}

void dev_call_run(struct dev_call *test, void *queue, enum dev_form form)
{
    static _Atomic uint64_t sequence;
    struct { ctrt_call call; ctrt_view views[3]; const ctrt_view *pointers[3]; float number; } c;
    memset(&c, 0, sizeof c);
    void *const data[3] = { test->x, test->y, form >= IN_PLACE ? test->x : test->out };
    uint32_t inputs = 1;
    for (int i = 0; i < OPS; i++)
        inputs = strcmp(ops[i].op, test->kernel->op) == 0 ? ops[i].inputs : inputs;
    for (int i = 0; i < 3; i++)
        c.views[i] = (ctrt_view){ .data = data[i], .numel = test->n, .dtype = CTRT_F32, .ndim = 1,
                                  .flags = CTRT_VIEW_CONTIGUOUS, .shape = { test->n }, .strides = { 1 } };
    test->scalar = form == SCALAR && inputs == 2;
    if (test->scalar) {
        c.number = test->host[test->n];
        c.views[1] = (ctrt_view){ .data = &c.number, .numel = 1, .dtype = CTRT_F32, .ndim = 1, .shape = { test->n },
                                  .flags = CTRT_VIEW_HOST_SCALAR };
    }
    c.pointers[0] = &c.views[0];
    c.pointers[1] = form == IN_PLACE_TWICE ? &c.views[0] : &c.views[1];
    c.pointers[2] = form >= IN_PLACE ? &c.views[0] : &c.views[2];
    c.call = (ctrt_call){ .size = sizeof c.call, .device = dev.handle, .queue = queue, .inputs = &c.pointers[0],
                          .outputs = &c.pointers[2], .n_inputs = inputs, .n_outputs = 1, .kernel = test->kernel,
                          .sequence = dev.queue != NULL ? ++sequence : 0 };
    call_unread(&c.call, c.views);
    if (CTRT_SLOT(test->kernel, workspace)) {
        CALL(test->kernel->workspace(&c.call, &c.call.workspace_bytes), "workspace of %s", test->kernel->op);
        c.call.workspace = c.call.workspace_bytes > 0 ? dev_alloc(c.call.workspace_bytes) : NULL;
    }
    CALL(test->kernel->run(&c.call), "run of %s%s", test->kernel->op,
         CTRT_SLOT(test->kernel, workspace) ? "" : ", which has no slot `workspace`, so call->workspace is NULL");
    memset(&c, 0xdd, sizeof c);
}

void dev_call_check(struct dev_call *call, void *queue)
{
    const size_t bytes = (size_t)call->n * sizeof(float);
    float *got = contract_alloc(3 * bytes + 64);
    dev_copy(queue, got, call->out, bytes + 64, CTRT_COPY_TO_HOST);
    dev_copy(queue, got + call->n + 16, call->x, bytes, CTRT_COPY_TO_HOST);
    dev_copy(queue, got + 2 * call->n + 16, call->y, bytes, CTRT_COPY_TO_HOST);
    dev_wait(queue);
    for (int64_t i = 0; i < call->n; i++) {
        const float want = call->reference(call->host[i], call->host[call->n + (call->scalar ? 0 : i)]);
        EXPECT(got[i] == want, "%s: element %lld of %lld is %g, expected %g%s", call->kernel->op, (long long)i,
               (long long)call->n, (double)got[i], (double)want,
               call->scalar ? "; input 1 is a CTRT_VIEW_HOST_SCALAR" : "");
    }
    contract_expect_bytes(got + call->n, 64, 0x5a, "memory after the output");
    EXPECT(memcmp(got + call->n + 16, call->host, 2 * bytes) == 0, "%s changed an input", call->kernel->op);
    free(got);
}

static void check_kernel(void)
{
    struct dev_call call;
    static const int64_t counts[] = { 1, 5, 1000, 70001 };
    for (int i = 0; i < 4; i++) {
        dev_call_new(&call, counts[i], (unsigned)i);
        for (int form = PLAIN; form <= SCALAR; form++) {
            dev_call_run(&call, dev.stream, form);
            dev_call_check(&call, dev.stream);
        }
    }
    if (!(call.kernel->flags & CTRT_KERNEL_INPLACE))
        return;
    const size_t bytes = (size_t)call.n * sizeof(float);
    for (int form = IN_PLACE; form <= IN_PLACE_TWICE; form++) {
        dev_call_run(&call, dev.stream, form);
        dev_copy(dev.stream, call.out, call.x, bytes, CTRT_COPY_ON_DEVICE);
        dev_upload(call.x, call.host, bytes);
        if (form == IN_PLACE_TWICE) {
            memcpy(call.host + call.n, call.host, bytes);
            dev_upload(call.y, call.host, bytes);
        }
        dev_call_check(&call, dev.stream);
    }
}

static atomic_bool call_ended;

static void end_later(void *unused)
{
    (void)unused;
    contract_sleep(60);
    atomic_store(&call_ended, true);
}

static void check_close(void)
{
    if (!CTRT_SLOT(dev.queue, host_call))
        contract_skip("it has no host_call");
    CALL(dev.queue->host_call(dev.handle, dev.stream, end_later, NULL), "host_call");
    contract_step("destroy of a queue with work, and close of the device");
    dev.queue->destroy(dev.handle, dev.stream);
    dev.device->close(dev.handle);
    EXPECT(atomic_load(&call_ended), "close has returned, but work of the device has not ended");
}

static struct dev_call overlapping[4];
static void *overlapping_queues[4];

static void overlap_body(int number)
{
    for (int i = 0; i < 100; i++) {
        dev_call_run(&overlapping[number], overlapping_queues[number], i % 2 ? SCALAR : PLAIN);
        if (i % 9 == 0)
            dev_call_check(&overlapping[number], overlapping_queues[number]);
    }
}

static void check_overlap(void)
{
    for (unsigned i = 0; i < 4; i++) {
        dev_call_new(&overlapping[i], 3000 + i, i * 77);
        overlapping_queues[i] = dev.queue != NULL ? dev_queue() : NULL;
    }
    contract_in_threads(overlap_body, 4);
}

/* ---- threads, processes ---- */

static void dev_threads(int number)
{
    unsigned char *host = contract_alloc(1 << 17), *blocks[8];
    void *queue = dev.queue != NULL ? dev_queue() : NULL;
    for (unsigned round = 0; round < 12; round++) {
        for (unsigned i = 0; i < 8; i++) {
            blocks[i] = dev_alloc(1000 << i);
            contract_pattern(host, 1000 << i, round * 64 + i * 8 + (unsigned)number);
            dev_copy(queue, blocks[i], host, 1000 << i, CTRT_COPY_TO_DEVICE);
            dev_wait(queue);
        }
        for (unsigned i = 0; i < 8; i++) {
            dev_copy(queue, host, blocks[i], 1000 << i, CTRT_COPY_TO_HOST);
            dev_wait(queue);
            contract_expect_pattern(host, 1000 << i, round * 64 + i * 8 + (unsigned)number,
                                    "a block of one of four threads");
            dev_free(blocks[i], 1000 << i);
        }
    }
    if (queue != NULL)
        dev.queue->destroy(dev.handle, queue);
    free(host);
}

static void check_dev_threads(void)
{
    contract_in_threads(dev_threads, 4);
}

static void round_trip(void)
{
    void *block = dev_alloc(100000);
    dev_fill(dev.stream, block, 0x42, 100000);
    dev_expect_bytes(block, 100000, 0x42, "a block");
}

static void open_in_child(void)
{
    dev_open();
    round_trip();
}

/* count, describe and the probe must not keep a child from using the device. */
static void check_fork_before(void)
{
    contract_join(contract_fork(open_in_child));
    contract_join(contract_fork(open_in_child));
    dev_open();
    round_trip();
}

static void *parents;                           /* a block of the parent */

static void use_in_child(void)
{
    int32_t count = 0;
    ctrt_device_info info = { .size = sizeof info };
    void *block = NULL, *handle = NULL;
    CALL(dev.device->count(&count), "count in a forked child");
    CALL(dev.device->describe(contract_target.device, &info), "describe in a forked child");
    contract_step("alloc in a forked child, on a device of the parent");
    ctrt_status status = dev.memory->alloc(dev.handle, &block, 4096);
    if (status == CTRT_OK)
        round_trip();
    else
        contract_refused(status, CTRT_ERR_FORKED);
    if (dev.queue != NULL && status != CTRT_OK) {
        REFUSES(dev.memory->fill(dev.handle, dev.stream, parents, 1, 4096), CTRT_ERR_FORKED, "fill in a forked child");
        REFUSES(dev.queue->synchronize(dev.handle, dev.stream), CTRT_ERR_FORKED, "synchronize in a forked child");
        contract_step("destroy of a queue and free in a forked child");
        dev.queue->destroy(dev.handle, dev.stream);
        dev.memory->free(dev.handle, parents, 4096);
    }
    contract_step("open in a forked child");
    status = dev.device->open(&handle, contract_target.device);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_OK);
    contract_step("close in a forked child");
    dev.device->close(dev.handle);
}

static void check_fork_after(void)
{
    parents = dev_alloc(4096);
    dev_fill(dev.stream, parents, 3, 4096);
    dev_wait(dev.stream);
    contract_join(contract_fork(use_in_child));
    contract_step("after a child of fork has ended");
    dev_expect_bytes(parents, 4096, 3, "a block of the parent, after a child has freed it");
    dev_free(parents, 4096);
    round_trip();
}

static void call_hangs(int unused)
{
    (void)unused;
    contract_fail("did not return; another thread was in the plugin during the fork, and may have held a lock, which "
                  "the plugin has to take and release in host->at_fork");
}

static void child_of_threads(void)
{
    int32_t count = 0;
    void *block = NULL;
    signal(SIGALRM, call_hangs);
    alarm(5);
    CALL(dev.device->count(&count), "count in a forked child");
    contract_step("alloc in a forked child");
    const ctrt_status status = dev.memory->alloc(dev.handle, &block, 4096);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_ERR_FORKED);
}

/* Two threads allocate and free as fast as they can, so that a fork finds a lock held. */
static void dev_work(int number)
{
    if (number == 1)
        dev_threads(number);
    else
        for (int i = 0; i < 1000; i++)
            dev_free(dev_alloc(4096), 4096);
}

static void check_fork_threads(void)
{
    contract_fork_among(child_of_threads, dev_work);
}

/* Sends or receives a descriptor. Returns false if the other process has ended. */
static bool pass_descriptor(int socket, int *fd, bool send)
{
    char byte = 0;
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { .room = { 0 } };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                              .msg_controllen = sizeof control.room };
    if (send) {
        control.align = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(&control.align), fd, sizeof *fd);
    }
    if ((send ? sendmsg(socket, &message, 0) : recvmsg(socket, &message, 0)) != 1)
        return false;
    if (!send)
        memcpy(fd, CMSG_DATA(&control.align), sizeof *fd);
    return true;
}

static int pair[2], import_child;
enum { SHARED = 3 << 20 };

static void importer(void)
{
    int fd = -1;
    void *address = NULL;
    close(pair[0]);
    dev_open();
    if (!pass_descriptor(pair[1], &fd, false))
        _exit(0);
    CALL(dev.memory->import_memory(dev.handle, &address, SHARED, fd), "import_memory in another process");
    EXPECT(fcntl(fd, F_GETFD) >= 0, "closed the descriptor");
    dev_expect_bytes(address, SHARED, 0x21, "imported memory");
    dev_fill(dev.stream, address, 0x43, SHARED);
    dev_wait(dev.stream);
    if (write(pair[1], "w", 1) != 1 || read(pair[1], &fd, 1) != 1)
        _exit(0);
    dev_expect_bytes(address, SHARED, 0x43, "imported memory after the exporter has freed it");
    dev_free(address, SHARED);
}

static void exporter(void)
{
    int fd = -1;
    char byte;
    close(pair[1]);
    dev_open();
    void *address = dev_alloc(SHARED);
    dev_fill(dev.stream, address, 0x21, SHARED);
    dev_wait(dev.stream);
    contract_step("export_memory");
    ctrt_status status = dev.memory->export_memory(dev.handle, address, SHARED, &fd);
    if (status == CTRT_ERR_NOT_SUPPORTED)
        contract_skip("%s", contract_failure.text);
    contract_ok(status);
    const bool passed = pass_descriptor(pair[0], &fd, true);
    close(fd);
    if (!passed || read(pair[0], &byte, 1) != 1) {
        contract_join(import_child);
        contract_fail("the importing process has ended");
    }
    dev_expect_bytes(address, SHARED, 0x43, "exported memory that another process has written");
    dev_free(address, SHARED);
    (void)!write(pair[0], "f", 1);
    contract_join(import_child);
}

static void check_share(void)
{
    if (!CTRT_SLOT(dev.memory, export_memory))
        contract_skip("it has no export_memory");
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket");
    import_child = contract_fork(importer);
    exporter();
}

/* Uses every part of the device. Statuses are those of calls that host->alloc made fail. */
static ctrt_status small_run(void)
{
    void *handle = NULL, *queue = NULL, *event = NULL, *block = NULL;
    ctrt_status status = dev.device->open(&handle, contract_target.device);
    if (status != CTRT_OK)
        return status;
    const ctrt_queue_table *table = dev.info.flags & CTRT_DEVICE_ASYNCHRONOUS ? dev.table->queue : NULL;
    status = table != NULL ? table->create(handle, &queue, 0) : CTRT_OK;
    if (status == CTRT_OK && table != NULL)
        status = table->event_create(handle, &event, false);
    if (status == CTRT_OK)
        status = dev.memory->alloc(handle, &block, 4096);
    if (status == CTRT_OK)
        status = dev.memory->fill(handle, queue, block, 1, 4096);
    if (status == CTRT_OK && table != NULL)
        status = table->event_record(handle, event, queue);
    if (status == CTRT_OK && table != NULL)
        status = table->wait_event(handle, queue, event);
    if (queue != NULL)
        (void)table->synchronize(handle, queue);
    if (block != NULL)
        dev.memory->free(handle, block, 4096);
    if (event != NULL)
        table->event_destroy(handle, event);
    if (queue != NULL)
        table->destroy(handle, queue);
    dev.device->close(handle);
    return status;
}

static void check_dev_host_memory(void)
{
    contract_step("opening a device and using it");
    (void)small_run();
    (void)small_run();
    const long before = contract_host_blocks();
    for (long n = 1; n < 200; n++) {
        contract_step("opening a device and using it, while call %ld of host->alloc fails", n);
        contract_host_fail(n);
        ctrt_status status = small_run();
        const bool failed = contract_host_failed();
        contract_host_fail(0);
        if (!failed)
            break;
        if (status != CTRT_OK)
            contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
        EXPECT(contract_host_blocks() <= before, "%ld blocks were not freed", contract_host_blocks() - before);
    }
    contract_step("opening a device after failures of host->alloc");
    contract_ok(small_run());
}

static void check_descriptor(void)
{
    close(0);
    dev_open();
    void *address = dev_alloc(1 << 20);
    dev_expect_bytes((dev_fill(dev.stream, address, 7, 4096), address), 4096, 7, "a block");
    char name[64] = "";
    const ssize_t length = readlink("/proc/self/fd/0", name, sizeof name - 1);
    if (length > 0 && strncmp(name, "/dev/", 5) == 0)
        contract_skip("descriptor 0 is %s, which a driver may have opened", name);
    EXPECT(length < 0, "the plugin has a descriptor 0, %s: pass new ones to CTRT_PLUGIN_DESCRIPTOR", name);
}

const struct contract_check contract_kernel_checks[] = {
    { "descriptor", check_descriptor, 0, "no descriptor of a plugin is 0, 1 or 2" },
    { "host.memory", check_dev_host_memory, 0,
      "if host->alloc fails, the call fails with a message, and nothing is lost" },
    { "memory.share", check_share, 0, "exported memory exists until all processes have freed it" },
    { "kernel", check_kernel, NEEDS_OPEN,
      "a call is valid until run returns; inputs and other memory are not changed; accepts does not read the data" },
    { "kernel.overlap", check_overlap, NEEDS_OPEN, "threads may be in run at the same time, with different queues" },
    { "close", check_close, NEEDS_OPEN | NEEDS_QUEUES, "close waits for work that still runs" },
    { "threads", check_dev_threads, NEEDS_OPEN, "slots may be called from any thread" },
    { "fork.before", check_fork_before, 0, "after count and describe, a forked child can open the device" },
    { "fork.after", check_fork_after, NEEDS_OPEN,
      "in a forked child, the parent's device works or is CTRT_ERR_FORKED" },
    { "fork.threads", check_fork_threads, NEEDS_OPEN,
      "in a forked child, calls return, whatever other threads did during the fork (host->at_fork)" },
    { NULL, NULL, 0, NULL },
};
