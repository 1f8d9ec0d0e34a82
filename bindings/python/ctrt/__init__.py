# SPDX-License-Identifier: Apache-2.0
"""ctrt: a tensor runtime. Names and semantics are PyTorch's; what ctrt does not have is missing.

`ctrt.api` has all functions of the library with Python's parameters and results. `ctrt.lib` and `ctrt.ffi` are the
objects of cffi, for calls without any conversion."""

from . import api
from ._core import ERRORS, Device, DType, Error, dtypes, ffi, lib
from ._tables import VERSION as __version__

# The ops and other functions that return tensors, then those that have another form in Python.
globals().update({_name: getattr(api, _name) for _name in api.TENSOR_FUNCTIONS if not _name.startswith("module_")})
globals().update(dtypes)
globals().update({_error.__name__: _error for _error in ERRORS.values()})
OutOfMemoryError = ERRORS[lib.CTRT_ERR_OUT_OF_MEMORY]

from .tensor import (Tensor, arange, chunk, clamp, empty, eye, from_numpy, full, max, min, ones, rand, randint,  # noqa
                     randn, split, tensor, zeros)
from .api import (default_dtype, device_count, device_synchronize as synchronize, grad_enabled as  # noqa
                  is_grad_enabled, manual_seed, mean_dims as mean, memory_allocated, memory_empty_cache,
                  memory_max_allocated, memory_reserved, memory_reset_peak, memory_summary, param_set,
                  prod_dims as prod, promote_types, set_default_device, set_default_dtype, sum_dims as sum)
from .dlpack import imported as from_dlpack  # noqa
from .functional import gelu  # noqa
from . import autograd, nn, optim  # noqa
from .runtime import (Event, Parallel, Stream, autocast, devices, enable_grad, is_available, load, no_grad,  # noqa
                      save, set_grad_enabled)
from .optim import GradScaler  # noqa

device = Device
