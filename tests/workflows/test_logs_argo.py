"""`logs` on a cluster: across attempts and resubmissions, from pods and, where those are gone, from the claim."""

import json
import threading
import time
from pathlib import Path

import pytest

from tests.workflows.cluster_objects import Study, creating, running
from tests.workflows.conftest import Commands
from tests.workflows.fake_kubernetes import FakeKubernetes
from workflows import status
from workflows.logs_cluster import logs_of_pod

FAILED = {"phase": "Failed", "code": 75, "host": "node-a"}


def gone(study: Study, number: int = 0) -> str:
    """Name of an attempt's pod."""
    return status.build(study.tree).folds[0].attempts[number].pod


def on_claim(kubernetes: FakeKubernetes, fold: int, ledger: list[tuple[int, str]], **logs: str) -> None:
    """A fold's folder: attempts with the pods that made them, and their logs."""
    folder = kubernetes.claim / "alpha-rl-runs" / "demo" / f"fold{fold}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"event": "start", "attempt": n, "pod": pod}) + "\n" for n, pod in ledger]
    (folder / "attempts.jsonl").write_text("".join(lines))
    for name, text in logs.items():
        (folder / f"{name.replace('_', '-')}.txt").write_text(text)


def test_across_attempts_oldest_first(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("train", [FAILED, {"host": "node-b", "pod": running()}], fold=0)
    kubernetes.study(study)
    kubernetes.log(gone(study, 1), 'time="x" level=info msg="waiting for signals"', "second begins", "second goes on")
    on_claim(kubernetes, 0, [(0, gone(study))], log_0="first begins\nfirst ends\n")
    done = command("logs", "demo", "0")
    assert done.returncode == 0, done.stderr
    first, second = gone(study), gone(study, 1)
    assert done.stdout.splitlines() == [
        f"--- train-0 attempt 1, pod {first} on node-a: interrupted, state saved (exit 75) ---",
        "(from the claim: fold0/log-0.txt)",
        "first begins",
        "first ends",
        f"--- train-0 attempt 2, pod {second} on node-b ---",
        "second begins",
        "second goes on",
    ]


def test_nothing_is_started_when_every_pod_is_there(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("train", [{**FAILED, "pod": running()}, {"pod": running()}], fold=0)
    kubernetes.study(study)
    kubernetes.log(gone(study), "one")
    assert "one" in command("logs", "demo", "--fold", "0").stdout
    assert not kubernetes.created


@pytest.mark.parametrize(
    ("flag", "shown"), [("--last", {"third"}), ("--previous", {"second"}), ("", {"first", "second", "third"})]
)
def test_which_attempts(command: Commands, kubernetes: FakeKubernetes, flag: str, shown: set[str]) -> None:
    study = Study().task(
        "train", [{**FAILED, "pod": running()}, {**FAILED, "pod": running()}, {"pod": running()}], fold=1
    )
    kubernetes.study(study)
    for number, word in enumerate(("first", "second", "third")):
        kubernetes.log(gone(study, number), word)
    lines = set(command("logs", "demo", "1", *([flag] if flag else [])).stdout.splitlines())
    assert {word for word in ("first", "second", "third") if word in lines} == shown


def test_attempts_of_earlier_workflows_come_first(command: Commands, kubernetes: FakeKubernetes) -> None:
    old = Study(name="alpha-rl-demo-old11", began=100.0, phase="Failed").task("train", [FAILED], "Failed", fold=0)
    new = Study(name="alpha-rl-demo-new22", began=9000.0).task("train", [{"pod": running()}], fold=0)
    for study in (new, old):
        kubernetes.study(study)
    kubernetes.log(gone(new), "new line")
    on_claim(kubernetes, 0, [(0, gone(old)), (1, gone(new))], log_0="old line\n", log_1="new line\n")
    lines = command("logs", "demo", "0").stdout.splitlines()
    assert lines.index("old line") < lines.index("new line") and lines.count("new line") == 1


def test_every_task_with_its_name_before_its_lines(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("resolve", [{"phase": "Succeeded", "pod": running()}], "Succeeded")
    study.task("train", [{"pod": running()}], fold=0).task("gate", [{"phase": "Pending", "pod": creating()}])
    kubernetes.study(study)
    kubernetes.log(status.build(study.tree).tasks[0].attempts[0].pod, "resolved")
    lines = command("logs", "demo").stdout.splitlines()
    assert "resolve      resolved" in lines and "gate         (its container has not started)" in lines


def test_logs_that_the_claim_does_not_have(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("resolve", [{"phase": "Failed", "code": 2}], "Failed").task("train", [FAILED], fold=0)
    study.task("gate", [{"phase": "Failed", "code": 3}], "Failed")
    kubernetes.study(study)
    on_claim(kubernetes, 0, [(0, "another-pod")], log_0="not this one")
    said = command("logs", "demo").stdout
    assert "(its pod is gone, and with it its log)" in said
    assert said.count("it ended before the trainer wrote any") == 2 and "not this one" not in said


def test_what_the_other_tasks_printed_is_on_the_claim(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study(phase="Failed").task("precompute", [FAILED, {"phase": "Succeeded"}], "Succeeded")
    study.task("gate", [{"phase": "Failed", "code": 3}], "Failed")
    kubernetes.study(study)
    folder = kubernetes.claim / "alpha-rl-runs" / "demo" / "logs"
    folder.mkdir(parents=True)
    tasks = {task.name: task for task in status.build(study.tree).tasks}
    for attempt, text in zip(tasks["precompute"].attempts, ("cut off\n", "fold 0: train rows 0..9\n"), strict=True):
        (folder / f"{attempt.pod}.txt").write_text(text)
    (folder / f"{tasks['gate'].attempts[0].pod}.txt").write_text("wr  0.49  failed\n")
    (folder / "another-pod.txt").write_text("of another workflow\n")
    lines = command("logs", "demo").stdout.splitlines()
    told = [line for line in lines if "(from" not in line and "---" not in line]
    expected = ["precompute   cut off", "precompute   fold 0: train rows 0..9", "gate         wr  0.49  failed"]
    assert told == expected and len(kubernetes.created) == 1
    assert "cut off" not in command("logs", "demo", "--task", "precompute", "--last").stdout


def test_json_lines(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("train", [FAILED, {"host": "node-b", "pod": running()}], fold=1)
    kubernetes.study(study.task("gate", [{"phase": "Pending", "pod": creating()}]))
    kubernetes.log(gone(study, 1), 'second "begins"')
    on_claim(kubernetes, 1, [(0, gone(study))], log_0="first\n")
    done = command("logs", "demo", "--json")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    fold = {"task": "train-1", "fold": 1}
    assert [one for one in told if "line" in one] == [
        {**fold, "attempt": 1, "line": "first"},
        {**fold, "attempt": 2, "line": 'second "begins"'},
    ]
    assert {"task": "gate", "fold": None, "attempt": 1, "note": "its container has not started"} in told
    assert any("on node-b" in one.get("note", "") and one["attempt"] == 2 for one in told)


def test_a_claim_that_can_not_be_read_is_said(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study().task("train", [FAILED], fold=0)
    kubernetes.study(study)
    assert "alpha-rl-runs/demo: No such file" in command("logs", "demo", "0").stdout
    kubernetes.denied[("POST", "/pods")] = 403
    assert "forbids it" in command("logs", "demo", "0").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["demo", "7"], "no such logs of 'train-7'"),
        (["demo", "--task", "gat"], "no such logs of 'gat' (did you mean 'gate'?)"),
        (["demi"], "did you mean 'demo'?"),
        (["demo", "--previous", "--last"], "--previous: not together"),
        (["demo", "x"], "'FOLD'"),
    ],
)
def test_wrong_names(command: Commands, kubernetes: FakeKubernetes, args: list[str], says: str) -> None:
    kubernetes.study(Study().task("train", [{"pod": running()}], fold=0).task("gate", [{"phase": "Pending"}]))
    done = command("logs", *args)
    assert done.returncode == 2 and says in done.stderr


def asked(kubernetes: FakeKubernetes, pod: str, times: int) -> None:
    end = time.monotonic() + 10
    while len(kubernetes.asked("GET", f"{pod}/log")) < times:
        assert time.monotonic() < end, f"the log of {pod} was not asked for {times} times"
        time.sleep(0.02)


def test_following_across_attempts_to_the_end(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study(began=time.time()).task("train", [{"pod": running()}], fold=0)
    kubernetes.study(study)
    first = gone(study)
    kubernetes.log(first, "first begins")

    def fate() -> None:
        asked(kubernetes, first, 1)
        kubernetes.log(first, "first ends")
        kubernetes.drop_streams = True  # and a connection breaks
        asked(kubernetes, first, 2)
        kubernetes.log(first, "first really ends")
        kubernetes.finished_logs.add(first)
        again = Study(began=study.began).task("train", [{**FAILED}, {"pod": running()}], fold=0)
        kubernetes.study(again)
        kubernetes.remove("pods", first)
        second = gone(again, 1)
        kubernetes.log(second, "second begins")
        asked(kubernetes, second, 1)
        kubernetes.finished_logs.add(second)
        over = Study(began=study.began, phase="Succeeded").task(
            "train", [FAILED, {"phase": "Succeeded"}], "Succeeded", 0
        )
        kubernetes.study(over.end("Succeeded"))

    threading.Thread(target=fate, daemon=True).start()
    done = command("logs", "demo", "0", "--follow")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("---")]
    assert lines == ["first begins", "first ends", "first really ends", "second begins"], done.stdout + done.stderr


def test_which_logs_a_pod_wrote(tmp_path: Path) -> None:
    ledger = [
        {"event": "start", "attempt": 0, "pod": "a"},
        {"event": "end", "attempt": 0, "pod": "b", "why": "killed"},
        {"event": "start", "attempt": 1, "pod": "b"},
        {"event": "start", "attempt": 2, "pod": "a"},
    ]
    text = "\n".join([*map(json.dumps, ledger), '{"torn'])
    files = {"fold3/attempts.jsonl": text.encode(), "fold3/log-0.txt": b"zero", "fold3/log-2.txt": b"two"}
    assert logs_of_pod(files, 3, "a") == [("fold3/log-0.txt", "zero"), ("fold3/log-2.txt", "two")]
    assert logs_of_pod(files, 3, "b") == []
