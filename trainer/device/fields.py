"""One table of memory: every array of a run is a Field, allocated once; checkpoint and memory report loop over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trainer.device.base import Device

REAL = "real"  # resolved by allocate(): float32 in training, float64 in gradient checks


@dataclass(frozen=True)
class Field:
    """One array. kind: "state" changes and is checkpointed, "data" never changes, "scratch" is dead between steps."""

    name: str  # dotted: "env.position"
    shape: tuple[int, ...]
    dtype: str = REAL
    kind: str = "state"
    init: Any = 0  # scalar, or a host array of this shape
    doc: str = ""


class Store:
    """The allocated arrays by dotted name; `store["env.position"]`, or a namespace of one prefix: `store.ns("env")`."""

    def __init__(self, fields: Iterable[Field], arrays: dict[str, Any]):
        self.fields = {f.name: f for f in fields}
        self.arrays = arrays

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


def allocate(device: Device, fields: Iterable[Field], real: Any = np.float32) -> Store:
    """Allocates every field on `device`, each 256-byte aligned, and fills in its initial value."""
    fields = list(fields)
    arrays: dict[str, Any] = {}
    for f in fields:
        if f.name in arrays:
            raise ValueError(f"two fields are named {f.name}")
        dtype = np.dtype(real if f.dtype == REAL else f.dtype)
        array = device.empty(f.shape, dtype)
        device.fill(array, f.init)
        arrays[f.name] = array
    return Store(fields, arrays)
