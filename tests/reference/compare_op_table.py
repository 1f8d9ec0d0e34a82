# SPDX-License-Identifier: Apache-2.0
"""The ops of ctrt/ops.h and the corresponding functions of PyTorch. Each function in TABLE makes a random Case."""

import contextlib
import functools
import math
from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import compare_ctrt as C
from compare_check import FLOATS, broadcast, dtype, largest, shape


@dataclass
class Case:
    name: str
    inputs: list
    torch: Callable
    ctrt: Callable
    text: str = ""
    ulps: float = 4  # None: the result is exact
    grad_ulps: float = 32
    promotes: bool = False  # operands are converted to the result's dtype before the op
    either: bool = False  # also accepted: close to PyTorch's result in the same dtype (see README.md)
    second: bool = True
    scale: Callable = None  # (bases, exact) -> magnitude of the terms of the sum


TABLE = []


def row(weight=1):
    def add(function):
        TABLE.extend([function] * weight)
        return function

    return add


def mode(r):
    return r.choice(("normal", "normal", "special", "ties"))


def scalar(r, of=None):
    numbers = [0, 1, 2, 3, -1, 0.5, 2.0, -1.5, 0.25, 3.0, True]
    if of is None or of in FLOATS:
        numbers += [0.1, float("inf"), float("nan"), -0.0, 1e10, 7]
    return r.choice(numbers)


def dims(r, ndim):
    """Returns a random list of dimensions, some of them negative, or all dimensions."""
    if r.random() < 0.3 or ndim == 0:
        return C.ALL
    chosen = r.sample(range(ndim), r.randint(1, ndim))
    return tuple(d - ndim if r.random() < 0.3 else d for d in chosen)


def one_dim(r, ndim):
    return r.randint(-max(ndim, 1), max(ndim, 1) - 1)


def terms(bases, exact):
    """Returns the magnitude of sums of products of the inputs; increases with the number of terms, because each
    addition rounds."""
    return (
        largest(bases[0]) * max([largest(b) for b in bases[1:2]] + [1.0]) * max(4, max(bases[0].shape, default=1) / 8)
    )


EXACT = ("neg", "abs", "sign", "relu", "floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "logical_not")
UNARY = EXACT + tuple(
    "square sqrt rsqrt reciprocal exp expm1 log log1p sin cos tan tanh sigmoid silu erf gelu gelu_tanh".split()
)


def gelu(x):
    """Computes gelu in f64 with erfc, because PyTorch's gelu loses digits of small results, also in f64."""
    return x * 0.5 * torch.erfc(x * -(0.5**0.5)) if x.dtype == torch.float64 else F.gelu(x)


def gelu_tanh(x):
    if x.dtype != torch.float64:
        return F.gelu(x, approximate="tanh")
    return x * torch.sigmoid((8 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))


# gelu_tanh computes e^2u, whose relative error is 2u times the relative error of u.
ULPS = {"gelu": 32, "gelu_tanh": 128}
TORCH = {"silu": F.silu, "gelu": gelu, "gelu_tanh": gelu_tanh}
CTRT = {"gelu": lambda x: C.op("gelu", x, False), "gelu_tanh": lambda x: C.op("gelu", x, True)}


@row(14)
def unary(r, Input):
    name = r.choice(UNARY)
    x = Input(r, shape(r), dtype(r), mode(r))
    if "gelu" in name:  # PyTorch's kernels disagree on infinite inputs
        x.base[x.base.isinf()] = 1
    return Case(
        name,
        [x],
        TORCH.get(name) or getattr(torch, name),
        CTRT.get(name) or (lambda h: C.op(name, h)),
        ulps=None if name in EXACT else ULPS.get(name, 4),
        promotes=True,
    )


BINARY = ("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
BRANCHES = ("floor_divide", "remainder", "fmod")
# floor_divide is called without gradients: in PyTorch its result requires grad, but has no derivative; in ctrt it does
# not require grad.


@row(16)
def binary(r, Input):
    name = r.choice(BINARY + BINARY + COMPARE)
    target = shape(r)
    same = dtype(r)
    m = mode(r)
    grad = name != "floor_divide"
    a = Input(r, broadcast(r, target), same, m, grad)
    b = Input(r, broadcast(r, target), same if r.random() < 0.5 else dtype(r), r.choice((m, "positive")), grad)
    # In 16-bit add and sub, a 0-dim operand is not rounded to 16 bits (core/ops/elementwise.h), as on PyTorch's CUDA
    # devices.
    numbers = [
        x.base for x in (a, b) if x.view().dim() == 0 and name in ("add", "sub") and a.base.dtype != b.base.dtype
    ]
    rounded = max([largest(x) for x in numbers] + [0.0])
    return Case(
        name,
        [a, b],
        getattr(torch, name),
        lambda x, y: C.op(name, x, y),
        promotes=True,
        either=name in BRANCHES + ("pow",),
        second=name not in BRANCHES,
        scale=lambda bases, exact: rounded,
    )


@row(8)
def binary_scalar(r, Input):
    name = r.choice(BINARY[:-2] + BINARY[:-2] + COMPARE[:6])
    x = Input(r, shape(r), dtype(r), mode(r), grad=name != "floor_divide")
    s = scalar(r)
    full = name + "_scalar"
    # The scalar itself is rounded, and this error is visible if the sum cancels.
    rounded = abs(s) if name in ("add", "sub") and math.isfinite(s) else 0.0
    return Case(
        full,
        [x],
        lambda t: getattr(torch, name)(t, s),
        lambda h: C.op(full, h, s),
        " %r" % s,
        promotes=True,
        either=name in BRANCHES + ("pow",),
        second=name not in BRANCHES,
        scale=lambda bases, exact: rounded,
    )


@row(3)
def left_scalar(r, Input):
    name = r.choice(("rsub", "rdiv", "rpow"))
    x = Input(r, shape(r), dtype(r), mode(r))
    s = scalar(r)
    function = {"rsub": lambda t: s - t, "rdiv": lambda t: s / t, "rpow": lambda t: torch.pow(s, t)}[name]
    return Case(
        name + "_scalar",
        [x],
        function,
        lambda h: C.op(name + "_scalar", h, s),
        " %r" % s,
        promotes=True,
        either=name == "rpow",
    )


@row(3)
def clamp(r, Input):
    of = dtype(r)
    x = Input(r, shape(r), of, mode(r))
    lo, hi = scalar(r), scalar(r)
    name = r.choice(("clamp", "clamp_min", "clamp_max"))
    limits = {"clamp": (lo, hi), "clamp_min": (lo,), "clamp_max": (hi,)}[name]
    return Case(
        name,
        [x],
        lambda t: getattr(torch, name)(t, *limits),
        lambda h: C.op(name, h, *limits),
        " %r" % (limits,),
        promotes=True,
    )


@row(3)
def where(r, Input):
    target, of = shape(r), dtype(r)
    condition = Input(r, broadcast(r, target), torch.bool if r.random() < 0.97 else of, "normal", grad=False)
    a = Input(r, broadcast(r, target), of, mode(r))
    if r.random() < 0.3:
        value = scalar(r, of)
        return Case(
            "masked_fill",
            [a, condition],
            lambda t, m: t.masked_fill(m, value),
            lambda t, m: C.op("masked_fill", t, m, value),
            " %r" % value,
        )
    b = Input(r, broadcast(r, target), of if r.random() < 0.7 else dtype(r), mode(r))
    return Case("where", [condition, a, b], torch.where, lambda k, x, y: C.op("where", k, x, y), ulps=1, promotes=False)


IN_PLACE = "add_ sub_ mul_ div_ relu_ neg_ sqrt_ exp_ tanh_ sigmoid_ clamp_ masked_fill_ copy_ fill_ zero_".split()


@row(6)
def in_place(r, Input):
    """Makes a case that runs an in-place op on a view of a copy of the input. The result is the copy."""
    name, target, of = r.choice(IN_PLACE), shape(r), dtype(r)
    base = Input(r, target, of, mode(r), viewed=False)
    view = r.choice(("whole", "t", "slice"))
    size = target[0] if target else 0
    part = (size + 1) // 2 if view == "slice" and target else None
    inside = target if view != "t" or len(target) != 2 else target[::-1]
    if part is not None:
        inside = (part,) + target[1:]
    other = Input(r, broadcast(r, inside), of if r.random() < 0.7 else dtype(r), mode(r))
    mask = Input(r, broadcast(r, inside), torch.bool, "normal", grad=False)
    s, s2 = scalar(r, of), scalar(r, of)
    with_number = r.random() < 0.5

    def apply(x, y, m, run):
        if name in ("add_", "sub_", "mul_", "div_"):
            return run(name[:-1] + "_scalar_", s) if with_number else run(name, y)
        if name == "clamp_":
            return run(name, s, s2)
        if name == "masked_fill_":
            return run(name, m, s)
        if name == "copy_":
            return run(name, y)
        return run(name, s) if name == "fill_" else run(name)

    def in_torch(x, y, m):
        x = x.clone()
        v = x if view == "whole" else x.t() if view == "t" and x.dim() <= 2 else x[::2] if part is not None else x
        apply(v, y, m, lambda n, *a: getattr(v, n.replace("_scalar", ""))(*a))
        return x

    def in_ctrt(x, y, m):
        x = C.op("clone", x)
        v = x
        if view == "t" and len(x.shape) <= 2:
            v = C.op("t", x)
        elif part is not None:
            v = C.op("slice", x, 0, 0, size, 2)
        apply(v, y, m, lambda n, *a: C.call(n, v, *a))
        return x

    return Case(
        name,
        [base, other, mask],
        in_torch,
        in_ctrt,
        " on %s, scalars %r %r%s" % (view, s, s2, " (number)" if with_number else ""),
        ulps=4,
        either=True,
    )


def product(t, dim, keep):
    """Multiplies the factors one by one in f64, the reference, because the derivative of PyTorch's prod divides by the
    factors."""
    if t.dtype != torch.float64 or t.shape[dim] == 0:
        return t.prod(dim, keepdim=keep)
    result = functools.reduce(torch.mul, t.unbind(dim))
    return result.unsqueeze(dim) if keep else result


@row(8)
def reduce(r, Input):
    name = r.choice(("sum", "mean", "prod", "amax", "amin", "var", "any", "all"))
    x = Input(
        r,
        shape(r, least=1 if r.random() < 0.8 else 0),
        dtype(r),
        mode(r) if name not in ("var", "sum", "mean") else r.choice(("normal", "ties", "special")),
    )
    sizes = x.view()
    d, keep = dims(r, sizes.dim()), r.random() < 0.4
    correction = r.choice((0, 1, 1, 2))
    td = tuple(range(sizes.dim())) if d is C.ALL else d

    def in_torch(t):
        if name == "prod":
            if d is C.ALL and (not keep or not td):
                return product(t.flatten(), 0, False)
            for each in sorted((k % t.dim() for k in td), reverse=True):
                t = product(t, each, keep)
            return t
        if name == "var":
            return torch.var(t, dim=None if d is C.ALL else d, correction=correction, keepdim=keep)
        if d is C.ALL and name in ("any", "all") and not td:
            return getattr(torch, name)(t)
        return getattr(torch, name)(t, dim=td, keepdim=keep)

    def in_ctrt(t):
        if name == "var":
            return C.op("var", t, d, correction, keep)
        return C.op(name + ("_dims" if name in ("sum", "mean", "prod") else ""), t, d, keep)

    def scale(bases, exact):
        return {"sum": largest(bases[0]) * 8, "mean": largest(bases[0]), "var": 0.0}.get(name, 0.0)

    many = largest(torch.tensor(float(sizes.numel())))
    return Case(
        name,
        [x],
        in_torch,
        in_ctrt,
        " dims %s keepdim %s%s" % (d, keep, " correction %d" % correction if name == "var" else ""),
        ulps={"prod": 8 + many / 8, "var": 8}.get(name, 4),
        scale=scale,
        second=name != "prod" or sizes.numel() < 9,
    )


@row(3)
def extremes(r, Input):
    name = r.choice(("argmax", "argmin", "max", "min"))
    sizes = shape(r, least=1 if r.random() < 0.9 else 0)
    x = Input(r, sizes, dtype(r), mode(r))
    dim, keep = one_dim(r, len(sizes)), r.random() < 0.4
    if name in ("argmax", "argmin"):
        whole = r.random() < 0.3
        return Case(
            name,
            [x],
            lambda t: getattr(torch, name)(t, dim=None if whole else dim, keepdim=keep),
            lambda h: C.op(name, h, C.ALL if whole else (dim,), keep),
            " dim %s keepdim %s" % ("all" if whole else dim, keep),
        )
    return Case(
        name,
        [x],
        lambda t: tuple(getattr(torch, name)(t, dim=dim, keepdim=keep)),
        lambda h: C.op(name, h, dim, keep),
        " dim %d keepdim %s" % (dim, keep),
        ulps=None,
    )


@row(6)
def matmul(r, Input):
    of = dtype(r)
    n, k, m = (r.choice((1, 2, 3, 4, 5, 8, 17, 33, 0) if r.random() < 0.3 else (1, 2, 3, 5)) for _ in range(3))
    batch = shape(r, r.choice((0, 0, 1, 2)), least=1, big=False)
    a = r.choice(((k,), (n, k), broadcast(r, batch) + (n, k)))
    b = r.choice(((k,), (k, m), broadcast(r, batch) + (k, m)))
    if r.random() < 0.04:
        b = shape(r)
    values_mode = r.choice(("normal", "normal", "normal", "ties"))
    second = of if r.random() < 0.95 else dtype(r)
    return Case(
        "matmul",
        [Input(r, a, of, values_mode), Input(r, b, second, values_mode)],
        torch.matmul,
        lambda x, y: C.op("matmul", x, y),
        scale=terms,
        grad_ulps=64,
    )


@row(3)
def linear(r, Input):
    of = dtype(r, integers=False)
    x = shape(r, least=1)
    x = x or (3,)
    out = r.choice((1, 2, 5, 16))
    inputs = [Input(r, x, of, "normal"), Input(r, (out, x[-1]), of, "normal")]
    if r.random() < 0.6:
        inputs.append(Input(r, (out,), of, "normal"))
    return Case(
        "linear",
        inputs,
        F.linear,
        lambda h, w, b=None: C.op("linear", h, w, b),
        grad_ulps=64,
        scale=lambda bases, exact: largest(bases[0]) * largest(bases[1]) * max(4, 2 * x[-1]),
    )


def pair(r, low, high):
    return [r.randint(low, high), r.randint(low, high)]


@row(3)
def conv2d(r, Input):
    of = dtype(r, integers=False)
    groups, stride, padding, dilation = r.choice((1, 1, 2)), pair(r, 1, 3), pair(r, 0, 2), pair(r, 1, 2)
    channels, outputs = groups * r.randint(1, 3), groups * r.randint(1, 3)
    inputs = [
        Input(
            r, (r.randint(0, 2) if r.random() < 0.2 else 2, channels, r.randint(3, 8), r.randint(3, 8)), of, "normal"
        ),
        Input(r, (outputs, channels // groups, r.randint(1, 3), r.randint(1, 3)), of, "normal"),
    ]
    if r.random() < 0.5:
        inputs.append(Input(r, (outputs,), of, "normal"))
    options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Case(
        "conv2d",
        inputs,
        lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups),
        lambda x, w, b=None: C.op("conv2d", x, w, b, **options),
        " stride %s padding %s dilation %s groups %d" % (stride, padding, dilation, groups),
        scale=terms,
        grad_ulps=128,
    )


@row(2)
def max_pool2d(r, Input):
    kernel = pair(r, 1, 3)
    stride, dilation = pair(r, 1, 3), pair(r, 1, 2)
    # A dilated window that is entirely in the padding has index -1; for it, PyTorch 2.15's backward writes outside of
    # its memory.
    padding = [r.randint(0, k // 2) if d == 1 else 0 for k, d in zip(kernel, dilation)]
    x = Input(r, (2, r.randint(1, 3), r.randint(1, 8), r.randint(1, 8)), dtype(r, integers=False), mode(r))
    options = dict(kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    return Case(
        "max_pool2d",
        [x],
        lambda t: F.max_pool2d(t, kernel, stride, padding, dilation, return_indices=True),
        lambda h: C.op("max_pool2d", h, **options),
        " kernel %s stride %s padding %s dilation %s" % (kernel, stride, padding, dilation),
        ulps=None,
    )


@row(4)
def softmax(r, Input):
    name = r.choice(("softmax", "log_softmax"))
    sizes = shape(r)
    dim = one_dim(r, len(sizes))
    x = Input(r, sizes, dtype(r), mode(r))
    return Case(
        name,
        [x],
        lambda t: getattr(torch, name)(t, dim),
        lambda h: C.op(name, h, dim),
        " dim %d" % dim,
        ulps=8,
        scale=lambda bases, exact: min(largest(bases[0]), 1e4) if name == "log_softmax" else 0.01,
    )


@row(4)
def cross_entropy(r, Input):
    of = dtype(r, integers=False)
    n, k = r.choice((0, 1, 2, 3, 5, 9)), r.randint(1, 6)
    more = r.choice(((), (), (), (2,), (2, 3)))
    logits = Input(r, (n, k) + more, of, r.choice(("normal", "normal", "special")))
    ignored = r.choice((-100, -100, 0, 1))
    g = torch.Generator().manual_seed(r.getrandbits(40))
    target = torch.randint(0, k, (n,) + more, generator=g)
    if r.random() < 0.3:
        target[torch.rand(target.shape, generator=g) < r.choice((0.3, 1.0))] = ignored
    reduction = r.choice(("mean", "mean", "sum", "none"))
    smoothing = r.choice((0.0, 0.0, 0.1, 0.5))
    inputs = [logits, Input.of(target)]
    if r.random() < 0.3:
        inputs.append(Input(r, (k,), of, "positive", grad=False, viewed=False))

    def in_ctrt(x, t, w=None):
        return C.op(
            "cross_entropy", x, t, weight=w, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction
        )

    return Case(
        "cross_entropy",
        inputs,
        lambda x, t, w=None: F.cross_entropy(
            x, t, w, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
        ),
        in_ctrt,
        " ignore_index %d of %d targets, reduction %s smoothing %s"
        % (ignored, int((target == ignored).sum()), reduction, smoothing),
        ulps=8,
        grad_ulps=64,
        scale=lambda bases, exact: min(largest(bases[0]), 1e4) * (1 if reduction != "sum" else max(n, 1)),
    )


@row(2)
def mse_loss(r, Input):
    sizes, of = shape(r), dtype(r, integers=False)
    reduction = r.choice(("mean", "sum", "none"))
    m = r.choice(("normal", "normal", "special"))
    return Case(
        "mse_loss",
        [Input(r, sizes, of, m), Input(r, sizes, of if r.random() < 0.8 else dtype(r), m)],
        lambda x, y: F.mse_loss(x, y, reduction=reduction),
        lambda x, y: C.op("mse_loss", x, y, reduction),
        " " + reduction,
        ulps=16,
        scale=lambda bases, exact: (lambda a: a * a)(min(largest(bases[0]) + largest(bases[1]), 1e150)),
        promotes=True,
    )


@row(3)
def layer_norm(r, Input):
    of = dtype(r, integers=False)
    sizes = shape(r, r.randint(1, 4), least=0 if r.random() < 0.1 else 1)
    inner = sizes[-r.randint(1, len(sizes)) :]
    epsilon = r.choice((1e-5, 1e-3))
    parts = r.choice((0, 0, 1, 2))
    inputs = [Input(r, sizes, of, "normal")] + [Input(r, inner, of, "normal", viewed=False) for _ in range(parts)]
    return Case(
        "layer_norm",
        inputs,
        lambda x, w=None, b=None: F.layer_norm(x, inner, w, b, epsilon),
        lambda x, w=None, b=None: C.op("layer_norm", x, inner, w, b, epsilon),
        " over %s epsilon %s" % (inner, epsilon),
        ulps=64,
        grad_ulps=20000,
        scale=lambda bases, exact: largest(exact) + largest(bases[0]) / epsilon**0.5,
    )


@row(3)
def batch_norm(r, Input):
    of = dtype(r, integers=False)
    sizes = (r.randint(2, 4), r.randint(1, 3)) + r.choice(((), (3,), (2, 3)))
    training, epsilon, momentum = r.random() < 0.6, r.choice((1e-5, 1e-2)), r.choice((0.1, 0.5))
    affine, running = r.random() < 0.6, r.random() < 0.8 or not training
    channel = (sizes[1],)
    stats = torch.float32 if of in (torch.float16, torch.bfloat16) and r.random() < 0.5 else of
    inputs = [Input(r, sizes, of, "normal")]
    if affine:
        inputs += [Input(r, channel, stats, "normal", viewed=False) for _ in range(2)]
    if running:
        inputs += [Input(r, channel, stats, "positive", grad=False, viewed=False) for _ in range(2)]

    def split(rest):
        w, b = rest[:2] if affine else (None, None)
        mean, var = rest[-2:] if running else (None, None)
        return w, b, mean, var

    def in_torch(x, *rest):
        w, b, mean, var = split(rest)
        if running:
            mean, var = mean.clone(), var.clone()
        y = F.batch_norm(x, mean, var, w, b, training, momentum, epsilon)
        return (y, mean, var) if running else y

    def in_ctrt(x, *rest):
        w, b, mean, var = split(rest)
        if running:
            mean, var = C.op("clone", mean), C.op("clone", var)
        y = C.op("batch_norm", x, w, b, mean, var, training, momentum, epsilon)
        return (y, mean, var) if running else y

    return Case(
        "batch_norm",
        inputs,
        in_torch,
        in_ctrt,
        " training %s epsilon %s momentum %s" % (training, epsilon, momentum),
        ulps=256,
        grad_ulps=40000,
        scale=lambda bases, exact: largest(exact),
        either=of not in (torch.float32, torch.float64),
    )


@row(3)
def attention(r, Input):
    of = dtype(r, integers=False)
    lead = r.choice(((), (2,), (2, 3)))
    length, keys, width, out = r.randint(1, 6), r.randint(1, 6), r.randint(1, 8), r.randint(1, 8)
    inputs = [
        Input(r, lead + (length, width), of, "normal"),
        Input(r, lead + (keys, width), of, "normal"),
        Input(r, lead + (keys, out), of, "normal"),
    ]
    causal = r.random() < 0.3
    scale = r.choice((None, 0.5))
    if not causal and r.random() < 0.5:
        kind = r.choice((torch.bool, of))
        mask = Input(r, (length, keys), kind, "normal", grad=False, expands=False)
        if kind is torch.bool:  # for a row without keys, PyTorch returns 0 and ctrt NaN (ctrt/ops.h)
            mask.view()[:, r.randrange(keys)] = True
        inputs.append(mask)
    second = r.random() < 0.5

    def in_torch(q, k, v, m=None):
        with sdpa_kernel(SDPBackend.MATH) if second else contextlib.nullcontext():  # others: no second derivative
            return F.scaled_dot_product_attention(q, k, v, m, 0.0, causal, scale=scale)

    return Case(
        "scaled_dot_product_attention",
        inputs,
        in_torch,
        lambda q, k, v, m=None: C.op(
            "scaled_dot_product_attention", q, k, v, m, causal=causal, has_scale=scale is not None, scale=scale or 0.0
        ),
        " causal %s scale %s" % (causal, scale),
        ulps=64,
        grad_ulps=1024,
        second=second,
        scale=lambda bases, exact: largest(bases[2]) * (1 + 0.1 * largest(bases[0]) * largest(bases[1])),
    )
