"""The report's pictures: matplotlib figures as inline SVG whose colours are CSS variables of the page.

Text stays text (selectable, in the page's font), coordinates are rounded, long curves keep the extremes of each bucket.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.env_step import MILLI
from kernels.isv import GROUPS, OUTPUTS
from trainer.results.eval_run import ACTION_NAMES

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainer.results.fold_result import FoldResult

# Colours are drawn as unlikely hex values and replaced by the page's variables: light, dark and print agree.
COLOURS = {
    "--ink": "#0a0b01",
    "--muted": "#0a0b02",
    "--grid": "#0a0b03",
    "--policy": "#0a0b04",
    "--gross": "#0a0b05",
    "--imbalance": "#0a0b06",
    "--hold": "#0a0b07",
    "--random": "#0a0b08",
    "--loss": "#0a0b09",
}
FOLD_COLOURS = {f"--fold{i}": f"#0a0c0{i}" for i in range(8)}
INK, MUTED, GRID, POLICY = (COLOURS[k] for k in ("--ink", "--muted", "--grid", "--policy"))
WIDTH = 9.6  # inches; pages scale it
Margins = tuple[float, float, float, float]  # left, right, top, bottom, inches
BASELINE_STYLE = {
    "imbalance": (COLOURS["--imbalance"], "imbalance rule"),
    "buy_and_hold": (COLOURS["--hold"], "buy and hold"),
    "random": (COLOURS["--random"], "random, same turnover"),
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "foxhunt",  # ids depend on content only: the same study gives the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.3,
    "lines.solid_joinstyle": "round",
}


@contextmanager
def _figure(width: float, height: float, margins: Margins, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes in the report's style. Fixed margins: matplotlib's layout engines double the time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    left, right, top, bottom = margins
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        place = {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}
        yield figure, figure.subplots(squeeze=False, gridspec_kw={**place, **grid.pop("gridspec_kw", {})}, **grid)


def _svg(figure: Figure, label: str) -> str:
    """The figure as an <svg> element that scales with the page. Call inside `_figure`."""
    buffer = io.StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=empty)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text)
    text = re.sub(r' (d|x|y|points)="[^"]*"', _short, text)
    text = _GRID_LINE.sub(' class="grid"', text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r" ?font-family: [^;]*;", "", text)  # the page's own font
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # it would rule the whole page
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' id="[A-Za-z.]+(?:2d)?_\w+"', "", text)  # names of artists; what is referred to has a hash
    for name, colour in {**COLOURS, **FOLD_COLOURS}.items():
        text = text.replace(colour, f"var({name})")
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(label)}"', 1)


# Each chart has a dozen of them; the page's own rule says how they look.
_GRID_LINE = re.compile(rf' clip-path="[^"]*" style="fill: none; stroke: {GRID}; stroke-width: 0.6[^"]*"')


def _short(attribute: re.Match[str]) -> str:
    """Coordinates to a tenth of a point, lines without the letter that is understood: no visible difference."""
    text = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m.group()):.1f}", attribute.group())
    return text if "C" in text else text.replace("\nL ", " ")


def _attribute(text: str) -> str:
    from html import escape

    return escape(text, quote=True)


def keep_extremes(y: np.ndarray, points: int) -> np.ndarray:
    """Ascending indices of about `points` values of y [n] that keep the ends and every bucket's minimum and maximum.

    Of a stretch that stays at one value only the ends are kept: the line between them is the same.
    """
    n = len(y)
    kept = np.arange(n)
    if n > points:
        edges = np.linspace(0, n, max(points // 2, 1) + 1).astype(np.int64)
        picked = {0, n - 1}
        for a, b in itertools.pairwise(edges):
            picked |= {int(a + y[a:b].argmin()), int(a + y[a:b].argmax())}
        kept = np.array(sorted(picked))
    level = np.diff(y[kept]) == 0
    inside = np.zeros(len(kept), bool)
    inside[1:-1] = level[1:] & level[:-1]
    return kept[~inside]


def fold_colour(index: int, count: int) -> Any:
    """Distinct for up to eight folds, then a ramp."""
    if count <= len(FOLD_COLOURS):
        return list(FOLD_COLOURS.values())[index]
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * index / (count - 1))


def equity_chart(curve: pl.DataFrame, fold: int, points: int = 400) -> str:
    """Cumulative PnL of policy and baselines above the policy's drawdown, in ticks over UTC time."""
    time = curve["ts"].to_numpy().astype("datetime64[ns]")
    grid = {"nrows": 2, "sharex": True, "gridspec_kw": {"height_ratios": [3, 1], "hspace": 0.08}}
    with _figure(WIDTH, 3.9, (0.75, 0.1, 0.1, 0.5), **grid) as (figure, axes):
        top, bottom = axes[0, 0], axes[1, 0]
        top.axhline(0, color=MUTED, linewidth=0.8)
        dotted = {"color": COLOURS["--gross"], "linewidth": 1.0, "linestyle": (0, (2, 1.5))}
        _line(top, time, curve["equity"], points, "policy", color=POLICY, linewidth=1.8, zorder=3)
        _line(top, time, curve["gross"], points, "policy before costs", **dotted)
        for name, (colour, label) in BASELINE_STYLE.items():
            if f"baseline_{name}" in curve.columns:
                _line(top, time, curve[f"baseline_{name}"], points, label, color=colour, linewidth=1.0)
        top.set_ylabel("ticks")
        top.legend(loc="upper left", ncols=3, fontsize=8)
        _drawdown(bottom, time, curve["equity"].to_numpy(), points)
        _utc_axis(bottom)
        for axis in (top, bottom):
            _thousands(axis)
        _room_for_labels((top, bottom))
        return _svg(figure, f"Fold {fold}: cumulative PnL of the policy and the baselines, and drawdown, in ticks")


def _line(axis: Axes, time: np.ndarray, column: pl.Series, points: int, label: str, **style: Any) -> None:
    y = column.to_numpy() / MILLI
    kept = keep_extremes(y, points)
    axis.plot(time[kept], y[kept], label=label, **style)


def _drawdown(axis: Axes, time: np.ndarray, equity: np.ndarray, points: int) -> None:
    from trainer.results.statistics import drawdown

    depth = -drawdown(equity) / MILLI
    kept = keep_extremes(depth, points)
    axis.fill_between(time[kept], depth[kept], 0, color=COLOURS["--loss"], alpha=0.35, linewidth=0)
    axis.plot(time[kept], depth[kept], color=COLOURS["--loss"], linewidth=0.8)
    axis.set_ylabel("drawdown")


def _utc_axis(axis: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axis.set_xlabel("UTC")


def _thousands(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axis.yaxis.set_major_formatter(FuncFormatter(_tick))


def _room_for_labels(axes: Sequence[Axes]) -> None:
    """A left margin for the longest tick label (0.08 inch a character) and the axis label beside it."""
    longest = max(len(_tick(value)) for axis in axes for value in axis.get_yticks())
    left = (0.3 + 0.08 * longest) / WIDTH
    for axis in axes:
        box = axis.get_position()
        axis.set_position((left, box.y0, box.x1 - left, box.height))


def _tick(value: float, _: Any = None) -> str:
    text = f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")


def net_chart(results: Mapping[int, FoldResult]) -> str:
    """Net PnL per 10,000 decisions of each fold with its interval, against the baselines."""
    from matplotlib.ticker import FuncFormatter

    marks = {"imbalance": "D", "buy and hold": "s", "random": "v"}
    with _figure(WIDTH, 0.9 + 0.42 * len(results), (0.6, 0.1, 0.35, 0.5)) as (figure, axes):
        axis = axes[0, 0]
        axis.axvline(0, color=MUTED, linewidth=0.8)
        for y, r in enumerate(results.values()):
            scale = 10_000 / max(r.decisions, 1)
            for name, mark in marks.items():
                if name in r.baselines:
                    colour, label = BASELINE_STYLE[name.replace(" ", "_")]
                    x = r.baselines[name].net_ticks * scale
                    axis.plot([x], [y], mark, color=colour, markersize=5, label=label)
            if r.net_ticks.low is not None and r.net_ticks.high is not None:
                axis.plot([r.net_ticks.low * scale, r.net_ticks.high * scale], [y, y], color=POLICY, linewidth=2.4)
            x = r.policy.net_ticks * scale
            axis.plot([x], [y], "o", color=POLICY, markersize=8, label="policy, with interval")
        axis.set_yticks(range(len(results)), [f"fold {f}" for f in results])
        axis.set_ylim(len(results) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("net ticks per 10,000 decisions")
        axis.xaxis.set_major_formatter(FuncFormatter(_tick))
        handles, labels = axis.get_legend_handles_labels()
        once = dict(zip(labels, handles))  # every fold draws the same labels
        figure.legend(once.values(), once.keys(), loc="upper left", ncols=4, fontsize=8)
        return _svg(figure, "Net PnL of each fold with its interval, against the baselines")


TRAINING = (
    ("l_q", "Q loss"),
    ("l_pi", "policy loss"),
    ("l_v", "value loss"),
    ("l_aux", "aux loss"),
    ("entropy", "entropy, nats"),
    ("grad_norm", "gradient norm"),
    ("wr", "win rate, training"),
    ("hold_pct", "hold_pct, training"),
)
CONTROLLERS = (*(o for o in OUTPUTS if not o.startswith("lr_")), *(f"lr_{g}" for g in GROUPS))


def metrics_chart(lines: Mapping[int, Sequence[dict[str, Any]]], names: Sequence[tuple[str, str]], label: str) -> str:
    """Small multiples over training steps, one line a fold. `names`: (key, title). "" when no line has any of them."""
    names = [(k, t) for k, t in names if any(line.get(k) is not None for fold in lines.values() for line in fold)]
    if not names:
        return ""
    columns = 4
    rows = -(-len(names) // columns)
    points = max(12, min(160, 8 * 160 // len(lines)))
    grid = {"nrows": rows, "ncols": columns, "sharex": True, "gridspec_kw": {"wspace": 0.33, "hspace": 0.32}}
    with _figure(WIDTH, 1.0 + 1.65 * rows, (0.6, 0.1, 0.55, 0.45), **grid) as (figure, axes):
        flat = axes.ravel()
        for axis, (key, title) in zip(flat, names):
            axis.set_title(title)
            for i, (fold, series) in enumerate(lines.items()):
                xy = [(line["step"], line[key]) for line in series if line.get(key) is not None]
                if xy:
                    x, y = (np.array(c, np.float64) for c in zip(*xy))
                    kept = keep_extremes(y, points)
                    colour = fold_colour(i, len(lines))
                    axis.plot(x[kept], y[kept], color=colour, linewidth=1.1, label=f"fold {fold}")
        for axis in flat[len(names) :]:
            axis.set_visible(False)
        _steps_axis(flat, len(names), columns)
        if len(lines) <= len(FOLD_COLOURS):
            figure.legend(*flat[0].get_legend_handles_labels(), loc="upper left", ncols=8, fontsize=8)
        return _svg(figure, label)


def _steps_axis(axes: np.ndarray, count: int, columns: int) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for i, axis in enumerate(axes[:count]):
        axis.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axis.margins(x=0.02)
        if i + columns >= count:  # the lowest of its column: its labels are the column's
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("step")


def action_chart(results: Mapping[int, FoldResult]) -> str:
    """Share of each action among the decisions, one panel a fold."""
    columns = min(len(results), 4)
    rows = -(-len(results) // columns)
    grid = {"nrows": rows, "ncols": columns, "sharex": True, "sharey": True, "gridspec_kw": {"wspace": 0.12}}
    with _figure(WIDTH, 0.3 + 2.5 * rows, (1.15, 0.2, 0.3, 0.45), **grid) as (figure, axes):
        flat = axes.ravel()
        for axis, (fold, r) in zip(flat, results.items()):
            share = [100.0 * r.action_counts.get(name, 0) / max(r.decisions, 1) for name in ACTION_NAMES]
            axis.barh(range(len(ACTION_NAMES)), share, color=POLICY, height=0.7)
            for y, value in enumerate(share):
                axis.text(value + 1, y, f"{value:.1f}", va="center", fontsize=7.5, color=MUTED)
            axis.set_yticks(range(len(ACTION_NAMES)), ACTION_NAMES)
            axis.set_ylim(len(ACTION_NAMES) - 0.5, -0.5)
            axis.set_xlim(0, 118)  # a bar of 100 % leaves its figure room
            axis.set_xticks(range(0, 101, 20))
            axis.grid(axis="y", visible=False)
            axis.set_title(f"fold {fold}")
            axis.set_xlabel("% of decisions")
        for axis in flat[len(results) :]:
            axis.set_visible(False)
        return _svg(figure, "Share of each action among the decisions of each fold")
