/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/run.c: executes the blocks of a launch.
 *
 * The lanes of a warp are divided into splits that execute together. At a branch that only some lanes take, a split
 * becomes two, and a join makes them one again where their paths meet (flow.c). A lane that waits for others, at a
 * barrier or at an instruction with a mask of lanes, blocks only its split: as with the independent thread scheduling
 * of GPUs since sm_70, the other splits go on. With the option single, every lane is a split of its own from the
 * beginning and never joins another. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define SLICE 100000                        /* branches after which another split gets its turn */

static void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

void ptx_fail(struct warp *w, const struct insn *i, int error, const char *format, ...)
{
    struct block *b = w->block;
    struct launch *launch = b->launch;
    int none = 0;
    if (atomic_compare_exchange_strong(&launch->error, &none, error)) {
        const uint32_t *x = (const uint32_t *)(const void *)(w->special + CTAID_X * SPECIAL_BYTES);
        const size_t row = SPECIAL_BYTES / sizeof *x;
        int n = snprintf(launch->message, sizeof launch->message, "kernel %s, block (%u, %u, %u), warp %u: ",
                         launch->function->name, x[0], x[row], x[2 * row], w->number);
        va_list list;
        va_start(list, format);
        n += vsnprintf(launch->message + n, sizeof launch->message - (size_t)n, format, list);
        va_end(list);
        if (i != NULL && n < (int)sizeof launch->message)
            snprintf(launch->message + n, sizeof launch->message - (size_t)n, ": \"%.*s\"",
                     (int)strcspn(i->text, ";\n"), i->text);
    }
    longjmp(b->failure, 1);
}

/* ---- splits and joins ---- */

static struct split *new_split(struct warp *w, uint32_t mask, uint32_t pc, struct frame *frame, struct join *join)
{
    unsigned k = 0;
    while (k < w->split_count && w->splits[k].state != FREE)
        k++;
    w->split_count += k == w->split_count;
    w->splits[k] = (struct split){ .mask = mask, .pc = pc, .state = READY, .frame = frame, .join = join };
    return &w->splits[k];
}

static struct join *new_join(struct warp *w, uint32_t expected, uint32_t pc, struct frame *frame, struct join *parent)
{
    struct join *j = w->free_joins;
    if (j != NULL)
        w->free_joins = j->parent;
    else
        j = must(malloc(sizeof *j));
    *j = (struct join){ .expected = expected, .pc = pc, .frame = frame, .parent = parent };
    return j;
}

static void free_join(struct warp *w, struct join *j)
{
    if (j->is_call) {
        free(j->callee->registers);
        free(j->callee);
    }
    j->parent = w->free_joins;
    w->free_joins = j;
}

/* Continues after joins at which all expected lanes have arrived. */
static void complete(struct warp *w, struct join *j)
{
    while (j != NULL && j->arrived == j->expected) {
        struct join *parent = j->parent;
        if (j->expected != 0) {
            new_split(w, j->expected, j->pc, j->frame, parent);
            free_join(w, j);
            return;
        }
        free_join(w, j);
        j = parent;
    }
}

/* Lanes of the split have reached its join. */
static void arrive(struct warp *w, struct split *s, uint32_t lanes)
{
    struct join *j = s->join;
    j->arrived |= lanes;
    s->mask &= ~lanes;
    if (s->mask == 0)
        s->state = FREE;
    complete(w, j);
}

static void leave(struct warp *w, struct split *s, uint32_t lanes)
{
    struct join *j = s->join;
    w->live &= ~lanes;
    s->mask &= ~lanes;
    if (s->mask == 0)
        s->state = FREE;
    for (struct join *k = j; k != NULL; k = k->parent)
        k->expected &= ~lanes;
    complete(w, j);
}

static struct frame *new_frame(struct function *f, unsigned char *registers, struct frame *caller,
                               const struct insn *call, uint32_t local)
{
    struct frame *frame = must(malloc(sizeof *frame));
    *frame = (struct frame){ registers, caller, call, f, local };
    uint64_t *base = (uint64_t *)(void *)(registers + f->local_base);
    for (unsigned l = 0; l < LANES; l++)
        base[l] = local;
    return frame;
}

static void enter(struct warp *w, struct split *s, const struct insn *i)
{
    struct function *callee = i->callee;
    struct frame *caller = s->frame;
    struct join *j = new_join(w, s->mask, s->pc + 1, caller, s->join);
    struct frame *frame = new_frame(callee, must(aligned_alloc(64, callee->frame_bytes)), caller, i,
                                    caller->local + caller->function->local_bytes);
    const unsigned first = callee->result.bytes > 0 ? 1 : 0;
    for (unsigned k = 0; k < callee->parameter_count; k++)
        memcpy(frame->registers + callee->parameters[k].offset, caller->registers + i->op[k + first],
               (size_t)callee->parameters[k].bytes * LANES);
    j->is_call = true;
    j->callee = frame;
    s->frame = frame;
    s->join = j;
    s->pc = 0;
}

static void leave_function(struct warp *w, struct split *s, uint32_t lanes, const struct insn *i)
{
    struct frame *frame = s->frame;
    const struct function *f = frame->function;
    if (s->join == NULL || !s->join->is_call || s->join->callee != frame)
        ptx_fail(w, i, 719, "a return inside a diverged part of a function");
    const uint32_t bytes = f->result.bytes;
    if (bytes > 0)
        for (uint32_t m = lanes; m != 0; m &= m - 1) {
            const size_t l = (size_t)__builtin_ctz(m);
            memcpy(frame->caller->registers + frame->call->op[0] + l * bytes,
                   frame->registers + f->result.offset + l * bytes, bytes);
        }
    arrive(w, s, lanes);
}

/* Lanes `taken` of the split go to the branch's target, the others to the next instruction. */
static void diverge(struct warp *w, struct split *s, const struct insn *i, uint32_t taken)
{
    struct join *j = s->join;
    if (i->join != NO_INSN && !(j != NULL && !j->is_call && j->pc == i->join && j->frame == s->frame))
        j = new_join(w, s->mask, i->join, s->frame, j);
    uint32_t first = s->mask & ~taken, first_pc = i->number + 1, second = taken, second_pc = i->target;
    if (ptx_options.reverse) {
        first = taken, first_pc = i->target;
        second = s->mask & ~taken, second_pc = i->number + 1;
    }
    s->mask = first;
    s->pc = first_pc;
    s->join = j;
    new_split(w, second, second_pc, s->frame, j);
}

/* ---- instructions that several lanes execute together ---- */

static void select_frame(struct warp *w, struct frame *frame)
{
    w->base[IN_FRAME] = frame->registers;
    w->base[IN_CONSTANTS] = frame->function->constants;
}

/* Executes instructions for which all lanes of their masks wait. */
static void release_together(struct warp *w)
{
    for (unsigned k = 0; k < w->split_count && w->waiting != 0; k++) {
        struct split *s = &w->splits[k];
        uint32_t lanes = 0;
        if (s->state != AT_WARP_SYNC)
            continue;
        for (unsigned n = k; n < w->split_count; n++) {
            const struct split *t = &w->splits[n];
            if (t->state == AT_WARP_SYNC && t->pc == s->pc && t->frame == s->frame && t->members == s->members)
                lanes |= t->mask;
        }
        if (lanes != (s->members & w->live))
            continue;
        const struct insn *i = &s->frame->function->code[s->pc];
        const struct split wanted = *s;
        select_frame(w, s->frame);
        i->run(w, i, lanes);
        for (unsigned n = k; n < w->split_count; n++) {
            struct split *t = &w->splits[n];
            if (t->state == AT_WARP_SYNC && t->pc == wanted.pc && t->frame == wanted.frame
                && t->members == wanted.members) {
                t->state = READY;
                t->pc++;
            }
        }
        w->waiting &= ~lanes;
    }
}

/* Returns true if the split has executed the instruction, false if it waits for other lanes. */
static bool together(struct warp *w, struct split *s, const struct insn *i)
{
    uint32_t members = ALL_LANES;
    if (i->target != NO_INSN) {
        const uint32_t *masks = operand(w, i, i->target);
        members = masks[__builtin_ctz(s->mask)];
        uint32_t same = 0;
        for (uint32_t m = s->mask; m != 0; m &= m - 1)
            same |= (uint32_t)(masks[__builtin_ctz(m)] == members) << __builtin_ctz(m);
        if (same != s->mask) {
            new_split(w, s->mask & ~same, s->pc, s->frame, s->join);
            s->mask = same;
        }
        if ((s->mask & ~members) != 0)
            ptx_fail(w, i, 719, "lane %d executes this instruction, but its mask 0x%x lacks the lane",
                     __builtin_ctz(s->mask & ~members), members);
    }
    if (s->mask == (members & w->live)) {
        i->run(w, i, s->mask);
        return true;
    }
    s->state = AT_WARP_SYNC;
    s->members = members;
    w->waiting |= s->mask;
    return false;
}

/* ---- execution of a split ---- */

static inline uint32_t active_lanes(const struct frame *frame, const struct insn *i, uint32_t mask)
{
    if (!i->guarded)
        return mask;
    const uint32_t p = *(const uint32_t *)(const void *)(frame->registers + i->guard);
    return mask & (i->guard_not ? ~p : p);
}

static inline void count(struct warp *w, const struct insn *i, uint32_t active)
{
    w->counts[i->class] += active != 0;
    w->lanes += (unsigned)__builtin_popcount(active);
}

/* Executes the instructions from i to the next one that is not plain or at which paths may meet, and returns that. */
static const struct insn *execute_plain(struct warp *w, const struct frame *frame, const struct insn *i, uint32_t mask)
{
    const bool counts = ptx_options.counts != NULL;
    do {
        const uint32_t active = active_lanes(frame, i, mask);
        if (counts)
            count(w, i, active);
        if (active != 0)
            i->run(w, i, active);
        i++;
    } while (i->kind == PLAIN && !i->leader);
    return i;
}

/* Executes instructions of the split until it waits, ends or has used its time. */
static __attribute__((noinline)) void execute(struct warp *w, struct split *s)
{
    struct frame *frame = s->frame;
    const struct insn *code = frame->function->code;
    unsigned slice = SLICE;
    select_frame(w, frame);
    for (;;) {
        const struct insn *i = &code[s->pc];
        if (i->leader && s->join != NULL && s->join->pc == s->pc && s->join->frame == frame && !s->join->is_call) {
            arrive(w, s, s->mask);
            return;
        }
        if (i->kind == PLAIN) {
            s->pc = (uint32_t)(execute_plain(w, frame, i, s->mask) - code);
            continue;
        }
        const uint32_t active = active_lanes(frame, i, s->mask);
        if (ptx_options.counts != NULL)
            count(w, i, active);
        if (i->kind == BRANCH) {
            if (active == s->mask)
                s->pc = i->target;
            else if (active == 0)
                s->pc++;
            else
                diverge(w, s, i, active);
            if (--slice == 0)
                return;
            continue;
        }
        if (active == 0) {
            s->pc++;
            continue;
        }
        if (i->kind == EXIT || i->kind == RETURN) {
            /* The element of the split may be used again by leave(). */
            const bool all = active == s->mask;
            if (i->kind == EXIT)
                leave(w, s, active);
            else
                leave_function(w, s, active, i);
            if (all)
                return;
        } else if (active != s->mask) {
            /* The other lanes go on with the next instruction. */
            new_split(w, s->mask & ~active, s->pc + 1, s->frame, s->join);
            s->mask = active;
            continue;
        } else if (i->kind == CALL) {
            enter(w, s, i);
            frame = s->frame;
            code = frame->function->code;
            select_frame(w, frame);
            continue;
        } else if (i->kind == BARRIER) {
            s->state = AT_BARRIER;
            s->barrier = i->imm;
            s->barrier_threads = i->count ? ((const uint32_t *)operand(w, i, 0))[__builtin_ctz(active)] : 0;
            return;
        } else if (!together(w, s, i)) {
            if ((s->members & w->live & ~w->waiting) == 0)
                release_together(w);
            return;
        }
        s->pc++;
    }
}

/* Runs the warp until no split is ready. Returns false if there was none. */
static bool run_warp(struct warp *w)
{
    bool any = false;
    for (bool again = true; again;) {
        again = false;
        for (unsigned k = 0; k < w->split_count; k++)
            if (w->splits[k].state == READY) {
                again = any = true;
                execute(w, &w->splits[k]);
            }
        if (!again) {
            /* A lane that has exited may have been the last that others waited for. */
            release_together(w);
            for (unsigned k = 0; k < w->split_count; k++)
                again |= w->splits[k].state == READY;
        }
    }
    return any;
}

/* ---- blocks ---- */

/* Releases the barriers at which all their threads have arrived. Returns true if there is one. */
static bool release_barriers(struct block *b)
{
    bool released = false;
    for (int64_t number = 0; number < 16; number++) {
        uint32_t arrived = 0, expected = 0, live = 0;
        for (unsigned n = 0; n < b->warp_count; n++) {
            struct warp *w = &b->warps[n];
            live += (unsigned)__builtin_popcount(w->live);
            for (unsigned k = 0; k < w->split_count; k++)
                if (w->splits[k].state == AT_BARRIER && w->splits[k].barrier == number) {
                    arrived += (unsigned)__builtin_popcount(w->splits[k].mask);
                    expected = w->splits[k].barrier_threads;
                }
        }
        if (arrived == 0 || arrived != (expected > 0 ? expected : live))
            continue;
        released = true;
        b->epoch += expected == 0;
        for (unsigned n = 0; n < b->warp_count; n++) {
            struct warp *w = &b->warps[n];
            const struct split *first = NULL;
            for (unsigned k = 0; k < w->split_count; k++) {
                struct split *s = &w->splits[k];
                if (s->state != AT_BARRIER || s->barrier != number)
                    continue;
                if (first != NULL && first->pc != s->pc + 1)
                    ptx_fail(w, &s->frame->function->code[s->pc], 719, "lanes of one warp are at different barriers");
                s->state = READY;
                s->pc++;
                first = s;
            }
        }
    }
    return released;
}

static void __attribute__((noreturn)) stuck(struct block *b)
{
    for (unsigned n = 0; n < b->warp_count; n++)
        for (unsigned k = 0; k < b->warps[n].split_count; k++) {
            const struct split *s = &b->warps[n].splits[k];
            if (s->state == AT_BARRIER || s->state == AT_WARP_SYNC)
                ptx_fail(&b->warps[n], &s->frame->function->code[s->pc], 702,
                         "lanes 0x%08x wait for ever: other lanes %s", s->mask,
                         s->state == AT_BARRIER ? "of the block never reach the barrier" : "of the mask never arrive");
        }
    abort();
}

static void set_special(struct warp *w, int which, uint32_t value)
{
    uint32_t *x = (uint32_t *)(void *)(w->special + which * SPECIAL_BYTES);
    for (unsigned l = 0; l < LANES; l++)
        x[l] = value;
}

static void set_special_wide(struct warp *w, int which, uint64_t value)
{
    uint64_t *x = (uint64_t *)(void *)(w->special + which * SPECIAL_BYTES);
    for (unsigned l = 0; l < LANES; l++)
        x[l] = value;
}

/* Sets the special registers that are the same in all blocks of a launch. */
static void prepare_warp(struct warp *w, const struct launch *launch)
{
    const struct function *f = launch->function;
    for (unsigned l = 0; l < LANES; l++) {
        const uint32_t t = w->number * LANES + l, x = launch->threads[0], y = launch->threads[1];
        const uint32_t values[] = { [TID_X] = t % x, [TID_Y] = t / x % y, [TID_Z] = t / x / y, [LANEID] = l,
                                    [LANEMASK_EQ] = 1u << l, [LANEMASK_LT] = (1u << l) - 1,
                                    [LANEMASK_LE] = (2u << l) - 1, [LANEMASK_GT] = ~((2u << l) - 1),
                                    [LANEMASK_GE] = ~((1u << l) - 1) };
        for (unsigned k = 0; k < sizeof values / sizeof values[0]; k++)
            ((uint32_t *)(void *)(w->special + k * SPECIAL_BYTES))[l] = values[k];
    }
    for (int k = 0; k < 3; k++) {
        set_special(w, NTID_X + k, launch->threads[k]);
        set_special(w, NCTAID_X + k, launch->grid[k]);
    }
    set_special(w, WARPID, w->number);
    set_special(w, NWARPID, w->block->warp_count);
    set_special(w, SMID, 0);
    set_special(w, CLOCK, 0);
    set_special_wide(w, PARAM_BASE, (uintptr_t)launch->parameters);
    const uint32_t dynamic = (f->shared_bytes + 15) / 16 * 16;
    set_special_wide(w, DYNAMIC_SHARED, dynamic);
    set_special(w, DYNAMIC_SHARED_32, dynamic);
}

static void prepare(struct block *b, struct launch *launch)
{
    const struct function *f = launch->function;
    const unsigned threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    b->launch = launch;
    b->warp_count = (threads + LANES - 1) / LANES;
    if (b->warp_count > b->warp_room) {
        b->warps = must(realloc(b->warps, b->warp_count * sizeof *b->warps));
        memset(b->warps + b->warp_room, 0, (b->warp_count - b->warp_room) * sizeof *b->warps);
        b->warp_room = b->warp_count;
    }
    b->shared_bytes = (f->shared_bytes + 15) / 16 * 16 + launch->shared_dynamic;
    if (b->shared_bytes > b->shared_room) {
        free(b->shared);
        b->shared_room = (b->shared_bytes + 4095) / 4096 * 4096;
        b->shared = must(aligned_alloc(64, b->shared_room));
        free(b->records);
        b->records = ptx_options.races ? ptx_records_new(b->shared_room) : NULL;
    }
    const size_t special = SPECIAL_COUNT * SPECIAL_BYTES, local = ((size_t)f->local_depth * LANES + 63) / 64 * 64;
    const size_t each = special + f->frame_bytes + local;
    if (each * b->warp_count > b->memory_room) {
        free(b->memory);
        b->memory_room = each * b->warp_count;
        b->memory = must(aligned_alloc(64, (b->memory_room + 63) / 64 * 64));
    }
    for (unsigned n = 0; n < b->warp_count; n++) {
        struct warp *w = &b->warps[n];
        unsigned char *memory = b->memory + each * n;
        w->block = b;
        w->number = n;
        w->special = w->base[IN_SPECIAL] = memory;
        w->local = memory + special + f->frame_bytes;
        w->local_bytes = f->local_depth;
        free(w->root);
        w->root = new_frame(launch->function, memory + special, NULL, NULL, 0);
        prepare_warp(w, launch);
    }
}

/* A copy that arrives after the end of the block writes to shared memory of another one. */
static void check_copies(struct block *b)
{
    for (unsigned n = 0; n < b->warp_count; n++)
        if (b->warps[n].async_count > 0)
            ptx_fail(&b->warps[n], NULL, 719, "a lane exits without waiting for its copies by cp.async");
}

static void run_block(struct block *b, unsigned long long index)
{
    const struct launch *launch = b->launch;
    const unsigned threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
    const unsigned long long x = launch->grid[0], y = launch->grid[1];
    if (b->ranges_epoch != atomic_load(&ptx_ranges_epoch)) {
        b->ranges_epoch = atomic_load(&ptx_ranges_epoch);
        memset(b->ranges, 0, sizeof b->ranges);
    }
    b->first_epoch = ++b->epoch;
    memset(b->shared, 0xff, b->shared_bytes);       /* NaN: what a kernel has not written, it must not read */
    for (unsigned n = 0; n < b->warp_count; n++) {
        struct warp *w = &b->warps[n];
        const unsigned rest = threads - n * LANES;
        const uint32_t mask = rest >= LANES ? ALL_LANES : (1u << rest) - 1;
        set_special(w, CTAID_X, (uint32_t)(index % x));
        set_special(w, CTAID_Y, (uint32_t)(index / x % y));
        set_special(w, CTAID_Z, (uint32_t)(index / x / y));
        w->live = mask;
        w->waiting = 0;
        w->split_count = 0;
        w->async_count = 0;
        for (uint32_t m = mask; m != 0 && ptx_options.single; m &= m - 1)
            new_split(w, m & -m, 0, w->root, NULL);
        if (!ptx_options.single)
            new_split(w, mask, 0, w->root, NULL);
    }
    for (;;) {
        bool progress = false, live = false;
        for (unsigned n = 0; n < b->warp_count; n++)
            progress |= run_warp(&b->warps[ptx_options.reverse ? b->warp_count - 1 - n : n]);
        for (unsigned n = 0; n < b->warp_count; n++)
            live |= b->warps[n].live != 0;
        if (!live) {
            check_copies(b);
            return;
        }
        if (!release_barriers(b) && !progress)
            stuck(b);
    }
}

static void *run_blocks(void *argument)
{
    struct block *b = argument;
    struct launch *launch = b->launch;
    const unsigned long long blocks = (unsigned long long)launch->grid[0] * launch->grid[1] * launch->grid[2];
    volatile unsigned long long index = atomic_fetch_add(&launch->next_block, 1);
    if (index >= blocks)
        return NULL;
    prepare(b, launch);
    if (setjmp(b->failure) == 0)
        for (; index < blocks && atomic_load(&launch->error) == 0; index = atomic_fetch_add(&launch->next_block, 1))
            run_block(b, ptx_options.reverse ? blocks - 1 - index : index);
    for (unsigned n = 0; n < b->warp_count; n++) {
        struct warp *w = &b->warps[n];
        for (unsigned k = 0; k < CLASS_COUNT; k++)
            atomic_fetch_add(&launch->function->counts[k], w->counts[k]);
        atomic_fetch_add(&launch->function->lanes, w->lanes);
        memset(w->counts, 0, sizeof w->counts);
        w->lanes = 0;
    }
    return NULL;
}

int ptx_run(struct launch *launch)
{
    enum { MOST_THREADS = 16 };
    static struct block *blocks[MOST_THREADS];      /* launches run one after another */
    pthread_t threads[MOST_THREADS];
    const long most = ptx_option_for(ptx_options.blocks, launch->function->name);
    if (most > 0 && launch->grid[0] > most)
        launch->grid[0] = (unsigned)most;
    const unsigned long long count = (unsigned long long)launch->grid[0] * launch->grid[1] * launch->grid[2];
    int helpers = 0, wanted = ptx_options.reverse || count < 2 ? 1 : ptx_options.threads;
    wanted = wanted > MOST_THREADS ? MOST_THREADS : wanted;
    atomic_fetch_add(&launch->function->launches, 1);
    for (int k = 0; k < wanted; k++) {
        if (blocks[k] == NULL)
            blocks[k] = must(calloc(1, sizeof *blocks[k]));
        blocks[k]->launch = launch;
        if (k > 0 && pthread_create(&threads[helpers], NULL, run_blocks, blocks[k]) == 0)
            helpers++;
    }
    run_blocks(blocks[0]);
    for (int k = 0; k < helpers; k++)
        pthread_join(threads[k], NULL);
    return atomic_load(&launch->error);
}
