/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi_openmpi.c: the ABI of Open MPI 4 and 5 (libmpi.so.40). Handles are addresses of objects that libmpi
 * exports. */
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
/* An object: the member of struct constants, its name in libmpi. */
#define ABI_OBJECTS(OBJECT)                                                                                         \
    OBJECT(world, MPI_Comm, "ompi_mpi_comm_world")                                                                  \
    OBJECT(errors_return, MPI_Errhandler, "ompi_mpi_errors_return")                                                 \
    OBJECT(byte, MPI_Datatype, "ompi_mpi_byte")                                                                     \
    OBJECT(types[CTRT_F32], MPI_Datatype, "ompi_mpi_float")                                                         \
    OBJECT(types[CTRT_F64], MPI_Datatype, "ompi_mpi_double")                                                        \
    OBJECT(types[CTRT_I8], MPI_Datatype, "ompi_mpi_int8_t")                                                         \
    OBJECT(types[CTRT_U8], MPI_Datatype, "ompi_mpi_uint8_t")                                                        \
    OBJECT(types[CTRT_I16], MPI_Datatype, "ompi_mpi_int16_t")                                                       \
    OBJECT(types[CTRT_I32], MPI_Datatype, "ompi_mpi_int32_t")                                                       \
    OBJECT(types[CTRT_I64], MPI_Datatype, "ompi_mpi_int64_t")                                                       \
    OBJECT(types[CTRT_BOOL], MPI_Datatype, "ompi_mpi_uint8_t")                                                      \
    OBJECT(sum, MPI_Op, "ompi_mpi_op_sum")                                                                          \
    OBJECT(product, MPI_Op, "ompi_mpi_op_prod")                                                                     \
    OBJECT(min, MPI_Op, "ompi_mpi_op_min")                                                                          \
    OBJECT(max, MPI_Op, "ompi_mpi_op_max")
#include "abi_calls.h"
