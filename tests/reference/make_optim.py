#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes optim.txt: the values of one parameter after steps of PyTorch's optimizers, for combinations of their options.

The results are those of PyTorch's implementation with loops over tensors (foreach=False), in float32 and in float64."""
import itertools

import torch

from ref_format import RefFile, here, setup, versions

STEPS = 4
P = [1.0, -0.5, 0.25]
# The gradient of the third element is 0 in the first two steps, to test the division by a state of 0.
GRADS = [[-1.9375, 2.0, 0.0], [0.625, -0.25, 0.0], [1.25, 0.625, -1.875], [-1.0625, 1.375, 0.5]]


def choices(**table):
    """All combinations of the values, without members that are None."""
    for values in itertools.product(*table.values()):
        yield {name: value for name, value in zip(table, values) if value is not None}


def cases():
    flag = (None, True)
    for o in choices(momentum=(None, 0.9), dampening=(None, 0.5), weight_decay=(None, 0.1), nesterov=flag,
                     maximize=flag):
        dampening, nesterov = "dampening" in o, "nesterov" in o
        if ("momentum" in o or not (dampening or nesterov)) and not (dampening and nesterov):
            yield "sgd", torch.optim.SGD, dict(o, lr=0.1)
    for name, kind, decay in (("adam", torch.optim.Adam, None), ("adamw", torch.optim.AdamW, 0.0)):
        for o in choices(weight_decay=(decay, 0.1), amsgrad=flag, maximize=flag):
            yield name, kind, dict(o, lr=0.05)
        yield name, kind, {} if decay is None else {"weight_decay": 0.0}
        yield name, kind, {"lr": 0.05, "betas": (0.5, 0.75), "eps": 1e-3, "weight_decay": 0.25, "amsgrad": True}
    for o in choices(weight_decay=(None, 0.1), momentum=(None, 0.9), centered=flag, maximize=flag):
        yield "rmsprop", torch.optim.RMSprop, dict(o, lr=0.02)
    yield "rmsprop", torch.optim.RMSprop, {}
    yield "rmsprop", torch.optim.RMSprop, {"alpha": 0.75, "eps": 1e-3, "momentum": 0.5, "centered": True}
    for o in choices(lr_decay=(None, 0.5), weight_decay=(None, 0.1), initial_accumulator_value=(None, 0.25),
                     maximize=flag):
        yield "adagrad", torch.optim.Adagrad, dict(o, lr=0.1)
    yield "adagrad", torch.optim.Adagrad, {}
    yield "adagrad", torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-2}
    for o in choices(weight_decay=(None, 0.1), decoupled_weight_decay=flag, maximize=flag):
        if "weight_decay" in o or "decoupled_weight_decay" not in o:
            yield "nadam", torch.optim.NAdam, dict(o, lr=0.05)
    yield "nadam", torch.optim.NAdam, {}
    yield "nadam", torch.optim.NAdam, {"lr": 0.05, "betas": (0.5, 0.75), "eps": 1e-3, "momentum_decay": 0.5}


def run(kind, options, dtype):
    torch.set_default_dtype(dtype)                  # NAdam's product of momentums has the default dtype
    p = torch.tensor(P, requires_grad=True)
    optimizer, rows = kind([p], foreach=False, **options), []
    for g in GRADS:
        p.grad = torch.tensor(g)
        optimizer.step()
        rows.append(p.detach().clone())
    torch.set_default_dtype(torch.float32)
    return torch.stack(rows)


def main():
    out = RefFile(here("optim.txt"), "optimizer steps of PyTorch, by make_optim.py",
                  "p: the parameter; grads: its gradient at each step; all cases begin with these",
                  "OPTIMIZER.N/attr/NAME: an option of case N; OPTIMIZER.N/out32, out64: the parameter after each step",
                  "made with " + versions())
    out.tensor("p", torch.tensor(P, dtype=torch.float64))
    out.tensor("grads", torch.tensor(GRADS, dtype=torch.float64))
    counts = {}
    for name, kind, options in cases():
        number = counts[name] = counts.get(name, -1) + 1
        case = "%s.%d" % (name, number)
        for option, value in options.items():
            dtype = torch.bool if isinstance(value, bool) else torch.float64
            out.tensor("%s/attr/%s" % (case, option), value, dtype)
        out.tensor(case + "/out32", run(kind, options, torch.float32))
        out.tensor(case + "/out64", run(kind, options, torch.float64))
    out.write()


if __name__ == "__main__":
    setup()
    main()
