/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/reduce.h: reductions in host memory, for all engines. */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include "ctrt/comm_plugin.h"

/* Combines `count` elements of n inputs, in order, and writes them to `out`, which may be one of the inputs. */
typedef void host_reduction(void *out, const void *const *in, int n, size_t count);
#define HOST_OPS (CTRT_COMM_AVERAGE + 1)
#define HOST_DTYPES (CTRT_BOOL + 1)             /* later dtypes of the library have no reductions */
typedef host_reduction *host_reductions[HOST_DTYPES][HOST_OPS];

static inline bool call_reduces(const ctrt_comm_call *call)
{
    const uint32_t collective = call->signature.collective;
    return collective == CTRT_COLLECTIVE_ALL_REDUCE || collective == CTRT_COLLECTIVE_REDUCE
           || collective == CTRT_COLLECTIVE_REDUCE_SCATTER;
}

/* Chooses the functions for this processor; before the first host_reduction_of. */
void host_reductions_init(void);
/* CTRT_ERR_NOT_SUPPORTED if there is no function for the signature's op and dtype, as those of a later version of the
 * library. */
ctrt_status host_reduction_check(const ctrt_comm_signature *signature);
/* The function for the signature's op and dtype, after host_reduction_check. */
host_reduction *host_reduction_of(const ctrt_comm_signature *signature);

#endif
