"""Time on a device: marks between operations, and the milliseconds from one to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trainer.device.cuda import CudaDevice

HELD_NS = 300_000_000  # longest wait of a held stream: launching a step takes a tenth of it
# Keeps its stream waiting until the host says go. It ends by itself, because a host that waits for room in the queue of
# launches would never come to say it.
_HOLD = """
extern "C" __global__ void hold(const volatile int* go, long long most_ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (*go == 0 && now - start < most_ns);
}
"""


class Stopwatch:
    """On the host the operations are done when they return, so its clock is enough."""

    def mark(self) -> Any:
        """A moment of the device's work: after what was started so far."""
        return time.perf_counter()

    def ms(self, first: Any, last: Any) -> float:
        """Milliseconds between two marks that the device has passed."""
        return 1e3 * (last - first)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is started in here runs after its end, one thing right after the other: no gap of the host is timed."""
        yield


class CudaStopwatch(Stopwatch):
    """Events on the current stream."""

    def __init__(self, device: CudaDevice):
        self.device, self.cp = device, device.cp
        self.hold = self.cp.RawModule(code=_HOLD).get_function("hold")
        self.pinned = self.cp.cuda.alloc_pinned_memory(4)
        self.go = np.frombuffer(self.pinned, np.int32, 1)

    def mark(self) -> Any:
        event = self.cp.cuda.Event()
        event.record(self.device.current.stream)
        return event

    def ms(self, first: Any, last: Any) -> float:
        return float(self.cp.cuda.get_elapsed_time(first, last))

    @contextmanager
    def held(self) -> Iterator[None]:
        self.device.current.stream.synchronize()
        self.go[0] = 0
        arguments = (np.uint64(self.pinned.ptr), np.int64(HELD_NS))
        self.hold((1,), (1,), arguments, stream=self.device.current.stream)
        try:
            yield
        finally:
            self.go[0] = 1
