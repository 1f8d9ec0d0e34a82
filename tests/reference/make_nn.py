#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of PyTorch's neural network ops: ops_conv.txt, ops_norm.txt, ops_loss.txt, ops_activation.txt,
ops_attention.txt (with embedding), ops_optimizer.txt. Names of records: cases.py."""
import torch
import torch.nn.functional as F

from cases import Cases, f32, grid
from ref_format import setup

NAN, INF = float("nan"), float("inf")


def longs(*values):
    return torch.tensor(values, dtype=torch.int64)


def conv():
    out = Cases("ops_conv.txt", "convolutions and pools of PyTorch, by make_nn.py")
    cases = {                              # input shape, weight shape, stride, padding, dilation, groups
        "plain": ((2, 3, 6, 7), (4, 3, 3, 3), 1, 0, 1, 1),
        "padding": ((2, 2, 5, 5), (3, 2, 3, 3), 1, 1, 1, 1),
        "stride2": ((1, 2, 7, 8), (3, 2, 3, 3), 2, 1, 1, 1),
        "uneven": ((1, 2, 7, 8), (3, 2, 2, 3), (2, 1), (0, 2), (1, 2), 1),
        "dilation": ((1, 2, 8, 8), (2, 2, 3, 3), 1, 2, 2, 1),
        "groups": ((2, 4, 5, 5), (6, 2, 3, 3), 1, 1, 1, 2),
        "depthwise": ((1, 3, 5, 5), (6, 1, 3, 3), 2, 1, 1, 3),
        "one_by_one": ((2, 3, 4, 4), (5, 3, 1, 1), 1, 0, 1, 1),
        "whole": ((2, 2, 3, 4), (3, 2, 3, 4), 1, 0, 1, 1),
    }
    for name, (x, w, stride, padding, dilation, groups) in cases.items():
        two = lambda v: list(v) if isinstance(v, tuple) else [v, v]
        attrs = {"stride": two(stride), "padding": two(padding), "dilation": two(dilation), "groups": groups}
        inputs = {"x": grid(*x, step=0.25), "weight": grid(*w, step=0.25)}
        if name not in ("dilation", "whole"):
            inputs["bias"] = grid(w[0], step=0.25)
        out.smooth("conv2d." + name, lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups), inputs,
                   attrs)
    out.fails("conv2d.channels", F.conv2d, {"x": grid(1, 3, 4, 4), "weight": grid(2, 2, 3, 3)})
    out.fails("conv2d.kernel_too_large", F.conv2d, {"x": grid(1, 2, 2, 2), "weight": grid(2, 2, 3, 3)})

    out.comment("", "max pool: padding is -inf, the first of equal elements counts, NaN wins; out/indices are "
                "positions", "in a plane of the input")
    pools = {                              # input shape, kernel, stride, padding, dilation, ceil_mode
        "plain": ((2, 2, 4, 6), (2, 2), (2, 2), (0, 0), (1, 1), False),
        "overlap_padding": ((1, 2, 5, 5), (3, 3), (2, 2), (1, 1), (1, 1), False),
        "uneven_dilation": ((1, 1, 7, 8), (2, 3), (1, 2), (1, 1), (2, 1), False),
        "ceil": ((1, 1, 6, 6), (3, 3), (2, 2), (0, 0), (1, 1), True),
        "ceil_padding": ((1, 1, 5, 5), (2, 2), (2, 2), (1, 1), (1, 1), True),
    }
    for name, (shape, kernel, stride, padding, dilation, ceil) in pools.items():
        attrs = {"kernel": list(kernel), "stride": list(stride), "padding": list(padding), "dilation": list(dilation),
                 "ceil_mode": ceil}
        pool = lambda x, indices=False: F.max_pool2d(x, kernel, stride, padding, dilation, ceil, indices)
        x = grid(*shape, step=0.5)
        out.smooth("max_pool2d." + name, pool, {"x": x}, attrs)
        out.exact("max_pool2d." + name + "_indices", lambda x: pool(x, True), {"x": x}, attrs, outputs=("", "indices"))
    special = f32(1, 2, NAN, 4, 5, 6, 7, 8, -INF, -INF, 3, 3, -INF, -INF, 3, 3).reshape(1, 1, 4, 4)
    attrs = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    out.exact("max_pool2d.special", lambda x: F.max_pool2d(x, 2, return_indices=True), {"x": special}, attrs,
              outputs=("", "indices"))
    out.fails("max_pool2d.padding_too_large", lambda x: F.max_pool2d(x, 2, 2, 2), {"x": grid(1, 1, 4, 4)},
              {"kernel": [2, 2], "stride": [2, 2], "padding": [2, 2]})
    for name, counted in (("counted", True), ("not_counted", False)):
        out.smooth("avg_pool2d." + name, lambda x: F.avg_pool2d(x, 3, 2, 1, False, counted), {"x": grid(1, 2, 5, 6)},
                   {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "count_include_pad": counted})
    out.smooth("adaptive_avg_pool2d.to_2x3", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), {"x": grid(1, 2, 5, 7)},
               {"output": [2, 3]})
    out.smooth("adaptive_avg_pool2d.to_1x1", lambda x: F.adaptive_avg_pool2d(x, 1), {"x": grid(2, 2, 3, 3)},
               {"output": [1, 1]})
    out.write()


def norm():
    out = Cases("ops_norm.txt", "normalisations of PyTorch, by make_nn.py")
    x = grid(3, 4, 5)
    out.smooth("layer_norm.last", lambda x, w, b: F.layer_norm(x, (5,), w, b),
               {"x": x, "weight": grid(5), "bias": grid(5)}, {"shape": [5], "eps": 1e-5})
    out.smooth("layer_norm.two_dims", lambda x, w, b: F.layer_norm(x, (4, 5), w, b, 1e-3),
               {"x": x, "weight": grid(4, 5), "bias": grid(4, 5)}, {"shape": [4, 5], "eps": 1e-3})
    out.smooth("layer_norm.plain", lambda x: F.layer_norm(x, (5,)), {"x": x}, {"shape": [5], "eps": 1e-5})
    out.smooth("layer_norm.constant_row", lambda x: F.layer_norm(x, (4,)), {"x": torch.full((1, 4), 3.0)},
               {"shape": [4], "eps": 1e-5})
    out.smooth("layer_norm.far_from_zero", lambda x: F.layer_norm(x, (8,)), {"x": grid(2, 8) + 1000}, {"shape": [8],
               "eps": 1e-5}, tolerance=1e-3)
    out.smooth("group_norm.two", lambda x, w, b: F.group_norm(x, 2, w, b), {"x": grid(2, 4, 3), "weight": grid(4),
               "bias": grid(4)}, {"groups": 2, "eps": 1e-5})

    out.comment("", "batch norm normalises with the biased variance and keeps the unbiased one:",
                "running = (1 - momentum) running + momentum batch; out64/mean and out64/var are the buffers "
                "afterwards")
    for name, shape in {"2d": (6, 3), "3d": (2, 3, 4), "4d": (2, 3, 2, 4)}.items():
        affine = {"weight": grid(3), "bias": grid(3)}
        buffers = {"mean": f32(0.5, -0.25, 0), "var": f32(1, 2, 0.5)}
        x = grid(*shape)

        def run(x, w, b, mean, var, training, momentum=0.1):
            return F.batch_norm(x, mean.clone(), var.clone(), w, b, training, momentum, 1e-5)
        inputs = dict({"x": x}, **affine, **buffers)
        for mode, training in (("train", True), ("eval", False)):
            case = "batch_norm.%s_%s" % (mode, name)
            out.smooth(case, lambda *args: run(*args, training), inputs,
                       {"training": training, "momentum": 0.1, "eps": 1e-5}, grads=["x", "weight", "bias"])
            if training:
                mean, var = buffers["mean"].double(), buffers["var"].double()
                F.batch_norm(x.double(), mean, var, None, None, True, 0.1, 1e-5)
                out.tensor(case + "/out64/mean", mean)
                out.tensor(case + "/out64/var", var)
    out.fails("batch_norm.one_value", lambda x: F.batch_norm(x, None, None, training=True), {"x": grid(1, 3)},
              {"training": True})
    out.write()


def loss():
    out = Cases("ops_loss.txt", "losses of PyTorch, by make_nn.py",
                "attr/reduction absent: mean; attr/ignore_index absent: -100")
    x, y = grid(5, 4), longs(0, 3, 1, -100, 2)
    weight = f32(1, 0.5, 2, 0.25)
    for reduction in ("none", "sum", "mean"):
        for what, target in (("plain", y.clamp_min(0)), ("ignored", y)):
            out.smooth("cross_entropy.%s_%s" % (what, reduction),
                       lambda x, y: F.cross_entropy(x, y, reduction=reduction), {"x": x, "target": target},
                       {"reduction": reduction})
        out.smooth("cross_entropy.weighted_" + reduction,
                   lambda x, y, w: F.cross_entropy(x, y, w, reduction=reduction),
                   {"x": x, "target": y, "weight": weight}, {"reduction": reduction}, grads=["x"])
        out.smooth("cross_entropy.smoothed_" + reduction,
                   lambda x, y: F.cross_entropy(x, y, reduction=reduction, label_smoothing=0.1),
                   {"x": x, "target": y}, {"reduction": reduction, "label_smoothing": 0.1})
        out.smooth("cross_entropy.smoothed_weighted_" + reduction,
                   lambda x, y, w: F.cross_entropy(x, y, w, reduction=reduction, label_smoothing=0.1),
                   {"x": x, "target": y, "weight": weight}, {"reduction": reduction, "label_smoothing": 0.1},
                   grads=["x"])
        out.smooth("nll_loss.weighted_" + reduction, lambda x, y, w: F.nll_loss(x, y, w, reduction=reduction),
                   {"x": x, "target": y, "weight": weight}, {"reduction": reduction}, grads=["x"])
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            fn = getattr(F, name)
            out.smooth("%s.%s" % (name, reduction), lambda a, b: fn(a, b, reduction=reduction),
                       {"x": f32(1, -2, 0.5, 3, 0), "target": f32(1, 1, 1, 1.5, 1)}, {"reduction": reduction})
        out.smooth("bce_with_logits.%s" % reduction,
                   lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=reduction),
                   {"x": f32(0, 2, -3, 100, -100), "target": f32(1, 0, 0.5, 0, 0)}, {"reduction": reduction},
                   grads=["x"])
    out.smooth("cross_entropy.ignore_index_1", lambda x, y: F.cross_entropy(x, y, ignore_index=1),
               {"x": x, "target": y.clamp_min(0)}, {"ignore_index": 1})
    out.smooth("cross_entropy.all_ignored", F.cross_entropy, {"x": x[:2], "target": longs(-100, -100)})
    out.smooth("cross_entropy.all_ignored_sum", lambda x, y: F.cross_entropy(x, y, reduction="sum"),
               {"x": x[:2], "target": longs(-100, -100)}, {"reduction": "sum"})
    out.smooth("cross_entropy.no_batch", F.cross_entropy, {"x": x[0], "target": torch.tensor(2)})
    out.smooth("cross_entropy.images", F.cross_entropy, {
        "x": grid(2, 3, 2, 2), "target": longs(0, 1, 2, 0, 1, -100, 2, 2).reshape(2, 2, 2)})
    out.smooth("cross_entropy.probabilities", F.cross_entropy, {"x": x[:2], "target": f32(
        0.25, 0.25, 0.5, 0, 0, 1, 0, 0).reshape(2, 4)}, grads=["x"])
    out.smooth("cross_entropy.large", F.cross_entropy, {"x": f32(1000, 0, -1000, 0, 1000, 0).reshape(2, 3),
                                                        "target": longs(1, 1)})
    out.fails("cross_entropy.class_too_large", F.cross_entropy, {"x": x[:1], "target": longs(4)})
    out.fails("cross_entropy.class_negative", F.cross_entropy, {"x": x[:1], "target": longs(-1)})
    out.fails("cross_entropy.batch_differs", F.cross_entropy, {"x": x[:2], "target": longs(1)})
    out.smooth("binary_cross_entropy.edges", lambda a, b: F.binary_cross_entropy(a, b, reduction="none"),
               {"x": f32(0, 1, 0, 1, 0.25), "target": f32(0, 1, 1, 0, 0.5)}, {"reduction": "none"}, grads=[])
    out.smooth("kl_div.batchmean", lambda a, b: F.kl_div(a, b, reduction="batchmean"),
               {"x": f32(-1, -2, -0.5, -1).reshape(2, 2), "target": f32(0.5, 0.5, 0, 1).reshape(2, 2)},
               {"reduction": "batchmean"}, grads=["x"])
    out.write()


def activation():
    out = Cases("ops_activation.txt", "activations of PyTorch, by make_nn.py")
    x = f32(-INF, -30, -5, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 5, 30, INF, NAN)
    finite = f32(-30, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 30)
    table = {
        "gelu": (F.gelu, {"approximate": "none"}),
        "gelu_tanh": (lambda t: F.gelu(t, approximate="tanh"), {"approximate": "tanh"}),
        "relu": (F.relu, {}), "silu": (F.silu, {}), "sigmoid": (torch.sigmoid, {}), "tanh": (torch.tanh, {}),
        "leaky_relu": (F.leaky_relu, {"negative_slope": 0.01}), "elu": (F.elu, {"alpha": 1.0}),
        "softplus": (F.softplus, {"beta": 1.0, "threshold": 20.0}), "hardtanh": (F.hardtanh, {"min": -1.0, "max": 1.0}),
        "relu6": (F.relu6, {}), "logsigmoid": (F.logsigmoid, {}), "hardsigmoid": (F.hardsigmoid, {}),
        "hardswish": (F.hardswish, {}), "mish": (F.mish, {}), "selu": (F.selu, {}),
    }
    for name, (fn, attrs) in table.items():
        ends = x[torch.isfinite(x)] if name.startswith("gelu") else x   # gelu(inf): NaN or inf, by kernel
        out.smooth(name + ".range", fn, {"x": ends}, attrs, grads=[])
        out.smooth(name + ".gradient", fn, {"x": finite}, attrs)
    out.write()


def attention():
    out = Cases("ops_attention.txt", "attention and embedding of PyTorch, by make_nn.py")
    q, k, v = grid(2, 2, 4, 6), grid(2, 2, 5, 6), grid(2, 2, 5, 3)
    sdpa = F.scaled_dot_product_attention
    out.smooth("attention.plain", sdpa, {"q": q, "k": k, "v": v})
    out.smooth("attention.scale", lambda q, k, v: sdpa(q, k, v, scale=0.5), {"q": q, "k": k, "v": v}, {"scale": 0.5})
    out.smooth("attention.causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), {"q": q, "k": k, "v": v},
               {"causal": True})
    out.smooth("attention.causal_square", lambda q, k, v: sdpa(q, k, v, is_causal=True),
               {"q": k, "k": grid(2, 2, 5, 6), "v": v}, {"causal": True})
    mask = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    out.smooth("attention.mask_bool", lambda q, k, v, m: sdpa(q, k, v, m), {"q": q, "k": k, "v": v, "mask": mask})
    out.smooth("attention.mask_float", lambda q, k, v, m: sdpa(q, k, v, m.to(q.dtype)),
               {"q": q, "k": k, "v": v, "mask": grid(4, 5)}, grads=["q", "k", "v"])

    out.comment("", "multi-head attention: query, key and value projected by in_weight [3E,E], heads joined, "
                "out_weight")
    width, heads = 6, 2
    x, memory = grid(2, 4, width), grid(2, 3, width)
    weights = {"in_weight": grid(3 * width, width, step=0.25) / 2, "in_bias": grid(3 * width, step=0.25),
               "out_weight": grid(width, width, step=0.25) / 2, "out_bias": grid(width, step=0.25)}

    def heads_of(query, key, causal):
        def fn(*tensors):
            q, k = tensors[0], tensors[1] if key else tensors[0]
            iw, ib, ow, ob = tensors[-4:]
            m = torch.full((q.shape[1], k.shape[1]), -INF, dtype=q.dtype).triu(1) if causal else None
            y, _ = F.multi_head_attention_forward(
                q.transpose(0, 1), k.transpose(0, 1), k.transpose(0, 1), width, heads, iw, ib, None, None, False, 0.0,
                ow, ob, need_weights=False, attn_mask=m)
            return y.transpose(0, 1)
        return fn
    out.smooth("multi_head.self", heads_of(True, False, False), dict({"x": x}, **weights), {"heads": heads})
    out.smooth("multi_head.causal", heads_of(True, False, True), dict({"x": x}, **weights),
               {"heads": heads, "causal": True})
    out.smooth("multi_head.cross", heads_of(True, True, False), dict({"x": x, "memory": memory}, **weights),
               {"heads": heads})

    out.comment("", "embedding: the padding row is looked up like any other and gets no gradient; repeated rows add up")
    index, table = longs(1, 3, 1, 0, 2, 3).reshape(2, 3), grid(5, 4)
    out.smooth("embedding.plain", F.embedding, {"index": index, "weight": table})
    out.smooth("embedding.padding", lambda i, w: F.embedding(i, w, padding_idx=3), {"index": index, "weight": table},
               {"padding_idx": 3})
    out.smooth("embedding.padding_negative", lambda i, w: F.embedding(i, w, padding_idx=-2),
               {"index": index, "weight": table}, {"padding_idx": -2})
    out.fails("embedding.beyond", F.embedding, {"index": longs(5), "weight": table})
    out.fails("embedding.negative", F.embedding, {"index": longs(-1), "weight": table})
    out.write()


def optimizer():
    out = Cases("ops_optimizer.txt", "optimizer steps of PyTorch, by make_nn.py",
                "in/p: parameter; in/grads: its gradient at each of five steps; out64: the parameter after each step")
    p, grads = f32(1, -0.5, 0.25, 0), grid(5, 4)
    grads[:, 3] = 0
    table = {
        "sgd.plain": (torch.optim.SGD, {"lr": 0.1}),
        "sgd.momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        "sgd.dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        "sgd.nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        "sgd.weight_decay": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
        "sgd.maximize": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "maximize": True}),
        "adam.defaults": (torch.optim.Adam, {"lr": 0.001}),
        "adam.weight_decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
        "adam.amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        "adam.betas": (torch.optim.Adam, {"lr": 0.01, "betas": [0.5, 0.75], "eps": 1e-3}),
        "adamw.defaults": (torch.optim.AdamW, {}),
        "adamw.weight_decay": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        "adamw.amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
        "adamw.maximize": (torch.optim.AdamW, {"lr": 0.01, "maximize": True}),
    }
    for case, (kind, hyper) in table.items():
        def steps(p, grads):
            q = p.clone().requires_grad_(True)
            opt, rows = kind([q], **hyper), []
            for g in grads:
                q.grad = g.clone()
                opt.step()
                rows.append(q.detach().clone())
            return torch.stack(rows)
        out.smooth(case, steps, {"p": p, "grads": grads}, hyper, grads=[])

    out.comment("", "clipping: total norm of both gradients, which are scaled by max_norm / (norm + 1e-6) if that is "
                "below 1")
    for name, limit in (("clipped", 1.0), ("untouched", 100.0)):
        def clip(a, b, what):
            tensors = [torch.zeros_like(a), torch.zeros_like(b)]
            tensors[0].grad, tensors[1].grad = a.clone(), b.clone()
            total = torch.nn.utils.clip_grad_norm_(tensors, limit)
            return [total, tensors[0].grad, tensors[1].grad][what]
        a, b = grid(3), grid(2, 2)
        case = "clip_grad_norm." + name
        out.smooth(case, lambda a, b: clip(a, b, 0), {"a": a, "b": b}, {"max_norm": limit}, grads=[])
        out.tensor(case + "/out64/a", clip(a.double(), b.double(), 1))
        out.tensor(case + "/out64/b", clip(a.double(), b.double(), 2))

    out.comment("", "schedules: the rate of epochs 0..11, starting from 0.1")
    sched = torch.optim.lr_scheduler
    schedules = {
        "step": (sched.StepLR, {"step_size": 3, "gamma": 0.5}),
        "exponential": (sched.ExponentialLR, {"gamma": 0.9}),
        "cosine": (sched.CosineAnnealingLR, {"T_max": 10, "eta_min": 0.01}),
        "linear": (sched.LinearLR, {"start_factor": 0.25, "total_iters": 4}),
        "one_cycle": (sched.OneCycleLR, {"max_lr": 0.5, "total_steps": 12}),
    }
    for name, (kind, hyper) in schedules.items():
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule, rates = kind(opt, **hyper), []
        for epoch in range(12):
            rates.append(opt.param_groups[0]["lr"])
            opt.step()
            if epoch < 11:
                schedule.step()
        case = "schedule." + name
        out._inputs(case, {}, dict({"lr": 0.1}, **hyper))
        out.f64(case + "/out64", rates)
    out.write()


if __name__ == "__main__":
    setup()
    for family in (conv, norm, loss, activation, attention, optimizer):
        torch.manual_seed(11)
        family()
