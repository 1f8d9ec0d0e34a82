/* SPDX-License-Identifier: Apache-2.0 */
/* The time in which another process gets a tensor of 64 MiB through a queue: from before ctrt_queue_put until
 * ctrt_queue_get has returned. The receiver has released the tensor of the message before (handover.new) or still holds
 * it (handover.known). handover.cpu is the processor time of both processes for one message with its answer.
 * bench/peers/share_torch.py is the same with PyTorch. */
#include <ctrt/ctrt.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "timing.h"

enum { BYTES = 64 << 20, MESSAGES = 501, WARM = 20 };

static double used_by(int who)
{
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
           + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void receive(ctrt_queue *there, ctrt_queue *back, int known)
{
    ctrt_tensor *x = NULL;
    for (int i = 0; i < MESSAGES; i++) {
        double sent;
        int count = 1;
        size_t size = sizeof sent;
        check(ctrt_queue_get(&x, &count, &sent, &size, there, 20));
        const double elapsed = timing_now() - sent;
        if (*(volatile unsigned char *)ctrt_tensor_data(x) != 7)
            exit(1);
        if (!known)
            ctrt_tensor_release(&x);
        check(ctrt_queue_put(back, NULL, 0, &elapsed, sizeof elapsed, 20));
    }
    ctrt_tensor_release(&x);
}

static void measure(const char *name, int known)
{
    static double elapsed[MESSAGES];
    ctrt_queue *there = NULL, *back = NULL;
    ctrt_tensor *x = NULL;
    ctrt_device *cpu = NULL;
    int status;
    check(ctrt_queue_new(&there, 4));
    check(ctrt_queue_new(&back, 4));
    const double before = used_by(RUSAGE_CHILDREN);
    const pid_t child = fork();
    if (child == 0) {
        receive(there, back, known);
        _exit(0);
    }
    check(ctrt_device_get(&cpu, "cpu"));
    check(ctrt_empty(&x, CTRT_SHAPE(BYTES), CTRT_U8, cpu));
    check(ctrt_fill_(x, ctrt_int(7)));
    check(ctrt_tensor_share_(x));
    const double own = used_by(RUSAGE_SELF);
    for (int i = 0; i < MESSAGES; i++) {
        size_t size = sizeof elapsed[i];
        const double now = timing_now();
        check(ctrt_queue_put(there, &x, 1, &now, sizeof now, 20));
        check(ctrt_queue_get(NULL, NULL, &elapsed[i], &size, back, 20));
    }
    const double sender = used_by(RUSAGE_SELF) - own;
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(1);
    qsort(elapsed + WARM, MESSAGES - WARM, sizeof elapsed[0], timing_compare);
    printf("handover.%s %.0f\n", name, elapsed[WARM + (MESSAGES - WARM) / 2] * 1e9);
    if (!known)
        printf("handover.cpu %.0f\n", (sender + used_by(RUSAGE_CHILDREN) - before) / MESSAGES * 1e9);
    fflush(stdout);
    ctrt_tensor_release(&x);
    ctrt_queue_release(&there);
    ctrt_queue_release(&back);
}

int main(void)
{
    measure("new", 0);
    measure("known", 1);
    return 0;
}
