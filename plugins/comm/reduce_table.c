/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/reduce_table.c: chooses between the instruction sets for which reduce.c is compiled. */
#include "reduce.h"

extern const host_reductions host_reductions_baseline;
#if defined(CTRT_CPU_AVX2)
extern const host_reductions host_reductions_avx2;
#endif

static const host_reductions *reductions = &host_reductions_baseline;

void host_reductions_init(void)
{
#if defined(CTRT_CPU_AVX2)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")
        && __builtin_cpu_supports("bmi2"))
        reductions = &host_reductions_avx2;
#endif
}

ctrt_status host_reduction_check(const ctrt_comm_signature *signature)
{
    if (signature->dtype < HOST_DTYPES && signature->op < HOST_OPS && host_reduction_of(signature) != NULL)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the engine has no reduction %u of %s (dtype %u)", signature->op,
                     ctrt_dtype_name((ctrt_dtype)signature->dtype), signature->dtype);
}

host_reduction *host_reduction_of(const ctrt_comm_signature *signature)
{
    return (*reductions)[signature->dtype][signature->op];
}
