"""CUDA backend: cupy arrays, NVRTC kernels, matrix products through cuBLASLt (gemm.py), stream capture.

Eager and captured execution take the same path, so their steps have the same bits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np

from kernels.spec import Kernel
from trainer.device import memory, probe
from trainer.device.base import MAX_CHECKED, Device, Readback, refuse_views
from trainer.device.gemm import WORKSPACE, Gemms, Product, alignment
from trainer.device.launches import phases
from trainer.device.probe import why_unavailable as why_unavailable  # what a test of this module asks first
from trainer.device.source import OPTIONS, compile_error, kernel_source
from trainer.device.timing import CudaStopwatch, Stopwatch
from trainer.errors import FoxhuntError

URGENT, TRAINING, BESIDE = -2, -1, 0  # priorities of streams; the lower number goes first
FREE_SHARED = 48 << 10  # bytes of shared memory that a block gets without asking


class _Branch:
    """A stream with the workspace of its products, and the branches forked from it since its last join."""

    def __init__(self, cp: Any, priority: int):
        self.cp, self.stream = cp, cp.cuda.Stream(non_blocking=True, priority=priority)
        self.open: list[_Branch] = []
        self.start, self.done = (cp.cuda.Event(disable_timing=True) for _ in range(2))

    @cached_property
    def workspace(self) -> Any:
        """Taken at the first product, since most branches have none; that is in a warm-up call, never in a capture."""
        if self.stream.is_capturing():
            raise FoxhuntError("the first product of a branch is being captured: call the region eagerly before")
        return self.cp.empty(WORKSPACE, self.cp.uint8)

    def follow(self, other: _Branch) -> None:
        """What comes next here waits for what `other` was given so far."""
        self.start.record(other.stream)
        self.stream.wait_event(self.start)


class CudaReadback(Readback):
    """Copies into pinned memory on the current stream, or, when large, from a copy on the device on another stream."""

    def __init__(self, device: CudaDevice, arrays: Mapping[str, Any], slots: int, large: bool):
        self.device, self.cp = device, device.cp
        super().__init__(arrays, slots)
        if large:
            sizes = {f"readback.{name}": array.nbytes for name, array in arrays.items()}
            device.require_room(sizes)
            self.device_bytes = sum(sizes.values())
        # Blocking: a thread that waits leaves its core to the others.
        self.ready = [self.cp.cuda.Event(block=True, disable_timing=True) for _ in range(slots)]
        self.shadow = {name: device.empty(a.shape, a.dtype) for name, a in arrays.items()} if large else None
        self.stream: Any = self.cp.cuda.Stream(non_blocking=True) if large else None
        self.copied = self.cp.cuda.Event(disable_timing=True)

    def _buffer(self, array: Any) -> np.ndarray:
        pinned = self.cp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        return np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)

    def _copy(self, slot: int) -> None:
        source, stream = self.arrays, self.device.current.stream
        if self.shadow is not None:
            for name, array in source.items():
                self.device.copy(self.shadow[name], array)
            self.copied.record(stream)
            source, stream = self.shadow, self.stream
            stream.wait_event(self.copied)
        for name, array in source.items():
            array.data.copy_to_host_async(self.host[slot][name].ctypes.data, array.nbytes, stream)
        self.ready[slot].record(stream)

    def _wait(self, slot: int) -> None:
        self.ready[slot].synchronize()


class CudaGraph:
    """A captured region; `launch()` replays it on the stream on which it was captured."""

    def __init__(self, cp: Any, graph: Any, stream: Any):
        from cuda.bindings import driver

        self.graph, self.stream, self._launch = graph, stream, cp.cuda.runtime.graphLaunch
        # cupy's own executable gives every node the priority of the stream that it is launched on.
        flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
        error, executable = driver.cuGraphInstantiate(driver.CUgraph(graph.graph), int(flag))
        if error != driver.CUresult.CUDA_SUCCESS:
            raise FoxhuntError(f"a captured region can't be instantiated: {error.name}")
        self._executable, self._destroy = int(executable), cp.cuda.runtime.graphExecDestroy

    def __del__(self) -> None:
        if hasattr(self, "_executable"):
            with suppress(Exception):  # at the end of the process CUDA may be gone already
                self._destroy(self._executable)

    def launch(self) -> None:
        self._launch(self._executable, self.stream.ptr)

    def nodes(self) -> int:
        """Nodes of the graph, a regression figure."""
        return len(re.findall(r"^\s*\"?graph_\d+_node_\d+\"?\s*\[", self.graph.debug_dot_str(), re.MULTILINE))


class CudaRecorder:
    """Runs and captures region bodies on the device's current stream."""

    def __init__(self, device: CudaDevice):
        self.device = device

    def run(self, body: Callable[[], None]) -> None:
        with self.device.current.stream:
            body()

    def record(self, body: Callable[[], None]) -> CudaGraph:
        stream = self.device.current.stream
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
        return CudaGraph(self.device.cp, graph, stream)


class CudaDevice(Device):
    """One GPU. `graphs=False` runs every region eagerly (the other side of the bit-equality test)."""

    name = "cuda"
    workspace_bytes = WORKSPACE

    def __init__(self, tf32: bool = True, graphs: bool = True):
        import cupy as cp

        self.cp, self.tf32 = cp, tf32
        management = probe.management(cp)
        self.others = management.others() if management else {}
        probe.remember_others(self.others)
        probe.warn_of_others(self.others)
        self.gemms = Gemms(cp.cuda.Device().compute_capability, tf32)
        self.main = _Branch(cp, TRAINING)
        self.branches: dict[str, _Branch] = {}
        self.current = self.main
        self.functions: dict[str, Any] = {}
        self.shared_limit = int(cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
        self.shared: dict[str, int] = {}  # largest dynamic shared memory asked for, by function
        self.capturing = False
        self.recorder: Any = CudaRecorder(self) if graphs else _EagerRecorder(self)
        self._bound: dict[tuple[str, tuple[int, ...]], tuple[Any, dict[str, int]]] = {}

    @property
    def model(self) -> str:
        """What decides the bits of a run: the card, and how products round."""
        name = self.cp.cuda.runtime.getDeviceProperties(self.cp.cuda.Device().id)["name"].decode()
        return name if self.tf32 else f"{name}, TF32 off"

    # -- memory --
    def free_bytes(self) -> int:
        """What can still be allocated: free on the card, or freed and kept by the pool."""
        return self.cp.cuda.runtime.memGetInfo()[0] + self.cp.get_default_memory_pool().free_bytes()

    def require_room(self, sizes: Mapping[str, int]) -> None:
        memory.require_room(sizes, self.free_bytes())

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.cp.empty(shape, dtype)

    def fill(self, array: Any, value: Any) -> None:
        # On the main stream, which every other one waits for where it forks off: a non-blocking stream is not ordered
        # by anything else. A host array may be gone when this returns, so its copy is waited for; a scalar is not.
        with self.main.stream:
            if isinstance(value, np.ndarray):
                array.set(np.ascontiguousarray(np.broadcast_to(value, array.shape), array.dtype))
                self.synchronize()
            else:
                array.fill(value)

    def to_host(self, array: Any) -> np.ndarray:
        with self.main.stream:
            found: np.ndarray = self.cp.asnumpy(array)
        return found

    def synchronize(self) -> None:
        self.main.stream.synchronize()

    def memory(self) -> dict[str, int]:
        free, total = self.cp.cuda.runtime.memGetInfo()
        # The pool gives nothing back, so what it holds is its peak.
        return {"arrays": self.cp.get_default_memory_pool().total_bytes(), "card_used": total - free, "card": total}

    def stopwatch(self) -> Stopwatch:
        return CudaStopwatch(self)

    def readback(self, arrays: Mapping[str, Any], slots: int, large: bool = False) -> Readback:
        return CudaReadback(self, arrays, slots, large)

    @contextmanager
    def aside(self, name: str, after: bool = False) -> Iterator[None]:
        side = self._branch(name, BESIDE)
        if after:
            side.follow(self.current)
        with self._on(side):
            yield

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
        for entry, grid, block, shared in phases(kernel, sizes, scalars, self.shared_limit):
            function = self._function(kernel, entry, shared)
            function(grid, block, packed, shared_mem=shared, stream=self.current.stream)

    def gemm(
        self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> None:
        product = Product.of(a, b, out, ta=ta, tb=tb, beta=beta, bias=bias)
        refuse_views("gemm", a, b, out)
        addresses = (array.data.ptr for array in (a, b, out, bias) if array is not None)
        product = product._replace(align=alignment(*addresses))
        self.gemms.plan(product).run(a, b, out, bias, self.current.workspace, self.current.stream)

    def copy(self, dst: Any, src: Any) -> None:
        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise ValueError(f"copy: {src.dtype}{src.shape} into {dst.dtype}{dst.shape}")
        refuse_views("copy", dst, src)
        dst.data.copy_from_device_async(src.data, dst.nbytes, self.current.stream)

    def zero(self, array: Any) -> None:
        array.data.memset_async(0, array.nbytes, self.current.stream)

    @contextmanager
    def branch(self, name: str, urgent: bool = False) -> Iterator[None]:
        branch, parent = self._branch(name, URGENT if urgent else TRAINING), self.current
        branch.follow(parent)
        with self._on(branch):
            yield
        branch.done.record(branch.stream)
        if branch not in parent.open:
            parent.open.append(branch)

    def join(self, name: str | None = None) -> None:
        opened = self.current.open
        for branch in [b for b in opened if name is None or b is self.branches.get(name)]:
            self.current.stream.wait_event(branch.done)
            opened.remove(branch)

    def _branch(self, name: str, priority: int) -> _Branch:
        if name not in self.branches:
            self.branches[name] = _Branch(self.cp, priority)
        return self.branches[name]

    @contextmanager
    def _on(self, branch: _Branch) -> Iterator[None]:
        """Makes `branch` the current one."""
        outer, self.current = self.current, branch
        try:
            with branch.stream:
                yield
        finally:
            self.current = outer

    def _function(self, kernel: Kernel, entry: str, shared: int) -> Any:
        """The compiled function, allowed `shared` bytes of dynamic shared memory a block."""
        key = f"{kernel.name}.{entry}"
        if key not in self.functions:
            started = time.perf_counter()
            module = self.cp.RawModule(code=kernel_source(kernel), options=OPTIONS)
            try:
                self.functions[key] = module.get_function(entry)
            except self.cp.cuda.compiler.CompileException as error:
                raise compile_error(kernel, str(error)) from None
            self.compiled += 1
            self.compile_seconds += time.perf_counter() - started
        if shared > max(FREE_SHARED, self.shared.get(key, 0)):
            self.functions[key].max_dynamic_shared_size_bytes = self.shared[key] = shared
        return self.functions[key]


class _EagerRecorder:
    """Every call eager, on the current stream."""

    def __init__(self, device: CudaDevice):
        self.device = device

    def run(self, body: Callable[[], None]) -> None:
        with self.device.current.stream:
            body()

    def record(self, body: Callable[[], None]) -> Any:
        recorder = self

        class Replay:
            def launch(self) -> None:
                recorder.run(body)

        return Replay()
