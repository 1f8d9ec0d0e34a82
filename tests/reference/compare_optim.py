# SPDX-License-Identifier: Apache-2.0
"""Compares optimizers with random options and gradients: several steps, a changed learning rate, state saved and
loaded."""

import os
import tempfile

import ctrt
import torch

import compare_ctrt as C
from compare_check import difference, largest, shape, values


# PyTorch's class, options of type double and of type bool, in the order of ctrt's struct. Names are ctrt's.
KINDS = {
    "sgd": (torch.optim.SGD, ("lr", "momentum", "dampening", "weight_decay"), ("nesterov", "maximize")),
    "adam": (torch.optim.Adam, ("lr", "beta1", "beta2", "epsilon", "weight_decay"), ("maximize", "amsgrad")),
    "adamw": (torch.optim.AdamW, ("lr", "beta1", "beta2", "epsilon", "weight_decay"), ("maximize", "amsgrad")),
    "rmsprop": (
        torch.optim.RMSprop,
        ("lr", "alpha", "epsilon", "weight_decay", "momentum"),
        ("centered", "maximize"),
    ),
    "adagrad": (
        torch.optim.Adagrad,
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "epsilon"),
        ("maximize",),
    ),
    "nadam": (
        torch.optim.NAdam,
        ("lr", "beta1", "beta2", "epsilon", "weight_decay", "momentum_decay"),
        ("decoupled_weight_decay", "maximize"),
    ),
}
# Values of each option, also 0.
VALUES = {
    "lr": (0.001, 0.01, 0.1, 0.0),
    "momentum": (0.0, 0.5, 0.9),
    "dampening": (0.0, 0.0, 0.3),
    "weight_decay": (0.0, 0.01, 0.1),
    "beta1": (0.9, 0.5, 0.0),
    "beta2": (0.999, 0.9),
    "epsilon": (1e-8, 1e-3),
    "alpha": (0.99, 0.75, 0.0),
    "lr_decay": (0.0, 0.5),
    "initial_accumulator_value": (0.0, 0.25),
    "momentum_decay": (4e-3, 0.5, 0.0),
}


def make(r):
    """Returns (text, constructor for PyTorch, name and options for ctrt)."""
    name = r.choice(list(KINDS))
    kind, numbers, flags = KINDS[name]
    given = {number: r.choice(VALUES[number]) for number in numbers}
    given.update({flag: r.random() < 0.3 for flag in flags})
    if name == "sgd" and not (given["momentum"] > 0 and given["dampening"] == 0):
        given["nesterov"] = False
    if name == "rmsprop" and given["alpha"] == 0:  # the variance would be g^2 - g^2, a rounding error
        given["centered"] = False
    arguments = dict(given, foreach=False)
    if "beta1" in arguments:
        arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
    if "epsilon" in arguments:
        arguments["eps"] = arguments.pop("epsilon")
    return "%s %s" % (kind.__name__, given), lambda p: kind(p, **arguments), kind.__name__, given


def run(r):
    line, make_torch, name, given = make(r)
    of = r.choice((torch.float32, torch.float32, torch.float64))
    starts = [values(r, shape(r), of, "normal") for _ in range(r.randint(1, 4))]
    ours = [C.from_torch(x) for x in starts]
    sides = [[x.clone().requires_grad_() for x in starts], [x.double().requires_grad_() for x in starts]]
    steppers = [make_torch(parameters) for parameters in sides]
    for x in ours:
        x.requires_grad_()

    def make_ours():
        return getattr(ctrt.optim, name)(ours, **given)

    stepper = make_ours()
    text, found = ["%s, %s of shapes %s" % (line, C.NAMES[of], [list(x.shape) for x in starts])], []
    used = set()
    for step in range(r.randint(1, 8)):
        if r.random() < 0.15:
            lr = r.choice((0.0, 0.02))
            text.append("  lr = %s" % lr)
            stepper.lr = lr
            for each in steppers:
                each.param_groups[0]["lr"] = lr
        if step and len(used) == len(ours) and r.random() < 0.2:
            text.append("  saved and loaded")
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "state")
                stepper.save(path)
                stepper = make_ours()
                stepper.load(path)
        for i, start in enumerate(starts):
            g = values(r, tuple(start.shape), of, "normal") if r.random() < 0.9 else None
            used.update([i] if g is not None else [])
            sides[0][i].grad, sides[1][i].grad = g, None if g is None else g.double()
            ours[i].grad = None if g is None else C.from_torch(g)
        text.append("  step, gradients of %s" % [i for i in range(len(starts)) if sides[0][i].grad is not None])
        torch.set_default_dtype(torch.float64)  # dtype of NAdam's product of momentums, which would be f32 otherwise
        for each in steppers:
            each.step()
        torch.set_default_dtype(torch.float32)
        stepper.step()
        for i, x in enumerate(ours):
            same, exact = sides[0][i].detach(), sides[1][i].detach()
            # Adam divides by the root of a mean of squares, so the error of an update is relative to the update.
            message = difference(C.to_torch(x), same, exact, 256, max(largest(exact), 0.1))
            if message:
                found.append("parameter %d after step %d: %s" % (i, step, message))
        if found:
            break
    return name, text, found
