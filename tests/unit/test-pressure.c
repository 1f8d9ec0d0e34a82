/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that caches are trimmed under memory pressure. A FIFO replaces the kernel's pressure file; each write to the
 * FIFO counts as pressure. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "child.h"
#include "ctrt/ctrt.h"
#include "memory/pinned_cache.h"
#include "memory/pressure.h"

#define MIB ((int64_t)1 << 20)

static char folder[] = "/tmp/ctrt-pressure-XXXXXX";
static char fifo[64], fifo_setting[128];

/* ---- small helpers ---- */

static void nap(void)
{
    nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
}

/* Returns the number of threads of this process that have the watcher's name. *blocked receives the signals that the
 * last one blocks. */
static int watchers(unsigned long long *blocked)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
        char path[300], line[256];
        bool ours = false;
        snprintf(path, sizeof path, "/proc/self/task/%.32s/status", entry->d_name);
        FILE *file = fopen(path, "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL) {
            ours |= strcmp(line, "Name:\tctrt-pressure\n") == 0;
            if (ours && strncmp(line, "SigBlk:", 7) == 0 && blocked != NULL)
                *blocked = strtoull(line + 7, NULL, 16);
        }
        if (file != NULL)
            fclose(file);
        count += ours;
    }
    if (tasks != NULL)
        closedir(tasks);
    return count;
}

static int watchers_become(int wanted)
{
    int count = watchers(NULL);
    for (int i = 0; i < 2000 && count != wanted; i++, count = watchers(NULL))
        nap();
    return count;
}

static bool press(void)
{
    int fd = open(fifo, O_WRONLY | O_NONBLOCK);
    bool good = fd >= 0 && write(fd, "!", 1) == 1;
    if (fd >= 0)
        close(fd);
    return good;
}

static ctrt_device *cpu(void)
{
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        exit(1);
    return device;
}

static ctrt_tensor *filled(int64_t bytes, double value)
{
    ctrt_tensor *tensor = NULL;
    if (!CHECK_OK(ctrt_full(&tensor, CTRT_SHAPE(bytes / 4), ctrt_float(value), CTRT_F32, cpu())))
        exit(1);
    return tensor;
}

static bool holds(ctrt_tensor *tensor, float value)
{
    const float *data = ctrt_tensor_data(tensor);
    for (int64_t i = 0; i < ctrt_tensor_numel(tensor); i += 257)
        if (data[i] != value)
            return false;
    return true;
}

/* Waits until the cpu's policy has reserved at most `bytes`. Returns the reserved bytes. */
static uint64_t shrinks_to(uint64_t bytes)
{
    uint64_t held = ctrt_memory_reserved(cpu());
    for (int i = 0; i < 5000 && held > bytes; i++, held = ctrt_memory_reserved(cpu()))
        nap();
    return held;
}

static char heard[512];
static int times_heard;
static void hear(void *ignored, ctrt_log_level level, const char *component, const char *message)
{
    (void)ignored, (void)level, (void)component;
    if (strstr(message, "not watched") == NULL)
        return;
    snprintf(heard, sizeof heard, "%s", message);
    times_heard++;
}

/* ---- CTRT_MEMORY_PRESSURE ---- */

static void test_grammar(void)
{
    static const struct { const char *text; bool good, watch; const char *trigger; } cases[] = {
        { "off", true, false, NULL },
        { "0", true, false, NULL },
        { "on", true, true, "some 150000 2000000" },
        { "on:some 100000 1000000", true, true, "some 100000 1000000" },
        { "on:full 500000 500000", true, true, "full 500000 500000" },
        { "", false, false, NULL },
        { "yes please", false, false, NULL },
        { "on:", false, false, NULL },
        { "on:some", false, false, NULL },
        { "on:some 1", false, false, NULL },
        { "on:most 150000 1000000", false, false, NULL },
        { "on:some 150000 1000000 x", false, false, NULL },
        { "on:some 150000 499999", false, false, NULL },
        { "on:some 150000 10000001", false, false, NULL },
        { "on:some 0 1000000", false, false, NULL },
        { "on:some 1000001 1000000", false, false, NULL },
        { "on:some -1 1000000", false, false, NULL },
        { "on:some 99999999999999999999 1000000", false, false, NULL },
    };
    group("values of CTRT_MEMORY_PRESSURE are parsed");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pressure_options wish;
        ctrt_status status = pressure_parse(&wish, cases[i].text);
        if (!cases[i].good) {
            CHECK(status == CTRT_ERR_INVALID_ARGUMENT && strstr(ctrt_error_message(), "CTRT_MEMORY_PRESSURE") != NULL,
                  "\"%s\": status %d, \"%s\"", cases[i].text, (int)status, ctrt_error_message());
            continue;
        }
        CHECK(status == CTRT_OK && wish.watch == cases[i].watch, "\"%s\": status %d, watch %d", cases[i].text, (int)status, wish.watch);
        CHECK(!wish.watch || strcmp(wish.trigger, cases[i].trigger) == 0, "\"%s\" gives \"%s\"", cases[i].text, wish.trigger);
    }
    IN_CHILD("CTRT_MEMORY_PRESSURE=perhaps") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "cpu"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_MEMORY_PRESSURE=perhaps");
    }
    CHILD_END;
}

static void test_off(void)
{
    group("no watcher thread by default");
    IN_CHILD("CTRT_MEMORY_PRESSURE_FILE=/nowhere") {
        ctrt_tensor *x = filled(4 * MIB, 1);
        CHECK(watchers(NULL) == 0, "there are %d watchers", watchers(NULL));
        ctrt_tensor_release(&x);
    }
    CHILD_END;
}

/* ---- pressure ---- */

static void test_trim(void)
{
    group("pressure trims the cache and does not change live tensors");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", fifo_setting, "CTRT_MEMORY=caching") {
        ctrt_tensor *kept = filled(24 * MIB, 3), *gone = NULL;
        for (int round = 1; round <= 3; round++) {
            gone = filled(48 * MIB, round);
            uint64_t before = ctrt_memory_reserved(cpu());
            ctrt_tensor_release(&gone);
            CHECK(ctrt_memory_reserved(cpu()) == before, "the cache did not keep the block: %llu bytes, then %llu",
                  (unsigned long long)before, (unsigned long long)ctrt_memory_reserved(cpu()));
            CHECK(press(), "the FIFO has no reader: %s", strerror(errno));
            uint64_t after = shrinks_to(before - (uint64_t)(48 * MIB));
            CHECK(after <= before - (uint64_t)(48 * MIB), "round %d: %llu bytes held before, %llu after", round,
                  (unsigned long long)before, (unsigned long long)after);
            CHECK(holds(kept, 3), "a live tensor lost its values");
        }
        CHECK(pressure_trims() == 3, "trimmed %llu times, expected 3", (unsigned long long)pressure_trims());
        ctrt_tensor_release(&kept);
    }
    CHILD_END;
}

static void test_pinned(void)
{
    group("pressure frees unused pinned memory");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", fifo_setting, "CTRT_SIM=devices=1,latency=300ms") {
        ctrt_device *device = NULL;
        ctrt_tensor *kept = NULL, *gone = NULL;
        if (!ctrt_is_available("sim", NULL)) {
            printf("# not run: pinned memory under pressure, because the simulated device is missing\n");
            exit(0);
        }
        CHECK_OK(ctrt_device_get(&device, "sim:0"));
        CHECK_OK(ctrt_empty_pinned(&kept, CTRT_SHAPE(MIB / 4), CTRT_F32, device));
        CHECK_OK(ctrt_empty_pinned(&gone, CTRT_SHAPE(2 * MIB), CTRT_F32, device));
        ctrt_tensor_release(&gone);
        CHECK(pinned_held(device) == (uint64_t)(9 * MIB), "%llu bytes are pinned", (unsigned long long)pinned_held(device));
        CHECK(watchers_become(1) == 1 && press(), "the FIFO has no reader: %s", strerror(errno));
        for (int i = 0; i < 5000 && pinned_held(device) > (uint64_t)MIB; i++)
            nap();
        CHECK(pinned_held(device) == (uint64_t)MIB, "%llu bytes are pinned after the trim",
              (unsigned long long)pinned_held(device));
        ctrt_tensor *there = NULL;
        bool left = false;
        CHECK_OK(ctrt_to_non_blocking(&there, kept, device, &left));
        ctrt_tensor_release(&kept);
        CHECK(left && press(), "the copy was not asynchronous, or the FIFO has no reader");
        for (int i = 0; i < 5000 && pressure_trims() < 2; i++)
            nap();
        CHECK(pinned_held(device) == (uint64_t)MIB, "memory was freed while a copy reads it");
        CHECK_OK(ctrt_device_synchronize(device));
        for (int i = 0; i < 5000 && pinned_held(device) > 0; i++) {
            press();
            nap();
        }
        CHECK(pinned_held(device) == 0, "%llu bytes are pinned at the end", (unsigned long long)pinned_held(device));
        ctrt_tensor_release(&there);
    }
    CHILD_END;
}

struct churner {
    uint32_t seed;
    bool good;
};

static _Atomic bool stop;

static void *churn(void *argument)
{
    struct churner *self = argument;
    self->good = true;
    while (!stop && self->good) {
        self->seed = self->seed * 1664525u + 1013904223u;
        int64_t bytes = self->seed % 4 == 0 ? 2 * MIB + (int64_t)(self->seed >> 8) % (4 * MIB) : 64 + (int64_t)(self->seed >> 8) % 65536;
        ctrt_tensor *x = NULL;
        self->good = ctrt_full(&x, CTRT_SHAPE(bytes / 4), ctrt_float(self->seed % 1000), CTRT_F32, cpu()) == CTRT_OK
                     && holds(x, (float)(self->seed % 1000));
        ctrt_tensor_release(&x);
    }
    return NULL;
}

static void test_threads(void)
{
    group("pressure while other threads allocate and free");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", fifo_setting, "CTRT_MEMORY=caching", "CTRT_NUM_THREADS=1") {
        pthread_t threads[3];
        struct churner churners[3] = { { .seed = 1 }, { .seed = 2 }, { .seed = 3 } };
        cpu();
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, churn, &churners[i]);
        for (int i = 0; i < 100; i++) {
            press();
            nap();
        }
        stop = true;
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            CHECK(churners[i].good, "thread %d got an error or wrong values", i);
        }
        CHECK(pressure_trims() > 5, "trimmed %llu times after 100 writes", (unsigned long long)pressure_trims());
        CHECK(ctrt_memory_allocated(cpu()) == 0, "%llu bytes are allocated", (unsigned long long)ctrt_memory_allocated(cpu()));
    }
    CHILD_END;
}

/* ---- watcher thread ---- */

static void test_life(void)
{
    group("one watcher thread, which blocks signals, stops and starts again");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", fifo_setting) {
        unsigned long long blocked = 0;
        cpu();
        CHECK(watchers_become(1) == 1, "%d watchers after opening the cpu", watchers(NULL));
        CHECK_OK(pressure_start());
        CHECK(watchers(&blocked) == 1, "%d watchers after a second start", watchers(NULL));
        CHECK(blocked >> (SIGTERM - 1) & blocked >> (SIGINT - 1) & 1,
              "the watcher does not block SIGTERM and SIGINT: %llx", blocked);
        pressure_stop();
        CHECK(watchers_become(0) == 0, "%d watchers after the stop", watchers(NULL));
        CHECK(!press() && errno == ENXIO, "the FIFO still has a reader");
        pressure_stop();
        CHECK_OK(pressure_start());
        CHECK(watchers_become(1) == 1, "%d watchers after another start", watchers(NULL));
    }
    CHILD_END;
}

static void test_fork(void)
{
#if defined(__SANITIZE_THREAD__)
    printf("# not run: threads in a forked child, which ThreadSanitizer does not support\n");
    return;
#endif
    group("a forked child starts its own watcher at its first allocation");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", fifo_setting, "CTRT_MEMORY=caching") {
        ctrt_tensor *x = filled(8 * MIB, 1);
        CHECK(watchers_become(1) == 1, "%d watchers", watchers(NULL));
        ctrt_tensor_release(&x);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            tap_state.failed = 0;
            CHECK(watchers(NULL) == 0, "the child has a watcher before its first allocation");
            x = filled(64 * MIB, 2);
            CHECK(watchers_become(1) == 1, "%d watchers in the child", watchers(NULL));
            ctrt_tensor_release(&x);
            for (int i = 0; i < 2000 && pressure_trims() == 0; i++) {       /* the parent reads the same FIFO */
                press();
                nap();
            }
            CHECK(pressure_trims() > 0 && shrinks_to(0) == 0, "the child's cache was not emptied");
            fflush(stdout);
            exit(tap_state.failed > 0);
        }
        child_join(child, __FILE__, __LINE__);
        CHECK(watchers(NULL) == 1, "the parent has no watcher");
        x = filled(8 * MIB, 3);
        ctrt_tensor_release(&x);
        CHECK(press() && shrinks_to(0) == 0, "the parent's cache was not emptied");
    }
    CHILD_END;
}

/* ---- no pressure file ---- */

static void test_absent(void)
{
    group("a missing or unsuitable pressure file is logged once, and allocations work");
    char file[96], setting[160], kept[32] = "";
    snprintf(file, sizeof file, "%s/precious", folder);
    snprintf(setting, sizeof setting, "CTRT_MEMORY_PRESSURE_FILE=%s", file);
    FILE *out = fopen(file, "w");
    if (CHECK(out != NULL, "%s: %s", file, strerror(errno))) {
        fputs("precious", out);
        fclose(out);
    }
    const char *settings[] = { "CTRT_MEMORY_PRESSURE_FILE=/nowhere/at-all", setting };
    for (int i = 0; i < 2; i++) {
        IN_CHILD("CTRT_MEMORY_PRESSURE=on", settings[i], "CTRT_LOG=info") {
            ctrt_log_set_callback(hear, NULL);
            ctrt_tensor *x = filled(4 * MIB, 1);
            CHECK_OK(pressure_start());
            CHECK(times_heard == 1 && strstr(heard, settings[i] + strlen("CTRT_MEMORY_PRESSURE_FILE=")) != NULL,
                  "logged %d times: \"%s\"", times_heard, heard);
            CHECK(watchers(NULL) == 0, "a watcher runs without a pressure file");
            ctrt_tensor_release(&x);
        }
        CHILD_END;
    }
    FILE *in = fopen(file, "r");
    if (in != NULL) {
        if (fgets(kept, sizeof kept, in) == NULL)
            kept[0] = '\0';
        fclose(in);
    }
    CHECK(strcmp(kept, "precious") == 0, "a regular file was overwritten: \"%s\"", kept);
    unlink(file);
}

/* With the kernel's own file, if it exists: the trigger is accepted, or a log message gives the reason. */
static void test_kernel(void)
{
    group("the kernel's pressure file is watched, or the reason is logged");
    IN_CHILD("CTRT_MEMORY_PRESSURE=on", "CTRT_LOG=info") {
        ctrt_log_set_callback(hear, NULL);
        cpu();
        if (times_heard > 0)
            printf("# %s\n", heard);
        CHECK(watchers_become(times_heard == 0) == (times_heard == 0), "%d watchers; logged: \"%s\"", watchers(NULL),
              heard);
    }
    CHILD_END;
}

TEST_MAIN
{
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 99;
    }
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    snprintf(fifo_setting, sizeof fifo_setting, "CTRT_MEMORY_PRESSURE_FILE=%s", fifo);
    if (mkfifo(fifo, 0600) != 0) {
        perror(fifo);
        return 99;
    }
    test_off();
    test_trim();
    test_pinned();
    test_threads();
    test_life();
    test_fork();
    test_absent();
    test_kernel();
    test_grammar();
    unlink(fifo);
    rmdir(folder);
    return done();
}
