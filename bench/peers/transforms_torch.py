#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/transforms.c with torchvision (pip install torch torchvision), in one thread. Prints lines
"NAME NANOSECONDS", as bench/timing.h does."""
import statistics
import time

import torch
from torchvision.transforms.v2 import functional as F

torch.set_num_threads(1)
HEIGHT, WIDTH, SIDE = 375, 500, 224
photo = torch.randint(0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8)
image = photo.permute(2, 0, 1)                  # as torchvision's decoders return it: channels last in memory
small = torch.randint(0, 256, (SIDE, SIDE, 3), dtype=torch.uint8).permute(2, 0, 1)
plane = small.contiguous()
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def crop_flip_resize():
    part = F.horizontal_flip(F.crop(image, 40, 60, 300, 400))
    return F.resize(part, [SIDE, SIDE], antialias=True).contiguous()


def to_float(tensor):
    return F.normalize(F.to_dtype(tensor, torch.float32, scale=True), MEAN, STD)


def report(name, body):
    batch = 1
    while True:
        begin = time.perf_counter()
        for _ in range(batch):
            body()
        if time.perf_counter() - begin > 5e-3:
            break
        batch *= 2
    samples = []
    for _ in range(31):
        begin = time.perf_counter()
        for _ in range(batch):
            body()
        samples.append((time.perf_counter() - begin) / batch * 1e9)
    print(f"{name} {statistics.median(samples):.2f}", flush=True)


report("crop_flip_resize_224", crop_flip_resize)
report("resize_224", lambda: F.resize(image, [SIDE, SIDE], antialias=True).contiguous())
report("to_float_normalize_hwc_224", lambda: to_float(small).contiguous())
report("to_float_normalize_chw_224", lambda: to_float(plane))
report("hwc_to_chw_375x500", lambda: image.contiguous())
