# SPDX-License-Identifier: Apache-2.0
"""As torch.autograd: grad and Function."""

from .callbacks import Function  # noqa: F401
from .tensor import autograd_grad as grad  # noqa: F401
