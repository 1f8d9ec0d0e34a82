/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-streams.c: wrong uses of streams, events, host functions and captures are refused, and
 * memory is accessed at the same time as in CUDA. */
#include "fixture.h"

static address number;                      /* one uint64_t on device 0 */

static result put_add(void *on)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)number, 1 };
    return launch("add_number", 1, 1, 0, on, &args);
}

static result put_spin(void *on, int64_t n)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)number, n };
    return launch("spin", 1, 1, 0, on, &args);
}

static void run_events(void)
{
    void *other, *first, *second, *plain;
    float ms = -1;
    OK(cuStreamCreateWithPriority(&other, STREAM_NON_BLOCKING, -1));
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    OK(cuEventCreate(&plain, EVENT_DISABLE_TIMING));

    group("queries of pending work, and elapsed times");
    OK(cuEventQuery(first));                                        /* never recorded */
    OK(cuEventRecord(first, stream));
    OK(put_spin(stream, 30000000));
    OK(cuEventRecord(second, stream));
    CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuEventQuery(second), CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuEventElapsedTime(&ms, first, second), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(second));
    OK(cuEventQuery(second));
    OK(cuEventElapsedTime(&ms, first, second));
    CHECK(ms > 1 && ms < 60000, "30 million iterations took %g ms", (double)ms);
    OK(cuEventRecord(plain, stream));
    CHECK_EQ(cuEventElapsedTime(&ms, first, plain), CUDA_ERROR_INVALID_HANDLE);

    group("invalid handles");
    OK(cuEventDestroy_v2(plain));
    CHECK_EQ(cuEventDestroy_v2(plain), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuEventRecord(plain, stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_HANDLE);  /* softcuda has no default stream */
    CHECK_EQ(cuStreamCreateWithPriority(&plain, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(put_spin(other, 3000000));
    OK(cuStreamDestroy_v2(other));
    CHECK_EQ(cuStreamSynchronize(other), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());                                         /* waits for the work of the destroyed stream */
    CHECK_EQ(read_number(number), 2);
    OK(cuEventDestroy_v2(first));
    OK(cuEventDestroy_v2(second));
}

static void call_driver(void *argument)
{
    address at;
    *(result *)argument = cuMemAlloc_v2(&at, 8);
}

static void run_host(void)
{
    uint64_t *pinned, pageable = 7;
    address at = 0;
    result refused = -1;
    group("a host function must not call the driver");
    OK(cuLaunchHostFunc(stream, call_driver, &refused));
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(refused, CUDA_ERROR_NOT_PERMITTED);

    group("pinned memory is accessed in stream order, pageable memory at the call");
    OK(cuMemAlloc_v2(&at, 16));
    OK(cuMemHostAlloc((void **)&pinned, 64, 0));
    pinned[0] = 1;
    OK(put_spin(stream, 3000000));
    OK(cuMemcpyHtoDAsync_v2(at, pinned, 8, stream));
    OK(cuMemcpyHtoDAsync_v2(at + 8, &pageable, 8, stream));
    pinned[0] = 2;
    pageable = 8;
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(read_number(at), 2);
    CHECK_EQ(read_number(at + 8), 7);
    OK(cuMemcpyDtoHAsync_v2(&pageable, at, 8, stream));             /* complete when the call returns */
    CHECK_EQ(pageable, 2);
    OK(cuMemFreeHost(pinned));
    CHECK_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(at));
}

static void run_capture(void)
{
    void *other, *fork, *join, *graph = NULL, *exec = NULL;
    address refused;
    int state = -1;
    OK(cuStreamCreateWithPriority(&other, STREAM_NON_BLOCKING, 0));
    OK(cuEventCreate(&fork, EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, EVENT_DISABLE_TIMING));

    group("a capture of two streams records work and does not run it");
    const uint64_t before = read_number(number);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(put_add(other));
    OK(cuStreamIsCapturing(other, &state));
    CHECK_EQ(state, CAPTURE_ACTIVE);
    OK(cuEventRecord(join, other));
    OK(cuStreamWaitEvent(stream, join, 0));
    CHECK_EQ(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(other, &state));
    CHECK_EQ(state, CAPTURE_NONE);
    CHECK_EQ(read_number(number), before);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphExecDestroy(exec));                                   /* the launched graph still runs */
    CHECK_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(read_number(number), before * 3 + 1);

    group("calls that invalidate a capture");
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
    CHECK_EQ(cuMemAlloc_v2(&refused, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(put_add(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    OK(cuMemAlloc_v2(&refused, 16));
    OK(cuMemFree_v2(refused));
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));           /* with work of another stream that is not joined */
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(put_add(other));
    CHECK_EQ(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(graph == NULL, "the failed capture returned a graph");
    OK(cuEventRecord(fork, other));                                 /* uncaptured work */
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    CHECK_EQ(cuStreamWaitEvent(stream, fork, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(put_add(stream));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(other));
    OK(cuEventDestroy_v2(fork));
    OK(cuEventDestroy_v2(join));
}

TEST_MAIN
{
    static const char *const kinds[] = { "stream", "event", "graph", "graph_exec" };
    start();
    OK(cuMemAlloc_v2(&number, 8));
    OK(cuMemsetD8Async(number, 0, 8, stream));
    run_events();
    run_host();
    run_capture();
    group("all memory and handles are freed");
    OK(cuMemFree_v2(number));
    OK(cuStreamDestroy_v2(stream));
    CHECK_EQ(softcuda_control.live_bytes(0), 0);
    CHECK_EQ(softcuda_control.live_blocks(0), 0);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        CHECK(softcuda_control.live_handles(kinds[i]) == 0, "%llu handles of the kind %s",
              (unsigned long long)softcuda_control.live_handles(kinds[i]), kinds[i]);
    return done();
}
