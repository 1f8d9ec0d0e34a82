# SPDX-License-Identifier: Apache-2.0
"""bench/peers/gpu_torch.py: what bench/gpu.c measures, in PyTorch; the same names. f32 products without tf32 on both sides."""
import statistics, time
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
        "copy": lambda: out.copy_(x), "add": lambda: x + y, "relu": lambda: torch.relu(x), "exp": lambda: torch.exp(x),
        "sum": lambda: x.sum(), "sum_rows": lambda: x.sum(1), "sum_columns": lambda: x.sum(0), "softmax": lambda: torch.softmax(x, 1),
        "layer_norm": lambda: F.layer_norm(x, (columns,), weight, bias), "transpose": lambda: x.t().contiguous(),
    }
    for name, f in cases.items():
        measure(f"{name}_1g_{names[dtype]}", f)
        torch.cuda.empty_cache()


def products():
    for dtype in names:
        for m, n, k in [(512,) * 3, (1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (8192, 16, 8192), (16, 8192, 8192)]:
            a, b = torch.randn(m, k, dtype=dtype, device=device), torch.randn(k, n, dtype=dtype, device=device)
            measure(f"matmul_{m}x{n}x{k}_{names[dtype]}", lambda: a @ b)
            torch.cuda.empty_cache()


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


def training(name, model, x, batch):
    model = model.to(device)
    y = torch.randint(0, 10, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    measure(name, step)
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


def steps():
    for batch in (32, 4096):
        training(f"step_mlp_{batch}", nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)),
                 torch.randn(batch, 784, device=device), batch)
        training(f"step_cnn_{batch}", nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                                                    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 10)),
                 torch.randn(batch, 1, 28, 28, device=device), batch)


launches()
bandwidth(torch.float32)
bandwidth(torch.bfloat16)
products()
transfers()
steps()
