"""Which cluster, or this machine: what a cluster that is off, silent or not to be trusted makes of a submission."""

import socket
from pathlib import Path

import pytest

from tests.workflows import certificates
from tests.workflows.conftest import Commands
from tests.workflows.fake_api import FakeApi, Server, write_kubeconfig

DRY = ("--folds", "1", "--dry-run")


@pytest.fixture
def untrusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A cluster whose certificate is not the kubeconfig's."""
    own, other = (certificates.make(tmp_path, name) for name in ("own", "other"))
    with Server(api := FakeApi(), certificates.server_side(own)):
        path = write_kubeconfig(tmp_path / "kc", api.url, authority=str(other.certificate))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield api


@pytest.mark.usefixtures("untrusted")
@pytest.mark.parametrize("how", [(), ("--backend", "argo"), ("--context", "here")])
def test_a_cluster_that_is_not_trusted_is_no_reason_to_compute_here(command: Commands, how: tuple[str, ...]) -> None:
    done = command("submit", *DRY, *how)
    assert done.returncode == 2 and not done.stdout, "nothing is computed here, nothing is said to be unreachable"
    first, *rest = done.stderr.splitlines()
    assert "TLS fails: its certificate is not trusted: self-signed certificate" in first
    assert "certificate-authority in the kubeconfig" in rest[0] and rest[-1].endswith("--backend local")


def test_auto_says_that_a_cluster_refuses(command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", url)))
        done = command("submit", *DRY)
        assert f"backend  local (cluster {url} (context here) does not answer: Connection refused)\n" in done.stdout
        taken.listen()
        monkeypatch.setattr("workflows.launch.ANSWER_SECONDS", 0.2)
        done = command("submit", *DRY)
        assert done.returncode == 0 and "(context here) does not answer within 0.2 s)" in done.stdout


def test_a_cluster_that_takes_us_for_nobody(
    command: Commands, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, so nothing is computed here; what it forbids is not asked for."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kc", api.url, user={})))
    done = command("submit", "--folds", "1")
    assert done.returncode == 2 and "no credentials were sent" in done.stderr and "log in again" in done.stderr
