/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/onednn_product.c: matrix products by oneDNN. One of a matrix's strides must be 1. Supports batches,
 * bias, f32, bf16 and, if the processor has it, f16. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef HAVE_ONEDNN

#include "onednn.h"

#include "onednn_api.h"
#include "openmp.h"

/* Adjusts the strides of one matrix to oneDNN's rules: one stride must be 1, and the other at least the length of the
 * lines that it separates. The stride of a dimension of size 1 is arbitrary, so it is set to a valid value. Returns
 * false if the strides violate the rules. */
static bool good_strides(int64_t rows, int64_t columns, int64_t *row, int64_t *column)
{
    if (rows == 1 && columns == 1) {
        *row = *column = 1;
        return true;
    }
    if (columns == 1 && *row == 1) {
        *column = rows;
        return true;
    }
    if (rows == 1 && *column == 1) {
        *row = columns;
        return true;
    }
    if (columns == 1)
        *column = 1;
    if (rows == 1)
        *row = 1;
    return (*column == 1 && *row >= columns) || (*row == 1 && *column >= rows);
}

static bool type_of(ctrt_dtype dtype, dnnl_data_type_t *type)
{
    *type = dtype == CTRT_F32    ? dnnl_f32
            : dtype == CTRT_BF16 ? dnnl_bf16
            : dtype == CTRT_F16  ? dnnl_f16
                                 : dnnl_data_type_undef;
    return *type != dnnl_data_type_undef;
}

struct product_operand {
    int64_t dims[3], strides[3];
};

static void product_make(struct onednn_entry *entry, dnnl_data_type_t type, int ndims, const struct product_operand *of,
                         bool biased)
{
    const struct onednn *l = cpu_onednn();
    const int skip = 3 - ndims;         /* a single matrix: omit the batch dimension */
    onednn_desc descs[4];
    bool made[4] = { false };
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    for (int i = 0; i < (biased ? 4 : 3); i++)
        if (!(made[i] = onednn_succeeded(entry, onednn_strided(&descs[i], ndims, of[i].dims + skip, type,
                                                               of[i].strides + skip))))
            goto done;
    if (!onednn_succeeded(entry, l->dnnl_primitive_attr_create(&attr))
        || l->dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) != dnnl_success)
        goto done;
    onednn_desc_ref refs[4] = { ONEDNN_REF(descs[0]), ONEDNN_REF(descs[1]), ONEDNN_REF(descs[2]),
                                biased ? ONEDNN_REF(descs[3]) : NULL };
#if CTRT_ONEDNN_MAJOR == 2
    dnnl_matmul_desc_t desc;
    if (!onednn_succeeded(entry, l->dnnl_matmul_desc_init(&desc, refs[0], refs[1], refs[3], refs[2]))
        || !onednn_succeeded(entry, l->dnnl_primitive_desc_create(&pd, &desc, attr, l->engine, NULL)))
        goto done;
#else
    if (!onednn_succeeded(entry, l->dnnl_matmul_primitive_desc_create(&pd, l->engine, refs[0], refs[1], refs[3],
                                                                      refs[2], attr)))
        goto done;
#endif
    static const int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
    static const bool outputs[] = { false, false, true, false };
    static const dnnl_query_t queries[] = { dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
                                            dnnl_query_weights_md };
    static const int indices[] = { 0, 0, 0, 1 };
    onednn_fill(entry, pd, biased ? 4 : 3, arguments, outputs, refs, queries, indices, NULL);
done:
    if (attr)
        l->dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++)
        onednn_drop(&descs[i], made[i]);
    onednn_settle(entry);
}

bool cpu_onednn_product(const struct cpu_product *p)
{
    dnnl_data_type_t type;
    if (!type_of(p->dtype, &type) || p->k == 0 || cpu_threads_limited() || !cpu_onednn())
        return false;
    const int64_t a_batch = p->a_batch ? p->batch : 1, b_batch = p->b_batch ? p->batch : 1;
    struct product_operand of[4] = {
        { { a_batch, p->m, p->k }, { p->a_batch, p->a_row, p->a_col } },
        { { b_batch, p->k, p->n }, { p->b_batch, p->b_row, p->b_col } },
        { { p->batch, p->m, p->n }, { p->m * p->n, p->n, 1 } },
        { { 1, 1, p->n }, { p->n, p->n, 1 } },
    };
    if (!good_strides(p->m, p->k, &of[0].strides[1], &of[0].strides[2])
        || !good_strides(p->k, p->n, &of[1].strides[1], &of[1].strides[2]))
        return false;
    for (int i = 0; i < 2; i++) {
        const int64_t matrix = of[i].dims[1] * of[i].dims[2];
        if (of[i].dims[0] == 1)
            of[i].strides[0] = matrix;
        else if (of[i].strides[0] < 1)
            return false;
    }
    struct onednn_key key = { {
        1, p->dtype, p->batch, p->m, p->n, p->k, p->bias != NULL, a_batch, b_batch, of[0].strides[0],
        of[0].strides[1], of[0].strides[2], of[1].strides[0], of[1].strides[1], of[1].strides[2],
        cpu_openmp_threads()
    } };
    bool fresh;
    struct onednn_entry *entry = onednn_find(&key, &fresh);
    if (!entry)
        return false;
    if (fresh) {
        /* A primitive is created for a certain number of threads. */
        cpu_openmp_enter();
        product_make(entry, type, p->batch == 1 ? 2 : 3, of, p->bias != NULL);
        cpu_openmp_leave();
    }
    void *const addresses[] = { (void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b, p->c,
                                (void *)(uintptr_t)p->bias };
    return entry->primitive && onednn_run(entry, addresses);
}

#endif
