# SPDX-License-Identifier: Apache-2.0
"""Optimizers: random options and gradients, several steps, a changed learning rate, state saved and loaded."""

import ctypes as c
import os
import tempfile

import torch

import compare_ctrt as C
from compare_check import difference, largest, shape, values


class SgdOptions(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("lr", "momentum", "dampening", "weight_decay")] + [
        ("nesterov", c.c_bool),
        ("maximize", c.c_bool),
        ("reserved", c.c_int64 * 8),
    ]


class AdamwOptions(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("lr", "beta1", "beta2", "epsilon", "weight_decay")] + [
        ("maximize", c.c_bool),
        ("reserved", c.c_int64 * 8),
    ]


def make(r):
    """(text, constructor for torch, name and options for ctrt). Options that are 0 mean a default in ctrt; so 0 only
    where it is the default."""
    lr, decay, maximize = r.choice((0.001, 0.01, 0.1)), r.choice((0.0, 0.01, 0.1)), r.random() < 0.2
    if r.random() < 0.5:
        momentum = r.choice((0.0, 0.5, 0.9))
        dampening = r.choice((0.0, 0.0, 0.3))
        nesterov = momentum > 0 and dampening == 0 and r.random() < 0.5
        arguments = dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=decay, nesterov=nesterov, maximize=maximize
        )
        return "SGD %s" % arguments, lambda p: torch.optim.SGD(p, **arguments), "sgd_new", SgdOptions(**arguments)
    beta1, beta2, epsilon = r.choice((0.9, 0.5)), r.choice((0.999, 0.9)), r.choice((1e-8, 1e-3))
    options = AdamwOptions(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=decay, maximize=maximize)
    arguments = dict(lr=lr, betas=(beta1, beta2), eps=epsilon, weight_decay=decay, maximize=maximize)
    return "AdamW %s" % arguments, lambda p: torch.optim.AdamW(p, **arguments), "adamw_new", options


def run(r):
    line, make_torch, name, options = make(r)
    of = r.choice((torch.float32, torch.float32, torch.float64))
    starts = [values(r, shape(r), of, "normal") for _ in range(r.randint(1, 4))]
    ours = [C.from_torch(x) for x in starts]
    sides = [[x.clone().requires_grad_() for x in starts], [x.double().requires_grad_() for x in starts]]
    steppers = [make_torch(parameters) for parameters in sides]
    for x in ours:
        C.call("tensor_require_grad", x, True)

    def make_ours():
        made = C.op(name, None, c.addressof(options), kind=C.Optimizer)
        C.call("optimizer_add", made, C.handles(ours), len(ours))
        return made

    stepper = make_ours()
    text, found = ["%s, %s of shapes %s" % (line, C.NAMES[of], [list(x.shape) for x in starts])], []
    used = set()
    for step in range(r.randint(1, 8)):
        if r.random() < 0.15:
            lr = r.choice((0.0, 0.02))
            text.append("  lr = %s" % lr)
            C.call("optimizer_set_lr", stepper, lr)
            for each in steppers:
                each.param_groups[0]["lr"] = lr
        if step and len(used) == len(ours) and r.random() < 0.2:
            text.append("  saved and loaded")
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "state").encode()
                C.call("optimizer_save", stepper, path)
                stepper = make_ours()
                C.call("optimizer_load", stepper, path)
        for i, start in enumerate(starts):
            g = values(r, tuple(start.shape), of, "normal") if r.random() < 0.9 else None
            used.update([i] if g is not None else [])
            sides[0][i].grad, sides[1][i].grad = g, None if g is None else g.double()
            C.call("tensor_set_grad", ours[i], None if g is None else C.from_torch(g))
        text.append("  step, gradients of %s" % [i for i in range(len(starts)) if sides[0][i].grad is not None])
        for each in steppers:
            each.step()
        C.call("optimizer_step", stepper)
        for i, x in enumerate(ours):
            same, exact = sides[0][i].detach(), sides[1][i].detach()
            # Adam divides by the root of a mean of squares, so the error of a step is relative to the step.
            message = difference(x.torch(), same, exact, 256, max(largest(exact), 0.1))
            if message:
                found.append("parameter %d after step %d: %s" % (i, step, message))
        if found:
            break
    return name, text, found
