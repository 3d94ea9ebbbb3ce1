"""`watch` on a cluster that changes underneath it: streams end and break, pods die, workflows go."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.workflows.cluster_objects import LABELS, NAME, Study, creating, main_dead, running, stamp, unschedulable
from tests.workflows.conftest import Commands
from tests.workflows.fake_kubernetes import FakeKubernetes
from workflows import feed as feeds
from workflows import status
from workflows.feed import Feed
from workflows.kube import ClusterError, Kube
from workflows.pod_logs import LogReader, is_executors, our_line, split_lines
from workflows.status import PodLog

EXECUTOR = '{"time":"2026-11-30T00:00:00Z","level":"INFO","msg":"waiting for signals","step":1}'


def metric(step: int, **more: Any) -> str:
    return json.dumps({"fold": 0, "step": step, "attempt": 0, "sps": 50.0, **more})


def until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def study_of(**kinds: Any) -> Study:
    """A study whose precompute is done and whose fold 0 has one attempt."""
    study = Study(began=time.time() - 30)
    study.task("precompute", [{"phase": "Succeeded", "seconds": 5}], phase="Succeeded")
    return study.task("train", [{"host": "node-a", **kinds}], fold=0)


def pod_of(study: Study) -> str:
    return next(iter(study.pods))


def once_watched(kubernetes: FakeKubernetes, *work: Callable[[], Any]) -> None:
    """Does each once both watches stand, with time between to see what came of it."""

    def do() -> None:
        until(lambda: len(kubernetes.watchers) == 2)
        for one in work:
            time.sleep(0.4)
            one()

    threading.Thread(target=do, daemon=True).start()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting before another try, no grace before healing."""
    monkeypatch.setattr(feeds, "_MAX_BACKOFF", 0.05)
    monkeypatch.setattr(feeds, "_PATIENCE", 0.0)


@pytest.fixture
def feed(kubernetes: FakeKubernetes, quick: None) -> Iterator[Callable[..., Feed]]:
    opened: list[Feed] = []

    def make(**options: Any) -> Feed:
        opened.append(Feed(Kube.connect(), NAME, **options).__enter__())
        return opened[-1]

    yield make
    for one in opened:
        one.__exit__()


def test_no_thread_outlives_the_feed(kubernetes: FakeKubernetes, quick: None) -> None:
    """One that is at work while the interpreter ends can abort the process."""
    kubernetes.study(study_of(pod=running(time.time())))
    own = set(threading.enumerate())
    with Feed(Kube.connect(), NAME) as followed:
        followed.study()
        until(lambda: len(followed._streams) == 3)
        threads = [t for t in threading.enumerate() if t not in own and "_until_closed" in t.name]
        assert len(threads) == 3, "workflow, pods, and the log of the fold that runs"
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(ClusterError, match="not followed any more"):
        followed._list_pods()


def test_a_reader_that_leaves_ends_the_watching(kubernetes: FakeKubernetes) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    argv = [sys.executable, "-m", "workflows.watch", "demo", "--json", "--every", "0.1"]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **out) as watching:  # type: ignore[call-overload]
        try:
            assert json.loads(watching.stdout.readline())["phase"] == "Running"
            watching.stdout.close()
            kubernetes.study(study.task("gate", [{"phase": "Pending"}]))
            assert (watching.wait(20), watching.stderr.read()) == (0, "")
        finally:
            watching.kill()


def test_a_study_to_its_end(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    kubernetes.log(pod_of(study), EXECUTOR, metric(100))

    def end() -> None:
        ended = Study(began=study.began, phase="Succeeded")
        ended.task(
            "train", [{"phase": "Succeeded", "host": "node-a"}], "Succeeded", 0, {"wr": "0.61", "hold-pct": "44"}
        )
        kubernetes.study(
            ended.task("gate", [{"phase": "Succeeded"}], "Succeeded", None, {"verdict": "passed"}).end("Succeeded")
        )

    once_watched(kubernetes, lambda: kubernetes.log(pod_of(study), metric(700)), end)
    done = command("watch", "demo")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("train-0      running    fold 0 - 12-25 23:30") for line in lines)
    assert any("train-0      succeeded" in line and "wr 0.61" in line for line in lines)
    assert f"{NAME}: succeeded" in done.stdout and "exit 0" in done.stdout
    assert "gate: passed" in done.stdout, "its pod is gone, the verdict is known all the same"
    assert "python -m workflows.fetch demo" in done.stdout


def test_json_lines_count_calls(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    kubernetes.log(pod_of(study), metric(250, checkpoint_step=200, checkpoint_age_s=3.0))
    done = command("watch", "demo", "--json", "--once")
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    (task,) = [t for t in told["tasks"] if t["task"] == "train"]
    assert (task["step"], task["rate"], task["checkpoint_step"]) == (250, 50.0, 200)
    assert task["eta_s"] == pytest.approx(15.0)
    assert told["exit_code"] is None and done.returncode == 0
    assert told["calls"] == 3, "workflow, pods, one log"


def test_few_calls_while_a_study_runs(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    watched = feed()
    for step in range(60):
        kubernetes.log(pod_of(study), metric(step))
        watched.study()
        watched.wait(0.02)
    until(lambda: watched.study().folds[0].step == 59)
    assert watched.calls == 5, "two lists, two watches, one log: nothing is asked again while they stand"
    assert watched.calls_a_minute() <= 5


def test_a_watch_that_ends_goes_on(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    watched = feed()
    until(lambda: len(kubernetes.watchers) == 2)
    for number in range(3):
        kubernetes.end_watches()
        study.tree["status"]["message"] = f"change {number}"
        kubernetes.put("workflows", study.tree)
        until(lambda n=number: watched.study().message == f"change {n}")
    assert watched.problem == ""


def test_history_that_is_forgotten_is_listed_again(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    watched = feed()
    until(lambda: len(kubernetes.watchers) == 2)
    study.tree["status"]["message"] = "missed"
    with kubernetes.lock:  # the change falls between the end of one watch and the beginning of the next
        kubernetes.end_watches()
        kubernetes.version += 50
        kubernetes.forget()
    kubernetes.put("workflows", study.tree)
    until(lambda: watched.study().message == "missed")
    assert len(kubernetes.asked("GET", "/workflows")) > 3 and watched.problem == ""


def test_an_api_that_fails_is_said_and_asked_again(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    kubernetes.study(study_of(pod=running(time.time())))
    watched = feed()
    until(lambda: len(kubernetes.watchers) == 2)
    kubernetes.denied[("GET", "/workflows")] = 500
    kubernetes.end_watches()
    until(lambda: "(500)" in watched.problem)
    kubernetes.denied.clear()
    until(lambda: watched.problem == "")


def test_pods_that_may_not_be_read_leave_the_workflow(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    kubernetes.study(study_of(progress="300/1000", pod=running(time.time())))
    kubernetes.denied[("GET", "/pods")] = 403
    watched = feed()
    assert watched.study().folds[0].step == 300
    assert "pods may not be read" in watched.problem


def test_a_log_stream_that_breaks_is_followed_on(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    watched = feed()
    kubernetes.log(pod_of(study), metric(1))
    until(lambda: watched.study().folds[0].step == 1)
    kubernetes.drop_streams = True
    until(lambda: not kubernetes.drop_streams)
    kubernetes.log(pod_of(study), metric(2))
    until(lambda: watched.study().folds[0].step == 2)


def test_the_next_attempts_pod_is_followed(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(pod=running(time.time()))
    kubernetes.study(study)
    watched = feed()
    kubernetes.log(pod_of(study), metric(400))
    until(lambda: watched.study().folds[0].step == 400)
    again = Study(began=study.began)
    again.task("train", [{"phase": "Error", "message": "pod deleted", "host": "node-a"}, {"pod": running()}], fold=0)
    kubernetes.remove("pods", pod_of(study))
    kubernetes.study(again)
    kubernetes.log(pod_of(again), metric(410))
    until(lambda: watched.study().folds[0].step == 410)
    task = watched.study().folds[0]
    assert [a.why for a in task.attempts] == ["pod deleted", ""]


def test_main_dead_is_healed_and_said(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = study_of(pod=main_dead(time.time() - 40))
    kubernetes.study(study)

    def controller(pod: str) -> None:
        ended = Study(began=study.began, phase="Succeeded")
        attempts = [
            {"phase": "Error", "message": "pod deleted", "host": "node-a"},
            {"phase": "Succeeded", "host": "node-b"},
        ]
        kubernetes.study(ended.task("train", attempts, "Succeeded", 0).end("Succeeded"))

    kubernetes.on_delete = controller
    done = command("watch", "demo")
    assert done.returncode == 0
    assert "main container dead for" in done.stdout and f"deleted pod {pod_of(study)}" in done.stdout
    assert "train-0      attempt 1 on node-a ended" in done.stdout
    body = next(b for m, _, _, b in kubernetes.requests if m == "DELETE")
    assert body["preconditions"] == {"uid": f"uid-{pod_of(study)}"}, "never the pod of the next attempt"


@pytest.mark.parametrize("flags", [["--no-heal"], ["--once"]])
def test_nothing_is_deleted_unasked(command: Commands, kubernetes: FakeKubernetes, flags: list[str]) -> None:
    study = study_of(pod=main_dead(time.time() - 40))
    kubernetes.study(study)
    if "--once" not in flags:
        once_watched(kubernetes, lambda: kubernetes.remove("workflows", NAME))
    done = command("watch", "demo", *flags)
    assert not kubernetes.asked("DELETE", "/pods")
    assert f"delete pod {pod_of(study)} -n foxhunt" in done.stdout


def test_healing_that_is_not_allowed_says_so_once(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(study_of(pod=main_dead(time.time() - 40)))
    kubernetes.denied[("DELETE", "/pods")] = 403
    once_watched(kubernetes, lambda: kubernetes.remove("workflows", NAME))
    done = command("watch", "demo")
    assert done.stdout.count("it can't be deleted from here") == 1
    assert len(kubernetes.asked("DELETE", "/pods")) == 1


def test_a_lost_node_is_looked_at_and_named(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    kubernetes.study(study_of(pod=running(time.time(), ready="False")))
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    node = {"metadata": {"name": "node-a"}, "status": {"conditions": [ready]}}
    kubernetes.put("nodes", node)
    watched = feed()
    found = watched.study().folds[0].trouble
    assert found is not None and found.text.startswith("node node-a gone") and "delete node node-a" in found.todo
    for _ in range(5):
        watched.study()
    assert len(kubernetes.asked("GET", "/nodes/")) == 1, "a lost node stays lost for minutes"


def test_a_node_that_may_not_be_read_is_a_guess(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    kubernetes.study(study_of(pod=running(time.time(), ready="False")))
    kubernetes.denied[("GET", "/nodes/")] = 403
    found = feed().study().folds[0].trouble
    assert found is not None and "seems to be gone" in found.text


def test_events_explain_a_placed_pod_that_waits(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    study = study_of(phase="Pending", pod=creating())
    kubernetes.study(study)
    about = {"kind": "Pod", "name": pod_of(study), "namespace": "foxhunt"}
    event = {"metadata": {"name": "e"}, "type": "Warning", "reason": "FailedMount", "involvedObject": about}
    kubernetes.events.append(
        {**event, "message": 'persistentvolumeclaim "feature-cache" not found', "lastTimestamp": stamp(1)}
    )
    watched = feed()
    assert watched.study().folds[0].pending == 'FailedMount: persistentvolumeclaim "feature-cache" not found'
    watched.study()
    assert len(kubernetes.asked("GET", "/events")) == 1


def test_an_unschedulable_pod_needs_no_events(kubernetes: FakeKubernetes, feed: Callable[..., Feed]) -> None:
    kubernetes.study(study_of(phase="Pending", pod=unschedulable()))
    assert "Insufficient nvidia.com/gpu" in feed().study().folds[0].pending
    assert not kubernetes.asked("GET", "/events")


def test_a_workflow_deleted_while_watched(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.study(study_of(pod=running(time.time())))
    once_watched(kubernetes, lambda: kubernetes.remove("workflows", NAME))
    done = command("watch", "demo")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: workflow {NAME} was deleted while it was watched"


def test_gate_failed_is_exit_3_with_its_table(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study(began=time.time() - 60, phase="Failed")
    study.task("train", [{"phase": "Succeeded"}], "Succeeded", 0)
    study.task("gate", [{"phase": "Failed", "code": 3, "pod": running()}], "Failed", None, {"verdict": "failed"})
    kubernetes.study(study.end("Failed", "child failed"))
    kubernetes.log(pod_of(study), 'time="x" level=info msg="waiting for signals"', "win rate 0.4 FAIL")
    kubernetes.finished_logs.add(pod_of(study))
    done = command("watch", NAME)
    assert done.returncode == 3
    assert "win rate 0.4 FAIL" in done.stdout and "waiting for signals" not in done.stdout
    assert "python -m workflows.resubmit" not in done.stdout, "no fold failed"


def test_a_failed_fold_says_how_to_run_it_again(command: Commands, kubernetes: FakeKubernetes) -> None:
    study = Study(began=time.time() - 60, phase="Failed")
    study.task("train", [{"phase": "Failed", "code": 75}, {"phase": "Failed", "code": 1}], "Failed", 1)
    kubernetes.study(study.end("Failed"))
    done = command("watch", "demo")
    assert done.returncode == 1
    assert f"{LABELS[1]}: attempt 2 ended after 1m00s: failed, its log says why (exit 1)" in done.stdout
    assert "failed folds again: python -m workflows.resubmit demo" in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["dmeo"], "run 'dmeo': none in namespace foxhunt (did you mean 'demo'?)"),
        ([NAME[:-1] + "q"], f"did you mean '{NAME}'?"),
        (["demo", "--context", "hree"], "--context hree: not in"),
        (["zzz", "--backend", "local"], "no runs under runs"),
    ],
)
def test_wrong_names(command: Commands, kubernetes: FakeKubernetes, args: list[str], says: str) -> None:
    kubernetes.study(study_of())
    done = command("watch", *args)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_no_studies_at_all(command: Commands, kubernetes: FakeKubernetes) -> None:
    done = command("watch")
    assert done.returncode == 2 and "no studies in namespace foxhunt" in done.stderr
    assert "python -m workflows.submit --folds 3 --backend argo" in done.stderr


def test_two_runs_that_begin_alike(command: Commands, kubernetes: FakeKubernetes) -> None:
    for name in ("aa1", "aa2"):
        kubernetes.study(Study(name=f"alpha-rl-{name}", run_id=name))
    done = command("watch", "aa")
    assert done.returncode == 2 and "more than one begins so: aa" in done.stderr


def test_a_cluster_that_is_gone(command: Commands, kubernetes: FakeKubernetes) -> None:
    kubernetes.close()
    done = command("watch", "demo")
    assert done.returncode == 2 and "does not answer" in done.stderr


def test_metric_lines_and_others() -> None:
    assert our_line(metric(5))["step"] == 5
    for text in (EXECUTOR, "{", "[1]", '{"step": "x", "attempt": 0}', "03:03:14 [info] training", '{"step": 5}', ""):
        assert our_line(text) == {}
    assert is_executors(EXECUTOR.replace(',"step":1', "")) and not is_executors(metric(5))
    assert is_executors("Error: exit status 75") and not is_executors("error: SIGTERM: saved at step 344 of 600")
    assert is_executors('time="2026-11-30T00:00:00.000Z" level=INFO msg="waiting for signals"')


def test_a_log_readers_memory() -> None:
    reader = LogReader(PodLog())
    assert reader.feed("1970-01-01T00:01:40.5Z " + metric(5, checkpoint_step=3, checkpoint_age_s=20))
    assert (reader.log.checkpoint_step, reader.log.checkpoint_time, reader.log.seen) == (3, 80.5, 100.5)
    assert not reader.feed("1970-01-01T00:01:39Z " + metric(1)), "read before"
    beat = {"fold": 0, "heartbeat": "training", "step": 7, "total": 90, "attempt": 0, "step_age_s": 4.0}
    assert reader.feed("1970-01-01T00:01:44Z " + json.dumps(beat))
    assert (reader.log.step, reader.log.total, reader.log.doing, reader.log.stepped) == (7, 90, "training", 100)
    assert reader.log.metrics["step"] == 5
    assert reader.feed("1970-01-01T00:01:50Z 00:01:50 [info     ] checkpoint saved path=/x.bin seconds=0.1 step=60")
    assert (reader.log.checkpoint_step, reader.log.checkpoint_time) == (60, 110)
    assert not reader.feed("no time here")


def test_lines_of_chunks_that_end_anywhere() -> None:
    text = "é → ü\nzwei\n\nrest"
    data = text.encode()
    for size in (1, 2, 3, 7):
        chunks = (data[i : i + size] for i in range(0, len(data), size))
        assert list(split_lines(chunks)) == text.split("\n")


def test_a_refused_list_raises_with_what_to_do(kubernetes: FakeKubernetes) -> None:
    kubernetes.denied[("GET", "/workflows")] = 403
    with pytest.raises(ClusterError, match="forbids it") as refused:
        Feed(Kube.connect(), NAME).__enter__()
    assert refused.value.status == 403


def test_ctrl_c_leaves_the_workflow_alone(
    command: Commands, kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.study(study_of(pod=running(time.time())))

    def interrupt(self: Feed, timeout: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Feed, "wait", interrupt)
    done = command("watch", "demo")
    assert done.returncode == 130
    assert f"workflow {NAME} goes on" in done.stderr and "python -m workflows.stop" in done.stderr
    assert status.build(kubernetes.objects["workflows"][NAME]).shutdown == ""
