"""A fake cluster on which a study of three folds can run, and preflight's word on it."""

from __future__ import annotations

import json
from typing import Any

from tests.workflows.conftest import Commands
from tests.workflows.fake_api import ARGO, CORE, FakeApi

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workflowtemplates.argoproj.io"
CONTROLLER = "/apis/apps/v1/namespaces/argo/deployments/workflow-controller"
NODE_A, NODE_B, NODE_CPU = "/api/v1/nodes/a", "/api/v1/nodes/b", "/api/v1/nodes/c"
CLAIM = f"{CORE}/persistentvolumeclaims/feature-cache"
ALPHA = f"{ARGO}/workflowtemplates/alpha-rl"
DIGEST = "foxhunt.dev/template-digest"


def node(api: FakeApi, path: str, pool: str, gpus: int = 0) -> dict[str, Any]:
    room = {"cpu": "16", "memory": "128Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    taints = [{"key": "pool", "value": pool, "effect": "NoSchedule"}]
    return api.put(
        path,
        metadata={"labels": {"pool": pool}},
        spec={"taints": taints},
        status={
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": ["docker.io/library/foxhunt:latest"], "sizeBytes": 1}],
        },
    )


def put_controller(
    api: FakeApi, path: str, labels: dict[str, str] | None = None, key: str = "app", args: tuple[str, ...] = ()
) -> dict[str, Any]:
    """As Argo's own manifests/base/workflow-controller has it: no label of its own, one of its pods."""
    container = {"name": "workflow-controller", "image": "quay.io/argoproj/workflow-controller:v4.0.5"}
    container |= {"command": ["workflow-controller"], "args": list(args)}
    sidecar = {"name": "proxy", "image": "proxy:v1.2.3"}
    pods = {key: "workflow-controller"}
    template = {"metadata": {"labels": pods}, "spec": {"containers": [sidecar, container]}}
    return api.put(
        path,
        metadata={"namespace": path.split("/")[5], **({"labels": labels} if labels else {})},
        spec={"selector": {"matchLabels": pods}, "template": template},
        status={"availableReplicas": 1},
    )


def make_fit(api: FakeApi) -> FakeApi:
    """A cluster on which a study of three folds can run."""
    properties = {name: {} for name in ("annotations", "podSpecPatch", "retryStrategy")}
    templates = {"type": "array", "items": {"properties": properties}}
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": {"templates": templates}}}}}
    api.put(CRD, spec={"versions": [{"name": "v1alpha1", "schema": schema}]})
    put_controller(api, CONTROLLER)
    node(api, NODE_A, "ci-training-h100", gpus=2)
    node(api, NODE_B, "ci-training-h100", gpus=2)
    node(api, NODE_CPU, "ci-compile-cpu")
    api.put(
        CLAIM,
        spec={"accessModes": ["ReadWriteMany"]},
        status={"phase": "Bound", "capacity": {"storage": "1Ti"}},
    )
    api.put(f"{CORE}/serviceaccounts/foxhunt")
    api.put(f"{CORE}/configmaps/artifact-repositories")
    set_default(api, "data", "synthetic:signal=0.75")
    return api


def set_default(api: FakeApi, name: str, value: str) -> None:
    given = api.objects[ALPHA]["spec"]["arguments"]["parameters"]
    next(p for p in given if p["name"] == name)["value"] = value


def findings(command: Commands, *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and the worst finding of each check."""
    done = command("preflight", "--json", *args)
    order = ["ok", "not checked", "warning", "failed"]
    told = json.loads(done.stdout)
    found: dict[str, dict[str, str]] = {}
    for one in told["findings"]:
        if one["check"] not in found or order.index(one["state"]) > order.index(found[one["check"]]["state"]):
            found[one["check"]] = one
    assert told["ok"] == (done.returncode == 0)
    return done.returncode, found
