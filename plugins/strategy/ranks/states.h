/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/states.h: the states of `distributed` and `sharded`: which one may follow which.
 *
 * STATE_SET is the only way in which a state changes. In builds with --enable-assertions (the default with sanitizers)
 * it aborts if the change is not in the table, as core/base/states.h does in the library. */
#ifndef STRATEGY_STATES_H
#define STRATEGY_STATES_H

#include <stdbool.h>
#include <stdint.h>

/* A pass of this rank: a step, or a forward pass and the backward pass of the program.
 *
 *   IDLE       a step or a forward pass begins                             FORWARD
 *   FORWARD    the module has run, or, in a step, the loss is known        TURN (a step without hooks: none)
 *   TURN       another forward pass joins this one (sharded)               FORWARD
 *   TURN       the first gradient arrives                                  BACKWARD
 *   any        the pass is complete or given up                            IDLE */
enum pass { PASS_IDLE, PASS_FORWARD, PASS_TURN, PASS_BACKWARD };

/* The order in which ranks issue collectives: of buckets, or of gathers and reductions.
 *
 *   OF_MODULE  a pass records its order (sharded: begins to)               RECORDED
 *   RECORDED   the next pass begins, or a forward pass joins this one:     AGREED
 *              all ranks take the order of rank 0
 *   any        the ranks are a new group (distributed)                     OF_MODULE */
enum order { ORDER_OF_MODULE, ORDER_RECORDED, ORDER_AGREED };

/* A bucket of `distributed` in a pass.
 *
 *   FILLING    the last of its gradients arrives                           READY
 *   READY      the reductions of those before it have begun: its own does  REDUCING
 *   REDUCING   no work is left: of the reduction, or of any stage of the hook   REDUCED
 *   any        a pass begins                                               FILLING */
enum bucket_state { BUCKET_FILLING, BUCKET_READY, BUCKET_REDUCING, BUCKET_REDUCED };

/* The elements of a parameter's handle, the module's tensor, of `sharded`.
 *
 *   UNDIVIDED  the whole parameter, before the strategy has divided it and after its end
 *   SHARD      this rank's rows, with their gradient: between passes
 *   ABSENT     none: in a pass, while no module runs that has the parameter. The handle has the shape of the whole
 *              parameter and the shard's gradient (so that zero_grad works between forward and backward). Its use is
 *              an error that names the parameter.
 *   WHOLE      the whole parameter, with the gradient of the pass; shard_grad keeps the shard's gradient
 *
 *   UNDIVIDED  all ranks have made their shards                            SHARD
 *   SHARD      a pass begins                                               ABSENT
 *   SHARD      the module is saved                                         WHOLE
 *   ABSENT     the group opens                                             WHOLE
 *   WHOLE      the group closes                                            ABSENT
 *   ABSENT, WHOLE  the pass or the save ends                               SHARD
 *   SHARD      the strategy ends                                           UNDIVIDED */
enum slot_state { SLOT_UNDIVIDED, SLOT_SHARD, SLOT_ABSENT, SLOT_WHOLE };

/* The parameters of a group of `sharded`.
 *
 *   NONE       it is their turn in the sequence, or a module needs them    ISSUED
 *   ISSUED     the gather's results become whole parameters                GATHERED
 *   GATHERED   the module begins a forward or backward pass                OPEN: the slots become WHOLE
 *   OPEN       the module's pass ends                                      GATHERED
 *   NONE, ISSUED, GATHERED   the parameters are freed                      NONE */
enum gather_state { GATHER_NONE, GATHER_ISSUED, GATHER_GATHERED, GATHER_OPEN };

/* The gradients of a group of `sharded`.
 *
 *   NONE       they are complete, and it is the group's turn               ROW: sums over the row of the mesh run
 *   ROW        the wait for these begins                                   COLUMN, or DONE if there is one row
 *   COLUMN     the wait for the sums over the column begins                DONE
 *   any        the sums are used or dropped                                NONE */
enum reduce_state { REDUCE_NONE, REDUCE_ROW, REDUCE_COLUMN, REDUCE_DONE };

enum machine { MACHINE_PASS, MACHINE_ORDER, MACHINE_BUCKET, MACHINE_SLOT, MACHINE_GATHER, MACHINE_REDUCE, MACHINES };
enum { MOST_STATES = 4 };

#define STATE(state) (1u << (state))
/* Of each state a bit mask of the states that may follow. */
static const uint8_t states_next[MACHINES][MOST_STATES] = {
    [MACHINE_PASS] = {
        [PASS_IDLE] = STATE(PASS_IDLE) | STATE(PASS_FORWARD),
        [PASS_FORWARD] = STATE(PASS_TURN) | STATE(PASS_IDLE),
        [PASS_TURN] = STATE(PASS_FORWARD) | STATE(PASS_BACKWARD) | STATE(PASS_IDLE),
        [PASS_BACKWARD] = STATE(PASS_IDLE),
    },
    [MACHINE_ORDER] = {
        [ORDER_OF_MODULE] = STATE(ORDER_OF_MODULE) | STATE(ORDER_RECORDED),
        [ORDER_RECORDED] = STATE(ORDER_AGREED) | STATE(ORDER_OF_MODULE),
        [ORDER_AGREED] = STATE(ORDER_OF_MODULE),
    },
    [MACHINE_BUCKET] = {
        [BUCKET_FILLING] = STATE(BUCKET_FILLING) | STATE(BUCKET_READY),
        [BUCKET_READY] = STATE(BUCKET_FILLING) | STATE(BUCKET_REDUCING),
        [BUCKET_REDUCING] = STATE(BUCKET_FILLING) | STATE(BUCKET_REDUCED),
        [BUCKET_REDUCED] = STATE(BUCKET_FILLING),
    },
    [MACHINE_SLOT] = {
        [SLOT_UNDIVIDED] = STATE(SLOT_SHARD),
        [SLOT_SHARD] = STATE(SLOT_ABSENT) | STATE(SLOT_WHOLE) | STATE(SLOT_UNDIVIDED),
        [SLOT_ABSENT] = STATE(SLOT_SHARD) | STATE(SLOT_WHOLE),
        [SLOT_WHOLE] = STATE(SLOT_SHARD) | STATE(SLOT_ABSENT),
    },
    [MACHINE_GATHER] = {
        [GATHER_NONE] = STATE(GATHER_NONE) | STATE(GATHER_ISSUED),
        [GATHER_ISSUED] = STATE(GATHER_NONE) | STATE(GATHER_GATHERED),
        [GATHER_GATHERED] = STATE(GATHER_NONE) | STATE(GATHER_OPEN),
        [GATHER_OPEN] = STATE(GATHER_GATHERED),
    },
    [MACHINE_REDUCE] = {
        [REDUCE_NONE] = STATE(REDUCE_NONE) | STATE(REDUCE_ROW),
        [REDUCE_ROW] = STATE(REDUCE_NONE) | STATE(REDUCE_COLUMN) | STATE(REDUCE_DONE),
        [REDUCE_COLUMN] = STATE(REDUCE_NONE) | STATE(REDUCE_DONE),
        [REDUCE_DONE] = STATE(REDUCE_NONE),
    },
};

static inline bool state_may_follow(enum machine machine, unsigned from, unsigned to)
{
    return from < MOST_STATES && to < MOST_STATES && (states_next[machine][from] & STATE(to)) != 0;
}

#if defined(CTRT_ASSERTIONS) && !defined(STATE_CHECK)       /* tests define another one, which records the changes */
#include <stdio.h>
#include <stdlib.h>
static inline void state_check(enum machine machine, unsigned from, unsigned to)
{
    if (state_may_follow(machine, from, to))
        return;
    fprintf(stderr, "machine %u of ranks/states.h: state %u may not follow state %u\n", machine, to, from);
    abort();
}
#define STATE_CHECK state_check
#elif !defined(STATE_CHECK)
#define STATE_CHECK(machine, from, to) ((void)0)
#endif
#define STATE_SET(machine, variable, to) (STATE_CHECK(machine, variable, to), (void)((variable) = (to)))

#endif
