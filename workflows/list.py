"""Lists the studies under a runs folder.

python -m workflows.list
python -m workflows.list --json
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Runs, run_command
from workflows.errors import UsageError
from workflows.state import Submission


def main(
    runs: Runs = DEFAULT_RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """List studies, newest first: when, how far, how it ended.

    Example: python -m workflows.list --runs runs
    """
    rows = []
    for folder in state.all_runs(runs):
        try:
            rows.append(summarise(state.read(folder)))
        except UsageError as error:
            rows.append({"run": folder.name, "phase": "unreadable", "why": str(error)})
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
    elif not rows:
        print(f"no runs under {runs}\nstart one: python -m workflows.submit --folds 3")
    else:
        print_table(rows)


def summarise(submission: Submission) -> dict[str, Any]:
    """One row: run, recipe, phase, folds done, exit code, verdict, start, data."""
    folds = [node for node in submission.nodes if node.task == "train"]
    gate = next((node for node in submission.nodes if node.task == "gate"), None)
    return {
        "run": submission.run_id,
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
    names = ["run", "recipe", "phase", "folds", "exit", "verdict", "started", "data"]
    cells = [[name.upper() for name in names]]
    cells += [[("" if row.get(name) is None else str(row.get(name, ""))) for name in names] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    run_command(main)
