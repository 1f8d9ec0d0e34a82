/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the race detector, CTRT_STREAM_ORDER=check: correct programs give no report, programs with races give the
 * expected number of reports. */
#include "calls.h"
#include "log_kept.h"
#include "sims.h"

#define N 1000
#define READERS 9                           /* more than a storage records */

static ctrt_device *device;
static ctrt_stream *first, *a, *b, *readers[READERS];
/* [N] and [8, 8], written on the default stream, which all others wait for */
static ctrt_tensor *x, *grid;

static void begin(void)
{
    device = sim_open("sim:0");
    log_keep(CTRT_LOG_WARNING);
    first = default_stream(device);
    a = new_stream(device);
    b = new_stream(device);
    for (int i = 0; i < READERS; i++)
        readers[i] = new_stream(device);
    x = full(1, N, device);
    CHECK_OK(ctrt_full(&grid, CTRT_SHAPE(8, 8), ctrt_float(1), CTRT_F32, device));
    CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
    CHECK_OK(ctrt_add_scalar_(grid, ctrt_float(1)));
    CHECK_OK(ctrt_stream_wait(a, first));
    CHECK_OK(ctrt_stream_wait(b, first));
    for (int i = 0; i < READERS; i++)
        CHECK_OK(ctrt_stream_wait(readers[i], first));
}

/* Releases the tensors. The streams live until the child process ends. */
static void end(void)
{
    CHECK_OK(ctrt_device_synchronize(device));
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&grid);
    ctrt_log_set_callback(NULL, NULL);
}

/* A TEST of a program for which the detector must give this number of reports. */
#define RACE_TEST(function, what, reports)                                                  \
    static void function(void);                                                             \
    TEST(function##_checked, NULL)                                                          \
    {                                                                                       \
        run_program(what, reports, function);                                               \
    }                                                                                       \
    static void function(void)

static void run_program(const char *what, unsigned reports, void (*run)(void))
{
    group("%s: %u reports", what, reports);
#ifdef __SANITIZE_THREAD__
    if (reports > 0) {
        skip_group("a race on purpose, which the thread sanitizer finds too");
        return;
    }
#endif
    IN_CHILD("CTRT_SIM=devices=1,latency=200us", "CTRT_STREAM_ORDER=check") {
        begin();
        run();
        CHECK(ctrt_race_count() == reports, "%llu reports: %s", (unsigned long long)ctrt_race_count(), logged);
        end();
    }
}

static void reads(ctrt_stream *stream, ctrt_tensor *tensor)
{
    CTRT_AUTO(tensor) sum = NULL;
    ON_STREAM(stream, ctrt_sum(&sum, tensor, CTRT_ALL_DIMS));
}

static void writes(ctrt_stream *stream, ctrt_tensor *tensor)
{
    ON_STREAM(stream, ctrt_fill_(tensor, ctrt_float(2)));
}

/* Returns a view of the elements begin, begin + step, ... of dimension `dim` of `of`. */
static ctrt_tensor *part(ctrt_tensor *of, int dim, int64_t begin, int64_t end, int64_t step)
{
    ctrt_tensor *view = NULL;
    CHECK_OK(ctrt_slice(&view, of, dim, begin, end, step));
    return view;
}

/* Writes two parts of a tensor on two streams without a wait between them. */
static void write_parts(ctrt_tensor *of, int dim, int64_t begin_a, int64_t end_a, int64_t begin_b, int64_t end_b,
                        int64_t step)
{
    CTRT_AUTO(tensor) left = part(of, dim, begin_a, end_a, step), right = part(of, dim, begin_b, end_b, step);
    writes(a, left);
    writes(b, right);
}

RACE_TEST(pytorch_pattern, "PyTorch's pattern: wait_stream, record_stream, a later read", 0)
{
    CTRT_AUTO(tensor) y = full(1, N, device);
    CHECK_OK(ctrt_stream_wait(a, first));
    reads(a, y);
    CHECK_OK(ctrt_tensor_record_stream(y, a));
    reads(first, y);
    reads(b, x);
}

RACE_TEST(readers_of_joined_parts, "two streams read parts that two streams wrote", 0)
{
    write_parts(x, 0, 0, N / 2, N / 2, N, 1);
    CHECK_OK(ctrt_stream_wait(a, b));
    CHECK_OK(ctrt_stream_wait(b, a));
    reads(a, x);
    reads(b, x);
    reads(a, x);
}

RACE_TEST(halves, "two streams write two halves", 0) { write_parts(x, 0, 0, N / 2, N / 2, N, 1); }
RACE_TEST(columns, "two streams write separate columns", 0) { write_parts(grid, 1, 0, 3, 3, 8, 1); }
RACE_TEST(every_second, "two streams write even and odd elements", 0) { write_parts(x, 0, 0, N, 1, N, 2); }

/* Writes neighbouring columns of a tensor with gaps in every other dimension, so that no dimensions can be merged. */
RACE_TEST(columns_of_most_dimensions, "two streams write separate columns of a tensor of 8 dimensions", 0)
{
    int64_t shape[CTRT_MAX_DIMS];
    for (int d = 0; d < CTRT_MAX_DIMS; d++)
        shape[d] = 3;
    CTRT_AUTO(tensor) y = NULL;
    CHECK_OK(ctrt_full(&y, ctrt_ints_of(shape, CTRT_MAX_DIMS), ctrt_float(1), CTRT_F32, device));
    CHECK_OK(ctrt_stream_wait(a, first));
    CHECK_OK(ctrt_stream_wait(b, first));
    for (int d = 0; d < CTRT_MAX_DIMS - 1; d++)
        CHECK_OK(ctrt_slice(&y, y, d, 0, 2, 1));
    write_parts(y, CTRT_MAX_DIMS - 1, 0, 1, 1, 2, 1);
}

RACE_TEST(overlapping_halves, "two streams write overlapping halves", 1) { write_parts(x, 0, 0, 600, 400, N, 1); }
RACE_TEST(overlapping_columns, "two streams write overlapping columns", 1) { write_parts(grid, 1, 0, 4, 3, 8, 1); }

RACE_TEST(same_columns_of_a_step, "two streams write every fourth column, from 0 and from 4", 1)
{
    write_parts(grid, 1, 0, 8, 4, 8, 4);
}

RACE_TEST(tiles, "two streams write separate tiles", 0)
{
    CTRT_AUTO(tensor) top = part(grid, 0, 0, 4, 1), bottom = part(grid, 0, 4, 8, 1);
    CTRT_AUTO(tensor) tile = part(bottom, 1, 4, 8, 1), turned = NULL;
    CHECK_OK(ctrt_transpose(&turned, tile, 0, 1));
    writes(b, turned);
    write_parts(top, 1, 0, 4, 4, 8, 1);
}

RACE_TEST(row_and_column, "one stream writes a row, another reads a column", 1)
{
    CTRT_AUTO(tensor) row = part(grid, 0, 5, 6, 1), column = part(grid, 1, 5, 6, 1);
    writes(a, row);
    reads(b, column);
}

static void pipeline(bool waits_for_both)
{
    CTRT_AUTO(tensor) left = part(x, 0, 0, N / 2, 1), right = part(x, 0, N / 2, N, 1);
    CTRT_AUTO(event) left_done = new_event(device, false), right_done = new_event(device, false);
    writes(a, left);
    CHECK_OK(ctrt_event_record(left_done, a));
    writes(a, right);
    CHECK_OK(ctrt_event_record(right_done, a));
    CHECK_OK(ctrt_stream_wait_event(b, left_done));
    reads(b, left);
    if (waits_for_both)
        CHECK_OK(ctrt_stream_wait_event(b, right_done));
    reads(b, right);
}

RACE_TEST(pipeline_right, "each part is read after an event of its write", 0) { pipeline(true); }
RACE_TEST(pipeline_wrong, "the second part is read after the first part's event only", 1) { pipeline(false); }

RACE_TEST(synchronized, "the host waits for the write before the read", 0)
{
    writes(a, x);
    CHECK_OK(ctrt_stream_synchronize(a));
    reads(b, x);
}

RACE_TEST(queried, "queries reported that the event and the stream are done", 0)
{
    CTRT_AUTO(event) event = new_event(device, false);
    bool done = false;
    writes(a, x);
    CHECK_OK(ctrt_event_record(event, a));
    while (!done)
        CHECK_OK(ctrt_event_query(event, &done));
    reads(b, x);
    writes(b, x);
    for (done = false; !done;)
        CHECK_OK(ctrt_stream_query(b, &done));
    reads(a, x);
}

/* ctrt_tensor_record_stream only delays the reuse of the memory; it does not order accesses. */
RACE_TEST(recorded_for_a_wait, "record_stream instead of a wait", 1)
{
    reads(a, x);
    CHECK_OK(ctrt_tensor_record_stream(x, a));
    writes(first, x);
}

RACE_TEST(written_first_elsewhere, "the first write on another stream than the allocation's", 1)
{
    CTRT_AUTO(tensor) y = NULL;
    reads(first, x);                        /* the block that y gets is free after this work */
    CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(N), CTRT_F32, device));
    writes(a, y);
}

RACE_TEST(last_of_many_readers, "a write that waits for all readers but one", 1)
{
    for (int i = 0; i <= READERS; i++)              /* reads beside reads are no races */
        reads(readers[i % READERS], x);
    for (int i = 1; i < READERS; i++)
        CHECK_OK(ctrt_stream_wait(first, readers[i]));
    writes(first, x);
}

RACE_TEST(twice_wrong, "two streams read without a wait for one write", 2)
{
    writes(a, x);
    reads(b, x);
    reads(first, x);
}

/* A C library without backtrace() gives reports without call sites. */
extern int backtrace(void **addresses, int most) __attribute__((weak));

TEST(test_sites, "a report names both ops with their streams, labels, accesses and call sites")
{
#ifdef __SANITIZE_THREAD__
    skip_group("a race on purpose, which the thread sanitizer finds too");
    return;
#endif
    IN_CHILD("CTRT_SIM=devices=1", "CTRT_STREAM_ORDER=check") {
        begin();
        CHECK_OK(ctrt_memory_label_push("loader"));
        writes(a, x);
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_OK(ctrt_memory_label_push("encoder.0"));
        reads(b, x);
        CHECK_OK(ctrt_memory_label_pop());
        char here[64], there[64];
        snprintf(here, sizeof here, "sum on stream %llu of sim:0 in encoder.0", (unsigned long long)ctrt_stream_id(b));
        snprintf(there, sizeof there, "fill on stream %llu of sim:0 in loader", (unsigned long long)ctrt_stream_id(a));
        CHECK_HAS(logged, here);
        CHECK_HAS(logged, there);
        CHECK_HAS(logged, "reads");
        CHECK_HAS(logged, "writes");
        CHECK_HAS(logged, "[1000]");
        const char *call = strstr(logged, "run-public(");
        CHECK(backtrace == NULL || (call != NULL && strstr(call + 1, "run-public(") != NULL),
              "the report lacks the two call sites: %s", logged);
        end();
    }
}

TESTS_MAIN
