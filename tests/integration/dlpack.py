# SPDX-License-Identifier: Apache-2.0
"""Exchanges tensors by DLPack with NumPy 2.1 or later, and with PyTorch if it supports the versioned protocol.

Run as dlpack.py LIBCTRT.SO. Prints TAP. tests/unit/test-dlpack.c checks the fields, the ownership and what is rejected.
"""
import ctypes
import sys

CAPSULE = b"dltensor_versioned"
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.restype, set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
USED = ctypes.create_string_buffer(b"used_dltensor_versioned")      # a capsule keeps the pointer and does not copy
NAME = ctypes.create_string_buffer(CAPSULE)

DTYPES = {"float32": 1, "float64": 2, "float16": 3, "int8": 5, "uint8": 6, "int16": 7, "int32": 8, "int64": 9,
          "bool": 10}
count = failed = 0


def check(fine, what):
    global count, failed
    count += 1
    failed += not fine
    print("%s %d - %s" % ("ok" if fine else "not ok", count, what), flush=True)


lib = ctypes.CDLL(sys.argv[1])
lib.ctrt_error_message.restype = ctypes.c_char_p
lib.ctrt_tensor_dtype.argtypes = [ctypes.c_void_p]


def call(name, *arguments):
    if getattr(lib, name)(*arguments) != 0:
        raise RuntimeError("%s: %s" % (name, lib.ctrt_error_message().decode()))


class Exported:
    """A ctrt tensor as an object with __dlpack__, which other libraries import."""
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        managed = ctypes.c_void_p()
        call("ctrt_to_dlpack", ctypes.byref(managed), self.tensor)
        return new_capsule(managed, ctypes.addressof(NAME), None)


def imported(producer):
    """Returns a ctrt tensor that shares the memory of another library's tensor."""
    capsule = producer.__dlpack__(max_version=(1, 0))
    tensor = ctypes.c_void_p()
    call("ctrt_from_dlpack", ctypes.byref(tensor), ctypes.c_void_p(get_pointer(capsule, CAPSULE)))
    set_name(capsule, ctypes.addressof(USED))
    return tensor


def exchange(library, numpy, to_library):
    """Transposed tensors of `library` are imported, copied, exported, and compared."""
    for name in DTYPES:
        if not hasattr(library, name):
            continue
        array = to_library(numpy.arange(6).reshape(2, 3).astype(name)).T
        tensor = imported(array)
        check(lib.ctrt_tensor_dtype(tensor) == DTYPES[name], "%s: %s imported" % (library.__name__, name))
        call("ctrt_clone", ctypes.byref(tensor), tensor)        # into memory of ctrt
        theirs = library.from_dlpack(Exported(tensor))
        lib.ctrt_tensor_release(ctypes.byref(tensor))
        check(theirs.dtype == array.dtype and theirs.tolist() == array.tolist(),
              "%s: %s exported, and outlives ctrt's handle" % (library.__name__, name))


try:
    import numpy
except ImportError:
    print("1..0 # SKIP this python3 has no numpy")
    sys.exit(0)
if tuple(int(n) for n in numpy.__version__.split(".")[:2]) < (2, 1):
    print("1..0 # SKIP numpy %s does not support DLPack 1.0; 2.1 does" % numpy.__version__)
    sys.exit(0)

exchange(numpy, numpy, lambda array: array)
frozen = numpy.arange(3.0)
frozen.flags.writeable = False
try:
    imported(frozen)
    check(False, "numpy: a read-only array is rejected")
except RuntimeError as error:
    check("read-only" in str(error), "numpy: a read-only array is rejected")

try:
    import torch
    torch.zeros(1).__dlpack__(max_version=(1, 0))
except (ImportError, TypeError) as why:
    count += 1
    print("ok %d - torch # SKIP %s" % (count, str(why).split("\n")[0]))
else:
    exchange(torch, numpy, torch.from_numpy)
print("1..%d" % count)
sys.exit(failed > 0)
