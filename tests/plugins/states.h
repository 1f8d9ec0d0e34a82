/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/states.h: included before the files of a strategy, whose changes of state then call states.c. */
#ifndef CTRT_TESTS_STATES_H
#define CTRT_TESTS_STATES_H

#define STATE_CHECK(machine, from, to) strategy_state_changes(machine, from, to)
void strategy_state_changes(unsigned machine, unsigned from, unsigned to);

#endif
