#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurements of ../share.c with torch.multiprocessing: a tensor of 64 MiB in shared memory through a Queue.

    python3 share_torch.py [Queue|SimpleQueue]

SimpleQueue (the default) writes in the calling thread and is the faster one; Queue has a thread that writes."""
import os
import resource
import statistics
import sys
import time

import torch
import torch.multiprocessing as processes

BYTES, MESSAGES, WARM = 64 << 20, 501, 20


def receive(there, back, known):
    kept = None
    for _ in range(MESSAGES):
        sent, x = there.get()
        elapsed = time.monotonic() - sent
        assert x[0] == 7
        kept = x if known else None
        del x
        back.put(elapsed)


def used():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def measure(name, known):
    kind = sys.argv[1] if len(sys.argv) > 1 else "SimpleQueue"
    context = processes.get_context("fork")
    there, back = getattr(context, kind)(), getattr(context, kind)()
    child = context.Process(target=receive, args=(there, back, known))
    child.start()
    x = torch.full((BYTES,), 7, dtype=torch.uint8).share_memory_()
    elapsed = []
    before = used()
    for _ in range(MESSAGES):
        there.put((time.monotonic(), x))
        elapsed.append(back.get())
    child.join()
    assert child.exitcode == 0
    print(f"handover.{name} {statistics.median(elapsed[WARM:]) * 1e9:.0f}")
    if not known:
        print(f"handover.cpu {(used() - before) / MESSAGES * 1e9:.0f}")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    measure("new", False)
    measure("known", True)
