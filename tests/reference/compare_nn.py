# SPDX-License-Identifier: Apache-2.0
"""Compares random networks: forward, backward, training and evaluation. The initial parameters and buffers are copied
from PyTorch's network."""

import copy
import math

import ctrt
import torch
from torch import nn

import compare_ctrt as C
from compare_check import REFUSALS, both_refuse, difference, largest, values

# In f64, PyTorch's result is the reference, so its error is 0 and does not show how much a network amplifies rounding
# errors.
ROUNDINGS = {torch.float32: 4096, torch.float64: 2**22}


# Each layer function takes an input's shape and returns PyTorch's module, the arguments of C.op for ctrt's, and the
# output's shape.


def linear(r, sizes):
    out, bias = r.randint(1, 6), r.random() < 0.8
    return nn.Linear(sizes[-1], out, bias), ("linear_new", sizes[-1], out, bias, None), sizes[:-1] + (out,)


def conv2d(r, sizes):
    groups = r.choice([g for g in (1, 2) if sizes[1] % g == 0])
    out, kernel, stride, padding, bias = (
        groups * r.randint(1, 3),
        r.randint(1, 3),
        r.randint(1, 2),
        r.randint(0, 1),
        r.random() < 0.7,
    )
    options = dict(stride=stride, padding=padding, groups=groups)
    made = nn.Conv2d(sizes[1], out, kernel, stride, padding, 1, groups, bias)
    spatial = tuple((s + 2 * padding - kernel) // stride + 1 for s in sizes[2:])
    return made, ("conv2d_new", sizes[1], out, kernel, kernel, bias, None, options), sizes[:1] + (out,) + spatial


def batch_norm(r, sizes):
    epsilon, momentum, affine = r.choice((1e-5, 1e-3)), r.choice((0.1, 0.3)), r.random() < 0.7
    kind = "2d" if len(sizes) == 4 else "1d"
    return (
        getattr(nn, "BatchNorm" + kind)(sizes[1], epsilon, momentum, affine),
        ("batch_norm%s_new" % kind, sizes[1], None, dict(epsilon=epsilon, momentum=momentum, affine=affine)),
        sizes,
    )


def layer_norm(r, sizes):
    inner, epsilon, affine = sizes[-r.randint(1, len(sizes) - 1) :], r.choice((1e-5, 1e-3)), r.random() < 0.7
    options = dict(epsilon=epsilon, affine=affine)
    return nn.LayerNorm(inner, epsilon, affine), ("layer_norm_new", inner, None, options), sizes


def activation(r, sizes):
    kind = r.choice(("relu", "gelu", "gelu tanh", "tanh", "sigmoid", "softmax", "dropout"))
    dim = r.choice((-1, 1))
    return {
        "relu": (nn.ReLU(), ("relu_new",)),
        "gelu": (nn.GELU(), ("gelu_new", False)),
        "tanh": (nn.Tanh(), ("tanh_new",)),
        "gelu tanh": (nn.GELU(approximate="tanh"), ("gelu_new", True)),
        "sigmoid": (nn.Sigmoid(), ("sigmoid_new",)),
        "softmax": (nn.Softmax(dim), ("softmax_new", dim)),
        "dropout": (nn.Dropout(0.0), ("dropout_new", 0.0)),
    }[kind] + (sizes,)


def max_pool(r, sizes):
    kernel, stride = r.randint(1, 2), r.randint(1, 2)
    options = dict(kernel=kernel, stride=stride, dilation=1)
    return (
        nn.MaxPool2d(kernel, stride),
        ("max_pool2d_new", options),
        sizes[:2] + tuple((s - kernel) // stride + 1 for s in sizes[2:]),
    )


def flatten(r, sizes):
    rest = 1
    for size in sizes[1:]:
        rest *= size
    return nn.Flatten(), ("flatten_new", 1, -1), (sizes[0], rest)


class Attention(nn.Module):
    def __init__(self, embed, heads, bias, causal):
        super().__init__()
        self.inner, self.causal = nn.MultiheadAttention(embed, heads, 0.0, bias, batch_first=True), causal

    def forward(self, x):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if self.causal else None
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


def attention(r, sizes):
    heads = r.choice([h for h in (1, 2, 4) if sizes[-1] % h == 0])
    bias, causal = r.random() < 0.8, r.random() < 0.5
    return (
        Attention(sizes[-1], heads, bias, causal),
        ("multihead_attention_new", sizes[-1], heads, None, dict(bias=bias, causal=causal)),
        sizes,
    )


def choose(r, sizes, first):
    kinds = [activation, activation, linear, layer_norm]
    if len(sizes) == 4:
        kinds = [activation, conv2d, conv2d, batch_norm, flatten] + ([max_pool] if min(sizes[2:]) >= 2 else [])
        if min(sizes[2:]) < 3:
            kinds.remove(conv2d), kinds.remove(conv2d)
    elif len(sizes) == 3:
        kinds += [attention, attention, batch_norm]
    elif sizes[0] > 1:
        kinds.append(batch_norm)
    return r.choice(kinds)(r, sizes)


def make(r):
    """Returns (PyTorch's network, ctrt's network, input, text)."""
    sizes = r.choice(
        (
            (r.randint(2, 4), r.randint(1, 6)),
            (2, r.randint(1, 4), 4),
            (2, r.choice((1, 2, 4)), r.randint(4, 7), r.randint(4, 7)),
        )
    )
    inputs, layers, made, text = None, [], [], []
    if len(sizes) == 3 and r.random() < 0.5:
        rows, padding = r.randint(2, 6), r.choice((-1, -1, 0))
        layers.append(nn.Embedding(rows, sizes[-1], padding if padding >= 0 else None))
        made.append(("embedding_new", rows, sizes[-1], None, dict(padding_idx=padding)))
        inputs = torch.randint(0, rows, sizes[:2], generator=torch.Generator().manual_seed(r.getrandbits(30)))
    else:
        inputs = values(r, sizes, torch.float32, "normal")
    for _ in range(r.randint(1, 4)):
        module, arguments, sizes = choose(r, sizes, not layers)
        layers.append(module)
        made.append(arguments)
    net = ctrt.nn.Sequential()
    for name, *arguments in made:
        text.append("  %s %s" % (name, arguments))
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        net.append(C.op(name, *arguments, **options))
    return nn.Sequential(*layers), net, inputs, text


def named(model):
    """Returns the parameters and buffers of PyTorch's network by their names in ctrt."""
    return {
        name.replace(".inner.", "."): value
        for name, value in list(model.named_parameters()) + list(model.named_buffers())
    }


def copy_state(model, net):
    """Copies the parameters and buffers of PyTorch's network to ctrt's. Returns a message if their names differ."""
    wanted, found = named(model), list(net.named_parameters()) + list(net.named_buffers())
    if sorted(wanted) != sorted(name for name, _ in found):
        return "names %s, PyTorch's %s" % (sorted(name for name, _ in found), sorted(wanted))
    with ctrt.no_grad():
        for name, tensor in found:
            tensor.copy_(C.from_torch(wanted[name]))
    return None


def cancelled(model):
    """Returns the magnitude of the terms that cancel in the gradient of a layer norm over one element, which is 0; 1 if
    the network has no such layer norm."""
    norms = [m for m in model.modules() if hasattr(m, "eps")]
    single = any(isinstance(m, nn.LayerNorm) and math.prod(m.normalized_shape) == 1 for m in norms)
    return math.prod(m.eps**-0.5 for m in norms) if single else 1.0


def run(r):
    of = r.choice((torch.float32, torch.float32, torch.float64))
    model, net, x, text = make(r)
    model.to(of)
    net.to(dtype=of)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values(r, tuple(parameter.shape), of, "normal") * 0.5)
    text = ["network in %s, input %s %s" % (C.NAMES[of], list(x.shape), x.flatten()[:24].tolist())] + text
    message = copy_state(model, net)
    if message:
        return "network", text, [message]
    exact = make_exact(model)
    found = []
    for step in range(r.randint(1, 3)):
        training = r.random() < 0.7
        model.train(training), exact.train(training)
        net.train(training)
        x = x if not x.is_floating_point() else values(r, tuple(x.shape), of, "normal")
        text.append("  step %d, %s" % (step, "train" if training else "eval"))
        torch_error = ctrt_error = None
        try:
            xt, xe = x.clone(), x.double() if x.is_floating_point() else x.clone()
            if x.is_floating_point():
                xt.requires_grad_(), xe.requires_grad_()
            yt, ye = model(xt), exact(xe)
        except REFUSALS as error:
            torch_error = error
        try:
            xc = C.from_torch(x)
            if x.is_floating_point():
                xc.requires_grad_()
            yc = net(xc)
        except C.Refused as error:
            ctrt_error = error
        if torch_error or ctrt_error:
            message = both_refuse(torch_error, ctrt_error)
            return "network", text, [message] if message else []
        pairs = [("output", C.to_torch(yc), yt, ye)]
        if yt.requires_grad:
            g = values(r, tuple(yt.shape), of, "normal")
            yt.backward(g), ye.backward(g.double())
            C.backward(yc, C.from_torch(g))
            if x.is_floating_point():
                pairs.append(("gradient of the input", C.to_torch(xc.grad), xt.grad, xe.grad))
        theirs, precise = named(model), named(exact)
        for name, tensor in net.named_parameters():
            if (tensor.grad is None) != (theirs[name].grad is None):
                found.append("gradient of %s: %s, PyTorch %s" % (name, tensor.grad, theirs[name].grad))
            elif tensor.grad is not None:
                pairs.append(("gradient of " + name, C.to_torch(tensor.grad), theirs[name].grad, precise[name].grad))
        pairs += [(name, C.to_torch(tensor), theirs[name], precise[name]) for name, tensor in net.named_buffers()]
        size = max(largest(e.detach()) for what, _, _, e in pairs if "gradient" in what or what == "output")
        size = max(size, 1.0) * cancelled(model)
        for what, got, same, wanted in pairs:
            # A network can amplify rounding errors (for example a batch norm of two nearly equal values). PyTorch's own
            # error shows by how much.
            amplified = 4 * largest(same.detach().double() - wanted.detach()) / (ROUNDINGS[of] * torch.finfo(of).eps)
            message = difference(got, same.detach(), wanted.detach(), ROUNDINGS[of], max(size, amplified))
            if message:
                found.append("%s: %s" % (what, message))
    return "network", text, found


def make_exact(model):
    return copy.deepcopy(model).double()
