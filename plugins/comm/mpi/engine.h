/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/engine.h: the engine `mpi`: ranks are processes that MPI connects.
 *
 *   engine.c      the engine's table: joining and leaving groups
 *   library.c     finds libmpi, initialises and finalises MPI
 *   abi*          MPI's functions
 *   wait.c        requests: starting them, waiting for them
 *   opening.c     the first step of every collective: exchanges and compares signatures, and the data of small calls
 *   collective.c  the collectives
 *   message.c     send and recv
 *
 * A collective begins with an exchange of blocks between all ranks, the opening. A block has the signature and, if the
 * call is small, the data that the rank contributes. The opening's messages are the same for all kinds of collectives
 * except for their length, which the receiver need not know. So if ranks call different collectives, all of them find
 * the difference in the opening, and MPI never gets calls that do not match. After the opening, a small collective
 * needs only local work.
 *
 * A failed group does not call MPI again. If requests of a failed call are incomplete, MPI may use their memory at any
 * time, so that memory is never freed: the buffers of the group and, by a reference, the tensors of the call. */
#ifndef COMM_MPI_ENGINE_H
#define COMM_MPI_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "abi.h"
#include "ctrt/ctrt.h"

enum {
    MPI_EAGER = 4000,                   /* larger messages take several steps in Open MPI on one machine */
    MPI_MESSAGE_INLINE = MPI_EAGER - 64,    /* largest message whose data is sent with its signature */
    MPI_REQUESTS = 64,                  /* incomplete requests of a batch */
};
enum { TAG_OPENING = 1, TAG_DATA, TAG_MESSAGE, TAG_MESSAGE_DATA };

struct mpi_block {                      /* followed by `bytes` bytes of data, rounded up to multiples of 16 */
    ctrt_comm_signature signature;
    uint64_t bytes;
    uint64_t reserved;
};

/* The collectives, sends and receives of a group can run at the same time, each in one thread. */
enum { PATH_COLLECTIVES, PATH_SENDS, PATH_RECEIVES, PATHS };

struct mpi_comm {
    const ctrt_comm_config *config;
    int rank, world;
    mpi_handle handle;                  /* 0: none, because world is 1 */
    int64_t spin;                       /* nanoseconds to wait without giving up the processor */
    atomic_bool dead;                   /* a call has failed */
    atomic_bool incomplete;             /* it has left requests that are not complete */
    bool gathers;                       /* openings gather the blocks of all ranks, else hashes of the signatures are
                                         * compared; reductions are in the order of ranks, else as MPI does */
    int64_t hashes[2];
    size_t most;                        /* bytes of one MPI call */
    char *opening;                      /* blocks of all ranks */
    size_t opening_bytes;
    size_t inline_bytes;                /* largest data of one rank in an opening */
    const struct mpi_block **blocks;    /* [world], in order of ranks: in `opening` */
    const void **inputs;                /* [world], for reductions */
    struct mpi_block *message[PATHS];   /* for one message and its data */
    char *scratch;                      /* for reductions; grows */
    size_t scratch_bytes;
};

/* Requests that have started and not completed. */
struct mpi_batch {
    struct mpi_comm *comm;
    const ctrt_comm_call *call;
    bool arriving;                      /* another rank may not have arrived; else data is being transferred */
    int count;
    mpi_handle requests[MPI_REQUESTS];
};

/* ---- library.c ---- */

extern const struct mpi_abi *mpi;       /* set by mpi_start */

int32_t mpi_probe(char *reason, size_t bytes);
/* Loads MPI and initialises it unless the program has done so. Waits for the job's other processes without a limit. */
ctrt_status mpi_start(void);
/* MPI must not be finalised at exit, because requests are incomplete. */
void mpi_give_up(void);
/* Counts calls of MPI that are running; MPI is not finalised meanwhile. */
void mpi_busy(int change);
/* Counts the groups of this process. */
void mpi_count_groups(int change);
/* Whether MPI can be called: it is initialised and not finalised. */
bool mpi_usable(void);
void mpi_init_library(const ctrt_host *host);
extern const ctrt_host *mpi_host;

/* ---- wait.c ---- */

/* The error of an MPI function. */
ctrt_status mpi_failed(const char *function, int error);
/* Marks the group as one with incomplete requests and returns `status`. */
ctrt_status mpi_incomplete(struct mpi_comm *comm, ctrt_status status);
/* Waits until the request is complete. */
ctrt_status mpi_wait(struct mpi_comm *comm, const ctrt_comm_call *call, mpi_handle request);
/* Starts messages of any size, in pieces; waits when the batch is full. */
ctrt_status mpi_send(struct mpi_batch *batch, const void *data, size_t bytes, int to, int tag);
ctrt_status mpi_receive(struct mpi_batch *batch, void *data, size_t bytes, int from, int tag);
/* Starts to send to one rank and to receive from another one. Waits only when both sides of a piece have started, so
 * ranks that exchange in a circle do not deadlock. */
struct mpi_side {
    void *data;                         /* the sent data is not changed */
    size_t bytes;
    int rank;
};
ctrt_status mpi_exchange(struct mpi_batch *batch, const struct mpi_side *send, const struct mpi_side *receive, int tag);
/* Waits until all requests of the batch are complete. */
ctrt_status mpi_finish(struct mpi_batch *batch);
/* One pause of a wait: reads the clock, calls the config's poll at most every 5 ms, and gives up the processor, for a
 * longer time at each call. MPI transfers data only while a process calls it, so waits for data do not sleep in their
 * first second. */
struct mpi_pause {
    int64_t begin, next;
    int64_t spin;
    bool data;
};
ctrt_status mpi_pause(struct mpi_pause *pause, ctrt_status (*poll)(void *state), void *state);

/* ---- opening.c ---- */

/* Whether the opening has the data of the call. */
bool mpi_small(const struct mpi_comm *comm, const ctrt_comm_call *call);
/* Compares the signatures of all ranks and, if the call is small, gathers the data that the ranks contribute. */
ctrt_status mpi_open(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data, size_t bytes);
/* Sets inline_bytes and opening_bytes. */
void mpi_opening_limits(struct mpi_comm *comm);

/* ---- collective.c, message.c ---- */

ctrt_status mpi_collective(struct mpi_comm *comm, const ctrt_comm_call *call);
ctrt_status mpi_message_send(struct mpi_comm *comm, const ctrt_comm_call *call);
ctrt_status mpi_message_receive(struct mpi_comm *comm, const ctrt_comm_call *call);

/* ---- reductions: plugins/comm/host/reduce.c ---- */

/* Combines `count` elements of n inputs, in order, and writes them to `out`, which may be one of the inputs. */
typedef void mpi_reduction(void *out, const void *const *in, int n, size_t count);
mpi_reduction *mpi_reduction_of(const ctrt_comm_signature *signature);

#endif
