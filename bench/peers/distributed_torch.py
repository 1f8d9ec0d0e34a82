#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of ../distributed.c in PyTorch: DistributedDataParallel over gloo.

    python3 distributed_torch.py [RANKS [default|tuned [CASE]]]

tuned (the default): gradients are views of the buckets (gradient_as_bucket_view), and AdamW is fused."""
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, WIDTH, HEADS, BLOCKS, LENGTH, VOCABULARY = 15, 128, 4, 4, 64, 96


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, HEADS, c // HEADS).transpose(1, 2) for h in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


def transformer():
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *[Block() for _ in range(BLOCKS)], nn.LayerNorm(WIDTH),
                         nn.Linear(WIDTH, VOCABULARY))


def images(rows):
    return torch.randn(rows, 1, 28, 28), torch.randint(10, (rows,))


def vectors(rows):
    x, y = images(rows)
    return x.flatten(1), y


def tokens(rows):
    return torch.randint(VOCABULARY, (rows, LENGTH)), torch.randint(VOCABULARY, (rows, LENGTH))


CASES = [("mlp_784_1024_1024_10_b256", mlp, vectors, 256, 4), ("mlp_784_1024_1024_10_b32", mlp, vectors, 32, 8),
         ("transformer_4x128_t64_b16", transformer, tokens, 16, 4), ("cnn_16_32_b128", cnn, images, 128, 2)]


def measure(name, model, batch, rows, steps, distributed, tuned):
    net = model()
    if distributed:
        net = DistributedDataParallel(net, gradient_as_bucket_view=tuned)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=tuned)
    x, y = batch(rows // dist.get_world_size())
    samples, used = [], []
    for _ in range(SAMPLES + 1):
        dist.barrier()
        begin, before = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(net(x).flatten(0, -2), y.flatten()).backward()
            optimizer.step()
        samples.append((time.perf_counter() - begin) / steps * 1e9)
        used.append((time.process_time() - before) / steps * 1e9)
    for what, values in ("", samples), (".cpu", used):
        if dist.get_rank() == 0:
            print("%s%s%s %.0f" % (name, "" if distributed else ".local", what, sorted(values[1:])[SAMPLES // 2]))


def worker(rank, size, folder, tuned, only):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", init_method="file://%s/meet" % folder, rank=rank, world_size=size)
    for case in CASES:
        for distributed in (False, True):
            if only in case[0]:
                measure(*case, distributed, tuned)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = sys.argv[1:] + ["2", "tuned", ""][len(sys.argv) - 1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as meeting:
        size = int(arguments[0])
        processes.spawn(worker, (size, meeting, arguments[1] == "tuned", arguments[2]), size)
