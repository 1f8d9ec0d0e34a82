# SPDX-License-Identifier: Apache-2.0
"""The library, errors, handles and conversions: what the generated api.py and the other files need."""

import numbers
import os
import re
import threading
import traceback

from ._cdef import ffi
from ._tables import DTYPES, HANDLES, INITIALIZERS, SONAME, STATUSES

__all__ = """ffi lib new NULL check sized take share tensor_or_scalar handle_arg device_arg dtype_arg scalar_arg
    ints_arg enum_arg array_arg text_arg options_arg device_result dtype_result number_result text_result
    text_taken""".split()


def _open():
    """$LIBCTRT, else the library of the package, else the one that the loader finds."""
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", SONAME)
    path = os.environ.get("LIBCTRT") or (inside if os.path.exists(inside) else SONAME)
    # Objects can be released until the process ends, so the library stays loaded.
    return ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_NODELETE)


lib = _open()
new, NULL = ffi.new, ffi.NULL

# ---- errors ----


class Error(RuntimeError):
    """An error of the library. `status` is the code, for example ctrt.lib.CTRT_ERR_SHAPE."""

    status = None


# Each code has a class of its own, which is also the class that Python's programs expect.
_BASES = {
    "ERR_INVALID_ARGUMENT": ValueError,
    "ERR_OUT_OF_MEMORY": MemoryError,
    "ERR_DTYPE": TypeError,
    "ERR_NOT_FOUND": LookupError,
    "ERR_NOT_SUPPORTED": NotImplementedError,
    "ERR_IO": OSError,
    "ERR_FORMAT": ValueError,
    "ERR_OVERFLOW": OverflowError,
}
ERRORS = {}
for _name, _value in STATUSES:
    _class = "".join(word.capitalize() for word in _name[4:].split("_")) + "Error"
    _bases = (Error, _BASES[_name]) if _name in _BASES else (Error,)
    ERRORS[int(_value)] = type(_class, _bases, {"status": int(_value), "__module__": "ctrt"})

# Exceptions of callbacks. Their number is in the error message of the library, which can reach another thread.
_raised, _raised_count, _raised_lock = {}, 0, threading.Lock()


def check(status):
    """Raises the error of a call, or the exception of a callback that made the call fail."""
    if status != 0:
        message = ffi.string(lib.ctrt_error_message()).decode(errors="replace")
        found = re.search(r"\[python exception (\d+)\]", message)
        if found:
            with _raised_lock:
                exception = _raised.pop(int(found[1]), None)
            if exception is not None:
                raise exception
        raise ERRORS.get(status, Error)(message)


def failed(exception):
    """In a callback: keeps the exception for the call that fails because of it, and returns a status."""
    global _raised_count
    traceback.clear_frames(exception.__traceback__)     # their variables may be tensors
    with _raised_lock:
        _raised_count += 1
        _raised[_raised_count] = exception
        _raised.pop(_raised_count - 64, None)       # of calls whose error nobody looked at
        words = "%s: %s [python exception %d]" % (type(exception).__name__, exception, _raised_count)
    status = getattr(exception, "status", None) or lib.CTRT_ERR_STATE
    return lib.ctrt_fail(status, b"%s", new("char[]", words.encode()))


# ---- handles ----


class Handle:
    """Owns one reference to an object of the library, in the variable *_p."""

    _p = None
    _kind = _release = None
    classes = {}

    def __init_subclass__(cls, kind=None, **more):
        super().__init_subclass__(**more)
        if kind:
            cls._kind, cls._release = "ctrt_" + kind, getattr(lib, "ctrt_%s_release" % kind)
            Handle.classes[kind] = cls

    def _create(self, constructor, *arguments):
        variable = new(self._kind + " **")
        check(constructor(variable, *arguments))
        object.__setattr__(self, "_p", variable)

    def __del__(self):
        if self._p is not None:
            self._release(self._p)


for _name in HANDLES:
    type("".join(word.capitalize() for word in _name.split("_")), (Handle,), {}, kind=_name)


def take(kind, variable):
    """The object whose reference is in `variable`; None for NULL."""
    if not variable[0]:
        return None
    cls = Handle.classes[kind]
    made = cls.__new__(cls)
    made._p = variable
    return made


def share(kind, variable):
    """The same for a borrowed reference."""
    if variable[0]:
        getattr(lib, "ctrt_%s_retain" % kind)(variable[0])
    return take(kind, variable)


def handle_arg(value):
    if value is None:
        return NULL
    try:
        return value._p[0]
    except (AttributeError, TypeError):
        raise TypeError("expected an object of ctrt, not %s" % type(value).__name__) from None


def array_arg(base, values):
    """A list that cffi passes as a C array."""
    if isinstance(values, Handle):
        values = [values]
    if base == "char":
        return [new("char[]", text_arg(value)) for value in values or ()]
    return [device_arg(value) if base == "ctrt_device" else handle_arg(value) for value in values or ()]


# ---- data types and devices ----


class DType:
    """A data type, such as ctrt.float32."""

    def __init__(self, constant, bytes, category, short, name):
        self.value, self.itemsize = getattr(lib, "CTRT_" + constant), int(bytes)
        self.is_floating_point, self.short, self.name = category == "FLOATING", short, name

    def __repr__(self):
        return "ctrt." + self.name

    def __reduce__(self):
        return dtypes.get, (self.name,)


dtypes = {made.name: made for made in (DType(*row) for row in DTYPES)}
_by_value = {made.value: made for made in dtypes.values()}


def dtype_result(value):
    return _by_value.get(value)


def dtype_arg(value):
    """Accepts a DType, a name ("float32", "f32"), a dtype of NumPy or PyTorch, and None for the default."""
    if value is None:
        return 0
    if isinstance(value, DType):
        return value.value
    if isinstance(value, int):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None) or str(value).rpartition(".")[2]
    out = new("ctrt_dtype *")
    check(lib.ctrt_dtype_parse(out, name.encode()))
    return out[0]


class Device:
    """A device: Device("cuda:1"). Devices are never released."""

    def __init__(self, name):
        out = new("ctrt_device **")
        check(lib.ctrt_device_get(out, text_arg(str(name))))
        self._p = out

    type = property(lambda self: text_result(lib.ctrt_device_type(self._p[0])))
    index = property(lambda self: None if self.type == "cpu" else lib.ctrt_device_index(self._p[0]))

    def __str__(self):
        return text_result(lib.ctrt_device_name(self._p[0]))

    def __repr__(self):
        return "device_arg('%s')" % self

    def __eq__(self, other):
        return str(self) == str(other) if isinstance(other, (Device, str)) else NotImplemented

    def __hash__(self):
        return hash(str(self))

    def __enter__(self):
        check(lib.ctrt_device_push(self._p[0]))
        return self

    def __exit__(self, *_):
        check(lib.ctrt_device_pop())


def device_result(pointer):
    if not pointer:
        return None
    made = Device.__new__(Device)
    made._p = new("ctrt_device **", pointer)
    return made


def device_arg(value):
    if value is None:
        return NULL
    return (value if isinstance(value, Device) else Device(value))._p[0]


# ---- values ----


def text_arg(value):
    if value is None:
        return NULL
    return value if isinstance(value, bytes) else os.fsencode(value)


def text_result(pointer):
    return ffi.string(pointer).decode(errors="replace") if pointer else None


def text_taken(pointer):
    try:
        return text_result(pointer)
    finally:
        lib.free(pointer)


def scalar_arg(value):
    if isinstance(value, bool):
        return lib.ctrt_bool(value)
    if isinstance(value, int):
        return lib.ctrt_int(value)
    if isinstance(value, float):
        return lib.ctrt_float(value)
    if hasattr(value, "item"):      # NumPy's scalars, tensors of one element
        return scalar_arg(value.item())
    raise TypeError("expected a number, not %s" % type(value).__name__)


def number_result(value):
    """The Python number of a ctrt_scalar."""
    if value.kind == lib.CTRT_SCALAR_FLOAT:
        return value.f
    return bool(value.i) if value.kind == lib.CTRT_SCALAR_BOOL else value.i


def ints_arg(values):
    """A ctrt_ints and the array that has to live until the call returns. None: all dimensions."""
    if values is None:
        return (NULL, -1), None
    values = [values] if isinstance(values, numbers.Integral) else list(values)
    kept = new("int64_t[]", values)
    return (kept, len(values)), kept


def enum_arg(name, value):
    """The value of "mean" or "CTRT_REDUCE_MEAN" of enum ctrt_reduction; numbers stay."""
    if not isinstance(value, str):
        return value
    for constant, found in ffi.typeof(name).relements.items():
        if constant == value or constant.endswith("_" + value.upper()):
            return found
    raise ValueError("%r is not one of %s" % (value, ", ".join(sorted(ffi.typeof(name).relements))))


def sized(name):
    """A zeroed struct with its size, for structs that begin with it."""
    made = new(name + " *")
    first = ffi.typeof(name).fields[0][0]
    if first in ("size", "initialized"):
        setattr(made, first, ffi.sizeof(name))
    return made


_ALIASES = {"eps": "epsilon", "p": "dropout_p", "is_causal": "causal"}


def options_arg(name, options):
    """A struct from a dict of its members, with the defaults of the header for the others; NULL for no options."""
    if options is None or isinstance(options, dict) and not options:
        return NULL
    if not isinstance(options, dict):
        return options
    made, fields = sized(name), dict(ffi.typeof(name).fields)
    for field, default in zip(list(fields)[1:], INITIALIZERS.get(name, ())):
        setattr(made, field, _initial(fields[field].type, default))
    options, kept = dict(options), []
    if "betas" in options:
        options["beta1"], options["beta2"] = options.pop("betas")
    for field, value in options.items():
        field = field if field in fields else _ALIASES.get(field, field)
        if field not in fields:
            raise TypeError("no option %r; there are %s" % (field, ", ".join(list(fields)[1:])))
        kind = fields[field].type
        if kind.kind == "array" and isinstance(value, numbers.Integral):
            value = [value] * kind.length
        elif kind.kind == "enum":
            value = dtype_arg(value) if kind.cname.endswith("ctrt_dtype") else enum_arg(kind.cname, value)
        elif kind.kind == "pointer":
            if kind.cname == "char *":
                value = new("char[]", text_arg(value)) if value is not None else NULL
            elif kind.cname == "ctrt_device *":
                value = device_arg(value)
            elif value is None or hasattr(value, "_p"):
                value = handle_arg(value)
            kept.append(value)
        setattr(made, field, value)
    return ffi.gc(made, lambda _: kept.clear()) if kept else made


def _initial(kind, value):
    if kind.kind == "pointer":
        return NULL
    return getattr(lib, value) if isinstance(value, str) else float(value) if kind.cname == "double" else value


def tensor_or_scalar(with_tensor, with_scalar):
    """An op whose second operand is a tensor or a number."""

    def op(input, other):
        return (with_tensor if isinstance(other, Handle) else with_scalar)(input, other)

    op.__name__, op.__doc__ = with_tensor.__name__, with_tensor.__doc__
    return op
