# SPDX-License-Identifier: Apache-2.0
"""The Python package of ctrt, for compare.py: calls by the name of the C function, conversions from and to PyTorch."""

import ctrt
import torch

ALL = None  # as a list of dimensions: all of them
DTYPES = {made.short: getattr(torch, made.name) for made in ctrt.dtypes.values()}
NAMES = {torch_dtype: name for name, torch_dtype in DTYPES.items()}
Refused = ctrt.Error  # a call that returned an error


def op(name, *arguments, **options):
    """The results of ctrt_NAME."""
    return getattr(ctrt.api, name)(*arguments, **options)


def call(name, *arguments):
    """ctrt_NAME without its results."""
    op(name, *arguments)


def to_torch(tensor):
    """A copy on the cpu."""
    return torch.from_dlpack(tensor.detach().cpu()).clone()


def from_torch(value):
    """A contiguous copy on the chosen device."""
    return ctrt.tensor(value.detach().contiguous(), device=DEVICE)


def finish():
    """Waits for the device's work. Raises the error of an op that failed after its call, and resets the stream."""
    try:
        ctrt.synchronize(DEVICE)
    except Refused:
        ctrt.api.stream_reset(ctrt.api.stream_default(DEVICE))
        raise


def backward(tensor, gradient=None, retain_graph=False, create_graph=False):
    ctrt.api.backward_with(tensor, gradient, retain_graph, create_graph)


def grad(output, inputs, gradient=None, retain_graph=False, create_graph=False):
    """Gradients, None for inputs that the output does not depend on."""
    return ctrt.autograd.grad(output, inputs, gradient, retain_graph, create_graph, allow_unused=True)


def load(device):
    """Opens the device; the other functions of this file need it."""
    global DEVICE
    DEVICE = ctrt.device(device)
    ctrt.set_default_device(DEVICE)
