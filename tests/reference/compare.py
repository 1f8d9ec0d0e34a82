# SPDX-License-Identifier: Apache-2.0
"""Random comparison of libctrt.so with PyTorch. See README.md, "Random comparison"."""
import argparse
import collections
import importlib
import os
import random
import sys
import time
import warnings

import torch

import compare_ctrt
import compare_op_table
from compare_known import known

KINDS = {"ops": "compare_ops", "programs": "compare_programs", "nn": "compare_nn", "optim": "compare_optim"}


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=os.path.join(root, "_build", ".libs", "libctrt.so"))
    parser.add_argument("--device", default="cpu", help="ctrt's device; PyTorch uses the CPU")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many seconds")
    parser.add_argument("--only", default="", help="for kind ops: names of functions of compare_op_table.py")
    parser.add_argument("--verbose", action="store_true", help="print every case, and known differences")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    compare_ctrt.load(options.library, options.device)
    kinds = [importlib.import_module(KINDS[name]) for name in options.kinds.split(",")]
    names = options.kinds.split(",")
    if options.only:
        compare_op_table.TABLE[:] = [row for row in compare_op_table.TABLE if row.__name__ in options.only.split(",")]
    totals, begun, unexplained = collections.Counter(), time.time(), 0
    reasons = collections.Counter()
    for case in range(options.first, options.first + options.count):
        if options.seconds and time.time() - begun > options.seconds:
            break
        r = random.Random("%d:%d" % (options.seed, case))
        kind = r.choices(range(len(kinds)), [6 if name == "ops" else 4 if name ==
                         "programs" else 1 for name in names])[0]
        torch.manual_seed(r.getrandbits(40))
        if options.verbose:
            print("case", case, names[kind], flush=True)
        name, text, found = kinds[kind].run(r)
        totals[names[kind]] += 1
        if options.verbose:
            print("\n".join(text), flush=True)
        for message in found:
            reason = known(names[kind], name, "\n".join(text), message)
            reasons[reason] += 1
            if reason is None:
                unexplained += 1
            if reason is None or options.verbose:
                print(
    "%s: --seed %d --first %d --count 1 --kinds %s --device %s" %
    ( "DIFFERENCE" if reason is None else "known (%s)" %
     reason, options.seed, case, options.kinds, options.device))
                print("\n".join(text))
                print("  " + message, flush=True)
    for reason, times in sorted((k, v) for k, v in reasons.items() if k is not None):
        print("known, %d times: %s" % (times, reason))
    print(
    "seed %d, PyTorch %s, device %s: %s, %d unexplained differences" %
    ( options.seed, torch.__version__, options.device, ", ".join(
        "%d %s" %
         (totals[n], n) for n in names), unexplained))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
