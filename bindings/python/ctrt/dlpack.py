# SPDX-License-Identifier: Apache-2.0
"""Exchange of tensors by DLPack, in both directions and without a copy. ctrt has DLPack 1.x; tensors of libraries with
an older version (NumPy before 2.1) are put into the struct of the new one, and the other way round."""

import ctypes

from ._core import check, ffi, handle_arg, lib, new, take

_OLD, _NEW = b"dltensor", b"dltensor_versioned"


def _python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


# Names that a capsule keeps have to stay, so they are constants of this file.
_USED = {_OLD: ctypes.create_string_buffer(b"used_dltensor"), _NEW: ctypes.create_string_buffer(b"used_" + _NEW)}
_FRESH = {name: ctypes.create_string_buffer(name) for name in (_OLD, _NEW)}
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, _DESTRUCTOR)
_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# The same for a capsule that is being freed, to which there must be no new reference.
_pointer_of_dying = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_dying_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)

_wrapped = {}           # structs that wrap one of the other version, by their address


def _address(pointer):
    return int(ffi.cast("uintptr_t", pointer))


def _delete(managed):
    if managed.deleter != ffi.NULL:
        managed.deleter(managed)


def _wrap(kind, managed, deleter):
    """A struct of the other version that owns `managed`."""
    made = new(kind)
    made.dl_tensor, made.deleter = managed.dl_tensor, deleter
    _wrapped[_address(made)] = (made, managed)
    return made


@ffi.callback("void(DLManagedTensor *)")
def _delete_old(made):
    _delete(_wrapped.pop(_address(made))[1])


@ffi.callback("void(struct DLManagedTensorVersioned *)")
def _delete_new(made):
    _delete(_wrapped.pop(_address(made))[1])


@_DESTRUCTOR
def _destroy(capsule):
    """Frees the tensor of a capsule that nobody has imported."""
    for name, kind in ((_NEW, "struct DLManagedTensorVersioned *"), (_OLD, "DLManagedTensor *")):
        if _dying_is_valid(capsule, name):
            _delete(ffi.cast(kind, _pointer_of_dying(capsule, name)))


def exported(tensor, *, stream=None, max_version=None, dl_device=None, copy=None):
    """Tensor.__dlpack__: a capsule for from_dlpack of another library. The work of the device is done before."""
    if dl_device is not None and tuple(dl_device) != device_of_tensor(tensor):
        raise BufferError("the tensor is on %s" % tensor.device)
    if copy:
        tensor = tensor.clone()
    out = new("struct DLManagedTensorVersioned **")
    check(lib.ctrt_to_dlpack(out, handle_arg(tensor)))
    if max_version is not None and max_version[0] >= 1:
        return _new_capsule(_address(out[0]), ctypes.addressof(_FRESH[_NEW]), _destroy)
    old = _wrap("DLManagedTensor *", out[0], _delete_old)
    return _new_capsule(_address(old), ctypes.addressof(_FRESH[_OLD]), _destroy)


def device_of_tensor(tensor):
    """Tensor.__dlpack_device__: (type, index) by the codes of DLPack."""
    return {"cpu": (1, 0), "cuda": (2, tensor.device.index)}.get(tensor.device.type) or _unsupported(tensor)


def _unsupported(tensor):
    raise BufferError("DLPack has no code for %s" % tensor.device)


def imported(producer):
    """A tensor over the memory of a tensor or an array of any library."""
    as_bool = False
    try:
        capsule = producer.__dlpack__(max_version=(1, 0))
    except TypeError:               # a library that does not have this argument
        as_bool = hasattr(producer, "__array_interface__") and producer.dtype == bool
        capsule = (producer.view("uint8") if as_bool else producer).__dlpack__()    # NumPy had no bool in DLPack
    name = _NEW if _is_valid(capsule, _NEW) else _OLD
    address, out = _pointer(capsule, name), new("ctrt_tensor **")
    if name == _NEW:
        check(lib.ctrt_from_dlpack(out, ffi.cast("struct DLManagedTensorVersioned *", address)))
    else:
        made = _wrap("struct DLManagedTensorVersioned *", ffi.cast("DLManagedTensor *", address), _delete_new)
        made.version.major = 1
        if as_bool:
            made.dl_tensor.dtype.code = 6
        status = lib.ctrt_from_dlpack(out, made)
        if status != 0:             # the capsule still owns the tensor
            _wrapped.pop(_address(made))
            check(status)
    _set_name(capsule, ctypes.addressof(_USED[name]))
    return take("tensor", out)
