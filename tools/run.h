/* SPDX-License-Identifier: Apache-2.0 */
/* tools/run.h: the parts of `ctrt run`: run.c reads the options and prepares store and environment, run_ranks.c
 * starts and supervises the ranks, run_output.c copies their output, run_nodes.c connects the launchers of several
 * machines. */
#ifndef CTRT_TOOLS_RUN_H
#define CTRT_TOOLS_RUN_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ctrt/comm.h"

struct run_options {
    int ranks;                          /* on this machine; the same on all */
    int nodes, node;
    int prefix;                         /* 1: lines of output begin with the rank */
    int shrink;                         /* 1: if a rank is lost, the others go on (CTRT_ON_FAILURE=shrink) */
    int restarts;                       /* with shrink: number of ranks that are started again and join the others */
    ctrt_store *served;                 /* the store of the ranks */
    double grace;                       /* seconds from the first failure to SIGTERM */
    const char *store;                  /* address; NULL: the default */
    char **program;                     /* ends with NULL */
};

/* Starts the ranks with the launcher's environment, RANK and LOCAL_RANK, and returns the exit status when they have
 * ended. */
int ranks_run(const struct run_options *options);
/* Sets a variable of the launcher's environment, which later ranks get. */
void run_set_number(const char *name, int value);
/* Returns the time of CLOCK_MONOTONIC in ns. */
int64_t run_now(void);

/* ---- output ----
 *
 * Copies pipes of the ranks to the launcher's stdout (to = 1) and stderr (to = 2). Lines are not mixed, and begin with
 * a prefix. A line of more than 1 MiB is interrupted if another rank writes at that time. Never blocks, and uses at
 * most 1 MiB for each pipe. Not thread-safe. */

/* Allocates memory for `pipes` pipes. Returns false if it runs out. */
bool output_begin(size_t pipes);
/* Adds the read end `fd` of a rank's pipe, which it makes non-blocking and closes at its end. At most 15 bytes of
 * `prefix` are used. Returns false if memory runs out. */
bool output_add(int fd, int to, int rank, const char *prefix);
/* Appends a line of the launcher, "ctrt run: " and the text, to stderr. */
__attribute__((format(printf, 1, 2))) void output_say(const char *format, ...);
/* Writes entries for poll() to polls[pipes + 2]; returns their number. */
size_t output_polls(struct pollfd *polls);
/* Reads and writes as far as poll() has found it possible. */
void output_handle(const struct pollfd *polls);
/* Reads what the rank's pipes contain now, without waiting, so that it precedes a later output_say. */
void output_read(int rank);
/* Returns whether a pipe of the rank (-1: of any rank) is open. */
bool output_open(int rank);
/* Closes all pipes. */
void output_close(void);
/* Returns whether all that was read is written. */
bool output_written(void);
/* Returns the error of the first write that failed, 0 if none has. A closed pipe (EPIPE) is no error: the ranks'
 * pipes are closed then, so that the ranks get SIGPIPE. */
int output_error(void);

/* ---- several machines ----
 *
 * The launchers of all nodes use keys "ctrt-run/..." of the store that node 0 serves. A thread reports failures to the
 * other nodes and detects launchers that have ended. */

/* Waits until all nodes have called it, compares `ranks`, the number of ranks per node, and sets *port on all nodes to
 * that of node 0. Returns false after a message on stderr. */
bool nodes_join(ctrt_store *store, int node, int nodes, int ranks, int *port);
/* Starts the thread. Returns a descriptor that is readable after a change of the two results below; -1 after a message
 * on stderr. */
int nodes_start(void);
/* Reports the first failure of this node. */
void nodes_fail(const char *text);
/* Reports that the ranks of this node have ended. */
void nodes_end(void);
/* Copies the failure of another node to text[bytes]; returns whether there is one. */
bool nodes_failure(char *text, size_t bytes);
/* Returns whether this launcher may end: on node 0, whether all other nodes have ended; elsewhere, whether the end of
 * this node has been reported. */
bool nodes_done(void);

#endif
