/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/product_body.h: a body (body.h) that product_builtin.c includes once per integer type. Integer
 * products wrap in two's complement. */

static ctrt_status NAME(one)(const struct cpu_product *p, int64_t index)
{
    const T *a = (const T *)p->a + index * p->a_batch, *b = (const T *)p->b + index * p->b_batch, *bias = p->bias;
    T *c = (T *)p->c + index * p->m * p->n;
    for (int64_t i = 0; i < p->m; i++, c += p->n) {
        for (int64_t j = 0; j < p->n; j++)
            c[j] = bias ? bias[j] : 0;
        for (int64_t q = 0; q < p->k; q++) {
            const U element = (U)a[i * p->a_row + q * p->a_col];
            const T *row = b + q * p->b_row;
            for (int64_t j = 0; j < p->n; j++)
                c[j] = (T)((U)c[j] + element * (U)row[j * p->b_col]);
        }
    }
    return CTRT_OK;
}

#include "body_end.h"
