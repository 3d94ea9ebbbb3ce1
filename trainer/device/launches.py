"""Which functions of a kernel run, and how much shared memory their blocks may take.

A kernel's own launcher is for the cards that are measured. Where a block gets less shared memory than that asks for,
the kernel's general variant runs, if it has one: slower, and the same numbers up to rounding. The choice depends on
nothing but that limit, which all cards of a model share, so a run on such cards repeats bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.spec import Grid, Kernel, Launch
from trainer.device.base import NumpyDevice
from trainer.errors import UsageError

Functions = list[tuple[str, Grid, Grid, int]]  # (entry point, grid, block, shared bytes), in order
# Most that a block may ask for, KiB by architecture: "Maximum amount of shared memory per thread block" in the table of
# technical specifications of the CUDA C++ Programming Guide. A card is asked itself; this is for --arch.
KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
WRITTEN = 1 << 20  # bytes of the largest array that a dry run fills


def limit_of(arch: str) -> int | None:
    """Bytes of shared memory that a block may have on `arch` ("sm_90"), None where that is not known."""
    kib = KIB.get(int("".join(filter(str.isdigit, arch)) or 0))
    return None if kib is None else kib << 10


def variants(kernel: Kernel, sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> list[Functions]:
    """What a launch may be at these sizes, the one to prefer first."""
    assert kernel.launcher is not None
    launchers = (kernel.launcher, *([kernel.general] if kernel.general else []))
    found = [_functions(kernel, launcher, sizes, scalars) for launcher in launchers]
    return found[:1] + [other for other in found[1:] if other != found[0]]


def _functions(kernel: Kernel, launcher: Launch, sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> Functions:
    found = launcher(sizes, scalars)
    return found if isinstance(found, list) else [(kernel.name, *found)]


def largest(functions: Functions) -> int:
    """Bytes of shared memory that the neediest of them asks for."""
    return max(shared for *_, shared in functions)


def fitting(options: list[Functions], limit: int | None) -> Functions | None:
    """The first that fits into `limit` bytes a block (None: no limit)."""
    return next((one for one in options if limit is None or largest(one) <= limit), None)


def phases(kernel: Kernel, sizes: Mapping[str, int], scalars: Mapping[str, Any], limit: int | None = None) -> Functions:
    """(entry point, grid, block, shared bytes) of each CUDA function of a launch, in order.

    Raises UsageError when no variant fits into `limit` bytes of shared memory a block.
    """
    options = variants(kernel, sizes, scalars)
    found = fitting(options, limit)
    if found is None:
        assert limit is not None
        raise too_large(kernel.name, options, limit)
    return found


def too_large(kernel: str, options: list[Functions], limit: int) -> UsageError:
    asked = min(map(largest, options))
    return UsageError(
        f"kernel {kernel}: these sizes need {asked / 1024:.1f} KiB of shared memory a block, and this GPU has "
        f"{limit / 1024:.0f}\ntake a smaller net.window, net.d_state, net.headdim or net.d_model, or another card"
    )


class DryDevice(NumpyDevice):
    """Runs nothing: it notes what would be launched where a block gets `limit` bytes of shared memory (None: any).

    `launches`: (kernel, entry) -> grid, block and dynamic shared memory of the launch that takes the most of it, and
    its use: "launched", or "exceeds" where a variant was left out for the limit. `refused`: kernels with none left.
    """

    name = "dry"
    tf32 = True  # as GPUs run unless told otherwise; no kernel takes other shared memory without

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.launches: dict[tuple[str, str], dict[str, Any]] = {}
        self.refused: dict[str, UsageError] = {}

    def fill(self, array: Any, value: Any) -> None:
        if array.nbytes <= WRITTEN:  # what is never written takes no memory, and the host reads small arrays only
            super().fill(array, value)

    def launch(self, kernel: Kernel, *values: Any) -> None:
        sizes = kernel.bind(values)
        scalars = {arg.name: value for arg, value in zip(kernel.args, values) if arg.role == "scalar"}
        options = variants(kernel, sizes, scalars)
        for functions in options:
            fits = fitting([functions], self.limit) is not None
            for function in functions:
                self._note(kernel.name, "launched" if fits else "exceeds", *function)
            if fits:
                return
        assert self.limit is not None  # without one, the first fits
        self.refused[kernel.name] = too_large(kernel.name, options, self.limit)

    def _note(self, kernel: str, use: str, entry: str, grid: Grid, block: Grid, shared: int) -> None:
        known = self.launches.get((kernel, entry))
        if known is None or shared > known["dynamic"]:
            sides = ["x".join(map(str, shape)) for shape in (grid, block)]
            self.launches[kernel, entry] = {"dynamic": shared, "grid": sides[0], "block": sides[1], "use": use}

    def left_out(self) -> list[str]:
        """Kernels whose general variant runs because their own exceeds the limit."""
        return sorted({kernel for (kernel, _), row in self.launches.items() if row["use"] == "exceeds"})

    def gemm(self, *values: Any, **options: Any) -> None:
        pass

    def copy(self, dst: Any, src: Any) -> None:
        pass

    def zero(self, array: Any) -> None:
        pass
