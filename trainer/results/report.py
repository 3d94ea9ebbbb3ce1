"""The report of a study: one HTML page without scripts or network, and the same figures as `report.json`.

It renders whatever is there: a fold without a result, a trade or a metric line is shown as such.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainer.config import StudyConfig
from trainer.files import write_json, write_text
from trainer.learn.ledger import Attempt, read_attempts
from trainer.learn.metrics import read_metrics
from trainer.paths import fold_folder
from trainer.results import charts
from trainer.results.baselines import BASELINES
from trainer.results.eval_run import ACTION_NAMES
from trainer.results.fold_result import CURVE, FoldResult, LaneResult, read_fold_result, read_frame
from trainer.results.gate import Verdict, imbalance_line, judge, verdict_line, verdict_reason

REPORT_HTML, REPORT_JSON = "report.html", "report.json"
ACTION_PANELS = 12  # more folds than this: a table
CURVE_POINTS = 400  # a curve, 6 folds or fewer; more folds share what that makes, so that the page stays below 2 MB


@dataclass(frozen=True)
class Study:
    """A run folder as the report sees it."""

    folder: Path
    config: StudyConfig
    folds: tuple[int, ...]
    results: Mapping[int, FoldResult | None]
    verdict: Verdict

    @cached_property
    def found(self) -> dict[int, FoldResult]:
        return {f: r for f in self.folds if (r := self.results.get(f)) is not None}

    @cached_property
    def metrics(self) -> dict[int, list[dict[str, Any]]]:
        """Metric lines of the folds that have any."""
        lines = {f: read_metrics(fold_folder(self.folder, f)) for f in self.folds}
        return {f: series for f, series in lines.items() if series}

    @cached_property
    def attempts(self) -> list[tuple[int, Attempt]]:
        return [(f, a) for f in self.folds for a in read_attempts(fold_folder(self.folder, f))]


def load_study(folder: Path, config: StudyConfig, folds: Sequence[int]) -> Study:
    """Reads every fold's result and judges them. Raises DataError for a damaged result."""
    results = {f: read_fold_result(fold_folder(folder, f)) for f in folds}
    return Study(folder, config, tuple(folds), results, judge(results, config.eval, folds))


def write_report(study: Study) -> Path:
    """`report.html` and `report.json` in the run folder, each whole or not at all; returns the page's path."""
    write_json(study.folder / REPORT_JSON, report_data(study))
    path = study.folder / REPORT_HTML
    write_text(path, render_html(study))
    return path


def report_data(study: Study) -> dict[str, Any]:
    """Everything the page says, JSON-ready."""
    return {
        "run_id": study.folder.name,
        "verdict": verdict_line(study.verdict),
        "imbalance": imbalance_line(study.verdict),
        "gate": study.verdict.model_dump(mode="json"),
        "folds": {str(f): r.model_dump(mode="json") for f, r in study.found.items()},
        "attempts": [{"fold": f, **a.__dict__} for f, a in study.attempts],
        "config": study.config.model_dump(mode="json"),
    }


def render_html(study: Study) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainer.results", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"num": number, "day": utc, "span": time_span, "short": lambda s: s[:12]}
    first = next(iter(study.found.values()), None)
    return environment.get_template("report.html.jinja").render(
        study=study,
        run_id=study.folder.name,
        verdict=study.verdict,
        verdict_reason=_sentence(verdict_reason(study.verdict)),
        lanes=lanes,
        action_names=ACTION_NAMES,
        imbalance_line=imbalance_line(study.verdict),
        first=first,
        pictures=pictures(study),
        config=config_rows(study.config),
        confidence=f"{study.config.eval.confidence:.0%}",
    )


def pictures(study: Study) -> dict[str, Any]:
    """The figures as Markup; "" where there is nothing to draw."""
    from markupsafe import Markup

    found = study.found
    points = curve_points(len(found))
    equity = {}
    for fold in found:
        curve = read_frame(fold_folder(study.folder, fold) / CURVE)
        if curve is not None and len(curve):
            equity[fold] = Markup(charts.equity_chart(curve, fold, points))
    controllers = [(name, name.replace("_", " ")) for name in charts.CONTROLLERS]
    return {
        "net": Markup(charts.net_chart(found)) if found else "",
        "equity": equity,
        "training": Markup(charts.metrics_chart(study.metrics, charts.TRAINING, "Training curves of each fold")),
        "controllers": Markup(charts.metrics_chart(study.metrics, controllers, "Controller outputs of each fold")),
        "actions": Markup(charts.action_chart(found)) if 0 < len(found) <= ACTION_PANELS else "",
    }


def curve_points(folds: int) -> int:
    """Points of each equity curve on a page of so many folds."""
    return min(CURVE_POINTS, max(24, 6 * CURVE_POINTS // max(folds, 1)))


def config_rows(config: StudyConfig) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(section, [(key, value, description)]) of every setting."""
    sections: list[tuple[str, list[tuple[str, str, str]]]] = []
    for name, value in config:
        if isinstance(value, BaseModel):
            fields = type(value).model_fields
            rows = [(k, _plain(v), fields[k].description or "") for k, v in value]
            sections.append((name, rows))
    return sections


def lanes(result: FoldResult) -> list[tuple[str, LaneResult]]:
    """The policy, then its baselines, the hardest to beat first."""
    names = [name for name in reversed(BASELINES) if name in result.baselines]
    return [("policy", result.policy), *((name, result.baselines[name]) for name in names)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value != "" else "none"


# -- formats of the page --


def number(value: float | None, digits: int = 0, sign: bool = False) -> str:
    """A figure with thousands separators and a true minus; a dash where there is none."""
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def utc(ns: int) -> str:
    """ns UTC -> "2023-12-25 23:00"."""
    return dt.datetime.fromtimestamp(ns // 1_000_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M")


def time_span(window: tuple[int, int]) -> str:
    """A window, the date said once when it starts and ends on one day."""
    start, end = utc(window[0]), utc(window[1])
    return f"{start} \N{EN DASH} {end[11:] if end[:10] == start[:10] else end}"
