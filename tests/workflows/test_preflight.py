"""preflight against a fake cluster: fit, then spoilt in one place after the other; each finding says what to type."""

import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.conftest import Commands
from tests.workflows.fake_api import ARGO, CORE, FakeApi, status, write_kubeconfig
from tests.workflows.fit_cluster import (
    ALPHA,
    CLAIM,
    CONTROLLER,
    CRD,
    DIGEST,
    NODE_A,
    NODE_B,
    NODE_CPU,
    findings,
    make_fit,
    set_default,
)
from workflows.capacity_checks import claim_object
from workflows.install_checks import RIGHTS

POD_ACCOUNT, RESULTS = "system:serviceaccount:foxhunt:foxhunt", "workflowtaskresults"
GRANT = (
    "kubectl -n foxhunt create role foxhunt-results --verb=create,patch --resource=workflowtaskresults.argoproj.io && "
    "kubectl -n foxhunt create rolebinding foxhunt-results --role=foxhunt-results --serviceaccount=foxhunt:foxhunt"
)
Fault = Callable[[FakeApi], Any]


@pytest.fixture
def fit(api: FakeApi) -> FakeApi:
    return make_fit(api)


def gpu_pod(api: FakeApi, name: str, on: str, phase: str = "Running", space: str = "others") -> None:
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": on, "containers": [container]}
    api.put(
        f"/api/v1/namespaces/{space}/pods/{name}",
        metadata={"namespace": space},
        spec=spec,
        status={"phase": phase},
    )


def test_a_fit_cluster_passes_every_check(command: Commands, fit: FakeApi) -> None:
    code, found = findings(command)
    assert {name: one["state"] for name, one in found.items() if one["state"] != "ok"} == {}
    assert code == 0 and len(found) == 17
    assert found["gpus"]["says"].endswith("4 of 4 GPUs are free for 3 folds")
    assert {r.method for r in fit.requests if "review" not in r.path} == {"GET"}, "preflight changes nothing"


def spoil(path: str, **tree: Any) -> Fault:
    return lambda api: api.objects[path].update(tree)


def remove(path: str) -> Fault:
    return lambda api: api.objects.pop(path)


def taint(*paths: str) -> Fault:
    def apply(api: FakeApi) -> None:
        for path in paths:
            api.objects[path]["spec"]["taints"].append({"key": "team", "value": "x", "effect": "NoExecute"})

    return apply


def full(api: FakeApi) -> None:
    for number, place in enumerate("aabb"):
        gpu_pod(api, f"busy-{number}", place)


def quota(**sizes: str) -> Fault:
    hard = {name.replace("_", "."): value for name, value in sizes.items()}
    if "gpu" in hard:
        hard["requests.nvidia.com/gpu"] = hard.pop("gpu")
    return lambda api: api.put(f"{CORE}/resourcequotas/limits", status={"hard": hard, "used": {}})


def not_taken_up(api: FakeApi) -> None:
    del api.objects[CONTROLLER]
    since = (datetime.now(UTC) - timedelta(seconds=90)).isoformat(timespec="seconds")
    api.put(f"{ARGO}/workflows/waits", metadata={"creationTimestamp": since})


def old_crds(api: FakeApi) -> None:
    schema = api.objects[CRD]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["templates"]["items"]["properties"]["annotations"]


def no_argo(api: FakeApi) -> None:
    for plural in ("workflows", "workflowtemplates"):
        api.answers[f"{ARGO}/{plural}"] = (404, "404 page not found\n")
        api.answers[f"{ARGO}/{plural}/alpha-rl"] = (404, "404 page not found\n")


def pending_claim(api: FakeApi) -> None:
    api.objects[CLAIM]["status"] = {"phase": "Pending"}
    what = {"kind": "PersistentVolumeClaim", "name": "feature-cache"}
    said = 'storageclass "fast" not found'
    api.put(f"{CORE}/events/e", involvedObject=what, message=said, lastTimestamp="2026-01-01T00:00:00Z")


def wants_secret(api: FakeApi) -> None:
    env = {"name": "AWS", "valueFrom": {"secretKeyRef": {"name": "s3-login", "key": "k"}}}
    api.objects[ALPHA]["spec"]["templates"][0]["container"]["env"].append(env)


FAULTS: dict[str, tuple[Fault, str, str, str, str]] = {
    # what is wrong: (how it gets so, check, state, what is said, what to type)
    "argo absent": (no_argo, "argo", "failed", "no argoproj.io/v1alpha1", "kubectl apply --server-side -f https://"),
    "argo's fields too old": (old_crds, "argo", "failed", "too old: templates have no annotations", "4.0.5 or newer"),
    "controller too old": (
        lambda api: api.objects[CONTROLLER]["spec"]["template"]["spec"]["containers"][1].update(image="wc:v3.6.2"),
        *("controller", "failed", "version 3.6.2", "4.0.5 or newer"),
    ),
    "controller down": (
        spoil(CONTROLLER, status={}),
        *(
            "controller",
            "failed",
            "no pod of it is available",
            "kubectl -n argo describe deployment workflow-controller",
        ),
    ),
    "controller doesn't take up": (not_taken_up, "controller", "failed", "not taken up for 9", "kubectl get pods -A"),
    "no template": (
        remove(ALPHA),
        *("template", "failed", "alpha-rl is not installed", "python -m workflows.render --apply"),
    ),
    "an older template": (
        lambda api: api.objects[ALPHA]["metadata"]["annotations"].update({DIGEST: "0123"}),
        *("template", "failed", "alpha-rl 0123 is not this code's", "renew it: python -m workflows.render --apply"),
    ),
    "a template without digest": (
        lambda api: api.objects[ALPHA]["metadata"].pop("annotations"),
        *("template", "failed", "it is older than this code", "renew it: python -m workflows.render --apply"),
    ),
    "the pool's nodes not ready": (
        lambda api: [api.objects[n]["status"].update(conditions=[]) for n in (NODE_A, NODE_B)],
        *("gpu-pool", "failed", "no node is ready and schedulable (a, b)", "kubectl describe node a"),
    ),
    "a taint not tolerated": (
        taint(NODE_A, NODE_B),
        *("gpu-pool", "failed", "tolerates no taint team=x:NoExecute (node a)", "kubectl taint node a team-"),
    ),
    "too little memory": (
        spoil(NODE_CPU, status={"allocatable": {"memory": "2Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}),
        *("cpu-pool", "failed", "no node has 4096 MiB", "--parameter cpu-memory-mi=2048"),
    ),
    "too few cores": (
        lambda api: set_default(api, "cpus", "500"),
        *("gpu-pool", "failed", "no node has 500 CPU cores", "ask for less: --parameter cpus=16"),
    ),
    "less than a core": (
        lambda api: [api.objects[n]["status"]["allocatable"].update(cpu="900m") for n in (NODE_A, NODE_B)],
        *("gpu-pool", "failed", "no node has 4 CPU cores", "--parameter cpus=900m"),
    ),
    "memory on one node, cores on the other": (
        lambda api: (
            api.objects[NODE_A]["status"]["allocatable"].update(cpu="2"),
            api.objects[NODE_B]["status"]["allocatable"].update(memory="8Gi"),
        ),
        *("gpu-pool", "failed", "no node has both 16384 MiB of memory and 4 CPU cores", "--parameter cpus=2"),
    ),
    "no device plugin": (
        lambda api: [api.objects[n]["status"]["allocatable"].pop("nvidia.com/gpu") for n in (NODE_A, NODE_B)],
        *("gpus", "failed", "no node offers nvidia.com/gpu", "device plugin"),
    ),
    "no GPU free": (full, "gpus", "failed", "none of 4 GPUs is free", "stop one of: others/busy-0"),
    "quota of GPUs": (
        quota(gpu="0"),
        *("quota", "failed", "room for 0 folds", "kubectl -n foxhunt edit resourcequota limits"),
    ),
    "quota on limits": (quota(limits_cpu="100"), "quota", "failed", "demands a cpu limit", "LimitRange"),
    "limit range": (
        lambda api: api.put(
            f"{CORE}/limitranges/small", spec={"limits": [{"type": "Container", "max": {"memory": "8Gi"}}]}
        ),
        *("quota", "failed", "at most 8Gi of memory a container; memory-mi is 16384", "--parameter memory-mi=8192"),
    ),
    "no claim": (remove(CLAIM), "claim", "failed", "no claim feature-cache", "kubectl -n foxhunt create -f - <<< '"),
    "claim pending": (
        pending_claim,
        *("claim", "failed", 'storageclass "fast" not found', "kubectl -n foxhunt describe pvc feature-cache"),
    ),
    "claim for one node": (
        spoil(CLAIM, spec={"accessModes": ["ReadWriteOnce"]}),
        *("claim", "failed", "ReadWriteOnce: one node only", "ReadWriteMany"),
    ),
    "no service account": (
        remove(f"{CORE}/serviceaccounts/foxhunt"),
        *("account", "failed", "no service account foxhunt", "kubectl -n foxhunt create serviceaccount foxhunt && "),
    ),
    "a service account without rights": (
        lambda api: api.denied_to.update({POD_ACCOUNT: {("create", RESULTS), ("patch", RESULTS)}}),
        *("account", "failed", "may not create and patch workflowtaskresults.argoproj.io", GRANT),
    ),
    "a service account that may only create": (
        lambda api: api.denied_to.update({POD_ACCOUNT: {("patch", RESULTS)}}),
        *("account", "failed", "service account foxhunt may not patch workflowtaskresults.argoproj.io", GRANT),
    ),
    "no secret": (
        wants_secret,
        *("secrets", "failed", "no secret s3-login", "kubectl -n foxhunt create secret generic s3-login"),
    ),
    "nowhere for artifacts": (
        remove(f"{CORE}/configmaps/artifact-repositories"),
        *("artifacts", "failed", "nowhere to go", "ConfigMap artifact-repositories"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_what_to_type(command: Commands, fit: FakeApi, fault: str) -> None:
    spoil_it, check, state, says, todo = FAULTS[fault]
    spoil_it(fit)
    code, found = findings(command)
    assert found[check]["state"] == state and code == 2
    assert says in found[check]["says"], found[check]
    assert todo in found[check]["todo"], found[check]


@pytest.mark.parametrize(("verb", "group", "resource", "what"), RIGHTS)
def test_each_missing_right_is_named(
    command: Commands, fit: FakeApi, verb: str, group: str, resource: str, what: str
) -> None:
    fit.denied.add((verb, resource))
    code, found = findings(command)
    full = f"{resource}.{group}" if group else resource
    assert code == 2 and found["rights"]["says"] == f"may not {verb} {full} (needed by {what})"
    assert f"--verb={verb} --resource={full} && " in found["rights"]["todo"]
    assert "create rolebinding" in found["rights"]["todo"] and found["rights"]["todo"].endswith("--user=me")


HIDDEN = {
    ("list", "nodes"): ["gpu-pool", "cpu-pool", "gpus", "image"],
    ("list", "pods"): ["gpus"],
    ("get", "persistentvolumeclaims"): ["claim"],
    ("get", "serviceaccounts"): ["account"],
    ("create", "localsubjectaccessreviews"): ["account"],
    ("get", "namespaces"): ["namespace"],
    ("get", "workflowtemplates"): ["template"],
    ("get", "customresourcedefinitions"): ["argo"],
    ("list", "deployments"): ["controller"],
    ("list", "resourcequotas"): ["quota"],
}


@pytest.mark.parametrize("right", HIDDEN)
def test_what_may_not_be_read_is_not_checked(command: Commands, fit: FakeApi, right: tuple[str, str]) -> None:
    fit.denied.add(right)
    _, found = findings(command)
    assert {name for name, one in found.items() if one["state"] == "not checked"} == set(HIDDEN[right])


def test_few_free_gpus_are_a_warning(command: Commands, fit: FakeApi) -> None:
    gpu_pod(fit, "one", "a")
    gpu_pod(fit, "two", "b")
    gpu_pod(fit, "over", "b", phase="Succeeded")
    gpu_pod(fit, "elsewhere", "another-node")
    code, found = findings(command)
    assert (code, found["gpus"]["state"]) == (0, "warning")
    assert "2 of 4 GPUs are free for 3 folds; the others wait" in found["gpus"]["says"]


def test_an_unknown_pool_shows_the_nearest(command: Commands, fit: FakeApi) -> None:
    code, found = findings(command, "--gpu-pool", "ci-training-h10")
    assert code == 2 and "pool=ci-training-h10 (did you mean 'ci-training-h100'?)" in found["gpu-pool"]["says"]
    assert "kubectl label node NODE pool=ci-training-h10" in found["gpu-pool"]["todo"]
    code, found = findings(command, "--gpu-pool", "autoscaled", "--scales-from-zero")
    assert (code, found["gpu-pool"]["state"], found["gpus"]["state"]) == (0, "warning", "not checked")


def test_a_claim_for_one_node_is_enough_for_one_fold(command: Commands, fit: FakeApi) -> None:
    fit.objects[CLAIM]["spec"] = {"accessModes": ["ReadWriteOnce"]}
    assert findings(command, "--folds", "1")[0] == 0


def test_a_claim_that_waits_for_its_first_pod_is_a_warning(command: Commands, fit: FakeApi) -> None:
    pending_claim(fit)
    fit.objects[f"{CORE}/events/e"]["message"] = "waiting for first consumer to be created before binding"
    code, found = findings(command)
    assert (code, found["claim"]["state"]) == (0, "warning")


def test_the_account_is_asked_about_with_its_groups(command: Commands, fit: FakeApi) -> None:
    findings(command)
    asked = [r.body["spec"] for r in fit.asked("POST", "/namespaces/foxhunt/localsubjectaccessreviews")]
    assert [a["resourceAttributes"]["verb"] for a in asked] == ["create", "patch"]
    attributes = {"group": "argoproj.io", "resource": RESULTS, "namespace": "foxhunt", "verb": "create"}
    assert (asked[0]["user"], asked[0]["resourceAttributes"]) == (POD_ACCOUNT, attributes)
    assert "system:serviceaccounts:foxhunt" in asked[0]["groups"]


def test_a_wrong_claim_shows_the_nearest(command: Commands, fit: FakeApi) -> None:
    fit.put(f"{CORE}/persistentvolumeclaims/scratch")
    code, found = findings(command, "-p", "claim=feature-cach")
    assert code == 2 and found["claim"]["says"] == "no claim feature-cach (did you mean 'feature-cache'?)"
    assert found["claim"]["todo"].endswith("--parameter claim=NAME (there: feature-cache, scratch)")
    fit.denied.add(("list", "persistentvolumeclaims"))
    assert findings(command, "-p", "claim=feature-cach")[1]["claim"]["says"] == "no claim feature-cach"


def test_gpus_behind_a_taint_are_not_free(command: Commands, fit: FakeApi) -> None:
    taint(NODE_B)(fit)
    code, found = findings(command)
    assert found["gpu-pool"]["says"].endswith("1 of 2 nodes ready, taints tolerated")
    assert (code, found["gpus"]["state"]) == (0, "warning")
    assert found["gpus"]["says"].endswith("2 of 2 GPUs are free for 3 folds; the others wait")
    taint(NODE_A)(fit)
    assert findings(command)[1]["gpus"]["says"].endswith("has no node now that takes our pods")


def test_cores_of_cpu_pods_where_the_template_has_them(command: Commands, fit: FakeApi) -> None:
    parameters = fit.objects[ALPHA]["spec"]["arguments"]["parameters"]
    parameters[:] = [p for p in parameters if p["name"] != "cpu-cpus"]
    assert findings(command)[1]["cpu-pool"]["state"] == "ok"
    parameters.append({"name": "cpu-cpus", "value": "17"})
    assert findings(command)[1]["cpu-pool"]["says"] == "ci-compile-cpu: no node has 17 CPU cores"
    assert findings(command, "-p", "cpu-cpus=16")[1]["cpu-pool"]["state"] == "ok"


def test_the_image_of_one_node(command: Commands, fit: FakeApi) -> None:
    assert findings(command)[1]["image"]["says"].endswith(": on all 3 nodes of the pools")
    del fit.objects[NODE_A], fit.objects[NODE_CPU]
    assert findings(command)[1]["image"]["says"].endswith(": on the 1 node of the pools")


def test_an_image_nobody_can_vouch_for_is_not_checked(command: Commands, fit: FakeApi) -> None:
    code, found = findings(command, "--image", "foxhunt:other")
    assert (code, found["image"]["state"]) == (0, "not checked")


def test_data_and_the_secret_it_needs(command: Commands, fit: FakeApi) -> None:
    set_default(fit, "data", "")
    code, found = findings(command)
    assert (code, found["data"]["state"]) == (0, "warning") and "no default data set" in found["data"]["says"]
    assert found["data"]["todo"].endswith("python -m workflows.render --apply --default data=s3://...")
    code, found = findings(command, "--data", "s3://market/x.dbn")
    assert (code, found["data"]["state"], found["secrets"]["state"]) == (0, "not checked", "warning")
    assert "kubectl -n foxhunt create secret generic foxhunt-s3" in found["secrets"]["todo"]
    fit.put(f"{CORE}/secrets/foxhunt-s3")
    assert findings(command, "--data", "s3://market/x.dbn")[1]["secrets"]["state"] == "ok"
    code, found = findings(command, "--data", "x.dbn")
    assert code == 2 and "x.dbn: a file of this machine" in found["data"]["says"]
    assert "aws s3 cp x.dbn s3://BUCKET/x.dbn" in found["data"]["todo"]


def test_wrong_parameters(command: Commands, fit: FakeApi) -> None:
    code, found = findings(command, "-p", "memory-mi=12")
    assert code == 2 and "memory-mi 12: out of range" in found["parameters"]["says"]
    code, found = findings(command, "-p", "memori-mi=12")
    assert code == 2 and "did you mean 'memory-mi'?" in found["parameters"]["says"]


def test_no_cluster(command: Commands) -> None:
    code, found = findings(command)
    assert code == 2 and "no cluster configured" in found["cluster"]["says"]
    assert "set KUBECONFIG" in found["cluster"]["todo"]


def test_a_cluster_that_is_off(command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", f"http://127.0.0.1:{port}")))
    code, found = findings(command)
    assert code == 2 and found["cluster"]["says"].endswith("Connection refused")
    assert "kubectl cluster-info" in found["cluster"]["todo"]


def test_wrong_credentials(command: Commands, fit: FakeApi) -> None:
    fit.token = "another"
    code, found = findings(command)
    assert code == 2 and "refuses the credentials" in found["credentials"]["says"]
    assert "log in again" in found["credentials"]["todo"]


def test_no_credentials(command: Commands, fit: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends none may not even ask who he is."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", fit.url, user={})))
    code, found = findings(command)
    assert code == 2 and found["cluster"]["state"] == "ok", "everyone may read the version"
    assert "no credentials were sent" in found["credentials"]["says"] and list(found) == ["cluster", "credentials"]
    assert found["credentials"]["todo"].startswith("log in again")


def test_a_server_that_lets_nobody_ask(command: Commands, fit: FakeApi) -> None:
    elsewhere = fit.answer

    def answer(request: Any, token: str) -> tuple[int, Any]:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {**request.body, "status": {"userInfo": {"username": "system:anonymous"}}}
        return elsewhere(request, token)

    fit.answer = answer  # type: ignore[method-assign]
    code, found = findings(command)
    assert code == 2 and "no credentials were sent" in found["credentials"]["says"]


def test_an_unknown_namespace_shows_the_nearest(command: Commands, fit: FakeApi) -> None:
    code, found = findings(command, "--namespace", "foxhumt")
    assert code == 2 and "(did you mean 'foxhunt'?)" in found["namespace"]["says"]
    assert "kubectl create namespace foxhumt" in found["namespace"]["todo"]


def test_a_server_error_in_one_check_leaves_the_others(command: Commands, fit: FakeApi) -> None:
    fit.answers[CLAIM] = status(500, "InternalError", "etcd is slow")
    code, found = findings(command)
    assert (code, found["claim"]["state"], found["image"]["state"]) == (0, "not checked", "ok")


def test_plain_lines(command: Commands, fit: FakeApi) -> None:
    fit.objects[CLAIM]["status"] = {"phase": "Lost"}
    lines = command("preflight").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("failed"))
    assert lines[at].split()[1] == "claim" and lines[at + 1].strip().startswith("-> see why: kubectl -n foxhunt")
    assert lines[-1] == "16 ok, 1 failed"


def test_the_claim_to_create_is_a_claim() -> None:
    from kubernetes import client

    tree = claim_object("feature-cache")
    made = client.V1PersistentVolumeClaim.from_dict(tree)
    assert made is not None and made.spec is not None and made.spec.access_modes == ["ReadWriteMany"]
