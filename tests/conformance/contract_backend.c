/* SPDX-License-Identifier: Apache-2.0 */
/* contract_backend.c: checks of backends: tables, device, memory. contract_queue.c has those of queues, and
 * contract_kernel.c those of kernels, threads and processes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

struct contract_backend contract_dev;
#define dev contract_dev

/* ---- helpers ---- */

void dev_open(void)
{
    CALL(dev.device->open(&dev.handle, contract_target.device), "open of device %d", (int)contract_target.device);
    EXPECT(dev.handle != NULL, "returned CTRT_OK and no handle");
    if (dev.info.flags & CTRT_DEVICE_ASYNCHRONOUS) {
        dev.queue = dev.table->queue;
        EXPECT(CTRT_SLOT(dev.queue, create) && CTRT_SLOT(dev.queue, synchronize), "it has no queue table");
        dev.stream = dev_queue();
    }
}

static void dev_prepare(const void *table, unsigned needs)
{
    int32_t count = 0;
    dev.table = table;
    if (CTRT_SLOT(dev.table, base))
        contract_skip("its devices are those of %s", dev.table->base);
    EXPECT(CTRT_SLOT(dev.table, device) && CTRT_SLOT(dev.table, memory), "the table has no device or memory table");
    dev.device = dev.table->device;
    dev.memory = dev.table->memory;
    CALL(dev.device->count(&count), "count");
    EXPECT(count >= 0, "returned CTRT_OK and %d devices", (int)count);
    if (count <= contract_target.device)
        contract_skip("there are %d devices", (int)count);
    dev.info.size = sizeof dev.info;
    CALL(dev.device->describe(contract_target.device, &dev.info), "describe");
    if ((needs & NEEDS_QUEUES) && !(dev.info.flags & CTRT_DEVICE_ASYNCHRONOUS))
        contract_skip("the device is synchronous");
    if (needs)
        dev_open();
}

void *dev_alloc(size_t bytes)
{
    void *address = NULL;
    CALL(dev.memory->alloc(dev.handle, &address, bytes), "alloc of %zu bytes", bytes);
    EXPECT(address != NULL, "returned CTRT_OK and no address");
    return address;
}

void dev_free(void *address, size_t bytes)
{
    contract_step("free of %zu bytes", bytes);
    dev.memory->free(dev.handle, address, bytes);
}

void dev_copy(void *queue, void *to, const void *from, size_t bytes, int kind)
{
    static const char *const kinds[] = { "to the device", "to the host", "on the device" };
    CALL(dev.memory->copy(dev.handle, queue, to, from, bytes, kind), "copy of %zu bytes %s", bytes, kinds[kind]);
}

void dev_fill(void *queue, void *address, int byte, size_t bytes)
{
    CALL(dev.memory->fill(dev.handle, queue, address, byte, bytes), "fill of %zu bytes with 0x%02x", bytes, byte);
}

void dev_wait(void *queue)
{
    if (dev.queue != NULL)
        CALL(dev.queue->synchronize(dev.handle, queue), "synchronize");
}

void dev_upload(void *to, const void *from, size_t bytes)
{
    dev_copy(dev.stream, to, from, bytes, CTRT_COPY_TO_DEVICE);
    dev_wait(dev.stream);
}

void dev_download(void *to, const void *from, size_t bytes)
{
    dev_copy(dev.stream, to, from, bytes, CTRT_COPY_TO_HOST);
    dev_wait(dev.stream);
}

void dev_expect_bytes(const void *address, size_t bytes, int byte, const char *what)
{
    void *host = contract_alloc(bytes);
    memset(host, ~byte, bytes);
    dev_download(host, address, bytes);
    contract_expect_bytes(host, bytes, byte, what);
    free(host);
}

void *dev_queue(void)
{
    void *queue = NULL;
    CALL(dev.queue->create(dev.handle, &queue, 0), "create of a queue");
    EXPECT(queue != NULL, "returned CTRT_OK and no queue");
    return queue;
}

/* ---- tables, properties ---- */

#define HAS(table, slot)     (CTRT_SLOT(table, slot) ? 1 : 0)
#define NEED(table, slot)    EXPECT(CTRT_SLOT(table, slot), "required slot %s of %s is missing", #slot, #table)
#define GROUP(sum, all, text) EXPECT((sum) == 0 || (sum) == (all), "%s: all slots or none", text)

static void check_dev_tables(void)
{
    const ctrt_memory_table *memory = dev.memory;
    const ctrt_device_table *device = dev.device;
    NEED(device, count), NEED(device, describe), NEED(device, open), NEED(device, close);
    NEED(memory, alloc), NEED(memory, free), NEED(memory, copy), NEED(memory, fill);
    GROUP(HAS(memory, host_alloc) + HAS(memory, host_free), 2, "host_alloc, host_free");
    GROUP(HAS(memory, can_access_peer) + HAS(memory, copy_peer), 2, "can_access_peer, copy_peer");
    GROUP(HAS(memory, export_memory) + HAS(memory, import_memory), 2, "export_memory, import_memory");
    GROUP(HAS(memory, reserve) + HAS(memory, unreserve) + HAS(memory, map) + HAS(memory, unmap), 4, "pages");
    EXPECT(!HAS(memory, map) || memory->page_bytes > 0, "page_bytes is 0");
    GROUP(HAS(memory, ordered) + HAS(memory, alloc_on) + HAS(memory, free_on) + HAS(memory, trim), 4, "ordered");
    GROUP(HAS(memory, host_register) + HAS(memory, host_unregister), 2, "host_register, host_unregister");
    if (dev.info.flags & CTRT_DEVICE_ASYNCHRONOUS) {
        const ctrt_queue_table *queue = CTRT_SLOT(dev.table, queue) ? dev.table->queue : NULL;
        NEED(queue, create), NEED(queue, destroy), NEED(queue, synchronize), NEED(queue, wait_event);
        NEED(queue, event_create), NEED(queue, event_destroy), NEED(queue, event_record), NEED(queue, event_query);
        NEED(queue, event_synchronize);
    }
    EXPECT(dev.info.flags & CTRT_DEVICE_ASYNCHRONOUS || !CTRT_SLOT(dev.table, queue)
               || !CTRT_SLOT(dev.table->queue, create),
           "the queue table has create, but describe does not set CTRT_DEVICE_ASYNCHRONOUS");
    const ctrt_capture_table *capture = CTRT_SLOT(dev.table, capture) ? dev.table->capture : NULL;
    GROUP(HAS(capture, begin) + HAS(capture, end) + HAS(capture, replay) + HAS(capture, destroy), 4, "capture");
    const ctrt_kernel_table *kernels = CTRT_SLOT(dev.table, kernels) ? dev.table->kernels : NULL;
#define DTYPE(name, value, ...) | CTRT_DTYPE_BIT(value)
    const uint64_t known = 0
#include "ctrt/dtype.def"
        ;
#undef DTYPE
    for (size_t i = 0; kernels != NULL && i < kernels->count; i++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)kernels->kernels + i * kernels->stride);
        const char *name = "";
        NEED(kernel, op), NEED(kernel, run);
        EXPECT(kernel->dtypes != 0, "kernel %zu (%s) has no dtype", i, kernel->op);
        EXPECT((kernel->dtypes & ~known) == 0,
               "kernel %zu (%s): dtypes is 0x%llx; the bits 0x%llx are no dtypes; it is a set of CTRT_DTYPE_BIT(...)",
               i, kernel->op, (unsigned long long)kernel->dtypes, (unsigned long long)(kernel->dtypes & ~known));
        for (size_t k = 0; strcmp(name, kernel->op) != 0; k++)
            EXPECT(ctrt_op_name(&name, k) == CTRT_OK, "kernel %zu is of op \"%s\", which does not exist", i,
                   kernel->op);
    }
}

static void check_describe(void)
{
    static unsigned char room[2 * sizeof(ctrt_device_info)];
    int32_t count = 0, again = 0;
    CALL(dev.device->count(&count), "count");
    CALL(dev.device->count(&again), "count");
    EXPECT(again == count, "returned %d, before that %d", (int)again, (int)count);
    for (size_t size = sizeof(size_t) + 16; size <= sizeof room; size += 88) {
        const size_t known = size < sizeof dev.info ? size : sizeof dev.info;
        memset(room, 0, size);
        memset(room + size, 0x5a, sizeof room - size);
        memcpy(room, &size, sizeof size);
        CALL(dev.device->describe(contract_target.device, (ctrt_device_info *)(void *)room), "describe, size %zu",
             size);
        contract_expect_bytes(room + size, sizeof room - size, 0x5a, "after the end of the caller's struct");
        EXPECT(memcmp(room, &size, sizeof size) == 0, "size was changed");
        EXPECT(memcmp(room + 8, (char *)&dev.info + 8, known - 8) == 0, "other values than with the whole struct");
    }
    EXPECT(memchr(dev.info.name, '\0', sizeof dev.info.name) != NULL && dev.info.name[0] != '\0', "it has no name");
    EXPECT((dev.info.flags & ~3u) == 0, "flags 0x%x", (unsigned)dev.info.flags);
    EXPECT(dev.info.total_memory <= INT64_MAX, "total_memory is %lld", (long long)dev.info.total_memory);
    EXPECT(dev.info.processors >= 0, "processors is %d", (int)dev.info.processors);
    REFUSES(dev.device->describe(count, &dev.info), CTRT_OK, "describe of device %d of %d", (int)count, (int)count);
    REFUSES(dev.device->describe(-1, &dev.info), CTRT_OK, "describe of device -1");
}

static void check_usage(void)
{
    struct { ctrt_device_usage usage; unsigned char after[64]; } u = { .usage.size = sizeof u.usage - 8 };
    struct { ctrt_device_link link; unsigned char after[64]; } l = { .link.size = sizeof l.link - 8 };
    memset(&u.usage.processes, 0x5a, sizeof u.usage.processes);
    memset(u.after, 0x5a, sizeof u.after);
    memset(&l.link.links, 0x5a, 8);
    memset(l.after, 0x5a, sizeof l.after);
    if (!CTRT_SLOT(dev.device, usage) && !CTRT_SLOT(dev.device, link))
        contract_skip("it has neither slot");
    if (CTRT_SLOT(dev.device, usage)) {
        CALL(dev.device->usage(contract_target.device, &u.usage), "usage");
        contract_expect_bytes(&u.usage.processes, 8 + sizeof u.after, 0x5a, "after the end of the caller's struct");
        EXPECT(u.usage.busy <= 100 && u.usage.memory_busy <= 100, "more than 100 %% busy");
    }
    if (CTRT_SLOT(dev.device, link)) {
        CALL(dev.device->link(contract_target.device, contract_target.device, &l.link), "link to itself");
        contract_expect_bytes(&l.link.links, 8 + sizeof l.after, 0x5a, "after the end of the caller's struct");
    }
}

static void check_open(void)
{
    void *handle = NULL;
    long before = 0;
    int32_t count = 0;
    for (int cycle = 0; cycle < 4; cycle++) {
        dev_open();
        void *address = dev_alloc(4096);
        dev_fill(dev.stream, address, 1, 4096);
        dev_expect_bytes(address, 4096, 1, "a block of an opened device");
        dev_free(address, 4096);
        if (dev.queue != NULL)
            dev.queue->destroy(dev.handle, dev.stream);
        contract_step("close");
        dev.device->close(dev.handle);
        EXPECT(cycle < 2 || contract_host_blocks() <= before,
               "%ld blocks of host->alloc more than after the last close",
               contract_host_blocks() - before);
        before = contract_host_blocks();
    }
    CALL(dev.device->count(&count), "count");
    REFUSES(dev.device->open(&handle, count), CTRT_OK, "open of device %d of %d", (int)count, (int)count);
    EXPECT(handle == NULL, "wrote a handle, although it failed");
}

static void check_memory_info(void)
{
    uint64_t unused = UINT64_MAX, total = 0;
    if (!CTRT_SLOT(dev.device, memory_info))
        contract_skip("it has no memory_info");
    CALL(dev.device->memory_info(dev.handle, &unused, &total), "memory_info");
    EXPECT(unused <= total && total > 0 && total <= INT64_MAX, "%llu of %llu bytes are free",
           (unsigned long long)unused, (unsigned long long)total);
}

/* ---- memory ---- */

static const size_t sizes[] = { 1, 2, 63, 64, 65, 100, 511, 513, 4095, 4096, 4097, 65537, (1 << 20) + 3, 3 << 20 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void check_alloc(void)
{
    unsigned char *blocks[2 * SIZES];
    void *host = contract_alloc(4 << 20);
    for (int i = 0; i < 2 * SIZES; i++) {
        blocks[i] = dev_alloc(sizes[i % SIZES]);
        EXPECT((uintptr_t)blocks[i] % 64 == 0, "returned %p, which is not aligned to 64 bytes", (void *)blocks[i]);
        for (int k = 0; k < i; k++)
            EXPECT(blocks[i] + sizes[i % SIZES] <= blocks[k] || blocks[k] + sizes[k % SIZES] <= blocks[i],
                   "returned %p, which overlaps the block at %p", (void *)blocks[i], (void *)blocks[k]);
    }
    for (int i = 0; i < 2 * SIZES; i++) {
        contract_pattern(host, sizes[i % SIZES], (unsigned)i);
        dev_upload(blocks[i], host, sizes[i % SIZES]);
    }
    for (int i = 0; i < 2 * SIZES; i++) {
        memset(host, 0, sizes[i % SIZES]);
        dev_download(host, blocks[i], sizes[i % SIZES]);
        contract_expect_pattern(host, sizes[i % SIZES], (unsigned)i, "a block, after others were written");
        dev_free(blocks[i], sizes[i % SIZES]);
    }
}

static void check_out_of_memory(void)
{
    enum { MOST = 64 };
    void *blocks[MOST], *address = NULL;
    const size_t bytes = (size_t)(dev.info.total_memory / 16);
    int n = 0;
    REFUSES(dev.memory->alloc(dev.handle, &address, (size_t)1 << 62), CTRT_ERR_OUT_OF_MEMORY, "alloc of 2^62 bytes");
    REFUSES(dev.memory->alloc(dev.handle, &address, SIZE_MAX), CTRT_ERR_OUT_OF_MEMORY, "alloc of 2^64-1 bytes");
    dev_free(dev_alloc(4096), 4096);
    if (bytes == 0 || (dev.info.flags & CTRT_DEVICE_HOST_MEMORY))
        return;
    ctrt_status status = CTRT_OK;
    contract_step("alloc of %zu bytes until the device is full", bytes);
    for (; n < MOST && (status = dev.memory->alloc(dev.handle, &blocks[n], bytes)) == CTRT_OK; n++)
        continue;
    EXPECT(n < MOST, "%d blocks of a sixteenth of the memory were allocated", n);
    contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    for (int i = 0; i < n; i++)
        dev_free(blocks[i], bytes);
    for (int i = 0; i < n; i++)
        blocks[i] = dev_alloc(bytes);
    for (int i = 0; i < n; i++)
        dev_free(blocks[i], bytes);
}

static void check_free(void)
{
    const uint64_t total = dev.info.total_memory > 0 ? dev.info.total_memory : (uint64_t)1 << 30;
    const size_t large = total / 8 < ((size_t)32 << 20) ? (size_t)(total / 8) : (size_t)32 << 20, small = 64 << 10;
    size_t before = 0;
    for (int i = 0; i < 60; i++) {
        dev_free(dev_alloc(large), large);
        for (int k = 0; k < 8; k++)
            dev_free(dev_alloc(small), small);
        if (i == 19)
            before = contract_space();
    }
    /* 40 cycles of up to 32 MiB */
    EXPECT(contract_space() < before + 4 * large + (64 << 20),
           "the process grew by %zu MiB while blocks of %zu bytes were allocated and freed",
           (contract_space() - before) >> 20, large);
    for (uint64_t sum = 0; !(dev.info.flags & CTRT_DEVICE_HOST_MEMORY) && sum < 3 * total; sum += total / 4)
        dev_free(dev_alloc((size_t)(total / 4)), (size_t)(total / 4));
}

static const size_t lengths[] = { 1, 3, 15, 64, 65, 4095, 4097, 65536, (1 << 20) + 7, (3 << 20) + 1 };
enum { LENGTHS = sizeof lengths / sizeof lengths[0], ROOM = (3 << 20) + 512 };

/* Copies with host memory of either kind. */
static void copies(unsigned char *host)
{
    unsigned char *want = contract_alloc(ROOM), *a = dev_alloc(ROOM), *b = dev_alloc(ROOM);
    for (unsigned k = 0; k < 4 * LENGTHS; k++) {
        const size_t n = lengths[k % LENGTHS], to = k % 3 * 7, from = (k + 1) % 4 * 16 + k % 2;
        const size_t room = n + 256;
        contract_pattern(want, room, k);
        memcpy(host, want, room);
        dev_fill(dev.stream, a, 0x11, room);
        dev_fill(dev.stream, b, 0x22, room);
        dev_copy(dev.stream, a + to, host + from, n, CTRT_COPY_TO_DEVICE);
        dev_wait(dev.stream);
        memset(host, 0x33, room);                   /* the copy is done, so it must not read the host's memory now */
        dev_copy(dev.stream, b + from, a + to, n, CTRT_COPY_ON_DEVICE);
        dev_copy(dev.stream, host + to, b + from, n, CTRT_COPY_TO_HOST);
        dev_wait(dev.stream);
        contract_expect_bytes(host, to, 0x33, "host memory before the target of a copy");
        EXPECT(memcmp(host + to, want + from, n) == 0, "%zu bytes are not those that were copied to the device", n);
        contract_expect_bytes(host + to + n, 64, 0x33, "host memory after the target of a copy");
        dev_download(host, b, from + n + 64);
        contract_expect_bytes(host, from, 0x22, "device memory before the target of a copy");
        contract_expect_bytes(host + from + n, 64, 0x22, "device memory after the target of a copy");
    }
    dev_copy(dev.stream, a, host, 0, CTRT_COPY_TO_DEVICE);
    dev_fill(dev.stream, a, 1, 0);
    dev_wait(dev.stream);
    dev_free(a, ROOM), dev_free(b, ROOM);
    free(want);
}

static void check_dev_copy(void)
{
    copies(contract_alloc(ROOM));
}

static void check_pinned(void)
{
    void *host = NULL;
    if (!CTRT_SLOT(dev.memory, host_alloc))
        contract_skip("it has no host_alloc");
    for (int i = 0; i < 64; i++) {
        CALL(dev.memory->host_alloc(dev.handle, &host, ROOM), "host_alloc of %d bytes", ROOM);
        EXPECT(host != NULL && (uintptr_t)host % 64 == 0, "returned %p", host);
        memset(host, 1, ROOM);
        if (i == 0)
            copies(host);
        contract_step("host_free");
        dev.memory->host_free(dev.handle, host, ROOM);
    }
    REFUSES(dev.memory->host_alloc(dev.handle, &host, SIZE_MAX / 2), CTRT_ERR_OUT_OF_MEMORY,
            "host_alloc of 2^63-1 bytes");
}

static void check_register(void)
{
    const size_t page = 4096, bytes = (ROOM + page - 1) / page * page;
    void *host = NULL;
    if (!CTRT_SLOT(dev.memory, host_register))
        contract_skip("it has no host_register");
    EXPECT(posix_memalign(&host, page, bytes) == 0, "the host has no memory");
    for (int i = 0; i < 2; i++) {
        CALL(dev.memory->host_register(dev.handle, host, bytes), "host_register of %zu bytes", bytes);
        copies(host);
        contract_step("host_unregister");
        dev.memory->host_unregister(dev.handle, host, bytes);
    }
    copies(host);
}

static void check_fill(void)
{
    unsigned char *host = contract_alloc(ROOM), *a = dev_alloc(ROOM);
    static const int bytes[] = { 0, 0xff, 0x80, 1 };
    for (int k = 0; k < 2 * LENGTHS; k++) {
        const size_t n = lengths[k % LENGTHS], at = (size_t)k % 5 * 3;
        dev_fill(dev.stream, a, 0x11, ROOM);
        dev_fill(dev.stream, a + at, bytes[k % 4], n);
        dev_download(host, a, at + n + 64);
        contract_expect_bytes(host, at, 0x11, "before the filled memory");
        contract_expect_bytes(host + at, n, bytes[k % 4], "filled memory");
        contract_expect_bytes(host + at + n, 64, 0x11, "after the filled memory");
    }
}

static void check_pages(void)
{
    const size_t page = CTRT_SLOT(dev.memory, map) ? dev.memory->page_bytes : 0;
    char *range = NULL;
    if (page == 0)
        contract_skip("it has no pages");
    contract_step("reserve of 8 pages");
    ctrt_status status = dev.memory->reserve(dev.handle, (void **)&range, 8 * page);
    if (status == CTRT_ERR_NOT_SUPPORTED)
        contract_skip("the device has no pages");
    contract_ok(status);
    for (int cycle = 0; cycle < 8; cycle++) {
        CALL(dev.memory->map(dev.handle, range + page, 2 * page), "map of 2 pages");
        CALL(dev.memory->map(dev.handle, range + 3 * page, page), "map of the next page");
        dev_fill(dev.stream, range + page, cycle, 3 * page);
        dev_expect_bytes(range + page, 3 * page, cycle, "three mapped pages");
        contract_step("unmap");
        dev.memory->unmap(dev.handle, range + 2 * page, page);
        dev_expect_bytes(range + 3 * page, page, cycle, "the page after an unmapped one");
        dev.memory->unmap(dev.handle, range + page, page);
        dev.memory->unmap(dev.handle, range + 3 * page, page);
    }
    contract_step("unreserve");
    dev.memory->unreserve(dev.handle, range, 8 * page);
}

static void check_peer(void)
{
    void *peer = NULL;
    int32_t count = 0;
    const int32_t other = contract_target.device == 0 ? 1 : 0;
    CALL(dev.device->count(&count), "count");
    if (!CTRT_SLOT(dev.memory, copy_peer) || count < 2)
        contract_skip("it has no copy_peer, or no second device");
    CALL(dev.device->open(&peer, other), "open of device %d", (int)other);
    if (!dev.memory->can_access_peer(dev.handle, peer))
        contract_skip("the device cannot access device %d", (int)other);
    void *to = dev_alloc(ROOM), *from = NULL, *queue = NULL;
    CALL(dev.memory->alloc(peer, &from, ROOM), "alloc on the peer");
    if (dev.queue != NULL)
        CALL(dev.queue->create(peer, &queue, 0), "create of a queue of the peer");
    CALL(dev.memory->fill(peer, queue, from, 0x5a, ROOM), "fill on the peer");
    if (dev.queue != NULL)
        CALL(dev.queue->synchronize(peer, queue), "synchronize of the peer");
    CALL(dev.memory->copy_peer(dev.handle, to, peer, from, ROOM, dev.stream), "copy_peer");
    dev_expect_bytes(to, ROOM, 0x5a, "the copy from the peer");
}

static const struct contract_check checks[] = {
    CONTRACT_COMMON(0),
    { "tables", check_dev_tables, 0,
      "required slots are present, optional groups of slots are whole, kernels are of ops" },
    { "describe", check_describe, 0, "describe writes at most info->size bytes, and refuses other indices" },
    { "usage", check_usage, 0, "usage and link write at most the caller's size" },
    { "open", check_open, 0, "a device can be closed and opened again, and close frees everything" },
    { "memory.info", check_memory_info, NEEDS_OPEN, "memory_info: free is at most total" },
    { "memory.alloc", check_alloc, NEEDS_OPEN, "blocks are aligned to 64 bytes and do not overlap" },
    { "memory.full", check_out_of_memory, NEEDS_OPEN, "alloc fails with CTRT_ERR_OUT_OF_MEMORY and a message" },
    { "memory.free", check_free, NEEDS_OPEN, "free makes the memory available again" },
    { "memory.copy", check_dev_copy, NEEDS_OPEN, "copies of any size and alignment, also with pageable host memory" },
    { "memory.pinned", check_pinned, NEEDS_OPEN, "memory of host_alloc is memory of the host, aligned to 64 bytes" },
    { "memory.register", check_register, NEEDS_OPEN, "registered memory of the host is copied as any other" },
    { "memory.fill", check_fill, NEEDS_OPEN, "fill writes these bytes and no others" },
    { "memory.pages", check_pages, NEEDS_OPEN, "parts of a reserved range can be mapped and unmapped" },
    { "memory.peer", check_peer, NEEDS_OPEN, "copy_peer copies if can_access_peer returns true" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_backend = {
    CTRT_COMPONENT_BACKEND, "backend", { checks, contract_kernel_checks, contract_queue_checks }, dev_prepare,
};
