/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the attribution of memory on fake devices and the cpu: labels, owners, history, snapshots and the
 * out-of-memory report. */
#include <malloc.h>
#include <pthread.h>

#include "calls.h"
#include "base/host_alloc.h"
#include "fake_pool.h"
#include "memory/history.h"

/* Returns the bytes of an owner, 0 if the owner is not listed. *sum receives the bytes of all owners. */
static uint64_t owner_bytes(ctrt_device *device, const char *label, const char *op, uint64_t *sum)
{
    ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    uint64_t bytes = 0;
    *sum = 0;
    CHECK_OK(ctrt_memory_owners(&owners, &count, device));
    for (size_t i = 0; i < count; i++) {
        *sum += owners[i].bytes;
        if (strcmp(owners[i].label, label) == 0 && strcmp(owners[i].op, op) == 0)
            bytes += owners[i].bytes;
        CHECK(i == 0 || owners[i - 1].bytes >= owners[i].bytes, "owner %zu has more bytes than the previous one", i);
    }
    free(owners);
    return bytes;
}

/* Checks with Python that `text` is JSON. Without python3 prints that this was not checked. */
static void check_json(const char *text, const char *what)
{
    static int python = -1;
    if (python < 0)
        python = system("python3 -c 'import json' >/dev/null 2>&1") == 0;
    if (!python) {
        printf("# not run: whether %s is JSON, because python3 is missing\n", what);
        return;
    }
    FILE *pipe = popen("python3 -m json.tool >/dev/null", "w");
    if (pipe == NULL)
        return;
    fputs(text, pipe);
    CHECK(pclose(pipe) == 0, "%s is not JSON: %.300s", what, text);
}

/* Allocates a block with this label. */
static ctrt_block take_labelled(struct device_memory *memory, const char *label, size_t bytes)
{
    CHECK_OK(ctrt_memory_label_push(label));
    ctrt_block block = take(memory, bytes);
    CHECK_OK(ctrt_memory_label_pop());
    return block;
}

/* ---- labels and owners ---- */

FAKE_TEST(labels, "labels nest, and a string of them stays valid; those that a module did not pop end when it returns",
          "CTRT_MEMORY=direct")
{
    size_t before = 0;
    const char *kept = NULL;
    char longest[1000];
    CHECK_OK(ctrt_memory_label_push("outer"));
    for (int i = 0; i < 2000; i++) {
        struct memory_label label, inner;
        label_enter(&label, label_here(), "module");
        CHECK_OK(ctrt_memory_label_push("a"));
        label_enter(&inner, label_here(), "child");
        CHECK_OK(ctrt_memory_label_push("b"));
        CHECK_OK(ctrt_memory_label_push("c"));
        label_leave(&inner);
        kept = ctrt_memory_label();
        label_leave(&label);
        CHECK_STR(kept, "outer/module/a");
        CHECK_STR(ctrt_memory_label(), "outer");
        if (i == 100)
            before = mallinfo2().uordblks;      /* 0 under AddressSanitizer, which finds leaks itself */
    }
    CHECK(mallinfo2().uordblks < before + 10000, "%zu bytes leaked", mallinfo2().uordblks - before);
    CHECK_OK(ctrt_memory_label_pop());
    CHECK_FAILS(ctrt_memory_label_pop(), CTRT_ERR_STATE, "memory_label_pop");
    CHECK_STR(kept, "outer/module/a");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CHECK_OK(ctrt_memory_label_push(longest));
    CHECK_OK(ctrt_memory_label_push(longest));
    CHECK_EQ(strlen(ctrt_memory_label()), 1999);
}

/* Checks the bytes of an owner and the sum of all owners. */
static void check_owner(int line, ctrt_device *device, const char *label, uint64_t bytes, uint64_t sum)
{
    uint64_t all;
    tap_eq((long long)owner_bytes(device, label, "", &all), (long long)bytes, __FILE__, line, label);
    tap_eq((long long)all, (long long)sum, __FILE__, line, "the sum of all owners");
}

#define OWNER_HAS(label, bytes, sum) check_owner(__LINE__, device, (label), (bytes), (sum))

FAKE_TEST(owners, "owners add up to the allocated bytes, even if watching starts late", "CTRT_MEMORY=direct",
          "CTRT_FAKE_MEMORY=256m")
{
    ctrt_block before = take(memory, 1000), a, b, c;
    OWNER_HAS("(not watched)", 1024, 1024);
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_STATE, 0));
    a = take_labelled(memory, "encoder", 3 * MIB);
    b = take_labelled(memory, "encoder", 2 * MIB);
    c = take_labelled(memory, "decoder", MIB);
    OWNER_HAS("encoder", 5 * MIB, 6 * MIB + 1024);
    give(memory, &a, 3 * MIB);
    give(memory, &before, 1000);
    OWNER_HAS("encoder", 2 * MIB, 3 * MIB);
    OWNER_HAS("(not watched)", 0, 3 * MIB);
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_NONE, 0));
    OWNER_HAS("(not watched)", 3 * MIB, 3 * MIB);
    give(memory, &b, 2 * MIB);
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, 10));
    give(memory, &c, MIB);
    OWNER_HAS("decoder", 0, 0);
}

FAKE_TEST(churn, "many blocks are allocated and freed while watched", "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=1g",
          "CTRT_MEMORY_HISTORY=all:1000")
{
    static ctrt_block blocks[700];
    uint32_t seed = 3;
    for (int i = 0; i < 40000; i++) {
        ctrt_block *block = &blocks[next_random(&seed) % COUNT(blocks)];
        if (block->address != NULL)
            give(memory, block, block->bytes);
        else
            *block = take(memory, 1 + next_random(&seed) % 20000);
    }
    OWNER_HAS("", ctrt_memory_allocated(device), ctrt_memory_allocated(device));
    struct history_event *events;
    size_t count;
    uint64_t lost;
    CHECK(history_list(&events, &count, &lost, memory) && count == 1000 && lost > 30000, "%zu events, %llu lost",
          count, (unsigned long long)lost);
    for (size_t i = 1; i < count; i++)
        if (events[i].number != events[i - 1].number + 1)
            CHECK(false, "event %zu has the number %llu", i, (unsigned long long)events[i].number);
    host_free(events);
}

/* ---- modules and ops ---- */

TEST(test_model, "a model's memory is attributed to its modules and ops")
{
    if (access(built_path("backend-cpu"), R_OK) != 0) {
        skip_group("the cpu backend is missing");
        return;
    }
    IN_CHILD("CTRT_MEMORY_HISTORY=all:500") {
        ctrt_device *cpu = NULL;
        CTRT_AUTO(module) inner = NULL;
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) x = NULL, y = NULL, sum = NULL, loss = NULL;
        const uint64_t weights = (64 * 64 + 32 * 64) * 4, outputs = 100 * 64 * 4;
        uint64_t all;
        if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")))
            exit(1);
        CHECK_OK(ctrt_sequential_new(&inner, CTRT_MODULES(CTRT_NEW(linear, 64, 64, true, cpu), CTRT_NEW(relu))));
        CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 32, 64, true, cpu),
                                                        ctrt_module_retain(inner))));
        CHECK_TRUE(owner_bytes(cpu, "0.weight", "uniform", &all) >= 32 * 64 * 4);
        CHECK_TRUE(owner_bytes(cpu, "1.0.weight", "uniform", &all) >= 64 * 64 * 4);
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(100, 32), CTRT_F32, cpu));
        CHECK_OK(ctrt_memory_label_push("step"));
        CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_TRUE(owner_bytes(cpu, "step/0", "linear", &all) >= outputs);          /* saved for backward */
        CHECK_TRUE(owner_bytes(cpu, "step/1.1", "relu", &all) >= outputs);
        CHECK_EQ(all, ctrt_memory_allocated(cpu));
        CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_adamw_new(&optimizer, net, NULL));
        CHECK_OK(ctrt_backward(loss));
        CHECK_TRUE(owner_bytes(cpu, "backward", "matmul", &all) >= weights);        /* gradients */
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_TRUE(owner_bytes(cpu, "optimizer", "", &all) >= 2 * weights);         /* moments */
        CHECK_OK(ctrt_add(&sum, x, x));
        CHECK_TRUE(owner_bytes(cpu, "", "add", &all) >= 100 * 32 * 4);
        check_json(snapshot_of(cpu), "a snapshot");
        CHECK_HAS(snapshot_of(cpu), "\"label\": \"step/1.0\", \"op\": \"linear\"");
    }
}

/* ---- history and snapshots ---- */

FAKE_TEST(history, "the history has each event by its name", "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m",
          "CTRT_MEMORY_HISTORY=all:100")
{
    char word[64];
    ctrt_block block = take_labelled(memory, "it's \"quoted\" \\ </script> \xff\n", 5000);
    CHECK_OK(ctrt_memory_annotate(device, "half time"));
    take_fails(memory, 100 * MIB, NULL);
    const char *text = snapshot_of(device);
    check_json(text, "a snapshot");
    CHECK_HAS(text, "\"label\": \"it's \\\"quoted\\\" \\\\ </script> \\ufffd\\u000a\"");
    CHECK_EQ(count_of(text, "\"state\": \"active_allocated\""), 1);
    CHECK_HAS(text, "\"requested_size\": 5000");
    give(memory, &block, 5000);
    text = snapshot_of(device);
    static const struct { const char *action; int count; } want[] = {
        { "alloc", 1 }, { "segment_alloc", 1 }, { "annotate", 1 }, { "oom", 1 }, { "snapshot", 2 },
        { "free_requested", 1 }, { "free_completed", 1 }, { "segment_free", 1 },
    };
    for (size_t i = 0; i < COUNT(want); i++) {
        snprintf(word, sizeof word, "\"action\": \"%s\"", want[i].action);
        CHECK(count_of(text, word) == want[i].count, "%s: %d times, expected %d", want[i].action,
              count_of(text, word), want[i].count);
    }
    CHECK_HAS(text, "\"text\": \"half time\"");
    CHECK_HAS(text, "\"device_free\": ");
    CHECK_HAS(text, "\"watch\": \"all\"");
    CHECK_HAS(text, "\"segments\": []");
}

TEST(test_history_setting, "the grammar of CTRT_MEMORY_HISTORY")
{
    static const struct { const char *value, *watch; } cases[] = {
        { "", "none" }, { "none", "none" }, { "state", "state" }, { "all", "all" }, { "all:7", "all" },
        { "frames", "frames" }, { "frames:9", "frames" }, { "al", NULL }, { "all:", NULL }, { "all:0", NULL },
        { "all:-1", NULL }, { "all:5x", NULL }, { "all:99999999999999999999", NULL }, { "state:5", NULL },
        { "frames:", NULL },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char setting[64], word[64];
        snprintf(setting, sizeof setting, "CTRT_MEMORY_HISTORY=%s", cases[i].value);
        IN_FAKE(setting) {
            ctrt_device *device = NULL;
            if (cases[i].watch == NULL) {
                CHECK_FAILS(ctrt_device_get(&device, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, "all:ENTRIES");
            } else if (CHECK_OK(ctrt_device_get(&device, "fake:0"))) {
                snprintf(word, sizeof word, "\"watch\": \"%s\"", cases[i].watch);
                CHECK_HAS(snapshot_of(device), word);
            }
            if (tap_state.failed > 0)
                printf("# with %s\n", setting);
        }
    }
}

static const char *read_file(const char *path)
{
    static char text[1 << 20];
    text[folder_read(text, sizeof text - 1, path)] = '\0';
    return text;
}

/* Other kinds of files, and permissions, are tested in test-checkpoint-files.c: a snapshot uses the same writer. */
FAKE_TEST(snapshot_files, "a snapshot is written to a file or to standard output, between what the program prints",
          "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m")
{
    char path[200];
    snprintf(path, sizeof path, "%s/snapshot.json", folder);
    CHECK_OK(ctrt_memory_snapshot_write(path, device));
    CHECK_HAS(read_file(path), "\"ctrt memory snapshot\"");
    CHECK_FAILS(ctrt_memory_snapshot_write(folder, device), CTRT_ERR_IO, "directory");
    CHECK_FAILS(ctrt_memory_snapshot_write("/nowhere/at/all.json", device), CTRT_ERR_IO,
                "/nowhere/at/all.json: No such file");
    fflush(stdout);
    int terminal = dup(1);
    FILE *file = freopen(path, "w", stdout);
    printf("before\n");
    fflush(stdout);
    ctrt_status status = file != NULL ? ctrt_memory_snapshot_write("/dev/stdout", device) : CTRT_ERR_IO;
    if (status == CTRT_OK)
        status = ctrt_memory_snapshot_write("/dev/fd/1", device);
    printf("after\n");
    fflush(stdout);
    dup2(terminal, 1);
    CHECK(status == CTRT_OK, "/dev/stdout: %s", ctrt_error_message());
    const char *text = read_file(path);
    CHECK(strncmp(text, "before\n{", 8) == 0 && strcmp(text + strlen(text) - 8, "}\nafter\n") == 0
              && count_of(text, "\"ctrt memory snapshot\"") == 2, "/dev/stdout received %.300s", text);
}

/* Exported, so that backtraces can name it: the test is linked with -rdynamic. */
__attribute__((noinline, visibility("default"))) ctrt_status allocate_for_frames(struct device_memory *memory,
                                                                             ctrt_block *block);
__attribute__((noinline, visibility("default"))) ctrt_status allocate_for_frames(struct device_memory *memory,
                                                                             ctrt_block *block)
{
    ctrt_status status = pool_alloc(memory, block, 5000, NULL);
    return status == CTRT_OK ? status : CTRT_ERR_STATE;     /* no tail call, which would leave no frame */
}

FAKE_TEST(frames, "frames name the functions that allocated a block; each stack is stored once", "CTRT_MEMORY=direct",
          "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=frames:500")
{
    ctrt_block blocks[40];
    char word[64];
    for (int i = 0; i < 40; i++)
        CHECK_OK(allocate_for_frames(memory, &blocks[i]));
    const char *text = snapshot_of(device);
    check_json(text, "a snapshot with frames");
    CHECK_EQ(count_of(text, "\"name\": \"allocate_for_frames\""), 2);      /* stacks of blocks and of segments */
    CHECK_HAS(text, "\"watch\": \"frames\"");
    CHECK_HAS(text, "run-internal\", \"line\": 0, \"offset\": ");
    /* A block has the stack of its allocation event. */
    const char *state = strstr(text, "\"active_allocated\""),
        *stack = state != NULL ? strstr(state, "\"stack\": ") : NULL;
    if (CHECK(stack != NULL, "blocks have no stack")) {
        snprintf(word, sizeof word, "%.*s}", (int)strcspn(stack, "}"), stack);
        CHECK_EQ(count_of(text, word), 80);         /* 40 blocks and 40 events */
    }
    for (int i = 0; i < 40; i++)
        give(memory, &blocks[i], 5000);
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, 500));
    CHECK_OK(allocate_for_frames(memory, &blocks[0]));
    text = snapshot_of(device);
    CHECK_TRUE(strstr(text, "\"stack\"") == NULL);
    CHECK_HAS(text, "\"stacks\": {}");
    give(memory, &blocks[0], 5000);
}

/* ---- out of memory ---- */

static ctrt_status nested;

/* Calls the library, which a callback may do; its own allocation fails. */
static void note_and_alloc(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    ctrt_block block;
    note_oom(user, device, bytes, report);
    nested = pool_alloc(device->memory, &block, 1000 * MIB, NULL);
}

FAKE_TEST(oom_report, "out of memory: the report has the sizes, and the largest owner first", "CTRT_MEMORY=direct",
          "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=state")
{
    char *text = NULL;
    CHECK_FAILS(ctrt_memory_last_oom(&text, device), CTRT_ERR_NOT_FOUND, "was never out of memory");
    ctrt_memory_set_oom_callback(note_and_alloc, NULL);
    ctrt_block decoder = take_labelled(memory, "decoder", 10 * MIB), loss = take_labelled(memory, "loss", 40 * MIB);
    ctrt_memory_label_push("encoder");
    take_fails(memory, 20 * MIB, "out of memory on fake:0: 20.00 MiB requested, 50.00 MiB allocated to tensors");
    ctrt_memory_label_pop();
    CHECK_HAS(ctrt_error_message(), "Most is held by loss, 40.00 MiB");
    CHECK_HAS(ctrt_error_message(), "14.00 MiB of 64.00 MiB free on the device");
    CHECK_HAS(ctrt_error_message(), "50.00 MiB reserved by policy direct");
    CHECK_HAS(ctrt_error_message(), "has no 20971520 bytes left");
    CHECK_EQ(oom_noted.calls, 1);
    CHECK_EQ(oom_noted.bytes, 20 * MIB);
    CHECK_EQ(nested, CTRT_ERR_OUT_OF_MEMORY);
    check_json(oom_noted.report, "the report");
    static const char *const words[] = {
        "\"device\": \"fake:0\"", "\"requested\": 20971520", "\"total\": 67108864", "\"free\": 14680064",
        "\"allowed\": null", "\"allocated\": 52428800", "\"reserved\": 52428800", "\"reserved_unallocated\": 0",
        "\"label\": \"encoder\"",
        "{\"label\": \"loss\", \"op\": \"\", \"bytes\": 41943040, \"requested\": 41943040, \"blocks\": 1}",
        "{\"label\": \"decoder\", \"op\": \"\", \"bytes\": 10485760, \"requested\": 10485760, \"blocks\": 1}",
    };
    for (size_t i = 0; i < COUNT(words); i++)
        CHECK_HAS(oom_noted.report, words[i]);
    CHECK(strstr(oom_noted.report, "{\"label\": \"loss\"") < strstr(oom_noted.report, "{\"label\": \"decoder\""),
          "the largest owner is not the first");
    /* The failure in the callback came first and is replaced. */
    CHECK_HAS(last_oom_of(device), "\"requested\": 20971520");
    ctrt_memory_set_oom_callback(NULL, NULL);
    take_fails(memory, 65 * MIB, "The block is larger than the device");
    CHECK_EQ(oom_noted.calls, 1);
    CHECK_STAT(device, "num_ooms", 3);
    give(memory, &loss, 40 * MIB);
    ctrt_block more = take(memory, 20 * MIB);                   /* later allocations succeed */
    give(memory, &more, 20 * MIB);
    CHECK_FAILS(ctrt_memory_release_all(device), CTRT_ERR_STATE,
                "tensors still hold 10.00 MiB on fake:0, most of them of decoder");
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "fake:0");
    give(memory, &decoder, 10 * MIB);
    CHECK_OK(ctrt_memory_release_all(device));
    CHECK_EQ(taken_on(device), 0);
    more = take(memory, MIB);                                   /* the device can be used again */
    give(memory, &more, MIB);
    CHECK_OK(ctrt_shutdown());
}

FAKE_TEST(oom_others, "out of memory: the report counts memory of other processes", "CTRT_MEMORY=caching",
          "CTRT_FAKE_MEMORY=64m")
{
    void *others = NULL;
    CHECK_OK(device->backend->memory->alloc(device->handle, &others, 40 * MIB));
    take_fails(memory, 30 * MIB, "24.00 MiB of 64.00 MiB free on the device, 40.00 MiB held by other processes");
    CHECK_HAS(ctrt_error_message(), "Other processes hold 40.00 MiB of the device's 64.00 MiB");
    CHECK_HAS(last_oom_of(device), "\"others\": 41943040");
    CHECK_HAS(last_oom_of(device), "\"kind\": \"device\"");
    CHECK_HAS(last_oom_of(device), "\"refused_by_limit\": false");
    take_fails(memory, SIZE_MAX, "address space");
    take_fails(memory, SIZE_MAX / 2, NULL);
    take_fails(memory, SIZE_MAX / 2 - 600, "The block is larger than the device");
    device->backend->memory->free(device->handle, others, 40 * MIB);
}

FAKE_TEST(oom_failures, "host allocations that fail during the report do not change the status", "CTRT_MEMORY=direct",
          "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=all:50")
{
    ctrt_block block = take(memory, 40 * MIB), more;
    for (uint64_t n = 1; n < 30; n++) {
        char *text = NULL;
        alloc_fail_at(n, n % 2);
        ctrt_status status = pool_alloc(memory, &more, 60 * MIB, NULL);
        ctrt_status second = ctrt_memory_snapshot(&text, device);
        alloc_fail_at(0, false);
        CHECK(status == CTRT_ERR_OUT_OF_MEMORY && (second == CTRT_OK || second == CTRT_ERR_OUT_OF_MEMORY),
              "n %d: %d, %d", (int)n, (int)status, (int)second);
        free(text);
    }
    give(memory, &block, 40 * MIB);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
}

/* ---- threads ---- */

static void *allocate_and_free(void *argument)
{
    struct device_memory *memory = argument;
    ctrt_block blocks[16];
    (void)ctrt_memory_label_push("worker");
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 16; i++)
            if (pool_alloc(memory, &blocks[i], 100 + (size_t)i * 777, NULL) != CTRT_OK)
                abort();
        for (int i = 0; i < 16; i++)
            give(memory, &blocks[i], 100 + (size_t)i * 777);
    }
    return NULL;                            /* the label is not popped: the thread's exit removes it */
}

static void *change_watch(void *argument)
{
    const unsigned first = *(const unsigned *)argument;
    for (unsigned i = 0; i < 200; i++)
        if (ctrt_memory_set_watch((ctrt_memory_watch)((first + i) % 3), 100 + i) != CTRT_OK)
            abort();
    return NULL;
}

#define READS "threads allocate and change the watch mode while others read snapshots and open a device"
#define SPACE "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m"

/* For ThreadSanitizer. The device is watched from the beginning, or not. */
FAKE_TEST(threads, READS, SPACE, "CTRT_MEMORY_HISTORY=all:2000")
{
    static unsigned first[2] = { 0, 1 };
    pthread_t threads[5];
    uint64_t sum;
    for (int i = 0; i < 5; i++)
        pthread_create(&threads[i], NULL, i < 2 ? change_watch : allocate_and_free,
                       i < 2 ? (void *)&first[i] : memory);
    (void)open_memory("fake:1");
    for (int i = 0; i < 30; i++) {
        (void)snapshot_of(device);
        (void)metrics_as(CTRT_METRICS_JSON);
        CHECK_OK(ctrt_memory_set_watch((ctrt_memory_watch)(i % 3), 1000));
        (void)owner_bytes(device, "worker", "", &sum);
    }
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    OWNER_HAS("worker", 0, 0);
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_STATE, 0));
    ctrt_block block = take(memory, MIB);
    OWNER_HAS("", MIB, MIB);
    give(memory, &block, MIB);
}
FAKE_AGAIN(threads, READS, SPACE, "CTRT_MEMORY_HISTORY=none")

TEST_MAIN
{
    folder = pool_folder();
    return run_tests();
}
