# SPDX-License-Identifier: Apache-2.0
"""Python functions that the library calls. An exception in one of them is raised by the call that led to it, in
whichever thread the function ran."""

import itertools

from . import api
from ._core import *
from ._core import failed
from .tensor import Tensor


def callback(prototype):
    """A C function of Python code that returns None; an exception becomes a status."""

    def decorate(function):
        def run(*arguments):
            try:
                function(*arguments)
                return 0
            except BaseException as exception:
                return failed(exception)

        return ffi.callback(prototype, run)

    return decorate


_constants = []         # structs that the library uses until the process ends


def constant(struct, **members):
    made = sized(struct)
    for name, value in members.items():
        if isinstance(value, str):
            value = new("char[]", value.encode())
            _constants.append(value)
        setattr(made, name, value)
    _constants.append(made)
    return made


def borrowed(pointer):
    return share("tensor", new("ctrt_tensor **", pointer))


def give(variable, tensor, what):
    """Stores a reference in an out-parameter of the library."""
    if not isinstance(tensor, Tensor):
        raise TypeError("%s returned %s; it has to return a Tensor" % (what, type(tensor).__name__))
    lib.ctrt_tensor_assign(variable, tensor._p[0])


# ---- hooks of tensors ----


class Removable:
    def __init__(self, remove):
        self.remove = remove


@callback("ctrt_status(void *, ctrt_tensor **)")
def _grad_hook(user, grad):
    changed = ffi.from_handle(user)(borrowed(grad[0]))
    if changed is not None:
        give(grad, changed, "a hook")


_hooks = {}             # what hooks use, until they are removed


def tensor_hook(tensor, hook):
    user = ffi.new_handle(hook)
    id = api.tensor_add_hook(tensor, _grad_hook, user)
    # The graph may outlive the Python object, so the function lives as long as the hook is not removed.
    _hooks[id, int(ffi.cast("uintptr_t", tensor._p[0]))] = user

    def remove():
        if _hooks.pop((id, int(ffi.cast("uintptr_t", tensor._p[0]))), None):
            api.tensor_remove_hook(tensor, id)

    return Removable(remove)


# ---- functions with a derivative of their own ----


class Context:
    """The first parameter of forward and backward of a Function."""

    def __init__(self):
        self._current = None
        self.needs_input_grad = ()

    def save_for_backward(self, *tensors):
        for tensor in tensors:
            check(lib.ctrt_function_save(self._current, tensor._p[0]))
        self._saved = len(tensors)

    @property
    def saved_tensors(self):
        out, found = new("ctrt_tensor **"), []
        for index in range(self._saved):
            check(lib.ctrt_function_saved(out, self._current, index))
            found.append(borrowed(out[0]))
        return tuple(found)


_contexts = {}


@callback("ctrt_status(ctrt_function_context *, ctrt_tensor **, int, ctrt_tensor *const *, int)")
def _function_forward(context, out, n_out, inputs, n_in):
    function, state, arguments = _contexts[int(ffi.cast("uintptr_t", lib.ctrt_function_user(context)))]
    state._current = context
    tensors = iter([borrowed(inputs[i]) for i in range(n_in)])
    result = function.forward(state, *[next(tensors) if a is Tensor else a for a in arguments])
    give(out, result, function.__name__ + ".forward")


@callback("ctrt_status(ctrt_function_context *, ctrt_tensor **, int, ctrt_tensor *const *, int)")
def _function_backward(context, grad_in, n_in, grad_out, n_out):
    function, state, arguments = _contexts[int(ffi.cast("uintptr_t", lib.ctrt_function_user(context)))]
    state._current = context
    grads = function.backward(state, *[borrowed(grad_out[i]) for i in range(n_out)])
    grads = grads if isinstance(grads, tuple) else (grads,)
    wanted = [grad for grad, argument in zip(grads, arguments) if argument is Tensor]
    for i, grad in enumerate(wanted):
        if grad is not None:
            give(grad_in + i, grad, function.__name__ + ".backward")


@ffi.callback("void(ctrt_function_context *)")
def _function_destroy(context):
    _contexts.pop(int(ffi.cast("uintptr_t", lib.ctrt_function_user(context))), None)


class Function:
    """An op with a derivative of its own, as torch.autograd.Function with one result: a subclass has the static methods
    forward(ctx, ...) and backward(ctx, grad), and is called by apply()."""

    _struct, _keys = None, itertools.count(1)

    @classmethod
    def apply(cls, *arguments):
        if cls.__dict__.get("_struct") is None:
            cls._struct = constant("ctrt_function", name=cls.__name__, forward=_function_forward,
                                   backward=_function_backward, destroy=_function_destroy)
        key, out = next(Function._keys), new("ctrt_tensor **")
        _contexts[key] = (cls, Context(), [Tensor if isinstance(a, Tensor) else a for a in arguments])
        tensors = array_arg("ctrt_tensor", [a for a in arguments if isinstance(a, Tensor)])
        status = lib.ctrt_function_apply(cls._struct, ffi.cast("void *", key), out, 1, tensors, len(tensors))
        if status == lib.CTRT_ERR_INVALID_ARGUMENT:
            _contexts.pop(key, None)
        check(status)
        return take("tensor", out)
