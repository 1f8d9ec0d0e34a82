/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/engine.h: the engine `mpi`: ranks are processes that MPI connects.
 *
 *   engine.c      the engine's table: joining and leaving groups
 *   library.c     finds libmpi, initialises and finalises MPI
 *   abi*          MPI's functions
 *   wait.c        requests: starting them, waiting for them
 *   opening.c     the first step of every collective: exchanges and compares signatures, and the data of small calls
 *   rebuild.c     groups after the loss of a rank
 *   machines.c    groups of the ranks of one machine, which share memory
 *   window.c      openings and messages in that memory
 *   collective.c  the collectives
 *   message.c     send and recv
 *
 * A collective begins with an exchange of blocks between all ranks, the opening. A block has the signature and, if the
 * call is small, the data that the rank contributes. On one machine, blocks are written to shared memory. Otherwise
 * they are messages, which are the same for all kinds of collectives except for their length, which the receiver need
 * not know before. So all ranks detect that they call different collectives, and MPI never gets calls that do not
 * match. Small collectives are complete then, apart from local work.
 *
 * A failed group does not call MPI again. If requests of a failed call are incomplete, MPI may use their memory at any
 * time, so that memory is never freed: the buffers of the group and, by a reference, the tensors of the call. */
#ifndef COMM_MPI_ENGINE_H
#define COMM_MPI_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "../host/host.h"
#include "abi.h"
#include "ctrt/ctrt.h"

enum {
    MPI_EAGER = 4000,                   /* larger messages take several steps in Open MPI on one machine */
    MPI_MESSAGE_INLINE = MPI_EAGER - 64,    /* largest message whose data is sent with its signature */
    MPI_REQUESTS = 64,                  /* incomplete requests of a batch */
    MPI_WINDOW_INLINE = 8192,           /* largest data of one rank in an opening in shared memory */
};
enum { TAG_OPENING = 1, TAG_DATA, TAG_MESSAGE, TAG_MESSAGE_DATA };

struct mpi_block {                      /* followed by `bytes` bytes of data, rounded up to multiples of 16 */
    ctrt_comm_signature signature;
    uint64_t bytes;
    _Atomic uint64_t ready;             /* in shared memory: see window.c */
};
#define MPI_WINDOW_BLOCK (sizeof(struct mpi_block) + MPI_WINDOW_INLINE + 16)

static inline void mpi_block_fill(struct mpi_block *block, const ctrt_comm_call *call, const void *data, size_t bytes)
{
    block->signature = call->signature;
    block->bytes = bytes;
    if (bytes > 0)
        memcpy(block + 1, data, bytes);
}

/* The data that the ranks exchange through the store. */
struct mpi_place {
    char machine[80];                   /* its name */
    int32_t rank, size;                 /* in MPI_COMM_WORLD */
    uint64_t cuda;                      /* its device is of type cuda, and MPI reaches device memory */
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
    int64_t ordered;                    /* CTRT_MPI_ORDERED */
    bool gathers;                       /* openings gather the blocks of all ranks, else hashes of the signatures are
                                         * compared; reductions are in the order of ranks, else as MPI does */
    int64_t hashes[2];
    size_t most;                        /* bytes of one MPI call */
    bool cuda;                          /* MPI transfers data between the devices of all ranks */
    char *opening;                      /* blocks of all ranks */
    size_t opening_bytes;
    size_t inline_bytes;                /* largest data of one rank in an opening */
    const struct mpi_block **blocks;    /* [world], in order of ranks: in `opening` */
    const void **inputs;                /* [world], for reductions */
    struct mpi_block *message[PATHS];   /* for one message and its data */
    char *scratch;                      /* for reductions; grows */
    size_t scratch_bytes;

    int machines;                       /* 0: the ranks share no memory, because each is on a machine of its own or
                                         * because the system does not let them */
    int *machine, *local_number;        /* [world]: machine of each rank, and its number among the ranks of it */
    int local_world;                    /* ranks on this machine */
    void *local;                        /* their group of the engine host; NULL if local_world is 1 */
    ctrt_comm_config local_config;
    char local_name[320];
    struct mpi_comm *leaders;           /* on the first rank of each of several machines: these ranks */
    char **windows;                     /* [world], on one machine: see window.c */
    size_t message_block;               /* bytes of a block for a message; 0: messages go through MPI */
    uint64_t *taken;                    /* [world]: messages that the other ranks have read, as far as known */
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
/* Loads MPI and initialises it unless the program has done so. Waits for the job's other processes, up to `seconds`,
 * but at least 10. After that MPI cannot be used in this process. */
ctrt_status mpi_start(double seconds);
/* Returns the value of CTRT_COMM_TIMEOUT. */
double mpi_timeout(void);
/* What finalising MPI at exit depends on. */
extern struct mpi_exit {
    atomic_bool gave_up;                /* not finalised, because requests are incomplete */
    atomic_bool rebuilt;                /* nor after the loss of a process, for which MPI_Finalize could wait */
    atomic_int busy;                    /* calls of MPI that are running; not finalised meanwhile */
    atomic_int groups;                  /* of this process */
} mpi_exit;
/* Whether MPI reports that it accepts addresses of CUDA devices. After mpi_start. */
bool mpi_cuda_aware(void);
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
/* Starts a function of MPI in the group and waits for its request; returns from the enclosing function on failure. */
#define MPI_WAIT(comm, call, function, ...)                                                                         \
    do {                                                                                                            \
        mpi_handle request_;                                                                                        \
        const int error_ = mpi->i##function(__VA_ARGS__, (comm)->handle, &request_);                                \
        if (error_ != 0)                                                                                            \
            return mpi_failed("MPI_I" #function, error_);                                                           \
        CTRT_TRY(mpi_wait(comm, call, request_));                                                                   \
    } while (0)
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
/* One pause of a wait: reads the clock, calls the config's poll at most every 5 ms, and yields the processor, for a
 * longer time at each call. MPI transfers data only while a process calls it, so waits for data do not sleep in their
 * first second. */
struct mpi_pause {
    int64_t begin, next;
    int64_t spin;
    bool data;
};
ctrt_status mpi_pause(struct mpi_pause *pause, ctrt_status (*poll)(void *state), void *state);
/* Returns the seconds since the first pause. */
double mpi_paused(const struct mpi_pause *pause);

/* ---- opening.c ---- */

/* Whether the opening has the data of the call. */
bool mpi_small(const struct mpi_comm *comm, const ctrt_comm_call *call);
/* Compares the signatures of all ranks and, if the call is small, gathers the data that the ranks contribute. */
ctrt_status mpi_open(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data, size_t bytes);
/* Sets inline_bytes and opening_bytes. */
void mpi_opening_limits(struct mpi_comm *comm);

/* ---- machines.c ---- */

/* Adds a suffix to the machine's name if CTRT_MPI_MACHINES is set. */
ctrt_status mpi_machine_name(char *name, size_t bytes, int rank);
/* Creates the groups of the machines; after comm->handle. */
ctrt_status mpi_machines_join(struct mpi_comm *comm, const struct mpi_place *places);
void mpi_machines_leave(struct mpi_comm *comm);
/* Whether a large call of several machines goes through their leaders; mpi_run_leaders runs it. */
bool mpi_through_leaders(const struct mpi_comm *comm, const ctrt_comm_call *call);
ctrt_status mpi_run_leaders(struct mpi_comm *comm, const ctrt_comm_call *call);

/* ---- window.c: comm->machines is 1 ---- */

/* Sets comm->blocks to the blocks of all ranks. */
ctrt_status mpi_window_exchange(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data, size_t bytes);
/* Sets message_block. */
void mpi_window_limits(struct mpi_comm *comm);
/* Whether the data of a message is in its block. */
bool mpi_window_fits(const struct mpi_comm *comm, const ctrt_comm_call *call);
/* Sends the signature and the first `bytes` bytes. */
ctrt_status mpi_window_send(struct mpi_comm *comm, const ctrt_comm_call *call, size_t bytes);
/* Waits for the message; *out is valid until mpi_window_taken. */
ctrt_status mpi_window_receive(const struct mpi_block **out, struct mpi_comm *comm, const ctrt_comm_call *call);
void mpi_window_taken(struct mpi_comm *comm, const ctrt_comm_call *call);

/* ---- rebuild.c ---- */

/* In an epoch after a loss, before groups are created: lets MPI go on without the lost processes.
 * CTRT_ERR_NOT_SUPPORTED if it cannot. */
ctrt_status mpi_rebuild(const ctrt_comm_config *config);

/* ---- bounded.c ---- */

/* Runs call(data), which may wait for other processes, and waits for its result *error up to `seconds`. Also calls poll
 * of `config`, unless it is NULL. *returned false: call(data) still runs, and the returned status is that of poll, or
 * CTRT_OK after the time limit. MPI is not finalised then. `data`: memory of malloc, or NULL; the caller frees it if
 * *returned. */
ctrt_status mpi_bounded(bool *returned, int *error, int (*call)(void *data), void *data, double seconds,
                        const ctrt_comm_config *config);

/* ---- engine.c ---- */

/* Creates comm->handle, of `world` ranks of MPI_COMM_WORLD. `kind` distinguishes groups with the same name. */
ctrt_status mpi_create_group(struct mpi_comm *comm, const int *ranks, const char *kind);

/* ---- collective.c, message.c ---- */

ctrt_status mpi_collective(struct mpi_comm *comm, const ctrt_comm_call *call);
/* Makes comm->scratch at least `bytes` long. */
ctrt_status mpi_reserve_scratch(struct mpi_comm *comm, size_t bytes);
ctrt_status mpi_broadcast(struct mpi_comm *comm, const ctrt_comm_call *call);
/* Whether the ranks exchange the data of a collective by MPI_Isend and MPI_Irecv only, also a rank's own part. The same
 * on all ranks. */
bool mpi_by_messages(const struct mpi_comm *comm, const ctrt_comm_call *call);
/* A large reduction through MPI. */
ctrt_status mpi_reduce(struct mpi_comm *comm, const ctrt_comm_call *call);
/* Divides `count` elements, f32 or f64. */
void mpi_divide(void *data, uint32_t dtype, size_t count, int by);
/* Whether messages of their own have the data of a send or recv, by MPI_Isend and MPI_Irecv. */
bool mpi_message_large(const struct mpi_comm *comm, const ctrt_comm_call *call);
ctrt_status mpi_message_send(struct mpi_comm *comm, const ctrt_comm_call *call);
ctrt_status mpi_message_receive(struct mpi_comm *comm, const ctrt_comm_call *call);

#endif
