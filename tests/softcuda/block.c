/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/block.c: runs the threads of a block as fibers.
 *
 * A fiber runs one thread after another. If a thread must wait for others, its fiber is suspended and another fiber
 * runs: one whose thread is ready or, if there is none, one that starts the next threads. Therefore a kernel without
 * barriers needs only one fiber, and one call per thread. If no thread can continue and not all threads have reached
 * the barrier, the block has diverged. Then the error is reported and the launch fails. */
#include "runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread struct softcuda_here softcuda_here __attribute__((tls_model("initial-exec")));
struct softcuda_space softcuda_space;

static __thread struct softcuda_runner *mine __attribute__((tls_model("initial-exec")));

/* The index of the element with a number in a block or grid. */
static struct softcuda_index index_of(unsigned number, const unsigned sides[3])
{
    if (number < sides[0])                      /* saves divisions */
        return (struct softcuda_index){ number, 0, 0 };
    return (struct softcuda_index){ number % sides[0], number / sides[0] % sides[1], number / sides[0] / sides[1] };
}

static void set_thread(struct softcuda_runner *r, unsigned thread)
{
    r->current = thread;
    softcuda_here.linear = thread;
    softcuda_here.thread = index_of(thread, r->launch->block);
    softcuda_here.stack = r->running->stack;
    softcuda_here.stack_end = r->running->stack + r->running->bytes;
}

static void go_to(struct softcuda_runner *r, struct fiber *to)
{
    struct fiber *from = r->running;
    if (from == to)
        return;
    r->came_from = from;
    r->running = to;
    fiber_switch(from, to);
}

void runner_ready(struct softcuda_runner *r, unsigned thread)
{
    r->lanes[thread].state = LANE_READY;
    r->queue[(r->queue_at + r->queued++) % SOFTCUDA_BLOCK_THREADS] = (uint16_t)thread;
}

/* Returns the number of the `i`-th thread to start. */
static unsigned in_order(const struct softcuda_runner *r, unsigned i)
{
    return r->launch->order == ORDER_FORWARD ? i : (unsigned)((uint64_t)i * r->step + r->offset) % r->threads;
}

static void run_threads(void);

/* Called when all running threads have reached the barrier. Makes them ready, except the calling thread `except`, which
 * becomes running. */
static void open_barrier(struct softcuda_runner *r, unsigned except)
{
    r->at_barrier = 0;
    softcuda_here.epoch++;
    for (unsigned i = 0; i < r->threads; i++)
        if (r->lanes[i].state == LANE_BARRIER && i != except)
            runner_ready(r, i);
    if (except < r->threads)
        r->lanes[except].state = LANE_RUNNING;
}

struct name { char text[64]; };

static struct name name_of(const struct softcuda_runner *r, unsigned thread)
{
    const struct softcuda_index i = index_of(thread, r->launch->block);
    struct name name;
    snprintf(name.text, sizeof name.text, "thread (%u,%u,%u)", i.x, i.y, i.z);
    return name;
}

/* Begins the text of an outcome. Returns its length. */
static int begin_text(const struct softcuda_runner *r)
{
    const struct softcuda_index *b = &softcuda_here.block;
    return snprintf(r->outcome->text, sizeof r->outcome->text, "kernel %s, block (%u,%u,%u): ",
                    r->launch->kernel->name, b->x, b->y, b->z);
}

static void describe_waiting(const struct softcuda_runner *r, unsigned thread, char *text, size_t bytes)
{
    const struct lane *lane = &r->lanes[thread];
    const struct name name = name_of(r, thread);
    if (lane->state == LANE_BARRIER)
        snprintf(text, bytes, "%s waits at __syncthreads (%s:%d)", name.text, lane->file, lane->line);
    else if (lane->state == LANE_WARP)
        snprintf(text, bytes, "%s waits at %s with mask %08x (%s:%d)", name.text, warp_name(lane->kind),
                 lane->mask, lane->file, lane->line);
    else
        snprintf(text, bytes, "%s has ended", name.text);
}

/* Reports that no thread can continue. */
static void diverged(struct softcuda_runner *r)
{
    char first[200] = "", second[200] = "";
    unsigned one = r->threads;
    for (unsigned i = 0; i < r->threads && one == r->threads; i++)
        if (r->lanes[i].state == LANE_BARRIER || r->lanes[i].state == LANE_WARP)
            one = i;
    if (one < r->threads)
        describe_waiting(r, one, first, sizeof first);
    for (unsigned i = 0; i < r->threads && second[0] == '\0'; i++)
        if (i != one && (r->lanes[i].state != r->lanes[one].state || r->lanes[i].line != r->lanes[one].line
                         || r->lanes[i].mask != r->lanes[one].mask))
            describe_waiting(r, i, second, sizeof second);
    runner_fail(r, SOFTCUDA_FAILED, "the block diverges: %s%s%s", first, second[0] != '\0' ? ", " : "", second);
}

/* Runs another thread or fiber, because the current fiber waits or has no thread to run. Returns when the current fiber
 * is resumed. */
static void reschedule(struct softcuda_runner *r)
{
    for (;;) {
        if (r->queued > 0) {
            const unsigned thread = r->queue[r->queue_at];
            r->queue_at = (r->queue_at + 1) % SOFTCUDA_BLOCK_THREADS;
            r->queued--;
            r->lanes[thread].state = LANE_RUNNING;
            r->current = thread;
            go_to(r, r->lanes[thread].fiber);
            return;
        }
        if (r->begun < r->threads) {
            struct fiber *fiber = r->idle;
            if (fiber != NULL)
                r->idle = fiber->next;
            else
                fiber = r->fibers[r->n_fibers++] = fiber_new(run_threads);
            go_to(r, fiber);
            return;
        }
        if (r->living > 0 && r->at_barrier == r->living) {
            open_barrier(r, r->threads);
            continue;
        }
        if (r->living > 0)
            diverged(r);
        go_to(r, &r->host);
        return;
    }
}

void runner_wait(struct softcuda_runner *r)
{
    const unsigned thread = r->current;
    r->lanes[thread].fiber = r->running;
    reschedule(r);
    set_thread(r, thread);
}

/* The entry of all fibers: runs threads until all have started. */
static void run_threads(void)
{
    struct softcuda_runner *r = mine;
    fiber_begin(r->came_from);
    for (;;) {
        while (r->queued == 0 && r->begun < r->threads) {
            const unsigned thread = in_order(r, r->begun++);
            r->lanes[thread].state = LANE_RUNNING;
            set_thread(r, thread);
            r->launch->kernel->thread(r->launch->arguments);
            r->lanes[thread].state = LANE_ENDED;
            r->living--;
            warp_left(r, thread);
        }
        r->running->next = r->idle;
        r->idle = r->running;
        reschedule(r);
        /* The code that resumed this fiber has removed it from the idle list. */
    }
}

void softcuda_barrier(const char *file, int line)
{
    struct softcuda_runner *r = mine;
    const unsigned thread = r->current;
    struct lane *lane = &r->lanes[thread];
    if (r->at_barrier > 0
        && (r->barrier_line != line || (r->barrier_file != file && strcmp(r->barrier_file, file) != 0)))
        softcuda_fault(SOFTCUDA_FAILED,
                       "the block diverges: this thread is at __syncthreads (%s:%d), others wait at (%s:%d)", file,
                       line, r->barrier_file, r->barrier_line);
    r->barrier_line = line;
    r->barrier_file = file;
    lane->state = LANE_BARRIER;
    lane->line = line;
    lane->file = file;
    lane->mask = 0;
    if (++r->at_barrier == r->living && r->begun == r->threads)
        open_barrier(r, thread);
    else
        runner_wait(r);
}

/* ---- faults ---- */

void runner_fail(struct softcuda_runner *r, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    struct outcome *outcome = r->outcome;
    if (outcome->code == 0) {
        const int used = begin_text(r);
        vsnprintf(outcome->text + used, sizeof outcome->text - (size_t)used, format, arguments);
        outcome->code = code;
    }
    va_end(arguments);
}

void softcuda_fault(int code, const char *format, ...)
{
    struct softcuda_runner *r = mine;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    runner_fail(r, code, "%s: %s", name_of(r, r->current).text, text);
    go_to(r, &r->host);
    abort();                                    /* not reached, because the fibers of the block are dropped */
}

void softcuda_touch(const void *where, size_t bytes, int write)
{
    char text[300];
    if (!runner_allowed(where, bytes, write != 0, softcuda_here.device, text, sizeof text))
        softcuda_fault(SOFTCUDA_ILLEGAL, "%s %zu bytes at %p, %s", write ? "writes" : "reads", bytes, where, text);
}

void softcuda_race(const void *where, unsigned other, int write, int other_wrote)
{
    struct softcuda_runner *r = mine;
    const char *const p = where;
    if (r->outcome->races++ > 0)
        return;
    const bool dynamic = p >= softcuda_here.dynamic && p < softcuda_here.dynamic_end;
    const int used = begin_text(r);
    snprintf(r->outcome->text + used, sizeof r->outcome->text - (size_t)used,
             "%s %s what %s %s in %s shared memory (byte %td), without a barrier between", name_of(r, r->current).text,
             write ? "writes" : "reads", name_of(r, other).text, other_wrote ? "wrote" : "read",
             dynamic ? "dynamic" : "static", p - (dynamic ? softcuda_here.dynamic : softcuda_here.shared));
}

/* ---- launches ---- */

static void drop_fibers(struct softcuda_runner *r)
{
    for (unsigned i = 0; i < r->n_fibers; i++)
        fiber_free(r->fibers[i]);
    r->n_fibers = 0;
    r->idle = NULL;
}

/* Fills shared memory, so that kernels cannot depend on its initial contents. The static variables of all kernels are
 * megabytes; only the parts that the last block wrote are filled again. */
static void fill_shared(const struct softcuda_runner *r)
{
    const size_t dynamic = (size_t)(softcuda_here.dynamic_end - softcuda_here.dynamic);
    const unsigned char *const end = r->written + r->parts;
    for (unsigned char *w = r->written; r->parts > 0 && (w = memchr(w, 1, (size_t)(end - w))) != NULL; *w = 0) {
        char *part = softcuda_here.shared + (w - r->written) * SOFTCUDA_PART;
        const size_t rest = (size_t)(softcuda_here.shared_end - part);
        memset(part, 0xff, rest < SOFTCUDA_PART ? rest : SOFTCUDA_PART);
    }
    if (dynamic > 0)
        memset(softcuda_here.dynamic, 0xff, dynamic);
}

static void run_block(struct softcuda_runner *r, unsigned number)
{
    softcuda_here.block = index_of(number, r->launch->grid);
    r->living = r->threads;
    r->begun = r->queued = r->at_barrier = 0;
    softcuda_here.epoch++;
    warp_begin(r);
    fill_shared(r);
    memset(r->lanes, 0, r->threads * sizeof r->lanes[0]);
    reschedule(r);
    if (r->outcome->code != 0)
        drop_fibers(r);                         /* some are suspended inside kernels */
}

static void set_library(const struct softcuda_library *library)
{
    softcuda_here.shared = softcuda_here.shared_end = NULL;
    softcuda_here.image = softcuda_here.image_end = NULL;
    if (library != NULL) {
        library->shared(&softcuda_here.shared, &softcuda_here.shared_end);
        softcuda_here.image = library->begin;
        softcuda_here.image_end = library->end;
    }
}

static unsigned prime_to(unsigned n)
{
    static const unsigned primes[] = { 769, 389, 193, 97, 53, 29, 13, 7, 5, 3 };
    for (size_t i = 0; i < sizeof primes / sizeof primes[0]; i++)
        if (n % primes[i] != 0)
            return primes[i];
    return 1;
}

void runner_launch(const struct launch *launch, struct outcome *outcome)
{
    struct softcuda_runner *r = mine;
    *outcome = (struct outcome){ 0 };
    if (r == NULL)
        r = mine = allocated(calloc(1, sizeof *r));
    r->launch = launch;
    r->outcome = outcome;
    r->threads = launch->block[0] * launch->block[1] * launch->block[2];
    r->running = &r->host;
    r->step = prime_to(r->threads);
    r->offset = r->threads / 3;
    set_library(launch->library);
    runner_shared(r, launch->shared_bytes);
    softcuda_here.runner = r;
    softcuda_here.device = launch->device;
    softcuda_here.own = softcuda_space.base + softcuda_space.device_bytes * launch->device;
    softcuda_here.block_dim = (struct softcuda_index){ launch->block[0], launch->block[1], launch->block[2] };
    softcuda_here.grid_dim = (struct softcuda_index){ launch->grid[0], launch->grid[1], launch->grid[2] };
    softcuda_here.arguments = launch->arguments;
    softcuda_here.arguments_end = (const char *)launch->arguments + launch->argument_bytes;
    softcuda_here.host = softcuda_here.host_end = NULL;
    const uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    for (uint64_t i = 0; i < blocks && outcome->code == 0; i++)
        run_block(r, (unsigned)(launch->order == ORDER_FORWARD ? i : blocks - 1 - i));
    drop_fibers(r);
}

void runner_end_thread(void)
{
    if (mine != NULL) {
        free(mine->dynamic);
        free(mine->races);
        free(mine->written);
        free(mine);
        mine = NULL;
    }
}
