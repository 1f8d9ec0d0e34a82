/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi_mpich.c: the ABI of MPICH, MVAPICH and Intel MPI (libmpi.so.12; Debian: libmpich.so.12).
 * Handles are integers. */
#include "abi.h"

typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Errhandler;
typedef int MPI_Group;
typedef int MPI_Op;
typedef int MPI_Request;
typedef struct mpich_status MPI_Status;

#define MPI_IN_PLACE      ((void *)-1)
#define MPI_STATUS_IGNORE ((MPI_Status *)1)

#define ABI              mpi_abi_mpich
#define ABI_NAME         "MPICH"
#define ABI_SYMBOL       NULL
#define ABI_SONAMES      { "libmpi.so.12", "libmpich.so.12" }
#define ABI_HANDLES      "abi_mpich.def"
#include "abi_calls.h"
