"""Follows a study from another terminal until it ends: a run on this machine, or one on a cluster.

python -m workflows.watch           the newest run
python -m workflows.watch my-run --json
python -m workflows.watch my-run --namespace foxhunt --context h100
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Context, Namespace, Runs, run_command
from workflows.launch import Backend
from workflows.locate import BackendOption, locate
from workflows.nodes import Node
from workflows.screen import describe, last_metrics, screen
from workflows.state import Submission

if TYPE_CHECKING:
    from workflows.kube import Kube

_POLL = 0.5


def main(
    run: Annotated[str, typer.Argument(help="run-id, workflow or its beginning; none: the newest")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a look")] = False,
    once: Annotated[bool, typer.Option("--once", help="look once")] = False,
    heal: Annotated[bool, typer.Option(help="delete a pod whose main container is dead (cluster)")] = True,
    silent_after: Annotated[float, typer.Option(min=1, help="seconds without a line that alarm (cluster)")] = 180.0,
    every: Annotated[float, typer.Option(min=0.1, help="seconds between looks")] = _POLL,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Follow a study: a line for each fold with step, rate, ETA, attempts and why past ones ended.

    On a cluster also why a pod waits, a fold that has gone silent, a lost node; a pod whose main container is dead is
    deleted, so that its fold goes on. Ends with the study's exit code: 0 passed, 3 gate failed, 75 interrupted.

    Example: python -m workflows.watch my-run
    """
    found = locate(runs, run, backend, context, namespace)
    if isinstance(found, Path):
        return watch_here(found, as_json, once, every)
    kube, name = found.kube, found.name
    try:
        return follow(kube, name, as_json=as_json, once=once, heal=heal, silent_after=silent_after, every=every)
    except KeyboardInterrupt:
        print(f"\nworkflow {name} goes on without this terminal", file=sys.stderr)
        print(f"stop it: python -m workflows.stop {name}{kube.flags()}", file=sys.stderr)
        return 130


def follow(kube: Kube, name: str, **options: Any) -> int:
    """Watches a workflow to its end; returns the study's exit code, 2 when it was deleted meanwhile.

    Options and their meaning: `workflows.watch_cluster.follow`. KeyboardInterrupt passes through.
    """
    from workflows import watch_cluster

    return watch_cluster.follow(kube, name, **options)


def watch_here(folder: Path, as_json: bool, once: bool, every: float) -> int:
    """A run on this machine, by the files it leaves."""
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
