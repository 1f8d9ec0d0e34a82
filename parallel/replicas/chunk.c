/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/chunk.c: the sizes of the pieces into which a dimension is cut. */
#include <math.h>

#include "base/base.h"
#include "parallel/replicas/devices.h"

/* PyTorch's chunk: pieces of ceil(size / n). */
static int cut_ceil(int64_t *sizes, int64_t size, int n)
{
    const int64_t each = size / n + (size % n > 0);
    int count = 0;
    for (; size > 0; size -= sizes[count++])
        sizes[count] = MIN(each, size);
    return count;
}

static int cut_balanced(int64_t *sizes, int64_t size, int n)
{
    const int count = (int)MIN((int64_t)n, size);
    for (int i = 0; i < count; i++)
        sizes[i] = size / count + (i < size % count);
    return count;
}

/* Returns the index of the piece with the largest remainder, which becomes -1; of equal ones the first. */
static int take_largest(double *rests, int n)
{
    int largest = 0;
    for (int i = 1; i < n; i++)
        if (rests[i] > rests[largest])
            largest = i;
    rests[largest] = -1;
    return largest;
}

/* The method of largest remainders, and then 1 from the largest piece for each empty one. Requires size >= n. */
static void share_out(int64_t *sizes, double *rests, int64_t size, int n, const double *weights)
{
    double sum = 0;
    int64_t left = size;
    for (int i = 0; i < n; i++)
        sum += weights[i] / n;                          /* divided, so that the sum does not overflow */
    for (int i = 0; i < n; i++) {
        const double share = (double)size * (weights[i] / n / sum);
        sizes[i] = MIN((int64_t)share, left);
        rests[i] = share - (double)sizes[i];
        left -= sizes[i];
    }
    /* Fewer than n are left, or rounding of very large sizes leaves more: these go to the last piece. */
    for (int i = 0; i < n && left > 0; i++, left--)
        sizes[take_largest(rests, n)]++;
    sizes[n - 1] += left;
    for (int i = 0; i < n; i++)
        if (sizes[i] == 0) {
            int largest = 0;
            for (int k = 1; k < n; k++)
                if (sizes[k] > sizes[largest])
                    largest = k;
            sizes[largest]--;
            sizes[i]++;
        }
}

static ctrt_status cut_weighted(int64_t *sizes, int *count, int64_t size, int n, const double *weights)
{
    for (int i = 0; i < n; i++)
        if (!(weights[i] > 0) || !isfinite(weights[i]))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                             "chunk_sizes: weights[%d] is %g, expected a positive finite number", i, weights[i]);
    *count = (int)MIN((int64_t)n, size);
    if (size <= n) {
        for (int i = 0; i < *count; i++)
            sizes[i] = 1;
        return CTRT_OK;
    }
    HOST_AUTO double *rests = host_calloc((size_t)n * sizeof *rests);
    ALLOC_CHECK(rests, (size_t)n * sizeof *rests, "the sizes of pieces");
    share_out(sizes, rests, size, n, weights);
    return CTRT_OK;
}

ctrt_status ctrt_chunk_sizes(int64_t *sizes, int *count, int64_t size, int n, const ctrt_scatter_options *options)
{
    int pieces = 0;
    NULL_CHECKS("chunk_sizes", sizes, count);
    if (size < 0 || n < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "chunk_sizes: %lld elements into %d pieces", (long long)size, n);
    ctrt_scatter_options own = CTRT_SCATTER_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "chunk_sizes", "options"));
    if (own.rule != CTRT_CHUNK_CEIL && own.rule != CTRT_CHUNK_BALANCED)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "chunk_sizes: %d is not a rule", (int)own.rule);
    HOST_AUTO int64_t *fresh = host_calloc((size_t)n * sizeof *fresh);
    ALLOC_CHECK(fresh, (size_t)n * sizeof *fresh, "the sizes of pieces");
    if (own.weights != NULL)
        CTRT_TRY(cut_weighted(fresh, &pieces, size, n, own.weights));
    else
        pieces = own.rule == CTRT_CHUNK_CEIL ? cut_ceil(fresh, size, n) : cut_balanced(fresh, size, n);
    memcpy(sizes, fresh, (size_t)n * sizeof *sizes);
    *count = MAX(pieces, 1);                            /* size 0 is one empty piece */
    return CTRT_OK;
}
