/* SPDX-License-Identifier: Apache-2.0 */
/* base/states.h: state machines: an enum of states, a table of the states that may follow each of them, and one
 * function that changes the state.
 *
 *   static const unsigned door_next[] = { [DOOR_OPEN] = STATE(DOOR_SHUT), [DOOR_SHUT] = STATE(DOOR_OPEN) };
 *
 * The function calls STATE_CHECK before the change: in builds with --enable-assertions (the default with sanitizers) it
 * aborts if the new state may not follow the old one; in others it does nothing. */
#ifndef CORE_BASE_STATES_H
#define CORE_BASE_STATES_H

#include <stdatomic.h>
#include <stdbool.h>

#define STATE(state) (1u << (state))

static inline bool state_may_follow(const unsigned *next, unsigned from, unsigned to)
{
    return next[from] & STATE(to);
}

#ifdef CTRT_ASSERTIONS
#include <stdio.h>
#include <stdlib.h>
#define STATE_CHECK(next, from, to)                                                                             \
    do {                                                                                                        \
        const unsigned from_ = (from), to_ = (to);                                                              \
        if (!state_may_follow(next, from_, to_)) {                                                              \
            fprintf(stderr, "%s: state %u may not follow state %u (%s)\n", __func__, to_, from_, #next);        \
            abort();                                                                                            \
        }                                                                                                       \
    } while (0)
#else
#define STATE_CHECK(next, from, to) ((void)0)
#endif

/* Changes *state to `to` if it is one of `from` (STATE), and returns the state before. For states that threads change
 * without a lock. */
static inline unsigned state_change(const unsigned *next, atomic_uint *state, unsigned from, unsigned to)
{
    unsigned before = atomic_load(state);
    while (from & STATE(before)) {
        STATE_CHECK(next, before, to);
        if (atomic_compare_exchange_weak(state, &before, to))
            break;
    }
    (void)next;
    return before;
}

#endif
