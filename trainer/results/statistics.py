"""Statistics of a PnL series: block bootstrap, Sharpe and its deflated form, drawdown, profit factor.

Nothing here is annualised. Every function accepts empty and constant input: what can't be said is None with a reason.

Sources: Politis & Romano 1992 (circular blocks); Hesterberg 2015, section 5.4 (expanded percentile interval);
Bailey & Lopez de Prado 2012 (probabilistic Sharpe ratio) and 2014 (deflated Sharpe ratio).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from kernels.philox import KEY1, Purpose

MIN_BLOCKS = 5  # fewer say nothing about spread: the t quantile then lies outside what resampling can reach
MINUTE_NS = 60_000_000_000
DAY_NS = 86_400_000_000_000
MIN_DAYS = 20  # from here on PnL is sampled by UTC day
POOL = 2**32 - 1
EULER_GAMMA = 0.5772156649015329
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A two-sided interval, or None twice and the reason."""

    low: float | None
    high: float | None
    reason: str = ""


@dataclass(frozen=True)
class Series:
    """PnL per sampling interval. `pnl` int64 [n], 1/1000 tick; `block` in samples; `sampling` says what a sample is."""

    pnl: np.ndarray
    block: int
    sampling: str
    unit: str  # "minutes" or "days"

    @property
    def blocks(self) -> float:
        return len(self.pnl) / self.block

    def lack(self) -> str:
        """Why there can be no interval, with what to do; "" when there can."""
        if self.blocks >= MIN_BLOCKS:
            return ""
        need = MIN_BLOCKS * self.block
        return (
            f"{len(self.pnl)} {self.unit} of PnL; an interval needs {need} ({MIN_BLOCKS} blocks of {self.block}): "
            "give more rows a fold, or lower eval.bootstrap_block_min"
        )


# -- sampling --


def binned_pnl(ts: np.ndarray, equity: np.ndarray, session: np.ndarray, width_ns: int, fill: bool) -> np.ndarray:
    """Change of equity per time bin. ts int64 [N] ns ascending, equity int64 [N] cumulative from 0, session int32 [N].

    Bins are aligned to UTC. With `fill`, a bin without rows inside a session counts as 0; bins between sessions don't
    exist. Returns int64 [bins]; the sum is equity[-1].
    """
    if len(ts) == 0:
        return np.zeros(0, np.int64)
    key = ts // width_ns
    last = np.flatnonzero(np.append((key[1:] != key[:-1]) | (session[1:] != session[:-1]), True))
    pnl = np.diff(equity[last].astype(np.int64), prepend=np.int64(0))
    if not fill:
        starts = np.flatnonzero(np.append(True, key[last][1:] != key[last][:-1]))
        return np.add.reduceat(pnl, starts)
    step = np.diff(key[last], prepend=key[last][0])
    step[1:][session[last][1:] != session[last][:-1]] = 1  # a new session starts the next bin
    out = np.zeros(int(step.sum()) + 1, np.int64)
    np.add.at(out, np.cumsum(step), pnl)
    return out


def pnl_series(ts: np.ndarray, equity: np.ndarray, session: np.ndarray, block_min: float) -> Series:
    """1-minute PnL with blocks of `block_min` minutes; daily with blocks of one day where there are 20 days."""
    daily = binned_pnl(ts, equity, session, DAY_NS, fill=False)
    if len(daily) >= MIN_DAYS:
        return Series(daily, 1, "PnL per UTC day, not annualised", "days")
    pnl = binned_pnl(ts, equity, session, MINUTE_NS, fill=True)
    return Series(pnl, max(1, round(block_min)), "PnL per minute, not annualised", "minutes")


def block_sums(series: Series) -> np.ndarray:
    """PnL of consecutive blocks, int64 [k]; a rest shorter than half a block joins the block before it."""
    n, b = len(series.pnl), series.block
    if n == 0:
        return np.zeros(0, np.int64)
    starts = np.arange(0, n, b)
    if len(starts) > 1 and n - starts[-1] < b / 2:
        starts = starts[:-1]
    return np.add.reduceat(series.pnl, starts)


# -- bootstrap --


def bootstrap_rng(seed: int, stream: int = 0) -> np.random.Generator:
    """Draws for resampling, keyed like every other draw of a run. `stream` tells folds apart, POOL is all of them."""
    key = np.array([(KEY1 << 32) | seed, (int(Purpose.BOOTSTRAP) << 32) | stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def resampled_moments(
    x: np.ndarray, block: int, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sum and sum of squares of `samples` circular block resamples of x [n], each of n values (the last block is cut).

    Returns two float64 [samples]. Works on block sums, so memory is samples * n / block.
    """
    x = np.asarray(x, np.float64)
    n = len(x)
    if n == 0:
        return np.zeros(samples), np.zeros(samples)
    count = -(-n // block)
    tail = n - (count - 1) * block
    starts = rng.integers(n, size=(samples, count))
    sums = []
    for values in (x, x * x):
        wrapped = np.concatenate([[0.0], np.cumsum(np.resize(values, n + block))])
        whole = wrapped[block : block + n] - wrapped[:n]
        cut = wrapped[tail : tail + n] - wrapped[:n]
        sums.append(whole[starts[:, :-1]].sum(axis=1) + cut[starts[:, -1]])
    return sums[0], sums[1]


def expanded_tail(confidence: float, blocks: float) -> float:
    """Tail probability at which to cut the bootstrap distribution so that few blocks still cover: z = sqrt(k/(k-1)) t.

    The plain percentile interval of k blocks is too narrow by sqrt((k-1)/k) and by t/z (Hesterberg 2015).
    """
    from scipy.special import stdtrit

    tail = (1.0 - confidence) / 2.0
    if blocks <= 1:
        return 0.0
    t = float(stdtrit(blocks - 1.0, tail))
    return _NORMAL.cdf(math.sqrt(blocks / (blocks - 1.0)) * t)


def percentile_interval(values: np.ndarray, confidence: float, blocks: float) -> Interval:
    tail = expanded_tail(confidence, blocks)
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def total_interval(series: Series, samples: int, confidence: float, rng: np.random.Generator) -> Interval:
    """Interval of the total PnL, in the series' unit."""
    reason = series.lack()
    if reason:
        return Interval(None, None, reason)
    total, _ = resampled_moments(series.pnl, series.block, samples, rng)
    return percentile_interval(total, confidence, series.blocks)


def sharpe_interval(series: Series, samples: int, confidence: float, rng: np.random.Generator) -> Interval:
    """Interval of the Sharpe ratio per sample."""
    reason = series.lack() or sharpe_ratio(series.pnl)[1]
    if reason:
        return Interval(None, None, reason)
    x = np.asarray(series.pnl, np.float64)
    centre, n = x.mean(), len(x)
    total, squares = resampled_moments(x - centre, series.block, samples, rng)
    variance = np.maximum(squares - total * total / n, 0.0) / (n - 1)
    sd = np.sqrt(variance)
    ratio = np.divide(total / n + centre, sd, out=np.zeros(samples), where=sd > 1e-9 * np.abs(x).max())
    return percentile_interval(ratio, confidence, series.blocks)


def pooled_interval(blocks: np.ndarray, samples: int, confidence: float, rng: np.random.Generator) -> Interval:
    """Interval of the sum over the blocks of all folds [k], drawn with replacement across folds.

    Drawing across folds, not within each, lets a fold that lost show as spread.
    """
    k = len(blocks)
    if k < MIN_BLOCKS:
        said = f"{k} block{'' if k == 1 else 's'} of PnL in all folds, {MIN_BLOCKS} needed"
        return Interval(None, None, f"{said}: give more rows, or lower eval.bootstrap_block_min")
    total, _ = resampled_moments(blocks, 1, samples, rng)
    return percentile_interval(total, confidence, k)


# -- Sharpe ratio --


def sharpe_ratio(x: Any) -> tuple[float | None, str]:
    """mean / standard deviation (ddof 1) per sample of x, or None with the reason."""
    x = np.asarray(x, np.float64)
    if len(x) < 2:
        return None, f"{len(x)} samples of PnL; a Sharpe ratio needs 2"
    sd = float(x.std(ddof=1))
    if sd <= 1e-12 * float(np.abs(x).max()):
        return None, "PnL does not vary"
    return float(x.mean()) / sd, ""


def moments(x: Any) -> tuple[float, float]:
    """Skewness and kurtosis (3 for a normal), population moments; (0, 3) where x does not vary."""
    x = np.asarray(x, np.float64)
    if sharpe_ratio(x)[0] is None:
        return 0.0, 3.0
    z = (x - x.mean()) / x.std()
    return float((z**3).mean()), float((z**4).mean())


def probabilistic_sharpe(sr: float, benchmark: float, n: int, skew: float, kurtosis: float) -> float:
    """P(true Sharpe > benchmark). All ratios per sample, n samples (Bailey & Lopez de Prado 2012, equation 11)."""
    variance = 1.0 - skew * sr + (kurtosis - 1.0) / 4.0 * sr * sr
    # kurtosis >= 1 + skew^2 keeps it at or above 0; rounding may not
    return _NORMAL.cdf((sr - benchmark) * math.sqrt(n - 1.0) / math.sqrt(max(variance, 1e-12)))


def expected_max_sharpe(trials: int, variance: float) -> float:
    """Expected largest Sharpe of `trials` without skill, given the variance between trials (2014, equation 1).

    One trial selects nothing: 0.
    """
    if trials <= 1:
        return 0.0
    high = _NORMAL.inv_cdf(1.0 - 1.0 / trials)
    higher = _NORMAL.inv_cdf(1.0 - 1.0 / (trials * math.e))
    return math.sqrt(variance) * ((1.0 - EULER_GAMMA) * high + EULER_GAMMA * higher)


@dataclass(frozen=True)
class Deflated:
    """`value` = P(true Sharpe > `benchmark`), the best Sharpe that `trials` skill-less tries would show."""

    value: float | None
    benchmark: float | None
    skew: float
    kurtosis: float
    variance: str
    reason: str = ""


def deflated_sharpe(x: Any, trials: int, variance: float | None = None) -> Deflated:
    """Deflated Sharpe ratio of PnL samples x (2014, equation 2).

    `variance` of the Sharpe ratios across trials; None: 1 / (n - 1), that of n samples without skill.
    """
    x = np.asarray(x, np.float64)
    sr, reason = sharpe_ratio(x)
    said = "given" if variance is not None else "1 / (samples - 1), a Sharpe ratio's variance without skill"
    skew, kurtosis = moments(x)
    if sr is None:
        return Deflated(None, None, skew, kurtosis, said, reason)
    benchmark = expected_max_sharpe(trials, 1.0 / (len(x) - 1) if variance is None else variance)
    return Deflated(probabilistic_sharpe(sr, benchmark, len(x), skew, kurtosis), benchmark, skew, kurtosis, said)


# -- paths and trades --


def drawdown(equity: np.ndarray) -> np.ndarray:
    """Distance below the running peak, >= 0, in equity's unit. The account starts at 0, which is the first peak."""
    equity = np.asarray(equity)
    return np.maximum(np.maximum.accumulate(equity), 0) - equity if len(equity) else equity


def max_drawdown(equity: np.ndarray) -> float:
    depth = drawdown(equity)
    return float(depth.max()) if len(depth) else 0.0


def profit_factor(net: np.ndarray) -> tuple[float | None, str]:
    """Sum of gains / sum of losses over trades, or None with the reason."""
    net = np.asarray(net, np.float64)
    loss = -float(net[net < 0].sum())
    if len(net) == 0:
        return None, "no trades"
    if loss == 0.0:
        return None, "no losing trade"
    return float(net[net > 0].sum()) / loss, ""


def win_rate(net: np.ndarray) -> float | None:
    """Share of trades with net PnL > 0 (zero is a loss); None without trades."""
    return float((np.asarray(net) > 0).mean()) if len(net) else None
