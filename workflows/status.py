"""A study on a cluster as one model: pure functions from what the API says to what a person wants to know.

In: the Workflow as a dict (nodes unpacked), its pods as dicts, what their logs said last, events of waiting pods, nodes
of pods that seem lost. Out: `Study` with one `Task` for each pod of the DAG, over all attempts. Times are seconds since
1970; nothing here asks the API or the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from workflows.argo_nodes import (
    ERROR,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TRAIN,
    Tree,
    attempt_nodes,
    exit_code_of,
    fold_of,
    outputs_of,
    parameters_of,
    pod_name,
    progress_of,
    run_id_of,
    seconds,
    task_nodes,
    why_ended,
)
from workflows.kube import ENDED, NAMESPACE
from workflows.pod_state import (
    NODE_ID,
    annotation,
    container,
    main_dead_for,
    main_started,
    pending_reason,
    suspicious,
)

GATE, EXIT_HANDLER = "gate", "summary"
INTERRUPTED, GATE_FAILED = 75, 3
BACKOFF, EVALUATING, SAVING = "Backoff", "Evaluating", "Saving"  # a retry waits; trained to the end; asked to stop
OVER = (SUCCEEDED, FAILED, ERROR, "Skipped", "Omitted")
HEAL_AFTER = 30.0  # seconds that Argo's executor gets to see by itself that the main container is dead
SILENT_AFTER = 180.0
TAKEN_UP_WITHIN = 20.0  # seconds in which a controller takes up a new workflow

_ORDER = ["resolve", "precompute", TRAIN, GATE, "report", "summary"]


@dataclass
class Attempt:
    """One pod. `why` is empty while it lives."""

    number: int
    pod: str
    node: str = ""
    phase: str = PENDING
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    why: str = ""


@dataclass
class Trouble:
    """What does not cure itself, in words, with what to type: main dead, node gone, silent, stuck, not taken up."""

    kind: str
    text: str
    todo: str = ""


@dataclass
class PodLog:
    """What a pod's log said last. `seen`: time of its newest line, ours or not; `stepped`: time of its last step."""

    seen: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    total: int | None = None
    doing: str = ""  # starting, training or judging
    stepped: float | None = None
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None


@dataclass
class Task:
    """One task of the DAG, a fold each for training, over all its attempts."""

    name: str
    task: str
    label: str
    fold: int | None = None
    phase: str = PENDING
    message: str = ""
    step: int | None = None
    total: int | None = None
    rate: float | None = None  # steps a second
    eta_s: float | None = None
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None
    silent_s: float | None = None  # since its last line, of whatever kind
    stuck_s: float | None = None  # since its last step, as its signs of life say
    node: str = ""
    pending: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    trouble: Trouble | None = None
    outputs: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def past(self) -> list[Attempt]:
        """Attempts that ended otherwise than well."""
        return [a for a in self.attempts if a.why]


@dataclass
class Study:
    """One Workflow."""

    name: str
    run_id: str
    namespace: str
    phase: str
    message: str = ""
    started: float | None = None
    finished: float | None = None
    shutdown: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    trouble: Trouble | None = None

    @property
    def over(self) -> bool:
        return self.phase in ENDED

    @property
    def folds(self) -> list[Task]:
        return [task for task in self.tasks if task.task == TRAIN and task.fold is not None]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": exit_code(self)}


def build(
    workflow: Tree,
    pods: Mapping[str, Tree] | None = None,
    logs: Mapping[str, PodLog] | None = None,
    reasons: Mapping[str, str] | None = None,
    nodes_ready: Mapping[str, bool | None] | None = None,
    now: float = 0.0,
    silent_after: float = SILENT_AFTER,
    kubectl: str = "kubectl",
) -> Study:
    """The whole study.

    pods: by pod name. reasons: by pod name, what events say of a waiting pod. nodes_ready: by node name for nodes that
    were looked at; False is lost, None may not be read. kubectl: how commands that a person may type begin.
    """
    metadata, status, spec = workflow["metadata"], workflow.get("status") or {}, workflow.get("spec") or {}
    study = Study(
        name=metadata["name"],
        run_id=run_id_of(workflow),
        namespace=metadata.get("namespace", ""),
        phase=status.get("phase") or PENDING,
        message=status.get("message", ""),
        started=seconds(status.get("startedAt")) or seconds(metadata.get("creationTimestamp")),
        finished=seconds(status.get("finishedAt")),
        shutdown=spec.get("shutdown", ""),
        parameters=parameters_of(workflow),
    )
    by_node = {annotation(pod, NODE_ID): pod for pod in (pods or {}).values()}
    for node in task_nodes(status.get("nodes") or {}):
        study.tasks.append(_task(node, status["nodes"], metadata["name"], by_node))
    for task in study.tasks:
        pod = (pods or {}).get(task.attempts[-1].pod) if task.attempts else None
        _add_pod(task, pod, study, (logs or {}), (reasons or {}), now)
        if pod is not None and task.phase not in OVER:
            task.trouble = _trouble(task, pod, nodes_ready or {}, now, silent_after, kubectl)
            if task.trouble:
                task.rate = task.eta_s = None
    if study.over:
        for task in study.tasks:
            _close(task)
    study.tasks.sort(key=_place)
    study.trouble = _not_taken_up(study, status, now)
    return study


def _task(node: Tree, nodes: Mapping[str, Tree], workflow: str, by_node: Mapping[str, Tree]) -> Task:
    template = str(node.get("templateName") or node.get("displayName") or "")
    inputs = {p["name"]: str(p.get("value", "")) for p in (node.get("inputs") or {}).get("parameters") or []}
    fold = fold_of(node, template, inputs)
    name = template if fold is None else f"{template}-{fold}"
    label = inputs.get("label") or (name if fold is None else str(node.get("displayName") or name))
    task = Task(name, template, label, fold, outputs=outputs_of(node), message=str(node.get("message", "")))
    for number, child in enumerate(attempt_nodes(node, nodes), start=1):
        pod = by_node.get(child["id"])
        task.attempts.append(_attempt(number, child, pod["metadata"]["name"] if pod else pod_name(workflow, child)))
        step = progress_of(child)
        task.step, task.total = step or (task.step, task.total)
    task.phase = _phase(node, task.attempts)
    return task


def _phase(node: Tree, attempts: list[Attempt]) -> str:
    phase = str(node.get("phase") or PENDING)
    if phase != RUNNING or not attempts:
        return phase
    last = attempts[-1]
    return BACKOFF if last.ended is not None and last.phase in (FAILED, ERROR) else last.phase


def _close(task: Task) -> None:
    """A stopped workflow leaves nodes behind that seem to go on."""
    if task.phase not in OVER:
        ended = task.attempts[-1].phase if task.attempts else ""
        task.phase, task.rate, task.eta_s, task.pending = ended if ended in (FAILED, ERROR) else FAILED, None, None, ""
        task.trouble, task.message = None, task.message or "it was not over when the workflow ended"


def _attempt(number: int, node: Tree, pod: str) -> Attempt:
    phase, message = str(node.get("phase") or PENDING), str(node.get("message", ""))
    ended = seconds(node.get("finishedAt")) if phase in OVER else None
    code = exit_code_of(node)
    why = why_ended(code, message, phase) if phase in (FAILED, ERROR) else ""
    return Attempt(
        number, pod, str(node.get("hostNodeName", "")), phase, seconds(node.get("startedAt")), ended, code, why
    )


def _place(task: Task) -> tuple[int, int, float]:
    started = task.attempts[0].started if task.attempts else None
    known = _ORDER.index(task.task) if task.task in _ORDER else len(_ORDER)
    return known, -1 if task.fold is None else task.fold, started or 0.0


def _add_pod(
    task: Task, pod: Tree | None, study: Study, logs: Mapping[str, PodLog], reasons: Mapping[str, str], now: float
) -> None:
    """Adds what only the pod and its log know."""
    for attempt in task.attempts:
        _add_log(task, logs.get(attempt.pod), now)
    if task.total is None and task.task == TRAIN and study.parameters.get("n-steps", "").isdecimal():
        task.total = int(study.parameters["n-steps"])
    log = (logs.get(task.attempts[-1].pod) if task.attempts else None) or PodLog()
    if pod is not None and task.phase not in (*OVER, BACKOFF):
        task.node = str((pod.get("spec") or {}).get("nodeName") or "")
        task.attempts[-1].node = task.node or task.attempts[-1].node
        if pod["metadata"].get("deletionTimestamp") or study.shutdown:
            task.phase = SAVING if task.phase == RUNNING else task.phase
        if task.phase == RUNNING:
            heard = log.seen or main_started(pod)
            task.silent_s = None if heard is None else max(0.0, now - heard)
            stuck = log.doing == "training" and log.stepped is not None
            task.stuck_s = max(0.0, now - (log.stepped or now)) if stuck else None
    elif task.attempts:
        task.node = task.attempts[-1].node
    if task.phase == PENDING:
        event = reasons.get(task.attempts[-1].pod, "") if task.attempts else ""
        task.pending = pending_reason(pod, event, task.message)
    _add_progress(task, log)


def _add_progress(task: Task, log: PodLog) -> None:
    """What follows from steps, rate and phase."""
    if task.phase == RUNNING and (log.doing == "judging" or 0 < (task.total or 0) <= (task.step or 0)):
        task.phase, task.stuck_s = EVALUATING, None
    if task.phase != RUNNING:
        task.rate = task.eta_s = None
    elif task.rate and task.total is not None and task.step is not None:
        task.eta_s = max(0.0, (task.total - task.step) / task.rate)
    if task.phase == SUCCEEDED and task.total is not None:
        task.step = task.total


def _add_log(task: Task, log: PodLog | None, now: float) -> None:
    if log is None:
        return
    if log.step is not None and log.doing != "starting":
        task.step, task.total = log.step, log.total or task.total
    if log.metrics:
        task.metrics = log.metrics
        rate = log.metrics.get("sps")
        task.rate = float(rate) if isinstance(rate, int | float) else None
    if log.checkpoint_time is not None:
        task.checkpoint_step, task.checkpoint_age_s = log.checkpoint_step, max(0.0, now - log.checkpoint_time)


def _trouble(
    task: Task, pod: Tree, nodes_ready: Mapping[str, bool | None], now: float, silent_after: float, kubectl: str
) -> Trouble | None:
    name, node = f"{pod['metadata']['name']} -n {pod['metadata'].get('namespace', '')}", task.node
    dead = main_dead_for(pod, now)
    if dead is not None and dead >= HEAL_AFTER:
        ended = container(pod)["state"]["terminated"]
        text = f"main container dead for {dead:.0f} s (exit {ended.get('exitCode')}), but the pod keeps running"
        return Trouble("main dead", text, f"{kubectl} delete pod {name}")
    if suspicious(pod, now) and nodes_ready.get(node) is not True:
        unsure = "" if nodes_ready.get(node) is False else " seems to be"
        text = f"node {node}{unsure} gone; its pods come back elsewhere only once they are deleted"
        return Trouble("node gone", text, f"{kubectl} delete node {node}   (if it stays away)")
    if task.silent_s is not None and task.silent_s >= silent_after:
        text = f"no heartbeat for {task.silent_s:.0f} s"
        return Trouble("silent", text, f"{kubectl} logs {name} -c main --tail 20")
    if task.stuck_s is not None and task.stuck_s >= silent_after:
        text = f"alive, but no step for {task.stuck_s:.0f} s"
        return Trouble("stuck", text, f"{kubectl} delete pod {name}   (it saves and goes on elsewhere)")
    return None


def _not_taken_up(study: Study, status: Tree, now: float) -> Trouble | None:
    if status.get("phase") or study.started is None or now - study.started < TAKEN_UP_WITHIN:
        return None
    text = f"no controller has taken up the workflow for {now - study.started:.0f} s"
    namespace = "" if study.namespace == NAMESPACE else f" --namespace {study.namespace}"
    return Trouble("not taken up", text, f"python -m workflows.preflight{namespace}")


def exit_code(study: Study) -> int | None:
    """As a run on one machine ends: None while it runs, 75 when stopped, else what ended the worst fold or the gate."""
    if not study.over:
        return None
    if study.phase == SUCCEEDED:
        return 0
    if study.shutdown:
        return INTERRUPTED
    failed = [task for task in study.tasks if task.phase in (FAILED, ERROR) and task.attempts]
    codes = [task.attempts[-1].exit_code or 1 for task in failed if task.task != EXIT_HANDLER]
    return next((code for code in codes if code != GATE_FAILED), codes[0] if codes else 1)
