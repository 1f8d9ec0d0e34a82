/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/matrix.c: matrix operations of warps, with the fragment layouts of the PTX ISA ("Warp Level Matrix
 * Instructions"): ldmatrix .x4 of 8 x 8 matrices of 16-bit elements, and mma m16n8k16 with accumulation in f32.
 *
 * For lane l, let g = l / 4 and t = l % 4. A 32-bit word holds two elements, the first in its lower half:
 *   ldmatrix   lanes 8 i ... 8 i + 7 point to the rows of matrix i; lane l gets of each matrix row g, columns 2t and
 *              2t + 1; transposed: rows 2t and 2t + 1 of column g
 *   a          16 x 16: rows g, g + 8, g, g + 8, columns from 2t, 2t, 2t + 8, 2t + 8
 *   b          16 x 8: rows from 2t and 2t + 8 of column g
 *   c          16 x 8: row g, columns 2t and 2t + 1; row g + 8, the same
 * The order in which a GPU adds is not documented; here it is the order of the rows of b, in f32. */
#include "device_half.h"
#include "runner.h"

static void ldmatrix(struct lane *lanes)
{
    struct softcuda_ldmatrix *p[32];
    for (int l = 0; l < 32; l++)
        p[l] = (struct softcuda_ldmatrix *)(uintptr_t)lanes[l].value;
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const int g = l / 4, t = l % 4;
            const bool transposed = lanes[l].argument != 0;
            const uint32_t low = transposed ? p[8 * i + 2 * t]->row[g] : p[8 * i + g]->row[2 * t];
            const uint32_t high = transposed ? p[8 * i + 2 * t + 1]->row[g] : p[8 * i + g]->row[2 * t + 1];
            p[l]->out[i] = low | high << 16;
        }
}

/* Converts one half of a word from bfloat16 (`bf16`) or binary16. */
static float number(uint32_t word, int half, unsigned bf16)
{
    const uint16_t bits = (uint16_t)(half ? word >> 16 : word);
    return bf16 ? soft_float_of_bfloat(bits) : soft_float_of_half(bits);
}

static void mma(struct lane *lanes)
{
    float a[16][16], b[16][8];
    struct softcuda_mma *p[32];
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        const unsigned bf16 = lanes[l].argument;
        p[l] = (struct softcuda_mma *)(uintptr_t)lanes[l].value;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = number(p[l]->a[i], half, bf16);
            for (int i = 0; i < 2; i++)
                b[2 * t + i * 8 + half][g] = number(p[l]->b[i], half, bf16);
        }
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++)
                p[l]->c[i] += a[l / 4 + i / 2 * 8][k] * b[k][2 * (l % 4) + i % 2];
}

void matrix_perform(struct lane *lanes, int kind)
{
    if (kind == SOFTCUDA_LDMATRIX)
        ldmatrix(lanes);
    else
        mma(lanes);
    for (int l = 0; l < 32; l++)
        lanes[l].result = 0;
}
