"""Our commands against a live API server: what they find, fetch, stop and refuse."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cluster import host
from tests.cluster.argo import CONTROLLER, token, wait_for_controller
from tests.cluster.control_plane import kubeconfig
from tests.cluster.layout import CGROUP, CPU_POOL, NAMESPACE, Facts
from tests.cluster.live import SETTINGS, Live, eventually, fold_of, submission
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster
Own = tuple[Live, Facts]


def test_the_cluster_listens_on_its_own_addresses_only(own: Own) -> None:
    """Processes of its cgroup, network namespace of the machine: what else runs here is not asked."""
    _, facts = own
    theirs = {f"pid={pid}," for pid in host.pids_in(CGROUP)}
    lines = [line for line in host.run("ss", "-Hltnp").splitlines() if any(pid in line for pid in theirs)]
    addresses = {line.split()[3].rpartition(":")[0] for line in lines}
    assert addresses and all(address.startswith(f"{facts.prefix}.") for address in addresses), lines


def test_preflight_finds_nothing_wrong(live: Live) -> None:
    done = live.foxhunt("preflight", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    states = {f["state"] for f in json.loads(done.stdout)["findings"]}
    assert "failed" not in states


def test_preflight_finds_a_controller_that_is_not_at_work(own: Own) -> None:
    live, _ = own
    live.kubectl("scale", f"deployment/{CONTROLLER}", "--replicas=0")
    try:
        eventually("its pod is gone", lambda: CONTROLLER not in live.kubectl("get", "pods", "-o", "name"), 60)
        done = live.foxhunt("preflight", "--json")
    finally:
        live.kubectl("scale", f"deployment/{CONTROLLER}", "--replicas=1")
        wait_for_controller()
    found = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert done.returncode == 2 and found["controller"]["state"] == "failed", found["controller"]


def test_templates_are_right_for_the_server_and_installed_as_they_are(own: Own) -> None:
    live, facts = own
    linted = live.foxhunt("render", "--lint")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    applied = live.foxhunt("render", "--apply")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    spec = live.get("workflowtemplate", "alpha-rl")["spec"]
    values = {p["name"]: p["value"] for p in spec["arguments"]["parameters"]}
    assert values["image"] == facts.image, "what is set on the cluster is kept"


def test_features_alone(own: Own) -> None:
    """The template `precompute-features` by its command; what it leaves is what a study would use."""
    live, _ = own
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    data = ["--data", "synthetic:signal=0.75,rows=6000", "--config", "cpu-demo", *sets]
    run_id = live.run_id("features")
    words = ["SYNTHETIC", *data, "--pool", CPU_POOL, "--run-id", run_id, "--backend", "argo", "--json"]
    done = live.foxhunt("precompute", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    name = json.loads(done.stdout.strip().splitlines()[-1])["workflow"]
    live.started.append(name)
    assert live.wait(name) == "Succeeded", live.explain(name)
    assert len(json.loads(live.read("features", "folds.json"))) == 3


def test_ctrl_c_leaves_a_study_and_watch_says_when_it_is_deleted(own: Own) -> None:
    live, _ = own
    run_id = live.run_id("left-alone")
    watched = live.start("submit", *submission(run_id), "--backend", "argo", "--watch")
    name = workflow_of(live, run_id)
    live.started.append(name)
    live.running_pod(name, 0)
    watched.send_signal(signal.SIGINT)
    said = "".join(watched.communicate(timeout=30))
    assert watched.returncode == 130, said
    assert f"workflow {name} goes on without this terminal" in said and f"workflows.stop {name}" in said
    assert live.phase(name) == "Running"
    watched = live.start("watch", name, "--json")
    assert watched.stdout is not None and json.loads(watched.stdout.readline())["name"] == name
    live.kubectl("delete", "workflow", name, "--wait=false")
    said = "".join(watched.communicate(timeout=60))
    assert watched.returncode == 2 and f"workflow {name} was deleted while it was watched" in said, said


def workflow_of(live: Live, run_id: str) -> str:
    """The workflow of a run, once it is there."""
    found: list[str] = []

    def there() -> bool:
        names = [w["metadata"]["name"] for w in live.get("workflows")["items"]]
        found[:] = [name for name in names if run_id in name]
        return bool(found)

    eventually(f"a workflow of {run_id} is there", there, 60)
    return found[0]


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
    assert "trained" in logs.stdout and "from the claim" not in logs.stdout
    pod = next(p["metadata"]["name"] for p in live.pods(undisturbed.name) if fold_of(p) == 1)
    live.kubectl("delete", "pod", pod)
    gone = live.foxhunt("logs", undisturbed.name, "1")
    assert gone.returncode == 0, gone.stderr
    assert "trained" in gone.stdout and "from the claim" in gone.stdout
