"""Windows gathered and normalised against a loop over rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gather_windows import KERNEL
from trainer.device.base import NumpyDevice


def arrays(seed, R, K, F, N=50, real=np.float32, first=0, after=0):
    rng = np.random.default_rng(seed)
    return {
        "rows": rng.integers(K - 1, N, R).astype(np.int32),
        "features": rng.normal(0, 8, (N, F)).astype(np.float32),
        "mean": rng.normal(0, 1, F).astype(np.float32),
        "std": rng.uniform(0.1, 3, F).astype(np.float32),
        "ts_gap": rng.random(N).astype(np.float32),
        "first": first,
        "x": np.full((R, K, first + F + after), np.nan, real),
        "ts": np.full(R, np.nan, real),
    }


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    R=st.integers(1, 9),
    K=st.integers(1, 8),
    F=st.integers(1, 5),
    real=st.sampled_from([np.float32, np.float64]),
    first=st.integers(0, 3),
    after=st.integers(0, 3),
)
def test_equals_a_loop_over_rows(seed, R, K, F, real, first, after):
    a = arrays(seed, R, K, F, real=real, first=first, after=after)
    NumpyDevice().launch(KERNEL, *a.values())
    for r, row in enumerate(a["rows"]):
        assert a["ts"][r] == a["ts_gap"][row]
        for k in range(K):
            for f in range(F):
                z = (float(a["features"][row - K + 1 + k, f]) - float(a["mean"][f])) / float(a["std"][f])
                assert a["x"][r, k, first + f] == pytest.approx(min(max(z, -10.0), 10.0), rel=1e-5, abs=1e-6)
            assert np.isnan(a["x"][r, k, :first]).all()
            assert a["x"][r, k, first + F :].tolist() == [1, 0, 0][:after]


def test_outliers_are_clipped_at_ten():
    a = arrays(0, 2, 3, 2)
    a["features"][...] = 1e6
    a["features"][:, 1] = -1e6
    NumpyDevice().launch(KERNEL, *a.values())
    assert (a["x"][..., 0] == 10).all() and (a["x"][..., 1] == -10).all()


def test_nothing_after_the_row_is_read():
    a, b = arrays(1, 4, 5, 3), arrays(1, 4, 5, 3)
    latest = int(a["rows"].max())
    b["features"][latest + 1 :] = np.nan
    b["ts_gap"][latest + 1 :] = np.nan
    for table in (a, b):
        NumpyDevice().launch(KERNEL, *table.values())
    assert np.array_equal(a["x"], b["x"]) and np.array_equal(a["ts"], b["ts"])
