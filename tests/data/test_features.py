"""Features: each column against a slow NumPy reference, and the three promises: causal, chunk-free, session-bound."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.features import (
    DEPTHS,
    FLOW_HALF_LIFE,
    VOLATILITY_HALF_LIVES,
    FeatureStream,
    columns,
    look_back,
)
from trainer.data.frame import UNDEF, BookFrame
from trainer.errors import DataError

ROWS = 900


def random_frame(seed: int = 0, rows: int = ROWS, levels: int = 10, sessions: int = 3) -> BookFrame:
    """A book that walks, with missing deep levels, sizes of 0, equal times and several sessions."""
    rng = np.random.default_rng(seed)
    bid = 20_000 + np.cumsum(rng.integers(-2, 3, rows))
    ask = bid + rng.integers(1, 4, rows)
    steps = np.cumsum(rng.integers(1, 4, (2, rows, levels)), axis=2) - 1
    bid_px, ask_px = bid[:, None] - steps[0] + steps[0, :, :1], ask[:, None] + steps[1] - steps[1, :, :1]
    depth = np.arange(levels)
    for px in (bid_px, ask_px):
        px[depth >= rng.integers(1, levels + 4, rows)[:, None]] = UNDEF
    sizes = rng.poisson(3, (2, rows, levels)) * rng.integers(0, 30, (2, rows, levels))
    sizes[:, rng.random(rows) < 0.1] = 0
    cuts = np.sort(rng.choice(np.arange(1, rows), sessions - 1, replace=False))
    session = np.searchsorted(cuts, np.arange(rows), side="right")
    gaps = rng.integers(0, 400_000_000, rows) * (rng.random(rows) > 0.2) + 7_200_000_000_000 * np.isin(
        np.arange(rows), cuts
    )
    return BookFrame(
        ts=1_704_205_800_000_000_000 + np.cumsum(gaps),
        bid_px=bid_px.astype(np.int32),
        ask_px=ask_px.astype(np.int32),
        bid_sz=np.where(bid_px == UNDEF, 0, sizes[0]).astype(np.int32),
        ask_sz=np.where(ask_px == UNDEF, 0, sizes[1]).astype(np.int32),
        signed_volume=rng.integers(-50, 51, rows).astype(np.int32),
        session=session.astype(np.int32),
    )


def whole(frame: BookFrame) -> np.ndarray:
    return FeatureStream(frame.bid_px.shape[1]).push(frame)


def symlog(x):
    return np.sign(x) * np.log1p(np.abs(x))


def weighted_means(x: np.ndarray, half_life: float) -> np.ndarray:
    """Weights 2^(-age / half-life) over the rows 1 .. t, normalised: O(n^2), as the definition reads; 0 at row 0."""
    out = np.zeros(len(x))
    for t in range(1, len(x)):
        weight = 0.5 ** (np.arange(t)[::-1] / half_life)
        out[t] = np.sum(weight * x[1 : t + 1]) / weight.sum()
    return out


def filled(px: np.ndarray, away: int) -> np.ndarray:
    px = px.astype(np.int64).copy()
    for k in range(1, px.shape[1]):
        px[:, k] = np.where(px[:, k] == UNDEF, px[:, k - 1] + away, px[:, k])
    return px


def reference(f: BookFrame) -> dict[str, np.ndarray]:
    """Every column of one session, in float64."""
    bid_px, ask_px = filled(f.bid_px, -1), filled(f.ask_px, 1)
    bid, ask, levels = bid_px[:, 0], ask_px[:, 0], bid_px.shape[1]
    bq, aq = f.bid_sz.astype(np.int64), f.ask_sz.astype(np.int64)
    mid = (bid + ask) / 2
    out = {}
    for k in range(levels):
        out[f"bid_px_{k:02d}"], out[f"ask_px_{k:02d}"] = bid_px[:, k] - mid, ask_px[:, k] - mid
        out[f"bid_sz_{k:02d}"], out[f"ask_sz_{k:02d}"] = np.log(1 + bq[:, k]), np.log(1 + aq[:, k])
    out["spread"] = ask - bid
    both = np.maximum(bq[:, 0] + aq[:, 0], 1)
    out["microprice"] = np.where(bq[:, 0] + aq[:, 0] > 0, (bid * aq[:, 0] + ask * bq[:, 0]) / both - mid, 0)
    for depth in DEPTHS:
        if depth <= levels:
            b, a = bq[:, :depth].sum(1), aq[:, :depth].sum(1)
            out[f"imbalance_{depth}"] = (b - a) / np.maximum(b + a, 1)
    e = np.zeros(len(bid))
    for t in range(1, len(bid)):
        e[t] += bq[t, 0] * (bid[t] >= bid[t - 1]) - bq[t - 1, 0] * (bid[t] <= bid[t - 1])
        e[t] += aq[t - 1, 0] * (ask[t] >= ask[t - 1]) - aq[t, 0] * (ask[t] <= ask[t - 1])
    flow = f.signed_volume.astype(float)
    flow[0] = 0
    out["ofi"], out["flow"] = symlog(e), symlog(flow)
    out[f"ofi_ewma_{FLOW_HALF_LIFE}"] = symlog(weighted_means(e, FLOW_HALF_LIFE))
    out["move"] = symlog(np.diff(mid, prepend=mid[0]))
    squares = np.diff(mid, prepend=mid[0]) ** 2
    for h in VOLATILITY_HALF_LIVES:
        out[f"volatility_{h}"] = np.sqrt(weighted_means(squares, h))
    out["log_gap"] = np.log1p(np.diff(f.ts, prepend=f.ts[0]) / 1e6)
    day = (
        2 * np.pi * (f.ts - f.ts.astype("datetime64[ns]").astype("datetime64[D]").astype("datetime64[ns]").astype(int))
    )
    out["day_sin"], out["day_cos"] = np.sin(day / 86400e9), np.cos(day / 86400e9)
    out["session_time"] = np.log1p((f.ts - f.ts[0]) / 60e9)
    return out


@pytest.mark.parametrize("levels", [1, 3, 5, 10])
def test_every_column_equals_its_slow_reference(levels):
    f = random_frame(levels, levels=levels)
    got = whole(f)
    names = [c.name for c in columns(levels)]
    assert got.shape == (ROWS, len(names)) and got.dtype == np.float32
    for s in np.unique(f.session):
        rows = np.flatnonzero(f.session == s)
        want = reference(f.take(rows))
        assert set(want) == set(names)
        for j, name in enumerate(names):
            np.testing.assert_allclose(got[rows, j], want[name], rtol=2e-6, atol=2e-6, err_msg=name)


def test_the_table():
    assert len(columns(10)) == 56
    assert [len(columns(levels)) for levels in (1, 4, 5)] == [18, 30, 35]
    for levels in range(1, 11):
        table = columns(levels)
        assert len({c.name for c in table}) == len(table)
        assert all(c.formula and c.std_floor > 0 for c in table)
        assert look_back(levels) == 10 * max(VOLATILITY_HALF_LIVES) + 1


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 50), st.lists(st.integers(1, ROWS - 1), max_size=8))
def test_chunks_never_change_a_bit(seed, cuts):
    f = random_frame(seed)
    stream, edges = FeatureStream(10), [0, *sorted(cuts), ROWS]
    parts = [stream.push(f.take(slice(a, b))) for a, b in pairwise(edges)]
    assert np.concatenate(parts).tobytes() == whole(f).tobytes()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 50), st.integers(1, ROWS - 1))
def test_altering_the_future_changes_no_earlier_bit(seed, cut):
    f, other = random_frame(seed), random_frame(seed + 1000)
    spoilt = f.map(np.copy)
    for name in ("ts", "bid_px", "ask_px", "bid_sz", "ask_sz", "signed_volume", "session"):
        getattr(spoilt, name)[cut:] = getattr(other, name)[cut:]
    before, after = whole(f), whole(spoilt)
    assert before[:cut].tobytes() == after[:cut].tobytes()
    assert not np.array_equal(before[cut:], after[cut:])


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 50))
def test_a_session_knows_nothing_of_the_one_before(seed):
    f = random_frame(seed)
    features = whole(f)
    for s in np.unique(f.session):
        rows = np.flatnonzero(f.session == s)
        assert whole(f.take(rows)).tobytes() == features[rows].tobytes()


def test_a_column_reads_no_further_back_than_its_table_says():
    """Rows before t - look_back are altered. An EWMA may keep 2^-10 of what they held; all else must not move a bit."""
    f, other, t = random_frame(1, sessions=1), random_frame(2, sessions=1), ROWS - 1
    clock = {"day_sin", "day_cos", "session_time"}
    for j, column in enumerate(columns(10)):
        spoilt = f.map(np.copy)
        for name in ("bid_px", "ask_px", "bid_sz", "ask_sz", "signed_volume"):
            getattr(spoilt, name)[: t - column.look_back] = getattr(other, name)[: t - column.look_back]
        a, b = whole(f)[t, j], whole(spoilt)[t, j]
        if column.look_back <= 1:
            assert a == b, column.name
        else:
            assert column.name not in clock
            assert abs(a - b) < 0.02, column.name
            near = f.map(np.copy)
            near.bid_px[t - 1, 0] -= 5
            assert whole(near)[t, j] != a  # and it does read back


def test_nothing_is_ever_nan_or_infinite():
    f = random_frame(3)
    f.bid_sz[:100], f.ask_sz[100:200] = 2**31 - 1, 2**31 - 1
    f.bid_px[200:300, 1:], f.ask_px[250:350, 1:] = UNDEF, UNDEF
    f.bid_px[400:420, 0], f.ask_px[400:420, 0] = -(2**31) + 1, 2**31 - 1
    f.signed_volume[500:600:2], f.signed_volume[501:600:2] = 2**31 - 1, -(2**31)
    f.ts[700:800] = f.ts[700]
    f.ts[800:] -= 10**15
    assert np.isfinite(whole(f)).all()


def test_a_row_without_a_best_price_is_refused_with_its_number():
    f, stream = random_frame(4, rows=50), FeatureStream(10)
    stream.push(f)
    f.ask_px[7, 0] = UNDEF
    with pytest.raises(DataError, match="row 57 of the series has no best bid or no best ask"):
        stream.push(f)


def test_an_empty_chunk_changes_nothing():
    f, stream = random_frame(5), FeatureStream(10)
    stream.push(f.take(slice(0, 300)))
    assert stream.push(f.take(slice(0, 0))).shape == (0, 56)
    assert stream.push(f.take(slice(300, None))).tobytes() == whole(f)[300:].tobytes()
