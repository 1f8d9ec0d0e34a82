/* SPDX-License-Identifier: Apache-2.0 */
/* tools/check.c: `ctrt check`, which runs the conformance suite on a device or on the backend in a plugin file, or with
 * --contract the checks of the plugin ABI on a plugin file. */
#define _GNU_SOURCE
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "contract.h"
#include "guard.h"
#include "ctrt/device.h"
#include "tool.h"

static const char usage[] =
    "usage: ctrt check [OPTION...] [DEVICE | PLUGIN.so]\n"
    "       ctrt check --contract [--op PATTERNS] [--options TEXT] [--device TYPE] [--timeout SECONDS] [--junit FILE]\n"
    "                             [--list] DEVICE | ENGINE | PLUGIN.so\n"
    "Runs every op against a reference, for every dtype and layout, on the device (default: cpu) or on the backend of "
    "the\n"
    "plugin file. Prints TAP. Exit status 0: no check failed; 1: a check failed, or none ran a kernel of the device;\n"
    "2: the suite could not start.\n"
    "  --device NAME      the device\n"
    "  --op PATTERN       only ops whose name matches the shell pattern\n"
    "  --tags LIST        only checks with one of these words: a family (elementwise, reduce, matmul, conv, softmax, "
    "norm,\n"
    "                     index, view, copy, random, optim), a dtype, or forward, scalar, inplace, gradient, "
    "gradient2\n"
    "  --skip-tags LIST   no checks with one of these words\n"
    "  --expect FILE      known failures: lines 'unsupported PATTERN: REASON' or 'fails PATTERN: REASON'\n"
    "  --seed N           seed of the random inputs (1)\n"
    "  --list             prints the names of the checks and runs none\n"
    "  --fail-fast        runs no more checks after one that failed\n"
    "  --timeout SECONDS  the time limit of a check (120)\n"
    "  --junit FILE       also writes the results to FILE as JUnit XML; known failures are skipped there\n"
    "Each call of a kernel is also compared with the op's contract, which `ctrt ops NAME` prints. Ops for which the\n"
    "backend has no kernel run on the cpu and are reported as skipped; CTRT_FALLBACK=error makes them fail. Of a\n"
    "plugin that adds kernels to a backend, each kernel of the checked ops has to run, or with --tags one of them.\n"
    "  --guard            runs kernels on operands that end, then start, where memory is not mapped. A kernel that\n"
    "                     reads or writes beyond its operands crashes in a child process and has failed. For devices\n"
    "                     in host memory; others are skipped (exit status 77)\n"
    "  --contract         checks instead whether the plugin keeps the contract of its kind's header: a backend, a\n"
    "                     memory policy, an engine, a strategy, an image decoder. Each check is a process of its\n"
    "                     own; one that crashes or takes longer than --timeout (20 s) has failed. --op: only\n"
    "                     checks whose name matches one of the patterns, separated by commas. --options: of a memory\n"
    "                     policy, as in CTRT_MEMORY; of an image decoder, a file of its format. --device: the ranks\n"
    "                     of an engine have their data on devices of this type (cpu). The ranks of an engine like mpi\n"
    "                     are started by its launcher: mpirun -n 4 ctrt check --contract mpi. Exit status 1: a check\n"
    "                     failed, or all were skipped\n";

/* Prepends `folder` to CTRT_PLUGIN_PATH. Must be called before the library reads that variable. Returns false if memory
 * runs out. */
static bool search_in(const char *folder)
{
    const char *before = getenv("CTRT_PLUGIN_PATH");
    char *path;
    if (asprintf(&path, "%s%s%s", folder, before ? ":" : "", before ? before : "") < 0)
        return false;
    bool set = setenv("CTRT_PLUGIN_PATH", path, 1) == 0;
    free(path);
    return set;
}

static bool same_file(const char *a, const char *b)
{
    char x[PATH_MAX], y[PATH_MAX];
    return realpath(a, x) != NULL && realpath(b, y) != NULL && strcmp(x, y) == 0;
}

const char *tool_device_of(const char *command, const char *file)
{
    char copy[PATH_MAX];
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    const char *other = NULL;
    if (realpath(file, copy) == NULL) {
        perror(file);
        return NULL;
    }
    if (!search_in(dirname(copy))) {
        fprintf(stderr, "ctrt %s: out of memory\n", command);
        return NULL;
    }
    for (size_t k = 0; ctrt_plugin_list(&info, k) == CTRT_OK; k++) {
        if (!same_file(info.file, file))
            continue;
        if (strcmp(info.state, "ready") != 0 && strcmp(info.state, "loaded") != 0) {
            fprintf(stderr, "ctrt %s: %s is %s: %s\n", command, file, info.state, info.reason);
            return NULL;
        }
        if (strcmp(info.kind, "backend") == 0 || strcmp(info.kind, "kernels") == 0)
            return info.component;
        other = info.kind;
    }
    if (other != NULL)
        fprintf(stderr, "ctrt %s: %s has no backend and no kernels, but a component of kind %s, for which there is "
                        "no suite; ctrt check --contract checks its contract\n", command, file, other);
    else
        fprintf(stderr, "ctrt %s: %s is not named as a plugin: its name must be backend-NAME.so or kernels-NAME.so\n",
                command, file);
    return NULL;
}

bool tool_is_file(const char *text)
{
    size_t length = strlen(text);
    return strchr(text, '/') != NULL || (length > 3 && strcmp(text + length - 3, ".so") == 0);
}

int tool_check(int argc, char **argv)
{
    static const struct option options[] = {
        { "device", required_argument, NULL, 'd' },
        { "op", required_argument, NULL, 'o' },
        { "tags", required_argument, NULL, 't' },
        { "skip-tags", required_argument, NULL, 'x' },
        { "expect", required_argument, NULL, 'e' },
        { "seed", required_argument, NULL, 's' },
        { "list", no_argument, NULL, 'l' },
        { "fail-fast", no_argument, NULL, 'f' },
        { "contract", no_argument, NULL, 'c' },
        { "guard", no_argument, NULL, 'g' },
        { "timeout", required_argument, NULL, 'w' },
        { "options", required_argument, NULL, 'm' },
        { "junit", required_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    struct conformance_options suite = { .seed = 1, .seconds = 120 };
    struct contract_options contract = { .seconds = 20 };
    bool check_contract = false, guard = false;
    char *end = "", *seconds_end = "";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'd': suite.device = optarg; break;
        case 'o': suite.op = optarg; break;
        case 't': suite.tags = optarg; break;
        case 'x': suite.skip_tags = optarg; break;
        case 'e': suite.expect_file = optarg; break;
        case 's': suite.seed = strtoull(optarg, &end, 0); break;
        case 'l': suite.list = true; break;
        case 'f': suite.fail_fast = true; break;
        case 'c': check_contract = true; break;
        case 'g': guard = true; break;
        case 'm': contract.memory_options = optarg; break;
        case 'j': suite.junit = contract.junit = optarg; break;
        case 'w': suite.seconds = contract.seconds = strtod(optarg, &seconds_end); break;
        case 'h': fputs(usage, stdout); return 0;
        default:  fputs(usage, stderr); return 2;
        }
    }
    const int targets = suite.device && !check_contract ? 0 : 1;
    if (*end != '\0' || *seconds_end != '\0' || !(contract.seconds > 0) || argc - optind > targets
        || ((suite.list || guard) && suite.junit != NULL) || ((guard || check_contract) && suite.fail_fast)) {
        fputs(usage, stderr);
        return 2;
    }
    if (check_contract) {
        contract.target = optind < argc ? argv[optind] : suite.device != NULL ? suite.device : "cpu";
        contract.device = optind < argc ? suite.device : NULL;
        contract.pattern = suite.op;
        contract.list = suite.list;
        return contract_run(&contract);
    }
    if (contract.memory_options != NULL) {
        fprintf(stderr, "ctrt check: --options is for --contract\n");
        return 2;
    }
    if (optind < argc)
        suite.device = argv[optind];
    if (optind < argc && tool_is_file(argv[optind]))
        suite.file = argv[optind];
    /* Without the check of calls, the suite does not see which kernels of a file run. */
    if (setenv("CTRT_FALLBACK", "cpu", 0) != 0 || setenv("CTRT_CHECK_CALLS", "1", suite.file != NULL) != 0)
        return 2;
    if (suite.file != NULL && (suite.device = tool_device_of("check", suite.file)) == NULL)
        return 2;
    return guard && !suite.list ? guard_conformance(&suite) : conformance_run(&suite, NULL);
}
