/* SPDX-License-Identifier: Apache-2.0 */
/* tools/run_nodes.c: the launchers of several machines.
 *
 * Keys of the store, each with the prefix "ctrt-run/": `ranks` is the number of ranks per node. Node I sets `joined/I`.
 * Node 0 sets `start` when all have joined. `failures` is the number of failed nodes, and `failure` the text of the
 * first. Node I increases `beat/I`, and sets `ended/I` at its end. A launcher that crashes or loses its network is
 * detected because its beat stops; node 0's is detected because the store fails. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/base.h"
#include "run.h"

#define PERIOD   500                    /* ms between two requests of a node */
#define LOST     INT64_C(30000000000)   /* ns without a beat after which a node is lost */

static struct {
    ctrt_store *store;
    int node, nodes, event;
    struct beat { int64_t count, time; bool ended; } *beats;    /* used by the thread of node 0 only */
    pthread_mutex_t lock;               /* guards the members below */
    pthread_cond_t changed;
    bool fails, ends;                   /* requests to the thread */
    char own_failure[256], failure[256];
    bool failed, done;                  /* results of the thread */
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* ---- the store ---- */

/* Sets the key to `mine` if it is not set, and reads its value. */
static ctrt_status run_nodes_agree(long *out, ctrt_store *store, const char *key, long mine)
{
    char text[24];
    void *value = NULL;
    size_t bytes;
    const int length = snprintf(text, sizeof text, "%ld", mine);
    CTRT_TRY(ctrt_store_compare_set(store, key, NULL, 0, text, (size_t)length, &value, &bytes));
    *out = strtol(value, NULL, 10);
    free(value);
    return CTRT_OK;
}

static void write_name(char name[48], const char *key, int node)
{
    snprintf(name, 48, node >= 0 ? "ctrt-run/%s/%d" : "ctrt-run/%s", key, node);
}

/* `node`: -1 for keys without a node. */
static ctrt_status add(const char *key, int node, int64_t amount, int64_t *sum)
{
    char name[48];
    write_name(name, key, node);
    return ctrt_store_add(state.store, name, amount, sum);
}

/* Waits until all nodes have joined. The key `start` contains node 0's *port, or -1 if the numbers of ranks differ. */
static ctrt_status wait_for_all(int *port)
{
    char text[24], name[48];
    void *value = NULL;
    for (int i = 1; i < state.nodes && state.node == 0; i++) {
        write_name(name, "joined", i);
        CTRT_TRY(ctrt_store_get(state.store, name, &value, NULL, CTRT_DEFAULT_SECONDS));
        *port = strtol(value, NULL, 10) < 0 ? -1 : *port;
        free(value);
    }
    const int length = snprintf(text, sizeof text, "%d", *port);
    if (state.node == 0)
        return ctrt_store_set(state.store, "ctrt-run/start", text, (size_t)length);
    CTRT_TRY(ctrt_store_get(state.store, "ctrt-run/start", &value, NULL, CTRT_DEFAULT_SECONDS));
    *port = (int)strtol(value, NULL, 10);
    free(value);
    return CTRT_OK;
}

bool nodes_join(ctrt_store *store, int node, int nodes, int ranks, int *port)
{
    long same = ranks;
    int64_t joined = 0;
    state.store = store;
    state.node = node;
    state.nodes = nodes;
    ctrt_status status = run_nodes_agree(&same, store, "ctrt-run/ranks", ranks);
    if (status == CTRT_OK)
        status = add("joined", node, same == ranks ? 1 : -1, &joined);
    if (status == CTRT_OK && joined > 1) {
        fprintf(stderr, "ctrt run: another launcher with --node %d has joined already\n", node);
        return false;
    }
    *port = same == ranks ? *port : -1;
    if (status == CTRT_OK && (same == ranks || node == 0))
        status = wait_for_all(port);
    if (status != CTRT_OK) {
        fprintf(stderr, "ctrt run: %s\n", ctrt_error_message());
        return false;
    }
    if (*port >= 0)
        return true;
    fprintf(stderr, "ctrt run: -n must be the same on all nodes; node %d has %d ranks%s\n", node, ranks,
            same == ranks ? ", another node has not" : "");
    if (node == 0)
        sleep(1);                       /* the others read `start` */
    return false;
}

static ctrt_status publish_failure(const char *text)
{
    void *value = NULL;
    CTRT_TRY(ctrt_store_compare_set(state.store, "ctrt-run/failure", NULL, 0, text, strlen(text), &value, NULL));
    free(value);
    return add("failures", -1, 1, NULL);
}

/* ---- the thread ---- */

static void set_failure(const char *text)
{
    pthread_mutex_lock(&state.lock);
    if (!state.failed)
        snprintf(state.failure, sizeof state.failure, "%s", text);
    state.failed = true;
    pthread_mutex_unlock(&state.lock);
    (void)eventfd_write(state.event, 1);
}

static void set_done(void)
{
    pthread_mutex_lock(&state.lock);
    state.done = true;
    pthread_mutex_unlock(&state.lock);
    (void)eventfd_write(state.event, 1);
}

/* Node 0: returns whether all other nodes have ended or are lost. */
static ctrt_status watch_nodes(bool *all)
{
    *all = true;
    for (int i = 1; i < state.nodes; i++) {
        struct beat *beat = &state.beats[i];
        int64_t count, ended;
        char text[80];
        if (beat->ended)
            continue;
        CTRT_TRY(add("beat", i, 0, &count));
        CTRT_TRY(add("ended", i, 0, &ended));
        if (count != beat->count || beat->time == 0)
            *beat = (struct beat) { count, run_now(), false };
        beat->ended = ended > 0;
        if (!beat->ended && run_now() - beat->time > LOST) {
            beat->ended = true;
            snprintf(text, sizeof text, "node %d has not answered for 30 s", i);
            CTRT_TRY(publish_failure(text));
        }
        *all = *all && beat->ended;
    }
    return CTRT_OK;
}

/* Exchanges requests and results with the store once. *done: the launcher may end. */
static ctrt_status run_nodes_exchange(bool *done, bool fails, bool ends)
{
    int64_t failures;
    void *text = NULL;
    if (fails)
        CTRT_TRY(publish_failure(state.own_failure));
    *done = ends;
    if (state.node == 0)
        CTRT_TRY(watch_nodes(done));
    /* After watch_nodes, because a node reports its failure before its end. */
    CTRT_TRY(add("failures", -1, 0, &failures));
    if (failures > 0 && !state.failed) {
        CTRT_TRY(ctrt_store_get(state.store, "ctrt-run/failure", &text, NULL, CTRT_DEFAULT_SECONDS));
        set_failure(text);
        free(text);
    }
    /* Last, because node 0 and its store may end as soon as all nodes have. */
    return add(ends ? "ended" : "beat", state.node, 1, NULL);
}

static void *run_thread(void *unused)
{
    (void)unused;
    for (bool done = false; !done;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PERIOD * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&state.lock);
        if (!state.fails && !state.ends)
            pthread_cond_timedwait(&state.changed, &state.lock, &until);
        const bool fails = state.fails, ends = state.ends;
        state.fails = state.ends = false;
        pthread_mutex_unlock(&state.lock);
        if (run_nodes_exchange(&done, fails, ends) != CTRT_OK) {
            char text[256];
            snprintf(text, sizeof text, "the connection to node 0 is lost: %s", ctrt_error_message());
            set_failure(text);
            done = true;
        }
    }
    set_done();
    return NULL;
}

int nodes_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    state.beats = calloc((size_t)state.nodes, sizeof *state.beats);
    state.event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (state.beats == NULL || state.event < 0) {
        perror("ctrt run: eventfd");
        return -1;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        fprintf(stderr, "ctrt run: a thread cannot be started: %s\n", strerror(error));
        return -1;
    }
    pthread_detach(thread);
    return state.event;
}

/* ---- the main thread ---- */

void nodes_fail(const char *text)
{
    pthread_mutex_lock(&state.lock);
    if (!state.failed) {
        snprintf(state.own_failure, sizeof state.own_failure, "node %d: %s", state.node, text);
        state.fails = true;
    }
    pthread_mutex_unlock(&state.lock);
    pthread_cond_signal(&state.changed);
}

void nodes_end(void)
{
    pthread_mutex_lock(&state.lock);
    state.ends = true;
    pthread_mutex_unlock(&state.lock);
    pthread_cond_signal(&state.changed);
}

bool nodes_failure(char *text, size_t bytes)
{
    eventfd_t ignored;
    (void)eventfd_read(state.event, &ignored);
    pthread_mutex_lock(&state.lock);
    const bool failed = state.failed;
    snprintf(text, bytes, "%s", state.failure);
    pthread_mutex_unlock(&state.lock);
    return failed;
}

bool nodes_done(void)
{
    pthread_mutex_lock(&state.lock);
    const bool done = state.done;
    pthread_mutex_unlock(&state.lock);
    return done;
}
