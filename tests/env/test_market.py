"""Fill rows, sessions, gaps and labels against definitions spelled out row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.env.books import UNDEF, norm_of, random_market, small_config
from trainer.device.base import NumpyDevice
from trainer.device.fields import allocate
from trainer.env.market import aux_labels, fill_rows, market_arrays, market_fields, session_bounds, time_gaps
from trainer.errors import DataError

MS = 1_000_000


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.integers(0, 12), min_size=1, max_size=60), latency=st.sampled_from([0.0, 0.5, 5.0, 20.0]))
def test_fill_row_is_the_first_row_late_enough(steps, latency):
    ts = np.cumsum(np.array(steps, np.int64)) * MS
    for t, got in enumerate(fill_rows(ts, latency)):
        late = [r for r in range(t + 1, len(ts)) if ts[r] >= ts[t] + latency * MS]
        assert got == (late[0] if late else len(ts))


def test_an_order_never_fills_within_the_moment_of_its_decision():
    ts = np.array([0, 0, 0, 7, 7, 20]) * MS
    assert fill_rows(ts, 5.0).tolist() == [3, 3, 3, 5, 5, 6]
    assert fill_rows(ts, 0.0).tolist() == [1, 2, 3, 4, 5, 6]


def test_latency_in_rows_ignores_the_clock():
    assert fill_rows(np.zeros(4, np.int64), 5.0, latency_rows=2).tolist() == [2, 3, 4, 4]


def test_session_bounds():
    first, last = session_bounds(np.array([4, 4, 5, 7, 7, 7]))
    assert first.tolist() == [0, 0, 2, 3, 3, 3] and last.tolist() == [1, 1, 2, 5, 5, 5]


def test_time_gaps_are_relative_to_the_median_of_the_train_rows():
    ts = np.array([0, 10, 20, 40, 1000, 1010, 1110])
    first = np.array([0, 0, 0, 0, 4, 4, 4])
    np.testing.assert_allclose(np.expm1(time_gaps(ts, first)), [1, 1, 1, 2, 1, 1, 10], rtol=1e-6)
    # Fitted on the first four rows only, a later row can't move an earlier one.
    moved = ts + np.array([0, 0, 0, 0, 0, 500, 900])
    fit = (0, 4)
    assert (time_gaps(ts, first, fit)[:5] == time_gaps(moved, first, fit)[:5]).all()


def test_time_gaps_without_any_gap():
    assert np.isfinite(time_gaps(np.zeros(3, np.int64), np.zeros(3, np.int32))).all()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 30))
def test_aux_labels(seed, rows):
    market = random_market(seed, rows=200)
    bid, ask = market.bid_px[:, 0].tolist(), market.ask_px[:, 0].tolist()
    _, last = session_bounds(market.session)
    got = aux_labels(np.add(bid, ask), np.subtract(ask, bid), last, rows)
    for t in range(200):
        if t + rows > last[t]:
            assert got[t] == -1
            continue
        move = (bid[t + rows] + ask[t + rows]) / 2 - (bid[t] + ask[t]) / 2
        dead = (ask[t] - bid[t]) / 2
        assert got[t] == (2 if move > dead else 0 if move < -dead else 1)


def test_fields_hold_the_arrays():
    market, cfg = random_market(3), small_config()
    arrays = market_arrays(market, cfg, norm_of(market))
    store = allocate(NumpyDevice(), market_fields(market, cfg, norm_of(market)))
    for name, array in arrays.items():
        assert store[f"market.{name}"].dtype == array.dtype and (store[f"market.{name}"] == array).all()
        assert store.fields[f"market.{name}"].kind == "data"
    assert (arrays["mid2"] == market.bid_px[:, 0] + market.ask_px[:, 0]).all()


def test_a_constant_feature_is_not_divided_by_zero():
    market = random_market(3)
    mean, std = norm_of(market)
    std = std * 0
    assert (market_arrays(market, small_config(), (mean, std))["std"] == 1).all()


def test_one_sided_row_is_refused():
    market = random_market(3)
    market.ask_px[17, 0] = UNDEF
    with pytest.raises(DataError, match=r"row 17 .* no best ask \(1 such rows\)"):
        market_arrays(market, small_config(), norm_of(market))
