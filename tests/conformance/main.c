/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the conformance suite as a program. `make check` runs it on the cpu; `ctrt check` runs the same suite on the
 * backend of any plugin. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static const char usage[] =
    "usage: ctrt-conformance [--device NAME] [--op PATTERN] [--tags LIST] [--skip-tags LIST] [--expect FILE] "
    "[--seed N] [--list]\n"
    "  --device NAME      the device to check (cpu)\n"
    "  --op PATTERN       only ops whose name matches the shell pattern\n"
    "  --tags LIST        only checks with one of these words: a family (elementwise, reduce, matmul, conv, softmax,\n"
    "                     attention, norm, index, view, copy, random, optim), a dtype, or forward, scalar, inplace,\n"
    "                     gradient, gradient2\n"
    "  --skip-tags LIST   no checks with one of these words\n"
    "  --expect FILE      known failures: lines 'unsupported PATTERN: REASON' or 'fails PATTERN: REASON'\n"
    "  --seed N           seed of the random inputs (1)\n"
    "  --list             prints the names of the checks and runs none\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "device", required_argument, NULL, 'd' },
        { "op", required_argument, NULL, 'o' },
        { "tags", required_argument, NULL, 't' },
        { "skip-tags", required_argument, NULL, 'x' },
        { "expect", required_argument, NULL, 'e' },
        { "seed", required_argument, NULL, 's' },
        { "list", no_argument, NULL, 'l' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    struct conformance_options chosen = { .seed = 1 };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'd': chosen.device = optarg; break;
        case 'o': chosen.op = optarg; break;
        case 't': chosen.tags = optarg; break;
        case 'x': chosen.skip_tags = optarg; break;
        case 'e': chosen.expect_file = optarg; break;
        case 's': chosen.seed = strtoull(optarg, NULL, 0); break;
        case 'l': chosen.list = true; break;
        case 'h': fputs(usage, stdout); return 0;
        default:  fputs(usage, stderr); return 2;
        }
    }
    if (optind != argc) {
        fputs(usage, stderr);
        return 2;
    }
    return conformance_run(&chosen, NULL);
}
