"""The canonical book frame: what every input becomes, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

UNDEF = -(2**31)  # a price that is not there, in the int32 tick arrays


@dataclass
class BookFrame:
    """Consecutive rows. Arrays are C-contiguous; n rows, LV book levels."""

    ts: np.ndarray  # int64 [n], ns UTC
    bid_px: np.ndarray  # int32 [n, LV], ticks, UNDEF where there is no level
    ask_px: np.ndarray  # int32 [n, LV]
    bid_sz: np.ndarray  # int32 [n, LV], lots; 0 with a defined price: unknown, unlimited
    ask_sz: np.ndarray  # int32 [n, LV]
    signed_volume: np.ndarray  # int32 [n], traded since the row before, + bought, - sold
    session: np.ndarray  # int32 [n], increases by one at a gap or roll

    def __len__(self) -> int:
        return len(self.ts)


@dataclass
class SeriesInfo:
    """What is known of a series beside its rows."""

    symbol: str
    tick_size: str  # decimal text, exact
    multiplier: float = 1.0
    levels: int = 10
    schema: str = ""
    cleaning: dict[str, int] = field(default_factory=dict)  # rule -> rows dropped; complete once all chunks are read
    notes: list[str] = field(default_factory=list)


class Series(Protocol):
    """Rows of one instrument, in time order."""

    info: SeriesInfo

    def chunks(self) -> Iterator[BookFrame]: ...
