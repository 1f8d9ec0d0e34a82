/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/store.h: key-value stores, internal interface.
 *
 * store.c checks arguments and results and calls the functions of the store's kind: store/local.c, store/file.c and
 * store/tcp.c. A request is a struct store_message (store/message.h); all kinds execute it with store_map_execute
 * (store/map.h), in this process or, tcp, in the server (store/server.h).
 *
 * Fork. The child gets copies of the parent's stores that it can only release: store_kind.at_fork has closed their
 * descriptors, so that the parent's connections end when the parent ends and not when the child does. */
#ifndef PARALLEL_STORE_H
#define PARALLEL_STORE_H

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/base.h"
#include "ctrt/comm.h"
#include "parallel/store/message.h"
#include "parallel/store/server.h"

struct store_kind {
    const char *scheme;                 /* "tcp" */
    size_t bytes;                       /* of the kind's struct, whose first member is ctrt_store */
    /* Opens the store. `rest`: the address after "scheme://", a part of store->address. The other members that `open`
     * does not set are 0. On failure it frees what it has allocated. */
    ctrt_status (*open)(ctrt_store *store, const char *rest, int64_t deadline);
    /* Executes a request. STORE_GET waits for the key; after the deadline *result is STORE_UNSET. The caller gets a
     * reference to *value, NULL if there is none. CTRT_ERR_COMM if the store cannot be reached or does not answer
     * before the deadline; STORE_GET: within `patience` ns after it. Thread-safe. */
    ctrt_status (*request)(enum store_result *result, struct store_value **value, ctrt_store *store,
                           const struct store_message *message, int64_t deadline, int64_t patience);
    /* Ends the use of the store and frees what `open` has allocated. Not called in the child of a fork. */
    void (*close)(ctrt_store *store);
    /* Called at a fork. In the child it closes descriptors and does nothing else; before the fork it makes the data
     * consistent that it uses there. May be NULL. */
    void (*at_fork)(ctrt_store *store, enum store_fork when);
    bool detects_disconnect;            /* STORE_AT_DISCONNECT is supported */
    /* Ends the waits of this process for the key. NULL if waits cannot be long. */
    void (*interrupt)(ctrt_store *store, const char *key);
    /* Reserves a number from 0 until the store is closed or the process ends. False: another process has it. NULL if
     * STORE_AT_DISCONNECT is supported, or all users are in this process. */
    bool (*reserve)(ctrt_store *store, int number);
};

extern const struct store_kind store_local_kind, store_file_kind, store_tcp_kind;

struct ctrt_store {
    const struct store_kind *kind;
    _Atomic int references;
    bool forked;                        /* this process is a child of the one that opened the store */
    char *address;                      /* host_alloc; with space for another port */
    double seconds;                     /* time limit of requests without their own */
    bool serves;                        /* this process serves the store */
    atomic_bool deserted;               /* ranks of the last group that has ended still watch it; comm/watch.c */
    int claimed;                        /* the rank that this store has claimed, plus 1; 0: none; set by store/job.c */
    atomic_bool ended;                  /* the process that serves the store has ended; set by store/tcp.c */
    ctrt_store *previous, *next;        /* list of all stores of the process */
};

/* ctrt_store_open for a job: does not say to clients which jobs the store is for (store/job.h). */
ctrt_status store_open(ctrt_store **out, const char *address, bool serve, double seconds);
/* Replaces *out by *fresh, which becomes NULL. */
void store_move(ctrt_store **out, ctrt_store **fresh);

/* Asks the store to set `key` when this process ends without releasing the store, or its connection breaks. A later
 * call with the same key replaces the value; `value` NULL: the key is not set any more. One ctrt_store can have 512
 * such keys, with values of at most 4 KiB. *supported: whether the kind of store can do it (tcp); if not, the call has
 * no effect. Thread-safe. */
ctrt_status store_set_at_disconnect(bool *supported, ctrt_store *store, const char *key, const void *value,
                                    size_t bytes);

/* ctrt_store_set, ctrt_store_add and ctrt_store_compare_set with another time limit. `seconds` 0: the store's. */
ctrt_status store_set_within(ctrt_store *store, const char *key, const void *value, size_t bytes, double seconds);
ctrt_status store_add_within(ctrt_store *store, const char *key, int64_t amount, int64_t *sum, double seconds);
ctrt_status store_compare_set_within(ctrt_store *store, const char *key, const void *expected, size_t expected_bytes,
                                     const void *desired, size_t desired_bytes, void **value, size_t *bytes,
                                     double seconds);

/* ctrt_store_get for callers that have to know whether the store answers: if it says that the key is not set, returns
 * CTRT_OK and sets *unset. `patience`: seconds that the store may take to say so, in addition to `seconds`. */
ctrt_status store_get_within(bool *unset, void **value, size_t *bytes, ctrt_store *store, const char *key,
                             double seconds, double patience);

/* ctrt_store_get for keys that another process sets: CTRT_ERR_COMM if it has not done so in time. */
ctrt_status store_await(ctrt_store *store, const char *key, void **value, size_t *bytes, double seconds);

/* Ends the store_get_within of other threads of this process that wait for the key now: they find it unset. */
void store_interrupt(ctrt_store *store, const char *key);

/* How long a busy store may take, in addition to a STORE_GET's own time, to say that the key is not set. */
#define STORE_ANSWER_TIME INT64_C(5000000000)

/* Times are in nanoseconds of CLOCK_MONOTONIC. store_deadline: `seconds` from now, at most 30 years.
 * store_poll_timeout: milliseconds until the deadline, rounded up, for poll(). */
int64_t store_now(void);
int64_t store_deadline(double seconds);
int store_poll_timeout(int64_t deadline);
struct timespec store_timespec(int64_t time);
/* Sleeps for *pause nanoseconds, but not past the deadline, and doubles *pause up to `most`. False: it is past. */
bool store_sleep(int64_t *pause, int64_t most, int64_t deadline);

/* Initialises a condition variable whose timed waits use CLOCK_MONOTONIC. */
void store_cond_init(pthread_cond_t *cond);

/* Reads HOST:PORT or [HOST]:PORT. host: at least 256 bytes. */
ctrt_status store_parse_host(char *host, int *port, const char *rest);
/* getaddrinfo for a stream socket. `serve`: for bind. Returns its error code. */
int store_resolve(struct addrinfo **out, const char *host, int port, bool serve);

#endif
