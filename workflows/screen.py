"""How a study looks while it runs: one progress line a fold on a terminal, plain lines at changes elsewhere."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from workflows import nodes
from workflows.nodes import Node, read_progress

_METRICS = ("sps", "l_q", "entropy", "wr", "hold_pct")
_PLAIN_EVERY = 10.0  # seconds between lines of one pod that only moved on
_HEARTBEAT = 60.0  # and between lines that say nothing new
_TAIL = 8192


def last_metrics(log: str) -> dict[str, Any]:
    """The newest JSON line of a log, {} when there is none. Lines that are not ours are skipped."""
    try:
        with Path(log).open("rb") as handle:
            handle.seek(max(0, handle.seek(0, 2) - _TAIL))
            lines = handle.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and "step" in value:
                return value
    return {}


def describe(node: Node) -> tuple[int, int, str]:
    """Step, total and a few words on one pod."""
    log = node.attempts[-1].log if node.attempts else ""
    step, total = (read_progress(log) if log else None) or (0, 0)
    words = []
    if len(node.attempts) > 1:
        words.append(f"attempt {len(node.attempts)} ({node.attempts[-2].message})")
    if node.message:
        words.append(node.message)
    metrics = last_metrics(log) if log and node.phase == nodes.RUNNING else {}
    if node.phase == nodes.RUNNING and 0 < total <= step:
        return step, total, "  ".join([*words, "trained, evaluating"])
    for name in _METRICS:
        if isinstance(value := metrics.get(name), int | float):
            words.append(f"{name} {value:.4g}")
    return step, total, "  ".join(words)


class PlainScreen:
    """One line a change, for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.phases: dict[str, str] = {}
        self.said: dict[str, tuple[float, str]] = {}

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self.out.flush()

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def show(self, node: Node) -> None:
        step, total, words = describe(node)
        steps = f"  {step}/{total}" if total else ""
        label = f"  {node.label}" if node.label != node.name else ""
        line = f"{node.name:<12} {node.phase.lower():<10}{label}{steps}{'  ' + words if words else ''}"
        now, state = time.monotonic(), f"{node.phase} {len(node.attempts)}"
        then, before = self.said.get(node.name, (0.0, ""))
        wait = _HEARTBEAT if line == before else _PLAIN_EVERY
        if self.phases.get(node.name) == state and now - then < wait:
            return
        self.phases[node.name], self.said[node.name] = state, (now, line)
        self.say(line)


class TerminalScreen:
    """A progress bar a pod."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("{task.fields[mark]}"),
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            refresh_per_second=4,
        )
        self.bars: dict[str, Any] = {}

    def __enter__(self) -> TerminalScreen:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)

    def show(self, node: Node) -> None:
        if node.name not in self.bars:
            self.bars[node.name] = self.progress.add_task(node.label, total=None, mark=" ", words="")
        step, total, words = describe(node)
        ended = node.phase not in (nodes.RUNNING, nodes.PENDING)
        mark = {nodes.SUCCEEDED: "[green]✓[/]", nodes.RUNNING: " ", nodes.PENDING: "…"}.get(node.phase, "[red]✗[/]")
        if node.phase == nodes.SUCCEEDED:
            step = total = total or 1
        self.progress.update(self.bars[node.name], completed=step, total=total or None, mark=mark, words=words)
        if ended:
            self.progress.stop_task(self.bars[node.name])


def screen() -> PlainScreen | TerminalScreen:
    return TerminalScreen() if sys.stdout.isatty() else PlainScreen()
