#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes autocast.txt, the dtypes of results under torch.autocast: OP DEVICE DTYPE RESULT.

DTYPE is that of the first operand; a second operand is f64 if the first one is, otherwise f32. For `cpu`, the ops run
under torch.autocast("cpu"). For `gpu`, the operands are converted as PyTorch's lists for CUDA say, read from
ATen/autocast_mode.h of the installed package, and the op runs without autocast; so no GPU is needed.
"""
import os
import re

import torch
import torch.nn.functional as F

from ref_format import DTYPE_NAMES, DTYPES, here, setup, versions


def rows(t):
    return t.reshape(1, 1, 4, 4)


# op: function of x [4, 4] and w [4, 4], and its name in PyTorch's lists if that differs
OPS = {name: (lambda x, w, name=name: getattr(torch, name)(x), None) for name in (
    "neg abs square relu sqrt rsqrt reciprocal exp expm1 log log1p sin cos tan tanh sigmoid erf sum mean prod amax "
    "var").split()}
OPS.update({
    "silu": (lambda x, w: F.silu(x), None),
    "gelu": (lambda x, w: F.gelu(x), None),
    "add": (lambda x, w: x + w, None),
    "mul": (lambda x, w: x * w, None),
    "div": (lambda x, w: x / w, None),
    "pow": (lambda x, w: torch.pow(x, w), None),
    "pow_scalar": (lambda x, w: torch.pow(x, 2), "pow"),
    "rpow_scalar": (lambda x, w: 2**x, "pow"),
    "rdiv_scalar": (lambda x, w: 1 / x, "reciprocal"),
    "maximum": (lambda x, w: torch.maximum(x, w), None),
    "where": (lambda x, w: torch.where(x > 1, x, w), None),
    "cat": (lambda x, w: torch.cat([x, w]), None),
    "stack": (lambda x, w: torch.stack([x, w]), None),
    "softmax": (lambda x, w: torch.softmax(x, 0), None),
    "log_softmax": (lambda x, w: torch.log_softmax(x, 0), None),
    "cross_entropy": (lambda x, w: F.cross_entropy(x, torch.arange(4)), "nll_loss"),
    "mse_loss": (lambda x, w: F.mse_loss(x, w), None),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w[0], w[1]), None),
    "batch_norm": (lambda x, w: F.batch_norm(x, w[0], w[1] + 1), None),
    "matmul": (lambda x, w: torch.matmul(x, w), None),
    "linear": (lambda x, w: F.linear(x, w, w[0]), None),
    "conv2d": (lambda x, w: F.conv2d(rows(x), rows(w)), None),
    "attention": (lambda x, w: F.scaled_dot_product_attention(rows(x), rows(w), rows(w)),
                  "scaled_dot_product_attention"),
    "max_pool2d": (lambda x, w: F.max_pool2d(rows(x), 2), None),
    "embedding": (lambda x, w: F.embedding(torch.tensor([1, 2]), x), None),
    "dropout": (lambda x, w: F.dropout(x, 0.5), None),
})


def cuda_lists():
    header = open(os.path.join(os.path.dirname(torch.__file__), "include", "ATen", "autocast_mode.h")).read()
    lists = {}
    for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:[^\n]*\\\n)+[^\n]*)", header):
        lists[name] = set(re.findall(r"_\((\w+)", body))
    return lists["LOWER_PRECISION_FP"], lists["FP32"] | lists["FP32_SET_OPT_DTYPE"]


def convert(t, dtype):
    return t if t.dtype == torch.float64 else t.to(dtype)


def table():
    lower, f32 = cuda_lists()
    for name, (function, listed) in OPS.items():
        for dtype in ("bf16", "f16", "f32", "f64"):
            x = torch.ones(4, 4, dtype=DTYPES[dtype])
            w = torch.ones(4, 4, dtype=torch.float64 if dtype == "f64" else torch.float32)
            if dtype != "f16":          # torch.autocast("cpu") refuses f16 in some ops
                with torch.autocast("cpu"):
                    yield name, "cpu", dtype, DTYPE_NAMES[function(x, w).dtype]
            if (listed or name) in lower:
                x, w = convert(x, torch.float16), convert(w, torch.float16)
            elif (listed or name) in f32:
                x, w = convert(x, torch.float32), convert(w, torch.float32)
            yield name, "gpu", dtype, DTYPE_NAMES[function(x, w).dtype]


if __name__ == "__main__":
    setup()
    with open(here("autocast.txt"), "w") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n")
        out.write("# dtypes under torch.autocast by make_autocast.py: op device dtype result\n")
        out.write("# made with %s\n" % versions())
        for row in table():
            out.write(" ".join(row) + "\n")
