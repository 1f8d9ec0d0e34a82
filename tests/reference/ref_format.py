# SPDX-License-Identifier: Apache-2.0
"""The text format of the reference files (described in README.md), and the torch settings that every script shares.

A file is a list of records:

    # a comment
    tensor NAME DTYPE NDIM d0 d1 ...
    v v v ...          numel values, row major, on any number of lines
    text NAME the rest of the line

Floating-point values are C99 hexadecimal floats, from which strtod returns the exact value, or nan, inf and -inf.
Integers are decimal, booleans 0 or 1.
"""
import os
import sys

import torch

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "bool": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LINE = 118


def setup():
    """Selects one thread and deterministic kernels, so that each run of a script on the same machine gives the same
    results."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20240229)


def cpu_model():
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def versions():
    return "PyTorch %s, Python %s, %s, CPU kernels %s, 1 thread" % (
        torch.__version__, sys.version.split()[0], cpu_model(), torch.backends.cpu.get_cpu_capability())


def number(v):
    """Returns a value as text in the format of printf's %a. float.hex() differs from it: it pads the mantissa to 13
    digits."""
    if isinstance(v, bool):
        return "1" if v else "0"
    if isinstance(v, int):
        return str(v)
    text = v.hex()
    if "p" not in text:
        return text                                     # nan, inf, -inf
    mantissa, exponent = text.split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return mantissa + "p" + exponent


class RefFile:
    """Collects records and writes them all at the end, so that a script that fails does not change the old file."""

    def __init__(self, path, *comments):
        self.path = path
        self.lines = ["# SPDX-License-Identifier: Apache-2.0"]
        self.names = set()
        self.comment(*comments)

    def comment(self, *lines):
        self.lines.extend("# " + line if line else "#" for line in lines)

    def _claim(self, name):
        if name in self.names or not name or any(c.isspace() for c in name):
            raise ValueError("%s: bad or repeated name '%s'" % (self.path, name))
        self.names.add(name)

    def tensor(self, name, value, dtype=None):
        self._claim(name)
        t = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
        t = t.detach()
        self.lines.append(" ".join(["tensor", name, DTYPE_NAMES[t.dtype], str(t.dim())] + [str(d) for d in t.shape]))
        self._values(t)

    def _values(self, t):
        line = ""
        for v in t.reshape(-1).tolist():
            word = number(v)
            if line and len(line) + 1 + len(word) > LINE:
                self.lines.append(line)
                line = word
            else:
                line = line + " " + word if line else word
        if line:
            self.lines.append(line)

    def f64(self, name, value):
        """Adds a Python number or list as a float64 tensor."""
        self.tensor(name, value, torch.float64)

    def i64(self, name, value):
        self.tensor(name, value, torch.int64)

    def text(self, name, words):
        self._claim(name)
        self.lines.append("text %s %s" % (name, " ".join(str(words).split())))

    def write(self):
        body = "\n".join(self.lines) + "\n"
        temporary = self.path + ".tmp"
        with open(temporary, "w") as out:
            out.write(body)
        os.replace(temporary, self.path)
        print("%-28s %4d records %7d bytes" % (os.path.basename(self.path), len(self.names), len(body)))


def here(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def read(path):
    """Returns the tensors of a reference file by name."""
    tensors = {}
    with open(path) as lines:
        lines = iter(lines)
        for line in lines:
            words = line.split()
            if not words or words[0] != "tensor":
                continue
            name, dtype, shape = words[1], DTYPES[words[2]], [int(d) for d in words[4:]]
            total, values = 1, []
            for d in shape:
                total *= d
            parse = float.fromhex if dtype.is_floating_point else int
            while len(values) < total:
                values.extend(parse(word) for word in next(lines).split())
            tensors[name] = torch.tensor(values, dtype=dtype).reshape(shape)
    return tensors
