"""Logs of a study on a cluster, across attempts and workflows of its run: from pods, from the claim for gone ones."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from workflows import status
from workflows.errors import UsageError, WorkflowError, nearest
from workflows.feed import Feed
from workflows.kube import WORKFLOW_LABEL, ClusterError
from workflows.locate import ClusterRun
from workflows.pod_logs import is_executors, lines_of, open_stream, read_json
from workflows.pod_state import container
from workflows.reader import read_run
from workflows.status import Attempt, Task

_POLL = 1.0
_WRITES = {"running", "terminated"}  # states of a container that has a log


@dataclass(frozen=True)
class Piece:
    """One attempt of one task."""

    task: Task
    attempt: Attempt

    def header(self) -> str:
        where = f" on {self.attempt.node}" if self.attempt.node else ""
        why = f": {self.attempt.why}" if self.attempt.why else ""
        return f"--- {self.task.name} attempt {self.attempt.number}, pod {self.attempt.pod}{where}{why} ---"


def cluster_lines(run: ClusterRun, wanted: str, which: slice, follow: bool) -> Iterator[str]:
    """Lines, each once; with several tasks each line begins with its task's name."""
    pieces = pieces_of(run, wanted, which)
    names = list(dict.fromkeys(piece.task.name for piece in pieces))
    if not pieces and not follow:
        known = list(dict.fromkeys(p.task.name for p in pieces_of(run, "", slice(None))))
        hint = nearest(wanted, known) if wanted else ""
        there = f"; there are: {', '.join(known)}" if known else ", it has not started"
        which_one = f"no such logs of {wanted!r}" if wanted else "no logs yet"
        raise UsageError(f"run {run.run_id}: {which_one}{hint}{there}")
    width = 0 if wanted else max([12, *map(len, names)])
    if follow:
        yield from _following(run, wanted, which, pieces, width)
    else:
        yield from _history(run, pieces, width, alive=True)


def pieces_of(run: ClusterRun, wanted: str, which: slice) -> list[Piece]:
    """Attempts of all workflows of the run, task by task, oldest first."""
    found: dict[str, list[Piece]] = {}
    for workflow in reversed(run.workflows):
        for task in status.build(workflow).tasks:
            if not wanted or task.name == wanted:
                found.setdefault(task.name, []).extend(Piece(task, attempt) for attempt in task.attempts)
    return [piece for pieces in found.values() for piece in pieces[which]]


def _history(run: ClusterRun, pieces: list[Piece], width: int, alive: bool) -> Iterator[str]:
    """What pods and claim hold. `alive` False leaves out the pods that still run."""
    pods = living_pods(run)
    gone = [p for p in pieces if p.attempt.pod not in pods and p.task.task == status.TRAIN]
    claim = Claim(run, gone)
    for piece in pieces:
        pod = pods.get(piece.attempt.pod)
        if not alive and pod is not None and not piece.attempt.why and piece.task.phase not in status.OVER:
            continue
        lines = _pod_lines(run, pod) if pod is not None else claim.lines(piece)
        yield from _prefixed(piece, lines, width)


def _prefixed(piece: Piece, lines: Iterator[str], width: int) -> Iterator[str]:
    prefix = f"{piece.task.name:<{width}} " if width else ""
    yield prefix + piece.header()
    yield from (prefix + line for line in lines)


def living_pods(run: ClusterRun) -> dict[str, dict[str, Any]]:
    """Pods that are still there, by name, of all workflows of the run."""
    names = ", ".join(workflow["metadata"]["name"] for workflow in run.workflows)
    selector = {"label_selector": f"{WORKFLOW_LABEL} in ({names})"}
    told = read_json(run.kube, run.kube.core.list_namespaced_pod, run.kube.namespace, **selector)
    return {pod["metadata"]["name"]: pod for pod in told["items"]}


def _pod_lines(run: ClusterRun, pod: dict[str, Any]) -> Iterator[str]:
    name, kube = pod["metadata"]["name"], run.kube
    if not (container(pod).get("state") or {}).keys() & _WRITES:
        yield "(its container has not started)"
        return
    try:
        with open_stream(kube, kube.core.read_namespaced_pod_log, name, kube.namespace, container="main") as stream:
            yield from (line for line in lines_of(kube, stream) if not is_executors(line))
    except ClusterError as error:
        yield f"(its log can't be read: {str(error).partition(chr(10))[0]})"


class Claim:
    """Logs that trainers left in their folds' folders, read all at once when the first is asked for."""

    def __init__(self, run: ClusterRun, gone: list[Piece]) -> None:
        self.run, self.gone = run, gone
        self.files: dict[str, bytes] | None = None
        self.problem = ""

    def lines(self, piece: Piece) -> Iterator[str]:
        if piece.task.task != status.TRAIN:
            yield "(its pod is gone, and with it its log)"
            return
        if self.files is None:
            self._read()
        found = logs_of_pod(self.files or {}, piece.task.fold, piece.attempt.pod)
        if not found:
            why = self.problem or "it ended before the trainer wrote any"
            yield f"(its pod is gone; no log of it on the claim: {why})"
        for name, text in found:
            yield f"(from the claim: {name})"
            yield from text.splitlines()

    def _read(self) -> None:
        folds = sorted({piece.task.fold for piece in self.gone if piece.task.fold is not None})
        globs = [f"fold{fold}/{name}" for fold in folds for name in ("attempts.jsonl", "log-*.txt")]
        try:
            self.files = read_run(self.run.kube, self.run.newest, self.run.run_id, globs)
        except WorkflowError as error:
            self.files, self.problem = {}, str(error).partition("\n")[0]


def logs_of_pod(files: dict[str, bytes], fold: int | None, pod: str) -> list[tuple[str, str]]:
    """Name and text of the logs that a pod wrote; the fold's ledger says which attempts were its own."""
    ledger = files.get(f"fold{fold}/attempts.jsonl", b"").decode(errors="replace")
    own: list[int] = []
    for line in ledger.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            if told["event"] == "start" and told["pod"] == pod:
                own.append(int(told["attempt"]))
    names = [f"fold{fold}/log-{number}.txt" for number in own]
    return [(name, files[name].decode(errors="replace")) for name in names if name in files]


def _following(run: ClusterRun, wanted: str, which: slice, past: list[Piece], width: int) -> Iterator[str]:
    """The past first, then every pod's log as it grows, until the newest workflow ends.

    At last what was too short-lived to be followed: from the claim.
    """
    yield from _history(run, past, width, alive=False)
    shown = {piece.attempt.pod for piece in past if piece.attempt.why or piece.task.phase in status.OVER}
    arrived: queue.Queue[str] = queue.Queue()
    readers: list[threading.Thread] = []
    with Feed(run.kube, run.name, logs=False) as feed:
        while True:
            study = feed.study()
            for piece in _new_pieces(study.tasks, wanted, shown, feed.pods):
                shown.add(piece.attempt.pod)
                readers.append(feed.start(_pump, feed, piece, width, arrived.put))
            yield from _drain(arrived, _POLL)
            readers = [reader for reader in readers if reader.is_alive()]
            if (study.over or feed.deleted) and not readers:
                yield from _drain(arrived, 0.0)
                break
        now = replace(run, workflows=[feed.workflow, *run.workflows[1:]])
    yield from _history(
        now, [p for p in pieces_of(now, wanted, which) if p.attempt.pod not in shown], width, alive=True
    )


def _new_pieces(tasks: list[Task], wanted: str, shown: set[str], pods: dict[str, dict[str, Any]]) -> list[Piece]:
    """Attempts whose pod has begun to write and is not followed yet."""
    found = [Piece(task, attempt) for task in tasks if not wanted or task.name == wanted for attempt in task.attempts]
    begun = {name for name, pod in pods.items() if (container(pod).get("state") or {}).keys() & _WRITES}
    return [piece for piece in found if piece.attempt.pod in begun - shown]


def _pump(feed: Feed, piece: Piece, width: int, put: Callable[[str], None]) -> None:
    for line in _prefixed(piece, feed.whole_log(piece.attempt.pod), width):
        put(line)


def _drain(arrived: queue.Queue[str], patience: float) -> Iterator[str]:
    """What has arrived; waits a little for the first line."""
    with suppress(queue.Empty):
        yield arrived.get(timeout=patience) if patience else arrived.get_nowait()
        while True:
            yield arrived.get_nowait()
