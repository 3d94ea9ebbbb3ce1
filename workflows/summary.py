"""The exit handler of a study: how it ended, which pods failed and why, where the report is.

python -m workflows.summary --status Failed --failures '[]' --run-id my-run --runs runs
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from workflows.cli import DEFAULT_RUNS, Runs, run_command


def main(
    status: Annotated[str, typer.Option(help="the workflow's phase")],
    failures: Annotated[str, typer.Option(help="JSON list of failed pods, as Argo writes it")] = "[]",
    run_id: Annotated[str, typer.Option(help="name of the run; empty: unknown")] = "",
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Print how a study ended.

    Example: python -m workflows.summary --status Succeeded --run-id my-run
    """
    print(f"study {run_id or '(derived run-id)'}: {status}")
    for line in failed_pods(failures):
        print(line)
    report = runs / "alpha-rl-runs" / run_id / "report.html"
    if run_id and report.is_file():
        print(f"report: {report}")


def failed_pods(failures: str) -> list[str]:
    """One line a failed pod. Attempts of a retried pod are listed by Argo too; equal lines are said once.

    Argo's `workflow.failures` is the JSON list quoted once more, as a JSON string.
    """
    try:
        found = json.loads(failures or "[]") or []
        found = json.loads(found) or [] if isinstance(found, str) else found  # none at all: the string "null"
    except ValueError:
        return [f"failures: {failures}"]
    lines = [f"  {f.get('displayName', '?')}: {f.get('phase', '')} {f.get('message', '')}".rstrip() for f in found]
    return list(dict.fromkeys(lines))


if __name__ == "__main__":
    run_command(main)
