"""Log-only metrics: JSON lines in the fold folder and on stdout; on a terminal one progress bar instead.

One file an attempt (`metrics-<attempt>.jsonl`), read as one series: lines of an earlier attempt past the step from
which the next one resumed are superseded, never doubled.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from trainer.files import append_json, read_json_lines
from trainer.learn.ledger import read_attempts

_NAME = re.compile(r"metrics-(\d+)\.jsonl$")


def metrics_path(folder: Path, attempt: int) -> Path:
    return folder / f"metrics-{attempt}.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All attempts' lines as one series with rising steps."""
    resumed = {a.attempt: a.resumed_step for a in read_attempts(folder)}
    files = sorted((int(m.group(1)), p) for p in folder.glob("metrics-*.jsonl") if (m := _NAME.search(p.name)))
    series: list[dict[str, Any]] = []
    for attempt, path in files:
        start = resumed.get(attempt, 0)
        while series and series[-1]["step"] > start:
            series.pop()
        series += [line for line in read_json_lines(path) if isinstance(line.get("step"), int)]
    return series


def json_safe(values: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinity are not JSON: they become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def write_progress(step: int, total: int) -> None:
    """`step/total` where Argo and the local runner look for it. A full disk costs the line, not the run."""
    path = os.environ.get("ARGO_PROGRESS_FILE", "")
    if not path:
        return
    try:
        with open(path, "w") as file:
            file.write(f"{step}/{total}\n")
    except OSError as error:
        _warn("progress not written, training goes on", path, error)


def _warn(what: str, path: str, error: OSError) -> None:
    import structlog  # the results stage reads metrics too, and imports nothing heavy

    structlog.get_logger().warning(what, path=path, why=error.strerror)


class MetricsWriter:
    """Writes lines for one attempt, the progress file of the workflow, and either a bar or lines on stdout."""

    def __init__(self, folder: Path, attempt: int, total: int, fold: int, quiet: bool = False):
        self.path, self.attempt, self.total, self.fold = metrics_path(folder, attempt), attempt, total, fold
        self.quiet = quiet
        self.bar: Any = None
        if sys.stdout.isatty() and not quiet:
            self.bar = _Bar(fold, total)

    def write(self, step: int, values: dict[str, Any]) -> None:
        line = json_safe({"step": step, "attempt": self.attempt, "time": round(time.time(), 3), **values})
        try:
            append_json(self.path, line)
        except (
            OSError
        ) as error:  # a full disk costs lines, not the run: whether that can go on is the checkpoint's affair
            _warn("metrics not written, training goes on", str(self.path), error)
        write_progress(step, self.total)
        if self.bar is not None:
            self.bar.show(step, line)
        elif not self.quiet:
            print(json.dumps({"fold": self.fold, **line}), flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class _Bar:
    """A rich progress bar with the figures a person watches."""

    def __init__(self, fold: int, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.rich = Progress(
            TextColumn(f"fold {fold}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self.task = self.rich.add_task("train", total=total, figures="")
        self.rich.start()

    def show(self, step: int, line: dict[str, Any]) -> None:
        parts = [f"{k} {line[k]:.3g}" for k in ("sps", "l_q", "l_pi", "wr", "hold_pct") if line.get(k) is not None]
        self.rich.update(self.task, completed=step, figures="  ".join(parts))

    def close(self) -> None:
        self.rich.stop()
