# SPDX-License-Identifier: Apache-2.0
"""Compares random small programs: views, in-place ops, no_grad, detach, retain_graph. Each statement must succeed in
both libraries or fail in both, and all values and gradients must be equal after it. Uses float64, so that rounding
errors are much smaller than the effect of a defect."""

import re

import ctrt
import torch

import compare_ctrt as C
from compare_check import REFUSALS, both_refuse, difference, largest, values

BOUND = 2**24  # in units of rounding errors; a dozen well-conditioned statements have much smaller errors
VIEWS = "slice slice select transpose reshape expand narrow unsqueeze squeeze detach view_as".split()
# How often a statement is chosen.
STATEMENTS = {"unary": 1, "binary": 2, "scalar": 1, "view": 3, "in place": 3, "in place binary": 2, "copy_": 1}
STATEMENTS.update({"reduce": 1, "clone": 1, "require": 1, "backward": 1, "retain": 1, "fill_": 1, "set_grad": 1})
STATEMENTS.update({"join": 1, "mask": 1})


class Both:
    """A variable of both libraries."""

    def __init__(self, torch_value, ctrt_value):
        self.t, self.c = torch_value, ctrt_value
        self.silent = False  # a view made under no_grad of a tensor that requires grad, see README.md


def shape(r):
    return tuple(r.choice((1, 2, 3, 4, 6)) for _ in range(r.choice((1, 1, 2, 2, 3))))


def leaf(r, sizes):
    x = values(r, sizes, torch.float64, "positive" if r.random() < 0.3 else "normal")
    return Both(x, C.from_torch(x))


def make_view(r, t):
    """Returns (text, function for PyTorch, function for ctrt) that create a view of a tensor of the shape of t."""
    n = t.dim()
    kind = r.choice(VIEWS)
    if n == 0 and kind not in ("unsqueeze", "detach", "reshape", "expand"):
        kind = "unsqueeze"
    d = r.randrange(n) if n else 0
    size = t.shape[d] if n else 1
    if kind == "slice":
        start, step = r.randint(0, max(size - 1, 0)), r.randint(1, 2)
        return (
            (kind, d, start, size, step),
            lambda x: torch.ops.aten.slice.Tensor(x, d, start, size, step),
            lambda x: C.op("slice", x, d, start, size, step),
        )
    if kind == "select":
        index = r.randrange(max(size, 1))
        return (kind, d, index), lambda x: x.select(d, index), lambda x: C.op("select", x, d, index)
    if kind == "narrow":
        length = r.randint(0, size)
        return (kind, d, 0, length), lambda x: x.narrow(d, 0, length), lambda x: C.op("narrow", x, d, 0, length)
    if kind == "transpose":
        e = r.randrange(n)
        return (kind, d, e), lambda x: x.transpose(d, e), lambda x: C.op("transpose", x, d, e)
    if kind in ("reshape", "view_as"):
        wanted = r.choice(((-1,), tuple(t.shape[::-1]), (1,) + tuple(t.shape)))
        return (
            (kind, wanted),
            lambda x: getattr(x, "view" if kind == "view_as" else kind)(wanted),
            lambda x: C.op(kind, x, wanted),
        )
    if kind == "expand":
        wanted = (r.randint(1, 2),) + tuple(t.shape)
        return (kind, wanted), lambda x: x.expand(wanted), lambda x: C.op("expand", x, wanted)
    if kind == "unsqueeze":
        return (kind, d), lambda x: x.unsqueeze(d), lambda x: C.op("unsqueeze", x, d)
    if kind == "squeeze":
        return (kind, d), lambda x: x.squeeze(d), lambda x: C.op("squeeze", x, (d,))
    return (kind,), lambda x: x.detach(), lambda x: C.op("detach", x)


def overlap(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def statement(r, variables):
    """Returns (text, function for PyTorch, function for ctrt). Each function receives the list of its library's
    variables and returns a new variable or None."""
    i, j = r.randrange(len(variables)), r.randrange(len(variables))
    a = variables[i].t
    s = r.choice((0.5, 2.0, -1.5, 3.0))
    kind = r.choices(list(STATEMENTS), STATEMENTS.values())[0]
    # If operands overlap partly, PyTorch reads elements that it has already written; ctrt copies the operand first.
    if kind in ("in place binary", "copy_") and i != j and overlap(a, variables[j].t):
        kind = "unary"
    if kind == "unary":
        name = r.choice(("neg", "square", "sin", "tanh", "sigmoid", "relu", "exp", "abs", "silu"))
        if name == "sin" and largest(a.detach()) > 1e6:  # ill-conditioned then
            name = "tanh"
        f = torch.nn.functional.silu if name == "silu" else getattr(torch, name)
        return "%s(v%d)" % (name, i), lambda v: f(v[i]), lambda v: C.op(name, v[i])
    if kind == "binary":
        name = r.choice(("add", "sub", "mul", "maximum"))
        return (
            "%s(v%d, v%d)" % (name, i, j),
            lambda v: getattr(torch, name)(v[i], v[j]),
            lambda v: C.op(name, v[i], v[j]),
        )
    if kind == "scalar":
        name = r.choice(("add", "mul", "sub", "div"))
        return (
            "%s(v%d, %s)" % (name, i, s),
            lambda v: getattr(torch, name)(v[i], s),
            lambda v: C.op(name + "_scalar", v[i], s),
        )
    if kind == "view":
        text, f, g = make_view(r, a)
        return "%s of v%d" % (text, i), lambda v: f(v[i]), lambda v: g(v[i])
    if kind == "in place":
        name = r.choice(("add_", "mul_", "sub_", "div_", "neg_", "relu_", "tanh_", "sigmoid_", "exp_", "clamp_"))
        if name in ("add_", "mul_", "sub_", "div_"):
            return (
                "v%d.%s(%s)" % (i, name, s),
                lambda v: nothing(getattr(v[i], name)(s)),
                lambda v: C.call(name[:-1] + "_scalar_", v[i], s),
            )
        arguments = (-1.0, 1.0) if name == "clamp_" else ()
        return (
            "v%d.%s%s" % (i, name, arguments),
            lambda v: nothing(getattr(v[i], name)(*arguments)),
            lambda v: C.call(name, v[i], *arguments),
        )
    if kind == "in place binary":
        name = r.choice(("add_", "mul_", "sub_"))
        return (
            "v%d.%s(v%d)" % (i, name, j),
            lambda v: nothing(getattr(v[i], name)(v[j])),
            lambda v: C.call(name, v[i], v[j]),
        )
    if kind == "copy_":
        return "v%d.copy_(v%d)" % (i, j), lambda v: nothing(v[i].copy_(v[j])), lambda v: C.call("copy_", v[i], v[j])
    if kind == "fill_":
        name, arguments = r.choice((("fill_", (s,)), ("zero_", ())))
        return (
            "v%d.%s%s" % (i, name, arguments),
            lambda v: nothing(getattr(v[i], name)(*arguments)),
            lambda v: C.call(name, v[i], *arguments),
        )
    if kind == "mask":
        mask = torch.rand(a.shape, generator=torch.Generator().manual_seed(r.getrandbits(30))) < 0.5
        if r.random() < 0.5:
            return (
                "masked_fill_(v%d, %s, %s)" % (i, mask.int().tolist(), s),
                lambda v: nothing(v[i].masked_fill_(mask, s)),
                lambda v: C.call("masked_fill_", v[i], C.from_torch(mask), s),
            )
        return (
            "where(%s, v%d, v%d)" % (mask.int().tolist(), i, j),
            lambda v: torch.where(mask, v[i], v[j]),
            lambda v: C.op("where", C.from_torch(mask), v[i], v[j]),
        )
    if kind == "join":
        return (
            "stack(v%d, v%d)" % (i, j),
            lambda v: torch.stack((v[i], v[j])),
            lambda v: C.op("stack", [v[i], v[j]], 0),
        )
    if kind == "reduce":
        name = r.choice(("sum", "mean", "amax"))
        return (
            "%s(v%d)" % (name, i),
            lambda v: getattr(torch, name)(v[i]),
            lambda v: C.op(name, v[i], C.ALL, False) if name == "amax" else C.op(name, v[i], C.ALL),
        )
    if kind == "clone":
        name = r.choice(("clone", "contiguous"))
        return (
            "%s(v%d)" % (name, i),
            lambda v: getattr(v[i], name)(),
            lambda v: C.op(name, v[i], *((1,) if name == "contiguous" else ())),
        )
    # Not for tensors with views: if a tensor requires grad only after a view of it was created, PyTorch's view has a
    # history only if something was written since.
    if kind == "require" and not (a._is_view() or any(v.t._base is a for v in variables)):
        on = r.random() < 0.8
        return (
            "require_grad(v%d, %s)" % (i, on),
            lambda v: nothing(v[i].requires_grad_(on)),
            lambda v: C.call("tensor_require_grad", v[i], on),
        )
    if kind == "retain":
        return "retain_grad(v%d)" % i, lambda v: v[i].retain_grad(), lambda v: C.call("tensor_retain_grad", v[i])
    if kind == "set_grad":
        return (
            "v%d.grad = None" % i,
            lambda v: setattr(v[i], "grad", None),
            lambda v: C.call("tensor_set_grad", v[i], None),
        )
    retain = r.random() < 0.7
    return (
        "backward(sum(v%d), retain_graph=%s)" % (i, retain),
        lambda v: v[i].sum().backward(retain_graph=retain),
        lambda v: C.backward(C.op("sum", v[i], C.ALL), None, retain),
    )


def nothing(_):
    return None


def attempt(run, variables):
    """Returns (new variable, error)."""
    try:
        return run(variables), None
    except REFUSALS + (C.Refused,) as error:
        return None, error


def compare(variables):
    """Compares values, gradients, requires_grad and is_leaf of all variables."""
    for i, both in enumerate(variables):
        t, c = both.t, both.c
        message = difference(C.to_torch(c), t.detach(), t.detach(), BOUND, 1.0)
        if message:
            return "value of v%d: %s" % (i, message)
        if not both.silent and (c.requires_grad, c.is_leaf) != (t.requires_grad, t.is_leaf):
            flags = (c.requires_grad, c.is_leaf, t.requires_grad, t.is_leaf)
            return "v%d: requires_grad %s and leaf %s, PyTorch %s and %s" % ((i,) + flags)
        if both.silent or not (t.is_leaf or t.retains_grad):
            continue
        g, wanted = c.grad, t.grad
        if (g is None) != (wanted is None):
            return "gradient of v%d: %s" % (i, "PyTorch has none" if g is not None else "only PyTorch has one")
        if g is not None:
            message = difference(C.to_torch(g), wanted, wanted, BOUND, 1.0)
            if message:
                return "gradient of v%d: %s" % (i, message)
    return None


def run(r):
    variables, text, found = [], [], []
    for i in range(r.randint(1, 3)):
        sizes = shape(r) if i == 0 or r.random() < 0.3 else tuple(variables[0].t.shape)
        both = leaf(r, sizes)
        variables.append(both)
        text.append("v%d = leaf %s %s" % (i, list(sizes), both.t.flatten()[:24].tolist()))
        if r.random() < 0.7:
            both.t.requires_grad_(True)
            C.call("tensor_require_grad", both.c, True)
            text[-1] += " grad"
    quiet = 0  # remaining statements of the current no_grad block
    for step in range(r.randint(3, 16)):
        if quiet == 0 and r.random() < 0.15:
            quiet = r.randint(1, 3)
        line, f, g = statement(r, variables)
        silent = [name for name in re.findall(r"v(\d+)", line) if variables[int(name)].silent]
        if silent and (not quiet or line.startswith(("retain", "backward", "require"))):
            # For such a view, only in-place writes are compared, which both libraries reject.
            if not re.match(r"(v%s\.\w+_\([^v]*|masked_fill_\(.*)$" % silent[0], line):
                break
        with torch.set_grad_enabled(quiet == 0):
            t, torch_error = attempt(f, [b.t for b in variables])
        with ctrt.set_grad_enabled(quiet == 0):
            c, ctrt_error = attempt(g, [b.c for b in variables])
        result = "v%d = " % len(variables) if t is not None else ""
        text.append(("no_grad: " if quiet else "") + result + line + (" refused" if torch_error else ""))
        quiet_now, quiet = quiet > 0, max(quiet - 1, 0)
        message = both_refuse(torch_error, ctrt_error)
        if message:
            found.append(message)
            break
        if torch_error and "backward" in line:
            break  # it is not specified which gradients were accumulated before the error
        if t is not None:
            variables.append(Both(t, c))
            variables[-1].silent = quiet_now and t._is_view()
        try:
            message = compare(variables)
        except RuntimeError:  # PyTorch does not allow access to a view
            break
        if message:
            found.append(message)
            break
    else:
        roots = [b for b in variables if not b.silent and b.t.requires_grad and b.t.numel()]
        if roots:
            both = r.choice(roots)
            text.append("backward(sum(v%d))" % variables.index(both))
            _, torch_error = attempt(lambda v: both.t.sum().backward(), None)
            _, ctrt_error = attempt(lambda v: C.backward(C.op("sum", both.c, C.ALL)), None)
            message = both_refuse(torch_error, ctrt_error) or (None if torch_error else compare(variables))
            if message:
                found.append(message)
    return "program", text, found
