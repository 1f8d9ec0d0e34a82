/* SPDX-License-Identifier: Apache-2.0 */
/* tools/main.c: the command `ctrt`, which calls a subcommand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/base.h"
#include "ctrt/plugin.h"
#include "tool.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    { "info",    tool_info,    "devices, plugins and parameters of this machine" },
    { "plugins", tool_plugins, "every plugin file, whether it was loaded and, if not, why" },
    { "check",   tool_check,   "conformance suite on a device or a plugin" },
    { "ops",     tool_ops,     "what the kernel of an op gets and computes" },
    { "memory",  tool_memory,  "HTML page of a memory snapshot" },
    { "run",     tool_run,     "starts a program as several ranks" },
    { "new-plugin", tool_new_plugin, "a folder with a plugin to start from" },
};

#define COMMANDS (sizeof commands / sizeof commands[0])

static int main_usage(FILE *out, int status)
{
    fprintf(out, "usage: ctrt COMMAND [OPTION...]\n       ctrt --help | --version\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n"
                 "`ctrt COMMAND --help` prints its options; see also ctrt(1) and ctrt(7).\n");
    return status;
}

const char *tool_bytes(char *text, unsigned long long bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(text, 32, unit > 0 ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return main_usage(stderr, 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return main_usage(stdout, 0);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("ctrt %s (plugin ABI %u.%u)\n", ctrt_version(), CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
        return 0;
    }
    /* Hides warnings about refused plugins and folders unless CTRT_LOG is set, because the listings contain the same
     * reasons. `check` has no listing. */
    if (getenv("CTRT_LOG") == NULL && strcmp(argv[1], "check") != 0)
        ctrt_log_set_level(CTRT_LOG_ERROR);
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                perror("ctrt: writing");
                return 1;
            }
            return status;
        }
    fprintf(stderr, "ctrt: there is no command \"%s\"\n\n", argv[1]);
    return main_usage(stderr, 2);
}
