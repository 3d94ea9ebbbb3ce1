"""What a kernel is: a NumPy reference (the definition), an argument table, and NAME.cu beside it.

A module `kernels/NAME.py` exports `KERNEL = Kernel("NAME", args=(...), reference=fn)`. The reference is the plainest
NumPy, takes its dtype from its arrays (float64 works, for gradient checks) and writes its results into the `out` and
`inout` arrays; it returns nothing and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REAL = "real"  # float32 in training; float64 when a reference is checked
Grid = tuple[int, ...]
# (sizes, scalars) -> (grid, block, shared bytes), or a list of (entry point, grid, block, shared bytes): functions of
# one source that run in that order over the same arguments. What needs the whole grid to have ended rather belongs into
# its last block (last_block.cuh): a launch takes longer.
Launch = Callable[[Mapping[str, int], Mapping[str, Any]], tuple[Grid, Grid, int] | list[tuple[str, Grid, Grid, int]]]


def grid_stride(*letters: str, block: int = 256, most: int = 4096, each: int = 1) -> Launch:
    """A launcher for a grid-stride loop over the product of `letters`, `each` values a thread."""

    def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
        n = math.prod(sizes[letter] for letter in letters)
        return (min(max(-(-n // (block * each)), 1), most),), (block,), 0

    return launcher


def warp_a_row(*letters: str, warps: int = 8) -> Launch:
    """A launcher for one warp per row, the rows being the product of `letters`."""

    def launcher(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
        return (max(-(-math.prod(sizes[letter] for letter in letters) // warps), 1),), (32 * warps,), 0

    return launcher


def one_block(sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> tuple[Grid, Grid, int]:
    """A launcher for what must see all of its rows, and has few: a barrier stands where another launch would."""
    return (1,), (1024,), 0


@dataclass(frozen=True)
class Arg:
    """One argument. `shape` uses the size letters of the glossary ("B,K,F"), numbers, or "" for a scalar value."""

    name: str
    dtype: str  # "real", or a numpy dtype name such as "int32"
    role: str  # "in", "out", "inout" (arrays) or "scalar" (baked at recording: constants only)
    shape: str = ""
    doc: str = ""

    def __post_init__(self) -> None:
        assert self.role in ("in", "out", "inout", "scalar"), self.role

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d.strip() for d in self.shape.split(",")) if self.shape else ()


@dataclass(frozen=True)
class Kernel:
    """A kernel pair. `tolerance` is (atol, rtol, why) for float32 CUDA against the float64 reference."""

    name: str
    args: tuple[Arg, ...]
    reference: Callable[..., None]
    launcher: Launch | None = None  # for the CUDA side; comes with NAME.cu, None as long as there is none
    tolerance: tuple[float, float, str] = (1e-6, 1e-5, "float32 rounding")
    constants: Mapping[str, Any] = field(default_factory=dict)  # #define'd before the CUDA source
    general: Launch | None = None  # for cards whose blocks get less shared memory than `launcher` asks for

    @property
    def source(self) -> Path:
        return Path(__file__).with_name(f"{self.name}.cu")

    def bind(self, values: Sequence[Any]) -> dict[str, int]:
        """Checks dtypes, contiguity and shapes of positional `values`; returns the size letters' values.

        Raises TypeError/ValueError naming kernel, argument, found and expected. A kernel sees a bare pointer, so a
        strided view would be read wrongly: it is refused, never copied. The order of the returned letters is that of
        their first appearance; CUDA functions take them as trailing int arguments in that order.
        """
        if len(values) != len(self.args):
            names = ", ".join(a.name for a in self.args)
            raise TypeError(f"kernel {self.name}: {len(values)} arguments for ({names})")
        sizes: dict[str, int] = {}
        real = None
        for arg, value in zip(self.args, values):
            if arg.role == "scalar":
                continue
            if not hasattr(value, "dtype") or not hasattr(value, "flags"):
                raise TypeError(f"kernel {self.name}: {arg.name} must be an array, not {type(value).__name__}")
            dtype = np.dtype(value.dtype)
            if arg.dtype == REAL:
                if dtype.kind != "f" or (real is not None and dtype != real):
                    raise TypeError(f"kernel {self.name}: {arg.name} is {dtype}, expected {real or 'a float array'}")
                real = dtype
            elif dtype != np.dtype(arg.dtype):
                raise TypeError(f"kernel {self.name}: {arg.name} is {dtype}, expected {arg.dtype}")
            if not value.flags.c_contiguous:
                raise ValueError(f"kernel {self.name}: {arg.name} is not C-contiguous; pass whole arrays")
            if len(value.shape) != len(arg.dims):
                raise ValueError(f"kernel {self.name}: {arg.name} has shape {value.shape}, expected [{arg.shape}]")
            for letter, size in zip(arg.dims, value.shape):
                want = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
                if want != size:
                    raise ValueError(
                        f"kernel {self.name}: {arg.name} has shape {value.shape}, not [{arg.shape}], {letter}={want}"
                    )
        return sizes
