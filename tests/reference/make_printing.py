#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes printing.txt: tensors and the text that PyTorch prints for them.

Records of a case: CASE/x the tensor; `lines CASE/print N` followed by N lines, each after a `|`;
CASE/attr/requires_grad if it is set; CASE/attr/precision and other options if torch.set_printoptions was called."""
import torch

from ref_format import DTYPES, RefFile, here, setup, versions

NAN, INF = float("nan"), float("inf")


def printed(out, case, x, requires_grad=False, **options):
    torch.set_printoptions(profile="default", sci_mode=None)
    if options:
        torch.set_printoptions(**options)
    out.tensor(case + "/x", x)
    if requires_grad:
        x = x.clone().requires_grad_(True)
        out.tensor(case + "/attr/requires_grad", True, torch.bool)
    for name, value in options.items():
        out.tensor(case + "/attr/" + name, value, torch.bool if isinstance(value, bool) else torch.int64)
    text = str(x).split("\n")
    out.lines.append("lines %s/print %d" % (case, len(text)))
    out.lines.extend("|" + line for line in text)
    torch.set_printoptions(profile="default", sci_mode=None)


def main():
    setup()
    t, grid = torch.tensor, lambda *s: (torch.arange(float(torch.Size(s).numel())) * 7 % 11 - 5).reshape(s) / 4
    out = RefFile(here("printing.txt"), "text that PyTorch prints for tensors, by make_printing.py",
                  "made with " + versions())

    out.comment("", "one number")
    for case, value, dtype in (("zero_dim", 1.5, "f32"), ("zero_dim_small", 1e-6, "f32"), ("zero_dim_int", 7, "i64"),
                               ("zero_dim_i32", -7, "i32"), ("zero_dim_bool", True, "bool"),
                               ("zero_dim_nan", NAN, "f32"), ("zero_dim_f64", 0.1, "f64"),
                               ("zero_dim_f16", 0.1, "f16"), ("zero_dim_whole", 3.0, "f32"),
                               ("zero_dim_large", 123456789.0, "f32")):
        printed(out, case, t(value, dtype=DTYPES[dtype]))
    printed(out, "one_element", t([2.5]))

    out.comment("", "element types")
    printed(out, "f32", t([1.0, 2.5, -3.25]))
    printed(out, "f64", t([1.0, 2.5, -3.25], dtype=torch.float64))
    printed(out, "f16", t([1.0, 2.5, 0.1], dtype=torch.float16))
    printed(out, "bf16", t([1.0, 2.5, 0.1], dtype=torch.bfloat16))
    for name in ("i8", "i16", "i32", "i64"):
        printed(out, name, t([1, -20, 100], dtype=DTYPES[name]))
    printed(out, "u8", t([1, 20, 255], dtype=torch.uint8))
    printed(out, "bool", t([[True, False], [False, True]]))
    printed(out, "i64_extremes", t([2 ** 63 - 1, -2 ** 63]))

    out.comment("", "floating numbers: whole ones lose their digits; scientific when the largest is 1000 times the "
                "smallest,",
                "or above 1e8, or the smallest below 1e-4")
    printed(out, "whole", t([1.0, -2.0, 300.0]))
    printed(out, "whole_large", t([1e7, 1.0]))
    printed(out, "whole_scientific", t([1e9, 1.0]))
    printed(out, "ratio_1000", t([0.5, 500.0]))
    printed(out, "ratio_above_1000", t([0.5, 500.5]))
    printed(out, "small", t([1e-4, 2e-4]))
    printed(out, "smaller", t([9e-5, 1e-4]))
    printed(out, "scientific", t([1e-10, 1.5, -3e5]))
    printed(out, "scientific_exponent3", t([1e-300, 1.0, 1e200], dtype=torch.float64))
    printed(out, "large_fraction", t([99999999.0, 0.5], dtype=torch.float64))
    printed(out, "mixed_widths", t([[1.5, -10.25], [100.125, 0.0]]))
    printed(out, "rounding", t([0.00005, 0.99995, 1.00005, 2.5]))
    printed(out, "negative_zero", t([-0.0, 0.0, 1.5]))
    printed(out, "nonfinite_whole", t([1.0, INF, -INF, NAN]))
    printed(out, "nonfinite_fraction", t([1.5, -INF, NAN, 100.25]))
    printed(out, "nonfinite_only", t([INF, NAN, -INF]))
    printed(out, "nonfinite_scientific", t([1e-10, INF, 1.0, NAN]))
    printed(out, "subnormal", t([1e-45, 1e-40]))

    out.comment("", "shapes: a line holds 80 characters; blocks are parted by blank lines")
    printed(out, "matrix", grid(3, 4))
    printed(out, "three_dims", grid(2, 3, 2))
    printed(out, "four_dims", grid(2, 2, 2, 2))
    printed(out, "long_row", torch.arange(40) * 3)
    printed(out, "long_row_float", grid(30))
    printed(out, "long_rows", grid(2, 25))
    printed(out, "column", grid(4, 1))

    out.comment("", "empty tensors: the shape is printed unless it is [0]")
    printed(out, "empty", torch.zeros(0))
    printed(out, "empty_i64", torch.zeros(0, dtype=torch.int64))
    printed(out, "empty_shape", torch.zeros(2, 0, 3))
    printed(out, "empty_shape_i32", torch.zeros(0, 2, dtype=torch.int32))

    out.comment("", "more than 1000 elements: three at either end of each dimension")
    printed(out, "row_1001", torch.arange(1001))
    printed(out, "summary_matrix", torch.arange(1050.0).reshape(30, 35))
    printed(out, "summary_one_short_dim", torch.arange(1002).reshape(2, 501))
    printed(out, "summary_six", torch.arange(1050).reshape(6, 175))
    printed(out, "summary_three_dims", (torch.arange(1100.0) % 9).reshape(10, 11, 10) / 2)
    hidden = torch.zeros(1001)
    hidden[500] = 1e6                                     # the width is determined by the printed elements only
    printed(out, "summary_hidden", hidden)

    out.comment("", "suffixes and options")
    printed(out, "requires_grad", t([1.0, 2.5]), requires_grad=True)
    printed(out, "requires_grad_f64", t([[1.0], [2.5]], dtype=torch.float64), requires_grad=True)
    printed(out, "precision_2", t([1.23456, 100.0]), precision=2)
    printed(out, "threshold_5", torch.arange(20), threshold=5)
    printed(out, "threshold_just_met", torch.arange(20), threshold=20)
    printed(out, "edgeitems_1", torch.arange(20).reshape(4, 5), threshold=5, edgeitems=1)
    printed(out, "linewidth_40", grid(12), linewidth=40)
    printed(out, "sci_mode_true", t([1.5, 20.0]), sci_mode=True)
    printed(out, "sci_mode_false", t([1e-10, 20.0]), sci_mode=False)
    out.write()


if __name__ == "__main__":
    main()
