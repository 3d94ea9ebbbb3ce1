"""What is made of Workflows, pods and log lines: every state that a study can be in, and in what words."""

import base64
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflows.cluster_objects import NAME, Study, creating, main_dead, running, stamp, unschedulable
from workflows import argo_nodes, status
from workflows.kube import unpacked
from workflows.status import PodLog

NOW = 2000.0


def build(study: Study, **more):
    return status.build(study.tree, study.pods, now=NOW, **more)


def fold(study: Study, **more):
    return build(study, **more).folds[0]


def log(step=500, total=None, sps=100.0, seen=NOW - 5, **more):
    metrics = {"step": step, "attempt": 0, "sps": sps}
    return PodLog(seen=seen, metrics=metrics, step=step, total=total, doing="training", stepped=seen, **more)


def test_a_running_fold_step_rate_eta_and_checkpoint_age():
    study = Study().task("train", [{"host": "node-a", "pod": running()}], fold=0)
    pod = next(iter(study.pods))
    saved = {"checkpoint_step": 400, "checkpoint_time": NOW - 42}
    task = fold(study, logs={pod: log(**saved)})
    assert (task.phase, task.step, task.total, task.rate) == ("Running", 500, 1000, 100.0)
    assert task.eta_s == pytest.approx(5.0)
    assert (task.checkpoint_step, task.checkpoint_age_s, task.silent_s) == (400, 42, 5)
    assert (task.node, task.name, task.label, task.trouble) == ("node-a", "train-0", "fold 0 - 12-25 23:30", None)


def test_steps_come_from_argos_progress_before_the_first_line():
    study = Study(**{"n-steps": ""}).task("train", [{"progress": "120/900", "pod": running()}], fold=0)
    task = fold(study)
    assert (task.step, task.total, task.rate, task.eta_s) == (120, 900, None, None)


def test_argos_count_of_a_pod_is_not_a_step():
    study = Study(**{"n-steps": ""}).task("train", [{"progress": "0/1", "pod": running()}], fold=0)
    assert (fold(study).step, fold(study).total) == (None, None)


def test_trained_to_the_end_is_evaluating():
    study = Study().task("train", [{"pod": running()}], fold=0)
    task = fold(study, logs={next(iter(study.pods)): log(step=1000)})
    assert (task.phase, task.eta_s) == ("Evaluating", None)


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (
            {"phase": "Failed", "code": 75, "message": "main: Error (exit code 75)"},
            "interrupted, state saved (exit 75)",
        ),
        ({"phase": "Failed", "code": 77}, "out of memory, state saved (exit 77)"),
        ({"phase": "Failed", "code": 137, "message": "main: Error (exit code 137)"}, "killed (exit 137)"),
        (
            {"phase": "Failed", "code": 137, "message": "main: OOMKilled (exit code 137)"},
            "out of memory, killed by the kernel (exit 137)",
        ),
        ({"phase": "Failed", "message": "main: Error (exit code 143)"}, "ended before it could save (exit 143)"),
        ({"phase": "Failed", "code": 139}, "crashed in native code (exit 139)"),
        ({"phase": "Failed", "code": 1}, "failed, its log says why (exit 1)"),
        ({"phase": "Failed", "code": 2}, "wrong flags, settings or data (exit 2)"),
        ({"phase": "Failed", "code": 76}, "crash loop (exit 76)"),
        ({"phase": "Failed", "code": 9}, "exit 9"),
        ({"phase": "Error", "message": "pod deleted"}, "pod deleted"),
        ({"phase": "Failed", "message": "Pod was active on the node longer than the specified deadline"}, "deadline"),
        ({"phase": "Failed", "message": "The node was low on resource: memory."}, "low on resource"),
        ({"phase": "Failed", "message": "workflow shutdown with strategy:  Stop"}, "stopped"),
        ({"phase": "Failed", "code": 75, "message": "workflow shutdown with strategy:  Stop"}, "stopped, state saved"),
        ({"phase": "Error"}, "error"),
    ],
)
def test_why_an_attempt_ended(attempt, why):
    study = Study().task("train", [attempt, {"pod": running()}], fold=0)
    past = fold(study).past
    assert len(past) == 1 and why in past[0].why
    assert past[0].ended - past[0].started == 60


def test_attempts_are_in_order_beyond_ten():
    attempts = [{"phase": "Failed", "code": 75, "seconds": 5} for _ in range(12)]
    study = Study().task("train", [*attempts, {"pod": running()}], fold=0)
    task = fold(study)
    starts = [a.started for a in task.attempts]
    assert len(task.attempts) == 13 and starts == sorted(starts)


def test_between_attempts_it_waits_for_the_retry():
    failed = {"phase": "Failed", "code": 75}
    task = fold(Study().task("train", [failed], fold=0, message="Backoff for 20 seconds"))
    assert (task.phase, task.message, task.rate) == ("Backoff", "Backoff for 20 seconds", None)


def test_a_new_attempt_starts_at_what_the_last_one_reached():
    study = Study().task(
        "train", [{"phase": "Failed", "code": 75, "progress": "400/1000"}, {"pod": creating()}], fold=0
    )
    assert fold(study).step == 400


@pytest.mark.parametrize(
    ("pod", "events", "message", "says"),
    [
        (unschedulable(), "", "", "Insufficient nvidia.com/gpu"),
        (creating(), "", "", "its containers are being made"),
        (creating(), "FailedMount: claim not found", "", "FailedMount: claim not found"),
        (None, "", "Waiting for foxhunt/ConfigMap/gpus lock. Lock status: 0/2", "Waiting for foxhunt/ConfigMap/gpus"),
        (None, "", "", "its pod is not made yet"),
    ],
)
def test_why_a_pod_waits(pod, events, message, says):
    attempt = {"phase": "Pending", "message": message, **({"pod": pod} if pod else {})}
    study = Study().task("train", [attempt], phase="Running", fold=0)
    study.nodes[next(k for k, n in study.nodes.items() if n["type"] == "Retry")]["message"] = message
    name = build(study).folds[0].attempts[0].pod
    task = fold(study, reasons={name: events} if events else {})
    assert task.phase == "Pending" and says in task.pending


def test_an_image_that_can_not_be_pulled():
    pod = creating()
    pod["containerStatuses"][0]["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image x"}}
    study = Study().task("train", [{"phase": "Pending", "pod": pod}], fold=0)
    assert fold(study).pending == "ImagePullBackOff: no such image x"


def trouble(pod, **more):
    study = Study().task("train", [{"host": "node-a", "pod": pod}], fold=0)
    return study, fold(study, **more).trouble


def test_main_dead_but_pod_running_only_after_the_grace():
    study, found = trouble(main_dead(NOW - 31))
    assert found.kind == "main dead" and "dead for 31 s (exit 137), but the pod keeps running" in found.text
    assert found.todo == f"kubectl delete pod {next(iter(study.pods))} -n foxhunt"
    assert trouble(main_dead(NOW - 29))[1] is None
    assert trouble(main_dead(NOW - 500, code=0))[1] is None, "Argo's executor may take long to save what it made"


def test_a_pod_being_deleted_is_not_healed_again():
    study = Study().task("train", [{"pod": main_dead(NOW - 60)}], fold=0)
    next(iter(study.pods.values()))["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert fold(study).trouble is None


@pytest.mark.parametrize(("ready", "words"), [({"node-a": False}, "node node-a gone"), ({}, "seems to be gone")])
def test_node_gone(ready, words):
    _, found = trouble(running(ready="False"), nodes_ready=ready)
    assert found.kind == "node gone" and words in found.text and "kubectl delete node node-a" in found.todo


def test_a_node_that_answers_is_not_gone():
    _, found = trouble(running(since=NOW - 5, ready="False"), nodes_ready={"node-a": True})
    assert found is None


def test_a_pod_that_does_not_end_is_looked_at():
    study = Study().task("train", [{"host": "node-a", "pod": running()}], fold=0)
    next(iter(study.pods.values()))["metadata"]["deletionTimestamp"] = stamp(NOW - 300)
    assert fold(study).trouble.kind == "node gone"


def test_no_heartbeat():
    study = Study().task("train", [{"pod": running(since=NOW - 500)}], fold=0)
    pod = next(iter(study.pods))
    assert fold(study, logs={pod: log(seen=NOW - 200)}).trouble.text == "no heartbeat for 200 s"
    assert fold(study, logs={pod: log(seen=NOW - 10)}).trouble is None
    assert fold(study).trouble.text == "no heartbeat for 500 s", "nothing said since its start"
    assert fold(study, silent_after=600).trouble is None


def test_alive_without_a_step():
    study = Study().task("train", [{"pod": running(since=NOW - 500)}], fold=0)
    pod = next(iter(study.pods))
    beat = PodLog(seen=NOW - 5, step=500, total=1000, doing="training", stepped=NOW - 200)
    assert fold(study, logs={pod: beat}).trouble.text == "alive, but no step for 200 s"
    judging = PodLog(seen=NOW - 5, step=900, total=1000, doing="judging", stepped=NOW - 2000)
    task = fold(study, logs={pod: judging})
    assert (task.phase, task.trouble) == ("Evaluating", None)
    starting = PodLog(seen=NOW - 5, step=0, total=1000, doing="starting", stepped=NOW - 2000)
    assert (fold(study, logs={pod: starting}).step, fold(study, logs={pod: starting}).trouble) == (None, None)


def test_a_workflow_nobody_takes_up():
    study = Study(began=NOW - 30)
    study.tree["status"] = {}
    found = build(study)
    assert found.phase == "Pending" and "no controller has taken up" in found.trouble.text
    assert "preflight" in found.trouble.todo
    assert status.build(study.tree, now=NOW - 20).trouble is None


def test_order_of_tasks_and_run_id_from_the_task_that_derived_it():
    study = Study(run_id="")
    study.task("gate", [{"phase": "Pending"}]).task("train", [{}], fold=2).task("train", [{}], fold=0)
    study.task("resolve", [{"phase": "Succeeded"}], phase="Succeeded", outputs={"run-id": "5d4e"})
    found = build(study)
    assert [task.name for task in found.tasks] == ["resolve", "train-0", "train-2", "gate"]
    assert found.run_id == "5d4e"


def test_names_of_pods_that_are_gone_follow_argos_rule():
    study = Study().task("train", [{"pod": running()}], fold=0)
    name = next(iter(study.pods))
    assert status.build(study.tree).folds[0].attempts[0].pod == name


def test_a_fold_number_out_of_the_nodes_name():
    study = Study().task("train", [{}], fold=2)
    for node in study.nodes.values():
        node.pop("inputs", None)
    assert [task.fold for task in build(study).folds] == [2]


def test_omitted_tasks_and_empty_fan_outs():
    study = Study()
    study.nodes["a"] = {"id": "a", "name": "x.gate", "type": "Skipped", "phase": "Omitted", "displayName": "gate"}
    study.nodes["b"] = {
        "id": "b",
        "name": "x.train",
        "type": "TaskGroup",
        "phase": "Succeeded",
        "templateName": "train",
    }
    assert [(task.name, task.phase) for task in build(study).tasks] == [("gate", "Omitted")]


def test_compressed_nodes_are_the_same_study():
    study = Study().task("train", [{"progress": "10/20"}], fold=1)
    packed = json.loads(json.dumps(study.tree))
    nodes = json.dumps(packed["status"].pop("nodes")).encode()
    packed["status"]["compressedNodes"] = base64.b64encode(gzip.compress(nodes)).decode()
    assert status.build(unpacked(packed)) == status.build(study.tree)


FAILED = {"phase": "Failed", "code": 1}
GATE_FAILED = {"phase": "Failed", "code": 3}


@pytest.mark.parametrize(
    ("phase", "tasks", "shutdown", "code"),
    [
        ("Running", [], "", None),
        ("Succeeded", [], "", 0),
        ("Failed", [("gate", GATE_FAILED, None)], "", 3),
        ("Failed", [("gate", GATE_FAILED, None), ("train", FAILED, 1)], "", 1),
        ("Failed", [("train", {"phase": "Failed", "code": 76}, 1), ("gate", GATE_FAILED, None)], "", 76),
        ("Failed", [("train", FAILED, 1)], "Stop", 75),
        ("Failed", [("gate", GATE_FAILED, None), ("summary", FAILED, None)], "", 3),
        ("Error", [], "", 1),
        ("Failed", [("train", {"phase": "Error", "message": "pod deleted"}, 1)], "", 1),
    ],
)
def test_exit_code_of_the_study(phase, tasks, shutdown, code):
    study = Study(phase=phase)
    for template, attempt, number in tasks:
        study.task(template, [attempt], phase=attempt["phase"], fold=number)
    study.tree["spec"]["shutdown"] = shutdown
    assert status.exit_code(build(study)) == code


def test_stopping_shows_that_folds_save():
    study = Study().task("train", [{"pod": running()}], fold=0)
    study.tree["spec"]["shutdown"] = "Stop"
    assert fold(study).phase == "Saving"


def test_nothing_goes_on_in_a_workflow_that_is_over():
    stopped = {"phase": "Failed", "message": "workflow shutdown with strategy:  Stop"}
    study = (
        Study(phase="Failed").task("train", [stopped], "Running", 0).task("train", [{"pod": running()}], "Running", 1)
    )
    first, second = build(study).folds
    assert (first.phase, first.past[0].why, second.phase, second.trouble) == ("Failed", "stopped", "Failed", None)


def recorded(name: str) -> status.Study:
    """A Workflow as a controller 4.0.5 left it."""
    return status.build(json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text()), now=NOW)


def test_a_recorded_study_whose_pod_was_deleted():
    found = recorded("retried")
    assert [task.name for task in found.tasks] == [
        *("resolve", "precompute", "train-0", "train-1", "gate", "report", "summary")
    ]
    first, second = found.folds
    assert (first.label, first.step, first.total) == ("fold 0 - 01-02 15:14", 400, 400)
    assert first.outputs == {"wr": "0.6923", "hold-pct": "87.6226"}
    assert [(a.node, a.why) for a in second.attempts] == [("gpu-a", "pod deleted"), ("gpu-a", "")]
    assert second.attempts[0].pod.endswith("-train-1788922132"), "as the pod was called"
    gate = next(task for task in found.tasks if task.task == "gate")
    assert gate.outputs["verdict"] == "failed" and gate.past[0].why == "gate failed (exit 3)"
    assert found.run_id == "retried" and status.exit_code(found) == 3


def test_a_recorded_study_that_was_stopped():
    found = recorded("stopped")
    refused, second = found.folds
    assert "displayName must match" in refused.message and refused.phase == "Error"
    assert (second.phase, second.past[0].why) == ("Failed", "stopped, state saved (exit 75)")
    assert found.shutdown == "Stop" and status.exit_code(found) == 75


def test_the_whole_model_is_json():
    study = Study().task("train", [{"host": "node-a", "pod": main_dead(NOW - 60)}], fold=0)
    tree = json.loads(json.dumps(build(study).to_dict()))
    assert tree["tasks"][0]["trouble"]["kind"] == "main dead" and tree["exit_code"] is None


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 4e9).map(lambda x: round(x, 6)))
def test_times_are_read_as_written(at):
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    assert argo_nodes.seconds(text) == pytest.approx(at, abs=1e-5)


@pytest.mark.parametrize("text", [None, "", "soon", 5])
def test_no_time(text):
    assert argo_nodes.seconds(text) is None


def test_nanoseconds_of_a_log_line():
    assert argo_nodes.seconds("1970-01-01T00:00:01.123456789Z") == pytest.approx(1.123456789)


@settings(deadline=None, max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_a_node_with_unknown_fields_changes_nothing(junk):
    study = Study().task("train", [{"pod": running()}], fold=0)
    before = build(study)
    for node in study.nodes.values():
        node["unknownField"] = junk
    assert build(study) == before


def test_name_is_kept():
    assert build(Study()).name == NAME
