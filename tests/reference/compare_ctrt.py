# SPDX-License-Identifier: Apache-2.0
"""Calls libctrt.so through ctypes, for compare.py. Reads the argument and result types of the functions from the public
headers, and converts tensors to and from PyTorch."""

import ctypes as c
import glob
import os
import re

import torch

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
NAMES = {torch_dtype: name for name, torch_dtype in DTYPES.items()}
ALL = "all dimensions"  # as an argument of type ctrt_ints


class Refused(Exception):
    """A call of ctrt that returned an error."""


class Scalar(c.Structure):
    _fields_ = [("kind", c.c_int), ("i", c.c_int64), ("f", c.c_double), ("imaginary", c.c_double)]

    def __init__(self, value):
        if isinstance(value, bool):
            super().__init__(0, value, 0)
        elif isinstance(value, int):
            super().__init__(1, value, 0)
        else:
            super().__init__(2, 0, value)


class Ints(c.Structure):
    _fields_ = [("values", c.POINTER(c.c_int64)), ("count", c.c_int)]

    def __init__(self, values):
        if values is ALL:
            super().__init__(None, -1)
        else:
            self.kept = (c.c_int64 * max(len(values), 1))(*values)
            super().__init__(c.cast(self.kept, c.POINTER(c.c_int64)), len(values))


class Modules(c.Structure):
    _fields_ = [("modules", c.c_void_p), ("count", c.c_int)]


class Options(c.Structure):
    """A struct of options: its first member, which the subclasses do not list, is its size."""

    _fields_ = [("size", c.c_size_t)]

    def __init__(self, *members, **named):
        super().__init__(c.sizeof(self), *members, **named)


class Conv2dOptions(Options):
    _fields_ = [(name, c.c_int64 * 2) for name in ("stride", "padding", "dilation")] + [("groups", c.c_int64)]


class Pool2dOptions(Options):
    _fields_ = [(name, c.c_int64 * 2) for name in ("kernel", "stride", "padding", "dilation")]


class CrossEntropyOptions(Options):
    _fields_ = [
        ("weight", c.c_void_p),
        ("ignore_index", c.c_int64),
        ("label_smoothing", c.c_double),
        ("reduction", c.c_int),
    ]


class BatchNormOptions(Options):
    _fields_ = [("epsilon", c.c_double), ("momentum", c.c_double), ("affine", c.c_bool)]


class LayerNormOptions(Options):
    _fields_ = [("epsilon", c.c_double), ("affine", c.c_bool)]


class EmbeddingOptions(Options):
    _fields_ = [("padding_idx", c.c_int64)]


class MultiheadAttentionOptions(Options):
    _fields_ = [("dropout", c.c_double), ("bias", c.c_bool), ("causal", c.c_bool)]


class AttentionOptions(Options):
    _fields_ = [("dropout_p", c.c_double), ("causal", c.c_bool), ("has_scale", c.c_bool), ("scale", c.c_double)]


PLAIN = {
    "int": c.c_int,
    "int64_t": c.c_int64,
    "uint64_t": c.c_uint64,
    "uint32_t": c.c_uint32,
    "size_t": c.c_size_t,
    "bool": c.c_bool,
    "double": c.c_double,
    "ctrt_scalar": Scalar,
    "ctrt_ints": Ints,
    "ctrt_module_list": Modules,
    "void": None,
}


def ctype(text):
    """Returns the ctypes type of a C parameter or result such as "const int64_t *shape"."""
    if "*" in text or "[" in text or "(" in text:
        return c.c_char_p if re.match(r"const char \*[^*]*$", text.strip()) else c.c_void_p
    words = text.replace("const", "").split()
    return PLAIN.get(words[0], c.c_int)  # everything else is an enum


def declare(lib, headers):
    """Sets the argument and result types of every CTRT_API function in the headers."""
    text = "".join(
        open(path).read()
        for path in sorted(glob.glob(os.path.join(headers, "ctrt", "*.h")))
        if not path.endswith("plugin.h")
    )
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    forms = {  # suffix and parameters of an op's functions
        ("UNARY", "no"): [("", "ctrt_tensor **out, ctrt_tensor *x")],
        ("UNARY", "yes"): [("_", "ctrt_tensor *self")],
        ("BINARY", "no"): [
            ("", "ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b"),
            ("_scalar", "ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b"),
        ],
        ("BINARY", "yes"): [
            ("_", "ctrt_tensor *self, ctrt_tensor *other"),
            ("_scalar_", "ctrt_tensor *self, ctrt_scalar other"),
        ],
    }
    rows = open(os.path.join(headers, "ctrt", "ops.def")).read()
    for name, form, in_place in re.findall(
        r"^CTRT_OP\((\w+), +(UNARY|BINARY), +\w+, +\w+, +\w+, +\w+, +(\w+),", rows, flags=re.M
    ):
        for suffix, parameters in forms[form, "no"] + (forms[form, "yes"] if in_place == "yes" else []):
            text += "CTRT_API ctrt_status ctrt_%s%s(%s);" % (name, suffix, parameters)
    for result, name, parameters in re.findall(
        r"CTRT_API\s+([\w ]+?[\s*]+)(ctrt_\w+)\(((?:[^()]|\([^()]*\))*)\)", text
    ):
        if "..." in parameters:
            continue
        function = getattr(lib, name)
        function.restype = ctype(result + " result")
        depth, arguments, start = 0, [], 0
        for i, letter in enumerate(parameters + ","):
            depth += (letter == "(") - (letter == ")")
            if letter == "," and depth == 0:
                arguments.append(parameters[start:i].strip())
                start = i + 1
        function.argtypes = [ctype(a) for a in arguments if a != "void"]


class Handle:
    """A variable that owns one reference, or NULL."""

    kind = "tensor"

    def __init__(self):
        self.handle = c.c_void_p()

    def __del__(self):
        if self.handle.value:
            getattr(LIB, "ctrt_%s_release" % self.kind)(c.byref(self.handle))


class Tensor(Handle):
    @property
    def shape(self):
        ndim = LIB.ctrt_tensor_ndim(self.handle)
        return tuple(c.cast(LIB.ctrt_tensor_shape(self.handle), c.POINTER(c.c_int64))[:ndim]) if ndim else ()

    @property
    def dtype(self):
        return DTYPE_OF[LIB.ctrt_tensor_dtype(self.handle)]

    @property
    def requires_grad(self):
        return LIB.ctrt_tensor_requires_grad(self.handle)

    @property
    def is_leaf(self):
        return LIB.ctrt_tensor_is_leaf(self.handle)

    @property
    def grad(self):
        """A new reference to the gradient, or None."""
        found = LIB.ctrt_tensor_grad(self.handle)
        return borrowed(found) if found else None

    def torch(self):
        host = torch.empty(self.shape, dtype=self.dtype)
        call("to_host", host.data_ptr(), max(host.numel() * host.element_size(), 1), self, VALUE[self.dtype])
        return host


class Stream(Handle):
    kind = "stream"


class Module(Handle):
    kind = "module"


class Optimizer(Handle):
    kind = "optimizer"


def borrowed(pointer):
    tensor = Tensor()
    tensor.handle.value = LIB.ctrt_tensor_retain(pointer)
    return tensor


def convert(value, wanted):
    if isinstance(value, Handle):
        return value.handle
    if isinstance(value, torch.dtype):
        return VALUE[value]
    if wanted is Scalar:
        return Scalar(value)
    if wanted is Ints:
        return Ints(value)
    return value


def call(name, *arguments):
    """ctrt_NAME(arguments); raises Refused with the message."""
    function = getattr(LIB, "ctrt_" + name)
    status = function(*[convert(value, wanted) for value, wanted in zip(arguments, function.argtypes, strict=True)])
    if status != 0:
        raise Refused("%d: %s" % (status, LIB.ctrt_error_message().decode(errors="replace")))


def op(name, *arguments, outs=1, kind=Tensor):
    """ctrt_NAME with `outs` new handles before the arguments; returns the handle, or a tuple of them."""
    results = [kind() for _ in range(outs)]
    call(name, *[c.byref(result.handle) for result in results], *arguments)
    return results[0] if outs == 1 else tuple(results)


def finish():
    """Waits for the device's work. Raises the error of an op that failed after its call, and resets the stream."""
    try:
        call("device_synchronize", DEVICE)
    except Refused:
        call("stream_reset", op("stream_default", DEVICE, kind=Stream))
        raise


def handles(tensors):
    return (c.c_void_p * max(len(tensors), 1))(*[tensor.handle.value for tensor in tensors])


def from_torch(value):
    """A contiguous copy on the chosen device."""
    value = value.detach().contiguous()
    return op("from_data", value.data_ptr(), value.numel(), tuple(value.shape), value.dtype, DEVICE)


def backward(tensor, gradient=None, retain_graph=False, create_graph=False):
    call("backward_with", tensor, gradient, retain_graph, create_graph)


def grad(output, inputs, gradient=None, retain_graph=False, create_graph=False):
    """Gradients, None for inputs that the output does not depend on."""
    out = (c.c_void_p * len(inputs))()
    call("grad", out, output, handles(inputs), len(inputs), gradient, retain_graph, create_graph, True)
    results = []
    for pointer in out:
        results.append(None)
        if pointer:
            results[-1] = Tensor()
            results[-1].handle.value = pointer
    return results


def load(library, device):
    """Loads the library and opens the device; the other functions of this file need it."""
    global LIB, DEVICE, VALUE, DTYPE_OF
    built = os.path.join(os.path.dirname(os.path.abspath(library)), "..", "plugins-built")
    if os.path.isdir(built):  # a library in its build tree
        os.environ.setdefault("CTRT_PLUGIN_PATH", built)
    LIB = c.CDLL(library)
    declare(LIB, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "include"))
    VALUE, name, value, index = {}, c.c_char_p(), c.c_int(), 0
    while LIB.ctrt_dtype_get(c.byref(name), c.byref(value), index) == 0:
        VALUE[DTYPES[name.value.decode()]] = value.value
        index += 1
    DTYPE_OF = {value: dtype for dtype, value in VALUE.items()}
    pointer = c.c_void_p()
    call("device_get", c.byref(pointer), device.encode())
    DEVICE = pointer.value
    call("set_default_device", DEVICE)
