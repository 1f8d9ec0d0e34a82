# SPDX-License-Identifier: Apache-2.0
"""bench/peers/gpu_torch.py: what bench/gpu.c measures, in PyTorch; the same names. Lines that end in _compiled are torch.compile's, for information."""
import statistics, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.manual_seed(1)
device = torch.device("cuda:0")
names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def batch_ms(f, times, begin, end):
    begin.record()
    for _ in range(times):
        f()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def measure(name, f):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        f()
    times = 1
    while batch_ms(f, times, begin, end) < 2 and times < 1 << 16:
        times *= 2
    ns = statistics.median(batch_ms(f, times, begin, end) * 1e6 / times for _ in range(11))
    print(f"{name} {ns:.1f}", flush=True)


def bandwidth(dtype):
    rows, columns = (1 << 30) // 4096 // torch.empty(0, dtype=dtype).element_size(), 4096
    x = torch.randn(rows, columns, dtype=dtype, device=device)
    out = torch.empty_like(x)
    weight, bias = torch.ones(columns, dtype=dtype, device=device), torch.zeros(columns, dtype=dtype, device=device)
    y = torch.randn_like(x)
    cases = {
        "copy": lambda: out.copy_(x), "add": lambda: x + y, "relu": lambda: torch.relu(x), "exp": lambda: torch.exp(x), "gelu": lambda: F.gelu(x),
        "sum": lambda: x.sum(), "sum_rows": lambda: x.sum(1), "sum_columns": lambda: x.sum(0), "amax_rows": lambda: x.amax(1),
        "softmax": lambda: torch.softmax(x, 1), "layer_norm": lambda: F.layer_norm(x, (columns,), weight, bias),
        "transpose": lambda: x.t().contiguous(), "slice": lambda: x[:, 8:8 + columns // 2].contiguous(),
    }
    for name, f in cases.items():
        measure(f"{name}_1g_{names[dtype]}", f)
        torch.cuda.empty_cache()


def product(dtype, name):
    for m, n, k in [(512,) * 3, (1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (8192, 16, 8192), (16, 8192, 8192)]:
        a, b = torch.randn(m, k, dtype=dtype, device=device), torch.randn(k, n, dtype=dtype, device=device)
        measure(f"matmul_{m}x{n}x{k}_{name}", lambda: a @ b)
        torch.cuda.empty_cache()


def products():
    for dtype, name in names.items():
        product(dtype, name)
    torch.backends.cuda.matmul.allow_tf32 = True
    product(torch.float32, "tf32")
    torch.backends.cuda.matmul.allow_tf32 = False


def launches():
    x, y = torch.randn(64, device=device), torch.randn(64, device=device)
    for _ in range(200):
        x + y
    samples = []
    for _ in range(31):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            x + y
        samples.append((time.perf_counter() - begin) / 200 * 1e9)
    print(f"enqueue_add_64 {statistics.median(samples):.1f}", flush=True)
    samples = []
    for _ in range(31):
        begin = time.perf_counter()
        for _ in range(1000):
            torch.empty(64, device=device)
        samples.append((time.perf_counter() - begin) / 1000 * 1e9)
    print(f"empty_64 {statistics.median(samples):.1f}", flush=True)


def transfers():
    host = torch.ones((256 << 20) // 4).pin_memory()
    there = torch.empty_like(host, device=device)
    measure("pinned_to_device_256m", lambda: there.copy_(host, non_blocking=True))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.inner, self.outer = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2) for t in self.inner(x).chunk(3, -1))
        return self.outer(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.attention, self.ln2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(3136, 10))


def transformer():
    return nn.Sequential(nn.Embedding(1000, 512), *(Block(512, 8) for _ in range(8)), nn.LayerNorm(512), nn.Linear(512, 1000), nn.Flatten(0, 1))


def training(name, make, x, outputs, classes, dtype):
    y = torch.randint(0, classes, (outputs,), device=device)

    def step_of(model, **more):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, **more)

        def step():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, optimizer

    model = make().to(device, dtype)
    measure(name, step_of(model)[0])
    step, optimizer = step_of(model, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    measure(f"{name}_captured", graph.replay)
    del graph, step, optimizer
    try:
        measure(f"{name}_compiled", step_of(torch.compile(make().to(device, dtype)))[0])
    except Exception as error:  # it wants a compiler of its own; the comparison goes on without it
        print(f"torch.compile: {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    torch.cuda.empty_cache()


def steps():
    for dtype in (torch.float32, torch.bfloat16):
        for size, batch in (("small", 32), ("large", 4096)):
            training(f"step_mlp_{size}_{names[dtype]}", mlp, torch.randn(batch, 784, device=device, dtype=dtype), batch, 10, dtype)
            training(f"step_cnn_{size}_{names[dtype]}", cnn, torch.randn(batch, 1, 28, 28, device=device, dtype=dtype), batch, 10, dtype)
        for size, batch in (("small", 1), ("large", 32)):
            training(f"step_transformer_{size}_{names[dtype]}", transformer, torch.randint(0, 1000, (batch, 512), device=device), batch * 512, 1000, dtype)


launches()
bandwidth(torch.float32)
bandwidth(torch.bfloat16)
products()
transfers()
steps()
