/* SPDX-License-Identifier: Apache-2.0 */
/* index.cl: index_select, gather, their gradients index_add and scatter_add, tril and triu. An index out of range is
 * reported, and its elements are skipped.
 *
 * The gradients add the elements of one column of the result in the order of the indices: without atomic operations,
 * so the result has the same bits at each run. They are parallel over columns only. Simple on purpose. */

/* Whether `index` is a row; reports it if not. */
static bool is_row(i64 index, i64 place, const struct index_args *a, global struct failure *failure)
{
    if (index >= 0 && index < a->rows)
        return true;
    report(failure, FAILURE_INDEX, index, a->rows, place, a->sequence);
    return false;
}

KERNEL index_select(global const T *x, global const i64 *index, global T *out, const struct index_args a,
                    global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outer * a.m);
    for (i64 i = begin; i < end; i++) {
        const i64 row = index[i % a.m];
        if (!is_row(row, i % a.m, &a, failure))
            continue;
        global const T *from = x + (i / a.m * a.rows + row) * a.inner;
        for (i64 j = 0; j < a.inner; j++)
            out[i * a.inner + j] = from[j];
    }
}

KERNEL gather(global const T *x, global const i64 *index, global T *out, const struct index_args a,
              global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outer * a.m * a.inner);
    for (i64 i = begin; i < end; i++)
        if (is_row(index[i], i, &a, failure))
            out[i] = x[(i / (a.m * a.inner) * a.rows + index[i]) * a.inner + i % a.inner];
}

/* Sums of f16 and bf16 are rounded after each addition. */
#define ZERO(out)                                                                                                     \
    for (i64 row = 0; row < a.rows; row++)                                                                            \
        STORE(out, (outer * a.rows + row) * a.inner + column, 0);
#define ADD(out, row, value)                                                                                          \
    {                                                                                                                 \
        const i64 at = (outer * a.rows + (row)) * a.inner + column;                                                   \
        STORE(out, at, LOAD(out, at) + (value));                                                                      \
    }

KERNEL index_add(global const T *dy, global const i64 *index, global T *dx, const struct index_args a,
                 global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outer * a.inner);
    for (i64 i = begin; i < end; i++) {
        const i64 outer = i / a.inner, column = i % a.inner;
        ZERO(dx)
        for (i64 m = 0; m < a.m; m++)
            if (index[m] != a.value && is_row(index[m], m, &a, failure))
                ADD(dx, index[m], LOAD(dy, (outer * a.m + m) * a.inner + column))
    }
}

KERNEL scatter_add(global const T *dy, global const i64 *index, global T *dx, const struct index_args a,
                   global struct failure *failure)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outer * a.inner);
    for (i64 i = begin; i < end; i++) {
        const i64 outer = i / a.inner, column = i % a.inner;
        ZERO(dx)
        for (i64 m = 0; m < a.m; m++) {
            const i64 from = (outer * a.m + m) * a.inner + column;
            if (is_row(index[from], from, &a, failure))
                ADD(dx, index[from], LOAD(dy, from))
        }
    }
}

/* x[outer, rows, inner]: keeps the elements on one side of the diagonal a.value. */
KERNEL triangle(global const T *x, global T *out, const struct index_args a)
{
    const i64 begin = GROUP * a.chunk, end = least(begin + a.chunk, a.outer * a.rows);
    for (i64 i = begin; i < end; i++)
        for (i64 column = 0; column < a.inner; column++) {
            const i64 distance = column - i % a.rows;
            const bool kept = a.upper ? distance >= a.value : distance <= a.value;
            out[i * a.inner + column] = kept ? x[i * a.inner + column] : (T)0;
        }
}
