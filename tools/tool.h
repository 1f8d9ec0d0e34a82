/* SPDX-License-Identifier: Apache-2.0 */
/* tools/tool.h: declarations shared by the subcommands of `ctrt`. Each subcommand is a function and has a row in the
 * table of main.c. */
#ifndef CTRT_TOOL_H
#define CTRT_TOOL_H

#include <stdbool.h>
#include <stddef.h>

/* argv[0] is the name of the subcommand. Returns the exit status: 0 for success, 1 for a failure, 2 for wrong usage. */
int tool_info(int argc, char **argv);
int tool_plugins(int argc, char **argv);
int tool_check(int argc, char **argv);
int tool_memory(int argc, char **argv);
int tool_ops(int argc, char **argv);
int tool_new_plugin(int argc, char **argv);
int tool_run(int argc, char **argv);            /* or the exit status of a rank */

/* `ctrt ops --coverage`; `usage` is that of `ctrt ops`. */
int tool_coverage(int argc, char **argv, const char *usage);

/* Returns whether an argument names a file and not a device. */
bool tool_is_file(const char *text);
/* Returns the device name of the backend in the plugin `file`, or of the backend to which the plugin adds kernels.
 * Returns NULL after an error message of the command if the file has neither. To be called before anything that
 * searches plugins. */
const char *tool_device_of(const char *command, const char *file);

/* Formats a size, for example "64.00 MiB", into text[32]. Returns `text`. */
const char *tool_bytes(char *text, unsigned long long bytes);
/* Writes the name of the default device ("auto") into `name` without opening it: the value of CTRT_DEVICE if set, else
 * the first device of the list. Returns `name`, or NULL if there is no device. */
const char *tool_default_device(char *name, size_t bytes);

#endif
