"""Runs the failed folds of a study again, under the same run-id; what is done stays done.

python -m workflows.resubmit            the newest run
python -m workflows.resubmit my-run
python -m workflows.resubmit my-run --backend argo --watch
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from workflows import nodes, state
from workflows.cli import DEFAULT_RUNS, Context, Namespace, Runs, read_by_somebody, run_command
from workflows.errors import UsageError
from workflows.hardware import side_by_side
from workflows.launch import AsJson, Backend, DryRun, How, Watch
from workflows.local import GATE_FAILED
from workflows.locate import STUDIES, BackendOption, ClusterRun, locate, template_of
from workflows.state import Submission
from workflows.submit import same_command, start


def main(
    run: Annotated[str, typer.Argument(help="run-id, workflow or its beginning; none: the newest")] = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="pods side by side here; none: as cores allow")] = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    backend: BackendOption = Backend.auto,
    context: Context = "",
    namespace: Namespace = "",
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Run the failed folds of a study again, then gate and report; also goes on with a study that was stopped.

    Example: python -m workflows.resubmit my-run
    """
    found = locate(runs, run, backend, context, namespace)
    if isinstance(found, ClusterRun):
        return resubmit_on(found, How(watch, dry_run, as_json))
    with read_by_somebody(not dry_run):
        return resubmit_here(found, runs, jobs, dry_run)


def resubmit_here(folder: Path, runs: Path, jobs: int | None, dry_run: bool) -> int:
    submission = state.read(folder)
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


def resubmit_on(run: ClusterRun, how: How) -> int:
    """A new workflow with the old parameters and run-id, for the folds that no workflow of the run finished."""
    from workflows import launch
    from workflows.argo import Settled, refuse_run_in_use, workflow_object
    from workflows.argo_nodes import parameters_of

    kube = run.kube
    if template_of(run.newest) not in STUDIES:
        raise UsageError(f"{run.name}: no study, it has no folds\nsubmit it again: {command_of(run.newest)}")
    refuse_run_in_use(kube, run.run_id)
    again = folds_to_run_on(run)
    if again == []:
        print(f"run {run.run_id}: every fold is done, nothing to run again")
        return 0
    given = parameters_of({**run.newest, "status": {}})
    only = "" if again is None else ",".join(map(str, again))
    settled = Settled(template_of(run.newest), run.run_id, {**given, "run-id": run.run_id, "only-folds": only})
    body = workflow_object(settled, kube.namespace, " ".join(same_command()))
    name = body["metadata"]["name"]
    if how.dry_run:
        return launch.dry_run(kube, body, how, "")
    kube.create("workflows", body)
    if how.as_json:
        print(json.dumps(launch.told(kube, settled, name)), flush=True)
    else:
        said = "all of it" if again is None else f"fold {', '.join(map(str, again))}"
        print(f"run {run.run_id}: {said} again, with the parameters of {run.name}\nworkflow {name} created", flush=True)
    return launch.follow(kube, name, how.as_json) if how.watch else launch.say_next(kube, name, how)


def command_of(workflow: dict[str, Any]) -> str:
    """How it was submitted, as far as it is known."""
    from workflows.argo import COMMAND_ANNOTATION

    annotations = workflow["metadata"].get("annotations") or {}
    return str(annotations.get(COMMAND_ANNOTATION, "python -m workflows.precompute ..."))


def folds_to_run_on(run: ClusterRun) -> list[int] | None:
    """Folds that were asked for and that no workflow of the run finished.

    None when all tasks are due again: before the first fold, or when the verdict is missing (done folds are no-ops).
    """
    from workflows import status

    newest = status.build(run.newest)
    asked: set[int] = set()
    done: set[int] = set()
    for workflow in run.workflows:
        study = status.build(workflow)
        only = [int(part) for part in study.parameters.get("only-folds", "").split(",") if part.strip().isdecimal()]
        asked |= set(only or range(int(study.parameters.get("folds") or 0)))
        done |= {task.fold for task in study.folds if task.fold is not None and task.phase == status.SUCCEEDED}
    if asked <= done:
        return [] if status.exit_code(newest) in (0, GATE_FAILED) else None
    return sorted(asked - done) if done else None


if __name__ == "__main__":
    run_command(main)
