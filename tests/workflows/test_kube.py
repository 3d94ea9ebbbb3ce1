"""The cluster client: kubeconfigs of all kinds, and every failure as one message with what to type."""

import base64
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from tests.workflows.fake_api import ARGO, CORE, FakeApi, status, write_kubeconfig
from workflows import kube
from workflows.errors import UsageError
from workflows.kube import ClusterError, Kube, unpacked


@pytest.fixture
def cluster(api: FakeApi) -> Kube:
    return Kube.connect()


def test_connecting_asks_nothing(api: FakeApi) -> None:
    cluster = Kube.connect()
    assert (cluster.context, cluster.namespace, cluster.flags()) == ("here", "foxhunt", "")
    assert api.requests == []
    assert Kube.connect("elsewhere", "n").flags() == " --context elsewhere --namespace n"
    assert cluster.server_version() == "v1.34.4"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a kubeconfig"),
        ("", "empty"),
        ("- 1", "not a kubeconfig"),
        (yaml.safe_dump({"contexts": [], "clusters": [], "users": []}), "current-context"),
    ],
)
def test_damaged_kubeconfigs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    path = tmp_path / "kc"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UsageError) as caught:
        Kube.connect()
    assert says in str(caught.value) and str(path) in str(caught.value)
    assert "kubectl config get-contexts" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "value", "says"),
    [
        ("clusters", [], "Expected object with name fake"),
        ("users", [{"name": "me", "user": {"client-certificate": "/absent.crt"}}], "File does not exist: /absent.crt"),
    ],
)
def test_a_context_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, value: Any, says: str
) -> None:
    path = write_kubeconfig(tmp_path / "kc", "https://127.0.0.1:1")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), section: value}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UsageError, match=f"{says}.*\nchoose|{says}\n.*get-contexts"):
        Kube.connect()


def test_a_named_context_needs_no_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    path = write_kubeconfig(tmp_path / "kc", api.url)
    tree = yaml.safe_load(path.read_text())
    del tree["current-context"]
    path.write_text(yaml.safe_dump(tree))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert Kube.connect("elsewhere").server_version() == "v1.34.4"
    with pytest.raises(UsageError, match="--context"):
        Kube.connect()


def test_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="KUBECONFIG=/no/such/kubeconfig is not there\nset KUBECONFIG"):
        Kube.connect()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"no ~/\.kube/config"):
        Kube.connect()


def test_kubeconfigs_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    there = write_kubeconfig(tmp_path / "one", api.url)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{there}")
    assert Kube.connect().server_version() == "v1.34.4"


REFUSALS = [
    (401, "Unauthorized", "Unauthorized", "refuses the credentials", "kubectl auth whoami"),
    (403, "Forbidden", 'cannot list resource "pods"', "forbids it", "python -m workflows.preflight"),
    (404, "NotFound", 'pods "x" not found', 'pods "x" not found', "check the name"),
    (409, "AlreadyExists", '"x" already exists', "already exists", "choose another name"),
    (422, "Invalid", "spec: Invalid value", "Invalid value", "correct what it names"),
    (429, "TooManyRequests", "slow down", "slow down", "try again"),
    (503, "ServiceUnavailable", "etcd", "etcd", "try again"),
]


@pytest.mark.parametrize(("code", "reason", "message", "says", "todo"), REFUSALS)
def test_refusals(cluster: Kube, api: FakeApi, code: int, reason: str, message: str, says: str, todo: str) -> None:
    api.answers[f"{CORE}/pods"] = status(code, reason, message)
    with pytest.raises(ClusterError) as caught:
        cluster.pods()
    first, second = str(caught.value).splitlines()
    assert says in first and todo in second
    assert (caught.value.status, caught.value.reason) == (code, reason)


def test_an_answer_that_is_no_status(cluster: Kube, api: FakeApi) -> None:
    """A proxy in between answers in HTML."""
    api.answers[f"{CORE}/pods"] = (502, "<html>bad gateway</html>")
    with pytest.raises(ClusterError, match="bad gateway"):
        cluster.pods()


def test_arguments_that_the_client_refuses(cluster: Kube) -> None:
    with pytest.raises(UsageError, match="list_namespaced_pod: limit: "):
        cluster.call(cluster.core.list_namespaced_pod, "foxhunt", limit="5")


def test_lists_come_page_by_page(cluster: Kube, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        None: ([{"metadata": {"name": "a", "creationTimestamp": "2026-01-01"}}], "next"),
        "next": ([{"metadata": {"name": "b", "creationTimestamp": "2026-02-01"}}], ""),
    }

    def answer(request: Any, token: str) -> tuple[int, Any]:
        items, more = pages[request.query.get("continue")]
        return 200, {"items": items, "metadata": {"continue": more}}

    monkeypatch.setattr(api, "answer", answer)
    assert [w["metadata"]["name"] for w in cluster.workflows("a=b")] == ["b", "a"], "newest first"
    assert [r.query.get("labelSelector") for r in api.requests] == ["a=b", "a=b"]


def test_a_list_that_expired_is_read_anew(cluster: Kube, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(request: Any, token: str) -> tuple[int, Any]:
        asked.append(request.query.get("continue"))
        if asked[-1] and len(asked) == 2:
            return status(410, "Expired", "the continue parameter is too old")
        more = "" if len(asked) > 2 else "next"
        return 200, {"items": [{"metadata": {"name": f"w{len(asked)}"}}], "metadata": {"continue": more}}

    monkeypatch.setattr(api, "answer", answer)
    assert [w["metadata"]["name"] for w in cluster.workflows()] == ["w3"]


def test_a_workflow_that_is_not_there(cluster: Kube, api: FakeApi) -> None:
    api.put(f"{ARGO}/workflows/alpha-rl-abc-12345")
    with pytest.raises(ClusterError, match="did you mean 'alpha-rl-abc-12345'") as caught:
        cluster.workflow("alpha-rl-abc-1234")
    assert caught.value.status == 404 and "python -m workflows.list" in str(caught.value)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed_nodes_are_unpacked(pack: Any) -> None:
    nodes = {"a": {"phase": "Running"}}
    packed = base64.b64encode(pack(json.dumps(nodes).encode())).decode()
    workflow = {"metadata": {}, "status": {"phase": "Running", "compressedNodes": packed}}
    assert unpacked(workflow)["status"] == {"phase": "Running", "nodes": nodes, "compressedNodes": ""}
    plain = {"metadata": {}, "status": {"nodes": nodes}}
    assert unpacked(plain) is plain


def test_a_kept_connection_that_was_closed_is_opened_again(cluster: Kube, api: FakeApi) -> None:
    assert cluster.server_version() and cluster.server_version()
    cluster.api.rest_client.pool_manager.connection_from_url(api.url).pool.queue[-1].sock.shutdown(socket.SHUT_RDWR)
    assert cluster.server_version() == "v1.34.4"


def test_rights_are_asked_with_group_and_subresource(cluster: Kube, api: FakeApi) -> None:
    assert cluster.allowed("get", "pods/log") and cluster.allowed("create", "workflows", "argoproj.io")
    asked = [r.body["spec"]["resourceAttributes"] for r in api.requests]
    assert asked[0] == {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "foxhunt"}
    assert (asked[1]["group"], asked[1].get("subresource")) == ("argoproj.io", None)


def test_every_call_has_a_time_limit(cluster: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    pool = cluster.api.rest_client.pool_manager
    real = pool.request

    def request(*args: Any, **options: Any) -> Any:
        seen.append(options["timeout"])
        return real(*args, **options)

    monkeypatch.setattr(pool, "request", request)
    cluster.pods()
    assert seen[0].connect_timeout == 5.0 and seen[0].read_timeout == 30.0


def test_the_client_is_imported_only_when_there_is_a_cluster() -> None:
    """--help and runs on this machine don't pay for it."""
    import subprocess
    import sys

    code = "import sys, workflows.submit, workflows.launch, workflows.kube; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert not hasattr(kube, "client")
