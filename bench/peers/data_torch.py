# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/data.c with PyTorch's DataLoader:  OMP_NUM_THREADS=1 python3 data_torch.py [BATCHES]

Prints medians of 3 runs: "wall", and "cpu", the processor time of all processes together.
"""
import resource
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 40
RUNS = 3
torch.set_num_threads(1)


class Large(Dataset):
    """Samples that are one stored image."""

    def __init__(self):
        self.image = torch.arange(3 * 224 * 224, dtype=torch.float32).reshape(3, 224, 224)

    def __len__(self):
        return 64 * BATCHES

    def __getitem__(self, index):
        return self.image


class Small(Dataset):
    """Samples of three floats and an integer, whose tensors exist already."""

    def __init__(self, length):
        self.length = length
        self.x = torch.zeros(3)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.x, index


def cpu_seconds():
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(p.ru_utime + p.ru_stime for p in parts)


def read_all(dataset, workers, batch, skipped):
    before = cpu_seconds()
    loader = DataLoader(dataset, batch_size=batch, num_workers=workers)
    begin = time.perf_counter()
    count = 0
    for fields in loader:
        first = fields if torch.is_tensor(fields) else fields[0]
        first.reshape(-1)[0].item()
        count += 1
        if count == skipped:
            begin = time.perf_counter()
    wall = (time.perf_counter() - begin) / (count - skipped)
    del loader
    return wall, (cpu_seconds() - before) / count


def throughput(name, dataset, workers, batch, scale):
    runs = [read_all(dataset, workers, batch, 6 if BATCHES > 12 else 0) for _ in range(RUNS)]
    print(name, "wall %.3f cpu %.3f" % tuple(statistics.median(r[i] for r in runs) * scale for i in (0, 1)), flush=True)


def start():
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        next(iter(DataLoader(Small(1000), batch_size=1, num_workers=4)))
        times.append(time.perf_counter() - begin)
    print("start_4_workers wall %.3f" % (statistics.median(times) * 1e3), flush=True)


for workers in (0, 1, 2):
    throughput("large_%d_workers" % workers, Large(), workers, 64, 1e3)
    throughput("small_%d_workers" % workers, Small(1000 * BATCHES), workers, 1000, 1e6 / 1000)
start()
