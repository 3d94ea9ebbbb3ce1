"""Watches a workflow on a cluster to its end, heals what heals by deleting a pod, says what to do next."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from workflows import status
from workflows.feed import Feed
from workflows.kube import ClusterError, Kube
from workflows.pod_logs import is_executors
from workflows.status import Study, Task
from workflows.study_screen import LiveScreen, PlainLines, duration, past_line

DELETED_MEANWHILE = 2
_SETTLE = 0.2  # seconds in which changes that come together are gathered into one look
_JSON_EVERY = 10.0  # seconds between JSON lines while nothing changes
_LAST_LINES = 20


class JsonLines:
    """A JSON object at each change, and now and then one without."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.said, self.last = feed, 0.0, ""

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def say(self, text: str) -> None:
        print(json.dumps({"time": round(time.time(), 3), "message": text}), flush=True)

    def show(self, study: Study, footer: str) -> None:
        tree = study.to_dict()
        moving = ("silent_s", "stuck_s", "checkpoint_age_s", "eta_s", "text")  # what changes with the clock alone
        still = json.dumps(tree, default=str) if study.over else repr(_without(tree, moving))
        if still == self.last and time.monotonic() - self.said < _JSON_EVERY:
            return
        self.last, self.said = still, time.monotonic()
        calls = {"calls": self.feed.calls, "calls_a_minute": round(self.feed.calls_a_minute(), 2)}
        print(json.dumps({"time": round(time.time(), 3), **tree, **calls, "problem": self.feed.problem}), flush=True)


def _without(tree: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(tree, dict):
        return {k: _without(v, keys) for k, v in tree.items() if k not in keys}
    return [_without(v, keys) for v in tree] if isinstance(tree, list) else tree


class Healer:
    """Deletes pods whose main container is dead while Argo's executor waits for it; says so, and when it may not."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.tried = feed, set[str]()

    def heal(self, study: Study) -> list[str]:
        """What was done, in words."""
        said = []
        for task in study.tasks:
            if task.trouble is None or task.trouble.kind != "main dead":
                continue
            pod = task.attempts[-1].pod
            if pod in self.tried:
                continue
            self.tried.add(pod)
            try:
                deleted = self.feed.delete_pod(pod)
            except ClusterError as error:
                said.append(f"{task.label}: {task.trouble.text}; it can't be deleted from here: {error}")
                continue
            if deleted:
                said.append(f"{task.label}: {task.trouble.text}: deleted pod {pod}, the fold goes on in a new one")
        return said


def follow(
    kube: Kube,
    name: str,
    *,
    as_json: bool = False,
    once: bool = False,
    heal: bool = True,
    silent_after: float = status.SILENT_AFTER,
    every: float = 1.0,
) -> int:
    """Shows the workflow until it ends; the study's exit code, 0 for one look at a running one, 2 when it is deleted.

    heal: delete pods whose main container is dead. every: seconds between looks while nothing changes.
    """
    with Feed(kube, name, silent_after, follow=not once) as feed:
        view = JsonLines(feed) if as_json else LiveScreen() if sys.stdout.isatty() and not once else PlainLines()
        healer = Healer(feed)
        with view:
            while True:
                study = feed.study()
                if feed.deleted:
                    break
                if heal and not once:
                    for said in healer.heal(study):
                        view.say(said)
                view.show(study, footer(feed, kube))
                if once or study.over:
                    break
                feed.wait(every)
                time.sleep(min(_SETTLE, every))
        if feed.deleted:
            return _say_deleted(kube, study)
    if not as_json and not once:
        print("\n".join(conclusion(kube, study)))
    code = status.exit_code(study)
    return 0 if code is None else code


def footer(feed: Feed, kube: Kube) -> str:
    calls = f"namespace {kube.namespace}   {feed.calls} API calls, {feed.calls_a_minute():.1f} a minute"
    return f"! {feed.problem}   {calls}" if feed.problem else calls


def _say_deleted(kube: Kube, study: Study) -> int:
    again = f"python -m workflows.submit --run-id {study.run_id} ...{kube.flags()}"
    print(f"error: workflow {study.name} was deleted while it was watched", file=sys.stderr)
    print(f"its folds' checkpoints stay on the claim; the same submission goes on from them: {again}", file=sys.stderr)
    return DELETED_MEANWHILE


def conclusion(kube: Kube, study: Study) -> list[str]:
    """How it ended, the gate's own table, why folds failed, and what to type next."""
    took = duration((study.finished or 0.0) - (study.started or 0.0)) if study.started and study.finished else ""
    said = [
        "",
        f"{study.name}: {study.phase.lower()}{f' after {took}' if took else ''}, exit {status.exit_code(study)}",
    ]
    for task in study.tasks:
        if task.phase in (status.FAILED, status.ERROR) and task.task != status.GATE:
            said.append(f"  {task.label}: {past_line(task.past[-1]) if task.past else task.message or task.phase}")
    gate = next((task for task in study.tasks if task.task == status.GATE), None)
    if gate is not None and gate.attempts:
        said += ["", *gate_table(kube, gate)]
    said += ["", f"report and results: python -m workflows.fetch {study.run_id or study.name}{kube.flags()}"]
    unfinished = [t for t in study.folds if t.phase != status.SUCCEEDED]
    if unfinished or study.shutdown:
        what = "go on" if study.shutdown else "failed folds again"
        said.append(f"{what}: python -m workflows.resubmit {study.run_id or study.name}{kube.flags()}")
    return said


def gate_table(kube: Kube, gate: Task) -> list[str]:
    """What the gate printed; its pod may be gone already."""
    pod = gate.attempts[-1].pod
    try:
        text = kube.call(kube.core.read_namespaced_pod_log, pod, kube.namespace, container="main")
    except ClusterError:
        verdict = gate.outputs.get("verdict", gate.phase.lower())
        return [f"gate: {verdict}"]
    return [line for line in str(text).splitlines() if line and not is_executors(line)][-_LAST_LINES:]
