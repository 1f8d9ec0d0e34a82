/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/each_float.h: includes BODY for f32 and f64 (body.h). LEAST and MOST: the infinities. */
#define T float
#define V vf
#define LANES VF
#define NAME(name) name##_f32
#define OP(name) vf_##name
#define LEAST (-INFINITY)
#define MOST INFINITY
#include BODY

#define T double
#define V vd
#define LANES VD
#define NAME(name) name##_f64
#define OP(name) vd_##name
#define LEAST (-INFINITY)
#define MOST INFINITY
#include BODY

#undef BODY
