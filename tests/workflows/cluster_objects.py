"""Workflows and pods as Argo's controller and the kubelet write them, made by hand, small."""

from __future__ import annotations

import time
import zlib
from typing import Any

NAMESPACE = "foxhunt"
NAME = "alpha-rl-demo-x7k2p"
LABELS = ["fold 0 - 12-25 23:30", "fold 1 - 12-26 02:10", "fold 2 - 12-26 04:50"]


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def node_id(workflow: str, name: str) -> str:
    return workflow if name == workflow else f"{workflow}-{zlib.crc32(name.encode())}"


class Study:
    """A Workflow being put together; `tree` is what the API gives."""

    def __init__(
        self, name: str = NAME, run_id: str = "demo", phase: str = "Running", began: float = 1000.0, **parameters: str
    ) -> None:
        self.name, self.began, self.clock = name, began, began
        given = {
            "folds": "3",
            "run-id": run_id,
            "image": "foxhunt:1",
            "claim": "feature-cache",
            "runs": "/feature-cache",
        }
        given |= {"only-folds": "", "cpu-pool": "cpu", "gpu-pool": "gpu", "n-steps": "1000", **parameters}
        self.tree: dict[str, Any] = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{name}",
                "creationTimestamp": stamp(began),
                "labels": {"workflows.argoproj.io/workflow-template": "alpha-rl"},
            },
            "spec": {
                "workflowTemplateRef": {"name": "alpha-rl"},
                "arguments": {"parameters": [{"name": n, "value": v} for n, v in given.items()]},
            },
            "status": {"phase": phase, "startedAt": stamp(began), "nodes": {}},
        }
        if run_id:
            self.tree["metadata"]["labels"]["foxhunt.dev/run-id"] = run_id
        self.pods: dict[str, dict[str, Any]] = {}
        dag = {"type": "DAG", "templateName": "study", "children": []}
        self.nodes[name] = {"id": name, "name": name, "displayName": name, "phase": phase, **dag}

    @property
    def nodes(self) -> dict[str, Any]:
        return self.tree["status"]["nodes"]

    def end(self, phase: str, message: str = "") -> Study:
        self.tree["status"] |= {"phase": phase, "finishedAt": stamp(self.clock + 60), "message": message}
        return self

    def task(
        self,
        template: str,
        attempts: list[dict[str, Any]],
        phase: str = "Running",
        fold: int | None = None,
        outputs: dict[str, str] | None = None,
        message: str = "",
    ) -> Study:
        """A task with its attempts, each {phase, code, message, host, progress, seconds, pod: {...}}."""
        suffix = "" if fold is None else f"({fold}:fold:{fold},label:{LABELS[fold]})"
        name = f"{self.name}.{template}{suffix}"
        inputs = [] if fold is None else [("fold", str(fold)), ("label", LABELS[fold])]
        common = {
            "templateName": template,
            "boundaryID": self.name,
            "inputs": {"parameters": [{"name": n, "value": v} for n, v in inputs]},
        }
        retry = {
            "id": node_id(self.name, name),
            "name": name,
            "displayName": template if fold is None else LABELS[fold],
            "type": "Retry",
            "phase": phase,
            "message": message,
            "startedAt": stamp(self.clock),
            "children": [],
            "outputs": {"parameters": [{"name": n, "value": v} for n, v in (outputs or {}).items()]},
            **common,
        }
        self.nodes[retry["id"]] = retry
        self.nodes[self.name]["children"].append(retry["id"])
        for number, attempt in enumerate(attempts):
            self._attempt(retry, f"{name}({number})", dict(attempt), common)
        return self

    def _attempt(self, retry: dict[str, Any], name: str, attempt: dict[str, Any], common: dict[str, Any]) -> None:
        phase = attempt.get("phase", "Running")
        node: dict[str, Any] = {
            "id": node_id(self.name, name),
            "name": name,
            "displayName": f"{retry['displayName']}({len(retry['children'])})",
            "type": "Pod",
            "phase": phase,
            "startedAt": stamp(self.clock),
            "nodeFlag": {"retried": True},
            **common,
        }
        for key, field in (("message", "message"), ("host", "hostNodeName"), ("progress", "progress")):
            if key in attempt:
                node[field] = attempt[key]
        if "code" in attempt:
            node["outputs"] = {"exitCode": str(attempt["code"])}
        if phase in ("Succeeded", "Failed", "Error"):
            self.clock += attempt.get("seconds", 60)
            node["finishedAt"] = stamp(self.clock)
        self.nodes[node["id"]] = node
        retry["children"].append(node["id"])
        if "pod" in attempt:
            pod = self.pod_of(node, attempt["pod"], attempt.get("host", ""))
            self.pods[pod["metadata"]["name"]] = pod

    def pod_of(self, node: dict[str, Any], status: dict[str, Any], host: str) -> dict[str, Any]:
        name = f"{self.name}-{node['templateName']}-{node['id'].rpartition('-')[2]}"
        return {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{name}",
                "creationTimestamp": stamp(self.clock),
                "labels": {"workflows.argoproj.io/workflow": self.name},
                "annotations": {"workflows.argoproj.io/node-id": node["id"]},
            },
            "spec": {"nodeName": host, "containers": [{"name": "wait"}, {"name": "main"}]},
            "status": status,
        }


def running(since: float = 1000.0, ready: str = "True") -> dict[str, Any]:
    """A pod whose trainer runs."""
    state = {"running": {"startedAt": stamp(since)}}
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}],
        "containerStatuses": [{"name": "main", "state": state}, {"name": "wait", "state": state}],
    }


def main_dead(at: float, code: int = 137) -> dict[str, Any]:
    """The first process of main was killed; Argo's executor waits on."""
    status = running(ready="False")
    status["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code, "finishedAt": stamp(at)}}
    return status


def unschedulable(message: str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def creating() -> dict[str, Any]:
    """Placed, its containers being made."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "main", "state": waiting}, {"name": "wait", "state": waiting}],
    }
