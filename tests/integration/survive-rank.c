/* SPDX-License-Identifier: Apache-2.0 */
/* survive-rank.c STEPS [FAULT...]: one rank of the jobs that survive.sh starts. It trains a small network under the
 * strategy `distributed`, on batches that depend on the step and the rank. A FAULT has the form
 * RANK:WHAT:STEP:MICROSECONDS and happens in the process that was RANK at first, that time after the beginning of
 * STEP:
 *
 *   kill     SIGKILL ends the process
 *   stop     SIGSTOP stops the process; SIGCONT follows 4 s later
 *   return   the process releases everything at the end of the step, and ends with status 3
 *
 * At the end a rank prints:
 *
 *   result: rank R of S, N steps, N optimizer steps, loss L, hash H, descriptors B A, mappings B A, threads B A
 *
 * H is a hash of the parameters and the optimizer's state (buffers of batch norm differ between ranks). B is the
 * number of descriptors, mappings or threads after the third step, and A the number at the end. PAUSE_US (environment):
 * microseconds by which each step is longer. HIDDEN: width of the network (12). */
#include <ctrt/ctrt.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../options.h"
#include "../unit/folder.h"

enum { FEATURES = 6, HIDDEN = 12, ROWS = 8, TEST_ROWS = 256 };

static volatile sig_atomic_t must_return;

/* ---- data ---- */

static uint64_t random_state;

static float random_number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) / (float)(1 << 23) - 1;
}

/* `rows` rows of batch number `number`. The targets are a function of the inputs with noise. */
static ctrt_status batch_new(ctrt_tensor **batch, uint64_t number, int rows, float noise, ctrt_device *cpu)
{
    float x[TEST_ROWS * FEATURES], y[TEST_ROWS];
    random_state = number * 2862933555777941757u + 3037000493u;
    for (int i = 0; i < 8; i++)
        (void)random_number();
    for (int row = 0; row < rows; row++) {
        float *at = &x[row * FEATURES];
        for (int i = 0; i < FEATURES; i++)
            at[i] = random_number();
        y[row] = at[0] * at[1] - at[2] + 0.5f * at[3] * at[3] + noise * random_number();
    }
    CTRT_TRY(ctrt_from_data(&batch[0], x, rows * FEATURES, CTRT_SHAPE(rows, FEATURES), CTRT_F32, cpu));
    return ctrt_from_data(&batch[1], y, rows, CTRT_SHAPE(rows, 1), CTRT_F32, cpu);
}

static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    (void)count, (void)user;
    return ctrt_mse_loss(loss, output, inputs[1], CTRT_REDUCE_MEAN);
}

/* ---- faults ---- */

static void on_alarm(int signal)
{
    (void)signal;
    raise(SIGKILL);
}

static void on_user(int signal)
{
    (void)signal;
    must_return = 1;
}

/* Starts a process that sends the signals to its parent. The parent does not wait for this process. */
static void signal_later(int first, int64_t microseconds, int second)
{
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            usleep((useconds_t)microseconds);
            if (getpgid(parent) > 0)
                kill(parent, first);
            if (second != 0)
                sleep(4);
            if (second != 0 && getpgid(parent) > 0)
                kill(parent, second);
        }
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

struct fault {
    char what[16];
    int64_t step;
    long time;                              /* microseconds */
};

/* Reads the fault of this rank; without one, *fault has a negative step. */
static void find_fault(struct fault *fault, char **texts, int rank)
{
    *fault = (struct fault){ .step = -1 };
    for (; *texts != NULL; texts++) {
        struct fault read = { .step = -1 };
        long step;
        int number;
        if (sscanf(*texts, "%d:%15[^:]:%ld:%ld", &number, read.what, &step, &read.time) != 4 || number != rank)
            continue;
        read.step = step;
        *fault = read;
    }
}

static void start_fault(const struct fault *fault)
{
    const long time = fault->time > 0 ? fault->time : 1;
    const struct itimerval timer = { .it_value = { .tv_sec = time / 1000000, .tv_usec = time % 1000000 } };
    const bool stops = strcmp(fault->what, "stop") == 0;
    signal(SIGALRM, on_alarm);
    signal(SIGUSR1, on_user);
    if (strcmp(fault->what, "kill") == 0)
        setitimer(ITIMER_REAL, &timer, NULL);
    else
        signal_later(stops ? SIGSTOP : SIGUSR1, time, stops ? SIGCONT : 0);
}

/* ---- what a process has ---- */

struct resources {
    int descriptors, mappings, threads;
};

static struct resources resources_now(void)
{
    return (struct resources){ (int)folder_files("/proc/self/fd"), folder_lines("/proc/self/maps", "memfd:"),
                               (int)folder_files("/proc/self/task") };
}

/* ---- training ---- */

static ctrt_status network_new(ctrt_module **out, ctrt_device *cpu)
{
    const char *width = getenv("HIDDEN");
    const int64_t hidden = width != NULL ? atoi(width) : HIDDEN;
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, hidden, true, cpu), CTRT_NEW(tanh),
                                                 CTRT_NEW(batch_norm1d, hidden, NULL, cpu),
                                                 CTRT_NEW(linear, hidden, 1, true, cpu)));
}

static ctrt_status step_once(ctrt_module *net, ctrt_optimizer *optimizer, int64_t step, ctrt_device *cpu)
{
    ctrt_tensor *batch[2] = { NULL, NULL }, *loss = NULL;
    const int rank = ctrt_comm_rank(ctrt_parallel_comm(net));
    ctrt_status status = batch_new(batch, (uint64_t)step * 64 + (uint64_t)rank + 1, ROWS, 0.2f, cpu);
    if (status == CTRT_OK)
        status = ctrt_optimizer_zero_grad(optimizer, true);
    if (status == CTRT_OK)
        status = ctrt_parallel_step(&loss, net, batch, 2, loss_function, NULL);
    if (status == CTRT_OK)
        status = ctrt_optimizer_step(optimizer);
    ctrt_tensor_release(&batch[0]);
    ctrt_tensor_release(&batch[1]);
    ctrt_tensor_release(&loss);
    return status;
}

/* The loss on rows that no training step uses. */
static ctrt_status evaluate(double *out, ctrt_module *module, ctrt_device *cpu)
{
    ctrt_tensor *batch[2] = { NULL, NULL };
    CTRT_AUTO(tensor) y = NULL, loss = NULL;
    ctrt_status status;
    CTRT_TRY(batch_new(batch, 0, TEST_ROWS, 0, cpu));
    ctrt_module_train(module, false);
    ctrt_no_grad status = ctrt_forward(&y, module, batch[0]);
    if (status == CTRT_OK)
        status = ctrt_mse_loss(&loss, y, batch[1], CTRT_REDUCE_MEAN);
    ctrt_tensor_release(&batch[0]);
    ctrt_tensor_release(&batch[1]);
    return status == CTRT_OK ? ctrt_item(out, loss) : status;
}

/* FNV-1a over the parameters and the optimizer's state. */
static ctrt_status hash_state(uint64_t *hash, ctrt_module *net, ctrt_optimizer *optimizer)
{
    *hash = 14695981039346656037u;
    for (size_t i = 0; i < ctrt_optimizer_parameter_count(optimizer); i++) {
        float values[FEATURES * HIDDEN];
        ctrt_tensor *tensors[1 + CTRT_OPTIMIZER_STATES];
        const char *name;
        int64_t steps;
        CTRT_TRY(ctrt_module_parameter(&name, &tensors[0], net, i));
        CTRT_TRY(ctrt_optimizer_get_state(&steps, &tensors[1], optimizer, i));
        for (int k = 0; k <= CTRT_OPTIMIZER_STATES; k++) {
            if (tensors[k] == NULL)
                continue;
            const size_t bytes = (size_t)ctrt_tensor_numel(tensors[k]) * sizeof *values;
            CTRT_TRY(ctrt_to_host(values, bytes, tensors[k], CTRT_F32));
            for (size_t b = 0; b < bytes; b++)
                *hash = (*hash ^ ((const unsigned char *)values)[b]) * 1099511628211u;
        }
    }
    return CTRT_OK;
}

static ctrt_status report(ctrt_module *net, ctrt_module *module, ctrt_optimizer *optimizer,
                          const struct resources *before, ctrt_device *cpu)
{
    ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
    ctrt_comm *comm = ctrt_parallel_comm(net);
    uint64_t hash = 0;
    double loss = 0;
    int64_t steps = 0;
    CTRT_TRY(ctrt_optimizer_get_state(&steps, states, optimizer, 0));
    CTRT_TRY(hash_state(&hash, net, optimizer));
    CTRT_TRY(evaluate(&loss, module, cpu));
    const struct resources now = resources_now();
    printf("result: rank %d of %d, %lld steps, %lld optimizer steps, loss %.6f, hash %016llx, descriptors %d %d, "
           "mappings %d %d, threads %d %d\n", ctrt_comm_rank(comm), ctrt_comm_size(comm),
           (long long)ctrt_parallel_steps(net), (long long)steps, loss, (unsigned long long)hash,
           before->descriptors, now.descriptors, before->mappings, now.mappings, before->threads, now.threads);
    return CTRT_OK;
}

static ctrt_status train(int64_t steps, char **faults)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    struct resources before = { 0, 0, 0 };
    struct fault fault = { .step = -1 };
    ctrt_device *cpu = NULL;
    int rank = 0;
    const char *pause = getenv("PAUSE_US"), *joins = getenv("CTRT_JOIN");
    ctrt_manual_seed(1);
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(network_new(&module, cpu));
    CTRT_TRY(ctrt_parallel_new(&net, module, "distributed", NULL, 0));
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, ADAMW(.lr = 0.003, .weight_decay = 0.01)));
    CTRT_TRY(ctrt_comm_environment(&rank, NULL, NULL, NULL));
    if (joins == NULL)
        find_fault(&fault, faults, rank);
    for (int64_t step = ctrt_parallel_steps(net), i = 0; step < steps && !must_return; step++, i++) {
        if (step == fault.step)
            start_fault(&fault);
        CTRT_TRY(step_once(net, optimizer, step, cpu));
        if (i == 2)
            before = resources_now();
        if (pause != NULL)
            usleep((useconds_t)atoi(pause));
    }
    if (must_return)
        return ctrt_fail(CTRT_ERR_STATE, "this rank returns");
    CTRT_TRY(ctrt_parallel_barrier(net));
    return report(net, module, optimizer, &before, cpu);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const ctrt_status status = train(atoll(argv[1]), argv + 2);
    if (status != CTRT_OK)
        printf("error: %s\n", ctrt_error_message());
    return status == CTRT_OK ? 0 : must_return ? 3 : 1;
}
