/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/abi_mpich.c: the ABI of MPICH, MVAPICH and Intel MPI (libmpi.so.12; Debian: libmpich.so.12). Handles are
 * integers. */
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
/* A constant: the member of struct constants, its value. */
#define ABI_CONSTANTS(CONSTANT)                                                                                     \
    CONSTANT(world, 0x44000000)                                                                                     \
    CONSTANT(errors_return, 0x54000001)                                                                             \
    CONSTANT(byte, 0x4c00010d)                                                                                      \
    CONSTANT(types[CTRT_F32], 0x4c00040a)                                                                           \
    CONSTANT(types[CTRT_F64], 0x4c00080b)                                                                           \
    CONSTANT(types[CTRT_I8], 0x4c000137)                                                                            \
    CONSTANT(types[CTRT_U8], 0x4c00013b)                                                                            \
    CONSTANT(types[CTRT_I16], 0x4c000238)                                                                           \
    CONSTANT(types[CTRT_I32], 0x4c000439)                                                                           \
    CONSTANT(types[CTRT_I64], 0x4c00083a)                                                                           \
    CONSTANT(types[CTRT_BOOL], 0x4c00013b)                                                                          \
    CONSTANT(sum, 0x58000003)                                                                                       \
    CONSTANT(product, 0x58000004)                                                                                   \
    CONSTANT(min, 0x58000002)                                                                                       \
    CONSTANT(max, 0x58000001)
#include "abi_calls.h"
