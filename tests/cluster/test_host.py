"""Why the live tests are left out, where they are: no cluster is needed to check that."""

from __future__ import annotations

import pytest

from tests.cluster import cluster, host


def test_no_limit_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOXHUNT_CLUSTER_MINUTES", raising=False)
    assert host.time_is_up() == ""
    monkeypatch.setenv("FOXHUNT_CLUSTER_MINUTES", "0")
    assert host.time_is_up() == "NOT RUN: the 0 minutes of FOXHUNT_CLUSTER_MINUTES are used up"


def test_what_cannot_be_fetched_is_told_from_what_does_not_build() -> None:
    offline = host.ClusterError('go build: exit 1\ngo: x@v1: Get "https://p/x": dial tcp: lookup p: no such host')
    assert host.unreachable(offline).startswith("go: x@v1") and "no such host" in host.unreachable(offline)
    assert host.unreachable(host.ClusterError("go build: exit 1\n./main.go:3:5: undefined: y")) == ""


@pytest.mark.parametrize("said, skipped", [("dial tcp: i/o timeout", True), ("undefined: y", False)])
def test_a_build_without_a_network_is_a_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch, said: str, skipped: bool
) -> None:
    def build() -> None:
        raise host.ClusterError(f"go build: exit 1\n{said}")

    monkeypatch.setattr(cluster.prerequisites, "reason_to_skip", lambda: "")
    monkeypatch.setattr(cluster.prerequisites, "install", lambda: "")
    monkeypatch.setattr(cluster.builds, "build", build)
    with pytest.raises(host.Skip if skipped else host.ClusterError, match=said):
        cluster.prepare()


def test_a_cluster_that_does_not_start_skips_where_it_is_optional_and_only_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FOXHUNT_CLUSTER_OPTIONAL", raising=False)
    host.skip_if_optional("no bridge")
    monkeypatch.setenv("FOXHUNT_CLUSTER_OPTIONAL", "1")
    with pytest.raises(pytest.skip.Exception, match="NOT RUN: the cluster does not start on this machine: no bridge"):
        host.skip_if_optional("no bridge")
