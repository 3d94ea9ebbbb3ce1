"""Argo Workflows in the namespace `foxhunt`, and what the project's pods need there."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from tests.cluster.builds import manifests, program
from tests.cluster.control_plane import kubectl
from tests.cluster.host import ClusterError
from tests.cluster.images import CONTROLLER_IMAGE, EXECUTOR
from tests.cluster.layout import ADMIN, API_PORT, BUCKET, CLAIM, CPU_POOL, NAMESPACE, Facts
from tests.cluster.live import DATA, set_text

CONTROLLER = "workflow-controller"
SERVICE_ACCOUNT = "foxhunt"
S3_SECRET = "foxhunt-s3"
CLAIM_NAME = "feature-cache"
_CONTROLLER_SETTINGS = {
    "LEADER_ELECTION_DISABLE": "true",  # a busy machine would lose its lease
    "DEFAULT_REQUEUE_TIME": "1s",  # a workflow's next look at its pods; Argo's own 10 s cost that much a task
    "ARGO_PROGRESS_PATCH_TICK_DURATION": "2s",  # by default a minute, longer than a fold of the tests
}
# What the templates' defaults must be on a machine where three nodes share a few cores and gigabytes.
SMALL = {"memory-mi": "1500", "cpu-memory-mi": "1500", "cpus": "0.1"}


def _namespace() -> dict[str, Any]:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def _controller_settings(facts: Facts) -> dict[str, Any]:
    executor = {
        "imagePullPolicy": "Never",
        "env": _env(_api_server(facts)),
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


def _objects(facts: Facts) -> list[dict[str, Any]]:
    results = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    keys = {"AWS_ACCESS_KEY_ID": facts.s3_key, "AWS_SECRET_ACCESS_KEY": facts.s3_secret}
    secret = {**keys, "AWS_ENDPOINT_URL": f"http://{facts.s3}", "AWS_DEFAULT_REGION": "us-east-1"}
    return [
        _namespace(),
        _controller_settings(facts),
        _named("ServiceAccount", SERVICE_ACCOUNT),
        *_role("executor", [results], SERVICE_ACCOUNT),
        _named("Secret", S3_SECRET, stringData=secret),
        *_claim(),
    ]


def apply(objects: list[dict[str, Any]]) -> None:
    """Creates or changes objects; a field that the server doesn't know is an error."""
    whole = {"apiVersion": "v1", "kind": "List", "items": objects}
    kubectl("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-", stdin=json.dumps(whole))


def _create_crds(files: list[Any]) -> None:
    """Megabytes of schema, for which a busy machine's API server may need longer than it gives itself: asked again."""
    for last in (False, False, True):
        try:
            # Without validation: the schema is not to be sent and checked twice.
            kubectl("apply", "--server-side", "--force-conflicts", "--validate=false", *files)
            return
        except ClusterError:
            if last:
                raise


def install(facts: Facts) -> None:
    """Full CRDs, the controller with its RBAC and settings, and the project's objects."""
    CLAIM.mkdir(parents=True, exist_ok=True)
    os.chmod(CLAIM, 0o777)
    base = manifests() / "base"
    inside = manifests() / "namespace-install" / "workflow-controller-rbac"
    crds = [arg for file in sorted((base / "crds" / "full").glob("argoproj*.yaml")) for arg in ("-f", file)]
    _create_crds(crds)
    apply(_objects(facts))
    rbac = (
        inside / f"{CONTROLLER}-role.yaml",
        base / CONTROLLER / f"{CONTROLLER}-sa.yaml",
        inside / f"{CONTROLLER}-rolebinding.yaml",
    )
    kubectl("-n", NAMESPACE, "apply", *(arg for file in rbac for arg in ("-f", file)))
    apply([_controller(facts)])
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def token(account: str) -> str:
    """A token of a service account, for kubeconfigs with less than an administrator's rights."""
    return kubectl("-n", NAMESPACE, "create", "token", account, "--duration=24h").strip()


def _controller(facts: Facts) -> dict[str, Any]:
    """Argo's own Deployment, with our images and the address of the API server."""
    import yaml

    deployment: dict[str, Any] = yaml.safe_load(
        (manifests() / "base" / CONTROLLER / f"{CONTROLLER}-deployment.yaml").read_text()
    )
    pod = deployment["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"pool": CPU_POOL}
    pod.pop("priorityClassName", None)
    container = pod["containers"][0]
    container |= {"image": CONTROLLER_IMAGE, "imagePullPolicy": "Never"}
    container["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}  # restricted Pod Security asks for it
    container["args"] = [f"--configmap={CONTROLLER}-configmap", f"--executor-image={EXECUTOR}", "--namespaced"]
    container["env"] = [*container.get("env", []), *_env(_api_server(facts) | _CONTROLLER_SETTINGS)]
    deployment["metadata"]["namespace"] = NAMESPACE
    return deployment


def _api_server(facts: Facts) -> dict[str, str]:
    """There is no service network here, so pods are told where the API server is."""
    return {"KUBERNETES_SERVICE_HOST": facts.gateway, "KUBERNETES_SERVICE_PORT": str(API_PORT)}


def _env(variables: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def wait_for_controller() -> None:
    """Needs a ready node of the CPU pool."""
    kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{CONTROLLER}", "--timeout=90s")


def wait_for_claim() -> None:
    """A machine at work may bind it seconds after the first pod could want it."""
    bound = "--for=jsonpath={.status.phase}=Bound"
    kubectl("-n", NAMESPACE, "wait", f"persistentvolumeclaim/{CLAIM_NAME}", bound, "--timeout=60s")


def install_templates(facts: Facts) -> None:
    """The project's own WorkflowTemplates, with this machine's values as defaults, as an installation's values do."""
    from workflows.render import rendered_templates

    values = {"image": facts.image, "data": DATA, "config": "cpu-demo", "set": set_text(), **SMALL}
    objects, known = [], set()
    for tree in rendered_templates().values():
        for parameter in tree["spec"]["arguments"]["parameters"]:
            known.add(parameter["name"])
            parameter["value"] = values.get(parameter["name"], parameter["value"])
        tree["metadata"]["namespace"] = NAMESPACE
        objects.append(tree)
    assert known >= values.keys(), f"no template has {values.keys() - known}"
    apply(objects)


def argo(*argv: str) -> subprocess.CompletedProcess[str]:
    """The argo command line, as a person has it."""
    env = {**os.environ, "KUBECONFIG": str(ADMIN)}
    return subprocess.run([str(program("argo")), *argv], capture_output=True, text=True, env=env)
