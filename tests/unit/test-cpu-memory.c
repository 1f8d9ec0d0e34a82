/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's memory: alignment of blocks, huge pages, unmapping of freed blocks, locked memory, and
 * errors when address space is short. Limits of other machines are tested in test-cpu-limits.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/capability.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_host.h"

#define MIB ((size_t)1 << 20)

static const ctrt_memory_table *memory;

static void *get(size_t bytes)
{
    void *block = NULL;
    ctrt_status status = memory->alloc(NULL, &block, bytes);
    REQUIRE(!(status), "alloc of %zu bytes: status %d: %s", bytes, (int)status, host_error);
    return block;
}

/* Returns the value of the field `name` in /proc/self/smaps, in bytes, for the mapping of `address`, or -1 if
 * nothing is mapped there. */
static long mapping_bytes(const void *address, const char *name)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    long found = -1;
    while (file && found < 0 && fgets(line, sizeof line, file)) {
        unsigned long begin, end;
        long value;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
        else if (inside && strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), " %ld kB", &value) == 1)
            found = value * 1024;
    }
    if (file)
        fclose(file);
    return found;
}

static long status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long found = -1;
    while (file && found < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            found = strtol(line + strlen(name), NULL, 10) * 1024;
    if (file)
        fclose(file);
    return found;
}

static const char *kernel_setting(void)
{
    static char text[128];
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file) {
        if (!fgets(text, sizeof text, file))
            text[0] = '\0';
        fclose(file);
    }
    return text;
}

static bool kernel_has_huge_pages(void)
{
    return kernel_setting()[0] && !strstr(kernel_setting(), "[never]");
}

static bool kernel_only_when_asked(void)
{
    return strstr(kernel_setting(), "[madvise]");
}

/* Runs `function` in a child process and returns its result, the exit status. */
static int in_child(int (*function)(void))
{
    fflush(stdout);
    pid_t child = fork();
    REQUIRE_TRUE(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(function());
    }
    int status = 0;
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    REQUIRE(!(WIFSIGNALED(status)), "the child ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void with(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    fake_load(NULL);
    memory = fake_backend->memory;
}

/* ---- blocks ---- */

static void test_sizes(void)
{
    static const struct { size_t bytes, alignment; } cases[] = {
        { 1, 64 },           { 64, 64 },           { 65, 64 },           { 4096, 64 },
        { 2 * MIB - 1, 64 }, { 2 * MIB, 2 * MIB }, { 2 * MIB + 1, 2 * MIB }, { 3 * MIB + 64, 2 * MIB },
        { 5 * MIB, 2 * MIB }, { 20 * MIB, 2 * MIB }, { 67 * MIB - 64, 2 * MIB },
    };
    const size_t n = sizeof cases / sizeof cases[0];
    unsigned char *blocks[sizeof cases / sizeof cases[0]];
    for (size_t i = 0; i < n; i++) {
        blocks[i] = get(cases[i].bytes);
        REQUIRE((uintptr_t)blocks[i] % cases[i].alignment == 0,
                "a block of %zu bytes at %p is not on a boundary of %zu", cases[i].bytes, (void *)blocks[i],
                cases[i].alignment);
        memset(blocks[i], (int)i + 1, cases[i].bytes);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t at = 0; at < cases[i].bytes; at += at + 4096 < cases[i].bytes ? 4093 : 1)
            REQUIRE(blocks[i][at] == i + 1, "byte %zu of the block of %zu bytes was overwritten", at, cases[i].bytes);
    for (size_t i = 0; i < n; i++)
        memory->free(NULL, blocks[i], cases[i].bytes);
}

/* ThreadSanitizer may map memory of its own in the meantime. */
#ifdef __SANITIZE_THREAD__
#define OTHERS_MAP (1024L << 10)
#else
#define OTHERS_MAP 0L
#endif

/* Freed blocks are unmapped completely, and memory that was never written is not resident. */
static void test_goes_back(void)
{
    static const size_t sizes[] = { 2 * MIB, 2 * MIB + 64, 32 * MIB, 33 * MIB - 64 };
    for (int i = 0; i < 4; i++) {
        char *block = get(sizes[i]);
        long before = status_bytes("VmSize:");
        REQUIRE(!(mapping_bytes(block, "Rss:") > (long)sizes[i] / 2),
                "a block of %zu bytes is resident before it is written", sizes[i]);
        memset(block, 1, sizes[i]);
        memory->free(NULL, block, sizes[i]);
        long gone = before - status_bytes("VmSize:");
        REQUIRE(!(gone < (long)sizes[i] - OTHERS_MAP), "freeing %zu bytes unmapped %ld", sizes[i], gone);
    }
    long before = status_bytes("VmSize:");
    for (int i = 0; i < 2000; i++) {
        size_t bytes = 2 * MIB + (size_t)i * 7001;
        memory->free(NULL, get(bytes), bytes);
    }
    long after = status_bytes("VmSize:");
    REQUIRE(!(after > before + 4 * (long)MIB), "2000 freed blocks left %ld bytes mapped", after - before);
}

/* ---- huge pages ---- */

static void test_huge_pages(void)
{
    const size_t bytes = 64 * MIB;
    if (!kernel_has_huge_pages())
        printf("# the kernel has no huge pages: not tested\n");
    with("CTRT_HUGE_PAGES", "auto");
    char *block = get(bytes);
    memset(block, 1, bytes);
    long huge = mapping_bytes(block, "AnonHugePages:");
    REQUIRE(!(kernel_has_huge_pages() && huge < (long)bytes / 2), "auto: of %zu bytes %ld are in huge pages", bytes,
            huge);

    /* A block of 2 MiB gets a huge page only while much memory is allocated. */
    void *small = get(2 * MIB);
    memset(small, 1, 2 * MIB);
    huge = mapping_bytes(small, "AnonHugePages:");
    REQUIRE(!(kernel_has_huge_pages() && huge == 0), "auto: a block of 2 MiB beside one of 64 MiB is in small pages");
    memory->free(NULL, small, 2 * MIB);
    memory->free(NULL, block, bytes);
    small = get(2 * MIB);
    memset(small, 1, 64);
    REQUIRE(!(kernel_only_when_asked() && mapping_bytes(small, "Rss:") >= (long)(2 * MIB)),
            "auto: the first block of 2 MiB is resident after a write of 64 bytes");
    memory->free(NULL, small, 2 * MIB);

    with("CTRT_HUGE_PAGES", "never");
    block = get(bytes);
    memset(block, 1, bytes);
    REQUIRE_EQ(mapping_bytes(block, "AnonHugePages:"), 0);
    memory->free(NULL, block, bytes);

    with("CTRT_HUGE_PAGES", "always");
    host_logged[0] = '\0';
    block = get(bytes);
    huge = mapping_bytes(block, "AnonHugePages:");
    REQUIRE(!(huge < (long)bytes && !strstr(host_logged, "CTRT_HUGE_PAGES=always")),
            "always: of %zu bytes %ld are in huge pages, and nothing was logged: \"%s\"", bytes, huge, host_logged);
    if (host_logged[0])
        printf("# %s\n", host_logged);
    memory->free(NULL, block, bytes);
    with("CTRT_HUGE_PAGES", NULL);
}

/* ---- parameters ---- */

static ctrt_status init_status;

static int init_in_child(void)
{
    const char *folder = getenv("CTRT_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/backend-cpu.so", folder ? folder : ".");
    ctrt_plugin_entry entry = NULL;
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *(void **)&entry = plugin ? dlsym(plugin, "ctrt_plugin_v1") : NULL;
    if (!entry)
        return 100;
    host_error[0] = '\0';
    init_status = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR)->init(&host_table);
    if (init_status == CTRT_OK)
        return 0;
    return init_status == CTRT_ERR_INVALID_ARGUMENT && strstr(host_error, "CTRT_") ? 1 : 2;
}

static void test_parameters(void)
{
    static const struct { const char *name, *value; int want; } cases[] = {
        { "CTRT_HUGE_PAGES", "auto", 0 },        { "CTRT_HUGE_PAGES", "2m", 1 },      { "CTRT_NUMA", "local", 0 },
        { "CTRT_NUMA", "interleave", 0 },        { "CTRT_NUMA", "everywhere", 1 },    { "CTRT_NUMA", "", 1 },
        { "CTRT_NUMA", "1x", 1 },                { "CTRT_NUMA", "-1", 1 },            { "CTRT_NUMA", "1000000", 1 },
        { "CTRT_CPU_MEMORY_CHECK", "off", 0 },   { "CTRT_CPU_MEMORY_CHECK", "maybe", 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        int got = in_child(init_in_child);
        unsetenv(cases[i].name);
        REQUIRE(got == cases[i].want,
                "%s=%s: init gave %d, expected %d (0 success, 1 an error that names the variable)", cases[i].name,
                cases[i].value, got, cases[i].want);
    }
}

/* ---- limited address space ---- */

#define SPACE ((uint64_t)256 * MIB)

static int with_little_space(void)
{
    struct rlimit space = { 0, 0 };
    space.rlim_cur = space.rlim_max = (rlim_t)status_bytes("VmSize:") + SPACE;
    if (setrlimit(RLIMIT_AS, &space) != 0)
        return 1;
    uint64_t left = 0, total = 0;
    if (fake_backend->device->memory_info(NULL, &left, &total) != CTRT_OK)
        return 2;
    if (total > space.rlim_cur || left > SPACE || left < SPACE / 2)
        return 3;
    void *block = NULL, *more = NULL;
    if (memory->alloc(NULL, &block, 128 * MIB) != CTRT_OK)
        return 4;
    host_error[0] = '\0';
    if (memory->alloc(NULL, &more, 192 * MIB) != CTRT_ERR_OUT_OF_MEMORY || more || !strstr(host_error, "192.00 MiB"))
        return 5;
    memory->free(NULL, block, 128 * MIB);
    if (memory->alloc(NULL, &more, 192 * MIB) != CTRT_OK)           /* the failed request took no memory */
        return 6;
    memory->free(NULL, more, 192 * MIB);
    return 0;
}

static void test_address_space(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip_group("a sanitizer maps more than any limit allows");
    (void)with_little_space;
#else
    REQUIRE_EQ(in_child(with_little_space), 0);
#endif
}

static void test_too_much(void)
{
    static const size_t sizes[] = { (size_t)1 << 46, (size_t)1 << 60, SIZE_MAX / 2, SIZE_MAX - 64, SIZE_MAX };
    for (int i = 0; i < 5; i++) {
        void *block = NULL;
        host_error[0] = '\0';
        REQUIRE(!(memory->alloc(NULL, &block, sizes[i]) != CTRT_ERR_OUT_OF_MEMORY || block || !strstr(host_error,
                "bytes")), "%zu bytes: no refusal with a message (\"%s\")", sizes[i], host_error);
        REQUIRE(!(memory->host_alloc(NULL, &block, sizes[i]) != CTRT_ERR_OUT_OF_MEMORY || block),
                "%zu bytes of pinned memory: no refusal", sizes[i]);
    }
    void *small = get(4 * MIB);                                     /* the failed requests took no memory */
    memory->free(NULL, small, 4 * MIB);
}

/* ---- locked memory ---- */

/* RLIMIT_MEMLOCK is 1 MiB, and the process has no capabilities. */
static int locks_what_it_may(void)
{
    struct rlimit limit = { MIB, MIB };
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capset, &header, none) != 0)
        return 1;
    long before = status_bytes("VmLck:");
    void *first = NULL, *second = NULL, *large = NULL;
    host_logged[0] = '\0';
    if (memory->host_alloc(NULL, &first, 600 * 1024) != CTRT_OK || status_bytes("VmLck:") - before != 600 * 1024)
        return 2;
    if (host_logged[0])
        return 3;
    if (memory->host_alloc(NULL, &second, 600 * 1024) != CTRT_OK || status_bytes("VmLck:") - before != 600 * 1024)
        return 4;
    if (!strstr(host_logged, "RLIMIT_MEMLOCK is 1048576") || !strstr(host_logged, "1 blocks, 614400 bytes"))
        return 5;
    memset(first, 1, 600 * 1024), memset(second, 2, 600 * 1024);
    memory->host_free(NULL, first, 600 * 1024);
    if (status_bytes("VmLck:") != before)
        return 6;
    if (memory->host_alloc(NULL, &large, 8 * MIB) != CTRT_OK)
        return 7;
    memset(large, 3, 8 * MIB);
    memory->host_free(NULL, second, 600 * 1024);
    memory->host_free(NULL, large, 8 * MIB);
    return memory->host_alloc(NULL, &first, 1) == CTRT_OK && status_bytes("VmLck:") - before == 4096 ? 0 : 8;
}

static void test_pinned(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip_group("under sanitizers, mlock does nothing");
    (void)locks_what_it_may;
#else
    REQUIRE_EQ(in_child(locks_what_it_may), 0);
#endif
}

/* ---- many threads ---- */

static void *churn(void *argument)
{
    uint32_t state = *(uint32_t *)argument;
    for (int i = 0; i < 300; i++) {
        state = state * 1664525u + 1013904223u;
        size_t bytes = state % 3 ? 2 * MIB + (state >> 8) % (2 * MIB) : 1 + (state >> 8) % MIB;
        void *block = NULL;
        if (memory->alloc(NULL, &block, bytes) != CTRT_OK)
            return NULL;
        unsigned char *b = block;
        b[0] = b[bytes / 2] = b[bytes - 1] = (unsigned char)state;
        if (i % 16 == 0) {
            uint64_t left, total;
            if (fake_backend->device->memory_info(NULL, &left, &total) != CTRT_OK)
                return NULL;
        }
        if (b[0] != (unsigned char)state || b[bytes / 2] != (unsigned char)state || b[bytes - 1] != (unsigned char)state)
            return NULL;
        memory->free(NULL, block, bytes);
    }
    return argument;
}

static void test_threads(void)
{
    pthread_t threads[4];
    uint32_t seeds[4] = { 1, 2, 3, 4 };
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, churn, &seeds[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *good = NULL;
        pthread_join(threads[i], &good);
        REQUIRE_TRUE(good != NULL);
    }
}

TEST_MAIN
{
    with("CTRT_HUGE_PAGES", NULL);
    group("blocks are aligned and do not overlap");
    test_sizes();
    group("freed blocks are unmapped");
    test_goes_back();
    group("CTRT_HUGE_PAGES selects the pages of large blocks");
    test_huge_pages();
    group("invalid parameters are rejected by name");
    test_parameters();
    group("impossible sizes are refused");
    test_too_much();
    group("RLIMIT_AS bounds the free memory and the allocations");
    test_address_space();
    group("pinned memory is locked up to RLIMIT_MEMLOCK");
    test_pinned();
    group("several threads allocate and free");
    test_threads();
    return done();
}
