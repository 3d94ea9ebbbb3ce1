"""Lists the studies under a runs folder, and those on the cluster of the kubeconfig.

python -m workflows.list
python -m workflows.list --json
python -m workflows.list --backend argo --namespace foxhunt
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
from workflows.errors import UsageError
from workflows.kube import NAMESPACE
from workflows.launch import Backend
from workflows.locate import STUDIES, BackendOption, connect, has_cluster, identity, studies, template_of
from workflows.state import Submission

if TYPE_CHECKING:
    from workflows.kube import Kube

HERE = "here"


def main(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """List studies, newest first: when, how far, how it ended. Those of the cluster come after those of this machine.

    Example: python -m workflows.list --runs runs
    """
    rows = [] if backend is Backend.argo else rows_here(runs)
    problem = ""
    if backend is Backend.argo or (backend is Backend.auto and (context or namespace or has_cluster())):
        try:
            rows += rows_on(connect(context, namespace))
        except UsageError as error:
            if backend is Backend.argo or context or namespace:
                raise
            problem = str(error).partition("\n")[0]
    if as_json:
        print("".join(json.dumps(row) + "\n" for row in rows), end="")
    elif not rows:
        where = (
            f"no studies in namespace {namespace or NAMESPACE}" if backend is Backend.argo else f"no runs under {runs}"
        )
        print(f"{where}\nstart one: python -m workflows.submit --folds 3")
    else:
        print_table(rows)
    if problem:
        print(f"not listed: {problem}", file=sys.stderr)


def rows_here(runs: Path) -> list[dict[str, Any]]:
    rows = []
    for folder in state.all_runs(runs):
        try:
            rows.append(summarise(state.read(folder)))
        except UsageError as error:
            rows.append({"run": folder.name, "where": HERE, "phase": "unreadable", "why": str(error)})
    return rows


def rows_on(kube: Kube) -> list[dict[str, Any]]:
    return [summarise_workflow(workflow, kube.namespace, time.time()) for workflow in studies(kube)]


def summarise_workflow(workflow: dict[str, Any], namespace: str, now: float) -> dict[str, Any]:
    """One row, as `summarise` makes it; and the workflow's name and the folds' wr and hold_pct."""
    from workflows import status
    from workflows.study_screen import duration

    study = status.build(workflow)
    gate = next((task for task in study.tasks if task.task == status.GATE), None)
    over = gate is not None and gate.phase in status.OVER
    folds = study.folds
    done, asked = sum(fold.phase == status.SUCCEEDED for fold in folds), study.parameters.get("folds", "?")
    return {
        "run": identity(workflow),
        "where": namespace,
        "workflow": study.name,
        "recipe": template_of(workflow),
        "phase": study.phase,
        "folds": f"{done}/{len(folds) or asked}" if template_of(workflow) in STUDIES else "",
        "exit": status.exit_code(study),
        "verdict": gate.outputs.get("verdict", "") if gate is not None and over else "",
        "wr": " ".join(f.outputs.get("wr") or "-" for f in folds) if any(f.outputs.get("wr") for f in folds) else "",
        "hold_pct": " ".join(f.outputs.get("hold-pct") or "-" for f in folds) if folds else "",
        "age": duration(now - study.started) if study.started is not None else "",
        "started": "" if study.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(study.started)),
        "data": study.parameters.get("data", ""),
    }


def summarise(submission: Submission) -> dict[str, Any]:
    """One row: run, recipe, phase, folds done, exit code, verdict, start, data."""
    folds = [node for node in submission.nodes if node.task == "train"]
    gate = next((node for node in submission.nodes if node.task == "gate"), None)
    return {
        "run": submission.run_id,
        "where": HERE,
        "recipe": submission.recipe,
        "phase": submission.phase,
        "folds": f"{sum(n.phase == nodes.SUCCEEDED for n in folds)}/{len(folds) or submission.parameters['folds']}",
        "exit": submission.exit_code,
        "verdict": verdict(gate),
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(submission.started)),
        "data": submission.parameters["data"],
    }


def verdict(gate: nodes.Node | None) -> str:
    if gate is None or gate.phase not in (nodes.SUCCEEDED, nodes.FAILED):
        return ""
    return "passed" if gate.phase == nodes.SUCCEEDED else "failed"


def print_table(rows: list[dict[str, Any]]) -> None:
    names = ["run", "where", "recipe", "phase", "folds", "exit", "verdict", "wr", "started", "age", "data"]
    names = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    cells = [[name.upper() for name in names]]
    cells += [[("" if row.get(name) is None else str(row.get(name, ""))) for name in names] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    run_command(main)
