/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nccl_soft.h: what the files of the software NCCL share: nccl.c has the operations, nccl_comm.c the
 * communicators. Not called nccl.h, because tests include NVIDIA's header of that name where it is installed. */
#ifndef SOFTCUDA_NCCL_H
#define SOFTCUDA_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "library.h"

enum { OK, CUDA_FAILED, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };

enum { RANKS = 8, COMMS = 16, PART = 64 << 20 };        /* most bytes of a rank's data or of a message */
enum { LIVE = 0x4ecc1, DEAD = 0x4ecc0 };
enum { CHILDREN = 64, PATH = 64 };                      /* most calls of ncclCommSplit and ncclCommShrink */

struct signature {
    int kind, type, op, root;
    uint64_t count;
    uint64_t registered;                /* 1 + offset of the sent data in registered memory; 0: not registered */
};

/* The numbers of collectives that the rank had enqueued before on the other communicators of its device. */
struct history { int n; struct { uint64_t id, launched; } of[COMMS]; };

/* What the ranks write, and the memory of new communicators, in one call of ncclCommSplit or ncclCommShrink. */
struct family {
    struct choice { atomic_int set; int color, key; } choices[RANKS];
    struct { atomic_int set; char path[PATH]; } created[RANKS];
};

struct shared {
    int world;
    uint64_t id;
    atomic_int joined, left, closed;
    struct slot {
        atomic_ullong arrived, finished;
        struct signature signature;
        struct history history;
    } slots[RANKS];
    struct channel { atomic_ullong posted, taken; uint64_t bytes; int type; } channels[RANKS][RANKS];
    struct family families[CHILDREN];
};

/* A call of ncclCommSplit or ncclCommShrink (excluded != 0: the ranks, as bits). */
struct division {
    struct ncclComm **out;
    struct family *family;
    int color, key;
    unsigned excluded;
};

struct ncclComm {
    int magic;
    struct ncclComm *next;              /* all communicators of the process, also dead ones */
    struct shared *shared;
    int rank, world;
    void *context;
    bool blocking;
    char path[PATH];
    pthread_t thread;                   /* of init, finalize, split, shrink or revoke */
    bool has_thread;
    pthread_mutex_t running;            /* held by the operation that runs */
    atomic_int state, async;            /* results */
    atomic_int aborted, revoked, pending, users;
    atomic_int graphs;                  /* captured operations whose graphs exist */
    atomic_ullong tickets, turn;        /* operations outside of captures: enqueued; completed */
    uint64_t collectives, operations;   /* that have run */
    uint64_t launched;                  /* collectives that were enqueued */
    unsigned calls;
    int children;                       /* calls of ncclCommSplit and ncclCommShrink so far */
    struct division division;           /* the current one */
};

/* The data of the ranks and of the messages begins after struct shared. */
enum { DATA = 65536 * 4 };
_Static_assert(sizeof(struct shared) <= DATA, "struct shared is too large");

static inline size_t nccl_shared_bytes(int world)
{
    return DATA + (size_t)(world + world * world) * PART;
}

static inline long nccl_option(const char *name)
{
    return library_option("SOFTCUDA_NCCL", name);
}

/* Waits until the condition is true. Returns false if the communicator was aborted before. */
#define WAIT(comm, condition)                                             \
    ({                                                                    \
        while (!(condition) && !atomic_load(&(comm)->aborted))            \
            usleep(30);                                                   \
        (condition) && !atomic_load(&(comm)->aborted);                    \
    })

/* All communicators of the process, and their lock. */
extern pthread_mutex_t nccl_lock;
extern struct ncclComm *nccl_comms;

/* ---- nccl.c ---- */

/* Sets the text of ncclGetLastError and returns `result`. */
int nccl_fail(int result, const char *text);
/* Reports an error of the test, and returns INVALID_USAGE. */
int nccl_misuse(const char *text);
/* Whether the thread is between ncclGroupStart and ncclGroupEnd. */
bool nccl_in_group(void);

/* ---- nccl_comm.c ---- */

/* Begins a call that uses the communicator. If it returns OK, nccl_end_call() or a decrement of comm->users must
 * follow. */
int nccl_begin_call(struct ncclComm *comm);
int nccl_end_call(struct ncclComm *comm, int result);
/* Returns struct signature.registered for data at `address`. */
uint64_t nccl_registered(const struct ncclComm *comm, const void *address);

#endif
