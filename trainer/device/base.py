"""The device vocabulary: `launch`, `gemm`, `copy`, and Regions built of them. One code path for every backend.

Region code never asks which backend it is on. On NumPy a launch runs the kernel's reference; on CUDA it runs NAME.cu,
eagerly or inside a captured graph. `RecordingDevice` (recording.py) freezes pointers and Python numbers the way a
capture does, so tests find host decisions that hide inside a region without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import structlog

from kernels.spec import Kernel
from trainer.device.timing import Stopwatch
from trainer.errors import UsageError

MAX_CHECKED = 4096  # launches remembered as checked
FREED_ONCE = 31 << 20  # bytes, just below glibc's largest dynamic threshold
ALIGN = 256  # bytes; what cuBLAS and vector loads want, and what keeps bits equal from run to run

log = structlog.get_logger()


class Region:
    """A step that reads and writes preallocated arrays: no arguments, no result.

    The first WARMUP calls run eagerly: they compile kernels and size pools, and are real steps, so that both modes have
    one trajectory. Recording does not execute, so the recorded graph is launched at once.
    """

    WARMUP = 2
    launched: ClassVar[str] = ""  # the last one in this process: CUDA's errors come late and name no kernel

    def __init__(self, body: Callable[[], None], name: str, recorder: Any = None):
        self.body, self.name, self.recorder = body, name, recorder
        self.calls = 0
        self.graph: Any = None

    def __call__(self) -> None:
        Region.launched = self.name
        if self.recorder is None or self.calls < self.WARMUP:
            self.eager()
        else:
            if self.graph is None:
                self.graph = self.recorder.record(self.body)
            self.graph.launch()
        self.calls += 1

    def eager(self) -> None:
        """One call that is not replayed, whatever was recorded."""
        if self.recorder is None:
            self.body()
        else:
            self.recorder.run(self.body)


class Readback:
    """Host copies of a few arrays, without waiting: `push` starts copying them as they are now, `pull` waits for that.

    The last `slots` versions are kept. Region code that runs after a push may change the arrays at once.
    `device_bytes`: of copies on the device between the arrays and the host, where there are any.
    """

    device_bytes = 0

    def __init__(self, arrays: Mapping[str, Any], slots: int):
        self.arrays = dict(arrays)
        self.pushed = 0
        self.host = [{name: self._buffer(array) for name, array in self.arrays.items()} for _ in range(slots)]

    def push(self) -> None:
        self._copy(self.pushed % len(self.host))
        self.pushed += 1

    def pull(self, lag: int = 0) -> dict[str, np.ndarray] | None:
        """What was pushed `lag` pushes before the newest one, None when nothing was. Any thread may wait here.

        The arrays hold until their slot is pushed into again.
        """
        assert 0 <= lag < len(self.host), lag
        if lag >= self.pushed:
            return None
        slot = (self.pushed - 1 - lag) % len(self.host)
        self._wait(slot)
        return self.host[slot]

    def _buffer(self, array: Any) -> np.ndarray:
        return np.empty(array.shape, array.dtype)

    def _copy(self, slot: int) -> None:
        for name, array in self.arrays.items():
            np.copyto(self.host[slot][name], array)

    def _wait(self, slot: int) -> None:
        pass


def refuse_views(word: str, *arrays: Any) -> None:
    """Raises ValueError for an array that is not contiguous: libraries and copies see a bare pointer."""
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ValueError(f"{word}: an array of shape {array.shape} is not C-contiguous; pass whole arrays")


class Device:
    """What Region code may use. Subclasses: NumpyDevice, RecordingDevice (tests), CudaDevice."""

    name = "abstract"
    recorder: Any = None
    # Whether factors of matrix products, here and in kernels that ask, may be rounded to TF32's 10 bits of mantissa.
    tf32: bool = False
    # Bytes of shared memory that a block of a kernel may ask for, where there are blocks.
    shared_limit: int | None = None
    # Bytes that each branch with matrix products takes for them, beside the products' arrays.
    workspace_bytes: int = 0
    # Bytes by name of what comes later: the next allocation leaves room for it.
    expected: Mapping[str, int] | None = None
    compiled: int = 0  # functions loaded so far, and the seconds that compiling them or reading the cache took
    compile_seconds: float = 0.0

    @property
    def model(self) -> str:
        """What computes, in full: runs repeat bit for bit on one model."""
        return self.name

    # -- memory, outside regions --
    def require_room(self, sizes: Mapping[str, int]) -> None:
        """Raises DeviceMemory when arrays of these sizes (bytes by name) won't fit. The host has a guard of its own."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        raise NotImplementedError

    def fill(self, array: Any, value: Any) -> None:
        """Sets an array from a scalar or a host array (outside regions)."""
        raise NotImplementedError

    def to_host(self, array: Any) -> np.ndarray:
        """A host copy (outside regions; synchronises on CUDA)."""
        raise NotImplementedError

    def synchronize(self) -> None:
        pass

    def memory(self) -> dict[str, int]:
        """Bytes of the device's own memory by what they are; nothing where it has none but the host's."""
        return {}

    def stopwatch(self) -> Stopwatch:
        return Stopwatch()

    def readback(self, arrays: Mapping[str, Any], slots: int, large: bool = False) -> Readback:
        """Host copies at a lag, for use between regions. `large` arrays are copied on the device first and travel on a
        stream of their own, so that the steps after a push wait for the device's copy alone."""
        return Readback(arrays, slots)

    @contextmanager
    def aside(self, name: str, after: bool = False) -> Iterator[None]:
        """Copies and regions in here go to a stream of their own, beside everything else; theirs are captured there.

        `after`: it first waits (on the device) for what was started so far. Nothing waits for it but the `pull` of a
        readback that was pushed in here. In order on CPU.
        """
        yield

    # -- the vocabulary, inside regions --
    def launch(self, kernel: Kernel, *values: Any) -> None:
        """Runs a kernel over arrays and constants, in the order of its argument table."""
        raise NotImplementedError

    def gemm(
        self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> None:
        """out[m, n] = op(a) @ op(b) + beta * out + bias[n], row-major 2-D; ta/tb transpose; beta is 0.0 or 1.0.

        Raises ValueError for a view that is not contiguous.
        """
        raise NotImplementedError

    def copy(self, dst: Any, src: Any) -> None:
        """dst[...] = src, same shape and dtype, both contiguous, else ValueError or TypeError."""
        raise NotImplementedError

    def zero(self, array: Any) -> None:
        raise NotImplementedError

    @contextmanager
    def branch(self, name: str, urgent: bool = False) -> Iterator[None]:
        """Work that may overlap with its sibling branches, and with what follows, until `join()`.

        In order on CPU; forked streams on CUDA, where `urgent` work goes first when both wait for the GPU. A branch may
        hold others: they are joined in there. Entered again before the join, it goes on after what it was given before.
        """
        yield

    def join(self, name: str | None = None) -> None:
        """Waits (on the device) for every branch that was opened here, not in another one, since the last join; or for
        the one of that name alone."""

    def region(self, body: Callable[[], None], name: str) -> Region:
        return Region(body, name, self.recorder)


class NumpyDevice(Device):
    """Runs the references. Deterministic: BLAS is pinned to one thread by the command line."""

    name = "cpu"

    def __init__(self) -> None:
        # Arrays are allocated once and live for the run, so a launch with the same arrays was checked before. The
        # values are kept beside the key: an id() may be reused only after its object died.
        self._checked: dict[tuple[str, tuple[int, ...]], tuple[Any, ...]] = {}
        # glibc gives freed blocks above a threshold back to the system, and each temporary of a kernel then costs its
        # page faults again (30 % of a network pass). Freeing one large block raises that threshold for the process.
        np.empty(FREED_ONCE, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        n = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.empty(n + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        return raw[start : start + n].view(dtype).reshape(shape)

    def fill(self, array: np.ndarray, value: Any) -> None:
        array[...] = value

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, copy=True)

    def launch(self, kernel: Kernel, *values: Any) -> None:
        key = (kernel.name, tuple(map(id, values)))
        if key not in self._checked:
            if len(self._checked) >= MAX_CHECKED:  # views made anew at each call would pile up
                self._checked.clear()
            kernel.bind(values)
            self._checked[key] = values
        kernel.reference(*values)

    def gemm(
        self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> None:
        refuse_views("gemm", a, b, out)
        a, b = (a.T if ta else a), (b.T if tb else b)
        if beta == 0.0:
            np.matmul(a, b, out=out)
        else:
            out += a @ b
        if bias is not None:
            out += bias

    def copy(self, dst: np.ndarray, src: np.ndarray) -> None:
        refuse_views("copy", dst, src)
        np.copyto(dst, src, casting="no")

    def zero(self, array: np.ndarray) -> None:
        array.fill(0)


def open_device(name: str = "auto", tf32: bool = True) -> Device:
    """`cpu`, `cuda`, or `auto` (CUDA when a GPU can be used; why not is logged where CUDA is installed).

    Raises UsageError when it is not to be had.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name}: unknown device; choose auto, cpu or cuda")
    if name == "cpu":
        return NumpyDevice()
    from trainer.device.probe import installed_wheels, why_unavailable
    from trainer.device.source import missing_sources

    reason = why_unavailable()
    if reason is None and (missing := missing_sources()):
        reason = f"{len(missing)} kernels have no CUDA source yet ({', '.join(missing[:4])} ...); use --device cpu"
    if reason is None:
        from trainer.device.cuda import CudaDevice

        return CudaDevice(tf32)
    if name == "cuda":
        raise UsageError(f"--device cuda: {reason}")
    if installed_wheels():
        log.warning("no GPU is used", why=reason)
    return NumpyDevice()
