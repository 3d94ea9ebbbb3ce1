"""Finds what is wrong with a rendered WorkflowTemplate without a cluster, and asks a cluster where there is one.

Three layers: fields that Hera's models drop (a round trip shows the misspelt ones), rules of our own about what the
fields mean, and a server-side dry run against the full CRDs. The API server does not follow references, we do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from workflows.errors import BadReference, WorkflowError, nearest
from workflows.expressions import depends_tasks, evaluate
from workflows.fields import check_workflow, leaves

if TYPE_CHECKING:
    from workflows.kube import Kube

Tree = dict[str, Any]
TAG = re.compile(r"\{\{(=?)(.*?)\}\}", re.DOTALL)
_HYPHENATED = re.compile(r"\bparameters\.\w+-\w")  # an expression reads this as a subtraction
_INDEXED = re.compile(r"workflow\.parameters\['([^']*)'\]")
MUST_RETRY = ("75", "77", "137", "143", "134", "139")
MUST_NOT_RETRY = ("1", "2", "3", "76")
MAX_NAME = 63 - len("-abcde")  # a run's name adds to the template's


def lint(tree: Tree) -> list[str]:
    """Everything that is wrong with a template, one line each, with the place."""
    found = misread(tree)
    try:
        check_workflow(tree)
    except WorkflowError as error:
        found.append(str(error).splitlines()[0])
        if isinstance(error, BadReference):  # the rest would be guesswork
            return found
    return found + list(_rules(tree))


def misread(tree: Tree) -> list[str]:
    """Fields that Hera's models don't have (they drop them silently), and values of a wrong type."""
    from pydantic import ValidationError

    try:
        return [f"{where.lstrip('.')}: unknown field{_hint(where)}" for where in unknown_fields(tree)]
    except ValidationError as error:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]


def unknown_fields(tree: Tree) -> list[str]:
    """Paths of fields that don't survive a round trip through Hera's models."""
    from hera.workflows import WorkflowTemplate

    read: Any = WorkflowTemplate.from_dict(deepcopy(tree))
    return differences(tree, read.to_dict())


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Fields of `a` that are missing or other in `b`."""
    if isinstance(a, dict) and isinstance(b, dict):
        inner = (differences(a[k], b[k], f"{where}.{k}") if k in b else [f"{where}.{k}"] for k in a)
        return [line for lines in inner for line in lines]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}[{i}]")]
    return [] if a == b else [where]


def _hint(where: str) -> str:
    """The field that was meant, from the models' own names."""
    from hera.workflows import models

    owners = (models.WorkflowSpec, models.Template, models.Container, models.DAGTask, models.RetryStrategy)
    known = [f.alias or n for owner in owners for n, f in owner.model_fields.items()]
    return nearest(where.rpartition(".")[2], known)


def server_lint(kube: Kube, tree: Tree) -> list[str]:
    """What the API server says of the template: fields, types and rules of the CRD. Creates nothing."""
    trial = deepcopy(tree)
    name = trial["metadata"].pop("name")
    trial["metadata"]["generateName"] = f"{name}-lint-"  # a template of that name may be there already
    from workflows.kube import ClusterError

    try:
        kube.create("workflowtemplates", trial, dry_run=True)
    except ClusterError as error:
        if error.status not in (400, 422):
            raise
        return [str(error).splitlines()[0]]
    return []


def _rules(tree: Tree) -> Iterator[str]:
    spec = tree["spec"]
    templates = {part["name"]: part for part in spec["templates"]}
    declared = {p["name"] for p in spec.get("arguments", {}).get("parameters", [])}
    name = tree["metadata"]["name"]
    if len(name) > MAX_NAME:
        yield f"metadata.name {name}: longer than {MAX_NAME} characters, no room for a run's own name"
    yield from _parameters(spec, declared)
    for part in templates.values():
        yield from _tags(part, declared, templates)
        if "container" in part:
            yield from _pod(part)
        else:
            yield from _dag(part, templates)
    yield from _patch(spec.get("podSpecPatch", ""), "spec")
    used = {spec["entrypoint"], spec.get("onExit")}
    used |= {task["template"] for part in templates.values() for task in part.get("dag", {}).get("tasks", [])}
    for name in sorted(templates.keys() - used):
        yield f"templates[{name}]: never used"


def _parameters(spec: Tree, declared: set[str]) -> Iterator[str]:
    text = json.dumps(spec["templates"])
    for parameter in spec.get("arguments", {}).get("parameters", []):
        name = parameter["name"]
        if not isinstance(parameter.get("value", parameter.get("default", "")), str):
            yield f"arguments[{name}]: not a string; every parameter is one"
        if f"workflow.parameters.{name}" not in text and f"workflow.parameters['{name}']" not in text:
            yield f"arguments[{name}]: no template reads it"


def _tags(part: Tree, declared: set[str], templates: dict[str, Tree]) -> Iterator[str]:
    """Every `{{...}}` names something that is there when it is filled in."""
    where = f"templates[{part['name']}]"
    own = {key: value for key, value in part.items() if key != "dag"}
    inputs = {p["name"] for p in part.get("inputs", {}).get("parameters", [])}
    for expression, body in TAG.findall(json.dumps(own)):
        yield from _tag(where, expression, body.strip(), declared, inputs, "retryStrategy" in part)
    for task in part.get("dag", {}).get("tasks", []):
        known = _outputs_before(part["dag"]["tasks"], task["name"], templates)
        loops = any(loop in task for loop in ("withParam", "withItems", "withSequence"))
        for expression, body in TAG.findall(json.dumps(task)):
            body, at = body.strip(), f"{where}.tasks[{task['name']}]"
            if body.startswith("tasks."):
                if body not in known:
                    yield f"{at}: {{{{{body}}}}}: no earlier task gives it{nearest(body, sorted(known))}"
            elif body == "item" or body.startswith("item."):
                if not loops:
                    yield f"{at}: {{{{{body}}}}}: the task has no loop"
            else:
                yield from _tag(at, expression, body, declared, inputs, False)


def _tag(where: str, expression: str, body: str, declared: set[str], inputs: set[str], retried: bool) -> Iterator[str]:
    shown = f"{{{{{expression}{body}}}}}"
    if expression:
        if _HYPHENATED.search(body):
            yield f"{where}: {shown}: a name with a hyphen needs workflow.parameters['...'] in an expression"
        for name in _INDEXED.findall(body):
            if name not in declared:
                yield f"{where}: {shown}: no parameter {name!r}{nearest(name, sorted(declared))}"
        if ("lastRetry" in body or "retries" in body) and not retried:
            yield f"{where}: {shown}: only there where the template has a retryStrategy"
        return
    kind, _, name = body.rpartition(".")
    if kind == "workflow.parameters" and name not in declared:
        yield f"{where}: {shown}: no parameter {name!r}{nearest(name, sorted(declared))}"
    if kind == "inputs.parameters" and name not in inputs:
        yield f"{where}: {shown}: no input {name!r}{nearest(name, sorted(inputs))}"
    if (kind == "lastRetry" or body == "retries") and not retried:
        yield f"{where}: {shown}: only there where the template has a retryStrategy"
    if not body.startswith(("workflow.", "inputs.", "lastRetry.", "pod.", "outputs.")) and body != "retries":
        yield f"{where}: {shown}: nothing fills this in"


def _outputs_before(tasks: list[Tree], name: str, templates: dict[str, Tree]) -> set[str]:
    """`tasks.T.outputs.parameters.P` of all tasks that are over when this one starts."""
    by_name, before, todo = {task["name"]: task for task in tasks}, set(), [name]
    while todo:
        for other in depends_tasks(by_name[todo.pop()].get("depends", "")):
            if other not in before and other in by_name:
                before.add(other)
                todo.append(other)
    return {
        f"tasks.{other}.outputs.parameters.{p['name']}"
        for other in before
        for p in templates[by_name[other]["template"]].get("outputs", {}).get("parameters", [])
    }


def _pod(part: Tree) -> Iterator[str]:
    where = f"templates[{part['name']}]"
    volumes = {volume["name"] for volume in part.get("volumes", [])}
    for mount in part["container"].get("volumeMounts", []):
        if (name := mount["name"]) not in volumes:
            yield f"{where}: mounts {name!r}, a volume it doesn't have{nearest(name, sorted(volumes))}"
    for kind, values in part["container"].get("resources", {}).items():
        for name, value in values.items():
            if "{{" in str(value):
                yield f"{where}: resources.{kind}.{name}: quantities take no tags; set it by podSpecPatch"
    for parameter in part.get("outputs", {}).get("parameters", []):
        if "default" not in parameter.get("valueFrom", {}):
            yield f"{where}: output {parameter['name']}: without a default its readers hang when the task is skipped"
    if "parallelism" in part:
        yield f"{where}: parallelism: only a DAG has it"
    yield from _patch(part.get("podSpecPatch", ""), where)
    yield from _retry(part.get("retryStrategy"), where)


def _patch(text: str, where: str) -> Iterator[str]:
    if not text:
        return
    try:
        patch = json.loads(text)
    except ValueError as error:
        yield f"{where}.podSpecPatch: not JSON: {error}"
        return
    for container in [*patch.get("containers", []), *patch.get("initContainers", [])]:
        if container.get("name") not in ("main", "init", "wait"):
            yield f"{where}.podSpecPatch: container {container.get('name')!r}: pods have main, init and wait"


def _retry(retry: Tree | None, where: str) -> Iterator[str]:
    """Interruptions come back, verdicts and mistakes don't."""
    if retry is None:
        yield f"{where}: no retryStrategy: an interruption would be the end"
        return
    if retry.get("retryPolicy") != "Always":
        yield f"{where}.retryStrategy.retryPolicy: must be Always, a reclaimed node shows as Failed or as Error"

    def again(status: str, code: str) -> bool:
        last = {"status": status, "exitCode": code, "message": "", "duration": "1"}
        return bool(evaluate(retry.get("expression", "true"), {"lastRetry": last, "retries": "1"}))

    try:
        wrong = [f"exit code {code} is not retried" for code in MUST_RETRY if not again("Failed", code)]
        wrong += [f"exit code {code} is retried" for code in MUST_NOT_RETRY if again("Failed", code)]
        wrong += [] if again("Error", "-1") else ["status Error (pod deleted) is not retried"]
    except WorkflowError as error:
        wrong = [str(error).splitlines()[0]]
    yield from (f"{where}.retryStrategy.expression: {what}" for what in wrong)


def _dag(part: Tree, templates: dict[str, Tree]) -> Iterator[str]:
    where, tasks = f"templates[{part['name']}]", part["dag"]["tasks"]
    for task in tasks:
        given = {p["name"] for p in task.get("arguments", {}).get("parameters", [])}
        wanted = templates[task["template"]].get("inputs", {}).get("parameters", [])
        names = [p["name"] for p in wanted]
        for parameter in wanted:
            if parameter["name"] not in given and "value" not in parameter and "default" not in parameter:
                yield f"{where}.tasks[{task['name']}]: input {parameter['name']!r} of {task['template']} is not given"
        for name in sorted(given - set(names)):
            hint = nearest(name, names)
            yield f"{where}.tasks[{task['name']}]: {task['template']} has no input {name!r}{hint}"
    by_name = {task["name"] for task in tasks}
    if "gate" in by_name and "gate" not in leaves(tasks):
        yield f"{where}: gate is not a leaf: whatever follows it would turn a failed study green"
