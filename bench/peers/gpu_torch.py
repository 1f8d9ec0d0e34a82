# SPDX-License-Identifier: Apache-2.0
"""bench/peers/gpu_torch.py: the measurements of bench/gpu.c in PyTorch, under the same names.

    gpu_torch.py [SECTION...] [only=PATTERN]

SECTION: launches, products, tf32, attention, convolution, index, softmax, norms, cross-entropy, optimizers, bandwidth,
transfers, steps, compiled; the default is all but compiled. compiled: the training steps under torch.compile, whose
lines end in _compiled; compiling takes minutes. A case that fails is reported on stderr and the others are measured."""
import fnmatch, statistics, sys, time
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


sections = [a for a in sys.argv[1:] if not a.startswith("only=")]
only = next((a[len("only="):] for a in sys.argv[1:] if a.startswith("only=")), "*")
failed = False


def wanted(name):
    return fnmatch.fnmatchcase(name, only)


def report(name, error):
    global failed
    failed = True
    line = (str(error).splitlines() or [""])[0][:200]
    print(f"gpu_torch: {name} failed: {type(error).__name__}: {line}", file=sys.stderr, flush=True)


def measure(name, f):
    if not wanted(name):
        return
    try:
        measure_now(name, f)
    except Exception as error:
        report(name, error)


def measure_now(name, f):
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
        "gelu": lambda: F.gelu(x), "sum": lambda: x.sum(), "sum_rows": lambda: x.sum(1),
        "sum_columns": lambda: x.sum(0), "amax_rows": lambda: x.amax(1),
        "softmax": lambda: torch.softmax(x, 1), "layer_norm": lambda: F.layer_norm(x, (columns,), weight, bias),
        "transpose": lambda: x.t().contiguous(), "slice": lambda: x[:, 8:8 + columns // 2].contiguous(),
    }
    for name, f in cases.items():
        measure(f"{name}_1g_{names[dtype]}", f)
        torch.cuda.empty_cache()


def product(dtype, name):
    for m, n, k in [(size,) * 3 for size in (512, 1024, 2048, 4096, 8192)] + [(8192, 16, 8192), (16, 8192, 8192)]:
        a, b = torch.randn(m, k, dtype=dtype, device=device), torch.randn(k, n, dtype=dtype, device=device)
        measure(f"matmul_{m}x{n}x{k}_{name}", lambda: a @ b)
        torch.cuda.empty_cache()


def products():
    for dtype, name in names.items():
        product(dtype, name)


def products_tf32():
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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(y.transpose(1, 2).reshape(n, length, width))


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
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 10))


def transformer():
    return nn.Sequential(nn.Embedding(1000, 512), *(Block(512, 8) for _ in range(8)), nn.LayerNorm(512),
                         nn.Linear(512, 1000), nn.Flatten(0, 1))


def op(name, f, shapes, index=None, below=0, layout=torch.contiguous_format):
    """Measures one op, forward and forward with backward. The cases below are those of bench/gpu_ops.c."""
    for dtype in (torch.float32, torch.bfloat16):
        full = f"{name}_{names[dtype]}"
        if not wanted(full) and not wanted(f"{full}_train"):
            continue
        try:
            x = [torch.randn(shape, dtype=dtype, device=device).to(memory_format=layout).requires_grad_()
                 for shape in shapes]
            more = [torch.randint(0, below, index, device=device)] if index else []
            dy = torch.ones_like(f(*x, *more))

            def forward():
                with torch.no_grad():
                    return f(*x, *more)

            measure(full, forward)
            measure(f"{full}_train", lambda: torch.autograd.grad(f(*x, *more), x, dy))
            del x, more, dy
        except Exception as error:
            report(full, error)
        torch.cuda.empty_cache()


def attention():
    sdpa = F.scaled_dot_product_attention
    op("attention_causal_32x8x512x64", lambda q, k, v: sdpa(q, k, v, is_causal=True), [(32, 8, 512, 64)] * 3)
    op("attention_causal_4x16x4096x128", lambda q, k, v: sdpa(q, k, v, is_causal=True), [(4, 16, 4096, 128)] * 3)
    op("attention_full_16x12x1024x64", sdpa, [(16, 12, 1024, 64)] * 3)
    op("attention_row_32x16x4096x128", sdpa, [(32, 16, 1, 128)] + [(32, 16, 4096, 128)] * 2)


def convolution():
    for more, layout in ("", torch.contiguous_format), ("_nhwc", torch.channels_last):
        op("conv_7x7_stride2_3to64_224" + more, lambda x, w: F.conv2d(x, w, stride=2, padding=3),
           [(64, 3, 224, 224), (64, 3, 7, 7)], layout=layout)
        op("conv_3x3_64to64_56" + more, lambda x, w: F.conv2d(x, w, padding=1), [(64, 64, 56, 56), (64, 64, 3, 3)],
           layout=layout)
        op("conv_1x1_64to256_56" + more, F.conv2d, [(64, 64, 56, 56), (256, 64, 1, 1)], layout=layout)
        op("conv_3x3_256to256_14" + more, lambda x, w: F.conv2d(x, w, padding=1),
           [(64, 256, 14, 14), (256, 256, 3, 3)], layout=layout)


def index():
    op("embedding_50304x512_of_16384", lambda w, i: F.embedding(i, w), [(50304, 512)], (16384,), 50304)
    op("index_select_65536x256_of_65536", lambda x, i: x.index_select(0, i), [(65536, 256)], (65536,), 65536)
    op("gather_65536x256", lambda x, i: x.gather(0, i), [(65536, 256)], (65536, 256), 65536)
    op("gather_16777216", lambda x, i: x.gather(0, i), [(16777216,)], (1048576,), 16777216)


def softmax():
    op("softmax_65536x1024", lambda x: torch.softmax(x, -1), [(65536, 1024)])
    op("softmax_4096x50304", lambda x: torch.softmax(x, -1), [(4096, 50304)])
    op("log_softmax_65536x1024", lambda x: torch.log_softmax(x, -1), [(65536, 1024)])


def norms():
    op("layer_norm_65536x1024", lambda x, w, b: F.layer_norm(x, (1024,), w, b), [(65536, 1024), (1024,), (1024,)])
    op("layer_norm_8192x8192", lambda x, w, b: F.layer_norm(x, (8192,), w, b), [(8192, 8192), (8192,), (8192,)])
    op("batch_norm_64x256x56x56", lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
       [(64, 256, 56, 56), (256,), (256,)])


def cross_entropy():
    op("cross_entropy_16384x50304", F.cross_entropy, [(16384, 50304)], (16384,), 50304)
    op("cross_entropy_65536x1000", F.cross_entropy, [(65536, 1000)], (65536,), 1000)


def optimizers():
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("adamw", "sgd"):
            name = f"optimizer_{kind}_64m_{names[dtype]}"
            if not wanted(name):
                continue
            parameters = [torch.randn(1024, 1024, dtype=dtype, device=device, requires_grad=True) for _ in range(64)]
            for p in parameters:
                p.grad = torch.randn_like(p)
            if kind == "adamw":
                optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
            else:
                optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
            measure(name, optimizer.step)
            del parameters, optimizer, p
            torch.cuda.empty_cache()


def step_of(model, x, y, **more):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, **more)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, optimizer


def scaled_step_of(model, x, y):
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01), torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def eager(name, step):
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    print(f"memory_{name} {torch.cuda.max_memory_allocated()}", flush=True)
    measure(name, step)


def eager_and_captured(name, make, x, y, dtype):
    if name.endswith("_amp"):
        return eager(name, scaled_step_of(make().to(device), x, y))
    eager(name, step_of(make().to(device, dtype), x, y)[0])
    step, optimizer = step_of(make().to(device, dtype), x, y, capturable=True)
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


def compiled(name, make, x, y, dtype):
    if name.endswith("_amp"):
        return
    measure(f"{name}_compiled", step_of(torch.compile(make().to(device, dtype)), x, y)[0])


def training(run):
    models = ("mlp", mlp, 32, 4096), ("cnn", cnn, 32, 4096), ("transformer", transformer, 1, 32)
    for model, make, small, large in models:
        for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("amp", torch.float32)):
            for size, batch in (("small", small), ("large", large)):
                name = f"step_{model}_{size}_{kind}"
                if not wanted(name):
                    continue
                if model == "transformer":
                    x, outputs, classes = torch.randint(0, 1000, (batch, 512), device=device), batch * 512, 1000
                else:
                    shape = (batch, 784) if model == "mlp" else (batch, 1, 28, 28)
                    x, outputs, classes = torch.randn(shape, dtype=dtype, device=device), batch, 10
                try:
                    run(name, make, x, torch.randint(0, classes, (outputs,), device=device), dtype)
                except Exception as error:
                    report(name, error)
                torch.cuda.empty_cache()


every = {
    "launches": launches, "products": products, "tf32": products_tf32, "attention": attention,
    "convolution": convolution, "index": index, "softmax": softmax, "norms": norms, "cross-entropy": cross_entropy,
    "optimizers": optimizers,
    "bandwidth": lambda: (bandwidth(torch.float32), bandwidth(torch.bfloat16)), "transfers": transfers,
    "steps": lambda: training(eager_and_captured), "compiled": lambda: training(compiled),
}
for section in sections or [name for name in every if name != "compiled"]:
    every[section]()
sys.exit(failed)
