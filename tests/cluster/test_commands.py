"""Our commands against a live API server: what they find, fetch, stop and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.argo import token
from tests.cluster.control_plane import kubeconfig
from tests.cluster.layout import NAMESPACE, Facts
from tests.cluster.live import Live, submission
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster
Own = tuple[Live, Facts]


def test_preflight_finds_nothing_wrong(live: Live) -> None:
    done = live.foxhunt("preflight", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    states = {f["state"] for f in json.loads(done.stdout)["findings"]}
    assert "failed" not in states


def test_preflight_names_the_rights_that_an_account_lacks(own: Own, tmp_path: Path) -> None:
    """The pods' own account may do nothing that a submitter must."""
    live, facts = own
    config = kubeconfig(tmp_path / "pods.kubeconfig", facts, token("foxhunt"), NAMESPACE)
    done = live.foxhunt("preflight", kubeconfig=config)
    assert done.returncode == 2
    assert "may not create workflows.argoproj.io" in done.stdout


def test_submit_refuses_before_anything_is_created(live: Live) -> None:
    before = live.kubectl("get", "workflows", "-o", "name")
    for flags, said in (
        (["--gpu-pool", "ci-training-h10"], "ci-training-h100"),
        (["-p", "memory-mb=5"], "memory-mi"),
        (["-p", "attempt-deadline-s=5"], "60"),
        (["--data", "here.csv"], "s3://"),
        (["--set", "env.fee_tick=1"], "env.fee_ticks"),
    ):
        done = live.foxhunt("submit", *submission("refused"), *flags, "--backend", "argo")
        assert done.returncode == 2, (flags, done.stdout, done.stderr)
        assert said in done.stderr, (flags, done.stderr)
    assert live.kubectl("get", "workflows", "-o", "name") == before


def test_fetch_brings_report_and_results(own: Own, undisturbed: Undisturbed, tmp_path: Path) -> None:
    live, _ = own
    done = live.foxhunt("fetch", undisturbed.name, "--to", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in ("report.html", "gate.json", "fold0/fold_result.json"):
        assert (tmp_path / name).read_text() == live.read(undisturbed.run_id, name), name


def test_a_stopped_study_goes_on_by_resubmit(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    name = live.submit("stopped")
    for fold in range(3):
        live.running_pod(name, fold)
    done = live.foxhunt("stop", name)
    assert done.returncode == 0, done.stderr
    assert live.wait(name, 120) == "Failed"
    again = live.foxhunt("resubmit", name, "--json")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout.strip().splitlines()[-1])["workflow"]
    live.started.append(second)
    assert live.wait(second) == "Succeeded", live.explain(second)
    assert {fold: live.done("stopped", fold) for fold in range(3)} == undisturbed.folds


def test_list_and_logs_know_the_study(own: Own, undisturbed: Undisturbed) -> None:
    live, _ = own
    listed = live.foxhunt("list", "--backend", "argo")
    assert listed.returncode == 0, listed.stderr
    assert undisturbed.run_id in listed.stdout
    logs = live.foxhunt("logs", undisturbed.name, "1")
    assert logs.returncode == 0, logs.stderr
    assert "trained" in logs.stdout
