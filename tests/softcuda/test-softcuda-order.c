/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-order.c: SOFTCUDA=streams=... detects exactly the unordered uses of memory, independent
 * of timing. */
#include "fixture.h"

static cu_stream other;
static cu_event event;
static address block;

/* Checks whether faults were reported since `before`. Both sides of a conflict may be reported. Synchronizes, so that
 * later uses are ordered. */
static void expect(const char *what, uint64_t before, bool wanted, const char *words)
{
    OK(cuda.context_synchronize());
    const uint64_t got = softcuda_control.faults() - before;
    CHECK(wanted ? got == 1 || got == 2 : got == 0, "%s: %llu faults: %s", what, (unsigned long long)got,
          softcuda_control.fault_text());
    CHECK(!wanted || strstr(softcuda_control.fault_text(), words) != NULL, "%s: \"%s\" lacks \"%s\"", what,
          softcuda_control.fault_text(), words);
}

static result fill(cu_stream on, size_t at, size_t bytes)
{
    return cuda.fill_bytes(block + at, 1, bytes, on);
}

static result copy(cu_stream on, size_t to, size_t from, size_t bytes)
{
    return cuda.copy_on_device(block + to, block + from, bytes, on);
}

static void follow(cu_stream later, cu_stream earlier)
{
    OK(cuda.event_record(event, earlier));
    OK(cuda.stream_wait(later, event, 0));
}

static void run_copies(void)
{
    uint64_t before = softcuda_control.faults();
    group("copies and fills");
    OK(fill(stream, 0, 4096));
    OK(copy(other, 8192, 0, 4096));
    expect("read of what was written", before, true, "a copy on stream");

    before = softcuda_control.faults();
    OK(fill(stream, 0, 4096));
    follow(other, stream);
    OK(copy(other, 8192, 0, 4096));
    expect("an event between", before, false, "");

    OK(fill(stream, 0, 4096));
    OK(cuda.stream_synchronize(stream));
    OK(copy(other, 8192, 0, 4096));
    OK(cuda.event_record(event, other));
    OK(cuda.event_synchronize(event));
    OK(fill(stream, 0, 4096));
    expect("the host waited", before, false, "");

    OK(copy(stream, 8192, 0, 4096));
    OK(copy(other, 16384, 0, 4096));
    expect("two readers", before, false, "");

    before = softcuda_control.faults();
    OK(copy(stream, 8192, 0, 4096));
    OK(fill(other, 0, 512));
    expect("written while it is read", before, true, "a fill on stream");

    before = softcuda_control.faults();
    OK(copy(stream, 8192, 0, 4096));
    OK(copy(other, 16384, 0, 4096));
    follow(stream, other);
    OK(fill(stream, 0, 4096));
    OK(fill(other, 4096, 4096));
    expect("written when both have read; the memory beside it", before, false, "");
}

static void run_kernels(void)
{
    const struct vector_args half = { (float *)(uintptr_t)(block + 8192), (float *)(uintptr_t)block,
                                      (float *)(uintptr_t)block, 1024 },
                             rest = { (float *)(uintptr_t)(block + 16384), (float *)(uintptr_t)block,
                                      (float *)(uintptr_t)(block + 8192), 1024 };
    uint64_t before = softcuda_control.faults();
    group("kernels");
    OK(fill(stream, 0, 4096));
    OK(launch("vector_add", 4, 64, 0, stream, &half));
    follow(other, stream);
    OK(launch("vector_add", 4, 64, 0, other, &rest));
    expect("ordered", before, false, "");
    OK(launch("vector_add", 4, 64, 0, stream, &half));
    OK(launch("vector_add", 4, 64, 0, other, &rest));
    expect("one reads what the other writes", before, true, "vector_add on stream");

    group("a graph is ordered like its stream");
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    before = softcuda_control.faults();
    OK(cuda.capture_begin(stream, CAPTURE_RELAXED));
    OK(fill(stream, 0, 4096));
    OK(launch("vector_add", 4, 64, 0, stream, &half));
    OK(cuda.capture_end(stream, &graph));
    OK(cuda.graph_instantiate(&exec, graph, 0));
    OK(cuda.graph_launch(exec, stream));
    OK(cuda.graph_launch(exec, stream));
    follow(other, stream);
    OK(launch("vector_add", 4, 64, 0, other, &rest));
    expect("ordered", before, false, "");
    OK(cuda.graph_launch(exec, stream));
    OK(fill(other, 8192, 16));
    expect("not ordered", before, true, "");
    OK(cuda.graph_exec_destroy(exec));
    OK(cuda.graph_destroy(graph));
}

TEST_MAIN
{
    setenv("SOFTCUDA", "devices=1,streams=report,quiet=yes", 1);
    start();
    OK(cuda.stream_create(&other, STREAM_NON_BLOCKING, 0));
    OK(cuda.event_create(&event, EVENT_DISABLE_TIMING));
    OK(cuda.memory_alloc(&block, 65536));
    for (int round = 0; round < 5; round++) {       /* the result must not depend on timing */
        run_copies();
        run_kernels();
    }
    OK(cuda.memory_free(block));
    return done();
}
