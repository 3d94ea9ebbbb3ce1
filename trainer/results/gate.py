"""The verdict on a study: every criterion with its number, and what was needed. Nothing passes for want of a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from kernels.env_step import MILLI
from trainer.config import EvalConfig
from trainer.errors import GateFailed
from trainer.files import write_json
from trainer.results.fold_result import Estimate, FoldResult
from trainer.results.statistics import POOL, bootstrap_rng, pooled_interval

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GATE = "gate.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Criterion(_Frozen):
    name: str
    passed: bool
    value: float | None  # the number that was compared, null when there is none
    shown: str
    needed: str
    note: str = ""


class Verdict(_Frozen):
    passed: bool
    criteria: tuple[Criterion, ...]
    folds: tuple[int, ...]
    missing: tuple[int, ...]
    pooled_trades: int
    pooled_wr: float | None
    pooled_net_ticks: Estimate
    imbalance_net_ticks: float | None
    beats_imbalance: bool | None
    switched_off: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else GateFailed.exit_code


def judge(results: Mapping[int, FoldResult | None], cfg: EvalConfig, folds: Sequence[int]) -> Verdict:
    """One verdict on the folds that were asked for. A missing fold or one without trades fails it."""
    found = {f: r for f in folds if (r := results.get(f)) is not None}
    net = _pooled_net(found, cfg)
    criteria = [
        _complete(found, folds),
        _pooled_wr(found, cfg),
        _worst(found, folds, "win rate of each fold", _wr, cfg.min_wr_fold, math.inf, ".3f", ">= {0:.2f}"),
        _worst(found, folds, "entropy of each fold", _entropy, cfg.min_entropy, math.inf, ".3f", ">= {0:.2f}"),
        _worst(
            found,
            folds,
            "hold_pct of each fold",
            _hold,
            cfg.hold_pct_min,
            cfg.hold_pct_max,
            ".1f",
            "{0:.0f} to {1:.0f}",
        ),
    ]
    trips = _worst(found, folds, "round trips of each fold", _trades, cfg.min_trades, math.inf, ".0f", ">= {0:.0f}")
    optional = [(trips, cfg.min_trades > 0), (_positive_net(net, cfg), cfg.require_positive_net)]
    criteria += [c for c, on in optional if on]
    off = [c.name for c, on in optional if not on]
    trades = sum(r.policy.trades for r in found.values())
    rule = [r.baselines["imbalance"].net_ticks for r in found.values() if "imbalance" in r.baselines]
    imbalance = sum(rule) if found and len(rule) == len(found) else None
    return Verdict(
        passed=bool(folds) and all(c.passed for c in criteria),
        criteria=tuple(criteria),
        folds=tuple(folds),
        missing=tuple(f for f in folds if f not in found),
        pooled_trades=trades,
        pooled_wr=sum(r.policy.wins for r in found.values()) / trades if trades else None,
        pooled_net_ticks=net,
        imbalance_net_ticks=imbalance,
        beats_imbalance=None if imbalance is None or net.value is None else net.value > imbalance,
        switched_off=tuple(off),
    )


def _wr(r: FoldResult) -> float | None:
    return r.policy.wr


def _entropy(r: FoldResult) -> float | None:
    return r.entropy_frac


def _hold(r: FoldResult) -> float | None:
    return r.policy.hold_pct


def _trades(r: FoldResult) -> float | None:
    return float(r.policy.trades)


def _pooled_net(found: Mapping[int, FoldResult], cfg: EvalConfig) -> Estimate:
    if not found:
        return Estimate(value=None, reason="no fold has a result")
    blocks = np.concatenate([np.array(r.pnl_blocks, np.int64) for r in found.values()])
    seed = next(iter(found.values())).provenance.seed
    interval = pooled_interval(blocks, cfg.bootstrap_samples, cfg.confidence, bootstrap_rng(seed, POOL))
    low, high = (None if x is None else x / MILLI for x in (interval.low, interval.high))
    total = round(sum(r.policy.net_ticks for r in found.values()), 3)
    return Estimate(value=total, low=low, high=high, reason=interval.reason)


def _complete(found: Mapping[int, FoldResult], folds: Sequence[int]) -> Criterion:
    missing = [f for f in folds if f not in found]
    idle = [f for f, r in found.items() if not r.policy.trades]
    said = [f"fold {f} has no result" for f in missing] + [f"fold {f} made no trade" for f in idle]
    good = len(folds) - len(missing) - len(idle)
    return Criterion(
        name="folds with trades",
        passed=bool(folds) and good == len(folds),
        value=float(good),
        shown=f"{good} of {len(folds)}",
        needed="all",
        note=", ".join(said),
    )


def _pooled_wr(found: Mapping[int, FoldResult], cfg: EvalConfig) -> Criterion:
    trades = sum(r.policy.trades for r in found.values())
    wins = sum(r.policy.wins for r in found.values())
    wr = wins / trades if trades else None
    return Criterion(
        name="win rate, all folds together",
        passed=wr is not None and wr > cfg.min_wr,
        value=wr,
        shown="no trades" if wr is None else f"{wr:.3f}",
        needed=f"> {cfg.min_wr:.2f}",
        note=f"{wins:,} of {trades:,} round trips won",
    )


def _worst(
    found: Mapping[int, FoldResult],
    folds: Sequence[int],
    name: str,
    figure: Callable[[FoldResult], float | None],
    low: float,
    high: float,
    spec: str,
    needed: str,
) -> Criterion:
    """A figure that has to lie in [low, high] on every fold; shows the fold that lies worst."""
    values = {f: figure(found[f]) if f in found else None for f in folds}
    known = {f: v for f, v in values.items() if v is not None and math.isfinite(v)}
    inside = {f: v for f, v in known.items() if low <= v <= high}
    slack = {f: min(v - low, high - v) for f, v in known.items()}
    worst = min(slack, key=lambda f: slack[f]) if slack else None
    return Criterion(
        name=name,
        passed=bool(folds) and len(inside) == len(folds),
        value=None if worst is None else known[worst],
        shown="none" if worst is None else f"{known[worst]:{spec}} (fold {worst})",
        needed=needed.format(low, high),
        note=", ".join(f"fold {f}: {format(v, spec) if f in known else 'none'}" for f, v in values.items()),
    )


def _positive_net(net: Estimate, cfg: EvalConfig) -> Criterion:
    low = net.low
    known = low is not None and net.high is not None
    return Criterion(
        name="pooled net PnL, ticks",
        passed=known and low is not None and low > 0,
        value=low,
        shown=f"{net.low:,.0f} to {net.high:,.0f}" if known else "no interval",
        needed=f"{cfg.confidence:.0%} interval above 0",
        note=net.reason or f"total {net.value:,.0f}",
    )


def imbalance_line(verdict: Verdict) -> str:
    """The sentence beside the table; not a criterion."""
    net, rule = verdict.pooled_net_ticks.value, verdict.imbalance_net_ticks
    if verdict.beats_imbalance is None or net is None or rule is None:
        return "Imbalance rule: not run on every fold, so there is no comparison."
    if not verdict.pooled_trades:
        return f"The agent made no trade; the imbalance rule made {rule:,.0f} net ticks on the same windows."
    word = "beat" if verdict.beats_imbalance else "did not beat"
    return f"The agent {word} the imbalance rule: {net:,.0f} against {rule:,.0f} net ticks on the same windows."


def verdict_reason(verdict: Verdict) -> str:
    if verdict.passed:
        return f"all {len(verdict.criteria)} criteria met on {len(verdict.folds)} folds."
    failed = [c.name for c in verdict.criteria if not c.passed]
    return f"{len(failed)} of {len(verdict.criteria)} criteria not met: {'; '.join(failed)}."


def verdict_line(verdict: Verdict) -> str:
    return f"{'PASSED' if verdict.passed else 'FAILED'}: {verdict_reason(verdict)}"


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """A table on a terminal, aligned plain lines elsewhere."""
    from rich.console import Console

    console = console or Console()
    rows = [(c.name, c.shown, c.needed, "pass" if c.passed else "FAIL", c.note) for c in verdict.criteria]
    if console.is_terminal:
        console.print(_table(rows))
    else:
        widths = [max(len(r[i]) for r in rows) for i in range(4)]
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths)) + "  " + row[4]
            console.print(line.rstrip(), soft_wrap=True, markup=False, highlight=False)
    for line in _closing(verdict):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="gate", title_justify="left")
    for heading in ("criterion", "found", "needed", "", "detail"):
        table.add_column(heading)
    for name, shown, needed, outcome, note in rows:
        colour = "green" if outcome == "pass" else "bold red"
        table.add_row(name, shown, needed, Text(outcome, colour), Text(note, "dim"))
    return table


def _closing(verdict: Verdict) -> list[str]:
    off = [f"Switched off: {name}." for name in verdict.switched_off]
    return [verdict_line(verdict), imbalance_line(verdict), *off]


def write_gate(path: Path, verdict: Verdict) -> None:
    """`gate.json`: the verdict as data, with the two sentences."""
    value = verdict.model_dump(mode="json")
    write_json(path, {**value, "verdict": verdict_line(verdict), "imbalance": imbalance_line(verdict)})


def require_pass(verdict: Verdict) -> None:
    """Raises GateFailed (exit 3) unless the verdict is a pass."""
    if not verdict.passed:
        count = verdict_reason(verdict).partition(":")[0]
        raise GateFailed(f"gate failed: {count}\nthe study ran to its end; report.html shows where it fell short")
