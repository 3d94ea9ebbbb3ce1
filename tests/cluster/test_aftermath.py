"""Whatever ends `up` in its middle, nothing of it stays. Comes before the session's own cluster is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import cluster, host
from tests.cluster.layout import BRIDGE, CGROUP, RUN
from tests.cluster.live import ROOT, eventually

pytestmark = pytest.mark.cluster
UP = (sys.executable, "-m", "tests.cluster", "up")


@pytest.fixture(scope="module")
def built() -> None:
    """Programs and images are there, so that `up` gets to what it must take back."""
    if os.environ.get("FOXHUNT_TEST_KUBECONFIG"):
        pytest.skip("FOXHUNT_TEST_KUBECONFIG names another cluster")
    if cluster.is_up():
        pytest.skip("a cluster is up and stays so")
    with host.or_skip():
        cluster.prepare()


@pytest.fixture
def halfway(built: None) -> Iterator[subprocess.Popen[str]]:
    """An `up` whose API server and first node have been started."""
    before = settings()
    process = subprocess.Popen(UP, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started = {"etcd", "kube-apiserver", "containerd-gpu-a"}
    try:
        eventually("half of it has started", lambda: ended(process) or started <= started_by_now(), 120)
        if process.returncode is not None:
            said = process.communicate()[0]
            host.skip_if_optional(said)
            raise AssertionError(said)
        yield process
        assert settings() == before
    finally:
        process.kill()
        process.wait()
        cluster.down()


def ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def started_by_now() -> set[str]:
    return {entry["name"] for entry in host.journal("process")}


def settings() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in host.SYSCTLS if Path("/proc/sys", name).exists()}


def left_over() -> list[str]:
    found = [f"folder {RUN}"] if RUN.exists() else []
    found += [f"link {BRIDGE}"] if Path("/sys/class/net", BRIDGE).exists() else []
    found += [f"cgroup {folder}" for folder in host.cgroup_folders(CGROUP) if folder.exists()]
    found += [f"mount {point}" for point in host.mounts_below(RUN)]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().decode(errors="replace")
        except OSError:
            continue
        found += [f"process {words}"] if str(RUN) in words else []
    return found


def test_ctrl_c_takes_all_of_it_down(halfway: subprocess.Popen[str]) -> None:
    halfway.send_signal(signal.SIGINT)
    said, _ = halfway.communicate(timeout=60)
    assert halfway.returncode == 130 and "everything that was started has been ended" in said
    assert left_over() == []


def test_what_a_crash_leaves_down_removes(halfway: subprocess.Popen[str]) -> None:
    halfway.kill()
    halfway.wait()
    assert left_over() != [], "the crash came too early to leave anything"
    down = subprocess.run([*UP[:-1], "down"], cwd=ROOT, capture_output=True, text=True)
    assert down.returncode == 0 and f"link {BRIDGE}" in down.stdout, down.stdout + down.stderr
    assert left_over() == []
    assert subprocess.run([*UP[:-1], "down"], cwd=ROOT, capture_output=True, text=True).stdout == "nothing was there\n"
