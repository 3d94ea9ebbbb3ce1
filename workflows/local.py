"""Runs a rendered workflow on this machine: the same DAG, parameters and retry rule, one process per pod.

What is carried out and what is left to a cluster is listed in `fields.py`; anything else is refused before the start.
"""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows import nodes
from workflows.errors import UsageError, WorkflowError, nearest
from workflows.expressions import depends_tasks, evaluate_depends
from workflows.fields import ancestors, check_workflow, leaves
from workflows.nodes import Node, Result, group
from workflows.pods import Pods, items_of
from workflows.substitute import as_text, resolve

INTERRUPTED = 75
GATE_FAILED = 3
LOCAL_BACKOFF = 0.1  # of the template's: 1 s, 2 s, ... up to 30 s; a process comes back sooner than a node


@dataclass
class Outcome:
    """How a workflow ended."""

    phase: str
    exit_code: int
    nodes: list[Node]
    interrupted: bool = False


class LocalRunner:
    """One execution of one workflow. `changed` is called after every change of a node."""

    def __init__(
        self,
        workflow: dict[str, Any],
        parameters: dict[str, str],
        logs: Path,
        *,
        jobs: int = 1,
        backoff_scale: float = LOCAL_BACKOFF,
        changed: Callable[[Node], None] = lambda node: None,
        keep_open: tuple[int, ...] = (),
        gpus: list[str] | None = None,
    ) -> None:
        check_workflow(workflow)
        self.spec = workflow["spec"]
        self.templates = {template["name"]: template for template in self.spec["templates"]}
        self.nodes: list[Node] = []
        self.signals = 0
        self.cut_short = False
        limit = min(jobs, int(self.spec.get("parallelism", jobs)))
        self.pods = Pods(logs, limit, backoff_scale, changed, keep_open, gpus or [])
        name = workflow["metadata"].get("name", "workflow")
        self.workflow = {"name": name, "uid": str(uuid.uuid4()), "parameters": _parameters(self.spec, parameters)}

    async def run(self) -> Outcome:
        """Runs the entrypoint, then the exit handler. SIGINT and SIGTERM stop everything gently."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        try:
            result = await self._execute(self.spec["entrypoint"], self.spec["entrypoint"], {})
            outcome = self._outcome(result)
            if "onExit" in self.spec and not outcome.interrupted:
                self.workflow |= {"status": result.phase, "failures": self._failures()}
                await self._execute(self.spec["onExit"], self.spec["onExit"], {})
        except BaseExceptionGroup as errors:  # one task's mistake has cancelled the others, processes included
            raise errors.exceptions[0] from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return outcome

    def _stop(self) -> None:
        """The first signal asks every process to save and leave; the second does not wait any longer."""
        self.signals += 1
        self.pods.stop(signal.SIGTERM if self.signals == 1 else signal.SIGKILL)

    async def _execute(self, template_name: str, name: str, inputs: dict[str, str]) -> Result:
        template = self.templates[template_name]
        scope = {"workflow": self.workflow, "inputs": {"parameters": _inputs(template, inputs)}}
        if "dag" in template:
            return await self._dag(template, scope)
        given = scope["inputs"]["parameters"]
        node = Node(name=name, task=template_name, label=given.get("label", name), inputs=given)
        self.nodes.append(node)
        return await self.pods.run(template, scope, node)

    async def _dag(self, template: dict[str, Any], scope: dict[str, Any]) -> Result:
        tasks = template["dag"]["tasks"]
        results: dict[str, Result] = {}
        finished = {task["name"]: asyncio.Event() for task in tasks}
        slots = asyncio.Semaphore(int(template.get("parallelism", 10**6)))

        async def run_one(task: dict[str, Any]) -> None:
            for other in depends_tasks(task.get("depends", "")):
                await finished[other].wait()
            results[task["name"]] = await self._task(task, scope, results, slots)
            finished[task["name"]].set()

        async with asyncio.TaskGroup() as all_tasks:
            for task in tasks:
                all_tasks.create_task(run_one(task))
        phases = [_branch_phase(tasks, leaf, results) for leaf in leaves(tasks)]
        return Result(next((p for p in (nodes.ERROR, nodes.FAILED) if p in phases), nodes.SUCCEEDED))

    async def _task(
        self, task: dict[str, Any], scope: dict[str, Any], results: dict[str, Result], slots: asyncio.Semaphore
    ) -> Result:
        depends = task.get("depends", "")
        if depends and not evaluate_depends(depends, lambda name, what: results[name].answers(what)):
            return Result(nodes.OMITTED)
        if self.pods.stopping.is_set():
            self.cut_short = True
            return Result(nodes.OMITTED)
        tasks = {name: {"outputs": {"parameters": r.outputs}, "status": r.phase} for name, r in results.items()}
        scope = {**scope, "tasks": tasks}

        async def one(name: str, item: dict[str, Any]) -> Result:
            given = task.get("arguments", {}).get("parameters", [])
            inputs = {p["name"]: resolve(str(p["value"]), {**scope, **item}) for p in given}
            async with slots:
                return await self._execute(task["template"], name, inputs)

        try:
            items = items_of(task, scope)
        except ValueError as error:
            raise WorkflowError(f"task {task['name']}: {error}") from None
        if items is None:
            return await one(task["name"], {})
        names = [f"{task['name']}-{_item_name(item)}" for item in items]
        scopes = [{"item": item if isinstance(item, dict) else as_text(item)} for item in items]
        return group(list(await asyncio.gather(*(one(n, s) for n, s in zip(names, scopes, strict=True)))))

    def _failures(self) -> str:
        """`workflow.failures` as the controller writes it: JSON, one object a failed node."""
        failed = [node for node in self.nodes if node.phase in (nodes.FAILED, nodes.ERROR)]
        return json.dumps(
            [
                {
                    "displayName": n.label,
                    "message": n.message,
                    "templateName": n.task,
                    "phase": n.phase,
                    "podName": n.name,
                }
                for n in failed
            ]
        )

    def _outcome(self, result: Result) -> Outcome:
        """The study's exit code: a fold's own end says more than the gate that missed it."""
        unfinished = self.cut_short or any(node.phase != nodes.SUCCEEDED for node in self.nodes)
        if self.pods.stopping.is_set() and unfinished:
            return Outcome(result.phase, INTERRUPTED, self.nodes, interrupted=True)
        codes = [node.exit_code or 1 for node in self.nodes if node.phase in (nodes.FAILED, nodes.ERROR)]
        if result.phase == nodes.SUCCEEDED:
            return Outcome(result.phase, 0, self.nodes)
        return Outcome(result.phase, next((c for c in codes if c != GATE_FAILED), codes[0] if codes else 1), self.nodes)


def _parameters(spec: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    declared = {p["name"]: p.get("value") for p in spec.get("arguments", {}).get("parameters", [])}
    for name in given:
        if name not in declared:
            raise UsageError(f"parameter {name}: the workflow has none of that name{nearest(name, list(declared))}")
    values = {**declared, **given}
    if missing := [name for name, value in values.items() if value is None]:
        raise UsageError(f"parameter {missing[0]}: it has no default, give a value")
    return {name: str(value) for name, value in values.items()}


def _inputs(template: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    values = {}
    for parameter in template.get("inputs", {}).get("parameters", []):
        name = parameter["name"]
        value = given.get(name, parameter.get("value", parameter.get("default")))
        if value is None:
            raise WorkflowError(f"template {template['name']}: no value for input {name}")
        values[name] = str(value)
    return values


def _item_name(item: Any) -> str:
    """The first value of an object, else the item: fold 2 is `train-2` wherever it stands in the list."""
    value = next(iter(item.values()), "") if isinstance(item, dict) else item
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in as_text(value))[:40]


def _branch_phase(tasks: list[dict[str, Any]], name: str, results: dict[str, Result]) -> str:
    """A leaf's phase; one that was left out takes the worst of what it waited for."""
    phase = results[name].phase
    if phase != nodes.OMITTED:
        return phase
    above = [_branch_phase(tasks, other, results) for other in ancestors(tasks, name)]
    return next((p for p in (nodes.ERROR, nodes.FAILED) if p in above), nodes.SUCCEEDED)
