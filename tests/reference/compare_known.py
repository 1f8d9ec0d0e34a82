# SPDX-License-Identifier: Apache-2.0
"""Differences between ctrt and PyTorch that are meant, each with its reason."""
import re

# (kind, name of the case, what the case's text has to match, what the message has to match, reason); regular
# expressions.
KNOWN = [
    ("programs|ops", "", "", "ctrt refuses.*elements of the expanded tensor",
     "in place on an expanded tensor: PyTorch lets some ops do it, ctrt none"),
    ("programs|ops", "", "", "PyTorch refuses.*(refer to a single memory location|written-to tensor)",
     "operands that overlap the written tensor: ctrt copies them first"),
    ("ops", "", "", "ctrt refuses.*(not defined for bool|expected a floating type)",
     "ctrt refuses the dtype; PyTorch takes it, some only when empty"),
    ("ops", "_scalar$|clamp|_$|masked_fill", "", "ctrt refuses.*is no value of",
     "a number outside of the tensor's integer type: PyTorch wraps it"),
    ("ops", "clamp|pow", "f16|u8", "PyTorch refuses.*(without overflow|outside the representable range)",
     "a number outside of the dtype's range: ctrt rounds it, or compares with it"),
    ("ops", "^where$", "u8", "ctrt refuses.*condition has dtype u8", "a condition is bool; PyTorch still takes u8, for its old programs"),
    ("ops", "^(remainder|fmod)", "special", r"ctrt -?[\d.]+(e-\d+)?, PyTorch nan",
     "the quotient overflows in PyTorch; ctrt's remainder is exact"),
    ("ops", "^rdiv_scalar$", r"^rdiv_scalar -?0(\.0)?\n.*special", "ctrt -?0.0, PyTorch nan",
     "the derivative of 0/x is 0; PyTorch multiplies 0 by 1/x^2, which overflows"),
    ("ops", "^(any|all)$", "u8", "dtype torch.bool, PyTorch torch.uint8",
     "any and all of u8 are bool; u8 in PyTorch, for its old programs"),
    ("ops", "^scaled_dot", "", "derivative: PyTorch refuses.*not implemented",
     "PyTorch has no second derivative of attention"),
    ("ops", "^prod", "special", "^(gradient|second derivative).*PyTorch nan, in f64 nan",
     "PyTorch divides the product by a factor that is infinite or NaN; ctrt multiplies the others"),
    ("ops", "^prod", "special", "^second derivative.*ctrt (-?inf|nan), PyTorch (-?inf|nan), in f64 -?[0-9]",
     "products of extreme factors overflow in both, on different ways"),
    ("ops", "^(add|sub|mul|div)$", r"input 0: f(32|64) \[\] .*\n.*input 1: b?f16 \[[0-9]", "^output",
     "a 0-dim tensor beside a half tensor: PyTorch rounds it to half first, ctrt the result alone"),
    ("ops", "^cat", "", "ctrt refuses.*dimensions",
     "an empty 1-d tensor beside others of more dimensions: PyTorch skips it, for its old programs"),
    ("ops", "^gelu", "special", "(ctrt|PyTorch) nan", "gelu of infinities: PyTorch's own kernels disagree"),
    ("ops", "arange", "", "ctrt refuses.*cannot be converted to",
     "a start outside of the integer type: PyTorch wraps it"),
    ("ops", "clamp", "", "PyTorch refuses.*without overflow", "a limit beyond f16's range: ctrt rounds it to infinity"),
    ("ops", "^scaled_dot", r"bool.*\n?", "ctrt nan, PyTorch",
     "a row whose mask hides everything is NaN (ctrt/ops.h); 0 in PyTorch"),
    ("ops", "^cross_entropy", "-100|ignore_index", "gradient.*ctrt 0.0, PyTorch nan",
     "the gradient of an ignored row is 0 whatever its logits"),
    ("programs", "", r"(mul_|sub_)\(v", "PyTorch refuses.*modified by an inplace operation",
     "v.mul_(v): ctrt saves a copy of what it overwrites"),
    ("programs", "", "", "PyTorch refuses.*backward through the graph a second time",
     "ctrt refuses a second pass only where an op had saved a tensor that is needed again"),
    ("ops", "floor_divide", "", "derivative: PyTorch refuses.*floor_divide is not implemented",
     "floor_divide: ctrt's result does not require grad"),
    ("ops", "floor_divide", "", "requires_grad False, PyTorch True",
     "floor_divide: ctrt's result does not require grad"),
    ("ops", "sub|^pow$", "", "PyTorch refuses.*Subtraction, the `-` operator, with a bool tensor",
     "sub promotes one bool operand as add does, also in pow's derivative; both refuse two bools"),
]


def known(kind, name, text, message):
    for row in KNOWN:
        if all(re.search(pattern, subject) for pattern, subject in zip(row, (kind, name, text, message))):
            return row[4]
    return None
