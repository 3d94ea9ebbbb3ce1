"""`stop`, `list` and `resubmit`, for runs on this machine and on a cluster."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.workflows.cluster_objects import NAME, Study, running
from tests.workflows.conftest import Commands
from tests.workflows.fake_kubernetes import FakeKubernetes
from tests.workflows.test_commands import PATIENCE_S, STARTED, plan, start, until, waiting

DONE = {"phase": "Succeeded"}
FAILED = {"phase": "Failed", "code": 1}


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    yield
    while STARTED:
        STARTED.pop().kill()


def ended(name: str = NAME, began: float = 1000.0, folds: str = "01x", **parameters: str) -> Study:
    """A workflow that is over; a fold is its number where it succeeded, `x` where it failed, `.` where it never ran."""
    study = Study(name=name, began=began, phase="Failed", **parameters)
    for number, word in enumerate(folds):
        if word != ".":
            attempt, phase = (FAILED, "Failed") if word == "x" else (DONE, "Succeeded")
            study.task("train", [attempt], phase, number, {"wr": f"0.6{number}", "hold-pct": "44"})
    code = {"phase": "Failed", "code": 3}
    return study.task("gate", [code], "Failed", None, {"verdict": "failed"}).end("Failed")


# stop


def test_stop_patches_the_workflow(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(Study().task("train", [{"pod": running()}], fold=0))
    done = command("stop", "demo")
    assert done.returncode == 0, done.stderr
    assert kubernetes.objects["workflows"][NAME]["spec"]["shutdown"] == "Stop"
    assert "training pods save their state" in done.stdout
    assert "go on with: python -m workflows.resubmit demo" in done.stdout


def test_stop_now_and_json(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(Study())
    told = json.loads(command("stop", NAME, "--now", "--json", "--namespace", "foxhunt").stdout)
    assert told["workflow"] == NAME and told["stopped"] is True
    assert kubernetes.objects["workflows"][NAME]["spec"]["shutdown"] == "Terminate"


def test_nothing_to_stop(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended())
    done = command("stop", "demo")
    assert done.returncode == 0 and "not running (failed), nothing to stop" in done.stdout
    assert not kubernetes.asked("PATCH", "")


def test_a_stop_that_is_not_allowed(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(Study())
    kubernetes.denied[("PATCH", "/workflows")] = 403
    done = command("stop", "demo")
    assert done.returncode == 2 and "forbids it" in done.stderr


def test_stop_now_does_not_wait_for_a_trainer_that_does(command: Commands, tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.py"
    fake = Path(__file__).with_name("fake_trainer.py").read_text()
    stubborn.write_text(fake.replace("lambda *_: sys.exit(75)", "signal.SIG_IGN"))
    env = {"FAKE_PLAN": plan(train0=["wait"]), "FOXHUNT_TRAINER": f"{sys.executable} {stubborn}"}
    start("--folds", "1", "--run-id", "r", "--backend", "local", cwd=tmp_path, **env)
    until(lambda: waiting(tmp_path, "r", 1))
    assert "run r: stopped" in command("stop", "r", "--now").stdout


def test_stop_here_waits_until_everything_is_saved(command: Commands, tmp_path: Path) -> None:
    study = start(
        "--folds", "1", "--run-id", "r", "--backend", "local", cwd=tmp_path, FAKE_PLAN=plan(train0=["wait", 0])
    )
    until(lambda: waiting(tmp_path, "r", 1))
    done = command("stop", "r")
    assert done.returncode == 0, done.stderr
    assert "run r: stopped" in done.stdout and "submit --folds 1 --run-id r" in done.stdout
    study.communicate(timeout=PATIENCE_S)
    assert study.returncode == 75
    assert "nothing to stop" in command("stop", "r").stdout


# list


def test_studies_of_the_cluster(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended(began=time.time() - 7300))
    kubernetes.study(Study(name="alpha-rl-b-00001", run_id="", began=time.time() - 60))
    kubernetes.put("workflows", {"metadata": {"name": "someone-elses", "labels": {}}, "spec": {}})
    done = command("list")
    assert done.returncode == 0 and "someone-elses" not in done.stdout
    head, newer, older = done.stdout.splitlines()
    assert (
        head.split()
        == ["RUN", "WHERE", "RECIPE", "PHASE", "FOLDS", "EXIT", "VERDICT", "WR", "STARTED", "AGE", "DATA"][:-1]
    )
    assert newer.split()[:4] == ["alpha-rl-b-00001", "foxhunt", "alpha-rl", "Running"]
    assert older.split()[4:8] == ["2/3", "1", "failed", "0.60"] and "2h01m" in older
    (_, told) = map(json.loads, command("list", "--json").stdout.splitlines())
    assert (told["run"], told["workflow"], told["wr"], told["hold_pct"]) == ("demo", NAME, "0.60 0.61 0.62", "44 44 44")


def test_here_and_there_together(command: Commands, kubernetes: FakeKubernetes) -> None:
    command("submit", "--folds", "1", "--run-id", "r", "--backend", "local")
    kubernetes.study(ended())
    assert [json.loads(line)["where"] for line in command("list", "--json").stdout.splitlines()] == ["here", "foxhunt"]
    assert "demo" not in command("list", "--backend", "local").stdout
    kubernetes.denied[("GET", "/workflows")] = 403
    done = command("list")
    assert done.returncode == 0 and "here" in done.stdout and "not listed: " in done.stderr
    assert command("list", "--backend", "argo").returncode == 2


def test_an_empty_cluster(command: Commands, kubernetes: FakeKubernetes) -> None:
    assert command("list").stdout.startswith("no runs under runs\nstart one: python -m workflows.submit")
    assert command("list", "--backend", "argo").stdout.startswith("no studies in namespace foxhunt\n")


# resubmit


def created(kubernetes: FakeKubernetes) -> dict[str, str]:
    """Parameters of the workflow that was made."""
    (body,) = kubernetes.created
    assert body["metadata"]["labels"]["foxhunt.dev/run-id"] == "demo"
    assert body["spec"]["workflowTemplateRef"] == {"name": "alpha-rl"}
    return {p["name"]: p["value"] for p in body["spec"]["arguments"]["parameters"]}


def test_failed_folds_only_with_the_old_parameters(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended(folds="0x2", **{"memory-mi": "2048"}))
    done = command("resubmit", "demo")
    assert done.returncode == 0, done.stderr
    given = created(kubernetes)
    assert (given["only-folds"], given["run-id"], given["memory-mi"], given["n-steps"]) == ("1", "demo", "2048", "1000")
    assert f"run demo: fold 1 again, with the parameters of {NAME}" in done.stdout
    assert "watch it: python -m workflows.watch alpha-rl-demo-" in done.stdout


@pytest.mark.parametrize(
    ("workflows", "only"),
    [
        (["xx2", "0.."], "1"),  # what a later workflow mended is done
        (["01x", "..x"], "2"),
        (["0.."], "1,2"),  # stopped before the others began
        (["..."], ""),  # before the first fold: all of it
    ],
)
def test_which_folds_are_due(command: Commands, kubernetes: FakeKubernetes, workflows: list[str], only: str) -> None:
    for number, folds in enumerate(workflows):
        kubernetes.study(ended(f"alpha-rl-demo-{number}", 1000.0 + 5000 * number, folds))
    assert command("resubmit", "demo").returncode == 0
    assert created(kubernetes)["only-folds"] == only


def test_folds_that_nobody_asked_for_stay_out(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended(folds="x.2", **{"only-folds": "0,2"}))
    command("resubmit", "demo")
    assert created(kubernetes)["only-folds"] == "0"


def test_all_done_is_not_run_again(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended(folds="012"))
    done = command("resubmit", "demo")
    assert done.returncode == 0 and "every fold is done" in done.stdout and not kubernetes.created


def test_a_verdict_that_is_missing_is_made_up_for(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study(phase="Failed")
    for fold in range(3):
        study.task("train", [DONE], "Succeeded", fold)
    kubernetes.study(study.task("gate", [{"phase": "Error", "message": "pod deleted"}], "Error").end("Error"))
    assert command("resubmit", "demo").returncode == 0
    assert created(kubernetes)["only-folds"] == "", "done folds are no-ops"


def test_a_study_at_work_is_left_alone(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended())
    kubernetes.study(Study(name="alpha-rl-demo-again", began=9000.0))
    done = command("resubmit", "demo")
    assert done.returncode == 2 and "workflow alpha-rl-demo-again works on it" in done.stderr
    assert not kubernetes.created


def test_precompute_beside_a_study_of_the_same_run(command: Commands, kubernetes: FakeKubernetes) -> None:
    """A run's features may have been computed first, by a workflow with the same run-id."""
    other = Study(name="precompute-features-demo-1", began=9000.0)
    other.tree["metadata"]["labels"]["workflows.argoproj.io/workflow-template"] = "precompute-features"
    other.tree["spec"]["workflowTemplateRef"]["name"] = "precompute-features"
    for study in (other, ended()):
        kubernetes.study(study)
    assert json.loads(command("stop", "demo", "--json").stdout)["workflow"] == NAME
    assert json.loads(command("stop", other.name, "--json").stdout)["workflow"] == other.name
    kubernetes.study(other.end("Failed"))
    done = command("resubmit", other.name)
    assert done.returncode == 2 and "no study, it has no folds" in done.stderr


def test_resubmit_shows_first(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(ended())
    done = command("resubmit", "demo", "--dry-run", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "Workflow"
    assert not kubernetes.created


def test_a_run_here_comes_before_one_there(command: Commands, kubernetes: FakeKubernetes, tmp_path: Path) -> None:
    command("submit", "--folds", "1", "--run-id", "demo", "--backend", "local", FAKE_PLAN=plan(train0=[1]))
    kubernetes.study(ended())
    assert command("resubmit", "demo").returncode == 0
    assert not kubernetes.created
    assert command("resubmit", "demo", "--backend", "argo").returncode == 0
    assert kubernetes.created


def test_no_cluster_at_all(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("watch", "logs", "fetch", "stop", "resubmit"):
        done = command(module, "demo")
        assert done.returncode == 2 and "error: no runs under runs" in done.stderr
        done = command(module, "demo", "--backend", "argo")
        assert done.returncode == 2 and "no cluster configured" in done.stderr
    assert not os.path.exists("runs")
