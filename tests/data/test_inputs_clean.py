"""Cleaning rules: each named, counted, and the same however the rows are cut into chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.frames import CUTS, FakeFeed, frame, joined, same, split
from trainer.data import clean as module
from trainer.data.clean import clean
from trainer.data.frame import UNDEF
from trainer.errors import DataError

GAP = 1000


def cleaned(*frames, **kinds):
    feed = FakeFeed(list(frames), **kinds)
    return joined(list(clean(feed, GAP))), feed.info.cleaning


def test_pre_open_ends_with_the_first_uncrossed_row_after_a_trade():
    #      uncrossed, crossed, uncrossed, trade but crossed, still crossed, uncrossed, then crossed again
    bid = [10, 15, 10, 15, 15, 10, 15, 10]
    traded = [0, 0, 0, 44, 0, 3, 0, 0]
    got, counts = cleaned(frame(range(8), bid=bid, ask=[12] * 8, volume=traded, signed=traded))
    assert counts == {"pre-open": 5, "crossed": 1}
    assert got.ts.tolist() == [5, 7] and got.volume.tolist() == [3, 0]


def test_a_session_that_begins_with_trades_has_no_pre_open():
    got, counts = cleaned(frame(range(4), bid=[10, 10, 15, 10], ask=[12] * 4, volume=[0, 2, 0, 0]))
    assert counts == {"crossed": 1} and got.ts.tolist() == [0, 1, 3]


def test_each_session_may_have_a_pre_open():
    times = [0, 1, 2, 5000, 5001, 5002, 9000, 9001]
    got, counts = cleaned(
        frame(times, bid=[15, 10, 10, 15, 10, 10, 10, 10], ask=[12] * 8, volume=[0, 1, 0, 0, 0, 1, 0, 0])
    )
    assert counts == {"pre-open": 3} and got.ts.tolist() == [1, 2, 5002, 9000, 9001]
    assert got.session.tolist() == [0, 0, 1, 2, 2]


def test_without_trades_crossed_rows_are_just_crossed():
    got, counts = cleaned(frame(range(3), bid=[15, 10, 15], ask=[12] * 3, volume=[0, 0, 0]), has_trades=False)
    assert counts == {"crossed": 2} and got.ts.tolist() == [1]


def test_a_locked_book_is_kept():
    got, counts = cleaned(frame(range(2), bid=[12, 12], ask=[12, 13]), has_trades=False)
    assert counts == {} and len(got) == 2


def test_a_quiet_session_is_not_held_back_for_ever(monkeypatch):
    monkeypatch.setattr(module, "HELD_ROWS", 10)
    feed = FakeFeed([frame(range(i, i + 4), volume=np.zeros(4)) for i in range(0, 40, 4)])
    rows = clean(feed, GAP)
    next(rows)
    assert sum(map(len, rows)) == 36 and feed.info.cleaning == {}


def test_undefined_tops_are_dropped_and_their_volume_is_not_lost():
    got, counts = cleaned(
        frame(range(4), bid=[1, UNDEF, 1, 1], ask=[3, 3, 3, UNDEF], volume=[1, 2, 4, 8], signed=[-1, 2, -4, 8])
    )
    assert counts == {"undefined": 2}
    assert got.volume.tolist() == [1, 6] and got.signed_volume.tolist() == [-1, -2]


def test_duplicates():
    twice = frame([0, 1, 1, 1, 2], bid=[1, 1, 1, 2, 2], volume=[1, 5, 5, 5, 5], signed=[1, 5, 5, 5, 5])
    got, counts = cleaned(twice, has_trades=False, drop_duplicates=True)
    assert counts == {"duplicate": 1} and got.volume.tolist() == [1, 5, 5, 5]
    got, counts = cleaned(twice, has_trades=False)
    assert counts == {} and len(got) == 5
    with pytest.raises(DataError, match=r"f.csv: row 4: a second, different bar at 1970-01-01T00:00:00.000000001Z"):
        cleaned(twice, has_trades=False, drop_duplicates=True, unique_times=True)


def test_out_of_order_names_file_and_row_also_between_chunks():
    for cuts in ([], [2], [3], [1, 2]):
        with pytest.raises(DataError, match=r"f.csv: row 3: out of order: 1970-01-01T00:00:00.000000004Z comes after"):
            cleaned(*split(frame([0, 5, 4, 6]), cuts), has_trades=False)


def test_sessions_by_gap_and_by_roll():
    got, _ = cleaned(frame([0, GAP, GAP + 1, 2 * GAP + 2]), has_trades=False)
    assert got.session.tolist() == [0, 0, 0, 1]
    got, _ = cleaned(frame([0, 1]), frame([]), frame([2, 3]), has_trades=False, rolls=[1])
    assert got.session.tolist() == [0, 0, 1, 1]


def test_rows_dropped_may_leave_a_gap():
    got, counts = cleaned(frame([0, 900, 1800], bid=[1, 15, 1], ask=[12] * 3), has_trades=False)
    assert counts == {"crossed": 1} and got.session.tolist() == [0, 1]


def test_nothing_left():
    with pytest.raises(DataError, match="TEST: best bid or ask is undefined in all 2 rows"):
        cleaned(frame([0, 1], bid=[UNDEF] * 2, ask=[1, 2]))
    with pytest.raises(DataError, match=r"TEST: no row is left after cleaning \(dropped pre-open=2\)"):
        cleaned(frame([0, 1], bid=[5, 5], ask=[1, 2], volume=[0, 0]))
    with pytest.raises(DataError, match="TEST: no complete row in the input"):
        cleaned(frame([]))


@st.composite
def dirty(draw):
    n = draw(st.integers(1, 40))

    def column(values):
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    volume = column([0, 0, 0, 1, 7])
    return frame(
        np.cumsum(column([0, 1, 1, 2, GAP + 1])),
        bid=column([10, 10, 10, 15, UNDEF]),
        ask=column([12, 12, 13]),
        volume=volume,
        signed=np.multiply(volume, column([-1, 0, 1])),
    )


@settings(deadline=None, max_examples=100)
@given(dirty(), CUTS, st.booleans(), st.booleans(), st.sampled_from([3, 1000]))
def test_chunks_make_no_difference_and_every_row_is_accounted_for(whole, cuts, trades, duplicates, held):
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HELD_ROWS", held)
        for frames in ([whole], split(whole, cuts)):
            try:
                results.append(cleaned(*frames, has_trades=trades, drop_duplicates=duplicates))
            except DataError as error:
                results.append((None, str(error)))
    (one, one_counts), (other, other_counts) = results
    assert same(one, other) and one_counts == other_counts
    if one is not None:
        assert len(one) + sum(one_counts.values()) == len(whole)
        assert (one.bid_px[:, 0] <= one.ask_px[:, 0]).all() and (one.bid_px != UNDEF).all()
        assert np.isin(np.diff(one.session), (0, 1)).all() and one.session[0] == 0
        assert ((np.diff(one.ts) > GAP) <= (np.diff(one.session) == 1)).all()
