# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package, which is installed. Tests that need NumPy or PyTorch are skipped without them."""

import copy
import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import ctrt
from ctrt import nn, optim

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None
LOSSES = nn.functional.cross_entropy


class Case(unittest.TestCase):
    """Each test leaves as many bytes of tensors and graph nodes as there were before."""

    def setUp(self):
        self.addCleanup(self.unchanged, self.used())

    def used(self):
        gc.collect()
        return ctrt.memory_allocated("cpu"), ctrt.api.autograd_live_nodes()

    def unchanged(self, before):
        self.assertEqual(self.used(), before, "bytes of tensors and nodes of graphs after the test and before")


class Tensors(Case):
    def test_creation(self):
        self.assertEqual(ctrt.tensor([[1, 2], [3, 4]]).dtype, ctrt.int64)
        self.assertEqual(ctrt.tensor([1, 2.5]).dtype, ctrt.float32)
        self.assertEqual(ctrt.tensor([True, False]).tolist(), [True, False])
        self.assertEqual(ctrt.tensor(2.5).item(), 2.5)
        self.assertEqual(ctrt.zeros(2, 3).shape, (2, 3))
        self.assertEqual(ctrt.zeros((2, 0)).tolist(), [[], []])
        self.assertEqual(ctrt.arange(3).tolist(), [0, 1, 2])
        self.assertEqual(ctrt.full((2,), 7, dtype="float64").tolist(), [7.0, 7.0])
        self.assertEqual(ctrt.ones(2, dtype=ctrt.int32).dtype, ctrt.int32)
        with self.assertRaises(ValueError):
            ctrt.tensor([[1], [2, 3]])

    def test_operators(self):
        x = ctrt.tensor([1.0, 2.0, 4.0])
        for made, wanted in (
            (x + 1, [2, 3, 5]), (1 - x, [0, -1, -3]), (8 / x, [8, 4, 2]), (2**x, [2, 4, 16]), (x // 2, [0, 1, 2]),
            (7 % x, [0, 1, 3]), (-x, [-1, -2, -4]), (x > 1, [False, True, True]), (x == x, [True] * 3),
            ((x > 1) & (x < 4), [False, True, False]), (~(x > 1), [True, False, False]), (x @ x, 21),
        ):
            self.assertEqual(made.tolist(), wanted)
        same = x
        x += 1
        x *= 2
        self.assertIs(same, x)
        self.assertEqual(x.tolist(), [4, 6, 10])
        with self.assertRaises(TypeError):
            x + "1"

    def test_indexing(self):
        x = ctrt.arange(24).reshape(2, 3, 4)
        table = [[[4 * (3 * i + j) + k for k in range(4)] for j in range(3)] for i in range(2)]
        self.assertEqual(x[1, -1].tolist(), table[1][-1])
        self.assertEqual(x[..., 1:4:2].tolist(), [[row[1:4:2] for row in rows] for rows in table])
        self.assertEqual(x[:, None, 0].shape, (2, 1, 4))
        self.assertEqual(x[:, [2, 0]].tolist(), [[rows[2], rows[0]] for rows in table])
        self.assertEqual(x[1][ctrt.tensor([True, False, True])].tolist(), [table[1][0], table[1][2]])
        self.assertEqual([row.shape for row in x], [(3, 4)] * 2)
        x[0, 1, 2] = 100
        x[1] = ctrt.zeros(4, dtype="int64")
        self.assertEqual((x[0, 1, 2].item(), x[1].sum().item()), (100, 0))
        x[x > 50] = -1
        self.assertEqual(x.min().item(), -1)
        for key in (2, (0, 0, 0, 0), (0, 3)):
            with self.assertRaises(IndexError):
                x[key]

    def test_reductions_and_shapes(self):
        x = ctrt.tensor([[3.0, 1.0], [2.0, 5.0]])
        values, indices = x.max(1)
        self.assertEqual((values.tolist(), indices.tolist()), ([3, 5], [0, 1]))
        self.assertEqual((x.sum().item(), x.sum(0, keepdim=True).shape, x.mean((0, 1)).item()), (11, (1, 2), 2.75))
        self.assertEqual(x.argmax().item(), 3)
        self.assertEqual(ctrt.cat([x, x], 1).shape, (2, 4))
        self.assertEqual([part.tolist() for part in x.view(4).split(3)], [[3, 1, 2], [5]])
        self.assertEqual([part.numel() for part in x.view(-1).chunk(2)], [2, 2])
        self.assertEqual(x.T.tolist(), [[3, 2], [1, 5]])
        self.assertEqual(x.clamp(min=2).tolist(), [[3, 2], [2, 5]])
        self.assertEqual(x.to("float16").dtype, ctrt.float16)
        self.assertEqual(len(repr(x).split("\n")), 2)
        self.assertEqual("%.2f" % x[0, 0], "3.00")


class Exchange(Case):
    @unittest.skipUnless(numpy, "no NumPy")
    def test_numpy(self):
        for name in ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"):
            array = numpy.arange(6).reshape(2, 3).astype(name).T
            x = ctrt.from_numpy(array)
            self.assertEqual((str(x.dtype), x.shape), ("ctrt." + name, (3, 2)))
            self.assertEqual(x.data_ptr(), array.ctypes.data)
            back = x.numpy()
            self.assertEqual((back.dtype, back.ctypes.data, back.tolist()), (array.dtype, x.data_ptr(), array.tolist()))
            if name != "bool" or hasattr(numpy, "bool"):        # NumPy before 2 has no bool in DLPack
                self.assertEqual(numpy.from_dlpack(x).tolist(), array.tolist())
            self.assertEqual(numpy.asarray(x).dtype, array.dtype)
        x = ctrt.zeros(3)
        array = x.numpy()
        array[1] = 5
        self.assertEqual(x.tolist(), [0, 5, 0])
        del x
        self.assertEqual(array.tolist(), [0, 5, 0])         # the array keeps the elements
        self.assertEqual(ctrt.tensor(numpy.float64(2.5)).item(), 2.5)
        copied = ctrt.tensor(array)
        array[0] = 1
        self.assertEqual(copied[0].item(), 0)
        with self.assertRaisesRegex(RuntimeError, "detach"):
            ctrt.ones(2, requires_grad=True).numpy()
        with self.assertRaises(TypeError):
            ctrt.ones(2, dtype="bfloat16").numpy()
        frozen = numpy.arange(3.0)
        frozen.flags.writeable = False
        with self.assertRaises((BufferError, ctrt.Error, TypeError)):
            ctrt.from_numpy(frozen)

    @unittest.skipUnless(numpy, "no NumPy")
    def test_the_array_lives_as_long_as_the_tensor(self):
        array = numpy.arange(4.0)
        references = sys.getrefcount(array)
        x = ctrt.from_numpy(array)
        view = x[1:]
        del x
        self.assertGreater(sys.getrefcount(array), references)
        self.assertEqual(view.tolist(), [1, 2, 3])
        del view
        self.assertEqual(sys.getrefcount(array), references)

    def test_capsules(self):
        x = ctrt.arange(4)
        for version in (None, (1, 0)):
            x.__dlpack__(max_version=version)               # nobody imports it
        self.assertEqual(x.__dlpack_device__(), (1, 0))
        y = ctrt.from_dlpack(x)
        y[0] = 9
        self.assertEqual(x[0].item(), 9)

    @unittest.skipUnless(torch, "no PyTorch")
    def test_torch(self):
        x = torch.arange(6.0).reshape(2, 3).t()
        y = ctrt.from_dlpack(x)
        self.assertEqual((y.tolist(), y.data_ptr()), (x.tolist(), x.data_ptr()))
        for dtype in ctrt.dtypes.values():
            x = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype.name)).t()
            y = ctrt.from_dlpack(x)
            self.assertEqual((y.dtype, y.tolist()), (dtype, x.tolist()))
            z = torch.from_dlpack(y.clone())                # outlives ctrt's handle
            self.assertEqual((z.dtype, z.tolist()), (x.dtype, x.tolist()))
        self.assertEqual(torch.from_dlpack(ctrt.ones(2, dtype="bfloat16")).dtype, torch.bfloat16)
        self.assertEqual(ctrt.zeros(1, dtype=torch.float64).dtype, ctrt.float64)


class Autograd(Case):
    def test_backward(self):
        x = ctrt.tensor([1.0, 4.0], requires_grad=True)
        (x * x).sum().backward()
        self.assertEqual(x.grad.tolist(), [2, 8])
        x.grad = None
        self.assertIsNone(x.grad)
        y = x.exp()
        first, = ctrt.autograd.grad(y.sum(), x, create_graph=True)
        second, = ctrt.autograd.grad(first.sum(), [x])
        self.assertEqual(second.tolist(), y.tolist())
        with ctrt.no_grad():
            self.assertFalse((x * 2).requires_grad)
        self.assertTrue((x * 2).requires_grad)
        with self.assertRaises(ctrt.AutogradError):
            x.detach().sum().backward()

    def test_hooks(self):
        x = ctrt.tensor([1.0, 2.0], requires_grad=True)
        seen = []
        hook = x.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
        (x * 3).sum().backward()
        hook.remove()
        hook.remove()
        (x * 3).sum().backward()
        self.assertEqual((seen, x.grad.tolist()), ([[3, 3]], [33, 33]))

    def test_an_exception_of_a_hook_is_raised_by_backward(self):
        x = ctrt.tensor([1.0], requires_grad=True)
        hook = x.register_hook(lambda g: {}["missing"])
        with self.assertRaisesRegex(KeyError, "missing"):
            (x * 2).sum().backward()
        hook.remove()
        interrupting = x.register_hook(lambda g: (_ for _ in ()).throw(KeyboardInterrupt()))
        with self.assertRaises(KeyboardInterrupt):
            (x * 2).sum().backward()
        interrupting.remove()

    def test_function(self):
        class Cube(ctrt.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x)
                ctx.factor = factor
                return x * x * x * factor

            @staticmethod
            def backward(ctx, grad):
                x, = ctx.saved_tensors
                return grad * x * x * 3 * ctx.factor, None

        x = ctrt.tensor([1.0, 2.0], requires_grad=True)
        Cube.apply(x, 2.0).sum().backward()
        self.assertEqual(x.grad.tolist(), [6, 24])


class Networks(Case):
    def test_layers(self):
        x = ctrt.randn(2, 3, 8, 8)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Flatten(), nn.Linear(64, 12), nn.LayerNorm(12), nn.GELU(), nn.Dropout(0.1))
        self.assertEqual(net(x).shape, (2, 12))
        self.assertEqual([name for name, _ in net.named_parameters()][:3], ["0.weight", "1.weight", "1.bias"])
        self.assertEqual(net[5].weight.shape, (12, 64))
        attention = nn.MultiheadAttention(8, 2, causal=True)
        self.assertEqual(attention(ctrt.randn(2, 5, 8)).shape, (2, 5, 8))
        self.assertEqual(nn.Embedding(10, 4)(ctrt.tensor([1, 2])).shape, (2, 4))
        self.assertIn("(5): Linear", repr(net))
        again = copy.deepcopy(net)
        self.assertEqual(again[5].weight.tolist(), net[5].weight.tolist())
        again.load_state_dict(net.state_dict())
        self.assertFalse(again.eval().training)
        with self.assertRaises(AttributeError):
            net.missing
        with self.assertRaises(ctrt.Error):
            nn.Linear(-1, 2)

    def test_a_module_in_python(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.scale = nn.Parameter(ctrt.ones(4))
                self.register_buffer("offset", ctrt.zeros(4))

            def forward(self, x):
                return x + self.inner(x).relu() * self.scale + self.offset

        net = nn.Sequential(Block(), nn.Linear(4, 2))
        names = [name for name, _ in net.named_parameters()]
        self.assertEqual(sorted(names), ["0.inner.bias", "0.inner.weight", "0.scale", "1.bias", "1.weight"])
        gc.collect()
        net(ctrt.randn(3, 4)).sum().backward()
        self.assertTrue(all(parameter.grad is not None for parameter in net.parameters()))
        again = copy.deepcopy(net)
        self.assertEqual(again(ctrt.ones(1, 4)).tolist(), net(ctrt.ones(1, 4)).tolist())
        block = copy.deepcopy(net[0])
        before = net[0](ctrt.ones(1, 4)).tolist()
        with ctrt.no_grad():
            block.scale.fill_(0)
        self.assertEqual(block(ctrt.ones(1, 4)).tolist(), [[1] * 4])
        self.assertEqual(net[0](ctrt.ones(1, 4)).tolist(), before)

        class Wrong(nn.Module):
            def forward(self, x):
                return [x][1]

        with self.assertRaisesRegex(IndexError, "list index"):
            nn.Sequential(Wrong())(ctrt.zeros(1))

    def test_optimizers(self):
        for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"):
            x = ctrt.tensor([1.0, -1.0], requires_grad=True)
            optimizer = getattr(optim, name)([x], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (x * x).sum().backward()
                optimizer.step()
            self.assertLess(abs(x[0].item()), 1.0, name)
        y = ctrt.tensor([1.0], requires_grad=True)
        grouped = optim.AdamW([{"params": [x], "lr": 0.5}, {"params": y}], betas=(0.8, 0.9), eps=1e-6)
        self.assertEqual([group["lr"] for group in grouped.param_groups], [0.5, 1e-3])
        self.assertEqual([group["beta1"] for group in grouped.param_groups], [0.8, 0.8])
        grouped.param_groups[1]["lr"] = 0.25
        self.assertEqual(grouped.param_groups[1]["lr"], 0.25)
        with self.assertRaisesRegex(TypeError, "no option 'speed'"):
            optim.SGD([x], speed=1)
        with self.assertRaises(ValueError):
            optim.SGD([x], lr=-1.0)

    def test_training_and_files(self):
        ctrt.manual_seed(3)
        x = ctrt.randn(64, 5)
        y = (x[:, 0] > 0).long()
        net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = optim.Adam(net, lr=0.02)
        first = LOSSES(net(x), y).item()
        for _ in range(60):
            loss = LOSSES(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.clip_grad_norm_(net, 10.0)
            optimizer.step()
        self.assertLess(loss.item(), first / 3)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.safetensors")
            ctrt.save(net, path)
            self.assertEqual(ctrt.load(path)["0.bias"].tolist(), net[0].bias.tolist())
            other = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)).load(path)
            self.assertEqual(other(x).tolist(), net(x).tolist())
            ctrt.save({"x": x}, path)
            self.assertEqual(list(ctrt.load(path)), ["x"])
            optimizer.save(path)
            optim.Adam(net).load(path)

    def test_autocast_and_scaler(self):
        net = nn.Linear(4, 2)
        optimizer, scaler = optim.SGD(net, lr=0.1), ctrt.GradScaler(init_scale=8.0)
        with ctrt.autocast("cpu", dtype=ctrt.bfloat16):
            y = net(ctrt.ones(3, 4))
        self.assertEqual(y.dtype, ctrt.bfloat16)
        scaler.scale(y.float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        self.assertEqual(scaler.get_scale(), 8.0)


class Runtime(Case):
    def test_errors(self):
        with self.assertRaises(ctrt.ShapeError) as caught:
            ctrt.zeros(2, 3) + ctrt.zeros(4)
        self.assertIn("[2, 3]", str(caught.exception))
        self.assertEqual(caught.exception.status, ctrt.lib.CTRT_ERR_SHAPE)
        self.assertIsInstance(caught.exception, RuntimeError)
        with self.assertRaises(TypeError):
            ctrt.zeros(2).float().bool().__neg__()
        with self.assertRaises(MemoryError):
            ctrt.empty(2**60)
        with self.assertRaises(ctrt.NoDeviceError):
            ctrt.device("nothing:3")
        with self.assertRaises(OSError):
            ctrt.load("/no/such/file")
        with self.assertRaises(TypeError):
            ctrt.relu(3)

    def test_devices_and_streams(self):
        self.assertIn("cpu", ctrt.devices())
        self.assertEqual((str(ctrt.device("cpu")), ctrt.zeros(1, device="cpu").device), ("cpu", ctrt.device("cpu")))
        self.assertFalse(ctrt.is_available("nothing"))
        if ctrt.is_available("sim"):
            stream = ctrt.Stream("sim:0")
            with stream:
                x = ctrt.ones(4, device="sim:0") * 3
            stream.synchronize()
            self.assertEqual((x.device.type, x.cpu().tolist()), ("sim", [3] * 4))
            event = ctrt.Event("sim:0")
            event.record(stream)
            event.synchronize()
            self.assertTrue(event.query())

    def test_a_module_in_python_on_several_devices(self):
        if not ctrt.is_available("sim") or ctrt.device_count("sim") < 2:
            self.skipTest("there are no two simulated devices")

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))
                self.scale = nn.Parameter(ctrt.full((4,), 2.0))

            def forward(self, x):
                return self.second(self.first(x).tanh() * self.scale)

        ctrt.manual_seed(1)
        net, x, y = nn.Sequential(Block()), ctrt.randn(12, 4), ctrt.tensor([0, 1, 1] * 4)
        loss = LOSSES(net(x), y)
        loss.backward()
        wanted = [parameter.grad.tolist() for parameter in net.parameters()]
        net.zero_grad()
        net.to("sim:0")
        parallel = ctrt.Parallel(net, "data-parallel", ["sim:0", "sim:1"])
        found = parallel.step([x.to("sim:0"), y.to("sim:0")], lambda output, x, y: LOSSES(output, y))
        self.assertAlmostEqual(found.item(), loss.item(), places=5)
        for parameter, grad in zip(net.parameters(), wanted):
            self.assertLess((parameter.grad.cpu() - ctrt.tensor(grad)).abs().max().item(), 1e-5)

    def test_strategies(self):
        if not ctrt.is_available("sim") or ctrt.device_count("sim") < 2:
            self.skipTest("there are no two simulated devices")
        x, y = ctrt.randn(8, 4, device="sim:0"), ctrt.tensor([0, 1] * 4, device="sim:0")
        net = ctrt.Parallel(nn.Sequential(nn.Linear(4, 2, device="sim:0")), "data-parallel", ["sim:0", "sim:1"])
        loss = net.step([x, y], lambda output, x, y: LOSSES(output, y))
        self.assertAlmostEqual(loss.item(), LOSSES(net(x), y).item(), places=5)
        self.assertIn("data-parallel", net.describe())
        with self.assertRaisesRegex(ZeroDivisionError, "zero"):
            net.step([x, y], lambda output, x, y: 1 / 0)

    def test_threads(self):
        failures = []

        def work(seed):
            try:
                x = ctrt.full((50, 50), float(seed), requires_grad=False).requires_grad_()
                for _ in range(20):
                    (x @ x).sum().backward()
                    wanted, x.grad = x.grad[0, 0].item(), None
                    if wanted != 100.0 * seed:
                        failures.append((seed, wanted))
                with ctrt.no_grad():
                    if ctrt.is_grad_enabled():
                        failures.append("no_grad")
                try:
                    ctrt.zeros(seed + 1) + ctrt.zeros(seed + 3)
                except ctrt.ShapeError as error:
                    if str(seed + 3) not in str(error):
                        failures.append(str(error))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_the_end_of_the_interpreter(self):
        program = """import ctrt
class Net(ctrt.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ctrt.nn.Linear(2, 2)
    def forward(self, x):
        return self.inner(x)
net, kept = Net(), [ctrt.ones(3, requires_grad=True)]
kept.append(kept)
graph = kept[0] * 2
optimizer = ctrt.optim.SGD(net)
stream = ctrt.Stream("cpu")
"""
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
