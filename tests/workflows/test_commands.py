"""The commands as a user meets them: a study from start to verdict, interruptions, bad input, help."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.conftest import Commands, calls
from workflows import identity, state

COMMANDS = ["submit", "render", "list", "logs", "resubmit", "watch", "gc", "resolve", "summary", "fetch", "stop"]
COMMANDS += ["precompute", "preflight"]
RUN = Path("runs") / "alpha-rl-runs"


def plan(**acts: list[Any]) -> str:
    return json.dumps(acts)


def start(*args: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "workflows.submit", *args]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **env}, **out)  # type: ignore[call-overload]
    STARTED.append(process)
    return process


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


PATIENCE_S = 300.0  # a machine that is busy with other work may need minutes for what takes a second


def until(what: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def waiting(cwd: Path, run_id: str, folds: int) -> bool:
    logs = (cwd / RUN / run_id / "logs").glob("train-*-1.log")
    return sum("waiting" in log.read_text() for log in logs) == folds


def test_a_study_from_start_to_verdict(command: Commands, tmp_path: Path) -> None:
    done = command("submit", "--folds", "2", "--n-steps", "30", "--set", "env.fee_ticks=0.2")
    assert done.returncode == 0, done.stderr
    assert "backend  local (no cluster configured" in done.stdout
    assert "gate table: every criterion met" in done.stdout
    run_id = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("run-id"))
    assert f"report: {RUN / run_id / 'report.html'}" in done.stdout
    said = calls(tmp_path, run_id)
    assert said[0]["name"] == "precompute"
    assert {c["name"] for c in said[-2:]} == {"gate", "report"}
    assert sorted(c["name"] for c in said[1:-2]) == ["train0", "train1"]
    train = said[1]["argv"]
    assert train[train.index("--set") + 1] == "env.fee_ticks=0.2;folds.folds=2;run.n_steps=30"
    assert train[train.index("--run-id") + 1] == run_id
    again = command("submit", "--folds", "2", "--n-steps", "30", "--set", "env.fee_ticks=0.2")
    assert f"run-id   {run_id} " in again.stdout, "the same submission finds its own work"
    logged = command("logs").stdout
    assert "\ntrain-0      $ python -m trainer train --fold 0" in logged
    told = [json.loads(line) for line in command("logs", "--json").stdout.splitlines()]
    first, _ = [one for one in told if one.get("line", "").startswith("$ python -m trainer train --fold 1")]
    assert {**first, "line": ""} == {"task": "train-1", "fold": 1, "attempt": 1, "line": ""}
    assert {"task": "gate", "fold": None, "attempt": 1, "line": "gate table: every criterion met"} in told
    listed = json.loads(command("list", "--json").stdout)
    assert listed["folds"] == "2/2" and listed["verdict"] == "passed" and listed["exit"] == 0


def test_a_study_says_what_was_read_and_which_code_ran(
    command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOXHUNT_COMMIT")
    (tmp_path / "days").mkdir()
    for name in ("2.csv", "1.csv"):
        (tmp_path / "days" / name).touch()
    done = command("submit", "--folds", "1", "--run-id", "r", "--data", "days")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / RUN / "r" / "logs" / "precompute-1.log").read_text().splitlines()
    assert len(log) > 1 and log[0].startswith("$ ") and log[0] not in done.stdout
    assert "\n".join(f"  {line}" for line in log[1:]) in done.stdout
    words = calls(tmp_path, "r")[0]["argv"]
    assert words[words.index("--data") + 1] == "days/1.csv,days/2.csv"
    assert {c["env"]["FOXHUNT_COMMIT"] for c in calls(tmp_path, "r")} == {identity.code_identity()}


def test_one_fold_fails_for_good(command: Commands, tmp_path: Path) -> None:
    """The others finish, the gate fails, the report is written, the fold's own code is the study's."""
    acts = plan(train1=[75, "sigkill", 1], gate=[3, 0])
    done = command("submit", "--run-id", "r", FAKE_PLAN=acts)
    assert done.returncode == 1
    assert "fold 1 - 12-25 23:30: exit code 1" in done.stderr
    assert "python -m workflows.resubmit r" in done.stdout
    names = [c["name"] for c in calls(tmp_path, "r")]
    assert names.count("train1") == 3 and names.count("train0") == names.count("train2") == 1
    assert (tmp_path / RUN / "r" / "report.html").exists()
    last = [c["env"] for c in calls(tmp_path, "r") if c["name"] == "train1"]
    assert [e["FOXHUNT_LAST_EXIT_CODE"] for e in last] == ["0", "75", "137"]
    listed = json.loads(command("list", "--json").stdout)
    assert (listed["folds"], listed["verdict"], listed["phase"]) == ("2/3", "failed", "Failed")

    again = command("resubmit", "r")
    assert again.returncode == 0, again.stderr
    assert [c["name"] for c in calls(tmp_path, "r")].count("train0") == 1, "what is done stays done"
    assert json.loads(command("list", "--json").stdout)["folds"] == "3/3"
    assert "every fold is done" in command("resubmit", "r").stdout


@pytest.mark.parametrize(("acts", "code"), [(plan(gate=[3]), 3), (plan(precompute=[2]), 2), (plan(report=[1]), 1)])
def test_exit_code_of_the_study(command: Commands, tmp_path: Path, acts: str, code: int) -> None:
    done = command("submit", "--folds", "1", "--run-id", "r", FAKE_PLAN=acts)
    assert done.returncode == code
    names = [c["name"] for c in calls(tmp_path, "r")]
    assert ("train0" in names) == (code != 2)


def test_an_error_line_of_a_pod_reaches_the_user(command: Commands, tmp_path: Path) -> None:
    done = command("submit", "--folds", "1", "--run-id", "r", FAKE_PLAN=plan(train0=["lease"], gate=[3]))
    assert done.returncode == 2
    assert "error: fold folder is owned by a live process\n  wait for it" in done.stderr
    assert "sps" not in done.stderr


def test_why_an_attempt_comes_back_is_on_the_screen(command: Commands, tmp_path: Path) -> None:
    done = command("submit", "--folds", "1", "--run-id", "r", FAKE_PLAN=plan(train0=["full", "full", 0]))
    assert done.returncode == 0, done.stderr
    assert "exit code 75: checkpoint-20.bin: no space left; again in 0.0 s" in done.stdout
    assert "attempt 3 (exit code 75: checkpoint-20.bin: no space left)" in done.stdout
    last = [c["env"]["FOXHUNT_LAST_MESSAGE"] for c in calls(tmp_path, "r") if c["name"] == "train0"]
    assert last == ["", *["exit code 75: checkpoint-20.bin: no space left"] * 2]


def test_an_interrupted_fold_that_could_not_save_is_not_said_to_be_saved(command: Commands, tmp_path: Path) -> None:
    study = start("--folds", "1", "--run-id", "r", cwd=tmp_path, FAKE_PLAN=plan(train0=["unsaved"]))
    until(lambda: waiting(tmp_path, "r", 1))
    study.send_signal(signal.SIGINT)
    said, _ = study.communicate(timeout=PATIENCE_S)
    assert study.returncode == 75 and "fold 0 - 12-25 23:30: SIGTERM, and the save failed" in said, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_then_the_same_command(command: Commands, tmp_path: Path, number: int) -> None:
    acts = plan(train0=["wait", 0], train1=["wait", 0])
    args = ("--folds", "3", "--run-id", "r", "--jobs", "2")
    study = start(*args, cwd=tmp_path, FAKE_PLAN=acts)
    until(lambda: waiting(tmp_path, "r", 2))
    study.send_signal(number)
    said, _ = study.communicate(timeout=PATIENCE_S)
    assert study.returncode == 75, said
    assert "fold 0 - 12-25 23:30: step 10/20, saved" in said
    assert "fold 2 - 12-25 23:30: not started" in said
    assert "python -m workflows.submit --folds 3 --run-id r --jobs 2" in said
    assert "gate" not in [c["name"] for c in calls(tmp_path, "r")]
    assert command("watch", "r", "--once").returncode == 75
    again = command("submit", *args, FAKE_PLAN=acts)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / RUN / "r" / "logs" / "train-0-2.log").exists(), "logs of earlier attempts are kept"


def test_a_killed_submission_takes_its_trainers_along(command: Commands, tmp_path: Path) -> None:
    acts = plan(train0=["wait", 0])
    study = start("--folds", "1", "--run-id", "r", cwd=tmp_path, FAKE_PLAN=acts)
    until(lambda: waiting(tmp_path, "r", 1))
    second = command("submit", "--folds", "1", "--run-id", "r")
    assert second.returncode == 2 and f"process {study.pid} works on it" in second.stderr
    assert json.loads(command("watch", "--once", "--json").stdout)["nodes"][-1]["step"] == 10
    study.kill()
    study.communicate(timeout=PATIENCE_S)
    until(lambda: not state.is_locked(tmp_path / RUN / "r"))
    assert json.loads(command("list", "--json").stdout)["phase"] == "Interrupted"
    assert command("submit", "--folds", "1", "--run-id", "r", FAKE_PLAN=acts).returncode == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.py"
    fake = Path(__file__).with_name("fake_trainer.py").read_text()
    stubborn.write_text(fake.replace("lambda *_: sys.exit(75)", "signal.SIG_IGN"))
    env = {"FAKE_PLAN": plan(train0=["wait"]), "FOXHUNT_TRAINER": f"{sys.executable} {stubborn}"}
    study = start("--folds", "1", "--run-id", "r", cwd=tmp_path, **env)
    until(lambda: waiting(tmp_path, "r", 1))
    study.send_signal(signal.SIGINT)
    assert study.stdout is not None
    assert any("stopping: every process saves" in line for line in study.stdout)  # reads no further than that line
    assert study.poll() is None, "it waits for the trainer to save"
    study.send_signal(signal.SIGINT)
    said, _ = study.communicate(timeout=PATIENCE_S)
    assert study.returncode == 75 and "killed by SIGKILL" in said


def test_only_folds(command: Commands, tmp_path: Path) -> None:
    done = command("submit", "--run-id", "r", "--only-folds", "2,0,2")
    assert done.returncode == 0, done.stderr
    assert sorted(c["name"] for c in calls(tmp_path, "r") if "train" in c["name"]) == ["train0", "train2"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--folds", "0"], "--folds 0: from 1 to 100"),
        (["--folds", "200"], "--folds 200: from 1 to 100"),
        (["--folds", "x"], "--folds"),
        (["--run-id", "a/b"], "--run-id 'a/b': only letters"),
        (["--run-id", "../up"], "only letters"),
        (["--run-id", "x" * 64], "at most 63"),
        (["--run-id", "é"], "only letters"),
        (["--only-folds", "7"], "'7' is not a fold of 3"),
        (["--only-folds", "1,-1"], "'-1' is not a fold of 3"),
        (["--fold", "3"], "unknown option --fold (did you mean '--folds'?)"),
        (["--zzz"], "unknown option --zzz; known: --folds"),
        (["--data", "nope.csv"], "--data nope.csv: no such file or folder"),
        (["--data", "s3:/bucket/key"], "--data s3:/bucket/key: not an S3 address"),
        (["--only-folds", " , "], "--only-folds ' , ': names no fold"),
        (["--backend", "argo"], "no cluster configured: KUBECONFIG="),
        (["--recipe", "alpha-r"], "did you mean 'alpha-rl'?"),
        (["--set", "nonsense=1"], "--set nonsense: unknown key"),
        (["--set", "folds.folds=3"], "use --folds"),
        (["--n-steps", "0"], "--n-steps"),
        (["--runs", "/proc/none"], "/proc/none"),
    ],
)
def test_bad_input_is_one_clear_line(command: Commands, tmp_path: Path, args: list[str], says: str) -> None:
    done = command("submit", *args)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and says in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


@pytest.mark.parametrize("module", COMMANDS)
def test_help_teaches_and_is_quick(module: str) -> None:
    """What takes long to import is not imported for it; `make bench` measures the seconds."""
    argv = [sys.executable, "-X", "importtime", "-m", f"workflows.{module}", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"python -m workflows.{module}" in " ".join(done.stdout.split("Example:")[1].split())
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert not imported & {"hera", "kubernetes", "yaml", "rich.progress", "trainer", "numpy"}


def test_dry_run_starts_nothing(command: Commands, tmp_path: Path) -> None:
    done = command("submit", "--dry-run", "--run-id", "r")
    assert done.returncode == 0 and not list(tmp_path.iterdir())
    assert "train: python -m trainer train --fold {{inputs.parameters.fold}}" in done.stdout


def test_logs_watch_and_list_of_nothing(command: Commands, tmp_path: Path) -> None:
    assert "start one: python -m workflows.submit" in command("list").stdout
    for module in ("logs", "watch", "resubmit"):
        done = command(module)
        assert done.returncode == 2 and "error: no runs under runs" in done.stderr
    command("submit", "--folds", "1", "--run-id", "abc")
    done = command("logs", "abd")
    assert done.returncode == 2 and "did you mean 'abc'?" in done.stderr
    done = command("logs", "a", "--fold", "4")
    assert done.returncode == 2 and "no logs of 'train-4' (did you mean 'train-0'?)" in done.stderr
    (tmp_path / RUN / "abc" / "submit.json").write_text("{")
    assert "unreadable" in command("list").stdout
    assert "can't be read" in command("watch").stderr


def cut_off(*argv: str, cwd: Path, lines: int = 1, **env: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose output goes to `head`."""
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", *argv], cwd=cwd, env={**os.environ, **env}, **out)  # type: ignore[call-overload]
    STARTED.append(process)
    for _ in range(lines):
        assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    return process.wait(PATIENCE_S), said


def test_a_reader_that_has_seen_enough_is_no_error(command: Commands, tmp_path: Path) -> None:
    assert command("submit", "--folds", "1", "--run-id", "r").returncode == 0
    assert cut_off("workflows.list", cwd=tmp_path, lines=0) == (0, "")
    log = tmp_path / RUN / "r" / "logs" / "precompute-1.log"
    log.write_text("a line\n" * 100_000)  # more than a pipe holds
    assert cut_off("workflows.logs", "r", cwd=tmp_path) == (0, "")
    assert cut_off("workflows.submit", "--dry-run", cwd=tmp_path, lines=0) == (0, "")
    code, said = cut_off("workflows.logs", "q", cwd=tmp_path, lines=0)
    assert code == 2 and said.startswith("error: run 'q'")


def test_a_study_here_that_nobody_reads_is_interrupted(tmp_path: Path) -> None:
    argv = ("workflows.submit", "--folds", "1", "--run-id", "r")
    code, said = cut_off(*argv, cwd=tmp_path, lines=6, FAKE_PLAN=plan(train0=["wait", 0]))
    assert code == 75 and said.startswith("error: nobody reads the output any more"), said
    assert "run the same command again" in said and "Traceback" not in said
    code, said = cut_off(*argv, cwd=tmp_path, lines=0, FAKE_PLAN=plan(train0=[0]))
    assert code == 75 and "Traceback" not in said


def test_logs_follow_across_attempts(tmp_path: Path) -> None:
    study = start("--folds", "1", "--run-id", "r", cwd=tmp_path, FAKE_PLAN=plan(train0=["wait", 0]))
    until(lambda: waiting(tmp_path, "r", 1))
    argv = [sys.executable, "-m", "workflows.logs", "r", "--fold", "0", "-f"]
    follower = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    STARTED.append(follower)
    trainer = next(p for p in children(study.pid) if "train" in p[1])
    os.kill(trainer[0], signal.SIGTERM)  # 75: the runner starts it again
    study.communicate(timeout=PATIENCE_S)
    said, _ = follower.communicate(timeout=PATIENCE_S)
    assert study.returncode == 0
    assert said.count("--- train-0-1 ---") == said.count("--- train-0-2 ---") == 1
    assert said.index("waiting") < said.index("--- train-0-2 ---")


def children(pid: int) -> list[tuple[int, str]]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [(int(c), Path(f"/proc/{c}/cmdline").read_text()) for c in found]


def test_gc_shows_first_and_keeps_the_newest(command: Commands, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        folder = tmp_path / RUN / name
        (folder / "fold0").mkdir(parents=True)
        (folder / "fold0" / "checkpoint-5.bin").write_bytes(b"x" * 2**20)
        (folder / "fold0" / "fold_result.json").write_text("{}")
        (folder / "submit.json").write_text("{}")
        os.utime(folder / "submit.json", (1e9, 1e9 + len(list(tmp_path.rglob("submit.json")))))
    shown = command("gc", "--keep", "1").stdout
    assert "would remove" in shown and "2.0 MiB; add --yes" in shown
    assert len(list((tmp_path / RUN).iterdir())) == 3
    command("gc", "--keep", "1", "--checkpoints", "--yes")
    assert [p.parts[-3] for p in tmp_path.rglob("checkpoint-*")] == ["three"]
    assert len(list(tmp_path.rglob("fold_result.json"))) == 3
    command("gc", "--keep", "1", "--yes")
    assert [p.name for p in (tmp_path / RUN).iterdir()] == ["three"]
    said = command("gc", "--keep", "0", "--older-than-days", "1e6", "--yes").stdout
    assert said == "nothing to remove: no run beyond the newest 0 was left alone for 1e+06 days\n"
    assert [p.name for p in (tmp_path / RUN).iterdir()] == ["three"]


def test_render_check_finds_a_difference(command: Commands, tmp_path: Path) -> None:
    assert command("render", "--out", "out").returncode == 0
    assert command("render", "--out", "out", "--check").returncode == 0
    path = tmp_path / "out" / "alpha-rl.yaml"
    path.write_text(path.read_text().replace("limit: '30'", "limit: '3'", 1))
    done = command("render", "--out", "out", "--check")
    assert done.returncode == 1
    assert "-      limit: '3'\n+      limit: '30'" in done.stdout
    assert "limit: '3'\n" in path.read_text(), "--check writes nothing"
