"""What the API server says of one study, kept up to date by few calls: two watches and a followed log a training pod.

A watch ends every few minutes by itself, and with 410 when its place in history is forgotten; then it lists again.
Events and nodes are asked for only where a pod waits or looks lost. Every request is counted.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from workflows import pod_state, status
from workflows.kube import ENDED, GROUP, VERSION, WORKFLOW_LABEL, ClusterError, Kube, unpacked
from workflows.pod_logs import LogReader, is_executors, lines_of, open_stream
from workflows.status import PodLog, Study, Task

_WATCH_SECONDS = 290
_TAIL_LINES = 50  # enough for the newest metric line and the newest checkpoint
_LOOK_AGAIN = 20.0  # seconds between looks at one pod's events, or at one node
_PATIENCE = 10.0  # seconds in which a placed pod's containers come up without anybody asking why not
_MAX_BACKOFF = 15.0
_MANY_FAILURES = 10
_LEAVE_WITHIN = 3.0  # seconds for the threads to end; one that is just connecting may not
_GONE, _FORBIDDEN = 410, 403

Event = dict[str, Any]


class Feed:
    """One Workflow: `study()` is its newest state, `wait` blocks until something changed.

    follow=False looks once: lists instead of watches, the end of each log. logs=False leaves the folds' logs alone.
    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        silent_after: float = status.SILENT_AFTER,
        follow: bool = True,
        logs: bool = True,
    ) -> None:
        self.kube, self.name, self.silent_after, self.follow, self.reads_logs = kube, name, silent_after, follow, logs
        self.workflow: dict[str, Any] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, PodLog] = {}
        self.reasons: dict[str, str] = {}
        self.nodes_ready: dict[str, bool | None] = {}
        self.deleted = False
        self.problems: dict[str, str] = {}  # why the newest state of something may be old
        self.calls, self.began = 0, time.monotonic()
        self._failure: Exception | None = None
        self._due: dict[str, float] = {}
        self._followed: set[str] = set()
        self._streams: set[Any] = set()
        self._threads: list[threading.Thread] = []
        self._lock, self._changed, self._closed = threading.RLock(), threading.Event(), threading.Event()

    def __enter__(self) -> Feed:
        """The first lists, in this thread, so that their errors reach the caller."""
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warnings of broken streams would tear the screen
        version = self._list_workflow()
        if self.deleted:
            self.workflow, self.deleted = self._ask(self.kube.workflow, self.name), False  # or says what is wrong
        try:
            pods_version = self._list_pods()
        except ClusterError as error:
            if error.status != _FORBIDDEN:
                raise
            self.problems["pods"] = "pods may not be read, so only the workflow is shown"
            pods_version = ""
        if self.follow:
            self.start(self._watch, "workflow", self._list_workflow, self._watch_workflow, version)
        if self.follow and pods_version:
            self.start(self._watch, "pods", self._list_pods, self._watch_pods, pods_version)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the threads: one that still works while the interpreter ends may abort the process."""
        self._closed.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            with suppress(Exception):  # one that is ending by itself right now
                stream.shutdown()
        give_up = time.monotonic() + _LEAVE_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    def wait(self, timeout: float) -> bool:
        """Until something changed; False when nothing did."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    @property
    def problem(self) -> str:
        return next(iter(self.problems.values()), "")

    def calls_a_minute(self) -> float:
        """Over the whole life of the feed, at least a minute."""
        return self.calls / max((time.monotonic() - self.began) / 60, 1.0)

    def study(self) -> Study:
        """The newest state. Asks for events, nodes and logs where they tell more."""
        if self._failure:
            raise self._failure
        study = self._build()
        learnt = [self._explain(task) for task in study.tasks]
        learnt += [self._attend(task) for task in study.folds] if self.reads_logs else []
        return self._build() if any(learnt) else study

    def delete_pod(self, name: str) -> bool:
        """Raises ClusterError when that is not allowed; False for a pod that is gone already."""
        pod = self.pods.get(name)
        if pod is None:
            return False
        sure = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        try:
            self._read(self.kube.core.delete_namespaced_pod, name, self.kube.namespace, body=sure)
        except ClusterError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def _build(self) -> Study:
        with self._lock:
            return status.build(
                self.workflow,
                dict(self.pods),
                self.logs,
                self.reasons,
                self.nodes_ready,
                now=time.time(),
                silent_after=self.silent_after,
                kubectl=self.kube.kubectl("").strip(),
            )

    # Requests

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.kube.call(function, *args, **options)

    @contextmanager
    def _open(self, function: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
        """An answer that is read bit by bit; closing the feed ends it."""
        self.calls += 1
        with open_stream(self.kube, function, *args, **options) as stream:
            with self._lock:
                if self._closed.is_set():
                    raise ClusterError("the study is not followed any more")
                self._streams.add(stream)
            try:
                yield stream
            finally:
                with self._lock:
                    self._streams.discard(stream)

    def _read(self, function: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
        """An answer as plain JSON: models of every pod would cost more than they tell."""
        with self._open(function, *args, **options) as stream:
            return dict(json.loads(self.kube.call(lambda: stream.data)))

    def _list_workflow(self) -> str:
        told = self._read(self.kube.custom.list_namespaced_custom_object, **self._one_workflow())
        with self._lock:
            self.deleted = not told["items"]
            if told["items"]:
                self.workflow = unpacked(told["items"][0])
        self._changed.set()
        return str(told["metadata"]["resourceVersion"])

    def _watch_workflow(self, version: str) -> Iterator[Event]:
        for event in self._events(self.kube.custom.list_namespaced_custom_object, version, **self._one_workflow()):
            if event["type"] != "BOOKMARK":
                with self._lock:
                    self.deleted, self.workflow = event["type"] == "DELETED", unpacked(event["object"])
            yield event

    def _list_pods(self) -> str:
        told = self._read(self.kube.core.list_namespaced_pod, **self._own_pods())
        with self._lock:
            self.pods = {pod["metadata"]["name"]: pod for pod in told["items"]}
        self._changed.set()
        return str(told["metadata"]["resourceVersion"])

    def _watch_pods(self, version: str) -> Iterator[Event]:
        for event in self._events(self.kube.core.list_namespaced_pod, version, **self._own_pods()):
            name = event["object"]["metadata"].get("name", "")
            with self._lock:
                if event["type"] == "DELETED":
                    self.pods.pop(name, None)
                elif event["type"] != "BOOKMARK":
                    self.pods[name] = event["object"]
            yield event

    def _one_workflow(self) -> dict[str, str]:
        kind = {"group": GROUP, "version": VERSION, "plural": "workflows", "namespace": self.kube.namespace}
        return {**kind, "field_selector": f"metadata.name={self.name}"}

    def _own_pods(self) -> dict[str, str]:
        return {"namespace": self.kube.namespace, "label_selector": f"{WORKFLOW_LABEL}={self.name}"}

    # Watches

    def start(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        """Work beside this thread, until the feed is closed at the latest."""
        thread = threading.Thread(target=self._until_closed, args=(work, *args), daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()
        return thread

    def _until_closed(self, work: Callable[..., None], *args: Any) -> None:
        """A stream that is cut off by closing may fail in any way; what fails before that is raised by `study`."""
        try:
            work(*args)
        except Exception as error:
            if not self._closed.is_set():
                self._failure = error
                self._changed.set()

    def _watch(
        self, what: str, relist: Callable[[], str], watch: Callable[[str], Iterator[Event]], version: str
    ) -> None:
        """Follows changes from `version` on; lists again when history is forgotten or calls fail."""
        failures = 0
        while not self._closed.is_set():
            try:
                version = version or relist()
                self.problems.pop(what, None)
                for event in watch(version):
                    failures = 0
                    version = str(event["object"]["metadata"].get("resourceVersion") or version)
                    if event["type"] != "BOOKMARK":
                        self._changed.set()
            except (ClusterError, ValueError) as error:  # ValueError: a line that was cut off
                if getattr(error, "status", 0) != _GONE:
                    failures += 1
                    self.problems[what] = str(error).partition("\n")[0]
                    self._changed.set()
                    self._pause(failures)
                version = ""

    def _events(self, function: Callable[..., Any], since: str, /, **options: Any) -> Iterator[Event]:
        options |= {"watch": True, "resource_version": since, "timeout_seconds": _WATCH_SECONDS}
        with self._open(function, allow_watch_bookmarks=True, **options) as stream:
            for line in lines_of(self.kube, stream):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    told = event["object"]
                    raise ClusterError(str(told.get("message", "watch ended")), int(told.get("code", 0)))
                yield event

    # Logs

    def _attend(self, task: Task) -> bool:
        """A thread for the log of a fold's running pod; when only looking once, the end of it here (then True)."""
        pod = self._pod(task)
        if pod is None or not pod_state.is_running(pod) or pod["metadata"]["uid"] in self._followed:
            return False
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._followed.add(uid)
        reader = LogReader(self.logs.setdefault(name, PodLog()))
        if self.follow:
            self.start(self._read_log, name, uid, reader)
            return False
        with suppress(ClusterError):
            for line in self._log_lines(name):
                reader.feed(line)
        return True

    def _read_log(self, name: str, uid: str, reader: LogReader) -> None:
        failures = 0
        while not self._closed.is_set() and self._runs(name, uid):
            try:
                for line in self._log_lines(name, follow=True):
                    failures = 0
                    if reader.feed(line):
                        self._changed.set()
            except ClusterError:
                failures += 1
            self._pause(failures)

    def whole_log(self, name: str) -> Iterator[str]:
        """Every line of a pod's log, each once, to the pod's end; a broken connection goes on where it broke."""
        failures, newest = 0, ""
        while not self._closed.is_set():
            cut = newest
            try:
                for line in self._log_lines(name, follow=True, tail_lines=None):
                    stamp, _, text = line.partition(" ")
                    if stamp > cut and not is_executors(text):
                        yield text
                    newest, failures = max(newest, stamp), 0
            except ClusterError as error:
                failures += 1
                if error.status == 404:
                    return
            pod = self.pods.get(name)
            runs = pod is not None and pod_state.is_running(pod) and self._phase() not in ENDED
            if pod is None or failures > _MANY_FAILURES or not (runs or failures):
                return
            self._pause(failures)

    def _phase(self) -> str:
        return str((self.workflow.get("status") or {}).get("phase", ""))

    def _pause(self, failures: int) -> None:
        """Short before the first new try: a pod's last lines are gone when the pod is."""
        self._closed.wait(min(_MAX_BACKOFF, 0.2 * 2.0**failures))

    def _log_lines(self, name: str, **options: Any) -> Iterator[str]:
        log, options = self.kube.core.read_namespaced_pod_log, {"tail_lines": _TAIL_LINES, **options}
        with self._open(log, name, self.kube.namespace, container="main", timestamps=True, **options) as stream:
            yield from lines_of(self.kube, stream)

    def _runs(self, name: str, uid: str) -> bool:
        with self._lock:
            pod = self.pods.get(name)
        return pod is not None and pod["metadata"]["uid"] == uid and pod_state.is_running(pod)

    def _pod(self, task: Task) -> dict[str, Any] | None:
        with self._lock:
            return self.pods.get(task.attempts[-1].pod) if task.attempts else None

    # What explains a pod that waits or is silent

    def _explain(self, task: Task) -> bool:
        """Events of a pod that has its place and still waits; the node of one that looks lost. True: learnt more."""
        pod = self._pod(task)
        if pod is None or task.phase in status.OVER:
            return False
        name = pod["metadata"]["name"]
        placed = pod_state.condition(pod, "PodScheduled").get("status") == "True"
        if task.phase == status.PENDING and placed and self._is_due(f"events {name}", _PATIENCE):
            return self._look_at_events(name)
        if task.node and (pod_state.suspicious(pod, time.time()) or task.trouble) and self._is_due(f"node {task.node}"):
            return self._look_at_node(task.node)
        return False

    def _is_due(self, key: str, patience: float = 0.0) -> bool:
        now = time.monotonic()
        if now < self._due.setdefault(key, now + (patience if self.follow else 0.0)):
            return False
        self._due[key] = now + _LOOK_AGAIN
        return True

    def _look_at_events(self, pod: str) -> bool:
        with suppress(ClusterError):
            warnings = [event for event in self._ask(self.kube.events, pod) if event.type == "Warning"]
            self.reasons[pod] = f"{warnings[-1].reason}: {warnings[-1].message}" if warnings else ""
        return bool(self.reasons.get(pod))

    def _look_at_node(self, name: str) -> bool:
        """Nodes are often not ours to read: then their state stays unknown."""
        try:
            node = self._read(self.kube.core.read_node, name)
        except ClusterError as error:
            self.nodes_ready[name] = False if error.status == 404 else None
            return True
        self.nodes_ready[name] = pod_state.condition(node, "Ready").get("status") == "True"
        return True
