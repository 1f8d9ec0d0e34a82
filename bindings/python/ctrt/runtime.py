# SPDX-License-Identifier: Apache-2.0
"""Blocks (no_grad, autocast), streams, files, and training on several devices."""

import contextlib
import os

from . import api
from ._core import *
from ._core import Handle
from .callbacks import borrowed, callback, give
from .nn import Module
from .tensor import Tensor

# ---- blocks: context managers that are also decorators ----


class set_grad_enabled(contextlib.ContextDecorator):
    """`with set_grad_enabled(on):`. Unlike PyTorch's, it has no effect outside of a with statement."""

    def __init__(self, on):
        self._on, self._was = on, []

    def __enter__(self):
        self._was.append(lib.ctrt_set_grad_enabled(self._on))
        return self

    def __exit__(self, *_):
        lib.ctrt_set_grad_enabled(self._was.pop())


class no_grad(set_grad_enabled):
    def __init__(self):
        super().__init__(False)


class enable_grad(set_grad_enabled):
    def __init__(self):
        super().__init__(True)


class autocast(contextlib.ContextDecorator):
    """Ops on devices of a type select the dtype of their computation, as torch.autocast."""

    def __init__(self, device_type=None, dtype=None, enabled=True, cache_enabled=True):
        self._type = device_type
        self._options = {"dtype": dtype, "disabled": not enabled, "no_cache": not cache_enabled}

    def __enter__(self):
        api.autocast_push(self._type, **self._options)
        return self

    def __exit__(self, *_):
        api.autocast_pop()


# ---- streams ----


class Stream(Handle, kind="stream"):
    """A stream of a device; `with stream:` makes it current."""

    def __init__(self, device=None, priority=0):
        self._create(lib.ctrt_stream_new, device_arg(device), priority)

    def __enter__(self):
        check(lib.ctrt_stream_push(self._p[0]))
        return self

    def __exit__(self, *_):
        check(lib.ctrt_stream_pop())

    synchronize, query = api.stream_synchronize, api.stream_query
    wait_stream, wait_event = api.stream_wait, api.stream_wait_event


class Event(Handle, kind="event"):
    def __init__(self, device=None, enable_timing=False):
        self._create(lib.ctrt_event_new, device_arg(device), enable_timing)

    record, query = api.event_record, api.event_query
    synchronize, elapsed_time = api.event_synchronize, api.event_elapsed


# ---- devices ----


def devices():
    """The names of the visible devices, best type first."""
    found = []
    with contextlib.suppress(LookupError):
        while True:
            spec, buffer = api.device_list(len(found)), new("char[]", 64)
            check(lib.ctrt_device_format(buffer, 64, spec))
            found.append(text_result(buffer))
    return found


def is_available(type):
    return api.is_available(type)[0]


# ---- files ----


def save(what, path):
    """Saves a Module or a dict of tensors as a safetensors file."""
    if isinstance(what, Module):
        return api.save(what, path)
    names = [new("char[]", name.encode()) for name in what]
    check(lib.ctrt_save_tensors(text_arg(path), names, array_arg("ctrt_tensor", what.values()), len(names)))


def load(path, device=None):
    """The tensors of a safetensors file as a dict."""
    file = api.tensor_file_open(path)
    names = [api.tensor_file_name(file, index) for index in range(api.tensor_file_count(file))]
    return {name: api.tensor_file_read(file, name, device) for name in names}


# ---- several devices and processes ----


@callback("ctrt_status(ctrt_tensor **, ctrt_tensor *, ctrt_tensor *const *, int, void *)")
def _loss(loss, output, inputs, count, user):
    function = ffi.from_handle(user)
    give(loss, function(borrowed(output), *[borrowed(inputs[i]) if inputs[i] else None for i in range(count)]),
         "the loss function")


class Parallel(Module):
    """A module that runs another one by a strategy: "single", "data-parallel", "distributed", ... (doc/parallel.md).
    Without a name, $CTRT_STRATEGY is the strategy."""

    def __init__(self, module, strategy=None, devices=None):
        pointers = NULL if devices is None else array_arg("ctrt_device", devices)
        self._made(lib.ctrt_parallel_new, module._p[0], text_arg(strategy), pointers, len(devices or ()))
        object.__setattr__(self, "_module", module)

    def step(self, inputs, loss_function):
        """Forward, loss and backward of a batch. loss_function(output, *inputs) gets parts of it, in threads."""
        user, loss = ffi.new_handle(loss_function), new("ctrt_tensor **")
        tensors = array_arg("ctrt_tensor", inputs)
        check(lib.ctrt_parallel_step(loss, self._p[0], tensors, len(tensors), _loss, user))
        return take("tensor", loss)

    describe = api.parallel_describe


def command():
    """The command ctrt, which the package contains: `ctrt info`, `ctrt run -n 4 python3 train.py`."""
    import sys

    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ctrt")
    os.execv(program, [program] + sys.argv[1:])
