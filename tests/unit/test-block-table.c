/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the attribution of memory on fake devices and the cpu: labels, owners, history, snapshots and the
 * out-of-memory report. */
#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>

#include "base/host_alloc.h"
#include "child.h"
#include "ctrt/ctrt.h"
#include "ctrt/memory.h"
#include "folder.h"
#include "memory/pool.h"
#include "memory_stats/history.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MIB ((size_t)1 << 20)

static char *folder;

static struct device_memory *open_memory(const char *name)
{
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, name))) {
        fflush(stdout);
        exit(1);
    }
    return device->memory;
}

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

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

/* ---- labels and owners ---- */

static void test_labels(void)
{
    group("labels nest; a label string stays valid after its pop");
    IN_CHILD(folder_path(folder, NULL)) {
        CHECK(strcmp(ctrt_memory_label(), "") == 0, "%s", ctrt_memory_label());
        CHECK_OK(ctrt_memory_label_push("encoder"));
        CHECK_OK(ctrt_memory_label_push("attention"));
        CHECK(strcmp(ctrt_memory_label(), "encoder/attention") == 0, "%s", ctrt_memory_label());
        const char *kept = ctrt_memory_label();
        CHECK_OK(ctrt_memory_label_pop());
        CHECK(strcmp(ctrt_memory_label(), "encoder") == 0, "%s", ctrt_memory_label());
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_FAILS(ctrt_memory_label_pop(), CTRT_ERR_STATE, "memory_label_pop");
        CHECK(strcmp(kept, "encoder/attention") == 0, "%s", kept);
        char longest[1000];
        memset(longest, 'x', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        CHECK_OK(ctrt_memory_label_push(longest));
        CHECK_OK(ctrt_memory_label_push(longest));
        CHECK(strlen(ctrt_memory_label()) == 1999, "the label has %zu characters", strlen(ctrt_memory_label()));
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_OK(ctrt_memory_label_pop());
    }
    CHILD_END;
}

static size_t heap_in_use(void)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    return mallinfo2().uordblks;            /* 0 under AddressSanitizer, which finds leaks itself */
#else
    return 0;
#endif
}

static void test_forgotten_labels(void)
{
    group("labels that a module pushed and did not pop are removed when the module returns");
    IN_CHILD(folder_path(folder, NULL)) {
        size_t before = 0;
        CHECK_OK(ctrt_memory_label_push("outer"));
        for (int i = 0; i < 2000; i++) {
            struct memory_label label, inner;
            label_enter(&label, label_here(), "module");
            CHECK_OK(ctrt_memory_label_push("a"));
            label_enter(&inner, label_here(), "child");
            CHECK_OK(ctrt_memory_label_push("b"));
            CHECK_OK(ctrt_memory_label_push("c"));
            label_leave(&inner);
            CHECK(strcmp(ctrt_memory_label(), "outer/module/a") == 0, "%s", ctrt_memory_label());
            label_leave(&label);
            CHECK(strcmp(ctrt_memory_label(), "outer") == 0, "%s", ctrt_memory_label());
            if (i == 100)
                before = heap_in_use();
        }
        CHECK(heap_in_use() < before + 10000, "%zu bytes leaked", heap_in_use() - before);
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_FAILS(ctrt_memory_label_pop(), CTRT_ERR_STATE, "memory_label_pop");
    }
    CHILD_END;
}

static void test_owners(void)
{
    group("owners add up to the allocated bytes, even if watching starts late");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_device *device = memory->device;
        ctrt_block before, a, b, c;
        uint64_t sum;
        CHECK_OK(pool_alloc(memory, &before, 1000, NULL));          /* before watching starts */
        CHECK(owner_bytes(device, "(not watched)", "", &sum) == before.bytes && sum == before.bytes,
              "owners have %llu bytes", (unsigned long long)sum);
        CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_STATE, 0));
        ctrt_memory_label_push("encoder");
        CHECK_OK(pool_alloc(memory, &a, 3 * MIB, NULL));
        CHECK_OK(pool_alloc(memory, &b, 2 * MIB, NULL));
        ctrt_memory_label_pop();
        ctrt_memory_label_push("decoder");
        CHECK_OK(pool_alloc(memory, &c, MIB, NULL));
        ctrt_memory_label_pop();
        CHECK(owner_bytes(device, "encoder", "", &sum) == 5 * MIB && sum == ctrt_memory_allocated(device), "sum %llu",
              (unsigned long long)sum);
        pool_free(memory, &a, 3 * MIB, NULL);
        pool_free(memory, &before, 1000, NULL);
        CHECK(owner_bytes(device, "encoder", "", &sum) == 2 * MIB && sum == 3 * MIB, "sum %llu",
              (unsigned long long)sum);
        CHECK(owner_bytes(device, "(not watched)", "", &sum) == 0, "freed memory that was not watched is still listed");
        CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_NONE, 0));
        CHECK(owner_bytes(device, "(not watched)", "", &sum) == 3 * MIB && sum == 3 * MIB, "sum %llu",
              (unsigned long long)sum);
        pool_free(memory, &b, 2 * MIB, NULL);
        CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, 10));
        pool_free(memory, &c, MIB, NULL);
        CHECK(owner_bytes(device, "decoder", "", &sum) == 0 && sum == 0, "sum %llu", (unsigned long long)sum);
    }
    CHILD_END;
    group("many blocks are allocated and freed while watched");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=caching", "CTRT_FAKE_MEMORY=1g", "CTRT_MEMORY_HISTORY=all:1000") {
        struct device_memory *memory = open_memory("fake:0");
        static ctrt_block blocks[700];
        uint64_t seed = 3, sum;
        for (int i = 0; i < 40000; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ctrt_block *block = &blocks[(seed >> 33) % COUNT(blocks)];
            if (block->address != NULL) {
                pool_free(memory, block, block->bytes, NULL);
                block->address = NULL;
            } else {
                CHECK_OK(pool_alloc(memory, block, 1 + (size_t)(seed >> 44) % 20000, NULL));
            }
        }
        CHECK(owner_bytes(memory->device, "", "", &sum) == ctrt_memory_allocated(memory->device)
                  && sum == ctrt_memory_allocated(memory->device), "owners have %llu bytes", (unsigned long long)sum);
        struct history_event *events;
        size_t count;
        uint64_t lost;
        CHECK(history_list(&events, &count, &lost, memory) && count == 1000 && lost > 30000, "%zu events, %llu lost",
              count,
              (unsigned long long)lost);
        for (size_t i = 1; i < count; i++)
            if (events[i].number != events[i - 1].number + 1)
                CHECK(false, "event %zu has the number %llu", i, (unsigned long long)events[i].number);
        host_free(events);
    }
    CHILD_END;
}

/* ---- modules and ops ---- */

static void test_model(void)
{
    if (access(built_path("backend-cpu"), R_OK) != 0) {
        printf("# not run: attribution of a model's memory, because the cpu backend is missing\n");
        return;
    }
    group("a model's memory is attributed to its modules and ops");
    IN_CHILD("CTRT_MEMORY_HISTORY=all:500") {
        ctrt_device *cpu = NULL;
        CTRT_AUTO(module) inner = NULL;
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(tensor) x = NULL, y = NULL, sum = NULL;
        uint64_t all;
        if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")))
            exit(1);
        CHECK_OK(ctrt_sequential_new(&inner, CTRT_MODULES(CTRT_NEW(linear, 64, 64, true, cpu), CTRT_NEW(relu))));
        CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 32, 64, true, cpu),
                                                        ctrt_module_retain(inner))));
        CHECK(owner_bytes(cpu, "Linear/weight", "uniform", &all) >= (64 * 64 + 32 * 64) * 4, "parameters: %llu in all",
              (unsigned long long)all);
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(100, 32), CTRT_F32, cpu));
        CHECK_OK(ctrt_memory_label_push("step"));
        CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(ctrt_memory_label_pop());
        CHECK(owner_bytes(cpu, "step/0", "linear", &all) >= 100 * 64 * 4,
              "the first layer's saved output is not attributed to it");
        CHECK(owner_bytes(cpu, "step/1.1", "relu", &all) >= 100 * 64 * 4,
              "the result is not attributed to the last module");
        CHECK(all == ctrt_memory_allocated(cpu), "owners have %llu bytes, which is not the number of allocated bytes",
              (unsigned long long)all);
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) loss = NULL;
        CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_adamw_new(&optimizer, net, NULL));
        CHECK_OK(ctrt_backward(loss));
        CHECK(owner_bytes(cpu, "backward", "matmul", &all) >= (64 * 64 + 32 * 64) * 4,
              "gradients are not attributed to backward");
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK(owner_bytes(cpu, "optimizer", "", &all) >= 2 * (64 * 64 + 32 * 64) * 4,
              "moments are not attributed to the optimizer");
        CHECK_OK(ctrt_add(&sum, x, x));
        CHECK(owner_bytes(cpu, "", "add", &all) >= 100 * 32 * 4, "the sum is not attributed to add");
        char *text = NULL;
        CHECK_OK(ctrt_memory_snapshot(&text, cpu));
        check_json(text, "a snapshot");
        CHECK(strstr(text, "\"label\": \"step/1.0\", \"op\": \"linear\"") != NULL,
              "the history lacks the linear layer of module 1");
        free(text);
    }
    CHILD_END;
}

/* ---- history and snapshots ---- */

static void test_snapshot(void)
{
    group("the history has each event by its name");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=all:100") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block block, large;
        char *text = NULL, path[4096];
        ctrt_memory_label_push("it's \"quoted\" \\ </script> \xff\n");
        CHECK_OK(pool_alloc(memory, &block, 5000, NULL));
        ctrt_memory_label_pop();
        CHECK_OK(ctrt_memory_annotate(memory->device, "half time"));
        CHECK(pool_alloc(memory, &large, 100 * MIB, NULL) == CTRT_ERR_OUT_OF_MEMORY,
              "an allocation larger than the device did not fail");
        CHECK_OK(ctrt_memory_snapshot(&text, memory->device));
        check_json(text, "a snapshot");
        CHECK(strstr(text, "\"label\": \"it's \\\"quoted\\\" \\\\ </script> \\ufffd\\u000a\"") != NULL, "%s", text);
        CHECK(count_of(text, "\"state\": \"active_allocated\"") == 1 &&
              strstr(text, "\"requested_size\": 5000") != NULL, "%s",
              text);
        free(text);
        pool_free(memory, &block, 5000, NULL);
        snprintf(path, sizeof path, "%s/snapshot.json", folder);
        CHECK_OK(ctrt_memory_snapshot_write(path, memory->device));
        struct stat about;
        CHECK(stat(path, &about) == 0 && about.st_size > 1000, "the snapshot file is missing or too small");
        CHECK_OK(ctrt_memory_snapshot(&text, memory->device));
        static const struct { const char *action; int count; } want[] = {
            { "alloc", 1 }, { "segment_alloc", 1 }, { "annotate", 1 }, { "oom", 1 }, { "snapshot", 3 },
            { "free_requested", 1 }, { "free_completed", 1 }, { "segment_free", 1 },
        };
        for (size_t i = 0; i < COUNT(want); i++) {
            char word[64];
            snprintf(word, sizeof word, "\"action\": \"%s\"", want[i].action);
            CHECK(count_of(text, word) == want[i].count, "%s: %d times, expected %d", want[i].action,
                  count_of(text, word),
                  want[i].count);
        }
        CHECK(strstr(text, "\"text\": \"half time\"") && strstr(text, "\"device_free\": "), "%s", text);
        CHECK(strstr(text, "\"watch\": \"all\"") && strstr(text, "\"segments\": []"), "%s", text);
        free(text);
    }
    CHILD_END;
    group("the grammar of CTRT_MEMORY_HISTORY");
    static const struct { const char *setting, *watch; } cases[] = {
        { "CTRT_MEMORY_HISTORY=", "none" },          { "CTRT_MEMORY_HISTORY=none", "none" },
        { "CTRT_MEMORY_HISTORY=state", "state" },    { "CTRT_MEMORY_HISTORY=all", "all" },
        { "CTRT_MEMORY_HISTORY=all:7", "all" },      { "CTRT_MEMORY_HISTORY=al", NULL },
        { "CTRT_MEMORY_HISTORY=all:", NULL },        { "CTRT_MEMORY_HISTORY=all:0", NULL },
        { "CTRT_MEMORY_HISTORY=all:-1", NULL },      { "CTRT_MEMORY_HISTORY=state:5", NULL },
        { "CTRT_MEMORY_HISTORY=frames", "frames" },  { "CTRT_MEMORY_HISTORY=frames:9", "frames" },
        { "CTRT_MEMORY_HISTORY=frames:", NULL },     { "CTRT_MEMORY_HISTORY=all:5x", NULL },
        { "CTRT_MEMORY_HISTORY=all:99999999999999999999", NULL },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        IN_CHILD(folder_path(folder, NULL), cases[i].setting) {
            ctrt_device *device = NULL;
            char *text = NULL, word[64];
            ctrt_status status = ctrt_device_get(&device, "fake:0");
            if (cases[i].watch == NULL) {
                CHECK(status == CTRT_ERR_INVALID_ARGUMENT && strstr(ctrt_error_message(), "all:ENTRIES"), "%s: %d: %s",
                      cases[i].setting, (int)status, ctrt_error_message());
            } else if (CHECK_OK(status)) {
                CHECK_OK(ctrt_memory_snapshot(&text, device));
                snprintf(word, sizeof word, "\"watch\": \"%s\"", cases[i].watch);
                CHECK(strstr(text, word) != NULL, "%s: the snapshot lacks %s", cases[i].setting, word);
            }
            free(text);
        }
        CHILD_END;
    }
}

static void *read_pipe(void *argument)
{
    static char text[1 << 20];
    size_t length = 0, got;
    FILE *file = fopen(argument, "r");
    while (file != NULL && length + 1 < sizeof text && (got = fread(text + length, 1, sizeof text - 1 - length,
                                                                    file)) > 0)
        length += got;
    text[length] = '\0';
    if (file != NULL)
        fclose(file);
    return text;
}

static int mode_of(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 ? (int)about.st_mode : -1;
}

static void test_snapshot_files(void)
{
    group("a snapshot file gets the umask's permissions; pipes are written to and links are followed");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m") {
        ctrt_device *device = open_memory("fake:0")->device;
        char path[4096], other[4096], command[9000];
        pthread_t thread;
        void *text = NULL;
        snprintf(path, sizeof path, "%s/rights.json", folder);
        umask(027);
        CHECK_OK(ctrt_memory_snapshot_write(path, device));
        CHECK(mode_of(path) == (S_IFREG | 0640), "mode %o", mode_of(path));
        umask(0);
        chmod(path, 0604);
        CHECK_OK(ctrt_memory_snapshot_write(path, device));
        CHECK(mode_of(path) == (S_IFREG | 0604), "mode %o after it was replaced", mode_of(path));
        snprintf(other, sizeof other, "%s/link.json", folder);
        CHECK(symlink("rights.json", other) == 0, "symlink failed");
        CHECK(truncate(path, 0) == 0, "truncate failed");
        CHECK_OK(ctrt_memory_snapshot_write(other, device));
        struct stat about;
        CHECK(S_ISLNK(mode_of(other)) && stat(path, &about) == 0 && about.st_size > 100, "the link was replaced");
        snprintf(other, sizeof other, "%s/pipe", folder);
        CHECK(mkfifo(other, 0600) == 0, "mkfifo failed");
        pthread_create(&thread, NULL, read_pipe, other);
        CHECK_OK(ctrt_memory_snapshot_write(other, device));
        pthread_join(thread, &text);
        CHECK(S_ISFIFO(mode_of(other)) && text != NULL && strstr(text, "\"ctrt memory snapshot\"") != NULL,
              "what was read: %s", (char *)text);
        CHECK(truncate(path, 0) == 0, "truncate failed");
        snprintf(command, sizeof command, "%s", path);
        fflush(stdout);
        int before = dup(1);
        FILE *file = freopen(path, "w", stdout);
        printf("before\n");
        fflush(stdout);
        ctrt_status status = file != NULL ? ctrt_memory_snapshot_write("/dev/stdout", device) : CTRT_ERR_IO;
        if (status == CTRT_OK)
            status = ctrt_memory_snapshot_write("/dev/fd/1", device);
        printf("after\n");
        fflush(stdout);
        dup2(before, 1);
        CHECK(status == CTRT_OK, "/dev/stdout: %s", ctrt_error_message());
        pthread_create(&thread, NULL, read_pipe, path);
        pthread_join(thread, &text);
        CHECK(strncmp(text, "before\n{", 8) == 0 && strcmp((char *)text + strlen(text) - 8, "}\nafter\n") == 0
                  && count_of(text, "\"ctrt memory snapshot\"") == 2, "/dev/stdout received %.300s", (char *)text);
        CHECK_FAILS(ctrt_memory_snapshot_write(folder, device), CTRT_ERR_IO, "directory");
        CHECK_FAILS(ctrt_memory_snapshot_write("/nowhere/at/all.json", device), CTRT_ERR_IO,
                    "/nowhere/at/all.json: No such file");
        /* No temporary file remains. */
        snprintf(command, sizeof command, "ls %s | grep -c 'json[.]'", folder);
        FILE *pipe = popen(command, "r");
        int left = -1;
        CHECK(pipe != NULL && fscanf(pipe, "%d", &left) == 1 && left == 0, "%d files remain", left);
        if (pipe != NULL)
            pclose(pipe);
    }
    CHILD_END;
}

/* Exported, so that backtraces can name it: the test is linked with -rdynamic. */
__attribute__((noinline, visibility("default"))) ctrt_status take_for_frames(struct device_memory *memory,
                                                                             ctrt_block *block);
__attribute__((noinline, visibility("default"))) ctrt_status take_for_frames(struct device_memory *memory,
                                                                             ctrt_block *block)
{
    ctrt_status status = pool_alloc(memory, block, 5000, NULL);
    return status == CTRT_OK ? status : CTRT_ERR_STATE;     /* no tail call, which would leave no frame */
}

static void test_frames(void)
{
#if !defined(__GLIBC__)
    printf("# not run: frames, because backtrace() is missing\n");
    return;
#endif
    group("frames name the functions that allocated a block; each stack is stored once");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m",
             "CTRT_MEMORY_HISTORY=frames:500") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block blocks[40];
        char *text = NULL, word[64];
        for (int i = 0; i < 40; i++)
            CHECK_OK(take_for_frames(memory, &blocks[i]));
        CHECK_OK(ctrt_memory_snapshot(&text, memory->device));
        check_json(text, "a snapshot with frames");
        CHECK(count_of(text, "\"name\": \"take_for_frames\"") == 2,
              "%d stacks have the function, expected that of blocks and that of segments: %s",
              count_of(text, "\"name\": \"take_for_frames\""), strstr(text, "\"stacks\""));
        CHECK(strstr(text, "\"watch\": \"frames\"") && strstr(text, "run-internal\", \"line\": 0, \"offset\": "), "%s",
              strstr(text, "\"stacks\""));
        /* A block has the stack of its allocation event. */
        const char *state = strstr(text, "\"active_allocated\""),
            *stack = state != NULL ? strstr(state, "\"stack\": ") : NULL;
        if (CHECK(stack != NULL, "blocks have no stack")) {
            snprintf(word, sizeof word, "%.*s}", (int)strcspn(stack, "}"), stack);
            CHECK(count_of(text, word) == 80, "%s occurs %d times, expected 40 blocks and 40 events", word,
                  count_of(text, word));
        }
        free(text);
        for (int i = 0; i < 40; i++)
            pool_free(memory, &blocks[i], 5000, NULL);
        CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, 500));
        CHECK_OK(take_for_frames(memory, &blocks[0]));
        CHECK_OK(ctrt_memory_snapshot(&text, memory->device));
        CHECK(strstr(text, "\"stack\"") == NULL && strstr(text, "\"stacks\": {}") != NULL,
              "the snapshot has frames although only events are recorded");
        free(text);
        pool_free(memory, &blocks[0], 5000, NULL);
        CHECK(ctrt_memory_set_watch((ctrt_memory_watch)4, 0) == CTRT_ERR_INVALID_ARGUMENT, "watch mode 4 was accepted");
    }
    CHILD_END;
}

/* ---- out of memory ---- */

struct told {
    int calls;
    size_t bytes;
    ctrt_status again;
    char report[4096];
};

/* Calls the library, which a callback may do; its own allocation fails. */
static void when_out(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    struct told *told = user;
    ctrt_block block;
    told->calls++;
    told->bytes = bytes;
    snprintf(told->report, sizeof told->report, "%s", report);
    told->again = pool_alloc(device->memory, &block, 1000 * MIB, NULL);
}

static void test_oom(void)
{
    group("out of memory: the report has the sizes, and the largest owner first");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=state") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_device *device = memory->device;
        ctrt_block culprit, other, more;
        char *text = NULL;
        struct told told = { 0 };
        CHECK_FAILS(ctrt_memory_last_oom(&text, device), CTRT_ERR_NOT_FOUND, "was never out of memory");
        ctrt_memory_set_oom_callback(when_out, &told);
        ctrt_memory_label_push("decoder");
        CHECK_OK(pool_alloc(memory, &other, 10 * MIB, NULL));
        ctrt_memory_label_pop();
        ctrt_memory_label_push("total_loss");
        CHECK_OK(pool_alloc(memory, &culprit, 40 * MIB, NULL));
        ctrt_memory_label_pop();
        ctrt_memory_label_push("encoder");
        CHECK_FAILS(pool_alloc(memory, &more, 20 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                    "out of memory on fake:0: 20.00 MiB requested, 50.00 MiB allocated to tensors");
        ctrt_memory_label_pop();
        CHECK(strstr(ctrt_error_message(), "Most is held by total_loss, 40.00 MiB")
                  && strstr(ctrt_error_message(), "14.00 MiB of 64.00 MiB free on the device"), "%s",
                  ctrt_error_message());
        CHECK(told.calls == 1 && told.bytes == 20 * MIB && told.again == CTRT_ERR_OUT_OF_MEMORY,
              "%d calls, %zu bytes, %d",
              told.calls, told.bytes, (int)told.again);
        check_json(told.report, "the report");
        static const char *const words[] = {
            "\"device\": \"fake:0\"", "\"asked\": 20971520", "\"total\": 67108864", "\"free\": 14680064",
            "\"allowed\": null",
            "\"allocated\": 52428800", "\"reserved\": 52428800", "\"reserved_unallocated\": 0",
            "\"label\": \"encoder\"",
            "{\"label\": \"total_loss\", \"op\": \"\", \"bytes\": 41943040, \"requested\": 41943040, \"blocks\": 1}",
            "{\"label\": \"decoder\", \"op\": \"\", \"bytes\": 10485760, \"requested\": 10485760, \"blocks\": 1}",
        };
        for (size_t i = 0; i < COUNT(words); i++)
            CHECK(strstr(told.report, words[i]) != NULL, "the report lacks %s: %s", words[i], told.report);
        CHECK(strstr(told.report, "{\"label\": \"total_loss\"") < strstr(told.report, "{\"label\": \"decoder\""),
              "the largest owner is not the first");
        CHECK_OK(ctrt_memory_last_oom(&text, device)); /* the callback's own failure came first and is replaced */
        CHECK(strstr(text, "\"asked\": 20971520") != NULL, "%s", text);
        free(text);
        ctrt_memory_set_oom_callback(NULL, NULL);
        CHECK(pool_alloc(memory, &more, 65 * MIB, NULL) == CTRT_ERR_OUT_OF_MEMORY && told.calls == 1
                  && strstr(ctrt_error_message(), "The block is larger than the device"), "%s", ctrt_error_message());
        int64_t ooms = 0;
        CHECK_OK(ctrt_memory_stat_get(&ooms, device, "num_ooms"));
        CHECK(ooms == 3, "num_ooms is %lld, expected 3", (long long)ooms);
        pool_free(memory, &culprit, 40 * MIB, NULL);
        CHECK_OK(pool_alloc(memory, &more, 20 * MIB, NULL));        /* later allocations succeed */
        pool_free(memory, &more, 20 * MIB, NULL);
        CHECK_FAILS(ctrt_memory_release_all(device), CTRT_ERR_STATE,
                    "tensors still hold 10.00 MiB on fake:0, most of them of "
                                                                     "decoder");
        CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "fake:0");
        pool_free(memory, &other, 10 * MIB, NULL);
        CHECK_OK(ctrt_memory_release_all(device));
        uint64_t left, total;
        CHECK_OK(ctrt_device_memory_info(device, &left, &total));
        CHECK(left == total, "%llu bytes were not returned to the device", (unsigned long long)(total - left));
        CHECK_OK(pool_alloc(memory, &more, MIB, NULL));             /* the device can be used again */
        pool_free(memory, &more, MIB, NULL);
        CHECK_OK(ctrt_shutdown());
    }
    CHILD_END;
    group("out of memory: the report counts memory of other processes");
    static const struct { const char *policy, *advice; } policies[] = {
        { "CTRT_MEMORY=direct", "Other processes hold 40.00 MiB of the device's 64.00 MiB" },
        { "CTRT_MEMORY=caching", "Other processes hold 40.00 MiB of the device's 64.00 MiB" },
    };
    for (size_t i = 0; i < COUNT(policies); i++) {
        IN_CHILD(folder_path(folder, NULL), policies[i].policy, "CTRT_FAKE_MEMORY=64m") {
            struct device_memory *memory = open_memory("fake:0");
            ctrt_device *device = memory->device;
            ctrt_block block;
            void *theirs = NULL;
            char *text = NULL;
            CHECK_OK(device->backend->memory->alloc(device->handle, &theirs, 40 * MIB));
            CHECK_FAILS(pool_alloc(memory, &block, 30 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                        "24.00 MiB of 64.00 MiB free on the device, 40.00 MiB held by other processes");
            CHECK(strstr(ctrt_error_message(), policies[i].advice) != NULL, "%s", ctrt_error_message());
            CHECK_OK(ctrt_memory_last_oom(&text, device));
            CHECK(strstr(text, "\"others\": 41943040") && strstr(text, "\"kind\": \"device\"")
                      && strstr(text, "\"refused_by_limit\": false"), "%s", text);
            free(text);
            CHECK_FAILS(pool_alloc(memory, &block, 70 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                        "The block is larger than the device");
            CHECK_OK(ctrt_memory_set_limit(device, 10 * MIB));
            CHECK_FAILS(pool_alloc(memory, &block, 11 * MIB, NULL), CTRT_ERR_OUT_OF_MEMORY,
                        "The request alone exceeds the limit");
            device->backend->memory->free(device->handle, theirs, 40 * MIB);
        }
        CHILD_END;
    }
    group("host allocations that fail during the report do not change the status");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m", "CTRT_MEMORY_HISTORY=all:50") {
        struct device_memory *memory = open_memory("fake:0");
        ctrt_block block, more;
        CHECK_OK(pool_alloc(memory, &block, 40 * MIB, NULL));
        for (uint64_t n = 1; n < 30; n++) {
            char *text = NULL;
            alloc_fail_at(n, n % 2);
            ctrt_status status = pool_alloc(memory, &more, 60 * MIB, NULL);
            ctrt_status second = ctrt_memory_snapshot(&text, memory->device);
            alloc_fail_at(0, false);
            CHECK(status == CTRT_ERR_OUT_OF_MEMORY && (second == CTRT_OK || second == CTRT_ERR_OUT_OF_MEMORY),
                  "n %d: %d, %d",
                  (int)n, (int)status, (int)second);
            free(text);
        }
        pool_free(memory, &block, 40 * MIB, NULL);
        CHECK(ctrt_memory_allocated(memory->device) == 0, "allocated bytes remain after all blocks were freed");
    }
    CHILD_END;
}

/* ---- threads ---- */

static void *take_and_give(void *argument)
{
    struct device_memory *memory = argument;
    ctrt_block blocks[16];
    (void)ctrt_memory_label_push("worker");
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 16; i++)
            if (pool_alloc(memory, &blocks[i], 100 + (size_t)i * 777, NULL) != CTRT_OK)
                abort();
        for (int i = 0; i < 16; i++)
            pool_free(memory, &blocks[i], 100 + (size_t)i * 777, NULL);
    }
    return NULL;                            /* the label is not popped: the thread's exit removes it */
}

static void test_threads(void)
{
    group("threads allocate while another thread reads snapshots and changes the watch mode");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m", "CTRT_MEMORY_HISTORY=all:2000") {
        struct device_memory *memory = open_memory("fake:0");
        pthread_t threads[4];
        uint64_t sum;
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, take_and_give, memory);
        for (int i = 0; i < 30; i++) {
            char *text = NULL;
            CHECK_OK(ctrt_memory_snapshot(&text, memory->device));
            free(text);
            CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_JSON));
            free(text);
            CHECK_OK(ctrt_memory_set_watch((ctrt_memory_watch)(i % 3), 1000));
        }
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        CHECK(owner_bytes(memory->device, "worker", "", &sum) == 0 && sum == 0,
              "%llu bytes have owners after all blocks were freed",
              (unsigned long long)sum);
    }
    CHILD_END;
}

static void *change_watch(void *argument)
{
    const unsigned first = *(const unsigned *)argument;
    for (unsigned i = 0; i < 200; i++)
        if (ctrt_memory_set_watch((ctrt_memory_watch)((first + i) % 3), 100 + i) != CTRT_OK)
            abort();
    return NULL;
}

/* For ThreadSanitizer: the device is not watched at first. */
static void test_watchers(void)
{
    group("several threads change the watch mode while others allocate and a device is opened");
    IN_CHILD(folder_path(folder, NULL), "CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=256m") {
        static unsigned first[2] = { 0, 1 };
        struct device_memory *memory = open_memory("fake:0");
        pthread_t threads[4];
        uint64_t sum;
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, i < 2 ? change_watch : take_and_give, i < 2 ? (void *)&first[i] : memory);
        (void)open_memory("fake:1");
        for (int i = 0; i < 50; i++)
            (void)owner_bytes(memory->device, "worker", "", &sum);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_STATE, 0));
        ctrt_block block;
        CHECK_OK(pool_alloc(memory, &block, MIB, NULL));
        CHECK(owner_bytes(memory->device, "", "", &sum) == MIB && sum == MIB, "%llu bytes have owners",
              (unsigned long long)sum);
        pool_free(memory, &block, MIB, NULL);
    }
    CHILD_END;
}

TEST_MAIN
{
    folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    test_labels();
    test_forgotten_labels();
    test_owners();
    test_model();
    test_snapshot();
    test_snapshot_files();
    test_frames();
    test_oom();
    test_threads();
    test_watchers();
    folder_remove(folder);
    return done();
}
