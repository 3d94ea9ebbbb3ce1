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
from workflows.log_lines import HEADER, LINE, NOTE, LogLine
from workflows.pod_logs import is_executors, lines_of, open_stream, read_json
from workflows.pod_state import container
from workflows.reader import read_run
from workflows.status import Attempt, Task

_POLL = 1.0
KEPT = ("precompute", "gate", "report")  # tasks that leave what they print on the claim
_WRITES = {"running", "terminated"}  # states of a container that has a log


@dataclass(frozen=True)
class Piece:
    """One attempt of one task."""

    task: Task
    attempt: Attempt

    def header(self) -> LogLine:
        where = f" on {self.attempt.node}" if self.attempt.node else ""
        why = f": {self.attempt.why}" if self.attempt.why else ""
        text = f"{self.task.name} attempt {self.attempt.number}, pod {self.attempt.pod}{where}{why}"
        return self.line(text, HEADER)

    def line(self, text: str, kind: str = LINE) -> LogLine:
        return LogLine(self.task.name, self.attempt.number, text, kind)

    def note(self, text: str) -> LogLine:
        return self.line(text, NOTE)


def cluster_lines(run: ClusterRun, wanted: str, which: slice, follow: bool) -> Iterator[LogLine]:
    """Lines, each once."""
    pieces = pieces_of(run, wanted, which)
    if not pieces and not follow:
        known = list(dict.fromkeys(p.task.name for p in pieces_of(run, "", slice(None))))
        hint = nearest(wanted, known) if wanted else ""
        there = f"; there are: {', '.join(known)}" if known else ", it has not started"
        which_one = f"no such logs of {wanted!r}" if wanted else "no logs yet"
        raise UsageError(f"run {run.run_id}: {which_one}{hint}{there}")
    if follow:
        yield from _following(run, wanted, which, pieces)
    else:
        yield from _history(run, pieces, alive=True)


def pieces_of(run: ClusterRun, wanted: str, which: slice) -> list[Piece]:
    """Attempts of all workflows of the run, task by task, oldest first."""
    found: dict[str, list[Piece]] = {}
    for workflow in reversed(run.workflows):
        for task in status.build(workflow).tasks:
            if not wanted or task.name == wanted:
                found.setdefault(task.name, []).extend(Piece(task, attempt) for attempt in task.attempts)
    return [piece for pieces in found.values() for piece in pieces[which]]


def _history(run: ClusterRun, pieces: list[Piece], alive: bool) -> Iterator[LogLine]:
    """What pods and claim hold. `alive` False leaves out the pods that still run."""
    pods = living_pods(run)
    claim = Claim(run, [piece for piece in pieces if piece.attempt.pod not in pods])
    for piece in pieces:
        pod = pods.get(piece.attempt.pod)
        if not alive and pod is not None and not piece.attempt.why and piece.task.phase not in status.OVER:
            continue
        yield piece.header()
        yield from _pod_lines(run, piece, pod) if pod is not None else claim.lines(piece)


def living_pods(run: ClusterRun) -> dict[str, dict[str, Any]]:
    """Pods that are still there, by name, of all workflows of the run."""
    names = ", ".join(workflow["metadata"]["name"] for workflow in run.workflows)
    selector = {"label_selector": f"{WORKFLOW_LABEL} in ({names})"}
    told = read_json(run.kube, run.kube.core.list_namespaced_pod, run.kube.namespace, **selector)
    return {pod["metadata"]["name"]: pod for pod in told["items"]}


def _pod_lines(run: ClusterRun, piece: Piece, pod: dict[str, Any]) -> Iterator[LogLine]:
    name, kube = pod["metadata"]["name"], run.kube
    if not (container(pod).get("state") or {}).keys() & _WRITES:
        yield piece.note("its container has not started")
        return
    try:
        with open_stream(kube, kube.core.read_namespaced_pod_log, name, kube.namespace, container="main") as stream:
            yield from (piece.line(text) for text in lines_of(kube, stream) if not is_executors(text))
    except ClusterError as error:
        yield piece.note(f"its log can't be read: {str(error).partition(chr(10))[0]}")


class Claim:
    """Logs that the trainer left in the run's folder, read all at once when the first is asked for.

    A fold's are in its own folder; precompute, gate and report leave what they printed, a file a pod.
    """

    def __init__(self, run: ClusterRun, gone: list[Piece]) -> None:
        self.run, self.gone = run, gone
        self.files: dict[str, bytes] | None = None
        self.problem = ""

    def lines(self, piece: Piece) -> Iterator[LogLine]:
        if piece.task.task not in (status.TRAIN, *KEPT):
            yield piece.note("its pod is gone, and with it its log")
            return
        if self.files is None:
            self._read()
        if piece.task.task == status.TRAIN:
            found = logs_of_pod(self.files or {}, piece.task.fold, piece.attempt.pod)
        else:
            found = [(name, data.decode(errors="replace")) for name, data in self._kept(piece)]
        if not found:
            why = self.problem or "it ended before the trainer wrote any"
            yield piece.note(f"its pod is gone; no log of it on the claim: {why}")
        for name, text in found:
            yield piece.note(f"from the claim: {name}")
            yield from map(piece.line, text.splitlines())

    def _kept(self, piece: Piece) -> list[tuple[str, bytes]]:
        name = kept_file(piece.attempt.pod)
        return [(name, self.files[name])] if self.files and name in self.files else []

    def _read(self) -> None:
        folds = sorted({piece.task.fold for piece in self.gone if piece.task.fold is not None})
        globs = [f"fold{fold}/{name}" for fold in folds for name in ("attempts.jsonl", "log-*.txt")]
        globs += [kept_file(piece.attempt.pod) for piece in self.gone if piece.task.task in KEPT]
        try:
            self.files = read_run(self.run.kube, self.run.newest, self.run.run_id, globs)
        except WorkflowError as error:
            self.files, self.problem = {}, str(error).partition("\n")[0]


def kept_file(pod: str) -> str:
    """What a pod printed, by its path in the run's folder."""
    return f"logs/{pod}.txt"


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


def _following(run: ClusterRun, wanted: str, which: slice, past: list[Piece]) -> Iterator[LogLine]:
    """The past first, then every pod's log as it grows, until the newest workflow ends.

    At last what was too short-lived to be followed: from the claim.
    """
    yield from _history(run, past, alive=False)
    shown = {piece.attempt.pod for piece in past if piece.attempt.why or piece.task.phase in status.OVER}
    arrived: queue.Queue[LogLine] = queue.Queue()
    readers: list[threading.Thread] = []
    with Feed(run.kube, run.name, logs=False) as feed:
        while True:
            study = feed.study()
            for piece in _new_pieces(study.tasks, wanted, shown, feed.pods):
                shown.add(piece.attempt.pod)
                readers.append(feed.start(_pump, feed, piece, arrived.put))
            yield from _drain(arrived, _POLL)
            readers = [reader for reader in readers if reader.is_alive()]
            if (study.over or feed.deleted) and not readers:
                yield from _drain(arrived, 0.0)
                break
        now = replace(run, workflows=[feed.workflow, *run.workflows[1:]])
    yield from _history(now, [p for p in pieces_of(now, wanted, which) if p.attempt.pod not in shown], alive=True)


def _new_pieces(tasks: list[Task], wanted: str, shown: set[str], pods: dict[str, dict[str, Any]]) -> list[Piece]:
    """Attempts whose pod has begun to write and is not followed yet."""
    found = [Piece(task, attempt) for task in tasks if not wanted or task.name == wanted for attempt in task.attempts]
    begun = {name for name, pod in pods.items() if (container(pod).get("state") or {}).keys() & _WRITES}
    return [piece for piece in found if piece.attempt.pod in begun - shown]


def _pump(feed: Feed, piece: Piece, put: Callable[[LogLine], None]) -> None:
    put(piece.header())
    for text in feed.whole_log(piece.attempt.pod):
        put(piece.line(text))


def _drain(arrived: queue.Queue[LogLine], patience: float) -> Iterator[LogLine]:
    """What has arrived; waits a little for the first line."""
    with suppress(queue.Empty):
        yield arrived.get(timeout=patience) if patience else arrived.get_nowait()
        while True:
            yield arrived.get_nowait()
