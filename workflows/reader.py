"""Reads files of a run from the claim: a short-lived pod prints them into its log, with checksums.

Only rights on pods and their logs are needed, as for watching: no exec, no port, no token in the pod, the claim mounted
read-only. A pod's log is rotated away at about 10 MiB, so one pod prints one part and the next pod the next.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
import zlib
from dataclasses import dataclass
from typing import Any

from workflows.argo_nodes import Tree, parameters_of, seconds
from workflows.errors import WorkflowError
from workflows.kube import GROUP, VERSION, ClusterError, Kube
from workflows.pod_logs import lines_of, open_stream, read_json
from workflows.pod_state import pending_reason

READER_LABEL = {"app.kubernetes.io/name": "foxhunt-reader"}
PART_BYTES = 5 * 2**20  # before compression; printed as base64 in the worst case 6.7 MiB
_LIVES = 300  # seconds, should nobody be left to delete it
_START_WITHIN = 120.0
_POLL = 0.4
_MOUNT = "/claim"
_RUNS = "alpha-rl-runs"
_DEFAULT_USER = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

# Prints one JSON line with path, size and SHA-256 of every file, then bytes start..start+part of all files in a row as
# zlib in base64, a "=" before each line. Later parts are told the files and sizes, so that appending doesn't matter.
SCRIPT = """
import base64, glob, hashlib, json, os, sys, zlib
ask = json.loads(sys.argv[1])
files = ask["files"]
try:
    os.chdir(ask["root"])
    if files is None:
        found = sorted({path for pattern in ask["globs"] for path in glob.glob(pattern) if os.path.isfile(path)})
        files = []
        for path in found:
            digest, size = hashlib.sha256(), os.path.getsize(path)
            with open(path, "rb") as file:
                for at in range(0, size, 1 << 20):
                    digest.update(file.read(min(1 << 20, size - at)))
            files.append([path, size, digest.hexdigest()])
    at, end, parts = 0, ask["start"] + ask["part"], []
    for path, size, _ in files:
        low, high = max(ask["start"] - at, 0), min(end - at, size)
        if low < high:
            with open(path, "rb") as file:
                file.seek(low)
                parts.append(file.read(high - low))
        at += size
    print(json.dumps({"files": files}))
    packed = zlib.compress(b"".join(parts), 6)
    for i in range(0, len(packed), 6000):
        print("=" + base64.b64encode(packed[i:i + 6000]).decode())
    print(json.dumps({"end": hashlib.sha256(packed).hexdigest()}))
except OSError as error:
    print(json.dumps({"error": f"{error.filename}: {error.strerror}"}))
"""


@dataclass(frozen=True)
class Part:
    """What one pod printed: every file's path, size and SHA-256, and the bytes of this part."""

    files: list[tuple[str, int, str]]
    data: bytes


def read_run(kube: Kube, workflow: Tree, run_id: str, globs: list[str]) -> dict[str, bytes]:
    """Files of the run's folder on the claim by their path in it. {} when none matches.

    Raises ClusterError when the pod is refused, WorkflowError when it can't start, the folder isn't there, or a file
    changed while it was read.
    """
    parameters = parameters_of(workflow)
    root = f"{_MOUNT}{under_mount(parameters.get('runs', '/feature-cache'))}/{_RUNS}/{run_id}"
    _sweep(kube)
    first = _read_part(kube, workflow, {"root": root, "globs": globs, "files": None, "start": 0, "part": PART_BYTES})
    data, total = first.data, sum(size for _, size, _ in first.files)
    while len(data) < total:
        files, start = overlapping(first.files, len(data))
        part = _read_part(kube, workflow, {"root": root, "files": files, "start": start, "part": PART_BYTES})
        if not part.data:
            raise WorkflowError("a file on the claim got shorter while it was read\ntry again")
        data += part.data
    return cut(first.files, data)


def overlapping(files: list[tuple[str, int, str]], start: int) -> tuple[list[tuple[str, int, str]], int]:
    """Files of the part that begins at byte `start` of all files in a row, and where in the first of them it begins.

    A pod's arguments have a limit (128 KiB), so a pod is told of no more files than it prints.
    """
    found: list[tuple[str, int, str]] = []
    at = offset = 0
    for path, size, _ in files:
        if at + size > start and at < start + PART_BYTES:
            offset = offset if found else start - at
            found.append((path, size, ""))
        at += size
    return found, offset


def under_mount(runs: str) -> str:
    """The runs folder as seen from the claim's root: pods mount the claim as /feature-cache."""
    rest = runs.rstrip("/").removeprefix("/feature-cache")
    return rest if rest.startswith("/") or not rest else f"/{rest}"


def cut(files: list[tuple[str, int, str]], data: bytes) -> dict[str, bytes]:
    """The files out of their bytes in a row. Raises WorkflowError for one whose SHA-256 differs."""
    found, at = {}, 0
    for path, size, digest in files:
        found[path] = data[at : at + size]
        at += size
        if hashlib.sha256(found[path]).hexdigest() != digest:
            raise WorkflowError(f"{path}: changed on the claim while it was read\ntry again")
    return found


def parse(lines: list[str]) -> Part:
    """The log of one reader pod. Raises WorkflowError when it is incomplete or says an error."""
    files: list[tuple[str, int, str]] | None = None
    packed, end = bytearray(), ""
    for line in lines:
        if line.startswith("="):
            packed += base64.b64decode(line[1:])
        elif line.startswith("{"):
            told = json.loads(line)
            if "error" in told:
                raise WorkflowError(
                    f"claim: {str(told['error']).removeprefix(_MOUNT)}\nhas the study written there yet?"
                )
            files = [(str(p), int(s), str(d)) for p, s, d in told["files"]] if "files" in told else files
            end = told.get("end", end)
    if files is None or hashlib.sha256(packed).hexdigest() != end:
        raise WorkflowError(f"the reader pod's log is incomplete ({len(lines)} lines)\ntry again")
    return Part(files, zlib.decompress(bytes(packed)))


def _read_part(kube: Kube, workflow: Tree, ask: dict[str, Any]) -> Part:
    """One pod from start to removal."""
    body = reader_pod(workflow, ask)
    name = body["metadata"]["name"]
    read_json(kube, kube.core.create_namespaced_pod, kube.namespace, body)
    try:
        _wait(kube, name)
        log = kube.core.read_namespaced_pod_log
        with open_stream(kube, log, name, kube.namespace, container="main") as stream:
            return parse(list(lines_of(kube, stream)))
    finally:
        _delete(kube, name)


def reader_pod(workflow: Tree, ask: dict[str, Any]) -> dict[str, Any]:
    """A pod that a namespace with restricted pod security admits; it goes when its workflow goes."""
    parameters, spec = parameters_of(workflow), (workflow.get("status") or {}).get("storedWorkflowTemplateSpec") or {}
    metadata = workflow["metadata"]
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    pool = parameters.get("cpu-pool", "")
    tolerated = [parameters[name] for name in ("cpu-pool", "gpu-pool") if parameters.get(name)]
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Workflow", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"foxhunt-reader-{secrets.token_hex(4)}",
            "labels": READER_LABEL,
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIVES,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": spec.get("securityContext") or _DEFAULT_USER,
            "imagePullSecrets": spec.get("imagePullSecrets") or [],
            "nodeSelector": {"pool": pool} if pool else {},
            "tolerations": [{"key": "pool", "value": value, "effect": "NoSchedule"} for value in tolerated],
            "containers": [
                {
                    "name": "main",
                    "image": parameters.get("image", "foxhunt:latest"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", SCRIPT, json.dumps(ask)],
                    "securityContext": locked,
                    "resources": {
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "256Mi"},
                    },
                    "volumeMounts": [{"name": "claim", "mountPath": _MOUNT, "readOnly": True}],
                }
            ],
            "volumes": [
                {"name": "claim", "persistentVolumeClaim": {"claimName": parameters.get("claim", "feature-cache")}}
            ],
        },
    }


def _wait(kube: Kube, name: str) -> None:
    """Until the pod has printed everything. Raises WorkflowError when it doesn't start or fails, with the reason."""
    give_up = time.monotonic() + _START_WITHIN
    while True:
        pod = read_json(kube, kube.core.read_namespaced_pod, name, kube.namespace)
        phase = pod["status"].get("phase", "Pending")
        if phase == "Succeeded":
            return
        if phase == "Failed":
            raise WorkflowError(f"the reader pod failed: {_failure(pod)}\nsee {kube.preflight()}")
        if time.monotonic() > give_up:
            why = pending_reason(pod, "", "") if phase == "Pending" else "it does not end"
            raise WorkflowError(f"the reader pod has not run for {_START_WITHIN:.0f} s: {why}\nsee {kube.preflight()}")
        time.sleep(_POLL)


def _failure(pod: dict[str, Any]) -> str:
    found = pod["status"].get("containerStatuses") or [{}]
    ended = (found[0].get("state") or {}).get("terminated") or {}
    words = [pod["status"].get("reason"), pod["status"].get("message"), ended.get("reason"), ended.get("message")]
    return ", ".join(str(word) for word in words if word) or "no reason given"


def _delete(kube: Kube, name: str) -> None:
    try:
        read_json(kube, kube.core.delete_namespaced_pod, name, kube.namespace, grace_period_seconds=0)
    except ClusterError as error:
        if error.status not in (403, 404):
            raise


def _sweep(kube: Kube) -> None:
    """Removes reader pods whose command was killed before it could."""
    selector = ",".join(f"{key}={value}" for key, value in READER_LABEL.items())
    for pod in read_json(kube, kube.core.list_namespaced_pod, kube.namespace, label_selector=selector)["items"]:
        made = seconds(pod["metadata"].get("creationTimestamp"))
        if made is not None and time.time() - made > 2 * _LIVES:
            _delete(kube, pod["metadata"]["name"])
