/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm_builtin_body.h: a body (body.h) that gemm_builtin.c includes once per type. */

/* Computes the product in the calling thread. */
static bool NAME(serial)(const struct NAME(gemm) *g)
{
    if (g->m <= 0 || g->n <= 0)
        return true;
    if (g->m <= GEMM_FEW && g->n * g->k > 4096 && (g->b_col == 1 || (g->b_row == 1 && g->a_col == 1))) {
        T *pack = cpu_scratch(SCRATCH_GEMM_A, GEMM_PACK_A);
        if (pack)
            NAME(loops()->few)(g, pack);
        return pack != NULL;
    }
    const bool small_b = g->k <= 2 * GEMM_KC && g->n * g->k <= UNPACKED_B;
    if (small_b && g->b_col == 1 && g->b_row < 2048) {
        NAME(loops()->small)(g);
        return true;
    }
    if (small_b && g->n * g->k <= TRANSPOSED_B) {
        T on_stack[1024], *copy = on_stack;
        if (g->n * g->k > 1024)
            copy = cpu_scratch(SCRATCH_GEMM_B, (size_t)(g->n * g->k) * sizeof(T));
        if (!copy)
            return false;
        NAME(loops()->transpose)(copy, g);
        struct NAME(gemm) h = *g;
        h.b = copy, h.b_row = g->n, h.b_col = 1;
        NAME(loops()->small)(&h);
        return true;
    }
    T *pack_a = cpu_scratch(SCRATCH_GEMM_A, GEMM_PACK_A);
    T *pack_b = cpu_scratch(SCRATCH_GEMM_B, GEMM_PACK_B);
    if (!pack_a || !pack_b)
        return false;
    NAME(loops()->large)(g, pack_a, pack_b);
    return true;
}

struct NAME(cut) {
    const struct NAME(gemm) *g;
    int64_t row_step, column_step;      /* size of a task's part of C */
    int64_t column_tasks;               /* number of tasks along the columns */
    bool failed;
};

static void NAME(run_tasks)(void *argument, int64_t begin, int64_t end)
{
    struct NAME(cut) *cut = argument;
    for (int64_t t = begin; t < end; t++) {
        struct NAME(gemm) g = *cut->g;
        const int64_t i = t / cut->column_tasks * cut->row_step, j = t % cut->column_tasks * cut->column_step;
        g.m = g.m - i < cut->row_step ? g.m - i : cut->row_step;
        g.n = g.n - j < cut->column_step ? g.n - j : cut->column_step;
        g.a += i * g.a_row;
        g.b += j * g.b_col;
        g.c += i * g.c_row + j;
        if (g.start)
            g.start += i * g.start_row + j;
        if (!NAME(serial)(&g))
            __atomic_store_n(&cut->failed, true, __ATOMIC_RELAXED);
    }
}

bool NAME(cpu_gemm)(const struct NAME(gemm) *g)
{
    const int threads = g->m * g->n <= SERIAL_WORK && g->m * g->n * g->k <= SERIAL_WORK ? 1 : cpu_thread_count();
    if (threads <= 1)
        return NAME(serial)(g);
    /* Split the longer side at multiples of the tile size, so that the order of summation of an element does not depend
     * on the number of threads. */
    struct NAME(cut) cut = { .g = g, .row_step = g->m, .column_step = g->n, .column_tasks = 1 };
    int64_t tasks;
    if (g->n >= g->m) {
        cut.column_step = ((g->n + threads - 1) / threads + 47) / 48 * 48;
        tasks = cut.column_tasks = (g->n + cut.column_step - 1) / cut.column_step;
    } else {
        cut.row_step = ((g->m + threads - 1) / threads + 7) / 8 * 8;
        tasks = (g->m + cut.row_step - 1) / cut.row_step;
    }
    cpu_parallel_for(tasks, 1, NAME(run_tasks), &cut);
    return !cut.failed;
}

#include "body_end.h"
