# SPDX-License-Identifier: Apache-2.0
"""Modules with PyTorch's names. The layers are modules of the library. A subclass of Module with a method forward is a
module in Python, which modules, optimizers and checkpoints of the library can contain."""

import itertools
import weakref

from . import api
from . import functional
from ._core import *
from ._core import Device, Handle
from .callbacks import borrowed, callback, constant, give
from .tensor import Tensor, tensor

_objects = weakref.WeakValueDictionary()        # by the address of the library's module
_copies = {}            # the objects that copies of modules own, by the address of the copy


class Parameter(Tensor):
    """A tensor that becomes a parameter of the Module of which it is made an attribute."""

    def __new__(cls, data, requires_grad=True):
        made = cls._of(api.detach(data if isinstance(data, Tensor) else tensor(data)))
        return made.requires_grad_(requires_grad)


@callback("ctrt_status(ctrt_tensor **, ctrt_module *, ctrt_tensor *const *, int)")
def _forward(y, module, inputs, count):
    found = _object(module)
    result = found.forward(*[borrowed(inputs[i]) if inputs[i] else None for i in range(count)])
    give(y, result, type(found).__name__ + ".forward")


@callback("ctrt_status(ctrt_module *, ctrt_module *)")
def _replicate(copy, original):
    """Makes the object of a copy of a module in Python. The copy owns the object, which owns no reference."""
    source = _object(original)
    made = object.__new__(type(source))
    made.__dict__.update(source.__dict__, _p=new("ctrt_module **", copy))
    made.__dict__.update(made.named_children())
    for listed in made.named_parameters(), made.named_buffers():
        made.__dict__.update((name, tensor) for name, tensor in listed if "." not in name)
    _objects[_address(copy)] = _copies[_address(copy)] = made


@ffi.callback("void(ctrt_module *)")
def _destroy(module):
    made = _copies.pop(_address(module), None)
    if made is not None:
        made._p[0] = NULL


def _address(pointer):
    return int(ffi.cast("uintptr_t", pointer))


def _object(module):
    found = _objects.get(_address(module))
    if found is None:
        kind = text_result(lib.ctrt_module_kind(module))
        raise RuntimeError("the Python object of the module %s does not exist any more" % kind)
    return found


class Module(Handle, kind="module"):
    _class = None

    def __init__(self):
        """Creates a module whose forward pass is the method `forward` of the subclass."""
        cls = type(self)
        if cls.__dict__.get("_class") is None:
            cls._class = constant("ctrt_module_class", kind=cls.__name__, forward=_forward, replicate=_replicate,
                                  destroy=_destroy)
        self._made(lib.ctrt_module_new, cls._class)

    def _made(self, create, *arguments):
        self._create(create, *arguments)
        _objects[_address(self._p[0])] = self
        return self

    @staticmethod
    def _of_handle(pointer):
        """The object of a module of the library, which is borrowed."""
        found = _objects.get(_address(pointer))
        if found is None:
            found = share("module", new("ctrt_module **", pointer))
            _objects[_address(pointer)] = found
        return found

    def __setattr__(self, name, value):
        if isinstance(value, Module) and self._p is not None:
            api.module_add_module(self, name, value)
        elif isinstance(value, Parameter):
            api.module_add_parameter(self, name, value)
        object.__setattr__(self, name, value)

    def register_buffer(self, name, value, persistent=True):
        api.module_add_buffer(self, name, value, persistent)
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        """Parameters, buffers and children of a module of the library, such as linear.weight."""
        if name.startswith("_"):
            raise AttributeError(name)
        for child, module in self.named_children():
            if child == name:
                return module
        variable = new("ctrt_tensor **")
        if lib.ctrt_module_tensor(variable, self._p[0], name.encode()) != 0:
            raise AttributeError("%s has no attribute %r" % (type(self).__name__, name))
        return borrowed(variable[0])

    def forward(self, *inputs):
        raise NotImplementedError("%s has no method forward" % type(self).__name__)

    def __call__(self, *inputs, **more):
        if more or not all(i is None or isinstance(i, Tensor) for i in inputs):
            return self.forward(*inputs, **more)        # what the library cannot pass on
        return api.forward_n(self, inputs)

    def __repr__(self):
        kind, children = text_result(lib.ctrt_module_kind(self._p[0])), list(self.named_children())
        if not children:
            return kind + "(%s)" % ", ".join("%s=%s" % (n, list(p.shape)) for n, p in self.named_parameters())
        lines = ["(%s): %s" % (name, repr(child).replace("\n", "\n  ")) for name, child in children]
        return kind + "(\n  " + "\n  ".join(lines) + "\n)"

    # ---- parameters, buffers, children ----

    def _listed(self, function, kind):
        name, variable = new("char **"), new("ctrt_%s **" % kind)
        for index in itertools.count():
            status = function(name, variable, self._p[0], index)
            if status == lib.CTRT_ERR_NOT_FOUND:
                return
            check(status)
            yield text_result(name[0]), borrowed(variable[0]) if kind == "tensor" else Module._of_handle(variable[0])

    def named_parameters(self):
        return self._listed(lib.ctrt_module_parameter, "tensor")

    def named_buffers(self):
        return self._listed(lib.ctrt_module_buffer, "tensor")

    def named_children(self):
        return self._listed(lib.ctrt_module_child, "module")

    def parameters(self):
        return (parameter for _, parameter in self.named_parameters())

    def children(self):
        return (child for _, child in self.named_children())

    def modules(self):
        yield self
        for child in self.children():
            yield from child.modules()

    def state_dict(self):
        return {name: value.detach() for name, value in itertools.chain(self.named_parameters(), self.named_buffers())}

    def load_state_dict(self, state):
        own = self.state_dict()
        if set(own) != set(state):
            raise KeyError("missing: %s; surplus: %s" % (sorted(set(own) - set(state)), sorted(set(state) - set(own))))
        for name, value in own.items():
            given = state[name] if isinstance(state[name], Tensor) else tensor(state[name])
            if given.shape != value.shape:
                raise ValueError("%s has shape %s, not %s" % (name, value.shape, given.shape))
            value.copy_(given.detach())

    save = api.save

    def load(self, path):
        api.load(self, path)
        return self

    # ---- modes and devices ----

    training = property(api.module_is_training)
    zero_grad = api.module_zero_grad

    def train(self, mode=True):
        lib.ctrt_module_train(self._p[0], mode)
        return self

    def eval(self):
        return self.train(False)

    def to(self, device=None, dtype=None):
        if device is not None and not isinstance(device, (Device, str)):
            device, dtype = None, device
        api.module_to(self, device, dtype)
        return self

    def requires_grad_(self, requires_grad=True):
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))._made(lib.ctrt_module_copy, self._p[0], NULL)
        found = _copies.get(_address(made._p[0]))       # of a module in Python
        if found is not None:
            made.__dict__.update(found.__dict__, _p=made._p)
        return made


class Sequential(Module):
    """Runs its children one after another."""

    def __init__(self, *modules):
        self._made(lib.ctrt_sequential_new, (NULL, 0))
        for module in modules:
            self.append(module)

    def append(self, module):
        api.sequential_add(self, module)
        self.__dict__.setdefault("_kept", []).append(module)    # modules in Python live as long as their objects
        return self

    def __len__(self):
        return sum(1 for _ in self.children())

    def __getitem__(self, index):
        return list(self.children())[index]

    def __iter__(self):
        return self.children()


class ModuleList(Module):
    """Modules by number, which the program calls itself."""

    def __init__(self, modules=()):
        super().__init__()
        self._count = 0
        for module in modules:
            self.append(module)

    def append(self, module):
        setattr(self, str(self._count), module)
        self._count += 1
        return self

    def __len__(self):
        return self._count

    def __iter__(self):
        return (self.__dict__[str(i)] for i in range(self._count))

    def __getitem__(self, index):
        return list(self)[index]


def _layer(name, create):
    """A class for the modules that `create` makes."""

    def __init__(self, *arguments, **options):
        made = create(*arguments, **options)
        object.__setattr__(self, "_p", made._p)
        _objects.pop(_address(made._p[0]), None)
        made._p = None
        _objects[_address(self._p[0])] = self

    return type(name, (Module,), {"__init__": __init__, "__module__": __name__})


def _conv2d(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, device=None):
    height, width = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
    return api.conv2d_new(in_channels, out_channels, height, width, bias, device, stride=stride, padding=padding,
                          dilation=dilation, groups=groups)


def _norm(create):
    def made(num_features, eps=1e-5, momentum=0.1, affine=True, device=None):
        return create(num_features, device, eps=eps, momentum=-1.0 if momentum is None else momentum, affine=affine)

    return made


def _layer_norm(normalized_shape, eps=1e-5, elementwise_affine=True, device=None):
    return api.layer_norm_new(normalized_shape, device, eps=eps, affine=elementwise_affine)


def _embedding(num_embeddings, embedding_dim, padding_idx=None, device=None):
    padding_idx = -1 if padding_idx is None else padding_idx
    return api.embedding_new(num_embeddings, embedding_dim, device, padding_idx=padding_idx)


def _max_pool(kernel_size, stride=None, padding=0, dilation=1):
    return api.max_pool2d_new(kernel=kernel_size, stride=stride or 0, padding=padding, dilation=dilation)


def _attention(embed_dim, num_heads, dropout=0.0, bias=True, causal=False, device=None):
    return api.multihead_attention_new(embed_dim, num_heads, device, dropout=dropout, bias=bias, causal=causal)


Linear, Conv2d = _layer("Linear", api.linear_new), _layer("Conv2d", _conv2d)
BatchNorm1d = _layer("BatchNorm1d", _norm(api.batch_norm1d_new))
BatchNorm2d = _layer("BatchNorm2d", _norm(api.batch_norm2d_new))
LayerNorm, Embedding = _layer("LayerNorm", _layer_norm), _layer("Embedding", _embedding)
MultiheadAttention, MaxPool2d = _layer("MultiheadAttention", _attention), _layer("MaxPool2d", _max_pool)
Dropout = _layer("Dropout", lambda p=0.5: api.dropout_new(p))
Flatten = _layer("Flatten", lambda start_dim=1, end_dim=-1: api.flatten_new(start_dim, end_dim))
GELU = _layer("GELU", lambda approximate="none": api.gelu_new(approximate == "tanh"))
ReLU, Tanh = _layer("ReLU", api.relu_new), _layer("Tanh", api.tanh_new)
Sigmoid, Softmax = _layer("Sigmoid", api.sigmoid_new), _layer("Softmax", api.softmax_new)


class CrossEntropyLoss:
    """A loss as an object; `options` are those of functional.cross_entropy."""

    _function = staticmethod(functional.cross_entropy)

    def __init__(self, **options):
        self._options = options

    def __call__(self, input, target):
        return self._function(input, target, **self._options)


class MSELoss(CrossEntropyLoss):
    _function = staticmethod(functional.mse_loss)


clip_grad_norm_ = api.clip_grad_norm_      # of a module; returns the norm before
