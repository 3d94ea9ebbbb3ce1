"""Argo Workflows in the namespace `foxhunt`, and what the project's pods need there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.builds import manifests, program
from tests.cluster.control_plane import kubeconfig, kubectl
from tests.cluster.host import ClusterError, log_tail, note, run, start, until
from tests.cluster.images import EXECUTOR
from tests.cluster.layout import API_PORT, BRIDGE, BUCKET, CLAIM, NAMESPACE, PKI, Facts

CONTROLLER = "workflow-controller"
SERVICE_ACCOUNT = "foxhunt"
S3_SECRET = "foxhunt-s3"
_CONTROLLER_HOST = 10
# What the templates' defaults must be on a machine where three nodes share a few cores and gigabytes.
SMALL = {"memory-mi": "1500", "cpu-memory-mi": "1500", "cpus": "0.1", "cpu-cpus": "0.1"}


def _namespace() -> dict[str, Any]:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def _controller_settings(facts: Facts) -> dict[str, Any]:
    """There is no service network here, so the executor is told where the API server is."""
    variables = {"KUBERNETES_SERVICE_HOST": facts.gateway, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
    executor = {
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    keys = {
        f"{name}Secret": {"name": S3_SECRET, "key": key}
        for name, key in (("accessKey", "AWS_ACCESS_KEY_ID"), ("secretKey", "AWS_SECRET_ACCESS_KEY"))
    }
    repository = {"s3": {"endpoint": facts.s3, "bucket": BUCKET, "insecure": True, "region": "us-east-1", **keys}}
    data = {"executor": executor, "artifactRepository": repository, "metricsConfig": {"enabled": False}}
    return _named("ConfigMap", f"{CONTROLLER}-configmap", data={k: json.dumps(v) for k, v in data.items()})


def _named(kind: str, name: str, api: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **fields}


def _role(name: str, rules: list[dict[str, Any]], account: str) -> list[dict[str, Any]]:
    """A role and its binding to a service account."""
    api = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    reference = {"apiGroup": api, "kind": "Role", "name": name}
    return [
        _named("Role", name, f"{api}/v1", rules=rules),
        _named("RoleBinding", name, f"{api}/v1", roleRef=reference, subjects=[subject]),
    ]


def _claim() -> list[dict[str, Any]]:
    """A ReadWriteMany claim: one folder of this machine on every node."""
    modes, size = ["ReadWriteMany"], {"storage": "10Gi"}
    volume = {
        "capacity": size,
        "accessModes": modes,
        "storageClassName": "",
        "hostPath": {"path": str(CLAIM), "type": "Directory"},
        "claimRef": {"namespace": NAMESPACE, "name": CLAIM_NAME},
    }
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": CLAIM_NAME, "resources": {"requests": size}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLAIM_NAME}, "spec": volume},
        _named("PersistentVolumeClaim", CLAIM_NAME, spec=claim),
    ]


CLAIM_NAME = "feature-cache"


def _objects(facts: Facts) -> list[dict[str, Any]]:
    results = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    secret = {"AWS_ACCESS_KEY_ID": facts.s3_key, "AWS_SECRET_ACCESS_KEY": facts.s3_secret}
    return [
        _namespace(),
        _controller_settings(facts),
        _named("ServiceAccount", SERVICE_ACCOUNT),
        *_role("executor", [results], SERVICE_ACCOUNT),
        _named("Secret", S3_SECRET, stringData=secret),
        *_claim(),
    ]


def apply(objects: list[dict[str, Any]]) -> None:
    whole = {"apiVersion": "v1", "kind": "List", "items": objects}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(whole))


def install(facts: Facts) -> None:
    """Full CRDs, the controller's RBAC and settings, the project's objects; then starts the controller."""
    CLAIM.mkdir(parents=True, exist_ok=True)
    os.chmod(CLAIM, 0o777)
    base, inside = manifests() / "base", manifests() / "namespace-install" / "workflow-controller-rbac"
    crds = [arg for file in sorted((base / "crds" / "full").glob("argoproj*.yaml")) for arg in ("-f", file)]
    kubectl("apply", "--server-side", *crds)
    apply(_objects(facts))
    rbac = (
        inside / "workflow-controller-role.yaml",
        base / CONTROLLER / "workflow-controller-sa.yaml",
        inside / "workflow-controller-rolebinding.yaml",
    )
    kubectl("-n", NAMESPACE, "apply", *(arg for file in rbac for arg in ("-f", file)))
    start_controller(facts)


def token(account: str) -> str:
    return kubectl("-n", NAMESPACE, "create", "token", account, "--duration=24h").strip()


def start_controller(facts: Facts) -> None:
    """As a process in a network of its own on the bridge: it listens on every address that it sees."""
    config = kubeconfig(PKI / "argo.kubeconfig", facts, token("argo"), NAMESPACE)
    address = facts.address(_CONTROLLER_HOST)
    wait = "until ip link show argo0 >/dev/null 2>&1; do sleep 0.05; done"
    network = f"ip link set lo up && ip addr add {address}/24 dev argo0 && ip link set argo0 up"
    command = (
        f"{wait}; {network} && exec {program(CONTROLLER)} --kubeconfig {config} --namespaced --namespace {NAMESPACE} "
        f"--executor-image {EXECUTOR} --loglevel info"
    )
    env = {"LEADER_ELECTION_DISABLE": "true"}
    pid = start(CONTROLLER, "unshare", "--net", "sh", "-c", command, env=env)
    until("the controller has a network", lambda: _own_network(pid), 10, CONTROLLER, every=0.02)
    note("link", name="foxhunt-argo")
    run("ip", "link", "add", "foxhunt-argo", "type", "veth", "peer", "name", "argo0", "netns", str(pid))
    run("ip", "link", "set", "foxhunt-argo", "master", BRIDGE, "up")
    until(
        "the Argo controller works",
        lambda: "Started workflow worker" in log_tail(CONTROLLER, 500) or _synced(),
        60,
        CONTROLLER,
    )


def _synced() -> bool:
    return "Manager initialized" in log_tail(CONTROLLER, 500) or 'level=INFO msg="Starting' in log_tail(CONTROLLER, 500)


def _own_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def install_templates(facts: Facts) -> None:
    """The project's own WorkflowTemplates, with this machine's values as defaults, as an installation's values do."""
    from workflows.render import rendered_templates

    values = {"image": facts.image, **SMALL}
    objects = []
    for tree in rendered_templates().values():
        for parameter in tree["spec"]["arguments"]["parameters"]:
            parameter["value"] = values.get(parameter["name"], parameter["value"])
        tree["metadata"]["namespace"] = NAMESPACE
        objects.append(tree)
    apply(objects)


def argo(*argv: str) -> subprocess.CompletedProcess[str]:
    """The argo command line, as a person has it."""
    env = {**os.environ, "KUBECONFIG": str(PKI / "admin.kubeconfig")}
    return subprocess.run([str(program("argo")), *argv], capture_output=True, text=True, env=env)


__all__ = ["ClusterError", "Path"]
