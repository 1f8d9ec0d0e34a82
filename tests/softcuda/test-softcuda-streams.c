/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-streams.c: streams, events, callbacks, capture and replay. */
#include "bed.h"

static address number;                      /* one uint64_t on device 0 */

static result put_add(void *on, int64_t n)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)number, n, 0 };
    return launch("add_number", 1, 1, 0, on, &args);
}

static result put_spin(void *on, address at, int64_t n)
{
    const struct number_args args = { (uint64_t *)(uintptr_t)at, n, 0 };
    return launch("spin", 1, 1, 0, on, &args);
}

static uint64_t read_number(address at)
{
    uint64_t value = 0;
    CHECK(softcuda_control.peek(at, &value, 8), "no memory is allocated at %llx", at);
    return value;
}

static void set_number(uint64_t value)
{
    OK(cuMemcpyHtoD_v2(number, &value, 8));
}

static void run_events(void)
{
    void *other, *first, *second, *plain;
    address slow = 0;
    OK(cuStreamCreateWithPriority(&other, STREAM_NON_BLOCKING, -1));
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    OK(cuEventCreate(&plain, EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&slow, 8));
    OK(cuMemsetD8Async(slow, 0, 8, stream));

    group("streams wait for events of other streams");
    GIVES(cuEventQuery(first), 0);                                  /* never recorded */
    for (int round = 0; round < 20; round++) {
        set_number(1);
        OK(put_spin(stream, slow, 100000));
        OK(put_add(stream, 1));                                     /* 1 * 3 + 1 = 4 */
        OK(cuEventRecord(first, stream));
        OK(cuStreamWaitEvent(other, first, 0));
        OK(put_add(other, 2));                                      /* 4 * 3 + 2 = 14 */
        OK(cuEventRecord(second, other));
        OK(cuStreamWaitEvent(stream, second, 0));
        OK(put_add(stream, 3));                                     /* 14 * 3 + 3 = 45 */
        OK(cuStreamSynchronize(stream));
        CHECK(read_number(number) == 45, "round %d: %llu, expected 45", round, (unsigned long long)read_number(number));
    }

    group("queries of pending work, and elapsed times");
    OK(cuEventRecord(first, stream));
    OK(put_spin(stream, slow, 30000000));
    OK(cuEventRecord(second, stream));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    GIVES(cuEventQuery(second), CUDA_ERROR_NOT_READY);
    float ms = -1;
    GIVES(cuEventElapsedTime_v2(&ms, first, second), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(second));
    GIVES(cuEventQuery(second), 0);
    OK(cuEventElapsedTime_v2(&ms, first, second));
    CHECK(ms > 1 && ms < 60000, "30 million iterations took %g ms", (double)ms);
    OK(cuEventRecord(plain, stream));
    GIVES(cuEventElapsedTime_v2(&ms, first, plain), CUDA_ERROR_INVALID_HANDLE);

    group("invalid handles");
    OK(cuEventDestroy_v2(plain));
    GIVES(cuEventDestroy_v2(plain), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuEventRecord(plain, stream), CUDA_ERROR_INVALID_HANDLE);
    OK(put_spin(other, slow, 3000000));                             /* a destroyed stream still completes its work, */
    OK(cuStreamDestroy_v2(other));
    GIVES(cuStreamSynchronize(other), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());                                         /* for which the context waits */
    OK(cuEventDestroy_v2(first));
    OK(cuEventDestroy_v2(second));
    OK(cuMemFree_v2(slow));
}

static void note(void *argument)
{
    ++*(int *)argument;
}

static void call_driver(void *argument)
{
    address at;
    *(result *)argument = cuMemAlloc_v2(&at, 8);
}

static void note_status(void *on, result status, void *argument)
{
    (void)on;
    *(int *)argument = 100 + status;
}

static void run_callbacks(void)
{
    int notes = 0, status = 0;
    group("host functions in stream order");
    OK(cuLaunchHostFunc(stream, note, &notes));
    OK(cuLaunchHostFunc(stream, note, &notes));
    OK(cuStreamAddCallback(stream, note_status, &status, 0));
    OK(cuStreamSynchronize(stream));
    CHECK(notes == 2 && status == 100, "%d notes, status %d", notes, status);

    result refused = -1;
    OK(cuLaunchHostFunc(stream, call_driver, &refused));
    OK(cuStreamSynchronize(stream));
    CHECK(refused == CUDA_ERROR_NOT_PERMITTED, "a driver call from a host function returned %d", refused);

    group("pinned memory is accessed in stream order, pageable memory at the call");
    uint64_t *pinned, pageable = 7;
    address at = 0;
    OK(cuMemAlloc_v2(&at, 16));
    OK(cuMemHostAlloc((void **)&pinned, 64, HOST_ALLOC_PORTABLE));
    int type = 0;
    OK(cuPointerGetAttribute(&type, POINTER_MEMORY_TYPE, (uintptr_t)pinned + 8));
    CHECK(type == MEMORY_HOST, "pinned memory is of type %d", type);
    OK(cuPointerGetAttribute(&type, POINTER_MEMORY_TYPE, at));
    CHECK(type == MEMORY_DEVICE, "device memory is of type %d", type);
    GIVES(cuPointerGetAttribute(&type, POINTER_MEMORY_TYPE, (uintptr_t)&pageable), CUDA_ERROR_INVALID_VALUE);
    pinned[0] = 1;
    OK(put_spin(stream, number, 3000000));
    OK(cuMemcpyHtoDAsync_v2(at, pinned, 8, stream));
    OK(cuMemcpyHtoDAsync_v2(at + 8, &pageable, 8, stream));
    pinned[0] = 2;
    pageable = 8;
    OK(cuStreamSynchronize(stream));
    CHECK(read_number(at) == 2, "pinned memory: %llu was copied", (unsigned long long)read_number(at));
    CHECK(read_number(at + 8) == 7, "pageable memory: %llu was copied", (unsigned long long)read_number(at + 8));
    OK(cuMemcpyDtoHAsync_v2(&pageable, at, 8, stream));             /* complete when the call returns */
    CHECK(pageable == 2, "%llu was copied back", (unsigned long long)pageable);
    OK(cuMemFreeHost(pinned));
    GIVES(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    CHECK(softcuda_control.pinned_bytes() == 0, "%llu bytes are pinned",
          (unsigned long long)softcuda_control.pinned_bytes());
    OK(cuMemFree_v2(at));

    group("two-dimensional copies, and fills");
    unsigned char small[6 * 8], large[6 * 8];
    address grid = 0;
    for (int i = 0; i < 48; i++)
        small[i] = (unsigned char)i;
    memset(large, 0xee, sizeof large);
    OK(cuMemAlloc_v2(&grid, 48));
    OK(cuMemcpyHtoD_v2(grid, small, 48));
    const copy_2d copy = { .from_x = 2, .from_y = 1, .from_type = MEMORY_DEVICE, .from_device = grid, .from_pitch = 8,
                           .to_type = MEMORY_HOST, .to_host = large, .to_pitch = 4, .width = 3, .height = 4 };
    OK(cuMemcpy2DAsync_v2(&copy, stream));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++)
            CHECK(large[y * 4 + x] == (x < 3 ? (y + 1) * 8 + x + 2 : 0xee), "byte %d of row %d is %d", x, y,
                  large[y * 4 + x]);
    OK(cuMemsetD32Async(grid, 0x01020304, 3, stream));
    OK(cuMemcpyDtoHAsync_v2(small, grid, 48, stream));
    CHECK(small[8] == 4 && small[11] == 1 && small[12] == 12, "filled to %d %d %d", small[8], small[11], small[12]);
    GIVES(cuMemsetD32Async(grid + 1, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD8Async(grid, 0, 49, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(grid));
}

static void run_capture(void)
{
    void *other, *fork, *join, *graph = NULL, *exec = NULL;
    int state = -1;
    size_t nodes = 0;
    OK(cuStreamCreateWithPriority(&other, STREAM_NON_BLOCKING, 0));
    OK(cuEventCreate(&fork, EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, EVENT_DISABLE_TIMING));

    group("a capture records work, a replay runs it");
    set_number(1);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
    OK(put_add(stream, 1));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(put_add(other, 2));
    OK(cuStreamIsCapturing(other, &state));
    CHECK(state == CAPTURE_ACTIVE, "the other stream's state is %d", state);
    OK(cuEventRecord(join, other));
    OK(cuStreamWaitEvent(stream, join, 0));
    OK(put_add(stream, 3));
    GIVES(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(other, &state));
    CHECK(state == CAPTURE_NONE, "the other stream's state after the capture is %d", state);
    CHECK(read_number(number) == 1, "the captured work ran: %llu", (unsigned long long)read_number(number));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 3, "%zu nodes", nodes);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    uint64_t wanted = 1;
    for (int i = 0; i < 5; i++) {
        OK(cuGraphLaunch(exec, stream));
        wanted = ((wanted * 3 + 1) * 3 + 2) * 3 + 3;
    }
    OK(cuStreamSynchronize(stream));
    CHECK(read_number(number) == wanted, "after five replays %llu, expected %llu",
          (unsigned long long)read_number(number), (unsigned long long)wanted);
    OK(cuGraphExecDestroy(exec));
    GIVES(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_HANDLE);

    group("calls that invalidate a capture");
    address refused;
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
    GIVES(cuMemAlloc_v2(&refused, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GIVES(put_add(stream, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    OK(cuMemAlloc_v2(&refused, 16));
    OK(cuMemFree_v2(refused));
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));           /* with work of another stream that is not joined */
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(put_add(other, 2));
    GIVES(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(graph == NULL, "the failed capture returned a graph");
    OK(cuEventRecord(fork, other));                                 /* uncaptured work */
    OK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    GIVES(cuStreamWaitEvent(stream, fork, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(put_add(stream, 1));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(other));
    OK(cuEventDestroy_v2(fork));
    OK(cuEventDestroy_v2(join));
}

static void *work_on_own_stream(void *argument)
{
    void *own;
    const address at = *(address *)argument;
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuStreamCreateWithPriority(&own, STREAM_NON_BLOCKING, 0));
    for (int i = 0; i < 200; i++) {
        const struct number_args args = { (uint64_t *)(uintptr_t)at, 1, 0 };
        OK(launch("spin", 1, 1, 0, own, &args));
    }
    OK(cuStreamSynchronize(own));
    OK(cuStreamDestroy_v2(own));
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[4];
    address at[4];
    group("threads that each use their own stream");
    for (int i = 0; i < 4; i++) {
        OK(cuMemAlloc_v2(&at[i], 8));
        OK(cuMemcpyHtoD_v2(at[i], &(uint64_t){ 0 }, 8));
        pthread_create(&threads[i], NULL, work_on_own_stream, &at[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(read_number(at[i]) == 200, "thread %d: %llu launches, expected 200", i,
              (unsigned long long)read_number(at[i]));
        OK(cuMemFree_v2(at[i]));
    }
}

TEST_MAIN
{
    group("initialization");
    open_bed();
    OK(cuMemAlloc_v2(&number, 8));
    run_events();
    run_callbacks();
    run_capture();
    run_threads();
    group("all memory and handles are freed");
    OK(cuMemFree_v2(number));
    OK(cuStreamDestroy_v2(stream));
    CHECK(softcuda_control.live_bytes(0) == 0 && softcuda_control.live_blocks(0) == 0, "%llu bytes",
          (unsigned long long)softcuda_control.live_bytes(0));
    CHECK(softcuda_control.live_handles("stream") == 0 && softcuda_control.live_handles("event") == 0
          && softcuda_control.live_handles("graph") == 0,
          "%llu streams, %llu events", (unsigned long long)softcuda_control.live_handles("stream"),
          (unsigned long long)softcuda_control.live_handles("event"));
    return done();
}
