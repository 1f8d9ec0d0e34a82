#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes PyTorch's result types: promotion.txt, can_cast.txt, op_dtypes.txt.

    promotion.txt   A_KIND A_DTYPE B_KIND B_DTYPE RESULT     of a + b; kinds: dim (a tensor with dimensions), zero (a
                                                             0-dim tensor), scalar (a Python number: bool, i64 or f64)
    can_cast.txt    FROM TO yes|no                           whether an in-place op may write a result of dtype FROM to
                                                             a tensor of dtype TO
    op_dtypes.txt   OP DTYPE [DTYPE] RESULT                  RESULT is `error` if PyTorch reports an error
"""
import os

import torch
import torch.nn.functional as F

from ref_format import DTYPES, DTYPE_NAMES, here, setup, versions

SCALARS = {"bool": True, "i64": 2, "f64": 2.5}

UNARY = {
    "abs": torch.abs, "neg": torch.neg, "sign": torch.sign, "square": torch.square, "reciprocal": torch.reciprocal,
    "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p, "log2": torch.log2,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu, "softplus": F.softplus,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite, "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not,
    "sum": torch.sum, "prod": torch.prod, "mean": torch.mean, "var": torch.var, "std": torch.std,
    "amax": torch.amax, "amin": torch.amin, "argmax": torch.argmax, "argmin": torch.argmin, "any": torch.any,
    "all": torch.all, "cumsum": lambda t: torch.cumsum(t, 0), "logsumexp": lambda t: torch.logsumexp(t, 0),
    "softmax": lambda t: torch.softmax(t, 0), "log_softmax": lambda t: torch.log_softmax(t, 0),
    "clamp_int": lambda t: torch.clamp(t, 1, 2), "clamp_float": lambda t: torch.clamp(t, 0.5, 1.5),
    "pow_int": lambda t: torch.pow(t, 2), "pow_float": lambda t: torch.pow(t, 0.5),
    "add_alpha_float": lambda t: torch.add(t, t, alpha=0.5), "div_int": lambda t: torch.div(t, 2),
    "item_mul_float": lambda t: t * 0.5, "where_int": lambda t: torch.where(t == t, t, 1),
    "where_float": lambda t: torch.where(t == t, t, 1.0),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "maximum": torch.maximum,
    "minimum": torch.minimum, "atan2": torch.atan2, "eq": torch.eq, "lt": torch.lt, "logical_and": torch.logical_and,
    "bitwise_and": torch.bitwise_and, "where": lambda a, b: torch.where(a == a, a, b),
    "cat": lambda a, b: torch.cat([a, b]), "matmul": torch.matmul,
}


def operand(kind, dtype):
    if kind == "scalar":
        return SCALARS[dtype]
    return torch.ones((3,) if kind == "dim" else (), dtype=DTYPES[dtype])


def promotion():
    for a_kind, b_kind in (("dim", "dim"), ("dim", "zero"), ("zero", "dim"), ("zero", "zero"), ("dim", "scalar"),
                           ("zero", "scalar")):
        for a in DTYPES:
            for b in SCALARS if b_kind == "scalar" else DTYPES:
                x, y = operand(a_kind, a), operand(b_kind, b)
                result = torch.add(x, y).dtype
                if result != torch.result_type(x, y):
                    raise ValueError("add and result_type disagree")
                yield "%s %s %s %s %s" % (a_kind, a, b_kind, b, DTYPE_NAMES[result])


def can_cast():
    for a in DTYPES:
        for b in DTYPES:
            yield "%s %s %s" % (a, b, "yes" if torch.can_cast(DTYPES[a], DTYPES[b]) else "no")


def attempt(fn, *dtypes):
    operands = [torch.ones(3, dtype=DTYPES[d]) for d in dtypes]
    try:
        result = fn(*operands).dtype
    except (RuntimeError, TypeError):
        return "error"
    return DTYPE_NAMES[result]


def op_dtypes():
    for name, fn in UNARY.items():
        for a in DTYPES:
            yield "%s %s %s" % (name, a, attempt(fn, a))
    for name, fn in BINARY.items():
        for a in DTYPES:
            for b in DTYPES:
                yield "%s %s %s %s" % (name, a, b, attempt(fn, a, b))


def table(name, what, rows):
    rows = list(rows)
    with open(here(name) + ".tmp", "w") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n# %s\n# made with %s\n" % (what, versions()))
        out.write("\n".join(rows) + "\n")
    os.replace(here(name) + ".tmp", here(name))
    print("%-28s %4d rows" % (name, len(rows)))


if __name__ == "__main__":
    setup()
    table("promotion.txt", "type promotion by make_promotion.py: a_kind a_dtype b_kind b_dtype result", promotion())
    table("can_cast.txt", "casts that an op in place may make, by make_promotion.py: from to yes|no", can_cast())
    table("op_dtypes.txt", "result types of ops by make_promotion.py: op dtype [dtype] result|error", op_dtypes())
