/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi.h: the functions of MPI, independent of its ABI.
 *
 * MPI's standard fixes the names of its functions and not the types of its handles. In Open MPI handles are pointers to
 * objects that libmpi exports; in MPICH and its relatives (Intel MPI, MVAPICH) they are integers. abi_openmpi.c and
 * abi_mpich.c declare the types and constants of one ABI each and include abi_calls.h, which defines the functions of
 * struct mpi_abi.
 *
 * The functions return MPI's error codes, 0 for success. If MPI was initialised for fewer than concurrent calls
 * (MPI_THREAD_MULTIPLE), they hold a lock. */
#ifndef COMM_MPI_ABI_H
#define COMM_MPI_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../reduce.h"

typedef intptr_t mpi_handle;            /* a MPI_Comm or MPI_Request */

/* `dtype` is a ctrt_dtype, `op` a ctrt_comm_op, counts are of elements; the functions that only copy count bytes. */
struct mpi_abi {
    const char *name;                   /* "Open MPI", "MPICH" */
    const char *symbol;                 /* that only libraries of this ABI export; NULL: none */
    const char *sonames[3];
    /* Finds the symbols of the library. Returns the name of one that is missing, or NULL. */
    const char *(*load)(void *library);

    int (*init)(int *level);            /* MPI_Init_thread(MPI_THREAD_MULTIPLE); level: of MPI_THREAD_* */
    int (*query_thread)(int *level);
    int (*initialized)(int *flag);
    int (*finalized)(int *flag);
    int (*finalize)(void);
    void (*version)(char *text, int *length);       /* text[8192] */
    void (*error_string)(int error, char *text);    /* text[512] */
    mpi_handle (*world)(void);
    int (*return_errors)(mpi_handle comm);          /* MPI_ERRORS_RETURN */
    int (*rank_size)(mpi_handle comm, int *rank, int *size);
    int (*create_group)(mpi_handle *out, int n, const int *world_ranks, int tag);
    bool (*can_shrink)(void);                       /* the library has MPIX_Comm_shrink */
    /* Groups are created from the processes that MPI has not lost, from now on. All of these call it. */
    int (*shrink)(void);
    int (*comm_free)(mpi_handle comm);

    int (*test)(mpi_handle *request, int *done);
    int (*isend)(const void *data, int bytes, int to, int tag, mpi_handle comm, mpi_handle *request);
    int (*irecv)(void *data, int bytes, int from, int tag, mpi_handle comm, mpi_handle *request);
    int (*ibcast)(void *data, int bytes, int root, mpi_handle comm, mpi_handle *request);
    int (*iallgather)(const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request);
    int (*igather)(const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request);
    int (*iscatter)(const void *send, void *receive, int bytes, int root, mpi_handle comm, mpi_handle *request);
    int (*ialltoall)(const void *send, void *receive, int bytes, mpi_handle comm, mpi_handle *request);
    /* send and receive may be equal (MPI_IN_PLACE). */
    int (*iallreduce)(const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                      mpi_handle *request);
    int (*ireduce)(const void *send, void *receive, int count, int dtype, int op, int root, mpi_handle comm,
                   mpi_handle *request);
    int (*ireduce_scatter)(const void *send, void *receive, int count, int dtype, int op, mpi_handle comm,
                           mpi_handle *request);
};

extern const struct mpi_abi mpi_abi_openmpi, mpi_abi_mpich;

enum { MPI_LEVEL_MULTIPLE = 3 };        /* MPI_THREAD_MULTIPLE in all ABIs */

/* The lock for MPI without concurrent calls; library.c. */
void mpi_lock(void);
void mpi_unlock(void);

#endif
