/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the function tables of backend-sim.so without the library. fake_host.h provides the cpu's kernels. */
#ifndef CTRT_TESTS_SIM_HOST_H
#define CTRT_TESTS_SIM_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/sim/control.h"
#include "calls.h"
#include "fake_host.h"
#include "folder.h"

static const ctrt_backend *sim;
static const sim_control *control;

FAKE const struct ctrt_backend *sim_lend(const char *name)
{
    return strcmp(name, "cpu") == 0 ? fake_backend : NULL;
}

FAKE bool sim_describe(char *text, size_t bytes, const void *address)
{
    (void)address;
    strncpy(text, "the result of neg in encoder.0", bytes);
    return true;
}

/* Opens and initialises backend-cpu.so and backend-sim.so, again if already done. A failure ends the program. */
FAKE void sim_reload(void)
{
    static ctrt_host host;
    fake_load(NULL);
    host = host_table;
    host.backend = sim_lend;
    host.describe = sim_describe;
    const ctrt_plugin *plugin = host_open("backend-sim");
    REQUIRE(plugin->init(&host) == CTRT_OK, "init: %s", host_error);
    for (size_t i = 0; i < plugin->component_count; i++) {
        if (plugin->components[i].kind == CTRT_COMPONENT_BACKEND)
            sim = plugin->components[i].table;
        if (strcmp(plugin->components[i].name, "sim-control") == 0)
            control = plugin->components[i].table;
    }
}

/* Requires that each call succeeds. */
#define MUST(...)            EACH_ARG(MUST_ONE, , , __VA_ARGS__)
#define MUST_ONE(a, b, call) fake_must((call), #call)

/* Requires that `call` returns `status` with a message that contains `words`. */
#define MUST_FAIL(call, status, words)                                                                        \
    do {                                                                                                      \
        host_error[0] = '\0';                                                                                 \
        REQUIRE_EQ(call, status);                                                                             \
        REQUIRE(strstr(host_error, (words)) != NULL, "%s: the message has no \"%s\": %s", #call, (words), host_error); \
    } while (0)

#define MUST_FAIL_OOM(call, words) MUST_FAIL(call, CTRT_ERR_OUT_OF_MEMORY, words)

/* Requires that the work that `call` enqueues on the device's own queue fails with a message that contains `words`. */
#define MUST_FAIL_LATER(device, call, words)                                                                  \
    do {                                                                                                      \
        MUST(call);                                                                                           \
        MUST_FAIL(sim->queue->synchronize(device, NULL), CTRT_ERR_BACKEND, words);                            \
        MUST(sim->queue->reset(device, NULL));                                                                \
    } while (0)

FAKE void *sim_open(const char *options, int index)
{
    void *device = NULL;
    setenv("CTRT_SIM", options, 1);
    MUST(sim->device->open(&device, index));
    return device;
}

FAKE sim_counters sim_counted(int device)
{
    sim_counters c = { .size = sizeof c };
    MUST(control->counters(device, &c));
    return c;
}

FAKE void *sim_alloc(void *device, size_t bytes)
{
    void *address = NULL;
    MUST(sim->memory->alloc(device, &address, bytes));
    return address;
}

FAKE void *sim_queue(void *device)
{
    void *queue = NULL;
    MUST(sim->queue->create(device, &queue, 0));
    return queue;
}

static struct {
    void *device, *event;
} sim_events[8];                        /* events of open devices */

/* Returns an event that sim_close destroys. */
FAKE void *sim_event(void *device)
{
    int i = 0;
    while (sim_events[i].device != NULL)
        REQUIRE_TRUE(++i < 8);
    MUST(sim->queue->event_create(device, &sim_events[i].event, true));
    sim_events[i].device = device;
    return sim_events[i].event;
}

/* Closes a device after its events, which it does not free. */
FAKE void sim_close(void *device)
{
    for (int i = 0; i < 8; i++)
        if (sim_events[i].device == device) {
            sim->queue->event_destroy(device, sim_events[i].event);
            sim_events[i].device = NULL;
        }
    sim->device->close(device);
}

/* Waits for the device's own queue (NULL) only. */
FAKE void sim_settle(void *device)
{
    void *event = NULL;
    MUST(sim->queue->event_create(device, &event, false));
    MUST(sim->queue->event_record(device, event, NULL));
    MUST(sim->queue->event_synchronize(device, event));
    sim->queue->event_destroy(device, event);
}

FAKE void *sim_upload(void *device, const void *from, size_t bytes)
{
    void *address = sim_alloc(device, bytes);
    MUST(sim->memory->copy(device, NULL, address, from, bytes, CTRT_COPY_TO_DEVICE));
    sim_settle(device);
    return address;
}

FAKE void sim_download(void *device, void *to, const void *from, size_t bytes)
{
    MUST(sim->memory->copy(device, NULL, to, from, bytes, CTRT_COPY_TO_HOST));
    sim_settle(device);
}

FAKE const ctrt_kernel *sim_kernel(const char *op, ctrt_dtype key)
{
    const ctrt_kernel *kernel = fake_kernel(sim->kernels, op, key, NULL);
    REQUIRE(kernel != NULL, "no kernel for %s", op);
    return kernel;
}

FAKE ctrt_status sim_run_op(void *device, void *queue, uint64_t sequence, const char *op, ctrt_dtype key,
                            const ctrt_view *const *outputs, int n_outputs, const ctrt_view *const *inputs,
                            int n_inputs, const void *attributes)
{
    ctrt_call call = { .size = sizeof call, .device = device, .queue = queue, .inputs = inputs, .outputs = outputs,
                       .n_inputs = (uint32_t)n_inputs, .n_outputs = (uint32_t)n_outputs, .attributes = attributes,
                       .kernel = sim_kernel(op, key), .sequence = sequence };
    return call.kernel->run(&call);
}

/* Returns a view of `count` contiguous f32 at `data`. */
FAKE ctrt_view sim_vector(void *data, int64_t count)
{
    ctrt_view view = { .data = data, .numel = count, .dtype = CTRT_F32, .ndim = 1, .flags = CTRT_VIEW_CONTIGUOUS,
                       .shape = { count }, .strides = { 1 } };
    return view;
}

/* Returns a vector of one f32 on the device. */
FAKE ctrt_view sim_number(void *device, float number)
{
    return sim_vector(sim_upload(device, &number, sizeof number), 1);
}

/* Returns the first element of a vector. */
FAKE float sim_value(void *device, const ctrt_view *vector)
{
    float number = -1;
    sim_download(device, &number, vector->data, sizeof number);
    return number;
}

/* Enqueues vector = vector `op` number on `queue`. */
FAKE ctrt_status sim_apply(void *device, void *queue, uint64_t sequence, const char *op, const ctrt_view *vector,
                           float number)
{
    ctrt_view scalar = *vector;
    scalar.data = &number;
    scalar.strides[0] = 0;
    scalar.flags = CTRT_VIEW_HOST_SCALAR;
    ctrt_status status = sim_run_op(device, queue, sequence, op, CTRT_F32, FAKE_VIEWS(vector), 1,
                                    FAKE_VIEWS(vector, &scalar), 2, NULL);
    number = -1000;                     /* run must have copied the host scalar; if not, the result is wrong */
    return status;
}

FAKE ctrt_status sim_add(void *device, void *queue, uint64_t sequence, const ctrt_view *vector, float number)
{
    return sim_apply(device, queue, sequence, "add", vector, number);
}

FAKE double sim_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
