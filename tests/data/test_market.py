"""The market object and the normalisation of its features."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainer.data.features import columns
from trainer.data.market import MarketMeta, fit_normalisation, synthetic_market


@settings(deadline=None, max_examples=40)
@given(arrays(np.float32, st.tuples(st.integers(1, 50), st.integers(1, 4)), elements=st.floats(-1e4, 1e4, width=32)))
def test_normalisation_is_mean_and_standard_deviation(x):
    mean, std = fit_normalisation(x, 1e-3)
    wide = x.astype(np.float64)
    assert mean.dtype == std.dtype == np.float32
    np.testing.assert_allclose(mean, wide.mean(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(std, np.maximum(wide.std(0), 1e-3), rtol=1e-5, atol=1e-4)


def test_blocks_and_large_offsets_lose_nothing():
    rng = np.random.default_rng(0)
    x = (1e4 + rng.normal(0, 1, (150_000, 2))).astype(np.float32)
    mean, std = fit_normalisation(x, 0.0)
    np.testing.assert_allclose(mean, x.mean(0, dtype=np.float64), rtol=1e-7)
    np.testing.assert_allclose(std, x.std(0, dtype=np.float64), rtol=1e-5)


def test_no_rows_no_normalisation():
    with pytest.raises(ValueError, match="at least one row"):
        fit_normalisation(np.zeros((0, 3), np.float32))


def test_only_the_rows_given_count_and_floors_hold():
    market = synthetic_market("synthetic:rows=3000")
    mean, std = market.normalisation((100, 2000))
    market.features[2000:] = 1e6
    market.features[:100] = -1e6
    again = market.normalisation((100, 2000))
    assert mean.tobytes() == again[0].tobytes() and std.tobytes() == again[1].tobytes()
    floors = np.array([c.std_floor for c in columns(10)], np.float32)
    assert (std >= floors).all()
    names = market.meta.features
    assert std[names.index("day_sin")] == 0.5 and std[names.index("log_gap")] == np.float32(0.1)


def test_a_clock_stays_in_range_in_the_window_after_the_train_slice():
    """A quarter of an hour of training, then the test window: no time feature may have left the range that was seen."""
    market = synthetic_market("synthetic:rows=2400")
    mean, std = market.normalisation((300, 1200))
    z = (market.features[1200:] - mean) / std
    for name in ("day_sin", "day_cos", "session_time"):
        assert np.abs(z[:, market.meta.features.index(name)]).max() < 1


def test_synthetic_market_shape_and_meta():
    market = synthetic_market("synthetic:rows=500,seed=2", levels=3)
    assert (len(market), market.levels, market.n_features) == (500, 3, 4 * 3 + 14)
    meta = market.meta
    assert (meta.symbol, meta.tick_size, meta.sampling, meta.schema) == ("SYNTHETIC", "0.25", "1s", "synthetic")
    assert meta.look_back == 301 and len(meta.data_digest) == 64
    assert MarketMeta.from_json(meta.to_json()) == meta
