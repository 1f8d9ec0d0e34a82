/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's memory: alignment of blocks, huge pages, unmapping of freed blocks, locked memory, errors
 * when address space is short, and the backend's parameters. test-cpu-limits.c tests limits of other machines. */
#include <linux/capability.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "calls.h"
#include "device/device.h"
#include "log_kept.h"
#include "memory_checks.h"
#include "sims.h"

/* ThreadSanitizer may map memory of its own in the meantime. */
#ifdef __SANITIZE_THREAD__
#define OTHERS_MAP (1024L << 10)
#else
#define OTHERS_MAP 0L
#endif
static const ctrt_memory_table *memory;

static void *get(size_t bytes)
{
    void *block = NULL;
    REQUIRE(memory->alloc(NULL, &block, bytes) == CTRT_OK, "alloc of %zu bytes: %s", bytes, ctrt_error_message());
    return block;
}

/* Returns the value of the field `name` of a file in /proc/self, in bytes, or -1 if there is none. In smaps only the
 * mapping of `address` counts. */
static long proc_bytes(const char *path, const char *name, const void *address)
{
    FILE *file = fopen(path, "r");
    char line[512];
    bool inside = address == NULL;
    long found = -1;
    while (file && found < 0 && fgets(line, sizeof line, file)) {
        unsigned long begin, end;
        if (address && sscanf(line, "%lx-%lx ", &begin, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
        else if (inside && strncmp(line, name, strlen(name)) == 0)
            found = strtol(line + strlen(name), NULL, 10) * 1024;
    }
    if (file)
        fclose(file);
    return found;
}

static long mapping_bytes(const void *address, const char *name)
{
    return proc_bytes("/proc/self/smaps", name, address);
}

static long status_bytes(const char *name)
{
    return proc_bytes("/proc/self/status", name, NULL);
}

TEST(sizes, "blocks are aligned and do not overlap")
{
    static const struct { size_t bytes, alignment; } cases[] = {
        { 1, 64 },           { 64, 64 },           { 65, 64 },           { 4096, 64 },
        { 2 * MIB - 1, 64 }, { 2 * MIB, 2 * MIB }, { 2 * MIB + 1, 2 * MIB }, { 3 * MIB + 64, 2 * MIB },
        { 5 * MIB, 2 * MIB }, { 20 * MIB, 2 * MIB }, { 67 * MIB - 64, 2 * MIB },
    };
    unsigned char *blocks[COUNT(cases)];
    for (size_t i = 0; i < COUNT(cases); i++) {
        blocks[i] = get(cases[i].bytes);
        CHECK((uintptr_t)blocks[i] % cases[i].alignment == 0, "a block of %zu bytes at %p is not on a boundary of %zu",
              cases[i].bytes, (void *)blocks[i], cases[i].alignment);
        memset(blocks[i], (int)i + 1, cases[i].bytes);
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t at = 0; at < cases[i].bytes; at += at + 4096 < cases[i].bytes ? 4093 : 1)
            REQUIRE(blocks[i][at] == i + 1, "byte %zu of the block of %zu bytes was overwritten", at, cases[i].bytes);
        memory->free(NULL, blocks[i], cases[i].bytes);
    }
}

TEST(copies, "copies and fills, which large blocks divide among threads")
{
    static const size_t sizes[] = { 1, 2 * MIB - 1, 5 * MIB + 3 };
    EACH(size, sizes) {
        unsigned char *from = get(*size + 1), *to = get(*size + 1);
        for (size_t k = 0; k < *size; k++)
            from[k] = (unsigned char)(k * 31 + k / 257);
        to[*size] = 77;
        CHECK_EQ(memory->copy(NULL, NULL, to, from, *size, 0), CTRT_OK);
        CHECK(memcmp(from, to, *size) == 0 && to[*size] == 77, "wrong copy of %zu bytes", *size);
        CHECK_EQ(memory->fill(NULL, NULL, from, 5, *size), CTRT_OK);
        memset(to, 5, *size);
        CHECK(memcmp(from, to, *size) == 0, "wrong fill of %zu bytes", *size);
        memory->free(NULL, from, *size + 1);
        memory->free(NULL, to, *size + 1);
    }
}

TEST(unmapped, "freed blocks are unmapped, and memory that was never written is not resident")
{
    static const size_t sizes[] = { 2 * MIB, 2 * MIB + 64, 32 * MIB, 33 * MIB - 64 };
    EACH(size, sizes) {
        char *block = get(*size);
        long before = status_bytes("VmSize:");
        CHECK_TRUE(mapping_bytes(block, "Rss:") <= (long)*size / 2);
        memset(block, 1, *size);
        memory->free(NULL, block, *size);
        long gone = before - status_bytes("VmSize:");
        CHECK(gone >= (long)*size - OTHERS_MAP, "freeing %zu bytes unmapped %ld", *size, gone);
    }
    long before = status_bytes("VmSize:");
    for (size_t bytes = 2 * MIB; bytes < 16 * MIB; bytes += 7001)
        memory->free(NULL, get(bytes), bytes);
    long left = status_bytes("VmSize:") - before;
    CHECK(left <= 4 * (long)MIB, "2000 freed blocks left %ld bytes mapped", left);
}

static void huge_pages_auto(bool kernel_has_them, bool advised)
{
    const size_t bytes = 64 * MIB;
    char *block = get(bytes), *small = get(2 * MIB);
    memset(block, 1, bytes);
    memset(small, 1, 2 * MIB);
    if (kernel_has_them) {
        CHECK_TRUE(mapping_bytes(block, "AnonHugePages:") >= (long)bytes / 2);
        /* A block of 2 MiB gets a huge page only while much memory is allocated. */
        CHECK_TRUE(mapping_bytes(small, "AnonHugePages:") != 0);
    }
    memory->free(NULL, small, 2 * MIB);
    memory->free(NULL, block, bytes);
    small = get(2 * MIB);
    memset(small, 1, 64);
    if (advised)
        CHECK_TRUE(mapping_bytes(small, "Rss:") < (long)(2 * MIB));
    memory->free(NULL, small, 2 * MIB);
}

static void test_huge_pages(void)
{
    static const char *const settings[] = { "CTRT_HUGE_PAGES=auto", "CTRT_HUGE_PAGES=never", "CTRT_HUGE_PAGES=always" };
    char setting[128] = "";
    group("CTRT_HUGE_PAGES selects the pages of large blocks");
    (void)folder_read(setting, sizeof setting - 1, "/sys/kernel/mm/transparent_hugepage/enabled");
    const bool kernel_has_them = setting[0] && !strstr(setting, "[never]");
    printf("# huge pages of the kernel: %s\n", setting[0] ? setting : "none");
    for (int i = 0; i < 3; i++)
        IN_CHILD(settings[i]) {
            const long bytes = 64 * (long)MIB;
            memory = cpu_device()->backend->memory;
            log_keep(CTRT_LOG_INFO);
            if (i == 0)
                huge_pages_auto(kernel_has_them, strstr(setting, "[madvise]"));
            char *block = get((size_t)bytes);
            if (i == 1)
                memset(block, 1, (size_t)bytes);
            const long huge = mapping_bytes(block, "AnonHugePages:");
            CHECK(i == 0 || (i == 1 ? huge == 0 : huge >= bytes || strstr(logged, settings[i])),
                  "%s: of %ld bytes %ld are in huge pages, and the log is \"%s\"", settings[i], bytes, huge, logged);
            memory->free(NULL, block, (size_t)bytes);
        }
}

static void test_parameters(void)
{
    static const struct { const char *setting; bool good; } cases[] = {
        { "CTRT_HUGE_PAGES=auto", true },      { "CTRT_HUGE_PAGES=2m", false },      { "CTRT_NUMA=local", true },
        { "CTRT_NUMA=interleave", true },      { "CTRT_NUMA=everywhere", false },    { "CTRT_NUMA=", false },
        { "CTRT_NUMA=1x", false },             { "CTRT_NUMA=-1", false },            { "CTRT_NUMA=1000000", false },
        { "CTRT_CPU_MEMORY_CHECK=off", true }, { "CTRT_CPU_MEMORY_CHECK=x", false }, { "CTRT_NUM_THREADS=0", false },
        { "CTRT_NUM_THREADS=-1", false },      { "CTRT_NUM_THREADS=many", false },   { "CTRT_NUM_THREADS=5000", false },
    };
    EACH(c, cases) {
        group("%s is %s", c->setting, c->good ? "accepted" : "rejected by name");
        IN_CHILD(c->setting) {
            char name[32];
            ctrt_device *device = NULL;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(c->setting, "="), c->setting);
            CHECK_EQ(ctrt_device_get(&device, "cpu") == CTRT_OK, c->good);
            if (!c->good)
                CHECK_HAS(ctrt_error_message(), name);
        }
    }
}

TEST(too_much, "impossible sizes are refused")
{
    static const size_t sizes[] = { (size_t)1 << 46, (size_t)1 << 60, SIZE_MAX / 2, SIZE_MAX - 64, SIZE_MAX };
    EACH(size, sizes) {
        void *block = NULL;
        CHECK_FAILS(memory->alloc(NULL, &block, *size), CTRT_ERR_OUT_OF_MEMORY, "bytes");
        CHECK_FAILS(memory->host_alloc(NULL, &block, *size), CTRT_ERR_OUT_OF_MEMORY, "bytes");
        CHECK_TRUE(block == NULL);
    }
    memory->free(NULL, get(4 * MIB), 4 * MIB);                      /* the failed requests took no memory */
}

static void test_address_space(void)
{
    const uint64_t space = 256 * MIB;
    group("RLIMIT_AS bounds the free memory and the allocations");
    if (SANITIZED) {
        skip_group("a sanitizer maps more than any limit allows");
        return;
    }
    IN_CHILD(NULL) {
        memory = cpu_device()->backend->memory;
        const rlim_t limit = (rlim_t)status_bytes("VmSize:") + space;
        uint64_t left = 0, total = 0;
        void *refused = NULL;
        REQUIRE_EQ(setrlimit(RLIMIT_AS, &(struct rlimit){ limit, limit }), 0);
        CHECK_EQ(ctrt_device_memory_info(cpu, &left, &total), CTRT_OK);
        CHECK_TRUE(total <= limit && left <= space && left >= space / 2);
        void *block = get(128 * MIB);
        CHECK_FAILS(memory->alloc(NULL, &refused, 192 * MIB), CTRT_ERR_OUT_OF_MEMORY, "192.00 MiB");
        CHECK_TRUE(refused == NULL);
        memory->free(NULL, block, 128 * MIB);
        memory->free(NULL, get(192 * MIB), 192 * MIB);              /* the failed request took no memory */
    }
}

/* Allocates pinned memory, writes it, and checks how many bytes are locked now. */
static void *pin(size_t bytes, long locked)
{
    void *block = NULL;
    CHECK_EQ(memory->host_alloc(NULL, &block, bytes), CTRT_OK);
    memset(block, 1, bytes);
    CHECK_EQ(status_bytes("VmLck:"), locked);
    return block;
}

static void test_pinned(void)
{
    const size_t size = 600 * 1024;
    group("pinned memory is locked up to RLIMIT_MEMLOCK");
    if (SANITIZED) {
        skip_group("under sanitizers, mlock does nothing");
        return;
    }
    IN_CHILD(NULL) {
        memory = cpu_device()->backend->memory;
        struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
        struct __user_cap_data_struct none[2];
        memset(none, 0, sizeof none);
        REQUIRE_EQ(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ MIB, MIB }), 0);
        REQUIRE_EQ(syscall(SYS_capset, &header, none), 0);          /* a capability would lift the limit */
        log_keep(CTRT_LOG_INFO);
        const long before = status_bytes("VmLck:"), locked = before + (long)size;
        void *first = pin(size, locked);
        CHECK_STR(logged, "");
        void *second = pin(size, locked);
        CHECK_HAS(logged, "RLIMIT_MEMLOCK is 1048576");
        CHECK_HAS(logged, "1 blocks, 614400 bytes");
        memory->host_free(NULL, first, size);
        CHECK_EQ(status_bytes("VmLck:"), before);
        void *large = pin(8 * MIB, before);
        memory->host_free(NULL, second, size);
        memory->host_free(NULL, large, 8 * MIB);
        pin(1, before + 4096);
    }
}

static void *churn(void *argument)
{
    uint32_t state = *(uint32_t *)argument;
    for (int i = 0; i < 300; i++) {
        state = state * 1664525u + 1013904223u;
        const size_t bytes = state % 3 ? 2 * MIB + (state >> 8) % (2 * MIB) : 1 + (state >> 8) % MIB;
        const unsigned char value = (unsigned char)state;
        uint64_t left, total;
        unsigned char *b = get(bytes);
        b[0] = b[bytes / 2] = b[bytes - 1] = value;
        if (i % 16 == 0)
            CHECK_EQ(ctrt_device_memory_info(cpu, &left, &total), CTRT_OK);
        CHECK_TRUE(b[0] == value && b[bytes / 2] == value && b[bytes - 1] == value);
        memory->free(NULL, b, bytes);
    }
    return NULL;
}

TEST(threads, "several threads allocate and free")
{
    uint32_t seeds[4] = { 1, 2, 3, 4 };
    in_threads(4, churn, seeds, sizeof seeds[0]);
}

TEST_MAIN
{
    RUN_ALL(test_huge_pages, test_parameters, test_address_space, test_pinned);
    memory = cpu_device()->backend->memory;
    return run_tests();
}
