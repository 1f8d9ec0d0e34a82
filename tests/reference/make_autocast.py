#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes autocast.txt, the dtypes of results under torch.autocast: OP DEVICE DTYPE RESULT.

DTYPE is that of the first operand; a second operand is f64 if the first one is, otherwise f32. For `cpu`, the ops run
under torch.autocast("cpu"). For `gpu`, they run under autocast of CUDA on fake tensors, which have a device and a
dtype but no elements: PyTorch's dispatcher converts them, also in ops that are composed of others, and no GPU is
needed. The elementwise ops are those of include/ctrt/ops.def.
"""
import re

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from ref_format import DTYPE_NAMES, DTYPES, here, setup, versions


def rows(t):
    return t.reshape(1, 1, 4, 4)


def elementwise(form):
    """Names and functions of the ops of ops.def that have this form."""
    with open(here("../../include/ctrt/ops.def")) as rows:
        names = re.findall(r"^CTRT_OP\((\w+), *%s," % form, rows.read(), re.M)
    return {name: getattr(torch, name, None) or getattr(F, name) for name in names}


def first(x):
    return torch.arange(2, device=x.device)


# op: function of x [4, 4] and w [4, 4]
OPS = {name: (lambda x, w, f=f: f(x)) for name, f in elementwise("UNARY").items()}
OPS.update({name: (lambda x, w, f=f: f(x, w)) for name, f in elementwise("BINARY").items()})
OPS.update({name: (lambda x, w, name=name: getattr(torch, name)(x)) for name in
            "sum mean prod amax amin any all argmax argmin var tril triu".split()})
OPS.update({
    "gelu": lambda x, w: F.gelu(x),
    "clamp": lambda x, w: torch.clamp(x, 0, 1),
    "pow_scalar": lambda x, w: torch.pow(x, 2),
    "rpow_scalar": lambda x, w: 2**x,
    "rdiv_scalar": lambda x, w: 1 / x,
    "rsub_scalar": lambda x, w: 1 - x,
    "where": lambda x, w: torch.where(x > 1, x, w),
    "cat": lambda x, w: torch.cat([x, w]),
    "stack": lambda x, w: torch.stack([x, w]),
    "softmax": lambda x, w: torch.softmax(x, 0),
    "log_softmax": lambda x, w: torch.log_softmax(x, 0),
    "cross_entropy": lambda x, w: F.cross_entropy(x, torch.arange(4, device=x.device)),
    "mse_loss": lambda x, w: F.mse_loss(x, w),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
    "batch_norm": lambda x, w: F.batch_norm(x, w[0], w[1] + 1),
    "matmul": lambda x, w: torch.matmul(x, w),
    "linear": lambda x, w: F.linear(x, w, w[0]),
    "conv2d": lambda x, w: F.conv2d(rows(x), rows(w)),
    "attention": lambda x, w: F.scaled_dot_product_attention(rows(x), rows(w), rows(w)),
    "max_pool2d": lambda x, w: F.max_pool2d(rows(x), 2),
    "embedding": lambda x, w: F.embedding(first(x), x),
    "index_select": lambda x, w: torch.index_select(x, 0, first(x)),
    "gather": lambda x, w: torch.gather(x, 0, first(x).reshape(1, 2)),
    "dropout": lambda x, w: F.dropout(x, 0.5),
})


def result(function, dtype, device):
    x = torch.ones(4, 4, dtype=DTYPES[dtype], device=device)
    w = torch.ones(4, 4, dtype=torch.float64 if dtype == "f64" else torch.float32, device=device)
    return DTYPE_NAMES[function(x, w).dtype]


def table():
    torch.set_autocast_dtype("cuda", torch.float16)
    for name, function in OPS.items():
        for dtype in ("bf16", "f16", "f32", "f64"):
            if dtype != "f16":          # torch.autocast("cpu") refuses f16 in some ops
                with torch.autocast("cpu"):
                    yield name, "cpu", dtype, result(function, dtype, "cpu")
            torch.set_autocast_enabled("cuda", True)
            with FakeTensorMode():
                yield name, "gpu", dtype, result(function, dtype, "cuda")
            torch.set_autocast_enabled("cuda", False)


if __name__ == "__main__":
    setup()
    with open(here("autocast.txt"), "w") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n")
        out.write("# dtypes under torch.autocast by make_autocast.py: op device dtype result\n")
        out.write("# made with %s\n" % versions())
        for row in table():
            out.write(" ".join(row) + "\n")
