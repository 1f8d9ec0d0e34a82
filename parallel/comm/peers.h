/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/peers.h: what the ranks of a group publish in the store, and the report that is made of it.
 *
 * Keys in the store, below the id of the group:
 *   alarm      the first failure: the rank that found it, a letter, and a message. 'E': that rank's process has ended
 *              (set by the store's server); 'M': the ranks called different collectives; 'A': aborted; 'T': a rank did
 *              not come in time; 'S': replaced by the next epoch; 'F': failed otherwise. A
 *              thread of each communicator waits for it. Rank 0 sets it to 'L' when it leaves the group, because it may
 *              serve the store: then the others watch no more, and a connection that ends is no failure.
 *   unwatched  number of other ranks that do not watch any more; `unwatched/0` is set when it is all of them. Rank 0
 *              waits for that, so that the store does not end while a rank watches
 *   state/R    what rank R was doing, set when it has seen the alarm (struct state)
 *   ended/R    rank R's process has ended (set by the store's server)
 *   messages/R the messages that rank R has completed (comm->messages); set before `left/R`, if there are any
 *   left/R     rank R has released its communicator (struct departure)
 *   departed   number of ranks that have done so
 *   gone/R     rank R has released its communicator after a failure
 *
 * Keys of the agreement on the next epoch (comm/epoch.c, comm/join.c), below the id of the present one:
 *   here/R     rank R takes part in the agreement
 *   next       the ranks of the next epoch (struct comm_list); the first value counts
 *   lost/W     below the id of the next epoch: the process of a rank of this one, W = comm_lost_number(rank), or of a
 *              request to join has ended (set by the store's server)
 *   joins      number of requests to join
 *   join/K     request K: the process that wants to join (struct comm_member)
 *   unjoin/K   that process has ended (set by the store's server)
 * NAME/current, for groups that other processes can join: epoch, number of ranks and id of the newest epoch.
 * ctrt-run/excluded/HOST/PID: a process that the other ranks have excluded, for `ctrt run`.
 *
 * The values come from other processes, and possibly from other programs that use the store: they are checked. */
#ifndef PARALLEL_COMM_PEERS_H
#define PARALLEL_COMM_PEERS_H

#include "parallel/comm/comm.h"

/* How long a failed rank waits for the states of the others, in seconds. */
#define ANSWER_SECONDS 0.5
/* How long a rank waits for the store, whose server may be a process that is stopped; and when the watching thread has
 * had no answer to two requests. */
#define STORE_SECONDS        5.0
#define SILENT_STORE_SECONDS 0.3

struct state {
    ctrt_comm_signature done, pending;      /* sequence 0: none */
};

/* A rank that has left the group. */
struct departure {
    uint64_t collectives;                   /* how many it had called */
    uint64_t messages;                      /* 1: it has completed some: key messages/R */
    struct state state;
};

/* The first alarm of the group. */
struct alarm {
    ctrt_status status;                     /* of the request to the store; CTRT_ERR_COMM: it does not answer */
    int rank;
    char kind;                              /* see above; 0: unknown, because the request has failed */
    char *cause;                            /* its message, if another rank set it; to be freed */
};

/* ---- comm/peers.c ---- */

/* Reads rank `rank`'s value of `what`, of `bytes` bytes. False: it is wrong, or not set within `seconds`. */
bool comm_read(void *out, size_t bytes, ctrt_comm *comm, const char *what, int rank, double seconds);
/* How long this rank waits for the store, in seconds: briefly if the store has not answered the watching thread. */
double comm_store_patience(const ctrt_comm *comm);
/* *peer, which may be NULL: the other rank of the message that this rank waits for; -1: none, or a collective. */
struct state comm_own_state(int *peer, ctrt_comm *comm);
void comm_publish_state(ctrt_comm *comm);
/* Adds the communicator to those of this process, and removes it. */
void comm_list_add(ctrt_comm *comm);
void comm_list_remove(ctrt_comm *comm);
/* Calls the function for the communicators of this process, while it returns true. */
void comm_list_walk(bool (*function)(ctrt_comm *comm));
/* Makes the other ranks of this process fail too. `publish`: publishes their states. */
void comm_alarm_siblings(const ctrt_comm *comm, bool publish);
/* Notes that rank `rank` has left: collectives after its last one cannot complete, nor messages that it has not sent or
 * received. `messages`: its completed ones. */
void comm_note_departure(ctrt_comm *comm, int rank, const struct departure *departure, const uint64_t *messages);
/* The same for all ranks of this process, when this rank leaves. */
void comm_note_own_departure(ctrt_comm *comm, const struct departure *departure);
/* Reads the value of the key `alarm`. Sets *out and returns true if it is one. */
bool comm_parse_alarm(struct alarm *out, const ctrt_comm *comm, const char *value);

/* ---- comm/report.c ---- */

/* Writes the message and the JSON report of this rank, both for free(); NULL without memory. `alarm`: the first one;
 * `error`: the error of this rank. Returns the status of the failure, which `status` is for this rank alone. */
ctrt_status comm_compose(char **message, char **report, ctrt_comm *comm, ctrt_status status, const struct alarm *alarm,
                         const char *error);
/* Begins an object with the number of the rank and its member; the caller ends the object. */
void comm_json_member(struct json *json, int number, const struct comm_member *member);
/* Writes the report, which may be NULL, to the file that CTRT_COMM_REPORT names. */
void comm_write_report(const ctrt_comm *comm, const char *report);

#endif
