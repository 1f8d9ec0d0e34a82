/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt_shutdown closes devices, frees their resources, and devices can be opened again. */
#include <sys/resource.h>

#include "calls.h"
#include "memory_checks.h"
#include "sims.h"
#include "dryrun_models.h"

#define THREADS folder_files("/proc/self/task")
#define FILES   folder_files("/proc/self/fd")

/* Trains on both devices, with streams, events, pinned memory and copies. Returns the loss of the last step. */
static double work(ctrt_device *const devices[2])
{
    double losses[3] = { 0 };
    for (int d = 0; d < 2; d++) {
        CTRT_AUTO(event) event = new_event(devices[d], true);
        CTRT_AUTO(tensor) host = NULL, there = NULL;
        bool asynchronous;
        CHECK_OK(training_run(losses, 3, &models[4], devices[d], true));
        CHECK_OK(ctrt_event_record(event, NULL));
        CHECK_OK(ctrt_empty_pinned(&host, CTRT_SHAPE(1000), CTRT_F32, devices[d]));
        CHECK_OK(ctrt_to_non_blocking(&there, host, devices[d], &asynchronous));
        CHECK_OK(ctrt_to_device(&there, there, devices[1 - d]));
    }
    return losses[2];
}

static bool is_open(int device)
{
    sim_counters counters = { .size = sizeof counters };
    return sim->counters(device, &counters) == CTRT_OK;
}

#define TWO   "CTRT_SIM=devices=2,memory=64m"
#define ALL   "CTRT_MEMORY_HISTORY=all"
#define AGAIN "shutdown frees memory, threads and files, and the devices work again"

SIM_TEST(rounds, AGAIN, "CTRT_MEMORY=caching", TWO, ALL)
{
    static const char *const names[] = { "sim:0", "sim:1" };
    ctrt_device *devices[2] = { device, sim_open(names[1]) };
    cpu_device();
    const double first = work(devices);
    CHECK_OK(ctrt_shutdown());
    const size_t threads = THREADS, files = FILES;
    for (int round = 0; round < 5; round++) {
        for (int d = 0; d < 2; d++) {
            ctrt_device *before = devices[d];
            CHECK(!is_open(d), "round %d: %s is still open", round, names[d]);
            CHECK_OK(ctrt_device_get(&devices[d], names[d]));
            CHECK(devices[d] == before, "a reopened device has another handle");
            CHECK_EQ(ctrt_memory_allocated(devices[d]), 0);
            CHECK_EQ(ctrt_memory_reserved(devices[d]), 0);
        }
        CHECK_EQ(work(devices), first);
        CHECK(THREADS > threads, "no worker thread runs");
        CHECK_OK(ctrt_shutdown());
        CHECK_EQ(THREADS, threads);
        CHECK_EQ(FILES, files);
    }
    CHECK_OK(ctrt_shutdown());              /* no device is open */
}
SIM_AGAIN(rounds, AGAIN, "CTRT_MEMORY=caching:expandable=true", TWO, ALL)
SIM_AGAIN(rounds, AGAIN, "CTRT_MEMORY=spill+caching", TWO, ALL)
SIM_AGAIN(rounds, AGAIN, "CTRT_MEMORY=arena:chunk=4m", TWO, ALL)
SIM_AGAIN(rounds, AGAIN, "CTRT_MEMORY=direct", TWO, ALL)

SIM_TEST(closed, "calls on a closed device return an error that names ctrt_shutdown", TWO)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, empty = full(0, 0, device);       /* `empty` has no memory */
    CTRT_AUTO(stream) stream = NULL;
    CTRT_AUTO(event) event = NULL;
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_stats stats = CTRT_MEMORY_STATS;
    char *text = NULL;
    CHECK_OK(ctrt_memory_set_limit(device, 10 << 20));
    CHECK_OK(ctrt_shutdown());
    CHECK_FAILS(ctrt_zeros(&x, CTRT_SHAPE(10), CTRT_F32, device), CTRT_ERR_STATE, "sim:0 was closed by ctrt_shutdown");
    CHECK_FAILS(ctrt_rand(&x, CTRT_SHAPE(10), CTRT_F32, device), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_stream_new(&stream, device, 0), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_event_new(&event, device, false), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_device_memory_info(device, NULL, NULL), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_device_set_current(device), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_memory_release_all(device), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_dry_run_begin(&dryrun, device), CTRT_ERR_STATE, "closed");
    CHECK_FAILS(ctrt_empty_pinned(&x, CTRT_SHAPE(10), CTRT_F32, device), CTRT_ERR_STATE, "closed");
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_STATE, "closed");
    ctrt_stream_release(&stream);
    (void)ctrt_add(&y, empty, empty);
    (void)ctrt_memory_empty_cache(device);
    CHECK_OK(ctrt_memory_get_stats(&stats, device));
    CHECK_OK(ctrt_memory_summary(&text, device, false));
    free(text);
    (void)snapshot_of(device);
    CHECK(strstr(metrics_as(CTRT_METRICS_JSON), "sim:0") == NULL, "the metrics contain a closed device");
    ctrt_tensor_release(&y);
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    CHECK_EQ(ctrt_memory_limit(device), 10 << 20);
    CHECK_OK(ctrt_zeros(&x, CTRT_SHAPE(10), CTRT_F32, device));
    CHECK_EQ(total(x), 0);
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_shutdown());
}

SIM_TEST(alive, "live objects keep their device open and are named in the error; other devices close", TWO)
{
    ctrt_device *other = sim_open("sim:1");
    CTRT_AUTO(tensor) x = full(3, 1000, device), left = NULL;
    CTRT_AUTO(dry_run) dryrun = NULL;
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "tensors still hold");
    CHECK(!is_open(1), "sim:1 is still open");
    CHECK_EQ(total(x), 3000);
    ctrt_tensor_release(&x);
    CTRT_AUTO(stream) stream = new_stream(device);
    CTRT_AUTO(event) event = new_event(device, false);
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "1 of its streams and 1 of its events");
    CHECK_OK(ctrt_event_record(event, stream));
    CHECK_OK(ctrt_event_synchronize(event));
    ctrt_event_release(&event);
    CHECK_OK(ctrt_stream_set_current(stream));      /* the variable counts as a use, the current stream does not */
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "1 of its streams");
    ctrt_stream_release(&stream);
    CHECK_OK(ctrt_empty_pinned(&x, CTRT_SHAPE(10), CTRT_F32, device));
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "1 tensors still hold memory pinned");
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "a dry run is running");
    CHECK_OK(ctrt_zeros(&left, CTRT_SHAPE(1000), CTRT_F32, device));
    CHECK_OK(ctrt_dry_run_end(NULL, &dryrun));
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_STATE, "tensors made in a dry run");
    ctrt_tensor_release(&left);
    CHECK_OK(ctrt_shutdown());
    CHECK(!is_open(0), "sim:0 is still open");
    CHECK_OK(ctrt_device_get(&other, "sim:1"));
    x = full(2, 10, other);
    CHECK_EQ(total(x), 20);
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_shutdown());
}

SIM_TEST(failed, "shutdown of a device whose work failed reports the error, and the reopened device works",
         "CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error")
{
    static const char *const faults[] = { "op:1", "lost:1" };
    EACH(fault, faults) {
        CTRT_AUTO(tensor) x = full(3, 1000, device), y = NULL;
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, *fault));
        (void)ctrt_exp(&y, x);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        CHECK_TRUE(ctrt_shutdown() != CTRT_OK);
        CHECK_HAS(ctrt_error_message(), *fault);
        CHECK_OK(ctrt_device_get(&device, "sim:0"));
        x = full(3, 1000, device);
        CHECK_EQ(total(x), 3000);
    }
    CHECK_OK(ctrt_shutdown());
}

SIM_TEST(reopening_fails, "a device that fails to reopen stays closed and can be opened later, also in a forked child",
         "CTRT_SIM=devices=1,memory=64m")
{
    CHECK_OK(ctrt_shutdown());
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 3, files.rlim_max });
    CHECK_FAILS(ctrt_device_get(&device, "sim:0"), CTRT_ERR_OUT_OF_MEMORY, "opening sim:0 again");
    setrlimit(RLIMIT_NOFILE, &files);
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_STATE, "closed");
    IN_FORK {
        CHECK_OK(ctrt_device_get(&device, "sim:0"));
        CTRT_AUTO(tensor) x = full(1, 10, device);
        CHECK_EQ(total(x), 10);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_shutdown());
    }
    CHECK_OK(ctrt_device_get(&device, "sim:0"));
    CHECK_OK(ctrt_shutdown());
}

TESTS_MAIN
