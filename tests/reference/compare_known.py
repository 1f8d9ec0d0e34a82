# SPDX-License-Identifier: Apache-2.0
"""Intended differences between ctrt and PyTorch, each with its reason."""

import re

# (kind, name of the case, text of the case, message, reason): a difference is known when all four regular expressions
# are found. Make them narrow, because a row also hides every defect that it matches.
KNOWN = [
    ("programs|ops", "", "", "ctrt refuses.*elements of the expanded tensor",
     "in place on an expanded tensor: PyTorch lets some ops do it, ctrt none"),
    ("programs|ops", "", "", "PyTorch refuses.*(refer to a single memory location|written-to tensor)",
     "operands that overlap the written tensor: ctrt copies them first"),
    ("ops", "^(max|min|square|sign|matmul|pow_scalar)$", "bool", "ctrt refuses.*not defined for bool",
     "ctrt has no kernel for bool"),
    ("ops", "softmax", r"input 0: (bool|[iu]\d+) .*[\[( ]0[,\])]", "ctrt refuses.*expected a floating type",
     "integers: PyTorch refuses them too, unless there are no elements"),
    ("ops", "_scalar$|clamp|_$|masked_fill", "", "ctrt refuses.*cannot be represented in",
     "a number outside of the tensor's integer type: PyTorch wraps it"),
    ("ops", "clamp|pow", "f16|u8", "PyTorch refuses.*(without overflow|outside the representable range)",
     "a number outside of the dtype's range: ctrt rounds it, or compares with it"),
    ("ops", "^where$", "u8", "ctrt refuses.*condition has dtype u8",
     "a condition is bool; PyTorch still takes u8, for its old programs"),
    ("ops", "^(remainder|fmod)", "special", "^output 0.*ctrt -?[0-9.e-]+, PyTorch nan, in f64 -?[0-9]",
     "the quotient overflows in PyTorch; ctrt's result is exact"),
    ("ops", "^(remainder|fmod)", "input [01]: f64 .*special", "^output 0.*ctrt -?[0-9.e-]+, PyTorch nan, in f64 nan",
     "the same, where f64 overflows too"),
    ("ops", "^(erf|gelu|silu)", "f64 .*special", "^second derivative.*ctrt -?0.0, PyTorch nan, in f64 nan",
     "the square of a large f64 overflows in PyTorch's derivative"),
    ("ops", "^prod", "f64 .*special", "^(gradient|second derivative).*ctrt -?inf, PyTorch",
     "the product of all factors overflows: ctrt divides it by one of them"),
    ("ops", "^prod", "special", "^second derivative.*ctrt (-?inf|nan), PyTorch (-?inf|nan), in f64 -?[0-9]",
     "products of extreme factors overflow in both, on different ways"),
    ("ops", "^rdiv_scalar$", r"^rdiv_scalar -?0(\.0)?\n.*special", "ctrt -?0.0, PyTorch nan",
     "the derivative of 0/x is 0; PyTorch multiplies 0 by 1/x^2, which overflows"),
    ("ops", "^(add|sub|mul|div)$", r"input 0: f(32|64) \[\] .*\n.*input 1: b?f16 \[[0-9]", "^output",
     "a 0-dim tensor beside a half tensor: PyTorch rounds it to half first, ctrt the result alone"),
    ("ops", "^cat$", r"(\[0\] |\(0,\))", "ctrt refuses.*cat: dimension -?[0-9] is out of range",
     "PyTorch ignores the dimension when each tensor has shape [0]"),
    ("ops", "^(any|all)$", "u8", "dtype torch.bool, PyTorch torch.uint8",
     "any and all of u8 are bool; u8 in PyTorch, for its old programs"),
    ("ops", "arange", "", "ctrt refuses.*cannot be converted to",
     "a start outside of the integer type: PyTorch wraps it"),
    ("ops", "^cross_entropy", "of [1-9][0-9]* targets", "gradient.*ctrt 0.0, PyTorch nan",
     "the gradient of an ignored row is 0 whatever its logits"),
    ("programs", "", r"v(\d+)\.mul_\(v\1\)", "PyTorch refuses.*modified by an inplace operation",
     "v.mul_(v): ctrt saves a copy of what it overwrites"),
    ("programs", "", "", "PyTorch refuses.*backward through the graph a second time",
     "ctrt refuses a second pass only where an op had saved a tensor that is needed again"),
    ("ops", "sub|^pow$", "", "PyTorch refuses.*Subtraction, the `-` operator, with a bool tensor",
     "sub promotes one bool operand as add does, also in pow's derivative; both refuse two bools"),
]


def known(kind, name, text, message):
    for row in KNOWN:
        if all(re.search(pattern, subject) for pattern, subject in zip(row, (kind, name, text, message))):
            return row[4]
    return None
