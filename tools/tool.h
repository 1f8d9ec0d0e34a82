/* SPDX-License-Identifier: Apache-2.0 */
/* tools/tool.h: what the subcommands of `ctrt` share. Each is a function in a file of its own, and a row of
 * the table in main.c. */
#ifndef CTRT_TOOL_H
#define CTRT_TOOL_H

/* A subcommand gets its own name as argv[0]; it returns the exit status: 0 well, 1 something is wrong, 2
 * wrong usage. */
int tool_info(int argc, char **argv);
int tool_plugins(int argc, char **argv);
int tool_check(int argc, char **argv);
int tool_memory(int argc, char **argv);

/* "64.00 MiB" into text[32]; returns text. */
const char *tool_bytes(char *text, unsigned long long bytes);

#endif
