/* SPDX-License-Identifier: Apache-2.0 */
/* bad-stream.c: invalid arguments of streams, captures, dry runs and split steps. */
#include <string.h>

#include "bad-input.h"

static void streams(void)
{
    ctrt_stream *stream = NULL, *none = NULL;
    bool idle = false;
    void *native = NULL;
    BAD(INVALID_ARGUMENT, ctrt_stream_new(NULL, p.cpu, 0));
    BAD(INVALID_ARGUMENT, ctrt_stream_default(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_stream_current(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_stream_set_current(NULL));
    BAD(STATE, ctrt_stream_pop());
    FINE(ctrt_stream_push(NULL) == CTRT_OK && ctrt_stream_pop() == CTRT_OK);
    FINE(ctrt_stream_new(&stream, p.cpu, 1 << 30) == CTRT_OK && stream != NULL);
    NULL_IN2(ctrt_stream_wait, stream, stream);
    FINE(ctrt_stream_wait(stream, stream) == CTRT_OK);
    NULL_IN2(ctrt_stream_query, stream, &idle);
    NULL_IN2(ctrt_stream_native, &native, stream);
    BAD(NOT_SUPPORTED, ctrt_stream_native(&native, stream));
    BAD(INVALID_ARGUMENT, ctrt_stream_synchronize(NULL));
    BAD(INVALID_ARGUMENT, ctrt_stream_reset(NULL));
    BAD(INVALID_ARGUMENT, ctrt_stream_wait_event(stream, NULL));
    FINE(ctrt_stream_device(NULL) == NULL && ctrt_stream_id(NULL) == 0 && ctrt_stream_priority(NULL) == 0);
    FINE(ctrt_stream_retain(NULL) == NULL);
    FINE((ctrt_stream_release(NULL), ctrt_stream_release(&none), true));
    ctrt_stream_release(&stream);
    FINE(stream == NULL);
}

static void events(void)
{
    ctrt_event *event = NULL, *none = NULL;
    double ms = 0;
    bool done = false;
    BAD(INVALID_ARGUMENT, ctrt_event_new(NULL, p.cpu, true));
    FINE(ctrt_event_new(&event, p.cpu, false) == CTRT_OK && event != NULL);
    BAD(STATE, ctrt_event_elapsed(&ms, event, event));
    NULL_IN2(ctrt_event_query, event, &done);
    NULL_IN3(ctrt_event_elapsed, &ms, event, event);
    BAD(INVALID_ARGUMENT, ctrt_event_record(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_event_synchronize(NULL));
    BAD(INVALID_ARGUMENT, ctrt_stream_wait_event(NULL, event));
    FINE(ctrt_event_retain(NULL) == NULL);
    FINE((ctrt_event_release(NULL), ctrt_event_release(&none), true));
    ctrt_event_release(&event);
}

static void tensors(void)
{
    bool left = true;
    ctrt_stream *stream = NULL;
    const ctrt_ints negative = CTRT_SHAPE(-1);
    NULL_IN3(ctrt_to_non_blocking, &out, p.x, p.cpu, &left);
    NULL_IN2(ctrt_copy_non_blocking_, p.x, p.x, NULL);
    BAD(SHAPE, ctrt_copy_non_blocking_(p.x, p.wide, &left));
    FINE(!left);
    NULL_IN2(ctrt_pin_memory, &out, p.x, NULL);
    if (p.away != NULL)
        BAD(DEVICE, ctrt_pin_memory(&out, p.away, NULL));
    BAD(INVALID_ARGUMENT, ctrt_empty_pinned(NULL, CTRT_SHAPE(1), CTRT_F32, p.cpu));
    BAD(ANY, ctrt_empty_pinned(&out, negative, CTRT_F32, p.cpu));
    BAD(ANY, ctrt_empty_pinned(&out, CTRT_SHAPE(1ll << 62, 4), CTRT_F32, p.cpu));
    BAD(DTYPE, ctrt_empty_pinned(&out, CTRT_SHAPE(1), (ctrt_dtype)77, p.cpu));
    FINE(!ctrt_tensor_is_pinned(NULL) && !ctrt_tensor_is_pinned(p.x));
    FINE(ctrt_stream_new(&stream, p.cpu, 0) == CTRT_OK);
    NULL_IN2(ctrt_tensor_record_stream, p.x, stream);
    FINE(ctrt_race_count() == 0);
    ctrt_stream_release(&stream);
}

static ctrt_status no_call(void *user)
{
    (void)user;
    return CTRT_OK;
}

static void captures(void)
{
    ctrt_graph *graph = NULL;
    BAD(ANY, ctrt_capture_begin(p.cpu));
    BAD(STATE, ctrt_capture_end(&graph, p.cpu));
    BAD(STATE, ctrt_capture_call(p.cpu, no_call, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_capture_end(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_capture_replay(NULL));
    BAD(INVALID_ARGUMENT, ctrt_capture_call(p.cpu, NULL, NULL, NULL));
    FINE(!ctrt_capture_running(p.cpu) && graph == NULL);
    FINE(ctrt_graph_retain(NULL) == NULL && ctrt_graph_device(NULL) == NULL && ctrt_graph_memory(NULL) == 0);
    FINE((ctrt_graph_release(NULL), ctrt_graph_release(&graph), true));
}

static void dry_runs(void)
{
    ctrt_dry_run *dryrun = NULL, *second = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    BAD(INVALID_ARGUMENT, ctrt_dry_run_begin(NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_dry_run_set_limit(NULL, 1));
    FINE(!ctrt_dry_run_fits(NULL));
    BAD(INVALID_ARGUMENT, ctrt_dry_run_end(&found, NULL));
    BAD(ANY, ctrt_dry_run_end(&found, &dryrun));
    FINE((ctrt_dry_run_release(NULL), ctrt_dry_run_release(&dryrun), true));
    FINE(ctrt_dry_run_begin(&dryrun, p.cpu) == CTRT_OK && dryrun != NULL);
    BAD(STATE, ctrt_dry_run_begin(&second, p.cpu));
    FINE(second == NULL);
    FINE(ctrt_dry_run_end(NULL, &dryrun) == CTRT_OK && dryrun == NULL);
}

static ctrt_status runs(void *user, int64_t from, int64_t to, double weight)
{
    (void)user, (void)from, (void)to, (void)weight;
    return CTRT_OK;
}

static ctrt_status fails(void *user, int64_t from, int64_t to, double weight)
{
    (void)user, (void)from, (void)to, (void)weight;
    return ctrt_fail(CTRT_ERR_IO, "the reader is gone");
}

static void splits(void)
{
    ctrt_split *split = NULL, *none = NULL;
    ctrt_split_result result = CTRT_SPLIT_RESULT;
    NULL_IN2(ctrt_split_new, &split, p.linear, NULL);
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, p.linear, &CTRT_WITH(ctrt_split_options, .pieces = -1)));
    BAD(INVALID_ARGUMENT, ctrt_split_new(&split, p.linear, &CTRT_WITH(ctrt_split_options, .canonical = -4)));
    FINE(split == NULL);
    FINE(ctrt_split_new(&split, p.linear, NULL) == CTRT_OK && ctrt_split_pieces(split) == 1);
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, NULL, 4, runs, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, split, 0, runs, NULL));
    BAD(INVALID_ARGUMENT, ctrt_split_step(&result, split, 4, NULL, NULL));
    BAD(IO, ctrt_split_step(&result, split, 4, fails, NULL));
    FINE(strstr(ctrt_error_message(), "the reader is gone") != NULL);
    FINE(ctrt_split_step(NULL, split, 4, runs, NULL) == CTRT_OK);
    FINE(ctrt_split_pieces(NULL) == 0);
    FINE((ctrt_split_release(NULL), ctrt_split_release(&none), true));
    ctrt_split_release(&split);
}

void bad_stream(void)
{
    RUN_ALL(streams, events, tensors, captures, dry_runs, splits);
}
