/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm_builtin.c: the built-in matrix product: selects the loop for a shape and divides the
 * product among threads. */
#include "gemm.h"

#include "host/cpu.h"
#include "select_variant.h"
#include "host/scratch.h"

static const struct gemm_loops *loops(void)
{
    return CPU_SELECT_VARIANT(gemm_loops);
}

/* Products of at most this many multiplications use one thread, because waking a second thread takes longer than it
 * saves. */
#define SERIAL_WORK 160000
/* If B has at most this many elements, it stays in the L2 cache and is not packed. */
#define UNPACKED_B (64 * 1024)
/* If B's columns are not adjacent, B is transposed as a whole if it has at most this many elements; a larger B is
 * transposed strip by strip while it is packed. */
#define TRANSPOSED_B 10000

#define BODY "gemm_builtin_body.h"
#include "each_float.h"
