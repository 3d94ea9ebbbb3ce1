"""Cleaning: named rules, each with a count, while streaming. What no rule covers is an error with file and row.

    out of order   time goes back: an error
    duplicate      a row equal to the one before (tables only: a feed's equal records are events of their own)
    undefined      best bid or ask missing
    pre-open       from the start of a session to the opening uncross: orders rest without matching, the book may be
                   crossed, and nobody can trade. A session has such a phase when a crossed row comes before its first
                   trade; it ends with the first row that is not crossed once a trade has been seen. Its uncrossed rows
                   are dropped too. Needs a feed with trades.
    crossed        bid above ask anywhere else

What traded in a dropped row is added to the next row that is kept, but for duplicates (nothing happened twice) and the
pre-open (another market). A silence longer than `session_gap_s`, or a roll to another contract, starts a new session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from trainer.data.frame import UNDEF, BookFrame, Feed, RawChunk, SeriesInfo, concat
from trainer.data.volume import int32_volume, regroup
from trainer.errors import DataError

UNDECIDED, PRE_OPEN, OPEN = range(3)
HELD_ROWS = 1 << 16  # rows without a trade or a crossed book after which a session counts as open


def clean(feed: Feed, gap_ns: int) -> Iterator[BookFrame]:
    """Cleaned rows of a feed with session numbers; counts go to `feed.info.cleaning`."""
    cleaner = _Cleaner(feed, gap_ns)
    seen = False
    for chunk in feed.raw():
        for frame in cleaner.push(chunk):
            seen |= len(frame) > 0
            yield frame
    for frame in cleaner.finish():
        seen |= len(frame) > 0
        yield frame
    if not seen:
        _nothing_left(feed.info, cleaner)


def _nothing_left(info: SeriesInfo, cleaner: _Cleaner) -> None:
    if not cleaner.rows:
        raise DataError(f"{info.symbol}: no complete row in the input\ngive a file with live market data")
    if info.cleaning.get("undefined", 0) == cleaner.rows:
        raise DataError(
            f"{info.symbol}: best bid or ask is undefined in all {cleaner.rows:,} rows\n"
            "give data in which both sides are quoted"
        )
    dropped = ", ".join(f"{rule}={n:,}" for rule, n in sorted(info.cleaning.items()))
    raise DataError(f"{info.symbol}: no row is left after cleaning (dropped {dropped})\ngive data of an open market")


class _Cleaner:
    def __init__(self, feed: Feed, gap_ns: int):
        self.feed, self.info, self.gap_ns = feed, feed.info, gap_ns
        self.rows = 0
        self.last: BookFrame | None = None  # the last raw row
        # rule -> signed and total volume of the rows that it dropped since the last one it kept
        self.carried = {rule: np.zeros(2, np.int64) for rule in ("duplicate", "undefined", "crossed")}
        self.roll = False
        self.phase = UNDECIDED
        self.traded = False  # a trade was seen in this pre-open: the uncross has begun
        self.held: list[BookFrame] = []
        self.session = -1
        self.last_kept: int | None = None  # time of the last row kept in this session

    def push(self, chunk: RawChunk) -> Iterator[BookFrame]:
        frame = chunk.frame
        self.roll |= chunk.roll
        if not len(frame):
            return
        self.rows += len(frame)
        past = self.last.ts[0] if self.last is not None else frame.ts[0]
        gaps = np.diff(frame.ts, prepend=past)
        same = self._duplicates(chunk, gaps)
        self.last = frame.take(slice(-1, None))
        fresh = gaps > self.gap_ns  # the first rows of sessions
        fresh[0] |= self.roll
        self.roll = False
        edges = [0, *np.flatnonzero(fresh[1:]) + 1, len(frame)]
        for start, stop in pairwise(edges):
            if fresh[start]:
                yield from self._end_session()
            part = frame.take(slice(start, stop))
            part = self._drop(part, ~same[start:stop], "duplicate", keep_volume=False)
            undefined = (part.bid_px[:, 0] == UNDEF) | (part.ask_px[:, 0] == UNDEF)
            part = self._drop(part, ~undefined, "undefined")
            yield from self._phases(part)

    def finish(self) -> Iterator[BookFrame]:
        yield from self._end_session()

    def _duplicates(self, chunk: RawChunk, gaps: np.ndarray) -> np.ndarray:
        """Which rows repeat the one before, bool [n]. Raises DataError where time goes back."""
        frame = chunk.frame
        if (gaps < 0).any():
            at = int(np.argmax(gaps < 0))
            raise DataError(
                f"{chunk.where(int(chunk.row[at]))}: out of order: {_utc(frame.ts[at])} comes after "
                f"{_utc(frame.ts[at] - gaps[at])}\n"
                "sort the rows by time, and give files that don't overlap in time order"
            )
        same = np.zeros(len(frame), bool)
        equal_time = gaps == 0
        equal_time[0] &= self.last is not None
        if not equal_time.any() or not (self.feed.drop_duplicates or self.feed.unique_times):
            return same
        joined = concat([self.last if self.last is not None else frame.take(slice(0, 1)), frame])
        same = equal_time.copy()
        for f in fields(BookFrame):
            array = getattr(joined, f.name)
            if array is not None:
                same &= (array[1:] == array[:-1]).reshape(len(same), -1).all(axis=1)
        clash = equal_time & ~same
        if self.feed.unique_times and clash.any():
            at = int(np.argmax(clash))
            raise DataError(
                f"{chunk.where(int(chunk.row[at]))}: a second, different bar at {_utc(frame.ts[at])}\n"
                "keep one bar of a time"
            )
        return same

    def _drop(self, frame: BookFrame, keep: np.ndarray, rule: str, keep_volume: bool = True) -> BookFrame:
        """The kept rows, each with the volume of the rows dropped before it."""
        carried = self.carried[rule]
        if keep.all() and not carried.any():
            return frame
        self.info.add(rule, len(keep) - int(keep.sum()))
        counted = 1 if keep_volume else keep
        signed, carried[0] = regroup(frame.signed_volume * counted, keep, carried[0])
        kept = replace(frame.take(keep), signed_volume=int32_volume(signed, self.info.symbol))
        if frame.volume is not None:
            kept.volume, carried[1] = regroup(frame.volume * counted, keep, carried[1])
        return kept

    def _phases(self, frame: BookFrame) -> Iterator[BookFrame]:
        """Drops the pre-open and crossed rows of rows that belong to one session."""
        crossed = frame.bid_px[:, 0] > frame.ask_px[:, 0]
        if self.phase != OPEN and (not self.feed.has_trades or frame.volume is None):
            self.phase = OPEN
        if self.phase == UNDECIDED:
            if not self._decide(frame, crossed):
                return
            yield from self._release()
        start = self._pre_open(frame, crossed) if self.phase == PRE_OPEN else 0
        if start < len(frame):
            yield self._number(self._drop(frame.take(slice(start, None)), ~crossed[start:], "crossed"))

    def _decide(self, frame: BookFrame, crossed: np.ndarray) -> bool:
        """Whether it is known now if the session begins with a pre-open; rows wait until it is, HELD_ROWS at most."""
        assert frame.volume is not None
        room = HELD_ROWS - sum(map(len, self.held))
        telling = (crossed | (frame.volume > 0))[:room]
        if not telling.any() and len(frame) < room:
            self.held.append(frame)
            return False
        self.phase = PRE_OPEN if telling.any() and crossed[np.argmax(telling)] else OPEN
        if self.phase == PRE_OPEN:
            self.info.add("pre-open", sum(map(len, self.held)))
            self.held.clear()
        return True

    def _pre_open(self, frame: BookFrame, crossed: np.ndarray) -> int:
        """The first row after the opening uncross; those before it are dropped."""
        assert frame.volume is not None
        matched = np.logical_or.accumulate(frame.volume > 0) | self.traded
        opened = matched & ~crossed
        start = int(np.argmax(opened)) if opened.any() else len(frame)
        self.traded |= bool(len(frame) and matched[-1])
        self.info.add("pre-open", start)
        if opened.any():
            self.phase = OPEN
        return start

    def _release(self) -> Iterator[BookFrame]:
        for frame in self.held:
            yield self._number(frame)
        self.held.clear()

    def _end_session(self) -> Iterator[BookFrame]:
        yield from self._release()
        self.phase, self.traded = UNDECIDED, False
        for carried in self.carried.values():
            carried[:] = 0
        self.last_kept = None

    def _number(self, frame: BookFrame) -> BookFrame:
        """Session numbers; dropped rows may have left a silence long enough to part two sessions."""
        if not len(frame):
            return frame
        unlimited = (frame.bid_sz == 0) & (frame.bid_px != UNDEF) | (frame.ask_sz == 0) & (frame.ask_px != UNDEF)
        if unlimited.any():
            self.info.note("sizes of zero or unknown are taken as unlimited")
        last = self.last_kept
        jumps = np.diff(frame.ts, prepend=frame.ts[0] if last is None else last) > self.gap_ns
        jumps[0] |= last is None
        session = self.session + np.cumsum(jumps)
        self.session, self.last_kept = int(session[-1]), int(frame.ts[-1])
        return replace(frame, session=session.astype(np.int32))


def _utc(ns: int) -> str:
    return f"{np.datetime64(int(ns), 'ns')}Z"
