#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes scaler.txt: scale and tracker of torch.amp.GradScaler over 5,000 steps with injected infs, and parameters
after steps of which the scaler skips some.

A trace has one row for each step after which the scale differs from that of the step before, or the tracker is not one
more: STEP SCALE TRACKER, with the state after the step. All other steps follow from these rows."""
import random

import torch

from ref_format import RefFile, here, setup, versions

STEPS = 5000
TRACES = [      # factors, interval, and how often a step has an inf
    dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, every=900),
    dict(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=7, every=60),
    dict(init_scale=2.0**100, growth_factor=8.0, backoff_factor=0.25, growth_interval=40, every=300),
    dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.01, growth_interval=1000, every=100),
]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd_plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.05),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.05),
}
SKIPPED = [0, 1, 4, 5, 9, 17]
OPTIMIZER_STEPS = 20


def scaled_step(scaler, optimizer, parameter, gradient):
    parameter.grad = None
    scaler.scale((parameter * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def trace(config):
    config = dict(config)
    every = config.pop("every")
    infs = sorted(random.sample(range(STEPS), STEPS // every))
    scaler = torch.amp.GradScaler("cpu", **config)
    parameter = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    rows, last = [], (config["init_scale"], 0)
    for step in range(STEPS):
        gradient = torch.tensor([float("inf") if step in infs else 2.0**-120])
        scaled_step(scaler, optimizer, parameter, gradient)
        state = scaler.state_dict()
        now = (state["scale"], state["_growth_tracker"])
        if now != (last[0], last[1] + 1):
            rows.append([float(step), *map(float, now)])
        last = now
    return infs, rows


def main():
    setup()
    random.seed(11)
    out = RefFile(here("scaler.txt"), "torch.amp.GradScaler, by make_scaler.py", versions())
    for i, config in enumerate(TRACES):
        infs, rows = trace(config)
        options = [config[k] for k in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")]
        out.tensor("trace.%d/options" % i, torch.tensor([float(v) for v in options], dtype=torch.float64))
        out.tensor("trace.%d/infs" % i, torch.tensor(infs, dtype=torch.int64))
        out.tensor("trace.%d/rows" % i, torch.tensor(rows, dtype=torch.float64))
    out.tensor("skipped", torch.tensor(SKIPPED, dtype=torch.int64))
    gradients = torch.randn(OPTIMIZER_STEPS, 3)
    out.tensor("gradients", gradients)
    for name, make in OPTIMIZERS.items():
        parameter = torch.tensor([1.0, -0.5, 0.25], requires_grad=True)
        optimizer, scaler = make([parameter]), torch.amp.GradScaler("cpu", growth_interval=3)
        for step in range(OPTIMIZER_STEPS):
            gradient = gradients[step].clone()
            if step in SKIPPED:
                gradient[step % 3] = float("nan") if step % 2 else float("inf")
            scaled_step(scaler, optimizer, parameter, gradient)
        out.tensor("final/" + name, parameter)
    out.write()


main()
