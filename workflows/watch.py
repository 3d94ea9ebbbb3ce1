"""Follows a study from another terminal until it ends.

python -m workflows.watch           the newest run
python -m workflows.watch my-run --json
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Runs, run_command
from workflows.nodes import Node
from workflows.screen import describe, last_metrics, screen
from workflows.state import Submission

_POLL = 0.5


def main(
    run: Annotated[str, typer.Argument(help="run-id or its beginning; none: the newest")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a look")] = False,
    once: Annotated[bool, typer.Option("--once", help="look once")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="seconds between looks")] = _POLL,
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Follow a study: a line for each pod with step, rate, attempts and why past ones ended.

    Ends with the study's exit code (75 when it was interrupted).

    Example: python -m workflows.watch my-run
    """
    folder = state.find(runs, run)
    if as_json:
        submission = state.read(folder)
        while True:
            print(json.dumps(look(submission)), flush=True)
            if once or submission.phase != nodes.RUNNING:
                return exit_code(submission)
            time.sleep(every)
            submission = state.read(folder)
    with screen() as view:
        view.say(f"run {folder.name}")
        while True:
            submission = state.read(folder)
            for node in submission.nodes:
                view.show(node)
            if once or submission.phase != nodes.RUNNING:
                break
            time.sleep(every)
    print(f"{submission.phase.lower()}" + ("" if submission.exit_code is None else f", exit {submission.exit_code}"))
    return exit_code(submission)


def exit_code(submission: Submission) -> int:
    """The study's own; 0 while it runs, 75 when its process is gone."""
    if submission.phase == nodes.RUNNING:
        return 0
    return 75 if submission.exit_code is None else submission.exit_code


def look(submission: Submission) -> dict[str, Any]:
    """The whole study as one JSON-ready object."""
    return {"run": submission.run_id, "phase": submission.phase, "nodes": [look_at(n) for n in submission.nodes]}


def look_at(node: Node) -> dict[str, Any]:
    step, total, _ = describe(node)
    metrics = last_metrics(node.attempts[-1].log) if node.attempts else {}
    past = [{"exit_code": a.exit_code, "message": a.message, "seconds": _seconds(a)} for a in node.attempts if a.ended]
    return {
        "name": node.name,
        "label": node.label,
        "phase": node.phase,
        "message": node.message,
        "step": step,
        "total": total,
        "attempts": len(node.attempts),
        "ended": past,
        "metrics": metrics,
    }


def _seconds(attempt: nodes.Attempt) -> float:
    return round((attempt.ended or attempt.started) - attempt.started, 3)


if __name__ == "__main__":
    run_command(main)
