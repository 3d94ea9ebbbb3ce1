"""RecordingDevice: freezes pointers and Python numbers the way a CUDA capture does, on NumPy. For tests.

While recording, `launch`, `gemm`, `copy`, `zero` and ufuncs with `out=` are put on a tape and not executed; anything
that a capture could not do (allocation, reading a value on the host) raises RecordingRefused. Replaying the tape is
what a graph launch does, so a region that hides a host decision differs from eager execution at some replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.spec import Kernel
from trainer.device.base import NumpyDevice


class RecordingRefused(AssertionError):
    """The region did something that a captured graph can't do; the message names it."""


class Tape:
    """The recorded calls of one region; `launch()` replays them."""

    active: Tape | None = None  # the tape being recorded, seen by TapeArray

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def add(self, call: Callable[[], Any]) -> None:
        self.calls.append(call)

    def launch(self) -> None:
        for call in self.calls:
            call()


class Recorder:
    """`run` executes, `record` traces: the two things a Region asks of a recorder."""

    def run(self, body: Callable[[], None]) -> None:
        body()

    def record(self, body: Callable[[], None]) -> Tape:
        tape = Tape()
        Tape.active = tape
        try:
            body()
        finally:
            Tape.active = None
        return tape


def _refuse(what: str) -> None:
    if Tape.active is not None:
        raise RecordingRefused(f"{what} inside a region")


def _refusing(name: str, what: str) -> Callable[..., Any]:
    original = getattr(np.ndarray, name)

    def method(self: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        _refuse(f"{what} ({name})")
        return original(self, *args, **kwargs)

    method.__name__ = name
    return method


class TapeArray(np.ndarray):
    """An array that refuses, while a tape records, what a capture would refuse."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        plain = tuple(x.view(np.ndarray) if isinstance(x, TapeArray) else x for x in inputs)
        outs = tuple(x.view(np.ndarray) for x in out) if out is not None else None
        if Tape.active is None:
            result = getattr(ufunc, method)(*plain, out=outs, **kwargs)
            return out[0] if out is not None and len(out) == 1 else result
        if outs is None:
            raise RecordingRefused(f"allocation ({ufunc.__name__} without out=) inside a region")
        Tape.active.add(lambda: getattr(ufunc, method)(*plain, out=outs, **kwargs))
        return out[0] if len(out) == 1 else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _refuse(f"numpy.{func.__name__}")
        return super().__array_function__(func, types, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if Tape.active is not None and not all(
            isinstance(k, (slice, int, np.integer)) or k is None or k is Ellipsis for k in items
        ):
            raise RecordingRefused("fancy or boolean indexing (host synchronisation) inside a region")
        result = super().__getitem__(key)
        if Tape.active is not None and not isinstance(result, np.ndarray):
            raise RecordingRefused("reading a value (host synchronisation) inside a region")
        return result

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse("assignment by index")
        super().__setitem__(key, value)

    copy = _refusing("copy", "allocation")
    astype = _refusing("astype", "allocation")
    item = _refusing("item", "host synchronisation")
    tolist = _refusing("tolist", "host synchronisation")
    __bool__ = _refusing("__bool__", "host synchronisation")
    __float__ = _refusing("__float__", "host synchronisation")
    __int__ = _refusing("__int__", "host synchronisation")
    __index__ = _refusing("__index__", "host synchronisation")


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, TapeArray) else value


class RecordingDevice(NumpyDevice):
    """NumpyDevice whose regions are recorded after their warm-up and replayed from then on."""

    name = "recording"

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return super().empty(shape, dtype).view(TapeArray)

    def _do(self, call: Callable[[], Any]) -> None:
        if Tape.active is None:
            call()
        else:
            Tape.active.add(call)

    def launch(self, kernel: Kernel, *values: Any) -> None:
        kernel.bind(values)
        plain = tuple(_plain(v) for v in values)
        self._do(lambda: kernel.reference(*plain))

    def gemm(
        self, a: Any, b: Any, out: Any, *, ta: bool = False, tb: bool = False, beta: float = 0.0, bias: Any = None
    ) -> None:
        plain, vector = (_plain(a), _plain(b), _plain(out)), _plain(bias)
        self._do(lambda: NumpyDevice.gemm(self, *plain, ta=ta, tb=tb, beta=beta, bias=vector))

    def copy(self, dst: Any, src: Any) -> None:
        pair = _plain(dst), _plain(src)
        self._do(lambda: np.copyto(*pair, casting="no"))

    def zero(self, array: Any) -> None:
        plain = _plain(array)
        self._do(lambda: plain.fill(0))
