"""One table of memory: every array of a run is a Field, allocated once; checkpoint and memory report loop over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainer.device.base import ALIGN

if TYPE_CHECKING:
    from trainer.device.base import Device

REAL = "real"  # resolved by allocate(): float32 in training, float64 in gradient checks
CHECKPOINT_COPY = "checkpoint copy"  # what the copy of the state is called where memory is told


@dataclass(frozen=True)
class Field:
    """One array. kind: "state" changes and is checkpointed, "data" never changes, "scratch" is dead between steps."""

    name: str  # dotted: "env.position"
    shape: tuple[int, ...]
    dtype: str = REAL
    kind: str = "state"
    init: Any = 0  # scalar, or a host array of this shape
    doc: str = ""


class Arena(NamedTuple):
    """One block of bytes in which every array of kind "state" lies: a copy of the whole state is one copy."""

    flat: Any  # uint8 [bytes]
    first: dict[str, int]  # where each array begins, by name


class Store:
    """The allocated arrays by dotted name; `store["env.position"]`, or a namespace of one prefix: `store.ns("env")`."""

    def __init__(self, fields: Iterable[Field], arrays: dict[str, Any], arena: Arena | None = None):
        self.fields = {f.name: f for f in fields}
        self.arrays = arrays
        self.arena = arena

    def state_in(self, flat: Any) -> dict[str, Any]:
        """The state's arrays by name as views of `flat`, a copy of the arena's bytes."""
        assert self.arena is not None
        likes = ((name, first, self.arrays[name]) for name, first in self.arena.first.items())
        return {name: _cut(flat, first, like.dtype, like.shape) for name, first, like in likes}

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def ns(self, prefix: str) -> Namespace:
        return Namespace(prefix, self.arrays)

    def items(self, kind: str | None = None) -> Iterator[tuple[str, Any]]:
        for name, array in self.arrays.items():
            if kind is None or self.fields[name].kind == kind:
                yield name, array

    def nbytes(self, prefix: str = "") -> int:
        return sum(a.nbytes for n, a in self.arrays.items() if n.startswith(prefix))


class Namespace:
    """Attribute access to the arrays under one prefix. Arrays are never rebound: there is no setter."""

    __slots__ = ("_arrays", "_prefix")

    def __init__(self, prefix: str, arrays: dict[str, Any]):
        self._prefix, self._arrays = prefix + ".", arrays

    def __getattr__(self, name: str) -> Any:
        try:
            return self._arrays[self._prefix + name]
        except KeyError:
            raise AttributeError(f"no array {self._prefix}{name}") from None

    def __getitem__(self, name: str) -> Any:
        return self._arrays[self._prefix + name]

    def cut_rows(self, first: int, last: int, names: Iterable[str]) -> Namespace:
        """With views of rows first .. last - 1 in place of the arrays with these whole names; others as they are."""
        return Namespace(self._prefix[:-1], self._arrays | {name: self._arrays[name][first:last] for name in names})

    def with_arrays(self, **arrays: Any) -> Namespace:
        """The same with these arrays in place of those of their names, or beside them."""
        return Namespace(self._prefix[:-1], self._arrays | {self._prefix + name: a for name, a in arrays.items()})


def allocate(device: Device, fields: Iterable[Field], real: Any = np.float32) -> Store:
    """Allocates every field on `device`, each 256-byte aligned, and fills in its initial value.

    Raises DeviceMemory before anything is allocated when all of it, and what the device expects later, will not fit.
    """
    fields = list(fields)
    dtypes = {f.name: np.dtype(real if f.dtype == REAL else f.dtype) for f in fields}
    if len(dtypes) < len(fields):
        names = [f.name for f in fields]
        raise ValueError(f"two fields are named {next(n for n in names if names.count(n) > 1)}")
    sizes = footprint(fields, real)
    copied = sum(sizes[f.name] for f in fields if f.kind == "state")  # a checkpoint is copied on the device first
    later, device.expected = device.expected or {}, None
    device.require_room(sizes | ({CHECKPOINT_COPY: copied} if copied else {}) | dict(later))
    first, size = {}, 0
    for f in fields:
        if f.kind == "state":
            first[f.name] = size
            size += -(-_nbytes(dtypes[f.name], f.shape) // ALIGN) * ALIGN
    arena = Arena(device.empty((size,), np.uint8), first)
    arrays: dict[str, Any] = {}
    for f in fields:
        dtype = dtypes[f.name]
        state = f.kind == "state"
        array = _cut(arena.flat, first[f.name], dtype, f.shape) if state else device.empty(f.shape, dtype)
        device.fill(array, f.init)
        arrays[f.name] = array
    return Store(fields, arrays, arena)


def footprint(fields: Iterable[Field], real: Any = np.float32) -> dict[str, int]:
    """Bytes that each field takes, by name."""
    return {f.name: _nbytes(np.dtype(real if f.dtype == REAL else f.dtype), f.shape) for f in fields}


def _nbytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _cut(flat: Any, first: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return flat[first : first + _nbytes(dtype, shape)].view(dtype).reshape(shape)
