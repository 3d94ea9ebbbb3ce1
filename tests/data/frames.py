"""Small frames for tests of cleaning and sampling."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from trainer.data.frame import BookFrame, RawChunk, SeriesInfo, concat


def frame(ts, bid=None, ask=None, signed=None, volume=None, session=None) -> BookFrame:
    """One level a side; bid = row number and ask = bid + 2 unless given."""
    n = len(ts)
    bid = np.arange(n) if bid is None else np.asarray(bid)
    ask = bid + 2 if ask is None else np.asarray(ask)
    signed = np.zeros(n) if signed is None else np.asarray(signed)
    return BookFrame(
        ts=np.asarray(ts, np.int64),
        bid_px=bid.astype(np.int32)[:, None],
        ask_px=ask.astype(np.int32)[:, None],
        bid_sz=np.ones((n, 1), np.int32),
        ask_sz=np.ones((n, 1), np.int32),
        signed_volume=signed.astype(np.int32),
        session=np.zeros(n, np.int32) if session is None else np.asarray(session, np.int32),
        volume=None if volume is None else np.asarray(volume, np.int64),
    )


def split(whole: BookFrame, cuts: list[int]) -> list[BookFrame]:
    """The same rows in pieces; pieces may be empty."""
    edges = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    return [whole.take(slice(a, b)) for a, b in pairwise(edges)]


def joined(frames) -> BookFrame | None:
    frames = [f for f in frames if len(f)]
    return concat(frames) if frames else None


def same(one: BookFrame | None, other: BookFrame | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = [(getattr(one, n), getattr(other, n)) for n in one.__dataclass_fields__]
    return all((a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b)) for a, b in arrays)


class FakeFeed:
    """A feed of the given frames."""

    bar_ns = 0

    def __init__(self, frames, has_trades=True, unique_times=False, drop_duplicates=False, rolls=()):
        self.frames, self.rolls = frames, set(rolls)
        self.has_trades, self.is_book = has_trades, True
        self.unique_times, self.drop_duplicates = unique_times, drop_duplicates
        self.info = SeriesInfo("TEST", "0.25", schema="test")

    def raw(self):
        row = 1
        for i, part in enumerate(self.frames):
            yield RawChunk(part, np.arange(row, row + len(part)), lambda r: f"f.csv: row {r}", i in self.rolls)
            row += len(part)


CUTS = st.lists(st.integers(0, 60), max_size=6)
