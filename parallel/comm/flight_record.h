/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/flight_record.h: the last collectives of a communicator, for reports. */
#ifndef PARALLEL_FLIGHT_RECORD_H
#define PARALLEL_FLIGHT_RECORD_H

#include "base/json.h"
#include "ctrt/comm_plugin.h"

#define FLIGHT_RECORDS 1024

enum flight_state { FLIGHT_QUEUED, FLIGHT_RUNNING, FLIGHT_DONE, FLIGHT_FAILED };

struct flight {
    uint64_t number;                    /* of the call in this communicator, from 1; collectives and messages */
    ctrt_comm_signature signature;
    int32_t peer;                       /* of messages; else -1 */
    enum flight_state state;
    uint64_t queued, started, ended;    /* ticks, see flight_record.c; 0: not yet */
};

/* A ring; the caller holds the communicator's lock. */
struct flight_record {
    struct flight ring[FLIGHT_RECORDS];
    uint64_t count;                     /* calls so far */
    uint64_t begin_ticks;               /* when the record was created */
    int64_t begin_time;                 /* the same, in nanoseconds since 1970 */
};

/* Sets up a record of zeros. */
void flight_begin(struct flight_record *record);

/* Adds a call in `state`, FLIGHT_QUEUED or FLIGHT_RUNNING, and returns its number. */
uint64_t flight_add(struct flight_record *record, const ctrt_comm_signature *signature, int32_t peer,
                    enum flight_state state);
/* Sets the state of call `number`, if the ring still has it. */
void flight_set(struct flight_record *record, uint64_t number, enum flight_state state);
/* The last call that ended without a failure; NULL if the ring has none. */
const struct flight *flight_last_done(const struct flight_record *record);
/* Call `number`; NULL if the ring does not have it. */
const struct flight *flight_get(const struct flight_record *record, uint64_t number);
/* The oldest collective that is queued or runs, else the oldest message; NULL if there is none. Collectives come first
 * because a rank may have queued receives that it does not wait for. A call that has failed without a failure of the
 * group, because its capture was abandoned, is not pending. */
const struct flight *flight_pending(const struct flight_record *record);

/* Writes "all_reduce 57 (sum, 1000 f32)" into text[FLIGHT_TEXT]. Returns `text`. */
#define FLIGHT_TEXT 128
const char *flight_text(char text[FLIGHT_TEXT], const ctrt_comm_signature *signature);
/* Adds the record as an array, oldest first; its times are nanoseconds since 1970. */
void flight_json(struct json *json, const char *key, const struct flight_record *record);

#endif
