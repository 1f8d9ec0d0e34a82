# SPDX-License-Identifier: Apache-2.0
"""Writes the cases of an op as records. A case is named OP.WHAT. Its records are

    OP.WHAT/in/NAME        inputs
    OP.WHAT/attr/NAME      attributes: i64, f64 or bool tensors; words are `text` records
    OP.WHAT/out            an exact result: dtype, values and NaN must be equal
    OP.WHAT/out/NAME       further exact results (indices)
    OP.WHAT/out64          a rounded result, in float64, to be compared with a tolerance
    OP.WHAT/gout           the gradient that is passed to backward (float32 multiples of 1/8)
    OP.WHAT/grad64/NAME    the gradient of input NAME, in float64
    OP.WHAT/error          `text`: the message of the error that PyTorch reports
"""
import torch

from ref_format import RefFile, here, versions


class Cases(RefFile):
    def __init__(self, name, *comments):
        super().__init__(here(name), *comments, "made with " + versions(),
                         "cases and records are named as README.md tells; zeros compare equal whatever their sign, "
                         "except where attr/zero_sign is 1")

    def _inputs(self, case, inputs, attrs):
        for name, value in inputs.items():
            if value is not None:
                self.tensor(case + "/in/" + name, value)
        for name, value in attrs.items():
            if isinstance(value, str):
                self.text(case + "/attr/" + name, value)
            else:
                sample = value[0] if isinstance(value, (list, tuple)) and value else value
                dtype = torch.bool if isinstance(sample, bool) else \
                    torch.float64 if isinstance(sample, float) else torch.int64
                self.tensor(case + "/attr/" + name, value, dtype)

    def exact(self, case, fn, inputs, attrs=None, pointwise=False, outputs=()):
        """Writes a result that must be matched exactly. `pointwise`: fn is elementwise; raises ValueError if the result
        for a single element differs from that element of the whole result, because PyTorch's vector and scalar code
        then disagree and cannot be a reference."""
        self._inputs(case, inputs, attrs or {})
        result = fn(*inputs.values())
        if outputs:
            for name, value in zip(outputs, result):
                self.tensor(case + "/out" + ("/" + name if name else ""), value)
            return
        if pointwise:
            signed = bool((attrs or {}).get("zero_sign"))
            whole = torch.broadcast_tensors(*inputs.values())
            for i in range(whole[0].numel()):
                one = fn(*[t.reshape(-1)[i:i + 1].clone() for t in whole])
                if not same(one, result.reshape(-1)[i:i + 1], signed):
                    raise ValueError("%s: element %d (%s) alone gives %s, in the row %s" % (
                        case, i, [t.reshape(-1)[i].item() for t in whole], one.item(), result.reshape(-1)[i].item()))
        self.tensor(case + "/out", result)

    def smooth(self, case, fn, inputs, attrs=None, grads=None, tolerance=1e-4):
        """Writes a result that is computed in float64 from float32 inputs, and the gradients of the inputs named in
        `grads` (default: all floating-point inputs). Raises ValueError if PyTorch's float32 result differs by more than
        `tolerance`, because such a case cannot be used to test float32."""
        self._inputs(case, inputs, attrs or {})
        wide = {name: t.detach().double() if t is not None and t.is_floating_point() else t
                for name, t in inputs.items()}
        if grads is None:
            grads = [name for name, t in wide.items() if t is not None and t.is_floating_point()]
        for name in grads:
            wide[name].requires_grad_(True)
        out = fn(*wide.values())
        narrow = fn(*inputs.values())
        exact, finite = out.detach(), torch.isfinite(out.detach())
        if not same(narrow.detach().double()[~finite], exact[~finite]):
            raise ValueError("%s: NaN or infinity in float64 is something else in float32" % case)
        gap = (narrow.detach().double() - exact)[finite].abs()
        if gap.numel() and not gap.max() <= tolerance * exact[finite].abs().max().clamp_min(1):
            raise ValueError("%s: float32 is %g away from float64" % (case, gap.max()))
        self.tensor(case + "/out64", out)
        if grads:
            gout = cotangent(out)
            self.tensor(case + "/gout", gout)
            found = torch.autograd.grad(out, [wide[name] for name in grads], gout.double())
            for name, g in zip(grads, found):
                self.tensor(case + "/grad64/" + name, g)

    def fails(self, case, fn, inputs, attrs=None):
        self._inputs(case, inputs, attrs or {})
        try:
            fn(*inputs.values())
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            self.text(case + "/error", str(error).split("\n")[0][:200])
            return
        raise ValueError(case + ": PyTorch does this without complaint")


def same(a, b, signed=False):
    """Returns whether a and b are equal. NaN is equal to NaN; if `signed`, -0 differs from 0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    equal = (a == b) | (a.isnan() & b.isnan())
    if signed:
        equal &= (a.signbit() == b.signbit()) | a.isnan()
    return bool(equal.all())


def cotangent(out):
    """Returns a gradient to pass to backward: small multiples of 1/8, adjacent elements differ; 1 for a 0-dim
    result."""
    if out.dim() == 0:
        return torch.tensor(1.0)
    steps = torch.arange(out.numel()) * 5 % 13 - 6
    return (steps.to(torch.float32) / 8).reshape(out.shape)


def grid(*shape, low=-2.0, high=2.0, step=0.0625):
    """Returns random multiples of `step`, which are exact in float32 and short in the file."""
    return torch.randint(round(low / step), round(high / step) + 1, shape).to(torch.float32) * step


def f32(*values):
    return torch.tensor(values, dtype=torch.float32)
