# SPDX-License-Identifier: Apache-2.0
"""Functions of networks with the parameters of torch.nn.functional; the others are those of api.py."""

from . import api
from .api import (conv2d, cross_entropy, dropout, linear, log_softmax, max_pool2d as _max_pool2d, mse_loss, relu,
                  sigmoid, silu, softmax, tanh)
from .tensor import Tensor


def gelu(input, approximate="none"):
    return api.gelu(input, approximate == "tanh")


Tensor.gelu = gelu


def embedding(input, weight, padding_idx=None):
    return api.embedding(weight, input, -1 if padding_idx is None else padding_idx)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return api.layer_norm(input, normalized_shape, weight, bias, eps)


def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    return api.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def max_pool2d(input, kernel_size, stride=0, padding=0, dilation=1, return_indices=False):
    found = _max_pool2d(input, kernel=kernel_size, stride=stride or 0, padding=padding, dilation=dilation)
    return found if return_indices else found[0]


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return api.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=dropout_p, causal=is_causal,
                                            has_scale=scale is not None, scale=scale or 0.0)
