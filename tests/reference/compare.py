# SPDX-License-Identifier: Apache-2.0
"""Random comparison of ctrt with PyTorch. See README.md, "Random comparison"."""

import argparse
import collections
import importlib
import random
import sys
import time
import warnings

import torch

import compare_ctrt
import compare_op_table
from compare_known import known

KINDS = {"ops": "compare_ops", "programs": "compare_programs", "nn": "compare_nn", "optim": "compare_optim"}
WEIGHTS = {"ops": 6, "programs": 4, "nn": 1, "optim": 1}  # how often a kind is chosen


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="ctrt's device; PyTorch uses the CPU")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many seconds")
    parser.add_argument("--only", default="", help="for kind ops: names of functions of compare_op_table.py")
    parser.add_argument("--verbose", action="store_true", help="print every case, and known differences")
    return parser.parse_args()


def run_case(chosen, kinds, case):
    """Runs case number `case`; returns its kind, its text and [(message, reason or None)]."""
    r = random.Random("%d:%d" % (chosen.seed, case))
    kind = r.choices(list(kinds), [WEIGHTS[name] for name in kinds])[0]
    torch.manual_seed(r.getrandbits(40))
    if chosen.verbose:
        print("case", case, kind, flush=True)
    name, lines, messages = kinds[kind].run(r)
    text = "\n".join(lines)
    if chosen.verbose:
        print(text, flush=True)
    return kind, text, [(message, known(kind, name, text, message)) for message in messages]


def main():
    chosen = options()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    compare_ctrt.load(chosen.device)
    kinds = {name: importlib.import_module(KINDS[name]) for name in chosen.kinds.split(",")}
    if chosen.only:
        only = chosen.only.split(",")
        compare_op_table.TABLE[:] = [row for row in compare_op_table.TABLE if row.__name__ in only]
    cases, reasons, begun = collections.Counter(), collections.Counter(), time.time()
    for case in range(chosen.first, chosen.first + chosen.count):
        if chosen.seconds and time.time() - begun > chosen.seconds:
            break
        kind, text, differences = run_case(chosen, kinds, case)
        cases[kind] += 1
        for message, reason in differences:
            reasons[reason] += 1
            if reason is None or chosen.verbose:
                what = "DIFFERENCE" if reason is None else "known (%s)" % reason
                repeat = (chosen.seed, case, chosen.kinds, chosen.device)
                print("%s: --seed %d --first %d --count 1 --kinds %s --device %s" % ((what,) + repeat))
                print(text)
                print("  " + message, flush=True)
    unexplained = reasons.pop(None, 0)
    for reason in sorted(reasons):
        print("known, %d times: %s" % (reasons[reason], reason))
    numbers = ", ".join("%d %s" % (cases[kind], kind) for kind in kinds)
    about = (chosen.seed, torch.__version__, chosen.device, numbers, unexplained)
    print("seed %d, PyTorch %s, device %s: %s, %d unexplained differences" % about)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
