"""Sampling: which moments of a series become rows. The result doesn't depend on how the input is cut into chunks.

    event      every row as it comes
    100ms ...  a row at each multiple of the interval since 1970 (UTC) from a session's first row to its last: the last
               state at or before that moment, carried forward while nothing happens. Rows are evenly spaced, so a
               latency of so many milliseconds is a fixed number of rows, and a fill sees the book as it stands then,
               not the next change. Nothing is carried over a session's end.
    volume:N   a row each time at least N lots have traded since the row before: the state after that trade. What is
               left at a session's end is dropped, being no full bar (Lopez de Prado, Advances in Financial Machine
               Learning, 2.3.1.3).

Signed and total volume of a row are sums over everything since the row before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np

from trainer.data.frame import BookFrame, concat
from trainer.data.volume import int32_volume
from trainer.errors import ConfigError, DataError, nearest

INTERVALS = {"100ms": 100_000_000, "1s": 1_000_000_000, "1m": 60_000_000_000}
BLOCK = 1 << 16  # rows made at once: a long silence is many rows


def resolve(sample: str, is_book: bool, gap_ns: int) -> str:
    """Checks a sampling and resolves `auto`: 100ms for books, event for bars and quotes. Raises ConfigError."""
    if sample == "auto":
        sample = "100ms" if is_book else "event"
    if sample.startswith("volume:"):
        text = sample.removeprefix("volume:")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"data.sample={sample}: {text!r} is not a number of lots\nwrite volume:500, for example")
    elif sample not in ("event", *INTERVALS):
        known = ["auto", "event", *INTERVALS, "volume:500"]
        raise ConfigError(f"data.sample={sample}: not known{nearest(sample, known)}\nchoose one of {', '.join(known)}")
    if INTERVALS.get(sample, 0) > gap_ns:
        raise ConfigError(
            f"data.sample={sample}: longer than the gap between sessions, data.session_gap_s={gap_ns / 1e9:g}\n"
            "sample more finely, or raise the gap"
        )
    return sample


def coarser(sample: str, rows: int, room: int) -> str | None:
    """The finest sampling that leaves about `room` of the `rows` rows that a resolved one made; None if none is known.

    Rows are taken to be evenly spread, so it is an estimate; how many events an interval has is unknown.
    """
    times = rows / room
    if sample.startswith("volume:"):
        return f"volume:{ceil(int(sample.removeprefix('volume:')) * times)}"
    longer = [name for name, ns in INTERVALS.items() if ns >= INTERVALS.get(sample, ns + 1) * times]
    return min(longer, key=INTERVALS.__getitem__, default=None)


def sample_rows(frames: Iterable[BookFrame], sample: str, symbol: str = "input") -> Iterator[BookFrame]:
    """Rows of a resolved sampling. Raises DataError for volume sampling of data that don't say what traded."""
    if sample == "event":
        yield from frames
    elif sample in INTERVALS:
        yield from _by_time(frames, INTERVALS[sample], symbol)
    else:
        yield from _by_volume(frames, int(sample.removeprefix("volume:")), symbol)


def _sessions(frames: Iterable[BookFrame]) -> Iterator[BookFrame]:
    """The same rows, no frame across a session's end, none empty."""
    for frame in frames:
        cuts = np.flatnonzero(np.diff(frame.session)) + 1
        edges = [0, *cuts.tolist(), len(frame)]
        for start, stop in pairwise(edges):
            if stop > start:
                yield frame.take(slice(start, stop))


def _by_time(frames: Iterable[BookFrame], step: int, symbol: str) -> Iterator[BookFrame]:
    """Keeps back the rows of the interval that is still open: a later state may yet replace its last one."""
    held: BookFrame | None = None  # one row: the last state; its volume is the open interval's so far
    for frame in _sessions(frames):
        if held is not None and held.session[0] != frame.session[0]:
            yield from _grid(held, step, symbol, closed=True)
            held = None
        joined = frame if held is None else concat([held, frame])
        yield from _grid(joined, step, symbol, closed=False)
        held = _open_interval(joined, step)
    if held is not None:
        yield from _grid(held, step, symbol, closed=True)


def _grid(frame: BookFrame, step: int, symbol: str, closed: bool) -> Iterator[BookFrame]:
    """Rows at the ends of the intervals from the first state's to the last state's, without that last if not closed."""
    ends = -(-frame.ts // step)  # number of the interval's end: a state on the grid belongs to it
    signed, volume = _cumulative(frame)
    for start in range(int(ends[0]), int(ends[-1]) + int(closed), BLOCK):
        grid = np.arange(start, min(start + BLOCK, int(ends[-1]) + int(closed)))
        after = np.searchsorted(ends, grid, side="right")  # states up to and with each interval
        before = np.searchsorted(ends, grid, side="left")
        rows = frame.take(after - 1)
        yield replace(
            rows,
            ts=grid * step,
            signed_volume=int32_volume(signed[after] - signed[before], symbol),
            volume=None if volume is None else volume[after] - volume[before],
        )


def _open_interval(frame: BookFrame, step: int) -> BookFrame:
    """The last state, with all that traded in its interval."""
    ends = -(-frame.ts // step)
    since = int(np.searchsorted(ends, ends[-1], side="left"))
    return _sum(frame, since, "input")


def _sum(frame: BookFrame, since: int, symbol: str) -> BookFrame:
    """The last row, with the volume of all rows from `since` on."""
    last = frame.take(slice(-1, None))
    total = frame.signed_volume[since:].sum(dtype=np.int64)
    last.signed_volume = int32_volume(np.array([total]), symbol)
    if frame.volume is not None:
        last.volume = np.array([frame.volume[since:].sum()])
    return last


def _cumulative(frame: BookFrame) -> tuple[np.ndarray, np.ndarray | None]:
    """Volume before each row and after the last, int64 [n + 1]."""
    signed = np.concatenate([[0], np.cumsum(frame.signed_volume, dtype=np.int64)])
    return signed, None if frame.volume is None else np.concatenate([[0], np.cumsum(frame.volume)])


def _by_volume(frames: Iterable[BookFrame], lots: int, symbol: str) -> Iterator[BookFrame]:
    held: BookFrame | None = None  # one row: the volume since the last bar
    for frame in _sessions(frames):
        if frame.volume is None:
            raise DataError(f"{symbol}: data.sample=volume:{lots} needs traded volume\nsample by event or by time")
        if held is not None and held.session[0] != frame.session[0]:
            held = None
        joined = frame if held is None else concat([held, frame])
        signed, volume = _cumulative(joined)
        assert volume is not None
        rows, start = [], 0
        while (end := int(np.searchsorted(volume, volume[start] + lots, side="left"))) <= len(joined):
            rows.append(end)
            start = end
        if rows:
            bars = joined.take(np.array(rows) - 1)
            edges = np.array([0, *rows])
            bars.signed_volume = int32_volume(np.diff(signed[edges]), symbol)
            bars.volume = np.diff(volume[edges])
            yield bars
        held = _sum(joined, start, symbol) if start < len(joined) else None
