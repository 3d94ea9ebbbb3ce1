"""Which fields of a rendered workflow the local runner carries out, and which are a cluster's business only.

The second list is closed: a field on neither is an error that names it, so a workflow can't mean one thing on a
cluster and quietly another here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workflows.errors import BadReference, UnsupportedField, nearest
from workflows.expressions import depends_tasks

CARRIED_OUT: dict[str, set[str]] = {
    "workflow": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"arguments", "entrypoint", "onExit", "parallelism", "templates"},
    "template": {
        "name",
        "inputs",
        "outputs",
        "container",
        "dag",
        "failFast",
        "parallelism",
        "retryStrategy",
        "volumes",
    },
    "inputs": {"parameters"},
    "outputs": {"parameters", "artifacts"},
    "arguments": {"parameters"},
    "parameter": {"name", "value", "default", "valueFrom", "description", "enum"},
    "valueFrom": {"path", "default"},
    "artifact": {"name", "path", "optional"},
    "container": {
        "command",
        "args",
        "env",
        "volumeMounts",
        "workingDir",
        "resources",
    },
    "env": {"name", "value"},
    "dag": {"tasks", "failFast"},
    "task": {"name", "template", "depends", "arguments", "withParam", "withItems", "withSequence"},
    "withSequence": {"count", "start", "end", "format"},
    "retryStrategy": {"limit", "retryPolicy", "expression", "backoff"},
    "backoff": {"duration", "factor", "cap"},
    "volume": {"name", "emptyDir", "persistentVolumeClaim"},
    "volumeMount": {"name", "mountPath"},
}
CLUSTER_ONLY: dict[str, set[str]] = {
    "spec": {
        "affinity",
        "archiveLogs",
        "artifactRepositoryRef",
        "automountServiceAccountToken",
        "executor",
        "imagePullSecrets",
        "nodeSelector",
        "podDisruptionBudget",
        "podGC",
        "podMetadata",
        "podPriorityClassName",
        "podSpecPatch",
        "priority",
        "schedulerName",
        "securityContext",
        "serviceAccountName",
        "synchronization",
        "tolerations",
        "ttlStrategy",
        "workflowMetadata",
    },
    "template": {
        "activeDeadlineSeconds",
        "affinity",
        "annotations",
        "automountServiceAccountToken",
        "executor",
        "metadata",
        "nodeSelector",
        "podSpecPatch",
        "priorityClassName",
        "schedulerName",
        "securityContext",
        "serviceAccountName",
        "synchronization",
        "tolerations",
    },
    "artifact": {"archive", "s3", "artifactGC"},
    "container": {"envFrom", "image", "imagePullPolicy", "securityContext", "terminationMessagePolicy"},
    "env": {"valueFrom"},
    "retryStrategy": {"affinity"},
    "volumeMount": {"subPath", "readOnly"},
}
RETRY_POLICIES = ("Always", "OnFailure", "OnError")


def check_workflow(workflow: dict[str, Any]) -> None:
    """Raises UnsupportedField for the first field, reference or value that the local runner could not honour."""
    _known("workflow", workflow, "workflow")
    spec = workflow["spec"]
    _known("spec", spec, "spec")
    _check_parameters(spec.get("arguments", {}), "arguments", "spec.arguments")
    templates = {t["name"]: t for t in spec["templates"]}
    for name in (spec["entrypoint"], spec.get("onExit")):
        _reference(name or spec["entrypoint"], templates, "spec")
    for name, template in templates.items():
        _check_template(template, f"templates[{name}]", templates)


def _known(kind: str, given: dict[str, Any], where: str) -> None:
    known = CARRIED_OUT[kind] | CLUSTER_ONLY.get(kind, set())
    for field in given:
        if field not in known:
            raise UnsupportedField(
                f"{where}.{field}: the local runner does not know this field{nearest(field, sorted(known))}\n"
                "run the workflow on a cluster, or take the field out"
            )


def _reference(name: str, templates: dict[str, Any], where: str) -> None:
    if name not in templates:
        raise BadReference(f"{where}: no template {name!r}{nearest(name, list(templates))}")


def _check_parameters(holder: dict[str, Any], kind: str, where: str) -> None:
    _known(kind, holder, where)
    for parameter in holder.get("parameters", []):
        at = f"{where}.parameters[{parameter.get('name')}]"
        _known("parameter", parameter, at)
        _known("valueFrom", parameter.get("valueFrom", {}), f"{at}.valueFrom")
    for artifact in holder.get("artifacts", []):
        _known("artifact", artifact, f"{where}.artifacts[{artifact.get('name')}]")


def _check_template(template: dict[str, Any], where: str, templates: dict[str, Any]) -> None:
    _known("template", template, where)
    for kind in ("inputs", "outputs"):
        _check_parameters(template.get(kind, {}), kind, f"{where}.{kind}")
    for volume in template.get("volumes", []):
        _known("volume", volume, f"{where}.volumes[{volume.get('name')}]")
    _check_retry(template.get("retryStrategy", {}), f"{where}.retryStrategy")
    if ("container" in template) == ("dag" in template):
        raise UnsupportedField(f"{where}: needs either a container or a dag")
    if "container" in template:
        _check_container(template["container"], f"{where}.container")
    else:
        _check_dag(template, f"{where}.dag", templates)


def _check_container(container: dict[str, Any], where: str) -> None:
    _known("container", container, where)
    for env in container.get("env", []):
        _known("env", env, f"{where}.env[{env.get('name')}]")
    for mount in container.get("volumeMounts", []):
        _known("volumeMount", mount, f"{where}.volumeMounts[{mount.get('name')}]")


def _check_retry(retry: dict[str, Any], where: str) -> None:
    _known("retryStrategy", retry, where)
    _known("backoff", retry.get("backoff", {}), f"{where}.backoff")
    if retry.get("retryPolicy", "Always") not in RETRY_POLICIES:
        raise UnsupportedField(f"{where}.retryPolicy {retry['retryPolicy']!r}: known are {', '.join(RETRY_POLICIES)}")


def _check_dag(template: dict[str, Any], where: str, templates: dict[str, Any]) -> None:
    dag = template["dag"]
    _known("dag", dag, where)
    if dag.get("failFast", True):
        raise UnsupportedField(f"{where}.failFast: only false is carried out here, so say it")
    names = [task["name"] for task in dag["tasks"]]
    for task in dag["tasks"]:
        at = f"{where}.tasks[{task['name']}]"
        _known("task", task, at)
        _reference(task.get("template", ""), templates, at)
        _check_parameters(task.get("arguments", {}), "arguments", f"{at}.arguments")
        _known("withSequence", task.get("withSequence", {}), f"{at}.withSequence")
        if sum(loop in task for loop in ("withParam", "withItems", "withSequence")) > 1:
            raise UnsupportedField(f"{at}: more than one of withParam, withItems, withSequence")
        for other in depends_tasks(task.get("depends", "")):
            if other not in names:
                raise BadReference(f"{at}.depends: no task {other!r}{nearest(other, names)}")
    _check_order(dag["tasks"], where)


def _check_order(tasks: list[dict[str, Any]], where: str) -> None:
    waiting = {task["name"]: set(depends_tasks(task.get("depends", ""))) for task in tasks}
    while ready := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in ready:
            del waiting[name]
    if waiting:
        raise UnsupportedField(f"{where}: these tasks wait for each other: {', '.join(waiting)}")


def ancestors(tasks: list[dict[str, Any]], name: str) -> Iterator[str]:
    """Direct dependencies of a task, by name."""
    yield from next(depends_tasks(task.get("depends", "")) for task in tasks if task["name"] == name)


def leaves(tasks: list[dict[str, Any]]) -> list[str]:
    """Tasks that no other depends on: their phases decide the DAG's."""
    needed = {other for task in tasks for other in depends_tasks(task.get("depends", ""))}
    return [task["name"] for task in tasks if task["name"] not in needed]
