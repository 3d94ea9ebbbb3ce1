"""Bootstrap against `arch`, Sharpe forms against the papers and scipy, paths against plain loops."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from trainer.results import statistics as s

EXAMPLES = settings(max_examples=60, deadline=None)
DAY, MINUTE = s.DAY_NS, s.MINUTE_NS


def series(pnl, block=10):
    return s.Series(np.asarray(pnl, np.int64), block, "PnL per minute, not annualised", "minutes")


# -- bootstrap --


@pytest.mark.parametrize("n,block", [(167, 10), (60, 7), (50, 1), (30, 30), (23, 40)])
def test_resamples_equal_those_of_arch(n, block):
    """The same generator gives the same circular blocks, so sums and Sharpe ratios agree one by one."""
    from arch.bootstrap import CircularBlockBootstrap

    x = np.random.default_rng(1).normal(3, 10, n).round()
    ours = s.resampled_moments(x, block, 200, s.bootstrap_rng(5, 2))
    theirs = CircularBlockBootstrap(block, x, seed=s.bootstrap_rng(5, 2)).apply(
        lambda y: np.array([y.sum(), (y * y).sum()]), 200
    )
    np.testing.assert_allclose(np.column_stack(ours), theirs, rtol=1e-9, atol=1e-6)


def test_intervals_equal_those_of_arch_at_the_expanded_level():
    from arch.bootstrap import CircularBlockBootstrap

    x = np.random.default_rng(2).normal(200, 1000, 180).astype(np.int64)
    data = series(x)
    level = 1 - 2 * s.expanded_tail(0.95, data.blocks)
    bootstrap = CircularBlockBootstrap(10, x.astype(float), seed=s.bootstrap_rng(0))
    low, high = bootstrap.conf_int(np.sum, 1000, method="percentile", size=level).ravel()
    ours = s.total_interval(data, 1000, 0.95, s.bootstrap_rng(0))
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-9)

    bootstrap = CircularBlockBootstrap(10, x.astype(float), seed=s.bootstrap_rng(0))
    sharpe = bootstrap.conf_int(lambda y: y.mean() / y.std(ddof=1), 1000, method="percentile", size=level).ravel()
    ours = s.sharpe_interval(data, 1000, 0.95, s.bootstrap_rng(0))
    assert (ours.low, ours.high) == pytest.approx(tuple(sharpe), rel=1e-9)


def test_expanded_tail_is_wider_for_few_blocks_and_plain_for_many():
    z = stats.norm.ppf(s.expanded_tail(0.95, 6))
    assert z == pytest.approx(math.sqrt(6 / 5) * stats.t.ppf(0.025, 5))
    assert s.expanded_tail(0.95, 1e7) == pytest.approx(0.025, rel=1e-4)
    assert s.expanded_tail(0.95, 1) == 0.0


def test_intervals_of_few_blocks_cover_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    hits = 0
    for i in range(400):
        x = np.repeat(rng.normal(0, 1e6, 6), 10).astype(np.int64)  # fully dependent inside a block
        r = s.pooled_interval(s.block_sums(series(x)), 1000, 0.95, s.bootstrap_rng(i))
        hits += r.low <= 0 <= r.high
    assert 0.91 <= hits / 400 <= 0.99


@pytest.mark.parametrize("n", [0, 1, 16, 49])
def test_short_series_have_no_interval_but_a_reason(n):
    r = s.total_interval(series(np.arange(n)), 100, 0.95, s.bootstrap_rng(0))
    assert r.low is None and r.high is None
    assert f"{n} minutes of PnL; an interval needs 50 (5 blocks of 10)" in r.reason
    assert "eval.bootstrap_block_min" in r.reason


def test_pool_of_few_blocks_has_a_reason():
    r = s.pooled_interval(np.arange(4), 100, 0.95, s.bootstrap_rng(0))
    assert r.low is None and r.reason.startswith("4 blocks of PnL in all folds, 5 needed")


def test_streams_of_folds_and_pool_differ():
    draws = [s.bootstrap_rng(0, k).integers(2**40) for k in (0, 1, s.POOL)] + [s.bootstrap_rng(1, 0).integers(2**40)]
    assert len(set(draws)) == 4


# -- empty and constant input --


@pytest.mark.parametrize("x", [[], [0], [5], [0] * 80, [7] * 80])
def test_nothing_warns_and_nothing_is_nan_on_empty_or_constant_input(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, reason = s.sharpe_ratio(x)
        assert value is None and reason
        interval = s.sharpe_interval(series(x), 100, 0.95, s.bootstrap_rng(0))
        assert interval.low is None and interval.reason
        d = s.deflated_sharpe(x, 3)
        assert d.value is None and d.reason and (d.skew, d.kurtosis) == (0.0, 3.0)
        s.total_interval(series(x), 100, 0.95, s.bootstrap_rng(0))
        assert s.max_drawdown(np.zeros(len(x))) == 0.0
        assert s.profit_factor(np.zeros(len(x)))[0] is None
        assert s.block_sums(series(x)).sum() == sum(x)


def test_one_wild_minute_among_zeros_gives_a_finite_interval():
    x = np.zeros(100, np.int64)
    x[50] = 10**9  # many resamples are constant
    r = s.sharpe_interval(series(x), 500, 0.95, s.bootstrap_rng(0))
    assert math.isfinite(r.low) and math.isfinite(r.high)


# -- Sharpe ratio --


@pytest.mark.parametrize("trials,benchmark,expected", [(100, 0.1132, 0.9004), (46, None, 0.9505)])
def test_deflated_sharpe_of_the_papers_example(trials, benchmark, expected):
    """Bailey & Lopez de Prado 2014, "A numerical example": 5 years of daily returns, annual SR 2.5, V 1/2, skew -3,
    kurtosis 10; annual figures become daily ones by 250 days."""
    sr, variance, n = 2.5 / math.sqrt(250), 0.5 / 250, 1250
    sr0 = s.expected_max_sharpe(trials, variance)
    if benchmark:
        assert sr0 == pytest.approx(benchmark, abs=5e-5)
    assert s.probabilistic_sharpe(sr, sr0, n, -3.0, 10.0) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("trials", [2, 7, 300])
def test_deflated_sharpe_equals_the_formula_in_scipy(trials):
    x = np.random.default_rng(4).gamma(2.0, 10.0, 500) - 18.5
    sr, g3, g4 = x.mean() / x.std(ddof=1), stats.skew(x), stats.kurtosis(x, fisher=False)
    g = np.euler_gamma
    sr0 = math.sqrt(1 / 499) * (
        (1 - g) * stats.norm.ppf(1 - 1 / trials) + g * stats.norm.ppf(1 - 1 / (trials * math.e))
    )
    want = stats.norm.cdf((sr - sr0) * math.sqrt(499) / math.sqrt(1 - g3 * sr + (g4 - 1) / 4 * sr**2))
    got = s.deflated_sharpe(x, trials)
    assert got.value == pytest.approx(want, rel=1e-10) and got.benchmark == pytest.approx(sr0)
    assert (got.skew, got.kurtosis) == pytest.approx((g3, g4))


def test_expected_maximum_is_that_of_simulated_trials():
    best = np.random.default_rng(5).normal(0, 0.1, (20_000, 50)).max(axis=1).mean()
    assert s.expected_max_sharpe(50, 0.01) == pytest.approx(best, rel=0.02)


def test_one_trial_deflates_nothing_and_more_trials_deflate_more():
    x = np.random.default_rng(6).normal(0.1, 1, 400)
    values = [s.deflated_sharpe(x, k).value for k in (1, 2, 10, 1000)]
    assert s.deflated_sharpe(x, 1).benchmark == 0.0
    assert values == sorted(values, reverse=True) and len(set(values)) == 4
    assert s.deflated_sharpe(x, 10, variance=0.5).variance == "given"


# -- sampling --


def slow_minutes(ts, equity, session):
    """PnL of every minute from a session's first to its last, by plain loops."""
    out, before = [], 0
    for name in dict.fromkeys(session):
        rows = [i for i in range(len(ts)) if session[i] == name]
        for minute in range(ts[rows[0]] // MINUTE, ts[rows[-1]] // MINUTE + 1):
            inside = [i for i in rows if ts[i] // MINUTE == minute]
            now = equity[inside[-1]] if inside else before
            out.append(now - before)
            before = now
    return out


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(-9, 9), st.booleans()), min_size=1, max_size=40))
def test_minutes_equal_a_slow_count(steps):
    gaps, pnl, breaks = map(np.array, zip(*steps))
    session = np.cumsum(breaks).astype(np.int32)
    ts = 1_000 * DAY + np.cumsum(gaps * 1_000_000_000)
    equity = np.cumsum(pnl)
    got = s.binned_pnl(ts, equity, session, MINUTE, fill=True)
    assert got.tolist() == slow_minutes(ts.tolist(), equity.tolist(), session.tolist())


def test_sampling_becomes_daily_at_twenty_days():
    def sampled(days):
        ts = np.arange(days * 24, dtype=np.int64) * (DAY // 24)
        return s.pnl_series(ts, np.arange(1, len(ts) + 1), np.arange(len(ts), dtype=np.int32), 10.0)

    few, many = sampled(19), sampled(20)
    assert few.unit == "minutes" and few.block == 10 and "per minute" in few.sampling
    assert many.unit == "days" and many.block == 1 and many.pnl.tolist() == [24] * 20
    assert s.pnl_series(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), 10.0).pnl.size == 0


@EXAMPLES
@given(st.integers(0, 70), st.integers(1, 20))
def test_blocks_keep_the_sum_and_no_stub_stands_alone(n, block):
    data = series(np.arange(n), block)
    sums = s.block_sums(data)
    assert sums.sum() == data.pnl.sum()
    assert len(sums) == (0 if n == 0 else max(1, n // block + (n % block >= block / 2 and n % block > 0)))


# -- paths and trades --


@EXAMPLES
@given(st.lists(st.integers(-50, 50), max_size=40))
def test_drawdown_and_profit_factor_equal_slow_counts(steps):
    path = np.cumsum(np.array(steps, np.int64))
    full = [0, *path.tolist()]
    assert s.max_drawdown(path) == max((max(full[: i + 1]) - full[i] for i in range(len(full))), default=0)
    gains, losses = sum(x for x in steps if x > 0), -sum(x for x in steps if x < 0)
    value, reason = s.profit_factor(np.array(steps))
    assert (value == pytest.approx(gains / losses)) if losses else (value is None and reason)
    assert s.win_rate(np.array(steps)) == (sum(x > 0 for x in steps) / len(steps) if steps else None)
