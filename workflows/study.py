"""Runs a study on this machine from settled parameters: lock, runner, screen, state, and what is said at the end."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from workflows import nodes, state
from workflows.errors import UsageError
from workflows.hardware import gpus
from workflows.local import INTERRUPTED, LOCAL_BACKOFF, LocalRunner, Outcome
from workflows.nodes import Node
from workflows.screen import PlainScreen, TerminalScreen, describe, screen
from workflows.state import Submission

PRECOMPUTE, GATE, REPORT = "precompute", "gate", "report"
_TICK = 0.5  # seconds between looks at progress files
_SHOWN_LINES = 12


def run_study(workflow: dict[str, Any], parameters: dict[str, str], recipe: str, command: list[str], jobs: int) -> int:
    """Runs the workflow under its run's lock; returns the study's exit code."""
    folder = state.run_folder(Path(parameters["runs"]), recipe, parameters["run-id"])
    lock = state.lock_run(folder)
    try:
        submission = Submission(
            run_id=parameters["run-id"],
            recipe=recipe,
            command=shlex.join(command),
            parameters=parameters,
            started=time.time(),
            pid=os.getpid(),
            jobs=jobs,
            nodes=earlier_folds(folder) if parameters.get("only-folds") else [],
        )
        outcome = _run(workflow, submission, folder, lock)
    finally:
        os.close(lock)
    with suppress(BrokenPipeError):  # its exit code stands, whoever still reads
        conclude(outcome, submission, folder)
    return outcome.exit_code


def backoff_scale() -> float:
    """FOXHUNT_LOCAL_BACKOFF: waits before a retry, as a share of the template's (0: none)."""
    text = os.environ.get("FOXHUNT_LOCAL_BACKOFF", str(LOCAL_BACKOFF))
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"FOXHUNT_LOCAL_BACKOFF={text}: not a number\nunset it, or say 0.1 for waits of 1 s, 2 s ..."
        ) from None


def earlier_folds(folder: Path) -> list[Node]:
    """Folds of the submission before this one, which runs only some of them."""
    try:
        return [node for node in state.read(folder).nodes if node.task == "train"]
    except UsageError:  # the first submission of this run
        return []


def _run(workflow: dict[str, Any], submission: Submission, folder: Path, lock: int) -> Outcome:
    with screen() as view:

        def changed(node: Node) -> None:
            submission.node(node)
            try:
                state.write(folder, submission)
            except OSError as error:  # a full disk is the folds' business: they keep their checkpoints and retry
                view.say(f"warning: {folder}: {error.strerror}")
            view.show(node)
            if node.task == PRECOMPUTE and node.phase == nodes.SUCCEEDED:  # what was dropped, and the folds' windows
                view.say("\n".join(f"  {line}" for line in log_lines(node.attempts[-1].log)))

        runner = LocalRunner(
            workflow,
            submission.parameters,
            folder / "logs",
            jobs=submission.jobs,
            backoff_scale=backoff_scale(),
            changed=changed,
            keep_open=(lock,),
            gpus=gpus(),
        )
        state.write(folder, submission)
        outcome = asyncio.run(_with_ticks(runner, view))
    submission.phase = state.INTERRUPTED_PHASE if outcome.interrupted else outcome.phase
    submission.exit_code, submission.finished = outcome.exit_code, time.time()
    state.write(folder, submission)
    return outcome


async def _with_ticks(runner: LocalRunner, view: PlainScreen | TerminalScreen) -> Outcome:
    """Refreshes the progress of running pods while the workflow runs."""

    async def tick() -> None:
        said = False
        while True:
            await asyncio.sleep(_TICK)
            if runner.signals and not said:
                view.say("stopping: every process saves its state first (once more: stop at once)")
                said = True
            for node in runner.nodes:
                if node.phase == nodes.RUNNING:
                    view.show(node)

    ticking = asyncio.create_task(tick())
    try:
        return await runner.run()
    finally:
        ticking.cancel()


def conclude(outcome: Outcome, submission: Submission, folder: Path) -> None:
    """The gate's own table, the report, and for whatever went wrong its last words and what to type."""
    by_name = {node.name: node for node in outcome.nodes}
    if outcome.interrupted:
        _say_interrupted(outcome, submission)
        return
    for node in outcome.nodes:
        if node.phase in (nodes.FAILED, nodes.ERROR) and node.task != GATE:
            _say_failed(node)
    if (gate := by_name.get(GATE)) and gate.attempts:
        print("\n" + "\n".join(log_lines(gate.attempts[-1].log)))
    if (report := by_name.get(REPORT)) and "report" in report.artifacts:
        print(f"\nreport: {report.artifacts['report']}")
    print(f"run:    {folder}  ({time.time() - submission.started:.0f} s)")
    failed = [n for n in outcome.nodes if n.task == "train" and n.phase in (nodes.FAILED, nodes.ERROR)]
    if failed:
        print(f"failed folds again: python -m workflows.resubmit {submission.run_id}{_runs_flag(submission)}")


def _say_interrupted(outcome: Outcome, submission: Submission) -> None:
    print("\ninterrupted; every fold goes on from its newest checkpoint:")
    for node in outcome.nodes:
        if node.task == "train":
            print(f"  {node.label}: {_where(node)}")
    print(f"go on with the same command:\n  {submission.command}")


def _where(node: Node) -> str:
    if not node.attempts or node.phase == nodes.SUCCEEDED:
        return "done" if node.phase == nodes.SUCCEEDED else "not started"
    if said := node.attempts[-1].message.partition(": ")[2]:  # it knows what it saved, if anything
        return said
    step, total, _ = describe(node)
    return f"step {step}/{total}, {'saved' if node.exit_code == INTERRUPTED else node.message}"


def _say_failed(node: Node) -> None:
    print(f"\n{node.label}: {node.message.partition(': ')[0]}", file=sys.stderr)  # what it said follows whole
    if node.attempts:
        lines = log_lines(node.attempts[-1].log)
        first = next(
            (i for i, line in enumerate(lines) if line.startswith("error: ")), max(0, len(lines) - _SHOWN_LINES)
        )
        print("\n".join(f"  {line}" for line in lines[first : first + _SHOWN_LINES]), file=sys.stderr)
        print(f"  log: {node.attempts[-1].log}", file=sys.stderr)


def _runs_flag(submission: Submission) -> str:
    runs = submission.parameters["runs"]
    return "" if runs == "runs" else f" --runs {shlex.quote(runs)}"


def log_lines(log: str) -> list[str]:
    """A log without its first line, the command."""
    try:
        lines = Path(log).read_text(errors="replace").splitlines()
    except OSError as error:
        return [f"(no log: {error})"]
    return lines[1:] if lines and lines[0].startswith("$ ") else lines
