"""Stops a study: every training pod saves its state first, and the study can go on later.

python -m workflows.stop my-run
python -m workflows.stop my-run --now
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Context, Namespace, Runs, run_command
from workflows.errors import WorkflowError
from workflows.launch import Backend
from workflows.locate import BackendOption, ClusterRun, locate

_SAVED_WITHIN = 60.0
_NOW_WITHIN = 2.0
_POLL = 0.2


def main(
    run: Annotated[str, typer.Argument(help="run-id, workflow or its beginning; none: the newest")] = "",
    now: Annotated[bool, typer.Option("--now", help="no exit handler (cluster), no time to save (here)")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Stop a study. Training pods get SIGTERM, save their state within their grace, and nothing is started any more.

    Example: python -m workflows.stop my-run
    """
    found = locate(runs, run, backend, context, namespace)
    told = stop_here(found, now) if isinstance(found, Path) else stop_on(found, now)
    print(json.dumps(told) if as_json else "\n".join(in_words(told)))
    return 0


def stop_here(folder: Path, now: bool) -> dict[str, Any]:
    """Signals the process of a submission on this machine and waits until it has left the run."""
    submission = state.read(folder)
    told = {"run": folder.name, "was": submission.phase, "go_on": submission.command}
    if submission.phase != nodes.RUNNING:
        return {**told, "stopped": False}
    os.kill(submission.pid, signal.SIGTERM)
    began, again = time.monotonic(), now
    while state.is_locked(folder):
        waited = time.monotonic() - began
        if again and waited > _NOW_WITHIN:
            os.kill(submission.pid, signal.SIGTERM)  # the second does not wait for anything
            again = False
        if waited > _SAVED_WITHIN:
            raise WorkflowError(
                f"run {folder.name}: process {submission.pid} still saves after {_SAVED_WITHIN:.0f} s\n"
                f"end it without saving: python -m workflows.stop {folder.name} --now"
            )
        time.sleep(_POLL)
    return {**told, "stopped": True}


def stop_on(run: ClusterRun, now: bool) -> dict[str, Any]:
    """Asks the controller to shut the newest workflow down."""
    from workflows.argo import phase_of
    from workflows.kube import ENDED, GROUP, VERSION
    from workflows.pod_logs import read_json

    kube, phase = run.kube, phase_of(run.newest)
    again = f"python -m workflows.resubmit {run.run_id}{kube.flags()}"
    told = {"run": run.run_id, "workflow": run.name, "was": phase, "go_on": again, "stopped": phase not in ENDED}
    if phase not in ENDED:
        kind = {"group": GROUP, "version": VERSION, "plural": "workflows", "namespace": kube.namespace}
        body = {"spec": {"shutdown": "Terminate" if now else "Stop"}}
        read_json(kube, kube.custom.patch_namespaced_custom_object, **kind, name=run.name, body=body)
    return told


def in_words(told: dict[str, Any]) -> list[str]:
    what = f"workflow {told['workflow']}" if "workflow" in told else f"run {told['run']}"
    if not told["stopped"]:
        return [f"{what}: not running ({str(told['was']).lower()}), nothing to stop"]
    if "workflow" not in told:
        return [f"{what}: stopped; its folds go on from what they saved last", f"go on with: {told['go_on']}"]
    return [
        f"{what}: stopping; training pods save their state and leave, no other is started",
        f"go on with: {told['go_on']}",
    ]


if __name__ == "__main__":
    run_command(main)
