"""Is Argo's controller there, new enough and at work?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from workflows.argo import phase_of
from workflows.findings import Finding, Scope, State
from workflows.kube import ClusterError

OLDEST_ARGO = (4, 0, 5)
CONTROLLER = "workflow-controller"
CONTROLLER_NAMESPACE = "argo"
POD_LABELS = ("app", "app.kubernetes.io/component")  # of Argo's manifest, of its Helm chart
# Argo's own manifest names its deployment so and labels the pods only; the chart's is named after the release.
QUERIES = (
    {"field_selector": f"metadata.name={CONTROLLER}"},
    {"label_selector": f"app.kubernetes.io/component={CONTROLLER}"},
)
TAKEN_UP_WITHIN = 60.0  # seconds a controller at work needs at most for a new workflow
SEEN_WITHIN = 30.0  # seconds for which what it did is taken as a sign of life


def controller(scope: Scope) -> Iterator[Finding]:
    """A controller of a fit version is at work: by its deployment, else by what it did lately."""
    found = [one for one in _deployments(scope) if _serves(one, scope.kube.namespace)]
    for deployment in found:
        place, name = deployment.metadata.namespace, deployment.metadata.name
        version = _version(deployment)
        if not (deployment.status and deployment.status.available_replicas):
            todo = scope.kube.kubectl(f"-n {place} describe deployment {name}")
            yield Finding("controller", State.failed, f"{place}/{name}: no pod of it is available", f"see why: {todo}")
        elif version and version < OLDEST_ARGO:
            old, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_ARGO))
            yield Finding("controller", State.failed, f"{place}/{name}: version {old}", f"renew it: {oldest} or newer")
        else:
            shown = ".".join(map(str, version)) if version else "of unknown version"
            yield Finding("controller", State.ok, f"{place}/{name} runs, {shown}")
    if not found:
        yield _by_activity(scope)


def _deployments(scope: Scope) -> list[Any]:
    """Of the whole cluster; where that may not be read, or knows none by name, of the namespaces that are likely."""
    kube = scope.kube
    for query in QUERIES:
        try:
            if found := kube.call(kube.apps.list_deployment_for_all_namespaces, **query).items:
                return list(found)
        except ClusterError as error:
            if error.status != 403:
                raise
            break
    found = []
    for namespace in dict.fromkeys((kube.namespace, CONTROLLER_NAMESPACE)):
        try:
            found += kube.call(kube.apps.list_namespaced_deployment, namespace).items
        except ClusterError as error:
            if error.status != 403:
                raise
    return [one for one in found if one.metadata.name == CONTROLLER or _is_controller(one)]


def _is_controller(deployment: Any) -> bool:
    labels = {**(deployment.spec.selector.match_labels or {}), **(deployment.spec.template.metadata.labels or {})}
    return any(labels.get(key) == CONTROLLER for key in POD_LABELS)


def _serves(deployment: Any, namespace: str) -> bool:
    """One that is `--namespaced` takes up the workflows of its own namespace only, or of the one it is told."""
    words = [word for c in deployment.spec.template.spec.containers for word in (*(c.command or []), *(c.args or []))]
    if "--namespaced" not in words:
        return True
    told = re.search(r"--managed-namespace[= ](\S+)", " ".join(words))
    return (told[1] if told else deployment.metadata.namespace) == namespace


def _version(deployment: Any) -> tuple[int, ...]:
    """From the image's tag: v4.0.5 -> (4, 0, 5); () when it has none. Other containers have versions of their own."""
    containers = deployment.spec.template.spec.containers
    ours = [c for c in containers if CONTROLLER in (c.name, *re.split(r"[/:@]", c.image or ""))]
    for container in ours or containers:
        if match := re.search(r":v?(\d+)\.(\d+)\.(\d+)", container.image or ""):
            return tuple(map(int, match.groups()))
    return ()


def _by_activity(scope: Scope) -> Finding:
    """Without a deployment to read: is the newest workflow taken up, did a running one just change?

    One that stands still for a minute says nothing: a long training does that too.
    """
    workflows = scope.kube.workflows()
    if not workflows:
        return Finding("controller", State.unknown, "no deployment of it can be read, and no workflow tells of it")
    newest = workflows[0]
    name, age = newest["metadata"]["name"], _age(newest["metadata"].get("creationTimestamp", ""))
    if phase_of(newest) == "Pending" and not newest.get("status"):
        if age > TAKEN_UP_WITHIN:
            todo = f"start it, or let it watch this namespace: {scope.kube.kubectl(f'get pods -A -l app={CONTROLLER}')}"
            return Finding("controller", State.failed, f"workflow {name}: not taken up for {age:.0f} s", todo)
        return Finding("controller", State.unknown, f"workflow {name} is {age:.0f} s old, too young to tell")
    seen = {w["metadata"]["name"]: _last_change(w) for w in workflows if phase_of(w) == "Running"}
    if not seen:
        return Finding("controller", State.unknown, "no deployment of it can be read, and no workflow runs")
    name = min(seen, key=lambda one: seen[one])
    if seen[name] <= SEEN_WITHIN:
        return Finding("controller", State.ok, f"at work {max(seen[name], 0.0):.0f} s ago, on {name}")
    says = f"no deployment of it can be read; last seen at work {seen[name]:.0f} s ago, on {name}"
    return Finding("controller", State.unknown, says)


def _last_change(workflow: dict[str, Any]) -> float:
    """Seconds since the controller last started or ended something of this workflow."""
    status = workflow.get("status") or {}
    times = [status.get("startedAt"), status.get("finishedAt")]
    times += [t for node in status.get("nodes", {}).values() for t in (node.get("startedAt"), node.get("finishedAt"))]
    return min((_age(t) for t in times if t), default=float("inf"))


def _age(time: str) -> float:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except ValueError:
        return float("inf")
