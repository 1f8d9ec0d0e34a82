/* SPDX-License-Identifier: Apache-2.0 */
/* contract_report.h: how the processes of a check report its result, for contract.c and contract_launch.c. */
#ifndef CTRT_CONTRACT_REPORT_H
#define CTRT_CONTRACT_REPORT_H

#include "contract.h"

enum outcome { NO_OUTCOME, PASSED, FAILED, SKIPPED };
/* What the child reports, in memory that the processes share. */
struct report {
    enum outcome outcome;
    char step[512], text[2048];
    uint32_t kinds;                             /* of the plugin's components: bit ctrt_component_kind */
    bool launched;                              /* it has an engine whose ranks a launcher starts */
    char file[4096];
};
extern struct report *report;

/* Called in the place of the end of the process when a check ends, if it is set. */
extern void (*contract_ends)(void);
/* Forks a child of the parent. Returns its id, 0 in the child. */
int report_fork(void);
/* Ends the child and its children, and removes the files of its checks. */
void report_kill(int child);
/* Stores a failure of a child that has ended without one. `status`: of waitpid. */
void report_ended(struct report *of, int status);
/* Runs the check in this process. */
void report_run(const struct contract_kind *kind, const struct contract_check *check);
/* Whether the check is one of those that the options select. */
bool report_selects(const struct contract_options *options, const struct contract_check *check);
/* Prints the result in *report. */
void report_print(const struct contract_kind *kind, const struct contract_check *check);

/* ---- ranks that a launcher has started, contract_launch.c ---- */

/* Starts the child that runs the checks of an engine with `bootstrap` as one rank. Returns the number of this rank, -1
 * if no launcher has started several, -2 if they did not join (reported on stderr). */
int launch_begin(const struct contract_options *options, const struct contract_kind *kind);
/* On rank 0: waits until all ranks have run the next check, and stores the result in *report. */
void launch_await(const struct contract_options *options, const struct contract_check *check);
/* Waits for the end of the checks. Returns the exit status of the process. `status`: on rank 0, its own. */
int launch_end(int status);

#endif
