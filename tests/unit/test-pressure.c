/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that caches are trimmed under memory pressure. A FIFO replaces the kernel's pressure file; each write to the
 * FIFO counts as pressure. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "calls.h"
#include "log_kept.h"
#include "memory/pinned_cache.h"
#include "memory/pressure.h"
#include "memory_checks.h"
#include "sims.h"

static const char *folder;
static char fifo[192], fifo_setting[256];
#define ON "CTRT_MEMORY_PRESSURE=on"

/* Waits up to 10 seconds until the condition is true. */
#define WAIT_FOR(condition)                                                                                 \
    do {                                                                                                    \
        for (int i_ = 0; i_ < 5000 && !(condition); i_++)                                                   \
            usleep(2000);                                                                                   \
        CHECK_TRUE(condition);                                                                              \
    } while (0)

/* Returns the number of threads of this process that have the watcher's name. *blocked receives the signals that the
 * last one blocks. */
static int watchers(unsigned long long *blocked)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
        char path[300], text[8192];
        snprintf(path, sizeof path, "/proc/self/task/%.32s/status", entry->d_name);
        text[folder_read(text, sizeof text - 1, path)] = '\0';
        const char *signals = strstr(text, "SigBlk:");
        if (strncmp(text, "Name:\tctrt-pressure\n", 20) != 0 || signals == NULL)
            continue;
        count++;
        if (blocked != NULL)
            *blocked = strtoull(signals + 7, NULL, 16);
    }
    if (tasks != NULL)
        closedir(tasks);
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

static ctrt_tensor *filled(size_t bytes, double value)
{
    return full(value, (int64_t)(bytes / 4), cpu_device());
}

static bool holds(ctrt_tensor *tensor, float value)
{
    const float *data = ctrt_tensor_data(tensor);
    for (int64_t i = 0; i < ctrt_tensor_numel(tensor); i += 257)
        if (data[i] != value)
            return false;
    return true;
}

static const char unwatched[] = "not watched";

/* ---- CTRT_MEMORY_PRESSURE ---- */

TEST(test_grammar, "values of CTRT_MEMORY_PRESSURE are parsed")
{
    static const struct { const char *text, *trigger; } good[] = {
        { "off", NULL }, { "0", NULL }, { "on", "some 150000 2000000" },
        { "on:some 100000 1000000", "some 100000 1000000" }, { "on:full 500000 500000", "full 500000 500000" },
    };
    static const char *const bad[] = {
        "", "yes please", "on:", "on:some", "on:some 1", "on:most 150000 1000000", "on:some 150000 1000000 x",
        "on:some 150000 499999", "on:some 150000 10000001", "on:some 0 1000000", "on:some 1000001 1000000",
        "on:some -1 1000000", "on:some 99999999999999999999 1000000",
    };
    struct pressure_options setting;
    EACH(c, good) {
        CHECK_OK(pressure_parse(&setting, c->text));
        CHECK_EQ(setting.watch, c->trigger != NULL);
        if (setting.watch)
            CHECK_STR(setting.trigger, c->trigger);
    }
    EACH(text, bad)
        CHECK_FAILS(pressure_parse(&setting, *text), CTRT_ERR_INVALID_ARGUMENT, "CTRT_MEMORY_PRESSURE");
    IN_CHILD("CTRT_MEMORY_PRESSURE=perhaps") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "cpu"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_MEMORY_PRESSURE=perhaps");
    }
}

CHILD_TEST(off, "no watcher thread by default", "CTRT_MEMORY_PRESSURE_FILE=/nowhere")
{
    ctrt_tensor *x = filled(4 * MIB, 1);
    CHECK_EQ(watchers(NULL), 0);
    ctrt_tensor_release(&x);
}

/* ---- pressure ---- */

CHILD_TEST(trim, "pressure trims the cache, not live tensors", ON, fifo_setting, "CTRT_MEMORY=caching")
{
    ctrt_tensor *kept = filled(24 * MIB, 3), *gone = NULL;
    for (int round = 1; round <= 3; round++) {
        gone = filled(48 * MIB, round);
        const uint64_t before = ctrt_memory_reserved(cpu_device());
        ctrt_tensor_release(&gone);
        CHECK_EQ(ctrt_memory_reserved(cpu_device()), before);
        CHECK(press(), "the FIFO has no reader: %s", strerror(errno));
        WAIT_FOR(ctrt_memory_reserved(cpu_device()) <= before - 48 * MIB);
        CHECK(holds(kept, 3), "a live tensor lost its values");
    }
    CHECK_EQ(pressure_trims(), 3);
    ctrt_tensor_release(&kept);
}

CHILD_TEST(pinned, "pressure frees unused pinned memory", ON, fifo_setting, "CTRT_SIM=devices=1,latency=300ms")
{
    ctrt_device *device = NULL;
    CTRT_AUTO(tensor) kept = NULL, gone = NULL, there = NULL;
    bool left = false;
    if (!ctrt_is_available("sim", NULL)) {
        printf("# not run: pinned memory under pressure, because the simulated device is missing\n");
        exit(0);
    }
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    CHECK_OK(ctrt_empty_pinned(&kept, CTRT_SHAPE(1 << 18), CTRT_F32, device));
    CHECK_OK(ctrt_empty_pinned(&gone, CTRT_SHAPE(1 << 21), CTRT_F32, device));
    ctrt_tensor_release(&gone);
    CHECK_EQ(pinned_held(device), 9 * MIB);
    WAIT_FOR(watchers(NULL) == 1);
    CHECK(press(), "the FIFO has no reader: %s", strerror(errno));
    WAIT_FOR(pinned_held(device) == MIB);
    CHECK_OK(ctrt_to_non_blocking(&there, kept, device, &left));
    ctrt_tensor_release(&kept);
    CHECK(left && press(), "the copy was not asynchronous, or the FIFO has no reader");
    WAIT_FOR(pressure_trims() >= 2);
    CHECK_EQ(pinned_held(device), MIB);             /* a copy reads it */
    CHECK_OK(ctrt_device_synchronize(device));
    WAIT_FOR((press(), pinned_held(device)) == 0);
    ctrt_tensor_release(&there);
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
        const uint32_t random = self->seed >> 8;
        const int64_t bytes = self->seed % 4 == 0 ? (2 << 20) + random % (4 << 20) : 64 + random % 65536;
        ctrt_tensor *x = NULL;
        self->good = ctrt_full(&x, CTRT_SHAPE(bytes / 4), ctrt_float(self->seed % 1000), CTRT_F32, cpu) == CTRT_OK
                     && holds(x, (float)(self->seed % 1000));
        ctrt_tensor_release(&x);
    }
    return NULL;
}

CHILD_TEST(threads, "pressure while other threads allocate and free", ON, fifo_setting, "CTRT_MEMORY=caching",
           "CTRT_NUM_THREADS=1")
{
    pthread_t threads[3];
    struct churner churners[3] = { { .seed = 1 }, { .seed = 2 }, { .seed = 3 } };
    cpu_device();
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, churn, &churners[i]);
    for (int i = 0; i < 100 || (pressure_trims() <= 5 && i < 5000); i++) {      /* the machine may be busy */
        press();
        usleep(2000);
    }
    stop = true;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK(churners[i].good, "thread %d got an error or wrong values", i);
    }
    CHECK(pressure_trims() > 5, "trimmed only %llu times", (unsigned long long)pressure_trims());
    CHECK_EQ(ctrt_memory_allocated(cpu_device()), 0);
}

/* ---- watcher thread ---- */

CHILD_TEST(life, "one watcher thread, which blocks signals, stops and starts again", ON, fifo_setting)
{
    unsigned long long blocked = 0;
    cpu_device();
    WAIT_FOR(watchers(NULL) == 1);
    CHECK_OK(pressure_start());
    CHECK_EQ(watchers(&blocked), 1);
    CHECK(blocked >> (SIGTERM - 1) & blocked >> (SIGINT - 1) & 1,
          "the watcher does not block SIGTERM and SIGINT: %llx", blocked);
    pressure_stop();
    WAIT_FOR(watchers(NULL) == 0);
    CHECK(!press() && errno == ENXIO, "the FIFO still has a reader");
    pressure_stop();
    CHECK_OK(pressure_start());
    WAIT_FOR(watchers(NULL) == 1);
}

#ifndef __SANITIZE_THREAD__             /* it does not support threads in a forked child */
CHILD_TEST(forked, "a forked child starts its own watcher at its first allocation", ON, fifo_setting,
           "CTRT_MEMORY=caching")
{
    ctrt_tensor *x = filled(8 * MIB, 1);
    WAIT_FOR(watchers(NULL) == 1);
    ctrt_tensor_release(&x);
    IN_CHILD(NULL) {
        CHECK_EQ(watchers(NULL), 0);
        x = filled(64 * MIB, 2);
        WAIT_FOR(watchers(NULL) == 1);
        ctrt_tensor_release(&x);
        WAIT_FOR((press(), pressure_trims()) > 0);      /* the parent reads the same FIFO */
        WAIT_FOR(ctrt_memory_reserved(cpu_device()) == 0);
    }
    CHECK_EQ(watchers(NULL), 1);
    x = filled(8 * MIB, 3);
    ctrt_tensor_release(&x);
    CHECK_TRUE(press());
    WAIT_FOR(ctrt_memory_reserved(cpu_device()) == 0);
}
#endif

/* ---- no pressure file ---- */

TEST(test_absent, "a missing or unsuitable pressure file is logged once, and allocations work")
{
    char file[192], setting[256];
    snprintf(file, sizeof file, "%s/precious", folder);
    snprintf(setting, sizeof setting, "CTRT_MEMORY_PRESSURE_FILE=%s", file);
    folder_text(folder, "precious", "precious");
    const char *settings[] = { "CTRT_MEMORY_PRESSURE_FILE=/nowhere/at-all", setting };
    for (int i = 0; i < 2; i++) {
        IN_CHILD("CTRT_MEMORY_PRESSURE=on", settings[i], "CTRT_LOG=info") {
            log_keep(CTRT_LOG_INFO);
            ctrt_tensor *x = filled(4 * MIB, 1);
            CHECK_OK(pressure_start());
            CHECK_HAS(logged, strchr(settings[i], '=') + 1);
            CHECK_EQ(count_of(logged, unwatched), 1);
            CHECK_EQ(watchers(NULL), 0);
            ctrt_tensor_release(&x);
        }
    }
    char text[32] = "";
    (void)folder_read(text, sizeof text - 1, file);
    CHECK_STR(text, "precious");
}

CHILD_TEST(kernel, "the kernel's pressure file is watched, or the reason is logged", ON, "CTRT_LOG=info")
{
    log_keep(CTRT_LOG_INFO);
    cpu_device();
    const char *reason = strstr(logged, unwatched);
    printf("# the kernel's file is %.300s\n", reason != NULL ? reason : "watched");
    WAIT_FOR(watchers(NULL) == (reason == NULL));
}

TEST_MAIN
{
    folder = folder_new();
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    snprintf(fifo_setting, sizeof fifo_setting, "CTRT_MEMORY_PRESSURE_FILE=%s", fifo);
    if (mkfifo(fifo, 0600) != 0) {
        perror(fifo);
        return 99;
    }
    return run_tests();
}
