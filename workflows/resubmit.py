"""Runs the failed folds of a study again, under the same run-id; what is done stays done.

python -m workflows.resubmit            the newest run
python -m workflows.resubmit my-run
"""

from __future__ import annotations

from typing import Annotated

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Runs, run_command
from workflows.hardware import side_by_side
from workflows.local import GATE_FAILED
from workflows.state import Submission
from workflows.submit import start


def main(
    run: Annotated[str, typer.Argument(help="run-id or its beginning; none: the newest")] = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="pods side by side; none: as cores allow")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would run, start nothing")] = False,
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Run the failed folds of a study again, then gate and report.

    Example: python -m workflows.resubmit my-run
    """
    submission = state.read(state.find(runs, run))
    again = folds_to_run(submission)
    if again == []:
        print(f"run {submission.run_id}: every fold is done, nothing to run again")
        return 0
    parameters = {**submission.parameters, "run-id": submission.run_id, "runs": str(runs)}
    parameters["only-folds"] = "" if again is None else ",".join(again)
    said = "all of it" if again is None else f"fold {', '.join(again)}"
    print(f"run {submission.run_id}: {said} again, as submitted by\n  {submission.command}", flush=True)
    return start(
        parameters, submission.recipe, jobs or side_by_side(len(again or ()) or int(parameters["folds"])), dry_run
    )


def folds_to_run(submission: Submission) -> list[str] | None:
    """Numbers of the folds that are not done; None when all tasks are due again (done folds are no-ops)."""
    folds = [node for node in submission.nodes if node.task == "train"]
    all_done = all(node.phase == nodes.SUCCEEDED for node in folds)
    judged = submission.exit_code in (0, GATE_FAILED)
    if not folds or (all_done and not judged):
        return None
    return [node.inputs["fold"] for node in folds if node.phase != nodes.SUCCEEDED]


if __name__ == "__main__":
    run_command(main)
