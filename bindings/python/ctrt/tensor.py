# SPDX-License-Identifier: Apache-2.0
"""Tensors with PyTorch's methods. Most are the functions of api.py; here are those that need another form in Python."""

import builtins
import numbers
import operator

from . import api, dlpack
from ._core import *
from ._core import Device, Handle, dtypes

_ARRAY_TYPES = {"bool": "|b1", "bfloat16": None}


class Tensor(Handle, kind="tensor"):
    """A reference to a tensor. Views share their elements, as in PyTorch."""

    __array_priority__ = 1000       # NumPy's operators give precedence to this class

    # ---- properties ----

    shape = property(lambda self: tuple(lib.ctrt_tensor_shape(self._p[0])[0 : self.ndim]))
    ndim, dtype = property(api.tensor_ndim), property(api.tensor_dtype)
    device, is_leaf = property(api.tensor_device), property(api.tensor_is_leaf)
    grad_fn = property(api.tensor_grad_fn)
    data = property(lambda self: self.detach())
    T = property(lambda self: self.permute(*reversed(range(self.ndim))))
    requires_grad = property(api.tensor_requires_grad, api.tensor_require_grad)
    grad = property(api.tensor_grad, api.tensor_set_grad)
    dim, numel, storage_offset = api.tensor_ndim, api.tensor_numel, api.tensor_offset
    is_contiguous, retain_grad, item = api.tensor_is_contiguous, api.tensor_retain_grad, api.item_scalar
    __repr__ = api.tensor_format

    def requires_grad_(self, requires_grad=True):
        api.tensor_require_grad(self, requires_grad)
        return self

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim=None):
        strides = tuple(lib.ctrt_tensor_strides(self._p[0])[0 : self.ndim])
        return strides if dim is None else strides[dim]

    def element_size(self):
        return self.dtype.itemsize

    def data_ptr(self):
        address = lib.ctrt_tensor_data(self._p[0])
        if not address and self.numel():
            raise RuntimeError(text_result(lib.ctrt_error_message()))
        return int(ffi.cast("uintptr_t", address))

    # ---- autograd ----

    def backward(self, gradient=None, retain_graph=False, create_graph=False):
        api.backward_with(self, gradient, retain_graph or create_graph, create_graph)

    def register_hook(self, hook):
        """`hook` receives the gradient and may return another one. Returns an object with a method remove()."""
        from .callbacks import tensor_hook

        return tensor_hook(self, hook)

    # ---- values ----

    def tolist(self):
        if self.ndim == 0:
            return self.item()
        floating = self.dtype.is_floating_point
        buffer = new("double[]" if floating else "int64_t[]", self.numel())
        api.to_host(buffer, ffi.sizeof(buffer), self, "float64" if floating else "int64")
        values = list(buffer)
        if self.dtype is dtypes["bool"]:
            values = [bool(value) for value in values]
        return _nested(values, self.shape)

    def __bool__(self):
        return bool(self.item())

    def __int__(self):
        return int(self.item())

    def __float__(self):
        return float(self.item())

    def __index__(self):
        if self.dtype.is_floating_point or self.numel() != 1:
            raise TypeError("only integer tensors of one element can be an index")
        return int(self.item())

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __format__(self, spec):
        return format(self.item(), spec) if spec else str(self)

    def __hash__(self):
        return id(self)

    def __deepcopy__(self, memo):
        if not self.is_leaf:
            raise RuntimeError("only leaves can be copied by copy.deepcopy; detach() the tensor first")
        return type(self)._of(api.clone(self.detach()).requires_grad_(self.requires_grad))

    @classmethod
    def _of(cls, tensor):
        made = object.__new__(cls)
        made._p, tensor._p = tensor._p, None
        return made

    # ---- exchange with other libraries ----

    @property
    def __array_interface__(self):
        """Memory of the cpu, which NumPy uses without a copy; the array keeps the tensor."""
        if self.requires_grad:
            raise RuntimeError("a tensor that requires grad is no array; use tensor.detach().numpy()")
        if self.device.type != "cpu":
            raise TypeError("a tensor on %s is no array; use tensor.cpu() first" % self.device)
        dtype = self.dtype
        kind = _ARRAY_TYPES.get(dtype.name, "<%s%d" % (dtype.name[0], dtype.itemsize))
        if kind is None:
            raise TypeError("NumPy has no bfloat16; convert the tensor, for example to float32")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": kind,
            "strides": tuple(step * dtype.itemsize for step in self.stride()),
            "data": (self.data_ptr(), False),
        }

    def numpy(self):
        """A NumPy array over the same memory. The tensor is on the cpu and does not require grad."""
        import numpy

        self.__array_interface__        # raises the reason; NumPy would hide it
        return numpy.asarray(_Elements(self))

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array.astype(dtype) if dtype is not None and dtype != array.dtype else array.copy() if copy else array

    __dlpack__ = dlpack.exported
    __dlpack_device__ = dlpack.device_of_tensor

    # ---- devices and data types ----

    def to(self, *target, dtype=None, device=None, copy=False, non_blocking=False):
        """to("cuda:0"), to(ctrt.float16), to("cpu", ctrt.float32), to(other_tensor)."""
        for value in target:
            if isinstance(value, Tensor):
                device, dtype = value.device, value.dtype
            elif value is not None and (isinstance(value, Device) or isinstance(value, str) and not _is_dtype(value)):
                device = value
            else:
                dtype = value
        if non_blocking and dtype is None and not copy and device is not None:
            return api.to_non_blocking(self, device)[0]
        return api.to(self, device, dtype, copy, lib.CTRT_PRESERVE_FORMAT)

    # ---- shapes ----

    def reshape(self, *shape):
        return api.reshape(self, _sizes(shape))

    def view(self, *shape):
        return api.view_as(self, _sizes(shape))

    def view_as(self, other):
        return api.view_as(self, other.shape)

    def expand(self, *shape):
        return api.expand(self, _sizes(shape))

    def permute(self, *dims):
        return api.permute(self, _sizes(dims))

    def where(self, condition, other):
        return api.where(condition, self, other)

    def split(self, size, dim=0):
        starts = range(0, self.shape[dim], size)
        return tuple(api.narrow(self, dim, i, builtins.min(size, self.shape[dim] - i)) for i in starts)

    def chunk(self, chunks, dim=0):
        out, count = new("ctrt_tensor *[]", chunks), new("int *")
        check(lib.ctrt_chunk(out, count, self._p[0], chunks, dim))
        return tuple(take("tensor", new("ctrt_tensor **", out[i])) for i in range(count[0]))

    # ---- indexing: numbers, slices with positive steps, None, ..., one tensor or list of integers, a bool mask ----

    def _index(self, key):
        """Returns (view, None) or, for a tensor as index, (view, dimension)."""
        keys = list(key) if isinstance(key, tuple) else [key]
        used = sum(not (k is None or k is Ellipsis) for k in keys)
        if used > self.ndim:
            raise IndexError("too many indices for a tensor of %d dimensions" % self.ndim)
        at = [i for i, k in enumerate(keys) if k is Ellipsis]
        if not at:
            at = [len(keys)]
            keys.append(Ellipsis)
        keys[at[0] : at[0] + 1] = [slice(None)] * (self.ndim - used)
        result, dim, index = self, 0, None
        for k in keys:
            if k is None:
                result = api.unsqueeze(result, dim)
            elif isinstance(k, slice):
                size = result.shape[dim]
                if k != slice(None):
                    start, stop, step = k.indices(size)
                    if step < 0:
                        raise ValueError("a slice with a negative step is not supported")
                    result = api.slice(result, dim, start, builtins.max(start, stop), step)
            elif isinstance(k, (Tensor, list)):
                if index is not None:
                    raise NotImplementedError("more than one tensor as index is not supported")
                index = (dim, k if isinstance(k, Tensor) else tensor(k, device=self.device))
            else:
                where, size = operator.index(k), result.shape[dim]
                if not -size <= where < size:
                    raise IndexError("index %d is out of bounds for dimension %d of size %d" % (where, dim, size))
                result = api.select(result, dim, where)
                continue
            dim += 1
        return result, index

    def __getitem__(self, key):
        result, index = self._index(key)
        if index is None:
            return api.view_as(self, self.shape) if result is self else result
        dim, k = index
        if k.dtype is dtypes["bool"]:
            k = tensor([i for i, on in enumerate(k.tolist()) if on], dtype="int64", device=self.device)
        picked = api.index_select(result, dim, api.reshape(k, (-1,)))
        shape = result.shape
        return picked if k.ndim == 1 else api.reshape(picked, shape[:dim] + k.shape + shape[dim + 1 :])

    def __setitem__(self, key, value):
        if isinstance(key, Tensor) and key.dtype is dtypes["bool"] and not isinstance(value, Tensor):
            api.masked_fill_(self, key, value)
            return
        result, index = self._index(key)
        if index is not None:
            raise NotImplementedError("assignment to elements that a tensor selects is not supported")
        api.copy_(result, value) if isinstance(value, Tensor) else api.fill_(result, value)


class _Elements:
    """Gives NumPy the memory of a tensor. The array refers to this object, which keeps the tensor."""

    def __init__(self, tensor):
        self.tensor, self.__array_interface__ = tensor, tensor.__array_interface__


def _is_dtype(name):
    return name in dtypes or name in {made.short for made in dtypes.values()}


def _sizes(values):
    return values[0] if len(values) == 1 and not isinstance(values[0], numbers.Integral) else values


def _nested(values, shape):
    if len(shape) == 1:
        return values
    step = len(values) // builtins.max(shape[0], 1)
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


# ---- methods and operators from the functions of the library ----

for _name, _dtype in {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
                      "long": "int64", "int": "int32", "bool": "bool"}.items():
    setattr(Tensor, _name, lambda self, dtype=_dtype: api.to_dtype(self, dtype))

for _name, _method in api.TENSOR_FUNCTIONS.items():
    if _method and not hasattr(Tensor, _name):
        setattr(Tensor, _name, getattr(api, _name))


def _operator(function):
    def method(self, other):
        return function(self, other) if isinstance(other, (Tensor, numbers.Number)) else NotImplemented

    return method


def _reversed(function):
    def method(self, other):
        if not isinstance(other, numbers.Number):
            return NotImplemented
        return function(api.scalar_tensor(other, None, "cpu"), self)

    return method


for _name, _function in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "matmul": "matmul", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "radd": "add", "rmul": "mul",
    "rsub": "rsub_scalar", "rtruediv": "rdiv_scalar", "rpow": "rpow_scalar", "iadd": "add_", "isub": "sub_",
    "imul": "mul_", "itruediv": "div_",
}.items():
    setattr(Tensor, "__%s__" % _name, _operator(getattr(api, _function)))
Tensor.__rfloordiv__, Tensor.__rmod__ = _reversed(api.floor_divide), _reversed(api.remainder)
Tensor.__neg__, Tensor.__abs__ = lambda self: api.neg(self), lambda self: api.abs(self)
Tensor.__pos__, Tensor.__invert__ = lambda self: self, lambda self: api.logical_not(self)
Tensor.sum, Tensor.mean, Tensor.prod = api.sum_dims, api.mean_dims, api.prod_dims


# ---- functions whose form in Python differs from that in C ----


def tensor(data, dtype=None, device=None, requires_grad=False):
    """A tensor with a copy of `data`: a number, nested lists, or an array or tensor of any library."""
    if isinstance(data, Tensor):
        made = api.clone(data.detach()).to(dtype=dtype, device=device)
    elif hasattr(data, "__dlpack__"):
        made = api.clone(dlpack.imported(data)).to(dtype=dtype, device=device)
    else:
        shape, values = _flat(data.tolist() if hasattr(data, "tolist") else data)
        if dtype is None:
            kinds = {type(value) for value in values}
            dtype = "int64" if int in kinds else "bool" if kinds == {bool} else None
            if not all(kind in (int, bool) for kind in kinds):
                dtype = None
        floating = any(isinstance(value, float) for value in values)
        buffer = new("double[]" if floating else "int64_t[]", values or 1)
        made = api.from_data(buffer, len(values), shape, "float64" if floating else "int64", device)
        made = made.to(dtype=api.default_dtype() if dtype is None else dtype)
    return made.requires_grad_(requires_grad)


def _flat(data):
    if isinstance(data, (list, tuple)):
        parts = [_flat(part) for part in data]
        if any(part[0] != parts[0][0] for part in parts):
            raise ValueError("the lists of a tensor have different lengths")
        inner = parts[0][0] if parts else ()
        return (len(parts),) + inner, [value for part in parts for value in part[1]]
    if isinstance(data, numbers.Number):
        return (), [data]
    if hasattr(data, "item"):
        return (), [data.item()]
    raise TypeError("expected numbers, lists or arrays, not %s" % type(data).__name__)


def from_numpy(array):
    """A tensor over the memory of a NumPy array."""
    return dlpack.imported(array)


def _creator(name):
    create = getattr(api, name)

    def function(*shape, dtype=None, device=None, requires_grad=False):
        return create(_sizes(shape), dtype, device).requires_grad_(requires_grad)

    function.__name__, function.__doc__ = name, create.__doc__
    return function


empty, zeros, ones, rand, randn = (_creator(name) for name in "empty zeros ones rand randn".split())


def arange(start, end=None, step=1, dtype=None, device=None):
    return api.arange(0 if end is None else start, start if end is None else end, step, dtype, device)


def eye(n, m=None, dtype=None, device=None):
    return api.eye(n, n if m is None else m, dtype, device)


def randint(low, high=None, size=(), dtype=None, device=None):
    return api.randint(0 if high is None else low, low if high is None else high, size, dtype, device)


def full(size, fill_value, dtype=None, device=None, requires_grad=False):
    return api.full(size, fill_value, dtype, device).requires_grad_(requires_grad)


def _extreme(whole, of_two, of_dim):
    def function(input, dim=None, keepdim=False):
        """Of all elements; with a tensor, of two tensors; with a dimension, (values, indices)."""
        if isinstance(dim, Tensor):
            return of_two(input, dim)
        return whole(input) if dim is None else of_dim(input, dim, keepdim)

    return function


max = Tensor.max = _extreme(api.amax, api.maximum, api.max)
min = Tensor.min = _extreme(api.amin, api.minimum, api.min)


def clamp(input, min=None, max=None):
    if min is None and max is None:
        raise ValueError("clamp needs min or max")
    if min is None or max is None:
        return api.clamp_max(input, max) if min is None else api.clamp_min(input, min)
    return api.clamp(input, min, max)


Tensor.clamp = clamp


split, chunk = Tensor.split, Tensor.chunk


def autograd_grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False):
    """The gradients of one output with respect to the inputs, as torch.autograd.grad."""
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    out = new("ctrt_tensor *[]", len(inputs))
    keep = create_graph if retain_graph is None else retain_graph
    check(lib.ctrt_grad(out, handle_arg(outputs), array_arg("ctrt_tensor", inputs), len(inputs),
                        handle_arg(grad_outputs), keep, create_graph, allow_unused))
    return tuple(take("tensor", new("ctrt_tensor **", pointer)) for pointer in out)
