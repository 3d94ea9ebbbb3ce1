"""The canonical book frame: what every input becomes, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

UNDEF = -(2**31)  # a price that is not there, in the int32 tick arrays


@dataclass
class BookFrame:
    """Consecutive rows. Arrays are C-contiguous; n rows, LV book levels."""

    ts: np.ndarray  # int64 [n], ns UTC: when the row is known
    bid_px: np.ndarray  # int32 [n, LV], ticks, UNDEF where there is no level
    ask_px: np.ndarray  # int32 [n, LV]
    bid_sz: np.ndarray  # int32 [n, LV], lots; 0 with a defined price: unknown, unlimited
    ask_sz: np.ndarray  # int32 [n, LV]
    signed_volume: np.ndarray  # int32 [n], traded since the row before, + bought, - sold
    session: np.ndarray  # int32 [n], increases by one at a gap or roll
    volume: np.ndarray | None = None  # int64 [n], all that traded since the row before; None: not known
    bid_ct: np.ndarray | None = None  # int32 [n, LV], orders at the level; None: not known
    ask_ct: np.ndarray | None = None  # int32 [n, LV]

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: np.ndarray | slice) -> BookFrame:
        """The rows of an index array, mask or slice."""
        return self.map(lambda array: np.ascontiguousarray(array[rows]))

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> BookFrame:
        """A frame of `change(array)` for every array that is there."""
        changed: dict[str, Any] = {}
        for f in fields(self):
            array = getattr(self, f.name)
            changed[f.name] = None if array is None else change(array)
        return BookFrame(**changed)


def concat(frames: list[BookFrame]) -> BookFrame:
    """One frame of several with the same levels and optional columns, in the order given."""
    if len(frames) == 1:
        return frames[0]
    joined: dict[str, Any] = {}
    for f in fields(BookFrame):
        arrays = [getattr(frame, f.name) for frame in frames]
        joined[f.name] = None if arrays[0] is None else np.concatenate(arrays)
    return BookFrame(**joined)


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
    sampling: str = "event"  # what `auto` became
    counts: dict[str, int] = field(default_factory=dict)  # records, states, trades read so far

    def add(self, rule: str, n: int) -> None:
        """Counts rows that a cleaning rule dropped."""
        if n:
            self.cleaning[rule] = self.cleaning.get(rule, 0) + int(n)

    def count(self, what: str, n: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + int(n)

    def note(self, text: str) -> None:
        """Notes something once, however often a series is read."""
        if text not in self.notes:
            self.notes.append(text)


class Series(Protocol):
    """Rows of one instrument, in time order."""

    info: SeriesInfo

    @property
    def digest(self) -> str:
        """SHA-256 of the input, hex."""
        ...

    def chunks(self) -> Iterator[BookFrame]: ...


@dataclass
class RawChunk:
    """Rows as read, before cleaning. Every reader yields these; `frame.session` is still zero.

    `row` int64 [n] is each row's number in its file and `where` turns one into words, for error messages.
    """

    frame: BookFrame
    row: np.ndarray
    where: Callable[[int], str]
    roll: bool = False  # the first row belongs to another contract than the chunk before: a new session


class Feed(Protocol):
    """The rows of all files of a series, as read."""

    info: SeriesInfo
    has_trades: bool  # rows carry the volume traded, so an opening uncross can be seen
    is_book: bool  # states of a book (sampled by time by default), not bars or quotes
    unique_times: bool  # two different rows with one time are an error (bars)
    bar_ns: int  # length of a bar; 0: not bars
    drop_duplicates: bool  # a row equal to the one before is a copy, not an event

    def raw(self) -> Iterator[RawChunk]: ...
