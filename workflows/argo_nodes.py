"""Reads a Workflow as the controller writes it: which nodes are tasks, their attempts, how those ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workflows.kube import RUN_ID_LABEL

Tree = Mapping[str, Any]

SUCCEEDED, FAILED, ERROR, RUNNING, PENDING = "Succeeded", "Failed", "Error", "Running", "Pending"
TRAIN = "train"

_FOLD_IN_NAME = re.compile(r"\((\d+)(?::fold:(\d+))?")
_ATTEMPT = re.compile(r"\((\d+)\)$")
_EXIT_CODE = re.compile(r"exit code (\d+)")
_MEANING = {
    1: "failed, its log says why",
    2: "wrong flags, settings or data",
    3: "gate failed",
    75: "interrupted, state saved",
    76: "crash loop",
    77: "out of memory, state saved",
    134: "aborted",
    137: "killed",
    139: "crashed in native code",
    143: "ended before it could save",
}


def seconds(text: object) -> float | None:
    """Kubernetes' RFC 3339 time (with or without a fraction) as seconds since 1970; None for none."""
    if not isinstance(text, str) or not text:
        return None
    whole, dot, rest = text.rstrip("Z").partition(".")
    try:
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
        return moment + (float(f"0.{rest}") if dot else 0.0)
    except ValueError:
        return None


def parameters_of(workflow: Tree) -> dict[str, str]:
    """What it was submitted with, over the template's defaults where the controller has stored them."""
    stored = (workflow.get("status") or {}).get("storedWorkflowTemplateSpec") or {}
    found: dict[str, str] = {}
    for spec in (stored, workflow.get("spec") or {}):
        for parameter in (spec.get("arguments") or {}).get("parameters") or []:
            found[parameter["name"]] = str(parameter.get("value", ""))
    return found


def run_id_of(workflow: Tree) -> str:
    """The run-id: of the label, of the parameter, of the task that derived it; "" when not known yet."""
    labelled = (workflow["metadata"].get("labels") or {}).get(RUN_ID_LABEL)
    asked = labelled or parameters_of(workflow).get("run-id")
    if asked:
        return str(asked)
    nodes = (workflow.get("status") or {}).get("nodes") or {}
    found = (outputs_of(node).get("run-id") for node in nodes.values() if node.get("templateName") == "resolve")
    return next((name for name in found if name), "")


def task_nodes(nodes: Mapping[str, Tree]) -> list[Tree]:
    """Nodes that stand for a task: what retries, and pods or omitted tasks that no other node retries."""
    attempts = {child for n in nodes.values() if n.get("type") == "Retry" for child in n.get("children") or []}
    kinds = ("Retry", "Pod", "Skipped")
    return [n for key, n in nodes.items() if n.get("type") in kinds and key not in attempts and _ours(n)]


def _ours(node: Tree) -> bool:
    """Not the empty placeholder that a fan-out over nothing leaves."""
    return bool(node.get("templateName")) or node.get("phase") in ("Skipped", "Omitted")


def attempt_nodes(node: Tree, nodes: Mapping[str, Tree]) -> list[Tree]:
    """Pods of a task, oldest first."""
    if node.get("type") != "Retry":
        return [node] if node.get("type") == "Pod" else []
    found = [nodes[child] for child in node.get("children") or [] if child in nodes]
    own = [n for n in found if str(n.get("name", "")).startswith(f"{node.get('name', '')}(")]
    return sorted(own, key=lambda n: int(m.group(1)) if (m := _ATTEMPT.search(n["name"])) else 0)


def pod_name(workflow: str, node: Tree) -> str:
    """Argo's second naming rule: <workflow>-<template>-<hash>; a workflow of one pod is named after itself."""
    number = str(node["id"]).rpartition("-")[2]
    return workflow if node["id"] == workflow else f"{workflow}-{node.get('templateName', '')}-{number}"


def fold_of(node: Tree, template: str, inputs: Mapping[str, str]) -> int | None:
    if inputs.get("fold", "").isdecimal():
        return int(inputs["fold"])
    found = _FOLD_IN_NAME.search(str(node.get("name", ""))) if template == TRAIN else None
    return int(found.group(2) or found.group(1)) if found else None


def exit_code_of(node: Tree) -> int | None:
    text = str((node.get("outputs") or {}).get("exitCode", ""))
    if text.isdecimal():
        return int(text)
    found = _EXIT_CODE.search(str(node.get("message", "")))
    return int(found.group(1)) if found else None


def why_ended(code: int | None, message: str, phase: str = FAILED) -> str:
    """In words, with the exit code where there is one."""
    low = message.lower()
    if "oomkilled" in low:
        return "out of memory, killed by the kernel (exit 137)"
    if "shutdown with strategy" in low:
        return "stopped, state saved (exit 75)" if code == 75 else "stopped"
    if "deadline" in low:
        return f"attempt deadline reached{f' (exit {code})' if code else ''}"
    if code is not None and code in _MEANING and phase != ERROR:
        return f"{_MEANING[code]} (exit {code})"
    return message or (f"exit {code}" if code is not None else phase.lower())


def progress_of(node: Tree) -> tuple[int, int] | None:
    """`step/total` as the trainer reported it; Argo's own count of a pod is 0/1 or 1/1."""
    step, _, total = str(node.get("progress", "")).partition("/")
    return (int(step), int(total)) if step.isdecimal() and total.isdecimal() and int(total) > 1 else None


def outputs_of(node: Tree) -> dict[str, str]:
    return {p["name"]: str(p.get("value", "")) for p in (node.get("outputs") or {}).get("parameters") or []}
