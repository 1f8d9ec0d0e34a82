# SPDX-License-Identifier: Apache-2.0
"""Values, views and tolerances, for compare.py."""

import torch

import compare_ctrt as C

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -2.5, 3.0, 1e4, -1e4)
REFUSALS = (RuntimeError, TypeError, IndexError, ValueError, ZeroDivisionError)  # what PyTorch raises


# ---- random inputs ----


def shape(r, ndim=None, least=0, big=True):
    """Returns a random shape: mostly small sizes, sometimes 0, sometimes large enough for vector loops and their
    tails."""
    ndim = r.choice((0, 1, 1, 2, 2, 3, 4)) if ndim is None else ndim
    sizes = [max(least, r.choice((1, 1, 2, 2, 3, 3, 4, 5))) for _ in range(ndim)]
    if ndim and least == 0 and r.random() < 0.06:
        sizes[r.randrange(ndim)] = 0
    elif ndim and big and r.random() < 0.15:
        sizes[r.randrange(ndim)] = r.choice((7, 8, 16, 17, 33, 65, 130))
    return tuple(sizes)


def broadcast(r, target):
    """Returns a shape that can be broadcast to `target`, rarely any shape."""
    if r.random() < 0.03:
        return shape(r)
    sizes = [1 if r.random() < 0.25 else size for size in target]
    return tuple(sizes[r.randint(0, len(sizes)) :] if r.random() < 0.3 else sizes)


def dtype(r, integers=True):
    """f32 most often."""
    return r.choice(FLOATS[:1] * 3 + FLOATS + (INTS + (torch.bool,) if integers and r.random() < 0.4 else ()))


def values(r, sizes, of, mode):
    """Returns a contiguous tensor. mode: normal; positive (0.1 to 4); ties (few different values); special (NaN,
    infinities, extremes)."""
    g = torch.Generator().manual_seed(r.getrandbits(40))
    if of is torch.bool:
        return torch.randint(0, 2, sizes, generator=g).bool()
    if of in INTS:
        low, high = (0, 9) if of is torch.uint8 or mode == "positive" else (-5, 6)
        result = torch.randint(low, high, sizes, generator=g).to(of)
        if mode == "special":
            extremes = torch.tensor([torch.iinfo(of).min, torch.iinfo(of).max, 0, 1], dtype=of)
            choice = extremes[torch.randint(0, 4, sizes, generator=g)]
            result = torch.where(torch.rand(sizes, generator=g) < 0.3, choice, result)
        return result
    if mode == "positive":
        return (torch.rand(sizes, generator=g, dtype=torch.float64) * 3.9 + 0.1).to(of)
    if mode == "ties":
        return torch.randint(-2, 3, sizes, generator=g).to(of)
    result = torch.randn(sizes, generator=g, dtype=torch.float64) * 2
    if mode == "special":
        info = torch.finfo(of)
        known = torch.tensor(SPECIAL + (info.max, info.min, info.tiny, info.eps), dtype=torch.float64)
        choice = known[torch.randint(0, len(known), sizes, generator=g)]
        result = torch.where(torch.rand(sizes, generator=g) < 0.4, choice, result)
    return result.to(of)


# ---- views ----


def views(r, sizes, expands=True):
    """Returns the shape of a base and a list of views (name, arguments) that convert it to shape `sizes`."""
    sizes, steps = list(sizes), []
    for _ in range(r.choice((0, 0, 0, 1, 1, 2))):
        kind = r.choice(("transpose", "slice", "select", "expand"))
        if kind == "select":
            dim = r.randint(0, len(sizes))
            if len(sizes) < 6:
                size = r.randint(1, 3)
                steps.insert(0, ("select", dim, r.randrange(size)))
                sizes.insert(dim, size)
            continue
        if not sizes:
            continue
        dim = r.randrange(len(sizes))
        if kind == "transpose":
            other = r.randrange(len(sizes))
            steps.insert(0, ("transpose", dim, other))
            sizes[dim], sizes[other] = sizes[other], sizes[dim]
        elif kind == "slice":
            step, start = r.randint(1, 3), r.randint(0, 2)
            end = start + max(sizes[dim] - 1, 0) * step + 1 if sizes[dim] else start
            steps.insert(0, ("slice", dim, start, end, step))
            sizes[dim] = end + r.randint(0, 2)
        elif expands:
            steps.insert(0, ("expand", tuple(sizes)))
            sizes[dim] = 1
    return tuple(sizes), steps


def torch_view(x, step):
    name, *arguments = step
    if name == "slice":
        dim, start, end, by = arguments
        return x[(slice(None),) * (dim % max(x.dim(), 1)) + (slice(start, end, by),)]
    return getattr(x, name)(*arguments)


def ctrt_view(x, step):
    return C.op(step[0], x, *step[1:])


# ---- comparison ----


def close(got, wanted, of, ulps, scale):
    """Returns a mask of the elements of `got` that are equal to `wanted` within `ulps` rounding errors of dtype `of`.
    `got` and `wanted` are f64. The rounding error is relative to the element's magnitude plus `scale`."""
    info = torch.finfo(of)
    bound = ulps * info.eps * (wanted.abs() + scale) + (ulps + 1) * info.tiny * info.eps
    rounded = wanted.to(of).double()  # infinite if the dtype cannot represent the magnitude
    return ((got - wanted).abs() <= bound) | (got == wanted) | (got == rounded) | (got.isnan() & wanted.isnan())


def largest(x):
    x = x.double().abs()
    x = x[x.isfinite()]
    return x.max().item() if x.numel() else 0.0


def difference(got, same, exact, ulps, scale=0.0, either=False, coarse=None):
    """Returns None if `got`, ctrt's result, is accepted, otherwise a description of the difference. `same`: PyTorch's
    result in the same dtype. `exact`: PyTorch's result in float64; None if `same` is exact.

    An element is accepted if it is close to `exact`, or if its error is at most the error of `same`. If the element of
    `same` is NaN or infinite, the same value is accepted too. If one of `exact` and `same` is NaN or infinite and the
    other is not, or if `either` is true, an element close to `same` is accepted too. `coarse`: dtype of an intermediate
    result, whose rounding error is allowed."""
    if got.shape != same.shape:
        return "shape %s, PyTorch %s" % (tuple(got.shape), tuple(same.shape))
    if got.dtype != same.dtype:
        return "dtype %s, PyTorch %s" % (got.dtype, same.dtype)
    if exact is None or got.dtype not in FLOATS:
        right = (got == same) | ((got != got) & (same != same))
        exact = same
    else:
        g, e, s = got.double(), exact.double(), same.double()
        if coarse is not None and torch.finfo(coarse).eps > torch.finfo(got.dtype).eps:
            ulps *= torch.finfo(coarse).eps / torch.finfo(got.dtype).eps
        right = close(g, e, got.dtype, ulps, scale) | ((g - e).abs() <= (s - e).abs())
        right |= ~s.isfinite() & ((g == s) | (g.isnan() & s.isnan()))
        conflict = (e.isnan() != s.isnan()) | (e.to(got.dtype).double().isinf() != s.isinf())
        right |= (conflict | either) & close(g, s, got.dtype, ulps, scale)
    if bool(right.all()):
        return None
    at = tuple((~right).nonzero()[0].tolist())
    return "%d of %d elements, first at %s: ctrt %r, PyTorch %r, in f64 %r" % (
        int((~right).sum()),
        right.numel(),
        list(at),
        got[at].item(),
        same[at].item(),
        exact[at].item(),
    )


def both_refuse(torch_error, ctrt_error):
    """Returns None if both libraries or neither reported an error, otherwise a description of the difference."""
    if (torch_error is None) == (ctrt_error is None):
        return None
    if ctrt_error is None:
        if "not implemented for" in str(torch_error):
            return None  # a kernel that PyTorch lacks
        return "PyTorch refuses, ctrt does not: %s" % str(torch_error).split("\n")[0][:160]
    return "ctrt refuses, PyTorch does not: %s" % str(ctrt_error)[:160]
