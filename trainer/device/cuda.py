"""CUDA backend: cupy arrays, NVRTC kernels, cuBLAS through nvmath, stream capture.

cupy refuses cuBLAS while a stream is capturing, so GEMMs go through nvmath's bindings with handles of our own: one a
branch, bound to its stream once, then given a fixed workspace (setting the stream again would reset it). The same path
serves eager execution, so eager and captured steps have the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kernels
from kernels.spec import Kernel
from trainer.device.base import MAX_CHECKED, Device
from trainer.errors import FoxhuntError, UsageError

WORKSPACE = 32 << 20  # bytes a cuBLAS handle; what Hopper's heuristics ask for
FREE_SHARED = 48 << 10  # bytes of shared memory that a block gets without asking
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$', re.MULTILINE)
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32, _R_32F, _ALGO_DEFAULT = 68, 77, 0, -1


def why_unavailable() -> str | None:
    """None when a GPU can be used, else the reason in one line with what to do."""
    try:
        import cupy
    except ImportError:
        return "cupy is not installed; pip install 'foxhunt[gpu]' (CUDA 13) or 'foxhunt[gpu-cu12]'"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable NVIDIA driver ({error}); install one, or use --device cpu"
    if not count:
        return "no NVIDIA GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    try:
        from nvmath.bindings import cublas  # noqa: F401
    except ImportError:
        return "nvmath-python is not installed; pip install 'foxhunt[gpu]' (CUDA 13) or 'foxhunt[gpu-cu12]'"
    return None


def missing_sources() -> list[str]:
    """Names of the kernels that can't run on a GPU yet, because they have no CUDA source."""
    folder = Path(kernels.__file__).parent
    pairs = [path.stem for path in folder.glob("*.py") if re.search(r"^KERNEL = ", path.read_text(), re.MULTILINE)]
    return sorted(name for name in pairs if not (folder / f"{name}.cu").exists())


def inline_headers(path: Path) -> str:
    """The source with every `#include "x.cuh"` replaced by its text, each header once.

    cupy's compile cache does not see headers reached by -I: after an edit of one the old binary would run.
    """
    seen: set[str] = set()

    def read(source: Path) -> str:
        def replace(match: re.Match[str]) -> str:
            name = match.group(1)
            if name in seen:
                return ""
            seen.add(name)
            return read(source.with_name(name))

        return _INCLUDE.sub(replace, source.read_text())

    return read(path)


def kernel_source(kernel: Kernel) -> str:
    """The text that NVRTC compiles: constants as #define, then the source with its headers inlined."""
    if not kernel.source.exists():
        raise UsageError(
            f"kernel {kernel.name}: no CUDA source ({kernel.source.name}) yet, so this step can't run on a GPU\n"
            "use --device cpu"
        )
    defines = "".join(f"#define {name} {value}\n" for name, value in kernel.constants.items())
    return defines + inline_headers(kernel.source)


class _Branch:
    """A stream with its cuBLAS handle and workspace."""

    def __init__(self, cp: Any, cublas: Any, stream: Any):
        self.stream = stream
        self.handle = cublas.create()
        cublas.set_stream(self.handle, stream.ptr)
        self.workspace = cp.empty(WORKSPACE, cp.uint8)
        cublas.set_workspace(self.handle, self.workspace.data.ptr, WORKSPACE)
        self.done = cp.cuda.Event(disable_timing=True)


class CudaGraph:
    """A captured region; `launch()` replays it on the device's main stream."""

    def __init__(self, graph: Any, stream: Any):
        self.graph, self.stream = graph, stream

    def launch(self) -> None:
        self.graph.launch(self.stream)

    def nodes(self) -> int:
        """Nodes of the graph, a regression figure."""
        return len(re.findall(r"^\s*\"?graph_\d+_node_\d+\"?\s*\[", self.graph.debug_dot_str(), re.MULTILINE))


class CudaRecorder:
    """Runs and captures region bodies on the device's main stream."""

    def __init__(self, device: CudaDevice):
        self.device = device

    def run(self, body: Callable[[], None]) -> None:
        with self.device.main.stream:
            body()

    def record(self, body: Callable[[], None]) -> CudaGraph:
        stream = self.device.main.stream
        self.device.capturing = True
        with stream:
            stream.begin_capture()
            try:
                body()
            except BaseException:
                # End the capture quietly: its "capture invalidated" would hide the body's own error.
                try:
                    stream.end_capture()
                except Exception as hidden:
                    del hidden
                raise
            finally:
                self.device.capturing = False
            graph = stream.end_capture()
        return CudaGraph(graph, stream)


class CudaDevice(Device):
    """One GPU. `graphs=False` runs every region eagerly (the other side of the bit-equality test)."""

    name = "cuda"

    def __init__(self, tf32: bool = True, graphs: bool = True):
        import cupy as cp
        from nvmath.bindings import cublas

        self.cp, self.cublas = cp, cublas
        self.compute = _COMPUTE_32F_FAST_TF32 if tf32 else _COMPUTE_32F
        self.main = _Branch(cp, cublas, cp.cuda.Stream(non_blocking=True))
        self.branches: dict[str, _Branch] = {}
        self.current = self.main
        self.open: list[_Branch] = []
        self.fork = cp.cuda.Event(disable_timing=True)
        self.functions: dict[str, Any] = {}
        self.shared: dict[str, int] = {}  # largest dynamic shared memory asked for, by function
        self.capturing = False
        self.one, self.nil = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.recorder: Any = CudaRecorder(self) if graphs else _EagerRecorder(self)
        self._bound: dict[tuple[str, tuple[int, ...]], tuple[Any, dict[str, int]]] = {}

    @property
    def model(self) -> str:
        return self.cp.cuda.runtime.getDeviceProperties(self.cp.cuda.Device().id)["name"].decode()

    # -- memory --
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return self.cp.empty(shape, dtype)
        except self.cp.cuda.memory.OutOfMemoryError:
            free, total = self.cp.cuda.runtime.memGetInfo()
            need = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            raise UsageError(
                f"GPU memory: {need >> 20} MiB more are needed, {free >> 20} of {total >> 20} MiB are free\n"
                "lower --n-backtests or --per-capacity, or use a coarser data.sample"
            ) from None

    def fill(self, array: Any, value: Any) -> None:
        # On the main stream, and finished: it is non-blocking, so nothing else orders a fill before the first launch.
        with self.main.stream:
            if isinstance(value, np.ndarray):
                array.set(np.ascontiguousarray(np.broadcast_to(value, array.shape), array.dtype))
            else:
                array.fill(value)
        self.synchronize()

    def to_host(self, array: Any) -> np.ndarray:
        self.synchronize()
        return self.cp.asnumpy(array)

    def synchronize(self) -> None:
        self.main.stream.synchronize()

    # -- vocabulary --
    def launch(self, kernel: Kernel, *values: Any) -> None:
        key = (kernel.name, tuple(map(id, values)))
        if key not in self._bound:
            if len(self._bound) >= MAX_CHECKED:
                self._bound.clear()
            self._bound[key] = (values, kernel.bind(values))
        sizes = self._bound[key][1]
        scalars = {a.name: v for a, v in zip(kernel.args, values) if a.role == "scalar"}
        packed = tuple(
            np.dtype("float32" if a.dtype == "real" else a.dtype).type(v) if a.role == "scalar" else v
            for a, v in zip(kernel.args, values)
        ) + tuple(np.int32(size) for size in sizes.values())
        if kernel.launcher is None:
            kernel_source(kernel)  # a launcher comes with its source: without one, that is what to say
            raise FoxhuntError(f"kernel {kernel.name}: its argument table has no launcher for the GPU")
        for entry, grid, block, shared in phases(kernel, sizes, scalars):
            function = self._function(kernel, entry, shared)
            function(grid, block, packed, shared_mem=shared, stream=self.current.stream)

    def gemm(self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0) -> None:
        m, n = out.shape
        k = a.shape[0] if ta else a.shape[1]
        if (b.shape[1] if tb else b.shape[0]) != k or (a.shape[1] if ta else a.shape[0]) != m:
            raise ValueError(f"gemm: shapes {a.shape} {b.shape} -> {out.shape}, ta={ta}, tb={tb}")
        # Row-major out = A B is the column-major product out^T = B^T A^T, so the operands change places.
        self.cublas.gemm_ex(
            self.current.handle, int(tb), int(ta), n, m, k, self.one.ctypes.data,
            b.data.ptr, _R_32F, b.shape[1], a.data.ptr, _R_32F, a.shape[1],
            (self.one if beta else self.nil).ctypes.data, out.data.ptr, _R_32F, n, self.compute, _ALGO_DEFAULT,
        )  # fmt: skip

    def copy(self, dst: Any, src: Any) -> None:
        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise ValueError(f"copy: {src.dtype}{src.shape} into {dst.dtype}{dst.shape}")
        dst.data.copy_from_device_async(src.data, dst.nbytes, self.current.stream)

    def zero(self, array: Any) -> None:
        array.data.memset_async(0, array.nbytes, self.current.stream)

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        if name not in self.branches:
            self.branches[name] = _Branch(self.cp, self.cublas, self.cp.cuda.Stream(non_blocking=True))
        branch = self.branches[name]
        self.fork.record(self.main.stream)
        branch.stream.wait_event(self.fork)
        self.current = branch
        try:
            with branch.stream:
                yield
        finally:
            self.current = self.main
        branch.done.record(branch.stream)
        self.open.append(branch)

    def join(self) -> None:
        for branch in self.open:
            self.main.stream.wait_event(branch.done)
        self.open.clear()

    def _function(self, kernel: Kernel, entry: str, shared: int) -> Any:
        """The compiled function, allowed `shared` bytes of dynamic shared memory a block."""
        key = f"{kernel.name}.{entry}"
        if key not in self.functions:
            module = self.cp.RawModule(code=kernel_source(kernel), options=("--std=c++17", "-lineinfo"))
            try:
                self.functions[key] = module.get_function(entry)
            except self.cp.cuda.compiler.CompileException as error:
                raise FoxhuntError(f"kernel {kernel.name}: {kernel.source.name} does not compile\n{error}") from None
        if shared > max(FREE_SHARED, self.shared.get(key, 0)):
            limit = self.cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
            if shared > limit:
                raise UsageError(
                    f"kernel {kernel.name}: these sizes need {shared >> 10} KiB of shared memory a block, this GPU has "
                    f"{limit >> 10}\nlower net.window, net.d_state or net.headdim"
                )
            self.functions[key].max_dynamic_shared_size_bytes = self.shared[key] = shared
        return self.functions[key]


class _EagerRecorder:
    """Every call eager, on the main stream."""

    def __init__(self, device: CudaDevice):
        self.device = device

    def run(self, body: Callable[[], None]) -> None:
        with self.device.main.stream:
            body()

    def record(self, body: Callable[[], None]) -> Any:
        recorder = self

        class Replay:
            def launch(self) -> None:
                recorder.run(body)

        return Replay()


def phases(kernel: Kernel, sizes: Any, scalars: Any) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    """(entry point, grid, block, shared bytes) of each CUDA function of a kernel, in order."""
    assert kernel.launcher is not None
    found = kernel.launcher(sizes, scalars)
    if isinstance(found, list):
        return found
    grid, block, shared = found
    return [(kernel.name, grid, block, shared)]
