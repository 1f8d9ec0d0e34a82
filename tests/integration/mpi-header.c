/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/mpi-header.c: compares the engine's declarations of MPI with an installed mpi.h. Compiling it
 * checks functions and constants; running it, the names of Open MPI's objects. Needs no libmpi. */
#include <mpi.h>

#include <stdio.h>
#include <string.h>

#define CALL(name, parameters)                                                                                      \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&MPI_##name), int (*) parameters), "MPI_" #name);
#include "plugins/comm/mpi/abi.def"

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

_Static_assert(MPI_SUCCESS == 0 && MPI_THREAD_MULTIPLE == 3, "constants");
_Static_assert(MPI_MAX_ERROR_STRING <= 512 && MPI_MAX_LIBRARY_VERSION_STRING <= 8192, "sizes");

#ifdef OPEN_MPI
#define OBJECT(member, type, constant, symbol) { #constant, TEXT(constant), "(" symbol ")" },
#define IN_PLACE 1
#define IGNORE   0
#else
#define CONSTANT(member, constant, value) _Static_assert((int)(constant) == (value), #constant);
#include "plugins/comm/mpi/abi_mpich.def"
#define IN_PLACE -1
#define IGNORE   1
#endif

int main(void)
{
    static const struct { const char *name, *definition, *symbol; } objects[] = {
#ifdef OPEN_MPI
#include "plugins/comm/mpi/abi_openmpi.def"
#endif
        { "", "", "" },
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
        if (strstr(objects[i].definition, objects[i].symbol) == NULL) {
            printf("%s is %s, expected %s\n", objects[i].name, objects[i].definition, objects[i].symbol);
            failed = 1;
        }
    if (MPI_IN_PLACE != (void *)IN_PLACE || MPI_STATUS_IGNORE != (MPI_Status *)IGNORE) {
        printf("MPI_IN_PLACE or MPI_STATUS_IGNORE have other values\n");
        failed = 1;
    }
    return failed;
}
