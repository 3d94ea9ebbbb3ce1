"""What a kernel's case is: a valid random call of it at any size, from which CPU and GPU tests are made.

A case says the size letters, the scalars, and whatever needs more than normal numbers; the argument table gives the
rest. Real arrays are drawn once and rounded to float32, so that every dtype and every backend gets the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from kernels.spec import REAL, Arg, Kernel

BLOCK, MOST = 256, 4096  # threads of a block, blocks of a grid-stride loop: the defaults of kernels.spec.grid_stride
POISONS = ((np.nan, 77), (1e30, 78))  # what `out` arrays hold before a launch: (reals, integers)

Make = Callable[..., dict[str, Any]]  # of (size, rng)
F = TypeVar("F", bound=Make)


def around(block: int, *more: int) -> tuple[int, ...]:
    """1, block - 1, block, block + 1, and `more`."""
    return (1, block - 1, block, block + 1, *more)


def edges(width: int = 1) -> tuple[int, ...]:
    """Rows of `width` values around one block, and one row more than a grid of grid_stride has threads for."""
    return around(BLOCK // width, MOST * BLOCK // width + 1)


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    label: str
    sizes: tuple[int, ...]
    make: Make
    rounded: tuple[str, ...]  # integer outputs that are rounded reals: held to the tolerance instead of exact
    # Of an array's largest value: how far a CUDA kernel may leave float64 where a scalar lets it round factors to TF32.
    tolerance: float | None = None

    @property
    def id(self) -> str:
        return f"{self.kernel.name}: {self.label}" if self.label else self.kernel.name

    def values(self, size: int) -> list[Any]:
        """The arguments in table order, reals in float32; an output is an array of its shape without memory."""
        rng = np.random.default_rng([zlib.crc32(self.id.encode()), size])
        given = self.make(size, rng)
        letters = {d for a in self.kernel.args for d in a.dims}
        sizes = {name: given.pop(name) for name in letters & given.keys()}
        for arg in self.kernel.args:
            if arg.name in given and arg.role != "scalar":
                sizes |= {d: n for d, n in zip(arg.dims, np.shape(given[arg.name])) if not d.isdigit()}
        values = [self._value(arg, given.pop(arg.name, None), sizes, rng) for arg in self.kernel.args]
        assert not given, f"{self.id}: no arguments are named {', '.join(given)}"
        return values

    def _value(self, arg: Arg, given: Any, sizes: dict[str, int], rng: np.random.Generator) -> Any:
        if arg.role == "scalar":
            return float(np.float32(given)) if arg.dtype == REAL else int(given)
        shape = tuple(int(d) if d.isdigit() else sizes[d] for d in arg.dims)
        if arg.role == "out":
            return np.broadcast_to(np.zeros((), "float32" if arg.dtype == REAL else arg.dtype), shape)
        array = np.asarray(given) if given is not None else rng.standard_normal(shape, np.float32)
        assert given is not None or arg.dtype in (REAL, "float32"), f"{self.id}: {arg.name} must be given"
        return array.astype("float32" if arg.dtype == REAL else arg.dtype, copy=False)

    def scalars(self, values: list[Any]) -> dict[str, Any]:
        return {arg.name: value for arg, value in zip(self.kernel.args, values) if arg.role == "scalar"}

    def typed(self, values: list[Any], real: Any, poison: int = 0) -> list[Any]:
        """A fresh copy of `values` with reals as `real` and poisoned outputs."""
        copies = []
        for arg, value in zip(self.kernel.args, values):
            if arg.role != "scalar":
                value = np.array(value, real if arg.dtype == REAL else arg.dtype)
                if arg.role == "out":
                    value.fill(POISONS[poison][value.dtype.kind != "f"])
            copies.append(value)
        return copies

    def written(self) -> list[tuple[int, Arg]]:
        """Position and table row of every array that the kernel writes."""
        return [(i, a) for i, a in enumerate(self.kernel.args) if a.role in ("out", "inout")]

    def exact(self, arg: Arg) -> bool:
        return arg.dtype not in (REAL, "float32") and arg.name not in self.rounded


CASES: list[Case] = []


def case(
    module: ModuleType,
    sizes: tuple[int, ...],
    label: str = "",
    rounded: tuple[str, ...] = (),
    tolerance: float | None = None,
) -> Callable[[F], F]:
    """Puts a function (size, rng) -> {size letter, scalar or array name: value} into the registry."""

    def add(make: F) -> F:
        CASES.append(Case(module.KERNEL, label, sizes, make, rounded, tolerance))
        return make

    return add
