/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi_openmpi.c: the ABI of Open MPI 4 and 5 (libmpi.so.40). Handles are addresses of objects that
 * libmpi exports. */
#include "abi.h"

typedef struct ompi_communicator_t *MPI_Comm;
typedef struct ompi_datatype_t *MPI_Datatype;
typedef struct ompi_errhandler_t *MPI_Errhandler;
typedef struct ompi_group_t *MPI_Group;
typedef struct ompi_op_t *MPI_Op;
typedef struct ompi_request_t *MPI_Request;
typedef struct ompi_status_public_t MPI_Status;

#define MPI_IN_PLACE      ((void *)1)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)

#define ABI              mpi_abi_openmpi
#define ABI_NAME         "Open MPI"
#define ABI_SYMBOL       "ompi_mpi_comm_world"
#define ABI_SONAMES      { "libmpi.so.40" }
#define ABI_HANDLES      "abi_openmpi.def"
#include "abi_calls.h"
