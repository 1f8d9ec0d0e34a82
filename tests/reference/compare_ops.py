# SPDX-License-Identifier: Apache-2.0
"""Compares random calls of one op: values, dtypes, first and second derivatives, errors."""

import torch

import compare_ctrt as C
from compare_check import REFUSALS, both_refuse, ctrt_view, difference, largest, torch_view, values, views
import compare_layout_table  # noqa: F401, adds its rows to TABLE
from compare_op_table import TABLE


class Input:
    """A leaf, and the views that are applied to it to make an operand."""

    def __init__(self, r, sizes, of, mode, grad=True, expands=True, viewed=True):
        base, self.steps = views(r, sizes, expands) if viewed else (sizes, [])
        self.base, self.mode = values(r, base, of, mode), mode
        self.grad = grad and of.is_floating_point

    @staticmethod
    def of(tensor):
        """A given contiguous tensor without gradient."""
        made = Input.__new__(Input)
        made.base, made.steps, made.mode, made.grad = tensor, [], "given", False
        return made

    def view(self):
        """PyTorch's operand without history, a view of the base."""
        operand = self.base
        for step in self.steps:
            operand = torch_view(operand, step)
        return operand

    def text(self):
        small = self.base.tolist() if self.base.numel() <= 24 else "(%d values)" % self.base.numel()
        return "%s %s %s%s%s %s" % (
            C.NAMES[self.base.dtype],
            list(self.base.shape),
            self.mode,
            " grad" if self.grad else "",
            " ".join([""] + [repr(step) for step in self.steps]),
            small,
        )


def upstream(r, outs):
    return [values(r, tuple(out.shape), out.dtype, "normal") if out.dtype.is_floating_point else None for out in outs]


def torch_run(case, inputs, cast, gradients, weights):
    """Returns (outputs, gradients, second derivatives). `cast` is applied to the values of the leaves first. `weights`:
    None if there is no second derivative."""
    leaves = [cast(x.base.clone()) for x in inputs]
    for leaf, x in zip(leaves, inputs):
        leaf.requires_grad_(x.grad)
    operands = []
    for leaf, x in zip(leaves, inputs):
        for step in x.steps:
            leaf = torch_view(leaf, step)
        operands.append(leaf)
    outs = case.torch(*operands)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    if gradients is None:
        return outs, leaves
    used = [(out, gradient.to(out.dtype)) for out, gradient in zip(outs, gradients) if out.requires_grad]
    wanted = [leaf for leaf, x in zip(leaves, inputs) if x.grad]
    if not used or not wanted:
        return outs, [], []
    first = torch.autograd.grad(
        [out for out, _ in used],
        wanted,
        [g for _, g in used],
        allow_unused=True,
        create_graph=weights is not None,
        retain_graph=True,
    )
    if weights is None:
        return outs, first, []
    again = [(g * w.to(g.dtype)).sum() for g, w in zip(first, weights) if g is not None and g.requires_grad]
    second = torch.autograd.grad(sum(again), wanted, allow_unused=True) if again else [None] * len(wanted)
    return outs, first, second


def ctrt_run(case, inputs, gradients, weights):
    leaves = [C.from_torch(x.base) for x in inputs]
    operands = []
    for leaf, x in zip(leaves, inputs):
        if x.grad:
            C.call("tensor_require_grad", leaf, True)
        for step in x.steps:
            leaf = ctrt_view(leaf, step)
        operands.append(leaf)
    outs = case.ctrt(*operands)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    if gradients is None:
        C.finish()
        return outs
    used = [(out, C.from_torch(g)) for out, g in zip(outs, gradients) if out.requires_grad]
    wanted = [leaf for leaf, x in zip(leaves, inputs) if x.grad]
    if not used or not wanted:
        return outs, [], []
    # For several outputs, compute the gradient of one scalar, the sum of the outputs weighted by their gradients.
    if len(used) == 1:
        first = C.grad(used[0][0], wanted, used[0][1], True, weights is not None)
    else:
        total = None
        for out, g in used:
            part = C.op("sum", C.op("mul", out, g), C.ALL)
            total = part if total is None else C.op("add", total, part)
        first = C.grad(total, wanted, None, True, weights is not None)
    if weights is None:
        return outs, first, []
    total = None
    for g, w in zip(first, weights):
        if g is not None and g.requires_grad:
            part = C.op("sum", C.op("mul", g, C.from_torch(w.to(C.DTYPES[g.dtype.short]))), C.ALL)
            total = part if total is None else C.op("add", total, part)
    return outs, first, C.grad(total, wanted) if total is not None else [None] * len(wanted)


def compare_gradients(what, got, same, exact, inputs, ulps, scale, either, coarse):
    found = []
    wanted = [x for x in inputs if x.grad]
    for i, (g, s, e, x) in enumerate(zip(got, same, exact, wanted)):
        zero = torch.zeros_like(x.base)
        g = zero if g is None else C.to_torch(g)
        s = zero if s is None else s
        e = zero.double() if e is None else e
        message = difference(g, s.detach(), e.detach(), ulps, scale + largest(e), either, coarse)
        if message:
            found.append("%s of input %d: %s" % (what, i, message))
    return found


def run(r):
    """Runs one random case; returns (name, lines that reproduce it, differences)."""
    case = r.choice(TABLE)(r, Input)
    inputs = case.inputs
    text = ["%s%s" % (case.name, case.text)] + ["  input %d: %s" % (i, x.text()) for i, x in enumerate(inputs)]
    torch_error = ctrt_error = None
    try:
        outs, _ = torch_run(case, inputs, lambda x: x, None, None)
    except REFUSALS as error:
        torch_error = error
    try:
        got = ctrt_run(case, inputs, None, None)
    except C.Refused as error:
        ctrt_error = error
    if torch_error or ctrt_error:
        message = both_refuse(torch_error, ctrt_error)
        return case.name, text, [message] if message else []
    result = next((out.dtype for out in outs if out.dtype.is_floating_point), None)

    def exactly(x):
        if not x.dtype.is_floating_point and not case.promotes:
            return x
        return (x.to(result) if case.promotes and result is not None else x).double()

    gradients = upstream(r, outs)
    differentiable = [x for x in inputs if x.grad]
    second = (
        case.second and differentiable and all(x.base.dtype in (torch.float32, torch.float64) for x in differentiable)
    )
    weights = [values(r, tuple(x.base.shape), x.base.dtype, "normal") for x in differentiable] if second else None
    found = []
    try:
        same = torch_run(case, inputs, lambda x: x, gradients, weights)
        exact = torch_run(case, inputs, exactly, gradients, weights) if result is not None else same
    except REFUSALS as error:
        torch_error = error
    try:
        got = ctrt_run(case, inputs, gradients, weights)
    except C.Refused as error:
        ctrt_error = error
    if torch_error or ctrt_error:
        message = both_refuse(torch_error, ctrt_error)
        return case.name, text, ["derivative: " + message] if message else []
    size = max([largest(x.base) for x in inputs if x.base.dtype.is_floating_point] + [1.0])
    for i, (g, s, e) in enumerate(zip(got[0], same[0], exact[0])):
        scale = case.scale([x.base for x in inputs], e.detach()) if case.scale else 0.0
        message = difference(
            C.to_torch(g), s.detach(), None if case.ulps is None else e.detach(), case.ulps or 0, scale, case.either
        )
        if message:
            found.append("output %d: %s" % (i, message))
        if g.requires_grad != s.requires_grad:
            found.append("output %d: requires_grad %s, PyTorch %s" % (i, g.requires_grad, s.requires_grad))
    if len(got[0]) != len(same[0]):
        found.append("%d outputs, PyTorch %d" % (len(got[0]), len(same[0])))
    largest_upstream = max([largest(g) for g in gradients if g is not None] + [0.0])
    found += compare_gradients(
        "gradient", got[1], same[1], exact[1], inputs, case.grad_ulps, largest_upstream * size, case.either, result
    )
    if second:
        scale = largest_upstream * size * size * max([largest(w) for w in weights] + [1.0])
        found += compare_gradients(
            "second derivative", got[2], same[2], exact[2], inputs, 4 * case.grad_ulps, scale, case.either, result
        )
    return case.name, text, found
