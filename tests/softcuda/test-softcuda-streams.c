/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-streams.c: wrong uses of streams, events, host functions and captures are refused, and
 * memory is accessed at the same time as in CUDA. */
#include "fixture.h"

static address number;                      /* one uint64_t on device 0 */

static result put_add(cu_stream on)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)number, 1 };
    return launch("add_number", 1, 1, 0, on, &args);
}

static result put_spin(cu_stream on, int64_t n)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)number, n };
    return launch("spin", 1, 1, 0, on, &args);
}

static void run_events(void)
{
    cu_stream other, refused;
    cu_event first, second, plain;
    float ms = -1;
    OK(cuda.stream_create(&other, STREAM_NON_BLOCKING, -1));
    OK(cuda.event_create(&first, 0));
    OK(cuda.event_create(&second, 0));
    OK(cuda.event_create(&plain, EVENT_DISABLE_TIMING));

    group("queries of pending work, and elapsed times");
    OK(cuda.event_query(first));                                    /* never recorded */
    OK(cuda.event_record(first, stream));
    OK(put_spin(stream, 30000000));
    OK(cuda.event_record(second, stream));
    CHECK_EQ(cuda.stream_query(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuda.event_query(second), CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuda.event_elapsed(&ms, first, second), CUDA_ERROR_NOT_READY);
    OK(cuda.event_synchronize(second));
    OK(cuda.event_query(second));
    OK(cuda.event_elapsed(&ms, first, second));
    CHECK(ms > 1 && ms < 60000, "30 million iterations took %g ms", (double)ms);
    OK(cuda.event_record(plain, stream));
    CHECK_EQ(cuda.event_elapsed(&ms, first, plain), CUDA_ERROR_INVALID_HANDLE);

    group("invalid handles");
    OK(cuda.event_destroy(plain));
    CHECK_EQ(cuda.event_destroy(plain), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuda.event_record(plain, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuda.stream_synchronize(NULL), CUDA_ERROR_INVALID_HANDLE); /* softcuda has no default stream */
    CHECK_EQ(cuda.stream_create(&refused, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(put_spin(other, 3000000));
    OK(cuda.stream_destroy(other));
    CHECK_EQ(cuda.stream_synchronize(other), CUDA_ERROR_INVALID_HANDLE);
    OK(cuda.context_synchronize());                                 /* waits for the work of the destroyed stream */
    CHECK_EQ(read_number(number), 2);
    OK(cuda.event_destroy(first));
    OK(cuda.event_destroy(second));
}

static void call_driver(void *argument)
{
    address at;
    *(result *)argument = cuda.memory_alloc(&at, 8);
}

static void run_host(void)
{
    uint64_t *pinned, pageable = 7;
    address at = 0;
    result refused = -1;
    group("a host function must not call the driver");
    OK(cuda.host_call(stream, call_driver, &refused));
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(refused, CUDA_ERROR_NOT_PERMITTED);

    group("pinned memory is accessed in stream order, pageable memory at the call");
    OK(cuda.memory_alloc(&at, 16));
    OK(cuda.host_alloc((void **)&pinned, 64, 0));
    pinned[0] = 1;
    OK(put_spin(stream, 3000000));
    OK(cuda.copy_to_device(at, pinned, 8, stream));
    OK(cuda.copy_to_device(at + 8, &pageable, 8, stream));
    pinned[0] = 2;
    pageable = 8;
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(read_number(at), 2);
    CHECK_EQ(read_number(at + 8), 7);
    OK(cuda.copy_to_host(&pageable, at, 8, stream));                /* complete when the call returns */
    CHECK_EQ(pageable, 2);
    OK(cuda.host_free(pinned));
    CHECK_EQ(cuda.host_free(pinned), CUDA_ERROR_INVALID_VALUE);
    OK(cuda.memory_free(at));
}

static void run_capture(void)
{
    cu_stream other;
    cu_event fork, join;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    address refused;
    int state = -1;
    OK(cuda.stream_create(&other, STREAM_NON_BLOCKING, 0));
    OK(cuda.event_create(&fork, EVENT_DISABLE_TIMING));
    OK(cuda.event_create(&join, EVENT_DISABLE_TIMING));

    group("a capture of two streams records work and does not run it");
    const uint64_t before = read_number(number);
    OK(cuda.capture_begin(stream, CAPTURE_THREAD_LOCAL));
    OK(cuda.event_record(fork, stream));
    OK(cuda.stream_wait(other, fork, 0));
    OK(put_add(other));
    OK(cuda.capture_state(other, &state));
    CHECK_EQ(state, CAPTURE_ACTIVE);
    OK(cuda.event_record(join, other));
    OK(cuda.stream_wait(stream, join, 0));
    CHECK_EQ(cuda.event_query(join), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuda.capture_end(stream, &graph));
    OK(cuda.capture_state(other, &state));
    CHECK_EQ(state, CAPTURE_NONE);
    CHECK_EQ(read_number(number), before);
    OK(cuda.graph_instantiate(&exec, graph, 0));
    OK(cuda.graph_destroy(graph));
    OK(cuda.graph_launch(exec, stream));
    OK(cuda.graph_exec_destroy(exec));                              /* the launched graph still runs */
    CHECK_EQ(cuda.graph_launch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuda.stream_synchronize(stream));
    CHECK_EQ(read_number(number), before * 3 + 1);

    group("calls that invalidate a capture");
    OK(cuda.capture_begin(stream, CAPTURE_THREAD_LOCAL));
    CHECK_EQ(cuda.memory_alloc(&refused, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(put_add(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuda.capture_end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuda.capture_begin(stream, CAPTURE_RELAXED));
    OK(cuda.memory_alloc(&refused, 16));
    OK(cuda.memory_free(refused));
    CHECK_EQ(cuda.stream_synchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuda.capture_end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuda.capture_begin(stream, CAPTURE_RELAXED));                /* with work of another stream that is not joined */
    OK(cuda.event_record(fork, stream));
    OK(cuda.stream_wait(other, fork, 0));
    OK(put_add(other));
    CHECK_EQ(cuda.capture_end(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK_EQ(cuda.capture_end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(graph == NULL, "the failed capture returned a graph");
    OK(cuda.event_record(fork, other));                             /* uncaptured work */
    OK(cuda.capture_begin(stream, CAPTURE_RELAXED));
    CHECK_EQ(cuda.stream_wait(stream, fork, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CHECK_EQ(cuda.capture_end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuda.capture_end(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(put_add(stream));
    OK(cuda.stream_synchronize(stream));
    OK(cuda.stream_destroy(other));
    OK(cuda.event_destroy(fork));
    OK(cuda.event_destroy(join));
}

TEST_MAIN
{
    static const char *const kinds[] = { "stream", "event", "graph", "graph_exec" };
    start();
    OK(cuda.memory_alloc(&number, 8));
    OK(cuda.fill_bytes(number, 0, 8, stream));
    run_events();
    run_host();
    run_capture();
    group("all memory and handles are freed");
    OK(cuda.memory_free(number));
    OK(cuda.stream_destroy(stream));
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
    CHECK_EQ(softcuda_control.live_blocks(0), 0);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        CHECK(softcuda_control.live_handles(kinds[i]) == 0, "%llu handles of the kind %s",
              (unsigned long long)softcuda_control.live_handles(kinds[i]), kinds[i]);
    return done();
}
