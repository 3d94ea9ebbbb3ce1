"""The verdict: each criterion alone, its boundary, and that nothing passes for want of a number."""

import json

import pytest
from rich.console import Console

from tests.results.study import make_result, make_run
from trainer.config import EvalConfig
from trainer.errors import GateFailed
from trainer.results.fold_result import FoldResult
from trainer.results.gate import (
    GATE,
    imbalance_line,
    judge,
    print_verdict,
    require_pass,
    verdict_line,
    write_gate,
)

CFG = EvalConfig(bootstrap_samples=500)
FOLDS = (0, 1, 2)


@pytest.fixture(scope="module")
def good():
    """A fold that passes everything."""
    return make_result(make_run(0, n=6000, edge=0.9))


def altered(result: FoldResult, **values) -> FoldResult:
    """A copy with other figures; keys of the policy's lane go there."""
    own = {k: v for k, v in values.items() if k in FoldResult.model_fields}
    lane = {k: v for k, v in values.items() if k not in own}
    return result.model_copy(update={**own, "policy": result.policy.model_copy(update=lane)})


def study(good, worst=None, **values):
    """Three good folds, the last one altered."""
    last = worst if worst is not None else altered(good, **values)
    return {0: good, 1: good, 2: last}


def failed(results, cfg=CFG, folds=FOLDS):
    verdict = judge(results, cfg, folds)
    assert verdict.passed == (not any(not c.passed for c in verdict.criteria))
    return [c.name for c in verdict.criteria if not c.passed]


def test_a_good_study_passes_everything(good):
    verdict = judge(study(good), CFG, FOLDS)
    assert verdict.passed and verdict.exit_code == 0 and len(verdict.criteria) == 7
    assert verdict.pooled_wr == pytest.approx(good.policy.wr)
    assert verdict.pooled_net_ticks.value == pytest.approx(3 * good.policy.net_ticks)
    require_pass(verdict)


@pytest.mark.parametrize(
    "name,bad,edge",
    [
        ("win rate of each fold", {"wr": 0.4999}, {"wr": 0.5}),
        ("entropy of each fold", {"entropy_frac": 0.0499}, {"entropy_frac": 0.05}),
        ("entropy of each fold", {"entropy_frac": None}, {"entropy_frac": 1.0}),
        ("hold_pct of each fold", {"hold_pct": 29.9}, {"hold_pct": 30.0}),
        ("hold_pct of each fold", {"hold_pct": 70.1}, {"hold_pct": 70.0}),
        ("hold_pct of each fold", {"hold_pct": None}, {"hold_pct": 50.0}),
        ("round trips of each fold", {"trades": 29}, {"trades": 30}),
    ],
)
def test_each_criterion_fails_alone_and_passes_at_its_edge(good, name, bad, edge):
    assert failed(study(good, **bad)) == [name]
    assert failed(study(good, **edge)) == []


def test_pooled_win_rate_must_be_above_the_threshold_over_all_trades(good):
    half = altered(good, trades=1000, wins=550, wr=0.55)
    assert failed({0: half, 1: half, 2: half}) == ["win rate, all folds together"]
    assert failed({0: half, 1: half, 2: altered(half, wins=551, wr=0.551)}) == []
    # trades count, not folds: a small fold with a high rate doesn't carry a large one
    small, large = altered(good, trades=40, wins=40, wr=1.0), altered(good, trades=4000, wins=2100, wr=0.525)
    assert failed({0: small, 1: small, 2: large}) == ["win rate, all folds together"]


def test_pooled_net_needs_an_interval_above_zero(good):
    loses = altered(good, pnl_blocks=tuple(-3 * x for x in good.pnl_blocks))
    assert failed(study(good, worst=loses)) == ["pooled net PnL, ticks"]
    few = altered(good, pnl_blocks=good.pnl_blocks[:1])
    verdict = judge({f: few for f in FOLDS}, CFG, FOLDS)
    criterion = verdict.criteria[-1]
    assert not criterion.passed and criterion.value is None and criterion.note.startswith("3 blocks of PnL")
    zero = altered(good, pnl_blocks=(0,) * 10)
    assert failed({f: zero for f in FOLDS}) == ["pooled net PnL, ticks"]


def test_missing_folds_and_folds_without_trades_fail(good):
    idle = altered(good, trades=0, wins=0, wr=None)
    assert "folds with trades" in failed({0: good, 1: good, 2: None})
    assert "folds with trades" in failed({0: good, 1: good})
    assert "folds with trades" in failed(study(good, worst=idle))
    verdict = judge({0: good, 2: idle}, CFG, FOLDS)
    assert verdict.missing == (1,)
    assert verdict.criteria[0].shown == "1 of 3"
    assert verdict.criteria[0].note == "fold 1 has no result, fold 2 made no trade"
    off = EvalConfig(min_trades=0, require_positive_net=False)
    assert "folds with trades" in failed({0: good}, off)


def test_nothing_at_all_fails_everything():
    for folds in (FOLDS, ()):
        verdict = judge({}, CFG, folds)
        assert not verdict.passed and not any(c.passed for c in verdict.criteria)
        assert verdict.pooled_wr is None and verdict.pooled_net_ticks.value is None


def test_a_nan_that_slipped_in_fails(good):
    nan = float("nan")
    for values in ({"wr": nan}, {"entropy_frac": nan}, {"hold_pct": nan}):
        assert len(failed(study(good, **values))) == 1


def test_the_two_extra_criteria_can_be_switched_off(good):
    bad = altered(good, trades=5, wins=5, wr=1.0, pnl_blocks=tuple(-x for x in good.pnl_blocks))
    off = EvalConfig(min_trades=0, require_positive_net=False)
    results = {f: bad for f in FOLDS}
    assert failed(results) == ["round trips of each fold", "pooled net PnL, ticks"]
    verdict = judge(results, off, FOLDS)
    assert verdict.passed and verdict.switched_off == ("round trips of each fold", "pooled net PnL, ticks")


def test_thresholds_come_from_the_config(good):
    strict = EvalConfig(
        min_wr=0.99, min_wr_fold=0.99, min_entropy=0.99, hold_pct_min=99, hold_pct_max=100, min_trades=10**6
    )
    assert len(failed(study(good), strict)) == 5


def test_imbalance_is_beside_the_verdict_and_no_criterion(good):
    rule = good.baselines["imbalance"].model_copy(update={"net_ticks": 10.0**7})
    beaten = good.model_copy(update={"baselines": {**good.baselines, "imbalance": rule}})
    verdict = judge({f: beaten for f in FOLDS}, CFG, FOLDS)
    assert verdict.passed and verdict.beats_imbalance is False
    assert "did not beat the imbalance rule" in imbalance_line(verdict)
    assert "The agent beat the imbalance rule" in imbalance_line(judge(study(good), CFG, FOLDS))
    none = good.model_copy(update={"baselines": {}})
    assert "no comparison" in imbalance_line(judge(study(good, worst=none), CFG, FOLDS))


def test_an_agent_that_made_no_trade_is_not_said_to_beat_anything(good):
    idle = altered(good, trades=0, wins=0, wr=None, net_ticks=0.0)
    rule = good.baselines["imbalance"].model_copy(update={"net_ticks": -10.0})
    idle = idle.model_copy(update={"baselines": {**idle.baselines, "imbalance": rule}})
    said = imbalance_line(judge({f: idle for f in FOLDS}, CFG, FOLDS))
    assert said == "The agent made no trade; the imbalance rule made -30 net ticks on the same windows."


def printed(verdict, terminal):
    console = Console(force_terminal=terminal, width=150, record=True, file=open("/dev/null", "w"))
    print_verdict(verdict, console)
    return console.export_text()


@pytest.mark.parametrize("terminal", [False, True])
def test_every_criterion_is_printed_with_its_number(good, terminal):
    verdict = judge(study(good, hold_pct=80.0), CFG, FOLDS)
    text = printed(verdict, terminal)
    for c in verdict.criteria:
        assert c.name in text and c.shown in text and c.needed in text
    assert "80.0 (fold 2)" in text and "FAIL" in text
    assert verdict_line(verdict) in text and imbalance_line(verdict) in text
    assert ("┃" in text) == terminal


def test_gate_json_and_exit_code(good, tmp_path):
    verdict = judge(study(good, wr=0.2), CFG, FOLDS)
    write_gate(tmp_path / GATE, verdict)
    data = json.loads((tmp_path / GATE).read_text())
    assert data["passed"] is False and data["verdict"].startswith(
        "FAILED: 1 of 7 criteria not met: win rate of each fold"
    )
    assert [c["name"] for c in data["criteria"]] == [c.name for c in verdict.criteria]
    assert verdict.exit_code == 3
    with pytest.raises(GateFailed, match="gate failed: 1 of 7") as caught:
        require_pass(verdict)
    assert caught.value.exit_code == 3
