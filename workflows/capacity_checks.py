"""Is there room: nodes of the pools, free GPUs, quota, the claim?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from workflows.argo import POOLS, claims_there
from workflows.errors import nearest
from workflows.findings import Finding, Scope, State, Unreadable, readable
from workflows.install_checks import fill
from workflows.kube import ClusterError

GPU = "nvidia.com/gpu"
POOL_LABEL = POOLS["gpu-pool"]
MI = 2**20
ASKED = {"gpu-pool": ("memory-mi", "cpus"), "cpu-pool": ("cpu-memory-mi", "cpu-cpus")}  # parameters: memory, cores


def quantity(text: Any) -> Decimal:
    """ "64Gi" -> bytes, "500m" -> 0.5; 0 for nothing."""
    from kubernetes.utils.quantity import parse_quantity

    return Decimal(parse_quantity(text)) if text not in (None, "") else Decimal(0)


def pool(scope: Scope, name: str, template: str) -> Iterator[Finding]:
    """Nodes of one pool: there, ready, with tolerated taints and enough memory. `name` is gpu-pool or cpu-pool."""
    kube, value = scope.kube, scope.parameter(name)
    every = readable(lambda: kube.call(kube.core.list_node).items) or []
    nodes = [node for node in every if (node.metadata.labels or {}).get(POOL_LABEL) == value]
    scope.nodes[name] = nodes
    if not nodes:
        yield _empty_pool(scope, name, value, every)
        return
    ready = [node for node in nodes if is_ready(node) and not node.spec.unschedulable]
    if not ready:
        names = ", ".join(node.metadata.name for node in nodes[:4])
        todo = f"see why: {kube.kubectl(f'describe node {nodes[0].metadata.name}')}"
        yield Finding(name, State.failed, f"{value}: no node is ready and schedulable ({names})", todo)
        return
    open_nodes = _open(scope, ready, template)
    if not open_nodes:
        node = ready[0]
        taint = untolerated(node, _tolerations(scope, template))[0]
        text = f"{taint.key}={taint.value or ''}:{taint.effect}"
        todo = f"take it away: {kube.kubectl(f'taint node {node.metadata.name} {taint.key}-')}"
        says = f"{value}: the template tolerates no taint {text} (node {node.metadata.name})"
        yield Finding(name, State.failed, says, f"{todo}, or taint with {POOL_LABEL}={value}:NoSchedule")
        return
    if too_small := _too_small(scope, name, open_nodes):
        yield too_small
        return
    says = f"{value}: {len(open_nodes)} of {len(nodes)} nodes ready, taints tolerated"
    yield Finding(name, State.ok, says)


def _open(scope: Scope, nodes: list[Any], template: str) -> list[Any]:
    """Those that take new pods of this template."""
    tolerations = _tolerations(scope, template)
    return [n for n in nodes if is_ready(n) and not n.spec.unschedulable and not untolerated(n, tolerations)]


def _too_small(scope: Scope, name: str, nodes: list[Any]) -> Finding | None:
    """No node has the memory and the cores that a pod of the pool asks for."""
    of_memory, of_cores = ASKED[name]
    memory = int(scope.parameter(of_memory, "0") or 0) * MI
    cores = quantity(scope.parameter(of_cores, "0"))
    room = [(_allocatable(node, "memory"), _allocatable(node, "cpu")) for node in nodes]
    if any(memory <= its_memory and cores <= its_cores for its_memory, its_cores in room):
        return None
    most_memory, most_cores = (max(column) for column in zip(*room, strict=True))
    value, wants_memory, wants_cores = scope.parameter(name), f"{memory // MI} MiB of memory", f"{cores:f} CPU cores"
    if memory > most_memory:
        wants, todo = wants_memory, f"--parameter {of_memory}={int(most_memory / MI)}"
    elif cores > most_cores:
        wants, todo = wants_cores, f"--parameter {of_cores}={_cores(most_cores)}"
    else:
        alone = max(its_cores for its_memory, its_cores in room if its_memory >= memory)
        wants, todo = f"both {wants_memory} and {wants_cores}", f"--parameter {of_cores}={_cores(alone)}"
    return Finding(name, State.failed, f"{value}: no node has {wants}", f"ask for less: {todo}")


def _allocatable(node: Any, resource: str) -> Decimal:
    return quantity((node.status.allocatable or {}).get(resource))


def _cores(room: Decimal) -> str:
    """Whole cores, or thousandths where there is not one."""
    return str(int(room)) if room >= 1 else f"{int(room * 1000)}m"


def gpu_pool(scope: Scope) -> Iterator[Finding]:
    yield from pool(scope, "gpu-pool", "train")


def cpu_pool(scope: Scope) -> Iterator[Finding]:
    yield from pool(scope, "cpu-pool", "precompute")


def _empty_pool(scope: Scope, name: str, value: str, every: list[Any]) -> Finding:
    there = sorted({labels[POOL_LABEL] for n in every if POOL_LABEL in (labels := n.metadata.labels or {})})
    says = f"no node has the label {POOL_LABEL}={value}{nearest(value, there)}"
    if scope.scales_from_zero:
        return Finding(name, State.warning, f"{says}; a pool that scales from zero must make one")
    known = f"name another with --{name} (there: {', '.join(there)})" if there else "no node has a pool label"
    label = scope.kube.kubectl(f"label node NODE {POOL_LABEL}={value}")
    return Finding(name, State.failed, says, f"{known}, label one: {label}, or say --scales-from-zero")


def is_ready(node: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or [])


def _tolerations(scope: Scope, template: str) -> list[dict[str, Any]]:
    """The template's own, with parameters filled in."""
    for part in scope.template["spec"]["templates"]:
        if part["name"] == template:
            given = part.get("tolerations", [])
            return [{**t, "value": fill(str(t.get("value", "")), scope.parameters)} for t in given]
    return []


def untolerated(node: Any, tolerations: list[dict[str, Any]]) -> list[Any]:
    """Taints that keep our pods away. PreferNoSchedule doesn't."""
    return [
        taint
        for taint in node.spec.taints or []
        if taint.effect != "PreferNoSchedule" and not any(tolerates(t, taint) for t in tolerations)
    ]


def tolerates(toleration: dict[str, Any], taint: Any) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.key:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == (taint.value or "")


def free_gpus(scope: Scope) -> Iterator[Finding]:
    """GPUs of the pool that no pod holds, against the folds that want one each."""
    kube, value, folds = scope.kube, scope.parameter("gpu-pool"), scope.folds
    if "gpu-pool" not in scope.nodes:
        yield Finding("gpus", State.unknown, "the nodes may not be read")
        return
    nodes = {node.metadata.name: node for node in _open(scope, scope.nodes["gpu-pool"], "train")}
    there = sum(int(_allocatable(node, GPU)) for node in nodes.values())
    if not there:
        if nodes:
            todo = f"is the device plugin at work? {kube.kubectl('get nodes -o yaml')} shows no {GPU} in allocatable"
            yield Finding("gpus", State.failed, f"{value}: no node offers {GPU}", todo)
        else:  # what that means was said of the pool
            yield Finding("gpus", State.unknown, f"{value} has no node now that takes our pods")
        return
    try:
        pods = readable(lambda: kube.call(kube.core.list_pod_for_all_namespaces).items) or []
    except Unreadable:
        yield Finding("gpus", State.unknown, f"{value}: {there} GPUs; how many are free may not be read")
        return
    holders = {
        f"{pod.metadata.namespace}/{pod.metadata.name}": held
        for pod in pods
        if pod.spec.node_name in nodes and pod.status.phase not in ("Succeeded", "Failed") and (held := gpus_of(pod))
    }
    free = there - sum(holders.values())
    if free <= 0:
        todo = f"wait, or stop one of: {', '.join(list(holders)[:4])}"
        yield Finding("gpus", State.failed, f"{value}: none of {there} GPUs is free", todo)
    elif free < folds:
        says = f"{value}: {free} of {there} GPUs are free for {folds} folds; the others wait"
        yield Finding("gpus", State.warning, says)
    else:
        yield Finding("gpus", State.ok, f"{value}: {free} of {there} GPUs are free for {folds} folds")


def gpus_of(pod: Any) -> int:
    """GPUs that a pod holds: its containers together, or its greediest init container."""

    def asked(container: Any) -> int:
        resources = container.resources
        return int(quantity(((resources.requests or resources.limits or {}) if resources else {}).get(GPU)))

    return max(
        sum(asked(c) for c in pod.spec.containers), max((asked(c) for c in pod.spec.init_containers or []), default=0)
    )


def quota(scope: Scope) -> Iterator[Finding]:
    """Quotas that would refuse our pods, and limit ranges that would refuse their sizes."""
    kube = scope.kube
    quotas = readable(lambda: kube.call(kube.core.list_namespaced_resource_quota, kube.namespace).items) or []
    ranges = readable(lambda: kube.call(kube.core.list_namespaced_limit_range, kube.namespace).items) or []
    found = [finding for q in quotas for finding in _one_quota(scope, q, ranges)]
    found += [finding for r in ranges for finding in _one_range(scope, r)]
    yield from found
    if not any(finding.state is not State.ok for finding in found):
        yield Finding("quota", State.ok, "room for every fold" if quotas else "none set")


def _one_quota(scope: Scope, one: Any, ranges: list[Any]) -> Iterator[Finding]:
    folds, kube = scope.folds, scope.kube
    hard, used = one.status.hard or {}, one.status.used or {}
    per_fold = {
        f"requests.{GPU}": Decimal(1),
        "requests.memory": Decimal(int(scope.parameter("memory-mi", "0") or 0) * MI),
        "limits.memory": Decimal(int(scope.parameter("memory-mi", "0") or 0) * MI),
        "memory": Decimal(int(scope.parameter("memory-mi", "0") or 0) * MI),
        "requests.cpu": quantity(scope.parameter("cpus", "0") or "0"),
        "pods": Decimal(1),
    }
    for name, each in per_fold.items():
        if name not in hard or not each:
            continue
        room = int((quantity(hard[name]) - quantity(used.get(name))) / each)
        says = f"{one.metadata.name}: {name} {used.get(name, 0)} of {hard[name]} used: room for {max(room, 0)} folds"
        todo = f"ask for more: {kube.kubectl(f'-n {kube.namespace} edit resourcequota {one.metadata.name}')}"
        if room < 1:
            yield Finding("quota", State.failed, says, todo)
        elif room < folds:
            yield Finding("quota", State.warning, f"{says} of {folds}", todo)
    for name in ("cpu", "memory"):
        if f"limits.{name}" in hard and not any(_default(r, name) for r in ranges):
            says = f"{one.metadata.name}: it demands a {name} limit, which the executor's containers don't set"
            todo = f"give a default {name} limit by a LimitRange in {kube.namespace}"
            yield Finding("quota", State.failed, says, todo)


def _default(one: Any, name: str) -> bool:
    return any(limit.type == "Container" and name in (limit.default or {}) for limit in one.spec.limits)


def _one_range(scope: Scope, one: Any) -> Iterator[Finding]:
    for limit in one.spec.limits:
        top = (limit.max or {}).get("memory")
        for name in ("memory-mi", "cpu-memory-mi"):
            wanted = int(scope.parameter(name, "0") or 0) * MI
            if limit.type in ("Container", "Pod") and top and wanted > quantity(top):
                says = f"{one.metadata.name}: at most {top} of memory a {limit.type.lower()}; {name} is {wanted // MI}"
                todo = f"ask for less: --parameter {name}={int(quantity(top) / MI)}"
                yield Finding("quota", State.failed, says, todo)


def claim(scope: Scope) -> Iterator[Finding]:
    """The claim is there, bound, and can be mounted on several nodes when folds run on several."""
    kube, name = scope.kube, scope.parameter("claim", "feature-cache")
    read = kube.core.read_namespaced_persistent_volume_claim
    found = readable(lambda: kube.call(read, name, kube.namespace))
    if found is None:
        make = kube.kubectl(f"-n {kube.namespace} create -f - <<< '{json.dumps(claim_object(name))}'")
        there = claims_there(kube)
        others = f" (there: {', '.join(there)})" if there else ""
        todo = f"{make}, or name another with --parameter claim=NAME{others}"
        yield Finding("claim", State.failed, f"no claim {name}{nearest(name, there)}", todo)
        return
    phase, modes = found.status.phase, found.spec.access_modes or []
    if phase != "Bound":
        yield _unbound(scope, name, phase)
        return
    nodes = len(scope.nodes.get("gpu-pool", [])) + len(scope.nodes.get("cpu-pool", []))
    several = scope.folds > 1 and nodes != 1
    if "ReadWriteMany" not in modes and several:
        says = f"{name} is {', '.join(modes) or 'of no mode'}: one node only, and folds run on several"
        todo = "make it ReadWriteMany (another storage class), or run on a pool of one node"
        yield Finding("claim", State.failed if nodes else State.unknown, says, todo)
        return
    size = (found.status.capacity or {}).get("storage", "?")
    yield Finding("claim", State.ok, f"{name}: bound, {', '.join(modes)}, {size}")


def claim_object(name: str) -> dict[str, Any]:
    """What to create where there is no claim: every node may write to it."""
    resources = {"requests": {"storage": "100Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": resources},
    }


def _unbound(scope: Scope, name: str, phase: str) -> Finding:
    """Waiting for its first pod is right for some storage classes; everything else has a reason in the events."""
    kube = scope.kube
    try:
        reasons = [e.message for e in kube.events(name, "PersistentVolumeClaim") if e.message]
    except ClusterError:
        reasons = []
    why = reasons[-1] if reasons else "no event says why"
    if "first consumer" in why:
        return Finding("claim", State.warning, f"{name} is {phase} until its first pod: {why}")
    todo = f"see why: {kube.kubectl(f'-n {kube.namespace} describe pvc {name}')}"
    return Finding("claim", State.failed, f"{name} is {phase}: {why}", todo)
