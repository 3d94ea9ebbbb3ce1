"""Sampling equals polars' as-of join and grouping, and doesn't depend on how the rows are cut into chunks."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.frames import CUTS, frame, joined, same, split
from trainer.data.frame import BookFrame
from trainer.data.sampling import INTERVALS, coarser, resolve, sample_rows
from trainer.errors import ConfigError, DataError

MS = 1_000_000
STEP = INTERVALS["100ms"]


@st.composite
def series(draw) -> BookFrame:
    """Up to 50 rows in up to a few sessions, gaps from 0 to 1 s, some exactly on the grid."""
    gaps = draw(
        st.lists(st.sampled_from([0, 1, 30 * MS, 50 * MS, 100 * MS, 250 * MS, 1000 * MS]), min_size=1, max_size=50)
    )
    n = len(gaps)
    lots = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    signs = draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n))
    news = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    start = draw(st.sampled_from([0, 1, 99 * MS]))
    return frame(
        start + np.cumsum(gaps), signed=np.multiply(lots, signs), volume=lots, session=np.cumsum(np.equal(news, 0))
    )


def rows(frames, sample: str) -> BookFrame | None:
    return joined(list(sample_rows(frames, sample)))


@settings(deadline=None, max_examples=150)
@given(series(), st.sampled_from(["100ms", "1s", "event", "volume:7", "volume:1"]), CUTS)
def test_chunks_make_no_difference(whole, sample, cuts):
    assert same(rows(split(whole, cuts), sample), rows([whole], sample))


@settings(deadline=None, max_examples=100)
@given(series())
def test_time_rows_equal_an_as_of_join(whole):
    got = rows([whole], "100ms")
    table = pl.DataFrame(
        {
            "ts": whole.ts,
            "s": whole.session,
            "bid": whole.bid_px[:, 0],
            "signed": whole.signed_volume,
            "v": whole.volume,
        }
    ).with_columns(end=-(-pl.col("ts") // STEP) * STEP)
    expected = []
    for (session,), part in table.group_by("s", maintain_order=True):
        grid = pl.DataFrame({"end": np.arange(part["end"][0], part["end"][-1] + 1, STEP)}).set_sorted("end")
        states = grid.join_asof(part.select("ts", "bid").set_sorted("ts"), left_on="end", right_on="ts")
        sums = part.group_by("end").agg(pl.col("signed", "v").sum())
        expected.append(
            states.join(sums, on="end", how="left", maintain_order="left").fill_null(0).with_columns(s=session)
        )
    want = pl.concat(expected)
    assert got is not None
    assert got.ts.tolist() == want["end"].to_list() and got.session.tolist() == want["s"].to_list()
    assert got.bid_px[:, 0].tolist() == want["bid"].to_list()
    assert got.signed_volume.tolist() == want["signed"].to_list() and got.volume.tolist() == want["v"].to_list()


@settings(deadline=None, max_examples=100)
@given(series(), st.integers(1, 20))
def test_volume_rows_equal_a_plain_loop(whole, lots):
    expected, total, signed, last = [], 0, 0, None
    for t, session, v, s in zip(*(a.tolist() for a in (whole.ts, whole.session, whole.volume, whole.signed_volume))):
        if session != last:
            total, signed, last = 0, 0, session
        total, signed = total + v, signed + s
        if total >= lots:
            expected.append((t, session, total, signed))
            total, signed = 0, 0
    got = rows([whole], f"volume:{lots}")
    assert (
        [] if got is None else list(zip(*(a.tolist() for a in (got.ts, got.session, got.volume, got.signed_volume))))
    ) == expected


@settings(deadline=None, max_examples=50)
@given(series())
def test_nothing_traded_is_lost_and_no_row_is_early(whole):
    got = rows([whole], "100ms")
    assert got is not None
    assert got.volume.sum() == whole.volume.sum() and got.signed_volume.sum() == whole.signed_volume.sum()
    for session in np.unique(whole.session):
        mine, theirs = got.ts[got.session == session], whole.ts[whole.session == session]
        assert (np.diff(mine) == STEP).all()
        assert theirs[0] <= mine[0] < theirs[0] + STEP and theirs[-1] <= mine[-1] < theirs[-1] + STEP


def test_a_long_silence_comes_in_blocks():
    whole = frame([0, 100_000 * STEP])
    parts = list(sample_rows([whole], "100ms"))
    assert sum(map(len, parts)) == 100_001 and max(map(len, parts)) <= 1 << 16
    assert joined(parts).bid_px[:, 0].tolist() == [0] * 100_000 + [1]


def test_levels_and_counts_come_along():
    whole = frame([0, 5, 150 * MS])
    whole.bid_ct = np.array([[1], [2], [3]], np.int32)
    got = rows([whole], "100ms")
    assert got.bid_ct.tolist() == [[1], [2], [3]] and got.bid_px.tolist() == [[0], [1], [2]]


def test_auto_is_100ms_for_books_and_event_for_the_rest():
    assert resolve("auto", True, 10**12) == "100ms" and resolve("auto", False, 10**12) == "event"
    for sample in ("event", "1s", "1m", "volume:20"):
        assert resolve(sample, True, 10**12) == sample


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("10ms", "data.sample=10ms: not known.*\n.*auto, event, 100ms, 1s, 1m, volume:500"),
        ("100 ms", "did you mean '100ms'"),
        ("volume:0", "'0' is not a number of lots"),
        ("volume:", "'' is not a number of lots"),
        ("volume:-3", "'-3' is not a number of lots"),
        ("1m", "longer than the gap between sessions, data.session_gap_s=30"),
    ],
)
def test_a_bad_sampling_says_what_is_possible(sample, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        resolve(sample, True, 30 * 10**9)


def test_volume_sampling_needs_volume():
    with pytest.raises(DataError, match=r"TEST: data\.sample=volume:5 needs traded volume"):
        list(sample_rows([frame([0, 1])], "volume:5", "TEST"))


@pytest.mark.parametrize(
    "sample, times, found",
    [
        ("100ms", 1.0, "100ms"),
        ("100ms", 1.1, "1s"),
        ("100ms", 10.0, "1s"),
        ("100ms", 10.1, "1m"),
        ("1m", 1.5, None),
        ("event", 2.0, None),
        ("volume:500", 1.25, "volume:625"),
    ],
)
def test_the_finest_sampling_that_leaves_few_enough_rows(sample, times, found):
    assert coarser(sample, int(1000 * times), 1000) == found
