# SPDX-License-Identifier: Apache-2.0
"""Optimizers with PyTorch's names and options."""

from . import api
from ._core import *
from ._core import Handle


class _Group:
    """Options of a group: group["lr"], which can be assigned, and the others, which cannot."""

    def __init__(self, optimizer, index):
        self._optimizer, self._index = optimizer, index

    def __getitem__(self, name):
        return api.optimizer_option(self._optimizer, self._index, {"eps": "epsilon"}.get(name, name))

    def __setitem__(self, name, value):
        if name != "lr":
            raise KeyError("only lr can be changed, not %r" % name)
        api.optimizer_set_group_lr(self._optimizer, self._index, value)


class Optimizer(Handle, kind="optimizer"):
    """An optimizer of the parameters of a Module, of tensors, or of groups {"params": ..., "lr": ...}."""

    _name = None

    def __init__(self, params, **options):
        create, add_group = getattr(lib, "ctrt_%s_new" % self._name), getattr(lib, "ctrt_%s_add_group" % self._name)
        struct = "ctrt_%s_options" % self._name
        module = params if not isinstance(params, (list, tuple)) and hasattr(params, "named_parameters") else None
        self._create(create, handle_arg(module), options_arg(struct, options))
        self._module = module                           # a module in Python lives as long as its object
        groups = [] if module is not None else list(params)
        if groups and not isinstance(groups[0], dict):
            api.optimizer_add(self, groups)
            groups = []
        elif module is None and not groups:
            raise ValueError("the optimizer has no parameters")
        for index, group in enumerate(groups):
            own = dict(options, **{name: value for name, value in group.items() if name != "params"})
            tensors = array_arg("ctrt_tensor", group["params"])
            check(add_group(self._p[0], tensors, len(tensors), options_arg(struct, own)))
        self._skip = 1 if groups else 0                 # group 0, which is empty then

    @property
    def param_groups(self):
        return [_Group(self, index) for index in range(self._skip, api.optimizer_group_count(self))]

    lr = property(api.optimizer_lr, api.optimizer_set_lr)
    step, zero_grad = api.optimizer_step, api.optimizer_zero_grad
    state = api.optimizer_state     # state(index, "exp_avg") is a tensor
    save, load = api.optimizer_save, api.optimizer_load


for _class in "SGD Adam AdamW RMSprop Adagrad NAdam".split():
    globals()[_class] = type(_class, (Optimizer,), {
        "_name": _class.lower(), "__module__": __name__,
        "__doc__": "Options and defaults: ctrt_%s_options in ctrt/optim.h." % _class.lower(),
    })


class GradScaler(Handle, kind="grad_scaler"):
    """Scaling of the loss, as torch.amp.GradScaler. Options: ctrt_grad_scaler_options in ctrt/amp.h."""

    def __init__(self, **options):
        self._create(lib.ctrt_grad_scaler_new, options_arg("ctrt_grad_scaler_options", options))

    scale, unscale_ = api.grad_scaler_scale, api.grad_scaler_unscale_
    step, update = api.grad_scaler_step, api.grad_scaler_update

    def get_scale(self):
        return api.grad_scaler_get_state(self).scale
