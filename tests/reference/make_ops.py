#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of PyTorch's basic ops for edge cases: ops_elementwise.txt, ops_cast.txt, ops_reduce.txt,
ops_matmul.txt. Names of records: cases.py."""
import warnings

import torch

from cases import Cases, f32, grid
from ref_format import DTYPES, setup

NAN, INF = float("nan"), float("inf")
TINY, MOST = 2.0 ** -149, float(torch.finfo(torch.float32).max)
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, TINY, -MOST]


def pairs(values, others=None):
    """Returns all pairs as two one-dimensional float32 tensors."""
    others = others or values
    a = torch.tensor(values, dtype=torch.float32).repeat_interleave(len(others))
    return {"a": a, "b": torch.tensor(others, dtype=torch.float32).repeat(len(values))}


def ints(dtype, *values):
    return torch.tensor(values, dtype=DTYPES[dtype])


def elementwise():
    out = Cases("ops_elementwise.txt", "elementwise ops of PyTorch at their edges, by make_ops.py")
    every = pairs(SPECIAL)

    out.comment("", "NaN, infinities and zeros")
    for name in ("maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
                 "logical_xor"):
        out.exact(name + ".special", getattr(torch, name), every, pointwise=True)
    for name in ("add", "sub", "mul", "div"):
        out.exact(name + ".special", getattr(torch, name), every, {"zero_sign": True}, pointwise=True)
    x = f32(*SPECIAL)
    for name in ("sign", "abs", "neg", "relu", "isnan", "isinf", "isfinite", "logical_not"):
        out.exact(name + ".special", getattr(torch, name), {"x": x}, pointwise=True)
    out.exact("clamp.both", lambda t: t.clamp(-2, 1), {"x": x}, {"min": -2.0, "max": 1.0}, pointwise=True)
    out.exact("clamp.min", lambda t: t.clamp(min=0), {"x": x}, {"min": 0.0}, pointwise=True)
    out.exact("clamp.max", lambda t: t.clamp(max=0), {"x": x}, {"max": 0.0}, pointwise=True)
    out.exact("clamp.crossed", lambda t: t.clamp(3, -3), {"x": x}, {"min": 3.0, "max": -3.0}, pointwise=True)
    out.exact("clamp.nan_bound", lambda t: t.clamp(NAN, 1), {"x": x}, {"min": NAN, "max": 1.0}, pointwise=True)
    out.exact("where.special", torch.where, {"c": torch.tensor([True, False, True]), "a": f32(NAN, 1, INF),
                                             "b": f32(2, NAN, -INF)})

    out.comment("", "rounding: halves go to the even neighbour, and the sign of zero stays")
    h = f32(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.4999999701976776, -0.0, -0.25, 8388607.5, 1e30, NAN, INF)
    for name in ("round", "floor", "ceil", "trunc"):
        out.exact(name + ".halves", getattr(torch, name), {"x": h}, {"zero_sign": True}, pointwise=True)

    out.comment("", "division and its remainders: floor rounds down, trunc towards zero; remainder has the "
                "divisor's sign,",
                "fmod the dividend's")
    a, b = [7, -7, 7, -7, 6, -6, 0, 1], [3, 3, -3, -3, 3, -3, 5, -2]
    floats = {"a": f32(*a, 7.5, -7.5, 5, -5, INF, 5, 5, 0, -1, 1e-30, NAN),
              "b": f32(*b, 2, 2, INF, INF, 5, 0, -0.0, 0, 0, -1, 1)}
    divisions = {
        "div": torch.div, "remainder": torch.remainder, "fmod": torch.fmod,
        "div_floor": lambda p, q: torch.div(p, q, rounding_mode="floor"),
        "div_trunc": lambda p, q: torch.div(p, q, rounding_mode="trunc"),
    }
    for name, fn in divisions.items():
        for dtype in ("i8", "i32", "i64"):
            out.exact("%s.%s" % (name, dtype), fn, {"a": ints(dtype, *a), "b": ints(dtype, *b)}, pointwise=True)
        out.exact(name + ".f32", fn, floats, {"zero_sign": True}, pointwise=True)
        zero = {"a": ints("i32", 1, -1, 0), "b": ints("i32", 0, 0, 0)}
        if name == "div":
            out.exact("div.i32_by_zero", fn, zero)
        else:
            out.fails(name + ".i32_by_zero", fn, zero)
    out.exact("div.u8", torch.div, {"a": ints("u8", 255, 7), "b": ints("u8", 2, 7)})
    out.exact("div.bool", torch.div, {"a": ints("bool", 1, 1, 0), "b": ints("bool", 1, 0, 1)})

    out.comment("", "integers wrap")
    out.exact("add.i8_wrap", torch.add, {"a": ints("i8", 127, -128), "b": ints("i8", 1, -1)})
    out.exact("sub.u8_wrap", torch.sub, {"a": ints("u8", 0, 5), "b": ints("u8", 1, 7)})
    out.exact("mul.i32_wrap", torch.mul, {"a": ints("i32", 65536, 46341), "b": ints("i32", 65536, 46341)})
    out.exact("neg.u8", torch.neg, {"x": ints("u8", 0, 1, 255)})
    out.exact("abs.i8", torch.abs, {"x": ints("i8", -128, -127, 5)})
    out.exact("add.bool", torch.add, {"a": ints("bool", 0, 1, 1), "b": ints("bool", 0, 0, 1)})
    out.exact("mul.bool", torch.mul, {"a": ints("bool", 0, 1, 1), "b": ints("bool", 0, 0, 1)})
    out.fails("sub.bool", torch.sub, {"a": ints("bool", 1), "b": ints("bool", 1)})
    out.fails("neg.bool", torch.neg, {"x": ints("bool", 1)})

    out.comment("", "powers")
    base = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5]
    out.smooth("pow.special", torch.pow, pairs(base, base + [3.0, -3.0]), {"zero_sign": True}, grads=[])
    for name, e in (("half", 0.5), ("two", 2.0), ("three", 3.0), ("minus_one", -1.0), ("minus_two", -2.0),
                    ("minus_half", -0.5), ("zero", 0.0), ("one", 1.0)):
        out.smooth("pow.scalar_" + name, lambda t, e=e: torch.pow(t, e), {"x": f32(*base)}, {"exponent": e}, grads=[])
    out.smooth("pow.scalar_base", lambda t: torch.pow(2.0, t), {"x": f32(NAN, INF, -INF, 0, 3, -3, 0.5)}, {"base": 2.0},
               grads=["x"])
    out.exact("pow.i32", torch.pow, {"a": ints("i32", 2, -2, 0, 0, 3, 1, -1, -1, 2, 2),
                                     "b": ints("i32", 3, 3, 0, 2, 21, -1, -1, -2, -1, 31)}, pointwise=True)
    out.exact("pow.i32_square", lambda t: torch.pow(t, 2), {"x": ints("i32", -3, 0, 5, 46341)}, {"exponent": 2})
    out.fails("pow.i32_minus_one", lambda t: torch.pow(t, -1), {"x": ints("i32", 2)}, {"exponent": -1})
    out.smooth("pow.gradients", torch.pow, {"a": f32(0, 0, 0, 2, 3, 1), "b": f32(0, 1, 2, 0, -1, 0.5)})

    out.comment("", "functions at the ends of their range")
    wide = f32(NAN, INF, -INF, 0, -0.0, 1, -1, 88, -88, 1e-5, -1e-5, 20.5, -20.5, 3, -3, 0.5)
    for name in ("exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid",
                 "erf", "square"):
        out.smooth(name + ".range", getattr(torch, name), {"x": wide}, grads=[])
    for name in ("exp", "expm1", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "square", "abs", "sign", "relu"):
        out.smooth(name + ".gradient", getattr(torch, name), {"x": f32(0, 0.5, -0.5, 2, -0.75, 10)})
    for name in ("log", "log2", "sqrt", "rsqrt", "reciprocal"):
        out.smooth(name + ".gradient", getattr(torch, name), {"x": f32(0.5, 2, 0.0625, 10)})

    out.comment("", "gradients at ties and bounds")
    tie = {"a": f32(1, 2, 3, 0, -1), "b": f32(1, 1, 4, -0.0, -1)}
    out.smooth("maximum.gradient", torch.maximum, tie)
    out.smooth("minimum.gradient", torch.minimum, tie)
    out.smooth("clamp.gradient", lambda t: t.clamp(-1, 1), {"x": f32(-2, -1, 0, 1, 2)}, {"min": -1.0, "max": 1.0})
    out.smooth("where.gradient", torch.where, {"c": ints("bool", 1, 0, 1), "a": f32(1, 2, 3), "b": f32(4, 5, 6)})
    out.smooth("div.gradient", torch.div, {"a": f32(1, -2, 3), "b": f32(2, 4, -0.5)})
    out.smooth("atan2.quadrants", torch.atan2, {"a": f32(1, 1, -1, -1, 2), "b": f32(1, -1, 1, -1, 0)})
    out.smooth("add.broadcast", torch.add, {"a": grid(2, 1, 3), "b": grid(4, 1)})
    out.smooth("mul.broadcast", torch.mul, {"a": grid(2, 1, 3), "b": grid(4, 1)})
    out.write()


def cast():
    out = Cases("ops_cast.txt", "casts of PyTorch, by make_ops.py; f64 goes to f16 and bf16 by way of f32",
                "out/bits: the bits of f16 and bf16 results, as i16")

    def halves(case, x, name):
        def fn(t):
            r = t.to(DTYPES[name])
            return r, torch.where(r.isnan(), torch.zeros((), dtype=torch.int16), r.view(torch.int16))
        out.comment("bits of NaN are written as 0: which NaN it is does not matter")
        out.exact(case, fn, {"x": x}, outputs=("", "bits"))

    up = lambda v: torch.nextafter(torch.tensor(v, dtype=torch.float32), torch.tensor(INF)).item()
    down = lambda v: torch.nextafter(torch.tensor(v, dtype=torch.float32), torch.tensor(-INF)).item()
    edge16 = [65504.0, 65519.0, down(65520.0), 65520.0, up(65520.0), 65536.0, -65520.0, INF, -INF, NAN, 0.0, -0.0,
              1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, up(1 + 2.0 ** -11), 2049.0, 2051.0, 4098.0, 4102.0, 0.1, 1 / 3,
              2.0 ** -14, down(2.0 ** -14), 2.0 ** -14 - 2.0 ** -25, 2.0 ** -24, 3 * 2.0 ** -25, 2.0 ** -25,
              up(2.0 ** -25), down(2.0 ** -25), 2.0 ** -26, TINY, -TINY, MOST]
    halves("cast.f32_f16", f32(*edge16), "f16")
    ulp = 2.0 ** -7
    edge_b = [1 + ulp / 2, 1 + 3 * ulp / 2, up(1 + ulp / 2), down(1 + ulp / 2), MOST, -MOST, 3.3895313892515355e38,
              2.0 ** 127 * (2 - ulp / 2), down(2.0 ** 127 * (2 - ulp / 2)), INF, -INF, NAN, 0.0, -0.0, 257.0, 259.0,
              0.1, 2.0 ** -126, TINY, 2.0 ** -133, 2.0 ** -134, up(2.0 ** -134), 3 * 2.0 ** -134]
    halves("cast.f32_bf16", f32(*edge_b), "bf16")
    double = torch.tensor([1 + 2.0 ** -11 + 2.0 ** -40, 1 + 2.0 ** -8 + 2.0 ** -40, 65519.99999999, 1e300, 1e-300],
                          dtype=torch.float64)
    halves("cast.f64_f16", double, "f16")
    halves("cast.f64_bf16", double, "bf16")
    halves("cast.i64_f16", ints("i64", 65504, 65519, 65520, 2049, 2051, -3, 2 ** 40), "f16")
    halves("cast.f16_bf16", torch.tensor([65504.0, 1 + 2.0 ** -10, 2.0 ** -24, NAN], dtype=torch.float16), "bf16")
    halves("cast.bf16_f16", torch.tensor([65536.0, 2.0 ** -30, 1 + ulp, NAN], dtype=torch.bfloat16), "f16")
    out.exact("cast.f64_f32", lambda t: t.float(), {"x": torch.tensor(
        [0.1, 1 + 2.0 ** -24, 1 + 3 * 2.0 ** -24, 1e39, 3.4028235677973366e38, 3.4028235677973362e38, 1e-46,
         2.0 ** -150, NAN, -INF, -0.0], dtype=torch.float64)}, {"zero_sign": True})

    out.comment("", "to integers: towards zero; only values that the type holds (beyond them C leaves it open)")
    part = [0.0, 0.5, 0.999999, 1.5, -0.5, -1.5, -1.999999, 2.5, 99.9, 127.9, -128.9]
    for to in ("i8", "i16", "i32", "i64"):
        out.exact("cast.f32_" + to, lambda t, to=to: t.to(DTYPES[to]), {"x": f32(*part)})
        out.exact("cast.f16_" + to, lambda t, to=to: t.to(DTYPES[to]), {"x": f32(*part[:-2]).half()})
    out.exact("cast.f32_u8", lambda t: t.to(torch.uint8), {"x": f32(0, 0.9, 1.5, 254.99, 255.9)})
    out.exact("cast.f32_i64_large", lambda t: t.long(), {"x": f32(2.0 ** 53, -2.0 ** 62, 16777217.0)})
    out.exact("cast.f32_bool", lambda t: t.bool(), {"x": f32(0, -0.0, TINY, 0.5, -1, NAN, INF)})
    out.exact("cast.i64_f32", lambda t: t.float(), {"x": ints("i64", 16777217, 16777219, 2 ** 63 - 1, -2 ** 63)})
    out.exact("cast.i64_i32", lambda t: t.int(), {"x": ints("i64", 2 ** 31, 2 ** 32 + 5, -2 ** 31 - 1)})
    out.exact("cast.i32_i8", lambda t: t.to(torch.int8), {"x": ints("i32", 127, 128, 255, 256, -129)})
    out.exact("cast.i32_u8", lambda t: t.to(torch.uint8), {"x": ints("i32", -1, 256, 255, -128)})
    out.exact("cast.i8_u8", lambda t: t.to(torch.uint8), {"x": ints("i8", -1, -128, 127)})
    out.exact("cast.bool_f32", lambda t: t.float(), {"x": ints("bool", 0, 1)})
    out.exact("cast.i16_bool", lambda t: t.bool(), {"x": ints("i16", 0, 256, -1)})

    out.comment("", "half precision arithmetic: each op computes in float32 and rounds its result once")
    a = torch.tensor([1.0, 2048, 65504, 0.1, 60000, 2.0 ** -24], dtype=torch.float16)
    b = torch.tensor([2.0 ** -11, 1, 16, 0.2, 60000, 0.5], dtype=torch.float16)
    for name in ("add", "mul", "div", "sub"):
        out.exact(name + ".f16", getattr(torch, name), {"a": a, "b": b}, pointwise=True)
        out.exact(name + ".bf16", getattr(torch, name), {"a": a.bfloat16(), "b": b.bfloat16()}, pointwise=True)
    out.exact("mul.f16_scalar", lambda t: t * 0.1, {"x": a}, {"scalar": 0.1}, pointwise=True)
    out.exact("add.bf16_scalar", lambda t: t + 0.1, {"x": b.bfloat16()}, {"scalar": 0.1}, pointwise=True)
    out.write()


def reduce():
    out = Cases("ops_reduce.txt", "reductions and orderings of PyTorch, by make_ops.py", "attr/dim absent: over all")
    x = f32(3, NAN, 1, 3, -2, 0).reshape(2, 3)
    plain = f32(3, 1, 3, 2, 5, 5).reshape(2, 3)
    flat = ints("i32", 4, 7, 7, -1, -1)

    out.comment("", "NaN wins; of equal elements the first")
    for name in ("amax", "amin", "argmax", "argmin"):
        fn = getattr(torch, name)
        for what, t in (("nan", x), ("ties", plain)):
            if name[:3] == "arg":
                out.exact("%s.%s" % (name, what), fn, {"x": t})
            for d in (0, 1, -1):
                out.exact("%s.%s_dim%s" % (name, what, str(d).replace("-", "m")), lambda t, d=d: fn(t, dim=d), {"x": t},
                          {"dim": d})
        out.exact(name + ".keepdim", lambda t: fn(t, dim=1, keepdim=True), {"x": plain}, {"dim": 1, "keepdim": True})
        out.exact(name + ".i32", lambda t: fn(t, dim=0), {"x": flat}, {"dim": 0})
    out.exact("amax.inf", lambda t: torch.amax(t, 0), {"x": f32(-INF, -INF)}, {"dim": 0})
    for name in ("max", "min"):
        fn = getattr(torch, name)
        for what, t in (("nan", x), ("ties", plain)):
            out.exact("%s.%s_dim1" % (name, what), lambda t: fn(t, dim=1), {"x": t}, {"dim": 1},
                      outputs=("", "indices"))
    out.smooth("amax.gradient", lambda t: torch.amax(t, 1), {"x": plain}, {"dim": 1})
    out.smooth("max.gradient", lambda t: torch.max(t, 1)[0], {"x": plain}, {"dim": 1})
    out.smooth("max.gradient_all", torch.max, {"x": plain})

    out.comment("", "sums: integers and booleans give i64; nothing gives the neutral element")
    for dtype in ("bool", "u8", "i8", "i16", "i32", "i64"):
        t = torch.tensor([1, 0, 1, 1] if dtype == "bool" else [100, 100, 100, 27], dtype=DTYPES[dtype])
        for name in ("sum", "prod"):
            out.exact("%s.%s" % (name, dtype), getattr(torch, name), {"x": t})
        out.exact("cumsum." + dtype, lambda t: torch.cumsum(t, 0), {"x": t}, {"dim": 0})
        out.fails("mean." + dtype, torch.mean, {"x": t})
    out.exact("sum.f16_many", torch.sum, {"x": torch.tensor([2048.0] + [1.0] * 16, dtype=torch.float16)})
    out.exact("mean.f16_large", torch.mean, {"x": torch.full((4,), 60000.0, dtype=torch.float16)})
    out.exact("sum.f16_overflow", torch.sum, {"x": torch.full((4,), 60000.0, dtype=torch.float16)})
    out.exact("sum.nan", torch.sum, {"x": x})
    out.exact("sum.inf", lambda t: t.sum(0), {"x": f32(INF, 1, -INF, INF).reshape(2, 2)}, {"dim": 0})
    empty = torch.zeros(2, 0, 3)
    for name in ("sum", "prod", "mean"):
        fn = getattr(torch, name)
        out.exact(name + ".empty", fn, {"x": empty})
        out.exact(name + ".empty_dim1", lambda t: fn(t, dim=1), {"x": empty}, {"dim": 1})
    out.exact("any.empty", torch.any, {"x": empty})
    out.exact("all.empty", torch.all, {"x": empty})
    out.fails("amax.empty", lambda t: torch.amax(t, 1), {"x": empty}, {"dim": 1})
    out.fails("amax.empty_all", torch.amax, {"x": empty})
    out.fails("argmax.empty", torch.argmax, {"x": empty})
    out.exact("argmax.empty_other_dim", lambda t: torch.argmax(t, 2), {"x": empty}, {"dim": 2})
    out.exact("any.special", torch.any, {"x": f32(0, NAN)})
    out.exact("all.special", torch.all, {"x": f32(-0.0, NAN)})
    out.exact("any.u8", torch.any, {"x": ints("u8", 0, 3)})
    scalar = torch.tensor(2.5)
    for name in ("sum", "mean", "amax", "prod"):
        out.exact(name + ".zero_dim", getattr(torch, name), {"x": scalar})
    out.exact("argmax.zero_dim", lambda t: torch.argmax(t, 0), {"x": scalar}, {"dim": 0})
    out.fails("sum.bad_dim", lambda t: torch.sum(t, 2), {"x": plain}, {"dim": 2})
    out.fails("sum.repeated_dim", lambda t: torch.sum(t, (0, -2)), {"x": plain}, {"dim": [0, -2]})

    out.comment("", "dims: several, negative, kept")
    t = grid(2, 3, 4)
    for name in ("sum", "mean"):
        fn = getattr(torch, name)
        out.smooth(name + ".all", fn, {"x": t})
        out.smooth(name + ".dim0", lambda t: fn(t, 0), {"x": t}, {"dim": 0})
        out.smooth(name + ".dims02", lambda t: fn(t, (0, 2)), {"x": t}, {"dim": [0, 2]})
        out.smooth(name + ".dims1m1_keep", lambda t: fn(t, (1, -1), keepdim=True), {"x": t},
                   {"dim": [1, -1], "keepdim": True})
    out.smooth("prod.dim1", lambda t: torch.prod(t, 1), {"x": t}, {"dim": 1})
    out.smooth("prod.one_zero", torch.prod, {"x": f32(2, 0, 3)})
    out.smooth("prod.two_zeros", torch.prod, {"x": f32(2, 0, 0)})
    out.smooth("cumsum.dim1", lambda t: torch.cumsum(t, 1), {"x": t}, {"dim": 1})
    for name in ("var", "std"):
        fn = getattr(torch, name)
        out.smooth(name + ".default", fn, {"x": t})
        out.smooth(name + ".biased_dim1", lambda t: fn(t, 1, correction=0), {"x": t}, {"dim": 1, "correction": 0})
    with warnings.catch_warnings(action="ignore"):
        out.exact("var.one_element", torch.var, {"x": f32(3)})
    out.smooth("norm.l2_dim1", lambda t: torch.linalg.vector_norm(t, 2, 1), {"x": t}, {"ord": 2.0, "dim": 1})
    out.smooth("norm.l2_zero", torch.linalg.vector_norm, {"x": f32(0, 0)}, {"ord": 2.0})

    out.comment("", "softmax: a row of -inf alone is NaN; large values do not overflow")
    rows = torch.tensor([[1, 2, 3], [-INF, 0, 1], [-INF, -INF, -INF], [1000, 1000, 999], [INF, 0, 1], [NAN, 0, 1]])
    for name in ("softmax", "log_softmax", "logsumexp"):
        fn = getattr(torch, name)
        out.smooth(name + ".rows", lambda t: fn(t, 1), {"x": rows}, {"dim": 1}, grads=[])
        for d in (0, 1, 2):
            out.smooth("%s.dim%d" % (name, d), lambda t, d=d: fn(t, d), {"x": t}, {"dim": d})
    out.smooth("softmax.gradient_masked", lambda t: torch.softmax(t, 1), {"x": rows[1:2]}, {"dim": 1})
    out.exact("softmax.zero_dim", lambda t: torch.softmax(t, 0), {"x": scalar}, {"dim": 0})
    out.fails("softmax.i64", lambda t: torch.softmax(t, 0), {"x": ints("i64", 1, 2)}, {"dim": 0})
    out.write()


def matmul():
    out = Cases("ops_matmul.txt", "matrix products, joins and indexing of PyTorch, by make_ops.py")
    shapes = {"dot": ((4,), (4,)), "vector_matrix": ((4,), (4, 3)), "matrix_vector": ((2, 4), (4,)),
              "matrix_matrix": ((2, 4), (4, 3)), "batched": ((5, 2, 4), (5, 4, 3)), "batch_matrix": ((5, 2, 4), (4, 3)),
              "matrix_batch": ((2, 4), (5, 4, 3)), "batch_vector": ((5, 2, 4), (4,)), "vector_batch": ((4,), (5, 4, 3)),
              "broadcast": ((2, 1, 2, 4), (3, 4, 3)), "inner_zero": ((2, 0), (0, 3)), "rows_zero": ((0, 4), (4, 3))}
    for name, (a, b) in shapes.items():
        out.smooth("matmul." + name, torch.matmul, {"a": grid(*a), "b": grid(*b)})
    for name, (a, b) in {"inner_differs": ((2, 3), (4, 2)), "zero_dim": ((), (2, 2)),
                         "batch_differs": ((2, 2, 3), (3, 3, 2))}.items():
        out.fails("matmul." + name, torch.matmul, {"a": grid(*a), "b": grid(*b)})
    out.fails("matmul.dtypes", torch.matmul, {"a": grid(2, 2), "b": grid(2, 2).double()})
    out.exact("matmul.i64", torch.matmul, {"a": ints("i64", 1, 2, 3), "b": ints("i64", 4, 5, 6)})
    linear = torch.nn.functional.linear
    out.smooth("linear.bias", linear, {"x": grid(2, 5, 4), "weight": grid(3, 4), "bias": grid(3)})
    out.smooth("linear.vector", lambda x, w: linear(x, w), {"x": grid(4), "weight": grid(3, 4)})

    out.comment("", "joins: types promote, and a tensor of shape [0] joins anything")
    out.exact("cat.promote", lambda a, b: torch.cat([a, b]), {"a": ints("i32", 1, 2), "b": f32(0.5)}, {"dim": 0})
    out.exact("cat.legacy_empty", lambda a, b: torch.cat([a, b], 1), {"a": torch.zeros(0), "b": grid(2, 3)}, {"dim": 1})
    out.smooth("cat.dim1", lambda a, b: torch.cat([a, b], -1), {"a": grid(2, 3), "b": grid(2, 1)}, {"dim": -1})
    out.fails("cat.shapes", lambda a, b: torch.cat([a, b], 0), {"a": grid(2, 3), "b": grid(2, 2)}, {"dim": 0})
    out.fails("cat.zero_dim", lambda a, b: torch.cat([a, b]), {"a": torch.tensor(1.0), "b": f32(1)}, {"dim": 0})

    out.comment("", "creation")
    for name, args in {"whole": (5,), "step": (2, 11, 3), "down": (5, 0, -2), "float": (0.0, 1.0, 0.25),
                       "tenths": (0.0, 1.0, 0.1), "empty": (3, 3)}.items():
        out.exact("arange." + name, lambda args=args: torch.arange(*args), {}, {"args": list(args)})
    for name, args in {"five": (0.0, 1.0, 5), "one": (3.0, 9.0, 1), "down": (1.0, -1.0, 6)}.items():
        out.exact("linspace." + name, lambda args=args: torch.linspace(*args), {},
                  {"start": args[0], "end": args[1], "steps": args[2]})
    for name, value in {"int": 7, "float": 1.5, "bool": True}.items():
        out.exact("full." + name, lambda value=value: torch.full((2,), value), {}, {"value": value})

    out.comment("", "indexing: repeated indices add up in the gradient")
    table = grid(5, 3)
    index = ints("i64", 4, 0, 4, 2)
    out.smooth("index_select.dim0", lambda t, i: t.index_select(0, i), {"x": table, "index": index}, {"dim": 0})
    out.smooth("index_select.dim1", lambda t, i: t.index_select(1, i), {"x": table, "index": ints("i64", 2, 2, 0)},
               {"dim": 1})
    out.smooth("gather.dim1", lambda t, i: t.gather(1, i), {"x": table, "index": ints("i64", 2, 2, 0, 1).reshape(2, 2)},
               {"dim": 1})
    out.fails("index_select.beyond", lambda t, i: t.index_select(0, i), {"x": table, "index": ints("i64", 5)},
              {"dim": 0})
    out.fails("gather.negative", lambda t, i: t.gather(0, i), {"x": table, "index": ints("i64", -1).reshape(1, 1)},
              {"dim": 0})
    out.write()


if __name__ == "__main__":
    setup()
    for family in (elementwise, cast, reduce, matmul):
        torch.manual_seed(7)
        family()
