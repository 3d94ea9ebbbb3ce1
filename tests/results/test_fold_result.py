"""The figures of a fold against plain counts, its files, and what is said where a figure can't be."""

import dataclasses
import json
import warnings

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from kernels.env_step import Action
from tests.results.study import account, make_result, make_run
from trainer.config import EvalConfig
from trainer.errors import DataError
from trainer.results.eval_run import build_trades
from trainer.results.fold_result import (
    FoldResult,
    read_fold_result,
    read_frame,
    training_curve,
    write_fold_files,
)


@pytest.fixture(scope="module")
def run():
    return make_run(1, n=6000, edge=0.8)


@pytest.fixture(scope="module")
def result(run):
    return make_result(run)


def idle(n):
    """A run of n decisions in which the policy never trades."""
    run = make_run(0, n=max(n, 8), edge=0.5)
    flat = np.zeros(n, np.int64)
    lane = account(np.full(n, 4000), flat, np.full(n, 2), flat)
    return dataclasses.replace(
        run,
        ts=run.ts[:n],
        row=run.row[:n],
        session=run.session[:n],
        policy=lane,
        baselines={"flat": lane, "imbalance": lane},
        entropy_frac=np.full(n, np.nan, np.float32),
        q_agree=run.q_agree[:n],
    )


def test_figures_equal_plain_counts(run, result):
    p, lane = result.policy, run.policy
    t = build_trades(lane.fills)
    wins = [x for x in t.net.tolist() if x > 0]
    losses = [-x for x in t.net.tolist() if x < 0]
    assert (p.trades, p.wins, p.wr) == (len(t), len(wins), pytest.approx(len(wins) / len(t)))
    assert p.net_ticks == lane.equity[-1] / 1000 == pytest.approx(sum(t.net) / 1000)
    assert p.profit_factor == pytest.approx(sum(wins) / sum(losses))
    assert p.hold_pct == pytest.approx(100 * sum(lane.ordered == 0) / 6000)
    assert p.lots_traded == sum(abs(x) for x in lane.fills.lots.tolist()) and p.turnover == p.lots_traded / 6
    peak, deepest = 0, 0
    for x in lane.equity.tolist():
        peak = max(peak, x)
        deepest = max(deepest, peak - x)
    assert p.max_drawdown_ticks == deepest / 1000
    assert p.mean_holding_rows == pytest.approx(np.mean(run.row[t.exit_at] - run.row[t.entry_at]))


def test_costs_are_parts_of_one_sum(result):
    for lane in (result.policy, *result.baselines.values()):
        costs = lane.fee_ticks + lane.spread_ticks
        assert lane.net_ticks == pytest.approx(lane.gross_ticks - costs)
        assert lane.net_at_costs["0x"] == pytest.approx(lane.gross_ticks)
        assert lane.net_at_costs["1x"] == lane.net_ticks
        assert lane.net_at_costs["2x"] == pytest.approx(lane.gross_ticks - 2 * costs)
        if lane.gross_ticks > 0:
            assert lane.cost_share == pytest.approx(costs / lane.gross_ticks)
        else:
            assert lane.cost_share is None


def test_intervals_enclose_the_value_and_currency_is_ticks_times_their_worth(result):
    for e in (result.net_ticks, result.net_currency, result.sharpe):
        assert e.low < e.value < e.high and e.reason == ""
    worth = 0.25 * 50
    assert result.net_currency.value == pytest.approx(result.net_ticks.value * worth)
    assert result.net_currency.low == pytest.approx(result.net_ticks.low * worth)
    assert (result.sharpe.samples, result.sharpe.block) == (100, 10)
    assert sum(result.pnl_blocks) == round(result.policy.net_ticks * 1000) and len(result.pnl_blocks) == 10
    assert result.deflated_sharpe.trials == 4 and 0 <= result.deflated_sharpe.value <= 1


def test_actions_entropy_agreement_and_baselines(run, result):
    assert list(result.action_counts) == [a.name.lower().replace("_", " ") for a in Action]
    assert result.action_counts["hold"] == int((run.policy.action == 2).sum())
    assert sum(result.action_counts.values()) == result.decisions == 6000
    assert result.entropy_frac == pytest.approx(float(run.entropy_frac.mean()), rel=1e-5)
    assert result.q_agreement == pytest.approx(run.q_agree.mean())
    assert result.baselines["flat"].net_ticks == 0 and result.baselines["flat"].trades == 0
    assert result.baselines["buy and hold"].trades == 1
    assert result.beats_imbalance == (result.policy.net_ticks > result.baselines["imbalance"].net_ticks)


def test_entropy_leaves_out_decisions_without_a_choice(run):
    entropy = run.entropy_frac.copy()
    entropy[::2] = np.nan
    r = make_result(dataclasses.replace(run, entropy_frac=entropy))
    assert r.entropy_frac == pytest.approx(float(run.entropy_frac[1::2].mean()), rel=1e-5)


def test_the_same_run_gives_the_same_result_and_the_block_is_a_setting(run, result):
    assert make_result(run) == result
    short = make_result(run, EvalConfig(bootstrap_block_min=2))
    assert short.sharpe.block == 2 and short.sharpe.value == result.sharpe.value
    assert len(short.pnl_blocks) == 50


@pytest.mark.parametrize("n", [0, 1, 2000])
def test_a_fold_without_trades_has_reasons_and_no_nan(n, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        r = make_result(idle(n))
    assert r.policy.trades == 0 and r.policy.wr is None and r.policy.profit_factor is None
    assert r.policy.profit_factor_reason == "no trades"
    assert r.sharpe.value is None and r.sharpe.reason and r.deflated_sharpe.value is None and r.deflated_sharpe.reason
    assert r.entropy_frac is None
    assert r.policy.net_ticks == 0.0 and r.policy.hold_pct == (None if n == 0 else 100.0)
    write_fold_files(tmp_path, idle(n), r)
    assert read_fold_result(tmp_path) == r
    assert read_frame(tmp_path / "trades.parquet").height == 0
    assert "NaN" not in (tmp_path / "fold_result.json").read_text()


def test_a_short_window_has_no_interval_and_says_why():
    r = make_result(make_run(0, n=900))
    assert r.net_ticks.value is not None and r.net_ticks.low is None
    assert r.net_ticks.reason.startswith("15 minutes of PnL; an interval needs 50")
    assert r.sharpe.value is not None and r.sharpe.low is None and r.sharpe.reason == r.net_ticks.reason


def test_nan_cannot_be_stored(result):
    with pytest.raises(ValidationError, match="finite"):
        FoldResult.model_validate(result.model_dump() | {"entropy_frac": float("nan")})


def test_files_hold_the_run(run, result, tmp_path):
    write_fold_files(tmp_path, run, result)
    assert read_fold_result(tmp_path) == result
    trades, curve = read_frame(tmp_path / "trades.parquet"), read_frame(tmp_path / "curve.parquet")
    assert trades.height == result.policy.trades and curve.height == 6000
    assert trades["net_ticks"].sum() == pytest.approx(result.policy.net_ticks)
    assert (trades["net_ticks"] > 0).sum() == result.policy.wins
    assert set(trades["ended"].unique()) <= {"order", "flip", "session end"}
    assert trades["side"].is_in(["long", "short"]).all() and (trades["exit_ts"] >= trades["entry_ts"]).all()
    long = trades.filter((pl.col("side") == "long") & (pl.col("lots") == 1)).row(0, named=True)
    price = long["exit_price_ticks"] - long["entry_price_ticks"]
    assert price - long["fee_ticks"] == pytest.approx(long["net_ticks"])
    assert curve["ts"].dtype == pl.Int64 and curve["equity"][-1] == run.policy.equity[-1]
    assert (curve["gross"] - curve["fee_paid"] - curve["spread_paid"] == curve["equity"]).all()
    assert curve["baseline_buy_and_hold"].to_list() == run.baselines["buy and hold"].equity.tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.parquet", "fold_result.json", "trades.parquet"]


def test_absent_files_are_none_and_damaged_ones_say_what_to_do(run, result, tmp_path):
    assert read_fold_result(tmp_path) is None and read_frame(tmp_path / "curve.parquet") is None
    path = tmp_path / "fold_result.json"
    for text, what in (
        ("{", "not valid JSON"),
        (json.dumps(result.model_dump(mode="json") | {"format": 2}), "format: Input should be 1"),
        (json.dumps(result.model_dump(mode="json") | {"sharp": 1}), "sharp: Extra inputs"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=what) as caught:
            read_fold_result(tmp_path)
        assert str(path) in str(caught.value) and "python -m trainer evaluate" in str(caught.value)
    (tmp_path / "curve.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(DataError, match=r"curve\.parquet: can't be read"):
        read_frame(tmp_path / "curve.parquet")


def test_training_curve_keeps_first_and_last_known_values():
    lines = [
        {"step": 1, "l_q": 3.0, "wr": None},
        {"step": 2, "l_q": None, "wr": 0.4},
        {"step": 3, "l_q": 1.0, "wr": 0.5},
    ]
    assert training_curve(lines) == {"l_q": (3.0, 1.0), "wr": (0.4, 0.5)}
    assert training_curve([]) == {}
