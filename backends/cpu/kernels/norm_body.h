/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/norm_body.h: the part that layer_norm_body.h and batch_norm_body.h include: sums of adjacent
 * elements.
 *
 * Sums are computed in SIMD lanes of T over pieces of PIECE elements, and the pieces are added in f64, so that a mean
 * over millions of f32 elements is as accurate as one over thousands. */

#define PIECE 4096

static inline double NAME(sum_of)(const T *x, int64_t n)
{
    double total = 0;
    while (n > 0) {
        const int64_t piece = n < PIECE ? n : PIECE;
        V s0 = OP(set)(0), s1 = s0;
        int64_t i = 0;
        for (; i + 2 * LANES <= piece; i += 2 * LANES) {
            s0 += OP(load)(x + i);
            s1 += OP(load)(x + i + LANES);
        }
        for (; i < piece; i += LANES)
            s0 += OP(load_n)(x + i, piece - i < LANES ? (int)(piece - i) : LANES);
        total += (double)OP(sum)(s0 + s1);
        x += piece;
        n -= piece;
    }
    return total;
}

/* Returns the sum of (x - mean)^2. */
static inline double NAME(squares_of)(const T *x, T mean, int64_t n)
{
    double total = 0;
    while (n > 0) {
        const int64_t piece = n < PIECE ? n : PIECE;
        V s0 = OP(set)(0), s1 = s0;
        int64_t i = 0;
        for (; i + 2 * LANES <= piece; i += 2 * LANES) {
            const V d0 = OP(load)(x + i) - mean, d1 = OP(load)(x + i + LANES) - mean;
            s0 = OP(fma)(d0, d0, s0);
            s1 = OP(fma)(d1, d1, s1);
        }
        T rest = OP(sum)(s0 + s1);
        for (; i < piece; i++)
            rest += (x[i] - mean) * (x[i] - mean);
        total += (double)rest;
        x += piece;
        n -= piece;
    }
    return total;
}

/* Computes the sums of g and of g * (x - mean), where g is dy * w, or dy if w is NULL. */
static inline void NAME(gradient_sums)(double *plain, double *with_x, const T *dy, const T *x, const T *w, T mean,
                                       int64_t n)
{
    *plain = *with_x = 0;
    for (int64_t start = 0; start < n; start += PIECE) {
        const int64_t end = n - start < PIECE ? n : start + PIECE;
        V s = OP(set)(0), sx = s;
        int64_t i = start;
        for (; i + LANES <= end; i += LANES) {
            const V g = w ? OP(load)(dy + i) * OP(load)(w + i) : OP(load)(dy + i);
            s += g;
            sx = OP(fma)(g, OP(load)(x + i) - mean, sx);
        }
        T rest = OP(sum)(s), rest_x = OP(sum)(sx);
        for (; i < end; i++) {
            const T g = w ? dy[i] * w[i] : dy[i];
            rest += g;
            rest_x += g * (x[i] - mean);
        }
        *plain += (double)rest;
        *with_x += (double)rest_x;
    }
}

#undef PIECE
