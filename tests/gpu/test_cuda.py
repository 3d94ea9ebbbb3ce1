"""The vocabulary on a GPU: each kernel against its float64 reference, eager equal to captured bit for bit."""

from functools import partial

import numpy as np
import pytest

from kernels import adam_arena, gather_windows, grad_norm
from kernels.isv import GROUPS, SIZE, SLOTS
from kernels.spec import Arg, Kernel
from tests.gpu.marks import NEEDS_GPU
from tests.kernels.cases import CASES, RUNS
from tests.kernels.limits import check
from trainer.device.base import NumpyDevice, open_device
from trainer.device.cuda import CudaDevice
from trainer.device.fields import Field, allocate
from trainer.device.launches import fitting, variants
from trainer.device.source import missing_sources
from trainer.errors import UsageError

pytestmark = NEEDS_GPU

STEPS = 23


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


def on_gpu(device, case, values):
    """The case's arrays in float32 on the GPU, outputs poisoned as on the CPU."""
    arrays = []
    for value in case.typed(values, np.float32):
        if isinstance(value, np.ndarray):
            array = device.empty(value.shape, value.dtype)
            device.fill(array, value)
            value = array
        arrays.append(value)
    device.cp.cuda.Device().synchronize()  # a copy to the GPU is not ordered before launches on another stream
    return arrays


def run(device, case, values):
    """One launch -> the host copies of what it wrote, by name."""
    arrays = on_gpu(device, case, values)
    with device.main.stream:
        device.launch(case.kernel, *arrays)
    return {arg.name: device.to_host(arrays[i]) for i, arg in case.written()}


def compare(device, case, size):
    """A kernel in float32 on the GPU against its float64 reference; a second launch gives the same bits."""
    values = case.values(size)
    got, again = run(device, case, values), run(device, case, values)
    assert [name for name in got if got[name].tobytes() != again[name].tobytes()] == [], "two launches differ"
    check(case, got, values)


def skip_untranslated(kernel):
    if not kernel.source.exists():
        pytest.skip(f"{kernel.name}: no CUDA source yet")


@pytest.mark.parametrize("case, size", RUNS, ids=[f"{case.id}-{size}" for case, size in RUNS])
def test_kernel_equals_its_reference(device, case, size):
    skip_untranslated(case.kernel)
    compare(device, case, size)


GENERAL = [(case, size) for case, size in RUNS if case.kernel.general is not None]


@pytest.mark.parametrize("case, size", GENERAL, ids=[f"{case.id}-{size}" for case, size in GENERAL])
def test_general_variant_equals_the_reference(case, size):
    """As on a card whose blocks get as little shared memory as on sm_86, sm_89 and sm_120."""
    device = CudaDevice()
    device.shared_limit = min(device.shared_limit, 99 << 10)
    values = case.typed(case.values(size), np.float32)
    if fitting(variants(case.kernel, case.kernel.bind(values), case.scalars(values)), device.shared_limit) is None:
        pytest.skip("these sizes fit no such card, and the launch says so")
    compare(device, case, size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_captured_kernel_equals_eager_at_every_launch(case):
    skip_untranslated(case.kernel)
    values, sides = case.values(min(case.sizes)), []
    for graphs in (False, True):
        device = CudaDevice(graphs=graphs)
        arrays = on_gpu(device, case, values)
        sides.append((device, arrays, device.region(partial(device.launch, case.kernel, *arrays), case.kernel.name)))
    for _ in range(5):
        for device, _, region in sides:
            region()
            device.synchronize()  # one device a process works at a time (kernels/last_block.cuh)
        for i, arg in case.written():
            eager, captured = (device.to_host(arrays[i]) for device, arrays, _ in sides)
            assert eager.tobytes() == captured.tobytes(), arg.name


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
                vector = rng.normal(size=n).astype(np.float32)
                for beta, biased in ((0.0, False), (1.0, False), (0.0, True), (1.0, True)):
                    da, db, out, bias = (device.empty(x.shape, x.dtype) for x in (a, b, start, vector))
                    for d, h in ((da, a), (db, b), (out, start), (bias, vector)):
                        device.fill(d, h)
                    with device.main.stream:
                        device.gemm(da, db, out, ta=ta, tb=tb, beta=beta, bias=bias if biased else None)
                    want = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b) + beta * start + biased * vector
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
        d.launch(gather_windows.KERNEL, t.rows, t.features, t.mean, t.std, t.gap, 0, t.x, t.ts)
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
        for toy in (eager, graph):
            toy.region()
            toy.device.synchronize()  # one device a process works at a time (kernels/last_block.cuh)
        for name, array in eager.store.items():
            a, b = eager.device.to_host(array), graph.device.to_host(graph.store[name])
            assert a.tobytes() == b.tobytes(), (step, name)
    assert graph.region.graph.nodes() >= 6  # three kernels, three products, some in two parts
    assert np.isfinite(eager.device.to_host(eager.store["t.param"])).all()


def test_pinned_algorithms_are_used_and_exact():
    """Of each kind of product in the card's table the smallest one: the algorithm runs, and gives the product."""
    device = CudaDevice()
    if not device.gemms.algorithms:
        pytest.skip(f"no algorithms for this card and library: {device.gemms.table.name}")
    kinds = {}
    for name in device.gemms.algorithms:
        size, *flags = name.split(" ")
        m, n, k = map(int, size.split("x"))
        kinds.setdefault(tuple(flags), []).append((m * n * k, m, n, k))
    rng = np.random.default_rng(4)
    for flags, found in kinds.items():
        _, m, n, k = min(found)
        ta, tb = "ta" in flags, "tb" in flags
        shapes = (k, m) if ta else (m, k), (n, k) if tb else (k, n), (m, n), (n,)
        a, b, start, vector = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
        arrays = [device.empty(x.shape, x.dtype) for x in (a, b, start, vector)]
        for array, host in zip(arrays, (a, b, start, vector)):
            device.fill(array, host)
        da, db, out, bias = arrays
        options = {"beta": float("add" in flags), "bias": bias if "bias" in flags else None}
        with device.main.stream:
            device.gemm(da, db, out, ta=ta, tb=tb, **options)
        (plan,) = device.gemms.plans.values()
        assert device.gemms.pinned(plan.product) is plan.algorithm
        device.gemms.plans.clear()
        want = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b)
        want += ("add" in flags) * start + ("bias" in flags) * vector
        assert np.linalg.norm(device.to_host(out) - want) / np.linalg.norm(want) < 2e-3, (flags, m, n, k)


def test_branches_in_a_branch_are_joined_there():
    """Each side adds to what the other made before: any missing wait would show as another number."""
    device = CudaDevice()
    x, y, one = (device.empty((1 << 20,), np.float32) for _ in range(3))
    square = device.empty((1024, 1024), np.float32)
    for array, value in ((x, 0), (y, 0), (one, 1), (square, np.eye(1024, dtype=np.float32))):
        device.fill(array, value)

    def rows(array):
        return array.reshape(1024, 1024)

    def body():
        with device.branch("outer"):
            for _ in range(3):
                with device.branch("inner"):
                    device.gemm(rows(one), square, rows(x), beta=1.0)
            device.join()
            device.gemm(rows(x), square, rows(y), beta=1.0)
        device.join()

    region = device.region(body, "nested")
    for step in range(1, 6):
        region()
        np.testing.assert_array_equal(device.to_host(x), 3 * step)
        np.testing.assert_array_equal(device.to_host(y), sum(3 * k for k in range(1, step + 1)))


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
    for launcher in (None, lambda sizes, scalars: ((1,), (1,), 0)):
        ghost = Kernel("no_such_source", (Arg("x", "real", "in", "N"),), lambda x: None, launcher)
        with pytest.raises(UsageError, match="no CUDA source"):
            device.launch(ghost, x)


def test_open_device():
    assert isinstance(open_device("cpu"), NumpyDevice)
    if missing_sources():
        assert isinstance(open_device("auto"), NumpyDevice)
        with pytest.raises(UsageError, match="no CUDA source yet"):
            open_device("cuda")
    else:
        assert open_device("auto").name == "cuda"
