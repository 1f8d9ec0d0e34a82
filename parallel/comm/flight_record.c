/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/flight_record.c: the last collectives of a communicator, for reports.
 *
 * Times are recorded as ticks: of the processor's time stamp counter where it has a constant rate, because reading it
 * takes a third of the time of clock_gettime, else nanoseconds. Reports convert them to times since 1970 by the ticks
 * and times at which the record was created and is written. */
#include "parallel/comm/flight_record.h"

#include <inttypes.h>
#include <stdio.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "base/clock.h"
#include "ctrt/tensor.h"

static const char *const collective_names[CTRT_COLLECTIVE_COUNT] = {
    "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "send", "recv", "empty",
};
static const char *const op_names[] = { "sum", "product", "min", "max", "average" };
static const char *const state_names[] = { "queued", "running", "done", "failed" };

#if defined(__x86_64__)
static bool constant_rate;

__attribute__((constructor)) static void find_constant_rate(void)
{
    unsigned a, b, c, d = 0;
    constant_rate = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);       /* "invariant TSC" */
}
#endif

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    if (constant_rate)
        return __rdtsc();
#endif
    return (uint64_t)clock_now(CLOCK_MONOTONIC);
}

void flight_begin(struct flight_record *record)
{
    record->begin_ticks = ticks();
    record->begin_time = clock_now(CLOCK_REALTIME);
}

static bool signature_reduces(const ctrt_comm_signature *signature)
{
    return signature->collective == CTRT_COLLECTIVE_ALL_REDUCE || signature->collective == CTRT_COLLECTIVE_REDUCE
           || signature->collective == CTRT_COLLECTIVE_REDUCE_SCATTER;
}

static const char *collective_name(const ctrt_comm_signature *signature)
{
    return signature->collective < CTRT_COLLECTIVE_COUNT ? collective_names[signature->collective] : "?";
}

static const char *op_name(const ctrt_comm_signature *signature)
{
    return signature->op < sizeof op_names / sizeof *op_names ? op_names[signature->op] : "?";
}

uint64_t flight_add(struct flight_record *record, const ctrt_comm_signature *signature, int32_t peer,
                    enum flight_state state)
{
    const uint64_t now = ticks();
    struct flight *flight = &record->ring[record->count % FLIGHT_RECORDS];
    flight->number = ++record->count;
    flight->signature = *signature;
    flight->peer = peer;
    flight->state = state;
    flight->queued = now;
    flight->started = state == FLIGHT_RUNNING ? now : 0;
    flight->ended = 0;
    return flight->number;
}

void flight_set(struct flight_record *record, uint64_t number, enum flight_state state)
{
    struct flight *flight = (struct flight *)flight_get(record, number);
    if (flight == NULL)
        return;
    flight->state = state;
    *(state == FLIGHT_RUNNING ? &flight->started : &flight->ended) = ticks();
}

static uint64_t flight_oldest(const struct flight_record *record)
{
    return record->count > FLIGHT_RECORDS ? record->count - FLIGHT_RECORDS : 0;
}

const struct flight *flight_last_done(const struct flight_record *record)
{
    for (uint64_t i = record->count; i > flight_oldest(record); i--)
        if (record->ring[(i - 1) % FLIGHT_RECORDS].state == FLIGHT_DONE)
            return &record->ring[(i - 1) % FLIGHT_RECORDS];
    return NULL;
}

const struct flight *flight_get(const struct flight_record *record, uint64_t number)
{
    const struct flight *flight = &record->ring[(number - 1) % FLIGHT_RECORDS];
    return number != 0 && flight->number == number ? flight : NULL;
}

const struct flight *flight_pending(const struct flight_record *record)
{
    const struct flight *message = NULL;
    for (uint64_t i = flight_oldest(record); i < record->count; i++) {
        const struct flight *flight = &record->ring[i % FLIGHT_RECORDS];
        const bool pending = flight->state == FLIGHT_QUEUED || flight->state == FLIGHT_RUNNING;
        if (pending && flight->peer < 0)
            return flight;
        if (pending && message == NULL)
            message = flight;
    }
    return message;
}

const char *flight_text(char text[FLIGHT_TEXT], const ctrt_comm_signature *signature)
{
    int length = snprintf(text, FLIGHT_TEXT, "%s %" PRIu64, collective_name(signature), signature->sequence);
    char *rest = text + length;
    const size_t room = FLIGHT_TEXT - (size_t)length;
    if (signature->dtype == 0)
        return text;
    const char *dtype = ctrt_dtype_name((ctrt_dtype)signature->dtype);
    if (signature_reduces(signature))
        length = snprintf(rest, room, " (%s, %" PRIu64 " %s", op_name(signature), signature->count, dtype);
    else
        length = snprintf(rest, room, " (%" PRIu64 " %s", signature->count, dtype);
    if (signature->root >= 0)
        snprintf(rest + length, room - (size_t)length, ", %s %d)",
                 signature->collective == CTRT_COLLECTIVE_SEND ? "from" : "root", signature->root);
    else
        snprintf(rest + length, room - (size_t)length, ")");
    return text;
}

/* A pair of ticks and nanoseconds since 1970, and nanoseconds per tick. */
struct scale {
    uint64_t ticks;
    int64_t time;
    double tick;
};

static void json_time(struct json *json, const char *key, const struct scale *scale, uint64_t at)
{
    const double age = (double)(int64_t)(scale->ticks - at) * scale->tick;
    json_add_int(json, key, at ? scale->time - (int64_t)age : 0);
}

static void flight_json_one(struct json *json, const struct flight *flight, const struct scale *scale)
{
    const ctrt_comm_signature *signature = &flight->signature;
    json_begin(json, NULL, '{');
    json_add_uint(json, "number", flight->number);
    json_add_string(json, "collective", collective_name(signature));
    json_add_uint(json, "sequence", signature->sequence);
    if (signature->dtype != 0) {
        json_add_string(json, "dtype", ctrt_dtype_name((ctrt_dtype)signature->dtype));
        json_add_uint(json, "count", signature->count);
    }
    if (signature_reduces(signature))
        json_add_string(json, "op", op_name(signature));
    if (signature->root >= 0)
        json_add_int(json, "root", signature->root);
    if (flight->peer >= 0)
        json_add_int(json, "peer", flight->peer);
    json_add_string(json, "state", state_names[flight->state]);
    json_time(json, "queued_ns", scale, flight->queued);
    json_time(json, "started_ns", scale, flight->started);
    json_time(json, "ended_ns", scale, flight->ended);
    json_end(json, '}');
}

void flight_json(struct json *json, const char *key, const struct flight_record *record)
{
    struct scale scale = { .ticks = ticks(), .time = clock_now(CLOCK_REALTIME) };
    if (scale.ticks > record->begin_ticks)
        scale.tick = (double)(scale.time - record->begin_time) / (double)(scale.ticks - record->begin_ticks);
    json_begin(json, key, '[');
    for (uint64_t i = flight_oldest(record); i < record->count; i++)
        flight_json_one(json, &record->ring[i % FLIGHT_RECORDS], &scale);
    json_end(json, ']');
}
