#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hooks.txt: a small network after steps of PyTorch's DistributedDataParallel with its communication hooks, by
two processes with gloo.

The first Q of PowerSGD are the numbers of plugins/strategy/distributed/powersgd.c instead of random ones."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from ref_format import RefFile, here, setup, versions

RANKS, ROWS, STEPS, START, LR = 2, 4, 7, 2, 0.5
CASES = ["none", "f16", "bf16", "powersgd1", "powersgd2", "powersgd3"]


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


def inputs():
    torch.manual_seed(8)
    return torch.randn(RANKS, ROWS, 12)


def split_mix(count, first):
    mask, values = (1 << 64) - 1, []
    for i in range(first, first + count):
        z = (i + 1) * 0x9e3779b97f4a7c15 & mask
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & mask
        z = (z ^ z >> 27) * 0x94d049bb133111eb & mask
        values.append(((z ^ z >> 31) >> 11) * 2.0 ** -52 - 1)
    return values


def register(net, case):
    if case == "f16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif case == "bf16":
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif case != "none":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(case[-1]), start_powerSGD_iter=START)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(rank, case, out):
    net = network()
    parallel = torch.nn.parallel.DistributedDataParallel(net)
    register(parallel, case)
    x, used = inputs()[rank], [0]
    randn = torch.randn

    def numbers(*shape, device, dtype):
        count = torch.Size(shape).numel()
        used[0] += count
        return torch.tensor(split_mix(count, used[0] - count), dtype=dtype).view(shape)
    torch.randn = numbers
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    torch.randn = randn
    if rank == 0:
        torch.save(net.state_dict(), os.path.join(out, case))


def process(rank, out):
    setup()
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method="file://" + os.path.join(out, "store"))
    for case in CASES:
        train(rank, case, out)
    dist.destroy_process_group()


def main():
    setup()
    ref = RefFile(here("hooks.txt"), "communication hooks of PyTorch, by make_hooks.py",
                  "x: the inputs of each rank; init/NAME: parameters; HOOK/NAME: after %d steps of SGD with lr %g of"
                  % (STEPS, LR), "the mean of the squares of the outputs; PowerSGD compresses from step %d on" % START,
                  "made with " + versions())
    with tempfile.TemporaryDirectory() as out:
        mp.spawn(process, (out,), nprocs=RANKS)
        ref.tensor("x", inputs())
        for name, value in network().state_dict().items():
            ref.tensor("init/" + name, value)
        for case in CASES:
            for name, value in torch.load(os.path.join(out, case)).items():
                ref.tensor(case + "/" + name, value)
    ref.write()


if __name__ == "__main__":
    main()
