/* SPDX-License-Identifier: Apache-2.0 */
/* Tests device usage: load, memory, processes, links, the table of all devices, and the selection of free devices. The
 * devices are simulated, so that their numbers are exact. */
#include <errno.h>

#include "../options.h"
#include "calls.h"
#include "sims.h"

CHILD_TEST(usage, "memory in use is exact and available without opening the device", "CTRT_SIM=devices=2,memory=64m",
           "CTRT_MEMORY=direct")
{
    ctrt_usage usage = { .size = sizeof(ctrt_usage), .busy = 99 };
    CHECK_OK(ctrt_device_get_usage(&usage, "sim:0"));
    CHECK_EQ(usage.total_memory, 64 << 20);
    CHECK_EQ(usage.used_memory, 0);
    CHECK_EQ(usage.free_memory, 64 << 20);
    CHECK_EQ(usage.busy, 0);
    CHECK_EQ(usage.processes, 0);
    CHECK(usage.temperature == -1 && usage.power == -1 && usage.power_limit == -1 && usage.clock_khz == -1 &&
          usage.memory_busy == -1, "an unknown value is not -1");
    CTRT_AUTO(tensor) x = full(1, 4 << 20, sim_open("sim:0"));
    CHECK_OK(ctrt_device_synchronize(ctrt_tensor_device(x)));
    CHECK_OK(ctrt_device_get_usage(&usage, "sim:0"));
    CHECK_EQ(usage.used_memory, 16 << 20);
    CHECK_EQ(usage.free_memory, 48 << 20);
    CHECK_EQ(usage.processes, 1);
    ctrt_process process = { 0 };
    size_t count = 9;
    CHECK_OK(ctrt_device_get_processes(&process, &count, 1, "sim:0"));
    CHECK_EQ(count, 1);
    CHECK_EQ(process.pid, getpid());
    CHECK_EQ(process.memory, 16 << 20);
    CHECK_STR(process.name, program_invocation_short_name);
    CHECK_OK(ctrt_device_get_processes(NULL, &count, 0, "sim:1"));
    CHECK(count == 0, "%zu processes on an unused device, expected 0", count);
}

SIM_TEST(load, "the load is the fraction of time with running work since the last query",
         "CTRT_SIM=devices=1,latency=50ms")
{
    CTRT_AUTO(tensor) x = full(1, 16, device);
    ctrt_usage usage = CTRT_USAGE;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(ctrt_device_get_usage(&usage, "sim:0"));
    usleep(100000);
    CHECK_OK(ctrt_device_get_usage(&usage, "sim:0"));
    CHECK(usage.busy == 0, "the device was idle for 100 ms, but is %d%% busy", usage.busy);
    for (int i = 0; i < 4; i++)
        CHECK_OK(ctrt_add_(x, x));
    usleep(100000);
    CHECK_OK(ctrt_device_get_usage(&usage, "sim:0"));
    CHECK(usage.busy >= 80, "200 ms of work were enqueued 100 ms ago, but the device is %d%% busy", usage.busy);
    CHECK_OK(ctrt_device_synchronize(device));
}

CHILD_TEST(no_load, "a backend without load reports memory once its device is open", NULL)
{
    ctrt_usage usage = CTRT_USAGE;
    size_t count;
    CHECK_FAILS(ctrt_device_get_usage(&usage, "cpu"), CTRT_ERR_NOT_SUPPORTED, "does not report utilization");
    cpu_device();
    CHECK_OK(ctrt_device_get_usage(&usage, "cpu"));
    CHECK_EQ(usage.busy, -1);
    CHECK_TRUE(usage.total_memory > 0);
    CHECK_EQ(usage.used_memory + usage.free_memory, usage.total_memory);
    CHECK_FAILS(ctrt_device_get_processes(NULL, &count, 0, "cpu"), CTRT_ERR_NOT_SUPPORTED, "which processes");
}

CHILD_TEST(test_table, "the table lists every device with load, memory and name", "CTRT_SIM=devices=2,memory=64m",
           "CTRT_MEMORY=direct")
{
    char *table = NULL;
    CTRT_AUTO(tensor) x = full(1, 8 << 20, sim_open("sim:1"));
    CHECK_OK(ctrt_show_utilization(&table, "sim", false));
    const char *want = "| ID | GPU | MEM |\n------------------\n|  0 |  0% |  0% |\n|  1 | ";
    CHECK(table != NULL && strncmp(table, want, strlen(want)) == 0, "%s", table);
    CHECK_HAS(table, "| 50% |\n");
    free(table);
    CHECK_OK(ctrt_show_utilization(&table, "sim", true));
    char words[96];
    snprintf(words, sizeof words, "sim:1: process %d %s uses 32.00 MiB", (int)getpid(),
             program_invocation_short_name);
    CHECK_HAS(table, words);
    CHECK_HAS(table, "simulated device 1");
    CHECK_HAS(table, "of  64.00 MiB");
    free(table);
    CHECK_FAILS(ctrt_show_utilization(&table, NULL, false), CTRT_ERR_NO_DEVICE, "no accelerator");
    CHECK_OK(ctrt_show_utilization(&table, "cpu", false));
    CHECK_HAS(table, "|  0 | nan | nan |");
    CHECK_HAS(table, "nan: cpu:0: its backend does not report");
    free(table);
}

/* Returns the indices of the picked devices as "0,2". */
static const char *picked(const ctrt_pick_options *options, size_t capacity)
{
    static char text[64];
    ctrt_device_spec list[8];
    size_t count = 0, used = 0;
    text[0] = '\0';
    if (ctrt_pick_devices(list, &count, capacity, options) != CTRT_OK)
        return "an error";
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? "," : "",
                                 strcmp(list[i].type, "sim") == 0 ? list[i].index : -9);
    return text;
}

#define PICKS(want, capacity, ...)                                                                      \
    do {                                                                                                \
        const ctrt_pick_options options_ = *PICK(.type = "sim", __VA_ARGS__);                              \
        const char *got_ = picked(&options_, capacity);                                                 \
        CHECK(strcmp(got_, want) == 0, "%s: picked %s, expected %s: %s", #__VA_ARGS__, got_, want,      \
              ctrt_error_message());                                                                    \
    } while (0)

TEST(test_picking, "free devices are picked in the requested order")
{
    IN_CHILD("CTRT_SIM=devices=4,memory=64m", "CTRT_MEMORY=direct") {
        CTRT_AUTO(tensor) a = full(1, 10 << 20, sim_open("sim:0"));     /* 40 of 64 MiB */
        CTRT_AUTO(tensor) b = full(1, 4 << 20, sim_open("sim:1"));      /* 16 */
        CTRT_AUTO(tensor) c = full(1, 1 << 20, sim_open("sim:2"));      /* 4 */
        ctrt_tensor *const tensors[] = { a, b, c };
        for (int i = 0; i < 3; i++) {
            ctrt_device *device = ctrt_tensor_device(tensors[i]);
            ctrt_usage usage = CTRT_USAGE;
            CHECK_OK(ctrt_device_synchronize(device));
            CHECK_OK(ctrt_device_get_usage(&usage, ctrt_device_name(device)));      /* the load is measured from here */
        }
        usleep(20000);
        PICKS("1,2,3", 8, .order = CTRT_PICK_FIRST);
        PICKS("1", 1, .order = CTRT_PICK_FIRST);
        PICKS("3,2,1", 8, .order = CTRT_PICK_LAST);
        PICKS("3,2,1", 8, .order = CTRT_PICK_MEMORY);
        PICKS("1,2,3", 8, .order = CTRT_PICK_LOAD);
        PICKS("3,2,1,0", 8, .order = CTRT_PICK_MEMORY, .max_memory = 0.7);
        PICKS("2,3", 8, .max_memory = 0.1);
        PICKS("2,3", 8, .min_free = 60 << 20);
        PICKS("3", 8, .min_free = (60 << 20) + 1);
        PICKS("1,3", 8, .exclude = (const int[]){ 2 }, .exclude_count = 1);
        PICKS("", 0, .order = CTRT_PICK_FIRST);
        bool other = false;
        for (int i = 0; i < 200 && !other; i++)
            other = strcmp(picked(PICK(.type = "sim", .order = CTRT_PICK_RANDOM), 8), "1,2,3") != 0;
        CHECK(other, "the random order is always the same");

        ctrt_device_spec spec;
        size_t count = 7;
        const ctrt_pick_options none = *PICK(.type = "sim", .max_memory = 0.1, .exclude = (const int[]){ 2, 3 },
                                         .exclude_count = 2);
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, &none), CTRT_ERR_NOT_FOUND,
                    "sim:0 is 0% busy, 62% of its memory used, 24.00 MiB free");
        CHECK_HAS(ctrt_error_message(), "sim:3 is 0% busy, 0% of its memory used, 64.00 MiB free, excluded");
        CHECK_EQ(count, 7);
        const double began = clock_seconds();
        const ctrt_pick_options patient = *PICK(.type = "sim", .min_free = 1 << 30, .attempts = 3, .interval = 0.05);
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, &patient), CTRT_ERR_NOT_FOUND, NULL);
        CHECK(clock_seconds() - began >= 0.1, "three attempts took %.3f s", clock_seconds() - began);
        CHECK_OK(ctrt_pick_devices(&spec, &count, 0, PICK(.type = "sim", .attempts = 2)));
        CHECK_EQ(count, 0);                             /* without waiting 900 seconds between the attempts */
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, PICK(.order = (ctrt_pick_order)9)),
                    CTRT_ERR_INVALID_ARGUMENT, "not a ctrt_pick_order");
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, PICK(.max_load = -1)),
                    CTRT_ERR_INVALID_ARGUMENT, "negative");
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, PICK(.exclude_count = 1)),
                    CTRT_ERR_INVALID_ARGUMENT, "exclude is NULL");
    }
    group("devices with unknown load are picked only if the options allow it");
    IN_CHILD(NULL) {
        ctrt_device_spec spec;
        size_t count = 0;
        const ctrt_pick_options strict = *PICK(.type = "cpu"), lax = *PICK(.type = "cpu", .unknown_is_free = true);
        CHECK_FAILS(ctrt_pick_devices(&spec, &count, 1, &strict), CTRT_ERR_NOT_FOUND, "cpu:0 is nan busy");
        CHECK_OK(ctrt_pick_devices(&spec, &count, 1, &lax));
        CHECK_EQ(count, 1);
        CHECK_STR(spec.type, "cpu");
        CHECK_EQ(spec.index, -1);
    }
}

CHILD_TEST(test_links, "links between devices follow their topology and visible indices; hidden devices have no usage",
           "CTRT_SIM=devices=4,peers=ring", "CTRT_VISIBLE_DEVICES=sim:0,sim:2,sim:3")
{
    static const struct { const char *from, *to; int direct; } cases[] = {
        { "sim:0", "sim:1", 0 }, { "sim:0", "sim:2", 1 }, { "sim:1", "sim:2", 1 }, { "sim:2", "sim:0", 1 },
        { "sim:0", "cpu", -1 },
    };
    ctrt_link link = CTRT_LINK;
    ctrt_usage usage = CTRT_USAGE;
    EACH(c, cases) {
        link = CTRT_WITH(ctrt_link, .direct = 9);
        CHECK_OK(ctrt_device_get_link(&link, c->from, c->to));
        CHECK_EQ(link.direct, c->direct);
        CHECK_EQ(link.links, 0);
        CHECK_STR(link.kind, "");
    }
    CHECK_FAILS(ctrt_device_get_link(&link, "sim:0", "sim:3"), CTRT_ERR_NO_DEVICE, "sim:3");
    CHECK_FAILS(ctrt_device_get_usage(&usage, "sim:3"), CTRT_ERR_NO_DEVICE, "sim:3");
}

TESTS_MAIN
