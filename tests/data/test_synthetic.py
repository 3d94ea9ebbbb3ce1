"""The synthetic market against its equations: Skellam jumps, Markov spread, and moments worked out by quadrature."""

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats

from trainer.data.frame import BookFrame, concat
from trainer.data.synthetic import (
    CHUNK,
    JUMPS,
    LAG,
    NARROW,
    PHI,
    WIDEN,
    SyntheticConfig,
    SyntheticSeries,
    is_synthetic,
    parse_synthetic,
)
from trainer.errors import UsageError


def frame(signal: float = 0.75, rows: int = 40_000, seed: int = 0, levels: int = 10) -> BookFrame:
    return concat(list(SyntheticSeries(SyntheticConfig(signal, rows, seed), levels).chunks()))


def moves(f: BookFrame) -> np.ndarray:
    """Ticks that the mid moved into each row; row 0 has none."""
    return np.diff((f.bid_px[:, 0] + f.ask_px[:, 0]) / 2, prepend=np.nan)


def t_statistics(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    x = np.column_stack([np.ones(len(y)), x])
    beta, residual = np.linalg.lstsq(x, y, rcond=None)[:2]
    covariance = np.linalg.inv(x.T @ x) * residual[0] / (len(y) - x.shape[1])
    return (beta / np.sqrt(np.diag(covariance)))[1:]


def test_without_signal_the_mid_is_a_martingale():
    found = []
    for seed in range(40):
        f = frame(0.0, 4000, seed)
        book = (f.bid_sz - f.ask_sz)[:, 0] / (f.bid_sz + f.ask_sz)[:, 0]
        d = moves(f)
        for ahead in (1, 2):
            past = [np.roll(book, k) for k in range(4)] + [np.roll(d, k) for k in range(4)] + [f.signed_volume]
            rows = slice(8, -ahead)
            found.append(t_statistics(np.roll(d, -ahead)[rows], np.column_stack(past)[rows]))
    t = np.array(found)
    assert np.abs(t.mean(0)).max() < 4 / np.sqrt(len(t))  # each regressor: mean 0 within four standard errors
    assert 0.93 < t.std() < 1.07


@pytest.mark.parametrize("signal", [0.0, 0.75])
def test_the_pressure_drives_the_move_after_next(signal):
    f = frame(signal, 200_000, 3)
    d = moves(f)
    z, w = hermegauss(60)
    strength = 10 * JUMPS * signal * np.sum(w * z * np.tanh(z)) / np.sqrt(2 * np.pi)  # E[volume_t d_{t+2}]
    for ahead in range(4):
        product = f.signed_volume[1:-4] * d[1 + ahead : len(d) - 4 + ahead]
        expected = strength * PHI ** abs(ahead - LAG)
        assert abs(product.mean() - expected) < 5 * product.std() / np.sqrt(len(product)), ahead


def test_jumps_are_skellam():
    f = frame(0.0, 100_000, 1)
    still = np.flatnonzero(np.diff(f.ask_px[:, 0] - f.bid_px[:, 0]) == 0) + 1
    jumps = moves(f)[still].astype(int)
    k = np.arange(-7, 8)
    seen = np.array([(jumps == v).sum() for v in k])
    expected = stats.skellam.pmf(k, JUMPS / 2, JUMPS / 2) * len(jumps)
    assert stats.chisquare([*seen, len(jumps) - seen.sum()], [*expected, len(jumps) - expected.sum()]).pvalue > 1e-4


def test_spread_gaps_sizes_and_volume_have_their_moments():
    f = frame(0.5, 100_000, 2)
    spread = f.ask_px[:, 0] - f.bid_px[:, 0]
    assert set(np.unique(spread)) == {1, 2}
    assert (spread[1:][spread[:-1] == 1] == 2).mean() == pytest.approx(WIDEN, rel=0.05)
    assert (spread[1:][spread[:-1] == 2] == 1).mean() == pytest.approx(NARROW, rel=0.05)
    gaps = np.concatenate([-np.diff(f.bid_px), np.diff(f.ask_px)])
    assert set(np.unique(gaps)) == {1, 2}
    assert (gaps == 2).mean() == pytest.approx(0.1, rel=0.02)
    k = np.arange(10)
    spreads = np.sqrt((0.4 * 0.85**k) ** 2 * (1 + 0.7**2) + 0.6**2)
    for sizes in (f.bid_sz, f.ask_sz):
        assert sizes.min() >= 1
        log = np.log(sizes)
        assert np.allclose(np.median(sizes, 0), 20 * (1 + 0.15 * k), rtol=0.03)
        assert np.allclose(log.std(0), spreads, rtol=0.03)
    assert f.signed_volume.std() == pytest.approx(10 * np.sqrt(1.49), rel=0.01)
    v = f.signed_volume - f.signed_volume.mean()
    assert (v[1:] * v[:-1]).mean() / 100 == pytest.approx(PHI, abs=0.02)


def test_bids_lean_with_the_pressure_and_asks_against_it():
    f = frame(0.0, 50_000, 4)
    for sizes, sign in ((f.bid_sz, 1), (f.ask_sz, -1)):
        slopes = [np.polyfit(f.signed_volume / 10, np.log(sizes[:, k]), 1)[0] for k in (0, 9)]
        assert np.allclose(slopes, [sign * 0.4 * 0.85**k / 1.49 for k in (0, 9)], atol=0.01)


def test_rows_are_the_same_whatever_the_length_and_the_levels():
    whole, short, thin = frame(rows=2 * CHUNK + 5), frame(rows=CHUNK + 1), frame(rows=CHUNK + 1, levels=3)
    assert short.bid_px.shape == (CHUNK + 1, 10) and thin.bid_px.shape == (CHUNK + 1, 3)
    for name in ("ts", "bid_px", "ask_px", "bid_sz", "ask_sz", "signed_volume", "session"):
        a, b, c = (getattr(x, name) for x in (whole, short, thin))
        assert a[: CHUNK + 1].tobytes() == b.tobytes()
        assert np.array_equal(b[:, :3] if b.ndim == 2 else b, c)
        assert a.flags.c_contiguous and c.flags.c_contiguous
        assert a.dtype == (np.int64 if name == "ts" else np.int32)


def test_one_series_a_seed_and_the_same_on_every_machine():
    a, b = frame(rows=500, seed=7), frame(rows=500, seed=8)
    assert not np.array_equal(a.bid_sz, b.bid_sz)
    first = frame(rows=4, seed=0)
    assert first.bid_px[:, 0].tolist() == GOLDEN["bid"] and first.bid_sz[:, 0].tolist() == GOLDEN["size"]
    assert first.signed_volume.tolist() == GOLDEN["volume"]
    assert np.diff(first.ts).tolist() == [1_000_000_000] * 3


GOLDEN: dict[str, list[int]] = {
    "bid": [400001, 399998, 399993, 399990],
    "size": [7, 13, 6, 20],
    "volume": [-21, -6, -5, -24],
}


def test_uri():
    assert parse_synthetic("synthetic") == SyntheticConfig(0.75, 40_000, 0)
    assert parse_synthetic("synthetic:signal=0,rows=7,seed=3") == SyntheticConfig(0.0, 7, 3)
    assert parse_synthetic(SyntheticConfig(0.1, 5, 6).uri) == SyntheticConfig(0.1, 5, 6)
    assert SyntheticSeries(parse_synthetic("synthetic:seed=0")).digest == SyntheticSeries(SyntheticConfig()).digest
    assert is_synthetic("synthetic:rows=5") and not is_synthetic("synthetic.csv")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("synthetic:sigal=0.5", r"unknown setting 'sigal' \(did you mean 'signal'\?\)"),
        ("synthetic:signal=1.5", "signal=1.5 is not a number from 0 to 1"),
        ("synthetic:signal=nan", "signal=nan is not a number"),
        ("synthetic:rows=0", "rows=0 is not a whole number from 1"),
        ("synthetic:rows=1e4", "rows=1e4 is not a whole number"),
        ("synthetic:seed=-1", "seed=-1 is not"),
        ("synthetic:seed", r"seed=\? is not"),
        ("synthetic:seed=1,seed=2", "seed is given twice"),
    ],
)
def test_bad_uri(uri, says):
    with pytest.raises(UsageError, match=says) as error:
        parse_synthetic(uri)
    assert uri in str(error.value)
