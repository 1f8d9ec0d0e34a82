/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/body_end.h: the last line of a body (body.h): undefines its parameters. */
#undef T
#undef U
#undef V
#undef LANES
#undef NAME
#undef OP
#undef LEAST
#undef MOST
