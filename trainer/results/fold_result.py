"""What one fold has to show: `fold_result.json`, `trades.parquet`, `curve.parquet`.

Figures that can't be computed are null with a reason beside them; a NaN can't be stored. PnL is in ticks (parquet
`equity`, `fee_paid`, `spread_paid`: int64 in 1/1000 tick), times are ns UTC, no Sharpe ratio is annualised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from kernels.env_step import MILLI
from kernels.heads import N_ACTIONS
from trainer.config import EvalConfig
from trainer.errors import DataError
from trainer.files import write_atomic, write_json
from trainer.results.eval_run import ACTION_NAMES, ENDS, EvalRun, Lane, Trades, build_trades
from trainer.results.statistics import (
    Series,
    block_sums,
    bootstrap_rng,
    deflated_sharpe,
    max_drawdown,
    pnl_series,
    profit_factor,
    sharpe_interval,
    sharpe_ratio,
    total_interval,
    win_rate,
)

if TYPE_CHECKING:
    import polars as pl

FOLD_RESULT, TRADES, CURVE = "fold_result.json", "trades.parquet", "curve.parquet"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Estimate(_Frozen):
    """A figure with its bootstrap interval; what is null has its reason."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


class Windows(_Frozen):
    """Rows [first, stop) of the series and their times, ns UTC (first row, last row)."""

    train_rows: tuple[int, int]
    test_rows: tuple[int, int]
    train_ts: tuple[int, int]
    test_ts: tuple[int, int]
    purge_rows: int = 0


class Market(_Frozen):
    symbol: str
    tick_size: float
    multiplier: float = 1.0
    sampling: str = ""
    counts: dict[str, int] = {}  # records, states, trades read
    cleaning: str = ""  # rows that each cleaning rule dropped
    notes: tuple[str, ...] = ()  # what was assumed in reading the files


class Training(_Frozen):
    """How the judged weights came to be. `curve`: first and last value of each metric."""

    steps: int
    gpu_seconds: float = 0.0
    interrupted_seconds: float = 0.0
    attempts: int = 1
    device: str = "cpu"
    weights: str = "final"
    curve: dict[str, tuple[float, float]] = {}


class Provenance(_Frozen):
    run_id: str
    seed: int
    config_digest: str
    data_digest: str
    code_sha: str = ""
    image_digest: str = ""
    versions: dict[str, str] = {}


class Sharpe(Estimate):
    """Sharpe ratio per sample. `block` in samples."""

    sampling: str
    samples: int
    block: int


class DeflatedSharpe(_Frozen):
    """P(true Sharpe > the best that `trials` skill-less tries would show), from `skew` and `kurtosis` of the PnL."""

    value: float | None
    benchmark: float | None
    trials: int
    skew: float
    kurtosis: float
    variance: str
    reason: str = ""


class LaneResult(_Frozen):
    """The figures that the policy and every baseline share."""

    trades: int  # round trips
    wins: int
    wr: float | None  # wins / trades; a net PnL of zero is no win
    net_ticks: float
    gross_ticks: float
    fee_ticks: float
    spread_ticks: float
    max_drawdown_ticks: float
    profit_factor: float | None
    profit_factor_reason: str = ""
    lots_traded: int
    turnover: float  # lots traded per 1,000 decisions
    hold_pct: float | None  # share of decisions that placed no position order, 0-100
    mean_holding_rows: float | None
    cost_share: float | None  # fees and spread / gross PnL; null unless gross PnL > 0
    net_at_costs: dict[str, float]  # ticks at "0x", "1x", "2x" of fees and spread, same trades


class FoldResult(_Frozen):
    format: Literal[1] = 1
    fold: int
    windows: Windows
    market: Market
    decisions: int
    sessions: int
    policy: LaneResult
    net_ticks: Estimate
    net_currency: Estimate
    sharpe: Sharpe
    deflated_sharpe: DeflatedSharpe
    action_counts: dict[str, int]
    entropy_frac: float | None  # mean H / log(valid actions)
    q_agreement: float | None  # share of decisions where argmax Q is the policy's action
    baselines: dict[str, LaneResult]
    pnl_blocks: tuple[int, ...]  # net PnL of consecutive bootstrap blocks, 1/1000 tick; the gate pools them
    training: Training
    provenance: Provenance

    @property
    def beats_imbalance(self) -> bool | None:
        """None when that baseline was not run."""
        rule = self.baselines.get("imbalance")
        return None if rule is None else self.policy.net_ticks > rule.net_ticks


def lane_result(lane: Lane, trades: Trades, row: np.ndarray) -> LaneResult:
    n = len(lane.equity)
    net, fee, spread = (int(a[-1]) / MILLI if n else 0.0 for a in (lane.equity, lane.fee_paid, lane.spread_paid))
    gross = int(lane.gross[-1]) / MILLI if n else 0.0
    factor, why = profit_factor(trades.net)
    lots = int(np.abs(lane.fills.lots).sum())
    return LaneResult(
        trades=len(trades),
        wins=int((trades.net > 0).sum()),
        wr=win_rate(trades.net),
        net_ticks=net,
        gross_ticks=gross,
        fee_ticks=fee,
        spread_ticks=spread,
        max_drawdown_ticks=max_drawdown(lane.equity) / MILLI,
        profit_factor=factor,
        profit_factor_reason=why,
        lots_traded=lots,
        turnover=1000.0 * lots / n if n else 0.0,
        hold_pct=100.0 * float((lane.ordered == 0).mean()) if n else None,
        mean_holding_rows=float((row[trades.exit_at] - row[trades.entry_at]).mean()) if len(trades) else None,
        cost_share=(fee + spread) / gross if gross > 0 else None,
        net_at_costs={"0x": gross, "1x": net, "2x": round(gross - 2 * (fee + spread), 3)},
    )


def make_fold_result(
    run: EvalRun,
    cfg: EvalConfig,
    *,
    windows: Windows,
    market: Market,
    training: Training,
    provenance: Provenance,
    trials: int,
) -> FoldResult:
    """Everything a fold has to show, from the per-decision arrays of its evaluation. Raises FoxhuntError (a bug)."""
    run.check()
    lane = run.policy
    series = pnl_series(run.ts, lane.equity, run.session, cfg.bootstrap_block_min)
    policy = lane_result(lane, build_trades(lane.fills), run.row)
    net = _net_estimate(series, policy.net_ticks, cfg, provenance.seed, run.fold)
    currency = market.tick_size * market.multiplier
    return FoldResult(
        fold=run.fold,
        windows=windows,
        market=market,
        decisions=len(run.ts),
        sessions=len(np.unique(run.session)),
        policy=policy,
        net_ticks=net,
        net_currency=Estimate(
            **{k: None if v is None else v * currency for k, v in net.model_dump(exclude={"reason"}).items()},
            reason=net.reason,
        ),
        sharpe=_sharpe(series, cfg, provenance.seed, run.fold),
        deflated_sharpe=_deflated(series, trials),
        action_counts=_action_counts(lane.action),
        entropy_frac=_finite_mean(run.entropy_frac),
        q_agreement=_finite_mean(run.q_agree),
        baselines={k: lane_result(b, build_trades(b.fills), run.row) for k, b in run.baselines.items()},
        pnl_blocks=tuple(int(x) for x in block_sums(series)),
        training=training,
        provenance=provenance,
    )


def _net_estimate(series: Series, net: float, cfg: EvalConfig, seed: int, fold: int) -> Estimate:
    interval = total_interval(series, cfg.bootstrap_samples, cfg.confidence, bootstrap_rng(seed, fold))
    low, high = (None if x is None else x / MILLI for x in (interval.low, interval.high))
    return Estimate(value=net, low=low, high=high, reason=interval.reason)


def _sharpe(series: Series, cfg: EvalConfig, seed: int, fold: int) -> Sharpe:
    value, why = sharpe_ratio(series.pnl)
    interval = sharpe_interval(series, cfg.bootstrap_samples, cfg.confidence, bootstrap_rng(seed, fold))
    return Sharpe(
        value=value,
        low=interval.low,
        high=interval.high,
        reason=why or interval.reason,
        sampling=series.sampling,
        samples=len(series.pnl),
        block=series.block,
    )


def _deflated(series: Series, trials: int) -> DeflatedSharpe:
    d = deflated_sharpe(series.pnl, trials)
    return DeflatedSharpe(
        value=d.value,
        benchmark=d.benchmark,
        trials=trials,
        skew=d.skew,
        kurtosis=d.kurtosis,
        variance=d.variance,
        reason=d.reason,
    )


def _action_counts(action: np.ndarray) -> dict[str, int]:
    counts = np.bincount(action, minlength=N_ACTIONS)
    return {name: int(c) for name, c in zip(ACTION_NAMES, counts)}


def _finite_mean(x: np.ndarray) -> float | None:
    x = np.asarray(x, np.float64)
    x = x[np.isfinite(x)]
    return float(x.mean()) if len(x) else None


CURVE_METRICS = ("l_q", "l_pi", "l_v", "l_aux", "entropy", "wr", "hold_pct", "grad_norm")


def training_curve(lines: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """First and last value of the main metrics, from the metric lines of a fold."""
    ends: dict[str, tuple[float, float]] = {}
    for name in CURVE_METRICS:
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            ends[name] = (float(values[0]), float(values[-1]))
    return ends


# -- files --


def write_fold_result(folder: Path, result: FoldResult) -> Path:
    path = folder / FOLD_RESULT
    write_json(path, result.model_dump(mode="json"))
    return path


def read_fold_result(folder: Path) -> FoldResult | None:
    """None when the fold has none yet. Raises DataError for a file that is damaged or of another format."""
    path = folder / FOLD_RESULT
    if not path.is_file():
        return None
    try:
        return FoldResult.model_validate(json.loads(path.read_text()))
    except (ValueError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else "not valid JSON"
        raise DataError(
            f"{path}: not a fold result of this version: {what}\n"
            f"run `python -m trainer evaluate` for this fold again, it writes a new one"
        ) from None


def trades_frame(run: EvalRun, trades: Trades) -> pl.DataFrame:
    """One row a round trip: times, rows, side, lots, prices and PnL in ticks, how it ended."""
    import polars as pl

    return pl.DataFrame(
        {
            "entry_ts": run.ts[trades.entry_at],
            "exit_ts": run.ts[trades.exit_at],
            "entry_row": run.row[trades.entry_at],
            "exit_row": run.row[trades.exit_at],
            "side": np.where(trades.side > 0, "long", "short"),
            "lots": trades.lots,
            "entry_price_ticks": trades.entry_price,
            "exit_price_ticks": trades.exit_price,
            "gross_ticks": trades.gross / MILLI,
            "fee_ticks": trades.fees / MILLI,
            "spread_ticks": trades.spread / MILLI,
            "net_ticks": trades.net / MILLI,
            "holding_rows": run.row[trades.exit_at] - run.row[trades.entry_at],
            "ended": np.array(ENDS)[trades.ended],
        },
        schema_overrides={"side": pl.String, "ended": pl.String},
    )


def curve_frame(run: EvalRun) -> pl.DataFrame:
    """One row a decision; a column `baseline_NAME` (net equity) for each baseline."""
    import polars as pl

    p = run.policy
    columns: dict[str, np.ndarray] = {
        "ts": run.ts.astype(np.int64),
        "row": run.row.astype(np.int64),
        "session": run.session.astype(np.int32),
        "equity": p.equity.astype(np.int64),
        "gross": p.gross.astype(np.int64),
        "fee_paid": p.fee_paid.astype(np.int64),
        "spread_paid": p.spread_paid.astype(np.int64),
        "position": p.position.astype(np.int32),
        "action": p.action.astype(np.int8),
        "ordered": p.ordered.astype(np.int8),
        "entropy_frac": run.entropy_frac.astype(np.float32),
        "q_agree": run.q_agree.astype(np.int8),
    }
    columns |= {f"baseline_{k.replace(' ', '_')}": b.equity.astype(np.int64) for k, b in run.baselines.items()}
    return pl.DataFrame(columns)


def write_fold_files(folder: Path, run: EvalRun, result: FoldResult) -> None:
    """Trades and curve first, `fold_result.json` last: whoever sees it finds all three."""
    trades = trades_frame(run, build_trades(run.policy.fills))
    curve = curve_frame(run)
    write_atomic(folder / TRADES, trades.write_parquet)
    write_atomic(folder / CURVE, curve.write_parquet)
    write_fold_result(folder, result)


def read_frame(path: Path) -> pl.DataFrame | None:
    """`trades.parquet` or `curve.parquet`; None when absent. Raises DataError when it can't be read."""
    import polars as pl

    if not path.is_file():
        return None
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{path}: can't be read: {str(error).splitlines()[0]}\nrun `python -m trainer evaluate` for this fold again"
        ) from None
