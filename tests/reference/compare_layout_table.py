# SPDX-License-Identifier: Apache-2.0
"""More rows of compare_op_table.py: indexing, joining, views, conversion and creation."""

import torch
import torch.nn.functional as F

import compare_ctrt as C
from compare_check import FLOATS, INTS, dtype, shape
from compare_op_table import Case, mode, one_dim, row, scalar


@row(4)
def indexing(r, Input):
    name = r.choice(("index_select", "gather", "embedding"))
    of = dtype(r)
    sizes = shape(r, r.randint(1, 3) if r.random() < 0.9 else 0, least=1 if r.random() < 0.9 else 0)
    dim = one_dim(r, len(sizes))
    size = sizes[dim] if sizes else 1
    g = torch.Generator().manual_seed(r.getrandbits(40))
    high = size + (r.random() < 0.05)
    kind = torch.int64 if r.random() < 0.7 else torch.int32

    def index(of_shape):
        return Input.of(torch.randint(0, max(high, 1), of_shape, generator=g).to(kind))

    if name == "index_select":
        return Case(
            name,
            [Input(r, sizes, of, mode(r)), index((r.randint(0, 6),))],
            lambda x, i: torch.index_select(x, dim, i),
            lambda x, i: C.op(name, x, dim, i),
            " dim %d" % dim,
            ulps=1,
        )
    if name == "gather":
        wanted = [r.randint(0, 4) if k == dim % max(len(sizes), 1) else r.randint(0, s) for k, s in enumerate(sizes)]
        if r.random() < 0.03:
            wanted = list(shape(r, big=False))
        kind = torch.int64
        return Case(
            name,
            [Input(r, sizes, of, mode(r)), index(wanted)],
            lambda x, i: torch.gather(x, dim, i),
            lambda x, i: C.op(name, x, dim, i),
            " dim %d" % dim,
            ulps=1,
        )
    rows, width = r.randint(1, 5), r.randint(1, 4)
    high = rows + (r.random() < 0.05)
    padding = r.choice((-1, -1, 0, rows - 1))
    return Case(
        name,
        [Input(r, (rows, width), dtype(r, integers=False), mode(r)), index(shape(r, r.randint(0, 2)))],
        lambda w, i: F.embedding(i, w, None if padding < 0 else padding),
        lambda w, i: C.op(name, w, i, padding),
        " padding %d" % padding,
        ulps=1,
    )


@row(2)
def triangle(r, Input):
    name, diagonal = r.choice(("tril", "triu")), r.randint(-3, 3)
    x = Input(r, shape(r, r.choice((1, 2, 2, 3))), dtype(r), mode(r))
    return Case(
        name,
        [x],
        lambda t: getattr(torch, name)(t, diagonal),
        lambda h: C.op(name, h, diagonal),
        " %d" % diagonal,
        ulps=None,
    )


@row(3)
def joining(r, Input):
    name = r.choice(("cat", "stack"))
    of, sizes = dtype(r), shape(r, least=0)
    count, dim = r.randint(1, 3), one_dim(r, len(sizes) + (name == "stack"))
    inputs = []
    for _ in range(count):
        each = list(sizes)
        if name == "cat" and each and dim % len(sizes) < len(each):
            each[dim % len(sizes)] = r.randint(0, 3)
        if r.random() < 0.03:
            each = [0]
        inputs.append(Input(r, tuple(each), of if r.random() < 0.8 else dtype(r), mode(r)))
    return Case(
        name,
        inputs,
        lambda *xs: getattr(torch, name)(xs, dim),
        lambda *hs: C.op(name, hs, dim),
        " dim %d" % dim,
        ulps=1,
        promotes=name == "cat",
    )


@row(6)
def view(r, Input):
    sizes = shape(r)
    x = Input(r, sizes, dtype(r), mode(r))
    n = len(sizes)
    d, e = one_dim(r, n), one_dim(r, n)
    numel = 1
    for s in sizes:
        numel *= s
    other = r.choice((sizes[::-1], (-1,), (numel,), (1, numel), sizes[:1] + (-1,), (2, -1), sizes + (1,), (0, -1)))
    order = tuple(k - n if r.random() < 0.2 else k for k in r.sample(range(n), n))
    size = sizes[d] if n else 0
    low, high = r.randint(-size - 1, size + 1), r.randint(-size - 1, size + 1)
    length, step = r.randint(-1, size + 1), r.randint(1, 3)
    wider = tuple(s if s != 1 else r.randint(0, 3) for s in sizes)
    wider = r.choice((wider, (2,) + wider, tuple(-1 for _ in sizes), (2, 1) + wider))
    some = tuple(r.sample(range(-max(n, 1), max(n, 1)), r.randint(0, max(n, 1)))) if r.random() < 0.7 else C.ALL
    chunks, diagonal = r.randint(1, 5), r.randint(-size - 2, size + 1)
    first = r.randint(0, 2)

    choices = {
        "reshape": (other, lambda t: t.reshape(other), lambda h: C.op("reshape", h, other)),
        "view_as": (other, lambda t: t.view(other), lambda h: C.op("view_as", h, other)),
        "flatten": ((d, e), lambda t: torch.flatten(t, d, e), lambda h: C.op("flatten", h, d, e)),
        "permute": (order, lambda t: t.permute(order), lambda h: C.op("permute", h, order)),
        "transpose": ((d, e), lambda t: t.transpose(d, e), lambda h: C.op("transpose", h, d, e)),
        "t": ("", lambda t: t.t(), lambda h: C.op("t", h)),
        "squeeze": (
            some,
            lambda t: t.squeeze() if some is C.ALL else t.squeeze(some),
            lambda h: C.op("squeeze", h, some),
        ),
        "unsqueeze": (r.choice((d, n, -n - 1, n + 1)),) + (None, None),
        "expand": (wider, lambda t: t.expand(wider), lambda h: C.op("expand", h, wider)),
        "select": ((d, diagonal), lambda t: t.select(d, diagonal), lambda h: C.op("select", h, d, diagonal)),
        "slice": (
            (d, low, high, step),
            lambda t: torch.ops.aten.slice.Tensor(t, d, low, high, step),
            lambda h: C.op("slice", h, d, low, high, step),
        ),
        "narrow": ((d, low, length), lambda t: t.narrow(d, low, length), lambda h: C.op("narrow", h, d, low, length)),
        "chunk": ((chunks, d), lambda t: t.chunk(chunks, d), lambda h: h.chunk(chunks, d)),
        "clone": ("", lambda t: t.clone(), lambda h: C.op("clone", h)),
        "contiguous": ("", lambda t: t.contiguous(), lambda h: C.op("contiguous", h, 1)),
        "detach": ("", lambda t: t.detach(), lambda h: C.op("detach", h)),
        "as_strided": (
            (first, step),
            lambda t: torch.as_strided(t, (2, 2), (first, step), 0),
            lambda h: C.op("as_strided", h, (2, 2), (first, step), 0),
        ),
    }
    name = r.choice(list(choices))
    if name == "as_strided":
        x = Input(r, (4, 3), dtype(r), mode(r), viewed=False)
    arguments, in_torch, in_ctrt = choices[name]
    if name == "unsqueeze":
        in_torch, in_ctrt = (lambda t: t.unsqueeze(arguments)), (lambda h: C.op("unsqueeze", h, arguments))
    # A 16-bit gradient is rounded once for each time that a view repeats the element.
    return Case(name, [x], in_torch, in_ctrt, " %s" % (arguments,), ulps=1)


@row(2)
def cast(r, Input):
    of, to = dtype(r), r.choice(FLOATS + FLOATS + INTS + (torch.bool,))
    inside = of in FLOATS and to in INTS  # C does not define the conversion of other values
    x = Input(r, shape(r), of, r.choice(("ties", "positive")) if inside else mode(r))
    return Case("to_dtype", [x], lambda t: t.to(to), lambda h: C.op("to_dtype", h, to), " " + C.NAMES[to], ulps=None)


@row(2)
def create(r, Input):
    name = r.choice(("arange", "arange", "full", "eye", "full_like", "ones_like"))
    of = r.choice((None,) + FLOATS + INTS)
    default = 0 if of is None else of
    like = Input(r, shape(r), dtype(r), "normal", grad=False)
    if name == "arange":
        start, end, step = (
            r.choice((lambda: r.randint(-9, 9), lambda: round(r.uniform(-9, 9), r.choice((1, 6)))))() for _ in range(3)
        )
        return Case(
            name,
            [like],
            lambda t: torch.arange(start, end, step, dtype=of),
            lambda h: C.op("arange", start, end, step, default, C.DEVICE),
            " %r %r %r %s" % (start, end, step, of),
            ulps=4,
            scale=lambda bases, exact: 9.0,
        )
    if name == "eye":
        n, m = r.randint(0, 4), r.randint(0, 4)
        return Case(
            name,
            [like],
            lambda t: torch.eye(n, m, dtype=of),
            lambda h: C.op("eye", n, m, default, C.DEVICE),
            " %d %d" % (n, m),
        )
    s = scalar(r, of)
    if of in INTS or name != "full" and not like.base.dtype.is_floating_point:
        s = 3
    if name == "full":
        sizes = shape(r)
        return Case(
            name,
            [like],
            lambda t: torch.full(sizes, s, dtype=of),
            lambda h: C.op("full", sizes, s, default, C.DEVICE),
            " %r %s" % (s, of),
        )
    if name == "ones_like":
        return Case(
            name,
            [like],
            lambda t: torch.ones_like(t, dtype=of),
            lambda h: C.op("ones_like", h, default, None),
            " %s" % of,
        )
    return Case(
        name,
        [like],
        lambda t: torch.full_like(t, s, dtype=of),
        lambda h: C.op("full_like", h, s, default, None),
        " %r %s" % (s, of),
    )
