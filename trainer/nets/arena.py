"""Parameters in one flat float array: where each tensor lies, how it starts, and named views of it.

Parameters, gradients, Adam moments and target weights have the same layout, so the optimiser, a target sync and a
checkpoint each handle one array. Every tensor starts at a multiple of 64 floats (256 bytes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.isv import GROUPS
from kernels.philox import Purpose, philox4x32, uniform
from kernels.vectors import padded

Init = Callable[[np.ndarray], np.ndarray]  # uniform draws in [0, 1), float64, of the tensor's shape -> start values


@dataclass(frozen=True)
class Entry:
    """One parameter tensor. `group` is its learning-rate group, of kernels.isv.GROUPS.

    `row_groups` splits a matrix by rows: ((231, "q"), (11, "policy"), ...) from the top; `group` is then the first.
    """

    name: str
    shape: tuple[int, ...]
    init: Init
    group: str = "encoder"
    row_groups: tuple[tuple[int, str], ...] = ()
    offset: int = -1

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ParamLayout:
    """Where every tensor lies. `entries` in arena order, `size` floats, `segments` [(start, stop, group)].

    The segments cover the arena without a gap, one a group, in the order of GROUPS; their bounds are multiples of four
    floats. `blocks` are contiguous runs that get a view of their own (name -> (start, shape)).
    """

    def __init__(self, entries: Iterable[Entry]):
        placed, at = [], 0
        for e in entries:
            placed.append(Entry(e.name, e.shape, e.init, e.group, e.row_groups, at))
            at += padded(e.size)
        self.entries = tuple(placed)
        self.size = at
        self.blocks: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._by_name = {e.name: e for e in placed}
        assert len(self._by_name) == len(placed), "two parameters share a name"
        self.segments = self._segments()

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    def at(self, index: int) -> str:
        """Name of the tensor that holds float `index`, or is followed by it as padding."""
        return next(e.name for e in reversed(self.entries) if e.offset <= index)

    def _segments(self) -> list[tuple[int, int, str]]:
        starts: dict[str, int] = {}
        for e in self.entries:
            row, width = 0, e.size // e.shape[0]
            for rows, group in e.row_groups or ((e.shape[0], e.group),):
                starts.setdefault(group, e.offset + row * width)
                assert group == list(starts)[-1], f"group {group} is not contiguous in the arena"
                row += rows
        assert tuple(starts) == tuple(g for g in GROUPS if g in starts), "groups are out of order"
        bounds = [*starts.values(), self.size]
        return [(a, b, g) for a, b, g in zip(bounds, bounds[1:], starts)]

    def add_vectors(self, name: str, first: str, last: str) -> None:
        """A flat view of the run of whole (padded) tensors from `first` to `last`: one `column_sum` writes them all."""
        start = self[first].offset
        self.blocks[name] = (start, (self[last].offset + padded(self[last].size) - start,))

    def add_rows(self, name: str, matrix: str, start: int, stop: int) -> None:
        """A view of the rows start:stop of a matrix."""
        columns = self[matrix].shape[1]
        self.blocks[name] = (self[matrix].offset + start * columns, (stop - start, columns))

    def views(self, flat: Any) -> dict[str, Any]:
        """name -> view of `flat` [size], tensors and blocks. Make it once: launches check arrays by identity."""
        assert flat.shape == (self.size,), f"arena of {flat.shape}, layout of {self.size}"
        places = {e.name: (e.offset, e.shape) for e in self.entries} | self.blocks
        return {name: flat[at : at + math.prod(shape)].reshape(shape) for name, (at, shape) in places.items()}

    def init(self, seed: int) -> np.ndarray:
        """Start values, float32 [size], a pure function of `seed`; the padding is zero."""
        flat = np.zeros(self.size, np.float32)
        for index, e in enumerate(self.entries):
            n = e.size
            words = philox4x32(np.arange(-(-n // 4), dtype=np.uint32), 0, index, Purpose.INIT, seed)
            draws = uniform(np.stack(words, axis=1), np.float64).reshape(-1)[:n].reshape(e.shape)
            flat[e.offset : e.offset + n] = e.init(draws).reshape(-1)
        return flat


def constant(value: float) -> Init:
    return lambda u: np.full_like(u, value)


def symmetric(bound: float) -> Init:
    """Uniform in [-bound, bound)."""
    return lambda u: (2 * u - 1) * bound


def fan_in(inputs: int, gain: float = 1.0) -> Init:
    """Uniform with bound gain / sqrt(inputs): the default of a linear layer in PyTorch, which Mamba-2 uses."""
    return symmetric(gain / math.sqrt(inputs))
