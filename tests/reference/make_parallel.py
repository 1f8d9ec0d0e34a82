#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small networks with DistributedDataParallel over gloo in 1 to 4 processes, and records how PyTorch cuts
gradients into buckets and batches into pieces.

    python3 make_parallel.py            writes parallel_train.txt and parallel_buckets.txt beside this script
"""
import contextlib
import os
import random
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ref_format import RefFile, here, setup, versions

STEPS, MOST_RANKS, LIMIT = 6, 4, 2e-6
HYPER = {"sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
         "adamw": {"lr": 0.005, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}}
# Network, optimizer, rows of a batch, micro-batches of a step (all but the last one under no_sync), which ranks use the
# parameter `gate` in even steps (the others, and all in odd steps, do not).
#
# All rows of all ranks have the same weight: the loss of a rank is multiplied by its share of the rows times the number
# of ranks.
CASES = {
    "mlp-sgd": ("mlp", "sgd", 24, 1, ""),
    "mlp-uneven": ("mlp", "adamw", 22, 1, ""),
    "mlp-alone": ("mlp", "sgd", 22, 1, ""),
    "mlp-accumulate": ("mlp", "adamw", 24, 3, ""),
    "norm-sgd": ("norm", "sgd", 24, 1, ""),
    "norm-uneven": ("norm", "adamw", 22, 1, ""),
    "block-all": ("block", "sgd", 24, 1, "all"),
    "block-adamw": ("block", "adamw", 22, 1, "all"),
    "block-last": ("block", "sgd", 24, 1, "last"),
}


# ---- networks ----


class Part(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight


class Block(nn.Module):
    """A weight that two children share, one parameter that is never used, a frozen one, one that is used at times."""

    def __init__(self):
        super().__init__()
        self.encoder = Part(nn.Parameter(torch.empty(16, 12)))
        self.decoder = Part(self.encoder.weight)
        self.unused = nn.Parameter(torch.empty(3))
        self.frozen = nn.Parameter(torch.empty(16), requires_grad=False)
        self.gate = nn.Parameter(torch.empty(16))
        self.uses_gate = False

    def forward(self, x):
        h = torch.tanh(x @ self.encoder.weight) @ self.decoder.weight.T * self.frozen
        return x + (h * self.gate if self.uses_gate else h)


def network(kind):
    middle = {"mlp": lambda: [nn.Tanh()], "norm": lambda: [nn.BatchNorm1d(16), nn.Tanh()],
              "block": lambda: [nn.Tanh(), Block()]}[kind]()
    net = nn.Sequential(nn.Linear(64, 16, bias=kind != "norm"), *middle, nn.Linear(16, 10))
    with torch.no_grad():
        for k, parameter in enumerate(net.parameters()):
            parameter.copy_(initial(k, parameter.numel()).view(parameter.shape))
    return net


def initial(k, numel):
    """The values of parameter k: multiples of 2^-12 from -0.25 to 0.25 (the test in C has the same function)."""
    h = (torch.arange(numel, dtype=torch.int64) * 2654435761 + k * 40503) % 2 ** 32
    h = ((h ^ (h >> 15)) * 739982445) % 2 ** 32
    return ((h >> 20).double() / 4096 - 0.5) / 2


# ---- training ----


def digits():
    """All images (64 pixels from 0 to 1) and labels of the examples."""
    with open(here("../../examples/data/digits.csv")) as lines:
        table = torch.tensor([[int(word) for word in line.split(",")] for line in lines])
    return table[:, :64].double() / 16, table[:, 64]


def train(case, rank, world, dtype, images, labels):
    """Returns the losses of all ranks together and the sums of this rank's final parameters and buffers."""
    kind, optimizer, rows, micro, gate = CASES[case]
    net = network(kind).to(dtype)
    ddp = DistributedDataParallel(net, find_unused_parameters=kind == "block")
    opt = (torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW)(net.parameters(), **HYPER[optimizer])
    sizes = [rows // world + (r < rows % world) for r in range(world)]
    share = sizes[rank] / rows
    losses = []
    for step in range(STEPS):
        opt.zero_grad()
        if gate:
            net[2].uses_gate = step % 2 == 0 and (gate == "all" or rank == world - 1)
        for m in range(micro):
            at = (step * micro + m) * rows + sum(sizes[:rank])
            x, y = images[at:at + sizes[rank]].to(dtype), labels[at:at + sizes[rank]]
            with ddp.no_sync() if m < micro - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(ddp(x), y)
                (loss * (share * world)).backward()
        opt.step()
        total = loss.detach().double() * share
        dist.all_reduce(total)
        losses.append(total.item())
    return losses, sums(net)


def tensors(net):
    return list(net.named_parameters()) + list(net.named_buffers())


def sums(net):
    """Two sums per tensor, which together notice a changed and a misplaced element."""
    values = []
    for _, tensor in tensors(net):
        v = tensor.detach().double().reshape(-1)
        values += [(v * (torch.arange(v.numel()) % 7 + 1)).sum().item(), (v * v).sum().item()]
    return values


def worker(rank, world, folder):
    setup()
    dist.init_process_group("gloo", init_method="file://%s/meet-%d" % (folder, world), rank=rank, world_size=world)
    images, labels = digits()
    results = {}
    for case in CASES:
        for dtype in (torch.float32, torch.float64):
            results[case, dtype] = train(case, rank, world, dtype, images, labels)
    if rank == 0:
        torch.save(results, "%s/result-%d" % (folder, world))
    dist.destroy_process_group()


def train_all():
    out = RefFile(
        here("parallel_train.txt"),
        "training with DistributedDataParallel over gloo; written by make_parallel.py, described in README.md",
        "made with " + versions())
    for kind in sorted({case[0] for case in CASES.values()}):
        out.text(kind + "/names", " ".join(name for name, _ in tensors(network(kind))))
    far = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in range(1, MOST_RANKS + 1):
            processes.spawn(worker, (world, folder), world)
            results = torch.load("%s/result-%d" % (folder, world))
            for case in CASES:
                single, double = results[case, torch.float32], results[case, torch.float64]
                for what in (0, 1):
                    key = "%s/%d/%s" % (case, world, ("loss", "sums")[what])
                    out.f64(key, [round(v * 2.0 ** 40) / 2.0 ** 40 for v in double[what]])
                    far[key] = max(abs(a - b) / (1 + abs(b)) for a, b in zip(single[what], double[what]))
    worst = max(far, key=far.get)
    out.comment("float64 results; those in float32 differ by at most %.1e (%s)" % (far[worst], worst))
    if not far[worst] < LIMIT:
        sys.exit("%s: float32 and float64 differ by %.1e" % (worst, far[worst]))
    out.write()


# ---- buckets and pieces ----

KB, MB = 1000, 1000000
DTYPES, DTYPE_NAMES = [torch.float32, torch.float64, torch.bfloat16], ["f32", "f64", "bf16"]
MODELS = {                      # parameters by their bytes in float32
    "example": [4 * MB, 4 * KB, 4 * MB, 4 * KB, 16 * MB, 16 * KB, 16 * MB, 4 * KB],
    "mlp": [784 * 1024 * 4, 4096, 1024 * 1024 * 4, 4096, 40960, 40],
    "chain": [512 * 512 * 4, 512 * 1024 * 4, 1024 * 1024 * 4, 1024 * 10 * 4],
    "one": [400],
    "large": [120 * MB, 4 * KB, 120 * MB],
    "exact": [1 << 20, 25 << 20, 25 << 20, 4, (25 << 20) - 4, 4, 4],
}
LIMITS = [(1 << 20, 25 << 20), (1 << 20, 1 << 20), (1 << 20, 64), (1 << 20, 1 << 30)]


def buckets_of(sizes, dtypes, limits, order=None):
    tensors = [torch.empty(size // dtype.itemsize, dtype=dtype) for size, dtype in zip(sizes, dtypes)]
    if order is not None:
        tensors = [tensors[i] for i in order]
    buckets = dist._compute_bucket_assignment_by_size(tensors, list(limits), [False] * len(tensors), order or [])[0]
    return buckets if order is None else open_sorted(buckets, sizes, dtypes, limits)


def open_sorted(buckets, sizes, dtypes, limits):
    """Sorts buckets that have not reached their limit by dtype: PyTorch's order of these is that of a hash table."""
    full, rest, seen = [], [], set()
    for bucket in buckets:
        dtype = dtypes[bucket[0]]
        limit = limits[1] if dtype in seen else limits[0]
        seen.add(dtype)
        (full if sum(sizes[i] for i in bucket) >= limit else rest).append(bucket)
    return full + sorted(rest, key=lambda bucket: DTYPES.index(dtypes[bucket[0]]))


def buckets_rebuilt(sizes, cap):
    """What DistributedDataParallel makes of float32 parameters that a forward pass uses in their order."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.zeros(size // 4)) for size in sizes])

        def forward(self, x):
            for weight in self.weights:
                x = x + weight.sum()
            return x

    net = DistributedDataParallel(Net(), bucket_cap_mb=None if cap == 25 << 20 else cap / (1 << 20))
    for _ in range(3):
        net(torch.zeros(1)).backward()
    words = net._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    return [[int(i) for i in bucket.split()] for bucket in words.split(",")]


def record_buckets(out, name, sizes, dtypes, limits, order, buckets):
    out.i64(name + "/bytes", sizes)
    out.text(name + "/dtypes", " ".join(DTYPE_NAMES[DTYPES.index(d)] for d in dtypes))
    out.i64(name + "/limits", list(limits))
    if order is not None:
        out.i64(name + "/order", order)
    out.i64(name + "/items", [i for bucket in buckets for i in bucket])
    out.i64(name + "/sizes", [len(bucket) for bucket in buckets])


def assign_all():
    out = RefFile(
        here("parallel_buckets.txt"),
        "buckets of DistributedDataParallel, pieces of torch.chunk; written by make_parallel.py; see README.md",
        "made with " + versions())
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method="file://%s/meet" % folder, rank=0, world_size=1)
        for name, sizes in MODELS.items():
            dtypes = [torch.float32] * len(sizes)
            for limits in LIMITS:
                limits = (min(limits), limits[1])
                first = list(reversed(buckets_of(sizes, dtypes, limits)))
                record_buckets(out, "%s/%d" % (name, limits[1]), sizes, dtypes, limits, None, first)
            rebuilt = buckets_rebuilt(sizes, 25 << 20)
            order = list(reversed(range(len(sizes))))
            record_buckets(out, name + "/rebuilt", sizes, dtypes, LIMITS[0], order, rebuilt)
        dist.destroy_process_group()
    chance = random.Random(5)
    for k in range(12):
        n = chance.randrange(3, 30)
        dtypes = chance.choices(DTYPES, [2, 1, 1], k=n)
        sizes = [8 * chance.choice([1, 16, 100, 1000]) * chance.randrange(1, 9) for _ in range(n)]
        limits = (chance.choice([64, 1000, 4096]), chance.choice([4096, 10000, 100000]))
        order = chance.sample(range(n), n) if k % 2 else None
        buckets = buckets_of(sizes, dtypes, limits, order)
        record_buckets(out, "random%d" % k, sizes, dtypes, limits, order, buckets if order else buckets[::-1])
    for n in range(1, 9):
        pieces = [[len(p) for p in torch.empty(size).chunk(n)] for size in range(65)]
        out.i64("chunk/%d" % n, [row + [0] * (n - len(row)) for row in pieces])
    out.write()


if __name__ == "__main__":
    setup()
    assign_all()
    train_all()
