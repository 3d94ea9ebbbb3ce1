"""Logging in to a cluster: bad kubeconfigs, helpers that fail, credentials that end as nobody's, TLS that fails."""

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflows import certificates
from tests.workflows.fake_api import CORE, FakeApi, Server, status, write_kubeconfig
from workflows import no_answer
from workflows.errors import UsageError
from workflows.kube import ClusterError, Kube

V1 = "client.authentication.k8s.io/v1"


def entries(section: str, value: Any) -> str:
    tree = {"current-context": "c", "clusters": [], "contexts": [], "users": [], section: value}
    return yaml.safe_dump(tree)


NO_KUBECONFIGS = [
    ("hello", "text, not a mapping with clusters, contexts, users"),
    ("3", "a number, not a mapping"),
    ("- 1", "a list, not a mapping"),
    ("", "it is empty"),
    ("a: 1\n  b: [", "line 2: mapping values are not allowed here"),
    ("a\x01b", "special characters are not allowed"),
    (entries("users", "me"), "users is text, not a list"),
    (entries("contexts", ["here"]), "an entry of contexts has no name"),
    (entries("clusters", [{"name": "c", "cluster": "https://x"}]), "cluster of 'c' is text, not a mapping"),
]


@pytest.mark.parametrize(("text", "says"), NO_KUBECONFIGS)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    """Of several joined files the bad one is named."""
    good, bad = write_kubeconfig(tmp_path / "good", "http://127.0.0.1:1"), tmp_path / "bad"
    bad.write_text(text)
    monkeypatch.setenv("KUBECONFIG", f"{good}:{bad}")
    with pytest.raises(UsageError) as caught:
        Kube.connect()
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{bad}: not a kubeconfig: ") and says in first
    assert second == "see what is there: kubectl config get-contexts"


def test_a_kubeconfig_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    with pytest.raises(UsageError, match=f"^{tmp_path}: can't be read: Is a directory\n"):
        Kube.connect()


@pytest.fixture
def as_user(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Kube]:
    """Connects to the fake cluster with these credentials."""

    def connect(user: dict[str, Any]) -> Kube:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", api.url, user=user)))
        return Kube.connect()

    return connect


def helper(folder: Path, text: str) -> dict[str, Any]:
    """A user whose credentials come from a script."""
    script = folder / "helper"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return {"exec": {"apiVersion": V1, "command": str(script), "interactiveMode": "Never"}}


def test_no_credentials_are_not_a_missing_right(as_user: Callable[[dict[str, Any]], Kube]) -> None:
    """A real server forbids whoever sends none even the question who he is; no right would help."""
    cluster = as_user({})
    assert cluster.server_version() == "v1.34.4", "which everyone may ask"
    for ask in (cluster.pods, cluster.workflows, lambda: cluster.allowed("get", "pods"), cluster.namespace_exists):
        with pytest.raises(ClusterError) as caught:
            ask()
        first, second = str(caught.value).splitlines()
        assert caught.value.status == 401 and "no credentials were sent" in first and "forbids" not in first
        assert second.startswith("log in again") and "kubectl auth whoami" in second


HELPERS = [
    ("absent", None, "No such file or directory"),
    ("fails", "echo session expired >&2; exit 3", "exec: process returned 3. session expired"),
    ("chatters", "echo please log in", "failed to decode process output"),
    (
        "gives nothing",
        f"""echo '{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{}}}}'""",
        "missing token",
    ),
]


@pytest.mark.parametrize(("how", "text", "says"), HELPERS)
def test_a_login_helper_that_fails_is_named(
    as_user: Callable[[dict[str, Any]], Kube],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    text: str | None,
    says: str,
) -> None:
    user = helper(tmp_path, text or "")
    if text is None:
        (tmp_path / "helper").unlink()
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process of its own
    cluster = as_user(user)
    with pytest.raises(ClusterError) as caught:
        cluster.pods()
    first, second = str(caught.value).splitlines()
    assert caught.value.status == 401 and "no credentials were sent" in first
    assert f"the kubeconfig's helper '{tmp_path / 'helper'}' failed: " in first and says in first
    assert "log in again" in second and "helper" in second
    assert capfd.readouterr() == ("", ""), "the client's own line is not printed"


def test_a_server_without_anonymous_users_answers_401(
    api: FakeApi, as_user: Callable[[dict[str, Any]], Kube], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "answer", lambda *_: status(401, "Unauthorized", "Unauthorized"))
    with pytest.raises(
        ClusterError, match=r"refuses the credentials: Unauthorized \(401\); .* failed: .* returned 1\n"
    ):
        as_user(helper(tmp_path, "exit 1")).pods()


def test_a_login_helper_that_works(api: FakeApi, as_user: Callable[[dict[str, Any]], Kube], tmp_path: Path) -> None:
    told = f'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{"token": "right"}}}}'
    cluster = as_user(helper(tmp_path, f"echo '{told}'"))
    assert cluster.pods() == []
    api.token = "another"
    with pytest.raises(ClusterError) as caught:
        cluster.pods()
    assert "failed" not in str(caught.value) and "log in again: the kubeconfig takes its" in str(caught.value)


def test_other_log_lines_are_left_alone(
    as_user: Callable[[dict[str, Any]], Kube], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_user(helper(tmp_path, "exit 1"))
    logging.getLogger().error("something else")
    assert caplog.messages == ["something else"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, certificates.Pair]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: certificates.make(folder, name, expired=name == "expired") for name in ("own", "expired", "other")}


@pytest.fixture
def secure(
    pairs: dict[str, certificates.Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., FakeApi]]:
    """Starts a fake cluster that speaks TLS: with which certificate, what it trusts, what the kubeconfig trusts."""
    with ExitStack() as running:

        def start(own: str = "own", clients: str = "", authority: str = "own", user: Any = None) -> FakeApi:
            api, tls = FakeApi(), certificates.server_side(pairs[own], pairs.get(clients))
            running.enter_context(Server(api, tls))
            api.put(CORE)
            trusted = str(pairs[authority].certificate) if authority else ""
            path = write_kubeconfig(tmp_path / "kc", api.url, user=user, authority=trusted)
            monkeypatch.setenv("KUBECONFIG", str(path))
            return api

        yield start


def certificate(pair: certificates.Pair) -> dict[str, str]:
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def test_tls_that_works(secure: Callable[..., FakeApi], pairs: dict[str, certificates.Pair]) -> None:
    secure(clients="other", user={"token": "right", **certificate(pairs["other"])})
    assert Kube.connect().pods() == []


def refused(call: Callable[[], Any]) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        call()
    return caught.value


def test_an_expired_client_certificate(secure: Callable[..., FakeApi], pairs: dict[str, certificates.Pair]) -> None:
    secure(clients="expired", user=certificate(pairs["expired"]))
    error = refused(Kube.connect().server_version)
    assert error.status == 401 and "TLS alert about the client certificate: certificate expired" in str(error)
    assert "refuses the credentials" in str(error) and "log in again" in str(error)


@pytest.mark.parametrize("reason", ["TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA"])
def test_other_alerts_about_the_client_certificate(reason: str) -> None:
    alert = ssl.SSLError(1, "alert")
    alert.reason = reason
    why = no_answer.explain(alert)
    assert why.status == 401 and why.says.endswith(reason.partition("ALERT_")[2].lower().replace("_", " "))


def test_a_client_certificate_that_is_none(secure: Callable[..., FakeApi], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no certificate")
    secure(user={"client-certificate": str(tmp_path / "x"), "client-key": str(tmp_path / "x")})
    error = refused(Kube.connect().server_version)
    assert (error.status, error.reason) == (0, no_answer.TLS)
    assert "a certificate or key of the kubeconfig can't be used" in str(error) and "kubeconfig anew" in str(error)


NOT_TRUSTED = [
    ("own", "other", "self-signed certificate", "certificate-authority in the kubeconfig"),
    ("own", "", "self-signed certificate", "certificate-authority in the kubeconfig"),
    ("expired", "expired", "certificate has expired", "clock"),
]


@pytest.mark.parametrize(("own", "authority", "says", "todo"), NOT_TRUSTED)
def test_a_server_that_is_not_trusted(
    secure: Callable[..., FakeApi], own: str, authority: str, says: str, todo: str
) -> None:
    secure(own, authority=authority)
    error = refused(Kube.connect().server_version)
    first, second = str(error).splitlines()
    assert (error.status, error.reason) == (0, no_answer.TLS) and "does not answer" not in first
    assert "TLS fails: its certificate is not trusted: " in first and says in first and todo in second


def test_a_certificate_of_another_address(
    secure: Callable[..., FakeApi], tmp_path: Path, pairs: dict[str, certificates.Pair]
) -> None:
    url = secure().url.replace("127.0.0.1", "localhost")
    write_kubeconfig(tmp_path / "kc", url, authority=str(pairs["own"].certificate))
    error = refused(Kube.connect().server_version)
    assert error.reason == no_answer.TLS and "certificate is not valid for 'localhost'" in str(error)
    assert "set tls-server-name" in str(error)


def test_a_connection_that_is_closed_without_an_alert() -> None:
    why = no_answer.explain(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))
    assert (why.reason, why.status) == (no_answer.TLS, 0)
    assert "closed the connection" in why.says and "still valid? log in again" in why.todo


def test_https_asked_of_a_server_without(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = api.url.replace("http:", "https:")
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", url)))
    error = refused(Kube.connect().server_version)
    assert error.reason == no_answer.TLS and "what answers there speaks none" in str(error)


def test_refused_silent_and_unknown_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(url: str) -> str:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", url)))
        return str(refused(lambda: Kube.connect().server_version(0.2))).splitlines()[0]

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert error(url) == f"cluster {url} (context here) does not answer: Connection refused"
        taken.listen()
        assert error(url).endswith(" does not answer within 0.2 s")
    assert error("http://no-such-host.invalid").endswith(" does not answer: its name is not known here")


def test_a_proxy_that_is_off(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "kc", "https://cluster.invalid")
    tree = yaml.safe_load(path.read_text())
    tree["clusters"][0]["cluster"]["proxy-url"] = "http://127.0.0.1:1"
    path.write_text(yaml.safe_dump(tree))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "Connection refused (the proxy of the kubeconfig)" in str(refused(Kube.connect().server_version))
