/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/states.c: records the changes of state of the strategy with which it is linked (test-strategy-states.c). */
#include <stdatomic.h>

#include "ctrt/types.h"
#include "plugins/strategy/ranks/states.h"

/* Bit `to` of made[machine][from]: the change was made. */
CTRT_API atomic_uint strategy_states_made[MACHINES][MOST_STATES];

void strategy_state_changes(unsigned machine, unsigned from, unsigned to)
{
    atomic_fetch_or(&strategy_states_made[machine][from], STATE(to));
}
