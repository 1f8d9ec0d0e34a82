#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains three small networks for ten steps with PyTorch, and writes the data and results with which a test repeats the
training.

    python3 make_training.py            writes train_{mlp,cnn,transformer}_{sgd,adamw}.txt beside this script
    python3 make_training.py --check    trains again and prints the distance to the files, writing nothing

Each network is trained twice from the same initial values, in float32 and in float64. The difference shows the effect
of rounding errors on the float32 run; the script fails if it is larger than LIMIT.
"""
import copy
import sys

import torch
from torch import nn

from ref_format import RefFile, here, read, setup, versions

STEPS = 10
BATCHES = 2             # step t uses batch t mod 2
LIMIT = 1e-6            # largest allowed difference of float32 and float64; tests allow ten times as much, 1e-5


class Block(nn.Module):
    """Pre-norm transformer block: x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    """Tokens [N,T] to logits [N,T,vocabulary]; position t sees positions 0..t."""

    def __init__(self, vocabulary, length, width, heads, hidden, layers):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        length = tokens.shape[1]
        hidden = torch.full((length, length), float("-inf"), dtype=self.ln.weight.dtype).triu(1)
        x = self.tok(tokens) + self.pos(torch.arange(length))
        for block in self.blocks:
            x = block(x, hidden)
        return self.head(self.ln(x))


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


def transformer():
    return Transformer(vocabulary=23, length=12, width=12, heads=2, hidden=32, layers=2)


def grid(shape, low, high, step):
    """Returns uniform random multiples of `step`, which are exact in every floating-point format and short in the
    file."""
    return torch.randint(round(low / step), round(high / step) + 1, shape).to(torch.float32) * step


def taught(x):
    """Returns labels 0..9 for the rows of [batches, N, ...], computed by a random linear function so that the network
    can learn them."""
    flat = x.flatten(2)
    return (flat @ torch.randn(flat.shape[-1], 10)).argmax(-1)


def mlp_batches():
    x = grid((BATCHES, 32, 16), -2, 2, 1 / 8)
    return x, taught(x)


def cnn_batches():
    x = grid((BATCHES, 16, 1, 8, 8), 0, 16, 1) / 16
    return x, taught(x - 0.5)


def transformer_batches():
    """Returns random sequences in which each token determines the next one except for one random bit, so that the
    network can learn them."""
    text = torch.zeros(BATCHES, 4, 13, dtype=torch.int64)
    text[:, :, 0] = torch.randint(0, 23, (BATCHES, 4))
    for t in range(1, 13):
        text[:, :, t] = (text[:, :, t - 1] * 5 + 3 + torch.randint(0, 2, (BATCHES, 4))) % 23
    return text[:, :, :-1].contiguous(), text[:, :, 1:].contiguous()


def spread(net, embedding_scale):
    """Rounds PyTorch's initial values to multiples of 2^-10. Replaces scales of 1 and shifts of 0 by random values,
    because 1 and 0 would hide errors."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            module = net.get_submodule(name.rpartition(".")[0])
            if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
                p.copy_(grid(p.shape, 0.75, 1.25, 2 ** -6) if name.endswith("weight")
                        else grid(p.shape, -0.25, 0.25, 2 ** -6))
            elif name.endswith("in_proj_bias") or name.endswith("out_proj.bias"):
                p.copy_(grid(p.shape, -0.25, 0.25, 2 ** -6))
            else:
                scale = embedding_scale if isinstance(module, nn.Embedding) else 1
                p.copy_((p * scale * 1024).round() / 1024)


# Seeds. With some other seeds, the input of a ReLU or maximum is so close to a discontinuity of the derivative that a
# change of 10^-6 crosses it; nudge() detects such seeds.
MODELS = {
    "mlp": (mlp, mlp_batches, 4, "Linear(16,32) ReLU Linear(32,32) ReLU Linear(32,10); cross entropy, mean"),
    "cnn": (cnn, cnn_batches, 5,
            "Conv2d(1,8,3,padding=1,bias=False) BatchNorm2d(8) ReLU MaxPool2d(2) Conv2d(8,16,3,stride=2,padding=1) "
            "ReLU Flatten Linear(64,10); cross entropy, mean"),
    "transformer": (transformer, transformer_batches, 4,
                    "tok Embedding(23,12) + pos Embedding(12,12); 2 blocks: x + attn(ln1(x)), 2 heads, causal; "
                    "x + mlp(ln2(x)), mlp = Linear(12,32) GELU Linear(32,12); ln; head Linear(12,23); cross entropy, "
                    "mean over all positions"),
}
# With small embeddings, the eps of layer norm has a visible effect on the results. AdamW would amplify rounding errors
# too much with them.
EMBEDDING_SCALE = {"sgd": 0.125, "adamw": 1}
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
ADAMW = {"lr": 5e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
# The gradient of the bias of the keys is mathematically zero, because a shift does not change a softmax, and about
# 1e-10 of rounding errors in float32. With eps = 1e-8, AdamW would turn these errors into updates of 0.01 lr; with eps
# = 1e-4 the updates are negligible. For the same reason, the convolution before the batch norm has no bias.
ADAMW_WIDE = dict(ADAMW, eps=1e-4)
RUNS = [(model, "sgd", SGD) for model in MODELS] + [
    ("mlp", "adamw", ADAMW), ("cnn", "adamw", ADAMW), ("transformer", "adamw", ADAMW_WIDE)]


def optimizer(kind, hyper, parameters):
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=hyper["lr"], momentum=hyper["momentum"],
                               weight_decay=hyper["weight_decay"])
    return torch.optim.AdamW(parameters, lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"],
                             weight_decay=hyper["weight_decay"])


def train(net, kind, hyper, x, y):
    """Trains ten steps. Returns the losses, the logits of the first step and the gradient norms by parameter."""
    opt = optimizer(kind, hyper, net.parameters())
    net.train()
    losses, first, norms = [], None, {name: [] for name, _ in net.named_parameters()}
    for step in range(STEPS):
        batch = step % x.shape[0]
        logits = net(x[batch])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y[batch].flatten())
        opt.zero_grad()
        loss.backward()
        for name, p in net.named_parameters():
            norms[name].append(p.grad.norm().item())
        opt.step()
        losses.append(loss.item())
        first = logits.detach() if step == 0 else first
    return losses, first, norms


def distance(a, b):
    """Returns the largest difference, relative to the largest magnitude of b."""
    a, b = a.double(), b.double()
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


def nudge(net, kind, hyper, x, y, size=1e-6, times=6):
    """Returns the largest factor by which a random relative change `size` of the initial parameters has grown at the
    end of the training."""
    def end(start):
        net = copy.deepcopy(start)
        losses, _, _ = train(net, kind, hyper, x.double() if x.is_floating_point() else x, y)
        return dict(net.state_dict(), loss=torch.tensor(losses))
    base, worst = end(net), 0.0
    for _ in range(times):
        other = copy.deepcopy(net)
        with torch.no_grad():
            for p in other.parameters():
                p.add_(torch.randn_like(p) * p.abs().max() * size)
        moved = end(other)
        worst = max([worst] + [distance(moved[name], base[name]) / size for name in base])
    return worst


def run(model, kind, hyper, start=None):
    """Trains one network in float32 and in float64. Returns the records of its file by name. `start`: records of an
    existing file with the initial values and inputs to use."""
    build, batches, seed, _ = MODELS[model]
    torch.manual_seed(seed)
    net = build()
    if start:
        net.load_state_dict({name[5:]: value for name, value in start.items() if name.startswith("init/")})
        x, y = start["input/x"], start["input/y"]
    else:
        spread(net, EMBEDDING_SCALE[kind])
        x, y = batches()
    arbiter = copy.deepcopy(net).double()
    record = {"hyper/" + name: torch.tensor(value, dtype=torch.float64) for name, value in hyper.items()}
    record["input/x"], record["input/y"] = x, y
    record.update(("init/" + name, value.clone()) for name, value in net.state_dict().items())

    record["nudged"] = torch.tensor(nudge(arbiter, kind, hyper, x, y), dtype=torch.float64)

    losses, first, _ = train(net, kind, hyper, x, y)
    x64 = x.double() if x.is_floating_point() else x
    losses64, first64, norms = train(arbiter, kind, hyper, x64, y)
    record["logits"], record["logits64"] = first, first64
    record["loss"] = torch.tensor(losses, dtype=torch.float32)
    record["loss64"] = torch.tensor(losses64, dtype=torch.float64)
    record.update(("final/" + name, value) for name, value in net.state_dict().items())
    record.update(("final64/" + name, shorter(value)) for name, value in arbiter.state_dict().items())
    record.update(("gradnorm64/" + name, shorter(torch.tensor(v, dtype=torch.float64))) for name, v in norms.items())
    record["logits64"] = shorter(first64)
    return record


def shorter(t):
    """Rounds a float64 to 28 significant bits, which halves its length in the file. The relative error of 4e-9 is far
    below the tolerances of the tests."""
    if t.dtype != torch.float64:
        return t
    mantissa, exponent = torch.frexp(t)
    return torch.ldexp((mantissa * 2.0 ** 28).round() / 2.0 ** 28, exponent)


def write(model, kind, record):
    out = RefFile(
        here("train_%s_%s.txt" % (model, kind)),
        "ten training steps of PyTorch, written by make_training.py; the format is in README.md",
        "made with " + versions(),
        "model %s: %s" % (model, MODELS[model][3]),
        "optimizer %s; step t (from 0) uses batch t %% %d: x = input/x[t %% %d], y = input/y[t %% %d]"
        % (kind, BATCHES, BATCHES, BATCHES),
        "logits: output of step 0; loss: of every step, before its update; final: after the tenth update",
        "gradnorm64: Euclidean norm of each parameter's gradient at every step, in float64")
    far = {name: distance(value, record["final64/" + name[6:]])
           for name, value in record.items() if name.startswith("final/")}
    far["loss"] = max(abs(a - b) / abs(b) for a, b in zip(record["loss"].tolist(), record["loss64"].tolist()))
    worst = max(far, key=far.get)
    out.comment("float32 against float64: loss %.1e relative; worst tensor %s %.1e (of its largest magnitude)"
                % (far["loss"], worst, far[worst]))
    if not far[worst] < LIMIT:
        sys.exit("%s %s: %s is %.1e from float64: too sensitive for a reference" % (model, kind, worst, far[worst]))
    out.comment("initial parameters changed by 1e-6 at random change losses and final parameters by at most %.0fe-6"
                % record["nudged"].item())
    if not record["nudged"] < 50:
        sys.exit("%s %s: a change of 1e-6 grows by %.0f: too near a kink" % (model, kind, record["nudged"].item()))
    del record["nudged"]
    for name, value in record.items():
        out.tensor(name, value)
    out.write()


def check(model, kind, hyper):
    """Prints the difference between a run with this machine and PyTorch version and the results in the file."""
    old = read(here("train_%s_%s.txt" % (model, kind)))
    new = run(model, kind, hyper, start=old)
    far = {name: distance(new[name], value) for name, value in old.items() if name[:6] == "final/" or name == "loss"}
    worst = max(far, key=far.get)
    print("%-12s %-6s loss %.1e, worst tensor %s %.1e" % (model, kind, far["loss"], worst, far[worst]))


def main():
    setup()
    for model, kind, hyper in RUNS:
        if "--check" in sys.argv[1:]:
            check(model, kind, hyper)
        else:
            write(model, kind, run(model, kind, hyper))


if __name__ == "__main__":
    main()
