"""Reads a pod as the API gives it: whether it runs, why it waits, whether it looks dead or lost."""

from __future__ import annotations

from workflows.argo_nodes import RUNNING, Tree, seconds

NODE_ID = "workflows.argoproj.io/node-id"
_TERMINATING_TOO_LONG = 60.0  # past the pod's own grace


def annotation(pod: Tree, name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(name, ""))


def container(pod: Tree, name: str = "main") -> Tree:
    """A container's status, {} before there is one."""
    found = (pod.get("status") or {}).get("containerStatuses") or []
    return next((c for c in found if c.get("name") == name), {})


def main_started(pod: Tree) -> float | None:
    return seconds(((container(pod).get("state") or {}).get("running") or {}).get("startedAt"))


def is_running(pod: Tree) -> bool:
    """Whether its main container runs, so that there is a log to follow."""
    return "running" in (container(pod).get("state") or {})


def condition(pod: Tree, kind: str) -> Tree:
    found = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in found if c.get("type") == kind), {})


def pending_reason(pod: Tree | None, event: str, message: str) -> str:
    """Why a pod waits: the scheduler's words, an image that can't be pulled, what the events say, Argo's own."""
    if pod is None:
        return event or message or "its pod is not made yet"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "not scheduled")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in (pod.get("status") or {}).get(kind) or []:
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return event or message or "its containers are being made"


def suspicious(pod: Tree, now: float) -> bool:
    """Whether the pod looks as if its node were gone, so that it's worth a look at the node."""
    if (pod.get("status") or {}).get("reason") == "NodeLost" or (pod.get("status") or {}).get("phase") == "Unknown":
        return True
    if condition(pod, "DisruptionTarget").get("reason") == "DeletionByTaintManager":
        return True
    deleted = seconds(pod["metadata"].get("deletionTimestamp"))  # already with the grace added
    if deleted is not None and now - deleted > _TERMINATING_TOO_LONG:
        return True
    return is_running(pod) and condition(pod, "Ready").get("status") in ("False", "Unknown")


def main_dead_for(pod: Tree, now: float) -> float | None:
    """Seconds since the main container was killed under an executor that goes on waiting; None when it isn't so.

    A process of ours that dies is seen by the executor, which is PID 1 beside it. Only when PID 1 itself is killed does
    nobody write down how it ended. Argo's controller then ends the pod by a command inside it; where it may not, the
    pod stays Running, with its GPU, for ever.
    """
    ended = (container(pod).get("state") or {}).get("terminated") or {}
    if (pod.get("status") or {}).get("phase") != RUNNING or pod["metadata"].get("deletionTimestamp"):
        return None
    if int(ended.get("exitCode", 0)) < 128 or "running" not in (container(pod, "wait").get("state") or {}):
        return None
    at = seconds(ended.get("finishedAt"))
    return None if at is None else max(0.0, now - at)
