/* SPDX-License-Identifier: Apache-2.0 */
/* bench/scaler.c: ctrt_grad_scaler_unscale_ of COUNT gradients on the cpu with one thread, beside loops that move the
 * same bytes: `scale`, x *= s in place as in McCalpin's STREAM, and memcpy to another buffer.
 *
 * The cases run in turns, ROUNDS times. Prints per case the best and the median of the processor time in milliseconds,
 * and for the best the gigabytes per second of 2 * 4 * COUNT bytes, one read and one write of each gradient.
 *
 *     bench-scaler [ROUNDS [COUNT]] */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "ctrt/ctrt.h"

enum { MOST = 1000 };

static int64_t count = 10000000;
static float *array, *copy;
static ctrt_grad_scaler *scaler;

/* An optimizer over gradients in `tensors` tensors. */
static ctrt_optimizer *optimizer_of(int64_t tensors)
{
    ctrt_optimizer *optimizer = NULL;
    check(ctrt_sgd_new(&optimizer, NULL, NULL));
    for (int64_t i = 0; i < tensors; i++) {
        ctrt_tensor *p = NULL, *g = NULL;
        check(ctrt_zeros(&p, CTRT_SHAPE(count / tensors), CTRT_F32, NULL));
        check(ctrt_ones(&g, CTRT_SHAPE(count / tensors), CTRT_F32, NULL));
        check(ctrt_optimizer_add(optimizer, &p, 1));
        check(ctrt_tensor_set_grad(p, g));
        ctrt_tensor_release(&p);
        ctrt_tensor_release(&g);
    }
    return optimizer;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double unscale(ctrt_optimizer *optimizer)
{
    const double begin = now();
    check(ctrt_grad_scaler_unscale_(scaler, optimizer));
    const double end = now();
    check(ctrt_grad_scaler_update(scaler, 1));
    return end - begin;
}

static double scale(void)
{
    const double begin = now();
    const volatile float factor = 1;
    const float s = factor;
    for (int64_t i = 0; i < count; i++)
        array[i] *= s;
    return now() - begin;
}

static double move(void)
{
    const double begin = now();
    memcpy(copy, array, (size_t)count * sizeof *array);
    return now() - begin;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "scale", "memcpy", "unscale_1_tensor", "unscale_100_tensors" };
    static double seconds[4][MOST];
    int rounds = argc > 1 ? atoi(argv[1]) : 30;
    rounds = rounds < 1 ? 1 : rounds > MOST ? MOST : rounds;
    count = argc > 2 ? atoll(argv[2]) : count;
    setenv("CTRT_NUM_THREADS", "1", 1);
    ctrt_tensor *loss = NULL;
    ctrt_device *cpu = NULL;
    check(ctrt_device_get(&cpu, "cpu"));
    check(ctrt_set_default_device(cpu));
    ctrt_grad_scaler_options once = CTRT_GRAD_SCALER_OPTIONS;
    once.init_scale = 1;
    check(ctrt_grad_scaler_new(&scaler, &once));
    check(ctrt_ones(&loss, CTRT_SCALAR_SHAPE, CTRT_F32, NULL));
    check(ctrt_grad_scaler_scale(&loss, scaler, loss));
    ctrt_optimizer *one = optimizer_of(1), *many = optimizer_of(100);
    /* Memory of tensors, so that all cases have pages of the same size. */
    ctrt_tensor *a = NULL, *b = NULL;
    check(ctrt_ones(&a, CTRT_SHAPE(count), CTRT_F32, NULL));
    check(ctrt_ones(&b, CTRT_SHAPE(count), CTRT_F32, NULL));
    array = ctrt_tensor_data(a);
    copy = ctrt_tensor_data(b);
    for (int r = -1; r < rounds; r++) {             /* the first round warms up */
        const int at = r < 0 ? 0 : r;
        seconds[0][at] = scale();
        seconds[1][at] = move();
        seconds[2][at] = unscale(one);
        seconds[3][at] = unscale(many);
    }
    for (int i = 0; i < 4; i++) {
        qsort(seconds[i], (size_t)rounds, sizeof(double), compare);
        printf("%-20s %8.3f ms (median %8.3f)  %6.2f GB/s\n", names[i], 1e3 * seconds[i][0],
               1e3 * seconds[i][rounds / 2], 8e-9 * (double)count / seconds[i][0]);
    }
    ctrt_tensor_release(&a);
    ctrt_tensor_release(&b);
    ctrt_optimizer_release(&one);
    ctrt_optimizer_release(&many);
    ctrt_grad_scaler_release(&scaler);
    ctrt_tensor_release(&loss);
    check(ctrt_shutdown());
    return 0;
}
