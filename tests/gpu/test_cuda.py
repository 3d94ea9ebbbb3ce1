"""The vocabulary on a GPU: each kernel against its float64 reference, eager equal to captured bit for bit."""

import numpy as np
import pytest

from kernels import adam_arena, gather_windows, grad_norm, policy_sample
from kernels.isv import GROUPS, SIZE, SLOTS
from kernels.spec import Arg, Kernel
from trainer.device.base import NumpyDevice, open_device
from trainer.device.cuda import CudaDevice, why_unavailable
from trainer.device.fields import Field, allocate
from trainer.errors import UsageError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))]

STEPS = 23
SIZES = (1, 255, 256, 257, 4096 * 256 + 1)  # 1, block - 1, block, block + 1, one above threads * blocks


def compare(kernel, host_args, exact=()):
    """Runs the kernel on the GPU in float32 and its reference in float64 and float32; error at most twice float32's."""
    device = CudaDevice()
    outs = [(i, a.name) for i, a in enumerate(kernel.args) if a.role in ("out", "inout")]

    def typed(values, real):
        return [
            np.array(v, real if a.dtype == "real" else a.dtype) if a.role != "scalar" else v
            for a, v in zip(kernel.args, values)
        ]

    gpu = []
    for a, v in zip(kernel.args, typed(host_args, np.float32)):
        if a.role == "scalar":
            gpu.append(v)
            continue
        array = device.empty(v.shape, v.dtype)
        device.fill(array, v if a.role != "out" else np.full_like(v, 77))
        gpu.append(array)
    with device.main.stream:
        device.launch(kernel, *gpu)
    single, double = typed(host_args, np.float32), typed(host_args, np.float64)
    kernel.reference(*single)
    kernel.reference(*double)
    atol, rtol, _ = kernel.tolerance
    for i, name in outs:
        got, ref = device.to_host(gpu[i]), double[i]
        if name in exact or got.dtype.kind in "iu":
            assert (got == ref).all(), name
            continue
        own = np.abs(single[i].astype(np.float64) - ref)
        bound = np.maximum(2 * own, atol + rtol * np.abs(ref))
        assert np.isfinite(got).all(), name
        assert (np.abs(got - ref) <= bound).all(), f"{name}: worst {np.max(np.abs(got - ref) - bound)}"


@pytest.mark.parametrize("rows", [1, 255, 257, 1024])
def test_gather_windows(rows):
    rng = np.random.default_rng(rows)
    n, f, k = 5000, 56, 32
    features = rng.normal(size=(n, f)).astype(np.float32) * 3
    args = [
        rng.integers(k - 1, n, rows), features, rng.normal(size=f), rng.uniform(0.5, 2, f), rng.uniform(size=n),
        np.zeros((rows, k, f)), np.zeros(rows),
    ]  # fmt: skip
    compare(gather_windows.KERNEL, args)


@pytest.mark.parametrize("size", SIZES)
def test_grad_norm(size):
    rng = np.random.default_rng(size)
    compare(grad_norm.KERNEL, [rng.normal(size=size), np.zeros(grad_norm.PARTS), np.zeros(1), np.zeros(SIZE)])


@pytest.mark.parametrize("size", [64, 63 * 64, 1_000_000])
def test_adam_arena(size):
    rng = np.random.default_rng(size)
    isv = np.zeros(SIZE)
    isv[SLOTS["tau"]] = 0.01
    for g in GROUPS:
        isv[SLOTS[f"lr_{g}"]] = 1e-3
    cut = size // 3
    args = [
        rng.normal(size=size), rng.normal(size=size), rng.normal(size=size) * 0.1, rng.uniform(0.1, 1, size),
        rng.normal(size=size), [0, cut], [cut, size - 1], [0, 3], [float(np.sqrt(size))], [4], [0],
        np.zeros((2, 3, grad_norm.PARTS)), isv, 0.9, 0.99, 1e-8, 1.0, 1000,
    ]  # fmt: skip
    compare(adam_arena.KERNEL, args)


def test_policy_sample_draws_what_the_reference_draws():
    rng = np.random.default_rng(5)
    for b in (1, 7, 8, 9, 1025):
        mask = (rng.uniform(size=(b, 11)) < 0.5).astype(np.uint8)
        mask[:, 2] = 1
        floats = [np.zeros(b) for _ in range(3)]
        args = [
            rng.normal(size=(b, 256)) * 2,
            mask,
            [2**33 + 5],
            1234,
            0.02,
            np.zeros(b),
            *floats,
            np.zeros(b),
            np.zeros(b),
        ]
        compare(policy_sample.KERNEL, args)


def test_gemm_orientations_and_tf32():
    rng = np.random.default_rng(0)
    for tf32, worst in ((True, 2e-3), (False, 2e-6)):
        device = CudaDevice(tf32=tf32)
        for ta in (False, True):
            for tb in (False, True):
                m, n, k = 130, 70, 257
                a = rng.normal(size=(k, m) if ta else (m, k)).astype(np.float32)
                b = rng.normal(size=(n, k) if tb else (k, n)).astype(np.float32)
                start = rng.normal(size=(m, n)).astype(np.float32)
                for beta in (0.0, 1.0):
                    da, db, out = (device.empty(x.shape, x.dtype) for x in (a, b, start))
                    for d, h in ((da, a), (db, b), (out, start)):
                        device.fill(d, h)
                    with device.main.stream:
                        device.gemm(da, db, out, ta=ta, tb=tb, beta=beta)
                    want = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b) + beta * start
                    error = np.linalg.norm(device.to_host(out) - want) / np.linalg.norm(want)
                    assert error < worst, (tf32, ta, tb, beta, error)


class Toy:
    """A step with everything in it: gather, GEMM on two branches, a reduction, Adam; state feeds back into itself."""

    def __init__(self, device):
        rng = np.random.default_rng(3)
        n, f, k, r = 4000, 56, 32, 256
        self.size = k * f * 64
        rows = rng.integers(k - 1, n, r)
        grads = rng.normal(size=self.size)
        isv = np.zeros(SIZE)
        isv[SLOTS["tau"]] = 0.01
        for g in GROUPS:
            isv[SLOTS[f"lr_{g}"]] = 1e-3
        self.store = allocate(
            device,
            [
                Field("t.rows", (r,), "int32", init=rows.astype(np.int32)),
                Field("t.features", (n, f), "float32", init=rng.normal(size=(n, f)).astype(np.float32)),
                Field("t.mean", (f,), init=np.zeros(f, np.float32)),
                Field("t.std", (f,), init=np.ones(f, np.float32)),
                Field("t.gap", (n,), init=rng.uniform(size=n).astype(np.float32)),
                Field("t.x", (r, k, f)),
                Field("t.ts", (r,)),
                Field("t.y", (r, 64)),
                Field("t.y2", (r, 64)),
                Field("t.param", (self.size,), init=rng.normal(size=self.size).astype(np.float32)),
                Field("t.grad", (self.size,), init=grads.astype(np.float32)),
                Field("t.m", (self.size,)),
                Field("t.v", (self.size,)),
                Field("t.target", (self.size,)),
                Field("t.start", (1,), "int32", init=0),
                Field("t.stop", (1,), "int32", init=self.size),
                Field("t.group", (1,), "int32", init=0),
                Field("t.norm", (1,)),
                Field("t.count", (1,), "int64"),
                Field("t.bad", (1,), "int32"),
                Field("t.sums", (grad_norm.PARTS,)),
                Field("t.parts", (1, 3, grad_norm.PARTS)),
                Field("t.isv", (SIZE,), init=isv.astype(np.float32)),
            ],
        )
        self.device = device
        self.region = device.region(self.body, "toy")

    def body(self):
        d, t = self.device, self.store.ns("t")
        d.launch(gather_windows.KERNEL, t.rows, t.features, t.mean, t.std, t.gap, t.x, t.ts)
        x = t.x.reshape(t.x.shape[0], -1)
        with d.branch("collect"):
            d.gemm(x, t.target.reshape(-1, 64), t.y2)
        with d.branch("learn"):
            d.gemm(x, t.param.reshape(-1, 64), t.y)
            d.gemm(x, t.y, t.grad.reshape(-1, 64), ta=True)
            d.launch(grad_norm.KERNEL, t.grad, t.sums, t.norm, t.isv)
        d.join()
        d.launch(
            adam_arena.KERNEL, t.param, t.grad, t.m, t.v, t.target, t.start, t.stop, t.group, t.norm, t.count, t.bad,
            t.parts, t.isv, 0.9, 0.99, 1e-8, 1.0, 0,
        )  # fmt: skip


def test_eager_equals_captured_at_every_step():
    eager, graph = Toy(CudaDevice(graphs=False)), Toy(CudaDevice(graphs=True))
    for step in range(STEPS):
        eager.region()
        graph.region()
        for name, array in eager.store.items():
            a, b = eager.device.to_host(array), graph.device.to_host(graph.store[name])
            assert a.tobytes() == b.tobytes(), (step, name)
    assert graph.region.graph.nodes() >= 9
    assert np.isfinite(eager.device.to_host(eager.store["t.param"])).all()


def test_a_failing_body_ends_the_capture_and_shows_its_own_error():
    device = CudaDevice()
    region = device.region(lambda: None, "broken")
    for _ in range(2):
        region()
    region.body = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        region()
    toy = Toy(device)
    for _ in range(4):
        toy.region()


def test_views_are_refused_and_missing_sources_say_so():
    device = CudaDevice()
    x = device.empty((512,), np.float32)
    args = (
        device.empty((grad_norm.PARTS,), np.float32),
        device.empty((1,), np.float32),
        device.empty((SIZE,), np.float32),
    )
    with pytest.raises(ValueError, match="C-contiguous"):
        device.launch(grad_norm.KERNEL, x[::2], *args)
    ghost = Kernel(
        "no_such_source", (Arg("x", "real", "in", "N"),), lambda x: None, launcher=lambda s, c: ((1,), (1,), 0)
    )
    with pytest.raises(UsageError, match="no CUDA source"):
        device.launch(ghost, x)


def test_open_device():
    assert open_device("auto").name == "cuda"
    assert isinstance(open_device("cpu"), NumpyDevice)
